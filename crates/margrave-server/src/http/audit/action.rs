//! What a request is called in the audit log, and what it is about. A page's form and the REST call that does the same
//! have the same name.

use http::Method;
use margrave_wire::identity::JOIN_PATH;
use margrave_wire::northbound;
use margrave_wire::operator::PREFIX;
use percent_encoding::percent_decode_str;

/// What pages call otherwise than REST does.
const FORMS: [(&str, &str); 22] = [
    ("/demo", "demo.break"),
    ("/settings/schedule", "schedule.put"),
    ("/settings/schedule/remove", "schedule.remove"),
    ("/settings/registries", "registry.put"),
    ("/settings/registries/check", "registry.check"),
    ("/settings/registries/remove", "registry.remove"),
    ("/settings/repository", "intent.resolve"),
    ("/settings/backup", "backup.add"),
    ("/watches", "watch.put"),
    ("/watches/remove", "watch.remove"),
    ("/devices", "device.change"),
    ("/deploy/rehearsal", "deployment.rehearse"),
    ("/deployments/{deployment}/edit/rehearsal", "deployment.rehearse"),
    ("/devices/new", "join-token.add"),
    ("/devices/new/{device}/revoke", "join-token.remove"),
    ("/deploy", "deployment.put"),
    ("/deployments/{deployment}/edit", "deployment.put"),
    ("/sign-in", "session.begin"),
    ("/welcome/{code}", "session.begin"),
    ("/sign-out", "session.end"),
    ("/sign-out/everywhere", "session.end-all"),
    ("/access/{token}/revoke", "token.revoke"),
];

/// A stable code such as `deployment.put`, made from the route: noun first, then what is done to it. Nobody has to
/// remember to name a new route.
pub(super) fn action(method: &Method, route: Option<&str>) -> String {
    let Some(route) = route else { return "unknown".to_owned() };
    if let Some((_, action)) = FORMS.iter().find(|(form, _)| *form == route) {
        return (*action).to_owned();
    }
    if let Some(path) = route.strip_prefix(northbound::PREFIX) {
        return aliased(method, path);
    }
    let path = route.strip_prefix(PREFIX).unwrap_or(route);
    let path = path.strip_prefix("/access").map_or(path, |_| "/tokens");
    let words: Vec<&str> = path.split('/').filter(|word| !word.is_empty()).collect();
    let is_name = |word: &str| word.starts_with('{');
    let mut code: Vec<&str> = words.iter().copied().filter(|word| !is_name(word)).collect();
    if let Some(noun) = code.first_mut() {
        *noun = match *noun {
            "registries" => "registry",
            "watches" => "watch",
            // That is one already.
            "status" => "status",
            noun => noun.strip_suffix('s').unwrap_or(noun),
        };
    }
    // Below a noun, a word that is posted to is the verb already: `/devices/{device}/retire`.
    let says_verb = code.len() > 1 && words.last().is_some_and(|word| !is_name(word));
    let verb = match *method {
        Method::POST | Method::PATCH if says_verb => None,
        Method::POST => Some("add"),
        Method::PUT => Some("put"),
        Method::PATCH => Some("change"),
        Method::DELETE => Some("remove"),
        Method::GET | Method::HEAD => Some("look"),
        _ => Some("other"),
    };
    code.extend(verb);
    code.join(".")
}

/// The sandbox's nouns are other words for ours.
fn aliased(method: &Method, path: &str) -> String {
    let own = match path {
        // It creates under a name, as a PUT does here.
        "/app-deployments" if method == Method::POST => return "deployment.put".to_owned(),
        "/app-deployments" => "/deployments",
        "/app-deployments/{id}" => "/deployments/{deployment}",
        "/app-packages" => "/packages",
        "/app-packages/{id}" => "/packages/{package}",
        other => other,
    };
    // By the path that it has here, where no page is.
    action(method, Some(&format!("{PREFIX}{own}")))
}

/// What a device asks before it is anybody.
pub(super) fn identity(path: &str) -> &'static str {
    if path == JOIN_PATH { "device.join" } else { "device.renew" }
}

/// The names in a path, decoded, with blanks between them: `andon-board 1.0.0`.
pub(super) fn subject(route: Option<&str>, path: &str) -> String {
    // The code of a sign-in link is a secret, and what lies below a wildcard is no name.
    let Some(route) = route.filter(|route| !route.contains("{code}") && !route.contains("{*")) else {
        return String::new();
    };
    let names = route.split('/').zip(path.split('/')).filter(|(word, _)| word.starts_with('{'));
    let names: Vec<_> = names.map(|(_, name)| percent_decode_str(name).decode_utf8_lossy()).collect();
    names.join(" ")
}

/// What a request to the registry does, if that is worth an entry: a manifest is what others see, while its blobs are
/// only on their way to it.
pub(super) fn registry(method: &Method, path: &str) -> Option<(&'static str, String)> {
    let path = path.strip_prefix("/v2/")?;
    let action = match *method {
        Method::PUT if path.contains("/manifests/") => "registry.push",
        Method::DELETE if path.contains("/manifests/") || !path.contains("/uploads/") => "registry.delete",
        _ => return None,
    };
    Some((action, path.replacen("/manifests/", ":", 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_have_names_that_say_what_is_done_to_what() {
        let rest = |method: &Method, path: &str| action(method, Some(&format!("{PREFIX}{path}")));
        for (method, path, code) in [
            (Method::PUT, "/deployments/{deployment}", "deployment.put"),
            (Method::DELETE, "/deployments/{deployment}", "deployment.remove"),
            (Method::POST, "/deployments/{deployment}/revert", "deployment.revert"),
            (Method::PATCH, "/devices/{device}/labels", "device.labels"),
            (Method::POST, "/devices/{device}/retire", "device.retire"),
            (Method::POST, "/devices/{device}/hold", "device.hold"),
            (Method::POST, "/devices/{device}/look", "device.look"),
            (Method::PUT, "/devices/{device}/git", "device.git.put"),
            (Method::DELETE, "/devices/{device}/git", "device.git.remove"),
            (Method::POST, "/join-tokens", "join-token.add"),
            (Method::POST, "/packages", "package.add"),
            (Method::DELETE, "/packages/{package}/{version}", "package.remove"),
            (Method::POST, "/authority/rotate", "authority.rotate"),
            (Method::POST, "/signed-clients", "signed-client.add"),
            (Method::PUT, "/schedules/{reach}", "schedule.put"),
            (Method::PUT, "/registries/{host}", "registry.put"),
            (Method::POST, "/watches/{repository}/look", "watch.look"),
            (Method::POST, "/tokens", "token.add"),
            (Method::POST, "/tokens/{token}/revoke", "token.revoke"),
            (Method::GET, "/status", "status.look"),
        ] {
            assert_eq!(rest(&method, path), code);
        }
        for (path, code) in [
            ("/deploy", "deployment.put"),
            ("/deployments/{deployment}/edit", "deployment.put"),
            ("/deployments/{deployment}/remove", "deployment.remove"),
            ("/devices/{device}/labels", "device.labels"),
            ("/packages", "package.add"),
            ("/access", "token.add"),
            ("/access/{token}/revoke", "token.revoke"),
            ("/sign-in", "session.begin"),
            ("/devices", "device.change"),
            ("/watches/look", "watch.look"),
            ("/settings/schedule/remove", "schedule.remove"),
        ] {
            assert_eq!(action(&Method::POST, Some(path)), code);
        }
        let alias =
            |method: &Method, path: &str| action(method, Some(&format!("{}{path}", northbound::PREFIX)));
        for (method, path, code) in [
            (Method::POST, "/app-packages", "package.add"),
            (Method::DELETE, "/app-packages/{id}", "package.remove"),
            (Method::POST, "/app-deployments", "deployment.put"),
            (Method::DELETE, "/app-deployments/{id}", "deployment.remove"),
            (Method::GET, "/devices", "device.look"),
        ] {
            assert_eq!(alias(&method, path), code);
        }
        assert_eq!(action(&Method::POST, None), "unknown");
    }

    #[test]
    fn every_noun_of_the_interface_is_one_word_for_one_thing() {
        let described = crate::http::operator::describe();
        let paths: Vec<&String> = described.paths.paths.keys().collect();
        assert!(paths.len() > 40, "{paths:?}");
        let nouns: std::collections::BTreeSet<String> = paths
            .into_iter()
            .map(|path| action(&Method::GET, Some(path)))
            .map(|code| code.split('.').next().unwrap_or_default().to_owned())
            .collect();
        let known = "audit authority backup deployment device event history intent join-token package registry schedule schema \
                     secret session signed-client status token watch why";
        assert_eq!(nouns.into_iter().collect::<Vec<_>>().join(" "), known);
    }

    #[test]
    fn the_subject_is_what_the_path_names_and_never_a_secret() {
        assert_eq!(subject(Some("/devices/{device}/labels"), "/devices/gw%2Fchild/labels"), "gw/child");
        assert_eq!(subject(Some("/p/{package}/{version}"), "/p/andon-board/1.0.0"), "andon-board 1.0.0");
        assert_eq!(subject(Some("/packages"), "/packages"), "");
        assert_eq!(subject(Some("/welcome/{code}"), "/welcome/secret"), "");
        assert_eq!(subject(None, "/x/secret"), "");
    }

    #[test]
    fn of_a_push_only_the_manifest_is_an_entry() {
        let of = |method: &Method, path: &str| registry(method, path);
        assert_eq!(of(&Method::POST, "/v2/team/app/blobs/uploads/"), None);
        assert_eq!(of(&Method::PATCH, "/v2/team/app/blobs/uploads/1"), None);
        assert_eq!(of(&Method::PUT, "/v2/team/app/blobs/uploads/1"), None);
        assert_eq!(of(&Method::DELETE, "/v2/team/app/blobs/uploads/1"), None);
        let pushed = of(&Method::PUT, "/v2/team/app/manifests/1.0.0");
        assert_eq!(pushed, Some(("registry.push", "team/app:1.0.0".to_owned())));
        assert_eq!(of(&Method::DELETE, "/v2/team/app/manifests/1.0.0").unwrap().0, "registry.delete");
        assert_eq!(of(&Method::DELETE, "/v2/team/app/blobs/sha256:1").unwrap().0, "registry.delete");
    }
}

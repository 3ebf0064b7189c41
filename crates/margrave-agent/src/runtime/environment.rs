//! The environment in which Compose runs: a handful of variables of ours, and the order's values.
//!
//! Nothing of the agent's own environment reaches Compose but the few names listed here: what runs on a
//! device must follow from its document, not from how somebody started the agent.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use margrave_core::device::Order;
use margrave_core::parameters::ParameterValue;
use margrave_core::report::{Failure, FailureCode};

/// Where a component finds the images of the registry that belongs to the server.
pub(super) const REGISTRY_VARIABLE: &str = "MARGRAVE_REGISTRY";

/// What all components of one assignment share and no other assignment has: a component names a network or
/// volume with it, and the next one finds it there. Every component is a Compose project of its own otherwise.
pub(super) const ASSIGNMENT_VARIABLE: &str = "MARGRAVE_ASSIGNMENT";

/// Names that a document must not set, because Compose, the Docker client, the loader or the Go runtime
/// would obey them instead of passing them on.
const RESERVED_NAMES: [&str; 17] = [
    "PATH",
    "HOME",
    "USER",
    "PWD",
    "SHELL",
    "TMPDIR",
    "GODEBUG",
    "GOGC",
    "GOMEMLIMIT",
    "GOMAXPROCS",
    "GOTRACEBACK",
    "GOCOVERDIR",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "SSH_AUTH_SOCK",
    "CONTAINER_HOST",
    "BUILDKIT_HOST",
];
const RESERVED_PREFIXES: [&str; 7] =
    ["DOCKER_", "COMPOSE_", "LD_", "BUILDX_", "XDG_", "MARGRAVE_", "OTEL_EXPORTER_"];

/// The kernel takes at most 128 KiB for one variable with its name.
const VARIABLE_BYTES_MAX: usize = 128 * 1024 - 2;

/// The kernel takes about 2 MiB for all of them; beyond this half, starting Compose itself could fail.
const VARIABLES_BYTES_MAX: usize = 1024 * 1024;

/// What every Compose process of ours gets.
#[derive(Debug, Clone)]
pub(super) struct Surroundings {
    /// Search path and home of the agent; Compose looks for plug-ins and credential helpers there.
    pub path: OsString,
    pub home: PathBuf,
    /// The engine that was found, whatever `DOCKER_HOST` of the agent says.
    pub docker_host: String,
    /// A Docker client configuration of our own, so that nobody's login or proxy gets in.
    pub docker_config: PathBuf,
    /// `host:port` of the server's registry as the engine reaches it.
    pub registry: Option<String>,
}

impl Surroundings {
    pub(super) fn variables(&self) -> BTreeMap<OsString, OsString> {
        let mut variables: BTreeMap<OsString, OsString> = [
            // Plain words without colours and cursor movements: a person may have to read them in a report.
            ("COMPOSE_ANSI", "never"),
            ("COMPOSE_PROGRESS", "plain"),
            ("COMPOSE_MENU", "0"),
            // Every file of a component is inside its archive (PK-084); nothing is fetched on the side.
            ("COMPOSE_EXPERIMENTAL_GIT_REMOTE", "0"),
            ("COMPOSE_EXPERIMENTAL_OCI_REMOTE", "0"),
            ("DOCKER_CLI_HINTS", "0"),
        ]
        .into_iter()
        .map(|(name, value)| (name.into(), value.into()))
        .collect();
        variables.insert("PATH".into(), self.path.clone());
        variables.insert("HOME".into(), self.home.clone().into());
        variables.insert("DOCKER_HOST".into(), self.docker_host.clone().into());
        variables.insert("DOCKER_CONFIG".into(), self.docker_config.clone().into());
        if let Some(registry) = &self.registry {
            variables.insert(REGISTRY_VARIABLE.into(), registry.clone().into());
        }
        variables
    }
}

/// The order's values by variable name, verbatim (DM-189…DM-191), or why they cannot be variables.
///
/// Where two values go to one variable, the later one counts.
pub(super) fn values(order: &Order) -> Result<BTreeMap<OsString, OsString>, Failure> {
    let mut variables = BTreeMap::new();
    let mut total = 0;
    for (name, value) in &order.values {
        check_name(name)?;
        let value = text(value);
        if value.contains('\0') {
            return Err(invalid(format!(
                "The value of {name} has a NUL character, which no variable can carry."
            )));
        }
        let length = name.len() + value.len();
        total += length;
        if length > VARIABLE_BYTES_MAX || total > VARIABLES_BYTES_MAX {
            return Err(invalid(format!(
                "The value of {name} is too long to be an environment variable: one may have 128 KiB, all together 1 MiB."
            )));
        }
        variables.insert(OsString::from(name), OsString::from(value));
    }
    Ok(variables)
}

fn check_name(name: &str) -> Result<(), Failure> {
    let shown: String = name.chars().take(80).collect();
    if name.is_empty() || name.contains(['=', '\0']) {
        return Err(invalid(format!("{shown:?} cannot be the name of an environment variable.")));
    }
    // Windows-style spellings mean the same to some programs, so case does not help to get around this.
    let upper = name.to_ascii_uppercase();
    let reserved =
        RESERVED_NAMES.contains(&upper.as_str()) || RESERVED_PREFIXES.iter().any(|p| upper.starts_with(p));
    if reserved {
        return Err(invalid(format!(
            "A parameter may not be called {shown}: this name steers Compose or the agent itself. Choose another \
             variable name in the package and use that in compose.yaml."
        )));
    }
    Ok(())
}

fn invalid(message: String) -> Failure {
    Failure::new(FailureCode::DocumentInvalid, message)
}

/// Text as it is, everything else as JSON writes it; for lists that is the least lossy form (DM-191).
fn text(value: &ParameterValue) -> String {
    match value {
        ParameterValue::Text(text) => text.clone(),
        other => serde_json::to_string(other).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::tests::order;

    fn values_of(values: &[(&str, ParameterValue)]) -> Result<Vec<(String, String)>, Failure> {
        let mut order = order("web");
        order.values = values.iter().map(|(name, value)| (name.to_string(), value.clone())).collect();
        let text = |s: OsString| s.into_string().unwrap();
        super::values(&order).map(|map| map.into_iter().map(|(n, v)| (text(n), text(v))).collect())
    }

    #[test]
    fn dm_191_names_and_values_arrive_verbatim() {
        use ParameterValue::*;
        let nasty = "a \"b\" 'c' $HOME ${X} \\ \n ü";
        let got = values_of(&[
            ("MixedCase_1", Text(nasty.into())),
            ("on", Boolean(true)),
            ("count", Integer(-3)),
            ("ratio", Double(0.25)),
            ("list", List(vec![Text("a\"b".into()), Text("c".into())])),
            ("empty", Text(String::new())),
        ]);
        let want = [
            ("MixedCase_1", nasty),
            ("count", "-3"),
            ("empty", ""),
            ("list", r#"["a\"b","c"]"#),
            ("on", "true"),
            ("ratio", "0.25"),
        ];
        assert_eq!(got.unwrap(), want.map(|(n, v)| (n.to_owned(), v.to_owned())));
    }

    #[test]
    fn a_document_cannot_steer_the_programs_around_it() {
        for name in [
            "PATH",
            "path",
            "DOCKER_HOST",
            "COMPOSE_FILE",
            "LD_PRELOAD",
            "MARGRAVE_REGISTRY",
            "GODEBUG",
            "",
            "a=b",
            "a\0",
        ] {
            let error = values_of(&[(name, ParameterValue::Text("x".into()))]).unwrap_err();
            assert_eq!(error.code, FailureCode::DocumentInvalid, "{name}");
        }
        for name in ["DOCKERFILE", "HTTP_PROXY", "PATHS", "MY_PATH"] {
            assert!(values_of(&[(name, ParameterValue::Text("x".into()))]).is_ok(), "{name}");
        }
    }

    #[test]
    fn what_the_kernel_would_refuse_is_refused_in_words() {
        let long = ParameterValue::Text("x".repeat(VARIABLE_BYTES_MAX));
        assert!(values_of(&[("A", long)]).unwrap_err().message.contains("A is too long"));
        let fine = ParameterValue::Text("x".repeat(VARIABLE_BYTES_MAX - 100));
        let many: Vec<(String, ParameterValue)> = (0..10).map(|n| (format!("A{n}"), fine.clone())).collect();
        let many: Vec<(&str, ParameterValue)> = many.iter().map(|(n, v)| (n.as_str(), v.clone())).collect();
        assert!(values_of(&many).is_err());
        assert!(
            values_of(&[("A", ParameterValue::Text("a\0b".into()))]).unwrap_err().message.contains("NUL")
        );
    }

    #[test]
    fn compose_sees_nothing_of_the_agents_own_environment_but_path_and_home() {
        let surroundings = Surroundings {
            path: "/bin".into(),
            home: "/root".into(),
            docker_host: "unix:///run/engine.sock".into(),
            docker_config: "/data/docker".into(),
            registry: Some("127.0.0.1:5000".into()),
        };
        let names: Vec<_> = surroundings.variables().into_keys().map(|n| n.into_string().unwrap()).collect();
        let ours = |n: &&String| !n.starts_with("COMPOSE_") && !n.starts_with("DOCKER_");
        assert_eq!(names.iter().filter(ours).collect::<Vec<_>>(), ["HOME", "MARGRAVE_REGISTRY", "PATH"]);
    }
}

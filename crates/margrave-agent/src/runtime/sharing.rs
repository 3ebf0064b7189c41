//! Services that share something with a container of another one: its namespaces, or its volumes.
//!
//! An engine knows that container by its id, and its namespaces end when it stops. Compose sees to that where it compares all that
//! is here with what is wanted; where it is told to leave alone what is here, or only starts what stopped, this does.

use std::collections::BTreeSet;

use super::container::{Container, Status};
use super::model::Services;

/// With whoever shares with one of these, or with one that has no container and gets one now; and with that one. What is finished
/// stays out of it.
pub(super) fn with_sharers(
    mut anew: BTreeSet<String>,
    services: &Services,
    finished: &BTreeSet<String>,
    containers: &[Container],
) -> BTreeSet<String> {
    loop {
        let mut more = BTreeSet::new();
        for (name, service) in services.iter().filter(|(name, _)| !finished.contains(*name)) {
            let replaced = |shared: &&String| {
                services.contains_key(*shared)
                    && !finished.contains(*shared)
                    && (anew.contains(*shared) || is_gone(shared, containers))
            };
            for shared in service.shares().filter(replaced) {
                more.extend([name.clone(), shared.clone()]);
            }
        }
        if more.is_subset(&anew) {
            return anew;
        }
        anew.extend(more);
    }
}

/// Of what is finished, the services that nobody needs: a container that shares with one which is gone cannot be made, nor started
/// where it joins one that does not run.
pub(super) fn unneeded(
    mut finished: BTreeSet<String>,
    services: &Services,
    containers: &[Container],
) -> BTreeSet<String> {
    let runs = |name: &str| running(name, containers).next().is_some();
    loop {
        let is_needed = |job: &&String| {
            let mut others = services.iter().filter(|(name, _)| !finished.contains(*name));
            others.any(|(name, service)| {
                service.shares().any(|shared| shared == *job) && is_gone(job, containers)
                    || service.joins.contains(*job) && !runs(name)
            })
        };
        let Some(needed) = finished.iter().find(is_needed).cloned() else { return finished };
        finished.remove(&needed);
    }
}

/// Services that ran on while a container whose namespaces they have was started or replaced: they are left in namespaces that nobody
/// else is in.
pub(super) fn left_alone(services: &Services, before: &[Container], now: &[Container]) -> BTreeSet<String> {
    let ran = |container: &Container| {
        running(&container.service, before)
            .any(|b| (&b.id, &b.started_at) == (&container.id, &container.started_at))
    };
    let is_left = |name: &str, joins: &BTreeSet<String>| {
        let is_new = |joined: &String| running(joined, now).any(|container| !ran(container));
        running(name, now).any(ran) && joins.iter().any(is_new)
    };
    let left = services.iter().filter(|(name, service)| is_left(name, &service.joins));
    left.map(|(name, _)| name.clone()).collect()
}

fn is_gone(service: &str, containers: &[Container]) -> bool {
    !containers.iter().any(|container| container.service == service)
}

fn running<'a>(service: &'a str, containers: &'a [Container]) -> impl Iterator<Item = &'a Container> {
    containers.iter().filter(move |c| c.service == service && c.status == Status::Running)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use margrave_core::digest::Digest;
    use serde_json::{Value, json};

    use super::*;
    use crate::runtime::health::tests::container;
    use crate::runtime::model::{Given, Model};

    fn services(services: Value) -> Services {
        let given = Given {
            variables: &Default::default(),
            archive: Digest::of(b"a"),
            project: "mg-1",
            was_healthy: false,
        };
        let answer = json!({ "services": services }).to_string();
        let (archive, mounts) = (Path::new("/archive"), Path::new("/mounts"));
        Model::read(answer.as_bytes(), archive, mounts, &Default::default(), &given).unwrap().services
    }

    /// A service that joins another one, one that joins that one, one that has the volumes of a job, and one beside them.
    fn plant() -> Services {
        services(json!({
            "job": {"image": "a"},
            "vpn": {"image": "a"},
            "web": {"image": "a", "network_mode": "service:vpn"},
            "probe": {"image": "a", "pid": "service:web", "ipc": "host"},
            "files": {"image": "a", "volumes_from": ["job:ro", "container:elsewhere:ro"]},
            "other": {"image": "a", "network_mode": "host"},
        }))
    }

    fn names<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
        names.map(str::to_owned).into()
    }

    fn here(running: &[&str], exited: &[&str]) -> Vec<Container> {
        let of = |names: &[&str], status| -> Vec<Container> {
            names.iter().map(|name| container(name, status)).collect()
        };
        [of(running, Status::Running), of(exited, Status::Exited)].concat()
    }

    #[test]
    fn whoever_shares_with_a_container_that_is_replaced_is_made_anew_with_it() {
        let check = |anew: &[&str], running: &[&str], exited: &[&str], want: &[&str]| {
            let anew = anew.iter().map(|name| (*name).to_owned()).collect();
            let anew = with_sharers(anew, &plant(), &names(["job"]), &here(running, exited));
            assert_eq!(anew.iter().map(String::as_str).collect::<Vec<_>>(), want, "{running:?} {exited:?}");
        };
        let all = ["vpn", "web", "probe", "files", "other"];
        check(&[], &all, &["job"], &[]);
        check(&["other"], &all, &["job"], &["other"]);
        check(&["vpn"], &all, &["job"], &["probe", "vpn", "web"]);
        // Somebody removed it; it does not matter whether the others run.
        check(&[], &["web", "probe", "files", "other"], &["job"], &["probe", "vpn", "web"]);
        check(&[], &["probe", "files", "other"], &["job", "web"], &["probe", "vpn", "web"]);
        check(&[], &["vpn", "probe"], &["job"], &["probe", "web"]);
        let redone =
            with_sharers(BTreeSet::new(), &plant(), &BTreeSet::new(), &here(&["vpn", "web", "probe"], &[]));
        assert_eq!(redone, names(["files", "job"]), "a job whose container is needed and gone");
    }

    #[test]
    fn promise_3_a_job_is_done_again_only_where_its_container_is_needed_and_not_there() {
        let check = |services: &Services, running: &[&str], exited: &[&str], want: bool| {
            let left_out = unneeded(names(["job"]), services, &here(running, exited));
            assert_eq!(left_out.is_empty(), want, "{running:?} {exited:?}");
        };
        let by_volume = plant();
        check(&by_volume, &["files"], &["job"], false);
        check(&by_volume, &[], &["job", "files"], false);
        check(&by_volume, &["files"], &[], true);
        let nobody = services(json!({"job": {"image": "a"}, "web": {"image": "a"}}));
        check(&nobody, &["web"], &[], false);
        let joined = services(json!({"job": {"image": "a"}, "web": {"image": "a", "ipc": "service:job"}}));
        check(&joined, &["web"], &["job"], false);
        check(&joined, &[], &["job", "web"], true);
        // Who is finished as well needs nothing.
        let done = unneeded(names(["job", "files"]), &by_volume, &[]);
        assert_eq!(done, names(["files", "job"]));
    }

    #[test]
    fn whoever_runs_on_in_namespaces_of_a_container_that_was_started_again_is_found() {
        let before = here(&["web", "probe", "other"], &["vpn"]);
        let again =
            |service: &str| Container { started_at: "later".into(), ..container(service, Status::Running) };
        let with_vpn = [here(&["web", "probe", "other"], &[]), vec![again("vpn")]].concat();
        assert_eq!(left_alone(&plant(), &before, &with_vpn), names(["web"]));
        // Started along with it, or not at all.
        let both = [here(&["probe"], &[]), vec![again("vpn"), again("web")]].concat();
        assert_eq!(left_alone(&plant(), &before, &both), names(["probe"]));
        assert_eq!(left_alone(&plant(), &before, &before), names([]));
        assert_eq!(left_alone(&plant(), &[], &with_vpn), names([]), "all of it is new");
    }
}

//! One-shot jobs that are done: done is done, also while what is beside them is mended.

use std::collections::BTreeSet;

use super::container::Container;
use super::health::{self, Condition};
use super::record::Record;

/// The services that mending the same order leaves out: they are done, and of each there is nothing but what ended so. One that
/// somebody did once more, or changed, is like any other.
pub(super) fn finished(record: &Record, containers: &[Container]) -> BTreeSet<String> {
    let is_finished = |name: &&String| {
        let Some(service) = record.services.get(*name) else { return false };
        // Where a try was cut off, an earlier version's containers may have been taken for its own.
        if service.hash.is_none() {
            return false;
        }
        let ended_so = |container: &&Container| {
            health::condition(container) == Condition::Ended
                && record.completed.contains(&health::ending(container))
                && container.config_hash == service.hash
                && !health::bent(service, container)
        };
        let here: Vec<&Container> = containers.iter().filter(|c| &c.service == *name).collect();
        here.len() <= service.replicas as usize && here.iter().all(ended_so)
    };
    record.done.iter().filter(is_finished).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::container::{RestartPolicy, Status};
    use crate::runtime::health::tests::container;
    use crate::runtime::record::{Service, tests};

    #[test]
    fn only_what_is_done_and_as_it_ended_is_left_out() {
        let service = Service { hash: Some("hash-job".into()), ..tests::service() };
        let ended = container("job", Status::Exited);
        let record = Record {
            services: [("job".to_owned(), service.clone()), ("web".to_owned(), service.clone())].into(),
            completed: [health::ending(&ended)].into(),
            done: ["job".to_owned(), "gone".to_owned()].into(),
            ..tests::record()
        };
        let is_left_out = |record: &Record, here: &[Container]| !finished(record, here).is_empty();
        let check = |here: &[Container], want: bool| assert_eq!(is_left_out(&record, here), want, "{here:?}");
        check(std::slice::from_ref(&ended), true);
        // Tidied away by hand.
        check(&[], true);
        // Somebody did it once more.
        check(&[Container { status: Status::Running, ..ended.clone() }], false);
        check(&[Container { finished_at: "later".into(), ..ended.clone() }], false);
        check(&[Container { exit_code: 1, ..ended.clone() }], false);
        // Somebody changed it, or added another one.
        check(&[Container { config_hash: Some("other".into()), ..ended.clone() }], false);
        check(&[Container { restart_policy: RestartPolicy::Always, ..ended.clone() }], false);
        check(&[ended.clone(), ended.clone()], false);
        let cut_off = Service { hash: None, ..service };
        let cut_off = Record { services: [("job".to_owned(), cut_off)].into(), ..record.clone() };
        assert!(!is_left_out(&cut_off, &[ended]) && !is_left_out(&cut_off, &[]));
    }
}

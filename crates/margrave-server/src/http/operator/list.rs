//! Pages of lists that are made whole: those that follow what operators do, and not how many devices there are.

use margrave_wire::operator::Page;

use crate::http::problem::Problem;

const LIMIT_MAX: usize = 1000;
const LIMIT_DEFAULT: usize = 100;

/// The page behind `after`, in the order of the keys. What was removed meanwhile is no reason to begin anew.
pub(super) fn page<T>(
    mut all: Vec<T>,
    key: impl Fn(&T) -> String,
    after: Option<&str>,
    limit: Option<usize>,
) -> Result<Page<T>, Problem> {
    let limit = limit.unwrap_or(LIMIT_DEFAULT);
    if !(1..=LIMIT_MAX).contains(&limit) {
        return Err(Problem::malformed(format!("limit: is a number from 1 to {LIMIT_MAX}, got {limit}")));
    }
    all.sort_by_cached_key(|one| key(one));
    let after = after.filter(|after| !after.is_empty());
    let mut items: Vec<T> = all
        .into_iter()
        .filter(|one| after.is_none_or(|after| key(one).as_str() > after))
        .take(limit + 1)
        .collect();
    let more = items.len() > limit;
    items.truncate(limit);
    let next = items.last().filter(|_| more).map(key);
    Ok(Page { items, next })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_together_are_the_whole_list_once() {
        let all = || (0..25).rev().map(|n| format!("{n:02}")).collect::<Vec<_>>();
        let key = |one: &String| one.clone();
        for limit in [1, 7, 24, 25, 26] {
            let (mut seen, mut after) = (Vec::new(), None);
            loop {
                let page = page(all(), key, after.as_deref(), Some(limit)).unwrap();
                assert!(page.items.len() <= limit);
                seen.extend(page.items);
                match page.next {
                    Some(next) => after = Some(next),
                    None => break,
                }
            }
            let mut sorted = all();
            sorted.sort();
            assert_eq!(seen, sorted, "{limit}");
        }
        assert_eq!(page(all(), key, Some("07x"), Some(1)).unwrap().items, ["08"], "07x is gone");
        assert!(page(all(), key, None, Some(0)).is_err() && page(all(), key, None, Some(1001)).is_err());
    }
}

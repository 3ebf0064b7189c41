//! Pages of lists that are made whole: those that follow what operators do, and not how many devices there are.

use margrave_wire::operator::Page;

use crate::http::problem::Problem;

const LIMIT_MAX: usize = 1000;
const LIMIT_DEFAULT: usize = 100;

/// How many a page has.
fn checked(limit: Option<usize>) -> Result<usize, Problem> {
    let limit = limit.unwrap_or(LIMIT_DEFAULT);
    match (1..=LIMIT_MAX).contains(&limit) {
        true => Ok(limit),
        false => Err(Problem::malformed(format!("limit: is a number from 1 to {LIMIT_MAX}, got {limit}"))),
    }
}

/// The page behind `after`, in the order of the keys. What was removed meanwhile is no reason to begin anew.
pub(super) fn page<T>(
    mut all: Vec<T>,
    key: impl Fn(&T) -> String,
    after: Option<&str>,
    limit: Option<usize>,
) -> Result<Page<T>, Problem> {
    let limit = checked(limit)?;
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

/// Of a list that has an order of its own. `after` is the place and the key of the last that was seen: where that one is gone, the
/// list goes on at its place.
pub(super) fn in_order<T>(
    all: Vec<T>,
    key: impl Fn(&T) -> String,
    after: Option<&str>,
    limit: Option<usize>,
) -> Result<Page<T>, Problem> {
    let limit = checked(limit)?;
    let begin = match after.filter(|after| !after.is_empty()) {
        None => 0,
        Some(after) => {
            let read = after.split_once(' ').and_then(|(place, key)| Some((place.parse().ok()?, key)));
            let (place, last): (usize, &str) =
                read.ok_or_else(|| Problem::malformed("after: is the `next` of the page before"))?;
            all.iter().position(|one| key(one) == last).map_or(place, |found| found + 1)
        }
    };
    let more = all.len().saturating_sub(begin) > limit;
    let items: Vec<T> = all.into_iter().skip(begin).take(limit).collect();
    let next = items.last().filter(|_| more).map(|last| format!("{} {}", begin + limit - 1, key(last)));
    Ok(Page { items, next })
}

/// Which part of a list.
#[derive(Debug, serde::Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PageParams {
    /// The `next` of the page before.
    pub(super) after: Option<String>,
    /// 1 to 1000; 100 when left out.
    pub(super) limit: Option<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_keep_the_order_of_a_list_that_has_one() {
        let all = || ["c", "a", "b", "e", "d"].map(str::to_owned).to_vec();
        let key = |one: &String| one.clone();
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let page = in_order(all(), key, after.as_deref(), Some(2)).unwrap();
            seen.extend(page.items);
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        assert_eq!(seen, all());
        let mut fewer = all();
        fewer.remove(1);
        assert_eq!(in_order(fewer, key, Some("1 a"), Some(2)).unwrap().items, ["b", "e"], "a is gone");
        for wrong in ["a", "x a"] {
            assert!(in_order(all(), key, Some(wrong), None).is_err());
        }
        assert!(in_order(all(), key, None, Some(0)).is_err());
    }

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

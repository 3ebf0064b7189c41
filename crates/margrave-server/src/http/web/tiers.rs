//! The picture of the tiers: this server, its sites, their devices. Few devices stand there one by one; many are counted by site,
//! so that it stays readable with a hundred thousand.

use std::collections::BTreeMap;

use askama::Template;
use askama::filters::HtmlSafe;
use margrave_core::deployment::SITE;
use margrave_wire::operator;

use super::assignment::DeploymentMark;
use super::badge::Badge;
use super::link;
use super::stamp::Stamp;
use super::tally::Tally;
use crate::fleet::{SiteCounts, WITHOUT_SITE};

/// Up to so many devices each has a tile of its own.
pub(super) const TILES_MAX: usize = 48;
/// Sites that are shown; the rest are taken together.
const SITES_MAX: usize = 24;
/// And where somebody asks for all of them; a list beyond that is read by nobody.
const SITES_ALL_MAX: usize = 1000;
/// Assignments in one tile.
const LINES_MAX: usize = 4;

#[derive(Template)]
#[template(path = "tiers.html")]
pub(super) struct Tiers {
    /// "6 devices in 2 sites".
    words: String,
    sites: Vec<Site>,
    /// Each device has its tile.
    each: bool,
}

struct Site {
    key: String,
    name: String,
    path: String,
    words: String,
    tally: Tally,
    /// How bad it is: failed, silent, pending, then size.
    rank: (u64, u64, u64, u64),
    tiles: Vec<Tile>,
}

struct Tile {
    key: String,
    name: String,
    path: String,
    badge: Badge,
    simulated: bool,
    lines: Vec<DeploymentMark>,
    lines_more: usize,
    contact: Option<Stamp>,
}

impl HtmlSafe for Tiers {}

impl Tiers {
    /// `devices` are all of them, or none where they are too many to be shown one by one.
    pub(super) fn of(counts: &SiteCounts, devices: &[operator::Device], all: bool) -> Self {
        let most = if all { SITES_ALL_MAX } else { SITES_MAX };
        let total: u64 = counts.values().flat_map(BTreeMap::values).sum();
        let named = counts.keys().filter(|site| site.is_some()).count() as u64;
        let mut sites: Vec<Site> =
            counts.iter().map(|(site, counts)| Site::of(site.as_deref(), counts, devices)).collect();
        // The worst first where not all can be seen at once; else each has its place.
        if devices.is_empty() {
            sites.sort_by(|a, b| b.rank.cmp(&a.rank).then_with(|| a.name.cmp(&b.name)));
        }
        if sites.len() > most {
            sites.truncate(most - 1);
            let shown: Vec<&str> = sites.iter().map(|site| site.name.as_str()).collect();
            let mut rest: BTreeMap<String, u64> = BTreeMap::new();
            let (mut number, mut without) = (0, false);
            for (site, counts) in counts {
                if shown.contains(&named_as(site.as_deref())) {
                    continue;
                }
                number += u64::from(site.is_some());
                without |= site.is_none();
                counts
                    .iter()
                    .for_each(|(condition, count)| *rest.entry(condition.clone()).or_default() += count);
            }
            sites.push(Site {
                key: "site-others".to_owned(),
                name: match without {
                    true => format!("{} and devices without one", counted(number, "more site")),
                    false => counted(number, "more site"),
                },
                path: "/?sites=all".to_owned(),
                words: counted(rest.values().sum(), "device"),
                tally: Tally::conditions(&rest),
                rank: (0, 0, 0, 0),
                tiles: Vec::new(),
            });
        }
        let words = match named {
            0 => counted(total, "device"),
            number => format!("{} in {}", counted(total, "device"), counted(number, "site")),
        };
        Tiers { words, sites, each: !devices.is_empty() }
    }
}

fn named_as(site: Option<&str>) -> &str {
    site.unwrap_or("Without a site")
}

impl Site {
    fn of(site: Option<&str>, counts: &BTreeMap<String, u64>, devices: &[operator::Device]) -> Self {
        let of = |condition: &str| counts.get(condition).copied().unwrap_or(0);
        let total = counts.values().sum();
        let here = |device: &&operator::Device| device.labels.get(SITE).map(String::as_str) == site;
        Site {
            key: format!("site-{}", site.unwrap_or_default()),
            name: named_as(site).to_owned(),
            path: match site {
                Some(site) => format!("/devices?site={}", link::encode(site)),
                None => format!("/devices?site={}", link::encode(WITHOUT_SITE)),
            },
            words: counted(total, "device"),
            tally: Tally::conditions(counts),
            rank: (of("failed"), of("silent"), of("pending"), total),
            tiles: devices.iter().filter(here).map(Tile::of).collect(),
        }
    }
}

impl Tile {
    fn of(device: &operator::Device) -> Self {
        Tile {
            key: format!("tile-{}", device.id),
            name: device.id.clone(),
            path: link::device(&device.id),
            badge: Badge::condition(&device.condition),
            simulated: device.simulated,
            lines: device.assignments.iter().take(LINES_MAX).map(DeploymentMark::of).collect(),
            lines_more: device.assignments.len().saturating_sub(LINES_MAX),
            contact: device.last_contact.as_deref().map(Stamp::ago),
        }
    }
}

/// `1 device`, `1,200 devices`.
pub(super) fn counted(count: u64, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", grouped(count))
}

/// With a comma at every thousand.
pub(super) fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(sites: usize) -> SiteCounts {
        let site = |number: usize| {
            let failed = u64::from(number == 7);
            let counts = [("converged".to_owned(), 400 - failed), ("failed".to_owned(), failed)];
            (Some(format!("site <{number:03}>")), counts.into())
        };
        (0..sites).map(site).collect()
    }

    #[test]
    fn a_large_fleet_is_shown_by_site_the_worst_first_and_complete() {
        let tiers = Tiers::of(&counts(250), &[], false);
        assert_eq!(tiers.words, "100,000 devices in 250 sites");
        assert_eq!(tiers.sites.len(), SITES_MAX);
        assert_eq!(tiers.sites[0].name, "site <007>");
        let rest = tiers.sites.last().unwrap();
        assert_eq!((rest.name.as_str(), rest.words.as_str()), ("227 more sites", "90,800 devices"));
        assert_eq!(rest.path, "/?sites=all");
        let mut more = counts(250);
        more.insert(None, [("converged".to_owned(), 1)].into());
        let rest = Tiers::of(&more, &[], false).sites.pop().unwrap();
        assert_eq!(rest.name, "227 more sites and devices without one");
        assert_eq!(Tiers::of(&counts(250), &[], true).sites.len(), 250);
        let shown = tiers.to_string();
        assert!(!shown.contains("<007>") && shown.len() < 60_000, "{}", shown.len());
    }

    #[test]
    fn numbers_are_grouped() {
        let told: Vec<String> = [0, 999, 1000, 1_234_567].into_iter().map(grouped).collect();
        assert_eq!(told, ["0", "999", "1,000", "1,234,567"]);
    }
}

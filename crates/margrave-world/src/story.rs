//! What happened, in lines that a person can follow.

use std::collections::VecDeque;

use margrave_core::moment::Moment;

/// Of a life that went well nobody reads more than how it ended.
const TAIL: usize = 80;

/// The newest lines, and a digest of all: the same seed tells the same story.
#[derive(Debug)]
pub(crate) struct Story {
    lines: VecDeque<String>,
    kept_max: usize,
    began: Moment,
    digest: u64,
    count: u64,
}

impl Story {
    pub(crate) fn new(began: Moment, whole: bool) -> Story {
        let kept_max = if whole { usize::MAX } else { TAIL };
        Story { lines: VecDeque::new(), kept_max, began, digest: 0xcbf2_9ce4_8422_2325, count: 0 }
    }

    /// Tells what happens all the time: only the whole story has it.
    pub(crate) fn murmur(&mut self, now: Moment, who: &str, what: impl std::fmt::Display) {
        let line = self.line(now, who, what);
        if self.kept_max == usize::MAX {
            self.lines.push_back(line);
        }
    }

    pub(crate) fn tell(&mut self, now: Moment, who: &str, what: impl std::fmt::Display) {
        let line = self.line(now, who, what);
        if self.lines.len() >= self.kept_max {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    fn line(&mut self, now: Moment, who: &str, what: impl std::fmt::Display) -> String {
        let at = now.since(self.began);
        let (hours, rest) = (at.as_secs() / 3600, at.as_secs() % 3600);
        let line =
            format!("{hours}:{:02}:{:02}.{:03} {who}: {what}", rest / 60, rest % 60, at.subsec_millis());
        // FNV-1a, with the line's end.
        for byte in line.bytes().chain([b'\n']) {
            self.digest = (self.digest ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        self.count += 1;
        line
    }

    pub(crate) fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }

    /// Of every line that was ever told.
    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }
}

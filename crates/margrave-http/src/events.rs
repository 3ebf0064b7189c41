//! Server-sent events: the operator's live view, read line by line.

use bytes::Bytes;

use crate::error::Error;
use crate::response::Body;

/// An event that does not fit is not one of ours.
const EVENT_BYTES_MAX: usize = 1024 * 1024;

/// One event of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// "message" where the server gave no name.
    pub name: String,
    pub data: String,
    /// The id of this or the last event that had one, for `Last-Event-ID`.
    pub id: Option<String>,
}

/// A stream of events. It ends when the server ends it; asking again is the caller's business.
pub struct Events {
    body: Body,
    lines: Lines,
    name: String,
    data: String,
    has_data: bool,
    id: Option<String>,
}

impl Events {
    pub(crate) fn new(body: Body) -> Events {
        Events {
            body,
            lines: Lines::default(),
            name: String::new(),
            data: String::new(),
            has_data: false,
            id: None,
        }
    }

    /// The next event; `None` when the server closed the stream. An event that was cut off is dropped.
    pub async fn next(&mut self) -> Result<Option<Event>, Error> {
        loop {
            while let Some(line) = self.lines.next() {
                if let Some(event) = self.take_line(&line) {
                    return Ok(Some(event));
                }
            }
            if self.lines.pending() + self.data.len() > EVENT_BYTES_MAX {
                return Err(Error::TooLarge { limit: EVENT_BYTES_MAX as u64 });
            }
            match self.body.chunk().await? {
                Some(bytes) => self.lines.push(&bytes),
                None => return Ok(None),
            }
        }
    }

    fn take_line(&mut self, line: &str) -> Option<Event> {
        if line.is_empty() {
            let name = std::mem::take(&mut self.name);
            let data = std::mem::take(&mut self.data);
            if !std::mem::take(&mut self.has_data) {
                return None;
            }
            let name = if name.is_empty() { "message".to_owned() } else { name };
            return Some(Event { name, data, id: self.id.clone() });
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => self.name = value.to_owned(),
            "data" => {
                if self.has_data {
                    self.data.push('\n');
                }
                self.data.push_str(value);
                self.has_data = true;
            }
            "id" if !value.contains('\0') => self.id = Some(value.to_owned()),
            // A comment (an empty field) keeps the connection alive; anything else is for other readers.
            _ => {}
        }
        None
    }
}

/// Splits bytes at LF, CR LF or CR, wherever the pieces happen to be cut.
#[derive(Default)]
struct Lines {
    buffer: Vec<u8>,
    start: usize,
    /// The last line ended in CR, so an LF that follows belongs to it.
    after_cr: bool,
}

impl Lines {
    fn push(&mut self, bytes: &Bytes) {
        self.buffer.drain(..self.start);
        self.start = 0;
        self.buffer.extend_from_slice(bytes);
    }

    fn pending(&self) -> usize {
        self.buffer.len() - self.start
    }

    fn next(&mut self) -> Option<String> {
        if self.after_cr && self.pending() > 0 {
            if self.buffer[self.start] == b'\n' {
                self.start += 1;
            }
            self.after_cr = false;
        }
        let rest = &self.buffer[self.start..];
        let end = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r'))?;
        let line = String::from_utf8_lossy(&rest[..end]).into_owned();
        self.after_cr = rest[end] == b'\r';
        self.start += end + 1;
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(pieces: &[&str]) -> Vec<String> {
        let mut lines = Lines::default();
        let mut all = Vec::new();
        for piece in pieces {
            lines.push(&Bytes::copy_from_slice(piece.as_bytes()));
            all.extend(std::iter::from_fn(|| lines.next()));
        }
        all
    }

    #[test]
    fn lines_end_in_lf_cr_or_both_however_they_are_cut() {
        let text = "a\nb\r\nc\rd\r\n\r\n";
        let expected = ["a", "b", "c", "d", ""];
        assert_eq!(lines(&[text]), expected);
        for cut in 1..text.len() {
            assert_eq!(lines(&[&text[..cut], &text[cut..]]), expected, "cut at {cut}");
        }
        let single: Vec<&str> = text.split_inclusive(|_| true).collect();
        assert_eq!(lines(&single), expected);
    }
}

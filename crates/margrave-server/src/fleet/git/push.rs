//! What a push says, and what is answered: the part of Git's protocol that is spoken before and after the pack.

use bytes::{BufMut as _, Bytes, BytesMut};

use crate::fleet::desired::CommitId;

/// The only branch that is taken.
pub(crate) const MAIN: &str = "refs/heads/main";
/// More branches than one person pushes at once.
const COMMANDS_MAX: usize = 64;
/// Of a line of the protocol, and with a byte for the band of one in an answer.
const LINE_BYTES_MAX: usize = 65_516;
const NOTHING: &str = "0000000000000000000000000000000000000000";
const CAPABILITIES: &str = "report-status side-band-64k ofs-delta object-format=sha1 agent=margrave";

/// What is to become of one branch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Command {
    pub(crate) old: Option<CommitId>,
    /// `None` deletes it.
    pub(crate) new: Option<CommitId>,
    pub(crate) branch: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Push {
    /// None at all: the client only asks whether it is let in.
    pub(crate) commands: Vec<Command>,
    pub(crate) pack: Bytes,
    in_bands: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this is no push as git sends it: {0}")]
pub(crate) struct Malformed(&'static str);

impl Malformed {
    pub(crate) fn why(&self) -> &'static str {
        self.0
    }
}

impl Push {
    pub(crate) fn read(mut body: Bytes) -> Result<Push, Malformed> {
        let mut commands = Vec::new();
        let mut in_bands = false;
        while let Some(line) = line(&mut body)? {
            let text = std::str::from_utf8(&line).map_err(|_| Malformed("a line is not text"))?;
            let (text, capabilities) = text.split_once('\0').unwrap_or((text, ""));
            if commands.is_empty() {
                in_bands |= capabilities.split([' ', '\n']).any(|word| word == "side-band-64k");
            }
            let text = text.trim_end_matches('\n');
            // Where its own history is cut off; what it sends must be whole here all the same.
            if text.starts_with("shallow ") {
                continue;
            }
            commands.push(command(text).ok_or(Malformed("a line says no branch and where it goes"))?);
            if commands.len() > COMMANDS_MAX {
                return Err(Malformed("it has more branches than are taken at once"));
            }
        }
        Ok(Push { commands, pack: body, in_bands })
    }

    /// The answer: for each branch why it is refused, or nothing; and words for the person before it.
    pub(crate) fn answer(
        &self,
        unpacked: Result<(), &str>,
        refused: Option<&str>,
        words: &[String],
    ) -> Bytes {
        if self.commands.is_empty() {
            return Bytes::new();
        }
        let mut report = BytesMut::new();
        match unpacked {
            Ok(()) => put(&mut report, b"unpack ok\n"),
            Err(why) => put(&mut report, format!("unpack {}\n", plain(why)).as_bytes()),
        }
        for command in &self.commands {
            let branch = &command.branch;
            let line = match command.refusal().or(refused) {
                Some(why) => format!("ng {branch} {}\n", plain(why)),
                None => format!("ok {branch}\n"),
            };
            put(&mut report, line.as_bytes());
        }
        report.put_slice(b"0000");
        if !self.in_bands {
            return report.freeze();
        }
        let mut whole = BytesMut::new();
        for line in words {
            put_band(&mut whole, 2, format!("{}\n", plain(line)).as_bytes());
        }
        put_band(&mut whole, 1, &report);
        whole.put_slice(b"0000");
        whole.freeze()
    }
}

impl Command {
    pub(crate) fn is_for_main(&self) -> bool {
        self.branch == MAIN
    }

    /// Why it is never taken, whatever is in it.
    pub(crate) fn refusal(&self) -> Option<&'static str> {
        match (self.branch.as_str(), self.new) {
            (MAIN, Some(_)) => None,
            (MAIN, None) => Some("main cannot be deleted"),
            _ => Some("only main is taken here"),
        }
    }
}

/// What the repository has, for one who is about to push.
pub(crate) fn advertisement(main: Option<CommitId>) -> Bytes {
    let mut text = BytesMut::new();
    put(&mut text, b"# service=git-receive-pack\n");
    text.put_slice(b"0000");
    let line = match main {
        Some(main) => format!("{main} {MAIN}\0{CAPABILITIES}\n"),
        None => format!("{NOTHING} capabilities^{{}}\0{CAPABILITIES}\n"),
    };
    put(&mut text, line.as_bytes());
    text.put_slice(b"0000");
    text.freeze()
}

fn command(text: &str) -> Option<Command> {
    let mut parts = text.splitn(3, ' ');
    let (old, new, branch) = (parts.next()?, parts.next()?, parts.next()?);
    let commit = |text: &str| match text {
        NOTHING => Some(None),
        text => CommitId::parse(text).map(Some),
    };
    // It is answered with, so it must not be able to say anything else there.
    let sound = !branch.is_empty() && branch.len() <= 512 && !branch.chars().any(char::is_control);
    sound.then_some(())?;
    Some(Command { old: commit(old)?, new: commit(new)?, branch: branch.to_owned() })
}

/// The next line; `None` at the end of the list.
fn line(body: &mut Bytes) -> Result<Option<Bytes>, Malformed> {
    let cut = Malformed("it ends within a line");
    let digits = body.get(..4).ok_or(cut.clone())?;
    if !digits.iter().all(u8::is_ascii_hexdigit) {
        return Err(Malformed("a line does not begin with its length"));
    }
    let text = std::str::from_utf8(digits).map_err(|_| cut.clone())?;
    let length = usize::from_str_radix(text, 16).map_err(|_| cut.clone())?;
    match length {
        0 => {
            drop(body.split_to(4));
            Ok(None)
        }
        1..=4 => Err(Malformed("a line has no such length")),
        length if length > body.len() => Err(cut),
        length => Ok(Some(body.split_to(length).slice(4..))),
    }
}

fn put(to: &mut BytesMut, text: &[u8]) {
    to.put_slice(format!("{:04x}", text.len() + 4).as_bytes());
    to.put_slice(text);
}

fn put_band(to: &mut BytesMut, band: u8, text: &[u8]) {
    for piece in text.chunks(LINE_BYTES_MAX - 1) {
        to.put_slice(format!("{:04x}", piece.len() + 5).as_bytes());
        to.put_u8(band);
        to.put_slice(piece);
    }
}

/// In one line, and nothing that a terminal would obey.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "1111111111111111111111111111111111111111";
    const NEW: &str = "2222222222222222222222222222222222222222";

    fn body(lines: &[&str]) -> Bytes {
        let mut text = BytesMut::new();
        for line in lines {
            put(&mut text, line.as_bytes());
        }
        text.put_slice(b"0000PACK");
        text.freeze()
    }

    #[test]
    fn a_push_is_read_and_answered_line_by_line() {
        let push = Push::read(body(&[
            &format!("{OLD} {NEW} refs/heads/main\0 report-status side-band-64k agent=git/2.47\n"),
            &format!("{NOTHING} {NEW} refs/heads/other\n"),
        ]));
        let push = push.unwrap();
        assert_eq!((&push.pack[..], push.in_bands, push.commands.len()), (&b"PACK"[..], true, 2));
        assert_eq!(push.commands[1].old, None);
        let answer = push.answer(Ok(()), Some("see above"), &["a.yaml:3: wrong\n\x1b[2J".to_owned()]);
        let text = String::from_utf8(answer.to_vec()).unwrap();
        assert!(text.contains("\u{2}a.yaml:3: wrong  [2J\n"), "{text:?}");
        assert!(text.contains("ng refs/heads/main see above\n"), "{text:?}");
        assert!(text.contains("ng refs/heads/other only main is taken here\n") && text.ends_with("00000000"));
    }

    #[test]
    fn a_client_without_bands_gets_the_report_alone() {
        let push = Push::read(body(&[&format!("{OLD} {NEW} refs/heads/main\0 report-status\n")])).unwrap();
        let answer = push.answer(Ok(()), None, &["nobody hears it".to_owned()]);
        assert_eq!(answer, "000eunpack ok\n0017ok refs/heads/main\n0000");
    }

    #[test]
    fn who_only_asks_whether_it_is_let_in_gets_nothing_else() {
        let push = Push::read(Bytes::from_static(b"0000")).unwrap();
        assert!(push.commands.is_empty() && push.answer(Ok(()), None, &[]).is_empty());
    }

    #[test]
    fn rubbish_is_no_push() {
        let bad: [&[u8]; 9] = [
            b"",
            b"00",
            b"PACK\0\0\0\x02",
            b"0001",
            b"0004",
            b"ffff",
            b"+00a123456",
            b"000ahello\n0000",
            b"0009\xff\xfe\xfd\xfc\xfb0000",
        ];
        for bad in bad {
            assert!(Push::read(Bytes::copy_from_slice(bad)).is_err(), "{bad:?}");
        }
        let many = vec![format!("{OLD} {NEW} refs/heads/x"); COMMANDS_MAX + 1];
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(Push::read(body(&many)).is_err());
        assert!(Push::read(body(&[&format!("{OLD} {NEW} refs/heads/a\nb")])).is_err());
    }

    #[test]
    fn an_empty_repository_can_be_pushed_to() {
        let text = String::from_utf8(advertisement(None).to_vec()).unwrap();
        assert!(text.contains(&format!("{NOTHING} capabilities^{{}}\0report-status")), "{text}");
        let main = CommitId::parse(OLD);
        let text = String::from_utf8(advertisement(main).to_vec()).unwrap();
        assert!(
            text.starts_with("001f# service=git-receive-pack\n0000") && text.ends_with("\n0000"),
            "{text}"
        );
    }
}

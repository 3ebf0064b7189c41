//! Manifest versions as commits: what `git fast-import` is told, and how a commit is read again.
//!
//! A commit is made from its parent and its version's row and from nothing else: the same rows give the same
//! hashes, today and after the repository was lost.

use margrave_store::GitVersion;

pub(super) const BRANCH: &str = "refs/heads/main";
/// The manifest's file.
pub(super) const MANIFEST: &str = "manifest.json";
/// Keeps every client from changing line ends: the bytes are what was hashed.
const ATTRIBUTES: &[u8] = b"* -text\n";
/// Always the same, so that it never makes a difference.
const COMMITTER: &str = "Margrave <margrave@localhost>";
const SUBJECT: &str = "manifest ";

/// The newest commit of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) version: u64,
    pub(super) commit: CommitId,
}

/// A commit's hash: 40 hex digits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CommitId(String);

impl CommitId {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let fits = text.len() == 40 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        fits.then(|| CommitId(text.to_owned()))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

/// What comes before all commits.
pub(super) fn preamble() -> &'static [u8] {
    b"feature done\n"
}

/// What comes after the last: only now is the branch moved, and the commit's hash told.
pub(super) fn conclusion() -> &'static [u8] {
    b"get-mark :1\ndone\n"
}

/// One commit. `parent` is given for the first of a run; the next ones follow on it.
pub(super) fn write(into: &mut Vec<u8>, version: &GitVersion, parent: Option<&CommitId>, is_root: bool) {
    let GitVersion { version, at, body, put, dropped } = version;
    let message = format!("{SUBJECT}{version}\n");
    let head = format!("commit {BRANCH}\nmark :1\ncommitter {COMMITTER} {} +0000\n", at.0 / 1000);
    into.extend_from_slice(head.as_bytes());
    data(into, message.as_bytes());
    if let Some(parent) = parent {
        into.extend_from_slice(format!("from {}\n", parent.as_str()).as_bytes());
    }
    if is_root {
        file(into, ".gitattributes", ATTRIBUTES);
    }
    file(into, MANIFEST, body);
    for id in dropped {
        into.extend_from_slice(format!("D deployments/{id}.yaml\n").as_bytes());
    }
    for (id, bytes) in put {
        file(into, &format!("deployments/{id}.yaml"), bytes);
    }
}

fn file(into: &mut Vec<u8>, name: &str, bytes: &[u8]) {
    into.extend_from_slice(format!("M 100644 inline {name}\n").as_bytes());
    data(into, bytes);
}

fn data(into: &mut Vec<u8>, bytes: &[u8]) {
    into.extend_from_slice(format!("data {}\n", bytes.len()).as_bytes());
    into.extend_from_slice(bytes);
    into.push(b'\n');
}

/// The head commit and the manifest in it, from what `git cat-file --batch` says of both.
pub(super) fn read(said: &[u8]) -> Option<(Head, &[u8])> {
    let (commit, text, rest) = object(said, "commit")?;
    let (_, manifest, _) = object(rest, "blob")?;
    let text = std::str::from_utf8(text).ok()?;
    let (_, message) = text.split_once("\n\n")?;
    let version = message.strip_prefix(SUBJECT)?.trim_end().parse().ok()?;
    Some((Head { version, commit }, manifest))
}

/// `<hash> <kind> <size>`, a new line, the bytes, a new line.
fn object<'a>(said: &'a [u8], kind: &str) -> Option<(CommitId, &'a [u8], &'a [u8])> {
    let end = said.iter().position(|byte| *byte == b'\n')?;
    let (line, rest) = (std::str::from_utf8(&said[..end]).ok()?, &said[end + 1..]);
    let mut words = line.split(' ');
    let id = CommitId::parse(words.next()?)?;
    if words.next()? != kind {
        return None;
    }
    let size: usize = words.next()?.parse().ok()?;
    let bytes = rest.get(..size)?;
    Some((id, bytes, rest.get(size + 1..)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use margrave_core::id::AssignmentId;
    use margrave_core::moment::Moment;

    #[test]
    fn a_commit_is_written_with_exact_bytes_and_fixed_words() {
        let id = AssignmentId::parse("00000000-0000-4000-8000-000000000001").unwrap();
        let version = GitVersion {
            version: 12,
            at: Moment(1_790_000_000_999),
            body: b"{}\r\n".to_vec(),
            put: vec![(id, b"a: \xff\n".to_vec())],
            dropped: vec![id],
        };
        let mut text = Vec::new();
        write(&mut text, &version, None, true);
        let wanted: &[u8] = b"commit refs/heads/main\nmark :1\ncommitter Margrave <margrave@localhost> 1790000000 +0000\n\
            data 12\nmanifest 12\n\nM 100644 inline .gitattributes\ndata 8\n* -text\n\n\
            M 100644 inline manifest.json\ndata 4\n{}\r\n\nD deployments/00000000-0000-4000-8000-000000000001.yaml\n\
            M 100644 inline deployments/00000000-0000-4000-8000-000000000001.yaml\ndata 5\na: \xff\n\n";
        assert_eq!(String::from_utf8_lossy(&text), String::from_utf8_lossy(wanted));
        text.clear();
        write(&mut text, &version, CommitId::parse(&"ab".repeat(20)).as_ref(), false);
        let text = String::from_utf8_lossy(&text);
        assert!(
            text.contains(&format!("\nfrom {}\nM 100644 inline manifest.json", "ab".repeat(20))),
            "{text}"
        );
    }

    #[test]
    fn a_head_is_read_from_what_git_says_and_nonsense_is_none() {
        let hash = "0123456789abcdef0123456789abcdef01234567";
        let commit = "tree x\nauthor y\n\nmanifest 7\n";
        let said = format!("{hash} commit {}\n{commit}\n{hash} blob 3\n{{}}\n\n", commit.len());
        let (head, manifest) = read(said.as_bytes()).unwrap();
        assert_eq!((head.version, head.commit.as_str(), manifest), (7, hash, &b"{}\n"[..]));
        for bad in [
            "",
            "refs/heads/main missing\nrefs/heads/main:manifest.json missing\n",
            &said.replace("manifest 7", "manifest x"),
            &said.replace("blob 3", "blob 99"),
            &said.replace("blob", "tree"),
            &said.replace(hash, "HEAD"),
        ] {
            assert_eq!(read(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(CommitId::parse(""), None);
    }
}

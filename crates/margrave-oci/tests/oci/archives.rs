//! PK-080 to PK-097, each rule with an archive that breaks it. Headers are written by hand, since no honest
//! tool writes most of them.

use std::io::{Cursor, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use margrave_core::digest::Digest;
use margrave_core::report::{FailureCode, Retry};
use margrave_oci::InvalidTar;
use margrave_oci::archive::{self, ArchiveError, CheckedArchive, ENTRIES_MAX, EXPANDED_BYTES_MAX, Rule};
use proptest::prelude::*;

/// A tar, entry by entry, with nothing checked.
#[derive(Clone, Default)]
pub(crate) struct Tar(Vec<u8>);

impl Tar {
    pub(crate) fn entry(mut self, kind: u8, path: &[u8], link: &[u8], mode: u32, data: &[u8]) -> Self {
        self.header(kind, path, link, mode, data.len() as u64);
        self.0.extend_from_slice(data);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    fn header(&mut self, kind: u8, path: &[u8], link: &[u8], mode: u32, size: u64) {
        let mut block = [0u8; 512];
        block[..path.len().min(100)].copy_from_slice(&path[..path.len().min(100)]);
        block[100..108].copy_from_slice(format!("{mode:07o}\0").as_bytes());
        block[124..136].copy_from_slice(format!("{size:011o}\0").as_bytes());
        block[156] = kind;
        block[157..157 + link.len().min(100)].copy_from_slice(&link[..link.len().min(100)]);
        block[257..265].copy_from_slice(b"ustar\x0000");
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.0.extend_from_slice(&block);
    }

    pub(crate) fn file(self, path: &str, data: &[u8]) -> Self {
        self.entry(b'0', path.as_bytes(), b"", 0o644, data)
    }

    fn dir(self, path: &str) -> Self {
        self.entry(b'5', path.as_bytes(), b"", 0o755, b"")
    }

    fn symlink(self, path: &str, target: &str) -> Self {
        self.entry(b'2', path.as_bytes(), target.as_bytes(), 0o777, b"")
    }

    fn hard_link(self, path: &str, target: &str) -> Self {
        self.entry(b'1', path.as_bytes(), target.as_bytes(), 0o644, b"")
    }

    fn pax(self, records: &[(&str, &str)]) -> Self {
        self.entry(b'x', b"pax", b"", 0o644, &pax(records))
    }

    /// With a proper end, as gzip.
    pub(crate) fn gzip(mut self) -> Vec<u8> {
        self.0.extend_from_slice(&[0; 1024]);
        gzip(&self.0)
    }
}

fn pax(records: &[(&str, &str)]) -> Vec<u8> {
    let mut data = Vec::new();
    for (key, value) in records {
        let rest = key.len() + value.len() + 3;
        let mut length = rest + 1;
        while length != rest + length.to_string().len() {
            length = rest + length.to_string().len();
        }
        data.extend_from_slice(format!("{length} {key}={value}\n").as_bytes());
    }
    data
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// One directory with a compose file.
fn good() -> Tar {
    Tar::default().dir("app/").file("app/compose.yaml", b"services: {}\n")
}

fn check(bytes: &[u8]) -> Result<CheckedArchive, ArchiveError> {
    archive::check(&mut Cursor::new(bytes), Digest::of(bytes))
}

/// That an archive is refused for this entry and rule, by the check and by unpacking, and leaves nothing.
#[track_caller]
fn refused(tar: Tar, entry: &str, rule: Rule) {
    let bytes = tar.gzip();
    match check(&bytes) {
        Err(ArchiveError::Entry { entry: e, rule: r }) => assert_eq!((e.as_str(), r), (entry, rule)),
        other => panic!("{other:?}, wanted {entry} {rule:?}"),
    }
    leaves_nothing(&bytes);
}

#[track_caller]
fn leaves_nothing(bytes: &[u8]) -> ArchiveError {
    let dir = tempfile::tempdir().unwrap();
    let error =
        archive::unpack(&mut Cursor::new(bytes), Digest::of(bytes), &dir.path().join("x")).unwrap_err();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    assert_eq!(
        (error.failure(), error.retry()),
        (FailureCode::ArchiveInvalid, Retry::NotUntilManifestChanges)
    );
    error
}

#[track_caller]
fn unpacked(bytes: &[u8]) -> (tempfile::TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = archive::unpack(&mut Cursor::new(bytes), Digest::of(bytes), &dir.path().join("x")).unwrap();
    (dir, path)
}

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_good_archive_is_unpacked_as_it_is() {
    let tar = good()
        .file("app/config/nginx.conf", b"conf")
        .entry(b'0', b"app/run.sh", b"", 0o755, b"#!/bin/sh\n")
        .symlink("app/config/current.conf", "nginx.conf")
        .symlink("app/back", "config/..")
        .hard_link("app/again.conf", "app/config/nginx.conf")
        .dir("app/config/");
    let bytes = tar.gzip();
    let checked = check(&bytes).unwrap();
    assert_eq!((checked.top.as_str(), checked.entries), ("app", 8));
    let (dir, path) = unpacked(&bytes);
    assert_eq!(path, dir.path().join("x/app"));
    assert_eq!(std::fs::read(path.join("compose.yaml")).unwrap(), b"services: {}\n");
    assert_eq!(std::fs::read(path.join("config/current.conf")).unwrap(), b"conf");
    assert_eq!(std::fs::read(path.join("again.conf")).unwrap(), b"conf");
    let siblings: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(siblings, ["x"]);
}

#[test]
fn unpacking_again_replaces_what_was_there_and_clears_what_was_left() {
    let bytes = good().gzip();
    let (dir, path) = unpacked(&bytes);
    std::fs::write(path.join("compose.yaml"), b"changed by hand").unwrap();
    std::fs::write(path.join("added"), b"").unwrap();
    std::fs::create_dir_all(dir.path().join(".x.unpacking/half")).unwrap();
    std::fs::write(dir.path().join(".x.replaced"), b"").unwrap();
    archive::unpack(&mut Cursor::new(&bytes), Digest::of(&bytes), &dir.path().join("x")).unwrap();
    assert_eq!(std::fs::read(path.join("compose.yaml")).unwrap(), b"services: {}\n");
    assert!(!path.join("added").exists());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn pk_080_exactly_one_top_level_directory() {
    refused(good().file("other/file", b""), "other/file", Rule::SecondTopLevel);
    refused(good().dir("other"), "other", Rule::SecondTopLevel);
    refused(good().file("loose", b""), "loose", Rule::TopLevelFile);
    refused(Tar::default().file("compose.yaml", b""), "compose.yaml", Rule::TopLevelFile);
    refused(Tar::default().file("./compose.yaml", b""), "./compose.yaml", Rule::TopLevelFile);
    refused(Tar::default().symlink("app", "."), "app", Rule::TopLevelFile);
    assert!(matches!(leaves_nothing(&Tar::default().gzip()), ArchiveError::Empty));
    assert!(matches!(leaves_nothing(&Tar::default().dir("./").gzip()), ArchiveError::Empty));
}

#[test]
fn pk_080_a_leading_dot_changes_nothing() {
    let bytes = Tar::default().dir("./").dir("./app").file("./app//./compose.yaml", b"x").gzip();
    let (_dir, path) = unpacked(&bytes);
    assert_eq!(std::fs::read(path.join("compose.yaml")).unwrap(), b"x");
}

#[test]
fn pk_081_the_directory_may_be_called_anything() {
    for name in ["app", "Ünïcode", "with space", "..x", "-rf"] {
        let bytes = Tar::default().file(&format!("{name}/compose.yaml"), b"x").gzip();
        assert_eq!(check(&bytes).unwrap().top, name);
        let (_dir, path) = unpacked(&bytes);
        assert!(path.join("compose.yaml").is_file());
    }
}

#[test]
fn pk_082_compose_yaml_is_directly_in_it_and_a_file() {
    for (other, hint) in [
        ("app/compose.yml", "rename compose.yml"),
        ("app/docker-compose.yaml", "rename docker-compose.yaml"),
        ("app/docker-compose.yml", "rename docker-compose.yml"),
        ("app/sub/compose.yaml", "add compose.yaml"),
    ] {
        let error = leaves_nothing(&Tar::default().file(other, b"").gzip());
        assert!(matches!(error, ArchiveError::NoComposeFile { .. }), "{error:?}");
        assert!(error.to_string().contains(hint) && error.to_string().contains("PK-082"), "{error}");
    }
    let dir = Tar::default().dir("app/compose.yaml");
    refused(dir, "app/compose.yaml", Rule::ComposeFileKind);
    let link = Tar::default().file("app/real", b"").symlink("app/compose.yaml", "real");
    refused(link, "app/compose.yaml", Rule::ComposeFileKind);
}

#[test]
fn pk_087_the_number_of_entries_is_bounded() {
    let mut tar = good();
    for index in 0..ENTRIES_MAX {
        tar = tar.file(&format!("app/{index}"), b"");
    }
    assert!(matches!(leaves_nothing(&tar.gzip()), ArchiveError::TooManyEntries));
}

#[test]
fn pk_087_directories_that_are_only_implied_are_counted() {
    let mut tar = good();
    for index in 0..ENTRIES_MAX / 40 {
        // Forty directories in one path.
        tar = tar.file(&format!("app/{index}{}/x", "/d".repeat(40)), b"");
    }
    assert!(matches!(leaves_nothing(&tar.gzip()), ArchiveError::TooManyEntries));
}

/// Found by fuzzing: sizes were added up before anybody had seen the data.
#[test]
fn pk_087_a_size_beyond_all_bounds_is_only_a_lie() {
    let mut tar = good();
    tar.header(b'0', b"app/large", b"", 0o644, 0);
    let at = tar.0.len() - 512;
    // The binary form, for sizes that do not fit into octal digits.
    tar.0[at + 124..at + 136].fill(0xff);
    tar.0[at + 148..at + 156].fill(b' ');
    let sum: u32 = tar.0[at..].iter().map(|byte| u32::from(*byte)).sum();
    tar.0[at + 148..at + 156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let error = leaves_nothing(&tar.gzip());
    assert!(matches!(error, ArchiveError::Tar(_)), "{error:?}");
}

/// The beginning of an archive and then zeros, just more than it may expand to.
fn bomb(tar: &Tar) -> ArchiveError {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(&tar.0).unwrap();
    let zeros = vec![0; 1 << 20];
    for _ in 0..=EXPANDED_BYTES_MAX >> 20 {
        encoder.write_all(&zeros).unwrap();
    }
    let bytes = encoder.finish().unwrap();
    assert!(bytes.len() < 4 << 20);
    leaves_nothing(&bytes)
}

#[test]
fn pk_087_a_bomb_that_its_header_admits_does_not_go_off() {
    let mut tar = good();
    tar.header(b'0', b"app/zeros", b"", 0o644, 1 << 30);
    let error = bomb(&tar);
    assert!(matches!(error, ArchiveError::Tar(InvalidTar::TooLarge(EXPANDED_BYTES_MAX))), "{error:?}");
}

#[test]
fn pk_087_a_bomb_behind_the_end_does_not_go_off() {
    let error = bomb(&good());
    assert!(matches!(error, ArchiveError::Tar(InvalidTar::TooLarge(EXPANDED_BYTES_MAX))), "{error:?}");
}

#[test]
fn pk_087_a_long_extended_header_is_not_read() {
    for kind in *b"xgLK" {
        let tar = good().entry(kind, b"long", b"", 0o644, &vec![b'a'; 100_000]).file("app/x", b"");
        let error = leaves_nothing(&tar.gzip());
        assert!(matches!(error, ArchiveError::Tar(InvalidTar::ExtendedTooLarge)), "{error:?}");
    }
}

#[test]
fn pk_090_symlinks_stay_inside() {
    for target in [
        "/etc/passwd",
        "/",
        "..",
        "../",
        "../other",
        "../../etc",
        "./../..",
        "a/../../..",
        "x/../../app/../..",
    ] {
        refused(good().symlink("app/link", target), "app/link", Rule::SymlinkOutside);
    }
    refused(good().symlink("app/sub/link", "../../x"), "app/sub/link", Rule::SymlinkOutside);
    for target in ["compose.yaml", "./compose.yaml", "sub/../compose.yaml", "missing", ".", "sub/"] {
        check(&good().symlink("app/link", target).gzip()).unwrap();
    }
    check(&good().symlink("app/a/b/link", "../..").gzip()).unwrap();
    let long = good().entry(b'2', b"app/link", b"", 0o777, b"");
    refused(long, "app/link", Rule::Name);
}

#[test]
fn pk_090_no_way_out_through_a_second_link() {
    // On paper a/b/up/.. is a/b; in truth it is above the top.
    let tar = good().dir("app/a/b").symlink("app/a/b/up", "../..").symlink("app/out", "a/b/up/../..");
    refused(tar, "app/out", Rule::LinkThroughLink);
    // The same with the links in the other order, and with a trailing slash.
    let tar = good().symlink("app/out", "a/up/..").symlink("app/a/up", "..");
    refused(tar, "app/out", Rule::LinkThroughLink);
    check(&good().symlink("app/one", "two").symlink("app/two", "one").gzip()).unwrap();
    // And nothing is written through a link, not even one that stays inside.
    let tar = good().symlink("app/link", "sub").file("app/link/file", b"");
    refused(tar, "app/link/file", Rule::BelowNonDirectory);
    let tar = good().file("app/link/file", b"").symlink("app/link", "sub");
    refused(tar, "app/link", Rule::Duplicate);
}

#[test]
fn pk_091_hard_links_stay_inside() {
    for target in ["/etc/passwd", "../x", "app/../../x", "other/file", "etc/passwd", ""] {
        refused(good().hard_link("app/link", target), "app/link", Rule::HardLinkOutside);
    }
    for target in ["app/missing", "app", "app/later"] {
        let tar = good().hard_link("app/link", target).file("app/later", b"");
        refused(tar, "app/link", Rule::HardLinkTarget);
    }
    // Not through a symbolic link either.
    let tar = good().symlink("app/s", "compose.yaml").hard_link("app/link", "app/s");
    refused(tar, "app/link", Rule::HardLinkTarget);
}

#[test]
fn pk_092_no_absolute_paths() {
    for path in ["/etc/cron.d/x", "/app/compose.yaml", "//x"] {
        refused(good().file(path, b""), path, Rule::AbsolutePath);
    }
    let tar = good().pax(&[("path", "/etc/cron.d/x")]).file("app/innocent", b"");
    refused(tar, "/etc/cron.d/x", Rule::AbsolutePath);
    let tar = good().entry(b'L', b"././@LongLink", b"", 0, b"/etc/cron.d/x\0").file("app/innocent", b"");
    refused(tar, "/etc/cron.d/x", Rule::AbsolutePath);
}

#[test]
fn pk_093_no_parent_directories_in_names() {
    for path in ["../x", "app/../../x", "app/../app/x", "app/..", ".."] {
        refused(good().file(path, b""), path, Rule::ParentDirectory);
    }
    refused(good().dir("app/../../x/"), "app/../../x/", Rule::ParentDirectory);
    refused(good().pax(&[("path", "app/../../x")]).file("app/x", b""), "app/../../x", Rule::ParentDirectory);
    check(&good().file("app/..x", b"").file("app/x..", b"").file("app/...", b"").gzip()).unwrap();
}

#[test]
fn pk_094_permissions_are_made_anew() {
    let bytes = Tar::default()
        .entry(b'5', b"app", b"", 0o7000, b"")
        .file("app/compose.yaml", b"")
        .entry(b'0', b"app/setuid", b"", 0o6755, b"")
        .entry(b'0', b"app/sticky", b"", 0o1666, b"")
        .entry(b'0', b"app/secret", b"", 0o000, b"")
        .entry(b'0', b"app/group-exec", b"", 0o610, b"")
        .entry(b'5', b"app/dir", b"", 0o1777, b"")
        .gzip();
    let (_dir, path) = unpacked(&bytes);
    for (name, wanted) in [
        (".", 0o755),
        ("dir", 0o755),
        ("setuid", 0o755),
        ("sticky", 0o644),
        ("secret", 0o644),
        ("group-exec", 0o644),
        ("compose.yaml", 0o644),
    ] {
        assert_eq!(mode(&path.join(name)), wanted, "{name}");
    }
}

#[test]
fn pk_096_the_digest_is_verified_before_anything_else() {
    let mut bytes = good().gzip();
    let wanted = Digest::of(&bytes);
    let last = bytes.len() - 9;
    bytes[last] ^= 1;
    let dir = tempfile::tempdir().unwrap();
    for broken in [&bytes[..], b"", b"not even gzip"] {
        let error = archive::unpack(&mut Cursor::new(broken), wanted, &dir.path().join("x")).unwrap_err();
        assert!(matches!(error, ArchiveError::Digest { .. }), "{error:?}");
        assert_eq!(error.retry(), Retry::Later);
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn pk_097_no_devices_fifos_or_the_like() {
    // Character device, block device, fifo, contiguous, volume header, multi-volume, and one nobody knows.
    for kind in *b"3467VMZ" {
        refused(good().entry(kind, b"app/dev", b"", 0o644, b""), "app/dev", Rule::SpecialFile);
    }
}

#[test]
fn no_sparse_files_in_any_notation() {
    let sparse = good().entry(b'S', b"app/x", b"", 0o644, b"");
    assert!(matches!(leaves_nothing(&sparse.gzip()), ArchiveError::Tar(InvalidTar::Sparse)));
    for key in ["GNU.sparse.major", "GNU.sparse.map", "SCHILY.realsize"] {
        let error = leaves_nothing(&good().pax(&[(key, "1")]).file("app/x", b"").gzip());
        assert!(matches!(error, ArchiveError::Tar(InvalidTar::Sparse)), "{error:?}");
    }
}

#[test]
fn what_two_readers_could_read_differently_is_refused() {
    let smuggled = Tar::default().file("app/smuggled", b"").0;
    let size = good().pax(&[("size", "0")]).file("app/x", &smuggled);
    assert!(matches!(leaves_nothing(&size.gzip()), ArchiveError::Tar(InvalidTar::SizeTwice)));
    check(
        &good()
            .pax(&[("size", "3"), ("mtime", "1.5"), ("SCHILY.xattr.user.x", "y")])
            .file("app/x", b"abc")
            .gzip(),
    )
    .unwrap();
    let twice = good().pax(&[("path", "app/a"), ("path", "app/b")]).file("app/x", b"");
    assert!(matches!(leaves_nothing(&twice.gzip()), ArchiveError::Tar(InvalidTar::ExtendedTwice)));
    let both = good().entry(b'L', b"l", b"", 0, b"app/a\0").pax(&[("path", "app/b")]).file("app/x", b"");
    assert!(matches!(leaves_nothing(&both.gzip()), ArchiveError::Tar(InvalidTar::ExtendedTwice)));
    let global = good().entry(b'g', b"g", b"", 0, &pax(&[("path", "app/a")])).file("app/x", b"");
    assert!(matches!(leaves_nothing(&global.gzip()), ArchiveError::Tar(InvalidTar::ExtendedTwice)));
    let alone = good().pax(&[("path", "app/a")]);
    assert!(matches!(leaves_nothing(&alone.gzip()), ArchiveError::Tar(InvalidTar::CutOff)));
    for bad in [
        &b"nonsense"[..],
        b"5 a=b\n",
        b"99 path=x\n",
        b"10 path-x \n",
        b"0 \n",
        b" =\n",
        b"18446744073709551615 a=\n",
    ] {
        let error = leaves_nothing(&good().entry(b'x', b"x", b"", 0, bad).file("app/x", b"").gzip());
        assert!(matches!(error, ArchiveError::Tar(InvalidTar::ExtendedMalformed)), "{error:?}");
    }
    for kind in *b"125" {
        refused(good().entry(kind, b"app/x", b"compose.yaml", 0o644, b"hidden"), "app/x", Rule::Data);
    }
}

#[test]
fn remarks_of_git_archive_are_passed_over() {
    let remark = pax(&[("comment", "0123456789abcdef0123456789abcdef01234567")]);
    let bytes = Tar::default()
        .entry(b'g', b"pax_global_header", b"", 0o666, &remark)
        .file("app/compose.yaml", b"")
        .gzip();
    assert_eq!(check(&bytes).unwrap().entries, 1);
}

#[test]
fn long_names_are_read_in_every_notation_and_bounded() {
    let long = format!("app/{}/{}", "a".repeat(120), "b".repeat(120));
    let by_pax = good().pax(&[("path", &long)]).file("app/short", b"pax");
    let by_gnu = good()
        .entry(b'L', b"././@LongLink", b"", 0, format!("{long}\0").as_bytes())
        .file("app/short", b"gnu");
    for (tar, content) in [(by_pax, "pax"), (by_gnu, "gnu")] {
        let (_dir, path) = unpacked(&tar.gzip());
        assert_eq!(std::fs::read_to_string(path.join(&long["app/".len()..])).unwrap(), content);
        assert!(!path.join("short").exists());
    }
    for (path, shown) in
        [(format!("app/{}", "x".repeat(256)), 200), (format!("app/{}", "x/".repeat(600)), 200)]
    {
        refused(good().pax(&[("path", &path)]).file("app/x", b""), &path[..shown], Rule::TooLong);
    }
}

#[test]
fn names_are_text_and_unique() {
    refused(good().entry(b'0', b"app/\xff", b"", 0o644, b""), "app/\u{fffd}", Rule::Name);
    refused(good().file("app/a\nb", b""), "app/a\nb", Rule::Name);
    refused(good().pax(&[("path", "app/a\0b")]).file("app/x", b""), "app/a\0b", Rule::Name);
    refused(good().file("", b""), "", Rule::Name);
    refused(good().file("app/x/", b""), "app/x/", Rule::Name);
    refused(good().file("app/compose.yaml", b"other"), "app/compose.yaml", Rule::Duplicate);
    refused(good().file("app/./compose.yaml", b"other"), "app/./compose.yaml", Rule::Duplicate);
    refused(good().dir("app/compose.yaml"), "app/compose.yaml", Rule::Duplicate);
    refused(good().file("app/compose.yaml/x", b""), "app/compose.yaml/x", Rule::BelowNonDirectory);
}

#[test]
fn what_is_cut_off_or_has_more_behind_it_is_refused() {
    let whole = good().file("app/data", &[7; 5000]).gzip();
    for length in [0, 1, 9, 10, 11, whole.len() / 2, whole.len() - 9, whole.len() - 8, whole.len() - 1] {
        let error = leaves_nothing(&whole[..length]);
        assert!(matches!(error, ArchiveError::Gzip(_)), "{length}: {error:?}");
    }
    for garbage in [&b"x"[..], b"\0", &whole] {
        let error = leaves_nothing(&[&whole, garbage].concat());
        assert!(matches!(error, ArchiveError::Trailing), "{error:?}");
    }
    let mut crc = whole.clone();
    let at = crc.len() - 6;
    crc[at] ^= 0xff;
    assert!(matches!(leaves_nothing(&crc), ArchiveError::Gzip(_)));

    let tar = good().0;
    assert!(matches!(leaves_nothing(&gzip(&tar)), ArchiveError::Tar(InvalidTar::NoEnd)));
    assert!(matches!(
        leaves_nothing(&gzip(&[&tar[..], &[0; 512]].concat())),
        ArchiveError::Tar(InvalidTar::NoEnd)
    ));
    assert!(matches!(leaves_nothing(&gzip(&tar[..tar.len() - 512])), ArchiveError::Tar(InvalidTar::CutOff)));
    assert!(matches!(leaves_nothing(&gzip(&tar[..tar.len() - 700])), ArchiveError::Tar(InvalidTar::CutOff)));
    let behind = [&tar[..], &[0; 1024], &good().0[..]].concat();
    assert!(matches!(leaves_nothing(&gzip(&behind)), ArchiveError::Tar(InvalidTar::Trailing)));
    let mut broken = tar.clone();
    broken[3] ^= 1;
    assert!(matches!(leaves_nothing(&gzip(&broken)), ArchiveError::Tar(InvalidTar::Checksum)));
    assert!(matches!(leaves_nothing(b"PK\x03\x04 a zip file"), ArchiveError::Gzip(_)));
}

#[test]
fn a_full_or_missing_destination_is_said_and_can_be_tried_again() {
    let bytes = good().gzip();
    let dir = tempfile::tempdir().unwrap();
    let error = archive::unpack(&mut Cursor::new(&bytes), Digest::of(&bytes), &dir.path().join("no/such"))
        .unwrap_err();
    assert!(matches!(error, ArchiveError::Io { .. }), "{error:?}");
    assert_eq!(error.retry(), Retry::Later);
    let full = ArchiveError::Io { doing: "x", source: std::io::ErrorKind::StorageFull.into() };
    assert_eq!(full.failure(), FailureCode::DiskFull);
}

/// Whatever an archive says, nothing appears outside of the destination, and nothing in it leads out.
fn stays_inside(bytes: &[u8]) {
    let dir = tempfile::tempdir().unwrap();
    let victim = dir.path().join("victim");
    std::fs::write(&victim, b"untouched").unwrap();
    let target = dir.path().join("in/x");
    std::fs::create_dir(dir.path().join("in")).unwrap();
    let result = archive::unpack(&mut Cursor::new(bytes), Digest::of(bytes), &target);
    assert_eq!(std::fs::read(&victim).unwrap(), b"untouched");
    let outside: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(outside.len(), 2, "{outside:?}");
    if result.is_err() {
        assert!(!target.exists());
        return;
    }
    let root = std::fs::canonicalize(&target).unwrap();
    let mut pending = vec![target.clone()];
    while let Some(at) = pending.pop() {
        for entry in std::fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            let meta = std::fs::symlink_metadata(&path).unwrap();
            if meta.is_dir() {
                pending.push(path);
            } else if meta.is_symlink() {
                // A link that leads nowhere, or in a circle, leads not outside either.
                if let Ok(real) = std::fs::canonicalize(&path) {
                    assert!(real.starts_with(&root), "{path:?} leads to {real:?}");
                }
            } else {
                assert_eq!(meta.permissions().mode() & 0o7022, 0);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_mixture_of_entries_gets_out(entries in proptest::collection::vec(
        ("[0125]", "(app|\\.|\\.\\.|/)?(/(a|b|c|\\.\\.|\\.)){0,4}", "(/|\\.\\./)?((a|b|c|app|\\.\\.|\\.)/?){0,5}", 0u32..0o10000), 0..8
    )) {
        let mut tar = good();
        for (kind, path, link, mode) in entries {
            let kind = kind.as_bytes()[0];
            tar = tar.entry(kind, path.as_bytes(), link.as_bytes(), mode, if kind == b'0' { b"data" } else { b"" });
        }
        stays_inside(&tar.gzip());
    }

    #[test]
    fn no_damaged_archive_panics_or_gets_out(at in 0usize..4096, value in any::<u8>()) {
        let mut tar = good().pax(&[("path", "app/long")]).file("app/x", b"data").symlink("app/l", "x").hard_link("app/h", "app/x");
        tar.0.extend_from_slice(&[0; 1024]);
        let at = at % tar.0.len();
        tar.0[at] = value;
        stays_inside(&gzip(&tar.0));
    }

    #[test]
    fn no_bytes_at_all_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        prop_assert!(check(&bytes).is_err());
        prop_assert!(check(&gzip(&bytes)).is_err());
    }
}

#[test]
fn what_an_archive_has_is_said_by_the_archive() {
    let bytes = good().file("app/conf/web/a.conf", b"").symlink("app/now", "conf/web").gzip();
    let listing = archive::list(&mut Cursor::new(&bytes), Digest::of(&bytes)).unwrap();
    let has = |path: &str| listing.has(Path::new(path));
    for path in ["", "compose.yaml", "conf", "conf/web", "conf/web/a.conf"] {
        assert_eq!(has(path), Some(true), "{path}");
    }
    assert_eq!((has("data"), has("conf/web/b"), has("app")), (Some(false), Some(false), Some(false)));
    assert_eq!((has("now"), has("now/a.conf")), (None, None));
}

/// A file whose disk breaks once it was read for the first time.
struct Breaking(Cursor<Vec<u8>>, u32);

impl std::io::Read for Breaking {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        const EIO: i32 = 5;
        if self.1 > 1 && self.0.position() > 0 {
            return Err(std::io::Error::from_raw_os_error(EIO));
        }
        let some = into.len().min(16);
        self.0.read(&mut into[..some])
    }
}

impl std::io::Seek for Breaking {
    fn seek(&mut self, to: std::io::SeekFrom) -> std::io::Result<u64> {
        self.1 += 1;
        self.0.seek(to)
    }
}

#[test]
fn a_disk_that_breaks_says_nothing_about_the_archive() {
    let bytes = good().gzip();
    let digest = Digest::of(&bytes);
    let error = archive::check(&mut Breaking(Cursor::new(bytes), 0), digest).unwrap_err();
    assert_eq!(error.failure(), FailureCode::PullFailed, "{error:?}");
    assert_eq!(error.retry(), Retry::Later);
}

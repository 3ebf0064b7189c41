//! The little of ELF that tells which files a program needs to start: its loader and its libraries' names.
//!
//! Only 64-bit little-endian files are read, which are all that we build for; anything else is an error
//! that the demo turns into simulated devices. Nothing here trusts a length or an offset it reads.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;

const DT_NULL: u64 = 0;
const DT_STRTAB: u64 = 5;
const DT_SONAME: u64 = 14;

/// Far beyond what linkers write; a larger number is damage.
const HEADERS_MAX: u16 = 256;
const DYNAMIC_BYTES_MAX: u64 = 64 * 1024;
const NAME_BYTES_MAX: usize = 4096;

/// What a program or library says about being loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Elf {
    /// The loader that the kernel starts; absent for a static program and for a library.
    pub(crate) interpreter: Option<String>,
    /// The name by which others ask for this library.
    pub(crate) soname: Option<String>,
}

struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    length: u64,
}

impl Elf {
    pub(crate) fn read(file: &File) -> io::Result<Elf> {
        let mut head = [0; 64];
        file.read_exact_at(&mut head, 0)?;
        if &head[..4] != b"\x7fELF" || head[4] != 2 || head[5] != 1 {
            return Err(invalid("it is not a 64-bit little-endian ELF file"));
        }
        let table = u64_at(&head, 32);
        let (size, count) = (u16_at(&head, 54), u16_at(&head, 56));
        if size < 56 || count > HEADERS_MAX {
            return Err(invalid("its program headers are not sound"));
        }
        let mut segments = Vec::new();
        for number in 0..u64::from(count) {
            let mut header = [0; 56];
            let at = table
                .checked_add(number * u64::from(size))
                .ok_or_else(|| invalid("a header is out of range"))?;
            file.read_exact_at(&mut header, at)?;
            segments.push(Segment {
                kind: u32_at(&header, 0),
                offset: u64_at(&header, 8),
                address: u64_at(&header, 16),
                length: u64_at(&header, 32),
            });
        }
        let find = |kind| segments.iter().find(|segment| segment.kind == kind);
        Ok(Elf {
            interpreter: find(PT_INTERP).map(|segment| text(file, segment.offset)).transpose()?,
            soname: match find(PT_DYNAMIC) {
                Some(dynamic) => soname(file, dynamic, &segments)?,
                None => None,
            },
        })
    }
}

fn soname(file: &File, dynamic: &Segment, segments: &[Segment]) -> io::Result<Option<String>> {
    if dynamic.length > DYNAMIC_BYTES_MAX {
        return Err(invalid("its dynamic section is too long"));
    }
    let mut entries = vec![0; dynamic.length as usize];
    file.read_exact_at(&mut entries, dynamic.offset)?;
    let (mut strings, mut name) = (None, None);
    for entry in entries.chunks_exact(16) {
        match u64_at(entry, 0) {
            DT_NULL => break,
            DT_STRTAB => strings = Some(u64_at(entry, 8)),
            DT_SONAME => name = Some(u64_at(entry, 8)),
            _ => {}
        }
    }
    let (Some(strings), Some(name)) = (strings, name) else { return Ok(None) };
    // Addresses are those in memory; the segment that is loaded there says where they are in the file.
    let loaded = |address: u64| {
        segments
            .iter()
            .filter(|segment| segment.kind == PT_LOAD)
            .find_map(|segment| {
                let inside =
                    address.checked_sub(segment.address).filter(|inside| *inside < segment.length)?;
                segment.offset.checked_add(inside)
            })
            .ok_or_else(|| invalid("a name lies outside of what is loaded"))
    };
    let address = strings.checked_add(name).ok_or_else(|| invalid("a name is out of range"))?;
    text(file, loaded(address)?).map(Some)
}

/// A NUL-terminated text.
fn text(file: &File, at: u64) -> io::Result<String> {
    let mut bytes = vec![0; NAME_BYTES_MAX];
    let length = file.read_at(&mut bytes, at)?;
    let end = bytes[..length].iter().position(|b| *b == 0).ok_or_else(|| invalid("a name has no end"))?;
    bytes.truncate(end);
    String::from_utf8(bytes).map_err(|_| invalid("a name is not text"))
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn our_own_executable_is_read() {
        let own = Elf::read(&File::open("/proc/self/exe").unwrap()).unwrap();
        // A test binary is linked to the system's C library, or static; a loader is an absolute path.
        assert!(own.interpreter.is_none_or(|path| path.starts_with('/')));
        assert_eq!(own.soname, None);
    }

    #[test]
    fn what_is_no_program_is_refused_and_never_panics() {
        assert!(Elf::read(&file(b"")).is_err());
        assert!(Elf::read(&file(&[0; 200])).is_err());
        let own = std::fs::read("/proc/self/exe").unwrap();
        // Every byte of the headers damaged in turn: an answer or an error, never more.
        for at in 0..1024 {
            let mut damaged = own[..4096].to_vec();
            damaged[at] ^= 0xff;
            let _answer = Elf::read(&file(&damaged));
        }
    }
}

//! A tar reader that trusts nothing: one entry after the other, everything bounded, nothing written.
//!
//! It exists because a general reader is generous where we must not be: it holds extended headers of any
//! size in memory, follows sizes from one header while another reader follows the other, and ends quietly
//! where an archive was cut off. What two readers could read differently is refused here.

use std::io::{self, Read};

/// Extended headers hold a path each; this is many times the longest path we take.
const EXTENDED_BYTES_MAX: u64 = 64 * 1024;

const BLOCK: usize = 512;

/// Why bytes are not a tar we read.
#[derive(Debug, thiserror::Error)]
pub enum InvalidTar {
    #[error("it ends in the middle of an entry")]
    CutOff,
    #[error("it ends without the two empty blocks that end a tar; it was cut off when it was made")]
    NoEnd,
    #[error("there is more behind its end")]
    Trailing,
    #[error("the checksum of a header is wrong")]
    Checksum,
    #[error("a header field is malformed: {0}")]
    Field(&'static str),
    #[error("an extended header is larger than {EXTENDED_BYTES_MAX} bytes")]
    ExtendedTooLarge,
    #[error("an extended header is malformed")]
    ExtendedMalformed,
    #[error("two extended headers contradict or repeat each other")]
    ExtendedTwice,
    #[error("an extended header says another size than the header it extends")]
    SizeTwice,
    #[error("it has sparse files")]
    Sparse,
    #[error("it expands to more than {} (PK-087)", crate::in_binary(*.0))]
    TooLarge(u64),
    #[error("it cannot be read")]
    Io(#[from] io::Error),
}

/// What kind of thing an entry says it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    File,
    Directory,
    Symlink,
    HardLink,
    /// Devices, fifos and whatever else there is.
    Special(u8),
}

/// An entry as it was written; nothing about it is checked.
#[derive(Debug)]
pub struct Entry {
    pub path: Vec<u8>,
    pub link: Vec<u8>,
    pub kind: Kind,
    pub mode: u32,
    pub size: u64,
}

/// What extended headers said about the next entry.
#[derive(Default)]
struct Extended {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
}

pub struct Tarball<R> {
    inner: Bounded<R>,
    /// Of the current entry: bytes not read, and padding behind them.
    left: u64,
    padding: u64,
}

impl<R: Read> Tarball<R> {
    /// Reads at most so many bytes in all, headers included.
    pub fn new(inner: R, bytes_max: u64) -> Self {
        Tarball { inner: Bounded { inner, left: bytes_max, max: bytes_max }, left: 0, padding: 0 }
    }

    /// The next entry, or `None` at a proper end; then everything has been read.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, InvalidTar> {
        let mut extended = Extended::default();
        let mut was_extended = false;
        loop {
            self.skip()?;
            let Some(header) = self.header()? else {
                // Something was said about an entry that never came.
                return if was_extended { Err(InvalidTar::CutOff) } else { Ok(None) };
            };
            let size = header.entry_size().map_err(|_| InvalidTar::Field("size"))?;
            let kind = header.as_bytes()[156];
            match kind {
                b'x' | b'L' | b'K' => {
                    let data = self.extension(size)?;
                    let trimmed = || data.strip_suffix(&[0]).unwrap_or(&data).to_vec();
                    match kind {
                        b'x' => extended.pax(&data)?,
                        b'L' => set(&mut extended.path, trimmed())?,
                        _ => set(&mut extended.link, trimmed())?,
                    }
                    was_extended = true;
                }
                // What `git archive` writes: remarks about the whole. They may not change any entry.
                b'g' => {
                    let data = self.extension(size)?;
                    let mut global = Extended::default();
                    global.pax(&data)?;
                    if global.path.is_some() || global.link.is_some() || global.size.is_some() {
                        return Err(InvalidTar::ExtendedTwice);
                    }
                }
                _ => {
                    if extended.size.is_some_and(|extended| extended != size) {
                        return Err(InvalidTar::SizeTwice);
                    }
                    self.begin(size);
                    let link = header.link_name_bytes().map(|name| name.into_owned());
                    return Ok(Some(Entry {
                        path: extended.path.unwrap_or_else(|| header.path_bytes().into_owned()),
                        link: extended.link.or(link).unwrap_or_default(),
                        kind: match kind {
                            b'0' | 0 => Kind::File,
                            b'1' => Kind::HardLink,
                            b'2' => Kind::Symlink,
                            b'5' => Kind::Directory,
                            b'S' => return Err(InvalidTar::Sparse),
                            other => Kind::Special(other),
                        },
                        mode: header.mode().map_err(|_| InvalidTar::Field("mode"))?,
                        size,
                    }));
                }
            }
        }
    }

    /// The next header; `None` behind the end mark, with nothing but zeros after it.
    fn header(&mut self) -> Result<Option<tar::Header>, InvalidTar> {
        let mut header = tar::Header::new_old();
        let block = header.as_mut_bytes();
        if !self.inner.fill(block)? {
            return Err(InvalidTar::NoEnd);
        }
        if block.iter().all(|byte| *byte == 0) {
            self.end()?;
            return Ok(None);
        }
        // The checksum counts its own eight bytes as spaces.
        let sum = |bytes: &[u8]| bytes.iter().map(|byte| u32::from(*byte)).sum::<u32>();
        let wanted = sum(&block[..148]) + 8 * u32::from(b' ') + sum(&block[156..]);
        if header.cksum().ok() != Some(wanted) {
            return Err(InvalidTar::Checksum);
        }
        Ok(Some(header))
    }

    fn end(&mut self) -> Result<(), InvalidTar> {
        let mut block = [0; BLOCK];
        let mut blocks = 1;
        while self.inner.fill(&mut block)? {
            if block.iter().any(|byte| *byte != 0) {
                return Err(InvalidTar::Trailing);
            }
            blocks += 1;
        }
        if blocks < 2 { Err(InvalidTar::NoEnd) } else { Ok(()) }
    }

    fn begin(&mut self, size: u64) {
        self.left = size;
        self.padding = (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64;
    }

    fn extension(&mut self, size: u64) -> Result<Vec<u8>, InvalidTar> {
        if size > EXTENDED_BYTES_MAX {
            return Err(InvalidTar::ExtendedTooLarge);
        }
        self.begin(size);
        let mut data = Vec::new();
        self.read_to_end(&mut data).map_err(from_io)?;
        if data.len() as u64 == size { Ok(data) } else { Err(InvalidTar::CutOff) }
    }

    /// Passes over what was not read of the current entry.
    fn skip(&mut self) -> Result<(), InvalidTar> {
        let mut rest = (&mut self.inner).take(self.left.saturating_add(self.padding));
        let skipped = io::copy(&mut rest, &mut io::sink()).map_err(from_io)?;
        if skipped != self.left.saturating_add(self.padding) {
            return Err(InvalidTar::CutOff);
        }
        (self.left, self.padding) = (0, 0);
        Ok(())
    }
}

/// Reads the data of the current entry.
impl<R: Read> Read for Tarball<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let read = self.inner.read(&mut buffer[..length])?;
        self.left -= read as u64;
        Ok(read)
    }
}

fn set<T>(slot: &mut Option<T>, value: T) -> Result<(), InvalidTar> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(InvalidTar::ExtendedTwice),
    }
}

impl Extended {
    /// Reads records of the form `length key=value\n`, where the length counts the whole record.
    fn pax(&mut self, mut data: &[u8]) -> Result<(), InvalidTar> {
        while !data.is_empty() {
            let malformed = || InvalidTar::ExtendedMalformed;
            let space = data.iter().take(20).position(|byte| *byte == b' ').ok_or_else(malformed)?;
            let length = std::str::from_utf8(&data[..space]).ok().and_then(|text| text.parse::<usize>().ok());
            let length =
                length.filter(|length| (space + 2..=data.len()).contains(length)).ok_or_else(malformed)?;
            let (record, rest) = data.split_at(length);
            data = rest;
            let record = record[space + 1..].strip_suffix(b"\n").ok_or_else(malformed)?;
            let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(malformed)?;
            let (key, value) = (&record[..equals], &record[equals + 1..]);
            match key {
                b"path" => set(&mut self.path, value.to_vec())?,
                b"linkpath" => set(&mut self.link, value.to_vec())?,
                b"size" => {
                    let size = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                    set(&mut self.size, size.ok_or_else(malformed)?)?;
                }
                _ if key.starts_with(b"GNU.sparse.") || key == b"SCHILY.realsize" => {
                    return Err(InvalidTar::Sparse);
                }
                // Times, owners, attributes: nothing of it is kept.
                _ => {}
            }
        }
        Ok(())
    }
}

/// A reader that ends in an error instead of going on for ever.
struct Bounded<R> {
    inner: R,
    left: u64,
    max: u64,
}

impl<R: Read> Bounded<R> {
    /// Fills the buffer; `false` if there was nothing at all.
    fn fill(&mut self, buffer: &mut [u8]) -> Result<bool, InvalidTar> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.read(&mut buffer[filled..]).map_err(from_io)? {
                0 if filled == 0 => return Ok(false),
                0 => return Err(InvalidTar::CutOff),
                read => filled += read,
            }
        }
        Ok(true)
    }
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = loop {
            match self.inner.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        match self.left.checked_sub(read as u64) {
            Some(left) => self.left = left,
            None => return Err(io::Error::other(Beyond(self.max))),
        }
        Ok(read)
    }
}

/// Carries [`InvalidTar::TooLarge`] through `io::Error`.
#[derive(Debug, thiserror::Error)]
#[error("more than {0} bytes")]
struct Beyond(u64);

pub(crate) fn from_io(error: io::Error) -> InvalidTar {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Beyond>()) {
        Some(Beyond(max)) => InvalidTar::TooLarge(*max),
        None => InvalidTar::Io(error),
    }
}

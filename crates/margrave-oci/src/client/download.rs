//! A blob into a file: streamed, hashed while it comes, continued when it was cut off.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use margrave_http::{Answer, Request, StatusCode, header};

use super::error::ClientError;
use super::session::{Session, network, refused};
use super::{REFUSAL_BYTES_MAX, broken_promise};
use crate::hashing::Hasher;
use crate::manifest::Descriptor;
use crate::reference::Repository;

/// How often a download that brings nothing new is begun again before the caller hears of it.
const ATTEMPTS_MAX: u32 = 3;
const PAUSE: Duration = Duration::from_millis(300);
/// Gathered to this size before it goes to disk in one step off the async threads.
const WRITE_BYTES: usize = 256 * 1024;

pub(crate) async fn to_file(
    session: &Session,
    repository: &Repository,
    descriptor: &Descriptor,
    path: &Path,
) -> Result<(), ClientError> {
    let what = format!("{repository}@{}", descriptor.digest);
    let mut partial = Partial::open(path, descriptor).await?;
    let (mut attempts, mut begun_again) = (0, false);
    loop {
        let before = partial.length;
        let resumed = before > 0;
        let result = match partial.length == descriptor.size {
            true => Ok(()),
            false => fetch(session, &what, descriptor, &mut partial).await,
        };
        let error = match result.map_err(|error| broken_promise(error, descriptor)) {
            Ok(()) => match partial.finish(&what, path).await {
                Ok(()) => return Ok(()),
                // What lay on disk may have been the wrong part; from the beginning it is the registry's word.
                Err(ClientError::DigestMismatch { .. }) if resumed && !begun_again => {
                    begun_again = true;
                    tracing::warn!(blob = %descriptor.digest, "a continued download was wrong and begins again");
                    partial = Partial::open(path, descriptor).await?;
                    continue;
                }
                Err(error) => return Err(error),
            },
            Err(error) => error,
        };
        // As long as something comes there is hope; without, soon none.
        attempts = if partial.length > before { 0 } else { attempts + 1 };
        if !error.is_passing() || attempts >= ATTEMPTS_MAX {
            partial.keep().await?;
            return Err(error);
        }
        tracing::debug!(blob = %descriptor.digest, have = partial.length, %error, "a download was cut off");
        tokio::time::sleep(error.retry_after().unwrap_or(PAUSE).min(Duration::from_secs(5))).await;
    }
}

/// Gets what is missing, from where the file ends.
async fn fetch(
    session: &Session,
    what: &str,
    descriptor: &Descriptor,
    partial: &mut Partial,
) -> Result<(), ClientError> {
    let path = session.path(&format!("blobs/{}", descriptor.digest));
    let from = partial.length;
    let request = |path: &str| {
        let request = Request::get(path).body_max(descriptor.size.max(REFUSAL_BYTES_MAX));
        if from > 0 { request.header(header::RANGE, format!("bytes={from}-")) } else { request }
    };
    let answer = session.open_answer(what, || request(&path)).await?;
    let answer = session.follow(what, answer, request).await?;
    match answer.status {
        StatusCode::OK => partial.restart().await?,
        StatusCode::PARTIAL_CONTENT if continues(&answer, from) => {}
        // It does not continue where we are: from the beginning, then.
        StatusCode::PARTIAL_CONTENT | StatusCode::RANGE_NOT_SATISFIABLE if from > 0 => {
            drop(answer);
            partial.restart().await?;
            let request = |path: &str| Request::get(path).body_max(descriptor.size.max(REFUSAL_BYTES_MAX));
            let answer = session.open_answer(what, || request(&path)).await?;
            let answer = session.follow(what, answer, request).await?;
            return match answer.status {
                StatusCode::OK => receive(what, descriptor, answer, partial).await,
                _ => Err(refused(what, &answer.whole().await.map_err(network(what))?)),
            };
        }
        _ => return Err(refused(what, &answer.whole().await.map_err(network(what))?)),
    }
    receive(what, descriptor, answer, partial).await
}

/// Whether the answer's `Content-Range: bytes 5-9/10` begins where we stopped.
fn continues(answer: &Answer, from: u64) -> bool {
    let range = answer.header(header::CONTENT_RANGE).and_then(|text| text.trim().strip_prefix("bytes"));
    range
        .and_then(|range| range.trim().split_once('-'))
        .is_some_and(|(start, _)| start.trim().parse() == Ok(from))
}

async fn receive(
    what: &str,
    descriptor: &Descriptor,
    mut answer: Answer,
    partial: &mut Partial,
) -> Result<(), ClientError> {
    let whole = answer.status == StatusCode::OK;
    let (mut pieces, mut gathered) = (Vec::new(), 0usize);
    let cut = loop {
        let piece = match answer.body.chunk().await {
            Ok(Some(piece)) => piece,
            Ok(None) => break None,
            Err(margrave_http::Error::TooLarge { .. }) => {
                return Err(too_long(what, descriptor, partial).await);
            }
            Err(error) => break Some(error),
        };
        gathered += piece.len();
        if partial.length + gathered as u64 > descriptor.size {
            return Err(too_long(what, descriptor, partial).await);
        }
        pieces.push(piece);
        if gathered >= WRITE_BYTES {
            partial.append(std::mem::take(&mut pieces)).await?;
            gathered = 0;
        }
    };
    partial.append(pieces).await?;
    match cut {
        Some(error) => Err(network(what)(error)),
        None if partial.length == descriptor.size => Ok(()),
        // Of a part that was asked for, a registry may send less; the rest is asked for again.
        None if !whole => Err(network(what)(margrave_http::Error::Closed(None))),
        None => {
            let got = partial.length;
            partial.discard();
            Err(ClientError::SizeMismatch { what: what.to_owned(), wanted: descriptor.size, got })
        }
    }
}

async fn too_long(what: &str, descriptor: &Descriptor, partial: &mut Partial) -> ClientError {
    partial.discard();
    ClientError::SizeMismatch {
        what: what.to_owned(),
        wanted: descriptor.size,
        got: descriptor.size.saturating_add(1),
    }
}

/// The part of a blob that has come, on disk, and the hash of it.
struct Partial {
    path: PathBuf,
    file: Option<File>,
    hasher: Hasher,
    length: u64,
    wanted: Descriptor,
}

impl Partial {
    /// Opens what an earlier attempt left, or nothing.
    async fn open(target: &Path, wanted: &Descriptor) -> Result<Partial, ClientError> {
        let path = target.with_file_name(format!(".{}.partial", wanted.digest.hex()));
        let wanted = wanted.clone();
        on_disk("open", &path.clone(), move || {
            let mut file =
                OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path)?;
            let mut hasher = Hasher::new();
            let mut length = 0;
            if file.metadata()?.len() <= wanted.size {
                let mut buffer = vec![0; 64 * 1024];
                loop {
                    let read = file.read(&mut buffer)?;
                    if read == 0 {
                        break;
                    }
                    hasher.update(&buffer[..read]);
                    length += read as u64;
                }
            } else {
                file.set_len(0)?;
            }
            Ok(Partial { path, file: Some(file), hasher, length, wanted })
        })
        .await
    }

    /// Does something with the file off the async threads.
    async fn with_file<T: Send + 'static>(
        &mut self,
        doing: &'static str,
        work: impl FnOnce(&mut File, &mut Hasher) -> io::Result<T> + Send + 'static,
    ) -> Result<T, ClientError> {
        let Some(mut file) = self.file.take() else {
            let source = io::Error::new(io::ErrorKind::NotFound, "an earlier step failed");
            return Err(ClientError::Disk { doing, path: self.path.clone(), source });
        };
        let mut hasher = self.hasher.clone();
        let (file, hasher, value) = on_disk(doing, &self.path, move || {
            let value = work(&mut file, &mut hasher)?;
            Ok((file, hasher, value))
        })
        .await?;
        (self.file, self.hasher) = (Some(file), hasher);
        Ok(value)
    }

    async fn append(&mut self, pieces: Vec<Bytes>) -> Result<(), ClientError> {
        let added: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        if added == 0 {
            return Ok(());
        }
        let at = self.length;
        self.with_file("write", move |file, hasher| {
            file.seek(SeekFrom::Start(at))?;
            for piece in pieces {
                file.write_all(&piece)?;
                hasher.update(&piece);
            }
            Ok(())
        })
        .await?;
        self.length += added;
        Ok(())
    }

    async fn restart(&mut self) -> Result<(), ClientError> {
        if self.length > 0 {
            self.with_file("write", |file, _| file.set_len(0)).await?;
        }
        (self.hasher, self.length) = (Hasher::new(), 0);
        Ok(())
    }

    /// Leaves what came to the next call; nothing is left of nothing.
    async fn keep(&mut self) -> Result<(), ClientError> {
        match self.file {
            None => Ok(()),
            Some(_) if self.length == 0 => {
                self.discard();
                Ok(())
            }
            Some(_) => self.with_file("write", |file, _| file.sync_all()).await,
        }
    }

    /// Removes what came: no part of it is right.
    fn discard(&mut self) {
        self.file = None;
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "a wrong download could not be removed");
        }
    }

    /// Makes the whole and right blob visible; a wrong one is removed.
    async fn finish(&mut self, what: &str, target: &Path) -> Result<(), ClientError> {
        let got = self.hasher.clone().digest();
        if got != self.wanted.digest {
            self.discard();
            return Err(ClientError::DigestMismatch {
                what: what.to_owned(),
                wanted: self.wanted.digest,
                got,
            });
        }
        let (from, to, length) = (self.path.clone(), target.to_owned(), self.length);
        self.with_file("finish", move |file, _| {
            file.set_len(length)?;
            file.sync_all()?;
            fs::rename(&from, &to)?;
            let dir = to.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
            File::open(dir)?.sync_all()
        })
        .await
    }
}

async fn on_disk<T: Send + 'static>(
    doing: &'static str,
    path: &Path,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, ClientError> {
    let failed = |source| ClientError::Disk { doing, path: path.to_owned(), source };
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result.map_err(failed),
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(error) => Err(failed(io::Error::other(error))),
    }
}

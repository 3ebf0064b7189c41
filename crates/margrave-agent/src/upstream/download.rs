//! Content by digest over a bad line: what came is kept in memory and the rest asked for, or all of it anew.
//!
//! A part does not survive a restart of the agent: documents are small, and a file of bytes that nobody has
//! verified yet would have to be guarded for little.

use std::io::Read as _;
use std::time::{Duration, Instant};

use flate2::read::GzDecoder;
use margrave_core::device::Trouble;
use margrave_core::digest::{Digest, Document};
use margrave_http::{Answer, Error, HeaderMap, Request, StatusCode, header};

use super::link::{Link, accepted};
use crate::damage;

/// How often one download is picked up again before the whole exchange counts as failed.
const RESUMPTIONS_MAX: u32 = 4;
/// The slowest line that is waited for takes this long for the largest bundle; a server that drips bytes for ever
/// is given up.
const TIME_MAX: Duration = Duration::from_secs(30 * 60);
/// An answer may be silent for this long in the middle.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// What to get and how much of it at most.
pub(crate) struct Wanted<'a> {
    pub(crate) path: &'a str,
    pub(crate) media_type: &'static str,
    pub(crate) digest: Digest,
    pub(crate) size_max: u64,
    /// Whether HTTP may have compressed it on the way. A bundle is gzip by itself, and what a server says about
    /// that is no reason to unpack it before it is verified (AMB-21).
    pub(crate) may_be_coded: bool,
}

/// The beginning of something that is not complete yet.
#[derive(Debug)]
pub(crate) struct Part {
    digest: Digest,
    bytes: Vec<u8>,
    /// The server's strong validator, to ask for the rest of the very same thing.
    tag: Option<String>,
    /// Whether the server can be asked for the rest.
    ranges: bool,
    coding: Option<String>,
    /// Put together from several answers.
    joined: bool,
}

impl Part {
    fn new(digest: Digest) -> Part {
        Part { digest, bytes: vec![], tag: None, ranges: false, coding: None, joined: false }
    }

    fn start_over(&mut self) {
        *self = Part::new(self.digest);
    }

    fn can_go_on(&self) -> bool {
        !self.bytes.is_empty() && self.coding.is_none() && (self.tag.is_some() || self.ranges)
    }
}

/// How one answer ended.
enum Piece {
    Complete,
    /// The line was cut; what came before is in the part.
    Cut(Trouble),
    /// The server does not go on from here.
    StartOver,
}

/// Gets `wanted`, verified. What came before the line was cut for good stays in `held` for the next try.
pub(crate) async fn download(
    link: &Link,
    wanted: &Wanted<'_>,
    held: &mut Option<Part>,
) -> Result<Document, Trouble> {
    let mut part =
        held.take().filter(|part| part.digest == wanted.digest).unwrap_or_else(|| Part::new(wanted.digest));
    let deadline = Instant::now() + TIME_MAX;
    let mut resumptions = 0;
    loop {
        let had = part.bytes.len();
        let ended = match piece(link, wanted, &mut part, deadline).await {
            Ok(ended) => ended,
            Err(trouble) => {
                // The line is still down, or the server busy: what came before is as good as it was.
                *held = Some(part).filter(|part| part.can_go_on() && !trouble.permanent);
                return Err(trouble);
            }
        };
        match ended {
            Piece::Complete => {
                let damaged = damage::strike(&mut part.bytes);
                match (part.joined, verified(wanted, &mut part)) {
                    (_, Ok(document)) => return Ok(document),
                    // Two halves of different things; once more in one piece, before the server is blamed.
                    (true, Err(_)) => part.start_over(),
                    (false, Err(trouble)) => {
                        // Who did it may be gone by now.
                        if let Some(heard) = damaged {
                            heard.send(trouble.message.clone()).unwrap_or_default();
                        }
                        return Err(trouble);
                    }
                }
            }
            Piece::StartOver => part.start_over(),
            Piece::Cut(trouble) => {
                let grew = part.bytes.len() > had;
                if !part.can_go_on() {
                    part.start_over();
                }
                if resumptions >= RESUMPTIONS_MAX || !grew {
                    *held = Some(part).filter(Part::can_go_on);
                    return Err(trouble);
                }
            }
        }
        resumptions += 1;
        if resumptions > 2 * RESUMPTIONS_MAX {
            return Err(Trouble::passing(format!("{} could not be fetched in one piece", wanted.path)));
        }
    }
}

async fn piece(
    link: &Link,
    wanted: &Wanted<'_>,
    part: &mut Part,
    deadline: Instant,
) -> Result<Piece, Trouble> {
    let mut request = Request::get(wanted.path)
        .header(header::ACCEPT, wanted.media_type)
        .body_idle(SILENCE_MAX)
        .body_max(wanted.size_max.saturating_sub(part.bytes.len() as u64));
    if part.can_go_on() {
        request = request.header(header::RANGE, format!("bytes={}-", part.bytes.len()));
        if let Some(tag) = &part.tag {
            request = request.header(header::IF_RANGE, tag);
        }
    }
    let answer = link.open(request).await?;
    match answer.status {
        StatusCode::PARTIAL_CONTENT => {
            let from = first_byte(&answer.headers);
            if from != Some(part.bytes.len() as u64) || part.bytes.is_empty() {
                return Ok(Piece::StartOver);
            }
            part.joined = true;
        }
        StatusCode::RANGE_NOT_SATISFIABLE if !part.bytes.is_empty() => return Ok(Piece::StartOver),
        status if status.is_success() => {
            part.start_over();
            let text = |name| answer.headers.get(name).and_then(|value| value.to_str().ok());
            let strong = |tag: &&str| tag.starts_with('"') && tag.len() <= 200;
            part.tag = text(header::ETAG).filter(strong).map(str::to_owned);
            part.ranges = text(header::ACCEPT_RANGES).is_some_and(|unit| unit.eq_ignore_ascii_case("bytes"));
            part.coding = text(header::CONTENT_ENCODING)
                .filter(|coding| !coding.eq_ignore_ascii_case("identity"))
                .map(str::to_owned);
        }
        _ => return refused(answer).await,
    }
    let mut body = answer.body;
    loop {
        match body.chunk().await {
            Ok(Some(bytes)) => part.bytes.extend_from_slice(&bytes),
            Ok(None) => return Ok(Piece::Complete),
            Err(error @ Error::TooLarge { .. }) => {
                return Err(Trouble::passing(format!("{} was refused: {error}", wanted.path)));
            }
            Err(error) => return Ok(Piece::Cut(Trouble::passing(margrave_core::chain::sentence(&error)))),
        }
        if part.bytes.len() as u64 > wanted.size_max {
            return Err(Trouble::passing(format!(
                "{} was refused: it has more than {} bytes",
                wanted.path, wanted.size_max
            )));
        }
        if Instant::now() > deadline {
            return Err(Trouble::passing(format!(
                "{} took longer than {} s",
                wanted.path,
                TIME_MAX.as_secs()
            )));
        }
    }
}

async fn refused(answer: Answer) -> Result<Piece, Trouble> {
    let response =
        answer.whole().await.map_err(|error| Trouble::passing(margrave_core::chain::sentence(&error)))?;
    accepted(response).and(Err(Trouble::passing("the server answered without content")))
}

/// The position that a partial answer begins at.
fn first_byte(headers: &HeaderMap) -> Option<u64> {
    let range = headers.get(header::CONTENT_RANGE)?.to_str().ok()?;
    range.trim().strip_prefix("bytes ")?.split_once('-')?.0.trim().parse().ok()
}

/// The digest is of the decoded bytes (MI-G2-071). A server that only says that it compressed is believed when
/// its bytes prove it wrong.
fn verified(wanted: &Wanted<'_>, part: &mut Part) -> Result<Document, Trouble> {
    let refused =
        |why: &dyn std::fmt::Display| Trouble::passing(format!("{} was refused: {why}", wanted.path));
    let coding = part.coding.take().filter(|_| wanted.may_be_coded);
    let coded = coding.as_ref().map(|_| part.bytes.clone());
    match (Document::verified(std::mem::take(&mut part.bytes), wanted.digest), coding, coded) {
        (Ok(document), ..) => Ok(document),
        (Err(_), Some(coding), Some(coded)) => {
            let decoded = decode(&coding, &coded, wanted.size_max).map_err(|error| refused(&error))?;
            Document::verified(decoded, wanted.digest).map_err(|mismatch| refused(&mismatch))
        }
        (Err(mismatch), ..) => Err(refused(&mismatch)),
    }
}

/// Why a compressed answer cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CodingError {
    #[error("its coding {0:?} is not understood, and was not asked for")]
    Unknown(String),
    #[error("its coding is damaged")]
    Damaged(#[source] std::io::Error),
    #[error("it inflates to more than {0} bytes")]
    TooLarge(u64),
}

/// Undoes a content coding that nobody asked for.
pub(crate) fn decode(coding: &str, bytes: &[u8], size_max: u64) -> Result<Vec<u8>, CodingError> {
    match coding.trim().to_ascii_lowercase().as_str() {
        "gzip" | "x-gzip" => {
            let mut decoded = vec![];
            let mut limited = GzDecoder::new(bytes).take(size_max + 1);
            limited.read_to_end(&mut decoded).map_err(CodingError::Damaged)?;
            if decoded.len() as u64 > size_max { Err(CodingError::TooLarge(size_max)) } else { Ok(decoded) }
        }
        _ => Err(CodingError::Unknown(coding.chars().take(40).collect())),
    }
}

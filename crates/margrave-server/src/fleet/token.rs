//! Secrets that open doors: how they are made, and join tokens. Operators' are `access.rs`'s. Each is shown once and
//! kept only as a hash; 256 random bits need no slow hash and no comparison in constant time, because the
//! hash is looked up and cannot be approached step by step.

use std::time::Duration;

use aws_lc_rs::rand;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use margrave_core::digest::Digest;
use margrave_core::id::ClientId;
use margrave_core::manifest::Manifest;
use margrave_core::moment::Moment;
use margrave_core::violation::{Violation, join};
use margrave_store::{JoinError, NewJoinToken, Standing};
use margrave_wire::{Dialect, g2, operator};

use super::event::time;
use super::{Actor, Error, Fleet};

const VALID_DEFAULT: Duration = Duration::from_secs(24 * 3600);
const VALID_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
/// Far longer than any token of ours; longer ones are not even hashed.
const TOKEN_LENGTH_MAX: usize = 200;
const LABELS_MAX: usize = 64;

/// A secret with a prefix that says what it is, so that a leaked one is recognised.
pub(super) fn secret(prefix: &str) -> Result<String, Error> {
    let mut bytes = [0u8; 32];
    rand::fill(&mut bytes).map_err(|_| Error::NoRandomness)?;
    Ok(format!("{prefix}{}", URL_SAFE_NO_PAD.encode(bytes)))
}

pub(super) fn hash(token: &str) -> Option<Digest> {
    (token.len() <= TOKEN_LENGTH_MAX).then(|| Digest::of(token.as_bytes()))
}

/// A name for a device that was given none; letters and digits that cannot be mistaken for one another.
fn made_up_name() -> Result<ClientId, Error> {
    const LETTERS: &[u8; 32] = b"abcdefghjkmnpqrstuvwxyz23456789x";
    let mut bytes = [0u8; 6];
    rand::fill(&mut bytes).map_err(|_| Error::NoRandomness)?;
    let tail: String = bytes.iter().map(|byte| char::from(LETTERS[usize::from(byte % 32)])).collect();
    Ok(ClientId::parse(&format!("device-{tail}")).expect("letters and digits make a client id"))
}

/// Broken rules of labels, each at its place.
pub(super) fn check_labels<'a>(
    labels: impl IntoIterator<Item = (&'a String, Option<&'a String>)>,
) -> Vec<Violation> {
    let key_fits = |key: &str| {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b'/');
        (1..=100).contains(&key.len()) && key.bytes().all(allowed)
    };
    let value_fits = |value: &str| value.len() <= 200 && !value.chars().any(char::is_control);
    let mut broken = Vec::new();
    let mut count = 0;
    for (key, value) in labels {
        count += 1;
        if !key_fits(key) {
            let message = "a label's name is 1 to 100 letters, digits, '.', '_', '-' or '/'";
            broken.push(Violation::new(join("/labels", key), "label", message));
        } else if value.is_some_and(|value| !value_fits(value)) {
            let message = "a label's value is at most 200 bytes without control characters";
            broken.push(Violation::new(join("/labels", key), "label", message));
        }
    }
    if count > LABELS_MAX {
        broken.push(Violation::new("/labels", "label", format!("a device has at most {LABELS_MAX} labels")));
    }
    broken
}

impl Fleet {
    pub async fn create_join_token(
        &self,
        actor: &Actor,
        want: operator::CreateJoinToken,
    ) -> Result<operator::JoinToken, Error> {
        let operator::CreateJoinToken { device, labels, valid_seconds, git } = want;
        let mut broken = check_labels(labels.iter().map(|(key, value)| (key, Some(value))));
        let valid = valid_seconds.map_or(VALID_DEFAULT, Duration::from_secs);
        if valid.is_zero() || valid > VALID_MAX {
            let message = format!(
                "a join token is valid for 30 days at most, which are {} seconds",
                VALID_MAX.as_secs()
            );
            broken.push(Violation::new("/validSeconds", "token", message));
        }
        let client = match device.as_deref().map(ClientId::parse) {
            None => made_up_name()?,
            Some(Ok(client)) => client,
            Some(Err(error)) => {
                broken.push(Violation::new("/device", "ID-012", error.to_string()));
                return Err(Error::Invalid(broken));
            }
        };
        if !broken.is_empty() {
            return Err(Error::Invalid(broken));
        }
        let token = secret("mgj_")?;
        let now = self.now();
        let expires_at = now.after(valid);
        let new = NewJoinToken {
            hash: Digest::of(token.as_bytes()),
            client: client.clone(),
            labels,
            created_at: now,
            created_by: actor.name.clone(),
            expires_at,
        };
        // A contact that is not written down yet counts, too.
        if self.live.contact(&client).is_some() {
            self.flush_contacts().await?;
        }
        self.store.create_join_token(new).await.map_err(join_error)?;
        self.store.allow_git(&client, git).await?;
        let (url, pin) = (self.options.server_url.clone(), self.options.pin.clone());
        Ok(operator::JoinToken {
            device: client.to_string(),
            command: format!("margrave-agent join {url} --token {token} --pin {pin}"),
            token,
            expires: time(expires_at),
            url,
            pin,
        })
    }

    /// Join tokens that can still be used, the newest first; so many at most.
    pub async fn join_tokens(&self, most: u32) -> Result<Vec<operator::OpenJoinToken>, Error> {
        let open = self.store.join_tokens_open(self.now(), most).await?;
        let shown = open.into_iter().map(|token| operator::OpenJoinToken {
            device: token.client.to_string(),
            labels: token.labels,
            created: time(token.created_at),
            created_by: token.created_by,
            expires: time(token.expires_at),
        });
        Ok(shown.collect())
    }

    /// Makes the token void that was made for a name and that nobody used yet.
    pub async fn revoke_join_token(&self, actor: &Actor, device: &str) -> Result<(), Error> {
        let shown: String = device.chars().take(200).collect();
        let missing = || Error::not_found(format!("join token of {shown} that could still be used"));
        let client = ClientId::parse(device).map_err(|_| missing())?;
        match self.store.revoke_join_token(&client, self.now(), &actor.name).await? {
            true => Ok(()),
            false => Err(missing()),
        }
    }

    /// Takes a join token; it is void afterwards. The client it was made for exists from then on.
    pub async fn redeem_join_token(&self, token: &str) -> Result<ClientId, Error> {
        let hash = hash(token).ok_or(Error::TokenUnknown)?;
        // Whoever guesses gets no further than a look-up: no lock, no write, nobody else waits.
        if !self.store.knows_join_token(hash).await? {
            return Err(Error::TokenUnknown);
        }
        let first = Manifest::new(1, None, vec![]).expect("an empty manifest of version 1 is valid");
        let body = g2::manifest::write(&first);
        let redeemed = {
            // Nobody publishes to the new client before it is in the live picture.
            let _deciding = self.deciding.read().await;
            let redeemed =
                self.store.redeem_join_token(hash, self.now(), body.clone()).await.map_err(join_error)?;
            let client = redeemed.client.clone();
            self.live.admit(client, Dialect::Miaf, Standing::Accepted, 1, body, (self.now(), None));
            redeemed
        };
        self.settle_or_log().await;
        Ok(redeemed.client)
    }

    /// Remembers the certificate that the client was given.
    pub async fn record_svid(
        &self,
        client: &ClientId,
        serial: String,
        not_after: Moment,
    ) -> Result<(), Error> {
        if self.store.record_svid(client, &serial, not_after, self.now()).await? {
            Ok(())
        } else {
            Err(Error::not_found(format!("client {client}")))
        }
    }

    /// The serials of the newest certificate and the one before: only these may renew.
    pub async fn svid_serials(&self, client: &ClientId) -> Result<Vec<String>, Error> {
        Ok(self.store.svid_serials(client).await?)
    }
}

fn join_error(error: JoinError) -> Error {
    match error {
        JoinError::Unknown => Error::TokenUnknown,
        JoinError::Used => Error::TokenUsed,
        JoinError::Expired => Error::TokenExpired,
        JoinError::Joined(name) => Error::conflict(format!(
            "a device named {name} has joined already; choose another name, or retire it first"
        )),
        JoinError::Retired(name) => Error::conflict(format!(
            "{name} was retired, and its name is not given away again (ID-176); choose another name, or accept the \
             device again"
        )),
        JoinError::Store(error) => error.into(),
    }
}

//! Who operators are and what they may do: tokens with their roles, and the page's sessions.
//!
//! All of them are in memory, by hash, so that whoever tries wrong ones costs nobody a look into the database. What
//! changes is on disk before it counts; what is revoked is out of memory before the answer is given.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use margrave_core::access::{OperatorName, Role};
use margrave_core::digest::Digest;
use margrave_core::moment::Moment;
use margrave_core::violation::Violation;
use margrave_store::{
    NewOperatorToken, NewTokenError, OperatorTokenRecord, RevokeError, SessionRecord, Store, TOKENS_MAX,
    VOID_KEPT_MS,
};
use margrave_wire::operator;
use tokio::sync::watch;

use super::event::time;
use super::token::{hash, secret};
use super::{Actor, Error, Fleet};

/// Long enough to be typed somewhere else.
const VALID_MIN: Duration = Duration::from_secs(60);
/// Ten years: a token that shall live longer is one without an end.
const VALID_MAX: Duration = Duration::from_secs(3650 * 24 * 3600);
/// A wall display in a control room is signed in once a week. The browser keeps the cookie for as long.
pub(crate) const SESSION_LIFETIME: Duration = Duration::from_secs(7 * 24 * 3600);
/// How exactly it is known when a token was last used: often enough to see which are forgotten, seldom enough that
/// reading does not become writing.
const USED_EVERY: Duration = Duration::from_secs(3600);
/// Who makes the token of the data directory.
const SERVER: &str = "server";

/// Who is asking, by which token, and what it allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    pub actor: Actor,
    pub role: Role,
    /// The token's id.
    pub token: String,
}

/// Why a token does not count. Whoever holds one that once counted may know what became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    Unknown,
    Expired,
    Revoked,
}

pub(super) struct Access {
    state: RwLock<State>,
    /// Says that somebody may be out.
    changed: watch::Sender<()>,
}

#[derive(Default)]
struct State {
    tokens: HashMap<Digest, OperatorTokenRecord>,
    /// The hash of each token by its id.
    ids: HashMap<String, Digest>,
    sessions: HashMap<Digest, SessionRecord>,
}

impl State {
    fn put(&mut self, token: OperatorTokenRecord) {
        self.ids.insert(token.id.clone(), token.hash);
        self.tokens.insert(token.hash, token);
    }

    fn token(&self, id: &str) -> Option<&OperatorTokenRecord> {
        self.tokens.get(self.ids.get(id)?)
    }

    /// How many sessions of an operator last, whichever token began them.
    fn sessions_of(&self, name: &str, now: Moment) -> u64 {
        let is_of = |session: &&SessionRecord| {
            session.expires_at > now && self.token(&session.token).is_some_and(|token| token.name == name)
        };
        self.sessions.values().filter(is_of).count() as u64
    }
}

impl Access {
    pub(super) async fn load(store: &Store, now: Moment) -> Result<Access, Error> {
        let mut state = State::default();
        for token in store.operator_tokens().await? {
            state.put(token);
        }
        state.sessions =
            store.sessions(now).await?.into_iter().map(|session| (session.hash, session)).collect();
        Ok(Access { state: RwLock::new(state), changed: watch::Sender::new(()) })
    }

    fn read<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn change<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        let done = work(&mut self.state.write().unwrap_or_else(PoisonError::into_inner));
        self.changed.send_replace(());
        done
    }

    /// Forgets what the store forgets.
    pub(super) fn sweep(&self, now: Moment) {
        let before = Moment(now.0.saturating_sub(VOID_KEPT_MS));
        self.change(|state| {
            let kept = |at: Option<Moment>| at.is_none_or(|at| at >= before);
            state.tokens.retain(|_, token| kept(token.revoked_at) && kept(token.expires_at));
            let State { tokens, ids, sessions } = state;
            ids.retain(|_, hash| tokens.contains_key(hash));
            sessions.retain(|_, session| session.expires_at > now && ids.contains_key(&session.token));
        });
    }
}

fn holder(token: &OperatorTokenRecord) -> Holder {
    Holder {
        actor: Actor { name: format!("operator {}", token.name) },
        role: token.role,
        token: token.id.clone(),
    }
}

fn shown(token: &OperatorTokenRecord, now: Moment) -> operator::Token {
    let state = match token.revoked_at {
        Some(_) => "revoked",
        None if token.is_usable(now) => "usable",
        None => "expired",
    };
    operator::Token {
        id: token.id.clone(),
        name: token.name.clone(),
        role: token.role.to_string(),
        state: state.to_owned(),
        created: time(token.created_at),
        created_by: token.created_by.clone(),
        expires: token.expires_at.map(time),
        last_used: token.used_at.map(time),
        revoked: token.revoked_at.map(time),
    }
}

impl Fleet {
    /// Whose token this is.
    pub async fn operator_by_token(&self, token: &str) -> Result<Holder, Refused> {
        let hash = hash(token).ok_or(Refused::Unknown)?;
        let now = self.now();
        let found = self.access.read(|state| {
            let token = state.tokens.get(&hash).ok_or(Refused::Unknown)?;
            match token.is_usable(now) {
                true => Ok((holder(token), is_due(token, now))),
                false if token.revoked_at.is_some() => Err(Refused::Revoked),
                false => Err(Refused::Expired),
            }
        });
        let (holder, due) = found?;
        if due {
            self.note_use(&holder.token, now).await;
        }
        Ok(holder)
    }

    /// Writes down that a token is in use. Nobody is kept from looking because a disk is full.
    async fn note_use(&self, id: &str, now: Moment) {
        self.access.change(|state| {
            if let Some(hash) = state.ids.get(id).copied()
                && let Some(token) = state.tokens.get_mut(&hash)
            {
                token.used_at = Some(now);
            }
        });
        if let Err(error) = self.store.operator_token_used(id, now).await {
            tracing::warn!(token = id, %error, "it could not be written down that a token is in use");
        }
    }

    /// Makes a token; its secret is shown this once.
    pub async fn create_operator_token(
        &self,
        actor: &Actor,
        want: operator::CreateToken,
    ) -> Result<operator::CreatedToken, Error> {
        let operator::CreateToken { name, role, valid_seconds } = want;
        let mut broken = Vec::new();
        if let Err(error) = OperatorName::parse(&name) {
            broken.push(Violation::new("/name", "token", error.to_string()));
        }
        let role = Role::parse(&role);
        if role.is_none() {
            broken.push(Violation::new("/role", "token", "a role is viewer, operator or admin"));
        }
        let valid = valid_seconds.map(Duration::from_secs);
        if valid.is_some_and(|valid| !(VALID_MIN..=VALID_MAX).contains(&valid)) {
            let message = format!(
                "a token is valid for {} to {} seconds (ten years), or without an end when this is left out",
                VALID_MIN.as_secs(),
                VALID_MAX.as_secs()
            );
            broken.push(Violation::new("/validSeconds", "token", message));
        }
        let (Some(role), true) = (role, broken.is_empty()) else { return Err(Error::Invalid(broken)) };
        let secret = secret("mgo_")?;
        let now = self.now();
        let new = NewOperatorToken {
            hash: Digest::of(secret.as_bytes()),
            name,
            role,
            created_at: now,
            created_by: actor.name.clone(),
            expires_at: valid.map(|valid| now.after(valid)),
        };
        let made = self.store.create_operator_token(new).await.map_err(|error| match error {
            NewTokenError::TooMany => Error::conflict(format!(
                "there are {TOKENS_MAX} tokens that can be used, which is as many as there may be; revoke some first"
            )),
            NewTokenError::Store(error) => error.into(),
        })?;
        let token = shown(&made, now);
        self.access.change(|state| state.put(made));
        Ok(operator::CreatedToken { token, secret })
    }

    /// Makes the administrator's token of the data directory; earlier ones, and the sessions they began, are void with
    /// it.
    pub async fn replace_own_token(&self, name: &str) -> Result<String, Error> {
        let secret = secret("mgo_")?;
        let new = NewOperatorToken {
            hash: Digest::of(secret.as_bytes()),
            name: name.to_owned(),
            role: Role::Admin,
            created_at: self.now(),
            created_by: SERVER.to_owned(),
            expires_at: None,
        };
        self.store.replace_operator_token(new).await?;
        let Access { state, .. } = Access::load(&self.store, self.now()).await?;
        self.access.change(|now| *now = state.into_inner().unwrap_or_else(PoisonError::into_inner));
        Ok(secret)
    }

    /// All tokens, also those that cannot be used any more, the newest first.
    pub async fn operator_tokens(&self) -> Result<Vec<operator::Token>, Error> {
        let now = self.now();
        Ok(self.store.operator_tokens().await?.iter().map(|token| shown(token, now)).collect())
    }

    /// One token, as the list shows it.
    pub async fn operator_token(&self, id: &str) -> Result<operator::Token, Error> {
        let found = self.operator_tokens().await?.into_iter().find(|token| token.id == id);
        found.ok_or_else(|| Error::not_found("such token; the list shows their ids"))
    }

    /// Voids a token, at once: its holder is out, and so is every page that was signed in to with it.
    pub async fn revoke_operator_token(&self, actor: &Actor, id: &str) -> Result<operator::Token, Error> {
        let now = self.now();
        let revoked = self.store.revoke_operator_token(id, now, &actor.name).await;
        let revoked = revoked.map_err(|error| match error {
            RevokeError::Unknown => Error::not_found("such token; the list shows their ids"),
            RevokeError::LastAdmin => Error::conflict(
                "this is the last token of an admin, and nobody could make another; make one for an admin first",
            ),
            RevokeError::Store(error) => error.into(),
        })?;
        let token = shown(&revoked, now);
        self.access.change(|state| {
            state.sessions.retain(|_, session| session.token != revoked.id);
            state.put(revoked);
        });
        Ok(token)
    }

    /// Whose token has this id, if it counts.
    pub(crate) fn holder_of(&self, id: &str) -> Option<Holder> {
        let now = self.now();
        self.access.read(|state| state.token(id).filter(|token| token.is_usable(now)).map(holder))
    }

    /// Begins a session of a token that counts.
    pub async fn create_session(&self, token: &str) -> Result<String, Error> {
        let now = self.now();
        if !self.access.read(|state| state.token(token).is_some_and(|token| token.is_usable(now))) {
            return Err(Error::TokenUnknown);
        }
        let id = secret("mgs_")?;
        let session = SessionRecord {
            hash: Digest::of(id.as_bytes()),
            token: token.to_owned(),
            expires_at: now.after(SESSION_LIFETIME),
        };
        let crowded = self.store.begin_session(session.clone(), now).await?;
        self.access.change(|state| {
            for hash in crowded {
                state.sessions.remove(&hash);
            }
            state.sessions.insert(session.hash, session);
        });
        Ok(id)
    }

    /// Whose session it is, while it and its token last.
    pub async fn session(&self, id: &str) -> Option<Holder> {
        let hash = hash(id)?;
        let now = self.now();
        let (holder, due) = self.access.read(|state| {
            let session = state.sessions.get(&hash).filter(|session| session.expires_at > now)?;
            let token = state.token(&session.token).filter(|token| token.is_usable(now))?;
            Some((holder(token), is_due(token, now)))
        })?;
        if due {
            self.note_use(&holder.token, now).await;
        }
        Some(holder)
    }

    /// The mark that forms of whoever holds this token carry. Nobody can make it up who does not know the token: what is kept of
    /// one is its hash, which no page and no answer shows.
    pub(crate) fn form_mark(&self, token: &str) -> Option<String> {
        let hash = self.access.read(|state| state.token(token).map(|token| token.hash))?;
        Some(Digest::of(format!("margrave form of token {hash}").as_bytes()).hex())
    }

    pub async fn end_session(&self, id: &str) -> Result<(), Error> {
        if let Some(hash) = hash(id) {
            self.store.end_session(hash).await?;
            self.access.change(|state| state.sessions.remove(&hash));
        }
        Ok(())
    }

    /// Ends every session of the operator who holds this token, in whichever browser it is.
    pub async fn end_sessions_of(&self, token: &str) -> Result<operator::EndedSessions, Error> {
        let name = self.access.read(|state| state.token(token).map(|token| token.name.clone()));
        let name = name.ok_or(Error::TokenUnknown)?;
        self.store.end_sessions_of(&name).await?;
        let now = self.now();
        let ended = self.access.change(|state| {
            let ended = state.sessions_of(&name, now);
            let State { tokens, ids, sessions } = state;
            sessions.retain(|_, session| {
                let token = ids.get(&session.token).and_then(|hash| tokens.get(hash));
                token.is_some_and(|token| token.name != name)
            });
            ended
        });
        Ok(operator::EndedSessions { name, ended })
    }

    /// In how many browsers this operator is signed in.
    pub fn sessions_of(&self, name: &str) -> u64 {
        let now = self.now();
        self.access.read(|state| state.sessions_of(name, now))
    }

    /// Ends when the token does not count any more: what its holder follows ends with it.
    pub(crate) async fn token_ended(&self, token: &str) {
        let lasting =
            |state: &State, now| Some(state.token(token).filter(|token| token.is_usable(now))?.expires_at);
        self.ended(lasting).await;
    }

    /// Ends when the session or its token does not count any more: what is followed on the page ends with it.
    pub(crate) async fn session_ended(&self, id: &str) {
        let Some(hash) = hash(id) else { return };
        self.ended(|state, now| {
            let session = state.sessions.get(&hash).filter(|session| session.expires_at > now)?;
            let token = state.token(&session.token).filter(|token| token.is_usable(now))?;
            let end = token.expires_at.map_or(session.expires_at, |end| end.min(session.expires_at));
            Some(Some(end))
        })
        .await;
    }

    /// Ends when `lasting` says that something does not any more. While it does, it says until when, if there is an end to it.
    async fn ended(&self, lasting: impl Fn(&State, Moment) -> Option<Option<Moment>>) {
        let mut changed = self.access.changed.subscribe();
        loop {
            let now = self.now();
            let Some(end) = self.access.read(|state| lasting(state, now)) else { return };
            let expiry = async {
                match end {
                    Some(end) => tokio::time::sleep(end.since(now).max(Duration::from_millis(1))).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = expiry => {}
                changed = changed.changed() => {
                    // The sender is the fleet's own, and we hold the fleet.
                    if changed.is_err() {
                        return;
                    }
                }
            }
        }
    }
}

fn is_due(token: &OperatorTokenRecord, now: Moment) -> bool {
    // A clock that was ahead for a while does not hide for long that the token is used.
    token.used_at.is_none_or(|used| now.since(used) >= USED_EVERY || used > now.after(USED_EVERY))
}

//! Operators' tokens, their sessions, and the log of what was done with them.

use std::collections::BTreeSet;

use margrave_core::access::Role;
use margrave_core::audit::{Broken, Check, Entry};
use margrave_core::digest::Digest;
use margrave_core::moment::Moment;
use margrave_store::*;

use crate::fixture::*;

fn token(secret: &str, name: &str, role: Role) -> NewOperatorToken {
    NewOperatorToken {
        hash: Digest::of(secret.as_bytes()),
        name: name.to_owned(),
        role,
        created_at: NOW,
        created_by: "operator admin".to_owned(),
        expires_at: None,
    }
}

fn session(secret: &str, token: &OperatorTokenRecord) -> SessionRecord {
    SessionRecord { hash: Digest::of(secret.as_bytes()), token: token.id.clone(), expires_at: later(10) }
}

#[tokio::test]
async fn tokens_are_remembered_as_hashes_with_all_that_belongs_to_them() {
    let world = World::new();
    let wanted = NewOperatorToken { expires_at: Some(later(10)), ..token("secret", "ann", Role::Viewer) };
    let made = world.store.create_operator_token(wanted).await.unwrap();
    assert_eq!(made.id, &Digest::of(b"secret").hex()[..12]);
    world.store.operator_token_used(&made.id, later(3)).await.unwrap();
    let world = world.reopened();
    let kept = world.store.operator_tokens().await.unwrap();
    assert_eq!(kept, [OperatorTokenRecord { used_at: Some(later(3)), ..made.clone() }]);
    assert_eq!(
        (kept[0].role, kept[0].is_usable(later(9)), kept[0].is_usable(later(10))),
        (Role::Viewer, true, false)
    );
    // Shown for a while after its end, then forgotten.
    world.store.sweep_expired(later(11)).await.unwrap();
    assert_eq!(world.store.operator_tokens().await.unwrap().len(), 1);
    world.store.sweep_expired(Moment(later(11).0 + VOID_KEPT_MS)).await.unwrap();
    assert!(world.store.operator_tokens().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_revoked_token_takes_its_sessions_with_it_and_no_others() {
    let world = World::new();
    let first = world.store.create_operator_token(token("1", "ann", Role::Operator)).await.unwrap();
    let second = world.store.create_operator_token(token("2", "bob", Role::Operator)).await.unwrap();
    world.store.begin_session(session("a", &first), NOW).await.unwrap();
    world.store.begin_session(session("b", &second), NOW).await.unwrap();
    let revoked = world.store.revoke_operator_token(&first.id, later(1), "operator admin").await.unwrap();
    assert_eq!(revoked.revoked_at, Some(later(1)));
    assert_eq!(world.store.sessions(NOW).await.unwrap(), [session("b", &second)]);
    // Twice is once.
    let again = world.store.revoke_operator_token(&first.id, later(2), "operator admin").await.unwrap();
    assert_eq!(again.revoked_at, Some(later(1)));
    let unknown = world.store.revoke_operator_token("0123", NOW, "x").await.unwrap_err();
    assert!(matches!(unknown, RevokeError::Unknown), "{unknown}");
}

#[tokio::test]
async fn the_last_admin_stays() {
    let world = World::new();
    let first = world.store.create_operator_token(token("1", "ann", Role::Admin)).await.unwrap();
    world.store.create_operator_token(token("2", "bob", Role::Operator)).await.unwrap();
    let brief = NewOperatorToken { expires_at: Some(later(5)), ..token("3", "eve", Role::Admin) };
    let brief = world.store.create_operator_token(brief).await.unwrap();
    // One that has expired is no other admin.
    let refused = world.store.revoke_operator_token(&first.id, later(5), "x").await.unwrap_err();
    assert!(matches!(refused, RevokeError::LastAdmin), "{refused}");
    world.store.revoke_operator_token(&first.id, later(4), "x").await.unwrap();
    let refused = world.store.revoke_operator_token(&brief.id, later(4), "x").await.unwrap_err();
    assert!(matches!(refused, RevokeError::LastAdmin), "{refused}");
}

#[tokio::test]
async fn a_replaced_token_voids_those_of_the_same_maker_and_name() {
    let world = World::new();
    let of_server = |secret: &str| NewOperatorToken {
        created_by: "server".to_owned(),
        ..token(secret, "admin", Role::Admin)
    };
    let first = world.store.replace_operator_token(of_server("1")).await.unwrap();
    let other = world.store.create_operator_token(token("2", "admin", Role::Admin)).await.unwrap();
    world.store.begin_session(session("a", &first), NOW).await.unwrap();
    let new = world.store.replace_operator_token(of_server("3")).await.unwrap();
    let kept = world.store.operator_tokens().await.unwrap();
    let usable: BTreeSet<_> =
        kept.iter().filter(|token| token.is_usable(NOW)).map(|token| &token.id).collect();
    assert_eq!(usable, BTreeSet::from([&other.id, &new.id]));
    assert!(world.store.sessions(NOW).await.unwrap().is_empty());
}

#[tokio::test]
async fn there_are_bounds_on_tokens_and_on_sessions_of_one() {
    let world = World::new();
    let mut making = tokio::task::JoinSet::new();
    for number in 0..TOKENS_MAX {
        let store = world.store.clone();
        making.spawn(async move {
            store.create_operator_token(token(&number.to_string(), "bot", Role::Viewer)).await.unwrap()
        });
    }
    let made = making.join_all().await;
    let refused = world.store.create_operator_token(token("more", "bot", Role::Viewer)).await.unwrap_err();
    assert!(matches!(refused, NewTokenError::TooMany), "{refused}");
    world.store.revoke_operator_token(&made[0].id, NOW, "x").await.unwrap();
    world.store.create_operator_token(token("more", "bot", Role::Viewer)).await.unwrap();

    for number in 0..40u64 {
        let ended = world
            .store
            .begin_session(session(&number.to_string(), &made[1]), Moment(NOW.0 + number))
            .await
            .unwrap();
        let oldest = number.checked_sub(32).map(|oldest| Digest::of(oldest.to_string().as_bytes()));
        assert_eq!(ended, Vec::from_iter(oldest));
    }
    assert_eq!(world.store.sessions(NOW).await.unwrap().len(), 32);
    assert!(world.store.sessions(later(10)).await.unwrap().is_empty());
    world.store.end_session(Digest::of(b"39")).await.unwrap();
    assert_eq!(world.store.sessions(NOW).await.unwrap().len(), 31);
    world.store.end_sessions_of("bot").await.unwrap();
    assert!(world.store.sessions(NOW).await.unwrap().is_empty());
}

fn entry(actor: &str, subject: &str, at: Moment) -> Entry {
    Entry {
        sequence: 0,
        at,
        actor: actor.to_owned(),
        role: Some("operator".to_owned()),
        token: None,
        source: "10.0.0.7".to_owned(),
        way: "cli".to_owned(),
        action: "device.retire".to_owned(),
        subject: subject.to_owned(),
        outcome: "done".to_owned(),
        detail: String::new(),
        commit: None,
    }
}

async fn verify(store: &Store) -> Result<(), Broken> {
    let mut check = Check::default();
    for AuditRecord { entry, hash } in store.audit_entries(AuditFilter::default(), 1000).await.unwrap() {
        check.older(entry, hash)?;
    }
    check.end()
}

#[tokio::test]
async fn entries_form_one_chain_however_many_write_at_once() {
    let world = World::new();
    let mut writing = tokio::task::JoinSet::new();
    for number in 0..100 {
        let store = world.store.clone();
        writing.spawn(async move {
            store.audit(entry("operator ann", &format!("line-{number}"), NOW)).await.unwrap().entry.sequence
        });
    }
    let numbers: BTreeSet<_> = writing.join_all().await.into_iter().collect();
    assert_eq!(numbers, (1..=100).collect());
    let world = world.reopened();
    world.store.audit(entry("operator ann", "line-x", Moment(u64::MAX))).await.unwrap();
    assert_eq!(verify(&world.store).await, Ok(()));
}

#[tokio::test]
async fn a_change_without_its_entry_is_in_the_log_after_the_next_start() {
    let world = World::new();
    let begun = |subject: &'static str| Begun::new(move || entry("operator ann", subject, NOW));
    // Cut off after the change, whatever it was; as if it was never answered.
    let cut_off = begun("cut-off");
    let made = cut_off.during(world.store.create_operator_token(token("a", "bot", Role::Viewer)));
    let made = made.await.unwrap();
    // Also where the change goes on in another task, and where it is a commit.
    let commit = begun("commit");
    let head = Head { expected: None, next: "c0ffee".to_owned(), by: "operator ann".to_owned() };
    let publication = Publication { at: NOW, head: Some(head), ..Default::default() };
    let store = world.store.clone();
    let publishing = commit.during(async move {
        tokio::spawn(Begun::carried(async move { store.publish(publication).await })).await.unwrap()
    });
    publishing.await.unwrap();
    // Before something that is not in the store.
    world.store.begin(&begun("elsewhere")).await.unwrap();
    // Concluded: there is nothing left of it but its entry, or nothing at all.
    let concluded = begun("concluded");
    concluded.during(world.store.revoke_operator_token(&made.id, NOW, "ann")).await.unwrap();
    world.store.conclude(&concluded, Some(entry("operator ann", "concluded", NOW))).await.unwrap();
    let left_out = begun("left-out");
    left_out.during(world.store.remember("key", Vec::new())).await.unwrap();
    world.store.conclude(&left_out, None).await.unwrap();
    // Nothing was changed: refused, only looked at, or nobody's change.
    let nothing = begun("nothing");
    nothing.during(world.store.revoke_operator_token("nobody", NOW, "ann")).await.unwrap_err();
    nothing.during(world.store.operator_tokens()).await.unwrap();
    nothing.during(world.store.operator_token_used(&made.id, NOW)).await.unwrap();
    let late = Head { expected: None, next: "d00d".to_owned(), by: "operator ann".to_owned() };
    let late = Publication { at: NOW, head: Some(late), ..Default::default() };
    nothing.during(world.store.publish(late)).await.unwrap_err();

    let world = world.reopened();
    let written = world.store.conclude_cut_off().await.unwrap();
    let brief = |entry: &Entry| {
        (entry.subject.clone(), entry.outcome.clone(), entry.commit.clone(), entry.actor.clone(), entry.at)
    };
    let told = |subject: &str, outcome: &str, commit: Option<&str>| {
        let (subject, outcome) = (subject.to_owned(), outcome.to_owned());
        (subject, outcome, commit.map(str::to_owned), "operator ann".to_owned(), NOW)
    };
    assert_eq!(
        written.iter().map(brief).collect::<Vec<_>>(),
        [
            told("cut-off", "interrupted", None),
            told("commit", "done", Some("c0ffee")),
            told("elsewhere", "interrupted", None),
        ]
    );
    let all = world.store.audit_entries(AuditFilter::default(), 10).await.unwrap();
    let subjects: Vec<_> = all.iter().rev().map(|record| record.entry.subject.as_str()).collect();
    assert_eq!(subjects, ["concluded", "cut-off", "commit", "elsewhere"]);
    assert_eq!(verify(&world.store).await, Ok(()));
    // Once.
    assert_eq!(world.store.conclude_cut_off().await.unwrap(), []);
}

#[tokio::test]
async fn entries_are_found_by_who_what_and_when() {
    let world = World::new();
    for (actor, subject, after) in [
        ("operator ann", "a", 1),
        ("operator bob", "a", 2),
        ("operator ann", "b", 3),
        ("operator ann", "a", 4),
    ] {
        world.store.audit(entry(actor, subject, later(after))).await.unwrap();
    }
    let found = async |filter: AuditFilter, limit| {
        let found = world.store.audit_entries(filter, limit).await.unwrap();
        found.into_iter().map(|record| record.entry.sequence).collect::<Vec<_>>()
    };
    let ann = AuditFilter { actor: Some("operator ann".to_owned()), ..AuditFilter::default() };
    assert_eq!(found(AuditFilter::default(), 10).await, [4, 3, 2, 1]);
    assert_eq!(found(ann.clone(), 10).await, [4, 3, 1]);
    assert_eq!(found(AuditFilter { before: Some(4), ..ann.clone() }, 1).await, [3]);
    assert_eq!(found(AuditFilter { subject: Some("a".to_owned()), ..ann.clone() }, 10).await, [4, 1]);
    assert_eq!(found(AuditFilter { since: Some(later(2)), ..ann }, 10).await, [4, 3]);
    let none = found(AuditFilter { actor: Some("'; --".to_owned()), ..AuditFilter::default() }, 10).await;
    assert!(none.is_empty(), "{none:?}");
}

#[tokio::test]
async fn the_database_itself_refuses_to_change_the_log_and_the_chain_shows_who_did_it_all_the_same() {
    let world = World::new();
    for number in 0..5 {
        world.store.audit(entry("operator ann", &number.to_string(), NOW)).await.unwrap();
    }
    let World { store, directory } = world;
    drop(store);
    let file = rusqlite::Connection::open(directory.path().join("margrave.db")).unwrap();
    for sql in [
        "UPDATE audit SET actor = 'operator bob' WHERE sequence = 3",
        "DELETE FROM audit",
        "DELETE FROM audit WHERE sequence = 5",
        "INSERT OR REPLACE INTO audit SELECT * FROM audit WHERE sequence = 5",
        "INSERT INTO audit SELECT 9, at, actor, role, token, source, way, action, subject, outcome, detail, git_commit, \
         hash FROM audit WHERE sequence = 5",
    ] {
        let refused = file.execute_batch(sql).unwrap_err().to_string();
        assert!(refused.contains("append-only"), "{sql}: {refused}");
    }
    // Whoever owns the file can take the guard away; then the hashes tell.
    file.execute_batch(
        "DROP TRIGGER audit_unchanged; UPDATE audit SET actor = 'operator bob' WHERE sequence = 3",
    )
    .unwrap();
    drop(file);
    let store = Store::open(directory.path()).unwrap();
    assert_eq!(verify(&store).await, Err(Broken::Changed(3)));
}

//! Tokens, roles and sessions: how long they last, and what ends them.

use margrave_core::access::Role;
use margrave_wire::operator::{CreateToken, CreatedToken};

use super::*;
use crate::fleet::{AuditQuery, Holder, Refused};

fn wanted(name: &str, role: &str, valid_seconds: Option<u64>) -> CreateToken {
    CreateToken { name: name.to_owned(), role: role.to_owned(), valid_seconds }
}

async fn made(world: &World, name: &str, role: &str) -> CreatedToken {
    world.fleet.create_operator_token(&ann(), wanted(name, role, None)).await.unwrap()
}

#[tokio::test]
async fn a_token_says_who_it_is_and_what_they_may_also_after_a_restart() {
    let world = World::empty().await;
    let CreatedToken { token, secret } = made(&world, "ann", "operator").await;
    let holder = Holder { actor: ann(), role: Role::Operator, token: token.id.clone() };
    assert_eq!(world.fleet.operator_by_token(&secret).await, Ok(holder.clone()));
    for wrong in ["", "mgo_guess", &secret[..secret.len() - 1], &"x".repeat(5000)] {
        assert_eq!(world.fleet.operator_by_token(wrong).await, Err(Refused::Unknown));
    }
    let world = world.restarted().await;
    assert_eq!(world.fleet.operator_by_token(&secret).await, Ok(holder));
    assert_eq!((token.created_by.as_str(), token.state.as_str()), ("operator ann", "usable"));
}

#[tokio::test]
async fn what_no_token_can_be_is_refused_with_every_reason() {
    let world = World::empty().await;
    for (want, places) in [
        (wanted("", "viewer", None), &["/name"][..]),
        (wanted("a\u{202e}b", "Admin", None), &["/name", "/role"]),
        (wanted(&"x".repeat(10_000), "root", Some(0)), &["/name", "/role", "/validSeconds"]),
        (wanted("ann", "viewer", Some(59)), &["/validSeconds"]),
        (wanted("ann", "viewer", Some(3650 * 24 * 3600 + 1)), &["/validSeconds"]),
        (wanted("ann", "viewer", Some(u64::MAX)), &["/validSeconds"]),
    ] {
        let Err(Error::Invalid(broken)) = world.fleet.create_operator_token(&ann(), want.clone()).await
        else {
            panic!("{want:?} was made")
        };
        let found: Vec<_> = broken.iter().map(|violation| violation.place.as_str()).collect();
        assert_eq!(found, places, "{want:?}");
    }
    assert!(world.fleet.operator_tokens().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_token_that_expired_or_was_revoked_is_out_at_once_and_so_are_its_pages() {
    let world = World::empty().await;
    made(&world, "root", "admin").await;
    let brief = world.fleet.create_operator_token(&ann(), wanted("ann", "viewer", Some(60))).await.unwrap();
    let other = made(&world, "bob", "viewer").await;
    let sessions = [
        world.fleet.create_session(&brief.token.id).await.unwrap(),
        world.fleet.create_session(&other.token.id).await.unwrap(),
    ];
    assert!(world.fleet.session(&sessions[0]).await.is_some());
    world.pass(60);
    assert_eq!(world.fleet.operator_by_token(&brief.secret).await, Err(Refused::Expired));
    assert_eq!(world.fleet.session(&sessions[0]).await, None);
    assert!(world.fleet.create_session(&brief.token.id).await.is_err());

    assert!(world.fleet.session(&sessions[1]).await.is_some());
    let revoked = world.fleet.revoke_operator_token(&ann(), &other.token.id).await.unwrap();
    assert_eq!(revoked.state, "revoked");
    assert_eq!(world.fleet.operator_by_token(&other.secret).await, Err(Refused::Revoked));
    assert_eq!(world.fleet.session(&sessions[1]).await, None);
    let world = world.restarted().await;
    assert_eq!(world.fleet.operator_by_token(&other.secret).await, Err(Refused::Revoked));
    assert_eq!(world.fleet.session(&sessions[1]).await, None);
    // Long after, nobody remembers that there was one.
    world.pass(91 * 24 * 3600);
    world.fleet.sweep().await.unwrap();
    assert_eq!(world.fleet.operator_by_token(&other.secret).await, Err(Refused::Unknown));
    assert_eq!(world.fleet.operator_tokens().await.unwrap().len(), 1);
}

#[tokio::test]
async fn the_last_admin_cannot_be_revoked_and_is_told_what_to_do_first() {
    let world = World::empty().await;
    let only = made(&world, "ann", "admin").await;
    made(&world, "bob", "operator").await;
    let refused = world.fleet.revoke_operator_token(&ann(), &only.token.id).await.unwrap_err();
    assert!(matches!(refused, Error::Conflict { .. }), "{refused}");
    assert!(refused.to_string().contains("make one for an admin first"), "{refused}");
    assert!(world.fleet.operator_by_token(&only.secret).await.is_ok());
    made(&world, "eve", "admin").await;
    world.fleet.revoke_operator_token(&ann(), &only.token.id).await.unwrap();
    let unknown = world.fleet.revoke_operator_token(&ann(), "nonsense").await.unwrap_err();
    assert!(matches!(unknown, Error::NotFound { .. }), "{unknown}");
}

#[tokio::test]
async fn sessions_last_a_week_and_end_one_by_one_or_all_of_a_person() {
    let world = World::empty().await;
    let (first, second) = (made(&world, "ann", "viewer").await, made(&world, "ann", "operator").await);
    let other = made(&world, "bob", "viewer").await;
    let mut sessions = Vec::new();
    for token in [&first, &first, &second, &other] {
        sessions.push(world.fleet.create_session(&token.token.id).await.unwrap());
    }
    let alive = async || {
        let mut alive = Vec::new();
        for session in &sessions {
            alive.push(world.fleet.session(session).await.is_some());
        }
        alive
    };
    assert_eq!(alive().await, [true; 4]);
    world.fleet.end_session(&sessions[0]).await.unwrap();
    assert_eq!(alive().await, [false, true, true, true]);
    world.fleet.end_sessions_of(&first.token.id).await.unwrap();
    assert_eq!(alive().await, [false, false, false, true]);
    world.pass(7 * 24 * 3600);
    assert_eq!(alive().await, [false; 4]);
    world.fleet.sweep().await.unwrap();
}

#[tokio::test]
async fn the_use_of_a_token_is_written_down_once_an_hour() {
    let world = World::empty().await;
    let token = made(&world, "ann", "viewer").await;
    let used = async || world.fleet.operator_tokens().await.unwrap()[0].last_used.clone();
    assert_eq!(used().await, None);
    world.fleet.operator_by_token(&token.secret).await.unwrap();
    let first = used().await;
    assert!(first.is_some());
    world.pass(3599);
    world.fleet.operator_by_token(&token.secret).await.unwrap();
    assert_eq!(used().await, first);
    world.pass(1);
    world.fleet.operator_by_token(&token.secret).await.unwrap();
    assert_ne!(used().await, first);
}

#[tokio::test]
async fn what_is_followed_ends_with_the_token() {
    let world = World::empty().await;
    made(&world, "root", "admin").await;
    let token = made(&world, "ann", "viewer").await;
    let fleet = Arc::clone(&world.fleet);
    let id = token.token.id.clone();
    let following = tokio::spawn(async move { fleet.token_ended(&id).await });
    // Others come and go.
    let other = made(&world, "bob", "viewer").await;
    world.fleet.revoke_operator_token(&ann(), &other.token.id).await.unwrap();
    assert!(!following.is_finished());
    world.fleet.revoke_operator_token(&ann(), &token.token.id).await.unwrap();
    tokio::time::timeout(std::time::Duration::from_secs(20), following).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_question_to_the_log_that_makes_no_sense_is_refused_by_field() {
    let world = World::empty().await;
    let text = |text: &str| Some(text.to_owned());
    for (query, place) in [
        (AuditQuery { since: text("yesterday"), ..AuditQuery::default() }, "/since"),
        (AuditQuery { after: text("-1"), ..AuditQuery::default() }, "/after"),
        (AuditQuery { limit: Some(0), ..AuditQuery::default() }, "/limit"),
        (AuditQuery { limit: Some(1001), ..AuditQuery::default() }, "/limit"),
        (AuditQuery { actor: text(&"x".repeat(1001)), ..AuditQuery::default() }, "/actor"),
    ] {
        let Err(Error::Invalid(broken)) = world.fleet.audit(query.clone()).await else {
            panic!("{query:?} was answered")
        };
        assert_eq!(broken[0].place, place);
    }
    assert!(world.fleet.audit(AuditQuery::default()).await.unwrap().items.is_empty());
}

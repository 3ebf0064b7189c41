//! What operators ask of a device itself, from the wish to the manifest and back.

use bytes::Bytes;
use margrave_core::asked::Asked;
use margrave_wire::schedule::ScheduleBody;
use margrave_wire::{Dialect, g2, operator};

use super::{World, ann, capabilities, client, device, on};
use crate::fleet::Error;
use crate::fleet::event::time;

fn hold(seconds: u64) -> operator::HoldDevice {
    operator::HoldDevice { reason: "batch 17 runs".to_owned(), seconds }
}

impl World {
    fn asked(&self, of: &str) -> Asked {
        let live = self.fleet.manifest(&client(of), Dialect::Miaf).unwrap();
        g2::manifest::read(&live.body).unwrap().manifest.asked().clone()
    }

    async fn seen(&self, name: &str) -> operator::Device {
        self.fleet.device(&device(name)).await.unwrap()
    }

    async fn says_body(&self, name: &str, change: impl FnOnce(&mut serde_json::Value)) {
        let mut body: serde_json::Value =
            serde_json::from_slice(&capabilities(name, "64Gi", &["compose"])).unwrap();
        change(&mut body);
        let body = Bytes::from(body.to_string());
        let parsed = g2::capabilities::read(&body).unwrap();
        self.fleet.put_capabilities(&client(name), parsed, body).await.unwrap();
    }
}

#[tokio::test]
async fn a_hold_stands_in_the_manifest_until_it_is_taken_back() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    world.device("line-2", &[]).await;
    let before = (world.version("line-1"), world.version("line-2"));
    let shown = world.fleet.hold_device(&ann(), &device("line-1"), &hold(7200)).await.unwrap();
    let asked = world.asked("line-1").hold.unwrap();
    assert_eq!((asked.holder.as_str(), asked.reason.as_str()), ("operator ann", "batch 17 runs"));
    assert_eq!((world.version("line-1"), world.version("line-2")), (before.0 + 1, before.1));
    assert_eq!(shown.asked_hold.unwrap().until, time(asked.until));
    assert_eq!(shown.holds, [], "what it does it says itself");
    // With everything else that its manifest says, also after a restart.
    let world = world.restarted().await;
    world.put("greeter", on(&["line-1"])).await.unwrap();
    assert_eq!(world.asked("line-1").hold, Some(asked));
    assert_eq!(world.workloads("line-1").await.len(), 1);
    world.fleet.release_device(&ann(), &device("line-1")).await.unwrap();
    assert!(world.asked("line-1").is_nothing());
    let refused = world.fleet.release_device(&ann(), &device("line-1")).await.unwrap_err();
    assert!(refused.to_string().contains("no operator holds"), "{refused}");
    let kinds: Vec<String> =
        world.fleet.recent_events(2).await.unwrap().into_iter().map(|event| event.kind).collect();
    assert!(kinds.contains(&"device.release-asked".to_owned()), "{kinds:?}");
}

#[tokio::test]
async fn a_hold_that_is_over_makes_no_manifest_and_stands_in_no_later_one() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    world.fleet.hold_device(&ann(), &device("line-1"), &hold(60)).await.unwrap();
    let version = world.version("line-1");
    world.pass(61);
    assert_eq!(world.seen("line-1").await.asked_hold, None);
    world.says("line-1", "32Gi", &["compose"]).await;
    assert_eq!(world.version("line-1"), version, "the device knows by itself");
    world.put("greeter", on(&["line-1"])).await.unwrap();
    assert!(world.asked("line-1").is_nothing());
}

#[tokio::test]
async fn what_cannot_be_asked_is_refused_with_the_reason() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    let ask = |want: operator::HoldDevice| {
        let fleet = world.fleet.clone();
        async move { fleet.hold_device(&ann(), &device("line-1"), &want).await.unwrap_err().to_string() }
    };
    assert!(ask(hold(86_401)).await.contains("for 24h at most"));
    assert!(ask(hold(0)).await.contains("for a second at least"));
    let silent = operator::HoldDevice { reason: " ".to_owned(), seconds: 60 };
    assert!(ask(silent).await.contains("say why"));
    let none = ScheduleBody { hold_max_seconds: Some(0), ..ScheduleBody::default() };
    world.fleet.put_schedule(&ann(), "fleet", &none).await.unwrap();
    assert!(ask(hold(60)).await.contains("may not be held back"));
    // Somebody else's agent.
    world
        .says_body("line-1", |body| drop(body.as_object_mut().unwrap().remove("x-margrave-extensions")))
        .await;
    assert_eq!(world.seen("line-1").await.own_agent, Some(false));
    let refused = world.fleet.look_again(&ann(), &device("line-1")).await.unwrap_err();
    assert!(refused.to_string().contains("does not run our agent"), "{refused}");
    world.fleet.retire(&ann(), &device("line-1")).await.unwrap();
    let refused = world.fleet.look_again(&ann(), &device("line-1")).await.unwrap_err();
    assert!(matches!(&refused, Error::Conflict { message } if message.contains("retired")), "{refused}");
    let unknown = world.fleet.look_again(&ann(), &device("line-7")).await.unwrap_err();
    assert!(matches!(unknown, Error::NotFound { .. }), "{unknown}");
}

#[tokio::test]
async fn a_look_is_done_when_the_device_says_so_and_not_before() {
    let world = World::new().await;
    world.device("line-1", &[]).await;
    let shown = world.fleet.look_again(&ann(), &device("line-1")).await.unwrap();
    let look = shown.asked_look.unwrap();
    assert_eq!((look.by.as_str(), look.done), ("operator ann", false));
    let first = world.asked("line-1").look;
    world.fleet.look_again(&ann(), &device("line-1")).await.unwrap();
    let number = world.asked("line-1").look;
    assert!(number > first, "another number, within the same moment too");
    let version = world.version("line-1");
    world.says_body("line-1", |body| body["x-margrave-extensions"]["looked"] = first.into()).await;
    assert!(!world.seen("line-1").await.asked_look.unwrap().done);
    world.says_body("line-1", |body| body["x-margrave-extensions"]["looked"] = number.into()).await;
    assert!(world.seen("line-1").await.asked_look.unwrap().done);
    assert_eq!(world.version("line-1"), version, "nothing follows from that");
    assert_eq!(world.fleet.recent_events(1).await.unwrap()[0].kind, "device.looked");
}

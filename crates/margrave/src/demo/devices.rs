//! The demo's plant: devices with names and labels, each a real agent in this process, and what people break of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use margrave_agent::identity::{self, Identity, IdentityError};
use margrave_agent::launch::RuntimeChoice;
use margrave_agent::runtime::Runtime;
use margrave_agent::runtime::simulated::Simulation;
use margrave_core::digest::Digest;
use margrave_core::id::{DeviceId, DeviceRef};
use margrave_server::Server;
use margrave_server::drill::{Drill, Fault};
use margrave_server::fleet::{Actor, Fleet};
use margrave_wire::operator::CreateJoinToken;
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::task::JoinSet;

use super::engine::Choice;
use super::member::{self, Member, Order};
use super::samples;
use crate::exit::{Result, Trouble};

/// How long agents get to write down where they are.
const STOP_TIME_MAX: Duration = Duration::from_secs(15);

/// One device of the plant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
}

/// So many devices of a plausible plant: two lines with presses, paint and packing, a gate; then more cells.
pub(crate) fn plan(number: u16) -> Vec<Plan> {
    let named = [
        ("press-1", "nord", "press"),
        ("press-2", "nord", "press"),
        ("paint-1", "nord", "paint"),
        ("pack-1", "nord", "pack"),
        ("pack-2", "sued", "pack"),
        ("gate-1", "sued", "gate"),
    ];
    let device = |name: String, site: &str, line: &str| Plan {
        name,
        labels: [("site", site), ("line", line)]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
    };
    let named = named.into_iter().map(|(name, site, line)| device(name.to_owned(), site, line));
    let more = (1..).map(|number| {
        device(format!("cell-{number}"), if number % 2 == 0 { "nord" } else { "sued" }, "cell")
    });
    named.chain(more).take(usize::from(number)).collect()
}

/// The running devices.
pub(crate) struct Plant {
    members: Vec<Member>,
    /// Breaks devices when it is asked to; ends with the plant.
    breaking: Option<tokio::task::JoinHandle<()>>,
}

impl Plant {
    /// Joins and starts all devices at once. Those that joined in an earlier run just continue.
    pub(crate) async fn start(server: &Server, data: &Path, plan: &[Plan], choice: &Choice) -> Result<Plant> {
        let mut joining = JoinSet::new();
        for (number, device) in plan.iter().enumerate() {
            let place = data.join("devices").join(&device.name);
            joining.spawn(join(server.fleet(), place, number, device.clone()));
        }
        let mut joined = Vec::new();
        while let Some(device) = joining.join_next().await {
            joined.push(device.map_err(|error| Trouble::because("a device could not be started", &error))??);
        }
        joined.sort_by_key(|device| device.number);

        let mut plant = Plant { members: Vec::new(), breaking: None };
        for device in joined {
            let name = device.device.to_string();
            let runtime = runtime(&device, data, choice);
            let started = Member::start(name.clone(), device.place, runtime, server.addresses().device).await;
            plant.members.push(started.map_err(|error| {
                Trouble::because(format!("the demo's device {name} could not start"), &error)
            })?);
        }
        Ok(plant)
    }

    /// From now on devices are broken as people ask for it.
    pub(crate) fn take_drills(&mut self, fleet: Arc<Fleet>, mut asked: mpsc::Receiver<Drill>) {
        let known =
            |member: &Member| (member.name.clone(), (member.orders.clone(), Arc::clone(&member.line)));
        let members: BTreeMap<_, _> = self.members.iter().map(known).collect();
        self.breaking = Some(tokio::spawn(async move {
            let mut under_way = JoinSet::new();
            while let Some(Drill { device, fault }) = asked.recv().await {
                if let Some((orders, line)) = members.get(&device) {
                    let broken = strike(Arc::clone(&fleet), device, fault, orders.clone(), Arc::clone(line));
                    under_way.spawn(broken);
                }
                while under_way.try_join_next().is_some() {}
            }
        }));
    }

    /// Stops the agents; what they run keeps running. Their runtimes are left for whoever clears up.
    pub(crate) async fn stop(self) -> Vec<Arc<dyn Runtime>> {
        if let Some(breaking) = self.breaking {
            breaking.abort();
        }
        let mut ending: JoinSet<_> = self.members.into_iter().map(Member::end).collect();
        let mut runtimes = Vec::new();
        let ended = async {
            while let Some(launch) = ending.join_next().await {
                match launch {
                    Ok(launch) => match member::runtime_of(launch).await {
                        Ok(runtime) => runtimes.push(runtime),
                        Err(error) => {
                            tracing::error!(%error, "the runtime of a device cannot be opened to clear up")
                        }
                    },
                    Err(error) => tracing::error!(%error, "a device of the demo did not end"),
                }
            }
        };
        if tokio::time::timeout(STOP_TIME_MAX, ended).await.is_err() {
            tracing::error!("a device of the demo takes too long to end; it is left behind");
        }
        runtimes
    }
}

/// How long a device that is healed gets to be heard of again. One that is not is still told to be: it is on its own then.
const HEARD_AGAIN_MAX: Duration = Duration::from_secs(60);
/// How long a device that was killed is gone.
const GONE_FOR: Duration = Duration::from_secs(10);
/// How long a fault waits that is for the middle of a change.
const CHANGE_AWAITED_MAX: Duration = Duration::from_secs(600);
const SKEW_MILLIS: i64 = 2 * 3600 * 1000;

async fn strike(
    fleet: Arc<Fleet>,
    device: String,
    fault: Fault,
    orders: mpsc::UnboundedSender<Order>,
    line: Arc<watch::Sender<bool>>,
) {
    tracing::info!(device, fault = fault.as_str(), "broken on purpose");
    // A device that has ended meanwhile hears nothing, which is no matter.
    let order = |order: Order| orders.send(order).unwrap_or_default();
    let Ok(place) = DeviceRef::parse(&device) else { return };
    let lasts = fault.lasts().unwrap_or_default();
    let refusal;
    let how = match fault {
        Fault::CutNetwork => {
            line.send_replace(true);
            tokio::time::sleep(lasts).await;
            line.send_replace(false);
            order(Order::Ask);
            "its network works again"
        }
        Fault::SkewClock => {
            order(Order::Skew(SKEW_MILLIS));
            // What it says when it is asked to look shows its clock.
            look(&fleet, &place).await;
            tokio::time::sleep(lasts).await;
            order(Order::Skew(0));
            look(&fleet, &place).await;
            "its clock is right again"
        }
        Fault::CorruptDownload => {
            let (heard, refused) = oneshot::channel();
            order(Order::Damage(heard));
            match tokio::time::timeout(CHANGE_AWAITED_MAX, refused).await {
                Ok(Ok(words)) => {
                    refusal = format!("a download arrived damaged, and it asks for it again: {words}");
                    &refusal
                }
                Ok(Err(_)) | Err(_) => "it downloaded nothing, so nothing was damaged",
            }
        }
        Fault::SpoilDisk => {
            order(Order::Kill { back_after: Duration::from_secs(1), spoil: true });
            "it was started anew, and fetches what was overwritten"
        }
        Fault::KillDuringUpdate => {
            let mut events = fleet.subscribe();
            let busy = async {
                loop {
                    match events.recv().await {
                        Ok(event) if event.device.as_deref() == Some(&device) && is_change(&event.text) => {
                            return;
                        }
                        Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
                        Err(broadcast::error::RecvError::Closed) => return,
                    }
                }
            };
            match tokio::time::timeout(CHANGE_AWAITED_MAX, busy).await {
                Ok(()) => {
                    order(Order::Kill { back_after: GONE_FOR, spoil: false });
                    tokio::time::sleep(GONE_FOR).await;
                    "it was killed in the middle of a change, and goes on where it was"
                }
                Err(_) => "nothing was changed on it, so it was not killed",
            }
        }
    };
    let heard = fleet.heard_again(&place, HEARD_AGAIN_MAX).await;
    if let Err(error) = fleet.note_back(&place, how).await {
        tracing::warn!(device, heard, %error, "that a device is back could not be written down");
    }
}

/// Has a device say how everything stands.
async fn look(fleet: &Fleet, device: &DeviceRef) {
    let demo = Actor { name: "demo".to_owned() };
    if let Err(error) = fleet.look_again(&demo, device).await {
        tracing::warn!(%device, %error, "a device of the demo was not asked to look");
    }
}

/// Something is being started or changed there.
fn is_change(text: &str) -> bool {
    text.contains("INSTALLING") || text.contains("UPDATING")
}

/// A device with an identity.
struct Joined {
    number: usize,
    device: DeviceId,
    place: PathBuf,
}

async fn join(
    fleet: Arc<margrave_server::fleet::Fleet>,
    place: PathBuf,
    number: usize,
    plan: Plan,
) -> Result<Joined> {
    let failed = |error: &(dyn std::error::Error + 'static)| {
        Trouble::because(format!("the demo's device {} could not join", plan.name), error)
    };
    let device = DeviceId::parse(&plan.name).map_err(|error| failed(&error))?;
    match Identity::load(&place) {
        Ok(_) => {}
        Err(IdentityError::NotJoined) => {
            let want = CreateJoinToken {
                device: Some(plan.name.clone()),
                labels: plan.labels.clone(),
                valid_seconds: Some(600),
                git: false,
            };
            let actor = Actor { name: "demo".to_owned() };
            let token = fleet.create_join_token(&actor, want).await.map_err(|error| failed(&error))?;
            identity::join(&place, &token.url, &token.token, &token.pin)
                .await
                .map_err(|error| failed(&error))?;
        }
        Err(error) => return Err(failed(&error)),
    }
    Ok(Joined { number, device, place })
}

/// What one device runs things with. Every simulated device has its own rhythm, and the same one in every run.
fn runtime(device: &Joined, data: &Path, choice: &Choice) -> RuntimeChoice {
    match choice {
        Choice::Containers(containers) => containers.runtime(agent_label(data, &device.device)),
        Choice::Simulated(_) => {
            let simulation = Simulation::new(device.number as u64 + 1);
            RuntimeChoice::Simulated(Simulation { drills: samples::drills(), ..simulation })
        }
    }
}

/// What this device's containers are marked with. Two demos on one engine have devices of the same names, and
/// neither may take the other's containers for its own.
fn agent_label(data: &Path, device: &DeviceId) -> DeviceId {
    let demo = Digest::of(data.as_os_str().as_encoded_bytes());
    DeviceId::parse(&format!("demo-{}/{device}", &demo.hex()[..12])).expect("two device ids make a path")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plant_has_different_devices_of_valid_names() {
        let plan = plan(64);
        assert_eq!(plan.len(), 64);
        assert_eq!(plan[0].name, "press-1");
        let names: std::collections::BTreeSet<&str> =
            plan.iter().map(|device| device.name.as_str()).collect();
        assert_eq!(names.len(), 64);
        for device in &plan {
            DeviceId::parse(&device.name).unwrap();
            assert!(device.labels.contains_key("site") && device.labels.contains_key("line"));
        }
    }

    #[test]
    fn two_demos_on_one_engine_keep_their_containers_apart() {
        let device = DeviceId::parse("press-1").unwrap();
        assert_ne!(agent_label(Path::new("/a"), &device), agent_label(Path::new("/b"), &device));
        assert_eq!(agent_label(Path::new("/a"), &device), agent_label(Path::new("/a"), &device));
    }
}

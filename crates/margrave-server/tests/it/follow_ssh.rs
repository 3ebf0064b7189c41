//! A remote over SSH: a real `sshd` of this machine, with its own host key and its own list of who may come in.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use margrave_server::Config;
use margrave_server::fleet::{FETCH_BYTES_MAX, Follow};

use crate::follow::{Remote, at, labels, until};
use crate::line::DEADLINE;
use crate::plant::Plant;

struct Sshd {
    folder: PathBuf,
    port: u16,
    child: Child,
}

impl Drop for Sshd {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Where `sshd` is; it wants to be called by its whole name.
fn program() -> Option<PathBuf> {
    let found =
        ["/usr/sbin/sshd", "/usr/local/sbin/sshd"].map(PathBuf::from).into_iter().find(|path| path.exists());
    if found.is_none() {
        assert_ne!(
            std::env::var("CI").as_deref(),
            Ok("true"),
            "in CI nothing may be missing: sshd is not installed"
        );
        #[allow(clippy::print_stderr, reason = "a skipped test says so")]
        {
            eprintln!("skipped: sshd is not installed");
        }
    }
    found
}

fn make_key(path: &Path) -> String {
    let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(path).status();
    assert!(made.unwrap().success());
    let public = std::fs::read_to_string(path.with_extension("pub")).unwrap();
    public.split_whitespace().take(2).collect::<Vec<_>>().join(" ")
}

impl Sshd {
    /// One that lets the owner of `key` in, as whoever runs this.
    fn start(folder: &Path, port: Option<u16>) -> Option<Sshd> {
        let program = program()?;
        // Only root has to have it, and only root can make it.
        drop(std::fs::create_dir_all("/run/sshd"));
        let port = port.unwrap_or_else(|| {
            let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            free.local_addr().unwrap().port()
        });
        let shown = folder.display();
        let config = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {shown}/host\nPidFile none\nAuthorizedKeysFile \
             {shown}/allowed\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n\
             KbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\n"
        );
        std::fs::write(folder.join("sshd.conf"), config).unwrap();
        let log = std::fs::File::create(folder.join("sshd.log")).unwrap();
        let child = Command::new(program)
            .args(["-D", "-e", "-f"])
            .arg(folder.join("sshd.conf"))
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let sshd = Sshd { folder: folder.to_owned(), port, child };
        let until = Instant::now() + DEADLINE;
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            let log = || std::fs::read_to_string(sshd.folder.join("sshd.log"));
            assert!(Instant::now() < until, "sshd does not answer: {:?}", log());
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(sshd)
    }

    fn follow(&self, repository: &Path, key: &str, hosts: &str) -> Follow {
        let user = Command::new("id").arg("-un").output().unwrap().stdout;
        let user = String::from_utf8(user).unwrap();
        Follow {
            url: format!("ssh://{}@127.0.0.1:{}{}", user.trim(), self.port, repository.display()),
            branch: "fleet".to_owned(),
            every: Duration::from_millis(100),
            token_file: None,
            authority: None,
            ssh_key: Some(self.folder.join(key)),
            known_hosts: Some(self.folder.join(hosts)),
            hook_token_file: None,
            bytes_max: FETCH_BYTES_MAX,
        }
    }
}

async fn following(follow: Follow) -> Plant {
    assert_eq!(follow.check(), Ok(()));
    Plant::of(|config| Config { follow: Some(follow), ..config }).await
}

#[tokio::test]
async fn a_remote_over_ssh_is_believed_by_its_host_key_and_lets_a_key_in() {
    let Some(remote) = Remote::new().await else { return };
    let first = remote.say("{line: '1'}", false).await;
    // A space, as people have in the names of their folders.
    let folder = remote.folder.path().join("ssh d");
    std::fs::create_dir(&folder).unwrap();
    let host = make_key(&folder.join("host"));
    let key = make_key(&folder.join("key"));
    let stranger = make_key(&folder.join("stranger"));
    std::fs::write(folder.join("allowed"), format!("restrict {key}\n")).unwrap();
    // Its own files have no space: it takes one for the next word.
    let own = remote.folder.path().join("sshd");
    std::fs::create_dir(&own).unwrap();
    for name in ["host", "allowed"] {
        std::fs::copy(folder.join(name), own.join(name)).unwrap();
    }
    let Some(mut sshd) = Sshd::start(&own, None) else { return };
    sshd.folder = folder.clone();
    let named = |key: &str| format!("[127.0.0.1]:{} {key}\n", sshd.port);
    std::fs::write(folder.join("hosts"), named(&host)).unwrap();
    std::fs::write(folder.join("other-hosts"), named(&stranger)).unwrap();
    std::fs::write(folder.join("no-hosts"), "").unwrap();

    for (key, hosts, told) in [
        ("key", "other-hosts", "another key than --follow-known-hosts says"),
        ("key", "no-hosts", "not in --follow-known-hosts"),
        ("stranger", "hosts", "does not let the key of --follow-ssh-key in"),
    ] {
        let plant = following(sshd.follow(&remote.bare(), key, hosts)).await;
        let intent = until(&plant, told, |intent| intent.away_because.is_some()).await;
        let why = intent.away_because.unwrap();
        assert!(why.contains(told), "{why}");
        assert_ne!(intent.commit.as_deref(), Some(first.as_str()), "nothing is taken from there");
    }
    let plant = following(sshd.follow(&remote.folder.path().join("nothing.git"), "key", "hosts")).await;
    let intent = until(&plant, "no repository", |intent| intent.away_because.is_some()).await;
    let why = intent.away_because.unwrap();
    assert!(why.contains("there is no repository at this address"), "{why}");

    let plant = following(sshd.follow(&remote.bare(), "key", "hosts")).await;
    until(&plant, "the first commit", at(&first)).await;
    plant.join("press.42").await;
    assert_eq!(labels(&plant).await, r#"{"line": "1"}"#);

    // Away, and back.
    let port = sshd.port;
    drop(sshd);
    let intent = until(&plant, "that it is away", |intent| intent.away_because.is_some()).await;
    assert!(intent.away_because.unwrap().contains("nobody answers there"));
    assert_eq!(intent.commit.as_deref(), Some(first.as_str()));
    let second = remote.say("{line: '2'}", false).await;
    let _sshd = Sshd::start(&own, Some(port)).unwrap();
    let intent =
        until(&plant, "the second commit", |intent| at(&second)(intent) && intent.away_since.is_none()).await;
    assert_eq!(intent.away_because, None);
    assert_eq!(labels(&plant).await, r#"{"line": "2"}"#);
}

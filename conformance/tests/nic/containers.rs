// SPDX-License-Identifier: BSD-2-Clause
//! Interfaces in containers: a process of a pod, with a user and a network namespace that the pod made itself, no
//! capability, and no more of the daemon than its socket in a folder that is mounted into the pod, twice.
//!
//! ```text
//!   the machine                         the pod: its root is an unprivileged user outside
//!   daemon == socket ------------------ /mnt/unetmapd.sock, /run/unetmap/unetmapd.sock
//!   [vb] ------------------------------ [va]
//! ```

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use conformance::home::{Guard, summary, wait_within};
use conformance::net::{CABLE, Net, frames, public_copy, set_policy};
use conformance::{Home, LIMIT, isolated_with_interfaces, program, until};

/// The user `nobody` on every system, or at least a user and a group without privileges.
const NOBODY: u32 = 65534;
/// Frames that cross each way.
const FRAMES: usize = 500;

/// Namespaces of user, network and mounts, held by a process that sleeps.
struct Pod {
    holder: Guard,
    programs: PathBuf,
}

impl Pod {
    /// Creates a pod as an unprivileged user; prints why and returns `None` if this machine does not allow that.
    fn new(home: &Home) -> Option<Pod> {
        let programs = home.folder().join("public");
        fs::create_dir_all(&programs).expect("a folder");
        for path in [home.folder(), &programs] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("our own folder");
        }
        for name in [program("pkt-gen"), program("bridge"), PathBuf::from(env!("CARGO_BIN_EXE_try_open"))] {
            public_copy(&programs, &name.display().to_string());
        }
        let nobody = [format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")];
        let mut command = Command::new("setpriv");
        command.args(nobody).args(["--clear-groups", "--inh-caps=-all"]);
        command.args(["unshare", "--user", "--map-root-user", "--net", "--mount", "sh", "-c"]);
        command
            .arg(
                "mount --bind \"$0\" /mnt && mount -t tmpfs none /run && mkdir /run/unetmap && \
                 mount --bind \"$0\" /run/unetmap && echo ready >\"$0/ready\"; exec sleep 600",
            )
            .arg(home.folder().join("shared"));
        let shared = home.folder().join("shared");
        fs::create_dir_all(&shared).expect("a folder");
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o777)).expect("our own folder");
        let ready = shared.join("ready");
        let _ = fs::remove_file(&ready);
        let mut holder = Guard::spawn(command.stdout(Stdio::null()).stderr(Stdio::null()));
        let mut failed = false;
        until("the pod is made", || {
            failed = holder.0.try_wait().expect("our child").is_some();
            failed || ready.exists()
        });
        if failed {
            summary(
                "skipped: a user without privileges cannot make namespaces here (or there is no setpriv, or unshare)",
            );
            return None;
        }
        Some(Pod { holder, programs })
    }

    fn pid(&self) -> String {
        self.holder.0.id().to_string()
    }

    /// The inode of its network namespace.
    fn netns(&self) -> u64 {
        fs::metadata(format!("/proc/{}/ns/net", self.pid())).expect("a process").ino()
    }

    /// Runs `ip` in its network namespace, as container runtimes do.
    fn ip(&self, words: &str) {
        let pid = self.pid();
        let args = ["-t", &pid, "-n", "ip"].into_iter().chain(words.split(' '));
        assert!(Command::new("nsenter").args(args).status().expect("nsenter runs").success(), "{words}");
    }

    /// A program in the pod: its root, without any capability.
    fn command(&self, name: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.pid(), "-U", "-n", "-m", "-S", "0", "-G", "0", "--", "setpriv"]);
        command.args(["--no-new-privs", "--inh-caps=-all", "--bounding-set=-all", "--"]).arg(self.programs.join(name));
        command.env("UNETMAP_SOCKET", "/mnt/unetmapd.sock");
        command
    }

    /// The output of `try_open` for `spec`.
    fn try_open(&self, spec: &str) -> String {
        let output = self.command("try_open").arg(spec).output().expect("it runs");
        let printed = String::from_utf8(output.stdout).expect("text");
        assert!(printed.contains("uid 0, capabilities 0000000000000000"), "{printed}");
        printed
    }
}

/// The far end of a cable, and a daemon whose socket is also in the folder that pods see.
fn set_up(home: &Home, policy: &str) -> Option<Net> {
    let net = Net::new(home, policy, CABLE)?;
    let shared = home.folder().join("shared");
    fs::create_dir_all(&shared).expect("a folder");
    let _ = fs::remove_file(shared.join("unetmapd.sock"));
    fs::hard_link(home.socket(), shared.join("unetmapd.sock")).expect("a link to the socket");
    Some(net)
}

/// A policy with one rule.
fn rule(who: &str, access: &str) -> String {
    format!("defaults = false\n[[rule]]\nports = [\"v*\"]\n{who}\naccess = \"{access}\"\n")
}

/// Frames cross both ways between the pod's interface and the far end.
#[track_caller]
fn assert_works(pod: &Pod, net: &Net) {
    let tap = net.tap();
    let count = FRAMES.to_string();
    let quiet = |mut command: Command, way: &str| {
        let args = ["-i", "netmap:va", "-w", "0", "-n", &count, "-f", way];
        Guard::spawn(command.args(args).stdout(Stdio::null()).stderr(Stdio::null()))
    };
    let mut sender = quiet(pod.command("pkt-gen"), "tx");
    let mut seen = 0;
    until("frames leave the pod", || {
        while tap.next_of_any(Duration::ZERO).is_some() {
            seen += 1;
        }
        seen >= FRAMES
    });
    assert!(wait_within(&mut sender.0, LIMIT).is_some_and(|status| status.success()));
    let mut receiver = quiet(pod.command("pkt-gen"), "rx");
    let sent = frames(&[60; 50], 0);
    until("frames come to the pod", || {
        tap.send_all(&sent);
        receiver.0.try_wait().expect("our child").is_some_and(|status| status.success())
    });
}

#[test]
fn a_pod_opens_interfaces_of_its_own_namespace() {
    isolated_with_interfaces(|home| {
        let Some(net) = set_up(home, "") else { return };
        let Some(pod) = Pod::new(home) else { return };
        net.near.ip(&["link", "set", "va", "netns", &pod.pid()]).expect("an interface");
        pod.ip("link set va up");
        let here = pod.netns();
        for access in ["direct", "mediated"] {
            for who in [
                format!("users = [{NOBODY}]"),
                format!("groups = [{NOBODY}]"),
                format!("users = [\"*\"]\nnetns = {here}"),
                format!("users = [\"*\"]\nnetns = \"/proc/{}/ns/net\"", pod.pid()),
            ] {
                set_policy(home, &rule(&who, access));
                for spec in ["netmap:va", "netmap:va-0/R", "netmap:va^", "netmap:va*"] {
                    let printed = pod.try_open(spec);
                    assert!(printed.starts_with("opened"), "{who}, {access}, {spec}: {printed}");
                    until("it is closed", || home.snapshot().regions.is_empty());
                }
            }
            assert_works(&pod, &net);
        }
        // The same socket at the system's path, in a folder that belongs to nobody here: no variable is needed.
        let mut command = pod.command("try_open");
        let output = command.env_remove("UNETMAP_SOCKET").arg("netmap:va").output().expect("it runs");
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(printed.starts_with("opened"), "{printed}{}", String::from_utf8_lossy(&output.stderr));
        // The pod's root has no privilege outside, and it cannot open interfaces of other namespaces.
        for who in [
            "users = [\"root\"]".to_owned(),
            "groups = [\"root\"]".to_owned(),
            format!("users = [\"*\"]\nnetns = {}", here + 1),
            "users = [\"*\"]\nnetns = \"host\"".to_owned(),
        ] {
            set_policy(home, &rule(&who, "direct"));
            let printed = pod.try_open("netmap:va");
            assert!(printed.starts_with("refused 13"), "{who}: {printed}");
        }
        // The interface is closed beside other work.
        until("nothing is left", || home.snapshot().regions.is_empty());
    });
}

/// A pod's bridge forwards the packets of its stack; when the pod is killed, the daemon keeps running.
#[test]
fn a_bridge_in_a_pod_works_and_leaves_nothing_when_killed() {
    isolated_with_interfaces(|home| {
        for access in ["direct", "mediated"] {
            let Some(mut net) = set_up(home, &rule(&format!("users = [{NOBODY}]"), access)) else { return };
            let Some(pod) = Pod::new(home) else { return };
            net.near.ip(&["link", "set", "va", "netns", &pod.pid()]).expect("an interface");
            pod.ip("link set va up");
            pod.ip("addr add 10.9.0.1/24 dev va");
            let mut command = pod.command("bridge");
            let args = ["-i", "netmap:va", "-w", "0"];
            let bridge = Guard::spawn(command.args(args).stdout(Stdio::null()).stderr(Stdio::null()));
            let moved =
                || home.snapshot().ports.iter().flat_map(|port| &port.rings).map(|ring| ring.crossed).sum::<u64>();
            until("the pod's stack is reached through it", || {
                let pings = net.far.tool("ping", &["-n", "-c", "1", "-W", "1", "10.9.0.1"]).is_ok();
                pings && moved() >= 4
            });
            // Kills all processes of the pod at once, which removes its namespaces and interfaces.
            drop((bridge, pod));
            until("nothing is left", || home.snapshot().regions.is_empty());
            until("the cable has gone with its end", || net.far.mac("vb").is_err());
            net.assert_alive();
            home.assert_serves();
            drop(net);
            home.end_daemon();
        }
    });
}

// SPDX-License-Identifier: BSD-2-Clause
//! The namespaces of a daemon that a program starts.

use std::fs;
use std::process::Command;

use conformance::home::{daemon_listens, summary};
use conformance::{isolated, program, until};
use lab::{Lab, VethOptions};

/// The namespace of a process.
fn namespace(pid: &str, kind: &str) -> Option<String> {
    let link = fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok()?;
    link.into_os_string().into_string().ok()
}

/// Neither a program's namespaces nor those of `unetmapd` in the background stay with the daemon.
#[test]
fn a_daemon_keeps_no_namespace_of_the_program_that_starts_it() {
    isolated(|home| {
        let lab = match Lab::new() {
            Ok(lab) => lab,
            Err(why) => return summary(&format!("skipped: {why}")),
        };
        let other = lab.namespace("other").unwrap_or_else(|e| panic!("{e}"));
        let starters: [(&str, &str, &[&str]); 2] =
            [("first", "unetmap", &["set", "ring_num", "300"]), ("second", "unetmapd", &["--idle-exit", "0"])];
        for (label, starter, args) in starters {
            let inside = lab.namespace(label).unwrap_or_else(|e| panic!("{e}"));
            lab.veth(&inside, "va", &other, "vb", VethOptions::default()).unwrap_or_else(|e| panic!("{e}"));
            // `ip netns exec` makes a mount namespace, too.
            let output = inside.command(program(starter)).args(args).output().expect("it starts");
            assert!(output.status.success(), "{output:?}");
            let daemon = home.snapshot().daemon;
            for pid in [daemon.pid, daemon.privileged_pid].map(|pid| pid.to_string()) {
                assert_ne!(namespace(&pid, "net"), Some(format!("net:[{}]", inside.id())), "{starter}");
                // Where the daemon may go: kernel threads may not be visible, and a test may be in another one.
                let machine = ["1", "2"].iter().find_map(|pid| namespace(pid, "mnt"));
                if machine.is_some() && machine == namespace("self", "mnt") {
                    assert_eq!(namespace(&pid, "mnt"), machine, "{starter}");
                }
            }
            inside.remove_name().unwrap_or_else(|e| panic!("{e}"));
            until("the namespace ends", || other.ip(&["link", "show", "vb"]).is_err());
            assert!(daemon_listens(&home.socket()), "{starter}");
            home.end_daemon();
        }
    });
}

/// A root directory below that of the mount namespace, with processes of its own, in which a program in `ip netns exec`
/// starts the daemon. The folder of the socket is only there.
const CHROOT: &str = r#"
mount --make-rprivate /
mount --rbind / "$0"
mount -t proc proc "$0/proc"
mount -t tmpfs tmpfs "$0/run"
mkdir "$0/run/below"
chroot "$0" sh -ec '
    ip netns add inside
    ip netns exec inside "$0" get ring_num
    "$0" stop
' "$1"
"#;

#[test]
fn a_daemon_that_leaves_a_namespace_stays_in_its_chroot() {
    isolated(|home| {
        if let Err(why) = Lab::new() {
            return summary(&format!("skipped: {why}"));
        }
        let root = home.folder().join("root");
        fs::create_dir(&root).expect("our own folder");
        let output = Command::new("unshare")
            .args(["--mount", "--pid", "--net", "--fork", "--kill-child", "sh", "-ec", CHROOT])
            .args([root, program("unetmap")])
            .env("UNETMAP_SOCKET", "/run/below/socket")
            .output()
            .expect("it starts");
        assert!(output.status.success(), "{output:?}");
    });
}

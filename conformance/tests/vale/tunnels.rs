// SPDX-License-Identifier: BSD-2-Clause
//! Switches of two hosts, joined by the kernel's tunnels, which are attached to them like other interfaces.
//!
//! ```text
//!   host 1: daemon, vale0                  host 2: daemon, vale0
//!   [pod 1: eth0] == vale0 == [tun0]       [tun0] == vale0 == [eth0 :pod 2]
//!                               :            :
//!                    [va 10.9.0.1] ------- [vb 10.9.0.2]
//! ```

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use conformance::home::{Guard, daemon_listens, summary};
use conformance::net::{BUFFER, CABLE, DIRECT, Net, frames, open_in, pings, take, transmit};
use conformance::switch::{bring_up, tcp};
use conformance::{Home, isolated_with_interfaces, program, until};
use lab::Ns;

/// Bytes of the largest packet in a tunnel of IPv4 over 1500.
const MTU: &str = "1450";

/// A host: its namespace, its daemon's socket, and the pod on it.
struct Host {
    ns: Ns,
    socket: PathBuf,
    pod: Ns,
}

impl Host {
    fn command(&self, ns: &Ns, name: &str, args: &str) -> Command {
        let mut command = ns.command(program(name));
        command.args(args.split(' ')).env("UNETMAP_SOCKET", &self.socket);
        command
    }

    /// Runs a program of ours with this host's daemon, which must succeed.
    #[track_caller]
    fn done(&self, ns: &Ns, name: &str, args: &str) -> String {
        let output = self.command(ns, name, args).output().expect("it runs");
        assert!(output.status.success(), "{name} {args}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }

    /// Attaches the tunnel and the pod to `vale0`.
    fn join(&self, tunnel: &[&str], address: &str) -> Result<(), String> {
        self.ns.ip(&[&["link", "add", "tun0", "type"], tunnel].concat())?;
        self.ns.ip(&["link", "set", "tun0", "up"])?;
        self.done(&self.ns, "vale-ctl", "-a vale0:tun0");
        self.done(&self.pod, "vale-ctl", "-n eth0");
        self.done(&self.pod, "vale-ctl", "-a vale0:eth0");
        self.pod.ip(&["link", "set", "eth0", "mtu", MTU])?;
        bring_up(&self.pod, "eth0", &[address]);
        Ok(())
    }

    fn leave(&self) {
        for port in ["tun0", "eth0"] {
            self.done(&self.ns, "vale-ctl", &format!("-d vale0:{port}"));
        }
        self.done(&self.pod, "vale-ctl", "-r eth0");
        self.ns.ip(&["link", "del", "tun0"]).expect("a tunnel");
    }
}

fn hosts(home: &Home, net: &Net) -> ([Host; 2], Guard) {
    let pod = |name| net.lab.namespace(name).expect("a namespace");
    let folder = home.folder().join("two");
    fs::create_dir(&folder).expect("a folder");
    let socket = folder.join("unetmapd.sock");
    let mut daemon = net.far.command(program("unetmapd"));
    daemon.args(["--foreground", "--idle-exit", "0", "--socket"]).arg(&socket);
    fs::write(folder.join("policy.toml"), DIRECT).expect("a file");
    let daemon = Guard::spawn(daemon.arg("--policy").arg(folder.join("policy.toml")));
    until("the second daemon listens", || daemon_listens(&socket));
    let one = Host { ns: net.near.clone(), socket: home.socket(), pod: pod("pod1") };
    ([one, Host { ns: net.far.clone(), socket, pod: pod("pod2") }], daemon)
}

#[test]
fn switches_of_two_hosts_are_joined_by_a_tunnel() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let ([one, two], mut daemon) = hosts(home, &net);
        let kinds = [
            [
                "vxlan id 77 dstport 4789 local 10.9.0.1 remote 10.9.0.2",
                "vxlan id 77 dstport 4789 local 10.9.0.2 remote 10.9.0.1",
            ],
            ["geneve id 77 remote 10.9.0.2", "geneve id 77 remote 10.9.0.1"],
        ];
        for [there, back] in kinds {
            let words = |text: &'static str| text.split(' ').collect::<Vec<_>>();
            if let Err(why) = one.join(&words(there), "10.77.0.1/24") {
                summary(&format!("skipped {there}: {why}"));
                continue;
            }
            two.join(&words(back), "10.77.0.2/24").expect("the same kernel");
            until("the pods reach each other", || pings(&one.pod, "10.77.0.2"));
            // Once each, so nothing is sent back into the tunnel; and the largest that need no fragments.
            for size in ["56", "1422"] {
                let args = ["-n", "-c", "5", "-i", "0.05", "-W", "5", "-M", "do", "-s", size, "10.77.0.1"];
                let printed = two.pod.tool("ping", &args).expect("answers");
                assert!(printed.contains("5 received") && !printed.contains("DUP"), "{printed}");
            }
            // Segments and checksums that the stacks leave to their interfaces are complete in the tunnel.
            tcp(&one.pod, &two.pod, "10.77.0.2", 4 << 20);
            tcp(&two.pod, &one.pod, "10.77.0.1", 4 << 20);
            vlans_cross(&one, &two);
            floods_are_bounded(&one, &two);
            [&one, &two].into_iter().for_each(Host::leave);
        }
        daemon.kill();
    });
}

/// Access ports of one VLAN reach each other, with the tag in the tunnel; those of two do not.
fn vlans_cross(one: &Host, two: &Host) {
    for host in [one, two] {
        host.done(&host.ns, "unetmap", "vale port vale0:tun0 trunk 10,20");
        host.done(&host.ns, "unetmap", "vale port vale0:eth0 access 10");
    }
    until("in one VLAN", || pings(&one.pod, "10.77.0.2"));
    two.done(&two.ns, "unetmap", "vale port vale0:eth0 access 20");
    one.pod.ip(&["neigh", "flush", "dev", "eth0"]).expect("neighbours");
    assert!(!pings(&one.pod, "10.77.0.2"), "in two VLANs");
    for host in [one, two] {
        for port in ["tun0", "eth0"] {
            host.done(&host.ns, "unetmap", &format!("vale port vale0:{port} off"));
        }
    }
    until("without VLANs", || pings(&one.pod, "10.77.0.2"));
}

/// Of packets to unknown addresses that a tunnel brings, a switch floods as many as its port may.
fn floods_are_bounded(one: &Host, two: &Host) {
    const SENT: usize = 300;
    two.done(&two.ns, "unetmap", "vale port vale0:tun0 storm 10");
    let sender = open_in(&one.pod, "netmap:eth0");
    let mut command = two.command(&two.pod, "pkt-gen", "-i vale0:reader -f rx -w 0 -T 0 --json");
    let reader = Guard::spawn(command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()));
    until("it reads", || two.done(&two.ns, "unetmap", "ls").contains("reader"));
    for batch in frames(&[60; SENT], 1).chunks(50) {
        transmit(&sender, 0, batch, BUFFER);
    }
    let lost = || {
        let shown: serde_json::Value = serde_json::from_str(&two.done(&two.ns, "unetmap", "ls --json")).expect("JSON");
        let ports = shown["ports"].as_array().cloned().unwrap_or_default();
        let tunnel = ports.into_iter().find(|port| port["name"] == "vale0:tun0").unwrap_or_default();
        tunnel["lost"]["storm"].as_u64().unwrap_or(0) as usize
    };
    until("most are dropped, and counted", || lost() >= SENT - 50);
    assert!(take(&sender, 0).len() < SENT, "nothing comes back");
    drop((reader, sender));
    two.done(&two.ns, "unetmap", "vale port vale0:tun0 off");
    until("the host has its port again", || pings(&two.pod, "10.77.0.1"));
}

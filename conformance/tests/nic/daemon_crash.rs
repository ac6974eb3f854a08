// SPDX-License-Identifier: BSD-2-Clause
//! The daemon is killed while programs have an interface open: the kernel's stack receives from it again, and nothing
//! is left behind.

use std::io::Read as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use conformance::home::{Guard, summary};
use conformance::net::{CABLE, DIRECT, MEDIATED, Net, frame, set_policy, start_daemon};
use conformance::{Home, isolated_alone, program, until};

const KILLS: u32 = 100;

/// Everything that a killed daemon could leave in the two namespaces.
fn traces(net: &Net) -> Vec<String> {
    let mut all = Vec::new();
    for ns in [&net.near, &net.far] {
        for what in [&["-o", "link"][..], &["route", "show", "table", "all"], &["rule"], &["-d", "link"]] {
            let text = ns.ip(what).expect("a namespace");
            // Neither the counts of queue disciplines nor times belong here; an attached program has a line of its own.
            all.extend(text.lines().filter(|line| what[0] != "-d" || line.contains("xdp")).map(str::to_owned));
        }
    }
    all
}

/// Packets that crossed rings of this direction, as the daemon counts.
fn crossed(home: &Home, dir: &str) -> u64 {
    let Some(snapshot) = home.try_snapshot() else { return 0 };
    let rings = snapshot.ports.iter().filter(|port| port.name == "va").flat_map(|port| &port.rings);
    rings.filter(|ring| ring.dir == dir).map(|ring| ring.crossed).max().unwrap_or(0)
}

/// Pings every 10 ms until one is answered: a single lost packet is no failure.
fn answered(net: &Net) -> bool {
    net.near.tool("ping", &["-n", "-q", "-c", "1", "-i", "0.01", "-w", "3", "10.9.0.2"]).is_ok()
}

/// Tests of [`isolated_alone`].
mod alone {
    use super::*;

    #[test]
    fn a_hundred_daemons_killed_under_traffic() {
        isolated_alone(|home| {
            let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
            assert!(net.pings(), "the cable works");
            let (tap, before) = (net.tap(), traces(&net));
            let (mut slowest_ping, mut slowest_client) = (Duration::ZERO, Duration::ZERO);
            let mut daemon = None;
            for turn in 0..KILLS {
                set_policy(home, if turn % 2 == 0 { DIRECT } else { MEDIATED });
                let dir = if turn / 2 % 2 == 0 { "tx" } else { "rx" };
                let mut client = Guard::spawn(
                    net.command(program("pkt-gen"))
                        .args(["-i", "netmap:va", "-f", dir, "-w", "0", "-D", "02:00:00:00:00:99"])
                        .stdout(Stdio::null())
                        .stderr(Stdio::piped()),
                );
                until("packets flow", || {
                    if dir == "rx" {
                        (0..32).for_each(|seq| tap.send(&frame(60, seq)));
                    }
                    crossed(home, dir) > 200
                });
                rustix::process::kill_process(home.daemon(), rustix::process::Signal::KILL).expect("our own daemon");
                let start = Instant::now();
                until("the kernel's own traffic flows again", || answered(&net));
                slowest_ping = slowest_ping.max(start.elapsed());
                let status = client.wait();
                slowest_client = slowest_client.max(start.elapsed());
                let mut printed = String::new();
                client.0.stderr.take().expect("piped").read_to_string(&mut printed).expect("text");
                assert_eq!(status.code(), Some(1), "turn {turn}: {printed}");
                assert!(printed.contains("the daemon that served this port has exited"), "turn {turn}: {printed}");
                // The broker detaches the program when it notices the end of the daemon.
                until("nothing is left behind", || traces(&net) == before);
                daemon = Some(start_daemon(home, &[]));
            }
            summary(&format!(
                "daemon kills {KILLS}, kernel's traffic back after at most {} ms, programs notified after at most {} ms, left \
                 behind: 0",
                slowest_ping.as_millis(),
                slowest_client.as_millis()
            ));
            drop(daemon);
        });
    }
}

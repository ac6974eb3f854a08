// SPDX-License-Identifier: BSD-2-Clause
//! Host rings whose program or daemon is killed or stopped: the host's traffic resumes, and nothing is left behind.

use std::process::Stdio;
use std::time::{Duration, Instant};

use conformance::home::{Guard, summary};
use conformance::host::{ATTACHMENTS, Attachment, V4, bridge, left_over, net, until_clean, until_it_works};
use conformance::net::{Net, start_daemon};
use conformance::{Home, isolated_with_interfaces, until};
use rustix::process::Signal;

const KILLS: u32 = 50;
/// The same after the daemon was stopped: what is promised, and some for a machine that is busy.
const STOPPED: Duration = Duration::from_secs(4);

/// A continuous ping; its output is discarded.
fn traffic(net: &Net) -> Guard {
    let mut command = net.far.command("ping");
    Guard::spawn(command.args(["-n", "-q", "-i", "0.002", V4[0]]).stdout(Stdio::null()).stderr(Stdio::null()))
}

/// Pings every 10 ms until one is answered.
fn answered(net: &Net) -> bool {
    net.near.tool("ping", &["-n", "-q", "-c", "1", "-i", "0.01", "-w", "3", V4[1]]).is_ok()
}

/// Slots that crossed rings of the interface.
fn crossed(home: &Home) -> u64 {
    let Some(snapshot) = home.try_snapshot() else { return 0 };
    snapshot.ports.iter().flat_map(|port| &port.rings).map(|ring| ring.crossed).sum()
}

/// Kills the program, the daemon, or first the one and then the other, in the midst of traffic.
fn fifty_kills(home: &Home, attachment: Attachment) {
    let Some(net) = net(home, attachment, 1500) else { return };
    let (mut slowest, mut daemon) = (Duration::ZERO, None);
    for turn in 0..KILLS {
        let mut bridge = bridge(&net, home, attachment.queues);
        let noise = traffic(&net);
        let before = crossed(home);
        until("packets flow", || crossed(home) > before + 50);
        let daemons = home.daemon();
        if turn % 3 != 0 {
            rustix::process::kill_process(daemons, Signal::KILL).expect("our own daemon");
        }
        if turn % 3 != 1 {
            bridge.kill();
        }
        let start = Instant::now();
        until("the kernel's own traffic flows again", || answered(&net));
        slowest = slowest.max(start.elapsed());
        drop((noise, bridge));
        until_clean(&net);
        if turn % 3 != 0 {
            until("the dead daemon's socket is closed", || !home.serves());
            daemon = Some(start_daemon(home, attachment.args));
        }
    }
    let slowest = slowest.as_millis();
    summary(&format!("kills {KILLS}, came back {KILLS}, each within {slowest} ms; left behind: 0"));
    drop(daemon);
}

#[test]
fn fifty_crashes_of_program_and_daemon_native() {
    isolated_with_interfaces(|home| fifty_kills(home, ATTACHMENTS[1]));
}

#[test]
fn fifty_crashes_of_program_and_daemon_generic() {
    isolated_with_interfaces(|home| fifty_kills(home, ATTACHMENTS[2]));
}

/// A client that survives its daemon holds the companion interface; the next daemon works in spite of that.
#[test]
fn a_new_daemon_replaces_a_companion_held_by_an_old_client() {
    isolated_with_interfaces(|home| {
        let Some(net) = net(home, ATTACHMENTS[0], 1500) else { return };
        let old = net.open("netmap:va^");
        rustix::process::kill_process(home.daemon(), Signal::KILL).expect("our own daemon");
        until_it_works("the kernel's own traffic", &net);
        assert!(left_over(&net).contains("nmh"), "a test of nothing: {}", left_over(&net));
        let _daemon = start_daemon(home, &[]);
        let mut program = bridge(&net, home, 1);
        until_it_works("a bridge of the next daemon", &net);
        assert!(old.rxsync().is_err());
        drop(old);
        until_it_works("the connection works again", &net);
        program.kill();
        until_clean(&net);
    });
}

/// Stopped daemon, stopped program: the kernel has the interface within two seconds, and the program as soon as they go
/// on.
#[test]
fn a_stopped_daemon_releases_the_interface_and_resumes_it() {
    isolated_with_interfaces(|home| {
        let mut slowest = Duration::ZERO;
        for attachment in [ATTACHMENTS[0], ATTACHMENTS[2]] {
            let Some(net) = net(home, attachment, 1500) else { return };
            let program = bridge(&net, home, 1);
            until_it_works("a bridge", &net);
            let daemon = home.daemon();
            for _ in 0..3 {
                rustix::process::kill_process(daemon, Signal::STOP).expect("our own daemon");
                program.signal(Signal::STOP);
                let start = Instant::now();
                until("the kernel's own traffic flows", || answered(&net));
                slowest = slowest.max(start.elapsed());
                rustix::process::kill_process(daemon, Signal::CONT).expect("our own daemon");
                program.signal(Signal::CONT);
                let before = crossed(home);
                until("packets take the way of the program again", || answered(&net) && crossed(home) > before + 4);
            }
            drop(program);
            until_clean(&net);
            home.end_daemon();
        }
        assert!(slowest < STOPPED, "{slowest:?}");
        summary(&format!("stopped 6 times, traffic back after at most {} ms", slowest.as_millis()));
    });
}

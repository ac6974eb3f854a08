//! Host rings: the host's stack behind a program, and the stack as it was when the program, or the daemon, has gone.
#![forbid(unsafe_code)]

use conformance::home::summary;
use conformance::host::{ATTACHMENTS, Attachment, TRAFFIC, bridge, net, until_clean, until_it_works};
use conformance::{Home, isolated};
use rustix::process::Signal;

/// All kinds of traffic pass a bridge with one port; afterwards nothing is left.
fn all_traffic(home: &Home, attachment: Attachment) {
    let Some(net) = net(home, attachment, 1500) else { return };
    let mut program = bridge(&net, home, attachment.queues);
    for (what, works) in TRAFFIC {
        if let Err(why) = works(&net) {
            panic!("{} x {}, {what}: {why}", attachment.name, attachment.queues);
        }
    }
    let moved: u64 = home.snapshot().ports.iter().flat_map(|p| &p.rings).map(|ring| ring.crossed).sum();
    assert!(moved > 10_000, "only {moved} slots moved, so the traffic went another way");
    program.signal(Signal::TERM);
    assert!(program.wait().success());
    until_it_works("the stack has the interface again", &net);
    until_clean(&net);
    summary(&format!("{} kinds of traffic passed, slots moved {moved}", TRAFFIC.len()));
}

#[test]
fn all_traffic_passes_native_one_queue() {
    isolated(|home| all_traffic(home, ATTACHMENTS[0]));
}

#[test]
fn all_traffic_passes_native_four_queues() {
    isolated(|home| all_traffic(home, ATTACHMENTS[1]));
}

#[test]
fn all_traffic_passes_generic_one_queue() {
    isolated(|home| all_traffic(home, ATTACHMENTS[2]));
}

#[test]
fn all_traffic_passes_generic_four_queues() {
    isolated(|home| all_traffic(home, ATTACHMENTS[3]));
}

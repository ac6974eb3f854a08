// SPDX-License-Identifier: BSD-2-Clause
//! A daemon that runs out of descriptors or memory at any point refuses requests and keeps running.

use std::thread::sleep;
use std::time::Duration;

use conformance::home::{highest_file, limit_daemon, summary};
use conformance::net::{BUFFER, CABLE, MEDIATED, Net, assert_same, collect, frames, transmit};
use conformance::traffic::{exchange, open};
use conformance::{Home, isolated, until};
use conformance_hostile::raw::ControlConnection;
use rustix::process::{Pid, Resource};
use unetmap::abi::*;
use unetmap_core::control::request::NetmapRequest;
use unetmap_core::control::wire;
use unetmap_core::control::{ControlRequest, KnobRequest, LockHolderRequest, SnapshotRequest};
use zerocopy::IntoBytes as _;

/// Requests that need much of the daemon: a pipe of a new region, one of an old region, a switch's port, a monitor, a
/// port without a data path.
fn requests() -> Vec<NetmapRequest> {
    let register = |name: &str, mode: u32, flags: u64, rings: u16| {
        let (nr_mode, nr_flags, nr_mem_id) = (mode, flags, if mode == NR_REG_NULL { 2 } else { 0 });
        let (nr_tx_rings, nr_rx_rings) = (rings, rings);
        let body = NmreqRegister { nr_mode, nr_flags, nr_mem_id, nr_tx_rings, nr_rx_rings, ..Default::default() };
        NetmapRequest::new(NETMAP_REQ_REGISTER, name, body.as_bytes()).expect("a short name")
    };
    vec![
        register("new{1", NR_REG_ALL_NIC, 0, 1),
        register("g{2", NR_REG_ALL_NIC, 0, 8),
        register("vale0:a", NR_REG_ALL_NIC, 0, 2),
        register("g{1", NR_REG_ALL_NIC, NR_MONITOR_TX | NR_MONITOR_RX, 0),
        register("nothing", NR_REG_NULL, 0, 1),
    ]
}

/// Sends every kind of request, each on its own connection; returns how many were served.
fn ask_for_everything(home: &Home) -> usize {
    let is_accepted = |message: &[u8]| {
        let raw = ControlConnection::connect(&home.socket()).expect("a daemon that listens");
        // It may have closed the connection already.
        let _ = raw.send(message);
        raw.receive().is_some_and(|reply| reply.errno == 0)
    };
    let ports = requests().into_iter().map(|request| wire::encode(NetmapRequest::KIND, 0, 0, 0, &request.encode()));
    let others = [LockHolderRequest::KIND, SnapshotRequest::KIND, KnobRequest::KIND]
        .map(|kind| wire::encode(kind, 0, 0, 0, &[]));
    ports.chain(others).filter(|message| is_accepted(message)).count()
}

/// Sets a limit of the daemon, runs a function, and restores the limit.
fn limited<T>(home: &Home, what: Resource, to: u64, body: impl FnOnce() -> T) -> T {
    let daemon = home.daemon();
    limit_daemon(daemon, what, Some(to));
    let done = body();
    limit_daemon(daemon, what, None);
    done
}

/// Requests everything under each limit of `steps`, given as what is left beyond what the daemon has; then everything
/// must be there again.
fn starve(home: &Home, what: Resource, has: impl Fn() -> u64, steps: impl Iterator<Item = u64>) {
    let (far, near) = (open("netmap:g{1"), open("netmap:g}1"));
    let all_gone = || until("all are gone", || home.snapshot().sessions.len() == 2);
    let most = ask_for_everything(home);
    all_gone();
    let (before, fds, has) = (home.snapshot().buffers("g"), home.daemon_fds(), has());
    let (mut tried, mut refused, mut served) = (0, 0, 0);
    for more in steps {
        let n = limited(home, what, has + more, || ask_for_everything(home));
        (refused, served) = (refused + most - n, served + n);
        exchange(&far, &near, 1, tried * 10, tried * 10 + 10);
        tried += 1;
        all_gone();
    }
    assert!(refused > 0 && served > 0, "{refused} refused, {served} served: no limit was met");
    assert_eq!(ask_for_everything(home), most, "something was not given back");
    all_gone();
    home.until_fds(fds);
    assert_eq!(home.snapshot().buffers("g"), before);
    summary(&format!("limits tried {tried}, requests served {served}, refused {refused}"));
}

#[test]
fn the_daemon_survives_running_out_of_descriptors_at_every_point() {
    // Numbers of files are limited: those that it has made ahead have some.
    isolated(|home| starve(home, Resource::Nofile, || (highest_file(home.daemon()) + 1).into(), 0..80));
}

/// The time of the daemon's control thread on a CPU.
fn control_thread_ran(daemon: Pid) -> Duration {
    let pid = daemon.as_raw_pid();
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/schedstat")).expect("the daemon runs");
    let ns = text.split_whitespace().next().and_then(|ns| ns.parse().ok());
    Duration::from_nanos(ns.expect("nanoseconds"))
}

/// Not even the descriptor that is reserved for closing a connection helps: connections wait, at no cost.
#[test]
fn connections_without_descriptors_do_not_occupy_the_daemon() {
    isolated(|home| {
        let port = open("netmap:g{1");
        let daemon = home.daemon();
        let waiting = limited(home, Resource::Nofile, 1, || {
            let raw = ControlConnection::connect(&home.socket()).expect("a daemon that listens");
            raw.send(&wire::encode(SnapshotRequest::KIND, 0, 0, 0, &[])).expect("room in its queue");
            let before = control_thread_ran(daemon);
            sleep(Duration::from_secs(2));
            let ran = control_thread_ran(daemon) - before;
            // 200 tries, or as many as the thread finds time for.
            assert!(ran < Duration::from_millis(200), "{ran:?} in 2 s");
            raw
        });
        assert!(waiting.receive().is_some_and(|reply| reply.errno == 0), "it is served in the end");
        drop(port);
    });
}

/// Address space for regions and channels; a daemon without memory for its heap exits, like any program.
#[test]
fn regions_are_refused_when_memory_runs_out() {
    isolated(|home| starve(home, Resource::As, || home.daemon_kib("VmSize:") << 10, (1..=40).map(|mib| mib << 20)));
}

/// The thread between a mediated port and its interface is replaced when fewer rings are bound. Without descriptors for
/// the new one, the old one stays.
#[test]
fn a_mediated_port_works_on_without_free_descriptors() {
    isolated(|home| {
        let Some(net) = Net::new(home, MEDIATED, CABLE) else { return };
        let (port, tap) = (net.open("netmap:va/R"), net.tap());
        let other = net.open("netmap:va/T");
        let all = frames(&[60, 1000, 1514], 0);
        limited(home, Resource::Nofile, 1, || {
            drop(other);
            let log = || std::fs::read_to_string(home.log()).unwrap_or_default();
            until("the daemon has tried", || log().contains("the rings that other sessions have bound"));
            tap.send_all(&all);
            assert_same(&collect(&port, all.len()), &all);
        });
        let other = net.open("netmap:va/T");
        transmit(&other, 0, &all, BUFFER);
        assert_same(&tap.collect(all.len()), &all);
    });
}

// SPDX-License-Identifier: BSD-2-Clause
//! `unetmapd --keep-ports`: the daemon is killed while an interface is attached to a switch, or is a port of it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use conformance::home::summary;
use conformance::host::during_a_stream;
use conformance::kept::{kill, net, wait_until_kept};
use conformance::net::{DIRECT, Tap, frames, open_in, take, transmit};
use conformance::switch::done;
use conformance::{isolated_with_interfaces, until};
use unetmap::Port;

use crate::replace::{hosts_on_switch, remove_hosts};

/// Fewer than those after which the daemon is not started again, if they come as fast as they can.
const CRASHES: usize = 4;

/// Frames between a port and a tap, in both directions until `work` is done. `work` is given a function that waits for
/// more. Returns how many were sent, and how many arrived at each end: a switch may deliver frames twice, or lose some.
fn during_frames(port: &Port, tap: &Tap, work: impl FnOnce(&dyn Fn()) + Send) -> (u64, [u64; 2]) {
    const BATCH: usize = 16;
    let (mut sent, arrived) = (0, [const { AtomicU64::new(0) }; 2]);
    let load = || arrived.each_ref().map(|counter| counter.load(Relaxed));
    let go_on = || {
        let before = load();
        until("more frames arrive at both ends", || load().iter().zip(before).all(|(now, before)| *now > before + 100));
    };
    thread::scope(|scope| {
        let work = scope.spawn(|| work(&go_on));
        while !work.is_finished() {
            let batch = frames(&[60; BATCH], sent);
            transmit(port, 0, &batch, 60);
            tap.send_all(&batch);
            sent += BATCH as u64;
            port.rxsync().expect("an open port");
            arrived[0].fetch_add(take(port, 0).len() as u64, Relaxed);
            arrived[1].fetch_add(std::iter::from_fn(|| tap.next(Duration::ZERO)).count() as u64, Relaxed);
            thread::sleep(Duration::from_millis(1));
        }
    });
    (sent, load())
}

/// Waits until frames arrive at the other end of each direction, behind others that are on their way.
#[track_caller]
fn assert_arrive(port: &Port, tap: &Tap) {
    let last = frames(&[61; 16], 0);
    transmit(port, 0, &last, 61);
    tap.send_all(&last);
    let (mut at_port, mut at_tap) = (Vec::new(), Vec::new());
    until("the last frames arrive", || {
        port.rxsync().expect("an open port");
        at_port.extend(take(port, 0));
        at_tap.extend(std::iter::from_fn(|| tap.next(Duration::ZERO)));
        // A frame that was on its way may come behind them.
        [&at_port, &at_tap].iter().all(|got| got.windows(last.len()).any(|some| some == last))
    });
}

#[test]
fn an_attached_interface_goes_on_after_a_crash() {
    isolated_with_interfaces(|home| {
        let Some(net) = net(home, DIRECT) else { return };
        done(&net.near, "-h vale0:va");
        done(&net.near, "-p vale0:va -C 0,1");
        // When this is kept, so is the above.
        let port = open_in(&net.near, "vale0:p");
        // Packets of a new source cross to an unknown destination, also by the host rings.
        let (tap, host) = (net.tap(), Tap::on(&net.near, "va"));
        wait_until_kept(home);
        let (sent, arrived) = during_frames(&port, &tap, |go_on| {
            for _ in 0..CRASHES {
                kill(home);
                go_on();
                assert_eq!(home.polled("vale0:va"), [(0, 1)], "the processor that polls it");
                wait_until_kept(home);
            }
        });
        summary(&format!("{CRASHES} crashes: {sent} frames sent from each end, {arrived:?} arrived"));
        assert_arrive(&port, &tap);
        drop(host);
        done(&net.near, "-P vale0:va");
        done(&net.near, "-d vale0:va");
        net.assert_given_back();
        drop(port);
        until("nothing is left", || home.snapshot().ports.is_empty() && home.snapshot().regions.is_empty());
    });
}

/// Two stacks, each with a persistent port, and one connection; a program opens and closes one of the ports.
#[test]
fn persistent_ports_go_on_after_a_crash() {
    isolated_with_interfaces(|home| {
        let Some(net) = net(home, DIRECT) else { return };
        hosts_on_switch(&net);
        let bytes = during_a_stream([&net.near, &net.far], "10.8.0.1", |until_more| {
            until_more("the stream crosses the switch");
            for _ in 0..CRASHES {
                wait_until_kept(home);
                kill(home);
                until_more("the stream goes on");
            }
        });
        summary(&format!("the daemon was killed {CRASHES} times under one connection, {bytes} bytes"));
        remove_hosts(home, &net);
    });
}

// SPDX-License-Identifier: BSD-2-Clause
//! libpcap programs that wait for the next daemon.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use conformance::c::{Running, compile_with};
use conformance::net::serve;
use conformance::pcap::overlay;
use conformance::traffic::fill_some;
use conformance::{Home, isolated, program, until};
use rustix::process::Signal;
use unetmap::{Interest, Port};

/// Packets that are sent by the next daemon: more than rings hold, so most of them were received.
const PACKETS: u64 = 5000;

fn assert_goes_on(home: &Home, wait: &str) {
    let mut daemon = serve(home);
    overlay();
    let receiver = compile_with(home, "pcap_reconnect", &["-lpcap"]);
    let mut command = Command::new(program("unetmap"));
    command.arg("run").arg(receiver).args(["netmap:p}1", wait]).env("UNETMAP_RECONNECT", "1").stderr(Stdio::inherit());
    let mut receiver = Running::spawn(wait, &mut command);
    let port = Port::options().reconnect(None).open("netmap:p{1").unwrap_or_else(|e| panic!("{e}"));
    let (stops, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stops.load(Relaxed) {
                port.poll(Interest::TX, Some(Duration::from_millis(50))).unwrap_or_else(|e| panic!("{e}"));
                let n = fill_some(&port.tx_rings()[0], 1, 0, 32);
                sent.fetch_add(if port.reconnects() == 1 { n } else { 0 }, Relaxed);
            }
        });
        assert_eq!(receiver.read_line(), "1000");
        daemon.signal(Signal::KILL);
        daemon.wait();
        let _next = serve(home);
        until("the program receives by the next daemon", || sent.load(Relaxed) > PACKETS);
        stops.store(true, Relaxed);
        assert!(receiver.is_running());
        receiver.kill();
    });
}

#[test]
fn a_libpcap_program_goes_on() {
    isolated(|home| assert_goes_on(home, "loop"));
}

#[test]
fn a_libpcap_program_that_selects_goes_on() {
    isolated(|home| assert_goes_on(home, "select"));
}

// SPDX-License-Identifier: BSD-2-Clause
//! A daemon that goes on after a crash takes over what hostile programs have written.

use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use conformance::home::summary;
use conformance::kept::{kill, start, successor, wait_until_kept};
use conformance::packet::Rng;
use conformance::replace::Stream;
use conformance::traffic::{exchange, open};
use conformance::{isolated, until};
use conformance_hostile::raw::RawPort;
use unetmap::abi::NETMAP_REQ_PORT_INFO_GET;
use unetmap_core::control::ControlRequest;
use unetmap_core::control::request::NetmapRequest;
use unetmap_core::control::wire;

/// The rings of a switch port and its positions are random when the daemon is killed: others go on.
#[test]
fn random_positions_spoil_only_the_port_of_their_writer() {
    isolated(|home| {
        let _daemon = start(home, None);
        let hostile = ["vale0:x", "vale0:y", "vale1:x"].map(|name| RawPort::open(&home.socket(), name));
        let stream = Stream::start("vale0:a", "vale0:b", 1, Duration::from_micros(200));
        let pipe = ["netmap:p{1", "netmap:p}1"].map(open);
        let mut rng = Rng(5);
        wait_until_kept(home);
        for n in 0..5 {
            for port in &hostile {
                let small = n % 2 == 0;
                let word = |rng: &mut Rng| (rng.next_u64() as u32) & if small { 1023 } else { u32::MAX };
                let words: Vec<u8> = (0..512).flat_map(|_| word(&mut rng).to_ne_bytes()).collect();
                port.channels.write_all_at(&words[..1024], 0).expect("memory that programs may write");
                port.region.write_all_at(&words, 4096).expect("memory that programs may write");
            }
            kill(home);
            stream.go_on();
            exchange(&pipe[0], &pipe[1], 2, 0, 2000);
        }
        let (sent, counts) = stream.stop_after_crashes();
        summary(&format!("5 crashes with random positions of others: {sent} packets sent, {counts:?}"));
        drop((hostile, pipe));
        until("all regions are freed", || home.snapshot().regions.is_empty());
    });
}

/// The program whose request the daemon was answering gets no answer, and its port ends. Others go on.
#[test]
fn a_request_that_crashes_the_daemon_ends_its_own_port() {
    isolated(|home| {
        // The fault: the daemon aborts at a request on the connection of a port.
        let _daemon = start(home, Some("request"));
        let hostile = RawPort::open(&home.socket(), "vale0:x");
        let ports = ["vale0:a", "vale0:b"].map(open);
        wait_until_kept(home);
        let before = home.daemon();
        let request = NetmapRequest::new(NETMAP_REQ_PORT_INFO_GET, "vale0:x", &[0; 32]).expect("a short name");
        hostile
            .raw
            .send(&wire::encode(NetmapRequest::KIND, 0, 0, 0, &request.encode()))
            .expect("a daemon that listens");
        assert!(hostile.raw.receive_after_reset().is_none(), "the connection ends");
        successor(home, before);
        exchange(&ports[0], &ports[1], 1, 0, 2000);
        until("its port is closed", || home.snapshot().ports.len() == 2);
    });
}

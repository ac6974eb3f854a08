// SPDX-License-Identifier: BSD-2-Clause
//! Memory that the daemon's threads fill, or keep for a switch: its user pays when a port is opened, and not when
//! packets come.

use conformance::home::summary;
use conformance::{Home, isolated, until};
use conformance_hostile::raw::RawPort;
use unetmap::abi::*;
use unetmap::errno::EDQUOT;
use unetmap_core::control::request::NetmapReply;

use crate::budgets::{ALICE, BOB, assert_served, connect_as, daemon_with, register};
use crate::left_memory::memory;

/// 16 MiB for each user.
const POLICY: &str = "[[rule]]\npipes = true\nusers = [4001, 4002]\n\
                      [[budget]]\nusers = [4001, 4002]\nmemory = 16\n";
/// Bytes of the buffers of a switch port of the default size, and of a pipe.
const SWITCH_PORT: u64 = 2 * 1024 * 2112;
const PIPE: u64 = 2 * 1024 * 2048;

#[track_caller]
fn open(home: &Home, name: &str, fields: NmreqRegister) -> RawPort {
    RawPort::open_on(connect_as(home, ALICE), name, fields)
}

/// Opens a port, and returns it with what it takes of Alice's memory besides that of its rings.
#[track_caller]
fn cost(home: &Home, name: &str, fields: NmreqRegister) -> (RawPort, u64) {
    let before = memory(home);
    let port = open(home, name, fields);
    (port, memory(home) - before)
}

#[test]
fn buffers_that_the_daemon_can_fill_are_charged_when_a_port_opens() {
    isolated(|home| {
        let Some(_daemon) = daemon_with(home, POLICY) else { return };
        let daemon = home.daemon();
        let default = NmreqRegister::default();
        let near = |cost: u64, buffers: u64| (buffers..buffers + (512 << 10)).contains(&cost);

        // Of a pipe, programs fill the buffers; unless they lie where a switch takes what slots name.
        let (pipe, of_pipe) = cost(home, "p{1", default);
        let (port, of_port) = cost(home, "vale1:a", default);
        let in_region = NmreqRegister { nr_mem_id: port.mem_id, ..default };
        let (beside, of_beside) = cost(home, "q{1", in_region);
        assert!(near(of_pipe, 0) && near(of_port, SWITCH_PORT) && near(of_beside, SWITCH_PORT));
        let extra = NmreqRegister { nr_extra_bufs: 100, ..default };
        let (more, of_extra) = cost(home, "vale1:a", extra);
        assert!(near(of_extra, 100 * 2112), "{of_extra}");
        summary(&format!("a pipe {of_pipe}, a switch port {of_port}, a pipe in its region {of_beside} bytes"));

        // An open that cannot be paid is refused, and others are served.
        let third = open(home, "vale1:b", default);
        let (errno, reply, _) = connect_as(home, ALICE).request(&register("vale1:c", default));
        let why = reply.map_or_else(String::new, |NetmapReply { reason, .. }| reason);
        assert!(errno == EDQUOT && why.contains("MiB of memory") && why.contains("[[budget]]"), "{errno}: {why}");
        assert_served(home, BOB);
        drop((port, beside, third, more));
        until("only the pipe is charged", || memory(home) == of_pipe);

        // A monitor that copies has mirrors, which the watched side fills.
        let monitor = NmreqRegister { nr_flags: NR_MONITOR_TX | NR_MONITOR_RX, ..default };
        let (monitor, of_monitor) = cost(home, "p{1", monitor);
        assert!(near(of_monitor, PIPE), "{of_monitor}");
        drop(monitor);
        until("only the pipe is charged", || memory(home) <= of_pipe);

        // An end in another region than the pipe: the daemon copies between both.
        let other = open(home, "r{1", default);
        let in_other = NmreqRegister { nr_mem_id: other.mem_id, ..default };
        let (copied, of_copied) = cost(home, "p}1", in_other);
        assert!(near(of_copied, 3 * PIPE), "{of_copied}");
        drop((pipe, other, copied));
        until("nothing is charged", || memory(home) == 0);
        assert_eq!(home.daemon(), daemon, "the same process");
    });
}

/// A switch has tables for itself, beside its ports.
#[test]
fn a_switch_is_charged_to_its_user() {
    isolated(|home| {
        let Some(_daemon) = daemon_with(home, POLICY) else { return };
        let small = NmreqRegister { nr_tx_slots: 8, nr_rx_slots: 8, ..NmreqRegister::default() };
        let (_first, of_first) = cost(home, "vale1:a", small);
        let (_second, of_second) = cost(home, "vale1:b", small);
        let (_other, of_other) = cost(home, "vale2:a", small);
        // 4096 addresses of 8 bytes.
        assert_eq!(of_first, of_other);
        assert!(of_first >= of_second + (32 << 10), "{of_first}, {of_second}");
    });
}

// SPDX-License-Identifier: BSD-2-Clause
//! Persistent ports as ports that programs open: before and after they are attached to a switch, by either name.

use conformance::net::{BUFFER, CABLE, DIRECT, Net, Tap, collect, frames, open_in, pings, transmit};
use conformance::switch::{bring_up, ctl, done, host_on_switch};
use conformance::{isolated_with_interfaces, program, until};
use unetmap::abi::{NETMAP_REQ_PORT_HDR_GET, NETMAP_REQ_PORT_HDR_SET, NR_ACCEPT_VNET_HDR, NS_FORWARD, NmreqPortHdr};
use unetmap::errno::{EBUSY, EINVAL, EIO};
use unetmap::{Interest, Port};

/// Opens a port in a namespace and returns the error number of the refusal.
#[track_caller]
fn refused(ns: &lab::Ns, spec: &str) -> i32 {
    match ns.run(|| Port::open(spec)).expect("a namespace") {
        Ok(_) => panic!("{spec} was opened"),
        Err(e) => e.errno(),
    }
}

/// Checks that packets pass in both directions.
#[track_caller]
fn assert_connected(a: &Port, b: &Port, serial: u64) {
    for (from, to) in [(a, b), (b, a)] {
        let out = frames(&[60, 64, 1000, 1514, 300], serial);
        transmit(from, 0, &out, BUFFER);
        assert_eq!(collect(to, out.len()), out);
    }
}

#[test]
fn a_persistent_port_is_opened_by_both_names() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = Net::new(home, DIRECT, CABLE) else { return };
        let ns = &net.near;
        done(ns, "-n v0 -C 256,128,2");
        let before = open_in(ns, "netmap:v0");
        assert_eq!((before.tx_rings().len(), before.rx_rings().len()), (2, 2));
        assert_eq!((before.tx_rings()[0].num_slots(), before.rx_rings()[0].num_slots()), (256, 128));
        // Attached to no switch, it completes what it sends, as a port of a switch without another port does.
        transmit(&before, 0, &frames(&[60; 100], 1), BUFFER);
        until("all slots come back", || before.txsync().is_ok() && !before.tx_rings()[0].pending());
        // It is attached while it is open, and remains the same port.
        done(ns, "-a vale0:v0");
        let other = open_in(ns, "vale0:other");
        assert_connected(&before, &other, 100);
        let after = open_in(ns, "vale0:v0");
        assert_eq!(after.mem_id(), before.mem_id());
        drop(before);
        assert_connected(&after, &other, 200);
        assert!(ctl(ns, "-r v0").2.contains("attached"));
        done(ns, "-d vale0:v0");
        assert!(ctl(ns, "-r v0").2.contains("has it open"));
        transmit(&other, 0, &frames(&[60; 3], 300), BUFFER);
        assert!(!after.poll(Interest::RX, Some(std::time::Duration::from_millis(100))).expect("an open port").rx());
        // It is attached to a second switch after the first was left.
        done(ns, "-a vale1:v0");
        let second = open_in(ns, "vale1:x");
        assert_connected(&after, &second, 400);
        let mem_id = after.mem_id();
        drop(after);
        assert_eq!(open_in(ns, "netmap:v0").mem_id(), mem_id, "its region outlives its openers");
        done(ns, "-d vale1:v0");
        done(ns, "-r v0");
        drop((other, second));
        until("nothing is left", || home.snapshot().ports.is_empty() && home.snapshot().regions.is_empty());
        net.assert_alive();
    });
}

/// While no program has it open the host uses the switch; while one has, the host's packets are in the host rings.
#[test]
fn the_host_has_the_port_while_no_program_has_it_open() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = Net::new(home, DIRECT, CABLE) else { return };
        let ns = &net.near;
        host_on_switch(ns, "v0", &[]);
        let other = open_in(ns, "vale0:other");
        let host = Tap::on(ns, "v0");
        let to_host = |serial| {
            let out = frames(&[60, 1000, 1514], serial);
            transmit(&other, 0, &out, BUFFER);
            assert_eq!(host.collect(out.len()), out);
        };
        let from_host = |port: &Port, serial| {
            let out = frames(&[60, 1000, 1514], serial);
            host.send_all(&out);
            assert_eq!(collect(port, out.len()), out);
        };
        let index = || {
            let list = done(ns, "");
            list.lines().find(|line| line.contains("vale0:v0")).expect("it is listed").to_owned()
        };
        let place = index();
        for round in 0..5 {
            to_host(round << 20);
            from_host(&other, (round << 20) + 1000);
            {
                let port = open_in(ns, "vale0:v0");
                assert_eq!(index(), place, "it keeps its index in the switch");
                assert_connected(&port, &other, (round << 20) + 2000);
                let stack = open_in(ns, "netmap:v0^");
                from_host(&stack, (round << 20) + 3000);
                let out = frames(&[60, 1000, 1514], (round << 20) + 4000);
                transmit(&stack, 0, &out, BUFFER);
                assert_eq!(host.collect(out.len()), out);
                // Neither crosses into the other.
                assert!(port.rx_rings()[0].is_empty() && other.rxsync().is_ok() && other.rx_rings()[0].is_empty());
            }
            assert_eq!(index(), place);
        }
        drop(other);
        net.assert_alive();
    });
}

/// The sums of a switch keep what a port has sent and received before a program opened it, and after.
#[test]
fn a_program_that_opens_a_port_takes_nothing_from_the_sums() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        for (ns, name, address) in [(&net.near, "v0", "10.8.0.1/24"), (&net.far, "v1", "10.8.0.2/24")] {
            host_on_switch(ns, name, &[address]);
        }
        until("they are reached", || pings(&net.near, "10.8.0.2"));
        let adds_up = |when: &str| {
            let mut difference = None;
            until(&format!("the sums are equal {when}"), || {
                let switches = home.snapshot().switches;
                difference = switches.iter().find_map(|switch| switch.difference());
                difference.is_none()
            });
        };
        adds_up("at first");
        let program = open_in(&net.near, "vale0:v0");
        transmit(&program, 0, &frames(&[60, 1000, 1514], 1), BUFFER);
        adds_up("with a program");
        drop(program);
        until("they are reached again", || pings(&net.near, "10.8.0.2"));
        adds_up("without it again");
    });
}

/// A program that has the port and its host rings forwards released packets to the other side (`NS_FORWARD`).
#[test]
fn released_packets_are_forwarded_to_the_host() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = Net::new(home, DIRECT, CABLE) else { return };
        let ns = &net.near;
        host_on_switch(ns, "v0", &[]);
        let (port, other, host) = (open_in(ns, "netmap:v0*"), open_in(ns, "vale0:other"), Tap::on(ns, "v0"));
        let out = frames(&[60, 1000, 1514], 1);
        transmit(&other, 0, &out, BUFFER);
        let ring = &port.rx_rings()[0];
        until("they have come", || port.rxsync().is_ok() && ring.space() == 3);
        ring.set_forwarding(true);
        ring.available().for_each(|slot| slot.set_flags(slot.flags() | NS_FORWARD));
        ring.advance(3);
        port.rxsync().expect("an open port");
        assert_eq!(host.collect(out.len()), out);
        drop((port, other));
        net.assert_alive();
    });
}

#[test]
fn a_persistent_port_has_what_an_ephemeral_port_has() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = Net::new(home, DIRECT, CABLE) else { return };
        let ns = &net.near;
        done(ns, "-n v0");
        done(ns, "-a vale0:v0");
        let other = open_in(ns, "vale0:other");
        for (first, second) in [("vale0:v0/x", "netmap:v0"), ("netmap:v0/x", "vale0:v0"), ("netmap:v0", "vale0:v0/x")] {
            let open = open_in(ns, first);
            assert_eq!(refused(ns, second), EBUSY, "{first}, {second}");
            assert_connected(&open, &other, 1);
        }
        let port = ns.run(|| Port::options().extra_bufs(1000).open("vale0:v0")).expect("a namespace").expect("a port");
        assert_eq!(port.extra_bufs(), 1000);
        let monitors = [open_in(ns, "netmap:v0/rt"), open_in(ns, "vale0:v0/rt"), open_in(ns, "vale0:v0/z")];
        let out = frames(&[60, 1000], 7);
        transmit(&port, 0, &out, BUFFER);
        assert_eq!(collect(&other, 2), out);
        for monitor in &monitors {
            assert_eq!(collect(monitor, 2), out);
        }
        drop((port, monitors));
        assert_eq!(refused(ns, "netmap:v0/r"), EINVAL, "nothing to monitor");
        net.assert_alive();
    });
}

/// The header of its packets is set by either name, before it is attached to a switch, and it keeps it.
#[test]
fn a_persistent_port_has_a_header_before_it_is_attached() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = Net::new(home, DIRECT, CABLE) else { return };
        let ns = &net.near;
        let header = |request, port: &str, bytes| {
            let body = NmreqPortHdr { nr_hdr_len: bytes, ..Default::default() };
            let answer = ns.run(|| conformance::request::control(request, port, body)).expect("a namespace");
            answer.map(|(_, body)| body.nr_hdr_len)
        };
        let set = |port: &str, bytes| header(NETMAP_REQ_PORT_HDR_SET, port, bytes).map(drop);
        let get = |port: &str| header(NETMAP_REQ_PORT_HDR_GET, port, 0);
        let accepting =
            |spec: &str| ns.run(|| Port::options().flags(NR_ACCEPT_VNET_HDR).open(spec)).expect("a namespace");
        done(ns, "-n v0");
        assert_eq!((get("v0"), set("v0", 11), set("v0", 12), get("v0")), (Ok(0), Err(EINVAL), Ok(()), Ok(12)));
        assert_eq!(refused(ns, "netmap:v0"), EIO, "a program must accept the header");
        drop(accepting("netmap:v0").expect("a port"));
        assert_eq!(get("v0"), Ok(12), "nobody has it open");
        done(ns, "-a vale0:v0");
        assert_eq!((get("v0"), get("vale0:v0"), refused(ns, "vale0:v0")), (Ok(12), Ok(12), EIO));
        let (port, other) = (accepting("vale0:v0").expect("a port"), open_in(ns, "vale0:other"));
        let assert_header = |bytes: usize, serial| {
            let plain = frames(&[60, 1000], serial);
            let with_header: Vec<_> = plain.iter().map(|frame| [&vec![0; bytes], &frame[..]].concat()).collect();
            transmit(&port, 0, &with_header, BUFFER);
            assert_eq!(collect(&other, 2), plain);
            transmit(&other, 0, &plain, BUFFER);
            assert_eq!(collect(&port, 2), with_header);
        };
        assert_header(12, 1);
        // Detached, attached to another switch, and changed while it is open.
        done(ns, "-d vale0:v0");
        assert_eq!((get("v0"), set("v0", 10), get("v0")), (Ok(12), Ok(()), Ok(10)));
        done(ns, "-a vale0:v0");
        assert_header(10, 100);
        assert_eq!((set("vale0:v0", 0), get("v0")), (Ok(()), Ok(0)));
        assert_header(0, 200);
        drop((port, other));
        // The host, which sends and receives plain frames, has the port again.
        assert_eq!(set("v0", 12), Ok(()));
        done(ns, "-d vale0:v0");
        done(ns, "-r v0");
        done(ns, "-n v0");
        assert_eq!(get("v0"), Ok(0), "a new port of this name");
        net.assert_alive();
    });
}

/// A persistent port that is attached already is attached to a second switch as an interface is.
#[test]
fn a_second_switch_gets_the_port_as_an_interface() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = Net::new(home, DIRECT, CABLE) else { return };
        let ns = &net.near;
        done(ns, "-n v0");
        done(ns, "-a vale0:v0");
        assert!(ctl(ns, "-a vale0:v0").2.contains("already"));
        let (a, b) = (open_in(ns, "vale0:a"), open_in(ns, "vale1:b"));
        done(ns, "-a vale1:v0");
        assert_connected(&a, &b, 1);
        for spec in ["netmap:v0", "vale0:v0", "vale1:v0"] {
            assert_eq!(refused(ns, spec), EBUSY, "{spec}");
        }
        assert!(ctl(ns, "-a vale2:v0").2.contains("open"));
        assert!(ctl(ns, "-r v0").2.contains("attached"));
        done(ns, "-d vale0:v0");
        assert!(ctl(ns, "-r v0").2.contains("vale1:v0"));
        done(ns, "-d vale1:v0");
        // A program that has it open excludes a second switch.
        done(ns, "-a vale0:v0");
        let port = open_in(ns, "vale0:v0");
        assert!(ctl(ns, "-a vale1:v0").2.contains("open"));
        assert_connected(&port, &a, 100);
        drop((port, a, b));
        done(ns, "-d vale0:v0");
        done(ns, "-r v0");
        until("nothing is left", || home.snapshot().ports.is_empty() && home.snapshot().regions.is_empty());
        net.assert_alive();
    });
}

/// The interface is deleted while programs have the port open: their calls fail, and nothing is left.
#[test]
fn deleting_the_interface_ends_the_port() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = Net::new(home, DIRECT, CABLE) else { return };
        let ns = &net.near;
        done(ns, "-n v0");
        done(ns, "-a vale0:v0");
        done(ns, "-a vale1:v0");
        done(ns, "-n v1");
        done(ns, "-a vale0:v1");
        bring_up(ns, "v1", &[]);
        let (port, monitor) = (open_in(ns, "netmap:v1"), open_in(ns, "netmap:v1/r"));
        for name in ["v0", "v1"] {
            ns.ip(&["link", "del", name]).expect("an interface");
        }
        until("calls fail", || port.rxsync().is_err() && monitor.rxsync().is_err());
        until("the switches have lost them", || done(ns, "").is_empty());
        done(ns, "-n v1");
        let new = open_in(ns, "netmap:v1");
        drop((port, monitor));
        transmit(&new, 0, &frames(&[60], 1), BUFFER);
        drop(new);
        done(ns, "-r v1");
        until("nothing is left", || home.snapshot().ports.is_empty() && home.snapshot().regions.is_empty());
        net.assert_alive();
    });
}

/// An XDP program and a socket would never see the port's packets.
#[test]
fn filters_busy_polling_and_ways_of_a_persistent_port_are_refused() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        done(&net.near, "-n v0");
        let nic = |args: &[&str]| {
            let out = net.near.command(program("unetmap")).args(["nic", "v0"]).args(args).output();
            let out = out.expect("the front command");
            (out.status.success(), String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned())
        };
        for args in [&["filter", "udp"][..], &["busy-poll", "20"], &["way", "copy"]] {
            let (success, text) = nic(args);
            assert!(!success && text.contains("persistent port"), "{args:?}: {text}");
        }
        assert!(nic(&["filter", "off"]).0 && nic(&["busy-poll", "off"]).0);
        let (success, text) = nic(&["--json"]);
        assert!(success && text.contains(r#""filter":null"#) && text.contains(r#""busy_poll":null"#), "{text}");
        done(&net.near, "-r v0");
    });
}

/// Whichever is opened first: both ends of a pipe and its parent are in one region.
#[test]
fn a_parent_joins_the_region_of_pipes_that_are_older() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let ns = &net.near;
        let reader = open_in(ns, "netmap:q}0");
        done(ns, "-n q");
        let persistent = open_in(ns, "netmap:q");
        let writer = open_in(ns, &format!("netmap:q{{0@{}", persistent.mem_id()));
        assert!(persistent.same_region(&reader) && persistent.same_region(&writer));
        assert_connected(&writer, &reader, 1);
        drop((persistent, writer));
        done(ns, "-r q");
        // The interface has gone, and the pipe has not.
        assert_connected(&open_in(ns, "netmap:q{0"), &reader, 100);
        let reader = open_in(ns, "vale0:e}0");
        let ephemeral = open_in(ns, "vale0:e");
        assert!(ephemeral.same_region(&reader));
        assert_connected(&ephemeral, &open_in(ns, "vale0:other"), 200);
        assert_connected(&open_in(ns, "vale0:e{0"), &reader, 300);
        // The other way round.
        let late = open_in(ns, "vale0:other{1");
        assert!(!late.same_region(&ephemeral));
        let parent = open_in(ns, "vale0:other");
        assert!(parent.same_region(&late));
    });
}

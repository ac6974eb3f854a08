// SPDX-License-Identifier: BSD-2-Clause
//! An interface that is attached to a switch together with its host stack.

use conformance::home::summary;
use conformance::host::{ATTACHMENTS, Attachment, TRAFFIC, net, until_clean, until_it_works};
use conformance::net::{BUFFER, frame, open_in, transmit};
use conformance::switch::{ctl, done, ipv4_of};
use conformance::{Home, isolated_with_interfaces, until};

/// Host and wire communicate over the switch, with each kind of traffic.
fn the_host_stays_on_its_wire(home: &Home, attachment: Attachment) {
    let Some(mut net) = net(home, attachment, 1500) else { return };
    assert!(done(&net.near, "-h vale0:va").starts_with("port_index: "));
    let list = done(&net.near, "-l vale0:va^");
    assert!(list.contains("vale0:va^ bridge_idx 0 port_idx 1"), "{list}");
    for (name, works) in TRAFFIC {
        works(&net).unwrap_or_else(|why| panic!("{} x {}: {name}: {why}", attachment.name, attachment.queues));
    }
    let books = home.snapshot();
    let crossed: u64 =
        books.ports.iter().filter(|p| p.name == "vale0:va^").flat_map(|p| &p.rings).map(|r| r.crossed).sum();
    assert!(crossed > 5_000, "only {crossed} slots moved, so the traffic went another way");
    // Both ports belong to the interface.
    for (args, part) in [("-h vale0:va", "already"), ("-a vale0:va", "already"), ("-d vale0:va^", "-d vale0:va)")] {
        let (status, _, err) = ctl(&net.near, args);
        assert!(status == 1 && err.contains(part), "{args}: {err}");
    }
    done(&net.near, "-d vale0:va");
    until_it_works("the stack has the interface again", &net);
    until_clean(&net);
    until("nothing is left", || home.snapshot().ports.is_empty() && home.snapshot().regions.is_empty());
    net.assert_alive();
    summary(&format!("{} x {}: {crossed} slots crossed the host's port", attachment.name, attachment.queues));
}

#[test]
fn the_host_stack_is_attached_in_native_mode() {
    isolated_with_interfaces(|home| the_host_stays_on_its_wire(home, ATTACHMENTS[0]));
}

#[test]
fn the_host_stack_is_attached_in_generic_mode() {
    isolated_with_interfaces(|home| the_host_stays_on_its_wire(home, ATTACHMENTS[2]));
}

/// A third port communicates with both, and sees broadcasts but none of the unicast packets between the two.
#[test]
fn a_program_shares_a_switch_with_host_and_wire() {
    isolated_with_interfaces(|home| {
        let Some(net) = net(home, ATTACHMENTS[0], 1500) else { return };
        done(&net.near, "-h vale0:va");
        let third = open_in(&net.near, "vale0:third");
        until_it_works("over the switch", &net);
        ipv4_of(&third);
        for (name, works) in &TRAFFIC[..4] {
            works(&net).unwrap_or_else(|why| panic!("{name}: {why}"));
        }
        assert_eq!(ipv4_of(&third), 0, "frames that were for others");
        let before = [net.near.counters("va").unwrap(), net.far.counters("vb").unwrap()];
        transmit(&third, 0, &[[&[0xff; 6][..], &frame(60, 1)[6..]].concat()], BUFFER);
        for (ns, name, before) in [(&net.near, "va", before[0]), (&net.far, "vb", before[1])] {
            until("a broadcast arrives", || ns.counters(name).unwrap().rx_packets > before.rx_packets);
        }
        // The daemon is killed: the interface returns to the host.
        rustix::process::kill_process(home.daemon(), rustix::process::Signal::KILL).expect("it runs");
        until_it_works("the stack has the interface again", &net);
        until_clean(&net);
    });
}

/// A persistent port has no separate host stack to attach.
#[test]
fn a_persistent_port_is_attached_without_its_host_stack() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = net(home, ATTACHMENTS[0], 1500) else { return };
        done(&net.near, "-n vi0");
        let (status, _, err) = ctl(&net.near, "-h vale0:vi0");
        assert!(status == 1 && err.contains("own end"), "{err}");
        done(&net.near, "-r vi0");
        until("nothing is left", || home.snapshot().ports.is_empty());
        net.assert_alive();
    });
}

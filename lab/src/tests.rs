// SPDX-License-Identifier: BSD-2-Clause
//! The documented behaviour of a lab.

use std::net::UdpSocket;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

/// Returns `None`, and prints the reason, if this machine cannot have a lab.
fn lab() -> Option<Lab> {
    Lab::new().map_err(|why| eprintln!("skipped: {why}")).ok()
}

fn ours(prefix: &str) -> Vec<String> {
    let entries = fs::read_dir(FOLDER).into_iter().flatten().flatten();
    entries.filter_map(|e| e.file_name().into_string().ok()).filter(|name| name.starts_with(prefix)).collect()
}

const ADDRESSES: VethOptions = VethOptions {
    queues: 1,
    mtu: 1500,
    addresses: Some(("10.9.0.1/24", "10.9.0.2/24")),
    tx_checksum_off: false,
    native_xdp_peer: false,
};

#[test]
fn packets_cross_a_veth_and_are_counted_exactly() {
    let Some(lab) = lab() else { return };
    let (a, b) = (lab.namespace("a").unwrap(), lab.namespace("b").unwrap());
    lab.veth(&a, "va", &b, "vb", ADDRESSES).unwrap();
    // Long enough for a network stack that sends packets by itself to send one.
    thread::sleep(Duration::from_millis(300));
    assert_eq!([a.counters("va").unwrap(), b.counters("vb").unwrap()], [Counters::default(); 2]);

    let receiver = b.run(|| UdpSocket::bind("10.9.0.2:7")).unwrap().unwrap();
    let sender = a.run(|| UdpSocket::bind("10.9.0.1:8")).unwrap().unwrap();
    for _ in 0..10 {
        sender.send_to(&[0x55; 58], "10.9.0.2:7").unwrap();
        let mut buffer = [0; 100];
        receiver.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        assert_eq!(receiver.recv_from(&mut buffer).unwrap(), (58, "10.9.0.1:8".parse().unwrap()));
    }
    let (sent, got) = (a.counters("va").unwrap(), b.counters("vb").unwrap());
    // Ten datagrams of 100 bytes; an ARP request and its reply, 42 bytes each.
    assert_eq!((sent.tx_packets, sent.tx_bytes, sent.rx_packets, sent.rx_bytes), (11, 1042, 1, 42));
    assert_eq!((got.rx_packets, got.rx_bytes, got.tx_packets, got.tx_bytes), (11, 1042, 1, 42));
    assert_eq!((sent.tx_dropped, got.rx_dropped), (0, 0));
}

#[test]
fn a_veth_pair_has_the_requested_options() {
    let Some(lab) = lab() else { return };
    let (a, b) = (lab.namespace("a").unwrap(), lab.namespace("b").unwrap());
    let options =
        VethOptions { queues: 3, mtu: 900, tx_checksum_off: true, native_xdp_peer: true, ..VethOptions::default() };
    lab.veth(&a, "left", &b, "right", options).unwrap();
    // Another veth pair, with both ends in one namespace.
    lab.veth(&a, "x", &a, "y", VethOptions::default()).unwrap();
    for (ns, name) in [(&a, "left"), (&b, "right")] {
        let queues = |kind| ns.run(|| queues_of(name, kind)).unwrap();
        assert_eq!((queues("rx"), queues("tx")), (3, 3));
        assert_eq!(ns.link(name).unwrap()["mtu"], 900);
        let features = ns.tool("ethtool", &["-k", name]).unwrap();
        assert!(features.contains("tx-checksumming: off") && features.contains("receive-offload: on"), "{features}");
    }
    assert_ne!(a.mac("left").unwrap(), b.mac("right").unwrap());
    assert_ne!(a.mac("x").unwrap(), [0; 6]);
    assert!(b.counters("x").unwrap_err().contains("does not exist"));
}

fn queues_of(interface: &str, kind: &str) -> usize {
    // Only `ip netns exec` shows /sys of the namespace; elsewhere the numbers of queues can be read by ioctls only.
    let name = fs::read_link("/proc/thread-self/ns/net").unwrap();
    let inode: u64 = name.to_str().unwrap().trim_start_matches("net:[").trim_end_matches(']').parse().unwrap();
    let ns = ours(PREFIX).into_iter().find(|n| fs::metadata(path_of(n)).is_ok_and(|m| m.ino() == inode)).unwrap();
    let list =
        output(Command::new("ip").args(["netns", "exec", &ns, "ls", &format!("/sys/class/net/{interface}/queues")]));
    list.unwrap().lines().filter(|line| line.starts_with(kind)).count()
}

#[test]
fn commands_and_threads_run_inside() {
    let Some(lab) = lab() else { return };
    let ns = lab.namespace("a").unwrap();
    let here = fs::metadata("/proc/thread-self/ns/net").unwrap().ino();
    let inside = ns.run(|| fs::metadata("/proc/thread-self/ns/net").unwrap().ino()).unwrap();
    assert_eq!((inside, ns.id()), (ns.id(), fs::metadata(ns.path()).unwrap().ino()));
    assert_ne!(inside, here);
    assert_eq!(fs::metadata("/proc/thread-self/ns/net").unwrap().ino(), here);

    let mut command = ns.command("sh");
    let child = command.args(["-c", "echo $$; readlink /proc/self/ns/net; exit 3"]).stdout(Stdio::piped()).spawn();
    let child = child.unwrap();
    let pid = child.id();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{pid}\nnet:[{}]\n", ns.id()));

    let message = ns.ip(&["link", "set", "nothing", "up"]).unwrap_err();
    assert!(message.starts_with("ip -n unm-") && message.contains("Cannot find device"), "{message}");
    let message = ns.tool("sh", &["-c", "echo one two >&2; exit 4"]).unwrap_err();
    assert!(message.contains("one two") && message.contains("4"), "{message}");
    let lo = ns.link("lo").unwrap();
    assert!(lo["flags"].as_array().unwrap().contains(&"UP".into()), "{lo}");
}

#[test]
fn a_lab_removes_everything_when_dropped() {
    let Some(first) = lab() else { return };
    let second = Lab::new().unwrap();
    let ns = [first.namespace("a").unwrap(), second.namespace("a").unwrap()];
    assert!(first.namespace("a").unwrap_err().contains("File exists"));
    assert!(first.namespace("a b").unwrap_err().contains("lower case"));
    assert_eq!((ours(&first.prefix).len(), ours(&second.prefix).len()), (1, 1));
    let prefix = first.prefix.clone();
    let result = catch_unwind(AssertUnwindSafe(move || {
        let _lab = first;
        ns[0].run(|| panic!("on purpose")).unwrap();
    }));
    assert_eq!(result.unwrap_err().downcast_ref(), Some(&"on purpose"));
    assert_eq!(ours(&prefix), [""; 0]);
    assert_eq!(ours(&second.prefix).len(), 1);
}

#[test]
fn namespaces_of_exited_processes_are_removed() {
    let Some(lab) = lab() else { return };
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    let dead = format!("{PREFIX}{}-0-left", child.id());
    // Not made by a lab, although the names are similar.
    let others = [format!("{PREFIX}{}-test", child.id()), format!("{PREFIX}x-{}-test", child.id())];
    let alive = lab.namespace("alive").unwrap();
    for name in others.iter().chain([&dead]) {
        ip(&["netns", "add", name]).unwrap();
    }
    let again = Lab::new();
    let there = ours(PREFIX);
    for name in &others {
        ip(&["netns", "del", name]).unwrap();
    }
    again.unwrap();
    assert!(!there.contains(&dead), "{there:?}");
    assert!(others.iter().all(|name| there.contains(name)) && there.contains(&alive.0.name), "{there:?}");
}

// SPDX-License-Identifier: BSD-2-Clause
//! Interfaces in the running kernel. Each test runs in a thread with a network namespace of its own, which ends with
//! the thread.

#![allow(missing_docs)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, getsockname, sendto, socket_with};
use unetmap_sys::event::{PollFd, PollFlags, wait_readable};
use unetmap_sys::link::veth::{Veth, create, delete, peer_index_in, set_up};
use unetmap_sys::link::{
    AttachedMode, Channels, Link, LinkEvent, LinkWatch, OffloadKind, Offloads, all, by_index, by_name,
    changeable_offloads, channel_settings, channels, disable_offloads, driver, exists_at, set_offloads, xdp_features,
};
use unetmap_sys::netns::Netns;
use unetmap_sys::probe::program_name;
use unetmap_sys::xdp::{Mode, Xdp};

/// Index of `lo`, in each namespace.
const LO: u32 = 1;

/// Runs `test` in a network namespace of its own that contains only `lo`, down.
fn in_namespace(test: impl FnOnce() + Send) {
    thread::scope(|s| {
        let thread = s.spawn(|| {
            // SAFETY: K7: only this thread, which exits afterwards, changes its namespace.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                return eprintln!("skipped, no network namespace: {}", io::Error::last_os_error());
            }
            if let Err(error) = output(Command::new("ip").arg("-V")) {
                return eprintln!("skipped, no ip (iproute2): {error}");
            }
            test();
        });
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Held while a program is started. Between fork and exec the child has copies of all descriptors of this process: a
/// test that closes the last descriptor of a BPF link, and expects the program to be detached, takes this lock.
static STARTING: Mutex<()> = Mutex::new(());

fn starting() -> MutexGuard<'static, ()> {
    STARTING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a program. `spawn` returns after the child's exec, or its failure.
fn start(command: &mut Command) -> io::Result<Child> {
    let _guard = starting();
    command.spawn()
}

/// Runs a program and returns its output.
fn output(command: &mut Command) -> io::Result<Output> {
    start(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()))?.wait_with_output()
}

/// Runs `ip` in the calling thread's namespace and returns its output.
fn ip(args: &str) -> String {
    let out = output(Command::new("ip").args(args.split(' '))).unwrap();
    assert!(out.status.success(), "ip {args}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

fn named(name: &str) -> Link {
    by_name(name).unwrap().unwrap_or_else(|| panic!("no {name}"))
}

/// Returns all events up to now.
fn events_of(watch: &mut LinkWatch) -> Vec<LinkEvent> {
    let mut events = Vec::new();
    watch.read(&mut events).unwrap();
    events
}

/// Returns the properties of an interface after its last change.
fn last(events: &[LinkEvent], index: u32) -> Option<&Link> {
    events.iter().rev().find_map(|event| match event {
        LinkEvent::Changed(link) if link.index == index => Some(link),
        _ => None,
    })
}

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|e| e.raw_os_error())
}

#[test]
fn an_interface_is_found_by_name_and_index() {
    in_namespace(|| {
        ip("link add va address 02:00:00:00:00:2a mtu 1400 type veth peer name vb");
        let va = named("va");
        assert_eq!(va.mac, Some([2, 0, 0, 0, 0, 0x2a]));
        assert_eq!((va.mtu, va.kind.as_deref(), va.xdp), (1400, Some("veth"), None));
        assert!(!va.up && !va.carrier);
        assert!(ip("-o link show va").starts_with(&format!("{}: va@vb:", va.index)));
        assert_eq!(by_index(va.index).unwrap().as_ref(), Some(&va));

        ip("link set va up");
        assert_eq!((named("va").up, named("va").carrier), (true, false), "the other end is down");
        ip("link set vb up");
        assert_eq!((named("va").up, named("va").carrier), (true, true));
        ip("link set va down");
        assert_eq!((named("va").up, named("va").carrier), (false, false));

        ip("link set va name renamed");
        assert_eq!(by_name("va").unwrap(), None);
        assert_eq!(by_index(va.index).unwrap().unwrap().name, "renamed");
        assert_eq!(named("renamed").index, va.index);
        ip("link del renamed");
        assert_eq!(
            (by_name("renamed").unwrap(), by_name("vb").unwrap(), by_index(va.index).unwrap()),
            (None, None, None)
        );
    });
}

#[test]
fn interfaces_without_ethernet_have_no_mac() {
    in_namespace(|| {
        let lo = named("lo");
        assert_eq!((lo.index, lo.mtu, lo.up, lo.mac, lo.kind.clone()), (LO, 65536, false, Some([0; 6]), None));
        assert_eq!(all().unwrap(), [lo]);
        if !std::path::Path::new("/dev/net/tun").exists() {
            return eprintln!("skipped, no /dev/net/tun");
        }
        ip("tuntap add tap0 mode tap multi_queue");
        ip("tuntap add tun0 mode tun");
        assert_eq!(named("tap0").kind.as_deref(), Some("tun"));
        assert!(named("tap0").mac.is_some());
        assert_eq!(named("tun0").mac, None);
        assert_eq!(channels("tap0").unwrap(), Channels { rx: 1, tx: 1 });
        assert_eq!(driver("tap0").unwrap().unwrap().name, "tun");
        ip("tuntap del tap0 mode tap multi_queue");
        ip("tuntap del tun0 mode tun");
    });
}

#[test]
fn invalid_names_are_not_found() {
    in_namespace(|| {
        let long = "n".repeat(16);
        for name in ["", "nobody", "a\0b", &long, &"n".repeat(127), &"n".repeat(128), &"n".repeat(70_000), "a/b", "%d"]
        {
            assert_eq!(by_name(name).unwrap(), None, "{name:.20?}");
            assert_eq!(errno(channels(name)), Some(libc::ENODEV), "{name:.20?}");
            assert_eq!(errno(driver(name)), Some(libc::ENODEV), "{name:.20?}");
        }
        for index in [0, 4321, i32::MAX as u32, i32::MAX as u32 + 1, u32::MAX] {
            assert_eq!(by_index(index).unwrap(), None, "{index}");
        }
        ip(&format!("link property add dev lo altname {long}"));
        ip("link property add dev lo altname also-lo");
        assert_eq!((named(&long).name.as_str(), named("also-lo").index), ("lo", LO));
    });
}

/// The list needs more than one datagram.
#[test]
fn many_interfaces_are_listed() {
    in_namespace(|| {
        let lines: String = (0..100).map(|i| format!("link add a{i} type veth peer name b{i}\n")).collect();
        ip_batch(&lines);
        let all = all().unwrap();
        assert_eq!(all.len(), 201);
        for link in &all {
            assert_eq!(by_index(link.index).unwrap().as_ref(), Some(link));
        }
    });
}

fn ip_batch(lines: &str) {
    let mut child = start(Command::new("ip").args(["-batch", "-"]).stdin(Stdio::piped())).unwrap();
    io::Write::write_all(&mut child.stdin.take().unwrap(), lines.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn queues_and_drivers_are_reported() {
    in_namespace(|| {
        ip("link add va numrxqueues 4 numtxqueues 4 type veth peer name vb numrxqueues 2 numtxqueues 3");
        assert_eq!(channels("va").unwrap(), Channels { rx: 4, tx: 4 });
        assert_eq!(channels("vb").unwrap(), Channels { rx: 2, tx: 3 });
        let set = channel_settings("vb").unwrap().unwrap();
        assert_eq!((set.rx, set.tx, set.combined, set.max_rx, set.max_tx), (2, 3, 0, 2, 3));
        assert_eq!(channels("lo").unwrap(), Channels { rx: 1, tx: 1 });
        assert_eq!(channel_settings("lo").unwrap(), None);
        let veth = driver("va").unwrap().unwrap();
        assert_eq!(veth.name, "veth");
        assert!(!veth.version.is_empty());
        if ethtool("-L va rx 2 tx 1") {
            assert_eq!(channels("va").unwrap(), Channels { rx: 2, tx: 1 });
            assert_eq!(channel_settings("va").unwrap().unwrap().max_rx, 4);
        }
    });
}

/// Runs ethtool; `false` if this machine has none.
fn ethtool(args: &str) -> bool {
    match output(Command::new("ethtool").args(args.split(' '))) {
        Ok(out) => {
            assert!(out.status.success(), "ethtool {args}: {}", String::from_utf8_lossy(&out.stderr));
            true
        }
        Err(error) => {
            eprintln!("skipped in part, no ethtool: {error}");
            false
        }
    }
}

#[test]
fn xdp_features_are_reported() {
    in_namespace(|| {
        ip("link add va type veth peer name vb");
        let Some(veth) = xdp_features(named("va").index).unwrap() else {
            return eprintln!("skipped, the kernel does not tell before Linux 6.3");
        };
        assert!(veth.basic && veth.redirect && veth.rx_sg && !veth.zerocopy && !veth.hw_offload);
        assert_eq!(veth.zc_max_segs, 1);
        let lo = xdp_features(LO).unwrap().unwrap();
        assert!(!lo.basic && !lo.redirect && !lo.zerocopy);
        for nowhere in [0, 4321, u32::MAX] {
            assert_eq!(errno(xdp_features(nowhere)), Some(libc::ENODEV), "{nowhere}");
        }
    });
}

#[test]
fn an_attached_program_is_reported() {
    in_namespace(|| {
        ip("link add va type veth peer name vb");
        let va = named("va").index;
        let attach = |index, mode| Xdp::attach(index, 1, mode);
        match attach(va, Mode::Native) {
            Err(error) => eprintln!("skipped, no BPF: {error}"),
            Ok(native) => {
                let xdp = named("va").xdp.unwrap();
                assert_eq!(xdp.mode, AttachedMode::Native);
                assert!(xdp.prog_id > 0);
                assert!(ip("-d link show va").contains(&format!("prog/xdp id {} ", xdp.prog_id)));
                let name = program_name(xdp.prog_id).unwrap();
                assert!(name == "unetmap_frags" || name == "unetmap_plain", "{name}");
                let _generic = attach(LO, Mode::Generic).unwrap();
                assert_eq!(named("lo").xdp.unwrap().mode, AttachedMode::Generic);
                let _guard = starting();
                drop(native);
                assert_eq!(named("va").xdp, None);
            }
        }
    });
}

#[test]
fn changes_are_reported() {
    in_namespace(|| {
        let mut watch = LinkWatch::new().unwrap();
        assert_eq!(events_of(&mut watch), []);
        ip("link add va type veth peer name vb");
        let (va, vb) = (named("va"), named("vb"));
        assert!(wait_readable(&mut [PollFd::new(&watch, PollFlags::IN)], None).is_ok());
        let events = events_of(&mut watch);
        assert_eq!((last(&events, va.index), last(&events, vb.index)), (Some(&va), Some(&vb)));
        assert_eq!(events_of(&mut watch), [], "each is reported once");

        ip("link set va mtu 1234");
        assert_eq!(last(&events_of(&mut watch), va.index).unwrap().mtu, 1234);
        ip("link set va name other");
        assert_eq!(last(&events_of(&mut watch), va.index).unwrap().name, "other");
        ip("link set other up");
        ip("link set vb up");
        // The kernel reports the carrier a moment later.
        let (mut events, begin) = (events_of(&mut watch), Instant::now());
        let reported = |events: &[LinkEvent]| {
            let now = |index| {
                last(events, index).is_some_and(|link| link.carrier && by_index(index).unwrap().as_ref() == Some(link))
            };
            now(va.index) && now(vb.index)
        };
        while !reported(&events) {
            assert!(begin.elapsed() < Duration::from_secs(30), "{events:?}");
            thread::sleep(Duration::from_millis(5));
            events.extend(events_of(&mut watch));
        }
        ip("link set other down");
        assert!(!last(&events_of(&mut watch), va.index).unwrap().up);
        ip("link set other address 02:00:00:00:00:07");
        assert_eq!(last(&events_of(&mut watch), va.index).unwrap().mac, Some([2, 0, 0, 0, 0, 7]));

        ip("link del other");
        let events = events_of(&mut watch);
        for index in [va.index, vb.index] {
            assert_eq!(events.iter().filter(|&e| *e == LinkEvent::Gone { index }).count(), 1, "{events:?}");
        }
    });
}

/// It is reported as deleted in the old namespace, and as new in the other one.
#[test]
fn an_interface_moves_to_another_namespace() {
    in_namespace(|| {
        let mut watch = LinkWatch::new().unwrap();
        ip("link add va type veth peer name vb");
        let vb = named("vb").index;
        events_of(&mut watch);

        let (to_parent, to_child) = (mpsc::channel(), mpsc::channel::<()>());
        thread::scope(|s| {
            let there = s.spawn(move || {
                // SAFETY: K7: as in `in_namespace`.
                assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
                let mut watch = LinkWatch::new().unwrap();
                // SAFETY: K7.
                to_parent.0.send(unsafe { libc::gettid() }).unwrap();
                to_child.1.recv().unwrap();
                let events = events_of(&mut watch);
                let vb = named("vb");
                assert_eq!(last(&events, vb.index), Some(&vb));
            });
            let tid = to_parent.1.recv().unwrap();
            // `ip` accepts a thread id as a process id.
            ip(&format!("link set vb netns {tid}"));
            to_child.0.send(()).unwrap();
            if let Err(panic) = there.join() {
                std::panic::resume_unwind(panic);
            }
        });
        let events = events_of(&mut watch);
        assert_eq!(events.iter().filter(|&e| *e == LinkEvent::Gone { index: vb }).count(), 1, "{events:?}");
        assert_eq!(by_name("vb").unwrap(), None);
    });
}

/// The kernel reports it with the message that otherwise means a deleted interface.
#[test]
fn leaving_a_bridge_is_not_reported_as_deletion() {
    in_namespace(|| {
        ip("link add va type veth peer name vb");
        if !output(Command::new("ip").args(["link", "add", "br0", "type", "bridge"])).unwrap().status.success() {
            return eprintln!("skipped, the kernel has no bridge");
        }
        let va = named("va").index;
        let mut watch = LinkWatch::new().unwrap();
        ip("link set va master br0");
        ip("link set va nomaster");
        let events = events_of(&mut watch);
        assert!(!events.contains(&LinkEvent::Gone { index: va }), "{events:?}");
        assert_eq!(last(&events, va), Some(&named("va")));
        ip("link del br0");
    });
}

#[test]
fn lost_events_are_reported() {
    in_namespace(|| {
        ip("link add va type veth peer name vb");
        let mut watch = LinkWatch::new().unwrap();
        let lines: String = (0..2000).map(|i| format!("link set lo mtu {}\n", 2000 + i)).collect();
        ip_batch(&lines);
        assert_eq!(events_of(&mut watch), [LinkEvent::Lost], "what is older than the loss would mislead");
        assert_eq!(events_of(&mut watch), []);
        ip("link set lo mtu 5000");
        assert_eq!(last(&events_of(&mut watch), LO).unwrap().mtu, 5000, "it goes on");
        let mut events = vec![LinkEvent::Gone { index: 9 }];
        ip_batch(&lines);
        watch.read(&mut events).unwrap();
        assert_eq!(events, [LinkEvent::Gone { index: 9 }, LinkEvent::Lost]);
    });
}

/// Root of a namespace may send to the netlink sockets in it.
#[test]
fn messages_from_other_processes_are_ignored() {
    in_namespace(|| {
        let mut watch = LinkWatch::new().unwrap();
        let port = SocketAddrNetlink::try_from(getsockname(watch.as_fd()).unwrap()).unwrap().pid();
        let liar = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None).unwrap();
        let mut message = [0; 32];
        message[..4].copy_from_slice(&32u32.to_ne_bytes());
        message[4..6].copy_from_slice(&libc::RTM_DELLINK.to_ne_bytes());
        message[20..24].copy_from_slice(&LO.to_ne_bytes());
        sendto(&liar, &message, SendFlags::empty(), &SocketAddrNetlink::new(port, 0)).unwrap();
        ip("link set lo mtu 4000");
        let events = events_of(&mut watch);
        assert!(!events.contains(&LinkEvent::Gone { index: LO }), "{events:?}");
        assert_eq!(last(&events, LO).unwrap().mtu, 4000);
    });
}

#[test]
fn a_watch_stays_with_its_namespace() {
    in_namespace(|| {
        let mut watch = LinkWatch::new().unwrap();
        in_namespace(|| {
            ip("link set lo up");
            assert_eq!(events_of(&mut watch), []);
            assert!(named("lo").up);
        });
        assert!(!named("lo").up);
    });
}

#[test]
fn a_veth_pair_is_created_and_deleted() {
    in_namespace(|| {
        let veth = Veth { name: "um0", peer: "um1", peer_netns: None, queues: 3 };
        create(veth).unwrap();
        assert_eq!(create(veth).unwrap_err().raw_os_error(), Some(libc::EEXIST));
        assert_eq!(create(Veth { name: "0123456789abcdef", ..veth }).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        for name in ["um0", "um1"] {
            let link = named(name);
            assert_eq!((link.kind.as_deref(), link.up), (Some("veth"), false));
            set_up(link.index).unwrap();
            assert!(named(name).up);
            assert_eq!(channels(name).unwrap(), Channels { rx: 3, tx: 3 });
        }
        let offloads = || {
            let printed = output(Command::new("ethtool").args(["-k", "um0"])).ok()?;
            Some(String::from_utf8_lossy(&printed.stdout).into_owned())
        };
        let before = offloads();
        let disabled = disable_offloads("um0", OffloadKind::Transmit).unwrap();
        assert_ne!(disabled, Offloads::default());
        assert_eq!(disable_offloads("um0", OffloadKind::Transmit).unwrap(), Offloads::default());
        if let Some(text) = offloads() {
            for name in ["tx-checksumming", "tcp-segmentation-offload", "tx-vlan-offload", "tx-udp-segmentation"] {
                assert!(text.contains(&format!("{name}: off")), "{text}");
            }
        }
        set_offloads("um0", disabled, true).unwrap();
        assert_eq!(offloads(), before);
        assert_eq!(changeable_offloads("um7", OffloadKind::Transmit).unwrap_err().raw_os_error(), Some(libc::ENODEV));
        delete(named("um1").index).unwrap();
        assert!(by_name("um0").unwrap().is_none());
        assert_eq!(delete(4711).unwrap_err().raw_os_error(), Some(libc::ENODEV));
        assert_eq!(delete(LO).unwrap_err().raw_os_error(), Some(libc::EOPNOTSUPP));
    });
}

#[test]
fn the_peer_of_a_veth_is_found_in_its_namespace() {
    in_namespace(|| {
        let index = |name: &str| named(name).index;
        let fd = |netns: &Netns| format!("/proc/{}/fd/{}", std::process::id(), netns.as_fd().as_raw_fd());
        let (one, two) = (Netns::new().unwrap(), Netns::new().unwrap());
        // Makes the indexes of the ends differ.
        ip("link add um2 type veth peer name um3");
        create(Veth { name: "um0", peer: "um1", peer_netns: Some(one.as_fd()), queues: 1 }).unwrap();
        let there = one.run(|| index("um1")).unwrap();
        let ends = || [&one, &two].map(|netns| peer_index_in(index("um0"), netns).unwrap());
        assert_eq!(ends(), [Some(there), None]);
        // The name does not matter, nor an earlier move.
        ip("link set um0 name um9");
        assert_eq!(peer_index_in(index("um9"), &one).unwrap(), Some(there));
        ip(&format!("link set um9 netns {} name um0", fd(&two)));
        assert_eq!(two.run(|| peer_index_in(index("um0"), &one).unwrap()).unwrap(), Some(there));
        assert_eq!(one.run(|| peer_index_in(there, &two).unwrap()).unwrap(), Some(two.run(|| index("um0")).unwrap()));
        // Peers in this namespace, interfaces without a peer, and missing ones.
        for index in [index("um2"), LO, 4711] {
            assert_eq!(peer_index_in(index, &one).unwrap(), None, "{index}");
        }
    });
}

#[test]
fn interfaces_of_a_socket_s_namespace_are_found_without_a_lock() {
    in_namespace(|| {
        let other = Netns::new().unwrap();
        create(Veth { name: "um0", peer: "um1", peer_netns: Some(other.as_fd()), queues: 1 }).unwrap();
        ip("link property add dev um0 altname umother");
        let socket = || socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let (here, there) = (socket(), other.run(socket).unwrap());
        let at = |name| [exists_at(&here, name), exists_at(&there, name)];
        assert_eq!(at("um0"), [Some(true), Some(false)]);
        assert_eq!(at("um1"), [Some(false), Some(true)]);
        assert_eq!(at("umother"), [Some(true), Some(false)]);
        // The kernel takes what is before a colon for the name, and does not look for longer ones.
        for name in ["um0:1", "", "um0\0", "um0-of-16-bytes-"] {
            assert_eq!(at(name), [None; 2], "{name:?}");
        }
        assert_eq!(at("um0-of-15-bytes"), [Some(false); 2]);
    });
}

#[test]
fn a_veth_whose_peer_namespace_ends_is_deleted() {
    in_namespace(|| {
        let (give, take) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let other = thread::spawn(move || {
            // SAFETY: K7: only this thread changes its namespace.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
            give.send(Netns::current().unwrap()).unwrap();
            let _ = ended.recv();
        });
        let there = take.recv().unwrap();
        create(Veth { name: "um0", peer: "um0", peer_netns: Some(there.as_fd()), queues: 1 }).unwrap();
        assert!(there.run(|| by_name("um0").unwrap().is_some()).unwrap());
        drop((end, there));
        other.join().unwrap();
        // The kernel removes a namespace some time later.
        let begin = std::time::Instant::now();
        while by_name("um0").unwrap().is_some() {
            assert!(begin.elapsed() < std::time::Duration::from_secs(30), "the near end stays");
            thread::sleep(std::time::Duration::from_millis(5));
        }
    });
}

/// The old way, by index alone, may stop all of Linux 6.18: it is not run here.
#[test]
fn a_veth_is_deleted_from_either_end_and_while_the_namespace_of_the_other_one_ends() {
    in_namespace(|| {
        fn veth(netns: Option<&Netns>) {
            let peer_netns = netns.map(Netns::as_fd);
            create(Veth { name: "um0", peer: "um1", peer_netns, queues: 1 }).unwrap();
        }
        let exists = |netns: &Netns, name: &'static str| netns.run(move || by_name(name).unwrap().is_some()).unwrap();
        let (here, there) = (Netns::current().unwrap(), Netns::new().unwrap());
        // Both ends here, the far one there, and from there.
        veth(None);
        delete(named("um1").index).unwrap();
        assert!(!exists(&here, "um0") && !exists(&here, "um1"));
        veth(Some(&there));
        delete(named("um0").index).unwrap();
        assert!(!exists(&here, "um0") && !exists(&there, "um1"));
        veth(Some(&there));
        there.run(|| delete(named("um1").index).unwrap()).unwrap();
        assert!(!exists(&here, "um0") && !exists(&there, "um1"));
        assert_eq!(errno(delete(4711)), Some(libc::ENODEV));
        // Its last descriptor closes at about the same time.
        for round in 0..100 {
            let ending = Netns::new().unwrap();
            veth(Some(&ending));
            let near = named("um0").index;
            let closer = thread::spawn(move || {
                thread::sleep(Duration::from_micros(round * 20));
                drop(ending);
            });
            let result = delete(near);
            assert!(matches!(errno(result), None | Some(libc::ENODEV)), "round {round}");
            closer.join().unwrap();
            assert!(!exists(&here, "um0"), "round {round}");
        }
    });
}

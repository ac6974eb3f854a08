// SPDX-License-Identifier: BSD-2-Clause
//! XDP in the running kernel. Each test runs in a thread with a network namespace of its own, which ends with the
//! thread.

#![allow(missing_docs)]

use std::fs::File;
use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use etherparse::{ArpHardwareId, ArpOperation, ArpPacket, EtherType, PacketBuilder, PacketBuilderStep, VlanId};
use rustix::io::FdFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use unetmap_sys::xdp::{ClassicInsn, Mode, Xdp};
use unetmap_sys::xsk::{self, BindMode, Queue, SocketRings, Umem, UnboundXsk, Xsk};
use unetmap_sys::{Mapping, memfd};

/// Index of `lo`, in each namespace.
const LO: u32 = 1;

/// Held by each test: between fork and exec a program that another test starts has copies of all descriptors of this
/// process, and a BPF link that is closed meanwhile stays attached (`EBUSY`).
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs `test` in a network namespace of its own that contains `lo`, up, and a veth pair, `va` and `vb`.
fn in_namespace(test: impl FnOnce() + Send) {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    thread::scope(|s| {
        let thread = s.spawn(|| {
            // SAFETY: K7: only this thread, which exits afterwards, changes its namespace.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                return eprintln!("skipped, no network namespace: {}", io::Error::last_os_error());
            }
            if let Err(error) = Command::new("ip").arg("-V").output() {
                return eprintln!("skipped, no ip (iproute2): {error}");
            }
            ip("link set lo up");
            ip("link add va numrxqueues 2 numtxqueues 2 type veth peer name vb numrxqueues 2 numtxqueues 2");
            if let Err(error) = Xdp::attach(LO, 1, Mode::Generic) {
                assert!(matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS)), "{error}");
                return eprintln!("skipped, no BPF: {error}");
            }
            test();
        });
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Runs `ip` in the calling thread's namespace and returns its output.
fn ip(args: &str) -> String {
    let out = Command::new("ip").args(args.split(' ')).output().unwrap();
    assert!(out.status.success(), "ip {args}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

fn index(name: &str) -> u32 {
    ip(&format!("-o link show {name}")).split(':').next().unwrap().parse().unwrap()
}

fn attached(name: &str) -> bool {
    ip(&format!("link show {name}")).contains("xdp")
}

fn socket() -> OwnedFd {
    socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None).unwrap()
}

fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|e| e.raw_os_error())
}

#[test]
fn an_interface_has_at_most_one_program() {
    in_namespace(|| {
        let va = index("va");
        let first = Xdp::attach(va, 2, Mode::Native).unwrap();
        assert_eq!(first.mode(), Mode::Native);
        assert!(ip("link show va").contains(" xdp "), "{}", ip("link show va"));
        assert_eq!(errno(Xdp::attach(va, 2, Mode::Native)), Some(libc::EBUSY));
        assert_eq!(errno(Xdp::attach(va, 2, Mode::Generic)), Some(libc::EEXIST));
        let other_end = Xdp::attach(index("vb"), 2, Mode::Generic).unwrap();
        assert_eq!(other_end.mode(), Mode::Generic);
        assert!(ip("link show vb").contains("xdpgeneric"));

        drop(first);
        assert!(!attached("va") && attached("vb"));
        drop(Xdp::attach(va, 2, Mode::Generic).unwrap());
        drop(other_end);
        assert!(!attached("va") && !attached("vb"));
    });
}

#[test]
fn invalid_interfaces_modes_and_queues_are_refused() {
    in_namespace(|| {
        assert_eq!(errno(Xdp::attach(LO, 1, Mode::Native)), Some(libc::EOPNOTSUPP));
        assert_eq!(errno(Xdp::attach(LO, 0, Mode::Generic)), Some(libc::EINVAL));
        for nowhere in [0, 12345, u32::MAX] {
            assert!(matches!(errno(Xdp::attach(nowhere, 1, Mode::Generic)), Some(libc::EINVAL | libc::ENODEV)));
        }
        assert!(!attached("lo"));
    });
}

#[test]
fn frames_of_a_queue_without_a_socket_pass_to_the_kernel() {
    in_namespace(|| {
        let mut xdp = Xdp::attach(LO, 2, Mode::Generic).unwrap();
        let frame = [0; 60];
        assert!(!xdp.would_redirect(&frame).unwrap());
        let (one, other) = (socket(), socket());
        xdp.insert(1, &other).unwrap();
        assert!(!xdp.would_redirect(&frame).unwrap(), "another queue's socket");
        xdp.insert(0, &one).unwrap();
        assert!(xdp.would_redirect(&frame).unwrap());
        xdp.insert(0, &other).unwrap();
        assert!(xdp.would_redirect(&frame).unwrap());
        xdp.remove(0).unwrap();
        assert!(!xdp.would_redirect(&frame).unwrap());
        xdp.remove(0).unwrap();
        xdp.remove(1).unwrap();

        assert_eq!(errno(xdp.insert(2, &one)), Some(libc::E2BIG));
        assert_eq!(errno(xdp.remove(2)), Some(libc::EINVAL));
        assert_eq!(errno(xdp.insert(0, File::open("/dev/null").unwrap())), Some(libc::ENOTSOCK));
        let udp = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None).unwrap();
        assert_eq!(errno(xdp.insert(0, udp)), Some(libc::EOPNOTSUPP));
        assert_eq!(errno(xdp.would_redirect(&[0; 13])), Some(libc::EINVAL));
    });
}

#[test]
fn a_closed_socket_is_removed_from_its_queue() {
    in_namespace(|| {
        let mut xdp = Xdp::attach(LO, 1, Mode::Generic).unwrap();
        let socket = socket();
        xdp.insert(0, &socket).unwrap();
        drop(socket);
        assert!(!xdp.would_redirect(&[0; 60]).unwrap());
    });
}

/// An inherited descriptor would keep the program attached while a started program runs.
#[test]
fn no_descriptor_is_inherited() {
    in_namespace(|| {
        let _xdp = Xdp::attach(LO, 1, Mode::Generic).unwrap();
        let mut seen = 0;
        for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
            let entry = entry.unwrap();
            let Ok(target) = std::fs::read_link(entry.path()) else { continue };
            if target.to_string_lossy().contains("bpf") {
                let number: i32 = entry.file_name().to_string_lossy().parse().unwrap();
                // SAFETY: K7: F_GETFD of a number; -1 if another test has closed it meanwhile.
                let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
                assert!(flags == -1 || FdFlags::from_bits_retain(flags as u32).contains(FdFlags::CLOEXEC));
                seen += 1;
            }
        }
        assert!(seen >= 3, "{seen}");
    });
}

#[test]
fn a_mtu_above_a_page_needs_frags() {
    in_namespace(|| {
        ip("link set va mtu 9000");
        ip("link set vb mtu 9000");
        if !Xdp::attach(LO, 1, Mode::Generic).unwrap().frags() {
            return eprintln!("skipped, no frames of several buffers before Linux 5.18");
        }
        let mut xdp = Xdp::attach(index("va"), 1, Mode::Native).unwrap();
        let socket = socket();
        xdp.insert(0, &socket).unwrap();
        assert!(xdp.would_redirect(&[7; 9000]).unwrap());
    });
}

/// A filter in the format of `tcpdump -dd`.
fn filter(shown: &[(u16, u8, u8, u32)]) -> Vec<ClassicInsn> {
    shown.iter().map(|&(code, jt, jf, k)| ClassicInsn { code, jt, jf, k }).collect()
}

/// `udp port 53`
#[rustfmt::skip]
const DNS: &[(u16, u8, u8, u32)] = &[
    (0x28, 0, 0, 0xc),
    (0x15, 0, 6, 0x86dd),
    (0x30, 0, 0, 0x14),
    (0x15, 0, 15, 0x11),
    (0x28, 0, 0, 0x36),
    (0x15, 12, 0, 0x35),
    (0x28, 0, 0, 0x38),
    (0x15, 10, 11, 0x35),
    (0x15, 0, 10, 0x800),
    (0x30, 0, 0, 0x17),
    (0x15, 0, 8, 0x11),
    (0x28, 0, 0, 0x14),
    (0x45, 6, 0, 0x1fff),
    (0xb1, 0, 0, 0xe),
    (0x48, 0, 0, 0xe),
    (0x15, 2, 0, 0x35),
    (0x48, 0, 0, 0x10),
    (0x15, 0, 1, 0x35),
    (0x06, 0, 0, 0x40000),
    (0x06, 0, 0, 0x0),
];

/// `ip6 and tcp`
#[rustfmt::skip]
const IP6_TCP: &[(u16, u8, u8, u32)] = &[
    (0x28, 0, 0, 0xc),
    (0x15, 0, 6, 0x86dd),
    (0x30, 0, 0, 0x14),
    (0x15, 3, 0, 0x6),
    (0x15, 0, 3, 0x2c),
    (0x30, 0, 0, 0x36),
    (0x15, 0, 1, 0x6),
    (0x06, 0, 0, 0x40000),
    (0x06, 0, 0, 0x0),
];

/// `host 10.0.0.1`
#[rustfmt::skip]
const HOST: &[(u16, u8, u8, u32)] = &[
    (0x28, 0, 0, 0xc),
    (0x15, 0, 4, 0x800),
    (0x20, 0, 0, 0x1a),
    (0x15, 8, 0, 0xa000001),
    (0x20, 0, 0, 0x1e),
    (0x15, 6, 7, 0xa000001),
    (0x15, 1, 0, 0x806),
    (0x15, 0, 5, 0x8035),
    (0x20, 0, 0, 0x1c),
    (0x15, 2, 0, 0xa000001),
    (0x20, 0, 0, 0x26),
    (0x15, 0, 1, 0xa000001),
    (0x06, 0, 0, 0x40000),
    (0x06, 0, 0, 0x0),
];

/// `vlan 5`
#[rustfmt::skip]
const VLAN_5: &[(u16, u8, u8, u32)] = &[
    (0x28, 0, 0, 0xc),
    (0x15, 2, 0, 0x8100),
    (0x15, 1, 0, 0x88a8),
    (0x15, 0, 4, 0x9100),
    (0x28, 0, 0, 0xe),
    (0x54, 0, 0, 0xfff),
    (0x15, 0, 1, 0x5),
    (0x06, 0, 0, 0x40000),
    (0x06, 0, 0, 0x0),
];

/// `icmp or arp`
#[rustfmt::skip]
const ICMP_OR_ARP: &[(u16, u8, u8, u32)] = &[
    (0x28, 0, 0, 0xc),
    (0x15, 0, 2, 0x800),
    (0x30, 0, 0, 0x17),
    (0x15, 1, 2, 0x1),
    (0x15, 0, 1, 0x806),
    (0x06, 0, 0, 0x40000),
    (0x06, 0, 0, 0x0),
];

/// Frames by name.
fn frames() -> Vec<(&'static str, Vec<u8>)> {
    const ONE: [u8; 4] = [10, 0, 0, 1];
    const TWO: [u8; 4] = [10, 0, 0, 2];
    const THREE: [u8; 4] = [10, 0, 0, 3];
    let ethernet = || PacketBuilder::ethernet2([2; 6], [4; 6]);
    let vlan = |id| ethernet().single_vlan(VlanId::try_new(id).unwrap());
    let finish = |step: PacketBuilderStep<etherparse::UdpHeader>| {
        let mut frame = Vec::new();
        step.write(&mut frame, b"hello").unwrap();
        frame
    };
    let mut icmp = Vec::new();
    ethernet().ipv4(TWO, THREE, 9).icmpv4_echo_request(1, 1).write(&mut icmp, b"hello").unwrap();
    let mut tcp6 = Vec::new();
    ethernet().ipv6([1; 16], [2; 16], 9).tcp(53, 53, 0, 0).write(&mut tcp6, b"hello").unwrap();
    let mut tcp4 = Vec::new();
    ethernet().ipv4(TWO, THREE, 9).tcp(53, 53, 0, 0).write(&mut tcp4, b"hello").unwrap();
    let request =
        ArpPacket::new(ArpHardwareId::ETHERNET, EtherType::IPV4, ArpOperation::REQUEST, &[2; 6], &TWO, &[0; 6], &ONE);
    let mut arp = Vec::new();
    ethernet().arp(request.unwrap()).write(&mut arp).unwrap();
    vec![
        ("dns", finish(ethernet().ipv4(TWO, THREE, 9).udp(9999, 53))),
        ("udp", finish(ethernet().ipv4(TWO, THREE, 9).udp(9999, 54))),
        ("udp to host", finish(ethernet().ipv4(TWO, ONE, 9).udp(9999, 54))),
        ("dns6", finish(ethernet().ipv6([1; 16], [2; 16], 9).udp(53, 9999))),
        ("vlan 5", finish(vlan(5).ipv4(TWO, ONE, 9).udp(9999, 53))),
        ("vlan 6", finish(vlan(6).ipv4(TWO, ONE, 9).udp(9999, 53))),
        ("icmp", icmp),
        ("tcp4", tcp4),
        ("tcp6", tcp6),
        ("arp for host", arp),
        ("short", vec![8; 14]),
    ]
}

#[test]
fn filters_compiled_by_tcpdump_select_frames() {
    in_namespace(|| {
        let mut xdp = Xdp::attach(LO, 1, Mode::Generic).unwrap();
        let socket = socket();
        xdp.insert(0, &socket).unwrap();
        for (shown, expected) in [
            (DNS, &["dns", "dns6"][..]),
            (IP6_TCP, &["tcp6"]),
            (HOST, &["udp to host", "arp for host"]),
            (VLAN_5, &["vlan 5"]),
            (ICMP_OR_ARP, &["icmp", "arp for host"]),
        ] {
            xdp.set_filter(Some(&filter(shown))).unwrap();
            let redirected: Vec<_> =
                frames().into_iter().filter(|(_, f)| xdp.would_redirect(f).unwrap()).map(|(n, _)| n).collect();
            assert_eq!(redirected, expected);
        }
        xdp.set_filter(None).unwrap();
        assert!(frames().iter().all(|(_, frame)| xdp.would_redirect(frame).unwrap()));
    });
}

/// Only frames that the filter does not accept reach the kernel's sockets.
#[test]
fn rejected_frames_reach_the_network_stack() {
    in_namespace(|| {
        let mut xdp = Xdp::attach(LO, 1, Mode::Generic).unwrap();
        let socket = socket();
        let receivers = [53, 54].map(|port| UdpSocket::bind(("127.0.0.1", port)).unwrap());
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let received = || {
            receivers.each_ref().map(|receiver| {
                sender.send_to(b"hello", receiver.local_addr().unwrap()).unwrap();
                receiver.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
                receiver.recv(&mut [0; 8]).is_ok()
            })
        };
        assert_eq!(received(), [true, true], "no socket");
        xdp.insert(0, &socket).unwrap();
        assert_eq!(received(), [false, false], "no filter");
        xdp.set_filter(Some(&filter(DNS))).unwrap();
        assert_eq!(received(), [false, true]);
        xdp.remove(0).unwrap();
        assert_eq!(received(), [true, true], "no socket, and a filter");
        xdp.insert(0, &socket).unwrap();
        drop(xdp);
        assert_eq!(received(), [true, true], "detached");
    });
}

/// The embedded objects match their sources; skipped without the compiler that built them.
#[test]
fn the_embedded_objects_match_their_sources() {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/bpf");
    let out = match Command::new("make").args(["-s", "-C", folder, "check"]).output() {
        Ok(out) => out,
        Err(error) => return eprintln!("skipped, no make: {error}"),
    };
    let output = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
    eprint!("{output}");
    assert!(out.status.success(), "{output}");
}

/// A socket of queue 0 of `lo`, and the mapping of its memory, for buffers of `buffer` bytes.
fn unbound(buffer: u32, mode: BindMode) -> UnboundXsk<'static> {
    let bytes = 64 * buffer as usize;
    let before = xsk::pool_offset_in_page(buffer) as usize;
    let fd = memfd::create_sealed("test", (before + bytes) as u64).unwrap();
    let map = Arc::new(Mapping::new(fd.as_fd(), before + bytes).unwrap());
    let umem = Umem { map, offset: before, bytes, buffer };
    let queue = Queue { ifindex: LO, queue: 0, tx_entries: 64, rx_entries: 64, mode, frags: false, headroom: 0 };
    UnboundXsk::new(queue, umem, None).unwrap()
}

/// Binds such a socket, after the kernel has released the queue of an earlier one. Returns it with its rings.
fn bound(buffer: u32, mode: BindMode) -> io::Result<(Xsk, SocketRings)> {
    loop {
        let created = unbound(buffer, mode);
        let rings = created.map_rings().unwrap();
        match created.bind() {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {}
            bound => return bound.map(|bound| (bound, rings)),
        }
    }
}

#[test]
fn rings_are_mapped_before_and_after_the_socket_is_bound() {
    in_namespace(|| {
        for buffer in [*xsk::BUFFER_BYTES.start(), 2048, 3000, xsk::ZERO_COPY_BUFFER] {
            let (bound, rings) = bound(buffer, BindMode::Copy).unwrap();
            assert!(rings.are_of(&bound) && !rings.are_of(socket()), "{buffer}");
            let shared = xsk::map_send_rings(&bound, 64);
            assert_eq!(shared.is_ok(), xsk::maps_bound_rings(LO).unwrap(), "{shared:?}");
        }
    });
}

#[test]
fn a_driver_without_zero_copy_refuses_it() {
    in_namespace(|| {
        assert_eq!(errno(bound(xsk::ZERO_COPY_BUFFER, BindMode::ZeroCopy)), Some(libc::EOPNOTSUPP));
        bound(xsk::ZERO_COPY_BUFFER, BindMode::Copy).unwrap();
    });
}

// SPDX-License-Identifier: BSD-2-Clause
//! Interfaces for tests: two network namespaces connected by a veth pair, a daemon that opens the near end, and kernel
//! sockets at the far end.
//!
//! ```text
//!   near                              far
//!   [va 10.9.0.1/24] ---------------- [vb 10.9.0.2/24]
//!   netmap:va                         Tap: an AF_PACKET socket
//! ```

use std::collections::VecDeque;
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use lab::{Counters, Lab, Ns, VethOptions};
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, bind, recv, send, setsockopt, socket, sockopt,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use unetmap::abi::NS_MOREFRAG;
use unetmap::{Interest, Port};

use crate::bpf;
use crate::home::{Guard, Home, LIMIT, first_daemon, summary, until};
use crate::packet::Rng;
use crate::traffic::{bytes_of, open};

/// The default policy: root opens interfaces directly.
pub const DIRECT: &str = "";
/// A policy by which root gets mediated interfaces.
pub const MEDIATED: &str = "[[rule]]\nports = [\"*\"]\nusers = [\"root\"]\naccess = \"mediated\"\n";
/// Bytes of a buffer.
pub const BUFFER: usize = 2048;
/// Part of the daemon's message about a queue whose previous AF_XDP socket is not released yet.
pub const HELD: &str = "is held by another AF_XDP socket";
/// How long to wait for packets that must not arrive.
const QUIET: Duration = Duration::from_millis(60);
/// EtherType of the tests' frames: reserved for experiments, so no network stack answers.
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];
/// EtherTypes of frames that network stacks send: IPv4, ARP.
const STACKS: [[u8; 2]; 2] = [[0x08, 0x00], [0x08, 0x06]];
/// Receive buffer of a tap's socket, in bytes.
const TAP_BYTES: usize = 64 << 20;

/// The veth options that most tests use.
pub const CABLE: VethOptions<'_> = VethOptions {
    queues: 1,
    mtu: 1500,
    addresses: Some(("10.9.0.1/24", "10.9.0.2/24")),
    tx_checksum_off: true,
    native_xdp_peer: false,
};

/// Two namespaces, a veth pair, and a daemon.
pub struct Net {
    // Fields are dropped in this order: the daemon stops before its interfaces are removed.
    daemon: Guard,
    /// The namespace of the programs under test.
    pub near: Ns,
    /// The namespace of the other end.
    pub far: Ns,
    /// Makes more namespaces and veth pairs.
    pub lab: Lab,
}

impl Drop for Net {
    /// A test that fails says where its packets have gone.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        for (ns, interface) in [(&self.near, "va"), (&self.far, "vb")] {
            eprintln!("{}", ns.ip(&["-s", "-s", "link", "show", interface]).unwrap_or_else(|e| e));
        }
        match self.near.tool(&crate::program("unetmap").to_string_lossy(), &["ls", "--json"]) {
            Ok(text) | Err(text) => eprintln!("{text}"),
        }
    }
}

impl Net {
    /// Makes `va` in `near`, `vb` in `far`, and starts a daemon with this policy. Prints why and returns `None` if this
    /// machine cannot have them.
    #[track_caller]
    pub fn new(home: &Home, policy: &str, cable: VethOptions<'_>) -> Option<Net> {
        Net::with(home, policy, cable, &[])
    }

    /// As [`Net::new`], with more arguments for the daemon.
    #[track_caller]
    pub fn with(home: &Home, policy: &str, cable: VethOptions<'_>, args: &[&str]) -> Option<Net> {
        Net::made(home, policy, cable, (args, None))
    }

    /// As [`Net::new`], with a daemon that has a fault, as [`start_faulty_daemon`].
    #[track_caller]
    pub fn with_fault(home: &Home, policy: &str, cable: VethOptions<'_>, fault: &str) -> Option<Net> {
        Net::made(home, policy, cable, (&[], Some(fault)))
    }

    #[track_caller]
    fn made(home: &Home, policy: &str, cable: VethOptions<'_>, (args, fault): (&[&str], Option<&str>)) -> Option<Net> {
        let made = Lab::new().and_then(|lab| {
            bpf::check_xdp_socket().map_err(|e| format!("no AF_XDP sockets can be made here: {e}"))?;
            bpf::check_xdp_program().map_err(|e| format!("no XDP programs can be loaded here: {e}"))?;
            Ok(lab)
        });
        let lab = match made {
            Ok(lab) => lab,
            Err(why) => {
                summary(&format!("skipped: {why}"));
                return None;
            }
        };
        let namespace = |label| lab.namespace(label).unwrap_or_else(|e| panic!("{e}"));
        let (near, far) = (namespace("near"), namespace("far"));
        lab.veth(&near, "va", &far, "vb", cable).unwrap_or_else(|e| panic!("{e}"));
        set_policy(home, policy);
        let daemon = run_daemon(home, args, fault);
        Some(Net { daemon, near, far, lab })
    }

    /// Opens a port in `near`, which must succeed. Retries while a queue that was just closed is still held: a busy
    /// kernel may release it later than the daemon waits.
    #[track_caller]
    pub fn open(&self, spec: &str) -> Port {
        let end = Instant::now() + LIMIT;
        loop {
            match self.near.run(|| Port::open(spec)).expect("a namespace") {
                Ok(port) => return port,
                Err(e) if e.to_string().contains(HELD) && Instant::now() < end => {}
                Err(e) => panic!("{spec}: {e}"),
            }
        }
    }

    /// Starts a program in `near` that opens interfaces, and restarts it if it could not open them yet; returns when it
    /// has `sessions` sessions.
    #[track_caller]
    pub fn start(&self, home: &Home, program: impl AsRef<std::ffi::OsStr>, args: &[&str], sessions: usize) -> Guard {
        let end = Instant::now() + LIMIT;
        loop {
            let mut command = self.near.command(&program);
            let mut guard = Guard::spawn(command.args(args).stdout(Stdio::null()).stderr(Stdio::null()));
            while guard.0.try_wait().expect("our child").is_none() {
                let pid = guard.0.id();
                if home.snapshot().sessions.iter().filter(|session| session.pid == pid).count() == sessions {
                    return guard;
                }
                assert!(Instant::now() < end, "{args:?} opened nothing within {LIMIT:?}");
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(Instant::now() < end, "{args:?} opened nothing within {LIMIT:?}");
        }
    }

    /// Opens a port in `near`, which must be refused; returns the errno and the message.
    #[track_caller]
    pub fn refused(&self, spec: &str) -> (i32, String) {
        match self.near.run(|| Port::open(spec)).expect("a namespace") {
            Ok(_) => panic!("{spec} was opened"),
            Err(e) => (e.errno(), e.to_string()),
        }
    }

    /// Opens a packet socket at the far end.
    #[track_caller]
    pub fn tap(&self) -> Tap {
        Tap::on(&self.far, "vb")
    }

    /// Whether the stacks of the two namespaces reach each other.
    pub fn pings(&self) -> bool {
        pings(&self.near, "10.9.0.2")
    }

    /// The daemon's process is still the one that was started.
    #[track_caller]
    pub fn assert_alive(&mut self) {
        if let Some(status) = self.ended() {
            panic!("the daemon ended: {status}");
        }
    }

    /// The daemon's exit status, if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.daemon.0.try_wait().ok().flatten()
    }

    /// Waits until the daemon has ended by itself.
    #[track_caller]
    pub fn until_ended(&mut self) {
        until("the daemon ends", || self.ended().is_some());
    }

    /// Kills the daemon, and starts another one at its place; returns when that answers.
    #[track_caller]
    pub fn restart_daemon(&mut self, home: &Home) {
        self.restart(home, None);
    }

    /// As [`Net::restart_daemon`], with a fault, as [`start_faulty_daemon`].
    #[track_caller]
    pub fn restart_faulty_daemon(&mut self, home: &Home, fault: &str) {
        self.restart(home, Some(fault));
    }

    #[track_caller]
    fn restart(&mut self, home: &Home, fault: Option<&str>) {
        self.daemon.kill();
        self.daemon = run_daemon(home, &[], fault);
        until("the daemon answers", || home.try_snapshot().is_some());
    }

    /// Whether an XDP program is attached to `va`.
    #[track_caller]
    pub fn has_xdp(&self) -> bool {
        let text = self.near.ip(&["-d", "link", "show", "dev", "va"]).expect("an interface");
        text.contains("prog/xdp")
    }

    /// Waits until the XDP program is detached from `va` and the kernel's stack receives from it again.
    #[track_caller]
    pub fn assert_given_back(&self) {
        until("the XDP program is gone", || !self.has_xdp());
        until("the stack has the interface again", || self.pings());
        // Seconds later the kernel would ask whether the neighbour is still there, in a frame that nobody expects.
        for ns in [&self.near, &self.far] {
            ns.ip(&["neigh", "flush", "all"]).expect("neighbours");
        }
    }

    /// A command that runs a program in `near`.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        self.near.command(program)
    }
}

/// Starts a daemon without a policy of its own; returns when it listens.
#[track_caller]
pub fn serve(home: &Home) -> Guard {
    set_policy(home, DIRECT);
    start_daemon(home, &[])
}

/// Starts a daemon with the test's policy; returns when it listens.
#[track_caller]
pub fn start_daemon(home: &Home, args: &[&str]) -> Guard {
    run_daemon(home, args, None)
}

/// The same, with a policy of its own and a fault, which daemons that are built for debugging have (`UNETMAP_FAULT`).
#[track_caller]
pub fn start_faulty_daemon(home: &Home, policy: &str, fault: &str) -> Guard {
    set_policy(home, policy);
    run_daemon(home, &[], Some(fault))
}

/// While it exists, a daemon with the fault `interfaces` neither opens sockets nor detaches programs, one with the
/// fault `network-lock` ends no look at an interface, and one with the fault `files` makes no memory file immutable.
pub struct Held(PathBuf);

impl Held {
    /// Creates the file, beside the daemon's socket.
    pub fn new(home: &Home) -> Held {
        let path = home.socket().with_extension("hold");
        let _ = fs::remove_file(path.with_extension("held"));
        fs::write(&path, "").expect("a file to write");
        Held(path)
    }

    /// Waits until something of the daemon waits for it.
    #[track_caller]
    pub fn until_reached(&self) {
        until("the daemon is held up", || self.0.with_extension("held").exists());
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[track_caller]
fn run_daemon(home: &Home, args: &[&str], fault: Option<&str>) -> Guard {
    let log = File::options().append(true).create(true).open(home.log()).expect("a file for the daemon's log");
    let daemon = Guard::spawn(
        Command::new(first_daemon())
            .args(["--foreground", "--idle-exit", "0", "--socket"])
            .arg(home.socket())
            .arg("--policy")
            .arg(policy_file(home))
            .args(args)
            // That of tests in a process of their own; the rules' programs have the daemon's.
            .env("LIBXDP_BPFFS", home.folder().join("bpf"))
            .envs(fault.map(|fault| ("UNETMAP_FAULT", fault)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log),
    );
    until("the daemon serves, with nothing cleaned up by hand", || home.serves());
    daemon
}

/// The policy's file.
pub fn policy_file(home: &Home) -> PathBuf {
    home.folder().join("policy.toml")
}

/// Replaces the policy file atomically.
#[track_caller]
pub fn set_policy(home: &Home, text: &str) {
    let new = home.folder().join("policy.new");
    fs::write(&new, text).expect("a file to write");
    fs::rename(&new, policy_file(home)).expect("a file to rename");
}

/// Opens a port in a namespace; panics if it is refused.
#[track_caller]
pub fn open_in(ns: &Ns, spec: &str) -> Port {
    ns.run(|| open(spec)).expect("a namespace")
}

/// Sends one ping; returns whether it was answered within a second.
pub fn pings(from: &Ns, to: &str) -> bool {
    from.tool("ping", &["-n", "-c", "1", "-W", "1", to]).is_ok()
}

/// Packets and bytes received by an interface since `before`.
#[track_caller]
pub fn arrived(ns: &Ns, interface: &str, before: Counters) -> (u64, u64) {
    let now = ns.counters(interface).expect("an interface");
    (now.rx_packets - before.rx_packets, now.rx_bytes - before.rx_bytes)
}

/// A frame of `len` bytes, at least 14; the bytes after the Ethernet header are pseudo-random, determined by `seq` and
/// `len`.
pub fn frame(len: usize, seq: u64) -> Vec<u8> {
    let mut bytes = vec![0x02, 0, 0, 0, 0, 0x99, 0x02, 0, 0, 0, 0, 0x01];
    bytes.extend(ETHERTYPE);
    let mut rng = Rng((seq << 16 | len as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    while bytes.len() < len {
        bytes.push(rng.next_u64() as u8);
    }
    bytes
}

/// Frames of these lengths, numbered from `seq`.
pub fn frames(lens: &[usize], seq: u64) -> Vec<Vec<u8>> {
    lens.iter().zip(seq..).map(|(len, seq)| frame(*len, seq)).collect()
}

/// Compares frames; on failure prints positions and lengths instead of thousands of bytes.
#[track_caller]
pub fn assert_same(got: &[Vec<u8>], wanted: &[Vec<u8>]) {
    for (i, (got, wanted)) in got.iter().zip(wanted).enumerate() {
        let differ = got.iter().zip(wanted).position(|(a, b)| a != b);
        assert!(
            got == wanted,
            "frame {i} of {}: {} bytes instead of {}, first difference at {differ:?}",
            wanted.len(),
            got.len(),
            wanted.len()
        );
    }
    assert_eq!(got.len(), wanted.len(), "frames");
}

/// Sends frames on transmit ring `ring` of a port, each in slots of up to `piece` bytes.
#[track_caller]
pub fn transmit(port: &Port, ring: usize, frames: &[Vec<u8>], piece: usize) {
    let ring = &port.tx_rings()[ring];
    let mut left: VecDeque<&Vec<u8>> = frames.iter().collect();
    let end = Instant::now() + LIMIT;
    while let Some(frame) = left.front() {
        let slots = frame.len().div_ceil(piece);
        if (ring.space() as usize) < slots {
            port.txsync().unwrap_or_else(|e| panic!("{e}"));
            assert!(Instant::now() < end, "{} frames not sent within {LIMIT:?}", left.len());
            continue;
        }
        for (i, (slot, part)) in ring.available().zip(frame.chunks(piece)).enumerate() {
            slot.frame().write(0, part);
            slot.set_len_flags(part.len() as u16, if i + 1 < slots { NS_MOREFRAG } else { 0 });
        }
        ring.advance(slots as u32);
        left.pop_front();
    }
    port.txsync().unwrap_or_else(|e| panic!("{e}"));
}

/// Waits until all transmit rings are drained.
#[track_caller]
pub fn drain(port: &Port) {
    until("everything is sent", || {
        port.txsync().unwrap_or_else(|e| panic!("{e}"));
        !port.tx_rings().iter().any(unetmap::Ring::pending)
    });
}

/// Takes all packets of receive ring `ring`; joins the slots of each packet.
pub fn take(port: &Port, ring: usize) -> Vec<Vec<u8>> {
    let ring = &port.rx_rings()[ring];
    let (mut got, mut part, mut n) = (Vec::new(), Vec::new(), 0);
    for slot in ring.available() {
        part.extend(bytes_of(&slot));
        n += 1;
        if slot.flags() & NS_MOREFRAG == 0 {
            got.push(std::mem::take(&mut part));
        }
    }
    ring.advance(n);
    got
}

/// Discards packets of receive ring 0 until none arrives for 20 ms.
pub fn empty(port: &Port) {
    loop {
        port.rxsync().unwrap_or_else(|e| panic!("{e}"));
        if take(port, 0).is_empty() && !port.poll(Interest::RX, Some(Duration::from_millis(20))).is_ok_and(Interest::rx)
        {
            return;
        }
    }
}

/// Receives `n` packets from all rings of a port.
#[track_caller]
pub fn collect(port: &Port, n: usize) -> Vec<Vec<u8>> {
    let (mut got, end) = (Vec::new(), Instant::now() + LIMIT);
    while got.len() < n {
        assert!(Instant::now() < end, "{} of {n} packets arrived within {LIMIT:?}", got.len());
        port.poll(Interest::RX, Some(Duration::from_millis(100))).unwrap_or_else(|e| panic!("{e}"));
        (0..port.rx_rings().len()).for_each(|ring| got.extend(take(port, ring)));
    }
    port.rxsync().unwrap_or_else(|e| panic!("{e}"));
    got
}

/// Sends and compares 300 frames, numbered from `seq`, in each direction between a port on `va` and a tap at `vb`.
#[track_caller]
pub fn assert_works(port: &Port, tap: &Tap, seq: u64) {
    let lens: Vec<usize> = (0..300).map(|i| 60 + i * 4).collect();
    let all = frames(&lens, seq);
    transmit(port, 0, &all, BUFFER);
    assert_same(&tap.collect(all.len()), &all);
    tap.send_all(&all);
    assert_same(&collect(port, all.len()), &all);
}

/// An AF_PACKET socket on one interface.
pub struct Tap {
    fd: OwnedFd,
}

impl Tap {
    /// Opens the socket; it receives every frame from now on.
    #[track_caller]
    pub fn on(ns: &Ns, interface: &str) -> Tap {
        let made = ns.run(|| {
            let fd = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, Some(SockProtocol::EthAll))?;
            setsockopt(&fd, sockopt::RcvBufForce, &TAP_BYTES)?;
            let address = nix::ifaddrs::getifaddrs()?
                .filter(|found| found.interface_name == interface)
                .find_map(|found| found.address?.as_link_addr().copied());
            let address: LinkAddr = address.ok_or(nix::Error::ENODEV)?;
            bind(fd.as_raw_fd(), &address)?;
            Ok::<_, nix::Error>(Tap { fd })
        });
        made.expect("a namespace").unwrap_or_else(|e| panic!("a packet socket on {interface}: {e}"))
    }

    /// Sends a frame as it is.
    #[track_caller]
    pub fn send(&self, frame: &[u8]) {
        let sent = send(self.fd.as_raw_fd(), frame, MsgFlags::empty());
        assert_eq!(sent, Ok(frame.len()), "sending {} bytes", frame.len());
    }

    /// Sends frames one after the other.
    #[track_caller]
    pub fn send_all(&self, frames: &[Vec<u8>]) {
        frames.iter().for_each(|frame| self.send(frame));
    }

    /// The next frame within `limit`, other than those of network stacks.
    pub fn next(&self, limit: Duration) -> Option<Vec<u8>> {
        let end = Instant::now() + limit;
        loop {
            let frame = self.next_of_any(end.saturating_duration_since(Instant::now()))?;
            if !STACKS.iter().any(|kind| frame.get(12..14) == Some(kind)) {
                return Some(frame);
            }
        }
    }

    /// The next frame within `limit`, of any sender.
    pub fn next_of_any(&self, limit: Duration) -> Option<Vec<u8>> {
        let end = Instant::now() + limit;
        let mut bytes = vec![0; 1 << 16];
        loop {
            if let Ok(n) = recv(self.fd.as_raw_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT) {
                bytes.truncate(n);
                return Some(bytes);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let _ = poll(&mut [PollFd::new(&self.fd.as_fd(), PollFlags::IN)], Some(&left));
        }
    }

    /// The next `n` frames.
    #[track_caller]
    pub fn collect(&self, n: usize) -> Vec<Vec<u8>> {
        let (mut got, end) = (Vec::with_capacity(n), Instant::now() + LIMIT);
        while got.len() < n {
            match self.next(end.saturating_duration_since(Instant::now())) {
                Some(frame) => got.push(frame),
                None => panic!("{} of {n} frames arrived within {LIMIT:?}", got.len()),
            }
        }
        got
    }

    /// Checks that no more frames arrive.
    #[track_caller]
    pub fn assert_quiet(&self) {
        if let Some(frame) = self.next(QUIET) {
            panic!("{} unexpected bytes arrived: {:02x?}", frame.len(), &frame[..frame.len().min(64)]);
        }
    }
}

/// Copies a test program to where every user can run it.
#[track_caller]
pub fn public_copy(folder: &Path, program: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt as _;
    let to = folder.join(Path::new(program).file_name().expect("a file"));
    fs::copy(program, &to).expect("a copy");
    let everybody = fs::Permissions::from_mode(0o755);
    fs::set_permissions(&to, everybody).expect("our own file");
    to
}

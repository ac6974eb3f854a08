// SPDX-License-Identifier: BSD-2-Clause
//! The network back end of a virtual machine: forwards packets between a tap device and a switch port, both with
//! virtio-net headers. The kernel's network stack at the tap is the guest.
//!
//! ```text
//! guest SPEC TAP HEADER   makes TAP with headers of HEADER bytes (10 or 12) and all offloads of the kernel
//! ```
//! Prints `ready OFFLOADS`, and at SIGTERM one line of counts for each direction, from the guest first: all packets,
//! those without a checksum, and GSO packets of TCP over IPv4, of TCP over IPv6, and of UDP.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use conformance::LIMIT;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, set_parent_process_death_signal};
use unetmap::abi::{NETMAP_REQ_PORT_HDR_SET, NR_ACCEPT_VNET_HDR, NS_MOREFRAG, NmreqPortHdr};
use unetmap::{Interest, Port};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const NAP: Duration = Duration::from_millis(50);
/// Bytes of a header and the longest packet after it.
const MOST: usize = 12 + 14 + 8 + 65535;

/// `TUNSETIFF`, `TUNSETOFFLOAD` and `TUNSETVNETHDRSZ`.
const SET_NAME: libc::c_ulong = 0x4004_54ca;
const SET_OFFLOADS: libc::c_ulong = 0x4004_54d0;
const SET_HEADER: libc::c_ulong = 0x4004_54d8;
/// `TUN_F_CSUM`, `TSO4`, `TSO6` and `TSO_ECN`, first with `USO4` and `USO6`, which need Linux 6.2.
const OFFLOADS: [libc::c_ulong; 2] = [0x6f, 0x0f];

fn main() -> ExitCode {
    // The program is killed when the test exits.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let args: Vec<String> = std::env::args().skip(1).collect();
    let done = match &args[..] {
        [spec, tap, header] => header.parse().map_err(Into::into).and_then(|header| run(spec, tap, header)),
        _ => Err("usage: guest SPEC TAP HEADER".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("guest: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(spec: &str, name: &str, header: u32) -> Outcome<()> {
    let stop = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGTERM, Arc::clone(&stop))?;
    let (tap, offloads) = tap(name, header)?;
    let open = |way: &str| Port::options().flags(NR_ACCEPT_VNET_HDR).open(&format!("{spec}/{way}"));
    let (tx, rx) = (open("T")?, open("R")?);
    let length = NmreqPortHdr { nr_hdr_len: header, ..Default::default() };
    unetmap::request(NETMAP_REQ_PORT_HDR_SET, spec, &length)?;
    // Packets sent before the header length was set have no header.
    std::thread::sleep(NAP);
    rx.rxsync()?;
    rx.rx_rings()[0].advance(u32::MAX);
    println!("ready {offloads:#x}");
    let (sent, received) = std::thread::scope(|scope| {
        let sender = scope.spawn(|| from_guest(&tap, &tx, &stop));
        let received = to_guest(&tap, &rx, &stop);
        stop.store(true, Relaxed);
        (sender.join().unwrap_or_else(|_| Err("the sender panicked".into())), received)
    });
    for count in [sent?, received?] {
        println!("{} {} {} {} {}", count.all, count.unfinished, count.rows[0], count.rows[1], count.rows[2]);
    }
    Ok(())
}

/// A tap device with virtio-net headers, and its offloads.
fn tap(name: &str, header: u32) -> io::Result<(File, libc::c_ulong)> {
    let file = File::options().read(true).write(true).open("/dev/net/tun")?;
    // SAFETY: all bytes of this plain structure may be 0.
    let mut ifreq: libc::ifreq = unsafe { std::mem::zeroed() };
    ifreq.ifr_name.iter_mut().zip(name.bytes()).for_each(|(to, byte)| *to = byte as libc::c_char);
    ifreq.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
    let fd = file.as_raw_fd();
    // SAFETY: the file is open; the pointers are to a whole `ifreq` and a whole int, as these requests need, and
    // outlive the calls.
    let made = unsafe {
        libc::ioctl(fd, SET_NAME, &raw mut ifreq) == 0 && libc::ioctl(fd, SET_HEADER, &raw const header) == 0
    };
    // SAFETY: plain calls that take a number.
    let offloads = OFFLOADS.into_iter().find(|bits| made && unsafe { libc::ioctl(fd, SET_OFFLOADS, *bits) } == 0);
    offloads.map(|offloads| (file, offloads)).ok_or_else(io::Error::last_os_error)
}

/// Packets forwarded in one direction.
#[derive(Default)]
struct Count {
    all: u64,
    /// Packets without a computed checksum.
    unfinished: u64,
    /// GSO packets: TCP over IPv4, TCP over IPv6, UDP.
    rows: [u64; 3],
}

impl Count {
    fn see(&mut self, packet: &[u8]) {
        self.all += 1;
        self.unfinished += u64::from(packet.first().is_some_and(|flags| flags & 1 != 0));
        // VIRTIO_NET_HDR_GSO_TCPV4, TCPV6, and UDP_L4.
        let kind = packet.get(1).map_or(0, |kind| kind & 0x7f);
        if let Some(kind) = [1, 4, 5].iter().position(|known| *known == kind) {
            self.rows[kind] += 1;
        }
    }
}

fn from_guest(tap: &File, port: &Port, stop: &AtomicBool) -> Outcome<Count> {
    let (mut count, mut bytes) = (Count::default(), vec![0; MOST]);
    let (mut tap, ring, piece) = (tap, &port.tx_rings()[0], port.buf_size() as usize);
    let nap = Timespec { tv_sec: 0, tv_nsec: NAP.subsec_nanos().into() };
    while !stop.load(Relaxed) {
        if poll(&mut [PollFd::new(&tap.as_fd(), PollFlags::IN)], Some(&nap))? == 0 {
            continue;
        }
        let n = tap.read(&mut bytes)?;
        let (packet, slots) = (&bytes[..n], n.div_ceil(piece));
        count.see(packet);
        while (ring.space() as usize) < slots {
            port.poll(Interest::TX, Some(LIMIT))?;
        }
        for (i, (slot, part)) in ring.available().zip(packet.chunks(piece)).enumerate() {
            slot.frame().write(0, part);
            slot.set_len_flags(part.len() as u16, if i + 1 < slots { NS_MOREFRAG } else { 0 });
        }
        ring.advance(slots as u32);
        port.txsync()?;
    }
    Ok(count)
}

fn to_guest(tap: &File, port: &Port, stop: &AtomicBool) -> Outcome<Count> {
    let (mut count, mut packet) = (Count::default(), Vec::with_capacity(MOST));
    let (mut tap, ring) = (tap, &port.rx_rings()[0]);
    while !stop.load(Relaxed) {
        port.poll(Interest::RX, Some(NAP))?;
        let mut n = 0;
        for slot in ring.available() {
            let at = packet.len();
            packet.resize(at + usize::from(slot.len()), 0);
            slot.frame().read(0, &mut packet[at..]);
            n += 1;
            if slot.flags() & NS_MOREFRAG == 0 {
                count.see(&packet);
                match tap.write_all(&packet) {
                    // The interface is not up.
                    Err(e) if e.raw_os_error() == Some(libc::EIO) => {}
                    done => done.map_err(|e| format!("a packet of {} bytes to the guest: {e}", packet.len()))?,
                }
                packet.clear();
            }
        }
        ring.advance(n);
    }
    Ok(count)
}

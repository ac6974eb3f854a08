// SPDX-License-Identifier: BSD-2-Clause
//! AF_XDP sockets: one queue of an interface, four rings, and the packet memory (umem).
//!
//! Frames begin at the start of their buffers. The kernel leaves 256 bytes before received data, so the chunk that it
//! is offered begins 256 bytes before the buffer, at any address (`XDP_UMEM_UNALIGNED_CHUNK_FLAG`):
//!
//! ```text
//! buffers of 2048 bytes    each chunk has 2304 bytes, and every second one crosses two pages
//! buffers of 4096 bytes    the pool begins 256 bytes into a page, and each chunk is one page
//! ```
//! Zero copy needs the second: a device accepts a chunk that crosses two pages only if these are contiguous for it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::net::sockopt::{
    set_xdp_rx_ring_size, set_xdp_tx_ring_size, set_xdp_umem_completion_ring_size, set_xdp_umem_fill_ring_size,
    set_xdp_umem_reg, xdp_mmap_offsets, xdp_options, xdp_statistics,
};
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, SocketAddrXdpWithSharedUmem, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING,
    XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpOptionsFlags, XdpRingOffset, XdpUmemReg,
    XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with};

use crate::map::PAGE;
use crate::once::known_or;
use crate::tuning::{QUEUE_RELEASE_LIMIT, QUEUE_RELEASE_POLL, XSK_TX_BUDGET};
use crate::{Mapping, kernel, memfd};

mod busy;
mod way;
mod zero_copy;
pub use busy::{BusyPoll, busy_poll, set_busy_poll};
pub use way::{DRIVERS, DriverRow, Evidence, Verdict, Way};
pub use zero_copy::{ZeroCopyObstacle, obstacle_known};

/// Bytes that the kernel leaves free before the data of a received packet (`XDP_PACKET_HEADROOM`).
pub const HEADROOM: u32 = 256;
/// Bytes of the largest chunk: the smallest page of all supported processors.
const MAX_CHUNK: u32 = 4096;
/// Buffer sizes in bytes that a socket supports: chunks have at least 2 KiB.
pub const BUFFER_BYTES: std::ops::RangeInclusive<u32> = 2048 - HEADROOM..=MAX_CHUNK;
/// Bytes of buffers that devices can use directly.
pub const ZERO_COPY_BUFFER: u32 = MAX_CHUNK;
/// Most bytes of a packet that is received in one buffer, or sent from one without a copy, whatever the size of the
/// buffer.
pub const MAX_PACKET: u32 = MAX_CHUNK - HEADROOM;

/// Most buffers of one packet. Source: the kernel's `MAX_SKB_FRAGS` by default.
pub const MAX_FRAGS: u32 = 17;

/// Returns how many bytes a pool of buffers of this size begins after the start of a page.
pub const fn pool_offset_in_page(buffer: u32) -> u32 {
    if buffer == ZERO_COPY_BUFFER { HEADROOM } else { 0 }
}
/// Socket option of Linux 6.17.
const XDP_MAX_TX_SKB_BUDGET: libc::c_int = 9;
const SOL_XDP: libc::c_int = 283;

/// Packet memory: a part of a mapping that is divided into equal buffers.
#[derive(Clone, Debug)]
pub struct Umem {
    /// The mapping; it outlives the socket.
    pub map: Arc<Mapping>,
    /// Offset of the first buffer; [`pool_offset_in_page`] bytes after a multiple of the page size.
    pub offset: usize,
    /// Bytes of all buffers.
    pub bytes: usize,
    /// Bytes of one buffer, within [`BUFFER_BYTES`].
    pub buffer: u32,
}

impl Umem {
    /// Returns the most bytes of a received packet in one buffer, if `headroom` bytes of each buffer are left free.
    pub fn receive_bytes(&self, headroom: u32) -> u32 {
        self.buffer.min(MAX_PACKET).saturating_sub(headroom)
    }

    /// The registration, with `headroom` bytes left free in each buffer; `None` if the buffers do not lie in the
    /// mapping, or not as the module's comment shows.
    fn registration(&self, headroom: u32) -> Option<XdpUmemReg> {
        let before = pool_offset_in_page(self.buffer) as usize;
        let start = self.offset.checked_sub(before)?;
        let end = self.offset.checked_add(self.bytes)?;
        let fits = BUFFER_BYTES.contains(&self.buffer) && end <= self.map.len() && start.is_multiple_of(PAGE);
        fits.then(|| XdpUmemReg {
            addr: self.map.as_ptr() as u64 + start as u64,
            len: (self.bytes + before) as u64,
            chunk_size: (self.buffer + HEADROOM).min(MAX_CHUNK),
            headroom,
            flags: XdpUmemRegFlags::XDP_UMEM_UNALIGNED_CHUNK_FLAG,
            tx_metadata_len: 0,
        })
    }
}

/// Parameters for binding a queue.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Queue {
    /// The interface, in the calling thread's network namespace.
    pub ifindex: u32,
    /// Queue number.
    pub queue: u32,
    /// Entries of the tx and completion rings; a power of two.
    pub tx_entries: u32,
    /// Entries of the rx and fill rings; a power of two.
    pub rx_entries: u32,
    /// Zero copy or copy mode; that of the other socket if the memory's registration is shared.
    pub mode: BindMode,
    /// Whether packets may span several buffers.
    pub frags: bool,
    /// Bytes left free at the start of each buffer of a received packet, in addition to the kernel's; less than a
    /// buffer.
    pub headroom: u32,
}

/// How packets move between the device and the buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum BindMode {
    /// Directly (`XDP_ZEROCOPY`).
    ZeroCopy,
    /// Through the kernel's buffers (`XDP_COPY`).
    Copy,
}

/// A bound socket.
#[derive(Debug)]
pub struct Xsk {
    fd: OwnedFd,
    _umem: Umem,
}

/// A socket with rings and memory that is not bound yet. Until Linux 6.3 only the rings of such a socket can be mapped.
/// Drivers read the fill ring while the socket is bound: some receive nothing if it is empty then, others lose buffers.
#[derive(Debug)]
pub struct UnboundXsk<'a> {
    fd: OwnedFd,
    queue: Queue,
    umem: Umem,
    shared_with: Option<BorrowedFd<'a>>,
}

/// The kernel's counters of a socket since its creation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    /// Received packets that were dropped: no buffer was available, or they did not fit.
    pub rx_dropped: u64,
    /// Of these, packets that found the rx ring full.
    pub rx_full: u64,
    /// How often the fill ring was empty. In copy mode that is once for each packet, which is one of `rx_dropped`.
    pub rx_no_buffer: u64,
    /// Buffers offered for receiving that do not exist.
    pub rx_invalid: u64,
    /// Packets to send outside of all buffers.
    pub tx_invalid: u64,
}

/// Creates a socket with rings, and registers the memory if `registers`: the process that does so must map it, and may
/// unmap it afterwards.
///
/// # Errors
/// As [`UnboundXsk::new`].
pub fn create(queue: &Queue, umem: &Umem, registers: bool) -> io::Result<OwnedFd> {
    let registration = umem.registration(queue.headroom).ok_or(Errno::INVAL)?;
    let fd = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    if registers {
        set_xdp_umem_reg(&fd, registration)?;
    }
    set_xdp_umem_fill_ring_size(&fd, queue.rx_entries)?;
    set_xdp_umem_completion_ring_size(&fd, queue.tx_entries)?;
    set_xdp_rx_ring_size(&fd, queue.rx_entries)?;
    set_xdp_tx_ring_size(&fd, queue.tx_entries)?;
    raise_budget(&fd);
    Ok(fd)
}

/// Returns the descriptor if it is an AF_XDP socket.
///
/// # Errors
/// `EINVAL` if it is none.
pub fn checked(fd: OwnedFd) -> io::Result<OwnedFd> {
    match rustix::net::sockopt::socket_domain(&fd) {
        Ok(AddressFamily::XDP) => Ok(fd),
        _ => Err(Errno::INVAL.into()),
    }
}

impl UnboundXsk<'_> {
    /// Creates a socket. `shared_with` is a bound socket of another queue of the interface with the same memory, which
    /// is then not registered again.
    ///
    /// # Errors
    /// `EAFNOSUPPORT`: the kernel has no AF_XDP; `EPERM`: no `CAP_NET_RAW`; `ENOBUFS`: the locked-memory limit;
    /// `EINVAL`: the memory or the number of entries is not supported.
    pub fn new(queue: Queue, umem: Umem, shared_with: Option<BorrowedFd<'_>>) -> io::Result<UnboundXsk<'_>> {
        let fd = create(&queue, &umem, shared_with.is_none())?;
        Ok(UnboundXsk { fd, queue, umem, shared_with })
    }

    /// The socket that another process has created by [`create`], with the same arguments.
    pub fn from_fd(fd: OwnedFd, queue: Queue, umem: Umem, shared_with: Option<BorrowedFd<'_>>) -> UnboundXsk<'_> {
        UnboundXsk { fd, queue, umem, shared_with }
    }

    /// Maps its rings.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn map_rings(&self) -> io::Result<SocketRings> {
        SocketRings::map(&self.fd, self.queue.tx_entries, self.queue.rx_entries)
    }

    /// Binds it, as [`UnboundXsk::bind_within`]: waits up to [`QUEUE_RELEASE_LIMIT`].
    ///
    /// # Errors
    /// As there.
    pub fn bind(self) -> io::Result<Xsk> {
        self.bind_within(QUEUE_RELEASE_LIMIT)
    }

    /// Binds it. It receives packets once the XDP program redirects them to it. Waits up to `limit` for a queue whose
    /// socket was just closed.
    ///
    /// # Errors
    /// `EBUSY`: another socket is bound to the queue; `EOPNOTSUPP`: the driver does not support the mode; `ENETDOWN`:
    /// the interface is down; `EINVAL`: no such queue, or the device does not support the mode.
    pub fn bind_within(self, limit: Duration) -> io::Result<Xsk> {
        let UnboundXsk { fd, queue, umem, shared_with } = self;
        let mut flags = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
        flags |= match queue.mode {
            BindMode::ZeroCopy => SocketAddrXdpFlags::XDP_ZEROCOPY,
            BindMode::Copy => SocketAddrXdpFlags::XDP_COPY,
        };
        if queue.frags {
            flags |= SocketAddrXdpFlags::XDP_USE_SG;
        }
        let own = SocketAddrXdp::new(flags, queue.ifindex, queue.queue);
        let bind_once = || match shared_with {
            None => bind(&fd, &own),
            Some(shared_umem_fd) => {
                let addr = SocketAddrXdp::new(SocketAddrXdpFlags::XDP_SHARED_UMEM, queue.ifindex, queue.queue);
                bind(&fd, &SocketAddrXdpWithSharedUmem { addr, shared_umem_fd })
            }
        };
        let start = Instant::now();
        loop {
            match bind_once() {
                Err(Errno::BUSY) if start.elapsed() < limit => std::thread::sleep(QUEUE_RELEASE_POLL),
                Err(e) => return Err(e.into()),
                Ok(()) => break,
            }
        }
        Ok(Xsk { fd, _umem: umem })
    }
}

impl Xsk {
    /// A bound socket that another process has opened, and its rings. `umem` is its memory in this process.
    ///
    /// # Errors
    /// `EINVAL`: no AF_XDP socket, or its rings have fewer entries; `EBUSY`: the kernel is older than Linux 6.4.
    pub fn of_bound(fd: OwnedFd, umem: Umem, tx_entries: u32, rx_entries: u32) -> io::Result<(Xsk, SocketRings)> {
        let fd = checked(fd)?;
        let rings = SocketRings::map(&fd, tx_entries, rx_entries)?;
        Ok((Xsk { fd, _umem: umem }, rings))
    }
}

impl AsFd for Xsk {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Checks that busy polling can be set, on a socket that is not bound.
///
/// # Errors
/// As [`set_busy_poll`], and those of creating a socket.
pub fn try_busy_poll(busy: BusyPoll) -> io::Result<()> {
    set_busy_poll(socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)?, busy)
}

/// Whether this kernel maps the rings of a socket that is bound, so that another process than the one that created it
/// can use it: always since Linux 6.4. On an older kernel it is tried once, in copy mode on queue 0 of interface
/// `ifindex` of the calling thread's network namespace.
///
/// # Errors
/// As [`UnboundXsk::new`] and [`UnboundXsk::bind`].
pub fn maps_bound_rings(ifindex: u32) -> io::Result<bool> {
    static KNOWN: OnceLock<bool> = OnceLock::new();
    known_or(&KNOWN, || Ok(!kernel::DIRECT.is_newer_than_kernel() || try_bound_rings(ifindex)?))
}

fn try_bound_rings(ifindex: u32) -> io::Result<bool> {
    const ENTRIES: u32 = 64;
    let fd = memfd::create_sealed("unetmap-probe", u64::from(MAX_CHUNK))?;
    let bytes = MAX_CHUNK as usize;
    let umem =
        Umem { map: Arc::new(Mapping::new(fd.as_fd(), bytes)?), offset: 0, bytes, buffer: *BUFFER_BYTES.start() };
    let queue = Queue {
        ifindex,
        queue: 0,
        tx_entries: ENTRIES,
        rx_entries: ENTRIES,
        mode: BindMode::Copy,
        frags: false,
        headroom: 0,
    };
    let socket = UnboundXsk::new(queue, umem, None)?.bind()?;
    match map_send_rings(&socket, ENTRIES) {
        Ok(_) => Ok(true),
        Err(e) if e.raw_os_error() == Some(libc::EBUSY) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Older kernels refuse the option, and need more calls.
fn raise_budget(fd: &OwnedFd) {
    use std::os::fd::AsRawFd;
    let budget = XSK_TX_BUDGET;
    // SAFETY: K1, K5: the option's value is an int, which outlives the call.
    unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            SOL_XDP,
            XDP_MAX_TX_SKB_BUDGET,
            (&raw const budget).cast(),
            size_of_val(&budget) as libc::socklen_t,
        )
    };
}

/// A mapped ring of a socket, with the offsets of its words.
#[derive(Clone, Debug)]
pub struct RingMap {
    /// The mapping of the kernel's memory.
    pub map: Arc<Mapping>,
    /// Byte offset in `map` of the producer index.
    pub producer: usize,
    /// Byte offset of the consumer index.
    pub consumer: usize,
    /// Byte offset of the flags.
    pub flags: usize,
    /// Byte offset of the first entry.
    pub entries_at: usize,
    /// Number of entries; a power of two.
    pub entries: u32,
}

/// The rings of a socket.
#[derive(Clone, Debug)]
pub struct SocketRings {
    /// Inode number of the socket, which no other open socket has.
    inode: u64,
    /// Packets to send.
    pub tx: RingMap,
    /// Sent buffers.
    pub completion: RingMap,
    /// Received packets.
    pub rx: RingMap,
    /// Buffers to receive into.
    pub fill: RingMap,
}

impl SocketRings {
    fn map(fd: impl AsFd, tx_entries: u32, rx_entries: u32) -> io::Result<SocketRings> {
        let inode = fstat(&fd)?.st_ino;
        let (tx, completion) = map_send_rings(&fd, tx_entries)?;
        let (rx, fill) = map_receive_rings(&fd, rx_entries)?;
        Ok(SocketRings { inode, tx, completion, rx, fill })
    }

    /// Whether they are the rings of this socket.
    pub fn are_of(&self, fd: impl AsFd) -> bool {
        fstat(fd).is_ok_and(|stat| stat.st_ino == self.inode)
    }
}

/// Maps the tx ring (packets to send) and the completion ring (sent buffers).
///
/// # Errors
/// `EINVAL`: `fd` is not a socket with rings, or they do not have `entries` entries; `EBUSY`: it is bound, and the
/// kernel is older than Linux 6.4.
pub fn map_send_rings(fd: impl AsFd, entries: u32) -> io::Result<(RingMap, RingMap)> {
    let at = xdp_mmap_offsets(&fd)?;
    let tx = map_ring(&fd, at.tx, entries, PACKET_ENTRY, XDP_PGOFF_TX_RING)?;
    let completion = map_ring(&fd, at.cr, entries, BUFFER_ENTRY, XDP_UMEM_PGOFF_COMPLETION_RING)?;
    Ok((tx, completion))
}

/// Maps the rx ring (received packets) and the fill ring (buffers to receive into).
///
/// # Errors
/// As [`map_send_rings`].
pub fn map_receive_rings(fd: impl AsFd, entries: u32) -> io::Result<(RingMap, RingMap)> {
    let at = xdp_mmap_offsets(&fd)?;
    let rx = map_ring(&fd, at.rx, entries, PACKET_ENTRY, XDP_PGOFF_RX_RING)?;
    let fill = map_ring(&fd, at.fr, entries, BUFFER_ENTRY, XDP_UMEM_PGOFF_FILL_RING)?;
    Ok((rx, fill))
}

fn map_ring(fd: impl AsFd, at: XdpRingOffset, entries: u32, entry: usize, page: u64) -> io::Result<RingMap> {
    if !entries.is_power_of_two() {
        return Err(Errno::INVAL.into());
    }
    let to_usize = |offset: u64| usize::try_from(offset).map_err(io::Error::other);
    let entries_at = to_usize(at.desc)?;
    Ok(RingMap {
        map: Arc::new(Mapping::of_socket(fd.as_fd(), entries_at + entries as usize * entry, page)?),
        producer: to_usize(at.producer)?,
        consumer: to_usize(at.consumer)?,
        flags: to_usize(at.flags.ok_or(Errno::OPNOTSUPP)?)?,
        entries_at,
        entries,
    })
}

/// Bytes of a packet descriptor (`struct xdp_desc`).
pub const PACKET_ENTRY: usize = 16;
/// Bytes of a buffer address.
pub const BUFFER_ENTRY: usize = 8;

/// Makes the kernel send the packets of the tx ring. Never blocks.
///
/// # Errors
/// `EAGAIN`, `EBUSY`, `ENOBUFS`: not all packets were sent, call again; `ENETDOWN`, `ENXIO`: the interface is down or
/// deleted.
#[inline]
pub fn kick_tx(fd: impl AsFd) -> Result<(), Errno> {
    send(fd, &[], SendFlags::DONTWAIT).map(|_| ())
}

/// Makes the driver read the fill ring. Never blocks.
///
/// # Errors
/// As [`kick_tx`]; callers may ignore them.
#[inline]
pub fn kick_rx(fd: impl AsFd) -> Result<(), Errno> {
    recv(fd, &mut [0u8; 0], RecvFlags::DONTWAIT).map(|_| ())
}

/// Reads the kernel's counters.
///
/// # Errors
/// `fd` is not an AF_XDP socket.
pub fn statistics(fd: impl AsFd) -> io::Result<Statistics> {
    let s = xdp_statistics(fd)?;
    // A packet without a buffer, or with a full ring, is counted in one of the two, depending on its path.
    let rx_full = s.rx_ring_full.unwrap_or(0);
    Ok(Statistics {
        rx_dropped: s.rx_dropped + rx_full,
        rx_full,
        rx_no_buffer: s.rx_fill_ring_empty_descs.unwrap_or(0),
        rx_invalid: s.rx_invalid_descs,
        tx_invalid: s.tx_invalid_descs,
    })
}

/// Returns whether the socket is bound in zero-copy mode.
///
/// # Errors
/// `fd` is not an AF_XDP socket, or not bound.
pub fn is_zero_copy(fd: impl AsFd) -> io::Result<bool> {
    Ok(xdp_options(fd)?.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY))
}

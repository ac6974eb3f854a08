//! AF_XDP sockets: one queue of an interface, four rings, and the packet memory (umem).
//!
//! Frames begin at the start of their buffers, and all bytes of a buffer are usable. The kernel leaves 256 bytes before
//! received data; chunks are therefore declared 256 bytes longer than buffers, and begin 256 bytes earlier
//! (`XDP_UMEM_UNALIGNED_CHUNK_FLAG`). Buffer 0 is then unusable; netmap reserves it anyway.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

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

use crate::Mapping;
use crate::tuning::{QUEUE_RELEASE_LIMIT, QUEUE_RELEASE_POLL, XSK_TX_BUDGET};

mod busy;
pub use busy::{BusyPoll, busy_poll, set_busy_poll};

/// Bytes that the kernel leaves free before the data of a received packet (`XDP_PACKET_HEADROOM`).
pub const HEADROOM: u32 = 256;
/// Buffer sizes in bytes that a socket supports: chunks have 2 KiB to one page, the headroom included.
pub const BUFFER_BYTES: std::ops::RangeInclusive<u32> = 2048 - HEADROOM..=4096 - HEADROOM;
/// Socket option of Linux 6.17.
const XDP_MAX_TX_SKB_BUDGET: libc::c_int = 9;
const SOL_XDP: libc::c_int = 283;

/// Packet memory: a part of a mapping that is divided into equal buffers.
#[derive(Clone, Debug)]
pub struct Umem {
    /// The mapping; it outlives the socket.
    pub map: Arc<Mapping>,
    /// Offset of the first buffer; a multiple of the page size.
    pub offset: usize,
    /// Bytes of all buffers.
    pub bytes: usize,
    /// Bytes of one buffer, within [`BUFFER_BYTES`].
    pub buffer: u32,
}

impl Umem {
    /// Moves it into huge pages. A device that writes directly into buffers requires that each one, headroom included,
    /// is contiguous for it; with small pages every second one crosses a page boundary.
    ///
    /// # Errors
    /// The kernel has no huge pages, or is older than 6.1.
    pub fn make_contiguous(&self) -> io::Result<()> {
        self.map.collapse(self.offset, self.bytes)
    }
}

/// Parameters for binding a queue.
#[derive(Clone, Copy, Debug)]
pub struct Queue {
    /// The interface, in the calling thread's network namespace.
    pub ifindex: u32,
    /// Queue number.
    pub queue: u32,
    /// Entries of the tx and completion rings; a power of two.
    pub tx_entries: u32,
    /// Entries of the rx and fill rings; a power of two.
    pub rx_entries: u32,
    /// Zero copy or copy mode.
    pub mode: BindMode,
    /// Whether packets may span several buffers.
    pub frags: bool,
    /// Bytes left free at the start of each buffer of a received packet, in addition to the kernel's; less than a
    /// buffer.
    pub headroom: u32,
}

/// How packets move between the device and the buffers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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

/// The kernel's counters of a socket since its creation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    /// Received packets that were dropped: no buffer was available, or they did not fit.
    pub rx_dropped: u64,
    /// Buffers offered for receiving that do not exist.
    pub rx_invalid: u64,
    /// Packets to send outside of all buffers.
    pub tx_invalid: u64,
}

impl Xsk {
    /// Creates a socket and binds it. It receives packets once the XDP program redirects them to it, and buffers are in
    /// the fill ring. `shared_with` is a socket of another queue of the interface with the same memory, which is then
    /// not registered again; its mode applies. Waits up to [`QUEUE_RELEASE_LIMIT`] for a queue whose socket was just
    /// closed.
    ///
    /// # Errors
    /// `EAFNOSUPPORT`: the kernel has no AF_XDP; `EPERM`: no `CAP_NET_RAW`; `ENOBUFS`: the locked-memory limit;
    /// `EBUSY`: another socket is bound to the queue; `EOPNOTSUPP`: the driver does not support the mode; `ENETDOWN`:
    /// the interface is down; `EINVAL`: no such queue.
    pub fn bind(queue: Queue, umem: Umem, shared_with: Option<BorrowedFd<'_>>) -> io::Result<Xsk> {
        if !BUFFER_BYTES.contains(&umem.buffer)
            || umem.offset.checked_add(umem.bytes).is_none_or(|n| n > umem.map.len())
        {
            return Err(Errno::INVAL.into());
        }
        let fd = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        let reg = XdpUmemReg {
            addr: umem.map.as_ptr() as u64 + umem.offset as u64,
            len: umem.bytes as u64,
            chunk_size: umem.buffer + HEADROOM,
            headroom: queue.headroom,
            flags: XdpUmemRegFlags::XDP_UMEM_UNALIGNED_CHUNK_FLAG,
            tx_metadata_len: 0,
        };
        if shared_with.is_none() {
            set_xdp_umem_reg(&fd, reg)?;
        }
        set_xdp_umem_fill_ring_size(&fd, queue.rx_entries)?;
        set_xdp_umem_completion_ring_size(&fd, queue.tx_entries)?;
        set_xdp_rx_ring_size(&fd, queue.rx_entries)?;
        set_xdp_tx_ring_size(&fd, queue.tx_entries)?;
        raise_budget(&fd);
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
                Err(Errno::BUSY) if start.elapsed() < QUEUE_RELEASE_LIMIT => std::thread::sleep(QUEUE_RELEASE_POLL),
                Err(e) => return Err(e.into()),
                Ok(()) => break,
            }
        }
        Ok(Xsk { fd, _umem: umem })
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

/// Maps the tx ring (packets to send) and the completion ring (sent buffers).
///
/// # Errors
/// `EINVAL`: `fd` is not a bound socket, or its rings do not have `entries` entries.
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
    let rx_dropped = s.rx_dropped + s.rx_ring_full.unwrap_or(0);
    Ok(Statistics { rx_dropped, rx_invalid: s.rx_invalid_descs, tx_invalid: s.tx_invalid_descs })
}

/// Returns whether the socket is bound in zero-copy mode.
///
/// # Errors
/// `fd` is not an AF_XDP socket, or not bound.
pub fn is_zero_copy(fd: impl AsFd) -> io::Result<bool> {
    Ok(xdp_options(fd)?.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY))
}

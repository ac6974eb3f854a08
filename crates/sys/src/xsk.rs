//! AF_XDP sockets: one queue of an interface, four rings, and the memory that packets lie in.
//!
//! Frames begin at the start of their buffers, all bytes of a buffer can be used: the kernel leaves 256 bytes before
//! received data, so that chunks are told to be that much longer than buffers, and to begin that much earlier
//! (`XDP_UMEM_UNALIGNED_CHUNK_FLAG`). Buffer 0 cannot be used then; netmap reserves it anyway.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

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

mod busy;
pub use busy::{BusyPoll, busy_poll, set_busy_poll};

/// Bytes that the kernel leaves free before the data of a received packet (`XDP_PACKET_HEADROOM`).
pub const HEADROOM: u32 = 256;
/// Buffer sizes in bytes that a socket can use: chunks are of 2 KiB to one page, the headroom included.
pub const BUFFER_BYTES: std::ops::RangeInclusive<u32> = 2048 - HEADROOM..=4096 - HEADROOM;
/// Descriptors that one `sendto` sends in copy mode; the kernel's default is 32. `XDP_MAX_TX_SKB_BUDGET`, Linux 6.17.
const TX_BUDGET: libc::c_int = 256;
const XDP_MAX_TX_SKB_BUDGET: libc::c_int = 9;
const SOL_XDP: libc::c_int = 283;
/// How long the kernel may take to let go of a queue that was just closed. Source: 1 to 7 ms were measured on veth.
const LET_GO: Duration = Duration::from_millis(20);

/// Memory for packets: a part of a mapping that is cut into equal buffers.
#[derive(Clone, Debug)]
pub struct Umem {
    /// The mapping, kept as long as the socket.
    pub map: Arc<Mapping>,
    /// Where the buffers begin; a multiple of the page size.
    pub offset: usize,
    /// Bytes of all buffers.
    pub bytes: usize,
    /// Bytes of one, within [`BUFFER_BYTES`].
    pub buffer: u32,
}

impl Umem {
    /// Has it put into huge pages. A device that writes straight into buffers takes only those that are contiguous for it,
    /// headroom included, and each second one lies across two small pages.
    ///
    /// # Errors
    /// The kernel has no huge pages to give, or is older than 6.1.
    pub fn make_contiguous(&self) -> io::Result<()> {
        self.map.collapse(self.offset, self.bytes)
    }
}

/// Which queue to bind, and how.
#[derive(Clone, Copy, Debug)]
pub struct Queue {
    /// The interface, in the calling thread's network namespace.
    pub ifindex: u32,
    /// Its queue.
    pub queue: u32,
    /// Entries of the rings for sending; a power of two.
    pub tx_entries: u32,
    /// Entries of the rings for receiving; a power of two.
    pub rx_entries: u32,
    /// How the driver may move packets.
    pub how: How,
    /// Whether packets may be spread over several buffers.
    pub frags: bool,
    /// Bytes of each buffer that received packets leave free, besides the kernel's own; fewer than a buffer has.
    pub headroom: u32,
}

/// How a driver moves packets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// Straight to and from the buffers.
    ZeroCopy,
    /// Through the kernel's own buffers.
    Copy,
}

/// A bound socket.
#[derive(Debug)]
pub struct Xsk {
    fd: OwnedFd,
    _umem: Umem,
}

/// What the kernel counted of a socket since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    /// Received packets that were dropped, for want of buffers or because they did not fit one.
    pub rx_dropped: u64,
    /// Buffers offered for receiving that do not exist.
    pub rx_invalid: u64,
    /// Packets to send that lay in no buffer.
    pub tx_invalid: u64,
}

impl Xsk {
    /// Makes a socket and binds it. Received packets come once the XDP program sends them there, and buffers are offered.
    /// `beside` is a socket of another queue of the interface with the same memory, which is then not registered again; it
    /// also says how packets move. Waits a little for a queue that was just closed.
    ///
    /// # Errors
    /// `EAFNOSUPPORT`: the kernel has no AF_XDP; `EPERM`: no `CAP_NET_RAW`; `ENOBUFS`: the locked-memory limit;
    /// `EBUSY`: somebody else holds the queue; `EOPNOTSUPP`: the driver cannot do it so; `ENETDOWN`: the interface is
    /// down; `EINVAL`: no such queue.
    pub fn bind(queue: Queue, umem: Umem, beside: Option<BorrowedFd<'_>>) -> io::Result<Xsk> {
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
        if beside.is_none() {
            set_xdp_umem_reg(&fd, reg)?;
        }
        set_xdp_umem_fill_ring_size(&fd, queue.rx_entries)?;
        set_xdp_umem_completion_ring_size(&fd, queue.tx_entries)?;
        set_xdp_rx_ring_size(&fd, queue.rx_entries)?;
        set_xdp_tx_ring_size(&fd, queue.tx_entries)?;
        raise_budget(&fd);
        let mut flags = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
        flags |= match queue.how {
            How::ZeroCopy => SocketAddrXdpFlags::XDP_ZEROCOPY,
            How::Copy => SocketAddrXdpFlags::XDP_COPY,
        };
        if queue.frags {
            flags |= SocketAddrXdpFlags::XDP_USE_SG;
        }
        let own = SocketAddrXdp::new(flags, queue.ifindex, queue.queue);
        let bind_once = || match beside {
            None => bind(&fd, &own),
            Some(shared_umem_fd) => {
                let addr = SocketAddrXdp::new(SocketAddrXdpFlags::XDP_SHARED_UMEM, queue.ifindex, queue.queue);
                bind(&fd, &SocketAddrXdpWithSharedUmem { addr, shared_umem_fd })
            }
        };
        let start = Instant::now();
        loop {
            match bind_once() {
                Err(Errno::BUSY) if start.elapsed() < LET_GO => std::thread::sleep(Duration::from_millis(1)),
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

/// Whether sockets can be made to poll busily so. None is bound.
///
/// # Errors
/// As [`set_busy_poll`], and those of making a socket.
pub fn try_busy_poll(busy: BusyPoll) -> io::Result<()> {
    set_busy_poll(socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)?, busy)
}

/// Older kernels do without, and need more calls.
fn raise_budget(fd: &OwnedFd) {
    use std::os::fd::AsRawFd;
    let budget = TX_BUDGET;
    // SAFETY: the option's value is an int, which lives during the call.
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

/// One ring of a socket, mapped: where its words are.
#[derive(Clone, Debug)]
pub struct RingMap {
    /// The kernel's memory.
    pub map: Arc<Mapping>,
    /// Bytes from the start of `map`: the producer's word.
    pub producer: usize,
    /// The consumer's word.
    pub consumer: usize,
    /// The word of flags.
    pub flags: usize,
    /// The first entry.
    pub entries_at: usize,
    /// Entries; a power of two.
    pub entries: u32,
}

/// The rings for sending, mapped: packets to send, and buffers that were sent.
///
/// # Errors
/// `EINVAL`: `fd` is no bound socket, or its rings do not have that many entries.
pub fn map_send_rings(fd: impl AsFd, entries: u32) -> io::Result<(RingMap, RingMap)> {
    let at = xdp_mmap_offsets(&fd)?;
    let tx = map_ring(&fd, at.tx, entries, PACKET_ENTRY, XDP_PGOFF_TX_RING)?;
    let completion = map_ring(&fd, at.cr, entries, BUFFER_ENTRY, XDP_UMEM_PGOFF_COMPLETION_RING)?;
    Ok((tx, completion))
}

/// The rings for receiving, mapped: received packets, and buffers to receive into.
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
    let plain = |offset: u64| usize::try_from(offset).map_err(io::Error::other);
    let entries_at = plain(at.desc)?;
    Ok(RingMap {
        map: Arc::new(Mapping::of_socket(fd.as_fd(), entries_at + entries as usize * entry, page)?),
        producer: plain(at.producer)?,
        consumer: plain(at.consumer)?,
        flags: plain(at.flags.ok_or(Errno::OPNOTSUPP)?)?,
        entries_at,
        entries,
    })
}

/// Bytes of an entry that names a packet (`struct xdp_desc`).
pub const PACKET_ENTRY: usize = 16;
/// Bytes of an entry that names a buffer.
pub const BUFFER_ENTRY: usize = 8;

/// Tells the kernel to send what is in the tx ring. Never waits.
///
/// # Errors
/// `EAGAIN`, `EBUSY`, `ENOBUFS`: not all was sent, call again; `ENETDOWN`, `ENXIO`: the interface is down, or gone.
#[inline]
pub fn kick_tx(fd: impl AsFd) -> Result<(), Errno> {
    send(fd, &[], SendFlags::DONTWAIT).map(|_| ())
}

/// Tells the driver to look at the fill ring. Never waits.
///
/// # Errors
/// As [`kick_tx`]; none of them matters to the caller.
#[inline]
pub fn kick_rx(fd: impl AsFd) -> Result<(), Errno> {
    recv(fd, &mut [0u8; 0], RecvFlags::DONTWAIT).map(|_| ())
}

/// What the kernel counted.
///
/// # Errors
/// It is no such socket.
pub fn statistics(fd: impl AsFd) -> io::Result<Statistics> {
    let s = xdp_statistics(fd)?;
    // A packet that finds no buffer, or a full ring, is counted in one of the two, by the way it came.
    let rx_dropped = s.rx_dropped + s.rx_ring_full.unwrap_or(0);
    Ok(Statistics { rx_dropped, rx_invalid: s.rx_invalid_descs, tx_invalid: s.tx_invalid_descs })
}

/// Whether packets go straight to and from the buffers.
///
/// # Errors
/// It is no such socket, or not bound.
pub fn is_zero_copy(fd: impl AsFd) -> io::Result<bool> {
    Ok(xdp_options(fd)?.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY))
}

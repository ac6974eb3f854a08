// SPDX-License-Identifier: BSD-2-Clause
//! Packet sockets (`AF_PACKET`): all frames of an interface, by a ring for those that arrive and a call for a batch of
//! those that are sent. They need `CAP_NET_RAW` of the network namespace's user namespace, and no BPF.
//!
//! ```text
//! ring    [ block ] [ block ] ..                                             TPACKET_V2
//! block   [ slot ] [ slot ] ..  rest, to which the kernel writes nothing; of the first block: the position
//! slot    [ status | length .. | virtio-net header | frame ]
//! ```
//! Each frame has a virtio-net header, by which the kernel tells what is missing: a checksum, or that it is several
//! frames yet. A VLAN tag that the kernel has taken out is beside the frame. A frame longer than a slot is in the
//! socket's queue. The kernel does not tell in which slot the next frame will be, so the receiver's position is in the
//! ring's memory, where all processes that have the ring find it, and the one that goes on after a crash.
//!
//! A process that has a socket can send and listen by it at all interfaces of its namespace (`bind`, `sendto`). So it
//! is for root of the namespace alone ([`peer_may_make`]).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{mem, ptr};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::{Mapping, Piece};

mod batch;
mod peer;

pub use batch::{Batch, Frames, MAX_PIECES, NotSent};
pub use peer::peer_may_make;

/// Bytes of the virtio-net header before each frame.
pub const HEADER: usize = 10;
/// Bytes of a ring: 2048 frames of up to 1900 bytes, as long as a thread is delayed for a millisecond at two million
/// frames a second.
const RING_BYTES: usize = 4 << 20;
/// Bytes of the smallest slot, and of the largest: jumbo frames. Longer frames are in the socket's queue.
const MIN_SLOT: usize = (2 << 10) - ROOM;
const MAX_SLOT: usize = (16 << 10) - ROOM;
/// Bytes that the kernel allocates in one piece.
const BLOCK: usize = 64 << 10;
/// Bytes by which a slot is less than a power of two, so that slots leave room in a block. The kernel wants a multiple
/// of this (`TPACKET_ALIGNMENT`).
const ROOM: usize = 16;
/// Bytes before a frame in its slot at most: `struct tpacket2_hdr` and `struct sockaddr_ll`, the virtio-net header, and
/// alignment.
const SLOT_HEADER: usize = 96;
/// Bytes of the queue of long frames that are asked for: about what a stream of TCP has on its way. Without
/// `CAP_NET_ADMIN` the kernel's own limit (`net.core.rmem_max`) may be lower.
const QUEUE_BYTES: libc::c_int = 4 << 20;
/// Bytes of a receiving socket at most: the kernel counts twice what is asked for the queue.
pub const MEMORY: usize = RING_BYTES + 2 * QUEUE_BYTES as usize;
/// Frames of one call.
const BATCH: usize = 64;
/// Bytes of a VLAN tag.
const TAG: u16 = 4;
/// Bytes of `struct tpacket2_hdr`.
const TPACKET2_HDR: usize = 32;
/// Bytes of a frame at most: an IP packet with an Ethernet header and two tags.
pub const MAX_FRAME: usize = 65535 + 14 + 2 * TAG as usize;

/// Returns the bytes of a slot for an interface with this MTU.
pub fn slot_bytes(mtu: u32) -> usize {
    let frame = mtu as usize + 14 + 2 * usize::from(TAG);
    ((frame + SLOT_HEADER + ROOM).next_power_of_two() - ROOM).clamp(MIN_SLOT, MAX_SLOT)
}

/// Opens a socket that receives from interface `index` of the calling thread's namespace, with a ring whose slots have
/// `slot` bytes ([`slot_bytes`]). It does not receive what this machine sends.
///
/// # Errors
/// `EPERM` without `CAP_NET_RAW`; `ENODEV` if there is no such interface; `ENOMEM`; `EINVAL` for another size.
pub fn receiver(index: u32, slot: usize) -> io::Result<OwnedFd> {
    // Of no protocol, so that it receives nothing yet.
    let fd = socket()?;
    set(&fd, libc::PACKET_VERSION, &(libc::tpacket_versions::TPACKET_V2 as libc::c_int))?;
    set(&fd, libc::PACKET_VNET_HDR, &1)?;
    set(&fd, libc::PACKET_IGNORE_OUTGOING, &1)?;
    set(&fd, libc::PACKET_COPY_THRESH, &1)?;
    set_queue(&fd)?;
    let (block_nr, of_block) = ((RING_BYTES / BLOCK) as u32, slots_of_block(slot)?);
    let ring = libc::tpacket_req {
        tp_block_size: BLOCK as u32,
        tp_block_nr: block_nr,
        tp_frame_size: slot as u32,
        tp_frame_nr: block_nr * of_block,
    };
    set(&fd, libc::PACKET_RX_RING, &ring)?;
    bind(&fd, index, (libc::ETH_P_ALL as u16).to_be())?;
    Ok(fd)
}

/// Opens a socket that sends by interface `index` past the queueing discipline. The host's filters know its frames by
/// `mark`.
///
/// # Errors
/// As [`receiver`].
pub fn sender(index: u32, mark: u32) -> io::Result<OwnedFd> {
    let fd = socket()?;
    set(&fd, libc::PACKET_VNET_HDR, &1)?;
    bypass_queue(fd.as_fd(), true)?;
    set_at(&fd, libc::SOL_SOCKET, libc::SO_MARK, &mark)?;
    bind(&fd, index, 0)?;
    Ok(fd)
}

/// Sets whether frames of a sending socket pass by the queueing discipline. Then the kernel does not cut those that are
/// several yet: where the interface does not do that itself, it drops them.
///
/// # Errors
/// `EBADF`, `ENOTSOCK`.
pub fn bypass_queue(fd: BorrowedFd<'_>, on: bool) -> io::Result<()> {
    set_at(&fd, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, &libc::c_int::from(on))
}

/// Returns how many frames found the ring full since the last call.
///
/// # Errors
/// `EBADF`, `ENOTSOCK`.
pub fn take_dropped(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let mut statistics = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
    let mut length = size_of_val(&statistics) as libc::socklen_t;
    // SAFETY: K1, K5: the structure and its length outlive the call.
    let done = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            (&raw mut statistics).cast(),
            &raw mut length,
        )
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(u64::from(statistics.tp_drops)) }
}

/// The receiving side of a socket of [`receiver`]. Threads and processes that receive from the same ring take turns.
#[derive(Debug)]
pub struct Receiver {
    fd: Arc<OwnedFd>,
    map: Mapping,
    slot: usize,
    of_block: u32,
}

/// Vectors of one call, for the pieces of a long frame, to be used again and again.
#[derive(Debug, Default)]
pub struct Vectors(Vec<libc::iovec>);

// SAFETY: the addresses in it are used by `Received::read` alone, which sets all of them (K1).
unsafe impl Send for Vectors {}

/// A frame that has arrived.
#[derive(Debug)]
pub struct Received<'a> {
    /// The virtio-net header, which counts from the frame's start with its tag.
    pub header: [u8; HEADER],
    /// The tag that belongs behind the two addresses.
    pub tag: Option<[u8; 4]>,
    /// Bytes of the frame, without the tag.
    pub length: usize,
    place: Place<'a>,
}

/// Where a frame is.
#[derive(Debug)]
enum Place<'a> {
    /// In the ring.
    Ring(Piece<'a>),
    /// In the socket's queue, with this header.
    Queue { fd: BorrowedFd<'a>, vectors: &'a mut Vectors, header: [u8; HEADER] },
}

impl Received<'_> {
    /// Bytes of the frame, with its tag.
    pub fn bytes(&self) -> usize {
        self.length + self.tag.map_or(0, |tag| tag.len())
    }

    /// Has the frame written, without its tag, into the pieces, one behind the other. Returns `false` if it does not
    /// fill them, or has more bytes: then it is lost. So is one of the queue that has another header than the slot: a
    /// receiver before has ended between the two.
    pub fn read<'p>(&mut self, pieces: impl Iterator<Item = Piece<'p>>) -> bool {
        let (fd, vectors, of_slot) = match &mut self.place {
            Place::Ring(frame) => return frame.copy_to(pieces),
            Place::Queue { fd, vectors, header } => (fd, vectors, *header),
        };
        let (mut header, mut length) = ([0u8; HEADER], HEADER);
        vectors.0.clear();
        vectors.0.push(libc::iovec { iov_base: header.as_mut_ptr().cast(), iov_len: HEADER });
        for piece in pieces {
            length += piece.len();
            vectors.0.push(piece.vector());
        }
        // SAFETY: K9.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (vectors.0.as_mut_ptr(), vectors.0.len() as _);
        // SAFETY: K1, K5: the message, the header and the memory of the pieces outlive the call.
        let n = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
        let is_whole = usize::try_from(n).is_ok_and(|n| n == length) && message.msg_flags & libc::MSG_TRUNC == 0;
        is_whole && header == of_slot
    }
}

/// The next slot of a ring.
enum Next<'a> {
    Frame(Received<'a>),
    /// It has only the beginning of a frame, which found no room in the queue.
    Cut,
}

impl Receiver {
    /// Maps the ring, and goes on where an earlier receiver has ended, if there was one.
    ///
    /// # Errors
    /// `EINVAL`: the socket has no such ring; `ENOMEM`.
    pub fn new(fd: Arc<OwnedFd>, slot: usize) -> io::Result<Receiver> {
        let of_block = slots_of_block(slot)?;
        let map = Mapping::of_socket(fd.as_fd(), RING_BYTES, 0)?;
        Ok(Receiver { fd, map, slot, of_block })
    }

    /// Bytes of a slot.
    pub fn slot_bytes(&self) -> usize {
        self.slot
    }

    /// Number of slots.
    fn slots(&self) -> u32 {
        (RING_BYTES / BLOCK) as u32 * self.of_block
    }

    /// Whether a frame has arrived.
    pub fn has_frame(&self) -> bool {
        self.is_ours(self.next())
    }

    /// Number of the frames that have arrived and were not taken.
    pub fn waiting(&self) -> u32 {
        let (next, slots) = (self.next(), self.slots());
        (0..slots).take_while(|more| self.is_ours((next + more) % slots)).count() as u32
    }

    /// Passes the next frame to `take`, and frees its slot unless that returns `None`, having read nothing from the
    /// queue. Returns what `take` returns; `None` if there is no frame, or none of the next 64 is whole: a sender may
    /// be faster than the caller, which has other things to look at. Adds frames that were cut off to `lost`.
    pub fn receive<R>(
        &self,
        vectors: &mut Vectors,
        lost: &mut u64,
        mut take: impl FnMut(&mut Received<'_>) -> Option<R>,
    ) -> Option<R> {
        for _ in 0..BATCH {
            let next = self.next();
            let taken = match self.look(next, vectors)? {
                Next::Frame(mut received) => Some(take(&mut received)?),
                Next::Cut => None,
            };
            // Before the slot is freed: a crash between the two makes one frame arrive again, and loses no position.
            self.position().store((next + 1) % self.slots(), Ordering::Relaxed);
            self.status(next).store(libc::TP_STATUS_KERNEL, Ordering::Release);
            match taken {
                None => *lost += 1,
                taken => return taken,
            }
        }
        None
    }

    /// The interface went down or up: forgets what the kernel reports of it.
    pub fn clear_error(&self) {
        let _ = rustix::net::sockopt::socket_error(&*self.fd);
    }

    /// Number of the slot that is next.
    fn next(&self) -> u32 {
        // Others who have the ring may write any number.
        self.position().load(Ordering::Relaxed) % self.slots()
    }

    fn is_ours(&self, slot: u32) -> bool {
        self.status(slot).load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
    }

    /// The address of a slot.
    fn at(&self, slot: u32) -> *mut u8 {
        let at = (slot / self.of_block) as usize * BLOCK + (slot % self.of_block) as usize * self.slot;
        // SAFETY: K3: callers pass numbers below `slots()`, and so many slots are mapped.
        unsafe { self.map.as_ptr().add(at) }
    }

    /// The status word of a slot.
    fn status(&self, slot: u32) -> &AtomicU32 {
        // SAFETY: K3: inside the mapping, as `at` says; slots are aligned to more than a word.
        unsafe { AtomicU32::from_ptr(self.at(slot).cast()) }
    }

    /// The word behind the slots of the first block: the number of the slot that is next.
    fn position(&self) -> &AtomicU32 {
        // SAFETY: K3: slots leave at least `ROOM` bytes of a block, aligned as slots are.
        unsafe { AtomicU32::from_ptr(self.map.as_ptr().add(self.of_block as usize * self.slot).cast()) }
    }

    /// A copy of bytes `[from, from + N)` of a slot; `None`: they are not inside.
    fn copy<const N: usize>(&self, slot: u32, from: usize) -> Option<[u8; N]> {
        let mut copy = [0; N];
        if from.checked_add(N)? > self.slot {
            return None;
        }
        // SAFETY: K3, K10: just checked; a raw copy, which others may change meanwhile.
        unsafe { ptr::copy_nonoverlapping(self.at(slot).add(from), copy.as_mut_ptr(), N) };
        Some(copy)
    }

    /// Looks at a slot; `None` if it is the kernel's.
    fn look<'a>(&'a self, slot: u32, vectors: &'a mut Vectors) -> Option<Next<'a>> {
        let status = self.status(slot).load(Ordering::Acquire);
        if status & libc::TP_STATUS_USER == 0 {
            return None;
        }
        let head = self.copy::<TPACKET2_HDR>(slot, 0)?;
        let word = |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]) as usize;
        let half = |at: usize| u16::from_ne_bytes([head[at], head[at + 1]]);
        // Fields of `struct tpacket2_hdr`.
        let (length, held, mac) = (word(4), word(8), usize::from(half(12)));
        let (tci, tpid) = (half(24), half(26));
        let tag = (status & libc::TP_STATUS_VLAN_VALID != 0).then(|| {
            let has_kind = status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
            let kind = if has_kind { tpid } else { libc::ETH_P_8021Q as u16 };
            let ([a, b], [c, d]) = (kind.to_be_bytes(), tci.to_be_bytes());
            [a, b, c, d]
        });
        let header = mac.checked_sub(HEADER).and_then(|from| self.copy::<HEADER>(slot, from));
        let is_whole = held == length;
        let place = match header {
            Some(_) if is_whole && mac.checked_add(held).is_some_and(|end| end <= self.slot) => {
                // SAFETY: K3, K10: just checked; `'a` borrows the mapping.
                Place::Ring(unsafe { Piece::new(self.at(slot).add(mac), held) })
            }
            Some(header) if !is_whole && status & libc::TP_STATUS_COPY != 0 => {
                Place::Queue { fd: self.fd.as_fd(), vectors, header }
            }
            _ => return Some(Next::Cut),
        };
        let header = with_tag(header.unwrap_or_default(), tag.is_some());
        Some(Next::Frame(Received { header, tag, length, place }))
    }
}

/// Moves the places that a header names behind a tag that is put back.
fn with_tag(mut header: [u8; HEADER], has_tag: bool) -> [u8; HEADER] {
    let mut add = |at: usize| {
        let moved = u16::from_ne_bytes([header[at], header[at + 1]]).wrapping_add(TAG);
        header[at..at + 2].copy_from_slice(&moved.to_ne_bytes());
    };
    if has_tag {
        // `hdr_len`, and `csum_start` if it is valid.
        add(2);
        add(6);
    }
    header
}

/// Returns the slots of a block.
fn slots_of_block(slot: usize) -> io::Result<u32> {
    let is_valid = (slot + ROOM).is_power_of_two() && (MIN_SLOT..=MAX_SLOT).contains(&slot);
    if is_valid { Ok((BLOCK / slot) as u32) } else { Err(Errno::INVAL.into()) }
}

fn socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None)?)
}

fn bind(fd: &OwnedFd, index: u32, protocol: u16) -> io::Result<()> {
    // SAFETY: K9.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    (address.sll_family, address.sll_protocol) = (libc::AF_PACKET as u16, protocol);
    address.sll_ifindex = index.cast_signed();
    let length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: K1, K5: the address outlives the call.
    done(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length) })
}

/// Sets the bytes of the queue of long frames: by force, or as far as the kernel's limit allows.
fn set_queue(fd: &OwnedFd) -> io::Result<()> {
    let set = |option| set_at(fd, libc::SOL_SOCKET, option, &QUEUE_BYTES);
    set(libc::SO_RCVBUFFORCE).or_else(|_| set(libc::SO_RCVBUF))
}

fn set<T>(fd: &OwnedFd, option: libc::c_int, value: &T) -> io::Result<()> {
    set_at(fd, libc::SOL_PACKET, option, value)
}

fn set_at<T>(fd: &impl AsRawFd, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
    let length = size_of_val(value) as libc::socklen_t;
    // SAFETY: K1, K5: the value has the type of its option, and outlives the call.
    done(unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, ptr::from_ref(value).cast(), length) })
}

fn done(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::link::veth;
    use crate::netns::Netns;

    /// Long frames come, of which most find no room in the queue. `None`: there can be no such socket here.
    fn with_cut_frames(sent: u32) -> Option<Receiver> {
        const SLOT: usize = MIN_SLOT;
        const LOOPBACK: u32 = 1;
        let netns = match Netns::new() {
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return None,
            new => new.unwrap(),
        };
        let open = || {
            veth::set_up(LOOPBACK).unwrap();
            (receiver(LOOPBACK, SLOT).unwrap(), sender(LOOPBACK, 1).unwrap())
        };
        let (receiver, sender) = netns.run(open).unwrap();
        let receiver = Receiver::new(Arc::new(receiver), SLOT).unwrap();
        let (mut frame, end) = ([0; 4000], Instant::now() + Duration::from_secs(60));
        let mut batch = Batch::default();
        for n in 0..sent {
            let mut frames = batch.frames();
            frames.add(Piece::of(&mut frame));
            assert!(frames.end([0; HEADER]));
            while frames.send(sender.as_fd(), 0, 1) != Ok(1) {
                assert!(Instant::now() < end, "frame {n} is sent");
            }
            receiver.position().store(n, Ordering::Relaxed);
            while !receiver.has_frame() {
                assert!(Instant::now() < end, "frame {n} comes");
                std::thread::yield_now();
            }
        }
        receiver.position().store(0, Ordering::Relaxed);
        Some(receiver)
    }

    #[test]
    fn a_call_ends_among_frames_that_are_cut_off() {
        let sent = 1500;
        let Some(receiver) = with_cut_frames(sent) else { return eprintln!("skipped: needs CAP_SYS_ADMIN") };
        let (mut whole, mut all_lost, mut most, mut vectors) = (0, 0, 0, Vectors::default());
        assert!(receiver.waiting() >= 1000, "{}", receiver.waiting());
        while receiver.has_frame() {
            let mut lost = 0;
            let length = receiver.receive(&mut vectors, &mut lost, |received| {
                let mut frame = [1; 4000];
                assert!(matches!(received.place, Place::Queue { .. }));
                assert!(received.read(std::iter::once(Piece::of(&mut frame))));
                assert_eq!(frame, [0; 4000]);
                Some(received.length)
            });
            assert!(length.is_none_or(|length| length == 4000));
            (whole, all_lost, most) = (whole + u64::from(length.is_some()), all_lost + lost, most.max(lost));
        }
        assert_eq!(whole + all_lost, u64::from(sent));
        assert_eq!(most, BATCH as u64, "{whole} whole frames");
    }

    #[test]
    fn a_receiver_goes_on_where_the_one_before_has_ended() {
        let Some(receiver) = with_cut_frames(40) else { return eprintln!("skipped: needs CAP_SYS_ADMIN") };
        let (fd, taken, mut vectors) = (receiver.fd.clone(), 35, Vectors::default());
        for _ in 0..taken {
            let mut lost = 0;
            assert!(receiver.receive(&mut vectors, &mut lost, |_| Some(())).is_some() || lost > 0);
        }
        drop(receiver);
        let next = Receiver::new(fd, MIN_SLOT).unwrap();
        assert!(next.next() >= taken && next.next() > next.of_block, "{}", next.next());
    }

    #[test]
    fn slots_hold_the_longest_frame_up_to_jumbo_frames() {
        assert_eq!([0, 1500, 1914, 1915, 9000, 65_535].map(slot_bytes), [2032, 2032, 2032, 4080, 16_368, 16_368]);
        for mtu in 0..16_000 {
            let slot = slot_bytes(mtu);
            assert!(slot >= mtu as usize + 22 + SLOT_HEADER && slot.is_multiple_of(ROOM), "{mtu}");
            let rest = BLOCK - slots_of_block(slot).unwrap() as usize * slot;
            assert!(rest < slot && rest >= ROOM, "{mtu}");
        }
        assert!([0, 1008, 2048, 3000, 32_752].iter().all(|slot| slots_of_block(*slot).is_err()));
    }

    #[test]
    fn a_header_counts_with_the_tag_that_is_put_back() {
        // Its length is 54, and its checksum begins at 34.
        let header = [1, 1, 54, 0, 0xe8, 3, 34, 0, 16, 0];
        assert_eq!(with_tag(header, false), header);
        assert_eq!(with_tag(header, true), [1, 1, 58, 0, 0xe8, 3, 38, 0, 16, 0]);
        // What the kernel did not fill in may have any value.
        assert_eq!(with_tag([0xff; HEADER], true)[2..4], [3, 0]);
    }

    #[test]
    fn nothing_is_sent_without_a_frame() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let mut batch = Batch::default();
        assert_eq!(batch.frames().send(file.as_fd(), 0, 1), Ok(0));
        let (mut bytes, mut frames) = ([0; 24], batch.frames());
        assert!(!frames.end([0; HEADER]), "no piece");
        (0..=MAX_PIECES).for_each(|_| frames.add(Piece::of(&mut [0; 0])));
        assert!(!frames.end([0; HEADER]), "too many pieces");
        frames.add(Piece::of(&mut bytes));
        assert!(frames.end([0; HEADER]));
        assert_eq!((frames.len(), frames.send(file.as_fd(), 0, 1)), (1, Err(NotSent::Invalid)));
    }
}

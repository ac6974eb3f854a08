// SPDX-License-Identifier: BSD-2-Clause
//! Packets in the slots of a ring, to and from packet sockets: for programs that have the sockets themselves
//! (`backend::packet`), and for the daemon's threads that serve the others.
//!
//! ```text
//! slots of a packet -> sendmmsg, behind a private copy of its header
//! slots of the socket's ring, or its queue of long frames -> slots, behind the header
//! ```
//! A program whose packets begin with virtio-net headers exchanges these with the kernel, which finishes what it sends.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use unetmap_abi::NS_MOREFRAG;
use unetmap_mem::Frame;
use unetmap_sys::packet_socket::{Batch, Frames, HEADER, MAX_FRAME, NotSent, Received};
use unetmap_sys::wait::NAP;

use crate::tuning::{PACKET_BATCH, SEND_TRIES};

/// Bytes of the two addresses, behind which a VLAN tag is.
pub const ADDRESSES: usize = 12;
/// Bytes of a program's header at most, and more.
pub const OWN_HEADER: usize = 16;
/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`.
const NEEDS_CHECKSUM: u8 = 1;

/// A slot that a program has sent: its buffer, and its length and flags, which may be any.
pub type SentSlot<'a> = (Frame<'a>, u16, u16);

/// Sends the packets of a ring.
#[derive(Default)]
pub struct Outbox {
    /// Bytes of the program's header: 0, 10 or 12.
    header: usize,
    /// Frames that are to be sent.
    batch: Batch,
    /// Packets that begin the ring.
    outgoing: Vec<Outgoing>,
    /// Attempts to send the first frame, which found no room, and the last of them.
    tries: u32,
    tried_at: Option<Instant>,
}

/// A packet that is to be sent.
struct Outgoing {
    /// Whether it is one of the batch; otherwise it cannot be sent.
    is_frame: bool,
    /// Its slots and bytes.
    slots: u32,
    length: u64,
}

/// The result of [`Outbox::send`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Slots that the program gets back, and their bytes.
    pub slots: u32,
    /// See above.
    pub bytes: u64,
    /// Slots among them of packets that can never be sent.
    pub bad: u32,
    /// Packets that were not sent: these, and those that the interface did not take for long.
    pub lost: u64,
}

impl Outbox {
    /// Packets begin with a header of so many bytes.
    pub fn new(header: usize) -> Outbox {
        Outbox { header, ..Outbox::default() }
    }

    /// Sends the packets of `slots`. A packet that finds no room is sent by a later call. `is_full`: the ring has no
    /// other slots, so that a packet which is not complete never will be.
    pub fn send<'a>(
        &mut self,
        sender: BorrowedFd<'_>,
        slots: impl Iterator<Item = SentSlot<'a>>,
        is_full: bool,
    ) -> Sent {
        let mut sent = Sent::default();
        if self.tried_at.is_some_and(|at| at.elapsed() < NAP) {
            return sent;
        }
        let mut frames = self.batch.frames();
        list(slots, is_full, self.header, &mut frames, &mut self.outgoing);
        let (mut done, mut frame) = (0, 0);
        while let Some(first) = self.outgoing.get(done) {
            let most = self.outgoing[done..].iter().take_while(|packet| packet.is_frame).count();
            let (count, is_sent) = match frames.send(sender, frame, most) {
                Ok(count) if count > 0 => (count, true),
                Err(NotSent::Down) => {
                    self.tried_at = Some(Instant::now());
                    return sent;
                }
                Err(NotSent::NoRoom) if self.tries < SEND_TRIES => {
                    (self.tries, self.tried_at) = (self.tries + 1, Some(Instant::now()));
                    return sent;
                }
                Err(NotSent::NoRoom) => (1, false),
                Ok(_) | Err(NotSent::Invalid) => {
                    sent.bad += first.slots;
                    (1, false)
                }
            };
            sent.lost += u64::from(!is_sent);
            (self.tries, self.tried_at) = (0, None);
            for packet in &self.outgoing[done..done + count] {
                (sent.slots, sent.bytes) = (sent.slots + packet.slots, sent.bytes + packet.length);
                frame += usize::from(packet.is_frame);
            }
            done += count;
        }
        sent
    }
}

/// Lists the packets at the beginning of a ring, each with a private copy of its header.
fn list<'a>(
    all: impl Iterator<Item = SentSlot<'a>>,
    is_full: bool,
    header: usize,
    frames: &mut Frames<'_, 'a>,
    outgoing: &mut Vec<Outgoing>,
) {
    outgoing.clear();
    let (mut slots, mut length, mut listed, mut own, mut is_inside) = (0, 0, 0, [0; OWN_HEADER], true);
    for (frame, len, flags) in all {
        if slots == 0 && listed >= PACKET_BATCH {
            return;
        }
        let len = usize::from(len);
        is_inside &= len <= frame.capacity();
        let len = len.min(frame.capacity());
        let of_header = header.saturating_sub(length).min(len);
        frame.read(0, &mut own[header.min(length)..][..of_header]);
        (slots, length) = (slots + 1, length + len);
        if len > of_header && length <= header + MAX_FRAME {
            frames.add(frame.skip(of_header).piece(len - of_header));
        }
        if flags & NS_MOREFRAG == 0 {
            // The last two bytes of a longer header tell the program something that the kernel does not know.
            let of_kernel = own.first_chunk::<HEADER>().copied().unwrap_or_default();
            let is_frame = is_inside && length <= header + MAX_FRAME && frames.end(of_kernel);
            frames.forget();
            outgoing.push(Outgoing { is_frame, slots, length: length as u64 });
            (listed, slots, length, own, is_inside) = (listed + slots, 0, 0, [0; OWN_HEADER], true);
        }
    }
    if outgoing.is_empty() && slots > 0 && is_full {
        outgoing.push(Outgoing { is_frame: false, slots, length: length as u64 });
    }
}

/// Returns the header of a frame that has arrived, as programs have it.
pub fn program_header(received: &Received<'_>) -> [u8; OWN_HEADER] {
    let mut own = [0; OWN_HEADER];
    own[..HEADER].copy_from_slice(&received.header);
    own[0] &= NEEDS_CHECKSUM;
    own
}

/// Whether programs can have a frame of this length at all. Otherwise it is taken out of the socket's queue.
pub fn is_deliverable(received: &mut Received<'_>) -> bool {
    let is_valid = received.length >= ADDRESSES && received.bytes() <= MAX_FRAME;
    if !is_valid {
        received.read(std::iter::empty());
    }
    is_valid
}

/// Has a frame written into buffers, of which each has room for `capacity` bytes, behind `header` and with its tag.
/// Returns `false` if there are too few: then it is lost.
pub fn deliver<'f>(
    received: &mut Received<'_>,
    buffers: impl Iterator<Item = Frame<'f>>,
    capacity: usize,
    header: &[u8],
) -> bool {
    let (tag, bytes) = (received.tag, header.len() + received.bytes());
    let tag = tag.as_ref().map_or(&[][..], |tag| &tag[..]);
    let len = |begin: usize| (bytes - begin).min(capacity);
    let pieces = buffers.zip((0..bytes).step_by(capacity)).flat_map(|(frame, begin)| {
        if begin > 0 {
            return [frame.piece(len(begin)), frame.piece(0)];
        }
        frame.write(0, header);
        frame.write(header.len() + ADDRESSES, tag);
        let rest = header.len() + ADDRESSES + tag.len();
        [frame.skip(header.len()).piece(ADDRESSES), frame.skip(rest).piece(len(0) - rest)]
    });
    received.read(pieces)
}

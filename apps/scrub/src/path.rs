// SPDX-License-Identifier: BSD-2-Clause
//! Moves packets between two ports: those of the wire that pass, and those of the other side.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use tool_common::forward::{Mover, move_judged};
use unetmap::abi::NS_MOREFRAG;
use unetmap::{Ring, SlotIter};
use unetmap_filter::{Direction, HEADER_BYTES, MAX_REPLY, Now};

use crate::pack::pack;
use crate::reason::add;
use crate::scrubber::{Fate, Scrubber};
use crate::tunnel::{MAX_PIECES, Tunnel};

/// Segments of the proxy that wait for room in a ring.
const MAX_REPLIES: usize = 1024;
/// Longest sleep: the sums of the other thread are no older.
const LOOK: Duration = Duration::from_millis(200);

/// The state that both directions share.
pub(crate) struct Worker {
    pub(crate) scrubber: Scrubber,
    began: Instant,
    /// By the direction that they travel in: frames and their lengths.
    replies: [Vec<([u8; MAX_REPLY], usize)>; 2],
}

impl Worker {
    pub(crate) fn new(scrubber: Scrubber) -> Worker {
        let replies = [(); 2].map(|()| Vec::with_capacity(MAX_REPLIES));
        Worker { scrubber, began: Instant::now(), replies }
    }

    fn now(&self) -> Now {
        let passed = self.began.elapsed();
        Now { millis: passed.as_millis() as u64, seconds: passed.as_secs() }
    }
}

/// One direction.
pub(crate) struct Path<'w> {
    pub(crate) worker: &'w RefCell<Worker>,
    pub(crate) direction: Direction,
    /// True to exchange buffers, false to copy.
    pub(crate) swap: bool,
    /// Bytes of the virtio-net header before each packet.
    pub(crate) header: usize,
}

fn index(direction: Direction) -> usize {
    usize::from(direction == Direction::In)
}

impl Path<'_> {
    /// Moves or drops the packet that begins in the next slot of `sources`; returns the slots of `to` that it takes,
    /// each with `most` bytes at most.
    fn packet(
        &self,
        worker: &mut Worker,
        from: &Ring,
        sources: &mut SlotIter<'_>,
        to: &mut SlotIter<'_>,
        most: usize,
        now: Now,
    ) -> Option<u32> {
        let first = sources.next()?;
        let start = first.pos();
        let Worker { scrubber, replies, .. } = worker;
        let (mut bytes, mut read, mut slots, mut len) = ([0; HEADER_BYTES], 0, 0, 0);
        let mut slot = Some(first);
        while let Some(this) = slot.take() {
            let (part, flags) = this.len_flags();
            // The virtio-net header is not of the frame, and in the first slot.
            let skip = if slots == 0 { self.header } else { 0 };
            let n = usize::from(part).saturating_sub(skip).min(HEADER_BYTES - read);
            read += this.frame().read(skip, &mut bytes[read..read + n]);
            // A slot has no more bytes than its buffer, whatever it says; so as many were read at most.
            (slots, len) = (slots + 1, len + usize::from(part).min(this.frame().capacity()).saturating_sub(skip));
            if flags & NS_MOREFRAG != 0 {
                slot = sources.next();
            }
        }
        let untagged = match &scrubber.tunnel {
            Some(tunnel) if self.direction == Direction::In => tunnel.untag(&mut bytes[..read]),
            _ => 0,
        };
        let (known, read, len) = (read, read - untagged, len - untagged);
        let own = index(self.direction);
        let shared = std::sync::Arc::clone(&scrubber.shared);
        let fate = scrubber.judge(&mut bytes[..read], len, self.direction, now, |back, frame, len| {
            let queue = &mut replies[own ^ usize::from(back)];
            if queue.len() < MAX_REPLIES {
                queue.push((*frame, len));
            } else {
                add(&shared.totals.lost_replies, 1);
            }
        });
        let (frame, judged) = (|| from.run(start, slots), &bytes[..read]);
        match (fate, &mut scrubber.tunnel) {
            (Fate::Drop(_), _) => return Some(0),
            (Fate::Behind, Some(tunnel)) => return Some(pack_behind(tunnel, judged, frame, to, most)),
            _ if untagged > 0 => return Some(pack([&[], judged], frame(), known, len.saturating_sub(read), to, most)),
            _ => {}
        }
        let head = (!self.swap || fate == Fate::Changed).then_some(judged);
        move_judged(frame(), to, self.swap, self.header, head);
        Some(slots)
    }
}

/// Writes a packet behind a head, or its pieces, into slots with `most` bytes at most; returns how many. `judged`: its
/// first bytes.
fn pack_behind<'r>(
    tunnel: &mut Tunnel,
    judged: &[u8],
    frame: impl Fn() -> SlotIter<'r>,
    to: &mut SlotIter<'_>,
    most: usize,
) -> u32 {
    let mut slots = 0;
    loop {
        let (head, cut, end) = (&tunnel.head, tunnel.head.cut, tunnel.head.end);
        let (known, rest) = (&judged[cut.min(judged.len())..end.min(judged.len())], cut.max(judged.len()));
        slots += pack([head.bytes(), known], frame(), rest, end.saturating_sub(rest), to, most);
        if !tunnel.next_piece(judged) {
            return slots;
        }
    }
}

impl Mover for Path<'_> {
    fn move_slots(&mut self, from: &Ring, to: &Ring, n: u32) -> Result<u32, String> {
        let worker = &mut *self.worker.borrow_mut();
        let now = worker.now();
        worker.scrubber.begin(now);
        let (mut sources, mut targets, mut sent) = (from.first(n), to.available(), 0);
        let most = to.slot_size() as usize;
        while let Some(slots) = self.packet(worker, from, &mut sources, &mut targets, most, now) {
            sent += slots;
        }
        Ok(sent)
    }

    fn own_packets(&mut self, to: &Ring) -> u32 {
        let worker = &mut *self.worker.borrow_mut();
        let now = worker.now();
        let Worker { scrubber, replies, .. } = worker;
        scrubber.begin(now);
        let queue = &mut replies[index(self.direction)];
        let room = (to.space() as usize).min(queue.len());
        let no_header = [0; 16];
        let mut tunnel = scrubber.tunnel.as_mut().filter(|_| self.direction == Direction::Out);
        for ((frame, len), slot) in queue.drain(..room).zip(to.available()) {
            let frame = &frame[..len];
            let is_behind = tunnel.as_mut().is_some_and(|tunnel| tunnel.exit_own(frame));
            let (head, frame) = match &tunnel {
                Some(tunnel) if is_behind => (tunnel.head.bytes(), &frame[tunnel.head.cut..tunnel.head.end]),
                _ => (&no_header[..self.header.min(16)], frame),
            };
            slot.frame().write(0, head);
            slot.frame().write(head.len(), frame);
            slot.set_len_flags((head.len() + frame.len()) as u16, 0);
        }
        add(&scrubber.shared.totals.replies, room as u64);
        room as u32
    }

    /// A packet may leave in pieces.
    fn slots_for_one(&self) -> u32 {
        if self.worker.borrow().scrubber.tunnel.is_some() { MAX_PIECES } else { 1 }
    }

    fn next_packet(&mut self) -> Option<Duration> {
        let is_waiting = !self.worker.borrow().replies[index(self.direction)].is_empty();
        Some(if is_waiting { Duration::ZERO } else { LOOK })
    }
}

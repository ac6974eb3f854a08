// SPDX-License-Identifier: BSD-2-Clause
//! Moves packets between two ports: those of the wire that pass, and those of the other side.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use tool_common::forward::{Mover, move_judged};
use unetmap::abi::NS_MOREFRAG;
use unetmap::{Ring, SlotIter};
use unetmap_filter::{Direction, HEADER_BYTES, MAX_REPLY, Now};

use crate::reason::add;
use crate::scrubber::{Fate, Scrubber};

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
    /// Moves or drops the packet that begins in the next slot of `sources`; returns the slots that it takes.
    fn packet(
        &self,
        worker: &mut Worker,
        from: &Ring,
        sources: &mut SlotIter<'_>,
        to: &mut SlotIter<'_>,
        now: Now,
    ) -> Option<u32> {
        let first = sources.next()?;
        let start = first.pos();
        let (mut bytes, mut read, mut slots, mut len) = ([0; HEADER_BYTES], 0, 0, 0);
        let mut slot = Some(first);
        while let Some(this) = slot.take() {
            let (part, flags) = this.len_flags();
            // The virtio-net header is not of the frame, and in the first slot.
            let skip = if slots == 0 { self.header } else { 0 };
            let n = usize::from(part).saturating_sub(skip).min(HEADER_BYTES - read);
            read += this.frame().read(skip, &mut bytes[read..read + n]);
            (slots, len) = (slots + 1, len + usize::from(part));
            if flags & NS_MOREFRAG != 0 {
                slot = sources.next();
            }
        }
        let len = len.saturating_sub(self.header);
        let Worker { scrubber, replies, .. } = worker;
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
        if let Fate::Drop(_) = fate {
            return Some(0);
        }
        let head = (!self.swap || fate == Fate::Changed).then_some(&bytes[..read]);
        move_judged(from.run(start, slots), to, self.swap, self.header, head);
        Some(slots)
    }
}

impl Mover for Path<'_> {
    fn move_slots(&mut self, from: &Ring, to: &Ring, n: u32) -> Result<u32, String> {
        let worker = &mut *self.worker.borrow_mut();
        let now = worker.now();
        worker.scrubber.begin(now);
        let (mut sources, mut targets, mut sent) = (from.first(n), to.available(), 0);
        while let Some(slots) = self.packet(worker, from, &mut sources, &mut targets, now) {
            sent += slots;
        }
        Ok(sent)
    }

    fn own_packets(&mut self, to: &Ring) -> u32 {
        let worker = &mut *self.worker.borrow_mut();
        let now = worker.now();
        worker.scrubber.begin(now);
        let queue = &mut worker.replies[index(self.direction)];
        let room = (to.space() as usize).min(queue.len());
        for ((frame, len), slot) in queue.drain(..room).zip(to.available()) {
            slot.frame().write(0, &[0; 16][..self.header.min(16)]);
            slot.frame().write(self.header, &frame[..len]);
            slot.set_len_flags((self.header + len) as u16, 0);
        }
        add(&worker.scrubber.shared.totals.replies, room as u64);
        room as u32
    }

    fn next_packet(&mut self) -> Option<Duration> {
        let is_waiting = !self.worker.borrow().replies[index(self.direction)].is_empty();
        Some(if is_waiting { Duration::ZERO } else { LOOK })
    }
}

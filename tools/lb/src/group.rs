// SPDX-License-Identifier: BSD-2-Clause
//! Groups of pipes, and the path of a packet through them.
//!
//! ```text
//!   port --flow--> group 0: pipe 0 | pipe 1 | ...     a packet enters one pipe of the group, and
//!                      |                              enters the next group after its reader has released it
//!                      '--flow--> group 1: pipe 0 | ...
//! ```
//! Two slots exchange their buffer indexes to move a packet. If the pipe has no room, the packet waits in the pipe's
//! queue, which uses extra buffers, or is dropped if no buffer is free. No pipe waits for another.

use std::collections::VecDeque;

use tool_common::rule::Rule;
use unetmap::abi::{NETMAP_MAX_FRAGS, NS_BUF_CHANGED, NS_MOREFRAG};
use unetmap::{BufIdx, Port, Pos, Ring};

use crate::flow;
use crate::queue::{Queue, QueuedSlot};

/// Number of slots that the longest queue loses if the group has no free buffer. High, so that this happens rarely.
const REVOKED_SLOTS: usize = 128;

/// Counts of a pipe's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    /// Packets dropped because there was no room.
    pub(crate) drops: u64,
}

/// A packet in consecutive slots of a ring, and its flow.
#[derive(Clone, Copy)]
pub(crate) struct Packet<'a> {
    ring: &'a Ring,
    at: Pos,
    slots: u32,
    flow: u32,
    /// The pipe that a rule (`--steer`) selects.
    steered: Option<usize>,
}

impl<'a> Packet<'a> {
    /// Returns the packet that begins at `at`, where `left` slots are available. A packet that extends beyond them is
    /// split.
    pub(crate) fn first(ring: &'a Ring, at: Pos, left: u32, rules: &[(Rule, usize)]) -> Packet<'a> {
        let (mut end, mut slots) = (at, 1);
        while slots < left.min(NETMAP_MAX_FRAGS) && ring.slot(end).flags() & NS_MOREFRAG != 0 {
            end = ring.next(end);
            slots += 1;
        }
        let mut headers = [0; flow::HEADERS];
        let slot = ring.slot(at);
        let n = slot.frame().read(0, &mut headers[..usize::from(slot.len()).min(flow::HEADERS)]);
        let steered = rules.iter().find(|(rule, _)| rule.matches(&headers[..n])).map(|(_, pipe)| *pipe);
        Packet { ring, at, slots, flow: flow::flow(&headers[..n]), steered }
    }

    pub(crate) fn slots(&self) -> u32 {
        self.slots
    }

    /// Returns the position after its last slot.
    pub(crate) fn end(&self) -> Pos {
        (0..self.slots).fold(self.at, |at, _| self.ring.next(at))
    }
}

/// Returns the flags of a slot that is followed by `left` more slots of its packet.
fn fragment_flags(left: u32) -> u16 {
    if left > 0 { NS_MOREFRAG } else { 0 }
}

/// A packet that was sent to a pipe's reader, and enters the next group when the reader releases it.
#[derive(Clone, Copy)]
struct InFlight {
    slots: u32,
    flow: u32,
}

/// The sending end of a pipe.
pub(crate) struct Pipe {
    pub(crate) port: Port,
    pub(crate) counts: Counts,
    queue: Queue,
    /// Packets that will enter the next group, the oldest first. Empty in the last group.
    in_flight: VecDeque<InFlight>,
    in_flight_slots: u32,
    /// Position of the oldest of them.
    oldest: Pos,
}

impl Pipe {
    /// `extra` is the number of buffers for queues.
    pub(crate) fn new(port: Port, extra: usize) -> Result<Pipe, String> {
        let ring = port.tx_rings().first().ok_or_else(|| format!("{}: the pipe has no transmit ring", port.spec()))?;
        let (oldest, slots) = (ring.head(), ring.num_slots() as usize);
        let (queue, in_flight) = (Queue::with_capacity(extra), VecDeque::with_capacity(slots));
        Ok(Pipe { port, counts: Counts::default(), queue, in_flight, in_flight_slots: 0, oldest })
    }

    /// Returns the ring that is used. If a reader created the pipe with more rings, the others stay empty.
    fn ring(&self) -> &Ring {
        &self.port.tx_rings()[0]
    }

    /// Returns the number of slots that can be filled now. Excludes slots with released packets that have not yet
    /// entered the next group.
    fn room(&self) -> u32 {
        self.ring().space().min((self.ring().num_slots() - 1).saturating_sub(self.in_flight_slots))
    }

    /// Returns true if packets wait until the reader releases slots.
    pub(crate) fn needs_release(&self) -> bool {
        self.in_flight_slots > 0 || !self.queue.is_empty()
    }

    /// Makes the next wait for room end only if there are more free slots than now.
    pub(crate) fn wait_for_more_room(&self) {
        self.ring().set_cur(self.ring().tail());
    }

    /// Returns the number of slots in the queue.
    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Sends the `slots` slots that were just filled.
    fn send_slots(&mut self, slots: u32, flow: u32, last: bool) {
        if !last {
            if self.in_flight.is_empty() {
                self.oldest = self.ring().head();
            }
            self.in_flight.push_back(InFlight { slots, flow });
            self.in_flight_slots += slots;
        }
        self.ring().advance(slots);
    }

    /// Moves a packet into the ring, which must have room, by exchanging buffers.
    fn send(&mut self, packet: Packet<'_>, last: bool) {
        let (mut from, mut bytes) = (packet.at, 0);
        for (target, left) in self.ring().first(packet.slots).zip((0..packet.slots).rev()) {
            target.swap_from(&packet.ring.slot(from));
            target.set_flags(fragment_flags(left) | NS_BUF_CHANGED);
            bytes += u64::from(target.len());
            from = packet.ring.next(from);
        }
        self.counts.packets += 1;
        self.counts.bytes += bytes;
        self.send_slots(packet.slots, packet.flow, last);
    }

    /// Moves a packet into the queue, and puts buffers of the pool into its slots. The pool must have enough of them.
    fn enqueue(&mut self, packet: Packet<'_>, free: &mut Vec<BufIdx>) {
        let mut at = packet.at;
        for left in (0..packet.slots).rev() {
            let (source, Some(buffer)) = (packet.ring.slot(at), free.pop()) else { return };
            let mut slot = source.get();
            slot.flags = fragment_flags(left);
            self.queue.push(QueuedSlot { slot, flow: packet.flow });
            source.replace_buf(buffer);
            at = packet.ring.next(at);
        }
    }

    /// Moves packets from the queue into the ring while there is room. Returns true if any packet moved.
    fn flush(&mut self, free: &mut Vec<BufIdx>, last: bool) -> bool {
        let mut moved = false;
        loop {
            let slots = self.queue.first_packet();
            if slots == 0 || self.room() < slots {
                return moved;
            }
            let (mut at, mut bytes, mut flow) = (self.ring().head(), 0, 0);
            for _ in 0..slots {
                let Some(queued) = self.queue.pop() else { break };
                let target = self.port.tx_rings()[0].slot(at);
                free.push(target.replace_buf(queued.slot.buf_idx));
                target.set_ptr(queued.slot.ptr);
                target.set_len_flags(queued.slot.len, queued.slot.flags | NS_BUF_CHANGED);
                bytes += u64::from(queued.slot.len);
                flow = queued.flow;
                at = self.ring().next(at);
            }
            self.counts.packets += 1;
            self.counts.bytes += bytes;
            self.send_slots(slots, flow, last);
            moved = true;
        }
    }

    /// Moves the packets that the reader has released into the next group. Returns true if there were any.
    fn move_released_to(&mut self, next: &mut Group) -> bool {
        let ring = &self.port.tx_rings()[0];
        // Slots that are neither free nor unreleased have been released. The reader can write the ring's positions, so
        // the number is limited to the slots in flight.
        let unreleased = (ring.num_slots() - 1).saturating_sub(ring.space());
        let mut released = self.in_flight_slots.saturating_sub(unreleased);
        let mut moved = false;
        while let Some(&InFlight { slots, flow }) = self.in_flight.front() {
            if slots > released {
                break;
            }
            let packet = Packet { ring, at: self.oldest, slots, flow, steered: None };
            self.oldest = packet.end();
            next.deliver(packet);
            self.in_flight.pop_front();
            released -= slots;
            self.in_flight_slots -= slots;
            moved = true;
        }
        moved
    }
}

/// Pipes over which flows are distributed, and the buffers that their queues share.
pub(crate) struct Group {
    pipes: Vec<Pipe>,
    free: Vec<BufIdx>,
    /// True for the last group: released packets are not forwarded.
    last: bool,
}

impl Group {
    /// Moves a packet into the pipe of its flow, or into that pipe's queue. Drops it if neither has room.
    pub(crate) fn deliver(&mut self, packet: Packet<'_>) {
        let chosen = packet.steered.unwrap_or_else(|| flow::choose(packet.flow, self.pipes.len()));
        let slots = packet.slots as usize;
        let pipe = &mut self.pipes[chosen];
        if pipe.queue.is_empty() && packet.slots <= pipe.room() {
            return pipe.send(packet, self.last);
        }
        if slots > self.free.len() {
            self.revoke();
        }
        let pipe = &mut self.pipes[chosen];
        if slots <= self.free.len() {
            pipe.enqueue(packet, &mut self.free);
        } else {
            pipe.counts.drops += 1;
        }
    }

    /// Drops packets of the longest queue to free their buffers.
    #[cold]
    fn revoke(&mut self) {
        let longest = self.pipes.iter_mut().max_by_key(|pipe| pipe.queue.len());
        if let Some(pipe) = longest {
            pipe.counts.drops += pipe.queue.drop_oldest(REVOKED_SLOTS, &mut self.free);
        }
    }

    /// Syncs all pipes, moves released packets into the next group, and queued packets into the rings. Returns true if
    /// any packet moved.
    fn sync(&mut self, mut next: Option<&mut Group>) -> Result<bool, String> {
        let mut moved = false;
        for pipe in &mut self.pipes {
            // Not a poll, which syncs only if there is no free slot at all.
            pipe.port.txsync().map_err(|e| e.to_string())?;
            if let Some(next) = next.as_deref_mut() {
                moved |= pipe.move_released_to(next);
            }
            moved |= pipe.flush(&mut self.free, self.last);
        }
        Ok(moved)
    }
}

/// All groups.
pub(crate) struct Groups(Vec<Group>);

impl Groups {
    /// There must be at least one group, and each must have at least one pipe. The `free` buffers are divided evenly.
    pub(crate) fn new(groups: Vec<Vec<Pipe>>, mut free: Vec<BufIdx>) -> Groups {
        let mut left = groups.len();
        let group = |pipes| {
            let share = free.split_off(free.len() - free.len() / left);
            left -= 1;
            Group { pipes, free: share, last: left == 0 }
        };
        Groups(groups.into_iter().map(group).collect())
    }

    /// Returns the group that packets enter first.
    pub(crate) fn first(&mut self) -> &mut Group {
        &mut self.0[0]
    }

    /// Returns all pipes, in the order of the command line.
    pub(crate) fn pipes(&self) -> impl Iterator<Item = &Pipe> {
        self.0.iter().flat_map(|group| &group.pipes)
    }

    /// Syncs all groups. Returns true if any packet moved.
    pub(crate) fn sync(&mut self) -> Result<bool, String> {
        let (mut moved, mut left) = (false, &mut self.0[..]);
        // From the last group to the first, so that the next group has room before packets enter it.
        let mut after: Option<&mut Group> = None;
        while let Some((group, before)) = left.split_last_mut() {
            moved |= group.sync(after)?;
            (after, left) = (Some(group), before);
        }
        Ok(moved)
    }

    /// Returns all buffers of the queues, free or in use. Drops and counts the packets in the queues.
    pub(crate) fn take_all_buffers(&mut self) -> Vec<BufIdx> {
        let mut all = Vec::new();
        for group in &mut self.0 {
            for pipe in &mut group.pipes {
                pipe.counts.drops += pipe.queue.drop_oldest(usize::MAX, &mut group.free);
            }
            all.append(&mut group.free);
        }
        all
    }
}

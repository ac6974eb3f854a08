//! Groups of pipes, and how a packet gets through them.
//!
//! ```text
//!   port --flow--> group 0: pipe 0 | pipe 1 | ...     a packet is in one pipe of the group,
//!                      |                              and goes on when its reader has released it
//!                      '--flow--> group 1: pipe 0 | ...
//! ```
//! A packet moves by an exchange of two buffer numbers. Where its pipe has no room it waits in the pipe's queue, if there
//! are buffers for that, and is dropped else: no pipe waits for another.

use std::collections::VecDeque;

use tool_common::rule::Rule;
use unetmap::{BufIdx, Port, Pos, Ring};
use unetmap_abi::{NETMAP_MAX_FRAGS, NS_BUF_CHANGED, NS_MOREFRAG};

use crate::flow;
use crate::overflow::{Queue, Waiting};

/// Slots that the longest queue loses when the group has no buffer: many, so that it does not happen often.
const REVOKED: usize = 128;

/// What happened to packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    /// Packets for which there was no room.
    pub(crate) drops: u64,
}

/// A packet that lies in slots of a ring, and its flow.
#[derive(Clone, Copy)]
pub(crate) struct Packet<'a> {
    ring: &'a Ring,
    at: Pos,
    slots: u32,
    flow: u32,
    /// The pipe that a rule leads it to.
    led: Option<usize>,
}

impl<'a> Packet<'a> {
    /// The first packet at `at`, of `left` slots; what is cut off by the end of these is a packet of its own.
    pub(crate) fn first(ring: &'a Ring, at: Pos, left: u32, rules: &[(Rule, usize)]) -> Packet<'a> {
        let (mut end, mut slots) = (at, 1);
        while slots < left.min(NETMAP_MAX_FRAGS) && ring.slot(end).flags() & NS_MOREFRAG != 0 {
            end = ring.next(end);
            slots += 1;
        }
        let mut headers = [0; flow::HEADERS];
        let slot = ring.slot(at);
        let n = slot.frame().read(0, &mut headers[..usize::from(slot.len()).min(flow::HEADERS)]);
        let led = rules.iter().find(|(rule, _)| rule.matches(&headers[..n])).map(|(_, pipe)| *pipe);
        Packet { ring, at, slots, flow: flow::flow(&headers[..n]), led }
    }

    pub(crate) fn slots(&self) -> u32 {
        self.slots
    }

    /// The position behind it.
    pub(crate) fn end(&self) -> Pos {
        (0..self.slots).fold(self.at, |at, _| self.ring.next(at))
    }
}

/// The flags of a slot that `left` more of its packet follow.
fn more(left: u32) -> u16 {
    if left > 0 { NS_MOREFRAG } else { 0 }
}

/// A packet that has been handed to a pipe's reader, to be passed on when it comes back.
#[derive(Clone, Copy)]
struct Lent {
    slots: u32,
    flow: u32,
}

/// The sending end of a pipe.
pub(crate) struct Pipe {
    pub(crate) port: Port,
    pub(crate) counts: Counts,
    queue: Queue,
    /// What is to go on to the next group, the oldest first; of the last group nothing is.
    lent: VecDeque<Lent>,
    lent_slots: u32,
    /// Where the oldest of them lies.
    oldest: Pos,
}

impl Pipe {
    /// `extra` is how many buffers there are for queues.
    pub(crate) fn new(port: Port, extra: usize) -> Result<Pipe, String> {
        let ring = port.tx_rings().first().ok_or_else(|| format!("{}: it has no transmit ring", port.spec()))?;
        let (oldest, slots) = (ring.head(), ring.num_slots() as usize);
        let (queue, lent) = (Queue::with_capacity(extra), VecDeque::with_capacity(slots));
        Ok(Pipe { port, counts: Counts::default(), queue, lent, lent_slots: 0, oldest })
    }

    /// The ring that is used. A reader who made the pipe with more of them finds nothing in the others.
    fn ring(&self) -> &Ring {
        &self.port.tx_rings()[0]
    }

    /// Slots that can be filled now: not those whose packets have come back and are to go on.
    fn room(&self) -> u32 {
        self.ring().space().min((self.ring().num_slots() - 1).saturating_sub(self.lent_slots))
    }

    /// Whether its reader's next release lets anything go on.
    pub(crate) fn wants_room(&self) -> bool {
        self.lent_slots > 0 || !self.queue.is_empty()
    }

    /// Lets a wait for room wait for more than there is.
    pub(crate) fn wait_for_more_room(&self) {
        self.ring().set_cur(self.ring().tail());
    }

    /// Slots that wait for room.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Hands over the `slots` slots that were just filled.
    fn lend(&mut self, slots: u32, flow: u32, last: bool) {
        if !last {
            if self.lent.is_empty() {
                self.oldest = self.ring().head();
            }
            self.lent.push_back(Lent { slots, flow });
            self.lent_slots += slots;
        }
        self.ring().advance(slots);
    }

    /// Moves a packet into the ring, which has room; its slots get the free buffers in exchange.
    fn put(&mut self, packet: Packet<'_>, last: bool) {
        let (mut from, mut bytes) = (packet.at, 0);
        for (target, left) in self.ring().first(packet.slots).zip((0..packet.slots).rev()) {
            target.swap_from(&packet.ring.slot(from));
            target.set_flags(more(left) | NS_BUF_CHANGED);
            bytes += u64::from(target.len());
            from = packet.ring.next(from);
        }
        self.counts.packets += 1;
        self.counts.bytes += bytes;
        self.lend(packet.slots, packet.flow, last);
    }

    /// Moves a packet into the queue; its slots get buffers of the pool in exchange, which has as many.
    fn enqueue(&mut self, packet: Packet<'_>, free: &mut Vec<BufIdx>) {
        let mut at = packet.at;
        for left in (0..packet.slots).rev() {
            let (source, Some(buffer)) = (packet.ring.slot(at), free.pop()) else { return };
            let mut slot = source.get();
            slot.flags = more(left);
            self.queue.push(Waiting { slot, flow: packet.flow });
            source.replace_buf(buffer);
            at = packet.ring.next(at);
        }
    }

    /// Moves what waits into the ring as far as there is room. Returns whether anything moved.
    fn flush(&mut self, free: &mut Vec<BufIdx>, last: bool) -> bool {
        let mut moved = false;
        loop {
            let slots = self.queue.first_packet();
            if slots == 0 || self.room() < slots {
                return moved;
            }
            let (mut at, mut bytes, mut flow) = (self.ring().head(), 0, 0);
            for _ in 0..slots {
                let Some(waiting) = self.queue.pop() else { break };
                let target = self.port.tx_rings()[0].slot(at);
                free.push(target.replace_buf(waiting.slot.buf_idx));
                target.set_ptr(waiting.slot.ptr);
                target.set_len_flags(waiting.slot.len, waiting.slot.flags | NS_BUF_CHANGED);
                bytes += u64::from(waiting.slot.len);
                flow = waiting.flow;
                at = self.ring().next(at);
            }
            self.counts.packets += 1;
            self.counts.bytes += bytes;
            self.lend(slots, flow, last);
            moved = true;
        }
    }

    /// Passes the packets that the reader has released on to the next group. Returns whether there were any.
    fn pass_on(&mut self, next: &mut Group) -> bool {
        let ring = &self.port.tx_rings()[0];
        // What is neither free nor on its way has come back. Others write the pointers: never more than was lent.
        let on_their_way = (ring.num_slots() - 1).saturating_sub(ring.space());
        let mut released = self.lent_slots.saturating_sub(on_their_way);
        let mut moved = false;
        while let Some(&Lent { slots, flow }) = self.lent.front() {
            if slots > released {
                break;
            }
            let packet = Packet { ring, at: self.oldest, slots, flow, led: None };
            self.oldest = packet.end();
            next.deliver(packet);
            self.lent.pop_front();
            released -= slots;
            self.lent_slots -= slots;
            moved = true;
        }
        moved
    }
}

/// Pipes that share the flows, and the buffers that their queues share.
pub(crate) struct Group {
    pipes: Vec<Pipe>,
    free: Vec<BufIdx>,
    /// Packets go nowhere from here.
    last: bool,
}

impl Group {
    /// Moves a packet into its flow's pipe, or into that pipe's queue; drops it where neither has room.
    pub(crate) fn deliver(&mut self, packet: Packet<'_>) {
        let chosen = packet.led.unwrap_or_else(|| flow::choose(packet.flow, self.pipes.len()));
        let slots = packet.slots as usize;
        let pipe = &mut self.pipes[chosen];
        if pipe.queue.is_empty() && packet.slots <= pipe.room() {
            return pipe.put(packet, self.last);
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

    /// Takes buffers from the longest queue.
    #[cold]
    fn revoke(&mut self) {
        let longest = self.pipes.iter_mut().max_by_key(|pipe| pipe.queue.len());
        if let Some(pipe) = longest {
            pipe.counts.drops += pipe.queue.drop_oldest(REVOKED, &mut self.free);
        }
    }

    /// Publishes what was moved and learns what was released; passes that on to the next group, and moves what waits as
    /// far as there is room. Returns whether anything moved.
    fn work(&mut self, mut next: Option<&mut Group>) -> Result<bool, String> {
        let mut moved = false;
        for pipe in &mut self.pipes {
            // Not a poll, which asks for room only where there is none at all.
            pipe.port.txsync().map_err(|e| e.to_string())?;
            if let Some(next) = next.as_deref_mut() {
                moved |= pipe.pass_on(next);
            }
            moved |= pipe.flush(&mut self.free, self.last);
        }
        Ok(moved)
    }
}

/// All groups.
pub(crate) struct Groups(Vec<Group>);

impl Groups {
    /// Each group has at least one pipe, and there is at least one group; `free` is shared out evenly.
    pub(crate) fn new(groups: Vec<Vec<Pipe>>, mut free: Vec<BufIdx>) -> Groups {
        let mut left = groups.len();
        let group = |pipes| {
            let share = free.split_off(free.len() - free.len() / left);
            left -= 1;
            Group { pipes, free: share, last: left == 0 }
        };
        Groups(groups.into_iter().map(group).collect())
    }

    /// The group that packets come to first.
    pub(crate) fn first(&mut self) -> &mut Group {
        &mut self.0[0]
    }

    /// All pipes, in the order of the command line.
    pub(crate) fn pipes(&self) -> impl Iterator<Item = &Pipe> {
        self.0.iter().flat_map(|group| &group.pipes)
    }

    /// Lets all pipes go on. Returns whether anything moved.
    pub(crate) fn work(&mut self) -> Result<bool, String> {
        let (mut moved, mut left) = (false, &mut self.0[..]);
        // From the last to the first, so that the next group's room is there when it is needed.
        let mut after: Option<&mut Group> = None;
        while let Some((group, before)) = left.split_last_mut() {
            moved |= group.work(after)?;
            (after, left) = (Some(group), before);
        }
        Ok(moved)
    }

    /// All buffers of the queues, those in use, too: what waits is dropped, and counted so.
    pub(crate) fn give_up(&mut self) -> Vec<BufIdx> {
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

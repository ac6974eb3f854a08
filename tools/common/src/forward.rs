// SPDX-License-Identifier: BSD-2-Clause
//! The forwarding loop of programs between two ports: moves packets from the receive rings of one port to the transmit
//! rings of another, in order, and sleeps while there is nothing to move.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use unetmap::abi::{NS_BUF_CHANGED, NS_MOREFRAG, PortSpec};
use unetmap::{Interest, Port, Ring, SlotIter, SlotRef};
pub use unetmap_sys::wait::Wait;

use crate::port;

/// Longest wait at the end for the receivers to release the forwarded packets.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);
/// A program that has packets due wakes up so much earlier, and spins: a timer is late by the time that a sleeper takes
/// to run.
const EARLY: Duration = Duration::from_micros(150);
/// Longest wait at the end until the ports have room for packets that movers keep.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of slots of one packet.
const MAX_FRAGS: u32 = 64;

/// Returns the transmit ring for each receive ring. It is always the same one, so that packets of a ring stay in order.
fn ring_pairs<'a>(from: &'a Port, to: &'a Port) -> impl Iterator<Item = (&'a Ring, &'a Ring)> {
    from.rx_rings().iter().zip(to.tx_rings().iter().cycle())
}

/// Counts of forwarded packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Counts {
    /// Adds other counts.
    pub fn add(&mut self, other: Counts) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

/// Moves the packets of one direction.
pub trait Mover {
    /// Handles the packets in the first `n` slots of `from`, which end with a complete packet. Returns how many slots
    /// of `to`, from its first on, have packets to send; unless packets are kept, `to` has [`Mover::slots_for_one`]
    /// times `n` free slots at least. The caller moves both rings.
    ///
    /// # Errors
    /// A sentence that ends the program.
    fn move_slots(&mut self, from: &Ring, to: &Ring, n: u32) -> Result<u32, String>;

    /// Writes packets of the program's own into the first slots of `to`, before packets are moved. Returns how many
    /// slots have them.
    fn own_packets(&mut self, _to: &Ring) -> u32 {
        0
    }

    /// Whether packets are received whatever room the other port has: the mover keeps them.
    fn keeps_packets(&self) -> bool {
        false
    }

    /// How many slots of the other port the slots of a packet may become, for each of them.
    fn slots_for_one(&self) -> u32 {
        1
    }

    /// Makes all packets due that the mover keeps, because the program ends. Returns their number.
    fn end(&mut self) -> usize {
        0
    }

    /// Returns how long it is until [`Mover::own_packets`] has a packet: zero if it only waits for room. `None`: it has
    /// none.
    fn next_packet(&mut self) -> Option<Duration> {
        None
    }
}

/// One direction between two ports.
pub struct Direction<'a, M> {
    /// The port that receives.
    pub from: &'a Port,
    /// The port that sends.
    pub to: &'a Port,
    /// Maximum number of slots per batch.
    pub burst: u32,
    /// Moves the packets.
    pub mover: M,
}

impl<M: Mover> Direction<'_, M> {
    /// Moves the received packets for which the other port has room. The rest stays in the receive rings. Returns true
    /// if any packet was moved.
    fn forward(&mut self) -> Result<bool, String> {
        let mut moved = false;
        for (from, to) in ring_pairs(self.from, self.to) {
            let own = self.mover.own_packets(to);
            if own > 0 {
                to.advance(own);
                moved = true;
            }
            let room = match self.mover.keeps_packets() {
                true => from.space(),
                false => from.space().min(to.space() / self.mover.slots_for_one()),
            };
            let n = match whole_packets(from, room.min(self.burst)) {
                0 => whole_packets(from, room.min(MAX_FRAGS)), // a packet may have more slots than a burst
                n => n,
            };
            if n == 0 {
                self.check_stuck(from, to)?;
                continue;
            }
            let sent = self.mover.move_slots(from, to, n)?;
            to.advance(sent);
            from.advance(n);
            moved = true;
        }
        Ok(moved)
    }

    /// Returns what waits for room in the other port.
    fn blocked(&mut self) -> Blocked {
        Blocked {
            due: self.mover.next_packet() == Some(Duration::ZERO),
            received: ring_pairs(self.from, self.to).any(|(from, _)| !from.is_empty()),
        }
    }

    /// Makes the next wait for room end only if there are more free slots than now, which did not suffice.
    fn wait_for_more_room(&self, blocked: Blocked) {
        // A packet that is due may be for any ring.
        for (_, to) in ring_pairs(self.from, self.to).filter(|(from, _)| blocked.due || !from.is_empty()) {
            to.set_cur(to.tail());
        }
    }

    /// Returns an error if a packet has more slots than the other port's whole ring, because it would wait forever.
    fn check_stuck(&self, from: &Ring, to: &Ring) -> Result<(), String> {
        let room = to.space() / self.mover.slots_for_one();
        if to.space() < to.num_slots() - 1 || from.space() <= room {
            return Ok(());
        }
        Err(format!(
            "{}: a packet has more than the {room} slots of a ring of {}; open that port with more slots (@conf:slots)",
            self.from.spec(),
            self.to.spec()
        ))
    }
}

/// Packets that wait for room in the other port.
#[derive(Clone, Copy)]
struct Blocked {
    /// Some that the mover has, and that are due.
    due: bool,
    /// Some in the receive rings.
    received: bool,
}

impl Blocked {
    fn any(self) -> bool {
        self.due || self.received
    }
}

/// Returns the number of slots among the first `n` of the ring that belong to complete packets.
fn whole_packets(ring: &Ring, n: u32) -> u32 {
    if n == ring.space() {
        // Back ends deliver complete packets only. If a packet is incomplete here, its rest will never arrive.
        return n;
    }
    let ends = ring.available().take(n as usize).zip(1..).filter(|(slot, _)| slot.flags() & NS_MOREFRAG == 0);
    ends.last().map_or(0, |(_, end)| end)
}

/// Moves a packet's slot by exchanging buffers, without access to the payload. Returns its bytes, and whether the
/// packet goes on in the next slot.
#[inline(always)]
pub fn swap_slot(source: &SlotRef<'_>, target: &SlotRef<'_>) -> (u16, bool) {
    target.swap_from(source);
    let flags = target.flags() & NS_MOREFRAG;
    target.set_flags(flags | NS_BUF_CHANGED);
    (source.len(), flags != 0)
}

/// Moves a packet's slot by copying the payload. Returns as [`swap_slot`] does.
#[inline(always)]
pub fn copy_slot(source: &SlotRef<'_>, target: &SlotRef<'_>) -> (u16, bool) {
    let (len, flags) = (source.len(), source.flags() & NS_MOREFRAG);
    target.frame().copy_from(&source.frame(), usize::from(len));
    target.set_len_flags(len, flags);
    (len, flags != 0)
}

/// Moves the slots of a packet that was judged, `head` being its first bytes, which follow `header` bytes in the first
/// slot. They and the packet's end are as they were judged, whatever its sender has written meanwhile. Without `head`
/// the bytes stay as they are: buffers of a region that both ports have are the sender's all the same.
#[inline(always)]
pub fn move_judged(
    mut sources: SlotIter<'_>,
    targets: &mut SlotIter<'_>,
    swap: bool,
    header: usize,
    head: Option<&[u8]>,
) {
    let (mut head, mut at) = (head.unwrap_or_default(), header);
    while let Some(source) = sources.next() {
        let Some(target) = targets.next() else { break };
        let (len, _) = if swap { swap_slot(&source, &target) } else { copy_slot(&source, &target) };
        let flags = target.flags() & !NS_MOREFRAG;
        target.set_flags(if sources.len() > 0 { flags | NS_MOREFRAG } else { flags });
        let part;
        (part, head) = head.split_at(head.len().min(usize::from(len).saturating_sub(at)));
        target.frame().write_changed(at, part);
        at = 0;
    }
}

/// Moves the first `n` slots of `from` to the first of `to`, by exchanging buffers or by copying.
pub fn move_all(from: &Ring, to: &Ring, n: u32, swap: bool) -> Counts {
    let slots = from.available().zip(to.available()).take(n as usize);
    let mut counter = SlotCounter::default();
    match swap {
        true => slots.for_each(|(source, target)| counter.add(swap_slot(&source, &target))),
        false => slots.for_each(|(source, target)| counter.add(copy_slot(&source, &target))),
    }
    counter.total(n)
}

/// The result of moving slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Slots of the other ring that have packets now.
    pub slots: u32,
    /// The packets there.
    pub counts: Counts,
    /// Packets that were too long, and dropped.
    pub too_long: u64,
}

/// As [`move_all`], but leaves out packets of more than `most` bytes.
pub fn move_short(from: &Ring, to: &Ring, n: u32, swap: bool, most: u32) -> Moved {
    let (mut at, mut left, mut moved) = (from.head(), n, Moved::default());
    while left > 0 {
        let (mut slots, mut bytes) = (0, 0);
        for slot in from.run(at, left) {
            let (len, flags) = slot.len_flags();
            (slots, bytes) = (slots + 1, bytes + u64::from(len));
            if flags & NS_MOREFRAG == 0 {
                break;
            }
        }
        if bytes > u64::from(most) {
            moved.too_long += 1;
        } else {
            let targets = to.run(to.add(to.head(), moved.slots), slots);
            for (source, target) in from.run(at, slots).zip(targets) {
                if swap {
                    swap_slot(&source, &target)
                } else {
                    copy_slot(&source, &target)
                };
            }
            moved.slots += slots;
            moved.counts.add(Counts { packets: 1, bytes });
        }
        // A ring always has the slots that it said it has.
        (at, left) = (from.add(at, slots.max(1)), left - slots.max(1).min(left));
    }
    moved
}

/// Returns the most bytes of a packet that `to` sends, if `from` may have longer ones; `header`: bytes of the packets'
/// virtio-net header, with which they may be segments that are to be sent as several frames.
pub fn limit(from: &Port, to: &Port, header: u32) -> Option<u32> {
    let most = port::longest_frame(to).filter(|_| header == 0)?;
    port::longest_frame(from).is_none_or(|longest| longest > most).then_some(most)
}

/// Counts the packets in the first `n` slots.
pub fn count_all(ring: &Ring, n: u32) -> Counts {
    let mut counter = SlotCounter::default();
    ring.first(n).for_each(|slot| {
        let (len, flags) = slot.len_flags();
        counter.add((len, flags & NS_MOREFRAG != 0));
    });
    counter.total(n)
}

/// Sums the bytes of slots, and counts slots that do not end a packet.
#[derive(Default)]
struct SlotCounter {
    bytes: u64,
    continued: u64,
}

impl SlotCounter {
    #[inline(always)]
    fn add(&mut self, (len, continues): (u16, bool)) {
        self.bytes += u64::from(len);
        self.continued += u64::from(continues);
    }

    fn total(self, slots: u32) -> Counts {
        Counts { packets: u64::from(slots) - self.continued, bytes: self.bytes }
    }
}

/// Returns an error if packets are copied between buffers of different sizes.
///
/// # Errors
/// A sentence that says what to do.
pub fn check_sizes(a: &Port, b: &Port, swap: bool) -> Result<(), String> {
    if swap || a.buf_size() == b.buf_size() {
        return Ok(());
    }
    Err(format!(
        "{} has buffers of {} bytes, and {} of {}, so packets may not fit; open both ports in one region (@MEM_ID)",
        a.spec(),
        a.buf_size(),
        b.spec(),
        b.buf_size()
    ))
}

/// Returns the bytes of virtio-net header before each packet of a port; 0 if the daemon does not say.
pub fn header_bytes(port: &Port) -> u32 {
    let spec = PortSpec::parse(port.spec()).ok();
    spec.and_then(|spec| unetmap::switch::vnet_header(&spec.name).ok()).unwrap_or(0)
}

/// Returns an error if the packets of only one port, or of both with different lengths, have virtio-net headers: they
/// would become part of the frames. Returns that length.
///
/// # Errors
/// A sentence that says what to do.
pub fn check_headers(a: &Port, b: &Port) -> Result<u32, String> {
    let (of_a, of_b) = (header_bytes(a), header_bytes(b));
    if of_a == of_b {
        return Ok(of_a);
    }
    Err(format!(
        "{} has virtio-net headers of {of_a} bytes, and {} of {of_b}; set the same for both (unetmap nic IF header N, \
         pkt-gen -H)",
        a.spec(),
        b.spec()
    ))
}

/// Forwards packets until the stop flag is set.
///
/// # Errors
/// The error of a port or of a mover.
pub fn forward<M: Mover>(
    directions: &mut [Direction<'_, M>],
    ports: &[&Port],
    stop: &AtomicBool,
) -> Result<(), String> {
    let mut wait = Wait::default();
    while !stop.load(Relaxed) {
        for port in ports {
            // Publishes sent packets, releases forwarded slots and receives new packets. Does not wait.
            port.poll(Interest::BOTH, Some(Duration::ZERO)).map_err(|e| e.to_string())?;
        }
        let mut moved = false;
        for direction in &mut *directions {
            moved |= direction.forward()?;
        }
        if moved {
            wait.restart();
            continue;
        }
        if wait.spins() {
            std::hint::spin_loop();
            continue;
        }
        sleep(directions, ports)?;
        wait.restart();
    }
    Ok(())
}

/// Sleeps until a port receives packets, or has room for packets that wait, or a packet is due.
fn sleep<M: Mover>(directions: &mut [Direction<'_, M>], ports: &[&Port]) -> Result<(), String> {
    let blocked: Vec<Blocked> = directions.iter_mut().map(Direction::blocked).collect();
    let due = directions.iter_mut().filter_map(|d| d.mover.next_packet().filter(|left| !left.is_zero())).min();
    let wait = due.map(|left| left.saturating_sub(EARLY));
    if wait.is_some_and(|wait| wait.is_zero()) {
        std::hint::spin_loop();
        return Ok(());
    }
    let directions = directions.iter().zip(blocked);
    let interest = |port: &Port| {
        directions.clone().fold(Interest::NONE, |interest, (direction, blocked)| {
            let receives = std::ptr::eq(direction.from, port) && (!blocked.any() || direction.mover.keeps_packets());
            let sends = std::ptr::eq(direction.to, port) && blocked.any();
            let interest = if receives { interest | Interest::RX } else { interest };
            if sends { interest | Interest::TX } else { interest }
        })
    };
    directions.clone().for_each(|(direction, blocked)| direction.wait_for_more_room(blocked));
    let interests: Vec<(&Port, Interest)> = ports.iter().map(|port| (*port, interest(port))).collect();
    port::wait_any(&interests, wait)
}

/// Sends all packets that the movers keep, as fast as the ports take them, for at most [`FLUSH_TIMEOUT`]. Returns how
/// many were not taken.
pub fn flush<M: Mover>(directions: &mut [Direction<'_, M>]) -> usize {
    let until = Instant::now() + FLUSH_TIMEOUT;
    loop {
        let mut left = 0;
        for Direction { to, mover, .. } in &mut *directions {
            mover.end();
            // A port that has failed takes nothing.
            let synced = to.txsync().is_ok();
            for ring in to.tx_rings().iter().filter(|_| synced) {
                ring.advance(mover.own_packets(ring));
            }
            let _ = to.txsync();
            left += mover.end();
        }
        if left == 0 || Instant::now() >= until {
            return left;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Waits until the receivers have released the forwarded packets, at most [`DRAIN_TIMEOUT`].
pub fn drain(ports: &[&Port]) {
    let until = Instant::now() + DRAIN_TIMEOUT;
    loop {
        // Errors are ignored: a failed port no longer has a receiver.
        let pending = ports.iter().any(|port| {
            let synced = port.rxsync().and_then(|()| port.txsync());
            synced.is_ok() && port.tx_rings().iter().any(unetmap::Ring::pending)
        });
        if !pending || Instant::now() >= until {
            return;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

//! The four rings of an AF_XDP socket, and beside them a record of what was handed to the kernel.
//!
//! ```text
//! tx, completion      we produce packets to send       the kernel gives their buffers back
//! fill, rx            we offer buffers                 the kernel produces received packets
//! ```
//! Every ring has as many entries as the netmap ring has slots, a power of two, and entry *i* always belongs to slot
//! *i*: for a slot that must not go to the kernel stands an entry that the kernel skips. So the kernel's own words say
//! where a netmap ring stands, each moves with one store, and who dies between two steps leaves nothing to guess.
//!
//! The words live in the socket's memory, which every holder of the socket can write: positions are judged like those
//! of any other party (M4).

use crate::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::pos::{BufIdx, Pos, Slots, Span};
use crate::window::Window;
use unetmap_sys::xsk::{BUFFER_ENTRY, HEADROOM, PACKET_ENTRY, RingMap};

/// `XDP_RING_NEED_WAKEUP`: the kernel wants to be told.
const NEED_WAKEUP: u32 = 1;
/// `XDP_PKT_CONTD`: the packet goes on in the next entry.
const CONTINUED: u32 = 1;
/// In no memory: the kernel skips such an entry, and counts it.
const NOWHERE: u64 = u64::MAX >> 16;

/// A packet, or a part of one, as an entry of the rx or tx ring tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet {
    /// Where it is.
    pub buf_idx: BufIdx,
    /// Bytes of the buffer before it.
    pub offset: u32,
    /// Bytes.
    pub len: u32,
    /// Whether it goes on in the next entry.
    pub continued: bool,
}

/// One ring of a socket.
#[derive(Clone)]
struct Ring {
    window: Window,
    producer: usize,
    consumer: usize,
    flags: usize,
    entries_at: usize,
    slots: Slots,
}

impl Ring {
    /// `None` when the ring does not have a power of two of entries, as many as `slots`, or they do not lie in the mapping.
    fn new(map: &RingMap, slots: Slots, entry: usize) -> Option<Ring> {
        let window = Window::whole(map.map.clone());
        let end = map.entries_at.checked_add(slots.get() as usize * entry)?;
        let aligned =
            [map.producer, map.consumer, map.flags].iter().all(|at| at % 4 == 0) && map.entries_at.is_multiple_of(8);
        let inside = [map.producer, map.consumer, map.flags].iter().all(|at| at + 4 <= window.len());
        let fits = slots.get().is_power_of_two() && map.entries == slots.get() && end <= window.len();
        (aligned && inside && fits).then_some(Ring {
            window,
            producer: map.producer,
            consumer: map.consumer,
            flags: map.flags,
            entries_at: map.entries_at,
            slots,
        })
    }

    #[inline(always)]
    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: `new` checked that the three words lie in the mapping and are aligned (M2); an atomic may be shared (M1).
        unsafe { &*self.window.base().add(at).cast::<AtomicU32>() }
    }

    /// Word `n` of 8 bytes behind the start of the entries.
    #[inline(always)]
    fn entry(&self, n: usize) -> &AtomicU64 {
        // SAFETY: callers pass an entry below the number of slots, times its words; `new` checked the end (M2, M3).
        unsafe { &*self.window.base().add(self.entries_at + 8 * n).cast::<AtomicU64>() }
    }

    #[inline(always)]
    fn at(&self, p: Pos) -> usize {
        (p.raw() & (self.slots.get() - 1)) as usize
    }

    /// The slot that a position of the kernel's, which counts without end, stands for.
    #[inline(always)]
    fn pos(&self, counted: u32) -> Pos {
        self.slots.pos(counted & (self.slots.get() - 1)).unwrap_or(Pos::ZERO)
    }

    /// Entries between consumer and producer; `None` when that cannot be.
    #[inline(always)]
    fn waiting(&self) -> Option<u32> {
        let n = self
            .word(self.producer)
            .load(Ordering::Acquire)
            .wrapping_sub(self.word(self.consumer).load(Ordering::Acquire));
        (n <= self.slots.get()).then_some(n)
    }

    /// Our own word moves on by `n`.
    #[inline(always)]
    fn advance(&self, word: usize, n: u32) {
        let word = self.word(word);
        word.store(word.load(Ordering::Relaxed).wrapping_add(n), Ordering::Release);
    }

    #[inline(always)]
    fn needs_wakeup(&self) -> bool {
        self.word(self.flags).load(Ordering::Relaxed) & NEED_WAKEUP != 0
    }
}

/// The buffers in the socket's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Buffers {
    /// Bytes of one.
    pub size: u32,
    /// How many.
    pub count: u32,
    /// The most bytes of a buffer that may stay free before a packet: the headroom that the socket's memory was registered
    /// with.
    pub headroom: u32,
}

impl Buffers {
    /// The address of byte `offset`.
    #[inline(always)]
    fn address(self, idx: BufIdx, offset: u32) -> u64 {
        u64::from(idx.0) * u64::from(self.size) + u64::from(offset.min(self.headroom))
    }

    /// The buffer that `addr` names, and the byte in it: base in the lower 48 bits, offset in the upper 16.
    #[inline(always)]
    fn place(self, addr: u64) -> Option<(BufIdx, u32)> {
        let at = (addr & NOWHERE) + (addr >> 48);
        let (idx, offset) = (u32::try_from(at / u64::from(self.size)).ok()?, (at % u64::from(self.size)) as u32);
        (offset <= self.headroom && idx < self.count).then_some((BufIdx(idx), offset))
    }
}

/// The sending half of a socket.
#[derive(Clone)]
pub struct SendRings {
    tx: Ring,
    done: Ring,
    sent: SentPage,
    /// First slot of this ring in `sent`.
    first: usize,
    buffers: Buffers,
}

impl SendRings {
    /// `sent` from `first` on is this ring's record. `None`: it cannot be.
    pub fn new(
        tx: &RingMap,
        done: &RingMap,
        slots: Slots,
        buffers: Buffers,
        sent: SentPage,
        first: usize,
    ) -> Option<SendRings> {
        let (tx, done) = (Ring::new(tx, slots, PACKET_ENTRY)?, Ring::new(done, slots, BUFFER_ENTRY)?);
        sent.word(first + slots.get() as usize - 1)?;
        Some(SendRings { tx, done, sent, first, buffers })
    }

    /// The next slot to hand over.
    #[inline(always)]
    pub fn next(&self) -> Pos {
        self.tx.pos(self.tx.word(self.tx.producer).load(Ordering::Relaxed))
    }

    /// Writes the entry of slot `p`; `None`: nothing of it is sent. It counts after [`SendRings::publish`].
    #[inline(always)]
    pub fn put(&self, p: Pos, packet: Option<Packet>) {
        let at = self.tx.at(p);
        let (addr, len, options, record) = match packet {
            Some(packet) => (
                self.buffers.address(packet.buf_idx, packet.offset),
                packet.len,
                u32::from(packet.continued) * CONTINUED,
                packet.buf_idx.0,
            ),
            None => (NOWHERE, 0, 0, 0),
        };
        self.tx.entry(2 * at).store(addr, Ordering::Relaxed);
        self.tx.entry(2 * at + 1).store(u64::from(len) | u64::from(options) << 32, Ordering::Relaxed);
        self.record(at, record);
    }

    #[inline(always)]
    fn record(&self, at: usize, idx: u32) {
        if let Some(word) = self.sent.word(self.first + at) {
            word.store(idx, Ordering::Relaxed);
        }
    }

    #[inline(always)]
    fn recorded(&self, at: usize) -> u32 {
        self.sent.word(self.first + at).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Hands `n` entries over.
    #[inline(always)]
    pub fn publish(&self, n: u32) {
        self.tx.advance(self.tx.producer, n);
    }

    /// Entries that the kernel has not looked at; nonsense counts as none.
    #[inline(always)]
    pub fn unseen(&self) -> u32 {
        self.tx.waiting().unwrap_or(0)
    }

    /// Whether the kernel wants to be told of new entries.
    #[inline(always)]
    pub fn needs_wakeup(&self) -> bool {
        self.tx.needs_wakeup()
    }

    /// Buffers that came back and that [`SendRings::finished`] has not looked at; nonsense counts as none.
    #[inline(always)]
    pub fn unread(&self) -> u32 {
        self.done.waiting().unwrap_or(0)
    }

    /// Whether slot `p`, handed over, is finished as far as the buffers tell that were looked at.
    #[inline(always)]
    pub fn is_finished(&self, p: Pos) -> bool {
        p != self.next() && self.recorded(self.tx.at(p)) == 0
    }

    /// The earliest slot from `since` on that was handed over and whose buffer has not come back, or the next to hand over.
    pub fn first_unfinished(&self, since: Pos) -> Pos {
        let next = self.next();
        let earlier = self.tx.slots.walk(Span { from: since, to: next });
        earlier.into_iter().find(|&p| self.recorded(self.tx.at(p)) != 0).unwrap_or(next)
    }

    /// Reads the buffers that came back: the first slot from `from` on, and before `to`, that is not finished. They come in
    /// the order in which they were sent, nearly always.
    pub fn finished(&self, from: Pos, to: Pos) -> Pos {
        let slots = self.tx.slots;
        let available = self.unread();
        let start = self.done.word(self.done.consumer).load(Ordering::Relaxed);
        let (mut p, mut read) = (from, 0);
        while p != to {
            let record = self.recorded(self.tx.at(p));
            if record == 0 {
                p = slots.next(p);
                continue;
            }
            if read == available {
                break;
            }
            let at = self.done.at(self.done.pos(start.wrapping_add(read)));
            let back = self.buffers.place(self.done.entry(at).load(Ordering::Relaxed)).map_or(0, |(idx, _)| idx.0);
            read += 1;
            if back == record {
                self.record(self.tx.at(p), 0);
                p = slots.next(p);
            } else {
                self.finished_early(back, slots.next(p), to);
            }
        }
        if read > 0 {
            self.done.advance(self.done.consumer, read);
        }
        p
    }

    /// A buffer came back before those that were sent before it. One that no slot sent is somebody's nonsense.
    #[cold]
    fn finished_early(&self, back: u32, from: Pos, to: Pos) {
        let slots = self.tx.slots;
        let mut p = from;
        while back != 0 && p != to {
            let at = self.tx.at(p);
            if self.recorded(at) == back {
                self.record(at, 0);
                return;
            }
            p = slots.next(p);
        }
    }
}

/// The receiving half of a socket.
#[derive(Clone)]
pub struct ReceiveRings {
    rx: Ring,
    fill: Ring,
    buffers: Buffers,
}

impl ReceiveRings {
    /// As [`SendRings::new`].
    pub fn new(rx: &RingMap, fill: &RingMap, slots: Slots, buffers: Buffers) -> Option<ReceiveRings> {
        Some(ReceiveRings {
            rx: Ring::new(rx, slots, PACKET_ENTRY)?,
            fill: Ring::new(fill, slots, BUFFER_ENTRY)?,
            buffers,
        })
    }

    /// The next slot whose buffer is to be offered.
    #[inline(always)]
    pub fn next_offer(&self) -> Pos {
        self.fill.pos(self.fill.word(self.fill.producer).load(Ordering::Relaxed))
    }

    /// Writes the entry of slot `p`: a packet may be put into this buffer, from the byte `offset` on. `None`: it offers
    /// nothing. It counts after [`ReceiveRings::publish`].
    #[inline(always)]
    pub fn offer(&self, p: Pos, place: Option<(BufIdx, u32)>) {
        // Data comes after the kernel's headroom and ours, which lie before, perhaps in another buffer.
        let before = u64::from(HEADROOM) + u64::from(self.buffers.headroom);
        let addr = place.map_or(NOWHERE, |(idx, offset)| self.buffers.address(idx, offset).wrapping_sub(before));
        self.fill.entry(self.fill.at(p)).store(addr, Ordering::Relaxed);
    }

    /// Offers `n` entries.
    #[inline(always)]
    pub fn publish(&self, n: u32) {
        self.fill.advance(self.fill.producer, n);
    }

    /// Whether the driver wants to be told of new offers.
    #[inline(always)]
    pub fn needs_wakeup(&self) -> bool {
        self.fill.needs_wakeup()
    }

    /// The slot that the next packet belongs to.
    #[inline(always)]
    pub fn next_packet(&self) -> Pos {
        self.rx.pos(self.rx.word(self.rx.consumer).load(Ordering::Relaxed))
    }

    /// How many entries with packets wait; nonsense counts as none.
    #[inline(always)]
    pub fn waiting(&self) -> u32 {
        self.rx.waiting().unwrap_or(0)
    }

    /// The entry `n` after the first that waits: buffer and offset, or `None` for a buffer that does not exist; length,
    /// which is to be judged; whether the packet goes on.
    #[inline(always)]
    pub fn packet(&self, n: u32) -> (Option<(BufIdx, u32)>, u32, bool) {
        let at = self.rx.at(self.rx.pos(self.rx.word(self.rx.consumer).load(Ordering::Relaxed).wrapping_add(n)));
        let addr = self.rx.entry(2 * at).load(Ordering::Relaxed);
        let rest = self.rx.entry(2 * at + 1).load(Ordering::Relaxed);
        (self.buffers.place(addr), rest as u32, (rest >> 32) as u32 & CONTINUED != 0)
    }

    /// Takes `n` entries.
    #[inline(always)]
    pub fn take(&self, n: u32) {
        self.rx.advance(self.rx.consumer, n);
    }
}

/// For each slot of each transmit ring of a port, the buffer that it handed to the kernel and that has not come back, or 0.
/// The slot itself may say something else by now.
#[derive(Clone)]
pub struct SentPage {
    window: Window,
}

impl SentPage {
    /// A view of a mapping.
    pub fn new(window: Window) -> SentPage {
        SentPage { window }
    }

    /// Bytes to map for `slots` slots in all rings.
    pub fn bytes(slots: usize) -> usize {
        (4 * slots).next_multiple_of(4096)
    }

    #[inline(always)]
    fn word(&self, slot: usize) -> Option<&AtomicU32> {
        // SAFETY: an atomic may be shared (M1).
        let ptr = unsafe { self.window.at::<AtomicU32>(slot.checked_mul(4)?) }?;
        // SAFETY: in bounds and aligned (`at`), mapped while `self` lives (M2).
        Some(unsafe { &*ptr })
    }

    /// Forgets what the slots `[first, first + count)` sent: their socket is gone.
    pub fn forget(&self, first: usize, count: usize) {
        (first..first + count).filter_map(|slot| self.word(slot)).for_each(|word| word.store(0, Ordering::Relaxed));
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

// SPDX-License-Identifier: BSD-2-Clause
//! The four rings of an AF_XDP socket, and a record of the frames that the kernel has for transmission.
//!
//! ```text
//! tx, completion      we submit frames to send         the kernel returns the frames when they are sent
//! fill, rx            we provide empty frames          the kernel delivers received packets in them
//! ```
//! Every ring has as many entries as the netmap ring has slots, a power of two, and entry *i* always belongs to slot
//! *i*: a slot that must not go to the kernel gets an entry that the kernel skips. So the positions of the AF_XDP rings
//! are the state of the netmap ring. Each moves with one store, so the state is well defined after a crash at any
//! instruction.
//!
//! The positions that this side writes are loaded relaxed (O2). Entries are relaxed, too: the acquire of the kernel's
//! position, or the release of this side's, orders them (O1).
//!
//! Every process that holds the socket can write the rings' memory: positions are validated like those of any other
//! peer (M4).

use crate::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::mapped_range::MappedRange;
use crate::pos::{BufIdx, Pos, Slots, Span};
use unetmap_sys::xsk::{BUFFER_ENTRY, HEADROOM, PACKET_ENTRY, RingMap, pool_offset_in_page};

/// `XDP_RING_NEED_WAKEUP`: the kernel requires a system call to process new entries.
const NEED_WAKEUP: u32 = 1;
/// `XDP_PKT_CONTD`: the packet continues in the next entry.
const CONTINUED: u32 = 1;
/// The bits of a UMEM address that hold the base; the bits above hold the offset.
const BASE_MASK: u64 = u64::MAX >> 16;
/// An address outside any UMEM: the kernel skips such an entry, and counts it.
const INVALID_ADDR: u64 = BASE_MASK;

/// A descriptor of the tx ring (`struct xdp_desc`): a packet or a fragment of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct XskDesc {
    /// The buffer (UMEM frame).
    pub buf_idx: BufIdx,
    /// Bytes of the buffer before the packet.
    pub offset: u32,
    /// Bytes of the packet in the buffer.
    pub len: u32,
    /// Whether the packet continues in the next entry.
    pub continued: bool,
}

/// One ring of a socket.
#[derive(Clone)]
struct Ring {
    range: MappedRange,
    producer: usize,
    consumer: usize,
    flags: usize,
    entries_at: usize,
    slots: Slots,
}

impl Ring {
    /// `None` when the ring does not have a power of two of entries, as many as `slots`, or they do not lie in the
    /// mapping.
    fn new(map: &RingMap, slots: Slots, entry: usize) -> Option<Ring> {
        let range = MappedRange::whole(map.map.clone());
        let end = map.entries_at.checked_add(slots.get() as usize * entry)?;
        let aligned =
            [map.producer, map.consumer, map.flags].iter().all(|at| at % 4 == 0) && map.entries_at.is_multiple_of(8);
        let inside = [map.producer, map.consumer, map.flags].iter().all(|at| at + 4 <= range.len());
        let fits = slots.get().is_power_of_two() && map.entries == slots.get() && end <= range.len();
        (aligned && inside && fits).then_some(Ring {
            range,
            producer: map.producer,
            consumer: map.consumer,
            flags: map.flags,
            entries_at: map.entries_at,
            slots,
        })
    }

    #[inline(always)]
    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: `new` checked that the three words lie in the mapping and are aligned (M2); an atomic may be shared
        // (M1).
        unsafe { &*self.range.base().add(at).cast::<AtomicU32>() }
    }

    /// Word `n`, of 8 bytes, from the start of the entries.
    #[inline(always)]
    fn entry(&self, n: usize) -> &AtomicU64 {
        // SAFETY: callers pass the words of an entry below the number of slots (M3); `new` checked the end of the
        // entries (M2); an atomic may be shared (M1).
        unsafe { &*self.range.base().add(self.entries_at + 8 * n).cast::<AtomicU64>() }
    }

    /// The entry of slot `p`.
    #[inline(always)]
    fn index(&self, p: Pos) -> usize {
        (p.raw() & (self.slots.get() - 1)) as usize
    }

    /// The slot of a free-running position of the kernel's.
    #[inline(always)]
    fn pos(&self, counted: u32) -> Pos {
        self.slots.pos(counted & (self.slots.get() - 1)).unwrap_or(Pos::ZERO)
    }

    /// Entries between consumer and producer; `None` if more than `rings` times those that the ring has.
    #[inline(always)]
    fn pending(&self, rings: u32) -> Option<u32> {
        // Acquire: entries that the kernel has produced are read, and slots that it has consumed are written, after
        // this.
        let n = self
            .word(self.producer)
            .load(Ordering::Acquire)
            .wrapping_sub(self.word(self.consumer).load(Ordering::Acquire));
        (n <= rings * self.slots.get()).then_some(n)
    }

    /// Advances `word`, one that this side writes, by `n`.
    #[inline(always)]
    fn advance(&self, word: usize, n: u32) {
        let word = self.word(word);
        // Release: the kernel sees the entries before the position. The load is of this side's own word (O2).
        word.store(word.load(Ordering::Relaxed).wrapping_add(n), Ordering::Release);
    }

    #[inline(always)]
    fn needs_wakeup(&self) -> bool {
        // Relaxed: a hint (O3); entries that the kernel has not consumed make every later sync load it again.
        self.word(self.flags).load(Ordering::Relaxed) & NEED_WAKEUP != 0
    }
}

/// The layout of the socket's UMEM: buffers of one size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UmemLayout {
    /// Bytes of a buffer.
    pub size: u32,
    /// The number of buffers.
    pub count: u32,
    /// The largest offset of a packet in its buffer: the headroom that the UMEM was registered with.
    pub headroom: u32,
}

impl UmemLayout {
    /// The UMEM address of buffer 0: a UMEM begins with a page.
    #[inline(always)]
    fn start(self) -> u64 {
        pool_offset_in_page(self.size).into()
    }

    /// The UMEM address of byte `offset` of a buffer.
    #[inline(always)]
    fn address(self, idx: BufIdx, offset: u32) -> u64 {
        self.start() + u64::from(idx.0) * u64::from(self.size) + u64::from(offset.min(self.headroom))
    }

    /// The buffer and the offset in it that the UMEM address `addr` names: base in the lower 48 bits, offset in the
    /// upper 16. `None` if there is no such buffer, or the offset exceeds the headroom.
    #[inline(always)]
    fn locate(self, addr: u64) -> Option<(BufIdx, u32)> {
        let at = ((addr & BASE_MASK) + (addr >> 48)).checked_sub(self.start())?;
        let (idx, offset) = (u32::try_from(at / u64::from(self.size)).ok()?, (at % u64::from(self.size)) as u32);
        (offset <= self.headroom && idx < self.count).then_some((BufIdx(idx), offset))
    }
}

/// The transmitting half of a socket: tx and completion ring.
#[derive(Clone)]
pub struct XskTxRings {
    tx: Ring,
    completion: Ring,
    frames: TxFramesPage,
    /// First slot of this ring in `frames`.
    first: usize,
    umem: UmemLayout,
}

impl XskTxRings {
    /// The record of this ring starts at `first` of `frames`. `None` if the rings do not have `slots` entries, or the
    /// record does not fit into the page.
    pub fn new(
        tx: &RingMap,
        completion: &RingMap,
        slots: Slots,
        umem: UmemLayout,
        frames: TxFramesPage,
        first: usize,
    ) -> Option<XskTxRings> {
        let (tx, completion) = (Ring::new(tx, slots, PACKET_ENTRY)?, Ring::new(completion, slots, BUFFER_ENTRY)?);
        frames.word(first + slots.get() as usize - 1)?;
        Some(XskTxRings { tx, completion, frames, first, umem })
    }

    /// The next slot to submit.
    #[inline(always)]
    pub fn next_tx(&self) -> Pos {
        self.tx.pos(self.tx.word(self.tx.producer).load(Ordering::Relaxed))
    }

    /// Writes the tx entry of slot `p`; `None`: an entry that the kernel skips. It takes effect with
    /// [`XskTxRings::submit`].
    #[inline(always)]
    pub fn write_tx(&self, p: Pos, desc: Option<XskDesc>) {
        let at = self.tx.index(p);
        let (addr, len, options, record) = match desc {
            Some(desc) => (
                self.umem.address(desc.buf_idx, desc.offset),
                desc.len,
                u32::from(desc.continued) * CONTINUED,
                desc.buf_idx.0,
            ),
            None => (INVALID_ADDR, 0, 0, 0),
        };
        // Relaxed: the release in `submit` orders the entry (O1); the record is used by holders of the ring's lock
        // (O2).
        self.tx.entry(2 * at).store(addr, Ordering::Relaxed);
        self.tx.entry(2 * at + 1).store(u64::from(len) | u64::from(options) << 32, Ordering::Relaxed);
        self.record(at, record);
    }

    #[inline(always)]
    fn record(&self, at: usize, idx: u32) {
        if let Some(word) = self.frames.word(self.first + at) {
            word.store(idx, Ordering::Relaxed);
        }
    }

    #[inline(always)]
    fn recorded(&self, at: usize) -> u32 {
        self.frames.word(self.first + at).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Submits `n` entries to the kernel.
    #[inline(always)]
    pub fn submit(&self, n: u32) {
        self.tx.advance(self.tx.producer, n);
    }

    /// Submitted entries that the kernel has not published as consumed; 0 if the positions are invalid. Linux before
    /// 6.17 publishes them in copy mode when it has consumed all that it knew of. As completed entries are used again
    /// meanwhile, there may be twice as many as the ring has.
    #[inline(always)]
    pub fn tx_pending(&self) -> u32 {
        self.tx.pending(2).unwrap_or(0)
    }

    /// Whole packets among these entries, which the kernel would send.
    pub fn unread_packets(&self) -> u32 {
        let next = self.tx.word(self.tx.producer).load(Ordering::Relaxed);
        let is_last = |n: &u32| {
            let at = self.tx.index(self.tx.pos(next.wrapping_sub(*n)));
            let options = (self.tx.entry(2 * at + 1).load(Ordering::Relaxed) >> 32) as u32;
            self.tx.entry(2 * at).load(Ordering::Relaxed) != INVALID_ADDR && options & CONTINUED == 0
        };
        (1..=self.tx_pending().min(self.tx.slots.get())).filter(is_last).count() as u32
    }

    /// Whether the kernel requires a system call to process new entries.
    #[inline(always)]
    pub fn needs_wakeup(&self) -> bool {
        self.tx.needs_wakeup()
    }

    /// Completions that [`XskTxRings::reap_completions`] has not read; 0 if the positions are invalid.
    #[inline(always)]
    pub fn completions_pending(&self) -> u32 {
        self.completion.pending(1).unwrap_or(0)
    }

    /// Whether slot `p` was submitted and is complete, by the completions read so far.
    #[inline(always)]
    pub fn is_completed(&self, p: Pos) -> bool {
        p != self.next_tx() && self.recorded(self.tx.index(p)) == 0
    }

    /// The earliest slot from `since` on that was submitted and whose buffer has not been returned; else the next to
    /// submit.
    pub fn first_incomplete(&self, since: Pos) -> Pos {
        let next = self.next_tx();
        let submitted = self.tx.slots.walk(Span { from: since, to: next });
        submitted.into_iter().find(|&p| self.recorded(self.tx.index(p)) != 0).unwrap_or(next)
    }

    /// Reads the completion ring. Returns the first slot from `from` on that is not complete, or `to`. The kernel
    /// returns buffers nearly always in the order of submission.
    pub fn reap_completions(&self, from: Pos, to: Pos) -> Pos {
        let slots = self.tx.slots;
        let available = self.completions_pending();
        let start = self.completion.word(self.completion.consumer).load(Ordering::Relaxed);
        let (mut p, mut read) = (from, 0);
        while p != to {
            let record = self.recorded(self.tx.index(p));
            if record == 0 {
                p = slots.next(p);
                continue;
            }
            if read == available {
                break;
            }
            let at = self.completion.index(self.completion.pos(start.wrapping_add(read)));
            let returned =
                self.umem.locate(self.completion.entry(at).load(Ordering::Relaxed)).map_or(0, |(idx, _)| idx.0);
            read += 1;
            if returned == record {
                self.record(self.tx.index(p), 0);
                p = slots.next(p);
            } else {
                self.complete_out_of_order(returned, slots.next(p), to);
            }
        }
        if read > 0 {
            self.completion.advance(self.completion.consumer, read);
        }
        p
    }

    /// Completes the slot of a buffer that was returned before earlier ones. A buffer that no slot submitted is
    /// ignored.
    #[cold]
    fn complete_out_of_order(&self, returned: u32, from: Pos, to: Pos) {
        let slots = self.tx.slots;
        let mut p = from;
        while returned != 0 && p != to {
            let at = self.tx.index(p);
            if self.recorded(at) == returned {
                self.record(at, 0);
                return;
            }
            p = slots.next(p);
        }
    }
}

/// The state of the receiving half of a socket, as the program has left it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RxProgress {
    /// Frames that the program took, and buffers that it offered, both modulo 2^32.
    pub taken: u32,
    /// As `taken`.
    pub offered: u32,
    /// Whether frames wait in the rx ring.
    pub has_frames: bool,
    /// Whether buffers are in the fill ring: with zero copy the driver may have them all.
    pub has_buffers: bool,
}

/// The receiving half of a socket: fill and rx ring.
#[derive(Clone)]
pub struct XskRxRings {
    rx: Ring,
    fill: Ring,
    umem: UmemLayout,
}

impl XskRxRings {
    /// `None` if the rings do not have `slots` entries.
    pub fn new(rx: &RingMap, fill: &RingMap, slots: Slots, umem: UmemLayout) -> Option<XskRxRings> {
        Some(XskRxRings { rx: Ring::new(rx, slots, PACKET_ENTRY)?, fill: Ring::new(fill, slots, BUFFER_ENTRY)?, umem })
    }

    /// The next slot whose buffer goes into the fill ring.
    #[inline(always)]
    pub fn next_fill(&self) -> Pos {
        self.fill.pos(self.fill.word(self.fill.producer).load(Ordering::Relaxed))
    }

    /// Writes the fill entry of slot `p`: the kernel may write a packet into this buffer, from the given offset on.
    /// `None`: an entry that the kernel skips. It takes effect with [`XskRxRings::submit`].
    #[inline(always)]
    pub fn write_fill(&self, p: Pos, place: Option<(BufIdx, u32)>) {
        // The kernel adds its own headroom and the UMEM's to the address. These bytes may lie in the buffer before.
        let before = u64::from(HEADROOM) + u64::from(self.umem.headroom);
        let addr = place.map_or(INVALID_ADDR, |(idx, offset)| self.umem.address(idx, offset).wrapping_sub(before));
        // Relaxed (O1): the release in `submit` orders the entry.
        self.fill.entry(self.fill.index(p)).store(addr, Ordering::Relaxed);
    }

    /// Submits `n` fill entries to the kernel.
    #[inline(always)]
    pub fn submit(&self, n: u32) {
        self.fill.advance(self.fill.producer, n);
    }

    /// Whether the driver requires a system call to process new fill entries.
    #[inline(always)]
    pub fn needs_wakeup(&self) -> bool {
        self.fill.needs_wakeup()
    }

    /// Whether entries that were submitted wait for a system call. A driver that found the ring empty says so only
    /// afterwards, so that it may have missed those that were submitted meanwhile.
    #[inline]
    pub fn is_left(&self) -> bool {
        self.needs_wakeup() && self.fill.pending(1) != Some(0)
    }

    /// The slot of the next received packet.
    #[inline(always)]
    pub fn next_rx(&self) -> Pos {
        self.rx.pos(self.rx.word(self.rx.consumer).load(Ordering::Relaxed))
    }

    /// Received packets in the rx ring; 0 if the positions are invalid.
    #[inline(always)]
    pub fn rx_available(&self) -> u32 {
        self.rx.pending(1).unwrap_or(0)
    }

    /// How far the program got, for a thread that compares it with what it was.
    pub fn progress(&self) -> RxProgress {
        // Relaxed: nothing is accessed by these positions.
        let [taken, offered] = [(&self.rx, self.rx.consumer), (&self.fill, self.fill.producer)]
            .map(|(r, at)| r.word(at).load(Ordering::Relaxed));
        RxProgress { taken, offered, has_frames: self.rx_available() > 0, has_buffers: self.fill.pending(1) != Some(0) }
    }

    /// The number of entries that the kernel has written to the rx ring since the socket exists, modulo 2^32, unless a
    /// program has overwritten it.
    pub fn received(&self) -> u32 {
        // Relaxed: nothing is accessed by this position.
        self.rx.word(self.rx.producer).load(Ordering::Relaxed)
    }

    /// The rx entry `n` entries after the first: buffer and offset, or `None` if there is no such buffer; the length,
    /// not validated; whether the packet continues in the next entry.
    #[inline(always)]
    pub fn peek_rx(&self, n: u32) -> (Option<(BufIdx, u32)>, u32, bool) {
        let at = self.rx.index(self.rx.pos(self.rx.word(self.rx.consumer).load(Ordering::Relaxed).wrapping_add(n)));
        let addr = self.rx.entry(2 * at).load(Ordering::Relaxed);
        let rest = self.rx.entry(2 * at + 1).load(Ordering::Relaxed);
        (self.umem.locate(addr), rest as u32, (rest >> 32) as u32 & CONTINUED != 0)
    }

    /// Whole packets in the rx ring.
    pub fn packets_waiting(&self) -> u32 {
        (0..self.rx_available()).filter(|n| !self.peek_rx(*n).2).count() as u32
    }

    /// Packets that were received and not released: one for each slot that the program has, and those in the rx ring.
    pub fn packets_unreleased(&self) -> u32 {
        self.rx.slots.distance(self.next_fill(), self.next_rx()) + self.packets_waiting()
    }

    /// Releases `n` rx entries to the kernel.
    #[inline(always)]
    pub fn release_rx(&self, n: u32) {
        self.rx.advance(self.rx.consumer, n);
    }
}

/// The tx-frames page: for each slot of each transmit ring of a port, the buffer that the kernel has for transmission,
/// or 0. The slot itself may name another buffer by now.
#[derive(Clone)]
pub struct TxFramesPage {
    range: MappedRange,
}

impl TxFramesPage {
    /// A view of a mapping.
    pub fn new(range: MappedRange) -> TxFramesPage {
        TxFramesPage { range }
    }

    /// Bytes to map for `slots` slots in all rings.
    pub fn bytes(slots: usize) -> usize {
        (4 * slots).next_multiple_of(4096)
    }

    #[inline(always)]
    fn word(&self, slot: usize) -> Option<&AtomicU32> {
        // SAFETY: the type is an atomic (M1).
        let ptr = unsafe { self.range.at::<AtomicU32>(slot.checked_mul(4)?) }?;
        // SAFETY: in bounds and aligned (`at`), mapped while `self` lives (M2); an atomic may be shared (M1).
        Some(unsafe { &*ptr })
    }

    /// Clears the record of the slots `[first, first + count)`, after their socket was closed.
    pub fn clear(&self, first: usize, count: usize) {
        (first..first + count).filter_map(|slot| self.word(slot)).for_each(|word| word.store(0, Ordering::Relaxed));
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

// SPDX-License-Identifier: BSD-2-Clause
//! A ring as programs use it: its slots and their buffers.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use unetmap_abi::{NR_FORWARD, NR_TIMESTAMP, NS_BUF_CHANGED};
use unetmap_mem::{BufIdx, Frame, Pos, RingView, SlotRing, SlotValue, Slots, Span, SyncGuard};

use crate::backend::RingBackend;
use crate::backend::times::{SlotTime, Times};
use crate::sync::SyncRing;

/// One bound ring. The slots in `[head, tail)` belong to the program: free slots of a transmit ring, received packets
/// of a receive ring.
///
/// The program writes `head` and `cur`; they take effect with the next sync or poll. All methods take `&self`, because
/// the ring is shared memory: threads that use one ring must agree which of them moves its pointers.
pub struct Ring {
    pub(crate) inner: SyncRing,
    /// The times of the slots, if they were requested.
    times: Option<Arc<Times>>,
    /// Most bytes of a packet in one slot.
    slot_size: u32,
    /// Bytes of the longest frame that the port sends; 0: as many as slots have.
    longest: u32,
}

impl Ring {
    pub(crate) fn new(inner: SyncRing) -> Ring {
        let buf_size = inner.view.region().limits().buf_size;
        let slot_size = inner.backend.tx().map_or(buf_size, |tx| tx.slot_size().min(buf_size));
        Ring { inner, times: None, slot_size, longest: 0 }
    }

    /// Takes note of the longest frame that the port sends.
    pub(crate) fn with_longest(self, longest: u32) -> Ring {
        Ring { longest, ..self }
    }

    /// Records times from now on.
    pub(crate) fn record_times(&mut self) {
        let backend = std::mem::replace(&mut self.inner.backend, RingBackend::ReadOnly);
        (self.inner.backend, self.times) = backend.timed(self.slots());
    }

    /// Takes the ring's lock, if it is free.
    pub(crate) fn try_lock(&self, holder: u32, thread: u64) -> Option<SyncGuard<'_>> {
        self.inner.state().try_lock(holder, thread)
    }

    #[inline(always)]
    fn view(&self) -> &RingView {
        &self.inner.view
    }

    #[inline(always)]
    fn slots(&self) -> Slots {
        self.view().shape().slots
    }

    /// Validates a pointer that other processes can write: an invalid one becomes position 0, and the next sync
    /// corrects it.
    #[inline(always)]
    fn validated(&self, raw: u32) -> Pos {
        self.slots().pos(raw).unwrap_or(Pos::ZERO)
    }

    /// Returns the number of slots, the first of the program's slots, and how many it has. Reads each word of memory
    /// once.
    #[inline(always)]
    fn program_slots(&self) -> (Slots, Pos, u32) {
        let slots = self.slots();
        let validated = |raw| slots.pos(raw).unwrap_or(Pos::ZERO);
        let head = validated(self.view().raw_head());
        (slots, head, slots.distance(head, validated(self.view().raw_tail())))
    }

    /// Returns the number of the ring within its direction, from 0.
    pub fn id(&self) -> u16 {
        self.view().shape().id
    }

    /// Returns the number of slots, 2..=16384. At most one less can be in use.
    #[inline(always)]
    pub fn num_slots(&self) -> u32 {
        self.slots().get()
    }

    /// Returns the bytes of each buffer.
    pub fn buf_size(&self) -> u32 {
        self.view().region().limits().buf_size
    }

    /// Returns the most bytes of a packet in one slot: those of a buffer, or fewer on a transmit ring of an interface
    /// with zero copy. A slot with more is not sent, and counted by [`Ring::bad_slots`].
    #[inline(always)]
    pub fn slot_size(&self) -> u32 {
        self.slot_size
    }

    /// On a transmit ring: returns the bytes of the longest frame that the port sends, in as many slots as needed and
    /// without a virtio-net header: with an interface, as its MTU was when the port was opened. `None`: as many as its
    /// slots hold.
    pub fn longest_frame(&self) -> Option<u32> {
        (self.longest > 0).then_some(self.longest)
    }

    /// Returns how many slots of this ring were not sent, or delivered empty, because they were invalid or their packet
    /// was longer than the port can send: since the ring was made, of all processes.
    pub fn bad_slots(&self) -> u64 {
        self.inner.state().bad_slots.load(Relaxed)
    }

    /// Adds to [`Ring::bad_slots`]: for programs that pass the slots of others on.
    pub fn count_bad_slots(&self, n: u32) {
        self.inner.state().count_bad_slots(n);
    }

    /// Returns the first of the program's slots.
    #[inline(always)]
    pub fn head(&self) -> Pos {
        self.validated(self.view().raw_head())
    }

    /// Returns the wake-up point: a poll waits while `cur == tail`.
    #[inline(always)]
    pub fn cur(&self) -> Pos {
        self.validated(self.view().raw_cur())
    }

    /// Returns the position after the last of the program's slots.
    #[inline(always)]
    pub fn tail(&self) -> Pos {
        self.validated(self.view().raw_tail())
    }

    /// Returns the position of slot `raw`; `None` if the ring has no such slot.
    pub fn pos(&self, raw: u32) -> Option<Pos> {
        self.slots().pos(raw)
    }

    /// Returns the position after `p`.
    #[inline(always)]
    pub fn next(&self, p: Pos) -> Pos {
        self.slots().next(p)
    }

    /// Returns the number of slots in `[head, tail)`.
    #[inline(always)]
    pub fn space(&self) -> u32 {
        self.program_slots().2
    }

    /// Whether the program has no slot.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.head() == self.tail()
    }

    /// Returns slot `p`. A position that only a larger ring has becomes slot 0.
    #[inline(always)]
    pub fn slot(&self, p: Pos) -> SlotRef<'_> {
        let p = if p.raw() < self.num_slots() { p } else { Pos::ZERO };
        SlotRef { ring: self.view(), at: p }
    }

    /// Returns the slots in `[head, tail)` as of this call.
    #[inline(always)]
    pub fn available(&self) -> SlotIter<'_> {
        self.first(u32::MAX)
    }

    /// Returns the first `n` slots in `[head, tail)` as of this call, or all if there are fewer.
    #[inline(always)]
    pub fn first(&self, n: u32) -> SlotIter<'_> {
        let (_, at, left) = self.program_slots();
        SlotIter { ring: self.view(), at, left: left.min(n) }
    }

    /// Returns `n` slots from `p` on, at most all of the ring but one, whether they belong to the program or not. A
    /// position that only a larger ring has becomes slot 0.
    #[inline(always)]
    pub fn run(&self, p: Pos, n: u32) -> SlotIter<'_> {
        SlotIter { ring: self.view(), at: self.validated(p.raw()), left: n.min(self.num_slots() - 1) }
    }

    /// Returns the position `n` after `p`; `n` is at most the number of slots.
    #[inline(always)]
    pub fn add(&self, p: Pos, n: u32) -> Pos {
        self.slots().add(p, n)
    }

    /// Moves `head` and `cur` by `n` slots, at most to `tail`. Returns by how many. The next sync sends or releases
    /// these slots.
    #[inline(always)]
    pub fn advance(&self, n: u32) -> u32 {
        let (slots, head, left) = self.program_slots();
        let n = n.min(left);
        let to = slots.add(head, n);
        self.view().set_cur(to);
        self.view().set_head(to);
        n
    }

    /// Sets `head` and `cur` to `p`: the next sync sends or releases all slots before. For programs that count the
    /// slots of `[head, tail)` themselves and need not read it again. The sync rejects a position outside `[head,
    /// tail]`.
    #[inline(always)]
    pub fn advance_to(&self, p: Pos) {
        self.view().set_cur(p);
        self.view().set_head(p);
    }

    /// Moves the wake-up point only, for instance to `tail`, to wait for more slots than are available. It must be in
    /// `[head, tail]`.
    pub fn set_cur(&self, p: Pos) {
        self.view().set_cur(p);
    }

    /// On a receive ring of an interface or of the host: sets whether packets released with `NS_FORWARD` are forwarded
    /// to the other side (`NR_FORWARD`). Changes the ring's flag, which other processes may write, too.
    pub fn set_forwarding(&self, on: bool) {
        let flags = self.view().flags();
        self.view().set_flags(if on { flags | NR_FORWARD } else { flags & !NR_FORWARD });
    }

    /// On a transmit ring: whether slots were sent that the peer has not released yet (`nm_tx_pending`), as of the last
    /// `txsync`.
    pub fn pending(&self) -> bool {
        self.slots().next(self.tail()) != self.head()
    }

    /// On a receive ring: sets whether it gets timestamps even if the knob `no_timestamp` is set (`NR_TIMESTAMP`).
    /// Changes the ring's flag, which other processes may write, too.
    pub fn set_timestamping(&self, on: bool) {
        let flags = self.view().flags();
        self.view().set_flags(if on { flags | NR_TIMESTAMP } else { flags & !NR_TIMESTAMP });
    }

    /// Returns when the packet of slot `p` was received, or last sent, by this process; `None` if it was not, or the
    /// port was opened without [`crate::OpenOptions::slot_times`]. Valid until the slot is released and synced again.
    pub fn slot_time(&self, p: Pos) -> Option<SlotTime> {
        self.times.as_ref()?.get(p)
    }

    /// Returns the time of the last `rxsync`, or of the last poll that delivered packets: seconds and microseconds of
    /// the wall clock.
    pub fn time(&self) -> (i64, i64) {
        self.view().time()
    }
}

/// An iterator over slots, in ring order.
pub struct SlotIter<'a> {
    ring: &'a RingView,
    at: Pos,
    left: u32,
}

impl<'a> Iterator for SlotIter<'a> {
    type Item = SlotRef<'a>;

    #[inline(always)]
    fn next(&mut self) -> Option<SlotRef<'a>> {
        self.left = self.left.checked_sub(1)?;
        let slot = SlotRef { ring: self.ring, at: self.at };
        self.at = self.ring.shape().slots.next(self.at);
        Some(slot)
    }

    /// Used by `for_each`, `sum` and similar methods: iterates run by run, without a test for the end of the ring at
    /// each slot.
    #[inline(always)]
    fn fold<B, F: FnMut(B, SlotRef<'a>) -> B>(self, init: B, mut f: F) -> B {
        let slots = self.ring.shape().slots;
        let span = Span { from: self.at, to: slots.add(self.at, self.left) };
        let positions = slots.runs(span).into_iter().flat_map(|run| slots.run(run));
        positions.fold(init, |acc, at| f(acc, SlotRef { ring: self.ring, at }))
    }

    #[inline(always)]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left as usize, Some(self.left as usize))
    }
}

impl ExactSizeIterator for SlotIter<'_> {}

/// One slot in shared memory. Every getter is one load, every setter one store.
#[derive(Clone, Copy)]
pub struct SlotRef<'a> {
    ring: &'a RingView,
    at: Pos,
}

impl<'a> SlotRef<'a> {
    #[inline(always)]
    fn slots(&self) -> &'a SlotRing {
        self.ring.slots()
    }

    /// Returns the position of the slot in its ring.
    #[inline(always)]
    pub fn pos(&self) -> Pos {
        self.at
    }

    /// Returns a copy of the slot.
    #[inline(always)]
    pub fn get(&self) -> SlotValue {
        self.slots().load(self.at)
    }

    /// Returns the index of the buffer; any number if other processes can write it.
    #[inline(always)]
    pub fn buf_idx(&self) -> u32 {
        self.slots().buf_idx(self.at).0
    }

    /// Returns the bytes of packet in the buffer.
    #[inline(always)]
    #[allow(clippy::len_without_is_empty)] // A packet's length, not a container's.
    pub fn len(&self) -> u16 {
        self.slots().len(self.at)
    }

    /// Returns the `NS_*` flags.
    #[inline(always)]
    pub fn flags(&self) -> u16 {
        self.slots().flags(self.at)
    }

    /// Returns the bytes of packet and the `NS_*` flags, in one load.
    #[inline(always)]
    pub fn len_flags(&self) -> (u16, u16) {
        self.slots().len_flags(self.at)
    }

    /// Sets the bytes of packet; a packet longer than the buffer is delivered empty.
    #[inline(always)]
    pub fn set_len(&self, len: u16) {
        self.slots().set_len(self.at, len);
    }

    /// Sets the `NS_*` flags.
    #[inline(always)]
    pub fn set_flags(&self, flags: u16) {
        self.slots().set_flags(self.at, flags);
    }

    /// Sets length and flags with one store.
    #[inline(always)]
    pub fn set_len_flags(&self, len: u16, flags: u16) {
        self.slots().set_len_flags(self.at, len, flags);
    }

    /// Sets the `ptr` word, which pipes pass to the receiver.
    #[inline(always)]
    pub fn set_ptr(&self, ptr: u64) {
        self.slots().set_ptr(self.at, ptr);
    }

    /// Puts another buffer into the slot, and marks the slot as changed. Returns the previous buffer, which then
    /// belongs to the caller.
    #[inline(always)]
    pub fn replace_buf(&self, idx: BufIdx) -> BufIdx {
        let old = self.slots().buf_idx(self.at);
        self.slots().set_buf_idx(self.at, idx);
        self.slots().set_flags(self.at, self.flags() | NS_BUF_CHANGED);
        old
    }

    /// Moves a packet without copying: exchanges the buffers of the two slots, copies length, flags and `ptr` from
    /// `from`, and marks both slots as changed. Only between ports of one region ([`crate::Port::same_region`]).
    #[inline]
    pub fn swap_from(&self, from: &SlotRef<'_>) {
        let (mine, theirs) = (self.slots().buf_idx(self.at), from.get());
        from.slots().set_buf_idx(from.at, mine);
        from.slots().set_flags(from.at, theirs.flags | NS_BUF_CHANGED);
        self.slots().store(self.at, SlotValue { flags: theirs.flags | NS_BUF_CHANGED, ..theirs });
    }

    /// Prefetches the start of the buffer for reading. Useful if another CPU wrote it last.
    #[inline(always)]
    pub fn fetch(&self) {
        self.ring.region().prefetch(BufIdx(self.buf_idx()));
    }

    /// Prefetches the start of the buffer for writing. Useful if another CPU read it last.
    #[inline(always)]
    pub fn fetch_to_write(&self) {
        self.ring.region().prefetch_for_write(BufIdx(self.buf_idx()));
    }

    /// Returns the buffer; an empty one if the slot's index is invalid.
    #[inline(always)]
    pub fn frame(&self) -> Frame<'a> {
        self.ring.frame(self.at)
    }
}

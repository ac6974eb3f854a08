//! A program's view of a ring, its slots and their buffers.

use unetmap_abi::{NR_FORWARD, NR_TIMESTAMP, NS_BUF_CHANGED};
use unetmap_mem::{BufIdx, Frame, Pos, RingView, SlotRing, SlotValue, Slots, Span};

use crate::sync::SyncRing;

/// One bound ring. `[head, tail)` is the program's: on a transmit ring to be filled, on a receive ring to be read.
///
/// `head` and `cur` are the program's words; they take effect with the next sync or poll. All methods take `&self`,
/// because the ring is shared memory anyway: several threads may use one ring only as far as they agree who moves what.
pub struct Ring {
    pub(crate) inner: SyncRing,
}

impl Ring {
    #[inline(always)]
    fn view(&self) -> &RingView {
        &self.inner.view
    }

    #[inline(always)]
    fn slots(&self) -> Slots {
        self.view().shape().slots
    }

    /// Judges a pointer that others can write too: nonsense reads as position 0, and the next sync sets it right.
    #[inline(always)]
    fn judged(&self, raw: u32) -> Pos {
        self.slots().pos(raw).unwrap_or(Pos::ZERO)
    }

    /// How many slots the ring has, the first of the program's, and how many are: each word of the memory read once.
    #[inline(always)]
    fn held(&self) -> (Slots, Pos, u32) {
        let slots = self.slots();
        let judged = |raw| slots.pos(raw).unwrap_or(Pos::ZERO);
        let head = judged(self.view().raw_head());
        (slots, head, slots.distance(head, judged(self.view().raw_tail())))
    }

    /// The number of the ring within its direction, from 0.
    pub fn id(&self) -> u16 {
        self.view().shape().id
    }

    /// Slots, 2..=16384. At most one less can be in use.
    #[inline(always)]
    pub fn num_slots(&self) -> u32 {
        self.slots().get()
    }

    /// Bytes in each buffer.
    pub fn buf_size(&self) -> u32 {
        self.view().region().limits().buf_size
    }

    /// The first slot of the program's.
    #[inline(always)]
    pub fn head(&self) -> Pos {
        self.judged(self.view().raw_head())
    }

    /// The wake-up point: a poll waits while `cur == tail`.
    #[inline(always)]
    pub fn cur(&self) -> Pos {
        self.judged(self.view().raw_cur())
    }

    /// One past the last slot of the program's.
    #[inline(always)]
    pub fn tail(&self) -> Pos {
        self.judged(self.view().raw_tail())
    }

    /// The position after `p`.
    #[inline(always)]
    pub fn next(&self, p: Pos) -> Pos {
        self.slots().next(p)
    }

    /// Slots in `[head, tail)`.
    #[inline(always)]
    pub fn space(&self) -> u32 {
        self.held().2
    }

    /// Whether the program has no slot.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.head() == self.tail()
    }

    /// Slot `p`. A position that only a larger ring has becomes slot 0.
    #[inline(always)]
    pub fn slot(&self, p: Pos) -> SlotRef<'_> {
        let p = if p.raw() < self.num_slots() { p } else { Pos::ZERO };
        SlotRef { ring: self.view(), at: p }
    }

    /// The slots in `[head, tail)` as they are now.
    #[inline(always)]
    pub fn window(&self) -> Window<'_> {
        self.first(u32::MAX)
    }

    /// The first `n` slots in `[head, tail)` as they are now, or all there are.
    #[inline(always)]
    pub fn first(&self, n: u32) -> Window<'_> {
        let (_, at, left) = self.held();
        Window { ring: self.view(), at, left: left.min(n) }
    }

    /// `n` slots from `p` on, at most all of the ring but one, whosever they are. A position that only a larger ring has
    /// becomes slot 0.
    #[inline(always)]
    pub fn run(&self, p: Pos, n: u32) -> Window<'_> {
        Window { ring: self.view(), at: self.judged(p.raw()), left: n.min(self.num_slots() - 1) }
    }

    /// The position `n` after `p`; `n` is at most the ring's slots.
    #[inline(always)]
    pub fn add(&self, p: Pos, n: u32) -> Pos {
        self.slots().add(p, n)
    }

    /// Hands the first `n` slots of the window to the system at the next sync: `head` and `cur` move by `n`, at most to
    /// `tail`. Returns how many that were.
    #[inline(always)]
    pub fn advance(&self, n: u32) -> u32 {
        let (slots, head, left) = self.held();
        let n = n.min(left);
        let to = slots.add(head, n);
        self.view().set_cur(to);
        self.view().set_head(to);
        n
    }

    /// Hands all slots before `p` to the system at the next sync: `head` and `cur` become `p`. For who counts the slots of the
    /// window, and so needs not read it again for each; what does not lie in `[head, tail]` the sync refuses.
    #[inline(always)]
    pub fn advance_to(&self, p: Pos) {
        self.view().set_cur(p);
        self.view().set_head(p);
    }

    /// Moves the wake-up point only, for instance to `tail`, to wait for more than there is. It must lie in
    /// `[head, tail]`.
    pub fn set_cur(&self, p: Pos) {
        self.view().set_cur(p);
    }

    /// On a receive ring of an interface, or of the host's: whether packets that are given back with `NS_FORWARD` go on to
    /// the other side (`NR_FORWARD`). Sets or clears the ring's flag, which others may write, too.
    pub fn set_forwarding(&self, on: bool) {
        let flags = self.view().flags();
        self.view().set_flags(if on { flags | NR_FORWARD } else { flags & !NR_FORWARD });
    }

    /// On a transmit ring: whether slots were handed over that the other side has not released yet (`nm_tx_pending`).
    /// Current as of the last `txsync`.
    pub fn pending(&self) -> bool {
        self.slots().next(self.tail()) != self.head()
    }

    /// On a receive ring: whether it gets the time of its syncs though the knob `no_timestamp` is set (`NR_TIMESTAMP`). Sets
    /// or clears the ring's flag, which others may write, too.
    pub fn keep_time(&self, on: bool) {
        let flags = self.view().flags();
        self.view().set_flags(if on { flags | NR_TIMESTAMP } else { flags & !NR_TIMESTAMP });
    }

    /// When the last receive sync that was asked for, or that delivered, ran: seconds and microseconds of the wall clock.
    pub fn time(&self) -> (i64, i64) {
        self.view().time()
    }
}

/// The slots that were in `[head, tail)` when it was made, in order.
pub struct Window<'a> {
    ring: &'a RingView,
    at: Pos,
    left: u32,
}

impl<'a> Iterator for Window<'a> {
    type Item = SlotRef<'a>;

    #[inline(always)]
    fn next(&mut self) -> Option<SlotRef<'a>> {
        self.left = self.left.checked_sub(1)?;
        let slot = SlotRef { ring: self.ring, at: self.at };
        self.at = self.ring.shape().slots.next(self.at);
        Some(slot)
    }

    /// For `for_each`, `sum` and their like: run by run, without a test for the ring's end at each slot.
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

impl ExactSizeIterator for Window<'_> {}

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

    /// Where the slot is in its ring.
    #[inline(always)]
    pub fn pos(&self) -> Pos {
        self.at
    }

    /// A copy of the slot.
    #[inline(always)]
    pub fn get(&self) -> SlotValue {
        self.slots().load(self.at)
    }

    /// The index of the buffer: any number, where others can write it.
    #[inline(always)]
    pub fn buf_idx(&self) -> u32 {
        self.slots().buf_idx(self.at).0
    }

    /// Bytes of packet in the buffer.
    #[inline(always)]
    #[allow(clippy::len_without_is_empty)] // A packet's length, not a container's.
    pub fn len(&self) -> u16 {
        self.slots().len(self.at)
    }

    /// `NS_*` bits.
    #[inline(always)]
    pub fn flags(&self) -> u16 {
        self.slots().flags(self.at)
    }

    /// Bytes of packet and `NS_*` bits, in one load.
    #[inline(always)]
    pub fn len_flags(&self) -> (u16, u16) {
        self.slots().len_flags(self.at)
    }

    /// Sets the bytes of packet; more than the buffer holds is delivered as an empty packet.
    #[inline(always)]
    pub fn set_len(&self, len: u16) {
        self.slots().set_len(self.at, len);
    }

    /// Sets the `NS_*` bits.
    #[inline(always)]
    pub fn set_flags(&self, flags: u16) {
        self.slots().set_flags(self.at, flags);
    }

    /// Sets length and flags with one store.
    #[inline(always)]
    pub fn set_len_flags(&self, len: u16, flags: u16) {
        self.slots().set_len_flags(self.at, len, flags);
    }

    /// Sets the word that pipes carry along.
    #[inline(always)]
    pub fn set_ptr(&self, ptr: u64) {
        self.slots().set_ptr(self.at, ptr);
    }

    /// Puts another buffer into the slot, and marks it so. The one that was in it is the caller's from now on.
    #[inline(always)]
    pub fn replace_buf(&self, idx: BufIdx) -> BufIdx {
        let old = self.slots().buf_idx(self.at);
        self.slots().set_buf_idx(self.at, idx);
        self.slots().set_flags(self.at, self.flags() | NS_BUF_CHANGED);
        old
    }

    /// Moves a packet without copying: exchanges the buffers of the two slots, copies length, fragment and other flags
    /// and the carried word from `from`, and marks both as changed. Only between ports of one region
    /// ([`crate::Port::same_region`]).
    #[inline]
    pub fn swap_from(&self, from: &SlotRef<'_>) {
        let (mine, theirs) = (self.slots().buf_idx(self.at), from.get());
        from.slots().set_buf_idx(from.at, mine);
        from.slots().set_flags(from.at, theirs.flags | NS_BUF_CHANGED);
        self.slots().store(self.at, SlotValue { flags: theirs.flags | NS_BUF_CHANGED, ..theirs });
    }

    /// Has the beginning of the buffer fetched into the cache, to be read soon. Worth while where somebody on another
    /// processor had it last.
    #[inline(always)]
    pub fn fetch(&self) {
        self.ring.region().fetch(BufIdx(self.buf_idx()));
    }

    /// The same to be written soon, where somebody on another processor read it last.
    #[inline(always)]
    pub fn fetch_to_write(&self) {
        self.ring.region().fetch_to_write(BufIdx(self.buf_idx()));
    }

    /// The buffer; empty when the slot names none that exists.
    #[inline(always)]
    pub fn frame(&self) -> Frame<'a> {
        self.ring.frame(self.at)
    }
}

// SPDX-License-Identifier: BSD-2-Clause
//! Slots, 16 bytes each, in memory that the program, and for some rings its peer, can write.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::frame::Frame;
use crate::mapped_range::MappedRange;
use crate::pos::{BufIdx, Pos, Slots, Span};
use crate::prefetch;

/// Bytes of one slot.
pub(crate) const SLOT_BYTES: usize = 16;
/// Slots in a cache line.
const SLOTS_PER_LINE: usize = 64 / SLOT_BYTES;

/// A copy of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotValue {
    /// The buffer that holds the packet, or this fragment of it.
    pub buf_idx: BufIdx,
    /// Bytes of packet in the buffer.
    pub len: u16,
    /// `NS_*` bits.
    pub flags: u16,
    /// For the program's use; with offsets enabled its low bits are the packet's offset in the buffer.
    pub ptr: u64,
}

impl SlotValue {
    /// The first eight bytes of the slot in memory: index, length, flags.
    #[inline(always)]
    pub(crate) fn head_word(self) -> u64 {
        u64::from(self.buf_idx.0) | u64::from(self.len) << 32 | u64::from(self.flags) << 48
    }

    #[inline(always)]
    pub(crate) fn from_words(head: u64, ptr: u64) -> SlotValue {
        SlotValue { buf_idx: BufIdx(head as u32), len: (head >> 32) as u16, flags: (head >> 48) as u16, ptr }
    }
}

/// A copy of a slot without `ptr`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SlotHead(u64);

impl SlotHead {
    /// The buffer that holds the packet, or this fragment of it.
    #[inline(always)]
    pub fn buf_idx(self) -> BufIdx {
        BufIdx(self.0 as u32)
    }

    /// Bytes of packet in the buffer.
    #[allow(clippy::len_without_is_empty)]
    #[inline(always)]
    pub fn len(self) -> u16 {
        (self.0 >> 32) as u16
    }

    /// `NS_*` bits.
    #[inline(always)]
    pub fn flags(self) -> u16 {
        (self.0 >> 48) as u16
    }
}

/// The bounds that indexes and lengths of slots are validated against.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Buffers in the region: valid indexes are `[2, bufs)`.
    pub bufs: u32,
    /// Bytes in a buffer: valid lengths are `[0, buf_size]`.
    pub buf_size: u32,
}

impl Limits {
    /// Whether the index names a buffer that programs may use.
    #[inline(always)]
    pub fn index_ok(&self, idx: BufIdx) -> bool {
        idx.0 >= BufIdx::FIRST.0 && idx.0 < self.bufs
    }

    /// Whether index and length are both valid.
    #[inline(always)]
    pub fn allow(&self, slot: SlotValue) -> bool {
        self.index_ok(slot.buf_idx) && u32::from(slot.len) <= self.buf_size
    }
}

/// Limits whose number of buffers another thread of this process can change ([`crate::Region::allow_buffers`]).
#[derive(Clone, Debug)]
pub struct SharedLimits {
    bufs: Arc<AtomicU32>,
    buf_size: u32,
}

impl SharedLimits {
    /// The limits now. Relaxed (O5): a program gets the index of a new buffer after it was allowed.
    #[inline(always)]
    pub fn now(&self) -> Limits {
        Limits { bufs: self.bufs.load(Relaxed), buf_size: self.buf_size }
    }

    /// From now on so many buffers are allowed.
    pub(crate) fn set_bufs(&self, bufs: u32) {
        self.bufs.store(bufs, Relaxed);
    }
}

impl From<Limits> for SharedLimits {
    fn from(limits: Limits) -> SharedLimits {
        SharedLimits { bufs: Arc::new(AtomicU32::new(limits.bufs)), buf_size: limits.buf_size }
    }
}

/// Where in their buffers the packets of a ring may begin: the port's offset option.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offsets {
    /// The bits of [`SlotValue::ptr`] that hold the offset; 0: packets begin at the start of their buffers.
    pub mask: u64,
    /// The largest offset, bytes, at most the size of a buffer; larger values are cut to it.
    pub max: u32,
}

impl Offsets {
    /// Packets begin at the start of their buffers.
    pub const NONE: Offsets = Offsets { mask: 0, max: 0 };

    /// Bytes before the packet, at most `max`.
    #[inline(always)]
    pub fn of(&self, ptr: u64) -> u32 {
        (ptr & self.mask).min(u64::from(self.max)) as u32
    }

    /// The part of a buffer from the packet's offset on. `ptr` returns the slot's `ptr`; it is called only if offsets
    /// are enabled.
    #[inline(always)]
    pub fn within<'r>(&self, frame: Frame<'r>, ptr: impl FnOnce() -> u64) -> Frame<'r> {
        if self.mask == 0 { frame } else { frame.skip(self.of(ptr()) as usize) }
    }

    /// `ptr` with the offset `offset`, its other bits unchanged.
    #[inline(always)]
    pub fn put(&self, ptr: u64, offset: u32) -> u64 {
        ptr & !self.mask | u64::from(offset) & self.mask
    }

    /// Whether the packet, at the offset at which the program will read it, lies inside its buffer.
    #[inline(always)]
    pub fn allow(&self, limits: Limits, slot: SlotValue) -> bool {
        (slot.ptr & self.mask).checked_add(u64::from(slot.len)).is_some_and(|end| end <= u64::from(limits.buf_size))
    }
}

/// The slots of one ring. A clone is another view of the same slots.
#[derive(Clone)]
pub struct SlotRing {
    base: *mut u8,
    slots: Slots,
    _range: MappedRange,
}

// SAFETY: a view of shared memory that it keeps mapped (M2), accessed by atomics and raw copies only (M1).
unsafe impl Send for SlotRing {}
// SAFETY: as above (M1, M2).
unsafe impl Sync for SlotRing {}

impl SlotRing {
    /// The slots that start at `offset` of `range`; `None` when they do not fit or are not aligned to 64 bytes, as
    /// the copy by cache lines requires.
    pub fn new(range: &MappedRange, offset: usize, slots: Slots) -> Option<SlotRing> {
        let part = range.part(offset, slots.get() as usize * SLOT_BYTES)?;
        let base = part.base();
        (base as usize).is_multiple_of(64).then_some(SlotRing { base, slots, _range: part })
    }

    /// How many slots.
    #[inline(always)]
    pub fn slots(&self) -> Slots {
        self.slots
    }

    /// The address of slot `p`; valid for 16 bytes, and for all slots up to the end of the ring. A position of another,
    /// larger ring is cut to the last slot (M3).
    #[inline(always)]
    pub(crate) fn at(&self, p: Pos) -> *mut u8 {
        let index = p.raw().min(self.slots.get() - 1) as usize;
        // SAFETY: the index is below the number of slots (M3), and `new` checked that all of them lie in the range
        // (M2).
        unsafe { self.base.add(index * SLOT_BYTES) }
    }

    // All words of slots are accessed relaxed (O1): the stores of `prod`, `cons`, `head` and `tail` order them.

    #[inline(always)]
    fn word32(&self, p: Pos) -> &AtomicU32 {
        // SAFETY: in bounds (M2, M3) and aligned (`at`, 16-byte slots on a 64-byte base); an atomic may be shared (M1).
        unsafe { AtomicU32::from_ptr(self.at(p).cast()) }
    }

    #[inline(always)]
    fn word16(&self, p: Pos, byte: usize) -> &AtomicU16 {
        debug_assert!(byte == 4 || byte == 6);
        // SAFETY: as for `word32` (M1 to M3); bytes 4 (length) and 6 (flags) are inside the slot and even.
        unsafe { AtomicU16::from_ptr(self.at(p).add(byte).cast()) }
    }

    #[inline(always)]
    fn word64(&self, p: Pos, byte: usize) -> &AtomicU64 {
        debug_assert!(byte == 0 || byte == 8);
        // SAFETY: as for `word32` (M1 to M3); bytes 0 and 8 are inside the slot and aligned to 8.
        unsafe { AtomicU64::from_ptr(self.at(p).add(byte).cast()) }
    }

    /// A copy of slot `p`: two loads, so it may mix halves of two writes; validate the copy (M4).
    #[inline(always)]
    pub fn load(&self, p: Pos) -> SlotValue {
        SlotValue::from_words(self.word64(p, 0).load(Relaxed), self.word64(p, 8).load(Relaxed))
    }

    /// A copy of slot `p` without `ptr`, in one load.
    #[inline(always)]
    pub fn head(&self, p: Pos) -> SlotHead {
        SlotHead(self.word64(p, 0).load(Relaxed))
    }

    /// Prefetches the cache lines of the slots of `span` for writing.
    #[inline(always)]
    pub fn prefetch_for_write(&self, span: Span) {
        let count = self.slots.distance(span.from, span.to);
        for i in (0..count).step_by(SLOTS_PER_LINE) {
            prefetch::for_write(self.at(self.slots.add(span.from, i)));
        }
    }

    /// As [`SlotRing::load`], for a slot that this thread has just written field by field: each field is loaded as it
    /// was stored. A wider load cannot be forwarded from several narrow stores and would stall until the store buffer
    /// has drained, including the store of a position to a cache line that the peer reads.
    #[inline(always)]
    pub(crate) fn load_by_field(&self, p: Pos) -> SlotValue {
        SlotValue { buf_idx: self.buf_idx(p), len: self.len(p), flags: self.flags(p), ptr: self.ptr(p) }
    }

    /// Overwrites slot `p`.
    #[inline(always)]
    pub fn store(&self, p: Pos, v: SlotValue) {
        self.word64(p, 0).store(v.head_word(), Relaxed);
        self.word64(p, 8).store(v.ptr, Relaxed);
    }

    /// Overwrites index, length and flags of slot `p`, in one store.
    #[inline(always)]
    pub(crate) fn store_head(&self, p: Pos, v: SlotValue) {
        self.word64(p, 0).store(v.head_word(), Relaxed);
    }

    /// The index in slot `p`.
    #[inline(always)]
    pub fn buf_idx(&self, p: Pos) -> BufIdx {
        BufIdx(self.word32(p).load(Relaxed))
    }

    /// Sets the index of slot `p`.
    #[inline(always)]
    pub fn set_buf_idx(&self, p: Pos, idx: BufIdx) {
        self.word32(p).store(idx.0, Relaxed);
    }

    /// The length in slot `p`.
    #[inline(always)]
    pub fn len(&self, p: Pos) -> u16 {
        self.word16(p, 4).load(Relaxed)
    }

    /// Sets the length of slot `p`.
    #[inline(always)]
    pub fn set_len(&self, p: Pos, len: u16) {
        self.word16(p, 4).store(len, Relaxed);
    }

    /// The flags of slot `p`.
    #[inline(always)]
    pub fn flags(&self, p: Pos) -> u16 {
        self.word16(p, 6).load(Relaxed)
    }

    /// Sets the flags of slot `p`.
    #[inline(always)]
    pub fn set_flags(&self, p: Pos, flags: u16) {
        self.word16(p, 6).store(flags, Relaxed);
    }

    #[inline(always)]
    fn len_flags_word(&self, p: Pos) -> &AtomicU32 {
        // SAFETY: as for `word32` (M1 to M3); bytes 4..8 are inside the slot and aligned to 4.
        unsafe { AtomicU32::from_ptr(self.at(p).add(4).cast()) }
    }

    /// Length and flags of slot `p` in one load.
    #[inline(always)]
    pub fn len_flags(&self, p: Pos) -> (u16, u16) {
        let word = self.len_flags_word(p).load(Relaxed);
        (word as u16, (word >> 16) as u16)
    }

    /// Sets length and flags of slot `p` in one store.
    #[inline(always)]
    pub fn set_len_flags(&self, p: Pos, len: u16, flags: u16) {
        self.len_flags_word(p).store(u32::from(len) | u32::from(flags) << 16, Relaxed);
    }

    /// `ptr` of slot `p`.
    #[inline(always)]
    pub fn ptr(&self, p: Pos) -> u64 {
        self.word64(p, 8).load(Relaxed)
    }

    /// Sets `ptr` of slot `p`.
    #[inline(always)]
    pub fn set_ptr(&self, p: Pos, ptr: u64) {
        self.word64(p, 8).store(ptr, Relaxed);
    }
}

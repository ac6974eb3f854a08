// SPDX-License-Identifier: BSD-2-Clause
//! `struct netmap_ring` and `struct netmap_if` in the region, which programs see.

use std::sync::atomic::{AtomicI64, AtomicU16, AtomicU32, AtomicU64, Ordering::*};

use unetmap_abi::{NetmapIf, NetmapRing, NetmapSlot};

use crate::frame::Frame;
use crate::mapped_range::{MappedRange, SharedRef};
use crate::pos::{BufIdx, Pos, Slots};
use crate::region::Region;
use crate::slot::{Offsets, SlotRing, SlotValue};

const HEAD: usize = std::mem::offset_of!(NetmapRing, head);
const CUR: usize = std::mem::offset_of!(NetmapRing, cur);
const TAIL: usize = std::mem::offset_of!(NetmapRing, tail);
const FLAGS: usize = std::mem::offset_of!(NetmapRing, flags);
const TS: usize = std::mem::offset_of!(NetmapRing, ts);
const SLOTS: usize = size_of::<NetmapRing>();

/// The pointers of a ring that its program may write.
#[repr(C)]
pub(crate) struct ProgramPointers {
    head: AtomicU32,
    cur: AtomicU32,
    tail: AtomicU32,
}

const _: () = assert!(CUR == HEAD + 4 && TAIL == HEAD + 8);

impl ProgramPointers {
    /// Returns `head`, `cur` and `tail`, not validated. Relaxed: a hint (O3).
    #[inline(always)]
    pub(crate) fn raw(&self) -> [u32; 3] {
        [self.head.load(Relaxed), self.cur.load(Relaxed), self.tail.load(Relaxed)]
    }
}

/// Where a ring is and how large, as the daemon describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RingShape {
    /// Bytes from the start of the region.
    pub offset: u64,
    /// The number of slots.
    pub slots: Slots,
    /// The number within its direction.
    pub id: u16,
    /// 0 transmit, 1 receive.
    pub dir: u16,
}

impl RingShape {
    /// Bytes of a ring of `slots` slots, header included.
    pub fn bytes(slots: Slots) -> usize {
        SLOTS + slots.get() as usize * size_of::<NetmapSlot>()
    }
}

/// A view of one ring. The program owns `[head, tail)`; the syncs of this library own the rest.
///
/// `head`, `cur` and `tail` hand slots over, so they are stored with release and loaded with acquire: the sync that
/// processes a `head` may run in another thread or process (O1). The other words of the header are relaxed: constants
/// of the ring (O5), flags (O4), and the time, which `tail` orders (O1).
#[derive(Clone)]
pub struct RingView {
    region: Region,
    header: MappedRange,
    slots: SlotRing,
    shape: RingShape,
    offsets: Offsets,
}

impl RingView {
    /// The ring of shape `shape` in `region`; `None` when it does not lie inside the ring pool.
    pub fn new(region: &Region, shape: RingShape) -> Option<RingView> {
        let g = region.geometry();
        let end = shape.offset.checked_add(RingShape::bytes(shape.slots) as u64)?;
        if shape.offset < g.rings.offset || end > g.rings.offset + g.rings.bytes() || !shape.offset.is_multiple_of(128)
        {
            return None;
        }
        let offset = region.range_offset(shape.offset)?;
        let header = region.range().part(offset, SLOTS)?;
        let slots = SlotRing::new(region.range(), offset + SLOTS, shape.slots)?;
        Some(RingView { region: region.clone(), header, slots, shape, offsets: Offsets::NONE })
    }

    /// The same view with offsets of packets in their buffers.
    pub fn with_offsets(mut self, offsets: Offsets) -> RingView {
        self.offsets = offsets;
        self
    }

    /// The offsets that this view applies.
    #[inline(always)]
    pub fn offsets(&self) -> Offsets {
        self.offsets
    }

    /// Writes the mask that tells programs which bits of a slot's `ptr` are the packet's offset.
    pub fn set_offset_mask(&self, mask: u64) {
        self.put64(std::mem::offset_of!(NetmapRing, offset_mask), mask);
    }

    /// Writes the header of a new ring: all positions 0, all slots empty.
    pub fn format(&self) {
        let g = self.region.geometry();
        let buf_ofs = g.bufs.offset as i64 - self.shape.offset as i64;
        self.put64(std::mem::offset_of!(NetmapRing, buf_ofs), buf_ofs as u64);
        self.put32(std::mem::offset_of!(NetmapRing, num_slots), self.shape.slots.get());
        self.put32(std::mem::offset_of!(NetmapRing, nr_buf_size), g.bufs.size);
        self.put16(std::mem::offset_of!(NetmapRing, ringid), self.shape.id);
        self.put16(std::mem::offset_of!(NetmapRing, dir), self.shape.dir);
        self.put64(std::mem::offset_of!(NetmapRing, offset_mask), 0);
        self.put64(std::mem::offset_of!(NetmapRing, buf_align), 0);
        self.set_flags(0);
        self.set_pointers(Pos::ZERO, Pos::ZERO);
        let empty = SlotValue { buf_idx: BufIdx(0), len: 0, flags: 0, ptr: 0 };
        for raw in 0..self.shape.slots.get() {
            if let Some(p) = self.shape.slots.pos(raw) {
                self.slots.store(p, empty);
            }
        }
    }

    /// Returns a reference to the program's pointers, which keeps them mapped.
    pub(crate) fn program_pointers(&self) -> Option<SharedRef<ProgramPointers>> {
        // SAFETY: the type consists of atomics (M1).
        unsafe { self.header.shared_ref(HEAD) }
    }

    /// Sets `head` and `cur` to `head`, and `tail`.
    pub fn set_pointers(&self, head: Pos, tail: Pos) {
        self.set_head(head);
        self.set_cur(head);
        self.set_tail(tail);
    }

    /// The ring's shape.
    #[inline(always)]
    pub fn shape(&self) -> &RingShape {
        &self.shape
    }

    /// The slots.
    #[inline(always)]
    pub fn slots(&self) -> &SlotRing {
        &self.slots
    }

    /// The region of the ring and its buffers.
    #[inline(always)]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// The buffer of slot `p`, from the packet's offset on; empty when the index is out of bounds.
    #[inline(always)]
    pub fn frame(&self, p: Pos) -> Frame<'_> {
        self.offsets.within(self.region.frame(self.slots.buf_idx(p)), || self.slots.ptr(p))
    }

    /// `head` as the program wrote it, not validated.
    #[inline(always)]
    pub fn raw_head(&self) -> u32 {
        self.word(HEAD).load(Acquire)
    }

    /// `cur` as the program wrote it, not validated.
    #[inline(always)]
    pub fn raw_cur(&self) -> u32 {
        self.word(CUR).load(Acquire)
    }

    /// `tail`, which only a sync should write but any program can, not validated.
    #[inline(always)]
    pub fn raw_tail(&self) -> u32 {
        self.word(TAIL).load(Acquire)
    }

    /// Sets `head`.
    #[inline(always)]
    pub fn set_head(&self, p: Pos) {
        self.word(HEAD).store(p.raw(), Release);
    }

    /// Sets `cur`.
    #[inline(always)]
    pub fn set_cur(&self, p: Pos) {
        self.word(CUR).store(p.raw(), Release);
    }

    /// Sets `tail`.
    #[inline(always)]
    pub fn set_tail(&self, p: Pos) {
        self.word(TAIL).store(p.raw(), Release);
    }

    /// The ring's `NR_*` flags.
    pub fn flags(&self) -> u32 {
        self.word(FLAGS).load(Relaxed)
    }

    /// Sets the ring's `NR_*` flags.
    pub fn set_flags(&self, flags: u32) {
        self.word(FLAGS).store(flags, Relaxed);
    }

    /// Sets the time of the last receive sync that delivered: seconds and microseconds of the wall clock.
    #[inline(always)]
    pub fn set_time(&self, (sec, usec): (i64, i64)) {
        self.put64(TS, sec as u64);
        self.put64(TS + 8, usec as u64);
    }

    /// The time of the last receive sync that delivered: seconds and microseconds of the wall clock.
    pub fn time(&self) -> (i64, i64) {
        let at = |byte: usize| {
            // SAFETY: byte + 8 is inside the header (M2) and aligned; an atomic may be shared (M1).
            unsafe { AtomicI64::from_ptr(self.header.base().add(byte).cast()) }.load(Relaxed)
        };
        (at(TS), at(TS + 8))
    }

    #[inline(always)]
    fn word(&self, byte: usize) -> &AtomicU32 {
        debug_assert!(byte + 4 <= SLOTS && byte.is_multiple_of(4));
        // SAFETY: the header range has SLOTS bytes (M2) and starts on a multiple of 128; the callers pass offsets of
        // fields of the header; an atomic may be shared (M1).
        unsafe { AtomicU32::from_ptr(self.header.base().add(byte).cast()) }
    }

    fn put16(&self, byte: usize, value: u16) {
        // SAFETY: as for `word` (M1, M2).
        unsafe { AtomicU16::from_ptr(self.header.base().add(byte).cast()) }.store(value, Relaxed);
    }

    fn put32(&self, byte: usize, value: u32) {
        self.word(byte).store(value, Relaxed);
    }

    fn put64(&self, byte: usize, value: u64) {
        // SAFETY: as for `word` (M1, M2).
        unsafe { AtomicU64::from_ptr(self.header.base().add(byte).cast()) }.store(value, Relaxed);
    }
}

/// The contents of a session's `struct netmap_if`.
#[derive(Clone, Debug, Default)]
pub struct IfaceShape {
    /// Shown to the program, cut to 15 bytes.
    pub name: String,
    /// Transmit rings of the port.
    pub tx_rings: u32,
    /// Receive rings of the port.
    pub rx_rings: u32,
    /// Host transmit rings, at least 1 even where there are none.
    pub host_tx_rings: u32,
    /// Host receive rings, at least 1 even where there are none.
    pub host_rx_rings: u32,
    /// Offsets in the region of all rings in netmap's order (tx, host tx, rx, host rx); `None` for a ring that this
    /// session did not bind.
    pub rings: Vec<Option<u64>>,
}

/// A view of one session's `struct netmap_if`. The program may write all of it.
#[derive(Clone)]
pub struct Iface {
    range: MappedRange,
    offset: u64,
}

impl Iface {
    /// The interface at `offset` of `region`; `None` unless that is an object of the interface pool.
    pub fn new(region: &Region, offset: u64) -> Option<Iface> {
        let pool = &region.geometry().ifs;
        pool.index_of(offset)?;
        let range = region.range().part(region.range_offset(offset)?, pool.size as usize)?;
        Some(Iface { range, offset })
    }

    /// The number of ring offsets that fit into an object of the interface pool.
    pub fn max_rings(pool_object_bytes: u32) -> usize {
        (pool_object_bytes as usize).saturating_sub(size_of::<NetmapIf>()) / 8
    }

    /// Writes the whole structure.
    pub fn format(&self, shape: &IfaceShape) {
        let mut name = [0u8; 16];
        let n = shape.name.len().min(15);
        name[..n].copy_from_slice(&shape.name.as_bytes()[..n]);
        self.put(std::mem::offset_of!(NetmapIf, ni_name), &name);
        self.put32(std::mem::offset_of!(NetmapIf, ni_version), u32::from(unetmap_abi::NETMAP_API));
        self.put32(std::mem::offset_of!(NetmapIf, ni_flags), 0);
        self.put32(std::mem::offset_of!(NetmapIf, ni_tx_rings), shape.tx_rings);
        self.put32(std::mem::offset_of!(NetmapIf, ni_rx_rings), shape.rx_rings);
        self.put32(std::mem::offset_of!(NetmapIf, ni_host_tx_rings), shape.host_tx_rings);
        self.put32(std::mem::offset_of!(NetmapIf, ni_host_rx_rings), shape.host_rx_rings);
        self.set_bufs_head(BufIdx(0));
        for (i, ring) in shape.rings.iter().enumerate() {
            let relative = ring.map_or(0, |r| r as i64 - self.offset as i64);
            self.put(size_of::<NetmapIf>() + i * 8, &relative.to_ne_bytes());
        }
    }

    /// The head of the list of extra buffers as the program left it, not validated. Relaxed (O5): the list is walked
    /// after the session has closed.
    pub fn bufs_head(&self) -> BufIdx {
        BufIdx(self.head_word().load(Relaxed))
    }

    /// Sets the head of the list of extra buffers; 0 ends the list.
    pub fn set_bufs_head(&self, idx: BufIdx) {
        self.head_word().store(idx.0, Relaxed);
    }

    fn head_word(&self) -> &AtomicU32 {
        // SAFETY: the field lies in the object (M2) and is aligned; an atomic may be shared (M1).
        unsafe { AtomicU32::from_ptr(self.range.base().add(std::mem::offset_of!(NetmapIf, ni_bufs_head)).cast()) }
    }

    fn put32(&self, byte: usize, value: u32) {
        self.put(byte, &value.to_ne_bytes());
    }

    /// Copies `bytes` to offset `byte`. Nothing is written if they do not fit; callers check [`Iface::max_rings`]
    /// before.
    fn put(&self, byte: usize, bytes: &[u8]) {
        if let Some(part) = self.range.part(byte, bytes.len()) {
            // SAFETY: `part` has bytes.len() bytes (M2), to which there is no reference (M1).
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), part.base(), bytes.len()) };
        }
    }
}

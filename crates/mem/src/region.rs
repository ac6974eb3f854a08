// SPDX-License-Identifier: BSD-2-Clause
//! A region: one sealed memfd in netmap's layout, identified by its mem_id.
//!
//! ```text
//! 0            rings.offset          bufs.offset                      bytes()
//! | interfaces | rings               | buffers 0 1 | 2 3 4 ...        |
//! ```
//! Objects are identified by offset or index; there is no pointer in a region. The pages are sparse: an object takes
//! memory once it is used. Several regions may lie in one memfd, one after the other; offsets are then from the start
//! of the memfd.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use unetmap_sys::user_memory::{MAX_PIECES, Piece, read_pieces};
use unetmap_sys::xsk::{Umem, pool_offset_in_page};
use unetmap_sys::{Mapping, memfd};

use crate::frame::Frame;
use crate::mapped_range::MappedRange;
use crate::pos::BufIdx;
use crate::prefetch;
use crate::slot::{Limits, SharedLimits};

/// One pool: `count` objects of `size` bytes each, the first at `offset`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolShape {
    /// Bytes from the start of the memfd.
    pub offset: u64,
    /// The number of objects.
    pub count: u32,
    /// Bytes of one object.
    pub size: u32,
}

impl PoolShape {
    /// Bytes of the whole pool.
    pub fn bytes(&self) -> u64 {
        u64::from(self.count) * u64::from(self.size)
    }

    /// The offset of object `index`; `None` when there is no such object.
    pub fn object(&self, index: u32) -> Option<u64> {
        (index < self.count).then(|| self.offset + u64::from(index) * u64::from(self.size))
    }

    /// The index of the object that starts at `offset`; `None` when none does.
    pub fn index_of(&self, offset: u64) -> Option<u32> {
        let at = offset.checked_sub(self.offset)?;
        let index = u32::try_from(at / u64::from(self.size)).ok()?;
        (at.is_multiple_of(u64::from(self.size)) && index < self.count).then_some(index)
    }
}

/// The three pools of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// `struct netmap_if`, one for each session.
    pub ifs: PoolShape,
    /// `struct netmap_ring` with its slots.
    pub rings: PoolShape,
    /// Packet buffers.
    pub bufs: PoolShape,
}

const EMPTY_PIECE: Piece = Piece { from: 0, to: std::ptr::null_mut(), len: 0 };
const PAGE: u64 = 4096;
/// The largest offset at which a region may begin.
const LAST_BASE: u64 = 1 << 40;
/// Rings start on a multiple of this, so that slots start on a cache line.
const OBJECT_ALIGN: u32 = 128;

impl Geometry {
    // The bounds are those of netmap's own knobs, with more rings allowed.

    /// Sessions of a region.
    pub const IF_COUNT: std::ops::RangeInclusive<u32> = 1..=10_000;
    /// Bytes of a session's `struct netmap_if`.
    pub const IF_SIZE: std::ops::RangeInclusive<u32> = 256..=8192;
    /// Rings of a region.
    pub const RING_COUNT: std::ops::RangeInclusive<u32> = 2..=4096;
    /// Bytes of a ring.
    pub const RING_SIZE: std::ops::RangeInclusive<u32> = 512..=(32 << 12) + (256 << 10);
    /// Buffers of a region.
    pub const BUF_COUNT: std::ops::RangeInclusive<u32> = 4..=1_000_000;
    /// Bytes of a buffer.
    pub const BUF_SIZE: std::ops::RangeInclusive<u32> = 64..=65536;

    /// Lays out pools of `(count, bytes of one object)`; sizes are rounded up to 128 bytes (buffers: 64, M6).
    ///
    /// # Errors
    /// A message that names the number that is out of bounds.
    pub fn new(ifs: (u32, u32), rings: (u32, u32), bufs: (u32, u32)) -> Result<Geometry, String> {
        Geometry::at(0, ifs, rings, bufs)
    }

    /// As [`Geometry::new`], in a memfd that has other regions before this one: the first pool is at `base`, a multiple
    /// of the page size and at most 1 TiB.
    ///
    /// # Errors
    /// As [`Geometry::new`].
    pub fn at(base: u64, ifs: (u32, u32), rings: (u32, u32), bufs: (u32, u32)) -> Result<Geometry, String> {
        if !base.is_multiple_of(PAGE) || base > LAST_BASE {
            return Err(format!("the region's offset is {base}, it must be a multiple of {PAGE} and at most 1 TiB"));
        }
        let check = |what: &str, value: u32, range: std::ops::RangeInclusive<u32>| {
            if range.contains(&value) {
                Ok(())
            } else {
                Err(format!("{what} is {value}, allowed are {} to {}", range.start(), range.end()))
            }
        };
        check("if_num", ifs.0, Self::IF_COUNT)?;
        check("if_size", ifs.1, Self::IF_SIZE)?;
        check("ring_num", rings.0, Self::RING_COUNT)?;
        check("ring_size", rings.1, Self::RING_SIZE)?;
        check("buf_num", bufs.0, Self::BUF_COUNT)?;
        check("buf_size", bufs.1, Self::BUF_SIZE)?;
        let place = |offset: u64, (count, size): (u32, u32), align: u32| PoolShape {
            offset,
            count,
            size: size.next_multiple_of(align),
        };
        let ifs = place(base, ifs, OBJECT_ALIGN);
        let rings = place((base + ifs.bytes()).next_multiple_of(PAGE), rings, OBJECT_ALIGN);
        let mut bufs = place((rings.offset + rings.bytes()).next_multiple_of(PAGE), bufs, 64);
        bufs.offset += u64::from(pool_offset_in_page(bufs.size));
        let geometry = Geometry { ifs, rings, bufs };
        // The legacy request has 32 bits for the size of a region.
        let bytes = geometry.bytes() - base;
        if bytes > u64::from(u32::MAX) {
            return Err(format!("the pools need {bytes} bytes, a region has at most 4 GiB - 1"));
        }
        Ok(geometry)
    }

    /// Bytes from the start of the memfd to the end of the region, a multiple of the page size.
    pub fn bytes(&self) -> u64 {
        (self.bufs.offset + self.bufs.bytes()).next_multiple_of(PAGE)
    }

    /// The limits of slots of this region.
    pub fn limits(&self) -> Limits {
        Limits { bufs: self.bufs.count, buf_size: self.bufs.size }
    }
}

/// A mapped region. Every process keeps its own copy of the geometry, from the daemon, and uses no geometry from the
/// shared bytes (M4).
#[derive(Clone)]
pub struct Region {
    range: MappedRange,
    bufs: *mut u8,
    geometry: Geometry,
    /// Of slots: all buffers, or fewer.
    limits: SharedLimits,
}

// SAFETY: `bufs` points into the mapping that `range` keeps alive (M2); accessed by raw copies only (M1).
unsafe impl Send for Region {}
// SAFETY: as above (M1, M2).
unsafe impl Sync for Region {}

impl Region {
    /// Makes a new region: a sealed memfd of the right size, mapped.
    ///
    /// # Errors
    /// The system call's error, when memory or file descriptors ran out.
    pub fn create(name: &str, geometry: Geometry) -> std::io::Result<(Region, OwnedFd)> {
        Region::create_in(name, geometry, geometry.bytes())
    }

    /// As [`Region::create`], in a memfd of `bytes` bytes, of which those after the region are for other uses.
    ///
    /// # Errors
    /// As [`Region::create`]; `InvalidData` if the memfd is too small.
    pub fn create_in(name: &str, geometry: Geometry, bytes: u64) -> std::io::Result<(Region, OwnedFd)> {
        use std::os::fd::AsFd;
        let fd = memfd::create_sealed(name, bytes)?;
        let region = Region::attach(fd.as_fd(), geometry)?;
        Ok((region, fd))
    }

    /// Maps a region that another process made.
    ///
    /// # Errors
    /// `InvalidData` when the geometry is not one that [`Geometry::at`] makes, or the memfd is not sealed or too small
    /// for it; else the system call's error.
    pub fn attach(fd: BorrowedFd<'_>, geometry: Geometry) -> std::io::Result<Region> {
        let Some(base) = Region::validated_base(&geometry) else {
            return Err(std::io::Error::new(
                std::io::ErrorKind::InvalidData,
                "the region's pools overlap or do not fit",
            ));
        };
        let bytes = usize::try_from(geometry.bytes() - base).map_err(std::io::Error::other)?;
        let range = MappedRange::whole(Arc::new(Mapping::part(fd, base, bytes)?));
        Ok(Region::of(range, geometry))
    }

    /// A region in memory that is mapped already, and begins with byte 0 of its file; `None` if the geometry is not one
    /// that [`Geometry::at`] makes, or does not fit.
    pub fn in_range(range: &MappedRange, geometry: Geometry) -> Option<Region> {
        let base = Region::validated_base(&geometry)?;
        let bytes = usize::try_from(geometry.bytes() - base).ok()?;
        let range = range.part(usize::try_from(base).ok()?, bytes)?;
        Some(Region::of(range, geometry))
    }

    /// Returns the first byte of a region whose geometry is one that `at` makes: its pools are in bounds, in order, and
    /// aligned.
    fn validated_base(geometry: &Geometry) -> Option<u64> {
        let pools = [&geometry.ifs, &geometry.rings, &geometry.bufs].map(|pool| (pool.count, pool.size));
        let base = geometry.ifs.offset;
        (Geometry::at(base, pools[0], pools[1], pools[2]) == Ok(*geometry)).then_some(base)
    }

    /// `range` has the bytes from the geometry's base, which is validated, to its end.
    fn of(range: MappedRange, geometry: Geometry) -> Region {
        // SAFETY: the range has the bytes from the base to `geometry.bytes()`, and in a geometry of `at` the buffer
        // pool lies inside them (M2).
        let bufs = unsafe { range.base().add((geometry.bufs.offset - geometry.ifs.offset) as usize) };
        Region { range, bufs, geometry, limits: geometry.limits().into() }
    }

    /// The layout.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The range of all its bytes.
    pub fn range(&self) -> &MappedRange {
        &self.range
    }

    /// The offset in the range of byte `offset` of the memfd; `None` when it lies before the region.
    pub(crate) fn range_offset(&self, offset: u64) -> Option<usize> {
        usize::try_from(offset.checked_sub(self.geometry.ifs.offset)?).ok()
    }

    /// Whether both are views of one mapping.
    pub fn is_same_mapping(&self, other: &Region) -> bool {
        self.range.base() == other.range.base()
    }

    /// The buffer `idx`; [`Frame::EMPTY`] if the index is out of bounds.
    #[inline(always)]
    pub fn frame(&self, idx: BufIdx) -> Frame<'_> {
        let bufs = &self.geometry.bufs;
        if idx.0 >= self.limits().bufs {
            return Frame::EMPTY;
        }
        // SAFETY: buffer idx < limits.bufs <= count lies inside the pool, which `attach` mapped whole (M2, M6).
        unsafe { Frame::new(self.bufs.add(idx.0 as usize * bufs.size as usize), bufs.size as usize) }
    }

    /// Prefetches the first cache line of buffer `idx` for reading, on x86-64; an index out of bounds is cut to the
    /// last buffer.
    #[inline(always)]
    pub fn prefetch(&self, idx: BufIdx) {
        let bufs = &self.geometry.bufs;
        let index = idx.0.min(bufs.count - 1) as usize;
        prefetch::for_read(self.bufs.wrapping_add(index * bufs.size as usize));
    }

    /// Prefetches the first cache line of buffer `idx` for writing: copies of it in other caches are invalidated.
    #[inline(always)]
    pub fn prefetch_for_write(&self, idx: BufIdx) {
        let bufs = &self.geometry.bufs;
        let index = idx.0.min(bufs.count - 1) as usize;
        prefetch::for_write(self.bufs.wrapping_add(index * bufs.size as usize));
    }

    /// Allocates the memory of `n` buffers from `first` on, so that writing them later causes no page fault. Returns
    /// whether it did; `false` also if they are not within the limits.
    pub fn populate(&self, first: BufIdx, n: u32) -> bool {
        let bufs = &self.geometry.bufs;
        let in_pool = first.0.checked_add(n).is_some_and(|end| end <= self.limits().bufs);
        let (offset, bytes) = (u64::from(first.0) * u64::from(bufs.size), u64::from(n) * u64::from(bufs.size));
        in_pool && self.populate_bytes(bufs.offset + offset, bytes)
    }

    /// The same of `bytes` bytes from byte `offset` of the memfd on; `false` also if they do not lie in the region.
    pub fn populate_bytes(&self, offset: u64, bytes: u64) -> bool {
        let at = self.range_offset(offset).zip(usize::try_from(bytes).ok());
        at.is_some_and(|(at, bytes)| self.range.mapping().populate(at, bytes).is_ok())
    }

    /// Copies data of this process, from addresses that may be unmapped, to the starts of buffers: up to [`MAX_PIECES`]
    /// of `(address, bytes, buffer)`. Returns a bit mask of those that failed, bit i for the i-th. A piece that is
    /// longer than a buffer, or whose buffer does not exist, fails.
    ///
    /// [`MAX_PIECES`]: unetmap_sys::user_memory::MAX_PIECES
    pub fn copy_from_program(&self, wanted: &[(u64, u16, BufIdx)]) -> u64 {
        let (mut failed, mut pieces, mut number, mut n) = (0, [EMPTY_PIECE; MAX_PIECES], [0; MAX_PIECES], 0);
        for (i, (from, len, idx)) in wanted.iter().take(MAX_PIECES).enumerate() {
            let frame = if self.limits().index_ok(*idx) { self.frame(*idx) } else { Frame::EMPTY };
            if usize::from(*len) > frame.capacity() {
                failed |= 1 << i;
                continue;
            }
            pieces[n] = Piece { from: *from, to: frame.as_ptr(), len: (*len).into() };
            number[n] = i;
            n += 1;
        }
        // SAFETY: each target is the start of a frame of at least that many bytes (M2); there are no references to
        // frames (M1).
        let unread = unsafe { read_pieces(&pieces[..n]) };
        (0..n).filter(|at| unread & 1 << at != 0).fold(failed, |failed, at| failed | 1 << number[at])
    }

    /// The address of buffer 0; valid for the whole pool.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) fn bufs_ptr(&self) -> *mut u8 {
        self.bufs
    }

    /// The buffer pool as the UMEM of AF_XDP sockets.
    pub fn umem(&self) -> Umem {
        let bufs = &self.geometry.bufs;
        Umem {
            map: self.range.mapping(),
            offset: (bufs.offset - self.geometry.ifs.offset) as usize,
            bytes: bufs.bytes() as usize,
            buffer: bufs.size,
        }
    }

    /// The limits of slots that name buffers of this region.
    #[inline(always)]
    pub fn limits(&self) -> Limits {
        self.limits.now()
    }

    /// The limits of slots, as [`Region::allow_buffers`] changes them.
    pub fn shared_limits(&self) -> SharedLimits {
        self.limits.clone()
    }

    /// From now on the first `bufs` buffers are valid, here and in all clones: no others are read or written.
    pub fn allow_buffers(&self, bufs: u32) {
        self.limits.set_bufs(bufs.min(self.geometry.bufs.count));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_do_not_overlap_and_fit() {
        let g = Geometry::new((3, 1024), (5, 20481), (7, 2000)).unwrap();
        assert_eq!(g.rings.size % 128, 0);
        assert_eq!(g.bufs.size, 2048);
        assert!(g.ifs.offset + g.ifs.bytes() <= g.rings.offset);
        assert!(g.rings.offset + g.rings.bytes() <= g.bufs.offset);
        assert!(g.bufs.offset + g.bufs.bytes() <= g.bytes());
        assert_eq!(g.bytes() % 4096, 0);
        assert_eq!(g.rings.object(4).and_then(|o| g.rings.index_of(o)), Some(4));
        assert_eq!(g.rings.object(5), None);
        assert_eq!(g.rings.index_of(g.rings.offset + 1), None);
    }

    #[test]
    fn buffers_for_zero_copy_leave_room_for_the_headroom_in_their_page() {
        let g = Geometry::new((3, 1024), (5, 20481), (7, 4096)).unwrap();
        assert_eq!((g.bufs.offset % 4096, g.bytes()), (256, g.bufs.offset - 256 + 8 * 4096));
        assert_eq!(Geometry::new((3, 1024), (5, 20481), (7, 8192)).unwrap().bufs.offset % 4096, 0);
    }

    #[test]
    fn several_regions_lie_in_one_memfd() {
        let first = Geometry::new((3, 1024), (5, 20481), (7, 2000)).unwrap();
        let second = Geometry::at(first.bytes(), (3, 1024), (5, 20481), (7, 2000)).unwrap();
        assert_eq!(second.bytes(), 2 * first.bytes());
        assert_eq!(second.rings.offset, first.bytes() + first.rings.offset);
        assert_eq!(second.bufs.offset, first.bytes() + first.bufs.offset);
        assert!(Geometry::at(100, (3, 1024), (5, 20481), (7, 2000)).is_err());
        assert!(Geometry::at((1 << 40) + 4096, (3, 1024), (5, 20481), (7, 2000)).is_err());
        assert!(Geometry::at(1 << 63, (3, 1024), (5, 20481), (7, 2000)).is_err());
    }

    #[test]
    fn a_region_after_another_uses_its_own_bytes() {
        use std::os::fd::AsFd;
        let first = Geometry::new((1, 256), (2, 512), (4, 64)).unwrap();
        let second = Geometry::at(first.bytes(), (1, 256), (2, 512), (4, 64)).unwrap();
        let fd = memfd::create_sealed("test", second.bytes()).unwrap();
        let whole = Mapping::new(fd.as_fd(), second.bytes() as usize).unwrap();
        let region = Region::attach(fd.as_fd(), second).unwrap();
        assert_eq!(region.frame(BufIdx(2)).write(0, b"abc"), 3);
        let at = (second.bufs.offset + 2 * 64) as usize;
        let whole = MappedRange::whole(Arc::new(whole));
        // SAFETY: three bytes inside the mapping (M2), which no thread writes while the slice exists.
        assert_eq!(unsafe { std::slice::from_raw_parts(whole.base().add(at), 3) }, b"abc");
        assert_eq!(
            (region.range_offset(0), region.range_offset(second.rings.offset)),
            (None, Some(first.rings.offset as usize))
        );
    }

    #[test]
    fn only_buffers_of_the_pool_are_populated() {
        let (region, fd) = Region::create("test", Geometry::new((1, 256), (2, 512), (64, 2048)).unwrap()).unwrap();
        let bytes = || rustix::fs::fstat(&fd).unwrap().st_blocks * 512;
        assert!(
            !region.populate(BufIdx(63), 2) && !region.populate(BufIdx(64), 1) && !region.populate(BufIdx(u32::MAX), 1)
        );
        assert_eq!(bytes(), 0);
        if region.populate(BufIdx(8), 16) {
            assert_eq!(bytes(), 16 * 2048);
        }
    }

    #[test]
    fn numbers_out_of_bounds_are_named() {
        let err = Geometry::new((3, 1024), (5, 20480), (3, 2048)).unwrap_err();
        assert!(err.contains("buf_num is 3"), "{err}");
        assert!(Geometry::new((3, 1024), (5, 20480), (1_000_000, 65536)).is_err());
    }

    #[test]
    fn an_invalid_geometry_is_not_mapped() {
        use std::os::fd::AsFd;
        let good = Geometry::new((1, 256), (2, 512), (4, 64)).unwrap();
        let (_region, fd) = Region::create("test", good).unwrap();
        assert!(Region::attach(fd.as_fd(), good).is_ok());
        for change in [
            |g: &mut Geometry| g.bufs.offset += 1,
            |g: &mut Geometry| g.bufs.offset = u64::MAX,
            |g: &mut Geometry| g.ifs.size = 0,
            |g: &mut Geometry| g.rings.offset = 0,
            |g: &mut Geometry| g.bufs.count = 0,
        ] {
            let mut bad = good;
            change(&mut bad);
            assert!(Region::attach(fd.as_fd(), bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn buffers_that_are_not_allowed_are_neither_read_nor_written() {
        let (region, fd) = Region::create("test", Geometry::new((1, 256), (2, 512), (64, 4096)).unwrap()).unwrap();
        let (other, limits) = (region.clone(), region.shared_limits());
        region.allow_buffers(4);
        assert_eq!((other.frame(BufIdx(4)).write(0, b"x"), other.frame(BufIdx(3)).write(0, b"x")), (0, 1));
        assert!(!other.populate(BufIdx(3), 2) && !limits.now().index_ok(BufIdx(4)) && limits.now().index_ok(BufIdx(3)));
        assert_eq!(memfd::resident_bytes(&fd).unwrap(), 4096, "of one buffer");
        other.allow_buffers(u32::MAX);
        assert!(region.limits() == region.geometry().limits() && region.frame(BufIdx(63)).write(0, b"x") == 1);
    }

    #[test]
    fn frames_stay_inside_the_region() {
        let g = Geometry::new((1, 256), (2, 512), (4, 64)).unwrap();
        let (region, _fd) = Region::create("test", g).unwrap();
        assert_eq!(region.frame(BufIdx(3)).write(60, b"abcdef"), 4);
        let mut back = [0; 8];
        assert_eq!(region.frame(BufIdx(3)).read(60, &mut back), 4);
        assert_eq!(&back[..4], b"abcd");
        assert_eq!(region.frame(BufIdx(4)).capacity(), 0);
        assert_eq!(region.frame(BufIdx(u32::MAX)).write(0, b"x"), 0);
    }
}

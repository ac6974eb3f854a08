//! The daemon's books of one region: what is handed out, and where buffers are.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use unetmap::errno::{EINVAL, ENOMEM};
use unetmap_mem::{
    BufIdx, BufPool, Census, Geometry, Iface, IfaceShape, ObjectPool, Pos, Region, RingShape, RingView, Slots,
};

use crate::end::EndShape;
use crate::estate::{Estate, Plot};
use crate::refusal::{Refusal, refuse};

/// How many sessions, rings and buffers a region has, and how large each is. The names are netmap's knobs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) ifs: (u32, u32),
    pub(crate) rings: (u32, u32),
    pub(crate) bufs: (u32, u32),
}

impl Sizes {
    /// Room for 64 pipes of 1024 slots and some, or fewer larger ones up to 4096 slots. Only what is used takes memory.
    pub(crate) const DEFAULT: Sizes = Sizes { ifs: (512, 4608), rings: (1100, 17 << 12), bufs: (163_840, 2048) };

    /// The same, or as much more as is needed for so many rings, the longest of which has so many slots, and for so many
    /// buffers. Never more than a region may have: who takes rings and buffers from it is told that there are too few.
    fn at_least(self, rings: u32, longest: Slots, bufs: u32) -> Sizes {
        let bytes = u32::try_from(RingShape::bytes(longest)).unwrap_or(u32::MAX);
        Sizes {
            ifs: self.ifs,
            rings: (
                self.rings.0.max(rings.min(*Geometry::RING_COUNT.end())),
                self.rings.1.max(bytes.min(*Geometry::RING_SIZE.end())),
            ),
            bufs: (self.bufs.0.max(bufs.min(*Geometry::BUF_COUNT.end())), self.bufs.1),
        }
    }

    /// The same, or as much more as a pipe needs, one end of which is so.
    pub(crate) fn with_pipe(self, end: &EndShape) -> Sizes {
        let rings = 2 * (u32::from(end.all_tx()) + u32::from(end.all_rx()));
        // A buffer for each slot that can be sent, and for each ring what it holds back; two are reserved.
        self.at_least(rings, end.longest(), end.all_slots() + rings + 2)
    }

    /// Bytes of a region of these sizes.
    pub(crate) fn bytes(self) -> Result<u64, Refusal> {
        let geometry = Geometry::new(self.ifs, self.rings, self.bufs);
        geometry.map_or_else(
            |why| refuse(EINVAL, format!("the region's sizes are out of bounds: {why}")),
            |g| Ok(g.bytes()),
        )
    }

    /// Of a region for one interface alone, whose rings have so many slots in all.
    pub(crate) fn of_one_interface(self, rings: u32, slots: u32) -> Sizes {
        // Two of the buffers are reserved. The rings may be as long as any.
        let ring_bytes = self.rings.1.max(Sizes::DEFAULT.rings.1);
        Sizes { ifs: (rings + 1, self.ifs.1), rings: (rings.max(2), ring_bytes), bufs: (slots + 2, self.bufs.1) }
    }

    /// Of a region for a port of a switch of this shape, and so many buffers besides; with room for four pipes of usual size,
    /// if that is not more than a region is to have.
    pub(crate) fn of_switch_port(self, port: &EndShape, extra: u32) -> Sizes {
        let (rings, slots) = (u32::from(port.all_tx()) + u32::from(port.all_rx()), port.all_slots());
        let needed = slots + rings + extra + 2;
        // Buffers whose distance is a power of two meet in a few sets of the caches, which every packet goes through twice.
        let size = if self.bufs.1.is_power_of_two() { (self.bufs.1 + CACHE_LINE).min(65536) } else { self.bufs.1 };
        let usual = Sizes {
            ifs: self.ifs,
            rings: (self.rings.0.min(rings + PIPES), self.rings.1),
            bufs: (self.bufs.0.min(needed + PIPES * 1024), size),
        };
        usual.at_least(rings, port.longest(), needed)
    }
}

/// Bytes.
const CACHE_LINE: u32 = 64;
/// Rings of four pipes.
const PIPES: u32 = 16;

/// Whose something is: names and region numbers of one scope mean nothing in another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Scope {
    pub(crate) uid: u32,
    /// Of what depends on interfaces: the network namespace. Else 0.
    pub(crate) netns: u64,
}

/// Names a region in the books. The number that programs see, `mem_id`, is 1 for several.
pub(crate) type HouseId = u32;

/// A region and who has what of it.
pub(crate) struct House {
    pub(crate) id: HouseId,
    pub(crate) mem_id: u16,
    pub(crate) scope: Scope,
    /// The parent whose pipes live here.
    pub(crate) name: String,
    pub(crate) region: Region,
    pub(crate) fd: OwnedFd,
    /// Its part of the file, if that is not its own.
    plot: Option<Plot>,
    ifs: ObjectPool,
    rings: ObjectPool,
    bufs: BufPool,
    /// Sessions that are open in this region.
    pub(crate) sessions: u32,
    /// Extra buffers that those sessions took.
    pub(crate) extra: u32,
}

impl House {
    /// Makes a region, in `estate` if there is one and it has room, else in a file of its own.
    pub(crate) fn create(
        (id, mem_id): (HouseId, u16),
        scope: Scope,
        name: &str,
        sizes: Sizes,
        estate: Option<&Arc<Estate>>,
    ) -> Result<House, Refusal> {
        let at = |base| {
            Geometry::at(base, sizes.ifs, sizes.rings, sizes.bufs)
                .or_else(|why| refuse(EINVAL, format!("the region's sizes are out of bounds: {why}")))
        };
        let bytes = at(0)?.bytes();
        let plot = estate.and_then(|estate| estate.take(bytes));
        let geometry = at(plot.as_ref().map_or(0, Plot::base))?;
        let made = match &plot {
            Some(plot) => plot
                .estate()
                .as_fd()
                .try_clone_to_owned()
                .and_then(|fd| Ok((Region::attach(fd.as_fd(), geometry)?, fd))),
            None => Region::create(&format!("unetmap-{mem_id}"), geometry),
        };
        let (region, fd) = made.or_else(|e| refuse(ENOMEM, format!("no memory for another region: {e}")))?;
        Ok(House {
            id,
            mem_id,
            scope,
            name: name.into(),
            region,
            fd,
            plot,
            ifs: ObjectPool::new(geometry.ifs.count),
            rings: ObjectPool::new(geometry.rings.count),
            bufs: BufPool::new(geometry.bufs.count),
            sessions: 0,
            extra: 0,
        })
    }

    /// Whether it lies in `estate`.
    pub(crate) fn is_in(&self, estate: &Arc<Estate>) -> bool {
        self.plot.as_ref().is_some_and(|plot| Arc::ptr_eq(plot.estate(), estate))
    }

    /// Takes a ring out of the pool and formats it, without buffers.
    pub(crate) fn make_ring(&mut self, slots: Slots, id: u16, dir: u16) -> Result<RingView, Refusal> {
        let pool = self.region.geometry().rings;
        if RingShape::bytes(slots) > pool.size as usize {
            return refuse(ENOMEM, format!("a ring of {} slots does not fit ring_size {}", slots.get(), pool.size));
        }
        let view = self.rings.take().and_then(|object| {
            let offset = pool.object(object)?;
            RingView::new(&self.region, RingShape { offset, slots, id, dir })
        });
        let Some(view) = view else {
            return refuse(ENOMEM, format!("all {} rings of the region are in use (ring_num)", pool.count));
        };
        view.format();
        Ok(view)
    }

    /// Puts a buffer into each slot of a new transmit ring.
    pub(crate) fn fill_ring(&mut self, view: &RingView) -> Result<(), Refusal> {
        let n = view.slots().slots().get();
        let Some(bufs) = self.bufs.take_many(n) else {
            return refuse(ENOMEM, format!("{n} buffers are needed, {} are free (buf_num)", self.bufs.free()));
        };
        for (raw, idx) in bufs.into_iter().enumerate() {
            if let Some(p) = view.slots().slots().pos(raw as u32) {
                view.slots().set_buf_idx(p, idx);
            }
        }
        Ok(())
    }

    /// Takes one buffer.
    pub(crate) fn take_buf(&mut self) -> Result<BufIdx, Refusal> {
        match self.bufs.take() {
            Some(idx) => Ok(idx),
            None => refuse(ENOMEM, "all buffers of the region are in use (buf_num)"),
        }
    }

    /// Gives the ring object back. Its buffers are reclaimed separately.
    pub(crate) fn drop_ring(&mut self, shape: &RingShape) {
        if let Some(object) = self.region.geometry().rings.index_of(shape.offset) {
            self.rings.give(object);
        }
    }

    /// Makes a session's `netmap_if`, with a list of up to `extra` extra buffers. Returns it, its offset, and how many
    /// extra buffers it got.
    pub(crate) fn make_iface(&mut self, shape: &IfaceShape, extra: u32) -> Result<(Iface, u64, u32), Refusal> {
        let pool = self.region.geometry().ifs;
        if shape.rings.len() > Iface::room(pool.size) {
            return refuse(ENOMEM, format!("{} rings do not fit if_size {}", shape.rings.len(), pool.size));
        }
        let made = self.ifs.take().and_then(|object| {
            let offset = pool.object(object)?;
            Some((Iface::new(&self.region, offset)?, offset))
        });
        let Some((iface, offset)) = made else {
            return refuse(ENOMEM, format!("all {} sessions of the region are in use (if_num)", pool.count));
        };
        iface.format(shape);
        let mut got = 0;
        for _ in 0..extra {
            let Some(idx) = self.bufs.take() else { break };
            self.region.frame(idx).write(0, &iface.bufs_head().0.to_ne_bytes());
            iface.set_bufs_head(idx);
            got += 1;
        }
        self.extra += got;
        Ok((iface, offset, got))
    }

    /// Takes a session's `netmap_if` back, and the buffers that the program left in its list. `living` are the indexes
    /// in all living rings; `None` when there is no list.
    pub(crate) fn drop_iface(&mut self, iface: &Iface, offset: u64, extra: u32, living: Option<&[BufIdx]>) {
        if let Some(living) = living {
            let list = self.extra_list(iface);
            self.bufs.reclaim(list, living.iter().copied());
        }
        self.extra = self.extra.saturating_sub(extra);
        if let Some(object) = self.region.geometry().ifs.index_of(offset) {
            self.ifs.give(object);
        }
    }

    /// The list as the program left it: a loop, an end in nowhere, foreign indexes are all possible. It ends at the
    /// first index that names no buffer, and after as many steps as there are buffers out.
    fn extra_list(&self, iface: &Iface) -> Vec<BufIdx> {
        let mut list = Vec::new();
        let mut idx = iface.bufs_head();
        while self.region.limits().index_ok(idx) && list.len() < self.bufs.taken() as usize {
            list.push(idx);
            let mut next = [0; 4];
            self.region.frame(idx).read(0, &mut next);
            idx = BufIdx(u32::from_ne_bytes(next));
        }
        list
    }

    /// Frees the buffers of closed rings.
    pub(crate) fn reclaim(&mut self, found: &[BufIdx], living: &[BufIdx]) {
        self.bufs.reclaim(found.iter().copied(), living.iter().copied());
    }

    pub(crate) fn census(&self, living: &[BufIdx]) -> Census {
        self.bufs.census(living.iter().copied(), self.extra)
    }

    /// Objects handed out: interfaces, rings.
    pub(crate) fn taken(&self) -> (u32, u32) {
        (self.ifs.taken(), self.rings.taken())
    }

    /// All positions of a ring.
    pub(crate) fn positions(view: &RingView) -> impl Iterator<Item = Pos> {
        let slots = view.slots().slots();
        (0..slots.get()).filter_map(move |raw| slots.pos(raw))
    }
}

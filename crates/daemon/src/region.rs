// SPDX-License-Identifier: BSD-2-Clause
//! A region as the daemon manages it: its memory, and which of its objects and buffers are allocated.

mod memory;
mod saved;
mod sizes;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};

use serde::{Deserialize, Serialize};
use unetmap_core::control::binding::DEVICE_HEADER_BYTES;
use unetmap_core::errno::{EINVAL, ENOMEM};
use unetmap_mem::{
    BufIdx, BufPool, BufUsage, Geometry, Iface, IfaceShape, MappedRange, ObjectPool, Pos, Region, RingShape, RingView,
    Slots,
};
use unetmap_sys::{Mapping, memfd};

use crate::budget::Amounts;
use crate::ledger::Charge;
use crate::refusal::{Refusal, refuse, refuse_lack};
use crate::shared_files::SharedFile;
use crate::user_arena::{Extent, UserArena};

pub(crate) use memory::{Need, NewMemory, Prepared, RegionMemory};
pub(crate) use saved::SavedRegion;
pub(crate) use sizes::{Scope, Sizes};

/// Bytes.
const PAGE: u64 = 4096;

/// The user number of regions and interfaces that belong to the daemon itself. No user has this number.
pub(crate) const DAEMON_UID: u32 = u32::MAX;

/// The daemon's number of a region. It is unique, unlike `mem_id`, the number that programs see, which is 1 for
/// several.
pub(crate) type RegionKey = u32;

/// A region, and what is allocated in it.
pub(crate) struct RegionRecord {
    pub(crate) key: RegionKey,
    pub(crate) mem_id: u16,
    pub(crate) scope: Scope,
    /// The user that is charged for it.
    pub(crate) payer: u32,
    /// The name of the parent or port that the region was created for.
    pub(crate) name: String,
    pub(crate) region: Region,
    pub(crate) fd: OwnedFd,
    /// Its part of the user's arena; `None`: it has a file of its own.
    extent: Option<Extent>,
    /// If its file is the memory of a virtual machine's device: what is allocated of the rest.
    device: Option<DeviceRest>,
    /// The NUMA node that its pages come from; `None`: that of the program that touches one first.
    node: Option<u32>,
    ifs: ObjectPool,
    rings: ObjectPool,
    bufs: BufPool,
    /// Whether threads of the daemon read and write packets in its buffers ([`RegionRecord::fill`]).
    is_filled: bool,
    /// Open sessions in this region.
    pub(crate) sessions: u32,
    /// Persistent ports of this region, open or not.
    pub(crate) persistent_ports: u32,
    /// Switch ports of this region that were removed and that a thread may still use.
    pub(crate) retired_ports: u32,
    /// Extra buffers that those sessions hold.
    pub(crate) extra: u32,
    /// The user's charge for it beside its memory; `None`: it is the daemon's.
    pub(crate) charge: Option<Charge>,
    /// Its file, or its user's arena, whose touched pages are charged; `None`: it is the daemon's.
    pub(crate) file: Option<Arc<SharedFile>>,
    /// The user's charge for all interfaces in it, which lock its buffers in memory.
    pub(crate) locked: Weak<Charge>,
}

/// Memory beside a region's, shared with clients.
pub(crate) struct SharedPage {
    pub(crate) range: MappedRange,
    pub(crate) fd: OwnedFd,
    /// Where in the file it begins.
    pub(crate) offset: u64,
}

impl SharedPage {
    /// Returns a new sealed memfd of `bytes` bytes, mapped.
    pub(crate) fn create(name: &str, bytes: usize) -> Result<SharedPage, Refusal> {
        let created = memfd::create_sealed(name, bytes as u64)
            .and_then(|fd| Ok((MappedRange::whole(Arc::new(Mapping::new(fd.as_fd(), bytes)?)), fd)));
        let (range, fd) = created.or_else(|e| refuse_lack("no memory for a shared page", &e))?;
        Ok(SharedPage { range, fd, offset: 0 })
    }
}

/// The part of a device's file after the region.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct DeviceRest {
    next: u64,
    file_bytes: u64,
}

impl DeviceRest {
    /// The rest after a region of `bytes` bytes: at least a megabyte.
    fn after(bytes: u64) -> DeviceRest {
        let next = bytes.next_multiple_of(PAGE);
        DeviceRest { next, file_bytes: (next + (1 << 20)).next_power_of_two() }
    }

    /// Allocates whole pages, before the header at the end of the file; `None` if there are none left.
    fn allocate(&mut self, bytes: u64) -> Option<u64> {
        let (at, end) = (self.next, self.next.checked_add(bytes.next_multiple_of(PAGE))?);
        self.next = if end <= self.file_bytes - DEVICE_HEADER_BYTES { end } else { return None };
        Some(at)
    }
}

impl RegionRecord {
    /// Creates a region in this memory.
    pub(crate) fn create((key, mem_id): (RegionKey, u16), scope: Scope, name: &str, memory: NewMemory) -> RegionRecord {
        let NewMemory { region, fd, extent, file } = memory;
        let geometry = *region.geometry();
        RegionRecord {
            key,
            mem_id,
            scope,
            payer: scope.uid,
            name: name.into(),
            region,
            fd,
            extent,
            device: None,
            node: None,
            ifs: ObjectPool::new(geometry.ifs.count),
            rings: ObjectPool::new(geometry.rings.count),
            bufs: BufPool::new(geometry.bufs.count),
            is_filled: false,
            sessions: 0,
            persistent_ports: 0,
            retired_ports: 0,
            extra: 0,
            charge: None,
            file,
            locked: Weak::new(),
        }
    }

    /// Creates a region in a file that a hypervisor gives its guest as the memory of a PCI device: it contains all that
    /// the guest's programs map, and its size is a power of two.
    pub(crate) fn create_device(
        (key, mem_id): (RegionKey, u16),
        scope: Scope,
        name: &str,
        sizes: Sizes,
    ) -> Result<RegionRecord, Refusal> {
        let geometry = Geometry::new(sizes.ifs, sizes.rings, sizes.bufs)
            .or_else(|why| refuse(EINVAL, format!("the region's sizes are out of bounds: {why}")))?;
        let rest = DeviceRest::after(geometry.bytes());
        let made = Region::create_in(&format!("unetmap-{mem_id}"), geometry, rest.file_bytes);
        let (region, fd) = made.or_else(|e| refuse_lack("no memory for another region", &e))?;
        let record =
            RegionRecord::create((key, mem_id), scope, name, NewMemory { region, fd, extent: None, file: None });
        Ok(RegionRecord { device: Some(rest), ..record })
    }

    /// Whether its file is the memory of a virtual machine's device.
    pub(crate) fn is_device(&self) -> bool {
        self.device.is_some()
    }

    /// Returns `bytes` bytes for the clients of a port in this region: in a file of its own, or in that of a device,
    /// where they stay allocated until the region ends.
    pub(crate) fn shared_page(&mut self, name: &str, bytes: usize) -> Result<SharedPage, Refusal> {
        let Some(rest) = &mut self.device else {
            return SharedPage::create(name, bytes);
        };
        let Some(offset) = rest.allocate(bytes as u64) else {
            return refuse(ENOMEM, format!("the device of {} has no room for more ports: close its ports", self.name));
        };
        self.touch(offset, bytes as u64);
        let made = self.fd.try_clone().and_then(|fd| Ok((Mapping::part(fd.as_fd(), offset, bytes)?, fd)));
        let (mapping, fd) = made.or_else(|e| refuse_lack("a shared page cannot be mapped", &e))?;
        Ok(SharedPage { range: MappedRange::whole(Arc::new(mapping)), fd, offset })
    }

    /// The buffers, if an interface locks them in memory.
    pub(crate) fn locked_buffers(&self) -> Amounts {
        let bufs = self.region.geometry().bufs;
        Amounts::buffers((bufs.count, bufs.size))
    }

    /// Lets pages that are allocated from now on come from this NUMA node: that of the first interface in the region.
    pub(crate) fn prefer_node(&mut self, node: u32) {
        if self.node.is_some() {
            return;
        }
        match self.region.umem().map.prefer_node(node) {
            Ok(()) => self.node = Some(node),
            Err(e) => tracing::debug!(self.mem_id, node, "the region's memory is on any node: {e}"),
        }
    }

    /// Whether its file contains other regions of its user.
    pub(crate) fn is_in_arena(&self) -> bool {
        self.extent.is_some()
    }

    /// Whether the region lies in `arena`.
    pub(crate) fn is_in(&self, arena: &Arc<UserArena>) -> bool {
        self.extent.as_ref().is_some_and(|extent| Arc::ptr_eq(extent.arena(), arena))
    }

    /// Refuses what the region has no room for, by the knob that sizes the pool.
    fn is_full<T>(&self, why: &str, knob: &str) -> Result<T, Refusal> {
        let prefix = if self.mem_id == 1 { "" } else { "priv_" };
        refuse(
            ENOMEM,
            format!(
                "in region {} {why}: close a port there, open it with fewer slots (@conf:slots=), or raise {prefix}{knob} \
                 for regions that are created later (unetmap set, unetmapd(8))",
                self.mem_id
            ),
        )
    }

    /// Allocates a ring, that with the number `wanted` if it is free, and formats it, without buffers.
    pub(crate) fn create_ring(
        &mut self,
        slots: Slots,
        (id, dir): (u16, u16),
        wanted: Option<u32>,
    ) -> Result<RingView, Refusal> {
        let pool = self.region.geometry().rings;
        if RingShape::bytes(slots) > pool.size as usize {
            let why = format!("a ring of {} slots does not fit {} bytes of a ring", slots.get(), pool.size);
            return self.is_full(&why, "ring_size");
        }
        let object = wanted.and_then(|number| self.rings.alloc_at(number)).or_else(|| self.rings.alloc());
        let view = object.and_then(|object| {
            let offset = pool.object(object)?;
            RingView::new(&self.region, RingShape { offset, slots, id, dir })
        });
        let Some(view) = view else {
            return self.is_full(&format!("all {} rings are in use", pool.count), "ring_num");
        };
        self.touch(view.shape().offset, RingShape::bytes(slots) as u64);
        view.format();
        Ok(view)
    }

    /// Allocates a buffer for each slot of a new ring.
    pub(crate) fn fill_ring(&mut self, view: &RingView) -> Result<(), Refusal> {
        let n = view.slots().slots().get();
        let Some(bufs) = self.bufs.alloc_many(n) else {
            let why = format!("{n} more buffers are needed, {} are free", self.bufs.available());
            return self.is_full(&why, "buf_num");
        };
        self.charge_buffers();
        for (raw, idx) in bufs.into_iter().enumerate() {
            if let Some(p) = view.slots().slots().pos(raw as u32) {
                view.slots().set_buf_idx(p, idx);
            }
        }
        Ok(())
    }

    /// Allocates one buffer.
    pub(crate) fn take_buf(&mut self) -> Result<BufIdx, Refusal> {
        match self.bufs.alloc() {
            Some(idx) => {
                self.charge_buffers();
                Ok(idx)
            }
            None => self.is_full("all buffers are in use", "buf_num"),
        }
    }

    /// Frees the ring object. Its buffers are freed separately.
    pub(crate) fn free_ring(&mut self, shape: &RingShape) {
        if let Some(object) = self.region.geometry().rings.index_of(shape.offset) {
            self.rings.free(object);
        }
    }

    /// Allocates a session's `netmap_if`, that with the number `wanted` if it is free, with a list of up to `extra`
    /// extra buffers. Returns it, its offset, and the number of extra buffers in the list.
    pub(crate) fn create_iface(
        &mut self,
        shape: &IfaceShape,
        extra: u32,
        wanted: Option<u32>,
    ) -> Result<(Iface, u64, u32), Refusal> {
        let pool = self.region.geometry().ifs;
        if shape.rings.len() > Iface::max_rings(pool.size) {
            let why = format!("{} rings do not fit {} bytes of a session", shape.rings.len(), pool.size);
            return self.is_full(&why, "if_size");
        }
        let object = wanted.and_then(|number| self.ifs.alloc_at(number)).or_else(|| self.ifs.alloc());
        let made = object.and_then(|object| {
            let offset = pool.object(object)?;
            Some((Iface::new(&self.region, offset)?, offset))
        });
        let Some((iface, offset)) = made else {
            return self.is_full(&format!("all {} sessions are in use", pool.count), "if_num");
        };
        self.touch(offset, pool.size.into());
        iface.format(shape);
        let mut got = 0;
        for _ in 0..extra {
            let Some(idx) = self.bufs.alloc() else { break };
            self.touch_buf(idx);
            self.charge_buffers();
            self.region.frame(idx).write(0, &iface.bufs_head().0.to_ne_bytes());
            iface.set_bufs_head(idx);
            got += 1;
        }
        self.extra += got;
        Ok((iface, offset, got))
    }

    /// Frees a session's `netmap_if`, and leaves the buffers in its list to [`RegionRecord::reclaim`].
    pub(crate) fn free_iface(&mut self, iface: &Iface, offset: u64, extra: u32) {
        let list = self.extra_list(iface);
        self.bufs.leave(list);
        self.extra = self.extra.saturating_sub(extra);
        if let Some(object) = self.region.geometry().ifs.index_of(offset) {
            self.ifs.free(object);
        }
    }

    /// Returns the amounts that its user is charged beside its memory.
    pub(crate) fn amounts(&self) -> Amounts {
        Amounts::region(self.region.geometry().bufs.count)
    }

    /// Threads of the daemon are to read and write packets in the region's buffers: those of a switch, of a mediated
    /// interface or of a copied end of a pipe; or syncs of the node. Which buffers, a program decides that writes the
    /// slots. So from now on all that were ever allocated are charged as if they were filled, and no others are valid.
    pub(crate) fn fill(&mut self) {
        self.is_filled = true;
        self.charge_buffers();
    }

    /// The amounts of so many further buffers; `fills`: the region is to be filled.
    pub(crate) fn of_buffers(&self, count: u32, fills: bool) -> Amounts {
        let before = if self.is_filled { 0 } else { self.bufs.fresh() };
        let charged = if self.is_filled || fills { before + self.bufs.fresh_of(count) } else { 0 };
        Amounts::buffers((charged, self.region.limits().buf_size))
    }

    /// The amounts of so many extra buffers.
    pub(crate) fn of_extra_buffers(&self, count: u32) -> Amounts {
        if self.is_filled {
            return self.of_buffers(count, false);
        }
        Amounts::extra_buffers(count, self.region.limits().buf_size)
    }

    /// Charges the buffers that were allocated, if they can be filled.
    fn charge_buffers(&self) {
        if self.is_filled && self.file.is_some() {
            let (bufs, fresh) = (self.region.geometry().bufs, self.bufs.fresh());
            self.region.allow_buffers(fresh);
            self.touch(bufs.offset, u64::from(fresh) * u64::from(bufs.size));
        }
    }

    /// The daemon touches these bytes of the file.
    fn touch(&self, offset: u64, bytes: u64) {
        self.file.iter().for_each(|file| _ = file.touch(offset, bytes));
    }

    /// The daemon touches the first word of a buffer.
    fn touch_buf(&self, idx: BufIdx) {
        self.region.geometry().bufs.object(idx.0).into_iter().for_each(|offset| self.touch(offset, 1));
    }

    /// Returns the list as the program left it. It may have a loop or indexes that are no buffer or another port's, so
    /// it is read up to the first invalid index, and for at most as many steps as buffers are allocated.
    fn extra_list(&self, iface: &Iface) -> Vec<BufIdx> {
        let mut list = Vec::new();
        let mut idx = iface.bufs_head();
        while self.region.limits().index_ok(idx) && list.len() < self.bufs.allocated() as usize {
            list.push(idx);
            let mut next = [0; 4];
            self.region.frame(idx).read(0, &mut next);
            idx = BufIdx(u32::from_ne_bytes(next));
        }
        list
    }

    /// Frees the buffers of rings that no other port can hold.
    pub(crate) fn free_bufs(&mut self, found: &[BufIdx]) {
        self.bufs.reclaim(found.iter().copied(), []);
    }

    /// Leaves the buffers of closed rings, which other rings may hold, too, to [`RegionRecord::reclaim`].
    pub(crate) fn leave_bufs(&mut self, found: impl IntoIterator<Item = BufIdx>) {
        self.bufs.leave(found);
    }

    /// Frees the buffers that were left and that no ring holds.
    pub(crate) fn reclaim(&mut self, buffers_in_use: &[BufIdx]) {
        self.bufs.reclaim_left(buffers_in_use.iter().copied());
    }

    pub(crate) fn census(&self, buffers_in_use: &[BufIdx]) -> BufUsage {
        self.bufs.usage(buffers_in_use.iter().copied(), self.extra)
    }

    /// Allocated objects: `netmap_if` objects, rings.
    pub(crate) fn allocated(&self) -> (u32, u32) {
        (self.ifs.allocated(), self.rings.allocated())
    }

    /// All slot positions of a ring.
    pub(crate) fn positions(view: &RingView) -> impl Iterator<Item = Pos> {
        let slots = view.slots().slots();
        (0..slots.get()).filter_map(move |raw| slots.pos(raw))
    }
}

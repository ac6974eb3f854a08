// SPDX-License-Identifier: BSD-2-Clause
//! A region as the daemon hands it to its successor.

use std::os::fd::AsFd;
use std::sync::{Arc, Weak};

use serde::{Deserialize, Serialize};
use unetmap_mem::{BufPool, Geometry, ObjectPool, PoolShape, Region, SavedBufs};

use super::{DeviceRest, RegionKey, RegionRecord, Scope};
use crate::descriptors::{FdIndex, Incoming, Outgoing, invalid};
use crate::refusal::{Refusal, refuse_lack};
use crate::shared_files::{FileKey, SharedFiles};
use crate::user_arena::{Extent, UserArena};

/// First indexes, and those after the last.
type Ranges = Vec<(u32, u32)>;

/// A region. Pools are (objects, bytes of one object).
#[derive(Serialize, Deserialize)]
pub(crate) struct SavedRegion {
    key: RegionKey,
    mem_id: u16,
    scope: Scope,
    #[serde(default)]
    payer: Option<u32>,
    name: String,
    ifs: (u32, u32),
    rings: (u32, u32),
    bufs: (u32, u32),
    fd: FdIndex,
    /// Where it begins in its user's arena, if it is in one.
    at: Option<u64>,
    device: Option<DeviceRest>,
    node: Option<u32>,
    used_ifs: Vec<u32>,
    used_rings: Vec<u32>,
    /// The first buffer that was never allocated.
    fresh_buf: u32,
    /// Ranges of buffers that are allocated, and of those among them that are left to be freed.
    used_bufs: Ranges,
    left_bufs: Ranges,
    #[serde(default)]
    is_filled: bool,
    sessions: u32,
    persistent_ports: u32,
    retired_ports: u32,
    extra: u32,
    /// Whose touched pages are charged.
    file: Option<FileKey>,
}

impl RegionRecord {
    pub(crate) fn save<'a>(&'a self, fds: &mut Outgoing<'a>) -> SavedRegion {
        let (geometry, pool) = (self.region.geometry(), |shape: PoolShape| (shape.count, shape.size));
        let SavedBufs { fresh, allocated, left } = self.bufs.save();
        SavedRegion {
            key: self.key,
            mem_id: self.mem_id,
            scope: self.scope,
            payer: Some(self.payer),
            name: self.name.clone(),
            ifs: pool(geometry.ifs),
            rings: pool(geometry.rings),
            bufs: pool(geometry.bufs),
            fd: fds.add(&self.fd),
            at: self.extent.as_ref().map(Extent::base),
            device: self.device,
            node: self.node,
            used_ifs: self.ifs.in_use(),
            used_rings: self.rings.in_use(),
            fresh_buf: fresh,
            used_bufs: allocated,
            left_bufs: left,
            is_filled: self.is_filled,
            sessions: self.sessions,
            persistent_ports: self.persistent_ports,
            retired_ports: self.retired_ports,
            extra: self.extra,
            file: self.file.as_ref().map(|file| file.key()),
        }
    }
}

impl SavedRegion {
    /// The user in whose arena it is, if it is in one.
    pub(crate) fn arena_of(&self) -> Option<u32> {
        self.at.map(|_| self.scope.uid)
    }

    /// Maps the region, and rebuilds its record. `arena` is that of its user.
    pub(crate) fn restore(
        self,
        arena: Option<&Arc<UserArena>>,
        files: &SharedFiles,
        fds: &mut Incoming,
    ) -> Result<RegionRecord, Refusal> {
        let geometry =
            Geometry::at(self.at.unwrap_or(0), self.ifs, self.rings, self.bufs).or_else(|why| invalid(&why))?;
        let extent = match self.at {
            None => None,
            Some(at) => match arena.and_then(|arena| arena.restore(at, geometry.bytes() - at)) {
                None => return invalid("the place of a region"),
                extent => extent,
            },
        };
        let fd = fds.take(self.fd)?;
        let region = Region::attach(fd.as_fd(), geometry).or_else(|e| refuse_lack("a region cannot be mapped", &e))?;
        let saved = SavedBufs { fresh: self.fresh_buf, allocated: self.used_bufs, left: self.left_bufs };
        let ifs = ObjectPool::restore(geometry.ifs.count, &self.used_ifs);
        let rings = ObjectPool::restore(geometry.rings.count, &self.used_rings);
        let bufs = BufPool::restore(geometry.bufs.count, &saved);
        let Some(((ifs, rings), bufs)) = ifs.zip(rings).zip(bufs) else { return invalid("a region's pools") };
        let record = RegionRecord {
            key: self.key,
            mem_id: self.mem_id,
            scope: self.scope,
            payer: self.payer.unwrap_or(self.scope.uid),
            name: self.name,
            region,
            fd,
            extent,
            device: self.device,
            node: self.node,
            ifs,
            rings,
            bufs,
            is_filled: self.is_filled,
            sessions: self.sessions,
            persistent_ports: self.persistent_ports,
            retired_ports: self.retired_ports,
            extra: self.extra,
            charge: None,
            file: self.file.map(|key| files.existing(key)).transpose()?,
            locked: Weak::new(),
        };
        record.charge_buffers();
        Ok(record)
    }
}

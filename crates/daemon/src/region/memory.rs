// SPDX-License-Identifier: BSD-2-Clause
//! The memory of a new region, and which of its pages a request will touch.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use unetmap_abi::NmreqRegister;
use unetmap_core::errno::EINVAL;
use unetmap_mem::{Geometry, PoolShape, Region, RingShape};

use super::sizes::{Scope, Sizes};
use crate::budget::{Amounts, PAGE, Resource};
use crate::ledger::Charge;
use crate::refusal::{Refusal, refuse, refuse_lack};
use crate::shape::{EndpointShape, MAX_PIPE_RINGS};
use crate::shared_files::{SharedFile, Uncharged};
use crate::tuning::region::{MAX_EXTRA, MAX_EXTRA_BYTES_OF_USER, PREPARED_FROM, PREPARED_SLICE};
use crate::user_arena::{Extent, UserArena};

/// The memory of a region that has no record yet.
pub(crate) struct NewMemory {
    pub(super) region: Region,
    pub(crate) fd: OwnedFd,
    /// Its part of the user's arena; `None`: it has a file of its own.
    pub(super) extent: Option<Extent>,
    /// The charge for it; `None`: nothing yet.
    pub(crate) file: Option<Arc<SharedFile>>,
}

impl NewMemory {
    /// Creates it: in `arena` if one is given and has room, else in a file of its own.
    pub(crate) fn create(name: &str, sizes: Sizes, arena: Option<&Arc<UserArena>>) -> Result<NewMemory, Refusal> {
        let at = |base| {
            Geometry::at(base, sizes.ifs, sizes.rings, sizes.bufs)
                .or_else(|why| refuse(EINVAL, format!("the region's sizes are out of bounds: {why}")))
        };
        let bytes = at(0)?.bytes();
        let extent = arena.and_then(|arena| arena.allocate(bytes));
        let geometry = at(extent.as_ref().map_or(0, Extent::base))?;
        let made = match &extent {
            Some(extent) => extent
                .arena()
                .as_fd()
                .try_clone_to_owned()
                .and_then(|fd| Ok((Region::attach(fd.as_fd(), geometry)?, fd))),
            None => Region::create(name, geometry),
        };
        let (region, fd) = made.or_else(|e| refuse_lack("no memory for another region", &e))?;
        let file = extent.as_ref().and_then(|extent| extent.arena().file().cloned());
        Ok(NewMemory { region, fd, extent, file })
    }
}

/// The memory that a request touches in a region that it creates, as far as the request tells.
#[derive(Clone, Copy)]
pub(crate) struct Need {
    rings: u32,
    /// Of each ring.
    ring_bytes: u64,
    /// Buffers that are allocated before the extra ones.
    bufs: u32,
    extra: u32,
    extra_bytes: u64,
}

impl Need {
    /// Of REGISTER, for a user with a budget or without.
    pub(crate) fn of(request: &NmreqRegister, is_pipe: bool, has_budget: bool) -> Option<Need> {
        let shape = EndpointShape::requested(request, MAX_PIPE_RINGS).ok()?;
        let (endpoints, rings) = if is_pipe { (2, 2 * shape.all_rings()) } else { (1, shape.all_rings()) };
        // Of a pipe one end's slots are the other's; placeholders and two reserved buffers.
        let bufs = shape.all_slots() + endpoints * shape.all_rings() + 2;
        let extra_bytes = if has_budget { MAX_EXTRA_BYTES_OF_USER } else { u64::from(MAX_EXTRA) * PAGE };
        let (ring_bytes, extra) = (RingShape::bytes(shape.longest()) as u64, request.nr_extra_bufs.min(MAX_EXTRA));
        Some(Need { rings, ring_bytes, bufs, extra, extra_bytes })
    }

    /// Bytes of the pages.
    fn bytes(&self) -> u64 {
        u64::from(self.rings) * self.ring_bytes.next_multiple_of(PAGE)
            + self.extra_bytes.min(u64::from(self.extra) * PAGE)
    }

    /// Whether touching it takes so long that others should not wait for it.
    pub(crate) fn is_large(&self) -> bool {
        self.bytes() >= PREPARED_FROM
    }

    /// Most that a user is charged meanwhile.
    pub(crate) fn amounts(&self) -> Amounts {
        Amounts::of(Resource::Memory, self.bytes()).and(Amounts::of(Resource::Descriptors, 1))
    }

    /// The parts of a new region, as offsets and bytes.
    fn parts(&self, geometry: &Geometry) -> Vec<(u64, u64)> {
        let objects = |pool: &PoolShape, range: std::ops::Range<u32>, bytes: u64| {
            let (pool, size) = (*pool, u64::from(pool.size));
            range.filter_map(move |n| pool.object(n)).map(move |offset| (offset, bytes.min(size))).collect::<Vec<_>>()
        };
        let mut parts = objects(&geometry.rings, 0..self.rings, self.ring_bytes);
        let buf = u64::from(geometry.bufs.size);
        let extra = u64::from(self.extra).min(self.extra_bytes / buf.clamp(1, PAGE)) as u32;
        // Of a buffer only the first word is written.
        parts.extend(objects(&geometry.bufs, self.bufs..self.bufs.saturating_add(extra), buf.min(PAGE)));
        merged(parts)
    }
}

/// Joins parts that touch each other.
fn merged(parts: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (at, bytes) in parts {
        match merged.last_mut() {
            Some((from, len)) if *from + *len == at => *len += bytes,
            _ => merged.push((at, bytes)),
        }
    }
    merged
}

/// The memory of a region that a request may create.
#[derive(Default)]
pub(crate) enum RegionMemory {
    /// It is touched as it is used.
    #[default]
    AsUsed,
    /// The request will touch so much of it, which is to be prepared.
    Large(Need),
    /// It is ready, and taken if the region has the same owner and sizes.
    Prepared(Box<Prepared>),
    /// It must be prepared: creating the region was refused for that reason, and nothing has changed.
    Wanted(Box<Prepared>),
}

impl RegionMemory {
    /// Memory that is ready, when its request goes on.
    pub(crate) fn for_its_request(mut prepared: Box<Prepared>) -> RegionMemory {
        prepared.charge = None;
        RegionMemory::Prepared(prepared)
    }
}

/// Memory that is made resident for a request that waits for it.
pub(crate) struct Prepared {
    memory: NewMemory,
    pub(crate) scope: Scope,
    /// For its descriptor, until the request goes on, and is checked and charged as any other.
    charge: Option<Charge>,
    /// Bytes that are charged with the file for it.
    charged: u64,
    /// Parts that are left.
    parts: Vec<(u64, u64)>,
    /// The time that it has taken.
    time: Duration,
    /// Exists as often as there is such memory.
    _counted: Arc<()>,
}

impl Prepared {
    pub(crate) fn new(memory: NewMemory, scope: Scope, charge: Charge, need: &Need, counted: &Arc<()>) -> Prepared {
        let mut parts = need.parts(memory.region.geometry());
        // Whatever the request touches of them, and whatever becomes of it, they are in the file until it ends.
        let charge_of = |file: &Arc<SharedFile>| parts.iter().map(|(at, bytes)| file.touch(*at, *bytes)).sum();
        let charged = memory.file.as_ref().map_or(0, charge_of);
        parts.reverse();
        Prepared {
            memory,
            scope,
            charge: Some(charge),
            charged,
            parts,
            time: Duration::ZERO,
            _counted: counted.clone(),
        }
    }

    /// Makes some of it resident; returns whether it is complete. What cannot be made so is left to the request.
    pub(crate) fn work(&mut self) -> bool {
        let (start, mut left) = (Instant::now(), PREPARED_SLICE);
        while let Some((at, bytes)) = self.parts.pop() {
            let now = bytes.min(left);
            self.memory.region.populate_bytes(at, now);
            if bytes > now {
                self.parts.push((at + now, bytes - now));
            }
            left = left.saturating_sub(now.max(PAGE));
            if left == 0 {
                break;
            }
        }
        self.time += start.elapsed();
        self.parts.is_empty()
    }

    /// The memory is charged no more until the result is dropped, when its request has taken it: the request is checked
    /// as any other.
    pub(crate) fn without_charge(&self) -> Option<Uncharged> {
        self.memory.file.as_ref().map(|file| file.without(self.charged))
    }

    /// The thread's time, which counts as its user's.
    pub(crate) fn time(&self) -> Duration {
        self.time
    }

    /// Returns the memory for a region of this owner and these sizes, in an arena or not.
    pub(crate) fn into_memory(self, scope: Scope, sizes: Sizes, in_arena: bool) -> Option<NewMemory> {
        let has = self.memory.region.geometry();
        let fits = Geometry::at(has.ifs.offset, sizes.ifs, sizes.rings, sizes.bufs).is_ok_and(|wanted| wanted == *has);
        (fits && self.scope == scope && self.memory.extent.is_some() == in_arena).then_some(self.memory)
    }
}

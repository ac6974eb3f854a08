// SPDX-License-Identifier: BSD-2-Clause
//! The owner of a region, and the sizes of its pools.

use serde::{Deserialize, Serialize};
use unetmap_core::errno::EINVAL;
use unetmap_mem::{Geometry, RingShape, Slots};

use crate::refusal::{Refusal, refuse};
use crate::shape::EndpointShape;
use crate::tuning::region::FOUR_PIPES_RINGS;

/// The owner of names and region numbers. The same name in another scope names something else.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) struct Scope {
    pub(crate) uid: u32,
    /// The network namespace, for names that depend on interfaces. Otherwise 0.
    pub(crate) netns: u64,
}

/// The pools of a region, each as (objects, bytes of one object): `netmap_if` objects, rings and buffers. The names are
/// those of netmap's knobs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) ifs: (u32, u32),
    pub(crate) rings: (u32, u32),
    pub(crate) bufs: (u32, u32),
}

impl Sizes {
    /// Of regions in which interfaces are, but for the number of buffers: rings of up to 4096 slots.
    pub(crate) const DEFAULT: Sizes = Sizes { ifs: (512, 4608), rings: (1100, 17 << 12), bufs: (163_840, 2048) };
    /// Of other regions, in less than 64 MB of address space: the rings of 64 pipes, of up to 2288 slots unless the
    /// first has longer ones, and buffers for 12 pipes of 1024 slots or for all of 200. Pages that are never used take
    /// no memory.
    pub(crate) const PRIVATE: Sizes = Sizes { ifs: (256, 4608), rings: (264, 9 << 12), bufs: (25_856, 2048) };

    /// Returns these sizes, enlarged where needed for `rings` rings, for `longest` slots in a ring and for `bufs`
    /// buffers, up to the bounds of a region. Beyond these, allocating from the region fails.
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

    /// Returns these sizes, enlarged where needed for a pipe with an endpoint of this shape.
    pub(crate) fn with_pipe(self, endpoint: &EndpointShape) -> Sizes {
        let rings = 2 * endpoint.all_rings();
        // A buffer for each slot that can be sent, a placeholder for each ring, and the two reserved ones.
        self.at_least(rings, endpoint.longest(), endpoint.all_slots() + rings + 2)
    }

    /// The bytes of a region of these sizes.
    pub(crate) fn bytes(self) -> Result<u64, Refusal> {
        let geometry = Geometry::new(self.ifs, self.rings, self.bufs);
        geometry.map_or_else(
            |why| refuse(EINVAL, format!("the region's sizes are out of bounds: {why}")),
            |g| Ok(g.bytes()),
        )
    }

    /// Returns the sizes of a region for a single interface with `rings` rings of `slots` slots in all.
    pub(crate) fn for_one_interface(self, rings: u32, slots: u32) -> Sizes {
        // Two of the buffers are reserved. A ring may have the maximum length.
        let ring_bytes = self.rings.1.max(Sizes::DEFAULT.rings.1);
        Sizes { ifs: (rings + 1, self.ifs.1), rings: (rings.max(2), ring_bytes), bufs: (slots + 2, self.bufs.1) }
    }

    /// Returns the sizes of a region for a switch port of this shape and `extra` extra buffers, with room for four
    /// pipes of the default size where these sizes allow it.
    pub(crate) fn for_switch_port(self, port: &EndpointShape, extra: u32) -> Sizes {
        let (rings, slots) = (port.all_rings(), port.all_slots());
        let needed = slots + rings + extra + 2;
        // Buffers at distances of a power of two map to few sets of the CPU caches, and a switch touches every packet
        // twice.
        let size = if self.bufs.1.is_power_of_two() { (self.bufs.1 + CACHE_LINE).min(65536) } else { self.bufs.1 };
        let usual = Sizes {
            ifs: self.ifs,
            rings: (self.rings.0.min(rings + FOUR_PIPES_RINGS), self.rings.1),
            bufs: (self.bufs.0.min(needed + FOUR_PIPES_RINGS * 1024), size),
        };
        usual.at_least(rings, port.longest(), needed)
    }
}

/// Bytes.
const CACHE_LINE: u32 = 64;

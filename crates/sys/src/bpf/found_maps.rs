// SPDX-License-Identifier: BSD-2-Clause
//! The maps of a loaded program.

use std::os::fd::OwnedFd;

/// The maps of a loaded program, which any process may have loaded.
#[derive(Debug)]
pub(crate) struct FoundMaps(pub(super) Vec<FoundMap>);

/// One of them.
#[derive(Debug)]
pub(super) struct FoundMap {
    pub(super) fd: OwnedFd,
    /// At most 15 bytes.
    pub(super) name: String,
    pub(super) shape: MapShape,
}

impl FoundMaps {
    /// Takes the map of this name and shape.
    pub(crate) fn take(&mut self, name: &str, shape: MapShape) -> Option<OwnedFd> {
        self.take_if(name, |found| found == shape)
    }

    /// Takes the map of this name and shape, with any number of elements.
    pub(crate) fn take_of_any_length(&mut self, name: &str, shape: MapShape) -> Option<OwnedFd> {
        self.take_if(name, |found| MapShape { elements: shape.elements, ..found } == shape)
    }

    /// Takes the only map, if it has this shape.
    pub(crate) fn take_alone(mut self, shape: MapShape) -> Option<OwnedFd> {
        self.0.pop().filter(|map| self.0.is_empty() && map.shape == shape).map(|map| map.fd)
    }

    pub(super) fn take_if(&mut self, name: &str, fits: impl Fn(MapShape) -> bool) -> Option<OwnedFd> {
        let at = self.0.iter().position(|map| map.name == name && fits(map.shape))?;
        Some(self.0.swap_remove(at).fd)
    }
}

/// The kind of a map (`enum bpf_map_type`), the bytes of its keys and values, and its number of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MapShape {
    pub(crate) kind: u32,
    pub(crate) key: u32,
    pub(crate) value: u32,
    pub(crate) elements: u32,
}

/// Values of `enum bpf_map_type`.
const PROG_ARRAY: u32 = 3;
const PERCPU_ARRAY: u32 = 6;
const XSKMAP: u32 = 17;

impl MapShape {
    /// An array of elements of this type, at `elements` indexes.
    pub(crate) const fn array<T>(elements: u32) -> MapShape {
        MapShape { kind: 2, key: 4, value: size_of::<T>() as u32, elements }
    }

    /// The same, with an array for each processor.
    pub(crate) const fn per_processor<T>(elements: u32) -> MapShape {
        MapShape { kind: PERCPU_ARRAY, ..MapShape::array::<T>(elements) }
    }

    /// A map of programs.
    pub(crate) const fn programs(elements: u32) -> MapShape {
        MapShape { kind: PROG_ARRAY, ..MapShape::array::<u32>(elements) }
    }

    /// A map of AF_XDP sockets.
    pub(crate) const fn sockets(elements: u32) -> MapShape {
        MapShape { kind: XSKMAP, ..MapShape::array::<u32>(elements) }
    }
}

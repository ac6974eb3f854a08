// SPDX-License-Identifier: BSD-2-Clause
//! The shape of a port: all that its program's pointers depend on.

use crate::control::binding::{BackendKind, Binding, BoundPool, BoundRing, DOORBELL_LATER, geometry};

/// Returns the numbers of the port's `netmap_if` and of the first of the rings that were created with it; `is_second`:
/// the port is the second of two ends, which have as many rings.
pub(crate) fn first_objects(binding: &Binding, is_second: bool) -> (u32, u32) {
    let layout = geometry(&binding.head.pools);
    let iface = layout.ifs.index_of(binding.head.if_offset).unwrap_or(0);
    let first = binding.rings.first().and_then(|ring| layout.rings.index_of(ring.offset)?.checked_sub(ring.state));
    let before = if is_second { binding.head.states } else { 0 };
    (iface, first.and_then(|first| first.checked_sub(before)).unwrap_or(0))
}

/// Compares two bindings, which may be at different places of their files; `needs_iface`: the program has the place of
/// its `netmap_if`.
///
/// # Errors
/// The first difference, in words.
pub(crate) fn same_shape(old: &Binding, new: &Binding, needs_iface: bool) -> Result<(), String> {
    let sizes = |binding: &Binding| (binding.rings.len(), binding.head.states, binding.head.page_bytes);
    same("rings, states and bytes of its channels", sizes(new), sizes(old))?;
    same("flags", new.head.flags, old.head.flags)?;
    same("pages at", new.head.page_offsets, old.head.page_offsets)?;
    for (was, is) in old.rings.iter().zip(&new.rings) {
        let (was, is) = (comparable(was, old), comparable(is, new));
        let name = format!("{} ring {}", if was.dir == 0 { "transmit" } else { "receive" }, was.id);
        same(&format!("slots of {name}"), is.slots, was.slots)?;
        same(&format!("{name} at byte"), is.offset, was.offset)?;
        same(&format!("the peer's ring of {name} at byte"), is.peer_offset, was.peer_offset)?;
        if is != was {
            return Err(format!("{name} is of another kind"));
        }
    }
    let pools = |binding: &Binding| {
        let base = binding.head.pools[0].offset;
        binding.head.pools.map(|BoundPool { offset, count, size }| (offset.wrapping_sub(base), count, size))
    };
    same("a region of pools", pools(new), pools(old))?;
    let mirror =
        |binding: &Binding| binding.head.mirror_pools.map(|BoundPool { offset, count, size }| (offset, count, size));
    same("a mirror of pools", mirror(new), mirror(old))?;
    let place = |binding: &Binding| binding.head.if_offset.wrapping_sub(binding.head.pools[0].offset);
    if needs_iface {
        same("its netmap_if at byte", place(new), place(old))?;
    }
    Ok(())
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, is: T, was: T) -> Result<(), String> {
    if is == was { Ok(()) } else { Err(format!("{what} {is:?}, which was {was:?}")) }
}

/// Returns a ring without what a port does not depend on.
fn comparable(ring: &BoundRing, binding: &Binding) -> BoundRing {
    let base = binding.head.pools[0].offset;
    // Of a monitor's ring it is in another file.
    let is_elsewhere = ring.peer_offset == 0 || ring.backend == BackendKind::Monitor as u32;
    BoundRing {
        offset: ring.offset.wrapping_sub(base),
        peer_offset: if is_elsewhere { ring.peer_offset } else { ring.peer_offset.wrapping_sub(base) },
        features: ring.features & !DOORBELL_LATER,
        // On a receive ring a buffer, which is replaced.
        placeholder_or_longest: if ring.dir == 0 { ring.placeholder_or_longest } else { 0 },
        ..*ring
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::binding::BindingHead;

    /// A port whose second and later objects are its own, in a region that begins at `base`.
    fn binding(base: u64) -> Binding {
        let pool = |offset, count, size| BoundPool { offset: base + offset, count, size };
        let pools = [pool(0, 10, 1024), pool(12288, 20, 4096), pool(94208, 100, 2048)];
        let ring = |number: u64, dir| BoundRing {
            offset: base + 12288 + number * 4096,
            peer_offset: if dir == 1 { base + 12288 + 4096 } else { 0 },
            slots: 64,
            state: u32::from(dir),
            dir,
            placeholder_or_longest: 7,
            ..BoundRing::default()
        };
        let head = BindingHead { pools, if_offset: base + 2048, states: 2, rings: 2, ..BindingHead::default() };
        Binding { head, rings: vec![ring(3, 0), ring(4, 1)] }
    }

    #[test]
    fn the_first_objects_are_those_of_the_first_end() {
        assert_eq!(first_objects(&binding(0), false), (2, 3));
        assert_eq!(first_objects(&binding(1 << 20), true), (2, 1));
        // Not so many rings lie before it: the number is only a hint.
        let mut other = binding(0);
        other.head.states = 9;
        assert_eq!(first_objects(&other, true), (2, 0));
    }

    #[test]
    fn a_port_has_the_same_shape_at_another_place_of_its_file() {
        let mut moved = binding(1 << 20);
        moved.rings[1].placeholder_or_longest = 9;
        moved.rings[0].features = DOORBELL_LATER;
        (moved.head.session, moved.head.key) = (5, 6);
        assert_eq!(same_shape(&binding(0), &moved, true), Ok(()));
    }

    #[test]
    fn another_shape_is_told_in_words() {
        let differs = |change: fn(&mut Binding)| {
            let mut other = binding(4096);
            change(&mut other);
            same_shape(&binding(0), &other, true).unwrap_err()
        };
        assert_eq!(differs(|b| b.rings[0].slots = 32), "slots of transmit ring 0 32, which was 64");
        assert_eq!(differs(|b| b.rings[1].offset += 4096), "receive ring 0 at byte 32768, which was 28672");
        assert_eq!(differs(|b| b.head.if_offset -= 1024), "its netmap_if at byte 1024, which was 2048");
        assert_eq!(differs(|b| b.rings[0].placeholder_or_longest = 9), "transmit ring 0 is of another kind");
        assert!(differs(|b| b.head.pools[2].count = 99).starts_with("a region of pools ["));
        let mut other = binding(4096);
        other.head.if_offset -= 1024;
        assert_eq!(same_shape(&binding(0), &other, false), Ok(()));
        assert!(differs(|b| _ = b.rings.pop()).starts_with("rings, states and bytes of its channels (1, "));
    }
}

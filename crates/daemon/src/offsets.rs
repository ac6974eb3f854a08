// SPDX-License-Identifier: BSD-2-Clause
//! The option OFFSETS: packets that begin behind the start of their buffers.
//!
//! The session that binds a ring first sets its offsets. Sessions that share the ring later must fit these.

use unetmap_abi::NmreqOptOffsets;
use unetmap_core::errno::EINVAL;
use unetmap_mem::Offsets;

use crate::refusal::{Refusal, refuse};

/// Where packets begin in the buffers of a ring, validated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OffsetLayout {
    pub(crate) offsets: Offsets,
    /// The offset of every slot when the ring is bound.
    pub(crate) initial: u32,
    /// Bytes of each buffer that received packets must leave free.
    pub(crate) headroom: u32,
}

impl OffsetLayout {
    /// Validates the option for buffers of `buffer` bytes.
    pub(crate) fn validate(option: &NmreqOptOffsets, buffer: u32) -> Result<OffsetLayout, Refusal> {
        let (bits, max, initial) = (option.nro_offset_bits, option.nro_max_offset, option.nro_initial_offset);
        let mask = match bits {
            0 | 64 => u64::MAX,
            1..64 => (1 << bits) - 1,
            _ => return refuse(EINVAL, format!("an offset has at most 64 bits, not {bits}")),
        };
        let Some(most) = u32::try_from(max).ok().filter(|most| *most <= buffer) else {
            return refuse(EINVAL, format!("the largest offset is at most the size of a buffer, {buffer}, not {max}"));
        };
        if max & mask != max {
            return refuse(EINVAL, format!("{bits} bits cannot hold the largest offset, {max}"));
        }
        let Some(initial) = u32::try_from(initial).ok().filter(|initial| *initial <= most) else {
            return refuse(EINVAL, format!("the first offset, {initial}, is larger than the largest, {max}"));
        };
        // Bytes that slots which share a buffer leave to each other.
        let gap = u32::try_from(option.nro_min_gap).unwrap_or(u32::MAX);
        let gap = if gap == 0 { buffer } else { gap };
        Ok(OffsetLayout {
            offsets: Offsets { mask, max: most },
            initial,
            headroom: most.max(buffer.saturating_sub(gap)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn option(bits: u32, max: u64, initial: u64, gap: u64) -> NmreqOptOffsets {
        NmreqOptOffsets {
            nro_offset_bits: bits,
            nro_max_offset: max,
            nro_initial_offset: initial,
            nro_min_gap: gap,
            ..Default::default()
        }
    }

    #[test]
    fn the_option_is_validated() {
        let layout = |bits, max, initial, gap| {
            OffsetLayout::validate(&option(bits, max, initial, gap), 2048).map_err(|r| r.errno)
        };
        let good =
            |mask, max, initial, headroom| Ok(OffsetLayout { offsets: Offsets { mask, max }, initial, headroom });
        assert_eq!(layout(0, 0, 0, 0), good(u64::MAX, 0, 0, 0));
        assert_eq!(layout(64, 2048, 2048, 0), good(u64::MAX, 2048, 2048, 2048));
        assert_eq!(layout(8, 255, 10, 0), good(255, 255, 10, 255));
        assert_eq!(layout(16, 100, 0, 1500), good(65535, 100, 0, 548));
        assert_eq!(layout(16, 100, 0, u64::MAX), good(65535, 100, 0, 100));
        for (bits, max, initial) in
            [(65, 0, 0), (u32::MAX, 0, 0), (0, 2049, 0), (0, u64::MAX, 0), (8, 256, 0), (1, 2, 0), (0, 10, 11)]
        {
            assert_eq!(layout(bits, max, initial, 0), Err(EINVAL), "{bits} {max} {initial}");
        }
        assert_eq!(layout(0, 10, u64::MAX, 0), Err(EINVAL));
    }
}

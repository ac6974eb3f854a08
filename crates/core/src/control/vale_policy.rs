//! The policy of a switch port, as the control protocol encodes it: VLANs, rate limits, filters.

use std::fmt;

use crate::control::nic::Filter;

/// Valid VLAN numbers: 1..=4094.
pub const VLAN_IDS: std::ops::RangeInclusive<u16> = 1..=4094;

/// A set of VLANs.
#[derive(Clone, PartialEq, Eq)]
pub struct VlanSet(Box<[u64; 64]>);

impl VlanSet {
    /// Bytes of its encoding.
    pub const BYTES: usize = 512;

    /// Returns the set of all valid VLANs in `ranges`.
    pub fn new(ranges: impl IntoIterator<Item = std::ops::RangeInclusive<u16>>) -> VlanSet {
        let mut set = VlanSet(Box::new([0; 64]));
        for vlan in ranges.into_iter().flatten().filter(|vlan| VLAN_IDS.contains(vlan)) {
            set.0[usize::from(vlan / 64)] |= 1 << (vlan % 64);
        }
        set
    }

    /// Whether the set contains `vlan`.
    #[inline]
    pub fn has(&self, vlan: u16) -> bool {
        self.0.get(usize::from(vlan / 64)).is_some_and(|word| word & 1 << (vlan % 64) != 0)
    }

    /// Returns the encoding that [`VlanSet::from_bytes`] parses.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Parses an encoding; `None` if it does not have [`VlanSet::BYTES`] bytes, is empty, or has a VLAN that is not valid.
    pub fn from_bytes(bytes: &[u8]) -> Option<VlanSet> {
        let mut set = VlanSet(Box::new([0; 64]));
        let words = bytes.as_chunks::<8>();
        if bytes.len() != VlanSet::BYTES {
            return None;
        }
        set.0.iter_mut().zip(words.0).for_each(|(word, bytes)| *word = u64::from_le_bytes(*bytes));
        let exist = !set.has(0) && !set.has(4095) && set.0.iter().any(|word| *word != 0);
        exist.then_some(set)
    }
}

impl fmt::Display for VlanSet {
    /// Writes ranges: `10,20-30`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut vlan, mut separator) = (*VLAN_IDS.start(), "");
        while vlan <= *VLAN_IDS.end() {
            if !self.has(vlan) {
                vlan += 1;
                continue;
            }
            let first = vlan;
            while self.has(vlan + 1) {
                vlan += 1;
            }
            write!(f, "{separator}{first}")?;
            if vlan > first {
                write!(f, "-{vlan}")?;
            }
            (vlan, separator) = (vlan + 1, ",");
        }
        Ok(())
    }
}

impl fmt::Debug for VlanSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VlanSet({self})")
    }
}

/// The VLANs that a port belongs to. A port without a mode is unrestricted: its frames keep their tags, and it receives
/// the frames of VLANs with a tag.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum VlanMode {
    /// The port belongs to this VLAN: its frames are untagged, and the switch assigns them to the VLAN.
    Access(u16),
    /// The port belongs to these VLANs: the tag of each frame selects one.
    Trunk(VlanSet),
}

impl VlanMode {
    /// Whether a port with this mode receives frames of VLAN `vlan` (0: untagged).
    #[inline]
    pub fn carries(&self, vlan: u16) -> bool {
        match self {
            VlanMode::Access(own) => *own == vlan,
            VlanMode::Trunk(all) => all.has(vlan),
        }
    }
}

/// A direction, seen from the switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// Frames that the port sends.
    In = 0,
    /// Frames that it receives.
    Out = 1,
}

/// How much a port may send or receive in a second. 0: no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RateLimit {
    /// Packets.
    pub packets: u64,
    /// Bits of their frames, without checksums and virtio-net headers.
    pub bits: u64,
}

/// Everything that is set for a port.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PortPolicy {
    /// Its VLANs.
    pub vlan: Option<VlanMode>,
    /// By [`Direction`].
    pub limits: [RateLimit; 2],
    /// Flooded packets (broadcast, multicast, and those to unknown addresses) that it may send in a second; 0: no limit.
    pub storm: u64,
    /// By [`Direction`]: packets that match pass.
    pub filters: [Option<Filter>; 2],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vlan_sets_encode_and_display() {
        let set = VlanSet::new([10..=10, 20..=30, 0..=1, 4094..=4095, 64..=64]);
        assert_eq!(set.to_string(), "1,10,20-30,64,4094");
        assert!(set.has(25) && !set.has(0) && !set.has(4095) && !set.has(9) && !set.has(u16::MAX));
        assert_eq!(VlanSet::from_bytes(&set.to_bytes()), Some(set));
        assert_eq!(VlanSet::from_bytes(&[0; 512]), None);
        assert_eq!(VlanSet::from_bytes(&[1; 511]), None);
        assert_eq!(VlanSet::from_bytes(&[0xff; 512]), None);
    }
}

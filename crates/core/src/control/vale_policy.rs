//! The policy of a switch port, as it is set over the control socket: VLANs, limits, filters.

use std::fmt;

use crate::control::nic::Filter;

/// VLANs that there are: 1..=4094.
pub const VLANS: std::ops::RangeInclusive<u16> = 1..=4094;

/// A set of VLANs.
#[derive(Clone, PartialEq, Eq)]
pub struct Vlans(Box<[u64; 64]>);

impl Vlans {
    /// Bytes that tell it.
    pub const BYTES: usize = 512;

    /// The VLANs of these ranges.
    pub fn new(ranges: impl IntoIterator<Item = std::ops::RangeInclusive<u16>>) -> Vlans {
        let mut set = Vlans(Box::new([0; 64]));
        for vlan in ranges.into_iter().flatten().filter(|vlan| VLANS.contains(vlan)) {
            set.0[usize::from(vlan / 64)] |= 1 << (vlan % 64);
        }
        set
    }

    /// Whether this one is among them.
    #[inline]
    pub fn has(&self, vlan: u16) -> bool {
        self.0.get(usize::from(vlan / 64)).is_some_and(|word| word & 1 << (vlan % 64) != 0)
    }

    /// The bytes that [`Vlans::from_bytes`] takes.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// `None`: the bytes are not [`Vlans::BYTES`], none is in the set, or one that does not exist.
    pub fn from_bytes(bytes: &[u8]) -> Option<Vlans> {
        let mut set = Vlans(Box::new([0; 64]));
        let words = bytes.as_chunks::<8>();
        if bytes.len() != Vlans::BYTES {
            return None;
        }
        set.0.iter_mut().zip(words.0).for_each(|(word, bytes)| *word = u64::from_le_bytes(*bytes));
        let exist = !set.has(0) && !set.has(4095) && set.0.iter().any(|word| *word != 0);
        exist.then_some(set)
    }
}

impl fmt::Display for Vlans {
    /// As people write it: `10,20-30`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut vlan, mut separator) = (*VLANS.start(), "");
        while vlan <= *VLANS.end() {
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

impl fmt::Debug for Vlans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Vlans({self})")
    }
}

/// Which VLANs a port is in. A port of which nothing is said is in all, and in none: its frames are what they are, and it
/// receives those of VLANs with a tag.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Vlan {
    /// In this one: its frames have no tag, and get it on the switch.
    Access(u16),
    /// In these: its frames have a tag that says which.
    Trunk(Vlans),
}

impl Vlan {
    /// Whether a port of which this is said receives frames of VLAN `vlan` (0: none).
    #[inline]
    pub fn carries(&self, vlan: u16) -> bool {
        match self {
            Vlan::Access(own) => *own == vlan,
            Vlan::Trunk(all) => all.has(vlan),
        }
    }
}

/// Which way, seen from the switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// What the port sends.
    In = 0,
    /// What it receives.
    Out = 1,
}

/// How much a port may send, or receives, in a second. 0: as much as it can.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limit {
    /// Packets.
    pub packets: u64,
    /// Bits of their frames, without checksums and virtio-net headers.
    pub bits: u64,
}

/// Everything that is set about a port.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Rules {
    /// Its VLANs.
    pub vlan: Option<Vlan>,
    /// By [`Direction`].
    pub limits: [Limit; 2],
    /// Packets to all (broadcast, multicast, and to addresses that are not known) that it may send in a second; 0: any.
    pub storm: u64,
    /// By [`Direction`]: packets that match pass.
    pub filters: [Option<Filter>; 2],
}

//! The grammar of port names.
//!
//! ```text
//! spec     = port [ pipe ] *( mode | "/" flags | "@" number ) [ options ]    mode and flags at most once each
//! port     = "netmap:" name | "vale" [ ident ] ":" ident
//! name     = interface name | ident
//! ident    = 1*( letter | digit | "_" )
//! pipe     = ( "{" | "}" ) ident                     master | slave
//! mode     = "^" [ number ] | "*" | "-" number       host rings | port and host rings | one pair of rings
//! flags    = 1*( "x" | "z" | "t" | "r" | "R" | "T" )
//! options  = 1*( "@" key ( ":" kv *( "," kv ) | "=" value ) )
//! kv       = key "=" value                           "-" and "_" are the same in a key
//! ```
//!
//! `@number` names a region. A `-` may be part of an interface's name: the ring suffix is the last `-` with only
//! digits behind it, unless an interface has the whole name.

use std::fmt;

mod options;
mod parse;

use crate::constants::{
    NR_EXCLUSIVE, NR_MONITOR_RX, NR_MONITOR_TX, NR_REG_ALL_NIC, NR_REG_NIC_SW, NR_REG_ONE_NIC, NR_REG_ONE_SW,
    NR_REG_SW, NR_RX_RINGS_ONLY, NR_TX_RINGS_ONLY, NR_ZCOPY_MON,
};
pub use options::{Conf, ExtMem, Offset, PortOptions};

/// `EINVAL`, the errno of each malformed name.
const EINVAL: i32 = 22;

/// The flag letters and their `NR_*` bits, in canonical order.
const FLAGS: [(char, u64); 6] = [
    ('x', NR_EXCLUSIVE),
    ('z', NR_ZCOPY_MON),
    ('t', NR_MONITOR_TX),
    ('r', NR_MONITOR_RX),
    ('R', NR_RX_RINGS_ONLY),
    ('T', NR_TX_RINGS_ONLY),
];

/// Who serves the port, or, for a pipe, its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PortKind {
    /// `netmap:`: an interface, or a name that pipes share.
    Netmap,
    /// `vale`: a port of a software switch.
    Vale,
}

/// The two ends of a pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PipeRole {
    /// `{`
    Master,
    /// `}`
    Slave,
}

impl PipeRole {
    /// The sign between the parent's name and the pipe's.
    pub const fn sign(self) -> char {
        match self {
            Self::Master => '{',
            Self::Slave => '}',
        }
    }
}

/// Which pipe of the parent, and which end of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PipeEnd {
    /// Which end.
    pub role: PipeRole,
    /// Name of the pipe: letters, digits and `_`, at least one.
    pub id: String,
}

/// Which rings of the port to bind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Rings {
    /// All of the port's own.
    #[default]
    AllNic,
    /// `^`: all host rings.
    Sw,
    /// `*`: both.
    NicSw,
    /// `-N`: the pair N, 0..4095.
    OneNic(u16),
    /// `^N`: the host pair N, 0..4095.
    OneSw(u16),
}

impl Rings {
    /// `NmreqRegister::nr_mode`: `NR_REG_*`.
    pub const fn nr_mode(self) -> u32 {
        match self {
            Self::AllNic => NR_REG_ALL_NIC,
            Self::Sw => NR_REG_SW,
            Self::NicSw => NR_REG_NIC_SW,
            Self::OneNic(_) => NR_REG_ONE_NIC,
            Self::OneSw(_) => NR_REG_ONE_SW,
        }
    }

    /// `NmreqRegister::nr_ringid`: 0..4095, and 0 where all rings are meant.
    pub const fn ring_id(self) -> u16 {
        match self {
            Self::OneNic(ring) | Self::OneSw(ring) => ring,
            Self::AllNic | Self::Sw | Self::NicSw => 0,
        }
    }
}

/// What a port name says.
///
/// Its `Display` is the canonical name that says the same, provided that no interface is called like this one and its
/// ring suffix together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PortSpec {
    /// The name in requests, `NmreqHeader::nr_name`: `ens3f0np0`, `lan{left`, `vale7:probe`. 1..=63 bytes.
    pub name: String,
    /// Who serves the port.
    pub kind: PortKind,
    /// The end of the pipe, where the port is one.
    pub pipe: Option<PipeEnd>,
    /// `name` without the pipe.
    pub parent: String,
    /// Which rings.
    pub rings: Rings,
    /// `NmreqRegister::nr_flags`: `NR_*`.
    pub flags: u64,
    /// `NmreqRegister::nr_mem_id`: number of the region, 0 = any.
    pub mem_id: u16,
    /// What stands behind the first `@` that is not a region's number.
    pub options: PortOptions,
}

impl PortSpec {
    /// Reads a port name, taking each `-N` for a ring suffix. No interface is looked up.
    pub fn parse(spec: &str) -> Result<Self, NameError> {
        Self::parse_with(spec, |_| false)
    }

    /// Reads a port name, asking `exists` whether an interface has the name in hand where that name has a `-`.
    pub fn parse_with(spec: &str, exists: impl Fn(&str) -> bool) -> Result<Self, NameError> {
        parse::Parser::new(spec, &exists).spec().map_err(|fault| NameError {
            spec: spec.to_owned(),
            at: fault.at,
            what: fault.what,
        })
    }

    /// `NmreqRegister::nr_mode`: `NR_REG_*`.
    pub const fn nr_mode(&self) -> u32 {
        self.rings.nr_mode()
    }

    /// `NmreqRegister::nr_ringid`: 0..4095.
    pub const fn ring_id(&self) -> u16 {
        self.rings.ring_id()
    }
}

impl fmt::Display for PortSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.kind == PortKind::Netmap {
            f.write_str("netmap:")?;
        }
        f.write_str(&self.name)?;
        match self.rings {
            Rings::AllNic => {}
            Rings::Sw => f.write_str("^")?,
            Rings::NicSw => f.write_str("*")?,
            Rings::OneNic(ring) => write!(f, "-{ring}")?,
            Rings::OneSw(ring) => write!(f, "^{ring}")?,
        }
        if self.flags != 0 {
            f.write_str("/")?;
            for (letter, _) in FLAGS.iter().filter(|(_, bit)| self.flags & bit != 0) {
                write!(f, "{letter}")?;
            }
        }
        if self.mem_id != 0 {
            write!(f, "@{}", self.mem_id)?;
        }
        self.options.fmt(f)
    }
}

impl std::str::FromStr for PortSpec {
    type Err = NameError;

    fn from_str(spec: &str) -> Result<Self, NameError> {
        Self::parse(spec)
    }
}

/// A port name that does not follow the grammar, and where it leaves it.
///
/// Its `Display` has three lines: what is wrong, the name, and a caret under the first wrong character.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameError {
    spec: String,
    at: usize,
    what: String,
}

impl NameError {
    /// The name as it was given.
    pub fn spec(&self) -> &str {
        &self.spec
    }

    /// Byte position in the name of the first wrong character, 0..=length; the length where something is missing.
    pub const fn at(&self) -> usize {
        self.at
    }

    /// What is wrong there.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// `EINVAL`.
    pub const fn errno(&self) -> i32 {
        EINVAL
    }
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A control character would move the caret, or worse: one visible character for each.
        let shown: String = self.spec.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        let column = self.spec[..self.at].chars().count();
        writeln!(f, "{shown}: {}", self.what)?;
        writeln!(f, "  {shown}")?;
        write!(f, "  {:column$}^", "")
    }
}

impl std::error::Error for NameError {}

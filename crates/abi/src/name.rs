// SPDX-License-Identifier: BSD-2-Clause
//! The grammar of port names.
//!
//! ```text
//! spec     = port [ pipe ] *( mode | "/" flags | "@" number ) [ options ]    mode and flags at most once each
//! port     = "netmap:" name | "vale" [ ident ] ":" ident
//! name     = interface name | ident
//! ident    = 1*( letter | digit | "_" )
//! pipe     = ( "{" | "}" ) ident                     master | slave
//! mode     = "^" [ number ] | "*" | "-" number       host rings | port and host rings | one pair of rings
//! flags    = 1*( "x" | "d" | "z" | "t" | "r" | "R" | "T" )
//! options  = 1*( "@" key ( ":" kv *( "," kv ) | "=" value ) )
//! kv       = key "=" value                           "-" and "_" are the same in a key
//! ```
//!
//! `@number` selects a region. An interface name may contain `-`: the ring suffix is the last `-` followed by digits
//! only, unless an interface with the whole name exists.

use std::fmt;

mod options;
mod parse;

use crate::constants::{
    NR_DISCONNECTED, NR_EXCLUSIVE, NR_MONITOR_RX, NR_MONITOR_TX, NR_REG_ALL_NIC, NR_REG_NIC_SW, NR_REG_ONE_NIC,
    NR_REG_ONE_SW, NR_REG_SW, NR_RX_RINGS_ONLY, NR_TX_RINGS_ONLY, NR_ZCOPY_MON,
};
use crate::printable::word;
pub use options::{Conf, ExtMem, Offset, PortOptions};

/// `EINVAL`, the errno of every malformed name.
const EINVAL: i32 = 22;

/// The flag letters and their `NR_*` bits, in canonical order.
const FLAGS: [(char, u64); 7] = [
    ('x', NR_EXCLUSIVE),
    ('d', NR_DISCONNECTED),
    ('z', NR_ZCOPY_MON),
    ('t', NR_MONITOR_TX),
    ('r', NR_MONITOR_RX),
    ('R', NR_RX_RINGS_ONLY),
    ('T', NR_TX_RINGS_ONLY),
];

/// The kind of the port; for a pipe, of its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PortKind {
    /// `netmap:`: an interface, or a name shared by pipes.
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
    /// The separator between the parent's name and the pipe's.
    pub const fn separator(self) -> char {
        match self {
            Self::Master => '{',
            Self::Slave => '}',
        }
    }
}

/// One end of a pipe of the parent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PipeEnd {
    /// Master or slave end.
    pub role: PipeRole,
    /// Name of the pipe: letters, digits and `_`, at least one.
    pub id: String,
}

/// Which rings of the port to bind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Rings {
    /// All NIC rings.
    #[default]
    AllNic,
    /// `^`: all host rings.
    Sw,
    /// `*`: all NIC rings and all host rings.
    NicSw,
    /// `-N`: the NIC ring pair N, 0..4095.
    OneNic(u16),
    /// `^N`: the host ring pair N, 0..4095.
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

    /// `NmreqRegister::nr_ringid`: 0..4095; 0 when all rings are selected.
    pub const fn ring_id(self) -> u16 {
        match self {
            Self::OneNic(ring) | Self::OneSw(ring) => ring,
            Self::AllNic | Self::Sw | Self::NicSw => 0,
        }
    }
}

/// A parsed port name.
///
/// `Display` writes the canonical name, which parses to the same value unless an interface exists whose name equals
/// this one with its ring suffix.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PortSpec {
    /// The name in requests, `NmreqHeader::nr_name`: `ens3f0np0`, `lan{left`, `vale7:probe`. 1..=63 bytes.
    pub name: String,
    /// The kind of the port, or of the pipe's parent.
    pub kind: PortKind,
    /// The end of the pipe, if the port is a pipe.
    pub pipe: Option<PipeEnd>,
    /// `name` without the pipe's part.
    pub parent: String,
    /// The rings to bind.
    pub rings: Rings,
    /// `NmreqRegister::nr_flags`: `NR_*`.
    pub flags: u64,
    /// `NmreqRegister::nr_mem_id`: number of the region; 0: any.
    pub mem_id: u16,
    /// The options: everything from the first `@` that is not a region number.
    pub options: PortOptions,
}

impl PortSpec {
    /// Parses a port name. Every `-N` is a ring suffix; no interface is looked up.
    pub fn parse(spec: &str) -> Result<Self, NameError> {
        Self::parse_with(spec, |_| false)
    }

    /// Parses a port name. `exists` returns whether an interface has the given name; it is called only for names with a
    /// `-`.
    pub fn parse_with(spec: &str, exists: impl Fn(&str) -> bool) -> Result<Self, NameError> {
        parse::Parser::new(spec, &exists).spec().map_err(|error| NameError {
            spec: spec.to_owned(),
            at: error.at,
            message: error.message,
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

/// A port name that does not match the grammar, and where.
///
/// `Display` writes three lines: the error, the name, and a caret under the first wrong character.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameError {
    spec: String,
    at: usize,
    message: String,
}

impl NameError {
    /// The name that was parsed.
    pub fn spec(&self) -> &str {
        &self.spec
    }

    /// Byte position of the first wrong character in the name, 0..=length; the length if something is missing at the
    /// end.
    pub const fn at(&self) -> usize {
        self.at
    }

    /// The error message.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// `EINVAL`.
    pub const fn errno(&self) -> i32 {
        EINVAL
    }
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = word(&self.spec);
        let column = word(&self.spec[..self.at]).chars().count();
        writeln!(f, "{shown}: {}", self.message)?;
        writeln!(f, "  {shown}")?;
        write!(f, "  {:column$}^", "")
    }
}

impl std::error::Error for NameError {}

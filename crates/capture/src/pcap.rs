// SPDX-License-Identifier: BSD-2-Clause
//! The older format, pcap: a header, and records of one link type.
//!
//! ```text
//! magic version(2 x u16) zone accuracy snaplen link | seconds fraction stored original [kuznetsov: 8 bytes] data | ...
//! ```
//! All numbers have the byte order of the magic number, which also gives the unit of the times. The snap length limits
//! nothing here: some programs write packets that exceed it.

use std::io::Read;
use std::time::Duration;

use crate::LinkType;
use crate::input::{Fault, Input, Order};
use crate::reader::{Header, check_stored};

const MICROSECONDS: u32 = 0xa1b2_c3d4;
const NANOSECONDS: u32 = 0xa1b2_3c4d;
/// Microseconds, and 8 more bytes in each record: the libpcap of Alexey Kuznetsov.
const KUZNETSOV: u32 = 0xa1b2_cd34;

/// Bits of the header's last number: the link type, a bit that is set if the length of the FCS is given, and that
/// length in units of 2 bytes.
const LINK: u32 = 0x03ff_ffff;
const FCS_GIVEN: u32 = 1 << 26;
const FCS_SHIFT: u32 = 28;

/// The fields of a file's header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pcap {
    order: Order,
    magic: u32,
    version: (u16, u16),
    link: LinkType,
    fcs: u8,
}

impl Pcap {
    /// Reads the header after its first 4 bytes, `magic`. `None`: that is not the magic number of a pcap file.
    pub(crate) fn open(magic: [u8; 4], input: &mut Input<impl Read>) -> Result<Option<Pcap>, Fault> {
        let orders = [Order::Little, Order::Big].into_iter();
        let mut known = orders.filter(|order| [MICROSECONDS, NANOSECONDS, KUZNETSOV].contains(&order.u32(magic)));
        let Some(order) = known.next() else { return Ok(None) };
        let version = (order.u16(input.array()?), order.u16(input.array()?));
        // 543.0 is that of a tcpdump for DG/UX.
        if !matches!(version, (2, 0..=4) | (543, 0)) {
            return Fault::wrong(format!("it is a pcap file of version {}.{}; 2.4 is known", version.0, version.1));
        }
        let [_zone, _accuracy, _snaplen, link] = input.words(order)?;
        let fcs = if link & FCS_GIVEN != 0 { (link >> FCS_SHIFT) as u8 * 2 } else { 0 };
        Ok(Some(Pcap { order, magic: order.u32(magic), version, link: LinkType(link & LINK), fcs }))
    }

    pub(crate) fn link(&self) -> LinkType {
        self.link
    }

    /// Reads the next record, whose bytes go to `data`. `None`: the file ends.
    pub(crate) fn next(&self, input: &mut Input<impl Read>, data: &mut Vec<u8>) -> Result<Option<Header>, Fault> {
        if input.is_at_end()? {
            return Ok(None);
        }
        let [seconds, fraction, first, second] = input.words(self.order)?;
        // Until version 2.3 the original length came first; some programs of version 2.3 wrote it so, others did not.
        let swapped = match self.version {
            (2, 0..=2) | (543, 0) => true,
            (2, 3) => first > second,
            _ => false,
        };
        let (stored, original) = if swapped { (second, first) } else { (first, second) };
        if self.magic == KUZNETSOV {
            input.skip(8)?;
        }
        check_stored(stored)?;
        data.resize(stored as usize, 0);
        input.read(data)?;
        let unit = if self.magic == NANOSECONDS { 1 } else { 1000 };
        let fraction = Duration::from_nanos(u64::from(fraction) * unit);
        let time = Some(Duration::from_secs(seconds.into()) + fraction);
        Ok(Some(Header { time, link: self.link, original, fcs: self.fcs }))
    }
}

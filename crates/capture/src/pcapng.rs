// SPDX-License-Identifier: BSD-2-Clause
//! The newer format, pcapng: blocks, among them packets of several interfaces.
//!
//! ```text
//! section   | interface | interface | packet | statistics | packet | ... | section (of another byte order) | ...
//! block     kind length | fields | data, padded to 4 bytes | options | length again
//! option    code length | value, padded to 4 bytes
//! ```
//! Interfaces are numbered from 0 in each section. Blocks and options that are not needed are passed over with their
//! contents; the options may end with the block instead of their end mark.

use std::io::Read;
use std::time::Duration;

use crate::LinkType;
use crate::input::{Fault, Input, Order};
use crate::reader::{Header, check_stored};

/// The first bytes of a file, in either byte order.
pub(crate) const MAGIC: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
/// Most interfaces of a section.
pub const MAX_INTERFACES: usize = 65_536;

/// Kinds of blocks.
const SECTION: u32 = u32::from_le_bytes(MAGIC);
const INTERFACE: u32 = 1;
/// A packet, obsolete.
const OLD_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const PACKET: u32 = 6;

/// The number that shows the byte order of a section.
const ORDER: u32 = 0x1a2b_3c4d;
/// Bytes of a block besides its body.
const FRAMING: u32 = 12;

/// Options of an interface.
const RESOLUTION: u16 = 9;
const FCS_LENGTH: u16 = 13;
const OFFSET: u16 = 14;
/// Codes and sizes of an interface's options that have one size: addresses, speed, resolution, zone, length of the FCS,
/// offset, speeds.
const INTERFACE_SIZES: &[(u16, u16)] =
    &[(4, 8), (5, 17), (6, 6), (7, 8), (8, 8), (9, 1), (10, 4), (13, 1), (14, 8), (16, 8), (17, 8)];

/// Options of a packet.
const FLAGS: u16 = 2;
/// Codes and sizes of those that have one size: flags, drops, number, queue.
const PACKET_SIZES: &[(u16, u16)] = &[(2, 4), (4, 8), (5, 8), (6, 4)];
const OLD_PACKET_SIZES: &[(u16, u16)] = &[(2, 4)];

/// An interface, as a section describes it.
#[derive(Clone, Copy, Debug)]
struct Interface {
    link: LinkType,
    /// Most bytes of a packet that are stored; 0: any number.
    snaplen: u32,
    /// Units of time in a second.
    resolution: u128,
    /// Seconds to add to times.
    offset: i64,
    /// Bytes of FCS at the end of packets.
    fcs: u8,
}

impl Interface {
    fn time(&self, high: u32, low: u32) -> Duration {
        let units = u128::from(high) << 32 | u128::from(low);
        // Less than 2^94, and 2^93.
        let nanoseconds = (units * 1_000_000_000 / self.resolution) as i128 + i128::from(self.offset) * 1_000_000_000;
        Duration::from_nanos(nanoseconds.clamp(0, u64::MAX.into()) as u64)
    }
}

/// The state of a section.
#[derive(Debug)]
pub(crate) struct Pcapng {
    order: Order,
    interfaces: Vec<Interface>,
    /// Number of options that were ignored because their size is wrong.
    pub(crate) wrong_options: u64,
}

/// A block that is being read.
struct Block {
    kind: u32,
    len: u32,
    /// Bytes of its body that are not read.
    left: u32,
}

impl Block {
    /// Counts `bytes` bytes of the body, which are about to be read.
    fn take(&mut self, bytes: u32) -> Result<(), Fault> {
        let left = self.left.checked_sub(bytes).ok_or_else(|| {
            let (kind, len) = (self.kind, self.len);
            Fault::Wrong(format!("a block of type {kind:#x} and {len} bytes is too short for its contents"))
        })?;
        self.left = left;
        Ok(())
    }

    fn words<const N: usize>(&mut self, order: Order, input: &mut Input<impl Read>) -> Result<[u32; N], Fault> {
        self.take(4 * N as u32)?;
        input.words(order)
    }

    fn skip(&mut self, bytes: u32, input: &mut Input<impl Read>) -> Result<(), Fault> {
        self.take(bytes)?;
        input.skip(bytes.into())
    }

    /// Passes over the padding of `bytes` bytes, which some programs leave out at the end of a block.
    fn skip_padding(&mut self, bytes: u32, input: &mut Input<impl Read>) -> Result<(), Fault> {
        self.skip((bytes.wrapping_neg() % 4).min(self.left), input)
    }

    fn end(&mut self, order: Order, input: &mut Input<impl Read>) -> Result<(), Fault> {
        self.skip(self.left, input)?;
        let [again] = input.words(order)?;
        if again == self.len {
            return Ok(());
        }
        let (kind, len) = (self.kind, self.len);
        Fault::wrong(format!("a block of type {kind:#x} has {len} bytes at its begin, and {again} at its end"))
    }
}

impl Pcapng {
    /// Reads the first section's header, after its first 4 bytes.
    pub(crate) fn open(input: &mut Input<impl Read>) -> Result<Pcapng, Fault> {
        let mut pcapng = Pcapng { order: Order::Little, interfaces: Vec::new(), wrong_options: 0 };
        let len = input.array()?;
        pcapng.section(len, input)?;
        Ok(pcapng)
    }

    /// Begins a section, whose block has the length `len`, in the section's byte order.
    fn section(&mut self, len: [u8; 4], input: &mut Input<impl Read>) -> Result<(), Fault> {
        let magic = input.array()?;
        let mut orders = [Order::Little, Order::Big].into_iter();
        let Some(order) = orders.find(|order| order.u32(magic) == ORDER) else {
            return Fault::wrong("it is not a pcap or pcapng file: a section has an unknown byte order");
        };
        self.order = order;
        self.interfaces.clear();
        let mut block = block(SECTION, order.u32(len))?;
        block.take(4 + 4)?;
        let version = (order.u16(input.array()?), order.u16(input.array()?));
        // Some programs wrote 1.2, with the same contents.
        if !matches!(version, (1, 0 | 2)) {
            return Fault::wrong(format!("a section has version {}.{} of pcapng; 1.0 is known", version.0, version.1));
        }
        block.end(order, input)
    }

    /// Reads blocks up to the next packet, whose bytes go to `data`. `None`: the file ends.
    pub(crate) fn next(&mut self, input: &mut Input<impl Read>, data: &mut Vec<u8>) -> Result<Option<Header>, Fault> {
        while !input.is_at_end()? {
            let [kind] = input.words(self.order)?;
            let len = input.array()?;
            if kind == SECTION {
                self.section(len, input)?;
                continue;
            }
            let mut block = block(kind, self.order.u32(len))?;
            let header = match kind {
                INTERFACE => self.interface(&mut block, input).map(|()| None),
                PACKET | OLD_PACKET => self.packet(&mut block, input, data).map(Some),
                SIMPLE_PACKET => self.simple_packet(&mut block, input, data).map(Some),
                _ => Ok(None),
            }?;
            block.end(self.order, input)?;
            if header.is_some() {
                return Ok(header);
            }
        }
        Ok(None)
    }

    fn interface(&mut self, block: &mut Block, input: &mut Input<impl Read>) -> Result<(), Fault> {
        if self.interfaces.len() >= MAX_INTERFACES {
            return Fault::wrong(format!("a section has more than {MAX_INTERFACES} interfaces"));
        }
        block.take(4)?;
        let link = LinkType(self.order.u16(input.array()?).into());
        input.skip(2)?;
        let [snaplen] = block.words(self.order, input)?;
        let mut interface = Interface { link, snaplen, resolution: 1_000_000, offset: 0, fcs: 0 };
        let order = self.order;
        self.options(block, input, INTERFACE_SIZES, |code, value| match code {
            RESOLUTION => {
                let (base, exponent) = if value[0] & 0x80 == 0 { (10_u128, value[0]) } else { (2, value[0] & 0x7f) };
                // Beyond that all times are 0.
                interface.resolution = base.checked_pow(exponent.into()).unwrap_or(u128::MAX);
            }
            // Bytes. The first drafts said bits, of which Ethernet's FCS has 32.
            FCS_LENGTH => interface.fcs = if value[0] == 32 { 4 } else { value[0] },
            OFFSET => interface.offset = order.i64(value),
            _ => {}
        })?;
        self.interfaces.push(interface);
        Ok(())
    }

    fn packet(&mut self, block: &mut Block, input: &mut Input<impl Read>, data: &mut Vec<u8>) -> Result<Header, Fault> {
        let number = if block.kind == OLD_PACKET {
            // A number of drops follows.
            block.take(4)?;
            let number = self.order.u16(input.array()?);
            input.skip(2)?;
            number.into()
        } else {
            let [number] = block.words(self.order, input)?;
            number
        };
        let [high, low, stored, original] = block.words(self.order, input)?;
        let interface = self.described(number)?;
        read_data(block, input, data, stored, interface.link)?;
        block.skip_padding(stored, input)?;
        let sizes = if block.kind == OLD_PACKET { OLD_PACKET_SIZES } else { PACKET_SIZES };
        let (mut fcs, order) = (interface.fcs, self.order);
        self.options(block, input, sizes, |code, [a, b, c, d, ..]| {
            // 0: this packet's length is unknown.
            let len = (order.u32([a, b, c, d]) >> 5 & 0xf) as u8;
            if code == FLAGS && len != 0 {
                fcs = len;
            }
        })?;
        Ok(Header { time: Some(interface.time(high, low)), link: interface.link, original, fcs })
    }

    fn simple_packet(
        &mut self,
        block: &mut Block,
        input: &mut Input<impl Read>,
        data: &mut Vec<u8>,
    ) -> Result<Header, Fault> {
        let [original] = block.words(self.order, input)?;
        let Interface { link, snaplen, fcs, .. } = self.described(0)?;
        // The number of stored bytes is not written: the rest of the block, but for the padding.
        let most = if snaplen == 0 { original } else { original.min(snaplen) };
        let stored = if most.checked_next_multiple_of(4) == Some(block.left) { most } else { original.min(block.left) };
        read_data(block, input, data, stored, link)?;
        Ok(Header { time: None, link, original, fcs })
    }

    /// Returns an interface that the section has described.
    fn described(&self, number: u32) -> Result<Interface, Fault> {
        let interface = usize::try_from(number).ok().and_then(|number| self.interfaces.get(number));
        interface.copied().ok_or_else(|| Fault::Wrong(format!("the next packet's interface {number} is not described")))
    }

    /// Reads the options at the end of a block. Those of `sizes`, which are valid, are given to `take`, filled up with
    /// zeros; longer ones have no meaning here.
    fn options(
        &mut self,
        block: &mut Block,
        input: &mut Input<impl Read>,
        sizes: &[(u16, u16)],
        mut take: impl FnMut(u16, [u8; 8]),
    ) -> Result<(), Fault> {
        while block.left >= 4 {
            block.take(4)?;
            let (code, len) = (self.order.u16(input.array()?), self.order.u16(input.array()?));
            if code == 0 {
                break;
            }
            let size = sizes.iter().find(|(known, _)| *known == code).map(|(_, size)| *size);
            let valid = u32::from(len) <= block.left && size.is_none_or(|size| size == len);
            self.wrong_options += u64::from(!valid);
            let mut value = [0; 8];
            if let (true, Some(wanted)) = (valid && size.is_some(), value.get_mut(..len.into())) {
                block.take(len.into())?;
                input.read(wanted)?;
                take(code, value);
            } else {
                block.skip(u32::from(len).min(block.left), input)?;
            }
            block.skip_padding(len.into(), input)?;
        }
        Ok(())
    }
}

/// Returns a block of `len` bytes, whose length was read.
fn block(kind: u32, len: u32) -> Result<Block, Fault> {
    match len.checked_sub(FRAMING) {
        Some(left) if len.is_multiple_of(4) => Ok(Block { kind, len, left }),
        _ => Fault::wrong(format!("a block of type {kind:#x} has {len} bytes, not {FRAMING} or more in steps of 4")),
    }
}

/// Reads a packet's bytes. Those of other link types than Ethernet may be more than are possible here.
fn read_data(
    block: &mut Block,
    input: &mut Input<impl Read>,
    data: &mut Vec<u8>,
    stored: u32,
    link: LinkType,
) -> Result<(), Fault> {
    let checked = check_stored(stored);
    if checked.is_err() && link != LinkType::ETHERNET {
        data.clear();
        return block.skip(stored, input);
    }
    checked?;
    block.take(stored)?;
    data.resize(stored as usize, 0);
    input.read(data)
}

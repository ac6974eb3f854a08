// SPDX-License-Identifier: BSD-2-Clause
//! A parsed packet, as the filters use it: a copy of its headers, and their offsets.

/// Number of bytes that are copied from a buffer. The peer can write the buffer at any time, but not the copy.
pub(crate) const HEADERS: usize = 128;

pub(crate) const TCP: u8 = 6;
pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const RST: u8 = 4;
pub(crate) const ACK: u8 = 16;

/// The validated IP header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ip {
    /// Offsets of the header and of the data after it, from the start of the frame.
    pub(crate) at: usize,
    pub(crate) payload: usize,
    /// Bytes from the start of the IP header to the end of the packet.
    pub(crate) len: usize,
    pub(crate) v6: bool,
    /// An IPv4 address is in the last four bytes.
    pub(crate) source: [u8; 16],
    pub(crate) destination: [u8; 16],
    /// 0 for fragments other than the first.
    pub(crate) protocol: u8,
}

/// The kind of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Ip(Ip),
    /// ARP and everything else that is not IP.
    Other,
    /// The EtherType is that of IP, but the header is invalid; or the frame is too short.
    Malformed,
}

/// A packet, as the filters examine it.
pub(crate) struct Packet<'a> {
    /// The first bytes of the frame, at most [`HEADERS`].
    pub(crate) head: &'a [u8],
    /// Length of the whole frame.
    pub(crate) len: usize,
    pub(crate) kind: Kind,
}

impl<'a> Packet<'a> {
    /// `len` is the length of the whole frame.
    pub(crate) fn new(head: &'a [u8], len: usize) -> Packet<'a> {
        let mut at = 14;
        // At most two VLAN tags.
        for _ in 0..2 {
            if matches!(read_u16(head, at - 2), Some(0x8100 | 0x88a8)) {
                at += 4;
            }
        }
        let remaining = len.saturating_sub(at);
        let kind = match read_u16(head, at - 2) {
            Some(0x0800) => ipv4(head, at, remaining).map_or(Kind::Malformed, Kind::Ip),
            Some(0x86dd) => ipv6(head, at, remaining).map_or(Kind::Malformed, Kind::Ip),
            Some(_) => Kind::Other,
            None => Kind::Malformed,
        };
        Packet { head, len, kind }
    }

    pub(crate) fn ip(&self) -> Option<&Ip> {
        if let Kind::Ip(ip) = &self.kind { Some(ip) } else { None }
    }

    /// Returns the TCP header without its options. `None` for other protocols, and if the header is truncated.
    pub(crate) fn tcp(&self) -> Option<(&Ip, &[u8])> {
        let ip = self.ip().filter(|ip| ip.protocol == TCP)?;
        Some((ip, self.head.get(ip.payload..ip.payload + 20)?))
    }
}

fn ipv4(head: &[u8], at: usize, remaining: usize) -> Option<Ip> {
    let ip = head.get(at..)?;
    let (header, len) = (usize::from(*ip.first()? & 15) * 4, usize::from(read_u16(ip, 2)?));
    let whole = ip[0] >> 4 == 4 && header >= 20 && len >= header && len <= remaining;
    let fragment = read_u16(ip, 6)? & 0x1fff;
    // A fragment with offset 1 would overwrite the header in the first fragment: a known attack.
    if !whole || fragment == 1 || checksum(0, ip.get(..header)?) != 0 {
        return None;
    }
    let address = |at: usize| [[0; 12].as_slice(), ip.get(at..at + 4)?].concat().try_into().ok();
    let protocol = if fragment == 0 { *ip.get(9)? } else { 0 };
    Some(Ip { at, payload: at + header, len, v6: false, source: address(12)?, destination: address(16)?, protocol })
}

fn ipv6(head: &[u8], at: usize, remaining: usize) -> Option<Ip> {
    let ip = head.get(at..at + 40)?;
    let len = usize::from(read_u16(ip, 4)?) + 40;
    if ip[0] >> 4 != 6 || len > remaining {
        return None;
    }
    let address = |at: usize| ip.get(at..at + 16)?.try_into().ok();
    Some(Ip { at, payload: at + 40, len, v6: true, source: address(8)?, destination: address(24)?, protocol: ip[6] })
}

pub(crate) fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(crate) fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Returns the internet checksum of `bytes`, added to an earlier `sum`.
pub(crate) fn checksum(sum: u32, bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum = words.fold(sum, u32::wrapping_add);
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

//! What the filters look at: a copy of a packet's headers, and where things stand in it.

/// Bytes that are copied out of a buffer. Others can write the buffer at any time; nobody can write the copy.
pub(crate) const HEAD: usize = 128;

pub(crate) const TCP: u8 = 6;
pub(crate) const FIN: u8 = 1;
pub(crate) const SYN: u8 = 2;
pub(crate) const RST: u8 = 4;
pub(crate) const ACK: u8 = 16;

/// The IP header, judged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ip {
    /// Where it begins, and what follows it, in the frame.
    pub(crate) at: usize,
    pub(crate) payload: usize,
    /// Bytes of the packet, from the IP header to its end.
    pub(crate) len: usize,
    pub(crate) v6: bool,
    /// IPv4 addresses stand in the last four bytes.
    pub(crate) source: [u8; 16],
    pub(crate) destination: [u8; 16],
    /// 0 behind the first fragment.
    pub(crate) protocol: u8,
}

/// What a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Ip(Ip),
    /// ARP and whatever else is not IP.
    Other,
    /// It says that it is IP, and is not.
    Malformed,
}

/// A packet as the filters see it.
pub(crate) struct Packet<'a> {
    /// The first bytes of the frame, at most [`HEAD`].
    pub(crate) head: &'a [u8],
    pub(crate) kind: Kind,
}

impl<'a> Packet<'a> {
    /// `len` is the frame's whole length.
    pub(crate) fn new(head: &'a [u8], len: usize) -> Packet<'a> {
        let mut at = 14;
        // Tags, two at most.
        for _ in 0..2 {
            if matches!(word(head, at - 2), Some(0x8100 | 0x88a8)) {
                at += 4;
            }
        }
        let room = len.saturating_sub(at);
        let kind = match word(head, at - 2) {
            Some(0x0800) => ipv4(head, at, room).map_or(Kind::Malformed, Kind::Ip),
            Some(0x86dd) => ipv6(head, at, room).map_or(Kind::Malformed, Kind::Ip),
            Some(_) => Kind::Other,
            None => Kind::Malformed,
        };
        Packet { head, kind }
    }

    pub(crate) fn ip(&self) -> Option<&Ip> {
        if let Kind::Ip(ip) = &self.kind { Some(ip) } else { None }
    }

    /// The TCP header without its options; `None` for other protocols, and where it is cut off.
    pub(crate) fn tcp(&self) -> Option<(&Ip, &[u8])> {
        let ip = self.ip().filter(|ip| ip.protocol == TCP)?;
        Some((ip, self.head.get(ip.payload..ip.payload + 20)?))
    }
}

fn ipv4(head: &[u8], at: usize, room: usize) -> Option<Ip> {
    let ip = head.get(at..)?;
    let (header, len) = (usize::from(*ip.first()? & 15) * 4, usize::from(word(ip, 2)?));
    let whole = ip[0] >> 4 == 4 && header >= 20 && len >= header && len <= room;
    let fragment = word(ip, 6)? & 0x1fff;
    // A second fragment that would overwrite the header behind the first is an attack, not a fragment.
    if !whole || fragment == 1 || checksum(0, ip.get(..header)?) != 0 {
        return None;
    }
    let address = |at: usize| [[0; 12].as_slice(), ip.get(at..at + 4)?].concat().try_into().ok();
    let protocol = if fragment == 0 { *ip.get(9)? } else { 0 };
    Some(Ip { at, payload: at + header, len, v6: false, source: address(12)?, destination: address(16)?, protocol })
}

fn ipv6(head: &[u8], at: usize, room: usize) -> Option<Ip> {
    let ip = head.get(at..at + 40)?;
    let len = usize::from(word(ip, 4)?) + 40;
    if ip[0] >> 4 != 6 || len > room {
        return None;
    }
    let address = |at: usize| ip.get(at..at + 16)?.try_into().ok();
    Some(Ip { at, payload: at + 40, len, v6: true, source: address(8)?, destination: address(24)?, protocol: ip[6] })
}

pub(crate) fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(crate) fn long(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// The internet checksum of `bytes` and of what summed up to `sum`.
pub(crate) fn checksum(sum: u32, bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum = words.fold(sum, u32::wrapping_add);
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

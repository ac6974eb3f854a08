// SPDX-License-Identifier: BSD-2-Clause
//! Random frames, and a parser of them that is written for clarity alone.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::random::Random;

pub(crate) const PROTOCOLS: [u8; 9] = [6, 17, 6, 17, 1, 58, 132, 47, 50];
pub(crate) const PORTS: [u16; 6] = [0, 22, 53, 80, 1024, 65535];

/// Addresses that both packets and rules have.
pub(crate) fn address4(random: &mut Random) -> Ipv4Addr {
    if random.one_in(20) {
        return Ipv4Addr::from(random.next() as u32);
    }
    Ipv4Addr::new(10, random.below(2) as u8, random.below(2) as u8, random.below(12) as u8)
}

pub(crate) fn address6(random: &mut Random) -> Ipv6Addr {
    let low = random.below(6) as u16;
    Ipv6Addr::new(0x2001, 0xdb8, random.below(2) as u16, 0, 0, 0, 0, low)
}

pub(crate) fn mac(random: &mut Random) -> [u8; 6] {
    [2, 0, 0, 0, 0, random.below(4) as u8]
}

/// A frame, usually valid.
pub(crate) fn frame(random: &mut Random) -> Vec<u8> {
    let mut frame = [mac(random), mac(random)].concat();
    for _ in 0..random.below(12).saturating_sub(9) {
        frame.extend(if random.one_in(2) { [0x81, 0] } else { [0x88, 0xa8] });
        frame.extend([0, random.below(5) as u8]);
    }
    match random.below(10) {
        0 => {
            let kind: u16 = *random.pick(&[0x0806, 0x8863, 0x88cc]);
            frame.extend(kind.to_be_bytes());
            frame.extend([0; 46]);
        }
        1..=6 => ipv4(random, &mut frame),
        _ => ipv6(random, &mut frame),
    }
    match random.below(30) {
        0 => frame.truncate(random.below(frame.len() as u64 + 1) as usize),
        1 => {
            let at = random.below(frame.len() as u64) as usize;
            frame[at] = random.next() as u8;
        }
        2..=10 => frame.resize(frame.len() + random.below(40) as usize, 0), // padding
        _ => {}
    }
    frame
}

fn ipv4(random: &mut Random, frame: &mut Vec<u8>) {
    let proto = *random.pick(&PROTOCOLS);
    let payload = transport(random, proto);
    let options = if random.one_in(6) { random.below(11) as usize * 4 } else { 0 };
    let total = (20 + options + payload.len()) as u16;
    let fragment = match random.below(8) {
        0 => random.next() as u16 & 0xe003,
        1 => 0x4000,
        _ => 0,
    };
    frame.extend([8, 0, 0x45 + (options / 4) as u8, *random.pick(&[0, 0x10, 0x28, 0xb8, 0xff])]);
    frame.extend(total.to_be_bytes());
    frame.extend([0, random.below(4) as u8]);
    frame.extend(fragment.to_be_bytes());
    frame.extend([*random.pick(&[1, 63, 64, 255]), proto, 0, 0]);
    frame.extend(address4(random).octets());
    frame.extend(address4(random).octets());
    frame.resize(frame.len() + options, 1);
    frame.extend(payload);
}

fn ipv6(random: &mut Random, frame: &mut Vec<u8>) {
    let mut next = *random.pick(&PROTOCOLS);
    let mut payload = transport(random, next);
    for _ in 0..random.below(5).saturating_sub(2) {
        let kind = *random.pick(&[0, 43, 44, 60, 51]);
        let mut header = vec![next, 0, *random.pick(&[0, 0, 2]), 0, 0, 0, 0, 0];
        match kind {
            44 if random.one_in(2) => header[3] = random.below(40) as u8,
            51 => {
                header[1] = 1;
                header.extend([0; 4]);
            }
            0 | 43 | 60 if random.one_in(4) => {
                header[1] = random.below(3) as u8;
                header.resize((usize::from(header[1]) + 1) * 8, 0);
            }
            _ => {}
        }
        header.extend(payload);
        (payload, next) = (header, kind);
    }
    frame.extend([0x86, 0xdd, 0x60 | random.below(16) as u8, random.below(2) as u8 * 0x80, 0, 0]);
    frame.extend((payload.len() as u16).to_be_bytes());
    frame.extend([next, 64]);
    frame.extend(address6(random).octets());
    frame.extend(address6(random).octets());
    frame.extend(payload);
}

fn transport(random: &mut Random, proto: u8) -> Vec<u8> {
    let mut bytes = vec![0; 24 + random.below(20) as usize];
    let [src, dst] = [*random.pick(&PORTS), *random.pick(&PORTS)].map(u16::to_be_bytes);
    bytes[..2].copy_from_slice(&src);
    bytes[2..4].copy_from_slice(&dst);
    match proto {
        6 => {
            bytes[7] = random.below(3) as u8;
            bytes[11] = random.below(3) as u8;
            bytes[12] = 0x50 + 0x10 * random.below(2) as u8;
            bytes[13] = *random.pick(&[2, 2, 0x12, 0x10, 0x10, 0x11, 0x18, 4, 0, 0x3f, 0xc2]);
            bytes[15] = random.below(3) as u8;
        }
        1 | 58 => bytes[0] = *random.pick(&[0, 3, 8, 11, 128, 135, 31, 32]),
        _ => {}
    }
    if random.one_in(40) {
        bytes.truncate(random.below(20) as usize);
    }
    bytes
}

/// The fields of a valid frame.
#[derive(Debug, Default)]
pub(crate) struct Fields {
    pub(crate) macs: [[u8; 6]; 2],
    pub(crate) ethertype: u16,
    pub(crate) ip: Option<Ip>,
}

#[derive(Debug)]
pub(crate) struct Ip {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) proto: u8,
    pub(crate) len: u16,
    pub(crate) id: u16,
    pub(crate) ttl: u8,
    pub(crate) tos: u8,
    /// IPv4: reserved, do not fragment, more fragments.
    pub(crate) bits: [bool; 3],
    pub(crate) offset: u16,
    pub(crate) extensions: Vec<&'static str>,
    pub(crate) ports: Option<(u16, u16)>,
    pub(crate) tcp: Option<Tcp>,
    pub(crate) icmp: Option<u8>,
}

#[derive(Debug)]
pub(crate) struct Tcp {
    pub(crate) flags: u8,
    pub(crate) ack: u32,
    pub(crate) window: u16,
    pub(crate) data: u16,
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Returns the fields, or `None` if the frame is malformed.
pub(crate) fn parse(frame: &[u8]) -> Option<Fields> {
    let mut fields = Fields::default();
    fields.macs[0].copy_from_slice(frame.get(0..6)?);
    fields.macs[1].copy_from_slice(frame.get(6..12)?);
    let mut at = 12;
    for tags in 0.. {
        fields.ethertype = be16(frame, at)?;
        at += 2;
        if tags == 2 || ![0x8100, 0x88a8].contains(&fields.ethertype) {
            break;
        }
        be16(frame, at)?;
        at += 2;
    }
    fields.ip = match fields.ethertype {
        0x0800 => Some(parse4(&frame[at..])?),
        0x86dd => Some(parse6(&frame[at..], 128 - at)?),
        _ => None,
    };
    Some(fields)
}

fn parse4(bytes: &[u8]) -> Option<Ip> {
    let header = usize::from(bytes.first()? & 15) * 4;
    let len = be16(bytes, 2)?;
    let packet = bytes.get(..usize::from(len))?;
    if bytes[0] >> 4 != 4 || header < 20 || header > packet.len() {
        return None;
    }
    let fragment = be16(packet, 6)?;
    let mut ip = Ip {
        src: IpAddr::V4(be32(packet, 12)?.into()),
        dst: IpAddr::V4(be32(packet, 16)?.into()),
        proto: packet[9],
        len,
        id: be16(packet, 4)?,
        ttl: packet[8],
        tos: packet[1],
        bits: [fragment & 0x8000 != 0, fragment & 0x4000 != 0, fragment & 0x2000 != 0],
        offset: fragment & 0x1fff,
        extensions: Vec::new(),
        ports: None,
        tcp: None,
        icmp: None,
    };
    parse_transport(&mut ip, &packet[header..])?;
    Some(ip)
}

/// `parsed`: bytes that the classifier looks at; longer chains of extension headers are malformed by definition.
fn parse6(bytes: &[u8], parsed: usize) -> Option<Ip> {
    let len = usize::from(be16(bytes, 4)?) + 40;
    let packet = bytes.get(..len)?;
    if packet[0] >> 4 != 6 {
        return None;
    }
    let address = |at: usize| -> Option<IpAddr> {
        let octets: [u8; 16] = packet.get(at..at + 16)?.try_into().ok()?;
        Some(IpAddr::V6(octets.into()))
    };
    let mut ip = Ip {
        src: address(8)?,
        dst: address(24)?,
        proto: 0,
        len: len as u16,
        id: 0,
        ttl: packet[7],
        tos: packet[0] << 4 | packet[1] >> 4,
        bits: [false; 3],
        offset: 0,
        extensions: Vec::new(),
        ports: None,
        tcp: None,
        icmp: None,
    };
    let (mut next, mut at) = (packet[6], 40);
    while [0, 43, 44, 51, 60].contains(&next) {
        let limit = parsed.min(packet.len());
        if at + 8 > limit {
            return None;
        }
        let units = usize::from(packet[at + 1]);
        let size = match next {
            44 => 8,
            51 => (units + 2) * 4,
            _ => (units + 1) * 8,
        };
        if at + size > packet.len() {
            return None;
        }
        ip.extensions.push(match next {
            0 => "hopopt",
            43 => "route",
            44 => "frag",
            51 => "ah",
            _ => "dstopt",
        });
        if next == 43 && packet[at + 2] == 0 {
            ip.extensions.push("rthdr0");
        }
        if next == 43 && packet[at + 2] == 2 {
            ip.extensions.push("rthdr2");
        }
        if next == 44 {
            ip.offset = be16(packet, at + 2)? >> 3;
        }
        let was_later_fragment = next == 44 && ip.offset != 0;
        next = packet[at];
        at += size;
        if was_later_fragment {
            break;
        }
        if at > parsed.min(bytes.len()) {
            return None;
        }
    }
    if next == 50 {
        ip.extensions.push("esp");
    }
    let known = [4, 6, 17, 41, 47, 50, 58, 59, 89, 103, 112, 132, 136];
    if ip.offset == 0 && !known.contains(&next) {
        return None;
    }
    ip.proto = next;
    let end = packet.len();
    parse_transport(&mut ip, &packet[at.min(end)..])?;
    // Headers beyond the bytes that are parsed are missing.
    let needed = if ip.tcp.is_some() {
        20
    } else if ip.icmp.is_some() {
        4
    } else if ip.proto == 132 {
        12
    } else {
        8
    };
    if (ip.ports.is_some() || ip.icmp.is_some()) && at + needed > parsed {
        return None;
    }
    Some(ip)
}

fn parse_transport(ip: &mut Ip, bytes: &[u8]) -> Option<()> {
    if ip.offset != 0 {
        return (ip.proto != 6 || ip.offset != 1).then_some(());
    }
    match (ip.proto, ip.src.is_ipv4()) {
        (6, _) => {
            let data =
                bytes.len().checked_sub(20).map(|_| bytes.len().saturating_sub(usize::from(bytes[12] >> 4) * 4))?;
            ip.tcp = Some(Tcp { flags: bytes[13], ack: be32(bytes, 8)?, window: be16(bytes, 14)?, data: data as u16 });
        }
        (17 | 136, _) => {
            bytes.get(7)?;
        }
        (132, _) => {
            bytes.get(11)?;
        }
        (1, true) | (58, false) => {
            bytes.get(3)?;
            ip.icmp = Some(bytes[0]);
            return Some(());
        }
        _ => return Some(()),
    }
    ip.ports = Some((be16(bytes, 0)?, be16(bytes, 2)?));
    Some(())
}

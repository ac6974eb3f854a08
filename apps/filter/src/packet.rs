// SPDX-License-Identifier: BSD-2-Clause
//! The header fields of a frame that rules test, parsed once from a private copy of its first bytes.

use unetmap_shape::FlowKey;

/// Bytes at the start of a frame that are parsed. Ethernet with two VLAN tags, the longest IPv4 header and a TCP
/// header without options need 102; IPv6 extension headers have the rest.
pub const HEADER_BYTES: usize = 128;

/// VLAN tags that are skipped before the EtherType.
const MAX_TAGS: usize = 2;

/// IPv6 extension headers of a packet, as bits of `Headers::extensions`.
pub(crate) mod extension {
    pub(crate) const FRAG: u8 = 0x01;
    pub(crate) const HOPOPT: u8 = 0x02;
    pub(crate) const ROUTE: u8 = 0x04;
    pub(crate) const DSTOPT: u8 = 0x08;
    pub(crate) const AH: u8 = 0x10;
    pub(crate) const ESP: u8 = 0x20;
    pub(crate) const RTHDR0: u8 = 0x40;
    pub(crate) const RTHDR2: u8 = 0x80;
}

/// TCP flags, as in the header.
pub mod tcp {
    #![allow(missing_docs)]
    pub const FIN: u8 = 0x01;
    pub const SYN: u8 = 0x02;
    pub const RST: u8 = 0x04;
    pub const PSH: u8 = 0x08;
    pub const ACK: u8 = 0x10;
    pub const URG: u8 = 0x20;
}

/// Numbers of protocols.
pub mod proto {
    #![allow(missing_docs)]
    pub const ICMP: u8 = 1;
    pub const TCP: u8 = 6;
    pub const UDP: u8 = 17;
    pub const ROUTING: u8 = 43;
    pub const FRAGMENT: u8 = 44;
    pub const ESP: u8 = 50;
    pub const AH: u8 = 51;
    pub const ICMP6: u8 = 58;
    pub const NO_NEXT: u8 = 59;
    pub const DSTOPTS: u8 = 60;
    pub const SCTP: u8 = 132;
    pub const UDPLITE: u8 = 136;
}

/// Network layer of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Family {
    /// Neither IPv4 nor IPv6, for instance ARP.
    #[default]
    Other = 0,
    /// IPv4.
    V4 = 1,
    /// IPv6.
    V6 = 2,
}

/// Why a frame is dropped before any rule sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Shorter than an Ethernet header, or an IP header that is cut, inconsistent or longer than its packet.
    Header,
    /// A transport header that is cut, or a TCP fragment that would overwrite one (offset 1).
    Transport,
    /// An IPv6 extension header that is unknown, or a chain longer than [`HEADER_BYTES`].
    Extension,
}

/// Parsed header fields. Fields that a packet does not have are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// IPv4 addresses, in host order.
    pub src4: u32,
    /// As `src4`.
    pub dst4: u32,
    /// IPv6 addresses, in host order.
    pub src6: u128,
    /// As `src6`.
    pub dst6: u128,
    /// Destination MAC address, in the low 48 bits.
    pub dst_mac: u64,
    /// Source MAC address, in the low 48 bits.
    pub src_mac: u64,
    /// VLAN tags, each an EtherType and a TCI: the only one in the low half, else the outer one in the high half.
    pub tags: u64,
    /// Total length of the IP packet.
    pub ip_len: u16,
    /// IPv4 identification.
    pub ip_id: u16,
    /// Fragment offset in units of 8 bytes.
    pub frag_offset: u16,
    /// EtherType after the VLAN tags.
    pub ethertype: u16,
    /// Ports of TCP, UDP, UDP-Lite and SCTP.
    pub src_port: u16,
    /// As `src_port`.
    pub dst_port: u16,
    /// TCP window.
    pub tcp_window: u16,
    /// TCP sequence number.
    pub tcp_seq: u32,
    /// TCP acknowledgement number.
    pub tcp_ack: u32,
    /// Bytes of TCP payload.
    pub tcp_data: u16,
    /// Network layer.
    pub family: Family,
    /// Protocol of the payload, after extension headers.
    pub proto: u8,
    /// Type of service, or traffic class.
    pub tos: u8,
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// TCP flags.
    pub tcp_flags: u8,
    /// Type of an ICMP or ICMPv6 message.
    pub icmp_type: u8,
    /// Identifier of an ICMP query, if the message is long enough for one.
    pub icmp_id: u16,
    /// Bits of `extension`.
    pub extensions: u8,
    /// IPv4: more fragments follow; IPv6 likewise.
    pub more_fragments: bool,
    /// IPv4: must not be fragmented.
    pub dont_fragment: bool,
    /// IPv4: the reserved flag.
    pub reserved_flag: bool,
    /// Whether the transport header is in this packet: the first fragment or an unfragmented packet of a protocol
    /// whose header was parsed.
    pub has_transport: bool,
    /// Offset of the network header.
    pub l3: u8,
    /// Offset of the transport header.
    pub l4: u8,
}

impl Headers {
    /// Parses the first bytes of a frame of `len` bytes. `bytes` are its first [`HEADER_BYTES`], or all if it has
    /// fewer.
    ///
    /// # Errors
    /// Why the frame is invalid.
    #[inline]
    pub fn parse(bytes: &[u8], len: usize) -> Result<Headers, Malformed> {
        let mut headers = Headers::default();
        headers.set(bytes, len)?;
        Ok(headers)
    }

    /// As [`Headers::parse`], in place, which copies nothing. After an error some fields are set and some are not.
    ///
    /// # Errors
    /// Why the frame is invalid.
    #[inline]
    pub fn set(&mut self, bytes: &[u8], len: usize) -> Result<(), Malformed> {
        let Some(&[d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, high, low]) = bytes.first_chunk::<14>() else {
            return Err(Malformed::Header);
        };
        *self = Headers::default();
        self.dst_mac = u64::from_be_bytes([0, 0, d0, d1, d2, d3, d4, d5]);
        self.src_mac = u64::from_be_bytes([0, 0, s0, s1, s2, s3, s4, s5]);
        self.ethertype = u16::from_be_bytes([high, low]);
        self.l3 = 14;
        for _ in 0..MAX_TAGS {
            if !matches!(self.ethertype, 0x8100 | 0x88a8) {
                break;
            }
            let Some(&[a, b, high, low]) = bytes.get(usize::from(self.l3)..).and_then(|b| b.first_chunk::<4>()) else {
                return Err(Malformed::Header);
            };
            self.tags = self.tags << 32 | u64::from(self.ethertype) << 16 | u64::from(u16::from_be_bytes([a, b]));
            self.ethertype = u16::from_be_bytes([high, low]);
            self.l3 += 4;
        }
        let l3 = usize::from(self.l3);
        match self.ethertype {
            0x0800 => self.parse_ipv4(&bytes[l3..], len - l3),
            0x86dd => self.parse_ipv6(&bytes[l3..], len - l3),
            _ => Ok(()),
        }
    }

    /// `bytes`: the copy from the IPv4 header on; `room`: bytes of the frame from there on.
    #[inline]
    fn parse_ipv4(&mut self, bytes: &[u8], room: usize) -> Result<(), Malformed> {
        let ip = bytes.first_chunk::<20>().ok_or(Malformed::Header)?;
        let header = usize::from(ip[0] & 15) * 4;
        self.ip_len = u16::from_be_bytes([ip[2], ip[3]]);
        let total = usize::from(self.ip_len);
        if ip[0] >> 4 != 4 || header < 20 || header > bytes.len() || total < header || total > room {
            return Err(Malformed::Header);
        }
        let fragment = u16::from_be_bytes([ip[6], ip[7]]);
        self.family = Family::V4;
        self.tos = ip[1];
        self.ip_id = u16::from_be_bytes([ip[4], ip[5]]);
        self.reserved_flag = fragment & 0x8000 != 0;
        self.dont_fragment = fragment & 0x4000 != 0;
        self.more_fragments = fragment & 0x2000 != 0;
        self.frag_offset = fragment & 0x1fff;
        self.ttl = ip[8];
        self.proto = ip[9];
        self.src4 = u32::from_be_bytes([ip[12], ip[13], ip[14], ip[15]]);
        self.dst4 = u32::from_be_bytes([ip[16], ip[17], ip[18], ip[19]]);
        self.l4 = self.l3 + header as u8;
        self.parse_transport(&bytes[header..], total - header)
    }

    #[inline]
    fn parse_ipv6(&mut self, bytes: &[u8], room: usize) -> Result<(), Malformed> {
        let ip = bytes.first_chunk::<40>().ok_or(Malformed::Header)?;
        let total = usize::from(u16::from_be_bytes([ip[4], ip[5]])) + 40;
        if ip[0] >> 4 != 6 || total > room {
            return Err(Malformed::Header);
        }
        self.family = Family::V6;
        self.ip_len = u16::try_from(total).unwrap_or(u16::MAX);
        self.tos = ip[0] << 4 | ip[1] >> 4;
        self.ttl = ip[7];
        self.src6 = u128::from_be_bytes(*ip[8..].first_chunk().ok_or(Malformed::Header)?);
        self.dst6 = u128::from_be_bytes(*ip[24..].first_chunk().ok_or(Malformed::Header)?);
        let (mut next, mut at) = (ip[6], 40);
        loop {
            let left = &bytes[at.min(bytes.len())..];
            let first = left.first_chunk::<8>();
            let (bit, size) = match (next, first) {
                (0, Some(h)) => (extension::HOPOPT, (usize::from(h[1]) + 1) * 8),
                (proto::ROUTING, Some(h)) => {
                    let kind = match h[2] {
                        0 => extension::RTHDR0,
                        2 => extension::RTHDR2,
                        _ => 0,
                    };
                    (extension::ROUTE | kind, (usize::from(h[1]) + 1) * 8)
                }
                (proto::DSTOPTS, Some(h)) => (extension::DSTOPT, (usize::from(h[1]) + 1) * 8),
                (proto::AH, Some(h)) => (extension::AH, (usize::from(h[1]) + 2) * 4),
                (proto::FRAGMENT, Some(h)) => {
                    let field = u16::from_be_bytes([h[2], h[3]]);
                    self.frag_offset = field >> 3;
                    self.more_fragments = field & 1 != 0;
                    (extension::FRAG, 8)
                }
                (0 | proto::ROUTING | proto::DSTOPTS | proto::AH | proto::FRAGMENT, None) => {
                    return Err(Malformed::Extension);
                }
                _ => break,
            };
            if at + size > total {
                return Err(Malformed::Extension);
            }
            let header = next;
            next = first.map_or(proto::NO_NEXT, |h| h[0]);
            self.extensions |= bit;
            at += size;
            // What follows the header of a later fragment is payload.
            if header == proto::FRAGMENT && self.frag_offset != 0 {
                break;
            }
            if at > bytes.len() {
                return Err(Malformed::Extension);
            }
        }
        match next {
            proto::ESP => self.extensions |= extension::ESP,
            // IPv4, IPv6, GRE, OSPF, PIM, CARP.
            4 | 41 | 47 | 89 | 103 | 112 => {}
            proto::TCP | proto::UDP | proto::ICMP6 | proto::NO_NEXT | proto::SCTP | proto::UDPLITE => {}
            _ if self.frag_offset != 0 => {}
            _ => return Err(Malformed::Extension),
        }
        self.proto = next;
        self.l4 = self.l3 + at as u8;
        self.parse_transport(&bytes[at.min(bytes.len())..], total - at)
    }

    /// `bytes`: the copy from the transport header on; `room`: bytes of the packet from there on.
    #[inline]
    fn parse_transport(&mut self, bytes: &[u8], room: usize) -> Result<(), Malformed> {
        let needed = match (self.proto, self.family) {
            (proto::TCP, _) => 20,
            (proto::UDP | proto::UDPLITE, _) => 8,
            (proto::SCTP, _) => 12,
            (proto::ICMP, Family::V4) | (proto::ICMP6, Family::V6) => 4,
            _ => return Ok(()),
        };
        if self.frag_offset != 0 {
            let overwrites = self.proto == proto::TCP && self.frag_offset == 1;
            return if overwrites { Err(Malformed::Transport) } else { Ok(()) };
        }
        if room < needed || bytes.len() < needed {
            return Err(Malformed::Transport);
        }
        self.has_transport = true;
        if needed == 4 {
            self.icmp_type = bytes[0];
            if let (Some(icmp), 8..) = (bytes.first_chunk::<6>(), room) {
                self.icmp_id = u16::from_be_bytes([icmp[4], icmp[5]]);
            }
            return Ok(());
        }
        self.src_port = u16::from_be_bytes([bytes[0], bytes[1]]);
        self.dst_port = u16::from_be_bytes([bytes[2], bytes[3]]);
        if let (proto::TCP, Some(tcp)) = (self.proto, bytes.first_chunk::<20>()) {
            self.tcp_seq = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
            self.tcp_ack = u32::from_be_bytes([tcp[8], tcp[9], tcp[10], tcp[11]]);
            self.tcp_flags = tcp[13];
            self.tcp_window = u16::from_be_bytes([tcp[14], tcp[15]]);
            self.tcp_data = room.saturating_sub(usize::from(tcp[12] >> 4) * 4) as u16;
        }
        Ok(())
    }

    /// Returns the fields that make a flow.
    #[inline]
    pub fn flow_key(&self) -> FlowKey {
        let v6 = self.family == Family::V6;
        let (src, dst) = if v6 { (self.src6, self.dst6) } else { (self.src4.into(), self.dst4.into()) };
        FlowKey { src, dst, src_port: self.src_port, dst_port: self.dst_port, proto: self.proto, v6 }
    }

    /// Whether the packet has ports.
    #[inline(always)]
    pub fn has_ports(&self) -> bool {
        self.has_transport && matches!(self.proto, proto::TCP | proto::UDP | proto::SCTP | proto::UDPLITE)
    }

    /// Whether the packet has a TCP header.
    #[inline(always)]
    pub fn is_tcp(&self) -> bool {
        self.has_transport && self.proto == proto::TCP
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ethernet and IPv4 headers, then `payload`.
    fn ipv4(proto: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
        let total = (20 + payload.len()) as u16;
        let mut frame = [vec![2; 6], vec![4; 6], vec![8, 0, 0x45, 0x28]].concat();
        frame.extend(total.to_be_bytes());
        frame.extend([0, 7]);
        frame.extend(fragment.to_be_bytes());
        frame.extend([64, proto, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend(payload);
        frame
    }

    fn ipv6(next: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = [vec![2; 6], vec![4; 6], vec![0x86, 0xdd, 0x60, 0, 0, 0]].concat();
        frame.extend((payload.len() as u16).to_be_bytes());
        frame.extend([next, 63]);
        frame.extend([[1; 16], [2; 16]].concat());
        frame.extend(payload);
        frame
    }

    fn parse(frame: &[u8]) -> Result<Headers, Malformed> {
        Headers::parse(&frame[..frame.len().min(HEADER_BYTES)], frame.len())
    }

    #[test]
    fn fields_are_found_behind_tags_and_extension_headers() {
        let mut segment = [0; 24];
        segment[..4].copy_from_slice(&[0, 80, 1, 0]);
        (segment[12], segment[13]) = (0x50, tcp::SYN);
        let headers = parse(&ipv4(proto::TCP, 0x4000, &segment)).unwrap();
        assert_eq!((headers.src4, headers.dst4, headers.ip_len, headers.tos), (0x0a00_0001, 0x0a00_0002, 44, 0x28));
        assert_eq!((headers.src_port, headers.dst_port, headers.tcp_flags), (80, 256, tcp::SYN));
        assert!(headers.dont_fragment && headers.is_tcp() && headers.tcp_data == 4);

        let mut tagged = ipv4(proto::TCP, 0, &segment);
        tagged.splice(12..12, [0x88, 0xa8, 0, 5, 0x81, 0, 0, 9]);
        let headers = parse(&tagged).unwrap();
        assert_eq!((headers.l3, headers.l4, headers.dst_port, headers.family), (22, 42, 256, Family::V4));
        assert_eq!(headers.tags, 0x88a8_0005_8100_0009);

        let chain = [&[proto::ROUTING, 0, 0, 0, 0, 0, 0, 0][..], &[proto::UDP, 0, 0, 0, 0, 0, 0, 0], &[0, 53, 0, 99]];
        let mut payload = chain.concat();
        payload.extend([0; 4]);
        let headers = parse(&ipv6(0, &payload)).unwrap();
        assert_eq!((headers.proto, headers.src_port, headers.dst_port), (proto::UDP, 53, 99));
        assert_eq!(headers.extensions, extension::HOPOPT | extension::ROUTE | extension::RTHDR0);
        assert_eq!((headers.src6, headers.ttl), (u128::from_be_bytes([1; 16]), 63));
    }

    #[test]
    fn fragments_have_no_ports_and_a_tcp_fragment_at_offset_1_is_malformed() {
        let headers = parse(&ipv4(proto::UDP, 5, &[9; 8])).unwrap();
        assert_eq!((headers.frag_offset, headers.has_ports(), headers.src_port), (5, false, 0));
        assert_eq!(parse(&ipv4(proto::TCP, 1, &[9; 8])), Err(Malformed::Transport));
        let later = [&[proto::UDP, 0, 0, 0x19, 0, 0, 0, 1][..], &[9; 8]].concat();
        let headers = parse(&ipv6(proto::FRAGMENT, &later)).unwrap();
        assert_eq!((headers.frag_offset, headers.more_fragments, headers.has_ports()), (3, true, false));
        // Not an extension header in the second fragment, but bytes of the payload.
        let later = [&[0, 0, 0, 0x18, 0, 0, 0, 1][..], &[255; 8]].concat();
        assert!(parse(&ipv6(proto::FRAGMENT, &later)).is_ok());
    }

    #[test]
    fn every_truncation_and_every_changed_byte_is_safe() {
        let long = [&[0, 1, 0, 0, 0, 0, 0, 0][..], &[0; 8], &[0; 40]].concat();
        let frames =
            [ipv4(proto::TCP, 0, &[0; 30]), ipv4(proto::UDP, 0, &[0; 30]), ipv6(0, &long), ipv6(51, &[255; 200])];
        for frame in &frames {
            for end in 0..frame.len() {
                let headers = parse(&frame[..end]);
                assert!(headers.is_err() || end >= frame.len(), "{end}: {headers:?}");
            }
            for at in 0..frame.len() {
                for value in [0, 1, 6, 43, 44, 60, 0x4f, 127, 128, 255] {
                    let mut changed = frame.clone();
                    changed[at] = value;
                    // Either result is right; it must return.
                    let _ = parse(&changed);
                }
            }
        }
        assert_eq!(parse(&ipv4(proto::ICMP, 0, &[8, 0, 0])), Err(Malformed::Transport));
        assert_eq!(parse(&ipv6(51, &[255; 200])), Err(Malformed::Extension), "a chain beyond the parsed bytes");
    }
}

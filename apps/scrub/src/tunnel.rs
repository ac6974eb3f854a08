// SPDX-License-Identifier: BSD-2-Clause
//! How packets that pass leave, if not as they came: within GRE, or with a VLAN tag.
//!
//! ```text
//! [ Ethernet, tags | IP ...  ]  ->  [ Ethernet, tags | IP, GRE | IP ...  ]      gre:LOCAL,REMOTE
//! [ Ethernet | ...           ]  ->  [ Ethernet, tag | ...                ]      vlan:ID
//! ```
//! Ethernet addresses stay: the router that a packet was for gets it, and looks for the way to REMOTE. An IPv4 packet
//! without room is fragmented inside, if it may be: the other end of the tunnel puts nothing together.
//!
//! Sources: RFC 2784 and 7676 (GRE over IPv4 and IPv6), RFC 2003 (the flag "don't fragment"), RFC 6040 (congestion
//! marks), RFC 6864 (identifications), IEEE 802.1Q.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use unetmap_filter::{Family, Headers, MAX_REPLY, Prefix, Table, checksum, proto, too_big};

use crate::rate::Rates;

/// Bytes of a VLAN tag.
const TAG: usize = 4;
/// Bytes of the Ethernet addresses.
const ADDRESSES: usize = 12;
/// Bytes of an Ethernet header with one tag: a port sends so many more than its MTU.
pub(crate) const ETHERNET: usize = 18;
/// Bytes of headers of IPv4, IPv6 and GRE.
const IPV4: usize = 20;
const IPV6: usize = 40;
const GRE: usize = 4;
/// Bytes of the longest head: Ethernet with two tags, IPv6, GRE, and the header of a piece.
pub(crate) const MAX_HEAD: usize = 22 + IPV6 + GRE + IPV4;
/// Pieces of a packet at most. They have no more than this many times the slots of the packet.
pub(crate) const MAX_PIECES: u32 = 4;
/// The flag of IPv4 that more fragments follow.
const MORE: u16 = 0x2000;
/// EtherTypes.
const TAGGED: u16 = 0x8100;
const TYPE_IPV4: u16 = 0x0800;
const TYPE_IPV6: u16 = 0x86dd;
const PROTO_GRE: u8 = 47;
/// Hop limit of the packets outside.
const TTL: u8 = 64;
/// ICMP errors that a source gets in a second, and sources that are told apart.
const ERRORS: u32 = 10;
const SOURCES: usize = 1 << 12;

/// The value of `--return`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Gre4 { local: Ipv4Addr, remote: Ipv4Addr },
    Gre6 { local: Ipv6Addr, remote: Ipv6Addr },
    Vlan(u16),
}

impl Way {
    /// Parses `gre:LOCAL,REMOTE` or `vlan:ID`.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) fn parse(text: &str) -> Result<Way, String> {
        let is_single = |address: IpAddr| !address.is_unspecified() && !address.is_multicast();
        let ends = |text: &str| {
            let (local, remote) = text.split_once(',')?;
            let ends: [IpAddr; 2] = [local.parse().ok()?, remote.parse().ok()?];
            match ends {
                [a, b] if a == b || !is_single(a) || !is_single(b) => None,
                [IpAddr::V4(local), IpAddr::V4(remote)] => Some(Way::Gre4 { local, remote }),
                [IpAddr::V6(local), IpAddr::V6(remote)] => Some(Way::Gre6 { local, remote }),
                _ => None,
            }
        };
        let (way, wanted) = match text.split_once(':') {
            Some(("gre", text)) => (ends(text), "give gre:LOCAL,REMOTE with two addresses of hosts, of one family"),
            Some(("vlan", id)) => {
                let id = id.parse().ok().filter(|id| (1..=4094).contains(id));
                (id.map(Way::Vlan), "give vlan:ID with a number from 1 to 4094")
            }
            _ => (None, "give gre:LOCAL,REMOTE or vlan:ID"),
        };
        way.ok_or_else(|| wanted.into())
    }

    /// Bytes between the Ethernet header and the packet.
    fn overhead(self) -> usize {
        match self {
            Way::Gre4 { .. } => IPV4 + GRE,
            Way::Gre6 { .. } => IPV6 + GRE,
            Way::Vlan(_) => 0,
        }
    }
}

/// The way, for which packets, as the command line has it.
#[derive(Clone, Debug)]
pub(crate) struct Returns {
    pub(crate) way: Way,
    /// Destinations of the packets that take it; empty: all.
    pub(crate) to: Vec<Prefix>,
    /// Most bytes of an IP packet on it; `None`: as many as the port allows.
    pub(crate) mtu: Option<usize>,
}

/// Bytes in place of the first ones of a frame, and its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    bytes: [u8; MAX_HEAD],
    len: usize,
    /// The bytes of the frame from here on follow.
    pub(crate) cut: usize,
    /// The end of the frame, without padding.
    pub(crate) end: usize,
}

impl Head {
    fn put(&mut self, bytes: &[u8]) {
        // MAX_HEAD has room for the longest.
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Bytes of the frame that it begins.
    fn frame_len(&self) -> usize {
        self.len + self.end.saturating_sub(self.cut)
    }
}

/// A packet that leaves in pieces.
#[derive(Clone, Copy)]
struct Pieces {
    headers: Headers,
    /// Most bytes of data of a piece.
    most: usize,
    /// The end of the packet.
    end: usize,
}

/// How a packet leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// As it came.
    AsItIs,
    /// Behind [`Tunnel::head`], and the rest behind those of [`Tunnel::next_piece`]: so many bytes of frames.
    Behind(usize),
    /// It has no room: an IP packet of so many bytes would have.
    TooBig(u16),
}

/// The way, and what it needs.
pub(crate) struct Tunnel {
    way: Way,
    to: Option<Table>,
    mtu: usize,
    pub(crate) head: Head,
    pieces: Option<Pieces>,
    /// Identification of the next packet outside that may be fragmented.
    next_id: u16,
    errors: Rates,
}

impl Tunnel {
    /// `mtu`: most bytes of an IP packet that the port sends; `secret`: as of [`Rates::new`].
    pub(crate) fn new(returns: &Returns, mtu: usize, secret: u64) -> Tunnel {
        let mut to = Table::default();
        for prefix in &returns.to {
            to.insert(*prefix, 0);
        }
        Tunnel {
            way: returns.way,
            to: (!returns.to.is_empty()).then_some(to),
            // An IP packet has no more.
            mtu: returns.mtu.unwrap_or(mtu).min(mtu).min(u16::MAX.into()),
            head: Head { bytes: [0; MAX_HEAD], len: 0, cut: 0, end: 0 },
            pieces: None,
            next_id: secret as u16,
            errors: Rates::new(ERRORS, SOURCES, secret),
        }
    }

    /// Decides about a packet of `len` bytes that passes; `bytes` are its first ones, `headers` were parsed from them.
    pub(crate) fn exit(&mut self, headers: &Headers, bytes: &[u8], len: usize) -> Exit {
        if self.stays(headers) {
            return Exit::AsItIs;
        }
        self.pieces = None;
        let l3 = usize::from(headers.l3);
        let (l2, packet) = match self.way {
            Way::Vlan(_) => (l3 + TAG, len.saturating_sub(l3)),
            _ => (l3, usize::from(headers.ip_len)),
        };
        // A second tag takes room of the packet.
        let room = self.mtu.min((self.mtu + ETHERNET).saturating_sub(l2)).saturating_sub(self.way.overhead());
        if packet > room {
            return self.exit_in_pieces(headers, bytes, room);
        }
        let (cut, end) = (l3, l3 + packet);
        self.head = Head { len: 0, cut, end, ..self.head };
        match self.way {
            Way::Vlan(id) => {
                self.head.cut = ADDRESSES;
                self.head.put(&bytes[..ADDRESSES]);
                self.head.put(&TAGGED.to_be_bytes());
                self.head.put(&id.to_be_bytes());
            }
            _ => self.put_outer(headers, bytes, packet),
        }
        Exit::Behind(self.head.frame_len())
    }

    /// As [`Tunnel::exit`], of a packet that has no room as a whole. Options are not copied into pieces.
    fn exit_in_pieces(&mut self, headers: &Headers, bytes: &[u8], room: usize) -> Exit {
        let (l3, packet) = (usize::from(headers.l3), usize::from(headers.ip_len));
        let is_plain = headers.family == Family::V4 && !headers.dont_fragment && usize::from(headers.l4) == l3 + IPV4;
        let (most, data) = (room.saturating_sub(IPV4) & !7, packet.saturating_sub(IPV4));
        let pieces = data.div_ceil(most.max(1));
        // A packet has no bytes beyond the longest offset.
        let ends = usize::from(headers.frag_offset) * 8 + packet;
        let is_vlan = matches!(self.way, Way::Vlan(_));
        if is_vlan || !is_plain || most == 0 || pieces > MAX_PIECES as usize || ends > usize::from(u16::MAX) {
            return Exit::TooBig(room as u16);
        }
        self.pieces = Some(Pieces { headers: *headers, most, end: l3 + packet });
        self.head.end = l3 + IPV4;
        let _ = self.next_piece(bytes);
        Exit::Behind(data + pieces * self.head.len)
    }

    /// Makes the head of the next piece of the packet that [`Tunnel::exit`] was about; returns whether there is one.
    pub(crate) fn next_piece(&mut self, bytes: &[u8]) -> bool {
        let Some(Pieces { headers, most, end }) = self.pieces else { return false };
        let (l3, from) = (usize::from(headers.l3), self.head.end);
        if from >= end {
            return false;
        }
        let until = end.min(from + most);
        self.head = Head { len: 0, cut: from, end: until, ..self.head };
        self.put_outer(&headers, bytes, IPV4 + until - from);
        let Some(mut ip) = bytes.get(l3..).and_then(|rest| rest.first_chunk::<IPV4>()).copied() else { return false };
        let offset = headers.frag_offset + ((from - l3 - IPV4) / 8) as u16;
        let more = if headers.more_fragments || until < end { MORE } else { 0 };
        ip[2..4].copy_from_slice(&((IPV4 + until - from) as u16).to_be_bytes());
        ip[6..8].copy_from_slice(&(offset | more).to_be_bytes());
        ip[10..12].fill(0);
        let sum = checksum(&ip, 0);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        self.head.put(&ip);
        true
    }

    /// As [`Tunnel::exit`], of a frame of the program's own; returns whether it goes behind the head.
    pub(crate) fn exit_own(&mut self, frame: &[u8]) -> bool {
        let Ok(headers) = Headers::parse(frame, frame.len()) else { return false };
        matches!(self.exit(&headers, frame, frame.len()), Exit::Behind(_))
    }

    /// Writes the ICMP error for a packet that has no room: its length, if its source is to get one.
    pub(crate) fn refuse(
        &mut self,
        most: u16,
        headers: &Headers,
        bytes: &[u8],
        millis: u64,
        out: &mut [u8; MAX_REPLY],
    ) -> Option<usize> {
        let len = too_big(most, headers, bytes, out)?;
        let source = if headers.family == Family::V4 { headers.src4.into() } else { headers.src6 };
        self.errors.takes(source, millis).then_some(len)
    }

    /// Takes the way's tag out of the first bytes of a frame that comes back; returns how many bytes that are.
    pub(crate) fn untag(&self, bytes: &mut [u8]) -> usize {
        let Way::Vlan(id) = self.way else { return 0 };
        let is_ours =
            |tag: &[u8; TAG]| tag[..2] == TAGGED.to_be_bytes() && u16::from_be_bytes([tag[2], tag[3]]) & 0x0fff == id;
        if !bytes.get(ADDRESSES..).and_then(|rest| rest.first_chunk()).is_some_and(is_ours) {
            return 0;
        }
        bytes.copy_within(ADDRESSES + TAG.., ADDRESSES);
        TAG
    }

    /// Whether a packet leaves as it came: not to a destination of the way, or of the link alone.
    fn stays(&self, headers: &Headers) -> bool {
        let is_elsewhere = self.to.as_ref().is_some_and(|to| match headers.family {
            Family::V4 => to.get4(headers.dst4).is_none(),
            Family::V6 => to.get6(headers.dst6).is_none(),
            Family::Other => true,
        });
        match (self.way, &self.to) {
            (Way::Vlan(_), None) => false,
            _ => is_elsewhere || is_of_link(headers),
        }
    }

    /// Writes all that is before a packet of these bytes.
    fn put_outer(&mut self, headers: &Headers, bytes: &[u8], packet: usize) {
        match self.way {
            Way::Gre4 { local, remote } => self.put_gre4(local, remote, headers, bytes, packet),
            Way::Gre6 { local, remote } => self.put_gre6(local, remote, headers, bytes, packet),
            // Has no packet around another one.
            Way::Vlan(_) => {}
        }
    }

    /// Writes Ethernet's header, for packets of another type.
    fn put_ethernet(&mut self, headers: &Headers, bytes: &[u8], ethertype: u16) {
        self.head.put(&bytes[..usize::from(headers.l3) - 2]);
        self.head.put(&ethertype.to_be_bytes());
    }

    fn put_gre4(&mut self, local: Ipv4Addr, remote: Ipv4Addr, headers: &Headers, bytes: &[u8], packet: usize) {
        self.put_ethernet(headers, bytes, TYPE_IPV4);
        // Routers of IPv6 fragment nothing.
        let is_whole = headers.dont_fragment || headers.family == Family::V6;
        let (id, flags) = if is_whole { (0, 0x40) } else { (self.next_id, 0) };
        self.next_id = self.next_id.wrapping_add(u16::from(!is_whole));
        let mut ip = [0; IPV4];
        (ip[0], ip[1]) = (0x45, traffic_class(headers, bytes));
        ip[2..4].copy_from_slice(&((IPV4 + GRE + packet) as u16).to_be_bytes());
        ip[4..6].copy_from_slice(&id.to_be_bytes());
        (ip[6], ip[8], ip[9]) = (flags, TTL, PROTO_GRE);
        ip[12..16].copy_from_slice(&local.octets());
        ip[16..20].copy_from_slice(&remote.octets());
        let sum = checksum(&ip, 0);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        self.head.put(&ip);
        self.put_gre(headers);
    }

    fn put_gre6(&mut self, local: Ipv6Addr, remote: Ipv6Addr, headers: &Headers, bytes: &[u8], packet: usize) {
        self.put_ethernet(headers, bytes, TYPE_IPV6);
        let class = traffic_class(headers, bytes);
        self.head.put(&[0x60 | class >> 4, class << 4, 0, 0]);
        self.head.put(&((GRE + packet) as u16).to_be_bytes());
        self.head.put(&[PROTO_GRE, TTL]);
        self.head.put(&local.octets());
        self.head.put(&remote.octets());
        self.put_gre(headers);
    }

    /// Without checksum, key and sequence number.
    fn put_gre(&mut self, headers: &Headers) {
        self.head.put(&[0, 0]);
        self.head.put(&headers.ethertype.to_be_bytes());
    }
}

/// Returns type of service or traffic class, which rules may have changed since `headers` were parsed.
fn traffic_class(headers: &Headers, bytes: &[u8]) -> u8 {
    let l3 = usize::from(headers.l3);
    match headers.family {
        Family::V6 => bytes[l3] << 4 | bytes[l3 + 1] >> 4,
        _ => bytes[l3 + 1],
    }
}

/// Whether a packet is for the other end of the link, and not for a router: ARP and the like, to several hosts, from or
/// to a link-local address, or of neighbour discovery.
fn is_of_link(headers: &Headers) -> bool {
    let is_local6 = |address: u128| address >> 118 == 0xfe80 >> 6;
    let is_multicast = headers.dst_mac >> 40 & 1 != 0;
    is_multicast
        || match headers.family {
            Family::V4 => false,
            Family::V6 => {
                let is_discovery = headers.proto == proto::ICMP6 && (133..=137).contains(&headers.icmp_type);
                is_local6(headers.src6) || is_local6(headers.dst6) || is_discovery && headers.ttl == 255
            }
            Family::Other => true,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_is_an_address_of_each_end_or_a_vlan() {
        let v4 = |text: &str| text.parse().unwrap();
        assert_eq!(
            Way::parse("gre:10.0.0.1,10.0.0.2"),
            Ok(Way::Gre4 { local: v4("10.0.0.1"), remote: v4("10.0.0.2") })
        );
        let v6 = |text: &str| text.parse().unwrap();
        assert_eq!(Way::parse("gre:fd00::1,fd00::2"), Ok(Way::Gre6 { local: v6("fd00::1"), remote: v6("fd00::2") }));
        assert_eq!((Way::parse("vlan:1"), Way::parse("vlan:4094")), (Ok(Way::Vlan(1)), Ok(Way::Vlan(4094))));
        for wrong in [
            "gre",
            "gre:",
            "gre:10.0.0.1",
            "gre:10.0.0.1,fd00::1",
            "gre:10.0.0.1,10.0.0.1",
            "gre:0.0.0.0,10.0.0.1",
            "gre:10.0.0.1,224.0.0.1",
            "vlan:0",
            "vlan:4095",
            "vlan:x",
            "ipip:1",
            "",
        ] {
            assert!(Way::parse(wrong).is_err(), "{wrong}");
        }
    }

    /// Whatever a frame is, the head has room, and names bytes that the frame has.
    #[test]
    fn heads_of_any_frame_fit() {
        let v6 = Way::parse("gre:fd00::1,fd00::2").unwrap();
        for way in [v6, Way::parse("gre:10.0.0.1,10.0.0.2").unwrap(), Way::Vlan(7)] {
            let mut tunnel = Tunnel::new(&Returns { way, to: Vec::new(), mtu: None }, 1500, 1);
            for (tags, ip) in (0..3).flat_map(|tags| [(tags, 4), (tags, 6), (tags, 0)]) {
                let mut frame = [vec![2; ADDRESSES], [0x81, 0, 0, 9].repeat(tags)].concat();
                match ip {
                    4 => frame.extend([8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 9, 17, 0, 0, 10, 0, 0, 3, 10, 0, 0, 4]),
                    6 => frame.extend([&[0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 17, 9][..], &[0x20; 32]].concat()),
                    _ => frame.extend([8, 6]),
                }
                frame.extend([0; 30]);
                frame[6] = 4;
                for read in 14 + 4 * tags..=frame.len() {
                    let Ok(headers) = Headers::parse(&frame[..read], frame.len()) else { continue };
                    let exit = tunnel.exit(&headers, &frame[..read], frame.len());
                    let (stays, head) = (ip == 0 && !matches!(way, Way::Vlan(_)), tunnel.head);
                    let wanted = if stays { Exit::AsItIs } else { Exit::Behind(head.frame_len()) };
                    assert_eq!(exit, wanted, "{way:?}, {tags} tags, {ip}");
                    if !stays {
                        assert!(head.cut <= read && head.cut < head.end && head.end <= frame.len(), "{head:?}");
                        assert!(head.bytes().len() > ADDRESSES && !tunnel.next_piece(&frame[..read]), "{head:?}");
                    }
                }
            }
        }
    }

    /// Whatever the lengths, the pieces have all data once, fit, and have no more bytes than was said.
    #[test]
    fn pieces_have_all_data_and_fit() {
        let way = Way::parse("gre:fd00::1,fd00::2").unwrap();
        let mut sent = 0;
        for (tags, mtu, len) in (0..3).flat_map(|tags| {
            (576..1500).step_by(61).flat_map(move |mtu| (29..3000).step_by(37).map(move |len| (tags, mtu, len)))
        }) {
            let mut tunnel = Tunnel::new(&Returns { way, to: Vec::new(), mtu: Some(mtu) }, 1500, 1);
            let mut frame = [vec![2; ADDRESSES], [0x81, 0, 0, 9].repeat(tags), vec![8, 0, 0x45, 0]].concat();
            frame[6] = 4;
            frame.extend((len as u16).to_be_bytes());
            frame.extend([0, 9, 0x20, 3, 9, 17, 0, 0, 10, 0, 0, 3, 10, 0, 0, 4]);
            let l3 = 14 + 4 * tags;
            frame.resize(l3 + len, 7);
            let read = frame.len().min(128);
            let headers = Headers::parse(&frame[..read], frame.len()).unwrap();
            let Exit::Behind(said) = tunnel.exit(&headers, &frame[..read], frame.len()) else {
                assert!(len > 4 * (mtu - 100), "{mtu}, {len}");
                continue;
            };
            let (mut bytes, mut next, is_whole) = (0, l3 + IPV4, tunnel.pieces.is_none());
            loop {
                let head = tunnel.head;
                bytes += head.frame_len();
                assert!(head.frame_len() - l3 <= mtu && head.frame_len() <= mtu + ETHERNET, "{mtu}, {len}");
                assert_eq!(head.cut, if is_whole { l3 } else { next });
                next = head.end;
                if !is_whole {
                    let ip = head.bytes().last_chunk::<IPV4>().unwrap();
                    let field = u16::from_be_bytes([ip[6], ip[7]]);
                    assert_eq!((checksum(ip, 0), usize::from(field & 0x1fff)), (0, 3 + (head.cut - l3 - IPV4) / 8));
                    let is_even = (head.end - head.cut).is_multiple_of(8) || head.end == frame.len();
                    assert_eq!((field & MORE, is_even), (MORE, true));
                }
                if !tunnel.next_piece(&frame[..read]) {
                    break;
                }
                sent += 1;
            }
            assert_eq!((next, bytes), (frame.len(), said), "{mtu}, {len}");
        }
        assert!(sent > 1000, "{sent}");
    }
}

// SPDX-License-Identifier: BSD-2-Clause
//! Errors and resets that are sent back for packets that a rule refuses, or that are too long. The program has no
//! address of its own: they come from the address that the packet was sent to.

use crate::packet::{Family, Headers, proto, tcp};
use crate::verdict::Verdict;

/// Bytes of the longest reply.
pub const MAX_REPLY: usize = 128;
/// Hop limit of replies.
const TTL: u8 = 64;
/// Bytes of an IPv4 packet after its header that an ICMP error repeats.
const QUOTED: usize = 8;
/// Types of ICMPv6, and a code of ICMP.
const UNREACHABLE: u8 = 1;
const TOO_BIG: u8 = 2;
const FRAGMENTATION_NEEDED: u8 = 4;

/// Writes the reply to a refused packet into `out` and returns its length; `None` if there is none: the verdict asks
/// for none, it is for the other family, or the packet is a later fragment, an ICMP message that is no query, a reset,
/// or not from and to single hosts. `bytes` are the first bytes of the frame, which were parsed.
pub fn reply(verdict: Verdict, h: &Headers, bytes: &[u8], out: &mut [u8; MAX_REPLY]) -> Option<usize> {
    let (proto, (body, end)) = match (verdict, h.family) {
        (Verdict::Unreach(code), Family::V4) => (proto::ICMP, error4(code, 0, h, bytes, out)?),
        (Verdict::Unreach6(code), Family::V6) => (proto::ICMP6, error6([UNREACHABLE, code], 0, h, bytes, out)?),
        (Verdict::Reset, Family::V4) | (Verdict::Reset6, Family::V6) if h.is_tcp() => (proto::TCP, reset(h, out)?),
        _ => return None,
    };
    address(h, bytes, out)?;
    ip_header(h, proto, out, body, end);
    Some(end)
}

/// Writes the ICMP error for a packet that is too long for the way on, where one of `most` bytes has room, into `out`
/// and returns its length; `None` if there is none: IPv4 that may be fragmented, and as of [`reply`].
pub fn too_big(most: u16, h: &Headers, bytes: &[u8], out: &mut [u8; MAX_REPLY]) -> Option<usize> {
    let (proto, (body, end)) = match h.family {
        Family::V4 if h.dont_fragment => (proto::ICMP, error4(FRAGMENTATION_NEEDED, most.into(), h, bytes, out)?),
        Family::V6 => (proto::ICMP6, error6([TOO_BIG, 0], most.into(), h, bytes, out)?),
        _ => return None,
    };
    address(h, bytes, out)?;
    ip_header(h, proto, out, body, end);
    Some(end)
}

/// Writes the Ethernet header of what goes back: the addresses exchanged, and the tags. `None`: nothing answers the
/// packet.
fn address(h: &Headers, bytes: &[u8], out: &mut [u8; MAX_REPLY]) -> Option<()> {
    if h.frag_offset != 0 || !is_between_hosts(h) {
        return None;
    }
    let l3 = usize::from(h.l3);
    out[..6].copy_from_slice(bytes.get(6..12)?);
    out[6..12].copy_from_slice(bytes.get(..6)?);
    out[12..l3].copy_from_slice(bytes.get(12..l3)?);
    Some(())
}

fn is_between_hosts(h: &Headers) -> bool {
    let multicast_mac = (h.dst_mac | h.src_mac) >> 40 & 1 != 0;
    let single4 = |address: u32| (1..224).contains(&(address >> 24));
    let single6 = |address: u128| address != 0 && address >> 120 != 0xff;
    !multicast_mac
        && match h.family {
            Family::V4 => single4(h.src4) && single4(h.dst4),
            Family::V6 => single6(h.src6) && single6(h.dst6),
            Family::Other => false,
        }
}

/// Whether an ICMP error may answer the packet.
fn is_query(h: &Headers) -> bool {
    match (h.proto, h.family) {
        (proto::ICMP, Family::V4) => h.has_transport && matches!(h.icmp_type, 8 | 10 | 13 | 15 | 17),
        (proto::ICMP6, Family::V6) => h.has_transport && h.icmp_type >= 128,
        _ => true,
    }
}

/// Writes an ICMP error "destination unreachable", with its second word, if one may answer the packet; returns where it
/// begins and ends.
fn error4(code: u8, word: u32, h: &Headers, bytes: &[u8], out: &mut [u8; MAX_REPLY]) -> Option<(usize, usize)> {
    let (l3, body) = (usize::from(h.l3), usize::from(h.l3) + 20);
    let packet_end = l3 + usize::from(h.ip_len);
    let quoted = bytes.get(l3..packet_end.min(usize::from(h.l4) + QUOTED).min(bytes.len()))?;
    let end = write_error([3, code], word, quoted, h, body, out)?;
    let sum = checksum(&out[body..end], 0);
    out[body + 2..body + 4].copy_from_slice(&sum.to_be_bytes());
    Some((body, end))
}

/// As [`error4`], of this type and code.
fn error6(kind: [u8; 2], word: u32, h: &Headers, bytes: &[u8], out: &mut [u8; MAX_REPLY]) -> Option<(usize, usize)> {
    let (l3, body) = (usize::from(h.l3), usize::from(h.l3) + 40);
    let quoted = bytes.get(l3..bytes.len().min(l3 + usize::from(h.ip_len)))?;
    let quoted = &quoted[..quoted.len().min(MAX_REPLY - body - 8)];
    let end = write_error(kind, word, quoted, h, body, out)?;
    let sum = checksum(&out[body..end], pseudo_header(h, proto::ICMP6, end - body));
    out[body + 2..body + 4].copy_from_slice(&sum.to_be_bytes());
    Some((body, end))
}

/// Writes an error from `body` on, without its checksum; returns its end.
fn write_error(
    [kind, code]: [u8; 2],
    word: u32,
    quoted: &[u8],
    h: &Headers,
    body: usize,
    out: &mut [u8; MAX_REPLY],
) -> Option<usize> {
    if !is_query(h) {
        return None;
    }
    let end = body + 8 + quoted.len();
    out.get_mut(body + 8..end)?.copy_from_slice(quoted);
    out[body..body + 4].copy_from_slice(&[kind, code, 0, 0]);
    out[body + 4..body + 8].copy_from_slice(&word.to_be_bytes());
    Some(end)
}

/// Writes a TCP reset.
fn reset(h: &Headers, out: &mut [u8; MAX_REPLY]) -> Option<(usize, usize)> {
    if h.tcp_flags & tcp::RST != 0 {
        return None;
    }
    let (seq, ack, flags) = match h.tcp_flags & tcp::ACK {
        0 => (0, h.tcp_seq.wrapping_add(u32::from(h.tcp_flags & tcp::SYN != 0)), tcp::RST | tcp::ACK),
        _ => (h.tcp_ack, 0, tcp::RST),
    };
    write_segment(h, Segment { seq, ack, flags, window: 0, options: &[] }, out)
}

/// A TCP segment without data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment<'a> {
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u8,
    pub(crate) window: u16,
    /// A multiple of 4 bytes.
    pub(crate) options: &'a [u8],
}

/// Writes a segment between the ends of a frame, whose first bytes are `bytes`, back to its sender or on in its
/// direction. Returns its length; `None` if the ends are not single hosts.
pub(crate) fn segment(
    h: &Headers,
    bytes: &[u8],
    back: bool,
    segment: Segment<'_>,
    out: &mut [u8; MAX_REPLY],
) -> Option<usize> {
    if !is_between_hosts(h) {
        return None;
    }
    let l3 = usize::from(h.l3);
    out[..l3].copy_from_slice(bytes.get(..l3)?);
    let mut answered = *h;
    if back {
        out[..6].copy_from_slice(bytes.get(6..12)?);
        out[6..12].copy_from_slice(bytes.get(..6)?);
    } else {
        (answered.src4, answered.dst4, answered.src6, answered.dst6) = (h.dst4, h.src4, h.dst6, h.src6);
        (answered.src_port, answered.dst_port) = (h.dst_port, h.src_port);
    }
    let (body, end) = write_segment(&answered, segment, out)?;
    ip_header(&answered, proto::TCP, out, body, end);
    Some(end)
}

/// Writes a segment that answers one.
fn write_segment(h: &Headers, segment: Segment<'_>, out: &mut [u8; MAX_REPLY]) -> Option<(usize, usize)> {
    let Segment { seq, ack, flags, window, options } = segment;
    let body = usize::from(h.l3) + if h.family == Family::V4 { 20 } else { 40 };
    let len = 20 + options.len();
    let end = body + len;
    let segment = out.get_mut(body..end)?;
    segment.fill(0);
    segment[..2].copy_from_slice(&h.dst_port.to_be_bytes());
    segment[2..4].copy_from_slice(&h.src_port.to_be_bytes());
    segment[4..8].copy_from_slice(&seq.to_be_bytes());
    segment[8..12].copy_from_slice(&ack.to_be_bytes());
    (segment[12], segment[13]) = ((len / 4) as u8 * 16, flags);
    segment[14..16].copy_from_slice(&window.to_be_bytes());
    segment[20..].copy_from_slice(options);
    let sum = checksum(segment, pseudo_header(h, proto::TCP, len));
    out[body + 16..body + 18].copy_from_slice(&sum.to_be_bytes());
    Some((body, end))
}

/// Writes the network header of a reply whose payload is `[body, end)`.
fn ip_header(h: &Headers, proto: u8, out: &mut [u8; MAX_REPLY], body: usize, end: usize) {
    let (l3, payload) = (usize::from(h.l3), end - body);
    let header = &mut out[l3..body];
    match h.family {
        Family::V4 => {
            header.fill(0);
            header[0] = 0x45;
            header[2..4].copy_from_slice(&((20 + payload) as u16).to_be_bytes());
            (header[8], header[9]) = (TTL, proto);
            header[12..16].copy_from_slice(&h.dst4.to_be_bytes());
            header[16..20].copy_from_slice(&h.src4.to_be_bytes());
            let sum = checksum(header, 0);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        _ => {
            header[..4].copy_from_slice(&[0x60, 0, 0, 0]);
            header[4..6].copy_from_slice(&(payload as u16).to_be_bytes());
            (header[6], header[7]) = (proto, TTL);
            header[8..24].copy_from_slice(&h.dst6.to_be_bytes());
            header[24..40].copy_from_slice(&h.src6.to_be_bytes());
        }
    }
}

/// Sums the pseudo header of a reply.
fn pseudo_header(h: &Headers, proto: u8, len: usize) -> u32 {
    let words =
        |bytes: &[u8]| bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum::<u32>();
    let addresses = match h.family {
        Family::V4 => words(&h.src4.to_be_bytes()) + words(&h.dst4.to_be_bytes()),
        _ => words(&h.src6.to_be_bytes()) + words(&h.dst6.to_be_bytes()),
    };
    addresses + u32::from(proto) + len as u32
}

/// Returns the Internet checksum (RFC 1071) of bytes, on top of a sum: 0 of bytes that have theirs.
pub fn checksum(bytes: &[u8], initial: u32) -> u16 {
    let (pairs, rest) = bytes.as_chunks::<2>();
    let last = rest.first().map_or(0, |byte| u32::from(*byte) << 8);
    let mut sum = initial + last + pairs.iter().map(|pair| u32::from(u16::from_be_bytes(*pair))).sum::<u32>();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(flags: u8) -> Vec<u8> {
        let mut frame = [vec![2; 6], vec![4; 6], vec![8, 0, 0x45, 0, 0, 44, 0, 0, 0, 0, 64, 6, 0, 0]].concat();
        frame.extend([10, 0, 0, 1, 10, 0, 0, 2, 0, 99, 0, 80, 0, 0, 0, 7, 0, 0, 0, 9, 0x50, flags, 0, 0, 0, 0, 0, 0]);
        frame.extend([0; 4]);
        frame
    }

    fn reply_to(verdict: Verdict, frame: &[u8]) -> Option<Vec<u8>> {
        let headers = Headers::parse(frame, frame.len()).unwrap();
        let mut out = [0xff; MAX_REPLY];
        reply(verdict, &headers, frame, &mut out).map(|len| out[..len].to_vec())
    }

    /// All words of a correct header with its checksum add up to 0.
    fn verify(bytes: &[u8], initial: u32) {
        assert_eq!(checksum(bytes, initial), 0);
    }

    #[test]
    fn a_reset_answers_a_segment() {
        for (flags, seq, ack, answered) in [(tcp::SYN, 0, 8u32, 0x14), (tcp::ACK, 9, 0, 4), (0, 0, 7, 0x14)] {
            let out = reply_to(Verdict::Reset, &segment(flags)).unwrap();
            let headers = Headers::parse(&out, out.len()).unwrap();
            assert_eq!((headers.src4, headers.dst4, headers.dst_mac), (0x0a00_0002, 0x0a00_0001, 0x0404_0404_0404));
            assert_eq!((headers.src_port, headers.dst_port, headers.proto), (80, 99, proto::TCP));
            assert_eq!((headers.tcp_seq, headers.tcp_ack, headers.tcp_flags), (seq, ack, answered));
            verify(&out[14..34], 0);
            verify(&out[34..54], pseudo_header(&headers, proto::TCP, 20));
        }
        assert_eq!(reply_to(Verdict::Reset, &segment(tcp::RST)), None);
        assert_eq!(reply_to(Verdict::Reset6, &segment(tcp::SYN)), None);
        assert_eq!(reply_to(Verdict::Deny, &segment(tcp::SYN)), None);
    }

    #[test]
    fn an_icmp_error_quotes_the_packet() {
        let frame = segment(tcp::SYN);
        let out = reply_to(Verdict::Unreach(3), &frame).unwrap();
        let headers = Headers::parse(&out, out.len()).unwrap();
        assert_eq!((headers.proto, headers.icmp_type, out[35]), (proto::ICMP, 3, 3));
        assert_eq!(out[42..], frame[14..42]);
        verify(&out[14..34], 0);
        verify(&out[34..], 0);
        let mut broadcast = frame.clone();
        broadcast[0] = 0xff;
        assert_eq!(reply_to(Verdict::Unreach(3), &broadcast), None);
        assert_eq!(reply_to(Verdict::Unreach(3), &out), None, "no error answers an error");
    }

    /// A packet that may be fragmented, a later fragment and an error get none.
    #[test]
    fn a_packet_that_is_too_long_is_told_what_fits() {
        let mut frame = segment(tcp::ACK);
        let told = |frame: &[u8]| {
            let headers = Headers::parse(frame, frame.len()).unwrap();
            let mut out = [0xff; MAX_REPLY];
            too_big(1476, &headers, frame, &mut out).map(|len| out[..len].to_vec())
        };
        assert_eq!(told(&frame), None);
        frame[20] = 0x40;
        let out = told(&frame).unwrap();
        assert_eq!((out[34..36].to_vec(), out[38..42].to_vec()), (vec![3, 4], vec![0, 0, 5, 196]));
        assert_eq!((&out[..6], &out[26..30], &out[42..]), (&frame[6..12], &frame[30..34], &frame[14..42]));
        verify(&out[14..34], 0);
        verify(&out[34..], 0);
        let mut error = out;
        error[20] = 0x40;
        assert_eq!(told(&error), None);
        frame[21] = 9;
        assert_eq!(told(&frame), None);

        let mut frame = [vec![2; 6], vec![4; 6], vec![0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, 17, 64]].concat();
        frame.extend([[0x20; 16], [0x21; 16], [0; 16]].concat());
        frame.extend([0; 4]);
        let out = told(&frame).unwrap();
        let headers = Headers::parse(&out, out.len()).unwrap();
        assert_eq!((out[54..56].to_vec(), out[58..62].to_vec()), (vec![2, 0], vec![0, 0, 5, 196]));
        assert_eq!((headers.src6, headers.dst6), (u128::from_be_bytes([0x21; 16]), u128::from_be_bytes([0x20; 16])));
        verify(&out[54..], pseudo_header(&headers, proto::ICMP6, out.len() - 54));
    }

    #[test]
    fn an_icmpv6_error_quotes_what_fits() {
        let mut frame = [vec![2; 6], vec![4; 6], vec![0x86, 0xdd, 0x60, 0, 0, 0, 0, 100, 17, 64]].concat();
        frame.extend([[0x20; 16], [0x21; 16]].concat());
        frame.extend([0; 100]);
        let headers = Headers::parse(&frame[..128], frame.len()).unwrap();
        let mut out = [0; MAX_REPLY];
        let len = reply(Verdict::Unreach6(4), &headers, &frame[..128], &mut out).unwrap();
        let back = Headers::parse(&out[..len], len).unwrap();
        assert_eq!((len, back.proto, back.icmp_type, back.src6), (128, proto::ICMP6, 1, headers.dst6));
        assert_eq!(out[62..128], frame[14..80]);
        verify(&out[54..128], pseudo_header(&back, proto::ICMP6, 74));
    }
}

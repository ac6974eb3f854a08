// SPDX-License-Identifier: BSD-2-Clause
//! TCP segments as frames, made and read by code that the crate does not share.

use unetmap_filter::Headers;

/// The ends of a connection: addresses and ports of the client and the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ends {
    pub(crate) client: (u128, u16),
    pub(crate) server: (u128, u16),
    pub(crate) v6: bool,
    /// VLAN tags of the frames.
    pub(crate) tags: &'static [u8],
}

pub(crate) const ENDS: Ends = Ends { client: (0x0a00_0001, 4000), server: (0x0a00_0002, 80), v6: false, tags: &[] };

/// A segment of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u8,
    pub(crate) window: u16,
    pub(crate) options: Vec<u8>,
    pub(crate) data: Vec<u8>,
}

fn sum(bytes: &[u8]) -> u32 {
    bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum()
}

fn fold(mut sum: u32) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The sum of addresses, protocol and length.
fn pseudo(ends: Ends, len: usize) -> u32 {
    sum(&ends.client.0.to_be_bytes()) + sum(&ends.server.0.to_be_bytes()) + 6 + len as u32
}

/// Returns a frame of a segment; `to_server`: its direction.
pub(crate) fn frame(ends: Ends, to_server: bool, segment: &Segment) -> Vec<u8> {
    let (src, dst) = if to_server { (ends.client, ends.server) } else { (ends.server, ends.client) };
    let mac = |n: u8| [2, 0, 0, 0, 0, n];
    let (from, to) = if to_server { (1, 2) } else { (2, 1) };
    let mut bytes = [mac(to), mac(from)].concat();
    bytes.extend(ends.tags);
    let Segment { seq, ack, flags, window, options, data } = segment;
    let len = 20 + options.len() + data.len();
    if ends.v6 {
        bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        bytes.extend((len as u16).to_be_bytes());
        bytes.extend([6, 64]);
        bytes.extend([src.0.to_be_bytes(), dst.0.to_be_bytes()].concat());
    } else {
        bytes.extend([8, 0, 0x45, 0]);
        bytes.extend((len as u16 + 20).to_be_bytes());
        bytes.extend([0, 0, 0x40, 0, 64, 6, 0, 0]);
        bytes.extend([(src.0 as u32).to_be_bytes(), (dst.0 as u32).to_be_bytes()].concat());
    }
    let at = bytes.len();
    bytes.extend([src.1.to_be_bytes(), dst.1.to_be_bytes()].concat());
    bytes.extend([seq.to_be_bytes(), ack.to_be_bytes()].concat());
    bytes.extend([(5 + options.len() as u8 / 4) << 4, *flags]);
    bytes.extend(window.to_be_bytes());
    bytes.extend([0; 4]);
    bytes.extend(options);
    bytes.extend(data);
    let check = !fold(sum(&bytes[at..]) + pseudo(ends, len));
    bytes[at + 16..at + 18].copy_from_slice(&check.to_be_bytes());
    bytes
}

/// Reads a frame, and checks its checksums, its ends and its MAC addresses.
#[track_caller]
pub(crate) fn parse(ends: Ends, to_server: bool, bytes: &[u8]) -> Segment {
    let h = Headers::parse(&bytes[..bytes.len().min(128)], bytes.len()).expect("a valid frame");
    let (src, dst) = if ends.v6 { (h.src6, h.dst6) } else { (h.src4.into(), h.dst4.into()) };
    let seen = [(src, h.src_port), (dst, h.dst_port)];
    let expected = [ends.client, ends.server];
    assert_eq!(seen, if to_server { expected } else { [expected[1], expected[0]] });
    assert_eq!([bytes[5], bytes[11]], if to_server { [2, 1] } else { [1, 2] });
    let (l3, l4) = (usize::from(h.l3), usize::from(h.l4));
    assert_eq!(bytes[12..l3 - 2], *ends.tags);
    let end = l3 + usize::from(h.ip_len);
    if !ends.v6 && bytes[l3 + 10..l3 + 12] != [0, 0] {
        assert_eq!(fold(sum(&bytes[l3..l4])), 0xffff, "IPv4 checksum");
    }
    assert_eq!(fold(sum(&bytes[l4..end]) + pseudo(ends, end - l4)), 0xffff, "TCP checksum");
    let data = l4 + usize::from(bytes[l4 + 12] >> 4) * 4;
    Segment {
        seq: h.tcp_seq,
        ack: h.tcp_ack,
        flags: h.tcp_flags,
        window: h.tcp_window,
        options: bytes[l4 + 20..data].to_vec(),
        data: bytes[data..end].to_vec(),
    }
}

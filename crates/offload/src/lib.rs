// SPDX-License-Identifier: BSD-2-Clause
//! Segmentation and checksum offload in software, for a receiver that expects finished frames.
//!
//! A port may have a virtio-net header before each packet. The header may request a checksum, or say that the packet
//! is to be segmented into several frames (GSO):
//!
//! ```text
//! [ header | Ethernet IP TCP | payload ................ ]      gso_size bytes of payload a frame
//!            Ethernet IP TCP | payload       Ethernet IP TCP | payload      ...
//! ```
//! For a receiver without such a header, [`finish`] makes the frames. It works on a private copy that no client can
//! write.
//!
//! Source: the specification of virtio 1.2, section 5.1.6; RFC 1071 for the checksum, RFC 791 and 8200 for fragments.

#![forbid(unsafe_code)]

/// Bytes of a virtio-net header: of legacy devices, and of modern ones, which add the number of buffers.
pub const VNET_HDR_LENS: [usize; 2] = [10, 12];
/// Bytes of a packet, without its virtio-net header, at most: an IP packet with an Ethernet header and two VLAN tags.
pub const MAX_PACKET: usize = 65535 + ETHERNET + 2 * TAG;

/// Frames that one packet may be segmented into: about what the longest packet becomes with the smallest segments that
/// IPv4 has to carry.
///
/// Bounds: 45 (64 KiB of TCP with 1460 B segments) and more. Upper bound of the delay of other ports: each frame
/// costs a checksum at each port without a virtio-net header (decision 25).
pub const MAX_GSO_FRAMES: usize = 128;

/// Bytes of a packet, without its virtio-net header, at least.
pub const LEAST_PACKET: usize = ETHERNET;
const ETHERNET: usize = 14;
const TAG: usize = 4;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPES_OF_TAGS: [u16; 2] = [0x8100, 0x88a8];

/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`.
const NEEDS_CHECKSUM: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_*`.
const GSO_NONE: u8 = 0;
const GSO_TCP4: u8 = 1;
const GSO_UDP: u8 = 3;
const GSO_TCP6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
/// `VIRTIO_NET_HDR_GSO_ECN`, a flag beside these: the packet has a congestion mark, which its frames inherit anyway.
const GSO_ECN: u8 = 0x80;

const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;
/// The next header of an IPv6 fragment.
const NEXT_FRAGMENT: u8 = 44;
const FRAGMENT_HEADER: usize = 8;

const IPV4_LEAST: usize = 20;
const IPV6: usize = 40;
const TCP_LEAST: usize = 20;
const UDP: usize = 8;

const TCP_FIN: u8 = 0x01;
const TCP_PSH: u8 = 0x08;
const TCP_CWR: u8 = 0x80;
const IPV4_MORE: u16 = 0x2000;

/// Bytes of headers of each segment at most: Ethernet with two tags, IPv4 and TCP with all options.
const MAX_SEGMENT_HEADERS: usize = ETHERNET + 2 * TAG + 60 + 60;

/// The virtio-net header does not match the packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeaderMismatch;

/// The fields of a virtio-net header that request work.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct OffloadRequest {
    checksum: Option<Checksum>,
    gso: u8,
    gso_size: usize,
}

/// A checksum of the bytes from `start`, to be stored `offset` bytes after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Checksum {
    start: usize,
    offset: usize,
}

impl OffloadRequest {
    /// Reads the ten bytes that all headers begin with.
    fn read(header: &[u8]) -> Result<OffloadRequest, HeaderMismatch> {
        let header: &[u8; 10] = header.first_chunk().ok_or(HeaderMismatch)?;
        let word = |at: usize| usize::from(u16::from_le_bytes([header[at], header[at + 1]]));
        let needs_checksum = header[0] & NEEDS_CHECKSUM != 0;
        Ok(OffloadRequest {
            checksum: needs_checksum.then(|| Checksum { start: word(6), offset: word(8) }),
            gso: header[1] & !GSO_ECN,
            gso_size: word(4),
        })
    }
}

/// Returns whether a packet that begins with this virtio-net header is finished: it has its checksum, and is one frame.
#[inline]
pub fn requests_nothing(header: &[u8; 16]) -> bool {
    header[0] & NEEDS_CHECKSUM == 0 && header[1] & !GSO_ECN == GSO_NONE
}

/// A frame in two pieces: its headers, and a part of the packet's payload.
pub type FramePieces<'a> = [&'a [u8]; 2];

/// Returns an upper bound of the slots of `size` bytes that the frames of a packet of `bytes` bytes need, which begins
/// with this virtio-net header.
pub fn slots_needed(header: &[u8], bytes: usize, size: usize) -> usize {
    match OffloadRequest::read(header) {
        Ok(OffloadRequest { gso, gso_size, .. }) if gso != GSO_NONE && gso_size > 0 => {
            let frames = bytes.div_ceil(gso_size).min(MAX_GSO_FRAMES);
            frames * (gso_size.min(bytes) + MAX_SEGMENT_HEADERS).div_ceil(size)
        }
        _ => bytes.div_ceil(size),
    }
}

/// Finishes a packet that begins with a virtio-net header of `header` bytes (10 or 12): calls `each` with each frame,
/// without that header, in order, until `each` returns `false` (no room; the remaining frames are not made). Returns
/// the number of frames that `each` did not accept. Changes the packet.
///
/// # Errors
/// [`HeaderMismatch`], before `each` was called.
pub fn finish(
    packet: &mut [u8],
    header: usize,
    mut each: impl FnMut(FramePieces<'_>) -> bool,
) -> Result<usize, HeaderMismatch> {
    let request = OffloadRequest::read(packet)?;
    let packet = packet.get_mut(header..).ok_or(HeaderMismatch)?;
    if packet.len() > MAX_PACKET || packet.len() < ETHERNET {
        return Err(HeaderMismatch);
    }
    match request.gso {
        GSO_NONE => {
            if let Some(checksum) = request.checksum {
                store_checksum(packet, checksum)?;
            }
            Ok(usize::from(!each([packet, &[]])))
        }
        GSO_TCP4 | GSO_TCP6 | GSO_UDP_L4 => segment(packet, request, each),
        GSO_UDP => fragment(packet, request, each),
        _ => Err(HeaderMismatch),
    }
}

/// Computes the checksum that the virtio-net header, of `header` bytes (10 or 12), requests for a packet of one
/// frame, and removes the request: the packet's bytes are final then. A packet to be segmented does not change: its
/// segments have the same addresses and ports.
///
/// # Errors
/// [`HeaderMismatch`].
pub fn fill_checksum(packet: &mut [u8], header: usize) -> Result<(), HeaderMismatch> {
    let request = OffloadRequest::read(packet)?;
    let Some(checksum) = request.checksum.filter(|_| request.gso == GSO_NONE) else { return Ok(()) };
    store_checksum(packet.get_mut(header..).ok_or(HeaderMismatch)?, checksum)?;
    packet[0] &= !NEEDS_CHECKSUM;
    packet[6..10].fill(0);
    Ok(())
}

/// Computes and stores the checksum; its field holds the sum of the pseudo header.
fn store_checksum(packet: &mut [u8], checksum: Checksum) -> Result<(), HeaderMismatch> {
    let covered = packet.get_mut(checksum.start..).ok_or(HeaderMismatch)?;
    let end = checksum.offset.checked_add(2).ok_or(HeaderMismatch)?;
    if covered.len() < end {
        return Err(HeaderMismatch);
    }
    let sum = sum_of(covered, 0);
    covered[checksum.offset..end].copy_from_slice(&checksum_of(sum));
    Ok(())
}

/// Offsets of the headers of an IP packet.
#[derive(Clone, Copy)]
struct Layers {
    /// The IP header.
    ip: usize,
    /// The header after it.
    transport: usize,
    v4: bool,
    protocol: u8,
}

impl Layers {
    fn find(packet: &[u8]) -> Result<Layers, HeaderMismatch> {
        let word = |at: usize| packet.get(at..at + 2).map(|b| u16::from_be_bytes([b[0], b[1]])).ok_or(HeaderMismatch);
        let byte = |at: usize| packet.get(at).copied().ok_or(HeaderMismatch);
        let mut ip = ETHERNET;
        for _ in 0..2 {
            if ETHERTYPES_OF_TAGS.contains(&word(ip - 2)?) {
                ip += TAG;
            }
        }
        let layers = match word(ip - 2)? {
            ETHERTYPE_IPV4 => {
                let header = usize::from(byte(ip)? & 0xf) * 4;
                if header < IPV4_LEAST {
                    return Err(HeaderMismatch);
                }
                Layers { ip, transport: ip + header, v4: true, protocol: byte(ip + 9)? }
            }
            // A GSO packet has no extension headers.
            ETHERTYPE_IPV6 => Layers { ip, transport: ip + IPV6, v4: false, protocol: byte(ip + 6)? },
            _ => return Err(HeaderMismatch),
        };
        if packet.len() < layers.transport {
            return Err(HeaderMismatch);
        }
        Ok(layers)
    }

    /// Returns the sum of the pseudo header for `bytes` of transport header and payload.
    fn pseudo_sum(self, packet: &[u8], bytes: usize) -> u32 {
        let addresses = if self.v4 { self.ip + 12..self.ip + 20 } else { self.ip + 8..self.ip + 40 };
        sum_of(&packet[addresses], u32::from(self.protocol) + bytes as u32)
    }

    /// Sets the length in the IP header for `bytes` after it, and for IPv4 its checksum.
    fn set_length(self, packet: &mut [u8], bytes: usize) {
        let (ip, transport) = (self.ip, self.transport);
        if self.v4 {
            let total = (transport - ip + bytes) as u16;
            packet[ip + 2..ip + 4].copy_from_slice(&total.to_be_bytes());
            packet[ip + 10..ip + 12].fill(0);
            let sum = sum_of(&packet[ip..transport], 0);
            packet[ip + 10..ip + 12].copy_from_slice(&checksum_of(sum));
        } else {
            let length = (transport - ip - IPV6 + bytes) as u16;
            packet[ip + 4..ip + 6].copy_from_slice(&length.to_be_bytes());
        }
    }
}

/// Segments a packet of TCP or UDP.
fn segment(
    packet: &mut [u8],
    request: OffloadRequest,
    mut each: impl FnMut(FramePieces<'_>) -> bool,
) -> Result<usize, HeaderMismatch> {
    let layers = Layers::find(packet)?;
    let at = layers.transport;
    let tcp = request.gso != GSO_UDP_L4;
    let family_fits = match request.gso {
        GSO_TCP4 => layers.v4,
        GSO_TCP6 => !layers.v4,
        _ => true,
    };
    let header = match (layers.protocol, tcp) {
        (PROTOCOL_TCP, true) => usize::from(packet.get(at + 12).ok_or(HeaderMismatch)? >> 4) * 4,
        (PROTOCOL_UDP, false) => UDP,
        _ => return Err(HeaderMismatch),
    };
    let payload = at + header;
    if !family_fits || request.gso_size == 0 || tcp && header < TCP_LEAST || packet.len() < payload {
        return Err(HeaderMismatch);
    }
    let (headers, payload) = packet.split_at_mut(payload);
    let number = |bytes: &[u8]| bytes.iter().fold(0u32, |n, byte| n << 8 | u32::from(*byte));
    let sequence = if tcp { number(&headers[at + 4..at + 8]) } else { 0 };
    let flags = if tcp { headers[at + 13] } else { 0 };
    let id = number(&headers[layers.ip + 4..layers.ip + 6]) as u16;
    let count = payload.len().div_ceil(request.gso_size).max(1);
    if count > MAX_GSO_FRAMES {
        return Err(HeaderMismatch);
    }
    for i in 0..count {
        let from = i * request.gso_size;
        let part = &payload[from..payload.len().min(from + request.gso_size)];
        let bytes = header + part.len();
        if layers.v4 {
            headers[layers.ip + 4..layers.ip + 6].copy_from_slice(&id.wrapping_add(i as u16).to_be_bytes());
        }
        layers.set_length(headers, bytes);
        let field = if tcp {
            headers[at + 4..at + 8].copy_from_slice(&sequence.wrapping_add(from as u32).to_be_bytes());
            let only_first = if i == 0 { 0 } else { TCP_CWR };
            let only_last = if i + 1 == count { 0 } else { TCP_FIN | TCP_PSH };
            headers[at + 13] = flags & !(only_first | only_last);
            at + 16
        } else {
            headers[at + 4..at + 6].copy_from_slice(&(bytes as u16).to_be_bytes());
            at + 6
        };
        headers[field..field + 2].fill(0);
        let sum = sum_of(&headers[at..], layers.pseudo_sum(headers, bytes));
        // The length of the header is even, so the payload begins a 16-bit word.
        let sum = sum_of(part, sum);
        headers[field..field + 2].copy_from_slice(&checksum_of(sum));
        if !each([headers, part]) {
            return Ok(count - i);
        }
    }
    Ok(0)
}

/// Divides a UDP packet into IP fragments.
fn fragment(
    packet: &mut [u8],
    request: OffloadRequest,
    mut each: impl FnMut(FramePieces<'_>) -> bool,
) -> Result<usize, HeaderMismatch> {
    let layers = Layers::find(packet)?;
    let at = layers.transport;
    // Fragments begin at multiples of 8 bytes.
    let step = request.gso_size & !7;
    if layers.protocol != PROTOCOL_UDP || step == 0 || packet.len() < at + UDP {
        return Err(HeaderMismatch);
    }
    let bytes = packet.len() - at;
    let count = bytes.div_ceil(step);
    if count > MAX_GSO_FRAMES {
        return Err(HeaderMismatch);
    }
    packet[at + 4..at + 6].copy_from_slice(&(bytes as u16).to_be_bytes());
    packet[at + 6..at + 8].fill(0);
    let sum = sum_of(&packet[at..], layers.pseudo_sum(packet, bytes));
    packet[at + 6..at + 8].copy_from_slice(&checksum_of(sum));

    let (before, data) = packet.split_at_mut(at);
    let mut headers = before.to_vec();
    if !layers.v4 {
        // The packet's checksum serves as the identification: it differs from one packet to the next.
        let id = [0, 0, data[6], data[7]];
        headers[layers.ip + 6] = NEXT_FRAGMENT;
        headers.extend_from_slice(&[layers.protocol, 0, 0, 0]);
        headers.extend_from_slice(&id);
    }
    let layers = Layers { transport: headers.len(), ..layers };
    for i in 0..count {
        let from = i * step;
        let part = &data[from..data.len().min(from + step)];
        let more = i + 1 < count;
        if layers.v4 {
            let word = (from / 8) as u16 | if more { IPV4_MORE } else { 0 };
            headers[layers.ip + 6..layers.ip + 8].copy_from_slice(&word.to_be_bytes());
        } else {
            let word = from as u16 | u16::from(more);
            let field = layers.transport - FRAGMENT_HEADER + 2;
            headers[field..field + 2].copy_from_slice(&word.to_be_bytes());
        }
        layers.set_length(&mut headers, part.len());
        if !each([&headers, part]) {
            return Ok(count - i);
        }
    }
    Ok(0)
}

/// Adds the 16-bit words of `bytes` to a sum; an odd last byte is padded with a zero.
fn sum_of(bytes: &[u8], sum: u32) -> u32 {
    let (words, rest) = bytes.as_chunks::<2>();
    let mut wide = u64::from(sum);
    wide += words.iter().map(|word| u64::from(u16::from_be_bytes(*word))).sum::<u64>();
    wide += rest.first().map_or(0, |&byte| u64::from(byte) << 8);
    while wide >> 16 != 0 {
        wide = (wide & 0xffff) + (wide >> 16);
    }
    wide as u32
}

/// Returns the checksum for a sum. 0 would mean for UDP that there is none; 0xffff is equivalent.
fn checksum_of(sum: u32) -> [u8; 2] {
    match !(sum as u16) {
        0 => [0xff, 0xff],
        checksum => checksum.to_be_bytes(),
    }
}

#[cfg(test)]
mod tests;

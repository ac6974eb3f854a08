//! What hardware would do for a sender, done for a receiver that expects finished frames.
//!
//! A port may have a virtio-net header before each packet. It says that a checksum is still to be computed, or that the
//! packet is a whole row of frames in one piece, to be cut:
//!
//! ```text
//! [ header | Ethernet IP TCP | payload ................ ]      gso_size bytes of payload a frame
//!            Ethernet IP TCP | payload       Ethernet IP TCP | payload      ...
//! ```
//! Where the receiver's port has no such header, [`finish`] makes the frames. It works on a copy that nobody else can write.
//!
//! Source: the specification of virtio 1.2, section 5.1.6; RFC 1071 for the checksum, RFC 791 and 8200 for fragments.

/// Bytes of a header: older devices', and newer ones', which count buffers.
pub const HEADERS: [usize; 2] = [10, 12];
/// Bytes of a packet, without its header, at most: an IP packet with an Ethernet header and two tags.
pub const PACKET_MOST: usize = 65535 + ETHERNET + 2 * TAG;

/// Frames that one packet may become: what the longest is with the smallest segments that IPv4 has to carry, about. More of
/// them would delay others.
const FRAMES_MOST: usize = 128;

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
/// A bit beside these: the packet had a congestion mark, which its frames have by themselves.
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

/// What each frame of a row has before its payload, at most: Ethernet with two tags, IPv4 and TCP with all options.
const HEADERS_OF_FRAMES: usize = ETHERNET + 2 * TAG + 60 + 60;

/// The packet and its header do not fit each other: it cannot be finished.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Nonsense;

/// What a virtio-net header says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Wishes {
    checksum: Option<Checksum>,
    gso: u8,
    gso_size: usize,
}

/// Of the bytes from `start`, to be put `offset` bytes behind it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Checksum {
    start: usize,
    offset: usize,
}

impl Wishes {
    /// As the ten bytes that all headers begin with say.
    fn read(header: &[u8]) -> Result<Wishes, Nonsense> {
        let header: &[u8; 10] = header.first_chunk().ok_or(Nonsense)?;
        let word = |at: usize| usize::from(u16::from_le_bytes([header[at], header[at + 1]]));
        let needs = header[0] & NEEDS_CHECKSUM != 0;
        Ok(Wishes {
            checksum: needs.then(|| Checksum { start: word(6), offset: word(8) }),
            gso: header[1] & !GSO_ECN,
            gso_size: word(4),
        })
    }
}

/// A frame, in two pieces: its headers, and a part of the packet's payload.
pub type Pieces<'a> = [&'a [u8]; 2];

/// Slots of `size` bytes that are enough for all frames that a packet with a header becomes.
pub fn slots(packet: &[u8], size: usize) -> usize {
    match Wishes::read(packet) {
        Ok(Wishes { gso, gso_size, .. }) if gso != GSO_NONE && gso_size > 0 => {
            let frames = packet.len().div_ceil(gso_size).min(FRAMES_MOST);
            frames * (gso_size.min(packet.len()) + HEADERS_OF_FRAMES).div_ceil(size)
        }
        _ => packet.len().div_ceil(size),
    }
}

/// Finishes a packet that begins with a header of `header` bytes (10 or 12): hands each frame to `each`, without header, in
/// order, until that says `false`: what has no room is not worth a checksum. Returns how many frames went nowhere. The packet is
/// changed on the way.
///
/// # Errors
/// [`Nonsense`], before `each` was called.
pub fn finish(packet: &mut [u8], header: usize, mut each: impl FnMut(Pieces<'_>) -> bool) -> Result<usize, Nonsense> {
    let wishes = Wishes::read(packet)?;
    let packet = packet.get_mut(header..).ok_or(Nonsense)?;
    if packet.len() > PACKET_MOST || packet.len() < ETHERNET {
        return Err(Nonsense);
    }
    match wishes.gso {
        GSO_NONE => {
            if let Some(checksum) = wishes.checksum {
                fill_in(packet, checksum)?;
            }
            Ok(usize::from(!each([packet, &[]])))
        }
        GSO_TCP4 | GSO_TCP6 | GSO_UDP_L4 => cut(packet, wishes, each),
        GSO_UDP => fragment(packet, wishes, each),
        _ => Err(Nonsense),
    }
}

/// Computes the checksum that a packet of one frame still lacks, and takes the wish out of its header, of `header` bytes (10
/// or 12): from then on its bytes stay as they are. What is cut stays a row: its frames have the same addresses and ports.
///
/// # Errors
/// [`Nonsense`].
pub fn settle(packet: &mut [u8], header: usize) -> Result<(), Nonsense> {
    let wishes = Wishes::read(packet)?;
    let Some(checksum) = wishes.checksum.filter(|_| wishes.gso == GSO_NONE) else { return Ok(()) };
    fill_in(packet.get_mut(header..).ok_or(Nonsense)?, checksum)?;
    packet[0] &= !NEEDS_CHECKSUM;
    packet[6..10].fill(0);
    Ok(())
}

/// Computes the checksum; its field holds the sum of the pseudo header.
fn fill_in(packet: &mut [u8], checksum: Checksum) -> Result<(), Nonsense> {
    let covered = packet.get_mut(checksum.start..).ok_or(Nonsense)?;
    let end = checksum.offset.checked_add(2).ok_or(Nonsense)?;
    if covered.len() < end {
        return Err(Nonsense);
    }
    let sum = sum_of(covered, 0);
    covered[checksum.offset..end].copy_from_slice(&wire_form(sum));
    Ok(())
}

/// Where the headers of an IP packet are.
#[derive(Clone, Copy)]
struct Layers {
    /// The IP header.
    ip: usize,
    /// What follows it.
    transport: usize,
    v4: bool,
    protocol: u8,
}

impl Layers {
    fn find(packet: &[u8]) -> Result<Layers, Nonsense> {
        let word = |at: usize| packet.get(at..at + 2).map(|b| u16::from_be_bytes([b[0], b[1]])).ok_or(Nonsense);
        let byte = |at: usize| packet.get(at).copied().ok_or(Nonsense);
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
                    return Err(Nonsense);
                }
                Layers { ip, transport: ip + header, v4: true, protocol: byte(ip + 9)? }
            }
            // Before a row of frames come no headers but these.
            ETHERTYPE_IPV6 => Layers { ip, transport: ip + IPV6, v4: false, protocol: byte(ip + 6)? },
            _ => return Err(Nonsense),
        };
        if packet.len() < layers.transport {
            return Err(Nonsense);
        }
        Ok(layers)
    }

    /// The sum of the pseudo header for `bytes` of transport header and payload.
    fn pseudo_sum(self, packet: &[u8], bytes: usize) -> u32 {
        let addresses = if self.v4 { self.ip + 12..self.ip + 20 } else { self.ip + 8..self.ip + 40 };
        sum_of(&packet[addresses], u32::from(self.protocol) + bytes as u32)
    }

    /// Sets the IP header's length for `bytes` behind it, and for IPv4 its checksum.
    fn set_length(self, packet: &mut [u8], bytes: usize) {
        let (ip, transport) = (self.ip, self.transport);
        if self.v4 {
            let total = (transport - ip + bytes) as u16;
            packet[ip + 2..ip + 4].copy_from_slice(&total.to_be_bytes());
            packet[ip + 10..ip + 12].fill(0);
            let sum = sum_of(&packet[ip..transport], 0);
            packet[ip + 10..ip + 12].copy_from_slice(&wire_form(sum));
        } else {
            let length = (transport - ip - IPV6 + bytes) as u16;
            packet[ip + 4..ip + 6].copy_from_slice(&length.to_be_bytes());
        }
    }
}

/// Cuts a packet of TCP or UDP into frames with headers of their own.
fn cut(packet: &mut [u8], wishes: Wishes, mut each: impl FnMut(Pieces<'_>) -> bool) -> Result<usize, Nonsense> {
    let layers = Layers::find(packet)?;
    let at = layers.transport;
    let tcp = wishes.gso != GSO_UDP_L4;
    let family_fits = match wishes.gso {
        GSO_TCP4 => layers.v4,
        GSO_TCP6 => !layers.v4,
        _ => true,
    };
    let header = match (layers.protocol, tcp) {
        (PROTOCOL_TCP, true) => usize::from(packet.get(at + 12).ok_or(Nonsense)? >> 4) * 4,
        (PROTOCOL_UDP, false) => UDP,
        _ => return Err(Nonsense),
    };
    let payload = at + header;
    if !family_fits || wishes.gso_size == 0 || tcp && header < TCP_LEAST || packet.len() < payload {
        return Err(Nonsense);
    }
    let (headers, payload) = packet.split_at_mut(payload);
    let number = |bytes: &[u8]| bytes.iter().fold(0u32, |n, byte| n << 8 | u32::from(*byte));
    let sequence = if tcp { number(&headers[at + 4..at + 8]) } else { 0 };
    let flags = if tcp { headers[at + 13] } else { 0 };
    let id = number(&headers[layers.ip + 4..layers.ip + 6]) as u16;
    let count = payload.len().div_ceil(wishes.gso_size).max(1);
    if count > FRAMES_MOST {
        return Err(Nonsense);
    }
    for i in 0..count {
        let from = i * wishes.gso_size;
        let part = &payload[from..payload.len().min(from + wishes.gso_size)];
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
        // The header's bytes are even in number, so that the payload's words begin where it begins.
        let sum = sum_of(part, sum);
        headers[field..field + 2].copy_from_slice(&wire_form(sum));
        if !each([headers, part]) {
            return Ok(count - i);
        }
    }
    Ok(0)
}

/// Cuts a packet of UDP into IP fragments.
fn fragment(packet: &mut [u8], wishes: Wishes, mut each: impl FnMut(Pieces<'_>) -> bool) -> Result<usize, Nonsense> {
    let layers = Layers::find(packet)?;
    let at = layers.transport;
    // Fragments begin at multiples of 8 bytes.
    let step = wishes.gso_size & !7;
    if layers.protocol != PROTOCOL_UDP || step == 0 || packet.len() < at + UDP {
        return Err(Nonsense);
    }
    let bytes = packet.len() - at;
    let count = bytes.div_ceil(step);
    if count > FRAMES_MOST {
        return Err(Nonsense);
    }
    packet[at + 4..at + 6].copy_from_slice(&(bytes as u16).to_be_bytes());
    packet[at + 6..at + 8].fill(0);
    let sum = sum_of(&packet[at..], layers.pseudo_sum(packet, bytes));
    packet[at + 6..at + 8].copy_from_slice(&wire_form(sum));

    let (before, data) = packet.split_at_mut(at);
    let mut headers = before.to_vec();
    if !layers.v4 {
        // The packet's own checksum, which differs from one to the next, tells its fragments from others'.
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

/// Adds the 16-bit words of `bytes` to a sum; a last odd byte counts as if a zero followed.
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

/// The checksum that belongs to a sum, as it is sent: for UDP 0 means that there is none, and its equal is taken.
fn wire_form(sum: u32) -> [u8; 2] {
    match !(sum as u16) {
        0 => [0xff, 0xff],
        checksum => checksum.to_be_bytes(),
    }
}

#[cfg(test)]
mod tests;

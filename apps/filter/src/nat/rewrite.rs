// SPDX-License-Identifier: BSD-2-Clause
//! Changes addresses and ports in the first bytes of a frame, and the checksums with them by the differences
//! (RFC 1624).

use crate::packet::{Headers, proto};

/// An address and a port; for ICMP queries the port is the identifier, for other protocols 0.
pub(crate) type End = (u32, u16);

/// Where the parts of an IPv4 packet are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    l3: usize,
    l4: usize,
    proto: u8,
    /// Whether the transport header is there.
    has_transport: bool,
}

/// Offset in an IPv4 header.
const SUM: usize = 10;
const SRC: usize = 12;
const DST: usize = 16;

impl Layout {
    /// Returns the places of a packet that was parsed.
    pub(crate) fn of(h: &Headers) -> Layout {
        Layout { l3: h.l3.into(), l4: h.l4.into(), proto: h.proto, has_transport: h.has_transport }
    }

    /// Returns the places of the packet that an ICMP error quotes, with its ends; `None` if it is cut, or a later
    /// fragment.
    pub(crate) fn quoted(h: &Headers, bytes: &[u8]) -> Option<(Layout, End, End)> {
        let l3 = usize::from(h.l4) + 8;
        let ip = bytes.get(l3..)?.first_chunk::<20>()?;
        let l4 = l3 + usize::from(ip[0] & 15) * 4;
        let first_fragment = u16::from_be_bytes([ip[6], ip[7]]) & 0x1fff == 0;
        if ip[0] >> 4 != 4 || l4 < l3 + 20 || !first_fragment {
            return None;
        }
        let layout = Layout { l3, l4, proto: ip[9], has_transport: true };
        let rest = bytes.get(l4..)?.first_chunk::<8>()?;
        let (src_port, dst_port) = match layout.proto {
            proto::ICMP => (u16::from_be_bytes([rest[4], rest[5]]), 0),
            proto::TCP | proto::UDP | proto::UDPLITE => {
                (u16::from_be_bytes([rest[0], rest[1]]), u16::from_be_bytes([rest[2], rest[3]]))
            }
            _ => (0, 0),
        };
        let address = |at: usize| u32::from_be_bytes([ip[at], ip[at + 1], ip[at + 2], ip[at + 3]]);
        Some((layout, (address(SRC), src_port), (address(DST), dst_port)))
    }

    /// Returns where the checksum is that covers the addresses, and whether 0 means that there is none.
    fn transport_sum(&self) -> Option<(usize, bool)> {
        match self.proto {
            _ if !self.has_transport => None,
            proto::TCP => Some((self.l4 + 16, false)),
            proto::UDP | proto::UDPLITE => Some((self.l4 + 6, true)),
            _ => None,
        }
    }

    fn set_address(&self, bytes: &mut [u8], at: usize, address: u32) {
        for (i, word) in [(address >> 16) as u16, address as u16].into_iter().enumerate() {
            let old = replace(bytes, self.l3 + at + i * 2, word);
            adjust(bytes, self.l3 + SUM, old, word, false);
            if let Some((sum, optional)) = self.transport_sum() {
                adjust(bytes, sum, old, word, optional);
            }
        }
    }

    fn set_port(&self, bytes: &mut [u8], at: usize, port: u16) {
        let (at, sum, optional) = match (self.proto, self.transport_sum()) {
            (proto::ICMP, _) if self.has_transport => (self.l4 + 4, self.l4 + 2, false),
            (_, Some((sum, optional))) => (self.l4 + at, sum, optional),
            _ => return,
        };
        let old = replace(bytes, at, port);
        adjust(bytes, sum, old, port, optional);
    }

    /// Gives the packet another source.
    pub(crate) fn set_source(&self, bytes: &mut [u8], (address, port): End) {
        self.set_address(bytes, SRC, address);
        self.set_port(bytes, 0, port);
    }

    /// Gives the packet another destination. The identifier of an ICMP query belongs to the end that asked, whatever
    /// the direction.
    pub(crate) fn set_destination(&self, bytes: &mut [u8], (address, port): End) {
        self.set_address(bytes, DST, address);
        self.set_port(bytes, 2, port);
    }

    /// Gives the packet other addresses, and leaves the ports.
    pub(crate) fn set_addresses(&self, bytes: &mut [u8], src: u32, dst: u32) {
        self.set_address(bytes, SRC, src);
        self.set_address(bytes, DST, dst);
    }

    /// Changes what an ICMP error quotes, and the error's checksum.
    pub(crate) fn change_quoted(&self, bytes: &mut [u8], outer: &Headers, change: impl FnOnce(&Layout, &mut [u8])) {
        let mut before = [0; crate::packet::HEADER_BYTES];
        let n = bytes.len().min(before.len());
        before[..n].copy_from_slice(&bytes[..n]);
        change(self, bytes);
        let sum = usize::from(outer.l4) + 2;
        for at in (self.l3..n.saturating_sub(1)).step_by(2) {
            let word = |bytes: &[u8]| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
            let (old, new) = (word(&before), word(bytes));
            if old != new {
                adjust(bytes, sum, old, new, false);
            }
        }
    }
}

/// Writes a word, if it is within the bytes, and returns the old one.
fn replace(bytes: &mut [u8], at: usize, new: u16) -> u16 {
    let Some(word) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<2>()) else { return new };
    u16::from_be_bytes(std::mem::replace(word, new.to_be_bytes()))
}

/// Adjusts the checksum at `at` to a word that changed; a quoted packet may end before it.
pub(crate) fn adjust(bytes: &mut [u8], at: usize, old: u16, new: u16, optional: bool) {
    let Some(word) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<2>()) else { return };
    let sum = u16::from_be_bytes(*word);
    if optional && sum == 0 {
        return;
    }
    let mut total = u32::from(!sum) + u32::from(!old) + u32::from(new);
    total = (total & 0xffff) + (total >> 16);
    total = (total & 0xffff) + (total >> 16);
    let sum = match !(total as u16) {
        0 if optional => 0xffff,
        sum => sum,
    };
    *word = sum.to_be_bytes();
}

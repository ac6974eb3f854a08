// SPDX-License-Identifier: BSD-2-Clause
//! Changes of headers by rules `setdscp` and `tcp-setmss`, after which the next rule follows.

use crate::nat::rewrite::adjust;
use crate::packet::{Family, Headers, tcp};
use crate::syn_proxy::{Options, option, set_bytes};
use crate::verdict::Change;

/// Bits of the type of service that are not the DSCP: those of ECN.
const ECN: u8 = 3;

impl Change {
    /// Writes the change into the first bytes of a frame, which `headers` were parsed from, and adjusts the checksum
    /// that covers it. Returns whether something was changed: not in a packet that has no such field.
    pub fn write(self, headers: &Headers, bytes: &mut [u8]) -> bool {
        match self {
            Change::Dscp(dscp) => set_dscp(headers, bytes, dscp),
            Change::Mss(mss) => lower_mss(headers, bytes, mss),
        }
    }
}

/// Returns the type of service, or traffic class, with another DSCP.
pub(crate) fn with_dscp(tos: u8, dscp: u8) -> u8 {
    dscp << 2 | tos & ECN
}

fn set_dscp(h: &Headers, bytes: &mut [u8], dscp: u8) -> bool {
    let l3 = usize::from(h.l3);
    let Some(word) = bytes.get_mut(l3..).and_then(|rest| rest.first_chunk_mut::<2>()) else { return false };
    let old = *word;
    match h.family {
        Family::V4 => word[1] = with_dscp(old[1], dscp),
        Family::V6 => {
            let class = with_dscp(old[0] << 4 | old[1] >> 4, dscp);
            *word = [old[0] & 0xf0 | class >> 4, class << 4 | old[1] & 0x0f];
        }
        Family::Other => return false,
    }
    let new = *word;
    if h.family == Family::V4 {
        adjust(bytes, l3 + 10, u16::from_be_bytes(old), u16::from_be_bytes(new), false);
    }
    new != old
}

fn lower_mss(h: &Headers, bytes: &mut [u8], mss: u16) -> bool {
    if !h.is_tcp() || h.tcp_flags & tcp::SYN == 0 {
        return false;
    }
    let Some((_, value)) = Options::of(h, bytes).find(|(kind, value)| *kind == option::MSS && value.len() == 2) else {
        return false;
    };
    let is_larger = bytes[value.clone()] > mss.to_be_bytes()[..];
    if is_larger {
        set_bytes(h, bytes, value.start, &mss.to_be_bytes());
    }
    is_larger
}

// SPDX-License-Identifier: BSD-2-Clause
//! Asks the ends of idle TCP connections before their states expire, as ipfw does (`dyn_keepalive`).
//!
//! ```text
//! end               firewall             other end
//!   <- ACK, old number |                             in the last 20 s of the state, each 5 s
//!   ACK ->             |  ACK ->                     the end answers, and its packet passes
//! ```
//! and the same towards the other end. When both have answered, the state's lifetime begins anew.
//! The number is one below what the end expects: it drops the segment, which has no data, and answers. The state of
//! a connection with a silent end expires.

use super::{Entry, FIRST_WAS_OUT, Rest, StateTable};
use crate::handshake::Phase;
use crate::packet::{Family, Headers, proto, tcp};
use crate::reply::{MAX_REPLY, Segment, segment};
use crate::rule::RuleId;
use crate::tuning::{EXAMINED_PER_CALL, KEEPALIVE_BEFORE};

impl StateTable {
    /// Examines the next states from `at` on: removes expired ones, and asks the ends of connections that are idle, if
    /// their rule `passes` packets. `send` gets frames, and whether each travels out. Returns false at the end.
    pub(crate) fn ask_idle(
        &mut self,
        at: &mut usize,
        now: u64,
        passes: impl Fn(RuleId) -> bool,
        mut send: impl FnMut(bool, &[u8; MAX_REPLY], usize),
    ) -> bool {
        let end = self.entries.len().min(*at + EXAMINED_PER_CALL);
        for i in *at..end {
            let (entry, rest) = (&self.entries[i], &self.rest[i]);
            if entry.packets == 0 {
                continue;
            }
            if entry.expires <= now {
                self.remove(i as u32);
            } else if entry.is_idle_connection(now) && rest.has_ack & 3 == 3 && passes(entry.rule) {
                for to in [0, 1] {
                    let mut out = [0; MAX_REPLY];
                    if let Some(len) = question(entry, rest, to, &mut out) {
                        let first_was_out = rest.has_ack & FIRST_WAS_OUT != 0;
                        send(first_was_out == (to == 1), &out, len);
                        self.counts.keepalives += 1;
                    }
                }
            }
        }
        *at = end;
        end < self.entries.len()
    }
}

impl Entry {
    /// Whether this is a TCP connection that is up and will expire soon.
    fn is_idle_connection(&self, now: u64) -> bool {
        let [forward, back] = self.flags;
        let is_up =
            forward & back & tcp::SYN != 0 && (forward | back) & tcp::RST == 0 && forward & back & tcp::FIN == 0;
        self.proto == proto::TCP && is_up && self.expires - now <= KEEPALIVE_BEFORE
    }
}

/// Writes a segment to one end, 0 for the one that began; `None` if it has acknowledged something since the lifetime
/// was renewed, or if the connection has no server yet.
fn question(entry: &Entry, rest: &Rest, to: usize, out: &mut [u8; MAX_REPLY]) -> Option<usize> {
    if rest.acked >> to & 1 != 0 || rest.proxy.phase == Phase::Opening {
        return None;
    }
    let from = to ^ 1;
    let (seq, mut ack) = (rest.ack[to].wrapping_sub(1), rest.ack[from]);
    if rest.proxy.phase == Phase::Open && to == 1 {
        // The server does not know the numbers that the client has.
        ack = ack.wrapping_sub(rest.proxy.offset);
    }
    let tags = u64::from(rest.prev) << 32 | u64::from(rest.next);
    let skipped = (tags.leading_zeros() / 32 * 4) as usize;
    let mut bytes = [0; 22];
    bytes[..6].copy_from_slice(&rest.macs[to]);
    bytes[6..12].copy_from_slice(&rest.macs[from]);
    let l3 = 12 + (8 - skipped) + 2;
    bytes[12..l3 - 2].copy_from_slice(&tags.to_be_bytes()[skipped..]);
    bytes[l3 - 2..l3].copy_from_slice(if entry.is_ipv6 { &[0x86, 0xdd] } else { &[8, 0] });
    // Of the packets from one end to the other.
    let [src, dst] = [from, to].map(|end| end ^ usize::from(entry.swapped));
    let [src6, dst6] = [src, dst].map(|end| super::joined(rest.high[end], entry.low[end]));
    let headers = Headers {
        family: if entry.is_ipv6 { Family::V6 } else { Family::V4 },
        src4: entry.low[src] as u32,
        dst4: entry.low[dst] as u32,
        src6,
        dst6,
        src_port: entry.ports[src],
        dst_port: entry.ports[dst],
        l3: l3 as u8,
        ..Headers::default()
    };
    segment(&headers, &bytes, false, Segment { seq, ack, flags: tcp::ACK, window: 0, options: &[] }, out)
}

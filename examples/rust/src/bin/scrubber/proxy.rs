// SPDX-License-Identifier: BSD-2-Clause
//! The SYN proxy: only sources that have proved that they receive packets at their address can open TCP connections.
//!
//! ```text
//!   client                 scrubber                         host
//!     | SYN  ------------->  |  no state is stored             |
//!     | <---- SYN ACK cookie |  acknowledges a wrong number    |
//!     | RST cookie --------> |  proves that it was received    |
//!     | SYN (again) --------------------------------------->   |   and all later packets
//! ```
//! The SYN ACK contains the cookie in place of the acknowledgement number. A stack that sent the SYN rejects it with a
//! reset, which contains the cookie, and sends its SYN again (Linux within some milliseconds, others within a second).
//! From then on packets pass unchanged, so that no sequence numbers are translated and the host negotiates its own TCP
//! options.

use std::time::Duration;

use crate::filters::{Filter, Verdict, source_key};
use crate::packet::{ACK, Ip, Packet, RST, SYN, checksum, read_u32};
use crate::table::{Table, mix};

/// Time during which a verified address may open connections.
const TRUST_TIME: Duration = Duration::from_secs(600);
/// Length of a cookie period. A cookie is valid in its period and in the next.
const COOKIE_PERIOD: Duration = Duration::from_secs(16);
/// Maximum number of trusted addresses.
const MAX_TRUSTED: usize = 1 << 16;

/// The filter, with the trusted sources and the end of their trust.
pub(crate) struct SynProxy {
    secret: u64,
    trusted: Table<Duration>,
}

impl SynProxy {
    pub(crate) fn new(secret: u64) -> SynProxy {
        SynProxy { secret, trusted: Table::new(MAX_TRUSTED) }
    }

    /// Computes the cookie from both endpoints, the period and the secret.
    fn cookie(&self, ip: &Ip, tcp: &[u8], period: u64) -> u32 {
        let halves = [ip.source, ip.destination].map(u128::from_be_bytes).map(|all| [(all >> 64) as u64, all as u64]);
        let ports = u64::from(read_u32(tcp, 0).unwrap_or_default());
        let parts = halves.into_iter().flatten().chain([ports, period]);
        parts.fold(self.secret, |sum, part| mix(sum ^ part).wrapping_add(self.secret)) as u32
    }

    fn is_trusted(&mut self, ip: &Ip, now: Duration) -> bool {
        self.trusted.get(source_key(ip, self.secret)).is_some_and(|until| until > now)
    }
}

impl Filter for SynProxy {
    fn name(&self) -> &'static str {
        "syn"
    }

    fn check(&mut self, packet: &Packet<'_>, now: Duration) -> Verdict {
        let Some((ip, tcp)) = packet.tcp() else { return Verdict::Pass };
        let (flags, period) = (tcp[13] & (SYN | RST | ACK), now.as_secs() / COOKIE_PERIOD.as_secs());
        if flags == SYN && !self.is_trusted(ip, now) {
            let cookie = self.cookie(ip, tcp, period);
            return Verdict::Reply(syn_ack(packet.head, ip, tcp, cookie));
        }
        let received = read_u32(tcp, 4).unwrap_or_default();
        if flags & RST != 0
            && [period, period.wrapping_sub(1)].iter().any(|&period| self.cookie(ip, tcp, period) == received)
        {
            let until = self.trusted.entry(source_key(ip, self.secret), now, Duration::default);
            *until = now + TRUST_TIME;
            // Not forwarded: the host has no connection for this reset.
            return Verdict::Drop;
        }
        Verdict::Pass
    }
}

/// Builds the reply to a SYN, with the cookie as the acknowledgement number.
fn syn_ack(head: &[u8], ip: &Ip, tcp: &[u8], cookie: u32) -> Vec<u8> {
    let mut frame = [&head[6..12], &head[..6], &head[12..ip.at]].concat();
    let addresses =
        if ip.v6 { [&ip.destination[..], &ip.source[..]] } else { [&ip.destination[12..], &ip.source[12..]] };
    if ip.v6 {
        frame.extend([0x60, 0, 0, 0, 0, 20, ip.protocol, 64]);
        frame.extend(addresses.concat());
    } else {
        let mut header = vec![0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, ip.protocol, 0, 0];
        header.extend(addresses.concat());
        let sum = checksum(0, &header).to_be_bytes();
        header[10..12].copy_from_slice(&sum);
        frame.extend(header);
    }
    let mut reply = [&tcp[2..4], &tcp[..2]].concat();
    // The initial sequence number is not used, because the client rejects the SYN ACK.
    reply.extend(mix(u64::from(cookie)).to_be_bytes()[..4].iter().chain(&cookie.to_be_bytes()));
    reply.extend([0x50, SYN | ACK, 0xff, 0xff, 0, 0, 0, 0]);
    let pseudo = [&addresses.concat()[..], &[0, ip.protocol, 0, 20]].concat();
    let sum = checksum(u32::from(!checksum(0, &pseudo)), &reply).to_be_bytes();
    reply[16..18].copy_from_slice(&sum);
    frame.extend(reply);
    frame
}

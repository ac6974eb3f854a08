//! A TCP connection begins only from an address that is the sender's own: the SYN proxy.
//!
//! ```text
//!   client                 scrubber                         host
//!     | SYN  ------------->  |  nothing is remembered          |
//!     | <---- SYN ACK cookie |  acknowledges what nobody sent  |
//!     | RST cookie --------> |  only who got it can know it    |
//!     | SYN (again) --------------------------------------->   |   and all that follows
//! ```
//! The cookie stands where the SYN's acknowledgement should; a stack that did send the SYN refuses it with a reset, which
//! carries the cookie back, and sends its SYN again (Linux within some milliseconds, others within a second). From then on
//! packets cross untouched, so that nothing is to be translated and options are the host's own.

use std::time::Duration;

use crate::filters::{Filter, Verdict, source_key};
use crate::packet::{ACK, Ip, Packet, RST, SYN, checksum, long};
use crate::table::{Table, mix};

/// How long an address that has answered may begin connections.
const TRUST: Duration = Duration::from_secs(600);
/// A cookie is of one of these spans of time, and good during the next.
const SPAN: Duration = Duration::from_secs(16);
/// Addresses that are trusted at a time.
const TRUSTED: usize = 1 << 16;

/// Sources that have shown that they are there.
pub(crate) struct SynProxy {
    secret: u64,
    trusted: Table<Duration>,
}

impl SynProxy {
    pub(crate) fn new(secret: u64) -> SynProxy {
        SynProxy { secret, trusted: Table::new(TRUSTED) }
    }

    /// What the client is to send back: a number of the two sides, the time and the secret.
    fn cookie(&self, ip: &Ip, tcp: &[u8], span: u64) -> u32 {
        let halves = [ip.source, ip.destination].map(u128::from_be_bytes).map(|all| [(all >> 64) as u64, all as u64]);
        let ports = u64::from(long(tcp, 0).unwrap_or_default());
        let parts = halves.into_iter().flatten().chain([ports, span]);
        parts.fold(self.secret, |sum, part| mix(sum ^ part).wrapping_add(self.secret)) as u32
    }

    fn trusts(&mut self, ip: &Ip, now: Duration) -> bool {
        self.trusted.get(source_key(ip, self.secret)).is_some_and(|until| until > now)
    }
}

impl Filter for SynProxy {
    fn name(&self) -> &'static str {
        "syn"
    }

    fn judge(&mut self, packet: &Packet<'_>, now: Duration) -> Verdict {
        let Some((ip, tcp)) = packet.tcp() else { return Verdict::Pass };
        let (flags, span) = (tcp[13] & (SYN | RST | ACK), now.as_secs() / SPAN.as_secs());
        if flags == SYN && !self.trusts(ip, now) {
            let cookie = self.cookie(ip, tcp, span);
            return Verdict::Answer(syn_ack(packet.head, ip, tcp, cookie));
        }
        let brought = long(tcp, 4).unwrap_or_default();
        if flags & RST != 0 && [span, span.wrapping_sub(1)].iter().any(|&span| self.cookie(ip, tcp, span) == brought) {
            let until = self.trusted.entry(source_key(ip, self.secret), now, Duration::default);
            *until = now + TRUST;
            // The host knows of no connection that this could reset.
            return Verdict::Drop;
        }
        Verdict::Pass
    }
}

/// The answer to a SYN, whose acknowledgement is the cookie.
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
    let mut answer = [&tcp[2..4], &tcp[..2]].concat();
    // Our own first number is of no use to anybody: the connection is refused.
    answer.extend(mix(u64::from(cookie)).to_be_bytes()[..4].iter().chain(&cookie.to_be_bytes()));
    answer.extend([0x50, SYN | ACK, 0xff, 0xff, 0, 0, 0, 0]);
    let pseudo = [&addresses.concat()[..], &[0, ip.protocol, 0, 20]].concat();
    let sum = checksum(u32::from(!checksum(0, &pseudo)), &answer).to_be_bytes();
    answer[16..18].copy_from_slice(&sum);
    frame.extend(answer);
    frame
}

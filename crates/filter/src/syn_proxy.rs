// SPDX-License-Identifier: BSD-2-Clause
//! Completes the handshakes of TCP connections for servers, which see only clients that exist.
//!
//! ```text
//! client              firewall               server
//! SYN c           ->                                     answered without memory: k is a keyed hash of the ends, of c
//!                 <-  SYN k, ACK c+1, window 0           and of the time, with two options of the client in it
//! ACK k+1         ->  SYN c              ->              the hash is right: a state, `Opening`
//!                                        <-  SYN s, ACK c+1
//! ACK c+1, window <-  ACK s+1            ->              `Open`: the server's numbers and the client's differ by k - s
//! SEQ c+1, ACK n  ->  SEQ c+1, ACK n-k+s ->
//! SEQ m-s+k       <-                     <-  SEQ m
//! ```
//! A client sends no data before the server has told its window. If the SYN to the server is lost, the next segment of
//! the client (a window probe, a keepalive) repeats it; if the answer to it is, the server repeats its own.

use std::hash::{BuildHasher as _, RandomState};

use crate::handshake::{Phase, Proxy};
use crate::nat::rewrite::adjust;
use crate::packet::{Family, Headers, tcp};
use crate::reply::{MAX_REPLY, Segment, segment};
use crate::rule::{Action, Rule};
use crate::state::StateTable;

/// The smallest segment size that a rule can give.
pub(crate) const MIN_MSS: u16 = 536;
/// Segment sizes that a cookie can have; a client gets the largest that is not above its own.
const SIZES: [u16; 8] = [216, 536, 1220, 1360, 1400, 1440, 1460, 8960];
/// Of a client that names none.
const DEFAULT_MSS: u16 = 536;
/// Bit in a cookie: the client accepts selective acknowledgements.
const SACK: u32 = 8;
/// Bits of a cookie that are no hash: `SIZES`, `SACK`, and whether the period is odd.
const PLAIN_BITS: u32 = 5;
/// A period has this power of two of milliseconds. A cookie is valid in its period and the next one.
const PERIOD: u32 = 16;

/// Kinds of TCP options.
mod option {
    pub(super) const END: u8 = 0;
    pub(super) const NOP: u8 = 1;
    pub(super) const MSS: u8 = 2;
    pub(super) const SACK_PERMITTED: u8 = 4;
    pub(super) const SACK: u8 = 5;
}

/// Counts of handshakes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProxyCounts {
    /// Connection requests that were answered with a cookie.
    pub cookies: u64,
    /// Cookies that came back.
    pub accepted: u64,
    /// Connections that the server accepted.
    pub opened: u64,
    /// Connections that the server refused.
    pub refused: u64,
    /// Segments that belong to no connection, and have no valid cookie.
    pub invalid: u64,
}

/// Makes and checks cookies. Copies have the same key.
#[derive(Clone, Debug)]
pub(crate) struct Cookies(RandomState);

/// What a valid cookie says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Accepted {
    /// The client's first sequence number.
    isn: u32,
    cookie: u32,
}

impl Cookies {
    pub(crate) fn new() -> Cookies {
        Cookies(RandomState::new())
    }

    /// `plain`: the bits that are no hash.
    fn cookie(&self, h: &Headers, isn: u32, period: u64, plain: u32) -> u32 {
        let ends = (h.src4, h.dst4, h.src6, h.dst6, h.src_port, h.dst_port, h.family as u8);
        (self.0.hash_one((ends, isn, period, plain)) as u32) << PLAIN_BITS | plain
    }

    /// Returns the cookie for a connection request.
    fn make(&self, h: &Headers, options: SynOptions, now: u64) -> u32 {
        let period = now >> PERIOD;
        let size = SIZES.iter().rposition(|&size| size <= options.mss).unwrap_or(0) as u32;
        let plain = size | if options.sack { SACK } else { 0 } | (period as u32 & 1) << (PLAIN_BITS - 1);
        self.cookie(h, h.tcp_seq, period, plain)
    }

    /// Returns what the cookie says that a segment acknowledges, if it is one.
    fn check(&self, h: &Headers, now: u64) -> Option<Accepted> {
        let cookie = h.tcp_ack.wrapping_sub(1);
        let plain = cookie & ((1 << PLAIN_BITS) - 1);
        let latest = now >> PERIOD;
        let is_odd = u64::from(plain >> (PLAIN_BITS - 1));
        let period = if latest & 1 == is_odd { latest } else { latest.wrapping_sub(1) };
        // A window probe repeats the last number that was sent.
        let isns = [h.tcp_seq.wrapping_sub(1), h.tcp_seq];
        let isn = isns.into_iter().find(|&isn| self.cookie(h, isn, period, plain) == cookie)?;
        Some(Accepted { isn, cookie })
    }
}

/// Options of a connection request that are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SynOptions {
    mss: u16,
    sack: bool,
}

impl SynOptions {
    fn of(h: &Headers, bytes: &[u8]) -> SynOptions {
        let mut found = SynOptions { mss: DEFAULT_MSS, sack: false };
        for (kind, place) in Options::of(h, bytes) {
            match (kind, &bytes[place]) {
                (option::MSS, &[high, low]) => found.mss = u16::from_be_bytes([high, low]),
                (option::SACK_PERMITTED, []) => found.sack = true,
                _ => {}
            }
        }
        found
    }

    fn of_cookie(cookie: u32) -> SynOptions {
        SynOptions { mss: SIZES[cookie as usize % SIZES.len()], sack: cookie & SACK != 0 }
    }

    /// Writes them; returns the bytes of it that are used.
    fn write(self, bytes: &mut [u8; 8]) -> &[u8] {
        let [high, low] = self.mss.to_be_bytes();
        *bytes = [option::MSS, 4, high, low, option::NOP, option::NOP, option::SACK_PERMITTED, 2];
        if self.sack { bytes } else { &bytes[..4] }
    }
}

/// Walks through the options of a segment: their kinds, and where their values are.
struct Options<'a> {
    bytes: &'a [u8],
    at: usize,
    end: usize,
}

impl<'a> Options<'a> {
    /// Those within `bytes`.
    fn of(h: &Headers, bytes: &'a [u8]) -> Options<'a> {
        let (at, end) = (usize::from(h.l4) + 20, header_end(h, bytes).unwrap_or(0));
        Options { bytes, at, end: end.min(bytes.len()) }
    }
}

impl Iterator for Options<'_> {
    type Item = (u8, std::ops::Range<usize>);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let rest = self.bytes.get(self.at..self.end)?;
            match *rest {
                [option::NOP, ..] => self.at += 1,
                [] | [option::END, ..] => return None,
                [kind, len, ..] if len >= 2 && usize::from(len) <= rest.len() => {
                    let value = self.at + 2..self.at + usize::from(len);
                    self.at = value.end;
                    return Some((kind, value));
                }
                // The receiver cannot read it either.
                _ => return None,
            }
        }
    }
}

/// Returns where the TCP header ends, which may be after `bytes`; `None` if that is within the header.
fn header_end(h: &Headers, bytes: &[u8]) -> Option<usize> {
    let words = bytes.get(usize::from(h.l4) + 12)? >> 4;
    (words >= 5).then(|| usize::from(h.l4) + usize::from(words) * 4)
}

/// What happens for a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Its sender gets a cookie, and options.
    Answer(u32, SynOptions),
    /// The server gets the client's request, with the window.
    Request(Accepted, u16),
    /// The server gets its acknowledgement, with the client's window; the client gets the server's, if it has the
    /// cookie and no window.
    Acknowledge { window: u16, cookie: Option<u32> },
    /// It passes with another acknowledgement.
    FromClient { offset: u32 },
    /// It passes with another sequence number.
    FromServer { offset: u32 },
    /// It passes to the client, which has the cookie: the server refuses the connection.
    Refuse { cookie: u32 },
}

impl StateTable {
    /// Decides about a segment of a connection that `rule` proxies, and keeps its state. `None`: it is dropped.
    pub(crate) fn handshake(
        &mut self,
        h: &Headers,
        bytes: &[u8],
        rule: &Rule,
        cookies: &Cookies,
        counts: &mut ProxyCounts,
        now: u64,
    ) -> Option<Step> {
        const KINDS: u8 = tcp::SYN | tcp::ACK | tcp::RST | tcp::FIN;
        let (Action::SynProxy(mss), Some(option)) = (rule.action, rule.state) else { return None };
        if !h.is_tcp() {
            return None;
        }
        let kind = h.tcp_flags & KINDS;
        let is_reset = kind & tcp::RST != 0;
        let answer = |counts: &mut ProxyCounts| {
            counts.cookies += 1;
            let asked = SynOptions::of(h, bytes);
            let mss = match (mss, h.family) {
                (0, Family::V6) => 1440,
                (0, _) => 1460,
                (mss, _) => mss,
            };
            Some(Step::Answer(cookies.make(h, asked, now), SynOptions { mss, ..asked }))
        };
        // The ends of a connection that has ended may begin another one.
        let begins = || kind == tcp::SYN || cookies.check(h, now).is_some();
        let known = self.proxied(h, rule.id, option.name, now);
        let Some(known) = known.filter(|known| !(known.has_ended && known.from_client && begins())) else {
            if kind == tcp::SYN {
                return answer(counts);
            }
            let asked = kind & (tcp::SYN | tcp::ACK) == tcp::ACK && !is_reset;
            let Some(accepted) = cookies.check(h, now).filter(|_| asked) else {
                counts.invalid += 1;
                return None;
            };
            let proxy = opening(accepted, h);
            if !self.install_proxied(h, rule.id, option, proxy, now) {
                return None;
            }
            counts.accepted += 1;
            return Some(Step::Request(accepted, proxy.window));
        };
        let proxy = known.proxy;
        match (proxy.phase, known.from_client) {
            (Phase::None, _) => None,
            (Phase::Opening, true) if kind == tcp::SYN => answer(counts),
            (Phase::Opening, true) if kind & tcp::ACK != 0 && !is_reset => {
                // The client may have begun again, with another cookie.
                if let Some(accepted) = cookies.check(h, now) {
                    *proxy = opening(accepted, h);
                }
                Some(Step::Request(Accepted { isn: proxy.isn, cookie: proxy.offset }, proxy.window))
            }
            (Phase::Opening, false) if h.tcp_ack == proxy.isn.wrapping_add(1) => {
                let cookie = proxy.offset;
                if is_reset {
                    counts.refused += 1;
                    // Its lifetime is that of a connection that was reset.
                    *proxy = Proxy::NONE;
                    return Some(Step::Refuse { cookie });
                }
                if kind != tcp::SYN | tcp::ACK {
                    return None;
                }
                counts.opened += 1;
                proxy.phase = Phase::Open;
                proxy.offset = cookie.wrapping_sub(h.tcp_seq);
                Some(Step::Acknowledge { window: proxy.window, cookie: Some(cookie) })
            }
            (Phase::Opening, _) => None,
            (Phase::Open, true) => Some(Step::FromClient { offset: proxy.offset }),
            (Phase::Open, false) if kind == tcp::SYN | tcp::ACK => {
                Some(Step::Acknowledge { window: proxy.window, cookie: None })
            }
            (Phase::Open, false) => Some(Step::FromServer { offset: proxy.offset }),
        }
    }
}

/// `h`: the segment that has the cookie.
fn opening(accepted: Accepted, h: &Headers) -> Proxy {
    Proxy { phase: Phase::Opening, window: h.tcp_window, isn: accepted.isn, offset: accepted.cookie }
}

/// Performs a step for a segment: changes its first bytes, and sends frames. Returns whether the segment passes.
pub(crate) fn perform(
    step: Step,
    h: &Headers,
    bytes: &mut [u8],
    mut send: impl FnMut(bool, &[u8; MAX_REPLY], usize),
) -> bool {
    let mut out = [0; MAX_REPLY];
    let mut emit = |back: bool, bytes: &[u8], one: Segment<'_>| {
        if let Some(len) = segment(h, bytes, back, one, &mut out) {
            send(back, &out, len);
        }
    };
    let mut buffer = [0; 8];
    let syn_ack = tcp::SYN | tcp::ACK;
    match step {
        Step::Answer(cookie, options) => {
            let (ack, options) = (h.tcp_seq.wrapping_add(1), options.write(&mut buffer));
            emit(true, bytes, Segment { seq: cookie, ack, flags: syn_ack, window: 0, options });
            false
        }
        Step::Request(Accepted { isn, cookie }, window) => {
            let options = SynOptions::of_cookie(cookie).write(&mut buffer);
            emit(false, bytes, Segment { seq: isn, ack: 0, flags: tcp::SYN, window, options });
            false
        }
        Step::Acknowledge { window, cookie } => {
            let (ack, flags) = (h.tcp_seq.wrapping_add(1), tcp::ACK);
            emit(true, bytes, Segment { seq: h.tcp_ack, ack, flags, window, options: &[] });
            if let Some(cookie) = cookie {
                let (seq, window) = (cookie.wrapping_add(1), h.tcp_window);
                emit(false, bytes, Segment { seq, ack: h.tcp_ack, flags, window, options: &[] });
            }
            false
        }
        Step::FromClient { offset } => h.tcp_flags & tcp::ACK == 0 || from_client(h, bytes, offset),
        Step::FromServer { offset } => {
            set_number(h, bytes, usize::from(h.l4) + 4, h.tcp_seq.wrapping_add(offset));
            true
        }
        Step::Refuse { cookie } => {
            set_number(h, bytes, usize::from(h.l4) + 4, cookie.wrapping_add(1));
            true
        }
    }
}

/// Gives a client's segment the server's numbers. Returns false if some are not within `bytes`.
fn from_client(h: &Headers, bytes: &mut [u8], offset: u32) -> bool {
    if header_end(h, bytes).is_none_or(|end| end > bytes.len()) {
        return false;
    }
    set_number(h, bytes, usize::from(h.l4) + 8, h.tcp_ack.wrapping_sub(offset));
    let mut blocks = [0; 8];
    let mut n = 0;
    for (kind, place) in Options::of(h, bytes) {
        // No option with a block is shorter than 10 bytes, and all have 40; each block has two numbers.
        for at in place.step_by(4).filter(|_| kind == option::SACK).take(blocks.len() - n) {
            blocks[n] = at;
            n += 1;
        }
    }
    for &at in &blocks[..n] {
        if let Some(number) = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>()) {
            set_number(h, bytes, at, u32::from_be_bytes(*number).wrapping_sub(offset));
        }
    }
    true
}

/// Writes a number of a TCP header, and adjusts the checksum byte by byte: an option may begin anywhere.
fn set_number(h: &Headers, bytes: &mut [u8], at: usize, number: u32) {
    let l4 = usize::from(h.l4);
    for (at, new) in (at..).zip(number.to_be_bytes()) {
        let Some(byte) = bytes.get_mut(at) else { return };
        let old = std::mem::replace(byte, new);
        let word = |byte: u8| if (at - l4).is_multiple_of(2) { u16::from(byte) << 8 } else { byte.into() };
        adjust(bytes, l4 + 16, word(old), word(new), false);
    }
}

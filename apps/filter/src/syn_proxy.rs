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
//! With `wscale` a client that scales its windows and has timestamps gets both: its scale is in the timestamp of the
//! answer, which comes back with the cookie. From then on windows and timestamps are translated, too.
//!
//! A client sends no data before the server has told its window. If the SYN to the server is lost, the next segment of
//! the client (a window probe, a keepalive) repeats it; if the answer to it is, the server repeats its own.

use std::hash::{BuildHasher as _, RandomState};

use crate::handshake::{Phase, Proxy, Scales, scaled};
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
pub(crate) mod option {
    pub(super) const END: u8 = 0;
    pub(super) const NOP: u8 = 1;
    pub(crate) const MSS: u8 = 2;
    pub(super) const SCALE: u8 = 3;
    pub(super) const SACK_PERMITTED: u8 = 4;
    pub(super) const SACK: u8 = 5;
    pub(super) const TIMES: u8 = 8;
}

/// Flags by which segments differ.
const KINDS: u8 = tcp::SYN | tcp::ACK | tcp::RST | tcp::FIN;

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

/// The contents of a valid cookie.
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

/// Options of a connection request, or of its answer, that are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SynOptions {
    mss: u16,
    sack: bool,
    scale: Option<u8>,
    /// The sender's timestamp, and the one that it repeats.
    times: Option<(u32, u32)>,
}

/// Bytes of the options that are written, at most.
const WRITTEN: usize = 20;

impl SynOptions {
    /// Reads the options of any segment.
    fn of(h: &Headers, bytes: &[u8]) -> SynOptions {
        let mut found = SynOptions { mss: DEFAULT_MSS, sack: false, scale: None, times: None };
        for (kind, place) in Options::of(h, bytes) {
            match (kind, &bytes[place]) {
                (option::MSS, &[high, low]) => found.mss = u16::from_be_bytes([high, low]),
                (option::SACK_PERMITTED, []) => found.sack = true,
                // A larger one counts as 14.
                (option::SCALE, &[scale]) => found.scale = Some(scale.min(14)),
                (option::TIMES, &[a, b, c, d, e, f, g, h]) => {
                    found.times = Some((u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h])));
                }
                _ => {}
            }
        }
        found
    }

    /// Returns the options that a cookie has.
    fn of_cookie(cookie: u32) -> SynOptions {
        SynOptions { mss: SIZES[cookie as usize % SIZES.len()], sack: cookie & SACK != 0, scale: None, times: None }
    }

    /// Writes them; returns the bytes of it that are used.
    fn write(self, bytes: &mut [u8; WRITTEN]) -> &[u8] {
        let [high, low] = self.mss.to_be_bytes();
        let sack = if self.sack { [option::SACK_PERMITTED, 2] } else { [option::NOP; 2] };
        bytes[..8].copy_from_slice(&[option::MSS, 4, high, low, option::NOP, option::NOP, sack[0], sack[1]]);
        let Some((own, repeated)) = self.times else {
            return if self.sack { &bytes[..8] } else { &bytes[..4] };
        };
        bytes[4..6].copy_from_slice(&sack);
        write_times((own, repeated), &mut bytes[6..16]);
        let Some(scale) = self.scale else { return &bytes[..16] };
        bytes[16..].copy_from_slice(&[option::NOP, option::SCALE, 3, scale]);
        bytes
    }
}

/// Writes the option of timestamps, 10 bytes.
fn write_times((own, repeated): (u32, u32), bytes: &mut [u8]) {
    bytes[..2].copy_from_slice(&[option::TIMES, 10]);
    bytes[2..6].copy_from_slice(&own.to_be_bytes());
    bytes[6..10].copy_from_slice(&repeated.to_be_bytes());
}

/// Returns the timestamp of an answer with a cookie, in which the client's window scale is.
fn first_time(cookie: u32, scale: u8) -> u32 {
    cookie & !15 | u32::from(scale)
}

/// Returns the scales of a client that repeats such a timestamp.
fn scales_of(times: Option<(u32, u32)>, cookie: u32) -> Scales {
    let repeated = times.map(|(_, repeated)| repeated).filter(|repeated| (repeated ^ cookie) >> 4 == 0);
    Scales::of_client(repeated.map(|repeated| repeated as u8 & 15))
}

/// Walks through the options of a segment: their kinds, and where their values are.
pub(crate) struct Options<'a> {
    bytes: &'a [u8],
    at: usize,
    end: usize,
}

impl<'a> Options<'a> {
    /// Returns the options within `bytes`.
    pub(crate) fn of(h: &Headers, bytes: &'a [u8]) -> Options<'a> {
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

/// The next step for a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Its sender gets a cookie, and options.
    Answer(u32, SynOptions),
    /// The server gets the client's request: its first sequence number, window and options.
    Request(u32, u16, SynOptions),
    /// The server gets its acknowledgement, with the client's window. The client gets the server's, if it has the
    /// cookie and no window. `times`: the server's timestamps, and what the client's differ by.
    Acknowledge { window: u16, cookie: Option<(u32, u16)>, times: Option<(u32, u32, u32)> },
    /// It passes with another acknowledgement, and with a window and timestamps as the server reads them.
    FromClient { offset: u32, window: u16, times: u32 },
    /// It passes with another sequence number, and with a window and timestamps as the client reads them.
    FromServer { offset: u32, window: u16, times: u32 },
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
        let (Action::SynProxy { mss, scale: told }, Some(option)) = (rule.action, rule.state) else { return None };
        if !h.is_tcp() {
            return None;
        }
        let kind = h.tcp_flags & KINDS;
        let is_reset = kind & tcp::RST != 0;
        let received = Received { h, bytes, mss, told };
        let answer = |counts: &mut ProxyCounts| {
            counts.cookies += 1;
            Some(received.answer(cookies, now))
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
            let proxy = received.opening(accepted);
            if !self.install_proxied(h, rule.id, option, proxy, now) {
                return None;
            }
            counts.accepted += 1;
            return Some(received.request(&proxy));
        };
        let proxy = known.proxy;
        match (proxy.phase, known.from_client) {
            (Phase::None, _) => None,
            (Phase::Opening, true) if kind == tcp::SYN => answer(counts),
            (Phase::Opening, true) if kind & tcp::ACK != 0 && !is_reset => {
                // The client may have begun again, with another cookie.
                if let Some(accepted) = cookies.check(h, now) {
                    *proxy = received.opening(accepted);
                }
                Some(received.request(proxy))
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
                Some(received.open(proxy))
            }
            (Phase::Opening, _) => None,
            (Phase::Open, from_client) => Some(received.pass(proxy, from_client)),
        }
    }
}

/// A segment, and what the rule says.
struct Received<'a> {
    h: &'a Headers,
    bytes: &'a [u8],
    mss: u16,
    /// Window scale that clients are told.
    told: Option<u8>,
}

impl Received<'_> {
    fn options(&self) -> SynOptions {
        SynOptions::of(self.h, self.bytes)
    }

    /// Answers a request of a client.
    fn answer(&self, cookies: &Cookies, now: u64) -> Step {
        let asked = self.options();
        let mss = match (self.mss, self.h.family) {
            (0, Family::V6) => 1440,
            (0, _) => 1460,
            (mss, _) => mss,
        };
        let cookie = cookies.make(self.h, asked, now);
        let mut answer = SynOptions { mss, sack: asked.sack, scale: None, times: None };
        if let (Some(told), Some(scale), Some((time, _))) = (self.told, asked.scale, asked.times) {
            answer.scale = Some(told);
            answer.times = Some((first_time(cookie, scale), time));
        }
        Step::Answer(cookie, answer)
    }

    /// Begins a connection by the segment that has the cookie.
    fn opening(&self, Accepted { isn, cookie }: Accepted) -> Proxy {
        let scales = self.told.map_or(Scales::NONE, |_| scales_of(self.options().times, cookie));
        Proxy { phase: Phase::Opening, scales, window: self.h.tcp_window, isn, offset: cookie }
    }

    /// Requests a connection from the server.
    fn request(&self, proxy: &Proxy) -> Step {
        let mut options = SynOptions::of_cookie(proxy.offset);
        if let (Some(scale), Some((time, _))) = (proxy.scales.client(), self.options().times) {
            (options.scale, options.times) = (Some(scale), Some((time, 0)));
        }
        // The window of a request is never scaled.
        Step::Request(proxy.isn, proxy.scales.to_server(proxy.window), options)
    }

    /// Opens a connection that the server has answered by this segment.
    fn open(&self, proxy: &mut Proxy) -> Step {
        let (h, told) = (self.h, self.told.unwrap_or(0));
        let cookie = proxy.offset;
        proxy.phase = Phase::Open;
        proxy.offset = cookie.wrapping_sub(h.tcp_seq);
        proxy.isn = 0;
        let (mut times, mut window) = (None, h.tcp_window);
        if let Some(scale) = proxy.scales.client() {
            let answer = self.options();
            proxy.scales = proxy.scales.with_server(answer.scale);
            // That of the answer is not scaled; the client reads it as it was told.
            window = scaled(window, 0, told);
            if let Some((own, repeated)) = answer.times {
                proxy.isn = first_time(cookie, scale).wrapping_sub(own);
                times = Some((own, repeated, proxy.isn));
            }
        }
        let to_server = proxy.scales.to_server(proxy.window);
        Step::Acknowledge { window: to_server, cookie: Some((cookie, window)), times }
    }

    /// Passes a segment of an open connection, or acknowledges the server's answer, which it has repeated.
    fn pass(&self, proxy: &Proxy, from_client: bool) -> Step {
        let (h, scales) = (self.h, proxy.scales);
        let (offset, times) = (proxy.offset, proxy.isn);
        if from_client {
            return Step::FromClient { offset, window: scales.to_server(h.tcp_window), times };
        }
        if h.tcp_flags & KINDS == tcp::SYN | tcp::ACK {
            let of_answer = self.options().times.filter(|_| scales.client().is_some());
            let times = of_answer.map(|(own, repeated)| (own, repeated, times));
            return Step::Acknowledge { window: scales.to_server(proxy.window), cookie: None, times };
        }
        Step::FromServer { offset, window: scales.to_client(h.tcp_window, self.told.unwrap_or(0)), times }
    }
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
    let mut buffer = [0; WRITTEN];
    let syn_ack = tcp::SYN | tcp::ACK;
    match step {
        Step::Answer(cookie, options) => {
            let (ack, options) = (h.tcp_seq.wrapping_add(1), options.write(&mut buffer));
            emit(true, bytes, Segment { seq: cookie, ack, flags: syn_ack, window: 0, options });
            false
        }
        Step::Request(isn, window, options) => {
            let options = options.write(&mut buffer);
            emit(false, bytes, Segment { seq: isn, ack: 0, flags: tcp::SYN, window, options });
            false
        }
        Step::Acknowledge { window, cookie, times } => {
            let (ack, flags) = (h.tcp_seq.wrapping_add(1), tcp::ACK);
            let mut option = |times: (u32, u32)| {
                buffer[..2].fill(option::NOP);
                write_times(times, &mut buffer[2..12]);
                buffer
            };
            // Each gets the other's timestamp, in its own terms, and its own one back.
            let to_server = times.map(|(own, repeated, _)| option((repeated, own)));
            let to_client = times.map(|(own, repeated, difference)| option((own.wrapping_add(difference), repeated)));
            let used = |options: &Option<[u8; WRITTEN]>| options.map_or(0, |_| 12);
            let options = &to_server.unwrap_or_default()[..used(&to_server)];
            emit(true, bytes, Segment { seq: h.tcp_ack, ack, flags, window, options });
            if let Some((cookie, window)) = cookie {
                let options = &to_client.unwrap_or_default()[..used(&to_client)];
                let seq = cookie.wrapping_add(1);
                emit(false, bytes, Segment { seq, ack: h.tcp_ack, flags, window, options });
            }
            false
        }
        Step::FromClient { offset, window, times } => {
            let has_ack = h.tcp_flags & tcp::ACK != 0;
            (!has_ack || from_client(h, bytes, offset)) && translate(h, bytes, window, times.wrapping_neg(), 4)
        }
        Step::FromServer { offset, window, times } => {
            set_number(h, bytes, usize::from(h.l4) + 4, h.tcp_seq.wrapping_add(offset));
            translate(h, bytes, window, times, 0)
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

/// Gives a segment another window, and adds to the number at `place` of its timestamps. Returns false if they may not
/// be within `bytes`.
fn translate(h: &Headers, bytes: &mut [u8], window: u16, times: u32, place: usize) -> bool {
    if window != h.tcp_window {
        set_bytes(h, bytes, usize::from(h.l4) + 14, &window.to_be_bytes());
    }
    if times == 0 {
        return true;
    }
    if header_end(h, bytes).is_none_or(|end| end > bytes.len()) {
        return false;
    }
    let found = Options::of(h, bytes).find(|(kind, value)| *kind == option::TIMES && value.len() == 8);
    if let Some((_, value)) = found {
        let at = value.start + place;
        if let Some(number) = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>()) {
            set_number(h, bytes, at, u32::from_be_bytes(*number).wrapping_add(times));
        }
    }
    true
}

/// Writes a number of a TCP header, and adjusts the checksum.
fn set_number(h: &Headers, bytes: &mut [u8], at: usize, number: u32) {
    set_bytes(h, bytes, at, &number.to_be_bytes());
}

/// Writes bytes of a TCP header, and adjusts the checksum byte by byte: an option may begin anywhere.
pub(crate) fn set_bytes(h: &Headers, bytes: &mut [u8], at: usize, new: &[u8]) {
    let l4 = usize::from(h.l4);
    for (at, &new) in (at..).zip(new) {
        let Some(byte) = bytes.get_mut(at) else { return };
        let old = std::mem::replace(byte, new);
        let word = |byte: u8| if (at - l4).is_multiple_of(2) { u16::from(byte) << 8 } else { byte.into() };
        adjust(bytes, l4 + 16, word(old), word(new), false);
    }
}

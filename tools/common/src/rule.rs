// SPDX-License-Identifier: BSD-2-Clause
//! Steering rules that select packets for a queue or a pipe: the subset of pcap-filter(7) that hardware can match.
//!
//! ```text
//! rule = part *( [ "and" ] part )
//! part = "ip" | "ip6" | "tcp" | "udp" | "sctp" | "vlan" N
//!      | side "host" ADDRESS | side "net" ADDRESS "/" BITS | side "port" N
//! side = "src" | "dst"
//! ```
//! Each part occurs at most once, in any order. A packet matches if all parts match. Only IP packets match, with or
//! without a VLAN tag.

use std::net::IpAddr;

use unetmap_sys::link::ntuple::Tuple;

/// Bytes at the start of a frame that a rule examines.
pub const HEADERS: usize = 96;

/// A rule, for IPv4, IPv6 or both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    v4: bool,
    v6: bool,
    tuple: Tuple,
}

/// Parses a rule.
///
/// # Errors
/// A sentence that says what is wrong and what is valid there.
pub fn parse(text: &str) -> Result<Rule, String> {
    let mut parser = Parser { words: text.split_whitespace(), tuple: Tuple::default(), is_ipv6: None };
    let mut after_and = true;
    while let Some(word) = parser.words.next() {
        match word {
            "and" | "&&" if !after_and => after_and = true,
            _ => {
                parser.part(word).map_err(|why| format!("the rule `{text}`: {why}"))?;
                after_and = false;
            }
        }
    }
    let Parser { tuple, is_ipv6, .. } = parser;
    if after_and {
        return Err(format!("the rule `{text}` ends before a part; add one, such as udp or dst port 53"));
    }
    if tuple.protocol.is_none() && (tuple.source_port.is_some() || tuple.destination_port.is_some()) {
        return Err(format!("the rule `{text}` has a port but no protocol; add tcp, udp or sctp"));
    }
    Ok(Rule { v4: is_ipv6 != Some(true), v6: is_ipv6 != Some(false), tuple })
}

struct Parser<'a> {
    words: std::str::SplitWhitespace<'a>,
    tuple: Tuple,
    /// `None` until a part implies an address family.
    is_ipv6: Option<bool>,
}

impl<'a> Parser<'a> {
    fn part(&mut self, word: &str) -> Result<(), String> {
        match word {
            "ip" => self.family(false),
            "ip6" => self.family(true),
            "tcp" | "udp" | "sctp" => {
                let protocol = [("tcp", 6), ("udp", 17), ("sctp", 132)].iter().find(|(name, _)| *name == word);
                set_once(&mut self.tuple.protocol, protocol.map_or(0, |(_, number)| *number), word)
            }
            "vlan" => {
                let id = self.number("vlan", 4095)?;
                set_once(&mut self.tuple.vlan, id, word)
            }
            "src" | "dst" => self.side(word == "src"),
            "host" | "net" | "port" => {
                Err(format!("`{word}` needs `src` or `dst` before it: a rule has one direction"))
            }
            "or" | "not" | "||" | "!" => Err(format!("rules do not support `{word}`; give several rules")),
            _ => Err(format!("`{word}` is not one of ip, ip6, tcp, udp, sctp, vlan, src and dst (host, net, port)")),
        }
    }

    fn side(&mut self, source: bool) -> Result<(), String> {
        let (what, name) = (self.next("`src` or `dst`")?, if source { "src" } else { "dst" });
        if what == "port" {
            let port = self.number("port", u16::MAX)?;
            let to = if source { &mut self.tuple.source_port } else { &mut self.tuple.destination_port };
            return set_once(to, port, &format!("{name} port"));
        }
        let (text, net) = match what {
            "host" => (self.next("`host`")?, false),
            "net" => (self.next("`net`")?, true),
            address => (address, false),
        };
        let (address, bits) = match text.split_once('/').filter(|_| net) {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let bad = || format!("`{text}` is not {}", if net { "a network such as 10.0.0.0/8" } else { "an address" });
        let address: IpAddr = address.parse().map_err(|_| bad())?;
        let most = if address.is_ipv6() { 128 } else { 32 };
        let prefix = bits.map_or((!net).then_some(most), |bits| bits.parse().ok().filter(|bits| *bits <= most));
        self.family(address.is_ipv6())?;
        let to = if source { &mut self.tuple.source } else { &mut self.tuple.destination };
        set_once(to, (address, prefix.ok_or_else(bad)?), name)
    }

    fn family(&mut self, v6: bool) -> Result<(), String> {
        if *self.is_ipv6.get_or_insert(v6) == v6 { Ok(()) } else { Err("it mixes IPv4 and IPv6".into()) }
    }

    fn next(&mut self, after: &str) -> Result<&'a str, String> {
        self.words.next().ok_or_else(|| format!("nothing follows {after}"))
    }

    fn number(&mut self, what: &str, most: u16) -> Result<u16, String> {
        let text = self.next(&format!("`{what}`"))?;
        let number = text.parse().ok().filter(|number| *number <= most);
        number.ok_or_else(|| format!("`{text}` is not a valid {what}: a number up to {most}"))
    }
}

fn set_once<T>(to: &mut Option<T>, value: T, what: &str) -> Result<(), String> {
    match to.replace(value) {
        None => Ok(()),
        Some(_) => Err(format!("`{what}` occurs twice")),
    }
}

impl Rule {
    /// Returns the tuples to program into the hardware, one for each address family.
    pub fn tuples(&self) -> impl Iterator<Item = Tuple> {
        let families = [(self.v4, false), (self.v6, true)];
        families.into_iter().filter(|(included, _)| *included).map(|(_, v6)| Tuple { v6, ..self.tuple })
    }

    /// Returns true if the frame that begins with `frame` matches. Fragments other than the first have no ports.
    pub fn matches(&self, frame: &[u8]) -> bool {
        self.try_match(frame).unwrap_or(false)
    }

    /// Returns `None` if the frame is too short.
    fn try_match(&self, frame: &[u8]) -> Option<bool> {
        let word = |at: usize| Some(u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?));
        let (mut at, mut vlan) = (12, None);
        while matches!(word(at)?, 0x8100 | 0x88a8) {
            // Rules match the outermost tag.
            vlan = vlan.or(Some(word(at + 2)? & 0x0fff));
            at += 4;
        }
        let (ip, v6) = (at + 2, word(at)? == 0x86dd);
        if !(v6 && self.v6 || word(at)? == 0x0800 && self.v4) || self.tuple.vlan.is_some_and(|id| vlan != Some(id)) {
            return Some(false);
        }
        let (size, addresses) = if v6 { (16, ip + 8) } else { (4, ip + 12) };
        let protocol = *frame.get(if v6 { ip + 6 } else { ip + 9 })?;
        let header = if v6 { 40 } else { usize::from(frame.get(ip)? & 15) * 4 };
        let later_fragment = !v6 && word(ip + 6)? & 0x1fff != 0;
        let within = |side: Option<(IpAddr, u8)>, at: usize| {
            let Some((address, prefix)) = side else { return Some(true) };
            Some(shares_prefix(frame.get(at..at + size)?, address, prefix))
        };
        let port = |port: Option<u16>, at: usize| match port {
            Some(port) => Some(!later_fragment && word(ip + header + at)? == port),
            None => Some(true),
        };
        Some(
            self.tuple.protocol.is_none_or(|wanted| wanted == protocol)
                && within(self.tuple.source, addresses)?
                && within(self.tuple.destination, addresses + size)?
                && port(self.tuple.source_port, 0)?
                && port(self.tuple.destination_port, 2)?,
        )
    }
}

/// Returns true if two addresses have the same first `prefix` bits.
fn shares_prefix(bytes: &[u8], address: IpAddr, prefix: u8) -> bool {
    let other = match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let differ = bytes.iter().zip(&other).position(|(a, b)| a != b);
    let common = differ.map_or(bytes.len() * 8, |i| i * 8 + (bytes[i] ^ other[i]).leading_zeros() as usize);
    bytes.len() == other.len() && common >= usize::from(prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A UDP frame from 10.9.0.2:1000 to 10.9.1.1:53, or the same over IPv6.
    fn frame(v6: bool, tag: Option<u16>) -> Vec<u8> {
        let mut bytes = vec![0; 12];
        if let Some(tag) = tag {
            bytes.extend([0x81, 0]);
            bytes.extend(tag.to_be_bytes());
        }
        if v6 {
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 17, 64]);
            for last in [2, 1] {
                bytes.extend([0xfd; 15]);
                bytes.push(last);
            }
        } else {
            bytes.extend([8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 9, 0, 2, 10, 9, 1, 1]);
        }
        bytes.extend([3, 0xe8, 0, 53, 0, 8, 0, 0]);
        bytes
    }

    #[test]
    fn rules_match_the_frames_that_they_describe() {
        let (v4, v6, tagged) = (frame(false, None), frame(true, None), frame(false, Some(0x2007)));
        for (rule, expected) in [
            ("udp dst port 53", [true, true, true]),
            ("udp and dst port 53 and src port 1000", [true, true, true]),
            ("udp dst port 54", [false; 3]),
            ("udp src port 53", [false; 3]),
            ("tcp dst port 53", [false; 3]),
            ("ip", [true, false, true]),
            ("ip6 and udp", [false, true, false]),
            ("src host 10.9.0.2", [true, false, true]),
            ("src 10.9.0.3", [false; 3]),
            ("dst net 10.9.0.0/23", [true, false, true]),
            ("dst net 10.9.0.0/24", [false; 3]),
            ("src net 0.0.0.0/0", [true, false, true]),
            ("dst host fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fd01", [false, true, false]),
            ("vlan 7", [false, false, true]),
            ("vlan 7 and udp && dst port 53", [false, false, true]),
            ("vlan 8 udp", [false; 3]),
        ] {
            let parsed = parse(rule).unwrap_or_else(|why| panic!("{why}"));
            assert_eq!([&v4, &v6, &tagged].map(|frame| parsed.matches(frame)), expected, "{rule}");
            for n in 0..v4.len() - 4 {
                let _ = parsed.matches(&v4[..n]);
            }
        }
    }

    #[test]
    fn a_port_rule_does_not_match_later_fragments() {
        let mut fragment = frame(false, None);
        fragment[21] = 1;
        assert!(!parse("udp dst port 53").unwrap().matches(&fragment) && parse("udp").unwrap().matches(&fragment));
    }

    #[test]
    fn there_is_one_tuple_for_each_address_family() {
        let families = |rule: &str| parse(rule).unwrap().tuples().map(|tuple| tuple.v6).collect::<Vec<_>>();
        assert_eq!(families("udp dst port 53"), [false, true]);
        assert_eq!(families("ip and udp"), [false]);
        assert_eq!(families("dst host fd00::1"), [true]);
    }

    #[test]
    fn invalid_rules_are_refused_with_a_reason() {
        for (rule, part) in [
            ("", "ends before"),
            ("udp and", "ends before"),
            ("and udp", "`and` is not one of"),
            ("port 53", "needs `src` or `dst`"),
            ("dst port 53", "add tcp, udp or sctp"),
            ("udp dst port x", "`x` is not a valid port"),
            ("udp dst port 65536", "up to 65535"),
            ("udp dst port", "nothing follows `port`"),
            ("tcp or udp", "give several rules"),
            ("tcp udp", "`udp` occurs twice"),
            ("ip and src host fd00::1", "mixes IPv4 and IPv6"),
            ("src net 10.0.0.0", "not a network"),
            ("src net 10.0.0.0/33", "not a network"),
            ("src host 10.0.0.0/8", "not an address"),
            ("vlan 4096", "up to 4095"),
            ("icmp", "`icmp` is not one of"),
        ] {
            let why = parse(rule).unwrap_err();
            assert!(why.contains(part), "{rule}: {why}");
        }
    }
}

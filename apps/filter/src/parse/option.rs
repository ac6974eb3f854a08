// SPDX-License-Identifier: BSD-2-Clause
//! Options of rules.

use unetmap_suggest::did_you_mean;

use super::words::SyntaxError;
use super::{Parser, Result, names};
use crate::packet::tcp;
use crate::rule::{Field, Literal, Side, StateOption, Test};

/// Options, for suggestions.
pub(super) const OPTIONS: [&str; 44] = [
    "in",
    "out",
    "recv",
    "xmit",
    "via",
    "layer2",
    "bridged",
    "frag",
    "fragment",
    "setup",
    "established",
    "estab",
    "mac",
    "MAC",
    "proto",
    "src-ip",
    "src-ip6",
    "dst-ip",
    "dst-ip6",
    "src-port",
    "dst-port",
    "iplen",
    "ipid",
    "ipttl",
    "tcpwin",
    "tcpdatalen",
    "tagged",
    "mac-type",
    "tcpflags",
    "iptos",
    "ext6hdr",
    "ipprecedence",
    "ipversion",
    "tcpseq",
    "tcpack",
    "dscp",
    "icmptypes",
    "icmp6types",
    "ip4",
    "ip6",
    "keep-state",
    "limit",
    "record-state",
    "defer-action",
];

/// Options of ipfw that this program does not have, and what is there instead.
const UNSUPPORTED: [(&str, &str); 28] = [
    ("uid", NO_SOCKETS),
    ("gid", NO_SOCKETS),
    ("jail", NO_SOCKETS),
    ("sockarg", NO_SOCKETS),
    ("ipsec", NO_HOST),
    ("diverted", NO_HOST),
    ("diverted-loopback", NO_HOST),
    ("diverted-output", NO_HOST),
    ("fib", NO_HOST),
    ("verrevpath", NO_ROUTES),
    ("versrcreach", NO_ROUTES),
    ("antispoof", NO_ROUTES),
    ("mark", "give tagged N"),
    ("lookup", TABLES),
    ("flow", TABLES),
    ("flow-id", "give src-ip6 and dst-ip6"),
    ("ipoptions", NO_OPTIONS),
    ("ipopts", NO_OPTIONS),
    ("tcpoptions", NO_OPTIONS),
    ("tcpopts", NO_OPTIONS),
    ("tcpmss", "the action `tcp-setmss N` lowers it"),
    ("src-mac", "give mac any ADDRESS"),
    ("dst-mac", "give mac ADDRESS any"),
    ("set-limit", "give limit"),
    ("defer-immediate-action", "give defer-action"),
    ("me", "give src-ip me or dst-ip me"),
    ("me6", "give src-ip6 me6 or dst-ip6 me6"),
    ("tablearg", "it stands in place of the number of an action"),
];
const NO_SOCKETS: &str = "packets between ports have no socket; give addresses and ports";
const NO_HOST: &str = "packets between ports have no such property; leave it out";
const NO_ROUTES: &str = "there are no routes here; give the networks of each port, as in `src-ip 10.0.0.0/8 recv PORT`";
const TABLES: &str = "give src-ip table(NAME) or dst-ip table(NAME)";
const NO_OPTIONS: &str = "options are not looked at; leave it out";

impl Parser<'_, '_> {
    /// Parses an option, or several alternatives in braces.
    pub(super) fn option_or_block(&mut self) -> Result<()> {
        if self.words.peek() == Some("{") {
            return self.block(|parser| match parser.option()? {
                Some(literal) => Ok(Some(literal)),
                None => Err(parser.words.error("this option cannot be an alternative")),
            });
        }
        let literal = self.option()?;
        self.tests.extend(literal);
        Ok(())
    }

    /// Parses an option. `None`: it is no test.
    fn option(&mut self) -> Result<Option<Literal>> {
        let negated = self.negation();
        let word = self.words.required("an option")?;
        if matches!(word, "keep-state" | "limit" | "record-state" | "defer-action") {
            if negated {
                return Err(self.words.error(format!("`{word}` cannot be negated")));
            }
            self.state_option(word)?;
            return Ok(None);
        }
        let test = self.test(word)?;
        Ok(Some(Literal { test, negated, or: false }))
    }

    fn state_option(&mut self, word: &str) -> Result<()> {
        self.show(word);
        if word == "defer-action" {
            match &mut self.state {
                Some(state) => state.defer = true,
                None => return Err(self.words.error("`defer-action` comes after keep-state, limit or record-state")),
            }
            return Ok(());
        }
        if self.state.is_some() {
            return Err(self.words.error(format!("`{word}`: a rule has one of keep-state, limit and record-state")));
        }
        let limit = if word == "limit" { Some(self.limit()?) } else { None };
        let name = self.state_name(false)?;
        self.state = Some(StateOption { name, limit, probe: word != "record-state", defer: false });
        Ok(())
    }

    fn test(&mut self, word: &str) -> Result<Test> {
        // ipfw's other names.
        let word = match word {
            "bridged" => "layer2",
            "fragment" => "frag",
            "estab" => "established",
            "src-ipv6" => "src-ip6",
            "dst-ipv6" => "dst-ip6",
            _ => word,
        };
        match word {
            "in" | "out" | "recv" | "xmit" | "via" => return self.direction(word),
            "layer2" => {
                self.show(word);
                return Ok(Test::Always(true));
            }
            "frag" => return self.fragment(),
            "setup" => {
                self.show(word);
                return Ok(Test::TcpFlags(tcp::SYN, tcp::ACK));
            }
            "established" => {
                self.show(word);
                return Ok(Test::Established);
            }
            "ip4" | "ipv4" | "ip6" | "ipv6" => return self.protocol(word),
            "mac" | "MAC" => return self.mac(),
            _ => {}
        }
        if let Some((_, instead)) = UNSUPPORTED.iter().find(|(known, _)| *known == word) {
            return Err(self.words.error(format!("the option `{word}` is not supported: {instead}")));
        }
        self.show(word);
        self.test_with_value(word)
    }

    /// Parses a test whose word was read, and is followed by a value.
    fn test_with_value(&mut self, word: &str) -> Result<Test> {
        let value = |parser: &mut Self, what: &str| {
            parser
                .words
                .required(what)
                .map_err(|e| super::SyntaxError { message: format!("{word}: {}", e.message), ..e })
        };
        let none = |_: &str| None;
        let number = |parser: &mut Self, field| {
            let list = value(parser, "numbers")?;
            Ok(Test::Number(field, parser.ranges(list, none)?))
        };
        match word {
            "proto" => {
                let name = value(self, "a protocol")?;
                self.protocol(name)
            }
            "src-ip" | "src-ip6" | "dst-ip" | "dst-ip6" => {
                let side = if word.starts_with("src") { Side::Src } else { Side::Dst };
                let address = value(self, "an address")?;
                self.address(side, address)
            }
            "src-port" | "dst-port" => {
                let field = if word == "src-port" { Field::SrcPort } else { Field::DstPort };
                let list = value(self, "ports")?;
                Ok(Test::Number(field, self.ranges(list, names::port)?))
            }
            "iplen" => number(self, Field::IpLen),
            "ipid" => number(self, Field::IpId),
            "ipttl" => number(self, Field::IpTtl),
            "tcpwin" => number(self, Field::TcpWindow),
            "tcpdatalen" => number(self, Field::TcpDataLen),
            "tagged" => {
                let list = value(self, "tags")?;
                Ok(Test::Tagged(self.ranges(list, none)?))
            }
            "mac-type" => {
                let list = value(self, "EtherTypes in hexadecimal")?;
                self.ethertypes(list)
            }
            "tcpflags" | "tcpflgs" => self.flags(&names::TCP_FLAGS).map(|(set, clear)| Test::TcpFlags(set, clear)),
            "iptos" => self.flags(&names::TOS).map(|(set, clear)| Test::Tos(set, clear)),
            "ext6hdr" => match self.flags(&names::EXTENSIONS)? {
                (set, 0) => Ok(Test::Extensions(set)),
                _ => Err(self.words.error("ext6hdr: `!` is not valid here; use `not ext6hdr`")),
            },
            "ipprecedence" => {
                let precedence = super::number_u8(self.words, "a precedence", 7)?;
                self.show(&precedence.to_string());
                Ok(Test::Tos(precedence << 5, !precedence << 5))
            }
            "ipversion" | "ipver" => {
                let version = super::number_u8(self.words, "a version", 15)?;
                self.show(&version.to_string());
                Ok(Test::Version(version))
            }
            "tcpseq" | "tcpack" => {
                let number = super::number(self.words, "a number", 0, u32::MAX)?;
                self.show(&number.to_string());
                Ok(if word == "tcpseq" { Test::TcpSeq(number) } else { Test::TcpAck(number) })
            }
            "dscp" => {
                let list = value(self, "DSCP values")?;
                self.bitmap(list, names::dscp, 63).map(|map| Test::Dscp(map[0]))
            }
            "icmptypes" | "icmptype" => {
                let list = value(self, "ICMP types")?;
                self.bitmap(list, |text| text.parse().ok(), 31).map(|map| Test::IcmpTypes(map[0] as u32))
            }
            "icmp6types" | "icmp6type" => {
                let list = value(self, "ICMPv6 types")?;
                self.bitmap(list, |text| text.parse().ok(), 255).map(|map| Test::Icmp6Types(Box::new(map)))
            }
            _ => Err(self.no_option(word)),
        }
    }

    /// The error about a word in place of an option.
    fn no_option(&self, word: &str) -> SyntaxError {
        if names::family(word).is_some() || names::protocol(word).is_some() {
            return self.words.error_here(format!("give `from` after the protocol `{word}`"));
        }
        let hint = did_you_mean(word, OPTIONS);
        self.words.error(format!("`{word}` is no option that is known here{hint}"))
    }

    /// Resolves a direction or a port's name: packets travel from the first port to the second (`out`), or back
    /// (`in`).
    fn direction(&mut self, word: &str) -> Result<Test> {
        const OUT: u8 = 1;
        const IN: u8 = 2;
        self.show(word);
        if word == "in" || word == "out" {
            return Ok(Test::Direction(if word == "out" { OUT } else { IN }));
        }
        let name = self.words.required("a port")?;
        self.show(name);
        if name == "any" {
            return Ok(Test::Direction(OUT | IN));
        }
        if name.starts_with("table(") || name.parse::<std::net::IpAddr>().is_ok() {
            return Err(self.words.error(format!("{word} `{name}`: give the name of a port")));
        }
        let ports = self.context.ports();
        if !name.contains(['*', '?', '[']) && !ports.contains(&name.strip_prefix("netmap:").unwrap_or(name)) {
            let [a, b] = ports;
            let why = format!("{word} `{name}`: the ports are {a} and {b}, and no packet of `{name}` comes here");
            return Err(self.words.error(format!("{why}: give one of them, or leave this rule out")));
        }
        let pattern = name.strip_prefix("netmap:").unwrap_or(name);
        let [first, second] = ports.map(|port| matches_pattern(pattern, port));
        let way = |on: bool, bits: u8| if on { bits } else { 0 };
        Ok(Test::Direction(match word {
            "recv" => way(first, OUT) | way(second, IN),
            "xmit" => way(second, OUT) | way(first, IN),
            // As ipfw has it: the transmit interface of outgoing packets, the receive interface of incoming ones.
            _ => way(second, OUT | IN),
        }))
    }

    fn fragment(&mut self) -> Result<Test> {
        self.show("frag");
        let Some(list) = self.words.peek() else { return Ok(Test::LaterFragment) };
        match names::flags(&names::FRAGMENT_FLAGS, list) {
            Some((set, clear)) => {
                self.words.next();
                self.show(list);
                Ok(Test::Fragment(set, clear))
            }
            None => Ok(Test::LaterFragment),
        }
    }

    fn flags(&mut self, table: &[(&str, u8)]) -> Result<(u8, u8)> {
        let known = || table.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        let list = self.words.required(&known())?;
        let flags = names::flags(table, list);
        let flags = flags.ok_or_else(|| self.words.error(format!("`{list}`: give some of {}", known())))?;
        self.show(list);
        Ok(flags)
    }

    fn bitmap(&mut self, list: &str, value: impl Fn(&str) -> Option<u8>, max: u8) -> Result<[u64; 4]> {
        let mut map = [0; 4];
        for item in list.split(',') {
            match value(item).filter(|&n| n <= max) {
                Some(n) => map[usize::from(n) / 64] |= 1 << (n % 64),
                None => {
                    return Err(self
                        .words
                        .error(format!("`{item}`: give values from 0 to {max}, separated by commas")));
                }
            }
        }
        self.show(list);
        Ok(map)
    }

    fn ethertypes(&mut self, list: &str) -> Result<Test> {
        let mut ranges = Vec::new();
        for item in list.split(',') {
            let (from, to) = item.split_once('-').unwrap_or((item, item));
            match (names::ethertype(from), names::ethertype(to)) {
                (Some(from), Some(to)) if from <= to => ranges.push((from, to)),
                _ => return Err(self.words.error(format!("`{item}`: give an EtherType in hexadecimal, or arp"))),
            }
        }
        self.show(list);
        Ok(Test::Number(Field::EtherType, ranges.into()))
    }

    /// Parses the destination and the source address of `mac`, in the order of the frame.
    fn mac(&mut self) -> Result<Test> {
        self.show("mac");
        let mut one = || {
            let word = self.words.required("a MAC address or any")?;
            let parsed = mac_address(word);
            let parsed = parsed.ok_or_else(|| {
                self.words
                    .error(format!("`{word}`: give any, or a MAC address, with /BITS or &MASK if part of it counts"))
            })?;
            self.show(word);
            Ok(parsed)
        };
        let addresses = [one()?, one()?];
        Ok(Test::Mac(Box::new(addresses)))
    }
}

/// Returns a MAC address and its mask.
fn mac_address(word: &str) -> Option<(u64, u64)> {
    const ALL: u64 = (1 << 48) - 1;
    let parse = |text: &str| -> Option<u64> {
        let mut parts = text.split(':');
        let mut mac = 0;
        for _ in 0..6 {
            let part = parts.next().filter(|part| (1..=2).contains(&part.len()))?;
            mac = mac << 8 | u64::from(u8::from_str_radix(part, 16).ok()?);
        }
        parts.next().is_none().then_some(mac)
    };
    let (address, mask) = match (word, word.split_once('/'), word.split_once('&')) {
        ("any", ..) => return Some((0, 0)),
        (_, Some((address, bits)), _) => {
            let bits = bits.parse().ok().filter(|&bits: &u32| bits <= 48)?;
            (parse(address)?, ALL & !((1u64 << (48 - bits)) - 1))
        }
        (_, _, Some((address, mask))) => (parse(address)?, parse(mask)?),
        _ => (parse(word)?, ALL),
    };
    Some((address & mask, mask))
}

/// Whether a name matches a shell pattern with `*`, `?` and `[...]`.
fn matches_pattern(pattern: &str, name: &str) -> bool {
    let Some(first) = pattern.chars().next() else { return name.is_empty() };
    let rest = &pattern[first.len_utf8()..];
    if first == '*' {
        let tails = name.char_indices().map(|(at, _)| &name[at..]).chain([""]);
        return tails.into_iter().any(|tail| matches_pattern(rest, tail));
    }
    let Some(c) = name.chars().next() else { return false };
    let tail = &name[c.len_utf8()..];
    if let (true, Some((class, after))) = (first == '[', rest.split_once(']')) {
        let chars: Vec<char> = class.chars().collect();
        let mut at = 0;
        let mut found = false;
        while at < chars.len() {
            let is_range = at + 2 < chars.len() && chars[at + 1] == '-';
            let to = if is_range { chars[at + 2] } else { chars[at] };
            found |= (chars[at]..=to).contains(&c);
            at += if is_range { 3 } else { 1 };
        }
        return found && matches_pattern(after, tail);
    }
    (first == '?' || first == c) && matches_pattern(rest, tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_a_shell() {
        for (pattern, name, expected) in [
            ("eth0", "eth0", true),
            ("eth*", "eth10", true),
            ("vlan[1-9]??", "vlan123", true),
            ("vlan[1-9]??", "vlan023", false),
            ("*a", "bab", false),
            ("*", "", true),
            ("e", "", false),
        ] {
            assert_eq!(matches_pattern(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn mac_addresses_have_masks() {
        assert_eq!(mac_address("any"), Some((0, 0)));
        assert_eq!(mac_address("02:00:00:00:00:01"), Some((0x0200_0000_0001, (1 << 48) - 1)));
        assert_eq!(mac_address("02:ff:00:00:00:00/8"), Some((0x0200_0000_0000, 0xff00_0000_0000)));
        assert_eq!(mac_address("02:00:00:00:00:01&00:00:00:00:00:ff"), Some((1, 255)));
        for word in ["02:00", "02:00:00:00:00:01/49", "x", "02:00:00:00:00:01:02"] {
            assert_eq!(mac_address(word), None, "{word}");
        }
    }
}

// SPDX-License-Identifier: BSD-2-Clause
//! Random rules: their text, and beside it a function that says what it means.

use std::net::IpAddr;

use crate::packet::{Fields, Ip, PORTS, PROTOCOLS, address4, address6, mac};
use crate::random::Random;

/// The view of a test: the packet, and whether it travels out.
pub(crate) struct View<'a> {
    pub(crate) fields: &'a Fields,
    pub(crate) out: bool,
    /// Tags that earlier rules have set.
    pub(crate) tags: &'a [u32],
    /// Type of service, as earlier rules have left it.
    pub(crate) tos: u8,
    pub(crate) tables: &'a [Vec<(IpAddr, u8, u32)>],
}

impl View<'_> {
    fn ip(&self) -> Option<&Ip> {
        self.fields.ip.as_ref()
    }
}

/// Returns whether the packet matches, and the value of a table that was found.
pub(crate) type Check = Box<dyn Fn(&View<'_>) -> (bool, Option<u32>)>;

/// Alternatives, each possibly negated.
pub(crate) type Group = Vec<(bool, Check)>;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Do {
    Allow,
    Deny,
    Reject,
    Unreach6,
    Reset,
    Count,
    SkipTo(Option<u16>),
    Call(Option<u16>),
    Return,
    Dscp(Option<u8>),
    CheckState,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Keep {
    pub(crate) name: usize,
    /// Fields (source address, source port, destination address, destination port) and number.
    pub(crate) limit: Option<([bool; 4], usize)>,
    pub(crate) probe: bool,
    pub(crate) defer: bool,
}

pub(crate) struct NaiveRule {
    pub(crate) number: u16,
    pub(crate) set: u8,
    pub(crate) never: bool,
    pub(crate) action: Do,
    /// Whether a tag is set or cleared, and which: `None` is the table's value.
    pub(crate) tag: Option<(bool, Option<u32>)>,
    pub(crate) groups: Vec<Group>,
    pub(crate) keep: Option<Keep>,
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
}

pub(crate) fn contains(net: IpAddr, bits: u8, address: IpAddr) -> bool {
    match (net, address) {
        (IpAddr::V4(net), IpAddr::V4(address)) => {
            let shift = 32 - u32::from(bits);
            bits == 0 || u32::from(net) >> shift == u32::from(address) >> shift
        }
        (IpAddr::V6(net), IpAddr::V6(address)) => {
            let shift = 128 - u32::from(bits);
            bits == 0 || u128::from(net) >> shift == u128::from(address) >> shift
        }
        _ => false,
    }
}

fn simple(check: impl Fn(&View<'_>) -> bool + 'static) -> Check {
    Box::new(move |view| (check(view), None))
}

fn on_ip(check: impl Fn(&Ip) -> bool + 'static) -> Check {
    simple(move |view| view.ip().is_some_and(&check))
}

fn side(ip: &Ip, src: bool) -> IpAddr {
    if src { ip.src } else { ip.dst }
}

fn network(random: &mut Random) -> (String, IpAddr, u8) {
    let (address, bits) = match random.one_in(4) {
        true => (IpAddr::V6(address6(random)), *random.pick(&[128u8, 64, 48, 127])),
        false => (IpAddr::V4(address4(random)), *random.pick(&[32u8, 32, 24, 16, 31, 28, 8])),
    };
    (format!("{address}/{bits}"), address, bits)
}

/// An address: its text and its meaning.
fn address(random: &mut Random, src: bool, tables: usize) -> (String, Check) {
    match random.below(10) {
        0..=2 => ("any".into(), simple(|_| true)),
        3 => {
            let (a, b) = (address4(random), *random.pick(&["255.255.0.255", "255.0.255.255"]));
            let mask: std::net::Ipv4Addr = b.parse().unwrap();
            let wanted = u32::from(a) & u32::from(mask);
            let check = on_ip(
                move |ip| matches!(side(ip, src), IpAddr::V4(address) if u32::from(address) & u32::from(mask) == wanted),
            );
            (format!("{a}:{b}"), check)
        }
        4 => {
            let base = address4(random);
            let (from, to) = (random.below(6) as u8, 6 + random.below(6) as u8);
            let octets = base.octets();
            let check = on_ip(move |ip| match side(ip, src) {
                IpAddr::V4(address) => {
                    let [a, b, c, d] = address.octets();
                    [a, b, c] == octets[..3] && (d == from || (to..=to + 3).contains(&d))
                }
                IpAddr::V6(_) => false,
            });
            (format!("{base}/24{{{from},{to}-{}}}", to + 3), check)
        }
        5 | 6 if tables > 0 => {
            let table = random.below(tables as u64) as usize;
            let value = random.one_in(3).then(|| random.below(3) as u32 * 10);
            let text = value.map_or(format!("table(t{table})"), |value| format!("table(t{table},{value})"));
            let check: Check = Box::new(move |view| {
                let Some(ip) = view.ip() else { return (false, None) };
                let entries = view.tables[table].iter().filter(|(net, bits, _)| contains(*net, *bits, side(ip, src)));
                let found = entries.max_by_key(|(_, bits, _)| *bits).map(|(_, _, value)| *value);
                match found {
                    Some(found) if value.is_none_or(|value| value == found) => (true, Some(found)),
                    _ => (false, None),
                }
            });
            (text, check)
        }
        _ => {
            let list: Vec<_> = (0..1 + random.below(3)).map(|_| network(random)).collect();
            let text: Vec<_> = list.iter().map(|(text, ..)| text.clone()).collect();
            let check = on_ip(move |ip| list.iter().any(|(_, net, bits)| contains(*net, *bits, side(ip, src))));
            (text.join(","), check)
        }
    }
}

fn number_list(random: &mut Random, values: &[u16]) -> (String, Vec<(u16, u16)>) {
    let list: Vec<(u16, u16)> = (0..1 + random.below(3))
        .map(|_| {
            let from = *random.pick(values);
            if random.one_in(3) { (from, from.saturating_add(random.below(1000) as u16)) } else { (from, from) }
        })
        .collect();
    let text: Vec<_> =
        list.iter().map(|(from, to)| if from == to { from.to_string() } else { format!("{from}-{to}") }).collect();
    (text.join(","), list)
}

fn ports(random: &mut Random, src: bool) -> (String, Check) {
    let (text, list) = number_list(random, &PORTS);
    let check = on_ip(move |ip| {
        let port = ip.ports.map(|(s, d)| if src { s } else { d });
        port.is_some_and(|port| list.iter().any(|(from, to)| (from..=to).contains(&&port)))
    });
    (text, check)
}

fn protocol(random: &mut Random) -> (String, Check) {
    match random.below(8) {
        0..=2 => ("ip".into(), simple(|_| true)),
        3 => ("ip4".into(), on_ip(|ip| ip.src.is_ipv4())),
        4 => ("ip6".into(), on_ip(|ip| ip.src.is_ipv6())),
        _ => {
            let number = *random.pick(&PROTOCOLS);
            let text = match number {
                6 => "tcp".into(),
                17 => "udp".into(),
                1 => "icmp".into(),
                _ => number.to_string(),
            };
            (text, on_ip(move |ip| ip.proto == number))
        }
    }
}

fn flag_list(random: &mut Random, names: &[(&'static str, u8)]) -> (String, u8, u8) {
    let (mut set, mut clear, mut text) = (0, 0, Vec::new());
    for _ in 0..1 + random.below(2) {
        let (name, bit) = *random.pick(names);
        if random.one_in(2) {
            set |= bit;
            text.push(name.to_owned());
        } else {
            clear |= bit;
            text.push(format!("!{name}"));
        }
    }
    (text.join(","), set, clear)
}

fn option(random: &mut Random, tables: usize) -> (String, Check) {
    const TCP: [(&str, u8); 6] = [("fin", 1), ("syn", 2), ("rst", 4), ("psh", 8), ("ack", 16), ("urg", 32)];
    let numbers = |random: &mut Random, name: &str, values: &[u16], of: fn(&Ip) -> Option<u16>| {
        let (text, list) = number_list(random, values);
        let check = on_ip(move |ip| of(ip).is_some_and(|n| list.iter().any(|(from, to)| (from..=to).contains(&&n))));
        (format!("{name} {text}"), check)
    };
    match random.below(28) {
        0 => ("out".into(), simple(|view| view.out)),
        1 => ("in".into(), simple(|view| !view.out)),
        2 => ("recv one".into(), simple(|view| view.out)),
        3 => ("xmit o?e".into(), simple(|view| !view.out)),
        4 => ("via two".into(), simple(|_| true)),
        5 => ("frag".into(), on_ip(|ip| ip.offset != 0)),
        6 => {
            let (text, set, clear) = flag_list(random, &[("df", 2), ("mf", 4), ("rf", 1), ("offset", 8)]);
            let check = on_ip(move |ip| {
                let [rf, df, mf] = ip.bits.map(u8::from);
                let bits = rf | df << 1 | mf << 2 | u8::from(ip.offset != 0) << 3;
                ip.src.is_ipv4() && bits & set == set && bits & clear == 0
            });
            (format!("frag {text}"), check)
        }
        7 => numbers(random, "iplen", &[40, 44, 50, 84, 90], |ip| Some(ip.len)),
        8 => numbers(random, "ipid", &[0, 1, 2], |ip| ip.src.is_ipv4().then_some(ip.id)),
        9 => numbers(random, "ipttl", &[1, 64, 255], |ip| ip.src.is_ipv4().then_some(ip.ttl.into())),
        10 => numbers(random, "tcpwin", &[0, 1], |ip| ip.tcp.as_ref().map(|tcp| tcp.window)),
        11 => numbers(random, "tcpdatalen", &[0, 4, 8, 12], |ip| ip.tcp.as_ref().map(|tcp| tcp.data)),
        12 | 13 => {
            let (text, set, clear) = flag_list(random, &TCP);
            let check = on_ip(move |ip| ip.tcp.as_ref().is_some_and(|t| t.flags & set == set && t.flags & clear == 0));
            (format!("tcpflags {text}"), check)
        }
        14 => ("setup".into(), on_ip(|ip| ip.tcp.as_ref().is_some_and(|t| t.flags & 0x12 == 2))),
        15 => ("established".into(), on_ip(|ip| ip.tcp.as_ref().is_some_and(|t| t.flags & 0x16 != 2))),
        16 => {
            let n = *random.pick(&[0u32, 3, 8, 11, 31]);
            (format!("icmptypes {n}"), on_ip(move |ip| ip.src.is_ipv4() && ip.icmp.map(u32::from) == Some(n)))
        }
        17 => {
            let n = *random.pick(&[3u32, 128, 135]);
            (format!("icmp6types {n}"), on_ip(move |ip| ip.src.is_ipv6() && ip.icmp.map(u32::from) == Some(n)))
        }
        18 => {
            let [dst, src] = [random.one_in(2).then(|| mac(random)), random.one_in(2).then(|| mac(random))];
            let text = |mac: Option<[u8; 6]>| mac.map_or("any".into(), |m| format!("02:0:0:00:0:{:02x}", m[5]));
            let check = simple(move |view| {
                dst.is_none_or(|mac| view.fields.macs[0] == mac) && src.is_none_or(|mac| view.fields.macs[1] == mac)
            });
            (format!("mac {} {}", text(dst), text(src)), check)
        }
        19 => {
            let n = *random.pick(&[0x0806u16, 0x0800, 0x86dd]);
            (format!("mac-type 0x{n:04x}"), simple(move |view| view.fields.ethertype == n))
        }
        20 => {
            let name = *random.pick(&["frag", "hopopt", "route", "dstopt", "ah", "esp", "rthdr0", "rthdr2"]);
            (format!("ext6hdr {name}"), on_ip(move |ip| ip.extensions.contains(&name)))
        }
        21 => {
            let (name, n) = *random.pick(&[("ef", 46), ("af11", 10), ("cs0", 0), ("63", 63)]);
            (format!("dscp {name}"), simple(move |view| view.ip().is_some() && view.tos >> 2 == n))
        }
        22 => {
            let version = *random.pick(&[4, 6]);
            (format!("ipversion {version}"), on_ip(move |ip| ip.src.is_ipv4() == (version == 4)))
        }
        23 => {
            let (text, check) = address(random, true, tables);
            (format!("src-ip {text}"), check)
        }
        26 | 27 => {
            let (text, list) = number_list(random, &[1, 2, 3, 10]);
            let check = simple(move |view| {
                view.tags.iter().any(|tag| list.iter().any(|(from, to)| (from..=to).contains(&&(*tag as u16))))
            });
            (format!("tagged {text}"), check)
        }
        24 => {
            let (text, check) = ports(random, false);
            (format!("dst-port {text}"), check)
        }
        _ => {
            let n = random.below(3) as u32;
            (format!("tcpack {n}"), on_ip(move |ip| ip.tcp.as_ref().is_some_and(|tcp| tcp.ack == n)))
        }
    }
}

/// One item, possibly negated, or several in braces. Returns its text.
fn group(random: &mut Random, groups: &mut Vec<Group>, item: impl Fn(&mut Random) -> (String, Check)) -> String {
    let one = |random: &mut Random| {
        let negated = random.one_in(5);
        let (text, check) = item(random);
        (if negated { format!("not {text}") } else { text }, (negated, check))
    };
    if !random.one_in(6) {
        let (text, literal) = one(random);
        groups.push(vec![literal]);
        return text;
    }
    let all: Vec<_> = (0..2 + random.below(2)).map(|_| one(random)).collect();
    let text: Vec<_> = all.iter().map(|(text, _)| text.clone()).collect();
    groups.push(all.into_iter().map(|(_, literal)| literal).collect());
    format!("{{ {} }}", text.join(" or "))
}

/// The features that generated rules may have.
#[derive(Clone, Copy)]
pub(crate) struct Style {
    pub(crate) tables: usize,
    /// Whether rules keep states.
    pub(crate) states: bool,
    pub(crate) max_number: u64,
}

/// A rule and its text.
pub(crate) fn rule(random: &mut Random, style: Style) -> (String, NaiveRule) {
    let number = 1 + random.below(style.max_number) as u16;
    let set = if random.one_in(5) { random.below(4) as u8 } else { 0 };
    let never = random.one_in(30);
    let mut text = format!("add {number} ");
    if set > 0 {
        text += &format!("set {set} ");
    }
    if never {
        text += "prob 0 ";
    }
    let target = |random: &mut Random| match random.one_in(4) && style.tables > 0 {
        true => (None, "tablearg".to_owned()),
        false => {
            let n = 1 + random.below(style.max_number) as u16;
            (Some(n), n.to_string())
        }
    };
    let (action, word) = match random.below(if style.states { 23 } else { 20 }) {
        0..=4 => (Do::Allow, "allow".into()),
        5..=8 => (Do::Deny, "deny".into()),
        9 => (Do::Reject, "reject".into()),
        10 => (Do::Unreach6, "unreach6 port".into()),
        11 => (Do::Reset, "reset".into()),
        12 => (Do::Count, "count".into()),
        13 | 14 => {
            let (to, text) = target(random);
            (Do::SkipTo(to), format!("skipto {text}"))
        }
        15 | 16 => {
            let (to, text) = target(random);
            (Do::Call(to), format!("call {text}"))
        }
        17 => (Do::Return, "return".into()),
        18 | 19 => match random.one_in(3) && style.tables > 0 {
            true => (Do::Dscp(None), "setdscp tablearg".into()),
            false => {
                let (name, n) = *random.pick(&[("ef", 46), ("af11", 10), ("0", 0), ("63", 63)]);
                (Do::Dscp(Some(n)), format!("setdscp {name}"))
            }
        },
        _ => (Do::CheckState, "check-state".into()),
    };
    text += &word;
    let mut tag = None;
    if random.one_in(3) && !matches!(action, Do::CheckState) {
        let number = (!random.one_in(4)).then(|| *random.pick(&[1u32, 2, 3]));
        let set = !random.one_in(4);
        let shown = number.map_or("tablearg".into(), |number| number.to_string());
        text += &format!(" {} {shown}", if set { "tag" } else { "untag" });
        tag = Some((set, number));
    }
    let state_name = |random: &mut Random| random.below(3) as usize;
    let mut rule = NaiveRule { number, set, never, action, tag, groups: Vec::new(), keep: None, packets: 0, bytes: 0 };
    if matches!(action, Do::CheckState) {
        let name = state_name(random);
        if name > 0 {
            text += &format!(" :s{name}");
        }
        rule.keep = Some(Keep { name, limit: None, probe: true, defer: false });
        return (text, rule);
    }
    let groups = &mut rule.groups;
    let tables = style.tables;
    if !random.one_in(8) {
        text += &format!(" {}", group(random, groups, protocol));
        for (word, src) in [("from", true), ("to", false)] {
            text += &format!(" {word} {}", group(random, groups, |random| address(random, src, tables)));
            if random.one_in(4) {
                text += &format!(" {}", group(random, groups, |random| ports(random, src)));
            }
        }
    } else {
        text += &format!(" {}", group(random, groups, |random| option(random, tables)));
    }
    while random.one_in(2) {
        text += &format!(" {}", group(random, groups, |random| option(random, tables)));
    }
    if style.states && random.one_in(3) {
        let (name, kind) = (state_name(random), random.below(4));
        let limit = (kind == 1).then(|| {
            let mut fields = [0; 4].map(|_| random.one_in(2));
            fields[0] |= fields == [false; 4];
            (fields, 1 + random.below(3) as usize)
        });
        text += [" keep-state", " limit", " record-state", " keep-state"][kind as usize];
        if let Some((fields, count)) = limit {
            let names = ["src-addr", "src-port", "dst-addr", "dst-port"];
            names.iter().zip(fields).filter(|(_, on)| *on).for_each(|(name, _)| text += &format!(" {name}"));
            text += &format!(" {count}");
        }
        if name > 0 {
            text += &format!(" :s{name}");
        }
        let defer = random.one_in(4);
        if defer {
            text += " defer-action";
        }
        rule.keep = Some(Keep { name, limit, probe: kind != 2, defer });
    }
    (text, rule)
}

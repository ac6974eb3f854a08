// SPDX-License-Identifier: BSD-2-Clause
//! The addresses, ports, protocols and flows of most bytes, and tables of them.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::hash::Hash;
use std::time::Duration;

use tool_common::table::align;

use crate::cache::Flow;
use crate::meter::Volume;
use crate::packet::{Key, family};
use crate::report::address;

/// Things that are told apart between two tables; bytes of others are one row.
const MAX_NAMES: usize = 1 << 16;

/// The volumes of things.
struct Volumes<K> {
    known: HashMap<K, Volume>,
    others: Volume,
}

impl<K: Copy + Eq + Hash> Volumes<K> {
    fn new() -> Volumes<K> {
        Volumes { known: HashMap::new(), others: Volume::default() }
    }

    fn add(&mut self, name: K, volume: Volume) {
        let is_full = self.known.len() >= MAX_NAMES;
        match self.known.get_mut(&name) {
            Some(known) => known.add(volume),
            None if is_full => self.others.add(volume),
            None => drop(self.known.insert(name, volume)),
        }
    }

    /// Returns the `rows` with most bytes, and empties the volumes.
    fn take(&mut self, title: &'static str, rows: usize, show: impl Fn(&K) -> String) -> Ranking {
        let mut all: Vec<(K, Volume)> = self.known.drain().collect();
        all.sort_unstable_by_key(|(_, volume)| std::cmp::Reverse(volume.bytes));
        let mut others = std::mem::take(&mut self.others);
        all.iter().skip(rows).for_each(|(_, volume)| others.add(*volume));
        Ranking { title, rows: all.iter().take(rows).map(|(name, volume)| (show(name), *volume)).collect(), others }
    }
}

/// The things of most bytes.
pub(crate) struct Ranking {
    /// Their kind.
    pub(crate) title: &'static str,
    pub(crate) rows: Vec<(String, Volume)>,
    /// All that are in no row.
    pub(crate) others: Volume,
}

impl Ranking {
    /// All rows, with one for all others if there are any.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, Volume)> {
        let others = (self.others.packets > 0).then_some(("(others)", self.others));
        self.rows.iter().map(|(name, volume)| (&**name, *volume)).chain(others)
    }

    /// A table of volumes in this time.
    fn table(&self, time: Duration) -> String {
        let seconds = time.as_secs_f64().max(1e-3);
        let row = |(name, volume): (&str, Volume)| {
            let mbit = volume.bytes as f64 * 8.0 / seconds / 1e6;
            vec![name.into(), volume.packets.to_string(), volume.bytes.to_string(), format!("{mbit:.3}")]
        };
        let titles = [self.title, "packets", "bytes", "Mbit/s"].map(String::from).to_vec();
        align(&[titles].into_iter().chain(self.all().map(row)).collect::<Vec<_>>(), 1)
    }
}

/// The volumes of addresses, ports, protocols and flows.
pub(crate) struct Ranks {
    flows: Volumes<Key>,
    /// By family and address.
    addresses: Volumes<(u8, u128)>,
    /// By protocol and port.
    ports: Volumes<(u8, u16)>,
    /// By family, and protocol or EtherType.
    protocols: Volumes<(u8, u16)>,
    total: Volume,
    rows: usize,
}

impl Ranks {
    /// Of each kind so many are told apart in the end.
    pub(crate) fn new(rows: usize) -> Ranks {
        Ranks {
            flows: Volumes::new(),
            addresses: Volumes::new(),
            ports: Volumes::new(),
            protocols: Volumes::new(),
            total: Volume::default(),
            rows,
        }
    }

    /// Adds what is new of a flow.
    pub(crate) fn add(&mut self, key: Key, new: Volume) {
        self.total.add(new);
        self.flows.add(key, new);
        self.addresses.add((key.family, key.src), new);
        self.addresses.add((key.family, key.dst), new);
        // A service mostly has the lower port. ICMP has one.
        match key.transport_ports() {
            [0, 0] => {}
            [0, port] | [port, 0] => self.ports.add((key.proto, port), new),
            [source, target] => self.ports.add((key.proto, source.min(target)), new),
        }
        let protocol = if key.family == family::OTHER { key.ethertype() } else { key.proto.into() };
        self.protocols.add((key.family, protocol), new);
    }

    /// Returns the total, and the things of most bytes, since the last call.
    pub(crate) fn take(&mut self) -> (Volume, [Ranking; 4]) {
        let rows = self.rows;
        let of = |family: u8, bits: &u128| address(&Key { family, ..Key::default() }, *bits);
        let rankings = [
            self.addresses.take("address", rows, |(family, bits)| of(*family, bits)),
            self.ports.take("port", rows, |(proto, port)| format!("{}/{port}", protocol(*proto))),
            self.protocols.take("protocol", rows, |(family, number)| match *family {
                family::V4 => protocol(*number as u8),
                family::V6 => format!("{} over IPv6", protocol(*number as u8)),
                _ => format!("EtherType 0x{number:04x}"),
            }),
            self.flows.take("flow", rows, flow_name),
        ];
        (std::mem::take(&mut self.total), rankings)
    }
}

/// The tables.
pub(crate) struct Top {
    /// The volume of the flow at each place that is in the tables.
    seen: Vec<Volume>,
    ranks: Ranks,
}

impl Top {
    /// For a cache with so many places.
    pub(crate) fn new(places: usize, rows: usize) -> Top {
        Top { seen: vec![Volume::default(); places], ranks: Ranks::new(rows) }
    }

    /// Adds what is new of a flow; `has_ended`: the place is another flow's from now on.
    pub(crate) fn add(&mut self, place: usize, flow: &Flow, has_ended: bool) {
        let all = Volume::of(flow);
        let seen = std::mem::replace(&mut self.seen[place], if has_ended { Volume::default() } else { all });
        let new = all.since(seen);
        if new.packets > 0 {
            self.ranks.add(flow.directed(), new);
        }
    }

    /// The tables since the last call, which was `time` ago.
    pub(crate) fn tables(&mut self, flows: usize, time: Duration) -> String {
        let (Volume { packets, bytes }, rankings) = self.ranks.take();
        let mut text =
            format!("{packets} packets, {bytes} bytes in {:.1} s; {flows} flows now\n\n", time.as_secs_f64());
        for ranking in rankings {
            // Writes to a String cannot fail.
            let _ = writeln!(text, "{}", ranking.table(time));
        }
        text
    }
}

fn flow_name(key: &Key) -> String {
    let (src, dst) = (address(key, key.src), address(key, key.dst));
    match key.family {
        family::OTHER => format!("EtherType 0x{:04x} {src} > {dst}", key.ethertype()),
        _ if key.ports == [0; 2] => format!("{} {src} > {dst}", protocol(key.proto)),
        family::V6 => format!("{} [{src}]:{} > [{dst}]:{}", protocol(key.proto), key.ports[0], key.ports[1]),
        _ => format!("{} {src}:{} > {dst}:{}", protocol(key.proto), key.ports[0], key.ports[1]),
    }
}

/// The name of a protocol, or its number.
fn protocol(number: u8) -> String {
    let names = [
        (1, "icmp"),
        (2, "igmp"),
        (6, "tcp"),
        (17, "udp"),
        (47, "gre"),
        (50, "esp"),
        (58, "icmp6"),
        (89, "ospf"),
        (132, "sctp"),
    ];
    let known = names.iter().find(|(of, _)| *of == number);
    known.map_or_else(|| number.to_string(), |(_, name)| (*name).to_owned())
}

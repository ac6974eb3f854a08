// SPDX-License-Identifier: BSD-2-Clause
//! The addresses, ports, protocols and flows of most bytes since the last table.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::hash::Hash;
use std::time::Duration;

use tool_common::table::align;

use crate::cache::Flow;
use crate::packet::{Key, family};
use crate::report::address;

/// Things that are told apart between two tables; bytes of others are one row.
const MAX_NAMES: usize = 1 << 16;

/// Packets and bytes of frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Volume {
    packets: u64,
    bytes: u64,
}

impl Volume {
    fn add(&mut self, other: Volume) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }

    /// All of a flow.
    fn of(flow: &Flow) -> Volume {
        Volume { packets: flow.packets.iter().sum(), bytes: flow.frames.iter().sum() }
    }
}

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

    /// A table of the `rows` with most bytes, and empties the volumes.
    fn table(&mut self, title: &str, rows: usize, time: Duration, show: impl Fn(&K) -> String) -> String {
        let mut all: Vec<(K, Volume)> = self.known.drain().collect();
        all.sort_unstable_by_key(|(_, volume)| std::cmp::Reverse(volume.bytes));
        let others = std::mem::take(&mut self.others);
        let rest = all.iter().skip(rows).fold(others, |mut sum, (_, volume)| {
            sum.add(*volume);
            sum
        });
        let seconds = time.as_secs_f64().max(1e-3);
        let row = |name: String, volume: Volume| {
            let mbit = volume.bytes as f64 * 8.0 / seconds / 1e6;
            vec![name, volume.packets.to_string(), volume.bytes.to_string(), format!("{mbit:.3}")]
        };
        let titles = [title, "packets", "bytes", "Mbit/s"].map(String::from).to_vec();
        let shown = all.iter().take(rows).map(|(name, volume)| row(show(name), *volume));
        let rest = (rest.packets > 0).then(|| row("(others)".into(), rest));
        align(&[titles].into_iter().chain(shown).chain(rest).collect::<Vec<_>>(), 1)
    }
}

/// The tables.
pub(crate) struct Top {
    /// The volume of the flow at each place that is in the tables.
    seen: Vec<Volume>,
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

impl Top {
    /// For a cache with so many places.
    pub(crate) fn new(places: usize, rows: usize) -> Top {
        Top {
            seen: vec![Volume::default(); places],
            flows: Volumes::new(),
            addresses: Volumes::new(),
            ports: Volumes::new(),
            protocols: Volumes::new(),
            total: Volume::default(),
            rows,
        }
    }

    /// Adds what is new of a flow; `has_ended`: the place is another flow's from now on.
    pub(crate) fn add(&mut self, place: usize, flow: &Flow, has_ended: bool) {
        let all = Volume::of(flow);
        let seen = std::mem::replace(&mut self.seen[place], if has_ended { Volume::default() } else { all });
        let new = Volume { packets: all.packets - seen.packets, bytes: all.bytes - seen.bytes };
        if new.packets == 0 {
            return;
        }
        let key = flow.directed();
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

    /// The tables since the last call, which was `time` ago.
    pub(crate) fn tables(&mut self, flows: usize, time: Duration) -> String {
        let rows = self.rows;
        let Volume { packets, bytes } = std::mem::take(&mut self.total);
        let mut text =
            format!("{packets} packets, {bytes} bytes in {:.1} s; {flows} flows now\n\n", time.as_secs_f64());
        let of = |family: u8, bits: &u128| address(&Key { family, ..Key::default() }, *bits);
        let tables = [
            self.addresses.table("address", rows, time, |(family, bits)| of(*family, bits)),
            self.ports.table("port", rows, time, |(proto, port)| format!("{}/{port}", protocol(*proto))),
            self.protocols.table("protocol", rows, time, |(family, number)| match *family {
                family::V4 => protocol(*number as u8),
                family::V6 => format!("{} over IPv6", protocol(*number as u8)),
                _ => format!("EtherType 0x{number:04x}"),
            }),
            self.flows.table("flow", rows, time, flow_name),
        ];
        for table in tables {
            // Writes to a String cannot fail.
            let _ = writeln!(text, "{table}");
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

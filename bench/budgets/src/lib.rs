// SPDX-License-Identifier: BSD-2-Clause
//! The hot loops whose instructions per packet have a budget: of the core and of the programs in `apps`.
#![forbid(unsafe_code)]

use std::hint::black_box;

use unetmap_filter::{Config, Direction, Engine, Headers, Now, Ruleset, Verdict};
use unetmap_streams::{Receiver, Sender, parse_spec, signature};
use unetmap_switch::fdb::{Mac, MacTable};

/// A loop: the number that grows in it, and the packets.
pub type Loop = fn(u64, u64);
/// The loops, their numbers, and the factor within which the costs must stay where they may not grow.
pub const LOOPS: [(&str, &[u64], Option<f64>, Loop); 5] = [
    // Lookups in a switch's table of n addresses: a fuller bucket has more entries to compare, eight at most.
    ("switch-lookup", &[10, 1000, 4000], Some(4.0), lookup),
    // Packets that the last of n rules accepts, each of another flow.
    ("filter-rules", &[10, 100, 1000], None, |rules, packets| filter(rules, packets, 1 << 20)),
    // The same of few flows: their verdicts are remembered, and the rules cost nothing.
    ("filter-flows", &[10, 1000], Some(1.05), |rules, packets| filter(rules, packets, 16)),
    ("filter-recalled", &[10, 1000], Some(1.05), recalled),
    // A packet of a stream is made, found by its signature, and measured; of n streams.
    ("stream-packet", &[1, 64], None, stream),
];

fn mac(n: u64) -> Mac {
    let [.., a, b, c, d] = n.to_be_bytes();
    Mac::new([2, 0, a, b, c, d])
}

fn lookup(addresses: u64, packets: u64) {
    let table = MacTable::new();
    (0..addresses).for_each(|n| table.learn(mac(n), (n % 200) as u8));
    for i in 0..packets {
        black_box(table.port_of(mac(i * 7 % addresses)));
    }
}

/// A UDP packet.
fn packet() -> Vec<u8> {
    let stream = parse_spec("rate=1kpps,dst=10.1.0.1,dport=53", 1, unetmap_streams::DEFAULT_LINK).expect("a stream");
    Sender::new(vec![stream]).take(0).expect("a packet").to_vec()
}

fn rules(n: u64) -> Ruleset {
    let script: String =
        (1..n).map(|n| format!("add {n} deny udp from 10.9.{}.{} to any\n", n / 250, n % 250)).collect();
    let (config, _) = Config::new(["a", "b"], 1, false)
        .apply(&format!("{script}add 60000 allow udp from any to any dst-port 53"))
        .expect("rules");
    config.compile()
}

fn filter(n: u64, packets: u64, flows: u64) {
    let set = rules(n);
    let mut engine = Engine::new(0, 16, 1);
    let (mut packet, mut headers) = (packet(), Headers::default());
    for flow in (0..flows as u32).cycle().take(packets as usize) {
        packet[26..30].copy_from_slice(&flow.to_be_bytes());
        headers.set(black_box(&packet), packet.len()).expect("a packet");
        black_box(engine.evaluate(&set, &headers, Direction::Out, packet.len() as u64, Now::default(), |_| {}));
    }
}

/// Packets of a flow whose verdict is remembered: they are not parsed.
fn recalled(n: u64, packets: u64) {
    let set = rules(n);
    let (mut engine, packet, now) = (Engine::new(0, 16, 1), packet(), Now::default());
    let headers = Headers::parse(&packet, packet.len()).expect("a packet");
    engine.evaluate(&set, &headers, Direction::Out, packet.len() as u64, now, |_| {});
    for _ in 0..packets {
        let verdict = engine.recall(&set, black_box(&packet), packet.len(), Direction::Out, now);
        assert_eq!(verdict, Some(Verdict::Accept));
    }
}

fn stream(streams: u64, packets: u64) {
    let spec = "rate=1Mpps,size=60-1514,dst=10.1.0.1";
    let one = |id| parse_spec(spec, id, unetmap_streams::DEFAULT_LINK).expect("a stream");
    let mut sender = Sender::new((1..=streams as u16).map(one).collect());
    let mut receiver = Receiver::default();
    for i in 0..packets {
        let packet = sender.take(i * 1000).expect("a packet");
        let tail = &packet[packet.len().saturating_sub(signature::TAIL)..];
        receiver.packet(signature::find(tail), packet.len(), i * 1000 + 500);
    }
    assert_eq!(receiver.packets(), packets);
}

// SPDX-License-Identifier: BSD-2-Clause
//! Shares of bandwidth against their theory, on a virtual clock. `--nocapture` prints them as a table.

use unetmap_shape::aqm::{Aqm, Codel, Pie};
use unetmap_shape::{
    Class, FlowKey, Fq, Kind, Limit, MILLISECOND, Mask, Nanos, Pipe, PipeConfig, Pool, Random, Rate, SECOND,
};

const BANDWIDTH: u64 = 100_000_000;
const TIME: Nanos = 6 * SECOND;

/// A source: bits per second, bytes of its packets, its class.
#[derive(Clone, Copy)]
struct Source {
    rate: f64,
    len: usize,
    class: u16,
}

/// Runs sources for [`TIME`]; returns the bits per second that each got in its second half, and the mean delay of its
/// packets there.
fn run(kind: Kind, classes: Vec<Class>, sources: &[Source]) -> Vec<(f64, Nanos)> {
    let config = PipeConfig { rate: Rate::Bits(BANDWIDTH), kind, classes, ..PipeConfig::default() };
    let mut pool = Pool::new(256 << 20);
    let mut pipe = Pipe::new(config, pool.capacity());
    let mut random = Random::new(2);
    let mut next: Vec<f64> = sources.iter().map(|_| random.unit() * 1e5).collect();
    let mut got = vec![(0u64, 0u64, 0u64); sources.len()];
    loop {
        let earliest = (0..sources.len()).min_by(|&a, &b| next[a].total_cmp(&next[b])).expect("a source");
        let now = next[earliest] as Nanos;
        if now > TIME {
            break;
        }
        let source = sources[earliest];
        next[earliest] += source.len as f64 * 8e9 / source.rate;
        while let Some(packet) = pipe.take_due(&mut pool, now) {
            if pool.due(packet) > TIME / 2 {
                let (bytes, packets, delay) = &mut got[pool.tag(packet) as usize];
                *bytes += u64::from(pool.len(packet));
                *packets += 1;
                *delay += pool.due(packet) - pool.arrived(packet);
            }
            pool.free(packet);
        }
        let packet = pool.allocate(source.len, 0, earliest as u32, now).expect("room");
        let key = FlowKey { src: earliest as u128, dst_port: 80, proto: 17, ..FlowKey::default() };
        let _ = pipe.enqueue(&mut pool, packet, source.class, &key, now);
    }
    let seconds = (TIME / 2) as f64 / 1e9;
    got.iter().map(|(bytes, packets, delay)| (*bytes as f64 * 8.0 / seconds, delay / packets.max(&1))).collect()
}

/// Max-min fairness: each source gets its rate, or its share by weight of what the others leave.
fn fair(sources: &[(f64, f64)]) -> Vec<f64> {
    let (mut left, mut open): (f64, Vec<usize>) = (BANDWIDTH as f64, (0..sources.len()).collect());
    let mut shares = vec![0.0; sources.len()];
    loop {
        let weights: f64 = open.iter().map(|&i| sources[i].1).sum();
        let share = |i: usize| left * sources[i].1 / weights;
        let (content, rest): (Vec<_>, Vec<_>) = open.iter().partition(|&&i| sources[i].0 <= share(i));
        if content.is_empty() {
            rest.iter().for_each(|&i| shares[i] = share(i));
            return shares;
        }
        for &i in &content {
            shares[i] = sources[i].0;
        }
        left -= content.iter().map(|&i| sources[i].0).sum::<f64>();
        open = rest;
        if open.is_empty() {
            return shares;
        }
    }
}

fn row(name: &str, source: &Source, weight: u32, got: (f64, Nanos), theory: f64) {
    println!(
        "{name:9} {:>5} B {:>8.2} {weight:>7} {:>9.3} {theory:>9.3} {:>8.4} {:>8.2}",
        source.len,
        source.rate / 1e6,
        got.0 / 1e6,
        got.0 / 1e6 / theory,
        got.1 as f64 / MILLISECOND as f64
    );
}

/// Compares all sources with their fair shares. `tolerance` is a part of the share; two packets per second are
/// rounding.
fn check(name: &str, kind: Kind, classes: &[Class], sources: &[Source], tolerance: f64) {
    let weight = |source: &Source| classes.get(usize::from(source.class)).map_or(1, |class| class.weight);
    assert!(sources.iter().map(|source| source.rate).sum::<f64>() > 1.2 * BANDWIDTH as f64, "the link is too fast");
    let theory = fair(&sources.iter().map(|source| (source.rate, f64::from(weight(source)))).collect::<Vec<_>>());
    let got = run(kind, classes.to_vec(), sources);
    for ((source, got), theory) in sources.iter().zip(&got).zip(&theory) {
        row(name, source, weight(source), *got, theory / 1e6);
    }
    for ((source, got), theory) in sources.iter().zip(&got).zip(&theory) {
        let error = (got.0 - theory).abs();
        assert!(error <= tolerance * theory + 16.0 * source.len as f64, "{name}: {} of {theory} bit/s", got.0);
    }
}

fn class(weight: u32) -> Class {
    Class { weight, limit: Limit::Packets(100), aqm: Aqm::None, mask: Mask::default() }
}

#[test]
fn shares_are_those_of_theory() {
    println!("scheduler   size   offered  weight       got    theory    ratio delay/ms   (Mbit/s of 100)");
    let weights = [1, 2, 3, 10, 50];
    let classes: Vec<_> = weights.iter().map(|&weight| class(weight)).collect();
    let sizes = [1500, 64, 700, 1500, 300];
    let sources = |rates: [f64; 5]| -> Vec<_> {
        (0..5).map(|i| Source { rate: rates[i] * 1e6, len: sizes[i], class: i as u16 }).collect()
    };
    // Each wants more than its share: 1.5, 3, 4.5, 15 and 76 Mbit/s.
    let greedy = sources([4.0, 6.0, 9.0, 30.0, 90.0]);
    check("WF2Q+", Kind::Wf2q, &classes, &greedy, 0.0005);
    check("DRR", Kind::Drr, &classes, &greedy, 0.005);
    check("QFQ", Kind::Qfq, &classes, &greedy, 0.005);
    // Sources that want less than their share leave it to the others.
    let modest = sources([9.0, 18.0, 27.0, 90.0, 4.0]);
    check("WF2Q+", Kind::Wf2q, &classes, &modest, 0.0005);
    check("DRR", Kind::Drr, &classes, &modest, 0.005);
    check("QFQ", Kind::Qfq, &classes, &modest, 0.005);
    // One class, a flow for each source.
    let masked = [Class { mask: Mask::ALL, ..class(1) }];
    let mixed: Vec<_> = [(2e6, 200), (40e6, 1500), (60e6, 300), (80e6, 1500), (30e6, 64)]
        .map(|(rate, len)| Source { rate, len, class: 0 })
        .to_vec();
    check("WF2Q+", Kind::Wf2q, &masked, &mixed, 0.0005);
    check("QFQ", Kind::Qfq, &masked, &mixed, 0.005);
    check("FQ-CoDel", Kind::FqCodel(Fq::default(), Codel::default()), &masked, &mixed, 0.01);
    check("FQ-PIE", Kind::FqPie(Fq::default(), Pie::default()), &masked, &mixed, 0.01);
}

#[test]
fn strict_priority_leaves_the_rest_to_the_next_class() {
    let source = |rate: f64, len, class| Source { rate: rate * 1e6, len, class };
    let classes = [7, 1, 3, 3].map(class);
    let got =
        |sources: &[Source]| run(Kind::Priority, classes.to_vec(), sources).into_iter().map(|(rate, _)| rate / 1e6);
    let near = |got: f64, wanted: f64| (got - wanted).abs() <= 0.005 * wanted.max(10.0);
    // The class of weight 1 gets all that it wants; those of weight 3 share what is left, packet by packet; weight 7
    // gets nothing.
    let shares: Vec<f64> =
        got(&[source(50.0, 1500, 0), source(40.0, 300, 1), source(80.0, 500, 2), source(80.0, 1000, 3)]).collect();
    assert!(near(shares[1], 40.0) && near(shares[2], 20.0) && near(shares[3], 40.0), "{shares:?}");
    assert!(shares[0] == 0.0, "{shares:?}");
    // Nobody leaves a link idle that another can use.
    let shares: Vec<f64> = got(&[source(90.0, 1500, 0), source(30.0, 64, 1), source(20.0, 64, 2)]).collect();
    assert!(near(shares[0], 50.0) && near(shares[1], 30.0) && near(shares[2], 20.0), "{shares:?}");
}

/// The most bytes that a flow was ahead of its share or behind it, while all of four were backlogged.
fn farthest_from_share(kind: Kind) -> f64 {
    let weights = [1u32, 3, 7, 21];
    let classes: Vec<_> =
        weights.iter().map(|&weight| Class { limit: Limit::Packets(5000), ..class(weight) }).collect();
    let config = PipeConfig { rate: Rate::Bits(BANDWIDTH), kind, classes, ..PipeConfig::default() };
    let mut pool = Pool::new(256 << 20);
    let mut pipe = Pipe::new(config, pool.capacity());
    let mut random = Random::new(8);
    for _ in 0..4000 {
        for class in 0..4 {
            let packet = pool.allocate(64 + random.below(1437) as usize, 0, class, 0).expect("room");
            pipe.enqueue(&mut pool, packet, class as u16, &FlowKey::default(), 0).expect("room");
        }
    }
    let (mut sent, mut all, mut worst) = ([0f64; 4], 0f64, 0f64);
    for _ in 0..5000 {
        let packet = pipe.take_due(&mut pool, 1000 * SECOND).expect("a packet");
        sent[pool.tag(packet) as usize] += f64::from(pool.len(packet));
        all += f64::from(pool.len(packet));
        for (class, weight) in weights.iter().enumerate() {
            worst = worst.max((sent[class] - all * f64::from(*weight) / 32.0).abs());
        }
        pool.free(packet);
    }
    println!("{kind:?}: no flow was more than {worst:.0} bytes from its share");
    worst
}

/// Each flow gets its share in every interval, not only in the long run.
#[test]
fn no_flow_is_far_from_its_share() {
    // Of WF2Q+: a packet of its own and one of the others.
    let worst = farthest_from_share(Kind::Wf2q);
    assert!(worst <= 2.0 * 1500.0, "{worst} bytes");
    // Of QFQ: three slots of its group, each of less than two packets of 2048 bytes, and a packet of the others.
    let worst = farthest_from_share(Kind::Qfq);
    assert!(worst <= 3.0 * 2.0 * 2048.0 + 1500.0, "{worst} bytes");
}

/// Packets of 64 KiB, which take 32 slots, beside short ones, flows that come and go, and weights from end to end.
#[test]
fn qfq_sends_all_whatever_the_sizes_and_weights() {
    let weights = [1, 5, 700, 65_536];
    let classes: Vec<_> = weights.iter().map(|&weight| class(weight)).collect();
    let config = PipeConfig { rate: Rate::Bits(BANDWIDTH), kind: Kind::Qfq, classes, ..PipeConfig::default() };
    let mut pool = Pool::new(256 << 20);
    let mut pipe = Pipe::new(config, pool.capacity());
    let (mut random, mut now) = (Random::new(5), 0);
    for _ in 0..20_000 {
        let len = if random.chance(0.2) { 65_535 } else { 1 + random.below(1500) as usize };
        let packet = pool.allocate(len, 0, 0, now).expect("room");
        let _ = pipe.enqueue(&mut pool, packet, random.below(4) as u16, &FlowKey::default(), now);
        now += random.below(3) * MILLISECOND;
        while let Some(packet) = pipe.take_due(&mut pool, now) {
            pool.free(packet);
        }
    }
    while let Some(packet) = pipe.take_due(&mut pool, now + 1000 * SECOND) {
        pool.free(packet);
    }
    assert_eq!((pipe.packets(), pool.packets()), (0, 0));
    assert_eq!(pipe.counts.sent + pipe.counts.dropped(), pipe.counts.packets);
}

// SPDX-License-Identifier: BSD-2-Clause
//! Links on a virtual clock: every packet's time is known exactly.

use unetmap_shape::aqm::{Codel, Pie};
use unetmap_shape::{
    Class, Counts, Delay, FlowKey, Fq, Kind, Limit, Loss, MILLISECOND, Mask, Nanos, Packet, Pipe, PipeConfig, Pool,
    Random, Rate, SECOND, Trace,
};

/// A link, its packets, and a clock.
struct Bed {
    pool: Pool,
    pipe: Pipe,
    now: Nanos,
}

impl Bed {
    fn new(config: PipeConfig) -> Bed {
        let pool = Pool::new(64 << 20);
        let pipe = Pipe::new(config, pool.capacity());
        Bed { pool, pipe, now: 0 }
    }

    /// Sends a packet of `len` bytes with a number.
    fn send(&mut self, len: usize, number: u32) {
        let packet = self.pool.allocate(len, 0, number, self.now).expect("room");
        let _ = self.pipe.enqueue(&mut self.pool, packet, 0, &FlowKey::default(), self.now);
    }

    /// Takes what arrives until `until`: times and numbers.
    fn receive(&mut self, until: Nanos) -> Vec<(Nanos, u32)> {
        let mut all = Vec::new();
        while let Some(packet) = self.pipe.take_due(&mut self.pool, until) {
            all.push((self.pool.due(packet), self.pool.tag(packet)));
            self.pool.free(packet);
        }
        self.now = until;
        all
    }
}

fn plain() -> PipeConfig {
    PipeConfig { classes: vec![Class { limit: Limit::Packets(10_000), ..Class::default() }], ..PipeConfig::default() }
}

#[test]
fn packets_arrive_when_bandwidth_and_delay_say() {
    // 80 Mbit/s and 20 ms: 1000 bytes take 100 us.
    let config = PipeConfig { rate: Rate::Bits(80_000_000), delay: Delay::Constant(20 * MILLISECOND), ..plain() };
    let mut bed = Bed::new(config);
    bed.now = SECOND;
    (0..5).for_each(|i| bed.send(1000, i));
    assert_eq!(bed.pipe.next_due(&bed.pool), Some(SECOND + 100_000), "the link can begin with the second packet");
    assert_eq!(bed.receive(SECOND + 20 * MILLISECOND), []);
    let times: Vec<_> = (0..5).map(|i| (SECOND + 20_100_000 + i * 100_000, i as u32)).collect();
    assert_eq!(bed.receive(2 * SECOND), times);
    assert_eq!((bed.pipe.next_due(&bed.pool), bed.pool.packets()), (None, 0));
}

#[test]
fn times_do_not_depend_on_how_often_the_caller_asks() {
    let arrivals = |poll: Nanos| {
        let mut bed = Bed::new(PipeConfig {
            rate: Rate::Bits(10_000_000),
            burst: 3000,
            delay: Delay::Uniform(MILLISECOND, 30 * MILLISECOND),
            loss: Loss::Random(0.05),
            reorder: 0.1,
            kind: Kind::FqCodel(Fq::default(), Codel::default()),
            ..plain()
        });
        let (mut random, mut all, mut next_poll) = (Random::new(4), Vec::new(), 0);
        for i in 0..5000 {
            let at = bed.now + random.below(1_600_000);
            while next_poll < at {
                all.extend(bed.receive(next_poll));
                next_poll += poll;
            }
            bed.now = at;
            bed.send(100 + random.below(1400) as usize, i);
        }
        all.extend(bed.receive(100 * SECOND));
        (all, bed.pipe.counts)
    };
    let (fine, counts) = arrivals(10_000);
    assert!(fine.len() > 4000 && counts.lost > 150 && counts.reordered > 300, "{counts:?}");
    let (coarse, same) = arrivals(7_000_000);
    assert!(coarse == fine, "packets arrive at other times");
    assert_eq!(same, counts);
}

#[test]
fn delays_overtake_only_if_asked() {
    let run = |overtake, reorder| {
        let delay = Delay::Uniform(MILLISECOND, 10 * MILLISECOND);
        let mut bed = Bed::new(PipeConfig { delay, overtake, reorder, ..plain() });
        for i in 0..2000 {
            bed.now = u64::from(i) * 100_000;
            bed.send(100, i);
        }
        let got = bed.receive(100 * SECOND);
        assert!(got.is_sorted_by_key(|(time, _)| *time) && got.len() == 2000);
        let late = got.windows(2).filter(|pair| pair[1].1 < pair[0].1).count();
        (late, bed.pipe.counts.reordered)
    };
    assert_eq!(run(false, 0.0), (0, 0));
    assert!(run(true, 0.0).0 > 500);
    let (late, reordered) = run(false, 0.1);
    assert!(late > 50 && (150..250).contains(&reordered), "{late} {reordered}");
}

#[test]
fn sparse_packets_have_exactly_the_drawn_delays() {
    let delay = Delay::Normal(20 * MILLISECOND, 2 * MILLISECOND);
    let mut bed = Bed::new(PipeConfig { delay: delay.clone(), ..plain() });
    let mut random = Random::new(PipeConfig::default().seed);
    for i in 0..1000 {
        bed.send(60, i);
        let begin = bed.now;
        assert_eq!(bed.receive(begin + SECOND), [(begin + delay.sample(&mut random), i)]);
    }
}

#[test]
fn queues_are_limited_in_packets_or_bytes() {
    let slow = |limit| {
        let classes = vec![Class { limit, ..Class::default() }];
        let mut bed = Bed::new(PipeConfig { rate: Rate::Bits(8000), classes, ..PipeConfig::default() });
        (0..100).for_each(|i| bed.send(1000, i));
        (bed.receive(1000 * SECOND).len(), bed.pipe.counts.full)
    };
    // One more is on the link.
    assert_eq!(slow(Limit::Packets(20)), (21, 79));
    assert_eq!(slow(Limit::Bytes(20_500)), (21, 79));
}

#[test]
fn packets_are_lost_doubled_and_corrupted_as_often_as_asked() {
    let config = PipeConfig { loss: Loss::Random(0.1), duplicate: 0.05, corrupt: 0.02, ..plain() };
    let mut bed = Bed::new(config);
    const PACKETS: u32 = 50_000;
    let mut arrived = 0;
    for i in 0..PACKETS {
        bed.send(64, i);
        arrived += bed.receive(u64::from(i) * 1000).len() as u64;
    }
    let Counts { lost, duplicated, corrupted, sent, .. } = bed.pipe.counts;
    let near = |count: u64, share: f64| (count as f64 / f64::from(PACKETS) - share).abs() < 0.006;
    assert!(near(lost, 0.1) && near(duplicated, 0.9 * 0.05) && near(corrupted, 0.9 * 0.02), "{:?}", bed.pipe.counts);
    assert_eq!((sent, arrived), (u64::from(PACKETS) - lost + duplicated, sent));
}

#[test]
fn a_trace_sets_the_pace() {
    let trace = Trace::parse("1\n2\n2\n10").expect("a trace");
    let mut bed = Bed::new(PipeConfig { rate: Rate::Trace(trace.into()), ..plain() });
    (0..6).for_each(|i| bed.send(1504, i));
    let times: Vec<_> = bed.receive(SECOND).iter().map(|(time, _)| time / MILLISECOND).collect();
    assert_eq!(times, [1, 2, 2, 10, 11, 12]);
}

#[test]
fn a_link_that_ends_gives_back_all_packets() {
    for kind in [
        Kind::Fifo,
        Kind::Drr,
        Kind::Wf2q,
        Kind::Qfq,
        Kind::Priority,
        Kind::FqCodel(Fq::default(), Codel::default()),
        Kind::FqPie(Fq::default(), Pie::default()),
    ] {
        let delay = Delay::Constant(50 * MILLISECOND);
        let classes = vec![Class { limit: Limit::Packets(1000), mask: Mask::ALL, ..Class::default() }];
        let mut bed =
            Bed::new(PipeConfig { rate: Rate::Bits(1_000_000), delay, kind, classes, reorder: 0.1, ..plain() });
        for i in 0..300u32 {
            bed.now += 100_000;
            let packet = bed.pool.allocate(1000, 0, i, bed.now).expect("room");
            let key = FlowKey { src: u128::from(i % 7), ..FlowKey::default() };
            bed.pipe.enqueue(&mut bed.pool, packet, 0, &key, bed.now).expect("room");
        }
        assert_eq!(bed.pipe.packets(), 300);
        let all: Vec<Packet> = std::iter::from_fn(|| bed.pipe.take_any(&mut bed.pool)).collect();
        let mut tags: Vec<_> = all.iter().map(|packet| bed.pool.tag(*packet)).collect();
        tags.sort_unstable();
        assert_eq!(tags, (0..300).collect::<Vec<_>>(), "{kind:?}");
        all.into_iter().for_each(|packet| bed.pool.free(packet));
        assert_eq!((bed.pool.packets(), bed.pipe.packets()), (0, 0));
    }
}

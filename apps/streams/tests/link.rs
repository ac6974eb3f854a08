// SPDX-License-Identifier: BSD-2-Clause
//! Five streams through emulated links on a virtual clock: what is reported is what the links did.

use std::collections::BTreeSet;

use unetmap_shape::{Delay, FlowKey, Loss, MILLISECOND, Pipe, PipeConfig, Pool};
use unetmap_streams::signature::{self, Signature};
use unetmap_streams::{DEFAULT_LINK, Receiver, Sender, StreamReport, parse_spec};

/// Packets of a stream.
const PACKETS: u64 = 20_000;
/// Nanoseconds by which a reported delay may be wrong.
const TOLERANCE: u64 = 5_000;

/// An arrival: when, and the packet's signature.
type Arrival = (u64, Signature);

fn links() -> [PipeConfig; 5] {
    let delayed = |delay| PipeConfig { delay, ..PipeConfig::default() };
    let fixed = || delayed(Delay::Constant(2 * MILLISECOND));
    let varying = || delayed(Delay::Uniform(MILLISECOND, 3 * MILLISECOND));
    [
        fixed(),
        PipeConfig { loss: Loss::Random(0.1), ..fixed() },
        PipeConfig { reorder: 0.01, ..fixed() },
        PipeConfig { duplicate: 0.05, ..delayed(Delay::Constant(970 * MILLISECOND + 123_456)) },
        PipeConfig { loss: Loss::Random(0.05), duplicate: 0.02, overtake: true, ..varying() },
    ]
}

/// Sends all streams, each through its link. Returns what the receiver measured, and the arrivals by stream.
fn run(pipes: &mut [Pipe], pool: &mut Pool) -> (Receiver, Vec<Vec<Arrival>>) {
    let shapes = ["size=60", "size=60-1514,burst=8", "vlan=3", "dst=fd00::2", "size=imix"];
    let specs = shapes.iter().map(|more| format!("rate=20kpps,count={PACKETS},{more}"));
    let streams = specs.zip(1..).map(|(spec, id)| parse_spec(&spec, id, DEFAULT_LINK).expect("a stream"));
    let mut sender = Sender::new(streams.collect());
    let (mut receiver, mut arrivals) = (Receiver::default(), vec![Vec::new(); pipes.len()]);
    // The bytes of packets stay here: a packet of the links has its index.
    let mut frames: Vec<Vec<u8>> = Vec::new();
    loop {
        let arrives = pipes.iter().zip(0..).filter_map(|(pipe, i)| Some((pipe.next_due(pool)?, i))).min();
        match (sender.due(), arrives) {
            (Some(now), first) if first.is_none_or(|(at, _)| now < at) => {
                let frame = sender.take(now).expect("a packet is due").to_vec();
                let of = signature::find(&frame).expect("it is signed").stream;
                let packet = pool.allocate(frame.len(), 0, frames.len() as u32, now).expect("room");
                frames.push(frame);
                // A packet that is dropped is counted by the link.
                let _ = pipes[usize::from(of) - 1].enqueue(pool, packet, 0, &FlowKey::default(), now);
            }
            (_, Some((now, i))) => {
                while let Some(packet) = pipes[i].take_due(pool, now) {
                    let frame = &frames[pool.tag(packet) as usize];
                    let found = signature::find(&frame[frame.len().saturating_sub(signature::TAIL)..]);
                    receiver.packet(found, frame.len(), now);
                    arrivals[i].push((now, found.expect("it is signed")));
                    pool.free(packet);
                }
            }
            _ => return (receiver, arrivals),
        }
    }
}

/// Compares a report with the arrivals that it is of, counted in the simplest way.
fn check(report: &StreamReport, arrivals: &[Arrival]) {
    let (mut seen, mut duplicates, mut reordered) = (BTreeSet::new(), 0, 0);
    for (_, signature) in arrivals {
        let late = seen.last().is_some_and(|last| signature.number < *last);
        match seen.insert(signature.number) {
            true => reordered += u64::from(late),
            false => duplicates += 1,
        }
    }
    let lost = PACKETS - seen.len() as u64;
    let found = (report.lost(Some(PACKETS)), report.duplicates, report.reordered);
    assert_eq!(found, (lost, duplicates, reordered), "stream {}", report.id);

    let mut delays: Vec<u64> = arrivals.iter().map(|(at, signature)| at - signature.time).collect();
    delays.sort_unstable();
    let mean = delays.iter().sum::<u64>() as f64 / delays.len() as f64;
    let latency = report.latency.summary();
    assert!((latency.mean - mean).abs() <= 1.0, "stream {}: {} {mean}", report.id, latency.mean);
    assert_eq!((latency.min, latency.max), (delays[0], delays[delays.len() - 1]), "stream {}", report.id);
    for (percent, value) in [50.0, 90.0, 99.0, 99.9].into_iter().zip(latency.percentiles) {
        let rank = (percent / 100.0 * delays.len() as f64).ceil() as usize;
        let delay = delays[rank.max(1) - 1];
        assert!(value.abs_diff(delay) <= TOLERANCE, "stream {}, {percent} %: {value} {delay}", report.id);
    }
}

#[test]
fn five_streams_are_reported_as_their_links_treated_them() {
    let mut pool = Pool::new(64 << 20);
    let mut pipes = links().map(|config| Pipe::new(config, pool.capacity()));
    let (receiver, arrivals) = run(&mut pipes, &mut pool);
    for ((id, pipe), arrivals) in (1..).zip(&pipes).zip(&arrivals) {
        let report = receiver.stream(id).expect("packets arrived");
        check(report, arrivals);
        assert_eq!((report.lost(Some(PACKETS)), report.duplicates), (pipe.counts.lost, pipe.counts.duplicated));
    }
    let of = |id| receiver.stream(id).expect("packets arrived");
    assert!(of(2).lost(Some(PACKETS)) > 0 && of(3).reordered > 0 && of(4).duplicates > 0 && of(5).reordered > 0);
}

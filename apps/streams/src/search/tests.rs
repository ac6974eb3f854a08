// SPDX-License-Identifier: BSD-2-Clause
//! Searches on a device of known rate and buffer.

use super::*;
use crate::{DEFAULT_LINK, Latencies};

/// A device that forwards `pps`, keeps `buffer` packets, and delays each by `delay`; its tester sends at most `sends`.
struct Device {
    pps: f64,
    buffer: u64,
    delay: u64,
    sends: f64,
    /// Each trial but every n-th is disturbed by a bunch of so many packets.
    bunch: u64,
    every: usize,
    trials: Vec<(Test, Offer)>,
}

const DEVICE: Device =
    Device { pps: 1.234e6, buffer: 100, delay: 5_000, sends: 1e9, bunch: 64, every: 1, trials: Vec::new() };

impl Tester for Device {
    fn trial(&mut self, test: Test, offer: Offer) -> Result<Trial, String> {
        self.trials.push((test, offer));
        let sent_pps = offer.pps.min(self.sends);
        let excess = (1.0 - self.pps / sent_pps).max(0.0) * offer.packets as f64;
        let lost = (excess as u64).saturating_sub(self.buffer);
        let mut latency = Latencies::default();
        (0..999).for_each(|_| latency.record(self.delay));
        latency.record(3 * self.delay);
        Ok(Trial {
            offer,
            sent: offer.packets,
            sent_pps,
            received: offer.packets - lost,
            duplicates: 0,
            reordered: 0,
            jitter: 7.0,
            latency: Some(latency.summary()),
            pace: Some(Pace {
                pps: sent_pps * 1.0002,
                burst: if self.trials.len().is_multiple_of(self.every) { 64 } else { self.bunch },
                in_step: 1.0,
            }),
        })
    }
}

fn plan(text: &str) -> Plan {
    Plan::parse(Rfc::Rfc2544, text, DEFAULT_LINK).unwrap_or_else(|e| panic!("{text}: {e}"))
}

#[test]
fn the_rate_of_a_device_is_found_within_the_resolution() {
    for (resolution, within) in [("0.01%", 2e-4), ("1%", 2e-2)] {
        let plan = plan(&format!("tests=throughput,resolution={resolution}"));
        let mut device = Device { ..DEVICE };
        let found = run(&plan, 60, &mut device).unwrap().throughput.unwrap();
        // Its buffer holds a little more than its rate.
        assert!((found.pps / DEVICE.pps - 1.0).abs() < within, "{found:?}");
        assert_eq!(found.limit, Limit::Loss);
        assert!(device.trials.len() < 25, "{}", device.trials.len());
        assert_eq!(device.trials[0].1.pps.round(), 14_880_952.0, "the first trial is at the link's rate");
        assert_eq!(device.trials[0].1.packets, 60 * 14_880_952 + 23);
    }
}

#[test]
fn a_trial_that_a_bunch_disturbed_is_made_again() {
    let of = |bunch, every, text: &str| {
        let mut device = Device { bunch, every, ..DEVICE };
        let report = run(&plan(&format!("tests=throughput,resolution=1%{text}")), 60, &mut device).unwrap();
        (report.repeated, report.disturbed, device.trials.len() as u32, report.throughput.unwrap())
    };
    let (repeated, disturbed, quiet, found) = of(64, 1, "");
    assert_eq!((repeated, disturbed), (0, 0), "a batch is no bunch");
    assert!((found.deviation().unwrap() / 2e-4 - 1.0).abs() < 0.01, "{found:?}");
    assert_eq!(of(65, 3, "").0, 2 * quiet, "two of three are made again");
    assert_eq!((of(65, 3, "").1, of(65, 3, "").2), (0, 3 * quiet));
    let (repeated, disturbed, all, same) = of(65, usize::MAX, ",attempts=4");
    assert_eq!((repeated, disturbed, all), (3 * quiet, quiet, 4 * quiet), "the last attempt counts");
    assert_eq!(same.pps, found.pps);
    assert_eq!(of(65, usize::MAX, ",attempts=1").0, 0);
}

#[test]
fn what_bounds_a_rate_is_told() {
    let plan = plan("tests=throughput");
    let fast = run(&plan, 1514, &mut Device { pps: 1e9, ..DEVICE }).unwrap().throughput.unwrap();
    assert_eq!((fast.limit, fast.pps.round()), (Limit::Link, 812_744.0));
    let sender = run(&plan, 60, &mut Device { sends: 5e5, ..DEVICE }).unwrap().throughput.unwrap();
    assert!(sender.limit == Limit::Sender && (sender.pps / 5e5 - 1.0).abs() < 2e-3, "{sender:?}");
    let none = run(&plan, 60, &mut Device { pps: 0.0, buffer: 0, ..DEVICE }).unwrap().throughput.unwrap();
    assert_eq!((none.limit, none.pps), (Limit::Loss, 0.0));
}

#[test]
fn a_tolerated_loss_gives_a_higher_rate() {
    let of = |text: &str| {
        let found = run(&plan(text), 60, &mut Device { buffer: 0, ..DEVICE }).unwrap();
        found.throughput.unwrap().pps
    };
    let (none, some) = (of("tests=throughput,trial=1s"), of("tests=throughput,trial=1s,tolerance=5%"));
    assert!((some / none - 1.0 / 0.95).abs() < 5e-3, "{none} {some}");
}

#[test]
fn latency_loss_and_bursts_are_measured_as_the_documents_say() {
    let mut device = Device { ..DEVICE };
    let report = run(&plan("trial=1s,resolution=0.1%"), 60, &mut device).unwrap();
    let count = |test| device.trials.iter().filter(|(of, _)| *of == test).count();
    assert_eq!((report.delays.len(), count(Test::Latency)), (20, 20));
    assert_eq!(report.median_delay(|delay| delay.median as f64).map(|ns| (ns / 100.0).round()), Some(50.0));
    assert!(report.delays[0].variation() < 100 && report.delays[0].max >= 15_000, "{:?}", report.delays[0]);
    // Steps of a tenth of the link's rate: 14.9 Mpps to 1.5 lose packets, and none is below the device's rate.
    assert_eq!(report.loss.len(), 10);
    assert!((report.loss[0].loss() - 0.917).abs() < 0.001, "{}", report.loss[0].loss());
    assert!(report.loss.is_sorted_by(|a, b| a.loss() > b.loss()));
    // A burst of n at rate r fills the buffer at n * (1 - pps / r).
    let burst = report.back_to_back.unwrap();
    assert!((burst.packets / 109.0 - 1.0).abs() < 0.02 && burst.range.0 == burst.range.1, "{burst:?}");
    let quiet = run(&plan("tests=loss"), 60, &mut Device { pps: 1e9, ..DEVICE }).unwrap();
    assert_eq!(quiet.loss.len(), 2, "two steps without loss are enough");
}

#[test]
fn plans_are_parsed_or_refused() {
    let all = plan("");
    assert_eq!((all.tests.len(), all.sizes[0], all.sizes[6], all.repeats(Test::BackToBack)), (4, 60, 1514, 50));
    let v6 = Plan::parse(Rfc::Rfc8219, "dmac=02:00:00:00:00:09,repeat=3", DEFAULT_LINK).unwrap();
    let stream = v6.stream(&Offer { size: 80, pps: 1e6 / 3.0, packets: 7 }).unwrap();
    let mut sender = crate::Sender::new(vec![stream]);
    let packet = sender.take(0).unwrap().to_vec();
    assert_eq!((packet.len(), &packet[..6], &packet[12..14]), (80, &[2, 0, 0, 0, 0, 9][..], &[0x86, 0xdd][..]));
    assert_eq!((sender.due(), v6.sizes[0], v6.repeats(Test::Latency)), (Some(3000), 80, 3));
    for (text, part) in [
        ("tests=speed", "throughput+latency+loss+back-to-back"),
        ("sizes=64+x", "64+1518"),
        ("sizes=60", "need 64"),
        ("sizes=64,dst=fd00::2", "need 84"),
        ("trial=5", "not a time"),
        ("trial=0s", "longer than 0"),
        ("repeat=0", "at least one"),
        ("attempts=0", "at least one"),
        ("tolerance=1", "percentage"),
        ("resolution=0%", "resolution"),
        ("rate=5", "the search itself"),
        ("colour=red", "no key `colour`"),
        ("loss", "KEY=VALUE"),
        ("vlan=x", "not a number"),
    ] {
        let message = Plan::parse(Rfc::Rfc2544, text, DEFAULT_LINK).expect_err(text);
        assert!(message.contains(part), "{text}: {message}");
    }
}

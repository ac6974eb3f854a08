// SPDX-License-Identifier: BSD-2-Clause
//! The searches of RFC 2544 and RFC 8219: which rate, latency, loss and bursts a device between two ports has.
//!
//! ```text
//! Plan --> throughput, latency, loss, back-to-back --Offer--> Tester (sends, receives) --Trial--> SizeReport
//! ```
//! Frames are measured in bytes without FCS, as elsewhere here; the RFCs count it.

mod plan;
mod report;

pub use plan::{Plan, Rfc, Test};
pub use report::{BackToBack, Delay, Limit, SizeReport, Throughput};

use crate::{BATCH, Pace, SECOND, Summary};

/// A rate is held if the packets left within this part of it.
const HELD_WITHIN: f64 = 1e-3;
/// Steps of the rate in the test of loss, in tenths of the link's rate; it ends after two steps without loss.
const LOSS_STEPS: u32 = 10;
/// Searches end after so many trials, whatever the resolution.
const MAX_TRIALS: u32 = 60;

/// The traffic that a trial offers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Offer {
    /// Bytes of each packet.
    pub size: usize,
    /// Packets per second.
    pub pps: f64,
    /// Packets in all.
    pub packets: u64,
}

/// The results of a trial.
#[derive(Clone, Debug)]
pub struct Trial {
    /// The traffic that was offered.
    pub offer: Offer,
    /// Packets that were sent.
    pub sent: u64,
    /// Their rate.
    pub sent_pps: f64,
    /// Packets that arrived, without duplicates.
    pub received: u64,
    /// Packets that arrived again.
    pub duplicates: u64,
    /// Packets that arrived after one with a higher number.
    pub reordered: u64,
    /// Jitter (RFC 3550), in nanoseconds.
    pub jitter: f64,
    /// Latencies in nanoseconds; `None` if nothing arrived.
    pub latency: Option<Summary>,
    /// How evenly the packets left, as the receiver saw it.
    pub pace: Option<Pace>,
}

impl Trial {
    /// Returns the part of the packets that did not arrive.
    pub fn loss(&self) -> f64 {
        self.sent.saturating_sub(self.received) as f64 / self.sent.max(1) as f64
    }

    /// Returns true if the receiver saw more packets at once than a batch beyond what the rate allows: the sender stood
    /// still and caught up, so that what was measured is a burst at another rate.
    pub fn disturbed(&self) -> bool {
        self.pace.is_some_and(|pace| pace.burst > u64::from(BATCH))
    }

    /// Returns true if the packets left at the rate of the offer.
    pub fn held(&self) -> bool {
        (self.sent_pps / self.offer.pps - 1.0).abs() <= HELD_WITHIN
    }
}

/// Sends and receives.
pub trait Tester {
    /// Performs a trial of a test.
    ///
    /// # Errors
    /// A sentence: a port has failed, or the user ended the search.
    fn trial(&mut self, test: Test, offer: Offer) -> Result<Trial, String>;
}

/// Makes disturbed trials again.
struct Repeating<'a> {
    tester: &'a mut dyn Tester,
    /// Attempts at a trial, the first included; the last one counts as it is.
    attempts: u32,
    /// Trials that were made again, and trials that count although they were disturbed.
    repeated: u32,
    disturbed: u32,
}

impl Tester for Repeating<'_> {
    fn trial(&mut self, test: Test, offer: Offer) -> Result<Trial, String> {
        let mut attempt = 1;
        loop {
            let trial = self.tester.trial(test, offer)?;
            if !trial.disturbed() || attempt >= self.attempts {
                self.disturbed += u32::from(trial.disturbed());
                return Ok(trial);
            }
            attempt += 1;
            self.repeated += 1;
        }
    }
}

/// Performs the tests of the plan with one size of packets. A trial that is disturbed is made again.
///
/// # Errors
/// The tester's.
pub fn run(plan: &Plan, size: usize, tester: &mut dyn Tester) -> Result<SizeReport, String> {
    let mut repeating = Repeating { tester, attempts: plan.attempts, repeated: 0, disturbed: 0 };
    let report = tests_of(plan, size, &mut repeating)?;
    Ok(SizeReport { repeated: repeating.repeated, disturbed: repeating.disturbed, ..report })
}

fn tests_of(plan: &Plan, size: usize, tester: &mut dyn Tester) -> Result<SizeReport, String> {
    let has = |test| plan.tests.contains(&test);
    let mut report = SizeReport::new(size, plan.link_pps(size));
    if has(Test::Throughput) || has(Test::Latency) {
        report.throughput = Some(throughput(plan, size, tester)?);
    }
    if let Some(rate) = report.throughput.as_ref().map(|found| found.pps).filter(|pps| has(Test::Latency) && *pps > 0.0)
    {
        let offer = plan.offer(size, rate);
        for _ in 0..plan.repeats(Test::Latency) {
            let trial = tester.trial(Test::Latency, offer)?;
            report.delays.extend(trial.latency.as_ref().map(|times| Delay::new(times, trial.jitter)));
        }
    }
    if has(Test::Loss) {
        report.loss = loss(plan, size, tester)?;
    }
    if has(Test::BackToBack) {
        let bursts = (0..plan.repeats(Test::BackToBack)).map(|_| back_to_back(plan, size, tester));
        report.back_to_back = Some(BackToBack::new(&bursts.collect::<Result<Vec<_>, _>>()?));
    }
    Ok(report)
}

/// RFC 2544, 26.1: the highest rate that passes, by bisection. A rate that the sender did not hold bounds the search,
/// and the rate that it did send at passes.
fn throughput(plan: &Plan, size: usize, tester: &mut dyn Tester) -> Result<Throughput, String> {
    let most = plan.link_pps(size);
    let (mut low, mut high, mut limit) = (0.0_f64, most, Limit::Loss);
    let mut pace = None;
    let mut rate = most;
    for _ in 0..MAX_TRIALS {
        let trial = tester.trial(Test::Throughput, plan.offer(size, rate))?;
        let passed = trial.loss() <= plan.tolerance;
        if passed && trial.held() {
            (low, pace) = (rate, trial.pace);
            if rate >= most {
                return Ok(Throughput { pps: most, limit: Limit::Link, pace });
            }
        } else {
            (high, limit) = (rate, if passed { Limit::Sender } else { Limit::Loss });
            let sent_pps = trial.sent_pps.min(rate);
            if passed && sent_pps > low {
                (low, pace) = (sent_pps, trial.pace);
            }
        }
        if high - low <= plan.resolution * high || high < 1.0 {
            break;
        }
        rate = f64::midpoint(low, high);
    }
    Ok(Throughput { pps: low, limit, pace })
}

/// RFC 2544, 26.3: the loss at the link's rate, and in steps of a tenth below it, until two have none.
fn loss(plan: &Plan, size: usize, tester: &mut dyn Tester) -> Result<Vec<Trial>, String> {
    let mut trials: Vec<Trial> = Vec::new();
    for step in (1..=LOSS_STEPS).rev() {
        let rate = plan.link_pps(size) * f64::from(step) / f64::from(LOSS_STEPS);
        trials.push(tester.trial(Test::Loss, plan.offer(size, rate))?);
        if matches!(&trials[..], [.., a, b] if a.loss() == 0.0 && b.loss() == 0.0) {
            break;
        }
    }
    Ok(trials)
}

/// RFC 2544, 26.4: the longest burst at the link's rate of which nothing is lost, by bisection, with its rate.
fn back_to_back(plan: &Plan, size: usize, tester: &mut dyn Tester) -> Result<(u64, f64), String> {
    let whole = plan.offer(size, plan.link_pps(size));
    let (mut low, mut high, mut pps) = (0, whole.packets + 1, 0.0);
    let mut packets = whole.packets;
    for _ in 0..MAX_TRIALS {
        let trial = tester.trial(Test::BackToBack, Offer { packets, ..whole })?;
        if trial.loss() == 0.0 {
            (low, pps) = (packets, trial.sent_pps);
        } else {
            high = packets;
        }
        if high - low <= 1 || (high - low) as f64 <= plan.resolution * high as f64 {
            break;
        }
        packets = u64::midpoint(low, high);
    }
    Ok((low, pps))
}

#[cfg(test)]
mod tests;

// SPDX-License-Identifier: BSD-2-Clause
//! The results of a search.

use super::Trial;
use crate::{Pace, Summary};

/// The cause that bounds a throughput.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Higher rates lose packets.
    Loss,
    /// The sender does not hold higher rates.
    Sender,
    /// The link has no higher rate.
    Link,
}

impl Limit {
    /// Returns its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Limit::Loss => "loss",
            Limit::Sender => "sender",
            Limit::Link => "link",
        }
    }
}

/// The highest rate that passed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Throughput {
    /// Packets per second; 0 if none passed.
    pub pps: f64,
    /// The cause that bounds the throughput.
    pub limit: Limit,
    /// How evenly the packets left in the trial that found it, as the receiver saw it.
    pub pace: Option<Pace>,
}

impl Throughput {
    /// Returns by which part of it the rate that the receiver saw differs from it; `None` if it saw none.
    pub fn deviation(&self) -> Option<f64> {
        self.pace.filter(|_| self.pps > 0.0).map(|pace| (pace.pps / self.pps - 1.0).abs())
    }
}

/// The latencies of one trial, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Delay {
    /// The shortest.
    pub min: u64,
    /// RFC 8219's typical latency.
    pub median: u64,
    /// The mean.
    pub mean: f64,
    /// The 99.9th percentile: RFC 8219's worst case latency.
    pub p999: u64,
    /// The longest.
    pub max: u64,
    /// Jitter (RFC 3550).
    pub jitter: f64,
}

impl Delay {
    pub(crate) fn new(times: &Summary, jitter: f64) -> Delay {
        Delay {
            min: times.min,
            median: times.percentiles[0],
            mean: times.mean,
            p999: times.percentiles[3],
            max: times.max,
            jitter,
        }
    }

    /// Returns the packet delay variation of RFC 8219: worst case less the shortest.
    pub fn variation(&self) -> u64 {
        self.p999.saturating_sub(self.min)
    }
}

/// Bursts without loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BackToBack {
    /// Packets, the mean of all searches.
    pub packets: f64,
    /// The smallest and the largest of them.
    pub range: (u64, u64),
    /// The mean rate at which they left.
    pub pps: f64,
}

impl BackToBack {
    pub(crate) fn new(bursts: &[(u64, f64)]) -> BackToBack {
        let n = bursts.len().max(1) as f64;
        let packets = bursts.iter().map(|(packets, _)| *packets);
        BackToBack {
            packets: packets.clone().sum::<u64>() as f64 / n,
            range: (packets.clone().min().unwrap_or(0), packets.max().unwrap_or(0)),
            pps: bursts.iter().map(|(_, pps)| pps).sum::<f64>() / n,
        }
    }
}

/// The results with one size of packets.
#[derive(Clone, Debug)]
pub struct SizeReport {
    /// Bytes without FCS.
    pub size: usize,
    /// Packets per second that the link can carry.
    pub link_pps: f64,
    /// The highest rate that passed.
    pub throughput: Option<Throughput>,
    /// Latencies at that rate, of each repetition.
    pub delays: Vec<Delay>,
    /// Trials of the test of loss, from the highest rate on.
    pub loss: Vec<Trial>,
    /// The longest bursts.
    pub back_to_back: Option<BackToBack>,
    /// Trials that were disturbed, and made again.
    pub repeated: u32,
    /// Trials that count although they were disturbed, because each attempt was.
    pub disturbed: u32,
}

impl SizeReport {
    pub(crate) fn new(size: usize, link_pps: f64) -> SizeReport {
        SizeReport {
            size,
            link_pps,
            throughput: None,
            delays: Vec::new(),
            loss: Vec::new(),
            back_to_back: None,
            repeated: 0,
            disturbed: 0,
        }
    }

    /// Returns the median over the repetitions of a value of their latencies; `None` without repetitions.
    pub fn median_delay(&self, value: impl Fn(&Delay) -> f64) -> Option<f64> {
        let mut all: Vec<f64> = self.delays.iter().map(value).collect();
        all.sort_by(f64::total_cmp);
        let (low, high) = (all.get((all.len().checked_sub(1)?) / 2)?, all.get(all.len() / 2)?);
        Some(f64::midpoint(*low, *high))
    }
}

// SPDX-License-Identifier: BSD-2-Clause
//! The counters of an emulated link for `unetmap metrics`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tool_common::metrics::Metric;

/// Metrics, each with its numbers: the label that tells them apart besides the direction, and its values.
const METRICS: [(&str, &str, &str, &[&str]); 6] = [
    ("emulate_packets", "Packets that came", "", &[""]),
    ("emulate_bytes", "Bytes of these packets", "", &[""]),
    ("emulate_arrived_packets", "Packets that the other port has sent", "", &[""]),
    ("emulate_arrived_bytes", "Bytes of these packets", "", &[""]),
    (
        "emulate_dropped_packets",
        "Packets that did not arrive, by reason",
        "reason",
        &["loss", "full", "managed", "memory", "long"],
    ),
    (
        "emulate_changed_packets",
        "Packets that the link has changed, by kind",
        "kind",
        &["marked", "duplicated", "corrupted", "reordered"],
    ),
];

/// Numbers of a direction: those of [`METRICS`], and the packets that the link holds.
pub(crate) const NUMBERS: usize = 14;

/// Numbers of a direction that its thread writes and another one reads.
#[derive(Debug, Default)]
pub(crate) struct Published([AtomicU64; NUMBERS]);

impl Published {
    #[inline]
    pub(crate) fn set(&self, numbers: [u64; NUMBERS]) {
        self.0.iter().zip(numbers).for_each(|(shown, number)| shown.store(number, Relaxed));
    }

    fn get(&self) -> [u64; NUMBERS] {
        self.0.each_ref().map(|shown| shown.load(Relaxed))
    }
}

/// The metrics of both directions.
pub(crate) fn of(ways: &[Arc<Published>; 2]) -> Vec<Metric> {
    let ways = [("out", ways[0].get()), ("in", ways[1].get())];
    let mut at = 0..NUMBERS;
    let mut add = |metric: &mut Metric, label: &str, value: &str| {
        let Some(at) = at.next() else { return };
        for (way, numbers) in &ways {
            let labels = [("dir", *way), (label, value)];
            metric.add(&labels[..if label.is_empty() { 1 } else { 2 }], numbers[at]);
        }
    };
    let mut all = Vec::new();
    for (name, help, label, values) in METRICS {
        let mut metric = Metric::counter(name, help);
        values.iter().for_each(|value| add(&mut metric, label, value));
        all.push(metric);
    }
    let mut held = Metric::gauge("emulate_held_packets", "Packets in the queue and on the way");
    add(&mut held, "", "");
    all.push(held);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_in_one_metric() {
        let ways: [Arc<Published>; 2] = Default::default();
        ways[0].set(std::array::from_fn(|i| i as u64));
        ways[1].set(std::array::from_fn(|i| 100 + i as u64));
        let all = of(&ways);
        let mut values: Vec<u64> =
            all.iter().flat_map(|metric| &metric.samples).map(|sample| sample.1 as u64).collect();
        values.sort_unstable();
        let n = NUMBERS as u64;
        assert_eq!(values, (0..n).chain(100..100 + n).collect::<Vec<_>>());
    }
}

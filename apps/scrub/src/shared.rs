// SPDX-License-Identifier: BSD-2-Clause
//! State that the thread that moves packets shares with the one that reports.

use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use serde_json::{Map, Value, json};
use tool_common::metrics::Metric;

use crate::reason::{Reason, Sum, Totals};
use crate::rules::Rules;
use crate::top::Source;

pub(crate) struct Shared {
    pub(crate) rules: Rules,
    pub(crate) totals: Totals,
    /// The sources of most dropped packets of the attack.
    pub(crate) top: Mutex<Vec<Source>>,
    /// Number of the attack: with another one the sources are counted anew.
    pub(crate) attack: AtomicU64,
}

/// Packets and bytes by reason, as JSON: those that there are.
pub(crate) fn by_reason(sums: &[Sum; Reason::ALL.len()]) -> Value {
    let some = Reason::ALL.iter().zip(sums).filter(|(_, sum)| sum.packets > 0);
    some.map(|(reason, sum)| (reason.name().to_owned(), json!({"packets": sum.packets, "bytes": sum.bytes})))
        .collect::<Map<_, _>>()
        .into()
}

/// The sources, as JSON.
pub(crate) fn sources(top: &[Source]) -> Value {
    let one = |source: &Source| {
        json!({"source": source.address().to_string(), "packets": source.sum.packets, "bytes": source.sum.bytes,
            "error": source.error})
    };
    top.iter().map(one).collect::<Vec<_>>().into()
}

impl Shared {
    pub(crate) fn new(rules: Rules) -> Shared {
        Shared { rules, totals: Totals::default(), top: Mutex::default(), attack: AtomicU64::new(0) }
    }

    /// Returns the counters for `unetmap metrics`.
    pub(crate) fn metrics(&self, attacks: u64, is_attacked: bool) -> Vec<Metric> {
        use std::sync::atomic::Ordering::Relaxed;
        let totals = &self.totals;
        let ways = [
            ("received", totals.received.get()),
            ("passed", totals.passed.get()),
            ("returned", totals.returned.get()),
            ("back", totals.back.get()),
        ];
        let by = |name: &str, help: &str, label: &str, sums: &[(&str, u64)]| {
            sums.iter().fold(Metric::counter(name, help), |metric, (value, n)| metric.with(&[(label, value)], *n))
        };
        let dropped = totals.dropped();
        let reasons = |of: fn(&Sum) -> u64| {
            Reason::ALL.iter().zip(&dropped).map(|(reason, sum)| (reason.name(), of(sum))).collect::<Vec<_>>()
        };
        vec![
            by("scrub_packets", "Packets of the scrubber", "kind", &ways.map(|(kind, sum)| (kind, sum.packets))),
            by("scrub_bytes", "Bytes of these packets", "kind", &ways.map(|(kind, sum)| (kind, sum.bytes))),
            by("scrub_dropped_packets", "Packets that did not pass", "reason", &reasons(|sum| sum.packets)),
            by("scrub_dropped_bytes", "Bytes of these packets", "reason", &reasons(|sum| sum.bytes)),
            Metric::counter("scrub_replies", "Segments of handshakes and ICMP errors that were sent")
                .with(&[], totals.replies.load(Relaxed)),
            Metric::counter("scrub_lost_replies", "Those for which there was no room")
                .with(&[], totals.lost_replies.load(Relaxed)),
            Metric::counter("scrub_evicted", "Sources, prefixes and destinations whose places others took")
                .with(&[], totals.evicted.load(Relaxed)),
            Metric::counter("scrub_attacks", "Attacks that have begun").with(&[], attacks),
            Metric::gauge("scrub_attacked", "1 while an attack goes on").with(&[], is_attacked.into()),
        ]
    }
}

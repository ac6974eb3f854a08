// SPDX-License-Identifier: BSD-2-Clause
//! Events and the summary, as text or JSON, on standard output.

use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use serde_json::{Value, json};
use tool_common::{link, print};

use crate::attack::{Event, Sums, Watch};
use crate::options::{Input, Settings};
use crate::reason::Reason;
use crate::shared::{Shared, by_reason, sources};
use crate::top::Source;

/// Prints what happens.
pub(crate) struct Report {
    watch: Watch,
    is_json: bool,
    is_file: bool,
    interval: Option<Duration>,
    /// When the last interval ended, and the packets until then: received, dropped.
    last: (Duration, [u64; 2]),
    /// The sources of the last attack.
    top: Vec<Source>,
}

/// `bogon 12, source 3`.
fn reasons(sums: &Sums) -> String {
    let some = Reason::ALL.iter().zip(sums).filter(|(_, sum)| sum.packets > 0);
    let all: Vec<String> = some.map(|(reason, sum)| format!("{} {}", reason.name(), sum.packets)).collect();
    if all.is_empty() { "none".into() } else { all.join(", ") }
}

fn first(top: &[Source]) -> String {
    let all: Vec<String> =
        top.iter().take(3).map(|source| format!("{} ({})", source.address(), source.sum.packets)).collect();
    if all.is_empty() { String::new() } else { format!("; sources: {}", all.join(", ")) }
}

impl Report {
    pub(crate) fn new(settings: &Settings<'_>) -> Report {
        Report {
            watch: Watch::new(settings.attack, settings.quiet),
            is_json: settings.json,
            is_file: matches!(settings.input, Input::File(_)),
            interval: settings.interval,
            last: (Duration::ZERO, [0; 2]),
            top: Vec::new(),
        }
    }

    pub(crate) fn attacks(&self) -> u64 {
        self.watch.attacks
    }

    pub(crate) fn is_attacked(&self) -> bool {
        self.watch.is_attacked()
    }

    /// Prints the rates, if an interval has ended.
    pub(crate) fn tick(&mut self, passed: Duration, shared: &Shared) {
        let (since, before) = self.last;
        let time = passed.saturating_sub(since);
        if self.interval.is_none_or(|interval| time < interval) {
            return;
        }
        let dropped = shared.totals.dropped().iter().map(|sum| sum.packets).sum();
        let now = [shared.totals.received.get().packets, dropped];
        self.last = (passed, now);
        let ([packets, dropped], seconds) = ([0, 1].map(|i| now[i] - before[i]), time.as_secs_f64());
        let json = json!({"event": "interval", "packets": packets, "dropped": dropped, "seconds": seconds});
        let [all, lost] = [packets, dropped].map(|packets| packets as f64 / seconds);
        self.line(&json, &format!("{all:.0} packets a second, {lost:.0} dropped"));
    }

    /// Ends a second, of this number since the begin.
    pub(crate) fn second(&mut self, number: u64, shared: &Shared) {
        self.top = shared.top.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(event) = self.watch.second(number, &shared.totals) {
            self.event(event, shared);
        }
    }

    fn event(&mut self, event: Event, shared: &Shared) {
        let top = &self.top;
        let (json, text) = match event {
            Event::Begin(packets) => (
                json!({"event": "attack_begin", "packets_per_second": packets, "sources": sources(top)}),
                format!("attack begins: {packets} packets dropped in a second{}", first(top)),
            ),
            Event::End(ended) => {
                let (attack, sums) = *ended;
                let seconds = attack.until - attack.since + 1;
                // The sources of the next one are counted anew.
                shared.attack.fetch_add(1, Relaxed);
                (
                    json!({"event": "attack_end", "seconds": seconds, "peak": attack.peak, "dropped": by_reason(&sums),
                        "sources": sources(top)}),
                    format!("attack ended after {seconds} seconds: dropped {}{}", reasons(&sums), first(top)),
                )
            }
        };
        self.line(&json, &text);
    }

    fn line(&self, json: &Value, text: &str) {
        print(&if self.is_json { format!("{json}\n") } else { format!("{text}\n") });
    }

    /// Prints the summary.
    pub(crate) fn end(&mut self, shared: &Shared, seconds: f64) {
        if let Some(event) = self.watch.end() {
            self.event(event, shared);
        }
        let totals = &shared.totals;
        let (received, passed, dropped) = (totals.received.get(), totals.passed.get(), totals.dropped());
        let returned = totals.returned.get();
        let mut json = json!({"event": "summary", "seconds": seconds, "dry_run": self.is_file,
            "received": {"packets": received.packets, "bytes": received.bytes},
            "passed": {"packets": passed.packets, "bytes": passed.bytes},
            "returned": {"packets": returned.packets, "bytes": returned.bytes}, "dropped": by_reason(&dropped),
            "back": totals.back.get().packets, "back_dropped": totals.back_dropped.get().packets,
            "replies": totals.replies.load(Relaxed), "lost_replies": totals.lost_replies.load(Relaxed),
            "evicted": totals.evicted.load(Relaxed), "unrecorded": totals.unrecorded.load(Relaxed),
            "attacks": self.watch.attacks, "sources": sources(&self.top)});
        if !self.is_file {
            link::add_down(&mut json);
        }
        let text = format!(
            "received {} packets, passed {}, dropped: {}; in {seconds:.2} seconds",
            received.packets,
            passed.packets,
            reasons(&dropped)
        );
        self.line(&json, &text);
    }
}

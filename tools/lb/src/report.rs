// SPDX-License-Identifier: BSD-2-Clause
//! Periodic reports and the summary: text, JSON, system log.

use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tool_common::{link, note, print};

use crate::group::{Counts, Groups};

/// Socket of the system log.
const LOG_SOCKET: &str = "/dev/log";
/// Facility daemon, severity info.
const PRIORITY: u32 = 3 << 3 | 6;

/// The counts at some time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Totals {
    received: u64,
    pipes: Vec<PipeCounts>,
}

#[derive(Clone, Debug)]
struct PipeCounts {
    pipe: String,
    counts: Counts,
    queued: usize,
}

impl Totals {
    /// Returns the current counts.
    pub(crate) fn of(received: u64, groups: &Groups) -> Totals {
        let line = |pipe: &crate::group::Pipe| PipeCounts {
            pipe: pipe.port.spec().into(),
            counts: pipe.counts,
            queued: pipe.queued(),
        };
        Totals { received, pipes: groups.pipes().map(line).collect() }
    }

    /// Returns the counts since `before`, which must have the same pipes; all counts if `before` is `None`.
    fn since(&self, before: Option<&Totals>) -> Totals {
        let Some(before) = before else { return self.clone() };
        let mut all = self.clone();
        all.received -= before.received;
        for (PipeCounts { counts, .. }, old) in all.pipes.iter_mut().zip(&before.pipes) {
            counts.packets -= old.counts.packets;
            counts.bytes -= old.counts.bytes;
            counts.drops -= old.counts.drops;
        }
        all
    }

    fn sums(&self) -> (u64, u64) {
        let of = |count: fn(&Counts) -> u64| self.pipes.iter().map(|line| count(&line.counts)).sum();
        (of(|counts| counts.packets), of(|counts| counts.drops))
    }

    fn json(&self, event: &str, time: Duration) -> Value {
        let (forwarded, dropped) = self.sums();
        let pipe = |PipeCounts { pipe, counts, queued }: &PipeCounts| {
            let Counts { packets, bytes, drops } = counts;
            json!({"pipe": pipe, "packets": packets, "bytes": bytes, "drops": drops, "waiting": queued})
        };
        json!({
            "event": event, "seconds": time.as_secs_f64(), "received": self.received, "forwarded": forwarded,
            "drops": dropped, "pipes": self.pipes.iter().map(pipe).collect::<Vec<_>>(),
        })
    }

    fn text(&self, time: Duration) -> String {
        let (forwarded, dropped) = self.sums();
        let pipe = |PipeCounts { pipe, counts, queued }: &PipeCounts| {
            let waiting = if *queued > 0 { format!(" (+{queued} waiting)") } else { String::new() };
            format!("{pipe} {}{waiting}, {} drops", counts.packets, counts.drops)
        };
        let pipes: Vec<String> = self.pipes.iter().map(pipe).collect();
        let (received, seconds) = (self.received, time.as_secs_f64());
        format!(
            "received {received}, forwarded {forwarded}, dropped {dropped} in {seconds:.2} seconds: {}",
            pipes.join("; ")
        )
    }

    /// Prints the summary to standard output.
    pub(crate) fn print_summary(&self, time: Duration, json: bool) {
        let line = if json {
            let mut object = self.json("summary", time);
            link::add_down(&mut object);
            object.to_string()
        } else {
            let mut line = self.text(time);
            line.replace_range(..1, "R");
            line
        };
        print(&format!("{line}\n"));
    }
}

/// Writes a report about an interval: its counts and its length.
type WriteReport = dyn Fn(&Totals, Duration);

/// Reports periodically to one destination.
pub(crate) struct Reporter {
    period: Duration,
    last: Instant,
    before: Option<Totals>,
    to: Box<WriteReport>,
}

impl Reporter {
    /// Reports to standard output.
    pub(crate) fn stdout(period: Duration, json: bool) -> Reporter {
        let to = move |totals: &Totals, time| {
            print(&if json {
                format!("{}\n", totals.json("interval", time))
            } else {
                format!("{}\n", totals.text(time))
            });
        };
        Reporter { period, last: Instant::now(), before: None, to: Box::new(to) }
    }

    /// Reports to the system log. If it cannot be reached, prints a message once, and later reports are lost.
    pub(crate) fn syslog(period: Duration, json: bool) -> Reporter {
        let log = UnixDatagram::unbound().and_then(|log| log.connect(LOG_SOCKET).map(|()| log));
        if let Err(e) = &log {
            note(&format!("lb: -s: cannot connect to the system log ({LOG_SOCKET}): {e}; it gets no reports"));
        }
        let log = log.ok();
        let to = move |totals: &Totals, time| {
            let text = if json { totals.json("interval", time).to_string() } else { totals.text(time) };
            // If the log is full or restarts, this report is lost; the next one follows soon.
            let _ = log.as_ref().map(|log| log.send(log_record(&text).as_bytes()));
        };
        Reporter { period, last: Instant::now(), before: None, to: Box::new(to) }
    }

    /// Reports if the period has elapsed.
    pub(crate) fn tick(&mut self, now: Instant, totals: &dyn Fn() -> Totals) {
        let time = now.saturating_duration_since(self.last);
        if time >= self.period {
            let all = totals();
            (self.to)(&all.since(self.before.as_ref()), time);
            (self.last, self.before) = (now, Some(all));
        }
    }
}

/// Formats a record of the log's protocol.
fn log_record(text: &str) -> String {
    format!("<{PRIORITY}>lb[{}]: {text}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(received: u64, packets: u64, drops: u64, queued: usize) -> Totals {
        let counts = Counts { packets, bytes: packets * 60, drops };
        Totals { received, pipes: vec![PipeCounts { pipe: "netmap:a{0/xT@1".into(), counts, queued }] }
    }

    #[test]
    fn interval_reports_have_the_counts_since_the_last_report() {
        let (now, before) = (totals(110, 90, 15, 5), totals(10, 10, 0, 0));
        let text = now.since(Some(&before)).text(Duration::from_secs(2));
        assert_eq!(
            text,
            "received 100, forwarded 80, dropped 15 in 2.00 seconds: netmap:a{0/xT@1 80 (+5 waiting), 15 drops"
        );
        let value = now.since(Some(&before)).json("interval", Duration::from_secs(2));
        assert_eq!((&value["received"], &value["pipes"][0]["bytes"]), (&100.into(), &4800.into()));
        assert_eq!(now.since(None).sums(), (90, 15));
    }

    #[test]
    fn log_records_have_priority_and_process_number() {
        assert_eq!(log_record("x"), format!("<30>lb[{}]: x", std::process::id()));
    }
}

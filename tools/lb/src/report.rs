//! What is told while it runs and at its end: lines for people, JSON, the system's log.

use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tool_common::{note, print};

use crate::group::{Counts, Groups};

/// Where the system's log listens.
const LOG: &str = "/dev/log";
/// Facility daemon, severity info.
const PRIORITY: u32 = 3 << 3 | 6;

/// What was counted up to some moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Totals {
    received: u64,
    pipes: Vec<Line>,
}

#[derive(Clone, Debug)]
struct Line {
    pipe: String,
    counts: Counts,
    waiting: usize,
}

impl Totals {
    /// As it is now.
    pub(crate) fn of(received: u64, groups: &Groups) -> Totals {
        let line = |pipe: &crate::group::Pipe| Line {
            pipe: pipe.port.spec().into(),
            counts: pipe.counts,
            waiting: pipe.waiting(),
        };
        Totals { received, pipes: groups.pipes().map(line).collect() }
    }

    /// What came since `before`, of the same pipes; or everything.
    fn since(&self, before: Option<&Totals>) -> Totals {
        let Some(before) = before else { return self.clone() };
        let mut all = self.clone();
        all.received -= before.received;
        for (Line { counts, .. }, old) in all.pipes.iter_mut().zip(&before.pipes) {
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
        let pipe = |Line { pipe, counts, waiting }: &Line| {
            let Counts { packets, bytes, drops } = counts;
            json!({"pipe": pipe, "packets": packets, "bytes": bytes, "drops": drops, "waiting": waiting})
        };
        json!({
            "event": event, "seconds": time.as_secs_f64(), "received": self.received, "forwarded": forwarded,
            "drops": dropped, "pipes": self.pipes.iter().map(pipe).collect::<Vec<_>>(),
        })
    }

    fn text(&self, time: Duration) -> String {
        let (forwarded, dropped) = self.sums();
        let pipe = |Line { pipe, counts, waiting }: &Line| {
            let waiting = if *waiting > 0 { format!(" (+{waiting} waiting)") } else { String::new() };
            format!("{pipe} {}{waiting}, {} drops", counts.packets, counts.drops)
        };
        let pipes: Vec<String> = self.pipes.iter().map(pipe).collect();
        let (received, seconds) = (self.received, time.as_secs_f64());
        format!(
            "received {received}, forwarded {forwarded}, dropped {dropped} in {seconds:.2} seconds: {}",
            pipes.join("; ")
        )
    }

    /// The last words on standard output.
    pub(crate) fn summary(&self, time: Duration, json: bool) {
        let line = if json {
            self.json("summary", time).to_string()
        } else {
            let mut line = self.text(time);
            line.replace_range(..1, "R");
            line
        };
        print(&format!("{line}\n"));
    }
}

/// Takes what came in an interval of such a length.
type Sink = dyn Fn(&Totals, Duration);

/// One place to report to, now and then.
pub(crate) struct Reporter {
    every: Duration,
    last: Instant,
    before: Option<Totals>,
    to: Box<Sink>,
}

impl Reporter {
    /// Standard output.
    pub(crate) fn stdout(every: Duration, json: bool) -> Reporter {
        let to = move |totals: &Totals, time| {
            print(&if json {
                format!("{}\n", totals.json("interval", time))
            } else {
                format!("{}\n", totals.text(time))
            });
        };
        Reporter { every, last: Instant::now(), before: None, to: Box::new(to) }
    }

    /// The system's log. Where there is none, that is told now, and later nothing.
    pub(crate) fn syslog(every: Duration, json: bool) -> Reporter {
        let log = UnixDatagram::unbound().and_then(|log| log.connect(LOG).map(|()| log));
        if let Err(e) = &log {
            note(&format!("lb: the system's log ({LOG}) cannot be reached: {e}; it gets no reports"));
        }
        let log = log.ok();
        let to = move |totals: &Totals, time| {
            let text = if json { totals.json("interval", time).to_string() } else { totals.text(time) };
            // A log that is full, or restarted, misses a report; there is another one soon.
            let _ = log.as_ref().map(|log| log.send(record(&text).as_bytes()));
        };
        Reporter { every, last: Instant::now(), before: None, to: Box::new(to) }
    }

    /// Reports if it is time to.
    pub(crate) fn tick(&mut self, now: Instant, totals: &dyn Fn() -> Totals) {
        let time = now.saturating_duration_since(self.last);
        if time >= self.every {
            let all = totals();
            (self.to)(&all.since(self.before.as_ref()), time);
            (self.last, self.before) = (now, Some(all));
        }
    }
}

/// As the log's socket takes it.
fn record(text: &str) -> String {
    format!("<{PRIORITY}>lb[{}]: {text}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(received: u64, packets: u64, drops: u64, waiting: usize) -> Totals {
        let counts = Counts { packets, bytes: packets * 60, drops };
        Totals { received, pipes: vec![Line { pipe: "netmap:a{0/xT@1".into(), counts, waiting }] }
    }

    #[test]
    fn an_interval_is_what_came_since_the_last() {
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
    fn the_log_gets_a_record_with_priority_and_process() {
        assert_eq!(record("x"), format!("<30>lb[{}]: x", std::process::id()));
    }
}

// SPDX-License-Identifier: BSD-2-Clause
//! The last packets that rules logged, for `unetmap events`.

use std::collections::VecDeque;
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

use crate::shared::LogEntry;

/// Packets that are kept.
const MAX_EVENTS: usize = 1024;

/// The last logged packets, by number from 1 on.
#[derive(Default)]
pub(crate) struct Events(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    /// Number of the last one.
    last: u64,
    events: VecDeque<Value>,
}

impl Events {
    /// Adds a packet, and its line. The oldest one makes room.
    pub(crate) fn add(&self, entry: &LogEntry, line: &str, port: &str) {
        let event = json!({
            "event": "packet-logged", "time_ms": entry.time.as_millis() as u64, "uid": user(), "port": port,
            "rule": entry.number, "action": entry.action, "bytes": entry.len, "line": line,
        });
        self.push(event);
    }

    fn push(&self, event: Value) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.events.len() == MAX_EVENTS {
            kept.events.pop_front();
        }
        kept.events.push_back(event);
        kept.last += 1;
    }

    /// Returns those after number `after`, as the daemon returns its events.
    pub(crate) fn after(&self, after: u64) -> Value {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let first = kept.last - kept.events.len() as u64;
        let skipped = after.saturating_sub(first).min(kept.events.len() as u64);
        // A reader that has seen none misses none.
        let missed = if after == 0 { 0 } else { first.saturating_sub(after) };
        let events: Vec<&Value> = kept.events.iter().skip(skipped as usize).collect();
        json!({"pid": std::process::id(), "last": kept.last, "missed": missed, "events": events})
    }
}

/// Returns the user that this process belongs to.
fn user() -> Option<u32> {
    std::fs::metadata("/proc/self").map(|metadata| metadata.uid()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_events_are_kept_and_others_counted_as_missed() {
        let events = Events::default();
        let numbers = |after: u64| {
            let answer = events.after(after);
            let all = answer["events"].as_array().expect("a list").iter().filter_map(Value::as_u64);
            let all: Vec<u64> = all.collect();
            (all.first().copied(), all.len(), answer["last"].as_u64().unwrap(), answer["missed"].as_u64().unwrap())
        };
        assert_eq!(numbers(0), (None, 0, 0, 0));
        for i in 1..=5u64 {
            events.push(i.into());
        }
        assert_eq!(numbers(0), (Some(1), 5, 5, 0));
        assert_eq!(numbers(3), (Some(4), 2, 5, 0));
        assert_eq!((numbers(5), numbers(99)), ((None, 0, 5, 0), (None, 0, 5, 0)));
        for i in 6..=2000u64 {
            events.push(i.into());
        }
        assert_eq!(numbers(5), (Some(977), 1024, 2000, 971));
        assert_eq!(numbers(0).3, 0);
    }
}

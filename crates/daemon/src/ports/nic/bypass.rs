// SPDX-License-Identifier: BSD-2-Clause
//! When the kernel forwards in place of programs, for the log of events and the counts of an interface (`failure
//! bypass`), and the frames that come late because of it.
//!
//! ```text
//! cause         the kernel forwards the frames of the interface, or of one of its queues, because
//! no-program    no program has it open, or the program has not begun to receive
//! stalled       the program takes nothing from a queue that has frames
//! daemon        this process was stopped, so that no deadline was renewed
//! ```
//! Threads that open and close queues, and the heartbeat, find out about it; the control thread adds events and counts.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;
use unetmap_sys::xdp::Noted;

use crate::events::Cause;
use crate::threads::lock;
use crate::tuning::nic::MAX_BYPASS_CHANGES;

/// The state of a queue that a program has open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Service {
    /// The program has not begun to receive.
    Early,
    Served,
    Stalled,
}

/// The record of an interface.
#[derive(Default)]
pub(super) struct BypassRecord(Mutex<State>);

#[derive(Default)]
struct State {
    /// The queues that programs have open, by their places here.
    queues: BTreeMap<u64, Service>,
    last: u64,
    /// The kernel forwards since then.
    since: Option<(Instant, Cause)>,
    /// Counts that are to be added to those of the XDP program.
    noted: Noted,
    /// Events that are to be added to the log.
    changes: Vec<Change>,
}

/// The begin or the end of the kernel's forwarding.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) at: SystemTime,
    pub(super) cause: Cause,
    /// Of an end: how long it has lasted.
    pub(super) lasted: Option<Duration>,
}

/// The record in JSON.
#[derive(Serialize)]
pub(super) struct BypassSnapshot {
    /// Why the kernel forwards now; null: it does not.
    cause: Option<Cause>,
    /// For how long it has forwarded in all.
    seconds: f64,
}

impl State {
    /// Finds out whether the kernel forwards.
    fn look(&mut self, now: Instant) {
        let has = |state| self.queues.values().any(|queue| *queue == state);
        let cause = match () {
            () if self.queues.is_empty() || has(Service::Early) => Some(Cause::NoProgram),
            () if has(Service::Stalled) => Some(Cause::Stalled),
            () => None,
        };
        match (self.since, cause) {
            (None, Some(cause)) => {
                self.since = Some((now, cause));
                self.add(Change { at: SystemTime::now(), cause, lasted: None });
            }
            (Some((since, cause)), None) => {
                self.since = None;
                self.ends(cause, now.saturating_duration_since(since));
            }
            _ => {}
        }
    }

    fn ends(&mut self, cause: Cause, lasted: Duration) {
        self.noted.bypass_ms += lasted.as_millis() as u64;
        self.add(Change { at: SystemTime::now(), cause, lasted: Some(lasted) });
    }

    /// The last ones are kept if the control thread is busy.
    fn add(&mut self, change: Change) {
        if self.changes.len() >= MAX_BYPASS_CHANGES {
            self.changes.remove(0);
        }
        self.changes.push(change);
    }
}

impl BypassRecord {
    /// All queues that programs have open are known.
    pub(super) fn look(&self) {
        lock(&self.0).look(Instant::now());
    }

    /// A program has opened a queue; returns its place.
    pub(super) fn add(&self, is: Service) -> u64 {
        let mut state = lock(&self.0);
        state.last += 1;
        let place = state.last;
        state.queues.insert(place, is);
        state.look(Instant::now());
        place
    }

    pub(super) fn set(&self, place: u64, is: Service) {
        let mut state = lock(&self.0);
        state.queues.insert(place, is);
        state.look(Instant::now());
    }

    /// The queue is closed.
    pub(super) fn remove(&self, place: u64) {
        let mut state = lock(&self.0);
        state.queues.remove(&place);
        state.look(Instant::now());
    }

    /// A program that was stalled takes frames that came before those which the kernel has forwarded meanwhile.
    pub(super) fn were_overtaken(&self, frames: u64) {
        lock(&self.0).noted.overtaken += frames;
    }

    /// The deadlines of all queues were over for this long, and are not any more.
    pub(super) fn daemon_was_late(&self, late: Duration) {
        let mut state = lock(&self.0);
        // One that no program serves was forwarded anyway.
        if state.since.is_none() {
            let begin = SystemTime::now().checked_sub(late).unwrap_or(SystemTime::UNIX_EPOCH);
            state.add(Change { at: begin, cause: Cause::Daemon, lasted: None });
            state.ends(Cause::Daemon, late);
        }
    }

    /// Takes what is to be added to the counts, and to the log of events.
    pub(super) fn take(&self) -> (Noted, Vec<Change>) {
        let mut state = lock(&self.0);
        (mem::take(&mut state.noted), mem::take(&mut state.changes))
    }

    /// The frames and the time that are to be added to the counts.
    pub(super) fn noted(&self) -> Noted {
        lock(&self.0).noted
    }

    /// Returns the record, with `noted_ms` that were added to the counts.
    pub(super) fn snapshot(&self, noted_ms: u64) -> BypassSnapshot {
        let state = lock(&self.0);
        let lasts = state.since.map_or(Duration::ZERO, |(since, _)| since.elapsed());
        let seconds = (noted_ms + state.noted.bypass_ms) as f64 / 1e3 + lasts.as_secs_f64();
        BypassSnapshot { cause: state.since.map(|(_, cause)| cause), seconds }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The begins and ends of a record, in order.
    fn changes(record: &BypassRecord) -> Vec<(Cause, bool)> {
        lock(&record.0).changes.iter().map(|change| (change.cause, change.lasted.is_some())).collect()
    }

    #[test]
    fn it_lasts_from_the_first_queue_without_a_program_to_the_last() {
        let record = BypassRecord::default();
        let [first, second] = [record.add(Service::Served), record.add(Service::Served)];
        assert_eq!(changes(&record), [], "as after a replacement");
        record.set(second, Service::Stalled);
        record.set(first, Service::Stalled);
        record.set(second, Service::Served);
        assert_eq!(changes(&record), [(Cause::Stalled, false)]);
        record.remove(first);
        assert_eq!(changes(&record), [(Cause::Stalled, false), (Cause::Stalled, true)]);
        record.remove(second);
        let again = record.add(Service::Early);
        record.daemon_was_late(Duration::from_secs(9));
        assert!(record.snapshot(5000).seconds < 9.0, "the kernel forwarded anyway");
        record.set(again, Service::Served);
        assert_eq!(changes(&record)[2..], [(Cause::NoProgram, false), (Cause::NoProgram, true)]);
        record.daemon_was_late(Duration::from_secs(9));
        assert_eq!(changes(&record)[4..], [(Cause::Daemon, false), (Cause::Daemon, true)]);
        let snapshot = record.snapshot(5000);
        assert!(snapshot.cause.is_none() && snapshot.seconds >= 14.0);
    }

    #[test]
    fn changes_that_are_not_reported_are_bounded() {
        let record = BypassRecord::default();
        let queue = record.add(Service::Served);
        for _ in 0..MAX_BYPASS_CHANGES {
            record.set(queue, Service::Stalled);
            record.set(queue, Service::Served);
        }
        assert_eq!(changes(&record).len(), MAX_BYPASS_CHANGES);
    }
}

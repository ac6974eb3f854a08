// SPDX-License-Identifier: BSD-2-Clause
//! The log of events that `unetmap events` reads: the last ones of each user, in memory of a bounded size. A reader
//! that is too slow is told how many it has missed; the daemon knows nothing about readers.
//!
//! An event has two numbers: among all, for readers that see everything, and among those of its user. Numbers have no
//! gaps, so a reader computes from them what it has missed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use unetmap_sys::process;

use crate::refusal::{Refusal, json};
use crate::subordinates::Subordinates;
use crate::tuning::events::{MAX_OF_ANSWER, MAX_OF_INTERFACE, MAX_OF_INTERFACES, MAX_OF_USER, MAX_REASON, MAX_USERS};

/// The process of a session, and its program when it opened the session: it may have ended since.
#[derive(Clone, Serialize)]
pub(crate) struct By {
    pub(crate) pid: u32,
    pub(crate) program: Option<String>,
}

/// A reason for which the kernel forwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Cause {
    /// No program has the interface open, or the program has not begun to receive.
    NoProgram,
    /// The program takes nothing from a queue that has frames.
    Stalled,
    /// The daemon was stopped.
    Daemon,
}

/// An event.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub(crate) enum What {
    /// The first session of a port.
    PortOpened {
        port: String,
        #[serde(flatten)]
        by: By,
    },
    /// The last session of a port was closed.
    PortClosed {
        port: String,
        #[serde(flatten)]
        by: By,
    },
    /// A session was opened.
    SessionOpened {
        port: String,
        session: u64,
        #[serde(flatten)]
        by: By,
        tx_rings: usize,
        rx_rings: usize,
    },
    /// A session was closed.
    SessionClosed {
        port: String,
        session: u64,
        #[serde(flatten)]
        by: By,
    },
    /// A program that closed an interface, or was killed, left frames in its rings.
    FramesLost { port: String, frames: u64 },
    /// The kernel began to forward in place of a program.
    BypassBegan { port: String, cause: Cause },
    /// The kernel no longer forwards in place of a program.
    BypassEnded { port: String, cause: Cause, seconds: f64 },
    /// An interface became a port of a switch.
    Attached {
        port: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        label: Option<String>,
    },
    /// An interface is no longer a port of a switch.
    Detached {
        port: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        label: Option<String>,
    },
    /// An interface with an open port was set up.
    LinkUp { port: String },
    /// An interface with an open port was set down.
    LinkDown { port: String },
    /// An interface with an open port was renamed.
    LinkRenamed { port: String, was: String },
    /// An interface with an open port was deleted, or moved to another namespace.
    LinkGone { port: String },
    /// An interface has handed on frames that are not those on the wire.
    FramesFaulty { port: String, reason: String },
    /// A request was refused, as it exceeded a budget.
    BudgetReached { reason: String },
    /// Ports are no longer kept over a crash (`--keep-ports`).
    CrashProtectionOff { reason: String },
    /// Ports are kept over a crash again.
    CrashProtectionOn { off_seconds: f64 },
    /// A request was refused, or a connection, as the policy does not allow it.
    PolicyRefused { reason: String },
    /// This process goes on after another that crashed.
    DaemonCrashed { port: &'static str, was: u32 },
    /// This process has replaced another.
    DaemonTookOver { port: &'static str, was: u32 },
    /// Configuration and policy were read again.
    Reloaded,
    /// Configuration and policy could not be read.
    ReloadFailed { reason: String },
    /// Requests of a user are not begun until its programs have received earlier answers.
    RequestsWait { reason: String },
}

#[derive(Serialize)]
struct Event {
    /// Its number among all events, from 1.
    #[serde(skip)]
    number: u64,
    /// Its number among those of its user, from 1.
    #[serde(skip)]
    number_of_user: u64,
    /// Milliseconds since 1970.
    time_ms: u64,
    uid: u32,
    #[serde(flatten)]
    what: What,
}

impl What {
    /// The port of an event that others than the port's user can cause, as often as they like: root of the interface's
    /// network namespace, or the program in place of which the kernel forwards.
    fn of_interface(&self) -> Option<&str> {
        match self {
            What::LinkUp { port }
            | What::LinkDown { port }
            | What::LinkRenamed { port, .. }
            | What::LinkGone { port }
            | What::FramesFaulty { port, .. }
            | What::BypassBegan { port, .. }
            | What::BypassEnded { port, .. } => Some(port),
            _ => None,
        }
    }
}

/// The events of a user.
#[derive(Default)]
struct UserEvents {
    /// Number of events so far, of which the last are kept.
    count: u64,
    kept: VecDeque<Event>,
    /// When a budget was last reached, and when the policy last refused something.
    refused: [Option<Instant>; 2],
}

/// The events of all users.
#[derive(Default)]
pub(crate) struct EventLog {
    count: u64,
    users: BTreeMap<u32, UserEvents>,
}

/// The events after a number, as JSON.
#[derive(Serialize)]
struct Answer<'a> {
    /// The daemon's process: another one counts anew.
    pid: u32,
    /// The number of the last one of these: later events come after it.
    last: u64,
    /// Events that were no longer kept.
    missed: u64,
    events: Vec<&'a Event>,
}

impl UserEvents {
    /// Forgets the first event, if there are more than are kept: of an interface, of all interfaces, or of the user.
    fn forget(&mut self) {
        let interface = self.kept.back().and_then(|event| event.what.of_interface());
        let first_of = |most: usize, is_one: &dyn Fn(&str) -> bool| {
            let of_interface = |event: &Event| event.what.of_interface().is_some_and(is_one);
            let mut all = self.kept.iter().enumerate().filter(|(_, event)| of_interface(event)).map(|(at, _)| at);
            let first = all.next();
            first.filter(|_| all.count() >= most)
        };
        let first = interface.and_then(|port| {
            first_of(MAX_OF_INTERFACE, &|of| of == port).or_else(|| first_of(MAX_OF_INTERFACES, &|_| true))
        });
        match first {
            Some(at) => _ = self.kept.remove(at),
            None if self.kept.len() > MAX_OF_USER => _ = self.kept.pop_front(),
            None => {}
        }
    }
}

impl EventLog {
    /// Adds an event of a user.
    pub(crate) fn add(&mut self, uid: u32, what: What) {
        self.add_at(SystemTime::now(), uid, what);
    }

    /// Adds an event that happened at this time.
    pub(crate) fn add_at(&mut self, at: SystemTime, uid: u32, what: What) {
        self.make_room(uid, &Subordinates::of_system());
        let time = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.count += 1;
        let events = self.users.entry(uid).or_default();
        events.count += 1;
        events.kept.push_back(Event {
            number: self.count,
            number_of_user: events.count,
            time_ms: time.as_millis() as u64,
            uid,
            what,
        });
        events.forget();
    }

    /// Forgets the events of another user but root, if this one has none yet and there are as many users as are kept:
    /// that with the oldest last event, among the subordinate users of one owner of which there are most. Readers that
    /// see all users miss these events.
    fn make_room(&mut self, uid: u32, subordinates: &Subordinates) {
        if self.users.contains_key(&uid) || self.users.len() < MAX_USERS {
            return;
        }
        let mut numbers = BTreeMap::from([(subordinates.owner(uid), 1)]);
        self.users.keys().for_each(|of| *numbers.entry(subordinates.owner(*of)).or_insert(0) += 1);
        let last = |events: &UserEvents| events.kept.back().map_or(0, |event| event.number);
        let others = self.users.iter().filter(|(of, _)| **of != 0);
        let quiet = others.min_by_key(|(of, events)| (Reverse(numbers.get(&subordinates.owner(**of))), last(events)));
        if let Some(quiet) = quiet.map(|(of, _)| *of) {
            self.users.remove(&quiet);
        }
    }

    /// Adds the event that a budget was reached, at most once a second: a user may try again and again.
    pub(crate) fn budget_reached(&mut self, uid: u32, reason: &str) {
        self.add_limited(uid, reason, 0, |reason| What::BudgetReached { reason });
    }

    /// Adds the event that requests wait; of this and the former at most one a second.
    pub(crate) fn requests_wait(&mut self, uid: u32, reason: &str) {
        self.add_limited(uid, reason, 0, |reason| What::RequestsWait { reason });
    }

    /// Adds the event that the policy refused something, at most once a second.
    pub(crate) fn policy_refused(&mut self, uid: u32, reason: &str) {
        self.add_limited(uid, reason, 1, |reason| What::PolicyRefused { reason });
    }

    fn add_limited(&mut self, uid: u32, reason: &str, kind: usize, what: fn(String) -> What) {
        let last = self.users.get(&uid).and_then(|events| events.refused[kind]);
        if last.is_none_or(|last| last.elapsed() >= Duration::from_secs(1)) {
            self.add(uid, what(reason.chars().take(MAX_REASON).collect()));
            self.users.entry(uid).or_default().refused[kind] = Some(Instant::now());
        }
    }

    /// Returns the events after number `after`, of a user or of all, the earliest first.
    pub(crate) fn json(&self, only: Option<u32>, after: u64) -> Result<String, Refusal> {
        let (count, number): (u64, fn(&Event) -> u64) = match only {
            Some(uid) => (self.users.get(&uid).map_or(0, |events| events.count), |event| event.number_of_user),
            None => (self.count, |event| event.number),
        };
        // The number of an earlier daemon, or of a user whose events were removed.
        let after = if after > count { 0 } else { after };
        let shown = self.users.iter().filter(|(uid, _)| only.is_none_or(|only| only == **uid));
        let mut events: Vec<&Event> = shown
            .flat_map(|(_, events)| events.kept.range(events.kept.partition_point(|event| number(event) <= after)..))
            .collect();
        events.sort_unstable_by_key(|event| event.number);
        let complete = events.len() <= MAX_OF_ANSWER;
        events.truncate(MAX_OF_ANSWER);
        let last = events.last().filter(|_| !complete).map_or(count, |event| number(event));
        let missed = last - after - events.len() as u64;
        json(&Answer { pid: process::pid(), last, missed, events })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(port: &str) -> What {
        What::Attached { port: port.into(), label: None }
    }

    /// Reads all events; returns the names of their ports, and how many were missed.
    fn read(log: &EventLog, only: Option<u32>, mut after: u64) -> (Vec<String>, u64) {
        let (mut ports, mut missed) = (Vec::new(), 0);
        loop {
            let answer: serde_json::Value = serde_json::from_str(&log.json(only, after).unwrap()).unwrap();
            let events = answer["events"].as_array().unwrap();
            assert!(events.len() <= MAX_OF_ANSWER);
            ports.extend(events.iter().filter_map(|event| event["port"].as_str()).map(str::to_owned));
            missed += answer["missed"].as_u64().unwrap();
            if events.is_empty() {
                return (ports, missed);
            }
            after = answer["last"].as_u64().unwrap();
        }
    }

    #[test]
    fn a_user_sees_its_own_events_and_what_it_missed() {
        let mut log = EventLog::default();
        for n in 0..MAX_OF_USER + 10 {
            log.add(1, opened(&n.to_string()));
        }
        log.add(2, opened("other"));
        assert_eq!(read(&log, Some(2), 0), (vec!["other".into()], 0));
        let (ports, missed) = read(&log, Some(1), 0);
        assert_eq!((ports.len(), &*ports[0], missed), (MAX_OF_USER, "10", 10));
        assert_eq!(read(&log, Some(1), 12).1, 0);
        let (ports, missed) = read(&log, None, 0);
        assert_eq!((ports.len(), missed, ports.last().map(String::as_str)), (MAX_OF_USER + 1, 10, Some("other")));
        assert_eq!(read(&log, Some(3), 0), (vec![], 0));
    }

    #[test]
    fn users_are_bounded_and_a_flood_of_one_takes_no_events_of_others() {
        let mut log = EventLog::default();
        log.add(0, opened("first"));
        (0..10 * MAX_OF_USER).for_each(|_| log.add(1, opened("flood")));
        assert_eq!(read(&log, Some(0), 0), (vec!["first".into()], 0));
        (0..MAX_USERS as u32).for_each(|uid| log.add(100 + uid, opened("many")));
        assert_eq!(log.users.len(), MAX_USERS);
        assert_eq!(read(&log, Some(0), 0), (vec!["first".into()], 0), "those of root stay");
        assert_eq!(read(&log, Some(1), 1), (vec![], 0), "its number is of the time before");
        let (ports, missed) = read(&log, None, 0);
        assert_eq!(ports.len() as u64 + missed, log.count);
    }

    #[test]
    fn events_of_subordinate_users_take_none_of_others() {
        let (mut log, subordinates) = (EventLog::default(), Subordinates::parse("1000:100000:1000", |_| None));
        let mut add = |uid, port: &str| {
            log.make_room(uid, &subordinates);
            log.add(uid, opened(port));
        };
        (0..MAX_USERS as u32 - 1).for_each(|uid| add(2000 + uid, "own"));
        // Of a tenant, with many numbers: of these one is kept.
        (0..1000).for_each(|n| add(100_000 + n, "flood"));
        add(1000, "flood");
        let (ports, _) = read(&log, None, 0);
        assert_eq!(ports.iter().filter(|port| *port == "own").count(), MAX_USERS - 1);
        assert_eq!(read(&log, Some(1000), 0).0, ["flood"]);
    }

    #[test]
    fn changes_of_interfaces_take_no_other_events() {
        let mut log = EventLog::default();
        log.add(0, opened("first"));
        log.add(0, What::LinkGone { port: "gone".into() });
        (0..10 * MAX_OF_USER).for_each(|_| log.add(0, What::LinkUp { port: "flaps".into() }));
        let (ports, missed) = read(&log, None, 0);
        assert_eq!((&ports[..2], ports.len()), (&["first".into(), "gone".into()][..], 2 + MAX_OF_INTERFACE));
        assert_eq!(ports.len() as u64 + missed, log.count);
        // Also if it has another name each time.
        for n in 0..10 * MAX_OF_USER {
            log.add(0, What::LinkRenamed { port: n.to_string(), was: "flaps".into() });
        }
        let (ports, missed) = read(&log, None, 0);
        assert_eq!((&*ports[0], ports.len()), ("first", 1 + MAX_OF_INTERFACES));
        assert_eq!(ports.len() as u64 + missed, log.count);
    }

    #[test]
    fn a_reached_budget_is_an_event_once_a_second() {
        let mut log = EventLog::default();
        (0..100).for_each(|_| log.budget_reached(1, &"x".repeat(10 * MAX_REASON)));
        assert_eq!(log.count, 1);
        assert!(log.json(None, 0).unwrap().len() < 2 * MAX_REASON);
    }
}

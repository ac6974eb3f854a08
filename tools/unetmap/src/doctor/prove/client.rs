// SPDX-License-Identifier: BSD-2-Clause
//! The client of a proof: a process that opens the sockets of both interfaces, as a daemon does, sends numbered frames
//! both ways, and looks at each byte of what arrives. It is a process of its own so that it can be killed at any
//! moment; the memory and its guards are those of the process that started it.

use std::io;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::end::{End, EndPlan};
use super::frames::{self, Arrived, Tag};

/// Frames under way in one direction at most: fewer than any ring of a kernel or of a device has room for, so that none
/// is lost unless something is wrong.
const WINDOW: u64 = 48;
/// How long an undisturbed frame may take.
const LATE: Duration = Duration::from_secs(10);
/// After how long frames of a disturbed round count as lost.
const LOST: Duration = Duration::from_millis(300);
/// Frames that arrive in a row before others count, and how long that may take.
const SETTLED: u64 = 32;
const SETTLING: Duration = Duration::from_secs(60);
const REPORT: Duration = Duration::from_millis(50);
/// For how long the XDP programs go on without this process.
const DEADLINE: Duration = Duration::from_secs(10);
/// How long links may take to come up after the program was attached.
const CARRIER: Duration = Duration::from_secs(30);
const IDLE: Duration = Duration::from_micros(100);

/// The task of a client.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Plan {
    pub(super) round: u32,
    /// Frames in each direction.
    pub(super) frames: u64,
    /// Nothing disturbs it: each frame must arrive.
    pub(super) undisturbed: bool,
    /// So many of them are sent before any is received, more than there are buffers.
    pub(super) flood: u64,
    pub(super) ends: [EndPlan; 2],
}

/// A client's messages, a line of JSON each.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Said {
    /// Frames sent and received so far.
    Progress { sent: u64, received: u64 },
    /// All is done.
    Done { sent: u64, received: u64 },
    /// The first difference, in a sentence.
    Difference(String),
    /// Why it cannot go on.
    Cannot(String),
}

/// Why a client ends early.
pub(super) enum Stop {
    Difference(String),
    Cannot(String),
}

impl From<io::Error> for Stop {
    fn from(e: io::Error) -> Stop {
        Stop::Cannot(e.to_string())
    }
}

fn say(said: &Said) {
    let line = serde_json::to_string(said).unwrap_or_default();
    // The process that started this one has ended if nobody listens.
    let _ = tool_common::write(&(line + "\n"));
}

/// Runs a client as `plan`, in JSON, says.
pub(super) fn run(plan: &str) {
    let done =
        serde_json::from_str::<Plan>(plan).map_err(|e| Stop::Cannot(e.to_string())).and_then(|plan| carry_out(&plan));
    match done {
        Ok((sent, received)) => say(&Said::Done { sent, received }),
        Err(Stop::Difference(what)) => say(&Said::Difference(what)),
        Err(Stop::Cannot(why)) => say(&Said::Cannot(why)),
    }
}

/// One direction's frames.
struct Direction {
    sent: u64,
    received: u64,
    /// Frames that count as lost, of earlier phases, and of this one.
    lost: u64,
    given_up: u64,
    arrived: Vec<bool>,
    /// When the last one arrived, or none was missing.
    last: Instant,
}

impl Direction {
    fn new() -> Direction {
        Direction { sent: 0, received: 0, lost: 0, given_up: 0, arrived: Vec::new(), last: Instant::now() }
    }

    fn missing(&self) -> u64 {
        (self.sent - self.received).saturating_sub(self.lost + self.given_up)
    }
}

/// A round.
struct Session<'a> {
    plan: &'a Plan,
    ends: [End; 2],
    /// From the first end, and from the second.
    ways: [Direction; 2],
    longest: usize,
    phase: Phase,
    /// Frames that belong to earlier phases, in each direction.
    before: u64,
}

/// A link may come up, go down once more and come up while the other end's device gets its program. So only frames
/// behind some that all arrived count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Frames are sent until [`SETTLED`] of them have arrived in both directions, none lost; or since this time.
    Settling(Instant),
    /// The flood: nothing is received before all is sent.
    Flooding,
    /// The rest, [`WINDOW`] frames at a time.
    Counting,
}

fn carry_out(plan: &Plan) -> Result<(u64, u64), Stop> {
    let mut session = Session::open(plan)?;
    let mut reported = None;
    loop {
        if reported.is_none_or(|at: Instant| at.elapsed() >= REPORT) {
            let [sent, received] = session.totals();
            say(&Said::Progress { sent, received });
            session.ends.iter().try_for_each(|end| end.extend(DEADLINE))?;
            reported = Some(Instant::now());
        }
        let mut moved = session.send()?;
        if session.phase != Phase::Flooding || session.ways.iter().all(|way| way.sent >= session.end()) {
            moved |= session.receive()?;
            session.check_missing()?;
            session.go_on()?;
        }
        if session.is_done() {
            let [sent, received] = session.totals();
            return Ok((sent, received));
        }
        if !moved {
            std::thread::sleep(IDLE);
        }
    }
}

impl<'a> Session<'a> {
    fn open(plan: &'a Plan) -> Result<Session<'a>, Stop> {
        let ends = [End::open(&plan.ends[0])?, End::open(&plan.ends[1])?];
        let start = Instant::now();
        // Some drivers negotiate the link again.
        while !(ends[0].has_carrier()? && ends[1].has_carrier()?) {
            if start.elapsed() > CARRIER {
                return Err(Stop::Cannot(format!("no carrier for {} s", CARRIER.as_secs())));
            }
            ends.iter().try_for_each(|end| end.extend(DEADLINE))?;
            std::thread::sleep(REPORT);
        }
        let longest = ends[0].longest().min(ends[1].longest());
        let ways = [Direction::new(), Direction::new()];
        Ok(Session { plan, ends, ways, longest, phase: Phase::Settling(Instant::now()), before: 0 })
    }

    fn totals(&self) -> [u64; 2] {
        [self.ways.iter().map(|way| way.sent).sum(), self.ways.iter().map(|way| way.received).sum()]
    }

    /// The number of the frame that the present phase does not send any more.
    fn end(&self) -> u64 {
        self.before
            + match self.phase {
                Phase::Settling(_) => SETTLED,
                Phase::Flooding => self.plan.flood,
                Phase::Counting => self.plan.frames,
            }
    }

    /// Begins the next phase, if nothing of this one is under way any more.
    fn go_on(&mut self) -> Result<(), Stop> {
        let is_over = self.ways.iter().all(|way| way.sent == self.end() && way.missing() == 0);
        if self.phase == Phase::Counting || !is_over || !self.ends.iter().all(End::is_idle) {
            return Ok(());
        }
        let lost: u64 = self.ways.iter_mut().map(|way| std::mem::take(&mut way.given_up)).sum();
        self.ways.iter_mut().for_each(|way| way.lost = way.sent - way.received);
        self.before = self.end();
        self.phase = match self.phase {
            Phase::Settling(since) if lost > 0 && since.elapsed() < SETTLING => Phase::Settling(since),
            Phase::Settling(_) if lost > 0 => {
                let what =
                    format!("not {SETTLED} frames in a row cross between the interfaces, for {} s", SETTLING.as_secs());
                return Err(Stop::Difference(what));
            }
            Phase::Settling(_) if self.plan.flood > 0 => Phase::Flooding,
            _ => Phase::Counting,
        };
        Ok(())
    }

    /// Sends what may be sent now, and takes back what was sent. Returns whether anything was done.
    fn send(&mut self) -> Result<bool, Stop> {
        let mut moved = false;
        for from in 0..2 {
            let to = self.ends[1 - from].mac();
            let (window, end) = (if self.phase == Phase::Flooding { u64::MAX } else { WINDOW }, self.end());
            let way = &mut self.ways[from];
            while way.sent < end && way.missing() < window {
                let tag = Tag { round: self.plan.round, from: from as u8, number: way.sent };
                if !self.ends[from].send(tag, to, self.longest)? {
                    break;
                }
                way.sent += 1;
                way.arrived.push(false);
                moved = true;
            }
            moved |= self.ends[from].complete()?;
        }
        Ok(moved)
    }

    fn receive(&mut self) -> Result<bool, Stop> {
        let mut moved = false;
        for at in 0..2 {
            while let Some(arrived) = self.ends[at].receive()? {
                moved = true;
                self.take(1 - at, arrived)?;
            }
        }
        Ok(moved)
    }

    /// Takes what arrived in the direction from end `from`.
    fn take(&mut self, from: usize, arrived: Arrived) -> Result<(), Stop> {
        let name = self.ends[1 - from].name();
        let Tag { round, number, from: sender } = match arrived {
            Arrived::Foreign => return Ok(()),
            Arrived::Damaged(what) => return Err(Stop::Difference(format!("received at {name}: {what}"))),
            Arrived::Frame(tag) => tag,
        };
        if round + 1 == self.plan.round && usize::from(sender) == from {
            // The client of that round was perhaps killed while its frames were under way.
            return Ok(());
        }
        let wrong =
            |what: &str| Err(Stop::Difference(format!("received at {name}: frame {number} of round {round} {what}")));
        if round != self.plan.round {
            return wrong(&format!("in round {}: a stale one", self.plan.round));
        }
        if usize::from(sender) != from {
            return wrong("which it has sent itself");
        }
        let way = &mut self.ways[from];
        match way.arrived.get_mut(number as usize) {
            Some(arrived) if number < way.sent && !*arrived => *arrived = true,
            Some(_) if number < way.sent => return wrong("for the second time: a stale one"),
            _ => return wrong("which was not sent yet"),
        }
        way.received += 1;
        if number < self.before {
            // It counted as lost.
            way.lost = way.lost.saturating_sub(1);
        }
        way.last = Instant::now();
        Ok(())
    }

    /// Gives up frames of a disturbed round that are late, and finds the first one of another round.
    fn check_missing(&mut self) -> Result<(), Stop> {
        let strict = self.plan.undisturbed && self.phase == Phase::Counting;
        for from in 0..2 {
            let way = &mut self.ways[from];
            match way.missing() {
                0 => way.last = Instant::now(),
                _ if strict && way.last.elapsed() > LATE => return Err(self.missing_frame(from)),
                missing if !strict && way.last.elapsed() > LOST => way.given_up += missing,
                _ => {}
            }
        }
        Ok(())
    }

    fn missing_frame(&self, from: usize) -> Stop {
        let counted = self.ways[from].arrived.iter().skip(self.before as usize);
        let number = self.before + counted.take_while(|arrived| **arrived).count() as u64;
        let (sender, receiver) = (self.ends[from].name(), self.ends[1 - from].name());
        let bytes = frames::length(number, self.longest);
        Stop::Difference(format!(
            "frame {number} of {bytes} bytes from {sender} did not arrive at {receiver} within {} s, though nothing disturbed \
             it; {}",
            LATE.as_secs(),
            self.ends[1 - from].counters()
        ))
    }

    fn is_done(&self) -> bool {
        let all = |way: &Direction| way.sent == self.end() && way.missing() == 0;
        self.phase == Phase::Counting && self.ways.iter().all(all) && self.ends.iter().all(End::is_idle)
    }
}

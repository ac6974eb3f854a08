// SPDX-License-Identifier: BSD-2-Clause
//! Frames that are looked at in operation, as drivers and their settings are not believed: are they those on the wire,
//! of at most the MTU, and with finished checksums? The XDP program looks (`look` in `crates/sys/bpf/xdp.c`), the
//! heartbeat asks for what it has found, and the control thread draws the conclusion:
//!
//! ```text
//! the port         goes on as it is; the reason is in its snapshot, the log, and the log of events
//! the next open    by way of a veth, where the kernel completes frames; by packet sockets before Linux 6.6, unless the
//!                  interface has a filter or `failure`, which need XDP; as before by the ways `zero-copy` and `packet`
//! forgotten        when root sets a way, or the interface has gone
//! ```
//! A peer on the wire can send frames that seem unfinished, too. It gets no more by that than a slower way, which is
//! right for all frames: behind a veth the kernel has finished what was not, so there it gets nothing.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use unetmap_sys::deadline::Faults;

use super::surveyed::NicKey;
use crate::privileged::Deadline;
use crate::threads::lock;
use crate::tuning::nic::{FAULTY_FRAMES, LOOK_INTERVAL};

/// The frames of an interface, as an XDP program looks at them.
pub(super) struct FrameWatch {
    pub(super) key: NicKey,
    deadline: Weak<Deadline>,
    mtu: AtomicU32,
    state: Mutex<State>,
}

struct State {
    due: Instant,
    /// The counts when the last frames in a row began.
    before: Option<Faults>,
}

/// A fault of frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    Merged,
    Unfinished,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fault::Merged => "frames arrived merged, longer than its MTU allows",
            Fault::Unfinished => "frames arrived with unfinished checksums",
        })
    }
}

/// Where a fault is told.
pub(super) type Report = Arc<dyn Fn(NicKey, Fault) + Send + Sync>;

/// A fault of an interface, by which it is opened in another way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Found {
    pub(super) why: String,
    /// Whether packet sockets are next.
    pub(super) by_packets: bool,
}

impl State {
    /// Judges the counts. A right frame seems unfinished once in 65536, so that several must be of a few frames.
    fn judge(&mut self, now: Faults) -> Option<Fault> {
        let before = *self.before.get_or_insert(now);
        if now.in_a_row {
            self.before = Some(now);
        }
        match () {
            () if now.merged.saturating_sub(before.merged) >= FAULTY_FRAMES => Some(Fault::Merged),
            () if now.unfinished.saturating_sub(before.unfinished) >= FAULTY_FRAMES => Some(Fault::Unfinished),
            () => None,
        }
    }
}

impl FrameWatch {
    pub(super) fn new(key: NicKey, deadline: &Arc<Deadline>, mtu: u32) -> Arc<FrameWatch> {
        let state = Mutex::new(State { due: Instant::now(), before: None });
        Arc::new(FrameWatch { key, deadline: Arc::downgrade(deadline), mtu: mtu.into(), state })
    }

    /// Has frames looked at by this MTU.
    pub(super) fn set_mtu(&self, mtu: u32) {
        self.mtu.store(mtu, Relaxed);
    }

    /// Asks for what the program has found, if that is due.
    pub(super) fn look(&self) -> Option<Fault> {
        let deadline = self.deadline.upgrade()?;
        let (mut state, now) = (lock(&self.state), Instant::now());
        if now < state.due {
            return None;
        }
        state.due = now + LOOK_INTERVAL;
        match deadline.look(self.mtu.load(Relaxed)) {
            Ok(faults) => state.judge(faults),
            // The program is detached, or an earlier version's.
            Err(e) => {
                tracing::debug!("the frames of an interface are not looked at: {e}");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_of_a_few_frames_count_and_chance_does_not() {
        let faults = |merged, unfinished, in_a_row| Faults { merged, unfinished, in_a_row };
        let mut state = State { due: Instant::now(), before: None };
        assert_eq!(state.judge(faults(7, 9, true)), None, "of earlier ports");
        assert_eq!(state.judge(faults(7, 8 + FAULTY_FRAMES, false)), None);
        assert_eq!(state.judge(faults(7, 8 + FAULTY_FRAMES, true)), None);
        assert_eq!(state.judge(faults(7, 9 + FAULTY_FRAMES, false)), None, "frames of another row");
        assert_eq!(state.judge(faults(7, 8 + 2 * FAULTY_FRAMES, false)), Some(Fault::Unfinished));
        assert_eq!(state.judge(faults(7 + FAULTY_FRAMES, 9, false)), Some(Fault::Merged));
    }
}

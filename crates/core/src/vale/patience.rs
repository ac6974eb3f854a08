//! What a thread does for clients before it drops their packets: it lets them run.
//!
//! A client that has no room, on a machine with few processors, often waits for the very one that the thread is on. A yield
//! hands it over within a session or control group, a nap beyond. While it naps the thread serves nobody; so it naps at most
//! half of the time, as if the scheduler had divided the processor between the two. Who says it is on the thread's processor,
//! and never wakes the thread, gains no more than that.

use std::cell::Cell;

use unetmap_sys::clock::now_ns;
use unetmap_sys::nap::this_cpu;

use super::port::Incoming;

/// See the module. Of one thread.
#[derive(Default)]
pub(super) struct Patience {
    /// What was tried since the batch began.
    tried: Cell<Tried>,
    /// No nap before this time, nanoseconds.
    not_before: Cell<u64>,
    /// The number of the port that was delivered to last, and the transmit ring it came from.
    last: Cell<Option<(u8, usize)>>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Tried {
    #[default]
    Nothing,
    Yield,
    All,
}

impl Patience {
    /// A batch begins: once in each, whoever is full, others may be let run.
    pub(super) fn begin(&self) {
        self.tried.set(Tried::Nothing);
    }

    /// Packets were delivered.
    pub(super) fn delivers(&self, port: u8, ring: usize) {
        self.last.set(Some((port, ring)));
    }

    /// Where the last delivery went.
    pub(super) fn last(&self) -> Option<(u8, usize)> {
        self.last.get()
    }

    /// A receiver has no room: whether it was given a chance to make some, so that it is worth another look.
    pub(super) fn give_way(&self, rx: &Incoming) -> bool {
        match self.tried.get() {
            Tried::Nothing if rx.worth_waiting() => {
                self.tried.set(Tried::Yield);
                std::thread::yield_now();
                true
            }
            Tried::Yield if rx.shares(this_cpu()) => {
                self.tried.set(Tried::All);
                self.nap(|| rx.nap())
            }
            _ => false,
        }
    }

    /// Naps, if that is not too much; whether it did.
    pub(super) fn nap(&self, nap: impl FnOnce()) -> bool {
        let start = now_ns();
        if start < self.not_before.get() {
            return false;
        }
        nap();
        let end = now_ns();
        self.not_before.set(end + end.saturating_sub(start));
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn naps_take_half_of_the_time_at_most() {
        let patience = Patience::default();
        let start = now_ns();
        let mut napped = 0;
        while now_ns() < start + 50_000_000 {
            patience.nap(|| {
                let begin = now_ns();
                std::thread::sleep(Duration::from_millis(2));
                napped += now_ns() - begin;
            });
        }
        assert!(napped > 0);
        // The last one's other half may be beyond the end.
        let all = patience.not_before.get().max(now_ns()) - start;
        assert!(2 * napped <= all, "{napped} of {all} ns");
    }
}

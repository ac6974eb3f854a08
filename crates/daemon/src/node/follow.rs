//! Who answers requests does so on the CPU of whoever makes them.
//!
//! A thread that waits for an answer leaves its CPU to the one that answers, if that is on the same one: two switches. On
//! another CPU it must be woken there, and wake the other one back, each time with an interrupt and out of an idle CPU's
//! sleep. The scheduler does choose the idle one, though. So while requests come fast, the thread that answers them stays
//! where they come from, which is looked up once in a [`WINDOW`]; it is free to run anywhere again when they do not.
//!
//! That holds as long as nobody else wants these CPUs. Else each switch between the two may let a third one run, for
//! milliseconds, and whoever is free finds a CPU sooner. So a thread that had to wait for its CPU is free for a [`PAUSE`].

use std::time::{Duration, Instant};

use unetmap_sys::process::{cpus_allowed, pin_to_cpu, run_on_cpus};
use unetmap_sys::thread::{RunDelay, cpu_of, run_delay};

/// How often is looked where the requests come from, at most.
const WINDOW: Duration = Duration::from_millis(1);
/// So many requests in a window, or in a longer time between two that are further apart, are fast.
const FAST: u32 = 16;

/// A thread that waits for longer each time, on the average of a window, shares its CPU with others than its program.
const CROWD: Duration = Duration::from_micros(100);
/// How long it then stays nowhere.
const PAUSE: Duration = Duration::from_millis(100);

/// Where the calling thread stays.
pub(super) struct Follow {
    /// When the window began, and requests in it.
    since: Instant,
    requests: u32,
    /// What it had waited for its CPU when the window began.
    waits: RunDelay,
    /// It stays nowhere until then.
    pause: Instant,
    home: Option<usize>,
    /// The CPUs that it could use before it stayed at one.
    free: Vec<usize>,
}

impl Follow {
    pub(super) fn new() -> Follow {
        let now = Instant::now();
        Follow { since: now, requests: 0, waits: RunDelay::default(), pause: now, home: None, free: Vec::new() }
    }

    /// The thread `tid` made a request.
    pub(super) fn asked_by(&mut self, tid: u32) {
        self.requests += 1;
        let now = Instant::now();
        if now - self.since < WINDOW {
            return;
        }
        let fast = self.requests >= FAST;
        (self.since, self.requests) = (now, 0);
        // A kernel that does not count them says nothing.
        let waits = run_delay().unwrap_or_default();
        if waits.mean_since(&self.waits) > CROWD {
            self.pause = now + PAUSE;
        }
        self.waits = waits;
        let follows = fast && now >= self.pause;
        self.stay(follows.then(|| cpu_of(tid).ok()).flatten());
    }

    /// Whether it stays at a CPU.
    pub(super) fn stays(&self) -> bool {
        self.home.is_some()
    }

    /// Stays at that CPU, if it may; `None`: nowhere.
    pub(super) fn stay(&mut self, at: Option<usize>) {
        if at == self.home {
            return;
        }
        let now = cpus_allowed();
        // What somebody else (taskset) chose meanwhile counts.
        if self.home.is_none_or(|home| now != [home]) {
            (self.free, self.home) = (now, None);
        }
        match at.filter(|cpu| self.free.contains(cpu)) {
            Some(cpu) if pin_to_cpu(cpu).is_ok() => self.home = Some(cpu),
            _ => {
                if self.home.take().is_some() {
                    let _ = run_on_cpus(&self.free);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stays_where_it_is_asked_to_and_may() {
        let all = cpus_allowed();
        let (first, last) = (all[0], *all.last().unwrap());
        let mut follow = Follow::new();
        follow.stay(Some(last));
        assert_eq!(cpus_allowed(), [last]);
        follow.stay(Some(first));
        assert_eq!(cpus_allowed(), [first]);
        follow.stay(None);
        assert_eq!(cpus_allowed(), all);
        // Somebody says that it is to be here.
        pin_to_cpu(last).unwrap();
        if first != last {
            follow.stay(Some(first));
            assert_eq!(cpus_allowed(), [last]);
        }
        follow.stay(Some(last));
        follow.stay(None);
        assert_eq!(cpus_allowed(), [last]);
        // And while it stays.
        follow.stay(Some(last));
        run_on_cpus(&all).unwrap();
        follow.stay(None);
        assert_eq!(cpus_allowed(), all);
    }

    #[test]
    fn who_asks_now_and_then_is_not_followed() {
        let all = cpus_allowed();
        let tid = std::fs::read_link("/proc/thread-self").unwrap();
        let tid = tid.file_name().unwrap().to_str().unwrap().parse().unwrap();
        let mut follow = Follow::new();
        for _ in 0..3 {
            std::thread::sleep(WINDOW);
            follow.asked_by(tid);
            assert_eq!(follow.home, None);
        }
        // Many before the window ends; then one after.
        follow.since = Instant::now() + WINDOW;
        for _ in 0..FAST {
            follow.asked_by(tid);
        }
        follow.since = Instant::now() - WINDOW;
        // The machine may be crowded.
        (follow.waits.count, follow.pause) = (u64::MAX, Instant::now());
        follow.asked_by(tid);
        assert!(follow.home.is_some_and(|home| cpus_allowed() == [home]));
        follow.since = Instant::now() - WINDOW;
        follow.asked_by(tid);
        assert_eq!(cpus_allowed(), all);
    }
}

// SPDX-License-Identifier: BSD-2-Clause
//! CPU affinity of the threads that answer requests: they run on the CPU of the program that makes the requests.
//!
//! If the answering thread is on the same CPU, the CPU goes to it when the program waits for the answer: two context
//! switches. On another CPU it must be woken there, and wake the program in turn, each time with an interrupt and out
//! of an idle CPU's sleep state. The scheduler prefers the idle CPU, though. So while requests come fast, the thread is
//! pinned to the CPU where they come from, which is looked up once per [`LOOKUP_INTERVAL`]. Otherwise it may run
//! anywhere. It stays pinned also if it has to wait for its CPU, as other programs use that: left to the scheduler it
//! gets none sooner (note 160).

use std::time::Instant;

use unetmap_sys::process::{cpus_allowed, pin_to_cpu, run_on_cpus};
use unetmap_sys::thread::cpu_of;

use crate::tuning::node::{FAST_REQUESTS, LOOKUP_INTERVAL};

/// The CPU affinity of the calling thread.
pub(super) struct RequesterAffinity {
    /// Start of the interval, and requests in it.
    since: Instant,
    requests: u32,
    home: Option<usize>,
    /// The CPUs that it could use before it was pinned.
    free: Vec<usize>,
}

impl RequesterAffinity {
    pub(super) fn new() -> RequesterAffinity {
        RequesterAffinity { since: Instant::now(), requests: 0, home: None, free: Vec::new() }
    }

    /// Records a request of the thread `tid`.
    pub(super) fn request_from(&mut self, tid: u32) {
        self.requests += 1;
        let now = Instant::now();
        if now - self.since < LOOKUP_INTERVAL {
            return;
        }
        let fast = self.requests >= FAST_REQUESTS;
        (self.since, self.requests) = (now, 0);
        self.pin(fast.then(|| cpu_of(tid).ok()).flatten());
    }

    /// Whether it is pinned to a CPU.
    pub(super) fn is_pinned(&self) -> bool {
        self.home.is_some()
    }

    /// Pins the thread to that CPU, if that is allowed; `None`: unpins it.
    pub(super) fn pin(&mut self, at: Option<usize>) {
        if at == self.home {
            return;
        }
        let now = cpus_allowed();
        // An affinity that was set from outside meanwhile (taskset) takes precedence.
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
    fn a_thread_is_pinned_where_it_is_allowed_to_run() {
        let all = cpus_allowed();
        let (first, last) = (all[0], *all.last().unwrap());
        let mut affinity = RequesterAffinity::new();
        affinity.pin(Some(last));
        assert_eq!(cpus_allowed(), [last]);
        affinity.pin(Some(first));
        assert_eq!(cpus_allowed(), [first]);
        affinity.pin(None);
        assert_eq!(cpus_allowed(), all);
        // The affinity is set from outside.
        pin_to_cpu(last).unwrap();
        if first != last {
            affinity.pin(Some(first));
            assert_eq!(cpus_allowed(), [last]);
        }
        affinity.pin(Some(last));
        affinity.pin(None);
        assert_eq!(cpus_allowed(), [last]);
        // The same while it is pinned.
        affinity.pin(Some(last));
        run_on_cpus(&all).unwrap();
        affinity.pin(None);
        assert_eq!(cpus_allowed(), all);
    }

    #[test]
    fn only_fast_requests_pin_the_thread() {
        let all = cpus_allowed();
        let tid = std::fs::read_link("/proc/thread-self").unwrap();
        let tid = tid.file_name().unwrap().to_str().unwrap().parse().unwrap();
        let mut affinity = RequesterAffinity::new();
        for _ in 0..3 {
            std::thread::sleep(LOOKUP_INTERVAL);
            affinity.request_from(tid);
            assert_eq!(affinity.home, None);
        }
        // Many requests before the interval ends; then one after.
        affinity.since = Instant::now() + LOOKUP_INTERVAL;
        for _ in 0..FAST_REQUESTS {
            affinity.request_from(tid);
        }
        affinity.since = Instant::now() - LOOKUP_INTERVAL;
        affinity.request_from(tid);
        assert!(affinity.home.is_some_and(|home| cpus_allowed() == [home]));
        affinity.since = Instant::now() - LOOKUP_INTERVAL;
        affinity.request_from(tid);
        assert_eq!(cpus_allowed(), all);
    }
}

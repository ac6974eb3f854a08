// SPDX-License-Identifier: BSD-2-Clause
//! A publisher without a CPU fence and a sleeper that calls `membarrier` cannot both miss the other's store.

#![forbid(unsafe_code)]

use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, compiler_fence, fence};
use std::time::{Duration, Instant};

use assume::{Failure, expect, fork, run_check, word};
use unetmap_sys::{Mapping, barrier, memfd, process};

const ROUNDS: u32 = 20_000;
const LIMIT: Duration = Duration::from_secs(20);
/// In place of the number of a round: the publisher stops.
const STOP: u32 = u32::MAX;

fn main() -> ExitCode {
    run_check("membarrier (global, expedited) orders a store and a load of another process that is registered", || {
        if process::cpus_allowed().len() < 2 {
            return Err(Failure::Untestable("needs two CPUs".into()));
        }
        if !barrier::register() || barrier::all_cpus().is_err() {
            return Err(Failure::Untestable("the kernel or a filter refuses membarrier".into()));
        }
        let fd = memfd::create_sealed("assume", 4096)?;
        let map = Mapping::new(fd.as_fd(), 4096)?;
        // Each word on a cache line of its own.
        let [go, done, published, requested, seen] = [0, 128, 256, 384, 512].map(|at| word(&map, at));
        let publisher = fork(|| {
            let registered = barrier::register();
            for round in 1..=ROUNDS {
                let now = reaches(go, round);
                if now == STOP || !registered {
                    done.store(STOP, Release);
                    return 1;
                }
                published.store(1, Relaxed);
                compiler_fence(SeqCst);
                seen.store(requested.load(Relaxed), Relaxed);
                done.store(round, Release);
            }
            0
        })?;
        let mut missed = 0;
        for round in 1..=ROUNDS {
            go.store(round, Release);
            requested.store(1, Relaxed);
            fence(SeqCst);
            barrier::all_cpus()?;
            let observed = published.load(Relaxed);
            if reaches(done, round) == STOP {
                return Err(Failure::Untestable("the publisher has stopped".into()));
            }
            missed += u32::from(observed == 0 && seen.load(Relaxed) == 0);
            published.store(0, Relaxed);
            requested.store(0, Relaxed);
        }
        go.store(STOP, Release);
        publisher.wait()?;
        expect(missed == 0, format_args!("both processes missed the other's store in {missed} of {ROUNDS} rounds"))
    })
}

/// Waits until `word` is `round` or STOP and returns it; returns STOP after [`LIMIT`].
fn reaches(word: &AtomicU32, round: u32) -> u32 {
    let start = Instant::now();
    for tries in 1_u32.. {
        let now = word.load(Acquire);
        if now == round || now == STOP {
            return now;
        }
        if tries.is_multiple_of(1024) {
            std::thread::yield_now();
            if start.elapsed() > LIMIT {
                break;
            }
        }
        std::hint::spin_loop();
    }
    STOP
}

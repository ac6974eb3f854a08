// SPDX-License-Identifier: BSD-2-Clause
//! Clocks and short pauses.

use rustix::time::{ClockId, clock_gettime};

/// Returns nanoseconds of `CLOCK_MONOTONIC`: the same clock in every process of this machine, never goes back.
#[inline]
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // Neither part is ever negative on this clock.
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// Returns wall clock time as `(seconds since 1970, microseconds 0..1_000_000)`, the content of a `struct timeval`.
#[inline]
pub fn wall_us() -> (i64, i64) {
    let now = clock_gettime(ClockId::Realtime);
    (now.tv_sec, now.tv_nsec / 1000)
}

/// Returns nanoseconds of the wall clock since 1970.
#[inline]
pub fn wall_ns() -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    now.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec.cast_unsigned())
}

/// Signals the core that this is a spin loop; costs tens of cycles.
#[inline]
pub fn spin_hint() {
    std::hint::spin_loop();
}

/// Waits until earlier loads have completed, some ten cycles. A loop that polls memory which another core is about to
/// write then does not speculate ahead, and has nothing to roll back when the write arrives.
#[inline(always)]
pub fn short_pause() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: K8: lfence needs SSE2, which every x86-64 processor has.
    unsafe {
        std::arch::x86_64::_mm_lfence()
    };
    #[cfg(not(target_arch = "x86_64"))]
    spin_hint();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn monotonic_time_does_not_go_back() {
        let mut last = now_ns();
        assert!(last > 0);
        for _ in 0..1000 {
            let now = now_ns();
            assert!(now >= last);
            last = now;
        }
    }

    #[test]
    fn wall_time_is_a_timeval() {
        let (sec, usec) = wall_us();
        let std = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
        assert!((0..1_000_000).contains(&usec));
        // An hour of slack: the test checks the clock and the unit, not the accuracy.
        assert!(sec.unsigned_abs().abs_diff(std) < 3600);
    }
}

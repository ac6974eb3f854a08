// SPDX-License-Identifier: BSD-2-Clause
//! Constants of this crate that were chosen by measurement or estimate. Layout constants stay where they are used.

#[cfg(not(loom))]
use std::time::Duration;

/// Packets. `copy_run` and `copy_list` prefetch the buffers of the packet that is this far ahead of the one being
/// copied.
///
/// Bounds: 1 up to the slots of a ring. Measured only as a part of copying in runs (decision 26: 45 Mpps packet by
/// packet, 68 Mpps in runs, 60 B).
#[cfg(target_arch = "x86_64")]
pub(crate) const COPY_PREFETCH_PACKETS: u32 = 8;

/// Packets. `swap_run` prefetches the header of the packet that is this far ahead. The sender, on another core, may
/// just have written it, so the line may come from that core's cache.
///
/// Bounds: 1 up to the slots of a ring. A swap takes less time than a copy, so the distance in packets is longer than
/// [`COPY_PREFETCH_PACKETS`]. Measured only as a part of the swap (decision 42).
pub(crate) const SWAP_PREFETCH_PACKETS: u32 = 32;

/// Spin hints (tens of cycles each) between the request of a futex waiter whose peer may run on another CPU and its
/// last check of the position: the time that a store takes to become visible on another core.
///
/// Bounds: any. With too few hints wake-ups are lost, each of which costs the wait's time limit of 5 ms. Measured only
/// as a part of the futex wait (decisions 37 and 38).
#[cfg(not(loom))]
pub(crate) const STORE_PROPAGATION_SPINS: u32 = 8;

/// Spin hints, about 50 us: the time that a thread waits for a biased thread to leave its sync. After it that thread
/// has probably lost its CPU; the ring is skipped, like any ring that another thread syncs.
///
/// Bounds: longer than a sync, shorter than a time slice of the scheduler. The wait happens once for each ring
/// (decision 18).
#[cfg(not(loom))]
pub(crate) const BIAS_EXIT_SPINS: u32 = 1500;

/// Microseconds that a sleeper waits where the kernel refuses `membarrier`. By then every store that was in a core's
/// store buffer has reached the memory (decision 4).
///
/// Bounds: above the time that a store buffer takes to drain. An estimate, not measured.
#[cfg(not(loom))]
pub(crate) const STORE_DRAIN_US: u64 = 50;

/// How long to try to lock a ring's list of mirror rings. A holder needs only the time to copy a pointer; but a child
/// that was forked while another thread held the lock finds it locked for ever. Not measured.
#[cfg(not(loom))]
pub(crate) const MIRROR_LOCK_LIMIT: Duration = Duration::from_millis(200);

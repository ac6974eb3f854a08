// SPDX-License-Identifier: BSD-2-Clause
//! The constants that tune the switch: unit, purpose, bounds, and how each was measured.
//!
//! "Measured" names the note (docs/notebook) with the figures. Most figures are for a mechanism as a whole, with
//! and without it; where no figure for the value itself is recorded, the text says so.

use std::time::Duration;

use unetmap_sys::futex::WAIT_LIMIT;

// --- Batches and how their packets are forwarded ---

/// Slots. A batch has this many at most.
///
/// Bounds: a power of two above `forward::MAX_FRAGS`, so that a batch holds a packet with too many fragments; the
/// flow caches, lists and staging are sized by it. Measured: in the fan-out benchmark batches of 256, 128 and 64
/// packets cost 80, 96 and 92 cycles a packet, 512 some 75 (decision 54).
pub const BATCH_SLOTS: usize = 512;

/// Packets. A same-destination run that just began must have this many so that the rest of the batch is tried as runs
/// too; with fewer the rest goes by fan-out or packet by packet.
///
/// Bounds: 1 to [`BATCH_SLOTS`]. Measured: runs as a whole, 45 to 68 Mpps with 60 B (decision 26); not this value.
pub const MIN_RUN_PACKETS: u32 = 8;

/// Slots. Packet headers are prefetched this far ahead of the packet that is being decided (fan-out, packet by packet).
///
/// Bounds: 1 up to the slots of a ring. Measured on AMD's processors only: 16 or 24, or no prefetch at all, do not
/// differ from 8 beyond the noise (decision 65).
pub const HEADER_PREFETCH_SLOTS: u32 = 8;

/// Slots. The entries of a large MAC table are prefetched this far ahead of the packet whose addresses they have
/// (fan-out).
///
/// Bounds: 1 up to [`HEADER_PREFETCH_SLOTS`], since the addresses are in the header.
pub const ENTRY_PREFETCH_SLOTS: u32 = 4;

/// Bytes. Slots with fewer get no recently used receive buffers: with 60 B packets, one cache line each, that costs
/// more than it saves.
///
/// Bounds: above 64. Measured: 512 B and 1500 B packets with and without the exchange (decision 141); not this value.
pub(crate) const RECENT_BUFFER_BYTES: u32 = 512;
/// Slots. Receive buffers are prefetched for writing this far ahead of the packet that is being copied (packet by
/// packet).
///
/// Bounds: 1 up to the slots of a ring. Not measured.
pub const BUFFER_PREFETCH_SLOTS: u32 = 8;

/// Bytes of staging memory for policed packets that a thread keeps from one batch to the next.
///
/// Bounds: any; less costs allocations, more memory for each thread. Not measured.
pub const STAGING_KEEP_BYTES: usize = 4 << 20;

/// Nanoseconds for each full port. The clients' positions are compared after this time for each of them.
///
/// Bounds: comparing takes some 3 ns for each port, so it has a twentieth of the time, however many there are; flooded
/// packets pass a port whose client has read by for this time, 16 us with 252 full ports (decision 115).
pub const FULL_PORT_COMPARE_NS: u64 = 64;

/// Nanoseconds after which each full port's counter gets what the port missed, while packets flow.
///
/// Bounds: counting takes some 10 ns for each port, so a four-hundredth of the time with 252; the counters are behind
/// by this time at most, and a futex wait (decision 115).
pub const FULL_PORT_COUNT_NS: u64 = 1_000_000;

// --- Policy ---

/// Instructions of the filters of all ports of one switch together.
///
/// Bounds: 1 and more; bounds the cost of a packet that is flooded to all ports to about 20 us (an estimate).
pub const MAX_FILTER_INSNS: usize = 16384;

/// Instructions that the filters may run for one batch, about: a switch with more of them gets smaller batches.
///
/// Bounds: [`MAX_FILTER_INSNS`] and more. With [`MAX_FILTER_INSNS`] a batch has 65 slots and costs one or two
/// milliseconds (decision 40).
pub const BATCH_INSNS: usize = 1 << 20;

/// Burst of a rate limit: a port may send at once what its limit allows in this time (decision 40). Not measured.
pub const RATE_BURST: Duration = Duration::from_millis(100);

// --- Receivers without room ---

/// Waits for a receiver without room, in a row, in which it reads nothing. After that its packets are dropped without a
/// wait until it reads again.
///
/// Bounds: 1 and more. Measured: waiting as a whole, by yielding the CPU, 0.4 to 45 Mpps delivered, with other
/// optimisations (decision 25); not this value.
pub const MAX_FUTILE_WAITS: u32 = 64;

/// Weight, in [`MAX_FUTILE_WAITS`], of one futex wait, busy-wait or yield that was done and in which the receiver read
/// nothing: four use up all.
///
/// Bounds: 1 to [`MAX_FUTILE_WAITS`]. Not measured.
pub const FUTILE_WAIT_WEIGHT: u32 = 16;

/// Nanoseconds that a receiver on another CPU is busy-waited for.
///
/// Bounds: such a receiver is delayed for 20 to 100 us by a timer or by another program (a record of the scheduler's
/// events, decision 38). Not measured by itself.
pub const BUSY_WAIT_NS: u64 = 100_000;

/// Nanoseconds of work that pay for a nanosecond of waiting on the thread's own CPU: at most half of the time is
/// waited, as if the scheduler had shared the CPU between the two.
///
/// Bounds: 0 and more; at most 1 / (1 + this) of the time is waited (decisions 37 and 38).
pub const SAME_CPU_WAIT_COST: i64 = 1;

/// The same for a receiver on another CPU: at most an eighth of the time is waited (decision 38).
pub const OTHER_CPU_WAIT_COST: i64 = 7;

/// Nanoseconds of work that are saved up for waiting, at most: one futex wait, 5 ms (decision 38).
pub const MAX_WAIT_BUDGET_NS: i64 = WAIT_LIMIT.as_nanos() as i64;

/// 1 / this is the part of a ring that must have been free, when the receiver's position was last read without a wait
/// before, so that the receiver is busy-waited for: it keeps up (decision 38). Not measured by itself.
pub const KEEPS_UP_RING_SHARE: u32 = 4;

// --- Wake-ups ---

/// Slots. A batch of this many is part of a stream, and wake-ups of receivers that sleep on another CPU are deferred.
///
/// Bounds: 1 to [`BATCH_SLOTS`]. Waking such a receiver takes 8 us, and 30 us and more on a busy host. Measured:
/// deferred wake-ups as a whole, one sender to four receivers, pairs of runs: 8.8 to 24.5, 15.0 to 12.9, 12.1 to
/// 21.9, 3.8 to 8.2, 19.2 to 24.7 and 11.0 to 13.1 Mpps (decision 38); not this value.
pub const STREAM_BATCH_SLOTS: u32 = 256;

/// 1 / this is the part of a ring that is filled when a deferred wake-up becomes due (decision 38). Not measured by
/// itself.
pub const DEFER_WAKEUP_RING_SHARE: u32 = 4;

/// Nanoseconds that a wake-up may be deferred.
///
/// Bounds: above the time that filling a ring takes, 23 us for 1024 slots at 45 Mpps (decision 38). Not measured by
/// itself.
pub const MAX_WAKEUP_DELAY_NS: u64 = 50_000;

/// Wake-ups that may be deferred at a time (decision 38).
///
/// Bounds: small, since each is searched for. Not measured.
pub const MAX_DEFERRED_WAKEUPS: usize = 16;

// --- Yielding to clients, and replies ---

/// Replies that may fail to come in a row before the thread polls for replies only seldom.
///
/// Measured: polling for replies as a whole, an awake round trip takes 0.65 to 0.97 of the time without (decision 38);
/// not this value.
pub const MAX_MISSED_REPLIES: u32 = 4;

/// After [`MAX_MISSED_REPLIES`] the thread polls for a reply at one of this many opportunities (decision 38).
pub const REPLY_RETRY_INTERVAL: u32 = 16;

/// Ports that the thread remembers as having sent or received last; it yields the CPU to clients of these only.
///
/// Bounds: small, since they are searched with each batch and delivery. Not measured.
pub const RECENT_PORTS: usize = 8;

/// Times in a row that the CPU is yielded to a client that then neither sends nor reads (decision 38). Not measured by
/// itself.
pub const MAX_FUTILE_YIELDS: u32 = 4;

// --- Receive buffer prefault ---

/// Slots whose buffers are prefaulted with one call, which takes 30 to 100 us: 64 KiB with buffers of 2 KiB, as much as
/// the kernel maps around a read fault.
///
/// Bounds: 2 up to the slots of a ring. Measured: prefaulting as a whole, page faults for each sleeping round trip
/// 2.1 to 0.2; awake round trip 13.0 to 9.9 us, asleep 58.6 to 51.0 us and 56.1 to 46.7 us (decision 51); not this
/// value.
pub const PREFAULT_SLOTS: u32 = 32;

/// Bytes of a buffer that is prefaulted, at most: of a larger one a packet may need only a small part (decision 51).
pub const PREFAULT_MAX_BUF: u32 = 4096;

// --- The worker's loop ---

/// Sleep of a thread that has no descriptor or memory left to wait with.
///
/// Bounds: it is the longest delay of a packet in that state.
pub const FALLBACK_SLEEP: Duration = Duration::from_millis(1);

/// Passes over the poll set without work before the worker may yield the CPU to a client. At least 1. Not measured.
pub const PASSES_BEFORE_YIELD: u32 = 4;

/// Further passes, each after a spin hint, before the worker yields the CPU to any task or stops polling for a reply: a
/// microsecond or more, of which a reply takes half (decision 38). Not measured by itself.
pub const EXTRA_PASSES: u32 = 32;

/// Rings of one thread up to which each ring, idle or not, is a word of its futex wait. With more, idle rings notify a
/// doorbell instead.
///
/// Bounds: below the words that a futex wait may have. Each word costs 0.2 us; a wait takes 8 us with one word, 20 us
/// with 66, 33 us with 128 (decision 50).
pub const FUTEX_WAIT_RINGS: usize = 8;

/// How long the daemon waits for a batch that is being forwarded before it does without a pause.
/// Bounds: above the time of a batch, its waits for receivers, and that for which a worker is preempted.
pub const PAUSE_LIMIT: Duration = Duration::from_secs(1);
/// How often it looks whether the batch is done.
pub const PAUSE_POLL: Duration = Duration::from_micros(20);

// --- Poll set: which rings a pass polls ---

/// Nanoseconds between two passes over all rings while some rings are busy.
///
/// Bounds: the first packet of an idle ring waits that long. Measured: the poll set as a whole, throughput with 64 idle
/// ports by that without: 0.76 to 1.01 before and 0.90 to 1.16 after (decision 50); not this value.
pub const FULL_PASS_INTERVAL_NS: u64 = 50_000;

/// Slots that are moved before the clock is read: some 10 us with small packets (decision 50). Not measured by itself.
pub const CLOCK_READ_SLOTS: u32 = 1024;

/// Passes before the clock is read, and empty passes in a row before all rings are polled (decision 50). Not measured
/// by itself.
pub const CLOCK_READ_PASSES: u32 = 8;

/// Idle rings up to which all rings are polled instead of reading the clock: polling so few costs no more. Not
/// measured.
pub const FEW_IDLE_RINGS: usize = 4;

/// Nanoseconds without a new slot after which a ring is idle.
///
/// Bounds: above the interval of a slow sender, 1 ms at 1000 packets per second: the first packet of an idle ring waits
/// for a full pass (decision 50). Not measured by itself.
pub const IDLE_AFTER_NS: u64 = 5_000_000;

/// Nanoseconds without a new slot after which a ring notifies its doorbell instead of ending a futex wait: in this time
/// its word costs less than arming the doorbell (decision 50). Above [`IDLE_AFTER_NS`]. Not measured by itself.
pub const DOORBELL_AFTER_NS: u64 = 10_000_000;

// --- Many senders ---

/// Busy rings above which a worker naps after a short sleep.
///
/// Bounds: at least those of a few programs that exchange requests and replies: each of their packets would wait.
/// Decision 72.
pub const NAP_RINGS: usize = 8;

/// A sleep is short if it ends sooner.
///
/// Bounds: above [`NAP`](unetmap_sys::wait::NAP) with the kernel's timer slack, so that the next one finds packets
/// (decision 72).
pub const SHORT_SLEEP: Duration = Duration::from_micros(200);

// --- Samples ---

/// Batches between two samples of the latency of a switch.
///
/// Bounds: a sample costs some 100 ns, a batch of one packet some 300: below one in a hundred of that. Enough for a
/// histogram: a thread with a batch in 10 us begins 700 samples in a second.
pub const LATENCY_BATCHES: u32 = 128;

// --- Scheduling policy ---

/// Slots taken between two yields that make the turn a large one: moving them costs as much as the context switch,
/// 5.2 us there and back.
///
/// Measured: `SCHED_BATCH` after large turns as a whole, 60 B at full speed 55 and 59 to 77 Mpps, all on one core 39
/// and 41 to 48 to 58, four receivers 4.8 and 4.1 to 12 to 19 (decision 38); not this value.
pub const LARGE_TURN_SLOTS: u32 = 256;

/// Slots. A turn with fewer is small: it may be a request whose reply comes soon (decision 38). Not measured by itself.
pub const SMALL_TURN_SLOTS: u32 = 32;

/// Large turns in a row after which the thread changes to `SCHED_BATCH` (decision 38). Not measured by itself.
pub const STREAM_TURNS: u32 = 16;

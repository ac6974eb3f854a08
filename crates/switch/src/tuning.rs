//! The constants that tune the switch. "Measured" names the decision that records figures; constants without it were
//! chosen by reasoning, and no measurement of the value itself is recorded.

use std::time::Duration;

use unetmap_sys::futex::WAIT_LIMIT;

// --- Batches and how their packets are forwarded ---

/// Slots of a batch at most. Power of two, above `forward::MAX_FRAGS`, so that a batch holds a packet with
/// too many fragments.
///
/// Measured: batches of 256, 128 and 64 packets cost 80, 96 and 92 cycles a packet in the fan-out benchmark, 512 some
/// 75 (decision 54).
pub const BATCH_SLOTS: usize = 512;

/// Packets that a same-destination run must have so that the rest of the batch is tried as runs too; with fewer the
/// rest goes packet by packet.
///
/// Measured: same-destination runs as such, 45 to 68 Mpps (decision 26); not this value.
pub const MIN_RUN_PACKETS: u32 = 8;

/// Distance, in slots, at which packet headers are prefetched before the packets are decided one by one.
///
/// Measured: 16 or 24, or no prefetch at all, do not differ from 8 beyond the noise (decision 54).
pub const HEADER_PREFETCH_SLOTS: u32 = 8;

/// Distance, in slots, at which the receive buffers of packets that are copied one by one are prefetched for writing.
pub const BUFFER_PREFETCH_SLOTS: u32 = 8;

/// Bytes of staging memory for policed packets that a thread keeps from one batch to the next.
pub const STAGING_KEEP_BYTES: usize = 4 << 20;

/// Frames that one packet may be segmented into: about what the longest packet becomes with the smallest segments that
/// IPv4 has to carry. More would delay other ports: each frame costs a checksum at each port that has no virtio-net
/// header (decision 25).
pub const MAX_SEGMENTS: usize = 128;

// --- Policy ---

/// Filter instructions of all ports of one switch together: bounds the cost of a packet to all ports to about 20 us.
pub const MAX_FILTER_INSNS: usize = 16384;

/// Filter instructions that one batch may cost, about. Switches with more instructions get smaller batches: with
/// [`MAX_FILTER_INSNS`] a batch has 65 slots and costs one or two milliseconds (decision 40).
pub const BATCH_INSNS: usize = 1 << 20;

/// Burst of a rate limit: a port may send at once what its limit allows in this time.
pub const RATE_BURST: Duration = Duration::from_millis(100);

// --- Receivers without room, and wake-ups ---

/// Times that a receiver without room is waited for, in a row, without reading anything. After that its packets are
/// dropped without a wait until it reads again (decision 25).
pub const MAX_FUTILE_WAITS: u32 = 64;

/// How many [`MAX_FUTILE_WAITS`] one futex wait or busy-wait counts for in which the receiver read nothing: four of
/// them use up all.
pub const FUTILE_WAIT_WEIGHT: u32 = 16;

/// Nanoseconds that a receiver on another CPU is busy-waited for. Such a receiver is delayed there for 20 to 100 us
/// by a timer or by another program (decision 38).
pub const BUSY_WAIT_NS: u64 = 100_000;

/// Nanoseconds of work that a nanosecond of waiting on the thread's own CPU costs: at most half of the time is waited,
/// as if the scheduler had shared the CPU between the two.
pub const SAME_CPU_WAIT_COST: i64 = 1;

/// The same for a receiver on another CPU: at most an eighth of the time is waited.
pub const OTHER_CPU_WAIT_COST: i64 = 7;

/// Nanoseconds of work that are saved up for waiting, at most: one futex wait.
pub const MAX_WAIT_BUDGET_NS: i64 = WAIT_LIMIT.as_nanos() as i64;

/// A receiver whose ring is filled by less than 1 / this may have its wake-up deferred in a stream (decision 38).
pub const DEFER_WAKEUP_RING_SHARE: u32 = 4;

/// A receiver keeps up if at least 1 / this of its ring was free when it was read last.
pub const KEEPS_UP_RING_SHARE: u32 = 4;

/// Nanoseconds that a wake-up may be deferred: what filling a ring takes, and more (decision 38).
pub const MAX_WAKEUP_DELAY_NS: u64 = 50_000;

/// Wake-ups that may be deferred at a time.
pub const MAX_DEFERRED_WAKEUPS: usize = 16;

/// Slots of a batch that is treated as part of a stream, so that wake-ups of sleeping receivers are deferred. Waking a
/// receiver on another CPU takes 8 us, as long as moving a thousand packets, and 30 us and more on a busy host.
///
/// Measured: deferred wake-ups, four receivers of one sender: 17.6 to 24.5, 12.1 to 21.9 Mpps; 15.0 to 12.9 and 19.2 to
/// 24.7 in other runs (decision 38); not this value.
pub const STREAM_BATCH_SLOTS: u32 = 256;

/// Replies that may fail to come in a row before the thread polls for replies only seldom.
///
/// Measured: polling for replies, awake round trip 0.65 to 0.97 of the time without (decision 38).
pub const MAX_MISSED_REPLIES: u32 = 4;

/// After [`MAX_MISSED_REPLIES`], one of this many opportunities is polled for a reply.
pub const REPLY_RETRY_INTERVAL: u32 = 16;

/// Ports that the thread remembers as having sent or received last; the CPU is yielded to clients of these.
pub const RECENT_PORTS: usize = 8;

/// Times in a row that the CPU is yielded to a client that then neither sends nor reads.
pub const MAX_FUTILE_YIELDS: u32 = 4;

// --- Receive buffer prefault ---

/// Slots whose buffers are prefaulted with one call: 64 KiB with buffers of 2 KiB, as much as the kernel maps around a
/// read fault.
///
/// Measured: page faults per sleeping round trip 2.1 to 0.2, awake round trip 13.0 to 9.9 us, asleep 58.6 to 51.0 us
/// and 56.1 to 46.7 us (decision 51).
pub const PREFAULT_SLOTS: u32 = 32;

/// Bytes of a buffer that is prefaulted, at most: of a larger one a packet may need only a small part.
pub const PREFAULT_MAX_BUF: u32 = 4096;

// --- The worker's loop ---

/// Time that a worker polls without work before it sleeps.
pub const IDLE_POLL_TIME: Duration = Duration::from_micros(50);

/// Sleep of a thread that has no descriptor or memory left to wait with; upper bound of the delay of a packet then.
pub const FALLBACK_SLEEP: Duration = Duration::from_millis(1);

/// Passes over the poll set without work before the worker may yield the CPU to a client.
pub const PASSES_BEFORE_YIELD: u32 = 4;

/// Further passes, each after a spin hint, before the worker yields the CPU to any task or stops waiting for a reply: a
/// microsecond or more.
pub const EXTRA_PASSES: u32 = 32;

/// Rings of one thread up to which each is one word of the worker's futex wait, idle or not. With more, idle rings
/// notify a doorbell instead: each word of a futex wait costs 0.2 us (decision 50).
pub const FUTEX_WAIT_RINGS: usize = 8;

/// Longest time that the daemon waits for a worker to use a new configuration.
pub const QUIESCENT_TIMEOUT: Duration = Duration::from_secs(5);

// --- Poll set: which rings a pass polls ---

/// Nanoseconds between two passes over all rings while some rings are busy: the first packet of an idle ring waits that
/// long.
///
/// Measured: the poll set as such. 64 idle ports cost a twentieth to a tenth of the throughput of two busy ones before
/// and nothing measurable after (decision 50); not this value.
pub const FULL_PASS_INTERVAL_NS: u64 = 50_000;

/// Slots that are moved before the clock is read: some 10 us with small packets.
pub const CLOCK_READ_SLOTS: u32 = 1024;

/// Passes before the clock is read, and empty passes in a row before all rings are polled.
pub const CLOCK_READ_PASSES: u32 = 8;

/// Idle rings up to which all rings are polled instead of reading the clock: polling these costs no more.
pub const FEW_IDLE_RINGS: usize = 4;

/// Polls in a row without a new slot, outside passes over busy rings only, after which a ring is idle.
pub const IDLE_AFTER_POLLS: u32 = 16;

/// Futex waits in a row without a new slot after which a ring notifies its doorbell instead of ending the wait: some
/// 10 ms, in which including it costs less.
pub const DOORBELL_AFTER_WAITS: u32 = 64;

// --- Scheduling policy ---

/// Slots taken between two yields that make the turn a large one: moving them costs as much as the context switch.
///
/// Measured: `SCHED_BATCH` after large turns, 60 B at full speed 59 to 77 Mpps, all on one core 41 to 57 (decision 38);
/// not this value.
pub const LARGE_TURN_SLOTS: u32 = 256;

/// A turn with fewer slots is small: it may be a request whose reply comes soon.
pub const SMALL_TURN_SLOTS: u32 = 32;

/// Large turns in a row after which the thread changes to `SCHED_BATCH`.
pub const STREAM_TURNS: u32 = 16;

// SPDX-License-Identifier: BSD-2-Clause
//! Constants that tune waiting, retrying and coalescing: name, unit, value, bounds, and how each was measured.
//!
//! All are `const`, because those of the poll loops decide how the compiler lays out the paths that every packet takes.
//! "Not measured" means that any value of the same order works: the constant bounds a rare wait. Decisions are in
//! `docs/notebook`.

use std::time::Duration;

// Sending (`sync`).

/// Slots. How far ahead of the program free slots are prefetched: the receiver wrote them last, and a program that
/// reads a slot before it fills it, as for `NS_BUF_CHANGED`, waits for each cache line. 64 do not differ from 32
/// (decision 139).
pub(crate) const SLOTS_AHEAD: u32 = 32;

/// Slots. Batches up to this size are prefetched for; of larger ones the processor has many lines on their way anyway.
/// Measured: pkt-gen over a pipe with batches of 8, 64, 256 and 512: 108, 230, 256 and 295 Mpps without, 228, 293, 285
/// and 295 with (decision 139).
pub(crate) const BATCH_AHEAD: u32 = 256;

// Waiting for packets or slots (`port::poll`).

/// Polls between two readings of the clock. Together less than a microsecond, the resolution of `ring->ts`.
pub(crate) const POLLS_PER_CLOCK: u32 = 8;

/// Peeks at the peer's position before each poll. With `lfence` between them four take about as long as one `pause`
/// instruction (28 ns on Zen 5, 30 to 45 ns elsewhere), and a change is not seen one `pause` late (decision 33).
pub(crate) const PEEKS_PER_POLL: u32 = 4;

/// Times [`POLLS_PER_CLOCK`] polls before a waiting thread first yields the CPU; 1 if the last yield let another task
/// run. 64 polls take 2 to 3 us: longer than the peer of a pipe needs for half a ring, not longer than the system calls
/// that a yield and the clock may cost. Measured against 8 polls, Mpps at batch 512, 256, 64, 8, 1: 765, 803, 700, 205,
/// 36 before; 820, 830, 770, 230, 44 with 64 (decision 33).
pub(crate) const SPINS_BEFORE_YIELD: u32 = 8;

/// A `sched_yield` that takes longer let another task run: the system call alone takes less. Microseconds.
pub(crate) const YIELD_ACCEPTED: Duration = Duration::from_micros(2);

/// How long to wait before polling a ring again that another thread or process is syncing. Not measured.
pub(crate) const BUSY_RING_RETRY: Duration = Duration::from_micros(100);

/// The longest sleep without a check of the rings. A peer that is killed, or misbehaves, between moving its position
/// and notifying the doorbell wakes nobody. Not measured.
pub(crate) const SLEEP_LIMIT: Duration = Duration::from_millis(500);

/// How long a side of a pipe sleeps whose peer is on the other side of a virtual machine's border, where no doorbell
/// crosses; and how often the host looks for what the guest has moved. Not measured: bounds the latency of a sleeper.
pub(crate) const PEER_POLL: Duration = Duration::from_millis(1);

/// How long a guest's device may stand still before its host counts as gone: far longer than a busy host stops it.
pub(crate) const DEVICE_LIMIT: Duration = Duration::from_secs(5);

/// Rings of one direction from which on a poll looks at their words side by side (`unetmap_mem::PolledRings`), and
/// sleeps on one descriptor for all.
///
/// Bounds: 2 and more; with one ring the fast paths of `sync::fast` take less.
pub(crate) const MANY_RINGS: usize = 4;

/// Descriptors that one sleep waits for without allocating memory; more are possible.
pub(crate) const POLL_FDS_ON_STACK: usize = 15;

/// Peeks of the fast path before the poll continues normally: about a microsecond, a few round trips between cores. A
/// round trip took 161 to 167 ns with the fast path, 232 to 240 before (decision 58).
pub(crate) const FAST_PEEKS: u32 = 64;

/// Short pauses between two of them. A peek takes the cache line away from the sender, which needs time to write it.
/// With `pause` (30 ns) instead, round trips took 205 to 220 ns (decision 58).
pub(crate) const PAUSES_PER_PEEK: u32 = 3;

// Receive coalescing (`port::poll`, decisions 6 and 15).

/// A batch of up to so many slots may be a reply: a peer on the same CPU sends nothing while the receiver waits, so the
/// receiver does not coalesce after it. Slots. A ping spent 3.6 us of its 13 us in the delay (decision 6).
pub(crate) const REPLY_BATCH: u32 = 8;

/// The receive coalescing delay doubles while batches have fewer slots. Below [`LARGE_BATCH`]. With the delay batch 1
/// rose from 24.5 to 27.8 Mpps; batch 512 and round trips did not change.
pub(crate) const SMALL_BATCH: u32 = 96;

/// The delay halves from so many slots on. With a fixed delay of 64 hints batch 512 fell to half (decision 6).
pub(crate) const LARGE_BATCH: u32 = 256;

/// The longest delay, spin hints: about five microseconds.
pub(crate) const MAX_COALESCING: u32 = 128;

// Checks that the daemon is alive (`port`).

/// How often a busy program checks that the daemon is alive, nanoseconds. Bounds how long it keeps using a port after
/// the daemon has exited. Not measured.
pub(crate) const LIFE_CHECK_NS: u64 = 100_000_000;

/// The most syncs between two readings of the clock for that check.
pub(crate) const MAX_SYNCS_PER_CHECK: u32 = 4096;

/// Renewals of the list of monitors that one sync makes at most. More can only be caused by a process that shares the
/// port and changes the monitor generation without reason.
pub(crate) const MAX_MONITOR_RENEWALS: u32 = 4;

// Syncs (`sync`).

/// Syncs of one thread in a row under the lock, after which the ring's lock is biased to the thread: far more than a
/// program makes that opens a port in one thread and uses it in another (decision 18).
pub(crate) const BIAS_AFTER: u32 = 1000;

/// Attempts to lock the ring that packets are forwarded to, while another thread is syncing it. Not measured.
pub(crate) const FORWARD_LOCK_TRIES: u32 = 20_000;

/// Syncs in a row that may make no room in the ring that packets are forwarded to, before the rest is dropped.
pub(crate) const FORWARD_STALLS: u32 = 1;

// Interfaces (`backend::nic`).

/// When to check again for transmitted buffers: the kernel signals no event. Not measured.
pub(crate) const TX_COMPLETION_POLL: Duration = Duration::from_micros(100);

/// The longest sleep of a program that waits for a sink to take a slot, milliseconds: a doorbell's time is less than a
/// second. Not measured.
pub(crate) const SINK_SLEEP_MAX: Duration = Duration::from_millis(500);

/// System calls that one sync makes at most to have its packets sent. Each sends 32 in copy mode, 256 since Linux 6.17:
/// enough for the largest ring.
pub(crate) const MAX_KICKS: u32 = 256;
/// Packets that such a call sends in copy mode: Linux's `TX_BATCH_SIZE`.
pub(crate) const SENT_PER_KICK: u32 = 32;

// Packet sockets (`packets`).

/// Slots moved at once. The longest packets have 33 slots of 2 KB, so that a batch is eight of them. Not measured.
pub(crate) const PACKET_BATCH: u32 = 256;

/// Attempts to send a packet for which a packet socket has no room, before it is lost; a nap lies between two of them.
pub(crate) const SEND_TRIES: u32 = 4096;

// Sync loops by control blocks (`port::csb`).

/// How often a caller that stops a loop checks whether it has ended. Not measured.
pub(crate) const LOOP_END_POLL: Duration = Duration::from_millis(1);

/// How often a loop checks that the daemon is alive. Not measured.
pub(crate) const LOOP_LIFE_CHECK: Duration = Duration::from_millis(100);

/// How often a loop reads the program's pointers again if they are inconsistent. A program stores `cur` before `head`,
/// so a reader may see the later `head` alone.
pub(crate) const MAX_POINTER_READS: u32 = 8;

/// Rounds in a row that moved something, before the loop checks anything else. Not measured.
pub(crate) const MAX_BUSY_ROUNDS: u32 = 64;

// The control socket (`control::client`, `port::file`).

/// How long the daemon may take to reply, and to start. Not measured.
pub(crate) const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the kernel may take to release a queue whose program has just exited. It does so in a work item that needs
/// the lock of all network settings (RTNL), which was held for 2 s where several namespaces were made and deleted.
pub(crate) const QUEUE_BUSY_LIMIT: Duration = Duration::from_secs(10);

/// How often the request is repeated meanwhile.
pub(crate) const QUEUE_BUSY_RETRY: Duration = Duration::from_millis(20);

/// How often to start a daemon and connect: one that is just exiting may refuse the connection.
pub(crate) const START_TRIES: u32 = 3;

/// How often to ask for a port while the daemon ends before it has answered, and the pause between two attempts, of
/// which the first follows at once: so many times as there were pauses. A daemon that goes on after a crash is there at
/// once.
pub(crate) const OPEN_TRIES: u32 = 5;
pub(crate) const OPEN_RETRY: Duration = Duration::from_millis(20);

/// How often a port whose daemon has ended looks for the next one, and for its answer. Not measured.
pub(crate) const DAEMON_POLL: Duration = Duration::from_millis(50);
pub(crate) const ANSWER_POLL: Duration = Duration::from_millis(2);

/// How long a call waits for the rest of an answer whose first message has come. Not measured.
pub(crate) const SHORT_REPLY_LIMIT: Duration = Duration::from_secs(1);

/// How long a port whose daemon has ended waits for other ports of its region to notice that, which they do at the next
/// call after [`LIFE_CHECK_NS`].
pub(crate) const SIBLINGS_LIMIT: Duration = Duration::from_millis(300);

/// How long a port that goes on with the next daemon waits for threads that sync its rings. Not measured.
pub(crate) const RING_LOCK_LIMIT: Duration = Duration::from_millis(100);

/// How often to try for the lock that serializes starting a daemon. Not measured.
pub(crate) const LOCK_POLL: Duration = Duration::from_millis(2);

/// How long a sync that asks for a doorbell waits for another request on the same connection: a signal may have
/// interrupted that one, in this very thread. Not measured.
pub(crate) const REQUEST_LIMIT: Duration = Duration::from_millis(50);

/// The longest reply to a request that is made within a sync, bytes: from 16 KiB on the preloaded library maps memory.
pub(crate) const SHORT_REPLY: usize = 4096;

/// How often a process that waits for its turn on a shared connection checks. Not measured.
pub(crate) const TURN_POLL: Duration = Duration::from_micros(200);

/// How long the connections of a daemon that exits may take to hang up, one after the other. Not measured.
pub(crate) const EXIT_LIMIT: Duration = Duration::from_millis(50);

/// Bytes that are copied at once when a region's buffers are filled. Not measured.
pub(crate) const FILL_CHUNK: usize = 64 << 10;

const _: () = assert!(SMALL_BATCH < LARGE_BATCH && REPLY_BATCH < SMALL_BATCH);

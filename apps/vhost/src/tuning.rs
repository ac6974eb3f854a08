// SPDX-License-Identifier: BSD-2-Clause
//! Bounds, and constants of waiting.

use std::time::Duration;

/// Most pairs of queues of a guest: the most rings that a port of a switch has.
pub const MAX_QUEUE_PAIRS: u16 = 16;
/// Most regions of guest memory: QEMU has one for each memory module and a few of its own.
pub(crate) const MAX_REGIONS: usize = 64;
/// Most descriptors of a queue, as in the specification of virtio.
pub(crate) const MAX_QUEUE_SIZE: u16 = 32768;
/// Most buffers of a packet's chains. Linux uses at most 19 for a packet that it sends, and 17 to 43 to receive one of
/// 64 KiB; a packet with more is dropped.
pub(crate) const MAX_CHAIN_BUFFERS: usize = 1024;
/// Most bytes of a message's payload: regions of [`MAX_REGIONS`], 32 bytes each, and 8.
pub(crate) const MAX_PAYLOAD: usize = 8 + 32 * MAX_REGIONS;
/// Most packets that are moved for a queue before they are announced to the guest or the switch: it bounds how long the
/// first of them waits.
pub(crate) const BATCH: u32 = 256;
/// Packets whose buffers are prefetched together, a group ahead: another core has written or read them last, and guests
/// mostly have pages of 4 KiB, so that each has an address to be translated.
pub(crate) const PREFETCH_GROUP: u16 = 8;
/// Bytes of a slot from which on a packet is copied into the buffer that the switch has returned last, and
/// [`MAX_IN_FLIGHT_BYTES`] counts. Smaller packets are a few cache lines, and a turn of many costs less.
pub(crate) const LARGE_SLOT_BYTES: u32 = 512;
/// Most bytes of large packets that the switch has not copied yet, so that they stay in a core's cache (decision 141):
/// of 1500 B from DPDK 2.8 Mpps, with 768 KiB 2.5.
pub(crate) const MAX_IN_FLIGHT_BYTES: u32 = 512 << 10;
/// Rounds between two looks at the socket while packets are moving: messages are rare, and each look is a system call.
pub(crate) const ROUNDS_PER_MESSAGE_CHECK: u32 = 64;
/// Most messages of a hypervisor that are carried out before packets are looked at again: more than a set-up has.
pub(crate) const MESSAGES_AT_ONCE: u32 = 256;
/// By how much a nap may be longer, so that the kernel can wake several tasks at once.
pub(crate) const TIMER_SLACK: Duration = Duration::from_micros(1);
/// Length of the process's turns on a shared CPU: shorter than those of other programs, 0.7 to 2.8 ms, and enough for
/// several queues.
pub(crate) const TIME_SLICE: Duration = Duration::from_micros(500);
/// Slots of the receive ring of a port that has one. The process and the switch's thread take turns on a CPU, and a
/// turn is a ring: 1024 slots are 9.5 Mpps to DPDK, 2048 13.4, and 4096 14.1, but these are 8 MiB, and a slow guest is
/// as far behind (decision 137).
pub(crate) const RX_SLOTS: u32 = 2048;
/// Time between two decisions on which CPU the process runs: several turns of a program that shares it.
pub(crate) const PLACEMENT_INTERVAL: Duration = Duration::from_millis(10);
/// 1 / this is the part of an interval for which a process that is kept waiting was ready to run.
pub(crate) const PLACEMENT_WAIT_SHARE: u32 = 10;
/// Longest time for which the process is kept beside the switch's thread; it mostly remains there when it is released.
pub(crate) const PLACEMENT_STAY: Duration = Duration::from_secs(1);
/// Time without a move after one that did not raise the rate.
pub(crate) const PLACEMENT_REST: Duration = Duration::from_secs(1);
/// Longest sleep: signals set a flag, which is checked in between.
pub(crate) const MAX_SLEEP: Duration = Duration::from_millis(100);
/// Time for which a process that starts tries to open a port that another one has, and between two tries.
pub(crate) const BUSY_LIMIT: Duration = Duration::from_secs(1);
pub(crate) const BUSY_POLL: Duration = Duration::from_millis(10);
/// Shortest and longest interval of attempts to open the port again, and to connect to the hypervisor. In between: a
/// tenth of the time since it was lost, so that a restarted daemon is found at once, and one that never comes is not
/// looked for all the time.
pub(crate) const RETRY: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(5)];
/// Longest sleep with a queue whose guest does not kick, or whose guest lacks buffers while others have some.
pub(crate) const POLLED_SLEEP: Duration = Duration::from_millis(1);
/// Most polls for the switch to take what was sent, before the header of the port's packets changes.
pub(crate) const DRAIN_POLLS: u32 = 10_000;
/// Longest sleep while a memif peer lacks buffers, or a packet waits in a port that has free slots: nobody tells when
/// there are enough.
pub(crate) const BUFFER_POLL: Duration = Duration::from_micros(100);
/// Longest time for which it is tried to send a message with a descriptor, and between two tries.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(10);
pub(crate) const ANSWER_POLL: Duration = Duration::from_millis(10);
/// Most sleeps that the kick of a queue ends without a packet to be moved, until the queue is polled in its place: a
/// descriptor may be readable for ever.
pub(crate) const IDLE_KICKS: u32 = 64;
/// Longest time from a memif connection to its last message of the set-up.
pub(crate) const SETUP_LIMIT: Duration = Duration::from_secs(10);
/// Longest time between two messages of a memif client's set-up. With the longest sleep, a silent client has its place
/// for a second.
pub(crate) const SILENCE_LIMIT: Duration = Duration::from_millis(900);
/// Most memif clients that are heard until one has begun its set-up, each of another user.
pub(crate) const MAX_CANDIDATES: usize = 16;
/// Most memif clients that are accepted before packets are looked at again.
pub(crate) const ACCEPTED_AT_ONCE: u32 = 64;
/// Most bytes of the region of a memif client.
pub(crate) const MAX_CLIENT_REGION: u64 = 1 << 30;

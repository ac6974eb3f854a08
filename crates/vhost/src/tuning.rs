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
pub(crate) const MAX_SEGMENTS: usize = 1024;
/// Most bytes of a message's payload: regions of [`MAX_REGIONS`], 32 bytes each, and 8.
pub(crate) const MAX_PAYLOAD: usize = 8 + 32 * MAX_REGIONS;
/// Most packets that are moved for a queue before they are announced to the guest or the switch: it bounds how long the
/// first of them waits.
pub(crate) const BATCH: u32 = 256;
/// Rounds between two looks at the socket while packets are moving: messages are rare, and each look is a system call.
pub(crate) const ROUNDS_PER_MESSAGE_CHECK: u32 = 64;
/// Idle time after which the process sleeps. About the cost of a sleep and a wake-up.
pub(crate) const SPIN: Duration = Duration::from_micros(50);
/// Longest sleep: signals set a flag, which is checked in between.
pub(crate) const MAX_SLEEP: Duration = Duration::from_millis(100);
/// Interval of attempts to open the port again, and to connect to the hypervisor.
pub(crate) const RETRY: Duration = Duration::from_millis(200);
/// Longest sleep with a queue whose guest does not kick, or whose guest lacks buffers while others have some.
pub(crate) const POLLED_SLEEP: Duration = Duration::from_millis(1);

// SPDX-License-Identifier: BSD-2-Clause
//! Features of virtio-net and of the protocol, by their bits in the specifications.

pub(crate) const CSUM: u64 = 1 << 0;
pub(crate) const GUEST_CSUM: u64 = 1 << 1;
const MTU: u64 = 1 << 3;
pub(crate) const GUEST_TSO4: u64 = 1 << 7;
pub(crate) const GUEST_TSO6: u64 = 1 << 8;
const GUEST_ECN: u64 = 1 << 9;
pub(crate) const GUEST_UFO: u64 = 1 << 10;
pub(crate) const HOST_TSO4: u64 = 1 << 11;
pub(crate) const HOST_TSO6: u64 = 1 << 12;
const HOST_ECN: u64 = 1 << 13;
pub(crate) const HOST_UFO: u64 = 1 << 14;
pub(crate) const MRG_RXBUF: u64 = 1 << 15;
const STATUS: u64 = 1 << 16;
const MQ: u64 = 1 << 22;
const INDIRECT_DESC: u64 = 1 << 28;
pub(crate) const EVENT_IDX: u64 = 1 << 29;
pub(crate) const PROTOCOL_FEATURES: u64 = 1 << 30;
pub(crate) const VERSION_1: u64 = 1 << 32;
pub(crate) const RING_PACKED: u64 = 1 << 34;
/// Buffers are returned in the order in which they were offered.
const IN_ORDER: u64 = 1 << 35;
const GUEST_USO4: u64 = 1 << 54;
const GUEST_USO6: u64 = 1 << 55;
pub(crate) const HOST_USO: u64 = 1 << 56;
/// Both, as a GSO packet of UDP does not say which.
pub(crate) const GUEST_USO: u64 = GUEST_USO4 | GUEST_USO6;

/// Features that a guest may use. Missing: `LOG_ALL`, without which hypervisors refuse live migration; and memory
/// behind an IOMMU.
pub(crate) const OFFERED: u64 = CSUM
    | GUEST_CSUM
    | MTU
    | GUEST_TSO4
    | GUEST_TSO6
    | GUEST_ECN
    | GUEST_UFO
    | HOST_TSO4
    | HOST_TSO6
    | HOST_ECN
    | HOST_UFO
    | MRG_RXBUF
    | STATUS
    | MQ
    | INDIRECT_DESC
    | EVENT_IDX
    | PROTOCOL_FEATURES
    | VERSION_1
    | RING_PACKED
    | IN_ORDER
    | GUEST_USO
    | HOST_USO;

/// Features that let the header of a packet from the guest request work.
pub(crate) const HOST_OFFLOADS: u64 = CSUM | HOST_TSO4 | HOST_TSO6 | HOST_UFO | HOST_USO;

/// Features that let the header of any packet request work.
pub(crate) const OFFLOADS: u64 = HOST_OFFLOADS | GUEST_CSUM | GUEST_TSO4 | GUEST_TSO6 | GUEST_UFO | GUEST_USO;

/// Of the protocol: several queues, replies on request, MTU, a region of in-flight descriptors, reset, and memory
/// regions that come and go. Missing: `LOG_SHMFD`, the log of live migration.
pub(crate) const PROTOCOL_MQ: u64 = 1 << 0;
pub(crate) const PROTOCOL_REPLY_ACK: u64 = 1 << 3;
const PROTOCOL_MTU: u64 = 1 << 4;
const PROTOCOL_INFLIGHT_SHMFD: u64 = 1 << 12;
const PROTOCOL_RESET_DEVICE: u64 = 1 << 13;
const PROTOCOL_MEM_SLOTS: u64 = 1 << 15;
pub(crate) const PROTOCOL_OFFERED: u64 = PROTOCOL_MQ
    | PROTOCOL_REPLY_ACK
    | PROTOCOL_MTU
    | PROTOCOL_INFLIGHT_SHMFD
    | PROTOCOL_RESET_DEVICE
    | PROTOCOL_MEM_SLOTS;

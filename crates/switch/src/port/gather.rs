// SPDX-License-Identifier: BSD-2-Clause
//! Private copies of packets, for deliveries that do not copy slot by slot.

use std::cell::RefCell;

use unetmap_mem::Region;

use super::batch::Batch;
use crate::forward::Packet;
use unetmap_offload::{MAX_PACKET, VNET_HDR_LENS};

/// Bytes of the longest virtio-net header.
pub(crate) const MAX_VNET_HDR: usize = VNET_HDR_LENS[1];

thread_local! {
    /// A private copy of a packet.
    pub(super) static PACKET: RefCell<Vec<u8>> = RefCell::new(Vec::with_capacity(MAX_PACKET + MAX_VNET_HDR));
}

/// Passes a private copy of a packet to `f`; `None` if the packet is longer than one may be.
#[cold]
pub(crate) fn gathered<T>(
    region: &Region,
    batch: &Batch<'_>,
    packet: Packet,
    f: impl FnOnce(&[u8]) -> Option<T>,
) -> Option<T> {
    let mut bytes = PACKET.take();
    bytes.clear();
    let result = if gather(&mut bytes, region, batch, packet) { f(&bytes) } else { None };
    PACKET.set(bytes);
    result
}

/// Appends a packet to `bytes`; `false` if it is longer than a packet may be.
pub(crate) fn gather(bytes: &mut Vec<u8>, region: &Region, batch: &Batch<'_>, packet: Packet) -> bool {
    let from = bytes.len();
    for i in 0..packet.frags {
        let slot = batch.slots.load(batch.at(u32::from(packet.at + i)));
        let (at, len) = (bytes.len(), usize::from(slot.len));
        if at + len - from > MAX_PACKET + MAX_VNET_HDR {
            return false;
        }
        bytes.resize(at + len, 0);
        batch.frame(region, slot).read(0, &mut bytes[at..]);
    }
    true
}

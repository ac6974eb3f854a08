// SPDX-License-Identifier: BSD-2-Clause
//! Delivery between ports with different virtio-net headers.
//!
//! A packet of one slot whose header requests nothing is copied from buffer to buffer. Others are copied out of the
//! sender's memory, and written with the header that the receiver expects.

use unetmap_mem::Frame;

use super::SwitchPort;
use super::batch::Batch;
use super::context::BatchContext;
use super::gather::{MAX_VNET_HDR, PACKET, gather};
use super::rx_ring::PortRx;
use crate::forward::Packet;
use unetmap_offload as offload;

impl SwitchPort {
    /// For a packet with a virtio-net header of `bytes` bytes, returns the length of the first part of the frame and
    /// the bytes that it begins with.
    #[inline]
    pub(crate) fn frame_after_vnet_hdr(&self, batch: &Batch<'_>, packet: Packet, bytes: u8) -> (u16, [u8; 16]) {
        let slot = batch.slots.load(batch.at(u32::from(packet.at)));
        let header = u16::from(bytes);
        if slot.len > header {
            return (slot.len - header, batch.frame(&self.region, slot).skip(usize::from(header)).header());
        }
        // The header may have a slot of its own; it may not be split over several.
        if slot.len < header || packet.frags < 2 {
            return (0, [0; 16]);
        }
        let slot = batch.slots.load(batch.at(u32::from(packet.at) + 1));
        (slot.len, batch.frame(&self.region, slot).header())
    }
}

/// Returns the frame of a packet and its bytes, if it has one slot with a virtio-net header of `header` bytes, or none,
/// that requests nothing, and if the frame is at most `most` bytes.
#[inline]
fn finished_frame<'r>(
    from: &'r SwitchPort,
    batch: &Batch<'_>,
    packet: Packet,
    header: usize,
    most: usize,
) -> Option<(Frame<'r>, usize)> {
    if packet.frags != 1 {
        return None;
    }
    let slot = batch.slots.load(batch.at(u32::from(packet.at)));
    let buffer = batch.frame(&from.region, slot);
    let frame = buffer.skip(header);
    let bytes = usize::from(slot.len).checked_sub(header)?;
    let is_whole = (offload::LEAST_PACKET..=most).contains(&bytes) && bytes <= frame.capacity();
    (is_whole && (header == 0 || offload::requests_nothing(&buffer.header()))).then_some((frame, bytes))
}

/// Delivers packets of a batch to `rx`, a receive ring of `to`. May wait for a client without room.
pub(crate) fn deliver_converted(
    rx: &PortRx,
    to: &SwitchPort,
    context: &BatchContext<'_>,
    packets: impl Iterator<Item = Packet>,
) {
    let BatchContext { port: from, ring, batch, backpressure, .. } = context;
    let (from_hdr_len, to_hdr_len) = (usize::from(from.vnet_hdr_len()), usize::from(to.vnet_hdr_len()));
    let capacity = rx.slot_capacity(&to.region);
    let mut bytes = PACKET.take();
    let mut state = rx.lock();
    let (mut next, mut dropped, mut invalid, mut more) = (*state, 0, 0, 0);
    // Headers of both lengths have fields to be converted.
    let may_copy = from_hdr_len == 0 || to_hdr_len == 0;
    let most = if may_copy { capacity.saturating_sub(to_hdr_len) } else { 0 };
    for packet in packets {
        let finished = finished_frame(from, batch, packet, from_hdr_len, most);
        bytes.clear();
        if finished.is_none() && (!gather(&mut bytes, &from.region, batch, packet) || bytes.len() < from_hdr_len) {
            invalid += 1;
            continue;
        }
        let slots = match to_hdr_len {
            _ if finished.is_some() => 1,
            0 => offload::slots_needed(&bytes, bytes.len(), capacity),
            _ => bytes.len().div_ceil(capacity),
        };
        while !rx.has_room(&mut next, slots) {
            rx.publish(&to.region, &mut state, next, backpressure);
            // No thread waits for the lock meanwhile.
            drop(state);
            let retry = rx.wait_for_room(backpressure);
            state = rx.lock();
            next = *state;
            if !retry {
                break;
            }
        }
        if let Some(frame) = finished {
            dropped += u64::from(!rx.put_frame(&to.region, &mut next, to_hdr_len, frame));
            continue;
        }
        let mut put = |pieces: &[&[u8]]| rx.put(&to.region, &mut next, pieces);
        if to_hdr_len == 0 {
            match put_finished(&mut bytes, from_hdr_len, put) {
                Ok(Frames { all, lost }) => {
                    dropped += lost;
                    more += all.saturating_sub(1);
                }
                Err(_) => invalid += 1,
            }
        } else {
            let header = convert_vnet_hdr(&bytes, from_hdr_len);
            dropped += u64::from(!put(&[&header[..to_hdr_len], &bytes[from_hdr_len..]]));
        }
    }
    rx.publish(&to.region, &mut state, next, backpressure);
    drop(state);
    PACKET.set(bytes);
    if dropped > 0 {
        rx.count_drops(dropped);
    }
    ring.count_copies(more);
    to.counters.count([0, 0, invalid]);
}

/// The frames that a packet was divided into.
pub(super) struct Frames {
    /// All of them.
    pub(super) all: u64,
    /// Frames without room.
    pub(super) lost: u64,
}

/// Makes frames of a packet with a virtio-net header of `header` bytes, and has them put into slots, as long as there
/// is room.
pub(super) fn put_finished(
    packet: &mut [u8],
    header: usize,
    mut put: impl FnMut(&[&[u8]]) -> bool,
) -> Result<Frames, offload::HeaderMismatch> {
    let mut had_room = 0;
    let lost = offload::finish(packet, header, |[headers, payload]| {
        let has_room = put(&[headers, payload]);
        had_room += u64::from(has_room);
        has_room
    })?;
    Ok(Frames { all: had_room + lost as u64, lost: lost as u64 })
}

/// Returns the virtio-net header of a packet that begins with one of `len` bytes, in the longest form: fields that the
/// packet's header lacks are 0, so they request nothing.
pub(crate) fn convert_vnet_hdr(packet: &[u8], len: usize) -> [u8; MAX_VNET_HDR] {
    std::array::from_fn(|i| if i < len { packet[i] } else { 0 })
}

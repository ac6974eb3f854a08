// SPDX-License-Identifier: BSD-2-Clause
//! Packets staged in the switch's own memory, where policies are checked, and their delivery.

use std::ops::Range;

use super::SwitchPort;
use super::batch::Batch;
use super::context::BatchContext;
use super::gather::gather;
use super::rx_ring::{PortRx, RxState};
use super::vnet_hdr::{Frames, convert_vnet_hdr, put_finished};
use crate::forward::Packet;
use crate::policy::DropReason;
use crate::policy::{Direction, PolicySet, TAG_BYTES, TAG_TYPE, VlanMode};
use unetmap_offload as offload;

/// Bytes of a frame before its VLAN tag.
const BEFORE_TAG: usize = 12;

/// A packet in a [`StagingArea`].
pub(crate) struct StagedPacket {
    /// Where its bytes are, its virtio-net header first.
    pub(crate) range: Range<usize>,
    /// Bytes of that header: the sender's when the packet was checked.
    pub(crate) vnet_hdr_len: u8,
    /// Priority and VLAN number; the bytes do not contain the tag. 0: none.
    pub(crate) tag: u16,
    /// True if there was a port in its VLAN that it could go to.
    pub(crate) has_destination: bool,
}

/// The staged packets of a batch.
#[derive(Default)]
pub(crate) struct StagingArea {
    pub(crate) bytes: Vec<u8>,
    pub(crate) packets: Vec<StagedPacket>,
    /// Scratch: a packet with its tag.
    tagged: Vec<u8>,
    /// Scratch: a packet that is segmented or gets its checksum.
    finished: Vec<u8>,
}

/// Packets that were not delivered.
#[derive(Default)]
struct Drops {
    /// Without room.
    full: u64,
    invalid: u64,
    /// Frames of packets that were divided, but for the first of each.
    more: u64,
}

impl StagingArea {
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.packets.clear();
    }

    /// Frees memory beyond `most` bytes.
    pub(crate) fn shrink(&mut self, most: usize) {
        self.bytes.truncate(most);
        self.bytes.shrink_to(most);
    }
}

/// Removes the VLAN tag of the packet at the end of `bytes` that begins at `from`, with a virtio-net header of `header`
/// bytes.
pub(crate) fn remove_tag(bytes: &mut Vec<u8>, from: usize, header: usize) {
    let at = from + header + BEFORE_TAG;
    if at + TAG_BYTES <= bytes.len() {
        bytes.drain(at..at + TAG_BYTES);
        shift_offsets(&mut bytes[from..from + header], |offset| offset.saturating_sub(TAG_BYTES as u16));
    }
}

/// Writes `packet` with this VLAN tag to `tagged`.
fn insert_tag(tagged: &mut Vec<u8>, packet: &[u8], header: usize, tag: u16) {
    let (before, after) = packet.split_at(packet.len().min(header + BEFORE_TAG));
    tagged.clear();
    tagged.extend_from_slice(before);
    tagged.extend_from_slice(&TAG_TYPE);
    tagged.extend_from_slice(&tag.to_be_bytes());
    tagged.extend_from_slice(after);
    shift_offsets(&mut tagged[..header], |offset| offset.saturating_add(TAG_BYTES as u16));
}

/// Changes the fields of a virtio-net header that count bytes from the frame's start: `hdr_len` and `csum_start`.
fn shift_offsets(header: &mut [u8], shift: impl Fn(u16) -> u16) {
    for at in [2, 6] {
        if let Some([low, high]) = header.get_mut(at..at + 2) {
            // 0 requests nothing.
            match u16::from_le_bytes([*low, *high]) {
                0 => {}
                offset => [*low, *high] = shift(offset).to_le_bytes(),
            }
        }
    }
}

impl SwitchPort {
    /// Appends a packet of a batch of this port, with a virtio-net header of `header` bytes, to `bytes`. Computes a
    /// checksum that the header requests, since its bytes may be part of what a policy checks.
    pub(crate) fn stage(
        &self,
        bytes: &mut Vec<u8>,
        batch: &Batch<'_>,
        packet: Packet,
        header: usize,
    ) -> Result<(), DropReason> {
        if batch.is_invalid(&self.region, packet) {
            return Err(DropReason::InvalidSlot);
        }
        let from = bytes.len();
        if !gather(bytes, &self.region, batch, packet) {
            return Err(DropReason::TooManyFragments);
        }
        match header {
            0 => Ok(()),
            _ if bytes.len() - from < header => Err(DropReason::Runt),
            _ => offload::fill_checksum(&mut bytes[from..], header).map_err(|_| DropReason::InvalidSlot),
        }
    }

    /// Delivers the staged packets with the numbers `listed` to the receive ring that corresponds to their transmit
    /// ring, as far as the policy of this port accepts them and there is room.
    pub(crate) fn deliver_staged<'b>(
        &self,
        policies: &'b PolicySet,
        &BatchContext { ring, ring_index, backpressure, .. }: &BatchContext<'_>,
        area: &mut StagingArea,
        listed: impl Iterator<Item = usize>,
    ) {
        let Some(rx) = self.rx_for(ring_index) else { return };
        backpressure.note_active(self.index());
        let untagged = matches!(policies.vlan_of(self.index()), Some(VlanMode::Access(_)));
        let begin_check =
            |policies: &'b PolicySet| policies.of(self.index()).map(|policy| policy.check(Direction::Out));
        let mut check = begin_check(policies);
        let capacity = rx.slot_capacity(&self.region);
        let StagingArea { bytes, packets, tagged, finished } = area;
        let (mut drops, mut copies, mut filtered, mut over_rate) = (Drops::default(), 0, 0, 0);
        let mut state = rx.lock();
        let mut next = *state;
        for number in listed {
            let packet = packets.get_mut(number).filter(|packet| policies.carries(self.index(), packet.tag & 0xfff));
            let Some(staged) = packet else { continue };
            staged.has_destination = true;
            copies += 1;
            let header = usize::from(staged.vnet_hdr_len);
            let Some(mut packet) = bytes.get(staged.range.clone()) else { continue };
            if staged.tag != 0 && !untagged {
                insert_tag(tagged, packet, header, staged.tag);
                packet = tagged;
            }
            if let Some(check) = &mut check
                && let Err(reason) = check.accept_egress(packet.get(header..).unwrap_or_default())
            {
                *if reason == DropReason::Filter { &mut filtered } else { &mut over_rate } += 1;
                continue;
            }
            let slots = match header {
                0 => packet.len().div_ceil(capacity),
                _ => offload::slots_needed(packet, packet.len(), capacity),
            };
            while !rx.has_room(&mut next, slots) {
                rx.publish(&self.region, &mut state, next, backpressure);
                // No thread waits for these locks meanwhile.
                drop((state, check.take()));
                let retry = rx.wait_for_room(backpressure);
                (check, state) = (begin_check(policies), rx.lock());
                next = *state;
                if !retry {
                    break;
                }
            }
            self.write_staged(rx, &mut next, (packet, header), finished, &mut drops);
        }
        rx.publish(&self.region, &mut state, next, backpressure);
        drop(state);
        rx.count_drops(drops.full);
        ring.count_copies(copies + drops.more);
        self.counters.count([filtered, over_rate, drops.invalid]);
    }

    /// Writes a packet with a virtio-net header of `header` bytes into the next slots, with the header that this port
    /// has.
    fn write_staged(
        &self,
        rx: &PortRx,
        next: &mut RxState,
        (packet, header): (&[u8], usize),
        finished: &mut Vec<u8>,
        drops: &mut Drops,
    ) {
        let to_header = usize::from(self.vnet_hdr_len());
        let mut put = |pieces: &[&[u8]]| rx.put(&self.region, next, pieces);
        if header == to_header {
            drops.full += u64::from(!put(&[packet]));
        } else if to_header == 0 {
            finished.clear();
            finished.extend_from_slice(packet);
            match put_finished(finished, header, put) {
                Ok(Frames { all, lost }) => {
                    drops.full += lost;
                    drops.more += all.saturating_sub(1);
                }
                Err(_) => drops.invalid += 1,
            }
        } else {
            drops.full += u64::from(!put(&[&convert_vnet_hdr(packet, header)[..to_header], &packet[header..]]));
        }
    }
}

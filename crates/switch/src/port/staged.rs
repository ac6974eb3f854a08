//! Packets that the switch holds in memory of its own, and their way into a receive ring.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use crate::forward::{Lost, Packet};
use crate::offload;
use crate::policy::{Book, Direction, Vlan};
use super::rx_ring::Filled;
use super::vnet_hdr::{converted, gather};
use super::{Attached, Batch, Incoming, Served};

/// Bytes of a tag, and how it begins.
pub(in super::super) const TAG: usize = 4;
pub(in super::super) const TAG_TYPE: [u8; 2] = [0x81, 0x00];
/// Bytes of a frame before its tag.
const BEFORE_TAG: usize = 12;

/// A packet in [`Scratch`].
pub(in super::super) struct Held {
    /// Its bytes, its virtio-net header first.
    pub(in super::super) range: Range<usize>,
    /// Bytes of that header: as long as its sender's were when it was judged.
    pub(in super::super) header: u8,
    /// Priority and number of its VLAN, which is not in the bytes; 0: it has none.
    pub(in super::super) tag: u16,
    /// Whether there was anybody whom it could go to.
    pub(in super::super) reached: bool,
}

/// Packets of a batch.
#[derive(Default)]
pub(in super::super) struct Scratch {
    pub(in super::super) bytes: Vec<u8>,
    pub(in super::super) packets: Vec<Held>,
    /// A packet with its tag.
    changed: Vec<u8>,
    /// A packet whose receiver expects what hardware would have done.
    finished: Vec<u8>,
}

/// Packets that did not arrive.
#[derive(Default)]
struct Counts {
    dropped: u64,
    bad: u64,
}

impl Scratch {
    pub(in super::super) fn clear(&mut self) {
        self.bytes.clear();
        self.packets.clear();
    }

    /// Gives back what is beyond `most` bytes.
    pub(in super::super) fn shrink(&mut self, most: usize) {
        self.bytes.truncate(most);
        self.bytes.shrink_to(most);
    }
}

/// Takes the tag from the packet at the end of `bytes` that begins at `from`, with a virtio-net header of `header` bytes.
pub(in super::super) fn strip(bytes: &mut Vec<u8>, from: usize, header: usize) {
    let at = from + header + BEFORE_TAG;
    if at + TAG <= bytes.len() {
        bytes.drain(at..at + TAG);
        shift_offsets(&mut bytes[from..from + header], |offset| offset.saturating_sub(TAG as u16));
    }
}

/// `packet`, with this tag.
fn insert(changed: &mut Vec<u8>, packet: &[u8], header: usize, tag: u16) {
    let (before, behind) = packet.split_at(packet.len().min(header + BEFORE_TAG));
    changed.clear();
    changed.extend_from_slice(before);
    changed.extend_from_slice(&TAG_TYPE);
    changed.extend_from_slice(&tag.to_be_bytes());
    changed.extend_from_slice(behind);
    shift_offsets(&mut changed[..header], |offset| offset.saturating_add(TAG as u16));
}

/// What a virtio-net header says of places in the frame: the length of all headers, and where a checksum begins.
fn shift_offsets(header: &mut [u8], shift: impl Fn(u16) -> u16) {
    for at in [2, 6] {
        if let Some([low, high]) = header.get_mut(at..at + 2) {
            // Nothing is asked for where it is 0.
            match u16::from_le_bytes([*low, *high]) {
                0 => {}
                offset => [*low, *high] = shift(offset).to_le_bytes(),
            }
        }
    }
}

impl Attached {
    /// Copies a packet of a batch of this port's, with a virtio-net header of `header` bytes, to the end of `bytes`. A checksum
    /// that the header asks for is computed there: it can be anywhere in what is to be judged.
    pub(in super::super) fn hold(
        &self,
        bytes: &mut Vec<u8>,
        batch: &Batch<'_>,
        packet: Packet,
        header: usize,
    ) -> Result<(), Lost> {
        if batch.bad {
            let mut all = (0..packet.frags).map(|i| batch.slots.buf_idx(batch.at(u32::from(packet.at + i))));
            if all.any(|idx| !self.region.limits().index_ok(idx)) {
                return Err(Lost::Bad);
            }
        }
        let from = bytes.len();
        if !gather(bytes, &self.region, batch, packet) {
            return Err(Lost::Long);
        }
        match header {
            0 => Ok(()),
            _ if bytes.len() - from < header => Err(Lost::Short),
            _ => offload::settle(&mut bytes[from..], header).map_err(|_| Lost::Bad),
        }
    }

    /// Writes held packets, those of the numbers `listed`, into the receive ring that belongs to the one they were sent
    /// on, as far as the rules of this port let them, and there is room.
    pub(in super::super) fn deliver_held<'b>(
        &self,
        rules: &'b Book,
        &Served { ring, number, patience, .. }: &Served<'_>,
        scratch: &mut Scratch,
        listed: impl Iterator<Item = usize>,
    ) {
        let Some(rx) = self.incoming(number) else { return };
        patience.takes_part(self.index);
        let untagged = matches!(rules.vlan_of(self.index), Some(Vlan::Access(_)));
        let gate_of = |rules: &'b Book| rules.of(self.index).map(|ruled| ruled.gate(Direction::Out));
        let mut gate = gate_of(rules);
        let size = rx.size(&self.region);
        let Scratch { bytes, packets, changed, finished } = scratch;
        let (mut counts, mut refused) = (Counts::default(), [0; 2]);
        let mut state = rx.lock();
        let mut filled = *state;
        for number in listed {
            let Some(held) = packets.get_mut(number).filter(|held| rules.carries(self.index, held.tag & 0xfff)) else {
                continue;
            };
            held.reached = true;
            let theirs = usize::from(held.header);
            let Some(mut packet) = bytes.get(held.range.clone()) else { continue };
            if held.tag != 0 && !untagged {
                insert(changed, packet, theirs, held.tag);
                packet = changed;
            }
            if let Some(gate) = &mut gate {
                let frame = packet.get(theirs..).unwrap_or_default();
                if let Err(why) = gate.admits(frame).and_then(|()| gate.within(frame.len())) {
                    refused[usize::from(why != Lost::Filter)] += 1;
                    continue;
                }
            }
            let needed = match theirs {
                0 => packet.len().div_ceil(size),
                _ => offload::slots(packet, size),
            };
            while !rx.has_room(&mut filled, needed) {
                rx.publish(&self.region, &mut state, filled, patience);
                // Nobody else waits meanwhile for what is locked here.
                drop((state, gate.take()));
                let again = patience.give_way(rx);
                (gate, state) = (gate_of(rules), rx.lock());
                filled = *state;
                if !again {
                    break;
                }
            }
            self.write(rx, &mut filled, (packet, theirs), finished, &mut counts);
        }
        rx.publish(&self.region, &mut state, filled, patience);
        drop(state);
        rx.dropped.fetch_add(counts.dropped, Relaxed);
        self.refused.iter().zip(refused).for_each(|(all, these)| {
            all.fetch_add(these, Relaxed);
        });
        ring.lost[Lost::Bad as usize].fetch_add(counts.bad, Relaxed);
    }

    /// Writes a packet into the next slots, its virtio-net header of `theirs` bytes as this port expects it.
    fn write(
        &self,
        rx: &Incoming,
        filled: &mut Filled,
        (packet, theirs): (&[u8], usize),
        finished: &mut Vec<u8>,
        counts: &mut Counts,
    ) {
        let mine = usize::from(self.header());
        let mut put = |pieces: &[&[u8]]| rx.put(&self.region, filled, pieces);
        if theirs == mine {
            counts.dropped += u64::from(!put(&[packet]));
        } else if mine == 0 {
            finished.clear();
            finished.extend_from_slice(packet);
            match offload::finish(finished, theirs, |[headers, payload]| put(&[headers, payload])) {
                Ok(lost) => counts.dropped += lost as u64,
                Err(_) => counts.bad += 1,
            }
        } else {
            counts.dropped += u64::from(!put(&[&converted(packet, theirs)[..mine], &packet[theirs..]]));
        }
    }
}

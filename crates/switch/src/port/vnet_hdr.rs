//! Between ports whose virtio-net headers differ: packets are copied out of the source's memory, and written as the receiver
//! expects them.

use std::cell::RefCell;
use std::sync::atomic::Ordering::Relaxed;

use unetmap_abi::NS_MOREFRAG;
use unetmap_mem::Region;

use crate::forward::{Lost, Packet};
use crate::offload::{self, HEADERS, PACKET_MOST};
use super::rx_ring::Filled;
use super::{Attached, Batch, Incoming, Served};

thread_local! {
    /// A packet that nobody else can write, as it was taken from the source.
    static WHOLE: RefCell<Vec<u8>> = RefCell::new(Vec::with_capacity(PACKET_MOST + HEADERS[1]));
}

impl Attached {
    /// Of a packet with a header of `bytes` bytes: how long the frame's first part is, and what it begins with.
    #[cold]
    pub(in super::super) fn behind_header(&self, batch: &Batch<'_>, packet: Packet, bytes: u8) -> (u16, [u8; 16]) {
        let mut start = [0; 16];
        let slot = batch.slots.load(batch.at(u32::from(packet.at)));
        let header = u16::from(bytes);
        if slot.len > header {
            batch.frame(&self.region, slot).read(usize::from(header), &mut start);
            return (slot.len - header, start);
        }
        // The header may have a slot of its own, and nothing less.
        if slot.len < header || packet.frags < 2 {
            return (0, start);
        }
        let slot = batch.slots.load(batch.at(u32::from(packet.at) + 1));
        (slot.len, batch.frame(&self.region, slot).header())
    }
}

/// Delivers packets of a batch into `rx`, a receive ring of `to`'s. A client without room may be given a chance to make
/// some.
#[cold]
pub(crate) fn translate(rx: &Incoming, to: &Attached, served: &Served<'_>, packets: impl Iterator<Item = Packet>) {
    let Served { port: from, ring, batch, patience, .. } = served;
    let (theirs, mine) = (usize::from(from.header()), usize::from(to.header()));
    let size = rx.size(&to.region);
    let mut whole = WHOLE.take();
    let mut state = rx.lock();
    let (mut filled, mut dropped, mut bad) = (*state, 0, 0);
    for packet in packets {
        whole.clear();
        if !gather(&mut whole, &from.region, batch, packet) || whole.len() < theirs {
            bad += 1;
            continue;
        }
        let needed = if mine == 0 { offload::slots(&whole, size) } else { whole.len().div_ceil(size) };
        while !rx.has_room(&mut filled, needed) {
            rx.publish(&to.region, &mut state, filled, patience);
            // Nobody else waits meanwhile for what is locked here.
            drop(state);
            let again = patience.give_way(rx);
            state = rx.lock();
            filled = *state;
            if !again {
                break;
            }
        }
        let mut put = |pieces: &[&[u8]]| rx.put(&to.region, &mut filled, pieces);
        if mine == 0 {
            match offload::finish(&mut whole, theirs, |[headers, payload]| put(&[headers, payload])) {
                Ok(lost) => dropped += lost as u64,
                Err(_) => bad += 1,
            }
        } else {
            dropped += u64::from(!put(&[&converted(&whole, theirs)[..mine], &whole[theirs..]]));
        }
    }
    rx.publish(&to.region, &mut state, filled, patience);
    drop(state);
    WHOLE.set(whole);
    if dropped > 0 {
        rx.dropped.fetch_add(dropped, Relaxed);
    }
    if bad > 0 {
        ring.lost[Lost::Bad as usize].fetch_add(bad, Relaxed);
    }
}

/// The header of a packet that has one of `theirs` bytes: what one header says the other does, as far as it has it; nothing
/// is asked for where there was none.
pub(crate) fn converted(packet: &[u8], theirs: usize) -> [u8; HEADERS[1]] {
    std::array::from_fn(|i| if i < theirs { packet[i] } else { 0 })
}

/// Copies a packet to the end of `bytes`; `false` when it is longer than packets are.
pub(crate) fn gather(bytes: &mut Vec<u8>, region: &Region, batch: &Batch<'_>, packet: Packet) -> bool {
    let from = bytes.len();
    for i in 0..packet.frags {
        let slot = batch.slots.load(batch.at(u32::from(packet.at + i)));
        let (at, len) = (bytes.len(), usize::from(slot.len));
        if at + len - from > PACKET_MOST + HEADERS[1] {
            return false;
        }
        bytes.resize(at + len, 0);
        batch.frame(region, slot).read(0, &mut bytes[at..]);
    }
    true
}

impl Incoming {
    /// Whether there are `slots` free ones, perhaps after another look at the client's word.
    pub(crate) fn has_room(&self, filled: &mut Filled, slots: usize) -> bool {
        let n = self.line.slots().slots();
        if (filled.room(n) as usize) < slots {
            self.look(filled);
        }
        filled.room(n) as usize >= slots
    }

    /// Writes a packet that consists of `pieces` into the next slots; `false` when there is no room.
    pub(crate) fn put(&self, region: &Region, filled: &mut Filled, pieces: &[&[u8]]) -> bool {
        let (ring, n) = (self.line.slots(), self.line.slots().slots());
        let size = self.size(region);
        let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
        let frags = bytes.div_ceil(size).max(1);
        // Packets that may begin where their buffers end have no room in any.
        if self.begin.get().max >= region.limits().buf_size || !self.has_room(filled, frags) {
            return false;
        }
        let mut left = pieces.iter().flat_map(|piece| piece.chunks(size));
        let mut part: &[u8] = &[];
        for i in 0..frags {
            let buffer = self.buffer(region, filled.prod);
            let mut len = 0;
            while len < size {
                if part.is_empty() {
                    match left.next() {
                        Some(next) => part = next,
                        None => break,
                    }
                }
                let now = part.len().min(size - len);
                buffer.write(len, &part[..now]);
                (len, part) = (len + now, &part[now..]);
            }
            let more = if i + 1 == frags { 0 } else { NS_MOREFRAG };
            ring.set_len_flags(filled.prod, len as u16, (frags as u16) << 8 | more);
            filled.prod = n.next(filled.prod);
        }
        true
    }
}

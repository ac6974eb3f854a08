// SPDX-License-Identifier: BSD-2-Clause
//! The packets of ports and of capture files.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use unetmap::abi::NS_MOREFRAG;
use unetmap::{Port, Ring};
use unetmap_capture::{LinkType, Reader};
use unetmap_filter::HEADER_BYTES;

use crate::meter::Meter;

/// Slots whose packets are fetched into the processor's cache before they are read.
const FETCH_AHEAD: usize = 8;

/// A packet whose slots are being read.
struct Partial {
    head: [u8; HEADER_BYTES],
    /// Bytes in `head`.
    have: usize,
    /// Bytes of virtio-net header that are still to come.
    skip: usize,
    /// Bytes of the frame so far.
    len: usize,
    /// It is counted in its flow; `None` before the first slot.
    chosen: Option<bool>,
}

/// Counts all packets that have arrived at a port, and releases their slots. `header`: bytes of virtio-net header
/// before each. Returns whether there were any.
pub(crate) fn read_port(port: &Port, source: u16, header: usize, meter: &mut Meter) -> bool {
    let mut any = false;
    for ring in port.rx_rings() {
        let n = ring.space();
        if n == 0 {
            continue;
        }
        any = true;
        let bytes = read_slots(ring, n, (source, header, 0), meter, |meter| {
            meter.see(source, 1, 0);
            meter.sampler.takes()
        });
        meter.see(source, 0, bytes);
        ring.advance(n);
    }
    any
}

/// Counts the packets in the first `n` slots of a ring of which `chooses` says so; `dropped`: as of [`Meter::count`].
/// Returns the bytes of all frames.
#[inline]
pub(crate) fn read_slots(
    ring: &Ring,
    n: u32,
    (source, header, dropped): (u16, usize, u8),
    meter: &mut Meter,
    mut chooses: impl FnMut(&mut Meter) -> bool,
) -> u64 {
    let mut bytes = 0;
    let mut packet = Partial { head: [0; HEADER_BYTES], have: 0, skip: header, len: 0, chosen: None };
    let fetched = if meter.sampler.sampling.reads_many() { n } else { 0 };
    let mut ahead = ring.first(fetched).skip(FETCH_AHEAD);
    for slot in ring.first(n) {
        if let Some(next) = ahead.next() {
            next.fetch();
        }
        let (len, flags) = slot.len_flags();
        let chosen = *packet.chosen.get_or_insert_with(|| chooses(meter));
        let skipped = packet.skip.min(len.into());
        let len = usize::from(len) - skipped;
        packet.skip -= skipped;
        if chosen && packet.have < HEADER_BYTES {
            let end = HEADER_BYTES.min(packet.have + len);
            packet.have += slot.frame().read(skipped, &mut packet.head[packet.have..end]);
        }
        packet.len += len;
        bytes += len as u64;
        if flags & NS_MOREFRAG == 0 {
            packet.end((source, header, dropped), meter);
        }
    }
    // Back ends deliver whole packets: the rest of this one will not come.
    if packet.chosen.is_some() {
        packet.end((source, header, dropped), meter);
    }
    bytes
}

impl Partial {
    #[inline(always)]
    fn end(&mut self, (source, header, dropped): (u16, usize, u8), meter: &mut Meter) {
        if self.chosen == Some(true) {
            meter.count(&self.head[..self.have], self.len, source, dropped);
        }
        (self.have, self.skip, self.len, self.chosen) = (0, header, 0, None);
    }
}

/// Packets of a file that are passed over.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Skipped {
    /// Of other link types than Ethernet.
    pub(crate) other: u64,
}

/// Counts all packets of a capture file, at the times that the file has for them.
///
/// # Errors
/// A sentence; the packets before are counted.
pub(crate) fn read_file(path: &Path, source: u16, meter: &mut Meter, stop: &AtomicBool) -> Result<Skipped, String> {
    let failed = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    let file = tool_common::source::open(path).map_err(|e| failed(&tool_common::without_codes(&e.to_string())))?;
    let mut reader = Reader::new(file).map_err(|e| failed(&e))?;
    let mut skipped = Skipped::default();
    while let Some(packet) = reader.next_packet().map_err(|e| failed(&e))? {
        if stop.load(Relaxed) {
            break;
        }
        if packet.link != LinkType::ETHERNET {
            skipped.other += 1;
            continue;
        }
        if let Some(time) = packet.time {
            meter.advance(time.as_millis() as u64);
        }
        meter.see(source, 1, packet.original as u64);
        if meter.sampler.takes() {
            meter.count(&packet.bytes[..packet.bytes.len().min(HEADER_BYTES)], packet.original, source, 0);
        }
    }
    Ok(skipped)
}

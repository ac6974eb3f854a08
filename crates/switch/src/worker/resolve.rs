// SPDX-License-Identifier: BSD-2-Clause
//! Resolves where a packet of a batch goes, and mirrors batches to monitors.

use unetmap_abi::NS_BUF_CHANGED;
use unetmap_mem::Span;

use super::config::SwitchConfig;
use crate::forward::{FlowCache, Packet, Target, decide};
use crate::policy::DropReason;
use crate::port::BatchContext;

/// Mirrors the first `n` slots of a batch to the monitors of its ring.
#[inline]
pub(crate) fn mirror(BatchContext { port, ring, batch, .. }: &BatchContext<'_>, n: u32) {
    if ring.monitors.any_copy() {
        let span = Span { from: batch.start, to: batch.at(n) };
        ring.monitors.copy(&port.region, (batch.slots, batch.offsets), span);
    }
}

/// Moves the buffers of the first `n` slots of a batch, which have been forwarded, to the ring's zero-copy monitor, in
/// exchange for others.
#[inline]
pub(crate) fn hand_over(BatchContext { ring, batch, .. }: &BatchContext<'_>, n: u32) {
    if ring.monitors.any_zero_copy() {
        let span = Span { from: batch.start, to: batch.at(n) };
        // The flag that the client set was for this transfer; now it marks the buffers that the client gets.
        for p in batch.slots.slots().walk(span) {
            batch.slots.set_flags(p, batch.slots.flags(p) & !NS_BUF_CHANGED);
        }
        ring.monitors.exchange((batch.slots, batch.offsets), span);
        batch.channel.return_buffers(span);
    }
}

/// Returns where a packet goes, from the header in its sender's memory. A target port exists.
#[inline(always)]
pub(crate) fn resolve_target(
    switch: &SwitchConfig,
    BatchContext { port, batch, .. }: &BatchContext<'_>,
    cache: &mut FlowCache,
    packet: Packet,
) -> Target {
    let first = batch.slots.load(batch.at(u32::from(packet.at)));
    if batch.is_invalid(&port.region, packet) {
        return Target::Drop(DropReason::InvalidSlot);
    }
    let (len, header) = match port.vnet_hdr_len() {
        0 => (first.len, batch.frame(&port.region, first).header()),
        bytes => port.frame_after_vnet_hdr(batch, packet, bytes),
    };
    #[cfg(debug_assertions)]
    fault::inject(header);
    match decide(&switch.table, cache, port.index(), (len, first.flags), (header, 0)) {
        Target::Port(to) if switch.member(to).is_none() => Target::Drop(DropReason::NoDestination),
        target => target,
    }
}

/// Fault injection for tests, in debug builds only.
#[cfg(debug_assertions)]
mod fault {
    use std::sync::LazyLock;

    /// Frames to this address make the thread panic.
    const ADDRESS: [u8; 6] = [2, 0xfa, 0x17, 0xfa, 0x17, 0xfa];

    /// The daemon was started with `UNETMAP_FAULT=switch`.
    static ENABLED: LazyLock<bool> =
        LazyLock::new(|| std::env::var_os("UNETMAP_FAULT").is_some_and(|fault| fault == "switch"));

    pub(crate) fn inject(header: [u8; 16]) {
        if *ENABLED && header[..6] == ADDRESS {
            // No panic hook runs: tests look for other panics in the daemon's log.
            std::panic::resume_unwind(Box::new("fault injected by a test"));
        }
    }
}

// SPDX-License-Identifier: BSD-2-Clause
//! Serves one batch of a ring. Its packets take one of four paths: [same-destination runs](runs), [fan-out](fanout) to
//! several destinations, [packet by packet](packet_by_packet), or [policed] where a policy applies.

use unetmap_mem::SlotHead;

use super::config::SwitchConfig;
use super::fanout::{self, FanoutLists};
use super::full_ports::FullPorts;
use super::policed;
use super::resolve::{hand_over, mirror, resolve_target};
use crate::backpressure::Backpressure;
use crate::forward::{Cut, DestinationLists, Packet, Target};
use crate::policy::DropReason;
use crate::port::{BatchContext, PortTx, Served, SwitchPort, TxState};
use crate::tuning::{BATCH_SLOTS, HEADER_PREFETCH_SLOTS, MIN_RUN_PACKETS};

/// Forwards a batch of a port's ring, which has index `ring_index`; returns how many slots that were.
pub(crate) fn serve(
    (lists, fanout_lists, full): (&mut DestinationLists, &mut FanoutLists, &mut FullPorts),
    switch: &SwitchConfig,
    (port, ring_index, ring): (&SwitchPort, usize, &PortTx),
    backpressure: &Backpressure,
) -> u32 {
    let Some(mut guard) = ring.lock() else { return 0 };
    let Some(batch) = ring.take(&guard, switch.policies.batch_slots()) else { return 0 };
    backpressure.set_batch_slots(batch.len);
    full.tick();
    let state = &mut *guard;
    let context = BatchContext { port, ring, ring_index, batch, backpressure };
    if switch.policies.applies_to(port.index()) {
        let served = policed::serve(lists, switch, &context, state);
        hand_over(&context, served.slots);
        ring.release_batch(state, &context.batch, served, backpressure);
        return served.slots;
    }
    // Runs and fan-out support no virtio-net headers, offsets or monitors.
    let plain = port.vnet_hdr_len() == 0 && batch.offsets.mask == 0 && !ring.monitors.any();
    let mut served = Served::single(if plain { runs(full, switch, &context, state) } else { 0 });
    if plain && served.slots < batch.len && !batch.has_invalid && state.cutter.at_packet_start() {
        served += Served::single(fanout::serve(fanout_lists, switch, &context.skip(served.slots), state));
    }
    if served.slots < batch.len {
        served += packet_by_packet((lists, full), switch, &context.skip(served.slots), state);
    }
    hand_over(&context, served.slots);
    ring.release_batch(state, &context.batch, served, backpressure);
    served.slots
}

/// Forwards same-destination runs: consecutive packets with equal addresses. Returns how many slots that were; the next
/// packet is in no run.
fn runs(full: &mut FullPorts, switch: &SwitchConfig, context: &BatchContext<'_>, state: &mut TxState) -> u32 {
    let len = context.batch.len;
    let (rings, source) = (FullPorts::rings(switch, context.ring_index), usize::from(context.port.index()));
    let (mut done, mut just_resolved) = (0, false);
    while done < len && state.cutter.at_packet_start() {
        if let Some((addresses, to)) = state.cache.run(&switch.table) {
            let only_open = || full.only_open(rings, switch, source);
            let other = || switch.only_other(context.port.index());
            let (to, left_out) = match to {
                Target::Port(to) => (switch.member(to), 0),
                _ => other().map_or_else(|| (only_open(), full.left_out()), |to| (Some(to), 0)),
            };
            let Some(to) = to.filter(|to| to.accepts_runs(context.ring_index)) else { break };
            let packets = to.deliver_run(context, (addresses, done));
            if left_out > 0 {
                full.add_flooded(packets);
                context.ring.count_copies(u64::from(packets) * left_out);
            }
            done += packets;
            if just_resolved && packets < MIN_RUN_PACKETS {
                break;
            }
        } else if just_resolved {
            break;
        }
        // The packet that ended the run may begin another.
        just_resolved = true;
        if done < len {
            resolve_target(switch, context, &mut state.cache, Packet { at: done as u16, frags: 1 });
        }
    }
    done
}

/// Forwards the packets of a batch, wherever each goes. Returns how many slots that were; the rest is the beginning
/// of a packet.
fn packet_by_packet(
    (lists, full): (&mut DestinationLists, &mut FullPorts),
    switch: &SwitchConfig,
    context: &BatchContext<'_>,
    state: &mut TxState,
) -> Served {
    let BatchContext { port, ring, batch, .. } = context;
    lists.clear();
    let mut packets = 0;
    let slots = state.cutter.cut(
        batch.len,
        batch.drained,
        |i| batch.slots.flags(batch.at(i)),
        |cut| match cut {
            Cut::Packet(packet) => {
                let ahead = (u32::from(packet.at) + HEADER_PREFETCH_SLOTS).min(batch.len);
                port.region.prefetch(batch.slots.buf_idx(batch.at(ahead)));
                match resolve_target(switch, context, &mut state.cache, packet) {
                    Target::Port(to) => lists.add(packet, Some(to)),
                    Target::Flood => lists.add(packet, None),
                    Target::Drop(reason) => ring.count_drop(reason),
                }
                packets += 1;
            }
            Cut::TooLong { first } => {
                if first {
                    ring.count_drop(DropReason::TooManyFragments);
                    packets += 1;
                }
            }
        },
    );
    mirror(context, slots);
    deliver((lists, full), switch, context);
    Served { slots, packets }
}

/// Delivers the listed packets. If a packet is flooded, the whole batch is copied, unless the switch has two ports
/// only.
fn deliver((lists, full): (&DestinationLists, &mut FullPorts), switch: &SwitchConfig, context: &BatchContext<'_>) {
    context.ring.count_copies(lists.unicast_packets());
    if !lists.any_flooded() {
        for &to in lists.ports() {
            if let Some(to) = switch.member(to) {
                to.deliver(context, (lists.of(to.index()), true));
            }
        }
        return;
    }
    let mut others = 0;
    let (rings, source) = (FullPorts::rings(switch, context.ring_index), usize::from(context.port.index()));
    full.begin_batch(rings, source, lists.flooded_packets());
    if lists.ports().iter().any(|to| full.contains((*to).into())) {
        full.flush_before_batch();
    }
    let mut heads = [SlotHead::default(); BATCH_SLOTS];
    let copies = flooded_heads(lists, context, &mut heads);
    for (index, to) in switch.members.iter().enumerate().filter(|(index, _)| *index != source) {
        let Some(to) = to else { continue };
        others += 1;
        if full.contains(index) {
            continue;
        }
        let any = match copies {
            Some(copies) if !lists.has_own(to.index()) && to.accepts_copies(context) => {
                to.deliver_copies(context, copies)
            }
            _ => to.deliver(context, (lists.of(to.index()), switch.pair.is_some())),
        };
        if !any {
            full.add(index, to);
        }
    }
    context.ring.count_copies(others * lists.flooded_packets());
    if others == 0 {
        lists.flooded().for_each(|_| context.ring.count_drop(DropReason::NoDestination));
    }
}

/// Writes the slots of the flooded packets to `heads`. Returns them, if each packet is a whole slot's and begins in its
/// buffer without anything before it.
fn flooded_heads<'a>(
    lists: &DestinationLists,
    BatchContext { port, batch, .. }: &BatchContext<'_>,
    heads: &'a mut [SlotHead; BATCH_SLOTS],
) -> Option<&'a [SlotHead]> {
    if port.vnet_hdr_len() != 0 || batch.offsets.mask != 0 {
        return None;
    }
    let mut packets = 0;
    for (head, packet) in heads.iter_mut().zip(lists.flooded()) {
        if packet.frags != 1 {
            return None;
        }
        *head = batch.slots.head(batch.at(packet.at.into()));
        packets += 1;
    }
    Some(&heads[..packets])
}

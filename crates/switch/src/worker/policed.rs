// SPDX-License-Identifier: BSD-2-Clause
//! Forwards batches that a policy applies to.
//!
//! A policy must hold for the very bytes that are delivered. So each packet is first copied to memory that no client
//! can write, checked there, and delivered from there. In a switch with VLANs a staged frame has no tag; a receiver
//! that is to get the tag gets it at delivery.

use std::cell::RefCell;

use super::config::SwitchConfig;
use super::resolve::mirror;
use crate::fdb::ETHERNET_HEADER;
use crate::forward::{Cut, DestinationLists, FlowCache, Packet, Target, decide};
use crate::policy::DropReason;
use crate::policy::{Direction, PolicyCheck, Tag};
use crate::port::staged::{StagedPacket, StagingArea, remove_tag};
use crate::port::{BatchContext, Served, SwitchPort, TxState};
use crate::tuning::STAGING_KEEP_BYTES;

thread_local! {
    static STAGING_AREA: RefCell<StagingArea> = RefCell::default();
}

/// Forwards the packets of a batch, as far as the policies accept them.
#[cold]
pub(crate) fn serve(
    lists: &mut DestinationLists,
    switch: &SwitchConfig,
    context: &BatchContext<'_>,
    state: &mut TxState,
) -> Served {
    let BatchContext { port, ring, batch, .. } = context;
    STAGING_AREA.with_borrow_mut(|area| {
        area.clear();
        lists.clear();
        let mut check = switch.policies.of(port.index()).map(|policy| policy.check(Direction::In));
        let mut packets = 0;
        let slots = state.cutter.cut(
            batch.len,
            batch.drained,
            |i| batch.slots.flags(batch.at(i)),
            |cut| {
                packets += u32::from(cut != Cut::TooLong { first: false });
                let packet = match cut {
                    Cut::Packet(packet) => packet,
                    Cut::TooLong { first: true } => return ring.count_drop(DropReason::TooManyFragments),
                    Cut::TooLong { first: false } => return,
                };
                let staged = Packet { at: area.packets.len() as u16, frags: 1 };
                match stage(switch, context, area, &mut check, (&mut state.cache, packet)) {
                    Ok(Target::Port(to)) => lists.add(staged, Some(to)),
                    Ok(Target::Flood) => lists.add(staged, None),
                    Ok(Target::Drop(reason)) | Err(reason) => ring.count_drop(reason),
                }
            },
        );
        drop(check);
        mirror(context, slots);
        deliver(lists, switch, context, area);
        area.shrink(STAGING_KEEP_BYTES);
        Served { slots, packets }
    })
}

/// Copies a packet to the staging area and decides where it goes; removes the copy again if it is dropped.
fn stage(
    switch: &SwitchConfig,
    BatchContext { port, batch, .. }: &BatchContext<'_>,
    area: &mut StagingArea,
    check: &mut Option<PolicyCheck<'_>>,
    (cache, packet): (&mut FlowCache, Packet),
) -> Result<Target, DropReason> {
    // Read once: another program may change it meanwhile.
    let vnet_hdr_len = port.vnet_hdr_len();
    let header = usize::from(vnet_hdr_len);
    let flags = batch.slots.flags(batch.at(u32::from(packet.at)));
    let from = area.bytes.len();
    let result = port.stage(&mut area.bytes, batch, packet, header).and_then(|()| {
        let frame = area.bytes.get(from + header..).filter(|frame| frame.len() >= usize::from(ETHERNET_HEADER));
        let frame = frame.ok_or(DropReason::Runt)?;
        if let Some(check) = check {
            check.accept_frame(frame)?;
        }
        let tag = switch.policies.classify_vlan(port.index(), frame)?;
        if let Some(Tag { in_frame: true, .. }) = tag {
            remove_tag(&mut area.bytes, from, header);
        }
        let frame = &area.bytes[from + header..];
        let mut start = [0; 16];
        let available = frame.len().min(start.len());
        start[..available].copy_from_slice(&frame[..available]);
        let vlan = tag.map_or(0, |tag| tag.vlan());
        let len = frame.len().min(usize::from(u16::MAX)) as u16;
        let target = match decide(&switch.table, cache, port.index(), (len, flags), (start, vlan)) {
            Target::Port(to) if switch.member(to).is_none() => return Err(DropReason::NoDestination),
            Target::Port(to) if !switch.policies.carries(to, vlan) => return Err(DropReason::Vlan),
            Target::Drop(reason) => return Err(reason),
            target => target,
        };
        if let Some(check) = check {
            check.accept_forwarding(target == Target::Flood, frame.len())?;
        }
        area.packets.push(StagedPacket {
            range: from..area.bytes.len(),
            vnet_hdr_len,
            tag: tag.map_or(0, |tag| tag.control),
            has_destination: false,
        });
        Ok(target)
    });
    result.inspect_err(|_| area.bytes.truncate(from))
}

/// Delivers the listed packets.
fn deliver(lists: &DestinationLists, switch: &SwitchConfig, context: &BatchContext<'_>, area: &mut StagingArea) {
    let mut deliver = |to: &SwitchPort| {
        let listed = lists.of(to.index()).map(|packet| usize::from(packet.at));
        to.deliver_staged(&switch.policies, context, area, listed);
    };
    if lists.any_flooded() {
        let others = switch.members.iter().flatten().filter(|to| to.index() != context.port.index());
        others.for_each(|to| deliver(to));
    } else {
        lists.ports().iter().filter_map(|to| switch.member(*to)).for_each(deliver);
    }
    for packet in lists.flooded() {
        if !area.packets[usize::from(packet.at)].has_destination {
            context.ring.count_drop(DropReason::NoDestination);
        }
    }
}

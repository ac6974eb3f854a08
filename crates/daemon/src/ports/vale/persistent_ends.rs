// SPDX-License-Identifier: BSD-2-Clause
//! The two ends of a persistent port ([`super::persistent`]): which of them has its place in a switch.

use std::sync::Arc;

use unetmap_abi::NmreqRegister;
use unetmap_core::errno::EBUSY;
use unetmap_switch::port::SwitchPort;

use super::ValeKey;
use super::persistent::DAEMON_SCOPE;
use super::port::{SwitchKey, ValePort, WIRE_PROGRAM};
use super::switches::ValeState;
use crate::caller::Caller;
use crate::ports::nic::no_such_interface;
use crate::ports::{AnyPort, EndpointKey, PortKey, Registry};
use crate::refusal::{Refusal, refuse};

/// The index of the host end on the wire.
const WIRE_HOST: u8 = 1;

impl ValeState {
    /// Takes a port out of the switch of which it is a member, which remains even if it has no other; returns that
    /// switch. The caller publishes the change, and has the switch keep the port's packets in its sums.
    fn vacate(&mut self, side: &Arc<SwitchPort>) -> Option<SwitchKey> {
        let mut left = None;
        for (key, switch) in &mut self.switches {
            for (member, thread) in switch.members.iter_mut().zip(&mut switch.threads) {
                if member.as_ref().is_some_and(|member| Arc::ptr_eq(member, side)) {
                    (*member, *thread) = (None, None);
                    left = Some(key.clone());
                }
            }
        }
        left
    }

    /// Forgets the addresses of a port that has left the switch. The caller publishes the change.
    pub(super) fn leave(&mut self, (key, index): &(ValeKey, u8)) {
        if let Some(switch) = self.switches.get(&key.switch_key()) {
            switch.table.remove_port(*index);
        }
        self.switches.retain(|_, switch| switch.members.iter().any(Option::is_some));
    }
}

/// Gives the place of a persistent port in its switch to the program end if a program has it open, else to the host
/// end. Until then neither has it: packets of that moment are lost.
pub(crate) fn connect_ends(registry: &mut Registry, vale: &mut ValeState, hidden: u32) -> Result<(), Refusal> {
    let Some(port) = vale.persistent.get(hidden) else { return Ok(()) };
    let (key, wire, before, host_id) = (port.key(), port.wire_key(), port.place.clone(), port.host_end.clone());
    let program_id = PortKey::Persistent(hidden);
    let is_open = registry.is_open(&program_id);
    let has_place = registry.get::<ValePort>(&program_id).is_some_and(|program| program.is_member);
    let moves = before.0 != key;
    if has_place == is_open && !moves {
        return Ok(());
    }
    let index = if moves { vale.free_index(&key)? } else { before.1 };
    take_out(registry, vale, [&program_id, &host_id])?;
    if let Some(port) = vale.persistent.get_mut(hidden) {
        port.place = (key.clone(), index);
    }
    let mut host_key = key.clone();
    if is_open && let Some(program) = registry.get_mut::<ValePort>(&program_id) {
        program.join(vale, key, index);
        if let Some(host) = &program.host_rings {
            host.switch_side.move_to(WIRE_PROGRAM);
            vale.add(&wire, &host.switch_side);
        }
        host_key = wire;
    }
    let host_index = if is_open { WIRE_HOST } else { index };
    if let Some(host) = registry.get_mut::<ValePort>(&host_id) {
        host.join(vale, host_key, host_index);
    }
    if moves {
        vale.leave(&before);
    }
    vale.switches.retain(|_, switch| switch.members.iter().any(Option::is_some));
    vale.publish()
}

/// Takes both ends out of their switches. Afterwards no thread uses them.
pub(super) fn take_out(registry: &mut Registry, vale: &mut ValeState, ends: [&PortKey; 2]) -> Result<(), Refusal> {
    let mut left = Vec::new();
    for id in ends {
        let Some(end) = registry.get_mut::<ValePort>(id) else { continue };
        end.is_member = false;
        let sides = end.host_rings.iter().map(|host| &host.switch_side).chain([&end.switch_side]);
        left.extend(sides.filter_map(|side| Some((vale.vacate(side)?, side.clone()))));
    }
    vale.publish()?;
    for (switch, side) in left {
        vale.switches.get_mut(&switch).into_iter().for_each(|switch| switch.former.add(&side.packets()));
    }
    Ok(())
}

impl ValePort {
    /// Makes the port, which no thread uses, a member of a switch.
    fn join(&mut self, vale: &mut ValeState, key: ValeKey, index: u8) {
        self.switch_side.move_to(index);
        self.set_policy(vale.settings.active_policy(&key));
        vale.add(&key, &self.switch_side);
        (self.key, self.is_member) = (key, true);
    }
}

/// Finds the end of a persistent port that programs open, or creates it.
pub(crate) fn find_or_create(
    registry: &mut Registry,
    vale: &ValeState,
    hidden: u32,
    request: &NmreqRegister,
    caller: &Caller,
) -> Result<EndpointKey, Refusal> {
    let id = PortKey::Persistent(hidden);
    let Some(port) = vale.persistent.get(hidden) else { return no_such_interface() };
    registry.regions.check_number("persistent port", port.region, request.nr_mem_id)?;
    let mut sessions = registry.sessions.values().filter(|session| session.port == id);
    if let Some(other) = sessions.find(|session| session.uid != caller.peer.uid) {
        return refuse(EBUSY, format!("user {} has it open", other.uid));
    }
    if registry.port(&id).is_err() {
        let record = registry.regions.existing_mut(port.region)?;
        let program = ValePort::create(record, (DAEMON_SCOPE, id.clone(), port.key()), port.shape, 0)?;
        program.switch_side.set_vnet_hdr_len(port.header_for(caller.peer.uid));
        registry.insert(id.clone(), AnyPort::Vale(program));
    }
    Ok(id.into())
}

// SPDX-License-Identifier: BSD-2-Clause
//! Settings by the owners of switches: the ageing of addresses, and the rules of ports.
//!
//! ```text
//! set by      users who may open ports of the switch: its user, or root in that user's own daemon
//! stored      by the names of switch and port, whether they exist or not; the daemon runs while anything is stored
//! in force    from the port's first packet on, or, if it is open, when the request is answered
//! removed     by request (`unetmap vale port S:P off`), or when the daemon ends
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use unetmap_core::control::vale::{PortPolicy, ValeAction, ValeRequest};
use unetmap_core::errno::{EINVAL, ENOMEM};
use unetmap_switch::fdb::LIFETIME_EPOCHS;
use unetmap_switch::policy::ActivePolicy;
use unetmap_switch::tuning::MAX_FILTER_INSNS;

use super::switches::SwitchKey;
use super::{ValeKey, find};
use crate::descriptors::invalid;
use crate::ports::Daemon;
use crate::refusal::{Refusal, refuse};
use crate::region::Scope;

/// Most ports and switches of one user for which anything is set.
const MAX_SETTINGS: usize = 512;
/// Most instructions of all filters of one user's ports.
const MAX_INSNS_OF_USER: usize = 4 * MAX_FILTER_INSNS;

/// The settings of all switches.
#[derive(Default)]
pub(super) struct SwitchSettings {
    switches: BTreeMap<SwitchKey, OfSwitch>,
}

#[derive(Default)]
pub(super) struct OfSwitch {
    /// Seconds; 0: addresses do not age.
    age: u32,
    pub(super) ports: BTreeMap<String, PortPolicy>,
}

fn insns(rules: &PortPolicy) -> usize {
    rules.filters.iter().flatten().map(|filter| filter.program.len()).sum()
}

impl SwitchSettings {
    pub(super) fn is_empty(&self) -> bool {
        self.switches.is_empty()
    }

    /// The switches for which, or for whose ports, anything is set.
    pub(super) fn switches(&self) -> impl Iterator<Item = &SwitchKey> {
        self.switches.keys()
    }

    /// The settings of a switch, if anything is set.
    pub(super) fn of_switch(&self, switch: &SwitchKey) -> Option<&OfSwitch> {
        self.switches.get(switch)
    }

    /// The rules of a port, if any are set.
    pub(super) fn of(&self, key: &ValeKey) -> Option<&PortPolicy> {
        self.switches.get(&key.switch_key())?.ports.get(&key.port)
    }

    /// Returns the policy of a port that is created.
    pub(super) fn active_policy(&self, key: &ValeKey) -> Option<Arc<ActivePolicy>> {
        // A policy that cannot be applied is refused when it is set.
        ActivePolicy::new(self.of(key)?.clone()).ok().map(Arc::new)
    }

    /// Seconds after which an address is removed from the table; 0: never.
    pub(super) fn age(&self, switch: &SwitchKey) -> u32 {
        self.switches.get(switch).map_or(0, |set| set.age)
    }

    /// Changes the settings of a switch, and removes those that are back at their defaults.
    fn change(&mut self, switch: SwitchKey, how: impl FnOnce(&mut OfSwitch)) {
        let set = self.switches.entry(switch).or_default();
        how(set);
        set.ports.retain(|_, rules| *rules != PortPolicy::default());
        self.switches.retain(|_, set| set.age > 0 || !set.ports.is_empty());
    }

    /// Returns requests that would set all that is set, by user.
    pub(super) fn as_requests(&self) -> Vec<(Scope, ValeRequest)> {
        let mut requests = Vec::new();
        for ((scope, switch), set) in &self.switches {
            let mut add = |name: String, action| requests.push((*scope, ValeRequest { name, action }));
            if set.age > 0 {
                add(switch.clone(), ValeAction::Age(set.age));
            }
            for (port, policy) in &set.ports {
                policy.actions().into_iter().for_each(|action| add(format!("{switch}:{port}"), action));
            }
        }
        requests
    }

    /// Sets what such a request says. No port exists yet.
    pub(super) fn take_over(&mut self, scope: Scope, ValeRequest { name, action }: ValeRequest) -> Result<(), Refusal> {
        if let ValeAction::Age(seconds) = action {
            self.change((scope, name), |set| set.age = seconds);
            return Ok(());
        }
        let Some((switch, port)) = name.split_once(':') else { return invalid("the name of a switch port") };
        self.change((scope, switch.into()), |set| {
            action.apply_to(set.ports.entry(port.into()).or_default());
        });
        Ok(())
    }

    /// Refuses settings beyond the limits of a user: rules of a port, or settings of a switch (`port` is empty).
    fn check_room(&self, scope: Scope, switch: &str, port: &str, rules: &PortPolicy) -> Result<(), Refusal> {
        let mine = || self.switches.iter().filter(|((of, _), _)| *of == scope);
        let settings: usize = mine().map(|(_, set)| 1 + set.ports.len()).sum();
        let set = self.switches.get(&(scope, switch.to_owned()));
        let known = set.is_some_and(|set| port.is_empty() || set.ports.contains_key(port));
        if settings >= MAX_SETTINGS && !known {
            return refuse(
                ENOMEM,
                format!("{MAX_SETTINGS} switches and ports have settings already (off removes them)"),
            );
        }
        let others = |set: &OfSwitch, own: bool| -> usize {
            set.ports.iter().filter(|(name, _)| !own || *name != port).map(|(_, rules)| insns(rules)).sum()
        };
        let all: usize = mine().map(|((_, name), set)| others(set, name == switch)).sum();
        let here: usize = mine().filter(|((_, name), _)| name == switch).map(|(_, set)| others(set, true)).sum();
        let (new, most) = (insns(rules), MAX_FILTER_INSNS);
        if new > 0 && (here + new > most || all + new > MAX_INSNS_OF_USER) {
            return refuse(
                ENOMEM,
                format!(
                    "the filters of the switch would have {} instructions, more than {most} ({MAX_INSNS_OF_USER} for all switches \
                     of a user); use simpler ones",
                    here + new
                ),
            );
        }
        Ok(())
    }
}

/// Sets the seconds after which an address is removed from a switch's table.
pub(super) fn set_age(daemon: &mut Daemon, switch: &SwitchKey, seconds: u32) -> Result<(), Refusal> {
    let state = &mut daemon.vale;
    if seconds > 0 {
        state.settings.check_room(switch.0, &switch.1, "", &PortPolicy::default())?;
    }
    let before = state.settings.age(switch);
    state.settings.change(switch.clone(), |set| set.age = seconds);
    if let Some(switch) = state.switches.get_mut(switch) {
        switch.next_tick = None;
        if before == 0 {
            switch.table.reset_ages();
        }
    }
    tracing::info!(switch = switch.1, seconds, "ageing set");
    Ok(())
}

/// Changes the rules of a port.
pub(super) fn set_rules(
    daemon: &mut Daemon,
    key: &ValeKey,
    change: impl FnOnce(&mut PortPolicy),
) -> Result<(), Refusal> {
    let state = &mut daemon.vale;
    let before = state.settings.of(key).cloned().unwrap_or_default();
    let mut rules = before.clone();
    change(&mut rules);
    let policy = ActivePolicy::new(rules.clone()).or_else(|why| refuse(EINVAL, why))?;
    let policy = (rules != PortPolicy::default()).then(|| Arc::new(policy));
    if policy.is_some() {
        state.settings.check_room(key.scope, &key.switch, &key.port, &rules)?;
    }
    let vlan_changed = rules.vlan != before.vlan;
    state.settings.change(key.switch_key(), |set| {
        set.ports.insert(key.port.clone(), rules);
    });
    tracing::info!(port = key.name(), "rules set");
    let Some(port) = find(&daemon.registry, key) else { return Ok(()) };
    port.set_policy(policy);
    let index = port.index();
    state.publish()?;
    if let Some(switch) = state.switches.get(&key.switch_key()) {
        match vlan_changed {
            // Its addresses were learned in another VLAN.
            true => switch.table.remove_port(index),
            false => switch.table.invalidate_caches(),
        }
    }
    Ok(())
}

/// Lets the addresses of switches age, if it is time. Returns the time until the next call is due; `None`: none age.
pub(crate) fn age_tables(daemon: &mut Daemon) -> Option<Duration> {
    let state = &mut daemon.vale;
    if state.settings.is_empty() {
        return None;
    }
    let now = Instant::now();
    let mut next: Option<Instant> = None;
    for (key, switch) in &mut state.switches {
        let step = Duration::from_secs(state.settings.age(key).into()) / LIFETIME_EPOCHS;
        if step.is_zero() {
            continue;
        }
        let mut due = switch.next_tick.unwrap_or(now + step);
        if due <= now {
            switch.table.advance_epoch();
            // A daemon that was delayed does not catch up: no packets were learned from meanwhile either.
            due = now + step;
        }
        switch.next_tick = Some(due);
        next = Some(next.map_or(due, |next| next.min(due)));
    }
    next.map(|next| next - now)
}

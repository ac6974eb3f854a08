// SPDX-License-Identifier: BSD-2-Clause
//! Settings by the owners of switches: the ageing of addresses, and the rules of ports.
//!
//! ```text
//! set by      users who may open ports of the switch: its user, or root in that user's own daemon
//! stored      by the names of switch and port, whether they exist or not; the daemon runs while anything is stored,
//!             and what root's daemon has stored outlasts it ([`super::lasting`])
//! in force    from the port's first packet on, or, if it is open, when the request is answered
//! removed     by request (`unetmap vale port S:P off`), or when a user's own daemon ends
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use unetmap_core::control::vale::{PortPolicy, ValeAction, ValeRequest};
use unetmap_core::errno::ENOMEM;
use unetmap_switch::policy::ActivePolicy;
use unetmap_switch::tuning::MAX_FILTER_INSNS;

use super::ValeKey;
use super::port::SwitchKey;
use crate::descriptors::invalid;
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
    pub(super) age: u32,
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
    pub(super) fn change(&mut self, switch: SwitchKey, how: impl FnOnce(&mut OfSwitch)) {
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
    pub(super) fn check_room(&self, scope: Scope, switch: &str, port: &str, rules: &PortPolicy) -> Result<(), Refusal> {
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

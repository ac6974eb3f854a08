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
use std::time::Duration;

use unetmap_core::control::ControlRequest as _;
use unetmap_core::control::vale::{PortPolicy, ValeAction, ValeRequest};
use unetmap_core::errno::ENOMEM;
use unetmap_switch::policy::ActivePolicy;
use unetmap_switch::tuning::MAX_FILTER_INSNS;

use super::ValeKey;
use super::port::SwitchKey;
use crate::descriptors::invalid;
use crate::refusal::{Refusal, check_bytes, refuse};
use crate::region::Scope;
use crate::subordinates::Subordinates;

/// Most ports and switches of one user, its subordinate users with it, for which anything is set.
const MAX_SETTINGS: usize = 512;
/// Most bytes of all that one user has set, as the requests that set it: with each change the daemon writes all of it.
/// Then of what root has set, and of what all other users have. Each user, subordinate ones too, counts for
/// [`LEAST_BYTES`] at least.
const MAX_BYTES_OF_USER: usize = 256 << 10;
const MAX_BYTES_OF_ROOT: usize = 1 << 20;
const MAX_BYTES_OF_OTHERS: usize = 4 << 20;
/// A page of a file.
const LEAST_BYTES: usize = 4096;

/// The settings of all switches.
#[derive(Default)]
pub(super) struct SwitchSettings {
    switches: BTreeMap<SwitchKey, OfSwitch>,
    /// By user: bytes of the requests that set all of it.
    bytes: BTreeMap<Scope, usize>,
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

/// Returns the requests that set the rules of a port.
fn requests(switch: &str, port: &str, rules: &PortPolicy) -> impl Iterator<Item = ValeRequest> {
    let name = format!("{switch}:{port}");
    rules.actions().into_iter().map(move |action| ValeRequest { name: name.clone(), action })
}

fn age_request(switch: &str, age: u32) -> Option<ValeRequest> {
    (age > 0).then(|| ValeRequest { name: switch.to_owned(), action: ValeAction::Age(age) })
}

/// Bytes of the requests that set these ages.
fn age_bytes((_, switch): &SwitchKey, ages: [u32; 2]) -> [usize; 2] {
    ages.map(|age| bytes(age_request(switch, age).into_iter()))
}

fn bytes(requests: impl Iterator<Item = ValeRequest>) -> usize {
    requests.map(|request| request.encode().len()).sum()
}

impl OfSwitch {
    /// Returns the requests that set it.
    fn requests(&self, switch: &str) -> impl Iterator<Item = ValeRequest> {
        age_request(switch, self.age)
            .into_iter()
            .chain(self.ports.iter().flat_map(move |(port, rules)| requests(switch, port, rules)))
    }
}

impl SwitchSettings {
    pub(super) fn is_empty(&self) -> bool {
        self.switches.is_empty()
    }

    /// Users other than root who have set anything.
    pub(super) fn users(&self) -> impl Iterator<Item = u32> {
        self.bytes.keys().map(|scope| scope.uid).filter(|uid| *uid != 0)
    }

    /// The settings of a user's switches.
    fn of_user(&self, scope: Scope) -> impl Iterator<Item = (&str, &OfSwitch)> {
        let from_first = self.switches.range((scope, String::new())..);
        from_first.take_while(move |((of, _), _)| *of == scope).map(|((_, switch), set)| (&**switch, set))
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
        ActivePolicy::new(self.of(key)?.rules_for_packets()?).ok().map(Arc::new)
    }

    /// A port's name for people.
    pub(super) fn label(&self, key: &ValeKey) -> Option<String> {
        self.of(key)?.label.clone()
    }

    /// Seconds after which an address is removed from the table; 0: never.
    pub(super) fn age(&self, switch: &SwitchKey) -> u32 {
        self.switches.get(switch).map_or(0, |set| set.age)
    }

    /// The shortest time after which a switch forgets an address; `None`: none does.
    pub(super) fn least_age(&self) -> Option<Duration> {
        let ages = self.switches.values().map(|set| set.age).filter(|age| *age > 0);
        ages.min().map(|seconds| Duration::from_secs(seconds.into()))
    }

    /// Sets the ageing of a switch's addresses; 0 removes it.
    pub(super) fn set_age(&mut self, switch: &SwitchKey, seconds: u32) {
        let set = self.switches.entry(switch.clone()).or_default();
        let [before, after] = age_bytes(switch, [set.age, seconds]);
        set.age = seconds;
        self.has_changed(switch, before, after);
    }

    /// Sets the rules of a port; the default ones remove all that was set.
    pub(super) fn set_rules(&mut self, key: &ValeKey, rules: PortPolicy) {
        let (switch, size) = (key.switch_key(), |rules: &_| bytes(requests(&key.switch, &key.port, rules)));
        let (ports, after) = (&mut self.switches.entry(switch.clone()).or_default().ports, size(&rules));
        let is_default = rules == PortPolicy::default();
        let before = if is_default { ports.remove(&key.port) } else { ports.insert(key.port.clone(), rules) };
        self.has_changed(&switch, before.as_ref().map_or(0, size), after);
    }

    /// Something of a switch is set in place of something else: bytes of the requests.
    fn has_changed(&mut self, switch: &SwitchKey, before: usize, after: usize) {
        if self.switches.get(switch).is_some_and(|set| set.age == 0 && set.ports.is_empty()) {
            self.switches.remove(switch);
        }
        let all = self.bytes.entry(switch.0).or_default();
        *all = (*all + after).saturating_sub(before);
        if *all == 0 {
            self.bytes.remove(&switch.0);
        }
    }

    /// Returns requests that would set all that is set, of the users that are `wanted`.
    pub(super) fn as_requests(&self, wanted: impl Fn(Scope) -> bool) -> Vec<(Scope, ValeRequest)> {
        let all = self.switches.iter().filter(|((scope, _), _)| wanted(*scope));
        all.flat_map(|((scope, switch), set)| set.requests(switch).map(|request| (*scope, request))).collect()
    }

    /// Sets what such a request says. No port exists yet.
    pub(super) fn take_over(&mut self, scope: Scope, ValeRequest { name, action }: ValeRequest) -> Result<(), Refusal> {
        if let ValeAction::Age(seconds) = action {
            self.set_age(&(scope, name), seconds);
            return Ok(());
        }
        let Some((switch, port)) = name.split_once(':') else { return invalid("the name of a switch port") };
        let key = ValeKey { scope, switch: switch.into(), port: port.into() };
        let mut rules = self.of(&key).cloned().unwrap_or_default();
        action.apply_to(&mut rules);
        self.set_rules(&key, rules);
        Ok(())
    }

    /// Refuses rules of a port beyond the limits of a user, for whom its subordinate users count.
    pub(super) fn check_rules(
        &self,
        key: &ValeKey,
        rules: &PortPolicy,
        subordinates: &Subordinates,
    ) -> Result<(), Refusal> {
        let ValeKey { scope, switch, port } = key;
        let set = self.switches.get(&key.switch_key());
        let before = set.and_then(|set| set.ports.get(port));
        self.check_number(*scope, before.is_some(), subordinates)?;
        let ports = set.iter().flat_map(|set| &set.ports);
        let here: usize = ports.filter(|(name, _)| *name != port).map(|(_, rules)| insns(rules)).sum();
        let (new, most) = (insns(rules), MAX_FILTER_INSNS);
        if new > 0 && here + new > most {
            let all = here + new;
            return refuse(
                ENOMEM,
                format!("the filters of the switch would have {all} instructions, more than {most}; use simpler ones"),
            );
        }
        let size = |rules: &PortPolicy| bytes(requests(switch, port, rules));
        self.check_bytes(*scope, [before.map_or(0, size), size(rules)], subordinates)
    }

    /// Refuses the ageing of a switch's addresses likewise.
    pub(super) fn check_age(
        &self,
        switch: &SwitchKey,
        seconds: u32,
        subordinates: &Subordinates,
    ) -> Result<(), Refusal> {
        self.check_number(switch.0, self.switches.contains_key(switch), subordinates)?;
        self.check_bytes(switch.0, age_bytes(switch, [self.age(switch), seconds]), subordinates)
    }

    /// Refuses what a user sets, if it has set as much and this is not `known`.
    fn check_number(&self, scope: Scope, known: bool, subordinates: &Subordinates) -> Result<(), Refusal> {
        let owner = subordinates.owner(scope.uid);
        let counts = |of: &&Scope| subordinates.owner(of.uid) == owner;
        let all = self.bytes.keys().filter(counts).flat_map(|of| self.of_user(*of));
        if known || all.map(|(_, set)| 1 + set.ports.len()).sum::<usize>() < MAX_SETTINGS {
            return Ok(());
        }
        let whose = subordinates.whose(scope.uid);
        refuse(ENOMEM, format!("{MAX_SETTINGS} switches and ports of {whose} have settings already (off removes them)"))
    }

    /// Refuses `new` bytes in place of those of `before`, beyond the bounds of a user and of all but root.
    fn check_bytes(&self, scope: Scope, [before, new]: [usize; 2], subordinates: &Subordinates) -> Result<(), Refusal> {
        let own = self.bytes.get(&scope).copied().unwrap_or(0);
        let with_new = own.saturating_sub(before) + new;
        let owner = subordinates.owner(scope.uid);
        let with_others = |counts: &dyn Fn(u32) -> bool| {
            let others = self.bytes.iter().filter(|(of, _)| **of != scope && counts(of.uid));
            others.map(|(_, bytes)| (*bytes).max(LEAST_BYTES)).sum::<usize>() + with_new.max(LEAST_BYTES)
        };
        let (what, remedy) = ("settings", "off removes some");
        match scope.uid {
            _ if with_new <= own => Ok(()),
            0 => check_bytes(what, [(with_new, MAX_BYTES_OF_ROOT, "root".into())], remedy),
            uid => {
                let of_owner = with_others(&|of| subordinates.owner(of) == owner);
                let bounds = [
                    (of_owner, MAX_BYTES_OF_USER, subordinates.whose(uid)),
                    (with_others(&|of| of != 0), MAX_BYTES_OF_OTHERS, "all users but root".into()),
                ];
                check_bytes(what, bounds, remedy)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use unetmap_core::control::nic::Filter;
    use unetmap_sys::xdp::ClassicInsn;

    use super::*;

    fn key(uid: u32, n: usize) -> ValeKey {
        ValeKey { scope: Scope { uid, netns: 0 }, switch: format!("vale{}", n / 100), port: format!("p{}", n % 100) }
    }

    /// The sums that are kept are those of the requests.
    #[track_caller]
    fn assert_counted(settings: &SwitchSettings) {
        let mut counted = BTreeMap::new();
        for (scope, request) in settings.as_requests(|_| true) {
            *counted.entry(scope).or_default() += request.encode().len();
        }
        assert_eq!(settings.bytes, counted);
    }

    #[test]
    fn users_share_what_others_than_root_may_set() {
        let filter =
            Filter { expression: "x".repeat(4000), program: vec![ClassicInsn { code: 6, jt: 0, jf: 0, k: 1 }] };
        let rules = PortPolicy { filters: [Some(filter), None], storm: 7, ..PortPolicy::default() };
        let (mut settings, none) = (SwitchSettings::default(), Subordinates::default());
        let mut fill = |uid: u32| {
            let mut n = 0;
            let why = loop {
                match settings.check_rules(&key(uid, n), &rules, &none) {
                    Ok(()) => settings.set_rules(&key(uid, n), rules.clone()),
                    Err(refusal) => break refusal.why,
                }
                n += 1;
            };
            (n, why)
        };
        let (of_first, why) = fill(1);
        assert!((60..66).contains(&of_first) && why.contains("user 1 would take 26"), "{of_first}: {why}");
        let of_others: usize = (2..30).map(|uid| fill(uid).0).sum();
        assert!((900..1040).contains(&(of_first + of_others)), "{of_others} of 4 KiB in 4 MiB");
        assert!(fill(2).1.contains("user 2 would") && fill(99).1.contains("of all users but root would"));
        assert!(fill(0).0 > 3 * of_first, "root has a part of its own");
        assert_counted(&settings);
        // Less can be set at any time, and gives room to others.
        let scope = key(1, 0).scope;
        let less = PortPolicy { storm: 7, ..PortPolicy::default() };
        settings.check_rules(&key(1, 0), &less, &none).expect("less than there is");
        settings.set_rules(&key(1, 0), less);
        settings.set_age(&(scope, "vale0".into()), 300);
        assert_counted(&settings);
        for n in 0..of_first {
            settings.set_rules(&key(1, n), PortPolicy::default());
        }
        settings.set_age(&(scope, "vale0".into()), 0);
        assert_counted(&settings);
        assert!(!settings.bytes.contains_key(&scope) && settings.of_user(scope).next().is_none());
    }

    #[test]
    fn subordinate_users_have_the_settings_of_one() {
        let subordinates = Subordinates::parse("1000:100000:1000", |_| None);
        let rules = PortPolicy { storm: 7, ..PortPolicy::default() };
        // Returns how many settings of each user fit, and why no further one does.
        let fill = |uids: &mut dyn Iterator<Item = u32>, of_each: usize| {
            let mut settings = SwitchSettings::default();
            let all = uids.flat_map(|uid| (0..of_each).map(move |n| key(uid, n)));
            let refused = all.enumerate().find_map(|(at, key)| {
                let refusal = settings.check_rules(&key, &rules, &subordinates).err();
                settings.set_rules(&key, rules.clone());
                refusal.map(|refusal| (at, refusal.why))
            });
            let another = settings.check_rules(&key(1001, 0), &rules, &subordinates);
            let (fit, why) = refused.expect("a bound");
            (fit, why, another.is_ok())
        };
        let (fit, why, another_may) = fill(&mut (100_000..100_010), 100);
        // A switch of each hundred counts, too.
        assert_eq!((fit, another_may), (MAX_SETTINGS - 6, true), "{why}");
        let whose = "user 1000, whose subordinate user (subuid(5)) 100005 is,";
        assert!(why.contains(&format!("ports of {whose} have settings already")), "{why}");
        let (fit, why, another_may) = fill(&mut [1000].into_iter().chain(100_000..101_000), 1);
        assert_eq!((fit, another_may), (MAX_BYTES_OF_USER / LEAST_BYTES, true), "{why}");
        assert!(why.contains("the settings of user 1000, whose"), "{why}");
        // Ages of addresses count as well.
        let mut settings = SwitchSettings::default();
        let refused = (100_000..101_000).position(|uid| {
            let switch = key(uid, 0).switch_key();
            let refused = settings.check_age(&switch, 7, &subordinates).is_err();
            settings.set_age(&switch, 7);
            refused
        });
        assert_eq!(refused, Some(MAX_BYTES_OF_USER / LEAST_BYTES));
        let (fit, why, another_may) = fill(&mut (200_000..), 1);
        assert_eq!((fit, another_may), (MAX_BYTES_OF_OTHERS / LEAST_BYTES, false), "{why}");
    }
}

// SPDX-License-Identifier: BSD-2-Clause
//! A compiled rule set, which threads share and never change.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use unetmap_shape::Plan;

use crate::index::Index;
use crate::memo;
use crate::nat::NatSettings;
use crate::rule::{Action, Rule, RuleId};
use crate::table::Table;

/// A rule that looks packets up in the states.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probe {
    pub(crate) rule: usize,
    pub(crate) name: u16,
    /// The next probe for another name: for the same one the answer is known.
    pub(crate) next_other: usize,
}

/// Rules in the order of evaluation, with what evaluation needs.
#[derive(Debug)]
pub struct Ruleset {
    pub(crate) rules: Vec<Arc<Rule>>,
    numbers: Vec<u16>,
    pub(crate) tables: Vec<Option<Arc<Table>>>,
    pub(crate) index: Index,
    pub(crate) probes: Vec<Probe>,
    /// By the slot of a rule's identity: its generation, and its place in `rules`.
    slots: Vec<(u32, usize)>,
    plan: Arc<Plan>,
    /// NAT instances by number, in order.
    nats: Vec<(u16, Arc<NatSettings>)>,
    /// The first rule, if it decides about all packets without looking at them.
    pub(crate) always: Option<usize>,
    /// By place: rules that only look at what verdicts are remembered by.
    pub(crate) plain: Vec<bool>,
    /// Whether verdicts are remembered: not if packets have states, which change.
    pub(crate) is_remembered: bool,
    /// Whether idle connections are asked.
    pub(crate) keepalive: bool,
    /// Not that of any other rule set of this process; never 0.
    pub(crate) identity: u64,
}

static SETS: AtomicU64 = AtomicU64::new(1);

impl Ruleset {
    /// Compiles rules, which are in order and end with the default rule. `enabled` is a bitmap of the sets that are
    /// evaluated.
    pub(crate) fn new(
        rules: Vec<Arc<Rule>>,
        tables: Vec<Option<Arc<Table>>>,
        enabled: u32,
        plan: Arc<Plan>,
        nats: Vec<(u16, Arc<NatSettings>)>,
        keepalive: bool,
    ) -> Ruleset {
        let is_enabled = |rule: &Rule| enabled >> rule.set & 1 != 0;
        let index =
            Index::build(rules.iter().map(Arc::as_ref), |rule| is_enabled(rule) && rule.action != Action::CheckState);
        let mut slots = Vec::new();
        for (at, rule) in rules.iter().enumerate() {
            let slot = rule.id.slot as usize;
            if slots.len() <= slot {
                slots.resize(slot + 1, (0, usize::MAX));
            }
            slots[slot] = (rule.id.generation, at);
        }
        let mut probes: Vec<Probe> = Vec::new();
        for (at, rule) in rules.iter().enumerate().rev().filter(|(_, rule)| is_enabled(rule)) {
            let Some(state) = rule.state.filter(|state| state.probe) else { continue };
            // Counted from the end until the list is turned round.
            let next_other = match probes.last() {
                Some(next) if next.name == state.name => next.next_other,
                _ => probes.len(),
            };
            probes.push(Probe { rule: at, name: state.name, next_other });
        }
        let n = probes.len();
        probes.reverse();
        probes.iter_mut().for_each(|probe| probe.next_other = n - probe.next_other);
        let first = rules.iter().position(|rule| is_enabled(rule));
        let always = first.filter(|&at| {
            let rule = &rules[at];
            let decides = matches!(rule.action, Action::Allow | Action::Deny);
            decides && rule.tests.is_empty() && rule.state.is_none() && rule.probability.is_none() && rule.log.is_none()
        });
        let numbers = rules.iter().map(|rule| rule.number).collect();
        let plain = rules.iter().map(|rule| memo::is_plain(rule)).collect();
        let is_remembered = probes.is_empty() && rules.len() < u32::MAX as usize;
        let identity = SETS.fetch_add(1, Relaxed);
        Ruleset {
            rules,
            numbers,
            tables,
            index,
            probes,
            slots,
            plan,
            nats,
            always,
            plain,
            is_remembered,
            keepalive,
            identity,
        }
    }

    /// Returns the rules in order, the default rule last.
    pub fn rules(&self) -> &[Arc<Rule>] {
        &self.rules
    }

    /// Returns the links that rules give packets to.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// Whether there is a NAT instance.
    pub fn has_nat(&self) -> bool {
        !self.nats.is_empty()
    }

    /// Returns a NAT instance.
    pub(crate) fn nat(&self, number: u16) -> Option<&NatSettings> {
        let at = self.nats.binary_search_by_key(&number, |entry| entry.0).ok()?;
        Some(&self.nats[at].1)
    }

    /// Returns the place of the first rule with this number or a higher one.
    pub(crate) fn position(&self, number: u32) -> usize {
        self.numbers.partition_point(|&n| u32::from(n) < number)
    }

    /// Returns the first probe at the rule `from` or after it that is not for the name `asked`.
    pub(crate) fn probe_after(&self, from: usize, asked: Option<u16>) -> usize {
        let first = self.probes.partition_point(|probe| probe.rule < from);
        match self.probes.get(first) {
            Some(probe) if Some(probe.name) == asked => probe.next_other,
            _ => first,
        }
    }

    /// Returns the place of a rule.
    pub(crate) fn find(&self, id: RuleId) -> Option<usize> {
        let (generation, at) = *self.slots.get(id.slot as usize)?;
        (generation == id.generation && at != usize::MAX).then_some(at)
    }

    /// Returns the number of a rule, if it exists.
    pub fn number_of(&self, id: RuleId) -> Option<u16> {
        Some(self.rules[self.find(id)?].number)
    }
}

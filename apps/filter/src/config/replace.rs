// SPDX-License-Identifier: BSD-2-Clause
//! Replaces all rules by those of a script. A rule that is in both, with the same number, set and text, stays: it keeps
//! its counters and its states. So do the connections of a NAT instance.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use super::nat::Nat;
use super::tables::Tables;
use super::{Config, Result, dummynet};
use crate::counters::RuleCounters;
use crate::rule::{DEFAULT_RULE, Rule, RuleId};

/// The rules and translations that a script may take over from its predecessor.
#[derive(Clone, Debug, Default)]
pub(super) struct Kept {
    /// By the hash of number, set and text, in the order of the rules.
    rules: HashMap<u64, VecDeque<Arc<Rule>>>,
    pub(super) nats: BTreeMap<u16, Nat>,
}

fn hash(number: u16, set: u8, text: &str) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one((number, set, text))
}

impl Config {
    /// As [`Config::apply`], from a configuration with the default rule alone: the script replaces all rules,
    /// tables, pipes and NAT instances. Rules that are the same as before stay.
    ///
    /// # Errors
    /// As [`Config::apply`].
    pub fn replace(&self, script: &str) -> Result<(Config, String)> {
        let mut config = self.clone();
        let is_default = |rule: &Arc<Rule>| rule.number == DEFAULT_RULE && rule.id.slot == 0;
        let (default, rules) = std::mem::take(&mut config.rules).into_iter().partition(is_default);
        let rules: Vec<Arc<Rule>> = rules;
        (config.rules, config.sorted, config.highest) = (default, true, 0);
        for rule in rules {
            config.kept.rules.entry(hash(rule.number, rule.set, &rule.text)).or_default().push_back(rule);
        }
        config.kept.nats = std::mem::take(&mut config.nats);
        config.revision += 1;
        (config.tables, config.enabled) = (Tables::default(), !0);
        config.dummynet = dummynet::Dummynet::default();
        config.keepalive = true;
        let (mut config, output) = config.apply(script)?;
        for rule in std::mem::take(&mut config.kept).rules.into_values().flatten() {
            config.free(rule.id);
        }
        Ok((config, output))
    }

    /// Returns the identity and the counters of a rule that is added: those that a replaced rule had, or new ones.
    pub(super) fn identity(&mut self, number: u16, set: u8, text: &str) -> (RuleId, Arc<RuleCounters>) {
        if !self.kept.rules.is_empty()
            && let Some(same) = self.kept.rules.get_mut(&hash(number, set, text))
            && same.front().is_some_and(|rule| (rule.number, rule.set, rule.text.as_str()) == (number, set, text))
            && let Some(rule) = same.pop_front()
        {
            return (rule.id, Arc::clone(&rule.counters));
        }
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.generations.push(0);
            self.generations.len() as u32 - 1
        });
        let id = RuleId { slot, generation: self.generations[slot as usize] };
        (id, Arc::new(RuleCounters::new(self.threads)))
    }

    /// Frees the identity of a rule that is gone.
    pub(super) fn free(&mut self, id: RuleId) {
        self.generations[id.slot as usize] = id.generation.wrapping_add(1);
        self.free_slots.push(id.slot);
    }
}

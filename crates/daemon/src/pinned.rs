// SPDX-License-Identifier: BSD-2-Clause
//! Pages of files that have ended ([`crate::shared_files`]) and exist all the same: a program has put them into pipes
//! or sockets (`splice`, `vmsplice`) or registered them with io_uring, and they count for the daemon's control group.
//! The kernel tells nobody which they are, or whose. It tells how much the group has, and how much of that is of a kind
//! that it counts: the rest is pinned. What it grows by is charged to the users whose files have ended meanwhile, each
//! in proportion to their bytes, until it shrinks.

use std::collections::BTreeMap;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::budget::{Amounts, Resource};
use crate::ledger::{Charge, Ledger};
use crate::limits::MemoryGroup;
use crate::tuning::pinned::{INTERVAL, MEASURED_FROM, NOISE, NOISE_OF_CPU};

/// The pages, as far as the control group tells.
pub(crate) struct Pinned {
    /// `None`: it cannot be told.
    group: Option<MemoryGroup>,
    /// Smallest change that counts: the kernel keeps some memory for each processor, which belongs to no kind.
    noise: u64,
    measured_at: Instant,
    /// Bytes in the group when charges were last changed.
    known: u64,
    /// Bytes of each user's files that have ended since.
    ended: BTreeMap<u32, u64>,
    charges: BTreeMap<u32, Charge>,
}

/// The state for a successor of the daemon.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct SavedPinned {
    group: Option<MemoryGroup>,
    known: u64,
    charges: BTreeMap<u32, u64>,
}

fn memory(bytes: u64) -> Amounts {
    Amounts::of(Resource::Memory, bytes)
}

/// A part of `whole` in proportion; `of` is not 0.
fn share(whole: u64, part: u64, of: u64) -> u64 {
    (u128::from(whole) * u128::from(part) / u128::from(of)) as u64
}

impl Pinned {
    pub(crate) fn new() -> Pinned {
        let group = MemoryGroup::own();
        let known = group.as_ref().and_then(MemoryGroup::uncounted_bytes);
        let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64);
        Pinned {
            group: group.filter(|_| known.is_some()),
            noise: NOISE + cpus * NOISE_OF_CPU,
            measured_at: Instant::now(),
            known: known.unwrap_or(0),
            ended: BTreeMap::new(),
            charges: BTreeMap::new(),
        }
    }

    /// A file of a user has ended, for which it was charged so many bytes.
    pub(crate) fn ended(&mut self, uid: u32, bytes: u64) {
        let ended = self.ended.entry(uid).or_default();
        *ended = ended.saturating_add(bytes);
    }

    /// Bytes that a user is charged.
    pub(crate) fn of(&self, uid: u32) -> u64 {
        self.charges.get(&uid).map_or(0, |charge| charge.amounts()[Resource::Memory])
    }

    /// Returns the amounts that users are charged.
    pub(crate) fn amounts(&self) -> impl Iterator<Item = (u32, Amounts)> {
        self.charges.iter().map(|(uid, charge)| (*uid, charge.amounts()))
    }

    /// Measures, if so much has ended that it matters; and now and then as long as a user is charged.
    pub(crate) fn update(&mut self, ledger: &Ledger) {
        let Some(group) = &self.group else { return self.ended.clear() };
        let is_due = !self.charges.is_empty() && self.measured_at.elapsed() >= INTERVAL;
        if !is_due && self.ended.values().sum::<u64>() < MEASURED_FROM {
            return;
        }
        self.measured_at = Instant::now();
        if let Some(bytes) = group.uncounted_bytes() {
            self.measured(ledger, bytes);
        }
    }

    fn measured(&mut self, ledger: &Ledger, bytes: u64) {
        let ended: u64 = self.ended.values().sum();
        if bytes > self.known.saturating_add(self.noise) {
            let grown = (bytes - self.known).min(ended);
            for (uid, of_user) in &self.ended {
                let more = share(grown, *of_user, ended.max(1));
                let charge = self.charges.entry(*uid).or_insert_with(|| ledger.charge(*uid, memory(0)));
                charge.set(memory(charge.amounts()[Resource::Memory] + more));
            }
        } else if bytes < self.known && !self.charges.is_empty() || bytes < self.noise {
            let charged: u64 = self.charges.values().map(|charge| charge.amounts()[Resource::Memory]).sum();
            let left = if bytes < self.noise { 0 } else { (charged + bytes).saturating_sub(self.known) };
            for charge in self.charges.values_mut() {
                charge.set(memory(share(left, charge.amounts()[Resource::Memory], charged.max(1))));
            }
        } else {
            // Those that ended long ago pinned nothing.
            self.ended.values_mut().for_each(|bytes| *bytes /= 2);
            return self.ended.retain(|_, bytes| *bytes > 0);
        }
        self.charges.retain(|_, charge| charge.amounts() != Amounts::default());
        self.known = bytes;
        self.ended.clear();
    }

    pub(crate) fn save(&self) -> SavedPinned {
        let charges = self.charges.iter().map(|(uid, charge)| (*uid, charge.amounts()[Resource::Memory])).collect();
        SavedPinned { group: self.group.clone(), known: self.known, charges }
    }

    /// Goes on with what another daemon has charged, if this one is in the same group.
    pub(crate) fn restore(&mut self, saved: SavedPinned, ledger: &Ledger) {
        if self.group.is_some() && self.group == saved.group {
            self.known = saved.known;
            let charges = saved.charges.into_iter().map(|(uid, bytes)| (uid, ledger.charge(uid, memory(bytes))));
            self.charges = charges.collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn pinned() -> (Pinned, Ledger) {
        (Pinned { known: 10 * MIB, noise: MIB, ..Pinned::new() }, Ledger::default())
    }

    fn charged(pinned: &Pinned) -> [u64; 2] {
        [1, 2].map(|uid| pinned.of(uid) / MIB)
    }

    #[test]
    fn growth_is_charged_to_those_whose_files_have_ended() {
        let (mut pinned, ledger) = pinned();
        pinned.measured(&ledger, 100 * MIB);
        assert_eq!(charged(&pinned), [0, 0], "not of our files");
        pinned.ended(1, 30 * MIB);
        pinned.ended(2, 10 * MIB);
        pinned.measured(&ledger, 120 * MIB);
        assert_eq!(charged(&pinned), [15, 5]);
        pinned.ended(2, 4 * MIB);
        pinned.measured(&ledger, 160 * MIB);
        assert_eq!((charged(&pinned), ledger.of(2).0[Resource::Memory]), ([15, 9], 9 * MIB), "at most what has ended");
        // Those who open and close pay nothing for what does not grow.
        for _ in 0..100 {
            pinned.ended(2, 50 * MIB);
            pinned.measured(&ledger, 160 * MIB);
        }
        assert_eq!(charged(&pinned), [15, 9]);
        pinned.measured(&ledger, 148 * MIB);
        assert_eq!(charged(&pinned), [7, 4], "each in proportion");
        pinned.measured(&ledger, MIB / 2);
        assert!(pinned.charges.is_empty() && ledger.all().is_empty());
    }

    #[test]
    fn small_changes_count_once_they_are_large_together() {
        let (mut pinned, ledger) = pinned();
        for n in 1..=8 {
            pinned.ended(1, 2 * MIB);
            pinned.measured(&ledger, 10 * MIB + n * MIB / 2);
        }
        assert!(charged(&pinned)[0] >= 2, "{:?}", charged(&pinned));
    }

    #[test]
    fn a_successor_in_the_same_group_goes_on() {
        let (mut pinned, ledger) = pinned();
        pinned.ended(1, 30 * MIB);
        pinned.measured(&ledger, 40 * MIB);
        let next = Ledger::default();
        let mut restored = Pinned::new();
        restored.restore(pinned.save(), &next);
        let expected = if pinned.group.is_some() { 30 * MIB } else { 0 };
        assert_eq!((restored.of(1), next.of(1).0[Resource::Memory]), (expected, expected));
        let mut elsewhere = Pinned { group: None, ..Pinned::new() };
        elsewhere.restore(pinned.save(), &next);
        assert_eq!(elsewhere.of(1), 0);
    }
}

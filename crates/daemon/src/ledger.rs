// SPDX-License-Identifier: BSD-2-Clause
//! Sums of what each user has of the daemon. An amount is charged where it comes into being, and given back when the
//! [`Charge`] that stands for it is dropped.

use std::collections::BTreeMap;
use std::mem;
use std::sync::{Arc, Mutex};

use crate::budget::Amounts;
use crate::subordinates::Subordinates;
use crate::threads::lock;

/// The amounts of all users.
#[derive(Clone, Default)]
pub(crate) struct Ledger(Arc<Mutex<Totals>>);

#[derive(Default)]
struct Totals {
    /// Of users who have anything.
    users: BTreeMap<u32, Amounts>,
    /// Of all users but root.
    others: Amounts,
    subordinates: Subordinates,
}

/// An amount that a user has for as long as this exists.
pub(crate) struct Charge {
    ledger: Ledger,
    uid: u32,
    amounts: Amounts,
}

impl Ledger {
    /// Charges a user.
    pub(crate) fn charge(&self, uid: u32, amounts: Amounts) -> Charge {
        let mut charge = Charge { ledger: self.clone(), uid, amounts: Amounts::default() };
        charge.set(amounts);
        charge
    }

    /// From now on these users count for others.
    pub(crate) fn set_subordinates(&self, subordinates: Subordinates) {
        lock(&self.0).subordinates = subordinates;
    }

    /// Returns the amounts of a user and of all who count for the same one, and of all users but root together.
    pub(crate) fn of(&self, uid: u32) -> (Amounts, Amounts) {
        let Totals { users, others, subordinates } = &*lock(&self.0);
        let owner = subordinates.owner(uid);
        let mut own = users.get(&owner).copied().unwrap_or_default();
        let ranges = subordinates.of(owner).iter().flat_map(|range| users.range(range.clone()));
        ranges.filter(|(of, _)| subordinates.owner(**of) == owner).for_each(|(_, amounts)| own += *amounts);
        (own, *others)
    }

    /// Returns the amounts of all users, root included.
    pub(crate) fn everybody(&self) -> Amounts {
        let totals = lock(&self.0);
        totals.others.and(totals.users.get(&0).copied().unwrap_or_default())
    }

    /// Returns the amounts of each user.
    pub(crate) fn all(&self) -> BTreeMap<u32, Amounts> {
        lock(&self.0).users.clone()
    }
}

impl Charge {
    pub(crate) fn amounts(&self) -> Amounts {
        self.amounts
    }

    /// Charges another amount instead.
    pub(crate) fn set(&mut self, amounts: Amounts) {
        let before = mem::replace(&mut self.amounts, amounts);
        let mut totals = lock(&self.ledger.0);
        let change = |sum: &mut Amounts| {
            *sum -= before;
            *sum += amounts;
        };
        if self.uid != 0 {
            change(&mut totals.others);
        }
        let own = totals.users.entry(self.uid).or_default();
        change(own);
        if *own == Amounts::default() {
            totals.users.remove(&self.uid);
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.set(Amounts::default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Resource;

    #[test]
    fn what_is_charged_is_given_back() {
        let ledger = Ledger::default();
        let rings = |n| Amounts::of(Resource::Rings, n);
        let (root, mut first, second) =
            (ledger.charge(0, rings(7)), ledger.charge(1, rings(3)), ledger.charge(1, rings(4)));
        let other = ledger.charge(2, rings(5));
        assert_eq!((ledger.of(0), ledger.of(1)), ((rings(7), rings(12)), (rings(7), rings(12))));
        assert_eq!(ledger.everybody(), rings(19));
        first.set(rings(1));
        assert_eq!(ledger.of(1), (rings(5), rings(10)));
        drop((first, second, root));
        assert_eq!(ledger.all().into_iter().collect::<Vec<_>>(), [(2, rings(5))]);
        drop(other);
        assert!(ledger.all().is_empty() && ledger.of(2) == Default::default());
    }

    #[test]
    fn subordinate_users_count_for_their_owner() {
        let ledger = Ledger::default();
        let rings = |n| Amounts::of(Resource::Rings, n);
        let _charges =
            [(1000, 1), (100_000, 2), (100_009, 4), (100_010, 8)].map(|(uid, n)| ledger.charge(uid, rings(n)));
        assert_eq!(ledger.of(100_009).0, rings(4));
        ledger.set_subordinates(Subordinates::parse("1000:100000:10", |_| None));
        for uid in [1000, 100_000, 100_009, 100_005] {
            assert_eq!(ledger.of(uid), (rings(7), rings(15)), "{uid}");
        }
        assert_eq!(ledger.of(100_010).0, rings(8));
    }
}

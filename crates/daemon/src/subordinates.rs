// SPDX-License-Identifier: BSD-2-Clause
//! Subordinate users: numbers that the system has given to a user for its user namespaces (subuid(5)). A program can
//! have each of them by no more than the user's will, in a namespace or by a setuid file that was made there, so all
//! of them have the user's one budget and turn. What they own stays each one's: the container of a user is trusted less
//! than the user.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, PoisonError, RwLock};

use serde::{Deserialize, Serialize};

/// The least number of a person's account. A system account with a range, such as a container engine's or the
/// kubelet's, gives the numbers to programs of many.
const FIRST_USER: u32 = 1000;

/// Consecutive numbers that a user has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Numbers {
    owner: u32,
    numbers: Range<u32>,
}

/// The ranges of this system, for threads without the daemon.
static OF_SYSTEM: RwLock<Option<Subordinates>> = RwLock::new(None);

/// The ranges of all users.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<Numbers>", into = "Vec<Numbers>")]
pub(crate) struct Subordinates(Arc<Ranges>);

#[derive(Debug, Default, PartialEq, Eq)]
struct Ranges {
    /// In the order of their numbers, of which none is in two.
    all: Vec<Numbers>,
    of: BTreeMap<u32, Vec<Range<u32>>>,
}

impl From<Vec<Numbers>> for Subordinates {
    fn from(mut all: Vec<Numbers>) -> Subordinates {
        all.sort_by_key(|range| range.numbers.start);
        all.dedup_by(|later, before| later.numbers.start < before.numbers.end);
        let mut of = BTreeMap::<u32, Vec<_>>::new();
        all.iter().for_each(|range| of.entry(range.owner).or_default().push(range.numbers.clone()));
        Subordinates(Arc::new(Ranges { all, of }))
    }
}

impl From<Subordinates> for Vec<Numbers> {
    fn from(all: Subordinates) -> Vec<Numbers> {
        all.0.all.clone()
    }
}

impl Subordinates {
    /// The ranges of a file, by lines `USER:FIRST:COUNT`; others are passed over. `number_of` finds a user by its name.
    pub(crate) fn parse(text: &str, mut number_of: impl FnMut(&str) -> Option<u32>) -> Subordinates {
        let mut known = BTreeMap::new();
        let ranges = text.lines().filter_map(|line| {
            let mut fields = line.trim().split(':');
            let (user, first, count) = (fields.next()?, fields.next()?, fields.next()?);
            let (first, count) = (first.parse::<u32>().ok()?, count.parse::<u32>().ok()?);
            let owner = user.parse().ok().or_else(|| *known.entry(user).or_insert_with(|| number_of(user)))?;
            let numbers = first..first.saturating_add(count);
            let is_persons = owner >= FIRST_USER && first > 0 && !numbers.is_empty();
            is_persons.then_some(Numbers { owner, numbers })
        });
        Subordinates::from(ranges.collect::<Vec<_>>())
    }

    /// The user whose budget and turn a user has: mostly its own.
    pub(crate) fn owner(&self, uid: u32) -> u32 {
        let Ranges { all, of } = &*self.0;
        let before = all.partition_point(|range| range.numbers.start <= uid);
        let range = before.checked_sub(1).and_then(|at| all.get(at)).filter(|range| range.numbers.contains(&uid));
        range.filter(|_| !of.contains_key(&uid)).map_or(uid, |range| range.owner)
    }

    /// Returns the ranges without these users, who count for themselves.
    pub(crate) fn without(&self, separate: &[u32]) -> Subordinates {
        let mut all = self.0.all.clone();
        for uid in separate {
            let Some(at) = all.iter().position(|range| range.numbers.contains(uid)) else { continue };
            let Numbers { owner, numbers } = all.remove(at);
            let parts = [numbers.start..*uid, uid + 1..numbers.end].into_iter().filter(|part| !part.is_empty());
            all.extend(parts.map(|numbers| Numbers { owner, numbers }));
        }
        Subordinates::from(all)
    }

    /// A user as the beginning of a sentence about what counts for it.
    pub(crate) fn whose(&self, uid: u32) -> String {
        match self.owner(uid) {
            owner if owner == uid => format!("user {uid}"),
            owner => format!("user {owner}, whose subordinate user (subuid(5)) {uid} is,"),
        }
    }

    /// The subordinate users of a user.
    pub(crate) fn of(&self, owner: u32) -> &[Range<u32>] {
        self.0.of.get(&owner).map_or(&[], |ranges| ranges)
    }

    /// The sum of the numbers of all users who count for the same one as `uid`.
    pub(crate) fn sum(&self, uid: u32, numbers: impl Iterator<Item = (u32, u32)>) -> u32 {
        let owner = self.owner(uid);
        numbers.filter(|(of, _)| self.owner(*of) == owner).map(|(_, number)| number).sum()
    }

    /// From now on these are the system's.
    pub(crate) fn set_of_system(&self) {
        *OF_SYSTEM.write().unwrap_or_else(PoisonError::into_inner) = Some(self.clone());
    }

    /// The system's.
    pub(crate) fn of_system() -> Subordinates {
        OF_SYSTEM.read().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or_default()
    }

    /// Whether these are the very ranges of `other`, without a look at them.
    pub(crate) fn is_same(&self, other: &Subordinates) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_in_a_range_is_its_owners() {
        let text = "alice:100000:65536\n1001:165536:65536\nalice:300000:2\n# none\nalice:x:1\nkubelet:400000:9\n\
                    nobody-knows:500000:9\nbob:165536:9\n1001:1002:1\n1001:0:9\n1002:4294967290:100";
        let number_of = |name: &str| {
            [("alice", 1000), ("kubelet", 999), ("bob", 1002)]
                .into_iter()
                .find_map(|(of, uid)| (of == name).then_some(uid))
        };
        let all = Subordinates::parse(text, number_of);
        for (uid, owner) in [
            (0, 0),
            (1000, 1000),
            (99_999, 99_999),
            (100_000, 1000),
            (165_535, 1000),
            (165_536, 1001),
            (300_001, 1000),
            (300_002, 300_002),
            // Programs of many.
            (400_000, 400_000),
            (500_000, 500_000),
            // A user with numbers of its own, whatever others were given.
            (1002, 1002),
            (4_294_967_294, 1002),
            (u32::MAX, u32::MAX),
        ] {
            assert_eq!(all.owner(uid), owner, "{uid}");
        }
        assert_eq!(all.of(1000), [100_000..165_536, 300_000..300_002]);
        assert!(all.of(100_000).is_empty());
        let numbers = [(1000, 1), (1001, 2), (100_000, 4), (300_001, 8), (300_002, 16)];
        assert_eq!([100_001, 1000, 1001, 7].map(|uid| all.sum(uid, numbers.into_iter())), [13, 13, 2, 0]);
        // Without the first of a range, one in the middle, the last, one in no range, and one twice.
        let fewer = all.without(&[100_000, 100_007, 165_535, 99_999, 100_007, 4_294_967_294]);
        for (uid, owner) in [
            (100_000, 100_000),
            (100_001, 1000),
            (100_006, 1000),
            (100_007, 100_007),
            (100_008, 1000),
            (165_534, 1000),
            (165_535, 165_535),
            (165_536, 1001),
            (4_294_967_293, 1002),
            (4_294_967_294, 4_294_967_294),
        ] {
            assert_eq!(fewer.owner(uid), owner, "{uid}");
        }
        assert_eq!(fewer.of(1000), [100_001..100_007, 100_008..165_535, 300_000..300_002]);
        assert_eq!(all.whose(1000) + " has", "user 1000 has");
        assert_eq!(all.whose(100_001), "user 1000, whose subordinate user (subuid(5)) 100001 is,");
        let copy: Subordinates = serde_json::from_str(&serde_json::to_string(&all).unwrap()).unwrap();
        assert!(copy == all && !copy.is_same(&all) && all.clone().is_same(&all));
    }
}

// SPDX-License-Identifier: BSD-2-Clause
//! Long texts that were sent as files. A client can keep such a file for as long as it wants, and its memory counts for
//! the daemon's control group, not for the client's. So the daemon keeps each one that was sent to a user with a
//! budget, and takes its memory back after a while, or for the user's next ones ([`crate::closer`]).

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use crate::budget::{Amounts, Resource};
use crate::ledger::{Charge, Ledger};
use crate::tuning::texts::{LIMIT, MOST_OF_USER};

/// Texts whose memory was not taken back, the oldest first.
#[derive(Default)]
pub(crate) struct Texts(VecDeque<Text>);

struct Text {
    uid: u32,
    since: Instant,
    file: OwnedFd,
    charge: Charge,
}

impl Texts {
    /// A text of so many bytes was sent to a user. Returns the user's oldest one if these are too many.
    pub(crate) fn add(&mut self, uid: u32, file: OwnedFd, bytes: u64, ledger: &Ledger) -> Option<OwnedFd> {
        let amounts = Amounts::of(Resource::Descriptors, 1).and(Amounts::of(Resource::Memory, bytes));
        let charge = ledger.charge(uid, amounts);
        let own = self.0.iter().filter(|text| text.uid == uid).count();
        let oldest = self.0.iter().position(|text| text.uid == uid).filter(|_| own >= MOST_OF_USER);
        self.0.push_back(Text { uid, since: Instant::now(), file, charge });
        oldest.and_then(|at| self.0.remove(at)).map(|text| text.file)
    }

    /// Returns a text that is old enough; and the time until the next one is.
    pub(crate) fn take_due(&mut self, now: Instant) -> Result<(u32, OwnedFd), Option<Duration>> {
        let left = self.0.front().map(|text| LIMIT.saturating_sub(now.saturating_duration_since(text.since)));
        match self.0.pop_front_if(|_| left == Some(Duration::ZERO)) {
            Some(text) => Ok((text.uid, text.file)),
            None => Err(left),
        }
    }

    /// What users are charged.
    pub(crate) fn amounts(&self) -> impl Iterator<Item = (u32, Amounts)> {
        self.0.iter().map(|text| (text.uid, text.charge.amounts()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_charged_until_they_are_old_or_too_many() {
        let (ledger, mut texts) = (Ledger::default(), Texts::default());
        let mut add = |uid| {
            let file = unetmap_sys::memfd::create_unsealed("text").unwrap();
            texts.add(uid, file, 100, &ledger).is_some()
        };
        assert!(!add(8) && (0..MOST_OF_USER).all(|_| !add(7)) && add(7) && !add(9));
        let own = ledger.of(7).0;
        let most = MOST_OF_USER as u64;
        assert_eq!((own[Resource::Memory], own[Resource::Descriptors]), (100 * most, most));
        let now = Instant::now();
        assert!(texts.take_due(now).is_err_and(|left| left.is_some_and(|left| left <= LIMIT && !left.is_zero())));
        let mut users = Vec::new();
        while let Ok((uid, _)) = texts.take_due(now + LIMIT) {
            users.push(uid);
        }
        assert_eq!((users.len(), users[0], users[most as usize + 1]), (MOST_OF_USER + 2, 8, 9));
        assert!(texts.take_due(now).is_err_and(|left| left.is_none()) && ledger.all().is_empty());
    }
}

// SPDX-License-Identifier: BSD-2-Clause
//! The budgets in the policy's file: tables `[[budget]]` for users, and `[total]` for all of them.

use std::num::NonZeroU32;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use toml::Spanned;

use super::words::{Accounts, Word, users};
use crate::budget::{Budgets, Resource, Stated};
use crate::written::{Written, Wrong, wrong};

/// A table `[[budget]]`, or `[total]`. Keys that are missing have their default.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WrittenBudget {
    users: Option<Vec<Spanned<Word>>>,
    requests: Option<NonZeroU32>,
    connections: Option<u64>,
    descriptors: Option<u64>,
    rings: Option<u64>,
    slots: Option<u64>,
    /// Bytes.
    #[serde(default, deserialize_with = "memory")]
    memory: Option<u64>,
    threads: Option<u64>,
    in_flight: Option<u64>,
}

impl WrittenBudget {
    fn stated(&self) -> Stated {
        Stated(Resource::ALL.map(|resource| match resource {
            Resource::Connections => self.connections,
            Resource::Descriptors => self.descriptors,
            Resource::Rings => self.rings,
            Resource::Slots => self.slots,
            Resource::Memory => self.memory,
            Resource::Threads => self.threads,
            Resource::InFlight => self.in_flight,
        }))
    }
}

fn memory<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let text = Written::deserialize(deserializer)?.to_string();
    let wrong = |why| D::Error::custom(format!("memory is `{text}`: {why}"));
    unetmap_quantity::mebibytes(&text).map(Some).map_err(wrong)
}

pub(super) fn understand(
    of_users: Vec<WrittenBudget>,
    total: Option<Spanned<WrittenBudget>>,
    accounts: Accounts,
) -> Result<Budgets, Wrong> {
    let mut budgets = Budgets::default();
    for written in of_users {
        let named = written.users.as_ref().map(|named| users(named, accounts)).transpose()?.flatten();
        budgets.users.push((named, written.stated(), written.requests.map(NonZeroU32::get)));
    }
    if let Some(total) = total {
        let written = total.get_ref();
        if written.users.is_some() || written.requests.is_some() {
            let why =
                "[total] is about all users together, and has neither `users` nor `requests`; [[budget]] has them";
            return wrong(&total.span(), why);
        }
        budgets.total = written.stated();
    }
    Ok(budgets)
}

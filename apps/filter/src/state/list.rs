// SPDX-License-Identifier: BSD-2-Clause
//! States as they are listed.

use std::net::IpAddr;

use super::{Entry, NONE, Rest, StateTable, joined};
use crate::rule::RuleId;

/// A state, as listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateInfo {
    /// Its rule.
    pub rule: RuleId,
    /// Its name, for [`crate::Config::state_name`].
    pub name: u16,
    /// Whether it counts towards a limit.
    pub is_limited: bool,
    /// Protocol.
    pub proto: u8,
    /// Addresses and ports, those of the first packet's sender first.
    pub ends: [(IpAddr, u16); 2],
    /// Packets and bytes that matched the state.
    pub packets: u64,
    /// As `packets`.
    pub bytes: u64,
    /// Milliseconds until it expires.
    pub left: u64,
}

impl StateTable {
    /// Returns the states that have not expired.
    pub(crate) fn list(&self, now: u64) -> Vec<StateInfo> {
        self.list_part(&mut 0, usize::MAX, now).unwrap_or_default()
    }

    /// Returns those among the next `n` entries from `at` on; `None` at the end.
    pub(crate) fn list_part(&self, at: &mut usize, n: usize, now: u64) -> Option<Vec<StateInfo>> {
        let end = at.saturating_add(n).min(self.entries.len());
        let part = std::mem::replace(at, end)..end;
        if part.is_empty() {
            return None;
        }
        let all = self.entries[part.clone()].iter().zip(&self.rest[part]);
        let live = all.filter(|(entry, _)| entry.packets > 0 && entry.expires > now);
        let info = |(entry, rest): (&Entry, &Rest)| {
            let end = |i: usize| {
                let i = i ^ usize::from(entry.swapped);
                let address = match entry.is_ipv6 {
                    true => IpAddr::V6(joined(rest.high[i], entry.low[i]).into()),
                    false => IpAddr::V4((entry.low[i] as u32).into()),
                };
                (address, entry.ports[i])
            };
            StateInfo {
                rule: entry.rule,
                name: entry.name,
                is_limited: rest.limit != NONE,
                proto: entry.proto,
                ends: [end(0), end(1)],
                packets: entry.packets,
                bytes: entry.bytes,
                left: entry.expires - now,
            }
        };
        Some(live.map(info).collect())
    }
}

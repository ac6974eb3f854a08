// SPDX-License-Identifier: BSD-2-Clause
//! Budgets: how much of the daemon one user, and all users together, can have.
//!
//! Root and the users of their own daemons have none. What a user has is kept up to date (`ledger`).

use std::ops::{AddAssign, Index, IndexMut, SubAssign};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use unetmap_core::errno::{EDQUOT, EMFILE};
use unetmap_mem::{ChannelPage, EndpointPage, RingShape};

use crate::shape::EndpointShape;
use crate::subordinates::Subordinates;
use crate::tuning::budget::{DEFAULT, DEFAULT_REQUESTS, DEFAULT_TOTAL, IN_FLIGHT_USERS, MAX_LEFT_FILES, USER_SHARE};

/// Something that a user has at the daemon's cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Resource {
    Connections,
    /// File descriptors of the daemon.
    Descriptors,
    Rings,
    /// Slots of all rings. They bound the time of requests that read whole rings.
    Slots,
    /// Bytes that the daemon touches or locks in memory.
    Memory,
    /// Threads of the daemon that serve one user's ports alone.
    Threads,
    /// File descriptors in answers that the user's programs have not received (`in_flight`).
    InFlight,
}

impl Resource {
    pub(crate) const ALL: [Resource; 7] = [
        Resource::Connections,
        Resource::Descriptors,
        Resource::Rings,
        Resource::Slots,
        Resource::Memory,
        Resource::Threads,
        Resource::InFlight,
    ];

    /// The key in the policy file.
    pub(crate) const fn key(self) -> &'static str {
        match self {
            Resource::Connections => "connections",
            Resource::Descriptors => "descriptors",
            Resource::Rings => "rings",
            Resource::Slots => "slots",
            Resource::Memory => "memory",
            Resource::Threads => "threads",
            Resource::InFlight => "in_flight",
        }
    }

    /// Returns an amount as people read it.
    pub(crate) fn text(self, amount: u64) -> String {
        match self {
            Resource::Memory => format!("{} MiB of memory", amount.div_ceil(MIB)),
            Resource::Descriptors => format!("{amount} file descriptors"),
            Resource::InFlight => format!("{amount} file descriptors in answers that were not received"),
            other => format!("{amount} {}", other.key()),
        }
    }

    pub(crate) const fn errno(self) -> i32 {
        match self {
            Resource::Connections | Resource::Descriptors | Resource::InFlight => EMFILE,
            Resource::Rings | Resource::Slots | Resource::Memory | Resource::Threads => EDQUOT,
        }
    }
}

/// Bytes.
pub(crate) const MIB: u64 = 1 << 20;
/// Bytes of a page.
pub(crate) const PAGE: u64 = 4096;

/// An amount of each resource.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Amounts(pub(crate) [u64; Resource::ALL.len()]);

impl Index<Resource> for Amounts {
    type Output = u64;

    fn index(&self, resource: Resource) -> &u64 {
        &self.0[resource as usize]
    }
}

impl IndexMut<Resource> for Amounts {
    fn index_mut(&mut self, resource: Resource) -> &mut u64 {
        &mut self.0[resource as usize]
    }
}

impl AddAssign for Amounts {
    fn add_assign(&mut self, other: Amounts) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, more)| *sum = sum.saturating_add(more));
    }
}

impl SubAssign for Amounts {
    fn sub_assign(&mut self, other: Amounts) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, less)| *sum = sum.saturating_sub(less));
    }
}

impl Amounts {
    /// An amount of one resource.
    pub(crate) fn of(resource: Resource, amount: u64) -> Amounts {
        let mut amounts = Amounts::default();
        amounts[resource] = amount;
        amounts
    }

    /// A connection: its descriptor, and that of the process, which a lock holder's connection has.
    pub(crate) fn connection() -> Amounts {
        Amounts::of(Resource::Connections, 1).and(Amounts::of(Resource::Descriptors, 2))
    }

    /// `count` endpoints of this shape, and the memory of their rings.
    pub(crate) fn endpoints(count: u64, shape: EndpointShape) -> Amounts {
        let ring_bytes = |slots| (RingShape::bytes(slots) as u64).next_multiple_of(PAGE);
        let of_rings = u64::from(shape.all_tx()) * ring_bytes(shape.tx_slots)
            + u64::from(shape.all_rx()) * ring_bytes(shape.rx_slots);
        Amounts::endpoints_in_region(count, shape).and(Amounts::of(Resource::Memory, count * of_rings))
    }

    /// `count` endpoints of this shape, whose rings are charged with their region: a doorbell for each ring and a state
    /// page for each endpoint, and a page for the channels. Those of an end of a pipe that is opened later are counted,
    /// too: then it can be opened.
    pub(crate) fn endpoints_in_region(count: u64, shape: EndpointShape) -> Amounts {
        let rings = count * u64::from(shape.all_rings());
        let shared_pages =
            |rings: u32| (EndpointPage::bytes(rings as usize) + ChannelPage::bytes(rings as usize)) as u64;
        let mut amounts = Amounts::of(Resource::Descriptors, rings + count + 1);
        amounts[Resource::Rings] = rings;
        amounts[Resource::Slots] = count * u64::from(shape.all_slots());
        amounts[Resource::Memory] = count * shared_pages(shape.all_rings());
        amounts
    }

    /// A region of these sizes: its file, and the daemon's record of its buffers. The pages that the daemon touches are
    /// charged with the file ([`crate::shared_files`]).
    pub(crate) fn region(bufs: u32) -> Amounts {
        Amounts::of(Resource::Descriptors, 1).and(Amounts::of(Resource::Memory, u64::from(bufs).div_ceil(4)))
    }

    /// Buffers, as their number and the bytes of one, which the daemon fills, or an interface locks in memory.
    pub(crate) fn buffers((count, size): (u32, u32)) -> Amounts {
        Amounts::of(Resource::Memory, u64::from(count) * u64::from(size))
    }

    /// Extra buffers, which the daemon links into a list.
    pub(crate) fn extra_buffers(count: u32, buf_size: u32) -> Amounts {
        Amounts::of(Resource::Memory, u64::from(count) * u64::from(buf_size).min(PAGE))
    }

    /// The lesser of both, for each resource.
    pub(crate) fn at_most(self, bound: Amounts) -> Amounts {
        Amounts(Resource::ALL.map(|r| self[r].min(bound[r])))
    }

    /// The sum.
    pub(crate) fn and(mut self, other: Amounts) -> Amounts {
        self += other;
        self
    }
}

/// The budget of one user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Budget {
    pub(crate) amounts: Amounts,
    /// Requests in a second. More wait.
    pub(crate) requests: u32,
}

/// The users' bounds, which follow from the machine's limits for the daemon ([`crate::limits`]).
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Bounds {
    /// All users together, root included.
    pub(crate) all: Amounts,
    /// All but root.
    pub(crate) others: Amounts,
    /// The limit that bounds each resource.
    pub(crate) by: [Arc<str>; Resource::ALL.len()],
    /// Files that the daemon can watch for all but root ([`crate::shared_files`]).
    pub(crate) watches: u64,
}

impl Default for Bounds {
    /// Nothing is limited.
    fn default() -> Bounds {
        let all = Amounts([u64::MAX; Resource::ALL.len()]);
        Bounds { all, others: all, by: Resource::ALL.map(|_| Arc::from("")), watches: u64::MAX }
    }
}

impl Bounds {
    /// Descriptors in flight that root may have, or the one user of a daemon without a policy.
    pub(crate) fn in_flight_of_root(&self) -> u64 {
        (self.all[Resource::InFlight] - self.others[Resource::InFlight]).max(1)
    }

    /// Descriptors that only root can have.
    pub(crate) fn reserve(&self) -> u64 {
        self.all[Resource::Descriptors] - self.others[Resource::Descriptors]
    }
}

/// Amounts that the policy file states; `None`: it does not.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Stated(pub(crate) [Option<u64>; Resource::ALL.len()]);

impl Stated {
    /// The stated amounts, else those of `default`.
    fn or(self, default: impl Fn(Resource) -> u64) -> Amounts {
        Amounts(Resource::ALL.map(|r| self.0[r as usize].unwrap_or_else(|| default(r))))
    }
}

/// The budgets of the policy file.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Budgets {
    /// The first that names a user is this user's, with its requests in a second; `None` names all users.
    pub(crate) users: Vec<(Option<Vec<u32>>, Stated, Option<u32>)>,
    /// Of all users but root together.
    pub(crate) total: Stated,
    /// Users who have the budget of another one; brokers of earlier daemons know of none.
    #[serde(default)]
    pub(crate) subordinates: Subordinates,
}

impl Budgets {
    /// The budget of a user: what the policy states, or the default. It is at most what there is, and a default leaves
    /// some of that to others; of descriptors in flight any budget does.
    pub(crate) fn of(&self, uid: u32, bounds: &Bounds) -> Budget {
        let uid = self.subordinates.owner(uid);
        let names = |users: &Option<Vec<u32>>| users.as_ref().is_none_or(|users| users.contains(&uid));
        let stated = self.users.iter().find(|(users, ..)| names(users));
        let (stated, requests) = stated.map_or((Stated::default(), None), |(_, stated, requests)| (*stated, *requests));
        let default = |r: Resource| DEFAULT[r as usize].min(bounds.others[r] / USER_SHARE);
        let mut amounts = stated.or(default).at_most(bounds.others);
        let in_flight = self.total(bounds)[Resource::InFlight] / IN_FLIGHT_USERS;
        amounts[Resource::InFlight] = amounts[Resource::InFlight].min(in_flight).max(1);
        Budget { amounts, requests: requests.unwrap_or(DEFAULT_REQUESTS) }
    }

    /// The budget of all users but root.
    pub(crate) fn total(&self, bounds: &Bounds) -> Amounts {
        self.total.or(|r| DEFAULT_TOTAL[r as usize]).at_most(bounds.others)
    }

    /// The least charge for a file that the daemon has closed: all but root can pay for as many as can be watched, and
    /// handed over.
    pub(crate) fn least_of_file(&self, bounds: &Bounds) -> u64 {
        let files = bounds.watches.clamp(1, MAX_LEFT_FILES);
        self.total(bounds)[Resource::Memory].div_ceil(files).next_multiple_of(PAGE)
    }

    /// Returns the limit that bounds an amount of all users but root.
    pub(crate) fn total_is_limited_by(&self, r: Resource, bounds: &Bounds) -> String {
        let stated = self.total.0[r as usize];
        if bounds.others[r] < stated.unwrap_or(DEFAULT_TOTAL[r as usize]) {
            return bounds.by[r as usize].to_string();
        }
        if stated.is_some() { "[total] of the policy" } else { "the default (unetmap-policy(5))" }.into()
    }

    /// Sentences about what the policy states and the machine does not have.
    pub(crate) fn excessive(&self, bounds: &Bounds) -> Vec<String> {
        let tables = self.users.iter().map(|(_, stated, _)| ("[[budget]]", stated)).chain([("[total]", &self.total)]);
        let too_much = tables.flat_map(|(table, stated)| {
            Resource::ALL.into_iter().filter_map(move |r| {
                let (stated, there_is) = (stated.0[r as usize]?, bounds.others[r]);
                (stated > there_is).then(|| {
                    let (key, by) = (r.key(), &bounds.by[r as usize]);
                    let [stated, there_is] = [stated, there_is].map(|amount| r.text(amount));
                    format!("`{key}` in {table} is {stated}, and counts as {there_is}: {by}")
                })
            })
        });
        too_much.collect()
    }
}

// SPDX-License-Identifier: BSD-2-Clause
//! Amounts that each user has of the daemon, and whether it may have more.
//!
//! It is charged where it is created (`ledger`), as every request for more needs the sums. A request that would exceed
//! a budget is refused before anything is created for it. The sizes of what it would create bound the time that it
//! takes, too.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use unetmap_core::errno::EDQUOT;

use super::Daemon;
use crate::budget::{Amounts, Bounds, Budgets, Resource};
use crate::ledger::Ledger;
use crate::refusal::{Refusal, refuse};
use crate::region::{DAEMON_UID, RegionKey, RegionRecord, Scope};
use crate::shared_files::FileBounds;
use crate::tuning::budget::LARGEST_PORT;

/// Amounts and bounds of one user, or of all together, for `unetmap ls --users`.
#[derive(Serialize)]
pub(crate) struct UserSnapshot {
    /// `None`: all users but root.
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<u32>,
    /// The user for whom it counts, if that is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    counts_for: Option<u32>,
    #[serde(flatten)]
    resources: BTreeMap<&'static str, Share>,
    /// Requests in a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    requests: Option<u32>,
    /// Requests that exceeded a budget since the user's first open connection.
    refused: u64,
}

/// How much of a resource users can have.
#[derive(Serialize)]
pub(crate) struct TotalSnapshot {
    resource: &'static str,
    /// All users but root.
    total: u64,
    /// With root; `None`: it has no limit.
    with_root: Option<u64>,
    /// The limit of the total, in words.
    limited_by: String,
}

#[derive(Serialize)]
struct Share {
    used: u64,
    /// `None`: no budget.
    limit: Option<u64>,
}

/// Bounds and amounts of users at one time.
pub(crate) struct BudgetCheck {
    budgets: Budgets,
    bounds: Arc<Bounds>,
    ledger: Ledger,
}

impl BudgetCheck {
    /// Requests that a user may make in a second.
    pub(crate) fn request_rate(&self, uid: u32) -> u32 {
        self.budgets.of(uid, &self.bounds).requests
    }

    /// The bounds of a user's files.
    fn file_bounds(&self, uid: u32) -> FileBounds {
        let budgets = [self.budgets.of(uid, &self.bounds).amounts, self.budgets.total(&self.bounds)];
        let most = budgets.map(|amounts| amounts[Resource::Memory]);
        FileBounds { most, least: self.budgets.least_of_file(&self.bounds) }
    }

    /// Refuses what would give a user more than its budget, or all users more than theirs.
    pub(crate) fn check(&self, uid: u32, more: Amounts) -> Result<(), Refusal> {
        let (own, all) = self.ledger.of(uid);
        let (budget, total) = (self.budgets.of(uid, &self.bounds).amounts, self.budgets.total(&self.bounds));
        let largest = budget[Resource::Slots] / LARGEST_PORT;
        if more[Resource::Slots] > largest {
            return refuse(
                EDQUOT,
                format!(
                    "it has {} slots, and user {uid} may open ports of at most {largest}: open fewer or shorter rings, \
                     or raise `slots` in [[budget]] of the policy to {LARGEST_PORT} times as many (unetmap-policy(5))",
                    more[Resource::Slots]
                ),
            );
        }
        let whose = format!("{} has", self.budgets.subordinates.whose(uid));
        let checks = [(own, budget, &whose[..], "[[budget]]"), (all, total, "all users but root have", "[total]")];
        for (used, limit, who, table) in checks {
            let Some(r) = exceeded(used, more, limit) else { continue };
            let raise = match limit[r] < self.bounds.others[r] {
                true => format!("or raise `{}` in {table} of the policy", r.key()),
                false => format!("or raise {}", self.bounds.by[r as usize]),
            };
            return refuse(
                r.errno(),
                format!(
                    "{who} {} here, this needs {}, and the budget is {}: close something, {raise} (unetmap-policy(5), \
                     unetmap ls --users)",
                    r.text(used[r]),
                    r.text(more[r]),
                    r.text(limit[r]),
                ),
            );
        }
        self.check_all(more)
    }

    /// Refuses what would be more than there is: nobody's budget, and so the only one that root has.
    fn check_all(&self, more: Amounts) -> Result<(), Refusal> {
        let used = self.ledger.everybody();
        let Some(r) = exceeded(used, more, self.bounds.all) else { return Ok(()) };
        refuse(
            r.errno(),
            format!(
                "all users have {} here, this needs {}, and the daemon can give them {}: close something, or raise {} \
                 (unetmap-policy(5), unetmap ls --users)",
                r.text(used[r]),
                r.text(more[r]),
                r.text(self.bounds.all[r]),
                self.bounds.by[r as usize]
            ),
        )
    }

    /// Says why nothing more is sent to a user, if so: the number of an answer's descriptors is known only when its
    /// request was done.
    fn check_in_flight(&self, uid: u32, has_budget: bool) -> Result<(), String> {
        let (r, (own, all)) = (Resource::InFlight, self.ledger.of(uid));
        let of_user =
            if has_budget { self.budgets.of(uid, &self.bounds).amounts[r] } else { self.bounds.in_flight_of_root() };
        let of_all = if has_budget { self.budgets.total(&self.bounds)[r] } else { u64::MAX };
        let whose = format!("{} has", self.budgets.subordinates.whose(uid));
        let whose = [(own[r], of_user, whose), (all[r], of_all, "all users but root have".into())];
        match whose.into_iter().find(|(used, limit, _)| used >= limit) {
            None => Ok(()),
            Some((used, limit, who)) => Err(format!(
                "{who} {}, and the limit is {limit}: continue or end the programs that do not receive their answers \
                 (unetmap ls --users)",
                r.text(used)
            )),
        }
    }
}

/// The first resource of which there would be more than the limit.
fn exceeded(used: Amounts, more: Amounts, limit: Amounts) -> Option<Resource> {
    Resource::ALL.into_iter().find(|r| more[*r] > 0 && used[*r].saturating_add(more[*r]) > limit[*r])
}

impl Daemon {
    /// The policy's budgets. Warns of those that are more than there is, once they were read.
    fn budgets(&mut self) -> Budgets {
        let budgets = match self.admission.policy() {
            Ok(policy) => policy.map(|policy| policy.budgets().clone()),
            // The last ones that could be read.
            Err(_) => self.users.compared.clone(),
        };
        let budgets = budgets.unwrap_or_default();
        if self.users.compared.as_ref() != Some(&budgets) {
            let path = self.admission.policy.as_ref().map(|file| file.path().display().to_string()).unwrap_or_default();
            budgets.excessive(&self.users.bounds).iter().for_each(|why| tracing::warn!("{path}: {why}"));
            self.users.subordinates = budgets.subordinates.clone();
            budgets.subordinates.set_of_system();
            self.users.ledger.set_subordinates(budgets.subordinates.clone());
            self.users.compared = Some(budgets.clone());
        }
        budgets
    }

    /// From now on users have at most so much of what there is.
    pub(crate) fn set_bounds(&mut self, bounds: Bounds) {
        (self.users.bounds, self.users.compared) = (Arc::new(bounds), None);
        self.budgets();
    }

    /// Refuses a request that would give a user more than its budget, or all users more than theirs.
    pub(crate) fn check_budget(&mut self, scope: Scope, more: Amounts) -> Result<(), Refusal> {
        self.registry.regions.files.update();
        if self.admission.has_no_budget(scope.uid) {
            // The policy says nothing about it, and is not read.
            let (bounds, ledger) = (self.users.bounds.clone(), self.users.ledger.clone());
            let checked = BudgetCheck { budgets: Budgets::default(), bounds, ledger }.check_all(more);
            return checked.inspect_err(|refusal| self.budget_reached(scope.uid, refusal));
        }
        // Now and then, as it looks at all ports.
        if self.registry.last_session().is_multiple_of(64) {
            self.check_charges();
        }
        let check = self.budget_check();
        self.registry.regions.files.bound(scope.uid, check.file_bounds(scope.uid));
        check
            .check(scope.uid, more)
            .map_err(|refusal| self.with_left_memory(scope.uid, refusal))
            .inspect_err(|refusal| self.budget_reached(scope.uid, refusal))
    }

    /// Refuses so many buffers for a port that its user may not have; `fills`: the daemon is to move packets in them,
    /// and in all others of their region.
    pub(crate) fn check_buffers(&mut self, region: RegionKey, count: u32, fills: bool) -> Result<(), Refusal> {
        let record = self.registry.regions.existing(region)?;
        let scope = Scope { uid: record.payer, ..record.scope };
        let amounts = record.of_buffers(count, fills);
        if scope.uid != DAEMON_UID && amounts != Amounts::default() {
            self.check_budget(scope, amounts)?;
        }
        if fills {
            self.registry.regions.existing_mut(region)?.fill();
        }
        Ok(())
    }

    /// Whether no user with a budget would have memory that nobody counts, if the daemon ended.
    pub(crate) fn forgets_nothing(&mut self) -> bool {
        self.admission.policy.is_none() || !self.registry.regions.files.are_any_left()
    }

    /// Adds how much memory of a user is that of ports which it has closed.
    fn with_left_memory(&self, uid: u32, refusal: Refusal) -> Refusal {
        let left = self.registry.regions.files.left_by(uid);
        if refusal.errno != Resource::Memory.errno() || left == 0 {
            return refusal;
        }
        let left = Resource::Memory.text(left);
        let why = format!(
            "{}; of user {uid}, {left} is that of ports which are closed, and whose memory programs still have mapped, \
             open, or in pipes and sockets: end these programs, or have them unmap and close it",
            refusal.why
        );
        Refusal { why, ..refusal }
    }

    /// Why a request of this user is not begun: as many descriptors as it may have, or all users but root, are in
    /// answers that were not received.
    pub(crate) fn check_in_flight(&mut self, uid: u32) -> Result<(), String> {
        let (own, all) = self.users.ledger.of(uid);
        if own[Resource::InFlight] == 0 && all[Resource::InFlight] == 0 {
            return Ok(());
        }
        let has_budget = !self.admission.has_no_budget(uid);
        self.budget_check().check_in_flight(uid, has_budget)
    }

    /// Counts a request that was refused as it exceeds a budget.
    pub(crate) fn budget_reached(&mut self, uid: u32, refusal: &Refusal) {
        self.users.count_refusal(uid);
        self.events.budget_reached(uid, &refusal.why);
    }

    /// Returns the bounds and amounts of users now.
    pub(crate) fn budget_check(&mut self) -> BudgetCheck {
        BudgetCheck { budgets: self.budgets(), bounds: self.users.bounds.clone(), ledger: self.users.ledger.clone() }
    }

    /// In builds for debugging: compares what users are charged with what there is.
    pub(crate) fn check_charges(&self) {
        // What is charged for memory that is prepared is in no list.
        if cfg!(debug_assertions) && !self.registry.regions.are_any_prepared() {
            let (charged, counted) = (self.users.ledger.all(), self.counted_usage());
            assert_eq!(charged, counted, "charged, counted");
            let mut all = Amounts::default();
            counted.iter().filter(|(uid, _)| **uid != 0).for_each(|(_, amounts)| all += *amounts);
            assert_eq!(self.users.ledger.of(0).1, all, "all users but root");
        }
    }

    /// Counts the amounts of each user anew.
    fn counted_usage(&self) -> BTreeMap<u32, Amounts> {
        let mut usage = BTreeMap::<u32, Amounts>::new();
        for (uid, user) in &self.users.connected {
            let sum = usage.entry(*uid).or_default();
            let Amounts(one) = Amounts::connection();
            *sum += Amounts(one.map(|amount| amount * user.connections));
        }
        let files = self.registry.regions.files.amounts();
        for (uid, amounts) in self.users.in_flight.amounts().chain(files).chain(self.vale.amounts()) {
            *usage.entry(uid).or_default() += amounts;
        }
        for port in self.registry.records().filter(|port| port.scope.uid != DAEMON_UID) {
            *usage.entry(port.payer).or_default() += port.usage();
        }
        for record in self.registry.regions.iter().filter(|record| record.scope.uid != DAEMON_UID) {
            *usage.entry(record.payer).or_default() += record.amounts();
        }
        // The buffers of a region are locked once, for all interfaces in it.
        let locking = self.registry.records().filter(|port| port.locks_buffers && port.scope.uid != DAEMON_UID);
        for (region, user) in locking.map(|port| (port.region, port.scope.uid)).collect::<BTreeMap<_, _>>() {
            let region = self.registry.regions.get(region);
            *usage.entry(user).or_default() += region.map(RegionRecord::locked_buffers).unwrap_or_default();
        }
        for session in self.registry.sessions.values() {
            if let Some(charge) = &session.descriptors {
                *usage.entry(session.uid).or_default() += charge.amounts();
            }
        }
        usage.retain(|_, amounts| *amounts != Amounts::default());
        usage
    }

    /// Returns amounts and bounds: of user `only`, or of each user and all together.
    pub(crate) fn user_snapshots(&mut self, only: Option<u32>) -> Vec<UserSnapshot> {
        self.registry.regions.files.update();
        let (budgets, usage, bounds) = (self.budgets(), self.users.ledger.all(), self.users.bounds.clone());
        self.check_charges();
        let row = |uid: Option<u32>, used: Amounts, limit: Option<Amounts>, requests, refused| {
            let limit =
                |r| limit.map(|limit| limit[r]).or((r == Resource::InFlight).then(|| bounds.in_flight_of_root()));
            let share = |r: Resource| Share { used: used[r], limit: limit(r) };
            let resources = Resource::ALL.into_iter().map(|r| (r.key(), share(r))).collect();
            let counts_for = uid.map(|uid| budgets.subordinates.owner(uid)).filter(|owner| Some(*owner) != uid);
            UserSnapshot { uid, counts_for, resources, requests, refused }
        };
        let shown = usage.iter().filter(|(uid, _)| only.is_none_or(|only| only == **uid));
        let refused = |uid: &u32| self.users.connected.get(uid).map_or(0, |user| user.refused);
        let mut rows: Vec<UserSnapshot> = shown
            .map(|(uid, used)| {
                let budget = (!self.admission.has_no_budget(*uid)).then(|| budgets.of(*uid, &bounds));
                row(Some(*uid), *used, budget.map(|b| b.amounts), budget.map(|b| b.requests), refused(uid))
            })
            .collect();
        if only.is_none() && self.admission.policy.is_some() {
            let mut all = Amounts::default();
            usage.iter().filter(|(uid, _)| **uid != 0).for_each(|(_, amounts)| all += *amounts);
            let refused = self.users.connected.values().map(|user| user.refused).sum();
            rows.push(row(None, all, Some(budgets.total(&bounds)), None, refused));
        }
        rows
    }

    /// Returns the bounds of all users but root together, and their limits: nothing in a user's own daemon.
    pub(crate) fn total_snapshots(&mut self) -> Vec<TotalSnapshot> {
        if self.admission.policy.is_none() {
            return Vec::new();
        }
        let (budgets, bounds) = (self.budgets(), self.users.bounds.clone());
        let total = budgets.total(&bounds);
        let all = |r: Resource| Some(bounds.all[r]).filter(|amount| *amount != u64::MAX);
        let row = |r: Resource| TotalSnapshot {
            resource: r.key(),
            total: total[r],
            with_root: all(r),
            limited_by: budgets.total_is_limited_by(r, &bounds),
        };
        Resource::ALL.into_iter().map(row).collect()
    }
}

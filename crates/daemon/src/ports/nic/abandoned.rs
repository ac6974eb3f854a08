// SPDX-License-Identifier: BSD-2-Clause
//! Namespaces that nobody uses any more, but for the daemon: the socket of an attached interface, and the watch of its
//! changes, keep its namespace alive after its last name and process.
//!
//! A thread asks now and then whether a namespace with attached interfaces still has a name or a thread. If it had one
//! before and has none twice in a row, its interfaces are treated as gone, so that everything is closed, and the kernel
//! ends the namespace. One in which the daemon has never seen either, as that of a container whose processes are not
//! visible here, stays as long as an interface is attached.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

use unetmap_sys::netns::Netns;

use super::NicKey;
use super::kernel_work::{Done, KernelWork};
use super::lookup::any_is_away;
use crate::broker;
use crate::ports::Registry;
use crate::privileged;
use crate::threads;
use crate::tuning::nic::{ABANDONED_AGAIN, ABANDONED_INTERVAL, ABANDONED_ROUNDS};

/// The namespaces that have attached interfaces.
#[derive(Default)]
pub(crate) struct AbandonedNamespaces {
    /// When a thread asks next; `None`: there are no such namespaces.
    due: Option<Instant>,
    /// Whether one asks now.
    is_asking: bool,
    /// Queues that were in use, and in how many rounds since then they were not.
    unused_for: BTreeMap<u64, u32>,
}

impl AbandonedNamespaces {
    /// An interface was attached.
    pub(crate) fn attached(&mut self) {
        self.due.get_or_insert_with(Instant::now);
    }

    /// The namespaces that were in use.
    pub(super) fn save(&self) -> Vec<u64> {
        self.unused_for.keys().copied().collect()
    }

    pub(super) fn restore(saved: Vec<u64>) -> AbandonedNamespaces {
        let unused_for = saved.into_iter().map(|netns| (netns, 0)).collect();
        AbandonedNamespaces { due: Some(Instant::now()), is_asking: false, unused_for }
    }

    /// Has a thread of `work` ask when it is due about the namespaces of `attached` interfaces; returns the time until
    /// then.
    pub(crate) fn ask(
        &mut self,
        work: &KernelWork,
        attached: impl Iterator<Item = NicKey>,
        now: Instant,
    ) -> Option<Duration> {
        let due = self.due?;
        if due > now {
            return Some(due - now);
        }
        self.due = None;
        let own = Netns::current().map_or(0, |netns| netns.id());
        let asked: BTreeSet<u64> = attached.map(|nic| nic.netns).filter(|netns| *netns != own).collect();
        self.unused_for.retain(|netns, _| asked.contains(netns));
        if asked.is_empty() {
            return None;
        }
        self.due = Some(now + ABANDONED_INTERVAL);
        if let Some(sender) = work.sender().filter(|_| !self.is_asking) {
            let ask = move || {
                let used =
                    broker::beside_control(|| privileged::used_namespaces(asked.iter().copied().collect::<Vec<_>>()));
                sender.send(Done::Namespaces { asked, used });
            };
            // If no thread can be started now, one may be later.
            self.is_asking = threads::start("namespaces", ask).is_ok();
        }
        Some(ABANDONED_INTERVAL)
    }

    /// Takes the answer; returns the attached interfaces of namespaces that have ended but for the daemon.
    pub(super) fn answered(
        &mut self,
        registry: &Registry,
        asked: BTreeSet<u64>,
        used: io::Result<Vec<u64>>,
    ) -> BTreeSet<(u64, u32)> {
        self.is_asking = false;
        let mut gone = BTreeSet::new();
        let used = used.unwrap_or_else(|e| {
            tracing::debug!("whether namespaces are in use is not known: {e}");
            asked.iter().copied().collect()
        });
        for netns in asked {
            if used.contains(&netns) {
                self.unused_for.insert(netns, 0);
                continue;
            }
            let Some(rounds) = self.unused_for.get_mut(&netns) else { continue };
            *rounds += 1;
            if *rounds >= ABANDONED_ROUNDS && !any_is_away(registry, netns) {
                tracing::info!(netns, "a namespace has lost its last name and process: its interfaces are detached");
                let attached = registry.attached_interfaces().filter(|nic| nic.netns == netns);
                gone.extend(attached.map(|nic| (netns, nic.index)));
            } else {
                self.due = Some(Instant::now() + ABANDONED_AGAIN);
            }
        }
        gone
    }
}

// SPDX-License-Identifier: BSD-2-Clause
//! Ports and attached interfaces of an earlier daemon that are to be served again: [`super::serving_again`] does it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use unetmap_abi::NmreqValeNewif;
use unetmap_core::errno::ENXIO;
use unetmap_sys::link::Link;
use unetmap_sys::netns::Netns;

use super::ValeKey;
use super::persistent::{LastingPort, PersistentSnapshot, PersistentState};
use super::port::host_key;
use crate::caller::Caller;
use crate::ports::nic::NicKey;
use crate::privileged;
use crate::refusal::Refusal;
use crate::region::Scope;
use crate::shape::EndpointShape;
use crate::tuning::broker::{FORMER_LIMIT, FORMER_PAUSE, RETURNS_AT_ONCE};

/// The processors that poll the queues of an attached interface, if some do.
pub(super) type Polling = Option<BTreeMap<u16, u32>>;

/// An interface that is attached to a switch, as the next daemon finds it described.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct LastingAttachment {
    pub(super) key: ValeKey,
    /// Its number in the switch.
    pub(super) index: u8,
    /// The number of the port of its host rings, if these are attached, too.
    pub(super) host_index: Option<u8>,
    pub(super) interface: Attached,
    /// Of each of its transmit and receive rings.
    pub(super) slots: (u32, u32),
    pub(super) polling: Polling,
}

#[derive(Clone, Serialize, Deserialize)]
pub(super) enum Attached {
    Interface {
        netns: u64,
        index: u32,
        mac: Option<[u8; 6]>,
    },
    /// A persistent port that is attached to a second switch, by its hidden end.
    Persistent(u32),
    Sink(u32),
}

/// All of them that are not served yet.
#[derive(Default)]
pub(crate) struct Returning {
    pub(super) ports: VecDeque<Left<LeftPort>>,
    /// Ports whose sockets a thread opens, by their hidden ends.
    pub(super) opening: BTreeMap<NicKey, Left<LeftPort>>,
    pub(super) attachments: VecDeque<Left<LastingAttachment>>,
    /// The namespaces of these.
    pub(super) namespaces: Vec<Arc<Netns>>,
    /// When the first was found; `None`: nothing was.
    pub(super) since: Option<Instant>,
    pub(super) served: usize,
    /// When the last was served again.
    pub(super) progress: Option<Instant>,
}

/// A port, or an attached interface.
pub(super) struct Left<T> {
    pub(super) what: T,
    /// When it failed for the first time, and when it is tried again.
    failed: Option<(Instant, Instant)>,
}

/// A persistent port.
pub(super) struct LeftPort {
    pub(super) record: LastingPort,
    /// Its hidden end, when it was found.
    pub(super) link: Link,
    pub(super) request: NmreqValeNewif,
    pub(super) shape: EndpointShape,
}

impl<T> Left<T> {
    fn new(what: T) -> Left<T> {
        Left { what, failed: None }
    }

    fn due(&self, now: Instant) -> Duration {
        self.failed.map_or(Duration::ZERO, |(_, again)| again.saturating_duration_since(now))
    }

    /// Whether it is tried again after a failure, for as long as what processes had that were killed may be held: the
    /// kernel releases it some time after their end, one after the other; the last was served again at `progress`. An
    /// interface that is gone does not come back.
    pub(super) fn is_tried_again(&mut self, refusal: &Refusal, progress: Option<Instant>, now: Instant) -> bool {
        let (first, _) = self.failed.unwrap_or((now, now));
        self.failed = Some((first, now + FORMER_PAUSE));
        refusal.errno != ENXIO && now - progress.map_or(first, |progress| first.max(progress)) < FORMER_LIMIT
    }
}

/// Takes the first that is due.
pub(super) fn take_due<T>(all: &mut VecDeque<Left<T>>, now: Instant) -> Option<Left<T>> {
    let at = all.iter().position(|left| left.due(now).is_zero())?;
    all.remove(at)
}

impl Returning {
    pub(super) fn new(ports: Vec<LeftPort>, attachments: Vec<LastingAttachment>, namespaces: Vec<Arc<Netns>>) -> Self {
        let ports = ports.into_iter().map(Left::new).collect();
        let attachments = attachments.into_iter().map(Left::new).collect();
        Returning { ports, attachments, namespaces, since: Some(Instant::now()), ..Default::default() }
    }

    /// One more is served.
    pub(super) fn has_served(&mut self) {
        (self.served, self.progress) = (self.served + 1, Some(Instant::now()));
    }

    /// Whether all is served that can be.
    pub(crate) fn is_empty(&self) -> bool {
        self.ports.is_empty() && self.opening.is_empty() && self.attachments.is_empty()
    }

    /// Persistent ports that are not served yet.
    pub(super) fn ports(&self) -> impl Iterator<Item = &LeftPort> {
        self.opening.values().chain(&self.ports).map(|left| &left.what)
    }

    /// Attached interfaces that are not served yet.
    pub(super) fn attachments(&self) -> impl Iterator<Item = &LastingAttachment> {
        self.attachments.iter().map(|left| &left.what)
    }

    /// The namespaces of attached interfaces that are not served yet.
    pub(super) fn namespaces(&self) -> impl Iterator<Item = &Arc<Netns>> {
        self.namespaces.iter().filter(|_| !self.attachments.is_empty())
    }

    /// Whether this port is not served yet, by its hidden end; `None`: whether anything is not.
    pub(crate) fn awaits(&self, hidden: Option<u32>) -> bool {
        hidden.map_or(!self.is_empty(), |hidden| self.ports().any(|port| port.record.hidden == hidden))
    }

    /// Has a port that a request waits for served as the next.
    pub(crate) fn prefer(&mut self, hidden: u32) {
        let left = self.ports.iter().position(|left| left.what.record.hidden == hidden);
        left.and_then(|at| self.ports.remove(at)).into_iter().for_each(|left| self.ports.push_front(left));
    }

    /// Returns the port that a request about the port `name` of a switch waits for, by its hidden end; the inner
    /// `None`: all that is left; the outer one: nothing.
    pub(crate) fn behind_name(&self, scope: Scope, name: &str) -> Option<Option<u32>> {
        let (switch, port) = name.split_once(':')?;
        let port = port.split(['{', '}']).next().unwrap_or(port);
        let key = ValeKey { scope, switch: switch.into(), port: port.into() };
        let found = self.ports().find(|port| port.record.attached.as_ref() == Some(&key));
        let attached = |left: &LastingAttachment| left.key == key || host_key(&left.key) == key;
        let of_port = found.map(|port| Some(port.record.hidden));
        of_port.or_else(|| self.attachments().any(attached).then_some(None))
    }

    /// Returns the port that a request about an interface waits for, by its hidden end.
    pub(crate) fn behind_link(&self, persistent: &PersistentState, link: &Link, caller: &Caller) -> Option<u32> {
        let (hidden_namespace, netns) = (persistent.hidden_namespace.as_ref()?, caller.netns()?);
        if self.ports().next().is_none() || link.kind.as_deref() != Some("veth") {
            return None;
        }
        let hidden = privileged::veth_end_in(netns, hidden_namespace, link.index).ok().flatten();
        hidden.filter(|hidden| self.awaits(Some(*hidden)))
    }

    pub(super) fn snapshots(&self) -> impl Iterator<Item = PersistentSnapshot> {
        self.ports().map(|port| PersistentSnapshot::of_left(&port.record, port.shape))
    }

    /// When the next is to be begun; `None`: when a thread is done.
    pub(super) fn due(&self, now: Instant) -> Option<Duration> {
        if !self.ports.is_empty() {
            let has_room = self.opening.len() < RETURNS_AT_ONCE;
            return self.ports.iter().map(|left| left.due(now)).min().filter(|_| has_room);
        }
        self.attachments.iter().map(|left| left.due(now)).min().filter(|_| self.opening.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use unetmap_core::errno::EAGAIN;

    use super::*;

    #[test]
    fn a_port_is_tried_again_as_long_as_others_are_served() {
        let (mut left, now) = (Left::new(()), Instant::now());
        let (refusal, late) = (Refusal::new(EAGAIN, "it is held".into()), now + FORMER_LIMIT);
        assert!(left.is_tried_again(&refusal, None, now) && !left.is_tried_again(&refusal, None, late));
        assert!(left.is_tried_again(&refusal, Some(late), late));
        assert!(!left.is_tried_again(&Refusal::new(ENXIO, "it is gone".into()), Some(late), late));
    }
}

// SPDX-License-Identifier: BSD-2-Clause
//! The changes of interfaces that are open: another name, up and down, and their end.

use std::mem;

use unetmap_sys::link::{Link, LinkEvent};

use super::kernel_work;
use super::lookup::{any_is_away, find, owner_of};
use super::state::ALL_NAMESPACES;
use super::{Nic, NicKey, NicPort};
use crate::events::{EventLog, What};
use crate::ports::vale::attach_requests;
use crate::ports::{Daemon, PortKey, Registry, monitor};
use crate::privileged;
use crate::tuning::nic::MAX_DEFERRED;

/// Handles the changes of interfaces of a namespace.
pub(crate) fn links_changed(daemon: &mut Daemon, netns: u64) {
    if netns == ALL_NAMESPACES {
        return daemon.nics.settings.remove_gone();
    }
    let mut events = Vec::new();
    if let Some(watched) = daemon.nics.watches.get_mut(&netns)
        && let Err(e) = watched.watch.read(&mut events)
    {
        tracing::debug!("reading the changes of interfaces: {e}");
    }
    let is_deferred = any_is_away(&daemon.registry, netns);
    if let Some(watched) = daemon.nics.watches.get_mut(&netns).filter(|_| is_deferred) {
        watched.deferred.extend(events);
        if watched.deferred.len() > MAX_DEFERRED {
            watched.deferred = vec![LinkEvent::Lost];
        }
        return;
    }
    handle_events(daemon, netns, events);
}

/// Handles the changes that came while an interface of the namespace was away.
pub(super) fn handle_deferred_events(daemon: &mut Daemon, netns: u64) {
    if any_is_away(&daemon.registry, netns) {
        return;
    }
    let deferred = daemon.nics.watches.get_mut(&netns).map(|watched| mem::take(&mut watched.deferred));
    handle_events(daemon, netns, deferred.unwrap_or_default());
}

fn handle_events(daemon: &mut Daemon, netns: u64, events: Vec<LinkEvent>) {
    for event in events {
        match event {
            LinkEvent::Gone { index } => link_gone(daemon, netns, index),
            LinkEvent::Changed(link) => link_changed(daemon, netns, &link),
            LinkEvent::Lost => compare_all_links(daemon, netns),
        }
    }
    kernel_work::follow(&mut daemon.registry, &daemon.nics.work, netns);
}

fn link_changed(daemon: &mut Daemon, netns: u64, link: &Link) {
    let mut changes = Vec::new();
    let nics = daemon.registry.all_mut::<NicPort>().filter_map(|port| port.here_mut());
    for nic in nics.filter(|nic| nic.key.netns == netns && nic.key.index == link.index) {
        let port = || link.name.clone();
        if nic.name != link.name {
            tracing::info!(from = nic.name, to = link.name, "interface renamed");
            let was = std::mem::replace(&mut nic.name, port());
            changes.push((nic.key, What::LinkRenamed { port: port(), was }));
        }
        if nic.changed(link) {
            let what = if link.up { What::LinkUp { port: port() } } else { What::LinkDown { port: port() } };
            changes.push((nic.key, what));
        }
    }
    for (key, what) in changes {
        log_change(&daemon.registry, &mut daemon.events, key, what);
    }
}

/// Adds an event of an interface.
pub(super) fn log_change(registry: &Registry, events: &mut EventLog, key: NicKey, what: What) {
    events.add(owner_of(registry, key), what);
}

pub(super) fn link_gone(daemon: &mut Daemon, netns: u64, index: u32) {
    daemon.nics.queue_counts.remove(netns, index);
    let nics = daemon.registry.all_mut::<NicPort>().filter_map(|port| port.here_mut());
    nics.filter(|nic| nic.key.netns == netns).for_each(|nic| {
        nic.host_gone(index);
        nic.relay_gone(index);
    });
    if let Ok(Some(nic)) = find(&daemon.registry, netns, index) {
        tracing::info!(name = nic.name, "interface gone");
        let (key, port) = (nic.key, nic.name.clone());
        log_change(&daemon.registry, &mut daemon.events, key, What::LinkGone { port });
        daemon.registry.nic_mut(&PortKey::Nic(key)).into_iter().for_each(Nic::end);
        daemon.nics.work.check_later(key);
        monitor::end_monitors(&mut daemon.registry, &PortKey::Nic(key).into());
        daemon.registry.mediated(key).into_iter().for_each(|port| port.end());
    }
    attach_requests::interface_gone(daemon, netns, index);
}

/// Compares all open interfaces of a namespace with those that exist, after events were lost.
fn compare_all_links(daemon: &mut Daemon, netns: u64) {
    let Some(watched) = daemon.nics.watches.get(&netns).map(|watched| watched.netns.clone()) else { return };
    if !kernel_work::read_links(&daemon.nics.work, &watched)
        && let Ok(links) = privileged::links(&watched)
    {
        compare_links(daemon, netns, &links);
    }
}

/// Compares all open interfaces of a namespace with these.
pub(super) fn compare_links(daemon: &mut Daemon, netns: u64, links: &[Link]) {
    if any_is_away(&daemon.registry, netns) {
        let watched = daemon.nics.watches.get_mut(&netns);
        return watched.into_iter().for_each(|watched| watched.deferred = vec![LinkEvent::Lost]);
    }
    let nics = daemon.registry.all::<NicPort>().filter(|port| port.key.netns == netns);
    let mut open: Vec<u32> = nics.map(|port| port.key.index).collect();
    open.extend(daemon.vale.persistent.hidden_links(netns));
    for index in open {
        match links.iter().find(|link| link.index == index) {
            Some(link) => link_changed(daemon, netns, link),
            None => link_gone(daemon, netns, index),
        }
    }
    kernel_work::follow(&mut daemon.registry, &daemon.nics.work, netns);
}

// SPDX-License-Identifier: BSD-2-Clause
//! Persistent ports, and the settings of switches, outlast the daemon, however it ends.
//!
//! ```text
//! the ports       veth pairs whose hidden ends have marks, in a namespace that is mounted     (`crate::broker`)
//! the rest        a file, written when something of it has changed, before the answer: to which switch each port is
//!                 attached, its header, root's settings of switches and ports, the threads; and one for each other
//!                 user with settings, so that a request of one costs and spoils nothing of another
//! at the start    the next daemon makes a port again for each hidden end that is there, and attaches it, while it
//!                 answers requests ([`super::serving_again`])
//! ```
//! A pair without a record is a port that is attached to nothing, and a record without a pair is dropped: its port was
//! removed with its namespace, while no daemon ran. A daemon that takes over from another process has the ports already
//! ([`super::saved`]).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::mem;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use unetmap_abi::NmreqValeNewif;
use unetmap_core::control::ControlRequest as _;
use unetmap_core::control::vale::{ThreadConfig, ValeRequest};
use unetmap_sys::link::Link;
use unetmap_sys::memfd;
use unetmap_sys::netns::Netns;

use super::ValeKey;
use super::attached::disconnect_all;
use super::persistent::{LastingPort, PersistentPort, PersistentState};
use super::persistent_requests::{end_namespace, interface_gone, shape_of};
use super::port::{MAX_RINGS, ValePort, host_key};
use super::returning::{LastingAttachment, LeftPort, Returning};
use super::settings::SwitchSettings;
use crate::descriptors::invalid;
use crate::ports::Daemon;
use crate::privileged;
use crate::region::Scope;
use crate::shape::EndpointShape;

/// The version of the file.
const VERSION: u32 = 1;

/// The text of the file.
#[derive(Default, Serialize, Deserialize)]
struct Lasting {
    version: u32,
    /// The namespace of the hidden ends.
    namespace: u64,
    ports: Vec<LastingPort>,
    attachments: Vec<LastingAttachment>,
    /// Root's, as the requests that set them, and the scope.
    settings: Vec<(Scope, Vec<u8>)>,
    /// Number and processors of the threads, if they were set.
    threads: Option<(u16, Vec<u16>)>,
}

/// The text of a user's file.
#[derive(Serialize, Deserialize)]
struct LastingSettings {
    version: u32,
    /// As the requests that set them, in hexadecimal digits.
    settings: Vec<String>,
}

impl PersistentPort {
    /// The text of its mark.
    pub(super) fn mark(&self) -> String {
        let EndpointShape { tx_rings, rx_rings, tx_slots, rx_slots, .. } = self.shape;
        format!("{} {tx_rings} {rx_rings} {} {}", self.name, tx_slots.get(), rx_slots.get())
    }
}

/// Returns the request that made a persistent port, from its mark.
fn read_mark(text: &str) -> Option<NmreqValeNewif> {
    let mut words = text.split(' ');
    words.next().filter(|name| !name.is_empty())?;
    let numbers = words.map(str::parse).collect::<Result<Vec<u32>, _>>().ok()?;
    let [tx_rings, rx_rings, nr_tx_slots, nr_rx_slots] = numbers[..] else { return None };
    let rings = |rings: u32| u16::try_from(rings).ok().filter(|rings| *rings <= MAX_RINGS);
    let (nr_tx_rings, nr_rx_rings) = (rings(tx_rings)?, rings(rx_rings)?);
    Some(NmreqValeNewif { nr_tx_rings, nr_rx_rings, nr_tx_slots, nr_rx_slots, ..Default::default() })
}

impl Lasting {
    /// Returns what lasts, and the network namespaces that it names.
    fn of(daemon: &Daemon) -> (Lasting, Vec<Arc<Netns>>) {
        let (mut attachments, mut namespaces) = LastingAttachment::all(daemon);
        let vale = &daemon.vale;
        let port = |port: &PersistentPort| LastingPort {
            hidden: port.hidden,
            name: port.name.clone(),
            scope: daemon.registry.regions.get(port.region).map_or(ROOT, |record| Scope { netns: 0, ..record.scope }),
            header: port.header,
            attached: port.attached.clone(),
            index: port.place.1,
            whole: port.whole,
            polling: daemon.registry.get::<ValePort>(&port.host_end).and_then(|host| host.polling()),
        };
        let settings = vale.settings.as_requests(|scope| scope == ROOT);
        let ports = vale.persistent.ports.iter().map(port).chain(vale.persistent.unserved.iter().cloned());
        // What is not served yet lasts, too.
        attachments.extend(vale.returning.attachments().cloned());
        namespaces.extend(vale.returning.namespaces().cloned());
        let lasting = Lasting {
            version: VERSION,
            namespace: vale.persistent.hidden_namespace.as_ref().map_or(0, |hidden| hidden.id()),
            ports: ports.chain(vale.returning.ports().map(|port| port.record.clone())).collect(),
            attachments,
            settings: settings.into_iter().map(|(scope, request)| (scope, request.encode())).collect(),
            threads: vale.workers.changed_plan().map(|plan| (plan.threads, plan.cpus.clone())),
        };
        (lasting, namespaces)
    }

    /// The numbers of ports of switches.
    fn numbers(&self) -> BTreeMap<ValeKey, u8> {
        let persistent = self.ports.iter().filter_map(|port| Some((port.attached.clone()?, port.index)));
        let attached = self.attachments.iter().flat_map(|one| {
            let host = one.host_index.map(|index| (host_key(&one.key), index));
            [Some((one.key.clone(), one.index)), host].into_iter().flatten()
        });
        persistent.chain(attached).collect()
    }

    /// As it is written: empty, if nothing lasts.
    fn text(&self) -> io::Result<String> {
        let has_settings = !self.settings.is_empty() || self.threads.is_some();
        if self.ports.is_empty() && self.attachments.is_empty() && !has_settings {
            Ok(String::new())
        } else {
            Ok(serde_json::to_string(self)?)
        }
    }

    /// Reads what an earlier daemon has written, if any has.
    fn read() -> io::Result<(Lasting, Vec<Arc<Netns>>)> {
        let (Some(text), namespaces) = privileged::read_state()? else { return Ok(Default::default()) };
        let lasting: Lasting = serde_json::from_str(&text)?;
        match lasting.version {
            VERSION => Ok((lasting, namespaces.into_iter().map(Arc::new).collect())),
            other => Err(io::Error::other(format!("it is of version {other}, and this program reads {VERSION}"))),
        }
    }
}

impl LastingSettings {
    /// As it is written: empty, if the user has set nothing.
    fn text(settings: &SwitchSettings, uid: u32) -> io::Result<String> {
        let own = settings.as_requests(|scope| scope.uid == uid);
        let settings: Vec<String> = own.iter().map(|(_, request)| hexadecimal(&request.encode())).collect();
        match &settings[..] {
            [] => Ok(String::new()),
            _ => Ok(serde_json::to_string(&LastingSettings { version: VERSION, settings })?),
        }
    }

    /// Reads what an earlier daemon has written.
    fn read(text: &str) -> Result<Vec<Vec<u8>>, String> {
        let LastingSettings { version, settings } = serde_json::from_str(text).map_err(|e| e.to_string())?;
        if version != VERSION {
            return Err(format!("it is of version {version}, and this program reads {VERSION}"));
        }
        settings.iter().map(|digits| bytes_of(digits).ok_or_else(|| "these are no hexadecimal digits".into())).collect()
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    let digit = |of: u8| char::from_digit(of.into(), 16).unwrap_or_default();
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let digit = |of: u8| char::from(of).to_digit(16);
    let byte = |[high, low]: &[u8; 2]| u8::try_from(digit(*high)? << 4 | digit(*low)?).ok();
    rest.is_empty().then(|| pairs.iter().map(byte).collect())?
}

/// Has a user's file written, or that with all else.
fn write(user: Option<u32>, text: io::Result<String>, namespaces: &[BorrowedFd<'_>]) {
    let written = text.and_then(|text| {
        let mut file = File::from(memfd::create_unsealed("unetmap-state")?);
        file.write_all(text.as_bytes())?;
        privileged::write_state(file, namespaces, user)
    });
    if let Err(e) = written {
        tracing::warn!("the next daemon will not know what was changed of switches and persistent ports: {e}");
    }
}

/// Who pays for a port without a record.
const ROOT: Scope = Scope { uid: 0, netns: 0 };

impl Daemon {
    /// Has what lasts written, if it has changed.
    pub(super) fn keep_lasting(&mut self) {
        let (has_unsaved, users) = (mem::take(&mut self.vale.has_unsaved), mem::take(&mut self.vale.unsaved_users));
        if self.admission.policy.is_none() {
            return;
        }
        for uid in users {
            write(Some(uid), LastingSettings::text(&self.vale.settings, uid), &[]);
        }
        if has_unsaved {
            let (lasting, namespaces) = Lasting::of(self);
            let namespaces: Vec<_> = namespaces.iter().map(|netns| netns.as_fd()).collect();
            write(None, lasting.text(), &namespaces);
        }
    }

    /// Finds what an earlier daemon has left, before this one serves: [`Daemon::serve_again`] goes on with it.
    pub(crate) fn find_lasting(&mut self) {
        if self.admission.policy.is_none() {
            return;
        }
        let (lasting, namespaces) = Lasting::read().unwrap_or_else(|e| {
            tracing::error!("settings of switches are lost, and nothing is attached to them: {e}");
            Default::default()
        });
        self.vale.former_numbers = lasting.numbers();
        self.take_settings(lasting.settings, lasting.threads);
        // A daemon of before had those of all users in one file.
        self.vale.unsaved_users.extend(self.vale.settings.users());
        let ports = match privileged::find_lasting() {
            Ok((_, None)) => {
                self.vale.kernel_path.is_new();
                Vec::new()
            }
            Ok((found, Some(hidden))) => {
                let mut records = lasting.ports;
                records.retain(|_| lasting.namespace == hidden.id());
                self.take_ports(found, hidden, records)
            }
            Err(e) => {
                tracing::error!("persistent ports of an earlier daemon are not served: {e}");
                Vec::new()
            }
        };
        // The file is written anew when all of it was tried.
        if lasting.version == VERSION || !ports.is_empty() {
            self.vale.returning = Returning::new(ports, lasting.attachments, namespaces);
            self.end_returning();
            self.keep_lasting();
        }
        self.take_settings_of_users();
    }

    /// Goes on with what users had set. A file is written anew once that is done.
    fn take_settings_of_users(&mut self) {
        let all = privileged::read_settings().unwrap_or_else(|e| {
            tracing::error!("settings of users' switches are lost: {e}");
            Vec::new()
        });
        for (uid, text) in all {
            match text.and_then(|text| LastingSettings::read(&text)) {
                Ok(settings) => {
                    let scope = Scope { uid, netns: 0 };
                    self.take_settings(settings.into_iter().map(|bytes| (scope, bytes)).collect(), None);
                }
                Err(why) => tracing::error!(uid, "settings of this user's switches are lost: {why}"),
            }
            self.vale.unsaved_users.insert(uid);
            self.keep_lasting();
        }
    }

    /// Removes all that would outlast this daemon, which ends.
    pub(crate) fn remove_lasting(&mut self) {
        let PersistentState { ports, unserved, hidden_namespace } = &self.vale.persistent;
        let left = self.vale.returning.ports().map(|port| &port.record);
        let all = unserved.iter().chain(left).map(|port| port.hidden).chain(ports.iter().map(|port| port.hidden));
        let all: Vec<u32> = all.collect();
        self.vale.returning = Returning::default();
        for (hidden, index) in hidden_namespace.clone().iter().flat_map(|hidden| all.iter().map(move |i| (hidden, *i)))
        {
            match privileged::delete_veth(hidden, index) {
                Ok(()) => interface_gone(self, hidden.id(), index),
                Err(e) => tracing::error!(index, "a persistent port is not removed: {e}"),
            }
        }
        self.vale.persistent.unserved.clear();
        disconnect_all(self, |_| true);
        self.vale.all_unsaved();
        self.vale.settings = SwitchSettings::default();
        self.vale.workers.forget_plan();
    }

    fn take_settings(&mut self, settings: Vec<(Scope, Vec<u8>)>, threads: Option<(u16, Vec<u16>)>) {
        for (scope, bytes) in settings {
            let request = ValeRequest::decode(&bytes).or_else(|_| invalid("a request"));
            let taken = request.and_then(|request| self.vale.settings.take_over(scope, request));
            if let Err(refusal) = taken {
                tracing::error!(uid = scope.uid, "a setting of a switch is lost: {}", refusal.why);
            }
        }
        if let Some(plan) = threads.map(|(threads, cpus)| ThreadConfig { threads, cpus })
            && plan.check().is_ok()
        {
            self.vale.workers.take_over_plan(plan);
        }
    }

    /// The interfaces of the hidden namespace, by index.
    fn links_of_hidden_ends(&self) -> BTreeMap<u32, Link> {
        let hidden = self.vale.persistent.hidden_namespace.as_ref();
        let links = hidden.map_or_else(|| Ok(Vec::new()), privileged::links);
        let links = links.unwrap_or_else(|e| {
            tracing::error!("persistent ports of an earlier daemon are not served: {e}");
            Vec::new()
        });
        links.into_iter().map(|link| (link.index, link)).collect()
    }

    /// Returns the persistent ports that are found, with what the file says about each.
    fn take_ports(&mut self, found: Vec<(u32, String)>, hidden: Netns, records: Vec<LastingPort>) -> Vec<LeftPort> {
        if found.is_empty() {
            // All have ended with their namespaces.
            end_namespace();
            return Vec::new();
        }
        let hidden = Arc::new(hidden);
        if let Err(refusal) = self.nics.watch(&hidden) {
            tracing::error!("ports that are removed with their namespaces will not be noticed: {}", refusal.why);
        }
        self.vale.persistent.hidden_namespace = Some(hidden);
        let mut records: BTreeMap<u32, LastingPort> = records.into_iter().map(|port| (port.hidden, port)).collect();
        let mut links = self.links_of_hidden_ends();
        let mut ports = Vec::new();
        for (hidden, text) in found {
            let name = text.split(' ').next().unwrap_or_default();
            let unknown = || LastingPort {
                hidden,
                name: name.to_owned(),
                scope: ROOT,
                header: 0,
                attached: None,
                index: 0,
                whole: true,
                polling: None,
            };
            let record = records.remove(&hidden).unwrap_or_else(unknown);
            // It is removed with its namespace at this moment.
            let Some(link) = links.remove(&hidden) else { continue };
            match read_mark(&text).map_or_else(|| invalid("its mark"), |request| Ok((request, shape_of(&request)?))) {
                Ok((request, shape)) => ports.push(LeftPort { record, link, request, shape }),
                Err(refusal) => {
                    tracing::error!(name, "the persistent port is not served: {}", refusal.why);
                    self.vale.persistent.unserved.push(record);
                }
            }
        }
        for port in records.into_values() {
            tracing::info!(name = port.name, "a persistent port was removed with its namespace");
        }
        ports
    }
}

// SPDX-License-Identifier: BSD-2-Clause
//! Settings of interfaces as the daemon hands them to its successor ([`crate::handover`]). The numbers of namespaces
//! are those of the namespace of the watch, which is the broker's: the broker stays while anything is set.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use unetmap_core::control::nic::Filter;
use unetmap_sys::link::{NetnsLinkWatch, Nsid};
use unetmap_sys::xsk::{BusyPoll, Way};

use super::faults::Found;
use super::settings::{InterfaceSettings, MAX_INTERFACES, MAX_USERS, Settings, StoredFilter};
use super::staying::{SavedProgram, StayingProgram};
use crate::descriptors::{FdIndex, Incoming, Outgoing, invalid};
use crate::refusal::{Refusal, refuse_lack};

/// The settings of all interfaces.
#[derive(Serialize, Deserialize)]
pub(in crate::ports::nic) struct SavedSettings {
    interfaces: Vec<SavedInterface>,
    watch: Option<FdIndex>,
}

#[derive(Serialize, Deserialize)]
struct SavedInterface {
    netns: u64,
    index: u32,
    nsid: Nsid,
    #[serde(default)]
    uid: u32,
    filter: Option<SavedFilter>,
    /// Microseconds and packets.
    busy_poll: Option<(u32, u32)>,
    /// From version 16 on.
    #[serde(default)]
    way: Way,
    /// Missing in states of earlier daemons.
    #[serde(default)]
    found: Option<Found>,
    failure: Option<SavedProgram>,
    header: u8,
    /// By user.
    own_headers: Vec<(u32, u8)>,
}

#[derive(Serialize, Deserialize)]
struct SavedFilter {
    expression: String,
    /// Instructions, as bytes.
    program: Vec<u8>,
    uid: u32,
}

impl SavedFilter {
    fn of(stored: &StoredFilter) -> SavedFilter {
        let StoredFilter { filter, uid } = stored;
        SavedFilter { expression: filter.expression.clone(), program: filter.encode_program(), uid: *uid }
    }

    fn restore(self) -> Result<Arc<StoredFilter>, Refusal> {
        let Some(filter) = Filter::decode(self.expression.as_bytes(), &self.program) else {
            return invalid("the filter of an interface");
        };
        Ok(Arc::new(StoredFilter { filter, uid: self.uid }))
    }
}

impl InterfaceSettings {
    pub(in crate::ports::nic) fn save<'a>(&'a self, fds: &mut Outgoing<'a>) -> SavedSettings {
        let save = |(&(netns, index), settings): (&(u64, u32), &Settings)| SavedInterface {
            netns,
            index,
            nsid: settings.nsid,
            uid: settings.uid,
            filter: settings.filter.as_deref().map(SavedFilter::of),
            busy_poll: settings.busy_poll.map(|busy| (busy.usec().into(), busy.budget().into())),
            way: settings.way,
            found: settings.found.clone(),
            failure: settings.failure.as_deref().map(StayingProgram::save),
            header: settings.header,
            own_headers: settings.own_headers.iter().map(|(uid, bytes)| (*uid, *bytes)).collect(),
        };
        SavedSettings {
            interfaces: self.all.iter().map(save).collect(),
            watch: self.watch.as_ref().map(|watch| fds.add(watch)),
        }
    }

    pub(in crate::ports::nic) fn restore(
        saved: SavedSettings,
        fds: &mut Incoming,
    ) -> Result<InterfaceSettings, Refusal> {
        let SavedSettings { interfaces, watch } = saved;
        if interfaces.len() > MAX_INTERFACES || interfaces.is_empty() != watch.is_none() {
            return invalid("the settings of interfaces");
        }
        let mut settings = InterfaceSettings::default();
        if let Some(watch) = watch {
            let watch = NetnsLinkWatch::from_fd(fds.take(watch)?);
            settings.watch = Some(watch.or_else(|e| refuse_lack("changes of interfaces cannot be watched", &e))?);
        }
        for interface in interfaces {
            let SavedInterface { netns, index, nsid, uid, filter, busy_poll, way, found, failure, header, own_headers } =
                interface;
            let mut headers = own_headers.iter().map(|(_, bytes)| *bytes).chain([header]);
            if own_headers.len() > MAX_USERS || !headers.all(|bytes| [0, 10, 12].contains(&bytes)) {
                return invalid("the headers of an interface");
            }
            let filter = filter.map(SavedFilter::restore).transpose()?;
            let busy_poll = match busy_poll.map(|(usec, budget)| BusyPoll::new(usec, budget)).transpose() {
                Err(_) => return invalid("the busy polling of an interface"),
                Ok(set) => set,
            };
            let own_headers = own_headers.into_iter().collect();
            let failure = failure.map(StayingProgram::restore);
            let restored = Settings { nsid, uid, filter, busy_poll, way, found, failure, header, own_headers };
            if restored.is_empty() {
                return invalid("the settings of an interface");
            }
            settings.all.insert((netns, index), restored);
        }
        Ok(settings)
    }
}

// SPDX-License-Identifier: BSD-2-Clause
//! Settings of interfaces that outlive their ports: filters, which select the frames that enter the port (the others
//! stay with the kernel), busy polling, the virtio-net headers of packets (`header`), their way (`way`), and what
//! becomes of frames that no program takes (`failure`).
//!
//! ```text
//! set by      root, or, but for ways, a user who may open the interface directly, unless another user has it open
//! stored      for the interface (its namespace and index), whether a port is open or not
//! in force    filter: while an XDP program is attached; busy polling: for sockets that are opened from then on;
//!             way: from when the interface is opened again, after all programs have closed it;
//!             header: for ports that are opened from then on, if another than root has set it by programs of that user
//! removed     by request, or when the interface is deleted or moved to another namespace; header of another user than
//!             root: when the user's last program closes the interface
//! ```
//! A mediated user sets none: the XDP program and the interface are the daemon's then, and the program can ignore
//! frames.
//!
//! The watch of these interfaces does not keep their namespaces alive: perhaps no process is left in them that could
//! remove the setting.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use unetmap_core::control::nic::Filter;
use unetmap_core::errno::{ENOMEM, ENXIO, EPERM};
use unetmap_sys::link::{Link, LinkEvent, NetnsLinkEvent, NetnsLinkWatch, Nsid};
use unetmap_sys::netns::Netns;
use unetmap_sys::tcx::HostTxAction;
use unetmap_sys::xdp::Failure;
use unetmap_sys::xsk::{BusyPoll, Way};

use super::faults::Found;
use super::staying::StayingProgram;
use crate::caller::Caller;
use crate::owner::owner;
use crate::privileged;
use crate::refusal::{Refusal, check_bytes, refuse};
use crate::subordinates::Subordinates;

/// Most interfaces with settings: of all users; of those that others than root gave their first setting; of one of
/// these users. Then users who have headers of their own at one interface.
pub(super) const MAX_INTERFACES: usize = 1024;
const MAX_INTERFACES_OF_OTHERS: usize = 512;
const MAX_INTERFACES_OF_USER: usize = 32;
/// Most bytes of the filters that one user other than root has set, and of those of all of these users: each state that
/// is kept has all of them.
const MAX_FILTERS_OF_USER: usize = 256 << 10;
const MAX_FILTERS_OF_OTHERS: usize = 4 << 20;
pub(super) const MAX_USERS: usize = 64;

/// A filter, and the user who set it.
#[derive(Debug)]
pub(super) struct StoredFilter {
    pub(super) filter: Filter,
    pub(super) uid: u32,
}

/// The settings of an interface; at least one of them.
pub(super) struct Settings {
    pub(super) nsid: Nsid,
    /// The user who set the first of them.
    pub(super) uid: u32,
    pub(super) filter: Option<Arc<StoredFilter>>,
    pub(super) busy_poll: Option<BusyPoll>,
    pub(super) way: Way,
    /// A fault of its frames, for which it is opened in another way.
    pub(super) found: Option<Found>,
    /// `None`: open.
    pub(super) failure: Option<Arc<StayingProgram>>,
    /// Bytes of the virtio-net header: 10 or 12; 0: none.
    pub(super) header: u8,
    /// In its place for programs of these users, 0 to 12 bytes.
    pub(super) own_headers: BTreeMap<u32, u8>,
}

impl Settings {
    pub(super) fn is_empty(&self) -> bool {
        self.filter.is_none()
            && self.busy_poll.is_none()
            && self.way == Way::Auto
            && self.found.is_none()
            && self.failure.is_none()
            && self.header == 0
            && self.own_headers.is_empty()
    }
}

/// The settings of all interfaces, by namespace and index.
#[derive(Default)]
pub(crate) struct InterfaceSettings {
    pub(super) all: BTreeMap<(u64, u32), Settings>,
    /// Exists while anything is set.
    pub(super) watch: Option<NetnsLinkWatch>,
    /// Whether the event loop waits for the watch.
    pub(crate) in_event_loop: bool,
}

impl InterfaceSettings {
    /// Whether nothing is set.
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The watch that reports deleted interfaces.
    pub(crate) fn watch(&self) -> Option<&NetnsLinkWatch> {
        self.watch.as_ref()
    }

    /// Returns the settings of an interface that exists.
    pub(super) fn of(&mut self, netns: u64, index: u32) -> Option<&Settings> {
        // The kernel reuses both numbers, so settings of deleted interfaces are removed first.
        self.remove_gone();
        self.all.get(&(netns, index))
    }

    /// Has the program that stays use the filter as long as no port is open.
    pub(super) fn use_filter(&self, netns: u64, index: u32) -> io::Result<()> {
        let Some(settings) = self.all.get(&(netns, index)) else { return Ok(()) };
        let Some(stays) = &settings.failure else { return Ok(()) };
        let program = settings.filter.as_ref().map(|stored| stored.filter.program.clone());
        let host_tx = if program.is_some() { HostTxAction::Pass } else { HostTxAction::Drop };
        stays.xdp.set_filter(program)?;
        stays.tcx.as_ref().map_or(Ok(()), |tcx| tcx.set_host_tx(host_tx))
    }

    /// A closed interface has lost this name: it stays closed if another closed one has it now, which may have lost
    /// another name by that. Names are compared with interfaces by their indexes, as two may have exchanged theirs.
    fn leave_name(&self, netns: &Netns, mut left: Option<String>) {
        while let Some(name) = left.take() {
            let now = privileged::link_named(netns, &name).ok().flatten();
            let stays = now.as_ref().and_then(|link| self.all.get(&(netns.id(), link.index))?.failure.as_ref());
            match now.as_ref().zip(stays.filter(|stays| stays.is_closed())) {
                Some((link, stays)) => left = stays.is_named(netns, link),
                None => {
                    if let Err(e) = privileged::set_closed_name(netns, name.clone(), None) {
                        tracing::warn!(name, "an interface of this name is still closed: {e}");
                    }
                }
            }
        }
    }

    /// Returns the program that stays at an interface, also one that an earlier daemon has left; `None`: there is none.
    /// An interface whose name is closed gets one when root asks: others may have closed the name themselves, in a
    /// namespace of their own, and until then the kernel keeps it closed.
    pub(super) fn failure_at(&mut self, link: &Link, caller: &Caller) -> Result<Option<Arc<StayingProgram>>, Refusal> {
        self.remove_gone();
        let Some(netns) = caller.netns() else { return Ok(None) };
        let known = self.all.get(&(netns.id(), link.index)).and_then(|settings| settings.failure.clone());
        if let Some(stays) = &known {
            self.leave_name(netns, stays.is_named(netns, link));
            return Ok(known);
        }
        let name = (caller.peer.uid == owner()).then(|| link.name.clone());
        if name.is_none() && link.xdp.is_none() {
            return Ok(None);
        }
        // Without privileges nothing can be known, and nothing be attached.
        let failure = privileged::left_failure(netns, link.index, name).unwrap_or(Failure::Open);
        if failure == Failure::Open {
            return Ok(None);
        }
        tracing::info!(name = link.name, ?failure, "the setting of an earlier daemon, or of its name, is in force");
        self.set_failure(netns, link, None, failure).map(Some)
    }

    /// The programs that stay, with the namespace and index of their interfaces.
    pub(super) fn staying_programs(&self) -> impl Iterator<Item = (&(u64, u32), &StayingProgram)> {
        self.all.iter().filter_map(|(key, settings)| Some((key, settings.failure.as_deref()?)))
    }

    /// Sets what becomes of frames that no program takes, of an interface that has the program `stays`. It is root's.
    pub(super) fn set_failure(
        &mut self,
        netns: &Netns,
        link: &Link,
        stays: Option<Arc<StayingProgram>>,
        failure: Failure,
    ) -> Result<Arc<StayingProgram>, Refusal> {
        self.check_new((netns.id(), link.index), 0)?;
        // With a filter the host shares the interface.
        let has_filter = self.all.get(&(netns.id(), link.index)).is_some_and(|settings| settings.filter.is_some());
        let host_tx = if has_filter { HostTxAction::Pass } else { HostTxAction::Drop };
        let program = Arc::new(match stays {
            Some(stays) => stays.with(netns, link, failure, host_tx)?,
            None => StayingProgram::attach(netns, link, failure, host_tx)?,
        });
        self.entry(netns, link.index, 0)?.failure = Some(program.clone());
        let filtered = self.use_filter(netns.id(), link.index);
        filtered.or_else(|e| refuse(ENXIO, format!("its filter cannot be set: {e}")))?;
        Ok(program)
    }

    /// Returns the settings of an interface that was open before, in this or another process.
    pub(super) fn kept_of(&self, netns: u64, index: u32) -> Option<&Settings> {
        self.all.get(&(netns, index))
    }

    pub(super) fn store_filter(&mut self, netns: &Netns, index: u32, filter: Arc<StoredFilter>) -> Result<(), Refusal> {
        self.check_filters((netns.id(), index), &filter)?;
        self.entry(netns, index, filter.uid).map(|settings| settings.filter = Some(filter))
    }

    pub(super) fn store_busy_poll(
        &mut self,
        netns: &Netns,
        index: u32,
        (busy_poll, uid): (BusyPoll, u32),
    ) -> Result<(), Refusal> {
        self.entry(netns, index, uid).map(|settings| settings.busy_poll = Some(busy_poll))
    }

    /// Stores the way of packets; `Auto` is stored by storing none. A fault that was found is forgotten.
    pub(super) fn store_way(&mut self, netns: &Netns, index: u32, way: Way) -> Result<(), Refusal> {
        if way == Way::Auto {
            self.remove(netns.id(), index, |settings| (settings.way, settings.found) = (Way::Auto, None));
            return Ok(());
        }
        // It is root's.
        self.entry(netns, index, 0).map(|settings| (settings.way, settings.found) = (way, None))
    }

    /// Stores a fault of frames, of an interface that this user has open.
    pub(super) fn store_found(&mut self, netns: &Netns, index: u32, (found, uid): (Found, u32)) -> Result<(), Refusal> {
        self.entry(netns, index, uid).map(|settings| settings.found = Some(found))
    }

    /// Stores root's header for all users, and that of another user for this user's programs.
    pub(super) fn store_header(&mut self, netns: &Netns, index: u32, bytes: u8, uid: u32) -> Result<(), Refusal> {
        let settings = self.entry(netns, index, uid)?;
        let has_room = settings.own_headers.len() < MAX_USERS || settings.own_headers.contains_key(&uid);
        if uid == 0 {
            settings.header = bytes;
        } else if has_room {
            settings.own_headers.insert(uid, bytes);
        }
        self.remove(netns.id(), index, |settings| {
            let of_all = settings.header;
            settings.own_headers.retain(|_, own| *own != of_all);
        });
        if uid != 0 && !has_room {
            return refuse(ENOMEM, format!("{MAX_USERS} users have headers of their own at this interface"));
        }
        Ok(())
    }

    /// Refuses a filter beyond the bounds of a user.
    fn check_filters(&self, at: (u64, u32), new: &StoredFilter) -> Result<(), Refusal> {
        let bytes = |set: &StoredFilter| set.filter.expression.len() + size_of_val(&set.filter.program[..]);
        let filters =
            self.all.iter().filter(|(of, _)| **of != at).filter_map(|(_, settings)| settings.filter.as_deref());
        let with_new = |of: &dyn Fn(u32) -> bool| -> usize {
            filters.clone().filter(|set| of(set.uid)).map(bytes).sum::<usize>() + bytes(new)
        };
        if new.uid == 0 {
            return Ok(());
        }
        let subordinates = Subordinates::of_system();
        let owner = subordinates.owner(new.uid);
        let bounds = [
            (with_new(&|uid| subordinates.owner(uid) == owner), MAX_FILTERS_OF_USER, subordinates.whose(new.uid)),
            (with_new(&|uid| uid != 0), MAX_FILTERS_OF_OTHERS, "all users but root".into()),
        ];
        check_bytes("filters", bounds, "unetmap nic IF filter off")
    }

    /// Refuses settings of a further interface beyond the bounds of a user.
    fn check_room(&self, uid: u32, subordinates: &Subordinates) -> Result<(), Refusal> {
        let owner = subordinates.owner(uid);
        let count = |counts: &dyn Fn(u32) -> bool| self.all.values().filter(|set| counts(set.uid)).count();
        let bounds = [
            (count(&|_| true), MAX_INTERFACES, String::new()),
            (count(&|of| of != 0), MAX_INTERFACES_OF_OTHERS, " of all users but root".into()),
            (
                count(&|of| subordinates.owner(of) == owner),
                MAX_INTERFACES_OF_USER,
                format!(" of {}", subordinates.whose(uid)),
            ),
        ];
        let checked = if uid == 0 { 1 } else { bounds.len() };
        let Some((_, most, whose)) = bounds[..checked].iter().find(|(count, most, _)| count >= most) else {
            return Ok(());
        };
        refuse(
            ENOMEM,
            format!(
                "{most} interfaces{whose} have filters, busy polling, headers, ways or a failure already (unetmap nic IF \
                 filter off, busy-poll off, header 0, way auto, failure open)"
            ),
        )
    }

    /// Checks that there is room for the settings of an interface, if it has none yet.
    fn check_new(&self, key: (u64, u32), uid: u32) -> Result<(), Refusal> {
        if self.all.contains_key(&key) { Ok(()) } else { self.check_room(uid, &Subordinates::of_system()) }
    }

    /// Returns the settings of an interface that exists. The caller, a program of this user, sets one of them.
    fn entry(&mut self, netns: &Netns, index: u32, uid: u32) -> Result<&mut Settings, Refusal> {
        let key = (netns.id(), index);
        self.check_new(key, uid)?;
        let nsid = self.add_to_watch(netns, index).or_else(|e| match e.raw_os_error() {
            Some(ENXIO) => refuse(ENXIO, "the interface has gone"),
            Some(EPERM) => refuse(
                EPERM,
                "the daemon may not receive changes in network namespaces, which such a setting needs: give it \
                 CAP_NET_BROADCAST and CAP_NET_ADMIN",
            ),
            _ => refuse(ENXIO, format!("changes of its namespace cannot be watched: {e}")),
        });
        let nsid = nsid.inspect_err(|_| self.close_watch_if_unused())?;
        let settings = self.all.entry(key).or_insert(Settings {
            nsid,
            uid,
            filter: None,
            busy_poll: None,
            way: Way::Auto,
            found: None,
            failure: None,
            header: 0,
            own_headers: BTreeMap::new(),
        });
        settings.nsid = nsid;
        Ok(settings)
    }

    /// Watches `netns`, too; `ENXIO` if the interface has gone meanwhile.
    fn add_to_watch(&mut self, netns: &Netns, index: u32) -> io::Result<Nsid> {
        let watch = match self.watch.take() {
            Some(watch) => watch,
            None => {
                self.in_event_loop = false;
                privileged::watch_namespaces()?
            }
        };
        self.watch = Some(watch);
        let nsid = privileged::watch_namespace(netns)?;
        if !privileged::exists_in(nsid, index)? {
            return Err(io::Error::from_raw_os_error(ENXIO));
        }
        // The number may have been that of a namespace whose end has not been read yet.
        self.read_events();
        Ok(nsid)
    }

    pub(super) fn remove_filter(&mut self, netns: u64, index: u32) {
        self.remove(netns, index, |settings| settings.filter = None);
    }

    pub(super) fn remove_busy_poll(&mut self, netns: u64, index: u32) {
        self.remove(netns, index, |settings| settings.busy_poll = None);
    }

    pub(super) fn remove_failure(&mut self, netns: u64, index: u32) {
        self.remove(netns, index, |settings| settings.failure = None);
    }

    /// A user's last program has closed the interface.
    pub(super) fn remove_own_header(&mut self, netns: u64, index: u32, uid: u32) {
        self.remove(netns, index, |settings| _ = settings.own_headers.remove(&uid));
    }

    fn remove(&mut self, netns: u64, index: u32, remove: impl FnOnce(&mut Settings)) {
        if let Some(settings) = self.all.get_mut(&(netns, index)) {
            remove(settings);
            if settings.is_empty() {
                self.all.remove(&(netns, index));
            }
        }
        self.close_watch_if_unused();
    }

    fn close_watch_if_unused(&mut self) {
        if self.all.is_empty() {
            self.watch = None;
        }
    }

    /// Removes the settings of interfaces that are gone.
    pub(super) fn remove_gone(&mut self) {
        self.read_events();
        self.close_watch_if_unused();
    }

    fn read_events(&mut self) {
        let Some(watch) = &mut self.watch else { return };
        let mut events = Vec::new();
        if let Err(e) = watch.read(&mut events) {
            tracing::debug!("reading the changes of interfaces: {e}");
        }
        for event in events {
            let all = &mut self.all;
            match event {
                NetnsLinkEvent::Link(nsid, LinkEvent::Gone { index }) => {
                    all.retain(|(_, i), set| (set.nsid, *i) != (nsid, index));
                }
                NetnsLinkEvent::Link(..) => {}
                NetnsLinkEvent::Gone(nsid) => all.retain(|_, set| set.nsid != nsid),
                NetnsLinkEvent::Lost => {
                    all.retain(|(_, index), set| privileged::exists_in(set.nsid, *index).unwrap_or(true));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Users, root among them, set what they can at ever more interfaces.
    #[test]
    fn settings_of_interfaces_are_bounded_for_each_user() {
        let mut settings = InterfaceSettings::default();
        let subordinates = Subordinates::parse("3000000000:3000000001:9", |_| None);
        let mut fill = |uid: u32| {
            let mut added = 0;
            while settings.check_room(uid, &subordinates).is_ok() {
                let key = (u64::from(uid), added);
                let (filter, busy_poll, failure, own_headers) = (None, None, None, BTreeMap::new());
                let (nsid, way, header, found) = (Nsid::Own, Way::Auto, 10, None);
                let set = Settings { nsid, uid, filter, busy_poll, way, found, failure, header, own_headers };
                settings.all.insert(key, set);
                added += 1;
            }
            (added as usize, settings.check_room(uid, &subordinates).unwrap_err().why)
        };
        let (of_first, why) = fill(1);
        let of_one: usize = (3_000_000_000..3_000_000_010).map(|uid| fill(uid).0).sum();
        assert_eq!(of_one, MAX_INTERFACES_OF_USER);
        assert!(of_first == MAX_INTERFACES_OF_USER && why.starts_with("32 interfaces of user 1 have"), "{why}");
        let of_others: usize = (2..100).map(|uid| fill(uid).0).sum();
        assert_eq!(of_first + of_one + of_others, MAX_INTERFACES_OF_OTHERS);
        assert!(fill(2).1.contains("of all users but root"));
        assert_eq!(fill(0).0, MAX_INTERFACES - MAX_INTERFACES_OF_OTHERS);
    }
}

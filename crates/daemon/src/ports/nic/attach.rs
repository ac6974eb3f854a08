// SPDX-License-Identifier: BSD-2-Clause
//! Attaching the XDP program of an interface, and the refusals when that fails.

use std::io;
use std::sync::Arc;

use unetmap_core::errno::{EBUSY, EINVAL, EOPNOTSUPP, EPERM};
use unetmap_sys::kernel;
use unetmap_sys::link::Channels;
use unetmap_sys::netns::Netns;
use unetmap_sys::xdp::dispatcher::Attached;
use unetmap_sys::xdp::{Mark, Mode};
use unetmap_sys::xsk::Way;

use super::filter::refuse_filter;
use super::queue_count::{rings, usable};
use super::refusals::{MAY_NOT_ATTACH, conflicting_program};
use super::relay::Relay;
use super::settings::StoredFilter;
use super::staying::{check_generic, needs_generic};
use super::{Nic, libc_errno};
use crate::broker::relay_name as near_name;
use crate::knobs::Admode;
use crate::privileged::{self, Xdp};
use crate::refusal::{Refusal, refuse, refuse_for_now};

impl Nic {
    /// The mark that frames to the host's stack must begin with.
    pub(super) fn frames_mark(&self) -> Mark {
        match self.xdp.as_ref().map(|xdp| xdp.mode()) {
            Some(Mode::Generic) => self.mark,
            Some(Mode::Native) | None => Mark::default(),
        }
    }

    /// Where the program may be attached: as the interface's way says, else as the knob does.
    fn attach_mode(&self) -> Admode {
        match self.way {
            Way::Auto | Way::Copy | Way::Packet => self.admode,
            Way::ZeroCopy => Admode::Native,
            Way::Generic => Admode::Generic,
        }
    }

    /// Attaches the XDP program: in the driver if it supports XDP, else before the stack (generic mode).
    pub(super) fn attach(&mut self) -> Result<(), Refusal> {
        // A kernel without AF_XDP has no map of such sockets either; its error would not name the reason.
        if let Err(e) = privileged::probe_xdp_sockets(&self.netns)
            && e.raw_os_error() == Some(libc_errno::EAFNOSUPPORT)
        {
            return self.explain(0, &e);
        }
        let stays = self.staying_program();
        let xdp = match stays.map_or_else(|| self.attach_behind_relay().map(Arc::new), Some) {
            Some(_) if self.relay.is_some() && self.found.is_none() && !matches!(self.way, Way::Auto | Way::Copy) => {
                self.relay = None;
                return self
                    .refuse_way("its frames can arrive unfinished, so a veth completes them, where they are copied");
            }
            Some(xdp) => xdp,
            None => Arc::new(self.attach_and_read_back()?),
        };
        let mark = if xdp.mode() == Mode::Generic { self.mark } else { Mark::default() };
        if xdp.mode() == Mode::Generic {
            self.disable_merging();
        }
        let kept = xdp.set_mark(mark).and_then(|()| self.heartbeat.add(xdp.deadline()));
        kept.or_else(|e| refuse(EOPNOTSUPP, format!("the XDP program cannot be configured: {e}")))?;
        self.xdp = Some(xdp);
        self.watch_frames();
        // Only now that the XDP program accepts it.
        self.host.set_mark(mark);
        self.host.set_relayed(self.relay.is_some());
        // The kernel waits for a grace period of RCU with its lock of all interfaces held, for each tcx program.
        if !self.is_hidden
            && let Err(refusal) = self.host.attach(&self.heartbeat)
        {
            tracing::debug!(name = self.name, "frames that the host sends go to the wire: {}", refusal.why);
        }
        // No socket is open yet, so no frame bypasses the filter.
        self.set_filter(self.filter.clone())
    }

    pub(super) fn attach_to_interface(&mut self) -> Result<Xdp, Refusal> {
        let (index, queues) = (self.key.index, u32::from(self.endpoint.shape.rx_rings));
        let taken = |e: &io::Error| matches!(e.raw_os_error(), Some(libc_errno::EBUSY | libc_errno::EEXIST));
        let link = privileged::link(&self.netns, index).ok().flatten();
        let needs_generic = needs_generic(&self.netns, (index, &self.name), link.as_ref());
        let first = match self.attach_mode() {
            Admode::Best if needs_generic => Mode::Generic,
            Admode::Best | Admode::Native => Mode::Native,
            Admode::Generic => Mode::Generic,
        };
        let generic = match check_generic(&self.netns, &self.name) {
            Err(refusal) if first == Mode::Generic => return Err(refusal),
            checked => checked,
        };
        let attached = self.attach_in((first, generic.is_ok()), (index, queues));
        if attached.is_err() && self.attach_mode() == Admode::Best {
            generic?;
        }
        let name = &self.name;
        attached.or_else(|e| match e.raw_os_error() {
            _ if taken(&e) => {
                let link = privileged::link(&self.netns, index).ok().flatten();
                refuse(EBUSY, conflicting_program(name, link.and_then(|link| link.xdp)))
            }
            // The error is a sentence about the dispatcher.
            None => refuse(EBUSY, format!("other XDP programs share it, and the daemon's cannot join them: {e}")),
            Some(libc_errno::EPERM) => refuse(EPERM, MAY_NOT_ATTACH),
            _ if kernel::INTERFACES.is_newer_than_kernel() => {
                let why = kernel::INTERFACES.refusal();
                refuse(EOPNOTSUPP, format!("{why} (unetmap nic {name} way auto: by packet sockets)"))
            }
            _ => refuse(EOPNOTSUPP, format!("no XDP program can be attached: {e} (unetmap doctor {name} says more)")),
        })
    }

    /// Attaches the XDP program in mode `first`, or before the stack if the driver refuses it and that may be: as a
    /// member of a dispatcher where others share the interface in this way, or may do so later; else directly.
    fn attach_in(&mut self, first: (Mode, bool), place: (u32, u32)) -> io::Result<Xdp> {
        let attached = privileged::attached_xdp(&self.netns, place.0);
        match attached {
            Ok(Attached::Dispatcher(mode)) => {
                let wanted = match self.attach_mode() {
                    Admode::Best => true,
                    Admode::Native => mode == Mode::Native,
                    Admode::Generic => mode == Mode::Generic,
                };
                if !wanted {
                    return Err(io::Error::other(
                        "they run in another mode than the interface's way, or the knob admode, demands",
                    ));
                }
                self.join(mode, place)
            }
            Ok(Attached::Nothing) if privileged::dispatchers_are_used().unwrap_or(false) => {
                let joined = self.in_either_mode(first, |nic, mode| nic.join(mode, place));
                joined.or_else(|e| {
                    tracing::warn!(name = self.name, "other XDP programs cannot be added while the port is open: {e}");
                    self.in_either_mode(first, |nic, mode| nic.attach_directly(mode, place))
                })
            }
            _ => self.in_either_mode(first, |nic, mode| nic.attach_directly(mode, place)),
        }
    }

    fn in_either_mode<T>(
        &mut self,
        (first, may_be_generic): (Mode, bool),
        mut attach: impl FnMut(&mut Nic, Mode) -> io::Result<T>,
    ) -> io::Result<T> {
        attach(self, first).or_else(|e| match e.raw_os_error() {
            Some(libc_errno::EBUSY | libc_errno::EEXIST | libc_errno::EPERM) => Err(e),
            _ if self.attach_mode() == Admode::Native || first == Mode::Generic || !may_be_generic => Err(e),
            _ => attach(self, Mode::Generic),
        })
    }

    fn attach_directly(&mut self, mode: Mode, (index, queues): (u32, u32)) -> io::Result<Xdp> {
        privileged::attach_xdp(&self.netns, index, queues, mode).map(Xdp::of)
    }

    fn join(&mut self, mode: Mode, (index, queues): (u32, u32)) -> io::Result<Xdp> {
        let extras = mode == Mode::Generic || self.filter.is_some();
        privileged::join_xdp(&self.netns, index, queues, mode, extras).map(Xdp::of)
    }

    /// Attaches again with a filter, which the program in a dispatcher does not support without need. Meanwhile frames
    /// go to the stack.
    fn attach_with_filter(&mut self, filter: Arc<StoredFilter>) -> Result<(), Refusal> {
        privileged::try_filter(&filter.filter.program[..]).or_else(|e| refuse_filter(&e))?;
        let before = self.filter.replace(filter);
        self.xdp = None;
        let attached = self.attach();
        if attached.is_err() {
            self.filter = before;
            self.attach()?;
        }
        let own = self.endpoint.shape.nic_pairs();
        for (queue, open) in self.queues[..own].iter().enumerate().filter_map(|(i, open)| Some((i, open.as_ref()?))) {
            if let Some(xdp) = self.xdp.as_ref().filter(|_| open.in_xdp_map) {
                xdp.insert(&open.socket, queue as u32).or_else(|e| refuse(EINVAL, format!("queue {queue}: {e}")))?;
            }
        }
        attached
    }

    /// Sets which frames enter the port; `None`: all. On failure the filter in use stays.
    pub(super) fn set_filter(&mut self, filter: Option<Arc<StoredFilter>>) -> Result<(), Refusal> {
        if let Some(filter) = filter.as_ref().filter(|_| self.xdp.as_ref().is_some_and(|xdp| !xdp.calls_filter())) {
            return self.attach_with_filter(filter.clone());
        }
        if let Some(xdp) = self.xdp.as_ref().filter(|xdp| xdp.calls_filter()) {
            let program = filter.as_ref().map(|stored| &stored.filter.program[..]);
            xdp.set_filter(program.map(<[_]>::to_vec)).or_else(|e| refuse_filter(&e))?;
        }
        self.filter = filter;
        self.update_capture();
        Ok(())
    }
}

impl Nic {
    /// Serves an interface behind a companion if frames may arrive unfinished, unless the knob `admode` demands another
    /// mode. `None`: the XDP program belongs on the interface itself.
    pub(super) fn attach_behind_relay(&mut self) -> Option<Xdp> {
        let link = privileged::link(&self.netns, self.key.index).ok().flatten()?;
        let unfinished = match link.kind.as_deref() {
            Some("veth") => self.offloads_stay_on || self.found.is_some(),
            _ => link.receives_unfinished_frames() || self.unfinished.is_some(),
        };
        if !unfinished || self.admode != Admode::Best && self.found.is_none() {
            return None;
        }
        let name = &self.name;
        if let Some(why) = &self.unfinished {
            tracing::warn!(name, "frames arrive unfinished: {why}");
        }
        if kernel::HOST_RINGS.is_newer_than_kernel() {
            let least = kernel::HOST_RINGS.least;
            tracing::info!(name, "frames may lack VLAN tags and checksums, or be merged, before Linux {least}");
            return None;
        }
        let place = (self.key.index, u32::from(self.endpoint.shape.rx_rings));
        match Relay::create(&self.netns, place, link.up, &self.heartbeat) {
            Ok((relay, xdp)) => {
                self.relay = Some(relay);
                Some(xdp)
            }
            Err(e) => {
                tracing::warn!(name, "frames may lack VLAN tags and checksums, or be merged: {e}");
                None
            }
        }
    }

    /// Whether the kernel completes its frames on their way to the rings.
    pub(in crate::ports) fn is_relayed(&self) -> bool {
        self.relay.is_some()
    }

    /// The namespace and the index of the interface that has the sockets.
    pub(super) fn socket_place(&self) -> (&Netns, u32) {
        self.relay.as_ref().map_or((&self.netns, self.key.index), Relay::far)
    }

    /// Brings the far end into the interface's state.
    pub(super) fn update_relay(&self) {
        if let Some(relay) = &self.relay
            && let Err(e) = relay.set_up(self.up)
        {
            tracing::error!(name = self.name, "the state of its companion cannot be changed: {e}");
        }
    }

    /// Frames that were lost before they reached a socket.
    pub(super) fn relay_dropped(&self) -> u64 {
        self.relay.as_ref().map_or(0, Relay::dropped)
    }

    /// Ends the rings if interface `index`, which was removed, is the near end.
    pub(super) fn relay_gone(&mut self, index: u32) {
        if !self.relay.as_ref().is_some_and(|relay| relay.is_near(index)) {
            return;
        }
        tracing::warn!(name = self.name, "{} was removed: the rings of its interface end", near_name(self.key.index));
        (self.near_gone.relay, self.behind) = (true, true);
        let own = self.endpoint.shape.nic_pairs();
        self.endpoint.end_some(|ring| ring.pair < own);
    }
}

impl Nic {
    /// The interface's queues now; `None` if they cannot be read.
    pub(super) fn count_queues(&self) -> Option<Channels> {
        privileged::channels(&self.netns, &self.name).ok()
    }

    /// Compares the port's rings with the interface's queues, after an XDP program was attached; there were `without`
    /// before. The caller of a port that was just created tries again, and gets as many rings as there are queues.
    pub(super) fn check_attached_queues(&mut self, without: Option<Channels>) -> Result<(), Refusal> {
        let (Some(without), Some(all)) = (without, self.count_queues()) else { return Ok(()) };
        self.added_queues = match &self.stays {
            Some(stays) => stays.added_queues,
            None => all.tx.saturating_sub(without.tx),
        };
        let with = usable(all, self.added_queues);
        if self.endpoint.in_use() || self.has_rings_for(with) {
            self.compare_queues();
            return Ok(());
        }
        self.queue_counts.insert(self.key.netns, self.key.index, (without, with));
        refuse_for_now("attaching the XDP program has changed the number of its queues")
    }

    fn has_rings_for(&self, queues: Channels) -> bool {
        let shape = self.endpoint.shape;
        rings(queues.rx) == shape.rx_rings && rings(queues.tx) == shape.tx_rings
    }

    /// Records whether the interface has other queues than the port has rings.
    pub(super) fn compare_queues(&mut self) {
        let Some(now) = self.count_queues().map(|all| usable(all, self.added_queues)) else { return };
        let shape = self.endpoint.shape;
        let text = (!self.has_rings_for(now)).then(|| {
            format!(
                "the interface has {} receive and {} transmit queues now, and the port has rings for {} and {}: close the \
                 port everywhere and open it again",
                now.rx, now.tx, shape.rx_rings, shape.tx_rings
            )
        });
        if let Some(text) = text.as_ref().filter(|_| text != self.other_queues) {
            tracing::warn!(name = self.name, "{text}");
        }
        self.other_queues = text;
    }
}

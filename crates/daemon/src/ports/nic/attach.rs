// SPDX-License-Identifier: BSD-2-Clause
//! Attaching the XDP program of an interface, and the refusals when that fails.

use std::io;
use std::sync::Arc;

use unetmap_core::errno::{EBUSY, EINVAL, ENOMEM, EOPNOTSUPP, EPERM};
use unetmap_sys::link::AttachedXdp;
use unetmap_sys::xdp::dispatcher::Attached;
use unetmap_sys::xdp::{Mark, Mode};
use unetmap_sys::xsk::Way;
use unetmap_sys::{kernel, process};

use super::filter::refuse_filter;
use super::settings::StoredFilter;
use super::{Nic, libc_errno};
use crate::knobs::Admode;
use crate::privileged::{self, Undo, Xdp};
use crate::refusal::{Refusal, refuse};

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
            Way::Auto | Way::Copy => self.admode,
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
            Some(_) if self.relay.is_some() && !matches!(self.way, Way::Auto | Way::Copy) => {
                self.relay = None;
                return self
                    .refuse_way("its frames can arrive unfinished, so a veth completes them, where they are copied");
            }
            Some(xdp) => xdp,
            None => Arc::new(self.attach_to_interface()?),
        };
        let (index, name) = (self.key.index, &self.name);
        let mark = if xdp.mode() == Mode::Generic { self.mark } else { Mark::default() };
        if xdp.mode() == Mode::Generic && self.merging.is_none() {
            let disabled = privileged::disable_merging(&self.netns, index, &**name);
            let disabled = disabled.inspect_err(|e| tracing::warn!("offloads stay as they are: {e}"));
            self.merging = disabled.ok().flatten().map(Undo::of);
        }
        let kept = xdp.set_mark(mark).and_then(|()| self.heartbeat.add(xdp.deadline()));
        kept.or_else(|e| refuse(EOPNOTSUPP, format!("the XDP program cannot be configured: {e}")))?;
        self.xdp = Some(xdp);
        // Only now that the XDP program accepts it.
        self.host.set_mark(mark);
        self.host.set_relayed(self.relay.is_some());
        if let Err(refusal) = self.host.attach(&self.heartbeat) {
            tracing::debug!(name = self.name, "frames that the host sends go to the wire: {}", refusal.why);
        }
        // No socket is open yet, so no frame bypasses the filter.
        self.set_filter(self.filter.clone())
    }

    fn attach_to_interface(&mut self) -> Result<Xdp, Refusal> {
        let (index, queues) = (self.key.index, u32::from(self.endpoint.shape.rx_rings));
        let taken = |e: &io::Error| matches!(e.raw_os_error(), Some(libc_errno::EBUSY | libc_errno::EEXIST));
        // Some drivers run XDP programs but cannot redirect frames to sockets.
        let features = privileged::xdp_features(&self.netns, index);
        let mut cannot_redirect = features.is_ok_and(|known| known.is_some_and(|f| f.basic && !f.redirect));
        let link = privileged::link(&self.netns, index);
        cannot_redirect |= link.is_ok_and(|link| link.is_some_and(|link| !link.redirects_natively()));
        let driver = privileged::driver(&self.netns, &self.name).ok().flatten();
        let loses_program = driver.is_some_and(|driver| !driver.keeps_native_program());
        let first = match self.attach_mode() {
            Admode::Best if cannot_redirect || loses_program => Mode::Generic,
            Admode::Best | Admode::Native => Mode::Native,
            Admode::Generic => Mode::Generic,
        };
        let attached = self.attach_in(first, (index, queues));
        let name = &self.name;
        attached.or_else(|e| match e.raw_os_error() {
            _ if taken(&e) => {
                let link = privileged::link(&self.netns, index).ok().flatten();
                refuse(EBUSY, conflicting_program(name, link.and_then(|link| link.xdp)))
            }
            // The error is a sentence about the dispatcher.
            None => refuse(EBUSY, format!("other XDP programs share it, and the daemon's cannot join them: {e}")),
            Some(libc_errno::EPERM) => {
                refuse(EPERM, "the daemon may not attach XDP programs: it needs CAP_NET_ADMIN and CAP_BPF")
            }
            _ if kernel::INTERFACES.is_newer_than_kernel() => refuse(EOPNOTSUPP, kernel::INTERFACES.refusal()),
            _ => refuse(EOPNOTSUPP, format!("no XDP program can be attached: {e} (unetmap doctor {name} says more)")),
        })
    }

    /// Attaches the XDP program in mode `first`, or before the stack if the driver refuses it: as a member of a
    /// dispatcher where others share the interface in this way, or may do so later; else directly.
    fn attach_in(&mut self, first: Mode, place: (u32, u32)) -> io::Result<Xdp> {
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
        first: Mode,
        mut attach: impl FnMut(&mut Nic, Mode) -> io::Result<T>,
    ) -> io::Result<T> {
        attach(self, first).or_else(|e| match e.raw_os_error() {
            Some(libc_errno::EBUSY | libc_errno::EEXIST | libc_errno::EPERM) => Err(e),
            _ if self.attach_mode() == Admode::Native || first == Mode::Generic => Err(e),
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

/// Returns a mark that no other program can guess.
pub(super) fn random_mark() -> Result<Mark, Refusal> {
    let random = || process::random().or_else(|e| refuse(ENOMEM, format!("no random numbers: {e}")));
    let mut second = random()?.to_ne_bytes();
    // The EtherType: none that frames have, so that the kernel reads it again behind the mark.
    second[4..6].fill(0);
    Ok(Mark([random()?, u64::from_ne_bytes(second)]))
}

/// Returns which other XDP program is attached, and how to detach it. A program may be detached while it is looked up.
fn conflicting_program(name: &str, attached: Option<AttachedXdp>) -> String {
    const WHAT: &str = "another XDP program is attached";
    let Some(AttachedXdp { mode, prog_id }) = attached else {
        return format!("{WHAT} (unetmap doctor {name} shows whose, and how to detach it)");
    };
    // Only a daemon with CAP_SYS_ADMIN may read the name.
    let called = match privileged::program_name(prog_id) {
        Ok(called) if !called.is_empty() => format!("{called}, id {prog_id}"),
        _ => format!("id {prog_id}"),
    };
    let (word, option) = (mode.as_str(), mode.ip_option());
    format!(
        "{WHAT} ({called}, {word}): end the process that holds it (unetmap doctor {name} shows which), or if none does, \
         ip link set dev {name} {option} off"
    )
}

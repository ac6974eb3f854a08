//! Attaching the XDP program of an interface, and the refusals when that fails.

use std::io;
use std::sync::Arc;

use unetmap_core::errno::{EBUSY, ENOMEM, EOPNOTSUPP, EPERM};
use unetmap_sys::link::{self, AttachedXdp};
use unetmap_sys::xdp::{Mark, Mode, Xdp};
use unetmap_sys::{kernel, probe, process};

use super::filter::refuse_filter;
use super::settings::StoredFilter;
use super::{Nic, libc_errno};
use crate::knobs::Admode;
use crate::refusal::{Refusal, refuse};

impl Nic {
    /// The mark that frames to the host's stack must begin with.
    pub(super) fn frames_mark(&self) -> Mark {
        match self.xdp.as_ref().map(Xdp::mode) {
            Some(Mode::Generic) => self.mark,
            Some(Mode::Native) | None => Mark::default(),
        }
    }

    /// Attaches the XDP program: in the driver if it supports XDP, else before the stack (generic mode).
    pub(super) fn attach(&mut self) -> Result<(), Refusal> {
        // A kernel without AF_XDP has no map of such sockets either; its error would not name the reason.
        if let Err(e) = self.netns.run(probe::xdp_socket).and_then(|made| made)
            && e.raw_os_error() == Some(libc_errno::EAFNOSUPPORT)
        {
            return self.explain(0, &e);
        }
        let (index, queues) = (self.key.index, u32::from(self.endpoint.shape.rx_rings));
        let attach = |mode| self.netns.run(|| Xdp::attach(index, queues, mode)).and_then(|attached| attached);
        let taken = |e: &io::Error| matches!(e.raw_os_error(), Some(libc_errno::EBUSY | libc_errno::EEXIST));
        // Some drivers run XDP programs but cannot redirect frames to sockets.
        let features = self.netns.run(|| link::xdp_features(index)).and_then(|read| read);
        let mut cannot_redirect = features.is_ok_and(|known| known.is_some_and(|f| f.basic && !f.redirect));
        let link = self.netns.run(|| link::by_index(index)).and_then(|read| read);
        cannot_redirect |= link.is_ok_and(|link| link.is_some_and(|link| !link.redirects_natively()));
        let first = match self.admode {
            Admode::Best if cannot_redirect => Mode::Generic,
            Admode::Best | Admode::Native => Mode::Native,
            Admode::Generic => Mode::Generic,
        };
        let attached = attach(first).or_else(|native| match native.raw_os_error() {
            Some(libc_errno::EBUSY | libc_errno::EEXIST | libc_errno::EPERM) => Err(native),
            _ if self.admode == Admode::Native => Err(native),
            _ => attach(Mode::Generic),
        });
        let name = &self.name;
        let xdp = attached.or_else(|e| match e.raw_os_error() {
            _ if taken(&e) => {
                let link = self.netns.run(|| link::by_index(index)).ok().and_then(Result::ok).flatten();
                refuse(EBUSY, conflicting_program(name, link.and_then(|link| link.xdp)))
            }
            Some(libc_errno::EPERM) => {
                refuse(EPERM, "the daemon may not attach XDP programs: it needs CAP_NET_ADMIN and CAP_BPF")
            }
            _ if kernel::INTERFACES.is_newer_than_kernel() => refuse(EOPNOTSUPP, kernel::INTERFACES.refusal()),
            _ => refuse(EOPNOTSUPP, format!("no XDP program can be attached: {e} (unetmap doctor {name} says more)")),
        })?;
        let mut xdp = xdp;
        let mark = if xdp.mode() == Mode::Generic { self.mark } else { Mark::default() };
        let kept = xdp.set_mark(mark).and_then(|()| self.keep_alive.add(xdp.deadline()));
        kept.or_else(|e| refuse(EOPNOTSUPP, format!("the XDP program cannot be configured: {e}")))?;
        self.xdp = Some(xdp);
        // Only now that the XDP program accepts it.
        self.host.set_mark(mark);
        if let Err(refusal) = self.host.attach(&self.keep_alive) {
            tracing::debug!(name = self.name, "frames that the host sends go to the wire: {}", refusal.why);
        }
        // No socket is open yet, so no frame bypasses the filter.
        self.set_filter(self.filter.clone())
    }

    /// Sets which frames enter the port; `None`: all. On failure the filter in use stays.
    pub(super) fn set_filter(&mut self, filter: Option<Arc<StoredFilter>>) -> Result<(), Refusal> {
        if let Some(xdp) = &mut self.xdp {
            let program = filter.as_ref().map(|stored| &stored.filter.program[..]);
            xdp.set_filter(program).or_else(|e| refuse_filter(&e))?;
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
    let called = match probe::program_name(prog_id) {
        Ok(called) if !called.is_empty() => format!("{called}, id {prog_id}"),
        _ => format!("id {prog_id}"),
    };
    let (word, option) = (mode.as_str(), mode.ip_option());
    format!(
        "{WHAT} ({called}, {word}): end the process that holds it (unetmap doctor {name} shows which), or if none does, \
         ip link set dev {name} {option} off"
    )
}

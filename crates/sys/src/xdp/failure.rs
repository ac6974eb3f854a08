// SPDX-License-Identifier: BSD-2-Clause
//! The program that carries out what is to become of frames that a program should get and none takes: it stays at its
//! interface, also when no process of ours is left.
//!
//! ```text
//!          attached by                     ends
//! XDP      netlink                         when it is detached, or the interface is removed
//! tcx      BPF_PROG_ATTACH                 the same
//! ```
//! A later process finds both by their names, and replaces them without a gap. No other program of this crate has a
//! policy but [`Failure::Open`], so that one with another policy is one that stays.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use super::attach::{FRAGS, Mode, PLAIN, Xdp};
use super::policy::{COUNTS, Failed, Failure, Noted, Policy, take_policy};
use crate::bpf::{self, Hook, MapShape, load_classifier};
use crate::kernel;
use crate::link::{self, AttachedMode, XdpChange};
use crate::tcx::{self, CAPTURE};

/// The name of the tcx program of `bpf/xdp.c`.
pub(super) const BYPASS: &str = "unetmap_bypass";
/// The names of the XDP programs that stay.
const PROGRAMS: [&str; 2] = [FRAGS, PLAIN];

impl Xdp {
    /// As [`Xdp::attach`], but the program stays when the value is dropped, until [`detach_left`]. It takes the place
    /// of one that an earlier process has left, in the same mode, whose counts it continues.
    ///
    /// # Errors
    /// As [`Xdp::attach`]; `EOPNOTSUPP`: a bypass on a kernel before 6.6.
    pub fn attach_to_stay(ifindex: u32, queues: u32, mode: Mode, failure: Failure) -> io::Result<Xdp> {
        Xdp::attach_in_place_of(None, ifindex, queues, (mode, failure))
    }

    /// Attaches it in place of one that an earlier process has left, or of `other`, whose counts it does not continue.
    fn attach_in_place_of(
        other: Option<&OwnedFd>,
        ifindex: u32,
        queues: u32,
        (mode, failure): (Mode, Failure),
    ) -> io::Result<Xdp> {
        let attach = |frags| -> io::Result<Xdp> {
            let left = Left::find(ifindex)?;
            let (mut xdp, mut object) = Xdp::load(queues, left.as_ref().map_or(mode, |left| left.mode), frags)?;
            if !kernel::HOST_RINGS.is_newer_than_kernel() {
                xdp.bypass = Some(load_classifier(&mut object, BYPASS)?);
            }
            xdp.let_stay(&mut object)?;
            xdp.policy = left.as_ref().map_or(xdp.policy, |left| Policy { before: [0; COUNTS], ..left.policy });
            xdp.set_failure(ifindex, failure)?;
            let expected = left.as_ref().map(|left| &left.program).or(other).map(AsFd::as_fd);
            let change = XdpChange { program: Some(xdp.program.as_fd()), expected };
            link::change_xdp(ifindex, xdp.mode() == Mode::Native, change)?;
            match left {
                // It counts no more.
                Some(left) => {
                    xdp.policy.before = left.counts()?;
                    xdp.settle_ended_sockets(ifindex)?;
                }
                None => xdp.begin_account(ifindex)?,
            }
            Ok(xdp)
        };
        match attach(true) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => attach(false),
            other => other,
        }
    }

    /// As [`Xdp::attach_to_stay`] in the driver, closed, to an interface that is of this project alone; but a program
    /// that an earlier process has left is used with its maps, if it is the same: attaching one takes long. Its
    /// sockets ended with that process. Any other is replaced.
    ///
    /// # Errors
    /// As [`Xdp::attach_to_stay`]; `EBUSY`: a process has attached one by a link, and has not ended yet.
    pub fn keep(ifindex: u32, queues: u32) -> io::Result<Xdp> {
        let attached = link::by_index(ifindex)?.and_then(|link| link.xdp).map(|xdp| bpf::program_by_id(xdp.prog_id));
        let attached = attached.transpose()?;
        if let Some(left) = attached.as_ref().map(|program| Xdp::left(program, ifindex, queues)).transpose()?.flatten()
        {
            return Ok(left);
        }
        Xdp::attach_in_place_of(attached.as_ref(), ifindex, queues, (Mode::Native, Failure::Closed))
    }

    /// Sets what becomes of frames that no program takes, of a program that stays.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: a bypass on a kernel before 6.6.
    pub fn set_failure(&mut self, ifindex: u32, failure: Failure) -> io::Result<()> {
        let (former, set) = (self.policy.failure(), Policy::of(failure));
        self.policy = Policy { failure: set.failure, partner: set.partner, mark: set.mark, ..self.policy };
        match failure {
            // Frames that it is to redirect come only afterwards.
            Failure::Bypass(_) => {
                let bypass = self.bypass.as_ref().ok_or_else(|| io::Error::from_raw_os_error(libc::EOPNOTSUPP))?;
                tcx::attach_so_that_it_stays(bypass, (ifindex, Hook::Ingress), BYPASS)?;
                self.write_policy()?;
                // That of an interface that was closed drops the host's frames.
                if former == Failure::Closed { tcx::detach(ifindex, Hook::Egress, CAPTURE) } else { Ok(()) }
            }
            Failure::Open | Failure::Closed => {
                self.write_policy()?;
                tcx::detach(ifindex, Hook::Ingress, BYPASS)
            }
        }
    }

    /// Returns the counts of frames that no program took.
    ///
    /// # Errors
    /// Only unexpected errors of the kernel.
    pub fn failed(&self) -> io::Result<Failed> {
        failed(&self.failed, &self.policy)
    }

    /// Adds frames to the counts, which last as long as the program.
    ///
    /// # Errors
    /// Only unexpected errors of the kernel.
    pub fn note(&mut self, frames: Noted) -> io::Result<()> {
        self.policy.noted = self.policy.noted.plus(frames);
        self.write_policy()
    }
}

fn failed(counted: &OwnedFd, policy: &Policy) -> io::Result<Failed> {
    counts(counted, policy).map(|counts| Failed::of(counts, policy))
}

pub(super) fn counts(failed: &OwnedFd, policy: &Policy) -> io::Result<[u64; COUNTS]> {
    let mut all = policy.before;
    for (count, index) in all.iter_mut().zip(0..) {
        // SAFETY: K5: the elements of `failed` in xdp.c are of type u64, one for each processor.
        *count += unsafe { bpf::sum_of_processors(failed, index) }?;
    }
    Ok(all)
}

/// A program that stays, and that any process may have attached.
struct Left {
    program: OwnedFd,
    mode: Mode,
    policy: Policy,
    failed: OwnedFd,
}

impl Left {
    /// `None`: nothing is attached to the interface, or another program.
    fn find(ifindex: u32) -> io::Result<Option<Left>> {
        let Some(xdp) = link::by_index(ifindex)?.and_then(|link| link.xdp) else { return Ok(None) };
        let mode = match xdp.mode {
            AttachedMode::Native => Mode::Native,
            AttachedMode::Generic => Mode::Generic,
            AttachedMode::Hardware | AttachedMode::Several => return Ok(None),
        };
        let program = bpf::program_by_id(xdp.prog_id)?;
        let info = bpf::program_info(&program)?;
        if !PROGRAMS.contains(&&*info.name) {
            return Ok(None);
        }
        // An earlier version has no policies.
        let mut maps = bpf::maps_of(&info)?;
        let Some((_, policy)) = take_policy(&mut maps)? else { return Ok(None) };
        // As many bytes are read for each processor as a value has.
        let counters = MapShape::per_processor::<u64>(0);
        let Some(failed) = maps.take_of_any_length("failed", counters) else { return Ok(None) };
        Ok((policy.failure() != Failure::Open).then_some(Left { program, mode, policy, failed }))
    }

    fn counts(&self) -> io::Result<[u64; COUNTS]> {
        counts(&self.failed, &self.policy)
    }
}

/// Returns what becomes of frames at interface `ifindex` of the calling thread's network namespace: by the policy of
/// the program that stays, else [`Failure::Closed`] if it has the name `name` and that is closed, else
/// [`Failure::Open`].
///
/// # Errors
/// `EPERM`: needs `CAP_SYS_ADMIN`. Those of netlink sockets.
pub fn left(ifindex: u32, name: Option<&str>) -> io::Result<Failure> {
    if let Some(left) = Left::find(ifindex)? {
        return Ok(left.policy.failure());
    }
    let is_closed = name.map_or(Ok(false), link::is_closed_name)?;
    Ok(if is_closed { Failure::Closed } else { Failure::Open })
}

/// Detaches the program that stays at interface `ifindex` of the calling thread's network namespace. Returns whether
/// there was one.
///
/// # Errors
/// As [`left`].
pub fn detach_left(ifindex: u32) -> io::Result<bool> {
    let Some(left) = Left::find(ifindex)? else { return Ok(false) };
    let change = XdpChange { program: None, expected: Some(left.program.as_fd()) };
    link::change_xdp(ifindex, left.mode == Mode::Native, change)?;
    tcx::detach(ifindex, Hook::Ingress, BYPASS)?;
    tcx::detach(ifindex, Hook::Egress, CAPTURE).map(|()| true)
}

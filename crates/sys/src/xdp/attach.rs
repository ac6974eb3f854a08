// SPDX-License-Identifier: BSD-2-Clause
//! Attaching the XDP program, and the maps through which it is controlled.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use aya::Ebpf;
use aya::maps::Map;
use aya::programs::Program;

use super::ClassicInsn;
use super::dispatcher::Joining;
use super::policy::{COUNTS, Failure, Policy, take_policy};
use super::translate::{Access, DELIVER, End, translate};
use crate::bpf::{self, Caller, MapShape, errno_of, object_mismatch};
use crate::deadline::{Deadline, Looks};
use crate::once::known_or;

/// `bpf/xdp.c`, compiled.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../../bpf/xdp.o");

/// The programs of `bpf/xdp.c`, for frames of several buffers or not.
pub(super) const FRAGS: &str = "unetmap_frags";
pub(super) const PLAIN: &str = "unetmap_plain";

/// `enum xdp_action` of linux/bpf.h.
const XDP_REDIRECT: u32 = 4;

/// Mode in which the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Mode {
    /// In the driver, before the kernel allocates a packet buffer (`XDP_FLAGS_DRV_MODE`).
    Native,
    /// Before the network stack (`XDP_FLAGS_SKB_MODE`): on every interface, but slower.
    Generic,
}

impl Mode {
    fn flags(self) -> u32 {
        match self {
            Mode::Native => 1 << 2,
            Mode::Generic => 1 << 1,
        }
    }
}

/// A tag of 16 bytes that precedes a frame which a program in [`Mode::Generic`] must pass to the host's stack; all
/// zero: no tag is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[repr(C)]
pub struct Mark(pub [u64; 2]);

/// An interface whose frames are redirected to sockets. Dropping the value returns the interface to the kernel, except
/// after [`Xdp::attach_to_stay`].
#[derive(Debug)]
pub struct Xdp {
    /// `None`: a dispatcher calls the program, or it stays.
    _link: Option<OwnedFd>,
    pub(super) program: OwnedFd,
    sockets: OwnedFd,
    filters: OwnedFd,
    deadline: Arc<Deadline>,
    marks: OwnedFd,
    pub(super) policies: OwnedFd,
    pub(super) failed: OwnedFd,
    pub(super) policy: Policy,
    /// The tcx program that redirects frames to the partner, of a program that stays; `None`: the kernel has no tcx.
    pub(super) bypass: Option<OwnedFd>,
    mode: Mode,
    frags: bool,
    /// Whether the program calls the filter.
    calls_filter: bool,
    /// Whether a dispatcher calls it.
    pub(super) is_member: bool,
    /// Whether it stays, so that filters end with the policy.
    stays: bool,
}

impl Xdp {
    /// Attaches to interface `ifindex` of the calling thread's network namespace, with room for the sockets of receive
    /// queues `0..queues`. All frames pass to the kernel until a socket is inserted.
    ///
    /// # Errors
    /// `EBUSY`, `EEXIST`: another program is attached, in this mode or in the other. `EPERM`: needs `CAP_NET_ADMIN` and
    /// `CAP_BPF`. `EOPNOTSUPP`: the driver has no native mode. `ENODEV`, `EINVAL`: no such interface, `queues` is 0, or
    /// the driver refuses (for instance because of the MTU).
    pub fn attach(ifindex: u32, queues: u32, mode: Mode) -> io::Result<Xdp> {
        // Linux before 5.18 does not support frames of several buffers, and answers EINVAL.
        match Xdp::attach_as(ifindex, queues, mode, true) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Xdp::attach_as(ifindex, queues, mode, false),
            other => other,
        }
    }

    pub(super) fn attach_as(ifindex: u32, queues: u32, mode: Mode, frags: bool) -> io::Result<Xdp> {
        let (xdp, _) = Xdp::load(queues, mode, frags)?;
        let link = bpf::link_xdp(&xdp.program, ifindex, mode.flags())?;
        let mut xdp = Xdp { _link: Some(link), ..xdp };
        xdp.begin_account(ifindex)?;
        Ok(xdp)
    }

    /// Loads the program, of an object with others. Attaches nothing.
    pub(super) fn load(queues: u32, mode: Mode, frags: bool) -> io::Result<(Xdp, Ebpf)> {
        if queues == 0 {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let mut object = load(queues)?;
        let name = if frags { FRAGS } else { PLAIN };
        let Some(Program::Xdp(program)) = object.program_mut(name) else { return Err(object_mismatch()) };
        program.load().map_err(|e| errno_of(&e))?;
        let program = program.fd().map_err(|e| errno_of(&e))?.as_fd().try_clone_to_owned()?;
        Ok((Xdp::new(&object, program, mode, frags)?, object))
    }

    /// Lets filters end with the policy, by a program of the same object.
    pub(super) fn let_stay(&mut self, object: &mut Ebpf) -> io::Result<()> {
        let name = if self.frags { "deliver_frags" } else { "deliver_plain" };
        let Some(Program::Xdp(program)) = object.program_mut(name) else { return Err(object_mismatch()) };
        program.load().map_err(|e| errno_of(&e))?;
        bpf::map_set(&self.filters, DELIVER, program.fd().map_err(|e| errno_of(&e))?)?;
        self.stays = true;
        Ok(())
    }

    /// The program that has stayed in the driver of interface `ifindex`, with its maps, for frames of several buffers,
    /// if it is the one that this process would attach for `queues` queues, and closed. `None`: another program, or one
    /// of another version.
    pub(super) fn left(program: &OwnedFd, ifindex: u32, queues: u32) -> io::Result<Option<Xdp>> {
        let program = program.try_clone()?;
        let info = bpf::program_info(&program)?;
        if info.name != FRAGS || info.tag != own_tag()? {
            return Ok(None);
        }
        let mut maps = bpf::maps_of(&info)?;
        let Some((policies, policy)) = take_policy(&mut maps)? else { return Ok(None) };
        if policy.failure() != Failure::Closed {
            return Ok(None);
        }
        let looks = maps.take("looks_of", MapShape::array::<Looks>(1));
        let looks = looks.zip(maps.take("faults", MapShape::per_processor::<u64>(2)));
        let (Some(sockets), Some(filters), Some(looks), Some(alive), Some(served), Some(marks), Some(failed)) = (
            maps.take("sockets", MapShape::sockets(queues)),
            maps.take("filters", MapShape::programs(2)),
            looks,
            maps.take("alive", MapShape::array::<u64>(1)),
            maps.take("served", MapShape::array::<u64>(queues)),
            maps.take("marks", MapShape::array::<Mark>(1)),
            maps.take("failed", MapShape::per_processor::<u64>(COUNTS as u32)),
        ) else {
            return Ok(None);
        };
        let mut xdp = Xdp {
            _link: None,
            program,
            sockets,
            filters,
            deadline: Deadline::of_maps(alive, served, looks),
            marks,
            policies,
            failed,
            policy,
            bypass: None,
            mode: Mode::Native,
            frags: true,
            calls_filter: true,
            is_member: false,
            stays: true,
        };
        xdp.settle_at_once(ifindex)?;
        Ok(Some(xdp))
    }

    fn new(object: &Ebpf, program: OwnedFd, mode: Mode, frags: bool) -> io::Result<Xdp> {
        let (Some(Map::XskMap(sockets)), Some(Map::ProgramArray(filters))) =
            (object.map("sockets"), object.map("filters"))
        else {
            return Err(object_mismatch());
        };
        let sockets = sockets.fd().as_fd().try_clone_to_owned()?;
        let filters = filters.fd().as_fd().try_clone_to_owned()?;
        let (deadline, marks) = (Deadline::of(object)?, bpf::array(object, "marks")?);
        let (policies, failed) = (bpf::array(object, "policies")?, bpf::array(object, "failed")?);
        let policy = Policy::of(Failure::Open);
        Ok(Xdp {
            _link: None,
            program,
            sockets,
            filters,
            deadline,
            marks,
            policies,
            failed,
            policy,
            bypass: None,
            mode,
            frags,
            calls_filter: true,
            is_member: false,
            stays: false,
        })
    }

    /// As [`Xdp::attach`], as a member of the interface's dispatcher, which is created if nothing is attached. The mode
    /// is that of the dispatcher, if there is one. With `extras` the program supports marks and filters, but Linux
    /// since 6.13 refuses it as a member of dispatchers that libxdp makes, whose stubs may not change packets.
    ///
    /// `announce` is called with the program's id before the interface is changed. The program stays in the dispatcher
    /// until [`super::dispatcher::leave`] is called with it, even if the process ends.
    ///
    /// # Errors
    /// As [`Xdp::attach`]; that of `announce`; `NotFound`: no BPF file system is mounted.
    pub fn join(
        ifindex: u32,
        queues: u32,
        (mode, extras): (Mode, bool),
        announce: &mut (dyn FnMut(u32) -> io::Result<()> + Send),
    ) -> io::Result<Xdp> {
        let mut join = |frags| {
            let joining = Joining::new(ifindex, mode, frags)?;
            let mut object = load(queues)?;
            let name = if extras { "unetmap_filters" } else { "unetmap_member" };
            let Some(Program::Extension(member)) = object.program_mut(name) else { return Err(object_mismatch()) };
            let (target, stub) = joining.target();
            member.load(target.try_clone()?, &stub).map_err(|e| errno_of(&e))?;
            let program = member.fd().map_err(|e| errno_of(&e))?.as_fd().try_clone_to_owned()?;
            announce(bpf::program_info(&program)?.id)?;
            let (mode, frags) = joining.mode();
            joining.complete(member)?;
            Ok(Xdp { calls_filter: extras, is_member: true, ..Xdp::new(&object, program, mode, frags)? })
        };
        match join(true) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => join(false),
            other => other,
        }
    }

    /// Whether a filter can be set without attaching again.
    pub fn calls_filter(&self) -> bool {
        self.calls_filter
    }

    /// The program's deadline. After it frames pass to the kernel.
    pub fn deadline(&self) -> &Arc<Deadline> {
        &self.deadline
    }

    /// Sets the tag: a frame that begins with it passes to the kernel, with the tag removed.
    ///
    /// # Errors
    /// Only unexpected errors of the kernel.
    pub fn set_mark(&mut self, mark: Mark) -> io::Result<()> {
        // SAFETY: K5: the elements of `marks` in common.h are pairs of u64.
        unsafe { bpf::array_set(&self.marks, &mark) }
    }

    /// Returns the mode in which the program is attached.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns true if frames may span several buffers, which allows an MTU above a page (Linux 5.18).
    pub fn frags(&self) -> bool {
        self.frags
    }

    /// Redirects frames of receive queue `queue` to `socket`, an AF_XDP socket bound to that queue. Replaces an earlier
    /// socket. The kernel removes a socket when it is closed.
    ///
    /// # Errors
    /// `E2BIG`: no room for this queue. `EOPNOTSUPP`: not an AF_XDP socket.
    pub fn insert(&mut self, queue: u32, socket: impl AsFd) -> io::Result<()> {
        bpf::map_set(&self.sockets, queue, socket)
    }

    /// Passes frames of receive queue `queue` to the kernel. Succeeds if it has no socket.
    ///
    /// # Errors
    /// `EINVAL`: no room for this queue, so there cannot be a socket.
    pub fn remove(&mut self, queue: u32) -> io::Result<()> {
        unset(&self.sockets, queue)
    }

    /// Sets the filter: only frames that this classic BPF program (for Ethernet) accepts are redirected to the sockets,
    /// all others pass to the kernel; without a filter all are redirected. The replacement is atomic for each frame.
    /// The program reads the whole frame, but no VLAN tag that the driver has removed. If the new filter is refused,
    /// the old one stays.
    ///
    /// # Errors
    /// `InvalidInput` names the instruction that is invalid or not allowed. `E2BIG`: the program is too complex for the
    /// kernel.
    pub fn set_filter(&mut self, filter: Option<&[ClassicInsn]>) -> io::Result<()> {
        let Some(filter) = filter else { return unset(&self.filters, 0) };
        let access = if self.frags { Access::Buffers } else { Access::Plain };
        let end = match self.stays {
            true => End::Call(self.filters.as_raw_fd()),
            false => End::Redirect(self.sockets.as_raw_fd()),
        };
        let insns = translate(filter, (end, self.failed.as_raw_fd()), access)
            .map_err(|refused| io::Error::new(io::ErrorKind::InvalidInput, refused))?;
        let caller = if self.is_member { Caller::Member } else { Caller::Attached { frags: self.frags } };
        bpf::map_set(&self.filters, 0, bpf::load_xdp(&insns, caller)?)
    }

    /// Checks that the kernel accepts this program as a filter. Attaches nothing.
    ///
    /// # Errors
    /// As [`Xdp::set_filter`]; `EPERM`: needs `CAP_BPF` and `CAP_NET_ADMIN`.
    pub fn try_filter(filter: &[ClassicInsn]) -> io::Result<()> {
        let object = load(1)?;
        let Some(Map::XskMap(sockets)) = object.map("sockets") else { return Err(object_mismatch()) };
        let (sockets, counts) = (sockets.fd().as_fd().as_raw_fd(), bpf::array(&object, "failed")?);
        let load = |access| {
            let insns = translate(filter, (End::Redirect(sockets), counts.as_raw_fd()), access)
                .map_err(|refused| io::Error::new(io::ErrorKind::InvalidInput, refused))?;
            bpf::load_xdp(&insns, Caller::Attached { frags: access == Access::Buffers }).map(drop)
        };
        match load(Access::Buffers) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => load(Access::Plain),
            other => other,
        }
    }

    /// Runs the program on a frame as if receive queue 0 had received it, and returns whether it would be redirected to
    /// the socket. The frame is not delivered.
    ///
    /// # Errors
    /// `EINVAL`: the frame is shorter than an Ethernet header, or too long.
    pub fn would_redirect(&self, frame: &[u8]) -> io::Result<bool> {
        Ok(bpf::test_run(&self.program, frame)? == XDP_REDIRECT)
    }
}

/// The tag of the program that this process would attach, for frames of several buffers: a hash of its code.
fn own_tag() -> io::Result<u64> {
    static TAG: OnceLock<u64> = OnceLock::new();
    known_or(&TAG, || {
        let (xdp, _) = Xdp::load(1, Mode::Native, true)?;
        Ok(bpf::program_info(&xdp.program)?.tag)
    })
}

/// Loads the object, with room for the sockets of `queues`.
fn load(queues: u32) -> io::Result<Ebpf> {
    bpf::load(OBJECT, &[("sockets", queues), ("served", queues)])
}

/// Deletes an entry of a map, if it exists.
fn unset(map: &OwnedFd, key: u32) -> io::Result<()> {
    match bpf::map_unset(map, key) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        other => other,
    }
}

// SPDX-License-Identifier: BSD-2-Clause
//! Redirection of frames between the host's network stack, or an interface, and a companion of the interface, by tcx
//! programs (Linux 6.6). The companion is a veth pair; its near end is in the interface's namespace, its far end
//! carries the host rings ([`Tcx`]), or the interface's own rings ([`Relay`]).
//!
//! The programs are `bpf/host.c`, embedded as a compiled object. As in [`crate::xdp`], they are attached as BPF links,
//! which are removed when their last descriptor is closed.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use aya::Ebpf;

use crate::bpf::{self, Hook, MapShape, REDIRECT_MARK, array, load_classifier};
use crate::deadline::Deadline;
use crate::once::known_or;
use crate::xdp::Mark;

/// `bpf/host.c`, compiled.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../bpf/host.o");

/// The program at the interface's egress.
pub(crate) const CAPTURE: &str = "unetmap_capture";

/// Action for frames that the host sends on the interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum HostTxAction {
    /// Sends them.
    #[default]
    Pass,
    /// Redirects them to the companion.
    Redirect,
    /// Drops and counts them.
    Drop,
}

/// `struct config` of host.c.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
struct Config {
    host_tx: u32,
    nic: u32,
    near: u32,
    mark: u32,
    far: u32,
    to_stack: u32,
    closed: u32,
}

/// The programs of one interface. Dropping it detaches them.
#[derive(Debug)]
pub struct Tcx {
    /// `None`: the program stays.
    _capture: Option<OwnedFd>,
    companion: Option<[OwnedFd; 2]>,
    near_egress: OwnedFd,
    near_ingress: OwnedFd,
    config_map: OwnedFd,
    deadline: Arc<Deadline>,
    marks: OwnedFd,
    dropped: OwnedFd,
    passed: OwnedFd,
    config: Config,
}

impl Tcx {
    /// Attaches to interface `nic` of the calling thread's network namespace. All frames pass until configured
    /// otherwise.
    ///
    /// # Errors
    /// `EINVAL`: a kernel before 6.6. `EPERM`: needs `CAP_NET_ADMIN` and `CAP_BPF`. `ENODEV`: no such interface.
    pub fn attach(nic: u32) -> io::Result<Tcx> {
        let (tcx, capture) = Tcx::load(nic, HostTxAction::Pass, false)?;
        Ok(Tcx { _capture: Some(bpf::link_tcx(&capture, nic, Hook::Egress)?), ..tcx })
    }

    /// As [`Tcx::attach`], but the program of the interface itself stays when the value is dropped, in place of one
    /// that has stayed, and its action is in force without a deadline. [`crate::xdp::detach_left`] detaches it.
    ///
    /// # Errors
    /// As [`Tcx::attach`].
    pub fn attach_to_stay(nic: u32, action: HostTxAction) -> io::Result<Tcx> {
        let (tcx, capture) = Tcx::load(nic, action, true)?;
        attach_so_that_it_stays(&capture, (nic, Hook::Egress), CAPTURE)?;
        Ok(tcx)
    }

    fn load(nic: u32, action: HostTxAction, closed: bool) -> io::Result<(Tcx, OwnedFd)> {
        let mut object = bpf::load(OBJECT, &[])?;
        let capture = load_classifier(&mut object, CAPTURE)?;
        let (near_egress, near_ingress) =
            (load_classifier(&mut object, "unetmap_near_tx")?, load_classifier(&mut object, "unetmap_near_rx")?);
        let mut tcx = Tcx {
            _capture: None,
            companion: None,
            near_egress,
            near_ingress,
            config_map: array(&object, "configs")?,
            deadline: Deadline::of(&object)?,
            marks: array(&object, "marks")?,
            dropped: array(&object, "dropped")?,
            passed: array(&object, "passed")?,
            config: Config {
                host_tx: action as u32,
                nic,
                near: 0,
                mark: REDIRECT_MARK,
                far: 0,
                to_stack: 0,
                closed: closed.into(),
            },
        };
        tcx.write_config()?;
        Ok((tcx, capture))
    }

    fn write_config(&mut self) -> io::Result<()> {
        // SAFETY: K5: the elements of `configs` in host.c are of type `struct config`.
        unsafe { bpf::array_set(&self.config_map, &self.config) }
    }

    /// Attaches to the near end of a companion in the same namespace: frames that arrive there are passed to the host's
    /// stack as if the interface had received them.
    ///
    /// # Errors
    /// As [`Tcx::attach`].
    pub fn attach_companion(&mut self, near: u32) -> io::Result<()> {
        self.detach_companion();
        let links = [
            bpf::link_tcx(&self.near_egress, near, Hook::Egress)?,
            bpf::link_tcx(&self.near_ingress, near, Hook::Ingress)?,
        ];
        self.config.near = near;
        self.write_config()?;
        self.companion = Some(links);
        Ok(())
    }

    /// Sets whether a [`Relay`] is attached to the interface, which then leaves frames to the host's stack alone.
    ///
    /// # Errors
    /// Only unexpected errors of the kernel.
    pub fn set_relayed(&mut self, relayed: bool) -> io::Result<()> {
        self.config.to_stack = if relayed { REDIRECT_MARK } else { 0 };
        self.write_config()
    }

    /// Detaches from the companion's near end, if there is one.
    pub fn detach_companion(&mut self) {
        self.companion = None;
    }

    /// Sets the action for the host's frames. [`HostTxAction::Redirect`] requires a companion.
    ///
    /// # Errors
    /// Only unexpected errors of the kernel.
    pub fn set_host_tx(&mut self, action: HostTxAction) -> io::Result<()> {
        self.config.host_tx = action as u32;
        self.write_config()
    }

    /// The programs' deadline. After it the host's frames pass.
    pub fn deadline(&self) -> &Arc<Deadline> {
        &self.deadline
    }

    /// Sets the tag that precedes frames on their way to the stack.
    ///
    /// # Errors
    /// Only unexpected errors of the kernel.
    pub fn set_mark(&mut self, mark: Mark) -> io::Result<()> {
        // SAFETY: K5: the elements of `marks` in common.h are pairs of u64.
        unsafe { bpf::array_set(&self.marks, &mark) }
    }

    /// Returns how many of the host's frames were dropped.
    pub fn dropped(&self) -> u64 {
        count(&self.dropped)
    }

    /// Returns how many of the host's frames went to the wire because the deadline was over.
    pub fn passed(&self) -> u64 {
        count(&self.passed)
    }
}

/// The indexes of an interface and of its companion, whose far end is in another namespace.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RelayEnds {
    /// The interface.
    pub nic: u32,
    /// The near end, in the interface's namespace.
    pub near: u32,
    /// The far end.
    pub far: u32,
}

/// The programs between an interface and a companion that has its rings. The kernel completes frames on their way to
/// the companion: VLAN tags, checksums, segments. Dropping the value detaches them.
#[derive(Debug)]
pub struct Relay {
    _links: Vec<OwnedFd>,
    deadline: Arc<Deadline>,
    passed: OwnedFd,
}

/// The count in a map of the programs.
fn count(map: &OwnedFd) -> u64 {
    // SAFETY: K5: the elements of `dropped` and `passed` in host.c are of type u64.
    unsafe { bpf::array_get(map) }.unwrap_or(0)
}

impl Relay {
    /// Attaches to the ends that are in the namespace of the calling thread, except the interface; `at_far_end` is
    /// called with the last program, to be attached with [`attach_to_far_end`] in the far end's namespace. Then all
    /// frames that the interface receives are redirected.
    ///
    /// # Errors
    /// As [`Tcx::attach`]; those of `at_far_end`.
    pub fn attach(ends: RelayEnds, at_far_end: impl FnOnce(&OwnedFd) -> io::Result<OwnedFd>) -> io::Result<Relay> {
        let mut object = bpf::load(OBJECT, &[])?;
        let RelayEnds { nic, near, .. } = ends;
        Relay::configure(&object, &Relay::config(ends, false))?;
        let links = vec![
            at_far_end(&load_classifier(&mut object, "unetmap_give_back")?)?,
            bpf::link_tcx(&load_classifier(&mut object, "unetmap_near_tx")?, near, Hook::Egress)?,
            bpf::link_tcx(&load_classifier(&mut object, "unetmap_depart")?, near, Hook::Ingress)?,
            bpf::link_tcx(&load_classifier(&mut object, "unetmap_arrive")?, nic, Hook::Ingress)?,
        ];
        Ok(Relay { _links: links, deadline: Deadline::of(&object)?, passed: array(&object, "passed")? })
    }

    /// Has the programs at a companion whose both ends are in the namespace of the calling thread, as is the interface,
    /// which is of this project alone: its stack gets no frames. They stay; those that an earlier process has left are
    /// used if they are the same.
    ///
    /// # Errors
    /// As [`Tcx::attach`].
    pub fn keep(ends: RelayEnds) -> io::Result<()> {
        let config = Relay::config(ends, true);
        let places = Relay::staying(ends);
        if Relay::has_stayed(&config, places)? {
            return Ok(());
        }
        let mut object = bpf::load(OBJECT, &[])?;
        Relay::configure(&object, &config)?;
        for (name, place) in places {
            attach_so_that_it_stays(&load_classifier(&mut object, name)?, place, name)?;
        }
        match Relay::has_stayed(&config, places)? {
            true => Ok(()),
            false => Err(io::Error::other("the kernel does not show the programs that it has attached")),
        }
    }

    /// The programs of [`Relay::keep`], and where they are, the last of which receives frames.
    fn staying(RelayEnds { nic, near, .. }: RelayEnds) -> [(&'static str, (u32, Hook)); 3] {
        [
            ("unetmap_near_tx", (near, Hook::Egress)),
            ("unetmap_depart", (near, Hook::Ingress)),
            ("unetmap_arrive", (nic, Hook::Ingress)),
        ]
    }

    /// Whether these programs are there, of this version, and with this configuration.
    fn has_stayed(config: &Config, places: [(&'static str, (u32, Hook)); 3]) -> io::Result<bool> {
        for (at, (name, (index, hook))) in places.into_iter().enumerate() {
            let Some((program, _)) = attached(index, hook, name)? else { return Ok(false) };
            let info = bpf::program_info(&program)?;
            let configs = bpf::maps_of(&info)?.take("configs", MapShape::array::<Config>(1));
            let Some(configs) = configs else { return Ok(false) };
            let mut found = Config::default();
            if info.tag != own_tags()?[at] {
                return Ok(false);
            }
            // SAFETY: K5: in the map of this program the elements are of type `struct config`, as in host.c.
            if unsafe { bpf::array_read(&configs, &mut found) }.is_err() || found != *config {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn config(RelayEnds { nic, near, far }: RelayEnds, closed: bool) -> Config {
        let host_tx = HostTxAction::Pass as u32;
        let closed = closed.into();
        Config { host_tx, nic, near, mark: REDIRECT_MARK, far, to_stack: REDIRECT_MARK, closed }
    }

    fn configure(object: &Ebpf, config: &Config) -> io::Result<()> {
        // SAFETY: K5: the elements of `configs` in host.c are of type `struct config`.
        unsafe { bpf::array_set(&array(object, "configs")?, config) }
    }

    /// The programs' deadline. After it received frames are the host's.
    pub fn deadline(&self) -> &Arc<Deadline> {
        &self.deadline
    }

    /// Returns how many received frames were the host's because the deadline was over.
    pub fn passed(&self) -> u64 {
        count(&self.passed)
    }
}

/// The tags of the programs of [`Relay::keep`], hashes of their code, as this process would attach them.
fn own_tags() -> io::Result<[u64; 3]> {
    static TAGS: OnceLock<[u64; 3]> = OnceLock::new();
    known_or(&TAGS, || {
        let (mut object, mut tags) = (bpf::load(OBJECT, &[])?, [0; 3]);
        for (tag, (name, _)) in tags.iter_mut().zip(Relay::staying(RelayEnds { nic: 0, near: 0, far: 0 })) {
            *tag = bpf::program_info(&load_classifier(&mut object, name)?)?.tag;
        }
        Ok(tags)
    })
}

/// Attaches a program of [`Relay::attach`] to the far end, in the namespace of the calling thread.
///
/// # Errors
/// As [`Tcx::attach`].
pub fn attach_to_far_end(program: &OwnedFd, far: u32) -> io::Result<OwnedFd> {
    bpf::link_tcx(program, far, Hook::Ingress)
}

/// Attaches a program to a hook of an interface until it is detached, in place of the one of this name that has stayed.
pub(crate) fn attach_so_that_it_stays(program: &OwnedFd, (index, hook): (u32, Hook), name: &str) -> io::Result<()> {
    let old = attached(index, hook, name)?;
    match &old {
        Some((_, id)) if bpf::program_info(program)?.id == *id => Ok(()),
        old => bpf::attach_tcx(program.as_fd(), index, hook, old.as_ref().map(|(old, _)| old.as_fd())),
    }
}

/// Detaches the program of this name that has stayed, if there is one.
pub(crate) fn detach(index: u32, hook: Hook, name: &str) -> io::Result<()> {
    attached(index, hook, name)?.map_or(Ok(()), |(program, _)| bpf::detach_tcx(program.as_fd(), index, hook))
}

/// The program of this name that has stayed, which any process may have attached, and its id. One that a process has
/// attached by a link ends with that process, which alone can detach it.
pub(crate) fn attached(index: u32, hook: Hook, name: &str) -> io::Result<Option<(OwnedFd, u32)>> {
    let ids = match bpf::attached_tcx(index, hook) {
        // A kernel before 6.6.
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => return Ok(None),
        ids => ids?,
    };
    for (id, _) in ids.into_iter().filter(|(_, link)| *link == 0) {
        let program = bpf::program_by_id(id)?;
        if bpf::program_info(&program)?.name == name {
            return Ok(Some((program, id)));
        }
    }
    Ok(None)
}

/// Returns the ids of all tcx programs that are attached to interface `index` of the calling thread's network
/// namespace, by any process.
///
/// # Errors
/// `EINVAL`: a kernel before 6.6. `ENODEV`: no such interface. `EPERM`: needs `CAP_NET_ADMIN`.
pub fn programs(index: u32) -> io::Result<Vec<u32>> {
    let mut all = bpf::attached_tcx(index, Hook::Ingress)?;
    all.extend(bpf::attached_tcx(index, Hook::Egress)?);
    Ok(all.into_iter().map(|(program, _)| program).collect())
}

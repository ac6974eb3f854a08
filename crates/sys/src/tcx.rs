//! Redirection of frames between the host's network stack and the companion of an interface, by tcx programs (Linux
//! 6.6). The companion is a veth pair; its near end is in the interface's namespace, its far end carries the host
//! rings.
//!
//! The programs are `bpf/host.c`, embedded as a compiled object. As in [`crate::xdp`], they are attached as BPF links,
//! which are removed when their last descriptor is closed.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use aya::Ebpf;
use aya::programs::Program;

use crate::bpf::{self, Hook, array, errno_of, object_mismatch};
use crate::deadline::Deadline;
use crate::xdp::Mark;

/// `bpf/host.c`, compiled.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../bpf/host.o");

/// `skb->mark` of frames between the interface and the companion's near end.
const REDIRECT_MARK: u32 = 0x756e_6d68;

/// Action for frames that the host sends on the interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Config {
    host_tx: u32,
    nic: u32,
    near: u32,
    mark: u32,
}

/// The programs of one interface. Dropping it detaches them.
#[derive(Debug)]
pub struct Tcx {
    _capture: OwnedFd,
    companion: Option<[OwnedFd; 2]>,
    near_egress: OwnedFd,
    near_ingress: OwnedFd,
    config_map: OwnedFd,
    deadline: Arc<Deadline>,
    marks: OwnedFd,
    dropped: OwnedFd,
    config: Config,
}

impl Tcx {
    /// Attaches to interface `nic` of the calling thread's network namespace. All frames pass until configured
    /// otherwise.
    ///
    /// # Errors
    /// `EINVAL`: a kernel before 6.6. `EPERM`: needs `CAP_NET_ADMIN` and `CAP_BPF`. `ENODEV`: no such interface.
    pub fn attach(nic: u32) -> io::Result<Tcx> {
        let mut object = bpf::load(OBJECT, None)?;
        let capture = load(&mut object, "unetmap_capture")?;
        let (near_egress, near_ingress) =
            (load(&mut object, "unetmap_near_tx")?, load(&mut object, "unetmap_near_rx")?);
        let mut tcx = Tcx {
            _capture: bpf::link_tcx(&capture, nic, Hook::Egress)?,
            companion: None,
            near_egress,
            near_ingress,
            config_map: array(&object, "configs")?,
            deadline: Deadline::of(&object)?,
            marks: array(&object, "marks")?,
            dropped: array(&object, "dropped")?,
            config: Config { host_tx: HostTxAction::Pass as u32, nic, near: 0, mark: REDIRECT_MARK },
        };
        tcx.write_config()?;
        Ok(tcx)
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
        // SAFETY: K5: the elements of `dropped` in host.c are of type u64.
        unsafe { bpf::array_get(&self.dropped) }.unwrap_or(0)
    }
}

/// Returns the ids of all tcx programs that are attached to interface `index` of the calling thread's network
/// namespace, by any process.
///
/// # Errors
/// `EINVAL`: a kernel before 6.6. `ENODEV`: no such interface. `EPERM`: needs `CAP_NET_ADMIN`.
pub fn programs(index: u32) -> io::Result<Vec<u32>> {
    let mut ids = bpf::attached_tcx(index, Hook::Ingress)?;
    ids.extend(bpf::attached_tcx(index, Hook::Egress)?);
    Ok(ids)
}

fn load(object: &mut Ebpf, name: &str) -> io::Result<OwnedFd> {
    let Some(Program::SchedClassifier(program)) = object.program_mut(name) else { return Err(object_mismatch()) };
    program.load().map_err(|e| errno_of(&e))?;
    program.fd().map_err(|e| errno_of(&e))?.as_fd().try_clone_to_owned()
}

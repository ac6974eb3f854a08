//! What leads the frames between the host's stack and the far end of a companion of an interface, by tcx (Linux 6.6).
//!
//! The programs are `bpf/host.c`, embedded as they were compiled. As with [`crate::xdp`], they are attached as BPF links,
//! which end with the last descriptor of them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use aya::Ebpf;
use aya::programs::Program;

use crate::bpf::{self, Hook, array, foreign_object, kernels_error};
use crate::xdp::{Mark, deadline};

/// `bpf/host.c`, compiled.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../../../bpf/host.o");

/// On frames between the interface and the companion's near end (`skb->mark`).
const PASS: u32 = 0x756e_6d68;

/// What becomes of the frames that the host sends by the interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Capture {
    /// They are sent.
    #[default]
    ToTheWire,
    /// They go to the companion.
    ToTheRings,
    /// They are dropped, and counted.
    Nowhere,
}

/// `struct ways` of host.c.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Ways {
    capture: u32,
    nic: u32,
    near: u32,
    pass: u32,
}

/// The programs of one interface. Dropping it detaches them.
#[derive(Debug)]
pub struct Tcx {
    _capture: OwnedFd,
    companion: Option<[OwnedFd; 2]>,
    door: OwnedFd,
    enter: OwnedFd,
    ways: OwnedFd,
    alive: OwnedFd,
    marks: OwnedFd,
    dropped: OwnedFd,
    now: Ways,
}

impl Tcx {
    /// Attaches to interface `nic` of the calling thread's network namespace. All frames go on as before.
    ///
    /// # Errors
    /// `EINVAL`: a kernel before 6.6. `EPERM`: needs `CAP_NET_ADMIN` and `CAP_BPF`. `ENODEV`: no such interface.
    pub fn attach(nic: u32) -> io::Result<Tcx> {
        let mut object = bpf::load(OBJECT, None)?;
        let capture = load(&mut object, "unetmap_capture")?;
        let (door, enter) = (load(&mut object, "unetmap_door")?, load(&mut object, "unetmap_enter")?);
        let mut tcx = Tcx {
            _capture: bpf::link_tcx(&capture, nic, Hook::Egress)?,
            companion: None,
            door,
            enter,
            ways: array(&object, "ways")?,
            alive: array(&object, "alive")?,
            marks: array(&object, "marks")?,
            dropped: array(&object, "dropped")?,
            now: Ways { capture: Capture::ToTheWire as u32, nic, near: 0, pass: PASS },
        };
        tcx.write()?;
        Ok(tcx)
    }

    fn write(&mut self) -> io::Result<()> {
        // SAFETY: the values of `ways` in host.c are such structures.
        unsafe { bpf::array_set(&self.ways, &self.now) }
    }

    /// Attaches to the near end of a companion in the same namespace: what comes there goes to the host's stack, as if it
    /// had come by the interface.
    ///
    /// # Errors
    /// As [`Tcx::attach`].
    pub fn join(&mut self, near: u32) -> io::Result<()> {
        self.leave();
        let links = [bpf::link_tcx(&self.door, near, Hook::Egress)?, bpf::link_tcx(&self.enter, near, Hook::Ingress)?];
        self.now.near = near;
        self.write()?;
        self.companion = Some(links);
        Ok(())
    }

    /// Detaches from the companion's near end, if there is one.
    pub fn leave(&mut self) {
        self.companion = None;
    }

    /// What becomes of the host's frames from now on. [`Capture::ToTheRings`] is for interfaces with a companion.
    ///
    /// # Errors
    /// None that is not the kernel's fault.
    pub fn capture(&mut self, capture: Capture) -> io::Result<()> {
        self.now.capture = capture as u32;
        self.write()
    }

    /// This goes on for so long from now; afterwards the host's frames are sent, until this is called again. Before the
    /// first call it goes on for ever.
    ///
    /// # Errors
    /// None that is not the kernel's fault.
    pub fn keep(&mut self, time: Duration) -> io::Result<()> {
        // SAFETY: the values of `alive` in common.h are such numbers.
        unsafe { bpf::array_set(&self.alive, &deadline(time)) }
    }

    /// What stands before frames on their way to the stack.
    ///
    /// # Errors
    /// None that is not the kernel's fault.
    pub fn set_mark(&mut self, mark: Mark) -> io::Result<()> {
        // SAFETY: the values of `marks` in common.h are such pairs.
        unsafe { bpf::array_set(&self.marks, &mark) }
    }

    /// How many of the host's frames were dropped.
    pub fn dropped(&self) -> u64 {
        // SAFETY: the values of `dropped` in host.c are such numbers.
        unsafe { bpf::array_get(&self.dropped) }.unwrap_or(0)
    }
}

/// The numbers of all tcx programs that are attached to interface `index` of the calling thread's network namespace,
/// whoever attached them.
///
/// # Errors
/// `EINVAL`: a kernel before 6.6. `ENODEV`: no such interface. `EPERM`: needs `CAP_NET_ADMIN`.
pub fn programs(index: u32) -> io::Result<Vec<u32>> {
    let mut ids = bpf::attached_tcx(index, Hook::Ingress)?;
    ids.extend(bpf::attached_tcx(index, Hook::Egress)?);
    Ok(ids)
}

fn load(object: &mut Ebpf, name: &str) -> io::Result<OwnedFd> {
    let Some(Program::SchedClassifier(program)) = object.program_mut(name) else { return Err(foreign_object()) };
    program.load().map_err(|e| kernels_error(&e))?;
    program.fd().map_err(|e| kernels_error(&e))?.as_fd().try_clone_to_owned()
}

//! XDP: which frames of an interface enter AF_XDP sockets and not the kernel's network stack.
//!
//! The program is `bpf/xdp.c`, embedded as it was compiled. It is attached as a BPF link, so that the interface belongs
//! to the kernel again as soon as the link's last descriptor is closed, however the process ended. Nothing is pinned,
//! and nothing is attached by netlink, which would stay.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use aya::maps::Map;
use aya::programs::Program;

pub(crate) mod classic;
#[cfg(test)]
mod tests;

use crate::bpf::{self, foreign_object, kernels_error};
use crate::clock;
use classic::Access;
pub use classic::{ClassicInsn, ClassicProgram};

/// `bpf/xdp.c`, compiled.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../../../bpf/xdp.o");

/// `enum xdp_action` of linux/bpf.h.
const XDP_REDIRECT: u32 = 4;

/// Where in the kernel the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In the driver, before the kernel has made anything of the frame (`XDP_FLAGS_DRV_MODE`).
    Native,
    /// At the entrance of the network stack (`XDP_FLAGS_SKB_MODE`): on each interface, and slower.
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

/// What stands before a frame that goes to the host's stack past a program in [`Mode::Generic`]; all zero: nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Mark(pub [u64; 2]);

/// An interface whose frames go into sockets. Dropping it gives the interface back to the kernel.
#[derive(Debug)]
pub struct Xdp {
    _link: OwnedFd,
    program: OwnedFd,
    sockets: OwnedFd,
    filters: OwnedFd,
    alive: OwnedFd,
    marks: OwnedFd,
    mode: Mode,
    frags: bool,
}

impl Xdp {
    /// Attaches to interface `ifindex` of the calling thread's network namespace, with room for the sockets of receive
    /// queues `0..queues`. As long as no socket is inserted, all frames go to the kernel as before.
    ///
    /// # Errors
    /// `EBUSY`, `EEXIST`: another program is attached, in this mode or in the other. `EPERM`: needs `CAP_NET_ADMIN` and
    /// `CAP_BPF`. `EOPNOTSUPP`: the driver has no native mode. `ENODEV`, `EINVAL`: no such interface, `queues` is 0, or
    /// the driver refuses (for instance because of the MTU).
    pub fn attach(ifindex: u32, queues: u32, mode: Mode) -> io::Result<Xdp> {
        // Linux before 5.18 knows no frames of several buffers, and says EINVAL.
        match Xdp::attach_as(ifindex, queues, mode, true) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Xdp::attach_as(ifindex, queues, mode, false),
            other => other,
        }
    }

    fn attach_as(ifindex: u32, queues: u32, mode: Mode, frags: bool) -> io::Result<Xdp> {
        if queues == 0 {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let mut object = bpf::load(OBJECT, Some(("sockets", queues)))?;
        let name = if frags { "unetmap_frags" } else { "unetmap_plain" };
        let Some(Program::Xdp(program)) = object.program_mut(name) else { return Err(foreign_object()) };
        program.load().map_err(|e| kernels_error(&e))?;
        let program = program.fd().map_err(|e| kernels_error(&e))?.as_fd().try_clone_to_owned()?;
        let (Some(Map::XskMap(sockets)), Some(Map::ProgramArray(filters))) =
            (object.map("sockets"), object.map("filters"))
        else {
            return Err(foreign_object());
        };
        let sockets = sockets.fd().as_fd().try_clone_to_owned()?;
        let filters = filters.fd().as_fd().try_clone_to_owned()?;
        let (alive, marks) = (bpf::array(&object, "alive")?, bpf::array(&object, "marks")?);
        let link = bpf::link_xdp(&program, ifindex, mode.flags())?;
        Ok(Xdp { _link: link, program, sockets, filters, alive, marks, mode, frags })
    }

    /// Frames go into sockets for so long from now, and to the kernel afterwards, until this is called again. Before the
    /// first call they do so for ever.
    ///
    /// # Errors
    /// None that is not the kernel's fault.
    pub fn keep(&mut self, time: Duration) -> io::Result<()> {
        // SAFETY: the values of `alive` in common.h are such numbers.
        unsafe { bpf::array_set(&self.alive, &deadline(time)) }
    }

    /// A frame that begins with this passes to the kernel, without it.
    ///
    /// # Errors
    /// None that is not the kernel's fault.
    pub fn set_mark(&mut self, mark: Mark) -> io::Result<()> {
        // SAFETY: the values of `marks` in common.h are such pairs.
        unsafe { bpf::array_set(&self.marks, &mark) }
    }

    /// As attached.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// True when frames may consist of several buffers, which lets the interface have an MTU above a page (Linux 5.18).
    pub fn frags(&self) -> bool {
        self.frags
    }

    /// Frames of receive queue `queue` go into `socket`, an AF_XDP socket bound to that queue, from now on. A socket
    /// that was there before is replaced. The kernel takes it out by itself when it is closed.
    ///
    /// # Errors
    /// `E2BIG`: no room for this queue. `EOPNOTSUPP`: not an AF_XDP socket.
    pub fn insert(&mut self, queue: u32, socket: impl AsFd) -> io::Result<()> {
        bpf::map_set(&self.sockets, queue, socket)
    }

    /// Frames of receive queue `queue` go to the kernel from now on. Fine if they do so already.
    ///
    /// # Errors
    /// `EINVAL`: no room for this queue, so there cannot be a socket.
    pub fn remove(&mut self, queue: u32) -> io::Result<()> {
        unset(&self.sockets, queue)
    }

    /// Only frames that this classic BPF program accepts, as it is for Ethernet, enter the sockets from now on, all
    /// others go to the kernel; with none, all enter. No frame is judged by half of the old filter and half of the new.
    /// The program sees the whole frame, but no VLAN tag that the driver has taken off it. The filter in use stays when
    /// the new one is refused.
    ///
    /// # Errors
    /// `InvalidInput` names the instruction that is not allowed, or no classic BPF. `E2BIG`: the kernel finds the
    /// program too complex.
    pub fn set_filter(&mut self, filter: Option<&[ClassicInsn]>) -> io::Result<()> {
        let Some(filter) = filter else { return unset(&self.filters, 0) };
        let access = if self.frags { Access::Buffers } else { Access::Plain };
        let insns = classic::translate(filter, self.sockets.as_raw_fd(), access)
            .map_err(|refused| io::Error::new(io::ErrorKind::InvalidInput, refused))?;
        // The kernel lets the program at the door call only what has its flags.
        bpf::map_set(&self.filters, 0, bpf::load_xdp(&insns, self.frags)?)
    }

    /// Whether the kernel takes this program as a filter. Nothing is attached.
    ///
    /// # Errors
    /// As [`Xdp::set_filter`]; `EPERM`: needs `CAP_BPF` and `CAP_NET_ADMIN`.
    pub fn try_filter(filter: &[ClassicInsn]) -> io::Result<()> {
        let object = bpf::load(OBJECT, Some(("sockets", 1)))?;
        let Some(Map::XskMap(sockets)) = object.map("sockets") else { return Err(foreign_object()) };
        let sockets = sockets.fd().as_fd().as_raw_fd();
        let load = |access| {
            let insns = classic::translate(filter, sockets, access)
                .map_err(|refused| io::Error::new(io::ErrorKind::InvalidInput, refused))?;
            bpf::load_xdp(&insns, access == Access::Buffers).map(drop)
        };
        match load(Access::Buffers) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => load(Access::Plain),
            other => other,
        }
    }

    /// Shows the program a frame as if it came from receive queue 0, and tells whether it would go into the socket
    /// there. The frame goes nowhere.
    ///
    /// # Errors
    /// `EINVAL`: a frame that is shorter than an Ethernet header, or longer than frames can be.
    pub fn would_take(&self, frame: &[u8]) -> io::Result<bool> {
        Ok(bpf::test_run(&self.program, frame)? == XDP_REDIRECT)
    }
}

/// The time on the kernel's monotonic clock, in nanoseconds.
pub(crate) fn deadline(time: Duration) -> u64 {
    clock::now_ns().saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// Takes an entry out of a map, if it is there.
fn unset(map: &OwnedFd, key: u32) -> io::Result<()> {
    match bpf::map_unset(map, key) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        other => other,
    }
}

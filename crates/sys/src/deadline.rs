// SPDX-License-Identifier: BSD-2-Clause
//! The deadlines of attached BPF programs: the time up to which they redirect frames, and that up to which a queue
//! counts as served. And the faults that a program has found in frames, which are asked for as often.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use aya::Ebpf;

use crate::{bpf, clock};

/// The deadline of the programs of one object: map `alive` of `bpf/common.h`. Any thread may extend it.
#[derive(Debug)]
pub struct Deadline {
    map: OwnedFd,
    /// The queues' own: map `served` of `bpf/xdp.c`.
    queues: Option<OwnedFd>,
    /// Maps `looks_of` and `faults` of `bpf/xdp.c`.
    looks: Option<(OwnedFd, OwnedFd)>,
}

/// Frames whose checksums are looked at in a row.
const LOOKS: u32 = 64;

/// `struct looks` of xdp.c.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Looks {
    mtu: u32,
    left: u32,
}

/// Frames that an interface did not hand on as they are on the wire, of those that were looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Faults {
    /// TCP packets that were longer than the MTU. The length of each frame is looked at.
    pub merged: u64,
    /// Frames with the checksum that a sender leaves for the hardware to finish. A right one has it by chance, 1 of
    /// 65536.
    pub unfinished: u64,
    /// Whether [`LOOKS`] checksums have been looked at since this was last so: others are from now on.
    pub in_a_row: bool,
}

impl Deadline {
    /// The deadline of a loaded object's programs: none, until it is extended for the first time.
    pub(crate) fn of(object: &Ebpf) -> io::Result<Arc<Deadline>> {
        let [queues, looks, faults] = ["served", "looks_of", "faults"].map(|name| bpf::array(object, name).ok());
        Ok(Arc::new(Deadline { map: bpf::array(object, "alive")?, queues, looks: looks.zip(faults) }))
    }

    /// The deadline of programs that have stayed at an interface, by their maps.
    pub(crate) fn of_maps(map: OwnedFd, queues: OwnedFd, looks: (OwnedFd, OwnedFd)) -> Arc<Deadline> {
        Arc::new(Deadline { map, queues: Some(queues), looks: Some(looks) })
    }

    /// Returns the faults that the program has found since it was attached, and has it look at frames from now on, of
    /// an interface with this MTU; 0: at none.
    ///
    /// # Errors
    /// `NotFound`: these programs look at no frames.
    pub fn look(&self, mtu: u32) -> io::Result<Faults> {
        let (looks, faults) = self.looks.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let mut known = Looks::default();
        // SAFETY: K5: the element of `looks_of` in xdp.c is a `struct looks`, all of whose values are valid.
        unsafe { bpf::array_read(looks, &mut known) }?;
        // SAFETY: K5: the elements of `faults` in xdp.c are of type u64, one for each processor.
        let count = |index| unsafe { bpf::sum_of_processors(faults, index) };
        let found = Faults { merged: count(0)?, unfinished: count(1)?, in_a_row: known.left == 0 };
        if known.left == 0 || known.mtu != mtu {
            // SAFETY: K5: as above.
            unsafe { bpf::array_set(looks, &Looks { mtu, left: LOOKS }) }?;
        }
        Ok(found)
    }

    /// Sets the deadline to `time` from now. After it the programs pass all frames, until this is called again. Returns
    /// for how long they have done so; nothing if they had no deadline yet.
    ///
    /// # Errors
    /// Only unexpected errors of the kernel.
    pub fn extend(&self, time: Duration) -> io::Result<Duration> {
        // SAFETY: K5: the elements of `alive` in common.h are of type u64.
        let (former, now) = (unsafe { bpf::array_get(&self.map) }?, clock::now_ns());
        // SAFETY: K5: as above.
        unsafe { bpf::array_set(&self.map, &from_now(time)) }?;
        Ok(if former == 0 { Duration::ZERO } else { Duration::from_nanos(now.saturating_sub(former)) })
    }

    /// Sets the deadline of a queue to `time` from now, which counts if the frames of the interface bypass it
    /// ([`Failure::Bypass`](crate::xdp::Failure)). After no time it has passed also for the clock of the programs,
    /// which is late by up to a tick.
    ///
    /// # Errors
    /// `E2BIG`: there is no such queue. `NotFound`: these programs have no queues.
    pub fn extend_queue(&self, queue: u32, time: Duration) -> io::Result<()> {
        let map = self.queues.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let until = if time.is_zero() { 0 } else { from_now(time) };
        // SAFETY: K5: the elements of `served` in xdp.c are of type u64.
        unsafe { bpf::array_set_at(map, queue, &until) }
    }
}

fn from_now(time: Duration) -> u64 {
    clock::now_ns().saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

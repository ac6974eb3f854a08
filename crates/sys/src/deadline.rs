// SPDX-License-Identifier: BSD-2-Clause
//! The deadlines of attached BPF programs: the time up to which they redirect frames, and that up to which a queue
//! counts as served.

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
}

impl Deadline {
    /// The deadline of a loaded object's programs: none, until it is extended for the first time.
    pub(crate) fn of(object: &Ebpf) -> io::Result<Arc<Deadline>> {
        Ok(Arc::new(Deadline { map: bpf::array(object, "alive")?, queues: bpf::array(object, "served").ok() }))
    }

    /// The deadline of programs that have stayed at an interface, by their maps.
    pub(crate) fn of_maps(map: OwnedFd, queues: OwnedFd) -> Arc<Deadline> {
        Arc::new(Deadline { map, queues: Some(queues) })
    }

    /// Sets the deadline to `time` from now. After it the programs pass all frames, until this is called again.
    ///
    /// # Errors
    /// Only unexpected errors of the kernel.
    pub fn extend(&self, time: Duration) -> io::Result<()> {
        // SAFETY: K5: the elements of `alive` in common.h are of type u64.
        unsafe { bpf::array_set(&self.map, &from_now(time)) }
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

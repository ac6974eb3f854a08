// SPDX-License-Identifier: BSD-2-Clause
//! The deadline of attached BPF programs: the time up to which they redirect frames.

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
}

impl Deadline {
    /// The deadline of a loaded object's programs: none, until it is extended for the first time.
    pub(crate) fn of(object: &Ebpf) -> io::Result<Arc<Deadline>> {
        Ok(Arc::new(Deadline { map: bpf::array(object, "alive")? }))
    }

    /// Sets the deadline to `time` from now. After it the programs pass all frames, until this is called again.
    ///
    /// # Errors
    /// Only unexpected errors of the kernel.
    pub fn extend(&self, time: Duration) -> io::Result<()> {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        // SAFETY: K5: the elements of `alive` in common.h are of type u64.
        unsafe { bpf::array_set(&self.map, &clock::now_ns().saturating_add(ns)) }
    }
}

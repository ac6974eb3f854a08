// SPDX-License-Identifier: BSD-2-Clause
//! Descriptors that the daemon hands to its successor ([`crate::handover`]): its state names them by their place in a
//! list.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use unetmap_core::errno::{EBUSY, EPROTO};
use unetmap_mem::MappedRange;
use unetmap_sys::netns::Netns;
use unetmap_sys::{Doorbell, Mapping};

use crate::refusal::{Refusal, refuse, refuse_lack};

/// The place of a descriptor in the list.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct FdIndex(u32);

/// The descriptors that the daemon hands over.
#[derive(Default)]
pub(crate) struct Outgoing<'a> {
    fds: Vec<BorrowedFd<'a>>,
}

impl<'a> Outgoing<'a> {
    /// Adds a descriptor.
    pub(crate) fn add(&mut self, fd: &'a impl AsFd) -> FdIndex {
        self.fds.push(fd.as_fd());
        FdIndex(self.fds.len() as u32 - 1)
    }

    /// All of them.
    pub(crate) fn fds(&self) -> &[BorrowedFd<'a>] {
        &self.fds
    }
}

/// The descriptors that a successor has received. Each is taken once.
pub(crate) struct Incoming(Vec<Option<OwnedFd>>);

impl Incoming {
    pub(crate) fn new(fds: Vec<OwnedFd>) -> Incoming {
        Incoming(fds.into_iter().map(Some).collect())
    }

    /// Takes a descriptor.
    pub(crate) fn take(&mut self, FdIndex(index): FdIndex) -> Result<OwnedFd, Refusal> {
        self.0.get_mut(index as usize).and_then(Option::take).map_or_else(|| invalid("a descriptor"), Ok)
    }

    /// Takes a doorbell.
    pub(crate) fn take_doorbell(&mut self, index: FdIndex) -> Result<Doorbell, Refusal> {
        Doorbell::from_fd(self.take(index)?).or_else(|e| invalid(&e.to_string()))
    }

    /// Takes a network namespace.
    pub(crate) fn take_netns(&mut self, index: FdIndex) -> Result<Netns, Refusal> {
        Netns::from_fd(self.take(index)?).or_else(|e| invalid(&e.to_string()))
    }

    /// Takes a file of shared memory, and maps its `bytes` bytes.
    pub(crate) fn take_page(
        &mut self,
        index: FdIndex,
        offset: u64,
        bytes: usize,
    ) -> Result<(MappedRange, OwnedFd), Refusal> {
        let fd = self.take(index)?;
        match Mapping::part(fd.as_fd(), offset, bytes) {
            Ok(mapping) => Ok((MappedRange::whole(Arc::new(mapping)), fd)),
            Err(e) => refuse_lack("a shared page cannot be mapped", &e),
        }
    }
}

/// Refuses a state of which a part is invalid.
pub(crate) fn invalid<T>(what: &str) -> Result<T, Refusal> {
    refuse(EPROTO, format!("the running daemon's state is invalid: {what}"))
}

/// Refuses to hand over something.
pub(crate) fn cannot<T>(what: &str) -> Result<T, Refusal> {
    refuse(EBUSY, format!("{what} cannot be handed to another process yet: close it, or restart the daemon"))
}

// SPDX-License-Identifier: BSD-2-Clause
//! Freeing the memory of regions that have ended, in a thread of its own where it takes long: a program can have
//! written to all pages of its region, and the kernel frees them one by one when the daemon, which closes it last, does
//! so.

use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};

use unetmap_sys::memfd;

use crate::confinement::confine_packet_thread;
use crate::region::RegionRecord;
use crate::threads;
use crate::tuning::region::{LARGE, MAX_WAITING};

/// Frees regions without waiting for it.
#[derive(Default)]
pub(crate) struct Freer {
    /// The thread; `None`: it was not needed yet.
    queue: Option<SyncSender<Box<RegionRecord>>>,
}

impl Freer {
    /// Frees a region: here if it is small, or if many wait already, as each keeps a descriptor.
    pub(crate) fn free(&mut self, record: RegionRecord) {
        if memfd::resident_bytes(&record.fd).is_ok_and(|bytes| bytes <= LARGE) {
            return drop(record);
        }
        let queue = self.queue.take().or_else(start);
        match queue.as_ref().map(|queue| queue.try_send(Box::new(record))) {
            Some(Err(TrySendError::Disconnected(record))) => drop(record),
            Some(Ok(()) | Err(TrySendError::Full(_))) | None => self.queue = queue,
        }
    }
}

fn start() -> Option<SyncSender<Box<RegionRecord>>> {
    let (queue, regions) = sync_channel(MAX_WAITING);
    let thread = threads::start("region freer", move || {
        confine_packet_thread();
        regions.iter().for_each(drop::<Box<RegionRecord>>);
    });
    thread.inspect_err(|e| tracing::warn!("no thread that frees regions: {e}")).ok().map(|_| queue)
}

// SPDX-License-Identifier: BSD-2-Clause
//! The monitors of an open port: requests them from the daemon, and assigns their mirror rings to the port's rings.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering::Relaxed;

use unetmap_mem::OWNED_BY_SYNC_LOOP;

use crate::control::monitor::{self, Monitor, MonitorReply, NextMonitorRequest};
use crate::error::Error;
use crate::port::ring::Ring;
use crate::port::{Interest, MonitorSource, NOT_NOW, Port};
use crate::sync::SyncError;
use crate::tuning::MAX_MONITOR_RENEWALS;

impl Port {
    /// Renews the list of monitors. Without a reply it is empty: then the daemon has exited, which other calls report.
    #[cold]
    pub(crate) fn renew_monitors(&self) {
        let rings = || self.tx.iter().map(|ring| (0, ring)).chain(self.rx.iter().map(|ring| (1, ring)));
        // Read before the request: a change after it makes the list stale again.
        let statuses: Vec<u32> = rings().map(|(_, ring)| ring.inner.state().status() & !OWNED_BY_SYNC_LOOP).collect();
        let mut all = monitor::map_monitors(self.monitors(), Some(self.shared_region()));
        for ((dir, ring), status) in rings().zip(statuses) {
            monitor::assign(&mut all, (dir, ring.id()), &ring.inner.mirrors, status);
        }
    }

    /// Calls `sync`, and renews the list of monitors whenever it is out of date.
    #[cold]
    pub(crate) fn sync_renewing_monitors(
        &self,
        ring: &Ring,
        sync: impl Fn() -> Result<(), SyncError>,
    ) -> Result<(), SyncError> {
        for _ in 0..=MAX_MONITOR_RENEWALS {
            match sync() {
                Err(SyncError::MonitorsChanged) => self.renew_monitors(),
                other => return other,
            }
        }
        // A process that shares the port changes the generation without reason. The stale list is used, except by
        // zero-copy monitors, which may have closed: with one of them the ring is skipped, as if it were locked.
        match ring.inner.mirrors.with_stale_monitors(sync) {
            Err(SyncError::MonitorsChanged) => Ok(()),
            other => other,
        }
    }

    /// Delivers packets that have arrived to the receive rings that have monitors, and wakes the program. For the
    /// daemon, which shares the port of a program: it releases no slot. Returns whether packets are left, because a
    /// ring is full or is being synced.
    ///
    /// # Errors
    /// As [`Port::rxsync`].
    #[doc(hidden)]
    pub fn deliver_to_monitors(&self) -> Result<bool, Error> {
        let holder = self.enter()?;
        let mut are_left = false;
        if holder == NOT_NOW {
            return Ok(are_left);
        }
        for ring in &self.rx {
            let (inner, before) = (&ring.inner, ring.inner.view.raw_tail());
            if inner.state().status() == 0 {
                continue;
            }
            match self.sync_renewing_monitors(ring, || inner.advance_tail(holder)) {
                // The sync loop delivers what arrives.
                Err(SyncError::OwnedBySyncLoop) => continue,
                delivered => delivered.map_err(|error| self.explain(error, ring, "rx"))?,
            }
            if inner.view.raw_tail() != before
                && let Some(source) = inner.backend.rx().and_then(|rx| rx.wakeup())
            {
                source.doorbell().notify();
            }
            are_left |= inner.state().status() != 0 && inner.peer_moved();
        }
        Ok(are_left)
    }

    /// Returns the descriptors that become readable when packets arrive, and the connection to the daemon, which hangs
    /// up.
    #[doc(hidden)]
    pub fn arrival_fds(&self) -> Vec<BorrowedFd<'_>> {
        let sockets = self.wakeup_sources(Interest::RX).filter_map(|(_, source)| source.socket());
        std::iter::once(self.connection.fd.as_fd()).chain(sockets).collect()
    }

    /// Returns the monitors of this port, from the daemon.
    fn monitors(&self) -> Vec<Monitor> {
        let MonitorSource { session, key, list } = &self.monitor_source;
        let (session, key) = (session.load(Relaxed), key.load(Relaxed));
        if let Some(list) = list {
            return list.copy();
        }
        let mut monitors: Vec<Monitor> = Vec::new();
        loop {
            let after = monitors.last().map_or(0, |(reply, _)| reply.head.monitor);
            let request = NextMonitorRequest { session, key, after };
            let reply = self.current_lock_holder().ok().and_then(|holder| holder.next_monitor(self.spec(), &request));
            match reply.and_then(|(bytes, fds)| Some((MonitorReply::decode(&bytes)?, fds))) {
                Some((reply, fds)) if reply.head.monitor > after => monitors.push((reply, fds)),
                _ => return monitors,
            }
        }
    }
}

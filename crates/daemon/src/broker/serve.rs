// SPDX-License-Identifier: BSD-2-Clause
//! The broker's process: it serves the connections of the daemon.

use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use unetmap_core::errno::EMFILE;
use unetmap_sys::place;
use unetmap_sys::process::{self, Signal};
use unetmap_sys::socket;
use unetmap_sys::thread::Precedence;

use super::connection::{Failure, LANES};
use super::objects::Broker;
use super::operations::Request;
use super::setup::Setup;
use crate::channel::{receive, send};
use crate::confinement;
use crate::log;
use crate::threads;
use crate::threads::lock;
use crate::tuning::broker::{FORMER_LIMIT, FORMER_POLL, REQUEST_BYTES};

impl Broker {
    /// Serves the requests of a connection until its other end is closed.
    pub(super) fn serve_connection(&self, connection: &OwnedFd) {
        loop {
            let result = match receive::<Request>(connection, REQUEST_BYTES) {
                Ok(None) => return,
                Ok(Some((request, fds))) => self.serve(request, fds),
                Err(e) if e.kind() == io::ErrorKind::InvalidData || e.raw_os_error() == Some(EMFILE) => Err(e),
                Err(_) => return,
            };
            let (reply, fds) = match result {
                Ok((value, fds)) => (Ok(value), fds),
                Err(e) => (Err(Failure::from(&e)), Vec::new()),
            };
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            if send(connection, &reply, &fds).is_err() {
                return;
            }
        }
    }
}

/// Runs the broker, in a process of its own, until the daemon exits.
///
/// # Errors
/// The daemon does not say what the broker is for.
pub(crate) fn run_broker(control: &OwnedFd) -> io::Result<()> {
    // A service manager that stops the daemon signals this process as well, which ends after the daemon.
    let _blocked = process::signals_as_fd(&[Signal::TERM, Signal::INT, Signal::HUP])?;
    let Some((setup, fds)) = receive::<Setup>(control, REQUEST_BYTES)? else { return Ok(()) };
    let Ok([deadlines, node, interfaces @ .., _alive]) = <[OwnedFd; LANES]>::try_from(fds) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let lock_file = place::append(&setup.lock).ok();
    log::watch_file(&setup.socket, true);
    confinement::confine_broker();
    if setup.replaces {
        // What this broker changes is not what the former one has.
        threads::start("broker lock", move || keep_locked(lock_file))?;
    } else {
        wait_for_former(lock_file.as_ref());
    }
    let broker = Arc::new(Broker::new(setup));
    let serve = |name: &str, connection: OwnedFd| {
        let broker = broker.clone();
        threads::start(name, move || broker.serve_connection(&connection))
    };
    let renewer = broker.clone();
    threads::start("deadlines", move || {
        confinement::set_precedence_to(Precedence::Own);
        renewer.serve_connection(&deadlines);
    })?;
    serve("broker node", node)?;
    let interfaces: Vec<_> =
        interfaces.into_iter().map(|lane| serve("broker interfaces", lane)).collect::<io::Result<_>>()?;
    broker.serve_connection(control);
    // What they have changed is undone below. They end after the request that they serve.
    interfaces.into_iter().for_each(|thread| drop(thread.join()));
    broker.close_sockets();
    // Before the lock is released; the last first, as offloads can be enabled only when no program is attached.
    while let Some((handle, _)) = lock(&broker.objects).pop_last() {
        lock(&broker.deadlines).remove(&handle);
    }
    Ok(())
}

/// Keeps the lock until this process exits, once the broker of the daemon that was replaced has released it.
fn keep_locked(lock: Option<File>) {
    while lock.as_ref().is_some_and(|lock| socket::try_lock(lock).is_ok_and(|locked| !locked)) {
        thread::sleep(FORMER_POLL);
    }
    mem::forget(lock);
}

/// Waits until the broker of an earlier daemon has undone its changes.
fn wait_for_former(lock: Option<&File>) {
    let start = Instant::now();
    while lock.is_some_and(|lock| socket::try_lock(lock).is_ok_and(|locked| !locked)) {
        if start.elapsed() > FORMER_LIMIT {
            return tracing::warn!("the broker of an earlier daemon still runs");
        }
        thread::sleep(FORMER_POLL);
    }
}

// SPDX-License-Identifier: BSD-2-Clause
//! The broker of a daemon that is replaced while interfaces are open: it keeps their programs, and its connections go
//! to the successor, whose own broker then has nothing to do and exits.
//!
//! ```text
//! no interface is open or has settings    the successor's broker serves it; the former one exits
//! one is open, or has settings            the former broker goes on, until a daemon is replaced while none is
//! ```
//! So it is after a crash of a daemon whose state another process has kept ([`crate::handover::store`]). Then requests
//! may be in progress, whose answers nobody expects any more ([`go_on_after_crash`]).

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard};

use serde::{Deserialize, Serialize};
use unetmap_core::errno::EBUSY;
use unetmap_sys::process;

use super::connection::{ADOPTED, ALIVE, CONNECTIONS, Failure, LANES, SETUP};
use super::operations::{Request, forget_since};
use super::setup::{Handle, Setup};
use crate::channel::{receive, send};
use crate::descriptors::{FdIndex, Incoming, Outgoing, invalid};
use crate::refusal::{Refusal, refuse};
use crate::threads::lock;
use crate::tuning::broker::REPLY_BYTES;

/// A broker's connections, as the daemon hands them to its successor.
#[derive(Serialize, Deserialize)]
pub(crate) struct SavedBroker {
    lanes: Vec<FdIndex>,
    alive: FdIndex,
    setup: Setup,
}

/// Duplicates of this process's connections to its broker.
pub(crate) struct Duplicates {
    lanes: Vec<OwnedFd>,
    alive: OwnedFd,
    setup: Setup,
}

impl Duplicates {
    /// `None`: this process has no broker.
    pub(crate) fn new() -> io::Result<Option<Duplicates>> {
        let (Some(lanes), Some(setup), Some(alive)) = (CONNECTIONS.get(), SETUP.get(), ADOPTED.get().or(ALIVE.get()))
        else {
            return Ok(None);
        };
        let duplicate = |lane: &Mutex<OwnedFd>| lock(lane).try_clone();
        let lanes = lanes.iter().map(duplicate).collect::<io::Result<_>>()?;
        Ok(Some(Duplicates { lanes, alive: alive.try_clone()?, setup: setup.clone() }))
    }

    pub(crate) fn save<'a>(&'a self, fds: &mut Outgoing<'a>) -> SavedBroker {
        let lanes = self.lanes.iter().map(|lane| fds.add(lane)).collect();
        SavedBroker { lanes, alive: fds.add(&self.alive), setup: self.setup.clone() }
    }
}

/// A broker that is to be this process's: until [`Adopted::adopt`] the former daemon asks it.
pub(crate) struct Adopted {
    lanes: [OwnedFd; LANES],
    alive: OwnedFd,
}

impl SavedBroker {
    /// Takes the connections; refuses a broker that was started for other files than this process was.
    pub(crate) fn take(self, fds: &mut Incoming) -> Result<Adopted, Refusal> {
        let lanes = self.lanes.into_iter().map(|lane| fds.take(lane)).collect::<Result<Vec<_>, _>>()?;
        let alive = fds.take(self.alive)?;
        let Ok(lanes) = <[OwnedFd; LANES]>::try_from(lanes) else { return invalid("the connections of its broker") };
        let same =
            |setup: &Setup| Setup { replaces: false, ..setup.clone() } == Setup { replaces: false, ..self.setup };
        match SETUP.get() {
            Some(own) if same(own) => Ok(Adopted { lanes, alive }),
            Some(_) => refuse(
                EBUSY,
                "an interface is open or has settings (unetmap nic), or the node is on, and the running daemon was \
                 started with another --policy or --config: give the same, or close the interface (the node) first",
            ),
            None => invalid("it has a broker, and this process has none"),
        }
    }
}

impl Adopted {
    /// From here on requests go to this broker. That of this process exits, as nothing is connected to it any more.
    pub(crate) fn adopt(self) {
        let Some(own) = CONNECTIONS.get() else { return };
        let _ = ADOPTED.set(self.alive);
        for (own, lane) in own.iter().zip(self.lanes) {
            *lock(own) = lane;
        }
    }
}

/// Whether another process has root's privileges for this one.
pub(crate) fn is_used() -> bool {
    CONNECTIONS.get().is_some()
}

/// Waits for the requests in progress. While the guards exist, no thread of this process asks the broker.
pub(crate) fn pause() -> Vec<MutexGuard<'static, OwnedFd>> {
    let lanes = CONNECTIONS.get().into_iter().flatten();
    lanes.map(|lane| lock(lane)).collect()
}

/// Goes on with the broker of a daemon that has crashed: drops the answers to what that one had asked, and has what the
/// broker made after `last`, of which this process does not know, undone. Waits for requests in progress, which may
/// take a driver's time.
///
/// # Errors
/// Errors of the connections.
pub(crate) fn go_on_after_crash(last: Handle) -> io::Result<()> {
    let text = format!("process {} goes on", process::pid());
    for connection in pause() {
        send(&*connection, &Request::Echo(text.clone()), &[])?;
        loop {
            let (reply, _) = receive::<Result<serde_json::Value, Failure>>(&*connection, REPLY_BYTES)?
                .ok_or(io::ErrorKind::ConnectionReset)?;
            if reply.is_ok_and(|value| value == *text) {
                break;
            }
        }
    }
    forget_since(last)
}

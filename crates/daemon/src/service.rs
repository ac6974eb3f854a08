// SPDX-License-Identifier: BSD-2-Clause
//! The service manager that started the daemon, such as systemd, if one did: the socket that it listens at for the
//! daemon (sd_listen_fds(3)), and what it is told (sd_notify(3)).

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use sd_notify::NotifyState;
use serde::{Deserialize, Serialize};

use crate::descriptors::{FdIndex, Incoming, Outgoing};
use crate::refusal::Refusal;

/// Expectations of the service manager.
pub(crate) struct Service {
    /// Whether a service manager started this daemon. A daemon that a client started may have inherited the variables
    /// of the client's service.
    is_managed: bool,
    /// Connected to where the manager listens: root's daemon may not connect later, as another user.
    manager: Option<UnixDatagram>,
    /// Time between two signs of life, half of what the manager waits, and when the next is due.
    watchdog: Option<(Duration, Instant)>,
}

/// The service manager, as the daemon hands it to its successor.
#[derive(Serialize, Deserialize)]
pub(crate) struct SavedService {
    /// It listens at the socket for the daemon.
    pub(crate) listens: bool,
    pub(crate) manager: Option<FdIndex>,
    /// Time between two signs of life.
    pub(crate) watchdog_us: Option<u64>,
}

impl Service {
    /// `by_client`: a client started this daemon.
    pub(crate) fn new(by_client: bool) -> Service {
        if by_client {
            return Service { is_managed: false, manager: None, watchdog: None };
        }
        let interval = sd_notify::watchdog_enabled().map(|limit| limit / 2).filter(|interval| !interval.is_zero());
        let watchdog = interval.map(|interval| (interval, Instant::now()));
        Service { is_managed: true, manager: connect(), watchdog }
    }

    /// Whether there is a service manager.
    pub(crate) fn has_manager(&self) -> bool {
        self.manager.is_some()
    }

    /// Returns the number of the descriptor at which the service manager listens for the daemon.
    ///
    /// # Errors
    /// It passed several sockets, or the variables cannot be understood.
    pub(crate) fn listener(&self) -> Result<Option<u32>, String> {
        if !self.is_managed {
            return Ok(None);
        }
        let mut fds = sd_notify::listen_fds().map_err(|e| format!("LISTEN_FDS, LISTEN_PID: {e}"))?;
        match (fds.next(), fds.len()) {
            (None, _) => Ok(None),
            (Some(fd), 0) => Ok(Some(fd.cast_unsigned())),
            (Some(_), more) => Err(format!("the service manager passed {} sockets, one is expected", more + 1)),
        }
    }

    /// Returns the state for a successor; `listens`: the manager listens for the daemon.
    pub(crate) fn save<'a>(&'a self, listens: bool, fds: &mut Outgoing<'a>) -> SavedService {
        let watchdog_us = self.watchdog.map(|(interval, _)| interval.as_micros() as u64);
        SavedService { listens, manager: self.manager.as_ref().map(|manager| fds.add(manager)), watchdog_us }
    }

    /// Another process is the unit's main process from now on.
    pub(crate) fn main_process_is(&self, pid: u32) {
        self.tell(&[NotifyState::MainPid(pid)]);
    }

    /// The daemon serves.
    pub(crate) fn ready(&self) {
        self.tell(&[NotifyState::Ready]);
    }

    /// The daemon reads its configuration again; [`Service::ready`] follows.
    pub(crate) fn reloading(&self) {
        let now = NotifyState::monotonic_usec_now();
        self.tell(&[Some(NotifyState::Reloading), now.ok()].into_iter().flatten().collect::<Vec<_>>());
    }

    /// The daemon exits.
    pub(crate) fn stopping(&self) {
        self.tell(&[NotifyState::Stopping]);
    }

    /// Gives a sign of life if it is due; returns the time until the next one.
    pub(crate) fn notify_watchdog(&mut self, now: Instant) -> Option<Duration> {
        let (interval, due) = self.watchdog?;
        if due > now {
            return Some(due - now);
        }
        self.watchdog = Some((interval, now + interval));
        self.tell(&[NotifyState::Watchdog]);
        Some(interval)
    }

    fn tell(&self, states: &[NotifyState<'_>]) {
        let Some(manager) = &self.manager else { return };
        let text: String = states.iter().map(|state| format!("{state}\n")).collect();
        if let Err(e) = manager.send(text.as_bytes()) {
            tracing::debug!("no service manager receives the daemon's state: {e}");
        }
    }
}

impl SavedService {
    /// The service manager that the earlier daemon had.
    pub(crate) fn restore(self, fds: &mut Incoming) -> Result<Service, Refusal> {
        let manager = self.manager.map(|fd| fds.take(fd)).transpose()?.map(UnixDatagram::from);
        let watchdog = self.watchdog_us.map(|us| (Duration::from_micros(us), Instant::now()));
        Ok(Service { is_managed: manager.is_some(), manager, watchdog })
    }
}

/// Connects to the service manager; `None` if there is none, or a terminal's service has left the variable.
fn connect() -> Option<UnixDatagram> {
    let path = std::env::var_os("NOTIFY_SOCKET")?;
    let address = match path.as_encoded_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(path),
    };
    let connected = UnixDatagram::unbound().and_then(|socket| socket.connect_addr(&address?).map(|()| socket));
    connected.inspect_err(|e| tracing::debug!("no service manager receives the daemon's state: {e}")).ok()
}

// SPDX-License-Identifier: BSD-2-Clause
//! Taking a state over from the daemon that is replaced, or from the store after a crash.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread::sleep;
use std::time::Instant;

use unetmap_core::errno::EIO;
use unetmap_sys::socket;

use super::store::{self, Store};
use super::{OLDEST_VERSION, Reply, Request, State, VERSION, own_program};
use crate::broker;
use crate::channel;
use crate::descriptors::Incoming;
use crate::log;
use crate::owner::owner;
use crate::ports::vale::SwitchPositions;
use crate::ports::{mediators, monitor};
use crate::refusal::{Refusal, refuse};
use crate::server::Server;
use crate::service::Service;
use crate::tuning::handover::{BUSY_LIMIT, BUSY_POLL, COMMIT_LIMIT, MAX_STATE_BYTES, REPLY_LIMIT};

/// A connection to the daemon that is to be replaced.
pub(crate) struct Predecessor {
    connection: OwnedFd,
    /// Whether it is the process that keeps the state of a daemon that crashed.
    is_store: bool,
}

/// State that a daemon has handed over, and still owns.
pub(crate) struct Taken {
    pub(crate) predecessor: Predecessor,
    pub(crate) state: State,
    pub(crate) fds: Incoming,
}

impl Predecessor {
    /// Connects to the daemon that listens at `path`. Call it before this process gives up anything.
    pub(crate) fn connect(path: &Path) -> Result<Predecessor, String> {
        let failed = |e: io::Error| format!("there is no daemon to replace at {}: {e}", path.display());
        let connection = socket::connect(path).map_err(failed)?;
        let peer = socket::peer(&connection).map_err(failed)?;
        if peer.uid != owner() && !fault::is("owner") {
            return Err(format!("the daemon at {} is of user {}, who can replace it", path.display(), peer.uid));
        }
        socket::set_timeout(&connection, REPLY_LIMIT).map_err(failed)?;
        Ok(Predecessor { connection, is_store: false })
    }

    /// The process that keeps the state of a daemon that has crashed.
    pub(crate) fn store(connection: OwnedFd) -> Predecessor {
        Predecessor { connection, is_store: true }
    }

    /// Whether the daemon runs another file than this process: an installation has replaced it since. Where a service
    /// manager listens for it, the connection does not tell the daemon's process.
    pub(crate) fn runs_another_file(&self) -> Result<bool, String> {
        self.send(&Request::WhichProgram)?;
        let own = own_program().map_err(|e| format!("the file of this program: {e}"))?;
        // An earlier release does not know the question.
        Ok(!matches!(self.receive(), Ok((Reply::Program(device, inode), _)) if (device, inode) == own))
    }

    /// Has the daemon hand over what it has. It serves nobody until [`Predecessor::commit`], or until this process
    /// ends.
    pub(crate) fn take(self) -> Result<Taken, String> {
        // By the fault of a test what no daemon gives.
        let oldest = if fault::is("version") { VERSION + 1 } else { OLDEST_VERSION };
        let begin = Request::Begin { oldest, newest: VERSION.max(oldest) };
        self.send(&begin)?;
        let (start, mut all) = (Instant::now(), Vec::new());
        loop {
            let (reply, fds) = self.receive()?;
            all.extend(fds);
            match reply {
                Reply::Descriptors => {}
                Reply::Busy if start.elapsed() > BUSY_LIMIT => {
                    return Err("requests of programs took long all the time: try again".into());
                }
                Reply::Busy => {
                    sleep(BUSY_POLL);
                    self.send(&begin)?;
                }
                Reply::State(state) if (OLDEST_VERSION..=VERSION).contains(&state.version) => {
                    tracing::debug!(version = state.version, "the running daemon's state");
                    let state = fault::mutated(*state)?;
                    return Ok(Taken { predecessor: self, state, fds: Incoming::new(all) });
                }
                Reply::State(state) => {
                    return Err(format!("its state has version {}, this program reads {VERSION}", state.version));
                }
                Reply::Refused(why) => return Err(why),
                Reply::Positions(_) | Reply::Recover | Reply::Released | Reply::Program(..) => {
                    return Err("the running daemon answers out of order".into());
                }
            }
        }
    }

    /// Tells the daemon that this process has rebuilt everything else. It stops its threads, and returns where; `None`:
    /// it has crashed.
    pub(crate) fn positions(&self) -> Result<Option<SwitchPositions>, Refusal> {
        match self.ask(&Request::Ready).or_else(|why| refuse(EIO, why))? {
            (Reply::Positions(positions), _) => Ok(Some(*positions)),
            (Reply::Recover, _) => Ok(None),
            (Reply::Refused(why), _) => refuse(EIO, why),
            _ => refuse(EIO, "the running daemon answers out of order"),
        }
    }

    /// Tells the daemon that this process has everything; it exits. Returns the connection to a process that keeps the
    /// state.
    pub(crate) fn commit(self) -> Result<Option<OwnedFd>, Refusal> {
        if fault::is("abort") {
            std::process::abort();
        }
        if fault::is("slow") {
            sleep(COMMIT_LIMIT);
        }
        if fault::is("successor") || fault::mutation().is_some() {
            return refuse(EIO, "the fault of a test");
        }
        match self.ask(&Request::Commit).or_else(|why| refuse(EIO, why))? {
            (Reply::Released, _) => Ok(self.is_store.then_some(self.connection)),
            (Reply::Refused(why), _) => refuse(EIO, why),
            _ => refuse(EIO, "the running daemon answers out of order"),
        }
    }

    /// Sends a request and returns the reply. A daemon that has given up this process has said why before it closed the
    /// connection.
    fn ask(&self, request: &Request) -> Result<(Reply, Vec<OwnedFd>), String> {
        match (self.send(request), self.receive()) {
            (Err(why), Err(_)) => Err(why),
            (_, reply) => reply,
        }
    }

    fn send(&self, request: &Request) -> Result<(), String> {
        channel::send(&self.connection, request, &[]).map_err(|e| format!("the running daemon does not answer: {e}"))
    }

    fn receive(&self) -> Result<(Reply, Vec<OwnedFd>), String> {
        let receive = || channel::receive(&self.connection, MAX_STATE_BYTES);
        // The kernel tells first that the daemon has closed the connection without reading a request.
        match receive().or_else(|e| if e.kind() == io::ErrorKind::ConnectionReset { receive() } else { Err(e) }) {
            Ok(Some(reply)) => Ok(reply),
            Ok(None) => Err("the running daemon has closed the connection, and goes on".into()),
            Err(e) if e.kind() == io::ErrorKind::InvalidData => {
                Err(format!("the running daemon is of a release that cannot be replaced while it runs: {e}"))
            }
            Err(e) => Err(format!("the running daemon does not answer: {e}")),
        }
    }
}

impl Server {
    /// Takes over all that another daemon has; returns its service manager. If this fails, the other daemon goes on.
    pub(crate) fn take_over(&mut self, taken: Taken) -> Result<Service, Refusal> {
        let Taken { predecessor, state, mut fds } = taken;
        let daemon = &mut self.daemon;
        let adopted = state.broker.map(|broker| broker.take(&mut fds)).transpose()?;
        let arenas = daemon.registry.restore(state.registry, state.pid, &mut fds)?;
        self.nodes.restore(state.nodes, daemon, &mut fds)?;
        daemon.mediators.paused = state.mediators;
        daemon.nics.restore(state.nics, &mut daemon.registry, &mut fds)?;
        daemon.vale.restore(state.switches, &daemon.registry, &mut fds)?;
        monitor::check_restored(&daemon.registry, &mut daemon.monitors, state.last_monitor)?;
        mediators::check_paused(&daemon.registry, &daemon.mediators)?;
        self.daemon.knobs.take_over(&state.knobs);
        log::set_verbose(self.daemon.knobs.verbose());
        let mark = state.after_crash.as_ref().map(|crash| fds.take(crash.mark)).transpose()?;
        let mark = mark.map_or(0, |mark| store::marked(&File::from(mark)));
        let marked = self.take_connections(state.clients, state.last_holder, mark, &mut fds)?;
        self.take_left(state.left, &mut fds)?;
        let service = state.service.restore(&mut fds)?;
        let positions = predecessor.positions()?;
        let stopped = Instant::now();
        match positions {
            Some(positions) => self.daemon.vale.take_positions(positions, &self.daemon.registry)?,
            None => {
                self.daemon.vale.recover_positions(&self.daemon.registry);
                self.daemon.registry.repair_receive_rings();
            }
        }
        let store = predecessor.commit()?;
        self.daemon.goes_on_after(state.pid, state.history, state.after_crash.is_some());
        // At once: no packet crosses a switch meanwhile.
        if let Err(refusal) = self.daemon.vale.publish() {
            tracing::error!("the switches stand still: {}", refusal.why);
        }
        tracing::debug!(took = ?stopped.elapsed(), "the switches' threads go on");
        adopted.into_iter().for_each(broker::Adopted::adopt);
        arenas.iter().for_each(|arena| arena.take());
        let unknown = state.after_crash.as_ref().map(|crash| self.take_from_crashed(crash));
        self.daemon.nics.go_on(&mut self.daemon.registry);
        self.resume_threads();
        self.add_watches();
        if let Some(store) = store {
            self.recover(marked, unknown.unwrap_or_default(), state.after_crash.and_then(|crash| crash.node));
            self.set_store(Store::of(store));
        }
        Ok(service)
    }
}

/// Fault injection for tests, in debug builds only.
mod fault {
    use serde_json::Value;

    use super::State;
    pub(super) use crate::fault::{is, value};

    /// `UNETMAP_FAULT=mutate:N`: the value of the state that is changed.
    pub(super) fn mutation() -> Option<usize> {
        value()?.strip_prefix("mutate:")?.parse().ok()
    }

    /// Returns the state, of which the fault changes one value. `UNETMAP_FAULT=state` refuses it, with itself as the
    /// reason.
    pub(super) fn mutated(state: State) -> Result<State, String> {
        if is("state") {
            return Err(serde_json::to_string(&state).unwrap_or_else(|e| e.to_string()));
        }
        let Some(n) = mutation() else { return Ok(state) };
        let mut json = serde_json::to_value(state).map_err(|e| e.to_string())?;
        let mut leaves = Vec::new();
        collect(&mut json, &mut leaves);
        let (count, kinds) = (leaves.len().max(1), [0, u64::from(u32::MAX), 1 << 40]);
        if let Some(leaf) = leaves.into_iter().nth(n % count) {
            *leaf = match &*leaf {
                Value::Number(number) if n % 4 == 3 => (number.as_u64().unwrap_or(0) + 1).into(),
                Value::Number(_) => kinds[n % 3].into(),
                Value::Bool(is) => (!is).into(),
                Value::String(_) => "mutated".into(),
                _ => 7.into(),
            };
        }
        serde_json::from_value(json).map_err(|e| format!("its state cannot be read: {e}"))
    }

    fn collect<'a>(value: &'a mut Value, leaves: &mut Vec<&'a mut Value>) {
        match value {
            Value::Array(all) => all.iter_mut().for_each(|one| collect(one, leaves)),
            Value::Object(all) => all.values_mut().for_each(|one| collect(one, leaves)),
            leaf => leaves.push(leaf),
        }
    }
}

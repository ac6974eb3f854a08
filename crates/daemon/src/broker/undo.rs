// SPDX-License-Identifier: BSD-2-Clause
//! Changes of interfaces that do not end with the daemon: disabled offloads, its programs in dispatchers, and tables
//! without owner that disconnect them from the host's stack. They are undone when the port closes or, if the daemon is
//! killed, by the *undo process*, which exists while there is such a change. It learns each change before the change is
//! made, and undoes what is left when the connection to the daemon ends.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use unetmap_sys::link::{self, Offloads};
use unetmap_sys::netns::Netns;
use unetmap_sys::process::{self, Signal};
use unetmap_sys::socket;
use unetmap_sys::xdp::dispatcher;

use super::setup::{inside, process_name};
use crate::threads::lock;
use crate::tuning::nic::{UNDO_LIMIT, UNDO_POLL};

/// The option of `unetmapd` that starts the undo process, and the descriptor of its connection.
const OPTION: &str = "--restore-offloads";
const CONNECTION: &str = "3";

/// A change of one interface. The interface's network namespace is identified by its inode number, and not kept alive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    /// These offloads were disabled.
    Offloads { netns: u64, index: u32, offloads: Offloads },
    /// The program of this id is in a dispatcher.
    Member { netns: u64, program: u32 },
    /// A table without owner disconnects it from the host's stack, but for frames with this mark.
    Disconnected { netns: u64, index: u32, mark: u32 },
}

impl Change {
    /// The message to the undo process about this change, which is about to be made (`+`) or undone (`-`).
    fn message(&self, sign: char) -> String {
        match self {
            Change::Offloads { netns, index, offloads } => format!("{sign} offloads {netns} {index} {}\n", offloads.0),
            Change::Member { netns, program } => format!("{sign} member {netns} {program}\n"),
            Change::Disconnected { netns, index, mark } => format!("{sign} disconnected {netns} {index} {mark}\n"),
        }
    }

    fn undo(&self) {
        let (undone, fix) = match *self {
            Change::Offloads { netns, index, offloads } => (enable(netns, index, offloads), "ethtool -K"),
            Change::Member { netns, program } => (leave(netns, program), "xdp-loader clean"),
            Change::Disconnected { netns, index, mark } => {
                (connect_again(netns, index, mark), "nft delete table netdev")
            }
        };
        if let Err(e) = undone {
            tracing::warn!("a change of an interface cannot be undone ({fix}): {self:?}: {e}");
        }
    }
}

fn enable(netns: u64, index: u32, offloads: Offloads) -> io::Result<()> {
    // A namespace that is not found has no process: it has ended, or nobody can use the interface.
    let Some(netns) = Netns::find(|found| found.id() == netns) else { return Ok(()) };
    netns.run(|| match link::by_index(index)? {
        Some(link) => link::set_offloads(&link.name, offloads, true),
        None => Ok(()),
    })?
}

fn connect_again(netns: u64, index: u32, mark: u32) -> io::Result<()> {
    // The table of a namespace that is not found has ended with it, or is in nobody's way.
    let Some(netns) = Netns::find(|found| found.id() == netns) else { return Ok(()) };
    netns.run(|| link::undo_disconnect(index, mark))?
}

fn leave(netns: u64, program: u32) -> io::Result<()> {
    let mut error = None;
    let mut has_left = |found: &Netns| {
        let left = found.run(|| dispatcher::leave(program)).and_then(|left| left);
        left.unwrap_or_else(|e| {
            error = Some(e);
            false
        })
    };
    // The interface may have moved to another namespace.
    let left = Netns::find(|found| found.id() == netns && has_left(found)).is_some()
        || Netns::find(|found| found.id() != netns && has_left(found)).is_some();
    match error {
        Some(e) if !left => Err(e),
        None if !left => dispatcher::forget(program),
        _ => Ok(()),
    }
}

impl FromStr for Change {
    type Err = Box<dyn std::error::Error>;

    fn from_str(text: &str) -> Result<Change, Self::Err> {
        let words: Vec<&str> = text.split(' ').collect();
        match words[..] {
            ["offloads", netns, index, offloads] => Ok(Change::Offloads {
                netns: netns.parse()?,
                index: index.parse()?,
                offloads: Offloads(offloads.parse()?),
            }),
            ["member", netns, program] => Ok(Change::Member { netns: netns.parse()?, program: program.parse()? }),
            ["disconnected", netns, index, mark] => {
                Ok(Change::Disconnected { netns: netns.parse()?, index: index.parse()?, mark: mark.parse()? })
            }
            _ => Err("no change".into()),
        }
    }
}

/// The daemon's side of the undo process.
pub(crate) struct UndoLog {
    state: Mutex<UndoState>,
    /// The namespace of that process and its connection: changes are made in others. `None`: it is unknown.
    netns: Option<Netns>,
}

#[derive(Default)]
struct UndoState {
    /// Where the daemon listens.
    socket: PathBuf,
    /// The name of the process's end of the connection. It is in use while that of an earlier daemon undoes changes.
    name: String,
    /// The name did not become free in time, as every user can have it: it is not waited for again.
    is_withheld: bool,
    changes: Vec<Change>,
    /// Our end; the undo process's until it is started.
    connection: Option<(UnixStream, Option<UnixStream>)>,
}

impl UndoLog {
    /// The undo process of the daemon that listens at `socket`.
    pub(crate) fn new(socket: &Path) -> UndoLog {
        let name = format!("unetmap-offloads {}", socket.display());
        let state = UndoState { socket: socket.to_owned(), name, ..Default::default() };
        UndoLog { state: Mutex::new(state), netns: Netns::current().ok() }
    }

    /// Does `work` in the daemon's namespace.
    fn with_state(&self, work: impl FnOnce(&mut UndoState) -> io::Result<()> + Send) -> io::Result<()> {
        let work = || work(&mut lock(&self.state));
        match &self.netns {
            Some(netns) => inside(netns, work),
            None => work(),
        }
    }

    /// Waits until an earlier daemon's undo process has undone its changes, so that it does not undo this one's.
    pub(super) fn wait_for_earlier(&self) -> io::Result<()> {
        self.with_state(UndoState::connect)
    }

    fn add(&self, change: Change) -> io::Result<()> {
        self.with_state(|state| {
            state.changes.push(change);
            let sent = state.send(&change.message('+'));
            if sent.is_err() {
                state.changes.retain(|other| *other != change);
            }
            sent
        })
    }

    fn remove(&self, change: &Change) {
        let removed = self.with_state(|state| {
            state.changes.retain(|other| other != change);
            let sent = state.send(&change.message('-'));
            if state.changes.is_empty() {
                state.connection = None;
            }
            sent
        });
        if let Err(e) = removed {
            tracing::warn!("the process that undoes changes after a crash of the daemon cannot be reached: {e}");
        }
    }
}

impl UndoState {
    fn connect(&mut self) -> io::Result<()> {
        let start = Instant::now();
        while self.connection.is_none() {
            match socket::named_pair(&self.name) {
                Ok((own, other)) => self.connection = Some((own, Some(other))),
                Err(e) if e.kind() == io::ErrorKind::AddrInUse && !self.is_withheld => {
                    thread::sleep(UNDO_POLL);
                    self.is_withheld = start.elapsed() >= UNDO_LIMIT;
                }
                // The name is too long, or another program has it: the undo process works without.
                Err(_) => self.connection = UnixStream::pair().map(|(own, other)| Some((own, Some(other))))?,
            }
        }
        Ok(())
    }

    /// Sends a message; starts the undo process if it does not run.
    fn send(&mut self, message: &str) -> io::Result<()> {
        self.connect()?;
        let Some((connection, other)) = &mut self.connection else { return Err(io::ErrorKind::NotConnected.into()) };
        if let Some(other) = other.take() {
            let log = File::from(io::stderr().as_fd().try_clone_to_owned()?);
            let name = process_name("undo", &self.socket);
            let args = [OPTION.into(), CONNECTION.into(), "--socket".into(), self.socket.clone().into()];
            process::spawn_detached(Path::new("/proc/self/exe"), &name, &args, OwnedFd::from(other), log)?;
        }
        if connection.write_all(message.as_bytes()).is_ok() {
            return Ok(());
        }
        // The undo process was killed: the next one learns all changes.
        self.connection = None;
        let all: String = self.changes.iter().map(|change| change.message('+')).collect();
        if all.is_empty() { Ok(()) } else { self.send(&all) }
    }
}

/// Runs the undo process: records the changes until the daemon closes `connection` or dies, and undoes those that are
/// left.
pub(crate) fn run_undo(connection: OwnedFd) -> io::Result<()> {
    // A service manager that stops the daemon signals this process as well, which ends after the daemon.
    let _blocked = process::signals_as_fd(&[Signal::TERM, Signal::INT])?;
    let mut changes: Vec<Change> = Vec::new();
    for line in BufReader::new(UnixStream::from(connection)).lines() {
        let Ok(line) = line else { break };
        match line.split_at_checked(2) {
            Some(("+ ", change)) => changes.extend(change.parse::<Change>()),
            Some(("- ", change)) => changes.retain(|other| change.parse::<Change>().ok() != Some(*other)),
            _ => {}
        }
    }
    changes.iter().for_each(Change::undo);
    Ok(())
}

/// A change that is undone when this is dropped.
pub(super) struct UndoOnDrop {
    change: Change,
    log: Arc<UndoLog>,
}

impl UndoOnDrop {
    /// Notifies the undo process of a change that is about to be made.
    pub(super) fn new(change: Change, log: &Arc<UndoLog>) -> io::Result<UndoOnDrop> {
        log.wait_for_earlier()?;
        log.add(change)?;
        Ok(UndoOnDrop { change, log: log.clone() })
    }
}

impl Drop for UndoOnDrop {
    fn drop(&mut self) {
        self.change.undo();
        self.log.remove(&self.change);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_survive_the_connection_to_the_undo_process() {
        let netns = 4_026_531_840;
        for change in [
            Change::Offloads { netns, index: 7, offloads: Offloads(1 << 100 | 5) },
            Change::Member { netns, program: 12 },
            Change::Disconnected { netns, index: 7, mark: u32::MAX },
        ] {
            let text = change.message('+');
            assert_eq!(text.trim_end().strip_prefix("+ ").unwrap().parse::<Change>().unwrap(), change);
        }
        assert!("member 1".parse::<Change>().is_err() && "offloads 1 2".parse::<Change>().is_err());
    }

    #[test]
    fn a_name_that_another_user_has_is_waited_for_once() {
        let name = format!("unetmap-test {}", std::process::id());
        let _theirs = socket::named_pair(&name).unwrap();
        let mut state = UndoState { name, ..Default::default() };
        for withheld in [false, true] {
            assert_eq!(state.is_withheld, withheld);
            state.connection = None;
            state.connect().unwrap();
            assert!(state.connection.is_some());
        }
    }
}

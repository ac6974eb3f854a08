//! Offloads that are disabled while a port is open, so that its frames are those on the wire: with their VLAN tags and
//! checksums, and not longer than the MTU. XDP programs and AF_XDP sockets see only a frame's bytes, not what the
//! kernel knows about it besides.
//!
//! ```text
//! interface      disabled                                       why
//! veth           the peer's transmit tags, checksums, segments  no hardware follows that would complete the frame
//! any other      its own removal of received tags               the driver removes them before the XDP program runs
//! ```
//! The settings are restored when the port closes. If the daemon is killed, the *keeper* restores them: a process that
//! exists while anything is disabled. It learns each change before the change is made, and restores what is left when
//! the connection to the daemon ends.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use unetmap_sys::link::{self, OffloadKind, Offloads, veth};
use unetmap_sys::netns::Netns;
use unetmap_sys::process::{self, Signal};
use unetmap_sys::socket;

use crate::tuning::nic::{KEEPER_LIMIT, KEEPER_POLL};

/// The option of `unetmapd` that starts the keeper, and the descriptor of its connection.
const OPTION: &str = "--restore-offloads";
const CONNECTION: &str = "3";

/// Offloads that were disabled at one interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Change {
    /// Inode number of the interface's network namespace. The namespace is not kept alive.
    netns: u64,
    index: u32,
    offloads: Offloads,
}

impl Change {
    /// The message to the keeper about this change, which is about to be made (`+`) or undone (`-`).
    fn message(&self, sign: char) -> String {
        format!("{sign} {} {} {}\n", self.netns, self.index, self.offloads.0)
    }

    fn restore(&self) {
        // A namespace that is not found has no process: it has ended, or nobody can use the interface.
        let Some(netns) = Netns::find(|netns| netns.id() == self.netns) else { return };
        let restored = netns.run(|| match link::by_index(self.index)? {
            Some(link) => link::set_offloads(&link.name, self.offloads, true),
            None => Ok(()),
        });
        if let Err(e) = restored.and_then(|done| done) {
            tracing::warn!(index = self.index, "the offloads of an interface cannot be restored (ethtool -K): {e}");
        }
    }
}

impl FromStr for Change {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Change, Self::Err> {
        let mut words = text.split(' ');
        let mut word = || words.next().unwrap_or_default();
        Ok(Change { netns: word().parse()?, index: word().parse()?, offloads: Offloads(word().parse()?) })
    }
}

/// The daemon's side of the keeper.
#[derive(Default)]
pub(crate) struct Keeper(Mutex<KeeperState>);

#[derive(Default)]
struct KeeperState {
    /// The name of the keeper's end of the connection. It is in use while the keeper of an earlier daemon restores.
    name: String,
    changes: Vec<Change>,
    /// Our end; the keeper's until it is started.
    connection: Option<(UnixStream, Option<UnixStream>)>,
}

impl Keeper {
    /// The keeper of the daemon that listens at `socket`.
    pub(crate) fn new(socket: &Path) -> Keeper {
        Keeper(Mutex::new(KeeperState { name: format!("unetmap-offloads {}", socket.display()), ..Default::default() }))
    }

    /// Waits until an earlier daemon's keeper has restored the offloads, so that it does not enable them later.
    fn wait_for_earlier(&self) -> io::Result<()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).connect()
    }

    fn add(&self, change: Change) -> io::Result<()> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.changes.push(change);
        let sent = state.send(&change.message('+'));
        if sent.is_err() {
            state.changes.retain(|other| *other != change);
        }
        sent
    }

    fn remove(&self, change: &Change) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.changes.retain(|other| other != change);
        if let Err(e) = state.send(&change.message('-')) {
            tracing::warn!("the process that restores offloads after a crash of the daemon cannot be reached: {e}");
        }
        if state.changes.is_empty() {
            state.connection = None;
        }
    }
}

impl KeeperState {
    fn connect(&mut self) -> io::Result<()> {
        let start = Instant::now();
        while self.connection.is_none() {
            match socket::named_pair(&self.name) {
                Ok((own, other)) => self.connection = Some((own, Some(other))),
                Err(e) if e.kind() == io::ErrorKind::AddrInUse && start.elapsed() < KEEPER_LIMIT => {
                    thread::sleep(KEEPER_POLL);
                }
                // The name is too long, or another program has it: the keeper works without.
                Err(_) => self.connection = UnixStream::pair().map(|(own, other)| Some((own, Some(other))))?,
            }
        }
        Ok(())
    }

    /// Sends a message; starts the keeper if it does not run.
    fn send(&mut self, message: &str) -> io::Result<()> {
        self.connect()?;
        let Some((connection, other)) = &mut self.connection else { return Err(io::ErrorKind::NotConnected.into()) };
        if let Some(other) = other.take() {
            let log = File::from(io::stderr().as_fd().try_clone_to_owned()?);
            let args = [OPTION.into(), CONNECTION.into()];
            process::spawn_detached(Path::new("/proc/self/exe"), &args, OwnedFd::from(other), log)?;
        }
        if connection.write_all(message.as_bytes()).is_ok() {
            return Ok(());
        }
        // The keeper was killed: the next one learns all changes.
        self.connection = None;
        let all: String = self.changes.iter().map(|change| change.message('+')).collect();
        if all.is_empty() { Ok(()) } else { self.send(&all) }
    }
}

/// Runs the keeper, in a process of its own: records the changes until the daemon closes `connection` or dies, and
/// restores those that are left.
pub(crate) fn run_keeper(connection: OwnedFd) -> io::Result<()> {
    // A service manager that stops the daemon signals this process as well, which ends after the daemon.
    let _blocked = process::signals_as_fd(&[Signal::TERM, Signal::INT])?;
    let mut changes: Vec<Change> = Vec::new();
    for line in BufReader::new(UnixStream::from(connection)).lines() {
        let Ok(line) = line else { break };
        match line.split_at_checked(2) {
            Some(("+ ", change)) => changes.extend(change.parse::<Change>()),
            Some(("- ", change)) => changes.retain(|other| change.parse() != Ok(*other)),
            _ => {}
        }
    }
    changes.iter().for_each(Change::restore);
    Ok(())
}

/// Offloads that are disabled until this is dropped.
pub(super) struct DisabledOffloads {
    change: Change,
    keeper: Arc<Keeper>,
}

impl Drop for DisabledOffloads {
    fn drop(&mut self) {
        self.change.restore();
        self.keeper.remove(&self.change);
    }
}

/// Disables the offloads that would hide parts of the frames of interface `index` in `netns`; `None` if none is
/// enabled. On failure the port works as well, but frames may lack tags and checksums.
pub(super) fn disable(netns: &Netns, (index, name): (u32, &str), keeper: &Arc<Keeper>) -> Option<DisabledOffloads> {
    match try_disable(netns, index, keeper) {
        Ok(disabled) => disabled,
        Err(e) => {
            tracing::warn!(
                name,
                "received frames may lack VLAN tags and checksums: {e} (disable the offloads by hand: on a veth, ethtool \
                 -K PEER tx off txvlan off; else ethtool -K {name} rxvlan off)"
            );
            None
        }
    }
}

fn try_disable(netns: &Netns, index: u32, keeper: &Arc<Keeper>) -> io::Result<Option<DisabledOffloads>> {
    let is_veth = |link: &link::Link| link.kind.as_deref() == Some("veth");
    let (target, index, kind) = netns.run(|| {
        if !link::by_index(index)?.is_some_and(|link| is_veth(&link)) {
            return Ok((None, index, OffloadKind::ReceivedTags));
        }
        let peer = veth::peer(index)?.ok_or(io::ErrorKind::NotFound)?;
        if peer.is_here() {
            return Ok((None, peer.index, OffloadKind::Transmit));
        }
        let found = Netns::find(|other| peer.is_in(other).unwrap_or(false));
        let found = found.ok_or_else(|| io::Error::other("the network namespace of its peer is not found"))?;
        Ok::<_, io::Error>((Some(found), peer.index, OffloadKind::Transmit))
    })??;
    let target = target.as_ref().unwrap_or(netns);
    keeper.wait_for_earlier()?;
    target.run(|| {
        let Some(link) = link::by_index(index)? else { return Ok(None) };
        let offloads = match link::changeable_offloads(&link.name, kind) {
            // A driver without offloads.
            Err(e) if e.kind() == io::ErrorKind::Unsupported => return Ok(None),
            offloads => offloads?,
        };
        if offloads == Offloads::default() {
            return Ok(None);
        }
        let change = Change { netns: target.id(), index, offloads };
        keeper.add(change)?;
        // From here on the change is undone on failure as well.
        let disabled = DisabledOffloads { change, keeper: keeper.clone() };
        link::set_offloads(&link.name, offloads, false)?;
        tracing::debug!(name = link.name, "offloads disabled: {:#x}", offloads.0);
        Ok(Some(disabled))
    })?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_survive_the_connection_to_the_keeper() {
        let change = Change { netns: 4_026_531_840, index: 7, offloads: Offloads(1 << 100 | 5) };
        let text = change.message('+');
        assert_eq!(text.trim_end().strip_prefix("+ ").unwrap().parse(), Ok(change));
        assert!("1 2".parse::<Change>().is_err());
    }
}

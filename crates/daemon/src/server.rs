//! The control socket: connections, their messages, and their end.
//!
//! ```text
//! connection     first message        ends when                          effect
//! session        REGISTER             all duplicates of its fd closed    rings unbound, buffers and memory freed
//! lock holder    LockHolder           closed, or its process has exited  locks of the holder broken
//! request        the others           closed                             none
//! ```
//! A client that does not read its answers, or sends an invalid message, is disconnected. It can delay no other client.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use unetmap_core::control::wire::{self, Malformed};
use unetmap_core::control::{ControlRequest, Kind, NetmapRequest};
use unetmap_core::errno::{EINVAL, EIO, EMFILE, EMSGSIZE, ENFILE, EPROTO, EPROTONOSUPPORT};
use unetmap_sys::event::{Epoll, EventFlags};
use unetmap_sys::process;
use unetmap_sys::socket::{self, MAX_FDS, Peer};

use crate::closer::Closer;
use crate::netmap_requests;
use crate::node::Nodes;
use crate::ports::{Daemon, nic, vale};
use crate::requests::{self, Answer, Call, LockHolder, LockHolders, Reply, Then};
use crate::tuning::server::{MAX_ACCEPTS, MAX_CONNECTIONS_OF_USER};

/// Tokens of the event loop. Connections have even ones from `FIRST_TOKEN` on, the pidfds of lock holders the odd ones
/// after.
const LISTENER: u64 = 0;
const SIGNALS: u64 = 1;
const FIRST_TOKEN: u64 = 2;
/// Watches of namespaces: this bit, and the namespace's number, which is an inode's and thus small.
const WATCHES: u64 = 1 << 63;
/// Jobs of the node's threads.
const NODE: u64 = 1 << 62;

struct Client {
    fd: OwnedFd,
    peer: Peer,
    session: Option<u64>,
    holder: Option<LockHolder>,
    /// The tag of the message that is being answered.
    tag: u32,
}

/// The daemon's main thread.
pub(crate) struct Server {
    daemon: Daemon,
    nodes: Nodes,
    epoll: Epoll,
    listener: OwnedFd,
    closer: Closer,
    clients: BTreeMap<u64, Client>,
    lock_holders: LockHolders,
    next_token: u64,
    /// A descriptor that is given up for a moment to reject a client when no other is left.
    reserve: Option<File>,
    /// The daemon's user. Besides root only this user may connect; if it is root, all users whom the socket's mode
    /// admits.
    owner: u32,
    started: Instant,
}

impl Server {
    /// Returns a server of `daemon` that listens at `socket`.
    pub(crate) fn new(listener: OwnedFd, daemon: Daemon, socket: &Path) -> io::Result<Server> {
        // The kernel refuses descriptors where it can.
        if !fault::takes_fds() {
            socket::refuse_fds(&listener);
        }
        let epoll = Epoll::new()?;
        epoll.add(&listener, LISTENER, true, false)?;
        let nodes = Nodes::new(socket, netmap_requests::answer)?;
        epoll.add(nodes.doorbell(), NODE, true, false)?;
        Ok(Server {
            daemon,
            nodes,
            epoll,
            listener,
            closer: Closer::new()?,
            clients: BTreeMap::new(),
            lock_holders: LockHolders::default(),
            next_token: FIRST_TOKEN,
            reserve: File::open("/dev/null").ok(),
            owner: process::uid(),
            started: Instant::now(),
        })
    }

    /// Serves until a signal arrives on `signals`, or until no client was connected for `idle` and `may_end` agrees.
    pub(crate) fn run(
        &mut self,
        signals: BorrowedFd<'_>,
        idle: Option<Duration>,
        mut may_end: impl FnMut() -> bool,
    ) -> io::Result<()> {
        self.epoll.add(signals, SIGNALS, true, false)?;
        let mut events = Vec::new();
        loop {
            let limit = idle.filter(|_| self.is_unused());
            let next_timer = vale::age_tables(&mut self.daemon);
            self.daemon.nics.keep_alive.control_waits();
            match self.epoll.wait(&mut events, next_timer.or(limit)) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            }
            if events.is_empty() && next_timer.is_some() {
                continue;
            }
            if events.is_empty() && self.clients.is_empty() && limit.is_some() && may_end() {
                tracing::info!("exiting, as no client was connected for a while");
                return Ok(());
            }
            // Connections are closed before new ones are accepted, which may need their room.
            events.sort_by_key(|(token, _)| *token == LISTENER);
            for &(token, flags) in &events {
                self.daemon.nics.keep_alive.control_begins();
                match token {
                    LISTENER => self.accept_clients(),
                    token if token & WATCHES != 0 => nic::links_changed(&mut self.daemon, token & !WATCHES),
                    NODE => {
                        self.nodes.run_jobs(&mut self.daemon);
                        self.add_watches();
                    }
                    SIGNALS => {
                        tracing::info!("exiting on a signal");
                        self.nodes.shut_down(&mut self.daemon);
                        return Ok(());
                    }
                    token if token % 2 == 1 => self.disconnect(token - 1),
                    token => self.client_event(token, flags),
                }
            }
        }
    }

    /// Whether nothing would be lost if the daemon ended.
    fn is_unused(&self) -> bool {
        self.clients.is_empty() && !self.daemon.has_state() && !self.nodes.in_use()
    }

    fn accept_clients(&mut self) {
        for _ in 0..MAX_ACCEPTS {
            match socket::accept(&self.listener) {
                Ok(fd) => self.admit(fd),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if matches!(e.raw_os_error(), Some(ENFILE | EMFILE)) => {
                    // No descriptor is left: the client's connection is closed, rather than left waiting.
                    tracing::debug!("no file descriptor for another client: {e}");
                    self.reserve = None;
                    drop(socket::accept(&self.listener));
                    self.reserve = File::open("/dev/null").ok();
                    return;
                }
                Err(e) => {
                    tracing::debug!("accept: {e}");
                    return;
                }
            }
        }
    }

    fn admit(&mut self, fd: OwnedFd) {
        let peer = match socket::peer(&fd) {
            Ok(peer) => peer,
            Err(e) => {
                tracing::debug!("rejected: {e}");
                return;
            }
        };
        if let Some(why) = self.reason_to_reject(peer.uid) {
            tracing::debug!(uid = peer.uid, pid = peer.pid, why, "rejected");
            return self.closer.close(peer.uid, fd);
        }
        let token = self.next_token;
        if let Err(e) = self.epoll.add(&fd, token, true, false) {
            tracing::debug!("rejected: {e}");
            return;
        }
        self.next_token += 2;
        self.clients.insert(token, Client { fd, peer, session: None, holder: None, tag: 0 });
    }

    /// Why a user gets no further connection; `None`: it gets one.
    fn reason_to_reject(&self, uid: u32) -> Option<&'static str> {
        if self.closer.is_blocked(uid) {
            return Some("closing this user's earlier connections takes long");
        }
        if uid == self.owner || uid == 0 {
            return None;
        }
        match self.owner {
            0 if self.connections_of(uid) < MAX_CONNECTIONS_OF_USER => None,
            0 => Some("this user has too many connections"),
            _ => Some("this is another user's daemon"),
        }
    }

    fn connections_of(&self, uid: u32) -> usize {
        self.clients.values().filter(|client| client.peer.uid == uid).count()
    }

    fn client_event(&mut self, token: u64, flags: EventFlags) {
        let open = !flags.contains(EventFlags::IN) || self.read_message(token);
        if !open || flags.intersects(EventFlags::HUP | EventFlags::ERR | EventFlags::RDHUP) {
            self.disconnect(token);
        }
    }

    /// Reads and answers one message; returns `false` when the connection is to be closed.
    fn read_message(&mut self, token: u64) -> bool {
        let Some(client) = self.clients.get(&token) else { return true };
        let mut buf = [0; wire::MAX_REQUEST];
        let received = match socket::recv_without_fds(&client.fd, &mut buf) {
            // An empty message, or the end of the connection, which has an event of its own.
            Ok(received) if received.bytes == 0 && !received.fds_truncated => return client.session.is_some(),
            Ok(received) => received,
            Err(e) => return e.kind() == io::ErrorKind::WouldBlock,
        };
        if received.fds_truncated {
            self.reject(token, EINVAL, "a control message with file descriptors");
            // The message stays in the queue, so that the connection cannot be used any more.
            return false;
        }
        if received.truncated {
            return self.reject(token, EMSGSIZE, &Malformed::Oversized.to_string());
        }
        match wire::decode(&buf[..received.bytes]) {
            Ok((kind, head, payload)) => {
                if let Some(client) = self.clients.get_mut(&token) {
                    client.tag = head.tag;
                }
                self.answer(token, kind, payload)
            }
            Err(e @ Malformed::Version(_)) => self.reject(token, EPROTONOSUPPORT, &e.to_string()),
            Err(e) => self.reject(token, EPROTO, &e.to_string()),
        }
    }

    fn answer(&mut self, token: u64, kind: Kind, payload: &[u8]) -> bool {
        let connections = self.clients.len();
        let Some(client) = self.clients.get_mut(&token) else { return true };
        let was_holder = client.holder.is_some();
        let mut call = Call {
            daemon: &mut self.daemon,
            nodes: &mut self.nodes,
            lock_holders: &mut self.lock_holders,
            connection: &client.fd,
            peer: client.peer,
            session: &mut client.session,
            holder: &mut client.holder,
            payload,
            owner: self.owner,
            connections,
            uptime: self.started.elapsed(),
        };
        let (reply, then) = requests::answer(kind, &mut call);
        if let Some(holder) = client.holder.as_mut().filter(|_| !was_holder) {
            let epoll = &self.epoll;
            holder.pidfd = holder.pidfd.take().filter(|pidfd| epoll.add(pidfd, token + 1, true, false).is_ok());
        }
        self.add_watches();
        match reply {
            Reply::Answer(answer) => {
                let Some(client) = self.clients.get(&token) else { return true };
                send(client, kind, &answer).is_ok() && then == Then::Continue
            }
            Reply::Invalid(errno, why) => self.reject(token, errno, why),
            Reply::Close => false,
        }
    }

    /// Answers an invalid message with an error and closes the connection: what follows such a message may not be one.
    /// A connection with a session stays open, and only a library of another release is answered: the descriptor may be
    /// in a process that does not use netmap and just writes to it.
    fn reject(&mut self, token: u64, errno: i32, why: &str) -> bool {
        let Some(client) = self.clients.get(&token) else { return false };
        let answer = Answer { errno, ..Default::default() };
        if client.session.is_some() {
            tracing::debug!(pid = client.peer.pid, why, "invalid message ignored");
            return errno != EPROTONOSUPPORT || send(client, NetmapRequest::KIND, &answer).is_ok();
        }
        tracing::debug!(pid = client.peer.pid, why, "connection closed");
        let _ = send(client, NetmapRequest::KIND, &answer);
        false
    }

    /// Adds new watches of interfaces to the event loop. A watch that is closed leaves it.
    fn add_watches(&mut self) {
        let mut added = Ok(());
        let state = &mut self.daemon.nics;
        for (netns, watch) in state.watches.iter_mut().filter(|(_, watch)| !watch.in_event_loop) {
            watch.in_event_loop = true;
            added = added.and(self.epoll.add(&watch.watch, WATCHES | *netns, true, false));
        }
        if let Some(watch) = state.settings.watch()
            && !state.settings.in_event_loop
        {
            added = added.and(self.epoll.add(watch, WATCHES | nic::ALL_NAMESPACES, true, false));
            state.settings.in_event_loop = true;
        }
        if let Err(e) = added {
            tracing::warn!("changes of interfaces will not be noticed: {e}");
        }
    }

    /// Closes a connection, and all that it had.
    fn disconnect(&mut self, token: u64) {
        let Some(client) = self.clients.remove(&token) else { return };
        let _ = self.epoll.delete(&client.fd);
        if let Some(holder) = &client.holder {
            if let Some(pidfd) = &holder.pidfd {
                let _ = self.epoll.delete(pidfd);
            }
            self.lock_holders.free(holder);
            let broken = self.daemon.registry.break_locks(holder.id);
            if broken > 0 {
                tracing::debug!(
                    pid = client.peer.pid,
                    broken,
                    "the process exited while it synced: its locks are broken"
                );
            }
        }
        if let Some(session) = client.session {
            tracing::debug!(pid = client.peer.pid, session, fd = client.fd.as_raw_fd(), "session closed");
            self.daemon.close(session);
        }
        self.closer.close(client.peer.uid, client.fd);
    }
}

/// Fault injection for tests, in debug builds only.
mod fault {
    /// Whether the daemon was started with `UNETMAP_FAULT=descriptors`: clients can send them, as before Linux 6.16.
    pub(super) fn takes_fds() -> bool {
        cfg!(debug_assertions) && std::env::var_os("UNETMAP_FAULT").is_some_and(|fault| fault == "descriptors")
    }
}

/// Sends an answer, with further messages for descriptors that do not fit one. It is an error if the client cannot
/// receive it now, as that client does not read its answers.
fn send(client: &Client, kind: Kind, answer: &Answer) -> io::Result<()> {
    let Answer { errno, holder, payload, fds } = answer;
    if wire::HEAD_BYTES + payload.len() > wire::MAX_REPLY {
        return Err(io::Error::from_raw_os_error(EIO));
    }
    let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    let (first, mut rest) = fds.split_at(fds.len().min(MAX_FDS));
    socket::send(&client.fd, &wire::encode_tagged(client.tag, kind, *errno, fds.len(), *holder, payload), first)?;
    while !rest.is_empty() {
        let (now, later) = rest.split_at(rest.len().min(MAX_FDS));
        socket::send(&client.fd, &wire::encode_tagged(client.tag, Kind::MORE_FDS, 0, 0, 0, &[]), now)?;
        rest = later;
    }
    Ok(())
}

//! The control socket: connections, their messages, and their end.
//!
//! ```text
//! connection     first message        ends when                          then
//! session        Ctrl/REGISTER        all duplicates of its fd closed    rings unbound, buffers and memory back
//! lease          Lease                closed, or its process died        locks of the lease broken
//! question       the others           closed                             nothing
//! ```
//! A client that does not read its answers, or sends what is no message, is cut off; it can delay nobody.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use unetmap::errno::{EINVAL, EIO, EMFILE, EMSGSIZE, ENFILE, ENOMEM, EPROTO, EPROTONOSUPPORT};
use unetmap::request::Request;
use unetmap::watch::Asked;
use unetmap::wire::{self, Kind, Malformed};
use unetmap_sys::event::{Epoll, EventFlags};
use unetmap_sys::socket::{self, MAX_FDS, Peer};
use unetmap_sys::{memfd, process};

use zerocopy::FromBytes;

use crate::books::Books;
use crate::caller::Caller;
use crate::interfaces;
use crate::node::Nodes;
use crate::refusal::Refusal;
use crate::snapshot;
use crate::{mediator, request};

const LISTENER: u64 = 0;
const SIGNALS: u64 = 1;
/// Tokens of connections are even, of the processes behind leases odd, from here on.
const FIRST_TOKEN: u64 = 2;

/// Tokens of watched namespaces: this, and the namespace's number, which is an inode's and thus small.
const WATCHES: u64 = 1 << 63;
/// What the node's threads ask.
const NODE: u64 = 1 << 62;

/// Connections that a user who is not the daemon's may have: a session and a lease each, so about as many ports.
const MOST_OF_A_USER: usize = 512;

/// Connections that one turn lets in at most, so that a stream of them delays nobody.
const MOST_ACCEPTS: u32 = 64;

struct Client {
    fd: OwnedFd,
    peer: Peer,
    session: Option<u64>,
    lease: Option<(u32, Option<OwnedFd>)>,
    /// Of the message that is being answered.
    tag: u32,
}

/// The daemon at work.
pub(crate) struct Server {
    books: Books,
    nodes: Nodes,
    epoll: Epoll,
    listener: OwnedFd,
    /// Closes what clients sent.
    closer: std::sync::mpsc::Sender<OwnedFd>,
    clients: BTreeMap<u64, Client>,
    next_token: u64,
    last_lease: u32,
    /// Given up for a moment to turn a client away when no descriptor is left.
    reserve: Option<File>,
    /// Who besides root may connect; 0, root: everybody that the socket's mode lets in.
    owner: u32,
    started: Instant,
}

impl Server {
    /// A daemon with these books, that listens at `socket`.
    pub(crate) fn new(listener: OwnedFd, books: Books, socket: &Path) -> io::Result<Server> {
        // Where the kernel cannot refuse descriptors for us, and for what waits unread in a connection: closing what a
        // client sent may take as long as that client likes, so it is another thread's.
        socket::refuse_fds(&listener);
        let (closer, to_close) = std::sync::mpsc::channel::<OwnedFd>();
        std::thread::Builder::new().name("closer".into()).spawn(move || to_close.into_iter().for_each(drop))?;
        let epoll = Epoll::new()?;
        epoll.add(&listener, LISTENER, true, false)?;
        let nodes = Nodes::new(socket)?;
        epoll.add(nodes.bell(), NODE, true, false)?;
        Ok(Server {
            books,
            nodes,
            epoll,
            listener,
            closer,
            clients: BTreeMap::new(),
            next_token: FIRST_TOKEN,
            last_lease: 0,
            reserve: File::open("/dev/null").ok(),
            owner: process::uid(),
            started: Instant::now(),
        })
    }

    /// Serves until a signal comes on `signals`, or until nobody was connected for `idle` and `may_end` agrees.
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
            let next = [self.books.keep_interfaces(), self.books.age_tables()].into_iter().flatten().min();
            match self.epoll.wait(&mut events, next.or(limit)) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            }
            if events.is_empty() && next.is_some() {
                continue;
            }
            if events.is_empty() && self.clients.is_empty() && limit.is_some() && may_end() {
                tracing::info!("nobody connected for a while: ending");
                return Ok(());
            }
            // Who left makes room before newcomers are let in.
            events.sort_by_key(|(token, _)| *token == LISTENER);
            for &(token, flags) in &events {
                // One of them may take its time.
                self.books.keep_interfaces();
                match token {
                    LISTENER => self.accept_some(),
                    token if token & WATCHES != 0 => self.books.links_changed(token & !WATCHES),
                    NODE => {
                        self.nodes.work(&mut self.books);
                        self.wait_for_news();
                    }
                    SIGNALS => {
                        tracing::info!("ending on a signal");
                        self.nodes.end(&mut self.books);
                        return Ok(());
                    }
                    token if token % 2 == 1 => self.process_ended(token - 1),
                    token => self.client_event(token, flags),
                }
            }
        }
    }

    /// Whether nobody would miss the daemon.
    fn is_unused(&self) -> bool {
        let set = !self.books.filters.is_empty() || !self.books.settings.is_empty();
        let turned = self.books.knobs.changed() || self.books.switches.threads.changed();
        let kept = set || turned || self.books.serves_the_system() || self.nodes.in_use();
        self.clients.is_empty() && !kept
    }

    fn accept_some(&mut self) {
        for _ in 0..MOST_ACCEPTS {
            match socket::accept(&self.listener) {
                Ok(fd) => self.admit(fd),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if matches!(e.raw_os_error(), Some(ENFILE | EMFILE)) => {
                    // Out of descriptors: the client is told by a closed connection, not left to wait.
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
            Ok(peer) if peer.uid == self.owner || peer.uid == 0 => peer,
            Ok(peer) if self.owner == 0 && self.connections_of(peer.uid) < MOST_OF_A_USER => peer,
            Ok(peer) if self.owner == 0 => {
                tracing::debug!(uid = peer.uid, pid = peer.pid, "turned away: this user has too many connections");
                return;
            }
            Ok(peer) => {
                tracing::debug!(uid = peer.uid, pid = peer.pid, "turned away: not this user's daemon");
                return;
            }
            Err(e) => {
                tracing::debug!("turned away: {e}");
                return;
            }
        };
        let token = self.next_token;
        if let Err(e) = self.epoll.add(&fd, token, true, false) {
            tracing::debug!("turned away: {e}");
            return;
        }
        self.next_token += 2;
        self.clients.insert(token, Client { fd, peer, session: None, lease: None, tag: 0 });
    }

    fn connections_of(&self, uid: u32) -> usize {
        self.clients.values().filter(|client| client.peer.uid == uid).count()
    }

    fn client_event(&mut self, token: u64, flags: EventFlags) {
        let alive = !flags.contains(EventFlags::IN) || self.read_message(token);
        if !alive || flags.intersects(EventFlags::HUP | EventFlags::ERR | EventFlags::RDHUP) {
            self.drop_client(token);
        }
    }

    /// Reads and answers one message; `false` when the connection is over.
    fn read_message(&mut self, token: u64) -> bool {
        let Some(client) = self.clients.get(&token) else { return true };
        let mut buf = [0; wire::MAX_REQUEST];
        let mut fds = Vec::new();
        let got = match socket::recv(&client.fd, &mut buf, &mut fds) {
            // Nothing was sent, or the connection is over; if so, that is told as well.
            Ok(got) if got.bytes == 0 => return client.session.is_some(),
            Ok(got) => got,
            Err(e) => return e.kind() == io::ErrorKind::WouldBlock,
        };
        // No request brings descriptors.
        if !fds.is_empty() || got.fds_truncated {
            fds.into_iter().for_each(|fd| self.close(fd));
            return self.reject(token, EINVAL, "a control message with file descriptors");
        }
        if got.truncated {
            return self.reject(token, EMSGSIZE, &Malformed::Oversized.to_string());
        }
        let message = wire::open(&buf[..got.bytes]);
        if let (Ok((_, head, _)), Some(client)) = (&message, self.clients.get_mut(&token)) {
            client.tag = head.tag;
        }
        match message {
            Ok((Kind::Lease, _, _)) => self.give_lease(token),
            Ok((Kind::Ctrl, _, payload)) => self.answer(token, payload),
            Ok((Kind::Attach, _, _)) => self.answer_again(token),
            Ok((Kind::Unbind, _, _)) => self.unbind(token),
            Ok((Kind::Nic, _, payload)) => self.answer_nic(token, payload),
            Ok((Kind::Vale, _, payload)) => self.answer_vale(token, payload),
            Ok((Kind::Node, _, payload)) => self.answer_node(token, payload),
            Ok((Kind::Knobs, _, payload)) => self.answer_knobs(token, payload),
            Ok((Kind::Watchers, _, payload)) => self.answer_watchers(token, payload),
            // One for a connection: unread ones would pile up, and their memory belongs to nobody.
            Ok((Kind::Snapshot, _, _)) => {
                self.answer_snapshot(token);
                false
            }
            Ok((Kind::MoreFds, _, _)) => self.reject(token, EPROTO, "a client sends no descriptors"),
            Err(e @ Malformed::Version(_)) => self.reject(token, EPROTONOSUPPORT, &e.to_string()),
            Err(e) => self.reject(token, EPROTO, &e.to_string()),
        }
    }

    /// Answers with an error and ends the connection: what follows such a message cannot be trusted to be one. One that has a
    /// port stays, and only a library of another release is answered: the descriptor may be in a process that knows nothing
    /// of netmap and just writes to it.
    fn reject(&mut self, token: u64, errno: i32, why: &str) -> bool {
        if let Some(client) = self.clients.get(&token) {
            if client.session.is_some() {
                tracing::debug!(pid = client.peer.pid, why, "ignored");
                // A library of another release, which waits for an answer.
                return errno != EPROTONOSUPPORT || send(client, Kind::Ctrl, errno, 0, &[], &[]).is_ok();
            }
            tracing::debug!(pid = client.peer.pid, why, "connection ended");
            let _ = send(client, Kind::Ctrl, errno, 0, &[], &[]);
        }
        false
    }

    fn answer(&mut self, token: u64, payload: &[u8]) -> bool {
        let Some(client) = self.clients.get_mut(&token) else { return true };
        let request = match Request::decode(payload) {
            Ok(request) => request,
            Err(errno) => return send(client, Kind::Ctrl, errno, 0, &[], &[]).is_ok(),
        };
        let Some(caller) = caller_behind(client) else { return false };
        let name = request.name().unwrap_or_default().to_owned();
        let outcome = request::answer(&mut self.books, request, &caller, client.session);
        if outcome.errno == 0 {
            tracing::debug!(pid = client.peer.pid, name, session = outcome.session, "served");
        } else {
            tracing::debug!(pid = client.peer.pid, name, errno = outcome.errno, why = outcome.answer.why, "refused");
        }
        client.session = client.session.or(outcome.session);
        self.wait_for_news();
        let Some(client) = self.clients.get(&token) else { return true };
        let fds: Vec<BorrowedFd<'_>> = outcome.fds.iter().map(AsFd::as_fd).collect();
        send(client, Kind::Ctrl, outcome.errno, 0, &outcome.answer.encode(), &fds).is_ok()
    }

    /// A first interface brings a namespace to watch; when the last goes, the watch is closed. The same with filters.
    fn wait_for_news(&mut self) {
        let mut added = Ok(());
        for (netns, watched) in self.books.watches.iter_mut().filter(|(_, watched)| !watched.waited_for) {
            watched.waited_for = true;
            added = added.and(self.epoll.add(&watched.watch, WATCHES | *netns, true, false));
        }
        let filters = &mut self.books.filters;
        if let Some(watch) = filters.watch()
            && !filters.waited_for
        {
            added = added.and(self.epoll.add(watch, WATCHES | interfaces::ALL, true, false));
            filters.waited_for = true;
        }
        if let Err(e) = added {
            tracing::warn!("changes of interfaces go unnoticed: {e}");
        }
    }

    /// About an interface: what is asked, and then how it is.
    fn answer_nic(&mut self, token: u64, payload: &[u8]) -> bool {
        let Some(client) = self.clients.get(&token) else { return true };
        let Some(caller) = caller_behind(client) else { return false };
        let answer = self.books.about_nic(payload, &caller);
        self.wait_for_news();
        self.send_answer(token, Kind::Nic, answer)
    }

    /// About knobs: what they are, and what one is to be.
    fn answer_knobs(&mut self, token: u64, payload: &[u8]) -> bool {
        let Some(client) = self.clients.get(&token) else { return true };
        let Some(caller) = caller_behind(client) else { return false };
        let answer = self.books.about_knobs(payload, &caller, self.owner);
        self.send_answer(token, Kind::Knobs, answer)
    }

    /// About a switch: what is asked, and then how it is.
    fn answer_vale(&mut self, token: u64, payload: &[u8]) -> bool {
        let Some(client) = self.clients.get(&token) else { return true };
        let Some(caller) = caller_behind(client) else { return false };
        let answer = self.books.about_vale(payload, &caller);
        // One for a connection, as with snapshots.
        self.send_answer(token, Kind::Vale, answer);
        false
    }

    /// About the node: what is asked, and then how it is.
    fn answer_node(&mut self, token: u64, payload: &[u8]) -> bool {
        let Some(client) = self.clients.get(&token) else { return true };
        let answer = self.nodes.about(&mut self.books, client.peer, payload);
        self.send_answer(token, Kind::Node, answer)
    }

    fn send_answer(&self, token: u64, kind: Kind, answer: Result<String, Refusal>) -> bool {
        let Some(client) = self.clients.get(&token) else { return true };
        let sent = match answer {
            Ok(text) => send_text(client, kind, &text),
            Err(Refusal { errno, why, .. }) => {
                tracing::debug!(pid = client.peer.pid, errno, why, "refused");
                send(client, kind, errno, 0, why.as_bytes(), &[])
            }
        };
        sent.is_ok()
    }

    /// The next monitor of a session; nothing after the last.
    fn answer_watchers(&mut self, token: u64, payload: &[u8]) -> bool {
        let Ok(asked) = Asked::read_from_bytes(payload) else {
            return self.reject(token, EPROTO, "a question after watchers that is none");
        };
        let Some(client) = self.clients.get(&token) else { return true };
        let sent = match self.books.next_monitor(&asked) {
            Ok(Some((told, fds))) => {
                let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
                send(client, Kind::Watchers, 0, 0, &told.encode(), &fds)
            }
            Ok(None) => send(client, Kind::Watchers, 0, 0, &[], &[]),
            Err(Refusal { errno, why, .. }) => {
                tracing::debug!(pid = client.peer.pid, errno, why, "refused");
                send(client, Kind::Watchers, errno, 0, why.as_bytes(), &[])
            }
        };
        sent.is_ok()
    }

    /// What this connection has bound, once more: it may have come to another process.
    fn answer_again(&mut self, token: u64) -> bool {
        let Some(client) = self.clients.get(&token) else { return true };
        let outcome = request::again(&self.books, client.session);
        let fds: Vec<BorrowedFd<'_>> = outcome.fds.iter().map(AsFd::as_fd).collect();
        send(client, Kind::Attach, outcome.errno, 0, &outcome.answer.encode(), &fds).is_ok()
    }

    /// A program cannot do with its port what it wants, and takes back its request.
    fn unbind(&mut self, token: u64) -> bool {
        let Some(client) = self.clients.get_mut(&token) else { return true };
        if let Some(session) = client.session.take() {
            tracing::debug!(pid = client.peer.pid, session, "taken back");
            self.books.close(session);
        }
        let Some(client) = self.clients.get(&token) else { return true };
        send(client, Kind::Unbind, 0, 0, &[], &[]).is_ok()
    }

    /// A number for a process, and a watch on its life: a connection alone would not tell, as its forked children keep
    /// it open.
    fn give_lease(&mut self, token: u64) -> bool {
        let used: Vec<u32> = self.clients.values().filter_map(|c| c.lease.as_ref().map(|l| l.0)).collect();
        let Some(client) = self.clients.get_mut(&token) else { return true };
        if client.lease.is_some() {
            return self.reject(token, EINVAL, "a second lease on one connection");
        }
        let mut lease = self.last_lease;
        loop {
            lease = lease.wrapping_add(1).max(1);
            if !used.contains(&lease) && lease != mediator::LEASE {
                break;
            }
        }
        self.last_lease = lease;
        let pidfd = match socket::peer_pidfd(&client.fd) {
            Ok(pidfd) => self.epoll.add(&pidfd, token + 1, true, false).is_ok().then_some(pidfd),
            Err(e) => {
                tracing::debug!(pid = client.peer.pid, "no pidfd, the connection must do: {e}");
                None
            }
        };
        client.lease = Some((lease, pidfd));
        send(client, Kind::Lease, 0, lease, &[], &[]).is_ok()
    }

    fn process_ended(&mut self, token: u64) {
        if self.clients.contains_key(&token) {
            self.drop_client(token);
        }
    }

    fn answer_snapshot(&mut self, token: u64) {
        let Some(client) = self.clients.get(&token) else { return };
        // Others' ports are nobody's business, but root's and that of the daemon's own user.
        let uid = client.peer.uid;
        let only = (uid != 0 && uid != self.owner).then_some(uid);
        let text = snapshot::text(&self.books, only, self.clients.len(), self.started.elapsed());
        let Some(client) = self.clients.get(&token) else { return };
        // A client that cannot take it is one that does not read.
        let _ = send_text(client, Kind::Snapshot, &text);
    }

    fn drop_client(&mut self, token: u64) {
        let Some(client) = self.clients.remove(&token) else { return };
        let _ = self.epoll.delete(&client.fd);
        if let Some((lease, pidfd)) = &client.lease {
            if let Some(pidfd) = pidfd {
                let _ = self.epoll.delete(pidfd);
            }
            let broken = self.books.break_locks(*lease);
            if broken > 0 {
                tracing::debug!(pid = client.peer.pid, broken, "died while syncing: locks broken");
            }
        }
        if let Some(session) = client.session {
            tracing::debug!(pid = client.peer.pid, session, fd = client.fd.as_raw_fd(), "session over");
            self.books.close(session);
        }
        self.close(client.fd);
    }

    /// Closes in another thread what a client may have made slow to close.
    fn close(&self, fd: OwnedFd) {
        // The thread ends only with the program.
        let _ = self.closer.send(fd);
    }
}

/// Who asks, as the kernel says; where it does not, nothing can be answered.
fn caller_behind(client: &Client) -> Option<Caller> {
    let caller = Caller::behind(&client.fd, client.peer);
    caller.inspect_err(|e| tracing::debug!(pid = client.peer.pid, "it cannot be told who asks: {e}")).ok()
}

/// Sends an answer that is a text of any length, as a file.
fn send_text(client: &Client, kind: Kind, text: &str) -> io::Result<()> {
    let made = memfd::create_sealed("unetmap-text", text.len() as u64).and_then(|fd| {
        let mut file = File::from(fd);
        file.write_all(text.as_bytes())?;
        Ok(file)
    });
    match made {
        Ok(file) => send(client, kind, 0, 0, &[], &[file.as_fd()]),
        Err(e) => send(client, kind, e.raw_os_error().unwrap_or(ENOMEM), 0, &[], &[]),
    }
}

/// Sends an answer, with further messages for descriptors that do not fit one. A client that cannot take it now is one
/// that does not read: an error.
fn send(client: &Client, kind: Kind, errno: i32, lease: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    if wire::HEAD_BYTES + payload.len() > wire::MAX_ANSWER {
        return Err(io::Error::from_raw_os_error(EIO));
    }
    let (first, mut rest) = fds.split_at(fds.len().min(MAX_FDS));
    socket::send(&client.fd, &wire::tagged(client.tag, kind, errno, fds.len(), lease, payload), first)?;
    while !rest.is_empty() {
        let (now, later) = rest.split_at(rest.len().min(MAX_FDS));
        socket::send(&client.fd, &wire::tagged(client.tag, Kind::MoreFds, 0, 0, 0, &[]), now)?;
        rest = later;
    }
    Ok(())
}

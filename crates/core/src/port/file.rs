// SPDX-License-Identifier: BSD-2-Clause
//! An open netmap file: a connection to the daemon, and later the port that is bound to it.
//!
//! This implements `open("/dev/netmap")` and the requests on it for the C libraries. The descriptor that the program
//! holds is the connection itself, and the only one: whatever the kernel does with descriptors (duplicates, fork, exec,
//! passing to another process) applies to the port, and the last close releases it. Nothing here keeps a duplicate;
//! each call gets the descriptor from its caller. A process that receives a descriptor with a port bound to it requests
//! the binding from the daemon ([`File::attach`]).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use unetmap_abi::{NETMAP_REQ_POOLS_INFO_GET, NETMAP_REQ_PORT_INFO_GET, NETMAP_REQ_REGISTER, NmreqRegister};
use unetmap_sys::{event, process, socket};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::backend::region_cache;
use crate::control::again::again_if_gone;
use crate::control::binding::Binding;
use crate::control::client::{self, Connection, Reply, SYSTEM_SOCKET, interface_exists};
use crate::control::request::{NetmapReply, NetmapRequest};
use crate::control::{AttachRequest, ControlRequest, UnbindRequest};
use crate::error::{Error, errno};
use crate::port::lock_holder;
use crate::port::open::assemble;
use crate::port::reconnect::{self, Keeper, Reconnect};
use crate::port::{Interest, NOT_NOW, Port, device};
use crate::sync::SyncError;
use crate::tuning::{EXIT_LIMIT, REPLY_TIMEOUT, TURN_POLL};

/// Everything that a process needs to use a netmap file, in addition to the descriptor.
#[derive(Clone, Debug)]
pub struct File {
    socket: PathBuf,
}

/// The port that is bound to a netmap file. Dropping it does not release the port.
pub struct BoundPort {
    /// The port.
    pub port: Port,
    /// The region's file, to be mapped at an address of the program's choice.
    pub region: OwnedFd,
}

/// The reply to a request on a netmap file.
pub struct FileReply {
    /// 0, or netmap's errno.
    pub errno: i32,
    /// Why the request was refused; empty if it was not, or the daemon sent no reason.
    pub reason: String,
    /// The request with the daemon's changes to body and options, also if it was refused; `None` if it was malformed.
    pub request: Option<NetmapRequest>,
    /// Set if another daemon replied, or the same one on another connection: this connection replaces that of the file.
    pub moved: Option<(OwnedFd, File)>,
    /// The port that REGISTER bound.
    pub bound: Option<BoundPort>,
}

impl File {
    /// Opens a file: a close-on-exec connection to the system's daemon if it serves this user, else to the user's own,
    /// which is started if none runs.
    ///
    /// # Errors
    /// No daemon runs, and none could be started.
    pub fn open() -> Result<(OwnedFd, File), Error> {
        process::count_forks().map_err(|e| Error::host("a netmap file", e))?;
        let Connection { fd, socket } = match client::connect_system_if_served("a netmap file")? {
            Some(connection) => connection,
            None => client::connect()?,
        };
        Ok((fd, File { socket }))
    }

    /// Recognizes a descriptor that was opened elsewhere: `Some` if it is a connection to a daemon that this process
    /// uses.
    pub fn from_descriptor(fd: BorrowedFd<'_>) -> Option<File> {
        let other_end = socket::peer_path(fd)?;
        let own = client::own_socket().ok();
        let known = [Some(PathBuf::from(SYSTEM_SOCKET)), own].into_iter().flatten().any(|path| path == other_end);
        if !known || process::count_forks().is_err() {
            return None;
        }
        Some(File { socket: other_end })
    }

    /// Sends a request and returns the reply. A refusal is not an error here.
    ///
    /// # Errors
    /// The daemon has exited, its reply is malformed, or the port that it bound cannot be mapped.
    pub fn request(&self, fd: BorrowedFd<'_>, request: &NetmapRequest) -> Result<FileReply, Error> {
        let subject = request.name().unwrap_or_default();
        if let Some(reply) = in_device(subject, request) {
            return reply;
        }
        let (reqtype, request) = (request.header.nr_reqtype, request.with_environment());
        let reply = ConnectionLock::wait(fd).send(subject, &request)?;
        let parent = subject.split(['{', '}']).next().unwrap_or_default();
        if reply.errno == errno::EACCES && self.socket == Path::new(SYSTEM_SOCKET) && !interface_exists(parent) {
            // The system's daemon does not serve this user for this port: the user's own daemon does.
            let own = client::connect()?;
            if own.socket != self.socket {
                let file = File { socket: own.socket };
                let reply = client::send(own.fd.as_fd(), subject, &request)?;
                let reply = file.decode(subject, reqtype, reply, Some(&request))?;
                return Ok(FileReply { moved: Some((own.fd, file)), ..reply });
            }
        }
        self.decode(subject, reqtype, reply, Some(&request)).inspect_err(|_| {
            // A port that cannot be mapped is released.
            let _ = self.unbind(fd);
        })
    }

    /// As [`File::request`], on a file to which no port is bound. A question, or REGISTER, is asked again on another
    /// file, which is in the reply, if the daemon has ended before it answered: as often as an open is.
    ///
    /// # Errors
    /// As [`File::request`].
    pub fn request_unbound(&self, fd: BorrowedFd<'_>, request: &NetmapRequest) -> Result<FileReply, Error> {
        let again = [NETMAP_REQ_REGISTER, NETMAP_REQ_PORT_INFO_GET, NETMAP_REQ_POOLS_INFO_GET];
        if !again.contains(&request.header.nr_reqtype) {
            return self.request(fd, request);
        }
        let mut is_first = true;
        again_if_gone(|_| {
            if std::mem::take(&mut is_first) {
                return self.request(fd, request);
            }
            let (fd, file) = File::open()?;
            let reply = file.request(fd.as_fd(), request)?;
            let moved = reply.moved.or(Some((fd, file)));
            Ok(FileReply { moved, ..reply })
        })
    }

    /// Releases the port that is bound to the file; the file stays open.
    ///
    /// # Errors
    /// The daemon has exited.
    pub fn unbind(&self, fd: BorrowedFd<'_>) -> Result<(), Error> {
        ConnectionLock::wait(fd).send("a netmap file", &UnbindRequest).map(|_| ())
    }

    /// Returns the port that is bound to the file, if any.
    ///
    /// # Errors
    /// As [`File::request`].
    pub fn attach(&self, fd: BorrowedFd<'_>) -> Result<Option<BoundPort>, Error> {
        let reply = ConnectionLock::wait(fd).send("a netmap file", &AttachRequest)?;
        if reply.errno == errno::ENXIO {
            return Ok(None);
        }
        // How it was asked for is not known here, so it does not go on with another daemon.
        let reply = self.decode("a netmap file", NETMAP_REQ_REGISTER, reply, None)?;
        match reply.errno {
            0 => Ok(reply.bound),
            errno => Err(Error::refused("a netmap file", errno, reply.reason)),
        }
    }

    /// `asked`: the request that the reply is to.
    fn decode(
        &self,
        subject: &str,
        reqtype: u16,
        reply: Reply,
        asked: Option<&NetmapRequest>,
    ) -> Result<FileReply, Error> {
        let malformed = || Error::malformed_reply(subject);
        let errno = reply.errno;
        let Some(NetmapReply { request, reason, binding }) = NetmapReply::decode(&reply.payload) else {
            // The reply to a request that was not understood, or not read, is an errno and perhaps a reason.
            let reason = reply.text().unwrap_or_default();
            let reply = FileReply { errno, reason, request: None, moved: None, bound: None };
            return if errno != 0 { Ok(reply) } else { Err(malformed()) };
        };
        let fds = reply.fds;
        let bound = if errno == 0 && reqtype == NETMAP_REQ_REGISTER {
            let register = request.body_as::<NmreqRegister>().ok_or_else(malformed)?;
            let binding = Binding::decode(&binding).filter(|b| b.fds() == fds.len()).ok_or_else(malformed)?;
            let name = request.name().ok_or_else(malformed)?;
            Some(self.assemble((name, asked), register, &binding, fds)?)
        } else {
            None
        };
        Ok(FileReply { errno, reason, request: Some(request), moved: None, bound })
    }

    fn assemble(
        &self,
        (name, asked): (&str, Option<&NetmapRequest>),
        register: NmreqRegister,
        binding: &Binding,
        fds: Vec<OwnedFd>,
    ) -> Result<BoundPort, Error> {
        let host = |e| Error::host(name, e);
        unetmap_mem::register_publisher();
        let holder = lock_holder::of_this_process(&self.socket)?;
        let region = fds.first().ok_or_else(|| host(io::ErrorKind::UnexpectedEof.into()))?.try_clone().map_err(host)?;
        // The lock holder's connection hangs up, too, when the daemon exits.
        let connection = Connection { fd: holder.connection().map_err(host)?, socket: self.socket.clone() };
        // The program's numbers of extra buffers would be those of others.
        let asked = asked.filter(|_| reconnect::is_default() && register.nr_extra_bufs == 0);
        let reconnect = asked.map(|asked| Reconnect::new(None, asked, &register, binding, &fds));
        let mut port = assemble(name, connection, holder, register, binding, fds)?;
        port.go_on_with(reconnect.transpose().map_err(host)?.flatten());
        Ok(BoundPort { port, region })
    }
}

/// Returns the reply to REGISTER of a port that is in a device of this virtual machine; `None` for anything else.
fn in_device(subject: &str, request: &NetmapRequest) -> Option<Result<FileReply, Error>> {
    let register = request.body_as::<NmreqRegister>().filter(|_| request.header.nr_reqtype == NETMAP_REQ_REGISTER)?;
    let opened = device::open_name(subject, register.nr_flags)?;
    Some(opened.map(|(port, register, region)| {
        let mut request = request.clone();
        request.body = register.as_bytes().to_vec();
        let bound = Some(BoundPort { port, region });
        FileReply { errno: 0, reason: String::new(), request: Some(request), moved: None, bound }
    }))
}

/// The lock of a connection that several processes may use: forked children, or processes that received the descriptor.
/// Of two that wait for their replies at the same time each might receive the other's. A reply to a process that was
/// killed is recognized by its tag.
struct ConnectionLock<'a>(BorrowedFd<'a>);

impl ConnectionLock<'_> {
    /// Waits for the lock, as long as a reply may take. Continues without it if the kernel has no such locks, or
    /// another process keeps it: then processes that mix their requests fail, and no others.
    fn wait(fd: BorrowedFd<'_>) -> ConnectionLock<'_> {
        let start = Instant::now();
        while socket::try_lock(fd).is_ok_and(|locked| !locked) && start.elapsed() < REPLY_TIMEOUT {
            std::thread::sleep(TURN_POLL);
        }
        ConnectionLock(fd)
    }

    fn send<R: ControlRequest>(&self, subject: &str, request: &R) -> Result<Reply, Error> {
        client::send(self.0, subject, request)
    }
}

impl Drop for ConnectionLock<'_> {
    fn drop(&mut self) {
        socket::unlock(self.0);
    }
}

/// For the C libraries and the daemon.
#[doc(hidden)]
impl Port {
    /// Handles a wake-up after one of [`Port::wait_fds`] became readable: clears the doorbells, polls, and wakes other
    /// users of a ready ring. If nothing is ready, [`Port::arm`] must be called before the next wait.
    ///
    /// # Errors
    /// As [`Port::txsync`].
    pub fn woken(&self, want: Interest) -> Result<Interest, Error> {
        self.clear_doorbells(want);
        let ready = self.poll_once(want, None)?;
        if !ready.is_none() {
            self.wake_sharers(want);
        }
        Ok(ready)
    }

    /// Sets a check of the file by which this port was opened, called by the syncs about every 100 ms with that of the
    /// daemon: any process that has the file can shut it down. Called once, by the opener.
    pub fn watch_file(&self, is_shut_down: impl Fn() -> bool + Send + Sync + 'static) {
        let _ = self.file_is_shut_down.set(Box::new(is_shut_down));
    }

    /// Whether the port goes on with the next daemon.
    pub fn waits_for_daemons(&self) -> bool {
        self.reconnect.is_some()
    }

    /// Sets what the file by which this port was opened does when the daemon has ended (`None`), and with the
    /// connection and the region of the next one. Called once, by the opener.
    pub fn keep_file(&self, keeper: impl Fn(Option<(OwnedFd, OwnedFd)>) + Send + Sync + 'static) {
        let keeper: Keeper = Box::new(keeper);
        if let Some(reconnect) = &self.reconnect {
            let _ = reconnect.keeper.set(keeper);
        }
    }

    /// Marks the port as unusable after the file's connection has hung up. The error tells whether the daemon has
    /// exited, or a process shut the file down.
    pub fn shut_down(&self) -> Error {
        let subject = self.spec().to_owned();
        // The connections of a daemon that exits hang up one after the other.
        let start = Instant::now();
        let has_exited = || event::hung_up(self.connection.fd.as_fd());
        while !has_exited() && start.elapsed() < EXIT_LIMIT {
            std::thread::sleep(TURN_POLL);
        }
        let daemon_exited = has_exited();
        self.is_shut_down.store(!daemon_exited, Relaxed);
        self.mark_daemon_exited();
        if daemon_exited { Error::DaemonGone { subject } } else { Error::FileShutDown { subject } }
    }

    /// Syncs what a poll syncs and returns what is ready. Never waits.
    ///
    /// # Errors
    /// As [`Port::txsync`].
    pub fn poll_now(&self, want: Interest) -> Result<Interest, Error> {
        self.poll_once(want, None)
    }

    /// Requests a wake-up for the next event even if the port is ready, then syncs.
    ///
    /// # Errors
    /// As [`Port::txsync`].
    pub fn arm_for_more(&self, want: Interest) -> Result<(), Error> {
        self.clear_doorbells(want);
        self.request_wakeup(want);
        if want.rx() {
            self.rxsync()?;
        }
        if want.tx() {
            self.txsync()?;
        }
        Ok(())
    }

    /// Requests a wake-up for the next event even if the port is ready, and shows the program what its peers did.
    /// Returns what is ready. For the daemon, which shares the port of a program: the program may be writing its
    /// pointers, or still read slots that it released, as netmap lets it until its next call. So this reads no pointer,
    /// and releases and sends nothing.
    ///
    /// # Errors
    /// As [`Port::txsync`].
    pub fn arm_beside_program(&self, want: Interest) -> Result<Interest, Error> {
        self.clear_doorbells(want);
        self.request_wakeup(want);
        let holder = self.enter()?;
        let mut ready = Interest::NONE;
        if holder == NOT_NOW {
            return Ok(ready);
        }
        for (ring, dir, event) in self.wanted_rings(want) {
            match self.sync_renewing_monitors(ring, || ring.inner.advance_tail(holder)) {
                // The sync loop shows it.
                Ok(()) | Err(SyncError::OwnedBySyncLoop) => {}
                Err(error) => return Err(self.explain(error, ring, dir)),
            }
            if ring.inner.ready() {
                ready |= event;
            }
        }
        if !ready.is_none() {
            self.wake_sharers(want);
        }
        Ok(ready)
    }

    /// Whether the program moved the `head` of a wanted ring since the ring's last sync.
    pub fn has_released(&self, want: Interest) -> bool {
        self.wanted_rings(want).any(|(ring, ..)| ring.inner.has_released())
    }

    /// Calls `each` with each of [`Port::wait_fds`], without allocation.
    pub fn each_wait_fd(&self, want: Interest, mut each: impl FnMut(BorrowedFd<'_>)) {
        if let Some(reconnect) = self.reconnect.as_ref().filter(|_| self.daemon_has_exited()) {
            return each(reconnect.timer.as_fd());
        }
        each(self.connection.fd.as_fd());
        for (_, source) in self.wakeup_sources(want) {
            each(source.doorbell().as_fd());
            source.socket().into_iter().for_each(&mut each);
        }
    }
}

/// Sends a netmap request for the port `name` on a connection of its own. Returns the name and the body of the reply.
///
/// # Errors
/// The daemon's refusal, or no daemon answers and none could be started.
pub fn request<T: FromBytes + IntoBytes + Immutable>(reqtype: u16, name: &str, body: &T) -> Result<(String, T), Error> {
    let too_long = |errno| Error::refused(name, errno, "the name is longer than 63 bytes");
    let request = NetmapRequest::new(reqtype, name, body.as_bytes()).map_err(too_long)?;
    let (fd, file) = File::open()?;
    let reply = file.request(fd.as_fd(), &request)?;
    if reply.errno != 0 {
        return Err(Error::refused(name, reply.errno, reply.reason));
    }
    let decoded = reply.request.as_ref().and_then(|request| Some((request.name()?.to_string(), request.body_as()?)));
    decoded.ok_or_else(|| Error::malformed_reply(name))
}

/// Returns the id of the region in the file with that inode, if this process has a port in it.
pub fn region_in(inode: u64) -> Option<u16> {
    region_cache::region_in(inode)
}

/// Returns the forks between the first process and this one: differs between a process and its children.
pub fn fork_count() -> u32 {
    process::fork_count()
}

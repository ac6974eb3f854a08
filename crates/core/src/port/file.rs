//! An open netmap file: a connection to the daemon, and later the port that is bound to it.
//!
//! This is what `open("/dev/netmap")` and the requests on it become. The descriptor that the program holds is the
//! connection itself, and the only one: all that the kernel does with descriptors (duplicates, fork, exec, passing to
//! another process) it does with the port, and the last close ends it. Nothing here keeps a duplicate; each call gets
//! the descriptor from its caller. A process that comes by a descriptor with a port already bound asks the daemon what
//! it is ([`File::attach`]).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use unetmap_abi::{NETMAP_REQ_REGISTER, NmreqRegister};
use unetmap_sys::{event, process, socket};

use crate::control::binding::Bound;
use crate::control::client::{self, Connection, Reply, SYSTEM_SOCKET};
use crate::error::{Error, errno};
use crate::port::lease;
use crate::port::open::{assemble, interface_exists};
use crate::port::{Interest, Port};
use crate::control::request::{Answer, Request};
use crate::control::wire::Kind;

/// How often who waits for its turn on a connection looks.
const TURN: Duration = Duration::from_micros(200);
/// How long a daemon may take to die.
const DEATH: Duration = Duration::from_millis(50);

/// What a process must know of a netmap file besides the descriptor.
#[derive(Clone, Debug)]
pub struct File {
    socket: PathBuf,
}

/// A port of a netmap file. Dropping it leaves the file, and what is bound to it, as it is.
pub struct Attached {
    /// Its rings.
    pub port: Port,
    /// The region's file, to be mapped as programs wish.
    pub region: OwnedFd,
}

/// A request, answered.
pub struct Told {
    /// 0, or netmap's errno.
    pub errno: i32,
    /// Why it was refused; empty when it was not, or the daemon had nothing to say.
    pub why: String,
    /// The request with what the daemon wrote into body and options, even if it was refused; `None` when it was no
    /// request at all.
    pub request: Option<Request>,
    /// Another daemon than the file's answered. This connection is to take the place of the file's.
    pub moved: Option<(OwnedFd, File)>,
    /// What REGISTER bound.
    pub attached: Option<Attached>,
}

impl File {
    /// Opens a file: a connection, close-on-exec, to the system's daemon where one serves this user, else to the user's
    /// own, which is started if none runs.
    ///
    /// # Errors
    /// No daemon, and none could be started.
    pub fn open() -> Result<(OwnedFd, File), Error> {
        process::count_forks().map_err(|e| Error::host("a netmap file", e))?;
        let Connection { fd, socket } = match client::connect_system() {
            Some(connection) => connection,
            None => client::connect()?,
        };
        Ok((fd, File { socket }))
    }

    /// Whether `fd`, which somebody else opened, is a netmap file: a connection to a daemon of this process's.
    pub fn behind(fd: BorrowedFd<'_>) -> Option<File> {
        let other_end = socket::peer_path(fd)?;
        let own = client::own_socket().ok();
        let known = [Some(PathBuf::from(SYSTEM_SOCKET)), own].into_iter().flatten().any(|path| path == other_end);
        if !known || process::count_forks().is_err() {
            return None;
        }
        Some(File { socket: other_end })
    }

    /// Sends a request and tells the answer. A refusal is no error here.
    ///
    /// # Errors
    /// The daemon has gone or makes no sense; what it bound cannot be mapped.
    pub fn request(&self, fd: BorrowedFd<'_>, request: &Request) -> Result<Told, Error> {
        let asked = request.name().unwrap_or_default();
        let reply = Claim::wait(fd).call(asked, Kind::Ctrl, &request.encode_wanted())?;
        let parent = asked.split(['{', '}']).next().unwrap_or_default();
        if reply.errno == errno::EACCES && self.socket == Path::new(SYSTEM_SOCKET) && !interface_exists(parent) {
            // The system's daemon does not serve this user so: his own does.
            let own = client::connect()?;
            if own.socket != self.socket {
                let file = File { socket: own.socket };
                let reply = client::call(own.fd.as_fd(), asked, Kind::Ctrl, &request.encode_wanted())?;
                let told = file.told(asked, request.header.nr_reqtype, reply)?;
                return Ok(Told { moved: Some((own.fd, file)), ..told });
            }
        }
        self.told(asked, request.header.nr_reqtype, reply).inspect_err(|_| {
            // A port that cannot be mapped is not kept.
            let _ = self.unbind(fd);
        })
    }

    /// Gives back the port that is bound to the file, and leaves the file open.
    ///
    /// # Errors
    /// The daemon has gone.
    pub fn unbind(&self, fd: BorrowedFd<'_>) -> Result<(), Error> {
        Claim::wait(fd).call("a netmap file", Kind::Unbind, &[]).map(|_| ())
    }

    /// The port that is bound to the file, if any.
    ///
    /// # Errors
    /// As [`File::request`].
    pub fn attach(&self, fd: BorrowedFd<'_>) -> Result<Option<Attached>, Error> {
        let reply = Claim::wait(fd).call("a netmap file", Kind::Attach, &[])?;
        if reply.errno == errno::ENXIO {
            return Ok(None);
        }
        let told = self.told("a netmap file", NETMAP_REQ_REGISTER, reply)?;
        match told.errno {
            0 => Ok(told.attached),
            errno => Err(Error::Refused { asked: "a netmap file".into(), errno, why: told.why }),
        }
    }

    fn told(&self, asked: &str, reqtype: u16, reply: Reply) -> Result<Told, Error> {
        let garbled = || Error::host(asked, io::Error::other("the daemon's answer makes no sense"));
        let Reply { errno, payload, fds, .. } = reply;
        let Some(Answer { request, why, bound }) = Answer::decode(&payload) else {
            // What is no request is answered by its errno alone.
            let told = Told { errno, why: String::new(), request: None, moved: None, attached: None };
            return if errno != 0 { Ok(told) } else { Err(garbled()) };
        };
        let attached = if errno == 0 && reqtype == NETMAP_REQ_REGISTER {
            let register = request.body_as::<NmreqRegister>().ok_or_else(garbled)?;
            let bound = Bound::decode(&bound).filter(|b| b.fds() == fds.len()).ok_or_else(garbled)?;
            let name = request.name().ok_or_else(garbled)?;
            Some(self.assemble(name, register, &bound, fds)?)
        } else {
            None
        };
        Ok(Told { errno, why, request: Some(request), moved: None, attached })
    }

    fn assemble(
        &self,
        name: &str,
        register: NmreqRegister,
        bound: &Bound,
        fds: Vec<OwnedFd>,
    ) -> Result<Attached, Error> {
        let host = |e| Error::host(name, e);
        unetmap_mem::register_publisher();
        let lease = lease::of_this_process(&self.socket)?;
        let region = fds.first().ok_or_else(|| host(io::ErrorKind::UnexpectedEof.into()))?.try_clone().map_err(host)?;
        // The daemon's end shows in the lease's connection, too.
        let connection = Connection { fd: lease.connection().map_err(host)?, socket: self.socket.clone() };
        let port = assemble(name, connection, lease, register, bound, fds)?;
        Ok(Attached { port, region })
    }
}

/// A process's turn to ask on a connection that a forked child, or who was sent the descriptor, may use at the same time:
/// of two that wait for their answers each might get the other's. An answer that was left behind by one that died is told
/// by its tag.
struct Claim<'a>(BorrowedFd<'a>);

impl Claim<'_> {
    /// Waits for it as long as an answer may take. Where the kernel has no such locks, or somebody keeps it, goes on
    /// without: then a process that mixes questions fails, and nobody else.
    fn wait(fd: BorrowedFd<'_>) -> Claim<'_> {
        let start = Instant::now();
        while socket::try_lock(fd).is_ok_and(|claimed| !claimed) && start.elapsed() < client::ANSWER_LIMIT {
            std::thread::sleep(TURN);
        }
        Claim(fd)
    }

    fn call(&self, asked: &str, kind: Kind, payload: &[u8]) -> Result<Reply, Error> {
        client::call(self.0, asked, kind, payload)
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        socket::unlock(self.0);
    }
}

impl Port {
    /// After one of [`Port::wait_fds`] became readable: takes the bells back and looks; whoever shares a ready ring is
    /// woken, too. Nothing ready: [`Port::arm`] is to be called before the next wait.
    ///
    /// # Errors
    /// As [`Port::txsync`].
    pub fn woken(&self, want: Interest) -> Result<Interest, Error> {
        self.silence(want);
        let ready = self.look(want, None)?;
        if !ready.is_none() {
            self.wake_sharers(want);
        }
        Ok(ready)
    }

    /// Has every sync look about every 100 ms, when it looks for the daemon, whether the file by which this port was opened has
    /// ended: whoever else has it can shut it down. Said once, by who opened it.
    pub fn watch_file(&self, ended: impl Fn() -> bool + Send + Sync + 'static) {
        let _ = self.file_ended.set(Box::new(ended));
    }

    /// The file's connection has hung up: every call fails from now on. The error says whether the daemon has gone, or
    /// somebody shut it down.
    pub fn shut_down(&self) -> Error {
        let asked = self.spec().to_owned();
        // The connections of a daemon that dies hang up one after the other.
        let start = Instant::now();
        let gone = || event::hung_up(self.connection.fd.as_fd());
        while !gone() && start.elapsed() < DEATH {
            std::thread::sleep(TURN);
        }
        let daemon = gone();
        self.is_shut.store(!daemon, Relaxed);
        self.mark_dead();
        if daemon { Error::DaemonGone { asked } } else { Error::FileEnded { asked } }
    }

    /// Syncs what a poll syncs, and tells what is ready; at once, whatever a poll would wait for.
    ///
    /// # Errors
    /// As [`Port::txsync`].
    pub fn glance(&self, want: Interest) -> Result<Interest, Error> {
        self.look(want, None)
    }

    /// As [`Port::arm`], but for whatever comes next, though something may be ready: syncs after it asked to be woken.
    ///
    /// # Errors
    /// As [`Port::txsync`].
    pub fn arm_for_more(&self, want: Interest) -> Result<(), Error> {
        self.silence(want);
        self.ask_for_wakeup(want);
        if want.rx() {
            self.rxsync()?;
        }
        if want.tx() {
            self.txsync()?;
        }
        Ok(())
    }

    /// [`Port::wait_fds`], one after the other, without allocation.
    pub fn each_wait_fd(&self, want: Interest, mut each: impl FnMut(BorrowedFd<'_>)) {
        each(self.connection.fd.as_fd());
        for (_, sleeper) in self.sleepers(want) {
            each(sleeper.bell().as_fd());
            sleeper.socket().into_iter().for_each(&mut each);
        }
    }
}

/// Whether this process has a port whose region lies in the file with that inode.
pub fn has_region(inode: u64) -> bool {
    crate::port::open::has_region(inode)
}

/// How often the line of processes that leads here has forked: differs between a process and its children.
pub fn forks() -> u32 {
    process::fork_count()
}

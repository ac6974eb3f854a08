//! Requests of the kernel, read one after the other and answered.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use unetmap::Error;
use unetmap::Port;
use unetmap::errno::{EAGAIN, EINVAL, EIO, EMFILE, ENODEV, ENOENT, ENOMEM, ENXIO, EOPNOTSUPP};
use unetmap_abi::{NIOCCONFIG, NIOCCTRL, NIOCGINFO, NIOCREGIF, NIOCRXSYNC, NIOCTXSYNC};
use unetmap_sys::fuse::{Backing, Device, FOLDER, From, Op, REQUEST_BYTES, Request};
use unetmap_sys::socket;

use super::file::{File, UNBOUND, interest, revents};
use super::hold::{Held, Holds};
use super::watch::Watch;
use super::{Desk, Job, NAME, control};
use crate::estate::Estate;

/// Nodes of users' files: this, and the user's number.
const FIRST_NODE: u64 = 1 << 32;
/// Files that a user may have open: each can hold up a thread.
const MOST_OF_A_USER: u32 = 512;
/// Threads that wait for the lead; more end.
const MOST_IDLE: usize = 2;
/// The file was somebody else's when it was looked up: look again.
const ESTALE: i32 = 116;
const ENOSYS: i32 = 38;
const EINTR: i32 = 4;
const ENOTTY: i32 = 25;

/// What the threads of a mount share.
pub(super) struct Shared {
    pub(super) number: u64,
    pub(super) dev: Device,
    pub(super) desk: Desk,
    pub(super) watch: Watch,
    pub(super) holds: Holds,
    /// Who holds it reads requests.
    lead: Mutex<()>,
    idle: AtomicUsize,
    files: Mutex<Files>,
    /// Long requests that are not answered.
    pending: Mutex<HashSet<u64>>,
    /// One end for the ports, which live as long as the other.
    pub(super) lifeline: OwnedFd,
    _other_end: OwnedFd,
}

#[derive(Default)]
struct Files {
    last: u64,
    open: HashMap<u64, Arc<File>>,
    users: HashMap<u32, User>,
}

/// A user who has files open.
struct User {
    estate: Arc<Estate>,
    backing: Backing,
    files: u32,
}

/// A poll.
struct Asks {
    unique: u64,
    tid: u32,
    kh: u64,
    events: u32,
    sleeps: bool,
}

/// A request that may take long.
pub(super) struct Long {
    pub(super) unique: u64,
    pub(super) from: From,
    pub(super) what: What,
}

/// Which.
pub(super) enum What {
    /// The first file of a user.
    Open,
    /// `NIOCCTRL`, `NIOCREGIF`, `NIOCGINFO`: the file, the request's number and what its argument points to.
    Control(Arc<File>, u32, Vec<u8>),
}

/// Serves a mount that agreed, until it is gone and all its files are closed.
pub(super) fn start(dev: Device, number: u64, desk: Desk) -> io::Result<Arc<Shared>> {
    let (mine, ports) = socket::pair()?;
    let shared = Arc::new(Shared {
        number,
        dev,
        desk,
        watch: Watch::new()?,
        holds: Holds::default(),
        lead: Mutex::new(()),
        idle: AtomicUsize::new(0),
        files: Mutex::default(),
        pending: Mutex::default(),
        lifeline: ports,
        _other_end: mine,
    });
    let watched = shared.clone();
    thread::Builder::new().name("node watch".into()).spawn(move || watched.watch.run(&watched))?;
    if let Err(e) = spawn(&shared) {
        shared.watch.end();
        return Err(e);
    }
    Ok(shared)
}

fn spawn(shared: &Arc<Shared>) -> io::Result<()> {
    let shared = shared.clone();
    thread::Builder::new().name("node".into()).spawn(move || work(&shared)).map(drop)
}

/// A thread: it leads until a request takes long, answers that, and leads again if it is needed.
fn work(shared: &Arc<Shared>) {
    let mut buf = vec![0; REQUEST_BYTES];
    while let Some(long) = shared.lead(&mut buf) {
        long.run(shared);
        if shared.idle.load(Ordering::Relaxed) >= MOST_IDLE {
            return;
        }
    }
}

impl Shared {
    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pending(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Open files, and those that have a port.
    pub(super) fn count(&self) -> (usize, usize) {
        let files = self.files();
        (files.open.len(), files.open.values().filter(|file| file.port().is_some()).count())
    }

    /// Reads requests and answers those that are quick, until one is not, for which another thread leads then. `None`: the
    /// mount is over.
    fn lead(self: &Arc<Shared>, buf: &mut [u8]) -> Option<Long> {
        self.idle.fetch_add(1, Ordering::Relaxed);
        let role = self.lead.lock().unwrap_or_else(PoisonError::into_inner);
        self.idle.fetch_sub(1, Ordering::Relaxed);
        loop {
            let bytes = match self.dev.read(buf) {
                Ok(bytes) => bytes,
                Err(e) if e.raw_os_error() == Some(ENODEV) => {
                    self.over();
                    return None;
                }
                // A signal, or a request that was taken back.
                Err(e) if matches!(e.raw_os_error(), Some(EINTR | ENOENT | EAGAIN)) => continue,
                Err(e) => {
                    tracing::error!("the node ends: {e}");
                    self.over();
                    return None;
                }
            };
            let Some(request) = Request::parse(bytes) else { continue };
            let Some(long) = self.quick(request) else { continue };
            self.pending().insert(long.unique);
            if self.idle.load(Ordering::Relaxed) == 0
                && let Err(e) = spawn(self)
            {
                tracing::warn!("no thread for a request: {e}");
                self.settle(long.unique, || drop(self.dev.refuse(long.unique, EAGAIN)));
                continue;
            }
            drop(role);
            return Some(long);
        }
    }

    /// Answers a request, or returns it because that may take long.
    fn quick(self: &Arc<Shared>, request: Request<'_>) -> Option<Long> {
        let Request { unique, node, from, op } = request;
        // An answer that nobody waits for any more is no harm.
        let _ = match op {
            Op::Poll { fh, kh, events, sleeps } => match self.file(fh) {
                Some(file) => self.poll(Asks { unique, tid: from.tid, kh, events, sleeps }, &file),
                None => self.dev.polled(unique, UNBOUND),
            },
            Op::Ioctl { fh, cmd, data, room } => match self.file(fh) {
                Some(file) => match self.ioctl(unique, &file, cmd, data, room) {
                    Ok(sent) => sent,
                    Err(what) => return Some(Long { unique, from, what }),
                },
                None => self.dev.controlled(unique, -EIO, &[]),
            },
            Op::Lookup(name) => match node == FOLDER && name == NAME {
                // Not for a moment longer: the next to ask may be another user.
                true => self.dev.found(unique, FIRST_NODE | u64::from(from.uid)),
                false => self.dev.refuse(unique, ENOENT),
            },
            Op::Attributes => self.dev.attributes(unique, node),
            Op::Open { folder: true } => self.dev.opened(unique, 0, None),
            Op::Open { folder: false } if node != FIRST_NODE | u64::from(from.uid) => self.dev.refuse(unique, ESTALE),
            Op::Open { folder: false } => match self.open_again(unique, from.uid) {
                true => Ok(()),
                false => return Some(Long { unique, from, what: What::Open }),
            },
            Op::Release { fh } => {
                self.release(fh);
                self.dev.answer(unique, &[])
            }
            Op::Interrupt(other) => {
                match self.holds.take(other) {
                    // So that its program learns of the signal.
                    Some(held) => self.dev.polled(held.unique, 0),
                    None if self.pending().contains(&other) => {
                        self.watch.hurry(other);
                        Ok(())
                    }
                    None => Ok(()),
                }
            }
            Op::Nothing => self.dev.answer(unique, &[]),
            Op::Transfer => self.dev.refuse(unique, EINVAL),
            Op::Forget => Ok(()),
            Op::Init { .. } | Op::Other(_) => self.dev.refuse(unique, ENOSYS),
        };
        None
    }

    fn file(&self, fh: u64) -> Option<Arc<File>> {
        self.files().open.get(&fh).cloned()
    }

    /// Answers a poll, unless it is held.
    fn poll(&self, asks: Asks, file: &Arc<File>) -> io::Result<()> {
        let Some(port) = file.port() else { return self.dev.polled(asks.unique, UNBOUND) };
        let Asks { unique, tid, kh, events, sleeps } = asks;
        let (want, alone) = (interest(events), self.holds.again(tid, file));
        let ready = port.glance(want);
        let sleeps_on = sleeps && !want.is_none() && matches!(ready, Ok(ready) if ready.is_none());
        let streams = || file.lingers_since().is_some() && file.worth.ask();
        if sleeps_on && alone && streams() && self.hold(Held { unique, file: file.clone(), kh, want, events }) {
            self.moved(file);
            return Ok(());
        }
        let ready = if sleeps_on { self.watch.arm(file, kh, want) } else { ready };
        let lingers = sleeps && matches!(ready, Ok(ready) if !ready.is_none());
        let sent = self.dev.polled(unique, revents(events, ready));
        if lingers {
            self.watch.linger(file, kh, want);
        }
        self.moved(file);
        sent
    }

    /// Holds a poll; `false` if there are enough.
    fn hold(&self, poll: Held) -> bool {
        let kept = self.holds.keep(poll);
        if kept == Some(true) {
            self.watch.tick();
        }
        kept.is_some()
    }

    /// A request may have moved rings of the file's peers: answers their polls that are held.
    fn moved(&self, file: &File) {
        self.holds.look(file, |held, ready| {
            let lingers = ready.is_ok();
            let _ = self.dev.polled(held.unique, revents(held.events, ready));
            if lingers {
                self.watch.linger(&held.file, held.kh, held.want);
            }
        });
    }

    /// The result of an ioctl, or what is to be done for it.
    fn ioctl(&self, unique: u64, file: &Arc<File>, cmd: u32, data: &[u8], room: u32) -> Result<io::Result<()>, What> {
        let result = match u64::from(cmd) {
            NIOCTXSYNC => -sync(file, Port::txsync),
            NIOCRXSYNC => -sync(file, Port::rxsync),
            NIOCCTRL | NIOCREGIF | NIOCGINFO if data.len() == room as usize => {
                return Err(What::Control(file.clone(), cmd, data.to_vec()));
            }
            NIOCCONFIG => -EOPNOTSUPP,
            _ => -ENOTTY,
        };
        let sent = self.dev.controlled(unique, result, &[]);
        self.moved(file);
        Ok(sent)
    }

    /// Opens a file of a user who has one open already.
    fn open_again(&self, unique: u64, uid: u32) -> bool {
        let mut files = self.files();
        let Files { last, open, users } = &mut *files;
        let Some(user) = users.get_mut(&uid) else { return false };
        if user.files >= MOST_OF_A_USER {
            let _ = self.dev.refuse(unique, EMFILE);
            return true;
        }
        *last += 1;
        open.insert(*last, Arc::new(File::new(*last, uid, user.estate.clone())));
        user.files += 1;
        if self.dev.opened(unique, *last, Some(&user.backing)).is_err() {
            // The mount is over; with it everything is closed.
            open.remove(last);
            user.files -= 1;
        }
        true
    }

    /// Opens the first file of a user.
    fn open_first(&self, unique: u64, uid: u32) {
        let made = self.desk.ask(|reply| Job::Estate(uid, reply)).unwrap_or(Err(EIO));
        let made = made.and_then(|estate| match self.dev.pass(estate.as_fd()) {
            Ok(backing) => Ok(User { estate, backing, files: 0 }),
            Err(e) => {
                tracing::warn!("a user's memory cannot be shown: {e}");
                Err(e.raw_os_error().unwrap_or(ENOMEM))
            }
        });
        match made {
            Err(errno) => drop(self.dev.refuse(unique, errno)),
            Ok(user) => {
                let mut files = self.files();
                match files.users.contains_key(&uid) {
                    true => self.dev.forget(user.backing),
                    false => drop(files.users.insert(uid, user)),
                }
                drop(files);
                if !self.open_again(unique, uid) {
                    // The other's file that we met here is closed by now: once more.
                    let _ = self.dev.refuse(unique, ESTALE);
                }
            }
        }
    }

    fn release(&self, fh: u64) {
        let mut files = self.files();
        let Some(file) = files.open.remove(&fh) else { return };
        if let Some(user) = files.users.get_mut(&file.uid) {
            user.files -= 1;
            if user.files == 0
                && let Some(user) = files.users.remove(&file.uid)
            {
                self.dev.forget(user.backing);
            }
        }
        drop(files);
        self.holds.forget(&file);
        self.watch.forget(&file);
        file.close(&self.desk);
    }

    /// Answers a long request, unless it is answered already.
    pub(super) fn settle(&self, unique: u64, answer: impl FnOnce()) {
        if self.pending().remove(&unique) {
            answer();
        }
    }

    /// Whether anybody still waits for the answer.
    pub(super) fn is_pending(&self, unique: u64) -> bool {
        self.pending().contains(&unique)
    }

    /// It took too long after a signal came.
    pub(super) fn interrupt(&self, unique: u64) {
        self.settle(unique, || drop(self.dev.refuse(unique, EINTR)));
    }

    /// No request comes any more.
    fn over(&self) {
        let open: Vec<u64> = self.files().open.keys().copied().collect();
        open.into_iter().for_each(|fh| self.release(fh));
        self.watch.end();
        self.desk.put(Job::Over(self.number));
    }
}

impl Long {
    fn run(self, shared: &Shared) {
        let unique = self.unique;
        match self.what {
            What::Open => shared.settle(unique, || shared.open_first(unique, self.from.uid)),
            What::Control(ref file, ..) => {
                let file = file.clone();
                let mut turn = file.begin(self);
                while let Some(long) = turn {
                    if shared.is_pending(long.unique) {
                        control::answer(shared, long);
                    }
                    turn = file.next();
                }
            }
        }
    }
}

/// 0, or an errno.
fn sync(file: &File, sync: impl Fn(&Port) -> Result<(), Error>) -> i32 {
    let Some(port) = file.port() else { return ENXIO };
    match sync(port) {
        // As the original: the ring was set back, and only poll tells.
        Ok(()) | Err(Error::BadPointers { .. }) => 0,
        Err(e) => e.errno(),
    }
}

//! Requests of the kernel, read one after the other and answered.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use unetmap_abi::{NIOCCONFIG, NIOCCTRL, NIOCGINFO, NIOCREGIF, NIOCRXSYNC, NIOCTXSYNC};
use unetmap_core::Error;
use unetmap_core::Port;
use unetmap_core::errno::{EAGAIN, EINVAL, EIO, EMFILE, ENODEV, ENOENT, ENOMEM, ENXIO, EOPNOTSUPP};
use unetmap_sys::fuse::{Backing, Device, Op, REQUEST_BYTES, Request, Requester};
use unetmap_sys::socket;

use super::file::{File, UNBOUND, interest, revents};
use super::follow::Follow;
use super::hold::{Held, Holds, await_awake, is_none};
use super::watch::Watch;
use super::way::{Ticket, Way, file_of, kind};
use super::{Desk, Job, NAME, control};
use crate::user_arena::UserArena;

/// Files that a user may have open: each can hold up a thread.
const MOST_OF_A_USER: u32 = 512;
/// Threads that wait for the lead of a way; more end.
const MOST_IDLE: usize = 2;
/// How long a request waits at most until those before it that came by other ways were read.
const CATCH_UP: Duration = Duration::from_secs(1);
/// The file was somebody else's when it was looked up: look again.
const ESTALE: i32 = 116;
const ENOSYS: i32 = 38;
const EINTR: i32 = 4;
const ENOTTY: i32 = 25;

/// What the threads of a node share.
pub(super) struct Shared {
    pub(super) number: u64,
    pub(super) desk: Desk,
    pub(super) watch: Watch,
    pub(super) holds: Holds,
    ways: Mutex<Ways>,
    /// Nothing of it is open any more, nor will be.
    over: AtomicBool,
    files: Mutex<Files>,
    /// Long requests that are not answered, by their tickets.
    pending: Mutex<HashSet<(usize, u64)>>,
    /// Marks in the ways' queues, and who is told when they are met.
    marks: Mutex<Marks>,
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

/// The ways to it that are not over.
#[derive(Default)]
struct Ways {
    all: Vec<Arc<Way>>,
    /// The thread that was led to a way last, and to which, until a file is opened by that.
    led: Option<(u32, usize)>,
}

#[derive(Default)]
struct Marks {
    last: u64,
    waiting: HashMap<u64, SyncSender<()>>,
}

/// A user who has files open.
struct User {
    arena: Arc<UserArena>,
    /// That memory, as each way's mount knows it; those by whose he opened a file.
    backings: HashMap<usize, Backing>,
    files: u32,
}

/// A poll.
struct Asks {
    ticket: Ticket,
    tid: u32,
    kh: u64,
    events: u32,
    sleeps: bool,
    /// Whether this thread stays at the CPU of whoever polls.
    near: bool,
}

/// A request that may take long.
pub(super) struct Long {
    pub(super) ticket: Ticket,
    pub(super) from: Requester,
    pub(super) what: What,
}

/// Which.
pub(super) enum What {
    /// A file of a user who has none open, or too many.
    Open,
    /// `NIOCCTRL`, `NIOCREGIF`, `NIOCGINFO`: the file, the request's number and what its argument points to.
    Control(Arc<File>, u32, Vec<u8>),
}

/// Serves a mount that agreed, as the first way, until that and all others are gone and all files are closed.
pub(super) fn start(dev: Device, number: u64, desk: Desk) -> io::Result<Arc<Shared>> {
    let (mine, ports) = socket::pair()?;
    let shared = Arc::new(Shared {
        number,
        desk,
        watch: Watch::new()?,
        holds: Holds::default(),
        ways: Mutex::default(),
        over: AtomicBool::new(false),
        files: Mutex::default(),
        pending: Mutex::default(),
        marks: Mutex::default(),
        lifeline: ports,
        _other_end: mine,
    });
    let watched = shared.clone();
    thread::Builder::new().name("node watch".into()).spawn(move || watched.watch.run(&watched))?;
    if let Err(e) = shared.serve(0, dev) {
        shared.watch.end();
        return Err(e);
    }
    Ok(shared)
}

fn spawn(shared: &Arc<Shared>, way: &Arc<Way>) -> io::Result<()> {
    let (shared, way) = (shared.clone(), way.clone());
    thread::Builder::new().name(format!("node {}", way.number)).spawn(move || work(&shared, &way)).map(drop)
}

/// A thread: it leads until a request takes long, answers that, and leads again if it is needed.
fn work(shared: &Arc<Shared>, way: &Arc<Way>) {
    let mut buf = vec![0; REQUEST_BYTES];
    let mut follow = Follow::new();
    while let Some(long) = shared.lead(way, &mut buf, &mut follow) {
        follow.stay(None);
        long.run(shared);
        if way.idle.load(Ordering::Relaxed) >= MOST_IDLE {
            return;
        }
    }
}

impl Shared {
    fn files(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ways(&self) -> MutexGuard<'_, Ways> {
        self.ways.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pending(&self) -> MutexGuard<'_, HashSet<(usize, u64)>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn marks(&self) -> MutexGuard<'_, Marks> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until what came by other ways before now was read: a program that closes a file, and then asks for what it
    /// held by another, is not told that it is busy.
    fn catch_up(&self, way: &Way) {
        // A closed file is open here until that is read. Any of a way's files will do.
        let mut others: Vec<(Arc<Way>, u32)> = Vec::new();
        for file in self.files().open.values().filter(|file| file.way.number != way.number) {
            if !others.iter().any(|(way, uid)| way.number == file.way.number && *uid == file.uid) {
                others.push((file.way.clone(), file.uid));
            }
        }
        let (met, all_met) = sync_channel(others.len());
        let mut numbers = Vec::with_capacity(others.len());
        for (other, uid) in others {
            let mut marks = self.marks();
            marks.last += 1;
            let number = marks.last;
            marks.waiting.insert(number, met.clone());
            drop(marks);
            match other.dev.queue_marker(number, file_of(uid)) {
                Ok(()) => numbers.push(number),
                // It was read meanwhile.
                Err(_) => drop(self.marks().waiting.remove(&number)),
            }
        }
        let end = Instant::now() + CATCH_UP;
        for _ in &numbers {
            let _ = all_met.recv_timeout(end.saturating_duration_since(Instant::now()));
        }
        let mut marks = self.marks();
        numbers.iter().for_each(|number| drop(marks.waiting.remove(number)));
    }

    /// Open files, and those that have a port.
    pub(super) fn count(&self) -> (usize, usize) {
        let files = self.files();
        (files.open.len(), files.open.values().filter(|file| file.port().is_some()).count())
    }

    /// Serves one more mount that agreed.
    pub(super) fn serve(self: &Arc<Shared>, number: usize, dev: Device) -> io::Result<()> {
        let way = Way::new(number, dev);
        self.ways().all.push(way.clone());
        spawn(self, &way).inspect_err(|_| self.ways().all.retain(|other| other.number != number))
    }

    /// Reads requests and answers those that are quick, until one is not, for which another thread leads then. `None`: the
    /// way is over.
    fn lead(self: &Arc<Shared>, way: &Arc<Way>, buf: &mut [u8], follow: &mut Follow) -> Option<Long> {
        let role = way.lead();
        loop {
            let bytes = match way.dev.read(buf) {
                Ok(bytes) => bytes,
                // A signal, or a request that was taken back.
                Err(e) if matches!(e.raw_os_error(), Some(EINTR | ENOENT | EAGAIN)) => continue,
                Err(e) => {
                    if e.raw_os_error() != Some(ENODEV) {
                        tracing::error!("the node ends: {e}");
                    }
                    self.ended(way);
                    return None;
                }
            };
            let Some(request) = Request::parse(bytes) else { continue };
            // Who polls and syncs makes the next such request soon.
            let of_a_stream = matches!(request.op, Op::Poll { .. } | Op::Ioctl { .. });
            let tid = request.from.tid;
            let Some(long) = self.quick(way, request, follow.stays()) else {
                if of_a_stream {
                    follow.asked_by(tid);
                }
                continue;
            };
            self.pending().insert(long.ticket.key());
            if way.idle.load(Ordering::Relaxed) == 0
                && let Err(e) = spawn(self, way)
            {
                tracing::warn!("no thread for a request: {e}");
                self.settle(&long.ticket, || drop(way.dev.reply_error(long.ticket.unique, EAGAIN)));
                continue;
            }
            drop(role);
            return Some(long);
        }
    }

    /// Answers a request, or returns it because that may take long. `near`: this thread stays where it came from.
    fn quick(&self, way: &Arc<Way>, request: Request<'_>, near: bool) -> Option<Long> {
        let Request { unique, node, from, op } = request;
        let (dev, ticket) = (&way.dev, || Ticket { way: way.clone(), unique });
        // An answer that nobody waits for any more is no harm.
        let _ = match op {
            Op::Poll { fh, kh, events, sleeps } => match self.file(fh) {
                Some(file) => self.poll(Asks { ticket: ticket(), tid: from.tid, kh, events, sleeps, near }, &file),
                None => dev.reply_poll(unique, UNBOUND),
            },
            Op::Ioctl { fh, cmd, data, room } => match self.file(fh) {
                Some(file) => match self.ioctl(unique, &file, cmd, data, room) {
                    Ok(sent) => sent,
                    Err(what) => return Some(Long { ticket: ticket(), from, what }),
                },
                None => dev.reply_ioctl(unique, -EIO, &[]),
            },
            Op::Lookup(name) => match way.find(node, name.as_bytes(), from.uid) {
                Some((node, kind)) => dev.reply_entry(unique, node, kind),
                None => dev.reply_error(unique, ENOENT),
            },
            Op::Readlink => dev.reply(unique, format!("{}/{NAME}", self.lead_to_way(from.tid)).as_bytes()),
            Op::GetSetAttr => dev.reply_attr(unique, node, kind(node)),
            Op::Open { directory: true } => dev.reply_open(unique, 0, None),
            Op::Open { directory: false } if node != file_of(from.uid) => dev.reply_error(unique, ESTALE),
            Op::Open { directory: false } => match self.open_again(&ticket(), from.uid, false) {
                true => Ok(()),
                false => return Some(Long { ticket: ticket(), from, what: What::Open }),
            },
            Op::Release { fh } => {
                self.release(fh);
                dev.reply(unique, &[])
            }
            Op::Interrupt(unique) => {
                let ticket = Ticket { way: way.clone(), unique };
                match self.holds.take(&ticket) {
                    // So that its program learns of the signal.
                    Some(_) => dev.reply_poll(unique, 0),
                    None if self.is_pending(&ticket) => {
                        self.watch.hurry(ticket);
                        Ok(())
                    }
                    None => Ok(()),
                }
            }
            Op::ReadOrReleaseDir => dev.reply(unique, &[]),
            Op::ReadWrite => dev.reply_error(unique, EINVAL),
            Op::NotifyReply => {
                if let Some(met) = self.marks().waiting.remove(&unique) {
                    let _ = met.try_send(());
                }
                Ok(())
            }
            Op::Forget => Ok(()),
            Op::Init { .. } | Op::Other(_) => dev.reply_error(unique, ENOSYS),
        };
        None
    }

    /// The way for a thread that comes: one by which the fewest files are open.
    fn lead_to_way(&self, tid: u32) -> usize {
        let mut ways = self.ways();
        let led = ways.led;
        let files = |way: &&Arc<Way>| {
            let on_its_way = led.is_some_and(|(other, number)| other != tid && number == way.number);
            way.files.load(Ordering::Relaxed) + u32::from(on_its_way)
        };
        let number = ways.all.iter().min_by_key(files).map_or(0, |way| way.number);
        ways.led = Some((tid, number));
        number
    }

    fn file(&self, fh: u64) -> Option<Arc<File>> {
        self.files().open.get(&fh).cloned()
    }

    /// Answers a poll, unless it is held.
    fn poll(&self, asks: Asks, file: &Arc<File>) -> io::Result<()> {
        let Asks { ticket, tid, kh, events, sleeps, near } = asks;
        let Some(port) = file.port() else { return ticket.way.dev.reply_poll(ticket.unique, UNBOUND) };
        let (want, alone) = (interest(events), self.holds.again(tid, file));
        let mut ready = port.poll_now(want);
        let sleeps_on = sleeps && !want.is_none();
        if sleeps_on && is_none(&ready) && alone && file.lingers_since().is_some() {
            // Nobody else's request waits while this thread does.
            if near && ticket.way.files.load(Ordering::Relaxed) == 1 && file.awaiting.ask() {
                self.moved(file);
                ready = await_awake(file, port, want);
            }
            if is_none(&ready) && file.holding.ask() {
                let poll = Held { ticket: ticket.clone(), file: file.clone(), kh, want, events };
                if self.hold(poll) {
                    self.moved(file);
                    return Ok(());
                }
            }
        }
        if sleeps_on && is_none(&ready) {
            ready = self.watch.arm(file, kh, want);
        }
        let lingers = sleeps && matches!(ready, Ok(ready) if !ready.is_none());
        let sent = ticket.way.dev.reply_poll(ticket.unique, revents(events, ready));
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
        while let Some((held, ready)) = self.holds.look(file) {
            let lingers = ready.is_ok();
            let _ = held.answer(ready);
            if lingers {
                self.watch.linger(&held.file, held.kh, held.want);
            }
        }
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
        let sent = file.way.dev.reply_ioctl(unique, result, &[]);
        self.moved(file);
        Ok(sent)
    }

    /// Opens a file of a user who has one open already. `false`: he has none, or so many that it is to be seen first
    /// whether some of them are closed, unless this is `sure`.
    fn open_again(&self, ticket: &Ticket, uid: u32, sure: bool) -> bool {
        let Ticket { way, unique } = ticket;
        let mut files = self.files();
        let Files { last, open, users } = &mut *files;
        let Some(user) = users.get_mut(&uid) else { return false };
        if user.files >= MOST_OF_A_USER && !sure {
            return false;
        }
        if user.files >= MOST_OF_A_USER {
            let _ = way.dev.reply_error(*unique, EMFILE);
            return true;
        }
        let backing = match user.backings.entry(way.number) {
            Entry::Occupied(known) => Ok(&*known.into_mut()),
            Entry::Vacant(place) => way.dev.open_backing(user.arena.as_fd()).map(|backing| &*place.insert(backing)),
        };
        match backing {
            Ok(backing) => {
                *last += 1;
                open.insert(*last, Arc::new(File::new(*last, uid, way.clone(), user.arena.clone())));
                user.files += 1;
                way.files.fetch_add(1, Ordering::Relaxed);
                self.ways().led.take_if(|(_, number)| *number == way.number);
                if way.dev.reply_open(*unique, *last, Some(backing)).is_err() {
                    // The mount is over; with it everything is closed.
                    open.remove(last);
                    user.files -= 1;
                    way.files.fetch_sub(1, Ordering::Relaxed);
                }
            }
            Err(e) => {
                tracing::warn!("a user's memory cannot be shown: {e}");
                let _ = way.dev.reply_error(*unique, e.raw_os_error().unwrap_or(ENOMEM));
            }
        }
        self.leave(&mut files, uid);
        true
    }

    /// Forgets a user without files.
    fn leave(&self, files: &mut Files, uid: u32) {
        let Entry::Occupied(user) = files.users.entry(uid) else { return };
        if user.get().files > 0 {
            return;
        }
        let ways = self.ways();
        for (number, backing) in user.remove().backings {
            // What a way that is over knew is forgotten.
            if let Some(way) = ways.all.iter().find(|way| way.number == number) {
                way.dev.close_backing(backing);
            }
        }
    }

    /// Opens a file of a user, who may have none open.
    fn open_slowly(&self, ticket: &Ticket, uid: u32) {
        let Ticket { way, unique } = ticket;
        self.catch_up(way);
        match self.desk.ask(|reply| Job::UserArena(uid, reply)).unwrap_or(Err(EIO)) {
            Err(errno) => drop(way.dev.reply_error(*unique, errno)),
            Ok(arena) => {
                // By another way he may have opened one meanwhile.
                let user = || User { arena, backings: HashMap::new(), files: 0 };
                self.files().users.entry(uid).or_insert_with(user);
                if !self.open_again(ticket, uid, true) {
                    // That one was the first, and is closed by now: once more.
                    let _ = way.dev.reply_error(*unique, ESTALE);
                }
            }
        }
    }

    fn release(&self, fh: u64) {
        let Some(file) = self.file(fh) else { return };
        self.holds.forget(&file);
        self.watch.forget(&file);
        // Before it is open here no more (see `catch_up`).
        file.close(&self.desk);
        let mut files = self.files();
        files.open.remove(&fh);
        file.way.files.fetch_sub(1, Ordering::Relaxed);
        if let Some(user) = files.users.get_mut(&file.uid) {
            user.files -= 1;
        }
        self.leave(&mut files, file.uid);
    }

    /// Answers a long request, unless it is answered already.
    pub(super) fn settle(&self, ticket: &Ticket, answer: impl FnOnce()) {
        if self.pending().remove(&ticket.key()) {
            answer();
        }
    }

    /// Whether anybody still waits for the answer.
    pub(super) fn is_pending(&self, ticket: &Ticket) -> bool {
        self.pending().contains(&ticket.key())
    }

    /// It took too long after a signal came.
    pub(super) fn interrupt(&self, ticket: &Ticket) {
        self.settle(ticket, || drop(ticket.way.dev.reply_error(ticket.unique, EINTR)));
    }

    /// Whether nothing of it is open any more.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// No request comes by that way any more.
    fn ended(&self, way: &Way) {
        let its = |file: &&Arc<File>| file.way.number == way.number;
        let open: Vec<u64> = self.files().open.values().filter(its).map(|file| file.fh).collect();
        open.into_iter().for_each(|fh| self.release(fh));
        let mut ways = self.ways();
        ways.all.retain(|other| other.number != way.number);
        if ways.all.is_empty() {
            self.over.store(true, Ordering::Release);
            self.watch.end();
            self.desk.put(Job::Over(self.number));
        }
    }
}

impl Long {
    fn run(self, shared: &Shared) {
        let ticket = self.ticket.clone();
        match self.what {
            What::Open => shared.settle(&ticket, || shared.open_slowly(&ticket, self.from.uid)),
            What::Control(ref file, ..) => {
                let file = file.clone();
                let mut turn = file.begin(self);
                while let Some(long) = turn {
                    shared.catch_up(&long.ticket.way);
                    if shared.is_pending(&long.ticket) {
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

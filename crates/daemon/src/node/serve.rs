// SPDX-License-Identifier: BSD-2-Clause
//! Reading the kernel's FUSE requests, and answering them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use unetmap_abi::{NIOCCONFIG, NIOCCTRL, NIOCGINFO, NIOCREGIF, NIOCRXSYNC, NIOCTXSYNC};
use unetmap_core::Error;
use unetmap_core::errno::{EAGAIN, EINVAL, EIO, EMFILE, ENODEV, ENOENT, ENOMEM, ENXIO, EOPNOTSUPP};
use unetmap_core::{Port, defer_program_data};
use unetmap_sys::fuse::{Backing, Device, Op, REQUEST_BYTES, Request};
use unetmap_sys::socket;

use super::affinity::RequesterAffinity;
use super::file::{File, Poll, SlowOp, SlowRequest, UNBOUND, interest, revents};
use super::held_polls::{HeldPoll, HeldPolls, is_none, spin_until_ready};
use super::jobs::{Job, JobQueue};
use super::memory::MemoryHelpers;
use super::mount::{Mount, RequestId, file_of, kind};
use super::shared::{Files, Shared, User, files_of_user};
use super::waker::PollWaker;
use crate::broker::NODE_NAME as NAME;
use crate::limits;
use crate::privileged;
use crate::threads;
use crate::threads::lock;
use crate::tuning::node::{CATCH_UP_LIMIT, MAX_IDLE_THREADS};

/// The kernel looks the file up again: another user looked it up first.
const ESTALE: i32 = 116;
const ENOSYS: i32 = 38;
pub(super) const EINTR: i32 = 4;
const ENOTTY: i32 = 25;

/// Serves the first mount, until all mounts have ended and all files are closed.
pub(super) fn start(dev: Device, number: u64, jobs: JobQueue) -> io::Result<Arc<Shared>> {
    let shared = without_threads(number, jobs)?;
    shared.helpers.prepare()?;
    start_waker(&shared)?;
    if let Err(e) = shared.serve(0, dev) {
        shared.waker.end();
        return Err(e);
    }
    Ok(shared)
}

/// A node that serves no mount yet.
pub(super) fn without_threads(number: u64, jobs: JobQueue) -> io::Result<Arc<Shared>> {
    let (mine, ports) = socket::pair()?;
    Ok(Arc::new(Shared {
        number,
        jobs,
        waker: PollWaker::new()?,
        held_polls: HeldPolls::default(),
        helpers: MemoryHelpers::default(),
        mounts: Mutex::default(),
        over: AtomicBool::new(false),
        files: Mutex::default(),
        pending: Mutex::default(),
        is_paused: AtomicBool::new(false),
        is_draining: AtomicBool::new(false),
        threads: AtomicUsize::new(0),
        slow: AtomicUsize::new(0),
        deferred: Mutex::default(),
        marks: Mutex::default(),
        lifeline: ports,
        _other_end: mine,
    }))
}

/// Starts the thread that wakes programs.
pub(super) fn start_waker(shared: &Arc<Shared>) -> io::Result<()> {
    let watched = Running::new(shared);
    let run = move || watched.0.waker.run(&watched.0.held_polls, |id| watched.0.interrupt(id));
    threads::start("node waker", run).map(drop)
}

/// Starts a thread that answers requests of a mount.
pub(super) fn spawn(shared: &Arc<Shared>, mount: &Arc<Mount>) -> io::Result<()> {
    let (running, mount) = (Running::new(shared), mount.clone());
    threads::start(format!("node {}", mount.number), move || run_thread(&running.0, &mount)).map(drop)
}

/// A thread of the node that runs, or is to run.
pub(super) struct Running(pub(super) Arc<Shared>);

impl Running {
    pub(super) fn new(shared: &Arc<Shared>) -> Running {
        shared.threads.fetch_add(1, Ordering::Relaxed);
        Running(shared.clone())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.threads.fetch_sub(1, Ordering::Release);
        if self.0.is_paused() {
            self.0.jobs.notify();
        }
    }
}

/// Runs a thread: it reads requests until one may take long, answers that one, and reads again if it is needed.
fn run_thread(shared: &Arc<Shared>, mount: &Arc<Mount>) {
    defer_program_data();
    let mut buf = vec![0; REQUEST_BYTES];
    let mut affinity = RequesterAffinity::new();
    while let Some(request) = shared.read_requests(mount, &mut buf, &mut affinity) {
        affinity.pin(None);
        shared.slow.fetch_add(1, Ordering::AcqRel);
        request.run(shared);
        shared.slow.fetch_sub(1, Ordering::AcqRel);
        if mount.idle.load(Ordering::Relaxed) >= MAX_IDLE_THREADS {
            return;
        }
    }
}

impl Shared {
    /// Waits until earlier requests of other mounts were read: a program that closes a file, and then requests through
    /// another mount what the file had, must not find it busy. Returns `false` if nobody reads them now.
    pub(super) fn catch_up(&self, mount: &Mount) -> bool {
        // A closed file counts as open until its RELEASE is read. Any file of a mount serves for the marker.
        let mut others: Vec<(Arc<Mount>, u32)> = Vec::new();
        for file in lock(&self.files).open.values().filter(|file| file.mount.number != mount.number) {
            if !others.iter().any(|(mount, uid)| mount.number == file.mount.number && *uid == file.uid) {
                others.push((file.mount.clone(), file.uid));
            }
        }
        let (met, all_met) = sync_channel(others.len());
        let mut numbers = Vec::with_capacity(others.len());
        for (other, uid) in others {
            let mut marks = lock(&self.marks);
            // Under the lock: those that wait when a pause begins are told so.
            if self.is_paused() {
                return false;
            }
            marks.last += 1;
            let number = marks.last;
            marks.waiting.insert(number, met.clone());
            drop(marks);
            match other.dev.queue_marker(number, file_of(uid)) {
                Ok(()) => numbers.push(number),
                // The file was released meanwhile.
                Err(_) => drop(lock(&self.marks).waiting.remove(&number)),
            }
        }
        drop(met);
        let end = Instant::now() + CATCH_UP_LIMIT;
        for _ in &numbers {
            let _ = all_met.recv_timeout(end.saturating_duration_since(Instant::now()));
        }
        let mut marks = lock(&self.marks);
        numbers.iter().for_each(|number| drop(marks.waiting.remove(number)));
        !self.is_paused()
    }

    /// The number of open files, and of those with a port.
    pub(super) fn count(&self) -> (usize, usize) {
        let files = lock(&self.files);
        (files.open.len(), files.open.values().filter(|file| file.port().is_some()).count())
    }

    /// Serves another mount.
    pub(super) fn serve(self: &Arc<Shared>, number: usize, dev: Device) -> io::Result<()> {
        let mount = Mount::new(number, dev);
        lock(&self.mounts).all.push(mount.clone());
        spawn(self, &mount).inspect_err(|_| lock(&self.mounts).all.retain(|other| other.number != number))
    }

    /// Reads requests and answers quick ones, until one may take long, which is returned; another thread becomes the
    /// reader then. `None`: the mount has ended, or the threads are to end.
    fn read_requests(
        self: &Arc<Shared>,
        mount: &Arc<Mount>,
        buf: &mut [u8],
        affinity: &mut RequesterAffinity,
    ) -> Option<SlowRequest> {
        let reader = mount.become_reader();
        let mut deferred = self.take_deferred(mount);
        loop {
            if let Some(slow) = deferred.take() {
                if self.has_reader(mount, &slow.id) {
                    drop(reader);
                    return Some(slow);
                }
                deferred = self.take_deferred(mount);
                continue;
            }
            if self.is_paused() {
                return None;
            }
            let bytes = match mount.dev.read(buf) {
                Ok(bytes) => bytes,
                // A signal, or a request that was cancelled.
                Err(e) if matches!(e.raw_os_error(), Some(EINTR | ENOENT | EAGAIN)) => continue,
                Err(e) => {
                    if e.raw_os_error() != Some(ENODEV) {
                        tracing::error!("a mount of the node ends: {e}");
                    }
                    self.mount_ended(mount);
                    return None;
                }
            };
            let Some(request) = Request::parse(bytes) else { continue };
            // A program that polls and syncs makes the next such request soon.
            let is_stream = matches!(request.op, Op::Poll { .. } | Op::Ioctl { .. });
            let tid = request.from.tid;
            let Some(slow) = self.answer_quick(mount, request, affinity.is_pinned()) else {
                if is_stream {
                    affinity.request_from(tid);
                }
                continue;
            };
            lock(&self.pending).insert(slow.id.key());
            if self.has_reader(mount, &slow.id) {
                drop(reader);
                return Some(slow);
            }
        }
    }

    /// Whether another thread becomes the reader while this one answers a request. Otherwise refuses the request.
    fn has_reader(self: &Arc<Shared>, mount: &Arc<Mount>, id: &RequestId) -> bool {
        if mount.idle.load(Ordering::Relaxed) > 0 {
            return true;
        }
        let spawned = spawn(self, mount);
        if let Err(e) = &spawned {
            tracing::warn!("no thread for a request: {e}");
            self.finish(id, || drop(mount.dev.reply_error(id.unique, EAGAIN)));
        }
        spawned.is_ok()
    }

    /// Answers a request, or returns it because that may take long. `near`: this thread is pinned to the CPU of the
    /// requests.
    fn answer_quick(&self, mount: &Arc<Mount>, request: Request<'_>, near: bool) -> Option<SlowRequest> {
        let Request { unique, node, from, op } = request;
        let (dev, id) = (&mount.dev, || RequestId { mount: mount.clone(), unique });
        // An answer to a request that was cancelled meanwhile is ignored by the kernel.
        let _ = match op {
            Op::Poll { fh, kh, events, sleeps } => match self.file(fh) {
                Some(file) => {
                    let poll = Poll { kh, events, sleeps };
                    if has_indirect_data(&file) {
                        return Some(SlowRequest { id: id(), from, op: SlowOp::Indirect(file, Some(poll)) });
                    }
                    self.poll(id(), poll, &file, from.tid, near)
                }
                None => dev.reply_poll(unique, UNBOUND),
            },
            Op::Ioctl { fh, cmd, data, room } => match self.file(fh) {
                Some(file) => match self.ioctl(unique, &file, cmd, data, room) {
                    Ok(sent) => sent,
                    Err(op) => return Some(SlowRequest { id: id(), from, op }),
                },
                None => dev.reply_ioctl(unique, -EIO, &[]),
            },
            Op::Lookup(name) => match mount.find(node, name.as_bytes(), from.uid) {
                Some((node, kind)) => dev.reply_entry(unique, node, kind),
                None => dev.reply_error(unique, ENOENT),
            },
            Op::Readlink => dev.reply(unique, format!("{}/{NAME}", self.assign_mount(from.tid)).as_bytes()),
            Op::GetSetAttr => dev.reply_attr(unique, node, kind(node)),
            Op::Open { directory: true } => dev.reply_open(unique, 0, None),
            Op::Open { directory: false } if node != file_of(from.uid) => dev.reply_error(unique, ESTALE),
            Op::Open { directory: false } => match self.open_again(&id(), from.uid, false) {
                true => Ok(()),
                false => return Some(SlowRequest { id: id(), from, op: SlowOp::Open }),
            },
            Op::Release { fh } => {
                self.release(fh);
                dev.reply(unique, &[])
            }
            Op::Interrupt(unique) => {
                let id = RequestId { mount: mount.clone(), unique };
                match self.held_polls.take(&id) {
                    // The program must return from poll to receive the signal.
                    Some(_) => dev.reply_poll(unique, 0),
                    None if self.is_pending(&id) => {
                        self.waker.limit_time(id);
                        Ok(())
                    }
                    None => Ok(()),
                }
            }
            Op::ReadOrReleaseDir => dev.reply(unique, &[]),
            Op::ReadWrite => dev.reply_error(unique, EINVAL),
            Op::NotifyReply => {
                if let Some(met) = lock(&self.marks).waiting.remove(&unique) {
                    let _ = met.try_send(());
                }
                Ok(())
            }
            Op::Forget => Ok(()),
            Op::Init { .. } | Op::Other(_) => dev.reply_error(unique, ENOSYS),
        };
        None
    }

    /// Returns the mount for a thread that opens a file: one through which the fewest files are open.
    fn assign_mount(&self, tid: u32) -> usize {
        let mut mounts = lock(&self.mounts);
        let assigned = mounts.assigned;
        let files = |mount: &&Arc<Mount>| {
            let is_reserved = assigned.is_some_and(|(other, number)| other != tid && number == mount.number);
            mount.files.load(Ordering::Relaxed) + u32::from(is_reserved)
        };
        let number = mounts.all.iter().min_by_key(files).map_or(0, |mount| mount.number);
        mounts.assigned = Some((tid, number));
        number
    }

    fn file(&self, fh: u64) -> Option<Arc<File>> {
        lock(&self.files).open.get(&fh).cloned()
    }

    /// Answers a poll of the thread `tid`, or holds it. `near`: the calling thread is pinned to the CPU of that one.
    pub(super) fn poll(&self, id: RequestId, poll: Poll, file: &Arc<File>, tid: u32, near: bool) -> io::Result<()> {
        let Poll { kh, events, sleeps } = poll;
        file.polled_with(kh);
        if file.port().is_none() {
            return id.mount.dev.reply_poll(id.unique, UNBOUND);
        }
        let (want, alone) = (interest(events), self.held_polls.again(tid, file));
        let mut ready = file.poll_now(want);
        let sleeps_on = sleeps && !want.is_none();
        if sleeps_on && is_none(&ready) && alone && file.lingers_since().is_some() {
            // No other request waits while this thread spins.
            if near && id.mount.files.load(Ordering::Relaxed) == 1 && file.spinning.is_due() {
                self.answer_held_polls(file);
                ready = spin_until_ready(file, want);
            }
            if is_none(&ready) && file.holding.is_due() {
                let poll = HeldPoll { id: id.clone(), file: file.clone(), kh, want, events };
                if self.hold(poll) {
                    self.answer_held_polls(file);
                    return Ok(());
                }
            }
        }
        if sleeps_on && is_none(&ready) {
            ready = self.waker.arm(file, kh, want);
        }
        let lingers = sleeps && matches!(ready, Ok(ready) if !ready.is_none());
        let sent = id.mount.dev.reply_poll(id.unique, revents(events, ready));
        if lingers {
            self.waker.linger(file, kh, want);
        }
        self.answer_held_polls(file);
        sent
    }

    /// Holds a poll; returns `false` if too many are held.
    fn hold(&self, poll: HeldPoll) -> bool {
        let kept = self.held_polls.hold(poll);
        if kept == Some(true) {
            self.waker.tick();
        }
        kept.is_some()
    }

    /// Answers held polls of the file's peers, whose rings a request may have moved.
    pub(super) fn answer_held_polls(&self, file: &File) {
        while let Some((held, ready)) = self.held_polls.take_ready(file) {
            let lingers = ready.is_ok();
            let _ = held.answer(ready);
            if lingers {
                self.waker.linger(&held.file, held.kh, held.want);
            }
        }
    }

    /// Answers a sync, or returns the operation of another ioctl.
    fn ioctl(
        &self,
        unique: u64,
        file: &Arc<File>,
        cmd: u32,
        data: &[u8],
        room: u32,
    ) -> Result<io::Result<()>, SlowOp<Arc<File>>> {
        let result = match u64::from(cmd) {
            NIOCTXSYNC if has_indirect_data(file) => return Err(SlowOp::Indirect(file.clone(), None)),
            NIOCTXSYNC => -sync(file, Port::txsync),
            NIOCRXSYNC => -sync(file, Port::rxsync),
            NIOCCTRL | NIOCREGIF | NIOCGINFO if data.len() == room as usize => {
                return Err(SlowOp::Control(file.clone(), cmd, data.to_vec()));
            }
            NIOCCONFIG => -EOPNOTSUPP,
            _ => -ENOTTY,
        };
        let sent = file.mount.dev.reply_ioctl(unique, result, &[]);
        self.answer_held_polls(file);
        Ok(sent)
    }

    /// Opens a file for a user with open files. Returns `false` if the user has none, or so many that files closed
    /// meanwhile must be counted first, unless that was done (`counted`).
    fn open_again(&self, id: &RequestId, uid: u32, counted: bool) -> bool {
        let RequestId { mount, unique } = id;
        let mut files = lock(&self.files);
        let Files { last, open, users } = &mut *files;
        let is_full = files_of_user(users, uid) >= limits::node_files_of_user();
        let Some(user) = users.get_mut(&uid) else { return false };
        if is_full && !counted {
            return false;
        }
        if is_full {
            let _ = mount.dev.reply_error(*unique, EMFILE);
            return true;
        }
        let backing = match user.backings.entry(mount.number) {
            Entry::Occupied(known) => Ok(&*known.into_mut()),
            Entry::Vacant(place) => {
                let number = privileged::open_backing(&mount.dev, user.arena.as_fd());
                number.map(|number| &*place.insert(Backing::of_number(number)))
            }
        };
        match backing {
            Ok(backing) => {
                *last += 1;
                open.insert(*last, Arc::new(File::new(*last, uid, mount.clone(), user.arena.clone())));
                user.files += 1;
                mount.files.fetch_add(1, Ordering::Relaxed);
                lock(&self.mounts).assigned.take_if(|(_, number)| *number == mount.number);
                if mount.dev.reply_open(*unique, *last, Some(backing)).is_err() {
                    // The mount is over; with it everything is closed.
                    open.remove(last);
                    user.files -= 1;
                    mount.files.fetch_sub(1, Ordering::Relaxed);
                }
            }
            Err(e) => {
                tracing::warn!("a user's memory cannot be shown: {e}");
                let _ = mount.dev.reply_error(*unique, e.raw_os_error().unwrap_or(ENOMEM));
            }
        }
        self.remove_user_if_unused(&mut files, uid);
        true
    }

    /// Removes a user without open files.
    fn remove_user_if_unused(&self, files: &mut Files, uid: u32) {
        let Entry::Occupied(user) = files.users.entry(uid) else { return };
        if user.get().files > 0 {
            return;
        }
        let mounts = lock(&self.mounts);
        for (number, backing) in user.remove().backings {
            // The registrations of a mount that has ended ended with it.
            if let Some(mount) = mounts.all.iter().find(|mount| mount.number == number)
                && let Err(e) = privileged::close_backing(&mount.dev, backing.number())
            {
                tracing::debug!("a user's memory stays registered: {e}");
            }
        }
    }

    /// Opens a file for a user, who may have none open.
    pub(super) fn open_slow(&self, id: &RequestId, uid: u32) {
        let RequestId { mount, unique } = id;
        match self.jobs.call(|reply| Job::UserArena(uid, reply)).unwrap_or(Err(EIO)) {
            Err(errno) => drop(mount.dev.reply_error(*unique, errno)),
            Ok(arena) => {
                // The user may have opened one through another mount meanwhile.
                let user = || User { arena, backings: HashMap::new(), files: 0 };
                lock(&self.files).users.entry(uid).or_insert_with(user);
                if !self.open_again(id, uid, true) {
                    // That file is closed by now, so the kernel must try again.
                    let _ = mount.dev.reply_error(*unique, ESTALE);
                }
            }
        }
    }

    fn release(&self, fh: u64) {
        let Some(file) = self.file(fh) else { return };
        self.held_polls.forget(&file);
        self.waker.forget(&file);
        // Before the file is removed here (see `catch_up`).
        file.close(&self.jobs);
        let mut files = lock(&self.files);
        files.open.remove(&fh);
        file.mount.files.fetch_sub(1, Ordering::Relaxed);
        if let Some(user) = files.users.get_mut(&file.uid) {
            user.files -= 1;
        }
        self.remove_user_if_unused(&mut files, file.uid);
    }

    /// Ends a request that took too long after a signal.
    pub(super) fn interrupt(&self, id: &RequestId) {
        self.finish(id, || drop(id.mount.dev.reply_error(id.unique, EINTR)));
    }

    /// Whether no file is open any more.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Handles the end of a mount.
    fn mount_ended(&self, mount: &Mount) {
        let its = |file: &&Arc<File>| file.mount.number == mount.number;
        let open: Vec<u64> = lock(&self.files).open.values().filter(its).map(|file| file.fh).collect();
        open.into_iter().for_each(|fh| self.release(fh));
        let mut mounts = lock(&self.mounts);
        mounts.all.retain(|other| other.number != mount.number);
        if mounts.all.is_empty() {
            self.over.store(true, Ordering::Release);
            self.waker.end();
            self.jobs.push(Job::NodeEnded(self.number));
        }
    }
}

/// Whether the next sync sends packets whose data is in the program's memory.
pub(super) fn has_indirect_data(file: &File) -> bool {
    file.port().is_some_and(|port| !port.indirect_data().is_empty())
}

/// 0, or an errno.
pub(super) fn sync(file: &File, sync: impl Fn(&Port) -> Result<(), Error>) -> i32 {
    match file.sync(sync) {
        None => ENXIO,
        // As in netmap: the ring was reset, and only poll reports it.
        Some(Ok(()) | Err(Error::BadPointers { .. })) => 0,
        Some(Err(e)) => e.errno(),
    }
}

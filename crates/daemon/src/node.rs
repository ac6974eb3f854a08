//! The node: a `/dev/netmap` that any program can open, served through FUSE.
//!
//! ```text
//! program: open  --> READLINK       a link leads to one of several mounts (way)
//!                    LOOKUP, OPEN   a file for each user, whose memory is that of his regions (arena)
//!          ioctl --> IOCTL          requests: read in the program's memory, answered by the daemon
//!          mmap                     the kernel's work alone: both sides have the same pages
//!          ioctl --> IOCTL          syncs: done here, on a port of the daemon's own hands
//!          poll  --> POLL           a sync, and what is ready; else it is held for a moment, if packets come, or
//!                                   whoever sleeps is woken by the watch
//!          close --> RELEASE        the last duplicate is closed: the port is given back
//! ```
//! The memory of a file must be known when it is opened, before anybody says which port it is for. So it is all regions
//! of the user that opens it, and while the node is on new regions are made where it shows them.
//!
//! Threads: for each way one *leads*, which is to read requests and to answer those that are quick, near the program that
//! makes them (follow). Before it turns to one that may take long (a request that reads a program's memory, or needs the
//! daemon), another takes the lead. The *watch* waits for the bells of files that somebody sleeps on. The daemon belong to
//! the main thread: what is asked of them lies on its *desk*.

mod control;
mod file;
mod follow;
mod hold;
mod serve;
mod watch;
mod way;

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use serde::Serialize;
use unetmap_core::control::ControlRequest;
use unetmap_core::control::node::NodeRequest;
use unetmap_core::control::request::NetmapRequest;
use unetmap_core::errno::{EBUSY, EEXIST, EIO, ENODEV, EPERM};
use unetmap_core::sync::mirror::MonitorList;
use unetmap_sys::Doorbell;
use unetmap_sys::fuse::{self, Device, Op};
use unetmap_sys::socket::Peer;

use crate::caller::Caller;
use crate::netmap_requests::Outcome;
use crate::ports::{Daemon, monitor};
use crate::refusal::{Refusal, refuse};
use crate::user_arena::UserArena;

use serve::Shared;

/// The file's name in the mounted folder.
const NAME: &str = "netmap";

/// What the node's threads ask of the main thread.
pub(crate) enum Job {
    /// The file of all regions of a user.
    UserArena(u32, SyncSender<Result<Arc<UserArena>, i32>>),
    /// A request, to be answered for a port that lies in the arena; and where a port is told who watches it.
    Ask(Box<Asked>, SyncSender<(Outcome, Arc<MonitorList>)>),
    /// A session is over.
    Close(u64),
    /// The node of that number has ended: nothing of it is open any more.
    Over(u64),
}

/// A request, and by whom.
pub(crate) struct Asked {
    pub(crate) request: NetmapRequest,
    pub(crate) caller: Caller,
    pub(crate) session: Option<u64>,
    pub(crate) arena: Arc<UserArena>,
}

/// Where jobs are put.
#[derive(Clone)]
pub(crate) struct Desk {
    jobs: Sender<Job>,
    bell: Arc<Doorbell>,
}

impl Desk {
    /// Puts a job there. The main thread takes them in the order in which they came.
    pub(crate) fn put(&self, job: Job) {
        // It fails when the daemon ends, and everything with it.
        if self.jobs.send(job).is_ok() {
            self.bell.notify();
        }
    }

    /// The same, and waits for the answer; `None` when the daemon ends.
    pub(crate) fn ask<T>(&self, job: impl FnOnce(SyncSender<T>) -> Job) -> Option<T> {
        let (reply, answer) = sync_channel(1);
        self.put(job(reply));
        answer.recv().ok()
    }
}

/// How the node is, for `unetmap node status`.
#[derive(Serialize)]
struct Status {
    on: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mount: Option<PathBuf>,
    files: usize,
    ports: usize,
    /// Files of it that are still open since it was taken away.
    left: usize,
}

/// Answers a netmap request.
type RequestHandler = fn(&mut Daemon, NetmapRequest, &Caller, Option<u64>) -> Outcome;

/// The node, if it is on, and what is left of earlier ones.
pub(crate) struct Nodes {
    answer: RequestHandler,
    desk: Desk,
    inbox: Receiver<Job>,
    /// Where the mount is made.
    folder: PathBuf,
    on: Option<(PathBuf, Arc<Shared>)>,
    left: Vec<Arc<Shared>>,
    last: u64,
}

impl Nodes {
    /// No node yet, of the daemon that listens at `socket`.
    pub(crate) fn new(socket: &Path, answer: RequestHandler) -> io::Result<Nodes> {
        let (jobs, inbox) = channel();
        let mut folder = socket.as_os_str().to_owned();
        folder.push(".node");
        let desk = Desk { jobs, bell: Arc::new(Doorbell::new()?) };
        Ok(Nodes { answer, desk, inbox, folder: folder.into(), on: None, left: Vec::new(), last: 0 })
    }

    /// Readable when there is something to [`Nodes::run_jobs`] on.
    pub(crate) fn doorbell(&self) -> BorrowedFd<'_> {
        self.desk.bell.as_fd()
    }

    /// Whether the daemon is needed for a node's sake.
    pub(crate) fn in_use(&self) -> bool {
        self.on.is_some() || !self.left.is_empty()
    }

    /// Does what lies on the desk.
    pub(crate) fn run_jobs(&mut self, daemon: &mut Daemon) {
        self.desk.bell.clear();
        while let Ok(job) = self.inbox.try_recv() {
            match job {
                Job::UserArena(uid, reply) => {
                    let _ = reply.send(daemon.registry.regions.arena(uid).map_err(|refusal| refusal.errno));
                }
                Job::Ask(asked, reply) => {
                    let outcome = self.answer(daemon, *asked);
                    let session = outcome.session;
                    let board = session.map(|session| monitor::list_for_session(daemon, session)).unwrap_or_default();
                    if let (Err(_), Some(session)) = (reply.send((outcome, board)), session) {
                        daemon.close(session);
                    }
                }
                Job::Close(session) => daemon.close(session),
                Job::Over(number) => {
                    self.left.retain(|left| left.number != number);
                    if self.on.as_ref().is_some_and(|(_, node)| node.number == number) {
                        tracing::warn!("the node was unmounted by somebody else");
                        let _ = self.off(daemon, None);
                    }
                }
            }
        }
    }

    /// Answers a request, and refuses ports that the node cannot map.
    fn answer(&self, daemon: &mut Daemon, asked: Asked) -> Outcome {
        let Asked { request, caller, session, arena } = asked;
        let mut outcome = (self.answer)(daemon, request, &caller, session);
        if let Some(session) = outcome.session
            && !daemon.is_in_arena(session, &arena)
        {
            daemon.close(session);
            outcome.errno = EBUSY;
            outcome.answer.reason =
                "its region was created before the node was on, or where the node can map it there was no \
                                  room (close all its ports, and open it again)"
                    .into();
            (outcome.session, outcome.fds) = (None, Vec::new());
        }
        outcome
    }

    /// Answers `unetmap node`.
    pub(crate) fn answer_request(
        &mut self,
        daemon: &mut Daemon,
        peer: Peer,
        payload: &[u8],
    ) -> Result<String, Refusal> {
        let Ok(request) = NodeRequest::decode(payload) else {
            return refuse(unetmap_core::errno::EINVAL, "this is no request about the node");
        };
        if request != NodeRequest::Show && peer.uid != 0 {
            return refuse(EPERM, "only root may change it");
        }
        match request {
            NodeRequest::Show => {}
            NodeRequest::On(path) => self.on(daemon, path)?,
            NodeRequest::Off(path) => self.off(daemon, path.as_deref())?,
        }
        let (files, ports) = self.on.as_ref().map_or((0, 0), |(_, node)| node.count());
        let status = Status {
            on: self.on.is_some(),
            path: self.on.as_ref().map(|(path, _)| path.clone()),
            mount: self.on.as_ref().map(|_| self.folder.clone()),
            files,
            ports,
            left: self.left.iter().map(|node| node.count().0).sum(),
        };
        serde_json::to_string(&status).or_else(|e| refuse(EIO, format!("the answer cannot be written: {e}")))
    }

    fn on(&mut self, daemon: &mut Daemon, path: PathBuf) -> Result<(), Refusal> {
        if self.on.is_some() && fuse::is_unetmap_mount(&self.folder).is_ok_and(|ours| !ours) {
            // Its threads say so only when all of them have seen it.
            tracing::warn!("the node was unmounted by somebody else");
            let _ = self.off(daemon, None);
        }
        if let Some((at, _)) = &self.on {
            return match *at == path {
                true => Ok(()),
                false => refuse(EBUSY, format!("the node is on at {} (unetmap node off)", at.display())),
            };
        }
        let target = self.folder.join(NAME);
        check_link(&path, &target)?;
        let dev = mounted(&self.folder)?;
        self.last += 1;
        let started = self.serve(dev).and_then(|shared| make_link(&path, &target).map(|()| shared));
        match started {
            Ok(shared) => {
                tracing::info!(path = %path.display(), mount = %self.folder.display(), "the node is on");
                self.on = Some((path, shared));
                daemon.registry.regions.use_arenas = true;
                Ok(())
            }
            Err(refusal) => {
                self.unmount();
                Err(refusal)
            }
        }
    }

    /// Serves the first mount, and makes the others in its folders.
    fn serve(&self, dev: Device) -> Result<Arc<Shared>, Refusal> {
        let failed = |e| Refusal { errno: EIO, why: format!("no threads for the node: {e}"), option: None };
        let shared = serve::start(dev, self.last, self.desk.clone()).map_err(failed)?;
        for number in 1..way::how_many() {
            shared.serve(number, agreed(&self.folder.join(number.to_string()))?).map_err(failed)?;
        }
        Ok(shared)
    }

    fn off(&mut self, daemon: &mut Daemon, path: Option<&Path>) -> Result<(), Refusal> {
        let Some((at, shared)) = self.on.take_if(|(at, _)| path.is_none_or(|path| path == at)) else {
            return match (&self.on, path) {
                (Some((at, _)), Some(path)) => {
                    refuse(ENODEV, format!("the node is on at {}, not at {}", at.display(), path.display()))
                }
                _ => Ok(()),
            };
        };
        daemon.registry.regions.use_arenas = false;
        if fs::read_link(&at).is_ok_and(|to| to == self.folder.join(NAME)) {
            let _ = fs::remove_file(&at);
        }
        self.unmount();
        tracing::info!(path = %at.display(), "the node is off");
        // Its threads end with its last open file.
        if !shared.is_over() {
            self.left.push(shared);
        }
        Ok(())
    }

    fn unmount(&self) {
        if fuse::is_unetmap_mount(&self.folder).is_ok_and(|ours| ours)
            && let Err(e) = fuse::detach(&self.folder)
        {
            tracing::warn!("unmounting {}: {e}", self.folder.display());
        }
        let _ = fs::remove_dir(&self.folder);
    }

    /// The daemon ends in order: what it mounted goes with it.
    pub(crate) fn shut_down(&mut self, daemon: &mut Daemon) {
        let _ = self.off(daemon, None);
    }
}

/// Makes the folder, and mounts there.
fn mounted(folder: &Path) -> Result<Device, Refusal> {
    fuse::check_available().map_err(|e| failed("/dev/fuse (modprobe fuse)", e))?;
    // A daemon before this one was killed: nobody else mounts beside this socket.
    while fuse::is_unetmap_mount(folder).map_err(|e| failed("/proc/self/mountinfo", e))? {
        fuse::detach(folder).map_err(|e| failed("unmounting what a dead daemon left", e))?;
    }
    match fs::create_dir(folder) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        other => other.map_err(|e| failed(&format!("the folder {}", folder.display()), e))?,
    }
    agreed(folder).inspect_err(|_| {
        let _ = fs::remove_dir(folder);
    })
}

fn failed(what: &str, e: io::Error) -> Refusal {
    let why = match e.raw_os_error() {
        Some(EPERM) => format!("{what}: {e} (the daemon needs CAP_SYS_ADMIN, outside of containers: run it as root)"),
        _ => format!("{what}: {e}"),
    };
    Refusal { errno: e.raw_os_error().unwrap_or(EIO), why, option: None }
}

/// One more mount, at a folder that is there.
fn agreed(folder: &Path) -> Result<Device, Refusal> {
    let dev = Device::mount(folder).map_err(|e| failed(&format!("mounting at {}", folder.display()), e))?;
    match agree(&dev) {
        Ok(true) => Ok(dev),
        other => {
            let _ = fuse::detach(folder);
            match other {
                Err(e) => Err(failed("the kernel's FUSE", e)),
                Ok(_) => refuse(
                    ENODEV,
                    "this kernel's FUSE cannot share memory: the node needs Linux 6.9 with CONFIG_FUSE_PASSTHROUGH",
                ),
            }
        }
    }
}

/// The kernel's first request; `false` when it cannot do what we need.
fn agree(dev: &Device) -> io::Result<bool> {
    let mut buf = vec![0; fuse::REQUEST_BYTES];
    let bytes = dev.read(&mut buf)?;
    let Some(fuse::Request { unique, op: Op::Init { offered }, .. }) = fuse::Request::parse(bytes) else {
        return Err(io::Error::other("its first message is not what it should be"));
    };
    dev.reply_init(unique, offered)?;
    if !offered.passthrough() {
        return Ok(false);
    }
    // What mounting permits this may not.
    let backing = dev.open_backing(UserArena::new()?.as_fd())?;
    dev.close_backing(backing);
    Ok(true)
}

/// Whether `path` is free for a link to `target`, or is that already.
fn check_link(path: &Path, target: &Path) -> Result<bool, Refusal> {
    match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => refuse(e.raw_os_error().unwrap_or(EIO), format!("{}: {e}", path.display())),
        Ok(_) if fs::read_link(path).is_ok_and(|to| to == target) => Ok(true),
        Ok(_) => refuse(EEXIST, format!("{} exists and is not ours (remove it, or name another path)", path.display())),
    }
}

fn make_link(path: &Path, target: &Path) -> Result<(), Refusal> {
    if check_link(path, target)? {
        return Ok(());
    }
    std::os::unix::fs::symlink(target, path)
        .or_else(|e| refuse(e.raw_os_error().unwrap_or(EIO), format!("{}: {e}", path.display())))
}

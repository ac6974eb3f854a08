// SPDX-License-Identifier: BSD-2-Clause
//! The node as the daemon hands it to its successor: mounts by their descriptors, files by their numbers.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};
use unetmap_core::errno::ENOMEM;
use unetmap_sys::fuse::{self, Backing, Device, Requester};

use super::file::{File, SlowOp, SlowRequest};
use super::mount::{Mount, RequestId};
use super::shared::{Shared, User};
use super::{Nodes, serve};
use crate::descriptors::{FdIndex, Incoming, Outgoing, invalid};
use crate::ports::Daemon;
use crate::refusal::{Refusal, refuse};
use crate::threads::lock;
use crate::tuning::node::MAX_MOUNTS;

/// The node, and earlier ones with open files.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct SavedNodes {
    /// The path of the link, if the node is on: then it is the first.
    on: Option<PathBuf>,
    all: Vec<SavedNode>,
    last: u64,
}

#[derive(Serialize, Deserialize)]
struct SavedNode {
    number: u64,
    mounts: Vec<(usize, FdIndex)>,
    files: Vec<SavedFile>,
    last_file: u64,
    /// Users, mounts, and the numbers by which these know the users' arenas.
    backings: Vec<(u32, usize, i32)>,
    deferred: Vec<SavedRequest>,
    last_marker: u64,
}

#[derive(Serialize, Deserialize)]
struct SavedFile {
    fh: u64,
    uid: u32,
    mount: usize,
    session: Option<u64>,
    kh: Option<u64>,
}

/// A request that was read and is not answered.
#[derive(Serialize, Deserialize)]
struct SavedRequest {
    mount: usize,
    unique: u64,
    /// Of the requesting thread.
    uid: u32,
    gid: u32,
    tid: u32,
    op: SlowOp<u64>,
}

/// The nodes of this process while they are paused, with the mounts of each.
#[derive(Default)]
pub(crate) struct PausedNodes(Vec<(Arc<Shared>, Vec<Arc<Mount>>)>);

impl Nodes {
    /// Returns the part that is to be saved.
    pub(crate) fn paused(&self) -> PausedNodes {
        let all = self.on.iter().map(|(_, node)| node).chain(&self.ended);
        PausedNodes(all.map(|node| (node.clone(), lock(&node.mounts).all.clone())).collect())
    }

    /// Returns the state for a successor; after a crash no node goes on.
    pub(crate) fn save<'a>(&self, paused: &'a PausedNodes, fds: &mut Outgoing<'a>) -> SavedNodes {
        let all = paused.0.iter().map(|(node, mounts)| SavedNode::of(node, mounts, fds)).collect();
        let on = self.on.as_ref().filter(|_| !paused.0.is_empty()).map(|(path, _)| path.clone());
        SavedNodes { on, all, last: self.last }
    }

    /// Takes over what another daemon has. [`Nodes::resume`] starts the threads.
    pub(crate) fn restore(
        &mut self,
        saved: SavedNodes,
        daemon: &mut Daemon,
        fds: &mut Incoming,
    ) -> Result<(), Refusal> {
        let mut all = Vec::new();
        for node in saved.all {
            all.push(node.restore(self, daemon, fds)?);
        }
        if let Some(path) = saved.on {
            if all.is_empty() {
                return invalid("the node");
            }
            self.on = Some((path, all.remove(0)));
            daemon.registry.regions.use_arenas = true;
        }
        (self.ended, self.last) = (all, saved.last);
        Ok(())
    }
}

impl SavedNode {
    fn of<'a>(node: &Shared, mounts: &'a [Arc<Mount>], fds: &mut Outgoing<'a>) -> SavedNode {
        let (files, marks) = (lock(&node.files), lock(&node.marks));
        let save = |file: &Arc<File>| SavedFile {
            fh: file.fh,
            uid: file.uid,
            mount: file.mount.number,
            session: file.session(),
            kh: file.kh(),
        };
        let of_user = |(uid, user): (&u32, &User)| {
            let backings = user.backings.iter().map(|(mount, backing)| (*uid, *mount, backing.number()));
            backings.collect::<Vec<_>>()
        };
        SavedNode {
            number: node.number,
            mounts: mounts.iter().map(|mount| (mount.number, fds.add(&mount.dev))).collect(),
            files: files.open.values().map(save).collect(),
            last_file: files.last,
            backings: files.users.iter().flat_map(of_user).collect(),
            deferred: lock(&node.deferred).iter().map(SavedRequest::of).collect(),
            last_marker: marks.last,
        }
    }

    fn restore(self, nodes: &Nodes, daemon: &Daemon, fds: &mut Incoming) -> Result<Arc<Shared>, Refusal> {
        let node = serve::without_threads(self.number, nodes.jobs.clone());
        let node = node.or_else(|e| refuse(ENOMEM, format!("the node cannot be taken over: {e}")))?;
        node.is_paused.store(true, Ordering::SeqCst);
        let mut mounts: HashMap<usize, Arc<Mount>> = HashMap::new();
        for (number, fd) in self.mounts {
            let fd = fds.take(fd)?;
            if number >= MAX_MOUNTS || mounts.contains_key(&number) || !fuse::is_device(&fd) {
                return invalid("a mount of the node");
            }
            let mount = Mount::new(number, Device::from_fd(fd));
            lock(&node.mounts).all.push(mount.clone());
            mounts.insert(number, mount);
        }
        for file in self.files {
            add_file(&node, daemon, file, &mounts)?;
        }
        let mut files = lock(&node.files);
        for (uid, mount, number) in self.backings {
            let Some(user) = files.users.get_mut(&uid).filter(|_| mount < MAX_MOUNTS) else {
                return invalid("the memory of a user of the node");
            };
            user.backings.insert(mount, Backing::of_number(number));
        }
        if files.open.keys().any(|fh| *fh > self.last_file) {
            return invalid("the number of a file of the node");
        }
        files.last = self.last_file;
        for request in self.deferred {
            let request = request.restore(&mounts, &files.open)?;
            lock(&node.pending).insert(request.id.key());
            lock(&node.deferred).push(request);
        }
        drop(files);
        lock(&node.marks).last = self.last_marker;
        Ok(node)
    }
}

/// Adds a file of another daemon.
fn add_file(
    node: &Shared,
    daemon: &Daemon,
    SavedFile { fh, uid, mount, session, kh }: SavedFile,
    mounts: &HashMap<usize, Arc<Mount>>,
) -> Result<(), Refusal> {
    let (mount, arena) = (mounts.get(&mount), daemon.registry.regions.existing_arena(uid));
    let Some((mount, arena)) = mount.zip(arena) else { return invalid("a file of the node") };
    let mut files = lock(&node.files);
    let is_taken = |session| files.open.values().any(|file| file.session() == Some(session));
    if session.is_some_and(|session| !daemon.is_in_arena(session, &arena) || is_taken(session)) {
        return invalid("the port of a file of the node");
    }
    let file = File::new(fh, uid, mount.clone(), arena.clone()).restored(session, kh.unwrap_or(0));
    if files.open.insert(fh, Arc::new(file)).is_some() {
        return invalid("a file of the node is there twice");
    }
    mount.files.fetch_add(1, Ordering::Relaxed);
    files.users.entry(uid).or_insert_with(|| User { arena, backings: HashMap::new(), files: 0 }).files += 1;
    Ok(())
}

impl SavedRequest {
    fn of(request: &SlowRequest) -> SavedRequest {
        let Requester { uid, gid, tid } = request.from;
        let op = match &request.op {
            SlowOp::Open => SlowOp::Open,
            SlowOp::Control(file, cmd, data) => SlowOp::Control(file.fh, *cmd, data.clone()),
            SlowOp::Indirect(file, poll) => SlowOp::Indirect(file.fh, *poll),
        };
        SavedRequest { mount: request.id.mount.number, unique: request.id.unique, uid, gid, tid, op }
    }

    fn restore(
        self,
        mounts: &HashMap<usize, Arc<Mount>>,
        files: &HashMap<u64, Arc<File>>,
    ) -> Result<SlowRequest, Refusal> {
        let SavedRequest { mount, unique, uid, gid, tid, op } = self;
        let Some(mount) = mounts.get(&mount).cloned() else { return invalid("a request of the node") };
        let file = |fh: u64| files.get(&fh).cloned().map_or_else(|| invalid("the file of a request"), Ok);
        let op = match op {
            SlowOp::Open => SlowOp::Open,
            SlowOp::Control(fh, cmd, data) => SlowOp::Control(file(fh)?, cmd, data),
            SlowOp::Indirect(fh, poll) => SlowOp::Indirect(file(fh)?, poll),
        };
        Ok(SlowRequest { id: RequestId { mount, unique }, from: Requester { uid, gid, tid }, op })
    }
}

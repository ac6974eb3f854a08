// SPDX-License-Identifier: BSD-2-Clause
//! The caller of a request: what the kernel reports about the process, and nothing that the process sends itself.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use unetmap_core::errno::EPERM;
use unetmap_sys::fuse;
use unetmap_sys::netns::Netns;
use unetmap_sys::process;
use unetmap_sys::socket::{self, Peer};
use unetmap_sys::thread::RemoteThread;

use crate::awaited::Awaited;
use crate::owner::owner;
use crate::policy::Identity;
use crate::privileged;

/// A client at the time of a request.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) peer: Peer,
    /// All groups of the process.
    pub(crate) groups: Vec<u32>,
    /// The network namespace in which it connected; `None` if the daemon may not open it.
    pub(crate) netns: Option<Arc<Netns>>,
    /// What its request has waited for, if it is answered again.
    pub(crate) resumes: Option<Awaited>,
}

impl Caller {
    /// The process at the other end of `connection`.
    pub(crate) fn of_connection(connection: &OwnedFd, peer: Peer) -> io::Result<Caller> {
        let groups = socket::peer_groups(connection)?;
        Ok(Caller { peer, groups, netns: privileged::netns_of_peer(connection).ok().map(Arc::new), resumes: None })
    }

    /// The same, as if it were in no network namespace: asking for that takes longer than all else.
    pub(crate) fn without_netns(connection: &OwnedFd, peer: Peer) -> io::Result<Caller> {
        Ok(Caller { peer, groups: socket::peer_groups(connection)?, netns: None, resumes: None })
    }

    /// The thread that waits for the answer to a request of the node.
    pub(crate) fn of_thread(thread: &RemoteThread, from: &fuse::Requester) -> io::Result<Caller> {
        let identity = thread.identity()?;
        if identity.uid != from.uid {
            return Err(io::Error::from_raw_os_error(EPERM));
        }
        let peer = Peer { pid: identity.pid, uid: from.uid, gid: from.gid };
        let groups = [vec![from.gid], identity.groups].concat();
        Ok(Caller { peer, groups, netns: Some(Arc::new(privileged::netns_of_thread(thread)?)), resumes: None })
    }

    /// The daemon itself.
    pub(crate) fn daemon() -> Caller {
        let peer = Peer { pid: process::pid(), uid: owner(), gid: 0 };
        Caller { peer, groups: Vec::new(), netns: None, resumes: None }
    }

    /// The inode of its network namespace, or 0.
    pub(crate) fn netns_id(&self) -> u64 {
        self.netns.as_ref().map_or(0, |netns| netns.id())
    }

    /// The properties that the policy's rules refer to.
    pub(crate) fn identity(&self) -> Identity<'_> {
        Identity { uid: self.peer.uid, groups: &self.groups, netns: self.netns_id() }
    }
}

// SPDX-License-Identifier: BSD-2-Clause
//! The caller of a request: what the kernel reports about the process, and nothing that the process sends itself.

use std::cell::OnceCell;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use unetmap_core::errno::EPERM;
use unetmap_sys::fuse;
use unetmap_sys::link;
use unetmap_sys::netns::Netns;
use unetmap_sys::process;
use unetmap_sys::socket::{self, Peer};
use unetmap_sys::thread::RemoteThread;

use crate::owner::owner;
use crate::policy::{Identity, Policy};
use crate::ports::nic::surveyed::Survey;
use crate::privileged;

/// A client at the time of a request.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) peer: Peer,
    /// All groups of the process.
    pub(crate) groups: Vec<u32>,
    pub(crate) namespace: Namespace,
    /// Facts about the interface that its request names.
    pub(crate) survey: Option<Arc<Survey>>,
}

/// The network namespace of a client. That in which a process connected is asked for when it is first needed: the
/// broker answers, which takes longer than opening a pipe, and most requests concern no interface.
#[derive(Clone, Debug, Default)]
pub(crate) struct Namespace {
    connection: Option<Arc<OwnedFd>>,
    /// `None`: the daemon may not open it.
    known: OnceCell<Option<Arc<Netns>>>,
}

impl From<Arc<Netns>> for Namespace {
    fn from(netns: Arc<Netns>) -> Namespace {
        Namespace { connection: None, known: OnceCell::from(Some(netns)) }
    }
}

impl Namespace {
    fn get(&self) -> Option<&Arc<Netns>> {
        let ask = || privileged::netns_of_peer(self.connection.as_ref()?).ok().map(Arc::new);
        self.known.get_or_init(ask).as_ref()
    }
}

impl Caller {
    /// The process at the other end of `connection`.
    pub(crate) fn of_connection(connection: &Arc<OwnedFd>, peer: Peer) -> io::Result<Caller> {
        let groups = socket::peer_groups(connection)?;
        let namespace = Namespace { connection: Some(Arc::clone(connection)), known: OnceCell::new() };
        Ok(Caller { peer, groups, namespace, survey: None })
    }

    /// The thread that waits for the answer to a request of the node.
    pub(crate) fn of_thread(thread: &RemoteThread, from: &fuse::Requester) -> io::Result<Caller> {
        let identity = thread.identity()?;
        if identity.uid != from.uid {
            return Err(io::Error::from_raw_os_error(EPERM));
        }
        let peer = Peer { pid: identity.pid, uid: from.uid, gid: from.gid };
        let groups = [vec![from.gid], identity.groups].concat();
        let namespace = Arc::new(privileged::netns_of_thread(thread, thread.tid())?).into();
        Ok(Caller { peer, groups, namespace, survey: None })
    }

    /// The daemon itself.
    pub(crate) fn daemon() -> Caller {
        let peer = Peer { pid: process::pid(), uid: owner(), gid: 0 };
        Caller { peer, groups: Vec::new(), namespace: Namespace::default(), survey: None }
    }

    /// Whether a process has a connection of its own to the daemon, by the library; else it is at the node, or is the
    /// daemon itself.
    pub(crate) fn is_connected(&self) -> bool {
        self.namespace.connection.is_some()
    }

    /// The network namespace in which it connected; `None` if the daemon may not open it.
    pub(crate) fn netns(&self) -> Option<&Arc<Netns>> {
        self.namespace.get()
    }

    /// Whether it could make packet sockets itself in its network namespace. A process that has one can use it at all
    /// interfaces there.
    pub(crate) fn may_have_packet_sockets(&self) -> bool {
        let connection = self.namespace.connection.as_ref();
        connection.is_some_and(|connection| privileged::peer_may_have_packets(connection).unwrap_or(false))
    }

    /// The inode of its network namespace, or 0.
    pub(crate) fn netns_id(&self) -> u64 {
        self.netns().map_or(0, |netns| netns.id())
    }

    /// Whether its network namespace surely has no interface of this name. Takes no lock of the kernel's. The client's
    /// connection tells, without the broker, but for names that the kernel does not look for there.
    pub(crate) fn lacks_interface(&self, name: &str) -> bool {
        let told = self.namespace.connection.as_ref().and_then(|connection| link::exists_at(connection, name));
        let ask = |netns: &Arc<Netns>| privileged::is_absent(netns, name).unwrap_or(false);
        told.map_or_else(|| self.netns().is_some_and(ask), |exists| !exists)
    }

    /// The properties that the rules of a policy refer to; without the namespace if none refers to that.
    pub(crate) fn identity(&self, policy: &Policy) -> Identity<'_> {
        let netns = if policy.names_namespaces() { self.netns_id() } else { 0 };
        Identity { uid: self.peer.uid, groups: &self.groups, netns }
    }
}

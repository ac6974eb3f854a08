// SPDX-License-Identifier: BSD-2-Clause
//! Packet sockets of an interface, where AF_XDP or BPF cannot be had: in a user namespace of an ordinary user, in a
//! container without `CAP_BPF`, on a kernel without AF_XDP.
//!
//! ```text
//! wire --> socket's ring --> [thread] == mediated port == program
//!      \-> table of nftables: drops what is on its way to the stack, and what the stack sends
//! program == mediated port == [thread] --> socket, with a mark that the table accepts --> wire
//! ```
//! All queues are one pair of rings. Sockets and table end with the daemon's descriptors, however it ends; before Linux
//! 5.12 the undo process removes the table.
//!
//! A program that could make the sockets itself, and whose packets begin with virtio-net headers, has them in place of
//! the thread ([decision 182](../../../../../docs/decisions/0182-packet-sockets-of-programs.md)).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use unetmap_core::errno::ENOMEM;
use unetmap_sys::packet_socket::{self, Receiver};
use unetmap_sys::process;

use crate::broker::Handle;
use crate::budget::{Amounts, Resource};
use crate::descriptors::{FdIndex, Incoming, Outgoing};
use crate::endpoint::RingSelection;
use crate::ports::mediator::{PacketCounters, PacketReceiver};
use crate::privileged::Undo;
use crate::refusal::{Refusal, refuse};

/// The packet sockets of an interface.
pub(super) struct Packets {
    /// Why there are no AF_XDP sockets.
    pub(super) why: String,
    /// Of the frames that are sent.
    pub(super) mark: u32,
    /// Bytes of the header before each packet of a program that has the sockets itself; 0: a thread has them.
    pub(super) header: u8,
    pub(super) receiver: Option<OpenReceiver>,
    pub(super) sender: Option<Arc<OwnedFd>>,
    pub(super) counters: Arc<PacketCounters>,
    /// Frames that found the ring full, of earlier sockets, too.
    full: AtomicU64,
}

/// A socket that receives, and what keeps its frames from the stack.
pub(super) struct OpenReceiver {
    pub(super) socket: PacketReceiver,
    pub(super) slot: usize,
    table: Option<Table>,
    /// Why the stack has frames, too, or sends some.
    shared: Option<String>,
}

/// The table of nftables by which an interface is disconnected from the host's stack.
pub(super) enum Table {
    /// It ends with this socket.
    Owned(OwnedFd),
    /// The broker removes it, or the undo process does.
    Undone(Undo),
}

/// Packet sockets as the daemon hands them to its successor.
#[derive(Serialize, Deserialize)]
pub(super) struct SavedPackets {
    why: String,
    mark: u32,
    /// Missing in states of earlier daemons.
    #[serde(default)]
    header: u8,
    receiver: Option<SavedReceiver>,
    sender: Option<FdIndex>,
    /// Lost of those that arrived, lost of those that were sent, full.
    counts: [u64; 3],
}

#[derive(Serialize, Deserialize)]
struct SavedReceiver {
    socket: FdIndex,
    slot: usize,
    table: Option<FdIndex>,
    /// Missing in states of earlier daemons.
    #[serde(default)]
    undo: Option<Handle>,
    shared: Option<String>,
}

/// The ring, and the descriptors of two sockets and a table.
pub(super) fn usage() -> Amounts {
    Amounts::of(Resource::Memory, packet_socket::MEMORY as u64).and(Amounts::of(Resource::Descriptors, 3))
}

impl Packets {
    pub(super) fn new(why: String) -> Result<Packets, Refusal> {
        let random = process::random().or_else(|e| refuse(ENOMEM, format!("no random numbers: {e}")))?;
        let mark = (random as u32).max(1);
        let (counters, full) = (Arc::default(), AtomicU64::new(0));
        Ok(Packets { why, mark, header: 0, receiver: None, sender: None, counters, full })
    }

    /// A program has the sockets itself, and its packets begin with a header of so many bytes.
    pub(super) fn for_program(self, header: u8) -> Packets {
        Packets { header, ..self }
    }

    /// For people: why packets are copied.
    pub(super) fn copy_reason(&self) -> String {
        format!("{} (packet sockets)", self.why)
    }

    /// For people: how packets are moved.
    pub(super) fn describe(&self) -> String {
        match self.receiver.as_ref().and_then(|receiver| receiver.shared.as_ref()) {
            None => "packet socket".into(),
            Some(why) => format!("packet socket, {why}"),
        }
    }

    /// Why the host's stack receives frames of the interface, or can send; `None`: it does neither.
    pub(super) fn why_connected(&self) -> Option<String> {
        match &self.receiver {
            None => Some("the stack has what arrives, as no program receives (open its receive rings)".into()),
            Some(receiver) => receiver.shared.clone(),
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.receiver.is_some() || self.sender.is_some()
    }

    /// Whether what a session on these rings needs is open.
    pub(super) fn has_open(&self, selection: &RingSelection) -> bool {
        (selection.rx.is_empty() || self.receiver.is_some()) && (selection.tx.is_empty() || self.sender.is_some())
    }

    /// Frames that were lost: of those that arrived, and of those that were sent.
    pub(super) fn lost(&self) -> (u64, u64) {
        if let Some(OpenReceiver { socket: (fd, _), .. }) = &self.receiver {
            self.full.fetch_add(packet_socket::take_dropped(fd.as_fd()).unwrap_or(0), Relaxed);
        }
        let (received, sent) = (self.counters.received.load(Relaxed), self.counters.sent.load(Relaxed));
        (received + self.full.load(Relaxed), sent)
    }

    pub(super) fn close_receiver(&mut self) {
        self.lost();
        self.receiver = None;
    }

    pub(super) fn close(&mut self) {
        self.close_receiver();
        self.sender = None;
    }
}

impl OpenReceiver {
    pub(super) fn of(
        fd: OwnedFd,
        slot: usize,
        table: Option<Table>,
        shared: Option<String>,
    ) -> io::Result<OpenReceiver> {
        let fd = Arc::new(fd);
        let ring = Arc::new(Mutex::new(Receiver::new(fd.clone(), slot)?));
        Ok(OpenReceiver { socket: (fd, ring), slot, table, shared })
    }
}

impl Packets {
    pub(super) fn save<'a>(&'a self, fds: &mut Outgoing<'a>) -> SavedPackets {
        let mut save_receiver = |open: &'a OpenReceiver| {
            let (fd, _) = &open.socket;
            let (table, undo) = match &open.table {
                Some(Table::Owned(socket)) => (Some(fds.add(socket)), None),
                Some(Table::Undone(undo)) => (None, Some(undo.handle())),
                None => (None, None),
            };
            SavedReceiver { socket: fds.add(&**fd), slot: open.slot, table, undo, shared: open.shared.clone() }
        };
        let receiver = self.receiver.as_ref().map(&mut save_receiver);
        let counts = [&self.counters.received, &self.counters.sent, &self.full].map(|count| count.load(Relaxed));
        let sender = self.sender.as_ref().map(|fd| fds.add(&**fd));
        SavedPackets { why: self.why.clone(), mark: self.mark, header: self.header, receiver, sender, counts }
    }
}

impl SavedPackets {
    pub(super) fn restore(self, fds: &mut Incoming) -> Result<Packets, Refusal> {
        let SavedPackets { why, mark, header, receiver, sender, counts: [received, sent, full] } = self;
        let receiver = receiver.map(|saved| {
            let (fd, table) = (fds.take(saved.socket)?, saved.table.map(|table| fds.take(table)).transpose()?);
            let table = table.map(Table::Owned).or_else(|| saved.undo.map(|undo| Table::Undone(Undo::of(undo))));
            // A program that has the socket, too, can have given it other rings while no daemon had them mapped.
            let failed = |e: &io::Error| tracing::error!("a socket of an interface cannot be taken over: {e}");
            Ok(OpenReceiver::of(fd, saved.slot, table, saved.shared).inspect_err(failed).ok())
        });
        let receiver = receiver.transpose()?.flatten();
        let sender = sender.map(|fd| fds.take(fd).map(Arc::new)).transpose()?;
        let counters = Arc::new(PacketCounters { received: received.into(), sent: sent.into() });
        Ok(Packets { why, mark, header, receiver, sender, counters, full: full.into() })
    }
}

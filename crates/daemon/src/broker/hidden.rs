// SPDX-License-Identifier: BSD-2-Clause
//! The hidden ends of persistent ports: all that one needs to be served is opened by one request.
//!
//! ```text
//! XDP program, and its maps    stay at the interface; the broker of the next daemon uses them as they are
//! companion                    that of a port whose visible end has its offloads, in place of both: stays, with its
//!                              tcx programs, and has a packet socket
//! sockets                      end with the daemon, and are made anew
//! ```

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::thread;

use serde::{Deserialize, Serialize};
use unetmap_sys::Mapping;
use unetmap_sys::link;
use unetmap_sys::netns::Netns;
use unetmap_sys::xdp::{Mode, Xdp};
use unetmap_sys::xsk::{self, Queue, Umem};

use super::objects::{Broker, Object, wait_at_fault};
use super::setup::{XdpId, inside, not_made_here};
use super::veth;
use crate::threads::lock;
use crate::tuning::broker::CLOSERS;

/// An open hidden end.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HiddenEnd {
    /// As the broker keeps it: with its mode, and whether it accepts packets of several buffers, and calls a filter.
    pub(crate) xdp: (XdpId, Mode, bool, bool),
    /// Frames that it did not send until now.
    pub(crate) tx_dropped: u64,
}

impl Broker {
    /// The buffers of a socket that is to be created, which begin at byte `at` of the region's file: mapped as long as
    /// the kernel needs their address.
    pub(super) fn buffers(&self, file: &OwnedFd, (at, bytes): (u64, u64), buffer: u32) -> io::Result<Umem> {
        wait_at_fault("interfaces", &self.setup.socket);
        let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
        let before = xsk::pool_offset_in_page(buffer);
        let start = at.checked_sub(before.into()).ok_or_else(invalid)?;
        let length = bytes.checked_add(before.into()).and_then(|all| usize::try_from(all).ok()).ok_or_else(invalid)?;
        let map = Arc::new(Mapping::part(file.as_fd(), start, length)?);
        Ok(Umem { map, offset: before as usize, bytes: length - before as usize, buffer })
    }

    /// Has the companion of a hidden end. Returns its near and its far end.
    pub(super) fn open_companion(&self, hidden: &Netns, index: u32) -> io::Result<(u32, u32)> {
        if !lock(&self.pairs).contains(&(hidden.id(), index)) {
            return Err(not_made_here());
        }
        let (near, far) = inside(hidden, || veth::keep_companion(index))?;
        lock(&self.pairs).extend([near, far].map(|end| (hidden.id(), end)));
        Ok((near, far))
    }

    /// Has the XDP program at a hidden end, and creates a socket for each of these queues, to which the program
    /// redirects frames once it is bound.
    pub(super) fn open_hidden_end(
        &self,
        (hidden, index): (&Netns, u32),
        queues: &[Queue],
        (file, (at, bytes, buffer)): (&OwnedFd, (u64, u64, u32)),
    ) -> io::Result<(HiddenEnd, Vec<OwnedFd>)> {
        if !lock(&self.pairs).contains(&(hidden.id(), index)) {
            return Err(not_made_here());
        }
        let umem = self.buffers(file, (at, bytes), buffer)?;
        let (xdp, tx_dropped, sockets) = inside(hidden, || {
            let mut xdp = Xdp::keep(index, queues.len() as u32)?;
            let mut sockets = Vec::with_capacity(queues.len());
            for queue in queues {
                // One registration of the buffers is enough.
                let socket = xsk::create(queue, &umem, sockets.is_empty())?;
                xdp.insert(queue.queue, &socket)?;
                sockets.push(socket);
            }
            Ok((xdp, link::frame_counts(index)?.map_or(0, |counts| counts.tx_dropped), sockets))
        })?;
        let (mode, frags, calls_filter) = (xdp.mode(), xdp.frags(), xdp.calls_filter());
        let duplicates = sockets.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>()?;
        let handle = self.keep(Object::Hidden(xdp, duplicates))?;
        let xdp = (XdpId(handle), mode, frags, calls_filter);
        Ok((HiddenEnd { xdp, tx_dropped }, sockets))
    }

    /// Closes the sockets of all hidden ends, after the end of the daemon. The kernel waits for a grace period of RCU
    /// whenever the last descriptor of a socket is closed: a process that exits would do that once for each, one after
    /// the other, and meanwhile no other daemon could have the queues.
    pub(super) fn close_sockets(&self) {
        let mut objects = lock(&self.objects);
        let mut sockets: Vec<OwnedFd> = Vec::new();
        for object in objects.values_mut() {
            if let Object::Hidden(_, duplicates) = &mut *lock(object) {
                sockets.append(duplicates);
            }
        }
        drop(objects);
        let each = sockets.len().div_ceil(CLOSERS).max(1);
        thread::scope(|scope| {
            while !sockets.is_empty() {
                let some = sockets.split_off(sockets.len().saturating_sub(each));
                // Without a thread they are closed here.
                let _ = thread::Builder::new().name("broker closer".into()).spawn_scoped(scope, move || drop(some));
            }
        });
    }

    /// Deletes the companion of a hidden end that is gone.
    pub(super) fn delete_companion(&self, hidden: &Netns, index: u32) -> io::Result<()> {
        if !lock(&self.pairs).iter().any(|(netns, _)| *netns == hidden.id()) {
            return Err(not_made_here());
        }
        inside(hidden, || veth::delete_companion(index))
    }
}

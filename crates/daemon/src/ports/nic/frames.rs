// SPDX-License-Identifier: BSD-2-Clause
//! The counters of which the account of an interface's frames is made ([`super::account`]).

use unetmap_sys::netns::Netns;
use unetmap_sys::xdp::{Account, SocketFrames};
use unetmap_sys::xsk::BindMode;

use super::Nic;
use super::account::{FramesSnapshot, Known};
use super::queue::OpenQueue;
use crate::privileged::{self, Xdp};

/// Bytes of the buffers of most ports, for frames of sockets that were closed.
const COMMON_BUFFER: u32 = 2048;

/// Of a program that stays, at an interface that is not open.
pub(super) fn of_unopened(netns: &Netns, index: u32, xdp: &Xdp) -> Option<FramesSnapshot> {
    let counts = privileged::frame_counts(netns, index).ok().flatten()?;
    FramesSnapshot::of(&account(xdp)?, counts, &Known { buffer: COMMON_BUFFER, ..Known::default() })
}

fn account(xdp: &Xdp) -> Option<Account> {
    xdp.account().inspect_err(|e| tracing::debug!("the frames of a program: {e}")).ok()
}

impl Nic {
    /// The counts of its XDP program, while one is attached.
    pub(super) fn account(&self) -> Option<Account> {
        account(self.xdp.as_deref()?)
    }

    /// The account of its frames, with these counts of the program.
    pub(super) fn frames(&self, account: &Account) -> Option<FramesSnapshot> {
        let (netns, index) = self.socket_place();
        let counts = privileged::frame_counts(netns, index).ok().flatten()?;
        let companion = self.relay.as_ref().map_or([0, 0], |relay| [relay.dropped(), relay.passed()]);
        let own = self.queues[..self.endpoint.shape.nic_pairs()].iter().flatten();
        let open = own.map(|queue| self.frames_of(queue)).fold(SocketFrames::default(), SocketFrames::and);
        let (buffer, host_passed) = (self.umem.receive_bytes(0), self.host.passed());
        FramesSnapshot::of(account, counts, &Known { open, companion, buffer, host_passed })
    }

    /// The frames that the kernel gave to the socket of a queue, or had no room for.
    fn frames_of(&self, queue: &OpenQueue) -> SocketFrames {
        let statistics = queue.statistics();
        let others = statistics.rx_dropped - statistics.rx_full;
        let copies = self.xdp_config.is_some_and(|config| config.bind_mode == BindMode::Copy);
        let no_buffer = if copies { statistics.rx_no_buffer.min(others) } else { 0 };
        SocketFrames {
            to_programs: queue.receive.as_ref().map_or(0, |rings| rings.received().into()),
            ring_full: statistics.rx_full,
            no_buffer,
            too_long: others - no_buffer,
        }
    }

    /// Adds the frames of sockets that are closed now to the account of the XDP program, which goes on.
    pub(super) fn add_to_account<'a>(&self, closed: impl Iterator<Item = &'a OpenQueue>) {
        let frames = closed.map(|queue| self.frames_of(queue)).fold(SocketFrames::default(), SocketFrames::and);
        if let Some(xdp) = self.xdp.as_deref().filter(|_| frames != SocketFrames::default())
            && let Err(e) = xdp.add_closed_sockets(frames)
        {
            tracing::warn!(name = self.name, "{frames:?} are in no account: {e}");
        }
    }
}

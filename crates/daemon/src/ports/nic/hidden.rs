// SPDX-License-Identifier: BSD-2-Clause
//! Opening the hidden end of a persistent port: by one request to the broker. Nobody else uses the interface, and what
//! others have is known of it: a veth in the daemon's own namespace.
//!
//! A port whose visible end has its offloads is served by packet sockets: what the kernel does not forward itself comes
//! by way of the companion, as it is, with up to 64 KB, and leaves by the hidden end.

use std::io::{self, ErrorKind};
use std::sync::Arc;

use unetmap_core::errno::{ENODEV, ENXIO};
use unetmap_sys::kernel;
use unetmap_sys::link::{Channels, Link};
use unetmap_sys::xdp::Mode;
use unetmap_sys::xsk::{BindMode, Queue, UnboundXsk, ZeroCopyObstacle};

use super::Nic;
use super::interface::XdpConfig;
use super::packets::Packets;
use super::relay::Relay;
use super::surveyed::Survey;
use crate::broker::HiddenEnd;
use crate::knobs::Admode;
use crate::privileged::{self, Xdp};
use crate::refusal::{Refusal, refuse};

impl Survey {
    /// The facts about a hidden end, of which so many queues are served.
    pub(in crate::ports) fn of_hidden_end(link: Link, queues: u32) -> Survey {
        Survey {
            name: link.name.clone(),
            link: Some(Some(link)),
            channels: Some(Channels { rx: queues, tx: queues }),
            features: Some(None),
            driver: Some(None),
            // Read when it is opened.
            tx_dropped: Some(0),
            ..Survey::default()
        }
    }
}

impl Nic {
    /// It is the hidden end of a persistent port, whose other end keeps its offloads or not.
    pub(in crate::ports) fn set_hidden(&mut self, keeps_offloads: bool) -> Result<(), Refusal> {
        (self.is_hidden, self.keeps_offloads) = (true, keeps_offloads);
        if keeps_offloads {
            self.packets = Some(Packets::new("its packets stay whole".into())?);
        }
        Ok(())
    }

    /// Whether it cuts large packets itself, as each veth whose offloads nobody else changes.
    pub(in crate::ports) fn cuts_packets(&self) -> bool {
        self.is_hidden
    }

    /// Has the companion; returns the index of its far end.
    pub(super) fn open_companion(&mut self) -> io::Result<u32> {
        let ends = privileged::open_companion(&self.netns, self.key.index)?;
        self.relay = Some(Relay::of_hidden_end(&self.netns, self.key.index, ends));
        Ok(ends.1)
    }

    /// Whether all of it is opened by one request. An older kernel's sockets receive no frame in several buffers.
    pub(super) fn opens_at_once(&self) -> bool {
        self.is_hidden
            && self.xdp.is_none()
            && matches!(self.admode, Admode::Best | Admode::Native)
            && !kernel::LARGE_FRAMES.is_newer_than_kernel()
    }

    /// Opens the sockets of all queues, to which the XDP program redirects packets; returns `false` if the broker is
    /// that of an earlier version, which has no such request.
    pub(super) fn open_at_once(&mut self) -> Result<bool, Refusal> {
        let config = XdpConfig { mode: Mode::Native, bind_mode: BindMode::Copy, frags: true };
        let queues: Vec<Queue> = (0..self.endpoint.shape.nic_pairs())
            .map(|queue| self.queue(self.key.index, queue, queue, (config.bind_mode, config.frags)))
            .collect();
        let opened = privileged::open_hidden(&self.netns, self.key.index, &queues, self.memory());
        if opened.as_ref().is_err_and(|e| e.kind() == ErrorKind::InvalidData) {
            return Ok(false);
        }
        let (HiddenEnd { xdp, tx_dropped }, sockets) = opened.or_else(|e| match e.raw_os_error() {
            Some(ENODEV) => refuse(ENXIO, "the interface has gone"),
            _ => self.explain(0, &e),
        })?;
        (self.xdp, self.tx_dropped_before) = (Some(Arc::new(Xdp::of(xdp))), tx_dropped);
        self.copy_reason = Some(ZeroCopyObstacle::Unsupported.to_string());
        self.set_config(config);
        for (queue, fd) in queues.into_iter().zip(sockets) {
            let pair = queue.queue as usize;
            let shared = self.shared_with(0..self.endpoint.shape.nic_pairs(), queue.headroom);
            let unbound =
                UnboundXsk::from_fd(fd, Queue { ifindex: self.socket_place().1, ..queue }, self.umem.clone(), shared);
            let mut open = self.start_queue(pair, unbound).or_else(|e| self.explain(pair, &e))?;
            open.in_xdp_map = true;
            self.queues[pair] = Some(open);
        }
        Ok(true)
    }
}

// SPDX-License-Identifier: BSD-2-Clause
//! Opening the sockets of an interface's queues, and the refusals when that fails.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use unetmap_core::errno::{EBUSY, EINVAL, ENOMEM, ENXIO, EOPNOTSUPP, EPERM};
use unetmap_sys::kernel;
use unetmap_sys::xsk::{self, BindMode, Queue, SocketRings, UnboundXsk, Way};

use super::busy_poll::refuse_busy_poll;
use super::heartbeat::NewQueue;
use super::queue::OpenQueue;
use super::refusals::interface_down;
use super::{HEADER, Nic, XdpConfig, libc_errno};
use crate::endpoint::{PortRing, RingSelection};
use crate::privileged::{self, Xdp};
use crate::refusal::{Refusal, refuse, refuse_for_now};

impl Nic {
    /// Opens the socket of a queue.
    pub(super) fn open_queue(&mut self, queue: usize) -> Result<(), Refusal> {
        if let Some(host) = queue.checked_sub(self.endpoint.shape.nic_pairs()) {
            return self.open_host_queue(host, queue);
        }
        let Some(xdp) = &self.xdp else { return refuse(ENXIO, "the interface has gone") };
        let (mode, frags) = (xdp.mode(), xdp.frags());
        let headroom = self.requested_headroom(queue);
        // The first queue determines the configuration of all others.
        let configs: Vec<XdpConfig> = match self.xdp_config {
            Some(XdpConfig { bind_mode: BindMode::ZeroCopy, .. }) if headroom > 0 => {
                return refuse(
                    EBUSY,
                    "it is open with zero copy, where packets begin at the start of their buffers: close it everywhere, \
                     and open it with offsets first",
                );
            }
            Some(config) => vec![config],
            None => {
                self.copy_reason = self.zero_copy_obstacle(mode, headroom);
                let all = [BindMode::ZeroCopy, BindMode::Copy];
                let bind_modes = match (&self.copy_reason, self.way) {
                    (Some(why), Way::ZeroCopy) => return self.refuse_way(why),
                    (Some(_), _) => &all[1..],
                    (None, Way::ZeroCopy) => &all[..1],
                    (None, _) => &all[..],
                };
                let frags: &[bool] = if frags { &[true, false] } else { &[false] };
                bind_modes
                    .iter()
                    .flat_map(|&bind_mode| frags.iter().map(move |&frags| XdpConfig { mode, bind_mode, frags }))
                    .collect()
            }
        };
        let (mut last, mut too_long) = (None, None);
        for config in configs {
            let failure = match self.open_socket(queue, config) {
                Ok(open) => match self.check_mtu(queue, config) {
                    Ok(()) => {
                        if let Some(busy_poll) = self.busy_poll {
                            privileged::set_busy_poll(&open.socket, busy_poll).or_else(|e| refuse_busy_poll(&e))?;
                        }
                        self.set_config(config);
                        self.queues[queue] = Some(open);
                        return Ok(());
                    }
                    Err(refusal) => too_long.insert(refusal).why.clone(),
                },
                Err(e) => {
                    let why = self.zero_copy_refusal(&e);
                    let try_next = matches!(e.raw_os_error(), Some(EINVAL | EOPNOTSUPP));
                    last = Some(e);
                    if !try_next {
                        break;
                    }
                    why
                }
            };
            if config.bind_mode == BindMode::ZeroCopy {
                self.copy_reason = Some(failure);
            }
        }
        if let Some(refusal) = too_long {
            return Err(refusal);
        }
        let e = last.unwrap_or_else(|| io::ErrorKind::Unsupported.into());
        match (&self.copy_reason, self.way) {
            (Some(why), Way::ZeroCopy) => self.refuse_way(why),
            _ => self.explain(queue, &e),
        }
    }

    /// Records how packets are moved, once the first socket is open.
    pub(super) fn set_config(&mut self, config: XdpConfig) {
        if self.xdp_config.replace(config).is_none()
            && let Some(why) = self.copy_reason()
        {
            tracing::info!(name = self.name, "packets are copied: {why}");
        }
    }

    fn open_host_queue(&mut self, host: usize, pair: usize) -> Result<(), Refusal> {
        let queue_config = self.queue(0, host, pair, (BindMode::Copy, true));
        let shared = self.shared_with(self.endpoint.shape.nic_pairs()..self.queues.len(), queue_config.headroom);
        let unbound = self.host.socket(queue_config, self.memory(), shared);
        match unbound.and_then(|unbound| self.start_queue(pair, unbound)) {
            Ok(open) => {
                self.queues[pair] = Some(open);
                Ok(())
            }
            Err(e) => refuse(EOPNOTSUPP, format!("host ring {host} cannot be opened: {e}")),
        }
    }

    fn open_socket(&self, queue: usize, config: XdpConfig) -> io::Result<OpenQueue> {
        let (netns, index) = self.socket_place();
        let queue_config = self.queue(index, queue, queue, (config.bind_mode, config.frags));
        let shared = self.shared_with(0..self.endpoint.shape.nic_pairs(), queue_config.headroom);
        let unbound = privileged::open_xsk(netns, queue_config, self.memory(), shared)?;
        let open = self.start_queue(queue, unbound)?;
        // What was asked for is not always what there is.
        match (config.bind_mode, xsk::is_zero_copy(&open.socket)?) {
            (BindMode::ZeroCopy, true) | (BindMode::Copy, false) => Ok(open),
            (BindMode::ZeroCopy, false) => Err(io::Error::other("the kernel bound the socket with copies")),
            (BindMode::Copy, true) => Err(io::Error::other("the kernel bound the socket with zero copy")),
        }
    }

    pub(super) fn queue(&self, ifindex: u32, queue: usize, pair: usize, (bind_mode, frags): (BindMode, bool)) -> Queue {
        Queue {
            ifindex,
            queue: queue as u32,
            tx_entries: self.endpoint.shape.tx_slots.get(),
            rx_entries: self.endpoint.shape.rx_slots.get(),
            mode: bind_mode,
            frags,
            headroom: self.requested_headroom(pair),
        }
    }

    /// Returns the socket of another queue with the same headroom, whose UMEM registration the new socket shares. Each
    /// registration locks all buffers in memory again, which takes time.
    pub(super) fn shared_with(&self, pairs: Range<usize>, headroom: u32) -> Option<BorrowedFd<'_>> {
        let mut same_headroom = self.queues[pairs].iter().flatten().filter(|open| open.headroom == headroom);
        same_headroom.next().map(|open| open.socket.as_fd())
    }

    pub(super) fn explain<T>(&self, queue: usize, e: &io::Error) -> Result<T, Refusal> {
        let name = &self.name;
        match e.raw_os_error() {
            Some(libc_errno::ENETDOWN) => interface_down(name),
            Some(libc_errno::EBUSY) => refuse_for_now(format!(
                "queue {queue} is held by another AF_XDP socket, perhaps of a program that still has an old port open"
            )),
            Some(libc_errno::ENOBUFS) => refuse(
                ENOMEM,
                "the packet buffers cannot be locked in memory: raise the limit (ulimit -l unlimited), or give the daemon \
                 CAP_IPC_LOCK",
            ),
            Some(libc_errno::EAFNOSUPPORT) => {
                refuse(EOPNOTSUPP, format!("this kernel has no AF_XDP sockets: {}", kernel::INTERFACES.refusal()))
            }
            Some(libc_errno::EPERM) => refuse(EPERM, "the daemon may not open AF_XDP sockets: it needs CAP_NET_RAW"),
            _ => refuse(EOPNOTSUPP, format!("queue {queue} cannot be opened: {e} (unetmap doctor {name} says more)")),
        }
    }

    /// Refuses an interface whose longest frames do not fit a buffer.
    fn check_mtu(&self, queue: usize, config: XdpConfig) -> Result<(), Refusal> {
        let (buffer, index) = (self.umem.receive_bytes(self.requested_headroom(queue)), self.key.index);
        let mtu = privileged::link(&self.netns, index).ok().flatten().map_or(0, |l| l.mtu);
        if config.frags || mtu + HEADER <= buffer {
            return Ok(());
        }
        refuse(
            EINVAL,
            format!(
                "its MTU is {mtu}, and frames of {} bytes do not fit buffers of {buffer} (ip link set dev {} mtu {})",
                mtu + HEADER,
                self.name,
                buffer.saturating_sub(HEADER)
            ),
        )
    }

    /// Bytes of each buffer that received packets of a ring pair must leave free.
    fn requested_headroom(&self, pair: usize) -> u32 {
        let rings = self.endpoint.tx.iter().chain(&self.endpoint.rx).filter(|ring| ring.pair == pair);
        rings.map(PortRing::headroom).max().unwrap_or(0)
    }

    /// Refuses a headroom larger than that of the queues that are open already.
    pub(super) fn check_open_headroom(&self, selection: &RingSelection, requested: u32) -> Result<(), Refusal> {
        if requested >= self.umem.buffer {
            return refuse(EINVAL, "offsets of a whole buffer leave no room for packets");
        }
        let queues = self.endpoint.bound(selection).filter_map(|ring| self.queues.get(ring.pair)?.as_ref());
        match queues.map(|open| open.headroom).find(|&has| has < requested) {
            Some(has) => refuse(EBUSY, format!("the queue is in use, with offsets of up to {has}")),
            None => Ok(()),
        }
    }

    /// Bytes of each buffer that received packets of an open ring pair leave free.
    pub(super) fn headroom(&self, pair: usize) -> u32 {
        self.queues.get(pair).and_then(Option::as_ref).map_or(0, |open| open.headroom)
    }

    /// Maps the rings of a new socket, offers all buffers of the receive ring to the kernel, and binds the socket.
    pub(super) fn start_queue(&self, pair: usize, unbound: UnboundXsk<'_>) -> io::Result<OpenQueue> {
        let (tx, rx) = self.rings_of(pair);
        OpenQueue::open(unbound, (&self.umem, self.requested_headroom(pair)), tx, rx, &self.sent)
    }

    /// The transmit ring of a pair, with the index of its first word in the page of transmitted frames, and the receive
    /// ring.
    pub(super) fn rings_of(&self, pair: usize) -> (Option<(&PortRing, usize)>, Option<&PortRing>) {
        let tx = self.endpoint.tx.iter().find(|ring| ring.pair == pair);
        let tx = tx.map(|ring| (ring, self.first_sent(ring.view.shape().id)));
        (tx, self.endpoint.rx.iter().find(|ring| ring.pair == pair))
    }

    /// The rings of all open sockets.
    pub(crate) fn socket_rings(&self) -> Vec<SocketRings> {
        self.queues.iter().flatten().map(|open| open.rings.clone()).collect()
    }
}

impl Nic {
    /// The program that stays, in place of one of this port.
    pub(super) fn staying_program(&self) -> Option<Arc<Xdp>> {
        self.stays.as_ref().map(|stays| stays.xdp.clone())
    }

    /// Has the heartbeat watch whether frames of a queue are taken, if a program stays at the interface.
    pub(super) fn watch_progress(&mut self, pair: usize) -> io::Result<()> {
        let Some(stays) = self.stays.as_ref().filter(|_| pair < self.endpoint.shape.nic_pairs()) else { return Ok(()) };
        let zero_copy = self.xdp_config.is_some_and(|config| config.bind_mode == BindMode::ZeroCopy);
        let Some(open) = self.queues[pair].as_ref().filter(|open| open.served.is_none()) else { return Ok(()) };
        let page = self.rings_of(pair).1.zip(self.endpoint.state_page());
        let sync = page.and_then(|(ring, page)| page.state_ref(ring.state));
        let Some((rings, sync)) = open.receive.clone().zip(sync) else { return Ok(()) };
        let new =
            NewQueue { name: &self.name, queue: pair as u32, rings, sync, zero_copy, bypass: stays.bypass.clone() };
        let served = self.heartbeat.add_queue(stays.xdp.deadline(), new)?;
        if let Some(open) = &mut self.queues[pair] {
            open.served = Some(served);
        }
        Ok(())
    }
}

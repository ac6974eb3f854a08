//! Interfaces: an AF_XDP socket for each queue that somebody has bound, and the XDP program that leads packets there.
//!
//! ```text
//! queue i    bound by somebody      one socket, bound to queue i; its memory is the buffer pool of the region
//!            receive ring bound     the socket is in the program's map, and packets of queue i go there
//!            nobody                 no socket: the queue is the kernel's
//! ```
//! The queues of the companion, which are the host rings, come after those of the interface (`host`).

mod attach;
mod sockets;

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use unetmap::bound::{FORWARDS, FORWARDS_ALL, FRAGS};
use unetmap::errno::{EINVAL, ENETDOWN, ENXIO};
use unetmap_abi::NmreqRegister;
use unetmap_mem::{SentPage, Slots};
use unetmap_sys::link::{self, Link};
use unetmap_sys::netns::Netns;
use unetmap_sys::tcx::Capture;
use unetmap_sys::xdp::{Mark, Mode, Xdp};
use unetmap_sys::xsk::{self, BUFFER_BYTES, BusyPoll, How, Umem};

use crate::end::{Binding, End, EndShape, PortRing, Way, shared_page};
use crate::filter::Kept;
use crate::host::{ALIVE, Host, near_name};
use crate::knobs::Admode;
use crate::queue::{OpenQueue, at_socket};
use crate::refusal::{Refusal, refuse};
use crate::region::{House, HouseId, Scope};

use attach::secret_mark;

/// Which interface: its namespace and index, and a number that tells it from an earlier one of the same index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct NicKey {
    pub(crate) netns: u64,
    pub(crate) index: u32,
    pub(crate) serial: u64,
}

/// Slots of a transmit ring, unless others are asked for: as many as keep a wire busy. With more, their buffers, which all
/// begin at the same few places of a processor's cache, drive each other out of it.
const DEFAULT_TX_SLOTS: u32 = 512;
/// Slots of a receive ring: what comes while the program does something else.
const DEFAULT_RX_SLOTS: u32 = 1024;
const MOST_SLOTS: u32 = 4096;
/// Pairs of host rings.
const MOST_HOST_RINGS: u16 = 64;
/// Bytes of an Ethernet header with one VLAN tag.
const HEADER: u32 = 18;

/// How packets get in and out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Manner {
    pub(crate) mode: Mode,
    pub(crate) how: How,
    /// Whether packets may be spread over several buffers.
    pub(crate) frags: bool,
}

/// An interface that somebody has open.
pub(crate) struct Nic {
    pub(crate) name: String,
    pub(crate) scope: Scope,
    pub(crate) house: HouseId,
    pub(crate) end: End,
    pub(crate) sent_fd: OwnedFd,
    pub(crate) sent_bytes: usize,
    sent: SentPage,
    netns: Arc<Netns>,
    index: u32,
    umem: Umem,
    /// Which frames enter; none: all.
    pub(crate) filter: Option<Arc<Kept>>,
    /// How sockets of its queues poll busily, which are bound from now on.
    pub(crate) busy: Option<BusyPoll>,
    /// Whether whatever programs give back goes on to the other side (the knob `fwd`).
    pub(crate) forwards: bool,
    queues: Vec<Option<OpenQueue>>,
    xdp: Option<Xdp>,
    host: Host,
    /// What generic mode lets pass to the stack.
    mark: Mark,
    /// Known once a socket is bound.
    pub(crate) manner: Option<Manner>,
    admode: Admode,
    /// Whether it was deleted, or went to another namespace.
    pub(crate) gone: bool,
}

/// Slots and rings of a port on an interface with so many queues.
pub(crate) fn shape_of(channels: &link::Channels, asked: &NmreqRegister) -> Result<EndShape, Refusal> {
    let slots = |wish: u32, default: u32| {
        let n = if wish == 0 { default } else { wish.clamp(2, MOST_SLOTS).next_power_of_two() };
        Slots::new(n).map_or_else(|| refuse(EINVAL, format!("a ring has 2 to {MOST_SLOTS} slots, not {n}")), Ok)
    };
    let rings = |n: u32| u16::try_from(n.clamp(1, 256)).unwrap_or(256);
    let host_rings = |wish: u16| wish.clamp(1, MOST_HOST_RINGS);
    Ok(EndShape {
        tx_rings: rings(channels.tx),
        rx_rings: rings(channels.rx),
        host_tx_rings: host_rings(asked.nr_host_tx_rings),
        host_rx_rings: host_rings(asked.nr_host_rx_rings),
        tx_slots: slots(asked.nr_tx_slots, DEFAULT_TX_SLOTS)?,
        rx_slots: slots(asked.nr_rx_slots, DEFAULT_RX_SLOTS)?,
    })
}

impl Nic {
    /// Makes the rings. The interface is not touched yet.
    pub(crate) fn make(
        house: &mut House,
        scope: Scope,
        netns: Arc<Netns>,
        link: &Link,
        (shape, admode): (EndShape, Admode),
    ) -> Result<Nic, Refusal> {
        let buffer = house.region.limits().buf_size;
        if !BUFFER_BYTES.contains(&buffer) {
            let (least, most) = (BUFFER_BYTES.start(), BUFFER_BYTES.end());
            return refuse(
                EINVAL,
                format!(
                    "buffers of {buffer} bytes do not suit an interface, {least} to {most} do (unetmap set buf_size)"
                ),
            );
        }
        let sent_bytes = SentPage::bytes(usize::from(shape.all_tx()) * shape.tx_slots.get() as usize);
        let (window, sent_fd) = shared_page("unetmap-sent", sent_bytes)?;
        let end = End::make(house, shape, Way::Kernel)?;
        let queues = (0..shape.pairs()).map(|_| None).collect();
        let host = Host::new(netns.clone(), link.index, (shape.pairs() - shape.nic_pairs()) as u32);
        Ok(Nic {
            name: link.name.clone(),
            scope,
            house: house.id,
            end,
            sent_fd,
            sent_bytes,
            sent: SentPage::new(window),
            netns,
            index: link.index,
            umem: house.region.umem(),
            filter: None,
            busy: None,
            forwards: false,
            queues,
            xdp: None,
            host,
            mark: secret_mark()?,
            manner: None,
            admode,
            gone: false,
        })
    }

    /// Opens the sockets that `binding` needs, and leads packets to its receive rings. On failure nothing has changed.
    pub(crate) fn raise(&mut self, binding: &Binding) -> Result<(), Refusal> {
        let result = self.try_raise(binding);
        if result.is_err() {
            self.settle();
        }
        result
    }

    fn try_raise(&mut self, binding: &Binding) -> Result<(), Refusal> {
        if self.gone {
            return refuse(ENXIO, "the interface has gone");
        }
        let own = self.end.shape.nic_pairs();
        let pairs: BTreeSet<usize> = self.end.bound_by(binding).map(|ring| ring.pair).collect();
        if pairs.first().is_some_and(|first| *first < own) && self.xdp.is_none() {
            self.attach()?;
        }
        if pairs.last().is_some_and(|last| *last >= own) {
            self.host.raise(self.frames_mark())?;
        }
        for pair in pairs {
            if self.queues[pair].is_none() {
                self.open_queue(pair)?;
            }
        }
        for &ring in &binding.rx {
            let pair = self.end.rx[ring].pair;
            let (xdp, queue) = match pair.checked_sub(own) {
                None => (self.xdp.as_mut(), pair),
                Some(host) => (self.host.xdp(), host),
            };
            let Some(xdp) = xdp else { return refuse(ENXIO, "the interface has gone") };
            if let Some(open) = &mut self.queues[pair]
                && !open.entered
            {
                xdp.insert(queue as u32, &open.socket).or_else(|e| refuse(EINVAL, format!("queue {queue}: {e}")))?;
                open.entered = true;
            }
        }
        Ok(())
    }

    /// Binds the rings, whose sockets are open.
    pub(crate) fn bind(&mut self, binding: &Binding) {
        let (queues, page) = (&self.queues, self.end.page.clone());
        self.end.bind(binding, |ring, transmit| at_socket(queues, &page, ring, transmit));
        self.lead();
    }

    /// Closes the sockets that nobody has bound any more, and gives back the interface after the last.
    pub(crate) fn settle(&mut self) {
        // What the host sends finds another way before this one ends.
        self.lead();
        let own = self.end.shape.nic_pairs();
        for (pair, queue) in self.queues.iter_mut().enumerate() {
            let bound = |rings: &[PortRing]| rings.iter().any(|ring| ring.pair == pair && ring.binders() > 0);
            let (sends, receives) = (bound(&self.end.tx), bound(&self.end.rx));
            let Some(open) = queue else { continue };
            if open.entered && !receives {
                let (xdp, queue) = match pair.checked_sub(own) {
                    None => (self.xdp.as_mut(), pair),
                    Some(host) => (self.host.xdp(), host),
                };
                if let Some(xdp) = xdp
                    && let Err(e) = xdp.remove(queue as u32)
                {
                    tracing::debug!(name = self.name, queue, "taking the socket out: {e}");
                }
                open.entered = false;
            }
            if !sends && !receives {
                *queue = None;
            }
        }
        let (nic, host) = self.queues.split_at(own);
        let (nic_idle, host_idle) = (nic.iter().all(Option::is_none), host.iter().all(Option::is_none));
        if nic_idle {
            // The program at the entrance knows the mark until nothing carries it any more.
            self.host.set_mark(Mark::default());
            (self.xdp, self.manner) = (None, None);
        }
        match (nic_idle, host_idle) {
            (true, true) => self.host.detach(),
            (false, true) => self.host.lower(),
            (_, false) => {}
        }
    }

    /// What becomes of what the host sends, as the rings are bound now.
    fn lead(&mut self) {
        let shape = self.end.shape;
        let (own_rx, host_rx) = self.end.rx.split_at(shape.rx_rings.into());
        let mut own = self.end.tx.iter().take(shape.tx_rings.into()).chain(own_rx);
        let bound = |ring: &PortRing| ring.binders() > 0;
        self.host.set_capture(if host_rx.iter().any(bound) {
            Capture::ToTheRings
        } else if own.all(bound) && self.filter.is_none() && !self.forwards {
            Capture::Nowhere
        } else {
            Capture::ToTheWire
        });
    }

    /// The daemon is at work.
    pub(crate) fn keep(&mut self) {
        if let Some(xdp) = &mut self.xdp
            && let Err(e) = xdp.keep(ALIVE)
        {
            tracing::error!(name = self.name, "the interface cannot be kept: {e}");
        }
        self.host.keep();
    }

    /// The companion's near end was removed by somebody: whoever has host rings open is told.
    pub(crate) fn host_gone(&mut self, index: u32) {
        if !self.host.is_near(index) {
            return;
        }
        tracing::warn!(name = self.name, "somebody removed {}: its host rings end", near_name(self.index));
        self.host.lower();
        let own = self.end.shape.nic_pairs();
        self.end.end_some(|ring| ring.pair >= own);
    }

    /// The interface has gone: whoever has it open is told at the next call, and woken if asleep.
    pub(crate) fn end_all(&mut self) {
        self.gone = true;
        self.end.end_all();
        // Where it went it is the kernel's at once, whatever the programs do that still have it open.
        self.xdp = None;
        self.host.detach();
        self.queues.iter_mut().for_each(|queue| *queue = None);
    }

    /// Its state or settings changed. Those who sleep look again: packets that a link that was down kept may go now.
    pub(crate) fn changed(&mut self, link: &Link) {
        tracing::debug!(name = link.name, up = link.up, carrier = link.carrier, mtu = link.mtu, "interface changed");
        let frags = self.manner.is_none_or(|manner| manner.frags);
        if !frags && link.mtu + HEADER > self.umem.buffer {
            let (mtu, buffer) = (link.mtu, self.umem.buffer);
            tracing::warn!(name = link.name, mtu, buffer, "longer frames than buffers are lost: set a smaller MTU");
        }
        for ring in self.end.tx.iter().chain(&self.end.rx).filter(|ring| ring.binders() > 0) {
            ring.bell.ring();
        }
    }

    /// What is left when it is closed.
    pub(crate) fn into_end(self) -> End {
        self.end
    }

    /// The socket of a pair of rings.
    pub(crate) fn socket(&self, pair: usize) -> Option<BorrowedFd<'_>> {
        self.queues.get(pair)?.as_ref().map(|queue| queue.socket.as_fd())
    }

    /// The first word of transmit ring `id` in the page of what was sent.
    pub(crate) fn first_sent(&self, id: u16) -> usize {
        usize::from(id) * self.end.shape.tx_slots.get() as usize
    }

    /// Whether packets may be spread over several buffers.
    pub(crate) fn frags(&self) -> bool {
        self.manner.is_some_and(|manner| manner.frags)
    }

    /// How packets get in and out, for people.
    pub(crate) fn describe(&self) -> String {
        let Some(manner) = self.manner else { return (if self.gone { "gone" } else { "not bound" }).into() };
        let way = match (manner.mode, manner.how) {
            (Mode::Native, How::ZeroCopy) => "native, zero copy",
            (Mode::Native, How::Copy) => "native, copy",
            (Mode::Generic, _) => "generic, copy",
        };
        if self.gone { format!("gone ({way})") } else { way.into() }
    }

    /// [`FRAGS`] or 0: what the socket of a pair of rings can do.
    pub(crate) fn features(&self, pair: usize) -> u32 {
        if pair >= self.end.shape.nic_pairs() || self.frags() { FRAGS } else { 0 }
    }

    /// [`FORWARDS`] and [`FORWARDS_ALL`]: whether what programs give back can go on, of itself.
    pub(crate) fn forwarding(&self) -> u32 {
        if self.forwards { FORWARDS | FORWARDS_ALL } else { FORWARDS }
    }

    /// What the kernel counted for a pair of rings since it was opened.
    pub(crate) fn statistics(&self, pair: usize) -> xsk::Statistics {
        self.queues.get(pair).and_then(Option::as_ref).map(OpenQueue::statistics).unwrap_or_default()
    }

    /// Whether somebody has host rings.
    pub(crate) fn host_is_served(&self) -> bool {
        self.queues[self.end.shape.nic_pairs()..].iter().any(Option::is_some)
    }

    /// Frames that the host sent while nobody had its rings.
    pub(crate) fn host_dropped(&self) -> u64 {
        self.host.dropped()
    }

    /// Frees the locks of the dead process with `lease`. It may have died between moving a position of the socket and
    /// writing that down: the socket is right.
    pub(crate) fn break_locks(&self, lease: u32) -> usize {
        for ring in self.end.tx.iter().chain(&self.end.rx) {
            if let Some(state) = self.end.page.state(ring.state)
                && state.is_locked_by(lease)
            {
                let (hwcur, hwtail) = at_socket(&self.queues, &self.end.page, ring, ring.view.shape().dir == 0);
                state.set_hwcur(hwcur);
                state.set_hwtail(hwtail);
            }
        }
        self.end.break_locks(lease)
    }
}

/// Not every driver refuses by itself.
pub(crate) fn is_down<T>(name: &str) -> Result<T, Refusal> {
    refuse(ENETDOWN, format!("the interface is down (ip link set dev {name} up)"))
}

/// The kernel's errnos that mean something here.
mod libc_errno {
    pub(super) const EPERM: i32 = 1;
    pub(super) const EBUSY: i32 = 16;
    pub(super) const EEXIST: i32 = 17;
    pub(super) const EAFNOSUPPORT: i32 = 97;
    pub(super) const ENETDOWN: i32 = 100;
    pub(super) const ENOBUFS: i32 = 105;
}

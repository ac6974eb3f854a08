//! The sockets of an interface's queues: in which manner they can be opened, and what is told when none can.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

use unetmap::errno::{EAGAIN, EBUSY, EINVAL, ENOMEM, ENXIO, EOPNOTSUPP, EPERM};
use unetmap_sys::link;
use unetmap_sys::xdp::Mode;
use unetmap_sys::xsk::{self, How, Queue, Xsk};

use super::{HEADER, Manner, Nic, is_down, libc_errno};
use crate::busy::refuse_busy;
use crate::end::Binding;
use crate::queue::OpenQueue;
use crate::refusal::{Refusal, refuse};

impl Nic {
    pub(super) fn open_queue(&mut self, queue: usize) -> Result<(), Refusal> {
        if let Some(host) = queue.checked_sub(self.end.shape.nic_pairs()) {
            return self.open_host_queue(host, queue);
        }
        let Some(xdp) = &self.xdp else { return refuse(ENXIO, "the interface has gone") };
        let (mode, frags) = (xdp.mode(), xdp.frags());
        // Once a queue is open all others are opened in the same manner.
        let manners: Vec<Manner> = match self.manner {
            Some(manner) => vec![manner],
            None => {
                let hows: &[How] = if self.offers_zero_copy(mode) { &[How::ZeroCopy, How::Copy] } else { &[How::Copy] };
                let frags: &[bool] = if frags { &[true, false] } else { &[false] };
                hows.iter().flat_map(|&how| frags.iter().map(move |&frags| Manner { mode, how, frags })).collect()
            }
        };
        let (mut last, mut too_long) = (None, None);
        for manner in manners {
            match self.bind_socket(queue, manner) {
                Ok(_) if self.fits(queue, manner).is_err() => too_long = self.fits(queue, manner).err(),
                Ok(socket) => {
                    if let Some(busy) = self.busy {
                        xsk::set_busy_poll(&socket, busy).or_else(|e| refuse_busy(&e))?;
                    }
                    self.manner = Some(manner);
                    return self.start_queue(queue, socket);
                }
                Err(e) => {
                    let other_manner_helps = matches!(e.raw_os_error(), Some(EINVAL | EOPNOTSUPP));
                    last = Some(e);
                    if !other_manner_helps {
                        break;
                    }
                }
            }
        }
        if let Some(refusal) = too_long {
            return Err(refusal);
        }
        let e = last.unwrap_or_else(|| io::ErrorKind::Unsupported.into());
        self.explain(queue, &e)
    }

    /// Whether the driver offers zero copy, and the buffers are fit for it.
    fn offers_zero_copy(&self, mode: Mode) -> bool {
        let index = self.index;
        let features = self.netns.run(|| link::xdp_features(index)).and_then(|asked| asked);
        if mode != Mode::Native || !features.is_ok_and(|known| known.is_some_and(|features| features.zerocopy)) {
            return false;
        }
        let contiguous = self.umem.make_contiguous();
        if let Err(e) = &contiguous {
            tracing::warn!(name = self.name, "no huge pages for the buffers, so no zero copy: {e}");
        }
        contiguous.is_ok()
    }

    fn open_host_queue(&mut self, host: usize, pair: usize) -> Result<(), Refusal> {
        let asked = self.queue(0, host, pair, (How::Copy, true));
        let beside = self.beside(self.end.shape.nic_pairs()..self.queues.len(), asked.headroom);
        match self.host.bind_socket(asked, self.umem.clone(), beside) {
            Ok(socket) => self.start_queue(pair, socket),
            Err(e) => refuse(EOPNOTSUPP, format!("host ring {host} cannot be opened: {e}")),
        }
    }

    fn bind_socket(&self, queue: usize, manner: Manner) -> io::Result<Xsk> {
        let asked = self.queue(self.index, queue, queue, (manner.how, manner.frags));
        let (umem, beside) = (self.umem.clone(), self.beside(0..self.end.shape.nic_pairs(), asked.headroom));
        self.netns.run(|| Xsk::bind(asked, umem, beside))?
    }

    fn queue(&self, ifindex: u32, queue: usize, pair: usize, (how, frags): (How, bool)) -> Queue {
        Queue {
            ifindex,
            queue: queue as u32,
            tx_entries: self.end.shape.tx_slots.get(),
            rx_entries: self.end.shape.rx_slots.get(),
            how,
            frags,
            headroom: self.wanted_headroom(pair),
        }
    }

    /// The socket of another queue of the same interface. One registration serves all queues with its headroom: each locks
    /// all buffers in memory anew, which takes its time.
    fn beside(&self, pairs: Range<usize>, headroom: u32) -> Option<BorrowedFd<'_>> {
        let mut alike = self.queues[pairs].iter().flatten().filter(|open| open.headroom == headroom);
        alike.next().map(|open| open.socket.as_fd())
    }

    pub(super) fn explain<T>(&self, queue: usize, e: &io::Error) -> Result<T, Refusal> {
        let name = &self.name;
        match e.raw_os_error() {
            Some(libc_errno::ENETDOWN) => is_down(name),
            Some(libc_errno::EBUSY) => refuse(
                EAGAIN,
                format!(
                    "queue {queue} is held by another AF_XDP socket, perhaps of a program that still has an old port open"
                ),
            ),
            Some(libc_errno::ENOBUFS) => refuse(
                ENOMEM,
                "the packet buffers cannot be locked in memory: raise the limit (ulimit -l unlimited), or give the daemon \
                 CAP_IPC_LOCK",
            ),
            Some(libc_errno::EAFNOSUPPORT) => refuse(
                EOPNOTSUPP,
                "this kernel has no AF_XDP sockets (it needs CONFIG_XDP_SOCKETS, Linux 5.11 or newer)",
            ),
            Some(libc_errno::EPERM) => refuse(EPERM, "the daemon may not open AF_XDP sockets: it needs CAP_NET_RAW"),
            _ => refuse(EOPNOTSUPP, format!("queue {queue} cannot be opened: {e} (unetmap doctor {name} says more)")),
        }
    }

    /// Whether the longest frames fit buffers.
    fn fits(&self, queue: usize, manner: Manner) -> Result<(), Refusal> {
        let (buffer, index) = (self.umem.buffer.saturating_sub(self.wanted_headroom(queue)), self.index);
        let mtu = self.netns.run(|| link::by_index(index)).ok().and_then(Result::ok).flatten().map_or(0, |l| l.mtu);
        if manner.frags || mtu + HEADER <= buffer {
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

    /// Bytes of each buffer that received packets of a pair that is to be opened leave free.
    fn wanted_headroom(&self, pair: usize) -> u32 {
        let rings = self.end.tx.iter().chain(&self.end.rx).filter(|ring| ring.pair == pair);
        rings.map(|ring| ring.headroom).max().unwrap_or(0)
    }

    /// Whether the queues that are open already leave so many bytes free; others will.
    pub(crate) fn judge_headroom(&self, binding: &Binding, wanted: u32) -> Result<(), Refusal> {
        if wanted >= self.umem.buffer {
            return refuse(EINVAL, "with offsets of a whole buffer there is no room for packets");
        }
        let queues = self.end.bound_by(binding).filter_map(|ring| self.queues.get(ring.pair)?.as_ref());
        match queues.map(|open| open.headroom).find(|&has| has < wanted) {
            Some(has) => refuse(EBUSY, format!("the queue is in use, with offsets of up to {has}")),
            None => Ok(()),
        }
    }

    /// Bytes of each buffer that received packets of a pair of rings leave free.
    pub(crate) fn headroom(&self, pair: usize) -> u32 {
        self.queues.get(pair).and_then(Option::as_ref).map_or(0, |open| open.headroom)
    }

    /// The rings of a new socket; all buffers of the receive ring are offered.
    fn start_queue(&mut self, pair: usize, socket: Xsk) -> Result<(), Refusal> {
        let tx = self.end.tx.iter().find(|ring| ring.pair == pair);
        let tx = tx.map(|ring| (ring, self.first_sent(ring.view.shape().id)));
        let rx = self.end.rx.iter().find(|ring| ring.pair == pair);
        let headroom = self.wanted_headroom(pair);
        self.queues[pair] = Some(OpenQueue::start(socket, (&self.umem, headroom), tx, rx, &self.sent)?);
        Ok(())
    }
}

// SPDX-License-Identifier: BSD-2-Clause
//! An interface in a proof: its XDP program, and a socket for each queue.

use std::io::ErrorKind;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use unetmap_mem::{BufIdx, MappedRange, Pos, Slots, Span, TxFramesPage, UmemLayout, XskDesc, XskRxRings, XskTxRings};
use unetmap_sys::link::{self, Link};
use unetmap_sys::netns::Netns;
use unetmap_sys::xdp::{Mode, Xdp};
use unetmap_sys::xsk::{self, BindMode, MAX_PACKET, Queue, UnboundXsk, Xsk, ZERO_COPY_BUFFER};
use unetmap_sys::{Mapping, memfd};

use super::client::Stop;
use super::frames::{self, Arrived, SHORTEST, Tag};
use super::memory::{Memory, RX, TX, rx_buffer, tx_buffer};

/// Bytes of an Ethernet header.
const HEADER: u32 = 14;
/// How long the program of a client that was killed may stay, and how often it is looked for.
const RELEASE: Duration = Duration::from_secs(10);
const RELEASE_POLL: Duration = Duration::from_millis(10);

/// The facts about an end for a client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct EndPlan {
    pub(super) interface: String,
    /// The file of its network namespace; `None`: that of this process.
    pub(super) netns: Option<PathBuf>,
    pub(super) zero_copy: bool,
    /// For each queue the file of its memory, and its seed.
    pub(super) queues: Vec<(PathBuf, u64)>,
}

/// Does something in the network namespace of a file.
pub(super) fn inside<T: Send>(
    netns: Option<&PathBuf>,
    work: impl FnOnce() -> std::io::Result<T> + Send,
) -> std::io::Result<T> {
    match netns {
        None => work(),
        Some(path) => Netns::of_path(path)?.run(work)?,
    }
}

/// An open end.
pub(super) struct End {
    plan: EndPlan,
    link: Link,
    xdp: Xdp,
    lanes: Vec<Lane>,
    /// The queue that sends next.
    next: usize,
}

/// A queue: its socket, its memory, and which buffers the kernel has.
struct Lane {
    memory: Memory,
    socket: Xsk,
    tx: XskTxRings,
    rx: XskRxRings,
    tx_slots: Slots,
    /// By transmit slot: the packet that the kernel has there.
    sent: Vec<Option<Vec<u8>>>,
    /// The first slot that is not known to be complete.
    reaped: Pos,
    /// By receive slot: whether the kernel has the buffer.
    with_kernel: Vec<bool>,
}

/// Attaches the program, once that of a client that was killed is gone: the kernel removes it in its own time.
fn attach(index: u32, queues: u32) -> std::io::Result<Xdp> {
    let start = Instant::now();
    loop {
        match Xdp::attach(index, queues, Mode::Native) {
            Err(e) if e.kind() == ErrorKind::ResourceBusy && start.elapsed() < RELEASE => thread::sleep(RELEASE_POLL),
            attached => return attached,
        }
    }
}

impl End {
    pub(super) fn open(plan: &EndPlan) -> Result<End, Stop> {
        let opened = inside(plan.netns.as_ref(), || Ok(End::open_here(plan)));
        opened?.map_err(|stop| match stop {
            Stop::Cannot(why) => Stop::Cannot(format!("{}: {why}", plan.interface)),
            difference => difference,
        })
    }

    fn open_here(plan: &EndPlan) -> Result<End, Stop> {
        let link = link::by_name(&plan.interface)?.ok_or_else(|| Stop::Cannot("no such interface".into()))?;
        let queues = plan.queues.len() as u32;
        let mut xdp = attach(link.index, queues)?;
        xdp.deadline().extend(Duration::from_secs(60))?;
        let mode = if plan.zero_copy { BindMode::ZeroCopy } else { BindMode::Copy };
        let mut lanes = Vec::new();
        for (number, (path, seed)) in plan.queues.iter().enumerate() {
            let lane = Lane::open(Memory::open(path, *seed)?, link.index, number as u32, mode)?;
            xdp.insert(number as u32, &lane.socket)?;
            lanes.push(lane);
        }
        Ok(End { plan: plan.clone(), link, xdp, lanes, next: 0 })
    }

    pub(super) fn name(&self) -> &str {
        &self.plan.interface
    }

    pub(super) fn mac(&self) -> [u8; 6] {
        self.link.mac.unwrap_or_default()
    }

    /// Bytes of the longest frame.
    pub(super) fn longest(&self) -> usize {
        self.link.mtu.saturating_add(HEADER).min(MAX_PACKET).max(SHORTEST as u32) as usize
    }

    pub(super) fn has_carrier(&self) -> std::io::Result<bool> {
        let index = self.link.index;
        let link = inside(self.plan.netns.as_ref(), || link::by_index(index))?;
        Ok(link.is_some_and(|link| link.carrier))
    }

    /// Lets the XDP program go on for so long.
    pub(super) fn extend(&self, time: Duration) -> std::io::Result<()> {
        self.xdp.deadline().extend(time).map(drop)
    }

    /// Sends a frame, by each queue in turn. `false`: its ring is full.
    pub(super) fn send(&mut self, tag: Tag, to: [u8; 6], longest: usize) -> Result<bool, Stop> {
        let own = self.mac();
        let lane = &mut self.lanes[self.next];
        let slot = lane.tx.next_tx();
        if lane.tx_slots.next(slot) == lane.reaped {
            return Ok(false);
        }
        let mut frame = vec![0; frames::length(tag.number, longest)];
        tag.write((to, own), &mut frame);
        let buffer = tx_buffer(slot.raw());
        lane.memory.write(buffer, &frame)?;
        let (buf_idx, len) = (BufIdx(buffer), frame.len() as u32);
        lane.tx.write_tx(slot, Some(XskDesc { buf_idx, offset: 0, len, continued: false }));
        lane.tx.submit(1);
        lane.sent[slot.raw() as usize] = Some(frame);
        self.next = (self.next + 1) % self.lanes.len();
        Ok(true)
    }

    /// Takes back the buffers of sent frames, as they should be. Returns whether there were any.
    pub(super) fn complete(&mut self) -> Result<bool, Stop> {
        let (mut any, name) = (false, self.plan.interface.clone());
        for lane in &mut self.lanes {
            if lane.reaped != lane.tx.next_tx() && lane.tx.needs_wakeup() {
                // An interface that is down, or busy, is asked again.
                let _ = xsk::kick_tx(lane.socket.as_fd());
            }
            let (from, to) = (lane.reaped, lane.tx.next_tx());
            lane.reaped = lane.tx.reap_completions(from, to);
            for slot in lane.tx_slots.walk(Span { from, to: lane.reaped }) {
                any = true;
                let buffer = tx_buffer(slot.raw());
                if let Some(frame) = lane.sent[slot.raw() as usize].take()
                    && !lane.memory.still_has(buffer, &frame)?
                {
                    let what = format!("sent by {name}: buffer {buffer} was changed while its frame was sent");
                    return Err(Stop::Difference(what));
                }
            }
        }
        Ok(any)
    }

    /// Takes the next frame that arrived, and gives its buffer back.
    pub(super) fn receive(&mut self) -> Result<Option<Arrived>, Stop> {
        let name = &self.plan.interface;
        let wrong = |what: String| Err(Stop::Difference(format!("received at {name}: {what}")));
        for lane in &mut self.lanes {
            if lane.rx.needs_wakeup() {
                let _ = xsk::kick_rx(lane.socket.as_fd());
            }
            if lane.rx.rx_available() == 0 {
                continue;
            }
            let (place, length, continued) = lane.rx.peek_rx(0);
            let slot = place.and_then(|(buffer, _)| Some((buffer.0, (buffer.0 / 2).checked_sub(TX)?)));
            let Some((buffer, slot)) = slot.filter(|(buffer, slot)| *slot < RX && rx_buffer(*slot) == *buffer) else {
                return wrong(format!("a frame in {place:?}, which is no buffer for receiving"));
            };
            if !std::mem::replace(&mut lane.with_kernel[slot as usize], false) {
                return wrong(format!("a frame in buffer {buffer}, which the kernel did not have"));
            }
            if length > MAX_PACKET || continued {
                return wrong(format!("a frame of {length} bytes, which is not whole, or does not fit its buffer"));
            }
            if lane.memory.still_has(buffer, &[])? {
                return wrong(format!("a frame of {length} bytes, none of which is in its buffer {buffer}"));
            }
            let arrived = frames::read(&lane.memory.read(buffer, length as usize)?);
            lane.rx.release_rx(1);
            lane.give(slot)?;
            return Ok(Some(arrived));
        }
        Ok(None)
    }

    /// Whether all that was to be sent is complete.
    pub(super) fn is_idle(&self) -> bool {
        self.lanes.iter().all(|lane| lane.reaped == lane.tx.next_tx())
    }

    /// The kernel's counters, in words.
    pub(super) fn counters(&self) -> String {
        let all = self.lanes.iter().map(|lane| xsk::statistics(lane.socket.as_fd()).unwrap_or_default());
        let dropped: u64 = all.map(|counters| counters.rx_dropped).sum();
        format!("its sockets dropped {dropped}")
    }
}

impl Lane {
    fn open(memory: Memory, ifindex: u32, queue: u32, mode: BindMode) -> Result<Lane, Stop> {
        let umem = memory.umem()?;
        let config = Queue { ifindex, queue, tx_entries: TX, rx_entries: RX, mode, frags: false, headroom: 0 };
        let unbound = UnboundXsk::new(config, umem, None)?;
        let rings = unbound.map_rings()?;
        let layout = UmemLayout { size: ZERO_COPY_BUFFER, count: Memory::buffers(), headroom: 0 };
        let bytes = TxFramesPage::bytes(TX as usize);
        let page = memfd::create_sealed("unetmap-prove-sent", bytes as u64)?;
        let page = TxFramesPage::new(MappedRange::whole(Arc::new(Mapping::new(page.as_fd(), bytes)?)));
        let no_rings = || Stop::Cannot("the rings of its socket have other sizes".into());
        let slots = |entries| Slots::new(entries).ok_or_else(no_rings);
        let (tx_slots, rx_slots) = (slots(TX)?, slots(RX)?);
        let tx = XskTxRings::new(&rings.tx, &rings.completion, tx_slots, layout, page, 0).ok_or_else(no_rings)?;
        let rx = XskRxRings::new(&rings.rx, &rings.fill, rx_slots, layout).ok_or_else(no_rings)?;
        // Before the socket is bound: some drivers read the ring only then.
        for slot in 0..RX {
            memory.clear(rx_buffer(slot))?;
            let pos = rx_slots.pos(slot).ok_or_else(no_rings)?;
            rx.write_fill(pos, Some((BufIdx(rx_buffer(slot)), 0)));
        }
        rx.submit(RX);
        // The kernel releases the queue of a client that was killed in its own time, too.
        let socket = unbound.bind_within(RELEASE)?;
        let is_zero_copy = xsk::is_zero_copy(&socket)?;
        if is_zero_copy != (mode == BindMode::ZeroCopy) {
            return Err(Stop::Cannot(format!("queue {queue} was to be bound with {mode:?}, and was not")));
        }
        let (sent, reaped) = (vec![None; TX as usize], tx.next_tx());
        Ok(Lane { memory, socket, tx, rx, tx_slots, sent, reaped, with_kernel: vec![true; RX as usize] })
    }

    /// Gives a buffer to the kernel to receive into.
    fn give(&mut self, slot: u32) -> std::io::Result<()> {
        let buffer = rx_buffer(slot);
        self.memory.clear(buffer)?;
        self.rx.write_fill(self.rx.next_fill(), Some((BufIdx(buffer), 0)));
        self.rx.submit(1);
        self.with_kernel[slot as usize] = true;
        Ok(())
    }
}

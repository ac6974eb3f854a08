// SPDX-License-Identifier: BSD-2-Clause
//! A pipe in one process, without a daemon: a region, rings, a channel, and their files, which tests can overwrite.
#![cfg_attr(fuzzing, allow(dead_code, reason = "the tests use all of it"))]

use std::collections::BTreeSet;
use std::fs::File;
use std::mem::offset_of;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use unetmap_abi::NetmapRing;
use unetmap_mem::{
    BufIdx, BufPool, ChannelPage, Consumer, EndpointPage, Geometry, MappedRange, MirrorSet, Offsets, Pos, Producer,
    Region, RingShape, RingView, SimdLevel, Slots, Span,
};
use unetmap_sys::{Doorbell, Mapping, memfd, process};

use crate::backend::RingBackend;
use crate::backend::peer_doorbell::PeerDoorbell;
use crate::backend::pipe::{PipeRx, PipeTx};
use crate::port::Ring;
use crate::sync::{Effort, NO_INDEX, SyncError, SyncRing, WallTime};

/// Bytes of a buffer.
pub(super) const BUF_SIZE: u32 = 64;

/// A region and its free buffers.
pub(super) struct TestRegion {
    pub(super) region: Region,
    pub(super) file: Arc<File>,
    pub(super) pool: BufPool,
    rings: u32,
}

/// Both ends of one direction of a pipe, for one or two programs.
pub(super) struct TestPipe {
    pub(super) tx: Ring,
    pub(super) rx: Ring,
    /// Replaces a buffer that does not exist.
    pub(super) placeholder: BufIdx,
    channel: ChannelPage,
    /// Everything that programs can write: region, endpoint state pages of the sender and the receiver, channel page.
    pub(super) files: [Arc<File>; 4],
}

pub(super) fn slots(n: u32) -> Slots {
    Slots::new(n).expect("2..=16384")
}

/// Returns the position of any number below 16384, in the ring or not.
pub(super) fn any_pos(raw: u32) -> Pos {
    slots(Slots::MAX).pos(raw).expect("below the largest ring")
}

impl TestRegion {
    /// Returns a region with room for `pipes` pipes of `n` slots and `extra` buffers.
    pub(super) fn new(pipes: u32, n: u32, extra: u32) -> TestRegion {
        let ring_size = RingShape::bytes(slots(n)).max(512) as u32;
        let bufs = 2 + pipes * (n + 1) + extra;
        let geometry = Geometry::new((1, 256), (2 * pipes, ring_size), (bufs.max(4), BUF_SIZE)).unwrap();
        let (region, fd) = Region::create("test", geometry).unwrap();
        TestRegion { region, file: Arc::new(fd.into()), pool: BufPool::new(bufs.max(4)), rings: 0 }
    }

    fn ring(&mut self, n: u32, dir: u16) -> RingView {
        let offset = self.region.geometry().rings.object(self.rings).unwrap();
        self.rings += 1;
        let view = RingView::new(&self.region, RingShape { offset, slots: slots(n), id: 0, dir }).unwrap();
        view.format();
        view
    }

    /// Returns an empty pipe whose channel starts at slot `start`.
    pub(super) fn pipe(&mut self, n: u32, start: u32) -> TestPipe {
        let (tx, rx) = (self.ring(n, 0), self.ring(n, 1));
        let start = slots(n).pos(start).unwrap();
        for raw in 0..n {
            tx.slots().set_buf_idx(slots(n).pos(raw).unwrap(), self.pool.alloc().unwrap());
        }
        let placeholder = self.pool.alloc().unwrap();
        let (tx_end, tx_fd) = page(EndpointPage::bytes(1));
        let (rx_end, rx_fd) = page(EndpointPage::bytes(1));
        let (channels, channel_fd) = page(ChannelPage::bytes(1));
        let (tx_end, rx_end, channels) =
            (EndpointPage::new(tx_end), EndpointPage::new(rx_end), ChannelPage::new(channels));
        channels.words(0).unwrap().reset(Span { from: start, to: start });
        tx_end.state(0).unwrap().reset(start, slots(n).prev(start));
        tx.set_pointers(start, slots(n).prev(start));
        rx_end.state(0).unwrap().reset(start, start);
        rx.set_pointers(start, start);

        let (to_tx, to_rx) = (Doorbell::new().unwrap(), Doorbell::new().unwrap());
        let duplicate = |doorbell: &Doorbell| doorbell.try_clone().unwrap();
        let producer = Producer::new(&channels, 0, tx.slots().clone()).unwrap();
        let (theirs, mine, limits) = (tx.slots().clone(), rx.slots().clone(), self.region.limits());
        let consumer = Consumer::new(&channels, 0, theirs, mine, limits, SimdLevel::best()).unwrap();
        let tx_backend = RingBackend::PipeTx(Box::new(PipeTx {
            channel: producer,
            doorbell: duplicate(&to_tx),
            peer_doorbell: PeerDoorbell::Known(duplicate(&to_rx)),
            no_wakeups: false,
        }));
        let rx_backend = RingBackend::PipeRx(Box::new(PipeRx {
            channel: consumer,
            placeholder: placeholder.0.into(),
            offsets: Offsets::NONE,
            doorbell: to_rx,
            peer_doorbell: PeerDoorbell::Known(to_tx),
            no_wakeups: false,
        }));
        let ring = |view, end: EndpointPage, backend| {
            Ring::new(SyncRing {
                view,
                state: end.state_ref(0).unwrap(),
                backend,
                invalid_index: NO_INDEX.into(),
                mirrors: MirrorSet::default(),
                forward_policy: Default::default(),
                lock_history: Default::default(),
                timestamp_on_request: false,
            })
        };
        let files = [self.file.clone(), tx_fd, rx_fd, channel_fd];
        TestPipe {
            tx: ring(tx, tx_end, tx_backend),
            rx: ring(rx, rx_end, rx_backend),
            placeholder,
            channel: channels,
            files,
        }
    }

    /// Allocates buffers that belong to a program.
    pub(super) fn extra(&mut self, n: u32) -> Vec<BufIdx> {
        self.pool.alloc_many(n).unwrap()
    }
}

fn page(bytes: usize) -> (MappedRange, Arc<File>) {
    let fd: OwnedFd = memfd::create_sealed("test", bytes as u64).unwrap();
    let range = MappedRange::whole(Arc::new(Mapping::new(fd.as_fd(), bytes).unwrap()));
    (range, Arc::new(fd.into()))
}

impl TestPipe {
    pub(super) fn txsync(&self, effort: Effort) -> Result<(), SyncError> {
        // As a poll does.
        if effort == Effort::IfNeeded && (self.tx.inner.send_one(1) || self.tx.inner.send_fast(1)) {
            return Ok(());
        }
        self.tx.inner.sync(1, effort, None)
    }

    /// Biases the lock of the sender's ring to this thread, in the process with this holder ID, if locks can be biased.
    pub(super) fn bias(&self, holder: u32) {
        unetmap_mem::register_publisher();
        let (state, thread) = (self.tx.inner.state(), process::this_thread());
        let _guard = state.try_lock(holder, thread).expect("no other user");
        state.set_bias(holder, thread);
    }

    pub(super) fn rxsync(&self, effort: Effort) -> Result<(), SyncError> {
        // As a poll does whose peek found a packet.
        let inner = &self.rx.inner;
        if effort == Effort::IfNeeded && inner.release_fast(2) && inner.receive_fast(2, WallTime::now()) {
            return Ok(());
        }
        inner.sync(2, effort, None)
    }

    /// Does what the daemon does when one program closes an end and another opens it.
    pub(super) fn reopen(&self, tx: bool) {
        let ring = if tx { &self.tx } else { &self.rx };
        let slots = ring.inner.view.shape().slots;
        let span = self.channel.words(0).unwrap().positions(slots).unwrap();
        let (hwcur, hwtail) = if tx { (span.to, slots.prev(span.from)) } else { (span.from, span.from) };
        ring.inner.state().reset(hwcur, hwtail);
        ring.inner.view.set_pointers(hwcur, hwtail);
    }

    /// Returns the buffer indexes of all slots of the sender's ring, in order.
    pub(super) fn tx_indexes(&self) -> Vec<BufIdx> {
        all_slots(&self.tx).map(|p| self.tx.inner.view.slots().buf_idx(p)).collect()
    }
}

/// Returns all positions of a ring.
pub(super) fn all_slots(ring: &Ring) -> impl Iterator<Item = Pos> + use<> {
    let slots = ring.inner.view.shape().slots;
    (0..slots.get()).filter_map(move |raw| slots.pos(raw))
}

/// Writes any number to `head`, `cur` or `tail`.
pub(super) fn poke(file: &File, ring: &Ring, field: Field, value: u32) {
    let at = match field {
        Field::Head => offset_of!(NetmapRing, head),
        Field::Cur => offset_of!(NetmapRing, cur),
        Field::Tail => offset_of!(NetmapRing, tail),
    };
    let at = ring.inner.view.shape().offset + at as u64;
    file.write_all_at(&value.to_ne_bytes(), at).unwrap();
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Field {
    Head,
    Cur,
    Tail,
}

/// Returns the set of all indexes of `lists`, or an index that is there twice.
pub(super) fn each_once(lists: &[&[BufIdx]]) -> Result<BTreeSet<BufIdx>, BufIdx> {
    let mut seen = BTreeSet::new();
    for &idx in lists.iter().copied().flatten() {
        if !seen.insert(idx) {
            return Err(idx);
        }
    }
    Ok(seen)
}

//! A pipe in one process, without a daemon: a region, rings, a line, and the files behind them to scribble on.

use std::collections::BTreeSet;
use std::fs::File;
use std::mem::offset_of;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use unetmap_abi::NetmapRing;
use unetmap_mem::{
    BufIdx, BufPool, Consumer, CopyKind, EndPage, Geometry, LinePage, Offsets, Pos, Producer, Region, RingShape,
    RingView, Slots, Span, Window,
};
use unetmap_sys::{Doorbell, Mapping, memfd, process};

use crate::backend::pipe::{PipeRx, PipeTx};
use crate::port::ring::Ring;
use crate::sync::NO_NONSENSE;
use crate::sync::{Effort, Path, SyncRing, Trouble, WallTime};
use crate::sync::mirror::Watchers;

/// Bytes of a buffer.
pub(super) const BUF_SIZE: u32 = 64;

/// A region and its books.
pub(super) struct House {
    pub(super) region: Region,
    pub(super) file: Arc<File>,
    pub(super) pool: BufPool,
    rings: u32,
}

/// Both ends of one direction of a pipe, in the hands of one or two programs.
pub(super) struct Wire {
    pub(super) tx: Ring,
    pub(super) rx: Ring,
    /// What is delivered for a slot out of bounds.
    pub(super) spare: BufIdx,
    line: LinePage,
    /// Everything that programs can write: region, end pages of the sender and the receiver, line page.
    pub(super) files: [Arc<File>; 4],
}

pub(super) fn slots(n: u32) -> Slots {
    Slots::new(n).expect("2..=16384")
}

/// The position of any number below 16384, in the ring or not.
pub(super) fn any_pos(raw: u32) -> Pos {
    slots(Slots::MAX).pos(raw).expect("below the largest ring")
}

impl House {
    /// A region with room for `wires` wires of `n` slots and `extra` buffers.
    pub(super) fn new(wires: u32, n: u32, extra: u32) -> House {
        let ring_size = RingShape::bytes(slots(n)).max(512) as u32;
        let bufs = 2 + wires * (n + 1) + extra;
        let geometry = Geometry::new((1, 256), (2 * wires, ring_size), (bufs.max(4), BUF_SIZE)).unwrap();
        let (region, fd) = Region::create("test", geometry).unwrap();
        House { region, file: Arc::new(fd.into()), pool: BufPool::new(bufs.max(4)), rings: 0 }
    }

    fn ring(&mut self, n: u32, dir: u16) -> RingView {
        let offset = self.region.geometry().rings.object(self.rings).unwrap();
        self.rings += 1;
        let view = RingView::new(&self.region, RingShape { offset, slots: slots(n), id: 0, dir }).unwrap();
        view.format();
        view
    }

    /// A new wire, empty, whose line stands at slot `start`.
    pub(super) fn wire(&mut self, n: u32, start: u32) -> Wire {
        let (tx, rx) = (self.ring(n, 0), self.ring(n, 1));
        let start = slots(n).pos(start).unwrap();
        for raw in 0..n {
            tx.slots().set_buf_idx(slots(n).pos(raw).unwrap(), self.pool.take().unwrap());
        }
        let spare = self.pool.take().unwrap();
        let (tx_end, tx_fd) = page(EndPage::bytes(1));
        let (rx_end, rx_fd) = page(EndPage::bytes(1));
        let (lines, line_fd) = page(LinePage::bytes(1));
        let (tx_end, rx_end, lines) = (EndPage::new(tx_end), EndPage::new(rx_end), LinePage::new(lines));
        lines.words(0).unwrap().reset(Span { from: start, to: start });
        tx_end.state(0).unwrap().start(start, slots(n).prev(start));
        tx.set_pointers(start, slots(n).prev(start));
        rx_end.state(0).unwrap().start(start, start);
        rx.set_pointers(start, start);

        let (to_tx, to_rx) = (Doorbell::new().unwrap(), Doorbell::new().unwrap());
        let bell = |bell: &Doorbell| bell.try_clone().unwrap();
        let producer = Producer::new(&lines, 0, tx.slots().clone()).unwrap();
        let (theirs, mine, limits) = (tx.slots().clone(), rx.slots().clone(), self.region.limits());
        let consumer = Consumer::new(&lines, 0, theirs, mine, limits, CopyKind::best()).unwrap();
        let tx_path = Path::PipeTx(Box::new(PipeTx { line: producer, mine: bell(&to_tx), theirs: bell(&to_rx) }));
        let rx_path = Path::PipeRx(Box::new(PipeRx {
            line: consumer,
            spare,
            offsets: Offsets::NONE,
            mine: to_rx,
            theirs: to_tx,
        }));
        let ring = |view, end: EndPage, path| {
            let (nonsense, watchers) = (NO_NONSENSE.into(), Watchers::default());
            Ring {
                inner: SyncRing {
                    view,
                    state: end.joined(0).unwrap(),
                    path,
                    nonsense,
                    watchers,
                    onward: Default::default(),
                    habit: Default::default(),
                    time_if_asked: false,
                },
            }
        };
        let files = [self.file.clone(), tx_fd, rx_fd, line_fd];
        Wire { tx: ring(tx, tx_end, tx_path), rx: ring(rx, rx_end, rx_path), spare, line: lines, files }
    }

    /// Takes buffers as a program's own.
    pub(super) fn extra(&mut self, n: u32) -> Vec<BufIdx> {
        self.pool.take_many(n).unwrap()
    }
}

fn page(bytes: usize) -> (Window, Arc<File>) {
    let fd: OwnedFd = memfd::create_sealed("test", bytes as u64).unwrap();
    let window = Window::whole(Arc::new(Mapping::new(fd.as_fd(), bytes).unwrap()));
    (window, Arc::new(fd.into()))
}

impl Wire {
    pub(super) fn txsync(&self, effort: Effort) -> Result<(), Trouble> {
        // As a poll does.
        if effort == Effort::IfNeeded && (self.tx.inner.send_one(1) || self.tx.inner.send_quickly(1)) {
            return Ok(());
        }
        self.tx.inner.sync(1, effort, None)
    }

    /// Makes the sender's ring this thread's own, in the process with `lease`, where rings can have an owner.
    pub(super) fn own(&self, lease: u32) {
        unetmap_mem::register_publisher();
        let (state, thread) = (self.tx.inner.state(), process::this_thread());
        let _guard = state.try_lock(lease, thread).expect("nobody else");
        state.own(lease, thread);
    }

    pub(super) fn rxsync(&self, effort: Effort) -> Result<(), Trouble> {
        // As a poll does that found something at a glance.
        let inner = &self.rx.inner;
        if effort == Effort::IfNeeded && inner.release_quickly(2) && inner.receive_quickly(2, WallTime::now()) {
            return Ok(());
        }
        inner.sync(2, effort, None)
    }

    /// What the daemon does when the last owner of an end closed it and another opens it.
    pub(super) fn reopen(&self, tx: bool) {
        let ring = if tx { &self.tx } else { &self.rx };
        let slots = ring.inner.view.shape().slots;
        let line = self.line.words(0).unwrap().positions(slots).unwrap();
        let (hwcur, hwtail) = if tx { (line.to, slots.prev(line.from)) } else { (line.from, line.from) };
        ring.inner.state().start(hwcur, hwtail);
        ring.inner.view.set_pointers(hwcur, hwtail);
    }

    /// The indexes in all slots of the sender's ring, each with its slot.
    pub(super) fn tx_indexes(&self) -> Vec<BufIdx> {
        all_slots(&self.tx).map(|p| self.tx.inner.view.slots().buf_idx(p)).collect()
    }
}

/// All positions of a ring.
pub(super) fn all_slots(ring: &Ring) -> impl Iterator<Item = Pos> + use<> {
    let slots = ring.inner.view.shape().slots;
    (0..slots.get()).filter_map(move |raw| slots.pos(raw))
}

/// Writes any number into `head`, `cur` or `tail`.
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

/// Every index of `lists` once: a set, or the index that stands twice.
pub(super) fn each_once(lists: &[&[BufIdx]]) -> Result<BTreeSet<BufIdx>, BufIdx> {
    let mut seen = BTreeSet::new();
    for &idx in lists.iter().copied().flatten() {
        if !seen.insert(idx) {
            return Err(idx);
        }
    }
    Ok(seen)
}

// SPDX-License-Identifier: BSD-2-Clause
//! Memory that another process shrinks, grows, replaces by zeros or fills with invalid values: refused, or read and
//! validated. Never a fault.
#![cfg(not(loom))]

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};
use unetmap_abi::{NS_BUF_CHANGED, NS_MOREFRAG};
use unetmap_mem::{
    BufIdx, ChannelPage, Consumer, EndpointPage, Geometry, Iface, IfaceShape, MappedRange, Pos, Producer, Received,
    Region, RingShape, RingView, SimdLevel, SlotValue, Slots, Span,
};
use unetmap_sys::{Mapping, memfd};

const N: u32 = 8;
const PLACEHOLDER: BufIdx = BufIdx(19);

struct Fixture {
    region: Region,
    tx: RingView,
    rx: RingView,
    iface: Iface,
    endpoint: EndpointPage,
    producer: Producer,
    consumer: Consumer,
    /// Region, endpoint state page, channel page: the files and where they are mapped.
    memory: Vec<(File, MappedRange)>,
}

fn geometry() -> Geometry {
    Geometry::new((1, 256), (2, 512), (20, 64)).unwrap()
}

fn pos(raw: u32) -> Pos {
    Slots::new(N).unwrap().pos(raw).unwrap()
}

fn page() -> (File, MappedRange) {
    let fd: OwnedFd = memfd::create_sealed("test", 4096).unwrap();
    let range = MappedRange::whole(Arc::new(Mapping::new(fd.as_fd(), 4096).unwrap()));
    (fd.into(), range)
}

impl Fixture {
    /// Three slots published, in buffers 2, 3 and 4; one received.
    fn in_use(copy: SimdLevel) -> Fixture {
        let slots = Slots::new(N).unwrap();
        let (region, fd) = Region::create("test", geometry()).unwrap();
        let ring = |object, dir| {
            let offset = region.geometry().rings.object(object).unwrap();
            let view = RingView::new(&region, RingShape { offset, slots, id: 0, dir }).unwrap();
            view.format();
            view
        };
        let (tx, rx) = (ring(0, 0), ring(1, 1));
        let iface = Iface::new(&region, 0).unwrap();
        iface.format(&IfaceShape { name: "test".into(), ..IfaceShape::default() });
        iface.set_bufs_head(BufIdx(12));
        let (endpoint_memory, channel_memory) = (page(), page());
        let (endpoint, channels) =
            (EndpointPage::new(endpoint_memory.1.clone()), ChannelPage::new(channel_memory.1.clone()));
        endpoint.state(0).unwrap().reset(pos(3), pos(7));
        let producer = Producer::new(&channels, 0, tx.slots().clone()).unwrap();
        let consumer =
            Consumer::new(&channels, 0, tx.slots().clone(), rx.slots().clone(), region.limits(), copy).unwrap();
        for raw in 0..N {
            let buf_idx = BufIdx(2 + raw);
            tx.slots().store(pos(raw), SlotValue { buf_idx, len: 60, flags: 0, ptr: u64::from(raw) });
            region.frame(buf_idx).write(0, b"payload");
        }
        tx.set_pointers(pos(3), pos(7));
        producer.publish(Span { from: pos(0), to: pos(1) });
        producer.publish(Span { from: pos(1), to: pos(3) });
        assert_eq!(
            consumer.receive(Span { from: pos(0), to: pos(1) }, PLACEHOLDER),
            Received { invalid: 0, bytes: 60 }
        );
        let memory = vec![(fd.into(), region.range().clone()), endpoint_memory, channel_memory];
        Fixture { region, tx, rx, iface, endpoint, producer, consumer, memory }
    }

    /// Calls what a sync and the daemon call, with the current contents of the memory.
    fn use_all(&self) {
        let slots = Slots::new(N).unwrap();
        let limits = self.region.limits();
        for words in [self.producer.words(), self.consumer.words()] {
            if let Some(span) = words.positions(slots) {
                self.consumer.return_buffers(span);
                self.consumer.receive(span, PLACEHOLDER);
                for p in slots.walk(span) {
                    assert!(limits.allow(self.rx.slots().load(p)), "received slots are valid");
                    assert_eq!(self.rx.frame(p).capacity(), 64);
                }
            }
            words.validated_prod(slots, pos(0), pos(1));
            words.validated_cons(slots, pos(0), pos(3));
            words.consumer_request_wakeup();
            words.take_producer_wakeup();
        }
        let state = self.endpoint.state(0).unwrap();
        state.positions(slots);
        drop(state.try_lock(1, 1));
        state.count_batch(1);
        for view in [&self.tx, &self.rx] {
            for word in [view.raw_head(), view.raw_cur(), view.raw_tail()] {
                assert!(slots.pos(word).is_none_or(|p| p.raw() < N));
            }
            assert!((0..N).all(|raw| [0, 64].contains(&view.frame(pos(raw)).capacity())));
        }
        let head = self.region.frame(self.iface.bufs_head());
        assert!([0, 64].contains(&head.capacity()));
        self.producer.publish(Span { from: pos(3), to: pos(4) });
    }
}

#[test]
fn pages_that_are_removed_read_as_zeros() {
    for copy in SimdLevel::available() {
        for which in 0..3 {
            for by_mapping in [false, true] {
                let fixture = Fixture::in_use(copy);
                let (file, range) = &fixture.memory[which];
                if by_mapping {
                    // SAFETY: the range is a mapping that `range` keeps (M2); only its contents change, which every
                    // access expects (M1).
                    unsafe { madvise(range.base().cast(), range.len(), Advice::LinuxRemove) }.unwrap();
                } else {
                    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    fallocate(file, flags, 0, range.len() as u64).unwrap();
                }
                let mut all = vec![1; range.len()];
                file.read_exact_at(&mut all, 0).unwrap();
                assert!(all.iter().all(|byte| *byte == 0), "the pages are gone");
                fixture.use_all();
            }
        }
    }
}

#[test]
fn zeros_are_not_valid_slots() {
    let fixture = Fixture::in_use(SimdLevel::best());
    let (file, range) = &fixture.memory[0];
    fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, range.len() as u64).unwrap();
    let span = Span { from: pos(1), to: pos(3) };
    let received = fixture.consumer.receive(span, PLACEHOLDER);
    assert_eq!(received, Received { invalid: 2, bytes: 0 }, "both are invalid: their index is 0");
    for p in Slots::new(N).unwrap().walk(span) {
        assert_eq!(fixture.rx.slots().load(p), SlotValue { buf_idx: PLACEHOLDER, len: 0, flags: 0, ptr: 0 });
    }
}

#[test]
fn invalid_slots_become_empty_and_valid_ones_stay() {
    for copy in SimdLevel::available() {
        let fixture = Fixture::in_use(copy);
        let producer_slots = fixture.tx.slots();
        producer_slots.set_buf_idx(pos(1), BufIdx(20));
        producer_slots.set_flags(pos(1), NS_BUF_CHANGED | NS_MOREFRAG);
        producer_slots.set_flags(pos(2), NS_BUF_CHANGED | NS_MOREFRAG);
        let received = fixture.consumer.receive(Span { from: pos(1), to: pos(3) }, PLACEHOLDER);
        assert_eq!(received, Received { invalid: 1, bytes: 60 });
        let own = fixture.rx.slots();
        let empty = SlotValue { buf_idx: PLACEHOLDER, len: 0, flags: NS_MOREFRAG, ptr: 0 };
        assert_eq!(own.load(pos(1)), empty, "a fragment stays part of its chain");
        assert_eq!(own.load(pos(2)), SlotValue { buf_idx: BufIdx(4), len: 60, flags: NS_MOREFRAG, ptr: 2 });
        assert_eq!(producer_slots.flags(pos(2)), NS_MOREFRAG, "the flag is cleared in both rings");
    }
}

#[test]
fn only_flagged_and_existing_buffers_are_returned() {
    for copy in SimdLevel::available() {
        let fixture = Fixture::in_use(copy);
        let (own, producer_slots) = (fixture.rx.slots(), fixture.tx.slots());
        let span = Span { from: pos(0), to: pos(3) };
        let received = fixture.consumer.receive(Span { from: pos(1), to: pos(3) }, PLACEHOLDER);
        assert_eq!(received, Received { invalid: 0, bytes: 120 });
        own.set_buf_idx(pos(0), BufIdx(15));
        for (raw, idx) in [(1, 16), (2, 1)] {
            own.set_buf_idx(pos(raw), BufIdx(idx));
            own.set_flags(pos(raw), NS_BUF_CHANGED);
        }
        assert_eq!(fixture.consumer.return_buffers(span), 1, "buffer 1 is reserved");
        let indexes = |ring: &unetmap_mem::SlotRing| [0, 1, 2].map(|raw| ring.buf_idx(pos(raw)).0);
        assert_eq!(indexes(producer_slots), [2, 16, 4]);
        // A successor that does it again changes nothing.
        producer_slots.set_buf_idx(pos(1), BufIdx(17));
        assert_eq!(fixture.consumer.return_buffers(span), 0);
        assert_eq!(indexes(producer_slots), [2, 17, 4]);
    }
}

#[test]
fn a_region_can_neither_shrink_nor_grow() {
    let (region, fd) = Region::create("test", geometry()).unwrap();
    let bytes = geometry().bytes();
    for size in [0, 4096, bytes - 4096, bytes + 4096] {
        assert_eq!(ftruncate(&fd, size), Err(Errno::PERM));
    }
    assert_eq!(fcntl_add_seals(&fd, SealFlags::WRITE), Err(Errno::PERM), "nor become read-only");
    assert_eq!(region.frame(BufIdx(19)).write(0, b"last"), 4);
    assert!(Region::attach(fd.as_fd(), geometry()).is_ok());
}

#[test]
fn memory_that_could_shrink_is_not_mapped() {
    let bytes = geometry().bytes();
    let kind = |fd: &OwnedFd| Region::attach(fd.as_fd(), geometry()).map(drop).unwrap_err().kind();
    let unsealed = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&unsealed, bytes).unwrap();
    assert_eq!(kind(&unsealed), std::io::ErrorKind::InvalidData);
    fcntl_add_seals(&unsealed, SealFlags::GROW).unwrap();
    assert_eq!(kind(&unsealed), std::io::ErrorKind::InvalidData);
    let small = memfd::create_sealed("test", bytes - 4096).unwrap();
    assert_eq!(kind(&small), std::io::ErrorKind::InvalidData);
}

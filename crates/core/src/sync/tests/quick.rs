//! What goes the quick way of a poll, and what does not.

use unetmap_abi::{NS_BUF_CHANGED, NS_MOREFRAG};
use unetmap_mem::BufIdx;
use unetmap_sys::process;

use super::wire::{Field, House, Wire, any_pos, poke, slots};
use crate::sync::{Effort, SyncRing, WallTime};

const LEASE: u32 = 7;

fn goes_quickly(ring: &SyncRing) -> bool {
    let sent = || ring.state().slots.load(std::sync::atomic::Ordering::Relaxed);
    let before = sent();
    let quick = ring.send_quickly(LEASE);
    assert_eq!(quick, sent() > before, "what is not done quickly is not done at all");
    quick
}

#[test]
fn small_batches_go_the_quick_way_and_all_else_does_not() {
    let wire = House::new(1, 16, 0).wire(16, 14);
    let (ring, inner) = (&wire.tx, &wire.tx.inner);
    assert!(!goes_quickly(inner), "nothing to send");
    for n in [1, 1, 3] {
        assert_eq!(ring.advance(n), n);
        assert!(goes_quickly(inner));
        assert!(!inner.due(true), "nothing is left to do");
    }

    ring.advance(1);
    let guard = inner.state().try_lock(LEASE + 1, 1).unwrap();
    assert!(!goes_quickly(inner), "somebody else syncs it");
    drop(guard);
    inner.state().watchers_changed();
    assert!(!goes_quickly(inner), "somebody watches");
    inner.sync(LEASE, Effort::Full, None).unwrap_err();
    assert!(!goes_quickly(&wire.rx.inner));

    let wire = House::new(1, 16, 0).wire(16, 14);
    let (ring, inner) = (&wire.tx, &wire.tx.inner);
    ring.slot(ring.head()).set_flags(NS_MOREFRAG);
    ring.advance(1);
    assert!(!goes_quickly(inner), "a packet's end is missing");
    ring.advance(1);
    assert!(goes_quickly(inner));
    ring.advance(ring.space());
    assert!(!goes_quickly(inner), "no slot is left, so the other side's position counts");
    assert_eq!(inner.sync(LEASE, Effort::IfNeeded, None), Ok(()));
    wire.rxsync(Effort::Full).unwrap();
    wire.rx.advance(9);
    wire.rxsync(Effort::Full).unwrap();
    wire.txsync(Effort::Full).unwrap();
    ring.set_cur(ring.tail());
    assert!(!goes_quickly(inner), "nothing new");
    ring.advance(2);
    poke(&wire.files[0], ring, Field::Tail, 3);
    assert!(!goes_quickly(inner), "tail was overwritten");
    poke(&wire.files[0], ring, Field::Head, 1 << 31);
    assert!(!goes_quickly(inner), "head is nowhere");
}

#[test]
fn what_comes_to_an_empty_ring_is_received_quickly_and_all_else_is_not() {
    let wire = House::new(1, 16, 0).wire(16, 14);
    let (ring, inner) = (&wire.rx, &wire.rx.inner);
    let send = |n| {
        wire.txsync(Effort::Full).unwrap();
        assert_eq!(wire.tx.advance(n), n);
        wire.txsync(Effort::Full).unwrap();
    };
    let receive = || {
        let before = inner.state().slots.load(std::sync::atomic::Ordering::Relaxed);
        let quick = inner.receive_quickly(LEASE, WallTime::now());
        let came = inner.state().slots.load(std::sync::atomic::Ordering::Relaxed) - before;
        assert_eq!(quick, came > 0, "what is not done quickly is not done at all");
        came
    };
    assert_eq!(receive(), 0, "nothing came");
    assert_eq!(ring.time(), (0, 0));
    for n in [1, 3, 12] {
        send(n);
        assert!(inner.release_quickly(LEASE), "nothing is left to give back");
        assert_eq!((receive(), ring.space()), (u64::from(n), n));
        assert!(ring.time().0 > 0, "it has a time");
        assert!(!inner.release_quickly(LEASE) && receive() == 0, "the program holds packets");
        ring.advance(n - 1);
        assert!(!inner.release_quickly(LEASE), "one still");
        ring.advance(1);
        send(1);
        assert_eq!(receive(), 0, "what was read is given back before");
        assert!(inner.release_quickly(LEASE));
        assert_eq!(receive(), 1);
        ring.advance(1);
        assert!(inner.release_quickly(LEASE));
    }

    // A slot that breaks the limits, and a buffer that does not exist.
    wire.tx.slot(wire.tx.head()).set_len(u16::MAX);
    send(1);
    assert_eq!((receive(), ring.slot(ring.head()).len()), (1, 0));
    ring.slot(ring.head()).set_flags(NS_BUF_CHANGED);
    ring.slot(ring.head()).replace_buf(BufIdx(1 << 30));
    ring.advance(1);
    assert!(inner.release_quickly(LEASE));
    assert_eq!(inner.state().bad_slots.load(std::sync::atomic::Ordering::Relaxed), 2);

    send(1);
    let guard = inner.state().try_lock(LEASE + 1, 1).unwrap();
    assert!(!inner.release_quickly(LEASE) && receive() == 0, "somebody else syncs it");
    drop(guard);
    for field in [Field::Head, Field::Cur, Field::Tail] {
        let right = ring.tail().raw();
        for wrong in [(right + 1) % 16, 1 << 31] {
            poke(&wire.files[0], ring, field, wrong);
            assert!(!inner.release_quickly(LEASE) && receive() == 0, "{field:?} was overwritten");
        }
        poke(&wire.files[0], ring, field, right);
    }
    inner.state().watchers_changed();
    assert!(!inner.release_quickly(LEASE) && receive() == 0, "somebody watches");
    assert!(!wire.tx.inner.release_quickly(LEASE));
}

#[test]
fn who_syncs_often_and_alone_owns_the_ring() {
    unetmap_mem::register_publisher();
    if unetmap_sys::barrier::all_cpus().is_err() {
        println!("skipped: no membarrier here, so nobody owns a ring");
        return;
    }
    let (wire, me) = (House::new(1, 16, 0).wire(16, 14), process::this_thread());
    let (ring, inner) = (&wire.tx, &wire.tx.inner);
    let owns = |thread| inner.state().enter(LEASE, thread).is_some();
    let send = |lease| {
        ring.advance(1);
        assert_eq!(inner.sync(lease, Effort::Full, None), Ok(()));
        wire.rxsync(Effort::Full).unwrap();
        wire.rx.advance(1);
        wire.rxsync(Effort::Full).unwrap();
        ring.space()
    };
    for _ in 0..1000 {
        send(LEASE);
    }
    assert!(!owns(me), "not yet");
    send(LEASE);
    assert!(owns(me) && !owns(me + 1));
    assert!(inner.state().enter(LEASE + 1, me).is_none());
    ring.advance(1);
    assert!(goes_quickly(inner), "the owner");

    // Not while the owner is inside, and then the ring is nobody's own.
    let guard = inner.state().enter(LEASE, me).unwrap();
    assert!(inner.state().try_lock(LEASE + 1, me).is_none());
    drop(guard);
    assert!(inner.state().try_lock(LEASE + 1, me).is_some());
    for _ in 0..1100 {
        send(LEASE);
    }
    assert!(!owns(me), "for good");
}

/// A wire whose sender's ring is this thread's own, and where its `head` is `at`; `None` where nobody can own a ring.
fn owned(n: u32, at: u32) -> Option<Wire> {
    let wire = House::new(1, n, 0).wire(n, at);
    wire.own(LEASE);
    let is_owned = wire.tx.inner.state().enter(LEASE, process::this_thread()).is_some();
    if !is_owned {
        println!("skipped: no membarrier here, so nobody owns a ring");
    }
    is_owned.then_some(wire)
}

#[test]
fn a_single_packet_goes_the_shortest_way() {
    for at in [0, 3, 14, 15] {
        let Some(wire) = owned(16, at) else { return };
        let (ring, inner, n) = (&wire.tx, &wire.tx.inner, slots(16));
        let sent = || inner.state().slots.load(std::sync::atomic::Ordering::Relaxed);
        let goes = || {
            let before = (sent(), inner.state().positions(n));
            let goes = inner.send_one(LEASE);
            assert!(inner.state().enter(LEASE, process::this_thread()).is_some(), "it has left");
            assert!(if goes { sent() == before.0 + 1 } else { before == (sent(), inner.state().positions(n)) });
            goes
        };
        let put = |len: u16, flags: u16| {
            let slot = ring.slot(ring.head());
            slot.set_len_flags(len, flags);
            ring.advance(1);
            slot
        };
        assert!(!goes(), "nothing to send");
        let first = put(60, 0);
        // Over the ring's end it goes the other way.
        assert_eq!(goes(), at != 15);
        assert_eq!(goes_quickly(inner), at == 15);
        wire.rxsync(Effort::Full).unwrap();
        assert_eq!((wire.rx.space(), wire.rx.slot(first.pos()).len_flags()), (1, (60, 0)));

        for flags in [NS_BUF_CHANGED, NS_MOREFRAG] {
            let slot = put(60, flags);
            assert!(!goes(), "more than a packet in a buffer that stays");
            slot.set_flags(0);
            assert!(inner.send_quickly(LEASE));
        }
        put(60, 0);
        put(60, 0);
        assert!(!goes(), "two packets");
        assert!(goes_quickly(inner));
        put(60, 0);
        ring.set_cur(ring.next(ring.cur()));
        assert!(!goes(), "cur is ahead of head");
        assert!(goes_quickly(inner));
        assert_eq!(inner.sync(LEASE, Effort::Full, None), Ok(()));
    }
}

#[test]
fn no_single_packet_goes_where_something_else_is_to_be_done() {
    for what in 0..8 {
        let Some(wire) = owned(16, 3) else { return };
        let (ring, inner) = (&wire.tx, &wire.tx.inner);
        let mut lease = LEASE;
        ring.advance(if what == 0 { 14 } else { 1 });
        if what == 0 {
            assert!(goes_quickly(inner));
            ring.advance(1);
        }
        let poke = |field, value| poke(&wire.files[0], ring, field, value);
        let _guard = match what {
            1 => inner.state().try_lock(LEASE, process::this_thread()),
            2 => inner.state().enter(LEASE, process::this_thread()),
            _ => None,
        };
        match what {
            3 => inner.state().watchers_changed(),
            4 => inner.state().end(),
            5 => poke(Field::Tail, 5),
            6 => lease += 1,
            7 => poke(Field::Head, 1 << 31),
            _ => {}
        }
        assert!(!inner.send_one(lease), "{what}");
    }
    // Positions that cannot be, in the hands of a hostile program that shares the port.
    let Some(wire) = owned(16, 3) else { return };
    let (ring, inner) = (&wire.tx, &wire.tx.inner);
    for (hwcur, head, hwtail) in [(15, 16, 2), (u32::MAX, 0, 2), (16383, 16384, 2), (4, 5, 16), (4, 5, 4), (4, 5, 5)] {
        inner.state().set_hwcur(any_pos(hwcur % 16384));
        inner.state().set_hwtail(any_pos(hwtail));
        for (field, value) in [(Field::Head, head), (Field::Cur, head), (Field::Tail, hwtail)] {
            poke(&wire.files[0], ring, field, value);
        }
        assert!(!inner.send_one(LEASE), "{hwcur} {head} {hwtail}");
    }
}

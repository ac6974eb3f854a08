//! What goes the quick way of a poll, and what does not.

use unetmap_abi::NS_MOREFRAG;
use unetmap_sys::process;

use super::wire::{Field, House, poke};
use crate::sync::{Effort, SyncRing};

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
fn who_syncs_often_and_alone_owns_the_ring() {
    unetmap_mem::register_publisher();
    if unetmap_sys::barrier::everywhere().is_err() {
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

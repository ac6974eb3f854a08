// SPDX-License-Identifier: BSD-2-Clause
//! Which syncs take the fast path of a poll, and which do not.

use unetmap_abi::{NS_BUF_CHANGED, NS_MOREFRAG};
use unetmap_mem::BufIdx;
use unetmap_sys::process;

use super::test_pipe::{Field, TestPipe, TestRegion, any_pos, poke, slots};
use crate::sync::{Effort, SyncRing, WallTime};

const HOLDER: u32 = 7;

fn takes_fast_path(ring: &SyncRing) -> bool {
    let sent = || ring.state().slots.load(std::sync::atomic::Ordering::Relaxed);
    let before = sent();
    let fast = ring.send_fast(HOLDER);
    assert_eq!(fast, sent() > before, "a failed fast path does nothing");
    fast
}

#[test]
fn only_small_batches_take_the_fast_path() {
    let pipe = TestRegion::new(1, 16, 0).pipe(16, 14);
    let (ring, inner) = (&pipe.tx, &pipe.tx.inner);
    assert!(!takes_fast_path(inner), "nothing to send");
    for n in [1, 1, 3] {
        assert_eq!(ring.advance(n), n);
        assert!(takes_fast_path(inner));
        assert!(!inner.needs_sync(true), "nothing is left to do");
    }

    ring.advance(1);
    let guard = inner.state().try_lock(HOLDER + 1, 1).unwrap();
    assert!(!takes_fast_path(inner), "another process syncs it");
    drop(guard);
    inner.state().monitors_changed();
    assert!(!takes_fast_path(inner), "the monitors changed");
    inner.sync(HOLDER, Effort::Full, None).unwrap_err();
    assert!(!takes_fast_path(&pipe.rx.inner));

    let pipe = TestRegion::new(1, 16, 0).pipe(16, 14);
    let (ring, inner) = (&pipe.tx, &pipe.tx.inner);
    ring.slot(ring.head()).set_flags(NS_MOREFRAG);
    ring.advance(1);
    assert!(!takes_fast_path(inner), "the end of the packet is missing");
    ring.advance(1);
    assert!(takes_fast_path(inner));
    ring.advance(ring.space());
    assert!(!takes_fast_path(inner), "no slot is left, so the peer's position matters");
    assert_eq!(inner.sync(HOLDER, Effort::IfNeeded, None), Ok(()));
    pipe.rxsync(Effort::Full).unwrap();
    pipe.rx.advance(9);
    pipe.rxsync(Effort::Full).unwrap();
    pipe.txsync(Effort::Full).unwrap();
    ring.set_cur(ring.tail());
    assert!(!takes_fast_path(inner), "nothing new");
    ring.advance(2);
    poke(&pipe.files[0], ring, Field::Tail, 3);
    assert!(!takes_fast_path(inner), "tail was overwritten");
    poke(&pipe.files[0], ring, Field::Head, 1 << 31);
    assert!(!takes_fast_path(inner), "head is out of bounds");
}

#[test]
fn only_packets_for_an_empty_ring_are_received_by_the_fast_path() {
    let pipe = TestRegion::new(1, 16, 0).pipe(16, 14);
    let (ring, inner) = (&pipe.rx, &pipe.rx.inner);
    let send = |n| {
        pipe.txsync(Effort::Full).unwrap();
        assert_eq!(pipe.tx.advance(n), n);
        pipe.txsync(Effort::Full).unwrap();
    };
    let receive = || {
        let before = inner.state().slots.load(std::sync::atomic::Ordering::Relaxed);
        let fast = inner.receive_fast(HOLDER, WallTime::now());
        let came = inner.state().slots.load(std::sync::atomic::Ordering::Relaxed) - before;
        assert_eq!(fast, came > 0, "a failed fast path does nothing");
        came
    };
    assert_eq!(receive(), 0, "nothing arrived");
    assert_eq!(ring.time(), (0, 0));
    for n in [1, 3, 12] {
        send(n);
        assert!(inner.release_fast(HOLDER), "nothing to release");
        assert_eq!((receive(), ring.space()), (u64::from(n), n));
        assert!(ring.time().0 > 0, "it has a timestamp");
        assert!(!inner.release_fast(HOLDER) && receive() == 0, "the program holds packets");
        ring.advance(n - 1);
        assert!(!inner.release_fast(HOLDER), "one packet is held");
        ring.advance(1);
        send(1);
        assert_eq!(receive(), 0, "read slots are released first");
        assert!(inner.release_fast(HOLDER));
        assert_eq!(receive(), 1);
        ring.advance(1);
        assert!(inner.release_fast(HOLDER));
    }

    // An invalid slot, and a buffer that does not exist.
    pipe.tx.slot(pipe.tx.head()).set_len(u16::MAX);
    send(1);
    assert_eq!((receive(), ring.slot(ring.head()).len()), (1, 0));
    ring.slot(ring.head()).set_flags(NS_BUF_CHANGED);
    ring.slot(ring.head()).replace_buf(BufIdx(1 << 30));
    ring.advance(1);
    assert!(inner.release_fast(HOLDER));
    assert_eq!(inner.state().bad_slots.load(std::sync::atomic::Ordering::Relaxed), 2);

    send(1);
    let guard = inner.state().try_lock(HOLDER + 1, 1).unwrap();
    assert!(!inner.release_fast(HOLDER) && receive() == 0, "another process syncs it");
    drop(guard);
    for field in [Field::Head, Field::Cur, Field::Tail] {
        let right = ring.tail().raw();
        for wrong in [(right + 1) % 16, 1 << 31] {
            poke(&pipe.files[0], ring, field, wrong);
            assert!(!inner.release_fast(HOLDER) && receive() == 0, "{field:?} was overwritten");
        }
        poke(&pipe.files[0], ring, field, right);
    }
    inner.state().monitors_changed();
    assert!(!inner.release_fast(HOLDER) && receive() == 0, "the monitors changed");
    assert!(!pipe.tx.inner.release_fast(HOLDER));
}

#[test]
fn a_ring_is_biased_to_a_thread_that_syncs_often_and_alone() {
    unetmap_mem::register_publisher();
    if unetmap_sys::barrier::all_cpus().is_err() {
        println!("skipped: no membarrier here, so no ring lock is biased");
        return;
    }
    let (pipe, me) = (TestRegion::new(1, 16, 0).pipe(16, 14), process::this_thread());
    let (ring, inner) = (&pipe.tx, &pipe.tx.inner);
    let enters = |thread| inner.state().enter_biased(HOLDER, thread).is_some();
    let send = |holder| {
        ring.advance(1);
        assert_eq!(inner.sync(holder, Effort::Full, None), Ok(()));
        pipe.rxsync(Effort::Full).unwrap();
        pipe.rx.advance(1);
        pipe.rxsync(Effort::Full).unwrap();
        ring.space()
    };
    for _ in 0..1000 {
        send(HOLDER);
    }
    assert!(!enters(me), "not yet");
    send(HOLDER);
    assert!(enters(me) && !enters(me + 1));
    assert!(inner.state().enter_biased(HOLDER + 1, me).is_none());
    ring.advance(1);
    assert!(takes_fast_path(inner), "the biased thread");

    // Not while the biased thread syncs; a lock by another process revokes the bias.
    let guard = inner.state().enter_biased(HOLDER, me).unwrap();
    assert!(inner.state().try_lock(HOLDER + 1, me).is_none());
    drop(guard);
    assert!(inner.state().try_lock(HOLDER + 1, me).is_some());
    for _ in 0..1100 {
        send(HOLDER);
    }
    assert!(!enters(me), "for good");
}

/// Returns a pipe whose sender's ring is biased to this thread, with `head` at `at`; `None` if ring locks cannot be
/// biased.
fn biased_pipe(n: u32, at: u32) -> Option<TestPipe> {
    let pipe = TestRegion::new(1, n, 0).pipe(n, at);
    pipe.bias(HOLDER);
    let is_biased = pipe.tx.inner.state().enter_biased(HOLDER, process::this_thread()).is_some();
    if !is_biased {
        println!("skipped: no membarrier here, so no ring lock is biased");
    }
    is_biased.then_some(pipe)
}

#[test]
fn the_biased_thread_sends_a_single_packet_by_the_shortest_path() {
    for at in [0, 3, 14, 15] {
        let Some(pipe) = biased_pipe(16, at) else { return };
        let (ring, inner, n) = (&pipe.tx, &pipe.tx.inner, slots(16));
        let sent = || inner.state().slots.load(std::sync::atomic::Ordering::Relaxed);
        let goes = || {
            let before = (sent(), inner.state().positions(n));
            let goes = inner.send_one(HOLDER);
            assert!(
                inner.state().enter_biased(HOLDER, process::this_thread()).is_some(),
                "the biased thread has left the ring"
            );
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
        // The step over the end of the ring takes the other path.
        assert_eq!(goes(), at != 15);
        assert_eq!(takes_fast_path(inner), at == 15);
        pipe.rxsync(Effort::Full).unwrap();
        assert_eq!((pipe.rx.space(), pipe.rx.slot(first.pos()).len_flags()), (1, (60, 0)));

        for flags in [NS_BUF_CHANGED, NS_MOREFRAG] {
            let slot = put(60, flags);
            assert!(!goes(), "not a packet in an unchanged buffer");
            slot.set_flags(0);
            assert!(inner.send_fast(HOLDER));
        }
        put(60, 0);
        put(60, 0);
        assert!(!goes(), "two packets");
        assert!(takes_fast_path(inner));
        put(60, 0);
        ring.set_cur(ring.next(ring.cur()));
        assert!(!goes(), "cur is ahead of head");
        assert!(takes_fast_path(inner));
        assert_eq!(inner.sync(HOLDER, Effort::Full, None), Ok(()));
    }
}

#[test]
fn the_shortest_path_sends_nothing_if_other_work_is_due() {
    for what in 0..8 {
        let Some(pipe) = biased_pipe(16, 3) else { return };
        let (ring, inner) = (&pipe.tx, &pipe.tx.inner);
        let mut holder = HOLDER;
        ring.advance(if what == 0 { 14 } else { 1 });
        if what == 0 {
            assert!(takes_fast_path(inner));
            ring.advance(1);
        }
        let poke = |field, value| poke(&pipe.files[0], ring, field, value);
        let _guard = match what {
            1 => inner.state().try_lock(HOLDER, process::this_thread()),
            2 => inner.state().enter_biased(HOLDER, process::this_thread()),
            _ => None,
        };
        match what {
            3 => inner.state().monitors_changed(),
            4 => inner.state().mark_removed(),
            5 => poke(Field::Tail, 5),
            6 => holder += 1,
            7 => poke(Field::Head, 1 << 31),
            _ => {}
        }
        assert!(!inner.send_one(holder), "{what}");
    }
    // Invalid positions, written by a hostile program that shares the port.
    let Some(pipe) = biased_pipe(16, 3) else { return };
    let (ring, inner) = (&pipe.tx, &pipe.tx.inner);
    for (hwcur, head, hwtail) in [(15, 16, 2), (u32::MAX, 0, 2), (16383, 16384, 2), (4, 5, 16), (4, 5, 4), (4, 5, 5)] {
        inner.state().set_hwcur(any_pos(hwcur % 16384));
        inner.state().set_hwtail(any_pos(hwtail));
        for (field, value) in [(Field::Head, head), (Field::Cur, head), (Field::Tail, hwtail)] {
            poke(&pipe.files[0], ring, field, value);
        }
        assert!(!inner.send_one(HOLDER), "{hwcur} {head} {hwtail}");
    }
}

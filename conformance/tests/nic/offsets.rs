// SPDX-License-Identifier: BSD-2-Clause
//! Frames that begin behind the start of their buffers: the option OFFSETS on an interface.

use conformance::net::{
    BUFFER, CABLE, DIRECT, MEDIATED, Net, assert_same, assert_works, collect, drain, frames, transmit,
};
use conformance::{isolated_with_interfaces, until};
use unetmap::abi::NS_MOREFRAG;
use unetmap::errno::{EBUSY, EINVAL, EOPNOTSUPP};
use unetmap::{BufIdx, Interest, Port, SlotRef};

/// Fill byte of buffers outside of frames.
const FILL: [u8; BUFFER] = [0xa5; BUFFER];
/// With `@offset:bits=16` the remaining bits of a slot's `ptr` belong to the program.
const OWN: u64 = 0xfeed_0000_0000;

fn whole(port: &Port, slot: &SlotRef<'_>) -> [u8; BUFFER] {
    let mut bytes = [0; BUFFER];
    port.region().frame(BufIdx(slot.buf_idx())).read(0, &mut bytes);
    bytes
}

#[test]
fn frames_at_an_offset_are_sent_and_received() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let (port, tap) = (net.open("netmap:va@offset:initial=128,bits=16"), net.tap());
        for ring in port.tx_rings().iter().chain(port.rx_rings()) {
            assert!(ring.available().all(|slot| slot.get().ptr == 128 && slot.frame().capacity() == BUFFER - 128));
        }
        for round in 0..10 {
            assert_works(&port, &tap, round << 20);
        }
        // The frames are at the offsets in the slots, not at the start of the buffers.
        let all = frames(&[60, 61, 1514], 7);
        tap.send_all(&all);
        until("they are there", || {
            port.poll(Interest::RX, None).expect("the daemon runs");
            port.rx_rings()[0].space() == 3
        });
        for (slot, frame) in port.rx_rings()[0].available().zip(&all) {
            assert_eq!(slot.get().ptr, 128);
            assert_eq!(&whole(&port, &slot)[128..128 + frame.len()], frame.as_slice());
        }
    });
}

/// The program chooses an offset for each slot; no byte outside of the frame is written.
#[test]
fn each_slot_has_an_offset_of_its_own() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let (port, tap) = (net.open("netmap:va@offset:initial=530,bits=16"), net.tap());
        let (rx, tx) = (&port.rx_rings()[0], &port.tx_rings()[0]);
        // Buffers that the kernel already has are filled at the first offset, buffers released below at their own.
        let mut wanted = vec![530; rx.num_slots() as usize];
        for round in 0..4u64 {
            for part in 0..16 {
                let lens: Vec<usize> = (0..64).map(|i| if i % 3 == 0 { 1514 } else { 14 + i * 20 }).collect();
                let all = frames(&lens, round << 20 | part << 8);
                tap.send_all(&all);
                until("they are there", || {
                    port.poll(Interest::RX, None).expect("the daemon runs");
                    rx.space() == 64
                });
                for (i, (slot, frame)) in rx.available().zip(&all).enumerate() {
                    let (at, v) = (slot.pos().raw() as usize, slot.get());
                    let offset = wanted[at];
                    assert_eq!((v.ptr & 0xffff, usize::from(v.len), v.flags & NS_MOREFRAG), (offset, frame.len(), 0));
                    assert_eq!(v.ptr & !0xffff, if round > 0 { OWN } else { 0 }, "the other bits are unchanged");
                    let bytes = whole(&port, &slot);
                    let (from, to) = (offset as usize, offset as usize + frame.len());
                    assert!(bytes[from..to] == frame[..], "frame {i} of round {round}");
                    if round > 0 {
                        assert!(bytes[..from].iter().chain(&bytes[to..]).all(|b| *b == 0xa5), "beside frame {i}");
                    }
                    wanted[at] = (round * 131 + at as u64 * 17) % 531;
                    port.region().frame(BufIdx(slot.buf_idx())).write(0, &FILL);
                    slot.set_ptr(OWN | wanted[at]);
                }
                rx.advance(64);
                port.rxsync().expect("the daemon runs");
            }
        }
        // Sending: from anywhere, up to the end of the buffer; beyond it nothing is sent.
        let all = frames(&[60, 1514, 100, 534], 9);
        for (slot, (frame, offset)) in tx.available().zip(all.iter().zip([0u64, 530, 77, 99_999])) {
            slot.set_ptr(OWN | offset & 0xffff);
            // More than the largest counts as the largest.
            port.region().frame(BufIdx(slot.buf_idx())).write(offset.min(530) as usize, frame);
            slot.set_len_flags(frame.len() as u16, 0);
        }
        let last = tx.available().nth(4).expect("room");
        last.set_ptr(530);
        last.set_len_flags((BUFFER - 529) as u16, 0);
        tx.advance(5);
        port.txsync().expect("bad slots are no error");
        assert_same(&tap.collect(4), &all);
        drain(&port);
        tap.assert_quiet();
        assert_eq!(home.snapshot().faults("va").0, 1);
    });
}

#[test]
fn sharing_a_queue_requires_the_same_offsets() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let first = net.open("netmap:va/R@offset:initial=64,bits=8");
        assert_eq!(net.refused("netmap:va@offset:initial=65,bits=8").0, EBUSY);
        assert_eq!(net.refused("netmap:va@offset:initial=64,bits=16").0, EBUSY);
        // The other direction's ring is free, but the memory of the queue is already registered with the first offset.
        assert_eq!(net.refused("netmap:va/T@offset:initial=65,bits=8").0, EBUSY);
        let (less, none) = (net.open("netmap:va@offset:initial=10,bits=6"), net.open("netmap:va/T"));
        let tap = net.tap();
        assert_works(&less, &tap, 1);
        let all = frames(&[100; 20], 2);
        transmit(&none, 0, &all, BUFFER);
        assert_same(&tap.collect(20), &all);
        drop((less, none, first));
        // The interface is not open: another offset can be chosen.
        let plain = net.open("netmap:va");
        assert!(plain.rx_rings()[0].available().all(|slot| slot.frame().capacity() == BUFFER));
        assert_works(&plain, &tap, 3);
        // The queue is open without an offset.
        assert_eq!(net.refused("netmap:va/R@offset=1").0, EBUSY);
    });
}

#[test]
fn invalid_offsets_are_refused() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        for spec in ["netmap:va@offset=2049", "netmap:va@offset=2048", "netmap:va@offset:initial=16,bits=4"] {
            assert_eq!(net.refused(spec).0, EINVAL, "{spec}");
        }
        net.assert_given_back();
        // Room for less than the longest frame: in several slots where that can be, else not at all.
        match net.near.run(|| Port::open("netmap:va@offset=1000")).expect("a namespace") {
            Ok(port) => {
                let (all, tap) = (frames(&[60, 1514, 1048, 1049], 5), net.tap());
                tap.send_all(&all);
                assert_same(&collect(&port, 4), &all);
            }
            Err(e) => assert_eq!(e.errno(), EINVAL, "{e}"),
        }
    });
}

#[test]
fn a_mediated_port_refuses_offsets() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, MEDIATED, CABLE) else { return };
        assert_eq!(net.refused("netmap:va@offset=16").0, EOPNOTSUPP);
        net.assert_given_back();
    });
}

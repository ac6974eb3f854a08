// SPDX-License-Identifier: BSD-2-Clause
//! `send`, `recv`, `send_batch` and `recv_batch`: whole frames, one or many at once.

use std::time::Duration;

use conformance::isolated;
use conformance::traffic::open;
use unetmap::abi::NS_MOREFRAG;
use unetmap::errno::{EINVAL, EMSGSIZE};
use unetmap::{Error, Port};

const AT_ONCE: Option<Duration> = Some(Duration::ZERO);
const SLOTS: u32 = 8;
/// A ring of `n` slots holds `n - 1` packets.
const ROOM: usize = SLOTS as usize - 1;

fn small_pipe() -> (Port, Port) {
    let tx = Port::options().tx_slots(SLOTS).rx_slots(SLOTS).open("netmap:p{1").expect("a pipe");
    (tx, open("netmap:p}1"))
}

/// Frame `n` of a test: its length and its bytes depend on the number.
fn frame(n: usize) -> Vec<u8> {
    vec![n as u8 + 1; 60 + n]
}

fn frames(numbers: std::ops::Range<usize>) -> Vec<Vec<u8>> {
    numbers.map(frame).collect()
}

fn send_all(port: &Port, frames: &[Vec<u8>], timeout: Option<Duration>) -> Result<usize, Error> {
    port.send_batch(frames.iter().map(Vec::as_slice), timeout)
}

/// Receives what has arrived, with a buffer of `size` bytes.
fn received(port: &Port, size: usize) -> Vec<Vec<u8>> {
    let mut buf = vec![0; size];
    let mut frames = Vec::new();
    let count = port.recv_batch(&mut buf, AT_ONCE, |frame| frames.push(frame.to_vec())).expect("the daemon runs");
    assert_eq!(count, frames.len());
    frames
}

#[test]
fn a_batch_is_sent_as_far_as_there_is_room() {
    isolated(|_| {
        let (tx, rx) = small_pipe();
        assert_eq!(send_all(&tx, &frames(0..5), AT_ONCE).expect("a pipe"), 5);
        assert_eq!(send_all(&tx, &frames(5..9), AT_ONCE).expect("a pipe"), ROOM - 5);
        assert_eq!(send_all(&tx, &frames(7..9), AT_ONCE).expect("a pipe"), 0);
        assert!(!tx.send(&frame(7), AT_ONCE).expect("a pipe"), "a full ring has no room");
        assert_eq!(received(&rx, 2048), frames(0..ROOM));
        // The receiver releases the slots with its next sync.
        assert_eq!(received(&rx, 2048), frames(0..0));
        assert_eq!(send_all(&tx, &frames(7..20), AT_ONCE).expect("a pipe"), ROOM);
        assert_eq!(received(&rx, 2048), frames(7..7 + ROOM));
        assert_eq!(send_all(&tx, &[], AT_ONCE).expect("a pipe"), 0);
    });
}

#[test]
fn batches_longer_than_the_ring_arrive_in_order() {
    isolated(|_| {
        const COUNT: usize = 200;
        let (tx, rx) = small_pipe();
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| send_all(&tx, &frames(0..COUNT), None));
            let (mut buf, mut next) = (vec![0; 2048], 0);
            while next < COUNT {
                // One frame and a batch in turns.
                let len = rx.recv(&mut buf, None).expect("the daemon runs").expect("no timeout, no signal");
                assert_eq!(buf[..len], frame(next));
                next += 1;
                rx.recv_batch(&mut buf, AT_ONCE, |bytes| {
                    assert_eq!(bytes, frame(next));
                    next += 1;
                })
                .expect("the daemon runs");
            }
            assert_eq!(sender.join().expect("no panic").expect("the daemon runs"), COUNT);
        });
        assert!(received(&rx, 2048).is_empty());
    });
}

#[test]
fn receiving_from_an_empty_ring_returns_after_the_timeout() {
    isolated(|_| {
        let (_tx, rx) = small_pipe();
        for timeout in [Duration::ZERO, Duration::from_millis(20)] {
            let mut buf = [7; 64];
            assert_eq!(rx.recv(&mut buf, Some(timeout)).expect("a pipe"), None);
            let count = rx.recv_batch(&mut buf, Some(timeout), |_| panic!("no frame was sent")).expect("a pipe");
            assert_eq!((count, buf), (0, [7; 64]));
        }
    });
}

#[test]
fn frames_that_fit_no_buffer_are_refused() {
    isolated(|_| {
        let (tx, rx) = small_pipe();
        let longest = vec![3; tx.buf_size() as usize];
        assert!(tx.send(&longest, AT_ONCE).expect("fits exactly"));
        assert_eq!(received(&rx, longest.len()), [&longest[..]]);
        let too_long = [longest, vec![3]].concat();
        for invalid in [&too_long[..], &[]] {
            let refused = tx.send(invalid, AT_ONCE).expect_err("fits no buffer");
            assert_eq!(refused.errno(), EMSGSIZE, "{refused}");
            assert!(refused.to_string().contains(&format!("1 to {} bytes", tx.buf_size())), "{refused}");
            // The frames before it were sent, those after it were not.
            let refused =
                tx.send_batch([&frame(1)[..], invalid, &frame(2)], AT_ONCE).expect_err("the second is invalid");
            assert_eq!(refused.errno(), EMSGSIZE, "{refused}");
            assert_eq!(received(&rx, 2048), frames(1..2));
        }
    });
}

#[test]
fn frames_longer_than_the_callers_buffer_are_cut() {
    isolated(|_| {
        let (tx, rx) = small_pipe();
        let mut buf = [0; 64];
        assert_eq!(send_all(&tx, &frames(20..22), AT_ONCE).expect("a pipe"), 2);
        assert_eq!(rx.recv(&mut buf, AT_ONCE).expect("a pipe"), Some(80), "the length of the whole frame");
        assert_eq!(buf[..], frame(20)[..64]);
        assert_eq!(received(&rx, 64), [&frame(21)[..64]]);
    });
}

#[test]
fn a_frame_in_several_slots_is_received_as_one() {
    isolated(|_| {
        let (tx, rx) = small_pipe();
        let ring = &tx.tx_rings()[0];
        let fragments = || {
            for (slot, (byte, flags)) in ring.available().zip([(1, NS_MOREFRAG), (2, NS_MOREFRAG), (3, 0)]) {
                let len = slot.frame().write(0, &[byte; 100]);
                slot.set_len_flags(len as u16, flags);
            }
            ring.advance(3);
            assert!(tx.send(&frame(0), AT_ONCE).expect("a pipe"));
        };
        let whole = [[1; 100], [2; 100], [3; 100]].concat();
        fragments();
        assert_eq!(received(&rx, 2048), [whole.clone(), frame(0)]);
        assert!(received(&rx, 2048).is_empty());
        // The buffer ends in the second slot: the third is discarded with the rest of the frame.
        fragments();
        let mut buf = [0; 150];
        assert_eq!(rx.recv(&mut buf, AT_ONCE).expect("a pipe"), Some(300));
        assert_eq!(buf[..], whole[..150]);
        assert_eq!(received(&rx, 2048), frames(0..1));
    });
}

#[test]
fn ports_that_cannot_move_frames_in_a_direction_refuse() {
    isolated(|_| {
        let (tx, rx) = (open("netmap:p{1/T"), open("netmap:p}1/R"));
        let refused = rx.send(&frame(0), AT_ONCE).expect_err("it has no transmit rings");
        assert!(refused.errno() == EINVAL && refused.to_string().contains("no transmit rings"), "{refused}");
        let refused = tx.recv(&mut [0; 64], AT_ONCE).expect_err("it has no receive rings");
        assert!(refused.errno() == EINVAL && refused.to_string().contains("no receive rings"), "{refused}");
        assert!(tx.send(&frame(0), AT_ONCE).expect("a pipe"));
        assert_eq!(received(&rx, 2048), frames(0..1));
        let refused = open("netmap:p{1/t").send(&frame(0), AT_ONCE).expect_err("it is a monitor");
        assert!(refused.to_string().contains("a monitor cannot send"), "{refused}");
    });
}

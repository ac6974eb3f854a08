// SPDX-License-Identifier: BSD-2-Clause
//! `AsyncPort` of the crate unetmap-adapters: a port in a runtime of tokio.

use std::cell::RefCell;
use std::rc::Rc;

use conformance::isolated;
use tokio::task::{LocalSet, spawn_local, yield_now};
use unetmap::{Interest, Port};
use unetmap_adapters::tokio::AsyncPort;

/// Frames that pass; the rings have 63 slots.
const COUNT: u32 = 20_000;

/// Runs a task, with all that it starts, on this thread.
fn run<T>(task: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime");
    LocalSet::new().block_on(&runtime, task)
}

/// The two ends of a pipe with small rings.
fn pipe() -> (AsyncPort, Rc<AsyncPort>) {
    let open = |name| Port::options().tx_slots(64).rx_slots(64).open(name).expect("a port");
    (AsyncPort::new(open("netmap:t{1")), Rc::new(AsyncPort::new(open("netmap:t}1"))))
}

/// Starts a task that receives one batch.
fn receive(port: &Rc<AsyncPort>) -> tokio::task::JoinHandle<Vec<Vec<u8>>> {
    let port = port.clone();
    spawn_local(async move {
        let mut frames = Vec::new();
        port.recv_batch(&mut [0; 2048], |frame| frames.push(frame.to_vec())).await.expect("a batch");
        frames
    })
}

#[test]
fn tasks_of_one_thread_send_and_receive_more_than_rings_hold() {
    isolated(|_| {
        run(async {
            let (a, b) = pipe();
            let received = Rc::new(RefCell::new(Vec::new()));
            let into = received.clone();
            let receiver = spawn_local(async move {
                let mut buf = [0; 2048];
                while into.borrow().len() < COUNT as usize {
                    let note =
                        |frame: &[u8]| into.borrow_mut().push(u32::from_be_bytes(frame[..4].try_into().unwrap()));
                    b.recv_batch(&mut buf, note).await.expect("a batch");
                }
            });
            let frames: Vec<Vec<u8>> = (0..COUNT).map(|n| [&n.to_be_bytes()[..], &[0; 56]].concat()).collect();
            let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
            a.send_batch(&frames).await.expect("room for all");
            receiver.await.expect("it ends");
            assert!(received.borrow().iter().copied().eq(0..COUNT));
        });
    });
}

#[test]
fn a_wait_lets_other_tasks_run_and_can_be_cancelled() {
    isolated(|_| {
        run(async {
            let (a, b) = pipe();
            let cancelled = receive(&b);
            // It waits, and this task goes on.
            yield_now().await;
            cancelled.abort();
            assert!(cancelled.await.expect_err("nothing had come").is_cancelled());

            let waits = receive(&b);
            yield_now().await;
            assert!(!waits.is_finished());
            a.port().send(&[7; 60], None).expect("it is sent");
            assert_eq!(waits.await.expect("the frame"), [[7; 60]]);
            a.ready(Interest::TX).await.expect("there is room");
        });
    });
}

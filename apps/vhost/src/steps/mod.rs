// SPDX-License-Identifier: BSD-2-Clause
//! A peer that does anything, as bytes say: messages of memif, and words in the rings of each layout; in `vhost` those
//! of a hypervisor and its guest. For tests and fuzzing: nothing may panic, take longer than the rings are long, or
//! leave the memory.

pub mod vhost;

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{EventfdFlags, eventfd};
use tool_common::host::socket::FdSender;
use tool_common::host::{memory, socket};
use unetmap::guest::{self, GuestMemory, GuestPlace, GuestWords};

use crate::device::Connection;
use crate::memif::{Config, Session};
use crate::queue::{Chains, Cursor, Memif, OwnBuffers, Queue, RingAddresses, Shape};
use crate::tuning::MAX_CHAIN_BUFFERS;

const BYTES: u64 = 64 << 10;
const SLOTS: u16 = 16;

/// The rest of the input; zeros at its end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> u32 {
        u32::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }
}

/// Carries out the steps that `bytes` say.
pub fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    match input.byte() % 8 {
        0 => session(&mut input, false),
        1 => session(&mut input, true),
        kind => queue(&mut input, kind),
    }
}

fn region() -> (OwnedFd, GuestMemory, GuestWords) {
    let fd = memory::create_unsealed("steps").expect("a memory file");
    rustix::fs::ftruncate(&fd, BYTES).expect("its size");
    let range = guest::map(fd.as_fd(), 0, BYTES as usize).expect("mapped");
    let mut memory = GuestMemory::default();
    assert!(memory.add(GuestPlace { guest: 0, user: 0, bytes: BYTES }, range));
    let words = memory.words(0, BYTES as usize, 1).expect("the whole region");
    (fd, memory, words)
}

/// A word anywhere, mostly in the rings' first descriptors.
fn write(words: &GuestWords, input: &mut Input<'_>) {
    let at = input.byte();
    let at = if at < 250 { 4 * usize::from(at) } else { (input.word() as usize % (BYTES as usize - 4)) & !3 };
    let value = input.byte();
    words.store_u32(at, if value < 128 { value.into() } else { input.word() });
}

/// Messages and words of a peer of a session.
fn session(input: &mut Input<'_>, is_client: bool) {
    let config = Config {
        is_client,
        id: 1,
        secret: "a".into(),
        log2_ring: SLOTS.ilog2() as u8,
        buffer_bytes: 64,
        name: "steps".into(),
        users: Vec::new(),
    };
    let (peer, own) = socket::pair().expect("two sockets");
    socket::set_nonblocking(&peer).expect("a socket");
    let Ok(mut session) = Session::new(UnixStream::from(own), &config, 2) else { return };
    let (file, _memory, words) = region();
    let event = eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd");
    let (mut valid, mut sender) = (0, FdSender::default());
    while !input.0.is_empty() {
        match input.byte() % 4 {
            0 => {
                let mut message = vec![0; if input.byte() == 0 { 127 } else { 128 }];
                message[0] = input.byte() % 10;
                let bytes = usize::from(input.byte() % 64);
                message[2..2 + bytes].iter_mut().for_each(|byte| *byte = input.byte());
                let fd = if input.byte() & 1 == 0 { file.as_fd() } else { event.as_fd() };
                let _ = socket::send(&peer, &message, &vec![fd; usize::from(input.byte() % 3)]);
            }
            1 => {
                let message = next_message(valid, is_client);
                valid += 1;
                let fds: &[_] = match (is_client, message[0]) {
                    (false, 4) => &[file.as_fd()],
                    (false, 5) => &[event.as_fd()],
                    _ => &[],
                };
                let _ = socket::send(&peer, &message, fds);
            }
            2 => write(&words, input),
            _ => {
                let queues = session.queues();
                queues.vrings.iter_mut().filter_map(|vring| vring.queue.as_mut()).for_each(|queue| {
                    step(queues.memory, queue, input);
                });
            }
        }
        if !matches!(session.process_messages(&mut sender), Ok(true)) {
            return;
        }
        receive_some(&peer, input);
    }
}

/// Receives what was sent to a peer, or leaves it there for now.
fn receive_some(peer: impl AsFd, input: &mut Input<'_>) {
    if input.byte().is_multiple_of(8) {
        return;
    }
    let mut fds = Vec::new();
    while socket::recv(&peer, &mut [0; 256], &mut fds).is_ok_and(|got| got.bytes > 0) {}
}

/// Message `number` of a peer that keeps the rules.
fn next_message(number: u32, is_client: bool) -> Vec<u8> {
    let mut message: Vec<u8> = match (is_client, number) {
        (true, 0) => [&[2, 0][..], &[0; 32], &[0, 2, 0, 2, 255, 0, 1, 0, 1, 0, 10]].concat(),
        (true, 1..=6) => vec![1],
        (true, _) => vec![7],
        (false, 0) => [&[3, 0][..], &[0, 2, 1, 0, 0, 0, 0, b'a']].concat(),
        (false, 1) => [&[4, 0, 0, 0][..], &BYTES.to_le_bytes()].concat(),
        // 16 slots at 0, and at 0x400.
        (false, 2) => vec![5, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4],
        (false, 3) => vec![5, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 4],
        (false, _) => vec![6],
    };
    message.resize(128, 0);
    message
}

/// Words of a peer in one queue.
fn queue(input: &mut Input<'_>, kind: u8) {
    let (_file, memory, words) = region();
    (0..64).for_each(|_| write(&words, input));
    let own = OwnBuffers { first: 0x4000, bytes: 64 };
    let ring = |packed, writes| {
        let addresses = RingAddresses { desc: 0, avail: 0x100, used: 0x200 };
        let base = if packed { 1 << 15 } else { 0 };
        let shape = Shape { size: SLOTS.into(), addresses, base, packed, event_idx: true, writes };
        Queue::new(&memory, &shape, None).ok()
    };
    let memif = |queue: Option<Memif>| queue.map(Queue::Memif);
    words.store_u32(0, if kind < 4 { 0x03e3_1f20 } else { 0 });
    let queue = match kind {
        2 => memif(Memif::of_server(&memory, 0, SLOTS, false)),
        3 => memif(Memif::of_server(&memory, 0, SLOTS, true)),
        4 => memif(Memif::of_client(&memory, 0, SLOTS, input.byte() & 1 == 0, own)),
        5 => ring(false, input.byte() & 1 == 0),
        _ => ring(true, input.byte() & 1 == 0),
    };
    let Some(mut queue) = queue else { return };
    while !input.0.is_empty() {
        if input.byte().is_multiple_of(4) {
            if !step(&memory, &mut queue, input) {
                return;
            }
        } else {
            write(&words, input);
        }
    }
}

/// Takes and returns packets; false after a fault.
fn step(memory: &GuestMemory, queue: &mut Queue, input: &mut Input<'_>) -> bool {
    for _ in 0..usize::from(input.byte() % 32) {
        let (mark, mut chains) = (queue.mark(), Chains::default());
        match queue.pop(memory, &mut chains) {
            Err(_) => return false,
            Ok(false) => {
                queue.arm();
                queue.disarm();
                break;
            }
            Ok(true) => {}
        }
        assert!(chains.capacity() <= MAX_CHAIN_BUFFERS as u64 * u64::from(u32::MAX));
        match input.byte() % 4 {
            0 => queue.rewind(mark),
            action => {
                let mut bytes = [1; 200];
                let n = match action {
                    1 => Cursor::new(memory, &chains).read(&mut bytes),
                    _ => Cursor::new(memory, &chains).write(&bytes),
                };
                queue.push_used(&chains, n as u64);
                queue.publish();
            }
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn any_peer_is_served_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            super::run(&bytes);
        }
    }
}

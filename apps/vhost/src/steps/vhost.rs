// SPDX-License-Identifier: BSD-2-Clause
//! A hypervisor that sends any message, and a guest that writes anything into its memory, while packets are taken from
//! its queues and delivered into them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{EventfdFlags, eventfd};
use tool_common::host::socket::{self, FdSender};
use unetmap::guest::GuestWords;

use super::{BYTES, Input, SLOTS, receive_some, region, step, write};
use crate::device::{Connection, Queues};
use crate::features::{self, EVENT_IDX, PROTOCOL_OFFERED, RING_PACKED};
use crate::queue::Fault;
use crate::transfer::{Guest, Moved, PORT_HEADER, Transfer};
use crate::vhost::Session;
use crate::vring::Vring;

/// Bytes from one ring to the next; and where its parts begin, before those of the in-flight descriptors.
const RING: u64 = 0x200;
const AVAIL: u64 = 0x100;
const USED: u64 = 0x140;
const INFLIGHT: u64 = 0x8000;
/// The first buffer, and bytes of each.
const BUFFERS: u64 = 0x1000;
const BUFFER: u32 = 0x700;
const WRITE: u64 = 2;
/// `VHOST_USER_VRING_NOFD_MASK`.
const NO_FD: u64 = 1 << 8;
/// Most bytes of a packet that is delivered.
const PACKET: u32 = 4000;

/// State of the hypervisor.
struct FrontEnd {
    socket: UnixStream,
    memory: OwnedFd,
    event: OwnedFd,
    words: GuestWords,
    /// The features that it negotiates.
    features: u64,
    keeps_inflight: bool,
    /// Messages of a set-up that it has sent.
    sent: u32,
}

/// Returns the features that are negotiated: packed rings and event indexes, or not.
fn features_of(choice: u8) -> u64 {
    let without = if choice & 1 == 0 { RING_PACKED } else { 0 } | if choice & 2 == 0 { EVENT_IDX } else { 0 };
    features::OFFERED & !without
}

/// Carries out the steps that `bytes` say.
pub fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    let (socket, own) = UnixStream::pair().expect("two sockets");
    socket::set_nonblocking(&socket).expect("a socket");
    let Ok(mut session) = Session::new(own, 1) else { return };
    let (memory, _, words) = region();
    let choice = input.byte();
    let mut front = FrontEnd {
        socket,
        memory,
        event: eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd"),
        words,
        features: features_of(choice),
        keeps_inflight: choice & 4 != 0,
        sent: 0,
    };
    front.offer();
    // A set-up, whole or in part.
    for _ in 0..input.byte() % 32 {
        front.send_next();
    }
    let (mut transfer, mut sender) = (Transfer::new(PORT_HEADER), FdSender::default());
    while !input.0.is_empty() {
        match input.byte() % 8 {
            0 => front.send_any(&mut input),
            1 => front.send_next(),
            2..=4 => write(&front.words, &mut input),
            5 => each_queue(&mut session, |_, guest| transfer.send(guest, None)),
            6 => {
                let packet = packet(&mut input);
                each_queue(&mut session, |is_received, guest| match is_received {
                    true => transfer.deliver_packet(guest, &packet),
                    false => Ok(Moved::default()),
                });
            }
            _ => {
                let Queues { memory, vrings, .. } = session.queues();
                vrings.iter_mut().filter_map(|vring| vring.queue.as_mut()).for_each(|queue| {
                    step(memory, queue, &mut input);
                });
            }
        }
        if !matches!(session.process_messages(&mut sender), Ok(true)) {
            return;
        }
        receive_some(&front.socket, &mut input);
    }
}

/// Calls `each` with the queues that run, and whether the guest receives by them; stops those that are broken, as the
/// loop does.
fn each_queue(session: &mut Session, mut each: impl FnMut(bool, &mut Guest<'_>) -> Result<Moved, Fault>) {
    let Queues { memory, vrings, features, header, .. } = session.queues();
    for (number, vring) in vrings.iter_mut().enumerate() {
        let Vring { queue: Some(queue), .. } = vring else { continue };
        let moved = each(number.is_multiple_of(2), &mut Guest { memory, queue, features, header });
        queue.publish();
        if moved.is_err() {
            vring.stop();
        }
    }
}

/// A packet with a header: the first bytes from the input.
fn packet(input: &mut Input<'_>) -> Vec<u8> {
    let mut packet = vec![0; (input.word() % PACKET) as usize];
    let start = packet.len().min(usize::from(input.byte()));
    packet[..start].iter_mut().for_each(|byte| *byte = input.byte());
    packet
}

impl FrontEnd {
    /// Offers a buffer in each slot of both rings, as a driver does.
    fn offer(&self) {
        let packed = self.features & RING_PACKED != 0;
        for (ring, writes) in [(0, WRITE), (RING, 0)] {
            for n in 0..u64::from(SLOTS) {
                let at = (ring + 16 * n) as usize;
                // Available in the first lap: the bit of it is set.
                let flags = writes | if packed { 1 << 7 } else { 0 };
                self.word(at, (BUFFERS + ring + n * u64::from(BUFFER)) as u32);
                self.word(at + 8, BUFFER);
                self.word(at + 12, (if packed { flags << 16 | n } else { flags }) as u32);
                if !packed && n % 2 == 0 {
                    self.word((ring + AVAIL + 4 + 2 * n) as usize, (n | (n + 1) << 16) as u32);
                }
            }
            if !packed {
                self.word((ring + AVAIL) as usize, u32::from(SLOTS) << 16);
            }
        }
    }

    fn word(&self, at: usize, value: u32) {
        self.words.store_u32(at, value);
    }

    fn send(&self, number: u32, flags: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) {
        let header = [number, 1 | flags, payload.len() as u32].map(u32::to_ne_bytes).concat();
        // There is room: all is read between two steps.
        let _ = socket::send(&self.socket, &[&header, payload].concat(), fds);
    }

    /// Any message, with the flag that asks for a reply or not.
    fn send_any(&self, input: &mut Input<'_>) {
        let (number, flags) = (u32::from(input.byte() % 48), u32::from(input.byte()) & 8);
        // A file, and what is none.
        let fds: Vec<_> = (0..input.byte() % 4)
            .map(|_| if input.byte() & 1 == 0 { self.memory.as_fd() } else { self.event.as_fd() })
            .collect();
        let payload: Vec<u8> = (0..input.byte() % 80).map(|_| input.byte()).collect();
        self.send(number, flags, &payload, &fds);
    }

    /// The next message of a set-up of both queues, which begins again at its end.
    fn send_next(&mut self) {
        const GLOBAL: u32 = 5;
        const EACH: u32 = 6;
        let number = self.sent % (GLOBAL + 2 * EACH);
        self.sent += 1;
        let words = |words: &[u64]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
        let memory = &[self.memory.as_fd()][..];
        match number {
            0 => self.send(3, 0, &[], &[]),
            1 => self.send(16, 0, &words(&[PROTOCOL_OFFERED]), &[]),
            2 => self.send(2, 0, &words(&[self.features]), &[]),
            3 => self.send(5, 0, &words(&[1, 0, BYTES, 0, 0]), memory),
            4 if self.keeps_inflight => {
                let shape = 2 | u64::from(SLOTS) << 16;
                self.send(32, 0, &words(&[BYTES - INFLIGHT, INFLIGHT, shape]), memory);
            }
            4 => self.send(17, 0, &[], &[]),
            _ => {
                let (ring, step) = (u64::from((number - GLOBAL) / EACH), (number - GLOBAL) % EACH);
                let (at, high) = (ring * RING, |word: u64| ring | word << 32);
                // Packed: both wrap counters are set.
                let base = if self.features & RING_PACKED != 0 { 0x8000_8000 } else { 0 };
                match step {
                    0 => self.send(8, 0, &words(&[high(SLOTS.into())]), &[]),
                    1 => self.send(10, 0, &words(&[high(base)]), &[]),
                    2 => self.send(9, 0, &words(&[ring, at, at + USED, at + AVAIL, 0]), &[]),
                    3 => self.send(13, 0, &words(&[ring]), &[self.event.as_fd()]),
                    4 => self.send(12, 0, &words(&[ring | NO_FD]), &[]),
                    _ => self.send(18, 0, &words(&[high(1)]), &[]),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The packets of a guest that keeps the rules are taken, and delivered to it.
    #[test]
    fn a_set_up_is_accepted() {
        for choice in 0..8 {
            let (socket, own) = UnixStream::pair().unwrap();
            let mut session = Session::new(own, 1).unwrap();
            let (memory, _, words) = region();
            let features = features_of(choice);
            let event = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
            let keeps_inflight = choice & 4 != 0;
            let mut front = FrontEnd { socket, memory, event, words, features, keeps_inflight, sent: 0 };
            front.offer();
            (0..17).for_each(|_| front.send_next());
            assert_eq!(session.process_messages(&mut FdSender::default()), Ok(true));
            let (mut transfer, mut packets) = (Transfer::new(PORT_HEADER), Vec::new());
            each_queue(&mut session, |is_received, guest| {
                let moved = match is_received {
                    true => transfer.deliver_packet(guest, &[0; 100]),
                    false => transfer.send(guest, None),
                };
                packets.push(moved.map(|moved| moved.packets));
                moved
            });
            assert_eq!(packets, [Ok(1), Ok(SLOTS.into())], "{choice}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn any_hypervisor_is_served_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            run(&bytes);
        }
    }
}

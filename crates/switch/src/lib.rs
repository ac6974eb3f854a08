// SPDX-License-Identifier: BSD-2-Clause
//! The VALE switch: worker threads of `unetmapd` that forward packets between the ports of a switch.
//!
//! # Theory of operation
//!
//! ```text
//!   client A's memory                  switch worker thread                       client B's memory
//!  +------------------+                                                         +------------------+
//!  | tx ring, buffers | == tx channel ==> [ batch ] --> copy or swap ==========>| rx ring, buffers |
//!  |   (A's region)   | slots [cons,prod)    |           buffers, publish       |   (B's region)   |
//!  +------------------+                      |                                  +------------------+
//!                                            +-- decide (fdb) -- policy
//! ```
//! A port has transmit and receive rings in the region of its client, and one channel for each ring: a one-way
//! descriptor ring with two position words, `prod` written by the producer and `cons` by the consumer. The client is
//! the producer of a transmit channel and the consumer of a receive channel; the switch is the other side of both.
//!
//! ## The path of a packet, file by file
//! 1. `worker/mod.rs`: the worker's loop; `worker/poll_set.rs` chooses the transmit rings that it polls.
//! 2. `worker/batch.rs` serves one ring: [`port`]`/tx_ring.rs` copies up to [`tuning::BATCH_SLOTS`] slots into memory
//!    of the daemon and validates the copies (`port/batch.rs` describes them). A packet then takes one of four
//!    paths; an unpoliced batch may use the first three in turn:
//!    * a same-destination run (`worker/batch.rs`): consecutive packets with equal addresses, copied in one pass;
//!    * fan-out (`worker/fanout.rs`): single-slot packets to several destinations, listed by destination;
//!    * packet by packet (`worker/batch.rs`): everything else; flooded packets are then listed, and copied as lists to
//!      ports that get nothing else of the batch;
//!    * policed (`worker/policed.rs`): any packet that a port's policy applies to, staged in the daemon's memory first.
//! 3. [`forward`] decides where each packet goes by its destination address, which [`fdb`] maps to a port.
//! 4. [`policy`] applies VLANs, filters and limits (policed path only).
//! 5. [`port`]`/mod.rs` delivers to a receiver; `port/rx_ring.rs` copies the packets into the receiver's buffers, or
//!    swaps buffers within one region, publishes them and wakes the client. `port/vnet_hdr.rs` converts between ports
//!    with different virtio-net headers (`unetmap_offload` segments and computes checksums), `port/staged.rs`
//!    delivers staged packets.
//! 6. If a receiver has no room, `backpressure.rs` decides whether the thread waits for it. A packet without room is
//!    dropped and counted at the receiver. Transmission always completes: the batch's slots go back to the sender.
//!
//! Imports follow the same order: `worker` uses `port`, `port` uses `backpressure` and `forward`,
//! `forward` uses `policy` and `fdb`, `policy` uses `fdb`. No module imports one that stands before it in this list.
//!
//! ## Threads
//! A thread serves the transmit rings of the ports that the daemon assigned to it and delivers to ports of any thread
//! (`worker/mod.rs` tells which state is shared and by which lock). The daemon publishes a new set of
//! [`worker::SwitchConfig`]s through a [`worker::Mailbox`] and waits until every thread uses it. A thread without
//! work polls for a short time, yields the CPU to a client that needs it, and then sleeps until a client notifies it.
//! `worker/idle_listener.rs` is a helper thread that waits for the doorbells of idle rings during a futex wait.
//!
//! ## What a client can write, and where it is validated
//! * Positions in the channels: validated by the channel's end in `mem`. An impossible position is ignored; the
//!   switch's own positions are in its private memory.
//! * Slots of transmit rings (index, length, flags, pointer): copied once and the copy validated, `port/tx_ring.rs`. An
//!   invalid slot names buffer 0 afterwards, and its packet is dropped.
//! * The buffer index of a receive slot: read once when a packet is written, `port/rx_ring.rs`; before that free slots
//!   may exchange theirs unseen (`port/recent_buffers.rs`). An index outside the region is replaced by the
//!   ring's placeholder buffer.
//! * Packet bytes, at any time: a run compares the header in the registers that it stores; policed packets are copied
//!   first, and the copy is checked and delivered; segmentation works on a private copy.
//! * The virtio-net header: read from such a private copy, `unetmap_offload`. A header that does not match its packet
//!   drops the packet.
//! * The CPU that the client claims to run on: a hint only. A wrong one costs at most the waiting time that
//!   `backpressure.rs` budgets.
//!
//! ## Drop reasons
//! A packet that reaches no port is counted at the transmit ring that sent it, by [`policy::DropReason`]. A packet
//! without room is counted at the receive ring, a packet that the receiver's own policy refused at the receiving
//! port.

#![forbid(unsafe_code)]

mod backpressure;
pub mod fdb;
pub mod forward;
pub mod policy;
pub mod port;
pub mod tuning;
pub mod worker;

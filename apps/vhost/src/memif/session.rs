// SPDX-License-Identifier: BSD-2-Clause
//! One connection: its set-up, message by message, the memory, and the rings.
//!
//! | state | server | client |
//! |---|---|---|
//! | `New` | has sent `HELLO`, waits for `INIT` | waits for `HELLO` |
//! | `Setup` | has the regions and rings so far, until `CONNECT` | has sent a message, waits for its `ACK` |
//! | `Up` | packets move | packets move |
//!
//! A server opens the rings at `CONNECT`, when all of them are known, so a region that is missing or short is found
//! then; a client at `CONNECTED`. A client sends descriptors, each after the last was received ([`FdSender`]).

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};
use tool_common::host::eventfd::is_eventfd;
use tool_common::host::memory;
use tool_common::host::socket::FdSender;
use unetmap::guest::{self, GuestMemory, GuestPlace, MappedRange};

use super::message::{AddRing, ETHERNET, Hello, Incoming, Init, Message, Stream, VERSION};
use super::{Config, MAX_LOG2_RING};
use crate::descriptors::{is_passing, why_unsent};
use crate::device::{Connection, Queues};
use crate::features::MRG_RXBUF;
use crate::queue::{Memif, OwnBuffers, Queue};
use crate::tuning::{MAX_REGIONS, SETUP_LIMIT, SILENCE_LIMIT};
use crate::vring::Vring;

/// A region's first address: its number in the upper half, as offsets have 32 bits.
fn region_address(region: u16) -> u64 {
    u64::from(region) << 32
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    New,
    Setup,
    Up,
}

/// A ring of the set-up, and its descriptor for notifications.
type Ring = (AddRing, OwnedFd);

pub(crate) struct Session {
    config: Config,
    stream: Stream,
    state: State,
    since: Instant,
    /// When the last message came.
    heard_at: Instant,
    memory: GuestMemory,
    /// By their indexes: those by which the client sends, and the server.
    rings: [Vec<Ring>; 2],
    /// A client's region.
    file: Option<OwnedFd>,
    /// Messages that a client has still to send.
    pending: VecDeque<ClientMessage>,
    /// Why the first of them, which has been asked for, could not be sent yet.
    unsent: Option<String>,
    vrings: Vec<Vring>,
    pairs: u16,
}

#[derive(Clone, Copy, Debug)]
enum ClientMessage {
    Region,
    Ring(AddRing),
    Connect,
}

impl Connection for Session {
    fn socket(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn process_messages(&mut self, sender: &mut FdSender) -> Result<bool, String> {
        let done = self.receive(sender);
        if let Err(why) = &done {
            self.stream.disconnect(why);
        }
        done
    }

    fn waits_to_send(&self) -> bool {
        self.unsent.is_some()
    }

    fn vrings(&self) -> &[Vring] {
        &self.vrings
    }

    fn queues(&mut self) -> Queues<'_> {
        let receivers = self.vrings.iter().step_by(2).take_while(|vring| vring.queue.is_some()).count();
        Queues { memory: &self.memory, vrings: &mut self.vrings, features: MRG_RXBUF, header: 0, receivers }
    }
}

impl Session {
    pub(crate) fn new(socket: UnixStream, config: &Config, pairs: u16) -> io::Result<Session> {
        let session = Session {
            config: config.clone(),
            stream: Stream::new(socket)?,
            state: State::New,
            since: Instant::now(),
            heard_at: Instant::now(),
            memory: GuestMemory::default(),
            rings: [Vec::new(), Vec::new()],
            file: None,
            pending: VecDeque::new(),
            unsent: None,
            vrings: Vec::new(),
            pairs,
        };
        if !config.is_client {
            let hello = Hello {
                versions: [VERSION; 2],
                max_region: MAX_REGIONS as u16 - 1,
                max_server_ring: pairs - 1,
                max_client_ring: pairs - 1,
                max_log2_ring: MAX_LOG2_RING,
            };
            session.stream.hello("unetmap", hello).map_err(io::Error::other)?;
        }
        Ok(session)
    }

    /// Whether the client has told an id and a secret that are right, if there are some.
    pub(super) fn has_begun(&self) -> bool {
        self.state != State::New
    }

    /// Closes a connection that is not served: the peer is told why, and nothing else.
    pub(super) fn refuse(socket: UnixStream, why: &str) {
        if let Ok(stream) = Stream::new(socket) {
            stream.disconnect(why);
        }
    }

    fn receive(&mut self, sender: &mut FdSender) -> Result<bool, String> {
        if self.waits_to_send() {
            self.send_next(sender)?;
        }
        while !self.waits_to_send() {
            match self.stream.receive()? {
                Incoming::Message(Message::Disconnect(reason)) => {
                    return Err(format!("it has ended the connection: {reason}"));
                }
                Incoming::Message(message) => self.carry_out(message, sender)?,
                Incoming::Closed => return Ok(false),
                Incoming::Nothing => break,
            }
            self.heard_at = Instant::now();
        }
        if self.state != State::Up && self.since.elapsed() > SETUP_LIMIT {
            let unsent = self.unsent.as_ref().map(|why| format!("; a descriptor cannot be sent: {why}"));
            return Err(format!(
                "it has not connected within {} s{}",
                SETUP_LIMIT.as_secs(),
                unsent.unwrap_or_default()
            ));
        }
        // A client that says nothing has a place that others wait for.
        if self.state != State::Up && !self.config.is_client && self.heard_at.elapsed() > SILENCE_LIMIT {
            return Err(format!("it has said nothing for {} ms", SILENCE_LIMIT.as_millis()));
        }
        if self.vrings.iter().any(|vring| vring.is_enabled && vring.queue.is_none()) {
            return Err("a ring is broken".into());
        }
        Ok(true)
    }

    fn carry_out(&mut self, message: Message, sender: &mut FdSender) -> Result<(), String> {
        match (self.config.is_client, self.state, message) {
            (false, State::New, Message::Init(init)) => {
                self.check_init(&init)?;
                self.state = State::Setup;
                self.stream.ack()
            }
            (false, State::Setup, Message::AddRegion(index, bytes, fd)) => {
                self.add_region(index, bytes, &fd)?;
                self.stream.ack()
            }
            (false, State::Setup, Message::AddRing(ring, fd)) => {
                self.add_ring(ring, fd)?;
                self.stream.ack()
            }
            (false, State::Setup, Message::Connect) => {
                self.open_rings()?;
                self.state = State::Up;
                self.stream.connect(false, &self.config.name)
            }
            (true, State::New, Message::Hello(hello)) => {
                self.prepare(hello)?;
                self.state = State::Setup;
                self.stream.init(self.config.id, &self.config.secret, &self.config.name)
            }
            (true, State::Setup, Message::Ack) => self.send_next(sender),
            (true, State::Setup, Message::Connected) if self.pending.is_empty() => {
                self.open_rings()?;
                self.state = State::Up;
                Ok(())
            }
            (_, state, message) => {
                let text = format!("{message:?}");
                let name = text.split(['(', ' ']).next().unwrap_or_default();
                Err(format!("the message {name} is not allowed in the state {state:?}"))
            }
        }
    }

    fn check_init(&self, init: &Init) -> Result<(), String> {
        if init.version != VERSION {
            return Err(format!("version {:#x} of memif is asked for, {VERSION:#x} is there", init.version));
        }
        if init.id != self.config.id {
            return Err(format!("there is no interface {}, but {}", init.id, self.config.id));
        }
        if init.mode != ETHERNET {
            return Err("only Ethernet frames are supported (mode 0)".into());
        }
        // Without an early end: the time tells nothing about the secret.
        let (given, wanted) = (&init.secret, self.config.secret.as_bytes());
        let differ =
            given.iter().zip(wanted).fold(given.len() ^ wanted.len(), |bits, (a, b)| bits | usize::from(a ^ b));
        if differ != 0 { Err("the secret is wrong".into()) } else { Ok(()) }
    }

    fn add_region(&mut self, index: u16, bytes: u64, fd: &OwnedFd) -> Result<(), String> {
        if usize::from(index) != self.memory.regions() || self.memory.regions() >= MAX_REGIONS {
            return Err(format!("region {index} is not the next one, or above {}", MAX_REGIONS - 1));
        }
        // No offset reaches further.
        let bytes = bytes.min(1 << 32);
        let map = guest::map(fd.as_fd(), 0, bytes as usize)
            .map_err(|e| format!("{bytes} bytes of region {index} cannot be mapped: {e}"))?;
        self.map(index, bytes, map)
    }

    fn map(&mut self, index: u16, bytes: u64, map: MappedRange) -> Result<(), String> {
        let at = region_address(index);
        let place = GuestPlace { guest: at, user: at, bytes };
        match self.memory.add(place, map) {
            true => Ok(()),
            false => Err(format!("region {index} has no bytes")),
        }
    }

    fn add_ring(&mut self, ring: AddRing, fd: OwnedFd) -> Result<(), String> {
        let rings = &mut self.rings[usize::from(!ring.client_sends)];
        if usize::from(ring.index) != rings.len() || ring.index >= self.pairs {
            return Err(format!("ring {} is not the next one, or above {}", ring.index, self.pairs - 1));
        }
        if ring.log2 > MAX_LOG2_RING || ring.private_header != 0 {
            return Err(format!("ring {} has 2^{} slots, or private headers", ring.index, ring.log2));
        }
        if !is_eventfd(&fd) {
            return Err(format!("the descriptor of ring {} is no eventfd", ring.index));
        }
        rings.push((ring, fd));
        Ok(())
    }

    /// Makes a client's region, and the messages that tell of it.
    fn prepare(&mut self, hello: Hello) -> Result<(), String> {
        let [least, most] = hello.versions;
        if !(least..=most).contains(&VERSION) {
            return Err(format!("versions {least:#x} to {most:#x} of memif are offered, {VERSION:#x} is there"));
        }
        self.config.log2_ring = self.config.log2_ring.min(hello.max_log2_ring);
        let pairs = |most: u16| self.pairs.min(most.saturating_add(1));
        let counts = [pairs(hello.max_client_ring), pairs(hello.max_server_ring)];
        let bytes = self.config.region_bytes(counts.iter().sum());
        let failed = |e: io::Error| format!("the memory of {bytes} bytes cannot be made: {e}");
        let file = memory::create_sealed("memif", bytes).map_err(failed)?;
        self.map(0, bytes, guest::map_sealed(file.as_fd(), bytes as usize).map_err(failed)?)?;
        self.file = Some(file);
        self.pending.push_back(ClientMessage::Region);
        let (mut offset, log2) = (0, self.config.log2_ring);
        for (count, client_sends) in counts.into_iter().zip([true, false]) {
            for index in 0..count {
                let at = self.config.ring_offset(offset) as u32;
                let ring = AddRing { client_sends, index, region: 0, offset: at, log2, private_header: 0 };
                let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
                self.add_ring(ring, fd)?;
                self.pending.push_back(ClientMessage::Ring(ring));
                offset += 1;
            }
        }
        self.pending.push_back(ClientMessage::Connect);
        Ok(())
    }

    /// Sends a client's next message of the set-up. One with a descriptor may have to wait.
    fn send_next(&mut self, sender: &mut FdSender) -> Result<(), String> {
        let sent = match (self.pending.front(), &self.file) {
            (Some(ClientMessage::Region), Some(file)) => {
                let bytes = self.config.region_bytes(self.rings.iter().map(|rings| rings.len() as u16).sum());
                self.stream.add_region(sender, (0, bytes), file.as_fd())
            }
            (Some(ClientMessage::Ring(ring)), _) => {
                let rings = &self.rings[usize::from(!ring.client_sends)];
                let (_, fd) = &rings[usize::from(ring.index)];
                self.stream.add_ring(sender, *ring, fd.as_fd())
            }
            (Some(ClientMessage::Connect), _) => {
                // The server looks for rings, and may set their positions to 0, before it answers.
                self.prepare_rings()?;
                self.stream.connect(true, &self.config.name)?;
                Ok(())
            }
            _ => return Err("it has acknowledged more messages than there were".into()),
        };
        self.unsent = match sent {
            Ok(()) => self.pending.pop_front().and(None),
            Err(e) if is_passing(&e) => Some(why_unsent(&e)),
            Err(e) => return Err(format!("a descriptor cannot be sent: {}", why_unsent(&e))),
        };
        Ok(())
    }

    /// Writes what tells a server that a client's rings are some.
    fn prepare_rings(&mut self) -> Result<(), String> {
        for (ring, _) in self.rings.iter().flatten() {
            let at = region_address(ring.region) + u64::from(ring.offset);
            Memif::prepare(&self.memory, at).ok_or("a ring is not in its region")?;
        }
        Ok(())
    }

    /// Opens the rings, in pairs: the first by which the peer receives, the second by which it sends.
    fn open_rings(&mut self) -> Result<(), String> {
        let counts = [&self.rings[0], &self.rings[1]].map(|rings| rings.len() as u16);
        let mut vrings: Vec<Vring> = (0..2 * counts[0].max(counts[1])).map(|_| Vring::default()).collect();
        for (kind, rings) in std::mem::take(&mut self.rings).into_iter().enumerate() {
            for (ring, event) in rings {
                // The server sends by rings of kind 1, and the peer receives by those that we send by.
                let writes = ring.client_sends == self.config.is_client;
                let at = region_address(ring.region) + u64::from(ring.offset);
                let (size, number) = (1 << ring.log2, ring.index + kind as u16 * counts[0]);
                let queue = match self.config.is_client {
                    true => {
                        let first = self.config.buffer_offset(number, counts.iter().sum());
                        let own = OwnBuffers { first, bytes: self.config.buffer_bytes };
                        Memif::of_client(&self.memory, at, size, writes, own)
                    }
                    false => Memif::of_server(&self.memory, at, size, writes),
                };
                let queue = queue.ok_or_else(|| format!("ring {} is not in its region, or no ring", ring.index))?;
                let (kick, call) = if writes { (None, Some(event)) } else { (Some(event), None) };
                vrings[2 * usize::from(ring.index) + usize::from(!writes)] =
                    Vring::running(Queue::Memif(queue), kick, call);
            }
        }
        self.vrings = vrings;
        Ok(())
    }
}

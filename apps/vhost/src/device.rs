// SPDX-License-Identifier: BSD-2-Clause
//! The loop: moves packets between the port and the queues of the connected peer, and sleeps when nothing moves.
//!
//! The port and the peer come and go independently. Without a peer, or before it has enabled queues, packets stay in
//! the port's rings until the switch drops further ones; they are discarded when a peer begins. When the daemon ends,
//! the peer keeps its link, and the port is opened again as soon as a daemon answers.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tool_common::host::event::{PollFd, PollFlags, wait_readable};
use tool_common::host::eventfd;
use tool_common::host::log::Log;
use tool_common::host::process::{set_time_slice, set_timer_slack};
use tool_common::host::socket::{self, FdSender};
use tool_common::host::wait::{EXACT_NAP, Pause, Wait};
use unetmap::abi::{NETMAP_REQ_PORT_HDR_SET, NR_ACCEPT_VNET_HDR, NR_EXCLUSIVE, NmreqPortHdr};
use unetmap::guest::GuestMemory;
use unetmap::serves::{self, ServesRequest};
use unetmap::{Error, Interest, Port, Ring, errno};

use crate::confinement::confine;
use crate::features::OFFLOADS;
use crate::memif;
use crate::peers::Peers;
use crate::placement::Placement;
use crate::queue::Fault;
use crate::transfer::{Guest, Moved, PORT_HEADER, Transfer};
use crate::tuning::{
    ANSWER_POLL, BUFFER_POLL, BUSY_LIMIT, BUSY_POLL, DRAIN_POLLS, IDLE_KICKS, MAX_SLEEP, POLLED_SLEEP, RETRY,
    ROUNDS_PER_MESSAGE_CHECK, RX_SLOTS, TIME_SLICE, TIMER_SLACK,
};
use crate::vring::Vring;

/// The port, and how it is served.
#[derive(Debug)]
pub struct Config {
    /// The port of a VALE switch, `valeS:P`.
    pub port: String,
    /// How the peer is reached.
    pub socket: Socket,
    /// Pairs of queues that a peer can have, 1 to [`crate::MAX_QUEUE_PAIRS`], and the port's rings.
    pub queue_pairs: u16,
    /// The protocol that is spoken on the socket.
    pub protocol: Protocol,
    /// The request that tells the daemon about it.
    pub serves: ServesRequest,
}

/// How a peer shares its memory, by messages on a UNIX socket.
#[derive(Debug)]
pub enum Protocol {
    /// Of hypervisors, on a stream socket.
    VhostUser,
    /// Of packet processors, on a socket of type SOCK_SEQPACKET.
    Memif(memif::Config),
}

/// Which side listens on the UNIX socket.
#[derive(Debug)]
pub enum Socket {
    /// This one: peers connect one after the other.
    Listen(UnixListener),
    /// The peer, at this path: connects to it, and again when it has closed the connection.
    Connect(PathBuf),
}

/// A connection to a peer, as the loop needs it.
pub(crate) trait Connection {
    /// The socket, to wait for messages.
    fn socket(&self) -> BorrowedFd<'_>;

    /// Carries out the messages that have arrived. Returns false once the peer has closed the connection.
    ///
    /// # Errors
    /// A sentence: the peer breaks the protocol, or cannot be answered.
    fn process_messages(&mut self, sender: &mut FdSender) -> Result<bool, String>;

    /// Whether a message with a descriptor waits to be sent. No other is received then.
    fn waits_to_send(&self) -> bool;

    /// The queues: queue `2 n` is received by the peer, `2 n + 1` sent.
    fn vrings(&self) -> &[Vring];

    /// The same, to move packets.
    fn queues(&mut self) -> Queues<'_>;
}

/// The queues of a connection, and the memory that they are in.
pub(crate) struct Queues<'a> {
    pub(crate) memory: &'a GuestMemory,
    pub(crate) vrings: &'a mut [Vring],
    /// Features of virtio-net that the peer has negotiated.
    pub(crate) features: u64,
    /// Bytes of the header before a packet in the peer's memory.
    pub(crate) header: usize,
    /// Pairs of queues, from the first one, that the peer receives with.
    pub(crate) receivers: usize,
}

impl Protocol {
    /// Bytes of the virtio-net header before each packet in the port's slots, for a peer with these features: none if
    /// no header can request anything, so that the switch copies packets as those of any other port.
    fn port_header(&self, features: u64) -> usize {
        if matches!(self, Protocol::VhostUser) && features & OFFLOADS != 0 { PORT_HEADER } else { 0 }
    }

    fn peer(&self) -> &'static str {
        if matches!(self, Protocol::VhostUser) { "hypervisor" } else { "peer" }
    }
}

/// Serves a peer after the other until `stop` is set; `log` gets events, in sentences. Confines the process first: it
/// can then neither open files, but the log, nor start programs.
///
/// # Errors
/// A sentence: the port cannot be opened, or the socket cannot be listened at.
pub fn serve(config: &Config, stop: &AtomicBool, log: &Log) -> Result<(), String> {
    if let Socket::Listen(listener) = &config.socket {
        listener.set_nonblocking(true).map_err(|e| format!("the socket: {e}"))?;
    }
    let port = open_port_of_ended(config, config.protocol.port_header(OFFLOADS)).map_err(|e| e.to_string())?;
    confine(config, log);
    log.line(&format!("{}: ready", config.port));
    let mut device = Device {
        config,
        log,
        peer: None,
        port: Some(port),
        connection: None,
        peers: Peers::new(config),
        sender: FdSender::default(),
        transfer: Transfer::new(config.protocol.port_header(OFFLOADS)),
        retry_at: Instant::now(),
        lost_at: Instant::now(),
        absent: false,
        had_receivers: 0,
        noted_kick: false,
    };
    // Without it, a peer that polls all the time on this CPU keeps the process from running for milliseconds.
    let _ = set_time_slice(TIME_SLICE);
    set_timer_slack(TIMER_SLACK);
    let (mut wait, mut placement, mut rounds) = (Wait::default(), Placement::new(), 0);
    while !stop.load(Relaxed) {
        if rounds == 0 {
            device.connect();
            device.process_messages();
            device.fit_port_header();
            log.tend();
            placement.check(|direction| device.port.as_ref()?.peer_cpu(direction));
            rounds = ROUNDS_PER_MESSAGE_CHECK;
        }
        rounds -= 1;
        let round = device.round();
        if round.packets > 0 {
            wait.moved(round.packets);
            placement.moved(round.packets, round.received);
            continue;
        }
        if round.is_port_full && device.yield_to_switch() {
            continue;
        }
        match wait.next_pause() {
            Pause::Spin => std::hint::spin_loop(),
            Pause::Nap => std::thread::sleep(EXACT_NAP),
            Pause::Sleep => {
                device.sleep(&round);
                rounds = 0;
            }
        }
    }
    Ok(())
}

/// Opens the port as [`open_port`] does. A process before may have just ended, and the daemon not noticed yet.
fn open_port_of_ended(config: &Config, header: usize) -> Result<Port, Error> {
    let start = Instant::now();
    loop {
        match open_port(config, header) {
            Err(e) if e.errno() == errno::EBUSY && start.elapsed() < BUSY_LIMIT => std::thread::sleep(BUSY_POLL),
            opened => return opened,
        }
    }
}

/// Opens the port, for this process alone, with a virtio-net header of `header` bytes before each packet.
fn open_port(config: &Config, header: usize) -> Result<Port, Error> {
    let pairs = config.queue_pairs;
    let options = Port::options().tx_rings(pairs).rx_rings(pairs);
    // A port with several rings has as many slots without it.
    let options = if pairs == 1 { options.rx_slots(RX_SLOTS) } else { options };
    let flags = match config.protocol {
        Protocol::VhostUser => NR_EXCLUSIVE | NR_ACCEPT_VNET_HDR,
        Protocol::Memif(_) => NR_EXCLUSIVE,
    };
    let port = options.flags(flags).open(&config.port)?;
    serves::declare(port.as_fd(), &config.serves)?;
    if matches!(config.protocol, Protocol::VhostUser) {
        set_port_header(config, header)?;
    }
    Ok(port)
}

/// Returns the number of slots that a peer's packets can be copied into now.
fn free_slots(port: &Port) -> u32 {
    port.tx_rings().iter().map(Ring::space).sum()
}

fn set_port_header(config: &Config, header: usize) -> Result<(), Error> {
    let header = NmreqPortHdr { nr_hdr_len: header as u32, ..NmreqPortHdr::default() };
    unetmap::request(NETMAP_REQ_PORT_HDR_SET, &config.port, &header).map(drop)
}

/// The time until the next attempt to get back what was lost so long ago.
fn retry_after(lost: Duration) -> Duration {
    (lost / 10).clamp(RETRY[0], RETRY[1])
}

/// The outcome of a round.
#[derive(Default)]
struct Round {
    packets: u64,
    /// Packets that the peer has received.
    received: u64,
    /// A peer's packet waits for free slots of the port.
    is_port_full: bool,
    /// By pair of queues: a packet waits for buffers of the peer.
    waits_for_buffers: Vec<bool>,
}

struct Device<'a> {
    config: &'a Config,
    log: &'a Log,
    /// The user of the last peer.
    peer: Option<u32>,
    port: Option<Port>,
    connection: Option<Box<dyn Connection>>,
    peers: Peers<'a>,
    sender: FdSender,
    transfer: Transfer,
    /// When to try again what failed.
    retry_at: Instant,
    /// When the port or the connection was last lost.
    lost_at: Instant,
    /// The peer that it connects to was said to be missing.
    absent: bool,
    /// Queues that the peer received with in the last round.
    had_receivers: usize,
    /// It was said that a kick of this connection is of no use.
    noted_kick: bool,
}

impl Device<'_> {
    /// Logs what the peer has caused.
    #[track_caller]
    fn note(&self, text: &str) {
        self.log.of_user(self.peer, &format!("{}: {text}", self.config.port));
    }

    /// Opens the port and accepts or makes a connection, where one is missing.
    fn connect(&mut self) {
        if self.port.is_some() && self.connection.is_some() {
            return;
        }
        let now = Instant::now();
        let is_time = now >= self.retry_at;
        if is_time {
            self.retry_at = now + retry_after(now - self.lost_at);
        }
        if self.port.is_none() && is_time {
            match open_port(self.config, self.transfer.port_header()) {
                Ok(port) => {
                    self.port = Some(port);
                    self.note("open again");
                }
                Err(_) => return,
            }
        }
        if self.connection.is_some() {
            return;
        }
        let (peer, config, log, user) = (self.config.protocol.peer(), self.config, self.log, self.peer);
        let note = |text: &str| log.of_user(user, &format!("{}: {text}", config.port));
        match self.peers.next(is_time, &mut self.sender, &note) {
            Some(Ok(connection)) => {
                self.peer = socket::peer(connection.socket()).ok().map(|peer| peer.uid);
                match self.peers.take_refused() {
                    0 => self.note(&format!("a {peer} has connected")),
                    refused => self.note(&format!("a {peer} has connected; before it {refused} were refused")),
                }
                (self.connection, self.retry_at, self.absent) = (Some(connection), now + RETRY[0], false);
                self.noted_kick = false;
            }
            Some(Err(e)) if !self.absent && matches!(self.config.socket, Socket::Connect(_)) => {
                note(&format!("no {peer} can be connected to ({e}); it is tried again"));
                self.absent = true;
            }
            _ => {}
        }
    }

    fn process_messages(&mut self) {
        let Some(connection) = &mut self.connection else { return };
        let peer = self.config.protocol.peer();
        let ended = match connection.process_messages(&mut self.sender) {
            Ok(true) => return,
            Ok(false) => format!("the {peer} has closed the connection"),
            Err(why) => format!("the connection with the {peer} is closed: {why}"),
        };
        (self.connection, self.lost_at) = (None, Instant::now());
        self.sender.end_last();
        let dropped = std::mem::take(&mut self.transfer.dropped);
        self.note(&format!(
            "{ended}; {dropped} packets were dropped, as they were malformed or too long or found no buffers"
        ));
    }

    /// Changes the header of the port's packets to the one that the peer's features need.
    fn fit_port_header(&mut self) {
        let (Some(port), Some(connection)) = (&self.port, &mut self.connection) else { return };
        let queues = connection.queues();
        let header = self.config.protocol.port_header(queues.features);
        if header == self.transfer.port_header() || queues.vrings.iter().all(|vring| vring.queue.is_none()) {
            return;
        }
        // What was sent with another header. If the switch takes longer, it is lost.
        for _ in 0..DRAIN_POLLS {
            if port.txsync().is_err() || !port.tx_rings().iter().any(Ring::pending) {
                break;
            }
            std::thread::yield_now();
        }
        match set_port_header(self.config, header) {
            Ok(()) => {
                self.transfer.set_port_header(header);
                // Packets that have arrived are discarded before the peer receives the next ones.
                self.had_receivers = 0;
            }
            Err(error) => self.lose_port(&error),
        }
    }

    fn lose_port(&mut self, error: &Error) {
        self.log.of_user(None, &format!("{error}; it is opened again when a daemon answers"));
        (self.port, self.lost_at, self.retry_at) = (None, Instant::now(), Instant::now());
    }

    /// Moves what can be moved at once.
    fn round(&mut self) -> Round {
        let mut round = Round::default();
        let Some(connection) = &mut self.connection else {
            // Notices that the daemon has ended.
            if let Some(Err(error)) = self.port.as_ref().map(Port::rxsync) {
                self.lose_port(&error);
            }
            return round;
        };
        let Queues { memory, vrings, features, header, receivers } = connection.queues();
        if receivers > 0 && self.had_receivers == 0 {
            // Before anything is returned to the guest, which then knows that it receives what is sent from now on. An
            // error shows below.
            if let Some(port) = &self.port {
                let _ = port.rxsync();
                for ring in port.rx_rings() {
                    ring.advance(u32::MAX);
                }
            }
        }
        self.had_receivers = receivers;
        let mut faulty = Vec::new();
        for (pair, queues) in vrings.chunks_mut(2).enumerate() {
            let vring = &mut queues[1];
            let ring = self.port.as_ref().and_then(|port| port.tx_rings().get(pair % port.tx_rings().len().max(1)));
            let ring = ring.filter(|_| vring.is_enabled);
            let moved = on_queue(memory, vring, (features, header), |guest| self.transfer.send(guest, ring));
            round.add(moved, (self.log, self.peer));
            round.is_port_full |= moved.is_ok_and(|moved| moved.is_blocked);
            if moved.is_err() {
                faulty.push(2 * pair + 1);
            }
        }
        let is_due = round.packets > 0 || round.is_port_full;
        let free_before = self.port.as_ref().filter(|_| round.is_port_full).map(free_slots);
        let synced = self.port.as_ref().map_or(Ok(()), |port| if is_due { port.txsync() } else { Ok(()) });
        // Afterwards: a packet is returned to the guest when the switch has it, even if this process is killed.
        vrings.iter_mut().skip(1).step_by(2).for_each(publish);
        faulty.into_iter().for_each(|index| vrings[index].stop());
        let Some(port) = &self.port else { return round };
        if let Err(error) = synced.and_then(|()| port.rxsync()) {
            self.lose_port(&error);
            return round;
        }
        // The switch may have made room meanwhile: to wait for more of it could take until the next packet.
        round.is_port_full &= free_before == Some(free_slots(port));
        for (number, ring) in port.rx_rings().iter().enumerate().filter(|_| receivers > 0) {
            let (pair, transfer) = (number % receivers, &mut self.transfer);
            let vring = &mut vrings[2 * pair];
            let moved = match ring.is_empty() {
                true => Ok(Moved::default()),
                false => on_queue(memory, vring, (features, header), |guest| transfer.receive(guest, ring)),
            };
            publish(vring);
            round.add(moved, (self.log, self.peer));
            round.received += moved.map_or(0, |moved| moved.packets);
            if moved.is_err() {
                vring.stop();
            }
            if moved.is_ok_and(|moved| moved.is_blocked) {
                round.waits_for_buffers.resize(receivers, false);
                round.waits_for_buffers[pair] = true;
            }
        }
        round
    }

    /// Lets the switch's thread run, if it needs this CPU to make room in the port.
    fn yield_to_switch(&self) -> bool {
        self.port.as_ref().is_some_and(|port| port.yield_to_peer(Interest::TX))
    }

    /// Sleeps until a message, packets, or what the round has waited for may be there.
    fn sleep(&mut self, round: &Round) {
        if self.arm_queues(round) {
            self.wait(round);
        }
        let vrings = self.connection.iter_mut().flat_map(|connection| connection.queues().vrings);
        for queue in vrings.filter_map(|vring| vring.queue.as_mut()) {
            queue.disarm();
        }
    }

    /// Requests kicks of the queues whose chains are waited for. Returns false if there are some already.
    fn arm_queues(&mut self, round: &Round) -> bool {
        let Some(connection) = &mut self.connection else { return true };
        for (pair, queues) in connection.queues().vrings.chunks_mut(2).enumerate() {
            let waits = [round.waits_for_buffers_of(pair), !round.is_port_full];
            for (vring, waits) in queues.iter_mut().zip(waits) {
                if waits && vring.queue.as_mut().is_some_and(|queue| !queue.arm()) {
                    return false;
                }
            }
        }
        true
    }

    fn wait(&mut self, round: &Round) {
        let woken = self.wait_for_events(round);
        let Some(connection) = &mut self.connection else { return };
        for number in woken {
            let vring = &mut connection.queues().vrings[number];
            vring.idle_kicks += 1;
            if vring.idle_kicks == IDLE_KICKS && !self.noted_kick {
                self.noted_kick = true;
                self.log.of_user(
                    self.peer,
                    &format!(
                        "{}: queue {number} wakes the process again and again without a packet: it is looked at every \
                     millisecond until there is one",
                        self.config.port
                    ),
                );
            }
        }
    }

    /// Returns the queues whose kicks have ended the sleep.
    fn wait_for_events(&self, round: &Round) -> Vec<usize> {
        let mut timeout = MAX_SLEEP;
        let mut interest = Interest::NONE;
        if round.waits_for_buffers.is_empty() && self.had_receivers > 0 {
            interest |= Interest::RX;
        } else if self.had_receivers > 1 {
            // Other rings of the port may have packets: they are looked at without its wake-ups.
            timeout = POLLED_SLEEP;
        }
        match self.port.as_ref().filter(|_| round.is_port_full).map(free_slots) {
            Some(0) => interest |= Interest::TX,
            // The packet needs more of them, or waits until fewer are in flight.
            Some(_) => timeout = BUFFER_POLL,
            None => {}
        }
        // Kicks first: their descriptors are read afterwards.
        let (mut fds, mut kicks): (Vec<BorrowedFd<'_>>, Vec<usize>) = Default::default();
        let vrings = self.connection.iter().flat_map(|connection| connection.vrings()).enumerate();
        for (number, vring) in vrings.filter(|(_, vring)| vring.queue.is_some()) {
            let is_received = number.is_multiple_of(2);
            let waits = !is_received || round.waits_for_buffers_of(number / 2);
            match vring.usable_kick() {
                Some(kick) => {
                    fds.push(kick.as_fd());
                    kicks.push(number);
                }
                None if is_received && waits && vring.kick.is_none() => timeout = BUFFER_POLL,
                None if waits => timeout = timeout.min(POLLED_SLEEP),
                None => {}
            }
        }
        match &self.connection {
            // Its messages wait, so that it stays readable.
            Some(connection) if connection.waits_to_send() => timeout = timeout.min(ANSWER_POLL),
            Some(connection) => fds.push(connection.socket()),
            None => fds.extend(self.peers.wait_fds()),
        }
        if let Some(port) = &self.port {
            // An error shows in the next round.
            if port.arm(interest).is_ok_and(|ready| !ready.is_none()) {
                return Vec::new();
            }
            fds.extend(port.wait_fds(interest));
        }
        let mut polled: Vec<_> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        // A signal sets `stop`.
        let _ = wait_readable(&mut polled, Some(timeout));
        let woken = kicks.iter().zip(&polled).zip(&fds).filter(|((_, polled), _)| !polled.revents().is_empty());
        woken.inspect(|(_, fd)| eventfd::clear(fd)).map(|((number, _), _)| *number).collect()
    }
}

/// Calls `transfer` for a running queue. After a fault it must be stopped, once it is published.
fn on_queue(
    memory: &GuestMemory,
    vring: &mut Vring,
    (features, header): (u64, usize),
    transfer: impl FnOnce(&mut Guest<'_>) -> Result<Moved, Fault>,
) -> Result<Moved, Fault> {
    let Some(queue) = &mut vring.queue else { return Ok(Moved::default()) };
    let moved = transfer(&mut Guest { memory, queue, features, header })?;
    if moved.packets > 0 {
        vring.idle_kicks = 0;
    }
    Ok(moved)
}

/// Shows the guest what was returned, and notifies it.
fn publish(vring: &mut Vring) {
    if let Some(queue) = &mut vring.queue
        && queue.publish()
        && let Some(call) = &vring.call
    {
        eventfd::signal(call);
    }
}

impl Round {
    fn waits_for_buffers_of(&self, pair: usize) -> bool {
        self.waits_for_buffers.get(pair) == Some(&true)
    }

    fn add(&mut self, moved: Result<Moved, Fault>, (log, peer): (&Log, Option<u32>)) {
        match moved {
            Ok(moved) => self.packets += moved.packets,
            Err(Fault(why)) => log.of_user(peer, &format!("a queue is stopped until the peer resets it: {why}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_for_long_is_looked_for_seldom() {
        let seconds = Duration::from_secs;
        assert_eq!(retry_after(Duration::ZERO), RETRY[0]);
        assert_eq!(retry_after(seconds(20)), seconds(2));
        assert_eq!(retry_after(seconds(86_400)), RETRY[1]);
    }
}

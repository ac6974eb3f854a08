// SPDX-License-Identifier: BSD-2-Clause
//! The loop: moves packets between the port and the queues of the connected guest, and sleeps when nothing moves.
//!
//! The port and the guest come and go independently. Without a guest, or before its driver has enabled queues, packets
//! stay in the port's rings until the switch drops further ones; they are discarded when a guest begins. When the
//! daemon ends, the guest keeps its link, and the port is opened again as soon as a daemon answers.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use unetmap::abi::{NETMAP_REQ_PORT_HDR_SET, NR_ACCEPT_VNET_HDR, NmreqPortHdr};
use unetmap::{Error, Interest, Port};
use unetmap_mem::GuestMemory;
use unetmap_sys::event::{PollFd, PollFlags, wait_readable};
use unetmap_sys::eventfd;

use crate::confinement::confine;
use crate::queue::Fault;
use crate::session::{Session, Vring};
use crate::transfer::{Guest, Moved, PORT_HEADER, Transfer};
use crate::tuning::{MAX_SLEEP, POLLED_SLEEP, RETRY, ROUNDS_PER_MESSAGE_CHECK, SPIN};

/// What to serve.
#[derive(Debug)]
pub struct Config {
    /// The port of a VALE switch, `valeS:P`.
    pub port: String,
    /// How the hypervisor is reached.
    pub socket: Socket,
    /// Pairs of queues that a guest can have, 1 to [`crate::MAX_QUEUE_PAIRS`], and the port's rings.
    pub queue_pairs: u16,
}

/// Which side listens on the UNIX socket.
#[derive(Debug)]
pub enum Socket {
    /// This one: hypervisors connect one after the other.
    Listen(UnixListener),
    /// The hypervisor, at this path: connects to it, and again when it has closed the connection.
    Connect(PathBuf),
}

/// Serves a guest after the other until `stop` is set; `note` reports events, in sentences. Confines the process first:
/// it can then neither open files nor start programs.
///
/// # Errors
/// A sentence: the port cannot be opened.
pub fn serve(config: &Config, stop: &AtomicBool, note: &dyn Fn(&str)) -> Result<(), String> {
    if let Socket::Listen(listener) = &config.socket {
        listener.set_nonblocking(true).map_err(|e| format!("the socket: {e}"))?;
    }
    let port = open_port(config).map_err(|e| e.to_string())?;
    confine(config, note);
    note(&format!("{}: ready", config.port));
    let mut device = Device {
        config,
        note,
        port: Some(port),
        session: None,
        transfer: Transfer::default(),
        retry_at: Instant::now(),
        had_pairs: 0,
    };
    let (mut idle_since, mut rounds) = (None, 0);
    while !stop.load(Relaxed) {
        if rounds == 0 {
            device.connect();
            device.process_messages();
            rounds = ROUNDS_PER_MESSAGE_CHECK;
        }
        rounds -= 1;
        let round = device.round();
        if round.packets > 0 {
            idle_since = None;
        } else if idle_since.get_or_insert_with(Instant::now).elapsed() < SPIN {
            std::hint::spin_loop();
        } else {
            device.sleep(&round);
            (idle_since, rounds) = (None, 0);
        }
    }
    Ok(())
}

/// Opens the port, with a virtio-net header before each packet.
fn open_port(config: &Config) -> Result<Port, Error> {
    let pairs = config.queue_pairs;
    let options = Port::options().tx_rings(pairs).rx_rings(pairs).flags(NR_ACCEPT_VNET_HDR);
    let port = options.open(&config.port)?;
    let header = NmreqPortHdr { nr_hdr_len: PORT_HEADER as u32, ..NmreqPortHdr::default() };
    unetmap::request(NETMAP_REQ_PORT_HDR_SET, &config.port, &header)?;
    Ok(port)
}

/// The outcome of a round.
#[derive(Default)]
struct Round {
    packets: u64,
    /// A guest's packet waits for free slots of the port.
    is_port_full: bool,
    /// By pair of queues: a packet waits for buffers of the guest.
    waits_for_buffers: Vec<bool>,
}

struct Device<'a> {
    config: &'a Config,
    note: &'a dyn Fn(&str),
    port: Option<Port>,
    session: Option<Session>,
    transfer: Transfer,
    /// When to try again what failed.
    retry_at: Instant,
    /// Active pairs of queues in the last round.
    had_pairs: usize,
}

impl Device<'_> {
    fn note(&self, text: &str) {
        (self.note)(&format!("{}: {text}", self.config.port));
    }

    /// Opens the port and accepts or makes a connection, where one is missing.
    fn connect(&mut self) {
        if self.port.is_some() && self.session.is_some() {
            return;
        }
        let now = Instant::now();
        let is_time = now >= self.retry_at;
        if is_time {
            self.retry_at = now + RETRY;
        }
        if self.port.is_none() && is_time {
            match open_port(self.config) {
                Ok(port) => {
                    self.port = Some(port);
                    self.note("open again");
                }
                Err(_) => return,
            }
        }
        if self.session.is_none() {
            let socket = match &self.config.socket {
                Socket::Listen(listener) => listener.accept().map(|(socket, _)| socket),
                Socket::Connect(path) if is_time => UnixStream::connect(path),
                Socket::Connect(_) => return,
            };
            if let Ok(session) = socket.and_then(|socket| Session::new(socket, self.config.queue_pairs)) {
                self.note("a hypervisor has connected");
                self.session = Some(session);
            }
        }
    }

    fn process_messages(&mut self) {
        let Some(session) = &mut self.session else { return };
        let ended = match session.process_messages() {
            Ok(true) => return,
            Ok(false) => "the hypervisor has closed the connection".into(),
            Err(why) => format!("the connection is closed, as the hypervisor breaks the protocol: {why}"),
        };
        self.session = None;
        let dropped = std::mem::take(&mut self.transfer.dropped);
        self.note(&format!("{ended}; {dropped} packets were malformed or too long"));
    }

    /// Moves what can be moved at once.
    fn round(&mut self) -> Round {
        let mut round = Round::default();
        let Some(session) = &mut self.session else { return round };
        let pairs = session.active_pairs();
        let (header, features) = (session.header(), session.features);
        for (pair, queues) in session.vrings.chunks_mut(2).enumerate() {
            let vring = &mut queues[1];
            let ring = self.port.as_ref().and_then(|port| port.tx_rings().get(pair % port.tx_rings().len().max(1)));
            let ring = ring.filter(|_| vring.is_enabled);
            let moved = on_queue(&session.memory, vring, (features, header), |guest| self.transfer.send(guest, ring));
            round.add(moved, self.note);
            round.is_port_full |= moved.is_ok_and(|moved| moved.is_blocked);
        }
        let Some(port) = &self.port else { return round };
        let mut synced = Ok(());
        if round.packets > 0 || round.is_port_full {
            synced = port.txsync();
        }
        if let Err(error) = synced.and_then(|()| port.rxsync()) {
            (self.note)(&format!("{error}; it is opened again when a daemon answers"));
            (self.port, self.retry_at) = (None, Instant::now());
            return round;
        }
        if pairs > 0 && self.had_pairs == 0 {
            for ring in port.rx_rings() {
                ring.advance(u32::MAX);
            }
        }
        self.had_pairs = pairs;
        for (number, ring) in port.rx_rings().iter().enumerate().filter(|_| pairs > 0) {
            let (pair, transfer) = (number % pairs, &mut self.transfer);
            let vring = &mut session.vrings[2 * pair];
            let moved = match ring.is_empty() {
                true => Ok(Moved::default()),
                false => on_queue(&session.memory, vring, (features, header), |guest| transfer.receive(guest, ring)),
            };
            round.add(moved, self.note);
            if moved.is_ok_and(|moved| moved.is_blocked) {
                round.waits_for_buffers.resize(pairs, false);
                round.waits_for_buffers[pair] = true;
            }
        }
        round
    }

    /// Sleeps until a message, packets, or what the round has waited for may be there.
    fn sleep(&mut self, round: &Round) {
        if self.arm_queues(round) {
            self.wait(round);
        }
        for queue in self.session.iter_mut().flat_map(|session| &mut session.vrings).filter_map(|v| v.queue.as_mut()) {
            queue.disarm();
        }
    }

    /// Requests kicks of the queues whose chains are waited for. Returns false if there are some already.
    fn arm_queues(&mut self, round: &Round) -> bool {
        let Some(session) = &mut self.session else { return true };
        for (pair, queues) in session.vrings.chunks_mut(2).enumerate() {
            let waits = [round.waits_for_buffers.get(pair) == Some(&true), !round.is_port_full];
            for (vring, waits) in queues.iter_mut().zip(waits) {
                if waits && vring.queue.as_mut().is_some_and(|queue| !queue.arm()) {
                    return false;
                }
            }
        }
        true
    }

    fn wait(&self, round: &Round) {
        let mut timeout = MAX_SLEEP;
        let mut interest = Interest::NONE;
        if round.waits_for_buffers.is_empty() && self.had_pairs > 0 {
            interest |= Interest::RX;
        } else if self.had_pairs > 1 {
            // Other rings of the port may have packets: they are looked at without its wake-ups.
            timeout = POLLED_SLEEP;
        }
        if round.is_port_full {
            interest |= Interest::TX;
        }
        // Kicks first: their descriptors are read afterwards.
        let mut fds: Vec<BorrowedFd<'_>> = Vec::new();
        let running = self.session.iter().flat_map(|session| &session.vrings).filter(|vring| vring.queue.is_some());
        for vring in running {
            match &vring.kick {
                Some(kick) => fds.push(kick.as_fd()),
                None => timeout = POLLED_SLEEP,
            }
        }
        let kicks = fds.len();
        fds.extend(self.session.as_ref().map(Session::socket));
        if let (None, Socket::Listen(listener)) = (&self.session, &self.config.socket) {
            fds.push(listener.as_fd());
        }
        if let Some(port) = &self.port {
            // An error shows in the next round.
            if port.arm(interest).is_ok_and(|ready| !ready.is_none()) {
                return;
            }
            fds.extend(port.wait_fds(interest));
        }
        let mut polled: Vec<_> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        // A signal sets `stop`.
        let _ = wait_readable(&mut polled, Some(timeout));
        for (fd, polled) in fds[..kicks].iter().zip(&polled) {
            if !polled.revents().is_empty() {
                eventfd::clear(fd);
            }
        }
    }
}

/// Calls `transfer` for a running queue, and notifies the guest of what was returned. A queue with a fault stops.
fn on_queue(
    memory: &GuestMemory,
    vring: &mut Vring,
    (features, header): (u64, usize),
    transfer: impl FnOnce(&mut Guest<'_>) -> Result<Moved, Fault>,
) -> Result<Moved, Fault> {
    let Some(queue) = &mut vring.queue else { return Ok(Moved::default()) };
    let moved = transfer(&mut Guest { memory, queue, features, header });
    if queue.publish()
        && let Some(call) = &vring.call
    {
        eventfd::signal(call);
    }
    if moved.is_err() {
        vring.stop();
    }
    moved
}

impl Round {
    fn add(&mut self, moved: Result<Moved, Fault>, note: &dyn Fn(&str)) {
        match moved {
            Ok(moved) => self.packets += moved.packets,
            Err(Fault(why)) => note(&format!("a queue is stopped until the guest resets it: {why}")),
        }
    }
}

// SPDX-License-Identifier: BSD-2-Clause
//! Mediator threads: each moves packets between an interface or pipe, which the daemon has open, and a port that a
//! program or a switch uses.
//!
//! ```text
//! program == mediated port, in a region of the program's == [thread] == interface, in a region of the daemon's
//! switch  == switch port =================================== [thread] == interface
//! program == copied end of a pipe, in a region ============= [thread] == that end of the pipe, in another
//! ```
//! A mediated port has a thread for each queue that the program has bound, and for each pair of host rings; an attached
//! interface has one for each queue, and a copied end one for each ring pair of its pipe. To the thread both sides are
//! ports like any other. It validates what the program writes, as every client of a shared region does.

mod headers;
mod paused;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use unetmap_abi::{NR_RX_RINGS_ONLY, NR_TX_RINGS_ONLY, NS_MOREFRAG, NmreqRegister};
use unetmap_core::errno::ENOMEM;
use unetmap_core::{Error, InDaemon, Interest, Port, Ring};
use unetmap_sys::clock::spin_hint;
use unetmap_sys::event::{PollFd, PollFlags, wait_readable};
use unetmap_sys::wait::{NAP, Wait, nap_pays};
use unetmap_sys::xsk::SocketRings;
use unetmap_sys::{process, socket};

use super::nic::Nic;
use super::{Daemon, EndpointKey, Options, Registered, monitor};
use crate::caller::Caller;
use crate::confinement::confine_packet_thread;
use crate::refusal::{Refusal, refuse};
use crate::thread_waits::wait_for_end;
use crate::threads;
use crate::tuning::mediator::{BAD_POINTERS_PAUSE, BATCH, EXIT_FLUSH_LIMIT, MAX_SLEEP, MAX_SPURIOUS};
use crate::tuning::thread_waits::RETIRED_POLL;
use headers::HeaderConverter;
pub(super) use headers::{LostPackets, SavedLost};
pub(crate) use paused::{PausedThread, check_paused, pause, resume, running};

/// The daemon's own holder ID, which no client gets.
pub(crate) const DAEMON_HOLDER: u32 = u32::MAX;

/// A pair of rings: the REGISTER mode that selects it (`NR_REG_ONE_NIC` or `NR_REG_ONE_SW`), and its number in that
/// mode.
pub(crate) type RingPair = (u32, u16);

/// A running thread.
pub(crate) struct MediatorThread {
    pub(crate) pair: RingPair,
    directions: Directions,
    sessions: [u64; 2],
    control: Arc<Control>,
    /// Closing them wakes the thread.
    connections: [OwnedFd; 2],
    thread: JoinHandle<()>,
}

/// Bytes of the packets that the threads of a ring pair moved, one after the other.
#[derive(Default)]
pub(crate) struct PairBytes {
    /// From the program to the interface.
    pub(crate) out: AtomicU64,
    /// From the interface to the program.
    pub(crate) back: AtomicU64,
}

/// Commands of the main thread to a mediator thread.
#[derive(Default)]
struct Control {
    /// The thread ends. Closing the connections wakes it.
    stop: AtomicBool,
    /// The thread polls and never sleeps.
    polling: AtomicBool,
    /// The processor that the thread runs on, plus one; 0: any.
    cpu: AtomicU32,
    /// The kernel's id of the thread; 0: not started yet.
    tid: AtomicU32,
}

/// A thread that was stopped, but is held up. Its sessions stay open.
pub(super) struct Stopping {
    queue: u16,
    control: Arc<Control>,
    thread: JoinHandle<()>,
    sessions: [u64; 2],
}

/// Both sides of a ring pair, open, before a thread serves them.
pub(crate) struct Prepared {
    pair: RingPair,
    directions: Directions,
    sessions: [u64; 2],
    program: Port,
    interface: Port,
    connections: [OwnedFd; 2],
    /// If the program's packets begin with virtio-net headers.
    headers: Option<HeaderConverter>,
    bytes: Arc<PairBytes>,
}

impl Prepared {
    pub(super) fn pair(&self) -> RingPair {
        self.pair
    }

    /// Bytes are counted in `bytes`.
    pub(super) fn with_bytes(self, bytes: Arc<PairBytes>) -> Prepared {
        Prepared { bytes, ..self }
    }

    /// The program's packets begin with a virtio-net header of `header` bytes (0: none). Packets that it loses are
    /// counted in `lost`.
    pub(super) fn with_header(self, header: u8, lost: Arc<LostPackets>) -> Prepared {
        Prepared { headers: HeaderConverter::new(header, lost), ..self }
    }
}

/// Directions, named as the program sees them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Directions {
    pub(crate) tx: bool,
    pub(crate) rx: bool,
}

impl MediatorThread {
    /// Pins the thread to a processor, where it polls (`Some`), or lets it run anywhere and sleep when idle.
    pub(crate) fn set_polling_cpu(&self, cpu: Option<u32>) {
        self.control.cpu.store(cpu.map_or(0, |cpu| cpu + 1), Ordering::Release);
        self.control.polling.store(cpu.is_some(), Ordering::Release);
    }

    /// The processor on which the thread polls.
    pub(crate) fn polling_cpu(&self) -> Option<u32> {
        self.control.cpu.load(Ordering::Relaxed).checked_sub(1)
    }

    pub(super) fn directions(&self) -> Directions {
        self.directions
    }

    /// Whether the thread moves packets that the interface receives.
    pub(crate) fn receives(&self) -> bool {
        self.directions.rx
    }
}

/// Stops threads, all at the same time, and closes their sessions: at once, or, of a thread that is held up, when it
/// has ended.
pub(crate) fn stop(daemon: &mut Daemon, threads: impl IntoIterator<Item = MediatorThread>) {
    let mut stopping = Vec::new();
    for MediatorThread { pair: (_, queue), control, connections, thread, sessions, .. } in threads {
        control.stop.store(true, Ordering::Release);
        drop(connections);
        stopping.push(Stopping { queue, control, thread, sessions });
    }
    let (ended, waiting): (Vec<_>, Vec<_>) = stopping
        .into_iter()
        .partition(|Stopping { control, thread, .. }| wait_for_end(thread, || control.tid.load(Ordering::Relaxed)));
    daemon.stopping_mediators.extend(waiting);
    close_all(daemon, ended);
}

fn close_all(daemon: &mut Daemon, ended: Vec<Stopping>) {
    let mut sessions = Vec::new();
    for Stopping { queue, thread, sessions: own, .. } in ended {
        if thread.join().is_err() {
            tracing::error!(queue, "a mediator thread panicked");
        }
        sessions.extend(own);
    }
    sessions.into_iter().for_each(|session| daemon.close(session));
}

impl Daemon {
    /// Closes the sessions of threads that have ended since they were stopped, and starts those again that were to be
    /// paused; returns the time until the next look, if others have not ended.
    pub(crate) fn end_stopped_mediators(&mut self) -> Option<Duration> {
        let has_ended = |stopping: &Stopping| stopping.thread.is_finished();
        let (ended, waiting) = std::mem::take(&mut self.stopping_mediators).into_iter().partition(has_ended);
        self.stopping_mediators = waiting;
        close_all(self, ended);
        paused::restart_held(self);
        (!self.stopping_mediators.is_empty() || self.held_mediators).then_some(RETIRED_POLL)
    }
}

/// Opens both sides of a ring pair: that of `interface_at`, and that of the endpoint `program` that faces it.
/// `program_mode` selects the pair there.
pub(crate) fn prepare(
    daemon: &mut Daemon,
    program: &EndpointKey,
    name: &str,
    interface_at: &EndpointKey,
    (pair, program_mode): (RingPair, u32),
    directions: Directions,
) -> Result<Prepared, Refusal> {
    let only = match directions {
        Directions { tx: true, rx: true } => 0,
        Directions { rx: true, .. } => NR_RX_RINGS_ONLY,
        Directions { .. } => NR_TX_RINGS_ONLY,
    };
    // What the program sends, the endpoint that faces it receives.
    let mirrored = match only {
        NR_RX_RINGS_ONLY => NR_TX_RINGS_ONLY,
        NR_TX_RINGS_ONLY => NR_RX_RINGS_ONLY,
        _ => 0,
    };
    let ring = |nr_mode, nr_flags| NmreqRegister { nr_mode, nr_ringid: pair.1, nr_flags, ..Default::default() };
    let (caller, options) = (Caller::daemon(), Options::default());
    let interface = daemon.open_session(interface_at.clone(), name, &ring(pair.0, only), &options, &caller)?;
    let mut sessions = [interface.session, 0];
    let program = daemon.open_session(program.clone(), name, &ring(program_mode, mirrored), &options, &caller);
    let prepared = program.and_then(|program| {
        sessions[1] = program.session;
        let rings = daemon.registry.nic(&interface_at.port).map(Nic::socket_rings).unwrap_or_default();
        let (interface, interface_connection) = adopt(daemon, interface, rings)?;
        let (program, program_connection) = adopt(daemon, program, Vec::new())?;
        let connections = [interface_connection, program_connection];
        let (headers, bytes) = (None, Arc::default());
        Ok(Prepared { pair, directions, sessions, program, interface, connections, headers, bytes })
    });
    if prepared.is_err() {
        sessions.into_iter().for_each(|session| daemon.close(session));
    }
    prepared
}

/// Starts the thread. On failure both sides are closed again.
pub(crate) fn start(daemon: &mut Daemon, name: &str, prepared: Prepared) -> Result<MediatorThread, Refusal> {
    let Prepared { pair, directions, sessions, program, interface, connections, headers, bytes } = prepared;
    let control = Arc::new(Control::default());
    let of_thread = control.clone();
    let run = move || {
        confine_packet_thread();
        of_thread.tid.store(process::tid(), Ordering::Relaxed);
        Mediation { program, interface, headers, bytes }.run(&of_thread);
    };
    match threads::start(format!("{name} {}", pair.1), run) {
        Ok(thread) => Ok(MediatorThread { pair, directions, sessions, control, connections, thread }),
        Err(e) => {
            sessions.into_iter().for_each(|session| daemon.close(session));
            refuse(ENOMEM, format!("no thread for queue {}: {e}", pair.1))
        }
    }
}

/// Returns the library's port for a session of the daemon's own, and the connection whose closing ends the port.
pub(super) fn adopt(
    daemon: &mut Daemon,
    registered: Registered,
    socket_rings: Vec<SocketRings>,
) -> Result<(Port, OwnedFd), Refusal> {
    let Registered { session, register, bound, fds, .. } = registered;
    let (own, ports) =
        socket::pair().or_else(|e| refuse(ENOMEM, format!("the daemon has no file descriptors left: {e}")))?;
    let monitors = monitor::list_for_session(daemon, session);
    let in_daemon = InDaemon { holder: DAEMON_HOLDER, monitors, socket_rings };
    let port = unetmap_core::adopt("the daemon's", register, &bound, fds, ports, in_daemon);
    let port = port.or_else(|e| refuse(e.errno(), e.to_string()))?;
    Ok((port, own))
}

/// Both sides of a ring pair, as a thread serves them.
struct Mediation {
    program: Port,
    interface: Port,
    /// If the program's packets begin with virtio-net headers.
    headers: Option<HeaderConverter>,
    bytes: Arc<PairBytes>,
}

impl Mediation {
    /// Moves packets in both directions until the thread is stopped, or either port ends.
    fn run(&mut self, control: &Control) {
        let (mut last_moved, mut wait) = (Instant::now(), Wait::default());
        let (all_cpus, mut current_cpu) = (process::cpus_allowed(), 0);
        let mut spurious = 0;
        while !control.stop.load(Ordering::Acquire) {
            let cpu = control.cpu.load(Ordering::Acquire);
            if cpu != current_cpu {
                current_cpu = cpu;
                set_cpu(cpu, &all_cpus);
            }
            let polling = control.polling.load(Ordering::Acquire);
            let result = self.move_once().and_then(|moved| match moved {
                Moved { out: 0, back: 0 } if !polling && !wait.spins() => {
                    let slept = sleep(&self.program, &self.interface)?;
                    spurious = if slept { 0 } else { spurious + 1 };
                    Ok(moved)
                }
                moved => Ok(moved),
            });
            if matches!(result, Ok(Moved { out, back }) if out + back > 0) {
                wait.restart();
            }
            match result {
                Ok(Moved { out: 0, back }) if back > 0 => {
                    if should_nap(back, last_moved.elapsed(), &self.interface) {
                        std::thread::sleep(NAP);
                    }
                    last_moved = Instant::now();
                }
                Ok(Moved { out, .. }) if out > 0 => last_moved = Instant::now(),
                // A packet of several slots waits for room or for its other slots, which no event reports.
                Ok(_) if spurious > MAX_SPURIOUS => std::thread::sleep(NAP),
                Ok(_) => (0..8).for_each(|_| spin_hint()),
                Err(Error::BadPointers { .. }) => std::thread::sleep(BAD_POINTERS_PAUSE),
                Err(e) => {
                    tracing::debug!("mediating ended: {e}");
                    return;
                }
            }
        }
        self.flush();
    }

    /// Moves the packets that can be moved now.
    fn move_once(&mut self) -> Result<Moved, Error> {
        self.program.poll(Interest::BOTH, Some(Duration::ZERO))?;
        self.interface.poll(Interest::BOTH, Some(Duration::ZERO))?;
        let out = self.copy_out();
        let (from, to) = (self.interface.rx_rings().first(), self.program.tx_rings().first());
        let (back, bytes) = match &mut self.headers {
            Some(headers) => headers.move_back(from, to),
            None => copy(from, to),
        };
        self.bytes.back.fetch_add(bytes, Ordering::Relaxed);
        // At once: when the program gets its slots back, its packets must be on their way.
        if out > 0 {
            self.interface.txsync()?;
        }
        Ok(Moved { out, back })
    }

    /// Copies what the program sent to the interface; returns the number of slots.
    fn copy_out(&mut self) -> u32 {
        let (from, to) = (self.program.rx_rings().first(), self.interface.tx_rings().first());
        let (out, bytes) = match &mut self.headers {
            Some(headers) => headers.move_out(from, to),
            None => copy(from, to),
        };
        self.bytes.out.fetch_add(bytes, Ordering::Relaxed);
        out
    }

    /// Sends what the program sent before it closed its port, including packets that this thread has not copied yet.
    fn flush(&mut self) {
        let start = Instant::now();
        loop {
            let _ = self.program.rxsync();
            let out = self.copy_out();
            let pending = out > 0 || self.interface.tx_rings().iter().any(Ring::pending);
            if !pending || self.interface.txsync().is_err() || start.elapsed() >= EXIT_FLUSH_LIMIT {
                break;
            }
            std::thread::yield_now();
        }
        // Copied slots must be released and sent, or the next thread would send the first again and lose the others.
        let _ = (self.program.rxsync(), self.program.txsync());
    }
}

/// Pins the thread to processor `cpu - 1`, or to none for 0.
fn set_cpu(cpu: u32, all_cpus: &[usize]) {
    let result = match cpu.checked_sub(1) {
        Some(cpu) => process::pin_to_cpu(cpu as usize),
        None => process::run_on_cpus(all_cpus),
    };
    if let Err(e) = result {
        tracing::warn!(cpu, "the mediator thread cannot be moved to another processor: {e}");
    }
}

/// Numbers of slots moved.
#[derive(Clone, Copy)]
struct Moved {
    /// From the program to the interface.
    out: u32,
    /// From the interface to the program.
    back: u32,
}

/// Whether to nap before the interface is polled again, as the library does for a program. `back` slots arrived in
/// `time`.
fn should_nap(back: u32, time: Duration, interface: &Port) -> bool {
    let room = interface.rx_rings().first().map_or(0, Ring::num_slots);
    back < BATCH && nap_pays(back.into(), time.as_nanos() as u64, room.into())
}

/// Copies as many packets as there are and as have room; returns the number of slots, and their bytes.
fn copy(from: Option<&Ring>, to: Option<&Ring>) -> (u32, u64) {
    let (Some(from), Some(to)) = (from, to) else { return (0, 0) };
    let n = from.space().min(to.space()).min(BATCH);
    let (mut copied, mut bytes) = (0, 0);
    for (source, target) in from.first(n).zip(to.first(n)) {
        let (len, flags) = source.len_flags();
        if u32::from(len) > to.buf_size() {
            break;
        }
        target.frame().copy_from(&source.frame(), usize::from(len));
        target.set_len_flags(len, flags & NS_MOREFRAG);
        copied += 1;
        bytes += u64::from(len);
    }
    if copied == 0 && n > 0 {
        return copy_in_parts(from, to);
    }
    to.advance(copied);
    from.advance(copied);
    (copied, bytes)
}

/// Copies one slot that is longer than the other ring's buffers into several slots. Returns the number of slots taken
/// from `from`, 1, or 0 if there is no room yet, and their bytes.
#[cold]
fn copy_in_parts(from: &Ring, to: &Ring) -> (u32, u64) {
    let source = from.slot(from.head());
    let (len, flags) = source.len_flags();
    // A program may have written any length.
    let (len, capacity) = (usize::from(len).min(source.frame().capacity()), to.buf_size() as usize);
    let parts = len.div_ceil(capacity) as u32;
    // A ring that can never hold them loses the packet.
    if parts < to.num_slots() {
        if parts > to.space() {
            return (0, 0);
        }
        for (part, target) in (0..parts).zip(to.first(parts)) {
            let at = part as usize * capacity;
            let bytes = (len - at).min(capacity);
            target.frame().copy_from(&source.frame().skip(at), bytes);
            let more = if part + 1 < parts { NS_MOREFRAG } else { flags & NS_MOREFRAG };
            target.set_len_flags(bytes as u16, more);
        }
        to.advance(parts);
    }
    from.advance(1);
    (1, len as u64)
}

/// Sleeps until a packet can be moved. Returns `false`, at once, if that is so already.
fn sleep(program: &Port, interface: &Port) -> Result<bool, Error> {
    let (of_program, of_interface) = (needed_events(interface), needed_events(program));
    let ready = program.arm(of_program)? | interface.arm(of_interface)?;
    if !ready.is_none() {
        return Ok(false);
    }
    let fds = [program.wait_fds(of_program), interface.wait_fds(of_interface)].concat();
    let mut fds: Vec<PollFd<'_>> =
        fds.into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN | PollFlags::RDHUP)).collect();
    let _ = wait_readable(&mut fds, Some(MAX_SLEEP));
    Ok(true)
}

/// Returns the events of a port that allow a packet to be moved: received packets if the `other` side has room for
/// them, and room if that side has received packets.
fn needed_events(other: &Port) -> Interest {
    let mut needed = Interest::NONE;
    if other.tx_rings().first().is_some_and(|ring| !ring.is_empty()) {
        needed |= Interest::RX;
    }
    if other.rx_rings().first().is_some_and(|ring| !ring.is_empty()) {
        needed |= Interest::TX;
    }
    needed
}

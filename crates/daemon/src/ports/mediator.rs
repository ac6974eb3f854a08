// SPDX-License-Identifier: BSD-2-Clause
//! A mediator thread: it moves packets between two ports that the daemon has open.
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
mod packets;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use unetmap_abi::NS_MOREFRAG;
use unetmap_core::{Error, Interest, Port, Ring};
use unetmap_mem::{Counter, SyncStateRef};
use unetmap_sys::clock::spin_hint;
use unetmap_sys::event::{PollFd, PollFlags, wait_readable};
use unetmap_sys::process;
use unetmap_sys::wait::{NAP, Wait, nap_pays};

use crate::confinement::confine_packet_thread;
use crate::threads;
use crate::threads::wait_for_end;
use crate::tuning::mediator::{BAD_POINTERS_PAUSE, BATCH, EXIT_FLUSH_LIMIT, MAX_SLEEP, MAX_SPURIOUS};
use headers::{HeaderConverter, await_more_room};
pub(crate) use headers::{LOST_COUNTERS, LostPackets};
pub(crate) use packets::{PacketCounters, PacketDevice, PacketReceiver};

/// A pair of rings: the REGISTER mode that selects it (`NR_REG_ONE_NIC` or `NR_REG_ONE_SW`), and its number in that
/// mode.
pub(crate) type RingPair = (u32, u16);

/// A running thread.
pub(crate) struct MediatorThread {
    pub(crate) pair: RingPair,
    pub(crate) directions: Directions,
    /// Of the interface, and of the side that faces the program or the switch.
    pub(crate) sessions: [u64; 2],
    control: Arc<Control>,
    /// Closing them wakes the thread.
    connections: [OwnedFd; 2],
    thread: JoinHandle<()>,
}

/// A thread that was told to end.
pub(crate) struct Stopping {
    queue: u16,
    control: Arc<Control>,
    thread: JoinHandle<()>,
    pub(crate) sessions: [u64; 2],
}

/// Bytes of the packets that the threads of a ring pair moved, one after the other.
#[derive(Clone)]
pub(crate) struct PairBytes {
    /// From the program to the interface.
    pub(crate) out: Counter,
    /// From the interface to the program.
    pub(crate) back: Counter,
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

/// Both sides of a ring pair, open, before a thread serves them.
pub(crate) struct Prepared {
    pub(crate) pair: RingPair,
    directions: Directions,
    pub(crate) sessions: [u64; 2],
    connections: [OwnedFd; 2],
    mediation: Mediation,
}

impl Prepared {
    /// The ports and connections are in the order of the sessions: the interface, the program. `packets`: packet
    /// sockets whose packets are the interface's, in place of its rings.
    pub(crate) fn new(
        (pair, directions): (RingPair, Directions),
        sessions: [u64; 2],
        [(interface, of_interface), (program, of_program)]: [(Port, OwnedFd); 2],
        packets: Option<PacketDevice>,
    ) -> Prepared {
        let (headers, bytes, states) = (None, None, [None, None]);
        let mediation = Mediation { program, interface, packets, headers, bytes, states, known_bad: 0 };
        Prepared { pair, directions, sessions, connections: [of_interface, of_program], mediation }
    }

    /// Bytes are counted in `bytes`, and slots that cannot be passed on in the states of the program's rings
    /// (`Endpoint::states_of`).
    pub(crate) fn counted_in(mut self, bytes: Option<PairBytes>, states: [Option<SyncStateRef>; 2]) -> Prepared {
        (self.mediation.bytes, self.mediation.states) = (bytes, states);
        self
    }

    /// The program's packets begin with a virtio-net header of `header` bytes (0: none). Packets that it loses are
    /// counted in `lost`.
    pub(crate) fn with_header(mut self, header: u8, lost: LostPackets) -> Prepared {
        let packets = self.mediation.packets.take();
        self.mediation.packets = packets.map(|packets| packets.with_header(header, false));
        self.mediation.headers = HeaderConverter::new(header, lost);
        self
    }

    /// Starts the thread.
    pub(crate) fn start(self, name: &str) -> io::Result<MediatorThread> {
        let Prepared { pair, directions, sessions, connections, mut mediation } = self;
        mediation.known_bad = bad_slots(&mediation.interface);
        let control = Arc::new(Control::default());
        let of_thread = control.clone();
        let run = move || {
            confine_packet_thread();
            of_thread.tid.store(process::tid(), Ordering::Relaxed);
            mediation.run(&of_thread);
        };
        let thread = threads::start(format!("{name} {}", pair.1), run)?;
        Ok(MediatorThread { pair, directions, sessions, control, connections, thread })
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

    /// Tells the thread to end, and wakes it.
    pub(crate) fn stop(self) -> Stopping {
        let MediatorThread { pair: (_, queue), control, connections, thread, sessions, .. } = self;
        control.stop.store(true, Ordering::Release);
        drop(connections);
        Stopping { queue, control, thread, sessions }
    }

    /// Tells the thread to end, whose sessions stay open: the caller wakes it.
    pub(crate) fn pause(&self) {
        self.control.stop.store(true, Ordering::Release);
    }

    /// Whether it was told to end, and whether it has.
    pub(crate) fn is_paused(&self) -> (bool, bool) {
        (self.control.stop.load(Ordering::Relaxed), self.thread.is_finished())
    }

    /// Waits until a paused thread has ended; `false`: it is held up.
    pub(crate) fn has_paused(&self) -> bool {
        wait_for_end(&self.thread, || self.control.tid.load(Ordering::Relaxed))
    }

    /// Ends a thread that has paused.
    pub(crate) fn join(self) {
        if self.thread.join().is_err() {
            tracing::error!(queue = self.pair.1, "a mediator thread panicked");
        }
    }

    /// Whether the thread moves packets that the interface receives.
    pub(crate) fn receives(&self) -> bool {
        self.directions.rx
    }
}

impl Stopping {
    /// Waits until the thread has ended; `false`: it is held up.
    pub(crate) fn wait(&self) -> bool {
        wait_for_end(&self.thread, || self.control.tid.load(Ordering::Relaxed))
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Ends a thread that has ended, and returns its sessions.
    pub(crate) fn join(self) -> [u64; 2] {
        if self.thread.join().is_err() {
            tracing::error!(queue = self.queue, "a mediator thread panicked");
        }
        self.sessions
    }
}

/// Both sides of a ring pair, as a thread serves them.
struct Mediation {
    program: Port,
    interface: Port,
    /// In place of the interface's rings, which are empty then.
    packets: Option<PacketDevice>,
    /// If the program's packets begin with virtio-net headers.
    headers: Option<HeaderConverter>,
    /// Where they are counted.
    bytes: Option<PairBytes>,
    /// The states of the program's transmit ring, where slots are counted that the interface cannot send, and of its
    /// receive ring, where packets are counted for which that is too short.
    states: [Option<SyncStateRef>; 2],
    /// Slots that the interface's ring has counted, as far as the program's ring has them, too.
    known_bad: u64,
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
                    let slept = self.sleep()?;
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
        let mut lost = 0;
        let (back, bytes) = match (&mut self.packets, &mut self.headers) {
            (Some(packets), _) => packets.move_back(to),
            (None, Some(headers)) => headers.move_back(from, to),
            (None, None) => copy(from, to, &mut lost),
        };
        if let Some(counted) = &self.bytes {
            counted.back.fetch_add(bytes, Ordering::Relaxed);
        }
        if let Some(state) = self.states[1].as_ref().filter(|_| lost > 0) {
            state.dropped.fetch_add(u64::from(lost), Ordering::Relaxed);
        }
        // At once: when the program gets its slots back, its packets must be on their way.
        if out > 0 {
            let synced = self.interface.txsync();
            self.pass_bad_slots_on();
            synced?;
        }
        Ok(Moved { out, back })
    }

    /// Counts what the interface's ring did not send as the program's, before the program gets its slots back.
    fn pass_bad_slots_on(&mut self) {
        let bad = bad_slots(&self.interface);
        if bad != self.known_bad {
            let more = bad.wrapping_sub(self.known_bad) as u32;
            self.known_bad = bad;
            self.count_bad_slots(more);
        }
    }

    fn count_bad_slots(&self, more: u32) {
        self.states[0].iter().for_each(|ring| ring.count_bad_slots(more));
    }

    /// Copies what the program sent to the interface; returns the number of slots.
    fn copy_out(&mut self) -> u32 {
        let (from, to) = (self.program.rx_rings().first(), self.interface.tx_rings().first());
        let mut bad = 0;
        let (out, bytes) = match (&mut self.packets, &mut self.headers) {
            (Some(packets), _) => packets.move_out(from, &mut bad),
            (None, Some(headers)) => headers.move_out(from, to, &mut bad),
            (None, None) => copy(from, to, &mut bad),
        };
        if let Some(counted) = &self.bytes {
            counted.out.fetch_add(bytes, Ordering::Relaxed);
        }
        if bad > 0 {
            self.count_bad_slots(bad);
        }
        out
    }

    /// Sleeps until a packet can be moved. Returns `false`, at once, if that is so already.
    fn sleep(&self) -> Result<bool, Error> {
        let Mediation { program, interface, packets, .. } = self;
        let (of_program, mut of_interface) = (needed_events(interface), needed_events(program));
        let receives = of_interface.rx();
        let packets = packets.as_ref();
        if packets.is_some() {
            // Its rings stay as they are.
            of_interface = Interest::RX;
        }
        let ready = program.arm(of_program)? | interface.arm(of_interface)?;
        if !ready.is_none() || receives && packets.is_some_and(PacketDevice::has_frame) {
            return Ok(false);
        }
        let fds = [program.wait_fds(of_program), interface.wait_fds(of_interface)].concat();
        let socket = packets.filter(|_| receives).and_then(PacketDevice::wait_fd);
        let fds = fds.into_iter().chain(socket);
        let mut fds: Vec<PollFd<'_>> =
            fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN | PollFlags::RDHUP)).collect();
        let _ = wait_readable(&mut fds, Some(MAX_SLEEP));
        Ok(true)
    }

    /// Sends what the program sent before it closed its port, including packets that this thread has not copied yet.
    fn flush(&mut self) {
        let start = Instant::now();
        loop {
            let _ = self.program.rxsync();
            let out = self.copy_out();
            // A packet socket has nothing that waits: what it had no room for is in the program's ring.
            let waits = |rings: &[Ring]| self.packets.is_some() && rings.iter().any(|ring| !ring.is_empty());
            let pending =
                out > 0 || waits(self.program.rx_rings()) || self.interface.tx_rings().iter().any(Ring::pending);
            let synced = self.interface.txsync();
            self.pass_bad_slots_on();
            if !pending || synced.is_err() || start.elapsed() >= EXIT_FLUSH_LIMIT {
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

/// Slots that the interface's transmit ring did not send.
fn bad_slots(interface: &Port) -> u64 {
    interface.tx_rings().first().map_or(0, Ring::bad_slots)
}

/// Copies as many packets as there are and as have room; returns the number of slots, and their bytes. Adds slots that
/// can never be sent to `bad`.
fn copy(from: Option<&Ring>, to: Option<&Ring>, bad: &mut u32) -> (u32, u64) {
    let (Some(from), Some(to)) = (from, to) else { return (0, 0) };
    let n = from.space().min(to.space()).min(BATCH);
    let (mut copied, mut bytes) = (0, 0);
    for (source, target) in from.first(n).zip(to.first(n)) {
        let (len, flags) = source.len_flags();
        if u32::from(len) > to.slot_size() {
            break;
        }
        target.frame().copy_from(&source.frame(), usize::from(len));
        target.set_len_flags(len, flags & NS_MOREFRAG);
        copied += 1;
        bytes += u64::from(len);
    }
    if copied == 0 && n > 0 {
        return copy_in_parts(from, to, bad);
    }
    to.advance(copied);
    from.advance(copied);
    (copied, bytes)
}

/// Copies one slot that is longer than the other ring's buffers into several slots. Returns the number of slots taken
/// from `from`, 1, or 0 if there is no room yet, and their bytes. Adds a slot that is too long to `bad`.
#[cold]
fn copy_in_parts(from: &Ring, to: &Ring, bad: &mut u32) -> (u32, u64) {
    let source = from.slot(from.head());
    let (len, flags) = source.len_flags();
    // A program may have written any length.
    let (len, capacity) = (usize::from(len).min(source.frame().capacity()), to.slot_size() as usize);
    let parts = len.div_ceil(capacity) as u32;
    // A ring that can never hold them loses the packet.
    if parts < to.num_slots() {
        if parts > to.space() {
            await_more_room(to);
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
    } else {
        *bad += 1;
    }
    from.advance(1);
    (1, len as u64)
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

//! Interfaces for programs that may not touch them: the daemon runs the sockets, and copies.
//!
//! ```text
//! program == pipe, in a region of the program's == [thread] == interface, in a region of the daemon's
//! switch  == port of the switch ================= [thread] == interface        (see `uplink`)
//! ```
//! One thread for each queue that the program has bound, and for each pair of host rings. To it both sides are ports like any other, and it believes what
//! the program writes as little as any program that shares a region does.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use unetmap::errno::ENOMEM;
use unetmap::{Error, Interest, Port, Ring};
use unetmap_abi::{NR_REG_ONE_NIC, NR_REG_ONE_SW, NR_RX_RINGS_ONLY, NR_TX_RINGS_ONLY, NS_MOREFRAG, NmreqRegister};
use unetmap_sys::clock::spin_hint;
use unetmap_sys::event::{PollFd, PollFlags, wait_readable};
use unetmap_sys::{process, socket};

use crate::books::{Books, Options, PipeKey, PortKey, Registered};
use crate::caller::Caller;
use crate::end::{End, PortRing};
use crate::nic::NicKey;
use crate::refusal::{Refusal, refuse};

/// The daemon's own lease, which no client gets.
pub(crate) const LEASE: u32 = u32::MAX;
/// How long a thread spins before it sleeps.
const SPIN: Duration = Duration::from_micros(50);
/// How long it sleeps at most.
const LOOK_UP: Duration = Duration::from_millis(500);
/// How long it waits at its end for the interface to send.
const FLUSH: Duration = Duration::from_millis(20);
/// Slots that it moves in one go: as many as one call has the kernel send. Measured on veth, of a direct sender's rate: 0.75
/// with 64, 0.84 with 256; forwarding 0.41 and 0.87.
const BATCH: u32 = 256;
/// How long it rests, how long that may take in fact, and for how many packets it is worth it.
const REST: Duration = Duration::from_micros(50);
const REST_AT_MOST: Duration = Duration::from_micros(110);
const REST_FOR: u128 = 32;
/// How long it leaves a program alone that wrote nonsense.
const NONSENSE: Duration = Duration::from_millis(1);

/// What leads from a program's pipe to an interface.
pub(crate) struct Wire {
    nic: NicKey,
    /// By queue: host rings after the interface's.
    running: BTreeMap<Lane, Running>,
}

/// A pair of rings: which mode of a REGISTER means it (`NR_REG_ONE_NIC` or `NR_REG_ONE_SW`), and its number there.
pub(crate) type Lane = (u32, u16);

/// A thread at work.
pub(crate) struct Running {
    pub(crate) lane: Lane,
    directions: Directions,
    sessions: [u64; 2],
    orders: Arc<Orders>,
    lifelines: [OwnedFd; 2],
    thread: JoinHandle<()>,
}

/// What a thread is told.
#[derive(Default)]
struct Orders {
    /// It ends; what it sleeps on wakes when the lifelines go.
    stop: AtomicBool,
    /// It does not sleep.
    restless: AtomicBool,
    /// One more than the processor that it is to stay on; 0: any.
    cpu: AtomicU32,
}

/// Both sides of a queue, open, and no thread yet.
pub(crate) struct Prepared {
    lane: Lane,
    directions: Directions,
    pub(crate) sessions: [u64; 2],
    program: Port,
    wire: Port,
    lifelines: [OwnedFd; 2],
}

/// As the program sees them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Directions {
    pub(crate) tx: bool,
    pub(crate) rx: bool,
}

impl Wire {
    pub(crate) fn new(nic: NicKey) -> Wire {
        Wire { nic, running: BTreeMap::new() }
    }

    /// The interface at its other end.
    pub(crate) fn nic(&self) -> NicKey {
        self.nic
    }
}

impl Running {
    /// Has the thread stay on a processor and never sleep (`Some`), or run wherever and sleep when idle.
    pub(crate) fn poll_from(&self, cpu: Option<u32>) {
        self.orders.cpu.store(cpu.map_or(0, |cpu| cpu + 1), Ordering::Release);
        self.orders.restless.store(cpu.is_some(), Ordering::Release);
    }

    /// The processor on which it was told to stay.
    pub(crate) fn polls_from(&self) -> Option<u32> {
        self.orders.cpu.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Whether it moves what the interface receives.
    pub(crate) fn receives(&self) -> bool {
        self.directions.rx
    }

    /// Ends the threads, all at the same time; their sessions are still to be closed.
    pub(crate) fn stop(all: impl IntoIterator<Item = Running>) -> Vec<u64> {
        let mut ending = Vec::new();
        for running in all {
            running.orders.stop.store(true, Ordering::Release);
            drop(running.lifelines);
            ending.push((running.lane, running.thread, running.sessions));
        }
        let ended = ending.into_iter().flat_map(|((_, queue), thread, sessions)| {
            if thread.join().is_err() {
                tracing::error!(queue, "a mediating thread died");
            }
            sessions
        });
        ended.collect()
    }
}

/// What the program has bound of a pair of rings.
fn bound(end: &End, pair: usize) -> Directions {
    let bound = |rings: &[PortRing]| rings.iter().any(|ring| ring.pair == pair && ring.binders() > 0);
    Directions { tx: bound(&end.tx), rx: bound(&end.rx) }
}

impl Books {
    /// Starts and ends threads, so that they serve what the program has bound, and nothing else.
    pub(crate) fn settle_wire(&mut self, key: &PipeKey) -> Result<(), Refusal> {
        let (Some(wire), Some(pipe)) = (self.wires.get(key), self.pipes.get(key)) else { return Ok(()) };
        let (end, nic) = (&pipe.ends[0], wire.nic);
        let own = end.shape.nic_pairs();
        let lane = |pair: usize| match pair.checked_sub(own) {
            None => (NR_REG_ONE_NIC, pair as u16),
            Some(host) => (NR_REG_ONE_SW, host as u16),
        };
        let wanted: Vec<(Lane, Directions)> =
            (0..end.shape.pairs()).map(|pair| (lane(pair), bound(end, pair))).collect();
        for (lane, wanted) in wanted {
            let wanted = (wanted.tx || wanted.rx).then_some(wanted);
            let running = self.wires.get(key).and_then(|wire| wire.running.get(&lane));
            if running.map(|running| running.directions) == wanted {
                continue;
            }
            // First, so that the queue stays open in between, and nothing is lost.
            let program = PortKey::Pipe(key.clone(), 1);
            let next = wanted.map(|wanted| self.prepare(&program, &key.parent, nic, lane, wanted)).transpose()?;
            let ended = self.wires.get_mut(key).and_then(|wire| wire.running.remove(&lane));
            for session in Running::stop(ended) {
                self.close(session);
            }
            if let Some(next) = next {
                let running = self.start(&key.parent, next)?;
                if let Some(wire) = self.wires.get_mut(key) {
                    wire.running.insert(lane, running);
                }
            }
        }
        Ok(())
    }

    /// Ends the wire of a pipe that no program has open any more.
    pub(crate) fn drop_wire_if_unused(&mut self, key: &PipeKey) {
        if self.pipes.get(key).is_some_and(|pipe| pipe.ends[0].in_use()) {
            return;
        }
        let Some(wire) = self.wires.remove(key) else { return };
        for session in Running::stop(wire.running.into_values()) {
            self.close(session);
        }
        self.drop_if_unused(&PortKey::Nic(wire.nic));
    }

    /// Opens both sides of a queue: the interface's, and the one of the port `program` that faces it.
    pub(crate) fn prepare(
        &mut self,
        program: &PortKey,
        name: &str,
        nic: NicKey,
        lane: Lane,
        directions: Directions,
    ) -> Result<Prepared, Refusal> {
        let only = match directions {
            Directions { tx: true, rx: true } => 0,
            Directions { rx: true, .. } => NR_RX_RINGS_ONLY,
            Directions { .. } => NR_TX_RINGS_ONLY,
        };
        // What the program sends, the other end of the pipe receives.
        let mirrored = match only {
            NR_RX_RINGS_ONLY => NR_TX_RINGS_ONLY,
            NR_TX_RINGS_ONLY => NR_RX_RINGS_ONLY,
            _ => 0,
        };
        let ring = |nr_mode, nr_flags| NmreqRegister { nr_mode, nr_ringid: lane.1, nr_flags, ..Default::default() };
        // A switch has a port for the host's rings, which are that port's own.
        let program_mode = if matches!(program, PortKey::Vale(_)) { NR_REG_ONE_NIC } else { lane.0 };
        let me = Caller::daemon();
        let plain = Options::default();
        let wire = self.open_session(PortKey::Nic(nic), name, &ring(lane.0, only), &plain, &me)?;
        let mut sessions = [wire.session, 0];
        let facing = self.open_session(program.clone(), name, &ring(program_mode, mirrored), &plain, &me);
        let prepared = facing.and_then(|facing| {
            sessions[1] = facing.session;
            let (wire, one) = self.own_port(wire)?;
            let (program, two) = self.own_port(facing)?;
            Ok(Prepared { lane, directions, sessions, program, wire, lifelines: [one, two] })
        });
        if prepared.is_err() {
            sessions.into_iter().for_each(|session| self.close(session));
        }
        prepared
    }

    /// Starts the thread; where there can be none, both sides are closed again.
    pub(crate) fn start(&mut self, name: &str, prepared: Prepared) -> Result<Running, Refusal> {
        let Prepared { lane, directions, sessions, program, wire, lifelines } = prepared;
        let thread = std::thread::Builder::new().name(format!("{name} {}", lane.1));
        let orders = Arc::new(Orders::default());
        let its = orders.clone();
        match thread.spawn(move || mediate(&program, &wire, &its)) {
            Ok(thread) => Ok(Running { lane, directions, sessions, orders, lifelines, thread }),
            Err(e) => {
                sessions.into_iter().for_each(|session| self.close(session));
                refuse(ENOMEM, format!("no thread for queue {}: {e}", lane.1))
            }
        }
    }

    /// A port in the daemon's own hands, and what it lives by.
    fn own_port(&mut self, registered: Registered) -> Result<(Port, OwnedFd), Refusal> {
        let Registered { session, register, bound, fds, .. } = registered;
        let (mine, ports) =
            socket::pair().or_else(|e| refuse(ENOMEM, format!("no descriptors left in the daemon: {e}")))?;
        let board = self.board_of(session);
        let port = unetmap::adopt("the daemon's", register, &bound, fds, ports, LEASE, board);
        let port = port.or_else(|e| refuse(e.errno(), e.to_string()))?;
        Ok((port, mine))
    }
}

/// Moves packets both ways until it is told to stop, or either port ends.
fn mediate(program: &Port, wire: &Port, orders: &Orders) {
    let mut last = Instant::now();
    let (anywhere, mut on) = (process::cpus_allowed(), 0);
    while !orders.stop.load(Ordering::Acquire) {
        let cpu = orders.cpu.load(Ordering::Acquire);
        if cpu != on {
            on = cpu;
            let moved = match cpu.checked_sub(1) {
                Some(cpu) => process::pin_to_cpu(cpu as usize),
                None => process::run_on_cpus(&anywhere),
            };
            if let Err(e) = moved {
                tracing::warn!(cpu, "the thread stays where it was: {e}");
            }
        }
        let restless = orders.restless.load(Ordering::Acquire);
        let result = round(program, wire).and_then(|moved| match moved {
            Moved { out: 0, back: 0 } if !restless && last.elapsed() >= SPIN => sleep(program, wire).map(|()| moved),
            moved => Ok(moved),
        });
        match result {
            Ok(Moved { out: 0, back }) if back > 0 => {
                if worth_a_rest(back, last.elapsed(), wire) {
                    std::thread::sleep(REST);
                }
                last = Instant::now();
            }
            Ok(Moved { out, .. }) if out > 0 => last = Instant::now(),
            Ok(_) => (0..8).for_each(|_| spin_hint()),
            Err(Error::BadPointers { .. }) => std::thread::sleep(NONSENSE),
            Err(e) => {
                tracing::debug!("mediating ended: {e}");
                return;
            }
        }
    }
    // What the program sent before it closed its port still goes out, also what this thread had not come to yet.
    let start = Instant::now();
    loop {
        let _ = program.rxsync();
        let out = copy(program.rx_rings().first(), wire.tx_rings().first());
        let pending = out > 0 || wire.tx_rings().iter().any(Ring::pending);
        if !pending || wire.txsync().is_err() || start.elapsed() >= FLUSH {
            break;
        }
        std::thread::yield_now();
    }
    // What was copied is given back and handed over, or whoever comes next would send it again, and receive it never.
    let _ = (program.rxsync(), program.txsync());
}

/// Slots moved.
#[derive(Clone, Copy)]
struct Moved {
    /// From the program to the interface.
    out: u32,
    /// From the interface to the program.
    back: u32,
}

/// Whether to sleep before the next look at the interface, as the library does where a program looks itself: in a stream
/// that is fast, and not so fast that the ring could run over. `back` slots came in `time`.
fn worth_a_rest(back: u32, time: Duration, wire: &Port) -> bool {
    let expected = u128::from(back) * REST_AT_MOST.as_nanos() / time.as_nanos().max(1);
    let room = wire.rx_rings().first().map_or(0, Ring::num_slots);
    back < BATCH && (REST_FOR..u128::from(room / 2)).contains(&expected)
}

/// Moves what can be moved now.
fn round(program: &Port, wire: &Port) -> Result<Moved, Error> {
    program.poll(Interest::BOTH, Some(Duration::ZERO))?;
    wire.poll(Interest::BOTH, Some(Duration::ZERO))?;
    let out = copy(program.rx_rings().first(), wire.tx_rings().first());
    let back = copy(wire.rx_rings().first(), program.tx_rings().first());
    // At once: when the program gets its slots back, its packets are on their way.
    if out > 0 {
        wire.txsync()?;
    }
    Ok(Moved { out, back })
}

/// Copies what there is and what there is room for; returns how many slots.
fn copy(from: Option<&Ring>, to: Option<&Ring>) -> u32 {
    let (Some(from), Some(to)) = (from, to) else { return 0 };
    let n = from.space().min(to.space()).min(BATCH);
    for (source, target) in from.first(n).zip(to.first(n)) {
        let (len, flags) = source.len_flags();
        target.frame().copy_from(&source.frame(), usize::from(len));
        target.set_len_flags(len, flags & NS_MOREFRAG);
    }
    to.advance(n);
    from.advance(n);
    n
}

/// Sleeps until something can be moved.
fn sleep(program: &Port, wire: &Port) -> Result<(), Error> {
    let (from_program, from_wire) = (wants(wire), wants(program));
    let ready = program.arm(from_program)? | wire.arm(from_wire)?;
    if !ready.is_none() {
        return Ok(());
    }
    let fds = [program.wait_fds(from_program), wire.wait_fds(from_wire)].concat();
    let mut fds: Vec<PollFd<'_>> =
        fds.into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN | PollFlags::RDHUP)).collect();
    let _ = wait_readable(&mut fds, Some(LOOK_UP));
    Ok(())
}

/// What has to happen at a port before something can be moved: packets, if the `other` side has room for them; room, if
/// that has packets.
fn wants(other: &Port) -> Interest {
    let mut wants = Interest::NONE;
    if other.tx_rings().first().is_some_and(|ring| !ring.is_empty()) {
        wants |= Interest::RX;
    }
    if other.rx_rings().first().is_some_and(|ring| !ring.is_empty()) {
        wants |= Interest::TX;
    }
    wants
}

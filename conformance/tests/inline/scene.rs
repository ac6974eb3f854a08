// SPDX-License-Identifier: BSD-2-Clause
//! Traffic through the program while a fault happens, and what was seen of it.

use std::collections::BTreeMap;
use std::fs;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use conformance::connections::Connections;
use conformance::datagrams::Datagrams;
use conformance::home::Guard;
use lab::Ns;
use serde::Serialize;

use crate::cards::Cards;
use crate::faults::Fault;
use crate::ledger::{Frames, Ledger};
use crate::place::{CLIENT, DENIED, OnFailure, Place, QUEUES, SERVER, Way, wait_for, wait_within};

/// Connections that run all the time.
const CONNECTIONS: usize = 100;
/// The UDP port of what is to pass.
const ALLOWED: u16 = 9000;
/// Time between two datagrams of a stream.
const TICK: Duration = Duration::from_millis(1);
/// Ticks between two datagrams that are denied, and between two calls of the connections.
const SELDOM: usize = 10;
/// Nothing arrives for this long: all that was sent has arrived, or is lost.
const QUIET: Duration = Duration::from_millis(150);
/// After this long without traffic the program is started again by hand.
const BY_HAND_AFTER: Duration = Duration::from_secs(10);
/// Frames that pass in this time after a fault began may have been on their way.
const BEFORE: Duration = Duration::from_millis(300);

/// Parts of a fault's duration, in each of which both streams pass, or not.
const PARTS: u32 = 4;

/// The streams, by their places in [`Flows::streams`].
const OUT: usize = 0;
const IN: usize = 1;

/// All traffic of a place.
struct Flows {
    /// Datagrams that are to pass, out and in, and such that are denied, out and in.
    streams: [Datagrams; 4],
    connections: Connections,
    ends: AtomicBool,
    pauses: AtomicBool,
}

/// Traffic, and the threads that move it.
pub(crate) struct Traffic {
    flows: Arc<Flows>,
    threads: Vec<JoinHandle<()>>,
}

impl Traffic {
    fn start(place: &Place) -> Result<Traffic, String> {
        let (client, server) = ((&place.client, CLIENT), (&place.server, SERVER));
        let streams = [
            Datagrams::new(client, server, ALLOWED)?,
            Datagrams::new(server, client, ALLOWED + 1)?,
            Datagrams::new(client, server, DENIED)?,
            Datagrams::new(server, client, DENIED)?,
        ];
        let connections = Connections::new(&place.client, server, CONNECTIONS)?;
        let (ends, pauses) = (AtomicBool::new(false), AtomicBool::new(true));
        let flows = Arc::new(Flows { streams, connections, ends, pauses });
        let mut threads: Vec<_> = (0..flows.streams.len())
            .map(|i| {
                let flows = flows.clone();
                spawn(move || {
                    while !flows.ends.load(Relaxed) {
                        flows.streams[i].receive();
                    }
                })
            })
            .collect();
        let sender = flows.clone();
        threads.push(spawn(move || sender.send_all_the_time()));
        Ok(Traffic { flows, threads })
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.flows.ends.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Flows {
    fn send_all_the_time(&self) {
        for tick in 0.. {
            if self.ends.load(Relaxed) {
                return;
            }
            let (pauses, is_seldom) = (self.pauses.load(Relaxed), tick % SELDOM == 0);
            if !pauses {
                let some = if is_seldom { &self.streams[..] } else { &self.streams[..2] };
                some.iter().for_each(Datagrams::send);
            }
            if is_seldom {
                self.connections.tick(tick / SELDOM, pauses);
            }
            sleep(TICK);
        }
    }
}

/// Echo requests that hosts have sent, and that the other one has seen, out and in.
pub(crate) struct Echoes {
    pub sent: [u64; 2],
    pub seen: [u64; 2],
}

/// The kernel's counters of ICMP, by name.
type Icmp = BTreeMap<String, u64>;

fn icmp(ns: &Ns) -> Result<Icmp, String> {
    let text = ns.run(|| fs::read_to_string("/proc/thread-self/net/snmp"))?.map_err(|e| e.to_string())?;
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Icmp: "));
    let (names, values) = lines.next().zip(lines.next()).ok_or("no counters of ICMP")?;
    let values = values.split(' ').map(|value| value.parse().unwrap_or(0));
    Ok(names.split(' ').map(String::from).zip(values).collect())
}

/// A place with traffic.
pub(crate) struct Scene {
    // Dropped in this order.
    traffic: Traffic,
    pub place: Place,
    /// How long a fault lasts.
    pub hold: Duration,
    /// Whether traffic passed while the fault lasted.
    meanwhile: &'static str,
}

/// The results of a fault.
#[derive(Default, Serialize)]
pub(crate) struct Row {
    /// The program in the wire.
    pub way: &'static str,
    /// The fault.
    pub fault: &'static str,
    /// Why it was not tried.
    pub skipped: Option<String>,
    /// How long it lasted, in milliseconds.
    pub lasted_ms: u64,
    /// Whether both streams passed while it lasted: `open`, `closed`, or `partly`.
    pub meanwhile: &'static str,
    /// How long the wire was closed, out and in, in milliseconds.
    pub closed_ms: [f64; 2],
    /// Datagrams sent, out and in.
    pub sent: [u64; 2],
    /// Datagrams of these that did not arrive.
    pub lost: [u64; 2],
    /// Datagrams that arrived again, and after later ones, in both directions.
    pub repeated: u64,
    pub late: u64,
    /// Datagrams that the rules deny, out and in: sent, and seen behind the program.
    pub denied_sent: [u64; 2],
    pub denied_seen: [u64; 2],
    /// Frames that the kernel dropped at a closed interface, in and out, since no program took them.
    pub kernel_dropped: Option<u64>,
    /// Frames of all traffic that were lost, and as what they are counted; `None` where they are not compared.
    pub frames: Option<Frames>,
    /// Connections that broke or stand still.
    pub broken: Vec<String>,
    /// Names of what was started again.
    pub started: Vec<&'static str>,
    /// Why the row failed.
    pub failure: Option<String>,
}

impl Scene {
    /// Makes a place and starts the traffic, which pauses.
    pub(crate) fn new(way: &'static Way, hold: Duration, cards: Option<Cards>) -> Result<Scene, String> {
        let place = Place::new(way, cards)?;
        let traffic = Traffic::start(&place)?;
        Ok(Scene { traffic, place, hold, meanwhile: "" })
    }

    fn flows(&self) -> &Flows {
        &self.traffic.flows
    }

    /// Lets the fault last, and looks whether traffic passes, as it has to in the end where the kernel forwards.
    pub(crate) fn hold(&mut self) -> Result<(), String> {
        self.hold_cut();
        match self.place.way.on_failure {
            OnFailure::Bypass => self.wait_until_it_passes(),
            OnFailure::Open | OnFailure::Closed => Ok(()),
        }
    }

    /// Lets a fault of the wire itself last, through which nothing may pass.
    pub(crate) fn hold_cut(&mut self) {
        sleep(BEFORE);
        let part = self.hold.saturating_sub(BEFORE) / PARTS;
        let received = || [OUT, IN].map(|i| self.flows().streams[i].received());
        let passes = |_| {
            let before = received();
            sleep(part);
            let now = received();
            (0..2).all(|i| now[i] > before[i])
        };
        let open = (0..PARTS).map(passes).filter(|passed| *passed).count();
        self.meanwhile = match open {
            0 => "closed",
            _ if open == PARTS as usize => "open",
            _ => "partly",
        };
    }

    /// Starts what has ended until everything flows again, both streams and all connections.
    fn recover(&mut self, row: &mut Row) -> Result<(), String> {
        let sent = self.flows().connections.sent();
        let received = [OUT, IN].map(|i| self.flows().streams[i].received());
        let flows = self.traffic.flows.clone();
        let flowing = || {
            let arrived = [OUT, IN].into_iter().all(|i| flows.streams[i].received() > received[i]);
            arrived && flows.connections.behind(&sent) == 0
        };
        let begin = Instant::now();
        let mut by_hand = false;
        while !flowing() {
            row.started.extend(self.place.mend()?);
            if begin.elapsed() > BY_HAND_AFTER && !by_hand {
                by_hand = true;
                row.started.push("program by hand");
                self.place.restart_program()?;
            }
            if begin.elapsed() > 4 * BY_HAND_AFTER {
                let behind = flows.connections.behind(&sent);
                return Err(format!("{behind} connections stand still, after: {}", self.place.last_words()));
            }
            sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Has the traffic pause; returns when all that was sent has arrived or is lost.
    fn quiet(&self) -> Result<(), String> {
        self.flows().pauses.store(true, Relaxed);
        wait_for("all bytes of the connections return", || self.flows().connections.all_returned())?;
        let received = || self.flows().streams.each_ref().map(Datagrams::received);
        let mut last = (received(), Instant::now());
        wait_for("nothing arrives any more", || {
            let now = received();
            if now != last.0 {
                last = (now, Instant::now());
            }
            last.1.elapsed() > QUIET
        })
    }

    /// Runs a fault; the row says what was seen.
    pub(crate) fn run(&mut self, fault: &Fault) -> Row {
        let mut row = Row { way: self.place.way.name, fault: fault.name, ..Row::default() };
        if let Err(why) = self.try_run(fault, &mut row) {
            match why.strip_prefix("skipped: ") {
                Some(why) => row.skipped = Some(why.to_owned()),
                None => row.failure = Some(why),
            }
        }
        row
    }

    fn try_run(&mut self, fault: &Fault, row: &mut Row) -> Result<(), String> {
        self.place.wait_until_it_works()?;
        let before = if fault.keeps_interfaces { self.ledger()? } else { None };
        self.begin(row)?;
        let begin = Instant::now();
        self.meanwhile = "";
        let result = (fault.run)(self);
        row.lasted_ms = begin.elapsed().as_millis() as u64;
        row.meanwhile = self.meanwhile;
        self.end(row)?;
        if let Some(before) = before {
            row.frames = Some(before.until(&Ledger::of(&self.place)?));
        }
        result
    }

    /// Everything flows again, then the traffic pauses and is counted.
    pub(crate) fn end(&mut self, row: &mut Row) -> Result<(), String> {
        self.recover(row)?;
        let quiet = self.quiet();
        self.count(row);
        quiet
    }

    /// The counters of frames, where they can be compared: rules deny frames, too, and the interfaces of a host do not
    /// show what its stack gets.
    pub(crate) fn ledger(&self) -> Result<Option<Ledger>, String> {
        (!self.place.way.denies).then(|| Ledger::of(&self.place)).transpose()
    }

    /// Starts pings that the rules deny, in both directions.
    pub(crate) fn start_denied_pings(&self) -> Vec<Guard> {
        let (client, server) = (&self.place.client, &self.place.server);
        let ping = |(from, to): (&Ns, &str)| {
            let mut command = from.command("ping");
            Guard::spawn(command.args(["-n", "-q", "-i", "0.05", to]).stdin(Stdio::null()).stdout(Stdio::null()))
        };
        let ways = [(client, SERVER), (server, CLIENT)];
        if self.place.way.denies { ways.into_iter().map(ping).collect() } else { Vec::new() }
    }

    /// Echo requests, out and in, of the kernel's counters.
    pub(crate) fn echoes(&self) -> Result<Echoes, String> {
        let (client, server) = (icmp(&self.place.client)?, icmp(&self.place.server)?);
        let of = |counters: &Icmp, name: &str| counters.get(name).copied().unwrap_or(0);
        Ok(Echoes {
            sent: [of(&client, "OutEchos"), of(&server, "OutEchos")],
            seen: [of(&server, "InEchos"), of(&client, "InEchos")],
        })
    }

    /// Frames that the kernel dropped because no program took them, in and out; `None`: the way is not closed.
    pub(crate) fn dropped(&self) -> Option<u64> {
        let is_closed = self.place.way.on_failure == OnFailure::Closed;
        let snapshot = self.place.home.try_snapshot().filter(|_| is_closed)?;
        let port = snapshot.ports.iter().find(|port| port.name == "m0")?;
        let host = port.rings.iter().filter(|ring| ring.dir == "rx" && u32::from(ring.id) >= QUEUES);
        let into = port.frames.as_ref()?.dropped.values().sum::<u64>();
        Some(into + host.map(|ring| ring.dropped).sum::<u64>())
    }

    /// Traffic begins, with counts of zero.
    pub(crate) fn begin(&mut self, row: &mut Row) -> Result<(), String> {
        self.flows().streams.iter().for_each(|stream| _ = stream.take());
        self.flows().pauses.store(false, Relaxed);
        self.recover(row)?;
        row.started.clear();
        self.take_gap();
        Ok(())
    }

    /// The longest time for which the wire was closed, in either direction, since this was last taken.
    pub(crate) fn take_gap(&self) -> Duration {
        let gaps = [OUT, IN].map(|i| self.flows().streams[i].take_gap());
        gaps[0].max(gaps[1])
    }

    fn count(&self, row: &mut Row) {
        let [out, into, denied_out, denied_in] = self.flows().streams.each_ref().map(Datagrams::take);
        row.closed_ms = [&out, &into].map(|counts| counts.arrivals.gap.as_secs_f64() * 1e3);
        row.sent = [&out, &into].map(|counts| counts.sent);
        row.lost = [&out, &into].map(|counts| counts.lost());
        row.repeated = out.arrivals.repeated + into.arrivals.repeated;
        row.late = out.arrivals.late + into.arrivals.late;
        row.denied_sent = [&denied_out, &denied_in].map(|counts| counts.sent);
        row.denied_seen = [&denied_out, &denied_in].map(|counts| counts.arrivals.received);
        row.broken = self.flows().connections.broken();
    }

    /// Waits until something passes in both directions.
    pub(crate) fn wait_until_it_passes(&self) -> Result<(), String> {
        let received = || [OUT, IN].map(|i| self.flows().streams[i].received());
        let before = received();
        let limit = 3 * BY_HAND_AFTER;
        wait_within("traffic passes", limit, || {
            let now = received();
            (0..2).all(|i| now[i] > before[i])
        })
    }
}

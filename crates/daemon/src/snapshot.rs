//! Everything that `unetmap ls` shows, as JSON.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use unetmap_mem::LinePage;
use unetmap_sys::{memfd, process};

use crate::books::{Books, PipeKey};
use crate::end::{End, PortRing};
use crate::monitor::Monitor;
use crate::nic::Nic;
use crate::pipe::Pipe;
use crate::region::{House, Scope};
use crate::settings::ShownSwitch;
use crate::threads::ShownThread;
use crate::vale::ValePort;

#[derive(Serialize)]
struct Snapshot {
    daemon: Daemon,
    regions: Vec<Region>,
    switches: Vec<ShownSwitch>,
    /// Those of the switches.
    threads: Vec<ShownThread>,
    ports: Vec<Port>,
    sessions: Vec<Session>,
}

#[derive(Serialize)]
struct Daemon {
    pid: u32,
    uid: u32,
    version: &'static str,
    uptime_seconds: u64,
    connections: usize,
}

#[derive(Serialize)]
struct Region {
    mem_id: u16,
    name: String,
    bytes: u64,
    resident_bytes: u64,
    sessions: u32,
    rings_in_use: u32,
    buffers: Buffers,
}

/// The four counts add up to the buffers of the region less the two reserved ones.
#[derive(Serialize)]
struct Buffers {
    total: u32,
    free: u32,
    in_rings: u32,
    extra: u32,
    quarantined: u32,
}

#[derive(Serialize)]
struct Port {
    name: String,
    kind: &'static str,
    mem_id: u16,
    open: bool,
    /// Of a switch's port: whose the switch is.
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<u32>,
    /// Of a switch's port: the number of the thread that takes what it sends, and the processor where that is or was last.
    #[serde(skip_serializing_if = "Option::is_none")]
    thread: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu: Option<usize>,
    /// Of an attached interface's queues: the processors that serve nothing else.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    polled: BTreeMap<u16, u32>,
    /// Of an interface: how packets get in and out.
    #[serde(skip_serializing_if = "Option::is_none")]
    manner: Option<String>,
    /// Of a switch's port: packets that it sent and that reached no port, by reason.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    lost: BTreeMap<&'static str, u64>,
    rings: Vec<Ring>,
}

#[derive(Serialize)]
struct Ring {
    dir: &'static str,
    id: u16,
    slots: u32,
    sessions: u32,
    /// Slots sent and not yet released by the receiver.
    queued: u32,
    crossed: u64,
    batches: u64,
    bad_slots: u64,
    bad_pointers: u64,
    /// Of an interface's or a switch port's receive ring: packets that were dropped because nobody made room for them, here
    /// or, of those that were to go on, on the other side. Of a
    /// switch port's transmit ring: packets that reached no port. Of a monitor's ring: slots that it was not shown, because
    /// it was too slow.
    dropped: u64,
    /// Of a switch port's receive ring: packets that came without being copied, from ports of the same region.
    #[serde(skip_serializing_if = "Option::is_none")]
    swapped: Option<u64>,
}

#[derive(Serialize)]
struct Session {
    id: u64,
    port: String,
    pid: u32,
    uid: u32,
    tx_rings: usize,
    rx_rings: usize,
    exclusive: bool,
}

/// The books, as text: everything, or what is `only` one user's.
pub(crate) fn text(books: &Books, only: Option<u32>, connections: usize, uptime: Duration) -> String {
    let shown = |uid: u32| only.is_none_or(|only| only == uid);
    let regions = books.houses.values().filter(|house| shown(house.scope.uid)).map(|house| region(books, house));
    let sessions = books.sessions.iter().filter(|(_, session)| shown(session.uid)).map(|(id, session)| Session {
        id: *id,
        port: books.name_of(&session.port).unwrap_or(&session.name).into(),
        pid: session.pid,
        uid: session.uid,
        tx_rings: session.binding.tx.len(),
        rx_rings: session.binding.rx.len(),
        exclusive: session.binding.exclusive,
    });
    let snapshot = Snapshot {
        daemon: Daemon {
            pid: process::pid(),
            uid: process::uid(),
            version: env!("CARGO_PKG_VERSION"),
            uptime_seconds: uptime.as_secs(),
            connections,
        },
        regions: regions.collect(),
        switches: books.shown_switches(only.map(|uid| Scope { uid, netns: 0 })),
        threads: books.shown_threads(),
        ports: ports(books, shown),
        sessions: sessions.collect(),
    };
    serde_json::to_string(&snapshot).unwrap_or_else(|e| format!("{{\"error\":\"{e}\"}}"))
}

fn region(books: &Books, house: &House) -> Region {
    let (census, g) = (house.census(&books.living(house.id)), house.region.geometry());
    Region {
        mem_id: house.mem_id,
        name: house.name.clone(),
        bytes: g.bytes(),
        resident_bytes: memfd::resident_bytes(&house.fd).unwrap_or(0),
        sessions: house.sessions,
        rings_in_use: house.taken().1,
        buffers: Buffers {
            total: g.bufs.count - 2,
            free: census.free,
            in_rings: census.in_rings,
            extra: census.extra,
            quarantined: census.quarantined,
        },
    }
}

/// The ports of the users who are `shown`, kind by kind.
fn ports(books: &Books, shown: impl Fn(u32) -> bool) -> Vec<Port> {
    let mem_id = |house| books.houses.get(&house).map_or(0, |house| house.mem_id);
    let nics = books.nics.values().filter(|nic| shown(nic.scope.uid)).map(|nic| Port {
        manner: Some(nic.describe()),
        ..port(nic.name.clone(), "nic", mem_id(nic.house), &nic.end, nic_rings(nic))
    });
    let vales = books.vales.iter().filter(|(key, _)| shown(key.scope.uid)).map(|(key, at)| {
        let thread = books.switches.thread_of(key, at.index());
        Port {
            uid: Some(key.scope.uid),
            thread,
            cpu: thread.and_then(|thread| books.switches.threads.cpu_of(thread)),
            polled: books.polled(key),
            lost: at.lost(),
            ..port(key.name(), "vale", mem_id(at.house), &at.end, vale_rings(at))
        }
    });
    let pipes = books.pipes.iter().filter(|(key, _)| shown(key.scope.uid));
    let pipes = pipes.flat_map(|(key, pipe)| pipe_ports(books, key, pipe, mem_id(pipe.house)));
    let nulls = books.nulls.iter().filter(|((scope, _), _)| shown(scope.uid)).map(|((_, name), at)| Port {
        open: true,
        ..port(name.clone(), "null", mem_id(at.house), &at.end, rings(&at.end, None))
    });
    let monitors = books.monitors.values().filter(|monitor| shown(monitor.scope.uid));
    let monitors = monitors.map(|at| port(at.name.clone(), "monitor", mem_id(at.house), &at.end, monitor_rings(at)));
    nics.chain(vales).chain(pipes).chain(nulls).chain(monitors).collect()
}

/// The two ends of a pipe, or the one that is a program's.
fn pipe_ports(books: &Books, key: &PipeKey, pipe: &Pipe, mem_id: u16) -> Vec<Port> {
    let [master, slave] = &pipe.ends;
    let end = |name: String, kind, end| port(name, kind, mem_id, end, rings(end, Some(&pipe.lines)));
    let parent = &key.parent;
    let Some(id) = &key.id else {
        let mut port = end(parent.clone(), "mediated", master);
        // What finds no room here waits in the interface's socket, and then finds none there.
        if let Some(nic) = books.wires.get(key).and_then(|wire| books.nics.get(&wire.nic())) {
            port.rings.iter_mut().zip(nic_rings(nic)).for_each(|(ring, of)| ring.dropped += of.dropped);
        }
        return vec![port];
    };
    vec![end(format!("{parent}{{{id}"), "pipe", master), end(format!("{parent}}}{id}"), "pipe", slave)]
}

/// A port of which there is nothing special to say.
fn port(name: String, kind: &'static str, mem_id: u16, end: &End, rings: Vec<Ring>) -> Port {
    Port {
        name,
        kind,
        mem_id,
        open: end.in_use(),
        uid: None,
        thread: None,
        cpu: None,
        polled: BTreeMap::new(),
        manner: None,
        lost: BTreeMap::new(),
        rings,
    }
}

fn rings(end: &End, lines: Option<&LinePage>) -> Vec<Ring> {
    end.tx.iter().chain(&end.rx).map(|ring| one_ring(end, ring, lines)).collect()
}

fn nic_rings(nic: &Nic) -> Vec<Ring> {
    let mut rings = rings(&nic.end, None);
    for (ring, of) in rings.iter_mut().zip(nic.end.tx.iter().chain(&nic.end.rx)).filter(|(ring, _)| ring.dir == "rx") {
        ring.dropped += nic.statistics(of.pair).rx_dropped;
        if of.pair == nic.end.shape.nic_pairs() {
            // Nobody had any host ring, so the first one stands for all.
            ring.dropped += nic.host_dropped();
        }
    }
    rings
}

fn vale_rings(port: &ValePort) -> Vec<Ring> {
    let mut rings = rings(&port.end, Some(&port.lines));
    for ring in &mut rings {
        ring.dropped = port.dropped(ring.dir == "tx", ring.id);
        ring.swapped = (ring.dir == "rx").then(|| port.swapped(ring.id));
    }
    rings
}

fn monitor_rings(monitor: &Monitor) -> Vec<Ring> {
    let mut rings = rings(&monitor.end, None);
    for ring in rings.iter_mut().filter(|ring| ring.dir == "rx") {
        (ring.queued, ring.dropped) = monitor.figures(ring.id);
    }
    rings
}

fn one_ring(end: &End, ring: &PortRing, lines: Option<&LinePage>) -> Ring {
    use std::sync::atomic::Ordering::Relaxed;
    let (shape, state) = (ring.view.shape(), end.page.state(ring.state));
    let line = ring.words(lines).and_then(|words| words.positions(shape.slots));
    Ring {
        dir: if shape.dir == 0 { "tx" } else { "rx" },
        id: shape.id,
        slots: shape.slots.get(),
        sessions: ring.binders(),
        queued: line.map_or(0, |l| shape.slots.distance(l.from, l.to)),
        crossed: state.map_or(0, |s| s.slots.load(Relaxed)),
        batches: state.map_or(0, |s| s.batches.load(Relaxed)),
        bad_slots: state.map_or(0, |s| s.bad_slots.load(Relaxed)),
        bad_pointers: state.map_or(0, |s| s.bad_pointers.load(Relaxed)),
        dropped: state.map_or(0, |s| s.dropped.load(Relaxed)),
        swapped: None,
    }
}

//! Everything that `unetmap ls` shows, as JSON.

use std::time::Duration;

use serde::Serialize;
use unetmap_mem::LinePage;
use unetmap_sys::{memfd, process};

use crate::books::Books;
use crate::end::{End, PortRing};

#[derive(Serialize)]
struct Snapshot {
    daemon: Daemon,
    regions: Vec<Region>,
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

/// The books, as text.
pub(crate) fn text(books: &Books, connections: usize, uptime: Duration) -> String {
    let regions = books.houses.values().map(|house| {
        let (census, g) = (house.census(&books.living(house.mem_id)), house.region.geometry());
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
    });
    let pipes = books.pipes.iter().flat_map(|((parent, id), pipe)| {
        ["{", "}"].into_iter().zip(&pipe.ends).map(move |(sign, end)| Port {
            name: format!("{parent}{sign}{id}"),
            kind: "pipe",
            mem_id: pipe.mem_id,
            open: end.in_use(),
            rings: rings(end, Some(&pipe.lines)),
        })
    });
    let nulls = books.nulls.iter().map(|(name, port)| Port {
        name: name.clone(),
        kind: "null",
        mem_id: port.mem_id,
        open: true,
        rings: rings(&port.end, None),
    });
    let sessions = books.sessions.iter().map(|(id, session)| Session {
        id: *id,
        port: session.name.clone(),
        pid: session.peer.pid,
        uid: session.peer.uid,
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
        ports: pipes.chain(nulls).collect(),
        sessions: sessions.collect(),
    };
    serde_json::to_string(&snapshot).unwrap_or_else(|e| format!("{{\"error\":\"{e}\"}}"))
}

fn rings(end: &End, lines: Option<&LinePage>) -> Vec<Ring> {
    end.tx.iter().chain(&end.rx).map(|ring| one_ring(end, ring, lines)).collect()
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
    }
}

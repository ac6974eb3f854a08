//! The daemon's books, as `unetmap ls` gets them.

use serde::Deserialize;

/// Buffers in the rings of a pipe of default size: two transmit rings, and a spare for each receive ring.
pub const PIPE_BUFFERS: u32 = 2 * 1024 + 2;

/// Everything.
#[derive(Clone, Debug, Deserialize)]
pub struct Snapshot {
    /// The daemon itself.
    pub daemon: Daemon,
    /// Its regions.
    pub regions: Vec<Region>,
    /// The threads of its switches.
    pub threads: Vec<Thread>,
    /// Its ports.
    pub ports: Vec<Port>,
    /// Who has them open.
    pub sessions: Vec<Session>,
}

/// The daemon itself.
#[derive(Clone, Debug, Deserialize)]
pub struct Daemon {
    /// Process id.
    pub pid: u32,
    /// Connections, the asking one included.
    pub connections: usize,
}

/// A region.
#[derive(Clone, Debug, Deserialize)]
pub struct Region {
    /// Its number.
    pub mem_id: u16,
    /// The parent whose pipes live there.
    pub name: String,
    /// Bytes of memory in use.
    pub resident_bytes: u64,
    /// Open sessions.
    pub sessions: u32,
    /// Where its buffers are.
    pub buffers: Buffers,
}

/// Where the buffers of a region are.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub struct Buffers {
    /// All but the two reserved ones.
    pub total: u32,
    /// In the pool.
    pub free: u32,
    /// In slots of rings.
    pub in_rings: u32,
    /// With the sessions that asked for extra ones.
    pub extra: u32,
    /// Found nowhere.
    pub quarantined: u32,
}

/// A thread of the switches.
#[derive(Clone, Debug, Deserialize)]
pub struct Thread {
    /// Its number, from 0 on.
    pub thread: usize,
    /// What the kernel calls it.
    pub tid: u32,
    /// The processor on which it is, or was last.
    pub cpu: Option<u32>,
    /// The one on which it has to stay.
    pub pinned: Option<u16>,
    /// Ports that it looks after.
    pub ports: usize,
    /// Rings on which they send.
    pub rings: usize,
}

/// A port.
#[derive(Clone, Debug, Deserialize)]
pub struct Port {
    /// Parent, sign and id.
    pub name: String,
    /// `nic`, `vale`, `mediated`, `pipe` or `null`.
    pub kind: String,
    /// Its region.
    pub mem_id: u16,
    /// Of an interface: how packets get in and out.
    pub manner: Option<String>,
    /// Of a switch's port: the thread that takes what it sends.
    pub thread: Option<usize>,
    /// Of an attached interface: the processors that serve its queues and nothing else.
    #[serde(default)]
    pub polled: std::collections::BTreeMap<u16, u32>,
    /// Of a switch's port: packets that it sent and that reached no port, by reason.
    #[serde(default)]
    pub lost: std::collections::BTreeMap<String, u64>,
    /// Its rings, transmit first.
    pub rings: Vec<Ring>,
}

/// A ring.
#[derive(Clone, Debug, Deserialize)]
pub struct Ring {
    /// `tx` or `rx`.
    pub dir: String,
    /// Number within its direction.
    pub id: u16,
    /// Slots it has.
    pub slots: u32,
    /// Sessions that have it bound.
    pub sessions: u32,
    /// Slots that crossed it.
    pub crossed: u64,
    /// Slots sent and not released.
    pub queued: u32,
    /// Slots that were delivered empty, or not handed back.
    pub bad_slots: u64,
    /// Pointers and positions out of bounds.
    pub bad_pointers: u64,
    /// Packets that were dropped for want of room, or, on a switch port's transmit ring, that reached no port.
    pub dropped: u64,
    /// Of a switch port's receive ring: packets that came without being copied.
    #[serde(default)]
    pub swapped: u64,
}

/// An open port.
#[derive(Clone, Debug, Deserialize)]
pub struct Session {
    /// The port's name.
    pub port: String,
    /// Who opened it.
    pub pid: u32,
}

impl Buffers {
    /// Buffers that are in none of the four places. Each buffer is in exactly one, so this must be 0.
    pub fn unaccounted(&self) -> i64 {
        i64::from(self.total)
            - [self.free, self.in_rings, self.extra, self.quarantined].into_iter().map(i64::from).sum::<i64>()
    }
}

impl Snapshot {
    /// The region of a parent.
    #[track_caller]
    pub fn region(&self, name: &str) -> &Region {
        let found = self.regions.iter().find(|region| region.name == name);
        found.unwrap_or_else(|| panic!("no region of {name} in {:?}", self.regions))
    }

    /// The buffers of a parent's region; panics unless each of them is accounted for.
    #[track_caller]
    pub fn buffers(&self, name: &str) -> Buffers {
        let buffers = self.region(name).buffers;
        assert_eq!(buffers.unaccounted(), 0, "{buffers:?}");
        buffers
    }

    /// A ring of a port.
    #[track_caller]
    pub fn ring(&self, port: &str, dir: &str, id: u16) -> &Ring {
        let rings = self.ports.iter().filter(|p| p.name == port).flat_map(|p| &p.rings);
        let found = { rings }.find(|ring| ring.dir == dir && ring.id == id);
        found.unwrap_or_else(|| panic!("no ring {dir} {id} of {port}"))
    }

    /// All that was counted as out of bounds on a port: slots and pointers.
    pub fn faults(&self, port: &str) -> (u64, u64) {
        let rings = self.ports.iter().filter(|p| p.name == port).flat_map(|p| &p.rings);
        rings.fold((0, 0), |(slots, pointers), ring| (slots + ring.bad_slots, pointers + ring.bad_pointers))
    }
}

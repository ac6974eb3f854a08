// SPDX-License-Identifier: BSD-2-Clause
//! The daemon's snapshot, as `unetmap ls --json` prints it.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Buffers in the rings of a pipe of default size: two transmit rings, and a placeholder for each receive ring.
pub const PIPE_BUFFERS: u32 = 2 * 1024 + 2;

/// The whole snapshot.
#[derive(Clone, Debug, Deserialize)]
pub struct Snapshot {
    /// The daemon itself.
    pub daemon: Daemon,
    /// Its regions.
    pub regions: Vec<Region>,
    /// Its switches.
    pub switches: Vec<Switch>,
    /// The threads of its switches.
    pub threads: Vec<Thread>,
    /// Its ports.
    pub ports: Vec<Port>,
    /// Its sessions: one for each open port.
    pub sessions: Vec<Session>,
    /// Its users, and at the end all of them but root together.
    pub users: Vec<User>,
    /// Budgets of all users but root together.
    pub totals: Vec<Total>,
}

/// How much of a resource all users but root can have.
#[derive(Clone, Debug, Deserialize)]
pub struct Total {
    /// The key in the policy file.
    pub resource: String,
    /// In all.
    pub total: u64,
    /// The limit that bounds it, in words.
    pub limited_by: String,
}

/// A user's share of the daemon, and its bounds.
#[derive(Clone, Debug, Deserialize)]
pub struct User {
    /// `None`: all users but root.
    pub uid: Option<u32>,
    /// The user for whom it counts, if that is another one.
    pub counts_for: Option<u32>,
    /// File descriptors.
    pub descriptors: Share,
    /// Connections.
    pub connections: Share,
    /// Rings.
    pub rings: Share,
    /// Bytes that the daemon touches or locks.
    pub memory: Share,
    /// File descriptors in answers that were not received.
    pub in_flight: Share,
    /// Requests that exceeded a budget.
    pub refused: u64,
}

/// An amount that a user has, and its budget.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Share {
    /// The amount that the user has.
    pub used: u64,
    /// `None`: no budget.
    pub limit: Option<u64>,
}

/// The daemon itself.
#[derive(Clone, Debug, Deserialize)]
pub struct Daemon {
    /// Process id.
    pub pid: u32,
    /// The process that keeps root's privileges, which may be the same.
    pub privileged_pid: u32,
    /// Sessions that would go on after a crash.
    pub kept_sessions: usize,
    /// Whether all of them would.
    pub crash_protection: CrashProtection,
    /// Number of connections, including the one that requested the snapshot.
    pub connections: usize,
    /// How long its work for users took.
    pub work: Work,
}

/// Whether ports go on after a crash (`--keep-ports`).
#[derive(Clone, Debug, Deserialize)]
pub struct CrashProtection {
    /// Whether the daemon was started so.
    pub asked: bool,
    /// Whether they do.
    pub on: bool,
    /// Since when not, in milliseconds since 1970.
    pub since_ms: Option<u64>,
    /// Why not.
    pub why: Option<String>,
    /// The process that keeps them.
    pub pid: Option<i32>,
    /// How long they did not.
    pub off_seconds: f64,
}

/// The daemon's work for users since it was started: requests, and ends of connections.
#[derive(Clone, Debug, Deserialize)]
pub struct Work {
    /// How many.
    pub pieces: u64,
    /// How many took longer than 5 ms.
    pub long: u64,
    /// The longest, in microseconds.
    pub longest_us: u64,
    /// The user of that one.
    pub longest_uid: u32,
    /// The same of each kind of work.
    pub kinds: BTreeMap<String, WorkOfKind>,
}

/// How long the control thread's work of one kind took.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct WorkOfKind {
    /// How many pieces.
    pub pieces: u64,
    /// Microseconds that all took together.
    pub total_us: u64,
    /// How many took longer than 5 ms.
    pub long: u64,
    /// The longest, in microseconds.
    pub longest_us: u64,
}

/// A region.
#[derive(Clone, Debug, Deserialize)]
pub struct Region {
    /// Region id.
    pub mem_id: u16,
    /// The parent of the pipes in the region.
    pub name: String,
    /// Bytes of memory in use.
    pub resident_bytes: u64,
    /// Number of open sessions.
    pub sessions: u32,
    /// Locations of its buffers.
    pub buffers: Buffers,
}

/// Locations of the buffers of a region.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub struct Buffers {
    /// All buffers without the two reserved ones.
    pub total: u32,
    /// Free buffers of the pool.
    pub free: u32,
    /// Buffers in slots of rings.
    pub in_rings: u32,
    /// Extra buffers of sessions.
    pub extra: u32,
    /// Missing buffers: found nowhere after a client crashed.
    pub missing: u32,
}

/// A switch.
#[derive(Clone, Debug, Deserialize)]
pub struct Switch {
    /// Its name.
    pub switch: String,
    /// The packets of its ports.
    pub packets: Packets,
    /// Packets that reached no port, by reason.
    pub lost: BTreeMap<String, u64>,
    /// Packets that a port did not receive, by reason.
    pub not_received: BTreeMap<String, u64>,
}

/// Packets as a switch counts them.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct Packets {
    /// Packets that were taken from ports.
    pub sent: u64,
    /// Packets that other ports were to get of these.
    pub copies: u64,
    /// Packets that were delivered.
    pub received: u64,
}

impl Switch {
    /// Says how its sums differ; `None`: they are equal.
    pub fn difference(&self) -> Option<String> {
        let reached = self.packets.received + self.not_received.values().sum::<u64>();
        (reached != self.packets.copies).then(|| format!("{reached} of {} copies: {self:?}", self.packets.copies))
    }
}

/// A switch thread.
#[derive(Clone, Debug, Deserialize)]
pub struct Thread {
    /// Its number, from 0 on.
    pub thread: usize,
    /// Thread id.
    pub tid: u32,
    /// The processor on which it ran last.
    pub cpu: Option<u32>,
    /// The processor to which it is pinned.
    pub pinned: Option<u16>,
    /// Number of ports that it serves.
    pub ports: usize,
    /// Number of transmit rings of these ports.
    pub rings: usize,
}

/// A port.
#[derive(Clone, Debug, Deserialize)]
pub struct Port {
    /// Name: for pipes the parent, the brace and the id.
    pub name: String,
    /// `nic`, `vale`, `mediated`, `pipe` or `null`.
    pub kind: String,
    /// Pipes and switch ports: the user to whom they belong.
    pub uid: Option<u32>,
    /// Its region.
    pub mem_id: u16,
    /// Whether any session has it open.
    pub open: bool,
    /// Interfaces: the data path.
    pub manner: Option<String>,
    /// Interfaces: why packets are copied although the driver runs the XDP program.
    pub copied: Option<String>,
    /// Interfaces: they have other queues than the port has rings.
    pub other_queues: Option<String>,
    /// Switch ports: the thread that serves it.
    pub thread: Option<usize>,
    /// Attached interfaces: the polling CPU of each queue that has one.
    #[serde(default)]
    pub polled: std::collections::BTreeMap<u16, u32>,
    /// Switch ports: packets that it sent and that reached no port, by reason. Interfaces with virtio-net headers:
    /// packets that were lost because of their header or length.
    #[serde(default)]
    pub lost: std::collections::BTreeMap<String, u64>,
    /// Switch ports: packets for it that it did not receive, by reason.
    #[serde(default)]
    pub not_received: BTreeMap<String, u64>,
    /// Switch ports: its packets.
    pub packets: Option<Packets>,
    /// Interfaces: the frames that it received since a program was attached.
    pub frames: Option<Frames>,
    /// Its rings, transmit first.
    pub rings: Vec<Ring>,
}

/// Frames that an interface received, by what became of them.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct Frames {
    /// All of them.
    pub received: u64,
    /// Frames that went into the receive rings of sockets.
    pub to_programs: u64,
    /// Frames that no program took, and that the host's stack got.
    pub to_stack: u64,
    /// Frames that the filter refused.
    pub refused: u64,
    /// Frames that no program took, and that the partner of a bypass sent.
    pub bypassed: u64,
    /// Frames that were dropped, by reason.
    pub dropped: BTreeMap<String, u64>,
    /// Besides: frames that the host sent to the wire past a program that was late.
    pub host_passed: u64,
}

impl Frames {
    /// The received frames that are in another count, too.
    pub fn sum(&self) -> u64 {
        let known = self.to_programs + self.to_stack + self.refused + self.bypassed;
        known + self.dropped.values().sum::<u64>()
    }
}

/// A ring.
#[derive(Clone, Debug, Deserialize)]
pub struct Ring {
    /// `tx` or `rx`.
    pub dir: String,
    /// Ring number within its direction.
    pub id: u16,
    /// Number of slots.
    pub slots: u32,
    /// Number of sessions that have it bound.
    pub sessions: u32,
    /// Number of slots transferred.
    pub crossed: u64,
    /// Bytes of their packets, where they are counted.
    #[serde(default)]
    pub bytes: Option<u64>,
    /// Switch ports: how often the switch woke the program.
    #[serde(default)]
    pub wakeups: Option<u64>,
    /// Number of slots sent and not released.
    pub queued: u32,
    /// Number of invalid slots: delivered empty, or not released.
    pub bad_slots: u64,
    /// Number of ring pointers and positions out of range.
    pub bad_pointers: u64,
    /// Number of packets dropped for lack of room; on the transmit ring of a switch port: packets that reached no port.
    pub dropped: u64,
    /// Receive rings of switch ports: packets received by exchange of buffers, without a copy.
    #[serde(default)]
    pub swapped: u64,
}

/// An open port.
#[derive(Clone, Debug, Deserialize)]
pub struct Session {
    /// The port's name.
    pub port: String,
    /// Id of the process that opened it.
    pub pid: u32,
}

impl Buffers {
    /// Number of buffers in none of the four locations. Each buffer is in exactly one, so this must be 0.
    pub fn unaccounted(&self) -> i64 {
        i64::from(self.total)
            - [self.free, self.in_rings, self.extra, self.missing].into_iter().map(i64::from).sum::<i64>()
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

    /// A port.
    #[track_caller]
    pub fn port(&self, name: &str) -> &Port {
        self.ports.iter().find(|port| port.name == name).unwrap_or_else(|| panic!("no port {name}"))
    }

    /// A ring of a port.
    #[track_caller]
    pub fn ring(&self, port: &str, dir: &str, id: u16) -> &Ring {
        let rings = self.ports.iter().filter(|p| p.name == port).flat_map(|p| &p.rings);
        let found = { rings }.find(|ring| ring.dir == dir && ring.id == id);
        found.unwrap_or_else(|| panic!("no ring {dir} {id} of {port}"))
    }

    /// Sums of `bad_slots` and `bad_pointers` over the rings of a port.
    pub fn faults(&self, port: &str) -> (u64, u64) {
        let rings = self.ports.iter().filter(|p| p.name == port).flat_map(|p| &p.rings);
        rings.fold((0, 0), |(slots, pointers), ring| (slots + ring.bad_slots, pointers + ring.bad_pointers))
    }
}

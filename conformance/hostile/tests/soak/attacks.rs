// SPDX-License-Identifier: BSD-2-Clause
//! The hostile tenants: each is a process of a user of its own that does one thing as fast as it can until it is
//! killed, at a random moment, by a thread that starts it again.
//!
//! Their processes run at the lowest priority: which process gets the CPU is the kernel's decision and not the
//! daemon's, and would otherwise be all that is measured.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use conformance::home::raise_fd_limit;
use conformance::packet::Rng;
use conformance_hostile::front_end::{FrontEnd, VERSION_1};
use conformance_hostile::memif_peer;
use conformance_hostile::raw::{ControlConnection, RawPort, Reply};
use rustix::fs::{FallocateFlags, fallocate};
use unetmap::abi::*;
use unetmap_core::control::request::NetmapRequest;
use unetmap_core::control::vale::ValeAction;
use unetmap_core::control::wire;
use unetmap_core::control::{
    ControlRequest, HelloRequest, Kind, KnobRequest, LockHolderRequest, SnapshotRequest, ValeRequest,
};
use zerocopy::IntoBytes as _;

use crate::guests;

/// The user of the tenant with an interface of its own.
pub(crate) const INTERFACE_USER: u32 = 4020;
/// The user of the tenant with memory that never answers.
pub(crate) const STALLED_USER: u32 = 65_534;
/// The user of a virtual machine and of a packet processor, whose ports processes of its own serve.
pub(crate) const GUEST_USER: u32 = 4021;
/// Users with idle connections.
pub(crate) const IDLE_USERS: std::ops::Range<u32> = 5000..5042;
/// The policy gives nothing to this user.
pub(crate) const UNINVITED: u32 = 4999;

/// How long a tenant waits for an answer: a user's own requests may delay each other.
const ANSWER_LIMIT: Duration = Duration::from_secs(600);
/// How long a tenant keeps what it has got.
const HOLD: Duration = Duration::from_millis(700);
/// Connections of one user: its budget.
const CONNECTIONS: usize = 512;
/// Idle connections of one user. In all, fewer than all users but root may have: within that they can be refused any
/// further ones by each other.
const IDLE_CONNECTIONS: usize = 100;
/// Bytes that are removed from, or given to, a region at once.
const PUNCHED: u64 = 64 << 20;

/// A hostile tenant.
pub(crate) struct Attack {
    pub(crate) name: &'static str,
    pub(crate) uid: u32,
    pub(crate) what: What,
}

/// The program that its process executes.
pub(crate) enum What {
    /// A function of this program, until the process is killed.
    Function(fn(&mut Tenant) -> !),
    /// As the one before, in the namespace of the interfaces.
    FunctionInNamespace(fn(&mut Tenant) -> !),
    /// Another program; `SEED` in its arguments becomes a number.
    Program(&'static str, &'static [&'static str]),
    /// As the one before, in the namespace of the interfaces.
    ProgramInNamespace(&'static str, &'static [&'static str]),
}

use What::{Function, FunctionInNamespace, Program, ProgramInNamespace};

/// All but the one that needs the node.
pub(crate) static ATTACKS: [Attack; 25] = [
    Attack { name: "connections", uid: 4001, what: Function(flood_connections) },
    Attack { name: "uninvited connections", uid: UNINVITED, what: Function(flood_connections) },
    // Changes to each of its users, which only root can.
    Attack { name: "idle connections", uid: 0, what: Function(keep_idle_connections) },
    Attack { name: "unread answers", uid: 4002, what: Function(leave_answers_unread) },
    Attack { name: "large requests", uid: 4003, what: Function(ask_for_large_ports) },
    Attack { name: "many rings", uid: 4004, what: Function(open_many_rings) },
    Attack { name: "extra buffers", uid: 4005, what: Function(open_extra_buffers) },
    Attack { name: "external memory", uid: 4006, what: Function(open_external_memory) },
    Attack { name: "removed pages of pipes", uid: 4007, what: Function(punch_pipe) },
    Attack { name: "removed pages of switch ports", uid: 4008, what: Function(punch_switch_port) },
    Attack { name: "changed messages", uid: 4009, what: Function(send_changed_messages) },
    Attack { name: "descriptors", uid: 4010, what: Function(send_descriptors) },
    Attack { name: "ports opened and closed", uid: 4011, what: Function(open_and_close) },
    Attack { name: "unread descriptors", uid: 4015, what: Function(leave_descriptors_unread) },
    Attack { name: "settings without end", uid: 4016, what: Function(change_settings) },
    Attack { name: "names with control characters", uid: 4017, what: Function(open_strange_names) },
    Attack { name: "names of pipes", uid: 4018, what: Function(open_many_names) },
    Attack { name: "headers of an interface", uid: INTERFACE_USER, what: FunctionInNamespace(set_headers) },
    Attack { name: "kicks that are hung up", uid: GUEST_USER, what: Function(hang_kicks_up) },
    Attack { name: "silent memif peers", uid: GUEST_USER, what: Function(keep_silent) },
    Attack { name: "memif peers that give reasons", uid: GUEST_USER, what: Function(give_reasons) },
    Attack { name: "scribbled pipe", uid: 4012, what: Program("scribbler", &["scribbled{1", "SEED"]) },
    Attack { name: "scribbled switch port", uid: 4013, what: Program("scribbler", &["vale0:scribbled", "SEED"]) },
    Attack { name: "raced switch port", uid: 4014, what: Program("slot_racer", &["vale0:raced", "SEED", "0", "128"]) },
    Attack { name: "scribbled interface", uid: INTERFACE_USER, what: ProgramInNamespace("scribbler", &["vg", "SEED"]) },
];

/// A tenant's process.
pub(crate) struct Tenant {
    socket: PathBuf,
    rng: Rng,
}

/// Runs the function of the attack of this number; returns if there is none.
pub(crate) fn run(socket: &Path, attack: usize, seed: u64) {
    raise_fd_limit();
    if let Some(Attack { what: Function(function) | FunctionInNamespace(function), .. }) = ATTACKS.get(attack) {
        function(&mut Tenant { socket: socket.to_owned(), rng: Rng(seed | 1) });
    }
}

impl Tenant {
    /// A connection; `None`: the daemon's queue is full.
    fn connect(&self) -> Option<ControlConnection> {
        let raw = ControlConnection::connect(&self.socket).ok()?;
        raw.set_limit(ANSWER_LIMIT);
        Some(raw)
    }

    /// Connects, sends a request and receives the answer.
    fn ask(&self, request: &NetmapRequest) -> Option<(ControlConnection, Reply)> {
        let raw = self.connect()?;
        raw.send(&wire::encode(NetmapRequest::KIND, 0, 0, 0, &request.encode())).ok()?;
        let reply = raw.receive_after_reset()?;
        Some((raw, reply))
    }

    /// Opens ports until one is refused, keeps them for a while, and closes them.
    fn open_until_refused(&mut self, fields: NmreqRegister, options: &[Vec<u8>]) {
        let mut open = Vec::new();
        for n in 0..CONNECTIONS {
            let mut request = register(&format!("p{n}{{1"), fields);
            request.options = options.to_vec();
            match self.ask(&request) {
                Some((raw, reply)) if reply.errno == 0 => open.push((raw, reply.fds)),
                _ => break,
            }
        }
        sleep(HOLD);
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.rng.below(of.len() as u64) as usize]
    }
}

fn register(name: &str, fields: NmreqRegister) -> NetmapRequest {
    let body = NmreqRegister { nr_mode: NR_REG_ALL_NIC, ..fields };
    NetmapRequest::new(NETMAP_REQ_REGISTER, name, body.as_bytes()).expect("a short name")
}

/// A message without a payload.
fn bare(kind: Kind) -> Vec<u8> {
    wire::encode(kind, 0, 0, 0, &[])
}

fn flood_connections(tenant: &mut Tenant) -> ! {
    let mut kept = Vec::new();
    loop {
        if let Some(raw) = tenant.connect() {
            match tenant.rng.below(3) {
                0 => drop(raw),
                1 => kept.push(raw),
                // The daemon may have closed it.
                _ => drop(raw.send(&bare(HelloRequest::KIND)).map(|()| kept.push(raw))),
            }
        }
        if kept.len() >= 2 * CONNECTIONS {
            kept.clear();
        }
    }
}

fn keep_idle_connections(tenant: &mut Tenant) -> ! {
    loop {
        let mut kept = Vec::new();
        for uid in IDLE_USERS {
            for _ in 0..IDLE_CONNECTIONS {
                let Ok(raw) = ControlConnection::connect_as(&tenant.socket, uid) else { continue };
                let _ = raw.send(&bare(HelloRequest::KIND));
                kept.push(raw);
            }
        }
        sleep(HOLD);
    }
}

fn leave_answers_unread(tenant: &mut Tenant) -> ! {
    let messages = [KnobRequest::KIND, SnapshotRequest::KIND, LockHolderRequest::KIND].map(bare);
    loop {
        let all: Vec<_> = (0..CONNECTIONS).filter_map(|_| tenant.connect()).collect();
        for raw in &all {
            // Until the socket's queue is full.
            raw.set_limit(Duration::from_millis(1));
            let message = tenant.pick(&[0, 1, 2]);
            for _ in 0..400 {
                if raw.send(&messages[message]).is_err() {
                    break;
                }
            }
        }
        sleep(HOLD);
    }
}

fn ask_for_large_ports(tenant: &mut Tenant) -> ! {
    loop {
        let all: Vec<_> = (0..400).filter_map(|_| tenant.connect()).collect();
        for (raw, n) in all.iter().zip(0..) {
            let (rings, slots) = tenant.pick(&[(8, 4096), (32, 1024), (32, 4096), (256, 128), (256, 4096)]);
            let body = NmreqPortInfoGet {
                nr_tx_rings: rings,
                nr_rx_rings: rings,
                nr_tx_slots: slots,
                nr_rx_slots: slots,
                ..Default::default()
            };
            let name = format!("large{n}{{1");
            let info =
                NetmapRequest::new(NETMAP_REQ_PORT_INFO_GET, &name, body.as_bytes()).expect("a short name").encode();
            let _ = raw.send(&wire::encode(NetmapRequest::KIND, 0, 0, 0, &info));
        }
        all.iter().for_each(|raw| drop(raw.receive_after_reset()));
    }
}

fn open_many_rings(tenant: &mut Tenant) -> ! {
    loop {
        let (rings, slots) = tenant.pick(&[(256, 2), (64, 2), (8, 4096), (1, 1024)]);
        let fields = NmreqRegister {
            nr_tx_rings: rings,
            nr_rx_rings: rings,
            nr_tx_slots: slots,
            nr_rx_slots: slots,
            ..Default::default()
        };
        tenant.open_until_refused(fields, &[]);
    }
}

fn open_extra_buffers(tenant: &mut Tenant) -> ! {
    loop {
        let nr_extra_bufs = tenant.pick(&[1, 4096, 16_384, u32::MAX]);
        tenant.open_until_refused(NmreqRegister { nr_extra_bufs, ..Default::default() }, &[]);
    }
}

fn open_external_memory(tenant: &mut Tenant) -> ! {
    loop {
        let nro_info = NmreqPoolsInfo {
            nr_memsize: 1 << 30,
            nr_buf_pool_objtotal: tenant.pick(&[100, 20_000]),
            nr_buf_pool_objsize: 8192,
            nr_if_pool_objtotal: 10,
            nr_if_pool_objsize: 4096,
            nr_ring_pool_objtotal: 10,
            nr_ring_pool_objsize: 69_632,
            ..Default::default()
        };
        let nro_opt = NmreqOption { nro_reqtype: NETMAP_REQ_OPT_EXTMEM, ..Default::default() };
        let option = NmreqOptExtmem { nro_opt, nro_info, ..Default::default() };
        let nr_extra_bufs = tenant.pick(&[0, 4096, 16_384]);
        tenant.open_until_refused(NmreqRegister { nr_extra_bufs, ..Default::default() }, &[option.as_bytes().to_vec()]);
    }
}

fn punch_pipe(tenant: &mut Tenant) -> ! {
    punch(tenant, "punched{1", "punched{2")
}

/// Also sends what it removes, so that the switch's thread reads removed pages.
fn punch_switch_port(tenant: &mut Tenant) -> ! {
    punch(tenant, "vale0:punched", "vale0:punched2")
}

/// Removes and allocates the pages of a region, while another port in it is opened and closed and slots are sent.
fn punch(tenant: &mut Tenant, name: &str, other: &str) -> ! {
    let port = RawPort::open(&tenant.socket, name);
    let bytes = port.region.metadata().expect("a file").len();
    loop {
        let at = tenant.rng.below(bytes.div_ceil(PUNCHED)) * PUNCHED;
        let flags = tenant.pick(&[FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, FallocateFlags::KEEP_SIZE]);
        let _ = fallocate(port.region.as_fd(), flags, at, PUNCHED.min(bytes - at));
        let slots = port.bound.rings[0].slots;
        port.write_channel(0, 0, tenant.rng.below(slots.into()) as u32);
        if tenant.rng.below(4) == 0 {
            tenant.ask(&register(other, NmreqRegister::default()));
        }
    }
}

fn send_changed_messages(tenant: &mut Tenant) -> ! {
    let good = wire::encode(NetmapRequest::KIND, 0, 0, 0, &register("g{2", NmreqRegister::default()).encode());
    loop {
        let Some(raw) = tenant.connect() else { continue };
        let mut bytes = good.clone();
        if tenant.rng.below(3) == 0 {
            bytes = (0..1 + tenant.rng.below(9000)).map(|_| tenant.rng.next_u64() as u8).collect();
        }
        for _ in 0..tenant.rng.below(5) {
            let at = tenant.rng.below(bytes.len() as u64) as usize;
            bytes[at] = tenant.rng.next_u64() as u8;
        }
        if let Some(kind) = bytes.get_mut(6..8).filter(|_| tenant.rng.below(2) == 0) {
            kind.copy_from_slice(&(tenant.rng.below(14) as u16).to_ne_bytes());
        }
        // Some of the connections are closed before the answer, or before the request was read.
        if raw.send(&bytes).is_ok() && tenant.rng.below(4) > 0 {
            raw.receive_after_reset();
        }
    }
}

/// The kernel refuses them from Linux 6.16 on.
fn send_descriptors(tenant: &mut Tenant) -> ! {
    let file = File::open("/dev/null").expect("a device");
    loop {
        let Some(raw) = tenant.connect() else { continue };
        let count = tenant.pick(&[1, 5, 253]);
        let _ = raw.send_with(&bare(HelloRequest::KIND), &vec![file.as_fd(); count]);
    }
}

/// Killed in the middle of requests, more than others.
fn open_and_close(tenant: &mut Tenant) -> ! {
    loop {
        let name = tenant.pick(&["churn{1", "churn}1", "vale0:churn", "vale2:churn", "churn{2"]);
        let nr_flags = tenant.pick(&[0, 0, NR_MONITOR_TX | NR_MONITOR_RX]);
        let (nr_tx_rings, nr_rx_rings) = (tenant.rng.below(4) as u16, tenant.rng.below(4) as u16);
        tenant.ask(&register(name, NmreqRegister { nr_flags, nr_tx_rings, nr_rx_rings, ..Default::default() }));
    }
}

/// Answers with as many descriptors as the user may have, of which none is received: the kernel counts them as the
/// daemon's.
fn leave_descriptors_unread(tenant: &mut Tenant) -> ! {
    loop {
        let fields =
            NmreqRegister { nr_tx_rings: 16, nr_rx_rings: 16, nr_tx_slots: 64, nr_rx_slots: 64, ..Default::default() };
        let message = wire::encode(NetmapRequest::KIND, 0, 0, 0, &register("unread{1", fields).encode());
        let all: Vec<_> = (0..CONNECTIONS).filter_map(|_| tenant.connect()).collect();
        all.iter().for_each(|raw| _ = raw.send(&message));
        sleep(HOLD);
    }
}

/// Each is a line that the daemon could log.
fn change_settings(tenant: &mut Tenant) -> ! {
    let _port = tenant.ask(&register("vale8:settings", NmreqRegister::default()));
    loop {
        let Some(raw) = tenant.connect() else { continue };
        for seconds in 1..1000 {
            let request = ValeRequest { name: "vale8".into(), action: ValeAction::Age(seconds) };
            if raw.send(&wire::encode(ValeRequest::KIND, 0, 0, 0, &request.encode())).is_err() {
                break;
            }
            raw.receive_after_reset();
        }
    }
}

/// Names that would change the terminal, or add lines, of a program that shows them.
fn open_strange_names(tenant: &mut Tenant) -> ! {
    const STRANGE: [&str; 6] = ["\x1b[2J", "\n9 ", "\r", "\u{202e}", "\x07\x08", "\"}],"];
    loop {
        let (strange, more) = (tenant.pick(&STRANGE), tenant.pick(&["{1", ":a", ""]));
        let prefix = tenant.pick(&["", "vale", "vale9:"]);
        tenant.ask(&register(&format!("{prefix}a{strange}{more}"), NmreqRegister::default()));
        if let Some(raw) = tenant.connect() {
            let request = ValeRequest { name: format!("vale9{strange}:{strange}"), action: ValeAction::Storm(1) };
            let _ = raw.send(&wire::encode(ValeRequest::KIND, 0, 0, 0, &request.encode()));
            raw.receive_after_reset();
        }
    }
}

/// Names that others may want, and further pipes of those that they have.
fn open_many_names(tenant: &mut Tenant) -> ! {
    loop {
        let mut open = Vec::new();
        for n in 0..CONNECTIONS / 2 {
            let name = match tenant.rng.below(3) {
                0 => format!("wanted{n}{{1"),
                1 => format!("honest{{{}", 2 + tenant.rng.below(60)),
                _ => format!("wanted{n}}}{}", tenant.rng.below(3)),
            };
            let nr_flags = tenant.pick(&[0, NR_EXCLUSIVE, NR_MONITOR_TX]);
            let fields = NmreqRegister { nr_flags, nr_tx_slots: 2, nr_rx_slots: 2, ..Default::default() };
            open.extend(tenant.ask(&register(&name, fields)).filter(|(_, reply)| reply.errno == 0));
        }
        sleep(HOLD);
    }
}

fn set_headers(tenant: &mut Tenant) -> ! {
    loop {
        for nr_hdr_len in [12, 10, 0] {
            let body = NmreqPortHdr { nr_hdr_len, ..Default::default() };
            let request = NetmapRequest::new(NETMAP_REQ_PORT_HDR_SET, "vg", body.as_bytes()).expect("a short name");
            tenant.ask(&request);
        }
        sleep(Duration::from_millis(100));
    }
}

/// A front end whose kicks end at once, and that is silent then: its process could poll them without end.
fn hang_kicks_up(tenant: &mut Tenant) -> ! {
    const SET_VRING_KICK: u32 = 12;
    loop {
        let Ok(mut guest) = FrontEnd::connect(&guests::socket(&tenant.socket, guests::VHOST)) else {
            sleep(Duration::from_millis(10));
            continue;
        };
        if guest.start(VERSION_1).is_ok() {
            for queue in 0..2u64 {
                let Ok((kick, _)) = std::io::pipe() else { continue };
                let _ = guest.send(SET_VRING_KICK, &queue.to_ne_bytes(), &[kick.as_fd()]);
            }
        }
        sleep(HOLD.mul_f64(tenant.rng.below(100) as f64 / 50.0));
    }
}

/// Peers of memif that occupy the port's one place.
fn keep_silent(tenant: &mut Tenant) -> ! {
    let path = guests::socket(&tenant.socket, guests::MEMIF);
    loop {
        let all: Vec<_> = (0..20).filter_map(|_| memif_peer::dial(&path).ok()).collect();
        for peer in &all {
            if tenant.rng.below(2) == 0 {
                let _ = memif_peer::send(peer, &memif_peer::init(memif_peer::VERSION, 0, 0, ""), &[]);
            }
        }
        sleep(HOLD);
    }
}

/// Peers of memif that end the connection, each with a reason that could be logged.
fn give_reasons(tenant: &mut Tenant) -> ! {
    const DISCONNECT: u16 = 8;
    let path = guests::socket(&tenant.socket, guests::MEMIF);
    let mut message = [DISCONNECT.to_ne_bytes().as_slice(), &1u32.to_ne_bytes(), &[b'A'; 95]].concat();
    message.resize(memif_peer::MESSAGE, 0);
    loop {
        match memif_peer::dial(&path) {
            Ok(peer) => _ = memif_peer::send(&peer, &message, &[]),
            Err(_) => sleep(Duration::from_millis(1)),
        }
    }
}

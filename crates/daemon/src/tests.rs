// SPDX-License-Identifier: BSD-2-Clause
//! Hostile clients: whatever they write into the memory that they map, and whatever they open and close, the daemon
//! keeps running, its buffer counts add up, and clients that do not share that memory are not affected.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use rustix::fs::{FallocateFlags, fallocate};
use unetmap_abi::*;
use unetmap_mem::{BufIdx, BufUsage, RingShape, SlotRing, Slots};
use unetmap_sys::socket::Peer;

use crate::caller::{Caller, Namespace};
use crate::knobs::Knobs;
use crate::ports::key::PipeKey;
use crate::ports::pipe::Pipe;
use crate::ports::vale::ValePort;
use crate::ports::{Admission, Daemon, Options, PortKey, Registered};
use crate::region::{RegionMemory, Sizes};
use crate::work_times::WorkTimes;

const PEER: Peer = Peer { pid: 1, uid: 1, gid: 1 };
const BUFS: u32 = 400;
const FIRST_ID: u16 = 0x4000;

/// A session as its client has it: the three files that it maps.
struct Client {
    session: u64,
    mem_id: u16,
    files: [File; 3],
    if_offset: u64,
    /// Offset and bytes of its rings.
    rings: Vec<(u64, u64)>,
}

fn caller() -> Caller {
    Caller { peer: PEER, groups: Vec::new(), namespace: Namespace::default(), survey: None }
}

fn daemon() -> Daemon {
    let admission = Admission { only_user: Some(PEER.uid), policy: None };
    Daemon::new(Knobs::of_sizes(Sizes { ifs: (12, 512), rings: (40, 1024), bufs: (BUFS, 64) }), admission, FIRST_ID)
}

fn register(slots: u32, extra: u32, flags: u64) -> NmreqRegister {
    NmreqRegister {
        nr_mode: NR_REG_ALL_NIC,
        nr_tx_slots: slots,
        nr_rx_slots: slots,
        nr_extra_bufs: extra,
        nr_flags: flags,
        ..Default::default()
    }
}

fn open(daemon: &mut Daemon, name: &str, register: &NmreqRegister) -> Option<Client> {
    daemon.registry.tidy(caller().peer.uid);
    let opening = daemon.begin_open(name, register, &Options::default(), &mut RegionMemory::AsUsed, &caller()).ok()?;
    let Registered { session, register, bound, fds, .. } = daemon.finish_open(opening, Ok(()), &caller()).ok()?;
    let mut files = fds.into_iter().map(File::from);
    let files = std::array::from_fn(|_| files.next().expect("region, page, lines"));
    let size = |slots| RingShape::bytes(Slots::new(slots).expect("a valid number of slots")) as u64;
    let rings = bound.rings.iter().map(|ring| (ring.offset, size(ring.slots))).collect();
    Some(Client { session, mem_id: register.nr_mem_id, files, if_offset: bound.head.if_offset, rings })
}

fn bytes(file: &File) -> Vec<u8> {
    let mut all = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut all, 0).unwrap();
    all
}

fn poke(file: &File, at: u64, value: u32) {
    file.write_all_at(&value.to_ne_bytes(), at).unwrap();
}

impl Client {
    /// Returns the offset of word `word` of a file. In a region it is in one of the client's own rings, in its
    /// interface or in any buffer, unless `wild`.
    fn place(&self, file: usize, word: u32, wild: bool, buf_ofs: u64) -> u64 {
        let (at, len) = match (file, word % 8) {
            (0, _) if wild => (0, self.files[0].metadata().unwrap().len()),
            (0, 0) => (self.if_offset, 256),
            (0, 1) => (buf_ofs, u64::from(BUFS) * 64),
            (0, n) => *self.rings.get(n as usize % self.rings.len().max(1)).unwrap_or(&(self.if_offset, 256)),
            (1, _) => (0, 512),
            _ => (0, 2048),
        };
        at + u64::from(word / 8) * 4 % len
    }

    fn bufs_head_at(&self) -> u64 {
        self.if_offset + std::mem::offset_of!(NetmapIf, ni_bufs_head) as u64
    }
}

/// Checks that the buffer counts of every region add up, and that the snapshot can be written.
fn check(daemon: &Daemon) {
    for record in daemon.registry.regions.iter() {
        let c = record.census(&daemon.registry.buffers_in_use(record.key).unwrap());
        assert_eq!(c.free + c.in_rings + c.extra + c.missing, BUFS - 2, "{c:?}");
    }
    daemon.check_charges();
    let kept = (0, crate::handover::store::Protection::default().snapshot(None));
    let work = (1, kept, (Instant::now(), SystemTime::now()), WorkTimes::default());
    let mut task = crate::requests::SnapshotTask::new(daemon, (Vec::new(), Vec::new()), None);
    while !task.step(daemon) {}
    let json = serde_json::from_str::<serde_json::Value>(&task.json(daemon, work).concat()).unwrap();
    let count = |list: &str| json[list].as_array().unwrap().len();
    let registry = &daemon.registry;
    let regions = registry.regions.iter().count();
    assert_eq!((count("regions"), count("sessions")), (regions, registry.sessions.len()));
    assert!(count("ports") >= registry.ports().count());
}

fn pipe_count(daemon: &Daemon) -> usize {
    daemon.registry.all::<Pipe>().count()
}

/// Whether nothing is left, and nobody has anything: no program maps memory any more.
fn is_empty(daemon: &mut Daemon) -> bool {
    daemon.registry.regions.files.update();
    let registry = &daemon.registry;
    registry.regions.iter().next().is_none()
        && registry.ports().next().is_none()
        && registry.sessions.is_empty()
        && daemon.users.ledger.all().is_empty()
}

fn census(daemon: &Daemon, mem_id: u16) -> BufUsage {
    let registry = &daemon.registry;
    registry.regions.get(mem_id.into()).unwrap().census(&registry.buffers_in_use(mem_id.into()).unwrap())
}

/// Returns the buffer indexes in the slots of all transmit rings of a pipe.
fn tx_indexes(daemon: &Daemon, parent: &str, id: &str) -> Vec<BufIdx> {
    let scope = daemon.admission.scope(&caller());
    let key = PipeKey { scope, parent: parent.into(), id: id.into() };
    let pipe = daemon.registry.port(&PortKey::Pipe(key)).unwrap();
    let rings = pipe.record().endpoints.iter().flat_map(|endpoint| &endpoint.tx);
    rings
        .flat_map(|ring| {
            let slots = ring.view.slots();
            (0..slots.slots().get()).map(move |raw| slots.buf_idx(slots.slots().pos(raw).unwrap()))
        })
        .collect()
}

#[derive(Clone, Debug)]
enum Step {
    /// Opens a pipe.
    Open { id: u8, master: bool, slots: u32, extra: u32, flags: u64 },
    /// Closes the session of a client.
    Close(usize),
    /// Writes a word of a file.
    Write { client: usize, file: usize, word: u32, value: u32 },
    /// Sets the head of the list of extra buffers, and the links in some buffers.
    List { client: usize, head: u32, links: Vec<(u32, u32)> },
    /// Punches a hole into a file.
    Punch { client: usize, file: usize, page: u32, all: bool },
    /// Frees the locks of a process.
    Exited { holder: u32 },
}

fn step() -> impl Strategy<Value = Step> {
    let flags = prop::sample::select(vec![0, 0, 0, NR_EXCLUSIVE, NR_TX_RINGS_ONLY, NR_RX_RINGS_ONLY]);
    let value =
        prop_oneof![4 => 0u32..12, 3 => 0..BUFS + 2, 1 => any::<u32>(), 1 => Just(u32::MAX), 2 => Just(0x0021_0000)];
    prop_oneof![
        3 => (0u8..3, any::<bool>(), prop::sample::select(vec![2u32, 3, 8, 40]), 0u32..9, flags)
            .prop_map(|(id, master, slots, extra, flags)| Step::Open { id, master, slots, extra, flags }),
        2 => any::<usize>().prop_map(Step::Close),
        12 => (any::<usize>(), 0usize..3, any::<u32>(), value)
            .prop_map(|(client, file, word, value)| Step::Write { client, file, word, value }),
        2 => (any::<usize>(), 0..BUFS + 2, vec((0..BUFS, 0..BUFS + 2), 0..6))
            .prop_map(|(client, head, links)| Step::List { client, head, links }),
        1 => (any::<usize>(), 0usize..3, any::<u32>(), any::<bool>())
            .prop_map(|(client, file, page, all)| Step::Punch { client, file, page, all }),
        1 => (0u32..12).prop_map(|holder| Step::Exited { holder }),
    ]
}

/// Clients of one parent that execute the steps.
struct Hostile {
    clients: Vec<Client>,
    wild: bool,
}

impl Hostile {
    fn step(&mut self, daemon: &mut Daemon, step: &Step) {
        let pick = |client: usize| self.clients.get(client % self.clients.len().max(1));
        match *step {
            Step::Open { id, master, slots, extra, flags } => {
                let name = format!("x{}{id}", if master { '{' } else { '}' });
                self.clients.extend(open(daemon, &name, &register(slots, extra, flags)));
            }
            Step::Close(client) => {
                if !self.clients.is_empty() {
                    daemon.close(self.clients.swap_remove(client % self.clients.len()).session);
                }
            }
            Step::Write { client, file, word, value } => {
                let Some(client) = pick(client) else { return };
                let at = client.place(
                    file,
                    word,
                    self.wild,
                    daemon.registry.regions.get(client.mem_id.into()).unwrap().region.geometry().bufs.offset,
                );
                poke(&client.files[file], at, value);
            }
            Step::List { client, head, ref links } => {
                let Some(client) = pick(client) else { return };
                let bufs = daemon.registry.regions.get(client.mem_id.into()).unwrap().region.geometry().bufs.offset;
                poke(&client.files[0], client.bufs_head_at(), head);
                links.iter().for_each(|&(from, to)| poke(&client.files[0], bufs + u64::from(from) * 64, to));
            }
            Step::Punch { client, file, page, all } => {
                // Pages of a region are shared with others.
                let Some(client) = pick(client).filter(|_| file > 0 || self.wild) else { return };
                let len = client.files[file].metadata().unwrap().len();
                let (at, len) = if all { (0, len) } else { (u64::from(page) * 4096 % len, 4096) };
                fallocate(&client.files[file], FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, len)
                    .unwrap();
            }
            Step::Exited { holder } => {
                daemon.registry.break_locks(holder);
            }
        }
    }
}

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases(250))]

    #[test]
    fn buffer_counts_add_up_whatever_clients_write(wild in any::<bool>(), steps in vec(step(), 1..120)) {
        let mut daemon = daemon();
        // A pipe in another region, and a pipe in the same one.
        let apart = ["y{1", "y}1"].map(|name| open(&mut daemon, name, &register(8, 5, 0)).unwrap());
        let beside = ["x{9", "x}9"].map(|name| open(&mut daemon, name, &register(8, 0, 0)).unwrap());
        let apart_before = (apart.each_ref().map(|c| c.files.each_ref().map(bytes)), census(&daemon, apart[0].mem_id));
        let beside_before = tx_indexes(&daemon, "x", "9");
        let mine: BTreeSet<BufIdx> = beside_before.iter().copied().collect();

        let mut hostile = Hostile { clients: Vec::new(), wild };
        for step in &steps {
            let pipes = pipe_count(&daemon);
            hostile.step(&mut daemon, step);
            check(&daemon);
            if wild {
                continue;
            }
            prop_assert_eq!(&tx_indexes(&daemon, "x", "9"), &beside_before);
            if let (Step::Open { id, .. }, true) = (step, pipe_count(&daemon) > pipes) {
                let fresh = tx_indexes(&daemon, "x", &id.to_string());
                let once: BTreeSet<BufIdx> = fresh.iter().copied().collect();
                prop_assert!(once.len() == fresh.len() && once.is_disjoint(&mine), "a new pipe's buffers are its own");
            }
        }
        hostile.clients.drain(..).for_each(|client| daemon.close(client.session));
        check(&daemon);
        if !wild {
            let c = census(&daemon, beside[0].mem_id);
            prop_assert_eq!((c.in_rings, c.extra), (16 + 2, 0), "16 slots and two placeholders");
        }
        prop_assert!(apart.each_ref().map(|c| c.files.each_ref().map(bytes)) == apart_before.0, "another region's bytes");
        prop_assert_eq!(census(&daemon, apart[0].mem_id), apart_before.1);
        apart.into_iter().chain(beside).for_each(|client| daemon.close(client.session));
        prop_assert!(is_empty(&mut daemon));
    }
}

/// A switch thread that was killed while it exchanged the buffers of two free receive slots left one in both. The next
/// daemon gives one of the slots another; what the client holds stays.
#[test]
fn free_receive_slots_have_buffers_of_their_own_after_a_crash() {
    let mut daemon = daemon();
    let client = open(&mut daemon, "vale0:a", &register(8, 0, 0)).unwrap();
    let of_ring = |daemon: &Daemon, change: &dyn Fn(&SlotRing)| {
        let port = daemon.registry.all::<ValePort>().next().unwrap();
        let ring = port.record.endpoints[0].rx[0].view.slots();
        change(ring);
        let all = (0..8).map(|raw| ring.buf_idx(ring.slots().pos(raw).unwrap()).0);
        all.collect::<Vec<_>>()
    };
    let before = of_ring(&daemon, &|_| {});
    daemon.registry.repair_receive_rings();
    assert_eq!(of_ring(&daemon, &|_| {}), before, "there is nothing to repair");
    let set = |ring: &SlotRing, raw, idx| ring.set_buf_idx(ring.slots().pos(raw).unwrap(), BufIdx(idx));
    of_ring(&daemon, &|ring| set(ring, 5, before[2]));
    // An index that the client has written is its own fault, and is replaced when a packet is delivered.
    of_ring(&daemon, &|ring| set(ring, 6, u32::MAX));
    daemon.registry.repair_receive_rings();
    let after = of_ring(&daemon, &|_| {});
    assert!(!before.contains(&after[5]) && after[5] < BUFS, "{after:?}");
    assert_eq!((&after[..5], after[6], after[7]), (&before[..5], u32::MAX, before[7]));
    daemon.close(client.session);
}

/// The same while the daemon runs: a thread writes into all memory that it ever mapped.
#[test]
fn the_daemon_runs_while_a_client_writes_everywhere() {
    let mut daemon = daemon();
    let apart = open(&mut daemon, "y{1", &register(8, 5, 0)).unwrap();
    let before = apart.files.each_ref().map(bytes);
    for round in 0..40u64 {
        let clients: Vec<Client> = ["x{1", "x}1", "x{2", "x}1"]
            .iter()
            .filter_map(|name| open(&mut daemon, name, &register(2 + (round % 9) as u32, 7, 0)))
            .collect();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (clients, stop) = (&clients, &stop);
            scope.spawn(move || {
                let mut noise = 0x9e37_79b9_7f4a_7c15 + round;
                while !stop.load(Ordering::Relaxed) {
                    noise ^= noise << 13;
                    noise ^= noise >> 7;
                    noise ^= noise << 17;
                    let client = &clients[(noise >> 50) as usize % clients.len()];
                    let file = (noise >> 40) as usize % 3;
                    let at = client.place(file, (noise >> 8) as u32, noise & 64 == 0, 16384);
                    poke(&client.files[file], at, (noise >> 33) as u32 >> (noise % 32));
                }
            });
            for i in 0..60 {
                check(&daemon);
                daemon.registry.break_locks(i);
                let more = open(&mut daemon, ["x{3", "x{1", "x}2"][i as usize % 3], &register(4, 3, 0));
                more.iter().for_each(|client| daemon.close(client.session));
            }
            for client in clients {
                daemon.close(client.session);
                check(&daemon);
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
    assert!(apart.files.each_ref().map(bytes) == before);
    daemon.close(apart.session);
    assert!(!is_empty(&mut daemon), "memory of a closed port is charged as long as a program has it");
    drop(apart);
    assert!(is_empty(&mut daemon));
}

/// Returns a list made of a session's own extra buffers and the indexes in rings: its head, and links `(from, to)`.
type MakeList = dyn Fn(&[u32], &[BufIdx]) -> (u32, Vec<(u32, u32)>);

/// Closes a session with three extra buffers that left `list`, while another session keeps the region.
fn closes_with(list: &MakeList) -> BufUsage {
    let mut daemon = daemon();
    let keeper = open(&mut daemon, "x{1", &register(8, 0, 0)).unwrap();
    let client = open(&mut daemon, "x}1", &register(8, 3, 0)).unwrap();
    let bufs = daemon.registry.regions.get(client.mem_id.into()).unwrap().region.geometry().bufs.offset;
    let word = |at| {
        let mut bytes = [0; 4];
        client.files[0].read_exact_at(&mut bytes, at).unwrap();
        u32::from_ne_bytes(bytes)
    };
    let mut extra = vec![word(client.bufs_head_at())];
    while extra.len() < 3 {
        extra.push(word(bufs + u64::from(*extra.last().unwrap()) * 64));
    }
    assert_eq!(word(bufs + u64::from(extra[2]) * 64), 0, "0 ends the list");
    let (head, links) = list(&extra, &tx_indexes(&daemon, "x", "1"));
    poke(&client.files[0], client.bufs_head_at(), head);
    links.iter().for_each(|&(from, to)| poke(&client.files[0], bufs + u64::from(from) * 64, to));
    daemon.close(client.session);
    check(&daemon);
    let census = census(&daemon, keeper.mem_id);
    assert_eq!((census.in_rings, census.extra), (16 + 2, 0));
    daemon.close(keeper.session);
    census
}

#[test]
fn extra_buffers_are_freed_from_any_list() {
    let lost = |list: &MakeList| closes_with(list).missing;
    assert_eq!(lost(&|extra, _| (extra[0], vec![])), 0, "unchanged");
    assert_eq!(lost(&|_, _| (0, vec![])), 3, "an empty list");
    assert_eq!(lost(&|extra, _| (extra[0], vec![(extra[2], extra[0])])), 0, "a loop of all");
    assert_eq!(lost(&|extra, _| (extra[1], vec![(extra[1], extra[1])])), 2, "a loop of one");
    assert_eq!(lost(&|extra, _| (extra[0], vec![(extra[0], u32::MAX)])), 2, "an end out of bounds");
    assert_eq!(lost(&|extra, _| (extra[0], vec![(extra[0], 1)])), 2, "a reserved buffer");
    // Buffers in rings stay allocated, also if the list contains them.
    let through = |extra: &[u32], rings: &[BufIdx]| (rings[0].0, vec![(rings[0].0, extra[0])]);
    assert_eq!(lost(&through), 0, "another port's index");
    assert_eq!(
        lost(&|_, rings| (rings[3].0, vec![(rings[3].0, rings[4].0), (rings[4].0, rings[3].0)])),
        3,
        "others only"
    );
    assert_eq!(lost(&|_, _| (BUFS - 1, vec![(BUFS - 1, 0)])), 3, "a free buffer");
}

#[test]
fn ports_that_close_together_leave_their_buffers_to_the_next() {
    let mut daemon = daemon();
    let keeper = open(&mut daemon, "x{keeper", &register(8, 0, 0)).unwrap();
    let before = census(&daemon, keeper.mem_id);
    for _ in 0..3 {
        let all: Vec<_> = (0..).map_while(|n| open(&mut daemon, &format!("x{{{n}"), &register(8, 3, 0))).collect();
        assert!(all.len() > 1, "the region has room for several");
        all.iter().for_each(|client| daemon.close(client.session));
        check(&daemon);
        assert_eq!(census(&daemon, keeper.mem_id), before);
    }
}

#[test]
fn an_open_that_is_given_up_leaves_nothing() {
    let mut daemon = daemon();
    for name in ["a{1", "a}1", "vale0:x", "nmsink0"] {
        let begun =
            daemon.begin_open(name, &register(8, 4, 0), &Options::default(), &mut RegionMemory::AsUsed, &caller());
        let opening = begun.unwrap_or_else(|refusal| panic!("{name}: {}", refusal.why));
        assert!(daemon.registry.sessions.is_empty() && !is_empty(&mut daemon), "{name}");
        daemon.give_up_open(&opening);
        assert!(is_empty(&mut daemon), "{name}");
        daemon.check_charges();
    }
}

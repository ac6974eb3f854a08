// SPDX-License-Identifier: BSD-2-Clause
//! Programs that remove the pages of their own regions and fill them again, as fast as they can: a thread that accesses
//! one of them through its mapping waits for the kernel. Root's daemon forbids it. Threads that are held up all the
//! same are stopped by ptrace here, for any time.

use std::fs::{File, Permissions, set_permissions};
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use conformance::ether::{self, BROADCAST, mac};
use conformance::home::summary;
use conformance::net::{CABLE, Held, MEDIATED, Net, assert_works, start_faulty_daemon};
use conformance::thread::StoppedThread;
use conformance::traffic::{assert_pipe_works, open};
use conformance::{Node, isolated, program, until};
use conformance_hostile::raw::{ControlConnection, RawPort};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use rustix::process::geteuid;
use unetmap::abi::*;
use unetmap_core::control::request::NetmapRequest;
use unetmap_sys::Mapping;
use zerocopy::IntoBytes as _;

const ALICE: u32 = 4001;
const BOB: u32 = 4002;

fn slots(n: u32) -> NmreqRegister {
    NmreqRegister { nr_tx_slots: n, nr_rx_slots: n, ..Default::default() }
}

#[test]
fn pages_of_shared_memory_cannot_be_removed() {
    isolated(|home| {
        let node = Node::mounted(home);
        // The regions of a user who may use the node are parts of one file.
        let wanted = [("a{1", 0), ("vale0:a", 0), ("a{1", NR_MONITOR_TX)];
        let ports = wanted.map(|(name, flags)| RawPort::open_with(&home.socket(), name, flags));
        if geteuid().as_raw() != 0 || ports[0].punch_hole() {
            return summary("skipped: only root's daemon forbids it, from Linux 6.0 on");
        }
        let mut files = 0;
        for port in &ports {
            for file in [&port.region, &port.endpoint_states, &port.channels] {
                let bytes = file.metadata().expect("a file").len();
                let page = Mapping::new(file.as_fd(), 4096).expect("memory to write to");
                for how in [FallocateFlags::KEEP_SIZE, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE] {
                    assert_eq!(fallocate(file, how, 0, bytes), Err(Errno::PERM));
                }
                drop(page);
                files += 1;
            }
        }
        let remover = Command::new(program("page_remover")).arg("netmap:a{2").output().expect("the remover runs");
        assert!(!remover.status.success(), "MADV_REMOVE worked");
        drop(ports);
        summary(&format!("files {files}, node {}", node.map_or_else(|why| format!("skipped: {why}"), |_| "on".into())));
        home.assert_serves();
    });
}

/// The files of ports are made ahead, so that the control thread does not wait for the broker.
#[test]
fn a_port_opens_while_the_broker_makes_no_file_immutable() {
    isolated(|home| {
        if !geteuid().is_root() {
            return summary("skipped: only root's daemon has a broker");
        }
        let _daemon = start_faulty_daemon(home, "", "files");
        // It listens before it has made the first files.
        home.assert_serves();
        let held = Held::new(home);
        let ports: Vec<_> = (0..6).map(|n| RawPort::open(&home.socket(), &format!("p{n}{{1"))).collect();
        drop(held);
        let more: Vec<_> = (6..30).map(|n| RawPort::open(&home.socket(), &format!("p{n}{{1"))).collect();
        drop((ports, more));
        assert_pipe_works("netmap:p{1", "netmap:p}1");
    });
}

/// Removes and fills all pages of a region from several threads until the value is dropped.
struct Churn<'a>(&'a AtomicBool);

impl Drop for Churn<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns how often it tried, and how often it could.
fn churn(region: &File, stop: &AtomicBool) -> (u64, u64) {
    let bytes = region.metadata().expect("a file").len();
    let (mut tried, mut removed) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        for how in [FallocateFlags::KEEP_SIZE, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE] {
            removed += u64::from(fallocate(region, how, 0, bytes).is_ok());
        }
        tried += 1;
    }
    (tried, removed)
}

#[test]
fn a_user_who_removes_pages_of_its_region_delays_others_briefly() {
    isolated(|home| {
        if !geteuid().is_root() {
            return summary("skipped: only root can connect as several users");
        }
        set_permissions(home.folder(), Permissions::from_mode(0o755)).expect("our own folder");
        // With UNETMAP_TEST_REMOVABLE=1 the pages can be removed, for comparison.
        let removable = std::env::var_os("UNETMAP_TEST_REMOVABLE").map_or("", |_| "removable");
        let _daemon = start_faulty_daemon(home, "[[rule]]\npipes = true\nusers = [4001, 4002]\n", removable);
        let as_user = |uid| ControlConnection::connect_as(&home.socket(), uid).expect("a daemon that listens");
        let first = RawPort::open_on(as_user(ALICE), "a{1", NmreqRegister::default());
        let large = NmreqRegister { nr_tx_rings: 8, nr_rx_rings: 8, nr_extra_bufs: 2000, ..slots(4096) };
        let (stop, mut longest, mut served) = (AtomicBool::new(false), Duration::ZERO, 0);
        let ((tried, removed), asked) = thread::scope(|scope| {
            let churning = Churn(&stop);
            let region = &first.region;
            let rounds = scope.spawn(|| churn(region, &stop));
            let more = scope.spawn(|| {
                let mut asked = 0;
                while !stop.load(Ordering::Relaxed) {
                    let raw = as_user(ALICE);
                    raw.set_limit(Duration::from_secs(100));
                    let body = NmreqRegister { nr_mode: NR_REG_ALL_NIC, ..large };
                    let register = NetmapRequest::new(NETMAP_REQ_REGISTER, "a{2", body.as_bytes());
                    let register = register.expect("a short name");
                    raw.request(&register);
                    asked += 1;
                }
                asked
            });
            let churned = Instant::now();
            while served < 200 || churned.elapsed() < Duration::from_secs(5) {
                let start = Instant::now();
                drop(RawPort::open_on(as_user(BOB), "b{1", NmreqRegister::default()));
                longest = longest.max(start.elapsed());
                served += 1;
            }
            drop(churning);
            (rounds.join().expect("a thread"), more.join().expect("a thread"))
        });
        assert!(tried > 0 && asked > 0);
        let work = home.snapshot().daemon.work;
        assert!(work.pieces > served && work.longest_us > 0, "{work:?}");
        drop(first);
        until("all are closed", || home.snapshot().sessions.is_empty());
        assert_pipe_works("netmap:honest{1", "netmap:honest}1");
        summary(&format!(
            "{tried} times a user tried to remove its region's pages, {removed} times it could, while it asked {asked} \
             times for a large pipe; {served} pipes of another user were opened, the slowest in {} ms; longest work {} us",
            longest.as_millis(),
            work.longest_us
        ));
    });
}

/// As memory of a client can hold up a thread of the switches.
#[test]
fn a_switch_thread_that_is_held_up_delays_no_request() {
    isolated(|home| {
        let (a, b) = (open("vale0:a"), open("vale0:b"));
        let threads: Vec<u32> = home.snapshot().threads.iter().map(|thread| thread.tid).collect();
        let held: Vec<_> = threads.into_iter().map(StoppedThread::of).collect();
        let region = |name: &str| home.snapshot().regions.into_iter().any(|region| region.name == name);
        let other = open("vale1:c");
        drop(other);
        until("its session is closed", || home.snapshot().sessions.len() == 2);
        assert!(region("vale1:c"), "a thread may still use it");
        drop(b);
        until("its session is closed", || home.snapshot().sessions.len() == 1);
        assert_pipe_works("netmap:honest{1", "netmap:honest}1");
        drop(held);
        until("what no thread uses is freed", || !region("vale1:c") && !region("vale0:b"));
        let b = open("vale0:b");
        ether::send(&a, BROADCAST, mac(1), 1, (0, 500));
        ether::expect(&b, 1, (0, 500));
        drop((a, b));
        until("all are closed", || home.snapshot().sessions.is_empty());
    });
}

/// The same, of a thread that moves packets between a program and an interface.
#[test]
fn a_mediator_thread_that_is_held_up_delays_no_request() {
    isolated(|home| {
        let Some(net) = Net::new(home, MEDIATED, CABLE) else { return };
        let port = net.open("netmap:va");
        let held = StoppedThread::named(home.daemon(), "va 0");
        drop(port);
        home.assert_serves();
        assert!(net.has_xdp(), "the thread may still use it");
        drop(held);
        net.assert_given_back();
        let (port, tap) = (net.open("netmap:va"), net.tap());
        assert_works(&port, &tap, 0);
    });
}

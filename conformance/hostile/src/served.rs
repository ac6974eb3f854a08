// SPDX-License-Identifier: BSD-2-Clause
//! A process that serves a switch port to a peer (`unetmap vm serve`, `unetmap memif serve`), and peers that break
//! every rule.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use conformance::ether::{self, BROADCAST, mac};
use conformance::home::{Guard, summary};
use conformance::packet::Rng;
use conformance::traffic::open;
use conformance::{Home, program, until};

/// Peers without rules, one after the other.
const ROUNDS: u64 = 120;
/// The signal of an access to memory that the peer's file has lost.
const SIGBUS: i32 = 7;

/// A process that serves a port.
pub struct Served {
    /// The process.
    pub process: Guard,
    /// Its socket.
    pub path: PathBuf,
}

impl Served {
    /// Runs `unetmap COMMAND serve PORT OPTION SOCKET`, with `more` behind the socket's path, and waits for the port.
    pub fn start(home: &Home, words: [&str; 2], port: &str, more: &str) -> Served {
        let path = home.folder().join(format!("{}.sock", port.replace(':', "-")));
        Served::start_at(home, words, (port, &path), more)
    }

    /// As [`Served::start`], with a socket at this path, or with this abstract name.
    pub fn start_at(home: &Home, [command, option]: [&str; 2], (port, path): (&str, &Path), more: &str) -> Served {
        let socket = format!("{}{more}", path.display());
        let mut process = Command::new(program("unetmap"));
        process.args([command, "serve", port, option, &socket]).stdin(Stdio::null());
        let served = Served { process: Guard::spawn(&mut process), path: path.into() };
        until("the port is served", || is_open(home, port));
        served
    }

    /// Connects a peer, or returns how the process has ended.
    fn peer_or_end<T>(&mut self, connect: impl Fn(&Path) -> io::Result<T>) -> Result<T, ExitStatus> {
        let mut found = None;
        until("the process listens and serves, or has ended", || {
            let ended = self.process.0.try_wait().expect("a child").map(Err);
            found = ended.or_else(|| connect(&self.path).ok().map(Ok));
            found.is_some()
        });
        found.expect("just found")
    }

    /// Connects a peer.
    pub fn peer<T>(&self, connect: impl Fn(&Path) -> io::Result<T>) -> T {
        let mut found = None;
        until("the process listens, and serves", || {
            found = connect(&self.path).ok();
            found.is_some()
        });
        found.expect("just connected")
    }
}

/// The CPU time of a process, in hundredths of a second.
#[track_caller]
pub fn cpu_time(process: &Guard) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.0.id())).expect("a process");
    let fields: Vec<_> = stat.rsplit_once(')').expect("its name").1.split_whitespace().collect();
    fields[11..13].iter().map(|ticks| ticks.parse::<u64>().expect("a number")).sum()
}

/// Descriptors that were sent to a socket and not received (`scm_fds`).
#[track_caller]
pub fn unreceived(socket: &impl AsRawFd) -> u32 {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", socket.as_raw_fd())).expect("our own socket");
    let count = info.lines().find_map(|line| line.strip_prefix("scm_fds:"));
    count.expect("Linux 5.6 or later").trim().parse().expect("a number")
}

/// Whether the port is open; there may be no daemon for a moment.
pub fn is_open(home: &Home, port: &str) -> bool {
    home.try_snapshot().is_some_and(|state| state.ports.iter().any(|other| other.name == port))
}

/// Runs `unetmap config ACTION --file FILE`, which must succeed.
#[track_caller]
pub fn config(action: &str, file: &Path) {
    let out = Command::new(program("unetmap")).args(["config", action, "--file"]).arg(file).output();
    let out = out.expect("unetmap runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

/// Any word, often one that is nearly 0 or nearly the largest.
pub fn word(rng: &mut Rng) -> u32 {
    match rng.below(4) {
        0 => rng.below(4) as u32,
        1 => u32::MAX - rng.below(4) as u32,
        _ => rng.below(1 << 32) as u32,
    }
}

/// Peers, which `connect` makes by the number of the round, carry out up to `steps` random steps each; a step fails
/// when the connection has ended. Ports of another switch exchange frames meanwhile, and lose none. The process ends by
/// SIGBUS at most; another one is started by `start` then.
pub fn disturb<T>(
    start: impl Fn() -> Served,
    connect: impl Fn(&Path, u64) -> io::Result<T>,
    steps: u64,
    step: impl Fn(&mut T, &mut Rng) -> io::Result<()>,
) {
    let (a, b) = (open("vale1:a"), open("vale1:b"));
    let mut served = start();
    let (mut processes, mut done, mut ended, mut sent) = (1, 0, 0, 0);
    for round in 0..ROUNDS {
        let mut rng = Rng(round + 1);
        let mut peer = loop {
            match served.peer_or_end(|path| connect(path, round)) {
                Ok(peer) => break peer,
                Err(status) => assert_eq!(status.signal(), Some(SIGBUS), "round {round}: {status}"),
            }
            served = start();
            processes += 1;
        };
        for _ in 0..rng.below(steps) {
            done += 1;
            if step(&mut peer, &mut rng).is_err() {
                ended += 1;
                break;
            }
        }
        drop(peer);
        ether::send(&a, BROADCAST, mac(1), 3, (sent, sent + 50));
        ether::expect(&b, 3, (sent, sent + 50));
        sent += 50;
    }
    summary(&format!(
        "rounds {ROUNDS}, steps {done}, connections refused {ended}, processes {processes}, frames of others {sent}, lost 0"
    ));
}

// SPDX-License-Identifier: BSD-2-Clause
//! memif ports of a switch with DPDK's `net_memif` as the peer: `dpdk-testpmd` sends each packet back on the queue that
//! it came by.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use conformance::ether::{BROADCAST, mac};
use conformance::home::{Guard, LIMIT, cpus_allowed, summary};
use conformance::net::{take, transmit};
use conformance::packet::Rng;
use conformance::{Home, isolated, program, until};
use rustix::process::Signal;
use unetmap::{Interest, Port};

/// Bytes of frames: the least, those about a buffer's end on either side, and jumbo frames, which are chains.
const SIZES: [usize; 9] = [60, 61, 64, 1514, 2047, 2048, 2049, 4097, 9014];

/// Whether the tests can run; else says why not.
fn has_testpmd() -> bool {
    // It polls on a processor of its own for more than a minute.
    if std::env::var_os("UNETMAP_DPDK").is_none() {
        summary("skipped: `.ci/test-long dpdk` runs it");
        return false;
    }
    let found = Command::new("dpdk-testpmd").arg("--version").output();
    if found.is_err() {
        summary("skipped: dpdk-testpmd is not installed (Debian: dpdk-dev, from Debian 13 dpdk)");
    }
    found.is_ok()
}

/// The interface of DPDK.
struct Dpdk<'a> {
    path: &'a Path,
    role: &'a str,
    id: u32,
    secret: &'a str,
    queues: u16,
}

impl Dpdk<'_> {
    /// Starts the program that sends back what it receives.
    fn start(&self) -> Guard {
        let Dpdk { path, role, id, secret, queues } = self;
        let (cpus, queues) = (cpus_allowed(), queues.to_string());
        let mut device = format!("net_memif0,role={role},id={id},socket={},socket-abstract=no", path.display());
        if !secret.is_empty() {
            device += &format!(",secret={secret}");
        }
        let mut command = Command::new("dpdk-testpmd");
        command.arg(format!("--lcores=0@{},1@{}", cpus[0], cpus[cpus.len() - 1]));
        command.args(["--no-huge", "-m", "128", "--no-shconf", "--no-pci", "--no-telemetry", "--vdev", &device, "--"]);
        command.args(["--forward-mode=io", "--port-topology=loop", "--total-num-mbufs=8192"]);
        command.args(["--rxq", &queues, "--txq", &queues]);
        // It ends with its input.
        Guard::spawn(command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()))
    }
}

/// The command of the port `vale0:m1`.
fn server(path: &Path, more: &str) -> Command {
    let mut command = Command::new(program("unetmap"));
    command.args(["memif", "serve", "vale0:m1", "--memif", &format!("{}{more}", path.display())]);
    command.stdin(Stdio::null());
    command
}

/// A frame of random bytes to everybody, with a number.
fn frame(rng: &mut Rng, bytes: usize, seq: u64) -> Vec<u8> {
    let head = BROADCAST.into_iter().chain(mac(1)).chain([0x88, 0xb5]).chain(seq.to_be_bytes());
    head.chain(std::iter::repeat_with(|| rng.below(256) as u8)).take(bytes).collect()
}

/// Receives `count` frames of a ring, or those that arrive within `limit`.
fn receive(port: &Port, ring: usize, count: usize, limit: Duration) -> Vec<Vec<u8>> {
    let (mut got, end) = (Vec::new(), Instant::now() + limit);
    while got.len() < count && Instant::now() < end {
        port.poll(Interest::RX, Some(Duration::from_millis(50))).unwrap_or_else(|e| panic!("{e}"));
        got.extend(take(port, ring));
    }
    got
}

/// Waits until frames come back, and all that were sent meanwhile have come or are lost.
fn wait_for_peer(port: &Port) {
    let mut rng = Rng(1);
    until("DPDK sends frames back", || {
        transmit(port, 0, &[frame(&mut rng, 60, 0)], 2048);
        !receive(port, 0, 1, Duration::from_millis(100)).is_empty()
    });
    while !receive(port, 0, 1, Duration::from_millis(200)).is_empty() {}
}

/// Each frame comes back unchanged and in order, on the ring that it was sent by.
fn echo(port: &Port) {
    let mut rng = Rng(2);
    for ring in 0..port.tx_rings().len() {
        for bytes in SIZES {
            for round in 0..4 {
                let sent: Vec<_> = (0..40).map(|n| frame(&mut rng, bytes, 40 * round + n)).collect();
                transmit(port, ring, &sent, port.buf_size() as usize);
                let got = receive(port, ring, sent.len(), LIMIT);
                assert_eq!(got.len(), sent.len(), "ring {ring}, frames of {bytes} bytes");
                assert!(got == sent, "ring {ring}: frames of {bytes} bytes have changed");
            }
        }
    }
}

fn socket(home: &Home) -> PathBuf {
    home.folder().join("memif.sock")
}

#[test]
fn frames_come_back_unchanged_from_a_client_of_dpdk() {
    if has_testpmd() {
        isolated(|home| exchange(home, "client", ""));
    }
}

#[test]
fn frames_come_back_unchanged_from_a_server_of_dpdk() {
    if has_testpmd() {
        isolated(|home| exchange(home, "server", ",role=client"));
    }
}

/// One queue; then two, and the peer is killed, and the port's process.
fn exchange(home: &Home, role: &str, ours: &str) {
    let path = socket(home);
    for queues in [1, 2] {
        let port = Port::options().tx_rings(queues).rx_rings(queues).open("vale0:a").expect("a port");
        let dpdk = Dpdk { path: &path, role, id: 3, secret: "sesame", queues };
        let more = format!("{ours},id=3,secret=sesame,queues={queues}");
        let mut process = Guard::spawn(&mut server(&path, &more));
        let mut peer = dpdk.start();
        wait_for_peer(&port);
        echo(&port);
        if queues == 2 {
            let restart = |peer: &mut Guard| {
                peer.kill();
                if role == "server" {
                    std::fs::remove_file(&path).expect("its socket");
                }
                *peer = dpdk.start();
            };
            restart(&mut peer);
            wait_for_peer(&port);
            process.kill();
            process = Guard::spawn(&mut server(&path, &more));
            // A client of DPDK connects when its port starts, and never again. A server accepts the next client, but
            // sends nothing back to it.
            restart(&mut peer);
            wait_for_peer(&port);
            echo(&port);
        }
        process.signal(Signal::TERM);
        assert!(process.wait().success());
        drop(peer);
        let _ = std::fs::remove_file(&path);
    }
}

#[test]
fn dpdk_with_another_secret_or_id_is_refused() {
    if !has_testpmd() {
        return;
    }
    isolated(|home| {
        let (path, log) = (socket(home), home.folder().join("log"));
        let port = Port::open("vale0:a").expect("a port");
        for (role, ours, secret_refused, id_refused) in [
            ("client", "", "the secret is wrong", "there is no interface 4, but 3"),
            ("server", ",role=client", "it has ended the connection", "it has ended the connection"),
        ] {
            for (id, secret, reason) in [(3, "other", secret_refused), (4, "sesame", id_refused)] {
                let mut command = server(&path, &format!("{ours},id=3,secret=sesame"));
                let process = Guard::spawn(command.stderr(std::fs::File::create(&log).expect("a file")));
                let peer = Dpdk { path: &path, role, id, secret, queues: 1 }.start();
                let text = || std::fs::read_to_string(&log).expect("the log");
                until("the peer is refused", || text().contains(reason));
                transmit(&port, 0, &[frame(&mut Rng(1), 60, 0)], 2048);
                assert!(
                    receive(&port, 0, 1, Duration::from_millis(300)).is_empty(),
                    "{role} {id} {secret}: {}",
                    text()
                );
                drop((process, peer));
                let _ = std::fs::remove_file(&path);
            }
        }
    });
}

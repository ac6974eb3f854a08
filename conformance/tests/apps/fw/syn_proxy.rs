// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap-fw` completes handshakes for a server, between kernels' stacks.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use conformance::{Home, isolated_with_interfaces, program, until};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sendto, socket_with};
use serde_json::Value;

use super::{fw, start};
use conformance::forwarder::Line;

const LIMIT: Duration = Duration::from_secs(20);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const SYN: u8 = 2;
const ACK: u8 = 16;

/// Returns a segment to the server, from an address of 198.18.0.0/16.
fn segment(i: u32, flags: u8) -> Vec<u8> {
    let sum = |bytes: &[u8], initial: u32| {
        let sum = bytes.chunks(2).fold(initial, |sum, pair| sum + u32::from(u16::from_be_bytes([pair[0], pair[1]])));
        !((sum & 0xffff) + (sum >> 16)) as u16
    };
    let mut bytes = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 198, 18, (i >> 8) as u8, i as u8];
    bytes.extend(SERVER.octets());
    bytes.extend([(i as u16).to_be_bytes(), 7000u16.to_be_bytes()].concat());
    bytes.extend([i.to_be_bytes(), i.wrapping_mul(0x9e37_79b9).to_be_bytes()].concat());
    bytes.extend([0x50, flags, 16, 0, 0, 0, 0, 0]);
    let ends = bytes[12..20].chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum::<u32>();
    let check = sum(&bytes[20..], ends + 6 + 20);
    bytes[36..38].copy_from_slice(&check.to_be_bytes());
    bytes
}

/// Sends requests and acknowledgements that nobody asked for until told to stop; returns how many of each.
fn flood(socket: &OwnedFd, done: &AtomicBool) -> u32 {
    let sent = AtomicU32::new(0);
    while !done.load(Relaxed) {
        for _ in 0..32 {
            let i = sent.fetch_add(1, Relaxed);
            for flags in [SYN, ACK] {
                // What the kernel has no room for is not sent.
                let _ = sendto(socket, &segment(i, flags), SendFlags::empty(), &SocketAddrV4::new(SERVER, 0));
            }
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    sent.load(Relaxed)
}

/// Calls `test` with a server's listener, and a firewall before it that completes the handshakes of these connections.
fn behind_proxy(home: &Home, connections: &str, test: impl FnOnce(&Line, &TcpListener)) {
    let Some(line) = &Line::new() else { return };
    let rules = format!("add allow mac-type arp\nadd synproxy {connections} out");
    let running = start(home, line.middle.command(program("unetmap-fw")), "left1 right1", &rules);
    let bound = line.right.run(|| TcpListener::bind("10.9.0.2:7000"));
    test(line, &bound.expect("the namespace").expect("a listener"));
    running.summary();
}

fn count(part: &str, key: &str) -> u64 {
    let shown: Value = serde_json::from_str(&fw("--json show").unwrap()).expect("an object");
    shown[part][key].as_u64().expect("a number")
}

#[test]
fn a_flooded_server_sees_only_clients_that_exist() {
    const CONNECTIONS: u64 = 5;
    const BYTES: usize = 500_000;
    isolated_with_interfaces(|home| {
        behind_proxy(home, "tcp from any to 10.9.0.2 7000,7001", |Line { left, right, .. }, listener| {
            let socket = left
                .run(|| socket_with(AddressFamily::INET, SocketType::RAW, SocketFlags::CLOEXEC, Some(ipproto::RAW)))
                .expect("the namespace")
                .expect("a socket");
            let connect = |port: u16| {
                let connected =
                    left.run(move || TcpStream::connect_timeout(&SocketAddrV4::new(SERVER, port).into(), LIMIT));
                let connected = connected.expect("the namespace");
                connected.inspect(|stream| stream.set_read_timeout(Some(LIMIT)).expect("a limit"))
            };
            let done = AtomicBool::new(false);
            let file: Vec<u8> = (0..BYTES).map(|i| (i % 251) as u8).collect();
            let sent = std::thread::scope(|scope| {
                let flooding = scope.spawn(|| flood(&socket, &done));
                let echo = scope.spawn(|| {
                    for _ in 0..CONNECTIONS {
                        let (mut stream, _) = listener.accept().expect("a connection");
                        stream.set_read_timeout(Some(LIMIT)).expect("a limit");
                        let mut got = Vec::new();
                        stream.read_to_end(&mut got).expect("a file");
                        stream.write_all(&got).expect("sent");
                    }
                });
                for _ in 0..CONNECTIONS {
                    let mut stream = connect(7000).expect("a connection");
                    stream.write_all(&file).expect("sent");
                    stream.shutdown(std::net::Shutdown::Write).expect("connected");
                    let mut got = Vec::new();
                    stream.read_to_end(&mut got).expect("a file");
                    assert!(got == file, "{} bytes come back", got.len());
                }
                echo.join().expect("no panic");
                // The handshake is completed before the server is asked, which refuses, before or after this end looks.
                let error = connect(7001).and_then(|mut stream| stream.read(&mut [0])).expect_err("nobody listens");
                assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
                until("the flood has come", || {
                    count("syn_proxy", "cookies") >= 3000 && count("syn_proxy", "invalid") >= 3000
                });
                done.store(true, Relaxed);
                flooding.join().expect("no panic")
            });
            let counts = ["accepted", "opened", "refused"].map(|key| count("syn_proxy", key));
            assert_eq!(counts, [CONNECTIONS + 1, CONNECTIONS, 1]);
            assert_eq!(count("states", "created"), CONNECTIONS + 1, "requests have no states");
            let snmp = right.run(|| std::fs::read_to_string("/proc/thread-self/net/snmp")).expect("the namespace");
            let snmp = snmp.expect("counters");
            let rows: Vec<Vec<&str>> =
                snmp.lines().filter(|line| line.starts_with("Tcp:")).map(|line| line.split(' ').collect()).collect();
            let at = rows[0].iter().position(|name| *name == "PassiveOpens").expect("a counter");
            assert_eq!(rows[1][at], CONNECTIONS.to_string(), "the server has seen no other request");
            conformance::home::summary(&format!(
                "beside {sent} connection requests from nowhere and as many acknowledgements, a file of {BYTES} bytes went \
                 to a server and back {CONNECTIONS} times; the server saw {CONNECTIONS} requests"
            ));
        });
    });
}

#[test]
fn windows_are_scaled_for_servers_of_each_kind() {
    const BYTES: usize = 4_000_000;
    isolated_with_interfaces(|home| {
        behind_proxy(home, "wscale 7 tcp from any to 10.9.0.2 7000", |Line { left, right, .. }, listener| {
            let file: Vec<u8> = (0..BYTES).map(|i| (i % 251) as u8).collect();
            // Servers with both, without a scale, and without timestamps.
            for (scaling, timestamps) in [("1", "1"), ("0", "1"), ("1", "0"), ("0", "0")] {
                let set = |name: &'static str, value: &'static str| {
                    let path = format!("/proc/sys/net/ipv4/{name}");
                    right.run(move || std::fs::write(path, value)).expect("the namespace").expect("a knob");
                };
                set("tcp_window_scaling", scaling);
                set("tcp_timestamps", timestamps);
                let connect = || TcpStream::connect_timeout(&SocketAddrV4::new(SERVER, 7000).into(), LIMIT);
                std::thread::scope(|scope| {
                    let echo = scope.spawn(|| {
                        let (mut stream, _) = listener.accept().expect("a connection");
                        stream.set_read_timeout(Some(LIMIT)).expect("a limit");
                        let mut got = Vec::new();
                        stream.read_to_end(&mut got).expect("a file");
                        stream.write_all(&got).expect("sent");
                    });
                    let mut stream = left.run(connect).expect("the namespace").expect("a connection");
                    stream.set_read_timeout(Some(LIMIT)).expect("a limit");
                    let shown = left.tool("ss", &["-tin", "dst", "10.9.0.2"]).expect("a list");
                    assert!(shown.contains(" wscale:7,"), "{shown}");
                    stream.write_all(&file).expect("sent");
                    stream.shutdown(std::net::Shutdown::Write).expect("connected");
                    let mut got = Vec::new();
                    stream.read_to_end(&mut got).expect("a file");
                    assert!(got == file, "{} bytes come back", got.len());
                    echo.join().expect("no panic");
                });
            }
        });
    });
}

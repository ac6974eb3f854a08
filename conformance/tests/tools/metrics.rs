// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap metrics`: what Prometheus reads.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use conformance::home::{Guard, summary};
use conformance::net::{BUFFER, CABLE, MEDIATED, Net, collect, frames, transmit};
use conformance::traffic::{exchange, open};
use conformance::{Home, LIMIT, isolated, program, until};

/// Sends a request; returns the answer, or nothing if there is none.
fn asked(path: &std::path::Path, request: &[u8]) -> String {
    let mut stream = UnixStream::connect(path).expect("it listens");
    stream.set_read_timeout(Some(LIMIT)).expect("a time");
    let _ = stream.write_all(request);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

#[test]
fn counters_are_served_over_http() {
    isolated(|home| {
        let path = home.folder().join("metrics.sock");
        let mut command = Command::new(program("unetmap"));
        command.args(["metrics", "--listen", &format!("unix:{}", path.display())]).stderr(Stdio::null());
        let mut server = Guard::spawn(&mut command);
        until("it listens", || UnixStream::connect(&path).is_ok());
        // No daemon runs: a page without samples.
        const GET: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        assert!(asked(&path, GET).ends_with("# EOF\n"));
        let (a, b) = (open("vale0:a"), open("vale0:b"));
        let (tx, rx) = (open("netmap:p{1"), open("netmap:p}1"));
        exchange(&tx, &rx, 0, 0, 1234);
        let page = asked(&path, GET);
        assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
        assert!(page.contains("Content-Type: application/openmetrics-text; version=1.0.0"), "{page}");
        for (labels, value) in [
            (r#"ring_packets_total{daemon="0",port="p{1",kind="pipe",mem_id="#, " 1234"),
            (r#"switch_ports{daemon="0",switch="vale0",uid="0"}"#, " 2.0"),
            (r#"sessions{daemon="0"}"#, " 4.0"),
        ] {
            let uid = home.folder().metadata().expect("a folder").uid();
            let labels = labels.replace("=\"0\"", &format!("=\"{uid}\""));
            let found = page.lines().any(|line| line.contains(&labels) && line.ends_with(value));
            assert!(found, "{labels}{value}\n{page}");
        }
        // Requests that are none, or ask for something else, harm nobody.
        let long = [b"GET /".as_slice(), &[b'a'; 1 << 20], b" HTTP/1.1\r\n\r\n"].concat();
        for request in [b"\0\xff\r\n\r\n".as_slice(), b"", b"GET", b"GET /metrics HTTP/9.9\r\n\r\n", &long] {
            asked(&path, request);
        }
        assert!(asked(&path, b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n").starts_with("HTTP/1.1 404"));
        assert!(asked(&path, b"POST /metrics HTTP/1.1\r\nConnection: close\r\n\r\n").starts_with("HTTP/1.1 405"));
        assert!(asked(&path, GET).ends_with("# EOF\n"));
        // Prometheus's own judgement, where it is installed.
        match Command::new("promtool").args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() {
            Err(_) => summary("promtool is not installed (Debian package prometheus): the text was not given to it"),
            Ok(mut promtool) => {
                let body = page.split_once("\r\n\r\n").expect("a body").1;
                promtool.stdin.take().expect("a pipe").write_all(body.as_bytes()).expect("it reads");
                let output = promtool.wait_with_output().expect("it ends");
                // 1: it cannot be parsed; 3: remarks on style.
                assert_ne!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stdout));
            }
        }
        // Another server does not take its place; one that comes after it does.
        let mut second = Command::new(program("unetmap"));
        let output = second.args(["metrics", "-l", &format!("unix:{}", path.display())]).output().expect("it runs");
        assert!(String::from_utf8_lossy(&output.stderr).contains("another program serves there"));
        server.kill();
        let mut third = Guard::spawn(&mut command);
        until("it listens again", || UnixStream::connect(&path).is_ok());
        third.kill();
        drop((a, b));
    });
}

/// The bytes of a port's first ring of a direction, as `ls` shows them. A mediated interface is also the daemon's own
/// port.
fn bytes(home: &Home, port: &str, dir: &str) -> Option<u64> {
    let ports = home.snapshot().ports;
    let mut rings = ports.iter().filter(|of| of.name == port).flat_map(|of| &of.rings).filter(|ring| ring.dir == dir);
    rings.find_map(|ring| ring.bytes)
}

#[test]
fn bytes_of_mediated_interfaces_are_counted() {
    isolated(|home| {
        let Some(net) = Net::new(home, MEDIATED, CABLE) else { return };
        let (port, tap) = (net.open("netmap:va"), net.tap());
        let (sent, received) = (frames(&[60, 1514, 900], 0), frames(&[61, 1000], 10));
        transmit(&port, 0, &sent, BUFFER);
        tap.collect(sent.len());
        assert_eq!(bytes(home, "va", "tx"), Some(60 + 1514 + 900));
        tap.send_all(&received);
        collect(&port, received.len());
        until("both are counted", || bytes(home, "va", "rx") == Some(61 + 1000));
        let _other = open("vale0:a");
        assert_eq!(bytes(home, "vale0:a", "tx"), None, "not counted, and so not shown");
    });
}

// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap metrics`: what Prometheus reads.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use conformance::home::{Guard, summary};
use conformance::net::{BUFFER, CABLE, MEDIATED, Net, collect, frames, transmit};
use conformance::switch::set;
use conformance::traffic::{exchange, open};
use conformance::{Home, LIMIT, isolated, program, until};
use unetmap::{Interest, Port};

/// Sends a request; returns the answer, or nothing if there is none.
fn asked(path: &Path, request: &[u8]) -> String {
    let mut stream = UnixStream::connect(path).expect("it listens");
    stream.set_read_timeout(Some(LIMIT)).expect("a time");
    let _ = stream.write_all(request);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

/// Serves metrics at a socket.
fn serve(path: &Path) -> Guard {
    let mut command = Command::new(program("unetmap"));
    command.args(["metrics", "--listen", &format!("unix:{}", path.display())]).stderr(Stdio::null());
    let server = Guard::spawn(&mut command);
    until("it listens", || UnixStream::connect(path).is_ok());
    server
}

#[test]
fn counters_are_served_over_http() {
    isolated(|home| {
        let path = home.folder().join("metrics.sock");
        let mut server = serve(&path);
        // No daemon runs: a page without samples.
        const GET: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        assert!(asked(&path, GET).ends_with("# TYPE unetmap_switch_latency_seconds histogram\n"));
        let (a, b) = (open("vale0:a"), open("vale0:b"));
        let (tx, rx) = (open("netmap:p{1"), open("netmap:p}1"));
        exchange(&tx, &rx, 0, 0, 1234);
        let page = asked(&path, GET);
        assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
        assert!(page.contains("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{page}");
        for (labels, value) in [
            (r#"ring_packets_total{daemon="0",port="p{1",kind="pipe",mem_id="#, " 1234"),
            (r#"switch_ports{daemon="0",switch="vale0",uid="0"}"#, " 2"),
            (r#"sessions{daemon="0"}"#, " 4"),
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
        assert!(asked(&path, GET).starts_with("HTTP/1.1 200 OK\r\n"));
        // Another server does not take its place; one that comes after it does.
        let mut second = Command::new(program("unetmap"));
        let output = second.args(["metrics", "-l", &format!("unix:{}", path.display())]).output().expect("it runs");
        assert!(String::from_utf8_lossy(&output.stderr).contains("another program serves there"));
        server.kill();
        serve(&path).kill();
        drop((a, b));
    });
}

/// Runs `promtool check metrics`; returns what it says. It is silent about a text that is right.
fn promtool(page: &str) -> Option<(Option<i32>, String)> {
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut child) = command.spawn() else {
        summary("promtool is not installed (Debian package prometheus): the text was not given to it");
        return None;
    };
    child.stdin.take().expect("a pipe").write_all(page.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let said = [output.stdout, output.stderr].concat();
    Some((output.status.code(), String::from_utf8_lossy(&said).into_owned()))
}

/// Each sample of every metric: a region, a switch, pipes, users, and packets lost.
#[test]
fn the_format_is_the_one_that_a_request_accepts() {
    isolated(|home| {
        let path = home.folder().join("metrics.sock");
        let mut server = serve(&path);
        let (a, _b) = (open("vale0:a"), open("vale0:b"));
        let (tx, rx) = (open("netmap:p{1"), open("netmap:p}1"));
        exchange(&tx, &rx, 0, 0, 100);
        transmit(&a, 0, &frames(&[60; 3], 0), BUFFER);
        let get = |method: &str, accept: &str| {
            let request = format!("{method} /metrics HTTP/1.1\r\nHost: x\r\n{accept}Connection: close\r\n\r\n");
            let answer = asked(&path, request.as_bytes());
            let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
            assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("\r\nVary: Accept\r\n"), "{head}");
            (head.to_owned(), body.to_owned())
        };
        let text = "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n";
        let openmetrics = "\r\nContent-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n";
        for (accept, kind) in [
            ("", text),
            ("Accept: */*\r\n", text),
            ("Accept: text/plain\r\n", text),
            ("accept: application/openmetrics-text; version=1.0.0\r\n", openmetrics),
            ("Accept: application/openmetrics-text;q=0.1, text/plain;q=0.2\r\n", text),
            ("Accept: text/plain;q=0.2\r\nAccept: application/openmetrics-text;q=0.3\r\n", openmetrics),
            (
                "Accept: application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1\r\n",
                openmetrics,
            ),
        ] {
            let (head, body) = get("GET", accept);
            assert!(head.contains(kind), "{accept}: {head}");
            let is_openmetrics = kind == openmetrics;
            let declared = if is_openmetrics { "ring_packets counter\n" } else { "ring_packets_total counter\n" };
            assert!(body.contains(&format!("# TYPE unetmap_{declared}")), "{accept}: {body}");
            assert_eq!(body.contains("# EOF"), is_openmetrics, "{accept}: {body}");
            assert!(body.contains("unetmap_ring_packets_total{"), "{body}");
            let (head, body) = get("HEAD", accept);
            assert!(head.contains(kind) && body.is_empty(), "{accept}: {head}");
        }
        // The command's own output, and the page of a server.
        let printed = |args: &[&str]| {
            let output = Command::new(program("unetmap")).arg("metrics").args(args).output().expect("it runs");
            String::from_utf8(output.stdout).expect("text")
        };
        assert!(printed(&["--openmetrics"]).ends_with("# EOF\n"));
        for page in [printed(&[]), get("GET", "").1] {
            assert!(!page.contains("# EOF"), "{page}");
            if let Some(said) = promtool(&page) {
                assert_eq!(said, (Some(0), String::new()), "{page}");
                let wrong = promtool("# TYPE x counter\nx 1\n").expect("it is installed");
                assert!(wrong.0 != Some(0) && wrong.1.contains("_total"), "it judges: {wrong:?}");
            }
        }
        server.kill();
    });
}

/// Clients that send nothing, or read nothing, delay nobody, however many there are.
#[test]
fn clients_that_do_not_read_delay_no_other() {
    isolated(|home| {
        let path = home.folder().join("metrics.sock");
        let mut server = serve(&path);
        const GET: &[u8] = b"GET /metrics HTTP/1.1\r\n\r\n";
        let mut idle = Vec::new();
        for number in 0..200 {
            let mut client = UnixStream::connect(&path).expect("it listens");
            client.set_write_timeout(Some(LIMIT)).expect("a time");
            if number % 2 == 0 {
                // More requests than their answers have room in the socket.
                client.set_nonblocking(true).expect("a socket");
                while client.write(GET).is_ok_and(|len| len == GET.len()) {}
            }
            idle.push(client);
            if number % 20 == 19 {
                assert!(asked(&path, GET).starts_with("HTTP/1.1 200 OK\r\n"), "beside {number} clients");
            }
        }
        drop(idle);
        assert!(asked(&path, GET).starts_with("HTTP/1.1 200 OK\r\n"));
        server.kill();
    });
}

/// A name that leads to the server without being one of its own, as of a page of a browser (DNS rebinding), is refused.
#[test]
fn requests_for_another_host_are_refused() {
    isolated(|home| {
        let (mut command, log) = (Command::new(program("unetmap")), home.folder().join("metrics.log"));
        let at = std::net::TcpListener::bind("127.0.0.1:0").expect("an address").local_addr().expect("its own");
        let stderr = std::fs::File::create(&log).expect("a file");
        command.args(["metrics", "--listen", &at.to_string(), "--host", "mon.example"]).stderr(stderr);
        let mut server = Guard::spawn(&mut command);
        until("it listens", || std::net::TcpStream::connect(at).is_ok());
        let asked = |host: &str| {
            let mut stream = std::net::TcpStream::connect(at).expect("it listens");
            stream.set_read_timeout(Some(LIMIT)).expect("a time");
            let mut answer = String::new();
            let _ = write!(stream, "GET /metrics HTTP/1.1\r\n{host}Connection: close\r\n\r\n");
            let _ = stream.read_to_string(&mut answer);
            answer
        };
        for host in ["127.0.0.1", "localhost:9464", "[::1]", "mon.example", "MON.example:80"] {
            let answer = asked(&format!("Host: {host}\r\n"));
            assert!(answer.starts_with("HTTP/1.1 200 "), "{host}: {answer}");
        }
        for host in ["Host: evil.example\r\n", "", "Host: localhost\r\nHost: evil.example\r\n", "Host: 192.0.2.1\r\n"] {
            let answer = asked(host);
            let is_refused =
                answer.starts_with("HTTP/1.1 421 Misdirected Request\r\n") && answer.contains("--host NAME");
            assert!(is_refused && !answer.contains("unetmap_"), "{host}: {answer}");
        }
        server.kill();
    });
}

/// Of many clients that send nothing the newest end; one whose answer is on its way, and the first idle ones, stay.
#[test]
fn the_newest_idle_connection_ends_first() {
    isolated(|home| {
        let path = home.folder().join("metrics.sock");
        let mut server = serve(&path);
        let _pipes: Vec<Port> = (0..90).map(|n| open(&format!("netmap:p{n}{{1"))).collect();
        // It has sent a request whose answer does not fit the socket, and reads later.
        let mut active = UnixStream::connect(&path).expect("it listens");
        active.set_read_timeout(Some(LIMIT)).expect("a time");
        write!(active, "GET /metrics HTTP/1.1\r\n\r\n").expect("it reads");
        let mut first = [0; 16];
        active.read_exact(&mut first).expect("an answer");
        let mut idle: Vec<UnixStream> = (0..100).map(|_| UnixStream::connect(&path).expect("it listens")).collect();
        const GET: &[u8] = b"GET /metrics HTTP/1.1\r\n\r\n";
        assert!(asked(&path, GET).starts_with("HTTP/1.1 200 OK\r\n"));
        let mut rest = String::new();
        active.read_to_string(&mut rest).expect("the rest");
        assert!(rest.contains("unetmap_user_refused_total"), "the active one got all of its answer");
        let mut answer = String::new();
        idle[0].set_read_timeout(Some(LIMIT)).expect("a time");
        idle[0].write_all(GET).expect("the first idle one is still read");
        idle[0].read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        server.kill();
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
        let _pipe = open("netmap:p{1");
        assert_eq!(bytes(home, "p{1", "tx"), None, "not counted, and so not shown");
    });
}

/// Each way through a switch counts the bytes that were sent, and those that each port received.
#[test]
fn bytes_of_switch_ports_and_pipes_are_counted() {
    isolated(|home| {
        let lens: Vec<usize> = (0..500).map(|i| 60 + i * 37 % 1455).collect();
        let whole = lens.iter().sum::<usize>() as u64;
        let mut serial = 0;
        // Sends all of them to an unknown address, which all other ports get.
        let mut sent = |from: &Port, to: &[&Port], lens: &[usize]| {
            for part in lens.chunks(100) {
                let out = frames(part, serial);
                serial += out.len() as u64;
                transmit(from, 0, &out, BUFFER);
                to.iter().for_each(|port| assert_eq!(collect(port, out.len()), out));
            }
        };
        // The switch counts what it took after it delivered.
        let counted = |port: &str, dir: &str, wanted: u64| {
            until(&format!("{wanted} bytes at {port} {dir}"), || bytes(home, port, dir) == Some(wanted));
        };
        // One other port: copied, or its buffers exchanged.
        for (one, two, other) in [("vale1:a", "vale1:b", "vale1:b"), ("vale2:a", "vale2:b@share=vale2:a", "vale2:b")] {
            let (a, b) = (open(one), open(two));
            sent(&a, &[&b], &lens);
            for (port, dir, wanted) in [(one, "tx", whole), (other, "rx", whole), (one, "rx", 0), (other, "tx", 0)] {
                counted(port, dir, wanted);
            }
        }
        // Two others; several slots for a packet; then a policy.
        let (a, b, c) = (open("vale0:a"), open("vale0:b"), open("vale0:c"));
        sent(&a, &[&b, &c], &lens);
        sent(&a, &[&b, &c], &[5000, 60, 9000]);
        set("port vale0:a storm 1G");
        sent(&a, &[&b, &c], &lens);
        let all = 2 * whole + 14_060;
        for (port, dir) in [("vale0:a", "tx"), ("vale0:b", "rx"), ("vale0:c", "rx")] {
            counted(port, dir, all);
        }
        // Receivers without room: what they lost is not counted.
        frames(&[1000; 4000], 9000).chunks(500).for_each(|part| transmit(&a, 0, part, BUFFER));
        counted("vale0:a", "tx", all + 4_000_000);
        until("each packet is counted once, as bytes or as lost", || {
            let rings = home.snapshot().ports.into_iter().flat_map(|port| port.rings);
            let lost = rings.filter(|ring| ring.dir == "rx").map(|ring| 1000 * ring.dropped).sum::<u64>();
            let received = ["vale0:b", "vale0:c"].map(|port| bytes(home, port, "rx").unwrap_or(0));
            lost > 0 && received.iter().sum::<u64>() + lost == 2 * (all + 4_000_000)
        });
        // A program that sleeps is woken.
        let (x, y) = (open("vale3:x"), open("vale3:y"));
        assert!(y.arm(Interest::RX).expect("an open port").is_none());
        transmit(&x, 0, &frames(&[60], 1), BUFFER);
        let woken = |port: &str| {
            let ports = home.snapshot().ports;
            let rings = ports.iter().filter(|of| of.name == port).flat_map(|of| &of.rings);
            rings.filter(|ring| ring.dir == "rx").find_map(|ring| ring.wakeups)
        };
        until("it is woken once", || woken("vale3:y") == Some(1));
        // A pipe: what was received.
        let (tx, rx) = (open("netmap:p{1"), open("netmap:p}1"));
        sent(&tx, &[&rx], &lens);
        counted("p}1", "rx", whole);
    });
}

// SPDX-License-Identifier: BSD-2-Clause
//! Address translation of `unetmap-fw`, between kernels' stacks.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use conformance::net::transmit;
use conformance::traffic::open;
use conformance::{isolated_with_interfaces, program};
use lab::{Lab, Ns, VethOptions};
use serde_json::Value;

use super::{fw, packet, plain, receive, seq, start};

const LIMIT: Duration = Duration::from_secs(20);

/// Two clients behind a router, and a server that knows no way to them.
struct Site {
    clients: [Ns; 2],
    router: Ns,
    server: Ns,
    _lab: Lab,
}

impl Site {
    fn new() -> Option<Site> {
        let lab = Lab::new().inspect_err(|why| eprintln!("skipped: {why}")).ok()?;
        let [one, two, router, server] =
            ["one", "two", "router", "server"].map(|name| lab.namespace(name).expect("a namespace"));
        let options = VethOptions { tx_checksum_off: true, ..VethOptions::default() };
        for (ns, near, far, i) in [(&one, "one0", "lan1", 1), (&two, "two0", "lan2", 2)] {
            lab.veth(ns, near, &router, far, options).expect("a veth pair");
            ns.ip(&["address", "add", &format!("10.1.{i}.2/24"), "dev", near]).expect("an address");
            ns.ip(&["route", "add", "default", "via", &format!("10.1.{i}.1")]).expect("a route");
            router.ip(&["address", "add", &format!("10.1.{i}.1/24"), "dev", far]).expect("an address");
        }
        lab.veth(&router, "wan0", &server, "web0", options).expect("a veth pair");
        router.ip(&["address", "add", "203.0.113.1/24", "dev", "wan0"]).expect("an address");
        server.ip(&["address", "add", "203.0.113.80/24", "dev", "web0"]).expect("an address");
        router
            .run(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1"))
            .expect("the namespace")
            .expect("forwarding");
        Some(Site { clients: [one, two], router, server, _lab: lab })
    }
}

fn in_ns<T: Send + 'static>(ns: &Ns, run: impl FnOnce() -> T + Send + 'static) -> T {
    ns.run(run).expect("the namespace")
}

fn listen(ns: &Ns, address: &'static str) -> TcpListener {
    in_ns(ns, move || TcpListener::bind(address)).expect("a listener")
}

/// Fetches a page; returns its text.
fn fetch(ns: &Ns, from: &'static str) -> String {
    let mut stream =
        in_ns(ns, move || TcpStream::connect_timeout(&from.parse().expect("an address"), LIMIT)).expect("a connection");
    stream.set_read_timeout(Some(LIMIT)).expect("a limit");
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").expect("sent");
    let mut page = String::new();
    stream.read_to_string(&mut page).expect("text");
    page
}

/// Answers one request with a page that names the client; returns its address.
fn serve(listener: &TcpListener, body: &str) -> SocketAddr {
    let (mut stream, peer) = listener.accept().expect("a connection");
    stream.set_read_timeout(Some(LIMIT)).expect("a limit");
    let mut request = [0; 18];
    stream.read_exact(&mut request).expect("a request");
    stream.write_all(format!("HTTP/1.0 200 OK\r\n\r\nfor {}\n{body}", peer.ip()).as_bytes()).expect("sent");
    peer
}

#[test]
fn a_router_on_host_rings_translates_for_two_namespaces() {
    isolated_with_interfaces(|home| {
        let Some(Site { clients: [one, two], router, server, .. }) = &Site::new() else { return };
        let rules = "nat 1 config if wan0 deny_in redirect_port tcp 10.1.1.2:8080 80\n\
                     add allow mac-type arp\nadd nat 1 ip from any to any";
        let running = start(home, router.command(program("unetmap-fw")), "netmap:wan0^ netmap:wan0", rules);
        let router_address: IpAddr = "203.0.113.1".parse().expect("an address");

        let web = listen(server, "203.0.113.80:80");
        let body = "a page of some length ".repeat(20_000);
        for client in [one, two] {
            std::thread::scope(|scope| {
                let served = scope.spawn(|| serve(&web, &body));
                let page = fetch(client, "203.0.113.80:80");
                assert!(page.ends_with(&format!("for 203.0.113.1\n{body}")), "{}", page.len());
                let peer = served.join().expect("no panic");
                assert!(peer.ip() == router_address && peer.port() >= 0x8000, "{peer}");
            });
            client.tool("ping", &["-n", "-c", "1", "-W", "10", "203.0.113.80"]).expect("an answer");
        }
        // From outside only what is redirected.
        let inside = listen(one, "10.1.1.2:8080");
        std::thread::scope(|scope| {
            let served = scope.spawn(|| serve(&inside, "inside"));
            assert!(fetch(server, "203.0.113.1:80").ends_with("for 203.0.113.80\ninside"));
            served.join().expect("no panic");
        });

        // Datagrams of three fragments, both ways.
        let bind = |ns: &Ns, address: &'static str| in_ns(ns, move || UdpSocket::bind(address)).expect("a socket");
        let (echo, asker) = (bind(server, "203.0.113.80:7"), bind(two, "10.1.2.2:5000"));
        for socket in [&echo, &asker] {
            socket.set_read_timeout(Some(LIMIT)).expect("a limit");
        }
        let datagram: Vec<u8> = (0..4000).map(|i| i as u8).collect();
        asker.send_to(&datagram, "203.0.113.80:7").expect("sent");
        let mut buffer = vec![0; 5000];
        let (n, from) = echo.recv_from(&mut buffer).expect("a datagram");
        assert!(buffer[..n] == datagram && from.ip() == router_address, "{n} {from}");
        echo.send_to(&datagram, from).expect("sent");
        let (n, from) = asker.recv_from(&mut buffer).expect("a datagram");
        assert!(buffer[..n] == datagram && from.to_string() == "203.0.113.80:7", "{n} {from}");
        // An error comes back to the socket whose packet it quotes.
        asker.connect("203.0.113.80:9").expect("an address");
        asker.send(b"?").expect("sent");
        let error = asker.recv(&mut buffer).expect_err("nobody is there");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");

        let shown: Value = serde_json::from_str(&fw("--json show").unwrap()).expect("an object");
        let nat = &shown["nat"];
        assert!(nat["created"].as_u64() >= Some(6) && nat["full"] == 0 && nat["fragments"] == 0, "{nat}");
        conformance::home::summary(&format!(
            "a router on host rings: two namespaces fetched {} bytes each through NAT, one served a page: {nat}",
            body.len()
        ));
        running.summary();
    });
}

#[test]
fn translated_packets_are_written_where_buffers_are_exchanged_and_turned_back() {
    isolated_with_interfaces(|home| {
        for (near, far, ports) in [
            ("netmap:a{1", "netmap:a}2", "a}1 a{2"),
            ("netmap:b{1", "netmap:c}1", "b}1 c{1"),
            ("vale0:t", "vale1:t", "vale0:f vale1:f"),
        ] {
            let rules = "nat 7 config ip 10.0.0.99 same_ports deny_in redirect_port udp 10.0.0.5:80 8080\n\
                         add nat 7 ip from any to any";
            let running = plain(home, ports, rules);
            let (near, far) = (open(near), open(far));
            transmit(&near, 0, &(0..100).map(|i| packet((1, 2), 53, 0, i)).collect::<Vec<_>>(), 2048);
            let got = receive(&far, 100);
            for (i, bytes) in got.iter().enumerate() {
                assert_eq!((&bytes[26..34], &bytes[34..38]), (&[10, 0, 0, 99, 10, 0, 0, 2][..], &[3, 232, 0, 53][..]));
                assert_eq!(seq(bytes), Some(i as u32));
            }
            let mut answer = packet((2, 99), 1000, 0, 7);
            answer[34..36].copy_from_slice(&53u16.to_be_bytes());
            transmit(&far, 0, &[packet((2, 99), 1001, 0, 0), answer], 2048);
            let got = receive(&near, 1);
            assert_eq!((&got[0][26..34], seq(&got[0])), (&[10, 0, 0, 2, 10, 0, 0, 1][..], Some(7)), "{ports}");
            // To the redirect from inside: back, between exchanged MAC addresses.
            let ask = packet((1, 99), 8080, 0, 9);
            transmit(&near, 0, std::slice::from_ref(&ask), 2048);
            let got = receive(&near, 1);
            assert_eq!((&got[0][..6], &got[0][6..12]), (&ask[6..12], &ask[..6]));
            assert_eq!((&got[0][26..34], &got[0][36..38]), (&[10, 0, 0, 99, 10, 0, 0, 5][..], &[0, 80][..]), "{ports}");
            let summary = running.summary();
            assert_eq!((&summary["passed"], &summary["dropped"]), (&102.into(), &1.into()), "{ports}: {summary}");
        }
    });
}

// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap flows` with a collector that receives by TCP, or by TLS.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use conformance::collector::{Decoder, Stream, accept};
use conformance::forwarder::Forwarder;
use conformance::home::{Guard, summary, wait_within};
use conformance::net::transmit;
use conformance::pcap::udp;
use conformance::traffic::open;
use conformance::{isolated, until};

use crate::flows::{PACKETS, capture, done, flows, has, kinds, objects};

/// An address of the loopback network that no other test has.
fn own_address(port: u16) -> SocketAddrV4 {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    SocketAddrV4::new(Ipv4Addr::new(127, 64 | high, middle, low), port)
}

#[test]
fn records_come_by_tcp() {
    isolated(|home| {
        let kinds = kinds();
        let frames: Vec<_> = kinds.iter().map(|(frame, ..)| frame.clone()).cycle().take(8000).collect();
        let path = capture(home.folder(), &frames);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let to = listener.local_addr().expect("bound");
        let args = format!("--read {} --to tcp:{to} --idle 0.005", path.display());
        std::thread::scope(|scope| {
            let received = scope.spawn(|| {
                let mut stream = Stream::default();
                assert!(stream.receive(&accept(&listener), |_| false), "the exporter ends the connection");
                stream.decoder
            });
            let (records, summary) = objects(&mut flows(&args));
            let decoder = received.join().expect("messages");
            assert_eq!((decoder.flows().count(), decoder.sum(PACKETS)), (records.len(), 8000), "{summary}");
            assert!(records.len() > 4000 && decoder.records.iter().any(|record| record.is_option));
            let counts = &summary["collector"];
            assert_eq!((&counts["records"], &counts["unsent_records"]), (&records.len().into(), &0.into()));
            assert_eq!(counts["connections"], 1, "{summary}");
        });
    });
}

/// Records wait for a collector that is not there yet. One that ends the connection and returns gets the templates
/// again, and what follows.
#[test]
fn a_collector_that_comes_and_goes_gets_all_records() {
    isolated(|_home| {
        let near = open("netmap:p{1");
        let to = own_address(4739);
        let running = Forwarder::start(&mut flows(&format!("p}}1 --to tcp:{to} --idle 0.05 --active 0.05")));
        let frames: Vec<_> = (0..100).map(|i| udp(1000 + i, 9, &[0; 18])).collect();
        let send = || {
            transmit(&near, 0, &frames, 2048);
            until("the packets are taken", || {
                near.txsync().expect("the daemon runs");
                !near.tx_rings()[0].pending()
            });
        };
        send();
        let listener = TcpListener::bind(to).expect("an address of our own");
        let first = accept(&listener);
        let mut stream = Stream::default();
        assert!(!stream.receive(&first, |decoder| decoder.sum(PACKETS) == 100), "it goes on");
        drop(first);
        let second = accept(&listener);
        send();
        std::thread::scope(|scope| {
            let received = scope.spawn(|| {
                let mut stream = Stream::default();
                assert!(stream.receive(&second, |_| false));
                stream.decoder
            });
            let summary = running.summary();
            let decoder = received.join().expect("messages");
            assert_eq!((decoder.flows().count(), decoder.sum(PACKETS)), (100, 100), "{summary}");
            let counts = &summary["collector"];
            assert_eq!((&counts["connections"], &counts["unsent_records"]), (&2.into(), &0.into()), "{summary}");
            assert_eq!((&counts["records"], &summary["recorded_packets"]), (&200.into(), &200.into()), "{summary}");
        });
    });
}

/// Makes a certificate and its key, `NAME.pem` and `NAME.key`.
fn certify(folder: &Path, name: &str) {
    let mut openssl = Command::new("openssl");
    openssl.args("req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -days 2 -subj".split(' '));
    openssl.args([&format!("/CN={name}"), "-addext", "basicConstraints=critical,CA:FALSE", "-addext"]);
    openssl.args([&format!("subjectAltName=DNS:localhost,IP:{}", own_address(0).ip()), "-out"]);
    done(openssl.args([&format!("{name}.pem"), "-keyout", &format!("{name}.key")]).current_dir(folder));
}

/// Whether a socket listens there.
fn listens(at: SocketAddrV4) -> bool {
    let wanted = format!(" {:08X}:{:04X} 00000000:0000 0A ", u32::from_ne_bytes(at.ip().octets()), at.port());
    fs::read_to_string("/proc/net/tcp").expect("the kernel's list").contains(&wanted)
}

/// A collector by openssl, which wants the exporter's certificate, and ends after a connection.
fn server(folder: &Path, at: SocketAddrV4) -> Guard {
    let mut openssl = Command::new("openssl");
    openssl.args("s_server -quiet -naccept 1 -cert server.pem -key server.key".split(' '));
    openssl.args("-Verify 1 -verify_return_error -CAfile client.pem -accept".split(' '));
    openssl.arg(at.to_string()).current_dir(folder).stdin(Stdio::piped()).stderr(Stdio::null());
    let guard = Guard::spawn(openssl.stdout(File::create(folder.join("received")).expect("a file")));
    until("openssl listens", || listens(at));
    guard
}

/// The exporter and the collector make sure of each other. Without that no record is sent, and each is counted.
#[test]
fn records_come_by_tls() {
    isolated(|home| {
        if !has("openssl") {
            return summary("skipped: no openssl (apt-get install openssl)");
        }
        let (folder, at) = (home.folder(), own_address(4740));
        ["server", "client", "other"].iter().for_each(|name| certify(folder, name));
        let frames: Vec<_> = (0..3000).map(|i| udp(1000 + i, 9, &[0; 18])).collect();
        let path = capture(folder, &frames);
        for (authority, own, is_sent) in
            [("server", "client", true), ("other", "client", false), ("server", "other", false)]
        {
            let mut openssl = server(folder, at);
            let file = |name: &str, ending: &str| folder.join(format!("{name}.{ending}")).display().to_string();
            let args = format!("--read {} --to tls:{at} --ca {}", path.display(), file(authority, "pem"));
            let own = format!("--certificate {} --key {}", file(own, "pem"), file(own, "key"));
            let (records, summary) = objects(flows(&args).args(own.split(' ')));
            let counts = &summary["collector"];
            let (sent, unsent) = if is_sent { (3000, 0) } else { (0, 3000) };
            assert_eq!(
                (records.len(), &counts["records"], &counts["unsent_records"]),
                (3000, &sent.into(), &unsent.into())
            );
            assert!(
                wait_within(&mut openssl.0, conformance::home::LIMIT).is_some(),
                "openssl ends with the connection"
            );
            let mut stream = Stream::default();
            stream.take(&fs::read(folder.join("received")).expect("a file"));
            let Decoder { records: received, .. } = &stream.decoder;
            assert_eq!(received.iter().filter(|record| !record.is_option).count() as u64, sent, "{summary}");
        }
        // The group's right is root's to give.
        let is_root = rustix::process::geteuid().is_root();
        for (mode, why) in [(0o604, "can read the key"), (0o620, "can change the key"), (0o640, "can read the key")] {
            let key = folder.join("client.key");
            fs::set_permissions(&key, fs::Permissions::from_mode(mode)).expect("our own file");
            let file = |ending: &str| folder.join(format!("client.{ending}")).display().to_string();
            let args = format!("--read {} --to tls:{at} --ca {}", path.display(), file("pem"));
            let run = flows(&args).args(["--certificate", &file("pem"), "--key", &file("key")]).output();
            let text = String::from_utf8(run.expect("unetmap flows").stderr).expect("UTF-8");
            assert_eq!(text.contains(why), !(is_root && mode == 0o640), "{mode:o}: {text}");
        }
    });
}

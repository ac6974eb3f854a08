// SPDX-License-Identifier: BSD-2-Clause
//! scapy finds ports by libpcap's list of devices, and they have addresses and flags there.
//!
//! Debian's scapy is tested, and that of each interpreter in `SCAPY_PYTHONS`, separated by colons: versions differ in
//! what they do with a name that is not in the list.

use std::fs;
use std::process::Command;

use conformance::home::summary;
use conformance::net::collect;
use conformance::pcap::overlay;
use conformance::traffic::open;
use conformance::{isolated, program};

/// Lists ports, and sends a packet to a name that no text has in one piece.
const LISTS: &str = r"
from scapy.all import *
conf.use_pcap = True
conf.ifaces.reload()
for device in conf.ifaces.values():
    if ':' in device.network_name:
        print(device.network_name, device.mac, 'UP' in str(device.flags), device.index > 0)
sendp(Ether(dst='ff:ff:ff:ff:ff:ff', src='02:00:00:00:00:01', type=0x88b5) / (b'computed' * 8), iface='vale5:' + 'py', verbose=0)
";

/// Sends to a port that does not exist before.
const SENDS: &str = r#"
from scapy.all import *
conf.use_pcap = True
sendp(Ether(dst="ff:ff:ff:ff:ff:ff", src="02:00:00:00:00:01", type=0x88b5) / (b"written." * 8), iface="vale5:new", verbose=0)
"#;

#[test]
fn scapy_names_ports_that_exist_and_those_that_a_script_names() {
    isolated(|home| {
        overlay();
        let debian = ["/usr/bin/python3".to_owned()];
        let more = std::env::var("SCAPY_PYTHONS").unwrap_or_default();
        let has_scapy = |python: &&str| {
            let found = Command::new(python).args(["-c", "import scapy"]).output();
            found.is_ok_and(|output| output.status.success())
        };
        let all = debian.iter().map(String::as_str).chain(more.split(':').filter(|python| !python.is_empty()));
        let pythons: Vec<&str> = all.filter(has_scapy).collect();
        if pythons.is_empty() {
            return summary("skipped: there is no scapy (apt-get install python3-scapy)");
        }
        let _pipe = open("netmap:open{1");
        let far = open("vale5:far");
        let script = home.folder().join("sends.py");
        fs::write(&script, SENDS).expect("a file");
        let script = script.to_str().expect("text");
        for python in &pythons {
            let run = |args: &[&str]| {
                let mut command = Command::new(program("unetmap"));
                command.args(["run", python]).args(args).env("UNETMAP_PCAP_DEVICES", "vale5:py");
                let output = command.output().expect("unetmap starts");
                let errors = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{python} {args:?}: {errors}");
                String::from_utf8_lossy(&output.stdout).into_owned()
            };
            let arrives = |text: &[u8]| {
                let frames = collect(&far, 1);
                assert!(frames[0][14..].starts_with(text), "{python}: {frames:02x?}");
            };
            let listed = run(&["-c", LISTS]);
            arrives(b"computedcomputed");
            for name in ["netmap:open{1", "netmap:open}1", "vale5:far", "vale5:py"] {
                let line = listed.lines().find(|line| line.split(' ').next() == Some(name));
                let line = line.unwrap_or_else(|| panic!("{python} does not list {name}:\n{listed}"));
                let address = line.split(' ').nth(1).unwrap_or_default();
                assert!(address.starts_with("02:") && line.ends_with(" True True"), "{python}: {line}");
            }
            // In the text of a program, and of a file.
            for args in [&["-c", SENDS][..], &[script]] {
                run(args);
                arrives(b"written.written.");
            }
        }
        summary(&format!("scapy of {}", pythons.join(", ")));
    });
}

// SPDX-License-Identifier: BSD-2-Clause
//! Copies of packets by rules `tee`.

use std::process::Command;

use conformance::net::{take, transmit};
use conformance::traffic::open;
use conformance::{isolated_with_interfaces, program};
use serde_json::Value;

use super::{fw, packet, receive, seq, start};

fn counts() -> [u64; 2] {
    let shown: Value = serde_json::from_str(&fw("--json show").unwrap()).expect("an object");
    ["copies", "lost_copies"].map(|key| shown[key].as_u64().expect("a number"))
}

#[test]
fn ports_get_copies_of_what_rules_match() {
    isolated_with_interfaces(|home| {
        // Buffers are exchanged, or copied; copies go into a pipe of the same region, of another one, and to a switch.
        for (near, far, ports) in [("netmap:a{1", "netmap:a}2", "a}1 a{2"), ("netmap:b{1", "netmap:c}1", "b}1 c{1")] {
            let mut command = Command::new(program("unetmap-fw"));
            command.args(["--tee", "1=a{7", "--tee", "2=t{1", "--tee", "3=vale0:t"]);
            let rules = "nat 1 config ip 10.0.0.99\nadd 10 tee 1 udp from any to any 53\n\
                         add 20 tee 2 ip from any to any\nadd 25 tee 3 udp from any to any 54\n\
                         add 30 deny udp from any to any 22\nadd 40 nat 1 udp from any to any 54\n\
                         add 50 allow ip from any to any";
            let running = start(home, command, ports, rules);
            let copies = ["netmap:a}7", "netmap:t}1", "vale0:r"].map(open);
            let (near, far) = (open(near), open(far));
            let sent: Vec<_> = [22, 53, 54, 80].iter().zip(0..).map(|(port, i)| packet((1, 2), *port, 0, i)).collect();
            transmit(&near, 0, &sent, 2048);
            let passed: Vec<_> = receive(&far, 3).iter().filter_map(|bytes| seq(bytes)).collect();
            assert_eq!(passed, [1, 2, 3], "{ports}");
            assert_eq!(receive(&copies[0], 1), [sent[1].clone()], "{ports}");
            // As they came: before they were dropped or translated.
            assert_eq!(receive(&copies[1], 4), sent, "{ports}");
            assert_eq!(receive(&copies[2], 1), [sent[2].clone()], "{ports}");
            let back = packet((2, 1), 53, 0, 9);
            let back = [back];
            transmit(&far, 0, &back, 2048);
            for port in [&near, &copies[0], &copies[1]] {
                assert_eq!(receive(port, 1), back, "{ports}");
            }
            assert_eq!(counts(), [8, 0], "{ports}");
            running.summary();
        }
    });
}

#[test]
fn threads_share_the_ports_of_copies() {
    isolated_with_interfaces(|home| {
        let mut command = Command::new(program("unetmap-fw"));
        command.args(["-p", "2", "--tee", "1=t{1"]);
        let rules = "add tee 1 ip from any to any\nadd allow ip from any to any";
        let running = start(home, command, "a}1@conf:rings=2 b{1@conf:rings=2", rules);
        let (near, far) = (open("netmap:a{1@conf:rings=2"), open("netmap:b}1@conf:rings=2"));
        let copies = open("netmap:t}1");
        for i in 0..20 {
            for ring in 0..2 {
                let sent = [packet((1, 2), 53, 0, 2 * i + ring as u32)];
                transmit(&near, ring, &sent, 2048);
                assert_eq!(receive(&copies, 1), sent);
            }
        }
        assert_eq!(counts(), [40, 0]);
        drop(far);
        running.summary();
    });
}

#[test]
fn a_receiver_that_is_full_loses_only_copies() {
    const PACKETS: u32 = 5000;
    isolated_with_interfaces(|home| {
        let mut command = Command::new(program("unetmap-fw"));
        command.args(["--tee", "1=t{1@conf:slots=256"]);
        let running = start(home, command, "a}1 a{2", "add tee 1 ip from any to any\nadd allow ip from any to any");
        let (near, far) = (open("netmap:a{1"), open("netmap:a}2"));
        let slow = open("netmap:t}1");
        for begin in (0..PACKETS).step_by(100) {
            let batch: Vec<_> = (begin..begin + 100).map(|i| packet((1, 2), 53, 0, i)).collect();
            transmit(&near, 0, &batch, 2048);
            assert_eq!(receive(&far, 100), batch);
        }
        let [copies, lost] = counts();
        assert_eq!(copies + lost, u64::from(PACKETS));
        assert!((100..2000).contains(&copies), "{copies}");
        slow.rxsync().expect("the daemon runs");
        // The first ones, in order and whole.
        for (i, bytes) in take(&slow, 0).into_iter().enumerate() {
            assert_eq!(bytes, packet((1, 2), 53, 0, i as u32));
        }
        slow.rxsync().expect("the daemon runs");
        // It has room again.
        transmit(&near, 0, &[packet((1, 2), 53, 0, PACKETS)], 2048);
        receive(&far, 1);
        assert_eq!(counts()[0], copies + 1);
        running.summary();

        for (tees, part) in [(["1=t}1@9", "2=a}1"], "used already"), (["1=t}1", "x"], "1 to 65535")] {
            let mut refused = Command::new(program("unetmap-fw"));
            refused.args(["a}1", "a{2", "--tee", tees[0], "--tee", tees[1]]);
            let output = refused.output().expect("it runs");
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.code() == Some(2) && error.contains(part), "{error}");
        }
        let error = super::fw("list").unwrap_err();
        assert!(error.contains("no firewall"), "{error}");
    });
}

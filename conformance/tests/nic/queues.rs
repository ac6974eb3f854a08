// SPDX-License-Identifier: BSD-2-Clause
//! Receive steering settings on interfaces without hardware support: an unsupported setting is refused, and the error
//! names an alternative.

use conformance::net::{CABLE, DIRECT, Net, assert_works};
use conformance::{isolated_with_interfaces, program};

/// Runs `unetmap nic` in the near namespace; returns its exit status and its output.
#[track_caller]
fn nic(net: &Net, args: &[&str]) -> (Option<i32>, String) {
    let output = net.near.command(program("unetmap")).arg("nic").args(args).output().expect("unetmap");
    let printed = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&printed).into_owned())
}

#[test]
fn unsupported_queue_settings_are_refused_with_an_alternative() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        net.near.ip(&["tuntap", "add", "tap0", "mode", "tap"]).expect("a tap");
        // The port works before, meanwhile and afterwards.
        let port = net.open("netmap:va-0");
        let tap = net.tap();
        for (interface, driver) in [("va", "veth"), ("tap0", "tun"), ("lo", "")] {
            for args in [
                &["rss"][..],
                &["rss", "symmetric"],
                &["rss", "equal", "2"],
                &["rss", "queues", "0"],
                &["rss", "--json"],
            ] {
                let (code, printed) = nic(&net, &[&[interface], args].concat());
                assert_eq!(code, Some(1), "{interface} {args:?}: {printed}");
                assert!(
                    printed.contains(driver) && printed.contains("no RSS") && printed.contains("lb(8)"),
                    "{printed}"
                );
            }
            for args in [&["steer"][..], &["steer", "udp dst port 53", "0"], &["steer", "off", "0"]] {
                let (code, printed) = nic(&net, &[&[interface], args].concat());
                assert_eq!(code, Some(1), "{interface} {args:?}: {printed}");
                assert!(printed.contains(driver) && printed.contains("does not support steering rules"), "{printed}");
                assert!(printed.contains(&format!("lb -i {interface} --steer RULE PIPE")), "{printed}");
            }
        }
        for (status, args, part) in [
            (2, &["va", "rss", "sideways"][..], "symmetric, equal N, queues LIST, or key BYTES"),
            (2, &["va", "rss", "equal", "0"], "`0` is not a number of queues"),
            (1, &["va", "steer", "udp dst port 53", "1"], "its queues are 0 to 0"),
            (2, &["va", "steer", "udp port 53", "0"], "`port` needs `src` or `dst`"),
            (2, &["va", "steer", "udp dst port 53"], "(the rule as one word)"),
            (2, &["va", "steer", "off", "x"], "`x` is not the place of a rule"),
            (1, &["nowhere0", "rss"], "no such interface"),
            (1, &["nowhere0", "steer"], "no such interface"),
        ] {
            let (code, printed) = nic(&net, args);
            assert_eq!(code, Some(status), "{args:?}: {printed}");
            assert!(printed.contains(part), "{args:?}: {printed}");
        }
        assert_works(&port, &tap, 0);
    });
}

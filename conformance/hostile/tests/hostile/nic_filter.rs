// SPDX-License-Identifier: BSD-2-Clause
//! Filters of interfaces as a program could send them itself: any instructions, of any length.

use conformance::home::summary;
use conformance::isolated_with_interfaces;
use conformance::net::{CABLE, DIRECT, Net, assert_same, assert_works, collect, empty, frame};
use conformance::packet::Rng;
use conformance::tool::done;
use conformance_hostile::raw::ControlConnection;
use unetmap_core::control::ControlRequest;
use unetmap_core::control::nic::{Filter, MAX_EXPRESSION, MAX_INSNS, NicAction, NicRequest};
use unetmap_core::control::wire;
use unetmap_sys::xdp::ClassicInsn;

/// The daemon validates instructions and lengths that a program sends itself, and the current filter stays.
#[test]
fn the_daemon_validates_filter_instructions() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = Net::new(home, DIRECT, CABLE) else { return };
        done(&net.near, &["va", "filter", "ether proto 0x88b5"]);
        let (port, tap) = (net.open("netmap:va"), net.tap());
        let ask = |bytes: &[u8]| {
            let raw =
                net.near.run(|| ControlConnection::connect(&home.socket())).expect("a namespace").expect("a daemon");
            raw.send(&wire::encode(NicRequest::KIND, 0, 0, 0, bytes)).expect("a daemon that listens");
            let reply = raw.receive().expect("an answer");
            (reply.errno, String::from_utf8_lossy(&reply.payload).into_owned())
        };
        let encode = |name: &str, program: Vec<ClassicInsn>| {
            let action = NicAction::Filter(Filter { expression: "anything".into(), program });
            NicRequest { interface: name.into(), action }.encode()
        };
        let insn = |code, jt, jf, k| ClassicInsn { code, jt, jf, k };
        let accept = insn(6, 0, 0, 65535);
        for (program, wanted) in [
            (vec![insn(0x05, 0, 0, 7), accept], "jumps out of the program"),
            (vec![insn(0x05, 0, 0, u32::MAX), accept], "jumps out of the program"),
            (vec![insn(0x20, 0, 0, 0xfff0_0000), accept], "reads data that only a socket filter has"),
            (vec![insn(0x02, 0, 0, 16), accept], "names a word of memory that does not exist"),
            (vec![insn(0x34, 0, 0, 0), accept], "divides by 0"),
            (vec![insn(0xffff, 0, 0, 0), accept], "is unknown"),
            (vec![insn(0x00, 0, 0, 0)], "is the last and does not return"),
        ] {
            let (errno, why) = ask(&encode("va", program));
            assert!(errno == 22 && why.contains(wanted), "{errno} {why}");
        }
        for (bytes, wanted) in [
            (encode("va", Vec::new()), 22),
            (encode("va", vec![accept; MAX_INSNS + 1]), if MAX_INSNS > 5000 { 90 } else { 22 }),
            (encode("", vec![accept]), 22),
            (encode("nope", vec![accept]), 6),
            (encode("va\0b", vec![accept]), 6),
            (Vec::new(), 22),
            (vec![0xff; 100], 22),
        ] {
            assert_eq!(ask(&bytes).0, wanted, "{:?}", ask(&bytes));
        }
        // The longest that is allowed, of each part.
        let longest = vec![insn(0x87, 0, 0, 0); MAX_INSNS - 1].into_iter().chain([accept]).collect();
        let action = NicAction::Filter(Filter { expression: "x".repeat(MAX_EXPRESSION), program: longest });
        let (errno, why) = ask(&NicRequest { interface: "va".into(), action }.encode());
        assert_eq!(errno, 0, "{why}");
        let reported = done(&net.near, &["va", "--json"]);
        let reported: serde_json::Value = serde_json::from_str(&reported).expect("JSON");
        assert_eq!(reported["filter"]["instructions"], MAX_INSNS);
        tap.send(&frame(60, 1));
        assert_same(&collect(&port, 1), &[frame(60, 1)]);
        done(&net.near, &["va", "filter", "ether proto 0x88b5"]);
        // Anything at all.
        let mut rng = Rng(0x5eed);
        let codes = [
            0x20, 0x28, 0x30, 0x40, 0xb1, 0, 1, 0x80, 0x60, 2, 4, 0x0c, 0x24, 0x34, 0x54, 0x05, 0x15, 0x2d, 6, 0x16, 7,
            0x87,
        ];
        let (mut taken, mut turned_away) = (0, 0);
        for _ in 0..200 {
            let n = 1 + rng.below(30);
            let program: Vec<ClassicInsn> = (0..n)
                .map(|_| {
                    let code = if rng.below(20) == 0 {
                        rng.next_u64() as u16
                    } else {
                        codes[rng.below(codes.len() as u64) as usize]
                    };
                    insn(
                        code,
                        rng.below(4) as u8,
                        rng.below(4) as u8,
                        if rng.below(4) == 0 { rng.next_u64() as u32 } else { rng.below(40) as u32 },
                    )
                })
                .chain([accept])
                .collect();
            match ask(&encode("va", program)) {
                (0, _) => taken += 1,
                (22, _) => turned_away += 1,
                other => panic!("{other:?}"),
            }
        }
        assert!(taken > 5 && turned_away > 5, "{taken} {turned_away}");
        net.assert_alive();
        done(&net.near, &["va", "filter", "ether proto 0x88b5"]);
        empty(&port);
        assert_works(&port, &tap, 1 << 20);
        assert!(net.pings());
        summary(&format!("programs of chance {}: {taken} taken, {turned_away} refused", taken + turned_away));
    });
}

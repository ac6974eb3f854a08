// SPDX-License-Identifier: BSD-2-Clause
use unetmap_sys::xdp::ClassicProgram;

use super::*;

#[test]
fn a_filter_is_compiled_for_ethernet() {
    let filter = compile("udp port 53").unwrap();
    assert_eq!(filter.expression, "udp port 53");
    // The first instruction that `tcpdump -d` prints.
    assert_eq!(filter.program[0], ClassicInsn { code: 0x28, jt: 0, jf: 0, k: 12 });
    assert!(filter.program.iter().any(|i| (i.code, i.k) == (0x15, 53)));
    // The second to last instruction accepts the frame.
    assert!(filter.program[filter.program.len() - 2].k > 0);
}

#[test]
fn compile_errors_have_a_position() {
    for (expression, wanted) in [
        ("udp andd port 53", "syntax error, at character 5: `andd`"),
        ("udp and and tcp", "syntax error, at character 9: `and`"),
        ("(udp or tcp", "syntax error, at its end, character 12"),
        ("udp and", "syntax error, at its end, character 8"),
        ("ip[", "syntax error, at its end, character 4"),
        ("udp)", "syntax error, at character 4: `)`"),
        ("port 53 udp", "syntax error, at character 9: `udp`"),
        ("ip[2:2 = 4", "syntax error, at character 8: `=`"),
        ("host 1.2.3.4.5", "at character 6: `1.2.3.4.5`"),
        ("udp port 70000", "at character 10: `70000`"),
        ("udp and port nosuchservice", "at character 14: `nosuchservice`"),
        ("ip6 and ip[0] = 1 and tcp[100000000000] = 1", "at character 27: `100000000000`"),
        ("", "no filter; give an expression"),
    ] {
        let why = compile(expression).unwrap_err();
        assert!(why.contains(wanted), "{expression}: {why}");
    }
    assert!(compile(&"x".repeat(MAX_EXPRESSION + 1)).unwrap_err().contains("longer than"));
}

fn accepts(expression: &str) -> impl Fn(&[u8]) -> bool {
    let program = ClassicProgram::new(&compile(expression).unwrap().program).unwrap();
    move |frame| program.accepts(frame)
}

/// An IPv4 or IPv6 frame of flow `i`, or its answer.
fn frame(i: u32, v6: bool, proto: u8, back: bool) -> Vec<u8> {
    let (src, dst) = (i.wrapping_mul(0x9e37_79b9), 0x0a00_0000 + i % 7);
    let ports = [1000 + (i % 60_000) as u16, 53];
    let (ends, ports) = if back { ([dst, src], [ports[1], ports[0]]) } else { ([src, dst], ports) };
    let mut frame = vec![i as u8; 12];
    if v6 {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 40, proto, 64]);
        ends.iter().for_each(|end| frame.extend([&[0x20; 12][..], &end.to_be_bytes()].concat()));
    } else {
        frame.extend([8, 0, 0x46, 0, 0, 80, 0, 0, 0x40, 0, 64, proto, 0, 0]);
        frame.extend(ends.iter().flat_map(|end| end.to_be_bytes()));
        frame.extend([0; 4]);
    }
    frame.extend(ports.iter().flat_map(|port| port.to_be_bytes()));
    frame.resize(94, 7);
    frame
}

#[test]
fn a_sample_of_flows_has_both_directions_of_one_of_n() {
    for v6 in [false, true] {
        for proto in [6, 17, 47] {
            let (sampled, all) = (accepts("sample-flows=10 ip or ip6"), accepts("sample-flows=1 ip or ip6"));
            let taken = (0..20_000).filter(|&i| {
                let (out, back) = (frame(i, v6, proto, false), frame(i, v6, proto, true));
                assert_eq!(sampled(&out), sampled(&back), "{i} {v6} {proto}");
                assert!(all(&out));
                sampled(&out)
            });
            let taken = taken.count();
            // Without ports, flows between equal addresses are one.
            assert!((1700..2300).contains(&taken), "{taken} of 20000, IPv6 {v6}, protocol {proto}");
        }
    }
    let sampled = accepts("sample-flows=3");
    // All fragments of a packet, whatever their bytes are.
    for i in 0..300 {
        let piece = |offset: u16, more: bool| {
            let mut frame = frame(i, false, 17, false);
            frame[20..22].copy_from_slice(&(offset | u16::from(more) << 13).to_be_bytes());
            frame[38..42].copy_from_slice(&[offset as u8; 4]);
            frame
        };
        let first = sampled(&piece(0, true));
        assert!([piece(10, true), piece(20, false)].iter().all(|piece| sampled(piece) == first), "{i}");
    }
    // Frames without IP, by their MAC addresses.
    let arp = |i: u8| [&[255; 6][..], &[2, 0, 0, 0, 0, i], &[8, 6], &[0; 46]].concat();
    let taken = (0..=255).filter(|&i| sampled(&arp(i))).count();
    assert!((50..120).contains(&taken), "{taken} of 256");
    assert!(!sampled(&[0; 13]), "cut");
}

#[test]
fn a_sample_of_frames_is_one_of_n_that_the_expression_accepts() {
    let (sampled, whole) = (accepts("sample=4 udp port 53"), accepts("sample=1 udp port 53"));
    let (udp, tcp) = (frame(1, false, 17, false), frame(1, false, 6, false));
    let taken = (0..40_000).filter(|_| sampled(&udp)).count();
    assert!((9_000..11_000).contains(&taken), "{taken} of 40000");
    assert!(whole(&udp) && !whole(&tcp) && !(0..1000).any(|_| sampled(&tcp)));
    for (expression, normal) in [
        ("sample=4   udp port 53", "sample=4 udp port 53"),
        ("sample-flows=9", "sample-flows=9"),
        (&words(Some(4), true, &["udp".into(), "port".into()]), "sample-flows=4 udp port"),
        (&words(Some(4), false, &[]), "sample=4"),
    ] {
        match compile(expression) {
            Ok(filter) => assert_eq!(filter.expression, normal),
            Err(why) => assert!(expression.ends_with("port"), "{why}"),
        }
    }
    for expression in ["sample=0 udp", "sample-flows=x", "sample=99999999999"] {
        assert!(compile(expression).unwrap_err().contains("from 1 to 4294967295"), "{expression}");
    }
}

/// A valid prefix is not reported, whatever follows it.
#[test]
fn the_position_is_never_before_the_error() {
    let valid = [
        "udp port 53",
        "src or dst net 10.0.0.0/8",
        "ether proto 0x88b5",
        "vlan 5 and ip",
        "tcp[tcpflags] & (tcp-syn|tcp-fin) != 0",
        "not (arp or icmp)",
        "net 192.0.2.0 mask 255.255.255.0",
        "portrange 1-1024",
        "len > 100",
        "ip6 proto 17",
        "ether host 02:00:00:00:00:01",
        "greater 100",
        "ip[0] & 0xf > 5",
        "icmp[icmptype] = icmp-echo",
        "ether[0] & 1 = 0 and ip[16] >= 224",
        "tcp dst port 80 or udp src port 53",
    ];
    for expression in valid {
        compile(expression).unwrap_or_else(|why| panic!("{expression}: {why}"));
        let wrong = format!("{expression} ]");
        let place = format!("at character {}: `]`", expression.len() + 2);
        let why = compile(&wrong).unwrap_err();
        assert!(why.contains(&place), "{wrong}: {why}");
    }
}

#[test]
fn the_state_is_formatted() {
    let open = r#"{"interface": "eth0", "index": 2, "up": true, "tx_queues": 1, "rx_queues": 1, "access": "direct",
        "port": {"kind": "direct", "manner": "native, copy", "mem_id": 1,
            "queues": [{"id": 0,
                "tx": {"slots": 512, "sessions": 1, "crossed": 7, "bad_slots": 0, "dropped": 0},
                "rx": {"slots": 1024, "sessions": 2, "crossed": 9, "bad_slots": 0, "dropped": 3}}],
            "sessions": [{"id": 4, "pid": 99, "uid": 0, "tx_rings": 1, "rx_rings": 1, "exclusive": false}]},
        "filter": {"expression": "udp\u001b", "instructions": 6, "uid": 0, "in_force": true}}"#;
    assert_eq!(
        state_text(open).unwrap(),
        "\
eth0: open, direct: native, copy; region 1
filter: udp\\u001b (6 instructions, set by user 0, active)

Queues
queue  tx slots  sessions  sent  refused  rx slots  sessions  received  bad slots  dropped
    0       512         1     7        0      1024         2         9          0        3

Sessions
session  pid  uid  tx rings  rx rings  exclusive
      4   99    0         1         1         no
"
    );
    let closed = r#"{"interface": "eth0", "index": 2, "up": true, "tx_queues": 4, "rx_queues": 2, "access": "mediated",
        "port": null, "filter": null, "header": 12}"#;
    let text = "eth0: not open; queues: 4 tx, 2 rx; your access: mediated\nfilter: none\nheader: each packet begins \
                with a virtio-net header of 12 bytes\n";
    assert_eq!(state_text(closed).unwrap(), text);
    assert!(state_text("{").unwrap_err().contains("not valid JSON"));
}

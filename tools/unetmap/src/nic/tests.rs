// SPDX-License-Identifier: BSD-2-Clause
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
filter: udp? (6 instructions, set by user 0, active)

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

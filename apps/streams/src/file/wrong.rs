// SPDX-License-Identifier: BSD-2-Clause
//! Wrong and odd files: each is refused with the line, the key, what is wrong, and what would be right.

use super::*;
use crate::DEFAULT_LINK;

/// After `[[stream]]` and a rate, in lines 1 and 2.
const LINE_3: [(&str, &[&str]); 62] = [
    ("colour = 1", &["line 3", "unknown field `colour`", "`rate`", "pkt-gen(8)"]),
    ("rate = 5", &["line 3", "duplicate key"]),
    ("name = 5", &["line 3: name: `5`", "printable"]),
    ("name = \"\"", &["line 3: name: ``", "1 to 64"]),
    ("name = \"a\\nb\"", &["name: `a\\nb`", "printable"]),
    ("size = 0", &["line 3: stream stream1: size: `0`", "60-1514"]),
    ("size = 20", &["size: packets of 20 bytes are too short", "need 60"]),
    ("size = -1", &["size: `-1`", "60-1514"]),
    ("size = 70000", &["size: `70000`"]),
    ("size = 60.5", &["size: `60.5`"]),
    ("size = \"100-60\"", &["size: `100-60`"]),
    ("size = \"0-60\"", &["size: `0-60`"]),
    ("size = \"big\"", &["size: `big`", "imix"]),
    ("size = [60, 70]", &["size: `a list`"]),
    ("size = 99999999999999999999", &["line 3", "99999999999999999999"]),
    ("count = -1", &["count: `-1`", "at least 1", "no limit"]),
    ("count = 0", &["count: `0`", "no limit"]),
    ("count = \"5\"", &["count: `5` is not a number"]),
    ("count = 1.5", &["count: `1.5`"]),
    ("seed = -1", &["seed: `-1`"]),
    ("start = 5", &["start: `5` is not a time", "10ms"]),
    ("start = \"1e30s\"", &["start: `1e30s`"]),
    ("start = \"5\"", &["start: `5`"]),
    ("start = \"2s\"\nstop = \"1s\"", &["line 4", "stop: `1s` is not after the start"]),
    ("stop = \"0s\"", &["stop: `0s`"]),
    ("shape = \"square\"", &["shape: there is no `square`", "poisson", "on-off"]),
    ("shape = 5", &["shape: it has one form"]),
    ("shape = { burst = 0 }", &["shape: burst: `0`", "at least 1"]),
    ("shape = { burst = 4294967296 }", &["burst: `4294967296`"]),
    ("shape = { burst = 1, ramp = {} }", &["one form"]),
    ("shape = { onoff = { on = \"1s\" } }", &["no `onoff`", "on-off"]),
    ("shape = { ramp = { from = 1 } }", &["ramp: it is a table of from and over"]),
    ("shape = { ramp = { from = \"1Gbps\", over = \"1s\" } }", &["ramp.from", "another unit"]),
    ("shape = { ramp = { from = 1, over = \"0s\" } }", &["ramp.over: `0s` is not above 0"]),
    ("shape = { on-off = { on = \"0s\", off = \"1s\" } }", &["on-off.on: `0s`"]),
    ("shape = { on-off = { on = \"1s\", off = 3 } }", &["on-off.off: `3` is not a time"]),
    ("layers = \"udp\"", &["layers: it is a list of headers", "ether = {}"]),
    ("layers = []", &["layers: it is a list"]),
    ("layers = [1]", &["layers: a layer is a table"]),
    ("layers = [{}]", &["one name"]),
    ("layers = [{ ether = {}, ip = {} }]", &["one name"]),
    ("layers = [{ ip = {} }]", &["layers: the first one is ether"]),
    ("layers = [{ ether = {} }, { arp = {} }]", &["no layer arp", "vxlan"]),
    ("layers = [{ ether = {} }, { udp = {} }]", &["udp cannot follow ether", "can: vlan qinq mpls ip ipv6"]),
    ("layers = [{ ether = {} }, { ip = {} }, { tcp = {} }, { udp = {} }]", &["cannot follow tcp", "nothing can"]),
    ("layers = [{ ether = 3 }]", &["fields are a table"]),
    ("layers = [{ ether = { ttl = 1 } }]", &["ether has no field ttl", "dst src type"]),
    ("layers = [{ ether = { dst = \"02:00\" } }]", &["ether.dst: 02:00", "02:00:00:00:00:01"]),
    ("layers = [{ ether = {} }, { vlan = { vlan = 4096 } }]", &["vlan.vlan: 4096", "12 bits (0 to 4095)"]),
    ("layers = [{ ether = {} }, { ip = { chksum = 5 } }]", &["no field chksum"]),
    ("layers = [{ ether = {} }, { ip = { ttl = 256 } }]", &["ip.ttl: 256", "0 to 255"]),
    ("layers = [{ ether = {} }, { ip = { ttl = 1.5 } }]", &["ip.ttl: 1.5"]),
    ("layers = [{ ether = {} }, { ip = { ttl = [1, 300] } }]", &["ip.ttl: 300"]),
    ("layers = [{ ether = {} }, { ip = { ttl = { from = 9, to = 3 } } }]", &["before it begins"]),
    ("layers = [{ ether = {} }, { ip = { ttl = { step = 0 } } }]", &["step is a number above 0"]),
    ("layers = [{ ether = {} }, { ip = { dst = \"fd00::1\" } }]", &["ip.dst: fd00::1", "10.0.0.1"]),
    ("layers = [{ ether = {} }, { ip = { ttl = 1979-05-27 } }]", &["ip.ttl: 1979-05-27"]),
    ("packet = 2", &["line 3", "packet: ", "give pcap"]),
    ("pcap = \"x\"\npacket = 0", &["line 4", "packet: `0`", "from 1"]),
    ("pcap = 7", &["pcap: `7` is not the path"]),
    ("pcap = \"x\"", &["line 3: stream stream1: pcap: no capture"]),
    ("\n[[stream]]\nname = \"stream1\"\nrate = 1", &["line 4", "another stream is named `stream1`"]),
];

/// Whole files.
const FILES: [(&str, &[&str]); 23] = [
    ("", &["0 streams; 1 to 256", "[[stream]]"]),
    ("stream = []", &["0 streams"]),
    ("hello", &["line 1", "pkt-gen(8)"]),
    ("[[stream]\nrate = 1", &["line 1", "unclosed"]),
    ("[stream]\nrate = 1", &["line 1", "pkt-gen(8)"]),
    ("[[streams]]\nrate = 1", &["line 1", "unknown field `streams`"]),
    ("link = 5\n[[stream]]\nrate = 1", &["line 1: link: `5`", "10G"]),
    ("\nlink = \"fast\"\n[[stream]]\nrate = 5", &["line 2: link: `fast` is not a link's speed"]),
    ("[[stream]]\nsize = 60", &["line 1: stream stream1: it has no rate", "100kpps"]),
    ("\n[[stream]]\nname = \"a\"", &["line 2: stream a: it has no rate"]),
    ("[[stream]]\nrate = 0", &["line 2: stream stream1: rate: `0` is not a rate above 0", "100kpps"]),
    ("[[stream]]\nrate = -5", &["rate: `-5`"]),
    ("[[stream]]\nrate = true", &["rate: `true`"]),
    ("[[stream]]\nrate = nan", &["rate: `NaN`"]),
    ("[[stream]]\nrate = 1e300", &["rate: `1e300`"]),
    ("[[stream]]\nrate = 1e-9", &["rate: `1e-9`"]),
    ("[[stream]]\nrate = [1]", &["rate: `a list`"]),
    ("[[stream]]\nrate = \"999999Gpps\"", &["rate: `999999Gpps`"]),
    ("[[stream]]\nrate = \"200%\"", &["rate: `200%`"]),
    ("[[stream]]\nrate = \"100M\"", &["rate: `100M`", "100Mpps", "100Mbit"]),
    ("[[stream]]\nrate = \"1Tbps\"", &["rate: `1Tbps`", "prefixes are k, M and G"]),
    ("[[stream]]\nrate = 1\n[[stream]]\nrate = \"5x\"", &["line 4: stream stream2: rate: `5x`"]),
    ("[[stream]]\nname = \"\\q\"", &["line 2"]),
];

fn refused(text: &str, parts: &[&str]) {
    let load = |_: &Path, _: usize| Err("no capture".to_owned());
    let message = parse_file(text, DEFAULT_LINK, &load).expect_err(text);
    for part in parts {
        assert!(message.contains(part), "{text}: {part}: {message}");
    }
    assert!(message.contains("line ") || message.contains("1 to 256"), "{text}: {message}");
}

#[test]
fn wrong_files_are_refused_with_the_line_and_what_is_right() {
    LINE_3.iter().for_each(|(line, parts)| refused(&format!("[[stream]]\nrate = \"1kpps\"\n{line}"), parts));
    FILES.iter().for_each(|(text, parts)| refused(text, parts));
    refused(&"[[stream]]\nrate = 1\n".repeat(257), &["257 streams; 1 to 256"]);
}

#[test]
fn a_capture_without_the_layers_is_refused() {
    let captured = [&[0; 12][..], &[8, 0, 0x45], &[0; 100]].concat();
    let load = |_: &Path, _: usize| Ok(captured.clone());
    for (changes, part) in [
        ("layers = [{ ipv6 = {} }]", "no such layer ipv6 in this order; it has: ether ip"),
        ("layers = [{ ip = {} }, { ether = {} }]", "no such layer ether"),
        ("size = 30", "size: packets of 30 bytes are too short"),
    ] {
        let message = parse_file(&format!("[[stream]]\nrate = 1\npcap = \"x\"\n{changes}"), DEFAULT_LINK, &load);
        let message = message.expect_err(changes);
        assert!(message.contains(part) && message.contains("line 4"), "{changes}: {message}");
    }
}

#[test]
fn odd_files_have_a_meaning() {
    let parse =
        |text: &str| parse_file(text, DEFAULT_LINK, &|_, _| Err("no capture".into())).map_err(|e| panic!("{e}"));
    for text in [
        "[[stream]]\nrate = 1e6",
        "[[stream]]\nrate = \"0.001\"",
        "[[stream]]\nrate = 1\nshape = \"constant\"",
        "[[stream]]\nrate = \"1Gbps\"\nshape = { ramp = { from = 0, over = \"1s\" } }",
        "[[stream]]\nrate = 1\nsize = 65535",
        "stream = [{ rate = 1, name = \"\u{e9}\" }]",
    ] {
        assert_eq!(parse(text).map(|streams| streams.len()), Ok(1), "{text}");
    }
}

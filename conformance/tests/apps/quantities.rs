// SPDX-License-Identifier: BSD-2-Clause
//! Each option that takes a quantity accepts all spellings of its kind in the table of unetmap(7), and refuses other
//! texts.
//!
//! The programs run: after the quantities were read, each command fails for a reason of its own, which shows that it
//! came that far.

use std::path::Path;
use std::process::Command;

use conformance::{Home, isolated, program};

/// A command with `{}` for the quantity, what it prints when the quantity was accepted, and the allowed values.
type Case = (&'static str, &'static str, std::ops::RangeInclusive<f64>);

const ANY: std::ops::RangeInclusive<f64> = 0.0..=1e15;
const MIB: f64 = 1_048_576.0;

const PACKETS: &[Case] = &[
    ("pkt-gen -i p --wall-clock -R {}", "clock of streams", ANY),
    ("unetmap replay /no/file netmap:p --rate {}", "/no/file", ANY),
    ("unetmap vale port vale0:a storm {}", "no unetmapd answers", ANY),
];
const BITS: &[Case] = &[
    ("unetmap emulate a a --rate {}", "two different ports", ANY),
    ("pkt-gen -i p --wall-clock --link {}", "clock of streams", ANY),
];
const TIMES: &[Case] = &[
    ("pkt-gen -i p --wall-clock -w {}", "clock of streams", ANY),
    ("pkt-gen -i p --wall-clock -T {}", "clock of streams", ANY),
    ("bridge -i a -i b -i c -w {}", "at most two ports", ANY),
    ("lb -i a{ -w {}", "name of a pipe is missing", ANY),
    ("lb -i a{ -s {}", "name of a pipe is missing", ANY),
    ("lb -i a{ -o {}", "name of a pipe is missing", ANY),
    ("unetmap-fw a a -w {}", "two different ports", ANY),
    ("unetmap emulate a a -w {}", "two different ports", ANY),
    ("unetmap emulate a a --delay {}", "two different ports", ANY),
    ("unetmap emulate a a --delay 1ms..{}", "two different ports", ANY),
    ("unetmap flows p --idle {}", "say where the records go", 0.001..=4096.0),
    ("unetmap flows p --active {}", "say where the records go", 0.001..=86_400.0),
    ("unetmap top -i {} -n x", "invalid value 'x'", 0.05..=3600.0),
    ("unetmap vale show vale0 -i {}", "No daemon is running", 0.05..=3600.0),
    ("unetmap vale set vale0 age {}", "no unetmapd answers", 1.0..=1e6),
    ("unetmap capture netmap:p -w x.pcap --duration {}", "no unetmapd answers", ANY),
    ("unetmap capture netmap:p -w x.pcap --file-seconds {}", "no unetmapd answers", ANY),
    ("unetmap bench pipe --steady --seconds {}", "cannot be used with", 1.0..=86_400.0),
    ("unetmapd --config /no/file --idle-exit {}", "/no/file", ANY),
    ("pkt-gen -i p --stream rate=1pps,stop=1ns,start={}", "not after the start", ANY),
    ("pkt-gen -i netmap:p{1 --receive=q --rfc2544=sizes=5,trial={}", "too short", ANY),
    ("pkt-gen -i netmap:p{1 --receive=q --rfc2544=sizes=5,settle={}", "too short", ANY),
];
const SIZES: &[Case] = &[
    ("pkt-gen -i p --wall-clock -l {}", "clock of streams", 1.0..=65_535.0),
    ("pkt-gen -i p --wall-clock -M {}", "clock of streams", 1.0..=65_535.0),
    ("pkt-gen -i p --stream rate=1pps,vlan=5000,size={}", "12 bits", 60.0..=65_535.0),
    ("unetmap capture netmap:p -w x.pcap -s {}", "no unetmapd answers", 1.0..=262_144.0),
    ("unetmap capture netmap:p -w x.pcap --file-size {}", "no unetmapd answers", ANY),
    ("unetmap emulate a a --rate 1M --burst {}", "two different ports", ANY),
    ("unetmap emulate a a --memory {}", "two different ports", MIB..=1e10),
    ("unetmap-fw a a --memory {}", "two different ports", MIB..=1e10),
    ("unetmap-fw a a --log f --log-size {}", "two different ports", MIB..=1e10),
    ("unetmap vm args qemu --socket /s --memory {}", "size=512M", 5e8..=1e9),
    ("unetmap set buf_size {}", "no unetmapd answers", ANY),
    ("unetmapd --config /no/file --buf-size {}", "/no/file", ANY),
    ("unetmapd --config /no/file --ring-size {}", "/no/file", ANY),
    ("unetmapd --config /no/file --if-size {}", "/no/file", ANY),
];
const SHARES: &[Case] = &[
    ("unetmap emulate a a --loss {}", "two different ports", ANY),
    ("unetmap emulate a a --loss ber:{}", "two different ports", ANY),
    ("unetmap emulate a a --loss ge:{},20%", "two different ports", ANY),
    ("unetmap emulate a a --delay 1ms --reorder {}", "two different ports", ANY),
    ("unetmap emulate a a --duplicate {}", "two different ports", ANY),
    ("unetmap emulate a a --corrupt {}", "two different ports", ANY),
];
const COUNTS: &[Case] = &[
    ("pkt-gen -i p --wall-clock -n {}", "clock of streams", ANY),
    ("pkt-gen -i p --wall-clock -b {}", "clock of streams", 1.0..=65_536.0),
    ("pkt-gen -i p --stream rate=1pps,size=7,count={}", "too short", ANY),
    ("pkt-gen -i p --stream rate=1pps,size=7,burst={}", "too short", ANY),
    ("bridge -i a -i b -i c -b {}", "at most two ports", ANY),
    ("lb -i a{ -b {}", "name of a pipe is missing", ANY),
    ("lb -i a{ -B {}", "name of a pipe is missing", ANY),
    ("unetmap-fw a a -b {}", "two different ports", ANY),
    ("unetmap-fw a a --states {}", "two different ports", ANY),
    ("unetmap flows p --sample {}", "say where the records go", 1.0..=4_294_967_295.0),
    ("unetmap flows p --flows {}", "say where the records go", 1.0..=268_435_456.0),
    ("unetmap capture netmap:p -w x.pcap -c {}", "no unetmapd answers", ANY),
    ("unetmap set buf_num {}", "no unetmapd answers", ANY),
    ("unetmapd --config /no/file --buf-num {}", "/no/file", ANY),
];
/// Options of packets or bits: spellings with units only.
const RATES: &[Case] = &[
    ("unetmap vale port vale0:a rate in {}", "no unetmapd answers", ANY),
    ("pkt-gen -i p --stream size=7,rate={}", "too short", ANY),
];
/// Commands of a firewall, which has passed them when it finds no daemon.
const RULES: [(&str, &str); 8] = [
    ("bits per second", "pipe 1 config bw {}"),
    ("time", "pipe 1 config delay {}"),
    ("time", "pipe 1 config codel target {} interval {}"),
    ("time", "sched 1 config type fq_pie target {} tupdate {}"),
    ("share", "pipe 1 config plr {}"),
    ("share", "pipe 1 config corrupt {}"),
    ("share", "add prob {} allow ip from any to any"),
    ("size", "pipe 1 config burst {}"),
];
const ALL: [(&str, &[Case]); 6] = [
    ("packets per second", PACKETS),
    ("bits per second", BITS),
    ("time", TIMES),
    ("size", SIZES),
    ("share", SHARES),
    ("count", COUNTS),
];

/// Returns the spellings of a kind in the table of unetmap(7), with their values.
fn spellings(kind: &str) -> Vec<(String, f64)> {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../man/unetmap.7")).expect("the man page");
    let section = page.split(".SH QUANTITIES\n").nth(1).expect("the section");
    let lines = section.lines().skip_while(|line| *line != ".nf").take_while(|line| *line != ".fi");
    let rows = lines.filter_map(|line| line.trim().strip_prefix(kind).map(|rest| rest.replace("\\-", "-")));
    let all: Vec<(String, f64)> = rows
        .flat_map(|row| {
            let (texts, value) = row.trim().rsplit_once(' ').expect("a value");
            let value = value.parse().expect("a number");
            texts.split_whitespace().map(|text| (text.to_owned(), value)).collect::<Vec<_>>()
        })
        .collect();
    assert!(all.len() >= 5, "{kind}: {all:?}");
    all
}

/// Runs a program where no daemon can be; returns its status and what it printed.
fn run(home: &Home, line: &str, quantity: &str) -> (i32, String) {
    let mut words = line.split_whitespace().map(|word| word.replace("{}", quantity));
    let mut command = Command::new(program(&words.next().expect("a program")));
    command.args(words).env("UNETMAP_SOCKET", home.folder().join("no/such/socket")).current_dir(home.folder());
    let output = command.output().expect("it runs");
    let printed = [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("text")).concat();
    (output.status.code().expect("an exit"), printed)
}

fn write_rules(folder: &Path, rule: &str, quantity: &str) {
    std::fs::write(folder.join("rules"), rule.replace("{}", quantity)).expect("a file");
}

#[test]
fn every_option_accepts_every_spelling_of_its_kind() {
    isolated(|home| {
        for (kind, cases) in ALL {
            let spellings = spellings(kind);
            for (line, mark, range) in cases {
                for (text, _) in spellings.iter().filter(|(_, value)| range.contains(value)) {
                    let (status, printed) = run(home, line, text);
                    assert!(printed.contains(mark), "{line}, {text}: {status}, {printed}");
                }
            }
        }
        let units = spellings("packets per second").into_iter().chain(spellings("bits per second"));
        for (text, _) in units.filter(|(text, _)| text.ends_with(['s', 't'])) {
            for (line, mark, _) in RATES {
                let (status, printed) = run(home, line, &text);
                assert!(printed.contains(mark), "{line}, {text}: {status}, {printed}");
            }
        }
    });
}

#[test]
fn rules_of_the_firewall_accept_every_spelling() {
    isolated(|home| {
        for (kind, rule) in RULES {
            for (text, _) in spellings(kind) {
                write_rules(home.folder(), rule, &text);
                let (status, printed) = run(home, "unetmap-fw a b --rules rules", "");
                assert!(printed.contains("no unetmapd answers"), "{rule}, {text}: {status}, {printed}");
            }
        }
        for (rule, text) in [
            ("pipe 1 config bw {}", "100MBit/s"),
            ("pipe 1 config bw {}", "500KByte/s"),
            ("pipe 1 config bw {}", "500KBytes"),
            ("pipe 1 config bw {}", "0"),
            ("pipe 1 config delay {}", "10"),
            ("pipe 1 config queue {}", "50KBytes"),
            ("pipe 1 config queue {}", "50"),
        ] {
            write_rules(home.folder(), rule, text);
            let (status, printed) = run(home, "unetmap-fw a b --rules rules", "");
            assert!(printed.contains("no unetmapd answers"), "{rule}, {text}: {status}, {printed}");
        }
    });
}

#[test]
fn what_is_no_quantity_is_refused_with_the_option_and_the_value() {
    isolated(|home| {
        let wrong = ["-1", "-5k", "NaN", "inf", "1furlong", "1.2.3", "1e99", "99999999999999999999999", "k"];
        for (line, mark, _) in ALL.iter().flat_map(|(_, cases)| *cases).chain(RATES) {
            let option =
                line.split_whitespace().zip(line.split_whitespace().skip(1)).find(|(_, value)| value.contains("{}"));
            let (option, _) = option.expect("an option");
            for text in wrong {
                let (status, printed) = run(home, line, text);
                assert!((1..=2).contains(&status) && !printed.contains(mark), "{line}, {text}: {status}, {printed}");
                assert!(!printed.contains("panicked"), "{line}, {text}: {printed}");
                // A positional argument that begins with a dash is taken for an option.
                if option.starts_with('-') || !text.starts_with('-') {
                    assert!(printed.contains(text) && printed.contains("give "), "{line}, {text}: {printed}");
                }
            }
        }
        for (_, rule) in RULES {
            for text in wrong {
                write_rules(home.folder(), rule, text);
                let (status, printed) = run(home, "unetmap-fw a b --rules rules", "");
                let named = printed.contains("line 1, column") && printed.contains(&format!("`{text}`: give "));
                assert!(status == 1 && named, "{rule}, {text}: {status}, {printed}");
            }
        }
    });
}

#[test]
fn an_ambiguous_number_is_refused_with_the_alternatives() {
    isolated(|home| {
        for (line, text, alternatives) in [
            ("unetmap vale port vale0:a rate in {}", "100M", ["100Mpps", "100Mbit"]),
            ("pkt-gen -i p --stream rate={}", "100M", ["100Mpps", "100Mbit"]),
            ("unetmap emulate a b --delay {}", "10", ["10ms", "10s"]),
            ("unetmap emulate a b --loss {}", "5", ["5%", "0 to 1"]),
            ("unetmap emulate a b --queue {}", "10k", ["10kB", "packets"]),
            ("pkt-gen -i p --stream rate=1pps,start={}", "10", ["10ms", "10s"]),
            ("pkt-gen -i p -R {}", "100Mbit", ["packets per second", "10kpps"]),
            ("unetmap scrub a b --attack {}", "5Mbit", ["packets per second", "10kpps"]),
            ("unetmap emulate a b --rate {}", "10kpps", ["bits per second", "100Mbit"]),
        ] {
            let (status, printed) = run(home, line, text);
            let named = alternatives.iter().all(|text| printed.contains(text));
            assert!((1..=2).contains(&status) && named, "{line}, {text}: {status}, {printed}");
        }
    });
}

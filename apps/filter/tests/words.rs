// SPDX-License-Identifier: BSD-2-Clause
//! Scripts that were written for ipfw: its abbreviations, and words that mean something to a host.

use std::net::IpAddr;
use std::sync::Mutex;

use unetmap_filter::{Change, Config, Direction, Effect, Engine, Headers, Now, Verdict, tcp};

mod segments;
use segments::{ENDS, Ends, Segment, frame};

fn new() -> Config {
    Config::new(["p}1", "eth0"], 1, false)
}

fn apply(config: &Config, script: &str) -> (Config, String) {
    config.apply(script).unwrap_or_else(|e| panic!("{e}\n{script}"))
}

/// Evaluates a frame, and makes the changes in it.
fn pass(config: &Config, frame: &mut [u8]) -> Verdict {
    let headers = Headers::parse(&frame[..frame.len().min(128)], frame.len()).expect("a valid frame");
    let (mut changes, len) = (Vec::new(), frame.len() as u64);
    let set = config.compile();
    let verdict = Engine::new(0, 16, 1).evaluate(&set, &headers, Direction::Out, len, Now::default(), |effect| {
        if let Effect::Change(change) = effect {
            changes.push(change);
        }
    });
    for change in changes {
        let _: bool = Change::write(change, &headers, frame);
    }
    verdict
}

#[test]
fn a_script_of_ipfw_runs_as_it_is() {
    let script = "ipfw -q -f flush\n/sbin/ipfw -f pipe flush\nipfw -q -f queue flush\n\
                  ipfw -q pipe 1 config bandwidth 10Mbit/s delay 5 noerror\nipfw enable one_pass\nipfw ena firewall\n\
                  ipfw ad 00100 pass all from any to any via eth0\n/sbin/ipfw -q add 200 drop ip from any to any\n\
                  ipfw add 300 allow tcp from any to any estab // the rest\n\
                  add 400 accept log logamount 100 { udp or tcp } from any to any dst-port 53,80 in keep-state\n\
                  add 500 unreach port udp from any to any src-port 1024-65535 bridged not fragment\n\
                  add 600 permit ip6 from any to any dst-ipv6 2001:db8::/32 icmp6types 128\n\
                  ipfw del 200\nipfw pi 1 conf bw 1Mbit/s\nipfw -a l 100\nipfw pri 300-600\nipfw sh 100\nipfw z 100\nipfw res";
    let (config, output) = apply(&new(), script);
    assert_eq!(
        output,
        "00100 allow ip from any to any via eth0\n\
         00300 allow tcp from any to any established // the rest\n\
         00400 allow log logamount 100 { udp or tcp } from any to any dst-port 53,80 in keep-state :default\n\
         00500 unreach port udp from any to any src-port 1024-65535 layer2 not frag\n\
         00600 allow ip6 from any to any dst-ip6 2001:db8::/32 icmp6types 128\n\
         00100 0 0 allow ip from any to any via eth0\n\
         00300 allow tcp from any to any established // the rest\n\
         00400 allow log logamount 100 { udp or tcp } from any to any dst-port 53,80 in keep-state :default\n\
         00500 unreach port udp from any to any src-port 1024-65535 layer2 not frag\n\
         00600 allow ip6 from any to any dst-ip6 2001:db8::/32 icmp6types 128\n\
         00100 0 0 allow ip from any to any via eth0\nEntry 100 cleared.\nLogging counts reset.\n"
    );
    assert!(apply(&config, "pipe show").1.starts_with("00001:   1.000 Mbit/s"));
    let (config, shown) = apply(&config, "flowset 3 config pipe 1\nqueue show\nsched flush\npipe show\nqueue show");
    assert!(shown.starts_with("q00003 ") && shown.lines().count() == 1, "{shown}");
    assert!(config.compile().plan().is_empty());
}

#[test]
fn the_beginning_of_a_command_stands_for_it_if_it_is_of_no_other() {
    for (begin, full) in
        [("a 5 allow ip from any to any", "add 5 allow ip from any to any"), ("l", "list"), ("li", "list")]
    {
        assert_eq!(apply(&new(), begin).1, apply(&new(), full).1);
    }
    for begin in ["s", "d", "fl", "p", ""] {
        let error = new().apply(&format!("{begin} x")).unwrap_err();
        assert!(error.message.contains("is no command"), "{begin}: {error}");
    }
}

#[test]
fn a_table_may_be_used_before_it_is_created() {
    let script = "add 10 deny ip from table(1) to any\nadd 20 allow ip from any to table(good)\ntable 1 add 10.0.0.1/32\n\
                  table other add 10.0.0.0/8 5\ntable good create type addr\ntable good add 10.0.0.2\ntable all list";
    let (config, output) = apply(&new(), script);
    assert_eq!(
        output,
        "00010 deny ip from table(1) to any\n00020 allow ip from any to table(good)\ntable other created\n\
         --- table(1), set(0) ---\n10.0.0.1/32 0\n--- table(good), set(0) ---\n10.0.0.2/32 0\n\
         --- table(other), set(0) ---\n10.0.0.0/8 5\n"
    );
    let other = Ends { client: (0x0a00_0003, 1), ..ENDS };
    for (ends, verdict) in [(ENDS, Verdict::Deny), (other, Verdict::Accept)] {
        assert_eq!(pass(&config, &mut frame(ends, true, &Segment::default())), verdict);
    }
    // Once each, and not again.
    let (config, _) = apply(&config, "table 1 create missing");
    for (script, part) in [("table good create", "exists"), ("table 1 create", "exists"), ("table x list", "no table")]
    {
        assert!(config.apply(script).unwrap_err().message.contains(part), "{script}");
    }
    let (_, list) = apply(&config, "table good create missing\ntable 1 create or-flush\ntable good list\ntable 1 list");
    assert_eq!(list, "--- table(good), set(0) ---\n10.0.0.2/32 0\n--- table(1), set(0) ---\n");
    // As in ipfw, -q is for scripts that add and delete what is there or not.
    assert!(config.apply("table good delete 10.9.9.9").is_err());
    let (config, list) = apply(&config, "-q table good delete 10.9.9.9\ntable all flush\ntable all list");
    assert!(!list.contains('/'), "{list}");
    let (_, list) = apply(&config, "delete 10 20\ntable all destroy\ntable all list");
    assert_eq!(list, "");
    let many: String = (0..128).map(|i| format!("table {i} create\n")).collect();
    assert!(new().apply(&format!("{many}table 128 add 10.0.0.1")).unwrap_err().message.contains("128 tables"));
}

static ADDRESSES: Mutex<Vec<IpAddr>> = Mutex::new(Vec::new());

#[test]
fn me_is_each_address_of_the_host_as_it_changes() {
    let set = |addresses: &[&str]| {
        *ADDRESSES.lock().unwrap() = addresses.iter().map(|address| address.parse().unwrap()).collect();
    };
    set(&["10.0.0.2", "2001:db8::2"]);
    let config = new().with_own_addresses(Some(|| ADDRESSES.lock().unwrap().clone()));
    let script = "table t add 10.0.0.1 40\nadd 10 skipto tablearg ip from table(t) to me\nadd 20 allow ip6 from any to me\n\
                  add 30 deny ip from any to any\nadd 40 allow ip from any to any\ntable all list";
    let (config, output) = apply(&config, script);
    assert!(output.contains("00010 skipto tablearg ip from table(t) to me\n"), "{output}");
    assert!(output.ends_with("--- table(t), set(0) ---\n10.0.0.1/32 40\n"), "{output}");
    let v6 = |last: u128| Ends {
        client: (0x2001_0db8 << 96 | 1, 1),
        server: (0x2001_0db8 << 96 | last, 2),
        v6: true,
        ..ENDS
    };
    let away = Ends { server: (0x0a00_0003, 80), ..ENDS };
    let verdict = |config: &Config, ends| pass(config, &mut frame(ends, true, &Segment::default()));
    let verdicts = |config: &Config| [ENDS, away, v6(2), v6(3)].map(|ends| verdict(config, ends) == Verdict::Accept);
    assert_eq!(verdicts(&config), [true, false, true, false]);
    assert!(config.refresh().is_none());
    set(&["10.0.0.3"]);
    let changed = config.refresh().expect("other addresses");
    assert!(config.is_changed_by(&changed) && changed.refresh().is_none());
    assert_eq!(verdicts(&changed), [false, true, false, false]);
    let (only_v6, _) = apply(&changed, "flush\nadd allow ip from any to me6\nadd allow ip from any to any dst-ip6 me6");
    set(&["10.0.0.2", "2001:db8::3"]);
    assert_eq!(verdicts(&only_v6.refresh().unwrap()), [false, false, false, true]);
    let (replaced, _) = config.replace("add allow ip from any to not me").unwrap();
    assert_eq!(verdicts(&replaced), [false, true, true, false]);
}

/// A segment with these options.
fn segment(flags: u8, options: &[u8]) -> Segment {
    Segment { seq: 7, ack: 9, flags, window: 1000, options: options.to_vec(), data: vec![1, 2, 3] }
}

#[test]
fn tcp_setmss_lowers_the_size_that_a_syn_names() {
    let (config, echo) = apply(&new(), "add 10 tcp-setmss 1300 tcp from any to any\nadd 20 allow ip from any to any");
    assert_eq!(echo.lines().next(), Some("00010 tcp-setmss 1300 tcp from any to any"));
    assert!(apply(&config, "graph").1.contains("---> MSS at most 1300, next"));
    let v6 = Ends { client: (1 << 100 | 1, 4000), server: (1 << 100 | 2, 80), v6: true, tags: &[0x81, 0, 0, 5] };
    let syn_ack = tcp::SYN | tcp::ACK;
    for ends in [ENDS, v6] {
        for (flags, before, after) in [
            (tcp::SYN, &[2, 4, 5, 180, 4, 2, 1, 1][..], &[2, 4, 5, 20, 4, 2, 1, 1][..]),
            // At an odd place.
            (syn_ack, &[1, 2, 4, 0xff, 0xff, 1, 1, 0], &[1, 2, 4, 5, 20, 1, 1, 0]),
            (tcp::SYN, &[2, 4, 2, 24], &[2, 4, 2, 24]),
            (tcp::SYN, &[2, 4, 5, 20], &[2, 4, 5, 20]),
            (tcp::ACK, &[2, 4, 5, 180], &[2, 4, 5, 180]),
            (tcp::SYN, &[], &[]),
            // Of another length, and one that is cut.
            (tcp::SYN, &[2, 3, 5, 1], &[2, 3, 5, 1]),
            (tcp::SYN, &[1, 1, 2, 4], &[1, 1, 2, 4]),
        ] {
            let mut bytes = frame(ends, true, &segment(flags, before));
            assert_eq!(pass(&config, &mut bytes), Verdict::Accept);
            // Checksums are right.
            assert_eq!(segments::parse(ends, true, &bytes), segment(flags, after), "{before:?}");
        }
    }
}

/// Writes the checksum of the IPv4 header of a frame without tags.
fn complete(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let sum: u32 = frame[14..34].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    frame[24..26].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
}

#[test]
fn setdscp_sets_the_field_and_leaves_ecn() {
    let script = "table t add 10.0.0.1 10\nadd 10 setdscp ef tcp from any to any 80\n\
                  add 20 count ip from any to any dscp ef iptos lowdelay\nadd 30 setdscp tablearg ip from table(t) to any 81\n\
                  add 40 count ip from any to any dscp 10\nadd 50 allow ip from any to any";
    let (config, echo) = apply(&new(), script);
    assert!(echo.contains("00010 setdscp ef tcp from any to any 80\n"), "{echo}");
    assert!(apply(&config, "graph").1.contains("---> DSCP 46, next"));
    for (port, dscp) in [(80, 46), (81, 10), (82, 0)] {
        let mut expected = frame(Ends { server: (0x0a00_0002, port), ..ENDS }, true, &Segment::default());
        let mut bytes = expected.clone();
        for (frame, dscp) in [(&mut bytes, 0), (&mut expected, dscp)] {
            // ECN: congestion experienced.
            frame[15] = dscp << 2 | 3;
            complete(frame);
        }
        assert_eq!(pass(&config, &mut bytes), Verdict::Accept);
        assert_eq!(bytes, expected, "port {port}");
    }
    // Later rules see the packet as it is then.
    let packets: Vec<u64> = config.rules().iter().map(|rule| rule.counters.get().packets).collect();
    assert_eq!(packets, [1, 1, 1, 1, 3, 0]);
    let v6 = Ends { client: (1, 1), server: (2, 80), v6: true, ..ENDS };
    let mut bytes = frame(v6, true, &Segment::default());
    bytes[14..18].copy_from_slice(&[0x6f, 0xda, 0xbc, 0xde]);
    pass(&config, &mut bytes);
    // Traffic class 0xfd becomes ef with its ECN; the flow label stays.
    assert_eq!(bytes[14..18], [0x6b, 0x9a, 0xbc, 0xde]);
    assert_eq!(segments::parse(v6, true, &bytes), Segment::default());
}

#[test]
fn the_words_of_fq_codel_and_fq_pie_have_no_order() {
    fn orders(words: &[&str]) -> Vec<String> {
        if words.is_empty() {
            return vec![String::new()];
        }
        let first = |i: usize| {
            let rest: Vec<&str> = [&words[..i], &words[i + 1..]].concat();
            orders(&rest).into_iter().map(move |order| format!(" {}{order}", words[i]))
        };
        (0..words.len()).flat_map(first).collect()
    }
    let plan = |words: &str| {
        let script = format!("pipe 1 config bw 1Mbit/s\nqueue 1 config pipe 1\nsched 1 config{words}");
        format!("{:?}", apply(&new(), &script).0.compile().plan())
    };
    for words in [
        ["type fq_codel", "target 7ms", "interval 70ms", "quantum 300", "limit 500", "noecn"],
        ["type fq_pie", "flows 64", "alpha 0.5", "ecn", "max_burst 100", "mask src-ip 0xff"],
    ] {
        let first = plan(&format!(" {}", words.join(" ")));
        assert!(first.contains("quantum: 300") || first.contains("flows: 64"), "{first}");
        for order in orders(&words) {
            assert_eq!(plan(&order), first, "{order}");
        }
    }
    // What is given later changes a scheduler; its type, with its own values, does not come back by itself.
    let (config, _) = apply(&new(), "pipe 1 config\nqueue 1 config pipe 1\nsched 1 config quantum 300 type fq_codel");
    let (config, _) = apply(&config, "sched 1 config noecn flows 7");
    let shown = format!("{:?}", config.compile().plan());
    assert!(shown.contains("quantum: 300") && shown.contains("flows: 7") && shown.contains("ecn: false"), "{shown}");
}

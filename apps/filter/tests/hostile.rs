// SPDX-License-Identifier: BSD-2-Clause
//! Scripts of random words, and good ones with a byte changed: each is performed or refused with a place. What was
//! performed can be compiled, is listed as it was written, and evaluates packets.

use unetmap_filter::{Config, Direction, Engine, Headers, Now, text};

/// Words of all commands, good and bad values, and pieces of words.
const WORDS: &str = "
    add delete list show zero resetlog flush set table pipe queue sched nat graph enable disable config create
    destroy swap lookup info move rule to from any me not or { } ( ) | ! // # - -q -aS -x ip ip4 ipv6 tcp udp
    icmp 17 0 1 99 65535 65536 4294967295 4294967296 18446744073709551616 -1 1.5 0.5 1e308 nan inf 10.0.0.1
    10.0.0.0/8 10.0.0.0/0 10.0.0.0/33 ::/0 fe80::1 fe80::/129 10.0.0.0/24{1,5-9} 10.0.0.0/24{} 10.0.0.0/24{9-1}
    1.2.3.4:255.0.255.0 table(t) table(t,1) table() table(t, t u , 1, 1- -1- 5-1 80,443 1-65535 0-0 allow deny
    count skipto call return check-state :x : :any reject unreach host reset unreach6 port tee synproxy mss
    wscale 14 15 fwd tablearg log logamount tag untag tagged prob in out via recv xmit one t* [a-z]* [ frag
    mf,df !mf setup established tcpflags syn,!ack keep-state limit src-addr dst-port record-state defer-action
    mac 02:00:00:00:00:01/8 02:00:00:00:00:01&ff:00:00:00:00:00 mac-type arp 0x800-1 iplen dscp af11,46 iptos
    lowdelay icmptypes 8 icmp6types ext6hdr ipversion tcpseq bw 10Mbit/s 999999999Gbit/s delay 20 10ms..20ms
    normal burst 1M 99999999999999K queue 100KB plr 0.1,0.2,0.3,0.4 mask all dst-ip 0xffffffff /32 /33 buckets
    codel target 1us interval pie fq_codel flows type wf2q+ weight lmax ecn if lo redirect_port 10.0.0.2:80-81
    80-81 redirect_addr redirect_proto port_range 1024-65535 reverse same_ports \u{fc} \u{2028} dyn_keepalive
";

/// Scripts that are performed.
const GOOD: [&str; 3] = [
    "table t create\ntable t add 10.0.0.0/8 5 2001:db8::/32\nadd 10 set 3 prob 0.5 count log logamount 5 tag 7 \
     { tcp or udp } from not 10.0.0.0/24{1,5-9} 80,443 to table(t) in recv one tagged 1-9 // web\nset disable 3",
    "pipe 1 config bw 8Mbit/s delay 10ms..20ms burst 10K queue 64KB plr 0.01 mask src-ip 0xffffff00 dst-port /16\n\
     sched 1 config type fq_codel limit 500 target 8 noecn flows 64\nqueue 5 config pipe 1 weight 70\n\
     add pipe 1 udp from any to any frag mf,!df\nadd queue tablearg ip6 from any to any ext6hdr frag",
    "nat 1 config ip 10.0.0.9 same_ports redirect_port tcp 10.0.0.2:80-81 80-81\nadd nat 1 ip from any to any\n\
     add synproxy mss 1400 wscale 7 tcp from any to any 80 limit src-addr 8 :web\nadd tee 1 ip from any to any\n\
     add 65000 skipto 65001 mac any 02:00:00:00:00:01/8 iplen 40-100 dscp ef",
];

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// Performs a script, or checks its error; returns whether it was performed.
fn perform(config: &Config, script: &str) -> bool {
    let (config, _) = match config.apply(script) {
        Ok(applied) => applied,
        Err(e) => {
            let line = script.lines().nth(e.line - 1).unwrap_or_else(|| panic!("{e}: {script:?}"));
            assert!((1..=line.chars().count() + 2).contains(&e.column), "{e}: {script:?}");
            assert!(!e.message.is_empty(), "{script:?}");
            return false;
        }
    };
    let set = config.compile();
    let mut engine = Engine::new(0, 8, 1);
    let mut frame = vec![0; 60];
    frame[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 6]);
    (frame[46], frame[47]) = (0x50, 2);
    let headers = Headers::parse(&frame, frame.len()).expect("a valid frame");
    for millis in [0, 1, 100_000] {
        let now = Now { millis, seconds: 1 };
        let _ = engine.evaluate(&set, &headers, Direction::Out, 60, now, |_| {});
        engine.ask_idle(&set, now.millis, |_, _, _| {});
    }
    // What is listed is a rule, and is listed as it was.
    for rule in config.rules().iter().filter(|rule| rule.number < 65535) {
        let again = format!("add {} set {} {}", rule.number, rule.set, rule.text);
        let (_, echo) = config.apply(&again).unwrap_or_else(|e| panic!("{e}: {again:?} of {script:?}"));
        assert_eq!(echo, format!("{:05} {}\n", rule.number, rule.text), "{script:?}");
    }
    true
}

#[test]
fn scripts_of_random_words_are_performed_or_refused_with_a_place() {
    let config = Config::new(["one", "two"], 1, false).with_tees(vec![1]);
    let config = config.apply("table t create\ntable u create\nadd 7 allow ip from any to any").expect("a script").0;
    let words: Vec<&str> = WORDS.split_whitespace().collect();
    let (mut random, mut performed) = (Random(1), 0);
    for _ in 0..20_000 {
        let mut script =
            ["", "add ", "add allow ip from any to any ", "table t add ", "pipe 1 config ", "nat 1 config "]
                [random.below(6)]
            .to_owned();
        for _ in 0..random.below(9) {
            script += words[random.below(words.len())];
            script += [" ", " ", " ", "\n", ""][random.below(5)];
        }
        performed += u32::from(perform(&config, &script));
    }
    assert!(performed > 400, "{performed}");
}

#[test]
fn good_scripts_with_a_byte_changed_are_performed_or_refused_with_a_place() {
    let config = Config::new(["one", "two"], 1, false).with_tees(vec![1]);
    for good in GOOD {
        assert!(perform(&config, good), "{:?}", config.apply(good).map(drop));
        for at in 0..good.len() {
            for byte in [b' ', b'\n', b',', b'-', b'/', b'{', b'}', b'9', b'0', b'x', b'!', b':', b'.', b'#', 0, 0xff] {
                let mut bytes = good.as_bytes().to_vec();
                bytes[at] = byte;
                if let Ok(script) = text(&bytes) {
                    perform(&config, script);
                }
            }
            perform(&config, &good[..at]);
        }
    }
}

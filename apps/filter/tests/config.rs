// SPDX-License-Identifier: BSD-2-Clause
//! Commands, their output and their errors; states and counters across changes.

use unetmap_filter::{Config, Direction, Effect, Engine, Headers, Now, Ruleset, Verdict, tcp};

fn new() -> Config {
    Config::new(["p}1", "eth0"], 1, false)
}

fn apply(config: &Config, script: &str) -> (Config, String) {
    config.apply(script).unwrap_or_else(|e| panic!("{e}\n{script}"))
}

/// A TCP segment, or with `flags` 0 a UDP packet.
fn frame(src: [u8; 5], dst: [u8; 5], flags: u8, ack: u32) -> Vec<u8> {
    let mut frame = vec![0; 54];
    frame[12..17].copy_from_slice(&[8, 0, 0x45, 0, 0]);
    (frame[17], frame[22], frame[23]) = (40, 64, if flags == 0 { 17 } else { 6 });
    frame[26..30].copy_from_slice(&src[..4]);
    frame[30..34].copy_from_slice(&dst[..4]);
    (frame[35], frame[37], frame[46], frame[47]) = (src[4], dst[4], 0x50, flags);
    frame[42..46].copy_from_slice(&ack.to_be_bytes());
    frame
}

const A: [u8; 5] = [10, 0, 0, 1, 99];
const B: [u8; 5] = [10, 0, 0, 2, 80];

fn evaluate(engine: &mut Engine, set: &Ruleset, frame: &[u8], seconds: u64) -> Verdict {
    let headers = Headers::parse(frame, frame.len()).expect("a valid frame");
    let now = Now { millis: seconds * 1000, seconds };
    engine.states.sweep(64, now.millis);
    engine.evaluate(set, &headers, Direction::Out, frame.len() as u64, now, |_| {})
}

#[test]
fn rules_are_listed_as_ipfw_lists_them() {
    let (config, echo) = apply(
        &new(),
        "add pass all from any to any\nadd 50 set 3 drop log logamount 5 { tcp or udp } from not 10.0.0.0/8,fe80::/10 \
         to table(t) 80, 443 in // web\n"
            .replace("add 50", "table t create\nadd 50")
            .as_str(),
    );
    assert_eq!(
        echo,
        "00100 allow ip from any to any\n\
         00050 deny log logamount 5 { tcp or udp } from not 10.0.0.0/8,fe80::/10 to table(t) 80,443 in // web\n"
    );
    let (config, list) = apply(&config, "set disable 3\nlist\nlist -S 50\nset show");
    assert_eq!(
        list,
        "00100 allow ip from any to any\n65535 deny ip from any to any\n\
         # DISABLED 00050 set 3 deny log logamount 5 { tcp or udp } from not 10.0.0.0/8,fe80::/10 to table(t) 80,443 in \
         // web\n\
         disable 3 enable 0 1 2 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30\n"
    );
    let (_, list) = apply(&config, "add 7 // only a comment\nadd check-state :x\ndelete 100\nlist 1-200");
    assert!(
        list.ends_with(
            "00200 check-state :x\n00007 count ip from any to any // only a comment\n00200 check-state :x\n"
        )
    );
}

#[test]
fn counters_are_shown_and_set_to_zero() {
    let (config, _) = apply(&new(), "add 10 count ip from any to any\nadd 20 allow tcp from any to any");
    let set = config.compile();
    let mut engine = Engine::new(0, 16, 1);
    for _ in 0..3 {
        assert_eq!(evaluate(&mut engine, &set, &frame(A, B, tcp::SYN, 0), 5), Verdict::Accept);
    }
    assert_eq!(evaluate(&mut engine, &set, &frame(A, B, 0, 0), 5), Verdict::Deny);
    // A new set counts on.
    let (config, show) = apply(&config, "add 15 count udp from any to any\nshow");
    assert_eq!(
        show.split_once('\n').unwrap().1,
        "00010 4 216 count ip from any to any\n00015 0   0 count udp from any to any\n\
         00020 3 162 allow tcp from any to any\n65535 1  54 deny ip from any to any\n"
    );
    let (_, graph) = apply(
        &config,
        "set disable 4\nadd 18 set 4 deny ip from any to any\nadd 17 skipto 20 tcp from any to any\ngraph",
    );
    assert_eq!(
        graph.split_once("any\n").unwrap().1.split_once("any\n").unwrap().1,
        "4  00010 count ip from any to any\n     |\n0  00015 count udp from any to any\n     |\n\
         0  00017 skipto 20 tcp from any to any ---> 00020\n     |\n3  00020 allow tcp from any to any ---> passed\n     |\n\
         1  65535 deny ip from any to any ---> dropped\n"
    );
    let (_, show) = apply(&config, "zero 10\nshow 10-20\nzero");
    assert_eq!(
        show,
        "Entry 10 cleared.\n00010 0   0 count ip from any to any\n00015 0   0 count udp from any to any\n\
         00020 3 162 allow tcp from any to any\nAccounting cleared.\n"
    );
}

#[test]
fn what_is_wrong_or_not_supported_is_refused_with_its_place() {
    let config = apply(&new(), "add 10 allow ip from any to any\ntable t create\ntable servers create").0;
    for (script, line, column, part) in [
        ("adx", 1, 1, "`adx` is no command; give add, delete, show, table, set, pipe or nat; did you mean `add`?"),
        ("s 5", 1, 1, "it may be sched, set or show"),
        ("stats", 1, 1, "did you mean `states`?"),
        ("set 5 list", 1, 5, "give `delete set 5`"),
        ("-d show", 1, 1, "`unetmap fw states` lists states"),
        ("${fwcmd} add allow ip from any to any", 1, 1, "with the value `unetmap fw`"),
        ("add 10", 1, 7, "give an action"),
        ("add 65535 allow ip from any to any", 1, 5, "0 to 65534"),
        ("add allow tcp frm any to any", 1, 15, "give `from` after the protocol `tcp`"),
        ("add allow udp", 1, 14, "give `from` after the protocol `udp`"),
        ("add allow tcp from any to", 1, 26, "give an address"),
        ("add 5 allow ip from any\n", 1, 24, "give `to`"),
        ("\n# x\n  add divert 1 ip from any to any", 3, 7, "the action `divert` is not supported: `tee N`"),
        ("add tee 1 ip from any to any", 1, 9, "start with --tee 1=PORT"),
        ("add nat global ip from any to any", 1, 9, "`global`: give a number or tablearg"),
        (
            "add fwd 10.0.0.1 ip from any to any",
            1,
            5,
            "the action `fwd` is not supported: frames keep their MAC addresses",
        ),
        ("add queue x ip from any to any", 1, 11, "`x`: give a number or tablearg"),
        ("add allow ip from me to any", 1, 19, "`me`: neither port is an interface of this host; give the addresses"),
        ("add allow ip from 10.0.0.1/33 to any", 1, 19, "is no address"),
        ("add allow ip from 10.0.0.0/24{9-300} to any", 1, 19, "last bytes"),
        ("add allow ip from table(u/) to any", 1, 19, "`u/`: a table's name has"),
        ("add allow tcp from any 80-22 to any", 1, 24, "N-M"),
        (
            "add allow ip from any to any verrevpath",
            1,
            30,
            "`verrevpath` is not supported: there are no routes here; give the networks",
        ),
        (
            "add allow ip from any to any recv eth1",
            1,
            35,
            "the ports are p}1 and eth0, and no packet of `eth1` comes here: give one of them, or",
        ),
        ("add allow ip from any to any { in or keep-state }", 1, 38, "alternative"),
        ("add allow ip from any to any { in out }", 1, 35, "give `or` or `}`"),
        ("add allow ip from any to any keep-state limit src-addr 1", 1, 41, "a rule has one of"),
        ("add allow ip from any to any bogus", 1, 30, "no option"),
        ("add allow ip from any to any keepstate", 1, 30, "did you mean `keep-state`?"),
        ("add allow fish from any to any", 1, 11, "`fish` is no protocol"),
        ("add allow tpc from any to any", 1, 11, "did you mean `tcp`?"),
        ("add alow tcp from any to any", 1, 5, "did you mean `allow`?"),
        ("add setdscp 64 ip from any to any", 1, 13, "`64`: give a DSCP"),
        ("add tcp-setmss 0 tcp from any to any", 1, 16, "1 to 65535"),
        ("add prob 1.5 allow ip from any to any", 1, 10, "0 to 1"),
        ("add skipto ip from any to any", 1, 12, "a number"),
        ("add allow tag 0 ip from any to any", 1, 15, "a tag or tablearg, 1 to 65534"),
        ("add allow tag 5 untag 6 ip from any to any", 1, 17, "one of tag and untag"),
        ("add allow untag", 1, 16, "give a tag"),
        ("add allow ip from any to any tagged x", 1, 37, "give numbers"),
        ("disable one_pass", 1, 9, "disable `one_pass` is not supported; a packet passes after its pipe"),
        ("enable dyn_keepaliv", 1, 8, "did you mean `dyn_keepalive`?"),
        ("disable", 1, 8, "give dyn_keepalive"),
        ("delete 11", 1, 8, "there is no rule 11"),
        ("table t add 10.0.0.1 x", 1, 22, "`x`: give ADDRESS"),
        ("table u list", 1, 9, "there is no table `u`"),
        ("table server list", 1, 14, "did you mean `servers`?"),
        ("table t create", 1, 9, "table t exists; `or-flush`"),
        ("table t ad 10.0.0.1 x", 1, 21, "`x`: give ADDRESS"),
        ("table t d 10.0.0.1", 1, 9, "it may be destroy, delete or detail"),
        ("table v create type mac", 1, 21, "`mac` are not supported"),
        ("set disable 31", 1, 13, "always enabled"),
        ("nat config ip 10.0.0.1", 1, 5, "the number of the nat before config"),
        ("nat 1 config deny_in", 1, 21, "give the address"),
        ("nat 1 config ip 10.0.0", 1, 17, "`10.0.0`: give an IPv4 address"),
        ("nat 1 config ip 10.0.0.1 udp_eim", 1, 26, "`udp_eim` is not supported"),
        ("nat 1 config ip 10.0.0.1 port_range 80-90", 1, 37, "from 1024"),
        ("nat 1 config ip 10.0.0.1 redirect_port icmp 10.0.0.2:1 1", 1, 40, "for tcp and udp"),
        ("nat 1 config ip 10.0.0.1 redirect_port tcp 10.0.0.2 80", 1, 44, "give LOCAL:PORT"),
        ("nat 1 config ip 10.0.0.1 redirect_port tcp 10.0.0.2:80-81 80", 1, 59, "as many ports"),
        ("nat 1 config ip 10.0.0.1 redirect_addr 10.0.0.2 x", 1, 49, "`x`: give an IPv4"),
        ("nat 1 delete", 1, 7, "there is no nat 1"),
        ("pipe 0 config", 1, 6, "1 to 65535"),
        ("pipe config", 1, 6, "the number of the pipe before config"),
        ("pipe 1 config bw 1furlong", 1, 18, "`1furlong`: give a bandwidth"),
        ("pipe 1 config delay 1ms..", 1, 21, "give a time"),
        ("pipe 1 config queue 101", 1, 21, "1 to 100 slots"),
        ("pipe 1 config mask", 1, 19, "give a mask"),
        ("pipe 1 config mask dst-ip /33", 1, 27, "of 32 bits"),
        ("pipe 1 config red 1/2/3/4", 1, 15, "`red` is not supported; give codel or pie"),
        ("pipe 1 config dealy 5", 1, 15, "did you mean `delay`?"),
        ("pipe 1 config plr 2", 1, 19, "probability"),
        ("queue 1 config weight 5", 1, 24, "give the queue's pipe"),
        ("sched 1 config type priority", 1, 21, "`priority`: give fifo, rr, wf2q+, qfq, prio"),
        ("sched 1 config type fq_codel quantum 1", 1, 38, "256 to 9000"),
        ("sched 1 config type rr quantum 300", 1, 24, "`quantum` is for the types fq_codel and fq_pie"),
        ("pipe delete 5", 1, 13, "there is no pipe 5"),
    ] {
        let error = config.apply(script).unwrap_err();
        assert_eq!((error.line, error.column), (line, column), "{script}: {error}");
        assert!(error.message.contains(part), "{script}: {error}");
    }
}

#[test]
fn flags_come_before_commands_or_after_lists() {
    let (config, echo) = apply(
        &new(),
        "-q add 10 allow ip from any to any\n-f -q flush\nadd 20 set 3 deny udp from any to any\n-q set disable 3\n\
         -qf zero\n-q table t create",
    );
    assert_eq!(echo, "00020 deny udp from any to any\n");
    let (_, list) = apply(&config, "list\n-q list 65535\n-aS list 20\nlist -S -a 20\n-S show 20");
    let shown = "# DISABLED 00020 0 0 set 3 deny udp from any to any\n".repeat(3);
    let default = "65535 deny ip from any to any\n".repeat(2);
    assert_eq!(list, default + &shown);
    for (script, column, part) in
        [("-x list", 1, "`-x` is not supported"), ("-aN list", 1, "`-N`"), ("-a", 3, "give a c")]
    {
        let error = config.apply(script).unwrap_err();
        assert_eq!((error.line, error.column), (1, column), "{script}: {error}");
        assert!(error.message.contains(part), "{script}: {error}");
    }
}

#[test]
fn a_script_with_an_error_sets_no_counter_to_zero() {
    let (config, _) = apply(&new(), "add 10 allow log logamount 2 ip from any to any");
    let set = config.compile();
    let mut engine = Engine::new(0, 16, 1);
    let mut logged = |packets: usize| {
        let headers = Headers::parse(&frame(A, B, 0, 0), 54).unwrap();
        let mut logged = 0;
        for _ in 0..packets {
            engine.evaluate(&set, &headers, Direction::Out, 54, Now::default(), |_| logged += 1);
        }
        logged
    };
    assert_eq!(logged(3), 2);
    assert!(config.apply("zero 10\nresetlog\nzero\nwrong").is_err());
    assert_eq!(
        (apply(&config, "show 10").1.as_str(), logged(1)),
        ("00010 3 162 allow log logamount 2 ip from any to any\n", 0)
    );
    assert_eq!(
        apply(&config, "zero\nshow 10").1.split_once('\n').unwrap().1,
        "00010 0 0 allow log logamount 2 ip from any to any\n"
    );
    assert_eq!(logged(3), 2);
}

#[test]
fn a_script_with_an_error_changes_nothing() {
    let (config, before) = apply(&new(), "add 10 allow ip from any to any");
    let many: String = (0..100_000).map(|i| format!("add deny ip from 10.0.0.{} to any\n", i % 256)).collect();
    let error = config.apply(&format!("{many}add deny ip frm any to any")).unwrap_err();
    assert_eq!((error.line, error.column), (100_001, 13), "{error}");
    assert_eq!(apply(&config, "list 10").1, before);
}

#[test]
fn tables_are_changed_and_swapped() {
    let (config, _) =
        apply(&new(), "table a create type addr\ntable b create\ntable a add 10.0.0.1 7 10.1.0.0/16 2001:db8::/32 9");
    let (config, list) = apply(
        &config,
        "table a list\ntable a lookup 10.1.2.3\ntable a swap b\ntable a info\ntable b delete 10.1.0.0/16",
    );
    assert_eq!(
        list,
        "--- table(a), set(0) ---\n10.0.0.1/32 7\n10.1.0.0/16 0\n2001:db8::/32 9\n10.1.2.3/32 0\n\
         --- table(a), set(0) ---\n kindex: 0, type: addr\n items: 0\n"
    );
    let (config, _) = apply(&config, "add 10 allow ip from table(b) to any");
    assert!(config.apply("table b destroy").unwrap_err().message.contains("rule 10 uses table b"));
    let mut engine = Engine::new(0, 16, 1);
    let mut verdict = |config: &Config| evaluate(&mut engine, &config.compile(), &frame(A, B, 0, 0), 1);
    assert_eq!(verdict(&config), Verdict::Accept);
    let (swapped, _) = apply(&config, "table a swap b");
    assert_eq!((verdict(&swapped), verdict(&config)), (Verdict::Deny, Verdict::Accept));
}

#[test]
fn states_live_as_long_as_their_rule_and_their_time() {
    let script = "add 10 check-state\nadd 20 allow tcp from 10.0.0.1 to any setup keep-state\nadd 30 allow udp from 10.0.0.1 to any keep-state";
    let (config, _) = apply(&new(), script);
    let set = config.compile();
    let mut engine = Engine::new(0, 16, 1);
    let syn = frame(A, B, tcp::SYN, 0);
    let syn_ack = frame(B, A, tcp::SYN | tcp::ACK, 1);
    let ack = frame(A, B, tcp::ACK, 1);
    assert_eq!(evaluate(&mut engine, &set, &syn_ack, 0), Verdict::Deny, "no state yet");
    assert_eq!(evaluate(&mut engine, &set, &syn, 0), Verdict::Accept);
    assert_eq!(evaluate(&mut engine, &set, &syn_ack, 19), Verdict::Accept);
    assert_eq!(evaluate(&mut engine, &set, &ack, 19), Verdict::Accept);
    assert_eq!(evaluate(&mut engine, &set, &ack, 318), Verdict::Accept, "300 s after both acknowledged");
    assert_eq!(engine.states.list(318_000)[0].left, 1000, "one side alone renews nothing");
    assert_eq!(evaluate(&mut engine, &set, &ack, 319), Verdict::Deny);

    assert_eq!(evaluate(&mut engine, &set, &frame(A, B, 0, 0), 400), Verdict::Accept);
    // The set is changed: the state stays. Its rule is deleted, and another one takes its number: the state goes.
    let (config, _) = apply(&config, "add 5 count ip from any to any");
    assert_eq!(evaluate(&mut engine, &config.compile(), &frame(B, A, 0, 0), 401), Verdict::Accept);
    let (config, _) = apply(&config, "delete 30\nadd 30 allow udp from 10.0.0.9 to any keep-state");
    assert_eq!(evaluate(&mut engine, &config.compile(), &frame(B, A, 0, 0), 402), Verdict::Deny);
    assert_eq!(engine.states.counts().states, 0);
}

#[test]
fn rules_that_are_replaced_by_the_same_keep_counters_and_states() {
    let script = "table t create\ntable t add 10.0.0.1\nadd 10 check-state\n\
                  add 20 allow udp from table(t) to any keep-state :dns\nadd 30 deny ip from any to any\n\
                  add 30 deny ip from any to any";
    let (config, _) = apply(&new(), script);
    let mut engine = Engine::new(0, 16, 1);
    assert_eq!(evaluate(&mut engine, &config.compile(), &frame(A, B, 0, 0), 1), Verdict::Accept);
    assert_eq!(evaluate(&mut engine, &config.compile(), &frame(B, A, tcp::SYN, 0), 1), Verdict::Deny);
    let shown = |config: &Config| apply(config, "show 20-30").1;
    let before = shown(&config);
    // An error changes nothing; rules of another set, number or text are others; those of the same text stay apart.
    assert!(config.replace(&format!("{script}\nadd wrong")).is_err());
    let first = "table a create\ntable t create\nadd 5 count ip from any to any\nadd 10 check-state :dns\n";
    let same = "add 20 allow udp from table(t) to any keep-state :dns\n";
    let (replaced, _) = config
        .replace(&format!("{first}{same}add 30 deny ip from any to any\nadd 30 set 1 deny ip from any to any"))
        .unwrap();
    assert_eq!(shown(&replaced), before);
    assert!(before.starts_with("00020 1 54 allow"), "{before}");
    assert_eq!(engine.states.list(2000).len(), 1);
    assert_eq!(evaluate(&mut engine, &replaced.compile(), &frame(B, A, 0, 0), 2), Verdict::Accept, "its state");
    let (other, _) =
        replaced.replace("add 10 check-state :dns\nadd 20 allow udp from any to any keep-state :dns").unwrap();
    assert_eq!(
        evaluate(&mut engine, &other.compile(), &frame(B, A, 0, 0), 3),
        Verdict::Accept,
        "by a state of its own"
    );
    assert_eq!(apply(&other, "show 20").1.split(' ').nth(1), Some("1"));
    // The identities of rules that are gone are used again, with another generation.
    let (last, _) = other.replace(script).unwrap();
    let mut ids: Vec<_> = last.rules().iter().map(|rule| rule.id.slot).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), last.rules().len());
    assert!(ids.iter().all(|&slot| slot < 8), "{ids:?}");
}

#[test]
fn a_full_table_keeps_answered_flows_and_drops_the_oldest_other() {
    let set = apply(&new(), "add allow ip from any to any keep-state").0.compile();
    let mut engine = Engine::new(0, 3, 1);
    let flow = |i: u8| (frame([10, 0, 0, i, 1], B, 0, 0), frame(B, [10, 0, 0, i, 1], 0, 0));
    let mut send = |frame: &[u8]| (evaluate(&mut engine, &set, frame, 1), engine.states.counts());
    for i in 1..=3 {
        assert_eq!(send(&flow(i).0).0, Verdict::Accept);
    }
    assert_eq!(send(&flow(1).1).0, Verdict::Accept);
    // Flow 1 was answered: flow 2 is the oldest that was not.
    assert_eq!(send(&flow(4).0).1.dropped_half_open, 1);
    assert_eq!(send(&flow(1).0).1.created, 4);
    for i in [3, 4] {
        assert_eq!(send(&flow(i).1).1.created, 4, "flow {i} is in the table");
    }
    let (verdict, counts) = send(&flow(5).0);
    assert_eq!((verdict, counts.full, counts.states), (Verdict::Deny, 1, 3));
}

#[test]
fn a_probability_drops_that_share() {
    let set = apply(&new(), "add prob 0.25 deny ip from any to any\nadd allow ip from any to any").0.compile();
    let mut engine = Engine::new(0, 16, 7);
    let packet = frame(A, B, 0, 0);
    let denied = (0..40_000).filter(|_| evaluate(&mut engine, &set, &packet, 1) == Verdict::Deny).count();
    // Five standard deviations.
    assert!((9567..=10433).contains(&denied), "{denied}");
}

#[test]
fn tags_are_set_cleared_and_tested() {
    let script = "table t create\ntable t add 10.0.0.1 77\nadd 10 count log tag 5 udp from any to any\n\
                  add 20 count tag tablearg ip from table(t) to any\nadd 30 skipto 50 untag 5 ip from any to any tagged 77\n\
                  add 40 allow ip from any to any tagged 5\nadd 50 deny ip from any to any tagged 1-5,9\n\
                  add 60 allow ip from any to any tagged 70-80 not tagged 78\nadd deny tag 65534 ip from any to any";
    let (config, echo) = apply(&new(), script);
    assert_eq!(
        echo,
        "00010 count log tag 5 udp from any to any\n00020 count tag tablearg ip from table(t) to any\n\
         00030 skipto 50 untag 5 ip from any to any tagged 77\n00040 allow ip from any to any tagged 5\n\
         00050 deny ip from any to any tagged 1-5,9\n00060 allow ip from any to any tagged 70-80 not tagged 78\n\
         00160 deny tag 65534 ip from any to any\n"
    );
    let set = config.compile();
    let mut engine = Engine::new(0, 16, 1);
    for _ in 0..3 {
        assert_eq!(evaluate(&mut engine, &set, &frame(A, B, 0, 0), 1), Verdict::Accept, "by rule 60");
        assert_eq!(evaluate(&mut engine, &set, &frame(B, A, 0, 0), 1), Verdict::Accept, "by rule 40");
        assert_eq!(evaluate(&mut engine, &set, &frame(B, A, tcp::ACK, 0), 1), Verdict::Deny);
    }
    let packets: Vec<u64> = config.rules().iter().map(|rule| rule.counters.get().packets).collect();
    assert_eq!(packets, [6, 3, 3, 3, 0, 3, 3, 0]);

    // A packet has 16 tags at most.
    let many: String = (1..=17).map(|tag| format!("add count tag {tag} ip from any to any\n")).collect();
    for (tagged, verdict) in [(16, Verdict::Accept), (17, Verdict::Deny)] {
        let set = apply(&new(), &format!("{many}add allow ip from any to any tagged {tagged}")).0.compile();
        assert_eq!(evaluate(&mut engine, &set, &frame(A, B, 0, 0), 1), verdict);
    }
    // A packet of a state gets the tag of the state's rule.
    let script = "add 10 check-state\nadd 20 count tag 3 udp from 10.0.0.1 to any keep-state\n\
                  add 30 allow ip from any to any tagged 3";
    let set = apply(&new(), script).0.compile();
    assert_eq!(evaluate(&mut engine, &set, &frame(B, A, 0, 0), 1), Verdict::Deny);
    assert_eq!(evaluate(&mut engine, &set, &frame(A, B, 0, 0), 1), Verdict::Accept);
    assert_eq!(evaluate(&mut engine, &set, &frame(B, A, 0, 0), 1), Verdict::Accept);
}

#[test]
fn rules_that_copy_go_on_with_the_next_rule() {
    let script = "table t create\ntable t add 10.0.0.1 9\nadd 10 tee 7 log udp from any to any\n\
                  add 20 tee tablearg ip from table(t) to any\nadd 30 allow ip from any to any";
    let (config, _) = apply(&new().with_tees(vec![7]), script);
    let set = config.compile();
    let mut engine = Engine::new(0, 16, 1);
    for (packet, expected) in
        [(frame(A, B, 0, 0), "log 10, copy 7, copy 9"), (frame(B, A, 0, 0), "log 10, copy 7"), (frame(B, A, 2, 0), "")]
    {
        let headers = Headers::parse(&packet, packet.len()).unwrap();
        // Not remembered: each packet is copied.
        for _ in 0..3 {
            let mut effects = Vec::new();
            let verdict = engine.evaluate(&set, &headers, Direction::Out, 54, Now::default(), |effect| {
                effects.push(match effect {
                    Effect::Log(rule) => format!("log {}", rule.number),
                    Effect::Copy(number) => format!("copy {number}"),
                    Effect::Change(change) => format!("{change:?}"),
                });
            });
            assert_eq!((verdict, effects.join(", ").as_str()), (Verdict::Accept, expected));
        }
    }
    let (_, graph) = apply(&config, "graph");
    assert!(graph.contains("00010 tee 7 log udp from any to any ---> a copy to port 7, next\n"), "{graph}");
}

#[test]
fn pipes_and_queues_are_configured_shown_and_deleted() {
    let script = "pipe 1 config bw 8Mbit/s delay 20 burst 10K queue 64KB plr 0.01 mask src-ip 0xffffff00 dst-port /16\n\
                  queue 5 config pipe 1 weight 70 queue 30\nqueue 6 config sched 1 weight 30 mask dst-ip 0xffffffff codel target 10ms\n\
                  sched 1 config type fq_codel limit 500 target 8 noecn flows 64\npipe 2 config\n\
                  add 10 queue 5 udp from any to any\nadd pipe tablearg ip from any to any";
    let (config, _) = apply(&new(), script);
    let (_, shown) = apply(&config, "pipe show\nqueue 6 show\nsched 1 show\nlist");
    assert_eq!(
        shown,
        "00001:   8.000 Mbit/s   20 ms burst 10240\n\
         q131073  64 KB plr 0.010000 (1 buckets) sched 65537 weight 1 lmax 0 pri 0 droptail\n \
         sched 65537 type FIFO flags 0x0 64 buckets 0 active\n    mask src-ip 0xffffff00 dst-port /16\n   \
         0 packets 0 bytes, 0 held, 0 dropped\n\
         00002: unlimited         0 ms burst 0\n\
         q131074  50 sl. (1 buckets) sched 65538 weight 1 lmax 0 pri 0 droptail\n \
         sched 65538 type FIFO flags 0x0 64 buckets 0 active\n   0 packets 0 bytes, 0 held, 0 dropped\n\
         q00006  50 sl. (64 buckets) sched 1 weight 30 lmax 0 pri 0 AQM CoDel\n    mask dst-ip 0xffffffff\n\
         00001:   8.000 Mbit/s   20 ms burst 10240\n sched 1 type FQ_CODEL flags 0x0 64 buckets 0 active\n   \
         Children flowsets: 5 6\n   0 packets 0 bytes, 0 held, 0 dropped\n\
         00010 queue 5 udp from any to any\n00110 pipe tablearg ip from any to any\n65535 deny ip from any to any\n"
    );
    // What is not given again stays: the pipe and the weight of a queue, the type of a scheduler.
    let (_, shown) = apply(&config, "queue 5 config queue 7\nsched 1 config mask all\nqueue 5 show\nsched show");
    assert!(shown.starts_with("q00005   7 sl. (64 buckets) sched 1 weight 70 lmax"), "{shown}");
    assert!(shown.contains(" sched 1 type FQ_CODEL"), "{shown}");
    for kind in ["fifo", "rr", "wf2q+", "qfq", "fq_codel", "fq_pie"] {
        let (_, shown) = apply(&config, &format!("sched 1 config type {kind}\nsched 1 show"));
        assert!(shown.contains(&format!(" sched 1 type {} ", kind.to_uppercase())), "{kind}: {shown}");
    }
    let mut engine = Engine::new(0, 4, 1);
    let verdict = evaluate(&mut engine, &config.compile(), &frame(A, B, 0, 0), 0);
    assert_eq!(verdict, Verdict::Link(unetmap_shape::Target::Queue(5)));
    assert!(!config.compile().plan().is_empty());
    let (config, _) = apply(&config, "pipe 1 delete\nqueue delete 5\nqueue 6 delete\npipe delete 2");
    assert!(config.compile().plan().is_empty());
}

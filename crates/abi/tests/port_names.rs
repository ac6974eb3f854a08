// SPDX-License-Identifier: BSD-2-Clause
//! The grammar of port names: the meaning of valid names, and the position of the error in invalid ones.

use proptest::prelude::*;
use unetmap_abi::*;

fn parse(spec: &str) -> PortSpec {
    PortSpec::parse(spec).unwrap_or_else(|e| panic!("{e}"))
}

/// The name for requests, mode, ring, flags and region of a name.
fn meaning(spec: &str) -> (String, u32, u16, u64, u16) {
    let port = parse(spec);
    (port.name.clone(), port.nr_mode(), port.ring_id(), port.flags, port.mem_id)
}

fn means(spec: &str, name: &str, mode: u32, ring: u16, flags: u64, mem_id: u16) {
    assert_eq!(meaning(spec), (name.to_owned(), mode, ring, flags, mem_id), "{spec}");
}

#[test]
fn documented_names() {
    means("netmap:ens3f0np0-2/R@conf:slots=256", "ens3f0np0", NR_REG_ONE_NIC, 2, NR_RX_RINGS_ONLY, 0);
    let conf = parse("netmap:ens3f0np0-2/R@conf:slots=256").options.conf;
    assert_eq!(conf, Conf { tx_slots: 256, rx_slots: 256, ..Conf::default() });
    means("netmap:dmz^1", "dmz", NR_REG_ONE_SW, 1, 0, 0);
    means("netmap:lan*/x", "lan", NR_REG_NIC_SW, 0, NR_EXCLUSIVE, 0);
    means("netmap:lan{left-3/T@7", "lan{left", NR_REG_ONE_NIC, 3, NR_TX_RINGS_ONLY, 7);
    means("vale7:probe/rt", "vale7:probe", NR_REG_ALL_NIC, 0, NR_MONITOR_RX | NR_MONITOR_TX, 0);
    means("vale:a@share=vale:b", "vale:a", NR_REG_ALL_NIC, 0, 0, 0);
    assert_eq!(parse("vale:a@share=vale:b").options.share, Some(Box::new(parse("vale:b"))));
}

#[test]
fn more_names() {
    means("netmap:eth0", "eth0", NR_REG_ALL_NIC, 0, 0, 0);
    means("netmap:eth0.100^", "eth0.100", NR_REG_SW, 0, 0, 0);
    means("netmap:eth0^/x", "eth0", NR_REG_SW, 0, NR_EXCLUSIVE, 0);
    means("netmap:eth0^0", "eth0", NR_REG_ONE_SW, 0, 0, 0);
    means("netmap:eth0-4094", "eth0", NR_REG_ONE_NIC, 4094, 0, 0);
    means("netmap:eth0-007", "eth0", NR_REG_ONE_NIC, 7, 0, 0);
    means("netmap:eth0/xx", "eth0", NR_REG_ALL_NIC, 0, NR_EXCLUSIVE, 0);
    means("netmap:eth0*/d", "eth0", NR_REG_NIC_SW, 0, NR_DISCONNECTED, 0);
    let all = NR_EXCLUSIVE | NR_ZCOPY_MON | NR_MONITOR_TX | NR_MONITOR_RX | NR_RX_RINGS_ONLY | NR_TX_RINGS_ONLY;
    means("netmap:eth0/TRrtzx", "eth0", NR_REG_ALL_NIC, 0, all, 0);
    // Ring suffix, flags and region in any order; the region twice if it is the same.
    for spec in ["netmap:lan@9/z-3", "netmap:lan/z-3@9", "netmap:lan-3@9/z", "netmap:lan@9-3@9/z@9"] {
        means(spec, "lan", NR_REG_ONE_NIC, 3, NR_ZCOPY_MON, 9);
    }
    means("netmap:lan@65535", "lan", NR_REG_ALL_NIC, 0, 0, 65535);
    means("netmap:lan@1^2", "lan", NR_REG_ONE_SW, 2, 0, 1);
    means("vale:0", "vale:0", NR_REG_ALL_NIC, 0, 0, 0);
    means("vale_x9:a_B-1", "vale_x9:a_B", NR_REG_ONE_NIC, 1, 0, 0);
    means("valet:a", "valet:a", NR_REG_ALL_NIC, 0, 0, 0);
    means("netmap:vale0", "vale0", NR_REG_ALL_NIC, 0, 0, 0);
    means("netmap:日本", "日本", NR_REG_ALL_NIC, 0, 0, 0);
    means(&format!("netmap:{}", "x".repeat(63)), &"x".repeat(63), NR_REG_ALL_NIC, 0, 0, 0);
    means(&format!("netmap:{}}}y-1", "x".repeat(61)), &format!("{}}}y", "x".repeat(61)), NR_REG_ONE_NIC, 1, 0, 0);
}

#[test]
fn kinds_and_pipes() {
    let port = parse("netmap:lan}right_2-0");
    assert_eq!((port.kind, port.parent.as_str()), (PortKind::Netmap, "lan"));
    assert_eq!(port.pipe, Some(PipeEnd { role: PipeRole::Slave, id: "right_2".into() }));
    assert_eq!((port.name.as_str(), port.rings), ("lan}right_2", Rings::OneNic(0)));
    let port = parse("vale1:a{3");
    assert_eq!((port.kind, port.parent.as_str()), (PortKind::Vale, "vale1:a"));
    assert_eq!(port.pipe, Some(PipeEnd { role: PipeRole::Master, id: "3".into() }));
    assert_eq!((port.name.as_str(), port.pipe.map(|p| p.role.separator())), ("vale1:a{3", Some('{')));
    assert_eq!(parse("vale1:a").pipe, None);
}

#[test]
fn dashes_in_interface_names() {
    means("netmap:br-lan", "br-lan", NR_REG_ALL_NIC, 0, 0, 0);
    means("netmap:br-lan-2/R", "br-lan", NR_REG_ONE_NIC, 2, NR_RX_RINGS_ONLY, 0);
    means("netmap:br-lan{p-2", "br-lan{p", NR_REG_ONE_NIC, 2, 0, 0);
    means("netmap:br-2", "br", NR_REG_ONE_NIC, 2, 0, 0);
    means("netmap:br-2x", "br-2x", NR_REG_ALL_NIC, 0, 0, 0);
    means("netmap:-br", "-br", NR_REG_ALL_NIC, 0, 0, 0);

    // (name, the only existing interface, port name, mode, ring)
    let cases = [
        ("netmap:br-2", "br-2", "br-2", NR_REG_ALL_NIC, 0),
        ("netmap:br-2", "br", "br", NR_REG_ONE_NIC, 2),
        ("netmap:br-2-3", "br-2", "br-2", NR_REG_ONE_NIC, 3),
        ("netmap:br-2-3", "br-2-3", "br-2-3", NR_REG_ALL_NIC, 0),
        ("netmap:br-2^", "br-2", "br-2", NR_REG_SW, 0),
        ("netmap:br-2{x-3", "br-2", "br-2{x", NR_REG_ONE_NIC, 3),
        ("netmap:br-", "br-", "br-", NR_REG_ALL_NIC, 0),
        ("netmap:br--1", "br--1", "br--1", NR_REG_ALL_NIC, 0),
        ("netmap:br-9999", "br-9999", "br-9999", NR_REG_ALL_NIC, 0),
    ];
    for (spec, interface, name, mode, ring) in cases {
        let exists = |name: &str| name == interface;
        let port = PortSpec::parse_with(spec, exists).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((port.name.as_str(), port.nr_mode(), port.ring_id()), (name, mode, ring), "{spec}");
        assert_eq!(PortSpec::parse_with(&port.to_string(), exists), Ok(port));
    }
    let not_called = |name: &str| -> bool { panic!("called for {name}") };
    assert!(PortSpec::parse_with("netmap:lan^1", not_called).is_ok());
    assert!(PortSpec::parse_with("vale:a-1", not_called).is_ok());
    let shared = PortSpec::parse_with("vale:a@share=netmap:br-2", |name| name == "br-2").unwrap();
    assert_eq!(shared.options.share.unwrap().name, "br-2");
}

#[test]
fn options() {
    let conf = |spec: &str| parse(spec).options.conf;
    let all = Conf { tx_slots: 1, rx_slots: 2, tx_rings: 3, rx_rings: 4, host_tx_rings: 5, host_rx_rings: 6 };
    let spec = "netmap:a@conf:tx-slots=1,rx_slots=2,tx_rings=3,rx-rings=4,host-tx_rings=5,host_rx_rings=6";
    assert_eq!(conf(spec), all);
    // One direction overrides both, in any order.
    let want = Conf { tx_rings: 2, rx_rings: 7, host_tx_rings: 4, host_rx_rings: 4, ..Conf::default() };
    assert_eq!(conf("netmap:a@conf:rx-rings=7,rings=2,host-rings=4"), want);
    assert_eq!(conf("netmap:a@conf:rings=2,rx-rings=7,host_rings=4"), want);
    assert_eq!(conf("netmap:em0^0/T@conf:host-rings=4").host_rx_rings, 4);
    assert_eq!(conf("netmap:a@conf:slots=4294967295,rings=65535").tx_rings, 65535);

    let extmem = |spec: &str| parse(spec).options.extmem.unwrap();
    let file = |file: &str| ExtMem { file: file.into(), ..ExtMem::default() };
    assert_eq!(extmem("vale:a@extmem=/dev/shm/x"), file("/dev/shm/x"));
    assert_eq!(extmem("vale:a@extmem=/a,b=c"), file("/a,b=c"));
    assert_eq!(extmem("vale:a@extmem:file=/a=b:c"), file("/a=b:c"));
    let full = "vale:a@extmem:if-num=1,if_size=2,file=/x,ring-num=3,ring_size=4,buf-num=5,buf-size=6";
    let want = ExtMem { if_num: 1, if_size: 2, ring_num: 3, ring_size: 4, buf_num: 5, buf_size: 6, ..file("/x") };
    assert_eq!(extmem(full), want);

    let offset = |spec: &str| parse(spec).options.offset.unwrap();
    assert_eq!(offset("netmap:a@offset=32"), Offset { initial: 32, bits: 0 });
    assert_eq!(offset("netmap:a@offset:bits=16,initial=0"), Offset { initial: 0, bits: 16 });

    let many = parse("netmap:a-1/x@7@offset=2@conf:slots=64@share=netmap:b{c-2/R@extmem=/x");
    assert_eq!((many.mem_id, many.options.conf.tx_slots), (7, 64));
    assert_eq!(many.options.share.as_ref().unwrap().name, "b{c");
    let canonical = "netmap:a-1/x@7@conf:slots=64@share=netmap:b{c-2/R@extmem=/x@offset=2";
    assert_eq!(many.to_string(), canonical);
    assert!(parse("netmap:a").options == PortOptions::default());
}

#[test]
fn canonical_names() {
    for (spec, canonical) in [
        ("netmap:lan", "netmap:lan"),
        ("netmap:lan@9/Tx-03@9", "netmap:lan-3/xT@9"),
        ("netmap:lan}p/rzt^", "netmap:lan}p^/ztr"),
        ("vale:a*", "vale:a*"),
        ("vale:a^01", "vale:a^1"),
        ("vale:a@conf:tx-slots=8,rx_slots=8", "vale:a@conf:slots=8"),
        ("vale:a@conf:rings=2,tx-rings=1,host_rx-rings=3", "vale:a@conf:tx-rings=1,rx-rings=2,host-rx-rings=3"),
        ("vale:a@conf:slots=0", "vale:a"),
        ("vale:a@extmem:file=x", "vale:a@extmem=x"),
        ("vale:a@extmem:buf_num=9,file=x", "vale:a@extmem:file=x,buf-num=9"),
        ("vale:a@offset:initial=1,bits=0", "vale:a@offset=1"),
        ("vale:a@offset:bits=8,initial=1", "vale:a@offset:initial=1,bits=8"),
    ] {
        assert_eq!(parse(spec).to_string(), canonical, "{spec}");
        assert_eq!(parse(canonical), parse(spec));
        assert_eq!(spec.parse(), Ok(parse(spec)));
    }
}

/// Invalid names; under each, a caret at the first wrong character.
const WRONG: &str = "
netmap:lan{}
           ^
netmap:lan--1
           ^
netmap:lan@0
           ^
netmap:lan/q
           ^
vale1:
      ^
lan
^
netmap:lan-4095
           ^
netmap:lan@9@8
             ^
netmap
      ^
netmapX:lan
      ^
netmap:
       ^
Netmap:lan
^
vale
    ^
vale1
     ^
vale-1:a
    ^
vale1:-1
      ^
vale1:a:b
       ^
vale1:a.b
       ^
netmap:vale1:a
       ^
netmap:lan:1
          ^
netmap:-1
       ^
netmap:^
       ^
netmap:{a
       ^
netmap:lan-
           ^
netmap:lan-99999999999999999999
           ^
netmap:lan^4095
           ^
netmap:lan^x
           ^
netmap:lan*1
           ^
netmap:lan*^
           ^
netmap:lan-1-2^
              ^
netmap:lan^1-1
            ^
netmap:lan-1{x
            ^
netmap:lan/x{p
            ^
netmap:lan@1}p
            ^
netmap:lan{a{b
            ^
netmap:lan{a}b
            ^
netmap:lan}
           ^
netmap:lan{-1
           ^
netmap:lan{a.b
            ^
netmap:lan{a-
             ^
netmap:lan{a-x
             ^
netmap:lan/
           ^
netmap:lan/-1
           ^
netmap:lan//x
           ^
netmap:lan/x/R
            ^
netmap:lan/xq
            ^
netmap:lan/x^/R
             ^
netmap:lan@
           ^
netmap:lan@65536
           ^
netmap:lan@99999999999999999999999
           ^
netmap:lan@9x
            ^
netmap:lan x
          ^
netmap: lan
       ^
 netmap:lan
^
netmap:lan/x 
            ^
netmap:..
       ^
netmap:lan@conf
               ^
netmap:lan@conf:
                ^
netmap:lan@conf=4
               ^
netmap:lan@conf:slots
                     ^
netmap:lan@conf:slots=
                      ^
netmap:lan@conf:slots=x
                      ^
netmap:lan@conf:slots=-1
                      ^
netmap:lan@conf:slots=4x
                       ^
netmap:lan@conf:slots=4294967296
                      ^
netmap:lan@conf:rings=65536
                      ^
netmap:lan@conf:slots=4,
                        ^
netmap:lan@conf:slots=4,,rings=1
                        ^
netmap:lan@conf:slots=4,slots=4
                        ^
netmap:lan@conf:tx-slots=4,tx_slots=4
                           ^
netmap:lan@conf:slot=4
                ^
netmap:lan@conf:slots=4@conf:rings=1
                        ^
netmap:lan@conf:slots=4@
                        ^
netmap:lan@conf:slots=4@7
                        ^
netmap:lan@Conf:slots=4
           ^
netmap:lan@foo=1
           ^
netmap:lan@@7
           ^
netmap:lan@share
                ^
netmap:lan@share=
                 ^
netmap:lan@share:port=vale:b
                ^
netmap:lan@share=b
                 ^
netmap:lan@share=vale:b/q
                        ^
netmap:lan@share=vale:b@7
                        ^
netmap:lan@extmem
                 ^
netmap:lan@extmem=
                  ^
netmap:lan@extmem:buf-num=4
                           ^
netmap:lan@extmem:file=,buf-num=4
                       ^
netmap:lan@offset:bits=4
                        ^
netmap:lan@offset:initial=4,bits=65
                                 ^
netmap:lan@offset=4,bits=8
                   ^
netmap:éü{a.
           ^
";

#[test]
fn invalid_names() {
    let lines: Vec<&str> = WRONG.trim_matches('\n').split('\n').collect();
    for pair in lines.chunks(2) {
        let [spec, caret] = pair else { panic!("a name without a caret: {pair:?}") };
        let error = match PortSpec::parse(spec) {
            Ok(port) => panic!("{spec} is invalid, but was parsed as {port:?}"),
            Err(error) => error,
        };
        assert_eq!(error.to_string(), format!("{spec}: {}\n  {spec}\n  {caret}", error.message()));
        assert_eq!((error.errno(), error.spec()), (22, *spec));
    }
}

#[test]
fn empty_and_long_names() {
    assert_eq!(PortSpec::parse("").unwrap_err().at(), 0);
    let long = |spec: &str| {
        let error = PortSpec::parse(spec).unwrap_err();
        (error.at(), error.message().to_owned())
    };
    let message = |n| format!("the port name has {n} bytes, the maximum is 63");
    assert_eq!(long(&format!("netmap:{}", "x".repeat(64))), (70, message(64)));
    assert_eq!(long(&format!("netmap:{}{{y-1", "x".repeat(62))), (70, message(64)));
    assert_eq!(long(&format!("vale:{}", "x".repeat(59))), (63, message(64)));
    // The limit is inside a character: the next character is the first wrong one.
    assert_eq!(long(&format!("netmap:{}", "é".repeat(32))), (71, message(64)));
}

#[test]
fn messages() {
    let message = |spec: &str| PortSpec::parse(spec).unwrap_err().to_string();
    let want = "netmap:lan/q: unknown flag 'q' (flags are x d z t r R T)\n  netmap:lan/q\n             ^";
    assert_eq!(message("netmap:lan/q"), want);
    let want = "netmap:a\\u0007b: unexpected '\\u0007'\n  netmap:a\\u0007b\n          ^";
    assert_eq!(message("netmap:a\u{7}b"), want);
    let want = "netmap:\\u202ea\\u200bb: the name of an interface or of a pipe's parent is missing";
    assert!(message("netmap:\u{202e}a\u{200b}b").starts_with(want));
}

fn ident() -> impl Strategy<Value = String> {
    "[0-9A-Za-z_]{1,12}"
}

/// Names that match the grammar.
fn spec() -> impl Strategy<Value = String> {
    let number = prop_oneof![Just(0), Just(4094), 0..4095u32];
    let port = prop_oneof![
        "[0-9A-Za-z_]{1,8}(-[a-z]{1,4})?".prop_map(|n| format!("netmap:{n}")),
        (ident(), ident()).prop_map(|(s, p)| format!("vale{s}:{p}")),
        ident().prop_map(|p| format!("vale:{p}")),
    ];
    let pipe = proptest::option::of(("[{}]", ident()).prop_map(|(s, id)| s + &id));
    let mode = prop_oneof![
        Just(String::new()),
        Just("^".into()),
        Just("*".into()),
        number.clone().prop_map(|n| format!("-{n}")),
        number.prop_map(|n| format!("^{n}")),
    ];
    let flags = proptest::option::of("/[xdztrRT]{1,8}");
    let mem_id = proptest::option::of((1..=65535u32).prop_map(|n| format!("@{n}")));
    let options = prop_oneof![
        Just(String::new()),
        concat!(
            "(@conf:(tx[-_])?slots=[0-9]{1,5},host_rings=[0-9]{1,4},rx-rings=[0-9])?",
            "(@share=netmap:[a-z]{1,3}([{][a-z])?(-[0-9])?)?",
        ),
        "(@offset:bits=[0-9],initial=[0-9]{1,9})?(@extmem=[ -?A-~é]{1,9})?(@conf:rings=3)?",
        "@extmem:(if-num=[0-9]{1,3},)?file=[ -+.-?A-~]{1,9}(,buf_size=[0-9]{1,6})?",
    ];
    (port, pipe, mode, flags, mem_id, options).prop_map(|(port, pipe, mode, flags, mem_id, options)| {
        // The order of the three in the middle is free; this order is not the canonical one.
        let or = Option::unwrap_or_default;
        format!("{port}{}{}{}{mode}{options}", or(pipe), or(mem_id), or(flags))
    })
}

/// Checks the properties that hold for any text.
fn check(text: &str, exists: impl Fn(&str) -> bool) -> Result<(), TestCaseError> {
    match PortSpec::parse_with(text, &exists) {
        Ok(port) => {
            prop_assert!((1..=63).contains(&port.name.len()));
            prop_assert!(port.ring_id() < 4095);
            let mut name = port.parent.clone();
            if let Some(pipe) = &port.pipe {
                name.push(pipe.role.separator());
                name.push_str(&pipe.id);
            }
            prop_assert_eq!(&name, &port.name);
            // If both "a" and "a-0" are interfaces, ring 0 of the first has no canonical name.
            let meant = |name: &str| {
                let shared = port.options.share.as_ref();
                name == port.parent || shared.is_some_and(|port| name == port.parent)
            };
            let again = PortSpec::parse_with(&port.to_string(), meant);
            prop_assert_eq!(again.as_ref(), Ok(&port));
        }
        Err(error) => {
            prop_assert!(text.is_char_boundary(error.at()));
            prop_assert_eq!(error.to_string().lines().count(), 3);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn any_text(text: String, exists: bool) {
        check(&text, |_| exists)?;
        check(&format!("netmap:{text}"), |_| exists)?;
        check(&format!("vale:a@{text}"), |_| exists)?;
    }

    #[test]
    fn texts_of_separators(text in "(netmap:|vale)[ab0-9xR:{}^*/@=,.-]{0,12}", exists: bool) {
        check(&text, |_| exists)?;
    }

    #[test]
    fn valid_names(text in spec(), exists: bool) {
        prop_assert!(PortSpec::parse(&text).is_ok(), "{}", PortSpec::parse(&text).unwrap_err());
        check(&text, |_| exists)?;
    }

    /// A valid name with one character removed or replaced.
    #[test]
    fn valid_names_with_one_change(text in spec(), at: prop::sample::Index, c in proptest::option::of("[ -~]")) {
        let (at, old) = text.char_indices().nth(at.index(text.chars().count())).unwrap();
        let text = format!("{}{}{}", &text[..at], c.unwrap_or_default(), &text[at + old.len_utf8()..]);
        check(&text, |_| false)?;
    }
}

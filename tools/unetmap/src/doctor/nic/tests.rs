//! The judge of interfaces, on facts that are made up.

use super::*;
use crate::doctor::State;

const ALL: XdpFeatures = XdpFeatures {
    basic: true,
    redirect: true,
    xmit: true,
    zerocopy: true,
    hw_offload: false,
    rx_sg: true,
    xmit_sg: true,
    zc_max_segs: 8,
};
const NEW: Option<Kernel> = Some(Kernel(6, 6));

fn facts() -> Facts {
    Facts {
        link: Link {
            index: 2,
            name: "eth0".into(),
            mtu: 1500,
            up: true,
            carrier: true,
            mac: Some([2, 0, 0, 0, 0, 0x1a]),
            kind: None,
            xdp: None,
        },
        driver: Some(DriverInfo { name: "ice".into(), version: "6.6".into() }),
        queues: Channels { rx: 2, tx: 2 },
        settings: None,
        features: Some(ALL),
        program: None,
        port: None,
        uid: 0,
    }
}

fn with_link(change: impl Fn(&mut Link)) -> Facts {
    let mut facts = facts();
    change(&mut facts.link);
    facts
}

fn find(facts: &Facts, kernel: Option<Kernel>, what: &str) -> Check {
    judge(facts, kernel).checks.into_iter().find(|check| check.what == what).unwrap_or_else(|| panic!("{what}"))
}

#[test]
fn all_is_well() {
    let finding = judge(&facts(), NEW);
    assert!(finding.ok && finding.checks.iter().all(|check| check.state == State::Ok), "{finding:?}");
    assert_eq!(
        (finding.way, finding.state(), finding.mac.as_deref()),
        (Some(ZERO_COPY), "up", Some("02:00:00:00:00:1a"))
    );
}

#[test]
fn the_way_of_packets() {
    let with = |change: fn(&mut XdpFeatures)| {
        let mut features = ALL;
        change(&mut features);
        Facts { features: Some(features), ..facts() }
    };
    for (facts, way) in [
        (facts(), Some(ZERO_COPY)),
        (with(|f| f.zerocopy = false), Some(COPY)),
        (with(|f| f.rx_sg = false), Some(ZERO_COPY)),
        (with(|f| *f = XdpFeatures::default()), Some(GENERIC)),
        (with(|f| f.redirect = false), Some(GENERIC)),
        (Facts { features: None, ..self::facts() }, None),
    ] {
        assert_eq!(judge(&facts, NEW).way, way, "{facts:?}");
    }
    assert!(!find(&with(|f| f.redirect = false), NEW, "way").text.contains("mtu"), "that would not help");
    let old = Facts { features: None, ..facts() };
    assert!(judge(&old, NEW).ok && find(&old, NEW, "way").state == State::Unknown);
    assert!(judge(&old, NEW).checks.iter().all(|check| check.what != "driver"), "that is not known");

    let veth =
        Facts { link: Link { kind: Some("veth".into()), ..facts().link }, ..with(|f| *f = XdpFeatures::default()) };
    assert!(find(&veth, NEW, "way").text.contains("fewer receive queues"));

    let mut large = with(|f| f.rx_sg = false);
    large.link.mtu = NATIVE_MTU;
    assert_eq!(judge(&large, NEW).way, Some(ZERO_COPY));
    large.link.mtu += 1;
    assert_eq!(judge(&large, NEW).way, Some(GENERIC));
    assert_eq!(find(&large, NEW, "way").fix.as_deref(), Some("ip link set dev eth0 mtu 3400"));
}

#[test]
fn what_the_driver_lacks() {
    let lacks = |features| judge(&Facts { features: Some(features), ..facts() }, NEW).checks.last().cloned().unwrap();
    assert_ne!(lacks(ALL).what, "driver");
    for (features, text) in [
        (
            XdpFeatures { zerocopy: false, rx_sg: false, ..ALL },
            "it has no zero copy, no received frames of several buffers",
        ),
        (XdpFeatures { rx_sg: false, ..ALL }, "it has no received frames of several buffers"),
        (XdpFeatures::default(), "it has no native XDP"),
    ] {
        let check = lacks(features);
        assert_eq!((check.what, check.text.as_str(), check.blocks()), ("driver", text, false));
    }
}

#[test]
fn long_frames_need_room() {
    let at = |mtu, features, kernel| {
        let facts = Facts { features: Some(features), ..with_link(|link| link.mtu = mtu) };
        find(&facts, kernel, "MTU")
    };
    let single = XdpFeatures { zc_max_segs: 1, ..ALL };
    let copy = XdpFeatures { zerocopy: false, ..single };
    for (mtu, features, kernel, state) in [
        (2030, single, Some(Kernel(5, 11)), State::Ok),
        (2031, ALL, Some(Kernel(6, 5)), State::Missing),
        (2031, ALL, NEW, State::Ok),
        (2031, single, NEW, State::Missing),
        (2031, copy, NEW, State::Ok),
        (9000, ALL, None, State::Unknown),
        (u32::MAX, ALL, NEW, State::Ok),
    ] {
        assert_eq!(at(mtu, features, kernel).state, state, "{mtu} {features:?} {kernel:?}");
    }
    assert_eq!(at(2031, single, NEW).fix.as_deref(), Some("ip link set dev eth0 mtu 2030"));
    assert!(at(9000, ALL, NEW).text.contains("up to 5 of the default buffers"));
}

#[test]
fn states_of_the_link() {
    let down = with_link(|link| (link.up, link.carrier) = (false, false));
    assert!(!judge(&down, NEW).ok && judge(&down, NEW).state() == "down");
    assert_eq!(find(&down, NEW, "state").state, State::Missing);
    assert_eq!(find(&down, NEW, "state").fix.as_deref(), Some("ip link set dev eth0 up"));
    let quiet = with_link(|link| link.carrier = false);
    assert!(judge(&quiet, NEW).ok && judge(&quiet, NEW).state() == "no carrier");
    let tunnel = with_link(|link| link.mac = None);
    assert_eq!(find(&tunnel, NEW, "interface").state, State::Unknown);
}

#[test]
fn more_queues_are_offered() {
    let with = |settings| find(&Facts { settings: Some(settings), ..facts() }, NEW, "queues").fix;
    let pairs = ChannelSettings { combined: 2, max_combined: 4, ..ChannelSettings::default() };
    assert_eq!(with(pairs).as_deref(), Some("ethtool -L eth0 combined 4 gives the most"));
    assert_eq!(with(ChannelSettings { combined: 4, ..pairs }), None);
    let single = ChannelSettings { rx: 1, tx: 2, max_rx: 3, max_tx: 2, ..ChannelSettings::default() };
    assert_eq!(with(single).as_deref(), Some("ethtool -L eth0 rx 3 tx 2 gives the most"));
    let finding = judge(&Facts { settings: Some(pairs), ..facts() }, NEW);
    assert_eq!((finding.queues.max_rx, finding.queues.max_tx), (Some(4), Some(4)));
    assert_eq!(judge(&facts(), NEW).queues.max_rx, None);
}

#[test]
fn programs_of_others_are_in_the_way() {
    let program = Program { mode: AttachedMode::Native, id: 7, name: Some("lb".into()), holder: None, ours: false };
    let holder = Holder { pid: 99, command: "balancer".into(), link: 3 };
    for (program, fix) in [
        (program.clone(), "ip link set dev eth0 xdp off"),
        (Program { mode: AttachedMode::Generic, ..program.clone() }, "ip link set dev eth0 xdpgeneric off"),
        (Program { mode: AttachedMode::Hardware, ..program.clone() }, "ip link set dev eth0 xdpoffload off"),
        (Program { holder: Some(holder), ..program.clone() }, "end that process, or bpftool link detach id 3"),
    ] {
        let facts = Facts { program: Some(program), ..facts() };
        let check = find(&facts, NEW, "XDP program");
        assert!(check.blocks() && check.text.contains("lb (id 7), "), "{check:?}");
        assert_eq!(check.fix.as_deref(), Some(fix));
    }
}

#[test]
fn an_open_port_of_ours() {
    let program = Program { mode: AttachedMode::Generic, id: 7, name: None, holder: None, ours: true };
    let port =
        |users: &[u32]| Some(OpenPort { interface: "eth0".into(), manner: Some(GENERIC.into()), users: users.into() });
    let open = Facts { program: Some(program), port: port(&[0]), ..facts() };
    assert!(judge(&open, NEW).ok);
    assert_eq!(judge(&open, NEW).way, Some(GENERIC), "as it is, not as it would be");
    let others = Facts { port: port(&[0, 1000]), ..open };
    assert!(find(&others, NEW, "XDP program").text.contains("user 1000 has the port open"));
    assert!(!judge(&others, NEW).ok);
    let unseen = Facts { port: None, ..others };
    assert!(!judge(&unseen, NEW).ok);
    let closed = Facts { program: None, port: port(&[0]), ..facts() };
    assert_eq!(judge(&closed, NEW).way, Some(ZERO_COPY), "a port of this name in another namespace");
}

// SPDX-License-Identifier: BSD-2-Clause
//! Tests of the interface checks on constructed facts.

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
const NEW: Option<Version> = Some(Version(6, 6));

/// Zero copy works.
fn trial() -> QueueTrial {
    QueueTrial {
        queue: 1,
        native: Ok(()),
        generic: None,
        zero_copy: Some(Ok(())),
        copy: Some(Ok(())),
        queues_with_program: None,
    }
}

fn untested(facts: Facts) -> Facts {
    Facts { trial: Err("why".into()), ..facts }
}

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
            has_vnet_header: false,
            xdp: None,
        },
        driver: Some(DriverInfo {
            name: "ice".into(),
            version: "6.6".into(),
            firmware: String::new(),
            bus: String::new(),
            built_in: false,
        }),
        queues: Channels { rx: 2, tx: 2 },
        settings: None,
        features: Some(ALL),
        offloads: Some(Offloads::Driver { removes_tags: true }),
        stays_on: None,
        program: None,
        port: None,
        way: Way::Auto,
        found: None,
        no_bpf: None,
        no_zero_copy: None,
        trial: Ok(trial()),
        uid: 0,
    }
}

fn with_link(change: impl Fn(&mut Link)) -> Facts {
    let mut facts = facts();
    change(&mut facts.link);
    facts
}

#[test]
fn frames_that_arrive_unfinished_are_completed_as_the_kernel_can() {
    let facts = Facts { stays_on: Some("rx-gro-hw".into()), offloads: Some(Offloads::Relayed), ..untested(facts()) };
    for (version, way) in [("6.6", RELAY), ("6.1", PACKET)] {
        let check = find(&facts, Version::parse(version), "data path");
        assert!(check.text.starts_with(way) && check.text.contains("rx-gro-hw cannot be switched off"), "{check:?}");
    }
}

fn find(facts: &Facts, kernel: Option<Version>, what: &str) -> Check {
    check(facts, kernel).checks.into_iter().find(|check| check.what == what).unwrap_or_else(|| panic!("{what}"))
}

#[test]
fn all_checks_are_ok_on_a_complete_interface() {
    let report = check(&facts(), NEW);
    assert!(report.ok && report.checks.iter().all(|check| check.state == State::Ok), "{report:?}");
    assert_eq!(
        (report.data_path, report.state(), report.mac.as_deref()),
        (Some(ZERO_COPY), "up", Some("02:00:00:00:00:1a"))
    );
}

#[test]
fn an_untested_data_path_follows_from_driver_features_and_mtu() {
    let with = |change: fn(&mut XdpFeatures)| {
        let mut features = ALL;
        change(&mut features);
        Facts { features: Some(features), ..untested(facts()) }
    };
    assert!(find(&untested(facts()), NEW, "data path").text.contains("untested (why)"));
    for (facts, data_path) in [
        (untested(facts()), Some(ZERO_COPY)),
        (with(|f| f.zerocopy = false), Some(COPY)),
        (with(|f| f.rx_sg = false), Some(ZERO_COPY)),
        (with(|f| *f = XdpFeatures::default()), Some(GENERIC)),
        (with(|f| f.redirect = false), Some(GENERIC)),
        (Facts { features: None, ..untested(self::facts()) }, None),
    ] {
        assert_eq!(check(&facts, NEW).data_path, data_path, "{facts:?}");
    }
    assert!(
        !find(&with(|f| f.redirect = false), NEW, "data path").text.contains("mtu"),
        "another MTU would not change the data path"
    );
    let old = Facts { features: None, ..untested(facts()) };
    assert!(check(&old, NEW).ok && find(&old, NEW, "data path").state == State::Unknown);
    assert!(check(&old, NEW).checks.iter().all(|check| check.what != "driver"), "the features are unknown");

    let veth =
        Facts { link: Link { kind: Some("veth".into()), ..facts().link }, ..with(|f| *f = XdpFeatures::default()) };
    assert!(find(&veth, NEW, "data path").text.contains("fewer receive queues"));

    let mut large = with(|f| f.rx_sg = false);
    large.link.mtu = NATIVE_MTU;
    assert_eq!(check(&large, NEW).data_path, Some(ZERO_COPY));
    large.link.mtu += 1;
    assert_eq!(check(&large, NEW).data_path, Some(GENERIC));
    assert_eq!(find(&large, NEW, "data path").fix.as_deref(), Some("ip link set dev eth0 mtu 3400"));
}

#[test]
fn the_trial_decides_about_the_data_path() {
    let refused = |errno| Err(io::Error::from_raw_os_error(errno));
    let with = |change: &dyn Fn(&mut QueueTrial)| {
        let mut trial = trial();
        change(&mut trial);
        Facts { trial: Ok(trial), ..facts() }
    };
    let driver = |name: &str, facts: Facts| {
        let info = DriverInfo { name: name.into(), ..facts.driver.clone().unwrap() };
        Facts { driver: Some(info), ..facts }
    };
    let untrusted = || Facts { no_zero_copy: Some("it spoils it".into()), ..with(&|trial| trial.zero_copy = None) };
    let driver_refuses = with(&|trial| trial.zero_copy = Some(refused(22)));
    let generic = with(&|trial| {
        (trial.native, trial.generic, trial.zero_copy) = (refused(95), Some(Ok(())), None);
    });
    for (facts, data_path, part) in [
        (with(&|_| {}), Some(ZERO_COPY), "tried on queue 1"),
        (driver_refuses, Some(COPY), "refuses zero copy (Invalid argument (os error 22))"),
        (
            driver("virtio_net", with(&|trial| trial.zero_copy = Some(refused(22)))),
            Some(COPY),
            "QEMU's iommu_platform=on",
        ),
        (untrusted(), Some(COPY), "tried on queue 1; it spoils it"),
        (untested(untrusted()), Some(COPY), "it spoils it"),
        (Facts { way: Way::Generic, ..untrusted() }, Some(GENERIC), "its way is `generic` (unetmap nic eth0 way auto)"),
        (Facts { found: Some(("why".into(), false)), ..untrusted() }, Some(RELAY), "why"),
        (Facts { found: Some(("why".into(), true)), ..untrusted() }, Some(PACKET), "why"),
        (Facts { way: Way::Packet, ..untrusted() }, Some(PACKET), "its way is `packet` (unetmap nic eth0 way auto)"),
        (Facts { no_bpf: Some("it lacks CAP_BPF".into()), ..untrusted() }, Some(PACKET), "it lacks CAP_BPF"),
        (driver("vmxnet3", with(&|_| {})), Some(GENERIC), "after the device was reset"),
        (with(&|trial| trial.zero_copy = None), Some(COPY), "does not support zero copy"),
        (
            with(&|trial| trial.queues_with_program = Some(4)),
            Some(COPY),
            "adds queues while an XDP program is attached",
        ),
        (generic, Some(GENERIC), "refused the XDP program"),
        (with(&|trial| (trial.zero_copy, trial.copy) = (None, Some(refused(16)))), None, "another AF_XDP socket"),
    ] {
        let report = check(&facts, NEW);
        let check = find(&facts, NEW, "data path");
        assert!(report.data_path == data_path && report.ok && check.text.contains(part), "{report:?}");
    }
    for facts in [
        with(&|trial| (trial.native, trial.generic) = (refused(95), Some(refused(95)))),
        with(&|trial| (trial.zero_copy, trial.copy) = (None, Some(refused(105)))),
    ] {
        assert!(find(&facts, NEW, "data path").blocks(), "{facts:?}");
    }
    assert!(find(&with(&|trial| trial.queues_with_program = Some(4)), NEW, "queues").text.contains("4 receive queues"));
}

#[test]
fn missing_driver_features_are_reported() {
    let last = |features| check(&Facts { features: Some(features), ..facts() }, NEW).checks.last().cloned().unwrap();
    assert_ne!(last(ALL).what, "driver");
    for (features, text) in [
        (
            XdpFeatures { zerocopy: false, rx_sg: false, ..ALL },
            "the driver does not support zero copy, received frames of several buffers",
        ),
        (XdpFeatures { rx_sg: false, ..ALL }, "the driver does not support received frames of several buffers"),
        (XdpFeatures::default(), "the driver does not support native XDP"),
    ] {
        let check = last(features);
        assert_eq!((check.what, check.text.as_str(), check.blocks()), ("driver", text, false));
    }
}

#[test]
fn long_frames_need_several_buffers() {
    let at = |mtu, features, kernel| {
        let facts = Facts { features: Some(features), ..untested(with_link(|link| link.mtu = mtu)) };
        find(&facts, kernel, "MTU")
    };
    let single = XdpFeatures { zc_max_segs: 1, ..ALL };
    let copy = XdpFeatures { zerocopy: false, ..single };
    for (mtu, features, kernel, state) in [
        (2030, copy, Some(Version(5, 11)), State::Ok),
        (2031, copy, Some(Version(6, 5)), State::Missing),
        (2031, copy, NEW, State::Ok),
        (3822, single, Some(Version(5, 11)), State::Ok),
        (3823, ALL, Some(Version(6, 5)), State::Missing),
        (3823, ALL, NEW, State::Ok),
        (3823, single, NEW, State::Missing),
        (9000, ALL, None, State::Unknown),
        (u32::MAX, ALL, NEW, State::Ok),
    ] {
        assert_eq!(at(mtu, features, kernel).state, state, "{mtu} {features:?} {kernel:?}");
    }
    assert_eq!(at(3823, single, NEW).fix.as_deref(), Some("ip link set dev eth0 mtu 3822"));
    assert!(at(9000, copy, NEW).text.contains("up to 5 of the default buffers"));
}

#[test]
fn an_interface_that_is_down_or_has_no_carrier_can_be_opened() {
    let down = with_link(|link| (link.up, link.carrier) = (false, false));
    assert!(check(&down, NEW).ok && check(&down, NEW).state() == "down");
    assert_eq!(find(&down, NEW, "state").state, State::Missing);
    assert_eq!(find(&down, NEW, "state").fix.as_deref(), Some("ip link set dev eth0 up"));
    let no_carrier = with_link(|link| link.carrier = false);
    assert!(check(&no_carrier, NEW).ok && check(&no_carrier, NEW).state() == "no carrier");
    let tunnel = with_link(|link| link.mac = None);
    assert_eq!(find(&tunnel, NEW, "interface").state, State::Missing);
}

#[test]
fn the_maximum_of_queues_is_reported_with_its_command() {
    let with = |settings| find(&Facts { settings: Some(settings), ..facts() }, NEW, "queues").fix;
    let pairs = ChannelSettings { combined: 2, max_combined: 4, ..ChannelSettings::default() };
    assert_eq!(with(pairs).as_deref(), Some("ethtool -L eth0 combined 4 sets the maximum"));
    assert_eq!(with(ChannelSettings { combined: 4, ..pairs }), None);
    let single = ChannelSettings { rx: 1, tx: 2, max_rx: 3, max_tx: 2, ..ChannelSettings::default() };
    assert_eq!(with(single).as_deref(), Some("ethtool -L eth0 rx 3 tx 2 sets the maximum"));
    let report = check(&Facts { settings: Some(pairs), ..facts() }, NEW);
    assert_eq!((report.queues.max_rx, report.queues.max_tx), (Some(4), Some(4)));
    assert_eq!(check(&facts(), NEW).queues.max_rx, None);
}

#[test]
fn an_xdp_program_of_another_process_blocks() {
    let program = Program {
        mode: AttachedMode::Native,
        id: 7,
        name: Some("lb".into()),
        members: Vec::new(),
        holder: None,
        ours: false,
    };
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
fn an_open_port_blocks_only_other_users() {
    let program =
        Program { mode: AttachedMode::Generic, id: 7, name: None, members: Vec::new(), holder: None, ours: true };
    let port = |users: &[u32]| {
        Some(OpenPort { interface: "eth0".into(), data_path: Some(GENERIC.into()), copied: None, users: users.into() })
    };
    let open = Facts { program: Some(program), port: port(&[0]), ..facts() };
    assert!(check(&open, NEW).ok);
    assert_eq!(check(&open, NEW).data_path, Some(GENERIC), "the data path of the open port");
    let others = Facts { port: port(&[0, 1000]), ..open };
    assert!(find(&others, NEW, "XDP program").text.contains("user 1000 has the port open"));
    assert!(!check(&others, NEW).ok);
    let unknown = Facts { port: None, ..others };
    assert!(!check(&unknown, NEW).ok);
    let closed = Facts { program: None, port: port(&[0]), ..facts() };
    assert_eq!(check(&closed, NEW).data_path, Some(ZERO_COPY), "the port is in another network namespace");
}

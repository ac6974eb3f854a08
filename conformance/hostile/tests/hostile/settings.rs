// SPDX-License-Identifier: BSD-2-Clause
//! Settings that users make as many and as long as they can, without the ports and interfaces that they are for: each
//! user has its bound, and what is kept of one user's costs and spoils nothing of another's.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::time::SystemTime;

use conformance::home::{Guard, kill_daemon};
use conformance::net::{CABLE, DIRECT, Net};
use conformance::{Home, isolated, isolated_with_interfaces, until};
use conformance_hostile::raw::ControlConnection;
use serde_json::Value;
use unetmap::errno::ENOMEM;
use unetmap_core::control::nic::{Filter, MAX_EXPRESSION, MAX_INSNS, NicAction, NicRequest};
use unetmap_core::control::vale::{Direction, ValeAction};
use unetmap_core::control::{ControlRequest, EventsRequest, ValeRequest, wire};
use unetmap_sys::xdp::ClassicInsn;

use crate::budgets::{ALICE, BOB, PIPES, connect_as, daemon_with};

/// Sends a request about a switch or its port as a user; returns the errno, and the state or the reason.
#[track_caller]
fn vale(home: &Home, uid: u32, name: &str, action: ValeAction) -> (i32, String) {
    let raw = connect_as(home, uid);
    let request = ValeRequest { name: name.into(), action };
    raw.send(&wire::encode(ValeRequest::KIND, 0, 0, 0, &request.encode())).expect("a daemon that listens");
    let reply = raw.receive().expect("an answer");
    (reply.errno, reply.text())
}

/// The rules of a user's port.
#[track_caller]
fn rules(home: &Home, uid: u32, name: &str) -> Value {
    let (errno, text) = vale(home, uid, name, ValeAction::ShowPort);
    assert_eq!(errno, 0, "{text}");
    serde_json::from_str::<Value>(&text).expect("JSON")["rules"].clone()
}

/// A filter with the longest expression, and one instruction.
fn long_filter() -> ValeAction {
    let accept = ClassicInsn { code: 6, jt: 0, jf: 0, k: 65_535 };
    ValeAction::Filter(Direction::In, Some(Filter { expression: "x".repeat(4096), program: vec![accept] }))
}

/// A file beside the socket, about what outlasts the daemon.
fn lasting(home: &Home, name: &str) -> PathBuf {
    home.folder().join("unetmapd.sock.ports").join(name)
}

/// Which file it is, and when it was written.
#[track_caller]
fn written(home: &Home, name: &str) -> (u64, SystemTime) {
    let file = fs::metadata(lasting(home, name)).expect("the daemon has written it");
    (file.ino(), file.modified().expect("a time"))
}

/// Kills all processes of a daemon, and starts the next one.
fn next_daemon(home: &Home, daemon: Guard) -> Guard {
    kill_daemon(home);
    drop(daemon);
    daemon_with(home, PIPES).expect("this process could be several users before")
}

#[test]
fn what_a_user_sets_is_bounded_and_kept_apart_from_what_others_set() {
    isolated(|home| {
        let Some(daemon) = daemon_with(home, PIPES) else { return };
        for (uid, storm) in [(0, 7), (BOB, 8)] {
            assert_eq!(vale(home, uid, "vale0:a", ValeAction::Storm(storm)).0, 0);
        }
        let before = [written(home, "state"), written(home, &format!("settings-{BOB}"))];
        let granted = (0..2000)
            .map(|n| vale(home, ALICE, &format!("vale1:p{n}"), long_filter()))
            .position(|(errno, why)| {
                let is_told = why.contains(&format!("the settings of user {ALICE} would take 260 KiB, more than 256"));
                assert!(errno == 0 || errno == ENOMEM && is_told, "{errno} {why}");
                errno != 0
            })
            .expect("a bound");
        assert!((60..64).contains(&granted), "{granted} filters of 4 KiB in 256 KiB");
        // What is there can be changed, and made less.
        assert_eq!(vale(home, ALICE, "vale1:p0", long_filter()).0, 0);
        assert_eq!(vale(home, ALICE, "vale1:p1", ValeAction::Clear).0, 0);
        assert_eq!([written(home, "state"), written(home, &format!("settings-{BOB}"))], before, "of others");
        let daemon = next_daemon(home, daemon);
        let storms = || [0, BOB].map(|uid| rules(home, uid, "vale0:a")["storm"].clone());
        assert_eq!(storms(), [7, 8]);
        assert_eq!(rules(home, ALICE, "vale1:p0")["filter_in"]["instructions"], 1);
        // A file that is damaged costs its own user's settings alone.
        let own = lasting(home, &format!("settings-{ALICE}"));
        let file = File::options().write(true).open(&own).expect("our own file");
        file.set_len(100).expect("it is cut short");
        let daemon = next_daemon(home, daemon);
        assert_eq!(storms(), [7, 8]);
        let log = fs::read_to_string(home.log()).expect("the log");
        assert!(log.contains(&format!("the file settings-{ALICE} cannot be used: EOF")), "{log}");
        assert!(!own.exists() && own.with_extension("1").exists());
        for uid in [0, BOB] {
            assert_eq!(vale(home, uid, "vale0:a", ValeAction::Clear).0, 0);
        }
        fs::remove_file(own.with_extension("1")).expect("our own file");
        // Nothing is left, so that the next request with something to keep, and one that takes it back, leave no file.
        assert_eq!(vale(home, ALICE, "vale1:p0", ValeAction::Storm(1)).0, 0);
        assert_eq!(vale(home, ALICE, "vale1:p0", ValeAction::Clear).0, 0);
        assert!(!lasting(home, "").exists(), "the folder is removed with its last file");
        drop(daemon);
    });
}

/// Sends a request in the namespace of a test's programs; returns the errno, and the text.
#[track_caller]
fn ask<R: ControlRequest>((home, net): (&Home, &Net), uid: u32, request: &R) -> (i32, String) {
    let connected = net.near.run(|| ControlConnection::connect_as(&home.socket(), uid)).expect("a namespace");
    let raw = connected.expect("a daemon that listens");
    raw.send(&wire::encode(R::KIND, 0, 0, 0, &request.encode())).expect("a daemon that listens");
    let reply = raw.receive().expect("an answer");
    (reply.errno, reply.text())
}

#[test]
fn filters_of_interfaces_are_bounded_by_their_bytes() {
    isolated_with_interfaces(|home| {
        fs::set_permissions(home.folder(), Permissions::from_mode(0o755)).expect("our own folder");
        let policy = format!("[[rule]]\nports = [\"*\"]\nusers = [{ALICE}, {BOB}]\naccess = \"direct\"\n");
        let Some(net) = Net::new(home, &policy, CABLE) else { return };
        for n in 0..5 {
            let [one, other] = ["a", "b"].map(|end| format!("{end}{n}"));
            net.near.ip(&["link", "add", &one, "type", "veth", "peer", "name", &other]).expect("a pair");
        }
        let insn = |code| ClassicInsn { code, jt: 0, jf: 0, k: 65_535 };
        let program: Vec<_> = vec![insn(0x87); MAX_INSNS - 1].into_iter().chain([insn(6)]).collect();
        let set = |uid, interface: &str| {
            let filter = Filter { expression: "x".repeat(MAX_EXPRESSION), program: program.clone() };
            ask((home, &net), uid, &NicRequest { interface: interface.into(), action: NicAction::Filter(filter) })
        };
        let names: Vec<String> = (0..5).flat_map(|n| [format!("a{n}"), format!("b{n}")]).collect();
        let refused = names.iter().position(|name| {
            let (errno, why) = set(ALICE, name);
            let is_told = why.contains(&format!("the filters of user {ALICE} would take 288 KiB, more than 256"));
            assert!(errno == 0 || errno == ENOMEM && is_told, "{errno} {why}");
            errno != 0
        });
        assert_eq!(refused, Some(7), "of 36 KiB each");
        assert_eq!((set(BOB, "b4").0, set(ALICE, "a0").0, set(ALICE, "b3").0), (0, 0, ENOMEM));
        let off = NicRequest { interface: "a0".into(), action: NicAction::NoFilter };
        assert_eq!((ask((home, &net), ALICE, &off).0, set(ALICE, "b3").0), (0, 0));
    });
}

/// Root of the interface's namespace sets it up and down as fast as it can.
#[test]
fn changes_of_an_interface_take_no_other_events() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let _port = net.open("netmap:va");
        let events = || {
            let (errno, text) = ask((home, &net), 0, &EventsRequest { after: 0 });
            assert_eq!(errno, 0, "{text}");
            serde_json::from_str::<Value>(&text).expect("JSON")
        };
        let batch = home.folder().join("batch");
        fs::write(&batch, "link set va down\nlink set va up\n".repeat(100)).expect("our own folder");
        until("more have happened than are kept", || {
            net.near.ip(&["-batch", &batch.to_string_lossy()]).expect("an interface");
            events()["last"].as_u64() > Some(600)
        });
        let all = events();
        let kinds: Vec<&str> =
            all["events"].as_array().expect("a list").iter().filter_map(|e| e["event"].as_str()).collect();
        assert!(kinds.contains(&"session-opened") && kinds.contains(&"link-up"), "{kinds:?}");
        let last = all["last"].as_u64().expect("a number");
        assert_eq!(all["missed"].as_u64(), Some(last - kinds.len() as u64));
    });
}

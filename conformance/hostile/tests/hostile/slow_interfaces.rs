// SPDX-License-Identifier: BSD-2-Clause
//! Interfaces that the kernel takes long to open or to close: all other requests are answered meanwhile, and those
//! about such an interface wait.

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::thread::{self, sleep};
use std::time::Duration;

use conformance::home::until;
use conformance::net::{CABLE, DIRECT, HELD, Held, MEDIATED, Net, set_policy};
use conformance::packet::Rng;
use conformance::replace::try_replace;
use conformance::stop::Stop;
use conformance::{Home, isolated_with_interfaces};
use conformance_hostile::raw::{ControlConnection, RawPort};
use unetmap::abi::*;
use unetmap::errno::{EACCES, EAGAIN, EBUSY, EINVAL, ENXIO};
use unetmap_core::control::request::NetmapRequest;
use unetmap_core::control::{ControlRequest, wire};
use zerocopy::IntoBytes as _;

const ALICE: u32 = 4001;
const BOB: u32 = 4002;

fn register() -> NmreqRegister {
    NmreqRegister { nr_mode: NR_REG_ALL_NIC, ..Default::default() }
}

/// Sends a request about `va`, whose answer is not received.
#[track_caller]
fn ask(net: &Net, home: &Home, kind: u16, body: &[u8]) -> ControlConnection {
    ask_as(0, (net, home), (kind, "va", body))
}

/// Sends a request of a user about a name.
#[track_caller]
fn ask_as(uid: u32, (net, home): (&Net, &Home), what: (u16, &str, &[u8])) -> ControlConnection {
    let raw = connect_as(uid, net, home);
    ask_by(&raw, what);
    raw
}

#[track_caller]
fn connect_as(uid: u32, net: &Net, home: &Home) -> ControlConnection {
    let connected = net.near.run(|| ControlConnection::connect_as(&home.socket(), uid));
    connected.expect("a namespace").expect("a daemon")
}

/// Sends a request about a name.
#[track_caller]
fn ask_by(raw: &ControlConnection, (kind, name, body): (u16, &str, &[u8])) {
    let request = NetmapRequest::new(kind, name, body).expect("a short name");
    raw.send(&wire::encode(NetmapRequest::KIND, 0, 0, 0, &request.encode())).expect("the daemon listens");
}

/// Asks for `va` for a user.
#[track_caller]
fn open_as(uid: u32, net: &Net, home: &Home) -> ControlConnection {
    ask_as(uid, (net, home), (NETMAP_REQ_REGISTER, "va", register().as_bytes()))
}

/// Pieces of work on requests to open a port so far: one that names an interface takes two before it waits for it.
fn opens(home: &Home) -> u64 {
    home.snapshot().daemon.work.kinds.get("REGISTER").map_or(0, |kind| kind.pieces)
}

/// A rule that gives users `va`.
fn policy(users: &[u32], access: &str) -> String {
    format!("[[rule]]\nusers = {users:?}\nports = [\"va\"]\npipes = true\naccess = \"{access}\"\n")
}

/// As [`Net::with_fault`], with a socket that all users can connect to.
fn net_for_users(home: &Home, policy: &str, fault: &str) -> Option<Net> {
    set_permissions(home.folder(), Permissions::from_mode(0o755)).expect("our own folder");
    Net::with_fault(home, policy, CABLE, fault)
}

/// Nothing is left of interfaces that were open.
#[track_caller]
fn nothing_is_left(home: &Home) {
    until("all ports and regions are released", || {
        let now = home.snapshot();
        now.ports.is_empty() && now.regions.is_empty()
    });
}

/// Another request of the same user is answered, which comes after those that were sent.
#[track_caller]
fn others_are_served(home: &Home) {
    drop(RawPort::open(&home.socket(), "other{1"));
}

fn opens_and_closes_beside_others(home: &Home, policy: &str) {
    let Some(net) = Net::with_fault(home, policy, CABLE, "interfaces") else { return };
    let open = || ask(&net, home, NETMAP_REQ_REGISTER, register().as_bytes());
    let held = Held::new(home);
    let first = open();
    let question = ask(&net, home, NETMAP_REQ_PORT_INFO_GET, NmreqPortInfoGet::default().as_bytes());
    let leaving = open();
    others_are_served(home);
    drop(leaving);
    others_are_served(home);
    until("it is shown while it is opened", || home.snapshot().ports.iter().any(|port| port.name == "va"));
    assert!(!first.has_reply() && !question.has_reply(), "they wait for the interface");
    drop(held);
    let answer = first.receive().expect("an answer");
    assert_eq!((answer.errno, question.receive().expect("an answer").errno), (0, 0));
    // Closing it takes long; a request to open it again waits.
    let held = Held::new(home);
    drop((first, answer));
    others_are_served(home);
    let again = open();
    others_are_served(home);
    assert!(!again.has_reply(), "it waits until the interface is closed");
    drop(held);
    let answer = again.receive().expect("an answer");
    assert_eq!(answer.errno, 0);
    drop((again, answer));
    net.assert_given_back();
    // Nobody is left to use what was opened.
    let held = Held::new(home);
    drop(open());
    others_are_served(home);
    drop(held);
    net.assert_given_back();
    nothing_is_left(home);
}

#[test]
fn an_interface_that_opens_and_closes_slowly_delays_nobody_else_direct() {
    isolated_with_interfaces(|home| opens_and_closes_beside_others(home, DIRECT));
}

#[test]
fn an_interface_that_opens_and_closes_slowly_delays_nobody_else_mediated() {
    isolated_with_interfaces(|home| opens_and_closes_beside_others(home, MEDIATED));
}

/// The reason of a refusal reaches the request for which the interface was opened, and no other.
#[test]
fn an_interface_that_cannot_be_opened_is_refused_after_the_wait() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::with_fault(home, DIRECT, CABLE, "interfaces") else { return };
        net.near.ip(&["link", "set", "va", "mtu", "9000"]).expect("an interface");
        let held = Held::new(home);
        let one = ask(&net, home, NETMAP_REQ_REGISTER, register().as_bytes());
        let other = ask(&net, home, NETMAP_REQ_PORT_INFO_GET, NmreqPortInfoGet::default().as_bytes());
        others_are_served(home);
        drop(held);
        let frags = one.receive().expect("an answer").errno;
        assert_eq!(other.receive().expect("an answer").errno, 0);
        drop(one);
        net.near.ip(&["link", "set", "va", "mtu", "1500"]).expect("an interface");
        conformance::home::summary(&format!("an MTU of 9000 is refused with {frags} (0: packets use several buffers)"));
        net.assert_given_back();
        assert_eq!(RawPort::open(&home.socket(), "other{1").bound.rings.len(), 2);
    });
}

/// The daemon is killed while a driver takes long: the next one serves.
#[test]
fn a_daemon_that_is_killed_while_it_opens_an_interface_leaves_nothing() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = Net::with_fault(home, DIRECT, CABLE, "interfaces") else { return };
        let held = Held::new(home);
        let one = ask(&net, home, NETMAP_REQ_REGISTER, register().as_bytes());
        others_are_served(home);
        net.restart_daemon(home);
        others_are_served(home);
        drop((held, one));
        net.assert_given_back();
        drop(net.open("netmap:va"));
        net.assert_given_back();
    });
}

/// The interface is deleted, or moved to another namespace, while it is opened.
#[test]
fn an_interface_that_vanishes_while_it_is_opened_is_refused() {
    for access in ["direct", "mediated"] {
        for change in [&["link", "del", "va"][..], &["link", "set", "va", "netns"]] {
            isolated_with_interfaces(|home| {
                let Some(net) = Net::with_fault(home, &policy(&[0], access), CABLE, "interfaces") else { return };
                let held = Held::new(home);
                let (one, other) = (open_as(0, &net, home), open_as(0, &net, home));
                others_are_served(home);
                let to = (change.len() == 4).then(|| net.far.name().to_owned());
                let args: Vec<&str> = change.iter().copied().chain(to.as_deref()).collect();
                net.near.ip(&args).expect("an interface");
                others_are_served(home);
                drop(held);
                for raw in [one, other] {
                    let answer = raw.receive().expect("an answer");
                    assert_ne!(answer.errno, 0, "{access} {args:?}");
                }
                nothing_is_left(home);
                others_are_served(home);
            });
        }
    }
}

/// Of two users who open an interface at once, one gets it, and the other is told its user.
#[test]
fn of_two_users_who_open_an_interface_at_once_one_gets_it() {
    for access in ["direct", "mediated"] {
        isolated_with_interfaces(|home| {
            let Some(net) = net_for_users(home, &policy(&[ALICE, BOB], access), "interfaces") else { return };
            let held = Held::new(home);
            let both = [ALICE, BOB].map(|uid| (uid, open_as(uid, &net, home)));
            others_are_served(home);
            drop(held);
            // Users take turns: either may be first.
            let mut both = both.map(|(uid, raw)| (raw.receive().expect("an answer"), uid, raw));
            both.sort_by_key(|(answer, ..)| answer.errno);
            let [(first, one, its), (second, other, _)] = both;
            assert_eq!((first.errno, second.errno), (0, EBUSY), "{access}");
            let why = String::from_utf8_lossy(&second.payload);
            assert!(why.contains(&format!("user {one} has it open")), "{why}");
            // The next user waits until it is closed for the former one.
            let held = Held::new(home);
            drop((its, first));
            let next = open_as(other, &net, home);
            others_are_served(home);
            drop(held);
            let answer = next.receive().expect("an answer");
            assert_eq!(answer.errno, 0, "{access}");
            drop((next, answer));
            nothing_is_left(home);
            // Nor does a user have it whose client leaves before it is open.
            let held = Held::new(home);
            let (alice, bob) = (open_as(ALICE, &net, home), open_as(BOB, &net, home));
            others_are_served(home);
            drop(alice);
            others_are_served(home);
            drop(held);
            assert_eq!(bob.receive().expect("an answer").errno, 0, "{access}");
            drop(bob);
            nothing_is_left(home);
            net.assert_given_back();
        });
    }
}

/// A request that waited is judged by the policy of the time at which it is answered.
#[test]
fn a_user_who_lost_an_interface_while_it_was_opened_is_refused() {
    isolated_with_interfaces(|home| {
        let Some(net) = net_for_users(home, &policy(&[ALICE], "direct"), "interfaces") else { return };
        let held = Held::new(home);
        let alice = open_as(ALICE, &net, home);
        // Requests of other users may be answered before hers is read.
        until("it is being opened for her", || home.snapshot().ports.iter().any(|port| port.name == "va"));
        set_policy(home, &policy(&[BOB], "mediated"));
        rustix::process::kill_process(home.daemon(), rustix::process::Signal::HUP).expect("our own daemon");
        drop(held);
        assert_eq!(alice.receive().expect("an answer").errno, EACCES);
        let bob = open_as(BOB, &net, home);
        assert_eq!(bob.receive().expect("an answer").errno, 0);
        drop((alice, bob));
        nothing_is_left(home);
        net.assert_given_back();
    });
}

/// The interface gets another name after it was found, and before the daemon is told of its changes, and another
/// interface gets its name.
#[test]
fn an_interface_is_not_opened_by_a_name_that_it_has_lost() {
    for access in ["direct", "mediated"] {
        isolated_with_interfaces(|home| {
            let Some(net) = net_for_users(home, &policy(&[ALICE], access), "network-lock") else { return };
            let held = Held::new(home);
            let alice = open_as(ALICE, &net, home);
            held.until_reached();
            net.near.ip(&["link", "set", "va", "down"]).expect("an interface");
            net.near.ip(&["link", "set", "va", "name", "other"]).expect("an interface");
            net.near.ip(&["link", "set", "other", "up"]).expect("an interface");
            net.near.ip(&["link", "add", "va", "type", "veth", "peer", "name", "vc"]).expect("an interface");
            net.near.ip(&["link", "set", "va", "up"]).expect("an interface");
            drop(held);
            assert_eq!(alice.receive().expect("an answer").errno, EACCES, "{access}");
            drop(alice);
            nothing_is_left(home);
        });
    }
}

/// The daemon ends on SIGTERM at once, and the next one waits until its broker has undone what was under way.
#[test]
fn a_daemon_ends_on_sigterm_while_it_opens_an_interface() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = Net::with_fault(home, DIRECT, CABLE, "interfaces") else { return };
        let held = Held::new(home);
        let one = open_as(0, &net, home);
        others_are_served(home);
        let daemon = home.daemon();
        rustix::process::kill_process(daemon, rustix::process::Signal::TERM).expect("our own daemon");
        net.until_ended();
        assert!(one.receive().is_none(), "the connection ends with the daemon");
        drop(held);
        net.restart_daemon(home);
        net.assert_given_back();
        drop(net.open("netmap:va"));
        net.assert_given_back();
    });
}

/// Four users open and close an interface as fast as they can, from many connections that are closed at any moment.
#[test]
fn storms_of_opens_by_several_users_leave_nothing() {
    isolated_with_interfaces(|home| {
        let users = [ALICE, BOB, 4003, 4004];
        let Some(net) = net_for_users(home, &policy(&users, "direct"), "interfaces") else { return };
        others_are_served(home);
        let before = home.daemon_fds();
        let opened: usize = std::thread::scope(|scope| {
            let storm = |uid: u32| {
                let (mut rng, mut kept, mut opened) = (Rng(u64::from(uid)), Vec::new(), 0);
                for _ in 0..100 {
                    let raw = open_as(uid, &net, home);
                    match rng.below(3) {
                        // In the middle of the open.
                        0 => drop(raw),
                        1 => kept.push((raw, None)),
                        _ => {
                            let reply = raw.receive().expect("an answer");
                            opened += usize::from(reply.errno == 0);
                            kept.push((raw, Some(reply)));
                        }
                    }
                    if kept.len() > 4 {
                        kept.clear();
                    }
                }
                opened
            };
            let storms: Vec<_> = users.map(|uid| scope.spawn(move || storm(uid))).into_iter().collect();
            for _ in 0..20 {
                others_are_served(home);
            }
            storms.into_iter().map(|storm| storm.join().expect("a storm")).sum()
        });
        conformance::home::summary(&format!("400 opens by 4 users, {opened} of them answered with a port"));
        nothing_is_left(home);
        home.until_fds(before);
        net.assert_given_back();
        drop(net.open("netmap:va"));
    });
}

/// The errno of an answer, and why.
#[track_caller]
fn answer_of(raw: &ControlConnection) -> (i32, String) {
    let answer = raw.receive().expect("an answer");
    (answer.errno, String::from_utf8_lossy(&answer.payload).into_owned())
}

/// Has users ask for an interface one after the other while it is opened for another one, who leaves; returns their
/// answers.
fn asked_in_turn(net: &Net, home: &Home, users: &[u32]) -> Vec<(i32, String)> {
    let held = Held::new(home);
    let opening = open_as(ALICE, net, home);
    held.until_reached();
    // The last to connect is the first to ask.
    let mut asking: Vec<_> = users.iter().rev().map(|uid| connect_as(*uid, net, home)).collect();
    asking.reverse();
    // Connections that say nothing are closed.
    asking.iter().for_each(|raw| assert!(raw.snapshot().is_some()));
    let before = opens(home);
    for (asked, raw) in (1..).zip(&asking) {
        ask_by(raw, (NETMAP_REQ_REGISTER, "va", register().as_bytes()));
        until("it waits for the interface", || opens(home) >= before + 2 * asked);
    }
    drop((opening, held));
    asking.iter().map(answer_of).collect()
}

/// Of users who wait for an interface, the first to ask has it next, and the others are told that.
#[test]
fn the_first_user_to_wait_for_an_interface_has_it_next() {
    isolated_with_interfaces(|home| {
        let users: Vec<u32> = (ALICE + 1..ALICE + 12).collect();
        let policy = policy(&[vec![ALICE], users.clone()].concat(), "direct");
        let Some(net) = net_for_users(home, &policy, "interfaces") else { return };
        let answers = loop {
            let answers = asked_in_turn(&net, home, &users);
            nothing_is_left(home);
            // A busy kernel may release the queue later than the daemon waits.
            if !answers.iter().any(|(_, why)| why.contains(HELD)) {
                break answers;
            }
        };
        assert_eq!(answers[0].0, 0, "{answers:?}");
        for (errno, why) in &answers[1..] {
            assert!(*errno == EBUSY && why.contains(&format!("user {} has it open", users[0])), "{errno}: {why}");
        }
        net.assert_given_back();
    });
}

/// Of many users who open and close an interface as fast as they can, none waits until it is refused for that.
#[test]
fn no_request_for_an_interface_is_refused_as_others_were_faster() {
    isolated_with_interfaces(|home| {
        let users: Vec<u32> = (ALICE..ALICE + 13).collect();
        let Some(net) = net_for_users(home, &policy(&users, "direct"), "interfaces") else { return };
        let storm = |uid: u32| (0..8).map(|_| answer_of(&open_as(uid, &net, home))).collect::<Vec<_>>();
        let answers = thread::scope(|scope| {
            let storms: Vec<_> = users.iter().map(|uid| scope.spawn(move || storm(*uid))).collect();
            storms.into_iter().flat_map(|storm| storm.join().expect("a storm")).collect::<Vec<_>>()
        });
        let count = |errno| answers.iter().filter(|(of, _)| *of == errno).count();
        let (opened, busy) = (count(0), count(EBUSY));
        conformance::home::summary(&format!("{} opens: {opened} got it, {busy} found it open", answers.len()));
        let is_refused = |(errno, why): &&(i32, String)| *errno == EAGAIN && !why.contains(HELD);
        assert_eq!(answers.iter().filter(is_refused).count(), 0, "{answers:?}");
        nothing_is_left(home);
        net.assert_given_back();
    });
}

/// A user to whom the policy gives no interface cannot have the daemon wait for the kernel's lock of the network
/// configuration, which looking at an interface takes.
#[test]
fn a_user_without_interfaces_has_none_looked_at() {
    isolated_with_interfaces(|home| {
        let policy = format!("{}[[rule]]\npipes = true\nusers = [{BOB}]\n", policy(&[ALICE], "direct"));
        let Some(net) = net_for_users(home, &policy, "network-lock") else { return };
        let held = Held::new(home);
        let (open, info) = (register(), NmreqPortInfoGet::default());
        let refused = [("va", EACCES), ("nobody", ENXIO), ("vale0:va", EINVAL)];
        for (name, errno) in refused {
            let asked = [(NETMAP_REQ_REGISTER, open.as_bytes()), (NETMAP_REQ_PORT_INFO_GET, info.as_bytes())];
            for (kind, body) in asked {
                let raw = ask_as(BOB, (&net, home), (kind, name, body));
                assert_eq!(raw.receive().expect("an answer").errno, errno, "{name} {kind}");
            }
        }
        // Its buffers suit interfaces that are opened in it later, of which this user has none.
        let in_region_1 = NmreqRegister { nr_mem_id: 1, ..register() };
        let pipe = ask_as(BOB, (&net, home), (NETMAP_REQ_REGISTER, "p{1", in_region_1.as_bytes()));
        assert_eq!(pipe.receive().expect("an answer").errno, 0);
        // That of another scope than a pipe on the interface, which is its user's.
        let pipe = ask_as(BOB, (&net, home), (NETMAP_REQ_REGISTER, "va{1", register().as_bytes()));
        assert_eq!(pipe.receive().expect("an answer").errno, 0);
        drop(held);
        assert_eq!(open_as(ALICE, &net, home).receive().expect("an answer").errno, 0);
    });
}

/// Looking for an interface waits for the kernel's lock of the network configuration, which anybody with a network
/// namespace can hold much of the time.
#[test]
fn a_look_at_an_interface_that_takes_long_delays_nobody_else() {
    isolated_with_interfaces(|home| {
        let policy = format!("{}[[rule]]\npipes = true\nusers = [{BOB}]\n", policy(&[ALICE], "direct"));
        let Some(net) = net_for_users(home, &policy, "network-lock") else { return };
        let held = Held::new(home);
        let (open, leaving) = (open_as(ALICE, &net, home), open_as(ALICE, &net, home));
        let question =
            ask_as(ALICE, (&net, home), (NETMAP_REQ_PORT_INFO_GET, "va", NmreqPortInfoGet::default().as_bytes()));
        drop(leaving);
        others_are_served(home);
        for uid in [ALICE, BOB] {
            let pipe = ask_as(uid, (&net, home), (NETMAP_REQ_REGISTER, "p{1", register().as_bytes()));
            assert_eq!(pipe.receive().expect("an answer").errno, 0);
        }
        assert!(!open.has_reply() && !question.has_reply(), "they wait for the look");
        drop(held);
        let answer = open.receive().expect("an answer");
        assert_eq!((answer.errno, question.receive().expect("an answer").errno), (0, 0));
        drop((open, answer));
        net.assert_given_back();
        nothing_is_left(home);
    });
}

/// Some request of a tenant always waits for a look at an interface: the daemon begins no further one until it is
/// replaced.
#[test]
fn a_tenant_that_keeps_asking_does_not_hold_off_a_replacement() {
    isolated_with_interfaces(|home| {
        let Some(net) = net_for_users(home, &policy(&[ALICE], "direct"), "network-lock") else { return };
        let (stop, asked) = (AtomicBool::new(false), AtomicU32::new(0));
        let ask_on = || {
            while !stop.load(Relaxed) {
                let info = (NETMAP_REQ_PORT_INFO_GET, "va", NmreqPortInfoGet::default());
                let raw = ask_as(ALICE, (&net, home), (info.0, info.1, info.2.as_bytes()));
                raw.receive_after_reset();
                asked.fetch_add(1, Relaxed);
            }
        };
        let slow_down = || {
            while !stop.load(Relaxed) {
                let held = Held::new(home);
                sleep(Duration::from_millis(50));
                drop(held);
                sleep(Duration::from_millis(5));
            }
        };
        thread::scope(|scope| {
            let end = Stop(&stop);
            scope.spawn(slow_down);
            (0..4).for_each(|_| _ = scope.spawn(ask_on));
            until("requests wait one after the other", || asked.load(Relaxed) > 8);
            let replaced = try_replace(home, None);
            drop(end);
            assert!(replaced.status.success(), "{}", String::from_utf8_lossy(&replaced.stderr));
        });
        assert_eq!(open_as(ALICE, &net, home).receive().expect("an answer").errno, 0);
    });
}

/// A tenant may set an interface down and up as fast as it can, if it belongs to a namespace of its own.
#[test]
fn an_interface_that_changes_delays_nobody_else() {
    isolated_with_interfaces(|home| {
        let policy = format!("{}[[rule]]\npipes = true\nusers = [{BOB}]\n", policy(&[ALICE], "direct"));
        let Some(net) = net_for_users(home, &policy, "network-lock") else { return };
        let open = open_as(ALICE, &net, home);
        let answer = open.receive().expect("an answer");
        assert_eq!(answer.errno, 0);
        let held = Held::new(home);
        for state in ["down", "up", "down", "up"] {
            net.near.ip(&["link", "set", "va", state]).expect("an interface");
            others_are_served(home);
            let pipe = ask_as(BOB, (&net, home), (NETMAP_REQ_REGISTER, "p{1", register().as_bytes()));
            assert_eq!(pipe.receive().expect("an answer").errno, 0);
        }
        drop(held);
        until("it is shown as open again", || {
            let snapshot = home.snapshot();
            let port = snapshot.ports.iter().find(|port| port.name == "va");
            port.is_some_and(|port| port.manner.as_deref() != Some("being opened or closed"))
        });
        drop((open, answer));
        net.assert_given_back();
        nothing_is_left(home);
    });
}

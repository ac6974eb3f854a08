// SPDX-License-Identifier: BSD-2-Clause
//! Interfaces of memif as ports of a switch, by a peer of either role; and peers that break every rule: other ports
//! lose no packet.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use conformance::ether::{self, BROADCAST, mac};
use conformance::home::{summary, wait_within};
use conformance::packet::Rng;
use conformance::switch::vale;
use conformance::traffic::open;
use conformance::{Home, isolated, until};
use conformance_hostile::memif_peer::{self as peer, MESSAGE, Peer, REGION, SIZE, VERSION};
use conformance_hostile::raw::as_user;
use conformance_hostile::served::{self, Served, config, is_open, word};
use rustix::event::{EventfdFlags, eventfd};
use unetmap::Port;
use unetmap_sys::event::hung_up;
use unetmap_sys::socket;

fn serve(home: &Home, port: &str, more: &str) -> Served {
    Served::start(home, ["memif", "--memif"], port, more)
}

fn connect(path: &Path) -> io::Result<Peer> {
    Peer::client(path, 0, "")
}

/// Frames go both ways, unchanged and in order, over several laps of the rings, also in chains of buffers.
fn exchange(port: &Port, peer: &mut Peer) {
    peer.transmit(&ether::make(BROADCAST, mac(9), 9, 0));
    ether::expect(port, 9, (0, 1));
    let frames = 3 * u64::from(SIZE) + 1;
    for seq in 1..=frames {
        peer.transmit(&ether::make(BROADCAST, mac(9), 9, seq));
        ether::expect(port, 9, (seq, seq + 1));
    }
    for from in (0..frames).step_by(50) {
        ether::send(port, mac(9), mac(1), 5, (from, from + 50));
        for seq in from..from + 50 {
            assert_eq!(ether::check(&peer.wait_frame()), Ok((5, seq)));
        }
    }
    let mut rng = Rng(1);
    for bytes in [60, 2047, 2048, 2049, 4096, 9000, 16000] {
        let random = std::iter::repeat_with(|| rng.below(256) as u8).take(bytes - 12);
        let frame: Vec<u8> = BROADCAST.into_iter().chain(mac(9)).chain(random).collect();
        peer.transmit(&frame);
        let slots = bytes.div_ceil(port.buf_size() as usize);
        let slots = conformance::traffic::receive(port, slots).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(slots.concat(), frame, "{bytes} bytes");
    }
}

#[test]
fn a_client_of_memif_is_a_port() {
    isolated(|home| {
        let port = open("vale0:a");
        let served = serve(home, "vale0:m1", "");
        exchange(&port, &mut served.peer(connect));
        // The next client begins anew.
        exchange(&port, &mut served.peer(connect));
    });
}

#[test]
fn a_server_of_memif_is_connected_to_again() {
    isolated(|home| {
        let port = open("vale0:a");
        let listener = socket::listen(&home.folder().join("vale0-m1.sock"), 0o600).expect("a socket");
        let _served = serve(home, "vale0:m1", ",role=client,ring=128");
        for log2 in [14, 4] {
            let mut socket = None;
            until("it connects", || {
                socket = socket::accept(&listener).ok();
                socket.is_some()
            });
            let socket: OwnedFd = socket.expect("just accepted");
            rustix::io::ioctl_fionbio(&socket, false).expect("blocking");
            let mut peer = Peer::server(socket, log2).expect("set up");
            exchange(&port, &mut peer);
        }
    });
}

#[test]
fn ids_secrets_versions_and_order_are_checked() {
    isolated(|home| {
        let served = serve(home, "vale0:m1", ",id=7,secret=open sesame");
        let refusal = |id, secret: &str| Peer::client(&served.path, id, secret).err().map(|e| e.to_string());
        until("it listens", || peer::dial(&served.path).is_ok());
        assert!(refusal(7, "open").expect("refused").contains("the secret is wrong"));
        assert!(refusal(7, "").expect("refused").contains("the secret is wrong"));
        assert!(refusal(8, "open sesame").expect("refused").contains("no interface 8"));
        let init = |version, mode| peer::init(version, 7, mode, "open sesame");
        for (messages, reason) in [
            (vec![init(0x0100, 0)], "version 0x100"),
            (vec![init(VERSION, 1)], "only Ethernet"),
            (vec![peer::connect()], "not allowed"),
            (vec![init(VERSION, 0), init(VERSION, 0)], "not allowed"),
            (vec![init(VERSION, 0), peer::add_region(1, REGION)], "not the next"),
            (vec![init(VERSION, 0), peer::add_region(0, 1 << 40)], "cannot be mapped"),
            (vec![init(VERSION, 0), peer::add_region(0, 0)], "cannot be mapped"),
            (vec![init(VERSION, 0), peer::add_ring(true, 1, 0, 7)], "not the next"),
            (vec![init(VERSION, 0), peer::add_ring(true, 0, 0, 15)], "2^15 slots"),
            (vec![init(VERSION, 0), peer::add_ring(true, 0, 0, 7)], "no eventfd"),
            (
                vec![
                    init(VERSION, 0),
                    peer::add_region(0, REGION),
                    peer::add_ring(true, 0, REGION as u32 - 64, 1),
                    peer::connect(),
                ],
                "not in its region",
            ),
        ] {
            let socket = peer::dial(&served.path).expect("it listens");
            peer::expect(&socket, 2).expect("HELLO");
            let file: OwnedFd =
                tempfile::tempfile().and_then(|file| file.set_len(REGION).map(|()| file)).expect("a file").into();
            let (event, mut got) = (eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd"), Ok(()));
            for message in &messages {
                let fds: &[_] = match message[0] {
                    4 => &[file.as_fd()],
                    // A file in its place could be readable for ever.
                    5 if reason == "no eventfd" => &[file.as_fd()],
                    5 => &[event.as_fd()],
                    _ => &[],
                };
                got = peer::send(&socket, message, fds).and_then(|()| peer::expect(&socket, 1).map(drop));
            }
            let got = got.expect_err("refused").to_string();
            assert!(got.contains(reason), "{reason}: {got}");
        }
        Peer::client(&served.path, 7, "open sesame").expect("served");
    });
}

/// An abstract name is open to every process of the network namespace: without a secret, peers are of the process's
/// user or root, or named. Those that are refused, and those that say nothing, keep no other waiting.
#[test]
fn peers_of_a_memif_are_checked_by_their_user() {
    const NAMED: u32 = 4001;
    const OTHER: u32 = 4002;
    isolated(|home| {
        if !rustix::process::geteuid().is_root() {
            return summary("skipped: only root can connect as several users");
        }
        let name = |n: u32| PathBuf::from(format!("@unetmap-test-{}-{n}", std::process::id()));
        let served = Served::start_at(home, ["memif", "--memif"], ("vale0:m1", &name(1)), &format!(",peer={NAMED}"));
        let client = |uid, path: &Path, secret: &str| as_user(uid, || Peer::client(path, 0, secret)).expect("root");
        // Nothing is read from others, and nothing sent to them but the reason.
        let why = client(OTHER, &served.path, "").err().expect("refused").to_string();
        assert!(why.contains("user 4002 is not admitted") && why.contains("peer=USER"), "{why}");
        let silent: Vec<_> =
            (0..30).map(|_| as_user(OTHER, || peer::dial(&served.path)).expect("root").expect("it listens")).collect();
        let _own_silent = peer::dial(&served.path).expect("it listens");
        let port = open("vale0:a");
        exchange(&port, &mut client(NAMED, &served.path, "").expect("named"));
        exchange(&port, &mut client(0, &served.path, "").expect("root"));
        drop(silent);
        // The secret tells as well, if no user is named. Each silent client leaves after a second.
        let told = Served::start_at(home, ["memif", "--memif"], ("vale0:m2", &name(2)), ",secret=sesame");
        let silent: Vec<_> =
            (0..3).map(|_| as_user(NAMED, || peer::dial(&told.path)).expect("root").expect("it listens")).collect();
        assert!(client(OTHER, &told.path, "").err().expect("refused").to_string().contains("the secret is wrong"));
        until("the silent ones are disconnected", || silent.iter().all(|socket| hung_up(socket.as_fd())));
        exchange(&port, &mut client(OTHER, &told.path, "sesame").expect("it knows the secret"));
    });
}

/// A client of memif tells its secret, and gives its memory, only to a server whose user is admitted.
#[test]
fn a_secret_is_sent_to_no_server_of_another_user() {
    const OTHER: u32 = 4002;
    isolated(|home| {
        if !rustix::process::geteuid().is_root() {
            return summary("skipped: only root can listen as another user");
        }
        let listen = |name: &str| as_user(OTHER, || socket::listen_abstract(name)).expect("root").expect("a socket");
        let names = [1, 2].map(|n| format!("unetmap-server-{}-{n}", std::process::id()));
        let listeners = names.each_ref().map(|name| listen(name));
        let serve = |port, n: usize, more: &str| {
            let more = format!(",role=client,secret=sesame{more}");
            Served::start_at(home, ["memif", "--memif"], (port, Path::new(&format!("@{}", names[n]))), &more)
        };
        let _refused = serve("vale0:m1", 0, "");
        let _admitted = serve("vale0:m2", 1, &format!(",peer={OTHER}"));
        let accept = |n: usize| {
            let mut socket = None;
            until("it connects", || {
                socket = socket::accept(&listeners[n]).ok();
                socket.is_some()
            });
            let socket: OwnedFd = socket.expect("just accepted");
            rustix::io::ioctl_fionbio(&socket, false).expect("blocking");
            socket
        };
        for _ in 0..3 {
            let socket = accept(0);
            // It may have closed the connection already.
            let _ = peer::send(&socket, &peer::hello(7), &[]);
            let got = peer::receive(&socket);
            assert!(got.is_err(), "{got:?}");
        }
        exchange(&open("vale0:a"), &mut Peer::server(accept(1), 7).expect("set up"));
    });
}

/// A server that acknowledges a client's messages and receives none has one descriptor in flight, on whatever number of
/// connections; the kernel would count more of them against all of the user's processes.
#[test]
fn a_server_that_receives_nothing_has_one_descriptor_in_flight() {
    isolated(|home| {
        let listener = socket::listen(&home.folder().join("vale0-m1.sock"), 0o600).expect("a socket");
        let _served = serve(home, "vale0:m1", ",role=client,ring=128");
        let mut accepted = None;
        until("it connects", || {
            accepted = socket::accept(&listener).ok();
            accepted.is_some()
        });
        let accepted = accepted.expect("just accepted");
        peer::send(&accepted, &peer::hello(7), &[]).expect("sent");
        (0..3).for_each(|_| peer::send(&accepted, &peer::ack(), &[]).expect("sent"));
        until("it has sent one", || served::unreceived(&accepted) > 0);
        // An error that ends the connection: with it, the descriptor stays.
        peer::send(&accepted, &[0; MESSAGE], &[]).expect("sent");
        let (port, other) = (open("vale0:a"), serve(home, "vale0:m2", ""));
        exchange(&port, &mut other.peer(connect));
        assert_eq!(served::unreceived(&accepted), 1);
        drop(accepted);
        // Then the next one is served.
        let mut next = None;
        until("it connects again", || {
            next = socket::accept(&listener).ok();
            next.is_some()
        });
        let next = next.expect("just accepted");
        rustix::io::ioctl_fionbio(&next, false).expect("blocking");
        exchange(&port, &mut Peer::server(next, 7).expect("set up"));
    });
}

#[test]
fn a_memif_port_is_served_in_the_background_and_kept_in_the_configuration() {
    isolated(|home| {
        let path = home.folder().join("m1.sock");
        let spec = format!("{},id=3", path.display());
        let set = |value: &str| vale(&["port", "vale0:m1", "--memif", value]);
        let (status, out, err) = set(&spec);
        assert_eq!((status, err.as_str()), (0, ""), "{out}");
        assert!(set(&spec).1.contains("already"));
        assert!(set("/elsewhere").2.contains("end it first with --memif off"));
        assert!(vale(&["port", "vale0:m1", "--vhost-user", "off"]).2.contains("--memif off"));
        let port = open("vale0:a");
        exchange(&port, &mut Peer::client(&path, 3, "").expect("served"));
        let file = home.folder().join("switches.toml");
        config("save", &file);
        let text = std::fs::read_to_string(&file).expect("saved");
        assert!(text.contains(&format!("memif = \"{spec}\"")), "{text}");
        assert_eq!(set("off").0, 0);
        until("the port is gone", || !is_open(home, "vale0:m1"));
        config("apply", &file);
        exchange(&port, &mut Peer::client(&path, 3, "").expect("served again"));
        assert_eq!(set("off").0, 0);
    });
}

/// A process that does not look at signals is killed.
#[test]
fn a_memif_port_whose_process_stands_still_is_ended() {
    isolated(|home| {
        let spec = home.folder().join("m1.sock").display().to_string();
        let set = |value: &str| vale(&["port", "vale0:m1", "--memif", value]);
        assert_eq!(set(&spec).0, 0);
        let pid = home.snapshot().sessions.iter().find(|session| session.port == "vale0:m1").expect("served").pid;
        let process = rustix::process::Pid::from_raw(pid as i32).expect("a process");
        rustix::process::kill_process(process, rustix::process::Signal::STOP).expect("stopped");
        assert_eq!(set("off").0, 0);
        until("the port is gone", || !is_open(home, "vale0:m1"));
        assert_eq!(set(&spec).0, 0);
        assert_eq!(set("off").0, 0);
    });
}

/// The client shortens its region under traffic: the port's own process ends, no other port notices.
#[test]
fn a_region_that_is_cut_short_ends_its_own_process_alone() {
    isolated(|home| {
        let (a, b) = (open("vale0:a"), open("vale0:b"));
        let mut served = serve(home, "vale0:m1", "");
        let mut client = served.peer(connect);
        exchange(&a, &mut client);
        let other = serve(home, "vale0:m2", "");
        let mut other = other.peer(connect);
        client.memory_file().and_then(|file| file.set_len(0)).expect("shortened");
        client.notify();
        // No access of this test to the region from here on.
        let status = wait_within(&mut served.process.0, Duration::from_secs(20)).expect("the process ends");
        assert_eq!(status.signal(), Some(7), "{status}");
        until("its port is gone", || !is_open(home, "vale0:m1"));
        ether::drain(&b);
        ether::send(&a, BROADCAST, mac(1), 3, (0, 100));
        ether::expect(&b, 3, (0, 100));
        for seq in 0..100 {
            assert_eq!(ether::check(&other.wait_frame()), Ok((3, seq)));
        }
        home.assert_serves();
    });
}

/// Random words in rings and regions, random messages, and a socket that is closed at any of them.
#[test]
fn random_peers_lose_no_frame_of_others() {
    isolated(|home| {
        served::disturb(|| serve(home, "vale0:m1", ""), |path, _| connect(path), 40, disturb);
        // An honest peer is served afterwards.
        until("the port is gone", || !is_open(home, "vale0:m1"));
        let port = open("vale0:a");
        exchange(&port, &mut serve(home, "vale0:m1", "").peer(connect));
    });
}

/// One step of a client without rules.
fn disturb(client: &mut Peer, rng: &mut Rng) -> io::Result<()> {
    match rng.below(30) {
        // Anything into the rings; mostly small steps of the positions, which are no fault by themselves.
        0..=20 => {
            for _ in 0..rng.below(200) {
                let at = client.rings[rng.below(2) as usize].at + 4 * rng.below(544) as usize;
                let value = if rng.below(2) == 0 { word(rng) } else { 1 << rng.below(32) };
                client.words.store_u32(at, value);
            }
            let at = client.rings[rng.below(2) as usize].at + 4;
            client.words.store_u32(at, (rng.below(u64::from(SIZE)) << 16) as u32);
            client.notify();
            std::thread::sleep(Duration::from_micros(rng.below(300)));
            Ok(())
        }
        21..=26 => {
            let mut message = vec![0; MESSAGE - 2 * usize::from(rng.below(20) == 0)];
            message.iter_mut().for_each(|byte| *byte = if rng.below(3) == 0 { rng.below(256) as u8 } else { 0 });
            message[0] = rng.below(10) as u8;
            message[1] = 0;
            let file = client.file.try_clone()?;
            peer::send(&client.socket, &message, &vec![file.as_fd(); rng.below(3) as usize])
        }
        27 => client.memory_file().and_then(|file| file.set_len(4096 * rng.below(257))),
        _ => Err(io::ErrorKind::BrokenPipe.into()),
    }
}

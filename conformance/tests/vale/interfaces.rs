// SPDX-License-Identifier: BSD-2-Clause
//! Switch ports without a program: attached network interfaces, and persistent ports, which are interfaces of the
//! system.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use conformance::home::{Guard, cpus_allowed, summary};
use conformance::net::{BUFFER, CABLE, DIRECT, HELD, Net, collect, frame, frames, open_in, pings, transmit};
use conformance::request::control;
use conformance::switch::{bring_up, ctl, done, host_on_switch, iperf3, ipv4_of, tcp};
use conformance::traffic::{receive, send};
use conformance::{LIMIT, isolated_alone, isolated_with_interfaces, program, until};
use rustix::process::Signal;
use unetmap::abi::*;
use unetmap::errno::{EFAULT, EINVAL};

/// The first 16 bytes of each packet that `pkt-gen -X` printed.
fn printed(text: &str) -> Vec<[u8; 16]> {
    let first = text.lines().filter_map(|line| line.strip_prefix("    0: "));
    let bytes = |row: &str| {
        let mut all = row.split(' ').map_while(|hex| u8::from_str_radix(hex, 16).ok());
        std::array::from_fn(|_| all.next().unwrap_or(0))
    };
    first.map(bytes).collect()
}

#[test]
fn an_interface_that_is_attached_is_refused_with_the_name_of_its_switch_port() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        done(&net.near, "-a vale1:va");
        let (errno, why) = net.refused("netmap:va");
        assert_eq!(errno, unetmap::errno::EBUSY);
        assert!(why.contains("attached to a switch as vale1:va (vale-ctl -d vale1:va detaches it)"), "{why}");
        done(&net.near, "-d vale1:va");
        drop(net.open("netmap:va"));
    });
}

/// A third port sees the broadcasts and the flooded packets of two hosts, and none of their unicast packets.
#[test]
fn pkt_gen_shares_a_switch_with_two_hosts() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = Net::new(home, DIRECT, CABLE) else { return };
        host_on_switch(&net.near, "vi0", &["10.8.0.1/24"]);
        host_on_switch(&net.far, "vi1", &["10.8.0.2/24"]);
        until("the hosts reach each other", || pings(&net.near, "10.8.0.2"));
        let macs = [(&net.near, "vi0"), (&net.far, "vi1")].map(|(ns, name)| ns.mac(name).expect("an interface"));
        let output = home.folder().join("seen");
        let to = std::fs::File::create(&output).expect("a file");
        let mut pkt_gen = net.near.command(program("pkt-gen"));
        pkt_gen.args(["-i", "vale0:third", "-f", "rx", "-X", "-w", "0"]);
        let mut pkt_gen = Guard::spawn(pkt_gen.stdout(to.try_clone().expect("a file")).stderr(to));
        let seen = || printed(&std::fs::read_to_string(&output).expect("its output"));
        let fourth = open_in(&net.near, "vale0:fourth");
        until("it is there", || home.snapshot().ports.iter().any(|port| port.name == "vale0:third"));
        // The ARP request is a broadcast, the reply is unicast.
        net.near.ip(&["neigh", "flush", "dev", "vi0"]).expect("an interface");
        tcp(&net.near, &net.far, "10.8.0.2", 8 << 20);
        tcp(&net.far, &net.near, "10.8.0.1", 8 << 20);
        let question = |packet: &[u8; 16]| packet[..12] == [[0xff; 6], macs[0]].concat() && packet[12..14] == [8, 6];
        until("it sees the question", || seen().iter().any(question));
        // From a new source address to an unknown destination, and to the broadcast address.
        let stranger = frame(60, 1);
        transmit(&fourth, 0, &[stranger.clone(), [&[0xff; 6][..], &stranger[6..]].concat()], BUFFER);
        for to in [&stranger[..6], &[0xff; 6]] {
            until("it sees it", || seen().iter().any(|seen| seen[..6] == *to && seen[6..12] == stranger[6..12]));
        }
        let foreign = seen().iter().filter(|seen| macs.iter().any(|mac| seen[..6] == *mac)).count();
        assert_eq!(foreign, 0, "packets that were for one of the hosts");
        assert!(pkt_gen.0.try_wait().expect("our child").is_none());
        net.assert_alive();
        summary(&format!(
            "beside two hosts with 16 MiB of TCP pkt-gen -X saw {} packets, none of them for one",
            seen().len()
        ));
    });
}

#[test]
fn two_hosts_communicate_over_a_switch() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = Net::new(home, DIRECT, CABLE) else { return };
        host_on_switch(&net.near, "vi0", &["10.8.0.1/24"]);
        host_on_switch(&net.far, "vi1", &["10.8.0.2/24"]);
        let list = done(&net.near, "");
        for port in ["vale0:vi0", "vale0:vi1"] {
            assert!(list.contains(&format!("{port} bridge_idx ")), "{list}");
        }
        assert!(done(&net.near, "-g vale0:vi0").contains("tx_slots: "));
        // A third port sees broadcasts, and not the unicast packets between the two.
        let third = open_in(&net.near, "vale0:third");
        until("the hosts reach each other", || pings(&net.near, "10.8.0.2"));
        ipv4_of(&third);
        assert!(pings(&net.far, "10.8.0.1"));
        tcp(&net.near, &net.far, "10.8.0.2", 8 << 20);
        tcp(&net.far, &net.near, "10.8.0.1", 8 << 20);
        iperf3(&net.near, &net.far, "10.8.0.2");
        assert_eq!(ipv4_of(&third), 0, "frames that were for others");
        // Both stacks receive a broadcast of the third port.
        let before = [net.near.counters("vi0").unwrap(), net.far.counters("vi1").unwrap()];
        transmit(&third, 0, &[[&[0xff; 6][..], &frame(60, 1)[6..]].concat()], BUFFER);
        for (ns, name, before) in [(&net.near, "vi0", before[0]), (&net.far, "vi1", before[1])] {
            until("a broadcast arrives", || ns.counters(name).unwrap().rx_packets > before.rx_packets);
        }
        net.assert_alive();
    });
}

#[test]
fn persistent_ports_are_created_and_removed() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = Net::new(home, DIRECT, CABLE) else { return };
        let ns = &net.near;
        for (args, status, part) in [
            ("-n vale7", 2, "not vale"),
            ("-n a_name_that_is_too_long", 2, "1 to 15 bytes"),
            ("-n va", 1, "already"),
            ("-r va", 1, "no persistent port"),
            ("-r no_such_if0", 1, "no such interface"),
            ("-d vale0:vi0", 1, "no switch"),
            ("-a vale0:no_such_if0", 1, "no such interface"),
            ("-a va", 2, "valeS:P"),
            ("-p vale0:vi0", 1, "no switch"),
        ] {
            let (code, out, err) = ctl(ns, args);
            assert_eq!((code, out.as_str()), (status, ""), "{args}: {err}");
            assert!(err.contains(part), "{args}: {err}");
        }
        // The same name in two namespaces, on two switches.
        for (ns, switch) in [(&net.near, "vale0"), (&net.far, "vale1")] {
            done(ns, "-n vi0 -C 256,128,2");
            assert!(ctl(ns, "-n vi0").2.contains("already"));
            done(ns, &format!("-a {switch}:vi0"));
            assert!(ctl(ns, &format!("-a {switch}:vi0")).2.contains("already"));
            assert!(ctl(ns, "-r vi0").2.contains("attached"), "vale-ctl -d comes first");
            let info = done(ns, &format!("-g {switch}:vi0"));
            assert!(info.contains("tx_slots: 256\n") && info.contains("rx_slots: 128\n"), "{info}");
            assert!(info.contains("tx_rings: 2\n"), "{info}");
        }
        // Detached and removed by commands, or deleted by the system at once.
        done(&net.near, "-d vale0:vi0");
        done(&net.near, "-r vi0");
        net.near.ip(&["link", "show", "vi0"]).expect_err("it is gone");
        net.far.ip(&["link", "del", "vi0"]).expect("an interface");
        until("the port goes with its interface", || done(&net.near, "").is_empty());
        until("nothing is left", || home.snapshot().ports.is_empty() && home.snapshot().regions.is_empty());
        // An ephemeral port belongs to its program.
        let port = open_in(&net.near, "vale0:mine");
        assert!(ctl(&net.near, "-d vale0:mine").2.contains("a program has it open"));
        assert!(ctl(&net.near, "-p vale0:mine").2.contains("only attached interfaces"));
        drop(port);
        net.assert_alive();
    });
}

/// `-m`: the port is in the region of a program, chosen when the port is attached or when it is created.
#[test]
fn ports_can_be_created_in_the_region_of_a_program() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = Net::new(home, DIRECT, CABLE) else { return };
        let port = open_in(&net.near, "vale0:p");
        let of = |name: &str| home.snapshot().ports.iter().find(|port| port.name == name).map(|port| port.mem_id);
        done(&net.near, &format!("-n vi0 -m {}", port.mem_id()));
        done(&net.near, "-n vi1");
        for (args, name, same) in [
            ("-a vale0:vi0".to_string(), "vi0", true),
            ("-a vale0:vi1".to_string(), "vi1", false),
            (format!("-a vale0:va -m {}", port.mem_id()), "va", true),
        ] {
            done(&net.near, &args);
            assert_eq!(of(&format!("vale0:{name}")) == Some(port.mem_id()), same, "{args}");
            done(&net.near, &format!("-d vale0:{name}"));
        }
        assert!(ctl(&net.near, "-n vi2 -m 999").2.contains("no region 999"));
        assert!(ctl(&net.near, "-a vale0:vi1 -m 999").2.contains("not 999"), "it has its region already");
        net.near.ip(&["link", "show", "vi2"]).expect_err("it was not made");
        // Packets between the host and the program in that region exchange buffers.
        done(&net.near, "-a vale0:vi0");
        bring_up(&net.near, "vi0", &[]);
        net.near.wait_up("vi0").expect("an interface that comes up");
        let before = net.near.counters("vi0").expect("an interface");
        transmit(&port, 0, &frames(&[60, 1000, 1514], 100), BUFFER);
        until("the host has them", || net.near.counters("vi0").unwrap().rx_packets >= before.rx_packets + 3);
        assert!(home.snapshot().ring("vale0:vi0", "rx", 0).swapped >= 3);
        // The program exits, and the persistent port keeps the region.
        drop(port);
        until("it has gone", || home.snapshot().ports.iter().all(|port| port.name != "vale0:p"));
        done(&net.near, "-d vale0:vi0");
        done(&net.near, "-a vale0:vi0");
        done(&net.near, "-d vale0:vi0");
        done(&net.near, "-r vi0");
        done(&net.near, "-r vi1");
        until("nothing is left", || home.snapshot().ports.is_empty() && home.snapshot().regions.is_empty());
        net.assert_alive();
    });
}

/// Its ends are the daemon's, and the interface behind it: in a switch of root's as in none, and open as closed.
#[test]
fn nobody_is_charged_for_a_persistent_port() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = Net::new(home, DIRECT, CABLE) else { return };
        let other = open_in(&net.near, "vale0:p");
        let rings = || {
            let users = home.snapshot().users;
            users.iter().filter(|user| user.uid.is_some()).map(|user| (user.uid, user.rings.used)).collect::<Vec<_>>()
        };
        let before = rings();
        for args in ["-n vi0", "-a vale0:vi0", "-d vale0:vi0", "-a vale1:vi0"] {
            done(&net.near, args);
            assert_eq!(rings(), before, "{args}");
        }
        let port = open_in(&net.near, "netmap:vi0");
        assert_eq!(rings(), before, "open");
        done(&net.near, "-d vale1:vi0");
        assert_eq!(rings(), before, "open and detached");
        drop((port, other));
        done(&net.near, "-r vi0");
        until("nothing is left", || home.snapshot().ports.is_empty() && home.snapshot().regions.is_empty());
        net.assert_alive();
    });
}

/// A persistent port can be renamed and moved to another namespace, such as a container's, and stays the same port.
#[test]
fn a_persistent_port_can_move_to_another_namespace() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = Net::new(home, DIRECT, CABLE) else { return };
        host_on_switch(&net.near, "vi0", &["10.8.0.1/24"]);
        let move_it = |from: &lab::Ns, to: &lab::Ns, name: &str| {
            from.ip(&["link", "set", "vi1", "netns", to.name(), "name", name]).expect("an interface");
        };
        // Attached, and moved with another name.
        host_on_switch(&net.near, "vi1", &[]);
        move_it(&net.near, &net.far, "eth7");
        bring_up(&net.far, "eth7", &["10.8.0.2/24"]);
        until("the hosts reach each other", || pings(&net.near, "10.8.0.2"));
        assert!(ctl(&net.far, "-r eth7").2.contains("attached"));
        done(&net.far, "-d vale0:vi1");
        assert!(!pings(&net.near, "10.8.0.2"));
        // No interface has this name any more.
        assert!(ctl(&net.near, "-r vi1").2.contains("no such interface"));
        // Attached in its new namespace, it still is a persistent port, not a physical interface.
        done(&net.far, "-a vale0:eth7");
        until("the hosts reach each other again", || pings(&net.near, "10.8.0.2"));
        done(&net.far, "-d vale0:eth7");
        done(&net.far, "-r eth7");
        net.far.ip(&["link", "show", "eth7"]).expect_err("it is gone");
        // Moved before it was attached, beside another of that name.
        done(&net.near, "-n vi1");
        done(&net.far, "-n vi0");
        move_it(&net.near, &net.far, "vi1");
        assert!(ctl(&net.near, "-r va").2.contains("no persistent port"));
        done(&net.far, "-r vi1");
        done(&net.far, "-r vi0");
        done(&net.near, "-d vale0:vi0");
        done(&net.near, "-r vi0");
        until("nothing is left", || home.snapshot().ports.is_empty() && home.snapshot().regions.is_empty());
        net.assert_alive();
    });
}

#[test]
fn an_interface_is_attached_to_a_switch() {
    isolated_with_interfaces(|home| {
        let Some(mut net) = Net::new(home, DIRECT, CABLE) else { return };
        done(&net.near, "-a vale0:va");
        assert!(net.has_xdp());
        let (port, tap) = (open_in(&net.near, "vale0:p"), net.tap());
        let out = frames(&[60, 64, 1000, 1514, 300], 100);
        transmit(&port, 0, &out, BUFFER);
        assert_eq!(tap.collect(out.len()), out);
        let back = frames(&[60, 1514, 70, 500], 200);
        tap.send_all(&back);
        let got: Vec<_> = collect(&port, back.len());
        assert_eq!(got, back);
        // It cannot be opened by another program now.
        assert!(net.refused("netmap:va").1.contains("vale-ctl -d vale0:va"));
        // While polling CPUs serve it, it cannot be detached.
        done(&net.near, "-p vale0:va -C 0,1");
        assert_eq!(home.polled("vale0:va"), [(0, 1)]);
        assert!(ctl(&net.near, "-p vale0:va").2.contains("already"));
        assert!(ctl(&net.near, "-p vale0:va -C 0,4000").2.contains("already"));
        assert!(ctl(&net.near, "-d vale0:va").2.contains("vale-ctl -P"));
        transmit(&port, 0, &out, BUFFER);
        assert_eq!(tap.collect(out.len()), out);
        done(&net.near, "-P vale0:va");
        assert!(ctl(&net.near, "-P vale0:va").2.contains("no processors"));
        assert!(ctl(&net.near, "-p vale0:va -C 0,4000").2.contains("of processors 4000"));
        done(&net.near, "-d vale0:va");
        net.assert_given_back();
        drop(port);
        until("nothing is left", || home.snapshot().ports.is_empty() && home.snapshot().regions.is_empty());
        net.assert_alive();
    });
}

/// Polling CPUs of an attached interface: valid and invalid settings, with netmap's error numbers.
#[test]
fn polling_cpus_are_assigned_to_the_queues_of_an_interface() {
    isolated_with_interfaces(|home| {
        let queues = lab::VethOptions { queues: 2, ..CABLE };
        let Some(mut net) = Net::new(home, DIRECT, queues) else { return };
        let here = cpus_allowed().len();
        if here < 2 {
            eprintln!("skipped: where a processor serves an interface, another must be left");
            return;
        }
        done(&net.near, "-a vale0:va");
        let ask = |reqtype, mode, first, count| {
            let body = NmreqValePolling {
                nr_mode: mode,
                nr_first_cpu_id: first,
                nr_num_polling_cpus: count,
                ..Default::default()
            };
            control(reqtype, "vale0:va", body).err().unwrap_or(0)
        };
        let (on, off) = (NETMAP_REQ_VALE_POLLING_ENABLE, NETMAP_REQ_VALE_POLLING_DISABLE);
        let (single, multi) = (NETMAP_POLLING_MODE_SINGLE_CPU, NETMAP_POLLING_MODE_MULTI_CPU);
        assert_eq!(ask(off, 0, 0, 0), EFAULT, "it was not on");
        let all = here as u32;
        for (mode, first, count) in [
            (0, 0, 1),
            (3, 0, 1),
            (single, 0, 0),
            (multi, 0, 0),
            (single, 0, 2),
            (single, 1000, 1),
            (single, u32::MAX, 1),
            (single, 0, all),
            (multi, 0, all),
            (multi, 2, 1),
            (multi, u32::MAX, 1),
            (multi, 0, u32::MAX),
        ] {
            assert_eq!(ask(on, mode, first, count), EINVAL, "mode {mode}, {count} from {first} on");
        }
        assert_eq!(home.polled("vale0:va"), []);
        assert_eq!(ask(on, single, 1, 1), 0);
        assert_eq!(home.polled("vale0:va"), [(0, 1), (1, 1)]);
        assert_eq!(ask(on, single, 1, 1), EFAULT, "it is on");
        assert_eq!(ask(off, 0, 0, 0), 0);
        // A ring gets the processor of its own number; the other ring is served as before.
        assert_eq!(ask(on, multi, 1, 1), 0);
        assert_eq!(home.polled("vale0:va"), [(1, 1)]);
        until("one of its threads stays on processor 1", || home.threads_kept_on("va", 1) == 1);
        let (port, tap) = (open_in(&net.near, "vale0:p"), net.tap());
        let out = frames(&[60, 1514, 70, 500], 100);
        transmit(&port, 0, &out, BUFFER);
        assert_eq!(tap.collect(out.len()), out);
        drop(port);
        assert_eq!(ask(off, 0, 0, 0), 0);
        until("it runs wherever", || home.threads_kept_on("va", 1) == 0);
        done(&net.near, "-d vale0:va");
        net.assert_given_back();
        net.assert_alive();
    });
}

/// Rounds for each number of threads, and their maximum duration: in each round the kernel waits several times for an
/// RCU grace period, which may take long on busy processors.
const TURNS: u64 = 25;
const TURNS_LIMIT: Duration = Duration::from_secs(30);

/// Sets the flag when it is dropped, also when a test fails: otherwise a thread that waits for the flag would block the
/// test.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn nothing_is_left_of_a_killed_daemon_after_stop_all() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        host_on_switch(&net.near, "vi0", &["10.8.0.1/24"]);
        done(&net.near, "-a vale0:va");
        rustix::process::kill_process(home.daemon(), Signal::KILL).expect("it runs");
        until("it is gone", || home.try_snapshot().is_none());
        home.stop_all();
        until("the persistent port is gone", || net.near.ip(&["link", "show", "vi0"]).is_err());
        net.assert_given_back();
    });
}

/// Tests of [`isolated_alone`].
mod alone {
    use super::*;

    #[test]
    fn an_interface_can_be_attached_and_detached_under_load() {
        isolated_alone(|home| {
            let Some(mut net) = Net::new(home, DIRECT, CABLE) else { return };
            let (a, b) = (open_in(&net.near, "vale0:a"), open_in(&net.near, "vale0:b"));
            let stop = AtomicBool::new(false);
            let (mut sent, mut received) = (0, 0);
            std::thread::scope(|scope| {
                let over = Over(&stop);
                // No packet between the two programs is lost: the sender waits until the receiver has received all.
                let traffic = scope.spawn(|| {
                    while !stop.load(Relaxed) {
                        send(&a, 1, sent, sent + 32).expect("a switch");
                        sent += 32;
                        while received < sent {
                            let got = receive(&b, 1).expect("a switch").len() as u64;
                            received += got;
                        }
                    }
                    (sent, received)
                });
                let mut turns = 0;
                for threads in [1, 3] {
                    conformance::ether::threads(threads, "any");
                    let start = Instant::now();
                    for _ in (0..TURNS).take_while(|_| start.elapsed() < TURNS_LIMIT) {
                        for args in ["-a vale0:va", "-d vale0:va"] {
                            let end = Instant::now() + LIMIT;
                            let (mut status, _, mut err) = ctl(&net.near, args);
                            // A busy kernel may release the queue later than the daemon waits.
                            while err.contains(HELD) && Instant::now() < end {
                                (status, _, err) = ctl(&net.near, args);
                            }
                            assert_eq!(status, 0, "turn {turns}, {args}: {err}");
                        }
                        turns += 1;
                    }
                }
                drop(over);
                let (sent, received) = traffic.join().expect("the traffic goes on");
                assert_eq!(sent, received);
                summary(&format!(
                    "attached and detached {turns} times under traffic: {sent} packets sent, {received} received"
                ));
            });
            net.assert_given_back();
            net.assert_alive();
        });
    }
}

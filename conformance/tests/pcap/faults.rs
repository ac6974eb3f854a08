// SPDX-License-Identifier: BSD-2-Clause
//! Programs that use libpcap on netmap ports: removed ports, slow readers, signals, forks and kills.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use conformance::c::compile_with;
use conformance::home::{Guard, summary};
use conformance::net::{BUFFER, CABLE, DIRECT, MEDIATED, Net, assert_same, collect, frames, transmit};
use conformance::pcap::{Far, InteractiveProgram, overlay, read_pcap};
use conformance::{Home, isolated_with_interfaces, program, until};
use rustix::process::{Pid, Signal, kill_process};
use unetmap::Port;

fn faults(home: &Home) -> PathBuf {
    overlay();
    let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/c");
    compile_with(home, "pcap_faults", &[include, "-lpcap"])
}

fn start(mut command: Command, faults: &PathBuf, what: &str, device: &str) -> InteractiveProgram {
    InteractiveProgram::start(command.args(["run", "--"]).arg(faults).args([what, device]))
}

/// Starts the program, and waits until its handle is active.
#[track_caller]
fn ready(faults: &PathBuf, what: &str, device: &str) -> InteractiveProgram {
    let mut program = start(Command::new(program("unetmap")), faults, what, device);
    program.until("ready");
    program
}

#[track_caller]
fn open(spec: &str) -> Port {
    Port::open(spec).unwrap_or_else(|e| panic!("{spec}: {e}"))
}

/// Frames of 100 bytes; the bytes from 14 on contain the frame's number.
fn numbered(numbers: std::ops::Range<usize>) -> Vec<Vec<u8>> {
    numbers.map(|i| [vec![0; 14], vec![i as u8; 86]].concat()).collect()
}

#[test]
fn impossible_snap_lengths_are_handled() {
    isolated_with_interfaces(|home| {
        let port = open("netmap:s{1");
        let mut program = start(Command::new(program("unetmap")), &faults(home), "snaplens", "netmap:s}1");
        assert_eq!(program.line(), "262144 262144 262144 262144 262144 262144 1 65");
        program.until("ready");
        transmit(&port, 0, &numbered(0..1), 2048);
        assert_eq!(program.line(), "65 of 100");
        program.end();
    });
}

#[test]
fn a_thread_that_waits_in_pcap_loop_can_be_cancelled() {
    isolated_with_interfaces(|home| {
        let _port = open("netmap:c{1");
        ready(&faults(home), "cancelled", "netmap:c}1").end();
    });
}

#[test]
fn a_killed_daemon_ends_the_capture_with_an_error() {
    isolated_with_interfaces(|home| {
        let faults = faults(home);
        let mut programs =
            [ready(&faults, "port-deleted", "netmap:g}1"), ready(&faults, "port-deleted-select", "netmap:g{1")];
        kill_process(home.daemon(), Signal::KILL).expect("our daemon");
        for program in &mut programs {
            let line = program.line();
            assert!(line.starts_with("-1: ") && line.contains("daemon"), "{line}");
        }
        programs.into_iter().for_each(|program| drop(program.end()));
    });
}

#[test]
fn a_deleted_interface_ends_the_capture_with_an_error() {
    isolated_with_interfaces(|home| {
        let faults = faults(home);
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let mut program = start(net.command(program("unetmap")), &faults, "port-deleted", "netmap:va");
        program.until("ready");
        net.near.ip(&["link", "del", "va"]).expect("an interface");
        let line = program.line();
        assert!(line.starts_with("-1: ") && line.contains("va"), "{line}");
        program.end();
    });
}

/// Sends more than the reader has room for: received plus dropped packets equal those sent. On an interface some may
/// wait in the socket before the first packet is read.
fn slow_reader(mut program: InteractiveProgram, far: &Far, sent: usize, least: usize) {
    program.until("ready");
    let some = frames(&[60; 1000], 0);
    for _ in 0..sent / 1000 {
        far.send(&some);
    }
    // Packets in flight arrive.
    std::thread::sleep(Duration::from_millis(200));
    program.write_line();
    let before: usize = program.line().parse().unwrap();
    assert!(before == sent || matches!(far, Far::Tap(_)) && before < sent, "{before} of {sent}");
    let line = program.line();
    let [received, dropped] = [0, 1].map(|i| line.split(' ').nth(i).and_then(|n| n.parse::<usize>().ok()).unwrap());
    assert_eq!(received + dropped, sent);
    assert!(received >= least, "{line}");
    program.end();
}

#[test]
fn drops_of_a_slow_reader_on_a_switch_are_counted() {
    isolated_with_interfaces(|home| {
        let far = Far::Port(Box::new(open("vale4:far")));
        let program = start(Command::new(program("unetmap")), &faults(home), "slow", "vale4:near");
        slow_reader(program, &far, 20_000, 500);
    });
}

#[test]
fn drops_of_a_slow_reader_on_an_interface_are_counted() {
    isolated_with_interfaces(|home| {
        let faults = faults(home);
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let program = start(net.command(program("unetmap")), &faults, "slow", "netmap:va");
        slow_reader(program, &Far::Tap(net.tap()), 20_000, 500);
    });
}

#[test]
fn drops_of_a_slow_reader_on_a_mediated_interface_are_counted() {
    isolated_with_interfaces(|home| {
        let faults = faults(home);
        let Some(net) = Net::new(home, MEDIATED, CABLE) else { return };
        let program = start(net.command(program("unetmap")), &faults, "slow", "netmap:va");
        slow_reader(program, &Far::Tap(net.tap()), 20_000, 500);
    });
}

#[test]
fn a_pipe_sender_waits_for_a_slow_reader() {
    isolated_with_interfaces(|home| {
        let far = Far::Port(Box::new(open("netmap:w{1")));
        let program = start(Command::new(program("unetmap")), &faults(home), "slow", "netmap:w}1");
        slow_reader(program, &far, 1000, 1000);
    });
}

#[test]
fn pcap_breakloop_works_at_any_moment() {
    isolated_with_interfaces(|home| {
        let port = open("netmap:b{1");
        let mut program = ready(&faults(home), "breaks", "netmap:b}1");
        let some = numbered(0..100);
        for _ in 0..300 {
            transmit(&port, 0, &some, 2048);
        }
        assert_eq!(program.line(), "30000");
        program.end();
    });
}

#[test]
fn a_forked_child_can_continue_the_capture() {
    isolated_with_interfaces(|home| {
        let port = open("netmap:f{1");
        let mut program = ready(&faults(home), "forks", "netmap:f}1");
        transmit(&port, 0, &numbered(0..20), 2048);
        assert_eq!(collect(&port, 1000).len(), 1000);
        program.until("child");
        transmit(&port, 0, &numbered(20..30), 2048);
        program.write_line();
        assert_eq!(collect(&port, 1).len(), 1);
        program.until("parent");
        program.write_line();
        program.end();
        until("all is given back", || home.snapshot().sessions.len() == 1);
    });
}

#[test]
fn sends_into_a_full_pipe_fail_and_are_counted() {
    isolated_with_interfaces(|home| {
        let port = open("netmap:u{1");
        let mut program = ready(&faults(home), "full", "netmap:u}1");
        let sent: usize = program.line().parse().unwrap();
        assert!(sent >= 1000, "{sent}");
        // Exactly the packets that were reported as sent arrive.
        assert_eq!(collect(&port, sent).len(), sent);
        program.write_line();
        program.end();
    });
}

#[test]
fn the_last_injected_packets_are_sent_without_a_flush() {
    isolated_with_interfaces(|home| {
        let port = open("netmap:e{1");
        let mut program = ready(&faults(home), "stream", "netmap:e}1");
        assert_eq!(collect(&port, 777).len(), 777);
        program.write_line();
        assert_eq!(collect(&port, 555).len(), 555);
        program.end();
    });
}

/// Root's daemon has no rule for the user that the program becomes.
#[test]
fn a_program_that_drops_its_privileges_can_send_by_a_packet_socket() {
    isolated_with_interfaces(|home| {
        if !rustix::process::geteuid().is_root() {
            return summary("skipped: needs root");
        }
        let port = open("netmap:d{1");
        let mut program = start(Command::new(program("unetmap")), &faults(home), "dropped-privileges", "netmap:d}1");
        program.until("ready");
        assert_same(&collect(&port, 1), &[vec![7; 60]]);
        program.end();
    });
}

#[test]
fn packets_of_several_slots_arrive_whole() {
    isolated_with_interfaces(|home| {
        let port = open("netmap:l{1");
        let mut program = ready(&faults(home), "large", "netmap:l}1");
        let packet = |i: usize| (0..9000).map(|k| (k / 100 + i) as u8).collect::<Vec<u8>>();
        transmit(&port, 0, &[packet(0), packet(1), packet(2)], 2048);
        assert!(collect(&port, 1) == [packet(0)]);
        program.write_line();
        program.end();
    });
}

#[test]
fn a_killed_program_leaves_nothing() {
    isolated_with_interfaces(|home| {
        let port = open("netmap:k{1");
        let faults = faults(home);
        for _ in 0..10 {
            let program = ready(&faults, "slow", "netmap:k}1");
            transmit(&port, 0, &numbered(0..100), 2048);
            program.kill();
            until("its session is over", || home.snapshot().sessions.len() == 1);
        }
        // The next program gets what the killed ones had not read.
        let mut program = ready(&faults, "slow", "netmap:k}1");
        program.write_line();
        assert_eq!(program.line(), "1000");
        program.end();
    });
}

#[test]
fn filtered_packets_do_not_extend_a_timeout() {
    isolated_with_interfaces(|home| {
        let mut program = ready(&faults(home), "flood", "netmap:n}1");
        let mut sender = Command::new(conformance::program("pkt-gen"));
        sender.args(["-i", "netmap:n{1", "-f", "tx", "-w", "0", "-T", "0"]).stdout(Stdio::null()).stderr(Stdio::null());
        let _sender = Guard::spawn(&mut sender);
        assert_eq!([program.line(), program.line(), program.line()], ["dispatch 0", "next_ex 0", "nonblock 0 0"]);
        program.write_line();
        program.end();
    });
}

/// Sends all frames, waiting for room.
fn in_hand(home: &Home, how: &str) {
    // So few slots that one is reused while its packet is still in use.
    let port = Port::options().tx_slots(64).rx_slots(64).open("netmap:h{1").expect("a pipe");
    let program = ready(&faults(home), how, "netmap:h}1");
    for from in (0..600).step_by(100) {
        let numbers = from..from + 100;
        transmit(&port, 0, &numbers.map(|i| vec![(i % 251) as u8; 100]).collect::<Vec<_>>(), BUFFER);
    }
    program.end();
}

#[test]
fn a_returned_packet_stays_valid_during_pcap_stats() {
    isolated_with_interfaces(|home| in_hand(home, "held-packet"));
}

#[test]
fn a_returned_packet_stays_valid_during_select() {
    isolated_with_interfaces(|home| in_hand(home, "held-packet-select"));
}

/// Starts tcpdump by `unetmap run`, writing `packets` packets to a file; `None` if it is not installed.
fn tcpdump(home: &Home, port: &str, packets: usize) -> Option<(Guard, PathBuf)> {
    if !Command::new("tcpdump").arg("--version").output().is_ok_and(|output| output.status.success()) {
        summary("skipped: there is no tcpdump (apt-get install tcpdump)");
        return None;
    }
    overlay();
    let before = home.try_snapshot().map_or(0, |all| all.sessions.len());
    let file = home.folder().join(format!("{}.pcap", port.replace(['/', ':'], "-")));
    let mut command = Command::new(program("unetmap"));
    command.args(["run", "--", "tcpdump", "-n", "-Z", "root", "-i", port, "-c", &packets.to_string(), "-w"]).arg(&file);
    let printed = std::fs::File::create(file.with_extension("stderr")).expect("a file");
    let guard = Guard::spawn(command.stdin(Stdio::null()).stderr(printed));
    until("tcpdump has its port", || home.try_snapshot().is_some_and(|all| all.sessions.len() > before));
    Some((guard, file))
}

#[track_caller]
fn assert_wrote(tcpdump: &mut Guard, file: &Path, sent: &[Vec<u8>]) {
    let printed = || std::fs::read_to_string(file.with_extension("stderr")).unwrap_or_default();
    assert!(tcpdump.wait().success(), "{}", printed());
    let got: Vec<_> = read_pcap(file).into_iter().map(|packet| packet.bytes).collect();
    assert_same(&got, sent);
    assert!(printed().contains("\n0 packets dropped by kernel"), "{}", printed());
}

#[test]
fn four_programs_capture_on_monitors_of_one_port() {
    isolated_with_interfaces(|home| {
        let (far, near) = (open("netmap:o{1"), open("netmap:o}1"));
        let sent = numbered(0..200);
        let mut programs = Vec::new();
        for monitor in ["netmap:o}1/r", "netmap:o{1/t", "netmap:o}1/rt", "netmap:o}1/z"] {
            let Some(program) = tcpdump(home, monitor, sent.len()) else { return };
            programs.push(program);
        }
        for some in sent.chunks(20) {
            transmit(&far, 0, some, BUFFER);
            assert_same(&collect(&near, some.len()), some);
            // The slots are released once the last of the four programs has read them.
            near.rxsync().expect("an open port");
        }
        for (tcpdump, file) in &mut programs {
            assert_wrote(tcpdump, file, &sent);
        }
    });
}

/// Signals for a program that captures.
const SIGNALS: u32 = 3000;

/// Whether a process has a handler for a signal.
fn handles(pid: Pid, signal: Signal) -> bool {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = text.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask >> (signal.as_raw() - 1) & 1 != 0)
}

#[test]
fn pcap_stats_works_in_a_signal_handler_at_any_moment() {
    isolated_with_interfaces(|home| {
        let port = open("netmap:i{1");
        let sent: Vec<_> = (0..300).flat_map(|_| numbered(0..100)).collect();
        let Some((mut tcpdump, file)) = tcpdump(home, "netmap:i}1", sent.len()) else { return };
        let (pid, over) = (tcpdump.pid(), AtomicBool::new(false));
        // It installs its signal handler after it opened the port; until then the signal would end it.
        until("the signal is handled", || handles(pid, Signal::USR1));
        std::thread::scope(|scope| {
            // A program that gets signals faster than it handles them would do nothing else.
            scope.spawn(|| {
                let printed = || std::fs::metadata(file.with_extension("stderr")).map_or(0, |file| file.len());
                for _ in 0..SIGNALS {
                    let before = printed();
                    kill_process(pid, Signal::USR1).expect("our child");
                    while printed() == before && !over.load(Relaxed) {
                        std::thread::sleep(Duration::from_micros(100));
                    }
                    std::thread::sleep(Duration::from_micros(100));
                    if over.load(Relaxed) {
                        break;
                    }
                }
            });
            for some in sent[..sent.len() - 100].chunks(100) {
                transmit(&port, 0, some, BUFFER);
            }
            over.store(true, Relaxed);
        });
        transmit(&port, 0, &sent[sent.len() - 100..], BUFFER);
        assert_wrote(&mut tcpdump, &file, &sent);
    });
}

//! Open netmap files: the descriptor is the port. And C programs of `conformance/c`, run by `unetmap run`.

use std::os::fd::AsFd;
use std::process::Command;
use std::time::Duration;

use conformance::c::{Running, compile, linked, start, start_by};
use conformance::net::{CABLE, DIRECT, MEDIATED, Net, frames};
use conformance::{Home, isolated, program, until};
use rustix::process::{Pid, Signal, kill_process};
use unetmap::abi::{NETMAP_REQ_REGISTER, NR_REG_ALL_NIC, NmreqRegister};
use unetmap::errno::{EBUSY, EINVAL};
use unetmap::file::{Attached, File};
use unetmap::request::Request;
use unetmap::{Interest, Port};
use zerocopy::IntoBytes;

fn register(name: &str) -> Request {
    let body = NmreqRegister { nr_mode: NR_REG_ALL_NIC, ..Default::default() };
    Request::new(NETMAP_REQ_REGISTER, name, body.as_bytes()).unwrap()
}

/// One packet of 60 bytes from one port to the other.
fn send(from: &Port, to: &Port, byte: u8) {
    let ring = &from.tx_rings()[0];
    ring.window().next().expect("room").frame().write(0, &[byte; 60]);
    ring.window().next().expect("room").set_len_flags(60, 0);
    ring.advance(1);
    from.txsync().unwrap();
    assert!(to.poll(Interest::RX, Some(Duration::from_secs(10))).unwrap().rx());
    let ring = &to.rx_rings()[0];
    let mut got = [0; 1];
    ring.window().next().expect("a packet").frame().read(0, &mut got);
    assert_eq!(got, [byte]);
    ring.advance(1);
    to.rxsync().unwrap();
}

#[test]
fn a_descriptor_that_came_from_elsewhere_is_the_port() {
    isolated(|home| {
        let (fd, file) = File::open().unwrap();
        assert!(file.attach(fd.as_fd()).unwrap().is_none(), "nothing is bound yet");
        let told = file.request(fd.as_fd(), &register("d{1")).unwrap();
        assert_eq!((told.errno, told.why.as_str()), (0, ""));
        let master = told.attached.expect("a port");
        let slave = Port::open("netmap:d}1").unwrap();
        send(&master.port, &slave, 1);
        assert_eq!(file.request(fd.as_fd(), &register("d{2")).unwrap().errno, EBUSY);

        // As another process would that got the descriptor, and nothing else.
        let other = fd.try_clone().unwrap();
        let file = File::behind(other.as_fd()).expect("a netmap file");
        let Attached { port: again, .. } = file.attach(other.as_fd()).unwrap().expect("a port");
        assert_eq!(again.register(), master.port.register());
        send(&slave, &again, 2);
        drop(fd);
        drop(master);
        send(&again, &slave, 3);
        assert_eq!(home.snapshot().sessions.len(), 2);
        // The port goes with the last duplicate, not with what a process knows of it.
        drop(other);
        until("the session is over", || home.snapshot().sessions.len() == 1);
        drop(again);
    });
}

#[test]
fn a_refused_request_leaves_the_file_open() {
    isolated(|_| {
        let (fd, file) = File::open().unwrap();
        for name in ["", "d{", "d{1-0"] {
            let told = file.request(fd.as_fd(), &register(name)).unwrap();
            assert_eq!(told.errno, EINVAL, "{name}");
            assert!(told.request.is_some() && told.attached.is_none() && !told.why.is_empty());
        }
        let mut nonsense = register("d{1");
        nonsense.header.nr_version = 3;
        let told = file.request(fd.as_fd(), &nonsense).unwrap();
        assert!(told.errno == EINVAL && told.request.is_none());
        assert_eq!(file.request(fd.as_fd(), &register("d{1")).unwrap().errno, 0);
        assert!(File::behind(std::fs::File::open("/dev/null").unwrap().as_fd()).is_none());
    });
}

#[test]
fn c_programs_send_and_receive_through_a_pipe() {
    isolated(|home| {
        let pipe = compile(home, "pipe", &[]);
        let receiver = start(&pipe, &["receive", "c}1", "20000"]);
        let sender = start(&pipe, &["send", "c{1", "20000"]);
        assert_eq!(sender.output(), "20000\n");
        assert_eq!(receiver.output(), "20000\n");
        until("both sessions are over", || home.snapshot().sessions.is_empty());
    });
}

#[test]
fn libnetmap_linked_and_nothing_preloaded() {
    isolated(|home| {
        let link = linked(home.folder());
        let shared = compile(home, "names", &link.each_ref().map(String::as_str));
        let archive = program("libunetmap.so").with_extension("a").display().to_string();
        for (how, path) in [("shared", shared), ("static", compile(home, "names", &[&archive, "-lm"]))] {
            assert_eq!(Running::spawn(how, &mut Command::new(path)).output(), "ok\n", "{how}");
        }
    });
}

#[test]
fn whatever_a_file_can_do() {
    isolated(|home| {
        let fds = compile(home, "fds", &[]);
        for what in [
            "dup",
            "fork",
            "exec",
            "passed",
            "poll",
            "signals",
            "select",
            "epoll",
            "edges",
            "fork-while-polling",
            "many",
        ] {
            assert_eq!(start(&fds, &[what]).output(), "ok\n", "{what}");
            until("all is given back", || home.snapshot().sessions.is_empty());
        }
    });
}

#[test]
fn a_killed_daemon_leaves_errors() {
    isolated(|home| {
        let waiting = start(&compile(home, "fds", &[]), &["bereaved"]);
        until("both ports are open", || home.try_snapshot().is_some_and(|snapshot| snapshot.sessions.len() == 2));
        let daemon = Pid::from_raw(home.snapshot().daemon.pid as i32).expect("a process");
        kill_process(daemon, Signal::KILL).expect("our daemon");
        assert_eq!(waiting.output(), "ok\n");
    });
}

/// The examples on an interface, seen from the other end of the cable.
fn on_an_interface(home: &Home, policy: &str) {
    let Some(net) = Net::new(home, policy, CABLE) else { return };
    let run =
        |example: &str, args: &[&str]| start_by(net.command(program("unetmap")), &compile(home, example, &[]), args);
    let tap = net.tap();
    let generator = run("generator", &["va", "1000"]);
    let got = tap.collect(1000);
    assert!(got.iter().all(|frame| frame.len() == 60 && frame[14..21] == *b" netmap"), "other frames than were sent");
    assert_eq!(generator.output(), "sent 1000\n");

    let receiver = run("receiver", &["netmap:va", "500"]);
    until("the port is open", || home.snapshot().sessions.iter().any(|session| session.port == "va"));
    tap.send_all(&frames(&[60; 500], 0));
    assert_eq!(receiver.output(), "received 500 packets, 30000 bytes\n");
    net.assert_given_back();
}

#[test]
fn the_examples_on_an_interface_direct() {
    isolated(|home| on_an_interface(home, DIRECT));
}

#[test]
fn the_examples_on_an_interface_mediated() {
    isolated(|home| on_an_interface(home, MEDIATED));
}

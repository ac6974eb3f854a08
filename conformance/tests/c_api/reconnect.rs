// SPDX-License-Identifier: BSD-2-Clause
//! C programs that wait for the next daemon.

use std::process::{Command, Stdio};

use conformance::c::{Running, compile, linked};
use conformance::net::serve;
use conformance::{Home, isolated};
use rustix::process::Signal;

fn assert_goes_on(home: &Home, wait: &str) {
    let mut daemons = vec![serve(home)];
    let link = linked(home.folder());
    let program = compile(home, "reconnect", &link.each_ref().map(String::as_str));
    let mut running = Running::spawn(wait, Command::new(program).args([wait, "2"]).stderr(Stdio::inherit()));
    for signal in [Signal::KILL, Signal::TERM] {
        assert_eq!(running.read_line(), "flows");
        let daemon = daemons.last_mut().expect("one serves");
        daemon.signal(signal);
        daemon.wait();
        daemons.push(serve(home));
    }
    assert_eq!(running.output(), "flows\nok\n");
}

#[test]
fn a_c_program_goes_on_in_poll() {
    isolated(|home| assert_goes_on(home, "poll"));
}

#[test]
fn a_c_program_goes_on_in_epoll() {
    isolated(|home| assert_goes_on(home, "epoll"));
}

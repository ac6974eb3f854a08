// SPDX-License-Identifier: BSD-2-Clause
//! A program that moves packets between ports until it is stopped, and then prints a summary: `lb`, `unetmap-fw`,
//! `unetmap emulate`. And what it moves packets between.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};

use lab::{Lab, Ns, VethOptions};
use rustix::process::Signal;
use serde_json::Value;
use unetmap::Port;

use crate::home::Guard;
use crate::net::take;
use crate::until;

/// Such a program, running.
pub struct Forwarder(Guard);

impl Forwarder {
    /// Starts it; returns when it works.
    #[track_caller]
    pub fn start(command: &mut Command) -> Forwarder {
        let mut guard = Guard::spawn(command.arg("--json").stdout(Stdio::piped()).stderr(Stdio::piped()));
        let lines = BufReader::new(guard.0.stderr.as_mut().expect("piped")).lines();
        let seen: Vec<String> = lines.map_while(Result::ok).take_while(|line| !line.starts_with("Ready")).collect();
        assert!(guard.0.try_wait().expect("our child").is_none(), "{seen:?}");
        Forwarder(guard)
    }

    /// Returns the process.
    pub fn guard(&mut self) -> &mut Guard {
        &mut self.0
    }

    /// Stops it by SIGINT; returns its summary.
    #[track_caller]
    pub fn summary(mut self) -> Value {
        self.0.signal(Signal::INT);
        let mut text = String::new();
        self.0.0.stdout.take().expect("piped").read_to_string(&mut text).expect("text");
        assert!(self.0.wait().success(), "{text}");
        serde_json::from_str(text.lines().last().unwrap_or_default()).expect("an object")
    }
}

/// Receives until `n` packets have come that are wanted.
#[track_caller]
pub fn receive(port: &Port, n: usize, wanted: impl Fn(&[u8]) -> bool) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = Vec::new();
    until("the packets pass", || {
        port.rxsync().expect("the daemon runs");
        all.extend(take(port, 0).into_iter().filter(|bytes| wanted(bytes)));
        port.rxsync().expect("the daemon runs");
        all.len() >= n
    });
    all
}

/// Two network namespaces, and one between them that a program joins: 10.9.0.1 on `left0`, whose peer is `left1`, and
/// 10.9.0.2 on `right0`, whose peer is `right1`.
pub struct Line {
    /// Of 10.9.0.1.
    pub left: Ns,
    /// Of the program.
    pub middle: Ns,
    /// Of 10.9.0.2.
    pub right: Ns,
    lab: Lab,
    queues: u32,
}

impl Line {
    /// Makes them. `None` where the machine cannot; the reason is printed.
    pub fn new() -> Option<Line> {
        Line::with_queues(1)
    }

    /// As [`Line::new`], with as many queues at each interface.
    pub fn with_queues(queues: u32) -> Option<Line> {
        let lab = Lab::new().inspect_err(|why| eprintln!("skipped: {why}")).ok()?;
        let [left, middle, right] = ["left", "middle", "right"].map(|name| lab.namespace(name).expect("a namespace"));
        lab.veth(&right, "right0", &middle, "right1", wire(queues)).expect("a veth pair");
        right.ip(&["address", "add", "10.9.0.2/24", "dev", "right0"]).expect("an address");
        let line = Line { left, middle, right, lab, queues };
        line.connect_left();
        Some(line)
    }

    /// Makes the pair of `left0` and `left1`, again after it was deleted.
    pub fn connect_left(&self) {
        self.lab.veth(&self.left, "left0", &self.middle, "left1", wire(self.queues)).expect("a veth pair");
        self.left.ip(&["address", "add", "10.9.0.1/24", "dev", "left0"]).expect("an address");
    }
}

/// Both ends of such a veth pair.
fn wire(queues: u32) -> VethOptions<'static> {
    VethOptions { queues, tx_checksum_off: true, ..VethOptions::default() }
}

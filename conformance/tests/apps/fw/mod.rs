// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap-fw` and `unetmap fw`.

mod commands;
mod faults;
mod nat;
mod pipes;
mod rules;
mod syn_proxy;
mod tee;
mod threads;

use std::fs;
use std::process::Command;

use conformance::{Home, program};
use unetmap::Port;

use conformance::forwarder::Forwarder;

/// Starts a firewall with a file of rules; returns when it works.
#[track_caller]
pub(super) fn start(home: &Home, mut command: Command, ports: &str, rules: &str) -> Forwarder {
    let path = home.folder().join("rules");
    fs::write(&path, rules).expect("a file");
    Forwarder::start(command.args(ports.split_whitespace()).args(["-w", "0", "--rules"]).arg(&path))
}

#[track_caller]
pub(super) fn plain(home: &Home, ports: &str, rules: &str) -> Forwarder {
    start(home, Command::new(program("unetmap-fw")), ports, rules)
}

/// Runs `unetmap fw`: its output, or its error.
pub(super) fn fw(command: &str) -> Result<String, String> {
    let output = Command::new(program("unetmap")).arg("fw").args(command.split_whitespace()).output().expect("it runs");
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// A packet from 10.0.0.`src` to port `port` of 10.0.0.`dst`: UDP, or TCP with flags; `seq` is its payload.
pub(super) fn packet(ends: (u8, u8), port: u16, flags: u8, seq: u32) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, ends.1, 2, 0, 0, 0, 0, ends.0, 8, 0];
    bytes.extend([0x45, 0, 0, 46, 0, 0, 0, 0, 64, if flags == 0 { 17 } else { 6 }, 0, 0]);
    bytes.extend([10, 0, 0, ends.0, 10, 0, 0, ends.1]);
    bytes.extend([1000u16, port].into_iter().flat_map(u16::to_be_bytes));
    bytes.extend([0; 8]);
    bytes.extend([0x50, flags, 0, 0, 0, 0, 0, 0]);
    bytes.extend(seq.to_be_bytes());
    bytes.resize(60, 0);
    bytes
}

/// The number in a packet of the test; `None` for others.
pub(super) fn seq(bytes: &[u8]) -> Option<u32> {
    let ours = bytes.len() == 60 && bytes[26..29] == [10, 0, 0];
    ours.then(|| u32::from_be_bytes(bytes[54..58].try_into().expect("4 bytes")))
}

/// Receives until `n` packets of the test have come.
#[track_caller]
pub(super) fn receive(port: &Port, n: usize) -> Vec<Vec<u8>> {
    conformance::forwarder::receive(port, n, |bytes| seq(bytes).is_some())
}

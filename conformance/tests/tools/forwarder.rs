// SPDX-License-Identifier: BSD-2-Clause
//! A program that moves packets between ports until it is stopped, and then prints a summary: `lb`, `unetmap-fw`.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};

use conformance::home::Guard;
use rustix::process::Signal;
use serde_json::Value;

/// Such a program, running.
pub(crate) struct Forwarder(Guard);

impl Forwarder {
    /// Starts it; returns when it works.
    #[track_caller]
    pub(crate) fn start(command: &mut Command) -> Forwarder {
        let mut guard = Guard::spawn(command.arg("--json").stdout(Stdio::piped()).stderr(Stdio::piped()));
        let lines = BufReader::new(guard.0.stderr.as_mut().expect("piped")).lines();
        let seen: Vec<String> = lines.map_while(Result::ok).take_while(|line| !line.starts_with("Ready")).collect();
        assert!(guard.0.try_wait().expect("our child").is_none(), "{seen:?}");
        Forwarder(guard)
    }

    /// Stops it by SIGINT; returns its summary.
    #[track_caller]
    pub(crate) fn summary(mut self) -> Value {
        self.0.signal(Signal::INT);
        let mut text = String::new();
        self.0.0.stdout.take().expect("piped").read_to_string(&mut text).expect("text");
        assert!(self.0.wait().success(), "{text}");
        serde_json::from_str(text.lines().last().unwrap_or_default()).expect("an object")
    }
}

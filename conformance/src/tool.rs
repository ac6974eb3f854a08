// SPDX-License-Identifier: BSD-2-Clause
//! Runs `unetmap nic` and `unetmap doctor`.

use std::process::{Command, Output};

use lab::Ns;

use crate::home::program;

/// Runs `unetmap nic` with these arguments in a namespace.
pub fn nic(ns: &Ns, args: &[&str]) -> Output {
    ns.command(program("unetmap")).arg("nic").args(args).output().expect("it runs")
}

/// Runs `unetmap nic`, which must succeed; returns its output.
#[track_caller]
pub fn done(ns: &Ns, args: &[&str]) -> String {
    let output = nic(ns, args);
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// The error message of a run that was refused: one line.
#[track_caller]
pub fn refused(output: &Output) -> String {
    ended(output, 1)
}

/// The error message about a wrong command line: one line.
#[track_caller]
pub fn wrong(output: &Output) -> String {
    ended(output, 2)
}

#[track_caller]
fn ended(output: &Output, status: i32) -> String {
    assert_eq!((output.status.code(), &*output.stdout), (Some(status), &b""[..]), "{output:?}");
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.strip_suffix('\n').unwrap_or_else(|| panic!("{text}"));
    assert!(line.starts_with("unetmap: nic") && !line.contains('\n'), "one sentence: {text}");
    line.into()
}

/// Why this kernel lacks a feature of `unetmap doctor`, as that says; `None`: it has it.
#[track_caller]
pub fn lacks(feature: &str) -> Option<String> {
    let output = Command::new(program("unetmap")).arg("doctor").output().expect("unetmap runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find(|line| line.contains(feature)).expect("doctor has a line");
    line.contains("missing").then(|| line.to_owned())
}

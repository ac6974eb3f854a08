// SPDX-License-Identifier: BSD-2-Clause
//! pkt-gen: netmap's packet generator and receiver.
//!
//! Modules: `options` parses the command line. `run` opens the ports, starts a thread for each and prints the summary.
//! `worker` has what all threads share. `tx` sends packets, which `source`, `packet` and `capture` provide; `rx`
//! receives them, with `sequence` for rxseq; `ping` measures round trips; `streams` sends and
//! measures streams, of which `search` makes trials. `report` formats counters; `dump` prints packets.
#![forbid(unsafe_code)]

mod addr;
mod affinity;
mod capture;
mod dump;
mod options;
mod packet;
mod ping;
mod report;
mod run;
mod rx;
mod search;
mod sequence;
mod source;
mod streams;
mod tx;
mod worker;

use std::process::ExitCode;

use tool_common::{Failure, note, print};

fn main() -> ExitCode {
    let allowed = affinity::allowed_cpus();
    let config = tool_common::parse::<options::Cli>().check(&allowed).map_err(Failure::Usage);
    let run = |config: options::Config| match (&config.search, &config.streams) {
        (Some(options), _) => search::run(&config, options),
        (None, Some(options)) => streams::run(&config, options),
        (None, None) => run::run(&config),
    };
    tool_common::exit_code("pkt-gen", config.and_then(run))
}

/// Prints a line of a report: to standard output if it is JSON, else to standard error.
fn print_report(line: &str, json: bool) {
    if json {
        print(&format!("{line}\n"));
    } else {
        note(line);
    }
}

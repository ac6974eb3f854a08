//! pkt-gen: netmap's packet generator and receiver.
//!
//! The way through the modules: `options` (what to do), `run` (ports, threads, the end), `worker` (a thread's share),
//! then `tx` with its packets from `source`, `packet` and `capture`, or `rx`, or `ping`; `report` tells about it.
#![forbid(unsafe_code)]

mod addr;
mod capture;
mod dump;
mod options;
mod packet;
mod ping;
mod report;
mod run;
mod rx;
mod sequence;
mod source;
mod tx;
mod worker;

use std::process::ExitCode;

use clap::Parser as _;
use tool_common::{Failure, note, print};

fn main() -> ExitCode {
    let allowed = unetmap_sys::process::cpus_allowed();
    let config = options::Cli::parse().check(&allowed).map_err(Failure::Usage);
    tool_common::end("pkt-gen", config.and_then(|config| run::run(&config)))
}

/// A report: standard error, or as JSON standard output.
fn tell(line: &str, json: bool) {
    if json {
        print(&format!("{line}\n"));
    } else {
        note(line);
    }
}

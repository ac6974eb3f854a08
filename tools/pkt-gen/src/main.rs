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

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    let allowed = unetmap_sys::process::cpus_allowed();
    let result = options::Cli::parse().check(&allowed).and_then(|config| run::run(&config));
    match result {
        Ok(code) => code,
        Err(message) => {
            note(&format!("pkt-gen: {message}"));
            ExitCode::FAILURE
        }
    }
}

/// Text for standard output. That nobody reads it any more is no reason to stop counting.
fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}

/// A line for standard error.
fn note(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// A report: standard error, or as JSON standard output.
fn tell(line: &str, json: bool) {
    if json {
        print(&format!("{line}\n"));
    } else {
        note(line);
    }
}

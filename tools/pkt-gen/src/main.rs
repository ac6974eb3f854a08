// SPDX-License-Identifier: BSD-2-Clause
//! pkt-gen: netmap's packet generator and receiver.
//!
//! Modules: `options` parses the command line. `run` opens the ports, starts a thread for each and prints the summary.
//! `worker` has what all threads share. `tx` sends packets, which `source`, `packet` and `capture` provide; `rx`
//! receives them, with `sequence` for rxseq; `ping` measures round trips. `report` formats counters; `dump` prints
//! packets. Streams, and the tests of RFC 2544 that consist of them, are in `apps/tester`.
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

use tool_common::Failure;
use tool_common::generator::allowed_cpus;

fn main() -> ExitCode {
    let allowed = allowed_cpus();
    let cli = tool_common::parse::<options::Cli>();
    cli.daemon.apply();
    let config = cli.check(&allowed).map_err(Failure::Usage);
    let run = |config: options::Config| {
        #[cfg(feature = "apps")]
        if let Some(task) = &config.task {
            return unetmap_tester::run(&config.common(), task);
        }
        run::run(&config)
    };
    tool_common::exit_code("pkt-gen", config.and_then(run))
}

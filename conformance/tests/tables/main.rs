// SPDX-License-Identifier: BSD-2-Clause
//! Tables that are printed when all their tests pass, too. cargo shows the output of tests of the usual kind only if
//! they fail, so this program runs without the test harness.
//!
//! ```text
//! cargo test -p conformance --test tables                              all three tables
//! cargo test -p conformance --test tables -- rules 1.1 2-              programs of rules whose names begin so
//! cargo test -p conformance --test tables -- host_matrix
//! cargo test -p conformance --test tables -- pcap_programs tcpdump     rows of programs whose names begin so
//! ```
#![forbid(unsafe_code)]

use std::process::ExitCode;

mod host_matrix;
mod pcap_programs;
mod rules;

/// One of the tables.
struct Table {
    name: &'static str,
    /// Names of what the filters choose from.
    list: fn() -> Vec<String>,
    /// Prints the table, of the rows that the filters choose; returns whether all of it passed.
    run: fn(&[String]) -> bool,
}

const TABLES: [Table; 3] = [
    Table { name: "rules", list: rules::list, run: rules::run },
    Table { name: "host_matrix", list: host_matrix::list, run: host_matrix::run },
    Table { name: "pcap_programs", list: pcap_programs::list, run: pcap_programs::run },
];

fn main() -> ExitCode {
    // A process that runs one row for a table, started by the table with a daemon of its own.
    if let Some(passed) = host_matrix::run_row_of_environment().or_else(pcap_programs::run_row_of_environment) {
        return exit_code(passed);
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|arg| arg == "--list") {
        TABLES.iter().for_each(|table| (table.list)().iter().for_each(|row| println!("{}::{row}: test", table.name)));
        return ExitCode::SUCCESS;
    }
    let mut words = args.into_iter().filter(|arg| !arg.starts_with('-'));
    let chosen = words.next();
    let filters: Vec<String> = words.collect();
    if let Some(name) = chosen.as_ref().filter(|name| TABLES.iter().all(|table| table.name != name.as_str())) {
        let names: Vec<&str> = TABLES.iter().map(|table| table.name).collect();
        // As for other tests, a filter that fits nothing is no failure.
        println!("no table {name} (there are {}), so nothing runs; arguments: TABLE [ROW...]", names.join(", "));
        return ExitCode::SUCCESS;
    }
    let tables = TABLES.iter().filter(|table| chosen.as_ref().is_none_or(|name| name == table.name));
    // Each of them runs, whether or not the one before it passed.
    let failed = tables.filter(|table| !(table.run)(&filters)).count();
    exit_code(failed == 0)
}

fn exit_code(passed: bool) -> ExitCode {
    ExitCode::from(u8::from(!passed))
}

// SPDX-License-Identifier: BSD-2-Clause
//! The options of pkt-gen that send and measure streams, and the tests of RFC 2544 and RFC 8219 that consist of them.
#![forbid(unsafe_code)]

mod search;
mod streams;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tool_common::Failure;
use tool_common::port::RingConfig;

pub use search::SearchOptions;
pub use streams::StreamOptions;
pub use unetmap_streams::signature;

#[expect(missing_docs, reason = "clap would take it for the program's")]
#[derive(Debug, Args)]
pub struct TesterArgs {
    #[command(flatten)]
    streams: streams::args::StreamArgs,

    #[command(flatten)]
    search: search::SearchArgs,
}

/// In place of pkt-gen's functions.
#[derive(Clone, Debug)]
pub enum Task {
    /// Sends and measures streams.
    Streams(StreamOptions),
    /// Searches what a device can do.
    Search(SearchOptions),
}

/// Options that pkt-gen's functions have, too.
#[derive(Clone, Copy, Debug)]
pub struct Common<'a> {
    /// The port that sends.
    pub port: &'a str,
    /// Its rings.
    pub rings: RingConfig,
    /// How long its link may take to come up.
    pub wait: Duration,
    /// How often what arrived is reported.
    pub interval: Option<Duration>,
    /// A receiver without a sender ends when no packet arrives for a second, after the first.
    pub exit_when_idle: bool,
    /// A receiver without a sender ends after so many packets.
    pub count: Option<u64>,
    /// The processor of the sender, then that of the receiver; empty: they are not pinned.
    pub cpus: &'a [usize],
    /// Reports are JSON.
    pub json: bool,
    /// Reads a packet of a capture, by its number from 1.
    pub packet_of_capture: fn(&Path, usize) -> Result<Vec<u8>, String>,
}

impl TesterArgs {
    /// Returns what the options ask for, if they are given; `port` is the one that sends.
    ///
    /// # Errors
    /// A sentence: options do not fit together.
    pub fn task(&self, port: &str) -> Result<Option<Task>, String> {
        let streams = self.streams.options();
        let search = self.search.options(port, streams.as_ref())?;
        Ok(search.map(Task::Search).or(streams.map(Task::Streams)))
    }

    /// Checks the options of streams; `has_count` says whether the command line has a number of packets, too.
    ///
    /// # Errors
    /// A sentence: options do not fit together.
    pub fn check(&self, has_count: bool) -> Result<(), String> {
        self.streams.check()?;
        if has_count && self.streams.sends() {
            return Err("-n: each stream has its own count; give that instead".into());
        }
        Ok(())
    }
}

/// Performs the task, as the command line has it.
///
/// # Errors
/// A sentence.
pub fn run(common: &Common<'_>, task: &Task) -> Result<ExitCode, Failure> {
    match task {
        Task::Streams(options) => streams::run(common, options),
        Task::Search(options) => search::run(common, options),
    }
}

// SPDX-License-Identifier: BSD-2-Clause
//! The options of searches.

use std::path::PathBuf;

use clap::Args;
use unetmap_streams::search::{Plan, Rfc};

use super::SearchOptions;
use crate::streams::StreamOptions;

/// Options that describe other streams, or when they end: a search has its own.
const NOT_WITH_SEARCHES: [&str; 4] = ["streams", "stream", "count", "exit_when_idle"];

// No documentation comment: clap would take it for the program's.
#[derive(Debug, Args)]
pub(crate) struct SearchArgs {
    /// Perform the tests of RFC 2544 with a device between the port and that of --receive=PORT (see SEARCHES)
    ///
    /// SPEC is KEY=VALUE[,KEY=VALUE...], as in tests=throughput+loss,sizes=64+1518,trial=5s. The keys are tests, sizes,
    /// trial, settle, repeat, attempts, tolerance and resolution, and those of --stream that describe packets.
    #[arg(long, value_name = "SPEC", num_args = 0..=1, require_equals = true, requires = "receive", conflicts_with_all = NOT_WITH_SEARCHES)]
    rfc2544: Option<Option<String>>,

    /// The same with IPv6 packets, and with the sizes of RFC 8219
    #[arg(long, value_name = "SPEC", num_args = 0..=1, require_equals = true, requires = "receive", conflicts_with_all = NOT_WITH_SEARCHES)]
    rfc8219: Option<Option<String>>,

    /// Also write the results of the search to this HTML file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

impl SearchArgs {
    /// Checks the options; `port` is the one that sends, and `streams` has what searches share with streams.
    pub(crate) fn options(&self, port: &str, streams: Option<&StreamOptions>) -> Result<Option<SearchOptions>, String> {
        let (rfc, flag, spec) = match (&self.rfc2544, &self.rfc8219) {
            (Some(_), Some(_)) => return Err("--rfc2544 and --rfc8219 are two searches: give one of them".into()),
            (Some(spec), None) => (Rfc::Rfc2544, "--rfc2544", spec),
            (None, Some(spec)) => (Rfc::Rfc8219, "--rfc8219", spec),
            (None, None) if self.html.is_some() => {
                return Err("--html is for searches: give --rfc2544 or --rfc8219".into());
            }
            (None, None) => return Ok(None),
        };
        let other = |of: &StreamOptions| of.receive.clone().flatten().filter(|name| name != port);
        let (streams, receive) = streams.and_then(|of| Some((of, other(of)?))).ok_or_else(|| {
            format!("{flag}: the device is between two ports: give the other one, as in --receive=netmap:eth1")
        })?;
        let plan = Plan::parse(rfc, spec.as_deref().unwrap_or(""), streams.link);
        let plan = plan.map_err(|e| format!("{flag}: {e}"))?;
        let StreamOptions { wall_clock, one_thread, .. } = *streams;
        Ok(Some(SearchOptions { plan, receive, wall_clock, one_thread, html: self.html.clone() }))
    }
}

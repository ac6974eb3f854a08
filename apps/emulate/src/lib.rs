// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap emulate`: a link between two ports, with bandwidth, delay and faults.
#![forbid(unsafe_code)]

mod link;
mod metrics;
mod options;
mod order;
mod report;

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Instant;

use tool_common::forward::{Direction, check_headers, drain, flush, forward};
use tool_common::{Failure, note, port, stop_on_hangup, stop_on_signals, wait_for_link};
use unetmap::Port;
use unetmap::abi::NR_ACCEPT_VNET_HDR;
use unetmap_shape::Pool;

use link::Link;
pub use options::{EmulateArgs, check_options, options};
use report::Report;

/// Reports that wait to be printed.
const REPORTS: usize = 16;

/// Performs `unetmap emulate`.
///
/// # Errors
/// A sentence that begins with `emulate:`.
pub fn run(args: &EmulateArgs) -> Result<(), Failure> {
    emulate(args).map_err(|failure| failure.within("emulate"))
}

fn emulate(args: &EmulateArgs) -> Result<(), Failure> {
    let settings = args.check()?;
    let stop = stop_on_signals()?;
    stop_on_hangup()?;
    let open = |spec: &str| port::open(spec, port::RingConfig::default(), NR_ACCEPT_VNET_HDR);
    let (a, b) = (open(&settings.ports[0])?, open(&settings.ports[1])?);
    let header = check_headers(&a, &b)? as usize;
    wait_for_link(settings.wait, stop);

    let begin = Instant::now();
    let pool = RefCell::new(Pool::new(settings.memory));
    let (sender, reports) = sync_channel::<Report>(REPORTS);
    let json = settings.json;
    let printer = std::thread::spawn(move || reports.iter().for_each(|report| report.print(json)));
    let link = |way, config: &unetmap_shape::PipeConfig, to: &Port| {
        Link::new(way, config.clone(), &pool, begin, header, to.buf_size(), sender.clone())
    };
    let mut directions = [
        Direction { from: &a, to: &b, burst: settings.burst, mover: link("out", &settings.links[0], &b) },
        Direction { from: &b, to: &a, burst: settings.burst, mover: link("in", &settings.links[1], &a) },
    ];
    let published = directions.each_ref().map(|direction| Arc::clone(&direction.mover.published));
    let name = format!("unetmap emulate {} {}", a.spec(), b.spec());
    let _served = args.metrics.serve(&name, move || metrics::of(&published))?;
    note(&format!("Ready to go, {} <-> {}, {}", a.spec(), b.spec(), settings.text));
    let result = forward(&mut directions, &[&a, &b], stop);
    let seconds = begin.elapsed().as_secs_f64();
    let left = flush(&mut directions);
    drain(&[&a, &b]);
    let ways = directions.each_mut().map(|direction| direction.mover.total());
    drop(directions);
    drop(sender);
    // The reports' sender is gone, so the thread ends after the last one.
    let _ = printer.join();
    report::summary(&ways, seconds, left, json);
    result?;
    Ok(())
}

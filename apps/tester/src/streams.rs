// SPDX-License-Identifier: BSD-2-Clause
//! Streams: sends those of a file or of the command line, and measures those that arrive.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use serde_json::Value;
use tool_common::generator::{not_released, note_down, print_report, times_json};
use tool_common::source::{self, MAX_RULES};
use tool_common::{Failure, note, port, stop_on_signals};
use unetmap::Port;
use unetmap_streams::{Sender, Stream, Summary, parse_file, parse_spec};

use crate::Common;

pub(crate) mod args;
pub(crate) mod engine;
mod report;

use engine::{Clock, Run};
use report::Report;

/// Streams to send and to measure.
#[derive(Clone, Debug)]
pub struct StreamOptions {
    pub(crate) file: Option<PathBuf>,
    pub(crate) specs: Vec<String>,
    /// The port whose streams are measured; `Some(None)`: that of -i.
    pub(crate) receive: Option<Option<String>>,
    pub(crate) wall_clock: bool,
    /// One thread sends and measures, and never sleeps.
    pub(crate) one_thread: bool,
    /// Bits per second.
    pub(crate) link: u64,
}

/// Sends and measures, as the command line has it.
pub(crate) fn run(config: &Common<'_>, options: &StreamOptions) -> Result<ExitCode, Failure> {
    let streams = read(options, config.packet_of_capture)?;
    let stop = stop_on_signals()?;
    let near = port::open(config.port, config.rings, 0)?;
    let far = match &options.receive {
        Some(Some(name)) if name != config.port => Some(port::open(name, config.rings, 0)?),
        _ => None,
    };
    let names = streams.iter().map(|stream| (stream.id, stream.name.clone())).collect();
    let sender = (!streams.is_empty()).then(|| Sender::new(streams));
    if let Some(sender) = &sender {
        check_size(&near, sender.largest())?;
    }
    tool_common::wait_for_link(config.wait, stop);
    note("Ready...");
    let receiving = options.receive.is_some().then(|| far.as_ref().unwrap_or(&near));
    let sender = sender.map(Mutex::new);
    let run = Run {
        clock: if options.wall_clock { Clock::Wall } else { Clock::Monotonic },
        stop,
        tx: sender.as_ref().map(|sender| (&near, sender)),
        rx: receiving,
        interval: config.interval,
        idle_exit: config.exit_when_idle,
        count: config.count.unwrap_or(u64::MAX),
        drain: engine::DRAIN,
        limit: None,
        pps: None,
        one_thread: options.one_thread,
        cpus: config.cpus,
    };
    let report = Report::new(names, config.json, config.port);
    let (lines, printed) = mpsc::channel();
    let done = std::thread::scope(|scope| {
        let work = scope.spawn(|| run.run(Some(lines)));
        loop {
            match printed.recv_timeout(Duration::from_secs(3600)) {
                Ok(interval) => {
                    report.interval(&interval).iter().for_each(|line| print_report(line, config.json));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        work.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    tool_common::print(&report.end(&done, sender.as_ref().map(engine::lock).as_deref()));
    if let Some(port) = receiving.filter(|_| done.receiver.as_ref().is_some_and(|receiver| receiver.packets() == 0)) {
        note_down(port.spec(), "no packets arrived");
    }
    if done.unreleased > 0 {
        note(&format!("pkt-gen: {}", not_released(config.port, done.unreleased)));
        let interrupted = stop.load(std::sync::atomic::Ordering::Relaxed);
        return Ok(if interrupted { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    if sender.is_some() && receiving.is_none_or(|port| port.spec() != config.port) {
        note_down(config.port, "packets may be lost");
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns times for JSON.
pub(crate) fn percentiles(times: &Summary) -> Value {
    times_json(times.min, times.max, times.mean, times.percentiles)
}

/// Packets are sent in one slot each.
pub(crate) fn check_size(port: &Port, largest: usize) -> Result<(), String> {
    let most = port.tx_rings().first().map_or(0, |ring| ring.slot_size()) as usize;
    if largest <= most {
        return Ok(());
    }
    Err(format!("{}: a packet of {largest} bytes does not fit a buffer of {most} bytes", port.spec()))
}

/// `packet_of_capture` reads a packet of a capture, whose path is relative to the folder of the streams' file.
fn read(
    options: &StreamOptions,
    packet_of_capture: fn(&Path, usize) -> Result<Vec<u8>, String>,
) -> Result<Vec<Stream>, Failure> {
    let mut streams = Vec::new();
    if let Some(path) = &options.file {
        let fail = |e: String| Failure::Work(format!("--streams {}: {e}", path.display()));
        let text = source::read_text(path, MAX_RULES).map_err(fail)?;
        let folder = path.parent().unwrap_or_else(|| Path::new(""));
        streams = parse_file(&text, options.link, &|capture, number| packet_of_capture(&folder.join(capture), number))
            .map_err(fail)?;
    }
    for (spec, id) in options.specs.iter().zip(streams.len() + 1..) {
        let id = u16::try_from(id).map_err(|_| Failure::Usage("--stream: too many streams".into()))?;
        let stream = parse_spec(spec, id, options.link);
        streams.push(stream.map_err(|e| Failure::Usage(format!("--stream {spec}: {e}")))?);
    }
    Ok(streams)
}

#[cfg(test)]
mod tests {
    use super::*;
    use unetmap_streams::DEFAULT_LINK;

    #[test]
    fn the_example_of_the_manual_is_a_file_of_streams() {
        let manual = include_str!("../../../tools/pkt-gen/man.roff");
        let examples = manual.split(".nf\n").filter_map(|part| part.split(".fi\n").next());
        let example = examples.filter(|part| part.contains("[[stream]]")).collect::<String>();
        let example = example.replace("\\-", "-");
        let streams = parse_file(&example, DEFAULT_LINK, &|_, _| Err("no capture".into()));
        assert_eq!(streams.map(|streams| streams.len()), Ok(2), "{example}");
    }
}

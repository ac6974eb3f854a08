// SPDX-License-Identifier: BSD-2-Clause
//! unetmap-fw: a firewall between two ports.
#![forbid(unsafe_code)]

mod control;
mod log;
mod options;
mod worker;

use std::cell::RefCell;
use std::process::ExitCode;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use serde_json::json;
use tool_common::forward::{Counts, Direction as Way, check_headers, check_sizes, drain, flush, forward};
use tool_common::{Failure, fw_socket, note, port, print, stop_on_signals, wait_for_link};
use unetmap::Port;
use unetmap::abi::NR_ACCEPT_VNET_HDR;
use unetmap_filter::{Config, Direction};

use log::PacketLog;
use options::{Cli, Options};
use worker::{Filter, Shared, Worker};

/// Packets that wait to be logged.
const LOG_QUEUE: usize = 1024;

fn main() -> ExitCode {
    let options = tool_common::parse::<Cli>().check().map_err(Failure::Usage);
    tool_common::exit_code("unetmap-fw", options.and_then(|options| run(&options)))
}

/// Returns a port's name as rules have it: without `netmap:` and options.
fn rule_name(port: &str) -> &str {
    let name = port.strip_prefix("netmap:").unwrap_or(port);
    name.split('@').next().unwrap_or(name)
}

fn run(options: &Options) -> Result<ExitCode, Failure> {
    let names = options.ports.each_ref().map(|port| rule_name(port));
    let mut config = Config::new(names, 1, options.default_accept).with_interfaces(control::interface_address);
    if let Some(path) = &options.rules {
        let script = std::fs::read_to_string(path).map_err(|e| format!("the rules {}: {e}", path.display()))?;
        config = config.apply(&script).map_err(|e| format!("the rules {}: {e}", path.display()))?.0;
    }
    let packet_log = options.log.as_deref().map(|path| PacketLog::create(path, options.log_bytes)).transpose()?;
    let stop = stop_on_signals()?;
    let open = |spec: &str| port::open(spec, port::RingConfig::default(), NR_ACCEPT_VNET_HDR);
    let (a, b) = (open(&options.ports[0])?, open(&options.ports[1])?);
    let swap = !options.copy && a.same_region(&b);
    check_sizes(&a, &b, swap)?;
    let header = check_headers(&a, &b)? as usize;
    let control = options.control.clone().map_or_else(fw_socket, Ok)?;
    let listener = control::listen(&control)?;
    let shared = Arc::new(Shared::new(config.compile()));
    let config = Arc::new(Mutex::new(config));
    std::thread::spawn({
        let (shared, config) = (Arc::clone(&shared), Arc::clone(&config));
        move || control::follow_addresses(&shared, &config)
    });
    std::thread::spawn({
        let shared = Arc::clone(&shared);
        move || control::serve(&listener, &shared, &config)
    });
    let (log, entries) = sync_channel(LOG_QUEUE);
    let ports = names.map(str::to_owned);
    let logger = std::thread::spawn(move || log::run(&entries, &ports, packet_log));
    wait_for_link(options.wait, stop);

    let worker = RefCell::new(Worker::new(&shared, options.states, options.memory, log));
    let filter = |direction, to: &Port| Filter {
        worker: &worker,
        direction,
        swap,
        header,
        buf_size: to.buf_size(),
        total: Counts::default(),
        dropped: 0,
        group: Vec::new(),
    };
    let mut ways = [
        Way { from: &a, to: &b, burst: options.burst, mover: filter(Direction::Out, &b) },
        Way { from: &b, to: &a, burst: options.burst, mover: filter(Direction::In, &a) },
    ];
    let mode = if swap { "zero copy" } else { "copy" };
    note(&format!("Ready to go, {} <-> {}, {mode}, control {}", a.spec(), b.spec(), control.display()));
    let begin = Instant::now();
    let result = forward(&mut ways, &[&a, &b], stop);
    let seconds = begin.elapsed().as_secs_f64();
    let left = flush(&mut ways);
    drain(&[&a, &b]);
    if left > 0 {
        note(&format!("{left} packets of pipes were not taken by their port in time"));
    }
    // Only a socket of this process is removed: it was listening until now.
    let _ = std::fs::remove_file(&control);
    let [out, back] = &ways;
    print_summary(options, [&out.mover, &back.mover], swap, seconds);
    drop(worker);
    // The log's sender is gone, so the thread ends after the last line.
    let _ = logger.join();
    result?;
    Ok(ExitCode::SUCCESS)
}

fn print_summary(options: &Options, [out, back]: [&Filter<'_, '_>; 2], swap: bool, seconds: f64) {
    let passed = out.total.packets + back.total.packets;
    let dropped = out.dropped + back.dropped;
    let line = if options.json {
        let way = |filter: &Filter<'_, '_>| json!({"passed": filter.total.packets, "bytes": filter.total.bytes, "dropped": filter.dropped});
        json!({
            "event": "summary", "passed": passed, "dropped": dropped, "seconds": seconds, "zero_copy": swap,
            "out": way(out), "in": way(back),
        })
        .to_string()
    } else {
        format!(
            "Passed {passed} packets and dropped {dropped} in {seconds:.2} seconds: out {} and {}, in {} and {}",
            out.total.packets, out.dropped, back.total.packets, back.dropped
        )
    };
    print(&format!("{line}\n"));
}

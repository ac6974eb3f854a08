// SPDX-License-Identifier: BSD-2-Clause
//! unetmap-fw: a firewall between two ports.
#![forbid(unsafe_code)]

mod control;
mod events;
mod fate;
mod log;
mod metrics;
mod options;
mod parsed;
mod shared;
mod states;
mod tee;
mod worker;

use std::cell::RefCell;
use std::hash::{BuildHasher as _, RandomState};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use serde_json::{Value, json};
use tool_common::failure;
use tool_common::forward::{Counts, Direction as Way, check_headers, check_sizes, drain, flush, forward};
use tool_common::source::{self, MAX_RULES};
use tool_common::{Failure, flag_on_hangup, link, note, port, print, stop_on_hangup, stop_on_signals, wait_for_link};
use unetmap::Port;
use unetmap::abi::{NR_ACCEPT_VNET_HDR, NR_EXCLUSIVE};
use unetmap_filter::{Config, Direction, Engine, MaybeShared, SyntaxError};
use unetmap_flows::{Observer, Reported};

use events::Events;
use log::PacketLog;
use options::{Cli, Options};
use shared::Shared;
use tee::Tees;
use worker::{Filter, Parts, Worker};

/// Packets that wait to be logged.
const LOG_QUEUE: usize = 1024;

fn main() -> ExitCode {
    let cli = tool_common::parse::<Cli>();
    cli.daemon.apply();
    let options = cli.check().map_err(Failure::Usage);
    tool_common::exit_code("unetmap-fw", options.and_then(|options| run(&options)))
}

/// Returns a port's name as rules have it: without `netmap:` and options.
fn rule_name(port: &str) -> &str {
    let name = port.strip_prefix("netmap:").unwrap_or(port);
    name.split('@').next().unwrap_or(name)
}

/// Whether a port, by its name in rules, is one of an interface: pipes have braces, and ports of switches a colon.
fn is_of_interface(name: &str) -> bool {
    !name.contains(['{', '}', ':'])
}

/// Of both ports: another program on the same rings would take packets that the firewall has not seen.
const FLAGS: u64 = NR_ACCEPT_VNET_HDR | NR_EXCLUSIVE;

/// Says why a port is not opened that another program has.
fn alone(failure: Failure) -> Failure {
    match failure {
        Failure::Work(text) if text.ends_with("(NR_EXCLUSIVE)") => {
            Failure::Work(format!("{text}; a firewall has its ports for itself"))
        }
        other => other,
    }
}

/// Opens both ports: with all rings for one thread, or with a ring (pair) for each.
fn open(options: &Options) -> Result<Vec<[Port; 2]>, Failure> {
    let [first, second] = &options.ports;
    if options.threads == 1 {
        let whole = |spec: &str| port::open(spec, port::RingConfig::default(), FLAGS).map_err(alone);
        return Ok(vec![[whole(first)?, whole(second)?]]);
    }
    let ring = |spec: &str, ring: u16| -> Result<Port, Failure> {
        let (name, options) = (port::ring_spec(spec, ring)?, Port::options().flags(FLAGS));
        // All rings have one link.
        let port = if ring == 0 { link::open(&name, &options) } else { options.open(&name) };
        port.map_err(|e| alone(e.into()))
    };
    let mut pairs = vec![[ring(first, 0)?, ring(second, 0)?]];
    for (port, spec) in pairs[0].iter().zip([first, second]) {
        let (tx, rx, threads) = (port.register().nr_tx_rings, port.register().nr_rx_rings, options.threads);
        if (tx, rx) != (threads, threads) {
            return Err(Failure::Work(format!(
                "-p {threads}: {spec} has {tx} tx and {rx} rx rings, and each thread takes one of each; give as many \
                 threads as rings, or open the port with as many rings (@conf:rings={threads})"
            )));
        }
    }
    for i in 1..options.threads {
        pairs.push([ring(first, i)?, ring(second, i)?]);
    }
    Ok(pairs)
}

/// Counts of one direction.
#[derive(Clone, Copy, Default)]
struct Done {
    passed: Counts,
    dropped: u64,
}

/// Performs the commands of a file by [`Config::apply`] or [`Config::replace`].
pub(crate) fn read_rules(
    path: &Path,
    perform: impl FnOnce(&str) -> Result<(Config, String), SyntaxError>,
) -> Result<Config, String> {
    let wrong = |e: &dyn std::fmt::Display| format!("the rules {}: {e}", path.display());
    let script = source::read(path, MAX_RULES).map_err(|why| wrong(&why))?;
    let performed = unetmap_filter::text(&script).and_then(perform);
    Ok(performed.map_err(|e| wrong(&e))?.0)
}

/// Makes what counts the packets of each thread by flow, if that is asked for.
fn observers(options: &Options, [a, b]: &[Port; 2], header: usize) -> Result<Vec<Option<Observer>>, Failure> {
    let reported = Reported { drops: true, nat: options.flows_nat };
    let observer = |first| options.flows.start(&[a.spec(), b.spec()], first, header, reported);
    (1..).step_by(2).take(options.threads.into()).map(observer).collect()
}

/// Makes the engine of each thread.
fn engines(options: &Options) -> Vec<Engine> {
    let mut engines = Engine::for_threads(options.threads.into(), options.states, RandomState::new().hash_one(0));
    if options.flows_nat {
        engines.iter_mut().for_each(Engine::log_nat);
    }
    engines
}

fn run(options: &Options) -> Result<ExitCode, Failure> {
    let names = options.ports.each_ref().map(|port| rule_name(port));
    let threads = usize::from(options.threads);
    let mut config = Config::new(names, threads, options.default_accept)
        .with_interfaces(control::interface_address)
        .with_own_addresses(names.iter().any(|name| is_of_interface(name)).then_some(control::host_addresses))
        .with_tees(options.tees.iter().map(|(number, _)| *number).collect());
    if let Some(path) = &options.rules {
        config = read_rules(path, |script| config.apply(script))?;
    }
    let packet_log = options.log.as_deref().map(|path| PacketLog::create(path, options.log_bytes)).transpose()?;
    let stop = stop_on_signals()?;
    let reread = options.rules.clone().map(|path| flag_on_hangup().map(|flag| (path, flag))).transpose()?;
    let log_again = packet_log.as_ref().map(|_| flag_on_hangup()).transpose()?;
    if reread.is_none() && log_again.is_none() {
        stop_on_hangup()?;
    }
    let [first, second] = &options.ports;
    let closed = failure::set_between([first, second], options.on_failure.as_deref())?;
    let pairs = open(options)?;
    let [a, b] = &pairs[0];
    let swap = !options.copy && a.same_region(b);
    check_sizes(a, b, swap)?;
    let header = check_headers(a, b)? as usize;
    let tees = Tees::open(&options.tees, [a, b])?;
    let observers = observers(options, &pairs[0], header)?;
    let control = options.control.clone().map_or_else(unetmap_fw_client::socket, Ok)?;
    let (listener, control_file) = control::listen(&control)?;
    let engines = engines(options);
    let shared = Arc::new(Shared::new(config.compile(), &engines));
    let config = Arc::new(Mutex::new(config));
    std::thread::spawn({
        let (shared, config) = (Arc::clone(&shared), Arc::clone(&config));
        move || control::follow(&shared, &config, reread.as_ref())
    });
    let events = Arc::new(Events::default());
    let _served = metrics::serve(&options.metrics, [a.spec(), b.spec()], &shared, &config)?;
    std::thread::spawn({
        let (shared, events) = (Arc::clone(&shared), Arc::clone(&events));
        move || control::serve(&listener, &shared, &config, &events)
    });
    let (log, entries) = sync_channel(LOG_QUEUE);
    let ports = names.map(str::to_owned);
    let logger =
        std::thread::spawn(move || log::run(&entries, &ports, &events, packet_log, &log_again.unwrap_or_default()));
    wait_for_link(options.wait, stop);
    note_ready(options, swap, &control);

    let begin = Instant::now();
    let links = MaybeShared::for_threads(threads, None);
    let tees = MaybeShared::for_threads(threads, tees);
    let parts = engines.into_iter().zip(links).zip(tees).zip(observers).map(|(((engine, links), tees), observer)| {
        let (log, logs_nat) = (log.clone(), options.flows_nat);
        Parts { engine, links, log, tees, memory: options.memory, observer, logs_nat }
    });
    let work: Vec<_> = parts.zip(pairs).collect();
    drop(log);
    let mut done = std::thread::scope(|scope| {
        let mut work = work.into_iter().map(|(parts, pair)| {
            let shared = &*shared;
            move || move_packets(options, shared, parts, &pair, (swap, header), stop)
        });
        // One of them has this thread.
        let own = work.next();
        let others: Vec<_> = work.map(|work| scope.spawn(work)).collect();
        let own = own.map(|work| work());
        own.into_iter().chain(others.into_iter().map(|thread| thread.join().expect("no panic"))).collect::<Vec<_>>()
    });
    let seconds = begin.elapsed().as_secs_f64();
    control_file.remove();
    let flows = done.iter_mut().filter_map(|(.., flows)| flows.take()).collect();
    print_summary(options, sum(done.iter().map(|(_, done, _)| done)), flows, (swap, seconds));
    failure::note_closed(&closed);
    // The log's senders are gone, so the thread ends after the last line.
    let _ = logger.join();
    done.into_iter().try_for_each(|(result, ..)| result)?;
    Ok(ExitCode::SUCCESS)
}

/// Sums what threads have done.
fn sum<'d>(all: impl Iterator<Item = &'d [Done; 2]>) -> [Done; 2] {
    let mut total = [Done::default(); 2];
    for done in all {
        for (total, done) in total.iter_mut().zip(done) {
            total.passed.add(done.passed);
            total.dropped += done.dropped;
        }
    }
    total
}

/// The summary of flows, as JSON and for people.
type Flows = (Value, String);

/// Moves packets between two ports until all threads stop. Returns the error that ended it, what it has done, and the
/// summary of its flows.
fn move_packets(
    options: &Options,
    shared: &Shared,
    parts: Parts,
    [a, b]: &[Port; 2],
    (swap, header): (bool, usize),
    stop: &AtomicBool,
) -> (Result<(), String>, [Done; 2], Option<Flows>) {
    let worker = RefCell::new(Worker::new(shared, parts));
    let filter = |direction, to: &Port| Filter {
        worker: &worker,
        direction,
        swap,
        header,
        buf_size: to.buf_size(),
        total: Counts::default(),
        dropped: 0,
        reason: 0,
        group: Vec::new(),
    };
    let mut ways = [
        Way { from: a, to: b, burst: options.burst, mover: filter(Direction::Out, b) },
        Way { from: b, to: a, burst: options.burst, mover: filter(Direction::In, a) },
    ];
    let result = forward(&mut ways, &[a, b], stop);
    stop.store(true, Relaxed);
    let left = flush(&mut ways);
    drain(&[a, b]);
    worker.borrow_mut().tees.with(|tees| drain(&tees.ports()));
    if left > 0 {
        note(&format!("{left} packets of pipes were not taken by their port in time"));
    }
    let done = ways.map(|way| Done { passed: way.mover.total, dropped: way.mover.dropped });
    (result, done, worker.into_inner().finish())
}

/// Says that packets are moved from now on.
fn note_ready(options: &Options, swap: bool, control: &Path) {
    if options.rules.is_none() && !options.default_accept {
        note("No rules: everything is denied until some are given (--rules, unetmap fw, --default-accept)");
    }
    let mode = if swap { "zero copy" } else { "copy" };
    let [first, second] = &options.ports;
    note(&format!("Ready to go, {first} <-> {second}, {mode}, control {}", control.display()));
}

fn print_summary(options: &Options, [out, back]: [Done; 2], flows: Vec<Flows>, (swap, seconds): (bool, f64)) {
    let passed = out.passed.packets + back.passed.packets;
    let dropped = out.dropped + back.dropped;
    let line = if options.json {
        let way =
            |done: Done| json!({"passed": done.passed.packets, "bytes": done.passed.bytes, "dropped": done.dropped});
        let mut object = json!({
            "event": "summary", "passed": passed, "dropped": dropped, "seconds": seconds, "zero_copy": swap,
            "threads": options.threads, "out": way(out), "in": way(back),
        });
        link::add_down(&mut object);
        if !flows.is_empty() {
            object["flows"] = flows.into_iter().map(|(summary, _)| summary).collect();
        }
        object.to_string()
    } else {
        flows.iter().for_each(|(_, text)| note(text));
        format!(
            "Passed {passed} packets and dropped {dropped} in {seconds:.2} seconds: out {} and {}, in {} and {}",
            out.passed.packets, out.dropped, back.passed.packets, back.dropped
        )
    };
    print(&format!("{line}\n"));
}

// SPDX-License-Identifier: BSD-2-Clause
//! Opens the ports, starts a thread for each, reports while they run, and prints the summary.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

use hdrhistogram::Histogram;
use nix::ifaddrs::getifaddrs;
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use serde_json::{Value, json};
use tool_common::generator::{
    PERCENTILES, Totals, common_members, not_released, note_down, pin, print_report, times_json,
};
use tool_common::{Failure, link, note, port, print, stop_on_signals};
use unetmap::abi::{NR_ACCEPT_VNET_HDR, PortKind, PortSpec};
use unetmap::{NR_SLOT_TIMES, Port, Ring};

use crate::addr::Mac;
use crate::capture::Capture;
use crate::options::{Config, Function};
use crate::packet::{Flow, Packet};
use crate::report::{Counters, IntervalNumber, Reporter, Style, summary, totals_of};
use crate::sequence::Gaps;
use crate::source::{Fixed, Replay, Variation, Varied};
use crate::tx::{Split, TxSource};
use crate::worker::{Outcome, PingOutcome, Worker};
use crate::{ping, rx, tx};

/// Runs the function of the command line.
pub(crate) fn run(config: &Config) -> Result<ExitCode, Failure> {
    let capture = config.pcap.as_deref().map(Capture::read).transpose().map_err(|e| format!("-P {e}"))?;
    let stop = stop_on_signals()?;
    let ports = open(config)?;
    for port in &ports {
        check_port(config, port, capture.as_ref())?;
    }
    if let (Some(capture), Some(path)) = (&capture, &config.pcap) {
        capture.notes().iter().for_each(|what| note(&format!("pkt-gen: -P {}: {what}", path.display())));
    }
    wait_for_link(config, stop);
    let bad_before = bad_slots(&ports);
    let counters: Vec<Counters> = ports.iter().map(|_| Counters::default()).collect();
    let interval = IntervalNumber::new();
    // -P without -n sends the file once.
    let count = config.count.or(capture.as_ref().map(|c| c.len() as u64));
    let packets_per_thread = packets_per_thread(count, ports.len() as u64);
    let rate = config.rate.map(|r| r as f64 / ports.len() as f64);

    let begin = Instant::now();
    let (mut outcomes, failure) = std::thread::scope(|scope| {
        let (done, results) = mpsc::channel();
        for (index, port) in ports.iter().enumerate() {
            let worker = Worker {
                config,
                port,
                counters: &counters[index],
                all: &counters,
                interval: &interval,
                stop,
                count: packets_per_thread[index],
                rate,
            };
            let (done, capture) = (done.clone(), capture.clone());
            scope.spawn(move || {
                let result = pin(&config.cpus, index).and_then(|()| run_function(&worker, capture, index));
                // Cannot fail: the channel's receiver exists until all threads have sent.
                let _ = done.send(result);
            });
        }
        drop(done);
        // This thread only reports. Signals must interrupt the wait of a thread that runs the function.
        let signals = SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM]);
        let before = signals.thread_swap_mask(SigmaskHow::SIG_BLOCK);
        let done = report_until_done(config, &counters, &interval, &results, stop);
        let _ = before.and_then(|before| before.thread_set_mask());
        done
    });
    if failure.is_some() {
        // The summary includes the packets counted before the failure, over the time until now.
        outcomes.push(Outcome { span: Some((begin, Instant::now())), ..Outcome::default() });
    }
    let interrupted = stop.load(Relaxed);
    let bad_slots = bad_slots(&ports).saturating_sub(bad_before);
    let code = print_summary(config, totals_of(&counters), (outcomes, bad_slots), interrupted);
    let damaged = capture.is_some_and(|capture| capture.damage.is_some());
    let code = if damaged { ExitCode::FAILURE } else { code };
    failure.map_or(Ok(code), |message| Err(Failure::Work(message)))
}

/// Slots of transmit rings that were not sent.
fn bad_slots(ports: &[Port]) -> u64 {
    ports.iter().map(port::bad_slots).sum()
}

/// One port with all its rings, or for several threads a port for each with one ring (pair).
fn open(config: &Config) -> Result<Vec<Port>, Failure> {
    let flags = if config.vnet_hdr > 0 { NR_ACCEPT_VNET_HDR } else { 0 };
    let flags = if config.slot_times { flags | NR_SLOT_TIMES } else { flags };
    let all_rings = port::open(&config.port, config.rings, flags)?;
    // Only a switch uses the header's length. Elsewhere the header is part of the packet.
    if config.vnet_hdr > 0
        && let Ok(spec) = PortSpec::parse(&config.port)
        && spec.kind == PortKind::Vale
        && spec.pipe.is_none()
    {
        unetmap::switch::set_vnet_header(&spec.name, config.vnet_hdr as u32)?;
    }
    let rings = |direction: &[Ring]| {
        let slots = direction.first().map_or(0, Ring::num_slots);
        format!("{} x {slots} slots", direction.len())
    };
    note(&format!(
        "{}: tx {}, rx {}, buffers of {} bytes, mem_id {}",
        config.port,
        rings(all_rings.tx_rings()),
        rings(all_rings.rx_rings()),
        all_rings.buf_size(),
        all_rings.mem_id()
    ));
    if config.threads == 1 {
        return Ok(vec![all_rings]);
    }
    let available = if config.function.generates_packets() { all_rings.tx_rings() } else { all_rings.rx_rings() }.len();
    if usize::from(config.threads) > available {
        let (threads, name) = (config.threads, &config.port);
        return Err(format!(
            "-p {threads}: {name} has {available} rings, and each thread needs one (-C requests more)"
        )
        .into());
    }
    // `all_rings` stays open until all rings are open, so that the port is not removed in between.
    let open = |ring| Ok(Port::options().flags(flags).open(&port::ring_spec(&config.port, ring)?)?);
    (0..config.threads).map(open).collect()
}

/// Checks that the port has rings for the function, and that the packets fit its buffers and rings.
fn check_port(config: &Config, port: &Port, capture: Option<&Capture>) -> Result<(), String> {
    let sends = config.function.generates_packets();
    let rings = if sends { port.tx_rings() } else { port.rx_rings() };
    let Some(ring) = rings.first() else {
        let (direction, flag) = if sends { ("tx", "/R") } else { ("rx", "/T") };
        return Err(format!(
            "{}: -f {} needs {direction} rings, but the port was opened without (leave out {flag})",
            config.port,
            config.function.name()
        ));
    };
    if !sends {
        return Ok(());
    }
    port::check_longest(port, capture.map_or(config.len.1, Capture::longest))?;
    let slot_size = tx::slot_size(port);
    let longest = config.vnet_hdr + capture.map_or(config.len.1, Capture::longest);
    if capture.is_none() && config.frags == 1 && longest > slot_size {
        return Err(format!(
            "-l {}: the packet does not fit a buffer of {slot_size} bytes (-F {} splits it over several)",
            config.len.1,
            longest.div_ceil(slot_size)
        ));
    }
    let split = Split { frags: config.frags, frag_size: config.frag_size.unwrap_or(usize::MAX), slot_size };
    split.check(longest, ring.num_slots()).map_err(|e| format!("{}: {e}", config.port))
}

fn wait_for_link(config: &Config, stop: &AtomicBool) {
    if !config.wait.is_zero() {
        note(&format!("Waiting {} s for the link (-w 0: no wait)", config.wait.as_secs()));
    }
    tool_common::wait_for_link(config.wait, stop);
    note("Ready...");
}

/// Splits `count` packets between the threads. `u64::MAX` means no limit.
fn packets_per_thread(count: Option<u64>, threads: u64) -> Vec<u64> {
    match count {
        None | Some(u64::MAX) => vec![u64::MAX; threads as usize],
        Some(n) => (0..threads).map(|i| n / threads + u64::from(i < n % threads)).collect(),
    }
}

fn run_function(worker: &Worker<'_>, capture: Option<Capture>, index: usize) -> Result<Outcome, String> {
    let config = worker.config;
    match config.function {
        Function::Tx | Function::Txseq => tx::run(worker, make_source(config, capture, index)),
        Function::Rx | Function::Rxseq => rx::run(worker),
        Function::Ping => ping::ping(worker, first_packet(config)),
        Function::Pong => ping::pong(worker),
    }
}

fn first_packet(config: &Config) -> Packet {
    let flow = Flow {
        src_mac: config.src_mac.unwrap_or_else(|| source_mac(&config.port)),
        dst_mac: config.dst_mac,
        src: config.src.first,
        dst: config.dst.first,
    };
    Packet::new(&flow, config.len.1)
}

fn make_source(config: &Config, capture: Option<Capture>, index: usize) -> TxSource {
    let prefixed = |packet: &[u8]| {
        let mut bytes = vec![0; config.vnet_hdr];
        bytes.extend_from_slice(packet);
        bytes
    };
    match capture {
        Some(capture) if capture.len() == 1 => {
            return TxSource::Fixed(Fixed { bytes: prefixed(capture.packet(0)) });
        }
        Some(capture) => return TxSource::Replay(Replay::new(capture)),
        None => {}
    }
    let vary = Variation {
        src: config.src,
        dst: config.dst,
        random_src: config.random_src,
        random_dst: config.random_dst,
        len: config.len,
        numbered: config.function == Function::Txseq,
    };
    if config.rubbish && config.len.0 == config.len.1 {
        return TxSource::Fixed(Fixed { bytes: vec![0; config.vnet_hdr + config.len.1] });
    }
    let packet = first_packet(config);
    if config.verbose {
        note(&format!(
            "thread {index}: first packet {} -> {}, {} bytes",
            config.src.first,
            config.dst.first,
            packet.len()
        ));
    }
    if vary.is_none() {
        return TxSource::Fixed(Fixed { bytes: prefixed(packet.longest()) });
    }
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let seed = u64::from(time.subsec_nanos()) << 32 ^ time.as_secs() ^ (index as u64) << 56;
    TxSource::Varied(Box::new(Varied::new(packet, vary, seed)))
}

/// Returns the interface's Ethernet address if the port is an interface, else an address derived from the port's name.
fn source_mac(spec: &str) -> Mac {
    // From the kernel, for this process's network namespace: /sys may be that of another namespace.
    let all: Vec<_> = getifaddrs().map(Iterator::collect).unwrap_or_default();
    let exists = |name: &str| all.iter().any(|entry| entry.interface_name == name);
    let Ok(PortSpec { kind: PortKind::Netmap, pipe: None, name, .. }) = PortSpec::parse_with(spec, exists) else {
        return Mac::from_name(spec);
    };
    let links = all.iter().filter(|entry| entry.interface_name == name);
    let mac = links.filter_map(|entry| entry.address?.as_link_addr()?.addr()).next();
    mac.map_or_else(|| Mac::from_name(spec), Mac)
}

/// Reports once per interval until every thread has finished. The first failure stops the other threads, and is
/// returned with the outcomes of those that did not fail.
fn report_until_done(
    config: &Config,
    counters: &[Counters],
    interval: &IntervalNumber,
    results: &mpsc::Receiver<Result<Outcome, String>>,
    stop: &AtomicBool,
) -> (Vec<Outcome>, Option<String>) {
    // ping reports its round trips itself.
    let every = config.report.filter(|_| config.function != Function::Ping);
    let mut reporter = Reporter::new(Style::of(config), config.function.name(), counters, interval);
    let mut outcomes = Vec::with_capacity(counters.len());
    let mut failure = None;
    let mut began = Instant::now();
    loop {
        let left = every.map_or(Duration::MAX, |every| every.saturating_sub(began.elapsed()));
        match results.recv_timeout(left.min(Duration::from_secs(3600))) {
            Ok(Ok(outcome)) => outcomes.push(outcome),
            Ok(Err(message)) => {
                stop.store(true, Relaxed);
                failure.get_or_insert(message);
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) if every.is_none() => {}
            Err(RecvTimeoutError::Timeout) => {
                let now = Instant::now();
                print_report(&reporter.line(now - began), config.json);
                began = now;
            }
        }
    }
    (outcomes, failure)
}

/// Prints the summary of all threads. Returns the exit status.
fn print_summary(
    config: &Config,
    totals: Totals,
    (outcomes, bad_slots): (Vec<Outcome>, u64),
    stopped: bool,
) -> ExitCode {
    let spans = || outcomes.iter().filter_map(|o| o.span);
    let begin = spans().map(|(begin, _)| begin).min();
    let end = spans().map(|(_, end)| end).max();
    let time = begin.zip(end).map_or(Duration::ZERO, |(begin, end)| end.saturating_duration_since(begin));
    let unreleased: u64 = outcomes.iter().map(|o| o.unreleased).sum();
    let gaps = outcomes.iter().filter_map(|o| o.gaps).reduce(|mut a, b| {
        a.add(b);
        a
    });
    let ping = outcomes.into_iter().find_map(|o| o.ping);
    if config.json {
        print(&format!("{}\n", json_summary(config, totals, (time, unreleased, bad_slots), gaps, ping.as_ref())));
    } else {
        print(&format!("{}\n", summary(Style::of(config), config.function.verb(), totals, time)));
        if let Some(gaps) = gaps {
            print(&format!("{}\n", gaps_line(gaps)));
        }
        if let Some(ping) = &ping {
            print(&rtt_lines(ping));
        }
    }
    if bad_slots > 0 {
        note(&format!("pkt-gen: {}", port::not_sent(&config.port, bad_slots)));
        note_down(&config.port, "packets may be lost");
        return ExitCode::FAILURE;
    }
    if ping.is_some_and(|ping| ping.rtt.is_empty()) && totals.packets > 0 {
        let (port, n) = (&config.port, totals.packets);
        let why = link::down_or(port, "does the peer run -f pong?");
        note(&format!("pkt-gen: {port}: none of {n} pings was answered ({why})"));
        return ExitCode::FAILURE;
    }
    if unreleased == 0 {
        if config.function.generates_packets() {
            note_down(&config.port, "packets may be lost");
        } else if totals.packets == 0 {
            note_down(&config.port, "no packets arrived");
        }
        return ExitCode::SUCCESS;
    }
    note(&format!("pkt-gen: {}", not_released(&config.port, unreleased)));
    // An interrupted sender is expected to leave unfinished work.
    if stopped { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn gaps_line(gaps: Gaps) -> String {
    format!(
        "Sequence: {} gaps, {} missing, {} late or twice, {} without a number",
        gaps.gaps, gaps.missing, gaps.late, gaps.unnumbered
    )
}

fn rtt_lines(ping: &PingOutcome) -> String {
    let rtt: &Histogram<u64> = &ping.rtt;
    let mut text = format!("{} answers, {} lost\n", rtt.len(), ping.lost);
    if !rtt.is_empty() {
        text += &format!("RTT in ns: min {}", rtt.min());
        for (percentile, name) in PERCENTILES {
            text += &format!(" {name} {}", rtt.value_at_percentile(percentile));
        }
        text += &format!(" max {}\n", rtt.max());
    }
    text
}

fn json_summary(
    config: &Config,
    totals: Totals,
    (time, unreleased, bad_slots): (Duration, u64, u64),
    gaps: Option<Gaps>,
    ping: Option<&PingOutcome>,
) -> String {
    let mut object = common_members("summary", config.function.name(), totals, time);
    let mut put = |key: &str, value: Value| object.insert(key.into(), value);
    put("port", json!(config.port));
    put("threads", json!(config.threads));
    if config.function.generates_packets() && config.function != Function::Ping {
        put("left", json!(unreleased));
    }
    if config.function.generates_packets() {
        put("bad_slots", json!(bad_slots));
    }
    if let Some(gaps) = gaps {
        put("gaps", json!(gaps.gaps));
        put("missing", json!(gaps.missing));
        put("late", json!(gaps.late));
        put("unnumbered", json!(gaps.unnumbered));
    }
    if let Some(PingOutcome { rtt, lost }) = ping {
        put("answers", json!(rtt.len()));
        put("lost", json!(lost));
        if !rtt.is_empty() {
            put(
                "rtt_ns",
                times_json(
                    rtt.min(),
                    rtt.max(),
                    rtt.mean(),
                    PERCENTILES.map(|(part, _)| rtt.value_at_percentile(part)),
                ),
            );
        }
    }
    let mut object = Value::Object(object);
    link::add_down(&mut object);
    object.to_string()
}

#[cfg(test)]
mod tests {
    use lab::{Lab, VethOptions};

    use super::*;

    #[test]
    fn packets_are_split_between_threads_without_remainder() {
        assert_eq!(packets_per_thread(Some(10), 3), [4, 3, 3]);
        assert_eq!(packets_per_thread(Some(1), 2), [1, 0]);
        assert_eq!(packets_per_thread(None, 2), [u64::MAX; 2]);
        assert_eq!(packets_per_thread(Some(u64::MAX), 1), [u64::MAX]);
    }

    #[test]
    fn summaries_of_ping_and_rxseq() {
        let mut rtt = Histogram::new_with_bounds(1, 1_000_000, 3).unwrap();
        (1..=1000).for_each(|i| rtt.record(i).unwrap());
        let ping = PingOutcome { rtt, lost: 2 };
        assert_eq!(
            rtt_lines(&ping),
            "1000 answers, 2 lost\nRTT in ns: min 1 p50 500 p90 900 p99 990 p99.9 1000 max 1000\n"
        );
        let gaps = Gaps { gaps: 1, missing: 2, late: 3, unnumbered: 4 };
        assert_eq!(gaps_line(gaps), "Sequence: 1 gaps, 2 missing, 3 late or twice, 4 without a number");
    }

    #[test]
    fn a_port_without_an_interface_gets_an_address_from_its_name() {
        // The two ends of a pipe must have different addresses, also if the parent is an interface.
        for spec in
            ["netmap:no_such_parent{1", "netmap:../../x", "netmap:no_such", "netmap:lo{1", "netmap:lo}1", "vale0:lo"]
        {
            assert_eq!(source_mac(spec), Mac::from_name(spec), "{spec}");
        }
    }

    #[test]
    fn an_interface_has_its_address_of_this_namespace() {
        let lab = match Lab::new() {
            Ok(lab) => lab,
            Err(why) => return eprintln!("skipped: {why}"),
        };
        let ns = lab.namespace("mac").unwrap();
        // `lan-1` is an interface, but could also mean ring 1 of the interface `lan`.
        lab.veth(&ns, "lan", &ns, "lan-1", VethOptions::default()).unwrap();
        let [plain, dash] = ["lan", "lan-1"].map(|name| Mac(ns.mac(name).unwrap()));
        assert_ne!(plain, dash);
        ns.run(|| {
            // This process's /sys is still that of another namespace.
            for (spec, mac) in [
                ("netmap:lan", plain),
                ("netmap:lan-1", dash),
                ("netmap:lan-0", plain),
                ("netmap:lan-1-0/R", dash),
                ("netmap:lan*", plain),
                ("netmap:lan^@conf:slots=64", plain),
                ("netmap:lo", Mac([0; 6])),
            ] {
                assert_eq!(source_mac(spec), mac, "{spec}");
            }
        })
        .unwrap();
    }
}

// SPDX-License-Identifier: BSD-2-Clause
//! The benchmarks `vale-*`: pkt-gen sends through a switch and counts at other ports.
//!
//! ```text
//!   pkt-gen -f tx == a ==> switch, a thread of the daemon == b, c.. ==> pkt-gen -f rx, one for each port
//! ```
//! The first program starts the daemon, as for users, so the daemon has a session of its own. The benchmark gives it
//! its own priority. The rate is the one that a receiver counted; the switch has learned the receivers' addresses.
//!
//! Three programs share two processors, with a context switch for each full ring, which costs up to five nanoseconds
//! per packet with 1024 slots. Therefore streams use rings of [`MAX_SLOTS`], and a second row uses the default rings.
//! For packets of 1500 B it is the reverse, because long rings of them exceed the caches.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use unetmap_sys::process;

use crate::open::memory;
use crate::pkt_gen::{self, round_trips, slots_of};
use crate::preload::NetmapProgram;
use crate::probe::Cores;
use crate::program::{INTERVAL, Interval, Running, TIMEOUT, parse_json, steady_mpps, stop_all};

/// Slots of a switch port's ring: the maximum, and the default.
pub(crate) const MAX_SLOTS: u32 = 4096;
pub(crate) const DEFAULT_SLOTS: u32 = 1024;
/// Receivers of `vale-fan`, and addresses behind each.
const FAN: usize = 4;
const ADDRESSES: u8 = 4;
/// Idle ports of `vale-idle-ports`.
pub(crate) const IDLE: usize = 64;
/// Largest fraction of lost packets at a rate that counts as free of loss.
const MAX_LOSS: f64 = 0.001;
/// Steps of the binary search for the highest rate without loss.
const SEARCH_STEPS: u32 = 5;
/// Round trips of one sample, busy-waiting and sleeping, and round trips per second when both sides sleep in between.
const PINGS: u32 = 5_000;
const SLEEPING_PINGS: u32 = 200;
const SLEEPING_RATE: u32 = 500;

/// The number to which the reader of `vale-overload` counts for each packet, so that it reads some 3 million packets
/// per second.
const READER_WORK: &str = "150";
/// The rates that are offered to it, packets per second: its best rate is the highest that it reads at one of them.
const OFFERED_RATES: [u64; 6] = [500_000, 1_000_000, 1_500_000, 2_000_000, 3_000_000, 4_000_000];
/// Seconds of a sample of `vale-steady`.
const STEADY_SECONDS: usize = 60;

/// A daemon for switches. A program with an open port keeps it running.
pub(crate) struct Switch {
    program: PathBuf,
    cores: Cores,
    /// Slots of each ring.
    slots: u32,
    keeper: Option<Running>,
    folder: TempDir,
    /// Number of switch names used so far.
    runs: Cell<u32>,
}

/// A stream over a switch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traffic {
    /// Bytes of a packet.
    pub(crate) len: u16,
    /// The sender's batch, packets.
    pub(crate) batch: u32,
    /// Packets per second; `None`: as many as possible.
    pub(crate) rate: Option<u64>,
    /// True if sender and receiver share a region.
    pub(crate) share: bool,
    /// Number of additional idle ports of the switch.
    pub(crate) idle: usize,
}

/// The result of a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Throughput {
    pub(crate) mpps: f64,
    /// The fraction of the sent packets that did not arrive, over the whole run.
    pub(crate) lost: f64,
}

impl Switch {
    /// Starts a program that starts a daemon. If both cores are the same, the daemon is pinned to it, too. Programs use
    /// rings of `slots`.
    pub(crate) fn new(cores: Cores, slots: u32) -> Result<Rc<Switch>, String> {
        let folder = tempfile::tempdir().map_err(|e| format!("bench: a folder for the switch: {e}"))?;
        let program = pkt_gen::find()?;
        let mut switch = Switch { program, cores, slots, keeper: None, folder, runs: Cell::new(0) };
        switch.keeper = Some(switch.start("rx", "valekeep:k", None, &["-T", "0"])?);
        let start = Instant::now();
        let daemon = loop {
            switch.keeper.iter_mut().try_for_each(Running::check)?;
            match switch.snapshot()?["daemon"]["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()) {
                Some(pid) => break pid,
                None if start.elapsed() < TIMEOUT => thread::sleep(Duration::from_millis(10)),
                None => return Err(format!("bench: pkt-gen started no daemon in {} s", TIMEOUT.as_secs())),
            }
        };
        // The daemon gets the same priority as this process.
        if fs::read_to_string("/proc/self/autogroup").is_ok_and(|group| group.contains("nice -20")) {
            let _ = fs::write(format!("/proc/{daemon}/autogroup"), "-20");
        }
        if cores.tx == cores.rx {
            pin_all(daemon, cores.tx)
                .map_err(|e| format!("bench: cannot pin the daemon to processor {}: {e}", cores.tx))?;
        }
        Ok(Rc::new(switch))
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    pub(crate) fn start(&self, what: &str, port: &str, cpu: Option<usize>, more: &[&str]) -> Result<Running, String> {
        let slots = format!("{0},{0}", self.slots);
        let mut command = Command::new(&self.program);
        command.env("UNETMAP_SOCKET", self.socket());
        command.args(["-i", port, "-f", what, "-C", &slots, "-w", "0", "--json"]).args(more);
        if let Some(cpu) = cpu {
            command.args(["-a", &cpu.to_string()]);
        }
        Running::start(format!("pkt-gen -f {what}"), &mut command)
    }

    /// Returns the name of a switch that was not used before.
    pub(crate) fn new_switch_name(&self) -> String {
        self.runs.set(self.runs.get() + 1);
        format!("vale{}", self.runs.get())
    }

    /// Starts the receiver at `port`, and sends packets from the addresses behind it, so that the switch learns them.
    pub(crate) fn receiver(&self, port: &str, number: u8) -> Result<Running, String> {
        let interval = INTERVAL.as_millis().to_string();
        let mut receiver = self.start("rx", port, Some(self.cores.rx), &["-T", &interval])?;
        // The first line of its report means that the port is open.
        receiver.line()?;
        let file = self.folder.path().join("addresses");
        let announcements: Vec<_> = (0..ADDRESSES).map(|n| frame([0xff; 6], address(number, n))).collect();
        write_pcap(&file, &announcements)?;
        self.replay(port, &file)?;
        Ok(receiver)
    }

    fn replay(&self, port: &str, file: &Path) -> Result<(), String> {
        let file = file.to_string_lossy();
        let mut program = self.start("tx", port, None, &["-T", "0", "-P", &file])?;
        while let Ok(line) = program.line() {
            if parse_json(&line)?["event"] == "summary" {
                return Ok(());
            }
        }
        Err(program.stop().err().unwrap_or("bench: pkt-gen exited early".into()))
    }

    /// Returns the daemon's snapshot; null if none runs.
    fn snapshot(&self) -> Result<Value, String> {
        let mut command = Command::new(crate::program::find("unetmap")?);
        command.args(["ls", "--json"]).env("UNETMAP_SOCKET", self.socket());
        let output = command.output().map_err(|e| format!("bench: starting unetmap: {e}"))?;
        serde_json::from_slice(&output.stdout).map_err(|e| format!("bench: unetmap ls: {e}"))
    }

    /// Fails if the fraction of copied packets at a port exceeds `MAX_LOSS`.
    fn check_swapped(&self, port: &str) -> Result<(), String> {
        let snapshot = self.snapshot()?;
        let ports = snapshot["ports"].as_array().into_iter().flatten().filter(|entry| entry["name"] == port);
        let ring = ports.filter_map(|entry| entry["rings"].as_array()).flatten().find(|ring| ring["dir"] == "rx");
        let of = |what: &str| ring.and_then(|ring| ring[what].as_f64()).unwrap_or(0.0);
        let (swapped, crossed) = (of("swapped"), of("crossed"));
        if crossed == 0.0 || swapped < crossed * (1.0 - MAX_LOSS) {
            return Err(format!("bench: only {swapped} of {crossed} packets were delivered to {port} without a copy"));
        }
        Ok(())
    }

    /// Measures a stream from one sender to one receiver.
    pub(crate) fn measure_stream(&self, traffic: Traffic) -> Result<Throughput, String> {
        let switch = self.new_switch_name();
        let idle = self.idle(&switch, traffic.idle)?;
        let mut programs = self.start_stream(&switch, traffic)?;
        let to = format!("{switch}:b");
        let mpps = steady_mpps(|| programs[1].line());
        let swapped = if traffic.share { self.check_swapped(&to) } else { Ok(()) };
        let mpps = stop_all(mpps.and_then(|mpps| swapped.map(|()| mpps)), &mut programs)?;
        drop(idle);
        let [sent, received] = programs.each_mut().map(summary_packets);
        let (sent, received) = (sent?, received?);
        // The receiver also counts packets that announce addresses, so the difference may be negative.
        Ok(Throughput { mpps, lost: ((sent - received) / sent).max(0.0) })
    }

    /// Starts a sender at port a and a receiver at port b.
    fn start_stream(&self, switch: &str, traffic: Traffic) -> Result<[Running; 2], String> {
        let (from, to) = (format!("{switch}:a"), format!("{switch}:b"));
        let receiver = self.receiver(&to, 1)?;
        let from = if traffic.share { format!("{from}@share={to}") } else { from };
        let (batch, slots) = (traffic.batch.to_string(), slots_of(traffic.len));
        let (len, rate, at) = (traffic.len.to_string(), traffic.rate.unwrap_or(0).to_string(), mac(address(1, 0)));
        let sender = self.start(
            "tx",
            &from,
            Some(self.cores.tx),
            &["-T", "0", "-b", &batch, "-l", &len, "-F", &slots, "-R", &rate, "-D", &at],
        )?;
        Ok([sender, receiver])
    }

    /// Measures the highest rate at which at most `MAX_LOSS` is lost, Mpps; 0 if there is none.
    pub(crate) fn clean_rate(&self, traffic: Traffic) -> Result<f64, String> {
        let fastest = self.measure_stream(traffic)?;
        if fastest.lost < MAX_LOSS {
            return Ok(fastest.mpps);
        }
        let (mut low, mut high, mut best) = (0.0, fastest.mpps * 1.1, 0.0);
        for _ in 0..SEARCH_STEPS {
            let rate = f64::midpoint(low, high);
            let found = self.measure_stream(Traffic { rate: Some((rate * 1e6) as u64), ..traffic })?;
            if found.lost < MAX_LOSS {
                (low, best) = (rate, f64::max(best, found.mpps));
            } else {
                high = rate;
            }
        }
        Ok(best)
    }

    /// Measures a slow reader while a sender with batches of `batch` sends as fast as it can; returns the percentage of
    /// the reader's best rate.
    pub(crate) fn overload(&self, reader: &NetmapProgram, batch: u32) -> Result<f64, String> {
        let mut best: f64 = 0.0;
        for rate in OFFERED_RATES {
            best = best.max(self.slow_reader(reader, batch, rate)?);
        }
        let flooded = self.slow_reader(reader, batch, 0)?;
        Ok(100.0 * flooded / best.max(flooded))
    }

    /// Measures the rate of a slow reader at an offered rate (packets per second; 0: as many as possible), Mpps.
    fn slow_reader(&self, reader: &NetmapProgram, batch: u32, rate: u64) -> Result<f64, String> {
        let switch = self.new_switch_name();
        let (from, to, cpu) = (format!("{switch}:a"), format!("{switch}:b"), self.cores.rx.to_string());
        let mut command = reader.command(&["rx", &to, &cpu, READER_WORK]);
        let mut receiver = Running::start("the slow reader", command.env("UNETMAP_SOCKET", self.socket()))?;
        // The first line of its report means that the port is open.
        receiver.line()?;
        let (batch, rate) = (batch.to_string(), rate.to_string());
        let sender = self.start("tx", &from, Some(self.cores.tx), &["-T", "0", "-b", &batch, "-R", &rate])?;
        let mut programs = [sender, receiver];
        let mpps = steady_mpps(|| programs[1].line());
        stop_all(mpps, &mut programs)
    }

    /// Opens idle ports of a switch.
    fn idle(&self, switch: &str, n: usize) -> Result<Vec<Running>, String> {
        let mut ports: Vec<_> = (0..n)
            .map(|i| self.start("rx", &format!("{switch}:idle{i}"), None, &["-T", "0"]))
            .collect::<Result<_, _>>()?;
        // Their reports are disabled, because an idle port must not run. So the daemon's snapshot shows when they are
        // open.
        let (prefix, start) = (format!("{switch}:idle"), Instant::now());
        while self.open_ports(&prefix)? < n {
            ports.iter_mut().try_for_each(Running::check)?;
            if start.elapsed() > TIMEOUT {
                return Err(format!("bench: {n} ports of {switch} are not open after {} s", TIMEOUT.as_secs()));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(ports)
    }

    /// Returns the number of ports whose names begin with `prefix`.
    fn open_ports(&self, prefix: &str) -> Result<usize, String> {
        let snapshot = self.snapshot()?;
        let names = snapshot["ports"].as_array().into_iter().flatten().filter_map(|entry| entry["name"].as_str());
        Ok(names.filter(|name| name.starts_with(prefix)).count())
    }

    /// Sends packets to 16 addresses in turn, behind four receivers; returns the sum of the receivers' rates in Mpps.
    pub(crate) fn fan(&self) -> Result<f64, String> {
        let switch = self.new_switch_name();
        let mut programs = (0..FAN as u8)
            .map(|number| self.receiver(&format!("{switch}:{number}"), number))
            .collect::<Result<Vec<_>, _>>()?;
        let file = self.folder.path().join("fan");
        let all = (0..ADDRESSES).flat_map(|n| (0..FAN as u8).map(move |number| address(number, n)));
        let packets: Vec<_> = all.map(|to| frame(to, address(0xff, 0))).collect();
        write_pcap(&file, &packets)?;
        let file = file.to_string_lossy();
        let more = ["-T", "0", "-b", "512", "-P", &file, "-n", "0"];
        let from = format!("{switch}:a");
        programs.insert(0, self.start("tx", &from, Some(self.cores.tx), &more)?);
        let sum = programs[1..].iter_mut().map(|receiver| steady_mpps(|| receiver.line())).sum();
        stop_all(sum, &mut programs)
    }

    /// Measures the median and the 99th percentile of round trips between two programs, ns: busy-waiting, or sleeping
    /// in between.
    pub(crate) fn round_trip(&self, sleeping: bool) -> Result<Vec<f64>, String> {
        let switch = self.new_switch_name();
        self.ping_pong([&format!("{switch}:a"), &format!("{switch}:b")], sleeping)
    }

    /// The same on a pipe.
    pub(crate) fn pipe_round_trip(&self, sleeping: bool) -> Result<Vec<f64>, String> {
        let pipe = self.new_switch_name();
        self.ping_pong([&format!("netmap:{pipe}{{1"), &format!("netmap:{pipe}}}1")], sleeping)
    }

    fn ping_pong(&self, [near, far]: [&str; 2], sleeping: bool) -> Result<Vec<f64>, String> {
        let mut pong = self.start("pong", far, Some(self.cores.rx), &["-T", "20"])?;
        pong.line()?;
        let (count, rate) = if sleeping { (SLEEPING_PINGS, SLEEPING_RATE) } else { (PINGS, 0) };
        let (count, rate) = (count.to_string(), rate.to_string());
        let ping = self.start("ping", near, Some(self.cores.tx), &["-T", "0", "-n", &count, "-R", &rate])?;
        let mut programs = [ping, pong];
        let median = (|| {
            loop {
                if let Some(ns) = round_trips(&programs[0].line()?)? {
                    return Ok(ns);
                }
            }
        })();
        stop_all(median, &mut programs)
    }
}

/// A stream that goes on from sample to sample.
pub(crate) struct Steady {
    switch: Rc<Switch>,
    programs: [Running; 2],
}

impl Steady {
    /// Starts it.
    pub(crate) fn new(switch: Rc<Switch>, traffic: Traffic) -> Result<Steady, String> {
        let programs = switch.start_stream(&switch.new_switch_name(), traffic)?;
        let mut steady = Steady { switch, programs };
        steady.seconds(1)?;
        Ok(steady)
    }

    /// Measures for a while: the rate in Mpps, that of the worst second in percent of it, and the daemon's memory
    /// without the regions in MiB.
    pub(crate) fn measure(&mut self) -> Result<Vec<f64>, String> {
        // Of the time between two samples.
        self.programs[1].skip_lines();
        let rates = self.seconds(STEADY_SECONDS)?;
        let mean = rates.iter().sum::<f64>() / rates.len() as f64;
        let worst = rates.into_iter().fold(mean, f64::min);
        let daemon = self.switch.snapshot()?["daemon"]["pid"].as_u64();
        let daemon = daemon.ok_or("bench: no daemon has the stream's ports")?;
        let memory = memory(daemon).map_err(|e| format!("bench: the daemon, process {daemon}: {e}"))?;
        Ok(vec![mean, 100.0 * worst / mean, memory])
    }

    /// Returns the rate of each of the next `n` seconds, in Mpps.
    fn seconds(&mut self, n: usize) -> Result<Vec<f64>, String> {
        let mut rates = Vec::with_capacity(n);
        while rates.len() < n {
            let (mut packets, mut seconds) = (0.0, 0.0);
            while seconds < 1.0 {
                self.programs[0].check()?;
                let Some(interval) = Interval::parse(&self.programs[1].line()?)? else { continue };
                packets += interval.packets;
                seconds += interval.seconds;
            }
            rates.push(packets / seconds / 1e6);
        }
        Ok(rates)
    }
}

/// Pins all threads of a process to `cpu`.
pub(crate) fn pin_all(pid: u32, cpu: usize) -> std::io::Result<()> {
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        if let Ok(tid) = task?.file_name().to_string_lossy().parse() {
            process::run_thread_on_cpus(tid, &[cpu])?;
        }
    }
    Ok(())
}

/// Returns the number of sent or received packets in the summary of a program that has exited.
fn summary_packets(program: &mut Running) -> Result<f64, String> {
    loop {
        let value = parse_json(&program.line()?)?;
        if value["event"] == "summary" {
            return value["packets"].as_f64().ok_or_else(|| format!("bench: a summary without packets: {value}"));
        }
    }
}

/// Returns address `n` behind receiver `number`.
fn address(number: u8, n: u8) -> [u8; 6] {
    [2, 0xbe, 0x0c, 0, number, n]
}

fn mac([a, b, c, d, e, f]: [u8; 6]) -> String {
    format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
}

/// Returns a packet of 60 bytes.
fn frame(to: [u8; 6], from: [u8; 6]) -> Vec<u8> {
    let mut frame = [&to[..], &from, &[0x88, 0xb5]].concat();
    frame.resize(60, 0);
    frame
}

/// Writes a file that pkt-gen can send.
fn write_pcap(path: &Path, packets: &[Vec<u8>]) -> Result<(), String> {
    // Magic number, version 2.4, time zone, accuracy, snapshot length, Ethernet.
    let head = [0xa1b2_c3d4, 2 | 4 << 16, 0, 0, 65_535, 1];
    let mut bytes: Vec<u8> = head.iter().flat_map(|word: &u32| word.to_ne_bytes()).collect();
    for packet in packets {
        let len = packet.len() as u32; // 60
        bytes.extend([0, 0, len, len].iter().flat_map(|word| word.to_ne_bytes()));
        bytes.extend(packet);
    }
    fs::write(path, bytes).map_err(|e| format!("bench: {}: {e}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_locally_administered_unicast() {
        assert_eq!(mac(address(1, 2)), "02:be:0c:00:01:02");
        assert_eq!(frame([0xff; 6], address(1, 0)).len(), 60);
    }

    #[test]
    fn a_pcap_file_has_all_packets() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        write_pcap(&path, &[vec![1; 60], vec![2; 60]]).unwrap();
        assert_eq!(fs::read(&path).unwrap().len(), 24 + 2 * (16 + 60));
        assert!(write_pcap(folder.path(), &[]).unwrap_err().contains("bench: "));
    }
}

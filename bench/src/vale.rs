//! Programs around a switch: pkt-gen sends to one port of it and counts at others.
//!
//! ```text
//!   pkt-gen -f tx == a ==> switch, a thread of the daemon == b, c.. ==> pkt-gen -f rx, one for each port
//! ```
//! The daemon is one that the first of the programs starts, as it is for users: it has a session of its own. It gets the
//! priority that the benchmark has. What a receiver counted is the rate; the switch knows the receivers' addresses.
//!
//! Three programs on two processors change with each ring that is full, which costs as much as five nanoseconds a packet where
//! a ring has 1024 slots. So streams go through rings of [`MOST_SLOTS`], and once more through those that programs get which
//! ask for none; with packets of 1500 B, of which long rings hold more than the caches, the other way round.

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

use crate::pkt_gen::{self, median_rtt};
use crate::probe::Cores;
use crate::program::{INTERVAL, PATIENCE, Running, conclude, object, steady_mpps};

/// Slots of a switch port's ring: the most that there can be, and what a program gets that does not say.
pub(crate) const MOST_SLOTS: u32 = 4096;
pub(crate) const USUAL_SLOTS: u32 = 1024;
/// Receivers of `vale-fan`, and addresses behind each.
const FAN: usize = 4;
const ADDRESSES: u8 = 4;
/// Ports that do nothing in `vale-idle-ports`.
pub(crate) const IDLE: usize = 64;
/// A packet in a thousand may be lost at a rate that counts as clean.
const CLEAN: f64 = 0.001;
/// Halvings of the interval in which the highest clean rate lies.
const HALVINGS: u32 = 5;
/// Round trips of one sample, awake and asleep, and how many a second where both sides sleep in between.
const PINGS: u32 = 5_000;
const SLEEPY_PINGS: u32 = 100;
const SLEEPY_RATE: u32 = 500;

/// A daemon, started by a program that keeps it.
pub(crate) struct Switch {
    program: PathBuf,
    cores: Cores,
    /// Of each ring.
    slots: u32,
    keeper: Option<Running>,
    folder: TempDir,
    /// Makes names of switches that nobody has used.
    runs: Cell<u32>,
}

/// What goes over the switch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traffic {
    /// Bytes of a packet.
    pub(crate) len: u16,
    /// Packets a second, if not as many as possible.
    pub(crate) rate: Option<u64>,
    /// Whether sender and receiver share a region.
    pub(crate) share: bool,
    /// Ports of the switch besides.
    pub(crate) idle: usize,
}

/// What became of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crossed {
    pub(crate) mpps: f64,
    /// The part of what was sent that did not arrive, over the whole run.
    pub(crate) lost: f64,
}

impl Switch {
    /// Starts a program, which starts a daemon. With both cores the same, the daemon is kept there as well.
    /// Programs will have rings of `slots`.
    pub(crate) fn new(cores: Cores, slots: u32) -> Result<Rc<Switch>, String> {
        let folder = tempfile::tempdir().map_err(|e| format!("bench: a folder for the switch: {e}"))?;
        let program = pkt_gen::find()?;
        let mut switch = Switch { program, cores, slots, keeper: None, folder, runs: Cell::new(0) };
        switch.keeper = Some(switch.start("rx", "valekeep:k", None, &["-T", "0"])?);
        let start = Instant::now();
        let daemon = loop {
            switch.keeper.iter_mut().try_for_each(Running::check)?;
            match switch.books()?["daemon"]["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()) {
                Some(pid) => break pid,
                None if start.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(10)),
                None => return Err("bench: pkt-gen started no daemon".into()),
            }
        };
        // As much as this process got, or both have nothing more than anybody.
        if fs::read_to_string("/proc/self/autogroup").is_ok_and(|group| group.contains("nice -20")) {
            let _ = fs::write(format!("/proc/{daemon}/autogroup"), "-20");
        }
        if cores.tx == cores.rx {
            pin_all(daemon, cores.tx).map_err(|e| format!("bench: the daemon cannot be kept on one core: {e}"))?;
        }
        Ok(Rc::new(switch))
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    fn start(&self, what: &str, port: &str, cpu: Option<usize>, more: &[&str]) -> Result<Running, String> {
        let slots = format!("{0},{0}", self.slots);
        let mut command = Command::new(&self.program);
        command.env("UNETMAP_SOCKET", self.socket());
        command.args(["-i", port, "-f", what, "-C", &slots, "-w", "0", "--json"]).args(more);
        if let Some(cpu) = cpu {
            command.args(["-a", &cpu.to_string()]);
        }
        Running::start(format!("pkt-gen -f {what}"), &mut command)
    }

    /// The name of a switch that nobody has used yet.
    fn fresh(&self) -> String {
        self.runs.set(self.runs.get() + 1);
        format!("vale{}", self.runs.get())
    }

    /// Starts the receiver at `port`, and lets the switch hear of the addresses behind it.
    fn receiver(&self, port: &str, number: u8) -> Result<Running, String> {
        let interval = INTERVAL.as_millis().to_string();
        let mut receiver = self.start("rx", port, Some(self.cores.rx), &["-T", &interval])?;
        // A line of its report: the port is open.
        receiver.line()?;
        let file = self.folder.path().join("heard");
        let heard: Vec<_> = (0..ADDRESSES).map(|n| frame([0xff; 6], address(number, n))).collect();
        write_pcap(&file, &heard)?;
        self.replay(port, &file)?;
        Ok(receiver)
    }

    fn replay(&self, port: &str, file: &Path) -> Result<(), String> {
        let file = file.to_string_lossy();
        let mut program = self.start("tx", port, None, &["-T", "0", "-P", &file])?;
        while let Ok(line) = program.line() {
            if object(&line)?["event"] == "summary" {
                return Ok(());
            }
        }
        Err(program.end().err().unwrap_or("bench: pkt-gen ended early".into()))
    }

    /// What the daemon says about itself; null if none runs.
    fn books(&self) -> Result<Value, String> {
        let mut command = Command::new(crate::program::find("unetmap")?);
        command.args(["ls", "--json"]).env("UNETMAP_SOCKET", self.socket());
        let output = command.output().map_err(|e| format!("bench: starting unetmap: {e}"))?;
        serde_json::from_slice(&output.stdout).map_err(|e| format!("bench: unetmap ls: {e}"))
    }

    /// Fails if a packet in a thousand, or more, came to a port as a copy.
    fn check_swapped(&self, port: &str) -> Result<(), String> {
        let books = self.books()?;
        let ports = books["ports"].as_array().into_iter().flatten().filter(|entry| entry["name"] == port);
        let ring = ports.filter_map(|entry| entry["rings"].as_array()).flatten().find(|ring| ring["dir"] == "rx");
        let of = |what: &str| ring.and_then(|ring| ring[what].as_f64()).unwrap_or(0.0);
        let (swapped, crossed) = (of("swapped"), of("crossed"));
        if crossed == 0.0 || swapped < crossed * (1.0 - CLEAN) {
            return Err(format!("bench: of {crossed} packets that came to {port} only {swapped} were not copied"));
        }
        Ok(())
    }

    /// One sender, one receiver.
    pub(crate) fn cross(&self, traffic: Traffic) -> Result<Crossed, String> {
        let switch = self.fresh();
        let (from, to) = (format!("{switch}:a"), format!("{switch}:b"));
        let idle = self.idle(&switch, traffic.idle)?;
        let receiver = self.receiver(&to, 1)?;
        let from = if traffic.share { format!("{from}@share={to}") } else { from };
        let (len, rate, at) = (traffic.len.to_string(), traffic.rate.unwrap_or(0).to_string(), mac(address(1, 0)));
        let sender = self.start(
            "tx",
            &from,
            Some(self.cores.tx),
            &["-T", "0", "-b", "512", "-l", &len, "-R", &rate, "-D", &at],
        )?;
        let mut programs = [sender, receiver];
        let mpps = steady_mpps(|| programs[1].line());
        let swapped = if traffic.share { self.check_swapped(&to) } else { Ok(()) };
        let mpps = conclude(mpps.and_then(|mpps| swapped.map(|()| mpps)), &mut programs)?;
        drop(idle);
        let [sent, received] = programs.each_mut().map(packets);
        let (sent, received) = (sent?, received?);
        // What the receiver heard beside it may make it more.
        Ok(Crossed { mpps, lost: ((sent - received) / sent).max(0.0) })
    }

    /// The highest rate at which next to nothing is lost, Mpps; 0 if there is none.
    pub(crate) fn clean_rate(&self, traffic: Traffic) -> Result<f64, String> {
        let most = self.cross(traffic)?;
        if most.lost < CLEAN {
            return Ok(most.mpps);
        }
        let (mut low, mut high, mut best) = (0.0, most.mpps * 1.1, 0.0);
        for _ in 0..HALVINGS {
            let rate = f64::midpoint(low, high);
            let found = self.cross(Traffic { rate: Some((rate * 1e6) as u64), ..traffic })?;
            if found.lost < CLEAN {
                (low, best) = (rate, f64::max(best, found.mpps));
            } else {
                high = rate;
            }
        }
        Ok(best)
    }

    /// Ports of a switch that nobody sends to.
    fn idle(&self, switch: &str, n: usize) -> Result<Vec<Running>, String> {
        let mut ports: Vec<_> = (0..n)
            .map(|i| self.start("rx", &format!("{switch}:idle{i}"), None, &["-T", "0"]))
            .collect::<Result<_, _>>()?;
        // They say nothing: to report is to do something.
        let (prefix, start) = (format!("{switch}:idle"), Instant::now());
        while self.open_ports(&prefix)? < n {
            ports.iter_mut().try_for_each(Running::check)?;
            if start.elapsed() > PATIENCE {
                return Err(format!("bench: {n} ports of {switch} are not open after {} s", PATIENCE.as_secs()));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(ports)
    }

    /// How many ports have a name that begins so.
    fn open_ports(&self, prefix: &str) -> Result<usize, String> {
        let books = self.books()?;
        let names = books["ports"].as_array().into_iter().flatten().filter_map(|entry| entry["name"].as_str());
        Ok(names.filter(|name| name.starts_with(prefix)).count())
    }

    /// Packets to 16 addresses in turn, behind four receivers, each counting; returns the sum, Mpps.
    pub(crate) fn fan(&self) -> Result<f64, String> {
        let switch = self.fresh();
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
        conclude(sum, &mut programs)
    }

    /// The median round trip between two programs, ns: both awake, or asleep in between.
    pub(crate) fn round_trip(&self, asleep: bool) -> Result<f64, String> {
        let switch = self.fresh();
        self.ping_pong([&format!("{switch}:a"), &format!("{switch}:b")], asleep)
    }

    /// The same on a pipe.
    pub(crate) fn pipe_round_trip(&self, asleep: bool) -> Result<f64, String> {
        let pipe = self.fresh();
        self.ping_pong([&format!("netmap:{pipe}{{1"), &format!("netmap:{pipe}}}1")], asleep)
    }

    fn ping_pong(&self, [near, far]: [&str; 2], asleep: bool) -> Result<f64, String> {
        let mut pong = self.start("pong", far, Some(self.cores.rx), &["-T", "20"])?;
        pong.line()?;
        let (count, rate) = if asleep { (SLEEPY_PINGS, SLEEPY_RATE) } else { (PINGS, 0) };
        let (count, rate) = (count.to_string(), rate.to_string());
        let ping = self.start("ping", near, Some(self.cores.tx), &["-T", "0", "-n", &count, "-R", &rate])?;
        let mut programs = [ping, pong];
        let median = (|| {
            loop {
                if let Some(ns) = median_rtt(&programs[0].line()?)? {
                    return Ok(ns);
                }
            }
        })();
        conclude(median, &mut programs)
    }
}

/// Keeps all threads of a process on `cpu`.
pub(crate) fn pin_all(pid: u32, cpu: usize) -> std::io::Result<()> {
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        if let Ok(tid) = task?.file_name().to_string_lossy().parse() {
            process::run_thread_on_cpus(tid, &[cpu])?;
        }
    }
    Ok(())
}

/// What a program that has ended says it sent or received.
fn packets(program: &mut Running) -> Result<f64, String> {
    loop {
        let value = object(&program.line()?)?;
        if value["event"] == "summary" {
            return value["packets"].as_f64().ok_or_else(|| format!("bench: a summary without packets: {value}"));
        }
    }
}

/// Address `n` behind receiver `number`.
fn address(number: u8, n: u8) -> [u8; 6] {
    [2, 0xbe, 0x0c, 0, number, n]
}

fn mac([a, b, c, d, e, f]: [u8; 6]) -> String {
    format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
}

/// A packet of 60 bytes.
fn frame(to: [u8; 6], from: [u8; 6]) -> Vec<u8> {
    let mut frame = [&to[..], &from, &[0x88, 0xb5]].concat();
    frame.resize(60, 0);
    frame
}

/// A file that pkt-gen can send.
fn write_pcap(path: &Path, packets: &[Vec<u8>]) -> Result<(), String> {
    // The magic, version 2.4, no time zone, nothing cut, Ethernet.
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
    fn addresses_are_those_of_stations() {
        assert_eq!(mac(address(1, 2)), "02:be:0c:00:01:02");
        assert_eq!(frame([0xff; 6], address(1, 0)).len(), 60);
    }

    #[test]
    fn a_file_has_all_packets() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        write_pcap(&path, &[vec![1; 60], vec![2; 60]]).unwrap();
        assert_eq!(fs::read(&path).unwrap().len(), 24 + 2 * (16 + 60));
        assert!(write_pcap(folder.path(), &[]).unwrap_err().contains("bench: "));
    }
}

// SPDX-License-Identifier: BSD-2-Clause
//! TCP between two stacks, as iperf3 measures it, over five ways to join them.
//!
//! ```text
//!    near                 mid                       far
//!    stack -- [va] -- [vb] joined [vc] -- [vd] -- stack     tcp-bridge, tcp-fw; the peer: the kernel's bridge
//!    stack -- [vi0] ===== switch ===== [vi1] ---- stack     tcp-switch, tcp-switch-kernel, tcp-switch-worker
//!
//!    tcp-switch          persistent ports as they are made by default: packets of up to the MTU, with checksums
//!    tcp-switch-kernel   the knob vale_kernel: the kernel forwards
//!    tcp-switch-worker   ports made with that knob, which is off then: the switch's threads have whole packets
//!    tcp-bridge, tcp-fw  packet sockets whose packets have virtio-net headers; one rule
//! ```
//! All interfaces have the offloads that the kernel gives them.

use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use lab::{Lab, Ns, VethOptions};
use serde_json::Value;
use tempfile::TempDir;

use crate::daemon::Daemon;
use crate::firewall::Case;
use crate::nic::forwarders::add_kernel_bridge;
use crate::nic::start_daemon;
use crate::program::{self, Running, TIMEOUT, parse_json};
use crate::turns::RowName;

/// The addresses of the two stacks.
const NEAR: &str = "10.9.0.1";
const FAR: &str = "10.9.0.2";
/// The two interfaces that a program joins.
const JOINED: [&str; 2] = ["netmap:vb", "netmap:vc"];
/// Seconds of one stream, the fewest that iperf3 takes.
const SECONDS: &str = "1";
/// Ticks of `/proc/stat` in a second, on all architectures.
const TICKS: f64 = 100.0;

/// The way between the two stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Switch,
    SwitchKernel,
    SwitchWorker,
    Bridge,
    Firewall,
    KernelBridge,
}

impl Way {
    /// unetmap's ways, a row group each.
    pub(crate) const UNETMAP: [Way; 5] =
        [Way::Switch, Way::SwitchKernel, Way::SwitchWorker, Way::Bridge, Way::Firewall];

    /// Returns the name of the rows, or the label of the peer.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Way::Switch => "tcp-switch",
            Way::SwitchKernel => "tcp-switch-kernel",
            Way::SwitchWorker => "tcp-switch-worker",
            Way::Bridge => "tcp-bridge",
            Way::Firewall => "tcp-fw",
            Way::KernelBridge => "kernel-bridge",
        }
    }

    /// Returns the rows of a sample, in order.
    pub(crate) fn rows(self) -> Vec<RowName> {
        let units = [("", "Gbit/s"), ("-cpu", "ms/Gbit"), ("-repeated", "per Gbit")];
        units.map(|(end, unit)| RowName { name: format!("{}{end}", self.name()), unit }).into()
    }
}

/// Returns why the benchmark cannot be made here, if so.
pub(crate) fn lacks() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("network namespaces need root".into());
    }
    program::find("iperf3").err().map(|_| "iperf3 is not installed (Debian: iperf3)".into())
}

/// Two stacks, and what joins them. The fields are dropped in order: programs before the daemon, whose ports they have,
/// and both before the namespaces.
pub(crate) struct Stacks {
    joining: Option<Running>,
    daemon: Option<Daemon>,
    near: Ns,
    far: Ns,
    folder: TempDir,
    lab: Lab,
}

impl Stacks {
    /// Joins two stacks.
    ///
    /// # Errors
    /// A program or permission is missing, or no ping arrives.
    pub(crate) fn joined_by(way: Way) -> Result<Stacks, String> {
        let lab = Lab::new()?;
        let (near, far) = (lab.namespace("near")?, lab.namespace("far")?);
        let folder = tempfile::tempdir().map_err(|e| format!("bench: a folder for {}: {e}", way.name()))?;
        let start = || start_daemon(folder.path(), "direct", "best");
        let daemon = (way != Way::KernelBridge).then(start).transpose()?;
        let mut made = Stacks { joining: None, daemon, near, far, folder, lab };
        match way {
            Way::Switch => made.join_by_switch()?,
            Way::SwitchKernel | Way::SwitchWorker => {
                made.set_kernel_path("1")?;
                made.join_by_switch()?;
            }
            Way::Bridge | Way::Firewall | Way::KernelBridge => made.join_veths(way)?,
        }
        made.wait_for_ping()?;
        if way == Way::SwitchWorker {
            made.set_kernel_path("0")?;
        }
        Ok(made)
    }

    /// Measures a stream of a second: its rate, the processor time of the whole machine for it, and the packets that
    /// TCP sent again.
    pub(crate) fn measure(&mut self) -> Result<Vec<f64>, String> {
        self.joining.as_mut().map_or(Ok(()), Running::check)?;
        let mut command = self.far.command("iperf3");
        let mut server = Running::start("iperf3 -s", command.args(["-s", "-1", "--forceflush", "-B", FAR]))?;
        while !server.line()?.contains("listening") {}
        let before = busy_seconds()?;
        let text = self.near.tool("timeout", &["30", "iperf3", "-c", FAR, "-t", SECONDS, "-J"])?;
        let busy = busy_seconds()? - before;
        figures(&parse_json(&text)?, busy).ok_or_else(|| format!("bench: iperf3 printed no figures: {text}"))
    }

    /// Joins two persistent ports by a switch.
    fn join_by_switch(&self) -> Result<(), String> {
        for (ns, name, address) in [(&self.near, "vi0", NEAR), (&self.far, "vi1", FAR)] {
            self.run(ns, "vale-ctl", &["-n", name])?;
            self.run(ns, "vale-ctl", &["-a", &format!("vale0:{name}")])?;
            ns.ip(&["addr", "add", &format!("{address}/24"), "dev", name])?;
            ns.ip(&["link", "set", name, "up"])?;
            ns.wait_up(name)?;
        }
        Ok(())
    }

    /// Joins two veth pairs in a third namespace.
    fn join_veths(&mut self, way: Way) -> Result<(), String> {
        let mid = self.lab.namespace("mid")?;
        self.lab.veth(&self.near, "va", &mid, "vb", VethOptions::default())?;
        self.lab.veth(&self.far, "vd", &mid, "vc", VethOptions::default())?;
        self.near.ip(&["addr", "add", &format!("{NEAR}/24"), "dev", "va"])?;
        self.far.ip(&["addr", "add", &format!("{FAR}/24"), "dev", "vd"])?;
        let mut command = match way {
            Way::KernelBridge => return add_kernel_bridge(&mid),
            Way::Firewall => Case::Rules(1).command(&self.folder, JOINED, Some(&mid))?,
            _ => {
                let mut bridge = mid.command(program::find("bridge")?);
                bridge.args(["-w", "0", "-i", JOINED[0], "-i", JOINED[1]]);
                bridge
            }
        };
        for name in ["vb", "vc"] {
            self.run(&mid, "unetmap", &["nic", name, "way", "packet"])?;
            self.run(&mid, "unetmap", &["nic", name, "header", "12"])?;
        }
        self.set_socket(&mut command);
        self.joining = Some(Running::start(way.name(), &mut command)?);
        Ok(())
    }

    fn set_kernel_path(&self, value: &str) -> Result<(), String> {
        self.run(&self.near, "unetmap", &["set", "vale_kernel", value])
    }

    /// Runs one of unetmap's programs to its end.
    fn run(&self, ns: &Ns, name: &str, args: &[&str]) -> Result<(), String> {
        let mut command = ns.command(program::find(name)?);
        self.set_socket(&mut command);
        lab::output(command.args(args)).map(drop)
    }

    fn set_socket(&self, command: &mut Command) {
        if let Some(daemon) = &self.daemon {
            command.env("UNETMAP_SOCKET", &daemon.socket);
        }
    }

    /// Waits until a ping is answered: all ports are open, and a switch has learned both addresses.
    fn wait_for_ping(&mut self) -> Result<(), String> {
        let start = Instant::now();
        loop {
            match self.near.tool("ping", &["-n", "-c", "1", "-W", "1", FAR]) {
                Ok(_) => return Ok(()),
                Err(why) if start.elapsed() > TIMEOUT => return Err(format!("bench: {why}")),
                Err(_) => self.joining.as_mut().map_or(Ok(()), Running::check)?,
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Reads the rate in Gbit/s from iperf3's report, and divides the busy time (ms) and the packets that were sent again
/// by the Gbit.
fn figures(report: &Value, busy_seconds: f64) -> Option<Vec<f64>> {
    let of = |end: &str, what: &str| report["end"][end][what].as_f64();
    let (bytes, seconds) = (of("sum_received", "bytes")?, of("sum_received", "seconds")?);
    let gbit = bytes * 8.0 / 1e9;
    (gbit > 0.0 && seconds > 0.0).then_some(())?;
    Some(vec![gbit / seconds, busy_seconds * 1e3 / gbit, of("sum_sent", "retransmits")? / gbit])
}

/// Returns the time that all processors have worked, for programs, the kernel and interrupts, in seconds.
fn busy_seconds() -> Result<f64, String> {
    let text = fs::read_to_string("/proc/stat").map_err(|e| format!("bench: /proc/stat: {e}"))?;
    busy_ticks(&text).map(|ticks| ticks as f64 / TICKS).ok_or_else(|| "bench: /proc/stat has no line `cpu`".into())
}

fn busy_ticks(stat: &str) -> Option<u64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let fields: Vec<u64> = line.split_whitespace().map_while(|field| field.parse().ok()).collect();
    // user nice system idle iowait irq softirq
    let [user, nice, system, _, _, irq, softirq, ..] = fields[..] else { return None };
    Some(user + nice + system + irq + softirq)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_of_iperf3_are_read() {
        let report = serde_json::json!({"end": {
            "sum_sent": {"retransmits": 5, "bytes": 1}, "sum_received": {"bytes": 1.25e9, "seconds": 2.0}
        }});
        assert_eq!(figures(&report, 0.4), Some(vec![5.0, 40.0, 0.5]));
        assert_eq!(figures(&serde_json::json!({"error": "unable to connect"}), 0.4), None);
    }

    #[test]
    fn busy_time_leaves_out_idle_time() {
        assert_eq!(busy_ticks("cpu  10 2 30 1000 7 1 4 9 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n"), Some(47));
        assert_eq!(busy_ticks("intr 5\n"), None);
    }

    #[test]
    fn every_way_carries_a_stream() {
        if let Some(why) = lacks().or_else(|| Lab::new().err()) {
            eprintln!("skipped: {why}");
            return;
        }
        if program::find("unetmapd").and(program::find("unetmap-fw")).is_err() {
            eprintln!("skipped: unetmapd or unetmap-fw is not built (`make` builds them)");
            return;
        }
        for way in Way::UNETMAP.into_iter().chain([Way::KernelBridge]) {
            let found = Stacks::joined_by(way).and_then(|mut stacks| stacks.measure()).unwrap();
            assert_eq!(found.len(), way.rows().len());
            assert!(found[0] > 0.001 && found[1] > 0.0, "{way:?}: {found:?}");
        }
    }
}

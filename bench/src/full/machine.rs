// SPDX-License-Identifier: BSD-2-Clause
//! The machine of a report, and what is absent from it.

use std::fs;
use std::process::Command;

use serde::Serialize;

use crate::{c_peers, nic};

/// Facts without which figures mean little.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    date: String,
    unetmap: String,
    kernel: String,
    processor: String,
    processors: usize,
    /// Whether a hypervisor is below: then other guests may take time, unseen.
    virtual_machine: bool,
    memory_gib: f64,
    governor: String,
    /// The kernel's measures against leaks of the processor that are active.
    mitigations: Vec<String>,
}

/// A peer that could not be measured.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Absent {
    pub(crate) peer: String,
    pub(crate) why: String,
}

impl Machine {
    pub(crate) fn read() -> Machine {
        let cpuinfo = text("/proc/cpuinfo");
        let of = |key: &str| cpuinfo.lines().find_map(|line| Some(line.strip_prefix(key)?.split_once(':')?.1.trim()));
        let memory = text("/proc/meminfo");
        let kib =
            memory.lines().find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse().ok());
        let date = Command::new("date").args(["-u", "+%Y-%m-%d %H:%M UTC"]).output();
        let or_unknown = |text: &str| if text.is_empty() { "unknown".to_owned() } else { text.to_owned() };
        Machine {
            date: date.map_or("unknown".into(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned()),
            unetmap: unetmap::version().to_owned(),
            kernel: text("/proc/sys/kernel/osrelease"),
            processor: or_unknown(of("model name").unwrap_or_default()),
            processors: cpuinfo.lines().filter(|line| line.starts_with("processor")).count(),
            virtual_machine: of("flags").is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
            memory_gib: kib.map_or(0.0, |kib: f64| (kib / 1024.0 / 1024.0 * 10.0).round() / 10.0),
            governor: or_unknown(&text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
            mitigations: mitigations(),
        }
    }

    /// Returns the facts as rows of a table.
    pub(crate) fn rows(&self) -> Vec<Vec<String>> {
        let kind = if self.virtual_machine { "virtual machine" } else { "no hypervisor is seen" };
        let row = |name: &str, value: String| vec![name.to_owned(), value];
        vec![
            row("date", self.date.clone()),
            row("unetmap", self.unetmap.clone()),
            row("processor", format!("{}, {} seen by Linux; {kind}", self.processor, self.processors)),
            row("memory", format!("{} GiB", self.memory_gib)),
            row("Linux", self.kernel.clone()),
            row("frequency governor", self.governor.clone()),
            row("mitigations", self.mitigations.join("; ")),
        ]
    }
}

fn text(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn mitigations() -> Vec<String> {
    let folder = "/sys/devices/system/cpu/vulnerabilities";
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let mut all: Vec<String> = entries
        .filter_map(|entry| {
            let state = text(&entry.path().to_string_lossy());
            let what = state.strip_prefix("Mitigation: ")?;
            Some(format!("{}: {what}", entry.file_name().to_string_lossy()))
        })
        .collect();
    all.sort();
    all
}

/// Returns the peers that cannot be measured here, with what brings them.
pub(crate) fn absent() -> Vec<Absent> {
    let mut all = vec![Absent {
        peer: "Click".into(),
        why: "Debian has no package of the router (the package click is another program)".into(),
    }];
    let needed = [
        ("DPDK: ring, memif, vhost, af_xdp", c_peers::no_dpdk()),
        ("Open vSwitch in user space", nic::no_openvswitch()),
        ("Open vSwitch with DPDK", nic::no_openvswitch_dpdk()),
        ("kernel pktgen", nic::no_pktgen()),
    ];
    all.extend(needed.into_iter().filter_map(|(peer, why)| Some(Absent { peer: peer.into(), why: why? })));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_a_processor_and_a_kernel() {
        let machine = Machine::read();
        assert!(machine.processors > 0 && !machine.kernel.is_empty() && machine.memory_gib > 0.0, "{machine:?}");
        assert!(machine.rows().iter().all(|row| row.len() == 2));
        assert!(absent().iter().all(|one| !one.why.is_empty()));
    }
}

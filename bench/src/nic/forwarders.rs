// SPDX-License-Identifier: BSD-2-Clause
//! Other forwarders from `vb` to `vc`: the kernel's bridge, and Open vSwitch in user space, on AF_PACKET and on DPDK's
//! driver for AF_XDP.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use lab::Ns;
use tempfile::TempDir;

use crate::program::{self, Running, TIMEOUT};
use crate::seqpacket::on_core;

const VSWITCHD: &str = "ovs-vswitchd";
/// The same with DPDK, where Debian's package has it.
const VSWITCHD_DPDK: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
/// Open vSwitch's bridge, and the interfaces that it leaves in the namespace when it ends.
const OVS_BRIDGE: &str = "ovs0";
const OVS_INTERFACES: [&str; 2] = [OVS_BRIDGE, "ovs-netdev"];
/// Where Debian's package has the schema of its database.
const OVS_SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

/// Returns why Open vSwitch cannot run here, if so.
pub(crate) fn no_openvswitch() -> Option<String> {
    program::find(VSWITCHD).err().map(|_| format!("{VSWITCHD} is not installed (Debian: openvswitch-switch)"))
}

/// Returns why Open vSwitch with DPDK cannot run here, if so.
pub(crate) fn no_openvswitch_dpdk() -> Option<String> {
    let missing = || format!("{VSWITCHD_DPDK} is not installed (Debian: openvswitch-switch-dpdk)");
    no_openvswitch().or_else(|| (!Path::new(VSWITCHD_DPDK).is_file()).then(missing))
}

/// Joins `vb` and `vc` by a bridge of the kernel, `br0`.
pub(crate) fn add_kernel_bridge(ns: &Ns) -> Result<(), String> {
    // Without snooping the bridge sends no packets of its own.
    ns.ip(&["link", "add", "name", "br0", "type", "bridge", "mcast_snooping", "0"])?;
    // If the host's firewall filters bridged packets, it would also process these, without rules, and cost time.
    ns.run(|| fs::write("/proc/sys/net/bridge/bridge-nf-call-iptables", "0"))?
        .or_else(|e| if e.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(e) })
        .map_err(|e| format!("bench: bridge-nf-call-iptables: {e}"))?;
    for name in ["vb", "vc"] {
        ns.ip(&["link", "set", name, "master", "br0"])?;
    }
    ns.ip(&["link", "set", "br0", "up"]).map(drop)
}

/// A kernel bridge between `vb` and `vc`.
pub(super) struct KernelBridge<'a>(&'a Ns);

impl KernelBridge<'_> {
    pub(super) fn make(ns: &Ns) -> Result<KernelBridge<'_>, String> {
        let made = KernelBridge(ns);
        add_kernel_bridge(ns)?;
        Ok(made)
    }

    /// Removes the bridge.
    pub(super) fn remove(self) -> Result<(), String> {
        self.0.ip(&["link", "del", "br0"]).map(|_| std::mem::forget(self))
    }
}

impl Drop for KernelBridge<'_> {
    fn drop(&mut self) {
        // Only after another failure, which is reported.
        let _ = self.0.ip(&["link", "del", "br0"]);
    }
}

/// Open vSwitch between `vb` and `vc`: its data path in user space (`netdev`), with AF_PACKET sockets or with DPDK's
/// driver for AF_XDP, as Debian builds them. It has a database of its own.
pub(super) struct OpenVswitch<'a> {
    ns: &'a Ns,
    /// Removed when it is dropped.
    _folder: TempDir,
    switch: Option<Running>,
    database: Running,
}

impl OpenVswitch<'_> {
    pub(super) fn start(ns: &Ns, cpu: usize, dpdk: bool) -> Result<OpenVswitch<'_>, String> {
        let folder = tempfile::tempdir().map_err(|e| format!("bench: a folder for Open vSwitch: {e}"))?;
        let root = folder.path().to_owned();
        let path = |name: &str| root.join(name).display().to_string();
        let run = |program: &str, args: &[&str]| {
            let output = set_folders(&mut Command::new(program::find(program)?), &root).args(args).output();
            let output = output.map_err(|e| format!("bench: {program}: {e}"))?;
            let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            if output.status.success() { Ok(()) } else { Err(format!("bench: {program}: {text}")) }
        };
        let (database, socket) = (path("conf.db"), path("db.sock"));
        run("ovsdb-tool", &["create", &database, OVS_SCHEMA])?;
        let mut command = Command::new(program::find("ovsdb-server")?);
        command.args([&database, "--remote", &format!("punix:{socket}"), "--no-chdir", "-vconsole:off"]);
        let mut server = Running::start("ovsdb-server", set_folders(&mut command, &root))?;
        let remote = format!("unix:{socket}");
        let begin = Instant::now();
        while !root.join("db.sock").exists() {
            server.check()?;
            if begin.elapsed() > TIMEOUT {
                return Err("bench: ovsdb-server does not listen".into());
            }
            thread::sleep(Duration::from_millis(1));
        }
        let db = format!("--db={remote}");
        #[rustfmt::skip]
        run("ovs-vsctl", &[&db, "--no-wait", "--", "init", "--", "add-br", OVS_BRIDGE,
            "--", "set", "bridge", OVS_BRIDGE, "datapath_type=netdev", "fail_mode=standalone"])?;
        let words = if dpdk { dpdk_ports(cpu) } else { packet_ports() };
        let words: Vec<&str> = [&*db, "--no-wait"].into_iter().chain(words.iter().map(String::as_str)).collect();
        run("ovs-vsctl", &words)?;
        let mut made = OpenVswitch { ns, _folder: folder, switch: None, database: server };
        let program = if dpdk { VSWITCHD_DPDK.into() } else { program::find(VSWITCHD)? };
        let mut command = ns.command(program);
        set_folders(&mut command, &root).args([&remote, "--no-chdir", "-vconsole:off", "--pidfile"]);
        made.switch = Some(on_core(cpu, || Running::start(VSWITCHD, &mut command))?);
        // Returns when the switch has taken its configuration.
        run("ovs-vsctl", &[&db, "--timeout=10", "set", "bridge", OVS_BRIDGE, "other_config:bench=1"])?;
        Ok(made)
    }

    /// Stops it, and removes what it leaves.
    pub(super) fn stop(mut self) -> Result<(), String> {
        let stopped = self.switch.as_mut().map_or(Ok(()), Running::stop);
        let stopped = stopped.and_then(|()| self.database.stop());
        self.remove_interfaces();
        stopped
    }

    fn remove_interfaces(&self) {
        // They may not have been made yet.
        OVS_INTERFACES.iter().for_each(|name| drop(self.ns.ip(&["link", "del", name])));
        // DPDK's driver leaves its XDP programs attached; the other ports have none.
        ["vb", "vc"].iter().for_each(|name| drop(self.ns.ip(&["link", "set", "dev", name, "xdp", "off"])));
    }
}

impl Drop for OpenVswitch<'_> {
    fn drop(&mut self) {
        // Kills the switch first, which has the interfaces.
        if self.switch.take().is_some() {
            self.remove_interfaces();
        }
    }
}

/// The words of `ovs-vsctl` for ports on AF_PACKET.
fn packet_ports() -> Vec<String> {
    ["vb", "vc"].iter().flat_map(|name| ["--", "add-port", OVS_BRIDGE, name]).map(String::from).collect()
}

/// The same for ports on DPDK's driver, in ordinary pages, polled by a thread on one processor.
fn dpdk_ports(cpu: usize) -> Vec<String> {
    let mask = format!("{:#x}", 1_u128 << cpu.min(127));
    let mut words = vec!["--".to_owned(), "set".into(), "Open_vSwitch".into(), ".".into()];
    // Without the option for memory it would ask for a mode that excludes ordinary pages; with a pool for all ports it
    // would take seconds to start.
    let eal = "--legacy-mem --no-huge -m 512 --no-pci --no-shconf --no-telemetry";
    let settings = ["dpdk-init=true", "per-port-memory=true", &format!("dpdk-extra={eal}")];
    words.extend(settings.map(|setting| format!("other_config:{setting}")));
    words.extend(["pmd-cpu-mask", "dpdk-lcore-mask"].map(|key| format!("other_config:{key}={mask}")));
    for (i, interface) in ["vb", "vc"].into_iter().enumerate() {
        let port = format!("dpdk-{interface}");
        words.extend(["--", "add-port", OVS_BRIDGE, &port, "--", "set", "Interface", &port].map(String::from));
        words.extend(["type=dpdk".into(), format!("options:dpdk-devargs=net_af_xdp{i},iface={interface}")]);
    }
    words
}

/// Sets the folders of Open vSwitch's programs, which are otherwise those of the machine's own.
fn set_folders<'c>(command: &'c mut Command, folder: &Path) -> &'c mut Command {
    for name in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
        command.env(name, folder);
    }
    command
}

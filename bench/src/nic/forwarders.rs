// SPDX-License-Identifier: BSD-2-Clause
//! What else forwards from `vb` to `vc`: the kernel's bridge, DPDK's `testpmd` on AF_XDP, Open vSwitch in user space.

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

const TESTPMD: &str = "dpdk-testpmd";
const VSWITCHD: &str = "ovs-vswitchd";
/// Open vSwitch's bridge, and the interfaces that it leaves in the namespace when it ends.
const OVS_BRIDGE: &str = "ovs0";
const OVS_INTERFACES: [&str; 2] = [OVS_BRIDGE, "ovs-netdev"];
/// Where Debian's package has the schema of its database.
const OVS_SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

/// Returns why DPDK cannot run here, if so.
pub(crate) fn no_dpdk() -> Option<String> {
    program::find(TESTPMD).err().map(|_| format!("{TESTPMD} is not installed (Debian: dpdk-dev, from Debian 13 dpdk)"))
}

/// Returns why Open vSwitch cannot run here, if so.
pub(crate) fn no_openvswitch() -> Option<String> {
    program::find(VSWITCHD).err().map(|_| format!("{VSWITCHD} is not installed (Debian: openvswitch-switch)"))
}

/// Starts `testpmd`, which moves packets between two AF_XDP sockets without looking at them.
pub(super) fn testpmd(ns: &Ns, cpu: usize) -> Result<Running, String> {
    let mut command = ns.command(program::find(TESTPMD)?);
    command.arg(format!("--lcores=0@{cpu},1@{cpu}"));
    command.args(["--no-huge", "-m", "512", "--no-shconf", "--no-pci", "--no-telemetry"]);
    for (i, interface) in ["vb", "vc"].into_iter().enumerate() {
        command.args(["--vdev", &format!("net_af_xdp{i},iface={interface}")]);
    }
    // Without a terminal it runs until a signal; the statistics keep it from reading its input.
    command.args(["--", "--total-num-mbufs=16384", "--forward-mode=io", "--stats-period", "1"]);
    Running::start(TESTPMD, &mut command)
}

/// A kernel bridge between `vb` and `vc`.
pub(super) struct KernelBridge<'a>(&'a Ns);

impl KernelBridge<'_> {
    pub(super) fn make(ns: &Ns) -> Result<KernelBridge<'_>, String> {
        // Without snooping the bridge sends no packets of its own.
        ns.ip(&["link", "add", "name", "br0", "type", "bridge", "mcast_snooping", "0"])?;
        let made = KernelBridge(ns);
        // If the host's firewall filters bridged packets, it would also process these, without rules, and cost time.
        ns.run(|| fs::write("/proc/sys/net/bridge/bridge-nf-call-iptables", "0"))?
            .or_else(|e| if e.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(e) })
            .map_err(|e| format!("bench: bridge-nf-call-iptables: {e}"))?;
        for name in ["vb", "vc"] {
            ns.ip(&["link", "set", name, "master", "br0"])?;
        }
        ns.ip(&["link", "set", "br0", "up"])?;
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

/// Open vSwitch between `vb` and `vc`: its data path in user space (`netdev`), with AF_PACKET sockets, as Debian builds
/// it. It has a database of its own.
pub(super) struct OpenVswitch<'a> {
    ns: &'a Ns,
    /// Removed when it is dropped.
    _folder: TempDir,
    switch: Option<Running>,
    database: Running,
}

impl OpenVswitch<'_> {
    pub(super) fn start(ns: &Ns, cpu: usize) -> Result<OpenVswitch<'_>, String> {
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
            "--", "set", "bridge", OVS_BRIDGE, "datapath_type=netdev", "fail_mode=standalone",
            "--", "add-port", OVS_BRIDGE, "vb", "--", "add-port", OVS_BRIDGE, "vc"])?;
        let mut made = OpenVswitch { ns, _folder: folder, switch: None, database: server };
        let mut command = ns.command(program::find(VSWITCHD)?);
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

/// Sets the folders of Open vSwitch's programs, which are otherwise those of the machine's own.
fn set_folders<'c>(command: &'c mut Command, folder: &Path) -> &'c mut Command {
    for name in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
        command.env(name, folder);
    }
    command
}

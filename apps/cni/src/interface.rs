// SPDX-License-Identifier: BSD-2-Clause
//! The pod's interface: made and removed by the daemon, named and given addresses by ip(8) of iproute2.

use std::io::Write as _;
use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use tool_common::host::link::{self, Link};
use tool_common::host::netns::Netns;
use unetmap::{Error, errno, switch};

use crate::config::{Environment, NetConf};
use crate::fault::{Code, Fault};
use crate::ipam::Assignment;

/// The type of the file system of namespaces (linux/magic.h).
const NSFS_MAGIC: rustix::fs::FsWord = 0x6e73_6673;

/// A pod's network namespace.
pub(crate) struct Pod(Netns);

impl Pod {
    /// Opens it; `None` if there is no such file, or no namespace is mounted there any more.
    pub(crate) fn open(path: &Path) -> Result<Option<Pod>, Fault> {
        let failed = |e| Fault::new(Code::Environment, format!("CNI_NETNS={}: {e}", path.display()));
        match Netns::of_path(path) {
            Ok(netns) if !is_namespace(&netns) => Ok(None),
            Ok(netns) => {
                let own = Netns::current().map_err(failed)?;
                if own.id() == netns.id() {
                    let text = format!("CNI_NETNS={}: it is the host's own namespace", path.display());
                    return Err(Fault::new(Code::Environment, text));
                }
                Ok(Some(Pod(netns)))
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(failed(e)),
        }
    }

    /// Returns the namespace that has an interface with this alternative name, of those with a process or a mount.
    fn with_interface(name: &str) -> Option<Pod> {
        Netns::find(|netns| matches!(netns.run(|| link::by_name(name)), Ok(Ok(Some(_))))).map(Pod)
    }

    fn run<T: Send>(&self, work: impl FnOnce() -> Result<T, Fault> + Send) -> Result<T, Fault> {
        self.0.run(work).unwrap_or_else(|e| Err(Fault::refused("entering the pod's namespace", e)))
    }

    /// Makes the interface `name`, which is the port `port` of the switch. Nothing is left if that fails.
    pub(crate) fn make(
        &self,
        conf: &NetConf,
        Environment { interface: name, pod, .. }: &Environment,
        port: &str,
        assignment: &Assignment,
    ) -> Result<Link, Fault> {
        self.run(|| {
            if by_name(name)?.is_some() {
                return Err(Fault::new(Code::Environment, format!("CNI_IFNAME={name}: the pod has this interface")));
            }
            switch::create(port, &switch::NewPort::default()).map_err(|e| Fault::refused(port, e))?;
            // A pod whose name does not fit among the daemon's settings has an interface all the same.
            let _ = pod.as_ref().map(|pod| switch::set_label(&format!("{}:{port}", conf.switch), Some(pod)));
            let made = configure(conf, (name, port), assignment);
            made.inspect_err(|_| {
                let _ = remove_here(&conf.switch, port);
            })
        })
    }

    /// Removes an attachment's interface and its port. Neither has to exist.
    pub(crate) fn remove(&self, switch: &str, port: &str) -> Result<(), Fault> {
        self.run(|| remove_here(switch, port))
    }

    /// Checks that the interface is as it was made, with the MAC address and the addresses and routes of a result.
    pub(crate) fn check(&self, conf: &NetConf, (name, port): (&str, &str), result: &Value) -> Result<(), Fault> {
        let fault = |text: String| Fault::new(Code::Check, text);
        let wrong = |text: String| Err(fault(text));
        self.run(|| {
            let Some(link) = by_name(name)? else { return wrong(format!("the pod has no interface {name}")) };
            if by_name(port)?.is_none_or(|of_port| of_port.index != link.index) {
                return wrong(format!("{name} is not the port {port}"));
            }
            let port = format!("{}:{port}", conf.switch);
            switch::find(&port).map_err(|e| fault(format!("{name} is not attached to the switch: {e}")))?;
            let mac = result["interfaces"].as_array().into_iter().flatten();
            let mac = mac.filter(|one| one["name"] == name).find_map(|one| one["mac"].as_str());
            if mac.is_some_and(|mac| !mac.eq_ignore_ascii_case(&mac_of(&link))) {
                return wrong(format!("{name} has the MAC address {}, not {}", mac_of(&link), mac.unwrap_or_default()));
            }
            let assignment = Assignment::of_result(result)?;
            has_addresses(name, assignment.addresses.iter().map(|one| (one.address, one.prefix)))?;
            for route in &assignment.routes {
                let to = format!("{}/{}", route.to.0, route.to.1);
                if ip(&["route", "show", "exact", &to, "dev", name], "")?.trim().is_empty() {
                    return wrong(format!("the route to {to} is missing"));
                }
            }
            Ok(())
        })
    }
}

fn is_namespace(netns: &Netns) -> bool {
    rustix::fs::fstatfs(netns).is_ok_and(|found| found.f_type == NSFS_MAGIC)
}

/// Whether a daemon answers: this starts none, but the service manager may.
pub(crate) fn daemon_runs() -> bool {
    unetmap::snapshots().is_ok_and(|daemons| !daemons.is_empty())
}

/// Removes the ports of a network's pods that are not in `valid`.
pub(crate) fn remove_others(conf: &NetConf, valid: &[String]) -> Result<(), Fault> {
    let ports = switch::list().map_err(|e| Fault::refused("the switches' ports", e))?;
    for port in ports.iter().filter_map(|entry| conf.pods_port(&entry.name)) {
        if !valid.iter().any(|name| name == port) {
            remove_anywhere(&conf.switch, port)?;
        }
    }
    Ok(())
}

/// Removes an attachment's port, in whatever namespace its interface is.
pub(crate) fn remove_anywhere(switch: &str, port: &str) -> Result<(), Fault> {
    match Pod::with_interface(port) {
        Some(pod) => pod.remove(switch, port),
        None => remove_here(switch, port),
    }
}

/// Removes an attachment's interface, which a daemon that has ended has left, and its port with it.
pub(crate) fn remove_left(pod: Option<Pod>, port: &str) -> Result<(), Fault> {
    let Some(pod) = pod.or_else(|| Pod::with_interface(port)) else { return Ok(()) };
    pod.run(|| match by_name(port)? {
        Some(link) => ip(&["link", "delete", "dev", &link.name], "").map(drop),
        None => Ok(()),
    })
}

pub(crate) fn mac_of(link: &Link) -> String {
    let mac = link.mac.unwrap_or_default();
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// Returns the interface of this name in the calling thread's namespace.
pub(crate) fn by_name(name: &str) -> Result<Option<Link>, Fault> {
    link::by_name(name).map_err(|e| Fault::refused(name, e))
}

/// Checks that an interface has these addresses, with their prefixes.
pub(crate) fn has_addresses(name: &str, mut addresses: impl Iterator<Item = (IpAddr, u8)>) -> Result<(), Fault> {
    let shown = ip(&["-json", "address", "show", "dev", name], "")?;
    let shown: Value = serde_json::from_str(&shown).map_err(|e| Fault::refused("ip address", e))?;
    let has = |(address, prefix): (IpAddr, u8)| {
        let info = shown.as_array().into_iter().flatten();
        let mut all = info.flat_map(|one| one["addr_info"].as_array().into_iter().flatten());
        all.any(|one| one["local"] == address.to_string() && one["prefixlen"] == prefix)
    };
    match addresses.find(|wanted| !has(*wanted)) {
        Some((address, prefix)) => Err(Fault::new(Code::Check, format!("{name} has no address {address}/{prefix}"))),
        None => Ok(()),
    }
}

/// Sets what the kernel is to do with an interface before it gets its addresses.
pub(crate) fn prepare(name: &str, assignment: &Assignment) {
    let set = |setting: &str, value: &str| {
        let _ = std::fs::write(format!("/proc/sys/net/{}", setting.replace("NAME", name)), value);
    };
    // The others are told the addresses, which another pod may have had before.
    set("ipv4/conf/NAME/arp_notify", "1");
    set("ipv6/conf/NAME/ndisc_notify", "1");
    // Many runtimes disable IPv6 where it is not asked for.
    if assignment.addresses.iter().any(|one| one.address.is_ipv6()) {
        set("ipv6/conf/NAME/disable_ipv6", "0");
    }
}

/// Attaches a new port, and gives its interface name and addresses.
fn configure(conf: &NetConf, (name, port): (&str, &str), assignment: &Assignment) -> Result<Link, Fault> {
    let of_switch = format!("{}:{port}", conf.switch);
    if let Some(mode) = conf.vlan_mode() {
        switch::set_vlan(&of_switch, Some(mode)).map_err(|e| Fault::refused(&of_switch, e))?;
    }
    for (direction, rate) in conf.rates() {
        switch::set_rate(&of_switch, direction, rate).map_err(|e| Fault::refused(&of_switch, e))?;
    }
    switch::attach(&of_switch, &switch::AttachOptions::default()).map_err(|e| Fault::refused(&of_switch, e))?;
    let mut commands = format!("link set dev {port} name {name}\nlink property add dev {name} altname {port}\n");
    for (key, value) in [("mtu", conf.mtu.map(|mtu| mtu.to_string())), ("address", conf.runtime_config.mac.clone())] {
        commands += &value.map(|value| format!("link set dev {name} {key} {value}\n")).unwrap_or_default();
    }
    ip(&["-batch", "-"], &commands)?;
    prepare(name, assignment);
    ip(&["-batch", "-"], &assignment.commands(name))?;
    by_name(name)?.ok_or_else(|| Fault::refused(name, "the interface is gone"))
}

/// Removes a port whose interface, if there is one, is in this namespace.
pub(crate) fn remove_here(switch: &str, port: &str) -> Result<(), Fault> {
    let of_switch = format!("{switch}:{port}");
    match switch::detach(&of_switch) {
        Ok(_) | Err(Error::Refused { errno: errno::ENXIO | errno::ENOENT, .. }) => {}
        Err(e) => return Err(Fault::refused(&of_switch, e)),
    }
    let _ = switch::clear(&of_switch);
    let Some(link) = by_name(port)? else { return Ok(()) };
    if switch::remove(&link.name).is_err() {
        // A program has it open.
        ip(&["link", "delete", "dev", &link.name], "")?;
    }
    Ok(())
}

/// Runs ip(8) in the calling thread's namespace. Returns its output.
pub(crate) fn ip(args: &[&str], input: &str) -> Result<String, Fault> {
    run(("ip", "iproute2"), args, input)
}

/// Runs a program of a package in the calling thread's namespace. Returns its output.
pub(crate) fn run((program, package): (&str, &str), args: &[&str], input: &str) -> Result<String, Fault> {
    let failed = |e: std::io::Error| Fault::refused(&format!("{program} (package {package})"), e);
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes()).map_err(failed)?;
    }
    let output = child.wait_with_output().map_err(failed)?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(Fault::refused(&format!("{program} {}", args.join(" ")), why.trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

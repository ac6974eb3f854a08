// SPDX-License-Identifier: BSD-2-Clause
//! The node's own port of a network, which has the addresses of the gateways: one for each network and switch, shared
//! by all its pods on this node.
//!
//! ```text
//! ADD       makes the pod's port, then, with the lock, this one, or adds to it what it lacks
//! DEL, GC   remove pods' ports, then, with the lock, this one if no pod's is left
//! ```
//! So a DEL of the last pod sees the port of a pod that has just been made, or that pod's ADD makes this port again.

use serde_json::Value;
use tool_common::host::link::Link;
use unetmap::switch::{self, AttachOptions, NewPort};

use crate::config::NetConf;
use crate::fault::{Code, Fault};
use crate::interface::{by_name, has_addresses, ip, prepare, remove_here, run};
use crate::ipam::Assignment;
use crate::state;

/// Makes the node's port, if the network is to have one, and gives it these gateways' addresses. Returns its interface.
pub(crate) fn provide(conf: &NetConf, assignment: &Assignment) -> Result<Option<Link>, Fault> {
    if !conf.wants_gateway() || assignment.gateways().next().is_none() {
        return Ok(None);
    }
    let _lock = state::lock()?;
    let name = conf.node_port();
    let is_new = by_name(&name)?.is_none();
    if is_new {
        if !conf.asks_for_gateway() && node_is_connected(assignment)? {
            return Ok(None);
        }
        switch::create(&name, &NewPort::default()).map_err(|e| Fault::refused(&name, e))?;
    }
    let configured = configure(conf, &name, assignment);
    configured.map(Some).inspect_err(|_| {
        if is_new {
            let _ = remove(conf, &name);
        }
    })
}

/// Removes the node's port, if no pod of the network is left on this node.
pub(crate) fn remove_if_unused(conf: &NetConf) -> Result<(), Fault> {
    let name = conf.node_port();
    if by_name(&name)?.is_none() {
        return Ok(());
    }
    let _lock = state::lock()?;
    let ports = switch::list().map_err(|e| Fault::refused("the switches' ports", e))?;
    if ports.iter().any(|port| conf.pods_port(&port.name).is_some()) {
        return Ok(());
    }
    remove(conf, &name)
}

/// Checks the node's port, if ADD had one in its result.
pub(crate) fn check(conf: &NetConf, result: &Value) -> Result<(), Fault> {
    let name = conf.node_port();
    if !result["interfaces"].as_array().into_iter().flatten().any(|one| one["name"] == *name) {
        return Ok(());
    }
    if by_name(&name)?.is_none() {
        return Err(Fault::new(Code::Check, format!("the node has no interface {name}")));
    }
    let port = format!("{}:{name}", conf.switch);
    switch::find(&port).map_err(|e| Fault::new(Code::Check, format!("{name} is not attached to the switch: {e}")))?;
    has_addresses(&name, Assignment::of_result(result)?.gateways())
}

/// Whether another interface of the node has an address of the network: a second one would take its packets.
fn node_is_connected(assignment: &Assignment) -> Result<bool, Fault> {
    for (address, prefix) in assignment.gateways() {
        let shown = ip(&["-oneline", "address", "show", "to", &format!("{address}/{prefix}")], "")?;
        if !shown.trim().is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Attaches the port, if it is not attached, and gives its interface what it lacks.
fn configure(conf: &NetConf, name: &str, assignment: &Assignment) -> Result<Link, Fault> {
    let port = format!("{}:{name}", conf.switch);
    if switch::find(&port).is_err() {
        if let Some(mode) = conf.vlan_mode() {
            switch::set_vlan(&port, Some(mode)).map_err(|e| Fault::refused(&port, e))?;
        }
        switch::attach(&port, &AttachOptions::default()).map_err(|e| Fault::refused(&port, e))?;
    }
    prepare(name, assignment);
    // Pods are no routers of the node's.
    for setting in ["accept_ra", "accept_redirects"] {
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{name}/{setting}"), "0");
    }
    let mut commands = conf.mtu.map(|mtu| format!("link set dev {name} mtu {mtu}\n")).unwrap_or_default();
    for (gateway, prefix) in assignment.gateways() {
        let probe = if gateway.is_ipv6() { " nodad" } else { "" };
        commands += &format!("address replace {gateway}/{prefix} dev {name}{probe}\n");
    }
    commands += &format!("link set dev {name} up\n");
    ip(&["-batch", "-"], &commands)?;
    if conf.asks_for_gateway() {
        forward(assignment)?;
    }
    if conf.ip_masq {
        run(("nft", "nftables"), &["-f", "-"], &masquerade(name, assignment))?;
    }
    by_name(name)?.ok_or_else(|| Fault::refused(name, "the interface is gone"))
}

fn remove(conf: &NetConf, name: &str) -> Result<(), Fault> {
    if conf.ip_masq {
        // Added first, as it may be gone.
        run(("nft", "nftables"), &["-f", "-"], &format!("add table inet {name}\ndelete table inet {name}\n"))?;
    }
    remove_here(&conf.switch, name)
}

/// Lets the node forward packets of the families of the addresses.
fn forward(assignment: &Assignment) -> Result<(), Fault> {
    for (gateway, _) in assignment.gateways() {
        let setting = if gateway.is_ipv6() { "ipv6/conf/all/forwarding" } else { "ipv4/ip_forward" };
        let path = format!("/proc/sys/net/{setting}");
        // Path: a file of the kernel's.
        if std::fs::read_to_string(&path).is_ok_and(|value| value.trim() == "1") {
            continue;
        }
        // Path: a file of the kernel's.
        std::fs::write(&path, "1").map_err(|e| Fault::refused(&path, e))?;
    }
    Ok(())
}

/// Commands for nft(8): packets of the pods to others get an address of the node, and so do those that a service's
/// address leads to a pod of the same network, which would answer past the node.
fn masquerade(table: &str, assignment: &Assignment) -> String {
    let mut commands = format!("add table inet {table}\n");
    for (family, kind, name, multicast) in
        [("ip", "ipv4_addr", "pods4", "224.0.0.0/4"), ("ip6", "ipv6_addr", "pods6", "ff00::/8")]
    {
        let own = format!("inet {table} {name}");
        commands += &format!("add set {own} {{ type {kind}; flags interval; }}\n");
        let networks = assignment.networks().filter(|(network, _)| network.is_ipv6() == (family == "ip6"));
        for (network, prefix) in networks {
            commands += &format!("add element {own} {{ {network}/{prefix} }}\n");
        }
        commands += &format!(
            "add chain {own} {{ type nat hook postrouting priority 100; }}\nflush chain {own}\n\
             add rule {own} {family} saddr @{name} {family} daddr != @{name} {family} daddr != {multicast} masquerade\n\
             add rule {own} {family} saddr @{name} ct status dnat masquerade\n"
        );
    }
    commands
}

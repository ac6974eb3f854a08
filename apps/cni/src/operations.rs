// SPDX-License-Identifier: BSD-2-Clause
//! The commands of the specification.

use serde_json::{Value, json};
use tool_common::host::link::Link;

use crate::config::{Environment, NetConf};
use crate::fault::{Code, Fault};
use crate::interface::{self, Pod};
use crate::ipam::{self, Assignment};
use crate::{gateway, state};

/// Makes a pod's interface. Returns the result.
pub(crate) fn add(conf: &NetConf, environment: &Environment, input: &[u8]) -> Result<Value, Fault> {
    let pod = pod(environment)?;
    check_daemon()?;
    state::remove_settings()?;
    let mut assignment = match conf.ipam.plugin.as_str() {
        "" => Assignment::of_addresses(&conf.runtime_config.ips)?,
        plugin => Assignment::of_result(&ipam::run(plugin, "ADD", input)?)?,
    };
    if conf.wants_gateway() {
        assignment.complete(conf.is_default_gateway);
    }
    let port = conf.port_of(&environment.container, &environment.interface);
    let made = make(conf, environment, &port, &pod, &assignment);
    let (link, node) = made.inspect_err(|_| {
        let _ = release_addresses(conf, input);
    })?;
    let described = |link: &Link| {
        let mut described = json!({ "name": link.name, "mac": interface::mac_of(link) });
        if conf.cni_version == "1.1.0" {
            described["mtu"] = json!(link.mtu);
        }
        described
    };
    let mut interfaces = vec![described(&link)];
    interfaces[0]["sandbox"] = json!(environment.netns);
    interfaces.extend(node.iter().map(described));
    let mut result = assignment.json(&conf.cni_version);
    result["cniVersion"] = json!(conf.cni_version);
    result["interfaces"] = json!(interfaces);
    if let Some(dns) = &conf.dns {
        result["dns"] = dns.clone();
    }
    Ok(result)
}

/// Makes a pod's interface and, if it is wanted, the node's. Nothing of the pod is left if that fails.
fn make(
    conf: &NetConf,
    environment: &Environment,
    port: &str,
    pod: &Pod,
    assignment: &Assignment,
) -> Result<(Link, Option<Link>), Fault> {
    let link = pod.make(conf, environment, port, assignment)?;
    let node = gateway::provide(conf, assignment);
    let node = node.inspect_err(|_| {
        let _ = pod.remove(&conf.switch, port);
        let _ = gateway::remove_if_unused(conf);
    })?;
    Ok((link, node))
}

/// Removes a pod's interface and releases its addresses, of which nothing has to be there.
pub(crate) fn delete(conf: &NetConf, environment: &Environment, input: &[u8]) -> Result<(), Fault> {
    release_addresses(conf, input)?;
    let port = conf.port_of(&environment.container, &environment.interface);
    let pod = environment.netns.as_deref().map(Pod::open).transpose()?.flatten();
    if !interface::daemon_runs() {
        state::remove_settings_later(&format!("{}:{port}", conf.switch))?;
        return interface::remove_left(pod, &port);
    }
    state::remove_settings()?;
    match pod {
        Some(pod) => pod.remove(&conf.switch, &port),
        None => interface::remove_anywhere(&conf.switch, &port),
    }?;
    gateway::remove_if_unused(conf)
}

/// Checks that a pod's interface is as ADD made it.
pub(crate) fn check(conf: &NetConf, environment: &Environment, input: &[u8]) -> Result<(), Fault> {
    let Some(result) = &conf.prev_result else {
        return Err(Fault::new(Code::Config, "prevResult is missing, which CHECK needs"));
    };
    check_daemon()?;
    if !conf.ipam.plugin.is_empty() {
        ipam::run(&conf.ipam.plugin, "CHECK", input)?;
    }
    let port = conf.port_of(&environment.container, &environment.interface);
    pod(environment)?.check(conf, (&environment.interface, &port), result)?;
    gateway::check(conf, result)
}

/// Removes the ports of attachments that the runtime does not know any more.
pub(crate) fn collect_garbage(conf: &NetConf, input: &[u8]) -> Result<(), Fault> {
    let valid = conf.valid_attachments.iter().map(|one| conf.port_of(&one.container, &one.interface));
    let valid: Vec<String> = valid.collect();
    if interface::daemon_runs() {
        state::remove_settings()?;
        interface::remove_others(conf, &valid)?;
        gateway::remove_if_unused(conf)?;
    }
    if !conf.ipam.plugin.is_empty() {
        ipam::run(&conf.ipam.plugin, "GC", input)?;
    }
    Ok(())
}

/// Checks that ADD can be served.
pub(crate) fn status(conf: &NetConf, input: &[u8]) -> Result<(), Fault> {
    check_daemon()?;
    if !conf.ipam.plugin.is_empty() {
        ipam::run(&conf.ipam.plugin, "STATUS", input)?;
    }
    Ok(())
}

fn pod(environment: &Environment) -> Result<Pod, Fault> {
    let path = environment.netns.as_deref().unwrap_or_else(|| "".as_ref());
    let missing = || Fault::new(Code::Environment, format!("CNI_NETNS={}: there is no such namespace", path.display()));
    Pod::open(path)?.ok_or_else(missing)
}

/// The plugin itself starts no daemon: it would be in the pod's namespace and cgroup.
fn check_daemon() -> Result<(), Fault> {
    if interface::daemon_runs() {
        return Ok(());
    }
    let text = "root's daemon of unetmap does not run: systemctl enable --now unetmapd.socket starts it";
    Err(Fault::new(Code::Unavailable, text))
}

fn release_addresses(conf: &NetConf, input: &[u8]) -> Result<(), Fault> {
    if conf.ipam.plugin.is_empty() {
        return Ok(());
    }
    ipam::run(&conf.ipam.plugin, "DEL", input).map(drop)
}

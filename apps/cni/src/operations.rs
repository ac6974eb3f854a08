// SPDX-License-Identifier: BSD-2-Clause
//! The commands of the specification.

use serde_json::{Value, json};

use crate::config::{Environment, NetConf};
use crate::fault::{Code, Fault};
use crate::interface::{self, Pod};
use crate::ipam::{self, Assignment};

/// Makes a pod's interface. Returns the result.
pub(crate) fn add(conf: &NetConf, environment: &Environment, input: &[u8]) -> Result<Value, Fault> {
    let pod = pod(environment)?;
    check_daemon()?;
    let assignment = match conf.ipam.plugin.as_str() {
        "" => Assignment::default(),
        plugin => Assignment::of_result(&ipam::run(plugin, "ADD", input)?)?,
    };
    let port = conf.port_of(&environment.container, &environment.interface);
    let made = pod.make(conf, (&environment.interface, &port), &assignment);
    let link = made.inspect_err(|_| {
        let _ = release_addresses(conf, input);
    })?;
    let mut described = json!({
        "name": environment.interface,
        "mac": interface::mac_of(&link),
        "sandbox": environment.netns,
    });
    if conf.cni_version == "1.1.0" {
        described["mtu"] = json!(link.mtu);
    }
    let mut result = assignment.json(&conf.cni_version);
    result["cniVersion"] = json!(conf.cni_version);
    result["interfaces"] = json!([described]);
    if let Some(dns) = &conf.dns {
        result["dns"] = dns.clone();
    }
    Ok(result)
}

/// Removes a pod's interface and releases its addresses, of which nothing has to be there.
pub(crate) fn delete(conf: &NetConf, environment: &Environment, input: &[u8]) -> Result<(), Fault> {
    release_addresses(conf, input)?;
    let port = conf.port_of(&environment.container, &environment.interface);
    let pod = environment.netns.as_deref().map(Pod::open).transpose()?.flatten();
    match pod {
        pod if !interface::daemon_runs() => interface::remove_left(pod, &port),
        Some(pod) => pod.remove(&conf.switch, &port),
        None => interface::remove_anywhere(&conf.switch, &port),
    }
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
    pod(environment)?.check(conf, (&environment.interface, &port), result)
}

/// Removes the ports of attachments that the runtime does not know any more.
pub(crate) fn collect_garbage(conf: &NetConf, input: &[u8]) -> Result<(), Fault> {
    let valid = conf.valid_attachments.iter().map(|one| conf.port_of(&one.container, &one.interface));
    let valid: Vec<String> = valid.collect();
    if interface::daemon_runs() {
        interface::remove_others(&conf.switch, &conf.port_prefix(), &valid)?;
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

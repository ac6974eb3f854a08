// SPDX-License-Identifier: BSD-2-Clause
//! The settings that the daemon has now.

use serde_json::Value;
use unetmap_core::control::nic::{self, NicAction, NicRequest};
use unetmap_core::control::vale::{self, ValeAction, ValeRequest};

use super::{INTERFACE_KEYS, Setting};
use crate::ls::{members, parse_reply};
use crate::vale::PORT_KEYS;

/// Reads all settings, in order; of interfaces those of `named`, and of all in this network namespace. `None` if no
/// daemon runs.
pub(super) fn read_all(named: &[String]) -> Result<Option<Vec<Setting>>, String> {
    // Where they cannot be listed, those that have ports are known all the same.
    read(&named.iter().cloned().chain(interfaces_here().unwrap_or_default()).collect::<Vec<_>>())
}

/// The names of the interfaces of this network namespace, if they can be listed.
fn interfaces_here() -> Option<Vec<String>> {
    Some(unetmap_sys::link::all().ok()?.into_iter().map(|link| link.name).collect())
}

/// Reads all settings, in order; of interfaces those of `named`, and of those that have ports. `None` if no daemon
/// runs. Persistent ports and attached interfaces may be in other network namespaces than this, in which a file is
/// applied: these are left out.
pub(super) fn read(named: &[String]) -> Result<Option<Vec<Setting>>, String> {
    let here = interfaces_here();
    let is_here = |setting: &Setting| match setting {
        Setting::Persistent { name, .. } | Setting::Attach { interface: name, .. } => {
            here.as_ref().is_none_or(|here| here.contains(name))
        }
        _ => true,
    };
    let mut settings = Vec::new();
    let mut interfaces = named.to_vec();
    let snapshots = unetmap::snapshots().map_err(|e| e.to_string())?;
    if snapshots.is_empty() {
        return Ok(None);
    }
    for snapshot in snapshots {
        let all = parse_reply("config", &snapshot)?;
        settings.extend(members(&all["persistent"]).flat_map(persistent));
        let open = members(&all["ports"]).filter(|port| ["nic", "mediated"].iter().any(|kind| port["kind"] == *kind));
        interfaces
            .extend(open.filter_map(|port| Some(port["name"].as_str()?.trim_start_matches("netmap:").to_owned())));
    }
    // The daemon of this user's switches, which may be another one, and not run.
    let ask = |name: &str, action| {
        let reply = vale::send_request(&ValeRequest { name: name.into(), action }).map_err(|e| e.to_string())?;
        parse_reply("config", reply.as_deref().unwrap_or("null"))
    };
    for switch in members(&ask("", ValeAction::List)?) {
        let Some(name) = switch["switch"].as_str() else { continue };
        settings.extend(of_switch(name, &ask(name, ValeAction::Show)?));
    }
    interfaces.sort();
    interfaces.dedup();
    for name in interfaces {
        let request = NicRequest { interface: name.clone(), action: NicAction::Show };
        // An interface that does not exist has no settings.
        if let Ok(Some(reply)) = nic::send_request(&request) {
            settings.extend(of_interface(&name, &parse_reply("config", &reply)?));
        }
    }
    settings.retain(is_here);
    settings.sort();
    settings.dedup();
    Ok(Some(settings))
}

fn persistent(port: &Value) -> Vec<Setting> {
    let Some(name) = port["name"].as_str() else { return Vec::new() };
    let number = |key: &str| u32::try_from(port[key].as_u64().unwrap_or(0)).unwrap_or(0);
    let config = ["tx_slots", "rx_slots", "tx_rings", "rx_rings"].map(number);
    let mut settings = vec![Setting::Persistent { name: name.into(), config }];
    if let Some((switch, interface)) = port["attached"].as_str().and_then(|at| at.split_once(':')) {
        settings.push(Setting::Attach { switch: switch.into(), interface: interface.into(), host: false });
    }
    settings
}

fn of_switch(switch: &str, details: &Value) -> Vec<Setting> {
    let mut settings = Vec::new();
    if let Some(seconds @ 1..) = details["age"].as_u64() {
        settings.push(Setting::Age { switch: switch.into(), seconds: seconds.to_string() });
    }
    let names: Vec<&str> = members(&details["port"]).filter_map(|port| port["name"].as_str()).collect();
    for port in members(&details["port"]) {
        let Some(name) = port["name"].as_str() else { continue };
        let interface = name.split_once(':').map_or("", |(_, interface)| interface);
        if port["open"] == true && port["kind"] == "interface" && !name.ends_with('^') {
            let host = names.contains(&&*format!("{name}^"));
            settings.push(Setting::Attach { switch: switch.into(), interface: interface.into(), host });
        }
        let set = PORT_KEYS.iter().filter_map(|key| Some((key.name, (key.value)(port)?)));
        settings.extend(set.map(|(key, value)| Setting::Port { port: name.into(), key, value }));
    }
    settings
}

fn of_interface(name: &str, reply: &Value) -> Vec<Setting> {
    let set = INTERFACE_KEYS.iter().filter_map(|key| Some((key.name, (key.value)(reply)?)));
    set.map(|(key, value)| Setting::Interface { name: name.into(), key, value }).collect()
}

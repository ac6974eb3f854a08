// SPDX-License-Identifier: BSD-2-Clause
//! The output of `unetmap lab`.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tool_common::table::align;

use crate::model::{Lab, Link};
use crate::state::{Folder, State};

/// Says what was built.
pub(crate) fn built(lab: &Lab, folder: &Folder, changed: bool, as_json: bool) -> String {
    if as_json {
        return format!("{}\n", object(lab, folder, changed));
    }
    let mut rows = vec![["namespace", "interface", "addresses", "link to"].map(str::to_owned).to_vec()];
    for host in 0..lab.hosts.len() {
        for (link, end, interface, addresses) in lab.interfaces(host) {
            let to = lab.end_name(&link.ends[1 - end]);
            let to = [vec![to], options(link)].concat().join(", ");
            rows.push(vec![lab.namespace(host), interface.into(), addresses.join(" "), to]);
        }
    }
    let table = align(&rows, rows[0].len());
    let done = if changed { "is up" } else { "was up" };
    format!("{} {done} (ip netns exec {} PROGRAM)\n\n{table}", lab.name, lab.namespace(0))
}

/// The options of a link, as text.
pub(crate) fn options(link: &Link) -> Vec<String> {
    let text = |(name, value): &(String, Option<String>)| match value {
        Some(value) => format!("{name} {value}"),
        None => name.clone(),
    };
    link.emulation.iter().map(text).collect()
}

fn object(lab: &Lab, folder: &Folder, changed: bool) -> Value {
    let interface = |(link, end, name, addresses): (&Link, usize, &str, &[String])| json!({ "name": name, "addresses": addresses, "link": link.index, "peer": lab.end_name(&link.ends[1 - end]) });
    let hosts = (0..lab.hosts.len()).map(|host| {
        let interfaces: Vec<Value> = lab.interfaces(host).map(interface).collect();
        json!({ "name": lab.hosts[host].name, "namespace": lab.namespace(host), "interfaces": interfaces })
    });
    let switches = lab.switches.iter().map(|switch| json!({ "name": switch.name, "switch": switch.vale() }));
    let links = lab.links.iter().map(|link| {
        let ends = [0, 1].map(|end| lab.end_name(&link.ends[end]));
        let emulation: BTreeMap<_, _> = link.emulation.iter().cloned().collect();
        json!({ "ends": ends, "emulation": emulation })
    });
    let captures = lab.captures.iter().map(|capture| {
        let end = &lab.links[capture.link].ends[capture.end];
        json!({ "at": lab.end_name(end), "file": capture.file.to_string_lossy() })
    });
    json!({
        "lab": lab.name,
        "changed": changed,
        "hosts": hosts.collect::<Vec<_>>(),
        "switches": switches.collect::<Vec<_>>(),
        "links": links.collect::<Vec<_>>(),
        "captures": captures.collect::<Vec<_>>(),
        "socket": lab.needs_wire().then(|| folder.socket().to_string_lossy().into_owned()),
    })
}

/// Says what was removed.
pub(crate) fn removed(name: &str, was_there: bool, as_json: bool) -> String {
    match as_json {
        true => format!("{}\n", json!({ "lab": name, "removed": was_there })),
        false => format!("{name} {}\n", if was_there { "is removed" } else { "was not up" }),
    }
}

/// Lists labs.
pub(crate) fn list(labs: &BTreeMap<String, State>, as_json: bool) -> String {
    if as_json {
        let of = |(name, state): (&String, &State)| {
            let namespaces: Vec<&String> = state.namespaces.keys().collect();
            json!({ "lab": name, "complete": state.complete, "file": state.file.to_string_lossy(), "namespaces": namespaces })
        };
        return format!("{}\n", Value::from(labs.iter().map(of).collect::<Vec<_>>()));
    }
    let mut rows = vec![["lab", "state", "hosts", "file"].map(str::to_owned).to_vec()];
    rows.extend(labs.iter().map(|(name, state)| {
        let is = if state.complete { "up" } else { "unfinished" };
        let file = state.file.to_string_lossy().into_owned();
        vec![name.clone(), is.into(), state.namespaces.len().to_string(), file]
    }));
    align(&rows, rows[0].len())
}

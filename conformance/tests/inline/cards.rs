// SPDX-License-Identifier: BSD-2-Clause
//! Network cards in place of veth pairs: two cables, whose ends a place takes into its namespaces. A namespace that
//! ends gives its cards back.

use std::process::Command;

use lab::Ns;
use serde_json::Value;

use crate::place::{run, wait_for};

/// The ends of two cables, by their Ethernet addresses.
#[derive(Clone, Debug)]
pub(crate) struct Cards {
    /// The ends of the first: of `c0` and of `m0`; and of the second: of `s0` and of `m1`.
    cables: [[String; 2]; 2],
}

impl Cards {
    /// Reads four addresses with commas between them, in the order of the wire: `c0`, `m0`, `m1`, `s0`.
    pub(crate) fn parse(text: &str) -> Result<Cards, String> {
        let words: Vec<String> = text.split(',').map(str::to_owned).collect();
        let [c0, m0, m1, s0] = <[String; 4]>::try_from(words).map_err(|_| format!("{text}: four addresses"))?;
        Ok(Cards { cables: [[c0, m0], [s0, m1]] })
    }

    /// The address of an interface of a host, or of the program's.
    pub(crate) fn mac(&self, interface: &str) -> &str {
        &self.cables[usize::from(matches!(interface, "s0" | "m1"))][usize::from(interface.starts_with('m'))]
    }

    /// Takes both ends of a cable.
    pub(crate) fn connect(&self, ends: [(&Ns, &str); 2]) -> Result<(), String> {
        for (ns, name) in ends {
            self.take(ns, name)?;
        }
        let is_up = |(ns, name): (&Ns, &str)| {
            let links = ns.ip(&["-j", "link", "show", "dev", name]).unwrap_or_default();
            links.contains("\"LOWER_UP\"") && links.contains("\"operstate\":\"UP\"")
        };
        wait_for("both ends have a carrier", || ends.into_iter().all(is_up))
    }

    fn take(&self, ns: &Ns, name: &str) -> Result<(), String> {
        let mac = self.mac(name);
        let mut found = String::new();
        wait_for(&format!("{mac}, which is {name}, is in the namespace of this process"), || {
            found = interface_of(mac).unwrap_or_default();
            !found.is_empty()
        })?;
        run(Command::new("ip").args(["link", "set", &found, "down"]))?;
        run(Command::new("ip").args(["link", "set", &found, "netns", ns.name(), "name", name]))?;
        // Frames are counted as they were on the wire, with their checksums.
        for feature in ["tx", "tso", "gso", "gro"] {
            // A driver may have it fixed.
            let _ = ns.tool("ethtool", &["-K", name, feature, "off"]);
        }
        ns.ip(&["link", "set", name, "promisc", if name.starts_with('m') { "on" } else { "off" }, "up"]).map(drop)
    }
}

/// The name of the interface with this address.
fn interface_of(mac: &str) -> Option<String> {
    let links: Value = serde_json::from_str(&run(Command::new("ip").args(["-j", "link"])).ok()?).ok()?;
    let link = links.as_array()?.iter().find(|link| link["address"] == mac)?;
    Some(link["ifname"].as_str()?.to_owned())
}

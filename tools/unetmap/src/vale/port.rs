// SPDX-License-Identifier: BSD-2-Clause
//! The settings of a switch's port: their commands, and their keys in the configuration's file.
//!
//! A new setting adds a row to [`PORT_KEYS`] and a variant to [`Port`]; the compiler asks for the rest.

use std::ops::RangeInclusive;

use clap::{Subcommand, ValueEnum};
use serde_json::Value;
use tool_common::served::{Kind, socket_of};
use unetmap_core::control::vale::{Direction, MAX_LABEL, RateLimit, VLAN_IDS, ValeAction, VlanMode, VlanSet, is_label};
use unetmap_quantity::{Rate, whole_packet_rate, within};

use crate::config::{Key, text};
use crate::ls::cell;
use crate::nic::compile;

/// Most packets, or bits, per second.
const MAX_RATE: u64 = 1_000_000_000_000_000;

/// Keys of a port of which it has one at a time.
pub(crate) const VLAN_KEYS: [&str; 2] = ["access", "trunk"];
pub(crate) const SERVED_KEYS: [&str; 3] = ["vhost-user", "vhost-user-client", "memif"];

/// The settings, in the order in which they are shown.
pub(crate) const PORT_KEYS: [Key; 11] = [
    Key { name: "access", words: "access", value: |port| text(&port["rules"]["access"]) },
    Key { name: "trunk", words: "trunk", value: |port| text(&port["rules"]["trunk"]) },
    Key { name: "rate-in", words: "rate in", value: |port| rate(&port["rules"]["limit_in"]) },
    Key { name: "rate-out", words: "rate out", value: |port| rate(&port["rules"]["limit_out"]) },
    Key { name: "storm", words: "storm", value: |port| port["rules"]["storm"].as_u64().map(unscaled) },
    Key { name: "filter-in", words: "filter in", value: |port| text(&port["rules"]["filter_in"]["expression"]) },
    Key { name: "filter-out", words: "filter out", value: |port| text(&port["rules"]["filter_out"]["expression"]) },
    Key { name: "label", words: "label", value: |port| text(&port["rules"]["label"]) },
    Key { name: "vhost-user", words: "--vhost-user", value: |port| socket_of(port, Kind::VhostUser) },
    Key {
        name: "vhost-user-client",
        words: "--vhost-user-client",
        value: |port| socket_of(port, Kind::VhostUserClient),
    },
    Key { name: "memif", words: "--memif", value: |port| socket_of(port, Kind::Memif) },
];

/// Returns the keys that are set by [`Port`], not by the options of a process that serves the port.
fn own_keys() -> impl Iterator<Item = &'static Key> {
    PORT_KEYS.iter().filter(|key| !SERVED_KEYS.contains(&key.name))
}

/// Formats the settings of a port of the daemon's reply; `-`: there are none.
pub(super) fn settings(port: &Value) -> String {
    let set = own_keys().filter_map(|key| Some(format!("{} {}", key.words, cell(&Value::String((key.value)(port)?)))));
    let parts: Vec<String> = set.collect();
    if parts.is_empty() { "-".into() } else { parts.join("; ") }
}

#[derive(Debug, Subcommand)]
pub(super) enum Port {
    /// Make the port an access port of one VLAN: its frames have no tag
    Access {
        /// 1 to 4094; off: unrestricted, frames keep their tags
        #[arg(value_name = "VLAN|off", value_parser = access)]
        vlan: OrOff<u16>,
    },
    /// Make the port a trunk port of these VLANs: its frames have the VLAN's tag
    Trunk {
        /// For instance 10,20-30; off: unrestricted, frames keep their tags
        #[arg(value_name = "VLANS|off", value_parser = trunk)]
        vlans: OrOff<VlanSet>,
    },
    /// Limit the rate at which the port sends (in) or receives (out)
    Rate {
        direction: DirectionArg,

        /// Packets per second, bits per second, or both: 10kpps 100Mbit; off: no limit
        #[arg(value_name = "RATE|off", required = true, num_args = 1..=2)]
        rates: Vec<String>,
    },
    /// Limit the rate of flooded packets that the port sends: broadcast, multicast, and to unknown addresses
    Storm {
        /// Packets per second: 1000, 10kpps; off: no limit
        #[arg(value_name = "PACKETS|off", value_parser = storm, allow_negative_numbers = true)]
        packets: u64,
    },
    /// Set the filter for frames that the port sends (in) or receives (out)
    Filter {
        direction: DirectionArg,

        /// A tcpdump expression (pcap-filter(7)); off: all frames pass
        #[arg(required = true, value_name = "EXPRESSION|off")]
        expression: Vec<String>,
    },
    /// Set what ls, top, events and metrics call the port besides its name, such as the pod that has it
    Label {
        /// Visible characters of ASCII without quotes: default/web; off: it has none
        #[arg(value_name = "LABEL|off", value_parser = label)]
        label: OrOff<String>,
    },
    /// Remove all settings of the port; a process that serves it goes on (--vhost-user off ends it)
    Off,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum DirectionArg {
    In,
    Out,
}

impl From<DirectionArg> for Direction {
    fn from(direction: DirectionArg) -> Direction {
        match direction {
            DirectionArg::In => Direction::In,
            DirectionArg::Out => Direction::Out,
        }
    }
}

/// A setting, or `off`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OrOff<T>(Option<T>);

impl Port {
    /// Returns the keys of the settings that it changes.
    pub(super) fn keys(&self) -> Vec<&'static str> {
        match self {
            Port::Access { .. } | Port::Trunk { .. } => VLAN_KEYS.to_vec(),
            Port::Rate { direction: DirectionArg::In, .. } => vec!["rate-in"],
            Port::Rate { direction: DirectionArg::Out, .. } => vec!["rate-out"],
            Port::Storm { .. } => vec!["storm"],
            Port::Filter { direction: DirectionArg::In, .. } => vec!["filter-in"],
            Port::Filter { direction: DirectionArg::Out, .. } => vec!["filter-out"],
            Port::Label { .. } => vec!["label"],
            Port::Off => own_keys().map(|key| key.name).collect(),
        }
    }

    /// Returns the value in the form of [`PORT_KEYS`], with the checks of the command.
    pub(super) fn value(&self) -> Result<String, String> {
        Ok(match self {
            Port::Access { vlan } => vlan.0.map(|vlan| vlan.to_string()).unwrap_or_default(),
            Port::Trunk { vlans } => vlans.0.as_ref().map(VlanSet::to_string).unwrap_or_default(),
            Port::Rate { rates, .. } => {
                let RateLimit { packets, bits } = limit(rates)?;
                rate_text(packets, bits)
            }
            Port::Storm { packets } => unscaled(*packets),
            Port::Filter { expression, .. } => compile(expression.join(" ").trim())?.expression,
            Port::Label { label } => label.0.clone().unwrap_or_default(),
            Port::Off => String::new(),
        })
    }

    /// Returns the request's action.
    pub(super) fn action(&self) -> Result<ValeAction, String> {
        Ok(match self {
            Port::Access { vlan } => ValeAction::Vlan(vlan.0.map(VlanMode::Access)),
            Port::Trunk { vlans } => ValeAction::Vlan(vlans.0.clone().map(VlanMode::Trunk)),
            Port::Rate { direction, rates } => ValeAction::Limit((*direction).into(), limit(rates)?),
            Port::Storm { packets } => ValeAction::Storm(*packets),
            Port::Filter { direction, expression } => {
                let text = expression.join(" ");
                let filter = if text.trim() == "off" { None } else { Some(compile(text.trim())?) };
                ValeAction::Filter((*direction).into(), filter)
            }
            Port::Label { label } => ValeAction::Label(label.0.clone()),
            Port::Off => ValeAction::Clear,
        })
    }
}

fn vlan(text: &str) -> Option<u16> {
    text.parse().ok().filter(|vlan| VLAN_IDS.contains(vlan))
}

fn access(text: &str) -> Result<OrOff<u16>, String> {
    match vlan(text) {
        None if text == "off" => Ok(OrOff(None)),
        None => Err("give a VLAN from 1 to 4094, or off".into()),
        found => Ok(OrOff(found)),
    }
}

fn trunk(text: &str) -> Result<OrOff<VlanSet>, String> {
    if text == "off" {
        return Ok(OrOff(None));
    }
    let range = |part: &str| -> Option<RangeInclusive<u16>> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let range = vlan(first)?..=vlan(last)?;
        (!range.is_empty()).then_some(range)
    };
    let ranges: Option<Vec<_>> = text.split(',').map(range).collect();
    match ranges {
        Some(ranges) => Ok(OrOff(Some(VlanSet::new(ranges)))),
        None => Err("give VLANs as in 10,20-30, each from 1 to 4094, or off".into()),
    }
}

fn label(text: &str) -> Result<OrOff<String>, String> {
    match text {
        "off" => Ok(OrOff(None)),
        text if is_label(text) => Ok(OrOff(Some(text.into()))),
        _ => Err(format!("give 1 to {MAX_LABEL} visible characters of ASCII, without quotes and backslashes, or off")),
    }
}

fn storm(text: &str) -> Result<u64, String> {
    if text == "off" {
        return Ok(0);
    }
    within(whole_packet_rate, 1..=MAX_RATE)(text).map_err(|why| format!("{why}; or off"))
}

/// Parses `10kpps 100Mbit`, in either order, or one of them, or `off`.
fn limit(rates: &[String]) -> Result<RateLimit, String> {
    let mut limit = RateLimit::default();
    if rates == ["off"] {
        return Ok(limit);
    }
    for rate in rates {
        let wrong = |why: &str| format!("`{rate}` is not a rate: {why}; or off");
        let (field, number) = match unetmap_quantity::rate(rate).map_err(|why| wrong(&why))? {
            Rate::Packets(number) => (&mut limit.packets, number),
            Rate::Bits(number) => (&mut limit.bits, number),
        };
        if *field > 0 {
            return Err(format!("`{rate}`: give at most one limit of packets and one of bits"));
        }
        let number = number.whole().filter(|number| (1..=MAX_RATE).contains(number));
        *field = number.ok_or_else(|| wrong(&format!("give a whole number from 1 to {MAX_RATE}")))?;
    }
    Ok(limit)
}

/// Formats a rate limit of the daemon's reply in the syntax of [`limit`]; `None`: there is none.
fn rate(limit: &Value) -> Option<String> {
    let [packets, bits] = ["packets", "bits"].map(|of| limit[of].as_u64().unwrap_or(0));
    Some(rate_text(packets, bits)).filter(|text| !text.is_empty())
}

fn rate_text(packets: u64, bits: u64) -> String {
    let limits = [(packets, "pps"), (bits, "bit")].into_iter().filter(|(n, _)| *n > 0);
    limits.map(|(n, unit)| format!("{}{unit}", unscaled(n))).collect::<Vec<_>>().join(" ")
}

/// Formats a number in the syntax of [`unetmap_quantity::count`].
fn unscaled(number: u64) -> String {
    let scale =
        [(1_000_000_000, "G"), (1_000_000, "M"), (1000, "k")].into_iter().find(|(n, _)| number.is_multiple_of(*n));
    match scale {
        Some((n, name)) if number > 0 => format!("{}{name}", number / n),
        _ => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_parsed_or_refused() {
        assert_eq!(access("10"), Ok(OrOff(Some(10))));
        assert_eq!(trunk("10,20-30"), Ok(OrOff(Some(VlanSet::new([10..=10, 20..=30])))));
        assert_eq!((storm("2.5k"), storm("2.5Kpps"), storm("off")), (Ok(2500), Ok(2500), Ok(0)));
        assert_eq!((label("default/web"), label("off")), (Ok(OrOff(Some("default/web".into()))), Ok(OrOff(None))));
        assert!(["", "a b", "\u{e9}", "\""].iter().all(|wrong| label(wrong).is_err()));
        let limit = |text: &str| limit(&text.split(' ').map(String::from).collect::<Vec<_>>());
        assert_eq!(limit("10kpps 1.5Gbit"), Ok(RateLimit { packets: 10_000, bits: 1_500_000_000 }));
        assert_eq!(limit("off"), Ok(RateLimit::default()));
        for wrong in ["0", "4095", "10,", "30-20", "1-", "x", "", "10, 20"] {
            assert!(access(wrong).is_err() && trunk(wrong).is_err(), "{wrong}");
        }
        for wrong in ["10", "100M", "pps", "0bit", "1pps 2pps", "1bit off"] {
            assert!(limit(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn formatted_numbers_parse_to_the_same_value() {
        for number in [1, 999, 1000, 1500, 10_000, 1_000_001, 40_000_000_000] {
            assert_eq!(unetmap_quantity::count(&unscaled(number)), Ok(number));
        }
    }
}

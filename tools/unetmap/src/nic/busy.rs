// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap nic IF busy-poll`: sets busy polling of an interface.

use std::fs;
use std::path::Path;

use serde_json::Value;
use tool_common::Failure;
use unetmap_core::control::nic::NicAction;
use unetmap_quantity::microseconds;
use unetmap_sys::link::Link;
use unetmap_sys::xsk::BusyPoll;

/// Attributes of an interface in sysfs that defer interrupts between two busy polls.
const NAPI: [&str; 2] = ["napi_defer_hard_irqs", "gro_flush_timeout"];

/// Sets busy polling for ports opened from now on: `off`, or microseconds and optionally packets.
pub(crate) fn run(interface: &str, words: &[String], json: bool) -> Result<String, Failure> {
    super::send(interface, action(words), json)
}

pub(crate) fn action(words: &[String]) -> Result<NicAction, String> {
    let not = |word: &str, what: &str| {
        format!("`{word}` is not a number of {what}; use `busy-poll USEC [BUDGET]`, or `busy-poll off`")
    };
    let usec = |word: &str| {
        let time = microseconds(word).ok().filter(|time| time.subsec_nanos() % 1000 == 0);
        time.and_then(|time| u32::try_from(time.as_micros()).ok()).ok_or_else(|| not(word, "microseconds"))
    };
    let (usec, budget) = match words {
        [off] if off == "off" => return Ok(NicAction::NoBusyPoll),
        [time] => (usec(time)?, *BusyPoll::BUDGET.end()),
        [time, budget] => (usec(time)?, budget.parse().map_err(|_| not(budget, "packets"))?),
        _ => return Err("use `busy-poll USEC [BUDGET]`, or `busy-poll off`".into()),
    };
    BusyPoll::new(usec, budget).map(|_| NicAction::BusyPoll { usec, budget })
}

/// Formats the interface's interrupt deferral, without which busy polling is of little use. Returns an empty string if
/// busy polling is not set, or if sysfs shows another network namespace.
pub(super) fn napi(link: &Link, reply: &str) -> String {
    let all: Value = serde_json::from_str(reply).unwrap_or_default();
    match all["busy_poll"] {
        Value::Null => String::new(),
        _ => attributes(&Path::new("/sys/class/net").join(&link.name), link.index),
    }
}

fn attributes(folder: &Path, index: u32) -> String {
    // Path: files of the kernel's.
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    if read("ifindex") != Some(index.into()) {
        return String::new();
    }
    let values: Vec<String> = NAPI.iter().filter_map(|name| Some(format!("{name} {}", read(name)?))).collect();
    if values.is_empty() { String::new() } else { format!("\ninterface: {}\n", values.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_parsed_or_refused() {
        let read = |text: &str| action(&text.split(' ').map(String::from).collect::<Vec<_>>());
        assert_eq!(read("off"), Ok(NicAction::NoBusyPoll));
        assert_eq!(read("50"), Ok(NicAction::BusyPoll { usec: 50, budget: 64 }));
        assert_eq!(read("50us"), read("0.05ms 64"));
        assert_eq!(read("50 8"), Ok(NicAction::BusyPoll { usec: 50, budget: 8 }));
        for bad in ["on", "-1", "50 x", "off 8", "4294967296", "1 2 3"] {
            assert!(read(bad).unwrap_err().contains("busy-poll off"), "{bad}");
        }
        for bad in ["0", "10s", "1001", "50 0", "50 65"] {
            assert!(read(bad).unwrap_err().contains("give 1 to 1000 us, and a budget of 1 to 64 packets"), "{bad}");
        }
    }

    #[test]
    fn another_interface_of_the_same_name_is_ignored() {
        let lo = Path::new("/sys/class/net/lo");
        if !lo.join(NAPI[0]).exists() {
            return eprintln!("skipped: sysfs does not have these attributes");
        }
        assert!(attributes(lo, 1).contains("napi_defer_hard_irqs "));
        assert_eq!(attributes(lo, 9), "");
    }
}

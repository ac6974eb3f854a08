//! `unetmap nic IF busy-poll`.

use std::fs;
use std::path::Path;

use serde_json::Value;
use unetmap::nic::Wish;
use unetmap_sys::link::Link;
use unetmap_sys::xsk::BusyPoll;

/// How interrupts stay away between two looks; attributes of an interface in sysfs.
const NAPI: [&str; 2] = ["napi_defer_hard_irqs", "gro_flush_timeout"];

/// Sets how ports opened from now on poll: `off`, or microseconds and, perhaps, packets.
pub(crate) fn run(interface: &str, words: &[String], json: bool) -> Result<u8, String> {
    super::carry_out(interface, wish(words), json)
}

fn wish(words: &[String]) -> Result<Wish, String> {
    let number = |word: &str, what: &str| {
        let not = || format!("`{word}` is no number of {what}; it is `busy-poll USEC [BUDGET]`, or `busy-poll off`");
        word.parse::<u32>().map_err(|_| not())
    };
    match words {
        [off] if off == "off" => Ok(Wish::NoBusyPoll),
        [usec] => Ok(Wish::BusyPoll { usec: number(usec, "microseconds")?, budget: *BusyPoll::BUDGET.end() }),
        [usec, budget] => {
            Ok(Wish::BusyPoll { usec: number(usec, "microseconds")?, budget: number(budget, "packets")? })
        }
        _ => Err("it is `busy-poll USEC [BUDGET]`, or `busy-poll off`".into()),
    }
}

/// What else makes busy polling useful, where it is set, and sysfs shows this network namespace.
pub(super) fn napi(link: &Link, answer: &str) -> String {
    let all: Value = serde_json::from_str(answer).unwrap_or_default();
    match all["busy_poll"] {
        Value::Null => String::new(),
        _ => attributes(&Path::new("/sys/class/net").join(&link.name), link.index),
    }
}

fn attributes(folder: &Path, index: u32) -> String {
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    if read("ifindex") != Some(index.into()) {
        return String::new();
    }
    let told: Vec<String> = NAPI.iter().filter_map(|name| Some(format!("{name} {}", read(name)?))).collect();
    if told.is_empty() { String::new() } else { format!("\nof the interface: {}\n", told.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read() {
        let read = |text: &str| wish(&text.split(' ').map(String::from).collect::<Vec<_>>());
        assert_eq!(read("off"), Ok(Wish::NoBusyPoll));
        assert_eq!(read("50"), Ok(Wish::BusyPoll { usec: 50, budget: 64 }));
        assert_eq!(read("50 8"), Ok(Wish::BusyPoll { usec: 50, budget: 8 }));
        for bad in ["on", "-1", "50 x", "off 8", "4294967296", "1 2 3"] {
            assert!(read(bad).unwrap_err().contains("busy-poll off"), "{bad}");
        }
    }

    #[test]
    fn another_interface_of_the_name_is_not_shown() {
        let lo = Path::new("/sys/class/net/lo");
        if !lo.join(NAPI[0]).exists() {
            return eprintln!("skipped: no sysfs with these attributes here");
        }
        assert!(attributes(lo, 1).contains("napi_defer_hard_irqs "));
        assert_eq!(attributes(lo, 9), "");
    }
}

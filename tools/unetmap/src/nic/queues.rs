// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap nic IF rss` and `steer`: select the receive queue of a frame. They configure the driver without the daemon,
//! so the settings do not depend on open ports.

use std::io;

use serde_json::json;
use tool_common::{Failure, rule};
use unetmap_sys::link;
use unetmap_sys::link::ntuple;

/// A hash key that repeats these 16 bits gives both directions of a connection the same hash: swapping the addresses,
/// or the ports, does not change the hash.
const SYMMETRIC: [u8; 2] = [0x6d, 0x5a];

/// A change of the RSS configuration.
#[derive(Debug, PartialEq, Eq)]
enum Change {
    Symmetric,
    Key(Vec<u8>),
    /// Distributes over these queues, round robin.
    Queues(Vec<u32>),
}

impl Change {
    fn parse(words: &[String]) -> Result<Change, String> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words[..] {
            ["symmetric"] => Ok(Change::Symmetric),
            ["key", hex] => {
                let digits: String = hex.chars().filter(|c| *c != ':').collect();
                let byte = |i: usize| u8::from_str_radix(digits.get(i..i + 2)?, 16).ok();
                let key: Option<Vec<u8>> = (0..digits.len()).step_by(2).map(byte).collect();
                key.map(Change::Key).ok_or_else(|| format!("`{hex}` is not a key: give bytes such as 6d:5a:56"))
            }
            ["equal", n] => match n.parse() {
                Ok(n) if (1..=4096).contains(&n) => Ok(Change::Queues((0..n).collect())),
                _ => Err(format!("`{n}` is not a number of queues from 1 to 4096")),
            },
            ["queues", list] => {
                let queues: Result<Vec<u32>, _> = list.split(',').map(str::parse).collect();
                queues.map(Change::Queues).map_err(|_| format!("`{list}` is not a list of queues such as 0,1,3"))
            }
            _ => Err(format!("`rss {}`: give symmetric, equal N, queues LIST, or key BYTES", words.join(" "))),
        }
    }
}

/// Changes the RSS configuration if `words` are given, then prints it.
pub(crate) fn rss(interface: &str, words: &[String], json: bool) -> Result<String, Failure> {
    let failed = |why: &str| format!("nic {interface}: {why}");
    let change = match words {
        [] => None,
        words => Some(Change::parse(words).map_err(|why| Failure::Usage(failed(&why)))?),
    };
    let name = name_of(interface)?;
    let read = || link::rss(&name).map_err(|e| failed(&format!("its RSS configuration cannot be read: {e}")));
    let Some(mut rss) = read()? else {
        return Err(failed(&format!(
            "its driver{} reports no RSS, so the distribution over its queues can be neither shown nor set; lb(8) \
             distributes frames over pipes by flow",
            driver_of(&name)
        ))
        .into());
    };
    if let Some(change) = change {
        let set = match &change {
            Change::Queues(queues) => {
                let table: Vec<u32> = queues.iter().copied().cycle().take(rss.table.len()).collect();
                link::set_rss(&name, Some(&table), None)
            }
            Change::Key(key) if key.len() != rss.key.len() => {
                let (given, needed) = (key.len(), rss.key.len());
                return Err(failed(&format!("the key has {given} bytes; its driver needs {needed}")).into());
            }
            Change::Key(key) => link::set_rss(&name, None, Some(key)),
            Change::Symmetric if rss.key.is_empty() => Err(io::Error::from_raw_os_error(unetmap::errno::EOPNOTSUPP)),
            Change::Symmetric => {
                let key: Vec<u8> = SYMMETRIC.into_iter().cycle().take(rss.key.len()).collect();
                link::set_rss(&name, None, Some(&key))
            }
        };
        set.map_err(|e| failed(&refusal(&e, &name, "does not support this RSS configuration")))?;
        rss = read()?.unwrap_or(rss);
    }
    let symmetric = is_symmetric(&rss.key);
    let key = rss.key.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":");
    let text = if json {
        format!("{}\n", json!({"interface": name, "table": rss.table, "key": key, "symmetric": symmetric}))
    } else {
        let shares = shares(&rss.table);
        let symmetric = match symmetric {
            true => "both directions of a flow go to one queue",
            false => "the directions of a flow may go to different queues",
        };
        format!("{name}: {} entries: {shares}\nkey {key} ({symmetric})\n", rss.table.len())
    };
    Ok(text)
}

/// Formats the share of the table that each queue has.
fn shares(table: &[u32]) -> String {
    let mut queues = table.to_vec();
    queues.sort_unstable();
    queues.dedup();
    let share = |queue: &u32| {
        let n = table.iter().filter(|entry| *entry == queue).count();
        format!("queue {queue} {:.1} %", 100.0 * n as f64 / table.len() as f64)
    };
    queues.iter().map(share).collect::<Vec<_>>().join(", ")
}

fn is_symmetric(key: &[u8]) -> bool {
    key.len() > 2 && key.iter().skip(2).zip(key).all(|(a, b)| a == b)
}

/// Changes the steering rules: `RULE QUEUE` adds a rule, `off PLACE` removes one, no words list their places.
pub(crate) fn steer(interface: &str, words: &[String], json: bool) -> Result<String, Failure> {
    let failed = |why: &str| format!("nic {interface}: {why}");
    let usage = |why: &str| Failure::Usage(failed(why));
    let name = name_of(interface)?;
    let cannot = |e: io::Error| {
        let why = refusal(&e, &name, "does not support steering rules");
        failed(&format!("{why}; lb(8) does it in software: lb -i {name} --steer RULE PIPE"))
    };
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (change, places) = match words[..] {
        [] => ("has rules at", ntuple::rules(&name).map_err(cannot)?),
        ["off", place] => {
            let place = place.parse().map_err(|_| usage(&format!("`{place}` is not the place of a rule, a number")))?;
            ntuple::remove_rule(&name, place).map_err(cannot)?;
            ("removed the rule at", vec![place])
        }
        [rule, queue] => {
            let rule = rule::parse(rule).map_err(|why| usage(&why))?;
            let queues = link::channels(&name).map_err(|e| failed(&e.to_string()))?.rx;
            let queue = queue.parse().ok().filter(|queue| *queue < queues);
            let queue = queue.ok_or_else(|| failed(&format!("`{}`: its queues are 0 to {}", words[1], queues - 1)))?;
            let mut places = Vec::new();
            for tuple in rule.tuples() {
                match ntuple::add_rule(&name, &tuple, queue) {
                    Ok(place) => places.push(place),
                    Err(e) => {
                        // Removes the rule of the other address family. A failure here shows in the list of rules.
                        places.iter().for_each(|place| drop(ntuple::remove_rule(&name, *place)));
                        return Err(cannot(e).into());
                    }
                }
            }
            ("has rules at", places)
        }
        _ => return Err(usage("use `steer`, `steer RULE QUEUE` (the rule as one word), or `steer off PLACE`")),
    };
    let text = if json {
        format!("{}\n", json!({"interface": name, "places": places}))
    } else {
        let list: Vec<String> = places.iter().map(u32::to_string).collect();
        let list = if list.is_empty() { "no place".into() } else { list.join(", ") };
        format!("{name}: {change} {list}\n")
    };
    Ok(text)
}

fn name_of(interface: &str) -> Result<String, String> {
    let link = link::by_name(interface).map_err(|e| format!("nic {interface}: {e}"))?;
    link.map(|link| link.name).ok_or_else(|| format!("nic {interface}: no such interface (ip link shows them)"))
}

fn driver_of(name: &str) -> String {
    link::driver(name).ok().flatten().map_or(String::new(), |driver| format!(" ({})", driver.name))
}

/// Describes the kernel's error; `cannot` is used for an operation that the driver does not support.
fn refusal(error: &io::Error, name: &str, cannot: &str) -> String {
    match error.raw_os_error() {
        Some(unetmap::errno::EOPNOTSUPP) => format!("its driver{} {cannot}", driver_of(name)),
        Some(unetmap::errno::EPERM) => "only root can change this".into(),
        _ => format!("its driver{} refused: {error}", driver_of(name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_parsed_or_refused() {
        let parse = |text: &str| Change::parse(&text.split(' ').map(String::from).collect::<Vec<_>>());
        assert_eq!(parse("symmetric"), Ok(Change::Symmetric));
        assert_eq!(parse("equal 3"), Ok(Change::Queues(vec![0, 1, 2])));
        assert_eq!(parse("queues 0,2"), Ok(Change::Queues(vec![0, 2])));
        assert_eq!(parse("key 6d:5a:01"), Ok(Change::Key(vec![0x6d, 0x5a, 1])));
        for bad in ["equal 0", "equal", "queues 0,x", "key 6d:5", "key zz", "off"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_key_that_repeats_two_bytes_is_symmetric() {
        assert!(is_symmetric(&[0x6d, 0x5a, 0x6d, 0x5a, 0x6d]) && !is_symmetric(&[1, 2, 3, 4]) && !is_symmetric(&[]));
        assert_eq!(shares(&[0, 1, 0, 3]), "queue 0 50.0 %, queue 1 25.0 %, queue 3 25.0 %");
    }
}

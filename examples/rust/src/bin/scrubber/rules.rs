// SPDX-License-Identifier: BSD-2-Clause
//! Rules in ipfw's language, with lists of addresses, evaluated by the engine of unetmap-fw(1).
//!
//! The rules and lists are those below and those of a file, which SIGHUP reads again. Threads take new ones between two
//! packets; a file with an error leaves the old ones. What a rule denies is reported by its comment.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use unetmap_filter::{Config, Direction, Engine, Headers, Now, Ruleset, Verdict as Decision};

use crate::filters::{Filter, Verdict};
use crate::packet::Packet;

/// Sources that no host may have: this network, loopback, link-local, documentation, tests, multicast and reserved;
/// IPv6's loopback, IPv4-mapped, multicast and documentation. Private networks may be those of neighbours. The
/// unspecified address of IPv6 is valid for hosts that request an address.
const RULES: &str = "
table bogons create
table bogons add 0.0.0.0/8 127.0.0.0/8 169.254.0.0/16 192.0.0.0/24 192.0.2.0/24 198.18.0.0/15 198.51.100.0/24
table bogons add 203.0.113.0/24 224.0.0.0/3 ::1/128 ::ffff:0:0/96 ff00::/8 2001:db8::/32
add 100 deny ip from table(bogons) to any // bogon
";
/// States of a thread.
const STATES: usize = 1 << 14;

/// Packets and bytes.
pub(crate) type Sums = BTreeMap<String, (u64, u64)>;

/// Rules that threads share.
pub(crate) struct Rules {
    file: Option<PathBuf>,
    empty: Config,
    current: Mutex<Current>,
    /// Number of the rules: a thread notices new ones without the lock.
    generation: AtomicU64,
}

struct Current {
    config: Config,
    set: Arc<Ruleset>,
    /// Counts of packets that earlier rules denied.
    before: Sums,
}

impl Rules {
    /// Reads the rules, for this number of threads.
    ///
    /// # Errors
    /// The line and the column of a wrong word.
    pub(crate) fn new(threads: usize, file: Option<PathBuf>) -> Result<Rules, String> {
        let empty = Config::new(["wire", "host"], threads, true);
        let config = load(&empty, file.as_ref())?;
        let current = Current { set: Arc::new(config.compile()), config, before: Sums::new() };
        Ok(Rules { file, empty, current: Mutex::new(current), generation: AtomicU64::new(1) })
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the file again.
    ///
    /// # Errors
    /// As [`Rules::new`]; the old rules stay.
    pub(crate) fn reload(&self) -> Result<(), String> {
        let config = load(&self.empty, self.file.as_ref())?;
        let set = Arc::new(config.compile());
        let mut current = self.current();
        let before = sums(&current);
        *current = Current { config, set, before };
        self.generation.fetch_add(1, Release);
        Ok(())
    }

    /// Returns what was denied, by reason.
    pub(crate) fn denied(&self) -> Sums {
        sums(&self.current())
    }
}

fn load(empty: &Config, file: Option<&PathBuf>) -> Result<Config, String> {
    let (config, _) = empty.apply(RULES).map_err(|e| e.to_string())?;
    let Some(path) = file else { return Ok(config) };
    let script = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let applied = unetmap_filter::text(&script).and_then(|script| config.apply(script));
    let (config, _) = applied.map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(config)
}

/// A packet that is counted meanwhile by a thread that still has the old rules is in no sum.
fn sums(current: &Current) -> Sums {
    let mut sums = current.before.clone();
    for rule in current.config.rules().iter().filter(|rule| rule.action_name() == "Deny") {
        let comment = rule.text.split_once("// ").map(|(_, comment)| comment.to_owned());
        let reason = comment.unwrap_or_else(|| format!("rule {}", rule.number));
        let (counts, sum) = (rule.counters.get(), sums.entry(reason).or_default());
        *sum = (sum.0 + counts.packets, sum.1 + counts.bytes);
    }
    sums
}

/// The rules as a filter of one thread.
pub(crate) struct Evaluate {
    rules: Arc<Rules>,
    set: Arc<Ruleset>,
    generation: u64,
    engine: Engine,
}

impl Evaluate {
    pub(crate) fn new(rules: &Arc<Rules>, thread: usize, secret: u64) -> Evaluate {
        let (generation, set) = (rules.generation.load(Acquire), Arc::clone(&rules.current().set));
        Evaluate { rules: Arc::clone(rules), set, generation, engine: Engine::new(thread, STATES, secret) }
    }
}

impl Filter for Evaluate {
    fn name(&self) -> &'static str {
        "rules"
    }

    fn check(&mut self, packet: &Packet<'_>, now: Duration) -> Verdict {
        let generation = self.rules.generation.load(Acquire);
        if generation != self.generation {
            (self.generation, self.set) = (generation, Arc::clone(&self.rules.current().set));
        }
        // Headers that rules cannot read, such as unknown extension headers, could hide what they deny.
        let Ok(headers) = Headers::parse(packet.head, packet.len) else { return Verdict::Drop };
        let now = Now { millis: now.as_millis() as u64, seconds: now.as_secs() };
        let bytes = packet.len as u64;
        match self.engine.evaluate(&self.set, &headers, Direction::Out, bytes, now, |_| {}) {
            Decision::Accept => Verdict::Pass,
            _ => Verdict::Drop,
        }
    }
}

// SPDX-License-Identifier: BSD-2-Clause
//! The rules, in the language of `unetmap-fw`: those of the program, of lists, and of the user's file. Files are read
//! again when they change; one with an error leaves the old rules.

use std::fmt::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};
use std::sync::{Arc, Mutex, PoisonError};

use tool_common::source::{self, MAX_RULES};
use unetmap_filter::{Config, Prefix, Ruleset};

use crate::reason::Reason;

/// Numbers of the program's rules. Those of the user's file are from 100 to 59999.
pub(crate) const ALLOWED: u16 = 10;
const LISTED: u16 = 20;
const BOGON: u16 = 30;
const AMPLIFICATION: u16 = 40;
const PROXY: u16 = 60_000;

/// Sources that no host may have: this network, loopback, link-local, documentation, tests, multicast and reserved;
/// IPv6's loopback, IPv4-mapped, multicast and documentation. Private networks may be those of neighbours. The
/// unspecified addresses are valid for hosts that request one.
const BOGONS: &str = "127.0.0.0/8 169.254.0.0/16 192.0.0.0/24 192.0.2.0/24 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 \
                      224.0.0.0/3 ::1/128 ::ffff:0:0/96 ff00::/8 2001:db8::/32";
/// UDP ports of services whose answers are much larger than requests: qotd, chargen, portmap, netbios, snmp, ldap, rip,
/// mssql, ssdp, ws-discovery, ubiquiti, memcached. DNS and NTP are not among them, whose answers hosts need.
pub(crate) const AMPLIFIERS: &str = "17,19,111,137,161,389,520,1434,1900,3702,10001,11211";

/// The parts of the rules.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources {
    pub(crate) rules: Option<PathBuf>,
    pub(crate) deny: Vec<PathBuf>,
    pub(crate) allow: Vec<PathBuf>,
    pub(crate) bogons: bool,
    /// Source ports, as rules have them; empty: none.
    pub(crate) amplifiers: String,
    /// Destinations whose handshakes are completed, as a rule has them after `to`.
    pub(crate) proxy: Option<String>,
}

/// Size, inode and time of a file that was read.
type Stamp = Option<[i64; 4]>;

/// The rules, for the thread that evaluates them and for the one that replaces them.
pub(crate) struct Rules {
    sources: Sources,
    set: Mutex<Arc<Ruleset>>,
    generation: AtomicU64,
    stamps: Mutex<Vec<Stamp>>,
}

impl Rules {
    /// Reads all files.
    ///
    /// # Errors
    /// A sentence: the file, and the line and column of a wrong word.
    pub(crate) fn new(sources: Sources) -> Result<Rules, String> {
        let stamps = Mutex::new(sources.stamps());
        let set = Mutex::new(Arc::new(sources.load()?));
        Ok(Rules { sources, set, generation: AtomicU64::new(1), stamps })
    }

    /// Returns the number of the rules: a change is noticed without a lock.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Acquire)
    }

    pub(crate) fn set(&self) -> Arc<Ruleset> {
        Arc::clone(&self.set.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Reads the files again if one has changed, or if `always`. Returns whether there are new rules.
    ///
    /// # Errors
    /// As of [`Rules::new`]; the old rules stay, until a file changes again.
    pub(crate) fn reload(&self, always: bool) -> Result<bool, String> {
        let now = self.sources.stamps();
        let before = std::mem::replace(&mut *self.stamps.lock().unwrap_or_else(PoisonError::into_inner), now.clone());
        if before == now && !always {
            return Ok(false);
        }
        let set = Arc::new(self.sources.load()?);
        *self.set.lock().unwrap_or_else(PoisonError::into_inner) = set;
        self.generation.fetch_add(1, Release);
        Ok(true)
    }
}

impl Sources {
    fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.rules.iter().chain(&self.deny).chain(&self.allow)
    }

    fn stamps(&self) -> Vec<Stamp> {
        let stamp = |path: &PathBuf| {
            let meta = std::fs::metadata(path).ok()?;
            Some([meta.size() as i64, meta.ino() as i64, meta.mtime(), meta.mtime_nsec()])
        };
        self.files().map(stamp).collect()
    }

    fn load(&self) -> Result<Ruleset, String> {
        let config = Config::new(["wire", "inside"], 1, true);
        let own = self.own()?;
        let mut config = config.apply(&own).map_err(|e| format!("the own rules: {e}"))?.0;
        if let Some(path) = &self.rules {
            let wrong = |e: &dyn std::fmt::Display| format!("the rules {}: {e}", path.display());
            let script = read(path)?;
            config = unetmap_filter::text(&script).and_then(|script| config.apply(script)).map_err(|e| wrong(&e))?.0;
            let is_ours = |number: u16| [ALLOWED, LISTED, BOGON, AMPLIFICATION, PROXY].contains(&number);
            let outside = config.rules().iter().map(|rule| rule.number);
            let outside = outside.filter(|number| !is_ours(*number) && !(100..60_000).contains(number));
            if let Some(number) = outside.into_iter().find(|number| *number != u16::MAX) {
                return Err(wrong(&format!("rule {number}: give numbers from 100 to 59999")));
            }
        }
        let set = config.compile();
        if set.has_nat() || !set.plan().is_empty() {
            return Err("the rules: nat, pipe and queue belong to unetmap-fw".into());
        }
        Ok(set)
    }

    /// The program's rules. They log, by which it is known which one has matched.
    fn own(&self) -> Result<String, String> {
        let mut script = String::new();
        let mut list = |name: &str, files: &[PathBuf]| -> Result<(), String> {
            writeln!(script, "table {name} create").expect("memory");
            for path in files {
                for (line, number) in String::from_utf8_lossy(&read(path)?).lines().zip(1..) {
                    let word = line.split('#').next().unwrap_or_default().trim();
                    if word.is_empty() {
                        continue;
                    }
                    if Prefix::parse(word).is_none() {
                        return Err(format!("{}: line {number}: {word:?} is no address or prefix", path.display()));
                    }
                    writeln!(script, "table {name} add {word}").expect("memory");
                }
            }
            Ok(())
        };
        list("scrub-allow", &self.allow)?;
        list("scrub-deny", &self.deny)?;
        if !self.allow.is_empty() {
            writeln!(script, "add {ALLOWED} allow log ip from table(scrub-allow) to any out").expect("memory");
        }
        if !self.deny.is_empty() {
            writeln!(script, "add {LISTED} deny log ip from table(scrub-deny) to any out").expect("memory");
        }
        if self.bogons {
            writeln!(script, "table scrub-bogons create\ntable scrub-bogons add {BOGONS}").expect("memory");
            writeln!(script, "add {BOGON} deny log ip from table(scrub-bogons) to any out").expect("memory");
        }
        if !self.amplifiers.is_empty() {
            let ports = &self.amplifiers;
            writeln!(script, "add {AMPLIFICATION} deny log udp from any {ports} to any out").expect("memory");
        }
        if let Some(to) = &self.proxy {
            writeln!(script, "add {PROXY} synproxy tcp from any to {to} out").expect("memory");
        }
        Ok(script)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    source::read(path, MAX_RULES).map_err(|why| format!("{}: {why}", path.display()))
}

/// Returns the reason of a packet that a rule of this number denies.
pub(crate) fn reason_of(rule: Option<u16>) -> Reason {
    match rule {
        Some(LISTED) => Reason::Listed,
        Some(BOGON) => Reason::Bogon,
        Some(AMPLIFICATION) => Reason::Amplification,
        _ => Reason::Rule,
    }
}

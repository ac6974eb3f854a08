// SPDX-License-Identifier: BSD-2-Clause
//! The rules, tables and pipes of a firewall, and the commands that change them.
//!
//! A script, of one command or a file of them, makes a new configuration from the present one, or is refused as a
//! whole:
//!
//! ```
//! use unetmap_filter::Config;
//!
//! let config = Config::new(["p}1", "q{1"], 1, false);
//! let (config, output) = config.apply("add 100 allow tcp from 10.0.0.0/8 to any dst-port 80 setup").unwrap();
//! assert_eq!(output, "00100 allow tcp from 10.0.0.0/8 to any dst-port 80 setup\n");
//! let error = config.apply("add allow ip from any to any\nadd diverd 1 ip from any to any").unwrap_err();
//! assert_eq!(error.to_string(), "line 2, column 5: `diverd` is no action; give one such as allow or deny");
//! ```

mod dummynet;
mod graph;
mod nat;
mod replace;
mod tables;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use unetmap_suggest::did_you_mean;

use crate::counters::RuleCounters;
use crate::parse::words::{self, Line, SyntaxError, Words};
use crate::parse::{self, Context, ParsedRule};
use crate::rule::{Action, DEFAULT_RULE, Rule, RuleId};
use crate::ruleset::Ruleset;
use tables::Tables;

type Result<T> = std::result::Result<T, SyntaxError>;

/// The set that is always enabled, and that `flush` spares.
const PERMANENT_SET: u8 = 31;
/// Distance of rules that are added without a number.
const STEP: u32 = 100;

/// Commands. As in ipfw, the beginning of one stands for it.
const COMMANDS: [&str; 18] = [
    "add", "delete", "disable", "enable", "flowset", "flush", "graph", "list", "nat", "pipe", "print", "queue",
    "resetlog", "sched", "set", "show", "table", "zero",
];

/// Reads the name of a command, which may be cut.
fn command_name(words: &mut Words<'_>) -> Result<&'static str> {
    let word = words.required("a command, such as add")?;
    if word.starts_with('$') {
        let message = format!("`{word}` is a variable of a shell; run the script with the value `unetmap fw` for it");
        return Err(words.error(message));
    }
    let wrong = |hint: String| {
        // These two are commands of `unetmap fw` alone.
        let of_client = ["load", "states"].into_iter().filter(|known| *known != word);
        let hint = if hint.is_empty() { did_you_mean(word, of_client) } else { hint };
        words.error(format!("`{word}` is no command; give add, delete, show, table, set, pipe or nat{hint}"))
    };
    words::of_beginning(word, &COMMANDS).map_err(wrong)
}

/// Rules, tables and sets.
#[derive(Clone, Debug)]
pub struct Config {
    ports: [String; 2],
    /// Numbers of ports that get copies.
    tees: Vec<u16>,
    threads: usize,
    /// In order, except rules that were added since the last [`Config::sort`]. The last one is the default rule.
    rules: Vec<Arc<Rule>>,
    sorted: bool,
    /// The highest number of a rule but the default rule; 0: there is none.
    highest: u16,
    tables: Tables,
    states: Vec<String>,
    dummynet: dummynet::Dummynet,
    nats: BTreeMap<u16, nat::Nat>,
    /// Number of identities of NAT instances.
    identities: u32,
    /// Returns the address of an interface.
    resolve: fn(&str) -> Option<Ipv4Addr>,
    /// Returns the addresses of the host, if a port is one of its interfaces.
    own: Option<fn() -> Vec<IpAddr>>,
    /// Number of revisions of links.
    links: u64,
    /// Number of commands that may have changed what is evaluated.
    revision: u64,
    /// Bitmap of the sets that are evaluated.
    enabled: u32,
    /// Whether idle connections are asked (`dyn_keepalive`).
    keepalive: bool,
    /// Generation of each slot of rules.
    generations: Vec<u32>,
    free_slots: Vec<u32>,
    /// The rules and translations that this script may take over from its predecessor.
    kept: replace::Kept,
    /// Counters that this script has set to zero, and what they were counted from before.
    zeroed: Vec<(Arc<RuleCounters>, [u64; 3])>,
}

/// Names that the parser asks for.
struct Names<'a> {
    ports: &'a [String; 2],
    tees: &'a [u16],
    tables: &'a mut Tables,
    own: Option<fn() -> Vec<IpAddr>>,
    states: &'a mut Vec<String>,
}

impl Context for Names<'_> {
    fn table(&mut self, name: &str) -> std::result::Result<u16, String> {
        self.tables.used(name)
    }

    fn own(&mut self, only_v6: bool) -> Option<u16> {
        self.own.map(|own| self.tables.own(only_v6, &own()))
    }

    fn state(&mut self, name: &str) -> u16 {
        let known = self.states.iter().position(|known| known == name);
        known.unwrap_or_else(|| {
            self.states.push(name.into());
            self.states.len() - 1
        }) as u16
    }

    fn ports(&self) -> [&str; 2] {
        [&self.ports[0], &self.ports[1]]
    }

    fn has_tee(&self, number: u16) -> bool {
        self.tees.contains(&number)
    }
}

/// Flags before a command, or after `list` and `show`.
#[derive(Clone, Copy, Default)]
struct Flags {
    /// `-a`: with counters.
    counters: bool,
    /// `-S`: with sets, and with rules of disabled sets.
    sets: bool,
    /// `-q`: prints nothing but lists.
    quiet: bool,
}

impl Flags {
    /// Reads the flags that come next.
    fn read(&mut self, words: &mut Words<'_>) -> Result<()> {
        while let Some(letters) = words.peek().and_then(|word| word.strip_prefix('-')) {
            words.next();
            for letter in letters.chars() {
                match letter {
                    'a' => self.counters = true,
                    'S' => self.sets = true,
                    'q' => self.quiet = true,
                    // Nothing is asked before a change.
                    'f' => {}
                    'd' | 'D' => {
                        let message = format!("`-{letter}` is not supported; `unetmap fw states` lists states");
                        return Err(words.error(message));
                    }
                    _ => return Err(words.error(format!("`-{letter}` is not supported; give -a, -f, -q or -S"))),
                }
            }
        }
        Ok(())
    }
}

impl Config {
    /// Makes a configuration with the default rule alone, which accepts or denies. `ports` are the names of the two
    /// ports, without `netmap:`; `threads` is the number of threads that evaluate packets.
    pub fn new(ports: [&str; 2], threads: usize, default_accept: bool) -> Config {
        let (action, text) = if default_accept { (Action::Allow, "allow") } else { (Action::Deny, "deny") };
        let rule = Rule {
            number: DEFAULT_RULE,
            set: PERMANENT_SET,
            id: RuleId { slot: 0, generation: 0 },
            probability: None,
            action,
            log: None,
            tag: None,
            tests: Box::default(),
            state: None,
            text: format!("{text} ip from any to any"),
            counters: Arc::new(RuleCounters::new(threads)),
        };
        Config {
            ports: ports.map(Into::into),
            tees: Vec::new(),
            threads,
            rules: vec![Arc::new(rule)],
            sorted: true,
            highest: 0,
            tables: Tables::default(),
            states: vec!["default".into()],
            dummynet: dummynet::Dummynet::default(),
            nats: BTreeMap::new(),
            identities: 0,
            resolve: |_| None,
            own: None,
            links: 0,
            revision: 0,
            enabled: !0,
            keepalive: true,
            generations: vec![0],
            free_slots: Vec::new(),
            kept: replace::Kept::default(),
            zeroed: Vec::new(),
        }
    }

    /// Gives the function that knows the addresses of interfaces, for `nat N config if`.
    pub fn with_interfaces(self, resolve: fn(&str) -> Option<Ipv4Addr>) -> Config {
        Config { resolve, ..self }
    }

    /// Gives the function that knows the addresses of the host, for `me`; `None`: no port is one of its interfaces.
    pub fn with_own_addresses(self, own: Option<fn() -> Vec<IpAddr>>) -> Config {
        Config { own, ..self }
    }

    /// Gives the numbers that rules `tee` may have.
    pub fn with_tees(self, tees: Vec<u16>) -> Config {
        Config { tees, ..self }
    }

    /// Performs the commands of a script, one a line. Returns the new configuration and what the commands print.
    ///
    /// # Errors
    /// The first wrong word of the script, with its place. Nothing of the script was done then.
    pub fn apply(&self, script: &str) -> Result<(Config, String)> {
        let mut config = self.clone();
        let mut output = String::new();
        for (at, text) in script.lines().enumerate() {
            let line = Line::split(text, at + 1);
            if line.is_empty() {
                continue;
            }
            if let Err(e) = config.command(&mut line.words(), &mut output) {
                // The counters are those of the present rules, too.
                config.zeroed.iter().rev().for_each(|(counters, marks)| counters.set_marks(*marks));
                return Err(e);
            }
        }
        config.zeroed.clear();
        config.sort();
        Ok((config, output))
    }

    /// Compiles the rules.
    pub fn compile(&self) -> Ruleset {
        Ruleset::new(
            self.rules.clone(),
            self.tables.contents(),
            self.enabled,
            self.plan(),
            self.nat_settings(),
            self.keepalive,
        )
    }

    /// Whether a configuration that was made from this one may decide otherwise.
    pub fn is_changed_by(&self, later: &Config) -> bool {
        self.revision != later.revision
    }

    /// Returns the rules in order.
    pub fn rules(&self) -> &[Arc<Rule>] {
        &self.rules
    }

    /// Whether the rules of a set are evaluated.
    pub fn is_enabled(&self, set: u8) -> bool {
        self.enabled >> set & 1 != 0
    }

    /// Returns the name of states that [`crate::StateInfo`] has by its number.
    pub fn state_name(&self, number: u16) -> &str {
        self.states.get(usize::from(number)).map_or("", String::as_str)
    }

    /// Whether the ends of idle connections are asked.
    pub fn has_keepalive(&self) -> bool {
        self.keepalive
    }

    fn command(&mut self, words: &mut Words<'_>, output: &mut String) -> Result<()> {
        let mut flags = Flags::default();
        flags.read(words)?;
        // As scripts have it.
        if words.peek().is_some_and(|word| word == "ipfw" || word.ends_with("/ipfw")) {
            words.next();
            flags.read(words)?;
        }
        let (before, command) = (output.len(), command_name(words)?);
        self.perform(command, words, output, flags)?;
        if flags.quiet && !matches!(command, "list" | "print" | "show" | "graph") {
            output.truncate(before);
        }
        words.end()
    }

    fn perform(&mut self, command: &str, words: &mut Words<'_>, output: &mut String, flags: Flags) -> Result<()> {
        if !matches!(
            command,
            "list" | "print" | "show" | "graph" | "zero" | "resetlog" | "pipe" | "queue" | "flowset" | "sched" | "nat"
        ) {
            self.revision += 1;
        }
        match command {
            "add" => self.add(words, output)?,
            "delete" => self.delete(words)?,
            "flush" => {
                words.accept("-f");
                self.remove(|rule| rule.set != PERMANENT_SET);
            }
            "zero" => self.zero(words, output, true)?,
            "resetlog" => self.zero(words, output, false)?,
            "list" | "print" => self.list(words, output, flags)?,
            "show" => self.list(words, output, Flags { counters: true, ..flags })?,
            "graph" => self.graph(output),
            "set" => self.sets(words, output)?,
            "table" => self.table(words, output, flags.quiet)?,
            "flowset" => self.dummynet("queue", words, output)?,
            what @ ("pipe" | "queue" | "sched") => self.dummynet(what, words, output)?,
            "nat" => self.nat(words, output)?,
            _ => self.switch(command == "enable", words)?,
        }
        Ok(())
    }

    /// Performs `enable` or `disable`.
    fn switch(&mut self, on: bool, words: &mut Words<'_>) -> Result<()> {
        let word = words.required("dyn_keepalive")?;
        let refuse = |instead: &str| {
            let command = if on { "enable" } else { "disable" };
            Err(words.error(format!("{command} `{word}` is not supported; {instead}")))
        };
        match word {
            "dyn_keepalive" => self.keepalive = on,
            // They always are.
            "firewall" | "one_pass" | "verbose" if on => {}
            "firewall" => return refuse("a first rule `allow ip from any to any` lets all pass"),
            "one_pass" => {
                return refuse("a packet passes after its pipe or NAT; give the other rules before");
            }
            "verbose" => return refuse("leave `log` out of the rules"),
            _ => {
                let hint = did_you_mean(word, ["dyn_keepalive", "firewall", "one_pass", "verbose"]);
                return refuse(&format!("give dyn_keepalive{hint}"));
            }
        }
        Ok(())
    }

    /// Brings rules that were added into order.
    fn sort(&mut self) {
        if !self.sorted {
            self.rules.sort_by_key(|rule| rule.number);
            self.sorted = true;
        }
    }

    fn add(&mut self, words: &mut Words<'_>, output: &mut String) -> Result<()> {
        let mut names = Names {
            ports: &self.ports,
            tees: &self.tees,
            tables: &mut self.tables,
            own: self.own,
            states: &mut self.states,
        };
        let parsed = parse::rule(words, &mut names)?;
        let number = parsed.number.unwrap_or_else(|| self.next_number());
        let ParsedRule { set, probability, action, log, tag, tests, state, text, .. } = parsed;
        let (id, counters) = self.identity(number, set, &text);
        let is_any = |literal: &crate::rule::Literal| {
            !literal.negated && !literal.or && literal.test == crate::rule::Test::Always(true)
        };
        // A test that always matches is dropped, unless it is an alternative.
        let mut previous_or = false;
        let tests = tests.into_iter().filter(|literal| {
            let in_group = previous_or || literal.or;
            previous_or = literal.or;
            in_group || !is_any(literal)
        });
        let rule =
            Rule { number, set, id, probability, action, log, tag, tests: tests.collect(), state, text, counters };
        let _ = writeln!(output, "{number:05} {}", rule.text);
        // The default rule stays the last.
        let last = self.rules.len() - 1;
        self.sorted &= last == 0 || self.rules[last - 1].number <= number;
        self.highest = self.highest.max(number);
        self.rules.insert(last, Arc::new(rule));
        Ok(())
    }

    /// Returns the number of a rule that is added without one.
    fn next_number(&self) -> u16 {
        let next = u32::from(self.highest) + STEP;
        if next < u32::from(DEFAULT_RULE) { next as u16 } else { self.highest }
    }

    /// Removes rules, except the default rule. Returns how many.
    fn remove(&mut self, which: impl Fn(&Rule) -> bool) -> usize {
        let before = self.rules.len();
        let is_gone = |rule: &Arc<Rule>| !(rule.number == DEFAULT_RULE && rule.id.slot == 0) && which(rule);
        let gone: Vec<RuleId> = self.rules.extract_if(.., |rule| is_gone(rule)).map(|rule| rule.id).collect();
        gone.into_iter().for_each(|id| self.free(id));
        let removed = before - self.rules.len();
        if removed > 0 {
            let others = &self.rules[..self.rules.len() - 1];
            self.highest = others.iter().map(|rule| rule.number).max().unwrap_or(0);
        }
        removed
    }

    fn delete(&mut self, words: &mut Words<'_>) -> Result<()> {
        if words.accept("set") {
            let set = parse::number(words, "a set", 0, 31)? as u8;
            self.remove(|rule| rule.set == set);
            return Ok(());
        }
        if words.peek().is_none() {
            return Err(words.error_here("the line ends; give rule numbers N or N-M, or set N"));
        }
        while words.peek().is_some() {
            let (from, to) = range(words)?;
            let all = (from, to) == (0, 0);
            let removed =
                self.remove(|rule| if all { rule.set != PERMANENT_SET } else { (from..=to).contains(&rule.number) });
            if removed == 0 && !all {
                return Err(words.error(format!("there is no rule {}", shown(from, to))));
            }
        }
        Ok(())
    }

    /// Sets counters to zero, or only re-arms logs.
    fn zero(&mut self, words: &mut Words<'_>, output: &mut String, counts: bool) -> Result<()> {
        let zeroed = &mut self.zeroed;
        let mut reset = |rule: &Rule| {
            zeroed.push((Arc::clone(&rule.counters), rule.counters.marks()));
            if counts { rule.counters.zero() } else { rule.counters.reset_log() }
        };
        if words.peek().is_none() {
            self.rules.iter().for_each(|rule| reset(rule));
            output.push_str(if counts { "Accounting cleared.\n" } else { "Logging counts reset.\n" });
        }
        while words.peek().is_some() {
            let (from, to) = range(words)?;
            let mut found = self.rules.iter().filter(|rule| (from..=to).contains(&rule.number)).peekable();
            if found.peek().is_none() {
                return Err(words.error(format!("there is no rule {}", shown(from, to))));
            }
            found.for_each(|rule| reset(rule));
            let what = if counts { "cleared" } else { "logging count reset" };
            let _ = writeln!(output, "Entry {} {what}.", shown(from, to));
        }
        Ok(())
    }

    /// Prints rules in ipfw's format.
    fn list(&mut self, words: &mut Words<'_>, output: &mut String, mut listing: Flags) -> Result<()> {
        self.sort();
        listing.read(words)?;
        let mut ranges = Vec::new();
        while words.peek().is_some() {
            ranges.push(range(words)?);
        }
        let wanted = |rule: &&Arc<Rule>| {
            let in_range = ranges.is_empty() || ranges.iter().any(|&(from, to)| (from..=to).contains(&rule.number));
            in_range && (listing.sets || self.is_enabled(rule.set))
        };
        let rows: Vec<_> = self.rules.iter().filter(wanted).map(|rule| (rule, rule.counters.get())).collect();
        if rows.is_empty() {
            return Err(words.error("there is no such rule"));
        }
        let width = |of: fn(&crate::counters::Counts) -> u64| {
            rows.iter().map(|(_, counts)| of(counts).to_string().len()).max().unwrap_or(1)
        };
        let (packets, bytes) = (width(|counts| counts.packets), width(|counts| counts.bytes));
        for (rule, counts) in rows {
            if !self.is_enabled(rule.set) {
                output.push_str("# DISABLED ");
            }
            let _ = write!(output, "{:05} ", rule.number);
            if listing.counters {
                let _ = write!(output, "{:packets$} {:bytes$} ", counts.packets, counts.bytes);
            }
            if listing.sets {
                let _ = write!(output, "set {} ", rule.set);
            }
            let _ = writeln!(output, "{}", rule.text);
        }
        Ok(())
    }

    fn sets(&mut self, words: &mut Words<'_>, output: &mut String) -> Result<()> {
        let set = |words: &mut Words<'_>| parse::number(words, "a set", 0, 31).map(|set| set as u8);
        match words.required("disable, enable, move, swap or show")? {
            "show" => {
                let list = |on: bool| {
                    let sets = (0..PERMANENT_SET).filter(|&set| self.is_enabled(set) == on);
                    sets.map(|set| format!(" {set}")).collect::<String>()
                };
                let disabled = list(false);
                if !disabled.is_empty() {
                    let _ = write!(output, "disable{disabled} ");
                }
                let _ = writeln!(output, "enable{}", list(true));
            }
            "swap" => {
                let (a, b) = (set(words)?, set(words)?);
                self.change_sets(|rule| match rule.set {
                    set if set == a => b,
                    set if set == b => a,
                    set => set,
                });
            }
            "move" => {
                let number = if words.accept("rule") { Some(range(words)?) } else { None };
                let from = if number.is_none() { Some(set(words)?) } else { None };
                if !words.accept("to") {
                    return Err(words.error_here("give `to` and a set"));
                }
                let to = set(words)?;
                self.change_sets(|rule| {
                    let in_range = number.is_some_and(|(from, to)| (from..=to).contains(&rule.number));
                    if in_range || from == Some(rule.set) { to } else { rule.set }
                });
            }
            first @ ("disable" | "enable") => {
                let mut on = first == "enable";
                while let Some(word) = words.peek() {
                    if matches!(word, "disable" | "enable") {
                        on = word == "enable";
                        words.next();
                        continue;
                    }
                    let number = set(words)?;
                    if number == PERMANENT_SET {
                        return Err(words.error("set 31 is always enabled"));
                    }
                    let bit = 1 << number;
                    self.enabled = if on { self.enabled | bit } else { self.enabled & !bit };
                }
            }
            other if other.parse::<u8>().is_ok() => {
                let message =
                    format!("`set {other}` before a command is not supported; give `delete set {other}`, or list -S");
                return Err(words.error(message));
            }
            other => {
                let hint = did_you_mean(other, ["disable", "enable", "move", "swap", "show"]);
                return Err(words.error(format!("`{other}`: give disable, enable, move, swap or show{hint}")));
            }
        }
        Ok(())
    }

    /// Gives rules, except the default rule, another set. They keep their counters and states.
    fn change_sets(&mut self, new: impl Fn(&Rule) -> u8) {
        for rule in &mut self.rules {
            let set = new(rule);
            if set == rule.set || rule.id.slot == 0 {
                continue;
            }
            *rule = Arc::new(Rule {
                set,
                tests: rule.tests.clone(),
                text: rule.text.clone(),
                counters: Arc::clone(&rule.counters),
                ..**rule
            });
        }
    }
}

/// Parses `N` or `N-M`.
fn range(words: &mut Words<'_>) -> Result<(u16, u16)> {
    let word = words.required("a rule number")?;
    let (from, to) = word.split_once('-').unwrap_or((word, word));
    match (from.parse(), to.parse()) {
        (Ok(from), Ok(to)) if from <= to => Ok((from, to)),
        _ => Err(words.error(format!("`{word}`: give rule numbers N or N-M"))),
    }
}

fn shown(from: u16, to: u16) -> String {
    if from == to { from.to_string() } else { format!("{from}-{to}") }
}

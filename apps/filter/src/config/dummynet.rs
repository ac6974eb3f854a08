// SPDX-License-Identifier: BSD-2-Clause
//! The commands `pipe`, `queue` and `sched`, in dummynet's language.
//!
//! ```text
//! pipe N config [bw RATE] [delay MS] [burst BYTES] [queue SIZE] [plr P] [mask ...] [buckets N] [codel ...|pie ...]
//! queue N config {pipe|sched} N [weight W] [queue SIZE] [mask ...] [buckets N] [codel ...|pie ...]
//! sched N config type {fifo|rr|wf2q+|qfq|prio|fq_codel|fq_pie} [mask ...]
//! ```
//! Pipe N is a link with a FIFO, which rules reach by `pipe N`. Queues of pipe N share a link of the same properties,
//! by the scheduler N, which is WF2Q+ unless `sched N` says otherwise.

mod values;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use unetmap_shape::aqm::{Aqm, Codel, Pie};
use unetmap_shape::{
    Class, Delay, Kind, Limit, LinkCounters, Loss, MILLISECOND, Mask, Nanos, Node, PipeConfig, Plan, Rate,
};

use unetmap_suggest::did_you_mean;

use super::{Config, Result};
use crate::parse::number;
use crate::parse::words::{Words, listed, of_beginning};
use values::{bandwidth, codel, delay, kind, kind_parameter, limit, loss, mask, pie, probability, size};

/// Flows of each bucket at most, as in dummynet.
const FLOWS_OF_BUCKET: usize = 16;
/// Maximum number of flows of a link.
const MAX_FLOWS: usize = 65_536;
/// Parameters of dummynet that this program does not have.
const UNSUPPORTED: [&str; 8] = ["red", "gred", "profile", "flow-id", "lmax", "maxlen", "pri", "priority"];
/// Parameters of pipes and queues.
const COMMON: [&str; 7] = ["queue", "mask", "buckets", "codel", "pie", "droptail", "noerror"];
const OF_PIPES: [&str; 7] = ["bw", "delay", "burst", "plr", "reorder", "duplicate", "corrupt"];
const OF_QUEUES: [&str; 3] = ["pipe", "sched", "weight"];
const OF_SCHEDULERS: [&str; 3] = ["type", "mask", "pipe"];
/// Parameters that only the types `fq_codel` and `fq_pie` have.
const OF_FQ: [&str; 12] = [
    "quantum",
    "limit",
    "flows",
    "target",
    "interval",
    "tupdate",
    "max_burst",
    "alpha",
    "beta",
    "max_ecnth",
    "ecn",
    "noecn",
];
/// Types of schedulers.
const KINDS: &str = "fifo, rr, wf2q+, qfq, prio, fq_codel or fq_pie";

/// A pipe.
#[derive(Clone, Debug)]
pub(super) struct PipeSettings {
    config: PipeConfig,
    mask: Mask,
    buckets: u32,
    /// The mask as it was given, for `show`.
    shown_mask: String,
    /// Revisions of its link and of that of its queues.
    revisions: [u64; 2],
    counters: [Arc<LinkCounters>; 2],
}

/// A queue.
#[derive(Clone, Debug)]
pub(super) struct QueueSettings {
    pipe: u16,
    class: Class,
    buckets: u32,
    shown_mask: String,
}

/// A scheduler.
#[derive(Clone, Debug)]
pub(super) struct SchedSettings {
    kind: Kind,
    mask: Mask,
    shown_mask: String,
}

/// Pipes, queues and schedulers by number.
#[derive(Clone, Debug, Default)]
pub(super) struct Dummynet {
    pipes: BTreeMap<u16, PipeSettings>,
    queues: BTreeMap<u16, QueueSettings>,
    scheds: BTreeMap<u16, SchedSettings>,
}

/// Parameters of `config` that pipes and queues share.
#[derive(Default)]
struct Common {
    limit: Limit,
    aqm: Aqm,
    mask: Mask,
    shown_mask: String,
    buckets: u32,
}

impl Common {
    fn new() -> Common {
        Common { buckets: 64, ..Common::default() }
    }

    /// Reads a parameter that pipes and queues have; returns false for another word.
    fn parameter(&mut self, word: &str, words: &mut Words<'_>) -> Result<bool> {
        match word {
            "queue" => self.limit = limit(words)?,
            "mask" => (self.mask, self.shown_mask) = mask(words)?,
            "buckets" => self.buckets = number(words, "a number of buckets", 1, 65536)?,
            "codel" => self.aqm = Aqm::Codel(codel(words, Codel::default())?),
            "pie" => self.aqm = Aqm::Pie(pie(words, Pie::default())?),
            "droptail" => self.aqm = Aqm::None,
            // No sender is told of a drop, as if each pipe had it.
            "noerror" => {}
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl Config {
    /// Performs `pipe`, `queue` and `sched`.
    pub(super) fn dummynet(&mut self, what: &str, words: &mut Words<'_>, output: &mut String) -> Result<()> {
        let mut command = words.required("a number and config, or show")?;
        let mut given = None;
        if let Ok(n) = command.parse::<u32>() {
            let n = u16::try_from(n).ok().filter(|&n| n > 0);
            given = Some(n.ok_or_else(|| words.error(format!("give a number of a {what}, 1 to 65535")))?);
            command = words.required("config, delete or show")?;
        }
        let command = of_beginning(command, &["config", "delete", "show", "list", "flush"]).unwrap_or(command);
        match (command, given) {
            ("config", Some(n)) => {
                self.revision += 1;
                match what {
                    "pipe" => self.pipe_config(n, words),
                    "queue" => self.queue_config(n, words),
                    _ => self.sched_config(n, words),
                }
            }
            ("delete", _) => {
                self.revision += 1;
                let n = match given {
                    Some(n) => n,
                    None => number(words, &format!("a number of a {what}"), 1, 65535)? as u16,
                };
                let removed = match what {
                    "pipe" => self.dummynet.pipes.remove(&n).is_some(),
                    "queue" => self.dummynet.queues.remove(&n).is_some(),
                    _ => self.dummynet.scheds.remove(&n).is_some(),
                };
                if !removed {
                    return Err(words.error(format!("there is no {what} {n}")));
                }
                self.touch_queues();
                Ok(())
            }
            ("show" | "list", _) => {
                self.show_dummynet(what, given, output);
                Ok(())
            }
            // Of all kinds, as in ipfw.
            ("flush", None) => {
                words.accept("-f");
                self.revision += 1;
                self.dummynet = Dummynet::default();
                Ok(())
            }
            ("config", None) => Err(words.error(format!("give the number of the {what} before config"))),
            (other, _) => {
                let hint = did_you_mean(other, ["config", "delete", "show", "flush"]);
                Err(words.error(format!("`{other}`: give config, delete, show or flush{hint}")))
            }
        }
    }

    fn pipe_config(&mut self, n: u16, words: &mut Words<'_>) -> Result<()> {
        let mut common = Common::new();
        let mut config = PipeConfig { seed: n.into(), ..PipeConfig::default() };
        while let Some(word) = words.next() {
            match word {
                "bw" | "bandwidth" => config.rate = bandwidth(words)?,
                "delay" => config.delay = delay(words)?,
                "burst" => config.burst = size(words)?,
                "plr" => config.loss = loss(words)?,
                "reorder" => config.reorder = probability(words)?,
                "duplicate" => config.duplicate = probability(words)?,
                "corrupt" => config.corrupt = probability(words)?,
                _ if common.parameter(word, words)? => {}
                _ => return Err(unknown(word, words, &[&OF_PIPES[..], &COMMON].concat())),
            }
        }
        config.classes = vec![Class { limit: common.limit, aqm: common.aqm, ..Class::default() }];
        let counters = self.dummynet.pipes.get(&n).map(|pipe| pipe.counters.clone()).unwrap_or_default();
        let revisions = [self.new_link_revision(), self.new_link_revision()];
        let Common { mask, shown_mask, buckets, .. } = common;
        self.dummynet.pipes.insert(n, PipeSettings { config, mask, buckets, shown_mask, revisions, counters });
        Ok(())
    }

    fn queue_config(&mut self, n: u16, words: &mut Words<'_>) -> Result<()> {
        let mut common = Common::new();
        // As in ipfw, what is not given stays: the pipe, and the weight.
        let known = self.dummynet.queues.get(&n);
        let mut pipe = known.map(|queue| queue.pipe);
        let mut weight = known.map_or(1, |queue| queue.class.weight);
        while let Some(word) = words.next() {
            match word {
                "pipe" | "sched" => pipe = Some(number(words, "a number of a pipe", 1, 65535)? as u16),
                "weight" => weight = number(words, "a weight", 1, 65536)?,
                _ if common.parameter(word, words)? => {}
                _ => return Err(unknown(word, words, &[&OF_QUEUES[..], &COMMON].concat())),
            }
        }
        let pipe = pipe.ok_or_else(|| words.error_here("give the queue's pipe: pipe N, or sched N"))?;
        let Common { limit, aqm, mask, shown_mask, buckets } = common;
        let class = Class { weight, limit, aqm, mask };
        self.dummynet.queues.insert(n, QueueSettings { pipe, class, buckets, shown_mask });
        self.touch_queues();
        Ok(())
    }

    fn sched_config(&mut self, n: u16, words: &mut Words<'_>) -> Result<()> {
        let kind_before = self.dummynet.scheds.get(&n).map_or(Kind::Wf2q, |sched| sched.kind);
        let mut sched = SchedSettings { kind: kind_before, mask: Mask::default(), shown_mask: String::new() };
        // The type says what the other words mean, wherever it stands among them.
        if let Some(new) = words.value_of("type").and_then(kind) {
            sched.kind = new;
        }
        while words.peek().is_some() {
            if kind_parameter(words, &mut sched.kind)? {
                continue;
            }
            match words.required("a parameter")? {
                "type" => {
                    let name = words.required(KINDS)?;
                    kind(name).ok_or_else(|| words.error(format!("`{name}`: give {KINDS}")))?;
                }
                "mask" => (sched.mask, sched.shown_mask) = mask(words)?,
                "pipe" if number(words, "the number of the scheduler", 1, 65535)? == u32::from(n) => {}
                "pipe" => return Err(words.error(format!("scheduler {n} serves pipe {n}"))),
                word if OF_FQ.contains(&word) => {
                    return Err(words.error(format!("`{word}` is for the types fq_codel and fq_pie")));
                }
                word => return Err(unknown(word, words, &OF_SCHEDULERS)),
            }
        }
        self.dummynet.scheds.insert(n, sched);
        self.touch_queues();
        Ok(())
    }

    fn new_link_revision(&mut self) -> u64 {
        self.links += 1;
        self.links
    }

    /// The links of all queues begin anew: their schedulers have other classes.
    fn touch_queues(&mut self) {
        let mut links = self.links;
        for pipe in self.dummynet.pipes.values_mut() {
            links += 1;
            pipe.revisions[1] = links;
        }
        self.links = links;
    }

    /// Returns the links for a shaper.
    pub(super) fn plan(&self) -> Arc<Plan> {
        let mut plan = Plan::default();
        for (n, pipe) in &self.dummynet.pipes {
            let flows = |buckets: u32| (buckets as usize * FLOWS_OF_BUCKET).min(MAX_FLOWS);
            let [own, shared] = &pipe.counters;
            let node = |config, mask, revision, counters: &Arc<LinkCounters>| Node {
                config,
                mask,
                max_flows: flows(pipe.buckets),
                revision,
                counters: Arc::clone(counters),
            };
            plan.add_pipe(*n, node(pipe.config.clone(), pipe.mask, pipe.revisions[0], own));
            let queues: Vec<_> = self.dummynet.queues.iter().filter(|(_, queue)| queue.pipe == *n).collect();
            if queues.is_empty() {
                continue;
            }
            let sched = self.dummynet.scheds.get(n);
            let config = PipeConfig {
                kind: sched.map_or(Kind::Wf2q, |sched| sched.kind),
                classes: queues.iter().map(|(_, queue)| queue.class).collect(),
                max_flows: queues.iter().map(|(_, queue)| flows(queue.buckets)).sum::<usize>().min(MAX_FLOWS),
                ..pipe.config.clone()
            };
            let numbers: Vec<u16> = queues.iter().map(|(n, _)| **n).collect();
            let mask = sched.map_or_else(Mask::default, |sched| sched.mask);
            plan.add_queues(&numbers, node(config, mask, pipe.revisions[1], shared));
        }
        Arc::new(plan)
    }

    fn show_dummynet(&self, what: &str, given: Option<u16>, output: &mut String) {
        let wanted = |n: &u16| given.is_none_or(|given| given == *n);
        match what {
            "pipe" => {
                for (n, pipe) in self.dummynet.pipes.iter().filter(|(n, _)| wanted(n)) {
                    let class = &pipe.config.classes[0];
                    let _ = writeln!(output, "{n:05}: {}", shown_link(&pipe.config));
                    // The FIFO of pipe N has the number N + 65536, its queue N + 131072.
                    let (queue, sched) = (u32::from(*n) + (1 << 17), u32::from(*n) + (1 << 16));
                    let (links, buckets) = (pipe.counters[0].links.load(Relaxed), pipe.buckets);
                    let class = shown_class(class, &shown_loss(&pipe.config.loss), sched, 1);
                    let _ = writeln!(output, "q{queue:05} {class}");
                    let _ = writeln!(output, " sched {sched} type FIFO flags 0x0 {buckets} buckets {links} active");
                    write_mask(output, &pipe.shown_mask);
                    write_counts(output, &pipe.counters[0]);
                }
            }
            "queue" => {
                for (n, queue) in self.dummynet.queues.iter().filter(|(n, _)| wanted(n)) {
                    let class = shown_class(&queue.class, "", queue.pipe.into(), queue.buckets);
                    let _ = writeln!(output, "q{n:05} {class}");
                    write_mask(output, &queue.shown_mask);
                }
            }
            _ => {
                for (n, pipe) in self.dummynet.pipes.iter().filter(|(n, _)| wanted(n)) {
                    let sched = self.dummynet.scheds.get(n);
                    let kind = sched.map_or(&Kind::Wf2q, |sched| &sched.kind);
                    let queues = self.dummynet.queues.iter().filter(|(_, queue)| queue.pipe == *n);
                    let list: String = queues.map(|(n, _)| format!(" {n}")).collect();
                    let (links, kind) = (pipe.counters[1].links.load(Relaxed), shown_kind(kind));
                    let _ = writeln!(output, "{n:05}: {}", shown_link(&pipe.config));
                    let _ =
                        writeln!(output, " sched {n} type {kind} flags 0x0 {} buckets {links} active", pipe.buckets);
                    write_mask(output, sched.map_or("", |sched| &sched.shown_mask));
                    let _ = writeln!(output, "   Children flowsets:{list}");
                    write_counts(output, &pipe.counters[1]);
                }
            }
        }
    }

    /// Returns the pipes with the counts of their own link, and of that of their queues if they have some: packets,
    /// bytes, drops and held packets.
    pub fn pipe_counts(&self) -> Vec<(u16, [u64; 4], Option<[u64; 4]>)> {
        let has_queues = |n: u16| self.dummynet.queues.values().any(|queue| queue.pipe == n);
        let counts = |(n, pipe): (&u16, &PipeSettings)| {
            let [own, shared] = pipe.counters.each_ref().map(|counters| load(counters));
            (*n, own, has_queues(*n).then_some(shared))
        };
        self.dummynet.pipes.iter().map(counts).collect()
    }
}

fn load(counters: &LinkCounters) -> [u64; 4] {
    [&counters.packets, &counters.bytes, &counters.dropped, &counters.held].map(|counter| counter.load(Relaxed))
}

fn write_counts(output: &mut String, counters: &LinkCounters) {
    let [packets, bytes, dropped, held] = load(counters);
    let _ = writeln!(output, "   {packets} packets {bytes} bytes, {held} held, {dropped} dropped");
}

/// The error about a parameter that is none of those which are valid here.
fn unknown(word: &str, words: &Words<'_>, valid: &[&str]) -> crate::SyntaxError {
    match word {
        "red" | "gred" => words.error(format!("the parameter `{word}` is not supported; give codel or pie")),
        "profile" => words.error("the parameter `profile` is not supported; give delay a distribution"),
        _ if UNSUPPORTED.contains(&word) => {
            words.error(format!("the parameter `{word}` is not supported; leave it out"))
        }
        _ => words.error(format!("`{word}`: give {}{}", listed(valid), did_you_mean(word, valid.iter().copied()))),
    }
}

fn shown_link(config: &PipeConfig) -> String {
    format!("{} {} burst {}", shown_rate(&config.rate), shown_delay(&config.delay), config.burst)
}

fn shown_rate(rate: &Rate) -> String {
    match rate {
        Rate::Bits(bits) if *bits >= 1_000_000_000 => format!("{:7.3} Gbit/s", *bits as f64 / 1e9),
        Rate::Bits(bits) if *bits >= 1_000_000 => format!("{:7.3} Mbit/s", *bits as f64 / 1e6),
        Rate::Bits(bits) if *bits >= 1000 => format!("{:7.3} Kbit/s", *bits as f64 / 1e3),
        Rate::Bits(bits) => format!("{:7.3} bit/s ", *bits as f64),
        Rate::Unlimited | Rate::Trace(_) => "unlimited     ".into(),
    }
}

fn shown_delay(delay: &Delay) -> String {
    let ms = |nanos: &Nanos| *nanos as f64 / MILLISECOND as f64;
    match delay {
        Delay::Constant(nanos) => format!("{:4} ms", ms(nanos)),
        Delay::Uniform(from, to) => format!("{}..{} ms", ms(from), ms(to)),
        Delay::Normal(mean, deviation) => format!("{}~{} ms", ms(mean), ms(deviation)),
        Delay::Empirical(_) => "delay by a distribution".into(),
    }
}

fn shown_loss(loss: &Loss) -> String {
    match loss {
        Loss::None => String::new(),
        Loss::Random(p) => format!(" plr {p:.6}"),
        other => format!(" plr {other:?}"),
    }
}

fn write_mask(output: &mut String, mask: &str) {
    if !mask.is_empty() {
        let _ = writeln!(output, "   {mask}");
    }
}

fn shown_class(class: &Class, loss: &str, sched: u32, buckets: u32) -> String {
    let limit = match class.limit {
        Limit::Packets(slots) => format!("{slots:3} sl."),
        Limit::Bytes(bytes) if bytes >= 8192 => format!("{:3} KB", bytes / 1024),
        Limit::Bytes(bytes) => format!("{bytes:3} B"),
    };
    let aqm = match class.aqm {
        Aqm::None => "droptail",
        Aqm::Codel(_) => "AQM CoDel",
        Aqm::Pie(_) => "AQM PIE",
    };
    let weight = class.weight;
    format!("{limit}{loss} ({buckets} buckets) sched {sched} weight {weight} lmax 0 pri 0 {aqm}")
}

fn shown_kind(kind: &Kind) -> &'static str {
    match kind {
        Kind::Fifo => "FIFO",
        Kind::Drr => "RR",
        Kind::Wf2q => "WF2Q+",
        Kind::Qfq => "QFQ",
        Kind::Priority => "PRIO",
        Kind::FqCodel(..) => "FQ_CODEL",
        Kind::FqPie(..) => "FQ_PIE",
    }
}

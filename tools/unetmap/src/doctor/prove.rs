// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap doctor --prove IF1 IF2`: sends numbered frames of all lengths between two interfaces, by the way of packets
//! that is to be proved, and disturbs them: their client is killed, links go down, rings and queues change.
//!
//! ```text
//!  this process: memory of all queues, guards in it ----- checks the guards, all the time
//!      | starts, kills, starts again
//!  a client (client): sockets at IF1 and IF2, frames both ways ----- checks each byte that arrives
//! ```
//! The first byte that is not as it should be ends it.

mod client;
mod disturb;
mod end;
mod frames;
mod memory;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use serde::Serialize;
use tool_common::Failure;
use unetmap::abi::printable::word;
use unetmap_core::control::proofs;
use unetmap_sys::link::{self, DriverInfo, Link};
use unetmap_sys::{kernel, process};

use disturb::{Kind, Outcome, Round};
use end::{EndPlan, inside};
use memory::Memory;

use crate::events::utc;

/// Queues of an interface: each has some MiB of memory, all of which is read again and again.
const MAX_QUEUES: u32 = 4;

/// Options of `unetmap doctor` for a proof.
#[derive(Debug, Args)]
pub(crate) struct ProveArgs {
    /// Prove an interface's zero copy: send frames of all lengths between it and a second one, among kills of their
    /// client, links that go down and changes of rings and queues, and compare each byte that arrives, and guards in
    /// the memory. Both are otherwise unused, and joined by a cable. Exit status 1 at the first difference
    #[arg(long, num_args = 2, value_names = ["IF1", "IF2"], conflicts_with_all = ["interface", "kernels", "report"])]
    prove: Option<Vec<String>>,

    /// The network namespace of IF2: its name, or a path
    #[arg(long, value_name = "NETNS", requires = "prove")]
    peer_netns: Option<String>,

    /// How long the proof takes; each kind of disturbance is made once at least
    #[arg(long, value_name = "SECONDS", requires = "prove", default_value = "60", value_parser = seconds)]
    seconds: Duration,

    /// The client of a proof
    #[arg(long, hide = true, value_name = "PLAN")]
    prove_client: Option<String>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let bounds = Duration::from_secs(1)..=Duration::from_secs(86_400);
    unetmap_quantity::within(unetmap_quantity::seconds, bounds)(text)
}

/// An interface of the proof.
struct Subject {
    link: Link,
    netns: Option<PathBuf>,
    driver: Option<DriverInfo>,
    queues: u32,
    memory: Vec<Memory>,
}

/// The result.
#[derive(Debug, Default, Serialize)]
struct Proof {
    interfaces: Vec<String>,
    drivers: Vec<Option<String>>,
    kernel: String,
    way: &'static str,
    seconds: f64,
    rounds: u32,
    /// By kind of disturbance.
    disturbed: BTreeMap<&'static str, u32>,
    /// Disturbances that the drivers do not support.
    unsupported: BTreeSet<String>,
    sent: u64,
    received: u64,
    guards: usize,
    proved: bool,
    difference: Option<String>,
    /// Drivers that are trusted on this machine from now on.
    unlocked: Vec<String>,
}

impl ProveArgs {
    /// Whether a proof was asked for, or its client.
    pub(crate) fn is_asked(&self) -> bool {
        self.prove.is_some() || self.prove_client.is_some()
    }
}

/// Proves, and prints the result. Returns the exit status.
pub(crate) fn run(args: &ProveArgs, json: bool) -> Result<u8, Failure> {
    if let Some(plan) = &args.prove_client {
        client::run(plan);
        return Ok(0);
    }
    let failed = |why: String| Failure::from(format!("doctor: {why}"));
    let Some([one, two]) = args.prove.as_deref() else {
        return Err(Failure::Usage("doctor: --prove needs two interfaces".into()));
    };
    if process::uid() != 0 {
        return Err(failed("only root proves a way of packets".into()));
    }
    let far = args.peer_netns.as_deref().map(|name| match name.contains('/') {
        true => PathBuf::from(name),
        false => PathBuf::from("/run/netns").join(name),
    });
    let mut subjects = [Subject::find(one, None).map_err(failed)?, Subject::find(two, far).map_err(failed)?];
    if subjects[0].link.index == subjects[1].link.index && subjects[1].netns.is_none() {
        return Err(Failure::Usage("doctor: IF1 and IF2 are one interface; give the two ends of a cable".into()));
    }
    let zero_copy = zero_copy(&subjects).map_err(failed)?;
    for (subject, number) in subjects.iter_mut().zip(1..) {
        subject.create_memory(number).map_err(|e| failed(format!("memory: {e}")))?;
    }
    let mut proof = Proof::new(&subjects, zero_copy);
    let start = Instant::now();
    while proof.difference.is_none() && (start.elapsed() < args.seconds || (proof.rounds as usize) < Kind::ALL.len()) {
        let kind = Kind::ALL[proof.rounds as usize % Kind::ALL.len()];
        if !json {
            let (now, all) = (start.elapsed().as_secs(), args.seconds.as_secs());
            tool_common::note(&format!(
                "{now:3} of {all} s: {} received of {} frames sent; now: {}",
                proof.received,
                proof.sent,
                kind.word()
            ));
        }
        let round = Round { number: proof.rounds + 1, kind, zero_copy, subjects: &subjects };
        proof.add(kind, disturb::run(&round).map_err(failed)?);
    }
    proof.seconds = start.elapsed().as_secs_f64();
    proof.proved = proof.difference.is_none();
    if proof.proved && zero_copy {
        proof.unlock(&subjects).map_err(failed)?;
    }
    let text = match json {
        true => serde_json::to_string(&proof).map_err(|e| failed(e.to_string()))? + "\n",
        false => proof.text(),
    };
    crate::print("doctor", &unetmap_core::without_codes(&text))?;
    Ok(u8::from(!proof.proved))
}

impl Proof {
    fn new(subjects: &[Subject; 2], zero_copy: bool) -> Proof {
        Proof {
            interfaces: subjects.iter().map(|subject| subject.link.name.clone()).collect(),
            drivers: subjects.iter().map(|subject| Some(subject.driver.as_ref()?.name.clone())).collect(),
            kernel: kernel::release(),
            way: if zero_copy { "native, zero copy" } else { "native, copy" },
            guards: subjects.iter().map(|subject| subject.memory.len() * Memory::guards()).sum(),
            ..Proof::default()
        }
    }

    /// Adds a round.
    fn add(&mut self, kind: Kind, outcome: Outcome) {
        self.rounds += 1;
        (self.sent, self.received) = (self.sent + outcome.sent, self.received + outcome.received);
        *self.disturbed.entry(kind.word()).or_default() += 1;
        self.unsupported.extend(outcome.unsupported);
        let rounds = self.rounds;
        self.difference = outcome.difference.map(|what| format!("round {rounds} ({}): {what}", kind.word()));
    }

    /// Has the daemon believe it.
    fn unlock(&mut self, subjects: &[Subject; 2]) -> Result<(), String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let day = utc(u64::try_from(now.as_millis()).unwrap_or_default());
        let drivers: Vec<&DriverInfo> = subjects.iter().filter_map(|subject| subject.driver.as_ref()).collect();
        proofs::add(&proofs::path(), &drivers, &self.kernel, day.split('T').next().unwrap_or_default())?;
        self.unlocked = drivers.iter().map(|driver| driver.name.clone()).collect();
        self.unlocked.dedup();
        Ok(())
    }

    fn text(&self) -> String {
        let kinds: Vec<String> = self.disturbed.iter().map(|(kind, rounds)| format!("{kind} {rounds}")).collect();
        let mut text = format!(
            "{}: {} frames sent, {} received and compared; {} guards; {} rounds in {:.0} s: {}\n",
            self.interfaces.join(" and "),
            self.sent,
            self.received,
            self.guards,
            self.rounds,
            self.seconds,
            kinds.join(", ")
        );
        if !self.unsupported.is_empty() {
            let all: Vec<&str> = self.unsupported.iter().map(String::as_str).collect();
            // Writes to a String cannot fail.
            let _ = writeln!(text, "not done, as the driver cannot: {}", all.join(", "));
        }
        let drivers: Vec<&str> = self.drivers.iter().map(|driver| driver.as_deref().unwrap_or("no driver")).collect();
        let on = format!("{} of {} on Linux {}", self.way, drivers.join(" and "), self.kernel);
        text += &match &self.difference {
            Some(what) => format!("NOT proved: {on}: {what}\n"),
            None => format!("proved: {on}\n"),
        };
        if !self.unlocked.is_empty() {
            let (drivers, path) = (self.unlocked.join(", "), proofs::path());
            text += &format!(
                "ports of {drivers} with this firmware use zero copy on this kernel now ({})\n",
                path.display()
            );
        }
        text
    }
}

/// Whether zero copy is to be proved: if both drivers have it; none if neither has.
fn zero_copy(subjects: &[Subject; 2]) -> Result<bool, String> {
    let [one, two] = subjects.each_ref().map(|subject| {
        let features = inside(subject.netns.as_ref(), || link::xdp_features(subject.link.index)).ok().flatten();
        features.ok_or_else(|| format!("{}: {}", subject.link.name, kernel::ZERO_COPY.requirement()))
    });
    let (one, two) = (one?, two?);
    for (subject, features) in subjects.iter().zip([one, two]) {
        if !features.basic || !features.redirect {
            return Err(format!("{}: the driver runs no XDP program that redirects frames", subject.link.name));
        }
    }
    Ok(one.zerocopy && two.zerocopy)
}

impl Subject {
    /// Finds an interface that nothing else uses.
    fn find(name: &str, netns: Option<PathBuf>) -> Result<Subject, String> {
        let shown = word(name).into_owned();
        let failed = |e: io::Error| format!("{shown}: {e}");
        let found = inside(netns.as_ref(), || {
            let Some(link) = link::by_name(name)? else { return Ok(None) };
            let usage = link::usage(link.index)?.map(|usage| usage.to_string());
            let channels = link::channels(&link.name)?;
            Ok(Some((link::driver(&link.name).ok().flatten(), usage, channels, link)))
        });
        let Some((driver, usage, channels, link)) = found.map_err(failed)? else {
            return Err(format!("{shown}: no such interface (ip link shows them)"));
        };
        let refusal = match (usage, channels.rx) {
            (Some(usage), _) => Some(format!("{usage}: a proof is for interfaces that nothing else uses")),
            _ if link.xdp.is_some() => Some("an XDP program is attached, perhaps that of an open port".into()),
            _ if link.mac.is_none() => Some("it is no Ethernet interface".into()),
            _ if !link.up || !link.carrier => {
                Some(format!("it has no carrier (ip link set dev {shown} up, and a cable)"))
            }
            (_, queues) if queues > MAX_QUEUES => Some(format!(
                "it has {queues} queues; for a proof give it {MAX_QUEUES} (ethtool -L {shown} combined {MAX_QUEUES})"
            )),
            _ => None,
        };
        match refusal {
            Some(why) => Err(format!("{shown}: {why}")),
            None => Ok(Subject { driver, netns, queues: channels.rx.min(channels.tx), memory: Vec::new(), link }),
        }
    }

    /// Creates the memory of all queues of interface `number`.
    fn create_memory(&mut self, number: u64) -> io::Result<()> {
        self.memory =
            (0..u64::from(self.queues)).map(|queue| Memory::create(number << 32 | queue)).collect::<io::Result<_>>()?;
        Ok(())
    }

    /// The facts about it for a client.
    fn plan(&self, zero_copy: bool) -> EndPlan {
        EndPlan {
            interface: self.link.name.clone(),
            netns: self.netns.clone(),
            zero_copy,
            queues: self.memory.iter().map(|memory| (memory.path(), memory.seed())).collect(),
        }
    }
}

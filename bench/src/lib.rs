//! What `unetmap bench` measures, and against what.
//!
//! A virtual machine moves its processors about, which changes every two-core figure several times over. So a figure
//! means something only beside another that was taken in the same moments: each benchmark takes turns with its peers
//! in one run, and each sample carries the distance of the cores, probed just before and just after it
//! ([`Class`]). Samples of different classes are never compared.
//!
//! ```text
//!   probe  pkt-gen tx -> rx, 60 ms  probe | probe  seqpacket, 60 ms  probe | --peer command | probe  pkt-gen ...
//! ```
#![forbid(unsafe_code)]

mod behind;
mod benches;
mod contest;
mod daemon;
mod host;
mod nic;
mod node;
mod one_core;
mod open;
mod peer;
mod pkt_gen;
mod preload;
mod probe;
mod program;
mod report;
mod rtt;
mod seqpacket;
mod session;
mod sides;
mod stats;
mod vale;

use std::collections::BTreeSet;
use std::io::Write;
use std::rc::Rc;
use std::time::Duration;

pub use benches::Bench;
use host::Hosts;
use nic::pcap::Task;
use nic::{Nics, Who};
pub use peer::Peer;
use probe::Cores;
pub use report::align;
use sides::{ALONE, LIBC, LINKED, NATIVE, PIPE, PRELOAD, US, contests};
pub use stats::Class;
use unetmap::Port;

/// What to run and how long.
#[derive(Clone, Debug)]
pub struct Options {
    /// In this order.
    pub benches: Vec<Bench>,
    /// Samples that each side needs in one class, 1 or more.
    pub samples: u32,
    /// No sample begins after this time; a limit for each benchmark; in `pipe-batch`, `preload-pipe` and `pcap` for each
    /// row.
    pub limit: Duration,
    /// Who else is measured in turns with us, beside the built-in peer.
    pub peers: Vec<Peer>,
    /// JSON lines instead of a table.
    pub json: bool,
}

/// Runs the benchmarks and prints what they find to standard output; returns the exit status: 0, or 1 when a peer
/// failed (the rest was printed).
///
/// # Errors
/// A sentence: bad options, no second processor, a port that cannot be opened, pkt-gen missing or failing; for `nic-*`
/// and `host-*` no right to make network namespaces; for `node-*` no node; no C compiler.
pub fn run(options: &Options) -> Result<u8, String> {
    check(options)?;
    let cores = Cores::first_two()?;
    if let Some(code) = session::leave_group() {
        return Ok(code);
    }
    let _keep = if !options.benches.iter().any(|bench| bench.is_pipe()) {
        None
    } else {
        // Starts the daemon, at normal priority, and keeps it: one that ends and comes again would disturb a sample.
        let spec = format!("netmap:bench{}-keep{{1", std::process::id());
        Some(Port::open(&spec).map_err(|e| e.to_string())?)
    };
    session::raise();
    // Before anything is measured that would be lost. These daemons move packets, so they have our priority.
    let networks = Networks::of(&options.benches, cores)?;
    let mut findings = Vec::new();
    let mut code = 0;
    for contest in options.benches.iter().flat_map(|&bench| contests(bench)) {
        let outcome = contest.hold(options, cores, &networks)?;
        for sentence in &outcome.missing {
            note(&format!("{}: {sentence}", contest.name));
        }
        for sentence in &outcome.failures {
            note(sentence);
            code = 1;
        }
        let found = report::findings(&outcome);
        if options.json {
            for finding in &found {
                print(&format!("{}\n", report::json(finding)?))?;
            }
        }
        findings.extend(found);
    }
    if !options.json {
        print(&report::table(&findings))?;
    }
    Ok(code)
}

/// What benchmarks about interfaces need.
struct Networks {
    nics: Option<Rc<Nics>>,
    hosts: Option<Rc<Hosts>>,
}

impl Networks {
    fn of(benches: &[Bench], cores: Cores) -> Result<Networks, String> {
        let first = |kind: fn(Bench) -> bool| benches.iter().copied().find(|bench| kind(*bench));
        let failed = |bench: Bench| move |e: String| format!("bench {}: {e}", bench.name());
        let nics =
            first(Bench::is_nic).map(|bench| Nics::new(cores).and_then(Nics::with_daemons).map_err(failed(bench)));
        let hosts = first(host::is_host).map(|bench| Hosts::new().map_err(failed(bench)));
        Ok(Networks { nics: nics.transpose()?.map(Rc::new), hosts: hosts.transpose()?.map(Rc::new) })
    }
}

/// A line for standard error. That nobody reads it is nothing to care about.
fn note(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn print(text: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|e| format!("bench: standard output: {e}"))
}

fn check(options: &Options) -> Result<(), String> {
    if options.samples == 0 {
        return Err("--samples 0: at least 1 is needed".into());
    }
    if options.limit.is_zero() {
        return Err("--seconds 0: at least 1 is needed".into());
    }
    let mut labels = BTreeSet::from([US, seqpacket::LABEL, NATIVE, LINKED, PRELOAD, PIPE, ALONE, LIBC]);
    labels.extend(options.benches.iter().flat_map(|&bench| Who::all(bench)).map(|who| who.label()));
    labels.extend(options.benches.iter().filter(|bench| host::is_host(**bench)).map(|_| host::CABLE));
    if options.benches.contains(&Bench::Pcap) {
        labels.extend(Task::ALL.into_iter().flat_map(Task::sides).map(|(label, _)| *label));
    }
    match options.peers.iter().find(|p| !labels.insert(&p.label)) {
        Some(twice) => Err(format!("--peer {}: this label is taken; choose another", twice.label)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        Options { benches: vec![], samples: 7, limit: Duration::from_secs(1), peers: vec![], json: true }
    }

    #[test]
    fn bad_options_are_refused() {
        let peer = |text: &str| text.parse::<Peer>().unwrap();
        let cases = [
            (Options { samples: 0, ..options() }, "--samples 0"),
            (Options { limit: Duration::ZERO, ..options() }, "--seconds 0"),
            (Options { peers: vec![peer("seqpacket=x")], ..options() }, "--peer seqpacket: this label is taken"),
            (Options { peers: vec![peer("a=x"), peer("a=y")], ..options() }, "--peer a: this label is taken"),
            (
                Options { benches: vec![Bench::NicTx], peers: vec![peer("afxdp=x")], ..options() },
                "--peer afxdp: this label is taken",
            ),
        ];
        for (options, part) in cases {
            let message = run(&options).unwrap_err();
            assert!(message.contains(part), "{message}");
        }
        assert_eq!(check(&options()), Ok(()));
    }
}

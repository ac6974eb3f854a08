// SPDX-License-Identifier: BSD-2-Clause
//! The benchmarks of `unetmap bench`.
//!
//! A hypervisor moves virtual processors between physical cores, which changes every two-core figure by a factor of
//! several. Figures are comparable only if they were measured at the same time and at the same distance of the cores.
//! Therefore each benchmark alternates with its peers in one run, and each sample has a [`PlacementClass`], the
//! distance of the cores probed just before and just after it. Samples of different classes are never compared.
//!
//! ```text
//!   probe  pkt-gen tx -> rx, 60 ms  probe | probe  seqpacket, 60 ms  probe | --peer command | probe  pkt-gen ...
//! ```
#![forbid(unsafe_code)]

mod benches;
mod builtin;
mod c_peers;
mod cycles;
mod daemon;
mod dpdk;
mod firewall;
mod full;
mod host;
mod labels;
mod lb_scrub;
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
mod ring;
mod row_group;
mod rtt;
mod scale;
mod seqpacket;
mod session;
mod stats;
mod tcp;
mod turns;
mod vale;

use std::collections::BTreeSet;
use std::io::Write;
use std::rc::Rc;
use std::time::Duration;

pub use benches::Bench;
use c_peers::DpdkPeers;
pub use full::Report;
use host::HostLab;
use nic::pcap::PcapTask;
use nic::{Implementation, NicLab};
pub use peer::Peer;
use probe::Cores;
use row_group::row_groups;
pub use scale::Subject;
pub use stats::PlacementClass;
use unetmap::Port;

/// The benchmarks to run, and for how long.
#[derive(Clone, Debug)]
pub struct Options {
    /// The benchmarks, in order.
    pub benches: Vec<Bench>,
    /// Samples that each contestant needs in one class, 1 or more.
    pub samples: u32,
    /// No sample starts after this time, per benchmark; in `pipe-batch`, `preload-pipe` and `pcap` per row.
    pub limit: Duration,
    /// Peers in addition to the built-in ones.
    pub peers: Vec<Peer>,
    /// Prints JSON lines instead of a table.
    pub json: bool,
    /// In place of `benches`: those of a report, which is written.
    pub report: Option<Report>,
}

/// Runs the benchmarks and prints the results to standard output. Returns the exit status: 0, or 1 if a peer failed
/// (the other results are printed).
///
/// # Errors
/// A sentence: no second processor, a port that cannot be opened, pkt-gen missing or failing; for `nic-*`
/// and `host-*` no permission to create network namespaces; for `node-*` no node; no C compiler.
pub fn run(options: &Options) -> Result<u8, String> {
    if let Ok(task) = std::env::var(scale::TASK) {
        return scale::client(&task);
    }
    let benches = options.report.as_ref().map_or_else(|| options.benches.clone(), Report::benches);
    let old = options.report.as_ref().map(Report::prepare).transpose()?.flatten();
    let cores = Cores::first_two()?;
    if let Some(code) = session::leave_group() {
        return Ok(code);
    }
    let _keep = if !benches.iter().any(|bench| bench.is_pipe()) {
        None
    } else {
        // Starts the daemon at normal priority and keeps it running, because a restart would disturb a sample.
        let spec = format!("netmap:bench{}-keep{{1", std::process::id());
        Some(Port::open(&spec).map_err(|e| e.to_string())?)
    };
    session::raise_priority();
    // Created before the first benchmark, so that a failure loses no results. These daemons move packets, so they get
    // the benchmark's priority.
    let setup = Setup::new(&benches, cores);
    if let Some(report) = &options.report {
        return report.run(options, cores, &setup, old.as_ref());
    }
    if let Some((bench, why)) = setup.failures.first() {
        return Err(format!("bench {}: {why}", bench.name()));
    }
    let mut findings = Vec::new();
    let mut code = 0;
    for group in benches.iter().flat_map(|&bench| row_groups(bench)) {
        let outcome = group.run(options, cores, &setup)?;
        for sentence in &outcome.missing {
            note(&format!("{}: {sentence}", group.name));
        }
        for sentence in &outcome.failures {
            note(sentence);
            code = 1;
        }
        let found = report::row_results(&outcome);
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

/// State that benchmarks share: networks for interfaces, and programs of peers.
struct Setup {
    nics: Option<Rc<NicLab>>,
    hosts: Option<Rc<HostLab>>,
    dpdk: Rc<DpdkPeers>,
    /// Why there are no networks of interfaces, and none of hosts, for benchmarks that need them.
    failures: Vec<(Bench, String)>,
}

impl Setup {
    fn new(benches: &[Bench], cores: Cores) -> Setup {
        let first = |kind: fn(Bench) -> bool| benches.iter().copied().find(|bench| kind(*bench));
        let dpdk: Rc<DpdkPeers> = Rc::default();
        let nic_lab = || NicLab::new(cores, Rc::clone(&dpdk)).and_then(NicLab::with_daemons);
        let mut failures = Vec::new();
        let nics = first(Bench::is_nic).and_then(|bench| nic_lab().map_err(|e| failures.push((bench, e))).ok());
        let hosts = first(host::is_host).and_then(|bench| HostLab::new().map_err(|e| failures.push((bench, e))).ok());
        Setup { nics: nics.map(Rc::new), hosts: hosts.map(Rc::new), dpdk, failures }
    }

    /// Returns why a benchmark cannot be made here, if so.
    fn lacks(&self, bench: Bench) -> Option<String> {
        let kind = |of: Bench| (of.is_nic(), host::is_host(of));
        let failure = self.failures.iter().find(|(failed, _)| kind(*failed) == kind(bench));
        let missing = match bench {
            Bench::NodePipe | Bench::NodePoll if !rustix::process::geteuid().is_root() => Some("it needs root".into()),
            Bench::Tcp => tcp::lacks(),
            _ if dpdk::Link::of(bench).is_some() => self.dpdk.devices().err(),
            _ => None,
        };
        failure.filter(|_| kind(bench) != (false, false)).map(|(_, why)| why.clone()).or(missing)
    }
}

/// Writes a line to standard error. Ignores failures, because there is nowhere left to report them.
fn note(line: &str) {
    let _ = writeln!(std::io::stderr(), "{}", unetmap_core::without_codes(line));
}

fn print(text: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|e| format!("bench: standard output: {e}"))
}

/// Checks what the options say together.
///
/// # Errors
/// A sentence that names the wrong option.
pub fn check(options: &Options) -> Result<(), String> {
    if options.samples == 0 {
        return Err("--samples 0: at least 1 is needed".into());
    }
    if options.limit.is_zero() {
        return Err("--seconds 0: at least 1 is needed".into());
    }
    let mut used = BTreeSet::from([
        labels::UNETMAP,
        labels::NATIVE,
        labels::LINKED,
        labels::PRELOAD,
        labels::PIPE,
        labels::NO_IDLE_PORTS,
        labels::LIBC,
        seqpacket::LABEL,
        ring::LABEL,
    ]);
    used.extend(options.benches.iter().flat_map(|&bench| Implementation::of(bench)).map(|i| i.label()));
    used.extend(options.benches.iter().filter(|bench| host::is_host(**bench)).map(|_| host::VETH));
    if options.benches.iter().any(|bench| dpdk::Link::of(*bench).is_some()) {
        used.extend([dpdk::DPDK, dpdk::PORTS]);
    }
    if options.benches.iter().any(|bench| !firewall::Case::of(*bench).is_empty()) {
        used.extend([firewall::BRIDGE, firewall::NFTABLES, firewall::TC, firewall::NETEM]);
    }
    used.extend(options.benches.contains(&Bench::Tcp).then(|| tcp::Way::KernelBridge.name()));
    if options.benches.contains(&Bench::Pcap) {
        used.extend(PcapTask::ALL.into_iter().flat_map(PcapTask::contestants).map(|(label, _)| *label));
    }
    match options.peers.iter().find(|p| !used.insert(&p.label)) {
        Some(peer) => Err(format!("--peer {}: this label is in use; choose another", peer.label)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        Options { benches: vec![], samples: 7, limit: Duration::from_secs(1), peers: vec![], json: true, report: None }
    }

    #[test]
    fn bad_options_are_refused() {
        let peer = |text: &str| text.parse::<Peer>().unwrap();
        let cases = [
            (Options { samples: 0, ..options() }, "--samples 0"),
            (Options { limit: Duration::ZERO, ..options() }, "--seconds 0"),
            (Options { peers: vec![peer("seqpacket=x")], ..options() }, "--peer seqpacket: this label is in use"),
            (Options { peers: vec![peer("a=x"), peer("a=y")], ..options() }, "--peer a: this label is in use"),
            (
                Options { benches: vec![Bench::NicTx], peers: vec![peer("afxdp=x")], ..options() },
                "--peer afxdp: this label is in use",
            ),
        ];
        for (options, part) in cases {
            let message = check(&options).unwrap_err();
            assert!(message.contains(part), "{message}");
        }
        assert_eq!(check(&options()), Ok(()));
    }
}

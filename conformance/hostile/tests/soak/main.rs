// SPDX-License-Identifier: BSD-2-Clause
//! Hostile tenants of every kind beside honest traffic, for as long as `make soak` says.
//!
//! ```text
//!   near                                    far
//!   bridge -- [va 10.9.0.1] --------------- [vb 10.9.0.2]   ping, through host rings
//!   reflect -- [vc] ----------------------- [vd]            numbered frames there and back, mediated
//!   scribbler -- [vg] --------------------- [vh]            hostile
//!   pipe, switch: senders and receivers of numbered packets
//!   probe: opens and closes a pipe; each open is timed
//! ```
//! At the end, with all hostile tenants gone, it fails unless
//! - each packet of the honest tenants arrived once, or was counted as dropped where the daemon counts drops;
//! - opening took the honest tenant at most [`OPEN_LIMIT`] at the 99th percentile;
//! - the daemon is the same process, with as many descriptors as before the attacks, and its memory has not grown;
//! - every attack ran.
//!
//! Hostile processes run at the lowest priority: a host that serves tenants limits their CPU by control groups; at
//! equal priority, 20 processes on two CPUs would make this a test of the scheduler. The summary shows how long the
//! daemon's control thread waited for a CPU. Memory and descriptors are compared without attacks, as tenants may have
//! them within their budgets; memory first after a minute of attacks, because heaps grow to what is needed once.
//!
//! SIGINT or SIGTERM ends it early, with the summary of what it has seen. Without `SOAK_MINUTES` it does nothing:
//! `make test` passes it.
#![forbid(unsafe_code)]

mod attacks;
mod flows;
mod guests;
mod honest;
mod supervisor;
mod watch;

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use conformance::c::compile;
use conformance::home::summary;
use conformance::net::{CABLE, Net, public_copy};
use conformance::node::{STATIC, StartedProgram};
use conformance::{Home, Node, program};
use lab::VethOptions;
use rustix::process::{Signal, set_parent_process_death_signal};

use flows::Flows;
use guests::Guests;
use supervisor::Supervisors;
use watch::{Opens, Watch};

/// Longest time that an honest tenant may need to open a pipe, at the 99th percentile.
const OPEN_LIMIT: Duration = Duration::from_millis(50);
/// Interval of the lines of progress.
const MINUTE: Duration = Duration::from_secs(60);
/// How long the attacks run before the daemon's memory is first measured: caches and heaps have their size then.
const WARM_UP: Duration = Duration::from_secs(60);
/// The folder of the daemon's socket, and its log there.
const HOME: &str = "home";
const LOG: &str = "unetmapd.sock.log";
/// Lines at the end of the daemon's log that are printed if a bound failed.
const SHOWN_LINES: usize = 60;
/// Set in the process that does the work.
const INSIDE: &str = "UNETMAP_SOAK_INSIDE";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    if let Some(code) = run_tenant(&args) {
        return code;
    }
    let Some(minutes) = std::env::var("SOAK_MINUTES").ok() else {
        println!("soak: not run, as it takes an hour: `make soak`, or `make soak MINUTES=5`");
        return ExitCode::SUCCESS;
    };
    let Some(minutes) = minutes.parse().ok().filter(|minutes| (0.1..=100_000.0).contains(minutes)) else {
        eprintln!("soak: MINUTES is {minutes:?}, not a number of minutes from 0.1 to 100000");
        return ExitCode::FAILURE;
    };
    match std::env::var_os(INSIDE) {
        None => enter(),
        Some(folder) => {
            let soak = || soak(Path::new(&folder), Duration::from_secs_f64(60.0 * minutes));
            let passed = catch_unwind(soak).unwrap_or(false);
            keep_log(Path::new(&folder), passed);
            let _ = std::fs::remove_dir_all(Path::new(&folder));
            ExitCode::from(u8::from(!passed))
        }
    }
}

/// Runs a tenant, if the arguments name one: it ends with the process that started it.
fn run_tenant(args: &[&str]) -> Option<ExitCode> {
    let ["tenant", rest @ ..] = args else { return None };
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    if let ["attack", attack, seed] = rest {
        let socket = PathBuf::from(std::env::var_os("UNETMAP_SOCKET")?);
        attacks::run(&socket, attack.parse().ok()?, seed.parse().ok()?);
    }
    Some(match honest::run(rest) {
        Some(Ok(())) => ExitCode::SUCCESS,
        Some(Err(e)) => {
            eprintln!("soak: {}: {e}", rest.join(" "));
            ExitCode::FAILURE
        }
        None => {
            eprintln!("soak: there is no tenant {}", rest.join(" "));
            ExitCode::FAILURE
        }
    })
}

/// Executes this program again with an environment that names a daemon of its own, in a folder of its own.
fn enter() -> ExitCode {
    let folder = tempfile::Builder::new().prefix("unetmap-").tempdir().expect("a folder").keep();
    let error = Command::new(std::env::current_exe().expect("the path of this program"))
        .env(INSIDE, &folder)
        .env("UNETMAP_SOCKET", folder.join(HOME).join("unetmapd.sock"))
        .env("UNETMAPD", program("unetmapd"))
        .env("LIBXDP_BPFFS", folder.join("bpf"))
        .exec();
    eprintln!("soak: it cannot execute itself: {error}");
    ExitCode::FAILURE
}

/// Keeps the daemon's log beside the programs, and prints its end if a bound failed.
fn keep_log(folder: &Path, passed: bool) {
    let kept = program("unetmapd").with_file_name("soak.log");
    let log = std::fs::read(folder.join(HOME).join(LOG)).unwrap_or_default();
    if let Err(e) = std::fs::write(&kept, &log) {
        println!("soak: the daemon's log is not kept: {}: {e}", kept.display());
    }
    let log = String::from_utf8_lossy(&log);
    println!("soak: the daemon's log, {} lines: {}", log.lines().count(), kept.display());
    if !passed {
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(SHOWN_LINES)..].iter().for_each(|line| println!("  {line}"));
    }
}

/// Prints how the daemon ended, if it has: by which signal or with which status.
fn has_ended(net: &mut Net) -> bool {
    let ended = net.ended();
    if let Some(status) = ended {
        println!("FAIL the daemon ended: {status}");
    }
    ended.is_some()
}

/// Runs it for this long; returns whether all bounds held.
fn soak(folder: &Path, length: Duration) -> bool {
    let everybody = || std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(folder, everybody()).expect("our own folder");
    let home = Home::at(&folder.join(HOME)).expect("a folder");
    std::fs::set_permissions(home.folder(), everybody()).expect("our own folder");
    let Some(mut net) = Net::new(&home, &policy(), CABLE) else {
        println!("soak: it needs root and network namespaces");
        return false;
    };
    for (near, far) in [("vc", "vd"), ("vg", "vh")] {
        let cable = VethOptions { addresses: None, ..CABLE };
        net.lab.veth(&net.near, near, &net.far, far, cable).unwrap_or_else(|e| panic!("{e}"));
    }
    let node = Node::mounted(&home).inspect_err(|why| println!("soak: no attacks through the node: {why}")).ok();
    let _ = std::fs::set_permissions(home.folder().join("unetmapd.sock.node"), everybody());
    let this =
        public_copy(home.folder(), &std::env::current_exe().expect("the path of this program").to_string_lossy());

    let honest = node.as_ref().map(|node| (node, compile(&home, "node", &STATIC)));
    // A request through the node: it is served, and the daemon forgets the helper processes that it has killed.
    let use_node = || {
        if let Some((node, program)) = &honest {
            let mut program = StartedProgram::start(node, program, &["call", "ctrl"]);
            program.write_line();
            program.exits_successfully();
        }
    };
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).expect("a handler");
    }
    println!("soak: {:.1} minutes, {} CPUs, {}", length.as_secs_f64() / 60.0, cpus(), program("unetmapd").display());
    let mut flows = Flows::start(&home, &net, &this);
    let guests = Guests::start(&home);
    let opens = Opens::start(&this);
    let supervisors = Supervisors::start(&home, &net, node.as_ref(), &this);
    let mut watch = Watch::new(&home);
    watch.quiet(&home, "before the attacks");

    let begin = Instant::now();
    let mut parts = Parts { home: &home, net: &mut net, flows: &mut flows, watch: &mut watch };
    let warm = parts.attack_for(length, &stop, &opens, (&supervisors, &use_node));
    let Some(warm) = warm else {
        supervisors.rest();
        return false;
    };
    let ran = begin.elapsed();
    supervisors.rest();
    use_node();
    watch.quiet(&home, "after the attacks");
    println!("\nran {:.1} minutes of {:.1}, {} CPUs, load {}", minutes(ran), minutes(length), cpus(), watch::load());
    let alive = !has_ended(&mut net) && watch.same_daemon(&home);
    let results =
        [flows.finish(&home), opens.finish(OPEN_LIMIT), watch.finish(), alive, supervisors.finish(), guests.finish()];
    drop(honest);
    drop((node, net));
    let log = std::fs::read_to_string(home.folder().join(LOG)).unwrap_or_default();
    let calm = !log.contains("panicked");
    if !calm {
        println!(
            "FAIL the daemon panicked: {}",
            log.lines().filter(|line| line.contains("panicked")).collect::<String>()
        );
    }
    let passed = results.into_iter().all(|passed| passed) && calm && warm;
    summary(if passed { "all bounds held" } else { "FAIL: see above" });
    passed
}

/// Parts that are watched during the attacks.
struct Parts<'a> {
    home: &'a Home,
    net: &'a mut Net,
    flows: &'a mut Flows,
    watch: &'a mut Watch,
}

impl Parts<'_> {
    /// Lets the tenants attack for this long, or until `stop`; returns whether they did so long enough for the daemon's
    /// memory to be measured, and `None` if the daemon or an honest program has ended.
    fn attack_for(
        &mut self,
        length: Duration,
        stop: &AtomicBool,
        opens: &Opens,
        (supervisors, use_node): (&Supervisors, &dyn Fn()),
    ) -> Option<bool> {
        let begin = Instant::now();
        let warm_up = WARM_UP.min(length / 4);
        let (mut reported, mut warm) = (begin, false);
        supervisors.attack();
        while begin.elapsed() < length && !stop.load(Relaxed) {
            std::thread::sleep(Duration::from_millis(200));
            self.watch.sample();
            if let Some((name, status)) = self.flows.ended() {
                println!("FAIL an honest program of the flow {name:?} ended: {status}");
                // Often because the daemon did, which its parent may learn a moment later.
                std::thread::sleep(Duration::from_secs(1));
                has_ended(self.net);
                return None;
            }
            if has_ended(self.net) {
                return None;
            }
            if !warm && begin.elapsed() >= warm_up {
                supervisors.rest();
                use_node();
                self.watch.quiet(self.home, "after the first attacks");
                self.watch.set_baseline();
                supervisors.attack();
                warm = true;
            }
            if reported.elapsed() >= MINUTE {
                reported = Instant::now();
                println!("{}", progress(begin.elapsed(), self.flows, opens, self.watch, supervisors));
            }
        }
        Some(warm)
    }
}

fn minutes(time: Duration) -> f64 {
    time.as_secs_f64() / 60.0
}

fn cpus() -> usize {
    conformance::home::cpus_allowed().len()
}

fn progress(at: Duration, flows: &Flows, opens: &Opens, watch: &Watch, supervisors: &Supervisors) -> String {
    format!(
        "minute {:.0}: {}; {}; {}; {} attacks killed; load {}",
        minutes(at),
        flows.progress(),
        opens.progress(),
        watch.progress(),
        supervisors.killed(),
        watch::load()
    )
}

/// Pipes and switches for all tenants but the uninvited, an interface for one honest and one hostile tenant.
fn policy() -> String {
    let tenants = attacks::ATTACKS.iter().map(|attack| attack.uid).filter(|uid| ![0, attacks::UNINVITED].contains(uid));
    let users: Vec<String> = tenants
        .chain(attacks::IDLE_USERS)
        .chain([attacks::STALLED_USER, honest::USER, honest::PROBE_USER])
        .map(|uid| uid.to_string())
        .collect();
    format!(
        "[[rule]]\npipes = true\nusers = [{}]\n\
         [[rule]]\nports = [\"vc\"]\nusers = [{}]\naccess = \"mediated\"\n\
         [[rule]]\nports = [\"vg\"]\nusers = [{}]\naccess = \"direct\"\n",
        users.join(", "),
        honest::USER,
        attacks::INTERFACE_USER
    )
}

/// A command that runs a tenant of this program as a user.
fn tenant(this: &Path, uid: u32, args: &[&str]) -> Command {
    let mut command = Command::new(this);
    command.arg("tenant").args(args).uid(uid).gid(uid).env("RUST_BACKTRACE", "0");
    command
}

/// Waits until a tenant has printed that it is ready.
#[track_caller]
fn start_ready(command: &mut Command) -> StartedProgram {
    let started = StartedProgram::spawn(command);
    assert_eq!(started.line, "ready", "{command:?}");
    started
}

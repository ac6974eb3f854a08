// SPDX-License-Identifier: BSD-2-Clause
//! Threads that start hostile tenants, kill them at random moments, and start them again.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use conformance::c::compile;
use conformance::home::Guard;
use conformance::net::{Net, public_copy};
use conformance::node::STATIC;
use conformance::packet::Rng;
use conformance::{Home, Node, program, until};
use lab::Ns;

use crate::attacks::{ATTACKS, Attack, STALLED_USER, What};

/// A tenant is killed after a time up to this.
const LONGEST_LIFE: Duration = Duration::from_secs(8);
/// Between two looks at whether the tenant is to be killed.
const STEP: Duration = Duration::from_millis(10);
/// Executes its arguments at the lowest priority, also where the kernel compares sessions instead of processes.
const LOWEST_PRIORITY: &str = "echo 19 2>/dev/null >/proc/self/autogroup; exec nice -n 19 \"$@\"";
/// Number of tenants whose memory never answers.
const STALLED: usize = 4;
/// The errno of such a request, if its process is not killed before (ETIMEDOUT).
const TIMED_OUT: &str = "110";

/// State that the threads share.
struct Shared {
    attacks: AtomicBool,
    ended: AtomicBool,
    running: AtomicUsize,
    killed: AtomicU64,
}

/// The record of one thread.
#[derive(Default)]
struct Record {
    /// Tenants that were killed.
    killed: u64,
    /// Tenants that ended by themselves.
    ended: u64,
}

/// The threads.
pub(crate) struct Supervisors {
    shared: Arc<Shared>,
    threads: Vec<(&'static str, PathBuf, JoinHandle<Record>)>,
}

type Start = Box<dyn FnMut(&mut Rng) -> Guard + Send>;

impl Supervisors {
    /// Starts a thread for each attack; the attacks begin later.
    pub(crate) fn start(home: &Home, net: &Net, node: Option<&Node>, this: &Path) -> Supervisors {
        let shared = Arc::new(Shared {
            attacks: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            running: AtomicUsize::new(0),
            killed: AtomicU64::new(0),
        });
        let mut all = Supervisors { shared, threads: Vec::new() };
        for (number, attack) in ATTACKS.iter().enumerate() {
            let output = home.folder().join(format!("attack-{number}"));
            let start = by_command(home, attack, number, net.near.clone(), this, output.clone());
            all.supervise(attack.name, output, number as u64, start);
        }
        if let Some(node) = node {
            let stalled = compile(home, "stalled", &STATIC);
            for n in 0..STALLED {
                let mut command = node.command(&stalled);
                command.args([&STALLED_USER.to_string(), TIMED_OUT]).stdin(Stdio::piped()).stdout(Stdio::null());
                let start = move |_: &mut Rng| {
                    let mut guard = Guard::spawn(command.stderr(Stdio::null()));
                    // It waits for a line before its request.
                    let _ = guard.0.stdin.as_mut().map(|input| input.write_all(b"\n"));
                    guard
                };
                all.supervise("memory that never answers", PathBuf::new(), 100 + n as u64, Box::new(start));
            }
        }
        all
    }

    fn supervise(&mut self, name: &'static str, output: PathBuf, seed: u64, start: Start) {
        let shared = Arc::clone(&self.shared);
        self.threads.push((name, output, std::thread::spawn(move || supervise(&shared, seed, start))));
    }

    /// Lets the attacks begin, or go on.
    pub(crate) fn attack(&self) {
        self.shared.attacks.store(true, Relaxed);
    }

    /// Kills all hostile tenants; returns when they are gone.
    pub(crate) fn rest(&self) {
        self.shared.attacks.store(false, SeqCst);
        until("all hostile tenants are killed", || self.shared.running.load(SeqCst) == 0);
    }

    /// Number of tenants that were killed so far.
    pub(crate) fn killed(&self) -> u64 {
        self.shared.killed.load(Relaxed)
    }

    /// Ends the threads and prints what each did; returns whether each attack ran.
    pub(crate) fn finish(self) -> bool {
        self.shared.ended.store(true, Relaxed);
        let mut passed = true;
        for (name, output, thread) in self.threads {
            let record = thread.join().unwrap_or_default();
            println!("  attack {name:32} killed {:6}, ended by themselves {:6}", record.killed, record.ended);
            if record.killed == 0 {
                let why = std::fs::read_to_string(output).unwrap_or_default();
                println!("FAIL {name}: each ended by itself: {}", why.trim());
                passed = false;
            }
        }
        passed
    }
}

fn supervise(shared: &Shared, seed: u64, mut start: Start) -> Record {
    let mut rng = Rng((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut record = Record::default();
    while !shared.ended.load(Relaxed) {
        // Counted before it is read whether there are attacks: `rest` sets that first, and then waits for the count.
        shared.running.fetch_add(1, SeqCst);
        if shared.attacks.load(SeqCst) {
            let mut guard = start(&mut rng);
            let end = Instant::now() + LONGEST_LIFE.mul_f64(rng.below(1000) as f64 / 1000.0).max(STEP);
            let mut exited = false;
            while !exited && Instant::now() < end && shared.attacks.load(Relaxed) {
                sleep(STEP);
                exited = guard.0.try_wait().is_ok_and(|status| status.is_some());
            }
            if exited {
                record.ended += 1
            } else {
                record.killed += 1
            }
            shared.killed.fetch_add(u64::from(!exited), Relaxed);
            guard.kill();
        }
        shared.running.fetch_sub(1, SeqCst);
        sleep(Duration::from_millis(1 + rng.below(200)));
    }
    record
}

/// Starts the tenant of an attack; its errors are in the file `output`.
fn by_command(home: &Home, attack: &'static Attack, number: usize, near: Ns, this: &Path, output: PathBuf) -> Start {
    let program = |name: &str| public_copy(home.folder(), &program(name).to_string_lossy());
    let copy = match attack.what {
        What::Function(_) | What::FunctionInNamespace(_) => this.to_owned(),
        What::Program(name, _) | What::ProgramInNamespace(name, _) => program(name),
    };
    Box::new(move |rng| {
        let seed = rng.next_u64().to_string();
        let words = |args: &[&str]| -> Vec<String> {
            args.iter().map(|arg| if *arg == "SEED" { seed.clone() } else { (*arg).to_owned() }).collect()
        };
        let number = number.to_string();
        let own = ["tenant", "attack", &number, "SEED"];
        let mut command = match attack.what {
            What::Function(_) => as_user(Command::new("env"), attack.uid, &copy, &words(&own)),
            What::FunctionInNamespace(_) => as_user(near.command("env"), attack.uid, &copy, &words(&own)),
            What::Program(_, args) => as_user(Command::new("env"), attack.uid, &copy, &words(args)),
            What::ProgramInNamespace(_, args) => as_user(near.command("env"), attack.uid, &copy, &words(args)),
        };
        let errors = File::create(&output).map_or_else(|_| Stdio::null(), Stdio::from);
        Guard::spawn(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors))
    })
}

/// Completes a command: `ip`, `setpriv` and all others replace themselves by the program.
pub(crate) fn as_user(mut command: Command, uid: u32, program: &Path, args: &[String]) -> Command {
    let uid = uid.to_string();
    command.args(["setsid", "sh", "-c", LOWEST_PRIORITY, "sh"]);
    command.args(["setpriv", "--reuid", &uid, "--regid", &uid, "--clear-groups", "--"]);
    command.arg(program).args(args).env("RUST_BACKTRACE", "0");
    command
}

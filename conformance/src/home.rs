// SPDX-License-Identifier: BSD-2-Clause
//! A daemon and a process for each test, with no process left behind.
//!
//! A test runs itself again in a new process, whose environment names a socket in a fresh folder: the first port that
//! it opens starts the daemon there. Afterwards the daemon is stopped, and its log must not contain a panic.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{PoisonError, RwLock};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{
    Pid, Resource, Rlimit, Signal, getppid, getrlimit, kill_current_process_group, kill_process, kill_process_group,
    setrlimit,
};
use rustix::thread::{CpuSet, sched_getaffinity};

use crate::snapshot::Snapshot;

/// How long a test waits for anything that must happen. It bounds liveness and does not measure speed.
pub const LIMIT: Duration = Duration::from_secs(120);
/// Maximum duration of a whole test.
const TEST_LIMIT: Duration = Duration::from_secs(600);
/// How often a test that a delay may disturb is run at most.
const ATTEMPTS: u32 = 3;
/// Environment variable: the file to which the names of repeated tests are added, a line each. `make test` prints them.
const REPEATS: &str = "UNETMAP_TEST_REPEATS";
/// The daemon's message after it was kept from running for more than the time after which interfaces are the kernel's.
const DELAYED: &str = "the daemon was delayed";
/// Environment variable: the name of the test whose body this process runs.
const INSIDE: &str = "UNETMAP_TEST_INSIDE";
/// Output lines with this prefix are shown even when the test passes.
const SUMMARY: &str = "summary: ";

/// Why an attempt failed.
pub struct Failure {
    /// Its output.
    pub text: String,
    /// Its daemon's log.
    pub log: String,
}

/// Calls `attempt`, which returns its result, and why it failed, if it did. Calls it again, [`ATTEMPTS`] times at most,
/// if the log says that the machine stood still for seconds: interfaces were then given back to the kernel, as they
/// should be, and packets that a test counts are lost. Each repeat is printed, and counted ([`count_repeat`]).
pub fn repeated_if_delayed<T>(name: &str, attempt: impl FnMut() -> (T, Option<Failure>)) -> T {
    repeat_if_delayed(attempt, |text| {
        // Written directly, because the test runner captures the output of println! and hides it for passed tests.
        let _ = writeln!(std::io::stdout(), "{name}: repeated, as {DELAYED}:\n{text}");
        count_repeat(name);
    })
}

/// Does so, and calls `tell` before each repeat.
fn repeat_if_delayed<T>(mut attempt: impl FnMut() -> (T, Option<Failure>), mut tell: impl FnMut(&str)) -> T {
    let mut attempts = 1;
    loop {
        let (result, failure) = attempt();
        match failure.filter(|failure| attempts < ATTEMPTS && failure.log.contains(DELAYED)) {
            None => return result,
            Some(Failure { text, .. }) => tell(&text),
        }
        attempts += 1;
    }
}

/// Counts a repeat of a test, or of a part of it, for `make test`, which prints how many there were at its end.
pub fn count_repeat(name: &str) {
    if let Some(path) = std::env::var_os(REPEATS) {
        let file = File::options().append(true).open(path).expect("the file of repeats");
        let _ = writeln!(&file, "{}", name.replace(' ', "_"));
    }
}

/// The test's folder and daemon.
pub struct Home {
    folder: PathBuf,
}

/// Held for reading by each running test, and for writing by a test that must not share the machine with another one.
/// The outer process of the test holds it. `.ci/test`, which runs several test programs at once, runs the latter tests
/// after all others.
static MACHINE: RwLock<()> = RwLock::new(());

/// Runs `body` in a process and with a daemon of its own. Call it once in a test, with nothing around it.
///
/// The process is a new one (exec), so a test may set environment variables, change its limits, handle signals and
/// fork: no other test shares its memory or inherits its descriptors.
pub fn isolated<F: FnOnce(&Home)>(body: F) {
    run(body, false, || MACHINE.read().unwrap_or_else(PoisonError::into_inner));
}

/// Does the same for a test that opens interfaces, whose packets are lost if the machine stands still for seconds: only
/// then it is repeated ([`repeated_if_delayed`]).
pub fn isolated_with_interfaces<F: FnOnce(&Home)>(body: F) {
    run(body, true, || MACHINE.read().unwrap_or_else(PoisonError::into_inner));
}

/// Does the same while no other test runs: for tests that measure the processor time of something idle, or that load
/// all processors by themselves. Such a test is in a module `alone`, by which `make test` finds it.
pub fn isolated_alone<F: FnOnce(&Home)>(body: F) {
    let name = test_of::<F>();
    assert!(name.contains("alone::"), "{name} is in no module `alone`, so `make test` runs it beside others");
    run(body, false, || MACHINE.write().unwrap_or_else(PoisonError::into_inner));
}

/// The name of the test in which a closure stands.
fn test_of<F>() -> &'static str {
    // The type name of a closure contains the path of its test: crate::module::test::{{closure}}.
    let path = std::any::type_name::<F>();
    path.split_once("::").map_or(path, |(_, rest)| rest).trim_end_matches("::{{closure}}")
}

fn run<F: FnOnce(&Home), L>(body: F, has_interfaces: bool, lock: impl FnOnce() -> L) {
    let name = test_of::<F>();
    if std::env::var(INSIDE).is_ok_and(|inside| inside == name) {
        let socket = PathBuf::from(std::env::var_os("UNETMAP_SOCKET").expect("set by the outer process"));
        end_with_starter();
        return body(&Home { folder: socket.parent().expect("a file in a folder").to_owned() });
    }
    let _lock = lock();
    let repeatable = || {
        repeated_if_delayed(name, || {
            let attempt = attempt(name);
            let failure = (!attempt.passed).then(|| Failure { text: attempt.text.clone(), log: attempt.log.clone() });
            (attempt, failure)
        })
    };
    let Attempt { passed, text, log } = if has_interfaces { repeatable() } else { attempt(name) };
    if !passed {
        let end = &log[log.len().saturating_sub(3000)..];
        panic!("{name} failed, or took more than {TEST_LIMIT:?}:\n{text}\nend of the daemon's log:\n{end}");
    }
    assert!(text.contains("1 passed"), "no test of the name {name} ran:\n{text}");
    assert!(!log.contains("panicked"), "the daemon panicked:\n{log}");
    for line in text.lines().filter(|line| line.starts_with(SUMMARY)) {
        // As above.
        let _ = writeln!(std::io::stdout(), "{name}: {}", &line[SUMMARY.len()..]);
    }
}

/// A test's output, and its daemon's log.
struct Attempt {
    passed: bool,
    text: String,
    log: String,
}

/// Runs the test `name` in a process and with a daemon of its own.
fn attempt(name: &str) -> Attempt {
    let folder = tempfile::Builder::new().prefix("unetmap-").tempdir().expect("a folder for the test");
    let home = Home { folder: folder.path().to_owned() };
    let output = folder.path().join("output");
    let to = File::create(&output).expect("a file for the test's output");
    let mut inside = Command::new(std::env::current_exe().expect("the path of this program"))
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(INSIDE, name)
        .env("UNETMAP_SOCKET", home.socket())
        .env("UNETMAPD", first_daemon())
        // Programs are pinned in no BPF file system of the machine, but in one that the test mounts there, if any.
        .env("LIBXDP_BPFFS", folder.path().join("bpf"))
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(to.try_clone().expect("a second handle of a file"))
        .stderr(to)
        .process_group(0)
        .spawn()
        .expect("the test runs itself");
    let passed = wait_within(&mut inside, TEST_LIMIT).is_some_and(|status| status.success());
    if !passed && let Some(group) = Pid::from_raw(inside.id() as i32) {
        // Kills everything that the failed test had started.
        let _ = kill_process_group(group, Signal::KILL);
        let _ = inside.wait();
    }
    home.end_daemon();
    crate::node::detach(&crate::node::mount_of(&home));
    home.forget_lasting();
    let text = fs::read_to_string(&output).unwrap_or_default();
    Attempt { passed, text, log: fs::read_to_string(home.log()).unwrap_or_default() }
}

/// Kills this process and everything that it started when its parent has exited: otherwise an interrupted test run
/// would leave busy programs behind.
fn end_with_starter() {
    let starter = getppid();
    std::thread::spawn(move || {
        while getppid() == starter {
            sleep(Duration::from_millis(500));
        }
        let _ = kill_current_process_group(Signal::KILL);
    });
}

/// The processes of a daemon that were started with an option.
pub fn processes_of(home: &Home, option: &[u8]) -> Vec<PathBuf> {
    let has = |process: &Path, line: &[u8]| {
        let has = line.split(|byte| *byte == 0).any(|argument| argument == option);
        has && fs::read_link(process.join("fd/2")).is_ok_and(|log| log == home.log())
    };
    processes(has).collect()
}

/// The folders in `/proc` of processes for which `is` returns true; it gets their command lines, too.
fn processes(is: impl Fn(&Path, &[u8]) -> bool) -> impl Iterator<Item = PathBuf> {
    let all = fs::read_dir("/proc").expect("proc").flatten().map(|entry| entry.path());
    all.filter(move |process| is(process, &fs::read(process.join("cmdline")).unwrap_or_default()))
}

/// The processes of the test's daemon, with those that help it.
pub fn daemon_processes(home: &Home) -> Vec<Pid> {
    let socket = home.socket();
    let is_of = |process: &Path, line: &[u8]| {
        let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
        name.starts_with("unetmapd") && String::from_utf8_lossy(line).contains(&*socket.to_string_lossy())
    };
    let number = |process: PathBuf| process.file_name()?.to_str()?.parse().ok().and_then(Pid::from_raw);
    processes(is_of).filter_map(number).collect()
}

/// Kills all processes of the test's daemon, as when a whole control group is killed, and waits until they have ended.
#[track_caller]
pub fn kill_daemon(home: &Home) {
    let all = daemon_processes(home);
    all.iter().for_each(|pid| _ = kill_process(*pid, Signal::KILL));
    until_ended(home, &all);
}

/// Waits until the processes of the test's daemon have ended, of which `before` were all: one that still closes its
/// files has no command line any more by which it could be found.
#[track_caller]
pub fn until_ended(home: &Home, before: &[Pid]) {
    until("all processes of the daemon have ended", || {
        daemon_processes(home).is_empty() && !before.iter().any(|pid| is_alive(*pid))
    });
}

/// Prints a line with the test's figures, which is shown even when the test passes.
pub fn summary(line: &str) {
    println!("\n{SUMMARY}{line}");
}

/// Whether a daemon listens at `socket`.
pub fn daemon_listens(socket: &Path) -> bool {
    connection(socket).is_some()
}

/// A connection to the daemon that listens at `socket`, if one does. While a test keeps it, an idle daemon does not
/// exit.
pub fn connection(socket: &Path) -> Option<OwnedFd> {
    let address = SocketAddrUnix::new(socket).ok()?;
    let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).ok()?;
    connect(&fd, &address).ok()?;
    Some(fd)
}

/// The output of `unetmap ls --json` about the daemon at `socket`; else why there is none.
pub fn snapshot_of(socket: &Path) -> Result<Snapshot, String> {
    snapshot_by(Command::new(program("unetmap")).env("UNETMAP_SOCKET", socket))
}

/// The output of `command`, which runs `unetmap`, about the daemon: for daemons of other users; else why there is none.
pub fn snapshot_by(command: &mut Command) -> Result<Snapshot, String> {
    let output = command.args(["ls", "--json"]).stdin(Stdio::null()).output().map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        return Err(format!("unetmap ls: {}: {text}{}", output.status, String::from_utf8_lossy(&output.stderr)));
    }
    let snapshot: Option<Snapshot> = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    snapshot.ok_or_else(|| format!("no daemon: {}", String::from_utf8_lossy(&output.stderr)))
}

/// The snapshot of the daemon of the test in whose process this is called.
#[track_caller]
pub fn own_snapshot() -> Snapshot {
    let socket = std::env::var_os("UNETMAP_SOCKET").expect("the test has a daemon of its own");
    snapshot_of(Path::new(&socket)).unwrap_or_else(|why| panic!("{why}"))
}

/// The processors that this process may use.
pub fn cpus_allowed() -> Vec<usize> {
    let set = sched_getaffinity(None).expect("a mask of processors");
    (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
}

/// Sets a limit of a daemon: open files, or bytes of address space (`AS`). `None`: as many as this process may
/// have. Only a process of the same user may do that everywhere, and root's daemon has become another one.
#[track_caller]
pub fn limit_daemon(daemon: Pid, what: Resource, to: Option<u64>) {
    let pid = daemon.as_raw_nonzero();
    let text = fs::read_to_string(format!("/proc/{pid}/status")).expect("the daemon runs");
    let id = |field: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(field)).expect("a line of status");
        line.split_whitespace().next().and_then(|id| id.parse::<u32>().ok()).expect("a number")
    };
    let option = match what {
        Resource::Nofile => "--nofile",
        Resource::As => "--as",
        other => panic!("{other:?}"),
    };
    let to = to.or(getrlimit(what).maximum).map_or_else(|| "unlimited".into(), |to| to.to_string());
    let mut command = Command::new("prlimit");
    command.uid(id("Uid:")).gid(id("Gid:")).args(["--pid", &pid.to_string()]).arg(format!("{option}={to}:"));
    let output = command.output().expect("prlimit, of util-linux");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Raises this process's limit of open files as far as it may.
pub fn raise_fd_limit() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).expect("a limit up to the maximum");
}

/// The nanoseconds that a thread ran, by its `schedstat`, and how often it waited.
fn effort(task: &Path) -> (u64, u64) {
    let read = |file| fs::read_to_string(task.join(file)).expect("a thread that goes on");
    let (ran, status) = (read("schedstat"), read("status"));
    let waits = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    let number = |text: &str| text.trim().parse().expect("a number");
    (number(ran.split(' ').next().expect("a word")), number(waits.expect("a line of waits")))
}

/// The numbers of the files that a process has open, but for memory files that root's daemon has made ahead, and uses
/// for the next ports: those are empty.
#[track_caller]
pub fn files_of(pid: i32) -> Vec<u32> {
    let is_ahead = |link: &Path| {
        let is_memory = fs::read_link(link).is_ok_and(|target| target.starts_with("/memfd:unetmap (deleted)"));
        is_memory && fs::metadata(link).is_ok_and(|file| file.len() == 0)
    };
    let all = fs::read_dir(format!("/proc/{pid}/fd")).expect("the process runs").flatten();
    let counted = all.filter(|entry| !is_ahead(&entry.path()));
    counted.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The highest number of [`files_of`] a daemon, but for its listening socket, which is far above all others.
#[track_caller]
pub fn highest_file(daemon: Pid) -> u32 {
    files_of(daemon.as_raw_pid()).into_iter().filter(|number| *number < 10_000).max().expect("its files")
}

/// Waits for the exit of `child`; returns `None` if it has not exited within `limit`.
pub fn wait_within(child: &mut Child, limit: Duration) -> Option<std::process::ExitStatus> {
    let end = Instant::now() + limit;
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        if Instant::now() >= end {
            return None;
        }
        sleep(Duration::from_millis(2));
    }
}

/// Waits until `done` returns true; panics with `what` after [`LIMIT`].
#[track_caller]
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !done() {
        assert!(Instant::now() < end, "not within {LIMIT:?}: {what}");
        sleep(Duration::from_millis(2));
    }
}

/// The daemon's program that a test begins with: this build's or, by `make test-long STEPS=previous`, that of an
/// earlier one, which tests of replacements replace by this build's.
pub fn first_daemon() -> PathBuf {
    std::env::var_os("PREVIOUS").map_or_else(|| program("unetmapd"), PathBuf::from)
}

/// The path of a program of this project, built as this test is.
pub fn program(name: &str) -> PathBuf {
    let exe = std::env::current_exe().expect("the path of this program");
    let profile = exe.ancestors().nth(2).expect("tests are in target/PROFILE/deps").to_owned();
    let path = profile.join(name);
    if !path.exists() {
        let option = match profile.file_name().and_then(|folder| folder.to_str()) {
            None | Some("debug") => String::new(),
            Some(profile) => format!(" --profile {profile}"),
        };
        let folder = profile.display();
        panic!(
            "{name} is not in {folder}: build it first, with `cargo build --locked{option} --workspace --all-targets` (`make \
             test` does)"
        );
    }
    path
}

impl Home {
    /// Makes the folder and a home in it, for tests without the test harness. A program that opens a port starts the
    /// daemon.
    ///
    /// # Errors
    /// The folder cannot be created.
    pub fn at(folder: &Path) -> std::io::Result<Home> {
        fs::create_dir(folder)?;
        Ok(Home { folder: folder.to_owned() })
    }

    /// The test's folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The socket of the test's daemon.
    pub fn socket(&self) -> PathBuf {
        self.folder.join("unetmapd.sock")
    }

    /// Whether the test's daemon listens.
    pub fn serves(&self) -> bool {
        daemon_listens(&self.socket())
    }

    /// Waits for the test's daemon; it does not exit for want of clients while the connection is kept.
    pub fn connected(&self) -> OwnedFd {
        let mut kept = None;
        until("the daemon listens", || {
            kept = connection(&self.socket());
            kept.is_some()
        });
        kept.expect("a connection")
    }

    /// The daemon's log file.
    pub fn log(&self) -> PathBuf {
        self.folder.join("unetmapd.sock.log")
    }

    /// The daemon's snapshot.
    #[track_caller]
    pub fn snapshot(&self) -> Snapshot {
        let failed = |why| panic!("{why}\n{}", crate::thread::stacks_of(&daemon_processes(self)));
        snapshot_of(&self.socket()).unwrap_or_else(failed)
    }

    /// The daemon's snapshot; `None` if no daemon answers.
    pub fn try_snapshot(&self) -> Option<Snapshot> {
        snapshot_of(&self.socket()).ok()
    }

    /// The daemon's process id.
    #[track_caller]
    pub fn daemon(&self) -> Pid {
        Pid::from_raw(self.snapshot().daemon.pid as i32).expect("a process id")
    }

    /// Ends the daemon, and all that would outlast it.
    #[track_caller]
    pub fn stop_all(&self) {
        let (mut command, args) = (Command::new(program("unetmap")), ["stop", "--force", "--all"]);
        let output = command.env("UNETMAP_SOCKET", self.socket()).args(args).output().expect("it runs");
        assert!(output.status.success(), "{output:?}");
    }

    /// Waits until the daemon has no more than `n` of [`files_of`].
    #[track_caller]
    pub fn until_fds(&self, n: usize) {
        until("the daemon has closed what it does not need", || self.daemon_fds() <= n);
    }

    /// Number of [`files_of`] the daemon.
    #[track_caller]
    pub fn daemon_fds(&self) -> usize {
        let pid = self.daemon().as_raw_pid();
        // The daemon may not have closed the connection of the last snapshot yet: wait until the number is stable.
        let count = || files_of(pid).len();
        let (mut last, mut same) = (count(), 0);
        until("the daemon's files settle", || {
            sleep(Duration::from_millis(20));
            let now = count();
            same = if std::mem::replace(&mut last, now) == now { same + 1 } else { 0 };
            same == 3
        });
        last
    }

    /// A line of the daemon's `/proc/PID/status`, in KiB.
    #[track_caller]
    pub fn daemon_kib(&self, field: &str) -> u64 {
        let pid = self.daemon().as_raw_nonzero();
        let text = fs::read_to_string(format!("/proc/{pid}/status")).expect("the daemon runs");
        let line = text.lines().find(|line| line.starts_with(field)).expect("a line of /proc/PID/status");
        line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number of KiB")
    }

    /// Number of the daemon's threads with this name prefix that are pinned to processor `cpu`.
    #[track_caller]
    pub fn threads_kept_on(&self, name: &str, cpu: u32) -> usize {
        let wanted = format!("Cpus_allowed_list:\t{cpu}");
        let kept = |task: &Path| {
            let read = |file| fs::read_to_string(task.join(file)).unwrap_or_default();
            read("comm").starts_with(name) && read("status").lines().any(|line| line == wanted)
        };
        self.daemon_tasks().iter().filter(|task| kept(task)).count()
    }

    /// Returns the daemon's effort in `period`, in which nothing asks it anything: the time that its threads run, and
    /// the number of times that they wait (voluntary context switches).
    #[track_caller]
    pub fn daemon_effort(&self, period: Duration) -> (Duration, u64) {
        let tasks = self.daemon_tasks();
        // The thread that replied may still close the connection of the snapshot.
        sleep(Duration::from_millis(300));
        let now = || tasks.iter().map(|task| effort(task)).fold((0, 0), |(a, b), (c, d)| (a + c, b + d));
        let before = now();
        sleep(period);
        let after = now();
        (Duration::from_nanos(after.0 - before.0), after.1 - before.1)
    }

    /// The number of voluntary context switches of the daemon's threads until now, with those of one snapshot.
    #[track_caller]
    pub fn daemon_switches(&self) -> u64 {
        self.daemon_tasks().iter().map(|task| effort(task).1).sum()
    }

    fn daemon_tasks(&self) -> Vec<PathBuf> {
        let pid = self.daemon().as_raw_nonzero();
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the daemon runs");
        tasks.map(|task| task.expect("a thread").path()).collect()
    }

    /// The queues of an attached interface that have a polling CPU, and which one.
    #[track_caller]
    pub fn polled(&self, port: &str) -> Vec<(u16, u32)> {
        let books = self.snapshot();
        let port = books.ports.into_iter().find(|found| found.name == port).expect("an open port");
        port.polled.into_iter().collect()
    }

    /// Stops the daemon by SIGTERM, if one runs, and waits for its exit.
    pub fn end_daemon(&self) {
        let Some(snapshot) = self.try_snapshot() else { return };
        let Some(pid) = Pid::from_raw(snapshot.daemon.pid as i32) else { return };
        let _ = kill_process(pid, Signal::TERM);
        until("the daemon ends on SIGTERM", || !is_alive(pid));
    }

    /// Lets persistent ports end that would outlast the test's daemons, which have ended.
    pub fn forget_lasting(&self) {
        let folders = fs::read_dir(&self.folder).into_iter().flatten().flatten().map(|entry| entry.path());
        for folder in folders.filter(|path| path.extension().is_some_and(|end| end == "ports")) {
            while crate::node::detach_once(&folder.join("namespace")).is_ok() {}
        }
    }

    /// Waits until only `n` sessions are left, and no interface is still being closed after the end of others.
    #[track_caller]
    pub fn until_left(&self, n: usize) {
        until("only the expected sessions are left", || {
            let now = self.snapshot();
            now.sessions.len() == n && now.ports.iter().all(|port| port.open || port.kind != "nic")
        });
    }

    /// Checks that the daemon serves a new client: packets cross a new pipe in both directions.
    #[track_caller]
    pub fn assert_serves(&self) {
        crate::traffic::assert_pipe_works("netmap:honest{1", "netmap:honest}1");
    }
}

/// Whether any thread of a process runs (a zombie does not): the last one closes its files, and need not be the first.
pub fn is_alive(pid: Pid) -> bool {
    let threads = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).into_iter().flatten().flatten();
    threads
        .map(|thread| fs::read_to_string(thread.path().join("stat")).unwrap_or_default())
        .any(|stat| stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X'])))
}

/// A child process that is killed when the guard is dropped.
pub struct Guard(pub Child);

impl Guard {
    /// Starts it.
    #[track_caller]
    pub fn spawn(command: &mut Command) -> Guard {
        Guard(command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}")))
    }

    /// Its process id.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.0.id() as i32).expect("a process id")
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let _ = kill_process(self.pid(), signal);
    }

    /// Kills it and waits for its exit.
    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    /// Waits for its exit.
    #[track_caller]
    pub fn wait(&mut self) -> std::process::ExitStatus {
        wait_within(&mut self.0, LIMIT).expect("a process that ends")
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the profile that this test was built with, and no other.
    #[test]
    #[should_panic(expected = "--workspace --all-targets")]
    fn a_program_that_was_not_built_is_named_with_its_build() {
        program("no-such-program");
    }

    #[test]
    fn a_process_is_alive_until_its_last_thread_has_ended() {
        let first_thread_ends = format!("ctypes.CDLL(None).syscall({}, 0)", libc::SYS_exit);
        let code = format!(
            "import ctypes, threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\n{first_thread_ends}"
        );
        let Ok(python) = Command::new("python3").arg("-c").arg(code).spawn().map(Guard) else {
            return summary("skipped: there is no python3");
        };
        let stat = format!("/proc/{}/stat", python.0.id());
        until("its first thread has ended", || fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") Z ")));
        assert!(is_alive(python.pid()));
        python.signal(Signal::KILL);
        until("all of it has ended", || !is_alive(python.pid()));
    }

    #[test]
    fn only_an_attempt_of_a_delayed_daemon_is_repeated() {
        for (log, expected) in [("ready", 1), (DELAYED, ATTEMPTS)] {
            let (mut attempts, mut told) = (0, 0);
            let failure = || {
                attempts += 1;
                ((), Some(Failure { text: String::new(), log: log.to_owned() }))
            };
            repeat_if_delayed(failure, |_| told += 1);
            assert_eq!((attempts, told), (expected, expected - 1));
        }
        assert!(repeat_if_delayed(|| (true, None), |_| ()));
    }
}

//! A daemon for each test, and no process left behind.
//!
//! A test runs itself once more as a process of its own, whose environment names a socket in a fresh folder: the first
//! port that it opens starts the daemon there. Afterwards that daemon is ended, and its log must not tell of a panic.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getppid, kill_current_process_group, kill_process, kill_process_group};

use crate::books::Snapshot;
use crate::raw::Raw;

/// How long a test waits for anything that must happen: a limit of liveness, not a measure of speed.
pub const LIMIT: Duration = Duration::from_secs(30);
/// How long a whole test may take.
const TEST_LIMIT: Duration = Duration::from_secs(200);
/// Names the test that a process is to run itself.
const INSIDE: &str = "UNETMAP_TEST_INSIDE";
/// Output lines that begin so are shown even when the test passes.
const SUMMARY: &str = "summary: ";

/// The test's folder and daemon.
pub struct Home {
    folder: PathBuf,
}

/// Runs `body` in a process and with a daemon of its own. Call it once in a test, with nothing around it.
pub fn isolated<F: FnOnce(&Home)>(body: F) {
    // The type of a closure carries the path of the test that it stands in: crate::test::{{closure}}.
    let path = std::any::type_name::<F>();
    let name = path.split_once("::").map_or(path, |(_, rest)| rest).trim_end_matches("::{{closure}}");
    if std::env::var(INSIDE).is_ok_and(|inside| inside == name) {
        let socket = PathBuf::from(std::env::var_os("UNETMAP_SOCKET").expect("set by the outer process"));
        end_with_starter();
        return body(&Home { folder: socket.parent().expect("a file in a folder").to_owned() });
    }
    let folder = tempfile::Builder::new().prefix("unetmap-").tempdir().expect("a folder for the test");
    let home = Home { folder: folder.path().to_owned() };
    let output = folder.path().join("output");
    let to = File::create(&output).expect("a file for the test's output");
    let mut inside = Command::new(std::env::current_exe().expect("this program has a name"))
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(INSIDE, name)
        .env("UNETMAP_SOCKET", home.socket())
        .env("UNETMAPD", program("unetmapd"))
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(to.try_clone().expect("a second handle of a file"))
        .stderr(to)
        .process_group(0)
        .spawn()
        .expect("the test runs itself");
    let passed = wait_within(&mut inside, TEST_LIMIT).is_some_and(|status| status.success());
    if !passed && let Some(group) = Pid::from_raw(inside.id() as i32) {
        // Whatever a failed test had started.
        let _ = kill_process_group(group, Signal::KILL);
        let _ = inside.wait();
    }
    home.end_daemon();
    crate::node::detach(&crate::node::mount_of(&home));
    let text = fs::read_to_string(&output).unwrap_or_default();
    let log = fs::read_to_string(home.log()).unwrap_or_default();
    if !passed {
        let end = &log[log.len().saturating_sub(3000)..];
        panic!("{name} failed, or took more than {TEST_LIMIT:?}:\n{text}\nend of the daemon's log:\n{end}");
    }
    assert!(text.contains("1 passed"), "no test of the name {name} ran:\n{text}");
    assert!(!log.contains("panicked"), "the daemon panicked:\n{log}");
    for line in text.lines().filter(|line| line.starts_with(SUMMARY)) {
        // Past the capture of the test runner, which hides what passed.
        let _ = writeln!(std::io::stdout(), "{name}: {}", &line[SUMMARY.len()..]);
    }
}

/// When the process that started this one has died, this one ends, and all that it started: else a test that is ended from
/// outside would leave programs that keep processors busy.
fn end_with_starter() {
    let starter = getppid();
    std::thread::spawn(move || {
        while getppid() == starter {
            sleep(Duration::from_millis(500));
        }
        let _ = kill_current_process_group(Signal::KILL);
    });
}

/// Prints the line that tells what a test did.
pub fn summary(line: &str) {
    println!("\n{SUMMARY}{line}");
}

/// Waits for the end of `child`; `None` when it is not over within `limit`.
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

/// Waits until `done`, at most [`LIMIT`]; then panics with `what`.
#[track_caller]
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !done() {
        assert!(Instant::now() < end, "not within {LIMIT:?}: {what}");
        sleep(Duration::from_millis(2));
    }
}

/// A program of this project: beside the tests of this build or in the release build, whichever is newer.
pub fn program(name: &str) -> PathBuf {
    let exe = std::env::current_exe().expect("this program has a name");
    let profile = exe.ancestors().nth(2).expect("tests stand in target/PROFILE/deps").to_owned();
    let release = profile.with_file_name("release");
    let built = |path: &PathBuf| fs::metadata(path).and_then(|meta| meta.modified()).ok();
    let found = [profile.join(name), release.join(name)].into_iter().filter(|path| built(path).is_some());
    found.max_by_key(built).unwrap_or_else(|| {
        let (a, b) = (profile.display(), release.display());
        panic!(
            "{name} is neither in {a} nor in {b}: build it first, with \
             `cargo build --release -p unetmap-daemon -p pkt-gen -p bridge` (`make test` does)"
        )
    })
}

impl Home {
    /// A home in a folder that is made for it, for programs that are no tests of the usual kind. Its daemon is the one that
    /// a program starts there.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn at(folder: &Path) -> std::io::Result<Home> {
        fs::create_dir(folder)?;
        Ok(Home { folder: folder.to_owned() })
    }

    /// The test's own folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where the test's daemon listens.
    pub fn socket(&self) -> PathBuf {
        self.folder.join("unetmapd.sock")
    }

    /// What the daemon says.
    pub fn log(&self) -> PathBuf {
        self.folder.join("unetmapd.sock.log")
    }

    /// The daemon's books, over a fresh connection.
    #[track_caller]
    pub fn snapshot(&self) -> Snapshot {
        self.try_snapshot().expect("a daemon that answers")
    }

    /// The same; `None` when no daemon answers.
    pub fn try_snapshot(&self) -> Option<Snapshot> {
        Raw::connect(&self.socket()).ok()?.snapshot()
    }

    /// The daemon's process.
    #[track_caller]
    pub fn daemon(&self) -> Pid {
        Pid::from_raw(self.snapshot().daemon.pid as i32).expect("a process id")
    }

    /// How many files the daemon has open, counted over `/proc`.
    #[track_caller]
    pub fn daemon_fds(&self) -> usize {
        let pid = self.daemon().as_raw_nonzero();
        // The connection that asked for the number may not be closed yet at the other end: wait for a quiet moment.
        let count = || fs::read_dir(format!("/proc/{pid}/fd")).expect("the daemon lives").count();
        let mut last = count();
        until("the daemon's files settle", || {
            sleep(Duration::from_millis(20));
            let now = count();
            std::mem::replace(&mut last, now) == now
        });
        last
    }

    /// A line of the daemon's `/proc/PID/status`, in KiB.
    #[track_caller]
    pub fn daemon_kib(&self, field: &str) -> u64 {
        let pid = self.daemon().as_raw_nonzero();
        let text = fs::read_to_string(format!("/proc/{pid}/status")).expect("the daemon lives");
        let line = text.lines().find(|line| line.starts_with(field)).expect("a line of /proc/PID/status");
        line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number of KiB")
    }

    /// Of the daemon's threads, those of which the names begin so: how many must stay on processor `cpu`.
    #[track_caller]
    pub fn threads_kept_on(&self, name: &str, cpu: u32) -> usize {
        let wanted = format!("Cpus_allowed_list:\t{cpu}");
        let kept = |task: &Path| {
            let read = |file| fs::read_to_string(task.join(file)).unwrap_or_default();
            read("comm").starts_with(name) && read("status").lines().any(|line| line == wanted)
        };
        self.daemon_tasks().iter().filter(|task| kept(task)).count()
    }

    /// Ticks of the processor that the daemon has used, and how often its threads went to sleep by themselves.
    #[track_caller]
    pub fn daemon_effort(&self) -> (u64, u64) {
        let one = |task: &PathBuf| {
            let read = |file| fs::read_to_string(task.join(file)).unwrap_or_default();
            let (stat, status) = (read("stat"), read("status"));
            let after = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
            let ticks = after.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<u64>().ok()).sum::<u64>();
            let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            (ticks, line.and_then(|n| n.trim().parse::<u64>().ok()).unwrap_or(0))
        };
        self.daemon_tasks().iter().map(one).fold((0, 0), |(a, b), (c, d)| (a + c, b + d))
    }

    fn daemon_tasks(&self) -> Vec<PathBuf> {
        let pid = self.daemon().as_raw_nonzero();
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the daemon lives");
        tasks.map(|task| task.expect("a thread").path()).collect()
    }

    /// The queues of an attached interface that have processors of their own, and which.
    #[track_caller]
    pub fn polled(&self, port: &str) -> Vec<(u16, u32)> {
        let books = self.snapshot();
        let port = books.ports.into_iter().find(|found| found.name == port).expect("an open port");
        port.polled.into_iter().collect()
    }

    /// Ends the daemon as its owner would, if there is one, and waits for its end.
    pub fn end_daemon(&self) {
        let Some(snapshot) = self.try_snapshot() else { return };
        let Some(pid) = Pid::from_raw(snapshot.daemon.pid as i32) else { return };
        let _ = kill_process(pid, Signal::TERM);
        until("the daemon ends on SIGTERM", || !is_alive(pid));
    }

    /// Checks that a new client is served in full: a pipe carries 100 packets whole.
    #[track_caller]
    pub fn assert_serves(&self) {
        crate::traffic::assert_pipe_works("netmap:honest{1", "netmap:honest}1");
    }
}

/// Whether a process runs (a zombie does not).
pub fn is_alive(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

/// A child that is killed when its guard goes.
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

    /// Kills it and waits for its end.
    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    /// Waits for its end.
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

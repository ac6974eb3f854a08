// SPDX-License-Identifier: BSD-2-Clause
//! Measurements: the daemon's memory and descriptors, and how long the honest tenant's opens take.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use conformance::Home;
use conformance::home::{Guard, LIMIT, files_of};
use conformance::snapshot::Work;
use rustix::process::Signal;

use crate::honest::PROBE_USER;
use crate::{start_ready, tenant};

/// KiB by which the daemon's memory may differ between two moments without attacks: the heap keeps what was freed
/// between allocations that are in use.
const SLACK_KIB: u64 = 16 << 10;
/// Descriptors that the daemon makes when it first needs them, and keeps: what an idle thread of the switches waits at,
/// and its listener, an epoll instance and a doorbell.
const LAZY_DESCRIPTORS: usize = 4;

/// Memory and descriptors of the daemon.
#[derive(Clone, Copy, Default)]
struct Size {
    /// Resident private memory, KiB: heap and stacks.
    anonymous: u64,
    /// Resident shared memory, KiB.
    shared: u64,
    descriptors: usize,
}

/// The daemon, seen from outside.
pub(crate) struct Watch {
    pid: i32,
    first: Size,
    baseline: Size,
    last: Size,
    largest: Size,
    now: Size,
    begin: Instant,
    /// Time of the control thread on a CPU, and waiting for one, at `begin`.
    cpu: [Duration; 2],
    /// Number of descriptors of each kind in `first`, and in `last`.
    kinds: [BTreeMap<String, usize>; 2],
}

impl Watch {
    #[track_caller]
    pub(crate) fn new(home: &Home) -> Watch {
        let pid = home.daemon().as_raw_pid();
        let none = Size::default();
        let begin = Instant::now();
        Watch {
            pid,
            first: none,
            baseline: none,
            last: none,
            largest: none,
            now: none,
            begin,
            cpu: cpu_times(pid),
            kinds: Default::default(),
        }
    }

    /// Measures at any moment.
    pub(crate) fn sample(&mut self) {
        self.now = self.measure();
        self.largest.anonymous = self.largest.anonymous.max(self.now.anonymous);
        self.largest.shared = self.largest.shared.max(self.now.shared);
        self.largest.descriptors = self.largest.descriptors.max(self.now.descriptors);
    }

    /// Measures while no hostile tenant runs, when everything of them and the probe's port is closed, and prints the
    /// result.
    pub(crate) fn quiet(&mut self, home: &Home, when: &str) {
        let end = Instant::now() + 2 * LIMIT;
        let mut least = usize::MAX;
        let mut left = usize::MAX;
        // The probe opens and closes: the least of many samples is without it.
        let mut since = Instant::now();
        let is_back = |least| self.first.descriptors == 0 || least <= self.first.descriptors + LAZY_DESCRIPTORS;
        while (since.elapsed() < Duration::from_secs(3) || !is_back(least)) && Instant::now() < end {
            let sessions = home.try_snapshot().map_or(usize::MAX, |snapshot| snapshot.sessions.len());
            let size = self.measure();
            if size.descriptors < least || sessions < left {
                since = Instant::now();
            }
            if size.descriptors < least {
                self.kinds[1] = self.kinds();
            }
            least = least.min(size.descriptors);
            left = left.min(sessions);
            std::thread::sleep(Duration::from_millis(20));
        }
        self.last = Size { descriptors: least, ..self.measure() };
        if self.first.descriptors == 0 {
            self.first = self.last;
            self.kinds[0] = self.kinds[1].clone();
        }
        println!("{when}: {}, sessions {left}", self.last.text());
    }

    /// The control thread's time since the start on a CPU, and waiting for one: what of its delays is the machine's.
    pub(crate) fn control_thread(&self) -> String {
        let all = self.begin.elapsed().as_secs_f64();
        let [ran, waited] = cpu_times(self.pid).map(|time| time.as_secs_f64());
        let percent = |now: f64, then: Duration| 100.0 * (now - then.as_secs_f64()) / all;
        let (ran, waited) = (percent(ran, self.cpu[0]), percent(waited, self.cpu[1]));
        format!("control thread {ran:.0} % on a CPU, {waited:.0} % waiting for one")
    }

    /// Later measurements are compared with the last one.
    pub(crate) fn set_baseline(&mut self) {
        self.baseline = self.last;
    }

    pub(crate) fn progress(&self) -> String {
        format!("{}, {}", self.now.text(), self.control_thread())
    }

    /// Prints the comparison; returns whether memory is flat and descriptors are back.
    pub(crate) fn finish(&self) -> bool {
        let memory = self.last.memory() <= self.baseline.memory() + SLACK_KIB;
        let descriptors = self.last.descriptors <= self.first.descriptors + LAZY_DESCRIPTORS;
        println!("{} daemon's memory without attacks: first {}", verdict(memory), self.baseline.text());
        println!(
            "{} daemon's descriptors without attacks: first {}, last {}",
            verdict(descriptors),
            self.first.descriptors,
            self.last.descriptors
        );
        if !descriptors {
            let [first, last] = &self.kinds;
            let changed = last.iter().filter(|(kind, count)| first.get(*kind) != Some(count));
            changed.for_each(|(kind, count)| println!("     {kind}: first {:?}, last {count}", first.get(kind)));
        }
        println!("     {}", self.control_thread());
        println!("     last {}; largest during attacks {}", self.last.text(), self.largest.text());
        memory && descriptors
    }

    /// Returns whether the daemon is the one that was started.
    pub(crate) fn same_daemon(&self, home: &Home) -> bool {
        let snapshot = home.try_snapshot();
        let now = snapshot.as_ref().map(|snapshot| snapshot.daemon.pid);
        let same = now == Some(self.pid.cast_unsigned());
        println!("{} daemon: process {} at the start, {now:?} at the end", verdict(same), self.pid);
        if let Some(work) = snapshot.map(|snapshot| snapshot.daemon.work) {
            let longest = work.longest_us as f64 / 1000.0;
            println!(
                "     work on the control thread: {} pieces, {} longer than 5 ms, longest {longest:.1} ms for user {}",
                work.pieces, work.long, work.longest_uid
            );
            print_kinds(&work);
        }
        same
    }

    /// Number of descriptors of each kind: the name of the file, without its numbers.
    fn kinds(&self) -> BTreeMap<String, usize> {
        let mut kinds = BTreeMap::new();
        for entry in std::fs::read_dir(format!("/proc/{}/fd", self.pid)).into_iter().flatten().flatten() {
            let name =
                std::fs::read_link(entry.path()).map_or_else(|_| "gone".into(), |path| path.display().to_string());
            *kinds.entry(name.replace(|c: char| c.is_ascii_digit(), "")).or_default() += 1;
        }
        kinds
    }

    fn measure(&self) -> Size {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let kib = |field: &str| {
            let line = text.lines().find(|line| line.starts_with(field));
            line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
        };
        let descriptors = files_of(self.pid).len();
        Size { anonymous: kib("RssAnon:"), shared: kib("RssShmem:"), descriptors }
    }
}

impl Size {
    fn memory(self) -> u64 {
        self.anonymous + self.shared
    }

    fn text(self) -> String {
        let mib = |kib: u64| kib as f64 / 1024.0;
        format!(
            "private memory {:.1} MiB, shared {:.1} MiB, descriptors {}",
            mib(self.anonymous),
            mib(self.shared),
            self.descriptors
        )
    }
}

/// Prints the kinds of work of the control thread, those that took most time first.
fn print_kinds(work: &Work) {
    let mut kinds: Vec<_> = work.kinds.iter().collect();
    kinds.sort_by_key(|(_, of)| std::cmp::Reverse(of.total_us));
    println!(
        "     {:32} {:>9} {:>10} {:>11} {:>12}",
        "kind of work", "pieces", "total, s", "above 5 ms", "longest, ms"
    );
    for (kind, of) in kinds {
        let (total, longest) = (of.total_us as f64 / 1e6, of.longest_us as f64 / 1000.0);
        println!("     {kind:32} {:>9} {total:>10.2} {:>11} {longest:>12.1}", of.pieces, of.long);
    }
}

/// The time of the main thread of a process on a CPU, and waiting for one.
fn cpu_times(pid: i32) -> [Duration; 2] {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/schedstat")).unwrap_or_default();
    let mut words = text.split_whitespace().map(|word| Duration::from_nanos(word.parse().unwrap_or(0)));
    [words.next().unwrap_or_default(), words.next().unwrap_or_default()]
}

pub(crate) fn verdict(passed: bool) -> &'static str {
    if passed { "ok  " } else { "FAIL" }
}

/// The machine's load, as in `uptime`.
pub(crate) fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

/// The probe, and how long its opens took.
pub(crate) struct Opens {
    guard: Guard,
    /// Microseconds.
    times: Arc<Mutex<Vec<u32>>>,
    /// Number of refusals.
    reader: JoinHandle<u64>,
}

impl Opens {
    #[track_caller]
    pub(crate) fn start(this: &Path) -> Opens {
        let mut guard = start_ready(&mut tenant(this, PROBE_USER, &["probe"])).guard;
        let out = BufReader::new(guard.0.stdout.take().expect("piped"));
        let times = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&times);
        let reader = std::thread::spawn(move || {
            let mut refused = 0;
            for line in out.lines().map_while(Result::ok) {
                match line.parse() {
                    Ok(time) => all.lock().unwrap_or_else(PoisonError::into_inner).push(time),
                    Err(_) => {
                        refused += 1;
                        println!("honest open {line}");
                    }
                }
            }
            refused
        });
        Opens { guard, times, reader }
    }

    fn sorted(&self) -> Vec<u32> {
        let mut times = self.times.lock().unwrap_or_else(PoisonError::into_inner).clone();
        times.sort_unstable();
        times
    }

    pub(crate) fn progress(&self) -> String {
        let times = self.sorted();
        format!("{} opens, 99th percentile {:.1} ms", times.len(), milliseconds(percentile(&times, 99)))
    }

    /// Ends the probe and prints its figures; returns whether it opened each time, and fast enough.
    pub(crate) fn finish(mut self, limit: Duration) -> bool {
        self.guard.signal(Signal::TERM);
        let opened = self.guard.wait().success();
        let times = self.sorted();
        let refused = self.reader.join().unwrap_or(u64::MAX);
        let at = |percent| milliseconds(percentile(&times, percent));
        let passed =
            opened && refused == 0 && !times.is_empty() && u128::from(percentile(&times, 99)) <= limit.as_micros();
        println!(
            "{} honest opens {}, refused {refused}: median {:.2} ms, 99th percentile {:.2} ms (at most {} ms), longest {:.1} ms",
            verdict(passed),
            times.len(),
            at(50),
            at(99),
            limit.as_millis(),
            at(100)
        );
        passed
    }
}

fn percentile(sorted: &[u32], percent: usize) -> u32 {
    let at = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(at).copied().unwrap_or(0)
}

fn milliseconds(microseconds: u32) -> f64 {
    f64::from(microseconds) / 1000.0
}

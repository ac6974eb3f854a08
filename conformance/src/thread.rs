// SPDX-License-Identifier: BSD-2-Clause
//! A thread that stands still while the others of its process run.

use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// A thread that the calling one traces and has stopped; it continues when the value is dropped.
#[derive(Debug)]
pub struct StoppedThread(Pid);

impl StoppedThread {
    /// Stops the main thread of a process.
    #[track_caller]
    pub fn main_of(process: rustix::process::Pid) -> StoppedThread {
        StoppedThread::of(process.as_raw_nonzero().get().cast_unsigned())
    }

    /// Stops the thread of this process of a name.
    #[track_caller]
    pub fn named(process: rustix::process::Pid, name: &str) -> StoppedThread {
        let tasks = format!("/proc/{}/task", process.as_raw_nonzero());
        let mut tasks = std::fs::read_dir(tasks).expect("a process").flatten();
        let has_name = |task: &std::fs::DirEntry| {
            std::fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim_end() == name)
        };
        let found = tasks.find(has_name).unwrap_or_else(|| panic!("no thread has the name {name}"));
        StoppedThread::of(found.file_name().to_string_lossy().parse().expect("a number"))
    }

    /// Stops a thread by its number.
    #[track_caller]
    pub fn of(tid: u32) -> StoppedThread {
        let thread = Pid::from_raw(tid.cast_signed());
        ptrace::seize(thread, ptrace::Options::empty()).expect("a thread to trace");
        ptrace::interrupt(thread).expect("a traced thread");
        let status = waitpid(thread, Some(WaitPidFlag::__WALL)).expect("a traced thread");
        assert!(matches!(status, WaitStatus::PtraceEvent(..)), "{status:?}");
        StoppedThread(thread)
    }
}

impl Drop for StoppedThread {
    fn drop(&mut self) {
        // It may have been killed.
        let _ = ptrace::detach(self.0, None);
    }
}

/// The threads of processes: the state of each, and where in the kernel it is, as far as this user may know it. For a
/// daemon that does not answer.
pub fn stacks_of(processes: &[rustix::process::Pid]) -> String {
    let mut text = String::new();
    for process in processes {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero()));
        for thread in tasks.into_iter().flatten().flatten() {
            let part = |name: &str| std::fs::read_to_string(thread.path().join(name)).unwrap_or_default();
            let stat = part("stat");
            let state = stat.rsplit_once(") ").map_or("?", |(_, rest)| &rest[..1]);
            let stack: Vec<_> =
                part("stack").lines().map(|line| line.trim_start_matches("[<0>] ").to_owned()).collect();
            let (id, name) = (thread.file_name(), part("comm"));
            text += &format!("{} {} {state}: {}\n", id.display(), name.trim_end(), stack.join(" < "));
        }
    }
    text
}

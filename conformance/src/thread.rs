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

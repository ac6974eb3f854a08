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
        let thread = Pid::from_raw(process.as_raw_nonzero().get());
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

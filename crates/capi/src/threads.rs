//! Threads that are looking at netmap files, so that what they look at is not taken away.
//!
//! A call that neither waits nor talks to anybody, which is what programs do all the time, counts no reference: that
//! would be two locked instructions. It says in a word of its thread's own that it is at work. Who takes something away
//! first removes all ways to it, then has the kernel make a barrier on all processors, and then waits until each thread
//! that was at work is not, or has been not:
//!
//! ```text
//! looks: turn odd | find, use           | turn even
//! takes away:        | unlink | barrier | each turn even, or another | free
//! ```
//! Where the kernel has no such barrier, who looks makes one, too.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, compiler_fence, fence};
use std::time::{Duration, Instant};

use unetmap_sys::{barrier, process};

use crate::files;

/// How long to wait for a thread that is at work: it may have lost its processor.
const PATIENCE: Duration = Duration::from_millis(20);

/// A thread of this process; used again when the thread has ended, never freed.
#[repr(C, align(64))]
pub(crate) struct Thread {
    /// Odd: at work.
    turn: AtomicU32,
    used: AtomicBool,
    next: AtomicPtr<Thread>,
}

/// All there are, linked by `next`.
static ALL: AtomicPtr<Thread> = AtomicPtr::new(ptr::null_mut());

/// Who looks must fence: this process is not registered for the kernel's barrier.
static FENCES: AtomicBool = AtomicBool::new(true);

unsafe extern "C" {
    /// This thread's [`Thread`], which [`unetmap_thread_start`] made when it first asked.
    safe fn unetmap_thread() -> *const Thread;
}

fn all() -> impl Iterator<Item = &'static Thread> {
    let mut at = ALL.load(Acquire);
    std::iter::from_fn(move || {
        // SAFETY: null, or an object that was leaked when it was made.
        let thread = unsafe { at.as_ref() }?;
        at = thread.next.load(Acquire);
        Some(thread)
    })
}

/// The library is loaded: forks are counted from now on. 0, or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn unetmap_init() -> c_int {
    process::count_forks().map_or_else(|e| -e.raw_os_error().unwrap_or(libc::ENOMEM), |()| 0)
}

/// A thread calls for the first time.
#[unsafe(no_mangle)]
pub extern "C" fn unetmap_thread_start() -> *const Thread {
    let free = |thread: &&Thread| thread.used.compare_exchange(false, true, AcqRel, Relaxed).is_ok();
    all().find(free).unwrap_or_else(|| {
        let new =
            Thread { turn: AtomicU32::new(0), used: AtomicBool::new(true), next: AtomicPtr::new(ptr::null_mut()) };
        let new: &'static Thread = Box::leak(Box::new(new));
        let mut first = ALL.load(Relaxed);
        loop {
            new.next.store(first, Relaxed);
            match ALL.compare_exchange(first, ptr::from_ref(new).cast_mut(), AcqRel, Relaxed) {
                Ok(_) => break new,
                Err(now) => first = now,
            }
        }
    })
}

/// A thread has ended.
///
/// # Safety
/// `thread` is what [`unetmap_thread_start`] returned to it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unetmap_thread_exit(thread: *mut c_void) {
    // SAFETY: the caller's promise; such an object is never freed.
    if let Some(thread) = unsafe { thread.cast::<Thread>().as_ref() } {
        thread.used.store(false, Release);
    }
}

/// This process is a forked child: its only thread is the one that calls.
#[unsafe(no_mangle)]
pub extern "C" fn unetmap_atfork_child() {
    let me = unetmap_thread();
    for thread in all().filter(|thread| !ptr::eq(*thread, me)) {
        thread.turn.store(0, Relaxed);
        thread.used.store(false, Relaxed);
    }
    files::let_go();
    if !FENCES.load(Relaxed) {
        register();
    }
}

/// Registers this process for the kernel's barrier.
pub(crate) fn register() {
    FENCES.store(!barrier::register(), Relaxed);
}

/// This thread is at work, until this is dropped.
pub(crate) struct AtWork {
    thread: &'static Thread,
    /// What `turn` becomes then; `None` when it stays odd, for the call that a signal handler has interrupted.
    after: Option<u32>,
}

impl AtWork {
    #[inline(always)]
    pub(crate) fn begin() -> AtWork {
        // SAFETY: never null, and never freed.
        let thread = unsafe { &*unetmap_thread() };
        let turn = thread.turn.load(Relaxed);
        let after = (turn & 1 == 0).then(|| turn.wrapping_add(2));
        thread.turn.store(turn | 1, Relaxed);
        if FENCES.load(Relaxed) {
            fence(SeqCst);
        } else {
            compiler_fence(SeqCst);
        }
        AtWork { thread, after }
    }
}

impl Drop for AtWork {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(after) = self.after {
            self.thread.turn.store(after, Release);
        }
    }
}

/// Waits until no thread is at work that was when this began. `false`: one is, perhaps the caller's own, which a signal
/// handler has interrupted.
pub(crate) fn all_were_idle() -> bool {
    if barrier::all_cpus().is_err() {
        fence(SeqCst);
    }
    let start = Instant::now();
    all().all(|thread| {
        let turn = thread.turn.load(Acquire);
        if turn & 1 == 0 {
            return true;
        }
        while !ptr::eq(thread, unetmap_thread()) && start.elapsed() < PATIENCE {
            std::thread::yield_now();
            if thread.turn.load(Acquire) != turn {
                return true;
            }
        }
        false
    })
}

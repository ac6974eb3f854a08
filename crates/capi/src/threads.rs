// SPDX-License-Identifier: BSD-2-Clause
//! Read sections (as in RCU): threads that read the table of netmap files without a reference, and the wait for them
//! before an object is reclaimed.
//!
//! A call that neither waits nor sends a request, the most frequent kind, takes no reference: that would be two locked
//! instructions. It marks a read section in a word of its own thread. A thread that reclaims an object first removes
//! all pointers to it, then executes a barrier on all processors (`membarrier`), and then waits until each read section
//! of that time has ended:
//!
//! ```text
//! reader:     section odd | find, use           | section even
//! reclaimer:              | unlink | barrier    | each section even or changed | free
//! ```
//! If the kernel has no such barrier, readers also execute one.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, compiler_fence, fence};
use std::time::Instant;

use unetmap_sys::{barrier, process};

use crate::files;
use crate::tuning::READER_LIMIT;

/// The state of a thread; reused after the thread has exited, never freed.
#[repr(C, align(64))]
pub(crate) struct ReaderSlot {
    /// Odd: in a read section.
    section: AtomicU32,
    used: AtomicBool,
    next: AtomicPtr<ReaderSlot>,
}

/// All slots, linked by `next`.
static ALL: AtomicPtr<ReaderSlot> = AtomicPtr::new(ptr::null_mut());

/// Whether readers must fence, because this process is not registered for `membarrier`.
static READERS_FENCE: AtomicBool = AtomicBool::new(true);

unsafe extern "C" {
    /// Returns the calling thread's [`ReaderSlot`], created by [`unetmap_thread_start`] at its first call.
    safe fn unetmap_thread() -> *const ReaderSlot;
}

fn all() -> impl Iterator<Item = &'static ReaderSlot> {
    let mut at = ALL.load(Acquire);
    std::iter::from_fn(move || {
        // SAFETY: C2.
        let thread = unsafe { at.as_ref() }?;
        at = thread.next.load(Acquire);
        Some(thread)
    })
}

/// Initialises the library: starts to count forks. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn unetmap_init() -> c_int {
    process::count_forks().map_or_else(|e| -e.raw_os_error().unwrap_or(libc::ENOMEM), |()| 0)
}

/// Returns a slot for the calling thread, at its first call.
#[unsafe(no_mangle)]
pub extern "C" fn unetmap_thread_start() -> *const ReaderSlot {
    let free = |thread: &&ReaderSlot| thread.used.compare_exchange(false, true, AcqRel, Relaxed).is_ok();
    all().find(free).unwrap_or_else(|| {
        let new = ReaderSlot {
            section: AtomicU32::new(0),
            used: AtomicBool::new(true),
            next: AtomicPtr::new(ptr::null_mut()),
        };
        let new: &'static ReaderSlot = Box::leak(Box::new(new));
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

/// Releases the slot of a thread that exits.
///
/// # Safety
/// `thread` is the pointer that [`unetmap_thread_start`] returned to it (C1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unetmap_thread_exit(thread: *mut c_void) {
    // SAFETY: C1, C2.
    if let Some(thread) = unsafe { thread.cast::<ReaderSlot>().as_ref() } {
        thread.used.store(false, Release);
    }
}

/// Resets the state in a forked child, whose only thread is the calling one.
#[unsafe(no_mangle)]
pub extern "C" fn unetmap_atfork_child() {
    let me = unetmap_thread();
    for thread in all().filter(|thread| !ptr::eq(*thread, me)) {
        thread.section.store(0, Relaxed);
        thread.used.store(false, Relaxed);
    }
    files::release_request_fds();
    if !READERS_FENCE.load(Relaxed) {
        register();
    }
}

/// Registers this process for `membarrier`.
pub(crate) fn register() {
    READERS_FENCE.store(!barrier::register(), Relaxed);
}

/// A read section of the calling thread; it ends when the value is dropped.
pub(crate) struct ReadSection {
    thread: &'static ReaderSlot,
    /// Value of `section` at the end; `None` inside another read section, which a signal handler has interrupted.
    after: Option<u32>,
}

impl ReadSection {
    #[inline(always)]
    pub(crate) fn enter() -> ReadSection {
        // SAFETY: C2: never null.
        let thread = unsafe { &*unetmap_thread() };
        let section = thread.section.load(Relaxed);
        let after = (section & 1 == 0).then(|| section.wrapping_add(2));
        thread.section.store(section | 1, Relaxed);
        if READERS_FENCE.load(Relaxed) {
            fence(SeqCst);
        } else {
            compiler_fence(SeqCst);
        }
        ReadSection { thread, after }
    }
}

impl Drop for ReadSection {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(after) = self.after {
            self.thread.section.store(after, Release);
        }
    }
}

/// Waits until all read sections that were active at the start have ended. `false`: one is still active after the
/// limit, or it is one of the calling thread that a signal handler has interrupted.
pub(crate) fn wait_for_readers() -> bool {
    if barrier::all_cpus().is_err() {
        fence(SeqCst);
    }
    let start = Instant::now();
    all().all(|thread| {
        let section = thread.section.load(Acquire);
        if section & 1 == 0 {
            return true;
        }
        while !ptr::eq(thread, unetmap_thread()) && start.elapsed() < READER_LIMIT {
            std::thread::yield_now();
            if thread.section.load(Acquire) != section {
                return true;
            }
        }
        false
    })
}

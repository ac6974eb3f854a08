// SPDX-License-Identifier: BSD-2-Clause
//! The library's own allocator. It never calls the program's `malloc`, which may be a caller of this library: an
//! allocator that maps memory or opens a file calls the hooks, perhaps with its locks held, and a signal handler may
//! close a netmap file while its thread is in `malloc`.
//!
//! ```text
//! free[class] -> block -> block       blocks of 32, 64 .. 16384 bytes; larger ones are mapped one by one
//! [at, end)                           the unused part of the newest chunk
//! ```
//! Only open and close allocate, never the packet path, so one lock is sufficient. Signals are blocked while it is
//! held, so that no handler finds it held by its own thread. A forked child may find it held by a thread of its parent,
//! and takes it over: each list changes with one store, so that it is consistent at every instruction.

use std::alloc::{GlobalAlloc, Layout};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize};

use crate::tuning::CHUNK;

#[global_allocator]
static HEAP: Heap = Heap {
    owner: AtomicU32::new(0),
    free: [const { AtomicPtr::new(ptr::null_mut()) }; CLASSES],
    at: AtomicUsize::new(0),
    end: AtomicUsize::new(0),
};

/// Binary logarithm of the bytes of the smallest block.
const SMALLEST: u32 = 5;
/// Number of block sizes.
const CLASSES: usize = 10;
/// Alignment of every mapping.
const PAGE: usize = 4096;

struct Heap {
    /// 0 if the lock is free, else the fork count plus 1 of the process whose thread holds it.
    owner: AtomicU32,
    /// Free blocks, each with the address of the next one in its first bytes.
    free: [AtomicPtr<u8>; CLASSES],
    at: AtomicUsize,
    end: AtomicUsize,
}

/// Returns the class of blocks for a layout; `None`: it gets a mapping of its own.
fn class(layout: Layout) -> Option<usize> {
    let bytes = layout.size().max(layout.align()).max(1 << SMALLEST).next_power_of_two();
    let class = (bytes.trailing_zeros() - SMALLEST) as usize;
    (class < CLASSES).then_some(class)
}

fn map(bytes: usize) -> *mut u8 {
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: C5, C7: a new mapping at an address that the kernel chooses. The system call itself, because the C
    // function is a hook of this library.
    let at = unsafe { libc::syscall(libc::SYS_mmap, 0, bytes, prot, flags, -1, 0) };
    if at == -1 { ptr::null_mut() } else { ptr::with_exposed_provenance_mut(at as usize) }
}

impl Heap {
    /// Runs `body` with the lock held and signals blocked.
    fn locked<T>(&self, body: impl FnOnce() -> T) -> T {
        let mut every = MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: C7: both sets outlive the calls, and the first one is filled before it is read.
        unsafe {
            libc::sigfillset(every.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, every.as_ptr(), before.as_mut_ptr());
        }
        let me = unetmap_core::port::file::fork_count() + 1;
        loop {
            let owner = self.owner.load(Relaxed);
            if owner != me && self.owner.compare_exchange(owner, me, Acquire, Relaxed).is_ok() {
                break;
            }
            std::thread::yield_now();
        }
        let result = body();
        self.owner.store(0, Release);
        // SAFETY: C7: the kernel has written the set.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
        result
    }

    /// Returns a free block, or null. The caller holds the lock.
    fn pop(&self, class: usize) -> *mut u8 {
        let first = self.free[class].load(Relaxed);
        if !first.is_null() {
            // SAFETY: C5: a free block belongs to this allocator, and contains the address of the next one.
            let next = unsafe { first.cast::<*mut u8>().read() };
            self.free[class].store(next, Relaxed);
            return first;
        }
        let bytes = 1 << (class + SMALLEST as usize);
        let at = self.at.load(Relaxed).next_multiple_of(bytes);
        if at + bytes <= self.end.load(Relaxed) {
            self.at.store(at + bytes, Relaxed);
            return ptr::with_exposed_provenance_mut(at);
        }
        let chunk = map(CHUNK);
        if !chunk.is_null() {
            // The rest of the former chunk is lost. Between these stores no block of either chunk can be allocated.
            let start = chunk.expose_provenance();
            self.end.store(0, Relaxed);
            self.at.store(start + bytes, Relaxed);
            self.end.store(start + CHUNK, Relaxed);
        }
        chunk
    }
}

// SAFETY: C5: blocks do not overlap, have the size of their class, and are aligned to it up to a page, the largest
// alignment that is not refused; a block is allocated again only after it was freed.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match class(layout) {
            _ if layout.align() > PAGE => ptr::null_mut(),
            Some(class) => self.locked(|| self.pop(class)),
            None => map(layout.size()),
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let Some(class) = class(layout) else {
            // SAFETY: C5: `alloc` has mapped these bytes, and the caller frees them.
            unsafe { libc::syscall(libc::SYS_munmap, block, layout.size()) };
            return;
        };
        self.locked(|| {
            // SAFETY: C5: the block belongs to the allocator again, and is large enough and aligned for an address.
            unsafe { block.cast::<*mut u8>().write(self.free[class].load(Relaxed)) };
            self.free[class].store(block, Relaxed);
        });
    }
}

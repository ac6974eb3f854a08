//! Memory of the library's own, so that it never calls the program's `malloc`, which may be calling us: an allocator
//! that maps memory or opens a file does it through our hooks, perhaps with its locks held; a signal handler may close a
//! netmap file while its thread is in the middle of `malloc`.
//!
//! ```text
//! free[class] -> block -> block       blocks of 32, 64 .. 16384 bytes; larger ones are mapped one by one
//! [at, end)                           of the newest chunk: never used
//! ```
//! Only opening and closing use it, never a packet, so one lock will do. Signals are blocked while it is held, so no
//! handler finds it taken by its own thread. A forked child may find it taken by a thread that it does not have, and
//! takes it over: each list changes with one store, so it is whole at every instruction.

use std::alloc::{GlobalAlloc, Layout};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize};

#[global_allocator]
static HEAP: Heap = Heap {
    taken: AtomicU32::new(0),
    free: [const { AtomicPtr::new(ptr::null_mut()) }; CLASSES],
    at: AtomicUsize::new(0),
    end: AtomicUsize::new(0),
};

/// Bytes of the smallest block, as a power of two.
const SMALLEST: u32 = 5;
/// Sizes of blocks.
const CLASSES: usize = 10;
/// Bytes that are mapped at once for blocks.
const CHUNK: usize = 256 << 10;
/// The largest alignment that a mapping has by itself.
const PAGE: usize = 4096;

struct Heap {
    /// 0, or 1 more than the forks before the process whose thread is at work here.
    taken: AtomicU32,
    /// Blocks that are free, each with the address of the next in its first bytes.
    free: [AtomicPtr<u8>; CLASSES],
    at: AtomicUsize,
    end: AtomicUsize,
}

/// Which blocks serve a layout; `None`: it is mapped by itself.
fn class(layout: Layout) -> Option<usize> {
    let bytes = layout.size().max(layout.align()).max(1 << SMALLEST).next_power_of_two();
    let class = (bytes.trailing_zeros() - SMALLEST) as usize;
    (class < CLASSES).then_some(class)
}

fn map(bytes: usize) -> *mut u8 {
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: new memory at a place of the kernel's choice. The system call itself: the C function is our own hook.
    let at = unsafe { libc::syscall(libc::SYS_mmap, 0, bytes, prot, flags, -1, 0) };
    if at == -1 { ptr::null_mut() } else { ptr::with_exposed_provenance_mut(at as usize) }
}

impl Heap {
    /// Runs `body` alone, undisturbed by signals.
    fn alone<T>(&self, body: impl FnOnce() -> T) -> T {
        let mut every = MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: both sets are ours, and the first one is filled before it is read.
        unsafe {
            libc::sigfillset(every.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, every.as_ptr(), before.as_mut_ptr());
        }
        let me = unetmap::file::forks() + 1;
        loop {
            let taken = self.taken.load(Relaxed);
            if taken != me && self.taken.compare_exchange(taken, me, Acquire, Relaxed).is_ok() {
                break;
            }
            std::thread::yield_now();
        }
        let result = body();
        self.taken.store(0, Release);
        // SAFETY: the kernel has written the set.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), ptr::null_mut()) };
        result
    }

    /// A free block, or null. Called alone.
    fn take(&self, class: usize) -> *mut u8 {
        let first = self.free[class].load(Relaxed);
        if !first.is_null() {
            // SAFETY: a free block is ours, and holds the address of the next one.
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
            // What is left of the chunk before is lost. Between these stores nothing of either can be handed out.
            let start = chunk.expose_provenance();
            self.end.store(0, Relaxed);
            self.at.store(start + bytes, Relaxed);
            self.end.store(start + CHUNK, Relaxed);
        }
        chunk
    }
}

// SAFETY: blocks are distinct, as large as their class says, and aligned to it up to a page, which is as far as a layout
// that is not refused asks; a block is handed out again only after it was given back.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match class(layout) {
            _ if layout.align() > PAGE => ptr::null_mut(),
            Some(class) => self.alone(|| self.take(class)),
            None => map(layout.size()),
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let Some(class) = class(layout) else {
            // SAFETY: `alloc` mapped so many bytes there, and the caller gives them back.
            unsafe { libc::syscall(libc::SYS_munmap, block, layout.size()) };
            return;
        };
        self.alone(|| {
            // SAFETY: the block is ours again, and large enough and aligned for an address.
            unsafe { block.cast::<*mut u8>().write(self.free[class].load(Relaxed)) };
            self.free[class].store(block, Relaxed);
        });
    }
}

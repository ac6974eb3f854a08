//! Why a call failed, for people.

use std::cell::RefCell;
use std::ffi::c_char;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;

use unetmap_core::Error;

/// Bytes of a sentence that are kept.
const MOST: usize = 512;

/// The sentence of a thread's last refusal. It has nothing to be dropped: what has is noted by the C library in memory
/// from `malloc`.
struct Said {
    bytes: [u8; MOST],
    len: usize,
}

thread_local! {
    static SAID: RefCell<Said> = const { RefCell::new(Said { bytes: [0; MOST], len: 0 }) };
}

/// Whether to write to standard error: 1 not, 2 yes, 0 not known yet.
static VERBOSE: AtomicU8 = AtomicU8::new(0);

/// The errno of an error, whose sentence goes to standard error if `UNETMAP_VERBOSE` is set.
pub(crate) fn told(error: &Error) -> i32 {
    say(&error.to_string());
    error.errno()
}

/// Keeps a sentence, and writes it to standard error if `UNETMAP_VERBOSE` is set.
pub(crate) fn say(sentence: &str) {
    let len = sentence.len().min(MOST);
    // A signal handler that has interrupted this very function leaves the other's sentence.
    let _ = SAID.try_with(|said| {
        if let Ok(mut said) = said.try_borrow_mut() {
            said.bytes[..len].copy_from_slice(&sentence.as_bytes()[..len]);
            said.len = len;
        }
    });
    if VERBOSE.load(Relaxed) == 0 {
        let set = std::env::var_os("UNETMAP_VERBOSE").is_some_and(|v| !v.is_empty() && v != "0");
        VERBOSE.store(1 + u8::from(set), Relaxed);
    }
    if VERBOSE.load(Relaxed) == 2 {
        let line = format!("unetmap: {sentence}\n");
        // Without the lock that Rust's standard error has: a forked child could find it taken.
        // SAFETY: so many bytes of ours.
        unsafe { libc::syscall(libc::SYS_write, 2, line.as_ptr(), line.len()) };
    }
}

/// Takes the sentence that says why this thread's last call failed: up to `room` bytes of it go to `into`, the last of
/// them a NUL. Returns how many before the NUL; 0 when nothing was said.
///
/// # Safety
/// `into` has room for so many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unetmap_last_error(into: *mut c_char, room: usize) -> usize {
    let Some(most) = room.checked_sub(1) else { return 0 };
    let take = |said: &RefCell<Said>| {
        let Ok(mut said) = said.try_borrow_mut() else { return 0 };
        let len = std::mem::take(&mut said.len).min(most);
        // SAFETY: below `room`, by the caller's promise.
        unsafe { into.cast::<u8>().copy_from(said.bytes.as_ptr(), len) };
        len
    };
    let len = SAID.try_with(take).unwrap_or(0);
    // SAFETY: as above.
    unsafe { into.add(len).write(0) };
    len
}

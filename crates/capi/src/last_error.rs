// SPDX-License-Identifier: BSD-2-Clause
//! The message of a thread's last error.

use std::cell::RefCell;
use std::ffi::c_char;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;

use unetmap_core::Error;

/// Most bytes of a message that are stored.
const MAX_BYTES: usize = 512;

/// The message of a thread's last error. It needs no destructor: the C library would register one in memory from
/// `malloc`.
struct LastError {
    bytes: [u8; MAX_BYTES],
    len: usize,
}

thread_local! {
    static LAST_ERROR: RefCell<LastError> = const { RefCell::new(LastError { bytes: [0; MAX_BYTES], len: 0 }) };
}

/// Whether messages go to standard error: 0 not determined yet, 1 no, 2 yes.
static VERBOSE: AtomicU8 = AtomicU8::new(0);

/// Stores the message of an error, and returns its errno. Writes the message to standard error if `UNETMAP_VERBOSE` is
/// set.
pub(crate) fn report(error: &Error) -> i32 {
    report_message(&error.to_string());
    error.errno()
}

/// Stores a message, and writes it to standard error if `UNETMAP_VERBOSE` is set.
pub(crate) fn report_message(message: &str) {
    let len = message.len().min(MAX_BYTES);
    // In a signal handler that has interrupted this function, the interrupted message stays.
    let _ = LAST_ERROR.try_with(|last| {
        if let Ok(mut last) = last.try_borrow_mut() {
            last.bytes[..len].copy_from_slice(&message.as_bytes()[..len]);
            last.len = len;
        }
    });
    if VERBOSE.load(Relaxed) == 0 {
        let set = std::env::var_os("UNETMAP_VERBOSE").is_some_and(|v| !v.is_empty() && v != "0");
        VERBOSE.store(1 + u8::from(set), Relaxed);
    }
    if VERBOSE.load(Relaxed) == 2 {
        let line = format!("unetmap: {message}\n");
        // Without the lock of Rust's standard error, which may be held for ever in a forked child.
        // SAFETY: C7: `line.len()` bytes of `line`.
        unsafe { libc::syscall(libc::SYS_write, 2, line.as_ptr(), line.len()) };
    }
}

/// Moves the message of this thread's last error to `into`: at most `room` bytes including a NUL. Returns the bytes
/// before the NUL; 0 without a message.
///
/// # Safety
/// `into` is valid for writes of `room` bytes (C1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unetmap_last_error(into: *mut c_char, room: usize) -> usize {
    let Some(most) = room.checked_sub(1) else { return 0 };
    let take = |last: &RefCell<LastError>| {
        let Ok(mut last) = last.try_borrow_mut() else { return 0 };
        let len = std::mem::take(&mut last.len).min(most);
        // SAFETY: C1: `len` is less than `room`.
        unsafe { into.cast::<u8>().copy_from(last.bytes.as_ptr(), len) };
        len
    };
    let len = LAST_ERROR.try_with(take).unwrap_or(0);
    // SAFETY: C1: `len` is less than `room`.
    unsafe { into.add(len).write(0) };
    len
}

//! What the system's calls mean on a netmap file. `preload/` calls these for descriptors that are in the table.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_long, c_short, c_uint, c_ulong, c_void};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use unetmap::abi::*;
use unetmap::errno::{EINVAL, EIO, ENXIO};
use unetmap::file::File;
use unetmap::legacy::Call;
use unetmap::{Error, Interest, Port};

use crate::ctrl;
use crate::files::{MOST, Ref, borrowed, forget, socket_inode};

/// `POLLIN`, `POLLOUT` and their twins.
const READ: c_short = libc::POLLIN | libc::POLLRDNORM;
const WRITE: c_short = libc::POLLOUT | libc::POLLWRNORM;

/// Runs `body`; an error leaves as a negative errno.
fn call(body: impl FnOnce() -> Result<c_int, i32>) -> c_int {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(EIO)).unwrap_or_else(|errno| -errno)
}

/// The errno of an error, whose sentence goes to standard error if `UNETMAP_VERBOSE` is set.
pub(crate) fn told(error: &Error) -> i32 {
    say(&error.to_string());
    error.errno()
}

pub(crate) fn say(sentence: &str) {
    // A thread that is ending keeps nothing.
    let _ = SAID.try_with(|said| said.replace(sentence.to_owned()));
    static VERBOSE: OnceLock<bool> = OnceLock::new();
    if *VERBOSE.get_or_init(|| std::env::var_os("UNETMAP_VERBOSE").is_some_and(|v| !v.is_empty() && v != "0")) {
        eprintln!("unetmap: {sentence}");
    }
}

thread_local! {
    /// Why this thread's last request was refused, or its last call failed.
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Takes the sentence that says why this thread's last call failed: up to `room` bytes of it go to `into`, the last of
/// them a NUL. Returns how many before the NUL; 0 when nothing was said.
///
/// # Safety
/// `into` has room for so many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unetmap_said(into: *mut c_char, room: usize) -> usize {
    // A thread that is ending has nothing to say any more.
    let sentence = SAID.try_with(RefCell::take).unwrap_or_default();
    let Some(most) = room.checked_sub(1) else { return 0 };
    let len = sentence.len().min(most);
    // SAFETY: below `room`, by the caller's promise; the sentence is ours.
    unsafe {
        into.cast::<u8>().copy_from(sentence.as_ptr(), len);
        into.add(len).write(0);
    }
    len
}

/// `open("/dev/netmap", flags)`: a new descriptor.
#[unsafe(no_mangle)]
pub extern "C" fn unetmap_open(flags: c_int) -> c_int {
    call(|| {
        let (fd, file) = File::open().map_err(|e| told(&e))?;
        let raw = fd.as_raw_fd();
        let inode = socket_inode(raw).ok_or(EIO)?;
        if usize::try_from(raw).is_ok_and(|raw| raw >= MOST) {
            return Err(libc::EMFILE);
        }
        if flags & libc::O_CLOEXEC == 0 {
            // SAFETY: a call on our own descriptor.
            unsafe { libc::fcntl(raw, libc::F_SETFD, 0) };
        }
        let raw = fd.into_raw_fd();
        Ref::new(file, inode).enter(raw);
        Ok(raw)
    })
}

/// Descriptor `fd` is closed, or about to be.
#[unsafe(no_mangle)]
pub extern "C" fn unetmap_forget(fd: c_int) {
    call(|| {
        forget(fd);
        Ok(0)
    });
}

/// Descriptor `new` is a duplicate of `old`.
#[unsafe(no_mangle)]
pub extern "C" fn unetmap_share(old: c_int, new: c_int) {
    call(|| {
        forget(new);
        if let Some(open) = Ref::of(old) {
            open.enter(new);
        }
        Ok(0)
    });
}

/// Whether `fd`, which came from another process, is a netmap file; if so, it is known from now on.
#[unsafe(no_mangle)]
pub extern "C" fn unetmap_adopt(fd: c_int) -> c_int {
    call(|| {
        let Some(inode) = socket_inode(fd) else { return Ok(0) };
        let open = match Ref::with_inode(inode) {
            Some(open) => open,
            None => match File::behind(borrowed(fd)) {
                Some(file) => Ref::new(file, inode),
                None => return Ok(0),
            },
        };
        Ok(c_int::from(open.enter(fd)))
    })
}

/// `ioctl`.
///
/// # Safety
/// As ioctl: `arg` is what the request asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unetmap_ioctl(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int {
    call(|| {
        let open = Ref::of(fd).ok_or(libc::EBADF)?;
        let arg = arg.expose_provenance() as u64;
        // Programs that keep the number in an int have its sign extended.
        match request & c_ulong::from(u32::MAX) {
            NIOCTXSYNC => sync(&open, fd, Port::txsync),
            NIOCRXSYNC => sync(&open, fd, Port::rxsync),
            NIOCCTRL => ctrl::ctrl(&open, fd, arg),
            NIOCREGIF => ctrl::older(&open, fd, arg, Call::Register),
            NIOCGINFO => ctrl::older(&open, fd, arg, Call::Info),
            NIOCCONFIG => ctrl::config(arg),
            libc::FIONBIO | libc::FIOASYNC => Ok(0),
            _ => Err(libc::ENOTTY),
        }
    })
}

fn sync(open: &Ref, fd: c_int, sync: impl Fn(&Port) -> Result<(), Error>) -> Result<c_int, i32> {
    let port = open.port(fd).map_err(|e| told(&e))?.ok_or(ENXIO)?;
    match sync(&port.port) {
        // As the original: the ring was set back, and only poll tells.
        Ok(()) | Err(Error::BadPointers { .. }) => Ok(0),
        Err(e) => Err(told(&e)),
    }
}

/// `mmap` of a netmap file: its region. The address, or a negative errno.
///
/// # Safety
/// As mmap: with MAP_FIXED the address range is the caller's to replace.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unetmap_mmap(
    address: *mut c_void,
    bytes: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> c_long {
    let map = || {
        let open = Ref::of(fd).ok_or(libc::EBADF)?;
        let attached = open.port(fd).map_err(|e| told(&e))?.ok_or(EINVAL)?;
        let size = attached.port.register().nr_memsize;
        let end = u64::try_from(offset).ok().and_then(|offset| offset.checked_add(bytes as u64));
        if end.is_none_or(|end| end > size.next_multiple_of(4096)) {
            return Err(EINVAL);
        }
        // SAFETY: the caller's promise; the file is the region's.
        let at =
            unsafe { libc::syscall(libc::SYS_mmap, address, bytes, prot, flags, attached.region.as_raw_fd(), offset) };
        if at == -1 { Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(EIO)) } else { Ok(at) }
    };
    catch_unwind(AssertUnwindSafe(map)).unwrap_or(Err(EIO)).unwrap_or_else(|errno| -c_long::from(errno))
}

fn interest(events: c_short) -> Interest {
    let rx = if events & READ != 0 { Interest::RX } else { Interest::NONE };
    let tx = if events & WRITE != 0 { Interest::TX } else { Interest::NONE };
    rx | tx
}

/// What poll tells the program.
fn revents(events: c_short, ready: Result<Interest, Error>) -> c_short {
    match ready {
        Err(e) => {
            told(&e);
            libc::POLLERR
        }
        Ok(ready) => {
            let read = if ready.rx() { events & READ } else { 0 };
            let write = if ready.tx() { events & WRITE } else { 0 };
            read | write
        }
    }
}

/// Runs `body` on the port; without one, and on errors, the answer is POLLERR.
fn on_port(fd: c_int, events: c_short, body: impl FnOnce(&Port, Interest) -> Result<Interest, Error>) -> c_int {
    call(|| {
        let open = Ref::of(fd).ok_or(libc::EBADF)?;
        let port = match open.known_port() {
            Some(port) => port,
            None => match open.port(fd) {
                Ok(Some(port)) => port,
                Ok(None) | Err(_) => return Ok(c_int::from(libc::POLLERR)),
            },
        };
        Ok(c_int::from(revents(events, body(&port.port, interest(events)))))
    })
}

/// `poll` of one netmap file, for at most `limit` nanoseconds (negative: no limit). The events; `-EINTR` when a signal
/// came first.
#[unsafe(no_mangle)]
pub extern "C" fn unetmap_poll(fd: c_int, events: c_short, limit: i64) -> c_int {
    let limit = u64::try_from(limit).ok().map(Duration::from_nanos);
    if limit == Some(Duration::ZERO) {
        return on_port(fd, events, |port, want| port.poll(want, limit));
    }
    let mut early = false;
    let got = on_port(fd, events, |port, want| {
        let ready = port.poll(want, Some(Duration::ZERO))?;
        if !ready.is_none() {
            return Ok(ready);
        }
        let start = Instant::now();
        let ready = port.poll(want, limit)?;
        early = ready.is_none() && limit.is_none_or(|limit| start.elapsed() < limit);
        Ok(ready)
    });
    if early && got == 0 { -libc::EINTR } else { got }
}

/// Prepares for a wait: if nothing is ready (the result is 0), descriptors to wait on for POLLIN are written to `wait`,
/// at most `room`, and their number to `used`.
///
/// # Safety
/// `wait` has room for so many, `used` for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unetmap_arm(
    fd: c_int,
    events: c_short,
    wait: *mut libc::pollfd,
    room: c_uint,
    used: *mut c_uint,
) -> c_int {
    let mut n = 0;
    let got = on_port(fd, events, |port, want| {
        let ready = port.arm(want)?;
        if ready.is_none() {
            port.each_wait_fd(want, |bell| {
                if n < room {
                    let entry = libc::pollfd { fd: bell.as_raw_fd(), events: libc::POLLIN, revents: 0 };
                    // SAFETY: below `room`, by the caller's promise.
                    unsafe { wait.add(n as usize).write(entry) };
                    n += 1;
                }
            });
        }
        Ok(ready)
    });
    // SAFETY: the caller's promise.
    unsafe { used.write(if got == 0 { n } else { 0 }) };
    got
}

/// After a wait: the events.
#[unsafe(no_mangle)]
pub extern "C" fn unetmap_woken(fd: c_int, events: c_short) -> c_int {
    on_port(fd, events, Port::woken)
}

/// A number that changes when something arrives (`which` 0) or is sent and given back (1): for edges.
#[unsafe(no_mangle)]
pub extern "C" fn unetmap_progress(fd: c_int, which: c_int) -> c_uint {
    let mut sum: c_uint = 0;
    call(|| {
        let open = Ref::of(fd).ok_or(libc::EBADF)?;
        if let Some(attached) = open.known_port() {
            let rings = if which == 0 { attached.port.rx_rings() } else { attached.port.tx_rings() };
            for ring in rings {
                sum = sum.wrapping_mul(31).wrapping_add(ring.tail().raw());
            }
        }
        Ok(0)
    });
    sum
}

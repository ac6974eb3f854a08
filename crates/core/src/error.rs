// SPDX-License-Identifier: BSD-2-Clause
//! Errors, and the errnos that netmap's interface uses for them.

use std::borrow::Cow;
use std::fmt;
use std::io;

use unetmap_abi::NameError;
use unetmap_abi::printable::Shown;

/// Why a request or a sync failed. The text names the subject (mostly the port), what is wrong, and what to do.
///
/// ```
/// use unetmap::{Error, Port, errno};
///
/// let error = Port::open("netmap:").err().expect("the name is incomplete");
/// assert!(matches!(error, Error::Name(_)));
/// assert_eq!(error.errno(), errno::EINVAL);
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The port's name does not follow the grammar.
    Name(NameError),
    /// The daemon refused the request.
    #[non_exhaustive]
    Refused {
        /// The port or object of the request.
        subject: String,
        /// The errno that netmap's ioctl would set.
        errno: i32,
        /// The fault, and what to do.
        reason: String,
    },
    /// No daemon answers, and none could be started.
    #[non_exhaustive]
    NoDaemon {
        /// The attempts.
        reason: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The daemon that served this port has exited; the port is unusable. Open it again.
    #[non_exhaustive]
    DaemonGone {
        /// The port.
        subject: String,
    },
    /// A process called shutdown(2) on the netmap file by which the port was opened; the port is unusable. Open it
    /// again.
    #[non_exhaustive]
    FileShutDown {
        /// The port.
        subject: String,
    },
    /// The interface of the port was removed; the port is unusable.
    #[non_exhaustive]
    InterfaceGone {
        /// The port.
        subject: String,
    },
    /// The port that this monitor monitored was closed; the monitor is unusable.
    #[non_exhaustive]
    MonitoredPortClosed {
        /// The monitor.
        subject: String,
    },
    /// The port is a monitor, which cannot send.
    #[non_exhaustive]
    ReadOnly {
        /// The monitor.
        subject: String,
    },
    /// The port has control blocks, so that only its sync loop may sync it.
    #[non_exhaustive]
    OwnedBySyncLoop {
        /// The port.
        subject: String,
    },
    /// The program set `head` or `cur` out of bounds; the ring was reset to its state after the last sync.
    #[non_exhaustive]
    BadPointers {
        /// The port.
        subject: String,
        /// The ring, such as `tx 0`.
        ring: String,
    },
    /// A system call failed on this machine.
    #[non_exhaustive]
    Host {
        /// The port or object of the request.
        subject: String,
        /// The kernel's error.
        source: io::Error,
    },
}

/// The errnos that netmap's interface uses.
pub mod errno {
    /// Not allowed.
    pub const EPERM: i32 = 1;
    /// This daemon does not serve this user in this way; another daemon may.
    pub const EACCES: i32 = 13;
    /// The interface is down.
    pub const ENETDOWN: i32 = 100;
    /// The device does not exist, or is of another type.
    pub const ENODEV: i32 = 19;
    /// The list has no such entry.
    pub const ENOENT: i32 = 2;
    /// Bad argument.
    pub const EINVAL: i32 = 22;
    /// Bad address.
    pub const EFAULT: i32 = 14;
    /// No such port or interface.
    pub const ENXIO: i32 = 6;
    /// Input or output failed.
    pub const EIO: i32 = 5;
    /// Not ready yet: try again.
    pub const EAGAIN: i32 = 11;
    /// It exists already.
    pub const EEXIST: i32 = 17;
    /// Already bound, or exclusively held by another process.
    pub const EBUSY: i32 = 16;
    /// Pools exhausted.
    pub const ENOMEM: i32 = 12;
    /// Not supported.
    pub const EOPNOTSUPP: i32 = 95;
    /// A number that does not fit.
    pub const ERANGE: i32 = 34;
    /// Message too long.
    pub const EMSGSIZE: i32 = 90;
    /// Not a message of this protocol.
    pub const EPROTO: i32 = 71;
    /// A message of another version of the protocol.
    pub const EPROTONOSUPPORT: i32 = 93;
    /// A budget of the user is used up.
    pub const EDQUOT: i32 = 122;
    /// Too many files open on this machine.
    pub const ENFILE: i32 = 23;
    /// Too many files open in the process.
    pub const EMFILE: i32 = 24;
    /// Too many file descriptors of the daemon's user are in messages that were not received.
    pub const ETOOMANYREFS: i32 = 109;
}

impl Error {
    /// Returns the errno that netmap would set.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Name(_) | Error::BadPointers { .. } => errno::EINVAL,
            Error::Refused { errno, .. } => *errno,
            Error::OwnedBySyncLoop { .. } => errno::EBUSY,
            Error::NoDaemon { source, .. } | Error::Host { source, .. } => source.raw_os_error().unwrap_or(errno::EIO),
            Error::DaemonGone { .. } | Error::FileShutDown { .. } | Error::InterfaceGone { .. } => errno::ENXIO,
            Error::MonitoredPortClosed { .. } | Error::ReadOnly { .. } => errno::EIO,
        }
    }

    /// Returns a refusal, for libraries that refuse a request themselves.
    #[doc(hidden)]
    pub fn refused(subject: impl Into<String>, errno: i32, reason: impl Into<String>) -> Error {
        Error::Refused { subject: subject.into(), errno, reason: reason.into() }
    }

    pub(crate) fn host(subject: impl Into<String>, source: io::Error) -> Error {
        Error::Host { subject: subject.into(), source }
    }

    /// Returns the error for a reply that cannot be decoded.
    pub(crate) fn malformed_reply(subject: &str) -> Error {
        Error::host(subject, io::Error::other("the daemon's reply is malformed (is it of another version?)"))
    }
}

/// Returns a text without the numbers that Rust writes behind the words of the system's errors: ` (os error 2)`. They
/// say nothing that the words do not. All that is printed, logged, or sent as a reason passes here once.
#[doc(hidden)]
pub fn without_codes(text: &str) -> Cow<'_, str> {
    const BEGIN: &str = " (os error ";
    let mut parts = text.split(BEGIN);
    let first = parts.next().unwrap_or_default();
    if first.len() == text.len() {
        return Cow::Borrowed(text);
    }
    let mut plain = first.to_owned();
    for part in parts {
        match part.split_once(')') {
            Some((number, rest)) if number.bytes().all(|b| b.is_ascii_digit()) => plain += rest,
            _ => plain.extend([BEGIN, part]),
        }
    }
    Cow::Owned(plain)
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Name(e) => e.fmt(f),
            // They may name what other clients chose.
            Error::Refused { subject, reason, .. } => {
                write!(f, "{}: {}", Shown(subject), Shown(&without_codes(reason)))
            }
            Error::NoDaemon { reason, source } => {
                write!(f, "no unetmapd answers: {}", without_codes(&format!("{reason}: {source}")))
            }
            Error::DaemonGone { subject } => {
                write!(f, "{subject}: the daemon that served this port has exited (open the port again)")
            }
            Error::FileShutDown { subject } => {
                write!(f, "{subject}: a process called shutdown(2) on the netmap file (open the port again)")
            }
            Error::InterfaceGone { subject } => write!(
                f,
                "{subject}: the interface is gone: deleted, or moved to another network namespace (open the port again \
                 when it is back)"
            ),
            Error::MonitoredPortClosed { subject } => {
                write!(f, "{subject}: the monitored port was closed (open the monitor again when the port is open)")
            }
            Error::ReadOnly { subject } => {
                write!(f, "{subject}: a monitor cannot send (do not use its transmit rings, or open the port itself)")
            }
            Error::OwnedBySyncLoop { subject } => {
                write!(f, "{subject}: the port has control blocks: only its sync loop syncs it (SYNC_KLOOP_START)")
            }
            Error::BadPointers { subject, ring } => write!(
                f,
                "{subject}: head or cur of ring {ring} was out of bounds; the ring was reset (does another thread or \
                 process move them too?)"
            ),
            Error::Host { subject, source } => write!(f, "{subject}: {}", without_codes(&source.to_string())),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Name(e) => Some(e),
            Error::NoDaemon { source, .. } | Error::Host { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl From<NameError> for Error {
    fn from(e: NameError) -> Error {
        Error::Name(e)
    }
}

/// Says what root of a user namespace can do, whose `/run` is the machine's.
pub(crate) fn run_remedy(kind: io::ErrorKind, uid: u32) -> &'static str {
    match kind {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem if uid == 0 => {
            " (in a user namespace mount a tmpfs at /run first, by unshare -Urnm, or set UNETMAP_SOCKET)"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_system_are_shown_in_words() {
        let no_file = || io::Error::from_raw_os_error(errno::ENOENT);
        let host = Error::host("netmap:eth0", no_file());
        assert_eq!(host.to_string(), "netmap:eth0: No such file or directory");
        let error = Error::NoDaemon { reason: "it cannot be started".into(), source: no_file() };
        assert_eq!(error.to_string(), "no unetmapd answers: it cannot be started: No such file or directory");
        let error = Error::refused("vale0:a", errno::EINVAL, format!("a file: {} (does it exist?)", no_file()));
        assert_eq!(error.to_string(), "vale0:a: a file: No such file or directory (does it exist?)");
        for text in ["", "no code", "a (os error x)", "a (os error 5", "(os error 5)"] {
            assert_eq!(without_codes(text), text);
        }
        assert_eq!(without_codes("a (os error 1), b (os error 22)"), "a, b");
    }

    #[test]
    fn root_without_a_run_of_its_own_is_told_what_to_do() {
        for (kind, uid, is_told) in [
            (io::ErrorKind::PermissionDenied, 0, true),
            (io::ErrorKind::ReadOnlyFilesystem, 0, true),
            (io::ErrorKind::PermissionDenied, 1000, false),
            (io::ErrorKind::StorageFull, 0, false),
        ] {
            assert_eq!(run_remedy(kind, uid).contains("unshare -Urnm"), is_told, "{kind:?} {uid}");
        }
    }
}

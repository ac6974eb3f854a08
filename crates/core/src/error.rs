//! What can go wrong, and whose fault it is.

use std::fmt;
use std::io;

use unetmap_abi::NameError;

/// Why a request or a sync failed. The text says what was asked, what is wrong and what to do.
#[derive(Debug)]
pub enum Error {
    /// The port's name does not follow the grammar.
    Name(NameError),
    /// The daemon refused, with netmap's errno and its reason.
    Refused {
        /// What was asked.
        asked: String,
        /// As the original's ioctl would set it.
        errno: i32,
        /// What is wrong and what to do.
        why: String,
    },
    /// No daemon answers, and none could be started.
    NoDaemon {
        /// What was tried.
        why: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The daemon that served this port has gone; the port is dead. Open it again.
    DaemonGone {
        /// The port.
        asked: String,
    },
    /// The connection of the file by which the port was opened was shut down; the port is dead. Open it again.
    FileEnded {
        /// The port.
        asked: String,
    },
    /// The interface that the port was opened on is gone; the port is dead.
    InterfaceGone {
        /// The port.
        asked: String,
    },
    /// The port that this monitor watched is not open any more; the monitor is dead.
    WatchedGone {
        /// The monitor.
        asked: String,
    },
    /// The port is a monitor, on which nothing can be sent.
    OnlyWatches {
        /// The monitor.
        asked: String,
    },
    /// The port's positions lie in control blocks, by which a loop syncs it, and nobody else.
    ByLoop {
        /// The port.
        asked: String,
    },
    /// The program's `head` or `cur` is out of bounds; the ring was set back to where the last sync left it.
    BadPointers {
        /// The port.
        asked: String,
        /// Which ring, as `tx 0`.
        ring: String,
    },
    /// This machine said no.
    Host {
        /// What was asked.
        asked: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// The errnos that netmap's interface uses.
pub mod errno {
    /// Not allowed.
    pub const EPERM: i32 = 1;
    /// This daemon does not serve this user so; another may.
    pub const EACCES: i32 = 13;
    /// The interface is down.
    pub const ENETDOWN: i32 = 100;
    /// There is none, or it is not what it should be.
    pub const ENODEV: i32 = 19;
    /// No such thing in a list.
    pub const ENOENT: i32 = 2;
    /// Bad argument.
    pub const EINVAL: i32 = 22;
    /// Bad address.
    pub const EFAULT: i32 = 14;
    /// No such port or interface.
    pub const ENXIO: i32 = 6;
    /// Input or output failed.
    pub const EIO: i32 = 5;
    /// Not yet: ask again.
    pub const EAGAIN: i32 = 11;
    /// There is one already.
    pub const EEXIST: i32 = 17;
    /// Already bound, or exclusively held by another.
    pub const EBUSY: i32 = 16;
    /// Pools exhausted.
    pub const ENOMEM: i32 = 12;
    /// Not served.
    pub const EOPNOTSUPP: i32 = 95;
    /// Message too long.
    pub const EMSGSIZE: i32 = 90;
    /// Not a message of this protocol.
    pub const EPROTO: i32 = 71;
    /// A message of another version of the protocol.
    pub const EPROTONOSUPPORT: i32 = 93;
    /// Too many files open on this machine.
    pub const ENFILE: i32 = 23;
    /// Too many files open in the process.
    pub const EMFILE: i32 = 24;
}

impl Error {
    /// The errno that netmap would give.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Name(_) | Error::BadPointers { .. } => errno::EINVAL,
            Error::Refused { errno, .. } => *errno,
            Error::ByLoop { .. } => errno::EBUSY,
            Error::NoDaemon { source, .. } | Error::Host { source, .. } => source.raw_os_error().unwrap_or(errno::EIO),
            Error::DaemonGone { .. } | Error::FileEnded { .. } | Error::InterfaceGone { .. } => errno::ENXIO,
            Error::WatchedGone { .. } | Error::OnlyWatches { .. } => errno::EIO,
        }
    }

    pub(crate) fn host(asked: impl Into<String>, source: io::Error) -> Error {
        Error::Host { asked: asked.into(), source }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Name(e) => e.fmt(f),
            Error::Refused { asked, why, .. } => write!(f, "{asked}: {why}"),
            Error::NoDaemon { why, source } => write!(f, "no unetmapd answers: {why}: {source}"),
            Error::DaemonGone { asked } => {
                write!(f, "{asked}: the daemon that served this port has gone (open the port again)")
            }
            Error::FileEnded { asked } => {
                write!(f, "{asked}: somebody who has the netmap file called shutdown(2) on it (open the port again)")
            }
            Error::InterfaceGone { asked } => write!(
                f,
                "{asked}: the interface is gone: deleted, or moved to another network namespace (open the port again \
                 when it is back)"
            ),
            Error::WatchedGone { asked } => {
                write!(f, "{asked}: the port that was watched has been closed (open the monitor again when it is back)")
            }
            Error::OnlyWatches { asked } => {
                write!(f, "{asked}: a monitor sends nothing (leave its transmit ring alone, or open the port itself)")
            }
            Error::ByLoop { asked } => write!(
                f,
                "{asked}: its positions lie in control blocks, so that only the sync loop syncs it (SYNC_KLOOP_START)"
            ),
            Error::BadPointers { asked, ring } => write!(
                f,
                "{asked}: head or cur of ring {ring} was out of bounds; the ring was set back (is somebody else using it?)"
            ),
            Error::Host { asked, source } => write!(f, "{asked}: {source}"),
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

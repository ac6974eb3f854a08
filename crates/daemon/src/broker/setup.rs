// SPDX-License-Identifier: BSD-2-Clause
//! The broker's setup, and the names of what it keeps.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use unetmap_sys::netns::Netns;

/// An object that the broker keeps for the daemon.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) struct Handle(pub(super) u64);

/// The XDP program of an interface among them.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct XdpId(pub(crate) Handle);

/// The tcx programs of an interface.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct TcxId(pub(crate) Handle);

/// Sent to the broker when it is started, before the daemon serves anybody.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Setup {
    /// The policy's file; `None`: a daemon without policy.
    pub(crate) policy: Option<PathBuf>,
    /// The configuration's file.
    pub(crate) config: Option<PathBuf>,
    /// Where the daemon listens.
    pub(crate) socket: PathBuf,
    /// The file that the broker keeps locked while it runs.
    pub(crate) lock: PathBuf,
    /// Whether the broker of an earlier daemon goes on until this one's daemon has replaced it.
    pub(crate) replaces: bool,
}

/// The name of a process of the daemon that listens at `socket`, as ps(1) shows it.
pub(crate) fn process_name(part: &str, socket: &Path) -> OsString {
    let mut name = OsString::from(format!("unetmapd: {part} "));
    name.push(socket);
    name
}

/// Runs `work` inside a namespace; an error may be that of entering (`EPERM`: it needs CAP_SYS_ADMIN) or that of the
/// work.
pub(super) fn inside<T: Send>(netns: &Netns, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    netns.run(work).and_then(|done| done)
}

pub(super) fn not_made_here() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the broker has not made this interface")
}

// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap vm` and `unetmap memif`: a process that serves a port of a switch to a virtual machine or a packet
//! processor, and the options of `unetmap vale port` that start one in the background.
#![forbid(unsafe_code)]

mod background;
mod memif;
mod vm;

use std::io;
use std::path::Path;
use std::sync::Arc;

use tool_common::flag_on_hangup;
use tool_common::host::log::MAX_SERVER_LOG;
use tool_common::host::log::{self, Log, LogFile};
use unetmap::abi::PortSpec;
use unetmap::abi::printable::Shown;

pub use background::{ServiceArgs, set};
pub use memif::{MemifArgs, run as run_memif};
pub use vm::{VmArgs, run as run_vm};

/// The permissions of a log: the folder's owner may look what is wrong.
const LOG_MODE: u32 = 0o644;
/// Most bytes of a UNIX socket's path (`struct sockaddr_un`, less the NUL).
pub(crate) const MAX_PATH: usize = 107;

/// Checks the name of a port that is served.
///
/// # Errors
/// A sentence that says how ports are named.
pub(crate) fn port_name(text: &str) -> Result<String, String> {
    PortSpec::parse(text).map(|_| text.into()).map_err(|e| e.to_string())
}

/// Checks the length of a socket's path.
pub(crate) fn check_path(path: &str) -> Result<(), String> {
    match path.len() {
        0..=MAX_PATH => Ok(()),
        bytes => Err(format!("a socket's path has at most {MAX_PATH} bytes, and this one {bytes}")),
    }
}

/// Why nobody can listen at a path, in a sentence.
pub(crate) fn listen_error(path: &str, e: &io::Error) -> String {
    match e.kind() {
        io::ErrorKind::AddrInUse => {
            format!("{path}: another process listens there, or it is no socket: choose another path, or remove it")
        }
        io::ErrorKind::NotFound => format!("{path}: there is no such folder: create it"),
        _ => format!("{path}: {e}"),
    }
}

/// The log of a process that serves a port, on standard error or in a file, and SIGHUP has it opened again.
pub(crate) fn server_log(command: &str, path: Option<&Path>) -> Result<Log, String> {
    let open = |path: &Path| -> io::Result<Option<LogFile>> {
        // The process that has started this one may have opened it, and reads it.
        if let Some(file) = LogFile::of_stderr(path, MAX_SERVER_LOG) {
            return Ok(Some(file));
        }
        log::set_stderr(log::begin(path, MAX_SERVER_LOG, LOG_MODE)?)?;
        Ok(LogFile::of_stderr(path, MAX_SERVER_LOG))
    };
    let file = path.map(|path| open(path).map_err(|e| format!("--log {}: {e}", path.display()))).transpose()?.flatten();
    let again = if file.is_some() { flag_on_hangup()? } else { Arc::default() };
    Ok(Log::new(&format!("unetmap {command}: "), |line| Shown(line).to_string(), file, again))
}

// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap run`: executes a netmap program with libunetmap preloaded, and with unetmap's libpcap ahead of the
//! system's.

mod preloadable;

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tool_common::note;

/// File name of the library.
const LIBRARY: &str = "libunetmap.so";
/// File name of unetmap's libpcap, which has a folder of its own.
const OVERLAY: &str = "libpcap.so.0.8";

/// Exit statuses, as those of env(1).
const FAILED: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Executes the program in place of this process; returns the exit status only on failure, which it has reported.
pub(crate) fn run(program: &[OsString], force: bool) -> u8 {
    let (message, status) = match execute(program, force) {
        Ok((name, failed)) => {
            let status = if failed.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
            (format!("run: {}: {failed}", name.display()), status)
        }
        Err(message) => (message, FAILED),
    };
    note(&format!("unetmap: {message}"));
    status
}

/// Returns the program's name and why it could not be executed.
///
/// # Errors
/// Why it was not tried.
fn execute(program: &[OsString], force: bool) -> Result<(&OsString, io::Error), String> {
    let exe = std::env::current_exe().map_err(|e| format!("run: cannot find the path of this program: {e}"))?;
    let folder = exe.parent().unwrap_or(Path::new("/")).to_owned();
    let candidates = [folder.join(LIBRARY), folder.join("../lib/unetmap").join(LIBRARY)];
    let Some(library) = candidates.iter().find(|path| path.is_file()) else {
        return Err(format!(
            "run: {LIBRARY} is neither in {} nor in {} (`make install` installs it)",
            folder.display(),
            folder.join("../lib/unetmap").display()
        ));
    };
    let library = library.canonicalize().map_err(|e| format!("run: {}: {e}", library.display()))?;
    let (name, args) = program.split_first().ok_or("run: no program is given")?;
    let mut command = Command::new(name);
    command.args(args).env("LD_PRELOAD", prepend("LD_PRELOAD", library, &[':', ' '])?);
    // Only programs that use libpcap load it. Without this file they use the system's libpcap, which has no netmap
    // ports.
    let candidates = [folder.join("pcap"), folder.join("../lib/unetmap")];
    if let Some(overlay) = candidates.iter().find(|candidate| candidate.join(OVERLAY).is_file()) {
        let overlay = overlay.canonicalize().map_err(|e| format!("run: {}: {e}", overlay.display()))?;
        command.env("LD_LIBRARY_PATH", prepend("LD_LIBRARY_PATH", overlay, &[':', ';'])?);
    }
    let daemon = folder.join("unetmapd");
    if std::env::var_os("UNETMAPD").is_none() && daemon.is_file() {
        // The library looks for the daemon in the program's folder, which may be any other.
        command.env("UNETMAPD", daemon);
    }
    // The runtime of the address sanitizer refuses to start behind a preloaded library; it works, as the library passes
    // on the calls that the runtime replaces.
    command.env("ASAN_OPTIONS", prepend("ASAN_OPTIONS", "verify_asan_link_order=0".into(), &[' '])?);
    if force {
        command.env("UNETMAP_FORCE", "1");
    }
    if let Some(reason) = preloadable::obstacle(name) {
        // Only a warning: the program may start others that can be preloaded.
        let name = name.display();
        note(&format!(
            "unetmap: run: {name} opens the system's own /dev/netmap: {reason}; `unetmap node on` creates one"
        ));
    }
    Ok((name, command.exec()))
}

/// Returns the list of paths in an environment variable with `path` prepended. The loader splits the list at
/// `separators`.
fn prepend(variable: &str, path: PathBuf, separators: &[char]) -> Result<OsString, String> {
    let mut list = path.into_os_string();
    if list.to_string_lossy().contains(separators) {
        let path = list.display();
        return Err(format!("run: {path}: {variable} cannot hold a path with one of {separators:?}; move the files"));
    }
    if let Some(rest) = std::env::var_os(variable).filter(|rest| !rest.is_empty()) {
        list.push(":");
        list.push(rest);
    }
    Ok(list)
}

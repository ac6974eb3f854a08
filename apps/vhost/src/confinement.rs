// SPDX-License-Identifier: BSD-2-Clause
//! Rights that the process gives up before it accepts a hypervisor.

use std::io;
use std::path::Path;

use tool_common::host::log::Log;
use tool_common::host::sandbox::{self, Access};

use crate::device::{Config, Socket};

/// Takes away capabilities, other files and system calls. The socket can be removed at the end, but
/// none made: the daemon's may be in the same folder.
pub(crate) fn confine(config: &Config, log: &Log) {
    let report = |what: &str, result: io::Result<()>| match result {
        Err(e) if !sandbox::is_missing(&e) => log.line(&format!("not confined by {what}: {e}")),
        _ => {}
    };
    report("no_new_privs", sandbox::no_new_privileges());
    let folder = match &config.socket {
        Socket::Listen(listener) => listener.local_addr().ok().and_then(|at| at.as_pathname().map(Path::to_owned)),
        Socket::Connect(path) => Some(path.clone()),
    };
    let folder = folder.as_deref().and_then(Path::parent);
    let mut files = vec![(Path::new("/proc"), Access::Read), (Path::new("/sys"), Access::Read)];
    files.extend(folder.map(|folder| (folder, Access::Remove)));
    // The log is opened again.
    let of_log = log.folder();
    files.extend(of_log.iter().map(|folder| (&**folder, Access::Write)));
    report("landlock", sandbox::allow_files(&files));
    report("capabilities", sandbox::keep_capabilities(&[]));
    report("seccomp", sandbox::allow_calls(sandbox::MAIN));
}

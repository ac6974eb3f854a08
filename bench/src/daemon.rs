// SPDX-License-Identifier: BSD-2-Clause
//! Daemons that the benchmark starts for itself.

use std::env;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::program::{self, Running, TIMEOUT};

/// A running daemon, with the benchmark's priority.
pub(crate) struct Daemon {
    /// The socket on which it listens.
    pub(crate) socket: PathBuf,
    program: Running,
}

impl Daemon {
    /// Starts a daemon with additional arguments. `what` is its name in error messages.
    ///
    /// # Errors
    /// The program does not exist, or does not listen in time.
    pub(crate) fn start(what: &str, socket: PathBuf, more: &[&OsStr]) -> Result<Daemon, String> {
        let mut command = Command::new(match env::var_os("UNETMAPD") {
            Some(path) => path.into(),
            None => program::find("unetmapd")?,
        });
        command.args(["--foreground", "--idle-exit", "3600", "--log", "error"]);
        command.arg("--socket").arg(&socket).args(more);
        // Not a BPF file system: XDP programs are attached directly, whatever else the machine has.
        command.env("LIBXDP_BPFFS", "/");
        let mut program = Running::start(what, &mut command)?;
        let start = Instant::now();
        while unetmap_sys::socket::connect(&socket).is_err() {
            if let Err(e) = program.check() {
                // Prefers the error that the daemon printed.
                return Err(program.stop().err().unwrap_or(e));
            }
            if start.elapsed() > TIMEOUT {
                return Err(format!("unetmapd does not listen at {} after {} s", socket.display(), TIMEOUT.as_secs()));
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(Daemon { socket, program })
    }

    /// Returns its process id.
    pub(crate) fn id(&self) -> u32 {
        self.program.id()
    }

    /// Stops the daemon with a signal, and waits until it has exited.
    ///
    /// # Errors
    /// It failed before, or does not exit.
    pub(crate) fn stop(&mut self) -> Result<(), String> {
        self.program.stop()
    }
}

//! A daemon of the benchmark's own.

use std::env;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::program::{self, PATIENCE, Running};

/// A daemon that is running, at the priority of the benchmark.
pub(crate) struct Daemon {
    /// Where it listens.
    pub(crate) socket: PathBuf,
    program: Running,
}

impl Daemon {
    /// Starts one; `what` is how it is called in messages, `more` are arguments.
    ///
    /// # Errors
    /// There is no such program, or it does not come to listen.
    pub(crate) fn start(what: &str, socket: PathBuf, more: &[&OsStr]) -> Result<Daemon, String> {
        let mut command = Command::new(match env::var_os("UNETMAPD") {
            Some(path) => path.into(),
            None => program::find("unetmapd")?,
        });
        command.args(["--foreground", "--idle-exit", "3600", "--log", "error"]);
        command.arg("--socket").arg(&socket).args(more);
        let mut program = Running::start(what, &mut command)?;
        let start = Instant::now();
        while unetmap_sys::socket::connect(&socket).is_err() {
            if let Err(e) = program.check() {
                // Its own words say why.
                return Err(program.end().err().unwrap_or(e));
            }
            if start.elapsed() > PATIENCE {
                return Err(format!("unetmapd does not listen at {} after {} s", socket.display(), PATIENCE.as_secs()));
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(Daemon { socket, program })
    }

    /// Its process.
    pub(crate) fn id(&self) -> u32 {
        self.program.id()
    }

    /// Ends it in order.
    ///
    /// # Errors
    /// It had failed, or does not end.
    pub(crate) fn end(&mut self) -> Result<(), String> {
        self.program.end()
    }
}

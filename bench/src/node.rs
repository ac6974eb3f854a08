// SPDX-License-Identifier: BSD-2-Clause
//! The benchmarks `node-*`: the C program of `preload-*`, statically linked without unetmap's library, on a
//! `/dev/netmap` that a daemon of the benchmark serves.

use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use crate::daemon::Daemon;
use crate::preload;
use crate::probe::Cores;
use crate::program::{self, Running, steady_mpps, stop_all};
use crate::vale::pin_all;

/// The node, and the program that uses it.
pub(crate) struct NodeProgram {
    cores: Cores,
    daemon: Daemon,
    /// Has the daemon's socket and mount, so it is dropped last.
    folder: TempDir,
}

impl NodeProgram {
    /// Starts a daemon, creates the node, and compiles the program.
    ///
    /// # Errors
    /// No C compiler; this machine does not support the node, or this user has no permission to create it.
    pub(crate) fn new(cores: Cores) -> Result<NodeProgram, String> {
        let folder = tempfile::tempdir().map_err(|e| format!("bench: a folder for the node: {e}"))?;
        let device = folder.path().join("netmap");
        let unetmap = program::find("unetmap")?;
        let daemon = Daemon::start("unetmapd", folder.path().join("socket"), &[])?;
        let noded = NodeProgram { cores, daemon, folder };
        let mut on = Command::new(unetmap);
        on.args(["node", "on"]).arg(&device).env("UNETMAP_SOCKET", &noded.daemon.socket);
        let output = on.output().map_err(|e| format!("bench: starting unetmap: {e}"))?;
        if !output.status.success() {
            return Err(format!("bench: {}", String::from_utf8_lossy(&output.stderr).trim()));
        }
        let device = format!("-DNETMAP_DEVICE_NAME=\"{}\"", device.display());
        preload::compile(noded.folder.path(), &["-static", "-DNODE", &device])
            .map_err(|e| format!("bench: compiling the netmap program: {e}"))?;
        Ok(noded)
    }

    /// Like [`preload::NetmapProgram::rate`].
    pub(crate) fn rate(&self, batch: u32) -> Result<f64, String> {
        let (tx, rx) = (self.cores.tx.to_string(), self.cores.rx.to_string());
        let rx = self.start(&["rx", "netmap:bench}1", &rx])?;
        let tx = self.start(&["tx", "netmap:bench{1", &tx, &batch.to_string()])?;
        let mut programs = [tx, rx];
        let sample = steady_mpps(|| programs[1].line());
        stop_all(sample, &mut programs)
    }

    /// Measures a poll of a port that is ready, in nanoseconds, with the program and the daemon on one core.
    pub(crate) fn ready_poll(&self) -> Result<f64, String> {
        pin_all(self.daemon.id(), self.cores.tx)
            .map_err(|e| format!("bench: cannot pin the daemon to processor {}: {e}", self.cores.tx))?;
        preload::ready_poll(|args| self.start(args), "netmap:bench{2", self.cores)
    }

    fn start(&self, args: &[&str]) -> Result<Running, String> {
        let program: PathBuf = self.folder.path().join("preload");
        Running::start(format!("the netmap program ({})", args[0]), Command::new(program).args(args))
    }
}

impl Drop for NodeProgram {
    fn drop(&mut self) {
        // The daemon unmounts the node. If it failed before, the measurement has reported an error.
        let _ = self.daemon.stop();
    }
}

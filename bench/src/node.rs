//! The same C program on a `/dev/netmap` that a daemon of our own serves, linked statically with nothing of ours.

use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use crate::daemon::Daemon;
use crate::preload;
use crate::probe::Cores;
use crate::program::{self, Running, conclude, steady_mpps};
use crate::vale::pin_all;

/// The node, and the program for it.
pub(crate) struct Noded {
    cores: Cores,
    daemon: Daemon,
    /// Holds the daemon's socket and mount, so it goes last.
    folder: TempDir,
}

impl Noded {
    /// Starts a daemon, has it make the node, and compiles the program.
    ///
    /// # Errors
    /// No C compiler; this machine or this user cannot have the node.
    pub(crate) fn new(cores: Cores) -> Result<Noded, String> {
        let folder = tempfile::tempdir().map_err(|e| format!("bench: a folder for the node: {e}"))?;
        let device = folder.path().join("netmap");
        let unetmap = program::find("unetmap")?;
        let daemon = Daemon::start("unetmapd", folder.path().join("socket"), &[])?;
        let noded = Noded { cores, daemon, folder };
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

    /// As [`preload::Preloaded::rate`].
    pub(crate) fn rate(&self, batch: u32) -> Result<f64, String> {
        let (tx, rx) = (self.cores.tx.to_string(), self.cores.rx.to_string());
        let rx = self.start(&["rx", "netmap:bench}1", &rx])?;
        let tx = self.start(&["tx", "netmap:bench{1", &tx, &batch.to_string()])?;
        let mut programs = [tx, rx];
        let sample = steady_mpps(|| programs[1].line());
        conclude(sample, &mut programs)
    }

    /// Nanoseconds of a poll that finds something ready, with the program and the daemon on one core.
    pub(crate) fn ready_poll(&self) -> Result<f64, String> {
        pin_all(self.daemon.id(), self.cores.tx)
            .map_err(|e| format!("bench: the daemon cannot be kept on one core: {e}"))?;
        preload::ready_poll(|args| self.start(args), "netmap:bench{2", self.cores)
    }

    fn start(&self, args: &[&str]) -> Result<Running, String> {
        let program: PathBuf = self.folder.path().join("preload");
        Running::start(format!("the netmap program ({})", args[0]), Command::new(program).args(args))
    }
}

impl Drop for Noded {
    fn drop(&mut self) {
        // So that it unmounts. If it had failed, so has what was measured.
        let _ = self.daemon.end();
    }
}

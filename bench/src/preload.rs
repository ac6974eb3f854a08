// SPDX-License-Identifier: BSD-2-Clause
//! The benchmarks `preload-*`: a C program written for netmap, under `unetmap run`, against the same program linked
//! with the library, and against pkt-gen, which uses the Rust library; and the cost of calls on other files in such a
//! program.

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::probe::Cores;
use crate::program::{self, Running, parse_json, steady_mpps, stop_all};

/// The program.
const SOURCE: &str = include_str!("../programs/preload.c");
/// File name of the library, and the soname by which the loader finds it.
const LIBRARY: &str = "libunetmap.so";
const SONAME: &str = "libunetmap.so.0";
/// The headers that the program needs.
const HEADERS: [(&str, &str); 3] = [
    ("netmap.h", include_str!("../../include/net/netmap.h")),
    ("netmap_legacy.h", include_str!("../../include/net/netmap_legacy.h")),
    ("netmap_user.h", include_str!("../../include/net/netmap_user.h")),
];

/// The compiled program.
pub(crate) struct NetmapProgram {
    cores: Cores,
    /// `unetmap`, which runs the program; `None`: the program is linked with the library.
    unetmap: Option<PathBuf>,
    folder: TempDir,
}

impl NetmapProgram {
    /// Compiles the program.
    ///
    /// # Errors
    /// No C compiler, or no library.
    pub(crate) fn new(cores: Cores) -> Result<NetmapProgram, String> {
        let failed = |e: String| format!("bench: compiling the netmap program: {e}");
        let unetmap = program::find("unetmap")?;
        let folder = tempfile::tempdir().map_err(|e| failed(e.to_string()))?;
        compile(folder.path(), &["-ldl"]).map_err(failed)?;
        Ok(NetmapProgram { cores, unetmap: Some(unetmap), folder })
    }

    /// Compiles the program, linked with the library.
    ///
    /// # Errors
    /// No C compiler, or no library.
    pub(crate) fn linked(cores: Cores) -> Result<NetmapProgram, String> {
        let failed = |e: String| format!("bench: linking the netmap program: {e}");
        let here = env::current_exe().map_err(|e| failed(e.to_string()))?;
        let places = ["", "../lib", ".."].map(|place| here.with_file_name(place).join(LIBRARY));
        let library = places.iter().find(|place| place.is_file()).ok_or_else(|| failed(format!("no {LIBRARY}")))?;
        let folder = tempfile::tempdir().map_err(|e| failed(e.to_string()))?;
        // The linker finds the library by the first name, the loader by the second.
        [LIBRARY, SONAME]
            .iter()
            .try_for_each(|name| symlink(library, folder.path().join(name)))
            .map_err(|e| failed(e.to_string()))?;
        let place = folder.path().display();
        compile(folder.path(), &[&format!("-L{place}"), "-lunetmap", &format!("-Wl,-rpath,{place}"), "-ldl"])
            .map_err(failed)?;
        Ok(NetmapProgram { cores, unetmap: None, folder })
    }

    /// Sends packets of 60 B as fast as possible, in batches of `batch`; returns the receiver's rate in Mpps.
    pub(crate) fn rate(&self, batch: u32) -> Result<f64, String> {
        let port = |end: &str| format!("netmap:bench{}{end}", std::process::id());
        let (tx, rx) = (self.cores.tx.to_string(), self.cores.rx.to_string());
        let rx = self.start(&["rx", &port("}2"), &rx])?;
        let tx = self.start(&["tx", &port("{2"), &tx, &batch.to_string()])?;
        let mut programs = [tx, rx];
        let sample = steady_mpps(|| programs[1].line());
        stop_all(sample, &mut programs)
    }

    /// Measures a poll of a file that is not netmap's, through unetmap's library and by the C library alone, in
    /// nanoseconds.
    pub(crate) fn foreign_poll(&self) -> Result<[f64; 2], String> {
        let mut program = self.start(&["poll", &self.cores.tx.to_string()])?;
        let line = program.line();
        let result = stop_all(line, std::slice::from_mut(&mut program))?;
        let value = parse_json(&result)?;
        match (value["ns"].as_f64(), value["bare_ns"].as_f64()) {
            (Some(with), Some(bare)) => Ok([with, bare]),
            _ => Err(format!("bench: the netmap program wrote `{result}`, which lacks ns")),
        }
    }

    /// Measures a poll of a port that is ready, in nanoseconds.
    pub(crate) fn ready_poll(&self) -> Result<f64, String> {
        let port = format!("netmap:bench{}{{3", std::process::id());
        ready_poll(|args| self.start(args), &port, self.cores)
    }

    fn start(&self, args: &[&str]) -> Result<Running, String> {
        Running::start(format!("the netmap program ({})", args[0]), &mut self.command(args))
    }

    /// Returns the command that runs the program.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let program = self.folder.path().join("preload");
        let mut command = match &self.unetmap {
            Some(unetmap) => {
                let mut command = Command::new(unetmap);
                command.args(["run", "--"]).arg(program);
                command
            }
            None => Command::new(program),
        };
        command.args(args);
        command
    }
}

/// Starts the program to poll `port`, which has free slots, and returns its result in nanoseconds.
pub(crate) fn ready_poll(
    start: impl FnOnce(&[&str]) -> Result<Running, String>,
    port: &str,
    cores: Cores,
) -> Result<f64, String> {
    let mut program = start(&["ready", port, &cores.tx.to_string()])?;
    let line = program.line();
    let result = stop_all(line, std::slice::from_mut(&mut program))?;
    parse_json(&result)?["ns"]
        .as_f64()
        .ok_or_else(|| format!("bench: the netmap program wrote `{result}`, which lacks ns"))
}

/// Compiles the program in `folder`, with additional arguments.
///
/// # Errors
/// No C compiler, or the compiler's first error.
pub(crate) fn compile(folder: &Path, more: &[&str]) -> Result<(), String> {
    let io = |e: std::io::Error| e.to_string();
    let (net, source) = (folder.join("net"), folder.join("preload.c"));
    fs::create_dir(&net).map_err(io)?;
    HEADERS.iter().try_for_each(|(name, text)| fs::write(net.join(name), text)).map_err(io)?;
    fs::write(&source, SOURCE).map_err(io)?;
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-pthread", "-I"]).arg(folder);
    cc.arg("-o").arg(folder.join("preload")).arg(&source).args(more);
    let output = cc.output().map_err(|e| format!("cc: {e} (apt-get install gcc)"))?;
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(errors.lines().find(|line| line.contains("error")).unwrap_or("cc failed").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_compiles_without_a_warning() {
        let folder = tempfile::tempdir().unwrap();
        compile(folder.path(), &["-ldl"]).unwrap();
        let mut strict = Command::new("cc");
        strict.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I"]).arg(folder.path());
        assert!(strict.arg(folder.path().join("preload.c")).status().unwrap().success());
        let program = folder.path().join("preload");
        for wrong in [&["tx", "netmap:x{1", "0"][..], &["rx", "netmap:x{1"], &["poll"], &["ready"], &[]] {
            assert_eq!(Command::new(&program).args(wrong).output().unwrap().status.code(), Some(2), "{wrong:?}");
        }
    }
}

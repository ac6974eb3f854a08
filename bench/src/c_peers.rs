// SPDX-License-Identifier: BSD-2-Clause
//! The peers in C: programs that are compiled when they are needed, those with DPDK's libraries at most once.

use std::cell::OnceCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::nic::PACKET_HEADER;

/// Flags of the compiler for all programs.
const FLAGS: [&str; 5] = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-pthread"];
/// Debian's packages of DPDK's headers and libraries, and of the program that knows where they are.
const DPDK_PACKAGES: &str = "libdpdk-dev pkg-config";

/// A program with DPDK's libraries.
struct Source {
    name: &'static str,
    text: &'static str,
    libraries: &'static [&'static str],
}

const RING: Source =
    Source { name: "ring", text: include_str!("../peers/ring.c"), libraries: &["-lrte_ring", "-lrte_eal"] };
const DEVICES: Source = Source {
    name: "dpdk",
    text: include_str!("../peers/dpdk.c"),
    libraries: &["-lrte_ethdev", "-lrte_mempool", "-lrte_mbuf", "-lrte_net", "-lrte_eal"],
};

/// The programs with DPDK's libraries.
#[derive(Default)]
pub(crate) struct DpdkPeers {
    folder: OnceCell<Result<TempDir, String>>,
    ring: OnceCell<Result<PathBuf, String>>,
    devices: OnceCell<Result<PathBuf, String>>,
}

impl DpdkPeers {
    /// Returns the program of an `rte_ring`.
    pub(crate) fn ring(&self) -> Result<PathBuf, String> {
        self.ring.get_or_init(|| self.compile(&RING)).clone()
    }

    /// Returns the program that sends, receives and forwards with devices of DPDK.
    pub(crate) fn devices(&self) -> Result<PathBuf, String> {
        self.devices.get_or_init(|| self.compile(&DEVICES)).clone()
    }

    fn compile(&self, source: &Source) -> Result<PathBuf, String> {
        let folder = self.folder.get_or_init(|| {
            tempfile::tempdir().map_err(|e| format!("bench: a folder for the programs with DPDK: {e}"))
        });
        let folder = folder.as_ref().map_err(String::clone)?;
        let mut more = dpdk_flags()?;
        more.extend(source.libraries.iter().map(|library| (*library).to_owned()));
        let file = format!("{}.c", source.name);
        compile(folder.path(), source.name, &[(&file, source.text), PACKET_HEADER], &more)
    }
}

/// Returns why there are no libraries of DPDK, if so.
pub(crate) fn no_dpdk() -> Option<String> {
    dpdk_flags().err()
}

/// Returns the arguments of the compiler for DPDK's headers and libraries.
fn dpdk_flags() -> Result<Vec<String>, String> {
    let missing = || format!("DPDK's libraries are not installed (apt-get install {DPDK_PACKAGES})");
    let output = Command::new("pkg-config").args(["--cflags", "--libs-only-L", "libdpdk"]).output();
    let output = output.ok().filter(|output| output.status.success()).ok_or_else(missing)?;
    Ok(String::from_utf8_lossy(&output.stdout).split_whitespace().map(String::from).collect())
}

/// Writes the sources of a program, the first of which is `NAME.c`, to `folder`, and compiles it with additional
/// arguments.
pub(crate) fn compile(folder: &Path, name: &str, sources: &[(&str, &str)], more: &[String]) -> Result<PathBuf, String> {
    let failed = |e: String| format!("bench: compiling {name}.c: {e}");
    let (source, program) = (folder.join(format!("{name}.c")), folder.join(name));
    let write = |(file, text): &(&str, &str)| fs::write(folder.join(file), text);
    sources.iter().try_for_each(write).map_err(|e| failed(e.to_string()))?;
    let mut cc = Command::new("cc");
    // The libraries follow the source that uses them.
    cc.args(FLAGS).arg("-o").arg(&program).arg(&source).args(more);
    let output = cc.output().map_err(|e| failed(format!("cc: {e} (apt-get install gcc)")))?;
    if output.status.success() {
        return Ok(program);
    }
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(failed(errors.lines().find(|line| line.contains("error")).unwrap_or("cc failed").to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_with_dpdk_compile_without_a_warning_and_refuse_a_wrong_command_line() {
        let peers = DpdkPeers::default();
        if let Some(why) = no_dpdk() {
            eprintln!("skipped: {why}");
            assert!(peers.ring().unwrap_err().contains("libdpdk-dev"));
            return;
        }
        let wrong: [(PathBuf, &[&[&str]]); 2] = [
            (peers.ring().unwrap(), &[&[], &["rate"], &["rate", "-T", "0"], &["x", "-T", "1"], &["rtt", "-a", "0"]]),
            (peers.devices().unwrap(), &[&[], &["tx"], &["fwd", "one"], &["x", "one"], &["tx", "-l", "9", "one"]]),
        ];
        for (program, lines) in wrong {
            let mut strict = Command::new("cc");
            strict.args(FLAGS).args(["-Werror", "-fsyntax-only"]).arg(program.with_extension("c"));
            assert!(strict.args(dpdk_flags().unwrap()).status().unwrap().success());
            for line in lines {
                let status = Command::new(&program).args(*line).output().unwrap().status;
                assert_eq!(status.code(), Some(2), "{} {line:?}", program.display());
            }
        }
    }
}

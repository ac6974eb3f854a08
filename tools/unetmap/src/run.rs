//! `unetmap run`: a netmap program, with libunetmap preloaded.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The library's file.
const LIBRARY: &str = "libunetmap.so";

/// Becomes the program; returns only if that fails.
pub(crate) fn run(program: &[OsString]) -> Result<u8, String> {
    let here = std::env::current_exe().map_err(|e| format!("run: where this program is: {e}"))?;
    let folder = here.parent().unwrap_or(Path::new("/")).to_owned();
    let places = [folder.join(LIBRARY), folder.join("../lib").join(LIBRARY)];
    let Some(library) = places.iter().find(|place| place.is_file()) else {
        return Err(format!(
            "run: {LIBRARY} is neither in {} nor in {} (make install puts it there)",
            folder.display(),
            folder.join("../lib").display()
        ));
    };
    let library = library.canonicalize().map_err(|e| format!("run: {}: {e}", library.display()))?;
    let (name, args) = program.split_first().ok_or("run: no program is named")?;
    let mut command = Command::new(name);
    command.args(args).env("LD_PRELOAD", preload(library)?);
    let daemon = folder.join("unetmapd");
    if std::env::var_os("UNETMAPD").is_none() && daemon.is_file() {
        // The program may be anywhere, and the daemon is sought beside it.
        command.env("UNETMAPD", daemon);
    }
    let failed = command.exec();
    Err(format!("run: {}: {failed}", name.display()))
}

/// The library, before what is preloaded already.
fn preload(library: PathBuf) -> Result<OsString, String> {
    let mut list = library.into_os_string();
    // The loader takes both for the end of a name.
    if list.to_string_lossy().contains([':', ' ']) {
        return Err(format!("run: {}: no path with a space or a colon can be preloaded", list.display()));
    }
    if let Some(before) = std::env::var_os("LD_PRELOAD").filter(|before| !before.is_empty()) {
        list.push(":");
        list.push(before);
    }
    Ok(list)
}

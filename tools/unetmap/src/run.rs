//! `unetmap run`: a netmap program, with libunetmap preloaded, and a libpcap that knows netmap ports before the system's.

mod reach;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The library's file.
const LIBRARY: &str = "libunetmap.so";
/// The overlay's, in a folder where nothing else is.
const OVERLAY: &str = "libpcap.so.0.8";

/// Becomes the program; returns only if that fails.
pub(crate) fn run(program: &[OsString], force: bool) -> Result<u8, String> {
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
    command.args(args).env("LD_PRELOAD", before("LD_PRELOAD", library, &[':', ' '])?);
    // Only programs that use libpcap load it. Without it they run, too, and know no netmap ports.
    let places = [folder.join("pcap"), folder.join("../lib/unetmap")];
    if let Some(place) = places.iter().find(|place| place.join(OVERLAY).is_file()) {
        let place = place.canonicalize().map_err(|e| format!("run: {}: {e}", place.display()))?;
        command.env("LD_LIBRARY_PATH", before("LD_LIBRARY_PATH", place, &[':', ';'])?);
    }
    let daemon = folder.join("unetmapd");
    if std::env::var_os("UNETMAPD").is_none() && daemon.is_file() {
        // The program may be anywhere, and the daemon is sought beside it.
        command.env("UNETMAPD", daemon);
    }
    if force {
        command.env("UNETMAP_FORCE", "1");
    }
    if let Some(why) = reach::obstacle(name) {
        // It may be one that only starts others, so it runs.
        let name = name.display();
        eprintln!("unetmap: run: {name} opens the system's own /dev/netmap: {why}; `unetmap node on` makes one");
    }
    let failed = command.exec();
    Err(format!("run: {}: {failed}", name.display()))
}

/// The list in a variable of the environment with `path` before the rest; `separators` end a name in it.
fn before(variable: &str, path: PathBuf, separators: &[char]) -> Result<OsString, String> {
    let mut list = path.into_os_string();
    if list.to_string_lossy().contains(separators) {
        return Err(format!("run: {}: no path with one of {separators:?} can stand in {variable}", list.display()));
    }
    if let Some(rest) = std::env::var_os(variable).filter(|rest| !rest.is_empty()) {
        list.push(":");
        list.push(rest);
    }
    Ok(list)
}

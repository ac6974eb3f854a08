// SPDX-License-Identifier: BSD-2-Clause
//! netmap's parameters as files, which programs under `unetmap run` find in `/sys/module/netmap`.
//!
//! ```text
//! SOCKET.module/              stands for /sys/module/netmap
//!     parameters/NAME         the value of a knob, and a newline
//! ```
//! All users can read them. Nobody writes them: the library asks the daemon to set a knob, if the file's permissions
//! are those of one that the program may write.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::Path;

use unetmap_core::control::sysctl::{MAX_NAME, module_path};
use unetmap_sys::place::{NewFile, Place};

use crate::tuning::broker::MAX_PARAMETERS;

/// The name of a parameter, its value, and whether it can be set.
pub(crate) type Parameter = (String, u64, bool);

const FOLDER: &str = "parameters";

/// A place in the folder of parameters. `None`: there is none, and none is made.
fn place(module: &Place, makes: bool) -> io::Result<Option<Place>> {
    let Some(folder) = module.inside_readable(OsStr::new(FOLDER), makes)? else { return Ok(None) };
    folder.inside_readable(OsStr::new(FOLDER), makes)
}

/// Writes the values into the files, where they differ; unless `makes` only if there are files already.
pub(crate) fn show(socket: &Path, all: &[Parameter], makes: bool) -> io::Result<()> {
    let is_name = |name: &str| {
        (1..=MAX_NAME).contains(&name.len())
            && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    if all.len() > MAX_PARAMETERS || !all.iter().all(|(name, ..)| is_name(name)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let Some(any) = place(&Place::of(&module_path(socket))?, makes)? else { return Ok(()) };
    for (name, value, can_be_set) in all {
        let (place, text) = (any.beside(OsStr::new(name)), format!("{value}\n"));
        if fs::read(place.anchored()).is_ok_and(|found| found == text.as_bytes()) {
            continue;
        }
        match can_be_set {
            // A program that has it open reads the new value, too.
            true => place.overwrite(text.as_bytes(), 0o644)?,
            false => NewFile::write(&place, ".next", text.as_bytes(), None, 0o444)?.rename_to(place.name())?,
        }
    }
    Ok(())
}

/// Removes the files.
pub(crate) fn hide(socket: &Path) -> io::Result<()> {
    let module = Place::of(&module_path(socket))?;
    let (Some(folder), Some(any)) = (module.inside_readable(OsStr::new(FOLDER), false)?, place(&module, false)?) else {
        return Ok(());
    };
    for entry in fs::read_dir(folder.anchored())? {
        let place = any.beside(&entry?.file_name());
        place.identity().map_or(Ok(()), |identity| place.remove(identity))?;
    }
    folder.remove_folder()?;
    module.remove_folder()
}

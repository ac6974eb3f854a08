// SPDX-License-Identifier: BSD-2-Clause
//! Files of the plugin, in a folder beside the daemon's socket: a lock, and the ports whose settings a DEL without a
//! daemon could not remove. Each of these is an empty file of the port's name. Other users cannot open the folder, and
//! so keep no lock.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::Path;

use tool_common::host::place::Place;
use unetmap::switch;

use crate::fault::{Code, Fault};

/// The name of the lock.
const LOCK: &str = "lock";
/// Permissions of the files.
const MODE: u32 = 0o600;

/// Returns the place of the lock in the folder, which is made if there is none.
fn place_of_lock() -> Result<Place, Fault> {
    let mut folder = unetmap::daemon::own_socket().map_err(|e| Fault::refused("the daemon's folder", e))?;
    folder.as_mut_os_string().push(".pods");
    let found = || {
        // Path: the folder of root's daemon, where root alone makes files.
        folder.parent().map_or(Ok(()), fs::create_dir_all)?;
        Place::of(&folder)?.inside(LOCK.as_ref(), true)?.ok_or_else(|| ErrorKind::NotFound.into())
    };
    found().map_err(|e: io::Error| Fault::new(Code::Io, format!("{}: {e}", folder.display())))
}

/// The fault of a file of the folder.
fn failed(name: &str) -> impl Fn(io::Error) -> Fault {
    move |e| Fault::new(Code::Io, format!("the plugin's file {name}: {e}"))
}

/// Waits until no other plugin has the lock. It ends with the file.
pub(crate) fn lock() -> Result<File, Fault> {
    let file = place_of_lock()?.append(MODE).and_then(|file| file.lock().map(|()| file));
    file.map_err(failed(LOCK))
}

/// Keeps in mind that a port's settings are to be removed.
pub(crate) fn remove_settings_later(port: &str) -> Result<(), Fault> {
    place_of_lock()?.beside(port.as_ref()).append(MODE).map(drop).map_err(failed(port))
}

/// Removes the settings of these ports. A daemon runs.
pub(crate) fn remove_settings() -> Result<(), Fault> {
    let place = place_of_lock()?;
    let path = place.anchored();
    let ports = || ports(path.parent().unwrap_or(&path)).map_err(failed("list"));
    if ports()?.is_empty() {
        return Ok(());
    }
    // A port that is made again after this call has new settings, which nobody else may remove.
    let _lock = lock()?;
    for port in ports()? {
        switch::clear(&port).map_err(|e| Fault::refused(&port, e))?;
        let file = place.beside(port.as_ref());
        file.identity().map_or(Ok(()), |identity| file.remove(identity)).map_err(failed(&port))?;
    }
    Ok(())
}

/// The names of ports in an open folder.
fn ports(folder: &Path) -> io::Result<Vec<String>> {
    let names = fs::read_dir(folder)?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    Ok(names.filter(|name| name.starts_with("vale")).collect())
}

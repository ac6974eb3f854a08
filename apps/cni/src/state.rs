// SPDX-License-Identifier: BSD-2-Clause
//! Files of the plugin, in a folder beside the daemon's socket: a lock, and the ports whose settings a DEL without a
//! daemon could not remove. Each of these is an empty file of the port's name.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::PathBuf;

use unetmap::switch;

use crate::fault::{Code, Fault};

/// Returns the folder, which is made if there is none.
fn folder() -> Result<PathBuf, Fault> {
    let mut folder = unetmap::daemon::own_socket().map_err(|e| Fault::refused("the daemon's folder", e))?;
    folder.as_mut_os_string().push(".cni");
    // Path: it is in the folder of root's daemon, where root alone makes files.
    fs::create_dir_all(&folder).map_err(|e| Fault::new(Code::Io, format!("{}: {e}", folder.display())))?;
    Ok(folder)
}

/// Waits until no other plugin has the lock. It ends with the file.
pub(crate) fn lock() -> Result<File, Fault> {
    let path = folder()?.join("lock");
    // Path: as of the folder.
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let locked = file.and_then(|file| file.lock().map(|()| file));
    locked.map_err(|e| Fault::new(Code::Io, format!("{}: {e}", path.display())))
}

/// Keeps in mind that a port's settings are to be removed.
pub(crate) fn remove_settings_later(port: &str) -> Result<(), Fault> {
    let path = folder()?.join(port);
    // Path: as of the folder.
    let made = File::create(&path);
    made.map(drop).map_err(|e| Fault::new(Code::Io, format!("{}: {e}", path.display())))
}

/// Removes the settings of these ports. A daemon runs.
pub(crate) fn remove_settings() -> Result<(), Fault> {
    let is_port = |name: &String| name.starts_with("vale");
    let ports = || -> Result<Vec<String>, Fault> {
        let found = fs::read_dir(folder()?).map_err(|e| Fault::new(Code::Io, format!("the plugin's folder: {e}")))?;
        Ok(found.flatten().filter_map(|entry| entry.file_name().into_string().ok()).filter(is_port).collect())
    };
    if ports()?.is_empty() {
        return Ok(());
    }
    // A port that is made again after this call has new settings, which nobody else may remove.
    let _lock = lock()?;
    for port in ports()? {
        switch::clear(&port).map_err(|e| Fault::refused(&port, e))?;
        let path = folder()?.join(&port);
        // Path: as of the folder.
        match fs::remove_file(&path) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                return Err(Fault::new(Code::Io, format!("{}: {e}", path.display())));
            }
            _ => {}
        }
    }
    Ok(())
}

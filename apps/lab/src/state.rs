// SPDX-License-Identifier: BSD-2-Clause
//! The folder of a lab: what it has, written down before it is made, so that all of it is removed and nothing else.
//!
//! `/run/unetmap-labs` and what is in it are this user's, and no other can use them. A lab's folder has `state.json`,
//! the daemon's socket, logs, and the wire: a file at which that namespace is mounted.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tool_common::host::netns::Netns;
use tool_common::host::place::{NewFile, Place};

use crate::file::is_name;

/// The folder of all labs.
const LABS: &str = "/run/unetmap-labs";
const STATE: &str = "state.json";
/// Only this user reads them.
const MODE: u32 = 0o600;

/// A lab's parts.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct State {
    /// Whether it was built as a whole.
    pub(crate) complete: bool,
    /// Its file, and the text by which it was built.
    pub(crate) file: PathBuf,
    pub(crate) text: String,
    /// Names in the folder of `ip netns`, each with its namespace.
    pub(crate) namespaces: BTreeMap<String, Identity>,
}

/// The numbers by which a namespace is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// As links in `/proc` show it. The kernel gives it to another one when this one has ended.
    pub(crate) inode: u64,
    /// It is given to no other one; `None` before Linux 5.14.
    cookie: Option<u64>,
}

impl Identity {
    /// # Errors
    /// The kernel's.
    pub(crate) fn of(netns: &Netns) -> io::Result<Identity> {
        Ok(Identity { inode: netns.id(), cookie: netns.cookie()? })
    }
}

/// The folder of a lab, which no other `unetmap lab` uses meanwhile.
#[derive(Debug)]
pub(crate) struct Folder {
    /// A name in the folder of all labs.
    place: Place,
    path: PathBuf,
    /// Locked as long as it is open.
    _lock: File,
}

impl Folder {
    /// Finds the folder of a lab of this name, which is made at the first [`Folder::write`], and waits until no other
    /// program uses it. `None`: there are no labs, and it does not `make` the folder of all.
    ///
    /// # Errors
    /// A sentence: this user cannot have labs, or others can use the folder.
    pub(crate) fn open(name: &str, makes: bool) -> Result<Option<Folder>, String> {
        let lock = |place: &Place| -> io::Result<File> {
            let file = place.beside(".lock".as_ref()).append(MODE)?;
            file.lock()?;
            Ok(file)
        };
        let Some(place) = labs(name, makes)? else { return Ok(None) };
        let lock = lock(&place).map_err(|e| format!("{LABS}: {e}"))?;
        Ok(Some(Folder { place, path: Path::new(LABS).join(name), _lock: lock }))
    }

    /// Reads what the lab has; `None`: there is no such lab.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) fn read(&self) -> Result<Option<State>, String> {
        read(&self.place).map_err(|e| format!("{}: {e}", self.path.display()))
    }

    /// Writes what the lab has.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) fn write(&self, state: &State) -> Result<(), String> {
        let write = || -> io::Result<()> {
            let place = self.file(STATE)?;
            NewFile::write(&place, ".new", &serde_json::to_vec(state)?, None, MODE)?.rename_to(place.name())
        };
        write().map_err(|e| format!("{}: {e}", self.path.display()))
    }

    /// The place of a file of this name; makes the folder.
    ///
    /// # Errors
    /// The kernel's, or a sentence: others can use the folder.
    pub(crate) fn file(&self, name: &str) -> io::Result<Place> {
        let place = self.place.inside(name.as_ref(), true)?;
        place.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where the wire is mounted.
    pub(crate) fn wire(&self) -> PathBuf {
        self.path.join("wire")
    }

    /// The socket of the lab's daemon.
    pub(crate) fn socket(&self) -> PathBuf {
        self.path.join("unetmapd.sock")
    }

    /// Removes the folder, if there is one.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) fn remove(&self) -> Result<(), String> {
        match fs::remove_dir_all(&self.path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(format!("{}: {e}", self.path.display())),
            _ => Ok(()),
        }
    }
}

/// Returns the labs of this machine, each with what it has.
///
/// # Errors
/// As of [`Folder::open`].
pub(crate) fn all() -> Result<BTreeMap<String, State>, String> {
    let Some(_) = labs("x", false)? else { return Ok(BTreeMap::new()) };
    let names = fs::read_dir(LABS).map_err(|e| format!("{LABS}: {e}"))?;
    let mut found = BTreeMap::new();
    for name in names.flatten().filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| is_name(name)) {
        // It may just have been removed.
        if let Some(state) = labs(&name, false)?.and_then(|place| read(&place).ok().flatten()) {
            found.insert(name, state);
        }
    }
    Ok(found)
}

/// The place of the name in the folder of all labs.
fn labs(name: &str, makes: bool) -> Result<Option<Place>, String> {
    if !rustix::process::geteuid().is_root() {
        return Err("network namespaces need root, or a user namespace: unshare --map-root-user --net --mount".into());
    }
    let found = Place::of(Path::new(LABS)).and_then(|place| place.inside(name.as_ref(), makes));
    found.map_err(|e| match e.kind() {
        io::ErrorKind::PermissionDenied => {
            format!("{LABS}: {e}; in a user namespace mount a folder of your own first: mount -t tmpfs none /run")
        }
        _ => format!("{LABS}: {e}"),
    })
}

fn read(lab: &Place) -> io::Result<Option<State>> {
    let Some(place) = lab.inside(STATE.as_ref(), false)? else { return Ok(None) };
    // Path: in a folder that this user alone can use.
    match fs::read(place.anchored()) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        bytes => Ok(Some(serde_json::from_slice(&bytes?)?)),
    }
}

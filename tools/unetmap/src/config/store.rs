// SPDX-License-Identifier: BSD-2-Clause
//! Replacing the file: a reader finds the old one or the new one, whole, and the old one is kept as `FILE~`.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use unetmap_sys::place::{Identity, NewFile, Place};

use super::Setting;
use super::file::{read_text, settings};

/// Longest time in which another program that saves is waited for.
const LOCK_LIMIT: Duration = Duration::from_secs(10);
const LOCK_POLL: Duration = Duration::from_millis(5);
/// Permissions of a new file.
const MODE: u32 = 0o644;

/// The file while it is changed. Others that save wait meanwhile, so that none writes what it read before another
/// wrote.
pub(super) struct Locked {
    /// As the user named it.
    name: PathBuf,
    /// The file itself, where `name` is a link, in a folder that is held open.
    place: Place,
    _lock: Lock,
    /// The file's text; `None` if there is no file.
    before: Option<String>,
}

impl Locked {
    /// Locks and reads the file, which need not exist.
    ///
    /// # Errors
    /// A sentence that begins with the file: its folder does not exist, another program saves for long, or the file is
    /// refused as by [`read_text`].
    pub(super) fn open(name: &Path) -> Result<Locked, String> {
        let failed = |why: String| format!("{}: {why}", name.display());
        let path = std::path::absolute(name).map_err(|e| failed(e.to_string()))?;
        let is_link = fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_symlink());
        let folder = path.parent().unwrap_or(Path::new("/")).display();
        let place = Place::of_target(&path).map_err(|e| match e.kind() {
            _ if is_link => failed(format!("it is a link to a file that cannot be found: {e}; mend or remove it")),
            ErrorKind::NotFound => failed(format!("there is no folder {folder}; make it first: mkdir -p {folder}")),
            _ => failed(format!("it cannot be replaced: {e}")),
        })?;
        if is_link && place.identity().is_none() {
            return Err(failed("it is a link to a file that cannot be found; mend or remove it".into()));
        }
        let lock = Lock::take(&place).map_err(|e| failed(format!("it cannot be replaced: {e}")))?;
        let before = read_text(name)?;
        Ok(Locked { name: name.into(), place, _lock: lock, before })
    }

    /// Returns the file's text.
    pub(super) fn text(&self) -> &str {
        self.before.as_deref().unwrap_or_default()
    }

    /// Returns the file's settings.
    ///
    /// # Errors
    /// A sentence that begins with the file, and the line.
    pub(super) fn settings(&self) -> Result<Vec<Setting>, String> {
        settings(&self.name, self.text())
    }

    /// Replaces the file, if that changes it. Returns where the former one is, if there was one.
    ///
    /// # Errors
    /// A sentence that begins with the file, which is as it was.
    pub(super) fn replace(self, text: &str) -> Result<Option<PathBuf>, String> {
        if self.before.as_deref() == Some(text) {
            return Ok(None);
        }
        let mut former = self.place.name().to_owned();
        former.push("~");
        let replace = || {
            let like = self.before.as_ref().map(|_| fs::symlink_metadata(self.place.anchored())).transpose()?;
            let write = |suffix, text: &str| {
                NewFile::write(&self.place, suffix, text.as_bytes(), like.as_ref(), MODE)?.synced()
            };
            let new = write(".new", text)?;
            if let Some(before) = &self.before {
                write(".old", before)?.rename_to(&former)?;
            }
            new.rename_to(self.place.name())?;
            self.place.sync_folder()
        };
        replace().map_err(|e: io::Error| format!("{}: it cannot be replaced: {e}", self.name.display()))?;
        let path = fs::canonicalize(&self.name).unwrap_or(self.name);
        Ok(self.before.is_some().then(|| path.with_file_name(former)))
    }
}

/// A locked file beside the one that is changed, which itself is replaced, and may not exist yet. Other users cannot
/// open it, and so cannot keep it locked. Removed on drop.
struct Lock {
    place: Place,
    identity: Identity,
    /// Locked as long as it is open.
    _file: File,
}

impl Lock {
    /// Takes the lock of a file, within a limit.
    fn take(of: &Place) -> io::Result<Lock> {
        let place = of.hidden(".lock");
        let end = Instant::now() + LOCK_LIMIT;
        loop {
            let file = place.append(0o600)?;
            let identity = Identity::of(&file)?;
            match file.try_lock() {
                // Not that of another program, which has removed it meanwhile.
                Ok(()) if place.identity() == Some(identity) => return Ok(Lock { place, identity, _file: file }),
                Err(TryLockError::Error(e)) => return Err(e),
                Err(TryLockError::WouldBlock) if Instant::now() >= end => {
                    let why = "another `unetmap config save`, or a command with --save, does not end";
                    return Err(io::Error::new(ErrorKind::TimedOut, why));
                }
                _ => std::thread::sleep(LOCK_POLL),
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = self.place.remove(self.identity);
    }
}

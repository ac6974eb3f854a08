// SPDX-License-Identifier: BSD-2-Clause
//! Replacing the file: a reader finds the old one or the new one, whole, and the old one is kept as `FILE~`.

use std::fs::{self, File, Metadata, OpenOptions, Permissions, TryLockError};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

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
    /// The file itself, where `name` is a link.
    path: PathBuf,
    _lock: Lock,
    /// What it says; `None` if there is no file.
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
        let path = match fs::symlink_metadata(&path) {
            Ok(meta) if meta.is_symlink() => fs::canonicalize(&path)
                .map_err(|e| failed(format!("it is a link to a file that cannot be found: {e}; mend or remove it")))?,
            _ => path,
        };
        let lock =
            Lock::take(&path).map_err(|e| match (e.kind(), path.parent().unwrap_or(Path::new("/")).display()) {
                (ErrorKind::NotFound, folder) => {
                    failed(format!("there is no folder {folder}; make it first: mkdir -p {folder}"))
                }
                _ => failed(format!("it cannot be replaced: {e}")),
            })?;
        let before = read_text(name)?;
        Ok(Locked { name: name.into(), path, _lock: lock, before })
    }

    /// What it says, as text.
    pub(super) fn text(&self) -> &str {
        self.before.as_deref().unwrap_or_default()
    }

    /// What it says.
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
        let mut former = self.path.clone().into_os_string();
        former.push("~");
        let former = PathBuf::from(former);
        let replace = || {
            let like = self.before.as_ref().map(|_| fs::metadata(&self.path)).transpose()?;
            let new = New::write(&self.path, ".new", text, like.as_ref())?;
            if let Some(before) = &self.before {
                New::write(&self.path, ".old", before, like.as_ref())?.rename_to(&former)?;
            }
            new.rename_to(&self.path)?;
            File::open(self.path.parent().unwrap_or(Path::new("/")))?.sync_all()
        };
        replace().map_err(|e: io::Error| format!("{}: it cannot be replaced: {e}", self.name.display()))?;
        Ok(self.before.is_some().then_some(former))
    }
}

/// A locked file beside the one that is changed, which itself is replaced, and may not exist yet. Other users cannot
/// open it, and so cannot keep it locked. Removed on drop.
struct Lock {
    path: PathBuf,
    /// Locked as long as it is open.
    _file: File,
}

impl Lock {
    /// Takes the lock of `path`, within a limit.
    fn take(path: &Path) -> io::Result<Lock> {
        let path = beside(path, ".lock")?;
        let end = Instant::now() + LOCK_LIMIT;
        loop {
            let no_follow = OFlags::NOFOLLOW.bits().cast_signed();
            let file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags(no_follow)
                .open(&path)?;
            match file.try_lock() {
                // Not that of another program, which has removed it meanwhile.
                Ok(())
                    if fs::symlink_metadata(&path)
                        .is_ok_and(|now| file.metadata().is_ok_and(|it| is_same(&now, &it))) =>
                {
                    return Ok(Lock { path, _file: file });
                }
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
        let _ = fs::remove_file(&self.path);
    }
}

fn is_same(a: &Metadata, b: &Metadata) -> bool {
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

/// The path of a hidden file in the same folder.
fn beside(path: &Path, suffix: &str) -> io::Result<PathBuf> {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().ok_or(ErrorKind::InvalidFilename)?);
    name.push(suffix);
    Ok(path.with_file_name(name))
}

/// A file that is to get another name; removed if it did not.
struct New {
    path: PathBuf,
    renamed: bool,
}

impl New {
    /// Writes a hidden file beside `path`, with the owner and the permissions of `like`.
    fn write(path: &Path, suffix: &str, text: &str, like: Option<&Metadata>) -> io::Result<New> {
        let path = beside(path, suffix)?;
        // One that was left by a program that was killed: no other writes now.
        let _ = fs::remove_file(&path);
        // A new file: what another user links to this name is not written.
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let new = New { path, renamed: false };
        file.write_all(text.as_bytes())?;
        let made = file.metadata()?;
        if let Some(like) = like.filter(|like| (like.uid(), like.gid()) != (made.uid(), made.gid())) {
            let to = |e: io::Error| {
                let (user, group) = (like.uid(), like.gid());
                io::Error::new(e.kind(), format!("the new file cannot be given to user {user} and group {group}: {e}"))
            };
            fchown(&file, Some(like.uid()), Some(like.gid())).map_err(to)?;
        }
        file.set_permissions(Permissions::from_mode(like.map_or(MODE, |like| like.mode() & 0o7777)))?;
        file.sync_all()?;
        Ok(new)
    }

    fn rename_to(mut self, path: &Path) -> io::Result<()> {
        fs::rename(&self.path, path)?;
        self.renamed = true;
        Ok(())
    }
}

impl Drop for New {
    fn drop(&mut self) {
        if !self.renamed {
            let _ = fs::remove_file(&self.path);
        }
    }
}

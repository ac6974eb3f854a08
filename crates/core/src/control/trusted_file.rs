// SPDX-License-Identifier: BSD-2-Clause
//! Files that decide what a daemon does: the policy, the configuration, and the file of switches. They are read only if
//! no other user could have written them.

use std::fs::{self, File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use unetmap_sys::process;

/// Bytes of the longest file that is read.
const MAX_BYTES: u64 = 1 << 20;

/// Returns the bytes of a file, a `what`, that only root or the user `us` can write; `None` if there is no file. `path`
/// is absolute.
///
/// # Errors
/// A sentence without the path: another user could have created, changed or replaced the file; it is not an ordinary
/// file, longer than 1 MiB, or cannot be read.
pub fn read(path: &Path, us: u32, what: &str) -> Result<Option<Vec<u8>>, String> {
    let reported = |cannot: &str, e: io::Error| {
        format!("the {what}{cannot}: {e}; make it a file that the daemon can read, or remove it")
    };
    let not_ordinary = || format!("the {what} is not an ordinary file; replace it by one, or remove it");
    let link = match fs::symlink_metadata(path) {
        Ok(link) => link,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(reported(" cannot be found", e)),
    };
    let target = fs::canonicalize(path).map_err(|e| reported(" cannot be found", e))?;
    // Opening another kind of file may wait, or do something.
    if !fs::metadata(&target).map_err(|e| reported(" cannot be found", e))?.is_file() {
        return Err(not_ordinary());
    }
    // It may have been replaced since.
    let opened = File::options().read(true).custom_flags(process::O_NONBLOCK).open(&target);
    let file = opened.map_err(|e| reported(" cannot be opened", e))?;
    let found = file.metadata().map_err(|e| reported(" cannot be looked at", e))?;
    if !found.is_file() {
        return Err(not_ordinary());
    }
    for path in [path, &target] {
        let folder = fs::metadata(path.parent().unwrap_or(Path::new("/")));
        check(&folder.map_err(|e| reported("'s folder cannot be looked at", e))?, &link, &found, us, what)?;
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|e| reported(" cannot be read", e))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(format!("the {what} is longer than 1 MiB; shorten it"));
    }
    Ok(Some(bytes))
}

/// Refuses a file that another user than root or `us` could have created, changed or replaced: the file itself, the
/// link to it if it is one, and a folder that either is in.
fn check(folder: &Metadata, link: &Metadata, file: &Metadata, us: u32, what: &str) -> Result<(), String> {
    let parts = [
        (what.to_owned(), file.uid()),
        (format!("link to the {what}"), link.uid()),
        (format!("{what}'s folder"), folder.uid()),
    ];
    for (part, uid) in parts {
        if uid != 0 && uid != us {
            return Err(format!("the {part} belongs to user {uid}, who must not decide this; chown it to root"));
        }
    }
    if file.mode() & 0o022 != 0 {
        return Err(format!("the {what} can be written by others than its owner; chmod go-w it"));
    }
    // In a directory with the sticky bit, such as /tmp, users cannot replace files of others.
    if folder.mode() & 0o022 != 0 && folder.mode() & 0o1000 == 0 {
        return Err(format!("the {what}'s folder can be written by others than its owner; chmod go-w it"));
    }
    Ok(())
}

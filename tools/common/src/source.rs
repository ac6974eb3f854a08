// SPDX-License-Identifier: BSD-2-Clause
//! Files that a command reads: rules, lists, keys, captures. Their paths may lead through folders of other users, who
//! can replace each name there, and go on writing.
//!
//! No link of another user is followed, nothing of another user's is waited for ([`crate::host::place`]), and no more
//! is read than a bound, or than the file had when it was opened.

use std::fs::File;
use std::io::{self, Read, Take};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::process::geteuid;

use crate::host::place;
use crate::without_codes;

/// Most bytes of a file of rules, addresses, streams, samples or certificates.
pub const MAX_RULES: u64 = 64 << 20;
/// Most bytes of a file with a key.
const MAX_SECRET: u64 = 1 << 20;

/// Opens a file that is read piece by piece, such as a capture. A regular one ends where it ended when it was opened.
///
/// # Errors
/// As of [`place::open`].
pub fn open(path: &Path) -> io::Result<Take<File>> {
    let file = place::open(path)?;
    let meta = file.metadata()?;
    let most = if meta.is_file() { meta.len() } else { u64::MAX };
    Ok(file.take(most))
}

/// Reads a file of `most` bytes at most.
///
/// # Errors
/// A sentence without the path.
pub fn read(path: &Path, most: u64) -> Result<Vec<u8>, String> {
    read_all(place::open(path).map_err(|e| sentence(&e))?, most)
}

/// Reads a text of `most` bytes at most.
///
/// # Errors
/// A sentence without the path.
pub fn read_text(path: &Path, most: u64) -> Result<String, String> {
    text(read(path, most)?)
}

/// Returns the text of these bytes.
///
/// # Errors
/// A sentence.
pub fn text(bytes: Vec<u8>) -> Result<String, String> {
    String::from_utf8(bytes).map_err(|_| "it is not text in UTF-8".into())
}

/// Reads what is left of `from`, if these are `most` bytes at most.
///
/// # Errors
/// A sentence.
pub fn read_all(from: impl Read, most: u64) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    from.take(most.saturating_add(1)).read_to_end(&mut bytes).map_err(|e| sentence(&e))?;
    if bytes.len() as u64 > most {
        return Err(format!("it is longer than {most} bytes, which are read at most"));
    }
    Ok(bytes)
}

/// Reads a file with a key, which no user but its owner, this one or root, can read or write. The group of root's file
/// can read it.
///
/// # Errors
/// A sentence without the path.
pub fn read_secret(path: &Path) -> Result<Vec<u8>, String> {
    let file = place::open(path).map_err(|e| sentence(&e))?;
    let meta = file.metadata().map_err(|e| sentence(&e))?;
    let owner = meta.uid();
    if owner != 0 && owner != geteuid().as_raw() {
        return Err(format!("the key belongs to user {owner}, who knows it and can change it: chown it"));
    }
    let others = meta.mode() & if owner == 0 { 0o037 } else { 0o077 };
    if others & 0o022 != 0 {
        return Err("other users can change the key: make another one, and chmod 600 its file".into());
    }
    if others != 0 {
        return Err("other users can read the key: chmod 600 it, and make another one if they may have read it".into());
    }
    read_all(file, MAX_SECRET)
}

fn sentence(e: &io::Error) -> String {
    without_codes(&e.to_string()).into_owned()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_file_is_read_up_to_a_bound_and_a_key_only_if_it_is_secret() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "text").unwrap();
        assert_eq!((read(&path, 4).unwrap(), read_text(&path, 9).unwrap()), (b"text".to_vec(), "text".into()));
        assert!(read(&path, 3).unwrap_err().contains("longer than 3 bytes"));
        assert_eq!(read(Path::new("/nowhere"), 9).unwrap_err(), "No such file or directory");
        assert!(read(Path::new("/dev/zero"), 9).unwrap_err().contains("longer than 9 bytes"));
        let mut opened = open(&path).unwrap();
        fs::write(&path, "text that grows").unwrap();
        let mut text = String::new();
        opened.read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
        let is_root = geteuid().is_root();
        for (mode, why) in [
            (0o600, None),
            (0o640, (!is_root).then_some("read the key")),
            (0o660, Some("change the key")),
            (0o602, Some("change the key")),
            (0o604, Some("read the key")),
        ] {
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let found = read_secret(&path).map(drop);
            assert!(
                found.as_ref().err().map(|found| why.is_some_and(|why| found.contains(why))) == why.map(|_| true),
                "{mode:o}: {found:?}"
            );
        }
        if is_root {
            std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
            assert!(read_secret(&path).unwrap_err().contains("belongs to user 65534"));
        }
    }
}

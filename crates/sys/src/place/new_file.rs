// SPDX-License-Identifier: BSD-2-Clause
//! Replacing a file as a whole: a reader finds the old one or the new one.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, fchown};

use super::{Identity, Place};

impl Place {
    /// The place of a hidden file in the same folder: its name is this one between a dot and `suffix`.
    pub fn hidden(&self, suffix: &str) -> Place {
        let mut name = OsString::from(".");
        name.push(&self.name);
        name.push(suffix);
        self.beside(&name)
    }

    /// Has the kernel write the folder's names to the disk.
    ///
    /// # Errors
    /// The kernel's.
    pub fn sync_folder(&self) -> io::Result<()> {
        File::open(self.anchored().parent().unwrap_or_else(|| "/".as_ref()))?.sync_all()
    }
}

/// A hidden file that is to get another name; removed if it did not.
#[derive(Debug)]
pub struct NewFile {
    place: Place,
    file: File,
    identity: Identity,
}

impl NewFile {
    /// Writes a file beside another one, with the owner and the permissions of `like`, else `mode`. One of that name
    /// was left by a program that was killed, and is removed: so only one program may do so at a time.
    ///
    /// # Errors
    /// The kernel's; in a sentence if the owner cannot be changed.
    pub fn write(
        beside: &Place,
        suffix: &str,
        bytes: &[u8],
        like: Option<&Metadata>,
        mode: u32,
    ) -> io::Result<NewFile> {
        let place = beside.hidden(suffix);
        if let Some(left) = place.identity() {
            let _ = place.remove(left);
        }
        let file = place.create_new(0o600)?;
        let new = NewFile { identity: Identity::of(&file)?, file, place };
        let mut file = &new.file;
        file.write_all(bytes)?;
        let made = file.metadata()?;
        if let Some(like) = like.filter(|like| (like.uid(), like.gid()) != (made.uid(), made.gid())) {
            let to = |e: io::Error| {
                let (user, group) = (like.uid(), like.gid());
                io::Error::new(e.kind(), format!("the new file cannot be given to user {user} and group {group}: {e}"))
            };
            fchown(file, Some(like.uid()), Some(like.gid())).map_err(to)?;
        }
        file.set_permissions(Permissions::from_mode(like.map_or(mode, |like| like.mode() & 0o777)))?;
        Ok(new)
    }

    /// Waits until it is on the disk, so that no power cut leaves an empty one under the other's name.
    ///
    /// # Errors
    /// The kernel's.
    pub fn synced(self) -> io::Result<NewFile> {
        self.file.sync_all()?;
        Ok(self)
    }

    /// Gives the file the name of another one in its folder, which it replaces.
    ///
    /// # Errors
    /// The kernel's.
    pub fn rename_to(self, name: &OsStr) -> io::Result<()> {
        self.place.rename(name)
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        let _ = self.place.remove(self.identity);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let place = Place::of(&path).unwrap();
        fs::write(folder.path().join(".file.new"), "left by a killed program").unwrap();
        let names = || {
            let mut names: Vec<_> =
                fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        let write = |text: &str, like: Option<&Metadata>| NewFile::write(&place, ".new", text.as_bytes(), like, 0o640);
        write("first", None).unwrap().rename_to(place.name()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
        drop(write("never", None).unwrap());
        assert_eq!((fs::read_to_string(&path).unwrap().as_str(), names()), ("first", vec!["file".into()]));
        let like = fs::metadata("/etc/passwd").unwrap();
        if crate::process::uid() == 0 {
            write("second", Some(&like)).unwrap().rename_to(place.name()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), "second");
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, like.mode() & 0o777);
        }
        place.sync_folder().unwrap();
    }
}

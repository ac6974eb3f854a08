// SPDX-License-Identifier: BSD-2-Clause
//! Reading folders without the C library.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Dir, Mode, OFlags, open};

/// Returns the paths in a folder, in any order; none if it cannot be read. `std::fs::read_dir` allocates by the C
/// library, whose allocator may be that of a program into which this library was loaded.
pub fn paths(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let opened = open(folder, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let entries = opened.and_then(Dir::read_from).into_iter().flatten().flatten();
    let names = entries.map(|entry| OsStr::from_bytes(entry.file_name().to_bytes()).to_owned());
    names.filter(|name| name != "." && name != "..").map(move |name| folder.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_paths_of_a_folder_are_found() {
        let mut found: Vec<_> = paths(Path::new("/proc/self")).collect();
        let mut wanted: Vec<_> = std::fs::read_dir("/proc/self").unwrap().map(|entry| entry.unwrap().path()).collect();
        found.sort();
        wanted.sort();
        assert_eq!(found, wanted);
        assert_eq!(paths(Path::new("/nowhere")).count(), 0);
    }
}

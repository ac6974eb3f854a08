// SPDX-License-Identifier: BSD-2-Clause
//! Detects programs into which the loader does not preload a library. The loader ignores LD_PRELOAD silently, and the
//! program then reports only that it has no netmap.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::getxattr;
use rustix::process::{getegid, geteuid};

/// Bytes of a 64-bit ELF header, and the offsets of its fields: class, and the program header table's offset, entry
/// size and entry count.
const HEADER: usize = 64;
const CLASS: usize = 4;
const CLASS_64: u8 = 2;
const TABLE_AT: usize = 32;
const ENTRY_BYTES: usize = 54;
const ENTRIES: usize = 56;
/// Type of the program header that names the loader. A statically linked program has none.
const PT_INTERP: u32 = 3;
/// Mode bits of setuid and setgid programs.
const SETUID: u32 = 0o4000;
const SETGID_AND_RUN: u32 = 0o2010;

/// Returns why the loader will not preload the library into the program; `None` if it will, or if that is unknown.
pub(super) fn obstacle(program: &OsStr) -> Option<&'static str> {
    let path = find(program)?;
    gains_privileges(&path).or_else(|| is_incompatible(&path))
}

/// Returns the file that the system executes under this name.
fn find(program: &OsStr) -> Option<PathBuf> {
    let runs = |path: &PathBuf| fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
    if Path::new(program).components().count() > 1 || program.as_encoded_bytes().contains(&b'/') {
        return Some(program.into()).filter(runs);
    }
    env::split_paths(&env::var_os("PATH")?).map(|folder| folder.join(program)).find(runs)
}

fn gains_privileges(path: &Path) -> Option<&'static str> {
    let file = fs::metadata(path).ok()?;
    let user = file.mode() & SETUID != 0 && file.uid() != geteuid().as_raw();
    let group = file.mode() & SETGID_AND_RUN == SETGID_AND_RUN && file.gid() != getegid().as_raw();
    let gains = !geteuid().is_root() && getxattr(path, "security.capability", &mut [0u8; 64][..]).is_ok();
    (user || group || gains)
        .then_some("its file gives it privileges (setuid), and the loader preloads no library into such programs")
}

fn is_incompatible(path: &Path) -> Option<&'static str> {
    // Path: that of the program which is executed next.
    let mut file = File::open(path).ok()?;
    let mut header = [0; HEADER];
    file.read_exact(&mut header).ok()?;
    if !header.starts_with(b"\x7fELF") {
        // A script: the loader preloads into its interpreter.
        return None;
    }
    if header[CLASS] != CLASS_64 {
        return Some("it is a 32-bit program, and the library has 64 bits");
    }
    let half = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
    let table = u64::from_ne_bytes(header[TABLE_AT..][..8].try_into().ok()?);
    for i in 0..half(ENTRIES) {
        let mut kind = [0; 4];
        file.seek(SeekFrom::Start(table.checked_add(u64::from(i) * u64::from(half(ENTRY_BYTES)))?)).ok()?;
        file.read_exact(&mut kind).ok()?;
        if u32::from_ne_bytes(kind) == PT_INTERP {
            return None;
        }
    }
    Some("it is statically linked, so no loader preloads the library")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dynamically_linked_and_missing_programs_have_no_obstacle() {
        assert_eq!(obstacle(env::current_exe().unwrap().as_os_str()), None);
        assert_eq!(obstacle("sh".as_ref()), None);
        assert_eq!(obstacle("/there/is/none".as_ref()), None);
        assert_eq!(obstacle("there-is-none".as_ref()), None);
    }

    #[test]
    fn malformed_files_do_not_panic() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        let obstacle_of = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            obstacle(path.as_os_str())
        };
        assert_eq!(obstacle_of(b""), None);
        assert_eq!(obstacle_of(b"#!/bin/sh\n"), None);
        assert_eq!(obstacle_of(b"\x7fELF"), None);
        let mut elf = [0; HEADER];
        elf[..5].copy_from_slice(b"\x7fELF\x01");
        assert!(obstacle_of(&elf).unwrap().contains("32-bit"));
        elf[CLASS] = CLASS_64;
        assert!(obstacle_of(&elf).unwrap().contains("statically"));
        // A program header table beyond the end of the file.
        elf[ENTRIES] = 255;
        elf[ENTRY_BYTES] = 56;
        elf[TABLE_AT..TABLE_AT + 8].fill(255);
        assert_eq!(obstacle_of(&elf), None);
    }
}

// SPDX-License-Identifier: BSD-2-Clause
//! Proofs of zero copy on this machine, which `unetmap doctor --prove` makes and the daemon believes: a line for each
//! driver, with its version, the kernel's release, the device's firmware and the day, between tabs.
//!
//! Root's file, as the policy is: another user's file, or one that others can write, is no proof.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use unetmap_sys::link::DriverInfo;
use unetmap_sys::place::{NewFile, Place};
use unetmap_sys::process;

use crate::control::trusted_file;

/// The file, unless `UNETMAP_PROOFS` names another.
const PATH: &str = "/var/lib/unetmap/zero-copy";
/// The file, in sentences.
const WHAT: &str = "file of proofs";
const ROOT: u32 = 0;
/// The mode of the file: everybody reads it, as `unetmap doctor` does.
const MODE: u32 = 0o644;

/// The file's path.
pub fn path() -> PathBuf {
    process::variable("UNETMAP_PROOFS").map_or_else(|| PATH.into(), PathBuf::from)
}

/// Whether zero copy was proved with this driver, and its version, this firmware, and a kernel of this release.
///
/// # Errors
/// A sentence: another user could have written the file, or it cannot be read.
pub fn has(path: &Path, driver: &DriverInfo, release: &str) -> Result<bool, String> {
    Ok(read(path)?.lines().any(|line| is_for(line, driver, release)))
}

/// Adds proofs of this day.
///
/// # Errors
/// A sentence that begins with the path.
pub fn add(path: &Path, drivers: &[&DriverInfo], release: &str, day: &str) -> Result<(), String> {
    let mut text = read(path)?;
    for driver in drivers {
        let same: String = text
            .lines()
            .filter(|line| !is_for(line, driver, release))
            .fold(String::new(), |all, line| all + line + "\n");
        text = same + &key(driver, release) + day + "\n";
    }
    write(path, &text).map_err(|e| format!("{}: {e}", path.display()))
}

/// The beginning of a line.
fn key(driver: &DriverInfo, release: &str) -> String {
    let parts = [&driver.name, &driver.version, release, &driver.firmware];
    let plain = |part: &str| part.chars().map(|c| if c.is_control() { '?' } else { c }).collect::<String>();
    parts.map(|part| plain(part) + "\t").concat()
}

fn is_for(line: &str, driver: &DriverInfo, release: &str) -> bool {
    line.strip_prefix(&*key(driver, release)).is_some_and(|day| !day.is_empty() && !day.contains('\t'))
}

fn read(path: &Path) -> Result<String, String> {
    let failed = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    let bytes = trusted_file::read(path, ROOT, WHAT).map_err(|why| failed(&why))?;
    String::from_utf8(bytes.unwrap_or_default()).map_err(|_| failed(&format!("the {WHAT} is not text; remove it")))
}

/// Replaces the file as a whole.
fn write(path: &Path, text: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
    }
    let place = Place::of(path)?;
    NewFile::write(&place, ".new", text.as_bytes(), None, MODE)?.synced()?.rename_to(place.name())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    use super::*;

    fn driver(name: &str, firmware: &str) -> DriverInfo {
        let (version, bus) = ("6.18".into(), String::new());
        DriverInfo { name: name.into(), version, firmware: firmware.into(), bus, built_in: false }
    }

    #[test]
    fn a_proof_is_for_driver_version_kernel_and_firmware() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("made/zero-copy");
        let (ice, igb) = (driver("ice", "3.20 0x8000\t1"), driver("igb", ""));
        assert_eq!(has(&path, &ice, "6.18"), Ok(false));
        add(&path, &[&ice, &igb], "6.18", "2026-11-28").unwrap();
        add(&path, &[&ice], "6.18", "2026-11-29").unwrap();
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            "igb\t6.18\t6.18\t\t2026-11-28\nice\t6.18\t6.18\t3.20 0x8000?1\t2026-11-29\n"
        );
        for (driver, release, expected) in [
            (&ice, "6.18", true),
            (&igb, "6.18", true),
            (&ice, "6.19", false),
            (&driver("ice", "3.21"), "6.18", false),
            (&DriverInfo { version: "2.2.8".into(), ..ice.clone() }, "6.18", false),
            (&driver("", ""), "6.18", false),
        ] {
            assert_eq!(has(&path, driver, release), Ok(expected), "{driver:?} {release}");
        }
    }

    #[test]
    fn what_another_user_could_have_written_is_no_proof() {
        if process::uid() != 0 {
            return eprintln!("skipped: needs root, to make files of another user");
        }
        let folder = tempfile::tempdir().unwrap();
        let (path, igb) = (folder.path().join("zero-copy"), driver("igb", ""));
        add(&path, &[&igb], "6.18", "2026-11-28").unwrap();
        let mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        mode(0o666);
        assert!(has(&path, &igb, "6.18").unwrap_err().contains("can be written by others than its owner"));
        mode(0o644);
        chown(&path, Some(65_534), None).unwrap();
        assert!(has(&path, &igb, "6.18").unwrap_err().contains("belongs to user 65534"));
        assert!(add(&path, &[&igb], "6.18", "2026-11-28").is_err());
        let link = folder.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(has(&link, &igb, "6.18").is_err());
        chown(&path, Some(0), None).unwrap();
        assert_eq!(has(&path, &igb, "6.18"), Ok(true));
    }
}

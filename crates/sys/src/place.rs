// SPDX-License-Identifier: BSD-2-Clause
//! Files at paths that lead through folders of other users.
//!
//! The owner of a folder can replace each name in it at any moment, also between two system calls: by a symbolic link,
//! another name of a file of root's, a FIFO, or a device. So a path is looked up once, and no link of another user is
//! followed; what it led to is a [`Place`]: the folder, which is held open, and a name in it. Files are opened by that
//! name in that folder, and are used only if another user cannot have put them there.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Stat, fchmod, fcntl_setfl, fstat, ftruncate, mkdirat, openat, readlinkat,
    renameat, statat, unlinkat,
};
use rustix::io::{Errno, pwrite};

use crate::process::{may_be_unmapped_owner, uid};

mod new_file;
pub use new_file::NewFile;

/// Most symbolic links in a path, as the kernel has it.
const MAX_LINKS: usize = 40;
/// `PROC_SUPER_MAGIC`: links there may lead to what has no name.
const PROC: u64 = 0x9fa0;

/// A folder, and a name in it, which may be of no file yet.
#[derive(Clone, Debug)]
pub struct Place {
    folder: Arc<OwnedFd>,
    name: OsString,
}

/// The device and inode of a file, which tell whether it is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity(u64, u64);

impl Identity {
    /// Of an open file.
    ///
    /// # Errors
    /// The kernel's.
    pub fn of(file: impl std::os::fd::AsFd) -> io::Result<Identity> {
        Ok(Identity::from(&fstat(file)?))
    }
}

impl From<&Stat> for Identity {
    fn from(stat: &Stat) -> Identity {
        Identity(stat.st_dev, stat.st_ino)
    }
}

/// A file of a name, without rights to its contents.
struct Found {
    file: OwnedFd,
    stat: Stat,
    kind: FileType,
    /// A link of `/proc`, which leads to an open file.
    of_kernel: bool,
}

impl Place {
    /// Finds the folder that a path leads to. Symbolic links to folders are followed if they are root's or this user's;
    /// one of the name itself is not.
    ///
    /// # Errors
    /// A link of another user, in a sentence; `NotFound` for a folder; `EISDIR` for a path that ends in no name; or the
    /// kernel's.
    pub fn of(path: &Path) -> io::Result<Place> {
        Place::find_folder(path, false)
    }

    /// The same, but for what a link of that name leads to, which is root's or this user's.
    ///
    /// # Errors
    /// As of [`Place::of`].
    pub fn of_target(path: &Path) -> io::Result<Place> {
        Place::find_folder(path, true)
    }

    fn find_folder(path: &Path, follows: bool) -> io::Result<Place> {
        let path = std::path::absolute(path)?;
        let (mut folder, mut left, mut links) = (open_root()?, names_of(&path), 0);
        loop {
            let Some(name) = left.pop() else { return Err(Errno::ISDIR.into()) };
            let found = match openat(&folder, &name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
                Err(Errno::NOENT) if left.is_empty() && name != ".." => {
                    return Ok(Place { folder: Arc::new(folder), name });
                }
                found => found?,
            };
            let stat = fstat(&found)?;
            let is_link = FileType::from_raw_mode(stat.st_mode).is_symlink();
            if !is_link || left.is_empty() && !follows {
                if left.is_empty() && name != ".." {
                    return Ok(Place { folder: Arc::new(folder), name });
                }
                folder = found;
                continue;
            }
            // What a link of /proc leads to, such as an open file, may have no path.
            if left.is_empty() && is_proc(&found)? {
                return Ok(Place { folder: Arc::new(folder), name });
            }
            if !is_trusted(stat.st_uid) {
                let why = format!(
                    "`{}` is a symbolic link of user {}, which may lead anywhere: remove it, or choose another folder",
                    name.display(),
                    stat.st_uid
                );
                return Err(io::Error::other(why));
            }
            links += 1;
            if links > MAX_LINKS {
                return Err(Errno::LOOP.into());
            }
            let target = PathBuf::from(OsString::from_vec(readlinkat(&found, "", Vec::new())?.into_bytes()));
            if target.is_absolute() {
                folder = open_root()?;
            }
            left.extend(names_of(&target));
        }
    }

    /// A path to the place that leads through the open folder, and so to nothing else. For this process only.
    pub fn anchored(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.folder.as_raw_fd())).join(&self.name)
    }

    /// The name in the folder.
    pub fn name(&self) -> &OsStr {
        &self.name
    }

    /// The place of another name in the same folder.
    pub fn beside(&self, name: &OsStr) -> Place {
        Place { folder: Arc::clone(&self.folder), name: name.to_owned() }
    }

    /// The place of `name` in the folder that has this name: one of this user's, which no other user can use, made if
    /// there is none and `makes`. `None`: there is none.
    ///
    /// # Errors
    /// A sentence for any other folder; or the kernel's.
    pub fn inside(&self, name: &OsStr, makes: bool) -> io::Result<Option<Place>> {
        self.inside_of_mode(name, makes, Mode::RWXU)
    }

    /// Returns a place in a folder whose files other users can use, and which only this one can change.
    ///
    /// # Errors
    /// As of [`Place::inside`].
    pub fn inside_readable(&self, name: &OsStr, makes: bool) -> io::Result<Option<Place>> {
        self.inside_of_mode(name, makes, Mode::from_raw_mode(0o755))
    }

    fn inside_of_mode(&self, name: &OsStr, makes: bool, mode: Mode) -> io::Result<Option<Place>> {
        let made = makes.then(|| mkdirat(&self.folder, &self.name, mode));
        if let Some(Err(e)) = made.filter(|made| *made != Err(Errno::EXIST)) {
            return Err(e.into());
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = match openat(&self.folder, &self.name, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            folder => folder?,
        };
        if made == Some(Ok(())) {
            // The umask may have taken some of it.
            fchmod(&folder, mode)?;
        }
        let stat = fstat(&folder)?;
        if stat.st_uid != uid() || stat.st_mode & 0o777 & !mode.bits() != 0 {
            let (name, user) = (self.name.display(), stat.st_uid);
            return Err(io::Error::other(format!("`{name}` is of user {user}, or others may use it: remove it")));
        }
        Ok(Some(Place { folder: Arc::new(folder), name: name.to_owned() }))
    }

    /// Returns the state of the file that has this name now; a link is not followed.
    ///
    /// # Errors
    /// `ENOENT`, or the kernel's.
    pub fn stat(&self) -> io::Result<Stat> {
        Ok(statat(&self.folder, &self.name, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Which file has this name now; `None`: none.
    pub fn identity(&self) -> Option<Identity> {
        self.stat().ok().as_ref().map(Identity::from)
    }

    /// Opens the file without rights to its contents; a link is not followed.
    ///
    /// # Errors
    /// The kernel's.
    pub fn find(&self) -> io::Result<OwnedFd> {
        Ok(openat(&self.folder, &self.name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// Opens a file to read it and to add to it, which is created with permissions `mode`, less the umask, if there is
    /// none. It is a regular file of this user's with no other name. Never waits.
    ///
    /// # Errors
    /// A sentence for any other file; or the kernel's.
    pub fn append(&self, mode: u32) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let mode = Mode::from_raw_mode(mode);
        let opened = openat(&self.folder, &self.name, flags | OFlags::NOCTTY | OFlags::CLOEXEC, mode);
        let file = opened.map_err(|e| match e {
            Errno::LOOP => io::Error::other("it is a symbolic link: remove it, or choose another folder"),
            e => e.into(),
        })?;
        let stat = fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode).is_file() && stat.st_uid == uid() && stat.st_nlink <= 1 {
            return Ok(file.into());
        }
        let user = stat.st_uid;
        Err(io::Error::other(match user == uid() {
            true => "it is no regular file, or has other names: remove it, or choose another folder".into(),
            false => format!("it belongs to user {user}: remove it, or choose another folder"),
        }))
    }

    /// Creates a file to write it.
    ///
    /// # Errors
    /// `EEXIST` if there is a file of this name, or a link; or the kernel's.
    pub fn create_new(&self, mode: u32) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&self.folder, &self.name, flags, Mode::from_raw_mode(mode))?.into())
    }

    /// Opens a file to write it anew: an empty one, which is created if there is none; or what is no regular file, such
    /// as a FIFO, if it is root's or this user's, or a device.
    ///
    /// # Errors
    /// A sentence for a file of another user's, or one that has other names; or the kernel's.
    pub fn create(&self, mode: u32) -> io::Result<File> {
        match self.create_new(mode) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            created => return created,
        }
        let Found { file, stat, kind, of_kernel } = self.look()?;
        // Only root makes devices, whose owners may be others.
        if !of_kernel && !kind.is_char_device() && !is_trusted(stat.st_uid) {
            return Err(io::Error::other(format!("it belongs to user {}: remove it first", stat.st_uid)));
        }
        if kind.is_file() && stat.st_nlink > 1 {
            return Err(io::Error::other("the file has other names, too: remove it first"));
        }
        self.open_found(&file, of_kernel, OFlags::WRONLY | OFlags::TRUNC)
    }

    /// Opens the file to read it: a regular file, a device, or, such as a FIFO, what is root's or this user's. The file
    /// of another user is not waited for, unless a program of that user is its file system and may be asked by others
    /// (FUSE's `allow_other`).
    ///
    /// # Errors
    /// A sentence for what another user could keep this program waiting with, or for a link; or the kernel's.
    pub fn open(&self) -> io::Result<File> {
        let Found { file, stat, kind, of_kernel } = self.look()?;
        if !of_kernel && !kind.is_file() && !kind.is_char_device() && !is_trusted(stat.st_uid) {
            return Err(io::Error::other(format!("it is no regular file, and belongs to user {}", stat.st_uid)));
        }
        // The holder of a lease would have the kernel wait for it.
        let flags = if kind.is_file() { OFlags::NONBLOCK } else { OFlags::empty() };
        self.open_found(&file, of_kernel, OFlags::RDONLY | flags).map_err(|e| match e.kind() {
            io::ErrorKind::WouldBlock => io::Error::other("another program holds a lease of it: copy it"),
            _ => e,
        })
    }

    /// Finds the file that [`Place::of_target`] led to.
    fn look(&self) -> io::Result<Found> {
        let file = self.find()?;
        let stat = fstat(&file)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        // Links that `of` has not followed: of /proc, which the kernel made; or one that was put there meanwhile.
        let of_kernel = kind.is_symlink() && is_proc(&file)?;
        if kind.is_symlink() && !of_kernel {
            return Err(io::Error::other("it is a symbolic link: remove it, or choose another folder"));
        }
        Ok(Found { file, stat, kind, of_kernel })
    }

    /// Opens the very file that was looked at.
    fn open_found(&self, file: &OwnedFd, of_kernel: bool, flags: OFlags) -> io::Result<File> {
        let target = match of_kernel {
            true => self.anchored(),
            false => PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd())),
        };
        Ok(rustix::fs::open(target, flags | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?.into())
    }

    /// Gives the file these contents in place, with permissions `mode`; a program that has it open reads them next. It
    /// is made if there is none.
    ///
    /// # Errors
    /// As of [`Place::append`].
    pub fn overwrite(&self, bytes: &[u8], mode: u32) -> io::Result<()> {
        let file = self.append(mode)?;
        fcntl_setfl(&file, OFlags::empty())?;
        pwrite(&file, bytes, 0)?;
        ftruncate(&file, bytes.len() as u64)?;
        Ok(fchmod(&file, Mode::from_raw_mode(mode))?)
    }

    /// Gives the file another name in its folder, in place of the file that has that name.
    ///
    /// # Errors
    /// The kernel's.
    pub fn rename(&self, name: &OsStr) -> io::Result<()> {
        Ok(renameat(&self.folder, &self.name, &self.folder, name)?)
    }

    /// Gives the file the ending `.1`, in place of the one that has that name.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_aside(&self) -> io::Result<()> {
        let mut name = self.name.clone();
        name.push(".1");
        self.rename(&name)
    }

    /// Removes the name, if it is still of this file.
    ///
    /// # Errors
    /// The kernel's.
    pub fn remove(&self, identity: Identity) -> io::Result<()> {
        if self.identity() != Some(identity) {
            return Ok(());
        }
        Ok(unlinkat(&self.folder, &self.name, AtFlags::empty())?)
    }

    /// Removes the folder of this name, which is empty.
    ///
    /// # Errors
    /// The kernel's.
    pub fn remove_folder(&self) -> io::Result<()> {
        Ok(unlinkat(&self.folder, &self.name, AtFlags::REMOVEDIR)?)
    }
}

/// Creates a file, or empties the one at `path`, as a command has it: see [`Place::create`].
///
/// # Errors
/// As [`Place::of`] and [`Place::create`].
pub fn create(path: &Path) -> io::Result<File> {
    Place::of_target(path)?.create(0o666)
}

/// Opens the file at `path` to read it: see [`Place::open`].
///
/// # Errors
/// As [`Place::of`] and [`Place::open`].
pub fn open(path: &Path) -> io::Result<File> {
    Place::of_target(path)?.open()
}

/// Opens the file at `path`, which only this user may use, to add to it: see [`Place::append`].
///
/// # Errors
/// As [`Place::of`] and [`Place::append`].
pub fn append(path: &Path) -> io::Result<File> {
    Place::of(path)?.append(0o600)
}

/// Whether a file of this owner is this user's own, or root's.
fn is_trusted(owner: u32) -> bool {
    owner == 0 || owner == uid() || may_be_unmapped_owner(owner)
}

fn is_proc(file: &OwnedFd) -> io::Result<bool> {
    Ok(rustix::fs::fstatfs(file)?.f_type as u64 == PROC)
}

fn open_root() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// The names in a path, the last one first.
fn names_of(path: &Path) -> Vec<OsString> {
    let mut names: Vec<OsString> = path
        .components()
        .filter(|component| matches!(component, Component::Normal(_) | Component::ParentDir))
        .map(|component| component.as_os_str().to_owned())
        .collect();
    names.reverse();
    names
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::fs::{MetadataExt as _, symlink};

    use super::*;

    fn why(result: io::Result<File>) -> String {
        result.map(drop).unwrap_err().to_string()
    }

    #[test]
    fn links_of_this_user_are_followed_and_folders_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().join("real");
        std::fs::create_dir(&real).unwrap();
        symlink("real", dir.path().join("link")).unwrap();
        symlink("../link/log", real.join("to-log")).unwrap();
        let linked = Place::of(&dir.path().join("link/to-log")).unwrap();
        assert!(why(linked.append(0o600)).contains("symbolic link"));
        let place = Place::of_target(&dir.path().join("link/to-log")).unwrap();
        place.append(0o600).unwrap().write_all(b"one").unwrap();
        assert_eq!(std::fs::read(real.join("log")).unwrap(), b"one");
        assert_eq!(std::fs::read(place.anchored()).unwrap(), b"one");
        // The folder is replaced: the place stays in the one that was found.
        std::fs::rename(&real, dir.path().join("moved")).unwrap();
        std::fs::create_dir(&real).unwrap();
        place.append(0o600).unwrap().write_all(b"two").unwrap();
        assert_eq!(std::fs::read(dir.path().join("moved/log")).unwrap(), b"onetwo");
        assert_eq!(std::fs::read_dir(&real).unwrap().count(), 0);
        assert_eq!(Place::of(Path::new("/")).unwrap_err().kind(), io::ErrorKind::IsADirectory);
        assert_eq!(Place::of(&dir.path().join("none/log")).unwrap_err().kind(), io::ErrorKind::NotFound);
        symlink("loop", dir.path().join("loop")).unwrap();
        assert!(Place::of_target(&dir.path().join("loop")).is_err());
    }

    #[test]
    fn a_log_is_a_file_of_this_user_with_one_name_and_never_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| Place { name: name.into(), ..Place::of(&dir.path().join(name)).unwrap() };
        std::fs::write(dir.path().join("two"), "kept").unwrap();
        std::fs::hard_link(dir.path().join("two"), dir.path().join("names")).unwrap();
        assert!(why(at("two").append(0o600)).contains("has other names"));
        assert!(why(at("two").create(0o600)).contains("has other names"));
        assert_eq!(std::fs::read(dir.path().join("two")).unwrap(), b"kept");
        rustix::fs::mknodat(rustix::fs::CWD, dir.path().join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0)
            .unwrap();
        assert!(why(at("fifo").append(0o600)).contains("no regular file"));
        // Replaced by a link after it was found.
        let place = at("log");
        symlink(dir.path().join("two"), dir.path().join("log")).unwrap();
        assert!(why(place.append(0o600)).contains("symbolic link"));
        assert!(why(place.create(0o600)).contains("symbolic link"));
        assert_eq!(std::fs::read(dir.path().join("two")).unwrap(), b"kept");
    }

    #[test]
    fn what_another_user_has_put_there_is_refused() {
        if uid() != 0 {
            return eprintln!("skipped: needs root, to make files of another user");
        }
        let dir = tempfile::tempdir().unwrap();
        let other = 65534;
        let victim = dir.path().join("victim");
        std::fs::write(&victim, "kept").unwrap();
        let link = dir.path().join("link");
        symlink(&victim, &link).unwrap();
        std::os::unix::fs::lchown(&link, Some(other), Some(other)).unwrap();
        let error = Place::of_target(&link).unwrap_err().to_string();
        assert!(error.contains("symbolic link of user 65534"), "{error}");
        symlink(dir.path(), dir.path().join("folder")).unwrap();
        std::os::unix::fs::lchown(dir.path().join("folder"), Some(other), Some(other)).unwrap();
        assert!(create(&dir.path().join("folder/new")).is_err());
        let theirs = dir.path().join("theirs");
        std::fs::write(&theirs, "").unwrap();
        std::os::unix::fs::chown(&theirs, Some(other), Some(other)).unwrap();
        assert!(why(create(&theirs)).contains("belongs to user 65534"));
        assert!(why(Place::of(&theirs).unwrap().append(0o600)).contains("belongs to user 65534"));
        assert_eq!(std::fs::read(&victim).unwrap(), b"kept");
    }

    #[test]
    fn what_is_read_is_waited_for_only_if_this_user_made_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "text").unwrap();
        let read = |path: &Path| {
            let mut text = String::new();
            open(path).and_then(|mut file| file.read_to_string(&mut text)).map(|_| text)
        };
        symlink(&path, dir.path().join("link")).unwrap();
        assert_eq!(read(&dir.path().join("link")).unwrap(), "text");
        assert_eq!(read(Path::new("/dev/null")).unwrap(), "");
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"piped").unwrap();
        drop(writer);
        assert_eq!(read(Path::new(&format!("/proc/self/fd/{}", reader.as_raw_fd()))).unwrap(), "piped");
        // Replaced by a link after it was found.
        let place = Place::of_target(&path).unwrap();
        std::fs::rename(&path, dir.path().join("moved")).unwrap();
        symlink(dir.path().join("moved"), &path).unwrap();
        assert!(why(place.open()).contains("symbolic link"));
        if uid() != 0 {
            return eprintln!("skipped in part: needs root, to make files of another user");
        }
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
        std::os::unix::fs::chown(&fifo, Some(65534), Some(65534)).unwrap();
        assert!(why(open(&fifo)).contains("no regular file, and belongs to user 65534"));
        std::os::unix::fs::lchown(&path, Some(65534), Some(65534)).unwrap();
        assert!(why(open(&path)).contains("symbolic link of user 65534"));
    }

    #[test]
    fn files_are_emptied_and_devices_and_open_files_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        create(&path).unwrap().write_all(b"longer").unwrap();
        create(&path).unwrap().write_all(b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        create(Path::new("/dev/null")).unwrap().write_all(b"x").unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        // As /dev/stdout, which leads there.
        let at = format!("/proc/self/fd/{}", writer.as_raw_fd());
        create(Path::new(&at)).unwrap().write_all(b"piped").unwrap();
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "piped");
    }

    #[test]
    fn a_folder_of_this_users_alone_is_made_and_used() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| Place::of(&dir.path().join(name)).unwrap();
        assert!(at("own").inside(OsStr::new("file"), false).unwrap().is_none());
        let place = at("own").inside(OsStr::new("file"), true).unwrap().unwrap();
        place.append(0o600).unwrap().write_all(b"kept").unwrap();
        assert_eq!(std::fs::read(dir.path().join("own/file")).unwrap(), b"kept");
        assert_eq!(std::fs::metadata(dir.path().join("own")).unwrap().mode() & 0o777, 0o700);
        assert!(at("own").inside(OsStr::new("file"), false).unwrap().unwrap().identity().is_some());
        symlink("own", dir.path().join("link")).unwrap();
        assert!(at("link").inside(OsStr::new("file"), true).is_err());
        std::fs::set_permissions(dir.path().join("own"), std::os::unix::fs::PermissionsExt::from_mode(0o750)).unwrap();
        let error = at("own").inside(OsStr::new("file"), true).unwrap_err().to_string();
        assert!(error.contains("others may use it"), "{error}");
    }

    #[test]
    fn only_the_file_that_is_meant_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::of(&dir.path().join("file")).unwrap();
        let identity = Identity::of(place.append(0o600).unwrap()).unwrap();
        place.rename(OsStr::new("kept")).unwrap();
        std::fs::write(dir.path().join("file"), "of somebody else").unwrap();
        place.remove(identity).unwrap();
        assert_eq!(std::fs::metadata(dir.path().join("file")).unwrap().size(), 16);
        place.beside(OsStr::new("kept")).remove(identity).unwrap();
        assert!(!dir.path().join("kept").exists());
    }
}

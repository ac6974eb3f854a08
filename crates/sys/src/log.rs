// SPDX-License-Identifier: BSD-2-Clause
//! Logs that do not fill a disk: a file that begins anew, and messages that are bounded by kind and user.
//!
//! A log is standard error. Where that is a file that this program has chosen, [`LogFile`] watches it: a file that is
//! too long gets the ending `.1`, in place of the one before, and another one begins; so does it after another program
//! has moved the file away (logrotate). All processes of a daemon write to one file, and follow each other.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::hash::{BuildHasherDefault, DefaultHasher, Hash};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd as _};
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, fstat};

use crate::place::{Identity, Place};
use crate::tuning::log::{LINES_OF_KIND, LINES_OF_USER, MAX_USERS, PERIOD};

/// The file that standard error is.
#[derive(Debug)]
pub struct LogFile {
    place: Place,
    /// Most bytes, but for the lines that are written between two looks.
    max: u64,
    /// The permissions of another one.
    mode: u32,
}

impl LogFile {
    /// Watches the file at `path`, if standard error is that file.
    pub fn of_stderr(path: &Path, max: u64) -> Option<LogFile> {
        let place = Place::of(path).ok()?;
        let own = fstat(io::stderr()).ok()?;
        let is_it = FileType::from_raw_mode(own.st_mode).is_file() && place.identity() == Some(Identity::from(&own));
        is_it.then_some(LogFile { place, max, mode: own.st_mode & 0o777 })
    }

    /// Whether the file was moved away or removed, or is too long.
    pub fn is_over(&self) -> bool {
        let is_here = Identity::of(io::stderr()).is_ok_and(|own| self.place.identity() == Some(own));
        !is_here || length_of_stderr().is_some_and(|length| length > self.max)
    }

    /// Has standard error be the file at the path again, if it was moved away or removed.
    ///
    /// # Errors
    /// As of [`Place::append`]: standard error stays as it is.
    pub fn follow(&self) -> io::Result<()> {
        if self.place.identity() == Some(Identity::of(io::stderr())?) {
            return Ok(());
        }
        set_stderr(self.place.append(self.mode)?)
    }

    /// The same, and begins the file anew if it has become too long. For one process of those that share it.
    ///
    /// # Errors
    /// As of [`LogFile::follow`]; the file that was moved away is then emptied when it is too long.
    pub fn tend(&self) -> io::Result<()> {
        let followed = self.follow();
        if length_of_stderr().is_some_and(|length| length > self.max)
            && (followed.is_err() || self.place.set_aside().and_then(|()| self.follow()).is_err())
        {
            rustix::fs::ftruncate(io::stderr(), 0)?;
        }
        followed
    }
}

/// Opens the log at `path` to add lines, for a process that is to be started: a file of this user's, in which nobody
/// else has a name. One that has more than `max` bytes begins anew. `mode`: the permissions of a new one.
///
/// # Errors
/// As of [`Place::of`] and [`Place::append`].
pub fn begin(path: &Path, max: u64, mode: u32) -> io::Result<File> {
    let place = Place::of(path)?;
    let log = place.append(mode)?;
    if log.metadata()?.len() <= max {
        return Ok(log);
    }
    match place.set_aside() {
        Ok(()) => place.append(mode),
        // Another user may have put a folder in the way.
        Err(_) => log.set_len(0).map(|()| log),
    }
}

/// Bytes in the file that standard error is; `None`: it is no file.
pub fn length_of_stderr() -> Option<u64> {
    let stat = fstat(io::stderr()).ok()?;
    FileType::from_raw_mode(stat.st_mode).is_file().then_some(stat.st_size as u64)
}

/// Has standard error lead to another file.
///
/// # Errors
/// The kernel's.
pub fn set_stderr(file: impl AsFd) -> io::Result<()> {
    // SAFETY: K2: descriptor 2 is standard error, which nothing owns.
    match unsafe { libc::dup3(file.as_fd().as_raw_fd(), libc::STDERR_FILENO, 0) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Messages that were not logged, in one period.
#[derive(Debug, PartialEq, Eq)]
pub struct Unlogged {
    /// The first of them.
    pub text: String,
    /// Their user; `None`: they are of several users, or the user is not known.
    pub user: Option<u32>,
    /// How many.
    pub messages: u64,
    /// In so many seconds.
    pub seconds: u64,
}

impl std::fmt::Display for Unlogged {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seconds = self.seconds;
        write!(f, "{} ... and {} more of this kind", self.text, grouped(self.messages))?;
        match self.user {
            Some(user) => write!(f, " of user {user} in {seconds} s"),
            None => write!(f, " in {seconds} s"),
        }
    }
}

/// A number with a comma between groups of three digits.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Messages of a kind and a user.
#[derive(Default)]
struct Count {
    logged: u32,
    unlogged: u64,
    /// The first that was not logged.
    text: String,
}

/// By user, if it is known.
type Users = BTreeMap<Option<u32>, Count>;

/// Decides which messages are logged: in a period, so many of each kind and user, and of each kind. The others are
/// counted.
pub struct Bounds<K> {
    /// When the period began; `None`: with the next message.
    since: Option<Instant>,
    /// Without random numbers, which a process may not be allowed to ask for: kinds are the program's own.
    kinds: HashMap<K, (u32, Users), BuildHasherDefault<DefaultHasher>>,
}

impl<K> Default for Bounds<K> {
    fn default() -> Bounds<K> {
        Bounds { since: None, kinds: HashMap::default() }
    }
}

impl<K: Eq + Hash> Bounds<K> {
    /// Whether a message that is caused by `user` (`None`: it is not known) is to be logged. `times`: so many times the
    /// usual bound. `text` is called for the first message that is not logged.
    pub fn admit(&mut self, kind: K, user: Option<u32>, times: u32, text: impl FnOnce() -> String) -> bool {
        self.since.get_or_insert_with(Instant::now);
        let (logged, users) = self.kinds.entry(kind).or_default();
        // A user can have many numbers, in a user namespace.
        let user = user.filter(|_| users.contains_key(&user) || users.len() < MAX_USERS);
        let count = users.entry(user).or_default();
        if count.logged < LINES_OF_USER * times && *logged < LINES_OF_KIND * times {
            count.logged += 1;
            *logged += 1;
            return true;
        }
        if count.unlogged == 0 {
            count.text = text();
        }
        count.unlogged += 1;
        false
    }

    /// The time until the period ends.
    pub fn ends_in(&self) -> Option<Duration> {
        self.since.map(|since| PERIOD.saturating_sub(since.elapsed()))
    }

    /// Returns what was not logged, if the period has ended, and begins another one.
    pub fn end(&mut self) -> Vec<Unlogged> {
        if self.ends_in() == Some(Duration::ZERO) { self.take() } else { Vec::new() }
    }

    /// Returns what was not logged until now, as the process ends.
    pub fn take(&mut self) -> Vec<Unlogged> {
        let seconds = self.since.take().map_or(0, |since| since.elapsed().as_secs());
        let counts = self.kinds.drain().flat_map(|(_, (_, users))| users);
        let unlogged = counts.filter(|(_, count)| count.unlogged > 0);
        unlogged.map(|(user, count)| Unlogged { text: count.text, user, messages: count.unlogged, seconds }).collect()
    }
}

/// The log of a process that serves others: lines on standard error.
pub struct Log {
    /// Before each line.
    prefix: String,
    /// Makes a line printable: others choose parts of it.
    printable: fn(&str) -> String,
    file: Option<LogFile>,
    /// Set when the file is to be opened again.
    again: Arc<AtomicBool>,
    /// Kinds are the places in the source.
    bounds: Mutex<Bounds<&'static Location<'static>>>,
}

impl Log {
    /// The log on standard error, which is this file if there is one. `printable`: applied to each line. `again`: set
    /// by SIGHUP.
    pub fn new(prefix: &str, printable: fn(&str) -> String, file: Option<LogFile>, again: Arc<AtomicBool>) -> Log {
        Log { prefix: prefix.into(), printable, file, again, bounds: Mutex::default() }
    }

    /// The folder in which the file is opened again, by a path for this process only.
    pub fn folder(&self) -> Option<PathBuf> {
        Some(self.file.as_ref()?.place.anchored().parent()?.to_owned())
    }

    /// Writes a line that others do not cause.
    pub fn line(&self, text: &str) {
        if let Some(file) = &self.file {
            // If it cannot be opened, the lines are in the file that was moved away.
            let _ = file.tend();
        }
        let _ = writeln!(io::stderr(), "{}{}", self.prefix, (self.printable)(text));
    }

    /// Writes a line that a user has caused, unless there were too many from this place in the source.
    #[track_caller]
    pub fn of_user(&self, user: Option<u32>, text: &str) {
        let kind = Location::caller();
        if self.bounds.lock().unwrap_or_else(PoisonError::into_inner).admit(kind, user, 1, || text.to_owned()) {
            self.line(text);
        }
    }

    /// To be called now and then: opens the file again after SIGHUP, and says what was not logged.
    pub fn tend(&self) {
        let again = self.file.as_ref().filter(|_| self.again.swap(false, Relaxed));
        if let Some(Err(e)) = again.map(LogFile::tend) {
            self.line(&format!("the log cannot be opened again: {e}"));
        }
        let unlogged = self.bounds.lock().unwrap_or_else(PoisonError::into_inner).end();
        unlogged.iter().for_each(|unlogged| self.line(&unlogged.to_string()));
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let unlogged = self.bounds.lock().unwrap_or_else(PoisonError::into_inner).take();
        unlogged.iter().for_each(|unlogged| self.line(&unlogged.to_string()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::tests::in_child;

    #[test]
    fn messages_of_a_kind_and_user_are_bounded_and_counted() {
        let mut bounds = Bounds::<u8>::default();
        let mut logged = |kind, user, messages: u32| {
            (0..messages).filter(|n| bounds.admit(kind, Some(user), 1, || format!("message {n}"))).count() as u32
        };
        assert_eq!(logged(1, 7, 1_000_000), LINES_OF_USER);
        // Of another kind, and of another user.
        assert_eq!((logged(2, 7, 5), logged(1, 8, 5)), (5, 5));
        // However many numbers a user has.
        let of_many: u32 = (100..100_000).map(|user| logged(1, user, 2)).sum();
        assert_eq!(of_many, LINES_OF_KIND - LINES_OF_USER - 5);
        assert!(bounds.kinds[&1].1.len() <= MAX_USERS + 1);
        assert!(bounds.end().is_empty(), "the period has not ended");
        bounds.since = Instant::now().checked_sub(PERIOD);
        let unlogged = bounds.end();
        let all: u64 = unlogged.iter().map(|unlogged| unlogged.messages).sum();
        assert_eq!(all, 1_000_000 - u64::from(LINES_OF_USER) + 2 * 99_900 - u64::from(of_many));
        let of_seven = unlogged.iter().find(|unlogged| unlogged.user == Some(7)).unwrap();
        assert_eq!(of_seven.to_string(), "message 20 ... and 999,980 more of this kind of user 7 in 60 s");
        // Another period.
        assert!(bounds.admit(1, Some(7), 1, String::new) && bounds.ends_in().is_some());
    }

    #[test]
    fn a_log_begins_anew_when_it_is_long_and_when_it_was_moved_away() {
        let dir = tempfile::tempdir().unwrap();
        let (path, old) = (dir.path().join("log"), dir.path().join("log.1"));
        let lines = |path: &Path| std::fs::read_to_string(path).unwrap().lines().count();
        let status = in_child(|| {
            set_stderr(begin(&path, 100, 0o600).unwrap()).unwrap();
            assert!(LogFile::of_stderr(&old, 100).is_none());
            let log = Log::new("test: ", str::to_uppercase, LogFile::of_stderr(&path, 100), Arc::default());
            let is_bounded = (0..1000).all(|n| {
                log.line(&format!("line {n}"));
                length_of_stderr().is_some_and(|length| length <= 120)
            });
            let is_kept = lines(&old) > 5 && lines(&path) > 0;
            // As logrotate does.
            std::fs::rename(&path, dir.path().join("moved")).unwrap();
            log.again.store(true, Relaxed);
            log.tend();
            let is_empty = lines(&path) == 0;
            log.line("after");
            let is_shown = std::fs::read_to_string(&path).unwrap() == "test: AFTER\n";
            i32::from(!is_bounded) + 2 * i32::from(!is_kept) + 4 * i32::from(!is_empty || !is_shown)
        });
        assert_eq!(status, 0);
        // What is in the way of the former one does not keep it.
        std::fs::remove_file(&old).unwrap();
        std::fs::create_dir(&old).unwrap();
        let status = in_child(|| {
            set_stderr(begin(&path, 100, 0o600).unwrap()).unwrap();
            let log = Log::new("", str::to_owned, LogFile::of_stderr(&path, 100), Arc::default());
            i32::from(!(0..100).all(|n| {
                log.line(&format!("line {n}"));
                length_of_stderr().is_some_and(|length| length <= 120)
            }))
        });
        assert_eq!(status, 0);
        std::fs::write(&path, "x".repeat(101)).unwrap();
        assert_eq!(begin(&path, 100, 0o600).unwrap().metadata().unwrap().len(), 0);
        std::fs::remove_dir(&old).unwrap();
        // Another process begins with a long one.
        std::fs::write(&path, "x".repeat(101)).unwrap();
        assert_eq!(begin(&path, 100, 0o600).unwrap().metadata().unwrap().len(), 0);
        assert_eq!(std::fs::metadata(&old).unwrap().len(), 101);
    }

    #[test]
    fn a_log_that_another_user_replaces_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("log"), dir.path().join("other"));
        std::fs::write(&other, "kept").unwrap();
        let status = in_child(|| {
            set_stderr(begin(&path, 100, 0o600).unwrap()).unwrap();
            let file = LogFile::of_stderr(&path, 100).unwrap();
            std::fs::rename(&path, dir.path().join("moved")).unwrap();
            std::os::unix::fs::symlink(&other, &path).unwrap();
            let refused = file.tend().is_err();
            let _ = writeln!(io::stderr(), "a line");
            let is_kept = std::fs::read(dir.path().join("moved")).unwrap() == b"a line\n";
            let _ = writeln!(io::stderr(), "{}", "x".repeat(100));
            let is_emptied = file.tend().is_err() && length_of_stderr() == Some(0);
            i32::from(!refused) + 2 * i32::from(!is_kept) + 4 * i32::from(!is_emptied)
        });
        assert_eq!(status, 0);
        assert_eq!(std::fs::read(&other).unwrap(), b"kept");
    }
}

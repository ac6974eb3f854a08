// SPDX-License-Identifier: BSD-2-Clause
//! The policy's file, and when it is read again.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::Policy;
use crate::tuning::policy::SETTLED;

/// Files with which the meaning of account names may change, and who counts for whom.
const ACCOUNTS: [&str; 3] = [super::USERS, "/etc/group", super::SUBORDINATES];

/// A policy that is read again when its file changes.
#[derive(Debug)]
pub(crate) struct PolicyFile {
    /// The policy's file, then the files that names of accounts depend on.
    pub(super) files: Vec<PathBuf>,
    pub(super) seen: Option<Vec<Stamp>>,
    load: fn(&Path) -> Result<Policy, String>,
    pub(super) loaded: Result<Policy, String>,
    /// Whether the files were looked at in this piece of work; `None`: there is none, so they are looked at each time.
    looked_at: Option<bool>,
}

/// Properties of a file that change when it changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stamp {
    Missing,
    /// It cannot be inspected: any time it may be another file.
    Unknown,
    Of(u64, u64, u64, [i64; 4]),
}

impl PolicyFile {
    /// A file that [`Policy::load`] reads. Does not read it yet.
    ///
    /// # Errors
    /// The path does not begin with `/`: the daemon's working directory is not that of the program that started it.
    pub(crate) fn new(path: &Path) -> Result<PolicyFile, String> {
        PolicyFile::read_by(path, Policy::load)
    }

    /// The file of the rules.
    pub(crate) fn path(&self) -> &Path {
        &self.files[0]
    }

    /// As [`PolicyFile::new`], read by another function.
    ///
    /// # Errors
    /// As [`PolicyFile::new`].
    pub(crate) fn read_by(path: &Path, load: fn(&Path) -> Result<Policy, String>) -> Result<PolicyFile, String> {
        if !path.is_absolute() {
            return Err(format!("{}: the policy's path must begin with /; give the whole path", path.display()));
        }
        let files = [path].into_iter().chain(ACCOUNTS.map(Path::new)).map(Path::to_owned).collect();
        Ok(PolicyFile { files, seen: None, load, loaded: Ok(Policy::default()), looked_at: None })
    }

    /// Reads the policy again, also if its file seems unchanged; returns the number of its rules, built-in ones too.
    ///
    /// # Errors
    /// As [`Policy::load`].
    pub(crate) fn reload(&mut self) -> Result<usize, String> {
        self.seen = None;
        self.looked_at = self.looked_at.map(|_| false);
        self.current().map(|policy| policy.rules.len())
    }

    /// From now on a piece of work is done, in which the files are looked at once: it asks many questions.
    pub(crate) fn begin_work(&mut self) {
        self.looked_at = Some(false);
    }

    /// The piece of work is done.
    pub(crate) fn end_work(&mut self) {
        self.looked_at = None;
    }

    /// Returns the policy, which is read again if the file or the system's users and groups changed. To see that takes
    /// four stat() calls, once in a piece of work.
    ///
    /// # Errors
    /// As [`Policy::load`], each time until the file is mended.
    pub(crate) fn current(&mut self) -> Result<&Policy, String> {
        let was_looked_at = self.looked_at.as_mut().is_some_and(|looked| std::mem::replace(looked, true));
        if was_looked_at {
            return self.loaded.as_ref().map_err(String::clone);
        }
        // Taken before the file is read: a change in between is noticed the next time.
        let stamps: Vec<Stamp> = self.files.iter().map(|path| stamp(path)).collect();
        if self.seen.as_ref() != Some(&stamps) {
            let path = &self.files[0];
            self.loaded = (self.load)(path);
            match &self.loaded {
                Ok(policy) => tracing::debug!(path = %path.display(), rules = policy.rules.len(), "policy read"),
                Err(why) => tracing::warn!("nothing more is opened: {why}"),
            }
            self.seen = is_settled(&stamps, SystemTime::now()).then_some(stamps);
        }
        self.loaded.as_ref().map_err(String::clone)
    }
}

pub(super) fn stamp(path: &Path) -> Stamp {
    match fs::metadata(path) {
        Ok(m) => Stamp::Of(m.dev(), m.ino(), m.size(), [m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec()]),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Stamp::Missing,
        Err(_) => Stamp::Unknown,
    }
}

/// Whether the next change of any of the files is sure to change its stamp: a file's times advance in steps.
pub(super) fn is_settled(stamps: &[Stamp], now: SystemTime) -> bool {
    let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    stamps.iter().all(|stamp| match stamp {
        Stamp::Missing => true,
        Stamp::Unknown => false,
        Stamp::Of(.., [_, _, changed, _]) => {
            let changed = Duration::from_secs(u64::try_from(*changed).unwrap_or(0));
            now.checked_sub(changed).is_some_and(|age| age > SETTLED)
        }
    })
}

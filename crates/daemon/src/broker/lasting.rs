// SPDX-License-Identifier: BSD-2-Clause
//! Persistent ports, and a file about them and their switches, which outlast the daemon and its broker.
//!
//! ```text
//! SOCKET.ports/         a folder that only root can use
//!     namespace         the namespace of the hidden ends is mounted here; it lasts until the last port is removed
//!     state             what the daemon last had written, with the namespaces that it names (`Record`)
//!     settings-UID      the same, of what a user has set: a file for each, so that none is written because of another
//! ```
//! Each hidden end has a mark, its alias: the word [`MARK`], and the daemon's text about the port. Its companion has
//! another, with its index. A pair without one was being made when its daemon ended.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _};
use std::os::fd::{AsFd as _, OwnedFd};

use serde::{Deserialize, Serialize};
use unetmap_core::control::stop::lasting_path;
use unetmap_core::errno::ENODEV;
use unetmap_sys::link::veth::{self, Aliased};
use unetmap_sys::memfd;
use unetmap_sys::netns::Netns;
use unetmap_sys::place::{NewFile, Place};

use super::objects::Broker;
use super::setup::{Setup, inside};
use super::veth::{delete_companion, hidden_end_of};
use crate::threads::lock;
use crate::tuning::broker::{MAX_NAMESPACES, MAX_TEXT};

const NAMESPACE: &str = "namespace";
const STATE: &str = "state";
/// The beginning of the names of users' files.
const SETTINGS: &str = "settings-";

/// Most bytes of the file: in it a sign of the text may take two.
const MAX_RECORD: u64 = 2 * MAX_TEXT + (1 << 20);

/// Daemons that may end while they do what the file says, before it is set aside.
const MAX_TRIES: u32 = 3;

/// The first word of the aliases of hidden ends.
const MARK: &str = "unetmap";

/// The contents of the file.
#[derive(Serialize, Deserialize)]
struct Record {
    /// The boot of the machine in which it was written.
    boot: String,
    /// Daemons that have read it since it was written: one that has done what it says writes it anew.
    tries: u32,
    /// Network namespaces that the text names.
    namespaces: Vec<u64>,
    /// Their cookies, from Linux 5.14 on: their numbers are given again when they have ended.
    #[serde(default)]
    cookies: BTreeMap<u64, u64>,
    /// The daemon's.
    text: String,
}

/// The folder's place; `None`: this process has no socket, as it is no broker.
fn folder(setup: &Setup) -> io::Result<Option<Place>> {
    if setup.socket.as_os_str().is_empty() {
        return Ok(None);
    }
    Place::of(&lasting_path(&setup.socket)).map(Some)
}

/// The place of a name in the folder, which is made if there is none and `makes`.
fn place(setup: &Setup, name: &str, makes: bool) -> io::Result<Option<Place>> {
    folder(setup)?.map_or(Ok(None), |folder| folder.inside(OsStr::new(name), makes))
}

/// The name of a user's file; `None`: of that with all else.
fn file_of(user: Option<u32>) -> String {
    user.map_or_else(|| STATE.into(), |uid| format!("{SETTINGS}{uid}"))
}

/// Replaces the file as a whole. It need not outlast the boot, so the disk is not waited for.
fn replace(place: &Place, record: &Record) -> io::Result<()> {
    NewFile::write(place, ".next", &serde_json::to_vec(record)?, None, 0o600)?.rename_to(place.name())
}

/// Reads a file that was written since the machine was started, for a daemon that is to do what it says.
fn read(setup: &Setup, name: &str) -> io::Result<Option<Record>> {
    let Some(place) = place(setup, name, false)? else { return Ok(None) };
    let Some(identity) = place.identity() else { return Ok(None) };
    let mut bytes = Vec::new();
    place.append(0o600)?.take(MAX_RECORD).read_to_end(&mut bytes)?;
    let record: Result<Record, String> = serde_json::from_slice(&bytes).map_err(|e| e.to_string());
    let checked = record.and_then(|record| match record.tries {
        0..MAX_TRIES => Ok(record),
        tries => Err(format!("{tries} daemons have ended while they did what it says")),
    });
    let record = match checked {
        Ok(record) => record,
        Err(why) => {
            place.set_aside()?;
            return Err(io::Error::other(format!("the file {name} cannot be used: {why}; it is {name}.1 now")));
        }
    };
    if record.boot != boot() {
        place.remove(identity)?;
        return Ok(None);
    }
    let record = Record { tries: record.tries + 1, ..record };
    replace(&place, &record)?;
    Ok(Some(record))
}

/// Removes a file, and the folder if it is empty then.
fn remove(setup: &Setup, place: &Place) -> io::Result<()> {
    if let Some(identity) = place.identity() {
        place.remove(identity)?;
    }
    // Path: only an empty folder is removed, of this place.
    let _ = folder(setup)?.map(|folder| fs::remove_dir(folder.anchored()));
    Ok(())
}

fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// The index and the text of each hidden end, the one with most frames first, and their namespace.
type LeftPorts = (Vec<(u32, String)>, Option<Netns>);

impl Broker {
    /// Marks the hidden end of a persistent port, which then lasts, and its namespace with it.
    pub(super) fn make_last(&self, hidden: &Netns, index: u32, text: &str) -> io::Result<()> {
        if let Some(place) = place(&self.setup, NAMESPACE, true)? {
            let at = place.anchored();
            if Netns::kept_at(&at)?.is_none_or(|kept| kept.id() != hidden.id()) {
                Netns::release_at(&at)?;
                place.append(0o600)?;
                hidden.keep_at(&at)?;
            }
        }
        inside(hidden, || veth::set_alias(index, &format!("{MARK} {text}")))
    }

    /// Finds the persistent ports that an earlier daemon has left: first those that have had most frames, as somebody
    /// waits for them.
    pub(super) fn find_lasting(&self) -> io::Result<LeftPorts> {
        let none = || Ok((Vec::new(), None));
        let Some(place) = place(&self.setup, NAMESPACE, false)? else { return none() };
        let Some(hidden) = Netns::kept_at(&place.anchored())? else { return none() };
        let (mut found, mut companions) = (Vec::new(), Vec::new());
        let mut all = inside(&hidden, veth::all_with_aliases)?;
        all.sort_by_key(|end| Reverse(end.frames));
        for Aliased { index, alias, .. } in all {
            match alias.split_once(' ') {
                Some((MARK, text)) => {
                    lock(&self.pairs).insert((hidden.id(), index));
                    found.push((index, text.to_owned()));
                }
                _ if hidden_end_of(&alias).is_some() => companions.extend(hidden_end_of(&alias)),
                _ => match inside(&hidden, || veth::delete(index)) {
                    // A companion of a killed daemon: it ends with the namespace of its other end.
                    Err(e) if e.raw_os_error() == Some(ENODEV) => {}
                    deleted => deleted?,
                },
            }
        }
        companions.retain(|of| !found.iter().any(|(index, _)| index == of));
        inside(&hidden, || companions.into_iter().try_for_each(delete_companion))?;
        Ok((found, Some(hidden)))
    }

    /// Ends the namespace of the hidden ends, once no process has it open.
    pub(super) fn end_lasting(&self) -> io::Result<()> {
        let Some(place) = place(&self.setup, NAMESPACE, false)? else { return Ok(()) };
        Netns::release_at(&place.anchored())?;
        remove(&self.setup, &place)
    }

    /// Replaces the contents of a user's file, or of that with all else, by the daemon's text, about these namespaces.
    /// An empty text removes it.
    pub(super) fn write_state(
        &self,
        user: Option<u32>,
        text: OwnedFd,
        namespaces: impl Iterator<Item = OwnedFd>,
    ) -> io::Result<()> {
        let all = namespaces.map(|fd| {
            let netns = Netns::from_fd(fd)?;
            // One that cannot be entered is known by its number alone.
            Ok((netns.id(), netns.cookie().ok().flatten()))
        });
        let all = all.collect::<io::Result<Vec<_>>>()?;
        let namespaces = all.iter().map(|(id, _)| *id).collect();
        let cookies = all.into_iter().filter_map(|(id, cookie)| Some((id, cookie?))).collect();
        let text = read_memory(text)?;
        let Some(place) = place(&self.setup, &file_of(user), !text.is_empty())? else { return Ok(()) };
        if text.is_empty() {
            return remove(&self.setup, &place);
        }
        replace(&place, &Record { boot: boot(), tries: 0, namespaces, cookies, text })
    }

    /// Returns the text of the file that is no user's, and those of its namespaces that exist.
    pub(super) fn read_state(&self) -> io::Result<(Option<String>, Vec<Netns>)> {
        let Some(record) = read(&self.setup, STATE)? else { return Ok((None, Vec::new())) };
        let wanted: BTreeSet<u64> = record.namespaces.into_iter().take(MAX_NAMESPACES).collect();
        let is_of_before = |netns: &Netns| {
            let cookie = record.cookies.get(&netns.id());
            cookie.is_none_or(|cookie| netns.cookie().is_ok_and(|found| found == Some(*cookie)))
        };
        let found = Netns::all().filter(|netns| wanted.contains(&netns.id()) && is_of_before(netns)).take(wanted.len());
        Ok((Some(record.text), found.collect()))
    }

    /// Returns the text of each user's file, or why it cannot be used.
    pub(super) fn read_settings(&self) -> io::Result<Vec<(u32, Result<String, String>)>> {
        let Some(any) = place(&self.setup, STATE, false)? else { return Ok(Vec::new()) };
        let anchored = any.anchored();
        let Some(folder) = anchored.parent() else { return Ok(Vec::new()) };
        let user_of = |name: &OsStr| name.to_str()?.strip_prefix(SETTINGS)?.parse().ok();
        let users: BTreeSet<u32> =
            fs::read_dir(folder)?.flatten().filter_map(|entry| user_of(&entry.file_name())).collect();
        let read_one = |uid| match read(&self.setup, &file_of(Some(uid))) {
            Ok(record) => record.map(|record| (uid, Ok(record.text))),
            Err(e) => Some((uid, Err(e.to_string()))),
        };
        Ok(users.into_iter().filter_map(read_one).collect())
    }
}

/// Reads the text that the daemon has sent.
fn read_memory(text: OwnedFd) -> io::Result<String> {
    if !memfd::is_memory_file(text.as_fd()) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a text is in memory"));
    }
    let (mut file, mut bytes) = (File::from(text), String::new());
    file.rewind()?;
    file.take(MAX_TEXT + 1).read_to_string(&mut bytes)?;
    if bytes.len() as u64 > MAX_TEXT {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(bytes)
}

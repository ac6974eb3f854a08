// SPDX-License-Identifier: BSD-2-Clause
//! Memory files that a user's programs share with the daemon. Their pages count for the daemon's control group if the
//! daemon touched them first, and live until no program has the file open or mapped any more, which may be long after
//! the last port in it was closed. So the user is charged for them until then (decision 151).
//!
//! ```text
//! port opened       ports open and close      last port closed                    file ended
//! |-----------------|-------------------------|-----------------------------------|
//!   pages that the daemon has touched in it     all pages that it had, at least `least`   nothing
//! ```
//! Nothing keeps a file that its user does not keep: the daemon has a watch of it ([`FileWatch`]), and no descriptor.
//! Watches are bounded, and so is the number of files for which the daemon hands a record to a successor: `least` is
//! such that users can pay for no more ([`FileBounds`]). If there is no watch all the same, as other programs have
//! them, the daemon keeps a descriptor, for which the user pays, until there is one.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

use serde::{Deserialize, Serialize};
use unetmap_core::errno::ENOMEM;
use unetmap_sys::file_watch::{Ended, FileWatch};
use unetmap_sys::memfd;

use crate::budget::{Amounts, PAGE, Resource};
use crate::descriptors::{FdIndex, Incoming, Outgoing, invalid};
use crate::ledger::{Charge, Ledger};
use crate::pinned::{Pinned, SavedPinned};
use crate::refusal::{Refusal, refuse, refuse_lack};
use crate::threads::lock;

/// The number of a file. Those below 0 are not watched.
pub(crate) type FileKey = i32;

/// A memory file that a user's programs share with the daemon.
pub(crate) struct SharedFile {
    pages: Mutex<Pages>,
}

struct Pages {
    key: FileKey,
    /// The user that pays for it.
    uid: u32,
    /// Pages that the daemon has touched: the first of each range, and the one after its last.
    touched: BTreeMap<u64, u64>,
    charge: Charge,
}

impl SharedFile {
    fn pages(&self) -> MutexGuard<'_, Pages> {
        lock(&self.pages)
    }

    pub(crate) fn key(&self) -> FileKey {
        self.pages().key
    }

    fn uid(&self) -> u32 {
        self.pages().uid
    }

    /// The daemon touches these bytes. Returns how many are charged that were not before.
    pub(crate) fn touch(&self, offset: u64, bytes: u64) -> u64 {
        let mut pages = self.pages();
        let new = PAGE * insert(&mut pages.touched, offset / PAGE, (offset + bytes).div_ceil(PAGE));
        let charged = pages.bytes();
        pages.set_bytes(charged + new);
        new
    }

    /// The charge is so much less, until the result is dropped: a request is to be checked that takes these bytes.
    pub(crate) fn without(self: &Arc<Self>, bytes: u64) -> Uncharged {
        let mut pages = self.pages();
        let (charged, less) = (pages.bytes(), bytes.min(pages.bytes()));
        pages.set_bytes(charged - less);
        Uncharged(self.clone(), less)
    }

    /// The daemon has closed the last port in it, and will not see it again: it has so many bytes, some of them perhaps
    /// of the user's own programs alone; fewer than were charged, if buffers were not filled. The charge grows by at
    /// most `rest`, or to `least`.
    fn close(&self, resident: Option<u64>, rest: u64, least: u64) {
        let mut pages = self.pages();
        let charged = pages.bytes();
        let most = charged.saturating_add(rest);
        pages.set_bytes(resident.map_or(charged, |resident| resident.min(most)).max(least));
    }
}

/// See [`SharedFile::without`].
pub(crate) struct Uncharged(Arc<SharedFile>, u64);

impl Drop for Uncharged {
    fn drop(&mut self) {
        let mut pages = self.0.pages();
        let charged = pages.bytes();
        pages.set_bytes(charged + self.1);
    }
}

impl Pages {
    /// Bytes that are charged.
    fn bytes(&self) -> u64 {
        self.charge.amounts()[Resource::Memory]
    }

    fn set_bytes(&mut self, bytes: u64) {
        self.charge.set(Amounts::of(Resource::Memory, bytes));
    }
}

/// Bounds of what is charged to a user for files.
#[derive(Clone, Copy)]
pub(crate) struct FileBounds {
    /// Most bytes, of the user alone and with all others but root.
    pub(crate) most: [u64; 2],
    /// Least bytes of a file that the daemon has closed.
    pub(crate) least: u64,
}

impl Default for FileBounds {
    /// Of a user without a budget: pages count that the daemon has touched, and no others.
    fn default() -> FileBounds {
        FileBounds { most: [0; 2], least: PAGE }
    }
}

/// Adds a range, and returns how many numbers are new.
fn insert(ranges: &mut BTreeMap<u64, u64>, mut first: u64, mut end: u64) -> u64 {
    let mut new = end.saturating_sub(first);
    if new == 0 {
        return 0;
    }
    // Those that overlap it or touch it, the last one first.
    while let Some((&from, &to)) = ranges.range(..=end).next_back().filter(|(_, to)| **to >= first) {
        ranges.remove(&from);
        new -= to.min(end).saturating_sub(from.max(first));
        (first, end) = (first.min(from), end.max(to));
    }
    ranges.insert(first, end);
    new
}

/// All files of users that have not ended.
pub(crate) struct SharedFiles {
    /// `None`: the kernel has none for this user. Then files count until the daemon has closed them.
    watch: Option<FileWatch>,
    files: BTreeMap<FileKey, Arc<SharedFile>>,
    last_unwatched: FileKey,
    /// Descriptors of files that are to be watched, and charges for them.
    kept: BTreeMap<FileKey, (OwnedFd, Charge)>,
    /// Pages of files that have ended.
    pinned: Pinned,
    /// Of users that have opened something.
    bounds: BTreeMap<u32, FileBounds>,
    ledger: Ledger,
}

/// The state for a successor of the daemon.
#[derive(Serialize, Deserialize)]
pub(crate) struct SavedFiles {
    watch: Option<FdIndex>,
    files: Vec<SavedFile>,
    /// By user: numbers and bytes of files that the daemon has closed, of which there may be very many.
    #[serde(default)]
    left: BTreeMap<u32, Vec<(FileKey, u64)>>,
    #[serde(default)]
    pinned: SavedPinned,
}

#[derive(Serialize, Deserialize)]
struct SavedFile {
    key: FileKey,
    uid: u32,
    kept: Option<FdIndex>,
    /// The first of each range of pages, and the one after its last.
    touched: Vec<(u64, u64)>,
    /// Bytes that are charged.
    bytes: u64,
}

impl SharedFiles {
    pub(crate) fn new(ledger: Ledger) -> SharedFiles {
        let watch = FileWatch::new().inspect_err(|e| tracing::info!("memory of closed ports does not count: {e}"));
        SharedFiles {
            watch: watch.ok(),
            files: BTreeMap::new(),
            last_unwatched: 0,
            kept: BTreeMap::new(),
            pinned: Pinned::new(),
            bounds: BTreeMap::new(),
            ledger,
        }
    }

    /// Has a user pay for a file until it ends.
    pub(crate) fn add(&mut self, uid: u32, file: BorrowedFd<'_>) -> Result<Arc<SharedFile>, Refusal> {
        let key = self.key_of(uid, file).or_else(|e| refuse_lack("shared memory cannot be watched", &e))?;
        Ok(self.insert(key, uid, BTreeMap::new(), 0))
    }

    /// Watches a file, or keeps a descriptor of it if there is no watch for it now.
    fn key_of(&mut self, uid: u32, file: BorrowedFd<'_>) -> io::Result<FileKey> {
        let watched = self.watch.as_ref().map(|watch| watch.add(file));
        if let Some(Ok(key)) = watched {
            return Ok(key);
        }
        self.last_unwatched -= 1;
        if let Some(Err(e)) = watched {
            if !FileWatch::is_lack(&e) {
                return Err(e);
            }
            let kept = (file.try_clone_to_owned()?, self.ledger.charge(uid, Amounts::of(Resource::Descriptors, 1)));
            self.kept.insert(self.last_unwatched, kept);
        }
        Ok(self.last_unwatched)
    }

    fn insert(&mut self, key: FileKey, uid: u32, touched: BTreeMap<u64, u64>, bytes: u64) -> Arc<SharedFile> {
        let charge = self.ledger.charge(uid, Amounts::of(Resource::Memory, bytes));
        let file = Arc::new(SharedFile { pages: Mutex::new(Pages { key, uid, touched, charge }) });
        self.files.insert(key, file.clone());
        file
    }

    /// Has another user pay for a file.
    pub(crate) fn set_payer(&mut self, file: &SharedFile, uid: u32) {
        let mut pages = file.pages();
        pages.charge = self.ledger.charge(uid, pages.charge.amounts());
        pages.uid = uid;
        if let Some((_, charge)) = self.kept.get_mut(&pages.key) {
            *charge = self.ledger.charge(uid, charge.amounts());
        }
    }

    /// Watches the files that were kept, as far as there are watches now.
    fn watch_kept(&mut self) {
        let Some(watch) = &self.watch else { return };
        while let Some(kept) = self.kept.first_entry() {
            let Ok(key) = watch.add(kept.get().0.as_fd()) else { return };
            if let Some(file) = self.files.remove(kept.key()) {
                file.pages().key = key;
                // Or it is a part of another one.
                self.files.entry(key).or_insert(file);
            }
            kept.remove();
        }
    }

    /// Sets what a user may have.
    pub(crate) fn bound(&mut self, uid: u32, bounds: FileBounds) {
        if self.bounds.insert(uid, bounds).is_none() && self.bounds.len().is_power_of_two() {
            let ledger = &self.ledger;
            self.bounds.retain(|of, _| *of == uid || ledger.of(*of).0 != Amounts::default());
        }
    }

    /// The daemon closes a file that programs may have. Pages that a program alone has touched count as well, as nobody
    /// can tell them from others, but not beyond the bounds of its user: it would be refused what it asks for, and
    /// nobody else.
    pub(crate) fn close(&self, file: &SharedFile, fd: impl AsFd) {
        let uid = file.uid();
        let (own, others) = self.ledger.of(uid);
        let FileBounds { most: [most, most_of_all], least } = self.bounds.get(&uid).copied().unwrap_or_default();
        let rest = |most: u64, used: Amounts| most.saturating_sub(used[Resource::Memory]);
        let rest = rest(most, own).min(rest(most_of_all, others));
        file.close(memfd::resident_bytes(fd).ok(), rest, least);
    }

    /// The daemon closes a file that a user's programs may have, and which it has counted otherwise until now.
    pub(crate) fn leave(&mut self, uid: u32, fd: BorrowedFd<'_>) {
        match self.key_of(uid, fd) {
            // A part of another one.
            Ok(key) if self.files.contains_key(&key) => {}
            Ok(key) => {
                let file = self.insert(key, uid, BTreeMap::new(), 0);
                self.close(&file, fd);
            }
            Err(e) => tracing::warn!(uid, "memory of a closed port does not count any more: {e}"),
        }
    }

    /// Ends the charges of files that have ended.
    pub(crate) fn update(&mut self) {
        self.watch_kept();
        self.end_ended();
        self.pinned.update(&self.ledger);
    }

    fn end_ended(&mut self) {
        let SharedFiles { watch, files, pinned, bounds, .. } = self;
        // Of files that are not watched only the daemon's own use is known.
        if watch.is_none() {
            files.retain(|_, file| Arc::strong_count(file) > 1);
        }
        // An arena's value may live a moment longer than its file, in another thread.
        let mut end = |file: &SharedFile| {
            let mut pages = file.pages();
            if bounds.contains_key(&pages.uid) {
                pinned.ended(pages.uid, pages.bytes());
            }
            pages.set_bytes(0);
        };
        let take = |watch: &FileWatch| watch.take_ended(|key| files.remove(&key).iter().for_each(|file| end(file)));
        let ended = watch.as_ref().map(take);
        match ended {
            None | Some(Ok(Ended::These)) => {}
            Some(Ok(Ended::AllBut(left))) => {
                let ended = files.extract_if(.., |key, _| *key > 0 && !left.contains(key));
                ended.for_each(|(_, file)| end(&file));
            }
            Some(Err(e)) => tracing::warn!("the ends of shared memory are not known: {e}"),
        }
    }

    /// Bytes that a user is charged for files that the daemon has closed, also for pages of ended ones.
    pub(crate) fn left_by(&self, uid: u32) -> u64 {
        let left = self.files.values().filter(|file| file.uid() == uid && Arc::strong_count(file) == 1);
        left.map(|file| file.pages().bytes()).sum::<u64>() + self.pinned.of(uid)
    }

    /// Whether programs have files that the daemon has closed.
    pub(crate) fn are_any_left(&mut self) -> bool {
        self.update();
        self.pinned.amounts().next().is_some() || self.files.values().any(|file| Arc::strong_count(file) == 1)
    }

    /// Returns the amounts that users are charged.
    pub(crate) fn amounts(&self) -> impl Iterator<Item = (u32, Amounts)> {
        let kept =
            self.kept.iter().filter_map(|(key, (_, charge))| Some((self.files.get(key)?.uid(), charge.amounts())));
        self.files
            .values()
            .map(|file| file.pages())
            .map(|pages| (pages.uid, pages.charge.amounts()))
            .chain(kept)
            .chain(self.pinned.amounts())
    }

    /// A file that was restored, and has not ended.
    pub(crate) fn existing(&self, key: FileKey) -> Result<Arc<SharedFile>, Refusal> {
        self.files.get(&key).map_or_else(|| invalid("shared memory"), |file| Ok(file.clone()))
    }

    pub(crate) fn save<'a>(&'a self, fds: &mut Outgoing<'a>) -> SavedFiles {
        let watch = self.watch.as_ref().map(|watch| fds.add(watch));
        let (mut files, mut left) = (Vec::new(), BTreeMap::<_, Vec<_>>::new());
        for (key, file) in &self.files {
            let (kept, pages) = (self.kept.get(key), file.pages());
            if Arc::strong_count(file) == 1 && kept.is_none() {
                left.entry(pages.uid).or_default().push((*key, pages.bytes()));
                continue;
            }
            let touched = pages.touched.iter().map(|(first, end)| (*first, *end)).collect();
            let kept = kept.map(|(fd, _)| fds.add(fd));
            files.push(SavedFile { key: *key, uid: pages.uid, kept, touched, bytes: pages.bytes() });
        }
        SavedFiles { watch, files, left, pinned: self.pinned.save() }
    }

    /// Adds all files that another daemon had, and that have not ended. It takes no event: that daemon may go on.
    pub(crate) fn restore(&mut self, saved: SavedFiles, fds: &mut Incoming) -> Result<(), Refusal> {
        self.watch = saved.watch.map(|watch| fds.take(watch).map(FileWatch::from_fd)).transpose()?;
        let watched = self.watch.as_ref().map(FileWatch::watched).transpose();
        let watched = watched.or_else(|e| refuse(ENOMEM, format!("what programs have mapped is not known: {e}")))?;
        let exists = |key: &FileKey| *key < 0 || watched.as_ref().is_some_and(|watched| watched.contains(key));
        for SavedFile { key, uid, kept, touched, bytes } in saved.files {
            self.last_unwatched = self.last_unwatched.min(key);
            if let Some(kept) = kept {
                let charge = self.ledger.charge(uid, Amounts::of(Resource::Descriptors, 1));
                self.kept.insert(key, (fds.take(kept)?, charge));
            }
            if exists(&key) {
                self.insert(key, uid, touched.into_iter().collect(), bytes);
            }
        }
        self.pinned.restore(saved.pinned, &self.ledger);
        for (uid, files) in saved.left {
            for (key, bytes) in files.into_iter().filter(|(key, _)| exists(key)) {
                self.insert(key, uid, BTreeMap::new(), bytes);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::os::fd::OwnedFd;
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;

    fn file(bytes: u64) -> OwnedFd {
        let fd = memfd::create_sealed("test", 16 * PAGE).unwrap();
        for page in 0..bytes / PAGE {
            rustix::io::pwrite(&fd, b"x", page * PAGE).unwrap();
        }
        fd
    }

    fn bounds(own: u64, all: u64) -> FileBounds {
        FileBounds { most: [own, all], least: PAGE }
    }

    fn charged(ledger: &Ledger, uid: u32) -> u64 {
        ledger.of(uid).0[Resource::Memory] / PAGE
    }

    #[test]
    fn a_file_is_charged_until_no_program_has_it() {
        let ledger = Ledger::default();
        let mut files = SharedFiles::new(ledger.clone());
        files.bound(7, bounds(u64::MAX, u64::MAX));
        let fd = file(3 * PAGE);
        let shared = files.add(7, fd.as_fd()).unwrap();
        assert_eq!(charged(&ledger, 7), 0);
        shared.touch(100, PAGE);
        shared.touch(0, 10);
        assert_eq!(charged(&ledger, 7), 2);
        // A buffer that no packet has filled is charged no more when the file is closed.
        shared.touch(4 * PAGE, 9 * PAGE);
        assert_eq!(charged(&ledger, 7), 11);
        let theirs = fd.try_clone().unwrap();
        files.close(&shared, &fd);
        drop((shared, fd));
        files.update();
        assert_eq!((charged(&ledger, 7), files.left_by(7)), (3, 3 * PAGE));
        let page = file(PAGE);
        files.leave(8, page.as_fd());
        drop(page);
        assert_eq!((charged(&ledger, 8), files.are_any_left()), (1, true));
        files.update();
        assert_eq!(ledger.all().into_keys().collect::<Vec<_>>(), [7]);
        drop(theirs);
        assert!(!files.are_any_left() && ledger.all().is_empty());
    }

    #[test]
    fn pages_of_a_program_count_up_to_its_users_bounds() {
        let (ledger, mut pages) = (Ledger::default(), Vec::new());
        let mut files = SharedFiles::new(ledger.clone());
        for (uid, most) in [(1, Some((4, 100))), (2, Some((100, 6))), (3, None)] {
            most.into_iter().for_each(|(own, all)| files.bound(uid, bounds(own * PAGE, all * PAGE)));
            for _ in 0..2 {
                let fd = file(3 * PAGE);
                let shared = files.add(uid, fd.as_fd()).unwrap();
                shared.touch(0, PAGE);
                files.close(&shared, &fd);
                pages.push(fd);
            }
        }
        assert_eq!([1, 2, 3].map(|uid| charged(&ledger, uid)), [4, 2 + 1, 2]);
    }

    /// In a user namespace with so few watches.
    #[test]
    fn a_file_without_a_watch_is_kept_until_there_is_one() {
        if FileWatch::limit() > 2 {
            let test = "shared_files::tests::a_file_without_a_watch_is_kept_until_there_is_one";
            let script = "echo 2 >/proc/sys/user/max_inotify_watches || exit 77; exec \"$0\" --exact \"$@\"";
            let mut unshare = Command::new("unshare");
            unshare.args(["--user", "--map-root-user", "sh", "-c", script]).arg(env::current_exe().unwrap()).arg(test);
            let output = unshare.output().unwrap();
            let printed = String::from_utf8_lossy(&output.stdout);
            match output.status.success() {
                true => assert!(printed.contains("1 passed"), "{printed}"),
                false if printed.is_empty() => eprintln!("skipped: a namespace of users cannot be made: {output:?}"),
                false => panic!("{printed}"),
            }
            return;
        }
        let amounts = |ledger: &Ledger| {
            let of = ledger.of(7).0;
            (of[Resource::Memory] / PAGE, of[Resource::Descriptors])
        };
        let (ledger, next) = (Ledger::default(), Ledger::default());
        let mut files = SharedFiles::new(ledger.clone());
        let leave = |files: &mut SharedFiles| {
            let fd = file(PAGE);
            files.leave(7, fd.as_fd());
            fd
        };
        let [first, second, third] = [(); 3].map(|()| leave(&mut files));
        let fd = file(PAGE);
        let added = files.add(7, fd.as_fd()).unwrap();
        files.leave(7, fd.as_fd());
        files.update();
        assert_eq!(amounts(&ledger), (4, 3), "two are watched, two are kept, one of them twice");
        let mut fds = Outgoing::default();
        let saved = files.save(&mut fds);
        let fds = fds.fds().iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
        let mut restored = SharedFiles::new(next.clone());
        restored.restore(saved, &mut Incoming::new(fds)).unwrap();
        assert_eq!(amounts(&next), (4, 3));
        drop((files, added, fd));
        restored.update();
        assert_eq!(amounts(&next), (4, 3), "there still is no watch");
        drop((second, third));
        restored.update();
        assert_eq!((amounts(&next), restored.are_any_left()), ((1, 0), true), "the watch of one was for the others");
        drop(first);
        assert!(!restored.are_any_left() && next.all().is_empty());
    }

    #[test]
    fn a_file_that_is_left_counts_so_much_at_least_and_its_record_is_short() {
        let ledger = Ledger::default();
        let mut files = SharedFiles::new(ledger.clone());
        files.bound(7, FileBounds { least: 8 * PAGE, ..bounds(u64::MAX, u64::MAX) });
        let page = file(PAGE);
        files.leave(7, page.as_fd());
        assert_eq!(charged(&ledger, 7), 8);
        (1000..2000).for_each(|key| drop(files.insert(key, 7, BTreeMap::new(), 8 * PAGE)));
        let state = serde_json::to_string(&files.save(&mut Outgoing::default())).unwrap();
        assert!(state.len() < 16 * 1000, "{}", state.len());
    }

    #[test]
    fn bounds_of_users_without_anything_are_forgotten() {
        let mut files = SharedFiles::new(Ledger::default());
        (0..1000).for_each(|uid| files.bound(uid, bounds(1, 1)));
        assert!(files.bounds.len() < 4, "{}", files.bounds.len());
    }

    #[test]
    fn a_successor_knows_what_has_not_ended() {
        let (ledger, next) = (Ledger::default(), Ledger::default());
        let mut files = SharedFiles::new(ledger.clone());
        let [(kept, kept_file), (ended, ended_file)] = [2, 5].map(|pages| {
            let fd = file(pages * PAGE);
            let shared = files.add(pages as u32, fd.as_fd()).unwrap();
            shared.touch(0, pages * PAGE);
            (fd, shared)
        });
        let mut fds = Outgoing::default();
        let saved = files.save(&mut fds);
        let fds = fds.fds().iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
        let ended_key = ended_file.key();
        drop((ended, ended_file));
        let mut restored = SharedFiles::new(next.clone());
        restored.restore(saved, &mut Incoming::new(fds)).unwrap();
        assert_eq!((charged(&next, 2), charged(&next, 5)), (2, 0));
        assert!(restored.existing(ended_key).is_err());
        let again = restored.existing(kept_file.key()).unwrap();
        again.touch(PAGE, 2 * PAGE);
        assert_eq!(charged(&next, 2), 3, "a page that was touched before is charged once");
        drop((kept, kept_file, again));
        restored.update();
        assert!(next.all().is_empty());
    }

    proptest! {
        #[test]
        fn pages_are_counted_once(ranges in prop::collection::vec((0u64..64, 0u64..16), 0..20)) {
            let (mut set, mut known) = (BTreeMap::new(), std::collections::BTreeSet::new());
            for (first, count) in ranges {
                let new = insert(&mut set, first, first + count);
                let expected = (first..first + count).filter(|page| known.insert(*page)).count();
                prop_assert_eq!(new, expected as u64);
                prop_assert_eq!(set.iter().flat_map(|(from, to)| *from..*to).collect::<Vec<_>>(),
                    known.iter().copied().collect::<Vec<_>>());
            }
        }
    }
}

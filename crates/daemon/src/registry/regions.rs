// SPDX-License-Identifier: BSD-2-Clause
//! The regions that ports lie in: creating them, and finding one by the number that programs use.

use std::collections::BTreeMap;
use std::mem;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::{Arc, Weak};

use unetmap_core::errno::{EAGAIN, EINVAL, ENOMEM, ENXIO};

use crate::budget::{Amounts, Resource};
use crate::ledger::Ledger;
use crate::refusal::{Refusal, refuse};
use crate::region::{DAEMON_UID, NewMemory, Prepared, RegionKey, RegionMemory, RegionRecord, Scope, Sizes};
use crate::region_freer::Freer;
use crate::shared_files::{SharedFile, SharedFiles};
use crate::user_arena::UserArena;

/// All regions.
pub(crate) struct Regions {
    all: BTreeMap<RegionKey, RegionRecord>,
    /// By user. An arena exists as long as a region in it, or a file of the node that maps it.
    arenas: BTreeMap<u32, Weak<UserArena>>,
    /// Whether new regions are placed in arenas, where the node can map them.
    pub(crate) use_arenas: bool,
    freer: Freer,
    /// Files of regions, and others that programs have.
    pub(crate) files: SharedFiles,
    ledger: Ledger,
    /// A reference for each piece of memory that is prepared for a request.
    prepared: Arc<()>,
    /// The first number of private regions.
    first_mem_id: u16,
    /// No lower number of a private region is free.
    maybe_free: u16,
    /// The next key of a region that cannot be identified by its number alone.
    next_key: RegionKey,
}

impl Regions {
    pub(super) fn new(first_mem_id: u16, ledger: Ledger) -> Regions {
        Regions {
            all: BTreeMap::new(),
            arenas: BTreeMap::new(),
            use_arenas: false,
            freer: Freer::default(),
            files: SharedFiles::new(ledger.clone()),
            ledger,
            prepared: Arc::default(),
            first_mem_id,
            maybe_free: first_mem_id,
            next_key: RegionKey::from(u16::MAX) + 1,
        }
    }

    pub(crate) fn get(&self, key: RegionKey) -> Option<&RegionRecord> {
        self.all.get(&key)
    }

    pub(crate) fn get_mut(&mut self, key: RegionKey) -> Option<&mut RegionRecord> {
        self.all.get_mut(&key)
    }

    /// Returns a region, or refuses the request because it has ended.
    pub(crate) fn existing(&self, key: RegionKey) -> Result<&RegionRecord, Refusal> {
        self.get(key).map_or_else(gone, Ok)
    }

    /// The same, mutable.
    pub(crate) fn existing_mut(&mut self, key: RegionKey) -> Result<&mut RegionRecord, Refusal> {
        self.get_mut(key).map_or_else(gone, Ok)
    }

    /// The number by which programs call a region; 0 if it has ended.
    pub(crate) fn mem_id(&self, key: RegionKey) -> u16 {
        self.get(key).map_or(0, |record| record.mem_id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &RegionRecord> {
        self.all.values()
    }

    /// Returns the region that programs of `scope` call `mem_id`. `netns` is the caller's network namespace, to which
    /// the region of interfaces (1) belongs.
    pub(crate) fn by_number(&self, mem_id: u16, scope: Scope, netns: u64) -> Result<RegionKey, Refusal> {
        let is_own = |record: &&RegionRecord| match record.mem_id {
            1 => record.scope == (Scope { netns, ..scope }),
            _ => record.scope.uid == scope.uid,
        };
        match self.all.values().filter(|record| record.mem_id == mem_id).find(is_own) {
            Some(record) => Ok(record.key),
            None => refuse(EINVAL, format!("there is no region {mem_id} (unetmap ls lists the regions)")),
        }
    }

    /// Refuses a request that names region `requested` for a port that lies in `region`. 0 names none.
    pub(crate) fn check_number(&self, what: &str, region: RegionKey, requested: u16) -> Result<(), Refusal> {
        let mem_id = self.mem_id(region);
        if requested != 0 && requested != mem_id {
            return refuse(EINVAL, format!("the {what} lies in region {mem_id}, not {requested}"));
        }
        Ok(())
    }

    /// Creates a region with a number of its own.
    pub(crate) fn create_private(
        &mut self,
        scope: Scope,
        name: &str,
        sizes: Sizes,
        memory: &mut RegionMemory,
    ) -> Result<RegionKey, Refusal> {
        let arena = self.arena_for(scope);
        self.create_numbered((scope, scope.uid, name), sizes, arena.as_ref(), memory)
    }

    /// Creates a region with a number of its own, in a file of its own, for which a user pays.
    pub(crate) fn create_alone(
        &mut self,
        (scope, payer): (Scope, u32),
        name: &str,
        sizes: Sizes,
        memory: &mut RegionMemory,
    ) -> Result<RegionKey, Refusal> {
        self.create_numbered((scope, payer, name), sizes, None, memory)
    }

    /// Has another user pay for a region and its file.
    pub(super) fn set_payer(&mut self, key: RegionKey, uid: u32) {
        let Some(record) = self.all.get_mut(&key) else { return };
        (record.payer, record.charge) = (uid, Some(self.ledger.charge(uid, record.amounts())));
        if let Some(file) = record.file.as_ref().filter(|_| !record.is_in_arena()) {
            self.files.set_payer(file, uid);
        }
    }

    /// Creates a region with a number of its own, whose file a hypervisor can give to its guest.
    pub(crate) fn create_device(&mut self, scope: Scope, name: &str, sizes: Sizes) -> Result<RegionKey, Refusal> {
        let mem_id = self.free_number()?;
        let key = RegionKey::from(mem_id);
        let mut record = RegionRecord::create_device((key, mem_id), scope, name, sizes)?;
        record.file = self.pay(scope.uid, record.fd.as_fd())?;
        self.insert(record);
        Ok(key)
    }

    fn create_numbered(
        &mut self,
        (scope, payer, name): (Scope, u32, &str),
        sizes: Sizes,
        arena: Option<&Arc<UserArena>>,
        memory: &mut RegionMemory,
    ) -> Result<RegionKey, Refusal> {
        let mem_id = self.free_number()?;
        let key = RegionKey::from(mem_id);
        let memory = self.new_memory((mem_id, scope, payer), sizes, arena, memory)?;
        let mut record = RegionRecord::create((key, mem_id), scope, name, memory);
        record.payer = payer;
        self.insert(record);
        Ok(key)
    }

    /// Returns memory for a new region: that which was prepared, if it fits. Memory that must be prepared first is
    /// created, and refused.
    fn new_memory(
        &mut self,
        (mem_id, scope, payer): (u16, Scope, u32),
        sizes: Sizes,
        arena: Option<&Arc<UserArena>>,
        memory: &mut RegionMemory,
    ) -> Result<NewMemory, Refusal> {
        let need = match mem::take(memory) {
            RegionMemory::Prepared(prepared) => match prepared.into_memory(scope, sizes, arena.is_some()) {
                Some(ready) => return Ok(ready),
                None => None,
            },
            RegionMemory::Large(need) => Some(need),
            _ => None,
        };
        let mut created = NewMemory::create(&format!("unetmap-{mem_id}"), sizes, arena)?;
        if arena.is_none() {
            created.file = self.pay(payer, created.fd.as_fd())?;
        }
        let Some(need) = need else { return Ok(created) };
        let charge = self.ledger.charge(payer, Amounts::of(Resource::Descriptors, 1));
        *memory = RegionMemory::Wanted(Box::new(Prepared::new(created, scope, charge, &need, &self.prepared)));
        refuse(EAGAIN, "the memory of the port is to be prepared")
    }

    /// Has a user pay for the file of a region.
    fn pay(&mut self, uid: u32, file: BorrowedFd<'_>) -> Result<Option<Arc<SharedFile>>, Refusal> {
        (uid != DAEMON_UID).then(|| self.files.add(uid, file)).transpose()
    }

    /// Whether any request waits for memory.
    pub(crate) fn are_any_prepared(&self) -> bool {
        Arc::strong_count(&self.prepared) > 1
    }

    fn free_number(&mut self) -> Result<u16, Refusal> {
        let is_free = |mem_id: &u16| !self.all.contains_key(&RegionKey::from(*mem_id));
        let Some(mem_id) = (self.maybe_free..=u16::MAX).find(is_free) else {
            return refuse(ENOMEM, "all region numbers are in use (65,000 regions): close a port");
        };
        self.maybe_free = mem_id;
        Ok(mem_id)
    }

    /// Creates the region that all interfaces of `scope` and their pipes share. Its number is 1.
    pub(crate) fn create_for_interfaces(
        &mut self,
        scope: Scope,
        sizes: Sizes,
        memory: &mut RegionMemory,
    ) -> Result<RegionKey, Refusal> {
        let key = self.next_key;
        self.next_key += 1;
        let arena = self.arena_for(scope);
        let memory = self.new_memory((1, scope, scope.uid), sizes, arena.as_ref(), memory)?;
        self.insert(RegionRecord::create((key, 1), scope, "interfaces", memory));
        Ok(key)
    }

    /// Adds a region, and charges its user.
    pub(crate) fn insert(&mut self, mut record: RegionRecord) {
        let uid = record.payer;
        record.charge = (uid != DAEMON_UID).then(|| self.ledger.charge(uid, record.amounts()));
        self.all.insert(record.key, record);
    }

    /// The next key of a region that cannot be identified by its number alone.
    pub(crate) fn next_key(&self) -> RegionKey {
        self.next_key
    }

    pub(crate) fn set_next_key(&mut self, key: RegionKey) {
        self.next_key = key;
    }

    pub(super) fn remove(&mut self, key: RegionKey) {
        if let Some(mut record) = self.all.remove(&key) {
            // It may wait to be freed.
            record.charge = None;
            if let Some(file) = record.file.take().filter(|_| !record.is_in_arena()) {
                self.files.close(&file, &record.fd);
            }
            if let Ok(number) = u16::try_from(key) {
                self.maybe_free = self.maybe_free.min(number.max(self.first_mem_id));
            }
            let census = record.census(&[]);
            tracing::debug!(record.mem_id, ?census, "region closed");
            self.freer.free(record);
        }
    }

    /// Returns the file that contains all regions of `uid`.
    pub(crate) fn arena(&mut self, uid: u32) -> Result<Arc<UserArena>, Refusal> {
        if let Some(arena) = self.arenas.get(&uid).and_then(Weak::upgrade) {
            return Ok(arena);
        }
        self.arenas.retain(|_, arena| arena.strong_count() > 0);
        let created = UserArena::new().or_else(|e| refuse(ENOMEM, format!("no memory for a user's regions: {e}")))?;
        let file = self.pay(uid, created.as_fd())?;
        let created = Arc::new(created.paid(file));
        self.arenas.insert(uid, Arc::downgrade(&created));
        Ok(created)
    }

    /// The arenas that exist, with their users.
    pub(crate) fn all_arenas(&self) -> Vec<(u32, Arc<UserArena>)> {
        self.arenas.iter().filter_map(|(uid, arena)| Some((*uid, arena.upgrade()?))).collect()
    }

    /// Adds an arena that an earlier daemon had.
    pub(crate) fn insert_arena(&mut self, uid: u32, arena: &Arc<UserArena>) {
        self.arenas.insert(uid, Arc::downgrade(arena));
    }

    /// The arena of a user, if there is one.
    pub(crate) fn existing_arena(&self, uid: u32) -> Option<Arc<UserArena>> {
        self.arenas.get(&uid).and_then(Weak::upgrade)
    }

    /// Where a new region of `scope` is placed while arenas are used. Programs never map the daemon's own regions.
    fn arena_for(&mut self, scope: Scope) -> Option<Arc<UserArena>> {
        if !self.use_arenas || scope.uid == DAEMON_UID {
            return None;
        }
        self.arena(scope.uid).inspect_err(|refusal| tracing::warn!("{}", refusal.why)).ok()
    }
}

fn gone<T>() -> Result<T, Refusal> {
    refuse(ENXIO, "the region no longer exists")
}

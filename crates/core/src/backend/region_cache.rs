// SPDX-License-Identifier: BSD-2-Clause
//! The regions that this process has mapped: each is mapped once.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use unetmap_mem::{Geometry, Region};
use unetmap_sys::in_place::{self, FileId, FilePart};
use unetmap_sys::process;

/// Mapped regions by their file, and their offset in it.
type Regions = HashMap<(FileId, u64), Known>;

/// A region that was mapped.
#[derive(Clone)]
struct Known {
    region: Weak<Region>,
    /// Its id, once this process has a port in it: the region that a monitor listens to has none here.
    mem_id: Option<u16>,
    /// Ports of it that go on with other daemons and have not noticed the end of theirs.
    serving: u32,
}

/// The regions of one process.
struct Mapped {
    /// Forks between the first process and this one.
    forks: u32,
    regions: Regions,
}

/// Processes in a line of forks that have lists of their own.
const LISTS: usize = 64;

/// A child that is forked while another thread changes the list finds it locked for ever, and perhaps half changed.
/// Therefore each child has the next list, and copies what it can of an older one.
static REGIONS: [Mutex<Option<Mapped>>; LISTS] = [const { Mutex::new(None) }; LISTS];

/// Calls `work` with the regions of this process.
fn with_regions<T>(work: impl FnOnce(&mut Regions) -> T) -> T {
    let forks = process::fork_count();
    let list = |forks: u32| &REGIONS[forks as usize % LISTS];
    let mut own = list(forks).lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(mapped) = own.as_mut().filter(|mapped| mapped.forks == forks) {
        return work(&mut mapped.regions);
    }
    let mut older = (1..LISTS as u32).map_while(|back| forks.checked_sub(back));
    let inherited = older.find_map(|older| {
        let mapped = list(older).try_lock().ok()?;
        mapped.as_ref().filter(|mapped| mapped.forks == older).map(|mapped| mapped.regions.clone())
    });
    let regions = inherited.unwrap_or_default();
    work(&mut own.insert(Mapped { forks, regions }).regions)
}

/// Returns a region, and maps it if it is not mapped yet. `mem_id` is its id, if it is known.
pub(crate) fn map_region(fd: OwnedFd, geometry: Geometry, mem_id: Option<u16>) -> io::Result<Arc<Region>> {
    let key = (FileId::of(&fd)?, geometry.ifs.offset);
    with_regions(|regions| {
        regions.retain(|_, known| known.region.strong_count() > 0);
        if let Some(known) = regions.get_mut(&key)
            && let Some(region) = known.region.upgrade()
        {
            known.mem_id = mem_id.or(known.mem_id);
            return Ok(region);
        }
        let region = Arc::new(Region::attach(fd.as_fd(), geometry)?);
        regions.insert(key, Known { region: Arc::downgrade(&region), mem_id, serving: 0 });
        Ok(region)
    })
}

/// Maps the region of the next daemon where `region` is mapped, unless another port of it has done so. Returns `false`
/// if its file is neither that nor `last`: another port of it has a daemon meanwhile whose end it has not noticed.
pub(crate) fn replace(
    region: &Arc<Region>,
    last: FileId,
    (fd, layout): (&OwnedFd, Geometry),
    mem_id: Option<u16>,
) -> io::Result<bool> {
    let new = (FileId::of(fd)?, layout.ifs.offset);
    with_regions(|regions| {
        let Some(old) = regions.iter().find(|(_, known)| is_of(known, region)).map(|(key, _)| *key) else {
            return Ok(false);
        };
        if old == new || old.0 != last {
            return Ok(old == new);
        }
        let part = FilePart { file: old.0, from: old.1, bytes: layout.bytes() - layout.ifs.offset };
        in_place::replace_memory(part, fd.as_fd(), layout.ifs.offset)?;
        let serving = regions.remove(&old).map_or(0, |known| known.serving);
        regions.insert(new, Known { region: Arc::downgrade(region), mem_id, serving });
        Ok(true)
    })
}

/// A port that goes on with other daemons serves (`change` 1), or has noticed the end of its daemon (-1). Returns how
/// many of the region's ports serve then; 0 changes nothing.
pub(crate) fn serving(region: &Arc<Region>, change: i32) -> u32 {
    with_regions(|regions| {
        let Some(known) = regions.values_mut().find(|known| is_of(known, region)) else { return 0 };
        known.serving = known.serving.saturating_add_signed(change);
        known.serving
    })
}

/// Whether the region is that of this file: no other port has gone on with another daemon.
pub(crate) fn is_in(region: &Arc<Region>, file: FileId) -> bool {
    with_regions(|regions| regions.iter().any(|(key, known)| key.0 == file && is_of(known, region)))
}

fn is_of(known: &Known, region: &Arc<Region>) -> bool {
    std::ptr::eq(known.region.as_ptr(), Arc::as_ptr(region))
}

/// Returns the id that the region has now, for ports that name it.
pub(crate) fn mem_id_of(region: &Arc<Region>) -> Option<u16> {
    with_regions(|regions| regions.values().find(|known| is_of(known, region))?.mem_id)
}

/// Returns the id of the region whose file has that inode, if this process has a port in it.
pub(crate) fn region_in(inode: u64) -> Option<u16> {
    with_regions(|regions| {
        let mut used = regions.iter().filter(|(_, known)| known.region.strong_count() > 0);
        used.find_map(|((file, _), known)| known.mem_id.filter(|_| file.inode() == inode))
    })
}

// SPDX-License-Identifier: BSD-2-Clause
//! The regions that this process has mapped: each is mapped once.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use unetmap_mem::{Geometry, Region};
use unetmap_sys::process;

/// Mapped regions by device and inode of their file, and their offset in it.
type Regions = HashMap<(u64, u64, u64), Known>;

/// A region that was mapped.
#[derive(Clone)]
struct Known {
    region: Weak<Region>,
    /// Its id, once this process has a port in it: the region that a monitor listens to has none here.
    mem_id: Option<u16>,
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
    let file = File::from(fd);
    let meta = file.metadata()?;
    let key = (meta.dev(), meta.ino(), geometry.ifs.offset);
    with_regions(|regions| {
        regions.retain(|_, known| known.region.strong_count() > 0);
        if let Some(known) = regions.get_mut(&key)
            && let Some(region) = known.region.upgrade()
        {
            known.mem_id = mem_id.or(known.mem_id);
            return Ok(region);
        }
        let region = Arc::new(Region::attach(file.as_fd(), geometry)?);
        regions.insert(key, Known { region: Arc::downgrade(&region), mem_id });
        Ok(region)
    })
}

/// Returns the id of the region whose file has that inode, if this process has a port in it.
pub(crate) fn region_in(inode: u64) -> Option<u16> {
    with_regions(|regions| {
        let mut used = regions.iter().filter(|(_, known)| known.region.strong_count() > 0);
        used.find_map(|((_, ino, _), known)| known.mem_id.filter(|_| *ino == inode))
    })
}

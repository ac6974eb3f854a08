// SPDX-License-Identifier: BSD-2-Clause
//! The option EXTMEM: a region in memory of the program's.
//!
//! The daemon creates the region like any other, and trusts it no more; the program's library then maps it over that
//! memory. This module lays the region out as the program requested, within the bytes of the memory.

use unetmap_abi::{NmreqOptExtmem, NmreqPoolsInfo};
use unetmap_core::control::request::pools_info;
use unetmap_core::errno::{EINVAL, ENOMEM};
use unetmap_mem::Geometry;

use crate::budget::Amounts;
use crate::caller::Caller;
use crate::ports::Daemon;
use crate::refusal::{Refusal, refuse};
use crate::region::{RegionKey, RegionMemory, Sizes};

/// Returns the pools that `info` requests; sizes that it leaves at 0 are those of `default`. There may be fewer buffers
/// than requested, if the memory is not larger.
fn sizes(info: &NmreqPoolsInfo, default: Sizes) -> Result<Sizes, Refusal> {
    let or = |requested: u32, default: u32| if requested == 0 { default } else { requested };
    let pool = |(num, size): (u32, u32), default: (u32, u32)| (or(num, default.0), or(size, default.1));
    let ifs = pool((info.nr_if_pool_objtotal, info.nr_if_pool_objsize), default.ifs);
    let rings = pool((info.nr_ring_pool_objtotal, info.nr_ring_pool_objsize), default.rings);
    let bufs = pool((info.nr_buf_pool_objtotal, info.nr_buf_pool_objsize), default.bufs);
    if info.nr_memsize == 0 {
        return refuse(EINVAL, "EXTMEM needs memory, and this has 0 bytes");
    }
    let invalid = |why| refuse(EINVAL, format!("the pools of EXTMEM are out of bounds: {why}"));
    // A region has at least four buffers.
    let least = Geometry::new(ifs, rings, (4, bufs.1)).or_else(invalid)?;
    let bytes = info.nr_memsize & !4095;
    let room = bytes.saturating_sub(least.bufs.offset) / u64::from(least.bufs.size);
    let fit = u32::try_from(room).unwrap_or(u32::MAX).min(bufs.0);
    if fit < 4 && bufs.0 >= 4 {
        let needed = least.bytes();
        return refuse(ENOMEM, format!("EXTMEM has {bytes} bytes in whole pages, and its pools need {needed}"));
    }
    let geometry = Geometry::new(ifs, rings, (fit, bufs.1)).or_else(invalid)?;
    debug_assert!(geometry.bytes() <= bytes);
    Ok(Sizes { ifs, rings, bufs: (fit, bufs.1) })
}

/// Creates the region that the option requests. It ends with its last port.
pub(super) fn create_region(
    daemon: &mut Daemon,
    option: &NmreqOptExtmem,
    caller: &Caller,
    memory: &mut RegionMemory,
) -> Result<RegionKey, Refusal> {
    let sizes = sizes(&option.nro_info, daemon.knobs.extmem_sizes())?;
    // In a file of its own, so that the program's memory shows nothing else.
    let scope = daemon.admission.scope(caller);
    daemon.check_budget(scope, Amounts::region(sizes.bufs.0))?;
    daemon.registry.regions.create_alone((scope, scope.uid), "extmem", sizes, memory)
}

/// Returns the offsets and sizes of a region's pools, as programs get them.
pub(super) fn pools(daemon: &Daemon, region: RegionKey) -> Option<NmreqPoolsInfo> {
    let record = daemon.registry.regions.get(region)?;
    let geometry = record.region.geometry();
    Some(pools_info(geometry, record.mem_id, geometry.bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::knobs::Knobs;

    fn sizes(info: &NmreqPoolsInfo) -> Result<Sizes, Refusal> {
        super::sizes(info, Knobs::default().extmem_sizes())
    }

    #[test]
    fn sizes_that_are_not_requested_are_netmaps() {
        let sizes = sizes(&NmreqPoolsInfo { nr_memsize: 64 << 20, ..Default::default() }).unwrap();
        assert_eq!((sizes.ifs, sizes.rings, sizes.bufs), ((2, 1024), (4, 20_480), (4098, 2048)));
    }

    #[test]
    fn as_many_buffers_as_fit() {
        let requested = NmreqPoolsInfo { nr_buf_pool_objtotal: 1000, nr_buf_pool_objsize: 4096, ..Default::default() };
        for memsize in [1u64 << 20, (1 << 20) + 4095, 3 << 20, 1 << 40, u64::MAX] {
            let sizes = sizes(&NmreqPoolsInfo { nr_memsize: memsize, ..requested }).unwrap();
            let bytes = Geometry::new(sizes.ifs, sizes.rings, sizes.bufs).unwrap().bytes();
            assert!(bytes <= memsize && sizes.bufs.0 <= 1000 && sizes.bufs.1 == 4096);
            assert!(sizes.bufs.0 == 1000 || bytes + 4096 > memsize & !4095);
        }
        let errno = |memsize, requested: NmreqPoolsInfo| {
            sizes(&NmreqPoolsInfo { nr_memsize: memsize, ..requested }).unwrap_err().errno
        };
        assert_eq!(errno(0, requested), EINVAL);
        assert_eq!(errno(1, requested), ENOMEM);
        assert_eq!(errno(88 << 10, requested), ENOMEM);
        assert_eq!(errno(1 << 30, NmreqPoolsInfo { nr_buf_pool_objtotal: 1, ..requested }), EINVAL);
        assert_eq!(errno(1 << 30, NmreqPoolsInfo { nr_ring_pool_objsize: 100, ..requested }), EINVAL);
        assert_eq!(errno(1 << 30, NmreqPoolsInfo { nr_if_pool_objtotal: u32::MAX, ..requested }), EINVAL);
        // More buffers than a region can have.
        assert_eq!(errno(u64::MAX, NmreqPoolsInfo { nr_buf_pool_objtotal: u32::MAX, ..requested }), EINVAL);
    }
}

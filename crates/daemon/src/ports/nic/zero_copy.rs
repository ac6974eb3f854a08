//! Zero copy: when it is tried, and why an interface copies its packets instead.

use std::io;

use unetmap_core::errno::{EINVAL, EOPNOTSUPP};
use unetmap_sys::link::{self, Link};
use unetmap_sys::xdp::Mode;
use unetmap_sys::xsk::{BindMode, ZERO_COPY_BUFFER};

use super::Nic;
use crate::caller::Caller;

/// Whether the driver of an interface says that it supports zero copy. Kernels before Linux 6.3 say nothing.
pub(crate) fn driver_offers_it(link: &Link, caller: &Caller) -> bool {
    let Some(netns) = &caller.netns else { return false };
    let features = netns.run(|| link::xdp_features(link.index)).and_then(|read| read);
    features.is_ok_and(|known| known.is_some_and(|features| features.zerocopy))
}

impl Nic {
    /// Why zero copy is not tried, if it is not.
    pub(super) fn zero_copy_obstacle(&self, mode: Mode, headroom: u32) -> Option<String> {
        let (index, buffer) = (self.key.index, self.umem.buffer);
        if mode != Mode::Native {
            return Some("the XDP program does not run in the driver".into());
        }
        let features = self.netns.run(|| link::xdp_features(index)).and_then(|read| read);
        if features.is_ok_and(|known| known.is_some_and(|features| !features.zerocopy)) {
            return Some("the driver does not support zero copy".into());
        }
        if self.added_queues > 0 {
            return Some(format!(
                "the driver adds queues while an XDP program is attached, whose zero copy can crash the kernel: let it use \
                 all queues at all times (ethtool -L {} combined MAXIMUM), and open it again",
                self.name
            ));
        }
        if headroom > 0 {
            return Some("zero copy has packets at the start of their buffers, and offsets are requested".into());
        }
        (buffer != ZERO_COPY_BUFFER).then(|| {
            format!(
                "zero copy needs buffers of {ZERO_COPY_BUFFER} bytes, and those of the region have {buffer} (unetmap set \
                 buf_size {ZERO_COPY_BUFFER}, before the first interface is opened)"
            )
        })
    }

    /// What it means that a socket could not be bound with zero copy.
    pub(super) fn zero_copy_refusal(&self, e: &io::Error) -> String {
        let driver = self.netns.run(|| link::driver(&self.name)).and_then(|read| read).ok().flatten();
        let name = driver.map_or_else(|| "the driver".into(), |driver| driver.name);
        match e.raw_os_error() {
            Some(EINVAL) if name == "virtio_net" => {
                "virtio_net refuses zero copy (Invalid argument): the device needs iommu_platform=on".into()
            }
            Some(EOPNOTSUPP) => format!("{name} has no zero copy on this queue (Operation not supported)"),
            _ => format!("{name} refuses zero copy ({e})"),
        }
    }

    /// Why packets are copied, if they are and the driver runs the XDP program.
    pub(crate) fn copy_reason(&self) -> Option<&str> {
        let copies = self.xdp_config.is_some_and(|c| c.mode == Mode::Native && c.bind_mode == BindMode::Copy);
        self.copy_reason.as_deref().filter(|_| copies)
    }
}

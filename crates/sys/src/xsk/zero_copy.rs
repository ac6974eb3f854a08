// SPDX-License-Identifier: BSD-2-Clause
//! Why packets of an interface are copied, in the words that `unetmap doctor`, `unetmap ls` and the daemon's log share.

use std::fmt;
use std::io;

use rustix::io::Errno;

use super::ZERO_COPY_BUFFER;
use crate::kernel;

/// An obstacle to zero copy on an interface.
#[derive(Clone, Copy, Debug)]
pub enum ZeroCopyObstacle<'a> {
    /// The XDP program does not run in the driver.
    NotNative,
    /// The driver reports that it does not support zero copy.
    Unsupported,
    /// The kernel does not report what drivers support.
    Unknown,
    /// The driver of this interface has more queues while an XDP program is attached.
    AddedQueues(&'a str),
    /// The driver sends frames with a wrong header ([`DriverInfo::sends_zero_copy_frames`]).
    ///
    /// [`DriverInfo::sends_zero_copy_frames`]: crate::link::DriverInfo::sends_zero_copy_frames
    WrongHeader,
    /// Packets begin at an offset in their buffers.
    Offsets,
    /// The region has buffers of this size.
    Buffers(u32),
    /// The driver of this name did not bind a socket with zero copy.
    Refused {
        /// `None`: it cannot be read.
        driver: Option<&'a str>,
        /// The kernel's answer.
        error: &'a io::Error,
    },
}

impl fmt::Display for ZeroCopyObstacle<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SIZE: u32 = ZERO_COPY_BUFFER;
        match *self {
            ZeroCopyObstacle::NotNative => f.write_str("the XDP program does not run in the driver"),
            ZeroCopyObstacle::Unsupported => f.write_str("the driver does not support zero copy"),
            ZeroCopyObstacle::Unknown => write!(
                f,
                "{}; on older kernels it is tried in buffers of {SIZE} bytes (unetmap set buf_size {SIZE}, before the \
                 first interface is opened)",
                kernel::ZERO_COPY.requirement()
            ),
            ZeroCopyObstacle::AddedQueues(name) => write!(
                f,
                "the driver adds queues while an XDP program is attached, whose zero copy can crash the kernel: let it \
                 use all queues at all times (ethtool -L {name} combined MAXIMUM), and open it again"
            ),
            ZeroCopyObstacle::WrongHeader => f.write_str(
                "virtio_net, as a module, sends zero-copy frames with a header from a wrong address, and in some boots \
                 none arrives (a fault of the kernel's driver; not where it is built into the kernel)",
            ),
            ZeroCopyObstacle::Offsets => {
                f.write_str("zero copy has packets at the start of their buffers, and offsets are requested")
            }
            ZeroCopyObstacle::Buffers(size) => write!(
                f,
                "zero copy needs buffers of {SIZE} bytes, and those of the region have {size} (unetmap set buf_size \
                 {SIZE}, before the first interface is opened)"
            ),
            ZeroCopyObstacle::Refused { driver, error } => refused(f, driver.unwrap_or("the driver"), error),
        }
    }
}

fn refused(f: &mut fmt::Formatter<'_>, driver: &str, error: &io::Error) -> fmt::Result {
    match Errno::from_io_error(error) {
        Some(Errno::INVAL) if driver == "virtio_net" => write!(
            f,
            "{driver} refuses zero copy ({error}): the device must have VIRTIO_F_ACCESS_PLATFORM (QEMU's \
             iommu_platform=on)"
        ),
        Some(Errno::OPNOTSUPP) => write!(f, "{driver} has no zero copy on this queue ({error})"),
        _ => write!(f, "{driver} refuses zero copy ({error})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_driver_and_the_setting_of_its_device() {
        let says =
            |driver, errno: Errno| ZeroCopyObstacle::Refused { driver, error: &io::Error::from(errno) }.to_string();
        let virtio = says(Some("virtio_net"), Errno::INVAL);
        assert!(virtio.contains("virtio_net refuses") && virtio.contains("iommu_platform=on"), "{virtio}");
        let other = says(Some("igb"), Errno::INVAL);
        assert!(other.starts_with("igb refuses zero copy (Invalid argument") && !other.contains("iommu"), "{other}");
        let unsupported = says(None, Errno::OPNOTSUPP);
        assert!(unsupported.starts_with("the driver has no zero copy on this queue ("), "{unsupported}");
    }
}

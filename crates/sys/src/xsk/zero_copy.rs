// SPDX-License-Identifier: BSD-2-Clause
//! Why packets of an interface are copied, in the words that `unetmap doctor`, `unetmap ls` and the daemon's log share.

use std::fmt;
use std::io;

use rustix::io::Errno;

use super::{Evidence, Verdict, Way, ZERO_COPY_BUFFER};
use crate::kernel;
use crate::link::{DriverInfo, XdpFeatures};

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
    /// Another way was chosen for this interface.
    Chosen(&'a str, Way),
    /// Nothing says that zero copy of this driver works on this kernel, or something says that it does not.
    NoEvidence {
        /// The interface.
        interface: &'a str,
        /// `None`: it reports no name.
        driver: Option<&'a str>,
        /// The evidence that there is.
        evidence: Evidence,
    },
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

/// Returns what speaks against zero copy at an interface, of what is known without opening it. `features`: `None` if
/// the kernel does not report them. `is_proved` tells whether it was proved with a driver on this machine.
pub fn obstacle_known<'a>(
    interface: &'a str,
    way: Way,
    driver: Option<&'a DriverInfo>,
    features: Option<XdpFeatures>,
    is_proved: impl FnOnce(&DriverInfo) -> bool,
) -> Option<ZeroCopyObstacle<'a>> {
    let evidence = || Evidence::of(driver, &kernel::release(), driver.is_some_and(is_proved));
    match (way, features) {
        (Way::Copy | Way::Generic | Way::Packet, _) => Some(ZeroCopyObstacle::Chosen(interface, way)),
        (_, Some(XdpFeatures { zerocopy: false, .. })) => Some(ZeroCopyObstacle::Unsupported),
        (Way::ZeroCopy, _) => None,
        (Way::Auto, _) => match evidence() {
            evidence if evidence.is_for_it() => None,
            evidence => {
                let driver = driver.map(|driver| &*driver.name);
                Some(ZeroCopyObstacle::NoEvidence { interface, driver, evidence })
            }
        },
    }
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
            ZeroCopyObstacle::Chosen(interface, way) => {
                write!(f, "its way is `{}` (unetmap nic {interface} way auto)", way.as_str())
            }
            ZeroCopyObstacle::NoEvidence { interface, driver, evidence } => {
                let driver = driver.unwrap_or("the driver");
                match evidence {
                    Evidence::Row(row) => write!(f, "zero copy of {driver} is not trusted: {}", row.source),
                    Evidence::None | Evidence::Proof => {
                        write!(f, "zero copy of {driver} is not known to work on Linux {}", kernel::release())
                    }
                }?;
                if !matches!(evidence, Evidence::Row(row) if row.verdict == Verdict::ByChance) {
                    write!(f, "; to prove that it works here: unetmap doctor --prove {interface} IF2")?;
                }
                write!(f, "; to use it all the same: unetmap nic {interface} way zero-copy")
            }
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

    #[test]
    fn a_chosen_way_needs_no_evidence() {
        let (name, version) = ("ice".into(), "6.18.0".into());
        let ice = DriverInfo { name, version, firmware: String::new(), bus: String::new(), built_in: false };
        let known = |way, features| obstacle_known("eth0", way, Some(&ice), features, |_| false);
        assert!(obstacle_known("eth0", Way::Auto, Some(&ice), None, |driver| driver.name == "ice").is_none());
        let can = Some(XdpFeatures { zerocopy: true, ..XdpFeatures::default() });
        assert!(known(Way::ZeroCopy, can).is_none() && known(Way::ZeroCopy, None).is_none());
        let why = known(Way::Auto, can).unwrap().to_string();
        assert!(
            why.contains("corrupts the kernel's memory") && why.contains("unetmap nic eth0 way zero-copy"),
            "{why}"
        );
        let cannot = known(Way::ZeroCopy, Some(XdpFeatures::default())).unwrap().to_string();
        assert_eq!(cannot, "the driver does not support zero copy");
        for way in [Way::Copy, Way::Generic, Way::Packet] {
            let why = known(way, can).unwrap().to_string();
            assert!(why.contains(&format!("`{}`", way.as_str())) && why.contains("unetmap nic eth0 way auto"), "{why}");
        }
    }
}

// SPDX-License-Identifier: BSD-2-Clause
//! Driver information, by `SIOCETHTOOL`.

use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::NAME_MAX;

/// `SIOCETHTOOL` of linux/sockios.h.
const SIOCETHTOOL: libc::Ioctl = 0x8946;
/// Commands and flags of linux/ethtool.h.
const ETHTOOL_GDRVINFO: u32 = 0x3;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const ETHTOOL_SCHANNELS: u32 = 0x3d;

/// Number of usable queues: 1 or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Channels {
    /// Receive queues.
    pub rx: u32,
    /// Transmit queues.
    pub tx: u32,
}

/// Queues as the driver reports them, and their maxima.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelSettings {
    /// Queues that only receive.
    pub rx: u32,
    /// Queues that only transmit.
    pub tx: u32,
    /// Pairs of a receive and a transmit queue.
    pub combined: u32,
    /// Maximum of `rx`.
    pub max_rx: u32,
    /// Maximum of `tx`.
    pub max_tx: u32,
    /// Maximum of `combined`.
    pub max_combined: u32,
}

/// A driver.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DriverInfo {
    /// Its name.
    pub name: String,
    /// Its version; the kernel's if it has none.
    pub version: String,
    /// Version of the device's firmware; empty if the driver reports none.
    pub firmware: String,
    /// Where the device is, for instance `0000:01:00.0`; empty if the driver reports nothing.
    pub bus: String,
    /// It is part of the kernel's image, not a module that was loaded. `false` if that cannot be read.
    pub built_in: bool,
}

impl DriverInfo {
    /// Whether received frames of other guests of the same machine have no checksums yet if the driver has checksums
    /// on (`rx-checksum`), and no native XDP program runs, with which it asks its device for finished ones.
    pub fn leaves_checksums(&self) -> bool {
        self.name == "virtio_net"
    }

    /// Whether a native XDP program still runs after a reset of the device, for instance as the interface was down.
    /// vmxnet3 passes all frames to the stack then, and shows the program as attached (Linux 6.12, 6.18 and 7.3).
    pub fn keeps_native_program(&self) -> bool {
        self.name != "vmxnet3"
    }
}

/// `struct ethtool_channels`.
#[derive(Default)]
#[repr(C)]
struct GetChannels {
    command: u32,
    max_rx: u32,
    max_tx: u32,
    max_other: u32,
    max_combined: u32,
    rx: u32,
    tx: u32,
    other: u32,
    combined: u32,
}

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct GetDriver {
    command: u32,
    driver: [u8; 32],
    version: [u8; 32],
    firmware: [u8; 32],
    bus: [u8; 32],
    rest: [u8; 64],
}

const _: () = assert!(size_of::<GetChannels>() == 36 && size_of::<GetDriver>() == 196);

/// Returns the number of queues that carry traffic; 1 and 1 if the driver does not report them.
///
/// # Errors
/// `ENODEV`: no such interface.
pub fn channels(name: &str) -> io::Result<Channels> {
    let set = channel_settings(name)?.unwrap_or_default();
    let sum = |one_way: u32| one_way.saturating_add(set.combined).max(1);
    Ok(Channels { rx: sum(set.rx), tx: sum(set.tx) })
}

/// As [`channels`], in the driver's own terms; `None` if it does not report them.
///
/// # Errors
/// As [`channels`].
pub fn channel_settings(name: &str) -> io::Result<Option<ChannelSettings>> {
    let mut get = GetChannels { command: ETHTOOL_GCHANNELS, ..GetChannels::default() };
    // SAFETY: K5: ETHTOOL_GCHANNELS writes a `struct ethtool_channels`.
    let supported = unsafe { ethtool(name, &mut get) }?;
    let GetChannels { max_rx, max_tx, max_combined, rx, tx, combined, .. } = get;
    Ok(supported.then_some(ChannelSettings { rx, tx, combined, max_rx, max_tx, max_combined }))
}

/// Sets the number of combined queues. `false`: the driver cannot.
///
/// # Errors
/// `ENODEV`: no such interface; `EPERM`: needs `CAP_NET_ADMIN`; the driver's.
pub fn set_combined_channels(name: &str, combined: u32) -> io::Result<bool> {
    let mut set = GetChannels { command: ETHTOOL_GCHANNELS, ..GetChannels::default() };
    // SAFETY: K5: ETHTOOL_GCHANNELS writes a `struct ethtool_channels`.
    if !unsafe { ethtool(name, &mut set) }? {
        return Ok(false);
    }
    (set.command, set.combined) = (ETHTOOL_SCHANNELS, combined);
    // SAFETY: K5: ETHTOOL_SCHANNELS reads a `struct ethtool_channels`.
    unsafe { ethtool(name, &mut set) }
}

/// Returns the interface's driver; `None` if it does not report one.
///
/// # Errors
/// `ENODEV`: no such interface.
pub fn driver(name: &str) -> io::Result<Option<DriverInfo>> {
    let mut get = GetDriver {
        command: ETHTOOL_GDRVINFO,
        driver: [0; 32],
        version: [0; 32],
        firmware: [0; 32],
        bus: [0; 32],
        rest: [0; 64],
    };
    // SAFETY: K5: ETHTOOL_GDRVINFO writes a `struct ethtool_drvinfo`.
    let supported = unsafe { ethtool(name, &mut get) }?;
    let text = super::text;
    Ok(supported.then(|| DriverInfo {
        built_in: is_built_in(&text(&get.driver)),
        name: text(&get.driver),
        version: text(&get.version),
        firmware: text(&get.firmware),
        bus: text(&get.bus),
    }))
}

/// Whether a driver is part of the kernel's image. Its folder in sysfs has a file with its state only if it was loaded
/// (`Documentation/ABI/testing/sysfs-module`).
fn is_built_in(driver: &str) -> bool {
    let folder = Path::new("/sys/module").join(driver);
    folder.is_dir() && !folder.join("initstate").exists()
}

/// Passes `request`, which begins with its command, to the driver. `false`: the driver does not support the command.
///
/// # Safety
/// `T` has the layout that the kernel reads and writes for the command (K5).
pub(super) unsafe fn ethtool<T>(name: &str, request: &mut T) -> io::Result<bool> {
    if name.is_empty() || name.len() > NAME_MAX || name.contains('\0') {
        return Err(Errno::NODEV.into());
    }
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let mut ifr_name = [0; libc::IFNAMSIZ];
    for (to, &from) in ifr_name.iter_mut().zip(name.as_bytes()) {
        *to = from as libc::c_char;
    }
    let ifr_ifru = libc::__c_anonymous_ifr_ifru { ifru_data: (&raw mut *request).cast() };
    let mut ifreq = libc::ifreq { ifr_name, ifr_ifru };
    // SAFETY: K1, K5: the name is NUL-terminated; the request outlives the call and has the layout that the caller
    // guarantees.
    if unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut ifreq) } >= 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(false),
        error => Err(error),
    }
}

//! What a driver says of itself, by `SIOCETHTOOL`.

use std::io;
use std::os::fd::AsRawFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::NAME_MOST;

/// `SIOCETHTOOL` of linux/sockios.h.
const SIOCETHTOOL: libc::Ioctl = 0x8946;
/// Of linux/ethtool.h.
const ETHTOOL_GDRVINFO: u32 = 0x3;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const ETHTOOL_STXCSUM: u32 = 0x17;
const ETHTOOL_GFLAGS: u32 = 0x25;
const ETHTOOL_SFLAGS: u32 = 0x26;
const ETH_FLAG_TXVLAN: u32 = 1 << 7;

/// Queues that can be used: 1 or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Channels {
    /// Receive queues.
    pub rx: u32,
    /// Transmit queues.
    pub tx: u32,
}

/// Queues as the driver counts them, and how many it could have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelSettings {
    /// Queues that only receive.
    pub rx: u32,
    /// Queues that only transmit.
    pub tx: u32,
    /// Pairs of a receive and a transmit queue.
    pub combined: u32,
    /// The most of `rx`.
    pub max_rx: u32,
    /// The most of `tx`.
    pub max_tx: u32,
    /// The most of `combined`.
    pub max_combined: u32,
}

/// A driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverInfo {
    /// Its name.
    pub name: String,
    /// Its version, the kernel's if it has none of its own.
    pub version: String,
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

/// `struct ethtool_value`.
#[repr(C)]
struct Value {
    command: u32,
    data: u32,
}

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct GetDriver {
    command: u32,
    driver: [u8; 32],
    version: [u8; 32],
    rest: [u8; 128],
}

const _: () = assert!(size_of::<Value>() == 8 && size_of::<GetChannels>() == 36 && size_of::<GetDriver>() == 196);

/// The interface's queues that carry traffic; 1 and 1 where the driver does not say.
///
/// # Errors
/// `ENODEV`: no such interface.
pub fn channels(name: &str) -> io::Result<Channels> {
    let set = channel_settings(name)?.unwrap_or_default();
    let sum = |one_way: u32| one_way.saturating_add(set.combined).max(1);
    Ok(Channels { rx: sum(set.rx), tx: sum(set.tx) })
}

/// As [`channels`], in the driver's own terms; `None` where it does not say.
///
/// # Errors
/// As [`channels`].
pub fn channel_settings(name: &str) -> io::Result<Option<ChannelSettings>> {
    let mut get = GetChannels { command: ETHTOOL_GCHANNELS, ..GetChannels::default() };
    // SAFETY: ETHTOOL_GCHANNELS writes a `struct ethtool_channels`.
    let said = unsafe { ethtool(name, &mut get) }?;
    let GetChannels { max_rx, max_tx, max_combined, rx, tx, combined, .. } = get;
    Ok(said.then_some(ChannelSettings { rx, tx, combined, max_rx, max_tx, max_combined }))
}

/// The interface's driver; `None` where there is none to tell.
///
/// # Errors
/// `ENODEV`: no such interface.
pub fn driver(name: &str) -> io::Result<Option<DriverInfo>> {
    let mut get = GetDriver { command: ETHTOOL_GDRVINFO, driver: [0; 32], version: [0; 32], rest: [0; 128] };
    // SAFETY: ETHTOOL_GDRVINFO writes a `struct ethtool_drvinfo`.
    let said = unsafe { ethtool(name, &mut get) }?;
    let text = super::text;
    Ok(said.then(|| DriverInfo { name: text(&get.driver), version: text(&get.version) }))
}

/// Has the kernel finish the checksums of what it sends into the interface, and cut what is longer than the MTU, as no
/// hardware follows that would (`ethtool -K NAME tx off`). Needs `CAP_NET_ADMIN`.
///
/// # Errors
/// `ENODEV`: no such interface; `EPERM`: needs `CAP_NET_ADMIN`; `EOPNOTSUPP`: it cannot be changed.
pub fn finish_checksums(name: &str) -> io::Result<()> {
    let mut off = Value { command: ETHTOOL_STXCSUM, data: 0 };
    // SAFETY: ETHTOOL_STXCSUM reads a `struct ethtool_value`.
    match unsafe { ethtool(name, &mut off) }? {
        true => Ok(()),
        false => Err(Errno::OPNOTSUPP.into()),
    }
}

/// Has the kernel put VLAN tags into the frames that it sends into the interface, as no hardware follows that would
/// (`ethtool -K NAME txvlan off`). Needs `CAP_NET_ADMIN`.
///
/// # Errors
/// As [`finish_checksums`].
pub fn keep_tags(name: &str) -> io::Result<()> {
    let mut flags = Value { command: ETHTOOL_GFLAGS, data: 0 };
    // SAFETY: ETHTOOL_GFLAGS writes, and ETHTOOL_SFLAGS reads, a `struct ethtool_value`.
    let known = unsafe { ethtool(name, &mut flags) }?;
    if known && flags.data & ETH_FLAG_TXVLAN == 0 {
        return Ok(());
    }
    let mut without = Value { command: ETHTOOL_SFLAGS, data: flags.data & !ETH_FLAG_TXVLAN };
    // SAFETY: as above.
    match known && unsafe { ethtool(name, &mut without) }? {
        true => Ok(()),
        false => Err(Errno::OPNOTSUPP.into()),
    }
}

/// Hands `request`, which begins with its command, to the driver. `false`: the driver does not have this command.
///
/// # Safety
/// `T` is what the kernel reads and writes for the command.
pub(super) unsafe fn ethtool<T>(name: &str, request: &mut T) -> io::Result<bool> {
    if name.is_empty() || name.len() > NAME_MOST || name.contains('\0') {
        return Err(Errno::NODEV.into());
    }
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let mut ifr_name = [0; libc::IFNAMSIZ];
    for (to, &from) in ifr_name.iter_mut().zip(name.as_bytes()) {
        *to = from as libc::c_char;
    }
    let ifr_ifru = libc::__c_anonymous_ifr_ifru { ifru_data: (&raw mut *request).cast() };
    let mut ifreq = libc::ifreq { ifr_name, ifr_ifru };
    // SAFETY: the name ends with a NUL, and the request is alive and what the caller promises.
    if unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut ifreq) } == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(false),
        error => Err(error),
    }
}

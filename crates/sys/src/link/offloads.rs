// SPDX-License-Identifier: BSD-2-Clause
//! Offloads: work on frames that the network stack leaves to an interface, as `ethtool -k` shows it. What reads or
//! writes an interface's frames beside the stack needs frames as they are on the wire, hence some offloads off.

use std::io;

use rustix::io::Errno;

use super::ethtool::ethtool;

/// Commands, a string set and a length of linux/ethtool.h.
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GFEATURES: u32 = 0x3a;
const ETHTOOL_SFEATURES: u32 = 0x3b;
const ETH_SS_FEATURES: u32 = 4;
const ETH_GSTRING_LEN: usize = 32;
/// Most offloads that are read: the bits of a [`Offloads`]. Linux 6.18 has 67.
const MAX_OFFLOADS: usize = 128;
const WORDS: usize = MAX_OFFLOADS / 32;

/// A set of offloads of one kernel: a bit for each, by its number. The numbers are constant until the machine restarts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offloads(pub u128);

/// Offloads that a user of frames must disable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffloadKind {
    /// VLAN tags of received frames: the driver removes them from the frame and reports them beside it.
    ReceivedTags,
    /// GRO: the stack merges received TCP segments of a connection before a generic XDP program sees them.
    Merging,
    /// Everything by which frames arrive otherwise than they were on the wire, or unfinished: removal of tags, merging
    /// by the stack, the driver or the device, and checksums that are left to the receiver.
    Received,
    /// VLAN tags, checksums and segmentation of frames that the stack sends: the frames reach the interface without
    /// tags and checksums, and longer than its MTU.
    Transmit,
}

impl OffloadKind {
    fn includes(self, name: &str) -> bool {
        match self {
            OffloadKind::ReceivedTags => matches!(name, "rx-vlan-hw-parse" | "rx-vlan-stag-hw-parse"),
            OffloadKind::Merging => name == "rx-gro",
            OffloadKind::Received => {
                let merges = matches!(name, "rx-lro" | "rx-gro-hw" | "rx-gro-list" | "rx-checksum");
                merges || OffloadKind::ReceivedTags.includes(name) || OffloadKind::Merging.includes(name)
            }
            OffloadKind::Transmit => {
                matches!(name, "tx-vlan-hw-insert" | "tx-vlan-stag-hw-insert" | "tx-gso-list")
                    || name.starts_with("tx-checksum-")
                    || name.starts_with("tx-") && name.ends_with("-segmentation")
            }
        }
    }
}

/// An offload that is on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ActiveOffload {
    /// The kernel's name.
    pub name: String,
    /// Whether the driver says that it can be switched off.
    pub changeable: bool,
}

/// `struct ethtool_sset_info` with one number.
#[repr(C)]
struct SetInfo {
    command: u32,
    reserved: u32,
    mask: u64,
    count: u32,
    padding: u32,
}

/// `struct ethtool_gstrings`.
#[repr(C)]
struct Strings {
    command: u32,
    set: u32,
    count: u32,
    names: [[u8; ETH_GSTRING_LEN]; MAX_OFFLOADS],
}

/// `struct ethtool_get_features_block`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct GetWord {
    available: u32,
    requested: u32,
    active: u32,
    never_changed: u32,
}

/// `struct ethtool_gfeatures`.
#[repr(C)]
struct GetFeatures {
    command: u32,
    size: u32,
    words: [GetWord; WORDS],
}

/// `struct ethtool_set_features_block`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct SetWord {
    valid: u32,
    requested: u32,
}

/// `struct ethtool_sfeatures`.
#[repr(C)]
struct SetFeatures {
    command: u32,
    size: u32,
    words: [SetWord; WORDS],
}

const _: () = assert!(size_of::<SetInfo>() == 24 && size_of::<Strings>() == 12 + ETH_GSTRING_LEN * MAX_OFFLOADS);
const _: () = assert!(size_of::<GetFeatures>() == 8 + 16 * WORDS && size_of::<SetFeatures>() == 8 + 8 * WORDS);

/// Returns the name and the state of each offload of interface `name`, by its number; `None` if they cannot be read,
/// or the kernel has more than 128.
///
/// # Errors
/// `ENODEV`: no such interface.
fn features(name: &str) -> io::Result<Option<(Vec<String>, [GetWord; WORDS])>> {
    let mut info =
        SetInfo { command: ETHTOOL_GSSET_INFO, reserved: 0, mask: 1 << ETH_SS_FEATURES, count: 0, padding: 0 };
    // SAFETY: K5: ETHTOOL_GSSET_INFO writes one number, as one bit of the mask is set.
    if !unsafe { ethtool(name, &mut info) }? || info.mask == 0 || info.count as usize > MAX_OFFLOADS {
        return Ok(None);
    }
    let mut strings = Strings {
        command: ETHTOOL_GSTRINGS,
        set: ETH_SS_FEATURES,
        count: info.count,
        names: [[0; ETH_GSTRING_LEN]; MAX_OFFLOADS],
    };
    // SAFETY: K5: ETHTOOL_GSTRINGS writes one name for each offload, at most MAX_OFFLOADS.
    let named = unsafe { ethtool(name, &mut strings) }?;
    let mut get = GetFeatures { command: ETHTOOL_GFEATURES, size: WORDS as u32, words: Default::default() };
    // SAFETY: K5: ETHTOOL_GFEATURES writes at most `size` words.
    if !named || !unsafe { ethtool(name, &mut get) }? {
        return Ok(None);
    }
    let names = strings.names.iter().take(info.count as usize).map(|name| super::text(&name[..]));
    Ok(Some((names.collect(), get.words)))
}

/// Returns the offloads of `kind` that are requested of interface `name` and can be changed.
///
/// # Errors
/// `ENODEV`: no such interface; `EOPNOTSUPP`: a kernel with more than 128 offloads.
pub fn changeable_offloads(name: &str, kind: OffloadKind) -> io::Result<Offloads> {
    let (names, words) = features(name)?.ok_or(Errno::OPNOTSUPP)?;
    let bits = names.iter().enumerate().filter(|(bit, name)| {
        let word = words[bit / 32];
        (word.available & word.requested & 1 << (bit % 32)) != 0 && kind.includes(name)
    });
    Ok(Offloads(bits.fold(0, |all, (bit, _)| all | 1 << bit)))
}

/// Returns the kernel's names of the offloads of interface `name` that are on; empty if they cannot be read.
///
/// # Errors
/// `ENODEV`: no such interface.
pub fn active_offloads(name: &str) -> io::Result<Vec<String>> {
    let Some((names, words)) = features(name)? else { return Ok(Vec::new()) };
    let named = names.into_iter().enumerate();
    let on = named.filter(|(bit, name)| words[bit / 32].active & 1 << (bit % 32) != 0 && !name.is_empty());
    Ok(on.map(|(_, name)| name).collect())
}

/// Returns the offloads of `kind` that are on at interface `name`; none if they cannot be read.
///
/// # Errors
/// `ENODEV`: no such interface.
pub fn active_of(name: &str, kind: OffloadKind) -> io::Result<Vec<ActiveOffload>> {
    let Some((names, words)) = features(name)? else { return Ok(Vec::new()) };
    let named = names.into_iter().enumerate().filter(|(_, name)| kind.includes(name));
    Ok(named
        .map(|(bit, name)| (name, words[bit / 32], 1 << (bit % 32)))
        .filter(|(_, word, bit)| word.active & bit != 0)
        .map(|(name, word, bit)| ActiveOffload { name, changeable: word.available & bit != 0 })
        .collect())
}

/// Returns the names of those offloads of `which` that are on at interface `name`: a driver may refuse to change some
/// and report success.
///
/// # Errors
/// `ENODEV`: no such interface.
pub fn still_active(name: &str, which: Offloads) -> io::Result<Vec<String>> {
    let Some((names, words)) = features(name)? else { return Ok(Vec::new()) };
    let named = names.into_iter().enumerate().filter(|(bit, _)| which.0 & 1 << bit != 0);
    Ok(named.filter(|(bit, _)| words[bit / 32].active & 1 << (bit % 32) != 0).map(|(_, name)| name).collect())
}

/// Enables or disables offloads of interface `name`. Needs `CAP_NET_ADMIN`.
///
/// # Errors
/// `ENODEV`: no such interface; `EPERM`: needs `CAP_NET_ADMIN`; `EOPNOTSUPP`: they cannot be changed.
pub fn set_offloads(name: &str, which: Offloads, enabled: bool) -> io::Result<()> {
    if which == Offloads::default() {
        return Ok(());
    }
    let mut get = GetFeatures { command: ETHTOOL_GFEATURES, size: WORDS as u32, words: Default::default() };
    // SAFETY: K5: ETHTOOL_GFEATURES writes at most `size` words, and to `size` how many it has.
    let known = unsafe { ethtool(name, &mut get) }?;
    let mut set = SetFeatures { command: ETHTOOL_SFEATURES, size: get.size, words: Default::default() };
    for (i, word) in set.words.iter_mut().enumerate() {
        let valid = (which.0 >> (32 * i)) as u32;
        *word = SetWord { valid, requested: if enabled { valid } else { 0 } };
    }
    // SAFETY: K5: ETHTOOL_SFEATURES reads `size` words, at most those of `set`.
    match known && get.size as usize <= WORDS && unsafe { ethtool(name, &mut set) }? {
        true => Ok(()),
        false => Err(Errno::OPNOTSUPP.into()),
    }
}

/// Disables the offloads of `kind` of interface `name`; returns those that were enabled. Needs `CAP_NET_ADMIN`.
///
/// # Errors
/// The errors of [`changeable_offloads`] and [`set_offloads`].
pub fn disable_offloads(name: &str, kind: OffloadKind) -> io::Result<Offloads> {
    let enabled = changeable_offloads(name, kind)?;
    set_offloads(name, enabled, false).map(|()| enabled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_select_offloads_by_name() {
        for name in ["tx-checksum-ip-generic", "tx-tcp6-segmentation", "tx-udp-segmentation", "tx-vlan-stag-hw-insert"]
        {
            assert!(OffloadKind::Transmit.includes(name) && !OffloadKind::ReceivedTags.includes(name), "{name}");
        }
        for name in ["rx-checksum", "rx-vlan-filter", "tx-scatter-gather", "highdma", "rx-gro"] {
            assert!(!OffloadKind::Transmit.includes(name) && !OffloadKind::ReceivedTags.includes(name), "{name}");
        }
        assert!(OffloadKind::ReceivedTags.includes("rx-vlan-hw-parse"));
        assert!(OffloadKind::Merging.includes("rx-gro") && !OffloadKind::Merging.includes("rx-gro-hw"));
    }

    #[test]
    fn loopback_has_offloads() {
        let on = active_offloads("lo").unwrap();
        assert!(on.iter().any(|name| name == "tx-lockless" || name == "netns-local" || name == "highdma"), "{on:?}");
        assert!(active_offloads("no such").is_err());
    }
}

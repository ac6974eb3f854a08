// SPDX-License-Identifier: BSD-2-Clause
//! Ways of an interface's packets, and the table of drivers that [`Way::Auto`] decides by.
//!
//! With zero copy the driver and its device write into the buffers of programs. A driver that is wrong there writes
//! into other memory of the kernel, or sends what nobody asked for. That it says to support zero copy is no evidence:
//! so `auto` copies, unless a row of the table, or a proof on this machine, is for the driver on this kernel.

use crate::kernel::Version;
use crate::link::DriverInfo;

/// How an interface's packets are to get into the buffers of programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Way {
    /// Zero copy where there is evidence for it, else the best that remains.
    #[default]
    Auto,
    /// Never zero copy.
    Copy,
    /// Zero copy only.
    ZeroCopy,
    /// The XDP program runs before the network stack, never in the driver.
    Generic,
    /// No XDP program and no AF_XDP socket: packet sockets, by the daemon.
    Packet,
}

impl Way {
    /// All of them, the default first.
    pub const ALL: [Way; 5] = [Way::Auto, Way::Copy, Way::ZeroCopy, Way::Generic, Way::Packet];

    /// Its word in commands, in the file of switches and in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Way::Auto => "auto",
            Way::Copy => "copy",
            Way::ZeroCopy => "zero-copy",
            Way::Generic => "generic",
            Way::Packet => "packet",
        }
    }

    /// The way of this word.
    pub fn parse(word: &str) -> Option<Way> {
        Way::ALL.into_iter().find(|way| way.as_str() == word)
    }
}

/// The state of the knowledge about a driver's zero copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It works.
    Trusted,
    /// It was reported to fail: only a proof on the machine itself says otherwise.
    Reported,
    /// It works or fails by chance, other in each boot, so that no proof holds.
    ByChance,
}

/// A row of the table.
#[derive(Debug, PartialEq, Eq)]
pub struct DriverRow {
    /// The driver's name, as `ethtool -i` shows it.
    pub driver: &'static str,
    /// The first and the last kernel.
    kernels: (Version, Version),
    /// Only where the driver is a module.
    as_module: bool,
    /// The verdict.
    pub verdict: Verdict,
    /// The facts; at the end in parentheses the place where they can be read.
    pub source: &'static str,
}

const FIRST: Version = Version(0, 0);
const LAST: Version = Version(u32::MAX, u32::MAX);

/// A row for all kernels.
const fn reported(driver: &'static str, source: &'static str) -> DriverRow {
    DriverRow { driver, kernels: (FIRST, LAST), as_module: false, verdict: Verdict::Reported, source }
}

/// A row for some kernels, and the driver that is part of their source.
const fn trusted(driver: &'static str, kernels: (Version, Version), source: &'static str) -> DriverRow {
    DriverRow { driver, kernels, as_module: false, verdict: Verdict::Trusted, source }
}

/// Drivers of which more is known than that they have zero copy. The first row that fits decides. Issues and pull
/// requests are those of GitHub.
pub static DRIVERS: [DriverRow; 10] = [
    DriverRow {
        kernels: (Version(6, 14), Version(6, 19)),
        ..reported(
            "igb",
            "with at most half of the queues that the card has, one that ran out of buffers receives nothing any more, as its \
             wakeup goes to another interrupt (docs/notebook/0162-wakeups-of-igb-go-to-another-interrupt.md, Linux \
             6.18.15; Linux commit d4c13ab36273)",
        )
    },
    trusted(
        "igb",
        (Version(7, 0), Version(7, 3)),
        "a proof finds nothing on Linux 7.3.4 in QEMU's igb \
         (docs/notebook/0162-wakeups-of-igb-go-to-another-interrupt.md, 2026-11-28)",
    ),
    trusted(
        "i40e",
        (Version(5, 19), LAST),
        "Firedancer sends and receives by it in production (firedancer-io/firedancer 11246, 2026-09-01)",
    ),
    trusted(
        "mlx5_core",
        (Version(6, 1), LAST),
        "Firedancer sends and receives by it in production (firedancer-io/firedancer 11246, 2026-09-01)",
    ),
    reported(
        "ice",
        "it corrupts the kernel's memory, and panics when sockets close under load (firedancer-io/firedancer 11245, \
         2026-09-01; intel/ethernet-linux-ice 59, 61)",
    ),
    reported(
        "ena",
        "memory is corrupted under load, and the device resets itself (amzn/amzn-drivers 330, 221; closed without a cause)",
    ),
    reported(
        "gve",
        "a socket that closes makes the kernel use memory that was given back \
         (GoogleCloudPlatform/compute-virtual-ethernet-linux 96, 2026-08-10)",
    ),
    reported("st_gmac", STMMAC),
    reported("st_xgmac", STMMAC),
    DriverRow {
        driver: "virtio_net",
        kernels: (FIRST, LAST),
        as_module: true,
        verdict: Verdict::ByChance,
        source: "as a module it sends frames with a header from a wrong address, and in some boots none arrives \
                 (docs/notebook/0110-virtio-net-copies-as-a-module.md, Linux 6.18 and 7.3)",
    },
];

const STMMAC: &str = "a queue receives nothing any more after a program was slow for once (analogdevicesinc/linux 3517, \
                      2026-08-31)";

/// The evidence about a driver's zero copy on this kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// A row of the table.
    Row(&'static DriverRow),
    /// A proof on this machine.
    Proof,
    /// Neither for nor against it.
    None,
}

impl Evidence {
    /// The evidence about a driver on a kernel of this release. `is_proved`: on this machine.
    pub fn of(driver: Option<&DriverInfo>, release: &str, is_proved: bool) -> Evidence {
        let (Some(driver), Some(version)) = (driver, Version::parse(release)) else { return Evidence::None };
        let fits = |row: &&DriverRow| {
            let is_meant = match row.verdict {
                // Drivers that come with a kernel have its release as version; others are not what was looked at.
                Verdict::Trusted => driver.version == release,
                Verdict::Reported | Verdict::ByChance => true,
            };
            row.driver == driver.name
                && (row.kernels.0..=row.kernels.1).contains(&version)
                && !(row.as_module && driver.built_in)
                && is_meant
        };
        match DRIVERS.iter().find(fits) {
            Some(row) if row.verdict != Verdict::Reported || !is_proved => Evidence::Row(row),
            _ if is_proved => Evidence::Proof,
            _ => Evidence::None,
        }
    }

    /// Whether `auto` uses zero copy.
    pub fn is_for_it(self) -> bool {
        matches!(self, Evidence::Proof | Evidence::Row(DriverRow { verdict: Verdict::Trusted, .. }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn driver(name: &str, version: &str, built_in: bool) -> DriverInfo {
        let (firmware, bus) = (String::new(), String::new());
        DriverInfo { name: name.into(), version: version.into(), firmware, bus, built_in }
    }

    fn verdict(driver: &DriverInfo, release: &str) -> Option<Verdict> {
        match Evidence::of(Some(driver), release, false) {
            Evidence::Row(row) => Some(row.verdict),
            Evidence::None => None,
            Evidence::Proof => panic!("nothing was proved"),
        }
    }

    #[test]
    fn ways_have_words() {
        assert!(Way::ALL.into_iter().all(|way| Way::parse(way.as_str()) == Some(way)));
        assert_eq!((Way::parse("zerocopy"), Way::default()), (None, Way::Auto));
    }

    #[test]
    fn only_drivers_of_kernels_that_were_looked_at_are_trusted() {
        let on = |name, release| verdict(&driver(name, release, false), release);
        assert_eq!(on("igb", "6.18.15+deb13-amd64"), Some(Verdict::Reported));
        assert_eq!((on("igb", "6.19.6"), on("igb", "7.0.4")), (Some(Verdict::Reported), Some(Verdict::Trusted)));
        assert_eq!(on("igb", "7.3.4+deb13-amd64"), Some(Verdict::Trusted));
        // One has no zero copy; and one of 7.4 is not known yet.
        assert_eq!((on("igb", "6.13.0"), on("igb", "7.4.0")), (None, None));
        assert_eq!((on("i40e", "6.1.0-18-amd64"), on("i40e", "5.15.0")), (Some(Verdict::Trusted), None));
        assert_eq!(
            (on("ice", "7.0.0-15-generic"), on("ice", "9.1.0")),
            (Some(Verdict::Reported), Some(Verdict::Reported))
        );
        assert_eq!((on("ixgbe", "6.18.0"), on("", "6.18.0"), on("igb", "odd")), (None, None, None));
        // A driver from elsewhere has a version of its own.
        assert_eq!(verdict(&driver("mlx5_core", "24.10-1.1.4", false), "6.8.0"), None);
        assert_eq!(verdict(&driver("ice", "2.2.8", false), "6.8.0"), Some(Verdict::Reported));
        assert_eq!(Evidence::of(None, "6.18.0", false), Evidence::None);
    }

    #[test]
    fn a_proof_outweighs_reports_but_not_chance() {
        let proved = |name| Evidence::of(Some(&driver(name, "6.18.0", false)), "6.18.0", true);
        assert_eq!(
            (proved("ice"), proved("ixgbe"), proved("igb")),
            (Evidence::Proof, Evidence::Proof, Evidence::Proof)
        );
        assert!(matches!(proved("i40e"), Evidence::Row(row) if row.verdict == Verdict::Trusted));
        assert!(matches!(proved("virtio_net"), Evidence::Row(row) if row.verdict == Verdict::ByChance));
        assert!(proved("ice").is_for_it() && !proved("virtio_net").is_for_it());
    }

    #[test]
    fn virtio_net_fails_by_chance_as_a_module_alone() {
        assert_eq!(verdict(&driver("virtio_net", "1.0.0", false), "6.18.0"), Some(Verdict::ByChance));
        assert_eq!(verdict(&driver("virtio_net", "1.0.0", true), "6.18.0"), None);
    }

    #[test]
    fn each_row_has_its_source() {
        for row in &DRIVERS {
            let (seen, source) = row.source.split_once(" (").expect(row.driver);
            assert!(seen.len() > 20 && source.ends_with(')'), "{}: {}", row.driver, row.source);
            assert!(source.contains(|c: char| c.is_ascii_digit()), "{}: no number, no date: {source}", row.driver);
            assert!(row.kernels.0 <= row.kernels.1);
        }
    }
}

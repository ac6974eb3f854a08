// SPDX-License-Identifier: BSD-2-Clause
//! Which kernel each feature needs. Refusals, `unetmap doctor` and README's table are made from [`FEATURES`].
//!
//! Distributions add features to older kernels, so a feature that can be tried is tried: the version only explains why
//! the attempt failed.

use std::fmt;
use std::fmt::Write as _;
use std::fs;
use std::sync::LazyLock;

/// A kernel version: major and minor number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32);

impl Version {
    /// Parses the version at the beginning of a release such as `6.1.0-18-amd64`.
    pub fn parse(release: &str) -> Option<Version> {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit());
        Some(Version(numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// A feature, and the kernel that it needs.
#[derive(Debug, PartialEq, Eq)]
pub struct Feature {
    /// A short name, for `unetmap doctor`.
    pub key: &'static str,
    /// The first version that has what the feature needs.
    pub least: Version,
    /// The subject of the sentence "... need Linux 6.6".
    pub subject: &'static str,
    /// Build options of the kernel; empty: every kernel of that version has it.
    pub config: &'static str,
    /// The README's text about it, as an item of a list.
    pub summary: &'static str,
}

/// Channels, regions and doorbells: `memfd`, `membarrier`, pidfds. 5.10 is the oldest kernel that is tested.
pub const PIPES: Feature = Feature {
    key: "kernel: pipes",
    least: Version(5, 10),
    subject: "pipes and switches",
    config: "",
    summary: "pipes, VALE switches between programs, monitors of these, `unetmap run`; interfaces by packet sockets",
};

/// The XDP program calls `bpf_ktime_get_coarse_ns`; sockets of one buffer pool are on several queues (5.10).
pub const INTERFACES: Feature = Feature {
    key: "kernel: interfaces",
    least: Version(5, 11),
    subject: "interfaces by AF_XDP",
    config: "CONFIG_XDP_SOCKETS, CONFIG_BPF_SYSCALL and CONFIG_BPF_JIT",
    summary: "interfaces by AF_XDP, through the daemon (mediated, attached to switches), persistent ports",
};

/// A process that did not create a socket can map its rings.
pub const DIRECT: Feature = Feature {
    key: "kernel: direct",
    least: Version(6, 4),
    subject: "interfaces without the daemon (direct access)",
    config: "",
    summary: "interfaces without the daemon (direct)",
};

/// `SO_PREFER_BUSY_POLL`.
pub const BUSY_POLL: Feature = Feature {
    key: "kernel: busy poll",
    least: Version(5, 11),
    subject: "busy-polling sockets",
    config: "CONFIG_NET_RX_BUSY_POLL",
    summary: "`unetmap nic IF busy-poll`",
};

/// The kernel reports which drivers support it. On older kernels it is tried with `buf_size` 4096.
pub const ZERO_COPY: Feature = Feature {
    key: "kernel: zero copy",
    least: Version(6, 3),
    subject: "zero-copy interfaces",
    config: "",
    summary: "zero copy, where the driver supports it",
};

/// `XDP_USE_SG`.
pub const LARGE_FRAMES: Feature = Feature {
    key: "kernel: large frames",
    least: Version(6, 6),
    subject: "frames of several buffers",
    config: "",
    summary: "frames of several buffers",
};

/// tcx.
pub const HOST_RINGS: Feature = Feature {
    key: "kernel: host rings",
    least: Version(6, 6),
    subject: "host rings",
    config: "CONFIG_NET_XGRESS and CONFIG_VETH",
    summary: "host rings (`eth0^`, `vale-ctl -h`); complete frames of taps, bridges, bonds",
};

/// tcx.
pub const KERNEL_PATH: Feature = Feature {
    key: "kernel: persistent ports",
    least: Version(6, 6),
    subject: "packets between persistent ports that stay in the kernel",
    config: "CONFIG_NET_XGRESS and CONFIG_VETH",
    summary: "packets between persistent ports of a switch stay in the kernel (the knob `vale_kernel`)",
};

/// FUSE passthrough: the file's memory is the regions'.
pub const NODE: Feature = Feature {
    key: "kernel: node",
    least: Version(6, 9),
    subject: "nodes (/dev/netmap)",
    config: "CONFIG_FUSE_FS and CONFIG_FUSE_PASSTHROUGH",
    summary: "`unetmap node`",
};

/// Chains of nftables are hooked into interfaces that get a name later.
pub const CLOSED_NAMES: Feature = Feature {
    key: "kernel: closed names",
    least: Version(6, 16),
    subject: "names of interfaces that stay closed",
    config: "CONFIG_NF_TABLES_NETDEV and CONFIG_NETFILTER_EGRESS",
    summary: "`unetmap nic IF failure closed` also for the next interface of that name",
};

/// All features, the oldest kernel first.
pub static FEATURES: [&Feature; 10] = [
    &PIPES,
    &INTERFACES,
    &BUSY_POLL,
    &ZERO_COPY,
    &DIRECT,
    &LARGE_FRAMES,
    &HOST_RINGS,
    &KERNEL_PATH,
    &NODE,
    &CLOSED_NAMES,
];

impl Feature {
    /// Returns the sentence that says which kernel it needs, without a full stop.
    pub fn requirement(&self) -> String {
        let Feature { least, subject, config, .. } = self;
        match config.is_empty() {
            true => format!("{subject} need Linux {least} or newer"),
            false => format!("{subject} need Linux {least} or newer with {config}"),
        }
    }

    /// As [`Feature::requirement`], for a kernel that was found to lack it.
    pub fn refusal(&self) -> String {
        self.refusal_on(&release())
    }

    fn refusal_on(&self, release: &str) -> String {
        match Version::parse(release) {
            Some(version) if version < self.least => {
                format!("{} need Linux {} or newer, and this is Linux {release}", self.subject, self.least)
            }
            _ => format!("{}; this kernel (Linux {release}) cannot do it", self.requirement()),
        }
    }

    /// Whether the running kernel is too old. A kernel whose version cannot be read is not.
    pub fn is_newer_than_kernel(&self) -> bool {
        Version::parse(&release()).is_some_and(|version| version < self.least)
    }
}

/// Returns the running kernel's release, as printed by `uname -r`; empty if it cannot be read. It is read once.
pub fn release() -> String {
    static RELEASE: LazyLock<String> =
        LazyLock::new(|| fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned());
    RELEASE.clone()
}

/// Returns README's table: what works from which version on.
pub fn table() -> String {
    let mut text = String::from("| Linux | works from this version on |\n|---|---|\n");
    let mut rest = &FEATURES[..];
    while let Some(first) = rest.first() {
        let count = rest.iter().take_while(|feature| feature.least == first.least).count();
        let summaries: Vec<&str> = rest[..count].iter().map(|feature| feature.summary).collect();
        // Writes to a String cannot fail.
        let _ = writeln!(text, "| {} | {} |", first.least, summaries.join("; "));
        rest = &rest[count..];
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_parsed_and_compared() {
        for (release, version) in [
            ("6.18.44-fc-v669", Some(Version(6, 18))),
            ("5.10.0-9-amd64", Some(Version(5, 10))),
            ("6.7-rc3", Some(Version(6, 7))),
            ("6", None),
            ("", None),
            ("x.1", None),
        ] {
            assert_eq!(Version::parse(release), version, "{release}");
        }
        assert!(Version(6, 10) > Version(6, 9) && Version(5, 99) < Version(6, 0));
        assert!(Version::parse(&release()).is_some());
    }

    #[test]
    fn features_are_sorted_by_version() {
        assert!(FEATURES.is_sorted_by_key(|feature| feature.least), "{FEATURES:?}");
        assert_eq!(table().lines().count(), 2 + 7, "{}", table());
    }

    #[test]
    fn a_refusal_names_the_version_or_the_build_option() {
        for (feature, release, says) in [
            (
                &INTERFACES,
                "5.10.0-32-amd64",
                "interfaces by AF_XDP need Linux 5.11 or newer, and this is Linux 5.10.0-32-amd64",
            ),
            (&HOST_RINGS, "6.1.0-50-amd64", "host rings need Linux 6.6 or newer, and this is Linux 6.1.0-50-amd64"),
            (
                &BUSY_POLL,
                "6.12.1",
                "busy-polling sockets need Linux 5.11 or newer with CONFIG_NET_RX_BUSY_POLL; this kernel (Linux \
                 6.12.1) cannot do it",
            ),
            (
                &LARGE_FRAMES,
                "?",
                "frames of several buffers need Linux 6.6 or newer; this kernel (Linux ?) cannot do it",
            ),
        ] {
            assert_eq!(feature.refusal_on(release), says);
        }
    }
}

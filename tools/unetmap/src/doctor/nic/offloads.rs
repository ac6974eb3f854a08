// SPDX-License-Identifier: BSD-2-Clause
//! The fate of offloads while a port is open: one line for each.

use super::super::Check;

/// Which offloads of the sender or of the driver concern a port's frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Offloads {
    /// A driver's. Whether it removes VLAN tags from received frames.
    Driver { removes_tags: bool },
    /// A veth's. Whether its peer leaves tags, checksums and segmentation to hardware that does not exist; `None`: the
    /// peer's network namespace was not found.
    Veth { incomplete: Option<bool> },
    /// Any, of an interface whose frames the kernel completes on their way to the port.
    Relayed,
    /// An interface of this kind on top of others, which remove the tag below it; before Linux 6.6.
    Upper { kind: String },
    /// A virtual machine's or a program's; before Linux 6.6.
    Tap,
}

/// Returns a line for each offload, with its effect on received frames. No port needs any of them.
pub(super) fn checks(offloads: &Offloads, name: &str) -> Vec<Check> {
    lines(offloads, name).into_iter().map(Check::optional).collect()
}

fn lines(offloads: &Offloads, name: &str) -> Vec<Check> {
    let (tags, checksums, segments, merged) = ("VLAN tags", "checksums", "TSO, GSO", "LRO, GRO");
    let off = "switched off while a port is open (software GRO in generic mode, where it would merge frames)";
    match offloads {
        Offloads::Driver { removes_tags } => vec![
            Check::ok(
                tags,
                match removes_tags {
                    true => "removed by the driver: switched off while a port is open, so that they are in the frames",
                    false => "in the frames",
                },
            ),
            Check::ok(checksums, "in the frames, as on the wire; not verified"),
            Check::ok(segments, "as on the wire"),
            Check::ok(merged, off),
        ],
        Offloads::Veth { incomplete: Some(incomplete) } => {
            let state = if *incomplete { "left out by the peer: switched off there while a port is open" } else { "" };
            let line = |what, complete: &str| Check::ok(what, if *incomplete { state } else { complete });
            vec![
                line(tags, "in the frames"),
                line(checksums, "in the frames"),
                line(segments, "frames are cut by the peer"),
                Check::ok(merged, off),
            ]
        }
        Offloads::Veth { incomplete: None } => {
            let unknown = |what, lack: &str| {
                let check =
                    Check::unknown(what, format!("{lack}, if the peer, whose namespace is not found, offloads them"));
                check.fix("in that namespace: ethtool -K PEER tx off tso off txvlan off")
            };
            vec![
                unknown(tags, "missing in the frames"),
                unknown(checksums, "missing in the frames"),
                unknown(segments, "frames longer than the MTU"),
                Check::ok(merged, off),
            ]
        }
        Offloads::Relayed => [tags, checksums, segments, merged]
            .map(|what| Check::ok(what, "completed by the kernel before the port gets the frame"))
            .into(),
        Offloads::Upper { kind } => vec![
            Check::unknown(tags, format!("missing in the frames: removed below this interface ({kind})"))
                .fix(format!("open the interfaces below {name}")),
            Check::ok(checksums, "as below this interface"),
            Check::ok(segments, "as below this interface"),
            Check::unknown(merged, "TCP segments are merged if the interfaces below do so")
                .fix("ethtool -K gro off, for each of them"),
        ],
        Offloads::Tap => {
            let guest = "in the frames unless the virtual machine offloads them";
            vec![
                Check::ok(tags, "in the frames"),
                Check::unknown(checksums, guest).fix("in the virtual machine: ethtool -K IF tx off"),
                Check::unknown(segments, "frames longer than the MTU if the virtual machine offloads segmentation")
                    .fix("in the virtual machine: ethtool -K IF tso off gso off"),
                Check::ok(merged, off),
            ]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_interface_has_a_line_for_each_offload() {
        let all = [
            Offloads::Driver { removes_tags: true },
            Offloads::Driver { removes_tags: false },
            Offloads::Veth { incomplete: Some(true) },
            Offloads::Veth { incomplete: Some(false) },
            Offloads::Veth { incomplete: None },
            Offloads::Relayed,
            Offloads::Upper { kind: "bridge".into() },
            Offloads::Tap,
        ];
        for offloads in all {
            let checks = checks(&offloads, "eth0");
            let names: Vec<_> = checks.iter().map(|check| check.what).collect();
            assert_eq!(names, ["VLAN tags", "checksums", "TSO, GSO", "LRO, GRO"], "{offloads:?}");
            assert!(checks.iter().all(|check| !check.text.is_empty() && !check.blocks()), "{offloads:?}");
        }
    }
}

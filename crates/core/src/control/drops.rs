// SPDX-License-Identifier: BSD-2-Clause
//! The reasons for which frames are dropped: the one list that `unetmap ls --json`, `top`, metrics, `doctor` and the
//! manual page unetmap-metrics(7) have.

/// Why a frame reaches no program, or a part of its receivers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DropReason {
    /// Its first slot is shorter than an Ethernet header.
    Runt,
    /// A slot's buffer does not exist, its length exceeds the buffer, or its virtio-net header does not match the
    /// packet.
    InvalidSlot,
    /// It has more slots than a packet may have, or more bytes.
    TooManyFragments,
    /// Its destination is behind the port that sent it.
    SamePort,
    /// The destination port does not exist, or there is no other port at all (in its VLAN).
    NoDestination,
    /// A filter refuses it: of the sending port, or of the receiving one.
    Filter,
    /// The sending port, or the destination port, is not in its VLAN.
    Vlan,
    /// The sending port exceeds its limit of flooded packets.
    StormLimit,
    /// A rate limit is exceeded: of the sending port, or of the receiving one.
    RateLimit,
    /// The switch thread panicked; counted in slots.
    SwitchFault,
    /// The receive ring has no room: its program does not read, or too slowly.
    NoRoom,
    /// The daemon crashed before it was counted.
    Crash,
    /// The interface is closed, and no program took it.
    Closed,
    /// The interface has no free buffer: its program returns none, or too slowly.
    NoBuffer,
    /// The companion of the interface has no room.
    Companion,
}

impl DropReason {
    /// Reasons for which a packet that a switch port sends reaches no port, in the order of their discriminants.
    pub const SENT: [DropReason; 10] = *DropReason::ALL.first_chunk().expect("ten reasons");

    /// Reasons for which a packet does not reach a switch port that it was for.
    pub const RECEIVED: [DropReason; 5] =
        [DropReason::NoRoom, DropReason::Filter, DropReason::RateLimit, DropReason::InvalidSlot, DropReason::Crash];

    /// All reasons, in the order of their discriminants.
    pub const ALL: [DropReason; 15] = [
        DropReason::Runt,
        DropReason::InvalidSlot,
        DropReason::TooManyFragments,
        DropReason::SamePort,
        DropReason::NoDestination,
        DropReason::Filter,
        DropReason::Vlan,
        DropReason::StormLimit,
        DropReason::RateLimit,
        DropReason::SwitchFault,
        DropReason::NoRoom,
        DropReason::Crash,
        DropReason::Closed,
        DropReason::NoBuffer,
        DropReason::Companion,
    ];

    /// Returns its key in the daemon's JSON reports and in metrics, which is part of their documented format.
    pub const fn name(self) -> &'static str {
        match self {
            DropReason::Runt => "short",
            DropReason::InvalidSlot => "bad",
            DropReason::TooManyFragments => "long",
            DropReason::SamePort => "home",
            DropReason::NoDestination => "nobody",
            DropReason::Filter => "filter",
            DropReason::Vlan => "vlan",
            DropReason::StormLimit => "storm",
            DropReason::RateLimit => "rate",
            DropReason::SwitchFault => "fault",
            DropReason::NoRoom => "room",
            DropReason::Crash => "crash",
            DropReason::Closed => "closed",
            DropReason::NoBuffer => "buffer",
            DropReason::Companion => "companion",
        }
    }

    /// Returns a sentence about it, which the manual page has, too.
    pub const fn meaning(self) -> &'static str {
        match self {
            DropReason::Runt => "It is shorter than an Ethernet header.",
            DropReason::InvalidSlot => {
                "A slot has no valid buffer or length, or the virtio-net header does not match the packet."
            }
            DropReason::TooManyFragments => "It has more slots or bytes than a packet may have.",
            DropReason::SamePort => "Its destination is behind the port that sent it.",
            DropReason::NoDestination => "No port has its destination, or there is no other port (in its VLAN).",
            DropReason::Filter => "A filter refuses it.",
            DropReason::Vlan => "The sending port, or the destination, is not in its VLAN.",
            DropReason::StormLimit => "The sending port exceeds its limit of flooded packets.",
            DropReason::RateLimit => "A rate limit is exceeded.",
            DropReason::SwitchFault => "The switch failed; counted in slots.",
            DropReason::NoRoom => "The receive ring has no room: its program does not read, or too slowly.",
            DropReason::Crash => "The daemon crashed before it was counted for its port.",
            DropReason::Closed => "The interface is closed, and no program took it.",
            DropReason::NoBuffer => "The interface has no free buffer: its program returns none, or too slowly.",
            DropReason::Companion => "The veth pair beside the interface, which completes its frames, has no room.",
        }
    }
}

// SPDX-License-Identifier: BSD-2-Clause
//! How many queues an interface has. virtio_net has more while an XDP program is attached, and `ethtool -L` changes the
//! number at any time; but the rings of a port stay the same while it is open.
//!
//! The queues that virtio_net adds receive, but its transmit interrupt ignores them (`is_xdp_raw_buffer_queue`), and
//! what a socket sends there does not arrive: so they have no transmit rings. With zero copy they would crash Linux
//! 6.18 when a program is attached again (`try_fill_recv`, NULL pointer; it seems to keep the memory of the closed
//! socket, as the queues leave with the program): so packets are copied.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use unetmap_sys::link::Channels;

use crate::threads::lock;
use crate::tuning::nic::MAX_RINGS;

/// By namespace and index: the queues of an interface without an XDP program, and with one.
type WithAndWithout = BTreeMap<(u64, u32), (Channels, Channels)>;

pub(super) type SavedCounts = Vec<((u64, u32), (Channels, Channels))>;

/// The interfaces whose number of queues changed when an XDP program was attached.
#[derive(Clone, Default)]
pub(crate) struct QueueCounts(Arc<Mutex<WithAndWithout>>);

impl QueueCounts {
    /// Returns the queues that an interface is going to have: it has `now`, and no port is open.
    pub(crate) fn once_attached(&self, netns: u64, index: u32, now: Channels) -> Channels {
        let known = lock(&self.0);
        known.get(&(netns, index)).filter(|(without, _)| *without == now).map_or(now, |(_, with)| *with)
    }

    /// All of them, as a successor of the daemon takes them.
    pub(super) fn save(&self) -> SavedCounts {
        let known = lock(&self.0);
        known.iter().map(|(link, counts)| (*link, *counts)).collect()
    }

    pub(super) fn restore(&self, saved: SavedCounts) {
        lock(&self.0).extend(saved);
    }

    pub(super) fn insert(&self, netns: u64, index: u32, counts: (Channels, Channels)) {
        lock(&self.0).insert((netns, index), counts);
    }

    /// The interface has gone.
    pub(crate) fn remove(&self, netns: u64, index: u32) {
        lock(&self.0).remove(&(netns, index));
    }
}

/// Returns the queues that are usable of `all`, where the XDP program's attachment added `added` of them.
pub(super) fn usable(all: Channels, added: u32) -> Channels {
    Channels { tx: all.tx.saturating_sub(added).max(1), ..all }
}

/// Returns the rings for a number of queues.
pub(super) fn rings(queues: u32) -> u16 {
    queues.clamp(1, MAX_RINGS) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_queues_only_receive() {
        let all = Channels { rx: 4, tx: 4 };
        assert_eq!((usable(all, 2), usable(all, 0)), (Channels { rx: 4, tx: 2 }, all));
        assert_eq!(usable(Channels { rx: 1, tx: 1 }, 2), Channels { rx: 1, tx: 1 });
    }

    #[test]
    fn the_queues_with_a_program_are_remembered_until_the_interface_changes() {
        let (counts, of) = (QueueCounts::default(), |n| Channels { rx: n, tx: n });
        assert_eq!(counts.once_attached(1, 2, of(2)), of(2));
        counts.clone().insert(1, 2, (of(2), of(4)));
        assert_eq!((counts.once_attached(1, 2, of(2)), counts.once_attached(1, 2, of(1))), (of(4), of(1)));
        assert_eq!((counts.once_attached(1, 3, of(2)), counts.once_attached(2, 2, of(2))), (of(2), of(2)));
        counts.remove(1, 2);
        assert_eq!(counts.once_attached(1, 2, of(2)), of(2));
    }
}

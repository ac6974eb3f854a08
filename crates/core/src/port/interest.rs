// SPDX-License-Identifier: BSD-2-Clause
//! Receiving, transmitting, or both.

/// The directions that a program waits for, or that are ready.
///
/// ```
/// use unetmap::Interest;
///
/// let want = Interest::RX | Interest::TX;
/// assert!(want.rx() && want.tx() && want == Interest::BOTH);
/// assert!(Interest::NONE.is_none());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Interest(u8);

impl Interest {
    /// No direction.
    pub const NONE: Interest = Interest(0);
    /// Packets to read.
    pub const RX: Interest = Interest(1);
    /// Free slots to fill.
    pub const TX: Interest = Interest(2);
    /// Both directions.
    pub const BOTH: Interest = Interest(3);

    /// Whether it includes receiving.
    #[inline(always)]
    pub fn rx(self) -> bool {
        self.0 & 1 != 0
    }

    /// Whether it includes transmitting.
    #[inline(always)]
    pub fn tx(self) -> bool {
        self.0 & 2 != 0
    }

    /// Whether it includes no direction.
    #[inline(always)]
    pub fn is_none(self) -> bool {
        self.0 == 0
    }
}

impl std::ops::BitOr for Interest {
    type Output = Interest;
    #[inline(always)]
    fn bitor(self, other: Interest) -> Interest {
        Interest(self.0 | other.0)
    }
}

impl std::ops::BitOrAssign for Interest {
    #[inline(always)]
    fn bitor_assign(&mut self, other: Interest) {
        *self = *self | other;
    }
}

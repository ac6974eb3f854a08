// SPDX-License-Identifier: BSD-2-Clause
//! The part of a state that completes a connection's handshake for the server.

/// How far a proxied connection is, in its state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Proxy {
    pub(crate) phase: Phase,
    pub(crate) scales: Scales,
    /// The client's window, as it was when its cookie came.
    pub(crate) window: u16,
    /// `Opening`: the client's first sequence number. `Open`: the timestamps that the client has less the server's.
    pub(crate) isn: u32,
    /// `Opening`: the cookie. `Open`: the cookie less the server's first sequence number.
    pub(crate) offset: u32,
}

impl Proxy {
    /// Of a connection that is not proxied.
    pub(crate) const NONE: Proxy = Proxy { phase: Phase::None, scales: Scales::NONE, window: 0, isn: 0, offset: 0 };
}

/// Window scales of the client (low half) and of the server (high half).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scales(u8);

/// The half of an end that scales no windows. The largest scale is 14.
const UNSCALED: u8 = 15;

impl Default for Scales {
    fn default() -> Scales {
        Scales::NONE
    }
}

impl Scales {
    /// Of a connection whose client was offered none.
    pub(crate) const NONE: Scales = Scales(UNSCALED << 4 | UNSCALED);

    /// Of the client, if it scales its windows.
    pub(crate) fn of_client(scale: Option<u8>) -> Scales {
        Scales(UNSCALED << 4 | scale.filter(|&scale| scale < UNSCALED).unwrap_or(UNSCALED))
    }

    /// With that of the server.
    pub(crate) fn with_server(self, scale: Option<u8>) -> Scales {
        Scales(self.0 & 15 | scale.filter(|&scale| scale < UNSCALED).unwrap_or(UNSCALED) << 4)
    }

    pub(crate) fn client(self) -> Option<u8> {
        Some(self.0 & 15).filter(|&scale| scale < UNSCALED)
    }

    pub(crate) fn server(self) -> Option<u8> {
        Some(self.0 >> 4).filter(|&scale| scale < UNSCALED)
    }

    /// Returns a window of the client as the server reads it, which may scale none.
    pub(crate) fn to_server(self, window: u16) -> u16 {
        match (self.client(), self.server()) {
            (Some(scale), None) => scaled(window, scale, 0),
            _ => window,
        }
    }

    /// Returns a window of the server as the client reads it, which was told another scale.
    pub(crate) fn to_client(self, window: u16, told: u8) -> u16 {
        match self.client() {
            Some(_) => scaled(window, self.server().unwrap_or(0), told),
            None => window,
        }
    }
}

/// Returns a window in units of another scale, as far as that can say it.
pub(crate) fn scaled(window: u16, from: u8, to: u8) -> u16 {
    u16::try_from(u64::from(window) << from >> to).unwrap_or(u16::MAX)
}

/// The steps of a proxied connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Phase {
    #[default]
    None,
    /// The client exists; the server has not answered.
    Opening,
    Open,
}

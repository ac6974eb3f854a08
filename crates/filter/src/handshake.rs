// SPDX-License-Identifier: BSD-2-Clause
//! What a state has of a connection whose handshake is completed for the server.

/// How far a proxied connection is, in its state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Proxy {
    pub(crate) phase: Phase,
    /// The client's window, as it was when its cookie came.
    pub(crate) window: u16,
    /// The client's first sequence number.
    pub(crate) isn: u32,
    /// `Opening`: the cookie. `Open`: the cookie less the server's first sequence number.
    pub(crate) offset: u32,
}

impl Proxy {
    /// Of a connection that is not proxied.
    pub(crate) const NONE: Proxy = Proxy { phase: Phase::None, window: 0, isn: 0, offset: 0 };
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

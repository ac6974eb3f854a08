// SPDX-License-Identifier: BSD-2-Clause
//! Framing of the control socket: one UNIX seqpacket message each, a fixed head and a payload.
//!
//! The table of messages stands in [`super`]. Each request is one type: its number, encoding and decoding are its
//! [`ControlRequest`] implementation. The receiver validates everything: a head that does not fit its message is an
//! error.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// "unm" and the format of the head.
pub const MAGIC: u32 = 0x756e_6d31;
/// Changes with every change of a payload.
pub const VERSION: u16 = 11;
/// The longest request, bytes: the longest filter of an interface, and the head.
pub const MAX_REQUEST: usize = 40 << 10;
/// The longest reply, bytes.
pub const MAX_REPLY: usize = 65536;

/// The number of a message type. A request type declares its own as [`ControlRequest::KIND`]; its reply has the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kind(pub u16);

impl Kind {
    /// Not a request: more file descriptors for the reply before.
    pub const MORE_FDS: Kind = Kind(4);
}

/// A request that a client sends to the daemon.
pub trait ControlRequest: Sized {
    /// The number that identifies the type in a message's head; unique among all requests.
    const KIND: Kind;

    /// Returns the payload.
    fn encode(&self) -> Vec<u8>;

    /// Parses a payload.
    ///
    /// # Errors
    /// netmap's errno if the payload is not a valid request of this type.
    fn decode(payload: &[u8]) -> Result<Self, i32>;
}

/// The head of every message.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Head {
    magic: u32,
    version: u16,
    kind: u16,
    /// Bytes of the whole message.
    bytes: u32,
    /// In a reply: 0, or netmap's errno.
    pub errno: i32,
    /// In a reply: file descriptors that come with it, some perhaps in [`Kind::MORE_FDS`] messages.
    pub fds: u32,
    /// In a reply to a `LockHolderRequest`: the holder ID.
    pub holder: u32,
    /// Chosen by the client and repeated in the reply. Processes that share a connection use it to discard a reply to a
    /// process that was killed before it received it.
    pub tag: u32,
}

/// Bytes of the head.
pub const HEAD_BYTES: usize = size_of::<Head>();

/// Why bytes are not a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// Shorter than its head states, or than a head.
    Truncated,
    /// Longer than its head states, or than allowed.
    Oversized,
    /// Not of this protocol.
    Foreign,
    /// Of another version of this protocol.
    Version(u16),
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Malformed::Truncated => f.write_str("the control message is shorter than its head states"),
            Malformed::Oversized => f.write_str("the control message is longer than its head states or than allowed"),
            Malformed::Foreign => f.write_str("not a control message of unetmap"),
            Malformed::Version(theirs) => write!(
                f,
                "the program uses version {theirs} of the control protocol, the daemon version {VERSION} \
                 (install both from one release, and stop the old daemon)"
            ),
        }
    }
}

/// Encodes a message with tag 0.
pub fn encode(kind: Kind, errno: i32, fds: usize, holder: u32, payload: &[u8]) -> Vec<u8> {
    encode_tagged(0, kind, errno, fds, holder, payload)
}

/// Encodes a message.
pub fn encode_tagged(tag: u32, kind: Kind, errno: i32, fds: usize, holder: u32, payload: &[u8]) -> Vec<u8> {
    let bytes = HEAD_BYTES + payload.len();
    let head =
        Head { magic: MAGIC, version: VERSION, kind: kind.0, bytes: bytes as u32, errno, fds: fds as u32, holder, tag };
    let mut out = Vec::with_capacity(bytes);
    out.extend_from_slice(head.as_bytes());
    out.extend_from_slice(payload);
    out
}

/// Splits a message into its type, head and payload. The type can be any number: the daemon's dispatch table rejects
/// those that no request has, as [`Malformed::Foreign`].
///
/// # Errors
/// [`Malformed`] if the bytes are not one whole message of this protocol and version.
pub fn decode(bytes: &[u8]) -> Result<(Kind, Head, &[u8]), Malformed> {
    let (head, payload) = Head::read_from_prefix(bytes).map_err(|_| Malformed::Truncated)?;
    if head.magic != MAGIC {
        return Err(Malformed::Foreign);
    }
    if head.version != VERSION {
        return Err(Malformed::Version(head.version));
    }
    match (head.bytes as usize).cmp(&bytes.len()) {
        std::cmp::Ordering::Greater => Err(Malformed::Truncated),
        std::cmp::Ordering::Less => Err(Malformed::Oversized),
        std::cmp::Ordering::Equal => Ok((Kind(head.kind), head, payload)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KIND: Kind = Kind(2);

    #[test]
    fn a_message_survives_encoding_and_decoding() {
        let bytes = encode_tagged(9, KIND, 22, 3, 7, b"payload");
        let (kind, head, payload) = decode(&bytes).unwrap();
        assert_eq!((kind, head.errno, head.fds, head.holder, payload), (KIND, 22, 3, 7, &b"payload"[..]));
        assert_eq!(head.tag, 9);
    }

    #[test]
    fn each_defect_has_its_own_error() {
        let good = encode(KIND, 0, 0, 0, b"payload");
        assert_eq!(decode(&good[..10]).unwrap_err(), Malformed::Truncated);
        assert_eq!(decode(&good[..good.len() - 1]).unwrap_err(), Malformed::Truncated);
        let mut longer = good.clone();
        longer.push(0);
        assert_eq!(decode(&longer).unwrap_err(), Malformed::Oversized);
        let mut foreign = good.clone();
        foreign[0] ^= 1;
        assert_eq!(decode(&foreign).unwrap_err(), Malformed::Foreign);
        let mut newer = good.clone();
        newer[4] = 99;
        assert_eq!(decode(&newer).unwrap_err(), Malformed::Version(99));
        let mut unknown = good;
        unknown[6] = 99;
        assert_eq!(decode(&unknown).unwrap().0, Kind(99), "the dispatch table rejects it");
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
        }
    }
}

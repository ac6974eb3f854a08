//! The control socket's messages: one UNIX seqpacket message each, a fixed head and a payload.
//!
//! ```text
//! client                                daemon
//!   Lease                        -->     lease number: names this process in the locks of rings
//!   Ctrl: a netmap request       -->     the same request, answered; for REGISTER also what was bound, and its fds
//!   Unbind                       -->     nothing: what REGISTER bound on this connection is given back
//!   Attach                       -->     what REGISTER answered on this connection, and its fds, again
//!   Nic                          -->     a memfd with what the daemon knows of an interface, as JSON; see `nic`
//!   Vale                         -->     a memfd with what the daemon knows of a switch, as JSON; see `vale::ask`
//!   Node                         -->     a memfd with how /dev/netmap is, as JSON; see `node`
//!   Knobs                        -->     a memfd with what the daemon's knobs are, as JSON; see `knobs`
//!   Watchers                     -->     the next monitor of a session, and the fds of its shelf; see `watch`
//!   Snapshot                     -->     a memfd with everything that `unetmap ls` shows, as JSON
//! ```
//! Everything here is judged by the receiver: a head that does not fit its message is an error, never a guess.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// "unm" and the format of the head.
pub const MAGIC: u32 = 0x756e_6d31;
/// Changes with every change of a payload.
pub const VERSION: u16 = 9;
/// The longest request, bytes: the longest filter of an interface, and the head.
pub const MAX_REQUEST: usize = 40 << 10;
/// The longest answer, bytes.
pub const MAX_ANSWER: usize = 65536;

/// What a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum Kind {
    /// A process asks for the number that names it in locks. The connection stays open while the process lives.
    Lease = 1,
    /// A netmap request.
    Ctrl = 2,
    /// Everything about the daemon's ports.
    Snapshot = 3,
    /// More file descriptors for the answer before.
    MoreFds = 4,
    /// A process that holds a connection with a port, and knows nothing of it, asks what was bound.
    Attach = 5,
    /// About an interface: how it is, and which frames are to enter its port.
    Nic = 6,
    /// About the node, `/dev/netmap`: how it is, and whether it is to be there.
    Node = 7,
    /// A program asks who watches a port that it has open.
    Watchers = 8,
    /// A program takes back the REGISTER of this connection, which stays open.
    Unbind = 9,
    /// About the daemon's knobs: what they are, and what one is to be.
    Knobs = 10,
    /// About a switch: how it is, and what its owner sets.
    Vale = 11,
}

impl Kind {
    fn from_raw(raw: u16) -> Option<Kind> {
        use Kind::{Attach, Ctrl, Knobs, Lease, MoreFds, Nic, Node, Snapshot, Unbind, Vale, Watchers};
        let all = [Lease, Ctrl, Snapshot, MoreFds, Attach, Nic, Node, Watchers, Unbind, Knobs, Vale];
        all.into_iter().find(|k| *k as u16 == raw)
    }
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
    /// In an answer: 0, or netmap's errno.
    pub errno: i32,
    /// In an answer: file descriptors that come with it, some perhaps in `MoreFds` messages.
    pub fds: u32,
    /// In an answer to `Lease`: the lease.
    pub lease: u32,
    /// The asker's, and the same in the answer: who shares a connection with one that died may find an answer to that
    /// one's question.
    pub tag: u32,
}

/// Bytes of the head.
pub const HEAD_BYTES: usize = size_of::<Head>();

/// What is wrong with a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// Shorter than its head says, or than a head.
    Truncated,
    /// Longer than its head says, or than allowed.
    Oversized,
    /// Not of this protocol.
    Foreign,
    /// Of another version of this protocol.
    Version(u16),
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Malformed::Truncated => f.write_str("the control message is shorter than it says"),
            Malformed::Oversized => f.write_str("the control message is longer than it says or than is allowed"),
            Malformed::Foreign => f.write_str("not a control message of unetmap"),
            Malformed::Version(theirs) => write!(
                f,
                "the program speaks version {theirs} of the control protocol, the daemon {VERSION} \
                 (install both from one release, and end the old daemon)"
            ),
        }
    }
}

/// Makes a message, with tag 0.
pub fn message(kind: Kind, errno: i32, fds: usize, lease: u32, payload: &[u8]) -> Vec<u8> {
    tagged(0, kind, errno, fds, lease, payload)
}

/// Makes a message.
pub fn tagged(tag: u32, kind: Kind, errno: i32, fds: usize, lease: u32, payload: &[u8]) -> Vec<u8> {
    let bytes = HEAD_BYTES + payload.len();
    let head = Head {
        magic: MAGIC,
        version: VERSION,
        kind: kind as u16,
        bytes: bytes as u32,
        errno,
        fds: fds as u32,
        lease,
        tag,
    };
    let mut out = Vec::with_capacity(bytes);
    out.extend_from_slice(head.as_bytes());
    out.extend_from_slice(payload);
    out
}

/// Takes a message apart.
pub fn open(bytes: &[u8]) -> Result<(Kind, Head, &[u8]), Malformed> {
    let (head, payload) = Head::read_from_prefix(bytes).map_err(|_| Malformed::Truncated)?;
    if head.magic != MAGIC {
        return Err(Malformed::Foreign);
    }
    if head.version != VERSION {
        return Err(Malformed::Version(head.version));
    }
    match (head.bytes as usize).cmp(&bytes.len()) {
        std::cmp::Ordering::Greater => return Err(Malformed::Truncated),
        std::cmp::Ordering::Less => return Err(Malformed::Oversized),
        std::cmp::Ordering::Equal => {}
    }
    let kind = Kind::from_raw(head.kind).ok_or(Malformed::Foreign)?;
    Ok((kind, head, payload))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_message_comes_back_as_it_was() {
        let bytes = tagged(9, Kind::Ctrl, 22, 3, 7, b"payload");
        let (kind, head, payload) = open(&bytes).unwrap();
        assert_eq!((kind, head.errno, head.fds, head.lease, payload), (Kind::Ctrl, 22, 3, 7, &b"payload"[..]));
        assert_eq!(head.tag, 9);
    }

    #[test]
    fn each_fault_is_told_apart() {
        let good = message(Kind::Ctrl, 0, 0, 0, b"payload");
        assert_eq!(open(&good[..10]).unwrap_err(), Malformed::Truncated);
        assert_eq!(open(&good[..good.len() - 1]).unwrap_err(), Malformed::Truncated);
        let mut longer = good.clone();
        longer.push(0);
        assert_eq!(open(&longer).unwrap_err(), Malformed::Oversized);
        let mut foreign = good.clone();
        foreign[0] ^= 1;
        assert_eq!(open(&foreign).unwrap_err(), Malformed::Foreign);
        let mut newer = good.clone();
        newer[4] = 99;
        assert_eq!(open(&newer).unwrap_err(), Malformed::Version(99));
        let mut unknown = good;
        unknown[6] = 99;
        assert_eq!(open(&unknown).unwrap_err(), Malformed::Foreign);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_never_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = open(&bytes);
        }
    }
}

// SPDX-License-Identifier: BSD-2-Clause
//! The control protocol between programs and the daemon: requests, replies, and what they describe. Shared by both
//! sides.
//!
//! Each request is one type that implements [`ControlRequest`]; the daemon dispatches them from one table.
//!
//! ```text
//! client                          daemon
//!                          <--     an errno and the reason, if the user is not served: nothing was read, and the
//!                                  connection is closed
//!   HelloRequest           -->     nothing: the user is served
//!   LockHolderRequest      -->     a holder ID, which identifies this process in the locks of rings
//!   NetmapRequest          -->     the same request, answered; for REGISTER also the binding and its descriptors
//!   UnbindRequest          -->     nothing: the port that REGISTER bound on this connection is released
//!   AttachRequest          -->     the reply to REGISTER on this connection, with its descriptors, again
//!   ServesRequest          -->     nothing: what the process serves with the port is known; see `serves`
//!   NicRequest             -->     the state of an interface, as JSON; see `nic`
//!   ValeRequest            -->     the state of a switch, as JSON; see `vale`
//!   NodeRequest            -->     the state of /dev/netmap, as JSON; see `node`
//!   KnobRequest            -->     the daemon's knobs, as JSON; see `sysctl`
//!   NextMonitorRequest     -->     the next monitor of a session, and the descriptors of its mirror; see `monitor`
//!   PeerDoorbellsRequest   -->     the doorbells of the other end of a session's pipe, one for each of its rings
//!   SnapshotRequest        -->     everything that `unetmap ls` shows, as JSON
//!   EventsRequest          -->     what has happened since an event, as JSON; see `events`
//!   StopRequest            -->     what is open, as JSON, and whether the daemon ends; see `stop`
//! ```
//! JSON stands in the reply; one that is too long for it, in a memfd. The daemon reads the next request of a connection
//! when the reply has been received.

pub(crate) mod again;
pub(crate) mod asked;
pub mod binding;
pub mod client;
pub mod drops;
pub mod events;
pub mod ioctl;
pub mod legacy;
pub mod monitor;
pub mod nic;
pub mod node;
pub mod proofs;
pub mod request;
pub mod serves;
pub mod session;
pub mod stop;
pub mod sysctl;
pub mod trusted_file;
pub mod vale;
pub mod wire;

pub use events::EventsRequest;
pub use monitor::NextMonitorRequest;
pub use nic::NicRequest;
pub use node::NodeRequest;
pub use request::NetmapRequest;
pub use serves::ServesRequest;
pub use session::{
    AttachRequest, HelloRequest, LockHolderRequest, PeerDoorbellsRequest, SnapshotRequest, UnbindRequest,
};
pub use stop::StopRequest;
pub use sysctl::KnobRequest;
pub use vale::ValeRequest;
pub use wire::{ControlRequest, Kind};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_numbers_are_unique() {
        let kinds = [
            Kind::MORE_FDS,
            AttachRequest::KIND,
            EventsRequest::KIND,
            HelloRequest::KIND,
            KnobRequest::KIND,
            LockHolderRequest::KIND,
            NetmapRequest::KIND,
            NextMonitorRequest::KIND,
            NicRequest::KIND,
            NodeRequest::KIND,
            PeerDoorbellsRequest::KIND,
            ServesRequest::KIND,
            SnapshotRequest::KIND,
            StopRequest::KIND,
            UnbindRequest::KIND,
            ValeRequest::KIND,
        ];
        let mut numbers = kinds.map(|kind| kind.0);
        numbers.sort_unstable();
        assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]);
    }
}

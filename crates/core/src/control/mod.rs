//! The control protocol between programs and the daemon: requests, replies, and what they describe. Shared by both
//! sides.
//!
//! Each request is one type that implements [`ControlRequest`]; the daemon dispatches them from one table.
//!
//! ```text
//! client                          daemon
//!   LockHolderRequest      -->     a holder ID, which identifies this process in the locks of rings
//!   NetmapRequest          -->     the same request, answered; for REGISTER also the binding and its descriptors
//!   UnbindRequest          -->     nothing: the port that REGISTER bound on this connection is released
//!   AttachRequest          -->     the reply to REGISTER on this connection, with its descriptors, again
//!   NicRequest             -->     a memfd with the state of an interface, as JSON; see `nic`
//!   ValeRequest            -->     a memfd with the state of a switch, as JSON; see `vale`
//!   NodeRequest            -->     a memfd with the state of /dev/netmap, as JSON; see `node`
//!   KnobRequest            -->     a memfd with the daemon's knobs, as JSON; see `sysctl`
//!   NextMonitorRequest     -->     the next monitor of a session, and the descriptors of its mirror; see `monitor`
//!   SnapshotRequest        -->     a memfd with everything that `unetmap ls` shows, as JSON
//! ```

pub mod binding;
pub mod client;
pub mod ioctl;
pub mod legacy;
pub mod monitor;
pub mod nic;
pub mod node;
pub mod request;
pub mod session;
pub mod sysctl;
pub mod vale;
pub mod wire;

pub use monitor::NextMonitorRequest;
pub use nic::NicRequest;
pub use node::NodeRequest;
pub use request::NetmapRequest;
pub use session::{AttachRequest, LockHolderRequest, SnapshotRequest, UnbindRequest};
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
            KnobRequest::KIND,
            LockHolderRequest::KIND,
            NetmapRequest::KIND,
            NextMonitorRequest::KIND,
            NicRequest::KIND,
            NodeRequest::KIND,
            SnapshotRequest::KIND,
            UnbindRequest::KIND,
            ValeRequest::KIND,
        ];
        let mut numbers = kinds.map(|kind| kind.0);
        numbers.sort_unstable();
        assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
    }
}

//! The control protocol between programs and the daemon: requests, replies, and what they describe. Shared by both
//! sides.
//!
//! Each request is one type that implements [`ControlRequest`]; the daemon dispatches them from one table.

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

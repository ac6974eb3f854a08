//! The control protocol between programs and the daemon: requests, answers, and what they describe. Shared by both sides.

pub mod binding;
pub mod client;
pub mod ioctl;
pub mod legacy;
pub mod nic;
pub mod node;
pub mod request;
pub mod sysctl;
pub mod vale;
pub mod vale_policy;
pub mod wire;

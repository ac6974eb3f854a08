//! What the tests share: a daemon of their own for each of them, the control protocol as a hostile program speaks it,
//! the daemon's books, and packets that tell what became of them.
#![forbid(unsafe_code)]

pub mod books;
pub mod c;
pub mod ether;
pub mod home;
pub mod host;
pub mod monitor;
pub mod net;
pub mod node;
pub mod packet;
pub mod party;
pub mod pcap;
pub mod raw;
pub mod switch;
pub mod tool;
pub mod traffic;

pub use home::{Home, LIMIT, isolated, program, until};
pub use node::Node;

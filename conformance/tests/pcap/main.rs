//! Programs that use libpcap, on netmap ports.
#![forbid(unsafe_code)]

mod api;
mod faults;

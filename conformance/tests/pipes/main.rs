//! Pipes: what they promise, rings that several clients share, and memory that the program lays out.
#![forbid(unsafe_code)]

mod api;
mod extmem;
mod shared_rings;

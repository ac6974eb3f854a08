// SPDX-License-Identifier: BSD-2-Clause
//! Pipes: what they promise, whole frames, rings that several clients share, many rings, and memory that the program
//! lays out.
#![forbid(unsafe_code)]

mod api;
mod extmem;
mod frames;
mod many_rings;
mod one_end;
mod shared_rings;
mod times;

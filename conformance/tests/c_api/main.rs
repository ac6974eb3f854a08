// SPDX-License-Identifier: BSD-2-Clause
//! C programs: compiled with the public headers, linked with the library, or preloaded.
#![forbid(unsafe_code)]

mod files;
mod headers;
mod packages;
mod parameters;
mod preload;
mod reconnect;

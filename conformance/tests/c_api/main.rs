// SPDX-License-Identifier: BSD-2-Clause
//! C programs: compiled with the public headers, linked with the library, preloaded, or built from an installed copy.
#![forbid(unsafe_code)]

mod files;
mod headers;
mod install;
mod preload;

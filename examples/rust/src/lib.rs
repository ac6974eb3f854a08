// SPDX-License-Identifier: BSD-2-Clause
//! Examples of the Rust API, one program each, in `src/bin`.
#![forbid(unsafe_code)]

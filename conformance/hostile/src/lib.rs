// SPDX-License-Identifier: BSD-2-Clause
//! Functions that hostile clients share: the control protocol without the library, and shared memory to write anything
//! to.
#![forbid(unsafe_code)]

pub mod front_end;
pub mod memif_peer;
pub mod raw;
pub mod served;

// SPDX-License-Identifier: BSD-2-Clause
//! The command-line programs: their errors, `lb`, `unetmap doctor`, `metrics` and `top`.
#![forbid(unsafe_code)]

mod doctor;
mod errors;
mod lb;
mod metrics;
mod top;

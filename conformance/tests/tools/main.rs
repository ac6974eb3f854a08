// SPDX-License-Identifier: BSD-2-Clause
//! The command-line programs: their errors and manual pages, `lb`, `unetmap doctor`,
//! `events`, `metrics` and `top`.
#![forbid(unsafe_code)]

mod doctor;
mod errors;
mod events;
mod lb;
mod manuals;
mod metrics;
mod top;

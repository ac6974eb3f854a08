// SPDX-License-Identifier: BSD-2-Clause
//! The command-line programs: their errors and manual pages, `lb`, `unetmap-fw`, `unetmap doctor`,
//! `events`, `metrics` and `top`.
#![forbid(unsafe_code)]

mod doctor;
mod errors;
mod events;
mod forwarder;
mod fw;
mod lb;
mod manuals;
mod metrics;
mod top;

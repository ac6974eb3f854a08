// SPDX-License-Identifier: BSD-2-Clause
//! The command-line programs of the core: `lb`, `unetmap doctor` and its proofs, `events`, `metrics` and `top`; the
//! commands of the README.
#![forbid(unsafe_code)]

mod alerts;
mod dashboard;
mod demo;
mod doctor;
mod events;
mod go;
mod lb;
mod metrics;
mod prove;
mod python;
mod readme;
mod repository;
mod runner;
mod stack;
mod tokio;
mod top;

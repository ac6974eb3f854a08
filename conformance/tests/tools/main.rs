// SPDX-License-Identifier: BSD-2-Clause
//! The command-line programs: their errors and manual pages, `lb`, `unetmap-fw`, `unetmap-cni`,
//! `unetmap-device-plugin`, `unetmap doctor`, `emulate`, `events`, `metrics` and `top`; quantities of all
//! programs; the commands of the README.
#![forbid(unsafe_code)]

mod cni;
mod dashboard;
mod demo;
mod device_plugin;
mod doctor;
mod emulate;
mod errors;
mod events;
mod forwarder;
mod fw;
mod lb;
mod links;
mod manuals;
mod metrics;
mod quantities;
mod readme;
mod runner;
mod top;

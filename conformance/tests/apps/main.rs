// SPDX-License-Identifier: BSD-2-Clause
//! The programs in the folder `apps`: `unetmap-fw`, `unetmap-cni`, `unetmap-device-plugin`, `unetmap emulate`, `unetmap
//! flows`, `unetmap lab`, `unetmap memif`, `unetmap scrub`; and tables of all programs at once: errors, quantities,
//! manual pages, installation.
#![forbid(unsafe_code)]

mod cni;
mod cni_node;
mod device_plugin;
mod dpdk;
mod emulate;
mod errors;
mod flows;
mod flows_beside;
mod flows_nat;
mod flows_tcp;
mod fw;
mod install;
mod lab;
mod links;
mod manuals;
mod metrics;
mod quantities;
mod scrub;
mod scrub_return;

// SPDX-License-Identifier: BSD-2-Clause
//! The commands that are not of the core: those of the folder `apps`.

use clap::Subcommand;
use tool_common::Failure;

use crate::print;

#[derive(Debug, Subcommand)]
pub(crate) enum App {
    Vm(unetmap_guests::VmArgs),
    Memif(unetmap_guests::MemifArgs),
    Fw(unetmap_fw_client::FwArgs),
    Emulate(unetmap_emulate::EmulateArgs),
    Flows(unetmap_flows::FlowsArgs),
    Scrub(Box<unetmap_scrub::ScrubArgs>),
    Lab(unetmap_lab::LabArgs),
}

/// Performs the command. Returns the exit status.
pub(crate) fn run(app: &App) -> Result<u8, Failure> {
    match app {
        App::Vm(args) => Ok(print("vm", &unetmap_guests::run_vm(args)?)?),
        App::Memif(args) => Ok(unetmap_guests::run_memif(args).map(|()| 0)?),
        App::Fw(args) => Ok(print("fw", &unetmap_fw_client::run(args)?)?),
        App::Emulate(args) => unetmap_emulate::run(args).map(|()| 0),
        App::Flows(args) => unetmap_flows::run(args).map(|()| 0),
        App::Scrub(args) => unetmap_scrub::run(args).map(|()| 0),
        App::Lab(args) => Ok(print("lab", &unetmap_lab::run(args)?)?),
    }
}

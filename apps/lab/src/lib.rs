// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap lab`: networks of namespaces, links and switches, as a file says.
//!
//! ```text
//!   office.pc             the lab's wire                     office.server
//!   [eth0] ------------ [l0a]  emulate  [l0b] ------------ [eth0]      a link with a delay, or that is captured
//!   [eth1] ------------ [l1a]  attached to valelan                     a link to the switch lan
//!   [eth2] ----------------------------------------------- [eth1]      any other link: one veth pair
//! ```
//!
//! Hosts are namespaces of `ip netns`, LAB.HOST. The *wire* is a namespace without a name there, in which `unetmap
//! emulate`, `unetmap capture` and a daemon of the lab's own run. All that a lab has is written in its folder before it
//! is made ([`state`]), so a lab that was built in part is removed as a whole.
#![forbid(unsafe_code)]

mod build;
mod file;
mod graph;
mod model;
mod network;
mod programs;
mod show;
mod state;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use tool_common::{Failure, stop_on_signals};

use state::Folder;

/// Build networks of namespaces, links and switches as a file says, and remove them.
///
/// Needs root, or a user namespace with a mount namespace and a /run of its own (unetmap-lab(1)).
#[derive(Debug, Args)]
pub struct LabArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Build the lab that a file describes; safe to repeat: programs of it that have ended are started again
    ///
    /// If it cannot be built as a whole, nothing of it is left.
    Up {
        /// The file (TOML)
        #[arg(value_name = "FILE")]
        file: PathBuf,

        /// Print a picture of the lab (SVG) instead of building it
        #[arg(long)]
        graph: bool,

        /// Print the lab as a JSON object
        #[arg(long, conflicts_with = "graph")]
        json: bool,
    },
    /// Remove a lab, and nothing else; safe to repeat
    Down {
        /// The file, or the lab's name
        #[arg(value_name = "FILE|NAME")]
        lab: PathBuf,

        /// Print the result as a JSON object
        #[arg(long)]
        json: bool,
    },
    /// List the labs of this machine
    Ls {
        /// Print a JSON array
        #[arg(long)]
        json: bool,
    },
}

/// Performs the command. Returns its output.
///
/// # Errors
/// A sentence: the file with its line, and what is wrong there; or why the lab cannot be built.
pub fn run(args: &LabArgs) -> Result<String, Failure> {
    let done = match &args.action {
        Action::Up { file, graph: true, .. } => file::read(file).map(|lab| graph::svg(&lab)),
        Action::Up { file, json, .. } => file::read(file).and_then(|lab| {
            let stop = stop_on_signals()?;
            let folder = Folder::open(&lab.name, true)?.ok_or("the folder of labs cannot be made")?;
            let changed = build::up(&lab, &folder, stop)?;
            Ok(show::built(&lab, &folder, changed, *json))
        }),
        Action::Down { lab, json } => file::name_of(lab).and_then(|name| {
            let was_there = match Folder::open(&name, false)? {
                Some(folder) => build::down(&folder)?,
                None => false,
            };
            Ok(show::removed(&name, was_there, *json))
        }),
        Action::Ls { json } => state::all().map(|labs| show::list(&labs, *json)),
    };
    Ok(done.map_err(|why| format!("lab: {why}"))?)
}

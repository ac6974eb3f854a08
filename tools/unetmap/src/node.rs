// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap node`: creates and removes a `/dev/netmap` for programs that `unetmap run` does not support.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::Value;
use unetmap_core::control::node::{NodeRequest, USUAL_PATH, send_request};

use crate::ls::{cell, parse_reply};

/// Create or remove a /dev/netmap that any program can open.
///
/// For programs that `unetmap run` does not support: statically linked, not using the C library, waiting with io_uring,
/// or setuid. The daemon serves the file through FUSE, so each request and each poll goes through the daemon; all other
/// programs are faster with `unetmap run`. Needs Linux 6.9; only root can create or remove it.
#[derive(Debug, Args)]
pub(crate) struct NodeArgs {
    #[command(subcommand)]
    pub(crate) action: Action,

    /// Print the daemon's reply as JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Action {
    /// Create it. Starts a daemon if none runs; the daemon then runs until the file is removed
    On {
        /// Path of the file [default: /dev/netmap]
        path: Option<PathBuf>,
    },
    /// Remove it; open files remain usable until they are closed
    Off {
        /// Remove it only if it is at this path
        path: Option<PathBuf>,
    },
    /// Show whether it exists, and how many files are open on it
    Status,
}

/// Performs the action, and prints the state of the node after it.
pub(crate) fn run(action: Action, json: bool) -> Result<u8, String> {
    let absolute =
        |path: &Path| std::path::absolute(path).map_err(|e| format!("node: the path {}: {e}", path.display()));
    let request = match action {
        Action::On { path } => NodeRequest::On(absolute(path.as_deref().unwrap_or(Path::new(USUAL_PATH)))?),
        Action::Off { path } => NodeRequest::Off(path.as_deref().map(absolute).transpose()?),
        Action::Status => NodeRequest::Show,
    };
    let reply = send_request(&request).map_err(|e| format!("node: {e}"))?;
    let text = match reply {
        Some(reply) if json => format!("{reply}\n"),
        None if json => "{\"on\":false,\"files\":0,\"ports\":0,\"left\":0}\n".into(),
        Some(reply) => status_text(&parse_reply("node", &reply)?),
        None => "off: no daemon is running\n".into(),
    };
    crate::print("node", &text)?;
    match request {
        NodeRequest::On(path) => check_visible(&path),
        _ => Ok(0),
    }
}

/// Checks that this process can see the file: the daemon mounts it in its own mount namespace, which may be another.
fn check_visible(path: &Path) -> Result<u8, String> {
    match std::fs::metadata(path) {
        Ok(_) => Ok(0),
        Err(e) => Err(format!(
            "node: {} is on, but not visible to this process: {e} (the daemon is in another mount namespace; set \
             UNETMAP_SOCKET to another socket to start a daemon in this one)",
            path.display()
        )),
    }
}

/// Formats the daemon's reply.
fn status_text(all: &Value) -> String {
    let mut text = match all["on"] == true {
        true => format!(
            "on: {} (mounted at {}); {} open, {} of them with a port\n",
            cell(&all["path"]),
            cell(&all["mount"]),
            cell(&all["files"]),
            cell(&all["ports"])
        ),
        false => "off\n".into(),
    };
    if all["left"] != 0 {
        text += &format!("{} files of an earlier node are still open\n", cell(&all["left"]));
    }
    text
}

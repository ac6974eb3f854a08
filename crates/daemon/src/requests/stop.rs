// SPDX-License-Identifier: BSD-2-Clause
//! Stop: the daemon ends (`unetmap stop`).

use std::path::PathBuf;

use serde::Serialize;
use unetmap_core::control::StopRequest;
use unetmap_core::errno::{EBUSY, EPERM};
use unetmap_sys::process;

use super::call::{Call, Reply};
use crate::ports::Daemon;
use crate::ports::vale::attached_ports;
use crate::refusal::{Refusal, decode, json, refuse};

/// The answer.
#[derive(Serialize)]
struct Stopped {
    pid: u32,
    /// Whether it ends.
    ends: bool,
    /// Whether persistent ports and settings of switches are removed. Else they last.
    removes: bool,
    /// Ports that close when it ends.
    ports: Vec<OpenPort>,
}

/// Something that closes when the daemon ends.
#[derive(PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
enum OpenPort {
    /// A program has a port open.
    Open { port: String, uid: u32, pid: u32, program: Option<String> },
    /// An interface that is attached to a switch.
    Attached { port: String },
    /// A persistent port.
    Persistent { port: String },
    /// `/dev/netmap`.
    Node { port: PathBuf },
}

/// Has the daemon end, unless ports are open and the request does not say that they are to be closed.
pub(super) fn stop(call: &mut Call<'_>) -> Reply {
    let answered = answer(call);
    call.text_reply(answered)
}

fn answer(call: &mut Call<'_>) -> Result<String, Refusal> {
    let StopRequest { force, all } = decode(call.payload)?;
    let (uid, owner) = (call.peer.uid, call.owner);
    if uid != 0 && uid != owner {
        return refuse(EPERM, format!("only root and user {owner}, the daemon's owner, may stop it"));
    }
    if call.is_service {
        let manager = if owner == 0 { "systemctl" } else { "systemctl --user" };
        return refuse(
            EBUSY,
            format!(
                "a service manager runs it, and would start it again ({manager} stop unetmapd.socket unetmapd.service)"
            ),
        );
    }
    let mut ports = open_ports(call.daemon);
    ports.extend(call.nodes.path().map(|path| OpenPort::Node { port: path }));
    let ends = force || ports.is_empty();
    let text = json(&Stopped { pid: process::pid(), ends, removes: all, ports })?;
    if ends {
        if all {
            call.daemon.remove_lasting();
        }
        tracing::info!(uid, pid = call.peer.pid, "the daemon was told to end");
        call.daemon.ends = Some("a request");
    }
    Ok(text)
}

fn open_ports(daemon: &Daemon) -> Vec<OpenPort> {
    // Not the daemon's own, of attached interfaces.
    let sessions = daemon.registry.sessions.values().filter(|session| session.pid != process::pid());
    let mut ports = Vec::new();
    for session in sessions {
        let port = daemon.port_name(session).into();
        let open = OpenPort::Open { port, uid: session.uid, pid: session.pid, program: session.program.clone() };
        if !ports.contains(&open) {
            ports.push(open);
        }
    }
    ports.extend(attached_ports(&daemon.registry, &daemon.vale).into_iter().map(|port| OpenPort::Attached { port }));
    ports.extend(daemon.vale.persistent_snapshots().into_iter().map(|port| OpenPort::Persistent { port: port.name }));
    ports
}

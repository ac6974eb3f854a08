// SPDX-License-Identifier: BSD-2-Clause
//! Ports of switches that a process in the background serves, as the daemon lists them: each process tells it what it
//! serves (`unetmap_core::control::serves`), and the daemon knows its user. Command lines are not asked, as anybody can
//! write what he likes into his own.

use rustix::process::geteuid;
use serde_json::Value;
use unetmap::abi::printable::Shown;
pub use unetmap_core::control::serves::Service as Kind;
use unetmap_core::control::vale::{ValeAction, ValeRequest, send_request};

use crate::reply::{members, parse_reply};

/// A process that says that it serves a port, and its user, as the daemon knows them.
pub struct Server {
    /// Its process, as the kernel reports it to the daemon.
    pub pid: i32,
    /// Its user, likewise.
    pub uid: u32,
    /// How the port is served.
    pub kind: Kind,
    /// The socket and its options, as the process says.
    pub socket: String,
}

impl Server {
    /// Whether what it says counts as a setting: a process of root or of this user. Any other can say what it likes.
    pub fn is_believed(&self) -> bool {
        self.uid == 0 || self.uid == geteuid().as_raw()
    }
}

/// Returns the process that serves a switch port in the daemon's reply; one that is believed, if there is any.
pub fn served_by(port: &Value) -> Option<Server> {
    let servers = members(&port["served"]).filter_map(|server| {
        let kind = Kind::ALL.into_iter().find(|kind| server["service"] == kind.name())?;
        let number = |key: &str| u32::try_from(server[key].as_u64()?).ok();
        let (pid, uid) = (i32::try_from(number("pid")?).ok()?, number("uid")?);
        Some(Server { pid, uid, kind, socket: server["socket"].as_str()?.into() })
    });
    servers.max_by_key(Server::is_believed)
}

/// Returns how a switch port in the daemon's reply is served, in the words that set it: `vhost-user /run/vm1.sock`.
/// A socket that a process of another user names is marked as such.
pub fn setting_of(port: &Value) -> Option<String> {
    let server = served_by(port)?;
    let setting = format!("{} {}", server.kind.name(), Shown(&server.socket));
    Some(if server.is_believed() { setting } else { format!("user {} says: {setting}", server.uid) })
}

/// Returns the socket of a switch port in the daemon's reply, if a process that is believed serves it in this way.
pub fn socket_of(port: &Value, kind: Kind) -> Option<String> {
    served_by(port).filter(|server| server.kind == kind && server.is_believed()).map(|server| server.socket)
}

/// Returns whether this port exists, as far as the caller may know, and the process that serves it.
///
/// # Errors
/// The reply is of another version of the daemon.
pub fn server_of(port: &str) -> Result<(bool, Option<Server>), String> {
    let switch = port.split(':').next().unwrap_or(port).to_owned();
    let request = ValeRequest { name: switch, action: ValeAction::Show };
    // A switch that does not exist has no ports.
    let Ok(Some(reply)) = send_request(&request) else { return Ok((false, None)) };
    let all = parse_reply("vale", &reply)?;
    let found = members(&all["port"]).find(|other| other["name"] == port);
    Ok((found.is_some(), found.and_then(served_by)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_processes_of_other_users_say_is_no_setting() {
        let own = geteuid().as_raw();
        let served = |uid: u32, socket: &str| json!({"pid": 7, "uid": uid, "service": "memif", "socket": socket});
        let port = json!({"served": [served(own + 1, "/forged\u{1b}")]});
        assert_eq!(socket_of(&port, Kind::Memif), None);
        assert_eq!(setting_of(&port).unwrap(), format!("user {} says: memif /forged\\u001b", own + 1));
        let port = json!({"served": [served(own + 1, "/forged"), served(own, "/own"), served(own + 1, "/forged")]});
        assert_eq!(socket_of(&port, Kind::Memif).as_deref(), Some("/own"));
        assert_eq!((socket_of(&port, Kind::VhostUser), setting_of(&port).as_deref()), (None, Some("memif /own")));
        assert_eq!(setting_of(&json!({"pids": [7]})), None);
    }
}

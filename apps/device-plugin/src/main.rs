// SPDX-License-Identifier: BSD-2-Clause
//! unetmap-device-plugin: a device plugin of Kubernetes. Pods that request the resource get the daemon's socket.
//!
//! ```text
//! kubelet  <-- Register(name, socket) ---- plugin             at the kubelet's socket
//!          --- ListAndWatch, Allocate ---> plugin             at the plugin's socket
//!                                          plugin --(connect)--> unetmapd, each half second
//! ```
//! The kubelet removes the sockets of all plugins when it starts; then the plugin makes its own again, and registers.
#![forbid(unsafe_code)]

mod api;
mod grpc;
mod kubelet;
mod options;
mod plugin;
mod server;

use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use tokio::task::LocalSet;
use tokio::time::sleep;
use tool_common::{Failure, note, stop_on_signals};

use kubelet::Registration;
use options::Cli;
use plugin::Plugin;

/// How often daemon and kubelet are looked at.
const INTERVAL: Duration = Duration::from_millis(500);

fn main() -> ExitCode {
    let options = tool_common::parse::<Cli>().check().map_err(Failure::Usage);
    let result = options.and_then(|options| {
        let stop = stop_on_signals()?;
        // The socket is for the kubelet, which is root.
        rustix::process::umask(Mode::RWXG | Mode::RWXO);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
        let runtime = runtime.map_err(|e| format!("the program's runtime: {e}"))?;
        LocalSet::new().block_on(&runtime, run(&Rc::new(Plugin::new(options)), stop));
        Ok(ExitCode::SUCCESS)
    });
    tool_common::exit_code("unetmap-device-plugin", result)
}

/// Keeps the plugin registered, until a signal arrives.
async fn run(plugin: &Rc<Plugin>, stop: &AtomicBool) {
    let (resource, socket) = (&plugin.options.resource, plugin.options.socket.display());
    let mut registration: Option<Registration> = None;
    // A failure that goes on is told once.
    let mut told = String::new();
    let mut first = true;
    while !stop.load(Relaxed) {
        let serves = listens(&plugin.options.socket);
        if plugin.set_serves(serves) || std::mem::take(&mut first) {
            note(&match serves {
                true => format!("{resource}: a daemon listens at {socket}; the devices are healthy"),
                false => format!("{resource}: no daemon listens at {socket}; the devices are unhealthy"),
            });
        }
        if let Some(why) = registration.as_mut().and_then(|registration| registration.has_ended(plugin)) {
            note(&format!("{resource}: {why}; registering again"));
            registration = None;
        }
        if registration.is_none() {
            match Registration::new(plugin).await {
                Ok(new) => {
                    note(&format!("{resource}: registered with the kubelet, {} devices", plugin.options.count));
                    registration = Some(new);
                    told.clear();
                }
                Err(why) if why != told => {
                    note(&format!("{resource}: {why}"));
                    told = why;
                }
                Err(_) => {}
            }
        }
        sleep(INTERVAL).await;
    }
}

/// Whether a daemon listens. One that systemd would start at the first connection is started by this.
fn listens(socket: &Path) -> bool {
    let connected = SocketAddrUnix::new(socket).and_then(|address| {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        connect(&fd, &address)
    });
    // A daemon with much to do has not accepted all connections yet.
    matches!(connected, Ok(()) | Err(Errno::AGAIN))
}

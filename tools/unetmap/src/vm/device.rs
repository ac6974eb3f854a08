// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap vm device`: gives the memory of a pipe's end to a guest, as the memory of an ivshmem PCI device.
//!
//! The hypervisor connects and receives three messages of eight bytes: the protocol's version, its number, and -1 with
//! the memory's descriptor beside it. There are no interrupts: both sides look at the rings by a timer.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tool_common::{note, stop_on_signals};
use unetmap_core::port::device::{DevicePort, IVSHMEM_MEMORY, IVSHMEM_VERSION, LOOK_EVERY};
use unetmap_sys::event::{PollFd, PollFlags, wait_readable};
use unetmap_sys::socket::{recv, send};

use super::{Hypervisor, listen};

/// Of the one guest; the server's own numbers are not used.
const PEER: i64 = 1;
/// How often the rings are looked at when nothing has moved for [`IDLE`].
const IDLE_LOOK: Duration = Duration::from_millis(5);
const IDLE: Duration = Duration::from_secs(1);

/// Serves the port until a signal comes.
pub(super) fn serve(port: &str, path: &Path) -> Result<(), String> {
    let stop = stop_on_signals()?;
    let mut device = DevicePort::open(port).map_err(|e| e.to_string())?;
    let failed = |e: io::Error| format!("{}: {e}", path.display());
    let listener = listen(path).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    note(&format!("unetmap vm: {port}: ready"));
    let mut moved_at = Instant::now();
    // The hypervisor, or a program in its place.
    let mut client: Option<UnixStream> = None;
    let served = loop {
        if stop.load(Relaxed) {
            break Ok(());
        }
        match device.look() {
            Ok(true) => moved_at = Instant::now(),
            Ok(false) => {}
            Err(e) => break Err(format!("{e}; the guest's device ends with it: plug in another")),
        }
        client = match client {
            None => accept(&listener, device.file()).inspect(|_| note(&format!("unetmap vm: {port}: connected"))),
            Some(client) if is_closed(&client) => {
                note(&format!("unetmap vm: {port}: the connection was closed"));
                None
            }
            connected => connected,
        };
        let fd = client.as_ref().map_or(listener.as_fd(), |client| client.as_fd());
        let pause = if moved_at.elapsed() < IDLE { LOOK_EVERY } else { IDLE_LOOK };
        // A signal sets `stop`.
        let _ = wait_readable(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(pause));
    };
    let _ = fs::remove_file(path);
    served
}

/// Accepts a client and sends it the memory. A client that does not take three short messages is closed.
fn accept(listener: &UnixListener, memory: BorrowedFd<'_>) -> Option<UnixStream> {
    let (client, _) = listener.accept().ok()?;
    client.set_nonblocking(true).ok()?;
    for (message, fds) in [(IVSHMEM_VERSION, &[][..]), (PEER, &[]), (IVSHMEM_MEMORY, &[memory])] {
        send(&client, &message.to_le_bytes(), fds).ok().filter(|sent| *sent == size_of::<i64>())?;
    }
    Some(client)
}

/// Whether the client has closed the connection. What it sends is ignored.
fn is_closed(client: &UnixStream) -> bool {
    let (mut bytes, mut fds) = ([0; 64], Vec::new());
    match recv(client, &mut bytes, &mut fds) {
        Ok(got) => got.bytes == 0,
        Err(e) => e.kind() != io::ErrorKind::WouldBlock,
    }
}

/// The arguments with which a hypervisor has the device.
pub(super) fn arguments(hypervisor: Hypervisor, path: &str) -> Result<String, String> {
    match hypervisor {
        Hypervisor::Qemu => Ok(format!(
            "-chardev socket,id=unetmap-memory,path={path}\n-device ivshmem-doorbell,chardev=unetmap-memory,vectors=1\n"
        )),
        Hypervisor::Cloud | Hypervisor::Crosvm => {
            Err("vm: only QEMU takes the memory of a device from a socket: use vhost-user".into())
        }
    }
}

// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap vm device`: gives the memory of a pipe's end to a guest, as the memory of an ivshmem PCI device.
//!
//! The hypervisor connects and receives three messages of eight bytes: the protocol's version, its number, and -1 with
//! the memory's descriptor beside it. There are no interrupts: both sides look at the rings by a timer.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use tool_common::host::event::{PollFd, PollFlags, wait_readable};
use tool_common::host::process;
use tool_common::host::socket::{FdSender, listen_for_streams, peer, recv, send};
use tool_common::stop_on_signals;
use unetmap::guest::{DevicePort, IVSHMEM_MEMORY, IVSHMEM_VERSION, LOOK_EVERY};
use unetmap_vhost::{ANSWER_LIMIT, is_passing, why_unsent};

use super::{Hypervisor, SOCKET_MODE};
use crate::server_log;

/// Of the one guest; the server's own numbers are not used.
const PEER: i64 = 1;
/// How often the rings are looked at when nothing has moved for [`IDLE`].
const IDLE_LOOK: Duration = Duration::from_millis(5);
const IDLE: Duration = Duration::from_secs(1);

/// Serves the port until a signal comes.
pub(super) fn serve(port: &str, path: &Path) -> Result<(), String> {
    let stop = stop_on_signals()?;
    process::set_program_name(c"unetmap-vm");
    let log = server_log("vm", None)?;
    let mut device = DevicePort::open(port).map_err(|e| e.to_string())?;
    let failed = |e: io::Error| format!("{}: {e}", path.display());
    let (listener, file) = listen_for_streams(path, SOCKET_MODE).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    log.line(&format!("{port}: ready"));
    let mut moved_at = Instant::now();
    // The hypervisor, or a program in its place.
    let (mut client, mut sender): (Option<Client>, _) = (None, FdSender::default());
    let served = loop {
        if stop.load(Relaxed) {
            break Ok(());
        }
        log.tend();
        match device.look() {
            Ok(true) => moved_at = Instant::now(),
            Ok(false) => {}
            Err(e) => break Err(format!("{e}; the guest's device ends with it: plug in another")),
        }
        client = match client {
            // One that has not received the memory must receive it first, or go.
            None if !sender.is_free() => None,
            None => accept(&listener).inspect(|client| {
                log.of_user(peer(&client.socket).ok().map(|peer| peer.uid), &format!("{port}: connected"))
            }),
            Some(mut client) => match client.serve(device.file(), &mut sender) {
                Ok(()) => Some(client),
                Err(why) => {
                    log.of_user(peer(&client.socket).ok().map(|peer| peer.uid), &format!("{port}: {why}"));
                    drop(client);
                    sender.end_last();
                    None
                }
            },
        };
        let fd = match &client {
            Some(client) => Some(client.socket.as_fd()),
            None => sender.is_free().then(|| listener.as_fd()),
        };
        let mut fds = fd.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let pause = if moved_at.elapsed() < IDLE { LOOK_EVERY } else { IDLE_LOOK };
        // A signal sets `stop`.
        let _ = wait_readable(fds.as_mut_slice(), Some(pause));
    };
    file.remove();
    served
}

/// A connection that is, or is to be, given the memory.
struct Client {
    socket: UnixStream,
    /// While the memory is to be sent.
    unsent_since: Option<Instant>,
}

/// Accepts a client. One that does not take two short messages is closed.
fn accept(listener: &UnixListener) -> Option<Client> {
    let (socket, _) = listener.accept().ok()?;
    socket.set_nonblocking(true).ok()?;
    for message in [IVSHMEM_VERSION, PEER] {
        send(&socket, &message.to_le_bytes(), &[]).ok().filter(|sent| *sent == size_of::<i64>())?;
    }
    Some(Client { socket, unsent_since: Some(Instant::now()) })
}

impl Client {
    /// Sends the memory, if it was not sent yet. What the client sends is ignored.
    ///
    /// # Errors
    /// A sentence: why the connection ends.
    fn serve(&mut self, memory: BorrowedFd<'_>, sender: &mut FdSender) -> Result<(), String> {
        if let Some(since) = self.unsent_since {
            match sender.send(&self.socket, &IVSHMEM_MEMORY.to_le_bytes(), &[memory]) {
                Ok(_) => self.unsent_since = None,
                Err(e) if is_passing(&e) && since.elapsed() < ANSWER_LIMIT => {}
                Err(e) => return Err(format!("the memory cannot be sent: {}", why_unsent(&e))),
            }
        }
        let (mut bytes, mut fds) = ([0; 64], Vec::new());
        match recv(&self.socket, &mut bytes, &mut fds) {
            Ok(got) if got.bytes > 0 => Ok(()),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(()),
            _ => Err("the connection was closed".into()),
        }
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

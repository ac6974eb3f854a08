// SPDX-License-Identifier: BSD-2-Clause
//! Ending a daemon: the request of `unetmap stop`.
//!
//! ```text
//! request   one byte: 1 if it is to end even if that closes ports, plus 2 if what lasts is to be removed first
//! reply     as JSON: its process, the ports that are open, and whether it ends; or an errno and the reason
//! ```

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use unetmap_sys::socket;

use crate::control::client::{self, Connection};
use crate::control::wire::{ControlRequest, Kind};
use crate::error::{Error, errno};
use crate::tuning::LOCK_POLL;

/// The subject of error texts.
const SUBJECT: &str = "stopping the daemon";

/// Asks the daemon to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopRequest {
    /// Also if ports are open, which it closes.
    pub force: bool,
    /// Persistent ports and settings of switches, which would outlast it, are removed.
    pub all: bool,
}

impl ControlRequest for StopRequest {
    const KIND: Kind = Kind(15);

    fn encode(&self) -> Vec<u8> {
        vec![u8::from(self.force) | u8::from(self.all) << 1]
    }

    /// # Errors
    /// `EINVAL` if it is more than 3.
    fn decode(payload: &[u8]) -> Result<StopRequest, i32> {
        match payload {
            [bits @ 0..=3] => Ok(StopRequest { force: bits & 1 != 0, all: bits & 2 != 0 }),
            _ => Err(errno::EINVAL),
        }
    }
}

/// The folder of what outlasts the daemon that listens at `socket`.
pub fn lasting_path(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".ports");
    path.into()
}

/// Whether a daemon of this user's, which has ended, has left persistent ports or settings.
pub(crate) fn is_anything_left() -> Result<bool, Error> {
    Ok(lasting_path(&client::own_socket()?).symlink_metadata().is_ok())
}

/// This user's own daemon, which runs.
pub struct RunningDaemon(Connection);

impl RunningDaemon {
    /// Connects to this user's own daemon; `None` if none runs.
    ///
    /// # Errors
    /// It is another user's; or the kernel's.
    pub fn connect() -> Result<Option<RunningDaemon>, Error> {
        Ok(client::running()?.map(RunningDaemon))
    }

    /// The same, but starts one if an earlier daemon has left persistent ports or settings of switches.
    ///
    /// # Errors
    /// As of [`RunningDaemon::connect`]; or it cannot be started.
    pub fn connect_if_lasting() -> Result<Option<RunningDaemon>, Error> {
        Ok(client::running_or_started(is_anything_left()?)?.map(RunningDaemon))
    }

    /// Where it listens.
    pub fn socket(&self) -> &Path {
        &self.0.socket
    }

    /// Has it end, if no port is open or `force`, and remove what would outlast it (`all`). Returns its reply, as JSON.
    ///
    /// # Errors
    /// The daemon's refusal: a service manager has started it, or it is not this user's.
    pub fn stop(&self, force: bool, all: bool) -> Result<String, Error> {
        client::send(self.0.fd.as_fd(), SUBJECT, &StopRequest { force, all })?.into_text(SUBJECT)
    }

    /// Waits until the daemon that said it ends has ended, with the process that keeps root's privileges for it, which
    /// undoes what it has changed of interfaces.
    ///
    /// # Errors
    /// `TimedOut` if that takes longer than `limit`; or the kernel's.
    pub fn wait(self, limit: Duration) -> Result<(), Error> {
        let failed = |e| Error::host(SUBJECT, e);
        let start = Instant::now();
        socket::set_timeout(&self.0.fd, limit).map_err(failed)?;
        match socket::recv(&self.0.fd, &mut [0], &mut Vec::new()) {
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Err(failed(io::ErrorKind::TimedOut.into())),
            Err(e) => return Err(failed(e)),
        }
        let lock = client::open_lock(&self.0.socket)?;
        while !socket::try_lock(&lock).map_err(failed)? {
            if start.elapsed() > limit {
                return Err(failed(io::ErrorKind::TimedOut.into()));
            }
            std::thread::sleep(LOCK_POLL);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_survives_encoding_and_decoding_and_malformed_ones_are_rejected() {
        for (force, all) in [(true, false), (false, false), (true, true), (false, true)] {
            let request = StopRequest { force, all };
            assert_eq!(StopRequest::decode(&request.encode()), Ok(request));
        }
        for bytes in [&b""[..], b"\x04", b"\x01\x01"] {
            assert_eq!(StopRequest::decode(bytes), Err(errno::EINVAL), "{bytes:?}");
        }
    }
}

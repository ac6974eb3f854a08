// SPDX-License-Identifier: BSD-2-Clause
//! Ending a daemon: the request of `unetmap stop`.
//!
//! ```text
//! request   one byte: 1 if it is to end even if that closes ports
//! reply     as JSON: its process, the ports that are open, and whether it ends; or an errno and the reason
//! ```

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
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
}

impl ControlRequest for StopRequest {
    const KIND: Kind = Kind(15);

    fn encode(&self) -> Vec<u8> {
        vec![self.force.into()]
    }

    /// # Errors
    /// `EINVAL` if it is neither 0 nor 1.
    fn decode(payload: &[u8]) -> Result<StopRequest, i32> {
        match payload {
            [force @ 0..=1] => Ok(StopRequest { force: *force == 1 }),
            _ => Err(errno::EINVAL),
        }
    }
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

    /// Where it listens.
    pub fn socket(&self) -> &Path {
        &self.0.socket
    }

    /// Has it end, if no port is open or `force`. Returns its reply, as JSON.
    ///
    /// # Errors
    /// The daemon's refusal: a service manager has started it, or it is not this user's.
    pub fn stop(&self, force: bool) -> Result<String, Error> {
        client::send(self.0.fd.as_fd(), SUBJECT, &StopRequest { force })?.into_text(SUBJECT)
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
        for force in [true, false] {
            let request = StopRequest { force };
            assert_eq!(StopRequest::decode(&request.encode()), Ok(request));
        }
        for bytes in [&b""[..], b"\x02", b"\x01\x01"] {
            assert_eq!(StopRequest::decode(bytes), Err(errno::EINVAL), "{bytes:?}");
        }
    }
}

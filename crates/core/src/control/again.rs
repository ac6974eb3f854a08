// SPDX-License-Identifier: BSD-2-Clause
//! Requests that are made again, as the daemon ended before it answered.

use std::io;

use crate::error::Error;
use crate::tuning::{OPEN_RETRY, OPEN_TRIES};

/// Makes a request on connections of its own, again if the daemon ends before it has answered: with the connection ends
/// what it has of the request. It may have exited because it was idle, or crashed and be there again at once. The
/// closure is told which attempt is the last.
pub(crate) fn again_if_gone<T>(mut request: impl FnMut(bool) -> Result<T, Error>) -> Result<T, Error> {
    for tries in 1.. {
        let is_last = tries == OPEN_TRIES;
        match request(is_last) {
            Err(Error::DaemonGone { .. }) if !is_last => std::thread::sleep(OPEN_RETRY * (tries - 1)),
            Err(Error::DaemonGone { .. }) => break,
            other => return other,
        }
    }
    Err(Error::NoDaemon {
        reason: format!(
            "it ended before it answered, {OPEN_TRIES} times in a row (its log is beside its socket, see unetmapd(8))"
        ),
        source: io::ErrorKind::ConnectionReset.into(),
    })
}

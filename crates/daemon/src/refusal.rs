// SPDX-License-Identifier: BSD-2-Clause
//! A refused request: netmap's error number, and the reason.

use std::io;

use serde::Serialize;
use unetmap_core::control::ControlRequest;
use unetmap_core::errno::{EAGAIN, EINVAL, EIO, EMFILE, ENFILE, ENOMEM};
use unetmap_core::without_codes;

/// Why a request was refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) errno: i32,
    pub(crate) why: String,
    /// The option (`NETMAP_REQ_OPT_*`) that caused it, if one did.
    pub(crate) option: Option<u32>,
    /// Whether the reason passes by itself within moments, so that the same request is worth another try.
    pub(crate) passes: bool,
}

impl Refusal {
    pub(crate) fn new(errno: i32, why: String) -> Refusal {
        Refusal { errno, why, option: None, passes: false }
    }

    /// Returns the refusal with the option that caused it.
    pub(crate) fn of_option(self, kind: u32) -> Refusal {
        Refusal { option: Some(kind), ..self }
    }
}

/// Refuses a request with `errno` and a reason for people.
pub(crate) fn refuse<T>(errno: i32, why: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::new(errno, without_codes(&why.into()).into_owned()))
}

/// Refuses a request for a reason that passes by itself within moments. A client sees `EAGAIN`.
pub(crate) fn refuse_for_now<T>(why: impl Into<String>) -> Result<T, Refusal> {
    refuse(EAGAIN, why).map_err(|refusal| Refusal { passes: true, ..refusal })
}

/// Refuses a request for which the daemon could not get something from the kernel.
pub(crate) fn refuse_lack<T>(what: &str, e: &io::Error) -> Result<T, Refusal> {
    let hint = match e.raw_os_error() {
        Some(EMFILE | ENFILE) => " (close a port, or raise the daemon's limit: LimitNOFILE=, ulimit -n)",
        _ => "",
    };
    refuse(ENOMEM, format!("{what}: {e}{hint}"))
}

/// Refuses a request after which there would be more bytes of something than there may be: `bounds` has the bytes then,
/// the bound, and whose they are. `what` is there in the plural, and `remedy` says how there are fewer.
pub(crate) fn check_bytes<const N: usize>(
    what: &str,
    bounds: [(usize, usize, String); N],
    remedy: &str,
) -> Result<(), Refusal> {
    let Some((all, most, whose)) = bounds.into_iter().find(|(all, most, _)| all > most) else { return Ok(()) };
    let [all, most] = [all, most].map(|bytes| bytes.div_ceil(1024));
    refuse(ENOMEM, format!("the {what} of {whose} would take {all} KiB, more than {most} ({remedy})"))
}

/// Parses a request.
pub(crate) fn decode<R: ControlRequest>(payload: &[u8]) -> Result<R, Refusal> {
    R::decode(payload).or_else(|_| refuse(EINVAL, "the request cannot be decoded"))
}

/// Returns an answer as JSON.
pub(crate) fn json(answer: &impl Serialize) -> Result<String, Refusal> {
    serde_json::to_string(answer).or_else(|e| refuse(EIO, format!("the answer cannot be written: {e}")))
}

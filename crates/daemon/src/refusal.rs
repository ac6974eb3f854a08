// SPDX-License-Identifier: BSD-2-Clause
//! A refused request: netmap's error number, and the reason.

use std::io;

use unetmap_core::errno::{EMFILE, ENFILE, ENOMEM};
use unetmap_core::without_codes;

/// Why a request was refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) errno: i32,
    pub(crate) why: String,
    /// The option (`NETMAP_REQ_OPT_*`) that caused it, if one did.
    pub(crate) option: Option<u32>,
}

impl Refusal {
    /// Returns the refusal with the option that caused it.
    pub(crate) fn of_option(self, kind: u32) -> Refusal {
        Refusal { option: Some(kind), ..self }
    }
}

/// Refuses a request with `errno` and a reason for people.
pub(crate) fn refuse<T>(errno: i32, why: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal { errno, why: without_codes(&why.into()).into_owned(), option: None })
}

/// Refuses a request for which the daemon could not get something from the kernel.
pub(crate) fn refuse_lack<T>(what: &str, e: &io::Error) -> Result<T, Refusal> {
    let hint = match e.raw_os_error() {
        Some(EMFILE | ENFILE) => " (close a port, or raise the daemon's limit: LimitNOFILE=, ulimit -n)",
        _ => "",
    };
    refuse(ENOMEM, format!("{what}: {e}{hint}"))
}

// SPDX-License-Identifier: BSD-2-Clause
//! Errors, as the CNI specification prints them.

use serde_json::{Value, json};

/// The numbers of the specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    IncompatibleVersion = 1,
    /// A value of the environment is missing or invalid.
    Environment = 4,
    Io = 5,
    /// The configuration is no JSON, or has wrong types.
    Decode = 6,
    /// The configuration is JSON, but a value in it is invalid.
    Config = 7,
    /// The plugin cannot serve ADD now.
    Unavailable = 50,
    /// The interface is not as it was made; the specification leaves numbers from 100 on to plugins.
    Check = 100,
    /// The daemon, the kernel, or the plugin of addresses refused.
    Refused = 101,
}

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Fault {
    Own {
        code: Code,
        text: String,
    },
    /// The error of another plugin, as it printed it.
    Delegated(Value),
}

impl Fault {
    pub(crate) fn new(code: Code, text: impl Into<String>) -> Fault {
        Fault::Own { code, text: text.into() }
    }

    pub(crate) fn refused(what: &str, why: impl std::fmt::Display) -> Fault {
        Fault::new(Code::Refused, format!("{what}: {why}"))
    }

    pub(crate) fn json(&self, version: &str) -> Value {
        match self {
            Fault::Own { code, text } => json!({ "cniVersion": version, "code": *code as u32, "msg": text }),
            Fault::Delegated(printed) => printed.clone(),
        }
    }
}

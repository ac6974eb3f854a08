// SPDX-License-Identifier: BSD-2-Clause
//! The daemon's replies in JSON.

use serde_json::Value;

/// Parses a daemon's reply, for the subcommand of this name.
pub fn parse_reply(subcommand: &str, json: &str) -> Result<Value, String> {
    serde_json::from_str(json).map_err(|e| {
        format!(
            "{subcommand}: the daemon's reply is not valid JSON ({e}); the daemon may be of another version (--json \
             prints the reply)"
        )
    })
}

/// Returns the members of an array; none for any other value.
pub fn members(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

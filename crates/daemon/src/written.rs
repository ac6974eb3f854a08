// SPDX-License-Identifier: BSD-2-Clause
//! The daemon's files, which are in TOML: how one is read, and its mistakes are told.

use std::fmt;
use std::ops::Range;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

/// A quantity: a number, or a text such as "4KiB".
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a number, or a quantity in quotes")]
pub(crate) enum Written {
    Number(i64),
    Text(String),
}

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Written::Number(number) => write!(f, "{number}"),
            Written::Text(text) => f.write_str(text),
        }
    }
}

/// A mistake in a file, and the byte at which it is, if it is at one.
#[derive(Debug)]
pub(crate) struct Wrong {
    pub(crate) at: Option<usize>,
    pub(crate) why: String,
}

pub(crate) fn wrong<T>(at: &Range<usize>, why: impl Into<String>) -> Result<T, Wrong> {
    Err(Wrong { at: Some(at.start), why: why.into() })
}

/// Parses a text; `manual` is the page that shows how it is written.
pub(crate) fn parse<T: DeserializeOwned>(text: &str, manual: &str) -> Result<T, Wrong> {
    toml::from_str(text).map_err(|e| Wrong {
        at: e.span().map(|span| span.start),
        why: format!("{}; {manual} shows how it is written", e.message().trim().replace('\n', ", ")),
    })
}

/// Reads the contents of a file with `read`.
///
/// # Errors
/// One sentence that begins with the file, and the line if there is one.
pub(crate) fn read<T>(path: &Path, bytes: &[u8], read: impl FnOnce(&str) -> Result<T, Wrong>) -> Result<T, String> {
    let text = std::str::from_utf8(bytes)
        .map_err(|e| Wrong { at: Some(e.valid_up_to()), why: "this is not UTF-8 text; save the file as such".into() });
    text.and_then(read).map_err(|Wrong { at, why }| match at {
        Some(at) => format!("{}:{}: {why}", path.display(), line_of(bytes, at)),
        None => format!("{}: {why}", path.display()),
    })
}

/// The line, from 1, of a byte.
pub(crate) fn line_of(bytes: &[u8], at: usize) -> usize {
    bytes.iter().take(at).filter(|b| **b == b'\n').count() + 1
}

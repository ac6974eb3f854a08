// SPDX-License-Identifier: BSD-2-Clause
//! A quantity in a TOML file: a number, or a text such as "4KiB".

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// The text of the quantity, a number's too.
pub(crate) struct Written(pub(crate) String);

struct AnyNumber;

impl Visitor<'_> for AnyNumber {
    type Value = Written;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, or a quantity in quotes")
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Written, E> {
        Ok(Written(number.to_string()))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Written, E> {
        Ok(Written(text.into()))
    }
}

impl<'de> Deserialize<'de> for Written {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Written, D::Error> {
        deserializer.deserialize_any(AnyNumber)
    }
}

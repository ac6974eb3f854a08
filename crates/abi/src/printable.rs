// SPDX-License-Identifier: BSD-2-Clause
//! Text that somebody else chose, as it may be shown: names of ports, programs and interfaces, paths, messages of
//! peers.
//!
//! A terminal obeys control characters; zero-width and bidirectional ones make a text look like another. Each is
//! written as an escape, `\u001b`, that JSON and TOML read as the character itself. Whatever a program prints, logs
//! or writes into a file passes one of these functions:
//!
//! | output | function |
//! |---|---|
//! | part of a line: a cell, a field of a log, a label | [`word`], or [`Shown`] in a format |
//! | lines on a terminal, also of JSON | [`text`], of which the tools' `print` and `note` make use |
//! | a string of TOML | [`toml_string`] |
//! | bytes that may not be UTF-8 | [`bytes`], as [`word`] |

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::ops::RangeInclusive;

/// Characters that are not seen, or that move or hide others: Unicode's general category Cf, separators of lines and
/// paragraphs, fillers, and selectors of variants. Control characters (Cc) come in addition.
const UNSEEN: [RangeInclusive<char>; 22] = [
    '\u{ad}'..='\u{ad}',
    '\u{34f}'..='\u{34f}',
    '\u{600}'..='\u{605}',
    '\u{61c}'..='\u{61c}',
    '\u{6dd}'..='\u{6dd}',
    '\u{70f}'..='\u{70f}',
    '\u{115f}'..='\u{1160}',
    '\u{17b4}'..='\u{17b5}',
    '\u{180b}'..='\u{180f}',
    '\u{200b}'..='\u{200f}',
    '\u{2028}'..='\u{202e}',
    '\u{2060}'..='\u{206f}',
    '\u{2800}'..='\u{2800}',
    '\u{3164}'..='\u{3164}',
    '\u{fe00}'..='\u{fe0f}',
    '\u{feff}'..='\u{feff}',
    '\u{ffa0}'..='\u{ffa0}',
    '\u{fff0}'..='\u{fffb}',
    '\u{13430}'..='\u{1345f}',
    '\u{1bca0}'..='\u{1bca3}',
    '\u{1d173}'..='\u{1d17a}',
    '\u{e0000}'..='\u{e0fff}',
];

/// Whether a character is seen as itself wherever it stands.
pub fn is_printable(c: char) -> bool {
    !c.is_control() && (c.is_ascii() || !UNSEEN.iter().any(|range| range.contains(&c)))
}

/// A part of a line: everything else than printable characters is escaped, as `\n`, `\t` and `\u001b`.
pub fn word(text: &str) -> Cow<'_, str> {
    escaped(text, is_printable)
}

/// Lines: as [`word`], but ends of lines and tabs are left. JSON stays JSON, and means the same.
pub fn text(text: &str) -> Cow<'_, str> {
    escaped(text, |c| is_printable(c) || matches!(c, '\n' | '\t'))
}

/// As [`word`]; a byte that is no part of UTF-8 is written as `\xff`.
pub fn bytes(bytes: &[u8]) -> String {
    let mut shown = String::new();
    for chunk in bytes.utf8_chunks() {
        shown += &word(chunk.valid());
        // Writing to a string does not fail.
        chunk.invalid().iter().for_each(|byte| _ = write!(shown, "\\x{byte:02x}"));
    }
    shown
}

/// A string of TOML, with its quotes.
pub fn toml_string(text: &str) -> String {
    let mut quoted = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if is_printable(c) => quoted.push(c),
            c if u32::from(c) > 0xffff => _ = write!(quoted, "\\U{:08X}", u32::from(c)),
            c => _ = write!(quoted, "\\u{:04X}", u32::from(c)),
        }
    }
    quoted.push('"');
    quoted
}

/// A text that is shown as by [`word`]: a type for what somebody else chose, which cannot be printed otherwise.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Shown<'a>(pub &'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&word(self.0))
    }
}

fn escaped(text: &str, is_left: impl Fn(char) -> bool) -> Cow<'_, str> {
    if text.chars().all(&is_left) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            c if is_left(c) => shown.push(c),
            '\n' => shown += "\\n",
            '\t' => shown += "\\t",
            // As JSON has it: beyond 16 bits two units of UTF-16.
            c => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| _ = write!(shown, "\\u{unit:04x}")),
        }
    }
    shown.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HOSTILE: &str = "a\u{1b}[2J\r\n\t\u{7f}\u{9b}\u{200b}\u{202e}\u{2066}\u{feff}\u{e0041}z";

    #[test]
    fn what_moves_hides_or_controls_is_escaped() {
        let shown = r"a\u001b[2J\u000d\n\t\u007f\u009b\u200b\u202e\u2066\ufeff\udb40\udc41z";
        assert_eq!(word(HOSTILE), shown);
        assert_eq!(Shown(HOSTILE).to_string(), shown);
        assert_eq!(format!("{:3}|", Shown("a")), "a  |");
        assert_eq!(text("a\u{1b}\n\tb"), "a\\u001b\n\tb");
        for plain in ["", "vale0:a{1 é 日本 → \u{fffd}", "back\\slash \"quotes\""] {
            assert_eq!((word(plain), text(plain)), (plain.into(), plain.into()));
        }
        assert_eq!(bytes(b"a\xff\xc3\x28\x1b\xe2\x80\xae"), r"a\xff\xc3(\u001b\u202e");
    }

    proptest! {
        #[test]
        fn only_printable_characters_are_left(any in ".*", raw in proptest::collection::vec(any::<u8>(), 0..64)) {
            prop_assert!(word(&any).chars().all(is_printable));
            prop_assert!(text(&any).chars().all(|c| is_printable(c) || c == '\n' || c == '\t'));
            prop_assert!(bytes(&raw).chars().all(is_printable));
            prop_assert!(toml_string(&any).chars().all(is_printable));
        }

        #[test]
        fn json_means_the_same(any in ".*") {
            let json = serde_json::to_string(&[any.as_str(), HOSTILE]).unwrap();
            let back: Vec<String> = serde_json::from_str(&text(&json)).unwrap();
            prop_assert_eq!(back, [any.as_str(), HOSTILE]);
        }
    }
}

// SPDX-License-Identifier: BSD-2-Clause
//! Words of a line, each with its place.

use std::fmt;

use unetmap_suggest::did_you_mean;

/// Why a text was refused, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntaxError {
    /// From 1.
    pub line: usize,
    /// From 1, in characters.
    pub column: usize,
    /// The fault, and the words that are valid there.
    pub message: String,
}

impl fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: {}", self.line, self.column, self.message)
    }
}

impl std::error::Error for SyntaxError {}

/// Returns the text of a script.
///
/// # Errors
/// The place of the first byte that is no text: not UTF-8, or a control character other than a tab or the end of a
/// line, which a listing would bring to a terminal.
pub fn text(bytes: &[u8]) -> Result<&str, SyntaxError> {
    let (valid, text) = match std::str::from_utf8(bytes) {
        Ok(text) => (text, Some(text)),
        Err(e) => (std::str::from_utf8(&bytes[..e.valid_up_to()]).unwrap_or_default(), None),
    };
    let is_wrong = |(at, c): &(usize, char)| {
        let ends_line = *c == '\n' || *c == '\r' && bytes.get(at + 1) == Some(&b'\n');
        c.is_control() && *c != '\t' && !ends_line
    };
    let (end, message) = match (valid.char_indices().find(is_wrong), text) {
        (Some((at, c)), _) => (at, format!("a control character, {:#04x}; a file of rules is text", u32::from(c))),
        (None, Some(text)) => return Ok(text),
        (None, None) => {
            let byte = bytes.get(valid.len()).copied().unwrap_or_default();
            (valid.len(), format!("the byte {byte:#04x} is not UTF-8; a file of rules is text"))
        }
    };
    let line = valid[..end].rsplit('\n').next().unwrap_or_default();
    let lines = valid[..end].matches('\n').count();
    Err(SyntaxError { line: lines + 1, column: line.chars().count() + 1, message })
}

/// A word and its column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Word {
    pub(crate) text: String,
    column: usize,
}

/// The words of one line that were not read yet.
pub(crate) struct Words<'a> {
    line: usize,
    words: &'a [Word],
    at: usize,
    end: usize,
    /// The text after `//`.
    pub(crate) comment: Option<&'a str>,
}

/// A line, split into words.
pub(crate) struct Line {
    number: usize,
    words: Vec<Word>,
    end: usize,
    comment: Option<String>,
}

impl Line {
    /// Splits a line: `#` begins a comment that is skipped, `//` one that belongs to the rule. Words are separated by
    /// blanks, and by braces unless these belong to a word, as in `table(1)` and `10.0.0.0/24{1,5-9}`. A blank after a
    /// comma does not end a word.
    pub(crate) fn split(text: &str, number: usize) -> Line {
        let text = text.split('#').next().unwrap_or_default();
        let mut line = Line { number, words: Vec::new(), end: text.chars().count() + 1, comment: None };
        let mut column = 1;
        for part in text.split_inclusive(char::is_whitespace) {
            let word = part.trim_end();
            let begin = column;
            column += part.chars().count();
            if word == "//" {
                line.comment = Some(text.chars().skip(begin + 1).collect::<String>().trim().to_owned());
                return line;
            }
            if !word.is_empty() {
                line.push(word, begin);
            }
        }
        line
    }

    fn push(&mut self, word: &str, mut column: usize) {
        let mut word = word;
        while let Some(rest) = word.strip_prefix(['{', '(']) {
            self.words.push(Word { text: "{".into(), column });
            word = rest;
            column += 1;
        }
        let mut closing = 0;
        while let Some(rest) = word.strip_suffix(['}', ')']) {
            let opened = word.chars().filter(|c| "{(".contains(*c)).count();
            let closed = word.chars().filter(|c| "})".contains(*c)).count();
            if closed <= opened {
                break;
            }
            word = rest;
            closing += 1;
        }
        if !word.is_empty() {
            match self.words.last_mut() {
                Some(last) if last.text.ends_with(',') => last.text.push_str(word),
                _ => {
                    let text = match word {
                        "|" => "or",
                        "!" => "not",
                        _ => word,
                    };
                    self.words.push(Word { text: text.into(), column });
                }
            }
        }
        let end = column + word.chars().count();
        self.words.extend((0..closing).map(|i| Word { text: "}".into(), column: end + i }));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.words.is_empty() && self.comment.is_none()
    }

    pub(crate) fn words(&self) -> Words<'_> {
        Words { line: self.number, words: &self.words, at: 0, end: self.end, comment: self.comment.as_deref() }
    }
}

impl<'a> Words<'a> {
    /// The next word, which remains the next.
    pub(crate) fn peek(&self) -> Option<&'a str> {
        self.peek_at(0)
    }

    /// The word `n` after the next one.
    pub(crate) fn peek_at(&self, n: usize) -> Option<&'a str> {
        self.words.get(self.at + n).map(|word| word.text.as_str())
    }

    /// Returns the next word.
    pub(crate) fn next(&mut self) -> Option<&'a str> {
        let word = self.peek()?;
        self.at += 1;
        Some(word)
    }

    /// The word after the next `word`, wherever that is; nothing is read.
    pub(crate) fn value_of(&self, word: &str) -> Option<&'a str> {
        let at = self.words.get(self.at..)?.iter().position(|other| other.text == word)?;
        self.peek_at(at + 1)
    }

    /// Returns the next word. `what` says what it should be, if there is none.
    pub(crate) fn required(&mut self, what: &str) -> Result<&'a str, SyntaxError> {
        match self.next() {
            Some(word) => Ok(word),
            None => Err(self.error_here(format!("the line ends; give {what}"))),
        }
    }

    /// Reads the next word if it is `word`.
    pub(crate) fn accept(&mut self, word: &str) -> bool {
        let found = self.peek() == Some(word);
        self.at += usize::from(found);
        found
    }

    /// An error about the word that was read last.
    pub(crate) fn error(&self, message: impl Into<String>) -> SyntaxError {
        let column = self.words.get(self.at.saturating_sub(1)).map_or(1, |word| word.column);
        SyntaxError { line: self.line, column, message: message.into() }
    }

    /// An error about the next word, or the end of the line.
    pub(crate) fn error_here(&self, message: impl Into<String>) -> SyntaxError {
        let column = self.words.get(self.at).map_or(self.end, |word| word.column);
        SyntaxError { line: self.line, column, message: message.into() }
    }

    /// Returns an error if a word is left.
    pub(crate) fn end(&self) -> Result<(), SyntaxError> {
        match self.peek() {
            None => Ok(()),
            Some(word) => Err(self.error_here(format!("`{word}`: nothing more is expected here"))),
        }
    }
}

/// Returns the one of `known` that `word` is, or that alone begins with it.
///
/// # Errors
/// The words that may have been meant, for the end of a sentence.
pub(crate) fn of_beginning(word: &str, known: &[&'static str]) -> Result<&'static str, String> {
    let found: Vec<&str> = known.iter().copied().filter(|known| known.starts_with(word)).collect();
    match (known.iter().find(|known| **known == word), found.as_slice()) {
        (Some(exact), _) => Ok(exact),
        (None, [one]) => Ok(one),
        (None, []) => Err(did_you_mean(word, known.iter().copied())),
        (None, several) => Err(format!("; it may be {}", listed(several))),
    }
}

/// Returns words as a sentence has them: `a, b or c`.
pub(crate) fn listed(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [others @ .., last] => format!("{} or {last}", others.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str) -> Vec<String> {
        Line::split(text, 1).words.iter().map(|word| format!("{}@{}", word.text, word.column)).collect()
    }

    #[test]
    fn what_is_no_text_is_refused_with_its_place() {
        for good in ["", "add allow ip from any to any // Gr\u{fc}n\r\n\tlist", "\u{2028}"] {
            assert_eq!(text(good.as_bytes()), Ok(good));
        }
        for (bytes, line, column, part) in [
            (&b"\0"[..], 1, 1, "control character, 0x00"),
            (b"add 1\nd\xc3\xa9ny\0", 2, 5, "control character, 0x00"),
            (b"a\n\nb\xff", 3, 2, "the byte 0xff is not UTF-8"),
            (b"add // \x1b[2J", 1, 8, "0x1b"),
            (b"a\rb\n", 1, 2, "0x0d"),
            (b"\0\xff", 1, 1, "0x00"),
            (b"\xff\0", 1, 1, "0xff"),
            // A character that is cut by the end.
            (b"ab\xe2\x82", 1, 3, "0xe2"),
        ] {
            let error = text(bytes).unwrap_err();
            assert_eq!((error.line, error.column), (line, column), "{bytes:?}: {error}");
            assert!(error.message.contains(part), "{bytes:?}: {error}");
        }
    }

    #[test]
    fn braces_are_words_unless_they_belong_to_one() {
        assert_eq!(split(" add {a or ! b} #x"), ["add@2", "{@6", "a@7", "or@9", "not@12", "b@14", "}@15"]);
        assert_eq!(split("table(1) 10.0.0.0/24{1,5-9}"), ["table(1)@1", "10.0.0.0/24{1,5-9}@10"]);
        assert_eq!(split("{table(1) | table(2)}"), ["{@1", "table(1)@2", "or@11", "table(2)@13", "}@21"]);
        assert_eq!(split("1, 2,3 4"), ["1,2,3@1", "4@8"]);
        let line = Line::split("allow // a b ", 1);
        assert_eq!((line.words.len(), line.comment.as_deref()), (1, Some("a b")));
    }
}

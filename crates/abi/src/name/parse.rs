// SPDX-License-Identifier: BSD-2-Clause
//! The parser: one function for each rule of the grammar, in the order of the grammar.

use super::{FLAGS, PipeEnd, PipeRole, PortKind, PortOptions, PortSpec, Rings};
use crate::constants::{NETMAP_REQ_IFNAMSIZ, NETMAP_RING_MASK, NM_BDG_NAME};
use crate::printable::{is_printable, word};

/// Characters that end an interface name.
const SEPARATORS: [char; 6] = ['{', '}', '^', '*', '/', '@'];

/// An error at a byte position of the whole name.
pub(super) struct ParseError {
    pub(super) at: usize,
    pub(super) message: String,
}

/// A cursor: `[0, at)` of the text is consumed. The text is the whole name or a prefix of it, so that positions in the
/// text are positions in the name.
pub(super) struct Parser<'a> {
    text: &'a str,
    at: usize,
    exists: &'a dyn Fn(&str) -> bool,
}

impl<'a> Parser<'a> {
    pub(super) fn new(text: &'a str, exists: &'a dyn Fn(&str) -> bool) -> Self {
        Self { text, at: 0, exists }
    }

    /// A parser of the part `[from, to)` of this parser's text. Both are positions of ASCII characters or ends of the
    /// text.
    pub(super) fn part(&self, from: usize, to: usize) -> Self {
        Self { text: &self.text[..to], at: from, exists: self.exists }
    }

    pub(super) fn at(&self) -> usize {
        self.at
    }

    pub(super) fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    /// Consumes `c` if it is the next character; returns whether it was.
    pub(super) fn eat(&mut self, c: char) -> bool {
        let found = self.peek() == Some(c);
        if found {
            self.at += c.len_utf8();
        }
        found
    }

    /// Consumes and returns characters as long as `accepted` returns true.
    pub(super) fn take_while(&mut self, accepted: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let run = &rest[..rest.find(|c| !accepted(c)).unwrap_or(rest.len())];
        self.at += run.len();
        run
    }

    /// Returns an error at the next character.
    pub(super) fn error<T>(&self, message: impl Into<String>) -> Result<T, ParseError> {
        self.error_at(self.at, message)
    }

    /// Returns an error at position `at`.
    pub(super) fn error_at<T>(&self, at: usize, message: impl Into<String>) -> Result<T, ParseError> {
        Err(ParseError { at, message: message.into() })
    }

    /// Returns an error if any text is left.
    pub(super) fn end(&self) -> Result<(), ParseError> {
        match self.peek() {
            Some(c) => self.error(format!("unexpected '{}'", word(&c.to_string()))),
            None => Ok(()),
        }
    }

    pub(super) fn spec(&mut self) -> Result<PortSpec, ParseError> {
        let (kind, start) = self.port()?;
        let parent = self.text[start..self.at].to_owned();
        let pipe = self.pipe()?;
        let name = &self.text[start..self.at];
        if name.len() >= NETMAP_REQ_IFNAMSIZ {
            let max = NETMAP_REQ_IFNAMSIZ - 1;
            let too_far = (start + max..).find(|&at| self.text.is_char_boundary(at));
            let message = format!("the port name has {} bytes, the maximum is {max}", name.len());
            return self.error_at(too_far.unwrap_or(start), message);
        }
        let name = name.to_owned();

        let mut rings = None;
        let mut flags = None;
        let mut mem_id = None;
        let mut options = PortOptions::default();
        while let Some(c) = self.peek() {
            match c {
                '^' | '*' | '-' if rings.is_some() => {
                    return self.error("a second ring suffix: at most one of -N ^ ^N * is allowed");
                }
                '^' | '*' | '-' => rings = Some(self.mode()?),
                '/' if flags.is_some() => return self.error("a second group of flags: at most one is allowed"),
                '/' => flags = Some(self.flags()?),
                '@' if self.rest()[1..].starts_with(|c: char| c.is_ascii_digit()) => {
                    mem_id = Some(self.mem_id(mem_id)?);
                }
                '@' => options = PortOptions::parse(self)?,
                '{' | '}' if pipe.is_some() => {
                    return self.error("a second pipe separator: a pipe has no pipes");
                }
                '{' | '}' => {
                    return self.error(format!("'{c}' must directly follow the port name"));
                }
                _ => break,
            }
        }
        self.end()?;
        Ok(PortSpec {
            name,
            kind,
            pipe,
            parent,
            rings: rings.unwrap_or_default(),
            flags: flags.unwrap_or(0),
            mem_id: mem_id.unwrap_or(0),
            options,
        })
    }

    /// `"netmap:" name | "vale" [ ident ] ":" ident`. Returns the kind and the position where the name for requests
    /// begins.
    fn port(&mut self) -> Result<(PortKind, usize), ParseError> {
        let start = self.at;
        if self.rest().starts_with("netmap:") {
            self.at += "netmap:".len();
            let start = self.at;
            self.interface()?;
            Ok((PortKind::Netmap, start))
        } else if self.rest().starts_with(NM_BDG_NAME) {
            self.at += NM_BDG_NAME.len();
            self.take_while(is_ident);
            if !self.eat(':') {
                return self.error("':' is missing after the name of the switch (letters, digits, '_')");
            }
            self.ident("a VALE port")?;
            Ok((PortKind::Vale, start))
        } else {
            // After "netmap" only the colon can be wrong.
            self.at += if self.rest().starts_with("netmap") { "netmap".len() } else { 0 };
            self.error("a port name is netmap:NAME or valeSWITCH:PORT")
        }
    }

    /// The name of an interface: any characters except those that Linux or the grammar reserves. It may contain `-`
    /// that does not begin the ring suffix.
    fn interface(&mut self) -> Result<(), ParseError> {
        let start = self.at;
        let name = self.take_while(|c| !SEPARATORS.contains(&c) && c != ':' && !c.is_whitespace() && is_printable(c));
        if self.peek() == Some(':') {
            return match name.starts_with(NM_BDG_NAME) {
                true => self.error_at(start, "the name of a VALE port begins with vale, not netmap:"),
                false => self.error("an interface name contains no ':'"),
            };
        }
        if name.is_empty() {
            return self.error("the name of an interface or of a pipe's parent is missing");
        }
        if name == "." || name == ".." {
            return self.error_at(start, "no interface can have this name");
        }
        if let Some((front, digits)) = name.rsplit_once('-')
            && digits.bytes().all(|b| b.is_ascii_digit())
            && !(self.exists)(name)
        {
            let dash = start + front.len();
            if digits.is_empty() {
                return self.error("a ring number is missing after '-'");
            }
            if front.is_empty() {
                return self.error_at(dash, "a name is missing before '-'");
            }
            if front.ends_with('-') {
                return self.error_at(dash, "a ring number has no sign");
            }
            self.at = dash;
        }
        Ok(())
    }

    fn pipe(&mut self) -> Result<Option<PipeEnd>, ParseError> {
        let role = match self.peek() {
            Some('{') => PipeRole::Master,
            Some('}') => PipeRole::Slave,
            _ => return Ok(None),
        };
        self.at += 1;
        let id = self.ident("a pipe")?.to_owned();
        Ok(Some(PipeEnd { role, id }))
    }

    fn ident(&mut self, of: &str) -> Result<&'a str, ParseError> {
        match self.take_while(is_ident) {
            "" => self.error(format!("the name of {of} is missing (letters, digits, '_')")),
            ident => Ok(ident),
        }
    }

    fn mode(&mut self) -> Result<Rings, ParseError> {
        if self.eat('*') {
            return Ok(Rings::NicSw);
        }
        let host = self.eat('^');
        if host && !self.rest().starts_with(|c: char| c.is_ascii_digit()) {
            return Ok(Rings::Sw);
        }
        self.eat('-');
        let ring = self.number("a ring number", 0, u64::from(NETMAP_RING_MASK - 1))?;
        Ok(if host { Rings::OneSw(ring) } else { Rings::OneNic(ring) })
    }

    fn flags(&mut self) -> Result<u64, ParseError> {
        self.at += 1;
        let mut flags = 0;
        loop {
            match (self.peek(), FLAGS.iter().find(|(letter, _)| self.peek() == Some(*letter))) {
                (_, Some((letter, bit))) => {
                    self.eat(*letter);
                    flags |= bit;
                }
                (Some(c), None) if c.is_alphanumeric() => {
                    return self.error(format!("unknown flag '{c}' (flags are x d z t r R T)"));
                }
                _ if flags == 0 => return self.error("a flag is missing (x d z t r R T)"),
                _ => return Ok(flags),
            }
        }
    }

    fn mem_id(&mut self, before: Option<u16>) -> Result<u16, ParseError> {
        self.at += 1;
        let start = self.at;
        let mem_id = self.number("a region number", 1, u64::from(u16::MAX))?;
        match before {
            Some(before) if before != mem_id => {
                self.error_at(start, format!("a second region number, different from @{before}"))
            }
            _ => Ok(mem_id),
        }
    }

    /// Parses a decimal number in `min..=max`, where `max` fits into `T`. `what` names it in errors.
    pub(super) fn number<T: TryFrom<u64>>(&mut self, what: &str, min: u64, max: u64) -> Result<T, ParseError> {
        let start = self.at;
        let digits = self.take_while(|c| c.is_ascii_digit());
        if digits.is_empty() {
            return self.error(format!("{what} is missing ({min}..{max})"));
        }
        // Digits fail to parse only if there are too many.
        let value = digits.parse().ok().filter(|n| (min..=max).contains(n));
        match value.and_then(|n| T::try_from(n).ok()) {
            Some(n) => Ok(n),
            None => self.error_at(start, format!("{what} must be {min}..{max}")),
        }
    }
}

fn is_ident(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

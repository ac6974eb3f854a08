//! The parser: one function for each rule of the grammar, in the order of the grammar.

use super::{FLAGS, PipeEnd, PipeRole, PortKind, PortOptions, PortSpec, Rings};
use crate::constants::{NETMAP_REQ_IFNAMSIZ, NETMAP_RING_MASK, NM_BDG_NAME};

/// The sign that ends an interface's name, if it is none of the name's own.
const SIGNS: [char; 6] = ['{', '}', '^', '*', '/', '@'];

/// Something wrong at a byte position of the whole name.
pub(super) struct Fault {
    pub(super) at: usize,
    pub(super) what: String,
}

/// A cursor: `[0, at)` of the text is read. The text is the whole name, or its part up to some end, so that positions
/// in it are positions in the name.
pub(super) struct Parser<'a> {
    text: &'a str,
    at: usize,
    exists: &'a dyn Fn(&str) -> bool,
}

impl<'a> Parser<'a> {
    pub(super) fn new(text: &'a str, exists: &'a dyn Fn(&str) -> bool) -> Self {
        Self { text, at: 0, exists }
    }

    /// A parser of the part `[from, to)` of this one's text. Both are positions of ASCII characters or ends.
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

    /// Reads `c` if it is next.
    pub(super) fn eat(&mut self, c: char) -> bool {
        let found = self.peek() == Some(c);
        if found {
            self.at += c.len_utf8();
        }
        found
    }

    /// Reads characters as long as they satisfy `wanted`.
    pub(super) fn take_while(&mut self, wanted: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let run = &rest[..rest.find(|c| !wanted(c)).unwrap_or(rest.len())];
        self.at += run.len();
        run
    }

    /// A fault at the next character.
    pub(super) fn fault<T>(&self, what: impl Into<String>) -> Result<T, Fault> {
        self.fault_at(self.at, what)
    }

    pub(super) fn fault_at<T>(&self, at: usize, what: impl Into<String>) -> Result<T, Fault> {
        Err(Fault { at, what: what.into() })
    }

    /// A fault if anything is left.
    pub(super) fn end(&self) -> Result<(), Fault> {
        match self.peek() {
            Some(c) => self.fault(format!("'{}' has no meaning here", c.escape_debug())),
            None => Ok(()),
        }
    }

    pub(super) fn spec(&mut self) -> Result<PortSpec, Fault> {
        let (kind, start) = self.port()?;
        let parent = self.text[start..self.at].to_owned();
        let pipe = self.pipe()?;
        let name = &self.text[start..self.at];
        if name.len() >= NETMAP_REQ_IFNAMSIZ {
            let max = NETMAP_REQ_IFNAMSIZ - 1;
            let too_far = (start + max..).find(|&at| self.text.is_char_boundary(at));
            let what = format!("a port's name has at most {max} bytes, this one {}", name.len());
            return self.fault_at(too_far.unwrap_or(start), what);
        }
        let name = name.to_owned();

        let mut rings = None;
        let mut flags = None;
        let mut mem_id = None;
        let mut options = PortOptions::default();
        while let Some(c) = self.peek() {
            match c {
                '^' | '*' | '-' if rings.is_some() => {
                    return self.fault("the rings were chosen already (one of -N ^ ^N *)");
                }
                '^' | '*' | '-' => rings = Some(self.mode()?),
                '/' if flags.is_some() => return self.fault("only one group of flags, please"),
                '/' => flags = Some(self.flags()?),
                '@' if self.rest()[1..].starts_with(|c: char| c.is_ascii_digit()) => {
                    mem_id = Some(self.mem_id(mem_id)?);
                }
                '@' => options = PortOptions::parse(self)?,
                '{' | '}' if pipe.is_some() => {
                    return self.fault("a second pipe sign: a pipe has no pipes");
                }
                '{' | '}' => {
                    return self.fault(format!("'{c}' must follow right behind the port's name"));
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

    /// `"netmap:" name | "vale" [ ident ] ":" ident`; where the name for requests begins.
    fn port(&mut self) -> Result<(PortKind, usize), Fault> {
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
                return self.fault("a switch's name (letters, digits, '_') ends with ':'");
            }
            self.ident("a VALE port")?;
            Ok((PortKind::Vale, start))
        } else {
            // Past "netmap" only the colon can be wrong.
            self.at += if self.rest().starts_with("netmap") { "netmap".len() } else { 0 };
            self.fault("a port is netmap:NAME or valeSWITCH:PORT")
        }
    }

    /// The name of an interface, which may have any character but those that Linux or the grammar keeps to itself,
    /// and `-` wherever it is not the ring suffix.
    fn interface(&mut self) -> Result<(), Fault> {
        let start = self.at;
        let name = self.take_while(|c| !SIGNS.contains(&c) && c != ':' && !c.is_whitespace() && !c.is_control());
        if self.peek() == Some(':') {
            return match name.starts_with(NM_BDG_NAME) {
                true => self.fault_at(start, "a VALE port's name begins with vale, not netmap:"),
                false => self.fault("an interface's name has no ':'"),
            };
        }
        if name.is_empty() {
            return self.fault("the name of an interface or a pipe's parent is missing");
        }
        if name == "." || name == ".." {
            return self.fault_at(start, "no interface has this name");
        }
        if let Some((front, digits)) = name.rsplit_once('-')
            && digits.bytes().all(|b| b.is_ascii_digit())
            && !(self.exists)(name)
        {
            let dash = start + front.len();
            if digits.is_empty() {
                return self.fault("a ring number is missing behind '-'");
            }
            if front.is_empty() {
                return self.fault_at(dash, "a name is missing in front of '-'");
            }
            if front.ends_with('-') {
                return self.fault_at(dash, "a ring number has no sign");
            }
            self.at = dash;
        }
        Ok(())
    }

    fn pipe(&mut self) -> Result<Option<PipeEnd>, Fault> {
        let role = match self.peek() {
            Some('{') => PipeRole::Master,
            Some('}') => PipeRole::Slave,
            _ => return Ok(None),
        };
        self.at += 1;
        let id = self.ident("a pipe")?.to_owned();
        Ok(Some(PipeEnd { role, id }))
    }

    fn ident(&mut self, of: &str) -> Result<&'a str, Fault> {
        match self.take_while(is_ident) {
            "" => self.fault(format!("the name of {of} is missing (letters, digits, '_')")),
            ident => Ok(ident),
        }
    }

    fn mode(&mut self) -> Result<Rings, Fault> {
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

    fn flags(&mut self) -> Result<u64, Fault> {
        self.at += 1;
        let mut flags = 0;
        loop {
            match (self.peek(), FLAGS.iter().find(|(letter, _)| self.peek() == Some(*letter))) {
                (_, Some((letter, bit))) => {
                    self.eat(*letter);
                    flags |= bit;
                }
                (Some(c), None) if c.is_alphanumeric() => {
                    return self.fault(format!("unknown flag '{c}' (flags are x z t r R T)"));
                }
                _ if flags == 0 => return self.fault("a flag is missing (x z t r R T)"),
                _ => return Ok(flags),
            }
        }
    }

    fn mem_id(&mut self, before: Option<u16>) -> Result<u16, Fault> {
        self.at += 1;
        let start = self.at;
        let mem_id = self.number("a region's number", 1, u64::from(u16::MAX))?;
        match before {
            Some(before) if before != mem_id => self.fault_at(start, format!("another region than @{before} in front")),
            _ => Ok(mem_id),
        }
    }

    /// A decimal number of `what` in `min..=max`, where `max` fits into `T`.
    pub(super) fn number<T: TryFrom<u64>>(&mut self, what: &str, min: u64, max: u64) -> Result<T, Fault> {
        let start = self.at;
        let digits = self.take_while(|c| c.is_ascii_digit());
        if digits.is_empty() {
            return self.fault(format!("{what} is missing ({min}..{max})"));
        }
        // The only way for digits not to parse is to be too many.
        let value = digits.parse().ok().filter(|n| (min..=max).contains(n));
        match value.and_then(|n| T::try_from(n).ok()) {
            Some(n) => Ok(n),
            None => self.fault_at(start, format!("{what} is {min}..{max}")),
        }
    }
}

fn is_ident(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

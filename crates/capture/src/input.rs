// SPDX-License-Identifier: BSD-2-Clause
//! The bytes of a file in order, with numbers of either byte order.

use std::io::{self, BufRead as _, BufReader, Read};

/// Why a record is not read.
#[derive(Debug)]
pub(crate) enum Fault {
    Io(io::Error),
    /// The file ends here.
    End,
    /// The fault, as a sentence.
    Wrong(String),
}

impl Fault {
    pub(crate) fn wrong<T>(what: impl Into<String>) -> Result<T, Fault> {
        Err(Fault::Wrong(what.into()))
    }
}

/// The byte order of a file, or of a section of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Little,
    Big,
}

impl Order {
    pub(crate) fn u16(self, bytes: [u8; 2]) -> u16 {
        if self == Order::Big { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) }
    }

    pub(crate) fn u32(self, bytes: [u8; 4]) -> u32 {
        if self == Order::Big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
    }

    pub(crate) fn i64(self, bytes: [u8; 8]) -> i64 {
        if self == Order::Big { i64::from_be_bytes(bytes) } else { i64::from_le_bytes(bytes) }
    }
}

/// A file that is read from its beginning to its end, once.
pub(crate) struct Input<R> {
    from: BufReader<R>,
    /// Bytes read so far.
    pub(crate) position: u64,
}

impl<R: Read> Input<R> {
    pub(crate) fn new(from: R) -> Input<R> {
        Input { from: BufReader::with_capacity(1 << 16, from), position: 0 }
    }

    /// Whether no byte follows.
    pub(crate) fn is_at_end(&mut self) -> Result<bool, Fault> {
        loop {
            match self.from.fill_buf() {
                Ok(bytes) => return Ok(bytes.is_empty()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Fault::Io(e)),
            }
        }
    }

    /// Fills `to`.
    pub(crate) fn read(&mut self, to: &mut [u8]) -> Result<(), Fault> {
        self.from.read_exact(to).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => Fault::End,
            _ => Fault::Io(e),
        })?;
        self.position += to.len() as u64;
        Ok(())
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let mut bytes = [0; N];
        self.read(&mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn words<const N: usize>(&mut self, order: Order) -> Result<[u32; N], Fault> {
        let mut words = [0; N];
        for word in &mut words {
            *word = order.u32(self.array()?);
        }
        Ok(words)
    }

    /// Passes over `count` bytes, without memory for them.
    pub(crate) fn skip(&mut self, count: u64) -> Result<(), Fault> {
        let passed = io::copy(&mut (&mut self.from).take(count), &mut io::sink()).map_err(Fault::Io)?;
        self.position += passed;
        if passed == count { Ok(()) } else { Err(Fault::End) }
    }
}

// SPDX-License-Identifier: BSD-2-Clause
//! The packets of a capture file, of whatever link type.

use std::io::Read;
use std::time::Duration;

use crate::input::{Fault, Input};
use crate::pcap::Pcap;
use crate::pcapng::{self, Pcapng};
use crate::{Error, LinkType, MAX_PACKET};

/// A packet, as a file describes it.
pub(crate) struct Header {
    pub(crate) time: Option<Duration>,
    pub(crate) link: LinkType,
    /// Length of the captured packet, with its FCS if that was captured.
    pub(crate) original: u32,
    /// Bytes of FCS at the end of the captured packet.
    pub(crate) fcs: u8,
}

/// A packet of a capture file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Since 1970; `None`: the record has no time (simple packets of pcapng).
    pub time: Option<Duration>,
    /// Link type of the interface.
    pub link: LinkType,
    /// The stored bytes, without FCS; at most [`MAX_PACKET`], and none if the link type is not Ethernet and there are
    /// more.
    pub bytes: &'a [u8],
    /// Bytes that the packet had when it was captured, without FCS; at least `bytes.len()`.
    pub original: usize,
}

enum Format {
    Pcap(Pcap),
    Pcapng(Pcapng),
}

/// Reads a file from its beginning to its end, without seeks.
pub struct Reader<R> {
    input: Input<R>,
    format: Format,
    data: Vec<u8>,
    packets: u64,
    /// The rest of the file cannot be read.
    failed: bool,
}

impl<R: Read> Reader<R> {
    /// Reads the header of a file.
    ///
    /// # Errors
    /// The file cannot be read, or is not a pcap or pcapng file.
    pub fn new(from: R) -> Result<Reader<R>, Error> {
        let mut input = Input::new(from);
        let format = open(&mut input).map_err(|fault| match fault {
            Fault::Io(error) => Error::Io(error),
            Fault::End => Error::Format("it is not a pcap or pcapng file: it ends within the header".into()),
            Fault::Wrong(what) => Error::Format(what),
        })?;
        Ok(Reader { input, format, data: Vec::new(), packets: 0, failed: false })
    }

    /// Returns the link type of all packets, if the file has only one: it is in pcap's header.
    pub fn link(&self) -> Option<LinkType> {
        match &self.format {
            Format::Pcap(pcap) => Some(pcap.link()),
            Format::Pcapng(_) => None,
        }
    }

    /// Returns the next packet, `None` at the end of the file.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged here or ends within a record. Later calls return `None`.
    pub fn next_packet(&mut self) -> Result<Option<Packet<'_>>, Error> {
        if self.failed {
            return Ok(None);
        }
        let next = match &mut self.format {
            Format::Pcap(pcap) => pcap.next(&mut self.input, &mut self.data),
            Format::Pcapng(pcapng) => pcapng.next(&mut self.input, &mut self.data),
        };
        let header = match next {
            Ok(Some(header)) => header,
            Ok(None) => return Ok(None),
            Err(fault) => {
                self.failed = true;
                let after = format!("after packet {}", self.packets);
                return Err(match fault {
                    Fault::Io(error) => Error::Io(error),
                    Fault::End => Error::Format(format!("it ends within a record, {after}")),
                    Fault::Wrong(what) => Error::Format(format!("it is damaged {after}: {what}")),
                });
            }
        };
        self.packets += 1;
        // Some programs write an original length below that of what they stored. The end of a packet that was truncated
        // is not stored, and the FCS is that end.
        let original = (header.original as usize).max(self.data.len()).saturating_sub(header.fcs.into());
        let bytes = &self.data[..self.data.len().min(original)];
        Ok(Some(Packet { time: header.time, link: header.link, bytes, original }))
    }

    /// Returns the first `len` bytes of the last packet, which has as many.
    pub(crate) fn bytes(&self, len: usize) -> &[u8] {
        &self.data[..len]
    }

    /// Returns the number of the file's bytes that were read.
    pub fn position(&self) -> u64 {
        self.input.position
    }

    /// Returns the number of options of pcapng that were ignored because their size is wrong.
    pub fn wrong_options(&self) -> u64 {
        match &self.format {
            Format::Pcap(_) => 0,
            Format::Pcapng(pcapng) => pcapng.wrong_options,
        }
    }
}

fn open(input: &mut Input<impl Read>) -> Result<Format, Fault> {
    if input.is_at_end()? {
        return Fault::wrong("it is not a pcap or pcapng file: it is empty");
    }
    let magic = input.array()?;
    if magic == pcapng::MAGIC {
        return Ok(Format::Pcapng(Pcapng::open(input)?));
    }
    if let Some(pcap) = Pcap::open(magic, input)? {
        return Ok(Format::Pcap(pcap));
    }
    let program = match magic {
        [0x1f, 0x8b, ..] => "gzip",
        [0x28, 0xb5, 0x2f, 0xfd] => "zstd",
        [0xfd, b'7', b'z', b'X'] => "xz",
        [b'B', b'Z', b'h', _] => "bzip2",
        _ => return Fault::wrong("it is not a pcap or pcapng file"),
    };
    Fault::wrong(format!("it is compressed by {program}; decompress it first ({program} -dk)"))
}

/// Refuses a packet of more bytes than any packet has, before memory is allocated for it.
pub(crate) fn check_stored(bytes: u32) -> Result<(), Fault> {
    if bytes <= MAX_PACKET {
        return Ok(());
    }
    Fault::wrong(format!("the next packet has {bytes} bytes, and at most {MAX_PACKET} are possible"))
}

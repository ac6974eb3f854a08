// SPDX-License-Identifier: BSD-2-Clause
//! The Ethernet frames of a capture file, as they can be sent.

use std::collections::BTreeMap;
use std::io::Read;
use std::time::Duration;

use crate::{Error, LinkType, Reader};

/// A frame to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Since 1970; `None`: the file has no time for it.
    pub time: Option<Duration>,
    /// The stored bytes from the Ethernet header on, without FCS: at least one.
    pub bytes: &'a [u8],
    /// The file has only the frame's beginning.
    pub truncated: bool,
}

/// Numbers of packets that were read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Frames to send.
    pub frames: u64,
    /// Packets of which the file has only the beginning.
    pub truncated: u64,
    /// Records of no bytes: nothing can be sent for them.
    pub empty: u64,
    /// Packets of other link types.
    pub other: BTreeMap<LinkType, u64>,
    /// Options that were ignored because their size is wrong.
    pub wrong_options: u64,
}

impl Counts {
    /// Returns the number of packets that are not sent.
    pub fn skipped(&self) -> u64 {
        self.empty + self.other.values().sum::<u64>()
    }

    /// Returns a sentence about each thing in the file that differs from what a reader expects.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.truncated > 0 {
            let (truncated, all) = (self.truncated, self.frames);
            notes.push(format!("{truncated} of {all} packets are truncated; only the captured bytes are sent"));
        }
        if self.empty > 0 {
            notes.push(format!("{} without bytes: not sent", packets(self.empty)));
        }
        for (link, count) in &self.other {
            notes.push(format!("{} of link type {link}: not sent, as only Ethernet can be", packets(*count)));
        }
        if self.wrong_options > 0 {
            notes.push(format!("{} of a wrong size ignored", count(self.wrong_options, "option")));
        }
        notes
    }

    /// Returns the reason why a file that was read to its end has no frame.
    pub fn nothing(&self) -> String {
        let other = self.other.iter().map(|(link, count)| format!("{} of link type {link}", packets(*count)));
        let empty = (self.empty > 0).then(|| format!("{} without bytes", packets(self.empty)));
        let what = other.chain(empty).collect::<Vec<_>>();
        if what.is_empty() {
            return "it contains no packet".into();
        }
        format!("it contains {}; only Ethernet packets can be sent", what.join(", "))
    }
}

fn packets(number: u64) -> String {
    count(number, "packet")
}

fn count(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// Reads the Ethernet frames of a file, and counts what it passes over.
pub struct Frames<R> {
    reader: Reader<R>,
    counts: Counts,
}

impl<R: Read> Frames<R> {
    /// Reads the header of a file.
    ///
    /// # Errors
    /// As of [`Reader::new`], and a pcap file of another link type than Ethernet.
    pub fn new(from: R) -> Result<Frames<R>, Error> {
        let reader = Reader::new(from)?;
        match reader.link() {
            Some(link) if link != LinkType::ETHERNET => Err(Error::Format(format!(
                "it contains packets of link type {link}; only Ethernet packets can be sent"
            ))),
            _ => Ok(Frames { reader, counts: Counts::default() }),
        }
    }

    /// Returns the next frame, `None` at the end of the file.
    ///
    /// # Errors
    /// As of [`Reader::next_packet`]: the frames before are good.
    pub fn next_frame(&mut self) -> Result<Option<Frame<'_>>, Error> {
        // The borrow checker does not see that a packet is returned from the loop only.
        let (time, len, original) = loop {
            let packet = self.reader.next_packet();
            let Some(packet) = packet? else {
                self.counts.wrong_options = self.reader.wrong_options();
                return Ok(None);
            };
            if packet.link != LinkType::ETHERNET {
                *self.counts.other.entry(packet.link).or_default() += 1;
            } else if packet.bytes.is_empty() {
                self.counts.empty += 1;
            } else {
                break (packet.time, packet.bytes.len(), packet.original);
            }
        };
        let truncated = len < original;
        self.counts.frames += 1;
        self.counts.truncated += u64::from(truncated);
        self.counts.wrong_options = self.reader.wrong_options();
        Ok(Some(Frame { time, bytes: self.reader.bytes(len), truncated }))
    }

    /// Returns the numbers so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Returns the number of the file's bytes that were read.
    pub fn position(&self) -> u64 {
        self.reader.position()
    }
}

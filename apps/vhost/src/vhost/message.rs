// SPDX-License-Identifier: BSD-2-Clause
//! Messages of vhost-user: a header of 12 bytes, a payload, and descriptors beside them, over a stream socket.
//!
//! ```text
//!   u32 request | u32 flags: version 1, reply 4, need_reply 8 | u32 bytes of payload | payload
//! ```
//! In native byte order. A message may arrive in parts. Descriptors that a message does not use are closed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use tool_common::host::socket::{FdSender, recv, send};
use unetmap::guest::GuestPlace;

use crate::queue::RingAddresses;
use crate::tuning::{MAX_PAYLOAD, MAX_REGIONS};

const HEADER: usize = 12;
const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const REPLY: u32 = 4;
const NEED_REPLY: u32 = 8;
/// In the number of a kick or call message: no descriptor is attached.
const NO_FD: u64 = 1 << 8;

/// A message that breaks the protocol: the connection ends. The text says which.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) String);

/// A request of the front end, as far as this back end offers it.
#[derive(Debug)]
pub(crate) enum Request {
    GetFeatures,
    SetFeatures(u64),
    SetOwner,
    /// `RESET_OWNER` and `RESET_DEVICE`.
    Reset,
    GetProtocolFeatures,
    SetProtocolFeatures(u64),
    GetQueueNum,
    GetMaxMemSlots,
    SetMemTable(Vec<(Region, OwnedFd)>),
    AddMemReg(Region, OwnedFd),
    RemMemReg(Region),
    SetVringNum(u32, u32),
    SetVringAddr(u32, RingAddresses),
    SetVringBase(u32, u32),
    GetVringBase(u32),
    SetVringKick(u32, Option<OwnedFd>),
    SetVringCall(u32, Option<OwnedFd>),
    SetVringErr,
    SetVringEnable(u32, bool),
    SetMtu(u64),
    GetInflight(InflightShape),
    SetInflight(InflightShape, OwnedFd),
    /// A request that is not offered, by its number.
    Unknown(u32),
}

/// A region of guest memory, and where it begins in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) place: GuestPlace,
    pub(crate) offset: u64,
}

/// The region of in-flight descriptors, as both of its messages describe it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InflightShape {
    pub(crate) bytes: u64,
    pub(crate) offset: u64,
    pub(crate) queues: u16,
    /// Descriptors of each queue.
    pub(crate) size: u16,
}

impl InflightShape {
    /// As the payload of a reply, with the padding of a structure in C.
    pub(crate) fn payload(&self) -> Vec<u8> {
        let sizes = [self.queues, self.size, 0, 0].map(u16::to_ne_bytes).concat();
        [&self.bytes.to_ne_bytes(), &self.offset.to_ne_bytes(), &sizes[..]].concat()
    }
}

/// A message.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) number: u32,
    pub(crate) need_reply: bool,
    pub(crate) request: Request,
}

/// A message, or the state of the socket if there is none.
pub(crate) enum Incoming {
    Message(Message),
    /// Nothing yet, or part of a message.
    Nothing,
    /// The front end has closed the connection.
    Closed,
}

/// The connection to the front end.
pub(crate) struct Stream {
    socket: UnixStream,
    /// The bytes and descriptors of a message that has not arrived completely.
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Stream {
    /// Wraps a connected socket, which becomes non-blocking.
    pub(crate) fn new(socket: UnixStream) -> io::Result<Stream> {
        socket.set_nonblocking(true)?;
        Ok(Stream { socket, bytes: Vec::new(), fds: Vec::new() })
    }

    /// Receives what is there of the next message. Never waits.
    pub(crate) fn receive(&mut self) -> Result<Incoming, Malformed> {
        loop {
            let wanted = match self.header() {
                Some((_, flags, bytes)) => {
                    if flags & VERSION_MASK != VERSION || flags & REPLY != 0 || bytes as usize > MAX_PAYLOAD {
                        let (request, ..) = self.header().unwrap_or_default();
                        return Err(Malformed(format!("request {request} has flags {flags:#x} and {bytes} bytes")));
                    }
                    HEADER + bytes as usize
                }
                None => HEADER,
            };
            let have = self.bytes.len();
            if have == wanted && have >= HEADER {
                return self.decode().map(Incoming::Message);
            }
            self.bytes.resize(wanted, 0);
            let got = recv(&self.socket, &mut self.bytes[have..], &mut self.fds);
            self.bytes.truncate(have + got.as_ref().map_or(0, |got| got.bytes));
            match got {
                Ok(got) if got.fds_truncated => return Err(Malformed("a message has too many descriptors".into())),
                Ok(got) if got.bytes == 0 => return Ok(Incoming::Closed),
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(Incoming::Nothing),
                Err(_) => return Ok(Incoming::Closed),
            }
        }
    }

    fn header(&self) -> Option<(u32, u32, u32)> {
        let mut words = Words(self.bytes.get(..HEADER)?);
        Some((words.u32()?, words.u32()?, words.u32()?))
    }

    fn decode(&mut self) -> Result<Message, Malformed> {
        let (number, flags, _) = self.header().unwrap_or_default();
        let fds = std::mem::take(&mut self.fds);
        let request = decode(number, &self.bytes[HEADER..], fds).ok_or_else(|| {
            Malformed(format!("request {number} has another length or other descriptors than it should"))
        });
        self.bytes.clear();
        Ok(Message { number, need_reply: flags & NEED_REPLY != 0, request: request? })
    }

    /// Sends a reply. The front end waits for it, so there is room in the socket's queue.
    pub(crate) fn reply(&self, number: u32, payload: &[u8]) -> io::Result<()> {
        let bytes = reply_bytes(number, payload);
        check_sent(send(&self.socket, &bytes, &[])?, &bytes)
    }

    /// Sends a reply with a descriptor.
    ///
    /// # Errors
    /// As [`FdSender::send`].
    pub(crate) fn reply_fd(
        &self,
        sender: &mut FdSender,
        (number, payload): (u32, &[u8]),
        fd: BorrowedFd<'_>,
    ) -> io::Result<()> {
        let bytes = reply_bytes(number, payload);
        check_sent(sender.send(&self.socket, &bytes, &[fd])?, &bytes)
    }
}

fn reply_bytes(number: u32, payload: &[u8]) -> Vec<u8> {
    let header = [number, VERSION | REPLY, payload.len() as u32].map(u32::to_ne_bytes).concat();
    [&header, payload].concat()
}

/// Part of a reply cannot be taken back.
fn check_sent(sent: usize, bytes: &[u8]) -> io::Result<()> {
    if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Reads integers from the start of a payload.
struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn u32(&mut self) -> Option<u32> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_ne_bytes(*word))
    }

    fn u16(&mut self) -> Option<u16> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u16::from_ne_bytes(*word))
    }

    fn u64(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_ne_bytes(*word))
    }

    fn region(&mut self) -> Option<Region> {
        let (guest, bytes, user, offset) = (self.u64()?, self.u64()?, self.u64()?, self.u64()?);
        Some(Region { place: GuestPlace { guest, user, bytes }, offset })
    }

    fn inflight(&mut self) -> Option<InflightShape> {
        let (bytes, offset, queues, size) = (self.u64()?, self.u64()?, self.u16()?, self.u16()?);
        // The padding of a structure in C, which not all front ends send.
        if !self.0.is_empty() {
            self.u32()?;
        }
        Some(InflightShape { bytes, offset, queues, size })
    }

    fn ends<T>(self, value: T) -> Option<T> {
        self.0.is_empty().then_some(value)
    }
}

/// Decodes a payload. `None` if its length or its descriptors are wrong.
fn decode(number: u32, payload: &[u8], fds: Vec<OwnedFd>) -> Option<Request> {
    let mut words = Words(payload);
    let mut fds = fds.into_iter();
    let request = match number {
        1 => Request::GetFeatures,
        2 => Request::SetFeatures(words.u64()?),
        3 => Request::SetOwner,
        4 | 34 => Request::Reset,
        5 => {
            let (regions, _) = (words.u32()? as usize, words.u32()?);
            if regions > MAX_REGIONS || fds.len() != regions {
                return None;
            }
            let regions = (0..regions).map(|_| Some((words.region()?, fds.next()?)));
            Request::SetMemTable(regions.collect::<Option<_>>()?)
        }
        8 => Request::SetVringNum(words.u32()?, words.u32()?),
        9 => {
            let (index, _flags) = (words.u32()?, words.u32()?);
            let (desc, used, avail, _log) = (words.u64()?, words.u64()?, words.u64()?, words.u64()?);
            Request::SetVringAddr(index, RingAddresses { desc, avail, used })
        }
        10 => Request::SetVringBase(words.u32()?, words.u32()?),
        11 => {
            let index = words.u32()?;
            words.u32()?;
            Request::GetVringBase(index)
        }
        12..=14 => {
            let number_and_flag = words.u64()?;
            let (index, fd) = ((number_and_flag & 0xff) as u32, fds.next());
            if fd.is_none() != (number_and_flag & NO_FD != 0) {
                return None;
            }
            match number {
                12 => Request::SetVringKick(index, fd),
                13 => Request::SetVringCall(index, fd),
                _ => Request::SetVringErr,
            }
        }
        15 => Request::GetProtocolFeatures,
        16 => Request::SetProtocolFeatures(words.u64()?),
        17 => Request::GetQueueNum,
        18 => Request::SetVringEnable(words.u32()?, words.u32()? != 0),
        20 => Request::SetMtu(words.u64()?),
        31 => Request::GetInflight(words.inflight()?),
        32 => Request::SetInflight(words.inflight()?, fds.next()?),
        36 => Request::GetMaxMemSlots,
        37 | 38 => {
            words.u64()?;
            let region = words.region()?;
            if number == 37 { Request::AddMemReg(region, fds.next()?) } else { Request::RemMemReg(region) }
        }
        _ => return Some(Request::Unknown(number)),
    };
    words.ends(request)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn message(number: u32, flags: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes: Vec<u8> =
            [number, flags, payload.len() as u32].iter().flat_map(|word| word.to_ne_bytes()).collect();
        bytes.extend(payload);
        bytes
    }

    #[test]
    fn messages_arrive_in_any_parts() {
        let (mut front, back) = UnixStream::pair().unwrap();
        let mut stream = Stream::new(back).unwrap();
        let bytes = [message(2, 1, &7u64.to_ne_bytes()), message(15, 9, &[])].concat();
        let mut seen = Vec::new();
        for byte in bytes {
            assert!(matches!(stream.receive(), Ok(Incoming::Nothing)));
            front.write_all(&[byte]).unwrap();
            if let Incoming::Message(message) = stream.receive().unwrap() {
                seen.push((message.number, message.need_reply));
            }
        }
        assert_eq!(seen, [(2, false), (15, true)]);
        drop(front);
        assert!(matches!(stream.receive(), Ok(Incoming::Closed)));
    }

    #[test]
    fn malformed_messages_end_the_connection() {
        for wrong in [
            message(2, 1, &[0; 7]),
            message(2, 1, &[0; 9]),
            message(2, 2, &[0; 8]),
            message(2, 5, &[0; 8]),
            message(5, 1, &[0xff; 8]),
            message(12, 1, &0u64.to_ne_bytes()),
            [2u32, 1, u32::MAX].iter().flat_map(|word| word.to_ne_bytes()).collect(),
        ] {
            let (mut front, back) = UnixStream::pair().unwrap();
            front.write_all(&wrong).unwrap();
            assert!(Stream::new(back).unwrap().receive().is_err(), "{wrong:?}");
        }
    }
}

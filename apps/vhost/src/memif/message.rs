// SPDX-License-Identifier: BSD-2-Clause
//! The messages: 128 bytes each, of a type and a packed body in native byte order, the rest zero.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use tool_common::host::socket::{FdSender, recv, send};

const BYTES: usize = 128;
/// Version 2.0, the only one.
pub(super) const VERSION: u16 = 0x0200;
/// Bytes of a name and a secret.
pub const MAX_NAME: usize = 32;
/// Bytes of a secret.
pub const MAX_SECRET: usize = 24;
const MAX_REASON: usize = 96;
/// In the flags of a ring: the client sends by it.
const CLIENT_SENDS: u16 = 1;
/// Of `INIT`: Ethernet frames.
pub(super) const ETHERNET: u8 = 0;

/// The server's offer: the highest numbers that it accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) versions: [u16; 2],
    pub(super) max_region: u16,
    /// Rings by which the server sends, and the client.
    pub(super) max_server_ring: u16,
    pub(super) max_client_ring: u16,
    pub(super) max_log2_ring: u8,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Init {
    pub(super) version: u16,
    pub(super) id: u32,
    pub(super) mode: u8,
    /// Up to the first zero.
    pub(super) secret: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AddRing {
    pub(super) client_sends: bool,
    pub(super) index: u16,
    pub(super) region: u16,
    pub(super) offset: u32,
    pub(super) log2: u8,
    pub(super) private_header: u16,
}

/// A message.
#[derive(Debug)]
pub(super) enum Message {
    Ack,
    Hello(Hello),
    Init(Init),
    AddRegion(u16, u64, OwnedFd),
    AddRing(AddRing, OwnedFd),
    Connect,
    Connected,
    /// The peer ends the connection; its reason.
    Disconnect(String),
}

/// A message, or the state of the socket if there is none.
pub(super) enum Incoming {
    Message(Message),
    Nothing,
    Closed,
}

/// Reads integers and texts from the start of a body.
struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_ne_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_ne_bytes)
    }

    /// A text in a field of `bytes` bytes, up to the first zero.
    fn text(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (field, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        field.split(|byte| *byte == 0).next()
    }
}

/// Decodes a message. `None` if its type is none, or its descriptors are other than its type has.
pub(super) fn decode(bytes: &[u8], fds: Vec<OwnedFd>) -> Option<Message> {
    let (mut body, mut fds) = (Body(bytes), fds.into_iter());
    let message = match body.u16()? {
        1 => Message::Ack,
        2 => {
            body.text(MAX_NAME)?;
            let versions = [body.u16()?, body.u16()?];
            let [max_region, max_server_ring, max_client_ring] = [body.u16()?, body.u16()?, body.u16()?];
            Message::Hello(Hello { versions, max_region, max_server_ring, max_client_ring, max_log2_ring: body.u8()? })
        }
        3 => {
            let (version, id, mode) = (body.u16()?, body.u32()?, body.u8()?);
            Message::Init(Init { version, id, mode, secret: body.text(MAX_SECRET)?.to_vec() })
        }
        4 => Message::AddRegion(body.u16()?, body.u64()?, fds.next()?),
        5 => {
            let (flags, index, region) = (body.u16()?, body.u16()?, body.u16()?);
            let (offset, log2, private_header) = (body.u32()?, body.u8()?, body.u16()?);
            let client_sends = flags & CLIENT_SENDS != 0;
            Message::AddRing(AddRing { client_sends, index, region, offset, log2, private_header }, fds.next()?)
        }
        6 => Message::Connect,
        7 => Message::Connected,
        8 => {
            body.u32()?;
            let reason = body.text(MAX_REASON.min(body.0.len()))?;
            Message::Disconnect(
                reason.iter().map(|byte| if byte.is_ascii_graphic() { *byte } else { b' ' }).map(char::from).collect(),
            )
        }
        _ => return None,
    };
    fds.next().is_none().then_some(message)
}

/// Builds a message.
struct Builder(Vec<u8>);

impl Builder {
    fn new(kind: u16) -> Builder {
        Builder(kind.to_ne_bytes().to_vec())
    }

    fn bytes(mut self, bytes: impl AsRef<[u8]>) -> Builder {
        self.0.extend(bytes.as_ref());
        self
    }

    fn text(mut self, text: &str, room: usize) -> Builder {
        let end = self.0.len() + room;
        self.0.extend(&text.as_bytes()[..text.len().min(room)]);
        self.0.resize(end, 0);
        self
    }
}

/// The connection.
pub(super) struct Stream(UnixStream);

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Stream {
    /// Wraps a connected socket, which becomes non-blocking.
    pub(super) fn new(socket: UnixStream) -> io::Result<Stream> {
        socket.set_nonblocking(true)?;
        Ok(Stream(socket))
    }

    /// Receives the next message. Never waits.
    pub(super) fn receive(&self) -> Result<Incoming, String> {
        let (mut bytes, mut fds) = ([0; BYTES], Vec::new());
        match recv(&self.0, &mut bytes, &mut fds) {
            Ok(got) if got.fds_truncated => Err("a message has too many descriptors".into()),
            Ok(got) if got.bytes == 0 => Ok(Incoming::Closed),
            Ok(got) if got.bytes < BYTES || got.truncated => {
                Err(format!("a message has not {BYTES} bytes, as those of memif 2.0 have"))
            }
            Ok(_) => decode(&bytes, fds).map(Incoming::Message).ok_or_else(|| {
                let [low, high, ..] = bytes;
                format!(
                    "message {} has other descriptors than it should, or is unknown",
                    u16::from_ne_bytes([low, high])
                )
            }),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(Incoming::Nothing),
            Err(_) => Ok(Incoming::Closed),
        }
    }

    fn send(&self, Builder(mut bytes): Builder) -> Result<(), String> {
        bytes.resize(BYTES, 0);
        send(&self.0, &bytes, &[]).map(drop).map_err(|e| format!("a message cannot be sent: {e}"))
    }

    /// Sends a message with a descriptor.
    fn send_fd(&self, sender: &mut FdSender, Builder(mut bytes): Builder, fd: BorrowedFd<'_>) -> io::Result<()> {
        bytes.resize(BYTES, 0);
        sender.send(&self.0, &bytes, &[fd]).map(drop)
    }

    pub(super) fn ack(&self) -> Result<(), String> {
        self.send(Builder::new(1))
    }

    pub(super) fn hello(&self, name: &str, hello: Hello) -> Result<(), String> {
        let [least, most] = hello.versions;
        let words = [least, most, hello.max_region, hello.max_server_ring, hello.max_client_ring];
        let words = words.into_iter().flat_map(u16::to_ne_bytes).collect::<Vec<_>>();
        self.send(Builder::new(2).text(name, MAX_NAME).bytes(words).bytes([hello.max_log2_ring]))
    }

    pub(super) fn init(&self, id: u32, secret: &str, name: &str) -> Result<(), String> {
        let message = Builder::new(3).bytes(VERSION.to_ne_bytes()).bytes(id.to_ne_bytes()).bytes([ETHERNET]);
        self.send(message.text(secret, MAX_SECRET).text(name, MAX_NAME))
    }

    /// # Errors
    /// As [`FdSender::send`].
    pub(super) fn add_region(
        &self,
        sender: &mut FdSender,
        (index, bytes): (u16, u64),
        fd: BorrowedFd<'_>,
    ) -> io::Result<()> {
        self.send_fd(sender, Builder::new(4).bytes(index.to_ne_bytes()).bytes(bytes.to_ne_bytes()), fd)
    }

    /// # Errors
    /// As [`FdSender::send`].
    pub(super) fn add_ring(&self, sender: &mut FdSender, ring: AddRing, fd: BorrowedFd<'_>) -> io::Result<()> {
        let flags = if ring.client_sends { CLIENT_SENDS } else { 0 };
        let words = [flags, ring.index, ring.region].into_iter().flat_map(u16::to_ne_bytes).collect::<Vec<_>>();
        let message = Builder::new(5).bytes(words).bytes(ring.offset.to_ne_bytes()).bytes([ring.log2]);
        self.send_fd(sender, message.bytes(ring.private_header.to_ne_bytes()), fd)
    }

    /// `CONNECT` of a client, `CONNECTED` of a server.
    pub(super) fn connect(&self, is_client: bool, name: &str) -> Result<(), String> {
        self.send(Builder::new(if is_client { 6 } else { 7 }).text(name, MAX_NAME))
    }

    /// Tells why the connection ends; the peer may have ended it before.
    pub(super) fn disconnect(&self, reason: &str) {
        // A server of DPDK or VPP shows it.
        let _ = self.send(Builder::new(8).bytes(0u32.to_ne_bytes()).text(reason, MAX_REASON - 1));
    }
}

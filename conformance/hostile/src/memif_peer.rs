// SPDX-License-Identifier: BSD-2-Clause
//! A peer of memif in either role: its messages, and its side of a ring each way, without a packet processor.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;
use std::time::Duration;

use conformance::until;
use rustix::event::{EventfdFlags, eventfd};
use unetmap_mem::{GuestMemory, GuestPlace, GuestWords, MappedRange};
use unetmap_sys::eventfd::signal;
use unetmap_sys::{Mapping, memfd, socket};

/// Slots of a ring, and bytes of a buffer.
pub const SIZE: u16 = 128;
/// Bytes of a buffer.
pub const BUFFER: u32 = 2048;
/// Bytes of the client's region.
pub const REGION: u64 = 1 << 20;
/// Bytes of a message.
pub const MESSAGE: usize = 128;
/// Version 2.0.
pub const VERSION: u16 = 0x0200;
/// The first word of a ring.
pub const MAGIC: u32 = 0x03e3_1f20;
const FLAGS: usize = 4;
const HEAD: usize = 6;
const TAIL: usize = 64;
const DESCRIPTORS: usize = 128;
const RING_BYTES: usize = 0x1000;
const BUFFERS: usize = 0x2000;
const NEXT: u16 = 1;
/// The longest wait for a message.
const REPLY_LIMIT: Duration = Duration::from_secs(20);

/// A ring of the peer's.
pub struct Ring {
    /// Its offset in the region.
    pub at: usize,
    size: u16,
    event: OwnedFd,
    /// Of the peer: its own position.
    own: u16,
}

/// A connected peer.
pub struct Peer {
    /// The connection.
    pub socket: OwnedFd,
    /// The client's region, which is not sealed if it is the peer's.
    pub file: OwnedFd,
    memory: GuestMemory,
    /// All words of the region.
    pub words: GuestWords,
    is_client: bool,
    /// The rings by which the peer sends and receives.
    pub rings: [Ring; 2],
}

fn message(kind: u16, parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = [&kind.to_ne_bytes(), parts.concat().as_slice()].concat();
    bytes.resize(MESSAGE, 0);
    bytes
}

/// A text in a field of `room` bytes.
pub fn text(text: &str, room: usize) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize(room, 0);
    bytes
}

/// `INIT` of a client.
pub fn init(version: u16, id: u32, mode: u8, secret: &str) -> Vec<u8> {
    message(3, &[&version.to_ne_bytes(), &id.to_ne_bytes(), &[mode], &text(secret, 24), &text("test", 32)])
}

/// `ADD_REGION`.
pub fn add_region(index: u16, bytes: u64) -> Vec<u8> {
    message(4, &[&index.to_ne_bytes(), &bytes.to_ne_bytes()])
}

/// `ADD_RING`, of region 0 without private headers.
pub fn add_ring(client_sends: bool, index: u16, offset: u32, log2: u8) -> Vec<u8> {
    let words = [u16::from(client_sends), index, 0].map(u16::to_ne_bytes).concat();
    message(5, &[&words, &offset.to_ne_bytes(), &[log2], &[0; 2]])
}

/// `HELLO` of a server with a ring each way, of this number of slots at most.
pub fn hello(log2: u8) -> Vec<u8> {
    let words = [VERSION, VERSION, 255, 0, 0].map(u16::to_ne_bytes).concat();
    message(2, &[&text("test", 32), &words, &[log2]])
}

/// `ACK`.
pub fn ack() -> Vec<u8> {
    message(1, &[])
}

/// `CONNECT`.
pub fn connect() -> Vec<u8> {
    message(6, &[&text("test", 32)])
}

/// Sends a message.
///
/// # Errors
/// The port's process has closed the connection.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    socket::send(socket, bytes, fds).map(drop)
}

/// Receives a message, its type first, and its descriptors.
///
/// # Errors
/// `UnexpectedEof`: the connection is closed; or the kernel's.
pub fn receive(socket: impl AsFd) -> io::Result<(u16, Vec<u8>, Vec<OwnedFd>)> {
    let (mut bytes, mut fds) = (vec![0; MESSAGE + 1], Vec::new());
    let got = socket::recv(socket, &mut bytes, &mut fds)?;
    if got.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    assert_eq!(got.bytes, MESSAGE, "a message's bytes");
    bytes.truncate(MESSAGE);
    Ok((u16::from_ne_bytes([bytes[0], bytes[1]]), bytes.split_off(2), fds))
}

/// Receives a message of this type.
///
/// # Errors
/// Another message: a refusal's reason.
pub fn expect(socket: impl AsFd, kind: u16) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    match receive(socket)? {
        (got, body, fds) if got == kind => Ok((body, fds)),
        (8, body, _) => Err(io::Error::other(reason(&body))),
        (got, ..) => Err(io::Error::other(format!("message {got} in place of {kind}"))),
    }
}

fn reason(body: &[u8]) -> String {
    body[4..].iter().take_while(|byte| **byte != 0).map(|byte| char::from(*byte)).collect()
}

/// Connects to the server that listens at `path`, or by an abstract name (`@NAME`).
///
/// # Errors
/// The kernel's.
pub fn dial(path: &Path) -> io::Result<OwnedFd> {
    let socket = match path.to_str().and_then(|path| path.strip_prefix('@')) {
        Some(name) => socket::connect_abstract(name)?,
        None => socket::connect(path)?,
    };
    socket::set_timeout(&socket, REPLY_LIMIT)?;
    Ok(socket)
}

fn map(fd: &OwnedFd, bytes: u64) -> io::Result<(GuestMemory, GuestWords)> {
    let map = Mapping::of_guest(fd.as_fd(), 0, bytes as usize)?;
    let mut memory = GuestMemory::default();
    assert!(memory.add(GuestPlace { guest: 0, user: 0, bytes }, MappedRange::whole(Arc::new(map))));
    let words = memory.words(0, bytes as usize, 8).expect("the whole region");
    Ok((memory, words))
}

impl Peer {
    /// Connects as a client with a ring each way.
    ///
    /// # Errors
    /// The reason of a refusal; or the kernel's.
    pub fn client(path: &Path, id: u32, secret: &str) -> io::Result<Peer> {
        let socket = dial(path)?;
        let (hello, _) = expect(&socket, 2)?;
        assert_eq!(hello[32..36], [VERSION.to_ne_bytes(), VERSION.to_ne_bytes()].concat());
        send(&socket, &init(VERSION, id, 0, secret), &[])?;
        expect(&socket, 1)?;
        let file = memfd::create_unsealed("memif")?;
        rustix::fs::ftruncate(&file, REGION)?;
        let (memory, words) = map(&file, REGION)?;
        let event = || eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        let ring = |n: usize| Ok::<_, io::Error>(Ring { at: n * RING_BYTES, size: SIZE, event: event()?, own: 0 });
        let mut peer = Peer { socket, file, memory, words, is_client: true, rings: [ring(0)?, ring(1)?] };
        peer.prepare_rings();
        send(&peer.socket, &add_region(0, REGION), &[peer.file.as_fd()])?;
        expect(&peer.socket, 1)?;
        for (n, ring) in peer.rings.iter().enumerate() {
            send(&peer.socket, &add_ring(n == 0, 0, ring.at as u32, 7), &[ring.event.as_fd()])?;
            expect(&peer.socket, 1)?;
        }
        send(&peer.socket, &connect(), &[])?;
        expect(&peer.socket, 7)?;
        Ok(peer)
    }

    fn prepare_rings(&mut self) {
        for (n, ring) in self.rings.iter_mut().enumerate() {
            self.words.store_u32(ring.at, MAGIC);
            for slot in 0..SIZE {
                let at = ring.at + DESCRIPTORS + 16 * usize::from(slot);
                self.words.store_u32(at + 4, BUFFER);
                self.words.store_u32(
                    at + 8,
                    (BUFFERS + (n * usize::from(SIZE) + usize::from(slot)) * BUFFER as usize) as u32,
                );
            }
        }
        self.rings[1].own = SIZE;
        self.words.store_u16(self.rings[1].at + HEAD, SIZE, Release);
    }

    /// Serves a client that has connected by `socket`: offers a ring each way, of this number of slots at most.
    ///
    /// # Errors
    /// As [`Peer::client`].
    pub fn server(socket: OwnedFd, log2: u8) -> io::Result<Peer> {
        socket::set_timeout(&socket, REPLY_LIMIT)?;
        send(&socket, &hello(log2), &[])?;
        expect(&socket, 3)?;
        let ack = || send(&socket, &ack(), &[]);
        ack()?;
        let (region, mut fds) = expect(&socket, 4)?;
        let bytes = u64::from_ne_bytes(std::array::from_fn(|i| region[2 + i]));
        let file = fds.remove(0);
        let (memory, words) = map(&file, bytes)?;
        ack()?;
        let ring = || -> io::Result<Ring> {
            let (body, mut fds) = expect(&socket, 5)?;
            ack()?;
            let at = u32::from_ne_bytes(std::array::from_fn(|i| body[6 + i])) as usize;
            Ok(Ring { at, size: 1 << body[10], event: fds.remove(0), own: 0 })
        };
        let (receives, sends) = (ring()?, ring()?);
        expect(&socket, 6)?;
        send(&socket, &message(7, &[&text("test", 32)]), &[])?;
        Ok(Peer { socket, file, memory, words, is_client: false, rings: [sends, receives] })
    }

    fn descriptor(ring: &Ring, position: u16) -> usize {
        ring.at + DESCRIPTORS + 16 * usize::from(position & (ring.size - 1))
    }

    fn load_u32(&self, at: usize) -> u32 {
        (self.words.load_u64(at & !7) >> (8 * (at & 4))) as u32
    }

    /// Sends a frame, in as many buffers as it needs; waits for them, and until the port has taken it as a client.
    #[track_caller]
    pub fn transmit(&mut self, frame: &[u8]) {
        let chunks = frame.chunks(BUFFER as usize).collect::<Vec<_>>();
        let (at, size) = (self.rings[0].at, self.rings[0].size);
        until("a buffer is free", || {
            let own = self.rings[0].own;
            let used = if self.is_client {
                own.wrapping_sub(self.words.load_u16(at + TAIL, Acquire))
            } else {
                size.wrapping_sub(self.words.load_u16(at + HEAD, Acquire).wrapping_sub(own))
            };
            usize::from(size - used) >= chunks.len()
        });
        for (n, chunk) in chunks.iter().enumerate() {
            let ring = &mut self.rings[0];
            let desc = Peer::descriptor(ring, ring.own);
            ring.own = ring.own.wrapping_add(1);
            let to = u64::from(self.load_u32(desc + 8));
            self.memory.frame(to, BUFFER).expect("a buffer").write(0, chunk);
            self.words.store_u32(desc + 4, chunk.len() as u32);
            self.words.store_u16(desc, if n + 1 < chunks.len() { NEXT } else { 0 }, Relaxed);
        }
        let position = if self.is_client { HEAD } else { TAIL };
        self.words.store_u16(at + position, self.rings[0].own, Release);
        fence(SeqCst);
        if self.words.load_u16(at + FLAGS, Relaxed) & 1 == 0 {
            self.notify();
        }
    }

    /// Notifies the port's process of packets.
    pub fn notify(&self) {
        signal(&self.rings[0].event);
    }

    /// Receives a frame, and gives its buffers back. `None` if there is none.
    pub fn receive(&mut self) -> Option<Vec<u8>> {
        let ring = &self.rings[1];
        // A client's position is that of the buffers that it has offered.
        let (mut at, end) = if self.is_client {
            (ring.own.wrapping_sub(ring.size), self.words.load_u16(ring.at + TAIL, Acquire))
        } else {
            (ring.own, self.words.load_u16(ring.at + HEAD, Acquire))
        };
        let mut frame = Vec::new();
        while at != end {
            let desc = Peer::descriptor(ring, at);
            at = at.wrapping_add(1);
            let (len, from) = (self.load_u32(desc + 4) as usize, u64::from(self.load_u32(desc + 8)));
            let before = frame.len();
            frame.resize(before + len, 0);
            assert!(self.memory.read(from, &mut frame[before..]), "a buffer at {from:#x} of {len} bytes");
            if self.is_client {
                self.words.store_u32(desc + 4, BUFFER);
            }
            if self.words.load_u16(desc, Relaxed) & NEXT == 0 {
                let (ring, own) = (ring.at, if self.is_client { at.wrapping_add(ring.size) } else { at });
                self.rings[1].own = own;
                self.words.store_u16(ring + if self.is_client { HEAD } else { TAIL }, own, Release);
                return Some(frame);
            }
        }
        assert!(frame.is_empty(), "a packet whose end is missing");
        None
    }

    /// Waits for a frame.
    #[track_caller]
    pub fn wait_frame(&mut self) -> Vec<u8> {
        let mut got = None;
        until("the peer receives a frame", || {
            got = self.receive();
            got.is_some()
        });
        got.expect("just received")
    }

    /// The region's file, to shorten it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn memory_file(&self) -> io::Result<File> {
        Ok(self.file.try_clone()?.into())
    }
}

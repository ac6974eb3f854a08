// SPDX-License-Identifier: BSD-2-Clause
//! A front end of vhost-user: the hypervisor's messages, and the driver's side of virtqueues, without a guest.
//!
//! The guest memory is 4 MiB at guest address [`GUEST`]. Each queue has 64 KiB for its rings and 1 MiB for its buffers.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;
use std::time::Duration;

use conformance::until;
use rustix::event::{EventfdFlags, eventfd};
use unetmap_mem::{GuestMemory, GuestPlace, GuestWords, MappedRange};
use unetmap_sys::{
    Mapping,
    eventfd::signal,
    memfd,
    socket::{recv, send},
};

/// Addresses of the memory's first byte, in the guest and in the front end.
pub const GUEST: u64 = 0x1000_0000;
/// The same, in the front end.
pub const USER: u64 = 0x7000_0000_0000;
/// Bytes of the guest's memory.
pub const MEMORY: u64 = 4 << 20;
/// Descriptors and buffers of a queue.
pub const SIZE: u16 = 128;
/// Bytes of a buffer.
pub const BUFFER: usize = 8192;
const RINGS: u64 = 64 << 10;
const AVAIL: usize = 0x4000;
const USED: usize = 0x8000;
const BUFFERS: u64 = 1 << 20;

/// Feature bits.
pub const VERSION_1: u64 = 1 << 32;
/// Packed rings.
pub const PACKED: u64 = 1 << 34;
/// Mergeable receive buffers.
pub const MERGEABLE: u64 = 1 << 15;
/// Event indexes.
pub const EVENT_IDX: u64 = 1 << 29;
/// Checksums and segmentation, both ways.
pub const OFFLOADS: u64 = 1 | 1 << 1 | 1 << 7 | 1 << 8 | 1 << 11 | 1 << 12;
const PROTOCOL_FEATURES: u64 = 1 << 30;
/// The longest wait for a reply.
const REPLY_LIMIT: Duration = Duration::from_secs(20);

/// A connected front end with two queues: 0 receives, 1 sends.
pub struct FrontEnd {
    /// The connection.
    pub socket: UnixStream,
    /// The guest memory's file, which is not sealed.
    pub file: OwnedFd,
    memory: GuestMemory,
    /// All words of the guest memory.
    pub words: GuestWords,
    /// Eventfds: kick and call of each queue.
    events: [[OwnedFd; 2]; 2],
    packed: bool,
    /// The region of in-flight descriptors, and its description, once it was asked for.
    inflight: Option<(Vec<u8>, OwnedFd)>,
    /// By queue: descriptors offered, and those found used, without bound.
    offered: [u32; 2],
    used: [u32; 2],
}

impl FrontEnd {
    /// Connects to the back end that listens at `path`, and sends nothing yet.
    ///
    /// # Errors
    /// The kernel's.
    pub fn connect(path: &Path) -> io::Result<FrontEnd> {
        FrontEnd::new(UnixStream::connect(path)?)
    }

    /// Wraps a connection.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new(socket: UnixStream) -> io::Result<FrontEnd> {
        socket.set_read_timeout(Some(REPLY_LIMIT))?;
        let file = memfd::create_unsealed("guest")?;
        rustix::fs::ftruncate(&file, MEMORY)?;
        let map = Mapping::of_guest(file.as_fd(), 0, MEMORY as usize)?;
        let mut memory = GuestMemory::default();
        let place = GuestPlace { guest: GUEST, user: USER, bytes: MEMORY };
        assert!(memory.add(place, MappedRange::whole(Arc::new(map))));
        let words = memory.words(USER, MEMORY as usize, 1).expect("the whole region");
        let event = || eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        let events = [[event()?, event()?], [event()?, event()?]];
        Ok(FrontEnd {
            socket,
            file,
            memory,
            words,
            events,
            packed: false,
            inflight: None,
            offered: [0; 2],
            used: [0; 2],
        })
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The back end has closed the connection.
    pub fn send(&self, request: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send_flagged(request, 1, payload, fds)
    }

    /// Sends a message with these flags; bit 3 requests a reply.
    ///
    /// # Errors
    /// As [`FrontEnd::send`].
    pub fn send_flagged(&self, request: u32, flags: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut bytes: Vec<u8> =
            [request, flags, payload.len() as u32].into_iter().flat_map(u32::to_ne_bytes).collect();
        bytes.extend(payload);
        send(&self.socket, &bytes, fds).map(drop)
    }

    /// Receives a reply's payload, which must be of `request`.
    ///
    /// # Errors
    /// The back end has closed the connection, or does not answer.
    pub fn reply(&mut self, request: u32) -> io::Result<Vec<u8>> {
        let mut header = [0; 12];
        self.socket.read_exact(&mut header)?;
        let word = |at: usize| u32::from_ne_bytes(std::array::from_fn(|i| header[at + i]));
        assert_eq!((word(0), word(4)), (request, 5), "the reply's header");
        let mut payload = vec![0; word(8) as usize];
        self.socket.read_exact(&mut payload)?;
        Ok(payload)
    }

    /// Sends a message that is answered with a number; returns it.
    ///
    /// # Errors
    /// As [`FrontEnd::reply`].
    pub fn ask(&mut self, request: u32) -> io::Result<u64> {
        self.send(request, &[], &[])?;
        let payload = self.reply(request)?;
        Ok(u64::from_ne_bytes(payload.try_into().expect("eight bytes")))
    }

    /// Negotiates `features` and starts both queues, in QEMU's order: queues are enabled before there are features.
    ///
    /// # Errors
    /// As [`FrontEnd::reply`].
    pub fn start(&mut self, features: u64) -> io::Result<()> {
        self.negotiate(features)?;
        self.start_both()?;
        self.offer_all();
        Ok(())
    }

    /// Offers all buffers to receive.
    fn offer_all(&mut self) {
        for buffer in 0..SIZE {
            self.offer(0, buffer, BUFFER as u32, true);
        }
        self.kick(0);
    }

    fn negotiate(&mut self, features: u64) -> io::Result<()> {
        let offered = self.ask(1)?;
        assert_eq!(offered & features, features, "the back end offers {offered:#x}");
        let protocol = self.ask(15)?;
        self.send(16, &protocol.to_ne_bytes(), &[])?;
        self.send(3, &[], &[])?;
        for queue in 0..2u32 {
            self.send(18, &words32([queue, 1]), &[])?;
        }
        self.send(2, &(features | PROTOCOL_FEATURES).to_ne_bytes(), &[])?;
        self.packed = features & PACKED != 0;
        self.send_memory(MEMORY)
    }

    fn start_both(&self) -> io::Result<()> {
        let base = if self.packed { 1 << 15 } else { 0 };
        (0..2).try_for_each(|queue| self.start_queue(queue, base))
    }

    /// As [`FrontEnd::start`], with a region of in-flight descriptors.
    ///
    /// # Errors
    /// As [`FrontEnd::reply`].
    pub fn start_kept(&mut self, features: u64) -> io::Result<()> {
        self.negotiate(features)?;
        let (description, file) = self.ask_inflight([2, SIZE])?;
        self.send(32, &description, &[file.as_fd()])?;
        self.inflight = Some((description, file));
        self.start_both()?;
        self.offer_all();
        Ok(())
    }

    /// Goes on with another process at `path`, which is given the region. Its guest, which is not reset, has kicked
    /// nobody since the last process has ended.
    ///
    /// # Errors
    /// As [`FrontEnd::reply`].
    pub fn reconnect(&mut self, path: &Path, features: u64) -> io::Result<()> {
        self.socket = UnixStream::connect(path)?;
        self.socket.set_read_timeout(Some(REPLY_LIMIT))?;
        self.negotiate(features)?;
        if let Some((description, file)) = &self.inflight {
            self.send(32, description, &[file.as_fd()])?;
        }
        self.start_both()?;
        self.kick(0);
        self.kick(1);
        Ok(())
    }

    /// Asks for a region for a number of queues and of their descriptors; returns its description and its file.
    ///
    /// # Errors
    /// As [`FrontEnd::reply`].
    pub fn ask_inflight(&self, [queues, size]: [u16; 2]) -> io::Result<(Vec<u8>, OwnedFd)> {
        let sizes = [queues, size, 0, 0].into_iter().flat_map(u16::to_ne_bytes);
        self.send(31, &[0; 16].into_iter().chain(sizes).collect::<Vec<u8>>(), &[])?;
        let (mut bytes, mut files) = ([0; 12 + 24], Vec::new());
        let got = recv(&self.socket, &mut bytes, &mut files)?.bytes;
        match files.pop() {
            Some(file) if got == bytes.len() => Ok((bytes[12..].to_vec(), file)),
            _ => Err(io::ErrorKind::ConnectionReset.into()),
        }
    }

    /// The file of the region of in-flight descriptors.
    pub fn inflight_file(&self) -> Option<BorrowedFd<'_>> {
        self.inflight.as_ref().map(|(_, file)| file.as_fd())
    }

    /// Sends the table of one region, of which `bytes` bytes are shared.
    ///
    /// # Errors
    /// As [`FrontEnd::send`].
    pub fn send_memory(&self, bytes: u64) -> io::Result<()> {
        let table =
            [words32([1, 0]), [GUEST, bytes, USER, 0].into_iter().flat_map(u64::to_ne_bytes).collect()].concat();
        self.send(5, &table, &[self.file.as_fd()])
    }

    /// Sets the queue up, at this base, and starts it by its kick.
    ///
    /// # Errors
    /// As [`FrontEnd::send`].
    pub fn start_queue(&self, queue: usize, base: u32) -> io::Result<()> {
        let (n, at) = (queue as u32, USER + RINGS * queue as u64);
        self.send(8, &words32([n, SIZE.into()]), &[])?;
        self.send(10, &words32([n, base]), &[])?;
        let addresses = [at, at + USED as u64, at + AVAIL as u64, 0].into_iter().flat_map(u64::to_ne_bytes);
        self.send(9, &[words32([n, 0]), addresses.collect()].concat(), &[])?;
        self.send(13, &u64::from(n).to_ne_bytes(), &[self.events[queue][1].as_fd()])?;
        self.send(12, &u64::from(n).to_ne_bytes(), &[self.events[queue][0].as_fd()])
    }

    /// Stops a queue; returns its base.
    ///
    /// # Errors
    /// As [`FrontEnd::reply`].
    pub fn stop_queue(&mut self, queue: u32) -> io::Result<u32> {
        self.send(11, &words32([queue, 0]), &[])?;
        let reply = self.reply(11)?;
        Ok(u32::from_ne_bytes(std::array::from_fn(|i| reply[4 + i])))
    }

    /// Notifies the back end.
    pub fn kick(&self, queue: usize) {
        signal(&self.events[queue][0]);
    }

    /// The guest address of a buffer of a queue.
    pub fn buffer(queue: usize, buffer: u16) -> u64 {
        GUEST + BUFFERS * (1 + queue as u64) + BUFFER as u64 * u64::from(buffer)
    }

    /// The offset of a queue's ring part in the memory's words.
    fn at(queue: usize, part: usize) -> usize {
        RINGS as usize * queue + part
    }

    fn store_u64(&self, at: usize, value: u64) {
        self.words.store_u32(at, value as u32);
        self.words.store_u32(at + 4, (value >> 32) as u32);
    }

    /// Offers a buffer as a chain of one descriptor; its first `len` bytes.
    pub fn offer(&mut self, queue: usize, buffer: u16, len: u32, writable: bool) {
        let (n, lap) = (self.offered[queue], (self.offered[queue] / u32::from(SIZE)) % 2);
        let place = (n % u32::from(SIZE)) as usize;
        let flags = if writable { 2 } else { 0 };
        let desc = if self.packed { place } else { usize::from(buffer) };
        let at = FrontEnd::at(queue, 16 * desc);
        self.store_u64(at, FrontEnd::buffer(queue, buffer));
        self.words.store_u32(at + 8, len);
        self.offered[queue] = n.wrapping_add(1);
        if self.packed {
            self.words.store_u16(at + 12, buffer, Relaxed);
            let offered = if lap == 0 { 1 << 7 } else { 1 << 15 };
            self.words.store_u16(at + 14, flags | offered, Release);
        } else {
            self.words.store_u16(at + 12, flags, Relaxed);
            let avail = FrontEnd::at(queue, AVAIL);
            self.words.store_u16(avail + 4 + 2 * place, buffer, Relaxed);
            self.words.store_u16(avail + 2, self.offered[queue] as u16, Release);
        }
        fence(SeqCst);
    }

    /// Takes the next chain that the back end has returned: the buffer's number and the bytes that were written.
    pub fn take_used(&mut self, queue: usize) -> Option<(u16, u32)> {
        let (n, lap) = (self.used[queue], (self.used[queue] / u32::from(SIZE)) % 2);
        let place = (n % u32::from(SIZE)) as usize;
        let taken = if self.packed {
            let at = FrontEnd::at(queue, 16 * place);
            let flags = self.words.load_u16(at + 14, Acquire) & (1 << 7 | 1 << 15);
            let used = if lap == 0 { 1 << 7 | 1 << 15 } else { 0 };
            let rest = self.words.load_u64(at + 8);
            (flags == used).then_some(((rest >> 32) as u16, rest as u32))
        } else {
            let at = FrontEnd::at(queue, USED);
            let is_new = self.words.load_u16(at + 2, Acquire) != n as u16;
            let low = || self.words.load_u16(at + 4 + 8 * place, Relaxed);
            let bytes = || u32::from(self.words.load_u16(at + 8 + 8 * place, Relaxed));
            is_new.then(|| (low(), bytes()))
        };
        self.used[queue] = n.wrapping_add(u32::from(taken.is_some()));
        taken
    }

    /// Sends a packet: a header, 12 bytes, and a frame. Waits until the back end has returned the buffer.
    #[track_caller]
    pub fn transmit(&mut self, header: [u8; 12], frame: &[u8]) {
        self.offer_packet(header, frame);
        until("a sent buffer returns", || self.take_used(1).is_some());
    }

    /// Sends a packet into the next buffer, which the back end must have returned.
    pub fn offer_packet(&mut self, header: [u8; 12], frame: &[u8]) {
        let buffer = (self.offered[1] % u32::from(SIZE)) as u16;
        let at = self.memory.frame(FrontEnd::buffer(1, buffer), 1 << 17).expect("guest memory");
        at.write(0, &header);
        at.write(12, frame);
        self.offer(1, buffer, 12 + frame.len() as u32, false);
        self.kick(1);
    }

    /// Receives a packet, without its header, and the header; offers its buffers again. `None` if there is none.
    pub fn receive(&mut self) -> Option<([u8; 12], Vec<u8>)> {
        let (first, bytes) = self.take_used(0)?;
        let mut packet = self.contents(first, bytes);
        let buffers = packet.get(10..12).map_or(1, |bytes| u16::from_le_bytes([bytes[0], bytes[1]]));
        let mut taken = vec![first];
        for _ in 1..buffers {
            // They are shown together.
            let (next, bytes) = self.take_used(0)?;
            packet.extend(self.contents(next, bytes));
            taken.push(next);
        }
        for buffer in taken {
            self.offer(0, buffer, BUFFER as u32, true);
        }
        self.kick(0);
        let frame = packet.split_off(12.min(packet.len()));
        Some((packet.try_into().ok()?, frame))
    }

    /// Waits for a packet.
    #[track_caller]
    pub fn wait_packet(&mut self) -> ([u8; 12], Vec<u8>) {
        let mut got = None;
        until("the guest receives a packet", || {
            got = self.receive();
            got.is_some()
        });
        got.expect("just received")
    }

    fn contents(&self, buffer: u16, bytes: u32) -> Vec<u8> {
        let mut out = vec![0; (bytes as usize).min(BUFFER)];
        assert!(self.memory.read(FrontEnd::buffer(0, buffer), &mut out), "buffer {buffer} of {bytes} bytes");
        out
    }

    /// The file of the guest memory, to shorten it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn memory_file(&self) -> io::Result<File> {
        Ok(self.file.try_clone()?.into())
    }
}

/// Integers as a message has them.
pub fn words32<const N: usize>(words: [u32; N]) -> Vec<u8> {
    words.into_iter().flat_map(u32::to_ne_bytes).collect()
}

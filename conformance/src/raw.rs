//! The control protocol, spoken without the library's manners: what a hostile program can do.

use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use unetmap::abi::{NETMAP_REQ_REGISTER, NetmapRing, NetmapSlot, NmreqRegister};
use unetmap::bound::Bound;
use unetmap::request::{Answer, Request};
use unetmap::watch::{Asked, Told};
use unetmap::wire::{self, Head, Kind};
use unetmap_sys::socket;
use zerocopy::IntoBytes as _;

use crate::books::Snapshot;
use crate::home::LIMIT;

/// A connection to the daemon.
pub struct Raw {
    fd: OwnedFd,
}

/// An answer.
pub struct Reply {
    /// 0 or netmap's errno.
    pub errno: i32,
    /// Of an answer to `Lease`.
    pub lease: u32,
    /// What came with it.
    pub payload: Vec<u8>,
    /// File descriptors that came with it.
    pub fds: Vec<OwnedFd>,
}

impl Raw {
    /// Connects; starts no daemon. Nothing on it waits longer than [`LIMIT`].
    ///
    /// # Errors
    /// When nobody listens there.
    pub fn connect(path: &Path) -> io::Result<Raw> {
        let fd = socket::connect(path)?;
        socket::set_timeout(&fd, LIMIT)?;
        Ok(Raw { fd })
    }

    /// Limits how long the next calls wait.
    pub fn set_limit(&self, limit: Duration) {
        socket::set_timeout(&self.fd, limit).expect("a limit that the kernel can hold");
    }

    /// Sends one message as it is.
    ///
    /// # Errors
    /// `EPIPE` when the daemon has hung up.
    pub fn send(&self, bytes: &[u8]) -> io::Result<()> {
        self.send_with(bytes, &[])
    }

    /// Sends one message with file descriptors.
    ///
    /// # Errors
    /// As [`Raw::send`].
    pub fn send_with(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        socket::send(&self.fd, bytes, fds).map(|_| ())
    }

    /// The next message; `None` when the daemon has hung up. Panics when neither comes within the limit.
    #[track_caller]
    pub fn receive(&self) -> Option<Reply> {
        let mut fds = Vec::new();
        let mut bytes = self.message(&mut fds)?;
        let (_, Head { errno, lease, fds: want, .. }, payload) = wire::open(&bytes).expect("a well-formed answer");
        let payload = payload.to_vec();
        while fds.len() < want as usize {
            bytes = self.message(&mut fds)?;
            wire::open(&bytes).expect("a well-formed answer");
        }
        Some(Reply { errno, lease, payload, fds })
    }

    #[track_caller]
    fn message(&self, fds: &mut Vec<OwnedFd>) -> Option<Vec<u8>> {
        let mut buf = vec![0; wire::MAX_ANSWER];
        match socket::recv(&self.fd, &mut buf, fds) {
            Ok(got) if got.bytes == 0 => None,
            Ok(got) => {
                buf.truncate(got.bytes);
                Some(buf)
            }
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => None,
            Err(e) => panic!("the daemon neither answers nor hangs up: {e}"),
        }
    }

    /// Asks for a lease; its number.
    #[track_caller]
    pub fn lease(&self) -> u32 {
        self.send(&wire::message(Kind::Lease, 0, 0, 0, &[])).expect("a daemon that listens");
        self.receive().expect("an answer").lease
    }

    /// Sends a netmap request: its errno, and the answer where one came with it.
    #[track_caller]
    pub fn request(&self, request: &Request) -> (i32, Option<Answer>, Vec<OwnedFd>) {
        self.send(&wire::message(Kind::Ctrl, 0, 0, 0, &request.encode())).expect("a daemon that listens");
        let reply = self.receive().expect("an answer");
        (reply.errno, Answer::decode(&reply.payload), reply.fds)
    }

    /// Asks who watches a session: the errno, the next monitor, and the descriptors of its shelf.
    #[track_caller]
    pub fn watchers(&self, asked: &Asked) -> (i32, Option<Told>, Vec<OwnedFd>) {
        self.send(&wire::message(Kind::Watchers, 0, 0, 0, asked.as_bytes())).expect("a daemon that listens");
        let reply = self.receive().expect("an answer");
        (reply.errno, Told::decode(&reply.payload).filter(|_| reply.errno == 0), reply.fds)
    }

    /// The daemon's books.
    pub fn snapshot(&self) -> Option<Snapshot> {
        self.send(&wire::message(Kind::Snapshot, 0, 0, 0, &[])).ok()?;
        let memfd = self.receive()?.fds.into_iter().next()?;
        let mut file = File::from(memfd);
        let mut text = String::new();
        file.rewind().and_then(|()| file.read_to_string(&mut text)).expect("a file to read");
        Some(serde_json::from_str(text.trim_end_matches('\0')).expect("the daemon's books are JSON"))
    }
}

/// A port that is open without the library: files, and numbers that tell what is where in them.
pub struct Intruder {
    /// The connection; closing it closes the port.
    pub raw: Raw,
    /// What was bound, and where it is.
    pub bound: Bound,
    /// The region.
    pub region: File,
    /// The end page: 128 bytes a ring.
    pub states: File,
    /// The line page: 512 bytes a line.
    pub lines: File,
    /// The other descriptors: bells.
    pub bells: Vec<OwnedFd>,
}

/// Words of a ring's header.
pub mod field {
    use super::NetmapRing;

    /// First slot of the program's.
    pub const HEAD: usize = std::mem::offset_of!(NetmapRing, head);
    /// Wake-up point.
    pub const CUR: usize = std::mem::offset_of!(NetmapRing, cur);
    /// One past the last slot of the program's.
    pub const TAIL: usize = std::mem::offset_of!(NetmapRing, tail);
}

impl Intruder {
    /// Opens the port `name`, as requests carry it.
    #[track_caller]
    pub fn open(socket: &Path, name: &str) -> Intruder {
        Intruder::open_as(socket, name, NmreqRegister::default())
    }

    /// The same with `NR_*` flags.
    #[track_caller]
    pub fn open_with(socket: &Path, name: &str, flags: u64) -> Intruder {
        Intruder::open_as(socket, name, NmreqRegister { nr_flags: flags, ..Default::default() })
    }

    /// The same with wishes; all rings.
    #[track_caller]
    pub fn open_as(socket: &Path, name: &str, wishes: NmreqRegister) -> Intruder {
        let raw = Raw::connect(socket).expect("a daemon that listens");
        let register = NmreqRegister { nr_mode: unetmap::abi::NR_REG_ALL_NIC, ..wishes };
        let request = Request::new(NETMAP_REQ_REGISTER, name, register.as_bytes()).expect("a short name");
        let (errno, answer, fds) = raw.request(&request);
        assert_eq!(errno, 0, "{name}: {answer:?}");
        let bound = Bound::decode(&answer.expect("an answer").bound).expect("a well-formed answer");
        let mut fds = fds.into_iter();
        let mut file = || File::from(fds.next().expect("three files and the bells"));
        let (region, states, lines) = (file(), file(), file());
        Intruder { raw, bound, region, states, lines, bells: fds.collect() }
    }

    /// Writes into the header of ring `ring` (transmit rings first).
    pub fn write_field(&self, ring: usize, at: usize, value: u32) {
        self.write(self.bound.rings[ring].offset + at as u64, &value.to_ne_bytes());
    }

    /// Writes a whole slot of ring `ring`.
    pub fn write_slot(&self, ring: usize, slot: u32, idx: u32, len: u16, flags: u16) {
        let bytes = NetmapSlot { buf_idx: idx, len, flags, ptr: 0 };
        let at = size_of::<NetmapRing>() + slot as usize * size_of::<NetmapSlot>();
        self.write(self.bound.rings[ring].offset + at as u64, bytes.as_bytes());
    }

    /// The buffer index in a slot of ring `ring`.
    pub fn slot_index(&self, ring: usize, slot: u32) -> u32 {
        let at = size_of::<NetmapRing>() + slot as usize * size_of::<NetmapSlot>();
        let mut bytes = [0; 4];
        self.region.read_exact_at(&mut bytes, self.bound.rings[ring].offset + at as u64).expect("inside the region");
        u32::from_ne_bytes(bytes)
    }

    /// Writes anywhere into the region.
    pub fn write(&self, at: u64, bytes: &[u8]) {
        self.region.write_all_at(bytes, at).expect("inside the region");
    }

    /// Writes `prod` (word 0) or `cons` (word 1) or a wish to be woken (words 2, 3) of the line of ring `ring`.
    pub fn write_line(&self, ring: usize, word: u64, value: u32) {
        let at = u64::from(self.bound.rings[ring].line) * 512 + word * 128;
        self.lines.write_all_at(&value.to_ne_bytes(), at).expect("inside the line page");
    }

    /// Reads such a word.
    pub fn read_line(&self, ring: usize, word: u64) -> u32 {
        let at = u64::from(self.bound.rings[ring].line) * 512 + word * 128;
        let mut bytes = [0; 4];
        self.lines.read_exact_at(&mut bytes, at).expect("inside the line page");
        u32::from_ne_bytes(bytes)
    }

    /// Writes word `word` of the state of ring `ring`: 0 the lock, 1 `hwcur`, 2 `hwtail`.
    pub fn write_state(&self, ring: usize, word: u64, value: u32) {
        let at = u64::from(self.bound.rings[ring].state) * 128 + word * 4;
        self.states.write_all_at(&value.to_ne_bytes(), at).expect("inside the end page");
    }

    /// Takes away the pages of the whole region, as a program may that has the file.
    pub fn punch_hole(&self) {
        use rustix::fs::{FallocateFlags, fallocate};
        let bytes = self.region.metadata().expect("a file").len();
        fallocate(self.region.as_fd(), FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, bytes)
            .expect("the kernel lets everybody punch holes");
    }
}

// SPDX-License-Identifier: BSD-2-Clause
//! Ports and control connections without the library: what a hostile program can do.

use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;
use unetmap::abi::{NETMAP_REQ_REGISTER, NetmapRing, NetmapSlot, NmreqRegister};
use unetmap_core::control::binding::Binding;
use unetmap_core::control::monitor::MonitorReply;
use unetmap_core::control::request::{NetmapReply, NetmapRequest};
use unetmap_core::control::vale::ValeRequest;
use unetmap_core::control::wire::{self, Head};
use unetmap_core::control::{
    ControlRequest, LockHolderRequest, NextMonitorRequest, PeerDoorbellsRequest, SnapshotRequest,
};
use unetmap_sys::socket;
use zerocopy::IntoBytes as _;

use conformance::LIMIT;
use conformance::snapshot::Snapshot;

/// A connection to the daemon.
pub struct ControlConnection {
    fd: OwnedFd,
}

/// A reply.
pub struct Reply {
    /// 0 or the errno.
    pub errno: i32,
    /// The holder ID in a reply to `LockHolderRequest`.
    pub holder: u32,
    /// The bytes after the header.
    pub payload: Vec<u8>,
    /// The file descriptors that came with the reply.
    pub fds: Vec<OwnedFd>,
}

impl Reply {
    /// The text of the reply: its payload, or the file that came with it.
    #[track_caller]
    pub fn text(self) -> String {
        let Some(memfd) = self.fds.into_iter().next() else {
            return String::from_utf8(self.payload).expect("text");
        };
        let (mut file, mut text) = (File::from(memfd), String::new());
        file.rewind().and_then(|()| file.read_to_string(&mut text)).expect("a file to read");
        text.trim_end_matches('\0').to_owned()
    }
}

/// Calls `run` as user `uid`, for tests that root runs: peers of sockets that it connects or listens at see that user.
///
/// # Errors
/// This process is not root's.
pub fn as_user<T>(uid: u32, run: impl FnOnce() -> T) -> io::Result<T> {
    let set_user = |uid| set_thread_res_uid(None, Uid::from_raw(uid), None);
    // Only this thread: the effective user id alone, so that it can be root's again.
    set_user(uid)?;
    let done = run();
    set_user(0)?;
    Ok(done)
}

impl AsFd for ControlConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl ControlConnection {
    /// Connects without starting a daemon. No call on the connection waits longer than [`LIMIT`].
    ///
    /// # Errors
    /// No daemon listens there.
    pub fn connect(path: &Path) -> io::Result<ControlConnection> {
        let fd = socket::connect(path)?;
        socket::set_timeout(&fd, LIMIT)?;
        Ok(ControlConnection { fd })
    }

    /// Connects as user `uid`, for tests that root runs. The daemon sees the user that the kernel records now.
    ///
    /// # Errors
    /// No daemon listens there.
    pub fn connect_as(path: &Path, uid: u32) -> io::Result<ControlConnection> {
        as_user(uid, || ControlConnection::connect(path))?
    }

    /// Bytes of the messages that have come and were not received.
    pub fn waiting_bytes(&self) -> u64 {
        rustix::io::ioctl_fionread(&self.fd).expect("a socket")
    }

    /// Limits how long the next calls wait.
    pub fn set_limit(&self, limit: Duration) {
        socket::set_timeout(&self.fd, limit).expect("a limit that the kernel can hold");
    }

    /// Sends one message as it is.
    ///
    /// # Errors
    /// `EPIPE`: the daemon has closed the connection.
    pub fn send(&self, bytes: &[u8]) -> io::Result<()> {
        self.send_with(bytes, &[])
    }

    /// Sends one message with file descriptors.
    ///
    /// # Errors
    /// As [`ControlConnection::send`].
    pub fn send_with(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        socket::send(&self.fd, bytes, fds).map(|_| ())
    }

    /// Whether a reply has arrived that was not received.
    pub fn has_reply(&self) -> bool {
        socket::has_input(&self.fd)
    }

    /// Receives the next reply; returns `None` if the daemon has closed the connection. Panics after the limit.
    #[track_caller]
    pub fn receive(&self) -> Option<Reply> {
        let mut fds = Vec::new();
        let mut bytes = self.message(&mut fds)?;
        let (_, Head { errno, holder, fds: want, .. }, payload) = wire::decode(&bytes).expect("a well-formed answer");
        let payload = payload.to_vec();
        while fds.len() < want as usize {
            bytes = self.message(&mut fds)?;
            wire::decode(&bytes).expect("a well-formed answer");
        }
        Some(Reply { errno, holder, payload, fds })
    }

    /// Receives the next reply after requests that the daemon may not have read before it closed the connection: the
    /// kernel reports that first, once.
    #[track_caller]
    pub fn receive_after_reset(&self) -> Option<Reply> {
        self.receive().or_else(|| self.receive())
    }

    #[track_caller]
    fn message(&self, fds: &mut Vec<OwnedFd>) -> Option<Vec<u8>> {
        let mut buf = vec![0; wire::MAX_REPLY];
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

    /// Requests a holder ID.
    #[track_caller]
    pub fn holder(&self) -> u32 {
        self.send(&wire::encode(LockHolderRequest::KIND, 0, 0, 0, &[])).expect("a daemon that listens");
        self.receive().expect("an answer").holder
    }

    /// Sends a netmap request; returns the errno, the reply if there is one, and the descriptors.
    #[track_caller]
    pub fn request(&self, request: &NetmapRequest) -> (i32, Option<NetmapReply>, Vec<OwnedFd>) {
        self.send(&wire::encode(NetmapRequest::KIND, 0, 0, 0, &request.encode())).expect("a daemon that listens");
        let reply = self.receive().expect("an answer");
        (reply.errno, NetmapReply::decode(&reply.payload), reply.fds)
    }

    /// Requests a change of a switch; returns the errno.
    #[track_caller]
    pub fn request_vale(&self, request: &ValeRequest) -> i32 {
        self.send(&wire::encode(ValeRequest::KIND, 0, 0, 0, &request.encode())).expect("a daemon that listens");
        self.receive().expect("an answer").errno
    }

    /// Requests the next monitor of a session; returns the errno, the monitor, and the descriptors of its mirror rings.
    #[track_caller]
    pub fn next_monitor(&self, request: &NextMonitorRequest) -> (i32, Option<MonitorReply>, Vec<OwnedFd>) {
        self.send(&wire::encode(NextMonitorRequest::KIND, 0, 0, 0, request.as_bytes())).expect("a daemon that listens");
        let reply = self.receive().expect("an answer");
        (reply.errno, MonitorReply::decode(&reply.payload).filter(|_| reply.errno == 0), reply.fds)
    }

    /// Requests the doorbells of the other end of a session's pipe; returns the errno and the doorbells.
    #[track_caller]
    pub fn peer_doorbells(&self, request: &PeerDoorbellsRequest) -> (i32, Vec<OwnedFd>) {
        self.send(&wire::encode(PeerDoorbellsRequest::KIND, 0, 0, 0, request.as_bytes()))
            .expect("a daemon that listens");
        let reply = self.receive().expect("an answer");
        (reply.errno, reply.fds)
    }

    /// Requests the daemon's snapshot.
    pub fn snapshot(&self) -> Option<Snapshot> {
        self.send(&wire::encode(SnapshotRequest::KIND, 0, 0, 0, &[])).ok()?;
        Some(serde_json::from_str(&self.receive()?.text()).expect("the daemon's books are JSON"))
    }
}

/// A port that was opened without the library: its files, and the offsets of everything in them.
pub struct RawPort {
    /// The connection; closing it closes the port.
    pub raw: ControlConnection,
    /// The binding, and its offsets.
    pub bound: Binding,
    /// The number of the region.
    pub mem_id: u16,
    /// The region.
    pub region: File,
    /// The endpoint state page: 128 bytes for each ring.
    pub endpoint_states: File,
    /// The channel page: 512 bytes for each channel.
    pub channels: File,
    /// The other descriptors: doorbells.
    pub doorbells: Vec<OwnedFd>,
}

/// Words of a ring's header.
pub mod field {
    use super::NetmapRing;

    /// First slot that the program owns.
    pub const HEAD: usize = std::mem::offset_of!(NetmapRing, head);
    /// Wake-up point.
    pub const CUR: usize = std::mem::offset_of!(NetmapRing, cur);
    /// One past the last slot that the program owns.
    pub const TAIL: usize = std::mem::offset_of!(NetmapRing, tail);
}

impl RawPort {
    /// Opens the port `name`, in the form of requests, with all its rings.
    #[track_caller]
    pub fn open(socket: &Path, name: &str) -> RawPort {
        RawPort::open_as(socket, name, NmreqRegister::default())
    }

    /// As [`RawPort::open`], with `NR_*` flags.
    #[track_caller]
    pub fn open_with(socket: &Path, name: &str, flags: u64) -> RawPort {
        RawPort::open_as(socket, name, NmreqRegister { nr_flags: flags, ..Default::default() })
    }

    /// As [`RawPort::open`], with all fields of the request.
    #[track_caller]
    pub fn open_as(socket: &Path, name: &str, fields: NmreqRegister) -> RawPort {
        RawPort::open_on(ControlConnection::connect(socket).expect("a daemon that listens"), name, fields)
    }

    /// As [`RawPort::open_as`], on a connection, which may be another user's.
    #[track_caller]
    pub fn open_on(raw: ControlConnection, name: &str, fields: NmreqRegister) -> RawPort {
        RawPort::try_open_on(raw, name, fields).unwrap_or_else(|why| panic!("{name}: {why}"))
    }

    /// As [`RawPort::open_on`].
    ///
    /// # Errors
    /// Why the daemon refuses it.
    #[track_caller]
    pub fn try_open_on(raw: ControlConnection, name: &str, fields: NmreqRegister) -> Result<RawPort, String> {
        let register = NmreqRegister { nr_mode: unetmap::abi::NR_REG_ALL_NIC, ..fields };
        let request = NetmapRequest::new(NETMAP_REQ_REGISTER, name, register.as_bytes()).expect("a short name");
        let (errno, answer, fds) = raw.request(&request);
        if errno != 0 {
            return Err(answer.map_or_else(|| format!("errno {errno}"), |answer| answer.reason));
        }
        let answer = answer.expect("an answer");
        let mem_id = answer.request.body_as::<NmreqRegister>().expect("the completed request").nr_mem_id;
        let bound = Binding::decode(&answer.binding).expect("a well-formed answer");
        let mut fds = fds.into_iter();
        let mut file = || File::from(fds.next().expect("three files and the doorbells"));
        let (region, endpoint_states, channels) = (file(), file(), file());
        Ok(RawPort { raw, bound, mem_id, region, endpoint_states, channels, doorbells: fds.collect() })
    }

    /// Writes a word of the header of ring `ring` (transmit rings first).
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

    /// Writes bytes anywhere in the region.
    pub fn write(&self, at: u64, bytes: &[u8]) {
        self.region.write_all_at(bytes, at).expect("inside the region");
    }

    /// Writes `prod` (word 0), `cons` (word 1) or a wake-up request (words 2, 3) of the channel of ring `ring`.
    pub fn write_channel(&self, ring: usize, word: u64, value: u32) {
        let at = u64::from(self.bound.rings[ring].channel) * 512 + word * 128;
        self.channels.write_all_at(&value.to_ne_bytes(), at).expect("inside the channel page");
    }

    /// Reads a word of the channel of ring `ring`, as numbered in [`RawPort::write_channel`].
    pub fn read_channel(&self, ring: usize, word: u64) -> u32 {
        let at = u64::from(self.bound.rings[ring].channel) * 512 + word * 128;
        let mut bytes = [0; 4];
        self.channels.read_exact_at(&mut bytes, at).expect("inside the channel page");
        u32::from_ne_bytes(bytes)
    }

    /// Writes word `word` of the endpoint state of ring `ring`: 0 the lock, 1 `hwcur`, 2 `hwtail`.
    pub fn write_state(&self, ring: usize, word: u64, value: u32) {
        let at = u64::from(self.bound.rings[ring].state) * 128 + word * 4;
        self.endpoint_states.write_all_at(&value.to_ne_bytes(), at).expect("inside the endpoint state page");
    }

    /// Removes all pages of the region; false if that is forbidden.
    pub fn punch_hole(&self) -> bool {
        use rustix::fs::{FallocateFlags, fallocate};
        let bytes = self.region.metadata().expect("a file").len();
        fallocate(self.region.as_fd(), FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, bytes).is_ok()
    }
}

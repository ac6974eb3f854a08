// SPDX-License-Identifier: BSD-2-Clause
//! A FUSE server: a mount, its requests and replies, and files whose memory is that of another file (passthrough).
//!
//! ```text
//! program: open, ioctl, poll  -->  kernel  -->  Device::read, Request::parse   one request after the other
//!                             <--          <--  Device::reply                  in any order, by request number
//! program: mmap               <-->         pages of the backing file that OPEN named (Device::open_backing)
//! ```
//! It supports only what a device file needs: directories, symbolic links and files of a fixed size, without data of
//! its own. The layouts are those of the kernel's `linux/fuse.h`, version 7.40 (Linux 6.9).

use std::ffi::OsStr;
use std::fs;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

mod device;
pub use device::{check_available, device_of, is_device};

use crate::tuning::{FUSE_ENTRY_VALID_S, FUSE_MAX_BACKGROUND};

/// Source of the mounts of this module in `/proc/self/mountinfo`.
pub const MOUNT_SOURCE: &str = "unetmapd";
const FS_TYPE: &str = "fuse.unetmap";

/// Bytes that a buffer for [`Device::read`] needs: at least the kernel's minimum, and more than any request here.
pub const REQUEST_BYTES: usize = 8192 + 4096;

/// `FUSE_DEV_IOC_BACKING_OPEN`, `FUSE_DEV_IOC_BACKING_CLOSE` of linux/fuse.h.
const BACKING_OPEN: libc::c_ulong = 0x4010_E501;
const BACKING_CLOSE: libc::c_ulong = 0x4004_E502;

/// Flags and version of FUSE_INIT.
const INIT_EXT: u64 = 1 << 30;
const PASSTHROUGH: u64 = 1 << 37;
const MAJOR: u32 = 7;
const MINOR: u32 = 40;
/// Flags of FUSE_OPEN: no page cache; no FLUSH request at close; passthrough to the backing file.
const OPEN_FLAGS: u32 = 1 | 1 << 5 | 1 << 7;
/// Flag of FUSE_POLL: the caller is about to sleep.
const SCHEDULE_NOTIFY: u32 = 1;
/// Notification to the kernel: pollers of a file must poll again.
const NOTIFY_POLL: i32 = 1;
/// Notification to the kernel: send the cached data of a node, of which there is none.
const NOTIFY_RETRIEVE: i32 = 5;
/// The node of the mount's root directory (`FUSE_ROOT_ID`).
pub const ROOT_NODE: u64 = 1;

/// Size of each file in its attributes: 1 TiB.
pub const FILE_BYTES: u64 = 1 << 40;

const S_IFDIR: u32 = 0o40000;
const S_IFREG: u32 = 0o100_000;
const S_IFLNK: u32 = 0o120_000;

/// Kind of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A directory that never changes: the kernel caches it without limit, so that it can be a mount point.
    Directory,
    /// A symbolic link. The kernel requests its target at each use.
    Symlink,
    /// A file. The kernel does not cache its name.
    File,
}

#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct InHeader {
    len: u32,
    opcode: u32,
    unique: u64,
    node: u64,
    uid: u32,
    gid: u32,
    pid: u32,
    extensions: u16,
    padding: u16,
}

#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct InitIn {
    major: u32,
    minor: u32,
    max_readahead: u32,
    flags: u32,
}

#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct IoctlIn {
    fh: u64,
    flags: u32,
    cmd: u32,
    arg: u64,
    in_size: u32,
    out_size: u32,
}

#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct PollIn {
    fh: u64,
    kh: u64,
    flags: u32,
    events: u32,
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct Retrieve {
    unique: u64,
    node: u64,
    offset: u64,
    size: u32,
    padding: u32,
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct OutHeader {
    len: u32,
    error: i32,
    unique: u64,
}

#[derive(Default, IntoBytes, Immutable)]
#[repr(C)]
struct InitOut {
    major: u32,
    minor: u32,
    max_readahead: u32,
    flags: u32,
    max_background: u16,
    congestion_threshold: u16,
    max_write: u32,
    time_gran: u32,
    max_pages: u16,
    map_alignment: u16,
    flags2: u32,
    max_stack_depth: u32,
    unused: [u16; 12],
}

#[derive(Default, IntoBytes, Immutable)]
#[repr(C)]
struct Attr {
    ino: u64,
    size: u64,
    blocks: u64,
    times: [u64; 3],
    nanoseconds: [u32; 3],
    mode: u32,
    nlink: u32,
    uid: u32,
    gid: u32,
    rdev: u32,
    blksize: u32,
    flags: u32,
}

#[derive(Default, IntoBytes, Immutable)]
#[repr(C)]
struct EntryOut {
    node: u64,
    generation: u64,
    entry_valid: u64,
    attr_valid: u64,
    nanoseconds: [u32; 2],
    attr: Attr,
}

#[derive(Default, IntoBytes, Immutable)]
#[repr(C)]
struct AttrOut {
    attr_valid: u64,
    nanoseconds: [u32; 2],
    attr: Attr,
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct OpenOut {
    fh: u64,
    flags: u32,
    backing: i32,
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct IoctlOut {
    result: i32,
    flags: u32,
    in_iovs: u32,
    out_iovs: u32,
}

const _: () = assert!(size_of::<InHeader>() == 40 && size_of::<OutHeader>() == 16 && size_of::<InitOut>() == 64);
const _: () = assert!(size_of::<Attr>() == 88 && size_of::<EntryOut>() == 128 && size_of::<AttrOut>() == 104);
const _: () = assert!(size_of::<IoctlIn>() == 32 && size_of::<IoctlOut>() == 16 && size_of::<PollIn>() == 24);

/// Credentials of the thread that made a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Requester {
    /// File system user id.
    pub uid: u32,
    /// File system group id.
    pub gid: u32,
    /// The thread, in this process's pid namespace; 0 if its pid namespace is not visible.
    pub tid: u32,
}

/// A request.
#[derive(Debug)]
pub struct Request<'a> {
    /// Number that identifies it in the reply.
    pub unique: u64,
    /// The file or directory that it refers to.
    pub node: u64,
    /// The requesting thread.
    pub from: Requester,
    /// The operation.
    pub op: Op<'a>,
}

/// The operation of a request.
#[derive(Debug)]
pub enum Op<'a> {
    /// FUSE_INIT: answered by [`Device::reply_init`].
    Init {
        /// Version and features that the kernel offers.
        offered: KernelFeatures,
    },
    /// FUSE_LOOKUP: the node of this name in the directory.
    Lookup(&'a OsStr),
    /// FUSE_READLINK: the target of the symbolic link.
    Readlink,
    /// FUSE_GETATTR and FUSE_SETATTR: both have the attributes as reply.
    GetSetAttr,
    /// FUSE_OPEN and FUSE_OPENDIR.
    Open {
        /// Whether the node is a directory.
        directory: bool,
    },
    /// FUSE_RELEASE: the last duplicate of an open file is closed.
    Release {
        /// The open file.
        fh: u64,
    },
    /// FUSE_IOCTL.
    Ioctl {
        /// The open file.
        fh: u64,
        /// The ioctl number.
        cmd: u32,
        /// Bytes that the argument points to, if the ioctl number declares that they are read.
        data: &'a [u8],
        /// Bytes that may be written back to the argument.
        room: u32,
    },
    /// FUSE_POLL: which of these events an open file has.
    Poll {
        /// The open file.
        fh: u64,
        /// Handle for [`Device::notify_poll`].
        kh: u64,
        /// POLLIN and so on.
        events: u32,
        /// Whether the caller is about to sleep until they occur.
        sleeps: bool,
    },
    /// FUSE_INTERRUPT: the thread that made the request of this number has received a signal, and still waits.
    Interrupt(u64),
    /// The reply to [`Device::queue_marker`], with the marker's number as its own; has no reply.
    NotifyReply,
    /// FUSE_FORGET and FUSE_BATCH_FORGET: have no reply.
    Forget,
    /// FUSE_READDIR and FUSE_RELEASEDIR: an empty reply grants them.
    ReadOrReleaseDir,
    /// FUSE_READ and FUSE_WRITE.
    ReadWrite,
    /// An operation that is not supported, by number.
    Other(u32),
}

/// Version and features that the kernel offers in FUSE_INIT.
#[derive(Clone, Copy, Debug)]
pub struct KernelFeatures {
    /// Version 7.minor.
    pub minor: u32,
    flags: u64,
}

impl KernelFeatures {
    /// Returns whether files can be backed by the memory of another file.
    pub fn passthrough(self) -> bool {
        self.flags & PASSTHROUGH != 0 && self.minor >= MINOR
    }
}

impl<'a> Request<'a> {
    /// Decodes a message; `None` if it is too short.
    pub fn parse(bytes: &'a [u8]) -> Option<Request<'a>> {
        let (head, body) = InHeader::read_from_prefix(bytes).ok()?;
        let number = |at: usize| Some(u64::from_ne_bytes(body.get(at..at + 8)?.try_into().ok()?));
        let op = match head.opcode {
            1 => Op::Lookup(OsStr::from_bytes(body.split(|&b| b == 0).next()?)),
            2 | 42 => Op::Forget,
            3 | 4 => Op::GetSetAttr,
            5 => Op::Readlink,
            14 => Op::Open { directory: false },
            27 => Op::Open { directory: true },
            28 | 29 => Op::ReadOrReleaseDir,
            15 | 16 => Op::ReadWrite,
            18 => Op::Release { fh: number(0)? },
            26 => {
                let (init, rest) = InitIn::read_from_prefix(body).ok()?;
                // Kernels before 5.17 send no second word of flags.
                let flags2 = u32::read_from_prefix(rest).map_or(0, |(word, _)| word);
                let flags = u64::from(init.flags) | u64::from(flags2) << 32;
                // Without the flag the second word is undefined.
                let flags = if flags & INIT_EXT == 0 { flags & u64::from(u32::MAX) } else { flags };
                let minor = if init.major == MAJOR { init.minor } else { 0 };
                Op::Init { offered: KernelFeatures { minor, flags } }
            }
            36 => Op::Interrupt(number(0)?),
            39 => {
                let (ioctl, data) = IoctlIn::read_from_prefix(body).ok()?;
                let data = data.get(..ioctl.in_size as usize)?;
                Op::Ioctl { fh: ioctl.fh, cmd: ioctl.cmd, data, room: ioctl.out_size }
            }
            41 => Op::NotifyReply,
            40 => {
                let (poll, _) = PollIn::read_from_prefix(body).ok()?;
                let sleeps = poll.flags & SCHEDULE_NOTIFY != 0;
                Op::Poll { fh: poll.fh, kh: poll.kh, events: poll.events, sleeps }
            }
            other => Op::Other(other),
        };
        let from = Requester { uid: head.uid, gid: head.gid, tid: head.pid };
        Some(Request { unique: head.unique, node: head.node, from, op })
    }
}

/// The server's end of a mount (`/dev/fuse`). Several threads may read requests and send replies.
#[derive(Debug)]
pub struct Device(OwnedFd);

impl Device {
    /// Mounts at directory `at`, for all users. FUSE_INIT is the first request; others wait until its reply.
    ///
    /// # Errors
    /// `EPERM` without `CAP_SYS_ADMIN`; `ENOENT`, `ENODEV` if the kernel has no FUSE; those of mount(2).
    pub fn mount(at: &Path) -> io::Result<Device> {
        let dev = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let options = format!(
            "fd={},rootmode={:o},user_id={},group_id={},allow_other",
            dev.as_raw_fd(),
            S_IFDIR | 0o755,
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        );
        let options = std::ffi::CString::new(options).map_err(|_| Errno::INVAL)?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        mount(MOUNT_SOURCE, at, FS_TYPE, flags, options.as_c_str())?;
        Ok(Device(dev))
    }

    /// The end of a mount that another process has made.
    pub fn from_fd(fd: OwnedFd) -> Device {
        Device(fd)
    }

    /// Returns its descriptor, for another process.
    pub fn into_fd(self) -> OwnedFd {
        self.0
    }

    /// Waits for a request, and returns its bytes.
    ///
    /// # Errors
    /// `ENODEV` if the file system is unmounted and none of its files is open; `EINTR`, `ENOENT` (the request was
    /// cancelled): read again.
    pub fn read<'a>(&self, buf: &'a mut [u8]) -> io::Result<&'a [u8]> {
        let n = rustix::io::read(&self.0, &mut *buf)?;
        Ok(&buf[..n])
    }

    /// Replies to FUSE_INIT. Files are opened by [`Device::reply_open`] afterwards.
    ///
    /// # Errors
    /// As [`Device::reply`].
    pub fn reply_init(&self, unique: u64, offered: KernelFeatures) -> io::Result<()> {
        let flags = (INIT_EXT | PASSTHROUGH) & offered.flags;
        let out = InitOut {
            major: MAJOR,
            minor: MINOR.min(offered.minor),
            flags: flags as u32,
            flags2: (flags >> 32) as u32,
            max_background: FUSE_MAX_BACKGROUND,
            congestion_threshold: FUSE_MAX_BACKGROUND,
            max_write: 4096,
            time_gran: 1,
            // The backing file is not in a stacked file system itself.
            max_stack_depth: 1,
            ..Default::default()
        };
        self.reply(unique, out.as_bytes())
    }

    /// Replies success, with `body`.
    ///
    /// # Errors
    /// `ENOENT` if no thread waits for the reply any more, which is harmless; `ENODEV`.
    pub fn reply(&self, unique: u64, body: &[u8]) -> io::Result<()> {
        self.send(0, unique, body, &[])
    }

    /// Replies with an errno.
    ///
    /// # Errors
    /// As [`Device::reply`].
    pub fn reply_error(&self, unique: u64, errno: i32) -> io::Result<()> {
        self.send(-errno, unique, &[], &[])
    }

    /// Replies to a lookup with a node.
    ///
    /// # Errors
    /// As [`Device::reply`].
    pub fn reply_entry(&self, unique: u64, node: u64, kind: Kind) -> io::Result<()> {
        let entry_valid = if kind == Kind::Directory { FUSE_ENTRY_VALID_S } else { 0 };
        self.reply(unique, EntryOut { node, entry_valid, attr: attr(node, kind), ..Default::default() }.as_bytes())
    }

    /// Replies with a node's attributes.
    ///
    /// # Errors
    /// As [`Device::reply`].
    pub fn reply_attr(&self, unique: u64, node: u64, kind: Kind) -> io::Result<()> {
        self.reply(unique, AttrOut { attr: attr(node, kind), ..Default::default() }.as_bytes())
    }

    /// Replies to an open: the file's handle is `fh`, its memory is that of `backing`. All open files of a node must
    /// have the same backing file; a directory has none.
    ///
    /// # Errors
    /// As [`Device::reply`].
    pub fn reply_open(&self, unique: u64, fh: u64, backing: Option<&Backing>) -> io::Result<()> {
        let flags = if backing.is_some() { OPEN_FLAGS } else { 0 };
        self.reply(unique, OpenOut { fh, flags, backing: backing.map_or(0, |b| b.0) }.as_bytes())
    }

    /// Replies to an ioctl with its result (negative: an errno) and the bytes that are written back to the argument in
    /// any case.
    ///
    /// # Errors
    /// As [`Device::reply`].
    pub fn reply_ioctl(&self, unique: u64, result: i32, data: &[u8]) -> io::Result<()> {
        let out = IoctlOut { result, flags: 0, in_iovs: 0, out_iovs: 0 };
        self.send(0, unique, out.as_bytes(), data)
    }

    /// Replies to a poll with the current events.
    ///
    /// # Errors
    /// As [`Device::reply`].
    pub fn reply_poll(&self, unique: u64, events: u32) -> io::Result<()> {
        self.reply(unique, [events, 0].as_bytes())
    }

    /// Makes all threads that sleep in a poll with handle `kh` poll again.
    ///
    /// # Errors
    /// `ENODEV`.
    pub fn notify_poll(&self, kh: u64) -> io::Result<()> {
        self.send(NOTIFY_POLL, 0, kh.as_bytes(), &[])
    }

    /// Queues a marker behind all pending requests, which arrives as [`Op::NotifyReply`]. `node` is an open file, or
    /// one whose release was not read yet.
    ///
    /// # Errors
    /// `ENOENT`: it is neither, or the file system is unmounted; `ENODEV`.
    pub fn queue_marker(&self, number: u64, node: u64) -> io::Result<()> {
        let out = Retrieve { unique: number, node, offset: 0, size: 0, padding: 0 };
        self.send(NOTIFY_RETRIEVE, 0, out.as_bytes(), &[])
    }

    fn send(&self, error: i32, unique: u64, body: &[u8], more: &[u8]) -> io::Result<()> {
        let len = size_of::<OutHeader>() + body.len() + more.len();
        let head = OutHeader { len: len as u32, error, unique };
        let parts = [IoSlice::new(head.as_bytes()), IoSlice::new(body), IoSlice::new(more)];
        rustix::io::writev(&self.0, &parts)?;
        Ok(())
    }

    /// Registers `file` as a backing file of this mount, until [`Device::close_backing`]. Open files keep it.
    ///
    /// # Errors
    /// `EPERM` without `CAP_SYS_ADMIN` in the initial user namespace; `EOPNOTSUPP`, `ELOOP` for files of other kinds.
    pub fn open_backing(&self, file: BorrowedFd<'_>) -> io::Result<Backing> {
        #[repr(C)]
        struct Map {
            fd: i32,
            flags: u32,
            padding: u64,
        }
        let map = Map { fd: file.as_raw_fd(), flags: 0, padding: 0 };
        // SAFETY: K1, K5: the request reads a `struct fuse_backing_map`, which outlives the call.
        let id = unsafe { libc::ioctl(self.0.as_raw_fd(), BACKING_OPEN, &map) };
        if id < 0 { Err(io::Error::last_os_error()) } else { Ok(Backing(id)) }
    }

    /// Unregisters a file of [`Device::open_backing`].
    pub fn close_backing(&self, backing: Backing) {
        // SAFETY: K1, K5: the request reads a 32-bit number, which outlives the call.
        unsafe { libc::ioctl(self.0.as_raw_fd(), BACKING_CLOSE, &backing.0) };
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A backing file that was registered by [`Device::open_backing`].
#[derive(Debug)]
pub struct Backing(i32);

/// Files report the size of the largest backing file: some language runtimes refuse to map beyond the reported size.
fn attr(node: u64, kind: Kind) -> Attr {
    let (mode, size) = match kind {
        Kind::Directory => (S_IFDIR | 0o755, 0),
        Kind::Symlink => (S_IFLNK | 0o777, 0),
        Kind::File => (S_IFREG | 0o666, FILE_BYTES),
    };
    Attr { ino: node, size, mode, nlink: 1, blksize: 4096, ..Default::default() }
}

/// Returns whether the topmost mount at `at` is one of this module, whose server may have exited. Reads only the
/// kernel's mount table, because access to the mount of an exited or stopped server blocks.
///
/// # Errors
/// `/proc` is not mounted.
pub fn is_unetmap_mount(at: &Path) -> io::Result<bool> {
    let table = fs::read("/proc/self/mountinfo")?;
    let mut last = None;
    for line in table.split(|&b| b == b'\n') {
        let mut words = line.split(|&b| b == b' ');
        if words.nth(4).map(unescaped).as_deref() == Some(at) {
            let mut rest = words.skip_while(|word| *word != b"-").skip(1);
            last = Some(rest.next() == Some(FS_TYPE.as_bytes()) && rest.next() == Some(MOUNT_SOURCE.as_bytes()));
        }
    }
    Ok(last == Some(true))
}

/// Decodes a path of the kernel's tables: space, tab, newline and backslash are written as three octal digits.
fn unescaped(word: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        let (byte, used) = match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => (byte, 3),
            None => (first, 0),
        };
        out.push(byte);
        rest = &after[used..];
    }
    PathBuf::from(std::ffi::OsString::from_vec(out))
}

/// Unmounts `at` lazily: open files stay open.
///
/// # Errors
/// `EINVAL` if nothing is mounted there; `EPERM`.
pub fn detach(at: &Path) -> io::Result<()> {
    Ok(unmount(at, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FUSE_INIT with this body, from the version 7.`minor` of the interface.
    fn init(words: &[u32]) -> Option<KernelFeatures> {
        let (length, opcode) = (40 + 4 * words.len() as u32, 26);
        let header = [length, opcode, 7, 0, 0, 0, 0, 0, 0, 0];
        let bytes: Vec<u8> = header.iter().chain(words).flat_map(|word| word.to_ne_bytes()).collect();
        match Request::parse(&bytes)?.op {
            Op::Init { offered } => Some(offered),
            _ => None,
        }
    }

    #[test]
    fn the_first_message_of_old_and_new_kernels_is_decoded() {
        // Linux 5.10 sends four words: version 7.32, read-ahead, flags.
        let old = init(&[7, 32, 0, u32::MAX]).expect("it is complete");
        assert!(old.minor == 32 && !old.passthrough());
        let mut new = [0; 16];
        (new[0], new[1], new[3], new[4]) = (7, 40, INIT_EXT as u32, (PASSTHROUGH >> 32) as u32);
        assert!(init(&new).is_some_and(KernelFeatures::passthrough));
        assert!(init(&[7, 40, 0]).is_none());
    }
}

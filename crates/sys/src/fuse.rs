//! Files that this process serves (FUSE): a mount, the requests that come from it, and files whose memory is another
//! file's (passthrough).
//!
//! ```text
//! program: open, ioctl, poll  -->  kernel  -->  Device::read, Request::parse   one request after the other
//!                             <--          <--  Device::answer                 in any order, by its number
//! program: mmap               <-->         the pages of the file that OPEN named (Device::pass)
//! ```
//! Only what a device file needs: folders, links and files of a fixed size, no data of its own. The layouts are those of
//! the kernel's `linux/fuse.h`, version 7.40, which Linux 6.9 has.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// How our mounts are called in `/proc/self/mountinfo`.
pub const SOURCE: &str = "unetmapd";
const KIND: &str = "fuse.unetmap";

/// Bytes that a buffer for [`Device::read`] needs: the kernel's least, and more than any request of ours.
pub const REQUEST_BYTES: usize = 8192 + 4096;

/// `FUSE_DEV_IOC_BACKING_OPEN`, `FUSE_DEV_IOC_BACKING_CLOSE` of linux/fuse.h.
const BACKING_OPEN: libc::c_ulong = 0x4010_E501;
const BACKING_CLOSE: libc::c_ulong = 0x4004_E502;

/// Of FUSE_INIT.
const INIT_EXT: u64 = 1 << 30;
const PASSTHROUGH: u64 = 1 << 37;
const MAJOR: u32 = 7;
const MINOR: u32 = 40;
/// Of FUSE_OPEN: no page cache; no request at each close; memory is the backing file's.
const OPEN_FLAGS: u32 = 1 | 1 << 5 | 1 << 7;
/// Of FUSE_POLL: somebody is about to sleep.
const SCHEDULE_NOTIFY: u32 = 1;
/// A message of ours that is no answer: whoever polls a file is to ask again.
const NOTIFY_POLL: i32 = 1;
/// Another: the kernel is to send what it keeps of a node's data, which is nothing.
const NOTIFY_RETRIEVE: i32 = 5;
/// Requests without an answer that may be under way; the closing of files is one.
const MOST_BACKGROUND: u16 = u16::MAX;

/// The folder's node, which the kernel knows from the start.
pub const FOLDER: u64 = 1;

/// Bytes of a file, as it says: 1 TiB.
pub const FILE_BYTES: u64 = 1 << 40;

/// Seconds for which the kernel need not ask for a folder again: 34 years.
const LONG: u64 = 1 << 30;

const S_IFDIR: u32 = 0o40000;
const S_IFREG: u32 = 0o100_000;
const S_IFLNK: u32 = 0o120_000;

/// What a node is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A folder, which stays: the kernel does not ask for it again, so that it can be mounted upon.
    Folder,
    /// A symbolic link. The kernel asks each time where to.
    Link,
    /// A file, which is that node for this time only.
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
    flags2: u32,
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

/// Who made a request, as the kernel says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct From {
    /// File system user id.
    pub uid: u32,
    /// File system group id.
    pub gid: u32,
    /// The thread, in our pid namespace; 0 when it is in one that we cannot see.
    pub tid: u32,
}

/// A request.
#[derive(Debug)]
pub struct Request<'a> {
    /// Names it in the answer.
    pub unique: u64,
    /// The file or folder that it is about.
    pub node: u64,
    /// Who asks.
    pub from: From,
    /// What is asked.
    pub op: Op<'a>,
}

/// What is asked.
#[derive(Debug)]
pub enum Op<'a> {
    /// What this server can do: answered by [`Device::agree`].
    Init {
        /// What the kernel can.
        offered: Offer,
    },
    /// Which node has that name in the folder.
    Lookup(&'a OsStr),
    /// Where the link leads.
    Readlink,
    /// Size, mode and the like; a change of them is asked for and answered alike.
    Attributes,
    /// Opens the node, or the folder.
    Open {
        /// Whether it is the folder.
        folder: bool,
    },
    /// The last duplicate of an open file is closed.
    Release {
        /// Which.
        fh: u64,
    },
    /// `ioctl`.
    Ioctl {
        /// Of which open file.
        fh: u64,
        /// The request's number.
        cmd: u32,
        /// What the argument points to, where the number says that it is read.
        data: &'a [u8],
        /// Bytes that may be written back there.
        room: u32,
    },
    /// Which of these events an open file has.
    Poll {
        /// Which.
        fh: u64,
        /// Names it in [`Device::notify`].
        kh: u64,
        /// POLLIN and so on.
        events: u32,
        /// Whether somebody is about to sleep until they come.
        sleeps: bool,
    },
    /// The one that made the request of that number was sent a signal, and waits all the same.
    Interrupt(u64),
    /// [`Device::mark`] put it there, with that number as its own; wants no answer.
    Mark,
    /// What wants no answer.
    Forget,
    /// What is granted by an empty answer: to list the folder, to close it.
    Nothing,
    /// Reading or writing a file, not its memory.
    Transfer,
    /// What we have not, and its number.
    Other(u32),
}

/// What the kernel offers.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// Version 7.minor.
    pub minor: u32,
    flags: u64,
}

impl Offer {
    /// Whether files can have another file's memory.
    pub fn passthrough(self) -> bool {
        self.flags & PASSTHROUGH != 0 && self.minor >= MINOR
    }
}

impl<'a> Request<'a> {
    /// Takes a message apart; `None` when it is shorter than it must be.
    pub fn parse(bytes: &'a [u8]) -> Option<Request<'a>> {
        let (head, body) = InHeader::read_from_prefix(bytes).ok()?;
        let number = |at: usize| Some(u64::from_ne_bytes(body.get(at..at + 8)?.try_into().ok()?));
        let op = match head.opcode {
            1 => Op::Lookup(OsStr::from_bytes(body.split(|&b| b == 0).next()?)),
            2 | 42 => Op::Forget,
            3 | 4 => Op::Attributes,
            5 => Op::Readlink,
            14 => Op::Open { folder: false },
            27 => Op::Open { folder: true },
            28 | 29 => Op::Nothing,
            15 | 16 => Op::Transfer,
            18 => Op::Release { fh: number(0)? },
            26 => {
                let (init, _) = InitIn::read_from_prefix(body).ok()?;
                let flags = u64::from(init.flags) | u64::from(init.flags2) << 32;
                // Without the flag the second word is not there.
                let flags = if flags & INIT_EXT == 0 { flags & u64::from(u32::MAX) } else { flags };
                let minor = if init.major == MAJOR { init.minor } else { 0 };
                Op::Init { offered: Offer { minor, flags } }
            }
            36 => Op::Interrupt(number(0)?),
            39 => {
                let (ioctl, data) = IoctlIn::read_from_prefix(body).ok()?;
                let data = data.get(..ioctl.in_size as usize)?;
                Op::Ioctl { fh: ioctl.fh, cmd: ioctl.cmd, data, room: ioctl.out_size }
            }
            41 => Op::Mark,
            40 => {
                let (poll, _) = PollIn::read_from_prefix(body).ok()?;
                let sleeps = poll.flags & SCHEDULE_NOTIFY != 0;
                Op::Poll { fh: poll.fh, kh: poll.kh, events: poll.events, sleeps }
            }
            other => Op::Other(other),
        };
        let from = From { uid: head.uid, gid: head.gid, tid: head.pid };
        Some(Request { unique: head.unique, node: head.node, from, op })
    }
}

/// The server's end of a mount. Requests may be read and answered by several threads.
#[derive(Debug)]
pub struct Device(OwnedFd);

impl Device {
    /// Mounts at the folder `at`, for all users. FUSE_INIT is the first request; until it is answered others wait.
    ///
    /// # Errors
    /// `EPERM` without `CAP_SYS_ADMIN`; `ENOENT`, `ENODEV` where the kernel has no FUSE; those of mount(2).
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
        mount(SOURCE, at, KIND, flags, options.as_c_str())?;
        Ok(Device(dev))
    }

    /// Waits for a request, and returns its bytes.
    ///
    /// # Errors
    /// `ENODEV` when the mount is gone and nobody has a file of it open any more; `EINTR`, `ENOENT` (the request was
    /// taken back): read again.
    pub fn read<'a>(&self, buf: &'a mut [u8]) -> io::Result<&'a [u8]> {
        let n = rustix::io::read(&self.0, &mut *buf)?;
        Ok(&buf[..n])
    }

    /// Answers FUSE_INIT; from then on files are opened by [`Device::opened`].
    ///
    /// # Errors
    /// As [`Device::answer`].
    pub fn agree(&self, unique: u64, offered: Offer) -> io::Result<()> {
        let flags = (INIT_EXT | PASSTHROUGH) & offered.flags;
        let out = InitOut {
            major: MAJOR,
            minor: MINOR.min(offered.minor),
            flags: flags as u32,
            flags2: (flags >> 32) as u32,
            max_background: MOST_BACKGROUND,
            congestion_threshold: MOST_BACKGROUND,
            max_write: 4096,
            time_gran: 1,
            // The backing file lies in no such file system itself.
            max_stack_depth: 1,
            ..Default::default()
        };
        self.answer(unique, out.as_bytes())
    }

    /// Answers that it went well, with `body`.
    ///
    /// # Errors
    /// `ENOENT` when nobody waits for it any more, which harms nothing; `ENODEV`.
    pub fn answer(&self, unique: u64, body: &[u8]) -> io::Result<()> {
        self.send(0, unique, body, &[])
    }

    /// Answers with an errno.
    ///
    /// # Errors
    /// As [`Device::answer`].
    pub fn refuse(&self, unique: u64, errno: i32) -> io::Result<()> {
        self.send(-errno, unique, &[], &[])
    }

    /// Answers a lookup: the name is that node.
    ///
    /// # Errors
    /// As [`Device::answer`].
    pub fn found(&self, unique: u64, node: u64, kind: Kind) -> io::Result<()> {
        let entry_valid = if kind == Kind::Folder { LONG } else { 0 };
        self.answer(unique, EntryOut { node, entry_valid, attr: attr(node, kind), ..Default::default() }.as_bytes())
    }

    /// Answers with a node's attributes.
    ///
    /// # Errors
    /// As [`Device::answer`].
    pub fn attributes(&self, unique: u64, node: u64, kind: Kind) -> io::Result<()> {
        self.answer(unique, AttrOut { attr: attr(node, kind), ..Default::default() }.as_bytes())
    }

    /// Answers an open: the file is `fh` from now on, its memory that of `backing`. All open files of a node must have
    /// the same; the folder has none.
    ///
    /// # Errors
    /// As [`Device::answer`].
    pub fn opened(&self, unique: u64, fh: u64, backing: Option<&Backing>) -> io::Result<()> {
        let flags = if backing.is_some() { OPEN_FLAGS } else { 0 };
        self.answer(unique, OpenOut { fh, flags, backing: backing.map_or(0, |b| b.0) }.as_bytes())
    }

    /// Answers an ioctl: its result (negative: an errno), and what goes back to the argument either way.
    ///
    /// # Errors
    /// As [`Device::answer`].
    pub fn controlled(&self, unique: u64, result: i32, data: &[u8]) -> io::Result<()> {
        let out = IoctlOut { result, flags: 0, in_iovs: 0, out_iovs: 0 };
        self.send(0, unique, out.as_bytes(), data)
    }

    /// Answers a poll with the events that there are.
    ///
    /// # Errors
    /// As [`Device::answer`].
    pub fn polled(&self, unique: u64, events: u32) -> io::Result<()> {
        self.answer(unique, [events, 0].as_bytes())
    }

    /// Has everybody who sleeps in a poll of file `kh` ask again.
    ///
    /// # Errors
    /// `ENODEV`.
    pub fn notify(&self, kh: u64) -> io::Result<()> {
        self.send(NOTIFY_POLL, 0, kh.as_bytes(), &[])
    }

    /// Puts a mark behind all requests that there are. `node` is an open file, or one whose closing was not read yet.
    ///
    /// # Errors
    /// `ENOENT`: it is neither, or the mount is gone; `ENODEV`.
    pub fn mark(&self, number: u64, node: u64) -> io::Result<()> {
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

    /// Makes `file` one whose memory files of this mount can have. It stays so until [`Device::forget`], and open files
    /// keep it.
    ///
    /// # Errors
    /// `EPERM` without `CAP_SYS_ADMIN` in the first user namespace; `EOPNOTSUPP`, `ELOOP` for files of other kinds.
    pub fn pass(&self, file: BorrowedFd<'_>) -> io::Result<Backing> {
        #[repr(C)]
        struct Map {
            fd: i32,
            flags: u32,
            padding: u64,
        }
        let map = Map { fd: file.as_raw_fd(), flags: 0, padding: 0 };
        // SAFETY: the request reads a structure of this layout, which outlives the call.
        let id = unsafe { libc::ioctl(self.0.as_raw_fd(), BACKING_OPEN, &map) };
        if id < 0 { Err(io::Error::last_os_error()) } else { Ok(Backing(id)) }
    }

    /// Takes back [`Device::pass`].
    pub fn forget(&self, backing: Backing) {
        // SAFETY: the request reads a number, which outlives the call.
        unsafe { libc::ioctl(self.0.as_raw_fd(), BACKING_CLOSE, &backing.0) };
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A file that was made known by [`Device::pass`].
#[derive(Debug)]
pub struct Backing(i32);

/// Files are as long as the files whose memory they may show: some languages map no more.
fn attr(node: u64, kind: Kind) -> Attr {
    let (mode, size) = match kind {
        Kind::Folder => (S_IFDIR | 0o755, 0),
        Kind::Link => (S_IFLNK | 0o777, 0),
        Kind::File => (S_IFREG | 0o666, FILE_BYTES),
    };
    Attr { ino: node, size, mode, nlink: 1, blksize: 4096, ..Default::default() }
}

/// Whether the topmost mount at `at` is one of ours, of a server that may be dead. Asks nobody but the kernel's table,
/// because a dead or stopped server's mount answers nothing.
///
/// # Errors
/// `/proc` is not there.
pub fn is_ours(at: &Path) -> io::Result<bool> {
    let table = fs::read("/proc/self/mountinfo")?;
    let mut last = None;
    for line in table.split(|&b| b == b'\n') {
        let mut words = line.split(|&b| b == b' ');
        if words.nth(4).map(unescaped).as_deref() == Some(at) {
            let mut rest = words.skip_while(|word| *word != b"-").skip(1);
            last = Some(rest.next() == Some(KIND.as_bytes()) && rest.next() == Some(SOURCE.as_bytes()));
        }
    }
    Ok(last == Some(true))
}

/// A path as the kernel's tables write it: space, tab, newline and backslash as three octal digits.
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

/// Takes the mount at `at` out of the tree; files of it that are open stay so.
///
/// # Errors
/// `EINVAL` when nothing is mounted there; `EPERM`.
pub fn detach(at: &Path) -> io::Result<()> {
    Ok(unmount(at, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?)
}

/// Whether this kernel has FUSE at all.
///
/// # Errors
/// Why `/dev/fuse` cannot be opened.
pub fn available() -> io::Result<()> {
    File::options().read(true).write(true).open("/dev/fuse").map(drop)
}

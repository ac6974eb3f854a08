// SPDX-License-Identifier: BSD-2-Clause
//! libxdp's dispatchers: XDP programs that call up to ten others, their *members*, so that several owners share an
//! interface. Protocol version 2, as libxdp 1.3 and newer have it.
//!
//! ```text
//! interface == dispatcher, attached by netlink         its settings: for each member a priority, and the results after
//!              prog0 <== link == member 0                            which the next member is called
//!              prog1 <== link == member 1              BPFFS/xdp/dispatch-IFINDEX-ID/progN-prog, progN-link: pins
//! ```
//! A dispatcher never changes: to add or remove a member, a new one is built, its members are linked to it as well, and
//! it takes the old one's place in one step. `BPFFS/xdp` is locked meanwhile, by `flock`. Pins and dispatcher outlive
//! the process that made them, unlike everything else in this crate: [`leave`] undoes [`super::Xdp::join`].

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use aya::EbpfLoader;
use aya::programs::links::FdLink;
use aya::programs::{Extension, Program, ProgramFd};
use rustix::fs::{FlockOperation, flock, statfs};
use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::Mode;
use crate::bpf::{self, HAS_FRAGS, MapShape, ProgramInfo, errno_of, object_mismatch};
use crate::link::{self, AttachedMode, AttachedXdp, XdpChange};
use crate::tuning::{PINS_LOCK_LIMIT, PINS_LOCK_POLL};

/// `bpf/dispatcher.c` and `bpf/dispatcher_frags.c`, compiled.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../../bpf/dispatcher.o");
static FRAGS_OBJECT: &[u8] = aya::include_bytes_aligned!("../../bpf/dispatcher_frags.o");

/// The name of a dispatcher's program.
pub const NAME: &str = "xdp_dispatcher";
/// The first two bytes of the settings.
const MAGIC: u8 = 236;
const VERSION: u8 = 2;
/// Most members.
const MEMBERS: usize = 10;
/// Results after which the next member is called: `XDP_PASS`, and that of a slot without a member.
const PASS_OR_NONE: u32 = 1 << 2 | 1 << 31;
/// The daemon's priority: libxdp's default. Members with a smaller one are called first, as `xdp-filter` (10).
const PRIORITY: u32 = 50;

/// `BPF_FS_MAGIC` of linux/magic.h.
const BPFFS: u64 = 0xcafe_4a11;
/// The file system of the pins, and the variable by which another one is used, for libxdp as well.
const ROOT: &str = "/sys/fs/bpf";
const ROOT_VARIABLE: &str = "LIBXDP_BPFFS";
/// libxdp's dispatcher in the folders `bpf` of the libraries.
const LIBXDP_OBJECT: &str = "bpf/xdp-dispatcher.o";
const LIBRARIES: [&str; 3] = ["/usr/lib", "/usr/lib64", "/usr/local/lib"];

/// `struct config` of dispatcher.c; `struct xdp_dispatcher_config` of libxdp.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Settings {
    magic: u8,
    version: u8,
    members: u8,
    frags: u8,
    masks: [u32; MEMBERS],
    priorities: [u32; MEMBERS],
    flags: [u32; MEMBERS],
}

/// How a member is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Call {
    mask: u32,
    priority: u32,
    flags: u32,
}

/// That of the daemon's program.
const OWN_CALL: Call = Call { mask: PASS_OR_NONE, priority: PRIORITY, flags: HAS_FRAGS };

impl Settings {
    fn new(calls: &[Call]) -> Settings {
        let frags = calls.iter().all(|call| call.flags & HAS_FRAGS != 0);
        let mut settings = Settings { magic: MAGIC, version: VERSION, frags: frags.into(), ..Settings::default() };
        settings.members = calls.len() as u8;
        for (i, call) in calls.iter().enumerate() {
            (settings.masks[i], settings.priorities[i], settings.flags[i]) = (call.mask, call.priority, call.flags);
        }
        settings
    }

    fn calls(&self) -> Vec<Call> {
        let call = |i| Call { mask: self.masks[i], priority: self.priorities[i], flags: self.flags[i] };
        (0..usize::from(self.members).min(MEMBERS)).map(call).collect()
    }
}

/// The kind of program that is attached to an interface.
#[derive(Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Attached {
    /// No XDP program.
    Nothing,
    /// A dispatcher that others can join.
    Dispatcher(Mode),
    /// A dispatcher of another version of the protocol.
    OtherVersion,
    /// Another program.
    Other,
}

/// Returns what is attached to interface `index` of the calling thread's network namespace.
///
/// # Errors
/// `EPERM`: needs `CAP_SYS_ADMIN`. Those of netlink sockets.
pub fn attached(index: u32) -> io::Result<Attached> {
    let Some(xdp) = link::by_index(index)?.and_then(|link| link.xdp) else { return Ok(Attached::Nothing) };
    let mode = match xdp.mode {
        AttachedMode::Native => Mode::Native,
        AttachedMode::Generic => Mode::Generic,
        AttachedMode::Hardware | AttachedMode::Several => return Ok(Attached::Other),
    };
    let program = bpf::program_by_id(xdp.prog_id)?;
    let info = bpf::program_info(&program)?;
    Ok(match settings(&info)? {
        Some(_) => Attached::Dispatcher(mode),
        None if info.name == NAME => Attached::OtherVersion,
        None => Attached::Other,
    })
}

/// Returns the names of a dispatcher's members; empty if the program is none, or its pins cannot be read.
pub fn members(program: u32) -> Vec<String> {
    let names = || {
        let folder = Root::open().ok()?.folder_of(program)?;
        let names = members_of(&folder).ok()?.into_iter().map(|(_, info)| info.name);
        Some(names.collect())
    };
    names().unwrap_or_default()
}

/// Whether programs of this machine use dispatchers: there is a folder for their pins, or libxdp's dispatcher is
/// installed. Without a BPF file system they cannot.
pub fn are_used() -> bool {
    let Some(root) = Root::path() else { return false };
    let installed = |library: &str| {
        let folders = fs::read_dir(library).into_iter().flatten().flatten().map(|entry| entry.path());
        folders.chain([library.into()]).any(|folder| folder.join(LIBXDP_OBJECT).exists())
    };
    root.join("xdp").is_dir() || LIBRARIES.into_iter().any(installed)
}

/// The settings of a dispatcher; `None`: the program is none of this version.
fn settings(info: &ProgramInfo) -> io::Result<Option<Settings>> {
    if info.name != NAME {
        return Ok(None);
    }
    let Some(map) = bpf::maps_of(info)?.take_alone(MapShape::array::<Settings>(1)) else { return Ok(None) };
    let mut settings = Settings::default();
    // SAFETY: K5: an array with elements of this size, all of whose values are valid.
    unsafe { bpf::array_read(&map, &mut settings) }?;
    Ok((settings.magic == MAGIC && settings.version == VERSION).then_some(settings))
}

/// The folder of pins, locked while this exists.
struct Root {
    path: PathBuf,
    _lock: File,
}

impl Root {
    /// The mounted BPF file system.
    fn path() -> Option<PathBuf> {
        let path = std::env::var_os(ROOT_VARIABLE).map_or_else(|| PathBuf::from(ROOT), PathBuf::from);
        statfs(&path).is_ok_and(|found| found.f_type as u64 == BPFFS).then_some(path)
    }

    fn open() -> io::Result<Root> {
        let no_bpffs = || io::Error::new(io::ErrorKind::NotFound, format!("{ROOT} is not a BPF file system"));
        let path = Root::path().ok_or_else(no_bpffs)?.join("xdp");
        match fs::DirBuilder::new().mode(0o700).create(&path) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
        let (lock, start) = (File::open(&path)?, Instant::now());
        let stat = rustix::fs::fstat(&lock)?;
        if stat.st_uid != rustix::process::geteuid().as_raw() || stat.st_mode & 0o022 != 0 {
            let (path, user) = (path.display(), stat.st_uid);
            return Err(io::Error::other(format!("{path} is of user {user}, or others may write there: remove it")));
        }
        loop {
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) if start.elapsed() < PINS_LOCK_LIMIT => thread::sleep(PINS_LOCK_POLL),
                Err(Errno::WOULDBLOCK) => {
                    return Err(io::Error::other(format!("{} is locked by another process", path.display())));
                }
                result => return result.map(|()| Root { path, _lock: lock }).map_err(Into::into),
            }
        }
    }

    fn folder(&self, index: u32, dispatcher: u32) -> PathBuf {
        self.path.join(format!("dispatch-{index}-{dispatcher}"))
    }

    /// All folders, with the id of the dispatcher.
    fn folders(&self) -> Vec<(PathBuf, u32)> {
        let id = |name: &OsStr| name.to_str()?.strip_prefix("dispatch-")?.split_once('-')?.1.parse().ok();
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        entries.filter_map(|entry| Some((entry.path(), id(&entry.file_name())?))).collect()
    }

    fn folder_of(&self, dispatcher: u32) -> Option<PathBuf> {
        self.folders().into_iter().find(|(_, id)| *id == dispatcher).map(|(path, _)| path)
    }

    /// The folder in which a program is pinned, and the dispatcher's id.
    fn folder_with(&self, member: u32) -> Option<(PathBuf, u32)> {
        let has = |folder: &Path| members_of(folder).is_ok_and(|all| all.iter().any(|(_, info)| info.id == member));
        self.folders().into_iter().find(|(path, _)| has(path))
    }
}

/// The pinned programs of a dispatcher, in order.
fn members_of(folder: &Path) -> io::Result<Vec<(PathBuf, ProgramInfo)>> {
    let pins = (0..MEMBERS).map(|i| folder.join(format!("prog{i}-prog"))).take_while(|pin| pin.exists());
    pins.map(|pin| bpf::object_at(&pin).and_then(|program| bpf::program_info(&program)).map(|info| (pin, info)))
        .collect()
}

/// A program that a dispatcher calls.
struct Member {
    call: Call,
    program: Extension,
    id: u32,
}

/// The dispatcher of an interface, as it is attached.
struct Current {
    program: OwnedFd,
    mode: Mode,
    folder: PathBuf,
    members: Vec<Member>,
}

impl Current {
    /// `None`: nothing is attached. `EBUSY`: another program is.
    fn read(root: &Root, index: u32, xdp: Option<AttachedXdp>) -> io::Result<Option<Current>> {
        let Some(AttachedXdp { prog_id: id, .. }) = xdp else { return Ok(None) };
        let Attached::Dispatcher(mode) = attached(index)? else {
            return Err(io::Error::from_raw_os_error(libc::EBUSY));
        };
        let program = bpf::program_by_id(id)?;
        let settings = settings(&bpf::program_info(&program)?)?.ok_or(io::ErrorKind::InvalidData)?;
        let folder = root.folder_of(id).unwrap_or_else(|| root.folder(index, id));
        let (calls, pinned) = (settings.calls(), members_of(&folder)?);
        if calls.len() != pinned.len() {
            return Err(io::Error::other(format!("{} lacks programs of the dispatcher", folder.display())));
        }
        let members = calls.into_iter().zip(pinned).map(|(call, (pin, info))| {
            let program = Extension::from_pin(pin).map_err(|e| errno_of(&e))?;
            Ok(Member { call, program, id: info.id })
        });
        let members = members.collect::<io::Result<_>>()?;
        Ok(Some(Current { program, mode, folder, members }))
    }
}

/// A dispatcher that is not attached yet.
struct New {
    program: ProgramFd,
    id: u32,
    frags: bool,
}

impl New {
    fn load(calls: &[Call]) -> io::Result<New> {
        if calls.len() > MEMBERS {
            return Err(io::Error::other(format!("the dispatcher calls {MEMBERS} programs already")));
        }
        let settings = Settings::new(calls);
        let frags = settings.frags != 0;
        let mut loader = EbpfLoader::new();
        loader.btf(None).override_global("conf", settings.as_bytes(), true);
        let mut object = loader.load(if frags { FRAGS_OBJECT } else { OBJECT }).map_err(|e| errno_of(&e))?;
        let Some(Program::Xdp(program)) = object.program_mut(NAME) else { return Err(object_mismatch()) };
        program.load().map_err(|e| errno_of(&e))?;
        let program = program.fd().map_err(|e| errno_of(&e))?.try_clone()?;
        let id = bpf::program_info(&program)?.id;
        Ok(New { program, id, frags })
    }

    /// Links and pins the members, and attaches the dispatcher in place of `old`, whose pins are removed.
    fn attach(
        &self,
        (root, index, mode): (&Root, u32, Mode),
        old: Option<(&OwnedFd, &Path)>,
        members: &mut [&mut Extension],
    ) -> io::Result<()> {
        let folder = root.folder(index, self.id);
        fs::create_dir(&folder)?;
        let pinned = members.iter_mut().enumerate().try_for_each(|(i, member)| self.pin(&folder, i, member));
        let change = XdpChange { program: Some(self.program.as_fd()), expected: old.map(|(fd, _)| fd.as_fd()) };
        let attached = pinned.and_then(|()| link::change_xdp(index, mode == Mode::Native, change));
        match (&attached, old) {
            (Ok(()), Some((_, old))) => remove(old),
            (Ok(()), None) => {}
            (Err(_), _) => remove(&folder),
        }
        attached
    }

    fn pin(&self, folder: &Path, i: usize, member: &mut Extension) -> io::Result<()> {
        let linked = member.attach_to_program(&self.program, &format!("prog{i}")).map_err(|e| errno_of(&e))?;
        let link: FdLink = member.take_link(linked).map_err(|e| errno_of(&e))?.into();
        link.pin(folder.join(format!("prog{i}-link"))).map_err(|e| errno_of(&e))?;
        bpf::pin(member.fd().map_err(|e| errno_of(&e))?, &folder.join(format!("prog{i}-prog")))
    }
}

/// Removes a folder of pins. Should that fail, nobody reads it again: its dispatcher is not attached any more.
fn remove(folder: &Path) {
    let _ = fs::remove_dir_all(folder);
}

/// A dispatcher with one more member, before the interface is changed.
pub(super) struct Joining {
    root: Root,
    index: u32,
    mode: Mode,
    old: Option<Current>,
    new: New,
    /// The position of the new member.
    at: usize,
}

impl Joining {
    /// Loads a dispatcher for interface `index` that calls one more member, in the mode of the one that is attached, if
    /// there is one. `frags`: the member accepts frames of several buffers.
    pub(super) fn new(index: u32, mode: Mode, frags: bool) -> io::Result<Joining> {
        let root = Root::open()?;
        let xdp = link::by_index(index)?.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))?.xdp;
        let old = Current::read(&root, index, xdp)?;
        let mut calls: Vec<Call> = old.iter().flat_map(|old| &old.members).map(|member| member.call).collect();
        let at = calls.iter().position(|call| call.priority > PRIORITY).unwrap_or(calls.len());
        calls.insert(at, Call { flags: if frags { HAS_FRAGS } else { 0 }, ..OWN_CALL });
        let new = New::load(&calls)?;
        let mode = old.as_ref().map_or(mode, |old| old.mode);
        Ok(Joining { root, index, mode, old, new, at })
    }

    /// The dispatcher, and the name of the stub that the member replaces.
    pub(super) fn target(&self) -> (&ProgramFd, String) {
        (&self.new.program, format!("prog{}", self.at))
    }

    /// The mode in which the dispatcher runs, and whether frames may have several buffers.
    pub(super) fn mode(&self) -> (Mode, bool) {
        (self.mode, self.new.frags)
    }

    /// Attaches the dispatcher.
    pub(super) fn complete(mut self, member: &mut Extension) -> io::Result<()> {
        let place = (&self.root, self.index, self.mode);
        let Some(Current { program, folder, members, .. }) = &mut self.old else {
            return self.new.attach(place, None, &mut [member]);
        };
        let mut all: Vec<_> = members.iter_mut().map(|member| &mut member.program).collect();
        all.insert(self.at, member);
        self.new.attach(place, Some((program, folder)), &mut all)
    }
}

/// Removes the program of this id from its dispatcher, or the dispatcher if it has no other. Returns whether nothing
/// is left to do; false: the dispatcher is attached to no interface of the calling thread's network namespace.
///
/// # Errors
/// `EPERM`: needs `CAP_SYS_ADMIN` and `CAP_NET_ADMIN`. `EBUSY`, `EAGAIN`: the interface or the pins are being changed.
pub fn leave(member: u32) -> io::Result<bool> {
    let Some(_) = Root::path() else { return Ok(true) };
    let root = Root::open()?;
    let Some((_, dispatcher)) = root.folder_with(member) else { return Ok(true) };
    let link = link::all()?.into_iter().find(|link| link.xdp.is_some_and(|xdp| xdp.prog_id == dispatcher));
    let Some(link) = link else { return Ok(false) };
    let Some(Current { program, mode, folder, mut members }) = Current::read(&root, link.index, link.xdp)? else {
        return Ok(false);
    };
    members.retain(|other| other.id != member);
    if members.is_empty() {
        let change = XdpChange { program: None, expected: Some(program.as_fd()) };
        link::change_xdp(link.index, mode == Mode::Native, change)?;
        remove(&folder);
        return Ok(true);
    }
    let calls: Vec<_> = members.iter().map(|member| member.call).collect();
    let mut all: Vec<_> = members.iter_mut().map(|member| &mut member.program).collect();
    New::load(&calls)?.attach((&root, link.index, mode), Some((&program, &folder)), &mut all)?;
    Ok(true)
}

/// Removes the pins of the dispatcher that has the program of this id, which is attached to no interface any more.
///
/// # Errors
/// As [`leave`].
pub fn forget(member: u32) -> io::Result<()> {
    if Root::path().is_some() {
        let root = Root::open()?;
        if let Some((folder, _)) = root.folder_with(member) {
            remove(&folder);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_the_layout_of_the_protocol() {
        let calls = [Call { mask: 4, priority: 10, flags: 0 }, OWN_CALL];
        let settings = Settings::new(&calls);
        let bytes = settings.as_bytes();
        assert_eq!((bytes.len(), &bytes[..4]), (124, &[236, 2, 2, 0][..]));
        assert_eq!((&bytes[4..8], &bytes[48..52]), (&4u32.to_ne_bytes()[..], &50u32.to_ne_bytes()[..]));
        assert_eq!(settings.calls(), calls);
        assert_eq!(Settings::new(&[OWN_CALL]).frags, 1);
    }
}

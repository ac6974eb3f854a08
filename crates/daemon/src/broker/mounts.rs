// SPDX-License-Identifier: BSD-2-Clause
//! The node's mounts, its link, and the processes that access programs' memory.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use unetmap_core::errno::{EEXIST, EINVAL, EIO, ENODEV, EPERM};
use unetmap_sys::event::{PollFd, PollFlags, wait_readable};
use unetmap_sys::fuse::{self, Device, Op};
use unetmap_sys::kernel;
use unetmap_sys::memory_helper::MemoryHelper;

use super::objects::Broker;
use super::setup::{Handle, Setup, process_name};
use crate::refusal::{Refusal, refuse};
use crate::threads::lock;
use crate::tuning::broker::MAX_HELPERS;
use crate::tuning::node::MAX_MOUNTS;
use crate::user_arena::UserArena;

/// The file's name in the mounted directory.
pub(crate) const NAME: &str = "netmap";
/// The option of `unetmapd` that starts a memory helper, and the descriptor of its connection.
const OPTION: &str = "--access-memory";
const CONNECTION: &str = "3";

/// The directory of the first mount, for the daemon that listens at `socket`.
pub(crate) fn folder(socket: &Path) -> PathBuf {
    let mut folder = socket.as_os_str().to_owned();
    folder.push(".node");
    folder.into()
}

/// Mounts number `number` of the node: the first in a directory that is created, the others in directories of it.
/// Records its device in `devices`.
pub(super) fn mount(setup: &Setup, number: usize, devices: &mut Vec<(u32, u32)>) -> Result<Device, Refusal> {
    let mut folder = folder(&setup.socket);
    let device = match number {
        0 => create_first_mount(&folder)?,
        number if number < MAX_MOUNTS => {
            folder.push(number.to_string());
            create_mount(&folder)?
        }
        _ => return refuse(EINVAL, format!("the node has no mount {number}")),
    };
    devices.extend(fuse::device_of(&folder).ok());
    // Those of the oldest mounts are forgotten, if the node is switched on so often.
    let excess = devices.len().saturating_sub(MAX_DEVICES);
    devices.drain(..excess);
    Ok(device)
}

/// Most devices that are remembered.
const MAX_DEVICES: usize = 64 * MAX_MOUNTS;

/// Whether a thread has a file open that is on one of these devices. No file system is asked.
pub(super) fn has_node_open(tid: u32, devices: &[(u32, u32)]) -> bool {
    let files = fs::read_dir(format!("/proc/{tid}/fd")).into_iter().flatten().flatten();
    files.into_iter().any(|file| fuse::device_of(&file.path()).is_ok_and(|device| devices.contains(&device)))
}

/// Creates the directory, and mounts there.
fn create_first_mount(folder: &Path) -> Result<Device, Refusal> {
    fuse::check_available().map_err(|e| match kernel::NODE.is_newer_than_kernel() {
        true => Refusal::new(ENODEV, kernel::NODE.refusal()),
        false => failed("/dev/fuse (modprobe fuse)", e),
    })?;
    // A mount there was left by a daemon that was killed: no other program mounts beside this socket.
    while fuse::is_unetmap_mount(folder).map_err(|e| failed("/proc/self/mountinfo", e))? {
        fuse::detach(folder).map_err(|e| failed("unmounting what an earlier daemon left", e))?;
    }
    match fs::create_dir(folder) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        other => other.map_err(|e| failed(&format!("the folder {}", folder.display()), e))?,
    }
    create_mount(folder).inspect_err(|_| {
        let _ = fs::remove_dir(folder);
    })
}

fn failed(what: &str, e: io::Error) -> Refusal {
    let why = match e.raw_os_error() {
        Some(EPERM) => format!("{what}: {e} (the daemon needs CAP_SYS_ADMIN, outside of containers: run it as root)"),
        _ => format!("{what}: {e}"),
    };
    Refusal::new(e.raw_os_error().unwrap_or(EIO), why)
}

/// Mounts at a directory that exists.
fn create_mount(folder: &Path) -> Result<Device, Refusal> {
    let dev = Device::mount(folder).map_err(|e| failed(&format!("mounting at {}", folder.display()), e))?;
    match negotiate(&dev) {
        Ok(true) => Ok(dev),
        other => {
            let _ = fuse::detach(folder);
            match other {
                Err(e) => Err(failed("the kernel's FUSE", e)),
                Ok(_) => refuse(ENODEV, kernel::NODE.refusal()),
            }
        }
    }
}

/// Answers the kernel's first request; returns `false` if the kernel cannot do what the node needs.
fn negotiate(dev: &Device) -> io::Result<bool> {
    let mut buf = vec![0; fuse::REQUEST_BYTES];
    let bytes = dev.read(&mut buf)?;
    let Some(fuse::Request { unique, op: Op::Init { offered }, .. }) = fuse::Request::parse(bytes) else {
        return Err(io::Error::other("the kernel's first message is not INIT"));
    };
    if !offered.passthrough() {
        return Ok(false);
    }
    dev.reply_init(unique, offered)?;
    // The kernel may refuse this though it permits mounting.
    let backing = dev.open_backing(UserArena::new()?.as_fd())?;
    dev.close_backing(backing);
    Ok(true)
}

/// Unmounts the node, if it is mounted.
pub(super) fn unmount(setup: &Setup) {
    let folder = folder(&setup.socket);
    if fuse::is_unetmap_mount(&folder).is_ok_and(|ours| ours)
        && let Err(e) = fuse::detach(&folder)
    {
        tracing::warn!("unmounting {}: {e}", folder.display());
    }
    let _ = fs::remove_dir(&folder);
}

/// Makes the link to the node at `path`, unless it is there.
pub(super) fn link(setup: &Setup, path: &Path) -> Result<(), Refusal> {
    if check(setup, path)? {
        return Ok(());
    }
    let target = folder(&setup.socket).join(NAME);
    std::os::unix::fs::symlink(target, path)
        .or_else(|e| refuse(e.raw_os_error().unwrap_or(EIO), format!("{}: {e}", path.display())))
}

/// Whether the link is there already; an error if it cannot be made.
pub(super) fn check(setup: &Setup, path: &Path) -> Result<bool, Refusal> {
    check_folder(setup, path)?;
    check_link(path, &folder(&setup.socket).join(NAME))
}

/// Refuses a link in a folder where it could be taken for a program or a configuration: allowed are `/dev`, the folder
/// of the daemon's socket, and all below `/tmp`.
fn check_folder(setup: &Setup, path: &Path) -> Result<(), Refusal> {
    let parent = |path: &Path| path.parent().and_then(|folder| fs::canonicalize(folder).ok());
    // Without such a folder the link cannot be made either.
    let Some(folder) = parent(path) else { return Ok(()) };
    if folder == Path::new("/dev") || folder.starts_with("/tmp") || parent(&setup.socket).as_ref() == Some(&folder) {
        return Ok(());
    }
    refuse(
        EPERM,
        format!("{}: the node can be in /dev, in the folder of the daemon's socket, or below /tmp", path.display()),
    )
}

/// Returns whether `path` is a link to `target` already; an error if it is anything else.
fn check_link(path: &Path, target: &Path) -> Result<bool, Refusal> {
    match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => refuse(e.raw_os_error().unwrap_or(EIO), format!("{}: {e}", path.display())),
        Ok(_) if fs::read_link(path).is_ok_and(|to| to == target) => Ok(true),
        Ok(_) => refuse(
            EEXIST,
            format!("{} exists and is not the daemon's (remove it, or name another path)", path.display()),
        ),
    }
}

/// Removes the link, if it is the daemon's.
pub(super) fn unlink(setup: &Setup, path: &Path) {
    if fs::read_link(path).is_ok_and(|to| to == folder(&setup.socket).join(NAME)) {
        // Path: a link in the folder that `check_folder` has allowed.
        let _ = fs::remove_file(path);
    }
}

/// Starts a process that accesses the memory of programs; returns the connection to it, and its pidfd.
pub(super) fn start_helper(broker: &Broker) -> io::Result<(Handle, (OwnedFd, OwnedFd))> {
    let mut helpers = lock(&broker.helpers);
    helpers.retain(|_, helper| runs(helper.pidfd()));
    if helpers.len() >= MAX_HELPERS {
        return Err(io::Error::other("too many processes access the memory of programs"));
    }
    let log = File::from(io::stderr().as_fd().try_clone_to_owned()?);
    let name = process_name("memory helper", &broker.setup.socket);
    let args = [OPTION.into(), CONNECTION.into()];
    let (helper, approvals) = MemoryHelper::start(Path::new("/proc/self/exe"), &name, &args, log)?;
    let (parts, handle) = (helper.into_parts()?, broker.handle());
    helpers.insert(handle, approvals);
    Ok((handle, parts))
}

/// Whether a process runs.
pub(super) fn runs(pidfd: &OwnedFd) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)];
    wait_readable(&mut fds, Some(Duration::ZERO)).is_ok_and(|ready| ready == 0)
}

// SPDX-License-Identifier: BSD-2-Clause
//! The ioctls `NIOCCTRL`, `NIOCREGIF` and `NIOCGINFO`. The program's structures are copied in once and validated, and
//! copied out even if the request is refused.
//!
//! ```text
//! header, option headers, body, options       copied in; EINVAL, EMSGSIZE, EFAULT
//! options                                     each is known, none appears twice
//! the daemon, or this process itself          `kloop` has the requests that use the program's memory and thread
//! body, options with their status             copied out
//! ```

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd};

use unetmap_core::abi::*;
use unetmap_core::control::ioctl::{GatheredRequest, UserMemory, version_mismatch};
use unetmap_core::control::legacy::{self, LegacyIoctl};
use unetmap_core::control::request::NetmapRequest;
use unetmap_core::errno::{EBUSY, EINVAL, EIO};
use unetmap_core::port::file::{BoundPort, FileReply};

use crate::extmem::{self, Extmem};
use crate::files::{FileRef, replace_fd, socket_inode};
use crate::last_error::{report, report_message};
use crate::{kloop, user};

/// The memory of this process.
struct ProcessMemory;

impl UserMemory for ProcessMemory {
    fn read(&self, from: u64, into: &mut [u8]) -> Result<(), i32> {
        user::read(from, into)
    }

    fn write(&self, to: u64, bytes: &[u8]) -> Result<(), i32> {
        user::write(to, bytes)
    }
}

/// `NIOCCTRL`.
pub(crate) fn ctrl(open: &FileRef, fd: c_int, at: u64) -> Result<c_int, i32> {
    let header: NmreqHeader = user::get(at)?;
    let gathered = GatheredRequest::gather(header, &ProcessMemory)
        .inspect_err(|_| version_mismatch(&header).into_iter().for_each(|why| report_message(&why)))?;
    let mut request = gathered.request.clone();
    let result = request.check_options().and_then(|()| execute(open, fd, &mut request));
    gathered.write_back(&request, &ProcessMemory)?;
    let reply = gathered.header(&request);
    if reply != header {
        // VALE_LIST returns a name in the header.
        user::put(at, &reply)?;
    }
    result.map(|()| 0)
}

fn execute(open: &FileRef, fd: c_int, request: &mut NetmapRequest) -> Result<(), i32> {
    match request.header.nr_reqtype {
        NETMAP_REQ_SYNC_KLOOP_START => return kloop::start(open, fd, request),
        NETMAP_REQ_SYNC_KLOOP_STOP => return kloop::stop(open, fd),
        NETMAP_REQ_CSB_ENABLE => return kloop::enable(open, fd, request),
        _ => {}
    }
    if request.header.nr_reqtype == NETMAP_REQ_REGISTER {
        register(open, fd, request)
    } else {
        forward_to_daemon(open, fd, request)
    }
}

/// Forwards a request that only the daemon handles.
fn forward_to_daemon(open: &FileRef, fd: c_int, request: &mut NetmapRequest) -> Result<(), i32> {
    let (errno, reply) = send_request(open, fd, request, |_| Ok(()))?;
    if let Some(reply) = reply {
        *request = reply;
    }
    if errno == 0 { Ok(()) } else { Err(errno) }
}

/// REGISTER: the region may be placed in the program's memory (EXTMEM), and synced by control blocks there (CSB).
fn register(open: &FileRef, fd: c_int, request: &mut NetmapRequest) -> Result<(), i32> {
    if open.port(fd).map_err(|e| report(&e))?.is_some() {
        return Err(EBUSY);
    }
    let extmem = Extmem::prepare(request)?;
    let sent = extmem.as_ref().map_or_else(|| request.clone(), |extmem| extmem.daemon_request(request));
    let csb_option = request.option(NETMAP_REQ_OPT_CSB);
    let (mut csb_errno, mut pools) = (0, None);
    let (errno, reply) = send_request(open, fd, &sent, |attached| {
        if let Some(extmem) = &extmem {
            extmem.map_over(attached)?;
            pools = Some(extmem::pools_info_of(attached));
        }
        let result = csb_option.map_or(Ok(()), |option| kloop::set_csb(&attached.port, &option));
        result.inspect_err(|errno| csb_errno = *errno)
    })?;
    if let Some(mut reply) = reply {
        if let Some(extmem) = &extmem {
            extmem.complete_reply(request, &mut reply, pools);
        }
        *request = reply;
    }
    if csb_errno != 0 {
        request.set_status(NETMAP_REQ_OPT_CSB, csb_errno);
    }
    if errno == 0 { Ok(()) } else { Err(errno) }
}

/// `NIOCREGIF`, `NIOCGINFO`.
pub(crate) fn legacy_ioctl(open: &FileRef, fd: c_int, at: u64, call: LegacyIoctl) -> Result<c_int, i32> {
    let mut old: Nmreq = user::get(at)?;
    let request = legacy::to_request(call, &old)
        .inspect_err(|_| legacy::version_mismatch(&old).into_iter().for_each(|why| report_message(&why)))?;
    match send_request(open, fd, &request, |_| Ok(()))? {
        (0, Some(reply)) => {
            legacy::write_reply(&mut old, &reply)?;
            user::put(at, &old)?;
            Ok(0)
        }
        (0, None) => Err(EIO),
        (errno, _) => Err(errno),
    }
}

/// `NIOCCONFIG` is for switch modules; no switch has any.
pub(crate) fn config(at: u64) -> Result<c_int, i32> {
    let _: NmIfreq = user::get(at)?;
    Err(EINVAL)
}

/// Sends a request to the daemon; returns its errno and its reply. A port that REGISTER bound is kept if `then`
/// succeeds; otherwise it is unbound, and the errno is that of `then`.
fn send_request(
    open: &FileRef,
    fd: c_int,
    request: &NetmapRequest,
    then: impl FnOnce(&BoundPort) -> Result<(), i32>,
) -> Result<(i32, Option<NetmapRequest>), i32> {
    let mut exchange = open.begin_request(fd)?;
    let answered = match exchange.is_bound() {
        true => exchange.file().request(exchange.fd(), request),
        false => exchange.file().request_unbound(exchange.fd(), request),
    };
    let FileReply { mut errno, reason, request: reply, moved, bound } = answered.map_err(|e| report(&e))?;
    if let Some((connection, file)) = moved {
        if open.refers_to(fd) {
            replace_fd(fd, connection.as_fd());
        }
        if let Some(inode) = socket_inode(connection.as_raw_fd()) {
            open.set_inode(inode);
        }
        exchange.move_to(file, connection);
    }
    if errno != 0 {
        report_message(&format!("{}: {reason}", request.name().unwrap_or_default()));
    }
    if let Some(attached) = bound {
        match then(&attached) {
            Ok(()) => exchange.bind(attached),
            Err(other) => {
                errno = other;
                drop(attached);
                let _ = exchange.file().unbind(exchange.fd());
            }
        }
    }
    Ok((errno, reply))
}

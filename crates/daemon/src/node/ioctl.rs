// SPDX-License-Identifier: BSD-2-Clause
//! The ioctls that carry requests: `NIOCCTRL`, whose structures point into the program's memory, and the legacy ones.

use std::time::Instant;

use unetmap_abi::*;
use unetmap_core::control::binding::Binding;
use unetmap_core::control::ioctl::{GatheredRequest, UserMemory, version_mismatch};
use unetmap_core::control::legacy::{self, LegacyIoctl};
use unetmap_core::control::request::NetmapRequest;
use unetmap_core::control::request::kind_of;
use unetmap_core::errno::{EBUSY, EINVAL, EIO, EOPNOTSUPP, EPERM};
use unetmap_sys::thread::RemoteThread;
use zerocopy::{FromBytes, IntoBytes};

use super::file::{File, SlowOp, SlowRequest};
use super::jobs::{Job, PortRequest};
use super::memory::{ETIMEDOUT, ProgramMemory};
use super::mount::RequestId;
use super::serve::EINTR;
use super::shared::Shared;
use crate::caller::Caller;
use crate::tuning::node::{QUEUE_FREE_LIMIT, QUEUE_FREE_PAUSE};

/// Why a request is not answered with its result.
enum Stop {
    /// An errno.
    Errno(i32),
    /// It has changed nothing yet, and is to begin again later.
    Deferred,
}

impl From<i32> for Stop {
    fn from(errno: i32) -> Stop {
        Stop::Errno(errno)
    }
}

/// Answers a request; returns it if it is to begin again later.
pub(super) fn answer(shared: &Shared, request: SlowRequest) -> Option<SlowRequest> {
    let SlowRequest { id, from, op } = request;
    let SlowOp::Control(file, cmd, mut data) = op else { return None };
    let thread = RemoteThread::of(from.tid).map_err(|e| {
        tracing::debug!(tid = from.tid, "the requesting thread cannot be inspected: {e}");
        Stop::Errno(EPERM)
    });
    let done = thread.and_then(|thread| {
        let caller = Caller::of_thread(&thread, &from).map_err(|e| {
            tracing::debug!(tid = from.tid, "the requesting thread cannot be identified: {e}");
            e.raw_os_error().unwrap_or(EPERM)
        })?;
        if caller.peer.uid != file.uid {
            tracing::debug!(uid = caller.peer.uid, opened_by = file.uid, "the file was opened by another user");
            return Err(Stop::Errno(EPERM));
        }
        // Nothing is read of a user whom the policy gives nothing.
        shared.admit(&caller)?;
        let ioctl = Ioctl { shared, file: &file, caller, id: &id };
        match u64::from(cmd) {
            NIOCCTRL => ioctl.ctrl(&mut data, &ProgramMemory::new(&shared.helpers, &thread, file.uid)),
            NIOCREGIF => ioctl.legacy(&mut data, LegacyIoctl::Register),
            _ => ioctl.legacy(&mut data, LegacyIoctl::Info),
        }
    });
    let result = match done {
        Ok(()) => 0,
        Err(Stop::Errno(errno)) => -errno,
        Err(Stop::Deferred) => return Some(SlowRequest { id, from, op: SlowOp::Control(file, cmd, data) }),
    };
    let RequestId { mount, unique } = &id;
    shared.finish(&id, || drop(mount.dev.reply_ioctl(*unique, result, &data)));
    None
}

/// An ioctl that is being answered: its file, and its caller.
struct Ioctl<'a> {
    shared: &'a Shared,
    file: &'a File,
    caller: Caller,
    id: &'a RequestId,
}

impl Ioctl<'_> {
    /// `NIOCCTRL`: body and options are read from the program's memory, and written back there.
    fn ctrl(&self, data: &mut Vec<u8>, memory: &impl UserMemory) -> Result<(), Stop> {
        let header = NmreqHeader::read_from_bytes(data).map_err(|_| EINVAL)?;
        let gathered = match GatheredRequest::gather(header, memory) {
            Err(ETIMEDOUT) if self.shared.helpers.is_cut_off() => return Err(Stop::Deferred),
            gathered => gathered.inspect_err(|_| self.log_refusal(version_mismatch(&header)))?,
        };
        let mut request = gathered.request.clone();
        let (errno, answer) = match request.check_options().err().or_else(|| unsupported_option(&request)) {
            Some(errno) => (errno, Some(request)),
            None => self.answer_request(request)?,
        };
        if let Some(answer) = answer {
            gathered.write_back(&answer, memory)?;
            *data = gathered.header(&answer).as_bytes().to_vec();
        }
        if errno == 0 { Ok(()) } else { Err(Stop::Errno(errno)) }
    }

    /// `NIOCREGIF`, `NIOCGINFO`.
    fn legacy(&self, data: &mut Vec<u8>, call: LegacyIoctl) -> Result<(), Stop> {
        let mut old = Nmreq::read_from_bytes(data).map_err(|_| EINVAL)?;
        let request =
            legacy::to_request(call, &old).inspect_err(|_| self.log_refusal(legacy::version_mismatch(&old)))?;
        match self.answer_request(request)? {
            (0, Some(answer)) => {
                legacy::write_reply(&mut old, &answer)?;
                *data = old.as_bytes().to_vec();
                Ok(())
            }
            (0, None) => Err(Stop::Errno(EIO)),
            (errno, _) => Err(Stop::Errno(errno)),
        }
    }

    /// Logs why a malformed request was refused.
    fn log_refusal(&self, why: Option<String>) {
        if let Some(why) = why {
            tracing::debug!(pid = self.caller.peer.pid, "request through the node: {why}");
        }
    }

    /// Lets the main thread answer the request; returns the error number and the completed request. A queue that the
    /// kernel has not freed yet is requested again for a while.
    fn answer_request(&self, request: NetmapRequest) -> Result<(i32, Option<NetmapRequest>), Stop> {
        let start = Instant::now();
        loop {
            if !self.shared.is_pending(self.id) {
                return Err(Stop::Errno(EINTR));
            }
            let job = |reply| {
                Job::Request(Box::new(PortRequest {
                    request: request.clone(),
                    caller: self.caller.clone(),
                    session: self.file.session(),
                    arena: self.file.arena.clone(),
                    reply,
                }))
            };
            let (outcome, own) = self.shared.jobs.call(job).ok_or(EIO)?;
            if !outcome.passes {
                let name = request.name().unwrap_or_default();
                let (pid, errno) = (self.caller.peer.pid, outcome.errno);
                tracing::debug!(pid, name, errno, why = outcome.answer.reason, "request through the node");
            }
            match (outcome.errno, outcome.session) {
                _ if outcome.passes && start.elapsed() > QUEUE_FREE_LIMIT => {
                    return Ok((EBUSY, Some(outcome.answer.request)));
                }
                _ if outcome.passes && self.shared.is_draining() => return Err(Stop::Deferred),
                _ if outcome.passes => std::thread::sleep(QUEUE_FREE_PAUSE),
                (0, Some(session)) => {
                    let register = outcome.answer.request.body_as::<NmreqRegister>().ok_or(EIO);
                    let bound = Binding::decode(&outcome.answer.binding).ok_or(EIO);
                    let port = register.and_then(|register| {
                        let name = request.name().unwrap_or_default();
                        self.shared.open_port(name, (register, &bound?, outcome.fds), own)
                    });
                    let port = port.inspect_err(|_| self.shared.jobs.push(Job::Close(session)))?;
                    self.file.bind(session, port, &self.shared.jobs);
                    return Ok((0, Some(outcome.answer.request)));
                }
                (errno, _) => return Ok((errno, Some(outcome.answer.request))),
            }
        }
    }
}

/// Returns an error for options that need the library in the program's own memory, which the node does not have. Their
/// status is set already.
fn unsupported_option(request: &NetmapRequest) -> Option<i32> {
    let needs_memory = |option: &Vec<u8>| matches!(kind_of(option), Some(NETMAP_REQ_OPT_EXTMEM | NETMAP_REQ_OPT_CSB));
    request.options.iter().any(needs_memory).then_some(EOPNOTSUPP)
}

//! Requests that point into the program's memory, and those of old.

use std::time::{Duration, Instant};

use unetmap_abi::*;
use unetmap_core::control::binding::Binding;
use unetmap_core::control::ioctl::{GatheredRequest, UserMemory};
use unetmap_core::control::legacy::{self, LegacyIoctl};
use unetmap_core::control::request::NetmapRequest;
use unetmap_core::control::request::kind_of;
use unetmap_core::errno::{EAGAIN, EBUSY, EINVAL, EIO, ENOMEM, EOPNOTSUPP, EPERM};
use unetmap_sys::thread::RemoteThread;
use zerocopy::{FromBytes, IntoBytes};

use super::file::File;
use super::serve::{Long, Shared, What};
use super::way::Ticket;
use super::{Asked, Job};
use crate::caller::Caller;
use crate::ports::mediator::DAEMON_LEASE;

/// How long the kernel may take to let go of a queue whose program has just died, and how often to ask.
const LET_GO_LIMIT: Duration = Duration::from_secs(2);
const LET_GO_PAUSE: Duration = Duration::from_millis(20);
const EINTR: i32 = 4;
const EFAULT: i32 = 14;

/// The memory of the thread that waits for the answer.
struct Theirs<'a>(&'a RemoteThread);

impl UserMemory for Theirs<'_> {
    fn read(&self, from: u64, into: &mut [u8]) -> Result<(), i32> {
        self.0.read(from, into).map_err(|e| e.raw_os_error().unwrap_or(EFAULT))
    }

    fn write(&self, to: u64, bytes: &[u8]) -> Result<(), i32> {
        self.0.write(to, bytes).map_err(|e| e.raw_os_error().unwrap_or(EFAULT))
    }
}

/// Answers a request.
pub(super) fn answer(shared: &Shared, long: Long) {
    let What::Control(file, cmd, mut data) = long.what else { return };
    let thread = RemoteThread::of(long.from.tid).map_err(|e| {
        tracing::debug!(tid = long.from.tid, "who asks cannot be seen: {e}");
        EPERM
    });
    let errno = thread.and_then(|thread| {
        let caller = Caller::of_thread(&thread, &long.from).map_err(|e| {
            tracing::debug!(tid = long.from.tid, "it cannot be told who asks: {e}");
            e.raw_os_error().unwrap_or(EPERM)
        })?;
        if caller.peer.uid != file.uid {
            tracing::debug!(uid = caller.peer.uid, opened_by = file.uid, "another user's file");
            return Err(EPERM);
        }
        let asker = Asker { shared, file: &file, caller, ticket: &long.ticket };
        match u64::from(cmd) {
            NIOCCTRL => asker.ctrl(&mut data, &Theirs(&thread)),
            NIOCREGIF => asker.older(&mut data, LegacyIoctl::Register),
            _ => asker.older(&mut data, LegacyIoctl::Info),
        }
    });
    let result = errno.err().unwrap_or(0);
    let Ticket { way, unique } = &long.ticket;
    shared.settle(&long.ticket, || drop(way.dev.reply_ioctl(*unique, -result, &data)));
}

/// Who asks, about which file.
struct Asker<'a> {
    shared: &'a Shared,
    file: &'a File,
    caller: Caller,
    ticket: &'a Ticket,
}

impl Asker<'_> {
    /// `NIOCCTRL`: body and options are read from the program's memory, and written back there.
    fn ctrl(&self, data: &mut Vec<u8>, memory: &impl UserMemory) -> Result<(), i32> {
        let header = NmreqHeader::read_from_bytes(data).map_err(|_| EINVAL)?;
        let gathered = GatheredRequest::gather(header, memory)?;
        let mut request = gathered.request.clone();
        let (errno, answer) = match request.check_options().err().or_else(|| refused_here(&request)) {
            Some(errno) => (errno, Some(request)),
            None => self.ask(request)?,
        };
        if let Some(answer) = answer {
            gathered.write_back(&answer, memory)?;
            *data = gathered.header(&answer).as_bytes().to_vec();
        }
        if errno == 0 { Ok(()) } else { Err(errno) }
    }

    /// `NIOCREGIF`, `NIOCGINFO`.
    fn older(&self, data: &mut Vec<u8>, call: LegacyIoctl) -> Result<(), i32> {
        let mut old = Nmreq::read_from_bytes(data).map_err(|_| EINVAL)?;
        let request = legacy::to_request(call, &old)?;
        match self.ask(request)? {
            (0, Some(answer)) => {
                legacy::write_reply(&mut old, &answer)?;
                *data = old.as_bytes().to_vec();
                Ok(())
            }
            (0, None) => Err(EIO),
            (errno, _) => Err(errno),
        }
    }

    /// Asks the daemon; the errno and what they wrote into the request. What the kernel has not let go of yet is asked for
    /// again for a while.
    fn ask(&self, request: NetmapRequest) -> Result<(i32, Option<NetmapRequest>), i32> {
        let start = Instant::now();
        loop {
            if !self.shared.is_pending(self.ticket) {
                return Err(EINTR);
            }
            let asked = Asked {
                request: request.clone(),
                caller: self.caller.clone(),
                session: self.file.session(),
                arena: self.file.arena.clone(),
            };
            let (outcome, board) = self.shared.desk.ask(|reply| Job::Ask(Box::new(asked), reply)).ok_or(EIO)?;
            if outcome.errno != EAGAIN {
                let name = request.name().unwrap_or_default();
                let (pid, errno) = (self.caller.peer.pid, outcome.errno);
                tracing::debug!(pid, name, errno, why = outcome.answer.reason, "asked through the node");
            }
            match (outcome.errno, outcome.session) {
                (EAGAIN, _) if start.elapsed() > LET_GO_LIMIT => return Ok((EBUSY, Some(outcome.answer.request))),
                (EAGAIN, _) => std::thread::sleep(LET_GO_PAUSE),
                (0, Some(session)) => {
                    let register = outcome.answer.request.body_as::<NmreqRegister>().ok_or(EIO);
                    let bound = Binding::decode(&outcome.answer.binding).ok_or(EIO);
                    let port = register.and_then(|register| {
                        let connection = self.shared.lifeline.try_clone().map_err(|_| ENOMEM)?;
                        let name = request.name().unwrap_or_default();
                        unetmap_core::adopt(name, register, &bound?, outcome.fds, connection, DAEMON_LEASE, board)
                            .map_err(|e| {
                                tracing::warn!("a port of the node: {e}");
                                ENOMEM
                            })
                    });
                    let port = port.inspect_err(|_| self.shared.desk.put(Job::Close(session)))?;
                    self.file.bind(session, port, &self.shared.desk);
                    return Ok((0, Some(outcome.answer.request)));
                }
                (errno, _) => return Ok((errno, Some(outcome.answer.request))),
            }
        }
    }
}

/// Options that need the program's own memory, which the node has not. That they are not served their status says already.
fn refused_here(request: &NetmapRequest) -> Option<i32> {
    let needs_memory = |option: &Vec<u8>| matches!(kind_of(option), Some(NETMAP_REQ_OPT_EXTMEM | NETMAP_REQ_OPT_CSB));
    request.options.iter().any(needs_memory).then_some(EOPNOTSUPP)
}

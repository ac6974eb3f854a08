//! Requests: `NIOCCTRL`, `NIOCREGIF`, `NIOCGINFO`. What they point to is copied in once and judged, and copied out
//! also when they are refused.
//!
//! ```text
//! header, heads of options, body, options     copied in; EINVAL, EMSGSIZE, EFAULT
//! options                                     each exists, none twice
//! the daemon, or this process itself          see `kloop` for what needs the program's memory and thread
//! body, options with their status             copied out
//! ```

use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd};

use unetmap::abi::*;
use unetmap::door::{Letter, Memory};
use unetmap::errno::{EBUSY, EINVAL, EIO};
use unetmap::file::{Attached, Told};
use unetmap::legacy::{self, Call};
use unetmap::request::Request;

use crate::extmem::{self, Extmem};
use crate::files::{Ref, replace, socket_inode};
use crate::said::{say, told};
use crate::{kloop, user};

/// The memory of this process.
struct Own;

impl Memory for Own {
    fn read(&self, from: u64, into: &mut [u8]) -> Result<(), i32> {
        user::read(from, into)
    }

    fn write(&self, to: u64, bytes: &[u8]) -> Result<(), i32> {
        user::write(to, bytes)
    }
}

/// `NIOCCTRL`.
pub(crate) fn ctrl(open: &Ref, fd: c_int, at: u64) -> Result<c_int, i32> {
    let header: NmreqHeader = user::get(at)?;
    let letter = Letter::gather(header, &Own)?;
    let mut request = letter.request.clone();
    let result = request.check_options().and_then(|()| serve(open, fd, &mut request));
    letter.put_back(&request, &Own)?;
    let answered = letter.header(&request);
    if answered != header {
        // VALE_LIST finds a name.
        user::put(at, &answered)?;
    }
    result.map(|()| 0)
}

fn serve(open: &Ref, fd: c_int, request: &mut Request) -> Result<(), i32> {
    match request.header.nr_reqtype {
        NETMAP_REQ_SYNC_KLOOP_START => return kloop::start(open, fd, request),
        NETMAP_REQ_SYNC_KLOOP_STOP => return kloop::stop(open, fd),
        NETMAP_REQ_CSB_ENABLE => return kloop::enable(open, fd, request),
        _ => {}
    }
    if request.header.nr_reqtype == NETMAP_REQ_REGISTER {
        register(open, fd, request)
    } else {
        plain(open, fd, request)
    }
}

/// A request that is the daemon's alone.
fn plain(open: &Ref, fd: c_int, request: &mut Request) -> Result<(), i32> {
    let (errno, answer) = ask(open, fd, request, |_| Ok(()))?;
    if let Some(answer) = answer {
        *request = answer;
    }
    if errno == 0 { Ok(()) } else { Err(errno) }
}

/// REGISTER: what it binds may lie in the program's memory, and be synced by positions there.
fn register(open: &Ref, fd: c_int, request: &mut Request) -> Result<(), i32> {
    if open.port(fd).map_err(|e| told(&e))?.is_some() {
        return Err(EBUSY);
    }
    let extmem = Extmem::prepare(request)?;
    let asked = extmem.as_ref().map_or_else(|| request.clone(), |extmem| extmem.asked(request));
    let blocks = request.option(NETMAP_REQ_OPT_CSB);
    let (mut csb, mut pools) = (0, None);
    let (errno, answer) = ask(open, fd, &asked, |attached| {
        if let Some(extmem) = &extmem {
            extmem.place(attached)?;
            pools = Some(extmem::pools(attached));
        }
        let given = blocks.map_or(Ok(()), |option| kloop::give(&attached.port, &option));
        given.inspect_err(|errno| csb = *errno)
    })?;
    if let Some(mut answer) = answer {
        if let Some(extmem) = &extmem {
            extmem.answered(request, &mut answer, pools);
        }
        *request = answer;
    }
    if csb != 0 {
        request.set_status(NETMAP_REQ_OPT_CSB, csb);
    }
    if errno == 0 { Ok(()) } else { Err(errno) }
}

/// `NIOCREGIF`, `NIOCGINFO`.
pub(crate) fn older(open: &Ref, fd: c_int, at: u64, call: Call) -> Result<c_int, i32> {
    let mut old: Nmreq = user::get(at)?;
    let request = legacy::modern(call, &old)?;
    match ask(open, fd, &request, |_| Ok(()))? {
        (0, Some(answer)) => {
            legacy::answered(&mut old, &answer)?;
            user::put(at, &old)?;
            Ok(0)
        }
        (0, None) => Err(EIO),
        (errno, _) => Err(errno),
    }
}

/// `NIOCCONFIG` is for the modules of a switch, and there is none that has any.
pub(crate) fn config(at: u64) -> Result<c_int, i32> {
    let _: NmIfreq = user::get(at)?;
    Err(EINVAL)
}

/// Asks the daemon; its errno and what it wrote into the request. What REGISTER bound is kept if `then` succeeds; else it is
/// given back, and the errno is that of `then`.
fn ask(
    open: &Ref,
    fd: c_int,
    request: &Request,
    then: impl FnOnce(&Attached) -> Result<(), i32>,
) -> Result<(i32, Option<Request>), i32> {
    let mut talk = open.talk(fd)?;
    let Told { mut errno, why, request: answer, moved, attached } =
        talk.file().request(talk.fd(), request).map_err(|e| told(&e))?;
    if let Some((connection, file)) = moved {
        if open.is_behind(fd) {
            replace(fd, connection.as_fd());
        }
        if let Some(inode) = socket_inode(connection.as_raw_fd()) {
            open.set_inode(inode);
        }
        talk.moved_to(file, connection);
    }
    if errno != 0 {
        say(&format!("{}: {why}", request.name().unwrap_or_default()));
    }
    if let Some(attached) = attached {
        match then(&attached) {
            Ok(()) => talk.bind(attached),
            Err(other) => {
                errno = other;
                drop(attached);
                let _ = talk.file().unbind(talk.fd());
            }
        }
    }
    Ok((errno, answer))
}

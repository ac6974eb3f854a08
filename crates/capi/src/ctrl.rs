//! Requests: `NIOCCTRL`, `NIOCREGIF`, `NIOCGINFO`. What they point to is copied in once and judged, and copied out
//! also when they are refused.
//!
//! ```text
//! header, sizes of all options, body, options     copied in; EINVAL, EMSGSIZE, EFAULT
//! options                                         each exists, none twice
//! the daemon, or this process itself
//! body, options with their status                 copied out
//! ```

use std::ffi::c_int;

use unetmap::abi::*;
use unetmap::errno::{EINVAL, EIO, EMSGSIZE};
use unetmap::file::Told;
use unetmap::legacy::{self, Call};
use unetmap::request::{Request, body_bytes, option_bytes};
use zerocopy::{FromBytes, IntoBytes};

use crate::calls::{say, told};
use crate::files::{Ref, borrowed, replace, socket_inode};
use crate::user;

/// A request, and where it came from.
struct Copied {
    request: Request,
    body_at: u64,
    /// Of each option: where it was, and its head as it was.
    options_at: Vec<(u64, NmreqOption)>,
}

impl Copied {
    fn copy_in(at: u64) -> Result<Copied, i32> {
        let mut header: NmreqHeader = user::get(at)?;
        if !(NETMAP_MIN_API..=NETMAP_MAX_API).contains(&header.nr_version) || header.nr_reserved != 0 {
            return Err(EINVAL);
        }
        let bytes = body_bytes(header.nr_reqtype).ok_or(EINVAL)?;
        if (bytes == 0) != (header.nr_body == 0) {
            return Err(EINVAL);
        }
        let mut options_at = Vec::new();
        let (mut next, mut total) = (header.nr_options, bytes);
        while next != 0 {
            let head: NmreqOption = user::get(next)?;
            total = total.saturating_add(option_bytes(&head));
            if total > NETMAP_REQ_MAXSIZE {
                return Err(EMSGSIZE);
            }
            options_at.push((next, head));
            next = head.nro_next;
        }
        let mut body = vec![0; bytes];
        user::read(header.nr_body, &mut body)?;
        let mut options = Vec::new();
        for (at, head) in &options_at {
            let mut option = vec![0; option_bytes(head)];
            user::read(*at, &mut option)?;
            // Another thread may have changed it since its size was judged.
            option[..size_of::<NmreqOption>()].copy_from_slice(head.as_bytes());
            options.push(option);
        }
        let body_at = header.nr_body;
        (header.nr_body, header.nr_options) = (0, 0);
        Ok(Copied { request: Request { header, body, options }, body_at, options_at })
    }

    /// Body and options go back to where they were; the list itself stays as it is.
    fn copy_out(self, at: u64) -> Result<(), i32> {
        let Request { header, body, options } = self.request;
        if header.nr_reqtype == NETMAP_REQ_VALE_LIST {
            user::write(at + std::mem::offset_of!(NmreqHeader, nr_name) as u64, &header.nr_name)?;
        }
        user::write(self.body_at, &body)?;
        for ((at, was), mut option) in self.options_at.into_iter().zip(options) {
            if let Ok((head, _)) = NmreqOption::mut_from_prefix(&mut option) {
                head.nro_next = was.nro_next;
            }
            user::write(at, &option)?;
        }
        Ok(())
    }
}

/// `NIOCCTRL`.
pub(crate) fn ctrl(open: &Ref, fd: c_int, at: u64) -> Result<c_int, i32> {
    let mut copied = Copied::copy_in(at)?;
    let result = copied.request.check_options().and_then(|()| serve(open, fd, &mut copied.request));
    copied.copy_out(at)?;
    result.map(|()| 0)
}

fn serve(open: &Ref, fd: c_int, request: &mut Request) -> Result<(), i32> {
    let (errno, answer) = ask(open, fd, request)?;
    if let Some(answer) = answer {
        *request = answer;
    }
    if errno == 0 { Ok(()) } else { Err(errno) }
}

/// `NIOCREGIF`, `NIOCGINFO`.
pub(crate) fn older(open: &Ref, fd: c_int, at: u64, call: Call) -> Result<c_int, i32> {
    let mut old: Nmreq = user::get(at)?;
    let request = legacy::modern(call, &old)?;
    match ask(open, fd, &request)? {
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

/// Asks the daemon; its errno and what it wrote into the request.
fn ask(open: &Ref, fd: c_int, request: &Request) -> Result<(i32, Option<Request>), i32> {
    let mut talk = open.talk();
    let Told { errno, why, request: answer, moved, attached } =
        talk.file().request(borrowed(fd), request).map_err(|e| told(&e))?;
    if let Some((connection, file)) = moved {
        replace(fd, connection);
        if let Some(inode) = socket_inode(fd) {
            open.set_inode(inode);
        }
        talk.moved_to(file);
    }
    if let Some(attached) = attached {
        talk.bind(attached);
    }
    if errno != 0 {
        say(&format!("{}: {why}", request.name().unwrap_or_default()));
    }
    Ok((errno, answer))
}

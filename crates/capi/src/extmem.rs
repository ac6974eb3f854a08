//! The option EXTMEM: a region in memory of the program's.
//!
//! The region is a memory file like any other, mapped in the place of the program's memory; what was in the packet
//! buffers is copied into it first. Memory that is a living region already is that region, for other ports too.

use std::ffi::c_long;
use std::os::fd::AsRawFd;
use std::{fs, io};

use unetmap::abi::*;
use unetmap::errno::{EFAULT, EINVAL, EIO};
use unetmap::file::Attached;
use unetmap::request::Request;
use unetmap::{extmem, program};

use crate::said::say;

/// Memory begins and ends with a page.
const PAGE: u64 = 4096;

/// What a REGISTER with the option is to do.
pub(crate) struct Extmem {
    option: NmreqOptExtmem,
    /// It is a region already, of this number.
    known: Option<u16>,
}

impl Extmem {
    /// Judges the memory that the option names. If it is a region already, the request asks for that from now on, and the
    /// option is taken out. `None`: there is no such option.
    pub(crate) fn prepare(request: &mut Request) -> Result<Option<Extmem>, i32> {
        let kind = NETMAP_REQ_OPT_EXTMEM;
        if request.header.nr_reqtype != NETMAP_REQ_REGISTER {
            return Ok(None);
        }
        let Some(option) = request.option::<NmreqOptExtmem>(kind) else { return Ok(None) };
        let judged = judge(option.nro_usrptr, option.nro_info.nr_memsize);
        let known = judged.inspect_err(|errno| request.set_status(kind, *errno))?;
        Ok(Some(Extmem { option, known }))
    }

    /// The request for a region that is there: by its number, without the option.
    pub(crate) fn asked(&self, request: &Request) -> Request {
        let mut asked = request.clone();
        if let Some(mem_id) = self.known {
            asked.options.retain(|option| unetmap::request::kind_of(option) != Some(NETMAP_REQ_OPT_EXTMEM));
            if let Some(register) = asked.body_as::<NmreqRegister>() {
                let register = NmreqRegister { nr_mem_id: mem_id, ..register };
                asked.body = zerocopy::IntoBytes::as_bytes(&register).to_vec();
            }
        }
        asked
    }

    /// Puts the region where the program's memory is.
    pub(crate) fn place(&self, attached: &Attached) -> Result<(), i32> {
        if self.known.is_some() {
            return Ok(());
        }
        let at = self.option.nro_usrptr;
        let read =
            |from, piece: &mut [u8]| program::read(at.checked_add(from).ok_or(io::ErrorKind::InvalidInput)?, piece);
        extmem::fill(&attached.port, read).map_err(|_| EFAULT)?;
        let bytes = usize::try_from(attached.port.register().nr_memsize).map_err(|_| EINVAL)?;
        let prot = c_long::from(libc::PROT_READ | libc::PROT_WRITE);
        let flags = c_long::from(libc::MAP_SHARED | libc::MAP_FIXED);
        let fd = c_long::from(attached.region.as_raw_fd());
        // SAFETY: the program gave us this memory for its region, at least so many bytes of it; the file has as many.
        let mapped = unsafe { libc::syscall(libc::SYS_mmap, at, bytes, prot, flags, fd, 0 as c_long) };
        if mapped == -1 { Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(EIO)) } else { Ok(()) }
    }

    /// Puts the option back into what the program gets.
    pub(crate) fn answered(&self, asked: &Request, answer: &mut Request, attached: Option<NmreqPoolsInfo>) {
        if self.known.is_none() {
            return;
        }
        let mut option = self.option;
        if let Some(info) = attached {
            (option.nro_info, option.nro_opt.nro_status) = (info, 0);
        }
        let place = asked.options.iter().position(|o| unetmap::request::kind_of(o) == Some(NETMAP_REQ_OPT_EXTMEM));
        let place = place.unwrap_or(0).min(answer.options.len());
        answer.options.insert(place, zerocopy::IntoBytes::as_bytes(&option).to_vec());
    }
}

/// What a region's pools are.
pub(crate) fn pools(attached: &Attached) -> NmreqPoolsInfo {
    let register = attached.port.register();
    extmem::pools_info(attached.port.region().geometry(), register.nr_mem_id, register.nr_memsize)
}

/// The number of the region that the memory is; `None`: it is memory as any other.
fn judge(at: u64, bytes: u64) -> Result<Option<u16>, i32> {
    if bytes == 0 || !at.is_multiple_of(PAGE) {
        say(&format!("EXTMEM: memory begins with a page and has at least one byte, not {bytes} at {at:#x}"));
        return Err(EINVAL);
    }
    let end = at.checked_add(bytes).ok_or(EFAULT)?;
    let maps = fs::read_to_string("/proc/self/maps").map_err(|_| EIO)?;
    let areas: Vec<Area<'_>> = maps.lines().filter_map(Area::read).collect();
    let mut to = at;
    for area in areas.iter().filter(|area| area.end > at && area.start < end) {
        if area.start > to || !area.writable {
            break;
        }
        to = area.end;
    }
    if to < end {
        say(&format!("EXTMEM: not all of {bytes} bytes at {at:#x} is memory that can be written"));
        return Err(EFAULT);
    }
    Ok(areas.iter().find(|area| area.start == at && area.offset == 0).and_then(Area::region))
}

/// A line of /proc/self/maps.
struct Area<'a> {
    start: u64,
    end: u64,
    writable: bool,
    offset: u64,
    inode: u64,
    name: &'a str,
}

impl<'a> Area<'a> {
    fn read(line: &'a str) -> Option<Area<'a>> {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let rights = words.next()?;
        let offset = words.next()?;
        let (_device, inode) = (words.next()?, words.next()?);
        Some(Area {
            start: u64::from_str_radix(start, 16).ok()?,
            end: u64::from_str_radix(end, 16).ok()?,
            writable: rights.starts_with("rw"),
            offset: u64::from_str_radix(offset, 16).ok()?,
            inode: inode.parse().ok()?,
            name: words.next().unwrap_or_default(),
        })
    }

    /// The number of the region that it shows, if this process has a port in that.
    fn region(&self) -> Option<u16> {
        let mem_id = self.name.strip_prefix("/memfd:unetmap-")?.parse().ok()?;
        unetmap::file::has_region(self.inode).then_some(mem_id)
    }
}

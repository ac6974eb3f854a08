// SPDX-License-Identifier: BSD-2-Clause
//! The option EXTMEM: a region in memory that the program provides.
//!
//! The region is an ordinary memory file, mapped over the program's memory; the contents of the packet buffers are
//! copied into it first. If the memory already is a region of this process, further ports use that region.

use std::ffi::c_long;
use std::os::fd::AsRawFd;
use std::{fs, io};

use unetmap_core::abi::*;
use unetmap_core::control::request::{self, NetmapRequest};
use unetmap_core::errno::{EFAULT, EINVAL, EIO};
use unetmap_core::port::extmem;
use unetmap_core::port::file::BoundPort;
use unetmap_core::user_memory;

use crate::last_error::report_message;

/// Bytes of a page.
const PAGE: u64 = 4096;

/// A REGISTER request with the option EXTMEM.
pub(crate) struct Extmem {
    option: NmreqOptExtmem,
    /// The id of the region that the memory already is.
    existing: Option<u16>,
}

impl Extmem {
    /// Validates the memory that the option describes. Returns `None` without the option.
    pub(crate) fn prepare(request: &mut NetmapRequest) -> Result<Option<Extmem>, i32> {
        let kind = NETMAP_REQ_OPT_EXTMEM;
        if request.header.nr_reqtype != NETMAP_REQ_REGISTER {
            return Ok(None);
        }
        let Some(option) = request.option::<NmreqOptExtmem>(kind) else { return Ok(None) };
        let validated = validate(option.nro_usrptr, option.nro_info.nr_memsize);
        let existing = validated.inspect_err(|errno| request.set_status(kind, *errno))?;
        Ok(Some(Extmem { option, existing }))
    }

    /// Returns the request for the daemon: for an existing region with its id and without the option.
    pub(crate) fn daemon_request(&self, request: &NetmapRequest) -> NetmapRequest {
        let mut sent = request.clone();
        if let Some(mem_id) = self.existing {
            sent.options
                .retain(|option| unetmap_core::control::request::kind_of(option) != Some(NETMAP_REQ_OPT_EXTMEM));
            if let Some(register) = sent.body_as::<NmreqRegister>() {
                let register = NmreqRegister { nr_mem_id: mem_id, ..register };
                sent.body = zerocopy::IntoBytes::as_bytes(&register).to_vec();
            }
        }
        sent
    }

    /// Maps the region over the program's memory.
    pub(crate) fn map_over(&self, attached: &BoundPort) -> Result<(), i32> {
        if self.existing.is_some() {
            return Ok(());
        }
        let at = self.option.nro_usrptr;
        let read =
            |from, piece: &mut [u8]| user_memory::read(at.checked_add(from).ok_or(io::ErrorKind::InvalidInput)?, piece);
        extmem::fill(&attached.port, read).map_err(|_| EFAULT)?;
        let bytes = usize::try_from(attached.port.register().nr_memsize).map_err(|_| EINVAL)?;
        let prot = c_long::from(libc::PROT_READ | libc::PROT_WRITE);
        let flags = c_long::from(libc::MAP_SHARED | libc::MAP_FIXED);
        let fd = c_long::from(attached.region.as_raw_fd());
        // SAFETY: C1: the program has provided at least `bytes` bytes for the region; the file has `bytes`.
        let mapped = unsafe { libc::syscall(libc::SYS_mmap, at, bytes, prot, flags, fd, 0 as c_long) };
        if mapped == -1 { Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(EIO)) } else { Ok(()) }
    }

    /// Restores the option in the reply for the program.
    pub(crate) fn complete_reply(
        &self,
        request: &NetmapRequest,
        reply: &mut NetmapRequest,
        pools: Option<NmreqPoolsInfo>,
    ) {
        if self.existing.is_none() {
            return;
        }
        let mut option = self.option;
        if let Some(info) = pools {
            (option.nro_info, option.nro_opt.nro_status) = (request::completed_info(option.nro_info, &info), 0);
        }
        let position = request
            .options
            .iter()
            .position(|o| unetmap_core::control::request::kind_of(o) == Some(NETMAP_REQ_OPT_EXTMEM));
        let position = position.unwrap_or(0).min(reply.options.len());
        reply.options.insert(position, zerocopy::IntoBytes::as_bytes(&option).to_vec());
    }
}

/// Returns the sizes of the region's pools.
pub(crate) fn pools_info_of(attached: &BoundPort) -> NmreqPoolsInfo {
    let register = attached.port.register();
    request::pools_info(attached.port.region().geometry(), register.nr_mem_id, register.nr_memsize)
}

/// Returns the id of the region that the memory already is; `None` for other memory.
fn validate(at: u64, bytes: u64) -> Result<Option<u16>, i32> {
    if bytes == 0 || !at.is_multiple_of(PAGE) {
        report_message(&format!(
            "EXTMEM: the memory must start at a page boundary and not be empty; it has {bytes} bytes at {at:#x}"
        ));
        return Err(EINVAL);
    }
    let end = at.checked_add(bytes).ok_or(EFAULT)?;
    let maps = fs::read_to_string("/proc/self/maps").map_err(|_| EIO)?;
    let lines: Vec<MapsLine<'_>> = maps.lines().filter_map(MapsLine::read).collect();
    let mut to = at;
    for line in lines.iter().filter(|line| line.end > at && line.start < end) {
        if line.start > to || !line.writable {
            break;
        }
        to = line.end;
    }
    if to < end {
        report_message(&format!("EXTMEM: the {bytes} bytes at {at:#x} are not all mapped readable and writable"));
        return Err(EFAULT);
    }
    Ok(lines.iter().find(|line| line.start == at && line.offset == 0).and_then(MapsLine::region))
}

/// A line of /proc/self/maps.
struct MapsLine<'a> {
    start: u64,
    end: u64,
    writable: bool,
    offset: u64,
    inode: u64,
    name: &'a str,
}

impl<'a> MapsLine<'a> {
    fn read(line: &'a str) -> Option<MapsLine<'a>> {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let rights = words.next()?;
        let offset = words.next()?;
        let (_device, inode) = (words.next()?, words.next()?);
        Some(MapsLine {
            start: u64::from_str_radix(start, 16).ok()?,
            end: u64::from_str_radix(end, 16).ok()?,
            writable: rights.starts_with("rw"),
            offset: u64::from_str_radix(offset, 16).ok()?,
            inode: inode.parse().ok()?,
            name: words.next().unwrap_or_default(),
        })
    }

    /// Returns the id of the region that it maps, if this process has a port in that region.
    fn region(&self) -> Option<u16> {
        let is_memory_file = self.name.starts_with("/memfd:");
        is_memory_file.then(|| unetmap_core::port::file::region_in(self.inode)).flatten()
    }
}

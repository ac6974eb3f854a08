// SPDX-License-Identifier: BSD-2-Clause
//! The option EXTMEM: a region of a port's own, with pools of the program's choice.
//!
//! A C program names memory, over which its library maps the region. In Rust the kernel chooses the address of a
//! region, and a program accesses it through [`Frame`](crate::Frame)s alone, as a reference into it could not be sound;
//! so a program names not an address but the initial contents of the buffers: `@extmem:file=`.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

use unetmap_abi::{ExtMem, NETMAP_REQ_OPT_EXTMEM, NmreqOptExtmem, NmreqOption, NmreqPoolsInfo};
use unetmap_mem::BufIdx;

use crate::error::{Error, errno};
use crate::port::Port;
use crate::tuning::FILL_CHUNK;

/// The pools of a region: number and size of their objects. 0 means the daemon's default.
///
/// ```
/// let mut pools = unetmap::Pools::default();
/// pools.bytes = 16 << 20;
/// pools.bufs = (1024, 2048);
/// let options = unetmap::Port::options().pools(pools);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pools {
    /// Bytes of the whole region, at most; it has as many buffers as fit.
    pub bytes: u64,
    /// Number and bytes of `netmap_if`s: one for each open of a port.
    pub ifs: (u32, u32),
    /// Number and bytes of rings: 256 bytes and 16 for each slot.
    pub rings: (u32, u32),
    /// Number and bytes of buffers, 64 to 65,536 bytes.
    pub bufs: (u32, u32),
}

impl Pools {
    /// Returns the pools in the name of a port, in as many bytes as its file has.
    pub(crate) fn from_name(extmem: &ExtMem, bytes: u64) -> Pools {
        let (ifs, rings) = ((extmem.if_num, extmem.if_size), (extmem.ring_num, extmem.ring_size));
        Pools { bytes, ifs, rings, bufs: (extmem.buf_num, extmem.buf_size) }
    }

    /// Returns the option for a request.
    pub(crate) fn option(&self) -> NmreqOptExtmem {
        NmreqOptExtmem {
            nro_opt: NmreqOption { nro_reqtype: NETMAP_REQ_OPT_EXTMEM, ..Default::default() },
            nro_info: NmreqPoolsInfo {
                nr_memsize: self.bytes,
                nr_if_pool_objtotal: self.ifs.0,
                nr_if_pool_objsize: self.ifs.1,
                nr_ring_pool_objtotal: self.rings.0,
                nr_ring_pool_objsize: self.rings.1,
                nr_buf_pool_objtotal: self.bufs.0,
                nr_buf_pool_objsize: self.bufs.1,
                ..Default::default()
            },
            ..Default::default()
        }
    }
}

/// Fills the buffers of a port that has just been opened and is alone in its region: `read` reads the contents at an
/// offset in the region. Writes netmap's list of extra buffers, which is in some of them, again.
///
/// # Errors
/// The errors of `read`; some buffers have been filled then.
pub fn fill(port: &Port, mut read: impl FnMut(u64, &mut [u8]) -> io::Result<()>) -> io::Result<()> {
    let extra: Vec<BufIdx> = (0..port.extra_bufs()).map_while(|_| port.take_extra_buf()).collect();
    let bufs = port.region().geometry().bufs;
    let size = bufs.size as usize;
    let mut chunk = vec![0; FILL_CHUNK.max(size) / size * size];
    let mut result = Ok(());
    for first in (0..bufs.count).step_by(chunk.len() / size) {
        let n = (chunk.len() / size).min((bufs.count - first) as usize);
        let chunk = &mut chunk[..n * size];
        result = read(bufs.offset + u64::from(first) * size as u64, chunk);
        if result.is_err() {
            break;
        }
        // Chunks of zeros are skipped: memory that is never written is not allocated.
        if chunk.iter().any(|byte| *byte != 0) {
            for (i, bytes) in chunk.chunks(size).enumerate() {
                port.region().frame(BufIdx(first + i as u32)).write(0, bytes);
            }
        }
    }
    extra.into_iter().rev().for_each(|idx| port.give_extra_buf(idx));
    result
}

/// Opens the file of `@extmem` in a name. Returns it and its size in bytes.
pub(crate) fn open_file(spec: &str, extmem: &ExtMem) -> Result<(File, u64), Error> {
    let refused = |errno, reason: String| Error::refused(spec, errno, reason);
    let path = &extmem.file;
    let unread = |e: io::Error| {
        refused(
            e.raw_os_error().unwrap_or(errno::EINVAL),
            format!("@extmem needs a file that can be read, and {path}: {e}"),
        )
    };
    // Checked before opening it: a FIFO would wait for its writer.
    if !fs::metadata(path).map_err(unread)?.is_file() {
        return Err(refused(errno::EINVAL, format!("@extmem needs a regular file, and {path} is not one")));
    }
    let file = File::open(path).map_err(unread)?;
    let bytes = file.metadata().map_err(unread)?.len();
    Ok((file, bytes))
}

/// Fills the buffers of a new port from its file.
pub(crate) fn fill_from(spec: &str, port: &Port, file: &File) -> Result<(), Error> {
    fill(port, |at, chunk| file.read_exact_at(chunk, at)).map_err(|e| Error::host(spec, e))
}

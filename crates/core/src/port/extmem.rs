//! The option EXTMEM: a region of a port's own, laid out as its program wishes.
//!
//! A C program names memory, over which its library maps the region. In Rust a region is mapped where the kernel likes, and
//! read and written through [`Frame`](crate::Frame)s alone, as a reference into it could not be sound; so what a program
//! gives is not an address but what shall stand in the buffers: `@extmem:file=`.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

use unetmap_abi::{ExtMem, NETMAP_REQ_OPT_EXTMEM, NmreqOptExtmem, NmreqOption, NmreqPoolsInfo};
use unetmap_mem::{BufIdx, Geometry};

use crate::error::{Error, errno};
use crate::port::Port;

/// Bytes that are copied at once.
const PIECE: usize = 64 << 10;

/// The pools of a region: how many objects, and how many bytes each has. What is 0 takes the daemon's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pools {
    /// Bytes of the whole region, at most; there are as many buffers as fit.
    pub bytes: u64,
    /// `netmap_if`s: one for each open of a port.
    pub ifs: (u32, u32),
    /// Rings: 256 bytes and 16 for each slot.
    pub rings: (u32, u32),
    /// Buffers of 64 to 65,536 bytes.
    pub bufs: (u32, u32),
}

impl Pools {
    /// As the name of a port wishes, in as many bytes as its file has.
    pub(crate) fn named(wish: &ExtMem, bytes: u64) -> Pools {
        let (ifs, rings) = ((wish.if_num, wish.if_size), (wish.ring_num, wish.ring_size));
        Pools { bytes, ifs, rings, bufs: (wish.buf_num, wish.buf_size) }
    }

    /// The option for a request.
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

/// What a program is told of the pools of region `mem_id`, which has `bytes` bytes.
pub fn pools_info(g: &Geometry, mem_id: u16, bytes: u64) -> NmreqPoolsInfo {
    NmreqPoolsInfo {
        nr_memsize: bytes,
        nr_mem_id: mem_id,
        nr_if_pool_offset: g.ifs.offset,
        nr_if_pool_objtotal: g.ifs.count,
        nr_if_pool_objsize: g.ifs.size,
        nr_ring_pool_offset: g.rings.offset,
        nr_ring_pool_objtotal: g.rings.count,
        nr_ring_pool_objsize: g.rings.size,
        nr_buf_pool_offset: g.bufs.offset,
        nr_buf_pool_objtotal: g.bufs.count,
        nr_buf_pool_objsize: g.bufs.size,
        ..Default::default()
    }
}

/// Fills the buffers of a port that was just opened, alone in its region: `read` brings what shall stand from an offset in the
/// region on. Netmap's list of extra buffers, which lies in some of them, is written again.
///
/// # Errors
/// Those of `read`; then some buffers have been filled.
pub fn fill(port: &Port, mut read: impl FnMut(u64, &mut [u8]) -> io::Result<()>) -> io::Result<()> {
    let extra: Vec<BufIdx> = (0..port.extra_bufs()).map_while(|_| port.take_extra_buf()).collect();
    let bufs = port.region().geometry().bufs;
    let size = bufs.size as usize;
    let mut piece = vec![0; PIECE.max(size) / size * size];
    let mut result = Ok(());
    for first in (0..bufs.count).step_by(piece.len() / size) {
        let n = (piece.len() / size).min((bufs.count - first) as usize);
        let piece = &mut piece[..n * size];
        result = read(bufs.offset + u64::from(first) * size as u64, piece);
        if result.is_err() {
            break;
        }
        // Most of it was never written, and shall take no memory.
        if piece.iter().any(|byte| *byte != 0) {
            for (i, bytes) in piece.chunks(size).enumerate() {
                port.region().frame(BufIdx(first + i as u32)).write(0, bytes);
            }
        }
    }
    extra.into_iter().rev().for_each(|idx| port.give_extra_buf(idx));
    result
}

/// The file that a name's `@extmem` means, and its bytes.
pub(crate) fn file(spec: &str, wish: &ExtMem) -> Result<(File, u64), Error> {
    let told = |errno, why: String| Error::Refused { asked: spec.into(), errno, why };
    let path = &wish.file;
    let unread = |e: io::Error| {
        told(
            e.raw_os_error().unwrap_or(errno::EINVAL),
            format!("@extmem needs a file that can be read, and {path}: {e}"),
        )
    };
    // Before it is opened: a pipe would wait for its writer.
    if !fs::metadata(path).map_err(unread)?.is_file() {
        return Err(told(errno::EINVAL, format!("@extmem needs a plain file, and {path} is none")));
    }
    let file = File::open(path).map_err(unread)?;
    let bytes = file.metadata().map_err(unread)?.len();
    Ok((file, bytes))
}

/// Fills the buffers of a new port from its file.
pub(crate) fn fill_from(spec: &str, port: &Port, file: &File) -> Result<(), Error> {
    fill(port, |at, piece| file.read_exact_at(piece, at)).map_err(|e| Error::host(spec, e))
}

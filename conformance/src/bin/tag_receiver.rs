// SPDX-License-Identifier: BSD-2-Clause
//! Prints `ready`, then each frame with a VLAN tag that arrives at an interface, in hexadecimal digits. The kernel
//! removes the outermost tag and reports it in ancillary data, which no safe interface offers.

use std::io::{self, Write as _};
use std::mem::{size_of, zeroed};

/// `struct tpacket_auxdata`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Auxdata {
    status: u32,
    lengths: [u32; 2],
    offsets: [u16; 2],
    tag: u16,
    kind: u16,
}

/// A frame's outermost tag, which the kernel removed: EtherType, priority and VLAN id.
type Tag = [u8; 4];

fn main() -> io::Result<()> {
    let name = std::env::args().nth(1).ok_or_else(|| io::Error::other("usage: tag_receiver INTERFACE"))?;
    let name = std::ffi::CString::new(name)?;
    // SAFETY: each pointer is to an object of the given size, which outlives the call.
    let fd = unsafe {
        let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0);
        let one: libc::c_int = 1;
        let set = libc::setsockopt(
            fd,
            libc::SOL_PACKET,
            libc::PACKET_AUXDATA,
            (&raw const one).cast(),
            size_of::<libc::c_int>() as u32,
        );
        let mut address: libc::sockaddr_ll = zeroed();
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = libc::if_nametoindex(name.as_ptr()) as i32;
        let bound = libc::bind(fd, (&raw const address).cast(), size_of::<libc::sockaddr_ll>() as u32);
        if fd < 0 || set < 0 || bound < 0 {
            return Err(io::Error::last_os_error());
        }
        fd
    };
    println!("ready");
    loop {
        let Some((frame, tag)) = next(fd)? else { continue };
        let text: String = [&frame[..12], &tag, &frame[12..]].concat().iter().map(hex).collect();
        println!("{text}");
        io::stdout().flush()?;
    }
}

fn hex(byte: &u8) -> String {
    format!("{byte:02x}")
}

/// Receives the next frame; returns it without its tag, and the tag, or `None` if it has no tag.
fn next(fd: i32) -> io::Result<Option<(Vec<u8>, Tag)>> {
    let (mut bytes, mut space) = (vec![0u8; 1 << 16], [0u64; 16]);
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: the header contains the addresses and sizes of the buffers above; only what the kernel wrote to them is
    // read.
    unsafe {
        let mut header: libc::msghdr = zeroed();
        (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
        (header.msg_control, header.msg_controllen) = (space.as_mut_ptr().cast(), size_of_val(&space));
        let n = libc::recvmsg(fd, &raw mut header, 0);
        let Ok(n) = usize::try_from(n) else { return Err(io::Error::last_os_error()) };
        bytes.truncate(n);
        let message = libc::CMSG_FIRSTHDR(&raw const header);
        if message.is_null() || n < 12 {
            return Ok(None);
        }
        let aux: Auxdata = libc::CMSG_DATA(message).cast::<Auxdata>().read_unaligned();
        let tag = u32::from(aux.kind) << 16 | u32::from(aux.tag);
        Ok((aux.status & libc::TP_STATUS_VLAN_VALID != 0).then_some((bytes, tag.to_be_bytes())))
    }
}

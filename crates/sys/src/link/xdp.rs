// SPDX-License-Identifier: BSD-2-Clause
//! Attaching XDP programs by netlink: unlike a BPF link, such a program stays when its process ends.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::ifinfomsg;
use super::netlink::{Socket, push_attribute};

/// Attributes and flags of linux/if_link.h.
const IFLA_XDP: u16 = 43;
const NESTED: u16 = 1 << 15;
const XDP_FD: u16 = 1;
const XDP_FLAGS: u16 = 3;
const XDP_EXPECTED_FD: u16 = 8;
const UPDATE_IF_NOEXIST: u32 = 1 << 0;
const SKB_MODE: u32 = 1 << 1;
const DRV_MODE: u32 = 1 << 2;
const REPLACE: u32 = 1 << 4;

/// A change of the attached program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct XdpChange<'a> {
    /// `None`: detaches it.
    pub(crate) program: Option<BorrowedFd<'a>>,
    /// The program that is attached; `None`: none is.
    pub(crate) expected: Option<BorrowedFd<'a>>,
}

/// Changes the program of interface `index`, in the driver (`native`) or before the network stack.
///
/// # Errors
/// `EEXIST`, `EBUSY`: another program than the expected one is attached; `EOPNOTSUPP`: the driver has no XDP;
/// `ENODEV`: no such interface; `EPERM`: needs `CAP_NET_ADMIN`.
pub(crate) fn change_xdp(index: u32, native: bool, change: XdpChange<'_>) -> io::Result<()> {
    let mode = if native { DRV_MODE } else { SKB_MODE };
    let flags = mode | if change.expected.is_some() { REPLACE } else { UPDATE_IF_NOEXIST };
    let program = change.program.map_or(-1, |fd| fd.as_raw_fd());
    let mut xdp = Vec::new();
    push_attribute(&mut xdp, XDP_FD, &program.to_ne_bytes());
    push_attribute(&mut xdp, XDP_FLAGS, &flags.to_ne_bytes());
    if let Some(expected) = change.expected {
        push_attribute(&mut xdp, XDP_EXPECTED_FD, &expected.as_raw_fd().to_ne_bytes());
    }
    let mut body = ifinfomsg(index);
    push_attribute(&mut body, IFLA_XDP | NESTED, &xdp);
    Ok(Socket::route(0)?.change(libc::RTM_SETLINK, 0, &body)?)
}

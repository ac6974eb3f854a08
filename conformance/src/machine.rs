// SPDX-License-Identifier: BSD-2-Clause
//! A virtual machine as its host sees it: a tap, whose frames have a virtio-net header, by which the machine leaves
//! checksums and segmentation to others.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;

use lab::Ns;
use rustix::net::{AddressFamily, SocketType};

use crate::until;

/// Of linux/if_tun.h.
const TUNSETIFF: libc::Ioctl = 0x4004_54ca_u32 as libc::Ioctl;
const IFF_TAP: u16 = 0x0002;
const IFF_NO_PI: u16 = 0x1000;
const IFF_VNET_HDR: u16 = 0x4000;
/// Of linux/if_packet.h.
const PACKET_VNET_HDR: libc::c_int = 15;

/// Most ms until the next frame.
const NEXT_FRAME_MS: libc::c_int = 50;

/// Bytes of the header.
pub const HEADER: usize = 10;

/// `struct ifreq` of linux/if.h, with the flags of a tap.
#[repr(C)]
struct Request {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}

/// The machine's end of a tap. The tap ends with it.
pub struct Machine(File);

impl Machine {
    /// Makes the tap `name`, which is up, with addresses of no stack.
    ///
    /// # Panics
    /// If it cannot be made.
    #[track_caller]
    pub fn new(ns: &Ns, name: &str) -> Machine {
        let machine = ns.run(|| Machine::attach(name)).expect("a namespace").unwrap_or_else(|e| panic!("{name}: {e}"));
        ns.ip(&["link", "set", name, "up"]).expect("a tap");
        machine
    }

    fn attach(name: &str) -> io::Result<Machine> {
        let file = OpenOptions::new().read(true).write(true).open("/dev/net/tun")?;
        let mut request = Request { name: [0; 16], flags: IFF_TAP | IFF_NO_PI | IFF_VNET_HDR, rest: [0; 22] };
        request.name[..name.len()].copy_from_slice(name.as_bytes());
        // SAFETY: the kernel reads and writes a `struct ifreq`, which has 40 bytes.
        let result = unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF, &raw mut request) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(Machine(file)) }
    }

    /// The interface `name` as such a machine's, by a packet socket that receives nothing.
    ///
    /// # Panics
    /// If there is no such socket.
    #[track_caller]
    pub fn on(ns: &Ns, name: &str) -> Machine {
        ns.run(|| Machine::socket(name)).expect("a namespace").unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    fn socket(name: &str) -> io::Result<Machine> {
        let socket = rustix::net::socket(AddressFamily::PACKET, SocketType::RAW, None)?;
        let on: libc::c_int = 1;
        // SAFETY: the kernel reads one number.
        let set = unsafe {
            let value = (&raw const on).cast();
            libc::setsockopt(socket.as_raw_fd(), libc::SOL_PACKET, PACKET_VNET_HDR, value, size_of_val(&on) as u32)
        };
        if set < 0 {
            return Err(io::Error::last_os_error());
        }
        let terminated = CString::new(name)?;
        // SAFETY: a string that ends.
        let index = unsafe { libc::if_nametoindex(terminated.as_ptr()) };
        // SAFETY: all bytes may be zero.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        (address.sll_family, address.sll_ifindex) = (libc::AF_PACKET as u16, index as i32);
        // SAFETY: the kernel reads an address of this size.
        let bound =
            unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as u32) };
        if bound < 0 { Err(io::Error::last_os_error()) } else { Ok(Machine(File::from(socket))) }
    }

    /// Sends a frame, which follows its header.
    ///
    /// # Panics
    /// If the tap refuses it.
    #[track_caller]
    pub fn send(&self, bytes: &[u8]) {
        let sent = (&self.0).write(bytes).expect("the tap takes a frame");
        assert_eq!(sent, bytes.len());
    }

    /// Waits for a frame that has the property `wanted`, and returns it without its header.
    #[track_caller]
    pub fn receive(&self, what: &str, wanted: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        let mut found = None;
        until(what, || {
            found = self.try_receive(&wanted);
            found.is_some()
        });
        found.unwrap_or_default()
    }

    /// Returns such a frame, unless none arrives within a short time after others.
    ///
    /// # Panics
    /// If the tap is gone.
    pub fn try_receive(&self, wanted: impl Fn(&[u8]) -> bool) -> Option<Vec<u8>> {
        loop {
            let mut ready = [libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
            // SAFETY: the kernel reads and writes one `struct pollfd`.
            if unsafe { libc::poll(ready.as_mut_ptr(), 1, NEXT_FRAME_MS) } <= 0 {
                return None;
            }
            let mut bytes = vec![0; 1 << 16];
            let n = (&self.0).read(&mut bytes).expect("the tap gives a frame");
            if wanted(&bytes[HEADER..n]) {
                return Some(bytes[HEADER..n].to_vec());
            }
        }
    }
}

/// A TCP packet with `payload` bytes behind its virtio-net header, unfinished: the checksum's field has the sum of the
/// pseudo-header, and a packet of more than 1000 bytes is to be cut into segments of 1000.
pub fn unfinished(payload: usize) -> Vec<u8> {
    let mut bytes = crate::packet::gso_packet(payload, HEADER);
    if payload <= 1000 {
        // No segments.
        bytes[1] = 0;
        bytes[4..6].fill(0);
    } else {
        // The bytes of all headers.
        bytes[2..4].copy_from_slice(&54u16.to_le_bytes());
    }
    let frame = &mut bytes[HEADER..];
    let sum = |words: &[u8]| {
        let all: u32 = words.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
        let folded = (all & 0xffff) + (all >> 16);
        (folded & 0xffff) + (folded >> 16)
    };
    let header = !(sum(&frame[14..34]) as u16);
    frame[24..26].copy_from_slice(&header.to_be_bytes());
    let tcp = (frame.len() - 34) as u16;
    let pseudo = sum(&[&frame[26..34], &[0, 6], &tcp.to_be_bytes()].concat()) as u16;
    frame[50..52].copy_from_slice(&pseudo.to_be_bytes());
    bytes
}

/// Moves the calling thread alone into a new network namespace.
///
/// # Errors
/// `EPERM`: no `CAP_SYS_ADMIN`.
pub fn enter_new_namespace() -> io::Result<()> {
    // SAFETY: no pointers; a network namespace is no part of the process that other threads rely on.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

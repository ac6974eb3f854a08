// SPDX-License-Identifier: BSD-2-Clause
//! BPF as far as tests need it: an XDP program of another owner, one that adds VLAN tags, and which programs are
//! attached to an interface. Small calls of bpf(2), so that tests do not rely on the code under test.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// Values of `enum bpf_cmd`.
const PROG_LOAD: libc::c_int = 5;
const PROG_QUERY: libc::c_int = 16;
const LINK_CREATE: libc::c_int = 28;
/// `BPF_PROG_TYPE_SCHED_CLS` and `BPF_PROG_TYPE_XDP` of `enum bpf_prog_type`.
const PROG_TYPE_SCHED_CLS: u32 = 3;
const PROG_TYPE_XDP: u32 = 6;
/// `BPF_XDP`, `BPF_TCX_INGRESS` and `BPF_TCX_EGRESS` of `enum bpf_attach_type`.
const ATTACH_XDP: u32 = 37;
const ATTACH_TCX: [u32; 2] = [46, 47];
/// `struct bpf_insn`; of the registers the destination is in the low half.
#[repr(C)]
struct Insn {
    code: u8,
    registers: u8,
    offset: i16,
    value: i32,
}

/// `r0 = 2; exit`, which is `XDP_PASS`.
static PASS: [Insn; 2] =
    [Insn { code: 0xb7, registers: 0, offset: 0, value: 2 }, Insn { code: 0x95, registers: 0, offset: 0, value: 0 }];

/// How an XDP program is attached; values of `XDP_FLAGS_SKB_MODE` and `XDP_FLAGS_DRV_MODE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpMode {
    /// By the network stack.
    Generic = 2,
    /// By the driver.
    Native = 4,
}

/// An instruction of register `dst`.
const fn insn(code: u8, dst: u8, value: i32) -> Insn {
    Insn { code, registers: dst, offset: 0, value }
}

/// Attaches a program to the egress of an interface of this thread's namespace that adds VLAN tags to each frame, until
/// the descriptor is closed. `tags` are the EtherType and the tag of each, outermost first. The kernel keeps the
/// outermost one beside the frame, as that of a frame of a VLAN interface.
///
/// # Errors
/// `EINVAL`: a kernel before 6.6. `EPERM`: no `CAP_BPF` or no `CAP_NET_ADMIN`.
pub fn push_tags(interface: &str, tags: &[u32]) -> io::Result<OwnedFd> {
    // r6 = r1: the packet is the first argument of each call, whose registers the call destroys.
    let mut insns = vec![insn(0xbf, 0x16, 0)];
    for tag in tags.iter().rev() {
        let kind = (tag >> 16) as u16;
        // bpf_skb_vlan_push(packet, htons(kind), tag), which drops the frame if it fails.
        insns.extend([
            insn(0xbf, 0x61, 0),
            insn(0xb7, 2, i32::from(kind.to_be())),
            insn(0xb7, 3, (tag & 0xffff) as i32),
            insn(0x85, 0, 18),
            Insn { offset: 2, ..insn(0x15, 0, 0) },
            insn(0xb7, 0, 2),
            insn(0x95, 0, 0),
        ]);
    }
    // TCX_NEXT.
    insns.extend([insn(0xb7, 0, -1), insn(0x95, 0, 0)]);
    let mut attr = ProgLoad {
        prog_type: PROG_TYPE_SCHED_CLS,
        insn_cnt: insns.len() as u32,
        insns: insns.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        ..ProgLoad::default()
    };
    // SAFETY: `insns` points to `insn_cnt` instructions, `license` to a string that ends with a NUL; both outlive the
    // call.
    let program = unsafe { bpf_fd(PROG_LOAD, &mut attr) }?;
    let (prog_fd, target_ifindex) = (program.as_raw_fd(), index_of(interface)?);
    let mut attr = LinkCreate { prog_fd, target_ifindex, attach_type: ATTACH_TCX[1], flags: 0 };
    // SAFETY: no pointers.
    unsafe { bpf_fd(LINK_CREATE, &mut attr) }
}

/// The name of the programs that [`attach_xdp`] attaches.
pub const FOREIGN: &str = "foreign";

/// The beginnings of `union bpf_attr`, with no padding.
#[derive(Default)]
#[repr(C)]
struct ProgLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log: [u32; 4],
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
}

#[repr(C)]
struct LinkCreate {
    prog_fd: RawFd,
    target_ifindex: u32,
    attach_type: u32,
    flags: u32,
}

#[repr(C)]
struct ProgQuery {
    target_ifindex: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    prog_ids: u64,
    count: u32,
    padding: u32,
}

/// # Safety
/// `attr` is the beginning of a `union bpf_attr` that fits `command`, without padding, and its pointers point to what
/// the command reads and writes.
unsafe fn bpf<T>(command: libc::c_int, attr: &mut T) -> io::Result<RawFd> {
    // SAFETY: the kernel reads and writes `size_of::<T>()` bytes of `attr`; the rest is the caller's promise.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attr, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as RawFd) }
}

/// # Safety
/// As [`bpf`], for a command that returns a new descriptor.
unsafe fn bpf_fd<T>(command: libc::c_int, attr: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: the caller's promise; the kernel made the descriptor for this call alone.
    unsafe { bpf(command, attr).map(|fd| OwnedFd::from_raw_fd(fd)) }
}

/// Tests whether this process can make an AF_XDP socket.
///
/// # Errors
/// `EAFNOSUPPORT`: the kernel has none. `EPERM`: no `CAP_NET_RAW`.
pub fn check_xdp_socket() -> io::Result<()> {
    socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    Ok(())
}

/// Tests whether this process can load an XDP program.
///
/// # Errors
/// `ENOSYS`: the kernel has no BPF. `EPERM`: no `CAP_BPF` or no `CAP_NET_ADMIN`.
pub fn check_xdp_program() -> io::Result<()> {
    load_xdp().map(drop)
}

/// Loads an XDP program that lets every frame pass.
fn load_xdp() -> io::Result<OwnedFd> {
    let (insns, license) = (PASS.as_ptr() as u64, c"GPL".as_ptr() as u64);
    let mut attr =
        ProgLoad { prog_type: PROG_TYPE_XDP, insn_cnt: PASS.len() as u32, insns, license, ..ProgLoad::default() };
    attr.prog_name[..FOREIGN.len()].copy_from_slice(FOREIGN.as_bytes());
    // SAFETY: `insns` points to `insn_cnt` instructions, `license` to a string that ends with a NUL; both are static.
    unsafe { bpf_fd(PROG_LOAD, &mut attr) }
}

/// Attaches an XDP program that lets every frame pass to an interface of this thread's namespace, by a BPF link, until
/// the descriptor is closed.
///
/// # Errors
/// `EBUSY`: another program is attached.
pub fn attach_xdp(interface: &str, mode: XdpMode) -> io::Result<OwnedFd> {
    let program = load_xdp()?;
    let (prog_fd, target_ifindex) = (program.as_raw_fd(), index_of(interface)?);
    let mut attr = LinkCreate { prog_fd, target_ifindex, attach_type: ATTACH_XDP, flags: mode as u32 };
    // SAFETY: no pointers.
    unsafe { bpf_fd(LINK_CREATE, &mut attr) }
}

/// The ids of the tcx programs on an interface of this thread's namespace; none if the kernel has no tcx or there is no
/// such interface.
///
/// # Errors
/// `EPERM`: no `CAP_NET_ADMIN`.
pub fn tcx_programs(interface: &str) -> io::Result<Vec<u32>> {
    let Ok(index) = index_of(interface) else { return Ok(Vec::new()) };
    let mut all = Vec::new();
    for attach_type in ATTACH_TCX {
        let mut ids = [0u32; 64];
        let prog_ids = ids.as_mut_ptr() as u64;
        let mut attr = ProgQuery {
            target_ifindex: index,
            attach_type,
            query_flags: 0,
            attach_flags: 0,
            prog_ids,
            count: ids.len() as u32,
            padding: 0,
        };
        // SAFETY: `prog_ids` points to `count` ids.
        match unsafe { bpf(PROG_QUERY, &mut attr) } {
            // A kernel before 6.6.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => return Ok(Vec::new()),
            other => other?,
        };
        all.extend_from_slice(&ids[..attr.count as usize]);
    }
    Ok(all)
}

/// The index of an interface of this thread's namespace.
fn index_of(interface: &str) -> io::Result<u32> {
    nix::net::if_::if_nametoindex(interface).map_err(Into::into)
}

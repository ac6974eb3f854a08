// SPDX-License-Identifier: BSD-2-Clause
//! Runs a program as on a kernel without a feature: `without_kernel_feature WHAT PROGRAM ARGS...`.
//!
//! ```text
//! af_xdp     AF_XDP sockets and BPF maps (as those for such sockets) cannot be created
//! links      BPF links (as those for tcx) cannot be created
//! bpf        a call of bpf(2) kills the process
//! nftables   sockets for nftables cannot be created
//! ```

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// Offsets of the system call's number, and of its first and third argument, in `struct seccomp_data`.
const NUMBER: u32 = 0;
const FIRST: u32 = if cfg!(target_endian = "little") { 16 } else { 20 };
const THIRD: u32 = FIRST + 16;
/// `BPF_MAP_CREATE` and `BPF_LINK_CREATE` of linux/bpf.h.
const MAP_CREATE: u32 = 0;
const LINK_CREATE: u32 = 28;

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let [what, program, args @ ..] = &args[..] else { return ExitCode::FAILURE };
    // u32::MAX is no address family and no command.
    let any_socket = (FIRST, u32::MAX, libc::EAFNOSUPPORT);
    // The argument of refused sockets, the error, the refused command, and how many instructions other calls of bpf(2)
    // skip. No other family has a protocol of the number of NETLINK_NETFILTER that is used.
    let ((argument, refused, errno), command, of_others) = match what.to_str() {
        Some("af_xdp") => ((FIRST, libc::AF_XDP as u32, libc::EAFNOSUPPORT), MAP_CREATE, 0),
        Some("links") => (any_socket, LINK_CREATE, 0),
        Some("bpf") => (any_socket, u32::MAX, 2),
        Some("nftables") => ((THIRD, libc::NETLINK_NETFILTER as u32, libc::EPROTONOSUPPORT), u32::MAX, 0),
        _ => return ExitCode::FAILURE,
    };
    let code = |bits: u32| bits as u16;
    let load = |offset| insn(code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS), 0, 0, offset);
    let equals = |value, yes, no| insn(code(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K), yes, no, value);
    let end = |verdict| insn(code(libc::BPF_RET | libc::BPF_K), 0, 0, verdict);
    let fails = |errno: i32| end(libc::SECCOMP_RET_ERRNO | errno as u32);
    let mut filter = [
        load(NUMBER),
        equals(libc::SYS_socket as u32, 0, 3),
        load(argument),
        equals(refused, 0, 4),
        fails(errno),
        equals(libc::SYS_bpf as u32, 0, 2),
        load(FIRST),
        equals(command, 1, of_others),
        end(libc::SECCOMP_RET_ALLOW),
        fails(libc::EINVAL),
        end(libc::SECCOMP_RET_KILL_PROCESS),
    ];
    let program_of_calls = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: `filter` has `len` instructions, and the kernel copies them.
    let set = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program_of_calls) };
    if set != 0 {
        eprintln!("without_kernel_feature: {}", std::io::Error::last_os_error());
        return ExitCode::FAILURE;
    }
    eprintln!("without_kernel_feature: {}", Command::new(program).args(args).exec());
    ExitCode::FAILURE
}

fn insn(code: u16, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt, jf, k }
}

// SPDX-License-Identifier: BSD-2-Clause
//! A client that may make no system call but write: `no_syscalls SPEC SPEC` opens both ends of a pipe, forbids itself
//! all other system calls (seccomp), and moves packets in both directions. It prints its progress; the first other
//! call, at the latest its exit, kills it with SIGSYS.

use std::io;
use std::process::ExitCode;

use conformance::traffic::{fill_some, open};
use rustix::thread::set_no_new_privs;
use unetmap::{Error, Interest, Port};

/// Goes round the rings several times.
const ROUNDS: u64 = 1000;
/// Packets of one batch.
const BATCH: u64 = 8;

/// Never waits: there is always room or a packet.
fn round(from: &Port, to: &Port, round: u64) -> Result<u64, Error> {
    from.poll(Interest::TX, None)?;
    let sent = fill_some(&from.tx_rings()[0], 1, round * BATCH, BATCH);
    from.txsync()?;
    to.poll(Interest::RX, None)?;
    let got = to.rx_rings()[0].space();
    to.rx_rings()[0].advance(got);
    to.rxsync()?;
    Ok(sent.min(got.into()))
}

/// From now on a system call other than write kills this process. Reading the clock is allowed, as some machines have
/// no vDSO for it.
fn forbid_system_calls() -> io::Result<()> {
    let op = |code: u32, k: u32, jt: u8| libc::sock_filter { code: code as u16, jt, jf: 0, k };
    let is = |call: libc::c_long, jt: u8| op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call as u32, jt);
    let end = |action: u32| op(libc::BPF_RET | libc::BPF_K, action, 0);
    let mut filter = [
        // The number of the call, the first field of `seccomp_data`.
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        is(libc::SYS_write, 2),
        is(libc::SYS_clock_gettime, 1),
        end(libc::SECCOMP_RET_KILL_PROCESS),
        end(libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    set_no_new_privs(true)?;
    // SAFETY: `program` and the filter that it points to are alive, and the kernel copies both.
    match unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn main() -> ExitCode {
    let ends: Vec<Port> = std::env::args().skip(1).map(|spec| open(&spec)).collect();
    let [a, b] = &ends[..] else {
        eprintln!("usage: quiet SPEC SPEC");
        return ExitCode::FAILURE;
    };
    let both = |n| Ok::<u64, Error>(round(a, b, n)? + round(b, a, n)?);
    // The first sync registers the process with the daemon.
    if let Err(e) = both(0) {
        eprintln!("no_syscalls: {e}");
        return ExitCode::FAILURE;
    }
    println!("opened");
    if let Err(e) = forbid_system_calls() {
        println!("unable: seccomp: {e}");
        return ExitCode::SUCCESS;
    }
    match (1..=ROUNDS).try_fold(0, |sum, n| both(n).map(|moved| sum + moved)) {
        Ok(moved) => println!("moved {moved}"),
        Err(e) => println!("no_syscalls: {e}"),
    }
    ExitCode::SUCCESS
}

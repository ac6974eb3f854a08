// SPDX-License-Identifier: BSD-2-Clause
//! A killed daemon leaves no program on an interface: its traffic passes to the kernel again.

#![forbid(unsafe_code)]

use std::io;
use std::process::ExitCode;

use assume::{Failure, enter_new_network, expect, fork, run_check, wait_for_kill};
use unetmap_sys::xdp::{Mode, Xdp};

/// Index of `lo` in each network namespace.
const LO: u32 = 1;

fn main() -> ExitCode {
    run_check("an XDP program attached as a BPF link is detached when the link's last descriptor is closed", || {
        enter_new_network()?;
        let link = Xdp::attach(LO, 1, Mode::Generic)?;
        let child = fork(wait_for_kill)?;
        drop(link);
        match Xdp::attach(LO, 1, Mode::Generic) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
            Err(error) => return Err(error.into()),
            Ok(_) => return Err(Failure::Broken("it was detached while a child had a duplicate".into())),
        }
        child.kill()?;
        child.wait()?;
        expect(Xdp::attach(LO, 1, Mode::Generic).is_ok(), "it is still attached after its last holder was killed")
    })
}

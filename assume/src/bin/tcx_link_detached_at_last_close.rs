// SPDX-License-Identifier: BSD-2-Clause
//! A killed daemon leaves no tcx program on an interface: the host's traffic is no longer redirected.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use assume::{enter_new_network, expect, fork, run_check, wait_for_kill};
use unetmap_sys::tcx::{Tcx, programs};

/// Index of `lo` in each network namespace.
const LO: u32 = 1;

fn main() -> ExitCode {
    run_check("a tcx program attached as a BPF link is detached when the link's last descriptor is closed", || {
        enter_new_network()?;
        let link = Tcx::attach(LO)?;
        let child = fork(wait_for_kill)?;
        drop(link);
        expect(programs(LO)?.len() == 1, "it was detached while a child had a duplicate")?;
        child.kill()?;
        child.wait()?;
        expect(programs(LO)?.is_empty(), "it is still attached after its last holder was killed")
    })
}

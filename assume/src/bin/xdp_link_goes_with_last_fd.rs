//! A daemon that was killed leaves no program on an interface: its traffic is the kernel's again.

#![forbid(unsafe_code)]

use std::io;
use std::process::ExitCode;

use assume::{Fault, expect, fork, judge, own_network, stay};
use unetmap_sys::xdp::{Mode, Xdp};

/// Index of `lo` in each network namespace.
const LO: u32 = 1;

fn main() -> ExitCode {
    judge("an XDP program attached as a BPF link goes with the link's last descriptor", || {
        own_network()?;
        let ours = Xdp::attach(LO, 1, Mode::Generic)?;
        let child = fork(stay)?;
        drop(ours);
        match Xdp::attach(LO, 1, Mode::Generic) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
            Err(error) => return Err(error.into()),
            Ok(_) => return Err(Fault::Broken("it went while a child had a duplicate".into())),
        }
        child.kill()?;
        child.wait()?;
        expect(Xdp::attach(LO, 1, Mode::Generic).is_ok(), "it outlived the process that held it")
    })
}

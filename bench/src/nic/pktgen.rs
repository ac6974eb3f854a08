// SPDX-License-Identifier: BSD-2-Clause
//! The kernel's packet generator: threads of the kernel that send what files in `/proc/net/pktgen` say.

use std::path::Path;

use lab::Ns;

use super::{Load, UNUSED_MAC};
use crate::program::Running;

/// Its files, one set for each network namespace.
const FOLDER: &str = "/proc/net/pktgen";
/// The commands of `sh`: a device of the thread of one processor, its packets, and the start, which returns only when
/// all packets are sent. A signal ends it, and the sending with it.
const START: &str = r#"set -e
thread=$FOLDER/kpktgend_$CPU
echo rem_device_all >$thread
echo "add_device $INTERFACE" >$thread
for word in "count 0" "clone_skb 0" "delay 0" "pkt_size $LEN" "dst_mac $MAC" "dst 10.1.0.1"; do
    echo "$word" >$FOLDER/$INTERFACE
done
echo start >$FOLDER/pgctrl"#;
/// Forgets the device, which could not be deleted otherwise.
const END: &str = "echo rem_device_all >$FOLDER/kpktgend_$CPU";

/// Returns why the kernel has no packet generator, if so.
pub(crate) fn no_pktgen() -> Option<String> {
    let why = "not in the running kernel (modprobe pktgen; Debian has the module in linux-image-amd64)";
    (!Path::new(FOLDER).exists()).then(|| why.into())
}

/// The generator of an interface.
pub(super) struct Pktgen<'a> {
    ns: &'a Ns,
    interface: &'a str,
    cpu: usize,
}

impl<'a> Pktgen<'a> {
    pub(super) fn new(ns: &'a Ns, interface: &'a str, cpu: usize) -> Pktgen<'a> {
        Pktgen { ns, interface, cpu }
    }

    /// Starts to send. A thread of the kernel does, so the program only waits.
    pub(super) fn start(&self, load: Load) -> Result<Running, String> {
        Running::start("pktgen", &mut self.command(START, load))
    }

    fn command(&self, script: &str, load: Load) -> std::process::Command {
        let mut command = self.ns.command("sh");
        command.args(["-c", script]).env("FOLDER", FOLDER).env("INTERFACE", self.interface);
        command.env("CPU", self.cpu.to_string()).env("LEN", load.len.to_string()).env("MAC", UNUSED_MAC);
        command
    }
}

impl Drop for Pktgen<'_> {
    fn drop(&mut self) {
        // It has been stopped; where this fails the namespace's end does the same.
        let _ = self.command(END, Load::SMALL).status();
    }
}

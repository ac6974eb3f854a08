// SPDX-License-Identifier: BSD-2-Clause
//! The benchmarks `lb` and `scrub`: programs between an interface and the receivers of its packets, compared with a
//! program that only receives.
//!
//! ```text
//!    namespace a        namespace b
//!    [va] ------------- [vb]
//!
//!    lb      pkt-gen sends 256 flows from va; lb at vb distributes them over four pipes; their reader counts
//!    scrub   pkt-gen sends from va, nine of ten packets from invalid source addresses; the scrubber at vb counts
//! ```
//! All programs except the sender share the receiver's core: `lb`, its reader, and the host stack behind the scrubber.

use std::process::Command;

use crate::Bench;
use crate::nic::{Implementation, NicLab, UNUSED_MAC};
use crate::program::{self, INTERVAL, Running, steady_mpps, stop_all};
use crate::seqpacket::on_core;

/// The sender's source addresses and ports: 256 flows.
const FLOWS: &str = "10.0.0.1:1024-10.0.0.1:1279";
/// The sender's source addresses: one unicast address, and nine multicast addresses, which are invalid as a source.
const MOSTLY_BAD: &str = "223.255.255.255:1234-224.0.0.8:1234";
/// The scrubber's limit per source address, packets per second: more than any source sends.
const RATE: &str = "10000000";
/// Pipes behind `lb`.
const PIPES: u32 = 4;

impl NicLab {
    /// Measures one sample, in Mpps, of `lb`, `scrub`, or the plain receiver with the same sender.
    pub(crate) fn measure_lb_scrub(&self, bench: Bench, implementation: Implementation) -> Result<f64, String> {
        let interval = INTERVAL.as_millis().to_string();
        let mut programs = Vec::new();
        match (implementation, bench) {
            (Implementation::Plain, _) => {
                let receiver = ["-i", "netmap:vb", "-f", "rx", "-w", "0", "--json", "-T", &interval];
                programs.push(self.receive("pkt-gen", |command| command.args(receiver))?);
            }
            (_, Bench::Lb) => {
                let pipes = PIPES.to_string();
                programs.push(self.receive("lb", |command| command.args(["-w", "0", "-i", "vb/R", "-p", &pipes]))?);
                let ports = (0..PIPES).map(|pipe| format!("netmap:vb}}{pipe}"));
                programs.insert(0, self.receive("collector", |command| command.arg(&interval).args(ports))?);
            }
            _ => {
                let seconds = INTERVAL.as_secs_f64().to_string();
                // All of this is an attack, whose begin is not an interval.
                let events = ["--attack", "1G", "--interval", &seconds];
                let scrub = ["scrub", "vb", "--on-failure", "open", "-w", "0", "--json", "--source-rate", RATE];
                programs.push(self.receive("unetmap", |command| command.args(scrub).args(events))?);
            }
        }
        let sources = if bench == Bench::Lb { FLOWS } else { MOSTLY_BAD };
        let mut sender = self.tool("pkt-gen", false)?;
        sender.args([
            "-i",
            "netmap:va/T",
            "-f",
            "tx",
            "-w",
            "0",
            "-T",
            "0",
            "-l",
            "60",
            "-D",
            UNUSED_MAC,
            "-s",
            sources,
        ]);
        programs.push(on_core(self.cores.tx, || Running::start("pkt-gen -f tx", &mut sender))?);
        let rate = steady_mpps(|| {
            programs.iter_mut().skip(1).try_for_each(Running::check)?;
            programs[0].line()
        });
        stop_all(rate, &mut programs)
    }

    /// Starts a unetmap program on the receiver's core and in its namespace.
    fn receive(&self, name: &str, with: impl FnOnce(&mut Command) -> &mut Command) -> Result<Running, String> {
        let mut command = self.tool(name, true)?;
        with(&mut command);
        on_core(self.cores.rx, || Running::start(name, &mut command))
    }

    /// Returns a command for a unetmap program in the sender's or the receiver's namespace, with direct access to
    /// interfaces.
    fn tool(&self, name: &str, receives: bool) -> Result<Command, String> {
        let daemons = self.daemons.as_ref().ok_or("bench: the daemons are not started")?;
        let mut command = if receives { &self.b } else { &self.a }.command(program::find(name)?);
        command.env("UNETMAP_SOCKET", &daemons[0].socket);
        Ok(command)
    }
}

//! What stands between an interface and who wants its packets, beside a program that only receives.
//!
//! ```text
//!    namespace a        namespace b
//!    [va] ------------- [vb]
//!
//!    lb      pkt-gen sends 256 flows from va; lb at vb has four pipes, whose reader counts
//!    scrub   pkt-gen sends from va, nine of ten from addresses that are nobody's; the scrubber at vb counts
//! ```
//! All of ours but the sender shares the receiver's core: `lb`, its reader, and the host's part behind the scrubber.

use std::process::Command;

use crate::Bench;
use crate::nic::{NOBODY, Nics, Who};
use crate::program::{self, INTERVAL, Running, conclude, steady_mpps};
use crate::seqpacket::on_core;

/// Flows, as the sender's range of addresses and ports says it.
const FLOWS: &str = "10.0.0.1:1024-10.0.0.1:1279";
/// One address that may be somebody's, and nine for multicast.
const MOSTLY_BAD: &str = "223.255.255.255:1234-224.0.0.8:1234";
/// Packets a second that one source may send: more than any sends here.
const RATE: &str = "10000000";
/// Pipes behind `lb`.
const PIPES: u32 = 4;

impl Nics {
    /// One sample, in Mpps, of `lb`, `scrub`, or the plain receiver with the same sender.
    pub(crate) fn behind(&self, bench: Bench, who: Who) -> Result<f64, String> {
        let interval = INTERVAL.as_millis().to_string();
        let mut programs = Vec::new();
        match (who, bench) {
            (Who::Plain, _) => {
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
                let scrub = |command: &mut Command| {
                    command.args(["vb", "1", RATE]).env("INTERVAL_MS", &interval);
                };
                programs.push(self.receive("scrubber", |command| {
                    scrub(command);
                    command
                })?);
            }
        }
        let sources = if bench == Bench::Lb { FLOWS } else { MOSTLY_BAD };
        let mut sender = self.tool("pkt-gen", false)?;
        sender.args(["-i", "netmap:va/T", "-f", "tx", "-w", "0", "-T", "0", "-l", "60", "-D", NOBODY, "-s", sources]);
        programs.push(on_core(self.cores.tx, || Running::start("pkt-gen -f tx", &mut sender))?);
        let rate = steady_mpps(|| {
            programs.iter_mut().skip(1).try_for_each(Running::check)?;
            programs[0].line()
        });
        conclude(rate, &mut programs)
    }

    /// Starts a program of ours on the receiver's core and side.
    fn receive(&self, name: &str, with: impl FnOnce(&mut Command) -> &mut Command) -> Result<Running, String> {
        let mut command = self.tool(name, true)?;
        with(&mut command);
        on_core(self.cores.rx, || Running::start(name, &mut command))
    }

    /// A program of ours in the sender's or the receiver's namespace, which opens interfaces directly.
    fn tool(&self, name: &str, receives: bool) -> Result<Command, String> {
        let daemons = self.daemons.as_ref().ok_or("bench: the daemons are not started")?;
        let mut command = if receives { &self.b } else { &self.a }.command(program::find(name)?);
        command.env("UNETMAP_SOCKET", &daemons[0].socket);
        Ok(command)
    }
}

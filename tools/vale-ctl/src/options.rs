// SPDX-License-Identifier: BSD-2-Clause
//! The command line: each flag is defined once here, for the parser, `--help` and the man page.

use clap::{ArgGroup, Parser};
use unetmap::abi::{NETMAP_POLLING_MODE_MULTI_CPU, NETMAP_POLLING_MODE_SINGLE_CPU, NETMAP_REQ_IFNAMSIZ, NM_BDG_NAME};

/// Bytes of the longest name of an interface: IFNAMSIZ less its NUL.
const MAX_INTERFACE_NAME: usize = 15;

/// Shows and changes the ports of VALE switches. Without a command, lists the ports.
#[derive(Debug, Parser)]
#[command(name = "vale-ctl", version = unetmap::version(), max_term_width = 100, disable_help_flag = true)]
#[command(group = ArgGroup::new("command").multiple(false))]
pub(crate) struct Cli {
    /// Show the memory, rings and slots of a port
    #[arg(short = 'g', long = "get", value_name = "PORT", group = "command")]
    get: Option<String>,

    /// Attach an interface, or a persistent port, to a switch: valeS:IF
    #[arg(short = 'a', long = "attach", value_name = "PORT", group = "command")]
    attach: Option<String>,

    /// Attach an interface together with its host stack, which becomes a separate port
    #[arg(short = 'h', long = "attach-host", value_name = "PORT", group = "command")]
    attach_host: Option<String>,

    /// Detach an interface or a persistent port
    #[arg(short = 'd', long = "detach", value_name = "PORT", group = "command")]
    detach: Option<String>,

    /// Create a persistent port: an interface of the system that can be attached to a switch
    #[arg(short = 'n', long = "new", value_name = "IF", group = "command")]
    new: Option<String>,

    /// Remove a persistent port
    #[arg(short = 'r', long = "remove", value_name = "IF", group = "command")]
    remove: Option<String>,

    /// Show the indexes of one port: valeS:P
    #[arg(short = 'l', long = "list", value_name = "PORT", group = "command")]
    list: Option<String>,

    /// Serve an attached interface by polling, on the processors given by -C
    #[arg(short = 'p', long = "polling-on", value_name = "PORT", group = "command")]
    polling_on: Option<String>,

    /// Stop polling an attached interface
    #[arg(short = 'P', long = "polling-off", value_name = "PORT", group = "command")]
    polling_off: Option<String>,

    /// With -n: TX_SLOTS[,RX_SLOTS[,TX_RINGS[,RX_RINGS]]]. With -p: 0[,CPU] (one processor for all rings, the default),
    /// or 1,FIRST[,COUNT] (each of COUNT rings from ring FIRST on is served by the processor with the number of the
    /// ring)
    #[arg(short = 'C', long = "config", value_name = "NUMBERS", value_delimiter = ',', num_args = 1)]
    config: Vec<u32>,

    /// With -n, -a and -h: the region of the port [default: a private region]
    #[arg(short = 'm', long = "mem-id", value_name = "ID", value_parser = clap::value_parser!(u16).range(1..))]
    mem_id: Option<u16>,

    /// Print more details on standard error
    #[arg(short, long)]
    verbose: bool,

    /// Print the output as JSON
    #[arg(long)]
    json: bool,

    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

/// The command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// All ports of all switches.
    ListAll,
    List(String),
    Info(String),
    Attach {
        port: String,
        host: bool,
        mem_id: u16,
    },
    Detach(String),
    New {
        name: String,
        sizes: RingSizes,
        mem_id: u16,
    },
    Remove(String),
    PollingOn {
        port: String,
        polling: Polling,
    },
    PollingOff(String),
}

/// Requested slots and rings of a persistent port. 0: the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RingSizes {
    pub(crate) tx_slots: u32,
    pub(crate) rx_slots: u32,
    pub(crate) tx_rings: u16,
    pub(crate) rx_rings: u16,
}

/// The processors that poll an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Polling {
    pub(crate) mode: u32,
    pub(crate) first_cpu: u32,
    pub(crate) cpus: u32,
}

/// The validated command line.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) command: Command,
    pub(crate) verbose: bool,
    pub(crate) json: bool,
}

impl Command {
    /// Refuses names that no port and no interface can have.
    fn check_names(&self) -> Result<(), String> {
        let (name, what, most) = match self {
            Command::ListAll => return Ok(()),
            Command::Attach { port, .. } | Command::Detach(port) if !port.contains(':') => {
                return Err(format!("{port}: a switch port is named valeS:P"));
            }
            Command::New { name, .. } if name.starts_with(NM_BDG_NAME) => {
                return Err(format!("{name}: a persistent port has the name of an interface, not vale..."));
            }
            Command::New { name, .. } | Command::Remove(name) => (name, "an interface", MAX_INTERFACE_NAME),
            Command::List(port) | Command::Info(port) | Command::Detach(port) | Command::PollingOff(port) => {
                (port, "a port", NETMAP_REQ_IFNAMSIZ - 1)
            }
            Command::Attach { port, .. } | Command::PollingOn { port, .. } => (port, "a port", NETMAP_REQ_IFNAMSIZ - 1),
        };
        let is_valid = (1..=most).contains(&name.len());
        if is_valid { Ok(()) } else { Err(format!("{name}: the name of {what} has 1 to {most} bytes")) }
    }
}

impl Cli {
    /// Validates the flags together.
    pub(crate) fn check(self) -> Result<Config, String> {
        let (verbose, json) = (self.verbose, self.json);
        let command = self.into_command()?;
        Ok(Config { command, verbose, json })
    }

    fn into_command(self) -> Result<Command, String> {
        let mem_id = self.mem_id.unwrap_or(0);
        let (config, region) = (!self.config.is_empty(), self.mem_id.is_some());
        let attach = |port: Option<String>, host| port.map(|port| Command::Attach { port, host, mem_id });
        let new = self.new.map(|name| sizes(&self.config).map(|sizes| Command::New { name, sizes, mem_id }));
        let polling =
            self.polling_on.map(|port| polling(&self.config).map(|polling| Command::PollingOn { port, polling }));
        let configured = new.or(polling).transpose()?;
        let plain = attach(self.attach, false)
            .or(attach(self.attach_host, true))
            .or(self.get.map(Command::Info))
            .or(self.detach.map(Command::Detach))
            .or(self.remove.map(Command::Remove))
            .or(self.list.map(Command::List))
            .or(self.polling_off.map(Command::PollingOff));
        let command = configured.or(plain).unwrap_or(Command::ListAll);
        if config && !matches!(command, Command::New { .. } | Command::PollingOn { .. }) {
            return Err("-C needs -n (slots and rings) or -p (processors)".into());
        }
        if region && !matches!(command, Command::New { .. } | Command::Attach { .. }) {
            return Err("-m needs -n, -a or -h".into());
        }
        command.check_names()?;
        Ok(command)
    }
}

/// Parses the numbers as netmap's vale-ctl does: an omitted receive value equals the transmit value; omitted rings are
/// 0, the default.
fn sizes(numbers: &[u32]) -> Result<RingSizes, String> {
    let rings = |n: u32| u16::try_from(n).map_err(|_| format!("-C: {n} rings are too many; the maximum is 65535"));
    Ok(match *numbers {
        [] => RingSizes::default(),
        [tx] => RingSizes { tx_slots: tx, rx_slots: tx, ..RingSizes::default() },
        [tx, rx] => RingSizes { tx_slots: tx, rx_slots: rx, ..RingSizes::default() },
        [tx, rx, r] => RingSizes { tx_slots: tx, rx_slots: rx, tx_rings: rings(r)?, rx_rings: rings(r)? },
        [tx, rx, r, s] => RingSizes { tx_slots: tx, rx_slots: rx, tx_rings: rings(r)?, rx_rings: rings(s)? },
        _ => return Err("-n takes at most four numbers: -C TX_SLOTS,RX_SLOTS,TX_RINGS,RX_RINGS".into()),
    })
}

/// Parses the numbers as netmap's vale-ctl does: the first is 1 if each ring has a processor of its own, else 0.
fn polling(numbers: &[u32]) -> Result<Polling, String> {
    let one = |first_cpu| Polling { mode: NETMAP_POLLING_MODE_SINGLE_CPU, first_cpu, cpus: 1 };
    match *numbers {
        [] | [0] => Ok(one(0)),
        [0, cpu] => Ok(one(cpu)),
        [0, ..] => Err("-p with -C 0 takes one more number, the processor: -C 0,CPU".into()),
        [_, _, 0] => Err("-C: the number of processors must be at least one".into()),
        [_, ref rest @ ..] if rest.len() <= 2 => {
            let (first_cpu, cpus) = (rest.first().copied().unwrap_or(0), rest.get(1).copied().unwrap_or(1));
            Ok(Polling { mode: NETMAP_POLLING_MODE_MULTI_CPU, first_cpu, cpus })
        }
        _ => Err("-p takes at most three numbers: -C 1,FIRST,COUNT".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &str) -> Result<Config, String> {
        let all = ["vale-ctl"].into_iter().chain(args.split_whitespace());
        Cli::try_parse_from(all).map_err(|e| e.to_string())?.check()
    }

    #[test]
    fn each_command_is_parsed() {
        let port = || "vale0:eth1".to_string();
        let attach = |host, mem_id| Command::Attach { port: port(), host, mem_id };
        let polling =
            |mode, first_cpu, cpus| Command::PollingOn { port: port(), polling: Polling { mode, first_cpu, cpus } };
        for (args, command) in [
            ("", Command::ListAll),
            ("-v --json", Command::ListAll),
            ("-l vale0:eth1", Command::List(port())),
            ("-g vale0:eth1", Command::Info(port())),
            ("-a vale0:eth1", attach(false, 0)),
            ("-h vale0:eth1 -m 7", attach(true, 7)),
            ("-d vale0:eth1", Command::Detach(port())),
            ("-r vi0", Command::Remove("vi0".into())),
            ("-p vale0:eth1", polling(1, 0, 1)),
            ("-p vale0:eth1 -C 0,3", polling(1, 3, 1)),
            ("-p vale0:eth1 -C 1", polling(2, 0, 1)),
            ("-p vale0:eth1 -C 1,1,2", polling(2, 1, 2)),
            ("-P vale0:eth1", Command::PollingOff(port())),
        ] {
            assert_eq!(parse(args).unwrap().command, command, "{args}");
        }
    }

    #[test]
    fn slots_and_rings_are_parsed() {
        for (numbers, expected) in [
            ("512", (512, 512, 0, 0)),
            ("512,256", (512, 256, 0, 0)),
            ("512,256,2", (512, 256, 2, 2)),
            ("512,256,2,1", (512, 256, 2, 1)),
        ] {
            let Command::New { sizes, .. } = parse(&format!("-n vi0 -C {numbers}")).unwrap().command else {
                panic!("{numbers}")
            };
            assert_eq!((sizes.tx_slots, sizes.rx_slots, sizes.tx_rings, sizes.rx_rings), expected, "{numbers}");
        }
    }

    #[test]
    fn invalid_values_are_refused_with_a_reason() {
        for (args, part) in [
            ("-a x -d y", "cannot be used with"),
            ("-l", "--list"),
            ("-C 1", "-C needs"),
            ("-g vale0:a -m 3", "-m needs"),
            ("-n vi0 -C 1,2,3,4,5", "at most four"),
            ("-n vi0 -C 1,2,70000", "too many"),
            ("-p vale0:a -C 0,1,1", "one more number"),
            ("-p vale0:a -C 1,0,0", "at least one"),
            ("-p vale0:a -C 1,2,3,4", "at most three"),
            ("-n vi0 -C x", "--config"),
            ("-a vale0:a -m 0", "--mem-id"),
            ("stray", "stray"),
            ("-n a_name_that_is_too_long", "1 to 15 bytes"),
            ("-r a_name_that_is_too_long", "1 to 15 bytes"),
            ("-n vale7", "not vale"),
        ] {
            let message = parse(args).unwrap_err();
            assert!(message.contains(part), "{args}: {message}");
        }
        let long = format!("-a vale0:{}", "x".repeat(NETMAP_REQ_IFNAMSIZ));
        assert!(parse(&long).unwrap_err().contains("1 to 63 bytes"), "{long}");
    }

    #[test]
    fn every_short_flag_has_a_long_name_and_help() {
        use clap::CommandFactory;
        tool_common::testing::check_flags(Cli::command());
    }

    const SYNOPSIS: &[u8] = b".SH SYNOPSIS\n\\fBvale\\-ctl\\fR [\\fB\\-g\\fR|\\fB\\-a\\fR|\\fB\\-h\\fR|\\fB\\-d\\fR|\\fB\\-l\\fR|\\fB\\-p\\fR|\\fB\\-P\\fR \\fBvale\\fR\\fIS\\fR:\\fIP\\fR] [\\fIOPTIONS\\fR]\n.br\n\\fBvale\\-ctl\\fR \\fB\\-n\\fR|\\fB\\-r\\fR \\fIIF\\fR [\\fIOPTIONS\\fR]\n";

    /// `man/vale-ctl.8` is generated from the flags above and `man.roff`. After a change of either, run this test with
    /// `UPDATE_MAN=1` in the environment.
    #[test]
    fn the_man_page_is_up_to_date() {
        use clap::CommandFactory;
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../man/vale-ctl.8");
        tool_common::testing::check_manual(Cli::command(), SYNOPSIS, include_bytes!("../man.roff"), path);
    }
}

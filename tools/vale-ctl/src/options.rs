//! The command line: each flag is defined once here, for the parser, `--help` and the manual page.

use clap::{ArgGroup, Parser};
use unetmap::abi::{NETMAP_POLLING_MODE_MULTI_CPU, NETMAP_POLLING_MODE_SINGLE_CPU};

/// Shows and changes the ports of VALE switches. Without a command, lists them.
#[derive(Debug, Parser)]
#[command(name = "vale-ctl", version, max_term_width = 100, disable_help_flag = true)]
#[command(group = ArgGroup::new("command").multiple(false))]
pub(crate) struct Cli {
    /// Shows the memory, rings and slots of a port
    #[arg(short = 'g', long = "get", value_name = "PORT", group = "command")]
    get: Option<String>,

    /// Attaches an interface, or a persistent port, to a switch: valeS:IF
    #[arg(short = 'a', long = "attach", value_name = "PORT", group = "command")]
    attach: Option<String>,

    /// Attaches it together with its host stack, which becomes a port of its own
    #[arg(short = 'h', long = "attach-host", value_name = "PORT", group = "command")]
    attach_host: Option<String>,

    /// Detaches what was attached
    #[arg(short = 'd', long = "detach", value_name = "PORT", group = "command")]
    detach: Option<String>,

    /// Makes a persistent port: an interface of the system, to be attached to a switch
    #[arg(short = 'n', long = "new", value_name = "IF", group = "command")]
    new: Option<String>,

    /// Removes a persistent port
    #[arg(short = 'r', long = "remove", value_name = "IF", group = "command")]
    remove: Option<String>,

    /// Shows the numbers of one port: valeS:P
    #[arg(short = 'l', long = "list", value_name = "PORT", group = "command")]
    list: Option<String>,

    /// Has an attached interface served from given processors, see -C
    #[arg(short = 'p', long = "polling-on", value_name = "PORT", group = "command")]
    polling_on: Option<String>,

    /// No longer
    #[arg(short = 'P', long = "polling-off", value_name = "PORT", group = "command")]
    polling_off: Option<String>,

    /// With -n: TX_SLOTS[,RX_SLOTS[,TX_RINGS[,RX_RINGS]]]. With -p: 0[,CPU] (one processor for all rings, the default), or
    /// 1,FIRST[,COUNT] (each of so many rings from the first on has the processor of its own number)
    #[arg(short = 'C', long = "config", value_name = "NUMBERS", value_delimiter = ',', num_args = 1)]
    config: Vec<u32>,

    /// With -n, -a and -h: the region to put it into [default: one of its own]
    #[arg(short = 'm', long = "mem-id", value_name = "ID", value_parser = clap::value_parser!(u16).range(1..))]
    mem_id: Option<u16>,

    /// Say more on standard error
    #[arg(short, long)]
    verbose: bool,

    /// The answer as JSON on standard output
    #[arg(long)]
    json: bool,

    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

/// What to do.
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
        shape: Shape,
        mem_id: u16,
    },
    Remove(String),
    PollingOn {
        port: String,
        polling: Polling,
    },
    PollingOff(String),
}

/// The wishes for a persistent port; 0 is the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) tx_slots: u32,
    pub(crate) rx_slots: u32,
    pub(crate) tx_rings: u16,
    pub(crate) rx_rings: u16,
}

/// Which processors serve an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Polling {
    pub(crate) mode: u32,
    pub(crate) first_cpu: u32,
    pub(crate) cpus: u32,
}

/// The command line, checked.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) command: Command,
    pub(crate) verbose: bool,
    pub(crate) json: bool,
}

impl Cli {
    /// Checks what one flag alone cannot.
    pub(crate) fn check(self) -> Result<Config, String> {
        let (verbose, json) = (self.verbose, self.json);
        let command = self.what_to_do()?;
        Ok(Config { command, verbose, json })
    }

    fn what_to_do(self) -> Result<Command, String> {
        let mem_id = self.mem_id.unwrap_or(0);
        let (config, region) = (!self.config.is_empty(), self.mem_id.is_some());
        let attach = |port: Option<String>, host| port.map(|port| Command::Attach { port, host, mem_id });
        let new = self.new.map(|name| shape(&self.config).map(|shape| Command::New { name, shape, mem_id }));
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
            return Err("-C goes with -n (slots and rings) or -p (processors)".into());
        }
        if region && !matches!(command, Command::New { .. } | Command::Attach { .. }) {
            return Err("-m goes with -n, -a or -h".into());
        }
        Ok(command)
    }
}

/// As netmap's program reads them: what is left out is the same for receiving as for sending, and one ring.
fn shape(numbers: &[u32]) -> Result<Shape, String> {
    let rings = |n: u32| u16::try_from(n).map_err(|_| format!("-C: {n} rings are too many"));
    Ok(match *numbers {
        [] => Shape::default(),
        [tx] => Shape { tx_slots: tx, rx_slots: tx, ..Shape::default() },
        [tx, rx] => Shape { tx_slots: tx, rx_slots: rx, ..Shape::default() },
        [tx, rx, r] => Shape { tx_slots: tx, rx_slots: rx, tx_rings: rings(r)?, rx_rings: rings(r)? },
        [tx, rx, r, s] => Shape { tx_slots: tx, rx_slots: rx, tx_rings: rings(r)?, rx_rings: rings(s)? },
        _ => return Err("-C with -n takes at most four numbers: TX_SLOTS,RX_SLOTS,TX_RINGS,RX_RINGS".into()),
    })
}

/// As netmap's program reads them: the first says whether each ring has a processor of its own.
fn polling(numbers: &[u32]) -> Result<Polling, String> {
    let one = |first_cpu| Polling { mode: NETMAP_POLLING_MODE_SINGLE_CPU, first_cpu, cpus: 1 };
    match *numbers {
        [] | [0] => Ok(one(0)),
        [0, cpu] => Ok(one(cpu)),
        [0, ..] => Err("-C 0 with -p takes one more number, of the processor: 0,CPU".into()),
        [_, _, 0] => Err("-C: at least one processor has to serve it".into()),
        [_, ref rest @ ..] if rest.len() <= 2 => {
            let (first_cpu, cpus) = (rest.first().copied().unwrap_or(0), rest.get(1).copied().unwrap_or(1));
            Ok(Polling { mode: NETMAP_POLLING_MODE_MULTI_CPU, first_cpu, cpus })
        }
        _ => Err("-C with -p takes at most three numbers: 1,FIRST,COUNT".into()),
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
    fn every_command() {
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
    fn slots_and_rings() {
        for (numbers, expected) in [
            ("512", (512, 512, 0, 0)),
            ("512,256", (512, 256, 0, 0)),
            ("512,256,2", (512, 256, 2, 2)),
            ("512,256,2,1", (512, 256, 2, 1)),
        ] {
            let Command::New { shape, .. } = parse(&format!("-n vi0 -C {numbers}")).unwrap().command else {
                panic!("{numbers}")
            };
            assert_eq!((shape.tx_slots, shape.rx_slots, shape.tx_rings, shape.rx_rings), expected, "{numbers}");
        }
    }

    #[test]
    fn bad_values_say_what_is_allowed() {
        for (args, part) in [
            ("-a x -d y", "cannot be used with"),
            ("-l", "--list"),
            ("-C 1", "-C goes with"),
            ("-g vale0:a -m 3", "-m goes with"),
            ("-n vi0 -C 1,2,3,4,5", "at most four"),
            ("-n vi0 -C 1,2,70000", "too many"),
            ("-p vale0:a -C 0,1,1", "one more number"),
            ("-p vale0:a -C 1,0,0", "at least one"),
            ("-p vale0:a -C 1,2,3,4", "at most three"),
            ("-n vi0 -C x", "--config"),
            ("-a vale0:a -m 0", "--mem-id"),
            ("stray", "stray"),
        ] {
            let message = parse(args).unwrap_err();
            assert!(message.contains(part), "{args}: {message}");
        }
    }

    #[test]
    fn every_short_flag_has_a_long_name_and_help() {
        use clap::CommandFactory;
        tool_common::testing::check_flags(Cli::command());
    }

    const SYNOPSIS: &[u8] = b".SH SYNOPSIS\n\\fBvale\\-ctl\\fR [\\fB\\-g\\fR|\\fB\\-a\\fR|\\fB\\-h\\fR|\\fB\\-d\\fR|\\fB\\-l\\fR|\\fB\\-p\\fR|\\fB\\-P\\fR \\fBvale\\fR\\fIS\\fR:\\fIP\\fR] [\\fIOPTIONS\\fR]\n.br\n\\fBvale\\-ctl\\fR \\fB\\-n\\fR|\\fB\\-r\\fR \\fIIF\\fR [\\fIOPTIONS\\fR]\n";

    /// `man/vale-ctl.8` is made of the flags above and of `man.roff`. After a change of either, run this test with
    /// `UPDATE_MAN=1` in the environment.
    #[test]
    fn the_manual_page_is_up_to_date() {
        use clap::CommandFactory;
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../man/vale-ctl.8");
        tool_common::testing::check_manual(Cli::command(), SYNOPSIS, include_bytes!("../man.roff"), path);
    }
}

// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap`: the command-line front end. Each subcommand has a module.
#![forbid(unsafe_code)]

#[cfg(feature = "apps")]
mod apps;
#[cfg(feature = "bench")]
mod bench;
mod capture;
mod config;
mod doctor;
mod events;
mod extract;
mod http;
mod knobs;
mod ls;
mod metrics;
mod nic;
mod node;
mod replay;
mod run;
mod stop;
mod top;
mod vale;

use std::process::ExitCode;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory as _, Parser, Subcommand};
use nic::args::{BypassArgs, NicArgs};
use tool_common::{Failure, note};
use unetmap_quantity::{seconds, within};

/// netmap in user space: shows open ports, checks this machine, and measures performance.
#[derive(Debug, Parser)]
#[command(name = "unetmap", version = unetmap::version(), max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Ls(LsArgs),
    Top(TopArgs),
    Events(events::EventsArgs),
    Nic(NicArgs),
    Bypass(BypassArgs),
    Vale(vale::ValeArgs),
    #[cfg(feature = "apps")]
    #[command(flatten)]
    App(apps::App),
    Node(node::NodeArgs),
    Get(GetArgs),
    Set(SetArgs),
    Reload(ReloadArgs),
    Stop(stop::StopArgs),
    Config(config::ConfigArgs),
    Metrics(MetricsArgs),
    Doctor(DoctorArgs),
    #[cfg(feature = "bench")]
    Bench(bench::BenchArgs),
    Run(RunArgs),
    Capture(capture::CaptureArgs),
    Extract(extract::ExtractArgs),
    Replay(replay::ReplayArgs),
}

/// Run a program that was written for netmap, or one that uses libpcap.
///
/// A program that uses libpcap, such as tcpdump or scapy, opens ports by their names (unetmap-pcap(7)).
///
/// A program that was written for netmap can open /dev/netmap, even if this machine has no such file. unetmap handles
/// the program's open, ioctl, mmap, poll, select and epoll calls on it; all other calls go to the system. The program
/// must be linked dynamically, and must not be setuid, because the loader preloads no library into such programs.
/// UNETMAP_VERBOSE=1 prints the reason for each refused request.
#[derive(Debug, Args)]
struct RunArgs {
    /// Allow the program to open the interface of the default route, which disconnects the host (UNETMAP_FORCE=1)
    #[arg(long)]
    force: bool,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    program: Vec<std::ffi::OsString>,
}

/// Show the daemon's regions, ports, rings and sessions.
#[derive(Debug, Args)]
struct LsArgs {
    /// Show what each user has of the daemon, and its budget
    #[arg(long)]
    users: bool,
    /// Show all columns, however long the lines become
    #[arg(short, long)]
    wide: bool,
    /// Print the daemon's reply as JSON
    #[arg(long)]
    json: bool,
}

/// Show the packet rates of all rings, refreshed periodically.
///
/// Shows packets and lost packets per second, and packets per batch, the fastest ring first.
#[derive(Debug, Args)]
struct TopArgs {
    /// Time between two refreshes
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = interval, allow_hyphen_values = true)]
    interval: Duration,

    /// Number of refreshes (0 = unlimited)
    #[arg(short = 'n', long, value_name = "N", default_value_t = 0)]
    count: u64,

    /// Print one JSON object per ring, or interface with a failure, and refresh
    #[arg(long)]
    json: bool,
}

/// Parses the time between two refreshes.
fn interval(text: &str) -> Result<Duration, String> {
    within(seconds, Duration::from_millis(50)..=Duration::from_secs(3600))(text)
}

/// Show the values of netmap's knobs in this user's daemon.
///
/// `applies` is when a new value takes effect: now; for ports opened afterwards (open); for regions created afterwards
/// (region); or never: the value is stored and has no effect here.
#[derive(Debug, Args)]
struct GetArgs {
    /// Print only the value of this knob
    #[arg(value_name = "KNOB")]
    knob: Option<String>,

    /// Print the daemon's reply as JSON
    #[arg(long)]
    json: bool,
}

/// Set one of netmap's knobs, until the daemon exits.
///
/// Sets the knob in this user's daemon. The daemon is started if none runs, and does not exit when idle while a knob
/// differs from its value at startup. Only the daemon's own user and root can set knobs. To set knobs permanently, see
/// --config in unetmapd(8).
#[derive(Debug, Args)]
struct SetArgs {
    /// Name of the knob; `unetmap get` lists all
    #[arg(value_name = "KNOB")]
    knob: String,

    /// A number, hexadecimal with 0x; a size, such as 4KiB, for knobs named _size; a time for sink_delay_ns
    #[arg(value_name = "VALUE", allow_negative_numbers = true)]
    value: String,

    /// Print the daemon's reply as JSON
    #[arg(long)]
    json: bool,
}

/// Have the daemon read its configuration and its policy again.
///
/// Prints what that changes. Open ports stay as they are. A file with an error changes nothing; the error is reported
/// with its line. SIGHUP does the same, with the result in the daemon's log.
#[derive(Debug, Args)]
struct ReloadArgs {
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Print the daemons' counters for Prometheus, or serve them (unetmap-metrics(7)).
///
/// Shows what `unetmap ls` shows the same user, in Prometheus's text format; over HTTP in the format that the request's
/// Accept prefers.
#[derive(Debug, Args)]
struct MetricsArgs {
    /// Serve them over HTTP at /metrics instead, until a signal
    #[arg(short, long, value_name = "unix:PATH|ADDRESS:PORT", value_parser = metrics::place)]
    listen: Option<String>,

    /// Also answer requests whose Host is NAME, besides the address that they came to; may be given several times
    #[arg(long = "host", value_name = "NAME", requires = "listen")]
    hosts: Vec<String>,

    /// Print OpenMetrics text
    #[arg(long, conflicts_with = "listen")]
    openmetrics: bool,
}

/// Check what this machine and its interfaces support, and print how to fix what is missing.
///
/// Without an interface: checks the machine, and lists all interfaces in a table; changes nothing. With an interface
/// that nothing uses: also opens one of its queues as a port would, for a moment. The exit status is 0 if a port could
/// be opened, 1 if a requirement is missing. Checks that this user has no permission to make are reported as unknown.
#[derive(Debug, Args)]
struct DoctorArgs {
    /// An interface of this network namespace, or a port on one (netmap:IF)
    #[arg(value_name = "IF", value_parser = doctor::interface)]
    interface: Option<String>,

    /// Print the kernel version that each feature needs, as a Markdown table
    #[arg(long, conflicts_with_all = ["interface", "json", "report"])]
    kernels: bool,

    /// Print what to attach to a report of a bug: this machine, the daemon and IF, without private things
    #[arg(long)]
    report: bool,

    /// Print one JSON object: kernel, ok, checks, interfaces; or that of a proof
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    prove: doctor::prove::ProveArgs,
}

fn main() -> ExitCode {
    let done = execute(tool_common::parse::<Cli>().command);
    tool_common::exit_code("unetmap", done.map(ExitCode::from))
}

/// Performs the command. Returns the exit status.
fn execute(command: Command) -> Result<u8, Failure> {
    let done = match command {
        Command::Ls(args) => ls::run(args.users, args.json, args.wide),
        Command::Top(args) => top::run(args.interval, args.count, args.json),
        Command::Events(args) => events::run(&args),
        Command::Nic(args) => {
            let text = nic::args::run(&args)?;
            if args.save {
                config::save(&args.interface, nic::args::keys(&args))?;
            }
            print("nic", &text)
        }
        Command::Bypass(BypassArgs { first, second, off, json, save }) => {
            let text = nic::failure::bypass([&first, &second], off.is_some(), json)?;
            for interface in [&first, &second].into_iter().filter(|_| save) {
                config::save(interface, &["failure"])?;
            }
            print("bypass", &text)
        }
        Command::Vale(args) => {
            let text = vale::run(&args)?;
            if let Some((subject, keys)) = vale::changed(&args).filter(|_| args.save) {
                config::save(subject, &keys)?;
            }
            print("vale", &text)
        }
        #[cfg(feature = "apps")]
        Command::App(app) => return apps::run(&app),
        Command::Config(args) => config::run(&args),
        Command::Metrics(args) => metrics::run(args.listen.as_deref(), &args.hosts, args.openmetrics),
        Command::Node(args) => node::run(args.action, args.json),
        Command::Get(args) => return knobs::get(args.knob.as_deref(), args.json),
        Command::Set(SetArgs { knob, value, json }) => {
            let number = unetmap_quantity::knob(&knob, &value).unwrap_or_else(|why| {
                let wrong = format!("invalid value '{value}' for '{knob}': {why}");
                Cli::command().error(ErrorKind::InvalidValue, wrong).exit()
            });
            return knobs::set(&knob, number, json);
        }
        Command::Reload(args) => knobs::reload(args.json),
        Command::Stop(args) => stop::run(&args),
        Command::Doctor(args) if args.kernels => print("doctor", &unetmap_sys::kernel::table()),
        Command::Doctor(args) if args.prove.is_asked() => return doctor::prove::run(&args.prove, args.json),
        Command::Doctor(args) => {
            doctor::run(args.interface.as_deref(), doctor::Output { json: args.json, report: args.report })
        }
        Command::Capture(args) => return capture::run(&args),
        Command::Extract(args) => return extract::run(&args),
        Command::Replay(args) => return replay::run(&args),
        Command::Run(args) => Ok(run::run(&args.program, args.force)),
        #[cfg(feature = "bench")]
        Command::Bench(args) => return bench::run(args),
    };
    Ok(done?)
}

/// Parses the words of a command of this program. The error is the first line of clap's.
fn command(words: &[String]) -> Result<Command, String> {
    let words = std::iter::once("unetmap").chain(words.iter().map(String::as_str));
    let parsed = Cli::try_parse_from(words).map_err(|e| {
        let text = e.to_string();
        text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
    });
    Ok(parsed?.command)
}

/// Performs a command of this program that changes something, without its output.
fn perform(words: &[String]) -> Result<(), String> {
    match command(words)? {
        Command::Vale(args) => vale::run(&args).map(drop).map_err(|failure| failure.to_string()),
        Command::Nic(args) => nic::args::run(&args).map(drop).map_err(|failure| failure.to_string()),
        _ => Err(format!("`unetmap {}` is no setting", words.join(" "))),
    }
}

/// Returns the value that such a command sets, as the daemon's state shows it.
fn normal_form(words: &[String]) -> Result<String, String> {
    match command(words)? {
        Command::Vale(args) => vale::normal_form(&args),
        Command::Nic(NicArgs { action: Some(action), .. }) => nic::args::normal_form(action),
        _ => Err(format!("`unetmap {}` is no setting", words.join(" "))),
    }
}

/// Writes `text` to standard output. An error begins with the name of the subcommand.
fn print(subcommand: &str, text: &str) -> Result<u8, String> {
    match tool_common::write(text) {
        // A reader such as `head` closes the pipe early.
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(0),
        result => result.map(|()| 0).map_err(|e| format!("{subcommand}: standard output: {e}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// The sections OPTIONS are generated from the flags. After a change of these, run this test with `UPDATE_MAN=1` in
    /// the environment.
    #[cfg(all(feature = "apps", feature = "bench"))]
    #[test]
    fn the_man_pages_are_up_to_date() {
        let mut own = Vec::new();
        for command in Cli::command().get_subcommands() {
            let page = match command.get_name() {
                "run" => "unetmap-run.1",
                "capture" | "extract" | "replay" => "unetmap-capture.1",
                "flows" => "unetmap-flows.1",
                "scrub" => "unetmap-scrub.1",
                "vm" => "unetmap-vm.7",
                "memif" => "unetmap-memif.7",
                "lab" => "unetmap-lab.1",
                _ => "unetmap.1",
            };
            own.push((page, command.clone()));
        }
        let path = |page: &str| format!("{}/../../man/{page}", env!("CARGO_MANIFEST_DIR"));
        let pages = [
            "unetmap.1",
            "unetmap-capture.1",
            "unetmap-flows.1",
            "unetmap-lab.1",
            "unetmap-run.1",
            "unetmap-scrub.1",
            "unetmap-vm.7",
            "unetmap-memif.7",
        ];
        for page in pages {
            let commands: Vec<_> =
                own.iter().filter(|(of, _)| *of == page).map(|(_, command)| command.clone()).collect();
            tool_common::testing::check_options(&commands, &path(page));
        }
    }
}

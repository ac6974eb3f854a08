// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap vale`: shows the VALE switches, and changes the settings of switches, ports and switch threads.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use serde_json::Value;
use tool_common::Failure;
use tool_common::served::Kind;
use unetmap_core::control::vale::{
    MAX_AGE, MAX_CPUS, MAX_THREADS, ThreadConfig, ValeAction, ValeRequest, send_request,
};
use unetmap_quantity::seconds;

use crate::ls::{cell, parse_reply};

mod changed;
mod port;
mod show;

pub(crate) use changed::changed;
pub(crate) use port::{PORT_KEYS, SERVED_KEYS, VLAN_KEYS};
use port::{Port, settings};
use show::{heading, switch_details, switch_list, threads, use_colour};

/// Show the VALE switches, or change the settings of a switch, a port, or the switch threads.
///
/// Without an action: prints a line for each switch. A setting remains until it is removed, of a user's own daemon
/// until that exits, and applies to a port whenever it is opened. Every user with access to the switch's ports can
/// change its settings.
#[derive(Debug, Args)]
pub(crate) struct ValeArgs {
    #[command(subcommand)]
    action: Option<Action>,

    /// Print the daemon's reply as JSON
    #[arg(long, global = true)]
    json: bool,

    /// Also write the changed switch's or port's settings to the configuration file (unetmap-switches(5))
    #[arg(long, global = true)]
    pub(crate) save: bool,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show a switch: its ports with their packet rates, losses and settings, and its MAC address table
    Show {
        /// The switch: valeS
        #[arg(value_name = "S", value_parser = switch)]
        switch: String,

        /// Time between the two snapshots from which the rates are computed
        #[arg(short, long, value_name = "SECONDS", default_value = "0.5", value_parser = crate::interval, allow_hyphen_values = true)]
        interval: Duration,
    },
    /// Change a setting of a switch
    Set {
        /// The switch: valeS
        #[arg(value_name = "S", value_parser = switch)]
        switch: String,

        #[command(subcommand)]
        what: Set,
    },
    /// Show or change the settings of a port
    Port {
        /// The port: valeS:P
        #[arg(value_name = "S:P", value_parser = port_name)]
        port: String,

        #[cfg(feature = "apps")]
        #[command(flatten)]
        service: unetmap_guests::ServiceArgs,

        #[command(subcommand)]
        what: Option<Port>,
    },
    /// Show or change the number of threads that serve all switches, and their processors
    ///
    /// One thread forwards all packets that a port sends; the ports are distributed over the threads. Only root and the
    /// daemon's own user can change the threads. The daemon's configuration file has the initial setting.
    Threads {
        /// Number of threads: 1 to 64
        #[arg(value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_THREADS)))]
        threads: Option<u16>,

        /// The processors to which the threads are pinned in turn, for instance 0,2-3; any: threads are not pinned
        #[arg(long, value_name = "LIST|any", value_parser = cpus, default_value = "any", requires = "threads")]
        cpus: Cpus,
    },
}

impl Action {
    /// The port that a process is to serve, or no longer, how, and at which socket.
    fn service(&self) -> Option<(&str, Kind, Option<String>)> {
        match self {
            #[cfg(feature = "apps")]
            Action::Port { port, service, .. } => service.setting().map(|(kind, socket)| (port.as_str(), kind, socket)),
            _ => None,
        }
    }
}

/// Refuses a process that is to serve the port and a setting of the port in one command.
fn check_one_change(action: Option<&Action>) -> Result<(), String> {
    match action {
        Some(action @ Action::Port { port, what: Some(_), .. }) if action.service().is_some() => Err(format!(
            "vale port {port}: give the option of the process that serves it and the setting in two commands"
        )),
        _ => Ok(()),
    }
}

/// Processors to which the threads are pinned in turn; empty: not pinned.
#[derive(Clone, Debug, PartialEq)]
struct Cpus(Vec<u16>);

#[derive(Debug, Subcommand)]
enum Set {
    /// Set the aging time of the MAC address table
    Age {
        /// Seconds, up to 2592000 (30 days); off: never
        #[arg(value_name = "SECONDS|off", value_parser = age, allow_negative_numbers = true)]
        seconds: u32,
    },
}

/// Parses the name of a switch.
fn switch(text: &str) -> Result<String, String> {
    match text.starts_with("vale") && !text.contains(':') {
        true => Ok(text.into()),
        false => Err("a switch is named valeS, without a port".into()),
    }
}

/// Parses the name of a port of a switch.
fn port_name(text: &str) -> Result<String, String> {
    match text.split_once(':') {
        Some((of, port)) if switch(of).is_ok() && !port.is_empty() => Ok(text.into()),
        _ => Err("the name of a switch port is valeS:P".into()),
    }
}

fn age(text: &str) -> Result<u32, String> {
    if text == "off" {
        return Ok(0);
    }
    let whole = |time: Duration| u32::try_from(time.as_secs()).ok().filter(|_| time.subsec_nanos() == 0);
    let age = seconds(text).ok().and_then(whole).filter(|age| (1..=MAX_AGE).contains(age));
    age.ok_or_else(|| {
        format!("give a time in whole seconds, or with its unit as in 5min, from 1 to {MAX_AGE} s; or off")
    })
}

fn cpus(text: &str) -> Result<Cpus, String> {
    if text == "any" {
        return Ok(Cpus(Vec::new()));
    }
    let cpu = |text: &str| text.parse().ok().filter(|cpu| *cpu < MAX_CPUS);
    let range = |part: &str| -> Option<RangeInclusive<u16>> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let range = cpu(first)?..=cpu(last)?;
        (!range.is_empty()).then_some(range)
    };
    let ranges: Option<Vec<_>> = text.split(',').map(range).collect();
    match ranges {
        Some(ranges) => Ok(Cpus(ranges.into_iter().flatten().collect())),
        None => Err(format!("give processors as in 0,2-3, each below {MAX_CPUS}, or any")),
    }
}

/// Returns the value of a setting as `state` of the configuration has it, with the checks of its command.
pub(crate) fn normal_form(args: &ValeArgs) -> Result<String, String> {
    check_one_change(args.action.as_ref())?;
    if let Some((.., socket)) = args.action.as_ref().and_then(Action::service) {
        return Ok(socket.unwrap_or_default());
    }
    Ok(match &args.action {
        Some(Action::Set { what: Set::Age { seconds }, .. }) => seconds.to_string(),
        Some(Action::Port { what: Some(what), .. }) => what.value()?,
        _ => String::new(),
    })
}

/// Performs the action; returns the state after it, as text.
pub(crate) fn run(args: &ValeArgs) -> Result<String, Failure> {
    check_one_change(args.action.as_ref()).map_err(Failure::Usage)?;
    #[cfg(feature = "apps")]
    if let Some((port, kind, socket)) = args.action.as_ref().and_then(Action::service) {
        return Ok(unetmap_guests::set(port, kind, socket.as_deref())?);
    }
    let (name, action) = match &args.action {
        None => (String::new(), ValeAction::List),
        Some(Action::Show { switch, .. }) => (switch.clone(), ValeAction::Show),
        Some(Action::Set { switch, what: Set::Age { seconds } }) => (switch.clone(), ValeAction::Age(*seconds)),
        Some(Action::Port { port, what, .. }) => {
            let action = what.as_ref().map_or(Ok(ValeAction::ShowPort), Port::action);
            (port.clone(), action.map_err(|why| Failure::Usage(format!("vale port {port}: {why}")))?)
        }
        Some(Action::Threads { threads: None, .. }) => (String::new(), ValeAction::Threads),
        Some(Action::Threads { threads: Some(threads), cpus: Cpus(cpus) }) => {
            let config = ThreadConfig { threads: *threads, cpus: cpus.clone() };
            config.check().map_err(|why| Failure::Usage(format!("vale threads: {why}")))?;
            (String::new(), ValeAction::SetThreads(config))
        }
    };
    let request = ValeRequest { name, action };
    let send = || send_request(&request).map_err(|e| format!("vale: {e}"));
    let parse = |reply: &str| parse_reply("vale", reply);
    let start = Instant::now();
    Ok(match send()? {
        None if args.json => if request.action == ValeAction::List { "[]\n" } else { "null\n" }.into(),
        None => "No daemon is running; there are no switches.\n".into(),
        Some(reply) if args.json => format!("{reply}\n"),
        Some(reply) => match &args.action {
            None => switch_list(&parse(&reply)?),
            Some(Action::Show { interval, .. }) => {
                std::thread::sleep(*interval);
                let Some(later) = send()? else { return Err(Failure::Work("vale: the daemon has exited".into())) };
                switch_details(&parse(&reply)?, &parse(&later)?, start.elapsed(), use_colour())
            }
            Some(Action::Threads { .. }) => threads(&parse(&reply)?),
            Some(Action::Set { .. }) => format!("{}\n", heading(&parse(&reply)?)),
            Some(Action::Port { port, .. }) => {
                format!("{}: {}\n", cell(&Value::String(port.clone())), settings(&parse(&reply)?))
            }
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_parsed_or_refused() {
        assert_eq!((age("300"), age("5min"), age("off")), (Ok(300), Ok(300), Ok(0)));
        assert_eq!((cpus("3,0-1"), cpus("any")), (Ok(Cpus(vec![3, 0, 1])), Ok(Cpus(vec![]))));
        for wrong in ["0", "2592001", "1.5", "10Mbit", "x", "-1"] {
            assert!(age(wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "1024", "2-1", "0,", "-1", "all"] {
            assert!(cpus(wrong).is_err(), "{wrong}");
        }
    }
}

//! vale-ctl: shows and changes the ports of VALE switches.
#![forbid(unsafe_code)]

mod options;

use std::process::ExitCode;

use clap::Parser as _;
use serde_json::{Value, json};
use tool_common::{Failure, note, print, request};
use unetmap::Error;
use unetmap::errno::ENOENT;
use unetmap_abi::*;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use options::{Cli, Command, Config, Polling, Shape};

fn main() -> ExitCode {
    let config = Cli::parse().check().map_err(Failure::Usage);
    tool_common::end("vale-ctl", config.and_then(|config| run(&config)))
}

/// What was asked of the daemon, in netmap's words and as JSON.
struct Said {
    text: String,
    json: Value,
}

fn run(config: &Config) -> Result<ExitCode, Failure> {
    let said = match &config.command {
        Command::ListAll => list_all(config.verbose)?,
        Command::List(port) => list(port)?,
        Command::Info(port) => info(port)?,
        Command::Attach { port, host, mem_id } => {
            let nr_mode = if *host { NR_REG_NIC_SW } else { NR_REG_ALL_NIC };
            let reg = NmreqRegister { nr_mode, nr_mem_id: *mem_id, ..Default::default() };
            let answer: NmreqValeAttach =
                ask(NETMAP_REQ_VALE_ATTACH, port, NmreqValeAttach { reg, ..Default::default() })?;
            port_index(port, answer.port_index)
        }
        Command::Detach(port) => {
            let answer: NmreqValeDetach = ask(NETMAP_REQ_VALE_DETACH, port, NmreqValeDetach::default())?;
            port_index(port, answer.port_index)
        }
        Command::New { name, shape, mem_id } => {
            let Shape { tx_slots: nr_tx_slots, rx_slots: nr_rx_slots, tx_rings: nr_tx_rings, rx_rings: nr_rx_rings } =
                *shape;
            let body = NmreqValeNewif {
                nr_tx_slots,
                nr_rx_slots,
                nr_tx_rings,
                nr_rx_rings,
                nr_mem_id: *mem_id,
                ..Default::default()
            };
            ask::<NmreqValeNewif>(NETMAP_REQ_VALE_NEWIF, name, body)?;
            nothing_to_say(name)
        }
        Command::Remove(name) => {
            ask::<()>(NETMAP_REQ_VALE_DELIF, name, ())?;
            nothing_to_say(name)
        }
        Command::PollingOn { port, polling } => {
            let Polling { mode: nr_mode, first_cpu: nr_first_cpu_id, cpus: nr_num_polling_cpus } = *polling;
            let body = NmreqValePolling { nr_mode, nr_first_cpu_id, nr_num_polling_cpus, ..Default::default() };
            ask::<NmreqValePolling>(NETMAP_REQ_VALE_POLLING_ENABLE, port, body)?;
            nothing_to_say(port)
        }
        Command::PollingOff(port) => {
            ask::<NmreqValePolling>(NETMAP_REQ_VALE_POLLING_DISABLE, port, NmreqValePolling::default())?;
            nothing_to_say(port)
        }
    };
    print(&if config.json { format!("{}\n", said.json) } else { said.text });
    Ok(ExitCode::SUCCESS)
}

fn nothing_to_say(name: &str) -> Said {
    Said { text: String::new(), json: json!({ "name": name }) }
}

fn port_index(name: &str, index: u32) -> Said {
    Said { text: format!("port_index: {index}\n"), json: json!({ "name": name, "port_index": index }) }
}

/// Each port of each switch, in order. A request without a name tells the first port at the numbers in it or after them.
fn list_all(verbose: bool) -> Result<Said, Failure> {
    let (mut text, mut ports) = (String::new(), Vec::new());
    let mut at = NmreqValeList::default();
    loop {
        let (name, found) = match request::ask(NETMAP_REQ_VALE_LIST, "", at) {
            Err(Error::Refused { errno: ENOENT, .. }) => break,
            answer => answer?,
        };
        text += &line(&name, found);
        ports.push(row(&name, found));
        at = NmreqValeList { nr_port_idx: found.nr_port_idx.saturating_add(1), ..found };
    }
    if verbose {
        note(&format!("{} ports", ports.len()));
    }
    Ok(Said { text, json: Value::Array(ports) })
}

fn list(port: &str) -> Result<Said, Failure> {
    let found: NmreqValeList = ask(NETMAP_REQ_VALE_LIST, port, NmreqValeList::default())?;
    Ok(Said { text: line(port, found), json: row(port, found) })
}

fn line(name: &str, found: NmreqValeList) -> String {
    format!("{name} bridge_idx {} port_idx {}\n", found.nr_bridge_idx, found.nr_port_idx)
}

fn row(name: &str, found: NmreqValeList) -> Value {
    json!({ "name": name, "bridge_idx": found.nr_bridge_idx, "port_idx": found.nr_port_idx })
}

fn info(port: &str) -> Result<Said, Failure> {
    let found: NmreqPortInfoGet = ask(NETMAP_REQ_PORT_INFO_GET, port, NmreqPortInfoGet::default())?;
    let rows = [
        ("memsize", found.nr_memsize),
        ("tx_slots", found.nr_tx_slots.into()),
        ("rx_slots", found.nr_rx_slots.into()),
        ("tx_rings", found.nr_tx_rings.into()),
        ("rx_rings", found.nr_rx_rings.into()),
        ("mem_id", found.nr_mem_id.into()),
    ];
    // Scripts look for netmap's words, in which this one line has no colon.
    let text = rows
        .iter()
        .map(|(what, n)| if *what == "rx_rings" { format!("{what} {n}\n") } else { format!("{what}: {n}\n") });
    let json = rows.iter().map(|&(what, n)| (what.to_string(), json!(n)));
    Ok(Said { text: text.collect(), json: json.chain([("name".to_string(), json!(port))]).collect() })
}

/// Asks the daemon, and returns the body of its answer.
fn ask<T: FromBytes + IntoBytes + Immutable>(reqtype: u16, name: &str, body: T) -> Result<T, Failure> {
    Ok(request::ask(reqtype, name, body).map(|(_, body)| body)?)
}

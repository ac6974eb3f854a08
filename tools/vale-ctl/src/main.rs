// SPDX-License-Identifier: BSD-2-Clause
//! vale-ctl: shows and changes the ports of VALE switches.
#![forbid(unsafe_code)]

mod options;

use std::process::ExitCode;

use serde_json::{Value, json};
use tool_common::{Failure, link, note, print};
use unetmap::Error;
use unetmap::abi::*;
use unetmap::errno::ENOENT;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use options::{Cli, Command, Config, Polling, RingSizes};

fn main() -> ExitCode {
    let config = tool_common::parse::<Cli>().check().map_err(Failure::Usage);
    tool_common::exit_code("vale-ctl", config.and_then(|config| run(&config)))
}

/// The output of a command, as text in netmap's format and as JSON.
struct Output {
    text: String,
    json: Value,
}

fn run(config: &Config) -> Result<ExitCode, Failure> {
    let output = match &config.command {
        Command::ListAll => list_all(config.verbose)?,
        Command::List(port) => list(port)?,
        Command::Info(port) => info(port)?,
        Command::Attach { port, host, mem_id } => {
            let nr_mode = if *host { NR_REG_NIC_SW } else { NR_REG_ALL_NIC };
            let reg = NmreqRegister { nr_mode, nr_mem_id: *mem_id, ..Default::default() };
            let body = NmreqValeAttach { reg, ..Default::default() };
            let reply: NmreqValeAttach = link::attach(port, || send(NETMAP_REQ_VALE_ATTACH, port, body))?;
            port_index(port, reply.port_index)
        }
        Command::Detach(port) => {
            let reply: NmreqValeDetach = send(NETMAP_REQ_VALE_DETACH, port, NmreqValeDetach::default())?;
            port_index(port, reply.port_index)
        }
        Command::New { name, sizes, mem_id } => {
            let RingSizes {
                tx_slots: nr_tx_slots,
                rx_slots: nr_rx_slots,
                tx_rings: nr_tx_rings,
                rx_rings: nr_rx_rings,
            } = *sizes;
            let body = NmreqValeNewif {
                nr_tx_slots,
                nr_rx_slots,
                nr_tx_rings,
                nr_rx_rings,
                nr_mem_id: *mem_id,
                ..Default::default()
            };
            send::<NmreqValeNewif>(NETMAP_REQ_VALE_NEWIF, name, body)?;
            name_only(name)
        }
        Command::Remove(name) => {
            send::<()>(NETMAP_REQ_VALE_DELIF, name, ())?;
            name_only(name)
        }
        Command::PollingOn { port, polling } => {
            let Polling { mode: nr_mode, first_cpu: nr_first_cpu_id, cpus: nr_num_polling_cpus } = *polling;
            let body = NmreqValePolling { nr_mode, nr_first_cpu_id, nr_num_polling_cpus, ..Default::default() };
            send::<NmreqValePolling>(NETMAP_REQ_VALE_POLLING_ENABLE, port, body)?;
            name_only(port)
        }
        Command::PollingOff(port) => {
            send::<NmreqValePolling>(NETMAP_REQ_VALE_POLLING_DISABLE, port, NmreqValePolling::default())?;
            name_only(port)
        }
    };
    print(&if config.json { format!("{}\n", output.json) } else { output.text });
    Ok(ExitCode::SUCCESS)
}

fn name_only(name: &str) -> Output {
    Output { text: String::new(), json: json!({ "name": name }) }
}

fn port_index(name: &str, index: u32) -> Output {
    Output { text: format!("port_index: {index}\n"), json: json!({ "name": name, "port_index": index }) }
}

/// Lists the ports of all switches, in order. A request without a name returns the first port at or after the indexes
/// in it.
fn list_all(verbose: bool) -> Result<Output, Failure> {
    let (mut text, mut ports) = (String::new(), Vec::new());
    let mut at = NmreqValeList::default();
    loop {
        let (name, found) = match unetmap::request(NETMAP_REQ_VALE_LIST, "", &at) {
            Err(Error::Refused { errno: ENOENT, .. }) => break,
            reply => reply?,
        };
        text += &line(&name, found);
        ports.push(row(&name, found));
        at = NmreqValeList { nr_port_idx: found.nr_port_idx.saturating_add(1), ..found };
    }
    if verbose {
        note(&format!("{} ports", ports.len()));
    }
    Ok(Output { text, json: Value::Array(ports) })
}

fn list(port: &str) -> Result<Output, Failure> {
    let found: NmreqValeList = send(NETMAP_REQ_VALE_LIST, port, NmreqValeList::default())?;
    Ok(Output { text: line(port, found), json: row(port, found) })
}

fn line(name: &str, found: NmreqValeList) -> String {
    format!("{name} bridge_idx {} port_idx {}\n", found.nr_bridge_idx, found.nr_port_idx)
}

fn row(name: &str, found: NmreqValeList) -> Value {
    json!({ "name": name, "bridge_idx": found.nr_bridge_idx, "port_idx": found.nr_port_idx })
}

fn info(port: &str) -> Result<Output, Failure> {
    let found: NmreqPortInfoGet = send(NETMAP_REQ_PORT_INFO_GET, port, NmreqPortInfoGet::default())?;
    let rows = [
        ("memsize", found.nr_memsize),
        ("tx_slots", found.nr_tx_slots.into()),
        ("rx_slots", found.nr_rx_slots.into()),
        ("tx_rings", found.nr_tx_rings.into()),
        ("rx_rings", found.nr_rx_rings.into()),
        ("mem_id", found.nr_mem_id.into()),
    ];
    // Scripts parse netmap's format, in which this line has no colon.
    let text = rows
        .iter()
        .map(|(what, n)| if *what == "rx_rings" { format!("{what} {n}\n") } else { format!("{what}: {n}\n") });
    let json = rows.iter().map(|&(what, n)| (what.to_string(), json!(n)));
    Ok(Output { text: text.collect(), json: json.chain([("name".to_string(), json!(port))]).collect() })
}

/// Sends a request to the daemon. Returns the body of the reply.
fn send<T: FromBytes + IntoBytes + Immutable>(reqtype: u16, name: &str, body: T) -> Result<T, Failure> {
    Ok(unetmap::request(reqtype, name, &body).map(|(_, body)| body)?)
}

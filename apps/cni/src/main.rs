// SPDX-License-Identifier: BSD-2-Clause
//! unetmap-cni: a plugin of the Container Network Interface that gives a pod a port of a VALE switch.
//!
//! ```text
//! runtime --(environment, JSON)--> unetmap-cni --(requests in the pod's namespace)--> unetmapd
//!                                       |------(environment, JSON)--> the plugin of addresses (IPAM)
//!                                       '------(requests in the node's namespace)--> unetmapd: the port of gateways
//! ```
//! The port is a persistent port: an interface in the pod, whose other end is in the switch. A program in the pod may
//! also open it as `netmap:IFNAME`.
#![forbid(unsafe_code)]

mod config;
mod fault;
mod gateway;
mod interface;
mod ipam;
mod operations;
mod state;

use std::io::{Read as _, Write as _};
use std::process::ExitCode;

use serde_json::{Value, json};
use unetmap::abi::printable;

use config::{Environment, NetConf, VERSIONS};
use fault::{Code, Fault};

/// Bytes of the longest configuration that is read. The list of valid attachments of a node is in it.
const MAX_INPUT: u64 = 16 << 20;

fn main() -> ExitCode {
    let Ok(command) = std::env::var("CNI_COMMAND") else {
        // Raw: its own text.
        eprintln!(
            "unetmap-cni {}: a CNI plugin, which a container runtime calls with CNI_COMMAND and a configuration \
             (unetmap-cni(8)). CNI versions: {}",
            unetmap::version(),
            VERSIONS.join(", ")
        );
        return ExitCode::from(2);
    };
    let (version, result) = match read_input() {
        Ok(input) => (config::version_of(&input), run(&command, &input)),
        Err(fault) => (VERSIONS[VERSIONS.len() - 1].into(), Err(fault)),
    };
    let (output, status) = match result {
        Ok(None) => return ExitCode::SUCCESS,
        Ok(Some(reply)) => (reply, ExitCode::SUCCESS),
        Err(fault) => (fault.json(&version), ExitCode::FAILURE),
    };
    let output = output.to_string();
    // Raw: escaped here.
    match writeln!(std::io::stdout(), "{}", printable::text(&tool_common::without_codes(&output))) {
        Ok(()) => status,
        Err(_) => ExitCode::FAILURE,
    }
}

fn read_input() -> Result<Vec<u8>, Fault> {
    let mut input = Vec::new();
    let read = std::io::stdin().lock().take(MAX_INPUT + 1).read_to_end(&mut input);
    read.map_err(|e| Fault::new(Code::Io, format!("standard input: {e}")))?;
    if input.len() as u64 > MAX_INPUT {
        return Err(Fault::new(Code::Decode, format!("the configuration has more than {MAX_INPUT} bytes")));
    }
    Ok(input)
}

/// Carries out a command. Returns what is printed.
fn run(command: &str, input: &[u8]) -> Result<Option<Value>, Fault> {
    if command == "VERSION" {
        let version = config::version_of(input);
        return Ok(Some(json!({ "cniVersion": version, "supportedVersions": VERSIONS })));
    }
    let conf = NetConf::parse(input)?;
    let environment = || Environment::read(command);
    match command {
        "ADD" => operations::add(&conf, &environment()?, input).map(Some),
        "DEL" => operations::delete(&conf, &environment()?, input).map(|()| None),
        "CHECK" => operations::check(&conf, &environment()?, input).map(|()| None),
        "GC" => operations::collect_garbage(&conf, input).map(|()| None),
        "STATUS" => operations::status(&conf, input).map(|()| None),
        other => Err(Fault::new(
            Code::Environment,
            format!("CNI_COMMAND={other}: known are ADD, DEL, CHECK, GC, STATUS and VERSION"),
        )),
    }
}

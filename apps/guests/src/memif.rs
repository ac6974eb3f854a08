// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap memif`: an interface of DPDK, VPP or another packet processor as a port of a switch.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::{check_path, listen_error, port_name, server_log};
use clap::{Args, Subcommand};
use tool_common::host::process;
use tool_common::host::socket::SocketFile;
use tool_common::stop_on_signals;
use unetmap::serves::{ServesRequest, Service};
use unetmap_vhost::memif::{self, BUFFER_BYTES, MAX_LOG2_RING, MAX_NAME, MAX_SECRET};
use unetmap_vhost::{Config, MAX_QUEUE_PAIRS, Protocol, Socket, serve};

/// The socket's permissions: its owner's programs may connect, and root's.
const SOCKET_MODE: u32 = 0o600;
/// Slots of a client's rings, as a power of two, and bytes of its buffers; as of DPDK.
const DEFAULT_LOG2_RING: u8 = 10;
const DEFAULT_BUFFER: u32 = 2048;

/// Serve an interface of memif as a port of a switch.
#[derive(Debug, Args)]
pub struct MemifArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Serve the port until a signal comes; `unetmap vale port S:P --memif PATH` does so in the background
    Serve {
        /// The port: valeS:P
        #[arg(value_name = "S:P", value_parser = port_name)]
        port: String,

        /// The socket, the role and what is agreed with the peer (unetmap-memif(7))
        #[arg(long, value_name = "PATH[,OPTION]...", value_parser = Spec::parse)]
        memif: Spec,

        /// Log to this file, which begins anew at 1 MiB (the former is FILE.1), and is opened again on SIGHUP
        #[arg(long, value_name = "FILE")]
        log: Option<PathBuf>,
    },
}

/// Most users that are named.
const MAX_USERS: usize = 16;
/// The machine's accounts.
const ACCOUNTS: &str = "/etc/passwd";

/// `PATH[,role=server|client][,id=N][,secret=TEXT][,peer=USER]...[,queues=N][,ring=SLOTS][,buffer=BYTES]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spec {
    path: String,
    queues: u16,
    config: memif::Config,
}

impl Spec {
    pub(crate) fn parse(text: &str) -> Result<Spec, String> {
        let mut parts = text.split(',');
        let path = parts.next().unwrap_or_default();
        if !path.starts_with(['/', '@']) || path.len() < 2 {
            return Err("give a path that begins with /, or @ and an abstract name, without commas".into());
        }
        let config = memif::Config {
            is_client: false,
            id: 0,
            secret: String::new(),
            log2_ring: DEFAULT_LOG2_RING,
            buffer_bytes: DEFAULT_BUFFER,
            name: String::new(),
            users: Vec::new(),
        };
        check_path(path)?;
        let mut spec = Spec { path: path.into(), queues: 1, config };
        for part in parts {
            let (key, value) = part.split_once('=').ok_or_else(|| format!("`{part}`: give KEY=VALUE"))?;
            spec.set(key, value)?;
        }
        let memory = (spec.config.log2_ring, spec.config.buffer_bytes);
        if !spec.config.is_client && memory != (DEFAULT_LOG2_RING, DEFAULT_BUFFER) {
            return Err("ring= and buffer= are the client's: give role=client".into());
        }
        spec.config.check(spec.queues)?;
        Ok(spec)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let config = &mut self.config;
        match key {
            "role" => {
                config.is_client = match value {
                    "server" | "master" => false,
                    "client" | "slave" => true,
                    _ => return Err("give role=server or role=client".into()),
                };
            }
            "id" => config.id = value.parse().map_err(|_| "give id= and a number from 0 to 4294967295")?,
            "secret" if (1..=MAX_SECRET).contains(&value.len()) => config.secret = value.into(),
            "secret" => return Err(format!("give secret= and 1 to {MAX_SECRET} bytes, without commas")),
            "peer" => {
                let uid = user_id(value)?;
                if !config.users.contains(&uid) {
                    config.users.push(uid);
                }
                if config.users.len() > MAX_USERS {
                    return Err(format!("give peer= at most {MAX_USERS} times"));
                }
            }
            "queues" => {
                let queues = value.parse().ok().filter(|n| (1..=MAX_QUEUE_PAIRS).contains(n));
                self.queues = queues.ok_or_else(|| format!("give 1 to {MAX_QUEUE_PAIRS} queues"))?;
            }
            "ring" => {
                let slots = value.parse::<u16>().ok().filter(|n| n.is_power_of_two() && *n <= 1 << MAX_LOG2_RING);
                let slots =
                    slots.ok_or_else(|| format!("give ring= and a power of two up to {}", 1 << MAX_LOG2_RING))?;
                config.log2_ring = slots.ilog2() as u8;
            }
            "buffer" => {
                let bytes = unetmap_quantity::bytes(value)
                    .ok()
                    .and_then(|n| u32::try_from(n).ok())
                    .filter(|n| BUFFER_BYTES.contains(n));
                let range = (BUFFER_BYTES.start(), BUFFER_BYTES.end());
                config.buffer_bytes =
                    bytes.ok_or_else(|| format!("give buffer= and {} to {} bytes", range.0, range.1))?;
            }
            _ => return Err(format!("`{key}` is none of role, id, secret, peer, queues, ring, buffer")),
        }
        Ok(())
    }
}

/// In its normal form: what differs from the defaults, in order.
impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let config = &self.config;
        f.write_str(&self.path)?;
        if config.is_client {
            f.write_str(",role=client")?;
        }
        if config.id != 0 {
            write!(f, ",id={}", config.id)?;
        }
        if !config.secret.is_empty() {
            write!(f, ",secret={}", config.secret)?;
        }
        for uid in &config.users {
            write!(f, ",peer={uid}")?;
        }
        if self.queues != 1 {
            write!(f, ",queues={}", self.queues)?;
        }
        if config.log2_ring != DEFAULT_LOG2_RING {
            write!(f, ",ring={}", 1u32 << config.log2_ring)?;
        }
        if config.buffer_bytes != DEFAULT_BUFFER {
            write!(f, ",buffer={}", config.buffer_bytes)?;
        }
        Ok(())
    }
}

/// Returns the number of a user, given by it or by name.
fn user_id(text: &str) -> Result<u32, String> {
    if let Ok(uid) = text.parse() {
        return Ok(uid);
    }
    // Path: root's.
    let accounts = fs::read_to_string(ACCOUNTS).map_err(|e| format!("{ACCOUNTS}: {e}"))?;
    let mut fields = accounts.lines().map(|line| line.split(':'));
    let account = fields.find_map(|mut fields| (fields.next() == Some(text)).then(|| fields.nth(1)));
    let uid = account.flatten().and_then(|uid| uid.parse().ok());
    uid.ok_or_else(|| format!("peer={text}: {ACCOUNTS} has no such user: give a name from there, or a number"))
}

/// Performs `unetmap memif`: serves the port until a signal comes.
///
/// # Errors
/// A sentence that begins with `memif:`.
pub fn run(args: &MemifArgs) -> Result<(), String> {
    let Action::Serve { port, memif, log } = &args.action;
    serve_port(port, memif, log.as_deref()).map_err(|why| format!("memif: {why}"))
}

fn serve_port(port: &str, spec: &Spec, log: Option<&Path>) -> Result<(), String> {
    process::set_program_name(c"unetmap-memif");
    let log = server_log("memif", log)?;
    let stop = stop_on_signals()?;
    let path = Path::new(&spec.path);
    let (socket, file) = match spec.config.is_client {
        true => (Socket::Connect(path.into()), None),
        false => {
            let (listener, file) = memif::listen(path, SOCKET_MODE).map_err(|e| listen_error(&spec.path, &e))?;
            (Socket::Listen(listener.into()), file)
        }
    };
    let name = port.bytes().take(MAX_NAME - 1).map(char::from).collect();
    let protocol = Protocol::Memif(memif::Config { name, ..spec.config.clone() });
    let serves = ServesRequest { service: Service::Memif, socket: spec.to_string() };
    let config = Config { port: port.into(), socket, queue_pairs: spec.queues, protocol, serves };
    let served = serve(&config, stop, &log);
    file.iter().for_each(SocketFile::remove);
    served
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs_are_parsed_into_their_normal_form_or_refused() {
        for (text, normal) in [
            ("/run/a", "/run/a"),
            ("@a", "@a"),
            ("/run/a,role=master,id=0,queues=1", "/run/a"),
            (
                "/a,buffer=4096,ring=512,queues=2,secret=x y,id=7,role=slave",
                "/a,role=client,id=7,secret=x y,queues=2,ring=512,buffer=4096",
            ),
            ("/a,peer=root,peer=7,queues=2,peer=0", "/a,peer=0,peer=7,queues=2"),
        ] {
            let spec = Spec::parse(text).unwrap();
            assert_eq!(spec.to_string(), normal);
            assert_eq!(Spec::parse(normal).unwrap(), spec);
        }
        for wrong in [
            "",
            "@",
            "a",
            "/a,",
            "/a,x=1",
            "/a,role=x",
            "/a,id=-1",
            "/a,secret=",
            "/a,queues=0",
            "/a,queues=17",
            "/a,secret=0123456789012345678901234",
            "/a,role=client,ring=3",
            "/a,role=client,ring=32768",
            "/a,role=client,buffer=1",
            "/a,ring=512",
            "/a,role=client,queues=16,ring=16384,buffer=65536",
            "/a,peer=",
            "/a,peer=-1",
            "/a,peer=no such user",
        ] {
            assert!(Spec::parse(wrong).is_err(), "{wrong}");
        }
    }
}

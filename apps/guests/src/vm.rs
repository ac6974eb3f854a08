// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap vm`: a virtual machine's network card as a port of a switch (vhost-user), and a pipe's end in a guest.

mod device;

use std::fmt;
use std::path::{Path, PathBuf};

use crate::{check_path, listen_error, port_name, server_log};
use clap::{Args, Subcommand, ValueEnum};
use tool_common::host::process;
use tool_common::host::socket::{SocketFile, listen_for_streams};
use tool_common::{Failure, stop_on_signals};
use unetmap::serves::{ServesRequest, Service};
use unetmap_vhost::{Config, MAX_QUEUE_PAIRS, Protocol, Socket, serve};

/// The socket's permissions: its owner's hypervisors may connect, and root's.
const SOCKET_MODE: u32 = 0o600;

/// Serve a virtual machine's network card as a port, or print the arguments of a hypervisor for it.
#[derive(Debug, Args)]
pub struct VmArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Serve the port until a signal comes; `unetmap vale port S:P --vhost-user PATH` does so in the background
    Serve {
        /// The port: valeS:P
        #[arg(value_name = "S:P", value_parser = port_name)]
        port: String,

        #[command(flatten)]
        socket: SocketArgs,

        /// Log to this file, which begins anew at 1 MiB (the former is FILE.1), and is opened again on SIGHUP
        #[arg(long, value_name = "FILE")]
        log: Option<PathBuf>,
    },
    /// Give the memory of a pipe's end to a guest, whose programs open it without a daemon (pass-through)
    Device {
        /// The end of a pipe: netmap:p{1, whose other end netmap:p}1 is opened on this machine
        #[arg(value_name = "PORT", value_parser = port_name)]
        port: String,

        /// Listen on a UNIX socket at this path; the hypervisor connects (QEMU's ivshmem)
        #[arg(long, value_name = "PATH", value_parser = absolute)]
        socket: String,
    },
    /// Print the arguments with which a hypervisor uses the socket
    Args {
        /// The program that runs the virtual machine
        hypervisor: Hypervisor,

        #[command(flatten)]
        socket: ArgsSocket,

        /// The guest's memory
        #[arg(long, value_name = "MIB", default_value = "1024", value_parser = memory, allow_hyphen_values = true,
            conflicts_with = "device")]
        memory: u64,

        /// The card's address
        #[arg(long, value_name = "MAC", default_value = "52:54:00:12:34:56", value_parser = mac,
            conflicts_with = "device")]
        mac: String,
    },
}

/// Parses the memory of a guest: whole MiB.
fn memory(text: &str) -> Result<u64, String> {
    let bytes = unetmap_quantity::mebibytes(text)?;
    let mib = bytes >> 20;
    if mib > 0 && bytes == mib << 20 { Ok(mib) } else { Err("give whole MiB, at least 1".into()) }
}

/// A socket of `unetmap vm serve`, or of `unetmap vm device`.
#[derive(Clone, Debug, Args)]
#[group(required = true, multiple = false)]
struct ArgsSocket {
    /// Listen on a UNIX socket at this path; the hypervisor connects
    #[arg(long, value_name = "PATH[,queues=N]", value_parser = SocketPath::parse)]
    socket: Option<SocketPath>,

    /// Connect to the hypervisor's UNIX socket at this path, again and again
    #[arg(long, value_name = "PATH[,queues=N]", value_parser = SocketPath::parse)]
    client: Option<SocketPath>,

    /// The socket of unetmap vm device at this path (QEMU only)
    #[arg(long, value_name = "PATH", value_parser = absolute)]
    device: Option<String>,
}

/// Which side listens, and where.
#[derive(Clone, Debug, Args)]
#[group(required = true, multiple = false)]
struct SocketArgs {
    /// Listen on a UNIX socket at this path; the hypervisor connects
    #[arg(long, value_name = "PATH[,queues=N]", value_parser = SocketPath::parse)]
    socket: Option<SocketPath>,

    /// Connect to the hypervisor's UNIX socket at this path, again and again
    #[arg(long, value_name = "PATH[,queues=N]", value_parser = SocketPath::parse)]
    client: Option<SocketPath>,
}

impl SocketArgs {
    fn path(&self) -> Option<(&SocketPath, bool)> {
        let server = self.socket.as_ref().map(|path| (path, false));
        server.or_else(|| Some((self.client.as_ref()?, true)))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Hypervisor {
    Qemu,
    #[value(name = "cloud-hypervisor")]
    Cloud,
    Crosvm,
}

/// A socket's path, and the pairs of queues that a guest can have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SocketPath {
    path: String,
    queues: u16,
}

impl SocketPath {
    /// Parses `PATH[,queues=N]`.
    pub(crate) fn parse(text: &str) -> Result<SocketPath, String> {
        let (path, option) = text.split_once(',').unwrap_or((text, "queues=1"));
        let queues = option.strip_prefix("queues=").ok_or_else(|| {
            format!("`{option}` is not queues=N, the only option: give a path that begins with /, without commas")
        })?;
        let queues = queues.parse().ok().filter(|n| (1..=MAX_QUEUE_PAIRS).contains(n));
        let queues = queues.ok_or_else(|| format!("give 1 to {MAX_QUEUE_PAIRS} queues"))?;
        if !path.starts_with('/') {
            return Err("give a path that begins with /, without commas".into());
        }
        check_path(path)?;
        Ok(SocketPath { path: path.into(), queues })
    }
}

impl fmt::Display for SocketPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.queues {
            1 => f.write_str(&self.path),
            queues => write!(f, "{},queues={queues}", self.path),
        }
    }
}

fn absolute(text: &str) -> Result<String, String> {
    SocketPath::parse(text).map(|_| text.into())
}

fn mac(text: &str) -> Result<String, String> {
    let bytes: Vec<_> =
        text.split(':').map(|byte| u8::from_str_radix(byte, 16).ok().filter(|_| byte.len() == 2)).collect();
    match (bytes.len(), bytes.first()) {
        (6, Some(Some(first)))
            if bytes.iter().all(Option::is_some) && first & 1 == 0 && bytes.iter().any(|b| *b != Some(0)) =>
        {
            Ok(text.into())
        }
        _ => Err("give six bytes as in 52:54:00:12:34:56, the first of them even, not all 0".into()),
    }
}

/// Performs `unetmap vm`; returns what it prints.
///
/// # Errors
/// A sentence that begins with `vm:`.
pub fn run(args: &VmArgs) -> Result<String, Failure> {
    Ok(match &args.action {
        Action::Serve { port, socket, log } => {
            serve_port(port, socket, log.as_deref()).map(|()| String::new()).map_err(|why| format!("vm: {why}"))
        }
        Action::Device { port, socket } => {
            device::serve(port, Path::new(socket)).map(|()| String::new()).map_err(|why| format!("vm: {why}"))
        }
        Action::Args { hypervisor, socket, memory, mac } => {
            let ArgsSocket { socket, client, device } = socket.clone();
            let paths = [socket.as_ref(), client.as_ref()].into_iter().flatten().map(|socket| &socket.path);
            if paths.chain(&device).any(|path| path.contains(char::is_whitespace)) {
                let why = "vm: the path has blanks, at which a shell would divide the argument: give another";
                return Err(Failure::Usage(why.into()));
            }
            let text = match device {
                Some(path) => device::arguments(*hypervisor, &path)?,
                None => arguments(*hypervisor, &SocketArgs { socket, client }, *memory, mac).map_err(Failure::Usage)?,
            };
            Ok(text)
        }
    }?)
}

fn serve_port(port: &str, socket: &SocketArgs, log: Option<&Path>) -> Result<(), String> {
    process::set_program_name(c"unetmap-vm");
    let log = server_log("vm", log)?;
    let (at, is_client) = socket.path().ok_or("give --socket or --client")?;
    let stop = stop_on_signals()?;
    let path = Path::new(&at.path);
    let (socket, file) = match is_client {
        true => (Socket::Connect(path.into()), None),
        false => {
            let (listener, file) = listen_for_streams(path, SOCKET_MODE).map_err(|e| listen_error(&at.path, &e))?;
            (Socket::Listen(listener), Some(file))
        }
    };
    let service = if is_client { Service::VhostUserClient } else { Service::VhostUser };
    let serves = ServesRequest { service, socket: at.to_string() };
    let config = Config { port: port.into(), socket, queue_pairs: at.queues, protocol: Protocol::VhostUser, serves };
    let served = serve(&config, stop, &log);
    file.iter().for_each(SocketFile::remove);
    served
}

/// The hypervisor's arguments, a group on each line.
fn arguments(hypervisor: Hypervisor, socket: &SocketArgs, memory: u64, mac: &str) -> Result<String, String> {
    let (SocketPath { path, queues }, is_client) = socket.path().ok_or("give --socket or --client")?;
    let rings = 2 * queues;
    Ok(match hypervisor {
        Hypervisor::Qemu => {
            let side = if is_client { "server=on,wait=off" } else { "reconnect=1" };
            let vectors = rings + 2;
            let queues = if *queues > 1 { format!(",mq=on,vectors={vectors}") } else { String::new() };
            let pairs = rings / 2;
            format!(
                "-m {memory} -object memory-backend-memfd,id=memory,size={memory}M,share=on -numa node,memdev=memory\n\
                 -chardev socket,id=unetmap,path={path},{side}\n\
                 -netdev vhost-user,id=net,chardev=unetmap,queues={pairs}\n\
                 -device virtio-net-pci,netdev=net,mac={mac}{queues}\n"
            )
        }
        Hypervisor::Cloud => {
            let side = if is_client { "server" } else { "client" };
            format!(
                "--memory size={memory}M,shared=on\n\
                 --net mac={mac},vhost_user=true,socket={path},vhost_mode={side},num_queues={rings}\n"
            )
        }
        Hypervisor::Crosvm if is_client => return Err("vm: crosvm only connects: give --socket".into()),
        Hypervisor::Crosvm => format!("--mem {memory}\n--vhost-user net,socket={path}\n"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MAX_PATH;

    #[test]
    fn sockets_are_parsed_or_refused() {
        let parsed = |text: &str| SocketPath::parse(text).map(|socket| (socket.path.clone(), socket.queues));
        assert_eq!(parsed("/run/vm1.sock"), Ok(("/run/vm1.sock".into(), 1)));
        assert_eq!(parsed("/run/vm1.sock,queues=4"), Ok(("/run/vm1.sock".into(), 4)));
        for text in ["/run/vm1.sock", "/run/vm1.sock,queues=4"] {
            assert_eq!(SocketPath::parse(text).unwrap().to_string(), text);
        }
        let long = format!("/{}", "a".repeat(MAX_PATH));
        assert!(parsed(&long[..MAX_PATH]).is_ok());
        for wrong in [&*long, "vm1.sock", "", "/a,b", "/a,queue=2", "/a,queues=0", "/a,queues=17", "/a,queues=x"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
        assert!(mac("52:54:00:12:34:56").is_ok());
        for wrong in
            ["53:54:00:12:34:56", "52:54:00:12:34", "52:54:00:12:34:5x", "52:54:00:12:34:056", "00:00:00:00:00:00"]
        {
            assert!(mac(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn arguments_name_the_socket_and_shared_memory() {
        let path = SocketPath { path: "/run/a".into(), queues: 2 };
        let server = SocketArgs { socket: Some(path.clone()), client: None };
        let client = SocketArgs { socket: None, client: Some(path) };
        let of = |hypervisor, socket| arguments(hypervisor, socket, 512, "52:54:00:12:34:56");
        let qemu = of(Hypervisor::Qemu, &server).unwrap();
        for part in
            ["memory-backend-memfd,id=memory,size=512M,share=on", "path=/run/a,reconnect=1", "queues=2", "mq=on"]
        {
            assert!(qemu.contains(part), "{part}: {qemu}");
        }
        assert!(of(Hypervisor::Qemu, &client).unwrap().contains("path=/run/a,server=on,wait=off"));
        assert!(of(Hypervisor::Cloud, &server).unwrap().contains("shared=on"));
        assert!(of(Hypervisor::Cloud, &client).unwrap().contains("vhost_mode=server,num_queues=4"));
        assert!(of(Hypervisor::Crosvm, &server).is_ok() && of(Hypervisor::Crosvm, &client).is_err());
    }
}

// SPDX-License-Identifier: BSD-2-Clause
//! Queries the kernel and the daemon. Facts that cannot be queried are absent; the checks handle that.

use std::{fs, io};

use serde_json::Value;
use unetmap::abi::printable::word;
use unetmap_core::control::nic::{NicAction, NicRequest, send_request};
use unetmap_core::control::proofs;
use unetmap_sys::link::{self, Channels, DriverInfo, Link, OffloadKind, Offloads, veth};
use unetmap_sys::netns::Netns;
use unetmap_sys::probe::{self, QueueTrial};
use unetmap_sys::xdp::dispatcher;
use unetmap_sys::xsk::{Way, obstacle_known};
use unetmap_sys::{barrier, kernel, process, thread};

use super::machine::{self, BPF, Daemon, NET_ADMIN, NET_RAW, OpenPort, Privileges, SYS_ADMIN};
use super::nic::{self, Holder, Program};
use crate::ls;

/// Collects the facts about the machine.
pub(super) fn machine() -> machine::Facts {
    let snapshots = unetmap::snapshots().map_err(|e| e.to_string());
    let daemons = snapshots.map(|all| all.iter().map(|snapshot| daemon(snapshot)).collect::<Vec<_>>());
    machine::Facts {
        release: kernel::release(),
        barrier: barrier::register(),
        socket: probe::xdp_socket(),
        program: probe::xdp_program(),
        link: probe::xdp_link(),
        tried: vec![
            (&kernel::BUSY_POLL, NET_RAW | NET_ADMIN, probe::busy_poll()),
            (&kernel::HOST_RINGS, NET_ADMIN | BPF | SYS_ADMIN, probe::tcx_link()),
        ],
        uid: process::uid(),
        own: privileges("self"),
        in_user_namespace: in_user_namespace(daemons.as_deref().unwrap_or_default()),
        daemons,
    }
}

/// Whether the process that would open an interface has the privileges of a user namespace of its own only: this
/// process, or the system's daemon if that is seen to be in the same one.
fn in_user_namespace(daemons: &[Daemon]) -> bool {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/user")).ok();
    let system = daemons.iter().find(|daemon| daemon.uid == 0);
    let is_here = system.is_none_or(|daemon| namespace(&daemon.privileged_pid.to_string()) == namespace("self"));
    !process::is_in_initial_user_namespace() && is_here
}

/// Returns the interface of this name.
pub(super) fn link(name: &str) -> Result<Link, String> {
    let port = format!("netmap:{}", word(name));
    match link::by_name(name) {
        Ok(Some(link)) => Ok(link),
        Ok(None) => Err(format!(
            "{port}: no such interface (`unetmap doctor` lists the interfaces of this network namespace, `ip netns` \
             other namespaces)"
        )),
        Err(e) => Err(format!("{port}: cannot look up the interface: {e}")),
    }
}

/// Collects the facts about an interface. If `thorough`, opens a queue, and searches the open files of all processes
/// for the holder of its XDP program.
pub(super) fn nic(link: Link, machine: &machine::Facts, thorough: bool) -> nic::Facts {
    let system = machine.system_daemon();
    let port = system.and_then(|daemon| daemon.ports.iter().find(|port| port.interface == link.name)).cloned();
    let program = link.xdp.map(|attached| {
        let name = probe::program_name(attached.prog_id).ok().filter(|name| !name.is_empty());
        let holder = if thorough { holder(attached.prog_id) } else { None };
        let members = match &name {
            Some(name) if name == dispatcher::NAME => dispatcher::members(attached.prog_id),
            _ => Vec::new(),
        };
        let ours = match &holder {
            Some(holder) => system.is_some_and(|daemon| [daemon.pid, daemon.privileged_pid].contains(&holder.pid)),
            None if !members.is_empty() => port.is_some() && members.iter().any(|name| name.starts_with("unetmap_")),
            // Without permission to read the daemon's open files, its snapshot and the program's name decide.
            None => port.is_some() && name.as_ref().is_none_or(|name| name.starts_with("unetmap_")),
        };
        Program { mode: attached.mode, id: attached.prog_id, name, members, holder, ours }
    });
    let (driver, features) = (link::driver(&link.name).ok().flatten(), link::xdp_features(link.index).ok().flatten());
    let (way, found) = way(&link);
    let no_zero_copy = obstacle_known(&link.name, way, driver.as_ref(), features, is_proved).map(|why| why.to_string());
    let trial = match thorough {
        true => trial(&link, machine, no_zero_copy.is_none(), (program.is_some(), port.is_some())),
        false => Err("unetmap doctor IF tries it".into()),
    };
    nic::Facts {
        queues: link::channels(&link.name).unwrap_or(Channels { rx: 1, tx: 1 }),
        settings: link::channel_settings(&link.name).ok().flatten(),
        offloads: offloads(&link).ok(),
        stays_on: stays_on(&link),
        program,
        port,
        driver,
        features,
        way,
        found,
        no_bpf: machine.no_bpf(),
        no_zero_copy,
        trial,
        uid: machine.uid,
        link,
    }
}

/// Whether zero copy was proved with a driver on this machine, as far as this user may read that.
fn is_proved(driver: &DriverInfo) -> bool {
    proofs::has(&proofs::path(), driver, &kernel::release()).unwrap_or(false)
}

/// Returns the way that root chose for an interface, and the fault that was found in its frames, with the way for which
/// this is the reason, according to the daemon, if one runs and tells this user.
fn way(link: &Link) -> (Way, Option<(String, bool)>) {
    let request = NicRequest { interface: link.name.clone(), action: NicAction::Show };
    let reply = send_request(&request).ok().flatten().unwrap_or_default();
    let reply: Value = serde_json::from_str(&reply).unwrap_or_default();
    let found = reply["found"]["why"].as_str().map(|why| (why.to_owned(), reply["found"]["by_packets"] == true));
    (reply["way"].as_str().and_then(Way::parse).unwrap_or_default(), found)
}

/// Opens a queue as a port would, if nothing uses the interface; else the reason why not.
fn trial(
    link: &Link,
    machine: &machine::Facts,
    zero_copy: bool,
    (has_program, has_port): (bool, bool),
) -> Result<QueueTrial, String> {
    let reason = if has_port {
        Some("a port is open".into())
    } else if has_program {
        Some("an XDP program is attached".into())
    } else if !link.up {
        Some("the interface is down".into())
    } else if link.mac.is_none() {
        Some("it is no Ethernet interface".into())
    } else if let Some(what) = stays_on(link) {
        Some(format!("a port attaches no program to it, as {what} cannot be switched off"))
    } else if let Some(why) = machine.no_bpf() {
        Some(why)
    } else if !machine.own.has(NET_RAW | NET_ADMIN | BPF) {
        Some("this process lacks CAP_NET_RAW, CAP_NET_ADMIN or CAP_BPF".into())
    } else {
        link::usage(link.index).map_err(|e| e.to_string())?.map(|usage| usage.to_string())
    };
    match reason {
        Some(reason) => Err(reason),
        None => probe::try_queue(link.index, zero_copy).map_err(|e| e.to_string()),
    }
}

/// Returns which offloads concern an interface's frames.
pub(super) fn offloads(link: &Link) -> io::Result<nic::Offloads> {
    let on = |name: &str, kind| Ok::<_, io::Error>(link::changeable_offloads(name, kind)? != Offloads::default());
    let relays = !kernel::HOST_RINGS.is_newer_than_kernel();
    Ok(match link.kind.as_deref() {
        _ if relays && (link.receives_unfinished_frames() || stays_on(link).is_some()) => nic::Offloads::Relayed,
        None => nic::Offloads::Driver { removes_tags: on(&link.name, OffloadKind::ReceivedTags)? },
        Some("tun") if link.has_vnet_header => nic::Offloads::Tap,
        Some("tun" | "dummy") => nic::Offloads::Driver { removes_tags: false },
        Some("veth") => {
            let peer = veth::peer(link.index)?.ok_or(io::ErrorKind::NotFound)?;
            let incomplete = || match link::by_index(peer.index)? {
                Some(peer) => on(&peer.name, OffloadKind::Transmit),
                None => Err(io::ErrorKind::NotFound.into()),
            };
            let incomplete = if peer.is_here() {
                Some(incomplete()?)
            } else {
                let netns = Netns::find(|netns| peer.is_in(netns).unwrap_or(false));
                netns.and_then(|netns| netns.run(incomplete).ok()?.ok())
            };
            match incomplete {
                None if relays => nic::Offloads::Relayed,
                incomplete => nic::Offloads::Veth { incomplete },
            }
        }
        Some(kind) => nic::Offloads::Upper { kind: kind.to_owned() },
    })
}

/// The offloads of a device that cannot be switched off, and by which its frames arrive merged or without their tags.
pub(super) fn stays_on(link: &Link) -> Option<String> {
    let offloads = link::active_of(&link.name, OffloadKind::Received).ok().filter(|_| link.kind.is_none())?;
    let fixed = offloads.into_iter().filter(|offload| !offload.changeable && offload.name != "rx-checksum");
    let names: Vec<String> = fixed.map(|offload| offload.name).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

/// Reads a small file as text; empty if it cannot be read.
fn read(path: &str) -> String {
    // Path: below /proc.
    fs::read_to_string(path).unwrap_or_default()
}

/// Reads the privileges of a process from `/proc`.
pub(super) fn privileges(process: &str) -> Privileges {
    let netns = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).ok();
    Privileges {
        capabilities: effective(&read(&format!("/proc/{process}/status"))),
        locked: locked_limit(&read(&format!("/proc/{process}/limits"))),
        is_in_this_netns: netns(process).is_some_and(|other| netns("self") == Some(other)),
    }
}

/// Parses the effective capabilities in `/proc/PID/status`.
fn effective(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

/// Parses the soft limit of locked memory in `/proc/PID/limits`.
fn locked_limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        bytes => bytes.parse().ok(),
    }
}

/// Whether each of these processes has a thread that runs before all others, or `None` if one is not seen.
fn has_precedence(processes: &[u32]) -> Option<bool> {
    let mut all = true;
    for pid in processes {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
        let mut tids = tasks.filter_map(|task| task.file_name().to_str()?.parse().ok());
        all &= tids.any(|tid| thread::has_precedence(tid).unwrap_or(false));
    }
    Some(all)
}

/// Parses a daemon's snapshot; ignores values that are not as expected.
fn daemon(snapshot: &str) -> Daemon {
    let all: Value = serde_json::from_str(snapshot).unwrap_or_default();
    let number = |value: &Value| value.as_u64().and_then(|n| u32::try_from(n).ok());
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let sessions = list(&all["sessions"]);
    let ports = list(&all["ports"]).into_iter().filter(|port| port["kind"] == "nic" || port["kind"] == "mediated");
    let ports = ports.filter_map(|port| {
        let interface = text(&port["name"])?;
        let users = sessions.iter().filter(|session| session["port"] == port["name"]);
        Some(OpenPort {
            data_path: text(&port["manner"]),
            copied: text(&port["copied"]),
            users: users.filter_map(|session| number(&session["uid"])).collect(),
            interface,
        })
    });
    let pid = number(&all["daemon"]["pid"]).unwrap_or_default();
    let privileged_pid = number(&all["daemon"]["privileged_pid"]).unwrap_or(pid);
    Daemon {
        has_precedence: has_precedence(&[pid, privileged_pid]),
        pid,
        privileged_pid,
        uid: number(&all["daemon"]["uid"]).unwrap_or(u32::MAX),
        version: text(&all["daemon"]["version"]).unwrap_or_default(),
        privileges: privileges(&privileged_pid.to_string()),
        ports: ports.collect(),
        protection: ls::protection(&all["daemon"]),
    }
}

/// Finds the process that has the BPF link of an attached XDP program open, among those whose files this user may read.
fn holder(program: u32) -> Option<Holder> {
    let numbers = |folder: &str| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
    };
    for pid in numbers("/proc") {
        for fd in numbers(&format!("/proc/{pid}/fd")) {
            let target = fs::read_link(format!("/proc/{pid}/fd/{fd}")).unwrap_or_default();
            if !target.to_string_lossy().contains("bpf") {
                continue;
            }
            if let Some(link) = xdp_link(&read(&format!("/proc/{pid}/fdinfo/{fd}")), program) {
                return Some(Holder { pid, command: process::program_name(pid).unwrap_or_default(), link });
            }
        }
    }
    None
}

/// Parses a file of `/proc/PID/fdinfo`: the id of the BPF link, if it attaches `program` as XDP.
fn xdp_link(info: &str, program: u32) -> Option<u32> {
    let value = |key: &str| info.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim);
    let number = |key: &str| value(key).and_then(|value| value.parse::<u32>().ok());
    (value("link_type") == Some("xdp") && number("prog_id") == Some(program)).then(|| number("link_id"))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_parsed() {
        assert_eq!(effective("Name:\tx\nCapPrm:\t0\nCapEff:\t000001fffedfffff\nCapBnd:\t1\n"), Some(0x1ff_fedf_ffff));
        assert_eq!((effective(""), effective("CapEff:\tx\n")), (None, None));
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax locked memory         8388608   unlimited   bytes\n";
        assert_eq!(locked_limit(limits), Some(8 << 20));
        assert_eq!(locked_limit(&limits.replace("8388608", "unlimited")), Some(u64::MAX));
        assert_eq!(locked_limit("Max open files  1 1 files\n"), None);
        let own = privileges("self");
        assert!(own.capabilities.is_some() && own.locked.is_some() && own.is_in_this_netns);
        assert_eq!(privileges("0"), Privileges::default());
    }

    #[test]
    fn snapshots_are_parsed() {
        let daemon = daemon(
            r#"{"daemon": {"pid": 0, "uid": 7, "version": "1.2"},
            "ports": [{"name": "va", "kind": "nic", "manner": "native, copy", "copied": "why"}, {"name": "p{1", "kind": "pipe"},
                {"name": "vb", "kind": "mediated"}],
            "sessions": [{"port": "va", "uid": 3}, {"port": "p{1", "uid": 4}, {"port": "va", "uid": 0}]}"#,
        );
        assert_eq!((daemon.pid, daemon.uid, daemon.version.as_str()), (0, 7, "1.2"));
        let port = |name: &str, data_path: Option<&str>, users: &[u32]| OpenPort {
            interface: name.into(),
            data_path: data_path.map(Into::into),
            copied: data_path.map(|_| "why".into()),
            users: users.into(),
        };
        assert_eq!(daemon.ports, [port("va", Some("native, copy"), &[3, 0]), port("vb", None, &[])]);
        let malformed = super::daemon("{");
        assert_eq!((malformed.uid, malformed.ports.len()), (u32::MAX, 0), "it does not count as root's daemon");
    }

    #[test]
    fn fdinfo_of_an_xdp_link_is_parsed() {
        let info =
            "pos:\t0\nflags:\t02000002\nlink_type:\txdp\nlink_id:\t5\nprog_tag:\t0af\nprog_id:\t12\nifindex:\t3\n";
        assert_eq!(xdp_link(info, 12), Some(5));
        assert_eq!(xdp_link(info, 1), None);
        assert_eq!(xdp_link(&info.replace("\txdp", "\ttcx"), 12), None);
        assert_eq!(xdp_link("pos:\t0\n", 12), None);
    }
}

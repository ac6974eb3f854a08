//! Asks the kernel and the daemon. What nobody answers is left out; the judges make something of that.

use std::fs;

use serde_json::Value;
use unetmap_sys::link::{self, Channels, Link};
use unetmap_sys::{barrier, probe, process};

use super::machine::{self, Daemon, OpenPort, Powers};
use super::nic::{self, Holder, Program};

/// Asks about the machine.
pub(super) fn machine() -> machine::Facts {
    let daemons = unetmap::client::snapshots().map_err(|e| e.to_string());
    machine::Facts {
        release: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        barrier: barrier::register(),
        socket: probe::xdp_socket(),
        program: probe::xdp_program(),
        link: probe::xdp_link(),
        uid: process::uid(),
        own: powers("self"),
        daemons: daemons.map(|answers| answers.iter().map(|answer| daemon(answer)).collect()),
    }
}

/// The interface of this name.
pub(super) fn link(name: &str) -> Result<Link, String> {
    let asked = format!("netmap:{}", super::shown(name));
    match link::by_name(name) {
        Ok(Some(link)) => Ok(link),
        Ok(None) => Err(format!(
            "{asked}: no such interface (unetmap doctor lists those of this network namespace, ip netns others)"
        )),
        Err(e) => Err(format!("{asked}: looking for the interface: {e}")),
    }
}

/// Asks about an interface. Who holds its XDP program is looked for if `deep`: in the files of all processes.
pub(super) fn nic(link: Link, machine: &machine::Facts, deep: bool) -> nic::Facts {
    let system = machine.system();
    let port = system.and_then(|daemon| daemon.ports.iter().find(|port| port.interface == link.name)).cloned();
    let program = link.xdp.map(|attached| {
        let name = probe::program_name(attached.prog_id).ok().filter(|name| !name.is_empty());
        let holder = if deep { holder(attached.prog_id) } else { None };
        let ours = match &holder {
            Some(holder) => system.is_some_and(|daemon| daemon.pid == holder.pid),
            // Who may not look at the daemon's files goes by what it says.
            None => port.is_some() && name.as_ref().is_none_or(|name| name.starts_with("unetmap_")),
        };
        Program { mode: attached.mode, id: attached.prog_id, name, holder, ours }
    });
    nic::Facts {
        driver: link::driver(&link.name).ok().flatten(),
        queues: link::channels(&link.name).unwrap_or(Channels { rx: 1, tx: 1 }),
        settings: link::channel_settings(&link.name).ok().flatten(),
        features: link::xdp_features(link.index).ok().flatten(),
        program,
        port,
        uid: machine.uid,
        link,
    }
}

/// A small file as text; empty if it cannot be read.
fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// What a process may do, by its entry in `/proc`.
fn powers(process: &str) -> Powers {
    Powers {
        capabilities: effective(&read(&format!("/proc/{process}/status"))),
        locked: locked_limit(&read(&format!("/proc/{process}/limits"))),
    }
}

/// The effective capabilities in `/proc/PID/status`.
fn effective(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

/// The soft limit of locked memory in `/proc/PID/limits`.
fn locked_limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        bytes => bytes.parse().ok(),
    }
}

/// Reads what a daemon says of itself; leaves out what makes no sense.
fn daemon(answer: &str) -> Daemon {
    let all: Value = serde_json::from_str(answer).unwrap_or_default();
    let number = |value: &Value| value.as_u64().and_then(|n| u32::try_from(n).ok());
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let sessions = list(&all["sessions"]);
    let ports = list(&all["ports"]).into_iter().filter(|port| port["kind"] == "nic" || port["kind"] == "mediated");
    let ports = ports.filter_map(|port| {
        let interface = text(&port["name"])?;
        let users = sessions.iter().filter(|session| session["port"] == port["name"]);
        Some(OpenPort {
            manner: text(&port["manner"]),
            users: users.filter_map(|session| number(&session["uid"])).collect(),
            interface,
        })
    });
    let pid = number(&all["daemon"]["pid"]).unwrap_or_default();
    Daemon {
        pid,
        uid: number(&all["daemon"]["uid"]).unwrap_or(u32::MAX),
        version: text(&all["daemon"]["version"]).unwrap_or_default(),
        powers: powers(&pid.to_string()),
        ports: ports.collect(),
    }
}

/// The process that has the BPF link open by which an XDP program is attached, among those that we may look at.
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
                return Some(Holder { pid, command: read(&format!("/proc/{pid}/comm")).trim().to_owned(), link });
            }
        }
    }
    None
}

/// The number of the BPF link that a file of `/proc/PID/fdinfo` is about, if it attaches `program` as XDP.
fn xdp_link(info: &str, program: u32) -> Option<u32> {
    let value = |key: &str| info.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim);
    let number = |key: &str| value(key).and_then(|value| value.parse::<u32>().ok());
    (value("link_type") == Some("xdp") && number("prog_id") == Some(program)).then(|| number("link_id"))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_proc() {
        assert_eq!(effective("Name:\tx\nCapPrm:\t0\nCapEff:\t000001fffedfffff\nCapBnd:\t1\n"), Some(0x1ff_fedf_ffff));
        assert_eq!((effective(""), effective("CapEff:\tx\n")), (None, None));
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax locked memory         8388608   unlimited   bytes\n";
        assert_eq!(locked_limit(limits), Some(8 << 20));
        assert_eq!(locked_limit(&limits.replace("8388608", "unlimited")), Some(u64::MAX));
        assert_eq!(locked_limit("Max open files  1 1 files\n"), None);
        let own = powers("self");
        assert!(own.capabilities.is_some() && own.locked.is_some());
        assert_eq!(powers("0"), Powers::default());
    }

    #[test]
    fn what_a_daemon_says() {
        let daemon = daemon(
            r#"{"daemon": {"pid": 0, "uid": 7, "version": "1.2"},
            "ports": [{"name": "va", "kind": "nic", "manner": "native, copy"}, {"name": "p{1", "kind": "pipe"},
                {"name": "vb", "kind": "mediated"}],
            "sessions": [{"port": "va", "uid": 3}, {"port": "p{1", "uid": 4}, {"port": "va", "uid": 0}]}"#,
        );
        assert_eq!((daemon.pid, daemon.uid, daemon.version.as_str()), (0, 7, "1.2"));
        let port = |name: &str, manner: Option<&str>, users: &[u32]| OpenPort {
            interface: name.into(),
            manner: manner.map(Into::into),
            users: users.into(),
        };
        assert_eq!(daemon.ports, [port("va", Some("native, copy"), &[3, 0]), port("vb", None, &[])]);
        let odd = super::daemon("{");
        assert_eq!((odd.uid, odd.ports.len()), (u32::MAX, 0), "it is not taken for root's");
    }

    #[test]
    fn links_of_processes() {
        let info =
            "pos:\t0\nflags:\t02000002\nlink_type:\txdp\nlink_id:\t5\nprog_tag:\t0af\nprog_id:\t12\nifindex:\t3\n";
        assert_eq!(xdp_link(info, 12), Some(5));
        assert_eq!(xdp_link(info, 1), None);
        assert_eq!(xdp_link(&info.replace("\txdp", "\ttcx"), 12), None);
        assert_eq!(xdp_link("pos:\t0\n", 12), None);
    }
}

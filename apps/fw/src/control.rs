// SPDX-License-Identifier: BSD-2-Clause
//! Serves `unetmap fw`: each connection is one request.
//!
//! ```text
//! request = ("text" | "json" | "load") "\n" commands, to the end of the stream
//!         | "events\n" the number of the last event that was seen
//!         | "states\n" ("text" | "json")
//! reply   = ("ok" | "error") "\n" text, to the end of the stream
//! ```

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;
use serde_json::{Value, json};
use tool_common::host::socket::{SocketFile, listen_for_streams};
use tool_common::note;
use unetmap_filter::{Config, ProxyCounts, SharedTables};

use crate::events::Events;
use crate::shared::{Shared, Totals};

/// Longest request: rules and tables of some million lines.
const MAX_REQUEST: u64 = 1 << 30;
/// Longest pause within a request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Time between two looks at the flag that SIGHUP sets.
const HANGUP_PERIOD: Duration = Duration::from_millis(100);
/// As many of them pass between two looks at the addresses of interfaces.
const ADDRESS_PERIODS: u32 = 10;
/// Only the user whose program this is, and root, can change rules.
const MODE: u32 = 0o600;

/// Listens at `path`. A socket that nobody listens at is replaced.
///
/// # Errors
/// A sentence.
pub(crate) fn listen(path: &Path) -> Result<(UnixListener, SocketFile), String> {
    listen_for_streams(path, MODE).map_err(|e| match e.kind() {
        io::ErrorKind::AddrInUse => {
            format!(
                "another unetmap-fw listens at {}; give this one a socket of its own (--control PATH)",
                path.display()
            )
        }
        _ => format!("the socket {}: {e}", path.display()),
    })
}

/// Serves requests, one after the other, until the process ends.
pub(crate) fn serve(listener: &UnixListener, shared: &Shared, config: &Mutex<Config>, events: &Events) {
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            // The process has too many open files, for now.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        // A client that has gone away gets no reply.
        let _ = answer(&stream, shared, config, events);
    }
}

fn answer(mut stream: &UnixStream, shared: &Shared, config: &Mutex<Config>, events: &Events) -> io::Result<()> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut request = Vec::new();
    stream.take(MAX_REQUEST).read_to_end(&mut request)?;
    let begin = request.iter().position(|&byte| byte == b'\n').map_or(request.len(), |end| end + 1);
    let (format, script) = request.split_at(begin);
    let (format, script) = (String::from_utf8_lossy(format), unetmap_filter::text(script));
    let format = format.trim_end();
    if format == "events" {
        let after = script.ok().and_then(|number| number.trim().parse().ok());
        let reply = match after.ok_or(()) {
            Ok(after) => format!("ok\n{}", events.after(after)),
            Err(_) => "error\nevents: give the number of the last event that was seen".into(),
        };
        return stream.write_all(reply.as_bytes());
    }
    if format == "states" {
        let reply = match shared.states() {
            Ok(states) => {
                let config = config.lock().unwrap_or_else(PoisonError::into_inner).clone();
                format!("ok\n{}", crate::states::list(states, &config, script == Ok("json")))
            }
            Err(e) => format!("error\n{e}"),
        };
        return stream.write_all(reply.as_bytes());
    }
    if !matches!(format, "text" | "json" | "load") {
        return stream.write_all(b"error\nthis version of unetmap-fw knows no such request");
    }
    let mut config = config.lock().unwrap_or_else(PoisonError::into_inner);
    let applied =
        script.and_then(|script| if format == "load" { config.replace(script) } else { config.apply(script) });
    let (status, text) = match applied {
        Ok((changed, output)) => {
            if config.is_changed_by(&changed) {
                shared.replace(changed.compile());
            }
            *config = changed;
            let text = match format {
                "json" => format!("{}\n", snapshot(shared, &config)),
                "load" => String::new(),
                _ => output,
            };
            ("ok", text)
        }
        Err(e) => ("error", e.to_string()),
    };
    drop(config);
    stream.write_all(format!("{status}\n{text}").as_bytes())
}

/// Follows the addresses of interfaces that NAT and `me` have, and reads the file of rules again when its flag is set,
/// until the process ends.
pub(crate) fn follow(shared: &Shared, config: &Mutex<Config>, reread: Option<&(PathBuf, Arc<AtomicBool>)>) {
    for i in 1u32.. {
        std::thread::sleep(HANGUP_PERIOD);
        if let Some((path, flag)) = reread
            && flag.swap(false, Relaxed)
        {
            let mut config = config.lock().unwrap_or_else(PoisonError::into_inner);
            match crate::read_rules(path, |script| config.replace(script)) {
                Ok(changed) => {
                    shared.replace(changed.compile());
                    *config = changed;
                    note(&format!("the rules {} were read again", path.display()));
                }
                Err(e) => note(&format!("{e}; the rules of before stay")),
            }
        }
        if i.is_multiple_of(ADDRESS_PERIODS) {
            let mut config = config.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(changed) = config.refresh() {
                shared.replace(changed.compile());
                *config = changed;
            }
        }
    }
}

/// Returns the first IPv4 address of an interface.
pub(crate) fn interface_address(name: &str) -> Option<Ipv4Addr> {
    let mut all = getifaddrs().ok()?.filter(|interface| interface.interface_name == name);
    all.find_map(|interface| Some(interface.address?.as_sockaddr_in()?.ip()))
}

/// Returns the addresses of all interfaces of the host.
pub(crate) fn host_addresses() -> Vec<IpAddr> {
    let of = |address: &SockaddrStorage| {
        let v4 = address.as_sockaddr_in().map(|address| address.ip().into());
        v4.or_else(|| Some(address.as_sockaddr_in6()?.ip().into()))
    };
    getifaddrs().into_iter().flatten().filter_map(|interface| of(&interface.address?)).collect()
}

/// The counts of a pipe's link.
fn link([packets, bytes, dropped, held]: [u64; 4]) -> Value {
    json!({"packets": packets, "bytes": bytes, "dropped": dropped, "held": held})
}

/// Returns the rules with their counters, and the counts of packets and states.
pub(crate) fn snapshot(shared: &Shared, config: &Config) -> Value {
    let rules: Vec<Value> = config
        .rules()
        .iter()
        .map(|rule| {
            let counts = rule.counters.get();
            json!({
                "number": rule.number, "set": rule.set, "enabled": config.is_enabled(rule.set), "rule": rule.text, "then": rule.outcome(),
                "packets": counts.packets, "bytes": counts.bytes, "last": counts.last,
            })
        })
        .collect();
    let pipes = config.pipe_counts().into_iter();
    let pipes: Vec<Value> =
        pipes.map(|(n, own, queues)| json!({"number": n, "own": link(own), "queues": queues.map(link)})).collect();
    let sum = |of: &dyn Fn(&Totals) -> u64| shared.totals.iter().map(of).sum::<u64>();
    let by_way =
        |of: &dyn Fn(&Totals) -> &[AtomicU64; 2]| [0, 1].map(|way| sum(&|totals| of(totals)[way].load(Relaxed)));
    let ([out_passed, in_passed], [out_dropped, in_dropped]) = (by_way(&|t| &t.passed), by_way(&|t| &t.dropped));
    let handshake =
        |of: fn(&ProxyCounts) -> u64| sum(&|totals| totals.handshakes.lock().map_or(0, |counts| of(&counts)));
    let own = || {
        let totals = &shared.totals[0];
        let states = totals.states.lock().map(|states| *states).unwrap_or_default();
        (states, totals.nat.lock().map(|nat| *nat).unwrap_or_default())
    };
    let (states, nat) = shared.tables.as_ref().map_or_else(own, SharedTables::counts);
    json!({
        "rules": rules,
        "pipes": pipes,
        "out": {"passed": out_passed, "dropped": out_dropped},
        "in": {"passed": in_passed, "dropped": in_dropped},
        "malformed": sum(&|totals| totals.malformed.load(Relaxed)),
        "replies": sum(&|totals| totals.replies.load(Relaxed)),
        "lost_replies": sum(&|totals| totals.lost_replies.load(Relaxed)),
        "copies": sum(&|totals| totals.copies.load(Relaxed)),
        "lost_copies": sum(&|totals| totals.lost_copies.load(Relaxed)),
        "lost_logs": sum(&|totals| totals.lost_logs.load(Relaxed)),
        "unsent_records": sum(&|totals| totals.unsent_records.load(Relaxed)),
        "states": {
            "now": states.states, "created": states.created, "dropped_half_open": states.dropped_half_open,
            "full": states.full, "limited": states.limited, "keepalives": states.keepalives,
        },
        "dyn_keepalive": config.has_keepalive(),
        "syn_proxy": {
            "cookies": handshake(|counts| counts.cookies), "accepted": handshake(|counts| counts.accepted), "opened": handshake(|counts| counts.opened),
            "refused": handshake(|counts| counts.refused), "invalid": handshake(|counts| counts.invalid),
        },
        "nat": {
            "now": nat.connections, "created": nat.created, "dropped_half_open": nat.dropped_half_open,
            "full": nat.full, "no_port": nat.no_port, "denied_in": nat.denied_in, "fragments": nat.fragments,
            "turned_back": nat.turned_back, "lost_events": nat.lost_events,
        },
    })
}

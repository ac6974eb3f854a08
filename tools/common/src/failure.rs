// SPDX-License-Identifier: BSD-2-Clause
//! The fate of frames of interfaces while no program takes them (`unetmap nic IF failure`), set by programs that stand
//! between two interfaces.

use std::collections::BTreeSet;

use unetmap::abi::{PortKind, PortSpec, Rings};
use unetmap::{Error, errno};
pub use unetmap_core::control::nic::OnFailure;
use unetmap_core::control::nic::{NicAction, NicRequest, send_request};

use crate::{Failure, note};

/// The name of the interface whose own rings the port `spec` has; `None`: it is another port.
pub fn interface_of(spec: &str) -> Option<String> {
    let parsed = PortSpec::parse_with(spec, |_| true).ok()?;
    let is_whole = parsed.kind == PortKind::Netmap && parsed.pipe.is_none() && parsed.rings == Rings::AllNic;
    is_whole.then_some(parsed.parent)
}

/// The name of the interface whose host rings the port `spec` has; `None`: it is another port.
pub fn host_rings_of(spec: &str) -> Option<String> {
    let parsed = PortSpec::parse_with(spec, |_| true).ok()?;
    let has_host_rings = matches!(parsed.rings, Rings::Sw | Rings::NicSw | Rings::OneSw(_));
    (parsed.kind == PortKind::Netmap && parsed.pipe.is_none() && has_host_rings).then_some(parsed.parent)
}

/// Has the kernel forward between two ports, which must be interfaces, while no program does. It stays so when the
/// program ends.
///
/// # Errors
/// [`Failure::Usage`] if a port is no interface; the daemon's refusal.
pub fn bypass(ports: [&str; 2]) -> Result<(), Failure> {
    let [a, b] = ports.map(|port| {
        let refused = || Failure::Usage(format!("--bypass: {port} is not an interface with all its rings (netmap:IF)"));
        interface_of(port).ok_or_else(refused)
    });
    let (a, b) = (a?, b?);
    set(&a, OnFailure::Bypass(b.clone()))?;
    set(&b, OnFailure::Bypass(a))
}

/// Sets what becomes of frames while a program between two ports does not take them, by its option `--on-failure`. At
/// host rings they are dropped, unless the user says otherwise. Returns the interfaces that stay closed so.
///
/// # Errors
/// As [`bypass`]; the daemon's refusal.
pub fn set_between(ports: [&str; 2], on_failure: Option<&str>) -> Result<BTreeSet<String>, Failure> {
    let fate = match on_failure {
        Some("bypass") => return bypass(ports).map(|()| BTreeSet::new()),
        Some("open") => OnFailure::Open,
        _ => OnFailure::Closed,
    };
    let hosts = ports.into_iter().filter_map(host_rings_of);
    let own = ports.into_iter().filter_map(interface_of).filter(|_| on_failure.is_some());
    let mut all: BTreeSet<_> = hosts.chain(own).collect();
    for interface in &all {
        send(interface, fate.clone()).map_err(|e| {
            let helps = on_failure.is_none() && is_remedied_by_open(e.errno(), &e.to_string());
            let remedy = if helps { " (or --on-failure open)" } else { "" };
            match refused(e) {
                Failure::Work(why) => Failure::Work(why + remedy),
                e => e,
            }
        })?;
    }
    all.retain(|_| fate == OnFailure::Closed);
    Ok(all)
}

/// Says at a program's end that interfaces stay closed.
pub fn note_closed(interfaces: &BTreeSet<String>) {
    for interface in interfaces {
        note(&format!(
            "{interface} stays closed, so that its host has no traffic, until a program takes its frames again or \
             `unetmap nic {interface} failure open`"
        ));
    }
}

/// Sets what becomes of the frames of an interface.
///
/// # Errors
/// The daemon's refusal.
pub fn set(interface: &str, failure: OnFailure) -> Result<(), Failure> {
    send(interface, failure).map_err(refused)
}

fn send(interface: &str, failure: OnFailure) -> Result<(), Error> {
    let request = NicRequest { interface: interface.to_owned(), action: NicAction::OnFailure(failure) };
    send_request(&request).map(drop)
}

fn refused(error: Error) -> Failure {
    Failure::from(error).within("failure")
}

/// Whether the interface may be opened although its setting was refused: not if there is none, the policy does not give
/// it to this user, or the daemon is a user's own.
fn is_remedied_by_open(number: i32, text: &str) -> bool {
    let is_of_user = number == errno::EPERM && text.contains("this is a user's own");
    !is_of_user && ![errno::ENXIO, errno::EACCES].contains(&number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_setting_is_named_only_where_it_helps() {
        for (number, text, helps) in [
            (errno::EPERM, "the daemon may not attach XDP programs", true),
            (errno::EPERM, "interfaces are opened by the system's daemon, and this is a user's own", false),
            (errno::EOPNOTSUPP, "the kernel is too old", true),
            (errno::ENXIO, "no such interface", false),
            (errno::EACCES, "user 1000 may not open it", false),
        ] {
            assert_eq!(is_remedied_by_open(number, text), helps, "{text}");
        }
    }
}

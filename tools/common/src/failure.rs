// SPDX-License-Identifier: BSD-2-Clause
//! The fate of frames of interfaces while no program takes them (`unetmap nic IF failure`), set by programs that stand
//! between two interfaces.

use std::collections::BTreeSet;

use unetmap::abi::{PortKind, PortSpec, Rings};
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
        set(interface, fate.clone()).map_err(|e| match e {
            Failure::Work(why) if on_failure.is_none() => Failure::Work(format!("{why} (or --on-failure open)")),
            e => e,
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
    let request = NicRequest { interface: interface.to_owned(), action: NicAction::OnFailure(failure) };
    send_request(&request).map(drop).map_err(|e| Failure::from(e).within("failure"))
}

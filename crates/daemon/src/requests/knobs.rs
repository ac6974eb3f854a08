// SPDX-License-Identifier: BSD-2-Clause
//! Knobs: reading and setting them (`unetmap get`, `unetmap set`), reading their file again (`unetmap reload`), and
//! showing them as the files of `/sys/module/netmap/parameters`.

use unetmap_core::control::KnobRequest;
use unetmap_core::errno::{EIO, EPERM};
use unetmap_sys::socket::Peer;

use crate::caller::Caller;
use crate::knobs::{KNOBS, find};
use crate::log;
use crate::owner::owner;
use crate::ports::Daemon;
use crate::privileged;
use crate::refusal::{Refusal, json, refuse};
use crate::reload;

/// Answers with a knob, or all, as JSON. Only root and the daemon's owner may set knobs.
pub(super) fn answer_request(daemon: &mut Daemon, request: KnobRequest, caller: &Caller) -> Result<String, Refusal> {
    let (Peer { uid, pid, .. }, owner) = (caller.peer, owner());
    match request {
        KnobRequest::Get(None) => {
            let all = KNOBS.iter().map(|knob| daemon.knobs.snapshot(knob, current_size(daemon, knob.name, caller)));
            json(&all.collect::<Vec<_>>())
        }
        KnobRequest::Get(Some(name)) => {
            let knob = find(&name)?;
            json(&daemon.knobs.snapshot(knob, current_size(daemon, knob.name, caller)))
        }
        KnobRequest::Set(..) | KnobRequest::Reload if uid != 0 && uid != owner => {
            refuse(EPERM, format!("only root and user {owner}, the daemon's owner, may set its knobs"))
        }
        KnobRequest::Reload => {
            let reloaded = json(&reload::reload(daemon)?);
            update_files(daemon, caller);
            reloaded
        }
        KnobRequest::Show => {
            let failed = |e: std::io::Error| Refusal::new(e.raw_os_error().unwrap_or(EIO), e.to_string());
            show_files(daemon, caller, true).map_err(failed).map(|()| String::new())
        }
        KnobRequest::Set(name, value) => {
            let knob = find(&name)?;
            let before = daemon.knobs.value(knob);
            daemon.settings_changed = true;
            daemon.knobs.set_checked(&name, value)?;
            tracing::info!(uid, pid, knob = name, before, now = value, "knob set");
            log::set_verbose(daemon.knobs.verbose());
            update_files(daemon, caller);
            json(&daemon.knobs.snapshot(knob, None))
        }
    }
}

/// Writes the values of all knobs into files; unless `makes` only if some program has looked for them.
fn show_files(daemon: &Daemon, caller: &Caller, makes: bool) -> std::io::Result<()> {
    let parameter = |knob: &crate::knobs::Knob| {
        let value = current_size(daemon, knob.name, caller).unwrap_or_else(|| daemon.knobs.value(knob));
        (knob.name.to_owned(), value, knob.can_be_set())
    };
    privileged::show_parameters(&daemon.socket, KNOBS.iter().map(parameter).collect(), makes)
}

/// Knobs have other values.
fn update_files(daemon: &Daemon, caller: &Caller) {
    if let Err(e) = show_files(daemon, caller, false) {
        tracing::warn!("the files of netmap's parameters have old values: {e}");
    }
}

/// Returns the value of a knob `*_curr_*`: of the caller's region of interfaces, 0 if it has none.
fn current_size(daemon: &Daemon, name: &str, caller: &Caller) -> Option<u64> {
    let (pool, what) = name.split_once("_curr_")?;
    let region = daemon.region_by_number(1, caller).ok();
    let record = region.and_then(|region| daemon.registry.regions.get(region));
    let Some(geometry) = record.map(|record| record.region.geometry()) else { return Some(0) };
    let pool = match pool {
        "if" => geometry.ifs,
        "ring" => geometry.rings,
        _ => geometry.bufs,
    };
    Some(u64::from(if what == "num" { pool.count } else { pool.size }))
}

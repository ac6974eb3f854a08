// SPDX-License-Identifier: BSD-2-Clause
//! Building a lab, and removing it.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tool_common::host::netns::Netns;
use tool_common::note;

use crate::model::Lab;
use crate::network::{self, Namespaces};
use crate::programs::{self, attach, captures, emulators};
use crate::state::{Folder, State};

/// Builds a lab, or starts again what has ended of one that was built. Returns whether there was something to do.
///
/// # Errors
/// A sentence; then nothing of a lab is left that was not there before.
pub(crate) fn up(lab: &Lab, folder: &Folder, stop: &AtomicBool) -> Result<bool, String> {
    match folder.read()? {
        Some(state) if state.complete && (&state.file, &state.text) == (&lab.file, &lab.text) => {
            let namespaces = network::open(lab, folder, &state)?;
            return run_programs(lab, folder, &namespaces, stop);
        }
        Some(state) if state.complete => {
            let which = if state.file == lab.file { "an earlier text of this file" } else { "another file" };
            return Err(format!("{} is up, by {which}: unetmap lab down {} first", lab.name, lab.name));
        }
        // The program that built it was killed.
        Some(state) => remove(folder, &state)?,
        None => {}
    }
    let mut state = State { file: lab.file.clone(), text: lab.text.clone(), ..State::default() };
    let built = build(lab, folder, &mut state, stop);
    let Err(why) = built else { return Ok(true) };
    match remove(folder, &state) {
        Ok(()) => Err(why),
        Err(also) => Err(format!("{why}; what was built could not be removed: {also}")),
    }
}

fn build(lab: &Lab, folder: &Folder, state: &mut State, stop: &AtomicBool) -> Result<(), String> {
    folder.write(state)?;
    let namespaces = network::make(lab, folder, state)?;
    go_on(stop)?;
    network::connect(lab, folder, &namespaces)?;
    go_on(stop)?;
    run_programs(lab, folder, &namespaces, stop)?;
    state.complete = true;
    folder.write(state)
}

fn go_on(stop: &AtomicBool) -> Result<(), String> {
    if stop.load(Relaxed) { Err("interrupted".into()) } else { Ok(()) }
}

/// Starts the programs that do not run. Returns whether there were any.
fn run_programs(lab: &Lab, folder: &Folder, namespaces: &Namespaces, stop: &AtomicBool) -> Result<bool, String> {
    let Some(wire) = &namespaces.wire else { return Ok(false) };
    attach(lab, folder, wire)?;
    let mut started = programs::start(lab, folder, wire, &emulators(lab), stop)?;
    started += programs::start(lab, folder, wire, &captures(lab), stop)?;
    Ok(started > 0)
}

/// Removes a lab. Returns whether it was there.
///
/// # Errors
/// A sentence; then what is left is written down, and the lab can be removed again.
pub(crate) fn down(folder: &Folder) -> Result<bool, String> {
    match folder.read()? {
        Some(state) => remove(folder, &state).map(|()| true),
        None => Ok(false),
    }
}

fn remove(folder: &Folder, state: &State) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("{}: {e}", folder.path().display());
    if let Some(wire) = Netns::kept_at(&folder.wire()).map_err(failed)? {
        programs::end(folder, &wire)?;
    }
    let stay = programs::inside(&state.namespaces);
    for (name, identity) in &state.namespaces {
        let removed = network::remove(name, identity).map_err(|e| format!("{name}: {e}"))?;
        for (_, process) in stay.iter().filter(|(of, _)| removed && of == name) {
            note(&format!("{name}: {process} is still in the namespace, which ends with it"));
        }
    }
    Netns::release_at(&folder.wire()).map_err(failed)?;
    folder.remove()
}

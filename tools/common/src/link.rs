// SPDX-License-Identifier: BSD-2-Clause
//! Links that are down: what programs say about the interfaces whose ports they have opened.

use std::sync::Mutex;

use serde_json::{Map, Value};
use unetmap::{Error, LinkDown, OpenOptions, Port, link_down};

use crate::note;

/// The ports of this process whose packets no switch moves.
static OPENED: Mutex<Vec<Opened>> = Mutex::new(Vec::new());

struct Opened {
    spec: String,
    /// Whether its link was said to be down.
    said: bool,
}

fn with_opened<T>(f: impl FnOnce(&mut Vec<Opened>) -> T) -> T {
    f(&mut OPENED.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
}

/// Opens a port, and says on standard error if its link is down.
///
/// # Errors
/// As of the library.
pub fn open(spec: &str, options: &OpenOptions) -> Result<Port, Error> {
    // The link of a network card may be reset by the open, and is back after a moment.
    let was_down = link_down(spec).is_some();
    let port = options.open(spec)?;
    if !port.is_switched() {
        let down = link_down(spec).filter(|_| was_down);
        with_opened(|opened| opened.push(Opened { spec: spec.into(), said: down.is_some() }));
        down.iter().for_each(|down| say(spec, down));
    }
    Ok(port)
}

/// Has an interface attached to a switch as `port` (`vale0:eth0`), and says on standard error if its link is down.
///
/// # Errors
/// The errors of `attach`.
pub fn attach<T, E>(port: &str, attach: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    let name = port.split_once(':').map_or(port, |(_, interface)| interface);
    let interface = format!("netmap:{name}");
    let was_down = link_down(&interface).is_some();
    let attached = attach()?;
    if was_down && !is_persistent(name) {
        link_down(&interface).iter().for_each(|down| say(port, down));
    }
    Ok(attached)
}

/// Whether a persistent port has this name: its interface is the host's end, which is set up when the host is to use
/// the switch.
fn is_persistent(name: &str) -> bool {
    let snapshots = unetmap::snapshots().unwrap_or_default();
    let snapshots = snapshots.iter().filter_map(|text| serde_json::from_str::<Value>(text).ok());
    snapshots.flat_map(|all| all["persistent"].as_array().cloned().unwrap_or_default()).any(|port| port["name"] == name)
}

/// Says on standard error that a link is down.
fn say(spec: &str, down: &LinkDown) {
    note(&format!("{spec}: {down}"));
}

/// Says it of the ports whose link was up before they were opened and is down now.
pub(crate) fn say_after_wait() {
    with_opened(|opened| {
        for Opened { spec, said } in opened.iter_mut().filter(|opened| !opened.said) {
            let down = link_down(spec);
            down.iter().for_each(|down| say(spec, down));
            *said = down.is_some();
        }
    });
}

/// Returns why the link of a port that [`open`] has opened is down.
pub fn of(spec: &str) -> Option<LinkDown> {
    let is_opened = with_opened(|opened| opened.iter().any(|opened| opened.spec == spec));
    if is_opened { link_down(spec) } else { None }
}

/// Returns why no packets of this port move: its link, or `otherwise`.
pub fn down_or(spec: &str, otherwise: &str) -> String {
    of(spec).map_or_else(|| otherwise.into(), |down| down.to_string())
}

/// Adds `links_down` to an object of `--json` if the links of ports are down: by name why.
pub fn add_down(object: &mut Value) {
    let specs: Vec<String> = with_opened(|opened| opened.iter().map(|opened| opened.spec.clone()).collect());
    let down = specs.iter().filter_map(|spec| Some((spec.clone(), Value::String(link_down(spec)?.to_string()))));
    let down: Map<String, Value> = down.collect();
    if !down.is_empty() {
        object["links_down"] = Value::Object(down);
    }
}

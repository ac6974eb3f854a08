// SPDX-License-Identifier: BSD-2-Clause
//! The settings that a command changes, as the configuration's file names them.

use super::{Action, DirectionArg, Port, Set, ValeArgs};
use crate::config::{PORT_KEYS, SERVED_KEYS, VLAN_KEYS};

/// The switch or the port whose settings the action changes, and the keys of these in the configuration's file.
pub(crate) fn changed(args: &ValeArgs) -> Option<(&str, Vec<&'static str>)> {
    let (subject, keys): (&str, &[&str]) = match args.action.as_ref()? {
        Action::Set { switch, what: Set::Age { .. } } => (switch, &["age"]),
        Action::Port { port, what: Some(what), .. } => match what {
            Port::Access { .. } | Port::Trunk { .. } => (port, &VLAN_KEYS),
            Port::Rate { direction: DirectionArg::In, .. } => (port, &["rate-in"]),
            Port::Rate { direction: DirectionArg::Out, .. } => (port, &["rate-out"]),
            Port::Storm { .. } => (port, &["storm"]),
            Port::Filter { direction: DirectionArg::In, .. } => (port, &["filter-in"]),
            Port::Filter { direction: DirectionArg::Out, .. } => (port, &["filter-out"]),
            Port::Off => {
                let keys = PORT_KEYS.iter().map(|(key, _)| *key).filter(|key| !SERVED_KEYS.contains(key));
                return Some((port, keys.collect()));
            }
        },
        action => (action.service()?.0, &SERVED_KEYS),
    };
    Some((subject, keys.to_vec()))
}

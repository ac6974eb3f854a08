// SPDX-License-Identifier: BSD-2-Clause
//! The settings that a command changes, as the configuration's file names them.

use super::port::SERVED_KEYS;
use super::{Action, Set, ValeArgs};

/// The switch or the port whose settings the action changes, and the keys of these in the configuration's file.
pub(crate) fn changed(args: &ValeArgs) -> Option<(&str, Vec<&'static str>)> {
    Some(match args.action.as_ref()? {
        Action::Set { switch, what: Set::Age { .. } } => (switch, vec!["age"]),
        Action::Port { port, what: Some(what), .. } => (port, what.keys()),
        action => (action.service()?.0, SERVED_KEYS.to_vec()),
    })
}

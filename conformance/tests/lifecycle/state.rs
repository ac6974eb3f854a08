// SPDX-License-Identifier: BSD-2-Clause
//! The state that a daemon hands to its successor: its fields are those of its version.

use std::collections::BTreeMap;
use std::fs;

use conformance::isolated;
use conformance::replace::refused;
use conformance::traffic::{exchange, open};
use serde_json::Value;

use crate::replace::vale;

/// Adds the names of all fields of a value, with those of the values around them, and whether they have a value.
fn add_fields(value: &Value, at: &str, fields: &mut BTreeMap<String, bool>) {
    match value {
        Value::Array(all) => all.iter().for_each(|one| add_fields(one, at, fields)),
        // Users, by number.
        Value::Object(all) if all.keys().all(|key| key.parse::<u32>().is_ok()) => {
            all.values().for_each(|one| add_fields(one, at, fields));
        }
        Value::Object(all) => {
            for (name, value) in all {
                let field = format!("{at}.{name}");
                add_fields(value, &field, fields);
                *fields.entry(field).or_default() |= !value.is_null();
            }
        }
        _ => {}
    }
}

/// A field more or less is another version of the state; a successor reads former ones, in which what was added has a
/// default. `UPDATE_STATE=1` writes the list.
#[test]
fn a_state_has_the_fields_of_its_version() {
    const LIST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/lifecycle/state.txt");
    isolated(|home| {
        vale("port vale0:x access 5");
        vale("set vale0 age 300");
        let ends = ["netmap:p{1", "netmap:p}1", "netmap:other{1"].map(open);
        let copied = open(&format!("netmap:c}}1@{}", ends[2].mem_id()));
        let others = ["netmap:c{1", "vale0:a", "vale0:b", "netmap:nmsink0", "netmap:p{1/t", "netmap:p}1/z"];
        let others = others.map(open);
        exchange(&others[1], &others[2], 1, 0, 100);
        let reason = refused(home, Some("state"));
        let json = reason.lines().find_map(|line| line.strip_prefix("unetmapd: {")).expect("the state");
        let state: Value = serde_json::from_str(&format!("{{{json}")).expect("JSON");
        let mut fields = BTreeMap::from([(format!("version {}", state["version"]), true)]);
        add_fields(&state, "", &mut fields);
        if std::env::var_os("UPDATE_STATE").is_some() {
            let list: String = fields.keys().map(|field| format!("{field}\n")).collect();
            fs::write(LIST, list).expect("a file of the repository");
        }
        let known = fs::read_to_string(LIST).expect("a file of the repository");
        // What belongs to something that this machine lacks.
        let lacks = |field: &str| fields.iter().any(|(of, is)| !is && field.starts_with(&format!("{of}.")));
        let known: Vec<&str> = known.lines().filter(|field| !lacks(field)).collect();
        let fields: Vec<&str> = fields.keys().map(String::as_str).collect();
        assert_eq!(
            fields, known,
            "the state's fields are others than those of its version: handover::VERSION tells what to do then"
        );
        drop((ends, copied, others));
        vale("port vale0:x off");
    });
}

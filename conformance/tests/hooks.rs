//! The preload door: programs of `conformance/c` that use netmap files in every way that a file can be used, and what
//! goes wrong around them.

use conformance::c::{compile, start};
use conformance::{isolated, until};

#[test]
fn every_name_has_a_hook() {
    isolated(|home| {
        let hooks = compile(home, "hooks", &[]);
        for what in ["opens", "mappings", "closes", "closed-elsewhere", "children", "passes", "waits", "crowds"] {
            assert_eq!(start(&hooks, &[what]).output(), "ok\n", "{what}");
            until("all is given back", || home.snapshot().sessions.is_empty());
        }
    });
}

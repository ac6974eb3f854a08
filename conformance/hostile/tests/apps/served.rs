// SPDX-License-Identifier: BSD-2-Clause
//! The daemon knows how a process serves a port, as a setting of the port, and keeps it over crashes.

use std::process::{Command, Output};

use conformance::{isolated, kept, program, replace, until};
use conformance_hostile::served::Served;

fn unetmap(args: &[&str]) -> Output {
    Command::new(program("unetmap")).args(args).output().expect("unetmap runs")
}

#[test]
fn what_is_served_is_what_the_process_told_the_daemon_and_survives_it() {
    isolated(|home| {
        let _daemon = kept::start(home, None);
        let served = Served::start(home, ["memif", "--memif"], "vale0:m1", ",id=7");
        let setting = format!("memif {},id=7", served.path.display());
        let check = || {
            let out = unetmap(&["vale", "show", "vale0"]);
            let said = String::from_utf8_lossy(&out.stdout).into_owned();
            assert!(said.contains(&setting) && !said.contains("vhost-user"), "{said}");
            let out = unetmap(&["config", "show"]);
            let said = String::from_utf8_lossy(&out.stdout).into_owned();
            assert!(said.contains("memif = "), "{said}");
        };
        until("it is said", || unetmap(&["vale", "show", "vale0"]).stdout.windows(6).any(|part| part == b"memif "));
        check();
        kept::wait_until_kept(home);
        kept::kill(home);
        check();
        replace::replace(home);
        check();
        assert!(unetmap(&["vale", "port", "vale0:m1", "--memif", "off"]).status.success());
    });
}

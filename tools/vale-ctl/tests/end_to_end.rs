// SPDX-License-Identifier: BSD-2-Clause
//! Tests of the program: exit status and output.

use tool_common::testing::{TestDaemon, TestProcess};

const VALE_CTL: &str = env!("CARGO_BIN_EXE_vale-ctl");

#[test]
fn wrong_command_lines_exit_with_2_and_refusals_with_1() {
    let Some(daemon) = TestDaemon::start_beside(VALE_CTL) else { return };
    for (args, status, part) in [
        ("-a", 2, "--attach"),
        ("-C 1", 2, "-C needs"),
        ("nonsense", 2, "nonsense"),
        ("-l vale7:nobody", 1, "vale7:nobody"),
        ("-d vale7:nobody", 1, "vale7:nobody"),
        ("-r no_such_if0", 1, "no_such_if0"),
    ] {
        let (code, out, err) = TestProcess::start(&mut daemon.command("vale-ctl", args)).wait();
        assert_eq!((code, out.as_str()), (status, ""), "{args}: {err}");
        assert!(err.contains(part), "{args}: {err}");
    }
}

#[test]
fn the_list_is_empty_without_switches() {
    let Some(daemon) = TestDaemon::start_beside(VALE_CTL) else { return };
    assert_eq!(TestProcess::start(&mut daemon.command("vale-ctl", "")).wait(), (0, String::new(), String::new()));
    assert_eq!(TestProcess::start(&mut daemon.command("vale-ctl", "--json")).wait(), (0, "[]\n".into(), String::new()));
}

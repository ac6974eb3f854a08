// SPDX-License-Identifier: BSD-2-Clause
//! Tests of exit statuses. The tests with packets are in `conformance/tests/tools/lb.rs`.

use tool_common::testing::{TestDaemon, TestProcess};

const LB: &str = env!("CARGO_BIN_EXE_lb");

#[test]
fn wrong_command_lines_exit_with_2_and_failures_with_1() {
    let Some(daemon) = TestDaemon::start_beside(LB) else { return };
    for (args, status, part) in [
        ("", 2, "--port"),
        ("-i a -p 65", 2, "1 to 64"),
        ("-i a{", 2, "netmap:a{"),
        ("-w 0 -i p}1/T", 2, "no receive rings"),
        ("-w 0 -i no_such_if0", 1, "no_such_if0"),
    ] {
        let (code, _, err) = TestProcess::start(&mut daemon.command("lb", args)).wait();
        assert_eq!(code, status, "{args}: {err}");
        assert!(err.contains(part), "{args}: {err}");
    }
}

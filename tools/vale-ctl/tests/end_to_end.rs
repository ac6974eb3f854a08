//! The program as scripts see it.

use tool_common::testing::{House, Running};

const VALE_CTL: &str = env!("CARGO_BIN_EXE_vale-ctl");

#[test]
fn wrong_command_lines_end_with_2_and_refusals_with_1() {
    let Some(house) = House::beside(VALE_CTL) else { return };
    for (args, status, part) in [
        ("-a", 2, "--attach"),
        ("-C 1", 2, "-C goes with"),
        ("nonsense", 2, "nonsense"),
        ("-l vale7:nobody", 1, "vale7:nobody"),
        ("-d vale7:nobody", 1, "vale7:nobody"),
        ("-r no_such_if0", 1, "no_such_if0"),
    ] {
        let (code, out, err) = Running::start(&mut house.command("vale-ctl", args)).end();
        assert_eq!((code, out.as_str()), (status, ""), "{args}: {err}");
        assert!(err.contains(part), "{args}: {err}");
    }
}

#[test]
fn a_machine_without_switches_has_an_empty_list() {
    let Some(house) = House::beside(VALE_CTL) else { return };
    assert_eq!(Running::start(&mut house.command("vale-ctl", "")).end(), (0, String::new(), String::new()));
    assert_eq!(Running::start(&mut house.command("vale-ctl", "--json")).end(), (0, "[]\n".into(), String::new()));
}

// SPDX-License-Identifier: BSD-2-Clause
//! Files of labs: what they say, and the lines of faults.

use super::*;

const OFFICE: &str = r#"
[host.pc]
routes = ["default via 10.0.0.254"]

[host.gate]
forward = true

[switch.lan]

[[link]]
ends = ["pc 10.0.0.1/24 fd00::1/64", "lan"]

[[link]]
ends = ["gate:lan0 10.0.0.254/24", "lan"]
rate = "100M"

[[link]]
ends = ["gate", "pc:wan"]
delay = "20ms"
overtake = true
loss = 0.01

[[capture]]
at = "pc:wan"
file = "wan.pcapng"
"#;

fn read(text: &str) -> Result<Lab, (usize, String)> {
    parse(Path::new("/tmp/office.toml"), text)
}

#[test]
fn a_lab_has_what_its_file_says() {
    let lab = read(OFFICE).expect("no fault");
    assert_eq!(lab.name, "office");
    let hosts: Vec<_> =
        lab.hosts.iter().map(|host| (&*host.name, host.line, host.forward, host.routes.len())).collect();
    assert_eq!(hosts, [("pc", 2, false, 1), ("gate", 5, true, 0)], "in the order of the file");
    assert_eq!(lab.namespace(1), "office.gate");
    let of_pc: Vec<_> = lab.interfaces(0).map(|(link, _, name, _)| (link.index, name.to_owned())).collect();
    assert_eq!(of_pc, [(0, "eth0".into()), (2, "wan".into())]);
    let of_gate: Vec<_> = lab.interfaces(1).map(|(_, _, name, _)| name.to_owned()).collect();
    assert_eq!(of_gate, ["lan0", "eth0"], "the first number that is free");
    let [plain, shaped, last] = &lab.links[..] else { panic!("{:?}", lab.links) };
    assert!(plain.is_in_wire() && !plain.is_emulated(), "it is attached to the switch");
    assert!(shaped.is_emulated());
    assert_eq!([0, 1].map(|end| shaped.port(end, &lab.switches)), ["netmap:l1a", "valelan:p1b"]);
    let words = words(&last.emulation).join(" ");
    assert_eq!(words, "--delay 20ms --overtake --loss 0.01");
    let [capture] = &lab.captures[..] else { panic!("{:?}", lab.captures) };
    assert_eq!((capture.link, capture.end, &*capture.file), (2, 1, Path::new("/tmp/wan.pcapng")));
    assert!(last.is_captured);
}

#[test]
fn a_veth_pair_is_enough_for_a_link_without_properties() {
    let lab = read("[host.a]\n[host.b]\n[[link]]\nends = [\"a\", \"b\"]\n").expect("no fault");
    assert!(!lab.needs_wire() && !lab.links[0].is_in_wire());
}

#[test]
fn a_fault_names_its_line() {
    let base = "[host.a]\n[host.b]\n[switch.s]\n";
    let link = |rest: &str| format!("{base}[[link]]\nends = [\"a\", \"b\"]\n{rest}");
    for (text, line, part) in [
        ("[host.a]\n[hosts.b]\n".to_owned(), 2, "unknown field"),
        ("name = \"A b\"\n[host.a]\n".into(), 1, "`A b` cannot be the name of a lab"),
        ("\n[host.a]\nforwards = true\n".into(), 3, "did you mean `forward`?"),
        ("[host.a]\nforward = 1\n".into(), 2, "forward: it is true or false"),
        ("[host.a]\nroutes = \"default\"\n".into(), 2, "routes: it is a list"),
        ("[host.a_b]\n".into(), 1, "`a_b` cannot be the name of a host"),
        ("[host.a]\n[switch.a]\n".into(), 2, "`a` is the name of a host, too"),
        ("[switch.a]\n".into(), 1, "it has no host"),
        (format!("{base}[[link]]\nends = [\"a\"]\n"), 5, "two ends"),
        (format!("{base}[[link]]\n"), 4, "the link has no ends"),
        (
            "[host.server]\n[[link]]\nends = [\"server\", \"servr\"]\n".into(),
            3,
            "there is no host or switch `servr`; did you mean `server`?",
        ),
        (format!("{base}[[link]]\nends = [\"a 10.0.0.1\", \"b\"]\n"), 5, "`10.0.0.1` is no address with its length"),
        (format!("{base}[[link]]\nends = [\"a 10.0.0.1/33\", \"b\"]\n"), 5, "is no address"),
        (format!("{base}[[link]]\nends = [\"a:eth0\", \"a:eth0\"]\n"), 5, "has an interface `eth0` already"),
        (format!("{base}[[link]]\nends = [\"a:lo\", \"b\"]\n"), 5, "`lo` cannot be the name of an interface"),
        (format!("{base}[[link]]\nends = [\"s 10.0.0.1/8\", \"b\"]\n"), 5, "`s` is a switch, which has no"),
        (format!("{base}[[link]]\nends = [\"s\", \"s\"]\n"), 5, "of a switch to itself"),
        (link("dely = \"1ms\"\n"), 6, "did you mean `delay`?"),
        (link("loss = \"1%\"\ndelay = \"5\"\n"), 7, "give a time with its unit"),
        (link("overtake = true\n"), 4, "--delay"),
        (link("overtake = 1\n"), 6, "overtake: it is true or false"),
        (link("json = true\n"), 6, "a link has no key `json`"),
        (link("[[capture]]\nfile = \"f\"\n"), 6, "a capture has at"),
        (link("[[capture]]\nfile = \"f\"\nat = \"c\"\n"), 8, "no link has an end `c`"),
        (link("[[link]]\nends = [\"a\", \"b\"]\n[[capture]]\nfile = \"f\"\nat = \"a\"\n"), 10, "give one, as a:eth0"),
        ("[host.a]\n[host.a]\n".into(), 2, "duplicate key"),
    ] {
        let (at, why) = read(&text).expect_err(&text);
        assert!(at == line && why.contains(part), "{text}: line {at}: {why}");
    }
    let (line, why) = parse(Path::new("/tmp/.toml"), "[host.a]\n").expect_err("no name");
    assert!(line == 1 && why.contains("give it one"), "{why}");
}

#[test]
fn a_file_that_others_can_write_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("one.toml");
    let why = super::read(&file).expect_err("no file");
    assert!(why.ends_with("there is no such file"), "{why}");
    std::fs::write(&file, "[host.a]\n").expect("our own folder");
    assert_eq!(super::read(&file).expect("no fault").name, "one");
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o666)).expect("our own file");
    let why = super::read(&file).expect_err("others can write it");
    assert!(why.contains("one.toml: ") && why.contains("file of the lab"), "{why}");
}

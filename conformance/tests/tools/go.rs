// SPDX-License-Identifier: BSD-2-Clause
//! The Go module: its own tests, with the race detector, its document, and a program of it at an interface.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use conformance::home::{Home, summary};
use conformance::net::{CABLE, DIRECT, Net, assert_same, frames};
use conformance::{isolated, isolated_with_interfaces, program, until};

/// The first version that has what the module uses.
const VERSION: (u32, u32) = (1, 24);

/// The folder of the module.
fn module() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../go")
}

/// Go's program, with what it writes in folders of the tests; or why there is none.
fn go(arguments: &[&str]) -> Result<Command, String> {
    let found = ["go", "/usr/local/go/bin/go"].into_iter().find_map(|go| {
        let output = Command::new(go).args(["env", "GOVERSION"]).env("GOTOOLCHAIN", "local").output().ok()?;
        Some((go, String::from_utf8_lossy(&output.stdout).trim().to_owned()))
    });
    let (go, version) = found.ok_or("no go (apt-get install golang)")?;
    let mut numbers = version.trim_start_matches("go").split('.').map_while(|number| number.parse().ok());
    let (major, minor): (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if (major, minor) < VERSION {
        return Err(format!("{version}, and the module needs go{}.{}", VERSION.0, VERSION.1));
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let mut command = Command::new(go);
    command.args(arguments).env("GOTOOLCHAIN", "local").env("GOFLAGS", "-modcacherw -buildvcs=false");
    // Building Go's standard library takes a minute, once.
    command.env("GOCACHE", folder.join("go")).env("GOPATH", folder.join("gopath"));
    command.env("UNETMAPD", program("unetmapd"));
    Ok(command)
}

fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned()).concat()
}

/// Runs a command that succeeds; returns what it says.
#[track_caller]
fn done(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, said(&output));
    said(&output)
}

/// Go's program for a test that says why it is skipped without it.
fn go_or_skip(arguments: &[&str]) -> Option<Command> {
    go(arguments).inspect_err(|missing| summary(&format!("skipped: {missing}"))).ok()
}

#[test]
fn the_go_module_passes_its_tests_with_the_race_detector() {
    isolated(|_| {
        let Some(mut vet) = go_or_skip(&["vet", "./..."]) else { return };
        done(vet.current_dir(module()).env("CGO_ENABLED", "0"));
        // The race detector is in C.
        let has_c = Command::new("cc").arg("--version").output().is_ok_and(|output| output.status.success());
        let (tests, cgo): (&[_], _) =
            if has_c { (&["test", "-count=1", "-race", "."], "1") } else { (&["test", "-count=1", "."], "0") };
        let said = done(go(tests).expect("it was there").current_dir(module()).env("CGO_ENABLED", cgo));
        assert!(said.starts_with("ok"), "{said}");
        summary(&format!("race detector: {has_c}; {}", said.trim()));
    });
}

#[test]
fn gopacket_reads_and_writes_packets_of_ports() {
    isolated(|_| {
        let folder = module().join("gopacket");
        let Some(mut fetch) = go_or_skip(&["mod", "download"]) else { return };
        let fetched = fetch.current_dir(&folder).output().expect("go starts");
        if !fetched.status.success() {
            return summary(&format!("skipped: gopacket cannot be fetched: {}", said(&fetched).trim()));
        }
        let said = done(go(&["test", "-count=1", "./..."]).expect("it was there").current_dir(&folder));
        assert!(said.starts_with("ok"), "{said}");
    });
}

/// The programs of the document, each with what it prints.
fn programs_of_the_document(document: &str) -> Vec<(String, String)> {
    let mut blocks = document.split("```").skip(1).step_by(2);
    let mut programs = Vec::new();
    while let Some(block) = blocks.next() {
        if let Some(program) = block.strip_prefix("go\n").filter(|program| program.starts_with("package main")) {
            let printed = blocks.next().and_then(|block| block.strip_prefix("text\n")).expect("what it prints");
            programs.push((program.to_owned(), printed.to_owned()));
        }
    }
    programs
}

#[test]
fn programs_of_the_document_on_go_print_what_it_says() {
    isolated(|home| {
        if go_or_skip(&[]).is_none() {
            return;
        }
        let document = fs::read_to_string(module().join("../docs/go.md")).expect("the document");
        let programs = programs_of_the_document(&document);
        assert!(programs.len() >= 2, "the document has {} programs", programs.len());
        for (number, (program, printed)) in programs.iter().enumerate() {
            let folder = home.folder().join(format!("program{number}"));
            fs::create_dir(&folder).expect("our own folder");
            fs::write(folder.join("main.go"), program).expect("our own folder");
            let run = |arguments: &[&str]| {
                let mut command = go(arguments).expect("it was there");
                done(command.current_dir(&folder).env("CGO_ENABLED", "0"))
            };
            run(&["mod", "init", "program"]);
            let replace = format!("-replace=unetmap={}", module().display());
            run(&["mod", "edit", "-require=unetmap@v0.0.0", &replace]);
            assert_eq!(run(&["run", "."]), *printed, "{program}");
        }
    });
}

/// Builds an example.
fn example(home: &Home, name: &str) -> Option<PathBuf> {
    let built = home.folder().join(name);
    let mut build = go_or_skip(&["build", "-o"])?;
    build.arg(&built).arg(format!("./examples/{name}")).current_dir(module()).env("CGO_ENABLED", "0");
    done(&mut build);
    Some(built)
}

/// Root's interface is opened through the daemon, and no frame is lost or changed, nor any buffer.
#[test]
fn a_go_program_echoes_the_frames_of_an_interface() {
    isolated_with_interfaces(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let Some(echo) = example(home, "echo") else { return };
        let guard = net.start(home, &echo, &["netmap:va"], 1);
        let kinds = || home.snapshot().ports.iter().map(|port| port.kind.clone()).collect::<Vec<_>>();
        until("the interface is open, mediated", || kinds().iter().any(|kind| kind == "mediated"));
        let tap = net.tap();
        for round in 0..20 {
            let all = frames(&[14, 60, 61, 512, 1513, 1514, 64, 1024], round << 20);
            tap.send_all(&all);
            let swapped = all.iter().map(|frame| [&frame[6..12], &frame[..6], &frame[12..]].concat());
            assert_same(&tap.collect(all.len()), &swapped.collect::<Vec<_>>());
        }
        assert_eq!(home.snapshot().faults("va"), (0, 0));
        drop(guard);
        until("all is given back", || home.snapshot().sessions.is_empty());
    });
}

// SPDX-License-Identifier: BSD-2-Clause
//! The Python package: its wheel in a fresh environment, with its own tests, examples, and document.

use std::path::{Path, PathBuf};
use std::process::Command;

use conformance::home::summary;
use conformance::{isolated, program};

/// Runs a command; returns its output, also that of its errors.
#[track_caller]
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success(), "{command:?}: {}\n{text}", output.status);
    text
}

/// The folder of the wheel and those that it is installed with, and the Python that built it; or why there is none.
fn wheel() -> Result<(PathBuf, PathBuf), String> {
    let daemon = program("unetmapd");
    let profile = daemon.parent().expect("a folder");
    let (folder, python) = (profile.join("wheel"), profile.with_file_name("python-tools").join("bin/python"));
    match std::fs::read_to_string(folder.join("missing")) {
        Ok(missing) => Err(missing.trim_end().into()),
        Err(_) if folder.exists() => Ok((folder, python)),
        Err(_) => Err("make debug, which builds the wheel, was not run".into()),
    }
}

/// Makes an environment with the wheel; returns its Python.
fn installed(folder: &Path) -> Result<PathBuf, String> {
    let (wheels, python) = wheel()?;
    let environment = folder.join("venv");
    run(Command::new(&python).args(["-m", "venv", "--without-pip"]).arg(&environment));
    let own = environment.join("bin/python");
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "--python"]).arg(&own).args(["install", "--quiet", "--no-index", "--no-compile"]);
    run(pip.arg("--find-links").arg(wheels).arg("unetmap[numpy,scapy]"));
    Ok(own)
}

#[test]
fn the_wheel_passes_its_tests_in_a_fresh_environment() {
    isolated(|home| {
        let python = match installed(home.folder()) {
            Ok(python) => python,
            Err(missing) => return summary(&format!("skipped: {missing}")),
        };
        let source = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../python"));
        let tests = ["-X", "faulthandler", "-B", "-m", "unittest", "discover", "-s"];
        let said = run(Command::new(&python).args(tests).arg(source.join("tests")).current_dir(home.folder()));
        assert!(!said.contains("skipped") && said.contains("\nOK"), "{said}");
        summary(said.lines().find(|line| line.starts_with("Ran ")).expect("a line"));
        for (example, arguments) in
            [("count.py", &["0.2"][..]), ("echo.py", &[]), ("latencies.py", &["latencies.svg", "1000"])]
        {
            let mut command = Command::new(&python);
            command.arg(source.join("examples").join(example)).args(arguments).current_dir(home.folder());
            summary(run(&mut command).trim_end());
        }
        let picture = std::fs::read_to_string(home.folder().join("latencies.svg")).expect("the picture");
        assert!(picture.starts_with("<svg ") && picture.matches("<circle").count() == 4, "{picture}");
    });
}

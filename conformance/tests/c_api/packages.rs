// SPDX-License-Identifier: BSD-2-Clause
//! Projects of others that find the installed library: by CMake, by pkg-config, and in C++.

use std::path::{Path, PathBuf};
use std::process::Command;

use conformance::c::{Running, compile, start};
use conformance::home::summary;
use conformance::{Home, isolated, program};

/// The repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Runs a command, which succeeds; returns its output.
#[track_caller]
fn done(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{said}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn is_installed(name: &str) -> bool {
    Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Installs this build's library for programs in C below the test's folder; returns its prefix.
fn installed(home: &Home) -> PathBuf {
    let (prefix, library) = (home.folder().join("prefix"), program("libunetmap.so"));
    let mut make = Command::new("make");
    make.args(["--silent", "install-c"]).current_dir(root());
    make.arg(format!("PREFIX={}", prefix.display()));
    make.arg(format!("BIN={}", library.parent().expect("a folder").display()));
    // Those of a make or a package that runs this test.
    done(make.env_remove("MAKEFLAGS").env_remove("DESTDIR").env_remove("LIBDIR"));
    prefix
}

/// Sends and receives 10,000 packets between two runs of a program, as `examples/cpp/pipe.cc` has them.
#[track_caller]
fn sends_and_receives(path: &Path, prefix: &Path) {
    let run = |side: &str, port: &str| {
        let mut command = Command::new(path);
        command.args([side, port, "10000"]).env("LD_LIBRARY_PATH", prefix.join("lib"));
        Running::spawn(side, &mut command)
    };
    let receiver = run("receive", "netmap:x}1");
    assert_eq!(run("send", "netmap:x{1").output(), "sent 10000\n");
    assert_eq!(receiver.output(), "received 10000 packets, 600000 bytes\n");
}

#[test]
fn a_cmake_project_finds_the_installed_library() {
    isolated(|home| {
        if !is_installed("cmake") || !is_installed("c++") {
            return summary("skipped: no cmake (apt-get install cmake) or no C++ compiler");
        }
        let (prefix, build) = (installed(home), home.folder().join("build"));
        let mut configure = Command::new("cmake");
        configure.arg("-S").arg(root().join("examples/cpp")).arg("-B").arg(&build);
        configure.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display()));
        let said = done(&mut configure);
        assert!(said.contains(&format!("unetmap {}", env!("CARGO_PKG_VERSION"))), "{said}");
        done(Command::new("cmake").arg("--build").arg(&build));
        sends_and_receives(&build.join("pipe"), &prefix);
    });
}

#[test]
fn pkg_config_finds_the_installed_library() {
    isolated(|home| {
        if !is_installed("pkg-config") || !is_installed("c++") {
            return summary("skipped: no pkg-config (apt-get install pkg-config) or no C++ compiler");
        }
        let prefix = installed(home);
        let flags = |words: &[&str]| -> Vec<String> {
            let mut command = Command::new("pkg-config");
            command.args(words).env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
            done(&mut command).split_whitespace().map(str::to_owned).collect()
        };
        assert_eq!(flags(&["--modversion", "unetmap"]), [env!("CARGO_PKG_VERSION")]);
        for (name, more) in [("shared", &["unetmap"][..]), ("static", &["--static", "unetmap"])] {
            let path = home.folder().join(name);
            let mut compiler = Command::new("c++");
            compiler.args(["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&path);
            compiler.arg(root().join("examples/cpp/pipe.cc"));
            compiler.args(if name == "static" { &["-static"][..] } else { &[] });
            done(compiler.args(flags(&[&["--cflags", "--libs"], more].concat())));
            sends_and_receives(&path, &prefix);
        }
    });
}

/// The listings of netmap's first paper and of its page, with the names that netmap had then.
#[test]
fn programs_with_the_names_of_the_first_paper_run() {
    isolated(|home| {
        let paper = compile(home, "paper", &["-std=gnu11"]);
        let receiver = start(&paper, &["receive", "w}1", "20000"]);
        assert_eq!(start(&paper, &["send", "w{1", "20000"]).output(), "ok\n");
        assert_eq!(receiver.output(), "ok\n");
    });
}

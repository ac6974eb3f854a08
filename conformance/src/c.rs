// SPDX-License-Identifier: BSD-2-Clause
//! C programs: compiled with the public headers, and run by `unetmap run` or linked with the library.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::home::wait_within;
use crate::{Home, LIMIT, program};

/// The library's name for the dynamic loader (its soname).
const SONAME: &str = "libunetmap.so.0";

/// Compiles a program of `conformance/c` or `examples/c` into the test's folder.
#[track_caller]
pub fn compile(home: &Home, name: &str, more: &[&str]) -> PathBuf {
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../include").display().to_string();
    compile_with(home, name, &[&["-I", &include], more].concat())
}

/// Compiles a program with the include folders and options of `more` only.
#[track_caller]
pub fn compile_with(home: &Home, name: &str, more: &[&str]) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = home.folder().join(name);
    let source = [root.join("c"), root.join("../examples/c")].map(|folder| folder.join(name).with_extension("c"));
    let status = Command::new("cc")
        .args(["-std=gnu99", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .arg(&out)
        .arg(source.iter().find(|source| source.exists()).expect("a program of that name"))
        .args(more)
        .status()
        .expect("a C compiler (apt-get install gcc)");
    assert!(status.success(), "{name}.c does not compile");
    out
}

/// Builds the archives that are installed beside the library in `folder`.
#[track_caller]
pub fn archives_in(folder: &Path) {
    let status = Command::new("make")
        .args(["--silent", "-C"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/capi"))
        .arg(format!("OUT={}", folder.display()))
        .status()
        .expect("make (apt-get install make)");
    assert!(status.success(), "the archives cannot be made");
}

/// Arguments that link a program with the library of this build. The loader finds it by a link in `folder`.
pub fn linked(folder: &Path) -> [String; 3] {
    let library = program("libunetmap.so");
    let built = library.parent().expect("a file in a folder").display();
    let link = folder.join(SONAME);
    if !link.exists() {
        symlink(&library, link).expect("a link in the test's own folder");
    }
    [format!("-L{built}"), "-lunetmap".into(), format!("-Wl,-rpath,{}", folder.display())]
}

/// A running C program.
pub struct Running {
    what: String,
    child: Child,
}

/// Starts a C program by `unetmap run`.
#[track_caller]
pub fn start(program_: &Path, args: &[&str]) -> Running {
    start_by(Command::new(program("unetmap")), program_, args)
}

/// Starts a C program by `command`, which runs `unetmap`.
#[track_caller]
pub fn start_by(mut command: Command, program_: &Path, args: &[&str]) -> Running {
    command.arg("run").arg("--").arg(program_).args(args).env("UNETMAP_VERBOSE", "1");
    Running::spawn(&format!("{} {}", program_.display(), args.join(" ")), &mut command)
}

impl Running {
    /// Starts a command.
    #[track_caller]
    pub fn spawn(what: &str, command: &mut Command) -> Running {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        Running { what: what.into(), child: child.unwrap_or_else(|e| panic!("{what}: {e}")) }
    }

    /// The program's process: `unetmap run` replaces itself by the program (exec).
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32).expect("a process id")
    }

    /// Whether it has not ended.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_none())
    }

    /// Writes a line to its standard input.
    #[track_caller]
    pub fn write_line(&mut self, line: &str) {
        let input = self.child.stdin.as_mut().expect("it has not been closed");
        input.write_all(line.as_bytes()).and_then(|()| input.write_all(b"\n")).expect("it listens");
    }

    /// Kills the program and waits for its exit.
    pub fn kill(mut self) {
        let _ = kill_process(self.pid(), Signal::KILL);
        let _ = self.child.wait();
    }

    /// Reads the next line of its output.
    #[track_caller]
    pub fn read_line(&mut self) -> String {
        let out = self.child.stdout.as_mut().expect("it is not taken");
        // Byte by byte: the bytes after the line stay in the pipe for later reads.
        let (mut line, mut byte) = (Vec::new(), [0]);
        while out.read(&mut byte).expect("its output") == 1 && byte != *b"\n" {
            line.extend(byte);
        }
        String::from_utf8_lossy(&line).into_owned()
    }

    /// Returns what it printed; panics unless it exits with 0 within [`LIMIT`].
    #[track_caller]
    pub fn output(mut self) -> String {
        let status = wait_within(&mut self.child, LIMIT);
        if status.is_none() {
            let _ = self.child.kill();
        }
        let output = self.child.wait_with_output().expect("its output");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(status.is_some_and(|status| status.success()), "{}: {status:?}: {text}", self.what);
        text
    }
}

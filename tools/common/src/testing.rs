// SPDX-License-Identifier: BSD-2-Clause
//! Helpers for the tests of the tools: a daemon for each test, child processes, and the check of the man pages.
//!
//! Failures panic, as in any test.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap_mangen::Man;
use tempfile::TempDir;

/// Longest time for anything that must happen. It detects a hang and does not measure speed.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// File name of the policy in the daemon's folder.
const POLICY: &str = "policy.toml";

/// A daemon with a socket of its own. Killed on drop.
pub struct TestDaemon {
    folder: TempDir,
    programs: PathBuf,
    daemon: Child,
}

impl TestDaemon {
    /// Starts the `unetmapd` in the folder of `program`. Prints a line and returns `None` if it was not built.
    pub fn start_beside(program: &str) -> Option<TestDaemon> {
        let programs = Path::new(program).parent().expect("a program has a folder").to_owned();
        let daemon = programs.join("unetmapd");
        if !daemon.is_file() {
            // Raw: a test's.
            eprintln!("skipped: {} does not exist (`make` builds it)", daemon.display());
            return None;
        }
        let folder = tempfile::Builder::new().prefix("unetmap-").tempdir().expect("a folder for the test");
        let socket = folder.path().join("sock");
        File::create(folder.path().join(POLICY)).expect("a file for the policy");
        let log = File::create(folder.path().join("log")).expect("a file for the daemon's log");
        let mut daemon = Command::new(daemon)
            .args(["--foreground", "--idle-exit", "0", "--socket"])
            .arg(&socket)
            .env("UNETMAP_POLICY", folder.path().join(POLICY))
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the daemon starts");
        let begin = Instant::now();
        while !socket.exists() {
            let exited = daemon.try_wait().expect("the daemon is our child");
            assert!(
                exited.is_none() && begin.elapsed() < TIMEOUT,
                "the daemon does not listen: {}",
                read_log(folder.path())
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(TestDaemon { folder, programs, daemon })
    }

    /// Returns the folder for the test's files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the path of the daemon's policy. The file is empty at first.
    pub fn policy(&self) -> PathBuf {
        self.folder.path().join(POLICY)
    }

    /// Sets the environment variables that make a command use this daemon, which pins no XDP programs.
    pub fn set_environment<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env("LIBXDP_BPFFS", self.folder.path());
        command.env("UNETMAP_SOCKET", self.folder.path().join("sock")).env("UNETMAPD", self.programs.join("unetmapd"))
    }

    /// Returns a command for a program in the daemon's folder. `args` are separated by spaces.
    pub fn command(&self, program: &str, args: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        self.set_environment(command.args(args.split_whitespace()).stdin(Stdio::null()));
        command
    }
}

fn read_log(folder: &Path) -> String {
    fs::read_to_string(folder.join("log")).unwrap_or_default()
}

impl Drop for TestDaemon {
    fn drop(&mut self) {
        // Both calls fail if the daemon has exited by itself; the log says why.
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        let log = read_log(self.folder.path());
        assert!(std::thread::panicking() || !log.contains("panicked"), "the daemon panicked:\n{log}");
    }
}

/// A child process. Killed on drop.
pub struct TestProcess(pub Child);

impl TestProcess {
    /// Starts the process with pipes as its standard output and standard error.
    pub fn start(command: &mut Command) -> TestProcess {
        TestProcess(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts"))
    }

    /// Reads the process's standard error until a line begins with `beginning`.
    pub fn await_note(&mut self, beginning: &str) {
        let mut lines = BufReader::new(self.0.stderr.as_mut().expect("a pipe")).lines();
        let mut seen = Vec::new();
        while let Some(Ok(line)) = lines.next() {
            if line.starts_with(beginning) {
                return;
            }
            seen.push(line);
        }
        panic!("no `{beginning}` in {seen:?}");
    }

    /// Waits until the process exits. Returns its exit status (-1 if a signal killed it) and the rest of its standard
    /// output and standard error.
    pub fn wait(mut self) -> (i32, String, String) {
        fn reader(from: Option<impl std::io::Read + Send + 'static>) -> std::thread::JoinHandle<String> {
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                if let Some(mut from) = from {
                    // On a failure, returns what was read so far.
                    let _ = from.read_to_end(&mut bytes);
                }
                String::from_utf8_lossy(&bytes).into_owned()
            })
        }
        let (out, err) = (reader(self.0.stdout.take()), reader(self.0.stderr.take()));
        let begin = Instant::now();
        let status = loop {
            if let Some(status) = self.0.try_wait().expect("the process is our child") {
                break status;
            }
            if begin.elapsed() > TIMEOUT {
                let _ = self.0.kill();
                let _ = self.0.wait();
                panic!(
                    "the program did not exit:\n{}{}",
                    out.join().unwrap_or_default(),
                    err.join().unwrap_or_default()
                );
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        (status.code().unwrap_or(-1), out.join().unwrap_or_default(), err.join().unwrap_or_default())
    }
}

impl Drop for TestProcess {
    fn drop(&mut self) {
        // Both calls fail if the process has exited and was waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Checks that the man page at `path` is the one generated from the flags and the other sections. With `UPDATE_MAN` in
/// the environment, writes it first.
pub fn check_manual(command: clap::Command, synopsis: &[u8], rest: &[u8], path: &str) {
    let section = path.rsplit('.').next().unwrap_or("8");
    let man = Man::new(command).section(section).manual("unetmap");
    let mut page = Vec::new();
    let rendered = man
        .render_title(&mut page)
        .and_then(|()| man.render_name_section(&mut page))
        .map(|()| page.extend_from_slice(synopsis))
        .and_then(|()| man.render_description_section(&mut page))
        .and_then(|()| man.render_options_section(&mut page));
    rendered.expect("writes to memory do not fail");
    page.extend_from_slice(rest);
    if std::env::var_os("UPDATE_MAN").is_some() {
        fs::write(path, &page).expect("the man page can be written");
    }
    let found = fs::read(path).expect("the man page can be read");
    assert!(found == page, "{path} is out of date: run this test with UPDATE_MAN=1 in the environment");
}

/// Checks that the section OPTIONS of the man page at `path` is the one generated from the flags of these commands and
/// of their subcommands. With `UPDATE_MAN` in the environment, writes it first.
pub fn check_options(commands: &[clap::Command], path: &str) {
    let mut generated = String::from(".SH OPTIONS\n");
    let one = matches!(commands, [one] if one.get_subcommands().next().is_none());
    commands.iter().for_each(|command| options_of(command, command.get_name(), !one, &mut generated));
    let page = fs::read_to_string(path).expect("the man page can be read");
    let start = page.find(".SH OPTIONS\n").unwrap_or_else(|| panic!("{path} has no section OPTIONS"));
    let end = page[start + 1..].find("\n.SH ").map_or(page.len(), |at| start + 1 + at + 1);
    let updated = format!("{}{generated}{}", &page[..start], &page[end..]);
    if std::env::var_os("UPDATE_MAN").is_some() {
        fs::write(path, &updated).expect("the man page can be written");
        return;
    }
    assert!(page == updated, "{path} is out of date: run this test with UPDATE_MAN=1 in the environment");
}

/// Appends the options of a command, which `name` calls, and of its subcommands; with headings or without.
fn options_of(command: &clap::Command, name: &str, headings: bool, to: &mut String) {
    let command = command.clone().disable_help_subcommand(true);
    // Each subcommand has the option for help, which is described once.
    let without_help = command.clone().disable_help_flag(headings).disable_version_flag(headings);
    let mut section = Vec::new();
    Man::new(without_help).render_options_section(&mut section).expect("writes to memory do not fail");
    let section = String::from_utf8(section).expect("text");
    let items = section.split_once(".SH OPTIONS\n").map_or("", |(_, items)| items);
    if !items.trim().is_empty() {
        if headings {
            *to += &format!(".SS {}\n", name.replace('-', "\\-"));
        }
        *to += items.trim_end();
        to.push('\n');
    }
    for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
        options_of(subcommand, &format!("{name} {}", subcommand.get_name()), headings, to);
    }
}

/// Checks that each short flag has a long name, and that each argument has a help text.
pub fn check_flags(command: clap::Command) {
    for arg in command.get_arguments() {
        assert!(arg.is_positional() || arg.get_long().is_some(), "{arg:?}");
        assert!(arg.get_help().is_some(), "{arg:?}");
    }
    command.debug_assert();
}

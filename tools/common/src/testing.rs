//! For the tests of the programs: a daemon of their own, and the check of their manual pages.
//!
//! Failures panic, as in any test.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use clap_mangen::Man;
use tempfile::TempDir;

/// How long anything that must happen may take: a limit of liveness, not a measure of speed.
pub const LIMIT: Duration = Duration::from_secs(30);

/// The policy's name in a house's folder.
const POLICY: &str = "policy.toml";

/// A daemon with a socket of its own, which ends with this.
pub struct House {
    folder: TempDir,
    programs: PathBuf,
    daemon: Child,
}

impl House {
    /// Starts the daemon that lies beside `program`; `None`, with a line that says so, where none was built.
    pub fn beside(program: &str) -> Option<House> {
        let programs = Path::new(program).parent().expect("a program lies in a folder").to_owned();
        let daemon = programs.join("unetmapd");
        if !daemon.is_file() {
            eprintln!("skipped: {} is not there (`make` builds it)", daemon.display());
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
            let ended = daemon.try_wait().expect("the daemon is our child");
            assert!(ended.is_none() && begin.elapsed() < LIMIT, "the daemon does not serve: {}", said(folder.path()));
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(House { folder, programs, daemon })
    }

    /// A folder for the test's files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The daemon's policy; it says nothing at first.
    pub fn policy(&self) -> PathBuf {
        self.folder.path().join(POLICY)
    }

    /// Makes a command use this daemon.
    pub fn tell<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env("UNETMAP_SOCKET", self.folder.path().join("sock")).env("UNETMAPD", self.programs.join("unetmapd"))
    }

    /// A program that lies beside the daemon, with arguments that spaces separate.
    pub fn command(&self, program: &str, args: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        self.tell(command.args(args.split_whitespace()).stdin(Stdio::null()));
        command
    }
}

fn said(folder: &Path) -> String {
    fs::read_to_string(folder.join("log")).unwrap_or_default()
}

impl Drop for House {
    fn drop(&mut self) {
        // It may have ended by itself, which the log tells.
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        let log = said(self.folder.path());
        assert!(std::thread::panicking() || !log.contains("panicked"), "the daemon panicked:\n{log}");
    }
}

/// A child that does not outlive its test.
pub struct Running(pub Child);

impl Running {
    /// Starts it with its outputs as pipes.
    pub fn start(command: &mut Command) -> Running {
        Running(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts"))
    }

    /// Waits for its end, and returns its exit status and what it wrote to standard output and error since they were last
    /// taken; -1 is a signal's.
    pub fn end(mut self) -> (i32, String, String) {
        fn reader(from: Option<impl std::io::Read + Send + 'static>) -> std::thread::JoinHandle<String> {
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                if let Some(mut from) = from {
                    // What was read until a failure is what there is.
                    let _ = from.read_to_end(&mut bytes);
                }
                String::from_utf8_lossy(&bytes).into_owned()
            })
        }
        let (out, err) = (reader(self.0.stdout.take()), reader(self.0.stderr.take()));
        let begin = Instant::now();
        let status = loop {
            if let Some(status) = self.0.try_wait().expect("it is our child") {
                break status;
            }
            if begin.elapsed() > LIMIT {
                let _ = self.0.kill();
                let _ = self.0.wait();
                panic!("it did not end:\n{}{}", out.join().unwrap_or_default(), err.join().unwrap_or_default());
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        (status.code().unwrap_or(-1), out.join().unwrap_or_default(), err.join().unwrap_or_default())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended, and been waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// That the manual page at `path` is what the flags and the other sections make it. With `UPDATE_MAN` in the environment,
/// writes it.
pub fn check_manual(command: clap::Command, synopsis: &[u8], rest: &[u8], path: &str) {
    let man = Man::new(command).section("8").manual("unetmap");
    let mut page = Vec::new();
    let rendered = man
        .render_title(&mut page)
        .and_then(|()| man.render_name_section(&mut page))
        .map(|()| page.extend_from_slice(synopsis))
        .and_then(|()| man.render_description_section(&mut page))
        .and_then(|()| man.render_options_section(&mut page));
    rendered.expect("writing to memory does not fail");
    page.extend_from_slice(rest);
    if std::env::var_os("UPDATE_MAN").is_some() {
        fs::write(path, &page).expect("the manual page can be written");
    }
    let found = fs::read(path).expect("the manual page can be read");
    assert!(found == page, "{path} is old: run this test with UPDATE_MAN=1 in the environment");
}

/// Checks that each short flag has a long name, and that everything has help.
pub fn check_flags(command: clap::Command) {
    for arg in command.get_arguments() {
        assert!(arg.is_positional() || arg.get_long().is_some(), "{arg:?}");
        assert!(arg.get_help().is_some(), "{arg:?}");
    }
    command.debug_assert();
}

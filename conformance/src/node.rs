//! A `/dev/netmap` of the test's own, served by its daemon, and programs that find it there.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use unetmap_sys::fuse;

use crate::LIMIT;
use crate::home::{Guard, Home, program, summary, until, wait_within};

/// The node of a test's daemon.
pub struct Node {
    path: PathBuf,
    mount: PathBuf,
}

impl Node {
    /// Has the test's daemon make one in the test's folder; a daemon is started if none runs.
    ///
    /// # Errors
    /// What this machine lacks for it.
    #[track_caller]
    pub fn mounted(home: &Home) -> Result<Node, String> {
        Node::by(home, "")
    }

    /// The same, with a policy for a daemon that is started now; empty: what is so without one.
    ///
    /// # Errors
    /// As [`Node::mounted`].
    #[track_caller]
    pub fn by(home: &Home, policy: &str) -> Result<Node, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("only root has the node".into());
        }
        fuse::available().map_err(|e| format!("/dev/fuse: {e}"))?;
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        let mut numbers = release.split('.').map_while(|word| word.parse::<u32>().ok());
        let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        if version < (6, 9) {
            return Err(format!("the node needs Linux 6.9, and this is {release}"));
        }
        let path = home.folder().join("netmap");
        let mut command = node_command(home, &["on", &path.display().to_string()]);
        if !policy.is_empty() {
            let file = home.folder().join("policy.toml");
            fs::write(&file, policy).expect("a file in the test's own folder");
            command.env("UNETMAP_POLICY", file);
        }
        let output = command.output().expect("unetmap starts");
        assert!(output.status.success(), "unetmap node on: {}", String::from_utf8_lossy(&output.stderr));
        Ok(Node { path, mount: mount_of(home) })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs `program` where this is `/dev/netmap`: in a mount namespace of its own, with a small `/dev` of its own.
    pub fn command(&self, program: &Path) -> Command {
        const SCRIPT: &str = "set -e
            mount -t tmpfs -o mode=755 dev /dev
            mknod -m 666 /dev/null c 1 3; mknod -m 666 /dev/zero c 1 5; mknod -m 444 /dev/urandom c 1 9
            ln -s \"$0\" /dev/netmap
            exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "--", "sh", "-c", SCRIPT]).arg(&self.path).arg(program);
        command
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // What a killed daemon leaves; a living one cleans up itself.
        detach(&self.mount);
    }
}

/// Arguments of `cc` for programs that need nothing when they run.
pub const STATIC: [&str; 2] = ["-static", "-DNODE"];

/// The node, or `None` and the reason printed.
pub fn node(home: &Home) -> Option<Node> {
    Node::mounted(home).inspect_err(|why| summary(&format!("skipped: {why}"))).ok()
}

/// A program that says one line, and goes on. It is killed when this is dropped.
pub struct Talking {
    /// The program.
    pub guard: Guard,
    /// What it said.
    pub line: String,
}

impl Talking {
    /// Starts a program on the node, and waits for its line.
    #[track_caller]
    pub fn start(node: &Node, program: &Path, args: &[&str]) -> Talking {
        Talking::spawn(node.command(program).args(args))
    }

    /// The same by a command.
    #[track_caller]
    pub fn spawn(command: &mut Command) -> Talking {
        let mut guard = Guard::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let mut line = String::new();
        let mut out = BufReader::new(guard.0.stdout.take().expect("piped"));
        out.read_line(&mut line).expect("a line");
        assert!(!line.is_empty(), "{command:?} ended without a word");
        guard.0.stdout = Some(out.into_inner());
        Talking { guard, line: line.trim().into() }
    }

    /// Has one that waits for a line go on.
    #[track_caller]
    pub fn go_on(&mut self) {
        self.guard.0.stdin.as_mut().expect("piped").write_all(b"\n").expect("it listens");
    }

    /// Waits for its end, which must be a good one.
    #[track_caller]
    pub fn ends_well(mut self) {
        let status = wait_within(&mut self.guard.0, LIMIT).expect("it ends");
        let mut rest = String::new();
        self.guard.0.stdout.take().map(|mut out| out.read_to_string(&mut rest));
        assert!(status.success(), "{status}: {rest}");
    }
}

/// A process that goes on when this is dropped.
pub struct Stopped(Pid);

impl Stopped {
    /// Stops it, and waits until all its threads stand still: what they have read before is not taken back.
    #[track_caller]
    pub fn new(process: Pid) -> Stopped {
        kill_process(process, Signal::STOP).expect("our process");
        let stopped = Stopped(process);
        let tasks = format!("/proc/{}/task", process.as_raw_pid());
        until("all its threads are stopped", || {
            let states = fs::read_dir(&tasks).expect("our process").flatten().map(|task| {
                let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
                stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
            });
            states.into_iter().all(|stands| stands)
        });
        stopped
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // It may be dead by now.
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// Runs `unetmap node` about the test's daemon: whether it went well, and what it said.
pub fn unetmap_node(home: &Home, args: &[&str]) -> (bool, String) {
    let output = node_command(home, args).output().expect("unetmap starts");
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

fn node_command(home: &Home, args: &[&str]) -> Command {
    let mut command = Command::new(program("unetmap"));
    command.arg("node").args(args).stdin(Stdio::null());
    command.env("UNETMAP_SOCKET", home.socket()).env("UNETMAPD", program("unetmapd"));
    command
}

/// Where the daemon mounts.
pub(crate) fn mount_of(home: &Home) -> PathBuf {
    let mut folder = home.socket().into_os_string();
    folder.push(".node");
    folder.into()
}

pub(crate) fn detach(mount: &Path) {
    while fuse::is_ours(mount).is_ok_and(|ours| ours) && fuse::detach(mount).is_ok() {}
}

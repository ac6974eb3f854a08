// SPDX-License-Identifier: BSD-2-Clause
//! A `/dev/netmap` for one test, served by its daemon, and programs that use it.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};

use crate::LIMIT;
use crate::home::{Guard, Home, first_daemon, program, summary, until, wait_within};

/// The node of a test's daemon.
pub struct Node {
    path: PathBuf,
    mount: PathBuf,
}

impl Node {
    /// Lets the test's daemon create a node in the test's folder; starts a daemon if none runs.
    ///
    /// # Errors
    /// The missing requirement of this machine.
    #[track_caller]
    pub fn mounted(home: &Home) -> Result<Node, String> {
        Node::by(home, "")
    }

    /// As [`Node::mounted`], with a policy for a daemon that is started now; empty: the default policy.
    ///
    /// # Errors
    /// As [`Node::mounted`].
    #[track_caller]
    pub fn by(home: &Home, policy: &str) -> Result<Node, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("only root has the node".into());
        }
        let fuse = fs::File::options().read(true).write(true).open("/dev/fuse");
        fuse.map_err(|e| format!("/dev/fuse: {e}"))?;
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

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A command that runs `program` in a new mount namespace with a small `/dev`, in which `/dev/netmap` is this node.
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
        // A killed daemon leaves its mount; a running one removes it itself.
        detach(&self.mount);
    }
}

/// Arguments of `cc` for statically linked programs.
pub const STATIC: [&str; 2] = ["-static", "-DNODE"];

/// Creates the node; prints the reason and returns `None` if this machine cannot have it.
pub fn node(home: &Home) -> Option<Node> {
    Node::mounted(home).inspect_err(|why| summary(&format!("skipped: {why}"))).ok()
}

/// A program that has printed one line and runs on. It is killed when this is dropped.
pub struct StartedProgram {
    /// The process.
    pub guard: Guard,
    /// The line that it printed.
    pub line: String,
}

impl StartedProgram {
    /// Starts a program on the node, and waits for its line.
    #[track_caller]
    pub fn start(node: &Node, program: &Path, args: &[&str]) -> StartedProgram {
        StartedProgram::spawn(node.command(program).args(args))
    }

    /// Starts a program by a command, and waits for its line.
    #[track_caller]
    pub fn spawn(command: &mut Command) -> StartedProgram {
        let mut guard = Guard::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let mut line = String::new();
        let mut out = BufReader::new(guard.0.stdout.take().expect("piped"));
        out.read_line(&mut line).expect("a line");
        assert!(!line.is_empty(), "{command:?} exited without output");
        guard.0.stdout = Some(out.into_inner());
        StartedProgram { guard, line: line.trim().into() }
    }

    /// Lets the program continue, which waits for a line of input.
    #[track_caller]
    pub fn write_line(&mut self) {
        self.guard.0.stdin.as_mut().expect("piped").write_all(b"\n").expect("it listens");
    }

    /// Waits for its exit; panics if its status is not 0.
    #[track_caller]
    pub fn exits_successfully(mut self) {
        let status = wait_within(&mut self.guard.0, LIMIT).expect("it ends");
        let mut rest = String::new();
        self.guard.0.stdout.take().map(|mut out| out.read_to_string(&mut rest));
        assert!(status.success(), "{status}: {rest}");
    }
}

/// A stopped process, which is continued when this is dropped.
pub struct Stopped(Pid);

impl Stopped {
    /// Stops the process, and waits until all its threads are stopped.
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
        // It may have exited.
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// Runs `unetmap node` for the test's daemon; returns whether it succeeded, and its output.
pub fn unetmap_node(home: &Home, args: &[&str]) -> (bool, String) {
    let output = node_command(home, args).output().expect("unetmap starts");
    let printed = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&printed).into_owned())
}

fn node_command(home: &Home, args: &[&str]) -> Command {
    let mut command = Command::new(program("unetmap"));
    command.arg("node").args(args).stdin(Stdio::null());
    command.env("UNETMAP_SOCKET", home.socket()).env("UNETMAPD", first_daemon());
    command
}

/// The folder in which the daemon mounts.
pub(crate) fn mount_of(home: &Home) -> PathBuf {
    let mut folder = home.socket().into_os_string();
    folder.push(".node");
    folder.into()
}

pub(crate) fn detach(mount: &Path) {
    while is_unetmap_mount(mount) && detach_once(mount).is_ok() {}
}

/// Whether the topmost mount there is that of a daemon.
pub fn is_unetmap_mount(at: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").expect("/proc is mounted");
    // The names of temporary folders contain no character that the table writes as octal digits.
    let mut here = table.lines().filter(|line| line.split(' ').nth(4) == at.to_str());
    here.next_back()
        .is_some_and(|line| line.split_once(" - ").is_some_and(|(_, rest)| rest.starts_with("fuse.unetmap unetmapd")))
}

/// Detaches one mount.
///
/// # Errors
/// `EINVAL`: nothing is mounted there.
pub fn detach_once(at: &Path) -> rustix::io::Result<()> {
    unmount(at, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)
}

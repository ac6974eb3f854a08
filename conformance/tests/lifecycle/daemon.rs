// SPDX-License-Identifier: BSD-2-Clause
//! The daemon: how it is started, when it exits, what it costs, and which users may use it.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use conformance::home::{Guard, is_alive, raise_fd_limit, snapshot_by, summary};
use conformance::traffic::{bytes_of, exchange, open};
use conformance::{Home, LIMIT, isolated, isolated_alone, program, until};
use rustix::process::{Pid, Signal, kill_process};
use unetmap::{Interest, Port};

fn hold(spec: &str) -> Guard {
    Guard::spawn(Command::new(env!("CARGO_BIN_EXE_traffic_client")).args(["hold", spec]).stdout(Stdio::piped()))
}

/// Daemon processes that have `word` among their arguments.
fn daemons(word: &Path) -> usize {
    let word = word.display().to_string();
    let processes = fs::read_dir("/proc").expect("proc").flatten();
    let lines = processes.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    lines
        .filter(|line| {
            let mut args = line.split(|b| *b == 0);
            args.next().is_some_and(|program| program.ends_with(b"unetmapd")) && args.any(|arg| arg == word.as_bytes())
        })
        .count()
}

#[test]
fn an_idle_daemon_exits_and_the_next_program_starts_another() {
    isolated(|home| {
        let socket = home.socket();
        let mut daemon = Guard::spawn(
            Command::new(program("unetmapd"))
                .args(["--foreground", "--idle-exit", "1", "--socket"])
                .arg(&socket)
                .stderr(Stdio::null()),
        );
        let connection = home.connected();
        let port = open("netmap:p{1");
        assert_eq!(home.daemon(), daemon.pid());
        drop(connection);
        sleep(Duration::from_millis(2500));
        assert!(daemon.0.try_wait().expect("our child").is_none(), "it ended under an open port");
        port.txsync().expect("the daemon runs");
        drop(port);
        assert!(daemon.wait().success(), "an idle daemon ends well");
        assert!(!socket.exists(), "it left its socket behind");
        home.assert_serves();
        assert_eq!(daemons(&socket), 1);
    });
}

/// The kernel closes the files of a process that was killed from the highest number down, which may take seconds: the
/// next daemon can be started as soon as this one listens no more.
#[test]
fn a_daemon_that_is_killed_first_stops_to_listen() {
    isolated(|home| {
        // It was started by this program, which has left it the socket.
        let _port = open("netmap:p{1");
        let sockets = fs::read_to_string("/proc/net/unix").expect("a list");
        let path = home.socket().display().to_string();
        let listening = sockets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let listening = listening.filter(|words| words.get(3) == Some(&"00010000") && words.last() == Some(&&*path));
        let links: Vec<String> = listening.map(|words| format!("socket:[{}]", words[6])).collect();
        assert_eq!(links.len(), 1, "{sockets}");
        let files = fs::read_dir(format!("/proc/{}/fd", home.daemon().as_raw_pid())).expect("a process").flatten();
        let of_listener = |path: &Path| fs::read_link(path).is_ok_and(|to| to == Path::new(&links[0]));
        let number = |path: &Path| path.file_name()?.to_str()?.parse::<u32>().ok();
        let (own, others): (Vec<_>, Vec<_>) = files.map(|file| file.path()).partition(|path| of_listener(path));
        let numbers = |of: Vec<PathBuf>| of.iter().filter_map(|path| number(path)).collect::<Vec<_>>();
        let (own, others) = (numbers(own), numbers(others));
        assert!(!own.is_empty() && own.iter().min() > others.iter().max(), "{own:?} {others:?}");
    });
}

/// Half of the rounds find the socket of a killed daemon.
#[test]
fn two_programs_that_start_together_start_one_daemon() {
    isolated(|home| {
        for round in 0..20 {
            let mut both = [hold("netmap:p{1"), hold("netmap:p}1")];
            until("both have their ports open", || {
                for guard in &mut both {
                    assert!(guard.0.try_wait().expect("our child").is_none(), "one of them failed in round {round}");
                }
                home.try_snapshot().is_some_and(|snapshot| snapshot.sessions.len() == 2)
            });
            assert_eq!(daemons(&home.socket()), 1, "round {round}");
            let daemon = home.daemon();
            drop(both);
            if round % 2 == 0 {
                kill_process(daemon, Signal::KILL).expect("our own daemon");
                until("the daemon has exited", || !is_alive(daemon));
                assert!(home.socket().exists());
            } else {
                home.end_daemon();
            }
        }
    });
}

#[test]
fn many_programs_that_start_together_start_one_daemon() {
    isolated(|home| {
        let all: Vec<Guard> = (0..12).map(|i| hold(&format!("netmap:p{{{i}"))).collect();
        until("all have their ports open", || home.try_snapshot().is_some_and(|s| s.sessions.len() == 12));
        assert_eq!(daemons(&home.socket()), 1);
        drop(all);
    });
}

#[test]
fn a_daemon_exits_on_a_signal_and_removes_its_socket() {
    isolated(|home| {
        for signal in [Signal::TERM, Signal::INT] {
            let port = open("netmap:p{1");
            let daemon = home.daemon();
            kill_process(daemon, signal).expect("our own daemon");
            until("it ends", || !is_alive(daemon));
            assert!(!home.socket().exists());
            until("the port fails", || port.rxsync().is_err());
        }
        home.assert_serves();
    });
}

#[test]
fn a_daemon_that_exits_leaves_the_socket_of_another() {
    isolated(|home| {
        let first = open("netmap:p{1");
        let daemon = home.daemon();
        // Whatever cleans the folder up removes the lock, too.
        for path in [home.socket(), home.socket().with_extension("sock.lock")] {
            fs::remove_file(&path).expect("a file of the daemon");
        }
        let second = hold("netmap:p{1");
        until("another daemon serves", || home.socket().exists() && !home.snapshot().sessions.is_empty());
        assert_ne!(home.daemon(), daemon);
        kill_process(daemon, Signal::TERM).expect("our own daemon");
        until("it ends", || !is_alive(daemon));
        until("the port fails", || first.rxsync().is_err());
        assert!(home.socket().exists());
        drop(second);
        home.assert_serves();
    });
}

#[test]
fn a_second_daemon_at_the_same_socket_refuses_to_start() {
    isolated(|home| {
        let _port = open("netmap:p{1");
        let output = Command::new(program("unetmapd"))
            .args(["--foreground", "--socket"])
            .arg(home.socket())
            .output()
            .expect("the daemon runs");
        let printed = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{printed}");
        assert!(printed.contains("already listens"), "{printed}");
        home.assert_serves();
    });
}

#[test]
fn a_stale_socket_is_replaced_and_another_file_is_not() {
    isolated(|home| {
        // A socket without a listener.
        drop(std::os::unix::net::UnixListener::bind(home.socket()).expect("a socket"));
        assert!(home.socket().exists());
        home.assert_serves();
        home.end_daemon();
        fs::write(home.socket(), "precious").expect("a file");
        let why = Port::open("netmap:p{1").map(|_| ()).expect_err("there is no room for a socket").to_string();
        assert!(why.contains("not a socket"), "{why}");
        let output = Command::new(program("unetmapd"))
            .args(["--foreground", "--socket"])
            .arg(home.socket())
            .output()
            .expect("the daemon runs");
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(fs::read_to_string(home.socket()).expect("the file is still there"), "precious");
    });
}

#[test]
fn wrong_arguments_are_reported() {
    isolated(|home| {
        for (args, part) in [
            (&["--buf-num", "3"][..], "buf_num is 3"),
            (&["--buf-size", "1"], "buf_size"),
            (&["--ring-num", "999999"], "ring_num"),
            (&["--listen-fd", "77"], "--listen-fd 77"),
            (&["--idle-exit", "soon"], "idle-exit"),
            (&["--nonsense"], "nonsense"),
        ] {
            let output = Command::new(program("unetmapd"))
                .args(args)
                .arg("--socket")
                .arg(home.socket())
                .stdin(Stdio::null())
                .output()
                .expect("the daemon runs");
            let printed = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success(), "{args:?}");
            assert!(printed.contains(part) && !printed.contains("panicked"), "{args:?}: {printed}");
        }
        let mut unwritable = Command::new(env!("CARGO_BIN_EXE_traffic_client"));
        unwritable.args(["hold", "netmap:p{1"]).env("UNETMAP_SOCKET", "/proc/nowhere/sock");
        let printed = String::from_utf8_lossy(&unwritable.output().expect("it runs").stderr).into_owned();
        assert!(printed.contains("/proc/nowhere/sock"), "{printed}");
        let mut missing = Command::new(env!("CARGO_BIN_EXE_traffic_client"));
        missing.args(["hold", "netmap:p{1"]).env("UNETMAPD", "/nowhere/unetmapd");
        let printed = String::from_utf8_lossy(&missing.output().expect("it runs").stderr).into_owned();
        assert!(printed.contains("/nowhere/unetmapd"), "{printed}");
    });
}

/// A folder that every user can read, with the programs in it, and a folder for everybody's temporary files.
struct Public {
    folder: PathBuf,
}

fn everybody(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("our own file");
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

impl Public {
    fn new(home: &Home) -> Public {
        let folder = home.folder().join("public");
        fs::create_dir(&folder).expect("a folder");
        everybody(home.folder(), 0o755);
        everybody(&folder, 0o755);
        for name in ["unetmapd", "unetmap", "pkt-gen"] {
            fs::copy(program(name), folder.join(name)).expect("room for a copy");
            everybody(&folder.join(name), 0o755);
        }
        fs::create_dir(folder.join("tmp")).expect("a folder");
        everybody(&folder.join("tmp"), 0o1777);
        Public { folder }
    }

    /// A command that runs a program of the folder as an unprivileged user, with a daemon of that user.
    fn command(&self, name: &str) -> Command {
        let program = self.folder.join(name);
        let mut command = if is_root() {
            let mut command = Command::new("runuser");
            command.args(["-u", "nobody", "--"]).arg(program);
            command
        } else {
            Command::new(program)
        };
        command.env("TMPDIR", self.folder.join("tmp")).current_dir(&self.folder);
        for name in ["UNETMAP_SOCKET", "UNETMAPD", "XDG_RUNTIME_DIR"] {
            command.env_remove(name);
        }
        command
    }

    fn uid(&self) -> u32 {
        if !is_root() {
            return rustix::process::geteuid().as_raw();
        }
        let passwd = fs::read_to_string("/etc/passwd").expect("users");
        let nobody = passwd.lines().find(|line| line.starts_with("nobody:")).expect("nobody is a user");
        nobody.split(':').nth(2).and_then(|n| n.parse().ok()).expect("a number")
    }

    fn users_folder(&self) -> PathBuf {
        self.folder.join("tmp").join(format!("unetmap-{}", self.uid()))
    }
}

fn printed(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Runs the two commands of the README as an unprivileged user, without a running daemon.
#[test]
fn an_ordinary_user_needs_no_privilege_and_no_setup() {
    isolated(|home| {
        let public = Public::new(home);
        let run = |args: &[&str]| {
            let mut command = public.command("pkt-gen");
            Guard::spawn(command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()))
        };
        let mut rx = run(&["-i", "netmap:p}1", "-f", "rx", "-n", "200000", "-w", "0"]);
        let mut tx = run(&["-i", "netmap:p{1", "-f", "tx", "-n", "200000", "-w", "0"]);
        let mut text = String::new();
        for guard in [&mut tx, &mut rx] {
            let status = guard.wait();
            for pipe in [
                guard.0.stdout.take().map(|p| Box::new(p) as Box<dyn std::io::Read>),
                guard.0.stderr.take().map(|p| Box::new(p) as Box<dyn std::io::Read>),
            ] {
                pipe.expect("piped").read_to_string(&mut text).expect("text");
            }
            assert!(status.success(), "{text}");
        }
        assert!(text.contains("Sent 200000 packets") && text.contains("Received 200000 packets"), "{text}");
        let folder = public.users_folder();
        let mode = fs::metadata(&folder).expect("the user's folder").permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "others can look into {}", folder.display());
        let daemon = snapshot_by(public.command("unetmap").env("UNETMAP_SOCKET", folder.join("unetmapd.sock")));
        let daemon = Pid::from_raw(daemon.expect("a daemon that answers").daemon.pid as i32).expect("a pid");
        let status = fs::read_to_string(format!("/proc/{}/status", daemon.as_raw_nonzero())).expect("it lives");
        let uid = status.lines().find(|l| l.starts_with("Uid:")).and_then(|l| l.split_whitespace().nth(1));
        assert_eq!(uid, Some(public.uid().to_string().as_str()));
        kill_process(daemon, Signal::TERM).expect("the test's own daemon");
        until("the user's daemon ends", || !is_alive(daemon));
        summary(&format!("as {}: 200000 packets sent and received", if is_root() { "nobody" } else { "this user" }));
    });
}

#[test]
fn a_folder_that_others_own_or_can_write_is_refused() {
    isolated(|home| {
        let public = Public::new(home);
        let folder = public.users_folder();
        // Owned by root if the test runs as root; else our own, but writable by everybody.
        fs::create_dir(&folder).expect("a folder");
        everybody(&folder, if is_root() { 0o755 } else { 0o777 });
        let output =
            public.command("pkt-gen").args(["-i", "netmap:p{1", "-f", "tx", "-n", "1"]).output().expect("it runs");
        assert!(!output.status.success());
        let text = printed(&output);
        assert!(text.contains("belongs to another user, or others can write to it"), "{text}");
        // A symbolic link to a valid folder is refused as well.
        fs::remove_dir(&folder).expect("our own folder");
        std::os::unix::fs::symlink(home.folder(), &folder).expect("a link");
        let output =
            public.command("pkt-gen").args(["-i", "netmap:p{1", "-f", "tx", "-n", "1"]).output().expect("it runs");
        assert!(!output.status.success());
        let text = printed(&output);
        assert!(text.contains("belongs to another user"), "{text}");
    });
}

#[test]
fn another_user_is_refused() {
    isolated(|home| {
        if !is_root() {
            summary("skipped: only root can be two users");
            return;
        }
        let public = Public::new(home);
        let _port = open("netmap:p{1");
        // Root's daemon accepts connections of all users and grants what its policy allows: without a policy, no pipes.
        let output = public
            .command("pkt-gen")
            .args(["-i", "netmap:p}1", "-f", "rx", "-n", "1"])
            .env("UNETMAP_SOCKET", home.socket())
            .output()
            .expect("it runs");
        let text = printed(&output);
        assert!(!output.status.success() && text.contains("no rule of this daemon's policy"), "{text}");
        assert_eq!(home.snapshot().sessions.len(), 1);
    });
}

/// `USER_HZ`, which is 100 on all supported architectures.
const TICKS_PER_SECOND: f64 = 100.0;

fn ticks(daemon: Pid) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", daemon.as_raw_nonzero())).expect("it lives");
    let rest = stat.rsplit_once(')').expect("a name in brackets").1;
    // utime and stime are fields 14 and 15; `rest` begins with field 3.
    rest.split_whitespace().skip(11).take(2).map(|n| n.parse::<u64>().expect("a number")).sum()
}

#[test]
fn a_pipe_at_its_defaults_touches_at_most_16_mib() {
    isolated(|home| {
        let (a, b) = (open("netmap:p{1"), open("netmap:p}1"));
        for (tx, rx) in [(&a, &b), (&b, &a)] {
            let mut left = 20_000;
            while left > 0 {
                tx.poll(Interest::TX, Some(LIMIT)).expect("the daemon runs");
                let full = vec![0x5a; tx.buf_size() as usize];
                for slot in tx.tx_rings()[0].available() {
                    let n = slot.frame().write(0, &full);
                    slot.set_len_flags(n as u16, 0);
                }
                tx.tx_rings()[0].advance(u32::MAX);
                tx.txsync().expect("the daemon runs");
                rx.rxsync().expect("the daemon runs");
                for slot in rx.rx_rings()[0].available() {
                    assert_eq!(bytes_of(&slot).len(), full.len());
                }
                left -= rx.rx_rings()[0].advance(u32::MAX).min(left);
                rx.rxsync().expect("the daemon runs");
            }
        }
        let bytes = home.snapshot().region("p").resident_bytes;
        summary(&format!("a pipe under full traffic touches {:.1} MiB", bytes as f64 / f64::from(1 << 20)));
        assert!(bytes <= 16 << 20, "{bytes}");
    });
}

/// Started from a shell, the daemon goes to the background and prints its socket; a second one is refused, and so is an
/// unknown log level.
#[test]
fn a_daemon_started_by_hand_goes_to_the_background() {
    isolated(|home| {
        let start = |more: &[&str]| {
            Command::new(program("unetmapd")).arg("--socket").arg(home.socket()).args(more).output().expect("a program")
        };
        let nonsense = start(&["--log", "loudly"]);
        assert!(!nonsense.status.success(), "{nonsense:?}");
        assert!(String::from_utf8_lossy(&nonsense.stderr).contains("loudly"), "{nonsense:?}");
        let first = start(&["--buf-num", "5000"]);
        assert!(first.status.success(), "{first:?}");
        assert!(String::from_utf8_lossy(&first.stdout).contains("serving at"), "{first:?}");
        let port = open("netmap:d{1");
        assert_eq!(port.region().geometry().bufs.count, 5000, "its options went along");
        let second = start(&[]);
        assert!(!second.status.success(), "{second:?}");
        assert!(String::from_utf8_lossy(&second.stderr).contains("already listens"), "{second:?}");
        drop(port);
    });
}

/// Tests of [`isolated_alone`].
mod alone {
    use super::*;

    #[test]
    fn a_daemon_with_a_hundred_idle_ports_uses_almost_no_processor_time() {
        isolated_alone(|home| {
            raise_fd_limit();
            let start = Instant::now();
            let ports: Vec<Port> = (0..100)
                .map(|i| open(&format!("netmap:p{}{}{}", i / 20, if i % 2 == 0 { '{' } else { '}' }, i % 20 / 2)))
                .collect();
            let each = start.elapsed() / 100;
            assert_eq!(home.snapshot().sessions.len(), 100);
            let daemon = home.daemon();
            let (before, start) = (ticks(daemon), Instant::now());
            sleep(Duration::from_secs(3));
            let used = (ticks(daemon) - before) as f64 / TICKS_PER_SECOND;
            let share = 100.0 * used / start.elapsed().as_secs_f64();
            // Mapped pages of regions are counted as shared memory.
            let kib = home.daemon_kib("RssAnon:") + home.daemon_kib("RssFile:");
            summary(&format!("100 ports: {share:.2} % of a core, {kib} KiB beside the regions, {each:?} to open one"));
            assert!(share < 5.0, "an idle daemon takes {share} % of a core");
            assert!(home.daemon_kib("RssAnon:") < 20 << 10, "{kib} KiB");
            for pair in ports.chunks(2).step_by(7) {
                exchange(&pair[0], &pair[1], 1, 0, 100);
            }
        });
    }
}

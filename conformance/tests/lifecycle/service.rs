// SPDX-License-Identifier: BSD-2-Clause
//! The daemon as a service: its state reaches the service manager, whose socket it serves; its files are read again.

use std::fs;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use conformance::home::{Guard, daemon_listens, is_alive, summary};
use conformance::kept::{kill, wait_until_kept};
use conformance::replace::{refused, replace};
use conformance::thread::StoppedThread;
use conformance::traffic::{exchange, open};
use conformance::{Home, LIMIT, isolated, program, until};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use rustix::process::{Pid, Signal, kill_process};

/// Debian's user `nobody`.
const NOBODY: u32 = 65534;

fn unetmap(args: &[&str]) -> Output {
    Command::new(program("unetmap")).args(args).stdin(Stdio::null()).output().expect("the front command")
}

fn text(output: &Output) -> String {
    [&output.stdout[..], &output.stderr].iter().map(|bytes| String::from_utf8_lossy(bytes)).collect()
}

/// The socket of a service manager.
struct Manager {
    socket: UnixDatagram,
    path: PathBuf,
    /// Whether services are to give signs of life, which a test then has to read.
    watchdog: bool,
}

impl Manager {
    fn new(home: &Home) -> Manager {
        let path = home.folder().join("notify");
        let socket = UnixDatagram::bind(&path).expect("a socket");
        socket.set_read_timeout(Some(LIMIT)).expect("a time");
        Manager { socket, path, watchdog: false }
    }

    /// The next message.
    #[track_caller]
    fn next(&self) -> String {
        let mut bytes = [0; 4096];
        let length = self.socket.recv(&mut bytes).expect("a message of the daemon");
        String::from_utf8(bytes[..length].to_vec()).expect("text")
    }

    /// Whether no message has arrived.
    fn is_silent(&self) -> bool {
        self.socket.set_nonblocking(true).expect("a socket");
        let nothing = self.socket.recv(&mut [0; 64]).is_err_and(|e| e.kind() == ErrorKind::WouldBlock);
        self.socket.set_nonblocking(false).expect("a socket");
        nothing
    }

    /// Starts a daemon as a service: `listener`, if any, is its descriptor 3.
    fn start(&self, home: &Home, listener: Option<OwnedFd>, args: &[&str]) -> Guard {
        let script = match listener {
            Some(_) => "exec 3<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\"",
            None => "exec \"$0\" \"$@\"",
        };
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(program("unetmapd")).args(["--foreground", "--socket"]).arg(home.socket());
        command.args(args).env("NOTIFY_SOCKET", &self.path);
        if self.watchdog {
            command.env("WATCHDOG_USEC", "400000");
        }
        command.stdin(listener.map_or_else(Stdio::null, Stdio::from));
        command.stderr(fs::File::options().append(true).create(true).open(home.log()).expect("a log"));
        Guard::spawn(&mut command)
    }
}

fn listener(path: &Path, kind: SocketType) -> OwnedFd {
    let fd = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).expect("a socket");
    bind(&fd, &SocketAddrUnix::new(path).expect("a path")).expect("a free path");
    listen(&fd, 16).expect("a socket");
    fd
}

/// Each message of sd_notify(3), in its place.
#[test]
fn the_service_manager_is_told_the_state_of_the_daemon() {
    isolated(|home| {
        let manager = Manager { watchdog: true, ..Manager::new(home) };
        let mut daemon = manager.start(home, None, &["--idle-exit", "0"]);
        assert_eq!(manager.next(), "READY=1\n");
        for _ in 0..3 {
            assert_eq!(manager.next(), "WATCHDOG=1\n");
        }
        daemon.signal(Signal::HUP);
        let next = || std::iter::repeat_with(|| manager.next()).find(|message| message != "WATCHDOG=1\n");
        let reloading = next().expect("endless");
        assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
        assert_eq!(next().expect("endless"), "READY=1\n");
        exchange(&open("netmap:p{1"), &open("netmap:p}1"), 0, 0, 10);
        let stop = unetmap(&["stop", "--force"]);
        assert!(!stop.status.success() && text(&stop).contains("systemctl stop unetmapd.socket"), "{}", text(&stop));
        daemon.signal(Signal::TERM);
        assert_eq!(next().expect("endless"), "STOPPING=1\n");
        assert!(daemon.wait().success());
    });
}

/// A successor in the unit's control group is the unit's main process from then on; one outside is refused, as the
/// service manager would lose it.
#[test]
fn a_unit_is_replaced_in_its_control_group_only() {
    isolated(|home| {
        let manager = Manager::new(home);
        let mut daemon = manager.start(home, None, &["--idle-exit", "0"]);
        assert_eq!(manager.next(), "READY=1\n");
        let ports = ["netmap:p{1", "netmap:p}1"].map(open);
        // The only hierarchy, or one of several.
        let mut roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/freezer"].into_iter().map(Path::new);
        let root = roots.find(|root| root.join("cgroup.procs").exists());
        let group = root.map(|root| root.join(format!("unetmap-test-{}", std::process::id())));
        if let Some(group) = group.filter(|group| fs::create_dir(group).is_ok()) {
            let script = "echo $$ >\"$0/cgroup.procs\" && exec \"$1\" --replace --socket \"$2\"";
            let mut command = Command::new("sh");
            let output = command.args(["-c", script]).arg(&group).arg(program("unetmapd")).arg(home.socket()).output();
            let printed = text(&output.expect("a shell"));
            until("the group is empty", || fs::remove_dir(&group).is_ok());
            assert!(printed.contains("systemctl reload unetmapd") || printed.contains("cgroup.procs"), "{printed}");
        }
        let replace = || {
            let mut command = Command::new(program("unetmapd"));
            command.args(["--replace", "--if-changed", "--socket"]).arg(home.socket()).output().expect("it runs")
        };
        assert!(text(&replace()).contains("runs this program already"));
        let after = conformance::replace::replace(home);
        assert_eq!(manager.next(), format!("MAINPID={}\n", after.as_raw_nonzero()));
        assert_eq!(manager.next(), "READY=1\n");
        assert!(daemon.wait().success());
        exchange(&ports[0], &ports[1], 0, 0, 10);
    });
}

/// The service manager ends a unit with its main process: that is the one which keeps the ports.
#[test]
fn a_unit_keeps_its_ports_over_a_crash() {
    isolated(|home| {
        let manager = Manager { watchdog: true, ..Manager::new(home) };
        let next = || std::iter::repeat_with(|| manager.next()).find(|message| message != "WATCHDOG=1\n");
        let main_process = || {
            let message = next().expect("endless");
            let pid = message.strip_prefix("MAINPID=").and_then(|rest| rest.trim_end().parse().ok());
            Pid::from_raw(pid.unwrap_or_else(|| panic!("{message}"))).expect("a process")
        };
        let served = listener(&home.socket(), SocketType::SEQPACKET);
        let _daemon = manager.start(home, Some(served), &["--idle-exit", "0", "--keep-ports"]);
        let store = main_process();
        assert_eq!(next().expect("endless"), "READY=1\n");
        let ports = ["netmap:p{1", "netmap:p}1"].map(open);
        wait_until_kept(home);
        for n in 0..3 {
            assert_ne!(kill(home), store, "the daemon is another process");
            assert_eq!(next().expect("endless"), "READY=1\n", "the main process stays");
            assert_eq!(manager.next(), "WATCHDOG=1\n");
            exchange(&ports[0], &ports[1], 0, n * 1000, (n + 1) * 1000);
            wait_until_kept(home);
        }
        // Its socket is the manager's, which runs another program.
        let mut command = Command::new(program("unetmapd"));
        let output = command.args(["--replace", "--if-changed", "--socket"]).arg(home.socket()).output();
        assert!(text(&output.expect("it runs")).contains("runs this program already"));
        // The process that keeps the ports of a successor is another one. The former one ends after it was replaced.
        let mut command = Command::new(program("unetmapd"));
        command.args(["--replace", "--keep-ports", "--idle-exit", "0", "--socket"]).arg(home.socket());
        assert!(command.output().expect("it runs").status.success());
        assert_eq!(main_process(), home.daemon(), "the successor, until it has told its own");
        let other = main_process();
        until("the former one ends", || !is_alive(store));
        assert_eq!(next().expect("endless"), "READY=1\n");
        wait_until_kept(home);
        kill(home);
        exchange(&ports[0], &ports[1], 0, 3000, 4000);
        assert_eq!(next().expect("endless"), "READY=1\n");
        kill_process(home.daemon(), Signal::TERM).expect("our own daemon");
        assert_eq!(next().expect("endless"), "STOPPING=1\n");
        until("the main process ends", || !is_alive(other));
    });
}

/// A refusal of the reload names what replaces the daemon of a unit all the same.
#[test]
fn a_unit_that_cannot_be_replaced_names_the_restart() {
    isolated(|home| {
        let manager = Manager::new(home);
        let _daemon = manager.start(home, None, &["--idle-exit", "0"]);
        assert_eq!(manager.next(), "READY=1\n");
        let ports = ["vale0:a", "vale0:b"].map(open);
        let held = StoppedThread::named(home.daemon(), "switch 0");
        let reason = refused(home, None);
        assert!(reason.contains("a thread of the switches waits for memory of a program"), "{reason}");
        assert!(reason.trim_end().ends_with("(systemctl restart unetmapd)"), "{reason}");
        drop(held);
        exchange(&ports[0], &ports[1], 1, 0, 1000);
        let after = replace(home);
        assert_eq!(manager.next(), format!("MAINPID={}\n", after.as_raw_nonzero()));
        exchange(&ports[0], &ports[1], 1, 1000, 2000);
    });
}

/// Messages of a daemon whose standard error is a stream of the journal have their fields there; the others' do not.
#[test]
fn the_journal_gets_messages_with_their_fields() {
    isolated(|home| {
        if !Command::new("unshare").args(["-m", "true"]).status().is_ok_and(|status| status.success()) {
            return summary("skipped: a mount namespace needs root");
        }
        let (path, log) = (home.folder().join("journal"), home.log());
        let journal = UnixDatagram::bind(&path).expect("a socket");
        journal.set_read_timeout(Some(LIMIT)).expect("a time");
        let script = "mount -t tmpfs none /run && mkdir -p /run/systemd/journal && : > /run/systemd/journal/socket && \
                      mount --bind \"$1\" /run/systemd/journal/socket && \
                      JOURNAL_STREAM=$(stat -Lc %d:%i /dev/stderr) exec \"$2\" --foreground --socket \"$3\"";
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", script, "sh"]).arg(&path).arg(program("unetmapd")).arg(home.socket());
        command.stderr(fs::File::create(&log).expect("a log"));
        let mut daemon = Guard::spawn(&mut command);
        until("the daemon listens", || daemon_listens(&home.socket()));
        let mut bytes = [0; 65536];
        let mut message_with = |what: &str| {
            loop {
                let length = journal.recv(&mut bytes).expect("a message");
                let message = String::from_utf8_lossy(&bytes[..length]).into_owned();
                if message.contains(what) {
                    return message;
                }
            }
        };
        let serving = message_with("serving socket=");
        assert!(serving.contains("UNETMAP_SOCKET\n"), "{serving:?}");
        assert!(serving.contains("PRIORITY\n\u{1}\0\0\0\0\0\0\u{0}6\nSYSLOG_IDENTIFIER\n"), "{serving:?}");
        let set = unetmap(&["set", "ring_num", "300"]);
        assert!(set.status.success(), "{}", text(&set));
        let knob = message_with("knob set");
        for field in ["UNETMAP_USER\n", "UNETMAP_PID\n", "UNETMAP_KNOB\n"] {
            assert!(knob.contains(field), "{knob:?}");
        }
        daemon.signal(Signal::TERM);
        assert!(daemon.wait().success());
        assert_eq!(fs::read_to_string(&log).expect("a log"), "", "nothing is logged twice");
    });
}

/// The manager of a program's own service is not told about a daemon that the program starts.
#[test]
fn a_daemon_that_a_program_starts_tells_nobody() {
    isolated(|home| {
        let manager = Manager::new(home);
        let mut client = Guard::spawn(
            Command::new(env!("CARGO_BIN_EXE_traffic_client"))
                .args(["hold", "netmap:p{1"])
                .env("NOTIFY_SOCKET", &manager.path)
                .env("LISTEN_FDS", "7")
                .stdout(Stdio::piped()),
        );
        until("the port is open", || home.try_snapshot().is_some_and(|snapshot| snapshot.sessions.len() == 1));
        assert!(manager.is_silent());
        client.kill();
    });
}

/// A client that connects before the daemon runs is served, an idle daemon leaves the socket to the manager, and the
/// next daemon serves it.
#[test]
fn a_daemon_serves_the_socket_of_the_service_manager() {
    isolated(|home| {
        let manager = Manager::new(home);
        let socket = listener(&home.socket(), SocketType::SEQPACKET);
        for _ in 0..2 {
            let client = std::thread::spawn(|| unetmap(&["ls"]));
            let connection = home.connected();
            let own = socket.try_clone().expect("a descriptor");
            let mut daemon = manager.start(home, Some(own), &["--idle-exit", "1"]);
            let output = client.join().expect("a thread");
            assert!(output.status.success(), "{}", text(&output));
            let port = open("netmap:p{1");
            assert_eq!(home.daemon(), daemon.pid());
            drop((port, connection));
            assert!(daemon.wait().success(), "an idle daemon exits");
            assert!(home.socket().exists(), "the socket is the manager's");
        }
    });
}

#[test]
fn a_wrong_socket_of_the_service_manager_is_refused() {
    isolated(|home| {
        let manager = Manager::new(home);
        let stream = listener(&home.folder().join("stream"), SocketType::STREAM);
        let mut daemon = manager.start(home, Some(stream), &[]);
        assert_eq!(daemon.wait().code(), Some(1));
        let log = fs::read_to_string(home.log()).expect("a log");
        assert!(log.contains("ListenSequentialPacket="), "{log}");
    });
}

/// Changes in the file are applied; a knob that was set since stays; an error changes nothing and has its line.
#[test]
fn a_reload_applies_what_changed_in_the_files() {
    isolated(|home| {
        let (config, policy) = (home.folder().join("unetmapd.toml"), home.folder().join("policy.toml"));
        fs::write(&config, "[knobs]\npriv_buf_num = 7000\nfwd = 1\n").expect("a file");
        fs::write(&policy, "").expect("a file");
        let words = [&config, &policy].map(|path| path.to_str().expect("text"));
        let manager = Manager::new(home);
        let daemon = manager.start(home, None, &["--config", words[0], "--policy", words[1]]);
        until("the daemon serves", || daemon_listens(&home.socket()));
        let port = open("netmap:p{1");
        let reload = || unetmap(&["reload"]);
        assert!(text(&reload()).starts_with("configuration: no change\n"), "{}", text(&reload()));
        assert!(unetmap(&["set", "sink_num", "9"]).status.success());

        fs::write(&config, "[knobs]\npriv_buf_num = 8000\n[vale]\nthreads = 2\n").expect("a file");
        let changed = text(&reload());
        assert!(
            changed.starts_with("fwd: 0, before 1\npriv_buf_num: 8000, before 7000\nthreads of switches: 2\n"),
            "{changed}"
        );
        let value = |knob| text(&unetmap(&["get", knob]));
        assert_eq!((value("fwd"), value("sink_num")), ("0\n".into(), "9\n".into()));

        for wrong in ["[knobs]\nbuf_num = 3\n", "[knobs]\nfwd = true\n"] {
            fs::write(&config, wrong).expect("a file");
            let output = reload();
            assert_eq!(output.status.code(), Some(1));
            assert!(text(&output).contains("unetmapd.toml:2: "), "{}", text(&output));
            daemon.signal(Signal::HUP);
            assert_eq!(value("priv_buf_num"), "8000\n");
        }
        fs::write(&config, "[knobs]\nsink_num = 5\n").expect("a file");
        daemon.signal(Signal::HUP);
        until("the signal has the file read", || value("sink_num") == "5\n" && value("priv_buf_num") == "25856\n");
        if rustix::process::geteuid().is_root() {
            fs::write(&policy, "[[rule]]\nports = [\"x\"]\nusers = [\"root\"]\naccess = \"nothing\"\n")
                .expect("a file");
            assert!(text(&reload()).contains("policy.toml:4: "), "{}", text(&reload()));
            fs::write(&policy, "[[rule]]\nports = [\"x\"]\nusers = [\"root\"]\n").expect("a file");
            assert!(text(&reload()).contains("policy: "), "{}", text(&reload()));
        } else {
            println!("skipped: a user's own daemon has no policy");
        }
        port.txsync().expect("ports stay open");
    });
}

/// A user's own daemon can open few files; its configuration is one of them, also when an editor has replaced it.
#[test]
fn a_users_daemon_reads_its_file_again() {
    isolated(|home| {
        if !rustix::process::geteuid().is_root() {
            return println!("skipped: other users' programs need root");
        }
        let [public, own, etc] = ["public", "own", "etc"].map(|name| home.folder().join(name));
        for folder in [&public, &own, &etc] {
            fs::create_dir(folder).expect("a folder");
        }
        for folder in [home.folder(), &public] {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            fs::set_permissions(folder, mode).expect("our own folder");
        }
        let give = |path: &Path| std::os::unix::fs::chown(path, Some(NOBODY), None).expect("our own file");
        let (config, new) = (etc.join("unetmapd.toml"), etc.join("new"));
        fs::write(&config, "[knobs]\nfwd = 1\n").expect("a file");
        [&own, &etc, &config].into_iter().for_each(|path| give(path));
        let copies = ["unetmapd", "unetmap"]
            .map(|name| conformance::net::public_copy(&public, program(name).to_str().expect("text")));
        let as_nobody = |command: &mut Command| {
            command.env("UNETMAP_SOCKET", own.join("s")).stdin(Stdio::null());
        };
        // Becomes the daemon, which the guard ends; runuser would stay its parent.
        let mut daemon = Command::new("setpriv");
        daemon.args(["--reuid=nobody", "--regid=nogroup", "--clear-groups"]).arg(&copies[0]);
        daemon.args(["--foreground", "--idle-exit", "0", "--config"]);
        as_nobody(daemon.arg(&config).stderr(Stdio::null()));
        let _daemon = Guard::spawn(&mut daemon);
        until("the daemon serves", || daemon_listens(&own.join("s")));
        fs::write(&new, "[knobs]\nfwd = 0\n").expect("a file");
        give(&new);
        fs::rename(&new, &config).expect("a file");
        let mut reload = Command::new("runuser");
        as_nobody(reload.args(["-u", "nobody", "--"]).arg(&copies[1]).arg("reload"));
        let printed = text(&reload.output().expect("the front command"));
        assert_eq!(printed, "fwd: 0, before 1\n");
    });
}

#[test]
fn a_reload_starts_no_daemon() {
    isolated(|home| {
        let output = unetmap(&["reload"]);
        assert_eq!((output.status.code(), home.serves()), (Some(1), false));
        assert!(text(&output).contains("no daemon runs"), "{}", text(&output));
    });
}

/// A signal that ends other programs.
#[test]
fn hangup_does_not_end_a_background_daemon() {
    isolated(|home| {
        let port = open("netmap:p{1");
        let daemon = home.daemon();
        for _ in 0..3 {
            rustix::process::kill_process(daemon, Signal::HUP).expect("our own daemon");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(is_alive(daemon));
        port.txsync().expect("the daemon runs");
    });
}

/// The units' settings exist, and are in the right sections.
#[test]
fn systemd_accepts_the_units() {
    isolated(|home| {
        if Command::new("systemd-analyze").arg("--version").stdout(Stdio::null()).status().is_err() {
            return println!("skipped: systemd-analyze is not installed (package systemd)");
        }
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../service");
        for (kind, folder) in [("--system", source.clone()), ("--user", source.join("user"))] {
            let to = home.folder().join(kind);
            fs::create_dir(&to).expect("a folder");
            let bin = program("unetmapd").parent().expect("a folder").display().to_string();
            let units = ["unetmapd.service", "unetmapd.socket"].map(|unit| {
                let text = fs::read_to_string(folder.join(unit)).expect("a unit").replace("@BINDIR@", &bin);
                let path = to.join(unit);
                fs::write(&path, text).expect("a file");
                path
            });
            let output = Command::new("systemd-analyze")
                .args(["verify", "--man=no", kind])
                .args(&units)
                .env("XDG_RUNTIME_DIR", home.folder())
                .output()
                .expect("systemd-analyze");
            let printed = text(&output);
            let ours: Vec<&str> = printed.lines().filter(|line| line.contains("unetmapd")).collect();
            assert!(output.status.success() && ours.is_empty(), "{kind}: {printed}");
        }
    });
}

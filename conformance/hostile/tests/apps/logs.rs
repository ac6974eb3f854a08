// SPDX-License-Identifier: BSD-2-Clause
//! Logs: what users and peers can have written is bounded, files begin anew, and no file of others is written or read
//! in place of one.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use conformance::home::{Guard, summary};
use conformance::kept::{self, wait_until_kept};
use conformance::net::{set_policy, start_daemon};
use conformance::switch::{set, vale};
use conformance::traffic::open;
use conformance::{Home, isolated, program, until};
use conformance_hostile::raw::{ControlConnection, RawPort};
use rustix::fs::{FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};
use unetmap::abi::NmreqRegister;
use unetmap_core::control::vale::{ValeAction, ValeRequest};
use unetmap_sys::tuning::log::{LINES_OF_USER, MAX_DAEMON_LOG, MAX_SERVER_LOG};

fn lines_with(log: &Path, text: &str) -> usize {
    fs::read_to_string(log).unwrap_or_default().lines().filter(|line| line.contains(text)).count()
}

/// The path of a file with another ending behind its own.
fn with(path: &Path, ending: &str) -> PathBuf {
    PathBuf::from(format!("{}{ending}", path.display()))
}

/// Adds so many bytes of lines to a file.
fn fill(log: &Path, bytes: u64) {
    let line = [&[b'x'; 4095][..], b"\n"].concat();
    let mut file = File::options().append(true).open(log).expect("the log");
    (0..bytes / 4096).for_each(|_| file.write_all(&line).expect("room on the disk"));
}

/// Writes one line to the daemon's log.
fn log_a_line(seconds: u32) {
    set(&format!("set vale9 age {}", seconds + 1));
}

/// A user changes the ageing time of its own switch again and again.
#[test]
fn a_user_cannot_fill_the_daemons_log_and_what_root_does_is_in_it() {
    isolated(|home| {
        if !rustix::process::geteuid().is_root() {
            return summary("skipped: a user's daemon serves one user");
        }
        set_policy(home, "[[rule]]\nusers = [4001, 4002]\npipes = true\n");
        fs::set_permissions(home.folder(), fs::Permissions::from_mode(0o755)).expect("our own folder");
        let _daemon = start_daemon(home, &[]);
        let user = |uid: u32, switch: &str| {
            let connection = ControlConnection::connect_as(&home.socket(), uid).expect("the daemon listens");
            let port = RawPort::open_on(connection, &format!("{switch}:a"), NmreqRegister::default());
            let other = ControlConnection::connect_as(&home.socket(), uid).expect("the daemon listens");
            (port, other)
        };
        let set_age = |connection: &ControlConnection, switch: &str, seconds: u32| {
            let action = ValeAction::Age(seconds);
            assert_eq!(connection.request_vale(&ValeRequest { name: switch.into(), action }), 0);
        };
        let ((_port, flood), (_second, quiet)) = (user(4001, "vale8"), user(4002, "vale7"));
        (1..=500).for_each(|seconds| set_age(&flood, "vale8", seconds));
        (1..=3).for_each(|seconds| set_age(&quiet, "vale7", seconds));
        let _own = open("vale9:a");
        (1..=30).for_each(log_a_line);
        let of = |switch: &str| lines_with(&home.log(), &format!("ageing set switch=\"{switch}\""));
        let counts = (of("vale8"), of("vale7"), of("vale9"));
        assert_eq!(counts, (LINES_OF_USER as usize, 3, 30), "{}", fs::read_to_string(home.log()).unwrap_or_default());
    });
}

/// All processes of a daemon follow: that one, too, which goes on after a crash.
#[test]
fn the_daemons_log_begins_anew_and_is_opened_again() {
    isolated(|home| {
        let _daemon = kept::start(home, None);
        let (log, old) = (home.log(), with(&home.log(), ".1"));
        let _port = open("vale9:a");
        fill(&log, MAX_DAEMON_LOG + 4096);
        until("the log begins anew", || {
            log_a_line(1);
            fs::metadata(&old).is_ok_and(|old| old.len() > MAX_DAEMON_LOG)
        });
        log_a_line(2);
        until("it goes on in the new one", || lines_with(&log, "ageing set") > 0);
        assert!(fs::metadata(&log).expect("the log").len() < MAX_DAEMON_LOG);
        // Moved away, as by logrotate; with and without a signal.
        fs::rename(&log, with(&log, ".2")).expect("a file to rename");
        kill_process(home.daemon(), Signal::HUP).expect("it runs");
        until("the log is opened again", || lines_with(&log, "read again") == 1);
        fs::rename(&log, with(&log, ".3")).expect("a file to rename");
        until("it is opened again when something is written", || {
            log_a_line(3);
            lines_with(&log, "ageing set") > 0
        });
        fs::rename(&log, with(&log, ".4")).expect("a file to rename");
        wait_until_kept(home);
        kept::kill(home);
        until("the store has told of the crash", || lines_with(&log, "the daemon has crashed") == 1);
        until("the daemon that goes on writes there", || {
            log_a_line(4);
            lines_with(&log, "ageing set") > 0
        });
    });
}

/// The process that serves a port in the background, by the name of its socket.
fn server(socket: &Path) -> Pid {
    let socket = socket.to_str().expect("UTF-8").to_owned();
    let mut all = fs::read_dir("/proc").expect("proc").flatten().filter_map(|entry| {
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let is_it = line.split(|byte| *byte == 0).any(|argument| argument == socket.as_bytes());
        Pid::from_raw(entry.file_name().to_str()?.parse().ok()?).filter(|_| is_it)
    });
    all.next().expect("a process with the socket among its arguments")
}

#[test]
fn a_peer_cannot_fill_the_log_of_the_process_that_serves_a_port() {
    isolated(|home| {
        let socket = home.folder().join("vm.sock");
        let log = with(&socket, ".log");
        let serve = |what: &str| vale(&["port", "vale0:vm", "--vhost-user", what]);
        let path = socket.to_str().expect("UTF-8").to_owned();
        assert_eq!(serve(&path).0, 0);
        let comm = fs::read_to_string(format!("/proc/{}/comm", server(&socket).as_raw_pid()));
        assert_eq!(comm.expect("it runs").trim(), "unetmap-vm");
        // Until the process has noticed, the next one waits in the queue.
        let connect = || drop(UnixStream::connect(&socket).expect("it listens"));
        (0..3 * LINES_OF_USER).for_each(|_| connect());
        until("it is bounded", || lines_with(&log, "has closed the connection") == LINES_OF_USER as usize);
        assert_eq!(lines_with(&log, "a hypervisor has connected"), LINES_OF_USER as usize);
        // Moved away: SIGHUP opens it again.
        fs::rename(&log, with(&log, ".2")).expect("a file to rename");
        kill_process(server(&socket), Signal::HUP).expect("it runs");
        until("the log is there again", || log.exists());
        let mode = |path: &Path| fs::metadata(path).expect("a file").permissions().mode();
        assert_eq!(mode(&log), mode(&with(&log, ".2")));
        assert_eq!(serve("off").0, 0);
        // One that is long begins anew, by the process that is started.
        fill(&log, MAX_SERVER_LOG + 4096);
        assert_eq!(serve(&path).0, 0);
        assert!(fs::metadata(with(&log, ".1")).is_ok_and(|old| old.len() > MAX_SERVER_LOG));
        assert_eq!(lines_with(&log, "vale0:vm: ready"), 1);
        assert_eq!(serve("off").0, 0);
    });
}

/// Neither a FIFO nor a device in place of the log holds the command up, and no link is followed.
#[test]
fn what_another_program_puts_in_place_of_a_log_is_refused() {
    isolated(|home| {
        let victim = home.folder().join("victim");
        fs::write(&victim, "untouched").expect("written");
        let serve = |name: &str| {
            let socket = home.folder().join(name);
            vale(&["port", "vale0:vm", "--vhost-user", socket.to_str().expect("UTF-8")])
        };
        let fifo = home.folder().join("fifo.log");
        mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("a FIFO");
        std::os::unix::fs::symlink("/dev/zero", home.folder().join("zero.log")).expect("a link");
        std::os::unix::fs::symlink(&victim, home.folder().join("link.log")).expect("a link");
        for name in ["fifo", "zero", "link"] {
            let (status, _, err) = serve(name);
            assert!(status == 1 && err.contains("its log"), "{name}: {err}");
        }
        assert_eq!(fs::read(&victim).expect("a file"), b"untouched");
        assert!(!home.folder().join("link").exists());
    });
}

/// Files that commands write in a folder of another user: its links are not followed.
#[test]
fn commands_write_no_file_that_a_link_of_another_user_leads_to() {
    isolated(|home| {
        if !rustix::process::geteuid().is_root() {
            return summary("skipped: needs root, to make links of another user");
        }
        let folder = home.folder().join("theirs");
        fs::create_dir(&folder).expect("a folder");
        let victim = home.folder().join("victim");
        fs::write(&victim, "untouched").expect("written");
        fs::set_permissions(&victim, fs::Permissions::from_mode(0o644)).expect("our own file");
        let link = |name: &str| {
            std::os::unix::fs::symlink(&victim, folder.join(name)).expect("a link");
            std::os::unix::fs::lchown(folder.join(name), Some(4001), Some(4001)).expect("root");
            folder.join(name).to_str().expect("UTF-8").to_owned()
        };
        std::os::unix::fs::chown(&folder, Some(4001), Some(4001)).expect("root");
        let _ports = ["netmap:p{1", "netmap:p}1", "vale0:a"].map(open);
        let out = link("out");
        for args in [
            &["unetmap", "capture", "netmap:c{1", "-w", &out, "--count", "1"][..],
            &["unetmap", "config", "save", "--file", &out],
            &["unetmap", "vm", "serve", "vale0:vm", "--socket", &out],
            &["unetmap", "vm", "serve", "vale0:vm", "--socket", "/nowhere/s", "--log", &out],
            &["unetmap", "memif", "serve", "vale0:vm", "--memif", &out],
            &["unetmap", "metrics", "--listen", &format!("unix:{out}")],
            &["unetmap-fw", "netmap:x{1", "netmap:y{1", "-w", "0", "--control", &out],
            &["unetmap-fw", "netmap:x{1", "netmap:y{1", "-w", "0", "--log", &out],
            &["pkt-gen", "-i", "netmap:x{1", "-f", "rx", "-w", "0", "--write", &out],
        ] {
            let run = Command::new("timeout").arg("20").arg(program(args[0])).args(&args[1..]).output();
            let run = run.expect("timeout (coreutils)");
            let err = String::from_utf8_lossy(&run.stderr);
            // 124: it goes on, with the file of another user.
            assert!(!matches!(run.status.code(), Some(0 | 124)), "{args:?}: {err}");
        }
        let meta = fs::metadata(&victim).expect("a file");
        assert_eq!(
            (fs::read(&victim).expect("a file"), meta.permissions().mode() & 0o777),
            (b"untouched".to_vec(), 0o644)
        );
    });
}

/// Files that commands read in a folder of another user: its links are not followed, its FIFOs not waited for, and what
/// has no end is not read to it.
#[test]
fn commands_read_no_file_that_another_user_has_put_in_its_place() {
    isolated(|home| {
        if !rustix::process::geteuid().is_root() {
            return summary("skipped: needs root, to make files of another user");
        }
        let folder = home.folder().join("theirs");
        fs::create_dir(&folder).expect("a folder");
        let at = |name: &str| folder.join(name).to_str().expect("UTF-8").to_owned();
        let (link, fifo, endless) = (at("link"), at("fifo"), "/dev/zero".to_owned());
        fs::write(home.folder().join("secret"), "secret-of-root").expect("written");
        std::os::unix::fs::symlink(home.folder().join("secret"), &link).expect("a link");
        mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o666), 0).expect("a FIFO");
        for path in [&folder.to_str().expect("UTF-8").to_owned(), &link, &fifo] {
            std::os::unix::fs::lchown(path, Some(4001), Some(4001)).expect("root");
        }
        let mut firewall = Command::new(program("unetmap-fw"));
        let _firewall = Guard::spawn(firewall.args(["netmap:f{1", "netmap:g{1", "-w", "0"]));
        until("the firewall listens", || {
            Command::new(program("unetmap")).args(["fw", "list"]).output().is_ok_and(|run| run.status.success())
        });
        for (path, why) in [(&link, "symbolic link of user 4001"), (&fifo, "belongs to user 4001"), (&endless, "")] {
            let at = format!("@{path}");
            for args in [
                &["unetmap", "scrub", "netmap:x{1", "netmap:y{1", "-w", "0", "--deny-list", path][..],
                &["unetmap", "scrub", "netmap:x{1", "netmap:y{1", "-w", "0", "--rules", path],
                &["unetmap", "scrub", "--read", path],
                &["unetmap", "flows", "--json", "--read", path],
                &["unetmap", "emulate", "netmap:x{1", "netmap:y{1", "-w", "0", "--trace", path],
                &["unetmap", "emulate", "netmap:x{1", "netmap:y{1", "-w", "0", "--delay", &at],
                &["unetmap", "extract", "--write", "-", path],
                &["unetmap", "replay", path, "netmap:x{1"],
                &["unetmap", "fw", "load", path],
                &["unetmap-fw", "netmap:x{1", "netmap:y{1", "-w", "0", "--rules", path],
                &["pkt-gen", "-i", "netmap:x{1", "-f", "tx", "-w", "0", "-P", path],
                &["pkt-gen", "-i", "netmap:x{1", "-w", "0", "--streams", path],
            ] {
                let run = Command::new("timeout").arg("60").arg(program(args[0])).args(&args[1..]).output();
                let run = run.expect("timeout (coreutils)");
                let text = String::from_utf8_lossy(&run.stderr);
                // 124: it waits for another user, or reads without end.
                assert!(!matches!(run.status.code(), Some(0 | 124)), "{args:?}: {text}");
                assert!(text.contains(why) && !text.contains("secret-of-root"), "{args:?}: {text}");
            }
        }
    });
}

/// The package's file for logrotate, with the paths of this test.
#[test]
fn logrotate_moves_the_log_away_and_the_daemon_goes_on_in_another() {
    isolated(|home| {
        let run = |args: &[&str]| Command::new("logrotate").args(args).output();
        if run(&["--version"]).is_err() {
            return summary("skipped: there is no logrotate: apt-get install logrotate");
        }
        let packaged = include_str!("../../../../service/unetmap.logrotate");
        assert!(packaged.contains("/run/unetmap/*.sock.log"), "{packaged}");
        let kept = home.folder().join("memif-x.log");
        fs::write(&kept, "of a process that cannot open it again").expect("a file");
        let config = home.folder().join("logrotate.conf");
        fs::write(&config, packaged.replace("/run/unetmap", home.folder().to_str().expect("UTF-8"))).expect("a file");
        let _port = open("vale9:a");
        log_a_line(1);
        let (config, state) = (config.to_str().expect("UTF-8"), home.folder().join("logrotate.state"));
        let rotate = || {
            let out = run(&["--force", "--state", state.to_str().expect("UTF-8"), config]).expect("logrotate runs");
            assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        };
        rotate();
        assert!(lines_with(&with(&home.log(), ".1"), "ageing set") > 0);
        until("the daemon goes on in another file", || {
            log_a_line(2);
            lines_with(&home.log(), "ageing set") > 0
        });
        // Another time: the one before is compressed, and none is lost.
        rotate();
        assert!(with(&home.log(), ".2.gz").exists() && kept.exists());
        home.assert_serves();
    });
}

/// Names of processes, as ps(1) and pgrep(1) show them.
#[test]
fn each_process_of_a_daemon_says_what_it_is() {
    isolated(|home: &Home| {
        let _daemon = kept::start(home, None);
        let _port = open("netmap:p{1");
        let socket = home.socket();
        let names = || -> Vec<(String, String)> {
            let all = fs::read_dir("/proc").expect("proc").flatten().map(|entry| entry.path());
            let own = all.filter(|process| fs::read_link(process.join("fd/2")).is_ok_and(|log| log == home.log()));
            let name = |process: PathBuf| {
                let line = fs::read_to_string(process.join("cmdline")).unwrap_or_default();
                let comm = fs::read_to_string(process.join("comm")).unwrap_or_default();
                (line.split('\0').next().unwrap_or_default().to_owned(), comm.trim().to_owned())
            };
            own.map(name).collect()
        };
        let wanted = |part: &str, comm: &str| (format!("unetmapd: {part} {}", socket.display()), comm.to_owned());
        let found = names();
        assert!(found.contains(&wanted("store", "unetmapd-store")), "{found:?}");
        assert!(found.iter().any(|(name, comm)| name.ends_with("unetmapd") && comm == "unetmapd"), "{found:?}");
        if rustix::process::geteuid().is_root() {
            assert!(found.contains(&wanted("broker", "unetmapd-broker")), "{found:?}");
        }
        wait_until_kept(home);
        kept::kill(home);
        let found = names();
        assert!(found.contains(&("unetmapd".into(), "unetmapd".into())), "{found:?}");
        assert!(!found.iter().any(|(_, comm)| comm == "exe"), "{found:?}");
    });
}

// SPDX-License-Identifier: BSD-2-Clause
//! netmap's knobs: set by the daemon's owner, readable by every user, and applied where they should be.

use std::fs;
use std::os::fd::OwnedFd;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use conformance::home::{Guard, is_alive};
use conformance::net::{CABLE, DIRECT, Net};
use conformance::traffic::open;
use conformance::{Home, isolated, program, until};
use serde_json::Value;
use unetmap::Interest;

/// Starts the test's daemon and waits until it listens.
#[track_caller]
fn daemon(home: &Home, args: &[&str]) -> Guard {
    connected_daemon(home, args).0
}

/// The same, with a connection, which keeps it from exiting.
#[track_caller]
fn connected_daemon(home: &Home, args: &[&str]) -> (Guard, OwnedFd) {
    let mut command = Command::new(program("unetmapd"));
    command.args(["--foreground", "--socket"]).arg(home.socket()).args(args).stdin(Stdio::null()).stderr(Stdio::null());
    let daemon = Guard::spawn(&mut command);
    (daemon, home.connected())
}

fn unetmap(args: &[&str]) -> Output {
    Command::new(program("unetmap")).args(args).stdin(Stdio::null()).output().expect("the front command")
}

/// Runs it, which must succeed; returns its output.
#[track_caller]
fn printed(args: &[&str]) -> String {
    let output = unetmap(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Runs it, which must fail; returns its error message.
#[track_caller]
fn refused(args: &[&str], status: i32) -> String {
    let output = unetmap(args);
    assert_eq!(output.status.code(), Some(status), "{args:?}: {}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).expect("text")
}

#[track_caller]
fn value(name: &str) -> u64 {
    let reported: Value = serde_json::from_str(&printed(&["get", name, "--json"])).expect("JSON");
    assert_eq!(reported["knob"], name);
    assert_eq!(printed(&["get", name]).trim(), reported["value"].to_string());
    reported["value"].as_u64().expect("a number")
}

#[test]
fn knobs_are_listed_set_and_validated() {
    isolated(|home| {
        let all: Value = serde_json::from_str(&printed(&["get", "--json"])).expect("JSON");
        let names: Vec<&str> = all.as_array().expect("all").iter().filter_map(|knob| knob["knob"].as_str()).collect();
        let table = printed(&["get"]);
        assert_eq!(table.lines().count(), names.len() + 1, "{table}");
        for name in
            ["verbose", "admode", "fwd", "no_timestamp", "buf_size", "priv_ring_num", "generic_mit", "buf_curr_num"]
        {
            assert!(names.contains(&name), "{name} is missing: {names:?}");
            assert!(table.lines().any(|line| line.starts_with(&format!("{name} "))), "{name} is missing:\n{table}");
        }
        assert_eq!(printed(&["set", "fwd", "1"]), "fwd: 1, for ports that are opened from now on\n");
        assert_eq!((value("fwd"), value("buf_size")), (1, 2048));
        assert_eq!(
            printed(&["set", "priv_buf_size", "0x1000"]),
            "priv_buf_size: 4096, for regions that are created from now on\n"
        );
        let kept = printed(&["set", "generic_mit", "5"]);
        assert!(kept.starts_with("generic_mit: 5, without effect here: "), "{kept}");
        for (args, part, status) in [
            (["buf_size", "63"], "buf_size is 63, allowed are 64 to 65536", 2),
            (["fwd", "2"], "fwd is 2, allowed are 0 to 1", 2),
            (["max_bridges", "9"], "read-only", 1),
            (["buf_curr_num", "9"], "read-only", 1),
            (["no_such_knob", "9"], "no such knob", 2),
        ] {
            let why = refused(&["set", args[0], args[1]], status);
            assert!(why.contains(part) && why.contains(args[0]), "{args:?}: {why}");
        }
        assert!(refused(&["get", "no_such_knob"], 2).contains("unetmap get lists them"));
        assert_eq!(unetmap(&["set", "fwd", "-1"]).status.code(), Some(2));
        assert_eq!((value("fwd"), value("generic_mit"), value("buf_size")), (1, 5, 2048), "refusals change nothing");
        home.assert_serves();
    });
}

/// A region keeps its sizes. The next region has the sizes set by then, or more if the port needs more.
#[test]
fn size_knobs_apply_to_the_next_region() {
    isolated(|_| {
        let old = open("netmap:old{1");
        printed(&["set", "priv_buf_size", "4096"]);
        printed(&["set", "priv_buf_num", "4"]);
        printed(&["set", "priv_ring_num", "2"]);
        printed(&["set", "priv_ring_size", "512"]);
        let (beside, new) = (open("netmap:old{2"), open("netmap:new{1"));
        assert!(beside.same_region(&old));
        assert_eq!(old.region().geometry().bufs.size, 2048);
        let pools = new.region().geometry();
        assert_eq!((pools.bufs.size, pools.rings.count), (4096, 4));
        assert_eq!((pools.rings.size, pools.bufs.count), (256 + 1024 * 16, 2 * 1024 + 4 + 2));
        conformance::traffic::exchange(&new, &open("netmap:new}1"), 1, 0, 3000);
        let port = open("vale1:a");
        assert!(port.region().geometry().bufs.size >= 4096);
    });
}

/// The knobs without `priv_` apply to the region that interfaces share; its actual sizes are shown while it exists.
#[test]
fn interface_regions_have_sizes_of_their_own() {
    isolated(|home| {
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let get = |name: &str| -> u64 {
            let output = net.command(program("unetmap")).args(["get", name]).output().expect("the front command");
            String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number")
        };
        printed(&["set", "buf_num", "10000"]);
        printed(&["set", "buf_size", "3840"]);
        assert_eq!((get("buf_curr_num"), get("buf_curr_size"), get("ring_curr_num")), (0, 0, 0));
        let port = net.open("netmap:va");
        let pools = port.region().geometry();
        assert_eq!((pools.bufs.count, pools.bufs.size), (10_000, 3840));
        assert_eq!((get("buf_curr_num"), get("buf_curr_size")), (10_000, 3840));
        assert_eq!(get("ring_curr_num"), u64::from(pools.rings.count));
        printed(&["set", "buf_num", "20000"]);
        assert_eq!((get("buf_curr_num"), get("buf_num")), (10_000, 20_000));
        assert_eq!(open("netmap:p{1").region().geometry().bufs.size, 2048);
        drop(port);
        printed(&["set", "admode", "2"]);
        let port = net.open("netmap:va");
        assert_eq!(port.region().geometry().bufs.count, 20_000);
        let shown = home.snapshot();
        let manner = shown.ports.iter().find_map(|port| port.manner.clone()).unwrap_or_default();
        assert!(manner.contains("generic"), "admode 2 is before the stack: {manner}");
    });
}

/// Sinks exist up to `sink_num`, and take packets at the rate that `sink_delay_ns` had when they were opened.
#[test]
fn sink_knobs_set_the_number_of_sinks_and_their_rate() {
    isolated(|_| {
        const PACKETS: u32 = 50;
        let send = |port: &unetmap::Port| {
            let (begin, ring) = (Instant::now(), &port.tx_rings()[0]);
            ring.first(PACKETS).for_each(|slot| slot.set_len_flags(60, 0));
            ring.advance(PACKETS);
            port.txsync().expect("the daemon runs");
            begin
        };
        let fast = open("netmap:nmsink0");
        send(&fast);
        assert!(!fast.tx_rings()[0].pending(), "without a delay packets are taken at once");

        assert_eq!(
            printed(&["set", "sink_delay_ns", "1000000"]),
            "sink_delay_ns: 1000000, for ports that are opened from now on\n"
        );
        let slow = open("netmap:nmsink1");
        let begin = send(&slow);
        let until_taken = || {
            slow.txsync().expect("the daemon runs");
            !slow.tx_rings()[0].pending()
        };
        until("the packets are taken", until_taken);
        assert!(begin.elapsed() >= PACKETS * Duration::from_millis(1), "{:?}", begin.elapsed());
        // A full ring: poll waits until one is taken.
        let ring = &slow.tx_rings()[0];
        ring.advance(ring.space());
        assert_eq!(slow.poll(Interest::TX, None).expect("the daemon runs"), Interest::TX);
        send(&fast);
        assert!(!fast.tx_rings()[0].pending(), "it keeps the rate that it was opened with");

        printed(&["set", "sink_num", "1"]);
        assert!(unetmap::Port::open("netmap:nmsink2").is_err_and(|e| e.to_string().contains("sink_num")));
        open("netmap:nmsink0");
    });
}

/// More is logged exactly while `verbose` is set.
#[test]
fn the_verbose_knob_changes_the_log() {
    isolated(|home: &Home| {
        let refusals = || {
            assert!(unetmap::Port::open("netmap:no{such@999").is_err());
            fs::read_to_string(home.log()).expect("a log").matches("no region 999").count()
        };
        assert_eq!(refusals(), 0);
        printed(&["set", "verbose", "1"]);
        assert_eq!(refusals(), 1);
        printed(&["set", "verbose", "0"]);
        assert_eq!(refusals(), 1);
    });
}

/// Knobs come from the file and are overridden by the command line; an error in the file is reported with its line.
#[test]
fn a_daemon_starts_with_the_knobs_of_its_file() {
    isolated(|home| {
        let file = home.folder().join("unetmapd.toml");
        let config = file.to_str().expect("text");
        fs::write(&file, "[knobs]\npriv_buf_num = 7000\nbuf_num = 8000\nfwd = 1\n").expect("a file");
        let mut daemon = daemon(home, &["--config", config, "--buf-num", "9000", "--admode", "generic"]);
        assert_eq!((value("fwd"), value("admode")), (1, 2));
        assert_eq!((value("buf_num"), value("priv_buf_num")), (9000, 9000));
        daemon.kill();
        for (text, part) in
            [("[knobs]\nbuf_num = 3\n", "unetmapd.toml:2: buf_num is 3"), ("\nknob = 3", "unetmapd.toml:2")]
        {
            fs::write(&file, text).expect("a file");
            let output = Command::new(program("unetmapd"))
                .args(["--config", config, "--socket"])
                .arg(home.socket())
                .output()
                .expect("the daemon");
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success() && why.contains(part), "{why}");
        }
        let missing = Command::new(program("unetmapd")).args(["--config", "/no/such"]).output().expect("the daemon");
        assert!(String::from_utf8_lossy(&missing.stderr).contains("/no/such"));
    });
}

/// An idle daemon exits, but not while a changed knob would be lost.
#[test]
fn a_daemon_with_changed_knobs_does_not_exit_when_idle() {
    isolated(|home| {
        let (daemon, connection) = connected_daemon(home, &["--idle-exit", "1"]);
        printed(&["set", "no_timestamp", "1"]);
        drop(connection);
        std::thread::sleep(std::time::Duration::from_secs(3));
        assert!(is_alive(daemon.pid()), "it ended although a knob was set");
        printed(&["set", "no_timestamp", "0"]);
        until("it ends", || !is_alive(daemon.pid()));
    });
}

/// Other users than the daemon's can read the knobs and cannot set them.
#[test]
fn only_the_owner_can_set_knobs() {
    isolated(|home| {
        if !rustix::process::geteuid().is_root() {
            return println!("skipped: other users' programs need root");
        }
        let folder = home.folder().join("public");
        fs::create_dir(&folder).expect("a folder");
        let open_up = |path: &std::path::Path| {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            fs::set_permissions(path, mode).expect("our own file");
        };
        open_up(home.folder());
        open_up(&folder);
        // A user without any rule is not served at all.
        let policy = home.folder().join("policy.toml");
        fs::write(&policy, "[[rule]]\nports = [\"own*\"]\nusers = [\"nobody\"]\n").expect("our own file");
        let _daemon = daemon(home, &["--policy", policy.to_str().expect("text")]);
        let copy = conformance::net::public_copy(&folder, program("unetmap").to_str().expect("text"));
        let as_nobody = |args: &[&str]| {
            let mut command = Command::new("runuser");
            command.args(["-u", "nobody", "--"]).arg(&copy).args(args).output().expect("runuser")
        };
        let shown = as_nobody(&["get", "fwd"]);
        assert_eq!(String::from_utf8_lossy(&shown.stdout), "0\n", "{shown:?}");
        let refused = as_nobody(&["set", "fwd", "1"]);
        let why = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && why.contains("only root"), "{why}");
        assert_eq!(value("fwd"), 0);
    });
}

/// Ports opened after no_timestamp was set get time stamps only if they request them.
#[test]
fn the_no_timestamp_knob_keeps_the_timestamp_unchanged() {
    isolated(|_| {
        let (tx, before) = (open("netmap:t{1"), open("netmap:t}1"));
        printed(&["set", "no_timestamp", "1"]);
        let after = open("netmap:t}1");
        let time = |port: &unetmap::Port| port.rx_rings()[0].time().0;
        after.rxsync().expect("an open port");
        assert_eq!(time(&after), 0);
        conformance::traffic::exchange(&tx, &after, 1, 0, 10);
        assert_eq!(time(&after), 0);
        after.rx_rings()[0].set_timestamping(true);
        after.rxsync().expect("an open port");
        assert!(time(&after) > 0);
        before.rxsync().expect("an open port");
        assert!(time(&before) > 0, "it was opened before");
    });
}

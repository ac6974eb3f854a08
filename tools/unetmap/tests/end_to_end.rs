// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap bench` and `unetmap ls` with a daemon and pkt-gen.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

const UNETMAP: &str = env!("CARGO_BIN_EXE_unetmap");

/// Returns the folder with all programs: the one of this build, else that of a release build.
fn programs() -> Option<PathBuf> {
    let here = Path::new(UNETMAP).parent()?;
    let release = here.with_file_name("release");
    [here.to_owned(), release]
        .into_iter()
        .find(|folder| ["pkt-gen", "unetmapd"].iter().all(|name| folder.join(name).is_file()))
}

/// Stops the daemon that the test started.
struct Daemon<'a>(&'a dyn Fn(&[&str]) -> Output);

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        let all: Value = serde_json::from_slice(&(self.0)(&["ls", "--json"]).stdout).unwrap_or_default();
        let pid = all["daemon"]["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
        if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
            // Fails if the daemon has exited by itself.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
    }
}

#[test]
fn bench_prints_all_rows_and_ls_shows_its_daemon() {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let Some(folder) = programs().filter(|_| cpus > 1) else {
        eprintln!("skipped: needs two processors, and pkt-gen and unetmapd (`make` builds them)");
        return;
    };
    let home = tempfile::tempdir().unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let unetmap = |arguments: &[&str]| {
        Command::new(UNETMAP)
            .args(arguments)
            .env("UNETMAP_SOCKET", home.path().join("socket"))
            .env("UNETMAPD", folder.join("unetmapd"))
            .env("PATH", &path)
            .output()
            .unwrap()
    };
    let idle = unetmap(&["ls"]);
    assert!(idle.status.success() && idle.stdout.starts_with(b"No daemon is running"), "{idle:?}");
    assert_eq!(unetmap(&["ls", "--json"]).stdout, b"null\n");
    let events = unetmap(&["events"]);
    assert!(events.status.success() && events.stdout.is_empty(), "{events:?}");
    assert!(events.stderr.starts_with(b"No daemon is running"), "{events:?}");

    let daemon = Daemon(&unetmap);
    // One sample of each contestant; the test does not check the speed.
    let mut benches = vec![
        "pipe",
        "pipe-1core",
        "pipe-rtt",
        "pipe-open",
        "idle-100",
        "preload-pipe",
        "preload-poll",
        "vale-60-copy",
        "vale-rtt",
    ];
    let on = unetmap(&["node", "on", &home.path().join("netmap").display().to_string()]);
    let node = on.status.success() && unetmap(&["node", "off"]).status.success();
    match node {
        true => benches.extend(["node-pipe", "node-poll"]),
        false => eprintln!("skipped node-pipe and node-poll: {}", String::from_utf8_lossy(&on.stderr)),
    }
    let output = unetmap(&[&["bench", "--samples", "1", "--seconds", "60", "--json"], &benches[..]].concat());
    assert!(output.status.success(), "{output:?}");
    let rows: Vec<Value> =
        String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names =
        |unit: &str| rows.iter().filter(|r| r["unit"] == unit).map(|r| r["name"].as_str().unwrap()).collect::<Vec<_>>();
    assert!(names("Mpps").contains(&"pipe") && names("Mpps").contains(&"pipe-1core"), "{rows:?}");
    assert!(names("cycles").contains(&"pipe-1core-cycles") && names("ns").contains(&"pipe-rtt"), "{rows:?}");
    let opening = vec!["pipe-open", "pipe-open-p99", "pipe-open-close", "pipe-open-close-p99", "pipe-open-cold"];
    assert_eq!((names("us"), names("MiB")), (opening, vec!["idle-100-memory"]));
    assert!(names("Mpps").contains(&"preload-pipe-64") && names("ns").contains(&"preload-poll"), "{rows:?}");
    if node {
        assert!(names("Mpps").contains(&"node-pipe") && names("ns").contains(&"node-poll"), "{rows:?}");
    }
    assert!(names("Mpps").contains(&"vale-60-copy-clean") && names("ns").contains(&"vale-rtt-asleep"), "{rows:?}");
    assert_eq!(names("%"), ["idle-100", "vale-60-copy-lost"]);
    // These rows are differences and percentages, which may be 0.
    let may_be_zero = ["preload-poll-added", "idle-100", "vale-60-copy-lost", "vale-60-copy-clean"];
    for row in rows.iter().filter(|row| !may_be_zero.contains(&row["name"].as_str().unwrap())) {
        assert!(row["class"] == "L" || row["class"] == "R", "{row}");
        let [min, median, max] = ["min", "median", "max"].map(|key| row[key].as_f64().unwrap());
        assert!(0.0 < min && min <= median && median <= max && row["n"].as_u64() >= Some(1), "{row}");
        for peer in row["peers"].as_object().unwrap().values() {
            assert!(peer["median"].as_f64() > Some(0.0) && peer["ratio"].as_f64() >= Some(0.0), "{row}");
        }
    }
    for peer in ["seqpacket", "native", "libc", "pipe"] {
        assert!(rows.iter().any(|row| row["peers"][peer].is_object()), "{rows:?}");
    }

    let shown = unetmap(&["ls"]);
    assert!(shown.status.success() && shown.stdout.starts_with(b"unetmapd "), "{shown:?}");
    drop(daemon);
}

#[test]
fn bench_runs_in_a_pid_namespace_that_its_process_group_is_outside_of() {
    let Some(folder) = programs() else {
        eprintln!("skipped: needs unetmapd (`make` builds it)");
        return;
    };
    let home = tempfile::tempdir().unwrap();
    let start = |program: &str, arguments: &[&str]| {
        // The daemon ends with the namespace.
        let mut unshare = Command::new("unshare");
        unshare.args(["--pid", "--fork", "--kill-child", program]).args(arguments);
        unshare.env("UNETMAP_SOCKET", home.path().join("socket")).env("UNETMAPD", folder.join("unetmapd")).output()
    };
    match start("true", &[]) {
        Ok(output) if output.status.success() => (),
        other => return eprintln!("skipped: no PID namespace can be created here: {other:?}"),
    }
    let output = start(UNETMAP, &["bench", "pipe-1core", "--samples", "1", "--seconds", "1"]).unwrap();
    assert!(output.status.success(), "{output:?}");
}

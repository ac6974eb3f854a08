// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap top` on a switch with traffic.

use std::time::Instant;

use serde_json::Value;
use tool_common::testing::{TIMEOUT, TestDaemon, TestProcess};

const UNETMAP: &str = env!("CARGO_BIN_EXE_unetmap");

#[test]
fn top_shows_packet_and_loss_rates() {
    let Some(daemon) = TestDaemon::start_beside(UNETMAP) else { return };
    let nothing = TestProcess::start(&mut daemon.command("unetmap", "top -i 0.05 -n 1")).wait();
    assert_eq!(nothing, (0, "No port is open.\n".into(), String::new()));
    let mut elsewhere = daemon.command("unetmap", "top -i 0.05 -n 1");
    elsewhere.env("UNETMAP_SOCKET", daemon.folder().join("no-daemon"));
    let (code, out, _) = TestProcess::start(&mut elsewhere).wait();
    assert!(code == 0 && out.starts_with("No daemon is running;"), "{code}: {out}");
    for wrong in ["-i 0", "-i x", "-n -1"] {
        let (code, _, err) = TestProcess::start(&mut daemon.command("unetmap", &format!("top {wrong}"))).wait();
        assert_eq!(code, 2, "{wrong}: {err}");
    }
    // Without a receiver all packets are lost.
    let _sender = TestProcess::start(&mut daemon.command("pkt-gen", "-i vale0:a -f tx -w 0 -R 100000"));
    let begin = Instant::now();
    loop {
        let (code, out, err) = TestProcess::start(&mut daemon.command("unetmap", "top -i 0.2 -n 1 --json")).wait();
        assert_eq!((code, err.as_str()), (0, ""));
        let rings: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let ring = rings.iter().find(|ring| ring["port"] == "vale0:a" && ring["dir"] == "tx");
        if ring
            .is_some_and(|r| r["packets_per_second"].as_f64() > Some(0.0) && r["lost_per_second"].as_f64() > Some(0.0))
        {
            break;
        }
        assert!(begin.elapsed() < TIMEOUT, "{out}");
    }
    let (code, out, _) = TestProcess::start(&mut daemon.command("unetmap", "top -i 0.1 -n 2")).wait();
    assert_eq!(code, 0);
    assert_eq!(out.lines().filter(|line| line.starts_with("port ")).count(), 2, "{out}");
    assert!(!out.contains('\x1b'), "control characters are written only to a terminal");
}

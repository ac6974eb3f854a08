//! `unetmap top` beside a switch with traffic.

use std::time::Instant;

use serde_json::Value;
use tool_common::testing::{House, LIMIT, Running};

const UNETMAP: &str = env!("CARGO_BIN_EXE_unetmap");

#[test]
fn it_shows_what_moves_and_what_is_lost() {
    let Some(house) = House::beside(UNETMAP) else { return };
    let nothing = Running::start(&mut house.command("unetmap", "top -i 0.05 -n 1")).end();
    assert_eq!(nothing, (0, "No port is open.\n".into(), String::new()));
    for wrong in ["-i 0", "-i x", "-n -1"] {
        let (code, _, err) = Running::start(&mut house.command("unetmap", &format!("top {wrong}"))).end();
        assert_eq!(code, 2, "{wrong}: {err}");
    }
    // Nobody is there to receive: all is lost.
    let _sender = Running::start(&mut house.command("pkt-gen", "-i vale0:a -f tx -w 0 -R 100000"));
    let begin = Instant::now();
    loop {
        let (code, out, err) = Running::start(&mut house.command("unetmap", "top -i 0.2 -n 1 --json")).end();
        assert_eq!((code, err.as_str()), (0, ""));
        let rings: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let ring = rings.iter().find(|ring| ring["port"] == "vale0:a" && ring["dir"] == "tx");
        if ring
            .is_some_and(|r| r["packets_per_second"].as_f64() > Some(0.0) && r["lost_per_second"].as_f64() > Some(0.0))
        {
            break;
        }
        assert!(begin.elapsed() < LIMIT, "{out}");
    }
    let (code, out, _) = Running::start(&mut house.command("unetmap", "top -i 0.1 -n 2")).end();
    assert_eq!(code, 0);
    assert_eq!(out.lines().filter(|line| line.starts_with("port ")).count(), 2, "{out}");
    assert!(!out.contains('\x1b'), "no control characters but on a terminal");
}

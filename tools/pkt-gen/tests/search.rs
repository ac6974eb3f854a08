// SPDX-License-Identifier: BSD-2-Clause
//! The tests of RFC 2544 and RFC 8219 from end to end: over a switch with a known limit, a pipe, and a kernel's bridge.

use std::fs;
use std::process::{Command, Stdio};

use lab::{Lab, VethOptions};
use serde_json::Value;
use tool_common::testing::{TestDaemon, TestProcess};

const PKT_GEN: &str = env!("CARGO_BIN_EXE_pkt-gen");
/// Short trials: what is checked holds at any speed of the machine.
const SHORT: &str = "trial=100ms,settle=100ms,repeat=2,attempts=2";
/// Packets per second that a port of the switch may receive.
const LIMIT: f64 = 20_000.0;

fn run(command: &mut Command, args: &str) -> (i32, Vec<Value>, String) {
    let (code, out, err) = TestProcess::start(command.args(args.split_whitespace()).stdin(Stdio::null())).wait();
    let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
    (code, out.lines().map(parse).collect(), err)
}

fn of<'a>(events: &'a [Value], event: &str) -> Vec<&'a Value> {
    events.iter().filter(|object| object["event"] == event).collect()
}

/// Checks what holds for each trial, and that the results are those of the trials.
fn check(events: &[Value], sizes: &[u64]) {
    let number = |object: &Value, key: &str| object[key].as_f64().unwrap_or_else(|| panic!("{key}: {object}"));
    for trial in of(events, "trial") {
        assert_eq!(number(trial, "sent") - number(trial, "received"), number(trial, "lost"), "{trial}");
        let deviation = (number(trial, "sent_pps") / number(trial, "offered_pps") - 1.0).abs();
        assert_eq!(trial["held"], deviation <= 1e-3, "{trial}");
        if number(trial, "received") > 1.0 {
            let (seen, step) = (number(&trial["seen"], "pps"), number(&trial["seen"], "in_step"));
            let burst = number(&trial["seen"], "burst");
            assert!(seen > 0.0 && (0.0..=1.0).contains(&step) && burst >= 1.0, "{trial}");
            assert_eq!(trial["disturbed"], burst > 64.0, "{trial}");
        }
    }
    let results = of(events, "result");
    assert_eq!(
        results.iter().map(|r| r["frame"].as_u64()).collect::<Vec<_>>(),
        sizes.iter().map(|n| Some(*n)).collect::<Vec<_>>()
    );
    for result in results {
        let pps = number(&result["throughput"], "pps");
        assert!((0.0..=number(result, "link_pps") * 1.001).contains(&pps), "{result}");
        let of_size: Vec<_> = of(events, "trial")
            .into_iter()
            .filter(|t| t["frame"] == result["frame"] && t["test"] == "throughput")
            .collect();
        // A disturbed trial does not count if it was made again.
        let counts = |at: usize, trial: &Value| {
            let again = of_size.get(at + 1).is_some_and(|next| next["offered_pps"] == trial["offered_pps"]);
            trial["disturbed"] == false || !again
        };
        let of_size = of_size.iter().enumerate().filter(|(at, trial)| counts(*at, trial)).map(|(_, trial)| *trial);
        // No trial of which nothing was lost had a higher rate.
        let best = of_size.filter(|t| t["lost"] == 0).map(|t| number(t, "sent_pps").min(number(t, "offered_pps")));
        let best = best.fold(0.0, f64::max);
        assert!((best - pps).abs() <= pps * 2e-3, "{best}: {result}");
        if pps > 0.0 && !result["latency_ns"].is_null() {
            let times = &result["latency_ns"];
            assert!(
                number(times, "min") <= number(times, "typical") && number(times, "typical") <= number(times, "max")
            );
            assert_eq!(times["repetitions"], 2);
        }
    }
    assert_eq!(of(events, "summary").len(), 1);
}

#[test]
fn the_limit_of_a_switch_port_bounds_its_throughput() {
    let Some(daemon) = TestDaemon::start_beside(PKT_GEN) else { return };
    let html = daemon.folder().join("r.html");
    let limit = daemon.command("unetmap", "vale port vale3:keep rate out 20kpps").output().expect("unetmap");
    assert!(limit.status.success(), "{limit:?}");
    let args = format!(
        "-i vale3:from --receive=vale3:keep -w 0 --json --link 100M --html {} \
         --rfc2544=tests=throughput+latency+loss+back-to-back,sizes=64+1518,resolution=25%,{SHORT}",
        html.display()
    );
    let (code, events, err) = run(&mut daemon.command("pkt-gen", ""), &args);
    assert_eq!(code, 0, "{err}");
    check(&events, &[64, 1518]);
    let results = of(&events, "result");
    // The port's burst is what it may receive in a tenth of a second, the length of a trial. Where the switch runs
    // late, as much again passes while packets wait. Without the limit it would be the link's 149,000.
    let most = 4.0 * LIMIT;
    let pps = results[0]["throughput"]["pps"].as_f64().expect("a rate");
    assert!(pps <= most, "{pps}");
    assert!(
        results[0]["loss"].as_array().expect("trials").len() > 2,
        "the link is faster than the port: {}",
        results[0]
    );
    assert!(results[0]["back_to_back"]["max"].as_u64().expect("packets") as f64 <= most, "{}", results[0]);
    let page = fs::read_to_string(html).expect("a page");
    assert!(page.contains("RFC 2544 between two ports") && page.matches("<figure>").count() == 4, "{page}");
}

#[test]
fn the_tests_run_over_a_kernels_bridge() {
    let Some(daemon) = TestDaemon::start_beside(PKT_GEN) else { return };
    let created = Lab::new().and_then(|lab| {
        let (tester, device) = (lab.namespace("tester")?, lab.namespace("device")?);
        for (here, there) in [("t0", "d0"), ("t1", "d1")] {
            lab.veth(&tester, here, &device, there, VethOptions::default())?;
        }
        device.ip(&["link", "add", "name", "br0", "type", "bridge", "mcast_snooping", "0"])?;
        for port in ["d0", "d1"] {
            device.ip(&["link", "set", port, "master", "br0"])?;
        }
        device.ip(&["link", "set", "br0", "up"])?;
        Ok((lab, tester))
    });
    let (_lab, tester) = match created {
        Ok(created) => created,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let args = |rfc: &str, sizes: &str| {
        format!(
            "-i t0 --receive=t1 -w 1 --json --link 20M \
             --{rfc}=tests=throughput+latency,sizes={sizes},resolution=50%,{SHORT}"
        )
    };
    for (rfc, sizes, frames) in [("rfc2544", "64+512", [64, 512]), ("rfc8219", "84+1518", [84, 1518])] {
        let mut command = tester.command(PKT_GEN);
        let (code, events, err) = run(daemon.set_environment(&mut command), &args(rfc, sizes));
        if err.contains("cannot be opened") || err.contains("AF_XDP") {
            return eprintln!("skipped: an interface cannot be opened here: {err}");
        }
        assert_eq!(code, 0, "{err}");
        check(&events, &frames);
        assert!(of(&events, "trial").iter().any(|trial| trial["received"] != 0), "the bridge forwards");
    }
}

#[test]
fn a_search_that_cannot_be_made_is_refused() {
    let Some(daemon) = TestDaemon::start_beside(PKT_GEN) else { return };
    for (args, status, part) in [
        ("-i p{1 --receive=q}1 --rfc2544=tests=x", 2, "throughput+latency"),
        ("-i p{1 --receive=q}1 --rfc2544=sizes=9018", 1, "does not fit a buffer"),
        ("-i p{1 --receive=q}1 --rfc2544 --html /nowhere/x.html", 1, "/nowhere/x.html"),
        ("-i p{1 --receive=q}1 --rfc2544=sizes=64,trial=1ms,settle=1ms", 1, "is a receiver running?"),
    ] {
        let (code, _, err) = run(&mut daemon.command("pkt-gen", "-w 0"), args);
        assert!(code == status && err.contains(part), "{args}: {code} {err}");
    }
}

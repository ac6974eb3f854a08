// SPDX-License-Identifier: BSD-2-Clause
//! The benchmarks of interfaces, from the command line.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

const UNETMAP: &str = env!("CARGO_BIN_EXE_unetmap");
/// The uid of `nobody` on most machines.
const NOBODY: u32 = 65_534;

/// Returns the command that runs a benchmark with the programs of the same build.
fn bench(arguments: &[&str]) -> Option<Command> {
    let here = Path::new(UNETMAP).parent()?;
    let folder = [here.to_owned(), here.with_file_name("release")]
        .into_iter()
        .find(|folder| ["pkt-gen", "bridge", "unetmapd"].iter().all(|name| folder.join(name).is_file()))?;
    let mut path = vec![folder.clone()];
    path.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    let mut command = Command::new(UNETMAP);
    command.arg("bench").args(arguments).env("UNETMAPD", folder.join("unetmapd"));
    command.env("PATH", std::env::join_paths(path).unwrap());
    Some(command)
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn without_root_the_error_names_the_reason() {
    let mut command = bench(&["nic-tx", "--json"]).unwrap_or_else(|| {
        let mut command = Command::new(UNETMAP);
        command.args(["bench", "nic-tx", "--json"]);
        command
    });
    if is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    let output = match command.output() {
        Ok(output) => output,
        Err(e) => {
            eprintln!("skipped: another user cannot run {UNETMAP}: {e}");
            return;
        }
    };
    let printed = String::from_utf8_lossy(&output.stderr);
    if std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() == 1) {
        assert!(printed.contains("needs two processors"), "{printed}");
        return;
    }
    assert_eq!((output.status.code(), &*output.stdout), (Some(1), &b""[..]));
    assert_eq!(printed, "unetmap: bench nic-tx: network namespaces need root\n");
}

#[test]
fn unetmap_and_every_peer_have_a_rate() {
    if let Err(why) = lab::Lab::new() {
        eprintln!("skipped: {why}");
        return;
    }
    // One sample of each; the test does not check the speed.
    let arguments = ["nic-tx", "nic-rx", "nic-fwd", "--samples", "1", "--seconds", "60", "--json"];
    let Some(mut command) =
        bench(&arguments).filter(|_| std::thread::available_parallelism().is_ok_and(|n| n.get() > 1))
    else {
        eprintln!("skipped: needs two processors, and pkt-gen, bridge and unetmapd (`make` builds them)");
        return;
    };
    let output = command.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}");
    let rows: Vec<Value> =
        String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let expected = [
        ("nic-tx", &["mediated", "afxdp", "af_packet", "sendmmsg", "tx_ring"][..]),
        ("nic-rx", &["mediated", "afxdp", "af_packet", "recvmmsg", "tpacket_v3"]),
        ("nic-fwd", &["mediated", "afxdp", "kernel-bridge"]),
    ];
    for (name, peers) in expected {
        let rows: Vec<_> = rows.iter().filter(|row| row["name"] == name).collect();
        assert!(!rows.is_empty() && rows.iter().all(|row| row["median"].as_f64() > Some(0.0)), "{name}: {rows:?}");
        // Each peer has a sample in at least one class.
        for peer in peers {
            let has = |row: &&&Value| row["peers"][peer]["median"].as_f64() > Some(0.0);
            assert!(rows.iter().any(|row| has(&row)), "{name} {peer}: {rows:?}");
        }
        let left_out = printed.contains(&format!("{name}: skipping peer libpcap: "));
        assert!(left_out || rows.iter().any(|row| row["peers"]["libpcap"].is_object()), "{name}: {rows:?}\n{printed}");
    }
}

// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap doctor --prove`: two ends of a cable are proved; a byte in memory that was given to nobody, and a frame
//! that was sent before, are found while frames cross.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use conformance::home::{program, summary};
use conformance::net::Tap;
use conformance::until;
use lab::{Lab, Ns, VethOptions};
use serde_json::Value;

/// Bytes of a page of the memory of a proof, and those before a packet in its buffer.
const PAGE: u64 = 4096;
const HEADROOM: u64 = 256;

/// Runs `body` with two namespaces and a cable from `va` to `vb`.
fn with_cable(queues: u32, body: impl FnOnce(&Ns, &Ns)) {
    match Lab::new() {
        Err(why) => summary(&format!("skipped: {why}")),
        Ok(lab) => {
            let [near, far] = ["a", "b"].map(|name| lab.namespace(name).expect("a namespace"));
            lab.veth(&near, "va", &far, "vb", VethOptions { queues, ..VethOptions::default() }).expect("a cable");
            until("the cable has a carrier", || {
                shown(&near, "va").contains("LOWER_UP") && shown(&far, "vb").contains("LOWER_UP")
            });
            body(&near, &far);
        }
    }
}

/// An interface, as `ip` shows it.
fn shown(ns: &Ns, name: &str) -> String {
    let output = ns.command("ip").args(["-o", "link", "show", name]).output().expect("ip runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn prove(near: &Ns, far: &Ns, more: &[&str]) -> Command {
    let mut command = near.command(program("unetmap"));
    command.args(["doctor", "--prove", "va", "vb", "--json", "--peer-netns"]).arg(far.path()).args(more);
    // The machine's own file is nobody's business here.
    command.env("UNETMAP_PROOFS", "/nonexistent/none");
    command
}

fn result(mut child: Child) -> (i32, Value) {
    let mut printed = String::new();
    child.stdout.take().expect("a pipe").read_to_string(&mut printed).expect("text");
    let status = child.wait().expect("it ends").code().expect("an exit");
    (status, serde_json::from_str(&printed).unwrap_or_else(|e| panic!("{e}: {printed}")))
}

/// The error of a proof that was refused: one line.
#[track_caller]
fn refused(mut command: Command) -> String {
    let output = command.output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), &*output.stdout, text.lines().count()), (Some(1), &b""[..], 1), "{text}");
    text
}

/// The files of a proof's memory: those of the first interface's queues, then those of the second's.
fn memories(prover: &Child) -> Vec<PathBuf> {
    let fds = fs::read_dir(format!("/proc/{}/fd", prover.id())).into_iter().flatten().flatten();
    let mut all: Vec<(u32, PathBuf)> = fds
        .filter(|fd| fs::read_link(fd.path()).is_ok_and(|to| to.to_string_lossy().contains("memfd:unetmap-prove")))
        .filter_map(|fd| Some((fd.file_name().to_str()?.parse().ok()?, fd.path())))
        .collect();
    all.sort();
    all.into_iter().map(|(_, path)| path).collect()
}

fn start(near: &Ns, far: &Ns) -> (Child, [File; 2]) {
    let mut prover = prove(near, far, &["--seconds", "600"]).stdout(Stdio::piped()).spawn().expect("it starts");
    until("its memory is there", || memories(&prover).len() == 2 || prover.try_wait().expect("a child").is_some());
    let open = |path: &PathBuf| File::options().read(true).write(true).open(path).expect("a file of memory");
    let files = memories(&prover).iter().map(open).collect::<Vec<_>>();
    until("it has its patterns", || {
        let mut last = [0; 8];
        files.iter().all(|file| {
            let end = file.metadata().expect("a file").len().saturating_sub(8);
            file.read_exact_at(&mut last, end).is_ok() && last != [0; 8]
        })
    });
    (prover, files.try_into().unwrap_or_else(|files: Vec<_>| panic!("{} files", files.len())))
}

#[test]
fn two_ends_of_a_cable_are_proved_by_copies() {
    with_cable(2, |near, far| {
        let output = prove(near, far, &["--seconds", "1"]).output().expect("it runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{errors}{}", String::from_utf8_lossy(&output.stdout));
        let proof: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let is = |key: &str, value: Value| assert_eq!(proof[key], value, "{key}: {proof}");
        is("proved", true.into());
        is("way", "native, copy".into());
        is("difference", Value::Null);
        is("unlocked", Value::Array(Vec::new()));
        let disturbed = proof["disturbed"].as_object().expect("kinds");
        assert!(disturbed.len() == 7 && disturbed.values().all(|rounds| rounds.as_u64() >= Some(1)), "{proof}");
        // Four rounds and more lose nothing, and have each length both ways.
        assert!(proof["received"].as_u64() > Some(4 * 2 * 1455), "{proof}");
        assert!(proof["sent"].as_u64() >= proof["received"].as_u64(), "{proof}");
        // All is as it was: no program, both up.
        for (ns, name) in [(near, "va"), (far, "vb")] {
            let shown = shown(ns, name);
            assert!(!shown.contains("xdp") && shown.contains("LOWER_UP"), "{shown}");
        }
    });
}

#[test]
fn a_byte_in_memory_that_was_given_to_nobody_is_found() {
    with_cable(1, |near, far| {
        let (prover, [_, memory]) = start(near, far);
        // The guard behind the first buffer for receiving, which is behind those of 64 slots for sending.
        let place = (2 * 64 + 3) * PAGE + 100;
        let mut byte = [0];
        memory.read_exact_at(&mut byte, place).expect("memory");
        memory.write_all_at(&[!byte[0]], place).expect("memory");
        let (status, proof) = result(prover);
        assert_eq!((status, &proof["proved"]), (1, &false.into()), "{proof}");
        let difference = proof["difference"].as_str().expect("a sentence");
        assert!(
            difference.contains("vb, queue 0: a guard was written: page 131, 1 bytes from byte 100 to 100"),
            "{difference}"
        );
    });
}

#[test]
fn a_frame_that_was_sent_before_is_found() {
    with_cable(1, |near, far| {
        let (mut prover, [_, memory]) = start(near, far);
        let mut page = vec![0; (PAGE - HEADROOM) as usize];
        let mut frame = || {
            memory.read_exact_at(&mut page, 2 * PAGE + HEADROOM).expect("memory");
            let length = usize::from(u16::from_be_bytes([page[35], page[36]]));
            (&page[14..22] == b"unetmap\x01" && length <= page.len()).then(|| page[..length].to_vec())
        };
        let round = |frame: &[u8]| u32::from_be_bytes([frame[22], frame[23], frame[24], frame[25]]);
        let mut kept: Option<Vec<u8>> = None;
        until("a stale frame is found", || {
            if let Some(now) = frame() {
                // Its buffer has another frame, of the same round: it has arrived. In each seventh round links go down.
                match &kept {
                    Some(old) if round(old) == round(&now) && old[27..35] != now[27..35] && round(old) % 7 != 3 => {
                        // A socket of before would report that the link was down.
                        Tap::on(far, "vb").send(old);
                        kept = Some(now);
                    }
                    Some(old) if round(old) == round(&now) => {}
                    _ => kept = Some(now),
                }
            }
            prover.try_wait().expect("a child").is_some()
        });
        let (status, proof) = result(prover);
        let difference = proof["difference"].as_str().unwrap_or_else(|| panic!("{proof}"));
        // It may have been read while the next one was written.
        let found = difference.ends_with("a stale one") || difference.contains(": byte ");
        assert!(status == 1 && difference.contains("received at va: frame") && found, "{difference}");
    });
}

#[test]
fn an_interface_that_is_used_is_not_proved() {
    with_cable(1, |near, far| {
        near.ip(&["address", "add", "10.9.0.1/24", "dev", "va"]).expect("an address");
        let printed = refused(prove(near, far, &[]));
        assert!(
            printed.contains("va: it carries an address: a proof is for interfaces that nothing else"),
            "{printed}"
        );
        let mut none = near.command(program("unetmap"));
        none.args(["doctor", "--prove", "vb", "none9"]);
        assert!(refused(none).contains("vb: no such interface"));
    });
}

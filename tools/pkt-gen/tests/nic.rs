// SPDX-License-Identifier: BSD-2-Clause
//! Tests on interfaces: a veth pair with each end in a network namespace of its own. Need root and a kernel with
//! AF_XDP.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use lab::{Lab, Ns, VethOptions};
use serde_json::Value;
use tool_common::testing::{TestDaemon, TestProcess};
use unetmap_capture::testing::read_file;

const PKT_GEN: &str = env!("CARGO_BIN_EXE_pkt-gen");

/// A daemon, and a veth pair of `here0` and `there0`.
struct VethSetup {
    // The order of drops: the daemon before the namespaces that it uses.
    daemon: TestDaemon,
    here: Ns,
    there: Ns,
    _lab: Lab,
}

impl VethSetup {
    fn new(queues: u32) -> Option<VethSetup> {
        let daemon = TestDaemon::start_beside(PKT_GEN)?;
        let created = Lab::new().and_then(|lab| {
            let (here, there) = (lab.namespace("here")?, lab.namespace("there")?);
            lab.veth(&here, "here0", &there, "there0", VethOptions { queues, ..VethOptions::default() })?;
            Ok(VethSetup { daemon, here, there, _lab: lab })
        });
        let setup = created.map_err(|why| eprintln!("skipped: {why}")).ok()?;
        let (code, _, err) = setup.start(&setup.here, "-i here0 -f tx -n 1 -w 0 -T 0").wait();
        if code != 0 {
            eprintln!("skipped: an interface cannot be opened here: {err}");
            return None;
        }
        Some(setup)
    }

    fn command(&self, ns: &Ns, args: &str) -> Command {
        let mut command = ns.command(PKT_GEN);
        self.daemon.set_environment(command.args(args.split_whitespace()).stdin(Stdio::null()));
        command
    }

    fn start(&self, ns: &Ns, args: &str) -> TestProcess {
        TestProcess::start(&mut self.command(ns, args))
    }

    /// Starts pkt-gen at the far end, and waits until it is ready.
    fn start_there(&self, args: &str) -> TestProcess {
        let mut running = self.start(&self.there, &format!("-i there0 {args} -w 0 -T 0"));
        let lines = BufReader::new(running.0.stderr.as_mut().expect("a pipe")).lines();
        let seen: Vec<String> = lines.map_while(Result::ok).take_while(|line| line != "Ready...").collect();
        assert!(running.0.try_wait().expect("our child").is_none(), "{args}: {seen:?}");
        running
    }
}

#[test]
fn packets_have_the_interfaces_source_address() {
    let Some(setup) = VethSetup::new(1) else { return };
    let file = setup.daemon.folder().join("x.pcap");
    let rx = setup.start_there(&format!("-f rx -W --write {}", file.display()));
    let (code, out, err) = setup.start(&setup.here, "-i here0 -f tx -n 500 -l 100 -w 0 -T 0").wait();
    assert!(code == 0 && out.starts_with("Sent 500 packets 50000 bytes"), "{out}{err}");
    let (code, out, err) = rx.wait();
    assert!(code == 0 && out.starts_with("Received 500 packets"), "{out}{err}");
    let mac = setup.here.mac("here0").expect("an address");
    let packets = read_file(&file);
    assert_eq!(packets.len(), 500);
    for packet in packets {
        assert_eq!((packet.len(), &packet[..6], &packet[6..12]), (100, &[0xff; 6][..], &mac[..]));
    }
}

#[test]
fn pings_are_answered_and_other_packets_do_not_count_as_answers() {
    let Some(setup) = VethSetup::new(1) else { return };
    // Without pong, but with other traffic: frames of zeros, whose sequence number would be that of the first ping.
    let noise = setup.start(&setup.there, "-i there0 -f tx -R 200 -r -l 60 -w 0 -T 0");
    let (code, out, err) = setup.start(&setup.here, "-i here0 -f ping -n 1 -w 0 -T 0").wait();
    assert!(code == 1 && out.contains("0 answers, 1 lost"), "{out}{err}");
    drop(noise);
    let pong = setup.start_there("-f pong -n 100");
    let (code, out, err) = setup.start(&setup.here, "-i here0 -f ping -n 100 -w 0 -T 0").wait();
    assert!(code == 0 && out.contains("100 answers, 0 lost"), "{out}{err}");
    assert_eq!(pong.wait().0, 0);
}

#[test]
fn each_thread_has_a_queue_and_all_end_together() {
    let Some(setup) = VethSetup::new(2) else { return };
    let rx = setup.start_there("-f rxseq -p 2 -W --json");
    // On a veth pair, the queue of the same number receives the packets.
    let (code, _, err) = setup.start(&setup.here, "-i here0 -f txseq -n 500 -w 0 -T 0").wait();
    assert_eq!(code, 0, "{err}");
    let (code, out, err) = rx.wait();
    let summary: Value = serde_json::from_str(out.trim()).unwrap_or_else(|e| panic!("{e}: {out}{err}"));
    assert_eq!((code, &summary["packets"], &summary["threads"]), (0, &500.into(), &2.into()), "{err}");
    assert_eq!((&summary["missing"], &summary["late"], &summary["unnumbered"]), (&0.into(), &0.into(), &0.into()));
    let (code, _, err) = setup.start(&setup.here, "-i here0 -f tx -p 2 -n 100 -w 0 -T 0").wait();
    assert_eq!(code, 0, "{err}");
    let (code, _, err) = setup.start(&setup.here, "-i here0 -f tx -p 3 -n 100 -w 0 -T 0").wait();
    assert!(code == 1 && err.contains("has 2 rings"), "{err}");
}

#[test]
fn refusals_by_the_policy_are_explained() {
    let Some(setup) = VethSetup::new(1) else { return };
    // The daemon reloads the policy when the file changes.
    let write = |text: &str| fs::write(setup.daemon.policy(), text).expect("a policy");
    let open = || setup.start(&setup.here, "-i here0 -f tx -n 1 -w 0 -T 0").wait();
    write("[[rule]]\nports = ['here?']\nusers = ['root']\naccess = 'none'\n");
    let (code, _, err) = open();
    assert!(code == 1 && err.contains("here0") && err.contains("policy"), "{err}");
    write(&format!(
        "[[rule]]\nports = ['here0']\nusers = [0]\nnetns = '{}'\naccess = 'mediated'\n",
        setup.here.path().display()
    ));
    let (code, out, err) = open();
    assert!(code == 0 && out.starts_with("Sent 1 packets"), "{err}");
    write("[[rule]]\nports = ['here0']\nusers = ['no such user']\n");
    let (code, _, err) = open();
    let place = format!("{}:3: there is no user `no such user`", setup.daemon.policy().display());
    assert!(code == 1 && err.contains(&place), "{err}");
}

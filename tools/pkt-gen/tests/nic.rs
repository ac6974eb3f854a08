//! On interfaces: two ends of a cable, each in a namespace of its own. Needs root, and a kernel with AF_XDP.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use lab::{Lab, Ns, VethOptions};
use pcap_file::pcap::PcapReader;
use serde_json::Value;
use tool_common::testing::{House, Running};

const PKT_GEN: &str = env!("CARGO_BIN_EXE_pkt-gen");

/// A daemon, and a cable from `here0` to `there0`.
struct Wire {
    // In this order: the daemon before the namespaces that it holds.
    house: House,
    here: Ns,
    there: Ns,
    _lab: Lab,
}

impl Wire {
    fn new(queues: u32) -> Option<Wire> {
        let house = House::beside(PKT_GEN)?;
        let laid = Lab::new().and_then(|lab| {
            let (here, there) = (lab.namespace("here")?, lab.namespace("there")?);
            lab.veth(&here, "here0", &there, "there0", VethOptions { queues, ..VethOptions::default() })?;
            Ok(Wire { house, here, there, _lab: lab })
        });
        let wire = laid.map_err(|why| eprintln!("skipped: {why}")).ok()?;
        let (code, _, err) = wire.start(&wire.here, "-i here0 -f tx -n 1 -w 0 -T 0").end();
        if code != 0 {
            eprintln!("skipped: an interface cannot be opened here: {err}");
            return None;
        }
        Some(wire)
    }

    fn command(&self, ns: &Ns, args: &str) -> Command {
        let mut command = ns.command(PKT_GEN);
        self.house.tell(command.args(args.split_whitespace()).stdin(Stdio::null()));
        command
    }

    fn start(&self, ns: &Ns, args: &str) -> Running {
        Running::start(&mut self.command(ns, args))
    }

    /// Starts it at the far end, and waits until it is there.
    fn start_there(&self, args: &str) -> Running {
        let mut running = self.start(&self.there, &format!("-i there0 {args} -w 0 -T 0"));
        let lines = BufReader::new(running.0.stderr.as_mut().expect("a pipe")).lines();
        let seen: Vec<String> = lines.map_while(Result::ok).take_while(|line| line != "Ready...").collect();
        assert!(running.0.try_wait().expect("our child").is_none(), "{args}: {seen:?}");
        running
    }
}

#[test]
fn packets_carry_the_interfaces_address() {
    let Some(wire) = Wire::new(1) else { return };
    let file = wire.house.folder().join("x.pcap");
    let rx = wire.start_there(&format!("-f rx -W --write {}", file.display()));
    let (code, out, err) = wire.start(&wire.here, "-i here0 -f tx -n 500 -l 100 -w 0 -T 0").end();
    assert!(code == 0 && out.starts_with("Sent 500 packets 50000 bytes"), "{out}{err}");
    let (code, out, err) = rx.end();
    assert!(code == 0 && out.starts_with("Received 500 packets"), "{out}{err}");
    let mut reader = PcapReader::new(File::open(&file).expect("a capture")).expect("a capture");
    let mut count = 0;
    let mac = wire.here.mac("here0").expect("an address");
    while let Some(packet) = reader.next_packet() {
        let packet = packet.expect("a packet").data;
        assert_eq!((packet.len(), &packet[..6], &packet[6..12]), (100, &[0xff; 6][..], &mac[..]));
        count += 1;
    }
    assert_eq!(count, 500);
}

#[test]
fn pings_are_answered_and_other_packets_are_not_taken_for_answers() {
    let Some(wire) = Wire::new(1) else { return };
    // Nobody answers at first, but something comes: frames of zeros, whose number would be the first ping's.
    let noise = wire.start(&wire.there, "-i there0 -f tx -R 200 -r -l 60 -w 0 -T 0");
    let (code, out, err) = wire.start(&wire.here, "-i here0 -f ping -n 1 -w 0 -T 0").end();
    assert!(code == 1 && out.contains("0 answers, 1 lost"), "{out}{err}");
    drop(noise);
    let pong = wire.start_there("-f pong -n 100");
    let (code, out, err) = wire.start(&wire.here, "-i here0 -f ping -n 100 -w 0 -T 0").end();
    assert!(code == 0 && out.contains("100 answers, 0 lost"), "{out}{err}");
    assert_eq!(pong.end().0, 0);
}

#[test]
fn threads_have_a_queue_each_and_end_together() {
    let Some(wire) = Wire::new(2) else { return };
    let rx = wire.start_there("-f rxseq -p 2 -W --json");
    // On a veth, what one queue sends the queue of the same number receives.
    let (code, _, err) = wire.start(&wire.here, "-i here0 -f txseq -n 500 -w 0 -T 0").end();
    assert_eq!(code, 0, "{err}");
    let (code, out, err) = rx.end();
    let summary: Value = serde_json::from_str(out.trim()).unwrap_or_else(|e| panic!("{e}: {out}{err}"));
    assert_eq!((code, &summary["packets"], &summary["threads"]), (0, &500.into(), &2.into()), "{err}");
    assert_eq!((&summary["missing"], &summary["late"], &summary["unnumbered"]), (&0.into(), &0.into(), &0.into()));
    let (code, _, err) = wire.start(&wire.here, "-i here0 -f tx -p 2 -n 100 -w 0 -T 0").end();
    assert_eq!(code, 0, "{err}");
    let (code, _, err) = wire.start(&wire.here, "-i here0 -f tx -p 3 -n 100 -w 0 -T 0").end();
    assert!(code == 1 && err.contains("has 2 rings"), "{err}");
}

#[test]
fn what_the_policy_refuses_is_said() {
    let Some(wire) = Wire::new(1) else { return };
    // The daemon follows the file, which has not been there yet.
    let write = |text: &str| fs::write(wire.house.policy(), text).expect("a policy");
    let open = || wire.start(&wire.here, "-i here0 -f tx -n 1 -w 0 -T 0").end();
    write("[[rule]]\nports = ['here?']\nusers = ['root']\naccess = 'none'\n");
    let (code, _, err) = open();
    assert!(code == 1 && err.contains("here0") && err.contains("policy"), "{err}");
    write(&format!(
        "[[rule]]\nports = ['here0']\nusers = [0]\nnetns = '{}'\naccess = 'mediated'\n",
        wire.here.path().display()
    ));
    let (code, out, err) = open();
    assert!(code == 0 && out.starts_with("Sent 1 packets"), "{err}");
    write("[[rule]]\nports = ['here0']\nusers = ['no such user']\n");
    let (code, _, err) = open();
    let place = format!("{}:3: there is no user `no such user`", wire.house.policy().display());
    assert!(code == 1 && err.contains(&place), "{err}");
}

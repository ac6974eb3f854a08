// SPDX-License-Identifier: BSD-2-Clause
//! The example `scrubber` between a wire and a host: attacks end there, and the host's peers notice nothing.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::UdpSocket;
use std::process::Stdio;
use std::time::Duration;

use conformance::home::Guard;
use conformance::host::{ATTACHMENTS, V4, net, ping, stream, until_clean};
use conformance::net::Net;
use conformance::{Home, isolated_with_interfaces, program, until};
use rustix::process::Signal;

/// Starts it with a thread for each queue, and packets a second for each source; returns when it works.
#[track_caller]
fn start(net: &Net, threads: u32, rate: u32) -> Guard {
    let mut command = net.near.command(program("scrubber"));
    command.args(["va", &threads.to_string(), &rate.to_string()]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut scrubber = Guard::spawn(&mut command);
    let lines = BufReader::new(scrubber.0.stderr.as_mut().expect("piped")).lines();
    let seen: Vec<String> = lines.map_while(Result::ok).take_while(|line| !line.starts_with("Ready")).collect();
    assert!(scrubber.0.try_wait().expect("our child").is_none(), "{seen:?}");
    scrubber
}

/// Its final output.
#[track_caller]
fn end(mut scrubber: Guard) -> String {
    scrubber.signal(Signal::INT);
    let mut text = String::new();
    scrubber.0.stdout.take().expect("piped").read_to_string(&mut text).expect("text");
    assert!(scrubber.wait().success(), "{text}");
    text
}

/// The number after `what`.
#[track_caller]
fn number_after(text: &str, what: &str) -> u64 {
    let after = text.split(what).nth(1).unwrap_or_else(|| panic!("no `{what}` in {text}"));
    let digits: String = after.trim_start().chars().take_while(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}

/// An IPv4 frame to the near host's port 7: UDP, or the SYN of a TCP connection.
fn frame(addresses: [[u8; 6]; 2], source: [u8; 4], protocol: u8) -> Vec<u8> {
    let mut bytes = addresses.concat();
    bytes.extend([8, 0]);
    let mut ip = vec![0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, protocol, 0, 0];
    ip.extend(source);
    ip.extend([10, 9, 0, 1]);
    let sum: u32 = ip.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    bytes.extend(ip);
    match protocol {
        17 => bytes.extend([0x10, 0, 0, 7, 0, 26, 0, 0]),
        _ => bytes.extend([0x10, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 1, 0, 0, 0, 0, 0]),
    }
    bytes.resize(60, 0);
    bytes
}

fn cleans(home: &Home, which: usize) {
    let attachment = ATTACHMENTS[which];
    let Some(net) = net(home, attachment, 1500) else { return };
    let scrubber = start(&net, attachment.queues, 1_000_000);
    // Good traffic, both ways; connections from outside begin in spite of the proxy.
    for _ in 0..3 {
        ping(&net).expect("echoes");
        stream(&net.far, &net.near, V4[0]).expect("a stream inwards");
        stream(&net.near, &net.far, V4[1]).expect("a stream outwards");
    }
    let text = end(scrubber);
    assert!(["malformed", "bogon", "rate"].iter().all(|filter| number_after(&text, filter) == 0), "{text}");
    let scrubber = start(&net, attachment.queues, 100);
    // The host's service keeps working during the attack.
    let service = net.near.run(|| UdpSocket::bind("10.9.0.1:7")).expect("a namespace").expect("a socket");
    service.set_read_timeout(Some(Duration::from_millis(300))).expect("a time");
    let addresses = [net.near.mac("va"), net.far.mac("vb")].map(|mac| mac.expect("an interface"));
    let tap = net.tap();
    for i in 0..2000u32 {
        let [_, _, b, c] = i.to_be_bytes();
        tap.send(&frame(addresses, [224, 0, b, c], 17));
        let mut broken = frame(addresses, [10, 9, 0, 2], 17);
        broken[24] ^= 1;
        tap.send(&broken);
        tap.send(&frame(addresses, [198, 51, b, c], 6));
        tap.send(&frame(addresses, [10, 9, 0, 77], 17));
        if i % 50 == 0 {
            // A veth pair has no flow control: packets sent too fast for this machine would be dropped before the
            // scrubber.
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    // The only one that comes through is the last, and as often as its rate allows.
    let mut bytes = [0; 64];
    let mut sources = Vec::new();
    while let Ok((_, from)) = service.recv_from(&mut bytes) {
        sources.push(from.ip().to_string());
    }
    assert!(sources.iter().all(|from| from == "10.9.0.77"), "{sources:?}");
    assert!(!sources.is_empty());
    ping(&net).expect("echoes");
    let text = end(scrubber);
    for filter in ["malformed", "rate", "syn", "bogon"] {
        assert!(number_after(&text, filter) >= 100, "{text}");
    }
    until("the host has its interface again", || net.pings());
    until_clean(&net);
}

#[test]
fn the_scrubber_stops_attacks_and_leaves_other_traffic_unchanged() {
    isolated_with_interfaces(|home| cleans(home, 0));
}

#[test]
fn the_scrubber_stops_attacks_on_four_queues() {
    isolated_with_interfaces(|home| cleans(home, 1));
}

#[test]
fn the_scrubber_stops_attacks_in_generic_mode() {
    isolated_with_interfaces(|home| cleans(home, 3));
}

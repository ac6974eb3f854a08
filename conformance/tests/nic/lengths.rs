// SPDX-License-Identifier: BSD-2-Clause
//! The table of lengths: frames of each length from 14 bytes to 9216, each way, by each back end; some of them at an
//! offset and behind a virtio-net header, too; and programs that are told of frames that cannot be sent.
//!
//! Another port or a packet socket is the other end, and every byte is compared.

use std::fs;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use conformance::home::{Guard, summary};
use conformance::net::{CABLE, DIRECT, MEDIATED, Net, Tap, assert_same, drain, take, transmit};
use conformance::packet::Rng;
use conformance::tool::done;
use conformance::traffic::open;
use conformance::{Home, LIMIT, isolated, isolated_with_interfaces, program, until};
use lab::VethOptions;
use rustix::process::Signal;
use unetmap::abi::NR_ACCEPT_VNET_HDR;
use unetmap::errno::EBUSY;
use unetmap::{Interest, Pools, Port};

/// Bytes of the shortest and the longest frame.
const LENGTHS: std::ops::RangeInclusive<usize> = 14..=9216;
/// The MTU with which the longest is sent.
const MTU: u32 = 9216 - 14;
/// Frames that are on their way at a time: the longest have five slots of 2048 bytes.
const BATCH: usize = 96;
/// Bytes at the start of buffers, and of a header.
const OFFSET: usize = 64;
const HEADER: usize = 12;

/// Where packets begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Begin {
    Start,
    Offset,
    Header,
}

const BEGINS: [Begin; 3] = [Begin::Start, Begin::Offset, Begin::Header];

impl Begin {
    /// The option that a port's name gets.
    fn option(self) -> String {
        if self == Begin::Offset { format!("@offset:initial={OFFSET},bits=16") } else { String::new() }
    }

    fn header(self) -> &'static [u8] {
        if self == Begin::Header { &[0; HEADER] } else { &[] }
    }
}

/// The other end of a port.
enum Far<'a> {
    Tap(&'a Tap),
    Port(&'a Port),
}

/// All frames, of one sequence of bytes.
struct Frames(Vec<u8>);

impl Frames {
    fn new() -> Frames {
        let mut rng = Rng(41);
        Frames((0..3 * LENGTHS.end() / 8).flat_map(|_| rng.next_u64().to_ne_bytes()).collect())
    }

    /// The frame of this length, of a protocol that no stack answers.
    fn of(&self, length: usize) -> Vec<u8> {
        let at = length % 8191;
        let mut frame = self.0[at..at + length].to_vec();
        frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 0x99, 2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
        frame
    }
}

/// Opens a port that may be in use for a moment.
fn accepting(spec: &str) -> Port {
    let mut opened = None;
    until("it is open", || {
        let result = Port::options().flags(NR_ACCEPT_VNET_HDR).open(spec);
        opened = result.inspect_err(|e| assert_eq!(e.errno(), EBUSY, "{spec}: {e}")).ok();
        opened.is_some()
    });
    opened.expect("it is open")
}

/// Most bytes of a packet in a slot of the port's transmit rings.
fn piece(port: &Port) -> usize {
    let ring = &port.tx_rings()[0];
    ring.slot(ring.head()).frame().capacity().min(ring.slot_size() as usize)
}

fn with(header: &[u8], frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
    frames.iter().map(|frame| [header, frame].concat()).collect()
}

/// Receives a frame of each length.
#[track_caller]
fn arrived(port: &Port, lengths: &[usize]) -> Vec<Vec<u8>> {
    let (mut got, end) = (Vec::new(), Instant::now() + LIMIT);
    while got.len() < lengths.len() {
        let first: Vec<usize> = got.iter().map(Vec::len).take(3).collect();
        assert!(Instant::now() < end, "{} of {lengths:?} arrived, the first {first:?}", got.len());
        port.poll(Interest::RX, Some(Duration::from_millis(100))).unwrap_or_else(|e| panic!("{e}"));
        (0..port.rx_rings().len()).for_each(|ring| got.extend(take(port, ring)));
    }
    port.rxsync().unwrap_or_else(|e| panic!("{e}"));
    got
}

/// Elsewhere than at the start of buffers, where all are sent: each seventh length, and those at the bounds of slots.
fn is_chosen(length: usize) -> bool {
    let begins = [0, OFFSET, HEADER];
    length.is_multiple_of(7)
        || [2048, 3840, 4096].iter().any(|slot| begins.iter().any(|begin| (length + begin + 2) % slot < 4))
}

/// Sends all frames from the port to the other end and back, and compares them.
#[track_caller]
fn all_lengths(port: &Port, far: &Far<'_>, begin: Begin) {
    let (frames, of_port) = (Frames::new(), piece(port));
    let lengths: Vec<usize> = LENGTHS.filter(|length| begin == Begin::Start || is_chosen(*length)).collect();
    for some in lengths.chunks(BATCH) {
        let plain: Vec<_> = some.iter().map(|length| frames.of(*length)).collect();
        let packets = with(begin.header(), &plain);
        transmit(port, 0, &packets, of_port);
        match far {
            Far::Tap(tap) => {
                assert_same(&tap.collect(plain.len()), &plain);
                tap.send_all(&plain);
            }
            Far::Port(peer) => {
                assert_same(&arrived(peer, some), &packets);
                transmit(peer, 0, &packets, piece(peer));
            }
        }
        assert_same(&arrived(port, some), &packets);
    }
    drain(port);
    assert!(port.tx_rings().iter().all(|ring| ring.bad_slots() == 0));
}

/// An interface by this policy and way, with buffers of `size` bytes; `host`: its host rings.
fn interface(home: &Home, (name, policy, way): (&str, &str, &str), size: &str, (host, begins): (bool, &[Begin])) {
    let cable = VethOptions { mtu: MTU, ..CABLE };
    let Some(net) = Net::with(home, policy, cable, &["--buf-size", size]) else { return };
    let time = Instant::now();
    done(&net.near, &["va", "way", way]);
    let (spec, tap) = match host {
        false => ("netmap:va", net.tap()),
        true => ("netmap:va^", Tap::on(&net.near, "va")),
    };
    for &begin in begins {
        if begin == Begin::Header {
            done(&net.near, &["va", "header", &HEADER.to_string()]);
        }
        let port = net.near.run(|| accepting(&format!("{spec}{}", begin.option()))).expect("a namespace");
        let longest = port.tx_rings()[0].longest_frame().expect("an interface says so");
        assert!(longest as usize >= *LENGTHS.end(), "{name}: {longest}");
        all_lengths(&port, &Far::Tap(&tap), begin);
    }
    summary(&format!("{name}, buffers of {size}: {begins:?}, each length each way: {:.1?}", time.elapsed()));
}

#[test]
fn each_length_crosses_an_interface_direct() {
    for size in ["2048", "4096"] {
        isolated_with_interfaces(|home| interface(home, ("direct", DIRECT, "auto"), size, (false, &BEGINS[..2])));
    }
}

/// A header makes it mediated; where it is, packets begin at the start of buffers.
#[test]
fn each_length_crosses_an_interface_mediated() {
    let begins = [Begin::Start, Begin::Header];
    isolated_with_interfaces(|home| interface(home, ("mediated", MEDIATED, "auto"), "4096", (false, &begins)));
}

#[test]
fn each_length_crosses_packet_sockets() {
    let begins = [Begin::Start, Begin::Header];
    isolated_with_interfaces(|home| interface(home, ("packet", DIRECT, "packet"), "4096", (false, &begins)));
}

#[test]
fn each_length_crosses_host_rings() {
    isolated_with_interfaces(|home| interface(home, ("host ring", DIRECT, "auto"), "4096", (true, &BEGINS)));
}

#[test]
fn each_length_crosses_a_pipe() {
    isolated(|_| {
        for begin in [Begin::Start, Begin::Offset] {
            let [a, b] = ["netmap:p{1", "netmap:p}1"].map(|spec| open(&format!("{spec}{}", begin.option())));
            all_lengths(&a, &Far::Port(&b), begin);
        }
    });
}

#[test]
fn each_length_crosses_a_switch() {
    isolated(|_| {
        for begin in BEGINS {
            let [a, b] = ["vale0:a", "vale0:b"].map(|spec| {
                let port = accepting(&format!("{spec}{}", begin.option()));
                if begin == Begin::Header {
                    unetmap::switch::set_vnet_header(spec, HEADER as u32).expect("a port of a switch");
                }
                port
            });
            all_lengths(&a, &Far::Port(&b), begin);
        }
    });
}

/// An end of a pipe that lies in a region with other buffers: a packet for which the rings are too short is counted, by
/// its sender or at its receiver, and those behind it cross.
#[test]
fn a_packet_that_a_copied_end_cannot_pass_on_is_counted() {
    isolated(|home| {
        let mut pools = Pools::default();
        (pools.bytes, pools.bufs) = (4 << 20, (4096, 256));
        (pools.ifs, pools.rings) = ((8, 0), (16, 0));
        let short = Port::options().pools(pools).open("netmap:short{1@conf:slots=4").expect("a region");
        let long = open("netmap:long{1@conf:slots=4");
        let frames = Frames::new();
        let sent = [200, 2048, 60].map(|length| frames.of(length));
        let arrive = [sent[0].clone(), sent[2].clone()];
        let receiver = open(&format!("netmap:long}}1@{}", short.mem_id()));
        transmit(&long, 0, &sent, 2048);
        assert_same(&arrived(&receiver, &[200, 60]), &arrive);
        let copied = home.snapshot().ports.into_iter().find(|port| port.kind == "copied").expect("the copied end");
        let dropped: Vec<u64> = copied.rings.iter().filter(|ring| ring.dir == "rx").map(|ring| ring.dropped).collect();
        assert_eq!(dropped, [1]);
        let sender = open(&format!("netmap:short}}1@{}", long.mem_id()));
        transmit(&sender, 0, &sent, 2048);
        assert_same(&arrived(&short, &[200, 60]), &arrive);
        assert_eq!((sender.tx_rings()[0].bad_slots(), receiver.tx_rings()[0].bad_slots()), (1, 0));
    });
}

/// Runs `pkt-gen` for ten packets of this length.
fn generate(net: &Net, home: &Home, args: &[&str]) -> Output {
    let mut command = net.command(program("pkt-gen"));
    command.args(["-i", "netmap:va", "-f", "tx", "-n", "10", "-w", "0", "-T", "0"]).args(args);
    command.env("UNETMAP_SOCKET", home.socket()).output().expect("pkt-gen runs")
}

/// A frame that a slot has room for arrives, or the program says why not, and its exit status is not 0.
fn none_vanishes(home: &Home, policy: &str, way: &str) {
    let cable = VethOptions { mtu: MTU, ..CABLE };
    let Some(net) = Net::with(home, policy, cable, &["--buf-size", "4096"]) else { return };
    done(&net.near, &["va", "way", way]);
    let _port = net.open("netmap:va/R");
    for (length, args) in [(3840, [].as_slice()), (3841, &[]), (4096, &[]), (9216, &["-F", "3"]), (9216, &["-F", "5"])]
    {
        let before = net.far.counters("vb").expect("an interface").rx_packets;
        let output = generate(&net, home, &[&["-l", &length.to_string()], args].concat());
        assert!(output.status.success(), "{length}: {output:?}");
        until("ten arrive", || net.far.counters("vb").expect("an interface").rx_packets - before >= 10);
    }
    let refused = generate(&net, home, &["-l", "9221", "-F", "3"]);
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{why}");
    assert!(why.contains("it sends frames of at most 9220 bytes") && why.contains("ip link set dev va mtu"), "{why}");
    // Shorter than an Ethernet header.
    let short = generate(&net, home, &["-l", "13", "-r"]);
    let why = String::from_utf8_lossy(&short.stderr).into_owned();
    assert_eq!(short.status.code(), Some(1), "{why}");
    assert!(why.contains("netmap:va: 10 slots were not sent"), "{why}");
}

#[test]
fn no_frame_vanishes_direct() {
    isolated_with_interfaces(|home| none_vanishes(home, DIRECT, "auto"));
}

#[test]
fn no_frame_vanishes_mediated() {
    isolated_with_interfaces(|home| none_vanishes(home, MEDIATED, "auto"));
}

#[test]
fn no_frame_vanishes_by_packet_sockets() {
    isolated_with_interfaces(|home| none_vanishes(home, DIRECT, "packet"));
}

/// Between a pipe and an interface: what is too long for this is dropped, counted and said, and nothing else is lost.
fn a_bridge_tells(home: &Home, policy: &str) {
    let Some(net) = Net::new(home, policy, CABLE) else { return };
    let log = home.folder().join("bridge.log");
    let mut command = net.command(program("bridge"));
    command.args(["-c", "-w", "0", "-i", "netmap:p}1", "-i", "netmap:va"]).env("UNETMAP_SOCKET", home.socket());
    let mut bridge = Guard::spawn(command.stdout(Stdio::null()).stderr(fs::File::create(&log).expect("a file")));
    until("it has both ports", || {
        assert!(bridge.0.try_wait().expect("our child").is_none(), "{:?}", fs::read_to_string(&log));
        let pid = bridge.0.id();
        home.snapshot().sessions.iter().filter(|session| session.pid == pid).count() == 2
    });
    let (port, tap) = (net.open("netmap:p{1"), net.tap());
    let frames = Frames::new();
    let [first, long, last] = [60, 1600, 1518].map(|length| frames.of(length));
    transmit(&port, 0, &[first.clone(), long, last.clone()], piece(&port));
    assert_same(&tap.collect(2), &[first, last]);
    bridge.signal(Signal::TERM);
    assert_eq!(bridge.wait().code(), Some(1));
    let why = fs::read_to_string(&log).expect("our file");
    assert!(why.contains("netmap:va: 1 packets were dropped: it sends frames of at most 1518 bytes"), "{why}");
}

#[test]
fn a_bridge_tells_what_a_port_cannot_send_direct() {
    isolated_with_interfaces(|home| a_bridge_tells(home, DIRECT));
}

#[test]
fn a_bridge_tells_what_a_port_cannot_send_mediated() {
    isolated_with_interfaces(|home| a_bridge_tells(home, MEDIATED));
}

// SPDX-License-Identifier: BSD-2-Clause
//! Traffic between the network stacks at the two ends of a veth pair, each kind checked. The near stack is behind host
//! rings.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use lab::{Ns, VethOptions};

use crate::bpf::tcx_programs;
use crate::home::{Guard, Home, LIMIT, program, until};
use crate::net::{DIRECT, Net, Tap, frame};
use crate::packet::Rng;
use crate::stop::Stop;

/// A veth pair with the kernel's default offloads.
pub const CABLE: VethOptions<'_> = VethOptions {
    queues: 1,
    mtu: 1500,
    addresses: Some(("10.9.0.1/24", "10.9.0.2/24")),
    tx_checksum_off: false,
    native_xdp_peer: false,
};

/// Addresses of the near and the far end.
pub const V4: [&str; 2] = ["10.9.0.1", "10.9.0.2"];
/// IPv6 addresses of the near and the far end.
pub const V6: [&str; 2] = ["fd09::1", "fd09::2"];

/// Bytes of a TCP stream in each direction.
const STREAM: usize = 4 << 20;
/// Maximum duration of one exchange.
const EXCHANGE_LIMIT: Duration = Duration::from_secs(10);

/// Bytes of a stream that are waited for at a time.
const EACH: u64 = 1 << 17;
/// Bytes of a write (each byte follows from its offset in the stream), and the pause before the next write, since the
/// machine runs other tests.
const PIECE: usize = 1 << 14;
const PAUSE: Duration = Duration::from_micros(500);

/// How an interface is attached.
#[derive(Clone, Copy, Debug)]
pub struct Attachment {
    /// Name in the table.
    pub name: &'static str,
    /// Arguments of the daemon.
    pub args: &'static [&'static str],
    /// Number of queues of the interface.
    pub queues: u32,
}

/// All attachments that are tested.
pub const ATTACHMENTS: [Attachment; 4] = [
    Attachment { name: "native", args: &["--admode", "native"], queues: 1 },
    Attachment { name: "native", args: &["--admode", "native"], queues: 4 },
    Attachment { name: "generic, mark", args: &["--admode", "generic"], queues: 1 },
    Attachment { name: "generic, mark", args: &["--admode", "generic"], queues: 4 },
];

/// A kind of traffic between the two stacks: its name, and the function that checks it.
pub type Traffic = (&'static str, fn(&Net) -> Result<(), String>);

/// All kinds of traffic.
pub const TRAFFIC: [Traffic; 7] = [
    ("ping", ping),
    ("TCP in", tcp_in),
    ("TCP out", tcp_out),
    ("UDP", udp),
    ("IPv6", ipv6),
    ("tagged in", tagged_in),
    ("tagged out", tagged_out),
];

/// Makes two namespaces with IPv4 and IPv6, and a daemon that attaches the near interface as requested.
#[track_caller]
pub fn net(home: &Home, attachment: Attachment, mtu: u32) -> Option<Net> {
    let cable = VethOptions { queues: attachment.queues, mtu, ..CABLE };
    let net = Net::with(home, DIRECT, cable, attachment.args)?;
    // Checksums are computed by the far stack, as on a wire: the near port reads its frames.
    net.far.tool("ethtool", &["-K", "vb", "tx", "off"]).expect("ethtool");
    for (ns, name, address) in [(&net.near, "va", V6[0]), (&net.far, "vb", V6[1])] {
        ns.tool("sysctl", &["-q", "-w", &format!("net.ipv6.conf.{name}.disable_ipv6=0")]).expect("IPv6");
        ns.ip(&["addr", "add", &format!("{address}/64"), "dev", name, "nodad"]).expect("an address");
    }
    Some(net)
}

/// Starts a bridge between `va` and the host stack, with `host_rings` host rings; returns when all its ports are open.
#[track_caller]
pub fn bridge(net: &Net, home: &Home, host_rings: u32) -> Guard {
    let port = format!("netmap:va@conf:host-rings={host_rings}");
    net.start(home, program("bridge"), &["-w", "0", "-i", &port], 2)
}

/// Pings in both directions.
pub fn ping(net: &Net) -> Result<(), String> {
    for (from, to) in [(&net.near, V4[1]), (&net.far, V4[0])] {
        from.tool("ping", &["-n", "-c", "3", "-i", "0.05", "-W", "5", to])?;
    }
    Ok(())
}

/// A TCP stream from the far to the near stack.
pub fn tcp_in(net: &Net) -> Result<(), String> {
    stream(&net.far, &net.near, V4[0])
}

/// A TCP stream from the near to the far stack.
pub fn tcp_out(net: &Net) -> Result<(), String> {
    stream(&net.near, &net.far, V4[1])
}

/// Pseudo-random bytes.
fn bytes(n: usize, seed: u64) -> Vec<u8> {
    let mut rng = Rng(seed | 1);
    (0..n).map(|_| rng.next_u64() as u8).collect()
}

/// Sends a stream and checks that all its bytes arrive and that the reply comes back.
pub fn stream(from: &Ns, to: &Ns, address: &str) -> Result<(), String> {
    let to_text = |e: std::io::Error| e.to_string();
    let address: IpAddr = address.parse().map_err(|e| format!("{e}"))?;
    let listener = to.run(|| TcpListener::bind(SocketAddr::new(address, 0)))?.map_err(to_text)?;
    let at = listener.local_addr().map_err(to_text)?;
    let sent = bytes(STREAM, 7);
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let (mut connection, _) = listener.accept()?;
            connection.set_read_timeout(Some(EXCHANGE_LIMIT))?;
            let mut got = vec![0; STREAM];
            connection.read_exact(&mut got)?;
            connection.write_all(b"all")?;
            Ok::<_, std::io::Error>(got)
        });
        let exchange = || -> std::io::Result<()> {
            let mut connection = TcpStream::connect_timeout(&at, EXCHANGE_LIMIT)?;
            connection.set_read_timeout(Some(EXCHANGE_LIMIT))?;
            connection.set_write_timeout(Some(EXCHANGE_LIMIT))?;
            connection.write_all(&sent)?;
            connection.read_exact(&mut [0; 3])
        };
        let exchanged = from.run(exchange)?.map_err(to_text);
        if exchanged.is_err() {
            // Releases the listener if no connection was made.
            let _ = to.run(|| TcpStream::connect(at));
        }
        let got = receiver.join().map_err(|_| "the receiver panicked")?;
        exchanged?;
        if got.map_err(to_text)? == sent { Ok(()) } else { Err("other bytes arrived".into()) }
    })
}

/// Sends datagrams of many lengths in both directions, one at a time; those above the MTU are fragmented.
pub fn udp(net: &Net) -> Result<(), String> {
    let to_text = |e: std::io::Error| e.to_string();
    let socket = |ns: &Ns, address: &str| {
        let socket = ns.run(|| UdpSocket::bind((address, 0)))?.map_err(to_text)?;
        socket.set_read_timeout(Some(EXCHANGE_LIMIT)).map_err(to_text)?;
        Ok::<_, String>(socket)
    };
    let (near, far) = (socket(&net.near, V4[0])?, socket(&net.far, V4[1])?);
    let (near_at, far_at) = (near.local_addr().map_err(to_text)?, far.local_addr().map_err(to_text)?);
    let mut got = vec![0; 1 << 16];
    for (i, len) in [0, 1, 17, 18, 500, 1471, 1472, 1473, 5000, 20_000].into_iter().enumerate() {
        let sent = bytes(len, i as u64);
        for (from, to, at) in [(&near, &far, far_at), (&far, &near, near_at)] {
            from.send_to(&sent, at).map_err(to_text)?;
            let n = to.recv(&mut got).map_err(|e| format!("a datagram of {len} bytes: {e}"))?;
            if got[..n] != sent {
                return Err(format!("other bytes than the {len} that were sent"));
            }
        }
    }
    Ok(())
}

/// Pings and TCP streams over IPv6.
pub fn ipv6(net: &Net) -> Result<(), String> {
    for (from, to) in [(&net.near, V6[1]), (&net.far, V6[0])] {
        from.tool("ping", &["-6", "-n", "-c", "3", "-i", "0.05", "-W", "5", to])?;
    }
    stream(&net.far, &net.near, V6[0])?;
    stream(&net.near, &net.far, V6[1])
}

/// Stacks of one or more VLAN tags, outermost first: EtherType, priority and VLAN id of each.
const TAGS: [&[u32]; 7] = [
    &[0x8100_0001],
    &[0x8100_0007],
    &[0x8100_2fff],
    &[0x8100_8001],
    &[0x88a8_0005, 0x8100_0007],
    &[0x8100_0005, 0x8100_0007],
    &[0x88a8_0fff, 0x88a8_0001, 0x8100_0002, 0x8100_0003],
];

/// Frames with VLAN tags from the far side reach the near stack with their tags.
pub fn tagged_in(net: &Net) -> Result<(), String> {
    tagged((&net.far, "vb"), (&net.near, "va"))
}

/// Frames with VLAN tags from the near side reach the far stack with their tags.
pub fn tagged_out(net: &Net) -> Result<(), String> {
    tagged((&net.near, "va"), (&net.far, "vb"))
}

fn tagged(from: (&Ns, &str), to: (&Ns, &str)) -> Result<(), String> {
    let sender = Tap::on(from.0, from.1);
    let mut watcher = to.0.command(helper("tag_receiver"));
    let mut watcher = Guard::spawn(watcher.arg(to.1).stdout(Stdio::piped()));
    let lines = BufReader::new(watcher.0.stdout.take().ok_or("no output")?).lines();
    let (line_sender, line_receiver) = mpsc::channel();
    std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| line_sender.send(line)));
    let next = || line_receiver.recv_timeout(EXCHANGE_LIMIT).map_err(|_| "the frame did not arrive".to_string());
    while next()? != "ready" {}
    for (i, tags) in TAGS.into_iter().enumerate() {
        let mut frame = frame(100 + i, i as u64);
        frame.splice(12..12, tags.iter().flat_map(|tag| tag.to_be_bytes()));
        sender.send(&frame);
        let wanted: String = frame.iter().map(|byte| format!("{byte:02x}")).collect();
        while next()? != wanted {}
    }
    Ok(())
}

/// The path of a test program of this package.
fn helper(name: &str) -> PathBuf {
    let exe = std::env::current_exe().unwrap_or_default();
    // Test executables are in target/PROFILE/deps, programs in target/PROFILE.
    let beside = exe.with_file_name(name);
    if beside.exists() { beside } else { exe.ancestors().nth(2).unwrap_or(&exe).join(name) }
}

/// Waits until the stacks reach each other in both directions.
#[track_caller]
pub fn until_it_works(what: &str, net: &Net) {
    let reaches = |from: &Ns, to: &str| from.tool("ping", &["-n", "-c", "1", "-W", "1", to]).is_ok();
    until(what, || reaches(&net.near, V4[1]) && reaches(&net.far, V4[0]));
}

/// Waits until `near` is as it was before an interface was opened: no BPF program, no other interface, no other route.
#[track_caller]
pub fn until_clean(net: &Net) {
    let end = Instant::now() + LIMIT;
    loop {
        let left = left_over(net);
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < end, "left behind after {LIMIT:?}: {left}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Lists interfaces, BPF programs and routes in `near` other than those of `va`.
#[track_caller]
pub fn left_over(net: &Net) -> String {
    let links = net.near.ip(&["-d", "-o", "link"]).expect("ip");
    let mut left: Vec<String> = links
        .lines()
        .filter(|line| !(line.contains(" lo:") || line.contains(" va@")) || line.contains("prog/xdp"))
        .map(str::to_owned)
        .collect();
    let programs = net.near.run(|| tcx_programs("va")).expect("a namespace").expect("CAP_NET_ADMIN");
    left.extend(programs.into_iter().map(|id| format!("tcx program {id} on va")));
    let routes = net.near.ip(&["route"]).expect("ip");
    left.extend(routes.lines().filter(|line| !line.contains("dev va")).map(str::to_owned));
    left.join("; ")
}

/// The byte at a place of a stream.
pub fn byte_at(place: u64) -> u8 {
    (place ^ place >> 8 ^ place >> 16) as u8
}

/// Runs `work` under one TCP connection to the first stack, at `address`, from the second. `work` is given a function
/// that waits until more has arrived, or fails with what it is told. Returns the bytes that arrived, each of which is
/// checked.
#[track_caller]
pub fn during_a_stream(stacks: [&Ns; 2], address: &str, work: impl FnOnce(&dyn Fn(&str))) -> u64 {
    let (stop, arrived) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let stream = scope.spawn(|| endless(stacks, address, &stop, &arrived));
        let end = Stop(&stop);
        work(&|what: &str| {
            let before = arrived.load(Relaxed);
            until(what, || stream.is_finished() || arrived.load(Relaxed) >= before + EACH);
        });
        drop(end);
        stream.join().expect("no panic").expect("one connection all the time");
    });
    arrived.load(Relaxed)
}

/// A TCP stream to the first stack, at `address`, from the second until `stop` is set; `arrived` counts its bytes, each
/// of which is checked.
fn endless([to, from]: [&Ns; 2], address: &str, stop: &AtomicBool, arrived: &AtomicU64) -> std::io::Result<()> {
    let listener = to.run(|| TcpListener::bind((address, 0))).map_err(std::io::Error::other)??;
    let at = listener.local_addr()?;
    let mut source = from.run(|| TcpStream::connect(at)).map_err(std::io::Error::other)??;
    let (mut sink, _) = listener.accept()?;
    source.set_write_timeout(Some(LIMIT))?;
    sink.set_read_timeout(Some(LIMIT))?;
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut place = 0;
            while !stop.load(Relaxed) {
                let piece: Vec<u8> = (place..place + PIECE as u64).map(byte_at).collect();
                source.write_all(&piece)?;
                place += PIECE as u64;
                std::thread::sleep(PAUSE);
            }
            source.shutdown(Shutdown::Write)
        });
        let (mut piece, mut place) = (vec![0; PIECE], 0);
        loop {
            let n = sink.read(&mut piece)?;
            if n == 0 {
                return sender.join().expect("no panic");
            }
            let wrong = piece[..n].iter().zip(place..).find(|(byte, place)| **byte != byte_at(*place));
            assert_eq!(wrong, None, "a byte of the stream, and its place");
            place += n as u64;
            arrived.store(place, Relaxed);
        }
    })
}

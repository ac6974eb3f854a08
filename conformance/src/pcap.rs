// SPDX-License-Identifier: BSD-2-Clause
//! Programs that use libpcap, on netmap ports: the library that `unetmap run` loads before the system's libpcap, and
//! frames that such programs decode.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use unetmap::Port;

use crate::home::{Home, LIMIT, program, until, wait_within};
use crate::net::{BUFFER, CABLE, DIRECT, MEDIATED, Net, Tap, collect, set_policy, transmit};

/// Builds the libpcap overlay beside the `unetmap` that tests run, unless it is newer than its source.
#[track_caller]
pub fn overlay() -> PathBuf {
    overlay_in(program("unetmap").parent().expect("a file in a folder"))
}

/// Builds the libpcap overlay beside the programs in `folder`.
#[track_caller]
pub fn overlay_in(folder: &Path) -> PathBuf {
    let folder = folder.join("pcap");
    let status = Command::new("make")
        .args(["--silent", "-C"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../pcap"))
        .arg(format!("OUT={}", folder.display()))
        .status()
        .expect("make (apt-get install make)");
    assert!(status.success(), "the overlay does not compile");
    folder
}

/// A valid UDP packet over IPv4 from 10.9.0.2 to 10.9.0.1 with `payload`.
pub fn udp(from: u16, to: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x02, 0, 0, 0, 0, 0x0a, 0x02, 0, 0, 0, 0, 0x0b, 0x08, 0x00];
    let udp_len = 8 + payload.len() as u16;
    let mut ip = vec![0x45, 0];
    ip.extend((20 + udp_len).to_be_bytes());
    ip.extend([0, 1, 0, 0, 64, 17, 0, 0, 10, 9, 0, 2, 10, 9, 0, 1]);
    let sum = ip.chunks(2).map(|two| u32::from(two[0]) << 8 | u32::from(two[1])).sum::<u32>();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    bytes.extend(ip);
    bytes.extend([from.to_be_bytes(), to.to_be_bytes(), udp_len.to_be_bytes(), [0, 0]].concat());
    bytes.extend(payload);
    bytes
}

/// A packet of a capture file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// Nanoseconds since 1970.
    pub time: u64,
    /// Length of the packet in bytes.
    pub len: u32,
    /// The captured bytes.
    pub bytes: Vec<u8>,
}

/// The packets of a pcap file of this machine's byte order, with micro- or nanoseconds.
#[track_caller]
pub fn read_pcap(path: &Path) -> Vec<Captured> {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let unit = match word(0) {
        0xa1b2_c3d4 => 1000,
        0xa1b2_3c4d => 1,
        magic => panic!("{}: no pcap file of this machine: {magic:#x}", path.display()),
    };
    let (mut at, mut packets) = (24, Vec::new());
    while at < bytes.len() {
        let (kept, len) = (word(at + 8) as usize, word(at + 12));
        let time = u64::from(word(at)) * 1_000_000_000 + u64::from(word(at + 4)) * unit;
        packets.push(Captured { time, len, bytes: bytes[at + 16..at + 16 + kept].to_vec() });
        at += 16 + kept;
    }
    packets
}

/// The bytes of a pcap file with these frames, a millisecond from one to the next.
pub fn pcap_file(frames: &[Vec<u8>]) -> Vec<u8> {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>();
    let mut bytes = words(&[0xa1b2_c3d4, 0x0004_0002, 0, 0, 262_144, 1]);
    for (i, frame) in (0..).zip(frames) {
        let len = frame.len() as u32;
        bytes.extend(words(&[1_700_000_000 + i / 1000, i % 1000 * 1000, len, len]));
        bytes.extend(frame);
    }
    bytes
}

/// The other end of the port on which a program captures or sends.
pub enum Far {
    /// The other end of a veth pair.
    Tap(Tap),
    /// The other end of a pipe, or another port of the switch.
    Port(Box<Port>),
}

impl Far {
    /// Sends frames to the program.
    #[track_caller]
    pub fn send(&self, frames: &[Vec<u8>]) {
        match self {
            Far::Tap(tap) => tap.send_all(frames),
            Far::Port(port) => transmit(port, 0, frames, BUFFER),
        }
    }

    /// Receives frames that the program sent; on a veth pair without those of a network stack.
    #[track_caller]
    pub fn collect(&self, n: usize) -> Vec<Vec<u8>> {
        match self {
            Far::Tap(tap) => tap.collect(n),
            Far::Port(port) => collect(port, n),
        }
    }
}

/// A port for a program under test, and its other end.
pub struct Place<'a> {
    /// The kind of port: the head of a column.
    pub kind: &'static str,
    /// The port's name on the program's command line.
    pub name: String,
    /// The other end.
    pub far: Far,
    home: &'a Home,
    net: Option<&'a Net>,
}

impl Place<'_> {
    /// Starts a program by `unetmap run`.
    #[track_caller]
    pub fn start(&self, program_: &str, args: &[&str]) -> Tool {
        let mut command = match self.net {
            Some(net) => net.command(program("unetmap")),
            None => Command::new(program("unetmap")),
        };
        command.args(["run", "--", program_]).args(args).stdin(Stdio::null());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("unetmap starts");
        Tool { what: format!("on a {} port: {program_} {}", self.kind, args.join(" ")), child: Some(child) }
    }

    /// Waits until the port is open.
    #[track_caller]
    pub fn opened(&self) {
        let name = self.name.trim_start_matches("netmap:");
        until("the port is open", || {
            self.home.try_snapshot().is_some_and(|all| {
                all.sessions.iter().any(|session| session.port == name || session.port.starts_with(&format!("{name}#")))
            })
        });
    }

    /// The test's folder.
    pub fn folder(&self) -> &Path {
        self.home.folder()
    }
}

/// A program that runs with the overlay.
pub struct Tool {
    what: String,
    child: Option<Child>,
}

impl Tool {
    /// Returns what it printed to standard output and error; panics unless it exits with 0.
    #[track_caller]
    pub fn output(mut self) -> (String, String) {
        let mut child = self.child.take().expect("it has not been taken");
        let status = wait_within(&mut child, LIMIT);
        if status.is_none() {
            let _ = child.kill();
        }
        let output = child.wait_with_output().expect("its output");
        let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        assert!(status.is_some_and(|status| status.success()), "{}: {status:?}:\n{out}{err}", self.what);
        (out, err)
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it has not been taken").id()
    }
}

impl Drop for Tool {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have exited by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A program whose output lines are read while it runs.
pub struct InteractiveProgram {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
    printed: String,
}

impl InteractiveProgram {
    /// Starts it.
    #[track_caller]
    pub fn start(command: &mut Command) -> InteractiveProgram {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("a pipe"));
        InteractiveProgram { child, lines, printed: String::new() }
    }

    /// Reads until a line that is `line`.
    #[track_caller]
    pub fn until(&mut self, line: &str) {
        while self.line() != line {}
    }

    /// Reads a line.
    #[track_caller]
    pub fn line(&mut self) -> String {
        let before = self.printed.len();
        let n = self.lines.read_line(&mut self.printed).expect("text");
        assert!(n > 0, "it ended too early:\n{}", self.printed);
        self.printed[before..].trim_end().to_owned()
    }

    /// Writes a line to it.
    #[track_caller]
    pub fn write_line(&mut self) {
        let input = self.child.stdin.as_mut().expect("it has not been closed");
        input.write_all(b"\n").expect("it listens");
    }

    /// Kills it, and waits for its exit.
    pub fn kill(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Returns its whole output; panics unless it exits with 0.
    #[track_caller]
    pub fn end(mut self) -> String {
        self.lines.read_to_string(&mut self.printed).expect("text");
        let status = self.child.wait().expect("our child");
        assert!(status.success(), "{status}:\n{}", self.printed);
        self.printed
    }
}

/// A row of the matrix of programs and kinds of ports.
pub struct Row {
    /// Its name on the command line.
    pub program: &'static str,
    /// The Debian package that contains it.
    pub package: &'static str,
    /// Whether it must send to work.
    pub sends: bool,
    /// Runs it on one port; panics if it fails.
    pub cell: fn(&Place<'_>),
}

/// The columns of the matrix. `switch` is a port of a VALE switch; `monitor` is a monitor of the packets that one end
/// of a pipe sends.
pub const KINDS: [&str; 5] = ["pipe", "switch", "interface", "mediated", "monitor"];

/// Runs a row in the order of [`KINDS`], and calls `report` for each cell: with `None` if the program passed, or with
/// the reason why the cell was skipped.
#[track_caller]
pub fn cells(home: &Home, row: &Row, report: impl Fn(&'static str, Option<&str>)) {
    let Row { program, package, .. } = row;
    if !Command::new("sh").args(["-c", &format!("command -v {program}")]).output().is_ok_and(|o| o.status.success()) {
        let why = format!("it is not installed (apt-get install {package})");
        return KINDS.iter().for_each(|kind| report(kind, Some(&why)));
    }
    overlay();
    let net = Net::new(home, DIRECT, CABLE);
    let open = |spec: &str| match &net {
        Some(net) => net.open(spec),
        None => Port::open(spec).unwrap_or_else(|e| panic!("{spec}: {e}")),
    };
    let run = |kind, name: &str, far: Far| {
        (row.cell)(&Place { kind, name: name.into(), far, home, net: net.as_ref() });
        report(kind, None);
    };
    run("pipe", "netmap:p}1", Far::Port(Box::new(open("netmap:p{1"))));
    run("switch", "vale7:program", Far::Port(Box::new(open("vale7:far"))));
    match &net {
        None => {
            ["interface", "mediated"].iter().for_each(|kind| report(kind, Some("no network namespaces or AF_XDP here")))
        }
        Some(net) => {
            run("interface", "netmap:va", Far::Tap(net.tap()));
            net.assert_given_back();
            set_policy(home, MEDIATED);
            run("mediated", "netmap:va", Far::Tap(net.tap()));
        }
    }
    if row.sends {
        report("monitor", Some("a monitor does not send"));
    } else {
        run("monitor", "netmap:m{1/t", Far::Port(Box::new(open("netmap:m{1"))));
    }
}

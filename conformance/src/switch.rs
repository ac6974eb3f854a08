// SPDX-License-Identifier: BSD-2-Clause
//! Switches with host stacks, and traffic between them.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use lab::Ns;
use serde_json::Value;
use unetmap::{Interest, Port};

use crate::home::{program, summary, until};
use crate::net::take;

/// Runs `vale-ctl` in a namespace; returns its status, output and error output.
#[track_caller]
pub fn ctl(ns: &Ns, args: &str) -> (i32, String, String) {
    let out = ns.command(program("vale-ctl")).args(args.split(' ').filter(|arg| !arg.is_empty())).output();
    let out = out.expect("vale-ctl runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (out.status.code().unwrap_or(-1), text(&out.stdout), text(&out.stderr))
}

/// Runs `vale-ctl`, which must succeed; returns its output.
#[track_caller]
pub fn done(ns: &Ns, args: &str) -> String {
    let (status, out, err) = ctl(ns, args);
    assert_eq!((status, err.as_str()), (0, ""), "vale-ctl {args}");
    out
}

/// Runs `unetmap vale`; returns its status, output and error output.
pub fn vale(args: &[&str]) -> (i32, String, String) {
    let out = Command::new(program("unetmap")).arg("vale").args(args).output().expect("unetmap runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (out.status.code().unwrap_or(-1), text(&out.stdout), text(&out.stderr))
}

/// Runs `unetmap vale`, which must succeed; returns its output.
#[track_caller]
pub fn set(args: &str) -> String {
    let (status, out, err) = vale(&args.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>());
    assert_eq!((status, err.as_str()), (0, ""), "unetmap vale {args}");
    out
}

/// Runs `unetmap vale`, which must fail; returns its error output.
#[track_caller]
pub fn refused(args: &str) -> String {
    let (status, out, err) = vale(&args.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>());
    assert!(status != 0 && out.is_empty(), "unetmap vale {args}: {out}");
    err
}

/// Runs `unetmap vale ... --json`, which must succeed; returns the parsed output.
#[track_caller]
pub fn shown(args: &str) -> Value {
    let text = set(&format!("{args} --json"));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

/// Makes a persistent port on `vale0`, with addresses, and sets it up.
#[track_caller]
pub fn host_on_switch(ns: &Ns, name: &str, addresses: &[&str]) {
    assert_eq!(done(ns, &format!("-n {name}")), "");
    done(ns, &format!("-a vale0:{name}"));
    bring_up(ns, name, addresses);
    ns.wait_up(name).expect("an interface that comes up");
}

/// Gives an interface addresses, and sets it up.
#[track_caller]
pub fn bring_up(ns: &Ns, name: &str, addresses: &[&str]) {
    for address in addresses {
        let mut args = vec!["addr", "add", address, "dev", name];
        if address.contains(':') {
            ns.tool("sysctl", &["-q", "-w", &format!("net.ipv6.conf.{name}.disable_ipv6=0")]).expect("IPv6");
            // Without duplicate address detection, which would delay it.
            args.push("nodad");
        }
        ns.ip(&args).expect("an interface");
    }
    ns.ip(&["link", "set", name, "up"]).expect("an interface");
}

/// Number of IPv4 frames that a port receives until none arrives for 200 ms.
#[track_caller]
pub fn ipv4_of(port: &Port) -> usize {
    let mut found = 0;
    while port.poll(Interest::RX, Some(Duration::from_millis(200))).expect("a switch").rx() {
        found += take(port, 0).iter().filter(|frame| frame.get(12..14) == Some(&[0x08, 0x00])).count();
    }
    found
}

/// A Python program that has printed `ready`.
pub struct PythonServer {
    child: Child,
    out: std::io::Lines<BufReader<ChildStdout>>,
}

impl PythonServer {
    /// Starts it in a namespace.
    #[track_caller]
    pub fn start(ns: &Ns, code: &str) -> PythonServer {
        let mut command = ns.command("timeout");
        let mut child = command.args(["90", "python3", "-c", code]).stdout(Stdio::piped()).spawn().expect("python3");
        let mut out = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        assert_eq!(out.next().expect("a line").expect("text"), "ready");
        PythonServer { child, out }
    }

    /// Its last line.
    #[track_caller]
    pub fn last_line(mut self) -> String {
        let line = self.out.next().expect("a line").expect("text");
        self.child.wait().expect("our child");
        line
    }
}

const FAMILY: &str = "import socket,hashlib,random\nF=lambda a: socket.AF_INET6 if ':' in a else socket.AF_INET\n";

/// Sends `bytes` by TCP from one stack to the other, and compares what arrives.
#[track_caller]
pub fn tcp(from: &Ns, to: &Ns, address: &str, bytes: usize) {
    let serve = format!(
        "{FAMILY}s=socket.create_server(('{address}',5001),family=F('{address}')); print('ready',flush=True)\n\
         c,_=s.accept(); h=hashlib.sha256()\n\
         while True:\n b=c.recv(1<<16)\n if not b: break\n h.update(b)\n\
         print(h.hexdigest(),flush=True)"
    );
    let send = format!(
        "import socket,hashlib,random\nd=random.Random(7).randbytes({bytes}); \
         c=socket.create_connection(('{address}',5001),20); c.sendall(d); c.close(); print(hashlib.sha256(d).hexdigest())"
    );
    let server = PythonServer::start(to, &serve);
    let sent = from.tool("timeout", &["60", "python3", "-c", &send]).expect("it is sent");
    assert_eq!(server.last_line(), sent.trim(), "by TCP to {address}");
}

/// Starts a server that receives `count` UDP datagrams on port 5002 of `address` and prints their sizes and the hash of
/// their contents.
#[track_caller]
pub fn udp_server(ns: &Ns, address: &str, count: usize) -> PythonServer {
    PythonServer::start(
        ns,
        &format!(
            "{FAMILY}s=socket.socket(F('{address}'),socket.SOCK_DGRAM); s.bind(('{address}',5002)); s.settimeout(30)\n\
             s.setsockopt(socket.SOL_SOCKET,socket.SO_RCVBUF,1<<20); print('ready',flush=True); h=hashlib.sha256(); n=[]\n\
             for _ in range({count}):\n b=s.recv(1<<16); n.append(len(b)); h.update(b)\n\
             print(sorted(set(n)),h.hexdigest(),flush=True)"
        ),
    )
}

/// Sends `bytes` bytes in one call as datagrams of `each` bytes, segmented by the interface (GSO) if `each` is less;
/// returns their sizes and hash as [`udp_server`] prints them.
#[track_caller]
pub fn udp(from: &Ns, address: &str, bytes: usize, each: usize) -> String {
    // UDP_SEGMENT of SOL_UDP.
    let segment = if each < bytes { format!("s.setsockopt(17,103,{each})") } else { String::new() };
    let send = format!(
        "{FAMILY}d=random.Random(9).randbytes({bytes}); s=socket.socket(F('{address}'),socket.SOCK_DGRAM)\n{segment}\n\
         s.sendto(d,('{address}',5002)); print([{each}],hashlib.sha256(d).hexdigest())"
    );
    from.tool("timeout", &["60", "python3", "-c", &send]).expect("it is sent").trim().to_string()
}

/// Measures TCP with iperf3, if it is installed.
#[track_caller]
pub fn iperf3(from: &Ns, to: &Ns, address: &str) {
    // Its start in a namespace succeeds without it: only the program that enters the namespace fails.
    if Command::new("iperf3").arg("--version").stdout(Stdio::null()).status().is_err() {
        return summary("iperf3 skipped: it is not installed");
    }
    let mut command = to.command("iperf3");
    command.args(["-s", "-1", "-B", address]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut server = command.spawn().expect("iperf3 starts");
    let mut printed = String::new();
    until("it listens, and measures", || {
        let client = from.tool("timeout", &["60", "iperf3", "-c", address, "-t", "2", "-f", "m"]);
        client.map(|text| printed = text).is_ok()
    });
    server.wait().expect("our child");
    let line =
        printed.lines().find(|line| line.contains("receiver")).unwrap_or_else(|| panic!("nothing received: {printed}"));
    summary(&format!("iperf3: {line}"));
}

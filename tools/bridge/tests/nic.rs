// SPDX-License-Identifier: BSD-2-Clause
//! Tests between interfaces: two veth pairs to a namespace in the middle. Need root and a kernel with AF_XDP.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use lab::{Lab, Ns, VethOptions};
use rustix::process::{Pid, Signal, kill_process};
use tool_common::testing::{TestDaemon, TestProcess};

const BRIDGE: &str = env!("CARGO_BIN_EXE_bridge");

fn await_note(running: &mut TestProcess, beginning: &str) {
    let lines = BufReader::new(running.0.stderr.as_mut().expect("a pipe")).lines();
    let seen: Vec<String> = lines.map_while(Result::ok).take_while(|line| !line.starts_with(beginning)).collect();
    assert!(running.0.try_wait().expect("our child").is_none(), "{seen:?}");
}

/// Connects three namespaces: `left0 - left1 [middle] right1 - right0`, with addresses at both ends.
fn connect_namespaces(lab: &Lab) -> Result<[Ns; 3], String> {
    let [left, middle, right] = [lab.namespace("left")?, lab.namespace("middle")?, lab.namespace("right")?];
    let options = VethOptions { tx_checksum_off: true, ..VethOptions::default() };
    lab.veth(&left, "left0", &middle, "left1", options)?;
    lab.veth(&right, "right0", &middle, "right1", options)?;
    left.ip(&["address", "add", "10.9.0.1/24", "dev", "left0"])?;
    right.ip(&["address", "add", "10.9.0.2/24", "dev", "right0"])?;
    Ok([left, middle, right])
}

/// Sends a text over TCP between the outer namespaces: ARP, handshake, data and close cross the bridge in both
/// directions.
fn transfer_text(left: &Ns, right: &Ns) -> Result<String, String> {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(20);
    let listener = right.run(|| TcpListener::bind("10.9.0.2:7000"))?.map_err(|e| e.to_string())?;
    std::thread::scope(|scope| {
        let server = scope.spawn(move || -> std::io::Result<String> {
            let (mut stream, _) = listener.accept()?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            Ok(text)
        });
        let address = "10.9.0.2:7000".parse().expect("an address");
        let sent = left.run(|| -> std::io::Result<()> {
            let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
            stream.write_all("through the bridge ".repeat(5000).as_bytes())
        })?;
        sent.map_err(|e| format!("sending: {e}"))?;
        server.join().expect("no panic").map_err(|e| format!("receiving: {e}"))
    })
}

#[test]
fn tcp_connections_cross_a_bridge_between_interfaces() {
    let Some(daemon) = TestDaemon::start_beside(BRIDGE) else { return };
    let lab = match Lab::new() {
        Ok(lab) => lab,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    let [left, middle, right] = connect_namespaces(&lab).expect("veth pairs");
    for (options, mode) in [("", "zero copy"), ("-c", "copy")] {
        let mut command: Command = middle.command(BRIDGE);
        daemon.set_environment(
            command.args(format!("-w 0 {options} left1 right1").split_whitespace()).stdin(Stdio::null()),
        );
        let mut bridge = TestProcess::start(&mut command);
        await_note(&mut bridge, "Ready to go, netmap:left1 <-> netmap:right1");
        let text = transfer_text(&left, &right).unwrap_or_else(|why| panic!("{mode}: {why}"));
        assert_eq!(text.len(), 5000 * "through the bridge ".len(), "{mode}");
        let pid = Pid::from_raw(bridge.0.id() as i32).expect("a pid");
        kill_process(pid, Signal::INT).expect("it runs");
        let (code, out, err) = bridge.wait();
        assert!(code == 0 && out.starts_with("Forwarded "), "{out}{err}");
    }
}

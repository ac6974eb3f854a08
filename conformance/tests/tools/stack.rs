// SPDX-License-Identifier: BSD-2-Clause
//! The example of the crate unetmap-adapters: TCP and UDP by smoltcp, over a pipe, a switch and an interface.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use conformance::c::Running;
use conformance::home::summary;
use conformance::net::{CABLE, DIRECT, Net};
use conformance::{Home, isolated, isolated_with_interfaces, program};

/// Where the stacks are; `va` and `vb` of the tests' cables have other addresses of this network.
const SERVER: &str = "10.9.0.3";
const CLIENT: &str = "10.9.0.4";

/// A page of a megabyte in which each byte depends on its place.
fn page(home: &Home) -> (PathBuf, Vec<u8>) {
    let bytes: Vec<u8> = (0..1_000_003_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let path = home.folder().join("page");
    std::fs::write(&path, &bytes).expect("our own folder");
    (path, bytes)
}

/// Starts a server by `command` on a port; returns when it serves.
#[track_caller]
fn serve(mut command: Command, port: &str, page: &PathBuf) -> Running {
    command.args(["serve", port, &format!("{SERVER}/24")]).arg(page);
    let mut server = Running::spawn("the server", &mut command);
    assert_eq!(server.read_line(), "serving");
    server
}

/// Runs a client on a port; returns its output.
#[track_caller]
fn client(what: &str, port: &str, more: &str) -> Vec<u8> {
    let mut command = Command::new(program("examples/stack"));
    command.args([what, port, &format!("{CLIENT}/24"), SERVER, more]).stderr(Stdio::piped());
    let output = command.output().expect("the example");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what} {port}: {said}");
    said.lines().for_each(|line| summary(&format!("{port}: {line}")));
    output.stdout
}

#[test]
fn tcp_and_udp_by_smoltcp_over_a_pipe_and_a_switch() {
    isolated(|home| {
        let (path, bytes) = page(home);
        for (one, other) in [("netmap:s{1", "netmap:s}1"), ("vale8:s", "vale8:c")] {
            let server = serve(Command::new(program("examples/stack")), one, &path);
            assert!(client("get", other, "3") == bytes, "{other}: another page came");
            let echoed = String::from_utf8_lossy(&client("echo", other, "200")).into_owned();
            assert!(echoed.starts_with("200 datagrams came back"), "{echoed}");
            summary(&format!("{other}: {}", echoed.trim_end()));
            server.kill();
        }
    });
}

#[test]
fn thousands_of_connections_of_smoltcp_are_open_at_once() {
    isolated(|home| {
        let path = home.folder().join("page");
        std::fs::write(&path, [7; 3000]).expect("our own folder");
        let server = serve(Command::new(program("examples/stack")), "netmap:s{1", &path);
        assert!(client("many", "netmap:s}1", "2000") == [7; 3000], "another page came");
        server.kill();
    });
}

#[test]
fn the_kernels_stack_fetches_a_page_of_smoltcps() {
    isolated_with_interfaces(|home| {
        if Command::new("curl").arg("--version").output().is_err() {
            return summary("skipped: no curl (apt-get install curl)");
        }
        let Some(net) = Net::new(home, DIRECT, CABLE) else { return };
        let (path, bytes) = page(home);
        let server = serve(net.command(program("examples/stack")), "netmap:va", &path);
        for _ in 0..3 {
            let mut curl = net.far.command("curl");
            let fetched = curl.args(["--silent", "--show-error", "--max-time", "60", &format!("http://{SERVER}/")]);
            let fetched = fetched.output().expect("curl");
            assert!(fetched.stdout == bytes, "another page: {}", String::from_utf8_lossy(&fetched.stderr));
        }
        server.kill();
    });
}

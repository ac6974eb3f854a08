//! Programs of libpcap's, as Debian has them, on netmap ports by `unetmap run`.

use std::process::{Child, Command, Stdio};

use conformance::home::wait_within;
use conformance::net::transmit;
use conformance::pcap::{overlay, read_pcap, udp};
use conformance::{Home, LIMIT, isolated, program, until};
use unetmap::Port;

/// A program that `unetmap run` runs.
struct Running {
    what: String,
    child: Child,
}

impl Running {
    #[track_caller]
    fn start(program_: &str, args: &[&str]) -> Running {
        overlay();
        let mut command = Command::new(program("unetmap"));
        command.args(["run", "--", program_]).args(args).stdin(Stdio::null());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("unetmap starts");
        Running { what: format!("{program_} {}", args.join(" ")), child }
    }

    /// What it printed to standard output and error; it must end well.
    #[track_caller]
    fn output(mut self) -> (String, String) {
        let status = wait_within(&mut self.child, LIMIT);
        if status.is_none() {
            let _ = self.child.kill();
        }
        let output = self.child.wait_with_output().expect("its output");
        let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        assert!(status.is_some_and(|status| status.success()), "{}: {status:?}: {out}{err}", self.what);
        (out, err)
    }
}

fn opened(home: &Home, port: &str) {
    until("the port is open", || {
        home.try_snapshot().is_some_and(|all| all.sessions.iter().any(|session| session.port == port))
    });
}

#[test]
fn tcpdump_on_a_pipe() {
    isolated(|home| {
        let file = home.folder().join("t.pcap");
        let args = ["-n", "-i", "netmap:t}1", "-c", "3", "-w", &file.display().to_string(), "udp port 7777"];
        let tcpdump = Running::start("tcpdump", &args);
        opened(home, "t}1");
        let port = Port::open("netmap:t{1").unwrap();
        let frames: Vec<_> = (0..6).map(|i| udp(1000 + i, 7777 + i % 2, &[i as u8; 100])).collect();
        transmit(&port, 0, &frames, 2048);
        let (_, err) = tcpdump.output();
        assert!(err.contains("3 packets captured"), "{err}");
        assert!(err.contains("0 packets dropped by kernel"), "{err}");
        let got: Vec<_> = read_pcap(&file).into_iter().map(|packet| packet.bytes).collect();
        assert_eq!(got, [0, 2, 4].map(|i: usize| frames[i].clone()));
    });
}

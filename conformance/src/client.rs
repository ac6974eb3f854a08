// SPDX-License-Identifier: BSD-2-Clause
//! The test program `traffic_client`: senders, receivers and monitors that can be killed, and the records they write.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::home::{Guard, Home, program, until};

/// Starts a client; its output is discarded.
pub fn start_client(args: &[&str]) -> Guard {
    Guard::spawn(Command::new(program("traffic_client")).args(args).stdout(Stdio::null()).stderr(Stdio::null()))
}

/// Starts a client that prints a line when its port is open, and waits for that line.
#[track_caller]
pub fn start_ready_client(args: &[&str]) -> Guard {
    let mut command = Command::new(program("traffic_client"));
    // Its error messages go to the test's output.
    let mut guard = Guard::spawn(command.args(args).stdout(Stdio::piped()));
    let mut out = BufReader::new(guard.0.stdout.take().expect("piped"));
    let mut line = String::new();
    assert!(out.read_line(&mut line).is_ok_and(|bytes| bytes > 0), "{args:?} opened nothing");
    // Kept open: the client may print more.
    guard.0.stdout = Some(out.into_inner());
    guard
}

/// The three numbers of a client's record; zeros while there is none.
pub fn record(path: &Path) -> [u64; 3] {
    let bytes = fs::read(path).unwrap_or_default();
    let word = |i: usize| bytes.get(8 * i..8 * i + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_ne_bytes);
    [word(0), word(1), word(2)]
}

/// Continuous traffic through the pipe `p`, id 1, between two processes.
pub struct Flow {
    sender: Guard,
    receiver: Guard,
    sent: PathBuf,
    got: PathBuf,
}

impl Flow {
    /// Starts sender and receiver, and waits until packets flow.
    #[track_caller]
    pub fn start(home: &Home) -> Flow {
        let (sent, folder) = (home.folder().join("sent"), home.folder().join("got"));
        fs::create_dir(&folder).expect("a folder");
        let receiver = start_client(&["recv", "netmap:p}1", &folder.display().to_string()]);
        let sender = start_client(&["send", "netmap:p{1", "1", &sent.display().to_string()]);
        let flow = Flow { sender, receiver, sent, got: folder.join("1") };
        until("packets flow", || flow.sent() > 1000 && record(&flow.got)[0] > 1000);
        flow
    }

    /// Number of packets sent so far.
    pub fn sent(&self) -> u64 {
        record(&self.sent)[1]
    }

    /// Stops the sender, waits until every packet has arrived, each once and unchanged, and stops the receiver; returns
    /// the number of packets. No other port may be open.
    #[track_caller]
    pub fn finish(mut self, home: &Home) -> u64 {
        self.sender.signal(Signal::TERM);
        assert!(self.sender.wait().success());
        let sent = self.sent();
        until("all have come", || record(&self.got)[0] == sent);
        // The receiver's ring is idle now, so all its buffers can be counted.
        self.receiver.signal(Signal::TERM);
        assert!(self.receiver.wait().success());
        assert_eq!(record(&self.got), [sent, 0, 0], "packets were lost or duplicated");
        until("nothing is left", || home.snapshot().ports.is_empty() && home.snapshot().regions.is_empty());
        sent
    }
}

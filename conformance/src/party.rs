//! The programs `party` of these tests: senders, receivers and onlookers that can be killed, and what they write down.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::home::{Guard, Home, program, until};

/// Starts one.
pub fn party(args: &[&str]) -> Guard {
    Guard::spawn(Command::new(program("party")).args(args).stdout(Stdio::null()).stderr(Stdio::null()))
}

/// The same for one that says when it has its port open.
#[track_caller]
pub fn ready_party(args: &[&str]) -> Guard {
    let mut command = Command::new(program("party"));
    // What it complains of stands in the test's output.
    let mut guard = Guard::spawn(command.args(args).stdout(Stdio::piped()));
    let out = guard.0.stdout.take().expect("piped");
    assert!(BufReader::new(out).lines().next().is_some(), "{args:?} opened nothing");
    guard
}

/// The three numbers that a party keeps in its file; zeros as long as it has none.
pub fn record(path: &Path) -> [u64; 3] {
    let bytes = fs::read(path).unwrap_or_default();
    let word = |i: usize| bytes.get(8 * i..8 * i + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_ne_bytes);
    [word(0), word(1), word(2)]
}

/// Packets that flow through the pipe `p`, id 1, between two processes.
pub struct Flow {
    sender: Guard,
    receiver: Guard,
    sent: PathBuf,
    got: PathBuf,
}

impl Flow {
    /// Starts both, and waits until packets flow.
    #[track_caller]
    pub fn start(home: &Home) -> Flow {
        let (sent, folder) = (home.folder().join("sent"), home.folder().join("got"));
        fs::create_dir(&folder).expect("a folder");
        let receiver = party(&["recv", "netmap:p}1", &folder.display().to_string()]);
        let sender = party(&["send", "netmap:p{1", "1", &sent.display().to_string()]);
        let flow = Flow { sender, receiver, sent, got: folder.join("1") };
        until("packets flow", || flow.sent() > 1000 && record(&flow.got)[0] > 1000);
        flow
    }

    /// Packets that were sent so far.
    pub fn sent(&self) -> u64 {
        record(&self.sent)[1]
    }

    /// Ends both, when all that was sent has come, each once and unspoilt; how many. Nothing may be open besides.
    #[track_caller]
    pub fn finish(mut self, home: &Home) -> u64 {
        self.sender.signal(Signal::TERM);
        assert!(self.sender.wait().success());
        let sent = self.sent();
        until("all have come", || record(&self.got)[0] == sent);
        // Nobody touches the receiver's ring any more, so that all its buffers can be counted.
        self.receiver.signal(Signal::TERM);
        assert!(self.receiver.wait().success());
        assert_eq!(record(&self.got), [sent, 0, 0], "packets were lost, or came twice");
        until("nothing is left", || home.snapshot().ports.is_empty() && home.snapshot().regions.is_empty());
        sent
    }
}

// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap top` on a terminal, as a terminal shows it.

use std::io::{Read as _, Write as _};
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};

use conformance::home::Guard;
use conformance::traffic::{exchange, open};
use conformance::{LIMIT, isolated, program, until};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

/// A terminal, and what is on it.
struct Terminal {
    parser: vt100::Parser,
    output: Receiver<Vec<u8>>,
    input: std::fs::File,
    program: Guard,
}

impl Terminal {
    /// Runs a command on a terminal of this size.
    fn run(command: &mut Command, (rows, columns): (u16, u16)) -> Terminal {
        let main = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&main).expect("a terminal");
        unlockpt(&main).expect("a terminal");
        let name = ptsname(&main, Vec::new()).expect("a name").into_string().expect("text");
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&main, size).expect("a size");
        let end = || std::fs::File::options().read(true).write(true).open(&name).expect("the terminal");
        let program = Guard::spawn(command.stdin(end()).stdout(end()).stderr(end()).env("TERM", "xterm"));
        let input = std::fs::File::from(main);
        let mut reader = input.try_clone().expect("a descriptor");
        let (to, output) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = reader.read(&mut bytes) {
                if to.send(bytes[..n].to_vec()).is_err() {
                    return;
                }
            }
        });
        Terminal { parser: vt100::Parser::new(rows, columns, 0), output, input, program }
    }

    fn press(&mut self, keys: &str) {
        self.input.write_all(keys.as_bytes()).expect("the terminal");
    }

    /// Waits until the screen is so; returns its lines.
    #[track_caller]
    fn shows(&mut self, what: &str, is_so: impl Fn(&[String]) -> bool) -> Vec<String> {
        loop {
            while let Ok(bytes) = self.output.try_recv() {
                self.parser.process(&bytes);
            }
            let columns = self.parser.screen().size().1;
            let lines: Vec<String> = self.parser.screen().rows(0, columns).collect();
            if is_so(&lines) {
                return lines;
            }
            match self.output.recv_timeout(LIMIT) {
                Ok(bytes) => self.parser.process(&bytes),
                Err(_) => panic!("the screen does not show {what}:\n{}", lines.join("\n")),
            }
        }
    }
}

#[test]
fn top_has_a_screen_that_follows_the_daemon() {
    for size in [(24, 80), (60, 200)] {
        isolated(|home| {
            let mut command = Command::new(program("unetmap"));
            let mut terminal = Terminal::run(command.args(["top", "-i", "0.1"]), size);
            // The daemon of the smaller screen still runs when the larger one begins.
            let nothing = ["No daemon is running", "no port is open"];
            terminal.shows("nothing", |lines| nothing.iter().any(|text| lines[0].contains(text)));
            assert!(terminal.parser.screen().alternate_screen());
            let ports: Vec<_> = (0..20).map(|n| open(&format!("vale0:port{n}"))).collect();
            let (tx, rx) = (open("netmap:zbusy{1"), open("netmap:zbusy}1"));
            terminal.shows("the ports", |lines| lines[0].contains("22 ports, 44 rings"));
            // The busiest rings are the first; all of the screen is used, and no more.
            let mut serial = 0;
            let last = usize::from(size.0) - 1;
            loop {
                exchange(&tx, &rx, 0, serial, serial + 500);
                serial += 500;
                let lines = terminal.shows("the titles", |lines| lines[2].starts_with("port "));
                let is_busy = |line: &String| line.starts_with("zbusy");
                // What was read may end in the middle of a refresh.
                if lines[3..5].iter().all(is_busy) && lines[last].contains("more rings") == (size.0 == 24) {
                    break;
                }
            }
            terminal.press("/port7");
            let lines = terminal.shows("one port", |lines| lines[3].starts_with("vale0:port7 ") && lines[5].is_empty());
            assert!(lines[1].contains("ports with port7_"), "{lines:#?}");
            terminal.press("\x1b");
            terminal.shows("all ports", |lines| !lines[5].is_empty());
            terminal.press("?");
            terminal.shows("the keys", |lines| lines.iter().any(|line| line.starts_with("q      quit")));
            terminal.press("?");
            // The daemon ends and comes back.
            drop((ports, tx, rx));
            home.end_daemon();
            terminal.shows("that no daemon runs", |lines| lines[0].contains("No daemon is running"));
            let again = open("netmap:again{1");
            terminal.shows("the new port", |lines| lines[3].starts_with("again{1"));
            terminal.press("q");
            assert!(terminal.program.wait().success());
            until("the terminal is as before", || {
                while let Ok(bytes) = terminal.output.try_recv() {
                    terminal.parser.process(&bytes);
                }
                !terminal.parser.screen().alternate_screen()
            });
            drop(again);
        });
    }
}

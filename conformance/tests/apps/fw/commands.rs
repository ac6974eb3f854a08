// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap fw`: the list of states, files of commands, flags.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use conformance::net::transmit;
use conformance::traffic::open;
use conformance::{isolated_with_interfaces, program};
use serde_json::{Value, json};

use super::{fw, packet, plain, receive, start};

#[test]
fn states_are_listed_for_one_thread_and_for_several() {
    const FLOWS: u16 = 3000;
    isolated_with_interfaces(|home| {
        for (threads, rings) in [("1", ""), ("2", "@conf:rings=2")] {
            let mut command = Command::new(program("unetmap-fw"));
            command.args(["-p", threads]);
            let rules = "add 10 check-state :any\nadd 20 allow udp from any to any 53 keep-state :dns\n\
                         add 30 allow tcp from any to any setup limit src-addr 5\n\
                         add 40 allow udp from any to any 2000-9999 keep-state";
            let running = start(home, command, &format!("a}}1{rings} b{{1{rings}"), rules);
            let (near, far) = (open(&format!("netmap:a{{1{rings}")), open(&format!("netmap:b}}1{rings}")));
            assert_eq!(fw("states").unwrap(), "", "there are none");
            assert_eq!(fw("states --json").unwrap(), "{\"states\":[]}\n");
            let sent = [packet((1, 2), 53, 0, 1), packet((1, 2), 53, 0, 2), packet((3, 2), 80, 2, 3)];
            transmit(&near, 0, &sent, 2048);
            receive(&far, 3);
            let text = fw("states").unwrap();
            let seconds = |line: &str| line[line.find('(').unwrap()..line.find(')').unwrap()].to_owned();
            let shown: Vec<_> = text.lines().map(|line| line.replace(&seconds(line), "(x")).collect();
            assert_eq!(
                shown,
                [
                    "00020 2 120 (x) STATE udp 10.0.0.1 1000 <-> 10.0.0.2 53 :dns",
                    "00030 1  60 (x) LIMIT tcp 10.0.0.3 1000 <-> 10.0.0.2 80 :default"
                ],
                "{text}"
            );
            let mut listed: Value = serde_json::from_str(&fw("states --json").unwrap()).expect("an object");
            let left = listed["states"][0]["expires_ms"].take().as_u64().expect("a number");
            assert!((1..=10_000).contains(&left), "{left}");
            assert_eq!(
                listed["states"][0],
                json!({"rule": 20, "name": "dns", "kind": "STATE", "protocol": 17, "packets": 2, "bytes": 120,
                    "source": {"address": "10.0.0.1", "port": 1000}, "expires_ms": null,
                    "destination": {"address": "10.0.0.2", "port": 53}})
            );
            // More than are listed between two batches, while packets come and go.
            for begin in (0..FLOWS).step_by(250) {
                let batch: Vec<_> =
                    (begin..begin + 250).map(|i| packet((5, 2), 2000 + i, 0, u32::from(i) + 10)).collect();
                transmit(&near, 0, &batch, 2048);
                receive(&far, 250);
                fw("states").expect("a list");
            }
            assert_eq!(fw("states").unwrap().matches(" STATE udp 10.0.0.5 ").count(), usize::from(FLOWS));
            // Those of a rule that is gone are not listed.
            fw("delete 40").expect("a rule");
            assert_eq!(fw("states").unwrap().matches("10.0.0.5").count(), 0);
            assert!(fw("states all").unwrap_err().contains("no more words"));
            running.summary();
        }
    });
}

#[test]
fn malformed_requests_are_refused_and_change_nothing() {
    isolated_with_interfaces(|home| {
        let running = plain(home, "a}1 a{2", "add 10 allow udp from any to any 53");
        let before = fw("list").unwrap();
        let (near, far) = (open("netmap:a{1"), open("netmap:a}2"));
        let ask = |request: &[u8]| {
            let mut stream = UnixStream::connect(home.folder().join("unetmap-fw.sock")).expect("it listens");
            stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
            stream.write_all(request).expect("sent");
            stream.shutdown(std::net::Shutdown::Write).expect("connected");
            let mut reply = Vec::new();
            stream.read_to_end(&mut reply).expect("a reply");
            String::from_utf8(reply).expect("text")
        };
        for (request, part) in [
            (&b""[..], "error\n"),
            (b"\n", "error\nthis version of unetmap-fw knows no such request"),
            (&[0; 100_000], "knows no such request"),
            (b"\xff\xfe\nflush", "knows no such request"),
            (b"text\nflush\n\0", "error\nline 2, column 1: a control character"),
            (b"load\n\xff", "error\nline 1, column 1: the byte 0xff"),
            (b"events\nx", "error\nevents: give the number"),
            (&[&b"text\nadd allow "[..], &b"{ ".repeat(100_000)].concat(), "error\nline 1, column "),
            (&[&b"text\nadd allow ip from "[..], &b"1.1.1.1,".repeat(100_000)].concat(), "error\nline 1, column "),
            (b"states\nx\n", "ok\n"),
        ] {
            let reply = ask(request);
            assert!(reply.contains(part), "{:?}: {reply}", &request[..request.len().min(30)]);
        }
        assert_eq!(fw("list").unwrap(), before);
        transmit(&near, 0, &[packet((1, 2), 53, 0, 7)], 2048);
        receive(&far, 1);
        running.summary();
    });
}

#[test]
fn a_file_of_commands_is_one_change() {
    isolated_with_interfaces(|home| {
        let running = plain(home, "a}1 a{2", "add 10 allow udp from any to any 53\ntable t create");
        let (near, far) = (open("netmap:a{1"), open("netmap:a}2"));
        transmit(&near, 0, &[packet((1, 2), 53, 0, 1)], 2048);
        receive(&far, 1);
        let path = home.folder().join("commands");
        let run = |args: &[&str], input: &[u8]| {
            let mut command = Command::new(program("unetmap"));
            command.arg("fw").args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = command.spawn().expect("it runs");
            child.stdin.take().expect("piped").write_all(input).expect("sent");
            let output = child.wait_with_output().expect("it runs");
            let text = [output.stdout, output.stderr].concat();
            (output.status.code(), String::from_utf8_lossy(&text).into_owned())
        };
        let path_text = path.to_str().expect("text");
        // The last line is wrong: nothing of the others is done, and no counter is zero.
        fs::write(&path, "# a change\nzero\nadd 20 deny ip from any to any\ntable t add 10.0.0.1\nadd 30 alow ip")
            .unwrap();
        let refused = "fw: line 5, column 8: `alow` is no action";
        for args in [&["--file", path_text][..], &[path_text], &["-q", "-f", path_text]] {
            let (code, text) = run(args, b"");
            assert!(code == Some(1) && text.contains(refused), "{args:?}: {text}");
        }
        let (code, text) = run(&["--file", "-"], &fs::read(&path).unwrap());
        assert!(code == Some(1) && text.contains(refused), "{text}");
        assert_eq!(
            fw("show").unwrap(),
            "00010 1 60 allow udp from any to any 53\n65535 0  0 deny ip from any to any\n"
        );
        assert!(fw("table t info").unwrap().contains("items: 0"));
        let good = "zero\nadd 20 set 4 deny ip from any to any\nset disable 4\ntable t add 10.0.0.1\n";
        assert_eq!(run(&["-q", "--file", "-"], good.as_bytes()), (Some(0), String::new()));
        assert_eq!(
            run(&["-a", "-S", "list"], b"").1,
            "00010 0 0 set 0 allow udp from any to any 53\n# DISABLED 00020 0 0 set 4 deny ip from any to any\n\
             65535 0 0 set 31 deny ip from any to any\n"
        );
        assert_eq!(run(&["-aS", "list", "20"], b""), run(&["list", "-S", "-a", "20"], b""));
        assert_eq!(run(&["-q", "add", "40", "deny", "ip", "from", "any", "to", "any"], b"").1, "");
        assert_eq!(run(&["-f", "flush"], b"").1, "");
        assert_eq!(fw("list").unwrap(), "65535 deny ip from any to any\n");
        for (args, part) in [
            (&["--file", "/nonexistent"][..], "fw: /nonexistent: "),
            (&["--file", path_text, "list"], "cannot be used with"),
            (&[], "COMMAND"),
            (&["list", "-x"], "`-x` is not supported"),
        ] {
            let (code, text) = run(args, b"");
            assert!(code != Some(0) && text.contains(part), "{args:?}: {text}");
        }
        running.summary();
    });
}

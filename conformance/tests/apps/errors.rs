// SPDX-License-Identifier: BSD-2-Clause
//! The programs of this project with unwritable output or invalid arguments: an error message and an exit status, never
//! a panic.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::process::{Command, Stdio};

use conformance::home::{daemon_listens, wait_within};
use conformance::traffic::open;
use conformance::{Home, LIMIT, isolated, program, until};

/// Runs a program until it exits; returns its status and its standard error.
#[track_caller]
fn run(command: &mut Command) -> (i32, String) {
    let what = format!("{command:?}");
    let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    let status = wait_within(&mut child, LIMIT).unwrap_or_else(|| panic!("{what} does not end"));
    let mut printed = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().expect("a pipe"), &mut printed).expect("text");
    (status.code().unwrap_or_else(|| panic!("{what}: {status}, {printed}")), printed)
}

fn command(line: &str) -> Command {
    let mut words = line.split_whitespace();
    let mut command = Command::new(program(words.next().expect("a program")));
    command.args(words);
    command
}

/// A pipe whose reading end is closed.
fn broken() -> Stdio {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    writer.into()
}

fn full() -> Option<File> {
    let device = OpenOptions::new().write(true).open("/dev/full");
    device.inspect_err(|e| eprintln!("skipped: /dev/full: {e}")).ok()
}

/// One packet of 60 bytes.
fn capture_file(home: &Home) -> String {
    let path = home.folder().join("one.pcap");
    let head: [u32; 6] = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65535, 1];
    let packet: [u32; 4] = [0, 0, 60, 60];
    let mut bytes: Vec<u8> = head.iter().chain(&packet).flat_map(|word| word.to_ne_bytes()).collect();
    bytes.extend([0; 60]);
    std::fs::write(&path, bytes).expect("a file");
    path.display().to_string()
}

#[test]
fn unwritable_output_panics_no_program() {
    isolated(|home| {
        let _keeper = open("netmap:p{1");
        let file = capture_file(home);
        let lines = [
            "unetmap ls",
            "unetmap ls --json",
            "unetmap top -n 1",
            "unetmap get",
            "unetmap set verbose 0",
            "unetmap vale",
            "unetmap doctor --json",
            "unetmap capture netmap:p{2 -w /dev/null --duration 0.05 --json",
            &format!("unetmap replay {file} netmap:q{{1 --rate max --json"),
            "pkt-gen -i netmap:p{3 -f tx -n 1 -w 0 -T 0 --json",
        ];
        for line in lines {
            let (status, printed) = run(command(line).stdout(broken()));
            assert!((0..=1).contains(&status) && !printed.contains("panicked"), "{line} | true: {status}, {printed}");
            let Some(full) = full() else { continue };
            let (status, printed) = run(command(line).stdout(full));
            assert!(status == 1 && !printed.contains("panicked"), "{line} >/dev/full: {status}, {printed}");
        }
        for line in
            ["unetmap nic no-such-if", "unetmapd --listen-fd 0", "pkt-gen -i no-such-if", "bridge", "vale-ctl -d x:y"]
        {
            let mut child =
                command(line).stdin(Stdio::null()).stdout(Stdio::null()).stderr(broken()).spawn().expect(line);
            let status = wait_within(&mut child, LIMIT).unwrap_or_else(|| panic!("{line} does not end"));
            assert!(matches!(status.code(), Some(1 | 2)), "{line} 2>&1 | true: {status}");
        }
    });
}

#[test]
fn a_daemon_serves_when_its_output_is_closed() {
    isolated(|home| {
        let at = |name: &str| home.folder().join(name);
        let start = |name: &str, stdout: Stdio| {
            let mut command = command("unetmapd --idle-exit 1");
            let ended = run(command.arg("--socket").arg(at(name)).stdout(stdout));
            assert!(daemon_listens(&at(name)), "no daemon serves: {ended:?}");
            ended
        };
        let (status, printed) = start("one", broken());
        assert_eq!((status, &printed[..]), (0, ""));
        if let Some(full) = full() {
            let (status, printed) = start("two", full.into());
            assert!(
                status == 1 && printed.contains("No space left") && printed.contains("the daemon serves at"),
                "{status}, {printed}"
            );
        }
        until("both have ended", || !at("one").exists() && !at("two").exists());
    });
}

#[test]
fn an_impossible_socket_path_is_reported() {
    isolated(|home| {
        let nowhere = home.folder().join("no/such/folder/sock");
        let long = home.folder().join("x".repeat(200));
        std::fs::write(home.folder().join("file"), "precious").expect("a file");
        let file = home.folder().join("file");
        for (path, why) in [(&nowhere, "No such file"), (&long, "too long"), (&file, "a file that is not a socket")] {
            for (line, begins) in
                [("unetmapd --foreground", "unetmapd: "), ("pkt-gen -i p{1 -n 1", "pkt-gen: no unetmapd answers")]
            {
                let (status, printed) = run(command(line).env("UNETMAP_SOCKET", path).stdout(Stdio::null()));
                let reported =
                    printed.starts_with(begins) && printed.contains(why) && printed.contains("UNETMAP_SOCKET");
                assert!(status == 1 && reported && printed.lines().count() == 1, "{line}: {status}, {printed}");
                assert!(!printed.contains("unetmapd: no unetmapd"), "{printed}");
            }
        }
        assert_eq!(std::fs::read_to_string(&file).expect("it is still there"), "precious");
        for (fd, why) in
            [("0", "no listening socket"), ("99", "Bad file descriptor"), ("4294967295", "Bad file descriptor")]
        {
            let mut command = command("unetmapd --socket");
            let (status, printed) = run(command.arg(home.folder().join("s")).args(["--listen-fd", fd]));
            assert!(
                status == 1 && printed.contains(&format!("--listen-fd {fd}: ")) && printed.contains(why),
                "{status}, {printed}"
            );
        }
    });
}

#[test]
fn an_unreadable_capture_is_reported_once() {
    isolated(|home| {
        let absent = home.folder().join("absent.pcap");
        let (status, printed) = run(Command::new(program("unetmap")).arg("replay").arg(&absent).arg("netmap:p{1"));
        assert_eq!(
            (status, printed),
            (1, format!("unetmap: replay: {}: No such file or directory\n", absent.display()))
        );
    });
}

/// Mistakes of users: what was meant is named.
#[test]
fn everyday_mistakes_are_explained() {
    isolated(|home| {
        let file = capture_file(home);
        for (line, status, part) in [
            ("pkt-gen -i vale0 -f rx", 1, "ports of switches valeS:PORT"),
            ("bridge -i netmap:p{1 -i netmap:p{1", 2, "the same port twice"),
            ("unetmap capture -i netmap:p{1 -w /dev/null", 2, "unetmap capture 'netmap:p{1' -w FILE"),
            ("unetmap run no-such-program", 127, "no-such-program: No such file"),
            (&format!("unetmap run {file}"), 126, "Permission denied"),
            ("unetmap run", 2, "PROGRAM"),
            ("unetmap metrics --listen 9464", 2, "give unix:PATH, or ADDRESS:PORT"),
            ("unetmap no-such-command", 2, "no-such-command"),
        ] {
            let (exit, printed) = run(&mut command(line));
            assert!(exit == status && printed.contains(part), "{line}: {exit}, {printed}");
        }
        let (exit, printed) = run(command("pkt-gen -i netmap:nmsink0 -f tx -w 0 -R 1M -n 2k").stdout(Stdio::null()));
        assert_eq!(exit, 0, "{printed}");
    });
}

/// A wrong command line, which a program refuses by itself, ends with 2; whatever else fails, with 1.
#[test]
fn a_wrong_command_line_ends_with_2_and_a_failure_with_1() {
    isolated(|home| {
        let _keeper = open("vale0:keeper");
        let file = home.folder().join("none.pcap").display().to_string();
        for (status, line) in [
            // An option that there is not.
            (2, "unetmap --wrong"),
            (2, "unetmap ls --wrong"),
            (2, "unetmap config save --wrong"),
            (2, "pkt-gen --wrong"),
            (2, "bridge --wrong"),
            (2, "lb --wrong"),
            (2, "vale-ctl --wrong"),
            (2, "unetmap-fw --wrong"),
            (2, "unetmapd --wrong"),
            (2, "unetmap-device-plugin --wrong"),
            // A wrong value.
            (2, "unetmap top -i x"),
            (2, "unetmap nic lo busy-poll x"),
            (2, "unetmap nic lo busy-poll 10s"),
            (2, "unetmap nic lo busy-poll 50 65"),
            (2, "unetmap nic lo header 7"),
            (2, "unetmap nic lo filter udp prot 1"),
            (2, "unetmap nic lo rss equal x"),
            (2, "unetmap vale show eth0"),
            (2, "unetmap vale port vale0 access 1"),
            (2, "unetmap vale port vale0:a access 4095"),
            (2, "unetmap vale port vale0:a rate in 5x"),
            (2, "unetmap vale port vale0:a filter in udp prot 1"),
            (2, "unetmap vale threads 0"),
            (2, "unetmap vm serve nothing --socket /tmp/s"),
            (2, "unetmap memif serve nothing --memif /tmp/s"),
            (2, "unetmap metrics --listen x"),
            (2, "unetmap bench pipe --samples 0"),
            (2, "unetmap doctor vale0:a"),
            (2, "unetmap capture vale0:a -w /dev/null udp prot 1"),
            (2, "pkt-gen -i vale0:a -f sideways"),
            (2, "pkt-gen -i nothing:a{x{y"),
            (2, "bridge -i vale0:a -b x"),
            (2, "lb -i vale0:a -p a:b:c"),
            (2, "vale-ctl -a nothing"),
            (2, "vale-ctl -n v0 -C x"),
            (2, "vale-ctl -n a_name_that_is_too_long"),
            (2, "vale-ctl -r a_name_that_is_too_long"),
            (2, "vale-ctl -n vale7"),
            (2, "unetmap get no_such_knob"),
            (2, "unetmap set no_such_knob 1"),
            (2, "unetmap set ring_size 5"),
            (2, "unetmapd --ring-size 5"),
            (2, "unetmapd --log loud"),
            (2, "unetmap-device-plugin --resource x"),
            // Options that do not go together, or are missing.
            (2, "unetmap"),
            (2, "unetmap vale port vale0:a --memif /tmp/s access 5"),
            (2, "unetmap metrics --listen 127.0.0.1:0 --openmetrics"),
            (2, "unetmap capture vale0:a -w /tmp/f --files 2"),
            (2, "unetmap replay - vale0:a --loop 2"),
            (2, "unetmap emulate vale0:a vale0:a"),
            (2, "unetmap emulate vale0:a vale0:b --aqm fq-codel --queue 100KB"),
            (2, "unetmap flows vale0:a"),
            (2, "unetmap flows --json"),
            (2, "unetmap flows vale0:a --to 127.0.0.1"),
            (2, "unetmap flows vale0:a --to tcp:localhost:1 --protocol netflow9"),
            (2, "unetmap flows vale0:a --to tcp:localhost:1 --ca x"),
            (2, "unetmap flows vale0:a --read x --json"),
            (2, "unetmap flows vale0:a --to localhost:1 --protocol netflow9 --both-directions"),
            (2, "unetmap vm args crosvm --client /tmp/s"),
            (2, "unetmap fw load"),
            (2, "unetmap bench pipe --peer unetmap=true"),
            (2, "pkt-gen -f tx"),
            (2, "bridge"),
            (2, "lb"),
            (2, "vale-ctl -C 1"),
            (2, "unetmap-fw vale0:a"),
            (2, "unetmapd --if-changed"),
            (2, "unetmap-cni"),
            // An interface that does not exist here.
            (1, "unetmap nic no-such-if"),
            (1, "unetmap doctor no-such-if"),
            (1, "unetmap emulate netmap:no-such-if vale0:b"),
            (1, "unetmap flows netmap:no-such-if --json"),
            (1, "unetmap capture no-such-if -w /dev/null"),
            (1, "pkt-gen -i netmap:no-such-if -f tx"),
            (1, "bridge -i netmap:no-such-if -i vale0:b"),
            (1, "lb -i netmap:no-such-if"),
            (1, "vale-ctl -a vale0:no-such-if"),
            (1, "vale-ctl -d vale0:no-such-if"),
            // Other failures.
            (1, "unetmap fw list"),
            (1, "unetmap set if_curr_num 5"),
            (1, "unetmap flows --read /no/such/file --json"),
            (1, "unetmap flows --read x --to tls:localhost:1 --ca /no/such/file"),
            (1, "unetmap config check -f /no/such/file"),
            (1, "unetmap emulate vale0:a vale0:b --trace /no/such/file"),
            (1, &format!("unetmap replay {file} vale0:a")),
            (1, &format!("pkt-gen -i vale0:a -f tx -P {file}")),
            (1, "unetmap-fw vale0:a vale0:b --rules /no/such/file"),
            (1, "unetmapd --config /no/such/file"),
        ] {
            let (exit, printed) = run(command(line).stdout(Stdio::null()));
            let said = !printed.trim().is_empty() && !printed.contains("panicked") && !printed.contains("(os error");
            assert!(exit == status && said, "{line}: {exit}, not {status}: {printed}");
        }
    });
}

/// A word that is not known: what was meant is named, by clap or by the program.
#[test]
fn what_was_meant_is_named() {
    isolated(|home| {
        let _keeper = open("vale0:keeper");
        let file = home.folder().join("switches.toml");
        std::fs::write(&file, "[interface.eth0]\nbusypoll = 50\n").expect("a file");
        for (line, meant) in [
            ("unetmap confg", "'config'"),
            ("unetmap tpo", "'top'"),
            ("unetmap config aply", "'apply'"),
            ("unetmap nic lo fliter udp", "'filter'"),
            ("unetmap vale prot vale0:a", "'port'"),
            ("unetmap vale port vale0:a acces 5", "'access'"),
            ("unetmap node of", "'off'"),
            ("unetmap ls --jsn", "'--json'"),
            ("pkt-gen --verson", "'--version'"),
            ("unetmap get rng_size", "did you mean `ring_size`?"),
            ("unetmap get dev.netmap.rng_size", "did you mean `ring_size`?"),
            ("unetmap set bufnum 4", "did you mean `buf_num`?"),
            (&format!("unetmap config check -f {}", file.display()), "did you mean `busy-poll`?"),
        ] {
            let (_, printed) = run(&mut command(line));
            assert!(printed.contains(meant), "{line}: {meant}: {printed}");
        }
        let (exit, printed) = run(&mut command("unetmap get dev.netmap.ring_size"));
        assert_eq!(exit, 0, "as sysctl names it: {printed}");
    });
}

/// Completions of each program for the usual shells; bash understands its own.
#[test]
fn programs_print_completions_for_shells() {
    let tools = ["unetmap", "pkt-gen", "bridge", "lb", "vale-ctl"].map(|name| (name, "json"));
    for (name, option) in tools.into_iter().chain([("unetmap-device-plugin", "resource")]) {
        for shell in ["bash", "zsh", "fish"] {
            let output = Command::new(program(name)).args(["--completions", shell]).output().expect("a program");
            let text = String::from_utf8(output.stdout).expect("text");
            assert!(output.status.success() && text.contains(name) && text.contains(option), "{name} {shell}: {text}");
            if shell == "bash" {
                // The text is longer than an argument may be.
                let mut bash = Command::new("bash").arg("-n").stdin(Stdio::piped()).spawn().expect("bash");
                let written = bash.stdin.take().expect("a pipe").write_all(text.as_bytes());
                assert!(bash.wait().expect("our child").success() && written.is_ok(), "{name}: {text}");
            }
        }
        let (exit, printed) = run(Command::new(program(name)).args(["--completions", "dos"]));
        assert!(exit == 2 && printed.contains("bash, elvish, fish"), "{name}: {exit}, {printed}");
    }
}

// SPDX-License-Identifier: BSD-2-Clause
//! "Five minutes" of the README, walked twice, with its own clean-up: each of its commands, as they stand there.
//!
//! | in the README | here |
//! |---|---|
//! | a block of `sh` | a terminal |
//! | blocks without text between them | terminals of one step: each starts when the one before has a port open |
//! | the last terminal of a step | ends by itself, with success |
//! | the others | end by themselves with the option `-W`, and else by Ctrl-C |
//! | a block of `rust` | a file, the one that the line before names |
//! | `make` | was done: the programs are in the `PATH` |
//! | `-n` | at most [`COUNT`] packets: programs that are built for debugging are slow |
//! | `../hello-pipe` | a folder of the test; crates are those that are here |
//!
//! Names of namespaces are the test's own: it has its own mount namespace, with another `/run/netns`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use conformance::home::{Guard, summary, wait_within};
use conformance::{Home, LIMIT, isolated, program, until};
use lab::Lab;
use rustix::process::{Signal, kill_process_group};

/// Most packets that a sender of the README sends.
const COUNT: u64 = 200_000;
/// The folder of the README's Rust program.
const HELLO: &str = "../hello-pipe";

/// The reader's action before the next command.
#[derive(Debug, PartialEq)]
enum Step {
    /// Runs these, each in a terminal.
    Run(Vec<String>),
    /// Writes a file.
    Write(String, String),
}

fn steps(readme: &str) -> Vec<Step> {
    let section = readme.split_once("\n## Five minutes\n").expect("the section").1;
    let section = section.split("\n## ").next().unwrap_or_default();
    let (mut steps, mut is_next, mut before) = (Vec::new(), false, "");
    let mut lines = section.lines();
    while let Some(line) = lines.next() {
        let Some(language) = line.strip_prefix("```") else {
            if !line.is_empty() {
                (is_next, before) = (false, line);
            }
            continue;
        };
        let block: String = lines.by_ref().take_while(|line| *line != "```").map(|line| format!("{line}\n")).collect();
        match (language, steps.last_mut()) {
            ("sh", Some(Step::Run(terminals))) if is_next => terminals.push(block),
            ("sh", _) => steps.push(Step::Run(vec![block])),
            ("rust", _) => {
                let name = before.split('`').nth(1).expect("the name of the file").to_owned();
                steps.push(Step::Write(name, block));
            }
            _ => panic!("a block of {language:?}, of which this test knows nothing"),
        }
        is_next = true;
    }
    steps
}

/// A command of the README, as it is run here.
fn adapted(block: &str, folder: &Path) -> String {
    let (mut text, mut before) = (String::new(), "");
    for word in block.split_inclusive(char::is_whitespace) {
        let count = word.trim_end();
        let is_too_many = before == "-n " && count.parse().is_ok_and(|count: u64| count > COUNT);
        text += &if is_too_many { word.replace(count, &COUNT.to_string()) } else { word.to_owned() };
        before = word;
    }
    text.replace(HELLO, &folder.join("hello-pipe").display().to_string())
}

/// A reader with a machine of their own.
struct Reader<'a> {
    home: &'a Home,
    /// Has the mount namespace.
    machine: Guard,
    terminals: usize,
}

/// A terminal in which something runs.
struct Terminal {
    block: String,
    process: Guard,
    output: PathBuf,
}

impl Terminal {
    fn text(&self) -> String {
        fs::read_to_string(&self.output).expect("text")
    }

    /// The number before "packets" in the line of `pkt-gen` that begins with this word.
    fn packets(&self, word: &str) -> Option<u64> {
        let text = self.text();
        let line = text.lines().find(|line| line.starts_with(word) && line.contains(" packets"))?;
        line.split(' ').nth(1)?.parse().ok()
    }
}

impl Reader<'_> {
    fn new(home: &Home) -> Reader<'_> {
        let script = "mkdir -p /run/netns && mount -t tmpfs none /run/netns && echo ready && exec sleep 3600";
        let ready = home.folder().join("ready");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", script]);
        let machine = Guard::spawn(command.stdout(File::create(&ready).expect("a file")));
        until("there is a mount namespace", || fs::read(&ready).is_ok_and(|text| !text.is_empty()));
        Reader { home, machine, terminals: 0 }
    }

    fn start(&mut self, block: &str) -> Terminal {
        use std::os::unix::process::CommandExt as _;
        self.terminals += 1;
        let output = self.home.folder().join(format!("terminal-{}", self.terminals));
        let to = File::create(&output).expect("a file");
        let programs = program("unetmap").parent().expect("a folder").to_owned();
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("nsenter");
        let (pid, folder) = (self.machine.0.id().to_string(), concat!("--wd=", env!("CARGO_MANIFEST_DIR"), "/.."));
        command.args(["-m", "-t", &pid, folder, "sh", "-ec", block]);
        command.env("PATH", format!("{}:{path}", programs.display())).env("CARGO_NET_OFFLINE", "true");
        command.env("CARGO_TARGET_DIR", programs.with_file_name("readme")).env_remove("RUSTFLAGS");
        command.stdin(Stdio::null()).stdout(to.try_clone().expect("a descriptor")).stderr(to).process_group(0);
        Terminal { block: block.to_owned(), process: Guard::spawn(&mut command), output }
    }

    /// Sessions of programs.
    fn sessions(&self) -> usize {
        if !self.home.serves() {
            return 0;
        }
        let all = self.home.snapshot();
        all.sessions.iter().filter(|session| session.pid != all.daemon.pid).count()
    }

    fn run(&mut self, blocks: &[String]) {
        let mut terminals: Vec<Terminal> = Vec::new();
        for (at, block) in blocks.iter().enumerate() {
            let before = self.sessions();
            let mut terminal = self.start(&adapted(block, self.home.folder()));
            if at + 1 < blocks.len() {
                until(block, || {
                    assert!(terminal.process.0.try_wait().expect("our child").is_none(), "{block}{}", terminal.text());
                    self.sessions() > before
                });
            }
            terminals.push(terminal);
        }
        let Some(mut last) = terminals.pop() else { return };
        let ended = wait_within(&mut last.process.0, 4 * LIMIT);
        assert!(ended.is_some_and(|status| status.success()), "{}{}", last.block, last.text());
        for terminal in &mut terminals {
            if terminal.block.contains(" -W") {
                let ended = wait_within(&mut terminal.process.0, LIMIT);
                assert!(ended.is_some_and(|status| status.success()), "{}{}", terminal.block, terminal.text());
            }
        }
        // A receiver may still take packets that were sent.
        let sent = last.packets("Sent");
        for terminal in terminals.iter_mut().filter(|terminal| !terminal.block.contains(" -W")) {
            kill_process_group(terminal.process.pid(), Signal::INT).expect("our own");
            assert!(wait_within(&mut terminal.process.0, LIMIT).is_some(), "{}: Ctrl-C", terminal.block);
        }
        for terminal in terminals.iter().filter(|terminal| terminal.block.contains("-f rx")) {
            let (block, text, received) = (&terminal.block, terminal.text(), terminal.packets("Received"));
            match sent {
                Some(sent) if block.contains("netmap:p") => assert_eq!(received, Some(sent), "{block}{text}"),
                _ => assert!(received.is_some_and(|packets| packets > 0), "{block}{text}"),
            }
        }
    }

    /// Walks through the section; returns the number of terminals.
    fn walk(&mut self, steps: &[Step]) {
        for step in steps {
            match step {
                Step::Run(blocks) if blocks[0].starts_with("make ") => {}
                Step::Run(blocks) => self.run(blocks),
                Step::Write(file, text) => {
                    fs::write(adapted(file, self.home.folder()), text).expect("the folder was made before");
                }
            }
        }
    }
}

#[test]
fn blocks_without_text_between_them_are_one_step() {
    let readme = "# A\n```sh\nno\n```\n## Five minutes\nText:\n\n```sh\na -n 5\n```\n```sh\nb\n```\n\nIn `x/y`:\n\n```rust\nc\n```\n\
                  ```sh\nd\n```\n## B\n```sh\nno\n```\n";
    let [a, b, c, d] = ["a -n 5\n", "b\n", "c\n", "d\n"].map(str::to_owned);
    assert_eq!(steps(readme), [Step::Run(vec![a, b]), Step::Write("x/y".into(), c), Step::Run(vec![d])]);
    assert_eq!(adapted("tx -n 50000000\nrx -n 7\n", Path::new("/t")), "tx -n 200000\nrx -n 7\n");
}

#[test]
fn five_minutes_can_be_walked_twice() {
    isolated(|home| {
        if let Err(why) = Lab::new() {
            return summary(&format!("skipped: {why}"));
        }
        let readme = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md")).expect("the README");
        let steps = steps(&readme);
        let mut reader = Reader::new(home);
        reader.walk(&steps);
        let first = reader.terminals;
        reader.walk(&steps);
        assert!(first > 10 && reader.terminals == 2 * first, "{first}");
        summary(&format!("{} steps, {first} terminals, twice", steps.len()));
    });
}

// SPDX-License-Identifier: BSD-2-Clause
//! The examples of the manual pages: each line is run. That the options of pages are the programs' is tested beside the
//! programs.
//!
//! The lines of a page run one after the other, as root in namespaces of their own, with the interfaces eth0, eth1 and
//! eth2. A line is right if it ends with status 0, or goes on until it is interrupted, and then ends as it should.
//! Lines that go on end at the next sentence of the section. While there are some, a line that fails is tried again for
//! 30 s, as what it needs may be about to begin; one that was interrupted before it had begun is given ten seconds, and
//! that is printed. Comments in the page (`.\"`) say what else there is to do:
//!
//! ```text
//! run: COMMAND        runs a line that the reader does not see
//! file: NAME          the next block is no commands but this file, which a later line has to read
//! not run: REASON     the next line, or the next block, is not run
//! ```

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use conformance::home::{count_repeat, wait_within};
use conformance::net::frames;
use conformance::pcap::{overlay, pcap_file};
use conformance::program;

/// Longest time for all examples of a page.
const PAGE_LIMIT: Duration = Duration::from_secs(500);

/// Words of lines that are left out where what they run is not installed, and how that is seen.
const FOREIGN: [(&str, &str); 6] = [
    ("tcpdump", "command -v tcpdump"),
    ("tshark", "command -v tshark"),
    ("tcpreplay", "command -v tcpreplay"),
    ("arping", "command -v arping"),
    ("scapy", "python3 -c 'import scapy'"),
    ("curl", "command -v curl"),
];

/// Runs in the namespaces. `example WHERE FILE` runs a line; `finish` ends those that go on, and then the daemon and
/// whatever else was started, as the next example begins without them. Another machine has 10.0.0.2 at eth1.
const SHELL: &str = r#"
set -um
mount --make-rprivate / && mount -t tmpfs none /run || exit 1
mkdir -p /run/unetmap /run/vpp /run/unetmap-metrics /run/netns
ip link set lo up
for i in 0 1 2; do
    ip link add eth$i numtxqueues 2 numrxqueues 2 type veth peer name peer$i numtxqueues 2 numrxqueues 2
    ip address add 10.$i.0.1/24 dev eth$i
    ip link set eth$i up && ip link set peer$i up
done
ip netns add far && ip link set peer1 netns far
ip -n far address add 10.0.0.2/24 dev peer1 && ip -n far link set peer1 up
cp /etc/passwd passwd && echo 'alice:x:4321:4321::/:/bin/false' >>passwd && mount --bind passwd /etc/passwd
cp /etc/group group && { grep -q ^staff: group || echo 'staff:x:50:' >>group; } && mount --bind group /etc/group
going=()
failed() { echo "FAILED $1: $2:"; cat "$3" "$3.out"; exit 1; }
example() {
    local pid i status until=$((SECONDS + 120))
    while :; do
        bash "$2" >"$2.out" 2>&1 </dev/null &
        pid=$!
        for i in {1..20}; do kill -0 $pid 2>/dev/null || break; sleep 0.05; done
        if kill -0 $pid 2>/dev/null; then
            going+=("$pid $1 $2")
            return
        fi
        wait $pid; status=$?
        [ $status != 0 ] || return
        # What it needs of a line that goes on may not be there yet.
        [ ${#going[@]} -gt 0 ] && [ $SECONDS -lt $until ] || failed "$1" "status $status" "$2"
        sleep 0.5
    done
}
# Interrupts a line, and sets status to 0 if it ends as it should.
interrupt() {
    local i
    kill -INT -- -$1 2>/dev/null
    for i in {1..600}; do kill -0 $1 2>/dev/null || break; sleep 0.05; done
    kill -KILL -- -$1 2>/dev/null && failed "$2" "not ended by SIGINT" "$3"
    wait $1; status=$?
    case $status in 124|130) status=0 ;; esac
}
finish() {
    local one pid where file status i
    for ((one = ${#going[@]} - 1; one >= 0; one--)); do
        read -r pid where file <<<"${going[one]}"
        interrupt $pid "$where" "$file"
        [ $status = 0 ] && continue
        # It may have been about to begin, which a loaded machine does slowly.
        echo "MORE TIME for $where: status $status"
        bash "$file" >"$file.out" 2>&1 </dev/null &
        pid=$!
        sleep 10
        interrupt $pid "$where" "$file"
        [ $status = 0 ] || failed "$where" "status $status after SIGINT" "$file"
    done
    going=()
    # What would outlast the daemon ends, too.
    unetmap stop --all --force >stop.out 2>&1 || failed finish "status $?" stop
    kill -TERM -1 2>/dev/null
    for i in {1..600}; do kill -0 -1 2>/dev/null || return 0; sleep 0.05; done
    echo "FAILED: processes that SIGTERM does not end:"; ps ax; exit 1
}
"#;

/// Prints a line that is shown even if the test passes.
fn note(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// The actions of a reader of a page's examples, in order.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// A command, and its line in the page.
    Run(usize, String),
    File(String, String),
    /// The lines that go on end.
    Finish,
}

/// A page's steps, and the reasons of what is not run.
#[derive(Debug, Default)]
struct Examples {
    steps: Vec<Step>,
    reasons: Vec<String>,
}

/// The text of a line as it is printed.
fn printed(line: &str) -> String {
    line.replace("\\-", "-").replace("\\*(Aq", "'").replace("\\(aq", "'").replace("\\e", "\\")
}

/// Whether a command goes on in the next line.
fn goes_on(command: &str) -> bool {
    command.ends_with('\\') || command.matches('\'').count() % 2 == 1
}

/// Reads the section EXAMPLES of a page.
fn read(page: &str) -> Examples {
    let mut examples = Examples::default();
    let (mut in_block, mut skips_block, mut skips_line) = (false, false, false);
    let (mut file, mut text, mut command) = (None, String::new(), String::new());
    let lines = (1..).zip(page.lines()).skip_while(|(_, line)| *line != ".SH EXAMPLES").skip(1);
    for (number, line) in lines.take_while(|(_, line)| !line.starts_with(".SH ")) {
        let comment = line.strip_prefix(".\\\" ").map(|comment| comment.split_once(": ").unwrap_or((comment, "")));
        match (comment, line) {
            (Some(("run", command)), _) => examples.steps.push(Step::Run(number, command.into())),
            (Some(("file", name)), _) => file = Some(name.to_owned()),
            (Some(("not run", reason)), _) => {
                assert!(!reason.is_empty(), "line {number}: a reason");
                examples.reasons.push(reason.into());
                (skips_block, skips_line) = (skips_block || !in_block, in_block);
            }
            (Some(_), _) => panic!("line {number}: give run, file or not run: {line}"),
            (None, ".nf") => (in_block, text) = (true, String::new()),
            (None, ".fi") => {
                in_block = false;
                let text = std::mem::take(&mut text);
                if let Some(name) = file.take() {
                    examples.steps.push(Step::File(name, text));
                }
                skips_block = false;
            }
            (None, line) if line.starts_with('.') => {}
            (None, _) if !in_block => examples.steps.push(Step::Finish),
            (None, line) if file.is_some() => text += &format!("{}\n", printed(line)),
            (None, _) if skips_block => {}
            (None, line) => {
                command += &format!("{}\n", printed(line.trim_start()));
                if !goes_on(command.trim_end()) {
                    let command = std::mem::take(&mut command);
                    let command = command.trim_end().trim_end_matches('&').trim_end().to_owned();
                    if !std::mem::take(&mut skips_line) && !command.is_empty() {
                        examples.steps.push(Step::Run(number, command));
                    }
                }
            }
        }
    }
    assert!(command.is_empty() && !in_block, "a command without its end: {command}");
    examples
}

/// The script that runs the steps, whose commands and files it writes to the folder.
fn script(name: &str, examples: &Examples, folder: &Path) -> String {
    let mut script = SHELL.to_owned();
    let is_there = |probe: &str| {
        let status = Command::new("sh").args(["-c", probe]).stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    };
    for (i, step) in examples.steps.iter().enumerate() {
        let _ = match step {
            Step::Finish => writeln!(script, "finish"),
            Step::File(file, text) => {
                let kept = format!("{i}.file");
                fs::write(folder.join(&kept), text).expect("a file");
                writeln!(script, "cp {kept} {file}")
            }
            Step::Run(number, command) => {
                let missing = FOREIGN.iter().find(|(word, probe)| command.contains(word) && !is_there(probe));
                if let Some((word, _)) = missing {
                    note(&format!("{name}: line {number} is left out: there is no {word}"));
                    continue;
                }
                fs::write(folder.join(format!("{i}.sh")), format!("{command}\n")).expect("a file");
                writeln!(script, "example {name}:{number} {i}.sh")
            }
        };
    }
    script + "finish\n"
}

/// Runs the examples of a page.
///
/// # Errors
/// The output of the examples, if one fails.
fn run(name: &str, examples: &Examples) -> Result<(), String> {
    let folder = tempfile::Builder::new().prefix("unetmap-").tempdir().expect("a folder");
    let folder = folder.path();
    let script = script(name, examples, folder);
    let packets = pcap_file(&frames(&[60; 10], 0));
    for capture in ["capture.pcap", "in.pcap"] {
        fs::write(folder.join(capture), &packets).expect("a file");
    }
    let output = folder.join("output");
    let to = fs::File::create(&output).expect("a file");
    let bin = program("unetmapd").parent().expect("a file in a folder").to_owned();
    let path = std::env::var("PATH").unwrap_or_default();
    // All processes end with the first of their namespace. None ignores SIGINT because the suite runs in a script's
    // background.
    let mut child = Command::new("unshare")
        .args(["--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"])
        .args(["env", "--default-signal=INT", "bash", "-c", &script])
        .current_dir(folder)
        .env("UNETMAP_SOCKET", folder.join("unetmapd.sock"))
        .env("SOURCE", root().canonicalize().expect("a folder"))
        .env("BIN", &bin)
        .env("PATH", format!("{}:{path}", bin.display()))
        .stdin(Stdio::null())
        .stdout(to.try_clone().expect("a second handle"))
        .stderr(to)
        .spawn()
        .expect("unshare (util-linux)");
    let status = wait_within(&mut child, PAGE_LIMIT);
    let _ = child.kill();
    let _ = child.wait();
    let text = fs::read_to_string(&output).unwrap_or_default();
    match status {
        Some(status) if status.success() => {
            for line in text.lines().filter(|line| line.starts_with("MORE TIME")) {
                note(line);
                count_repeat(&format!("the examples of {name}"));
            }
            Ok(())
        }
        _ => Err(format!("{name}: {status:?}:\n{text}")),
    }
}

/// The pages, each with its examples.
fn pages() -> BTreeMap<String, Examples> {
    let pages = fs::read_dir(root().join("man")).expect("a folder").map(|page| page.expect("a page").path());
    let of = |page: PathBuf| {
        let name = page.file_name().expect("a name").to_string_lossy().into_owned();
        let examples = read(&fs::read_to_string(&page).expect("text"));
        (name, examples)
    };
    pages.map(of).collect()
}

fn run_sections(sections: &[&str]) {
    let can_run =
        Command::new("unshare").args(["--net", "--mount", "--pid", "--fork", "--mount-proc", "true"]).status();
    if !can_run.is_ok_and(|status| status.success()) {
        return note("skipped: no namespaces can be made here");
    }
    overlay();
    let (mut lines, mut reasons, mut failures) = (0, 0, String::new());
    let wanted = std::env::var("MANUAL").unwrap_or_default();
    for (name, examples) in pages() {
        if sections.iter().any(|section| name.ends_with(section)) && name.contains(&wanted) {
            failures += &run(&name, &examples).err().unwrap_or_default();
            lines += examples.steps.iter().filter(|step| matches!(step, Step::Run(..))).count();
            reasons += examples.reasons.len();
        }
    }
    assert!(failures.is_empty(), "{failures}");
    note(&format!("sections {}: {lines} lines run, {reasons} reasons why others are not", sections.join(" ")));
}

#[test]
fn every_page_has_examples_and_their_files_are_read() {
    for (name, examples) in pages() {
        assert!(!examples.steps.is_empty(), "{name} has no EXAMPLES");
        for (at, step) in examples.steps.iter().enumerate() {
            let Step::File(file, _) = step else { continue };
            let is_read = |step: &Step| matches!(step, Step::Run(_, command) if command.contains(file.as_str()));
            assert!(examples.steps[at..].iter().any(is_read), "{name}: no line reads {file}");
        }
    }
}

#[test]
fn the_examples_of_commands_run() {
    run_sections(&[".1"]);
}

#[test]
fn the_examples_of_programs_for_root_run() {
    run_sections(&[".8"]);
}

#[test]
fn the_examples_of_files_and_calls_run() {
    run_sections(&[".3", ".4", ".5", ".7"]);
}

#[test]
fn examples_are_read_with_what_is_not_run_and_files() {
    let page = ".SH EXAMPLES\nFirst:\n.\\\" file: rules\n.nf\n    add \\-x\n.fi\n.nf\n    fw \\*(Aqa\\*(Aq &\n.\\\" not run: \
                never\n    one \\e\n    two\n    three\n.fi\n.\\\" run: hidden\n.\\\" not run: a list\n.nf\nx\n.fi\n.nf\ny\n.fi\n\
                .SH OTHER\n.nf\nz\n";
    let examples = read(page);
    let run = |line, command: &str| Step::Run(line, command.into());
    let expected = [
        Step::Finish,
        Step::File("rules".into(), "    add -x\n".into()),
        run(8, "fw 'a'"),
        run(12, "three"),
        run(14, "hidden"),
        run(20, "y"),
    ];
    assert_eq!(examples.steps, expected);
    assert_eq!(examples.reasons, ["never", "a list"]);
}

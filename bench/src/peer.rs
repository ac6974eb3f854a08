// SPDX-License-Identifier: BSD-2-Clause
//! Peers of the user: commands that measure something and print rows as JSON.

use std::collections::BTreeSet;
use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::str::FromStr;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::stats::{PlacementClass, Sample};

/// Time limit of a peer's command.
const RUN_LIMIT: Duration = Duration::from_secs(60);
/// Interval at which a command is checked for its exit.
const EXIT_CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// `LABEL=COMMAND`: the argument of `--peer`.
///
/// The command is run by `sh -c` in the environment of this process, with `BENCH`, the name of the measured row,
/// `BATCH`, its sender's batch, and for `nic-*` `NETNS_A` to `NETNS_C`, the network namespaces. It prints one JSON
/// object per line and class: `{"name":"x","class":"L","unit":"Mpps","median":1.5,"min":1,"max":2,"n":9}`, all with the
/// same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The peer's label in the results.
    pub label: String,
    /// The argument of `sh -c`.
    pub command: String,
}

impl FromStr for Peer {
    type Err = String;

    fn from_str(text: &str) -> Result<Peer, String> {
        let bad = |what: &str| format!("{what} (give LABEL=COMMAND, as in 'other=./other-bench --json')");
        let (label, command) = text.split_once('=').ok_or_else(|| bad("there is no `=`"))?;
        if label.is_empty() || label.contains(char::is_whitespace) {
            return Err(bad("the label before the `=` must be one word"));
        }
        if command.trim().is_empty() {
            return Err(bad("there is no command after the `=`"));
        }
        Ok(Peer { label: label.into(), command: command.into() })
    }
}

/// A row as a peer prints it; unknown members are ignored.
#[derive(Deserialize)]
struct RawRow {
    name: String,
    class: String,
    unit: String,
    median: f64,
    min: f64,
    max: f64,
    n: u32,
}

/// A validated row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) class: PlacementClass,
    pub(crate) unit: String,
    pub(crate) sample: Sample,
}

/// Parses the rows that a command printed, all of one name or each with one of `known`. An error names the line that
/// is not a row.
pub(crate) fn parse(output: &str, known: &[String]) -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    let mut names = BTreeSet::new();
    for (number, line) in (1..).zip(output.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |what: String| format!("line {number} of its output, `{}`: {what}", line.trim());
        let raw: RawRow = serde_json::from_str(line).map_err(|e| wrong(e.to_string()))?;
        names.insert(raw.name.clone());
        rows.push(check(raw).map_err(wrong)?);
    }
    if rows.is_empty() {
        return Err("it printed no row".into());
    }
    if names.len() > 1 && !names.iter().all(|name| known.contains(name)) {
        let names: Vec<_> = names.into_iter().collect();
        return Err(format!("it printed rows of several names ({}); it must print one", names.join(", ")));
    }
    Ok(rows)
}

fn check(raw: RawRow) -> Result<Row, String> {
    let RawRow { name, class, unit, median, min, max, n } = raw;
    let class =
        PlacementClass::from_letter(&class).ok_or_else(|| format!("class {class:?} is neither \"L\" nor \"R\""))?;
    if n == 0 {
        return Err("n is 0".into());
    }
    if !(min > 0.0 && min <= median && median <= max) {
        return Err("0 < min <= median <= max does not hold".into());
    }
    Ok(Row { name, class, unit, sample: Sample { median, min, max, n } })
}

/// Runs the command once and returns its rows, for the rows `known`. Its standard error is that of this process.
pub(crate) fn run(peer: &Peer, environment: &[(&str, String)], known: &[String]) -> Result<Vec<Row>, String> {
    let output = run_limited(peer, environment, RUN_LIMIT).and_then(|output| parse(&output, known));
    output.map_err(|e| format!("--peer {}: {e}", peer.label))
}

fn run_limited(peer: &Peer, environment: &[(&str, String)], limit: Duration) -> Result<String, String> {
    let mut child = Command::new("sh")
        .args(["-c", &peer.command])
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| format!("starting sh: {e}"))?;
    let output = read_all(&mut child);
    let deadline = Instant::now() + limit;
    let text = match output.recv_timeout(limit) {
        Ok(text) => text.map_err(|e| format!("reading its output: {e}"))?,
        Err(RecvTimeoutError::Timeout) => return Err(stop(child, limit)),
        Err(RecvTimeoutError::Disconnected) => return Err("reading its output failed".into()),
    };
    // The command has closed its output, but may still run.
    let status = loop {
        match child.try_wait().map_err(|e| format!("waiting for it: {e}"))? {
            Some(status) => break status,
            None if Instant::now() >= deadline => return Err(stop(child, limit)),
            None => thread::sleep(EXIT_CHECK_INTERVAL),
        }
    };
    check_status(status)?;
    Ok(text)
}

/// Reads in a thread, so that the time limit also applies to a command that never closes its output.
fn read_all(child: &mut Child) -> Receiver<std::io::Result<String>> {
    let (done, output) = mpsc::channel();
    if let Some(mut stdout) = child.stdout.take() {
        thread::spawn(move || {
            let mut text = String::new();
            let result = stdout.read_to_string(&mut text).map(|_| text);
            // Fails if the time limit has expired.
            let _ = done.send(result);
        });
    }
    output
}

fn stop(mut child: Child, limit: Duration) -> String {
    // Both fail only if the command has just exited.
    let _ = child.kill();
    let _ = child.wait();
    format!("it still ran after {} s and was killed", limit.as_secs_f64())
}

fn check_status(status: ExitStatus) -> Result<(), String> {
    if status.success() { Ok(()) } else { Err(format!("its command failed ({status})")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"{"name":"a","class":"L","unit":"Mpps","median":2.5,"min":1,"max":3.00,"n":9}"#;

    fn row(class: PlacementClass, median: f64, min: f64, max: f64, n: u32) -> Row {
        Row { name: "a".into(), class, unit: "Mpps".into(), sample: Sample { median, min, max, n } }
    }

    #[test]
    fn rows_are_parsed() {
        assert_eq!(parse(GOOD, &[]).unwrap(), [row(PlacementClass::L, 2.5, 1.0, 3.0, 9)]);
        let more = r#"{"n":1,"extra":[1],"max":5,"min":5,"median":5,"unit":"Mpps","class":"R","name":"a"}"#;
        assert_eq!(
            parse(&format!("\n{GOOD}\n  \n{more}\n"), &[]).unwrap(),
            [row(PlacementClass::L, 2.5, 1.0, 3.0, 9), row(PlacementClass::R, 5.0, 5.0, 5.0, 1)]
        );
    }

    #[test]
    fn errors_name_the_bad_line() {
        let with = |from: &str, to: &str| {
            let text = GOOD.replace(from, to);
            assert_ne!(text, GOOD, "{from}");
            text
        };
        for (text, part) in [
            (String::new(), "printed no row"),
            ("  \n".into(), "printed no row"),
            ("hello".into(), "line 1 of its output, `hello`"),
            (format!("{GOOD}\n[1,2]"), "line 2"),
            (GOOD[..40].into(), "line 1"),
            (with(r#""n":9"#, r#""n":-1"#), "line 1"),
            (with(r#""n":9"#, r#""n":0"#), "n is 0"),
            (with(r#","n":9"#, ""), "missing field `n`"),
            (with(r#""L""#, r#""S""#), "class \"S\""),
            (with("2.5", "\"2.5\""), "line 1"),
            (with("2.5", "0.5"), "min <= median"),
            (with("3.00", "2"), "median <= max"),
            (with("\"min\":1", "\"min\":0"), "0 < min"),
            (with("2.5", "null"), "line 1"),
            (format!("{GOOD}\n{}", with("\"a\"", "\"b\"")), "several names (a, b)"),
        ] {
            let message = parse(&text, &["a".into()]).unwrap_err();
            assert!(message.contains(part), "{text}: {message}");
        }
    }

    #[test]
    fn labels_and_commands_are_parsed_or_refused() {
        let peer: Peer = "ceiling=ROW=6 JSON=1 ./pipe".parse().unwrap();
        assert_eq!((&*peer.label, &*peer.command), ("ceiling", "ROW=6 JSON=1 ./pipe"));
        for (text, part) in [
            ("", "no `=`"),
            ("x", "no `=`"),
            ("=x", "one word"),
            ("a b=x", "one word"),
            ("a=", "no command"),
            ("a=  ", "no command"),
        ] {
            let message = text.parse::<Peer>().unwrap_err();
            assert!(message.contains(part) && message.contains("LABEL=COMMAND"), "{text}: {message}");
        }
    }

    fn peer(command: &str) -> Peer {
        Peer { label: "p".into(), command: command.into() }
    }

    #[test]
    fn commands_run_with_their_environment_and_failures_are_reported() {
        let environment = [("BENCH", "3".into()), ("BATCH", "64".into())];
        let command = format!("echo '{GOOD}' | sed \"s/2.5/$((BATCH - 62))/; s/3.00/$BENCH/\"");
        let rows = run(&peer(&command), &environment, &[]).unwrap();
        assert_eq!(rows, [row(PlacementClass::L, 2.0, 1.0, 3.0, 9)]);
        let message = run(&peer(&format!("echo '{GOOD}'; exit 3")), &[], &[]).unwrap_err();
        assert!(message.starts_with("--peer p: ") && message.contains("exit status: 3"), "{message}");
        let message = run(&peer("kill -9 $$"), &[], &[]).unwrap_err();
        assert!(message.contains("signal: 9"), "{message}");
        let message = run(&peer("true"), &[], &[]).unwrap_err();
        assert!(message.contains("printed no row"), "{message}");
    }

    #[test]
    fn a_command_that_hangs_is_killed() {
        for command in ["exec sleep 100", "exec sleep 100 >&-"] {
            let message = run_limited(&peer(command), &[], Duration::from_millis(50)).unwrap_err();
            assert!(message.contains("still ran after 0.05 s"), "{message}");
        }
    }
}

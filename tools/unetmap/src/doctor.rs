// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap doctor`: checks what this machine and its interfaces support, and prints how to fix what is missing.
//!
//! ```text
//! gather   queries the kernel and the daemon   machine::Facts, nic::Facts
//! check    pure functions of the facts         a list of checks, the data path
//! print    as text, or as JSON; `report` prints what belongs to a report of a bug
//! ```
//! A check that needs a privilege which this process lacks is unknown, not missing.

use std::fmt::Write as _;

use serde::Serialize;
use tool_common::table::align;
use unetmap::abi::printable::word;
use unetmap::abi::{PortKind, PortSpec};
use unetmap_sys::link;

mod causes;
mod gather;
mod machine;
mod nic;
pub(crate) mod prove;
mod report;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Ok,
    Missing,
    /// The check could not be made, or the kernel does not report the fact.
    Unknown,
}

impl State {
    fn word(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Missing => "missing",
            State::Unknown => "unknown",
        }
    }
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Check {
    what: &'static str,
    state: State,
    /// True if a port on an interface needs this to be opened.
    needed: bool,
    text: String,
    /// How to fix it: usually a command.
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

impl Check {
    /// Creates a check of a requirement.
    fn new(what: &'static str, state: State, text: impl Into<String>) -> Check {
        Check { what, state, needed: true, text: text.into(), fix: None }
    }

    fn ok(what: &'static str, text: impl Into<String>) -> Check {
        Check::new(what, State::Ok, text)
    }

    fn missing(what: &'static str, text: impl Into<String>) -> Check {
        Check::new(what, State::Missing, text)
    }

    fn unknown(what: &'static str, text: impl Into<String>) -> Check {
        Check::new(what, State::Unknown, text)
    }

    /// Marks the check as one that a port does not need.
    fn optional(self) -> Check {
        Check { needed: false, ..self }
    }

    fn fix(self, fix: impl Into<String>) -> Check {
        Check { fix: Some(fix.into()), ..self }
    }

    /// Returns true if this prevents a port from being opened.
    fn blocks(&self) -> bool {
        self.needed && self.state == State::Missing
    }

    fn sentence(&self) -> String {
        match &self.fix {
            Some(fix) => format!("{} ({fix})", self.text),
            None => self.text.clone(),
        }
    }
}

/// The report.
#[derive(Debug, Serialize)]
struct Report {
    kernel: String,
    /// True if no requirement of a port is missing.
    ok: bool,
    checks: Vec<Check>,
    interfaces: Vec<nic::InterfaceReport>,
}

/// Parses the name of an interface, or of a port on one.
pub(crate) fn interface(name: &str) -> Result<String, String> {
    if !name.contains(':') {
        return if name.is_empty() { Err("no name; give an interface".into()) } else { Ok(name.into()) };
    }
    let exists = |name: &str| link::by_name(name).is_ok_and(|found| found.is_some());
    let spec = PortSpec::parse_with(name, exists).map_err(|e| e.to_string())?;
    match spec {
        PortSpec { kind: PortKind::Netmap, pipe: None, parent, .. } => Ok(parent),
        _ => Err("a pipe or a switch port is on no interface (give IF or netmap:IF)".into()),
    }
}

/// The form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Output {
    /// JSON instead of text.
    pub(crate) json: bool,
    /// The report of a bug instead of the checks.
    pub(crate) report: bool,
}

/// Checks the machine and one interface, or all, and prints the report. Returns the exit status.
pub(crate) fn run(interface: Option<&str>, output: Output) -> Result<u8, String> {
    let machine = gather::machine();
    let link = interface.map(gather::link).transpose()?;
    let links = match &link {
        // A report of a bug contains nothing about interfaces that were not named.
        None if output.report => vec![],
        None => link::all().map_err(|e| format!("doctor: the interfaces: {e}"))?,
        Some(link) => vec![link.clone()],
    };
    let facts = links.into_iter().map(|link| gather::nic(link, &machine, interface.is_some()));
    let interfaces: Vec<_> = facts.map(|facts| nic::check(&facts, machine.kernel())).collect();
    let checks = machine::check(&machine);
    let ok = !checks.iter().any(Check::blocks) && (interface.is_none() || interfaces.iter().all(|nic| nic.ok));
    let found = Report { kernel: machine.release.clone(), ok, checks, interfaces };
    let json = |value: serde_json::Result<String>| value.map(|text| text + "\n").map_err(|e| format!("doctor: {e}"));
    let text = match (output.report, output.json) {
        (false, false) => text(&found, interface.is_some()),
        (false, true) => json(serde_json::to_string(&found))?,
        (true, false) => report::text(&report::build(&machine, &found, link.as_ref())),
        (true, true) => json(serde_json::to_string(&report::build(&machine, &found, link.as_ref())))?,
    };
    crate::print("doctor", &unetmap_core::without_codes(&text))?;
    Ok(u8::from(!ok && !output.report))
}

/// Formats the report as text, in detail if it is about one interface.
fn text(report: &Report, single_interface: bool) -> String {
    let mut text = format!("Linux {}\n{}", report.kernel, lines(&report.checks));
    if !single_interface {
        text += &format!("\nInterfaces\n{}", table(&report.interfaces));
        let verdict = match report.ok {
            true => "Interfaces can be opened; `unetmap doctor IF` prints the details of one.".into(),
            false => format!(
                "Interfaces cannot be opened: see {} above. Pipes and switches between programs need none of this.",
                blocking(&report.checks)
            ),
        };
        return format!("{text}\n{verdict}\n");
    }
    for nic in &report.interfaces {
        let name = word(&nic.name).into_owned();
        // Writes to a String cannot fail.
        let _ = write!(text, "\nnetmap:{name}\n{}\n", lines(&nic.checks));
        text += &match (report.ok, nic.data_path) {
            (true, Some(data_path)) => {
                let untested = if nic.is_tested() { "" } else { " (untested)" };
                format!("netmap:{name} can be opened: {data_path}{untested}.\n")
            }
            (true, None) => format!("netmap:{name} can be opened.\n"),
            (false, _) => {
                let see = blocking(report.checks.iter().chain(&nic.checks));
                format!("netmap:{name} cannot be opened: see {see} above.\n")
            }
        };
    }
    text
}

/// Returns the names of the checks that block.
fn blocking<'a>(checks: impl IntoIterator<Item = &'a Check>) -> String {
    checks.into_iter().filter(|check| check.blocks()).map(|check| check.what).collect::<Vec<_>>().join(", ")
}

fn lines(checks: &[Check]) -> String {
    let row = |check: &Check| vec![check.state.word().into(), check.what.into(), word(&check.sentence()).into_owned()];
    align(&checks.iter().map(row).collect::<Vec<_>>(), 3)
}

fn table(interfaces: &[nic::InterfaceReport]) -> String {
    let titles = ["interface", "driver", "state", "mtu", "rx", "tx", "program", "data path", "needs"];
    let mut rows = vec![titles.map(String::from).to_vec()];
    for nic in interfaces {
        let missing = |check: &&Check| check.state == State::Missing && check.fix.is_some();
        let needs = nic.checks.iter().find(|check| check.blocks()).or_else(|| nic.checks.iter().find(missing));
        rows.push(vec![
            word(&nic.name).into_owned(),
            nic.driver.as_ref().map_or("-".into(), |driver| word(&driver.name).into_owned()),
            nic.state().into(),
            nic.mtu.to_string(),
            nic.queues.rx.to_string(),
            nic.queues.tx.to_string(),
            nic.program.as_ref().map_or("-".into(), |program| word(&program.label()).into_owned()),
            nic.data_path.unwrap_or("unknown").into(),
            needs.map_or("-".into(), |check| word(&check.sentence()).into_owned()),
        ]);
    }
    align(&rows, titles.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_names_are_parsed_or_refused() {
        for (given, name) in [
            ("eth0", "eth0"),
            ("eth0-1", "eth0-1"),
            ("netmap:eth0", "eth0"),
            ("netmap:eth0-2/R", "eth0"),
            ("a.7", "a.7"),
        ] {
            assert_eq!(interface(given).as_deref(), Ok(name));
        }
        for (given, part) in [
            ("", "no name"),
            ("netmap:", "netmap:"),
            ("vale0:1", "on no interface"),
            ("netmap:p{1", "on no interface"),
            ("eth0:1", "eth0:1"),
        ] {
            let message = interface(given).unwrap_err();
            assert!(message.contains(part), "{given}: {message}");
        }
    }

    #[test]
    fn only_missing_requirements_block() {
        for (check, blocks) in [
            (Check::missing("a", "b"), true),
            (Check::missing("a", "b").optional(), false),
            (Check::unknown("a", "b"), false),
            (Check::ok("a", "b"), false),
        ] {
            assert_eq!(check.blocks(), blocks, "{check:?}");
        }
    }

    #[test]
    fn the_text_names_checks_fixes_and_the_verdict() {
        let checks = vec![Check::ok("barrier", "x"), Check::missing("AF_XDP", "none\u{1b}").fix("do this")];
        let mut report = Report { kernel: "6.1.0".into(), ok: false, checks, interfaces: vec![] };
        assert_eq!(text(&report, true), "Linux 6.1.0\nok       barrier  x\nmissing  AF_XDP   none\\u001b (do this)\n");
        assert!(text(&report, false).contains("Interfaces cannot be opened: see AF_XDP above. Pipes"));
        report.ok = true;
        let end = "Interfaces can be opened; `unetmap doctor IF` prints the details of one.\n";
        assert!(text(&report, false).ends_with(end));
    }
}

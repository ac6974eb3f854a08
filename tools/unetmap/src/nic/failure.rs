// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap nic IF failure` and `unetmap bypass`: what becomes of frames that a program should get and none takes.

use serde_json::{Value, json};
use tool_common::Failure;
use unetmap_core::control::nic::{NicAction, OnFailure};
use unetmap_sys::link::{self, Link};
use unetmap_sys::xdp;

use crate::ls::cell;

/// Sets it: `open`, `closed`, or `bypass` and an interface.
pub(crate) fn run(interface: &str, words: &[String], json: bool) -> Result<String, Failure> {
    let action = action(words);
    let opens = action.as_ref().is_ok_and(|action| *action == NicAction::OnFailure(OnFailure::Open));
    // There is no such interface now, and the next one of this name would be closed.
    if opens && link::is_absent(interface) && link::is_closed_name(interface).unwrap_or(false) {
        open_name(interface)?;
        return Ok(if json {
            format!("{}\n", json!({"interface": interface}))
        } else {
            change_text(interface, &OnFailure::Open)
        });
    }
    match super::send(interface, action, json)? {
        // Without a daemon the program that an earlier one has attached is detached here.
        text if opens => detach_left(interface).map(|()| text),
        text => Ok(text),
    }
}

pub(crate) fn action(words: &[String]) -> Result<NicAction, String> {
    let failure = OnFailure::parse(&words.join(" "));
    failure
        .map(NicAction::OnFailure)
        .ok_or_else(|| "use `failure open`, `failure closed` or `failure bypass IF`".into())
}

fn detach_left(interface: &str) -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::Work(format!("nic {interface}: the program that stays there: {e}"));
    let link = link::by_name(interface).map_err(failed)?;
    let attached = link.filter(|link| link.xdp.is_some());
    attached.map_or(Ok(()), |link| xdp::detach_left(link.index).map(drop).map_err(failed))?;
    if link::is_closed_name(interface).unwrap_or(false) { open_name(interface) } else { Ok(()) }
}

/// Ends what keeps another interface of this name closed.
fn open_name(interface: &str) -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::Work(format!("nic {interface}: its name is still closed: {e}"));
    link::set_closed_name(interface, None).map_err(failed)
}

/// `unetmap bypass IF1 IF2`: while no program forwards between the two, the kernel does; `off`: they are open again.
pub(crate) fn bypass(pair: [&str; 2], off: bool, json: bool) -> Result<String, Failure> {
    let [a, b] = pair;
    for (interface, partner) in [(a, b), (b, a)] {
        let words = if off { vec!["open".to_owned()] } else { vec!["bypass".into(), partner.into()] };
        run(interface, &words, false)?;
    }
    Ok(match (json, off) {
        (true, _) => format!("{}\n", json!({"interfaces": pair, "bypass": !off})),
        (false, true) => format!("{a}, {b}: while no program forwards between them, frames go to the host's stack\n"),
        (false, false) => format!("{a}, {b}: while no program forwards between them, the kernel does\n"),
    })
}

/// The interfaces of this network namespace that the kernel keeps closed, or forwards from; users other than root are
/// told of none.
pub(crate) fn kept_by_kernel() -> Vec<String> {
    let of = |link: Link| match xdp::left(link.index, Some(&link.name)).ok()? {
        xdp::Failure::Open => None,
        xdp::Failure::Closed => Some(format!("{} (closed)", link.name)),
        xdp::Failure::Bypass(_) => Some(format!("{} (bypass)", link.name)),
    };
    link::all().unwrap_or_default().into_iter().filter_map(of).collect()
}

/// Describes an interface while no daemon runs, and what the kernel goes on with there.
pub(super) fn text_without_daemon(link: &Link) -> String {
    let name = &link.name;
    // Users other than root are not told.
    let left = match xdp::left(link.index, Some(name)).unwrap_or(xdp::Failure::Open) {
        xdp::Failure::Open => String::new(),
        xdp::Failure::Closed => format!("its frames are dropped: failure closed (unetmap nic {name} failure open)\n"),
        xdp::Failure::Bypass(_) => {
            format!("the kernel forwards its frames: failure bypass (unetmap nic {name} failure open)\n")
        }
    };
    format!("{name}: not open, no filter: no daemon is running\n{left}")
}

/// Describes the setting that was made.
pub(super) fn change_text(name: &str, failure: &OnFailure) -> String {
    let what = match failure {
        OnFailure::Open => "go to the host's stack".into(),
        OnFailure::Closed => "are dropped".into(),
        OnFailure::Bypass(partner) => format!("are sent by {partner}"),
    };
    format!("{name}: frames that no program takes {what}\n")
}

/// The value as the configuration's file has it; `None`: open.
pub(crate) fn setting(interface: &Value) -> Option<String> {
    let failure = &interface["failure"];
    match failure["action"].as_str()? {
        "open" => None,
        "bypass" => Some(format!("bypass {}", failure["partner"].as_str()?)),
        action => Some(action.into()),
    }
}

/// Formats the setting and its counts; empty while no program is attached.
pub(super) fn state_text(failure: &Value) -> String {
    let Some(action) = failure["action"].as_str() else { return String::new() };
    let action = match &failure["partner"] {
        Value::String(partner) => format!("{action} {partner}"),
        _ => action.into(),
    };
    let [to_stack, dropped, bypassed] = ["to_stack", "dropped", "bypassed"].map(|key| cell(&failure[key]));
    let [left_in_rings, no_room, overtaken] = ["left_in_rings", "no_room", "overtaken"].map(|key| cell(&failure[key]));
    let mut text = format!(
        "frames that no program takes: {action}; {to_stack} to the stack, {dropped} dropped, {bypassed} bypassed\n\
         frames lost with closed sockets: {left_in_rings} left in rings, {no_room} without room\n"
    );
    if let Some(seconds) = failure["bypass"]["seconds"].as_f64() {
        let now = match failure["bypass"]["cause"].as_str() {
            Some("stalled") => ", and does: its program takes no frames",
            Some(_) => ", and does: no program takes its frames",
            None => "",
        };
        text += &format!("bypass: the kernel has forwarded for {seconds:.1} s{now}; {overtaken} frames came late\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_parsed_or_refused() {
        let read = |text: &str| action(&text.split(' ').map(String::from).collect::<Vec<_>>());
        assert_eq!(read("closed"), Ok(NicAction::OnFailure(OnFailure::Closed)));
        assert_eq!(read("bypass eth1"), Ok(NicAction::OnFailure(OnFailure::Bypass("eth1".into()))));
        for bad in ["shut", "open now", "bypass", "bypass a b"] {
            assert!(read(bad).unwrap_err().contains("failure bypass IF"), "{bad}");
        }
    }

    #[test]
    fn the_setting_is_what_the_command_takes() {
        let of = |failure| setting(&json!({ "failure": failure }));
        assert_eq!(of(json!({"action": "open"})), None);
        assert_eq!(of(json!({"action": "closed"})).as_deref(), Some("closed"));
        assert_eq!(of(json!({"action": "bypass", "partner": "b"})).as_deref(), Some("bypass b"));
        assert_eq!(of(json!(null)), None);
    }
}

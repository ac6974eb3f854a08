// SPDX-License-Identifier: BSD-2-Clause
//! The file of a lab: reading it, with the line of each fault.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::{Spanned, Value};
use tool_common::host::file::read_trusted;
use unetmap_suggest::did_you_mean;

use crate::model::{Capture, End, Host, Lab, Link, Switch};

/// Bytes of the longest name of a lab, a host or a switch.
const MAX_NAME: usize = 32;
/// Bytes of the longest name of an interface (`IFNAMSIZ`, less the NUL).
const MAX_INTERFACE: usize = 15;
const HINT: &str = "unetmap-lab(1) has all keys and an example";

/// A table: keys and values in any order, with their places.
type Keys = BTreeMap<Spanned<String>, Spanned<Value>>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: Option<Spanned<String>>,
    #[serde(default)]
    host: BTreeMap<Spanned<String>, Keys>,
    #[serde(default)]
    switch: BTreeMap<Spanned<String>, Keys>,
    #[serde(default)]
    link: Vec<Spanned<Keys>>,
    #[serde(default)]
    capture: Vec<Spanned<Keys>>,
}

/// A fault, and the byte of the file where it is.
struct Fault(usize, String);

fn fault<T>(at: usize, why: impl Into<String>) -> Result<T, Fault> {
    Err(Fault(at, why.into()))
}

/// Reads a file.
///
/// # Errors
/// A sentence that begins with the file, and the line if there is one.
pub(crate) fn read(path: &Path) -> Result<Lab, String> {
    let failed = |why: String| format!("{}: {why}", path.display());
    let whole = std::path::absolute(path).map_err(|e| failed(e.to_string()))?;
    let bytes = read_trusted(&whole, "file of the lab").map_err(failed)?;
    let bytes = bytes.ok_or_else(|| failed("there is no such file".into()))?;
    let text = String::from_utf8(bytes).map_err(|_| failed("this is not UTF-8 text".into()))?;
    parse(&whole, &text).map_err(|(line, why)| format!("{}:{line}: {why}", path.display()))
}

/// Returns the name of the lab that a word of the command line means: a file, or the name.
///
/// # Errors
/// As of [`read`]; or it is neither.
pub(crate) fn name_of(word: &Path) -> Result<String, String> {
    match word.to_str() {
        Some(name) if !word.exists() && is_name(name) => Ok(name.to_owned()),
        _ => read(word).map(|lab| lab.name).map_err(|why| format!("{why} (`unetmap lab ls` lists the names of labs)")),
    }
}

/// Whether it can be the name of a lab, a host or a switch.
pub(crate) fn is_name(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=MAX_NAME).contains(&text.len()) && text.bytes().all(is_allowed) && !text.starts_with('-')
}

/// Parses the text of a file. An error has its line.
fn parse(path: &Path, text: &str) -> Result<Lab, (usize, String)> {
    let line = |at: usize| 1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count();
    let file: File = toml::from_str(text).map_err(|e| {
        let at = e.span().map_or(0, |span| span.start);
        (line(at), format!("{} ({HINT})", e.message().trim().replace('\n', ", ")))
    })?;
    lab(path, text, file, &line).map_err(|Fault(at, why)| (line(at), why))
}

fn lab(path: &Path, text: &str, file: File, line: &dyn Fn(usize) -> usize) -> Result<Lab, Fault> {
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let name = match &file.name {
        Some(name) => named(name, "lab")?,
        None if is_name(stem) => stem.to_owned(),
        None => return fault(0, "the file's name cannot be the lab's: give it one, as in name = \"office\""),
    };
    let mut lab = Lab {
        file: path.into(),
        text: text.into(),
        name,
        hosts: Vec::new(),
        switches: Vec::new(),
        links: Vec::new(),
        captures: Vec::new(),
    };
    // In the order of the file.
    let mut hosts: Vec<_> = file.host.iter().collect();
    hosts.sort_by_key(|(name, _)| name.span().start);
    for (name, keys) in hosts {
        lab.hosts.push(host(name, keys, line)?);
    }
    if lab.hosts.is_empty() {
        return fault(0, format!("it has no host: give each a table, as [host.pc] ({HINT})"));
    }
    for (name, keys) in &file.switch {
        if lab.hosts.iter().any(|host| host.name == *name.get_ref()) {
            return fault(name.span().start, format!("`{}` is the name of a host, too", name.get_ref()));
        }
        unknown(keys, "switch", &[])?;
        lab.switches.push(Switch { name: named(name, "switch")? });
    }
    for (index, written) in file.link.iter().enumerate() {
        let link = link(&lab, index, written, line)?;
        lab.links.push(link);
    }
    for written in &file.capture {
        let capture = capture(&lab, written, line)?;
        lab.links[capture.link].is_captured = true;
        lab.captures.push(capture);
    }
    Ok(lab)
}

fn named(name: &Spanned<String>, what: &str) -> Result<String, Fault> {
    if is_name(name.get_ref()) {
        return Ok(name.get_ref().clone());
    }
    let why = format!(
        "`{}` cannot be the name of a {what}: give at most {MAX_NAME} of a to z, 0 to 9 and -, the first no -",
        name.get_ref()
    );
    fault(name.span().start, why)
}

/// Refuses keys that a table cannot have.
fn unknown(keys: &Keys, what: &str, known: &[&str]) -> Result<(), Fault> {
    let Some(key) = keys.keys().find(|key| !known.contains(&key.get_ref().as_str())) else { return Ok(()) };
    let has = if known.is_empty() { "none".into() } else { known.join(" ") };
    let meant = did_you_mean(key.get_ref(), known.iter().copied());
    fault(key.span().start, format!("a {what} has no key `{}`; it has {has}{meant}", key.get_ref()))
}

/// Returns the value of a key; a fault of `read` begins with the key.
fn value<T>(keys: &Keys, key: &str, read: impl FnOnce(&Value) -> Result<T, String>) -> Result<Option<T>, Fault> {
    let found = keys.iter().find(|(name, _)| name.get_ref() == key);
    let read = found
        .map(|(name, value)| read(value.get_ref()).map_err(|why| Fault(name.span().start, format!("{key}: {why}"))));
    read.transpose()
}

fn texts(value: &Value) -> Result<Vec<String>, String> {
    let all = value.as_array().map(|all| all.iter().map(|one| one.as_str().map(str::to_owned)).collect());
    all.flatten().ok_or_else(|| "it is a list of texts, as in [\"one\", \"other\"]".into())
}

fn text_of(value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) if !text.contains(char::is_control) => Ok(text.clone()),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Float(number) => Ok(number.to_string()),
        _ => Err("it is a text or a number".into()),
    }
}

fn host(name: &Spanned<String>, keys: &Keys, line: &dyn Fn(usize) -> usize) -> Result<Host, Fault> {
    unknown(keys, "host", &["forward", "routes"])?;
    let forward = value(keys, "forward", |value| value.as_bool().ok_or_else(|| "it is true or false".into()))?;
    let routes = value(keys, "routes", |value| match texts(value)? {
        // Each is a line that `ip` reads, and its first word is not to be a command of it.
        routes if routes.iter().any(|route| route.contains(char::is_control) || route.trim().is_empty()) => {
            Err("a route is a line, as in \"default via 10.0.0.1\"".into())
        }
        routes => Ok(routes),
    })?;
    Ok(Host {
        line: line(name.span().start),
        name: named(name, "host")?,
        forward: forward.unwrap_or(false),
        routes: routes.unwrap_or_default(),
    })
}

fn link(lab: &Lab, index: usize, written: &Spanned<Keys>, line: &dyn Fn(usize) -> usize) -> Result<Link, Fault> {
    let (at, keys) = (written.span().start, written.get_ref());
    let options = unetmap_emulate::options();
    let known: Vec<&str> = ["ends"].into_iter().chain(options.iter().map(|(name, _)| &**name)).collect();
    unknown(keys, "link", &known)?;
    let ends = value(keys, "ends", |value| match texts(value)?.try_into() {
        Ok::<[String; 2], _>(ends) => Ok(ends),
        Err(_) => Err("a link has two ends, as in [\"pc 10.0.0.1/24\", \"server:eth1 10.0.0.2/24\"]".into()),
    })?;
    let Some(ends) = ends else { return fault(at, "the link has no ends = [\"HOST[:INTERFACE] [ADDRESS]...\", ...]") };
    let place = keys.iter().find(|(name, _)| name.get_ref() == "ends").map_or(at, |(name, _)| name.span().start);
    let first = end(lab, &ends[0], None).map_err(|why| Fault(place, format!("ends: {why}")))?;
    let second = end(lab, &ends[1], Some(&first)).map_err(|why| Fault(place, format!("ends: {why}")))?;
    if let (End::Switch(one), End::Switch(other)) = (&first, &second)
        && one == other
    {
        return fault(place, "ends: a link of a switch to itself");
    }
    let mut emulation = Vec::new();
    for (name, takes_value) in &options {
        let set = value(keys, name, |value| match (takes_value, value) {
            (false, Value::Boolean(set)) => Ok((*set).then_some(None)),
            (false, _) => Err("it is true or false".into()),
            (true, value) => Ok(Some(Some(of_option(lab, name, text_of(value)?)))),
        })?;
        emulation.extend(set.flatten().map(|value| (name.clone(), value)));
    }
    if let Err(why) = unetmap_emulate::check_options(&words(&emulation)) {
        let key = keys.keys().find(|key| why.contains(&format!("--{}", key.get_ref())));
        return fault(key.map_or(at, |key| key.span().start), why);
    }
    Ok(Link { line: line(place), index, ends: [first, second], emulation, is_captured: false })
}

/// The value of an option of `unetmap emulate`: of one that names a file, relative to the lab's file.
fn of_option(lab: &Lab, name: &str, value: String) -> String {
    match name.starts_with("trace") {
        true => beside(lab, &value).to_string_lossy().into_owned(),
        false => value,
    }
}

/// The words of a command line.
pub(crate) fn words(options: &[(String, Option<String>)]) -> Vec<String> {
    options.iter().flat_map(|(name, value)| [Some(format!("--{name}")), value.clone()]).flatten().collect()
}

fn beside(lab: &Lab, path: &str) -> PathBuf {
    lab.file.parent().unwrap_or(Path::new("/")).join(path)
}

/// Parses an end, `HOST[:INTERFACE] [ADDRESS/BITS]...`, or the name of a switch. `other` is the other end, if that is
/// known already.
fn end(lab: &Lab, text: &str, other: Option<&End>) -> Result<End, String> {
    let mut words = text.split_whitespace();
    let place = words.next().ok_or("an end is the name of a host or a switch")?;
    let (name, interface) = place.split_once(':').map_or((place, None), |(name, interface)| (name, Some(interface)));
    let addresses: Vec<String> = words.map(str::to_owned).collect();
    if let Some(switch) = lab.switches.iter().position(|switch| switch.name == name) {
        return match (interface, &*addresses) {
            (None, []) => Ok(End::Switch(switch)),
            _ => Err(format!("`{name}` is a switch, which has no interfaces and no addresses")),
        };
    }
    let Some(host) = lab.hosts.iter().position(|host| host.name == name) else {
        let all = lab.hosts.iter().map(|host| &*host.name).chain(lab.switches.iter().map(|switch| &*switch.name));
        return Err(format!("there is no host or switch `{name}`{}", did_you_mean(name, all)));
    };
    let mut used: Vec<&str> = lab.interfaces(host).map(|(_, _, interface, _)| interface).collect();
    used.extend(other.and_then(|other| match other {
        End::Host { host: same, interface, .. } if *same == host => Some(&**interface),
        _ => None,
    }));
    let interface = match interface {
        Some(interface) => interface_name(interface, &used)?,
        None => (0..).map(|n| format!("eth{n}")).find(|free| !used.contains(&&**free)).expect("a number is free"),
    };
    match addresses.iter().find(|address| !is_address(address)) {
        Some(wrong) => Err(format!("`{wrong}` is no address with its length, as 10.0.0.1/24 or fd00::1/64")),
        None => Ok(End::Host { host, interface, addresses }),
    }
}

fn interface_name(text: &str, used: &[&str]) -> Result<String, String> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let good = (1..=MAX_INTERFACE).contains(&text.len()) && text.bytes().all(is_allowed);
    match good && ![".", "..", "lo", "all", "default"].contains(&text) && !text.starts_with('-') {
        false => Err(format!("`{text}` cannot be the name of an interface: give at most {MAX_INTERFACE} letters")),
        true if used.contains(&text) => Err(format!("the host has an interface `{text}` already")),
        true => Ok(text.into()),
    }
}

fn is_address(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    let Ok(address) = address.parse::<IpAddr>() else { return false };
    let most = if address.is_ipv4() { 32 } else { 128 };
    bits.bytes().all(|byte| byte.is_ascii_digit()) && bits.parse::<u8>().is_ok_and(|bits| bits <= most)
}

fn capture(lab: &Lab, written: &Spanned<Keys>, line: &dyn Fn(usize) -> usize) -> Result<Capture, Fault> {
    let (at, keys) = (written.span().start, written.get_ref());
    unknown(keys, "capture", &["at", "file", "filter", "snaplen"])?;
    let place = value(keys, "at", |value| {
        let text = value.as_str().ok_or("it is a text, as in \"pc:eth0\"")?;
        let all = lab.links.iter().flat_map(|link| link.ends.iter().enumerate().map(move |(i, end)| (link, i, end)));
        let hosts = all.filter(|(.., end)| matches!(end, End::Host { .. }));
        let is_meant = |name: &str| name == text || name.split(':').next() == Some(text);
        let mut found = hosts.clone().filter(|(.., end)| is_meant(&lab.end_name(end)));
        match (found.next(), found.next()) {
            (Some((link, end, _)), None) => Ok((link.index, end)),
            (Some(_), Some(_)) => Err(format!("`{text}` has several interfaces: give one, as {text}:eth0")),
            (None, _) => {
                let names: Vec<String> = hosts.map(|(.., end)| lab.end_name(end)).collect();
                let meant = did_you_mean(text, names.iter().map(String::as_str));
                Err(format!("no link has an end `{text}`{meant}"))
            }
        }
    })?;
    let file = value(keys, "file", |value| Ok(beside(lab, &text_of(value)?)))?;
    let (Some((link, end)), Some(file)) = (place, file) else {
        return fault(at, "a capture has at = \"HOST[:INTERFACE]\" and file = \"FILE.pcapng\"");
    };
    let (filter, snaplen) = (value(keys, "filter", text_of)?, value(keys, "snaplen", text_of)?);
    Ok(Capture { line: line(at), link, end, file, filter, snaplen })
}

/// The lab of a text that has no fault.
#[cfg(test)]
pub(crate) fn parsed(text: &str) -> Lab {
    parse(Path::new("/tmp/l.toml"), text).unwrap_or_else(|why| panic!("{why:?}"))
}

#[cfg(test)]
mod tests;

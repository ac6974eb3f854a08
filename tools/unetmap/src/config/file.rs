// SPDX-License-Identifier: BSD-2-Clause
//! The file: reading it with the line of each fault.

use std::path::Path;

use toml_edit::{Document, Item, TableLike};
use unetmap_core::control::trusted_file;
use unetmap_suggest::did_you_mean;

use super::edit::edit;
use super::{INTERFACE_KEYS, Key, Setting};
use crate::vale::PORT_KEYS;

const SECTIONS: &str = "the sections are [[persistent]], [switch.vale0], [port.\"vale0:a\"] and [interface.eth0]";

/// A fault, and where it is.
struct Fault {
    /// Offset in the file.
    at: usize,
    why: String,
}

fn fault<T>(item: &Item, why: impl Into<String>) -> Result<T, Fault> {
    Err(Fault { at: item.span().map_or(0, |span| span.start), why: why.into() })
}

/// Reads the file's settings, in the order in which they are made; `None` if there is no file.
///
/// # Errors
/// A sentence that begins with the file, and the line if there is one. A file that other users can write is refused, as
/// what it says is done with the privileges of this one.
pub(super) fn read(path: &Path) -> Result<Option<Vec<Setting>>, String> {
    read_text(path)?.map(|text| settings(path, &text)).transpose()
}

/// Reads the file's text, with the checks of [`read`].
pub(super) fn read_text(path: &Path) -> Result<Option<String>, String> {
    let failed = |why: String| format!("{}: {why}", path.display());
    let whole = std::path::absolute(path).map_err(|e| failed(e.to_string()))?;
    let us = rustix::process::geteuid().as_raw();
    let Some(bytes) = trusted_file::read(&whole, us, "file of switches").map_err(failed)? else { return Ok(None) };
    String::from_utf8(bytes).map(Some).map_err(|e| {
        let line = e.as_bytes()[..e.utf8_error().valid_up_to()].iter().filter(|byte| **byte == b'\n').count() + 1;
        format!("{}:{line}: this is not UTF-8 text; save the file as such", path.display())
    })
}

/// The settings of the text of a file.
pub(super) fn settings(path: &Path, text: &str) -> Result<Vec<Setting>, String> {
    parse(text).map_err(|(line, why)| format!("{}:{line}: {why}", path.display()))
}

/// Returns the interfaces of which there are settings.
pub(super) fn interfaces(settings: &[Setting]) -> Vec<String> {
    let names = settings.iter().filter_map(|setting| match setting {
        Setting::Interface { name, .. } => Some(name.clone()),
        _ => None,
    });
    names.collect()
}

/// Parses a file. An error has its line.
pub(super) fn parse(text: &str) -> Result<Vec<Setting>, (usize, String)> {
    let line = |at: usize| text.get(..at).map_or(1, |before| before.matches('\n').count() + 1);
    let document = Document::parse(text).map_err(|e| {
        let at = e.span().map_or(0, |span| span.start);
        (line(at), e.message().trim().replace('\n', ", "))
    })?;
    let mut settings = Vec::new();
    for (section, item) in document.iter() {
        let add = match section {
            "persistent" => persistent(item),
            "switch" => named(item, of_switch),
            "port" => named(item, |name, keys| {
                of_keys(keys, &PORT_KEYS, |key, value| Setting::Port { port: name.into(), key, value })
            }),
            "interface" => named(item, |name, keys| {
                of_keys(keys, &INTERFACE_KEYS, |key, value| Setting::Interface { name: name.into(), key, value })
            }),
            other => {
                let meant = did_you_mean(other, ["persistent", "switch", "port", "interface"]);
                fault(item, format!("there is no section `{other}`; {SECTIONS}{meant}"))
            }
        };
        settings.extend(add.map_err(|Fault { at, why }| (line(at), why))?);
    }
    settings.sort();
    Ok(settings)
}

/// Reads the tables in `item`, each with its name.
fn named(
    item: &Item,
    read: impl Fn(&str, &dyn TableLike) -> Result<Vec<Setting>, Fault>,
) -> Result<Vec<Setting>, Fault> {
    let Some(tables) = item.as_table_like() else { return fault(item, format!("this is no section; {SECTIONS}")) };
    let mut settings = Vec::new();
    for (name, item) in tables.iter() {
        let Some(keys) = item.as_table_like() else { return fault(item, format!("this is no section; {SECTIONS}")) };
        let of_table = read(name, keys);
        // A fault of the name has no place of its own.
        settings.extend(of_table.map_err(|fault| match fault.at {
            0 => Fault { at: item.span().map_or(0, |span| span.start), ..fault },
            _ => fault,
        })?);
    }
    Ok(settings)
}

fn persistent(item: &Item) -> Result<Vec<Setting>, Fault> {
    let Some(tables) = item.as_array_of_tables() else { return fault(item, format!("this is no list; {SECTIONS}")) };
    let mut settings = Vec::new();
    for table in tables {
        let (mut name, mut config) = (None, [0; 4]);
        for (key, item) in table {
            match key {
                "name" => name = item.as_str(),
                "config" => {
                    let words = item.as_str().unwrap_or("").split(',').map(|word| word.trim().parse::<u32>());
                    let numbers = words.collect::<Result<Vec<u32>, _>>().unwrap_or_default();
                    if !(1..=4).contains(&numbers.len()) {
                        return fault(
                            item,
                            "give config = \"TX_SLOTS,RX_SLOTS,TX_RINGS,RX_RINGS\", or its first numbers",
                        );
                    }
                    config[..numbers.len()].copy_from_slice(&numbers);
                }
                _ => {
                    let meant = did_you_mean(key, ["name", "config"]);
                    return fault(item, format!("a persistent port has no `{key}`, but name and config{meant}"));
                }
            }
        }
        let Some(name) = name else {
            let at = table.span().map_or(0, |span| span.start);
            return Err(Fault { at, why: "a persistent port needs a name = \"...\"".into() });
        };
        settings.push(Setting::Persistent { name: name.into(), config });
    }
    Ok(settings)
}

fn of_switch(switch: &str, keys: &dyn TableLike) -> Result<Vec<Setting>, Fault> {
    if !switch.starts_with("vale") || switch.contains(':') {
        return Err(Fault { at: 0, why: format!("`{switch}` is not the name of a switch, as vale0") });
    }
    let mut settings = Vec::new();
    for (key, item) in keys.iter() {
        match key {
            "age" => {
                let seconds = word(item)?;
                settings.push(normal(item, Setting::Age { switch: switch.into(), seconds })?);
            }
            "attach" | "attach-host" => {
                let Some(list) = item.as_array() else { return fault(item, format!("give {key} = [\"IF\", ...]")) };
                for name in list {
                    let Some(name) = name.as_str() else { return fault(item, "an interface has a name in quotes") };
                    let host = key == "attach-host";
                    settings.push(Setting::Attach { switch: switch.into(), interface: name.into(), host });
                }
            }
            _ => {
                let meant = did_you_mean(key, ["age", "attach", "attach-host"]);
                return fault(item, format!("a switch has no `{key}`, but age, attach and attach-host{meant}"));
            }
        }
    }
    Ok(settings)
}

fn of_keys(
    table: &dyn TableLike,
    keys: &[Key],
    setting: impl Fn(&'static str, String) -> Setting,
) -> Result<Vec<Setting>, Fault> {
    let mut settings = Vec::new();
    for (key, item) in table.iter() {
        let Some(Key { name: key, .. }) = keys.iter().find(|known| known.name == key) else {
            let known: Vec<&str> = keys.iter().map(|known| known.name).collect();
            let meant = did_you_mean(key, known.iter().copied());
            return fault(item, format!("there is no `{key}` here, but {}{meant}", known.join(", ")));
        };
        settings.push(normal(item, setting(key, word(item)?))?);
    }
    Ok(settings)
}

/// Reads a value: a number, or a text.
fn word(item: &Item) -> Result<String, Fault> {
    match (item.as_str(), item.as_integer()) {
        (Some("off"), _) => fault(item, "`off` is what is not in the file: remove the line"),
        (Some(text), _) => Ok(text.into()),
        (_, Some(number)) => Ok(number.to_string()),
        _ => fault(item, "give a number, or a text in quotes"),
    }
}

/// Brings a setting into the form in which the daemon's state is read, with the checks of its command.
fn normal(item: &Item, setting: Setting) -> Result<Setting, Fault> {
    let form = crate::normal_form(&setting.words());
    match (form, setting) {
        (Err(why), _) => fault(item, why),
        (Ok(seconds), Setting::Age { switch, .. }) => Ok(Setting::Age { switch, seconds }),
        (Ok(value), Setting::Port { port, key, .. }) => Ok(Setting::Port { port, key, value }),
        (Ok(value), Setting::Interface { name, key, .. }) => Ok(Setting::Interface { name, key, value }),
        (Ok(_), other) => Ok(other),
    }
}

/// The settings in the file's format.
pub(super) fn text(settings: &[Setting]) -> Result<String, String> {
    edit("", settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
# Of the lab.
[[persistent]]
name = \"v0\"
config = \"1024\"

[switch.vale0]
age = \"5min\"
attach = [\"v0\"] # twice
attach-host = [\"eth1\"]

[port.\"vale0:a\"]
trunk = \"20-30,10\"
rate-in = \"0.01Mpps 100Mbit\"
filter-in = \"udp port 53\"

[interface.eth1]
busy-poll = 50
header = 12
";

    fn commands(text: &str) -> Vec<String> {
        parse(text).unwrap().iter().map(Setting::to_string).collect()
    }

    #[test]
    fn a_file_is_a_list_of_commands_in_their_normal_form() {
        assert_eq!(
            commands(FILE),
            [
                "vale-ctl -n v0 -C 1024,0,0,0",
                "unetmap vale set vale0 age 300",
                "unetmap vale port vale0:a filter in 'udp port 53'",
                "unetmap vale port vale0:a rate in 10kpps 100Mbit",
                "unetmap vale port vale0:a trunk 10,20-30",
                "unetmap nic eth1 busy-poll 50 64",
                "unetmap nic eth1 header 12",
                "vale-ctl -h vale0:eth1",
                "vale-ctl -a vale0:v0",
            ]
        );
    }

    #[test]
    fn faults_have_their_line() {
        for (text, line, part) in [
            ("x = 1", 1, "no section `x`"),
            ("[prot.\"vale0:a\"]", 1, "; did you mean `port`?"),
            ("[[persistent]]\nname = \"v\"\nconfg = \"1\"", 3, "; did you mean `config`?"),
            ("[switch.vale0]\natach = []", 2, "; did you mean `attach`?"),
            ("[port.\"vale0:a\"]\nrate-on = 1", 2, "; did you mean `rate-in`"),
            ("[switch]\nvale0 = 1", 2, "no section"),
            ("[switch.eth0]\nage = 1", 1, "not the name of a switch"),
            ("[switch.vale0]\n\nage = \"x\"", 3, "from 1 to"),
            ("[switch.vale0]\nage = \"off\"", 2, "remove the line"),
            ("[switch.vale0]\nattach = \"a\"", 2, "give attach = ["),
            ("[port.\"vale0:a\"]\naccess = 4095", 2, "1 to 4094"),
            ("[port.\"vale0:a\"]\nvlan = 1", 2, "no `vlan` here, but access, trunk"),
            ("[port.\"vale0:a\"]\nfilter-in = \"udp prot 1\"", 2, "does not compile"),
            ("[interface.eth0]\nheader = true", 2, "a number, or a text"),
            ("[[persistent]]\nconfig = \"1\"", 1, "needs a name"),
            ("[[persistent]]\nname = \"v\"\nconfig = \"1,2,3,4,5\"", 3, "TX_SLOTS"),
            ("a = ", 1, ""),
        ] {
            let (at, why) = parse(text).unwrap_err();
            assert!(at == line && why.contains(part), "{text:?}: line {at}: {why}");
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let settings = parse(FILE).unwrap();
        assert_eq!(parse(&text(&settings).unwrap()).unwrap(), settings, "{}", text(&settings).unwrap());
    }
}

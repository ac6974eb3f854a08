// SPDX-License-Identifier: BSD-2-Clause
//! The file: reading it with the line of each fault, and writing the daemon's state to it.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use toml_edit::{Array, ArrayOfTables, Document, DocumentMut, Item, Table, TableLike, Value, value};

use super::{INTERFACE_KEYS, PORT_KEYS, Setting};

/// Longest file, bytes: far more than the settings that a daemon takes.
const MAX_BYTES: u64 = 1 << 20;
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

/// Reads the file's settings, in the order in which they are made.
///
/// # Errors
/// A sentence that begins with the file, and the line if there is one.
pub(super) fn read(path: &Path) -> Result<Vec<Setting>, String> {
    let failed = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    let bytes = fs::metadata(path).map_err(|e| failed(&e))?.len();
    if bytes > MAX_BYTES {
        return Err(failed(&format!("it has {bytes} bytes, at most {MAX_BYTES} are read")));
    }
    parse(&fs::read_to_string(path).map_err(|e| failed(&e))?)
        .map_err(|(line, why)| format!("{}:{line}: {why}", path.display()))
}

/// Returns the interfaces of which there are settings.
pub(super) fn interfaces(settings: &[Setting]) -> Vec<String> {
    let names = settings.iter().filter_map(|setting| match setting {
        Setting::Interface { name, .. } => Some(name.clone()),
        _ => None,
    });
    names.collect()
}

fn parse(text: &str) -> Result<Vec<Setting>, (usize, String)> {
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
            other => fault(item, format!("there is no section `{other}`; {SECTIONS}")),
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
                _ => return fault(item, format!("a persistent port has no `{key}`, but name and config")),
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
            _ => return fault(item, format!("a switch has no `{key}`, but age, attach and attach-host")),
        }
    }
    if !switch.starts_with("vale") || switch.contains(':') {
        return Err(Fault { at: 0, why: format!("`{switch}` is not the name of a switch, as vale0") });
    }
    Ok(settings)
}

fn of_keys(
    table: &dyn TableLike,
    keys: &[(&'static str, &str)],
    setting: impl Fn(&'static str, String) -> Setting,
) -> Result<Vec<Setting>, Fault> {
    let mut settings = Vec::new();
    for (key, item) in table.iter() {
        let Some((key, _)) = keys.iter().find(|(known, _)| *known == key) else {
            let known: Vec<&str> = keys.iter().map(|(known, _)| *known).collect();
            return fault(item, format!("there is no `{key}` here, but {}", known.join(", ")));
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
pub(super) fn text(settings: &[Setting]) -> String {
    let mut document = DocumentMut::new();
    put(&mut document, settings, None);
    document.to_string()
}

/// Writes the settings into the file, which need not exist: all, or those of one switch, port or interface.
///
/// # Errors
/// A sentence that begins with the file. The file is then as it was.
pub(super) fn write(path: &Path, settings: &[Setting], subject: Option<&str>) -> Result<(), String> {
    let failed = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    let before = match fs::read_to_string(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => String::new(),
        text => text.map_err(|e| failed(&e))?,
    };
    parse(&before).map_err(|(line, why)| format!("{}:{line}: {why}", path.display()))?;
    let mut document: DocumentMut = before.parse().map_err(|e: toml_edit::TomlError| failed(&e))?;
    put(&mut document, settings, subject);
    // A new file takes the place of the old one at once, so that no reader finds half of it.
    let new = path.with_extension("toml.new");
    let write = || {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let mode = fs::metadata(path).map_or(0o644, |old| old.permissions().mode() & 0o777);
        let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&new)?;
        file.write_all(document.to_string().as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, path)
    };
    write().map_err(|e: std::io::Error| {
        let _ = fs::remove_file(&new);
        failed(&e)
    })
}

/// Replaces what the document says of `subject`, or of everything. What stays keeps its place and its comments.
fn put(document: &mut DocumentMut, settings: &[Setting], subject: Option<&str>) {
    let concerns = |name: &str| subject.is_none_or(|subject| subject == name);
    for section in ["switch", "port", "interface"] {
        let Some(tables) = document.get_mut(section).and_then(Item::as_table_like_mut) else { continue };
        let names: Vec<String> = tables.iter().map(|(name, _)| name.to_owned()).filter(|name| concerns(name)).collect();
        for name in names {
            let Some(table) = tables.get_mut(&name).and_then(Item::as_table_like_mut) else { continue };
            let wanted = settings.iter().filter(|setting| of(setting) == Some((section, &name)));
            let wanted: Vec<&str> = wanted.map(key_of).collect();
            let gone = table.iter().map(|(key, _)| key.to_owned()).filter(|key| !wanted.contains(&key.as_str()));
            gone.collect::<Vec<_>>().iter().for_each(|key| drop(table.remove(key)));
            if wanted.is_empty() {
                tables.remove(&name);
            }
        }
    }
    if subject.is_none() {
        put_persistent(document, settings);
    }
    for setting in settings {
        match setting {
            Setting::Age { switch, seconds } if concerns(switch) => {
                set(document, ("switch", switch), "age", number_or_text(seconds));
            }
            Setting::Attach { switch, interface, host } if concerns(switch) => {
                let alike = settings.iter().filter_map(|other| match other {
                    Setting::Attach { switch: of, interface, host: with } if (of, with) == (switch, host) => {
                        Some(interface.as_str())
                    }
                    _ => None,
                });
                let names: Vec<&str> = alike.collect();
                if names.first() == Some(&interface.as_str()) {
                    set_list(document, switch, key_of(setting), &names);
                }
            }
            Setting::Port { port, key, value } if concerns(port) => {
                set(document, ("port", port), key, number_or_text(value));
            }
            Setting::Interface { name, key, value } if concerns(name) => {
                set(document, ("interface", name), key, number_or_text(value));
            }
            _ => {}
        }
    }
}

/// Replaces the persistent ports; one that has the numbers which the document asks for stays as it is.
fn put_persistent(document: &mut DocumentMut, settings: &[Setting]) {
    let asked: Vec<Setting> = document.get("persistent").and_then(|item| persistent(item).ok()).unwrap_or_default();
    let is_met = |asked: &Setting| settings.iter().any(|present| asked.is_met_by(present));
    let list = document.get_mut("persistent").and_then(Item::as_array_of_tables_mut);
    if let Some(list) = list {
        let mut kept = asked.iter().map(is_met);
        list.retain(|_| kept.next().unwrap_or(false));
        if list.is_empty() {
            document.remove("persistent");
        }
    }
    for setting in settings {
        let Setting::Persistent { name, config } = setting else { continue };
        if asked.iter().any(|asked| asked.is_met_by(setting)) {
            continue;
        }
        let mut table = Table::new();
        table["name"] = value(name);
        let numbers: Vec<String> = config.iter().map(u32::to_string).collect();
        table["config"] = value(numbers.join(","));
        let list = document.entry("persistent").or_insert(Item::ArrayOfTables(ArrayOfTables::new()));
        if let Some(list) = list.as_array_of_tables_mut() {
            list.push(table);
        }
    }
}

/// The section of a setting, and the name in it.
fn of(setting: &Setting) -> Option<(&'static str, &String)> {
    match setting {
        Setting::Persistent { .. } => None,
        Setting::Age { switch, .. } | Setting::Attach { switch, .. } => Some(("switch", switch)),
        Setting::Port { port, .. } => Some(("port", port)),
        Setting::Interface { name, .. } => Some(("interface", name)),
    }
}

/// The key of a setting in its section.
fn key_of(setting: &Setting) -> &'static str {
    match setting {
        Setting::Persistent { .. } => "name",
        Setting::Age { .. } => "age",
        Setting::Attach { host: false, .. } => "attach",
        Setting::Attach { host: true, .. } => "attach-host",
        Setting::Port { key, .. } | Setting::Interface { key, .. } => key,
    }
}

fn number_or_text(text: &str) -> Value {
    text.parse::<i64>().map_or_else(|_| text.into(), Value::from)
}

/// Sets a key, whose comment stays.
fn set(document: &mut DocumentMut, (section, name): (&str, &str), key: &str, mut of: Value) {
    let table = table(document, section, name);
    match table.get_mut(key).and_then(Item::as_value_mut) {
        Some(old) => {
            *of.decor_mut() = old.decor().clone();
            *old = of;
        }
        None => _ = table.insert(key, value(of)),
    }
}

/// Sets a list of interfaces of a switch. One that has the same names stays as it is.
fn set_list(document: &mut DocumentMut, switch: &str, key: &str, names: &[&str]) {
    let old = table(document, "switch", switch).get(key).and_then(Item::as_array);
    let mut found: Vec<&str> = old.into_iter().flatten().filter_map(Value::as_str).collect();
    let mut wanted = names.to_vec();
    found.sort_unstable();
    wanted.sort_unstable();
    if found != wanted {
        set(document, ("switch", switch), key, names.iter().copied().collect::<Array>().into());
    }
}

/// Finds or makes `[section.name]`.
fn table<'a>(document: &'a mut DocumentMut, section: &str, name: &str) -> &'a mut dyn TableLike {
    let mut parent = Table::new();
    parent.set_implicit(true);
    let tables = document.entry(section).or_insert(Item::Table(parent));
    if !tables.is_table_like() {
        *tables = Item::Table(Table::new());
    }
    tables[name].or_insert(Item::Table(Table::new())).as_table_like_mut().expect("a table, as the file was checked")
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
        assert_eq!(parse(&text(&settings)).unwrap(), settings, "{}", text(&settings));
    }

    #[test]
    fn what_stays_keeps_its_place_and_its_comments() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("switches.toml");
        let file = "\
# Of the lab.
[[persistent]]
name = \"v0\" # the first
config = \"1024\"

[[persistent]]
name = \"gone\"

[port.\"vale0:a\"]
storm = \"1k\" # of each kind
access = 7

# Of the office.
[switch.vale0]
attach = [\"v0\", \"eth2\"] # both
age = 300 # seconds
";
        fs::write(&path, file).unwrap();
        let mut settings = parse(file).unwrap();
        // As the daemon has it: with all numbers.
        settings.retain(|setting| !matches!(setting, Setting::Persistent { .. }));
        settings.push(Setting::Persistent { name: "v0".into(), config: [1024, 256, 1, 1] });
        settings.push(Setting::Persistent { name: "v1".into(), config: [512; 4] });
        for setting in &mut settings {
            match setting {
                Setting::Age { seconds, .. } => *seconds = "60".into(),
                Setting::Port { key: "access", value, .. } => *value = "8".into(),
                _ => {}
            }
        }
        write(&path, &settings, None).unwrap();
        let after = fs::read_to_string(&path).unwrap();
        let expected = file
            .replace(
                "[[persistent]]\nname = \"gone\"\n",
                "[[persistent]]\nname = \"v1\"\nconfig = \"512,512,512,512\"\n",
            )
            .replace("age = 300 #", "age = 60 #")
            .replace("access = 7", "access = 8");
        assert_eq!(after, expected);
        settings.retain(|setting| !matches!(setting, Setting::Attach { interface, .. } if interface == "eth2"));
        write(&path, &settings, None).unwrap();
        assert!(fs::read_to_string(&path).unwrap().contains("attach = [\"v0\"] # both"));
    }

    #[test]
    fn one_subject_is_replaced_and_comments_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/switches.toml");
        write(&path, &[], None).unwrap();
        fs::write(&path, FILE).unwrap();
        let now = [Setting::Port { port: "vale0:a".into(), key: "access", value: "7".into() }];
        write(&path, &now, Some("vale0:a")).unwrap();
        let after = fs::read_to_string(&path).unwrap();
        assert!(after.contains("# Of the lab.") && after.contains("# twice") && !after.contains("trunk"), "{after}");
        assert!(commands(&after).contains(&"unetmap vale port vale0:a access 7".into()), "{after}");
        assert_eq!(commands(&after).len(), 7);
        write(&path, &[], None).unwrap();
        assert_eq!(commands(&fs::read_to_string(&path).unwrap()).len(), 0);
        fs::write(&path, "x = 1").unwrap();
        assert!(write(&path, &now, None).unwrap_err().contains("toml:1: there is no section"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "x = 1");
    }
}

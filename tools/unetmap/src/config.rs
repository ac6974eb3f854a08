// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap config`: switches, persistent ports and settings in a file, from which they are made again.

mod edit;
mod file;
mod state;
mod store;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use tool_common::link;
use unetmap::abi::printable::word;
use unetmap::switch::{self, AttachOptions, NewPort};
use unetmap_core::control::nic::Way;

use crate::nic::failure;
use crate::vale::{PORT_KEYS, SERVED_KEYS, VLAN_KEYS};
use store::Locked;

/// Make switches, persistent ports and settings as a file says, or write them to it.
///
/// The service applies the file when it starts (unetmap-switches(5)).
#[derive(Debug, Args)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    action: Action,

    /// The file [default: UNETMAP_SWITCHES, else /etc/unetmap/switches.toml, which for users other than root is
    /// ~/.config/unetmap/switches.toml]
    #[arg(short, long, value_name = "FILE", global = true)]
    file: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, Subcommand)]
enum Action {
    /// Check the file, without a daemon
    Check,
    /// Make what the file says; what it does not name stays as it is
    Apply {
        /// No file is no fault
        #[arg(long)]
        if_present: bool,
    },
    /// Print the commands that apply would run (+), and those that made what the file lacks (-); exit status 1 if any
    Diff {
        /// Print one JSON object: file, missing, extra
        #[arg(long)]
        json: bool,
    },
    /// Print the present state in the file's format
    Show,
    /// Write the present state to the file; comments stay, and the former file is kept as FILE~
    Save {
        /// Remove the entries of what does not exist now; otherwise they are listed and stay
        #[arg(short, long)]
        yes: bool,
    },
}

/// The time from its start in which `apply` tries again what fails. The kernel removes the persistent ports of a daemon
/// that was killed some time after its end, and interfaces appear some time after the machine has started.
const RETRY: Duration = Duration::from_secs(3);
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// A key of the file: the words of the command that sets it, and its value in the daemon's description of its subject.
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) words: &'static str,
    pub(crate) value: fn(&Value) -> Option<String>,
}

/// Settings of interfaces, for `unetmap nic`.
const INTERFACE_KEYS: [Key; 5] = [
    Key { name: "filter", words: "filter", value: |interface| text(&interface["filter"]["expression"]) },
    Key {
        name: "busy-poll",
        words: "busy-poll",
        value: |interface| {
            let [usec, budget] = ["usec", "budget"].map(|of| interface["busy_poll"][of].as_u64());
            Some(format!("{} {}", usec?, budget?))
        },
    },
    Key {
        name: "way",
        words: "way",
        value: |interface| text(&interface["way"]).filter(|way| way != Way::Auto.as_str()),
    },
    Key { name: "failure", words: "failure", value: failure::setting },
    Key { name: "header", words: "header", value: |interface| text(&interface["header"]).filter(|bytes| bytes != "0") },
];

/// Returns a value as text; `None`: there is none.
pub(crate) fn text(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

/// One thing that the file can say, in its normal form. The order is that in which they are made: settings before
/// attachments, so that no packet passes without them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Setting {
    /// `config`: numbers as `vale-ctl -C` has them, 0 for the default.
    Persistent {
        name: String,
        config: [u32; 4],
    },
    Age {
        switch: String,
        seconds: String,
    },
    Port {
        port: String,
        key: &'static str,
        value: String,
    },
    Interface {
        name: String,
        key: &'static str,
        value: String,
    },
    Attach {
        switch: String,
        interface: String,
        host: bool,
    },
}

/// The command that makes it.
impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Setting::Persistent { name, config: [0, 0, 0, 0] } => write!(f, "vale-ctl -n {name}"),
            Setting::Persistent { name, config: [a, b, c, d] } => write!(f, "vale-ctl -n {name} -C {a},{b},{c},{d}"),
            Setting::Attach { switch, interface, host } => {
                write!(f, "vale-ctl {} {switch}:{interface}", if *host { "-h" } else { "-a" })
            }
            other => {
                let words = other.words();
                let is_plain =
                    |word: &str| !word.contains(|c: char| c.is_whitespace() || "'\"\\$`;&|<>()*?".contains(c));
                let quoted = words.iter().map(|of| match is_plain(of) {
                    true => word(of).into_owned(),
                    false => format!("'{}'", word(&of.replace('\'', "'\\''"))),
                });
                write!(f, "unetmap {}", quoted.collect::<Vec<_>>().join(" "))
            }
        }
    }
}

impl Setting {
    /// The words after `unetmap` of the command that makes it; none if it is a command of vale-ctl.
    fn words(&self) -> Vec<String> {
        let split = |words: &str| words.split_whitespace().map(String::from).collect::<Vec<_>>();
        let of_key = |keys: &[Key], key: &str, value: &str| {
            let command = keys.iter().find(|known| known.name == key).map_or("", |known| known.words);
            // Expressions are one word, so that Display shows them quoted.
            let values = if key.starts_with("filter") { vec![value.to_owned()] } else { split(value) };
            [split(command), values].concat()
        };
        match self {
            Setting::Age { switch, seconds } => ["vale", "set", switch, "age", seconds].map(String::from).to_vec(),
            Setting::Port { port, key, value } => {
                [["vale", "port", port].map(String::from).to_vec(), of_key(&PORT_KEYS, key, value)].concat()
            }
            Setting::Interface { name, key, value } => {
                [["nic", name].map(String::from).to_vec(), of_key(&INTERFACE_KEYS, key, value)].concat()
            }
            Setting::Persistent { .. } | Setting::Attach { .. } => Vec::new(),
        }
    }

    /// Whether `present` is what this asks for: 0 in a shape is any number.
    fn is_met_by(&self, present: &Setting) -> bool {
        match (self, present) {
            (Setting::Persistent { name, config }, Setting::Persistent { name: other, config: has }) => {
                name == other && config.iter().zip(has).all(|(asked, has)| *asked == 0 || asked == has)
            }
            _ => self == present,
        }
    }

    /// Where the file says it: section, name, key, and in a list the interface.
    fn place(&self) -> [&str; 4] {
        match self {
            Setting::Persistent { name, .. } => ["persistent", name, "name", ""],
            Setting::Age { switch, .. } => ["switch", switch, "age", ""],
            Setting::Attach { switch, interface, host: false } => ["switch", switch, "attach", interface],
            Setting::Attach { switch, interface, host: true } => ["switch", switch, "attach-host", interface],
            Setting::Port { port, key, .. } => ["port", port, key, ""],
            Setting::Interface { name, key, .. } => ["interface", name, key, ""],
        }
    }

    /// Whether the two cannot both be so: then `present` is another value of this.
    fn is_replaced_by(&self, present: &Setting) -> bool {
        let both_in = |keys: &[&str], a: &str, b: &str| keys.contains(&a) && keys.contains(&b);
        match (self, present) {
            (Setting::Attach { interface, .. }, Setting::Attach { interface: other, .. }) => interface == other,
            (Setting::Port { port, key, .. }, Setting::Port { port: other, key: with, .. }) => {
                port == other && (key == with || both_in(&VLAN_KEYS, key, with) || both_in(&SERVED_KEYS, key, with))
            }
            _ => self.place() == present.place(),
        }
    }

    fn make(&self) -> Result<(), String> {
        let done = match self {
            Setting::Persistent { name, config: [tx_slots, rx_slots, tx_rings, rx_rings] } => {
                let mut shape = NewPort::default();
                (shape.tx_slots, shape.rx_slots) = (*tx_slots, *rx_slots);
                let rings = |n: u32| u16::try_from(n).map_err(|_| format!("{n} rings are too many"));
                (shape.tx_rings, shape.rx_rings) = (rings(*tx_rings)?, rings(*rx_rings)?);
                switch::create(name, &shape)
            }
            Setting::Attach { switch, interface, host } => {
                let mut options = AttachOptions::default();
                options.host = *host;
                let port = format!("{switch}:{interface}");
                link::attach(&port, || switch::attach(&port, &options)).map(drop)
            }
            other => return crate::perform(&other.words()),
        };
        done.map_err(|e| e.to_string())
    }
}

/// Performs the action. Returns the exit status.
pub(crate) fn run(args: &ConfigArgs) -> Result<u8, String> {
    let path = match &args.file {
        Some(path) => path.clone(),
        None => default_path().ok_or("config: there is no home folder; name the file with --file")?,
    };
    let failed = |why: String| format!("config: {why}");
    match args.action {
        Action::Check => {
            let wanted = read(&path).map_err(failed)?;
            crate::print("config", &format!("{}: {} settings, no fault\n", path.display(), wanted.len()))
        }
        Action::Apply { if_present } => match file::read(&path).map_err(failed)? {
            None if if_present => Ok(0),
            None => Err(failed(no_file(&path))),
            Some(wanted) => apply(&path, &wanted).map_err(failed),
        },
        Action::Diff { json } => diff(&path, json).map_err(failed),
        Action::Show => {
            let text = present(&[]).and_then(|present| file::text(&present));
            crate::print("config", &text.map_err(failed)?)
        }
        Action::Save { yes } => {
            let locked = Locked::open(&path).map_err(failed)?;
            let said = locked.settings().map_err(failed)?;
            let present = present(&file::interfaces(&said)).map_err(failed)?;
            let count = present.len();
            let former = write(&path, locked, said, present, &|_| yes).map_err(failed)?;
            crate::print("config", &format!("{}: {count} settings{former}\n", path.display()))
        }
    }
}

/// Writes the present settings of one switch, port or interface to the default file: `--save` of other commands. Of
/// what is not so now, only the entries of `keys` are removed, which the command set.
pub(crate) fn save(subject: &str, keys: &[&str]) -> Result<(), String> {
    let path = default_path().ok_or("--save: there is no home folder")?;
    let named = if subject.starts_with("vale") { vec![] } else { vec![subject.to_owned()] };
    let save = || {
        let locked = Locked::open(&path)?;
        let said = locked.settings()?;
        let concerns = |setting: &Setting| setting.place()[1] == subject && setting.place()[0] != "persistent";
        let present = state::read(&named)?.ok_or_else(no_daemon)?;
        let (own, others): (Vec<_>, Vec<_>) = said.into_iter().partition(concerns);
        let now = present.into_iter().filter(concerns);
        write(&path, locked, own, now.chain(others).collect(), &|gone| keys.contains(&gone.place()[2]))
    };
    save().map(drop).map_err(|why| format!("--save: {why}"))
}

/// Writes the `present` settings in place of those that the file said. An entry of something that is not so now stays,
/// unless it is `removed`; both are told. Returns where the former file is, as a part of a sentence.
fn write(
    path: &Path,
    locked: Locked,
    said: Vec<Setting>,
    present: Vec<Setting>,
    removed: &dyn Fn(&Setting) -> bool,
) -> Result<String, String> {
    let is_gone = |said: &Setting| !present.iter().any(|has| said.is_replaced_by(has));
    let (removed, stay): (Vec<_>, Vec<_>) = said.into_iter().filter(is_gone).partition(removed);
    for (entries, what) in [
        (&removed, "these entries are not so now, and are removed:"),
        (&stay, "these entries are not so now, and stay (`unetmap config save --yes` removes them):"),
    ] {
        if !entries.is_empty() {
            let lines: String = entries.iter().map(|entry| format!("\n- {entry}")).collect();
            crate::note(&format!("unetmap: config: {}: {what}{lines}", path.display()));
        }
    }
    let wanted: Vec<Setting> = present.into_iter().chain(stay).collect();
    let text = edit::edit(locked.text(), &wanted).map_err(|why| format!("{}: {why}", path.display()))?;
    let former = locked.replace(&text)?;
    Ok(former.map_or_else(String::new, |former| format!("; the former file is {}", former.display())))
}

fn no_file(path: &Path) -> String {
    format!("{}: there is no such file (`unetmap config save` writes one)", path.display())
}

fn no_daemon() -> String {
    "no daemon is running, so nothing is known of the present state (`unetmap config apply` starts one, and makes what \
     the file says)"
        .into()
}

/// Reads a file that must exist.
fn read(path: &Path) -> Result<Vec<Setting>, String> {
    file::read(path)?.ok_or_else(|| no_file(path))
}

/// The settings of a daemon that must run.
fn present(interfaces: &[String]) -> Result<Vec<Setting>, String> {
    state::read_all(interfaces)?.ok_or_else(no_daemon)
}

/// Prints what is so and not in the file, and the reverse. Returns the exit status: 1 if there is any.
fn diff(path: &Path, json: bool) -> Result<u8, String> {
    let wanted = read(path)?;
    let present = present(&file::interfaces(&wanted))?;
    let commands = |settings: &[&Setting]| settings.iter().map(|setting| setting.to_string()).collect::<Vec<_>>();
    let extra: Vec<_> = present.iter().filter(|has| !wanted.iter().any(|asked| asked.is_met_by(has))).collect();
    let (missing, extra) = (commands(&missing(&wanted, &present)), commands(&extra));
    let is_same = missing.is_empty() && extra.is_empty();
    let text = if json {
        format!("{}\n", json!({ "file": path.to_string_lossy(), "missing": missing, "extra": extra }))
    } else {
        let line = |sign: char| move |command: &String| format!("{sign} {command}\n");
        missing.iter().map(line('+')).chain(extra.iter().map(line('-'))).collect()
    };
    crate::print("config", &text).map(|status| if is_same { status } else { 1 })
}

fn missing<'a>(wanted: &'a [Setting], present: &[Setting]) -> Vec<&'a Setting> {
    wanted.iter().filter(|asked| !present.iter().any(|has| asked.is_met_by(has))).collect()
}

/// Makes what the file says and is not so. One that fails does not keep the others from being made.
fn apply(path: &Path, wanted: &[Setting]) -> Result<u8, String> {
    let present = state::read_all(&file::interfaces(wanted))?.unwrap_or_default();
    let (mut made, mut failures) = (0, 0);
    let until = Instant::now() + RETRY;
    for setting in missing(wanted, &present) {
        match make(setting, until) {
            Ok(()) => {
                made += 1;
                crate::print("config", &format!("{setting}\n"))?;
            }
            Err(why) => {
                failures += 1;
                crate::note(&format!("unetmap: config: {}: {setting}: {why}", path.display()));
            }
        }
    }
    let was_so = wanted.len() - made - failures;
    crate::print("config", &format!("{}: made {made}, was so {was_so}, failed {failures}\n", path.display()))
        .map(|status| if failures == 0 { status } else { 1 })
}

/// Makes a setting, if it fails again until this time.
fn make(setting: &Setting, until: Instant) -> Result<(), String> {
    loop {
        match setting.make() {
            Err(_) if Instant::now() < until => std::thread::sleep(RETRY_INTERVAL),
            done => return done,
        }
    }
}

/// The file of `--file`'s default.
fn default_path() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("UNETMAP_SWITCHES") {
        return Some(path.into());
    }
    if rustix::process::geteuid().is_root() {
        return Some("/etc/unetmap/switches.toml".into());
    }
    let folder = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let config = folder("XDG_CONFIG_HOME").or_else(|| Some(folder("HOME")?.join(".config")))?;
    Some(config.join("unetmap/switches.toml"))
}

// SPDX-License-Identifier: BSD-2-Clause
//! `unetmap config`: switches, persistent ports and settings in a file, from which they are made again.

mod file;
mod state;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use tool_common::link;
use unetmap::switch::{self, AttachOptions, NewPort};

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
    Diff,
    /// Print the present state in the file's format
    Show,
    /// Write the present state to the file; comments and entries of other things stay
    Save,
}

/// The time from its start in which `apply` tries again what fails. The kernel removes the persistent ports of a daemon
/// that was killed some time after its end, and interfaces appear some time after the machine has started.
const RETRY: Duration = Duration::from_secs(3);
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// What a port of a switch can have, by the file's keys, and the words of `unetmap vale port` that set it.
const PORT_KEYS: [(&str, &str); 10] = [
    ("access", "access"),
    ("trunk", "trunk"),
    ("rate-in", "rate in"),
    ("rate-out", "rate out"),
    ("storm", "storm"),
    ("filter-in", "filter in"),
    ("filter-out", "filter out"),
    ("vhost-user", "--vhost-user"),
    ("vhost-user-client", "--vhost-user-client"),
    ("memif", "--memif"),
];
/// The same of interfaces, for `unetmap nic`.
const INTERFACE_KEYS: [(&str, &str); 3] = [("filter", "filter"), ("busy-poll", "busy-poll"), ("header", "header")];

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
                let quoted =
                    words.iter().map(|word| if word.contains(' ') { format!("'{word}'") } else { word.clone() });
                write!(f, "unetmap {}", quoted.collect::<Vec<_>>().join(" "))
            }
        }
    }
}

impl Setting {
    /// The words after `unetmap` of the command that makes it; none if it is a command of vale-ctl.
    fn words(&self) -> Vec<String> {
        let split = |words: &str| words.split_whitespace().map(String::from).collect::<Vec<_>>();
        let of_key = |keys: &[(&str, &str)], key: &str, value: &str| {
            let command = keys.iter().find(|(of_file, _)| *of_file == key).map_or("", |(_, command)| command);
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
            let wanted = file::read(&path).map_err(failed)?;
            crate::print("config", &format!("{}: {} settings, no fault\n", path.display(), wanted.len()))
        }
        Action::Apply { if_present: true } if !path.exists() => Ok(0),
        Action::Apply { .. } => apply(&path).map_err(failed),
        Action::Diff => {
            let (wanted, present) = both(&path).map_err(failed)?;
            let mut text = String::new();
            for setting in missing(&wanted, &present) {
                text += &format!("+ {setting}\n");
            }
            for setting in present.iter().filter(|has| !wanted.iter().any(|asked| asked.is_met_by(has))) {
                text += &format!("- {setting}\n");
            }
            crate::print("config", &text).map(|status| if text.is_empty() { status } else { 1 })
        }
        Action::Show => crate::print("config", &file::text(&state::read_all(&[]).map_err(failed)?)),
        Action::Save => {
            let named = match path.try_exists() {
                Ok(false) => Vec::new(),
                _ => file::interfaces(&file::read(&path).map_err(failed)?),
            };
            let present = state::read_all(&named).map_err(failed)?;
            file::write(&path, &present, None).map_err(failed)?;
            crate::print("config", &format!("{}: {} settings\n", path.display(), present.len()))
        }
    }
}

/// Writes the present settings of one switch, port or interface to the default file: `--save` of other commands.
pub(crate) fn save(subject: &str) -> Result<(), String> {
    let path = default_path().ok_or("--save: there is no home folder")?;
    let named = if subject.starts_with("vale") { vec![] } else { vec![subject.to_owned()] };
    state::read(&named)
        .and_then(|present| file::write(&path, &present, Some(subject)))
        .map_err(|why| format!("--save: {why}"))
}

fn both(path: &Path) -> Result<(Vec<Setting>, Vec<Setting>), String> {
    let wanted = file::read(path)?;
    let present = state::read_all(&file::interfaces(&wanted))?;
    Ok((wanted, present))
}

fn missing<'a>(wanted: &'a [Setting], present: &[Setting]) -> Vec<&'a Setting> {
    wanted.iter().filter(|asked| !present.iter().any(|has| asked.is_met_by(has))).collect()
}

/// Makes what the file says and is not so. One that fails does not keep the others from being made.
fn apply(path: &Path) -> Result<u8, String> {
    let (wanted, present) = both(path)?;
    let (mut made, mut failures) = (0, 0);
    let until = Instant::now() + RETRY;
    for setting in missing(&wanted, &present) {
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

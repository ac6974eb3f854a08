// SPDX-License-Identifier: BSD-2-Clause
//! The command `nat`, in ipfw's language.
//!
//! ```text
//! nat N config {ip A | if IF} [log] [deny_in] [same_ports] [reset] [reverse] [proxy_only] [unreg_only] [unreg_cgn]
//!     [port_range LO-HI] [redirect_port PROTO LOCAL:P[-P],... [PUBLIC:]P[-P] [REMOTE[:P[-P]]]]
//!     [redirect_addr LOCAL,... PUBLIC] [redirect_proto PROTO LOCAL [PUBLIC [REMOTE]]] ...
//! ```

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::sync::Arc;

use unetmap_suggest::did_you_mean;

use super::{Config, Result};
use crate::nat::{ALIAS_PORTS, NatSettings, Redirect};
use crate::packet::proto;
use crate::parse::words::{Words, of_beginning};
use crate::parse::{number, protocol_number};

/// Parameters of ipfw that this program lacks.
const UNSUPPORTED: [&str; 4] = ["skip_global", "udp_eim", "global", "port_alias"];
/// Parameters that `config` reads.
const PARAMETERS: [&str; 14] = [
    "ip",
    "if",
    "log",
    "deny_in",
    "same_ports",
    "reset",
    "reverse",
    "proxy_only",
    "unreg_only",
    "unreg_cgn",
    "port_range",
    "redirect_port",
    "redirect_addr",
    "redirect_proto",
];
/// Most servers of a redirect, and redirects of an instance.
const MAX_SERVERS: usize = 256;
const MAX_REDIRECTS: usize = 1024;

/// An instance, and what it was made of.
#[derive(Clone, Debug)]
pub(super) struct Nat {
    settings: Arc<NatSettings>,
    /// The interface whose address it has.
    interface: Option<String>,
    reset: bool,
    shown: String,
}

impl Config {
    /// Performs `nat`.
    pub(super) fn nat(&mut self, words: &mut Words<'_>, output: &mut String) -> Result<()> {
        let mut command = words.required("a number and config, or show")?;
        let mut given = None;
        if command.parse::<u32>().is_ok() {
            let n = command.parse::<u16>().ok().filter(|&n| n > 0);
            given = Some(n.ok_or_else(|| words.error("give a number of a nat, 1 to 65535"))?);
            command = words.required("config, delete or show")?;
        }
        let command = of_beginning(command, &["config", "delete", "show", "list"]).unwrap_or(command);
        match (command, given) {
            ("config", Some(n)) => self.nat_config(n, words),
            ("config", None) => Err(words.error("give the number of the nat before config")),
            ("delete", _) => {
                let n = given.map_or_else(|| number(words, "a number of a nat", 1, 65535).map(|n| n as u16), Ok)?;
                self.revision += 1;
                self.nats.remove(&n).map(|_| ()).ok_or_else(|| words.error(format!("there is no nat {n}")))
            }
            ("show" | "list", _) => {
                words.accept("config");
                for (n, nat) in self.nats.iter().filter(|(n, _)| given.is_none_or(|given| given == **n)) {
                    let _ = writeln!(output, "ipfw nat {n} config{}", nat.shown);
                }
                Ok(())
            }
            (other, _) => {
                let hint = did_you_mean(other, ["config", "delete", "show"]);
                Err(words.error(format!("`{other}`: give config, delete or show{hint}")))
            }
        }
    }

    fn nat_config(&mut self, n: u16, words: &mut Words<'_>) -> Result<()> {
        self.revision += 1;
        let mut nat = NatSettings { number: n, ports: ALIAS_PORTS, ..NatSettings::default() };
        let (mut interface, mut reset, mut shown) = (None, false, String::new());
        while let Some(word) = words.next() {
            let _ = write!(shown, " {word}");
            match word {
                "ip" => nat.address = Some(shown_word(address, words, &mut shown)?),
                "if" => {
                    interface = Some(shown_word(|words| words.required("an interface"), words, &mut shown)?.to_owned())
                }
                "log" => {}
                "deny_in" => nat.deny_in = true,
                "same_ports" => nat.same_ports = true,
                "reset" => reset = true,
                "reverse" => nat.reverse = true,
                "proxy_only" => nat.proxy_only = true,
                "unreg_only" => nat.unregistered_only = true,
                "unreg_cgn" => (nat.unregistered_only, nat.carrier) = (true, true),
                "port_range" => nat.ports = shown_word(port_range, words, &mut shown)?,
                "redirect_port" | "redirect_addr" | "redirect_proto" => {
                    nat.redirects.push(redirect(word, words, &mut shown)?);
                    if nat.redirects.len() > MAX_REDIRECTS {
                        return Err(words.error(format!("a nat has at most {MAX_REDIRECTS} redirects")));
                    }
                }
                _ if UNSUPPORTED.contains(&word) => {
                    return Err(words.error(format!("the parameter `{word}` is not supported; leave it out")));
                }
                _ => {
                    let valid = "ip, if, log, deny_in, same_ports, reset, reverse, proxy_only, unreg_only, unreg_cgn, \
                                 port_range or redirect_...";
                    return Err(words.error(format!("`{word}`: give {valid}{}", did_you_mean(word, PARAMETERS))));
                }
            }
        }
        match (&interface, nat.address) {
            (Some(_), Some(_)) => return Err(words.error("give ip or if, not both")),
            (Some(name), None) => nat.address = (self.resolve)(name).map(u32::from),
            (None, None) if !nat.proxy_only && nat.redirects.iter().all(|redirect| redirect.public.is_none()) => {
                return Err(words.error_here("give the address: ip ADDRESS, or if INTERFACE"));
            }
            _ => {}
        }
        let known = self.nats.get(&n).or_else(|| self.kept.nats.get(&n));
        nat.identity = match known {
            Some(known) if !(reset && known.settings.address != nat.address) => known.settings.identity,
            _ => self.new_identity(),
        };
        self.nats.insert(n, Nat { settings: Arc::new(nat), interface, reset, shown });
        Ok(())
    }

    fn new_identity(&mut self) -> u32 {
        self.identities = self.identities.wrapping_add(1);
        self.identities
    }

    /// Looks the addresses of interfaces, and of the host, up again. Returns the new configuration if one has changed.
    pub fn refresh(&self) -> Option<Config> {
        let mut changed = None;
        for (n, nat) in &self.nats {
            let Some(interface) = &nat.interface else { continue };
            let address = (self.resolve)(interface).map(u32::from);
            if address == nat.settings.address {
                continue;
            }
            let config = changed.get_or_insert_with(|| self.clone());
            config.revision += 1;
            let identity = if nat.reset { config.new_identity() } else { nat.settings.identity };
            if let Some(nat) = config.nats.get_mut(n) {
                nat.settings = Arc::new(NatSettings { address, identity, ..(*nat.settings).clone() });
            }
        }
        if let Some(tables) = self.own.and_then(|own| self.tables.with_own(own)) {
            let config = changed.get_or_insert_with(|| self.clone());
            config.revision += 1;
            config.tables = tables;
        }
        changed
    }

    /// Returns the instances in the order of their numbers.
    pub(super) fn nat_settings(&self) -> Vec<(u16, Arc<NatSettings>)> {
        self.nats.iter().map(|(n, nat)| (*n, Arc::clone(&nat.settings))).collect()
    }
}

/// Reads one word by `read`, and appends it to what is shown.
fn shown_word<'w, T>(
    read: impl FnOnce(&mut Words<'w>) -> Result<T>,
    words: &mut Words<'w>,
    shown: &mut String,
) -> Result<T> {
    let word = words.peek();
    let value = read(words)?;
    let _ = write!(shown, " {}", word.unwrap_or_default());
    Ok(value)
}

fn address(words: &mut Words<'_>) -> Result<u32> {
    let word = words.required("an IPv4 address")?;
    parse_address(word, words)
}

fn parse_address(text: &str, words: &Words<'_>) -> Result<u32> {
    let address = text.parse::<Ipv4Addr>().map(u32::from);
    address.map_err(|_| words.error(format!("`{text}`: give an IPv4 address")))
}

fn port_range(words: &mut Words<'_>) -> Result<(u16, u16)> {
    let word = words.required("ports LO-HI")?;
    let range = ports(word).filter(|&(from, to)| from >= 1024 && to > from);
    range.ok_or_else(|| words.error(format!("`{word}`: give ports LO-HI from 1024 to 65535, HI above LO")))
}

/// Reads `P` or `P-P`.
fn ports(text: &str) -> Option<(u16, u16)> {
    let (from, to) = text.split_once('-').unwrap_or((text, text));
    Some((from.parse().ok()?, to.parse().ok()?)).filter(|(from, to)| from <= to)
}

fn redirect(kind: &str, words: &mut Words<'_>, shown: &mut String) -> Result<Redirect> {
    let proto = match kind {
        "redirect_addr" => None,
        _ => Some(shown_word(protocol, words, shown)?),
    };
    if kind == "redirect_port" && !matches!(proto, Some(proto::TCP | proto::UDP)) {
        return Err(words.error("redirect_port is for tcp and udp"));
    }
    let mut redirect = Redirect { proto, servers: Vec::new(), public: None, ports: None, remote: None };
    if kind == "redirect_port" {
        return redirect_port(redirect, words, shown);
    }
    let list = shown_word(|words| words.required("an address inside"), words, shown)?;
    for server in list.split(',') {
        redirect.servers.push((parse_address(server, words)?, 0));
    }
    check_servers(&redirect, words)?;
    if kind == "redirect_addr" {
        redirect.public = Some(shown_word(address, words, shown)?).filter(|&address| address != 0);
        return Ok(redirect);
    }
    let is_address = |words: &Words<'_>| words.peek().is_some_and(|word| word.parse::<Ipv4Addr>().is_ok());
    if is_address(words) {
        redirect.public = Some(shown_word(address, words, shown)?).filter(|&address| address != 0);
    }
    if is_address(words) {
        redirect.remote = Some((shown_word(address, words, shown)?, 0, 0));
    }
    Ok(redirect)
}

fn redirect_port(mut redirect: Redirect, words: &mut Words<'_>, shown: &mut String) -> Result<Redirect> {
    let list = shown_word(|words| words.required("LOCAL:PORT"), words, shown)?;
    let mut count = None;
    for server in list.split(',') {
        let parts = server.split_once(':').and_then(|(address, range)| Some((address, ports(range)?)));
        let (address, (from, to)) =
            parts.ok_or_else(|| words.error(format!("`{server}`: give LOCAL:PORT or LOCAL:LO-HI")))?;
        redirect.servers.push((parse_address(address, words)?, from));
        if *count.get_or_insert(to - from) != to - from {
            return Err(words.error(format!("`{list}`: all ranges of ports have the same size")));
        }
    }
    check_servers(&redirect, words)?;
    let public = shown_word(|words| words.required("a port outside"), words, shown)?;
    let (address, range) = public.split_once(':').map_or((None, public), |(address, range)| (Some(address), range));
    let (from, to) = ports(range).ok_or_else(|| words.error(format!("`{public}`: give [PUBLIC:]PORT or LO-HI")))?;
    if Some(to - from) != count || to - from == u16::MAX {
        return Err(words.error(format!("`{public}`: as many ports outside as inside")));
    }
    redirect.ports = Some((from, to - from + 1));
    if let Some(address) = address {
        redirect.public = Some(parse_address(address, words)?).filter(|&address| address != 0);
    }
    if let Some(remote) = words.peek().filter(|word| word.starts_with(|c: char| c.is_ascii_digit())) {
        words.next();
        let _ = write!(shown, " {remote}");
        let (address, range) = remote.split_once(':').unwrap_or((remote, "0"));
        let (from, to) =
            ports(range).ok_or_else(|| words.error(format!("`{remote}`: give REMOTE[:PORT] or REMOTE:LO-HI")))?;
        redirect.remote = Some((parse_address(address, words)?, from, to));
    }
    Ok(redirect)
}

fn check_servers(redirect: &Redirect, words: &Words<'_>) -> Result<()> {
    match redirect.servers.len() {
        1..=MAX_SERVERS => Ok(()),
        _ => Err(words.error(format!("give 1 to {MAX_SERVERS} servers"))),
    }
}

fn protocol(words: &mut Words<'_>) -> Result<u8> {
    let word = words.required("a protocol")?;
    protocol_number(word).ok_or_else(|| words.error(format!("`{word}` is no protocol")))
}

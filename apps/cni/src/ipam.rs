// SPDX-License-Identifier: BSD-2-Clause
//! Addresses: the plugin that assigns them, and what it answers.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::fault::{Code, Fault};

/// An address of the pod.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) address: IpAddr,
    pub(crate) prefix: u8,
    pub(crate) gateway: Option<IpAddr>,
}

/// A route of the pod.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) to: (IpAddr, u8),
    via: Option<IpAddr>,
    /// Words for ip(8), and their numbers.
    options: Vec<(&'static str, u64)>,
}

/// The addresses and routes of a pod.
#[derive(Debug, Default)]
pub(crate) struct Assignment {
    pub(crate) addresses: Vec<Address>,
    pub(crate) routes: Vec<Route>,
    /// `routes` and `dns`, as the plugin printed them.
    printed: Value,
}

impl Assignment {
    /// Reads a result, of the plugin of addresses or of ADD.
    pub(crate) fn of_result(result: &Value) -> Result<Assignment, Fault> {
        let list = |key: &str| result[key].as_array().into_iter().flatten();
        let addresses = list("ips").map(Address::parse).collect::<Result<_, _>>()?;
        let routes = list("routes").map(Route::parse).collect::<Result<_, _>>()?;
        Ok(Assignment { addresses, routes, printed: json!({ "routes": result["routes"], "dns": result["dns"] }) })
    }

    /// The addresses that the runtime chose, of a network without a plugin of addresses.
    pub(crate) fn of_addresses(addresses: &[String]) -> Result<Assignment, Fault> {
        let addresses: Vec<Value> = addresses.iter().map(|address| json!({ "address": address })).collect();
        Assignment::of_result(&json!({ "ips": addresses }))
    }

    /// Gives each address a gateway, the first address of its network if it has none, and with `default` a default
    /// route to each kind of address that has none.
    pub(crate) fn complete(&mut self, default: bool) {
        for one in &mut self.addresses {
            one.gateway =
                one.gateway.or_else(|| first_of((one.address, one.prefix)).filter(|first| *first != one.address));
        }
        for Address { address, gateway, .. } in self.addresses.iter().filter(|_| default) {
            let to = match address {
                IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED.into(), 0),
                IpAddr::V6(_) => (Ipv6Addr::UNSPECIFIED.into(), 0),
            };
            if let Some(via) = *gateway
                && !self.routes.iter().any(|route| route.to == to)
            {
                self.routes.push(Route { to, via: Some(via), options: Vec::new() });
                let printed = json!({ "dst": format!("{}/{}", to.0, to.1), "gw": via });
                match &mut self.printed["routes"] {
                    Value::Array(routes) => routes.push(printed),
                    none => *none = json!([printed]),
                }
            }
        }
    }

    /// The gateways, with the prefixes of their networks.
    pub(crate) fn gateways(&self) -> impl Iterator<Item = (IpAddr, u8)> {
        self.addresses.iter().filter_map(|one| Some((one.gateway?, one.prefix)))
    }

    /// The networks of the addresses.
    pub(crate) fn networks(&self) -> impl Iterator<Item = (IpAddr, u8)> {
        self.addresses.iter().map(|one| (network_of((one.address, one.prefix)), one.prefix))
    }

    /// Returns the commands for `ip -batch` that give an interface the addresses, set it up, and add the routes. A
    /// route without a gateway goes over that of the first address of its kind.
    pub(crate) fn commands(&self, interface: &str) -> String {
        let mut commands = String::new();
        for Address { address, prefix, .. } in &self.addresses {
            // The plugin has assigned it to nobody else.
            let probe = if address.is_ipv6() { " nodad" } else { "" };
            commands += &format!("address add {address}/{prefix} dev {interface}{probe}\n");
        }
        commands += &format!("link set dev {interface} up\n");
        for Route { to, via, options } in &self.routes {
            let of_kind = self.addresses.iter().filter(|one| one.address.is_ipv6() == to.0.is_ipv6());
            let via = via.or_else(|| of_kind.filter_map(|one| one.gateway).next());
            let via = via.map(|via| format!(" via {via}")).unwrap_or_default();
            let options: String = options.iter().map(|(word, number)| format!(" {word} {number}")).collect();
            commands += &format!("route replace {}/{}{via} dev {interface}{options}\n", to.0, to.1);
        }
        commands
    }

    /// Returns the addresses, routes and name servers for a result of this version.
    pub(crate) fn json(&self, version: &str) -> Value {
        let ips = self.addresses.iter().map(|Address { address, prefix, gateway }| {
            let mut ip = json!({ "address": format!("{address}/{prefix}"), "interface": 0 });
            if let Some(gateway) = gateway {
                ip["gateway"] = json!(gateway);
            }
            if version.starts_with("0.") {
                ip["version"] = json!(if address.is_ipv6() { "6" } else { "4" });
            }
            ip
        });
        let mut result = json!({ "ips": ips.collect::<Vec<_>>() });
        for key in ["routes", "dns"] {
            if !self.printed[key].is_null() {
                result[key] = self.printed[key].clone();
            }
        }
        result
    }
}

/// Returns the first address of a network, that of the network itself.
fn network_of((address, prefix): (IpAddr, u8)) -> IpAddr {
    match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
            Ipv4Addr::from_bits(v4.to_bits() & mask).into()
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
            Ipv6Addr::from_bits(v6.to_bits() & mask).into()
        }
    }
}

/// Returns the first address of a network that an interface may have; `None`: it has no room for another.
fn first_of((address, prefix): (IpAddr, u8)) -> Option<IpAddr> {
    match network_of((address, prefix)) {
        IpAddr::V4(v4) if prefix < 31 => Some(Ipv4Addr::from_bits(v4.to_bits() + 1).into()),
        IpAddr::V6(v6) if prefix < 127 => Some(Ipv6Addr::from_bits(v6.to_bits() + 1).into()),
        _ => None,
    }
}

fn wrong(text: String) -> Fault {
    Fault::new(Code::Decode, format!("result of the plugin of addresses: {text}"))
}

/// Parses `10.0.0.1/24`.
fn network(value: &Value) -> Result<(IpAddr, u8), Fault> {
    let text = value.as_str().unwrap_or_default();
    let parsed = text.split_once('/').and_then(|(ip, prefix)| Some((ip.parse().ok()?, prefix.parse().ok()?)));
    let in_bounds = |(ip, prefix): &(IpAddr, u8)| *prefix <= if ip.is_ipv6() { 128 } else { 32 };
    parsed.filter(in_bounds).ok_or_else(|| wrong(format!("{value} is no address with its prefix")))
}

fn gateway(value: &Value) -> Result<Option<IpAddr>, Fault> {
    match value.as_str() {
        None | Some("") => Ok(None),
        Some(text) => text.parse().map(Some).map_err(|_| wrong(format!("{text} is no gateway"))),
    }
}

impl Address {
    fn parse(value: &Value) -> Result<Address, Fault> {
        let (address, prefix) = network(&value["address"])?;
        Ok(Address { address, prefix, gateway: gateway(&value["gateway"])? })
    }
}

impl Route {
    fn parse(value: &Value) -> Result<Route, Fault> {
        let words = [("mtu", "mtu"), ("advmss", "advmss"), ("priority", "metric"), ("table", "table")];
        let options = words.iter().filter_map(|(key, word)| Some((*word, value[key].as_u64().filter(|n| *n > 0)?)));
        Ok(Route { to: network(&value["dst"])?, via: gateway(&value["gw"])?, options: options.collect() })
    }
}

/// Runs the plugin of addresses `plugin`, which is in one of the folders of CNI_PATH, with this command and the
/// configuration. Returns what it prints.
pub(crate) fn run(plugin: &str, command: &str, input: &[u8]) -> Result<Value, Fault> {
    let folders = std::env::var_os("CNI_PATH").unwrap_or_default();
    let found = std::env::split_paths(&folders).map(|folder| folder.join(plugin)).find(|path| path.is_file());
    let path = found.ok_or_else(|| {
        let text = format!("ipam.type \"{plugin}\": no such plugin in CNI_PATH={}", folders.to_string_lossy());
        Fault::new(Code::Config, text)
    })?;
    let failed = |e: std::io::Error| Fault::new(Code::Io, format!("{}: {e}", path.display()));
    let mut process = Command::new(&path);
    process.env("CNI_COMMAND", command).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = process.spawn().map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        match stdin.write_all(input) {
            // It may end without reading all of it.
            Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => return Err(failed(e)),
            _ => {}
        }
    }
    let output = child.wait_with_output().map_err(failed)?;
    let printed = serde_json::from_slice::<Value>(&output.stdout);
    match (output.status.success(), printed) {
        (true, Ok(printed)) => Ok(printed),
        (true, Err(_)) if output.stdout.iter().all(u8::is_ascii_whitespace) => Ok(Value::Null),
        (true, Err(e)) => Err(wrong(e.to_string())),
        (false, Ok(printed)) if printed["code"].is_number() => Err(Fault::Delegated(printed)),
        (false, _) => Err(Fault::refused(plugin, format!("{command} failed ({})", output.status))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_become_commands() {
        let result = json!({
            "ips": [
                {"address": "10.1.0.5/16", "gateway": "10.1.0.1"},
                {"address": "fd00::5/64", "gateway": "fd00::1"},
            ],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "fd01::/48", "gw": "fd00::2", "mtu": 1400, "priority": 7}],
        });
        let assignment = Assignment::of_result(&result).unwrap();
        assert_eq!(
            assignment.commands("eth0"),
            "address add 10.1.0.5/16 dev eth0\naddress add fd00::5/64 dev eth0 nodad\nlink set dev eth0 up\n\
             route replace 0.0.0.0/0 via 10.1.0.1 dev eth0\nroute replace fd01::/48 via fd00::2 dev eth0 mtu 1400 metric 7\n"
        );
        assert_eq!(assignment.json("0.4.0")["ips"][1]["version"], "6");
        assert_eq!(
            assignment.json("1.1.0")["ips"][0],
            json!({"address": "10.1.0.5/16", "gateway": "10.1.0.1", "interface": 0})
        );
    }

    #[test]
    fn addresses_get_gateways_and_default_routes() {
        let mut assignment = Assignment::of_result(&json!({
            "ips": [{"address": "10.1.7.5/16"}, {"address": "10.2.0.5/24", "gateway": "10.2.0.9"},
                    {"address": "fd00::1:5/112"}, {"address": "10.3.0.1/24"}, {"address": "10.4.0.1/32"}],
            "routes": [{"dst": "::/0", "gw": "fd00::1:9"}],
        }))
        .unwrap();
        assignment.complete(true);
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let gateways = [(ip("10.1.0.1"), 16), (ip("10.2.0.9"), 24), (ip("fd00::1:1"), 112)];
        assert_eq!(assignment.gateways().collect::<Vec<_>>(), gateways, "10.3.0.1 is the pod's own");
        let networks = [(ip("10.1.0.0"), 16), (ip("10.2.0.0"), 24), (ip("fd00::1:0"), 112)];
        assert_eq!(assignment.networks().take(3).collect::<Vec<_>>(), networks);
        assert_eq!(
            assignment.json("1.1.0")["routes"],
            json!([{"dst": "::/0", "gw": "fd00::1:9"}, {"dst": "0.0.0.0/0", "gw": "10.1.0.1"}])
        );
        assert!(assignment.commands("eth0").contains("route replace 0.0.0.0/0 via 10.1.0.1 dev eth0\n"));
        assert_eq!(network_of((ip("255.1.2.3"), 0)), ip("0.0.0.0"));
        assert_eq!(network_of((ip("ff::1"), 128)), ip("ff::1"));
    }

    #[test]
    fn results_that_are_none_are_refused() {
        for result in [
            json!({"ips": [{"address": "10.1.0.5"}]}),
            json!({"ips": [{"address": "10.1.0.5/33"}]}),
            json!({"ips": [{"address": "10.1.0.5/16; reboot"}]}),
            json!({"ips": [{"address": "10.1.0.5/16", "gateway": "x"}]}),
            json!({"ips": [{}]}),
            json!({"routes": [{"dst": "default"}]}),
        ] {
            assert!(Assignment::of_result(&result).is_err(), "{result}");
        }
    }
}

// SPDX-License-Identifier: BSD-2-Clause
//! The configuration, which arrives on standard input, and the environment.

use std::path::PathBuf;

use serde::Deserialize;
use serde_json::Value;
use unetmap::switch::{Direction, RateLimit, VlanMode, is_label};

use crate::fault::{Code, Fault};

/// The versions of the specification, the newest last.
pub(crate) const VERSIONS: [&str; 3] = ["0.4.0", "1.0.0", "1.1.0"];
/// Bytes of the longest name of an interface.
const MAX_IFNAME: usize = 15;
/// The MTU of an interface: what IPv4 needs at least, and the most that a persistent port takes.
const MTU: std::ops::RangeInclusive<u32> = 68..=9000;
/// Bits in a second of a rate: as many as `unetmap vale port S:P rate` takes.
const RATE: std::ops::RangeInclusive<u64> = 1..=1_000_000_000_000_000;
/// Bytes of the longest name of a switch: a port's has 63.
const MAX_SWITCH: usize = 63 - 1 - MAX_IFNAME;
/// VLANs that a port may be in.
const VLAN: std::ops::RangeInclusive<u16> = 1..=4094;

/// A network's configuration, with what the runtime adds to it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NetConf {
    #[serde(default)]
    pub(crate) cni_version: String,
    pub(crate) name: String,
    /// The switch, such as `vale0`.
    pub(crate) switch: String,
    pub(crate) mtu: Option<u32>,
    /// The VLAN of which the pod's port is an access port.
    pub(crate) vlan: Option<u16>,
    /// Whether the node has a port of the network, with the gateways' addresses.
    pub(crate) is_gateway: Option<bool>,
    /// Whether it has, and the pods' default route leads there.
    #[serde(default)]
    pub(crate) is_default_gateway: bool,
    /// Whether it has, and packets of pods to others get an address of the node.
    #[serde(default)]
    pub(crate) ip_masq: bool,
    #[serde(flatten)]
    bandwidth: Bandwidth,
    #[serde(default)]
    pub(crate) ipam: Ipam,
    pub(crate) dns: Option<Value>,
    pub(crate) prev_result: Option<Value>,
    #[serde(default)]
    pub(crate) runtime_config: RuntimeConfig,
    #[serde(default, rename = "cni.dev/valid-attachments")]
    pub(crate) valid_attachments: Vec<Attachment>,
}

/// The plugin of addresses; without a type the pod gets none.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Ipam {
    #[serde(default, rename = "type")]
    pub(crate) plugin: String,
}

#[derive(Debug, Default, Deserialize)]
pub(crate) struct RuntimeConfig {
    /// The MAC address, of the capability `mac`.
    pub(crate) mac: Option<String>,
    /// The addresses with their prefixes, of the capability `ips`. A plugin of addresses reads them itself.
    #[serde(default)]
    pub(crate) ips: Vec<String>,
    /// Of the capability `bandwidth`.
    bandwidth: Option<Bandwidth>,
}

/// Rates as the plugin `bandwidth` names them, in bits per second; 0: no limit. Its bursts are not used: a port of a
/// switch has a burst of its own. containerd writes the names with capital letters.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Bandwidth {
    /// Of packets to the pod.
    #[serde(alias = "IngressRate")]
    ingress_rate: u64,
    /// Of packets from the pod.
    #[serde(alias = "EgressRate")]
    egress_rate: u64,
}

/// An interface of a container.
#[derive(Debug, Deserialize)]
pub(crate) struct Attachment {
    #[serde(rename = "containerID")]
    pub(crate) container: String,
    #[serde(rename = "ifname")]
    pub(crate) interface: String,
}

/// Returns the version in a configuration, or the newest one.
pub(crate) fn version_of(input: &[u8]) -> String {
    let parsed: Option<Value> = serde_json::from_slice(input).ok();
    let version = parsed.as_ref().and_then(|conf| conf["cniVersion"].as_str());
    version.unwrap_or(VERSIONS[VERSIONS.len() - 1]).into()
}

impl NetConf {
    pub(crate) fn parse(input: &[u8]) -> Result<NetConf, Fault> {
        let conf: NetConf =
            serde_json::from_slice(input).map_err(|e| Fault::new(Code::Decode, format!("configuration: {e}")))?;
        if !VERSIONS.contains(&conf.cni_version.as_str()) {
            let text = format!("cniVersion \"{}\": known are {}", conf.cni_version, VERSIONS.join(", "));
            return Err(Fault::new(Code::IncompatibleVersion, text));
        }
        let wrong = |text: String| Err(Fault::new(Code::Config, text));
        let digits = conf.switch.strip_prefix("vale");
        let is_named = digits.is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'));
        if !is_named || conf.switch.len() > MAX_SWITCH {
            let text = "a switch is named vale and letters, digits or _, in all at most";
            return wrong(format!("switch \"{}\": {text} {MAX_SWITCH}", conf.switch));
        }
        if let Some(mtu) = conf.mtu.filter(|mtu| !MTU.contains(mtu)) {
            return wrong(format!("mtu {mtu}: give {} to {}", MTU.start(), MTU.end()));
        }
        if let Some(vlan) = conf.vlan.filter(|vlan| !VLAN.contains(vlan)) {
            return wrong(format!("vlan {vlan}: give {} to {}", VLAN.start(), VLAN.end()));
        }
        if let Some((_, rate)) = conf.rates().find(|(_, rate)| !RATE.contains(&rate.bits)) {
            return wrong(format!("a rate of {}: give {} to {} bits per second", rate.bits, RATE.start(), RATE.end()));
        }
        if conf.is_gateway == Some(false) && conf.ip_masq && !conf.is_default_gateway {
            return wrong("ipMasq: packets pass the node only with \"isGateway\": true".into());
        }
        if conf.ipam.plugin.contains('/') || conf.ipam.plugin.starts_with('.') {
            return wrong(format!("ipam.type \"{}\": give the name of a plugin, without a folder", conf.ipam.plugin));
        }
        if let Some(mac) = conf.runtime_config.mac.as_deref().filter(|mac| !is_mac(mac)) {
            return wrong(format!("runtimeConfig.mac \"{mac}\": give six numbers, such as 02:00:00:00:00:01"));
        }
        Ok(conf)
    }

    pub(crate) fn vlan_mode(&self) -> Option<VlanMode> {
        self.vlan.map(VlanMode::Access)
    }

    /// The rates of a pod's port, as the switch sees it: what it sends comes in.
    pub(crate) fn rates(&self) -> impl Iterator<Item = (Direction, RateLimit)> {
        let (network, pod) = (self.bandwidth, self.runtime_config.bandwidth.unwrap_or_default());
        // A pod may have less than its network gives, and not more.
        let least = |one: u64, other: u64| [one, other].into_iter().filter(|bits| *bits > 0).min();
        let all = [
            (Direction::In, least(network.egress_rate, pod.egress_rate)),
            (Direction::Out, least(network.ingress_rate, pod.ingress_rate)),
        ];
        let all = all.into_iter().filter_map(|(direction, bits)| Some((direction, bits?)));
        all.map(|(direction, bits)| (direction, RateLimit { packets: 0, bits }))
    }

    /// Whether the configuration says that the node has a port.
    pub(crate) fn asks_for_gateway(&self) -> bool {
        self.is_gateway == Some(true) || self.is_default_gateway || self.ip_masq
    }

    /// Whether the node is to have a port. If nothing is said it has one with `host-local`, whose addresses are of this
    /// node alone: kubelets reach pods from their nodes.
    pub(crate) fn wants_gateway(&self) -> bool {
        self.asks_for_gateway() || self.is_gateway.is_none() && self.ipam.plugin == "host-local"
    }

    /// Returns the name of the node's port, which is that of its interface, too.
    pub(crate) fn node_port(&self) -> String {
        format!("gw{:08x}", hash(&[&self.name, &self.switch]) >> 32)
    }

    /// Returns the name of a port without its switch, if it is a pod's of this network.
    pub(crate) fn pods_port<'a>(&self, name: &'a str) -> Option<&'a str> {
        let port = name.strip_prefix(&self.switch)?.strip_prefix(':')?;
        port.starts_with(&self.port_prefix()).then_some(port)
    }

    /// Returns the beginning of the names of all ports of this network.
    pub(crate) fn port_prefix(&self) -> String {
        format!("c{:05x}", hash(&[&self.name]) >> 44)
    }

    /// Returns the name of an attachment's port in the switch, which is also an alternative name of the interface. It
    /// is that of an interface: 15 bytes.
    pub(crate) fn port_of(&self, container: &str, interface: &str) -> String {
        format!("{}{:09x}", self.port_prefix(), hash(&[&self.name, container, interface]) >> 28)
    }
}

fn is_mac(text: &str) -> bool {
    text.split(':').count() == 6
        && text.split(':').all(|part| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// FNV-1a, 64 bits, of strings that are separated. It must not change: DEL finds by it what an older version made.
fn hash(texts: &[&str]) -> u64 {
    let bytes = texts.iter().flat_map(|text| text.bytes().chain([0xff]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// The runtime's environment variables, which stand beside the configuration.
#[derive(Debug)]
pub(crate) struct Environment {
    pub(crate) container: String,
    /// Absent in a DEL whose namespace is gone.
    pub(crate) netns: Option<PathBuf>,
    pub(crate) interface: String,
    /// The pod's namespace, `/`, and its name, if the runtime says them.
    pub(crate) pod: Option<String>,
}

/// Returns the pod of `CNI_ARGS`, which is `KEY=VALUE;KEY=VALUE`: as a kubelet's runtime writes it.
fn pod_of(args: &str) -> Option<String> {
    let value = |key: &str| args.split(';').find_map(|arg| arg.split_once('=').filter(|(name, _)| *name == key));
    let (namespace, name) = (value("K8S_POD_NAMESPACE")?.1, value("K8S_POD_NAME")?.1);
    let pod = format!("{namespace}/{name}");
    (!namespace.is_empty() && !name.is_empty() && is_label(&pod)).then_some(pod)
}

impl Environment {
    pub(crate) fn read(command: &str) -> Result<Environment, Fault> {
        let value = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let needed = |name| {
            value(name)
                .ok_or_else(|| Fault::new(Code::Environment, format!("{name} is missing, which {command} needs")))
        };
        let wrong = |text: String| Err(Fault::new(Code::Environment, text));
        let container = needed("CNI_CONTAINERID")?;
        let is_part = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
        if !container.bytes().all(is_part) || !container.as_bytes()[0].is_ascii_alphanumeric() {
            return wrong(format!("CNI_CONTAINERID \"{container}\": give letters, digits, _, . and -"));
        }
        let interface = needed("CNI_IFNAME")?;
        let is_named = interface.bytes().all(|b| b.is_ascii_graphic() && !b"/:".contains(&b));
        if !is_named || interface.len() > MAX_IFNAME || [".", ".."].contains(&interface.as_str()) {
            return wrong(format!(
                "CNI_IFNAME \"{interface}\": an interface's name has 1 to {MAX_IFNAME} bytes, no / : or space"
            ));
        }
        let netns = if command == "DEL" { value("CNI_NETNS") } else { Some(needed("CNI_NETNS")?) };
        let pod = value("CNI_ARGS").and_then(|args| pod_of(&args));
        Ok(Environment { container, netns: netns.map(PathBuf::from), interface, pod })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<NetConf, String> {
        NetConf::parse(json.as_bytes()).map_err(|fault| fault.json("1.1.0").to_string())
    }

    #[test]
    fn invalid_configurations_are_refused_with_a_reason() {
        for (json, part) in [
            ("", "\"code\":6"),
            ("{}", "\"code\":6"),
            (r#"{"name":"n","switch":"vale0"}"#, "\"code\":1"),
            (r#"{"cniVersion":"9.0.0","name":"n","switch":"vale0"}"#, "known are 0.4.0"),
            (r#"{"cniVersion":"1.1.0","name":"n","switch":"br0"}"#, "switch \\\"br0\\\""),
            (r#"{"cniVersion":"1.1.0","name":"n","switch":"vale0:a"}"#, "switch \\\"vale0:a\\\""),
            (r#"{"cniVersion":"1.1.0","name":"n","switch":"vale0","mtu":9001}"#, "68 to 9000"),
            (r#"{"cniVersion":"1.1.0","name":"n","switch":"vale0","vlan":0}"#, "1 to 4094"),
            (r#"{"cniVersion":"1.1.0","name":"n","switch":"vale0","egressRate":2000000000000000}"#, "bits per second"),
            (r#"{"cniVersion":"1.1.0","name":"n","switch":"vale0","egressRate":-1}"#, "\"code\":6"),
            (r#"{"cniVersion":"1.1.0","name":"n","switch":"vale0","isGateway":"yes"}"#, "\"code\":6"),
            (r#"{"cniVersion":"1.1.0","name":"n","switch":"vale0","isGateway":false,"ipMasq":true}"#, "isGateway"),
            (r#"{"cniVersion":"1.1.0","name":"n","switch":"vale0","ipam":{"type":"../sh"}}"#, "without a folder"),
            (r#"{"cniVersion":"1.1.0","name":"n","switch":"vale0","runtimeConfig":{"mac":"1"}}"#, "six numbers"),
        ] {
            let message = parse(json).unwrap_err();
            assert!(message.contains(part), "{json}: {message}");
        }
        assert!(parse(r#"{"cniVersion":"1.0.0","name":"n","switch":"vale0","more":[1]}"#).is_ok(), "unknown keys pass");
    }

    #[test]
    fn the_node_has_a_port_by_default_with_host_local_alone() {
        for (keys, wanted, asked) in [
            (r#""ipam":{"type":"host-local"}"#, true, false),
            (r#""ipam":{"type":"static"}"#, false, false),
            (r#""ipam":{}"#, false, false),
            (r#""ipam":{"type":"host-local"},"isGateway":false"#, false, false),
            (r#""isGateway":true"#, true, true),
            (r#""isDefaultGateway":true,"isGateway":false"#, true, true),
            (r#""ipMasq":true,"hairpinMode":true"#, true, true),
        ] {
            let json = format!(r#"{{"cniVersion":"1.1.0","name":"n","switch":"vale0",{keys}}}"#);
            let conf = parse(&json).unwrap();
            assert_eq!((conf.wants_gateway(), conf.asks_for_gateway()), (wanted, asked), "{json}");
        }
    }

    #[test]
    fn a_pod_may_have_less_than_its_network_gives() {
        let rates = |keys: &str| {
            let conf = parse(&format!(r#"{{"cniVersion":"1.1.0","name":"n","switch":"vale0"{keys}}}"#)).unwrap();
            conf.rates().map(|(direction, rate)| (direction, rate.bits)).collect::<Vec<_>>()
        };
        let (own, of_runtime) =
            (r#","ingressRate":5,"ingressBurst":9"#, r#","runtimeConfig":{"bandwidth":{"egressRate":7}}"#);
        assert_eq!(rates(""), []);
        assert_eq!(rates(own), [(Direction::Out, 5)]);
        assert_eq!(rates(of_runtime), [(Direction::In, 7)]);
        assert_eq!(rates(&format!("{own}{of_runtime}")), [(Direction::In, 7), (Direction::Out, 5)]);
        let both = |bits: u64| format!(r#"{own},"runtimeConfig":{{"bandwidth":{{"ingressRate":{bits}}}}}"#);
        assert_eq!([4, 6].map(|bits| rates(&both(bits))), [[(Direction::Out, 4)], [(Direction::Out, 5)]]);
        let of_containerd = of_runtime.replace("egress", "Egress");
        assert_eq!(rates(&of_containerd), [(Direction::In, 7)]);
    }

    #[test]
    fn the_runtime_says_whose_interface_it_is() {
        let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0;K8S_POD_INFRA_CONTAINER_ID=7";
        assert_eq!(pod_of(args).as_deref(), Some("default/web-0"));
        let long = format!("K8S_POD_NAMESPACE=a;K8S_POD_NAME={}", "x".repeat(400));
        for none in ["", "IgnoreUnknown=1", "K8S_POD_NAME=a", "K8S_POD_NAMESPACE=;K8S_POD_NAME=a", &long] {
            assert_eq!(pod_of(none), None, "{none}");
        }
        assert_eq!(pod_of("K8S_POD_NAMESPACE=a;K8S_POD_NAME=b\"\u{1b}[2J"), None, "what no name has");
    }

    #[test]
    fn ports_of_attachments_have_names_of_their_own() {
        let conf =
            |name: &str| parse(&format!(r#"{{"cniVersion":"1.1.0","name":"{name}","switch":"vale0"}}"#)).unwrap();
        let (one, two) = (conf("one"), conf("two"));
        let names =
            [one.port_of("a", "eth0"), one.port_of("a", "eth1"), one.port_of("aeth", "0"), two.port_of("a", "eth0")];
        assert!(names.iter().all(|name| name.len() == MAX_IFNAME), "{names:?}");
        assert!((0..4).all(|a| (0..a).all(|b| names[a] != names[b])), "{names:?}");
        assert!(names[..3].iter().all(|name| name.starts_with(&one.port_prefix())));
        assert!(!names[3].starts_with(&one.port_prefix()));
        assert_eq!(one.pods_port(&format!("vale0:{}", names[1])), Some(&*names[1]));
        let others =
            [format!("vale00:{}", names[0]), format!("vale0:{}", names[3]), format!("vale0:{}", one.node_port())];
        assert!(others.iter().all(|name| one.pods_port(name).is_none()), "{others:?}");
        // Of an older version's ADD.
        assert_eq!(names[0], "c07155012e71932");
    }
}

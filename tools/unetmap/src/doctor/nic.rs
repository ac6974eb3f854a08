// SPDX-License-Identifier: BSD-2-Clause
//! Checks of an interface and its driver.

mod offloads;

use std::io;

use serde::{Serialize, Serializer};
use unetmap_sys::kernel::{self, Version};
use unetmap_sys::link::{AttachedMode, ChannelSettings, Channels, DriverInfo, Link, XdpFeatures};
use unetmap_sys::probe::QueueTrial;
use unetmap_sys::xsk::{MAX_PACKET, Way, ZeroCopyObstacle};

use super::Check;
use super::machine::OpenPort;
pub(super) use offloads::Offloads;

/// Bytes of a packet buffer, the daemon's default.
const BUFFER: u32 = 2048;
/// Bytes of an Ethernet header with one VLAN tag.
const HEADER: u32 = 18;
/// The MTU up to which every driver with native XDP accepts programs: a page of 4 KiB less headroom, with a margin.
const NATIVE_MTU: u32 = 3400;

const ZERO_COPY: &str = "native, zero copy";
const COPY: &str = "native, copy";
const GENERIC: &str = "generic, copy";
const RELAY: &str = "by way of a veth, copy";
const PACKET: &str = "packet socket";

/// Facts about an interface.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) link: Link,
    pub(super) driver: Option<DriverInfo>,
    pub(super) queues: Channels,
    pub(super) settings: Option<ChannelSettings>,
    /// `None`: the kernel does not report them.
    pub(super) features: Option<XdpFeatures>,
    /// `None`: they cannot be read.
    pub(super) offloads: Option<Offloads>,
    /// Offloads of a device by which frames arrive unfinished, and that cannot be switched off.
    pub(super) stays_on: Option<String>,
    /// The attached XDP program.
    pub(super) program: Option<Program>,
    /// The open port of this name.
    pub(super) port: Option<OpenPort>,
    /// The way that was chosen for its packets.
    pub(super) way: Way,
    /// The fault that was found in its frames, and whether it has packet sockets for that, else a veth.
    pub(super) found: Option<(String, bool)>,
    /// Why its port would be opened without AF_XDP, if it would.
    pub(super) no_bpf: Option<String>,
    /// Why a port would not try zero copy, as far as is known without opening the interface.
    pub(super) no_zero_copy: Option<String>,
    /// The result of opening a queue as a port does, or why that was not tried.
    pub(super) trial: Result<QueueTrial, String>,
    /// Effective user id of this process.
    pub(super) uid: u32,
}

/// An attached XDP program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Program {
    #[serde(serialize_with = "mode_word")]
    pub(super) mode: AttachedMode,
    pub(super) id: u32,
    /// `None`: it has no name, or this process has no permission to read it.
    pub(super) name: Option<String>,
    /// If it is a dispatcher of libxdp: the programs that it calls, which a port's program joins.
    pub(super) members: Vec<String>,
    /// The process that has the program's BPF link open.
    pub(super) holder: Option<Holder>,
    /// True if it is the daemon's program.
    pub(super) ours: bool,
}

/// A process that has a BPF link open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Holder {
    pub(super) pid: u32,
    pub(super) command: String,
    pub(super) link: u32,
}

impl Program {
    /// Formats name and id, and the programs that a dispatcher calls.
    pub(super) fn label(&self) -> String {
        let label = match &self.name {
            Some(name) => format!("{name} (id {})", self.id),
            None => format!("id {}", self.id),
        };
        if self.members.is_empty() { label } else { format!("{label} of {}", self.members.join(" and ")) }
    }
}

fn mode_word<S: Serializer>(mode: &AttachedMode, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(mode.as_str())
}

/// The report about an interface.
#[derive(Debug, Serialize)]
pub(super) struct InterfaceReport {
    pub(super) name: String,
    index: u32,
    pub(super) driver: Option<Driver>,
    kind: Option<String>,
    mac: Option<String>,
    pub(super) mtu: u32,
    up: bool,
    carrier: bool,
    pub(super) queues: Queues,
    pub(super) program: Option<Program>,
    pub(super) features: Option<Features>,
    /// The attempt; `None`: nothing was tried.
    pub(super) tried: Option<Tried>,
    /// The data path of the open port, else the one that a port would have; `None` if unknown.
    #[serde(rename = "way")]
    pub(super) data_path: Option<&'static str>,
    /// True if no requirement of a port on this interface is missing.
    pub(super) ok: bool,
    pub(super) checks: Vec<Check>,
}

impl InterfaceReport {
    /// Whether a queue was opened, or a port is open.
    pub(super) fn is_tested(&self) -> bool {
        self.tried.is_some() || self.program.as_ref().is_some_and(|program| program.ours)
    }

    pub(super) fn state(&self) -> &'static str {
        match (self.up, self.carrier) {
            (false, _) => "down",
            (true, false) => "no carrier",
            (true, true) => "up",
        }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Driver {
    pub(super) name: String,
    version: String,
}

/// Numbers of queues, and their maxima.
#[derive(Debug, Serialize)]
pub(super) struct Queues {
    pub(super) rx: u32,
    pub(super) tx: u32,
    max_rx: Option<u32>,
    max_tx: Option<u32>,
}

/// The driver's XDP features, with the kernel's names.
#[derive(Debug, Serialize)]
pub(super) struct Features {
    basic: bool,
    redirect: bool,
    ndo_xmit: bool,
    xsk_zerocopy: bool,
    hw_offload: bool,
    rx_sg: bool,
    ndo_xmit_sg: bool,
    zc_max_segs: u32,
}

/// The kernel's answers when a queue was opened: `ok`, or the error; `None`: not tried.
#[derive(Debug, Serialize)]
pub(super) struct Tried {
    queue: u32,
    native: Option<String>,
    generic: Option<String>,
    zero_copy: Option<String>,
    copy: Option<String>,
}

impl From<&QueueTrial> for Tried {
    fn from(trial: &QueueTrial) -> Tried {
        let answer = |result: &io::Result<()>| match result {
            Ok(()) => "ok".to_owned(),
            Err(e) => e.to_string(),
        };
        Tried {
            queue: trial.queue,
            native: Some(answer(&trial.native)),
            generic: trial.generic.as_ref().map(answer),
            zero_copy: trial.zero_copy.as_ref().map(answer),
            copy: trial.copy.as_ref().map(answer),
        }
    }
}

impl From<XdpFeatures> for Features {
    fn from(f: XdpFeatures) -> Features {
        Features {
            basic: f.basic,
            redirect: f.redirect,
            ndo_xmit: f.xmit,
            xsk_zerocopy: f.zerocopy,
            hw_offload: f.hw_offload,
            rx_sg: f.rx_sg,
            ndo_xmit_sg: f.xmit_sg,
            zc_max_segs: f.zc_max_segs,
        }
    }
}

/// Checks an interface. `kernel` is `None` if the version is unknown.
pub(super) fn check(facts: &Facts, kernel: Option<Version>) -> InterfaceReport {
    let link = &facts.link;
    let (data_path, path_check) = data_path(facts, kernel);
    let mut checks = vec![identity(facts), state(link), mtu(link, facts.features, data_path, kernel), queues(facts)];
    checks.extend([program(facts), path_check]);
    if data_path == Some(PACKET) {
        checks.push(Check::ok("offloads", "stay on: the kernel tells what a frame lacks, and the daemon completes it"));
    } else {
        checks.extend(facts.offloads.iter().flat_map(|offloads| offloads::checks(offloads, &link.name)));
        checks.extend(facts.features.and_then(missing_features));
    }
    let max = |count: fn(&ChannelSettings) -> u32| facts.settings.as_ref().map(count);
    InterfaceReport {
        name: link.name.clone(),
        index: link.index,
        driver: facts.driver.clone().map(|DriverInfo { name, version, .. }| Driver { name, version }),
        kind: link.kind.clone(),
        mac: link.mac.map(mac),
        mtu: link.mtu,
        up: link.up,
        carrier: link.carrier,
        queues: Queues {
            rx: facts.queues.rx,
            tx: facts.queues.tx,
            max_rx: max(|set| set.max_rx.saturating_add(set.max_combined)),
            max_tx: max(|set| set.max_tx.saturating_add(set.max_combined)),
        },
        program: facts.program.clone(),
        features: facts.features.map(Features::from),
        tried: facts.trial.as_ref().ok().map(Tried::from),
        data_path,
        ok: !checks.iter().any(Check::blocks),
        checks,
    }
}

fn mac(bytes: [u8; 6]) -> String {
    bytes.map(|byte| format!("{byte:02x}")).join(":")
}

fn identity(facts: &Facts) -> Check {
    let link = &facts.link;
    let driver = match &facts.driver {
        Some(DriverInfo { name, version, .. }) => format!("driver {name} {version}"),
        None => "the driver reports no name".into(),
    };
    match link.mac {
        Some(address) => Check::ok("interface", format!("index {}, {driver}, {}", link.index, mac(address))),
        None => {
            let text = format!("index {}, {driver}: its packets have no Ethernet header", link.index);
            Check::missing("interface", text).fix("open the interface that carries its packets")
        }
    }
}

fn state(link: &Link) -> Check {
    match (link.up, link.carrier) {
        (false, _) => {
            let down = Check::missing("state", "down: a port can be opened, and moves no packets before it is up");
            down.fix(format!("ip link set dev {} up", link.name)).optional()
        }
        (true, false) => Check::ok("state", "up, no carrier: no packets arrive before the other end is up"),
        (true, true) => Check::ok("state", "up"),
    }
}

/// Checks that the longest frames fit.
fn mtu(link: &Link, features: Option<XdpFeatures>, data_path: Option<&str>, kernel: Option<Version>) -> Check {
    let (mtu, frame) = (link.mtu, link.mtu.saturating_add(HEADER));
    // Buffers for zero copy have a page, of which packets use a part.
    let room = if data_path == Some(ZERO_COPY) { MAX_PACKET } else { BUFFER };
    if frame <= room {
        return Check::ok("MTU", format!("{mtu}: frames fit the {room} bytes of default buffers"));
    }
    let fix = format!("ip link set dev {} mtu {}", link.name, room - HEADER);
    let long = format!("{mtu}: frames of {frame} bytes do not fit the {room} bytes of default buffers");
    let one_segment = features.is_some_and(|features| features.zc_max_segs <= 1);
    match kernel {
        None => Check::unknown("MTU", format!("{long}, and the kernel version cannot be read")).fix(fix),
        Some(version) if version < kernel::LARGE_FRAMES.least => {
            Check::missing("MTU", format!("{long}, and {}", kernel::LARGE_FRAMES.requirement())).fix(fix)
        }
        Some(_) if data_path == Some(ZERO_COPY) && one_segment => {
            Check::missing("MTU", format!("{long}, and the driver's zero copy supports one buffer per frame")).fix(fix)
        }
        Some(_) => {
            let buffers = frame.div_ceil(room);
            Check::ok("MTU", format!("{mtu}: a frame uses up to {buffers} of the default buffers of {room} bytes"))
        }
    }
}

fn queues(facts: &Facts) -> Check {
    let Channels { rx, tx } = facts.queues;
    let more = facts.trial.as_ref().ok().and_then(|trial| trial.queues_with_program);
    let more = more.map_or(String::new(), |more| format!("; with a port open the driver has {more} receive queues"));
    let check = Check::ok("queues", format!("{rx} receive, {tx} transmit: one ring per queue{more}"));
    let name = &facts.link.name;
    match facts.settings {
        Some(set) if set.max_combined > set.combined => {
            check.fix(format!("ethtool -L {name} combined {} sets the maximum", set.max_combined))
        }
        Some(set) if set.max_combined == 0 && (set.max_rx > set.rx || set.max_tx > set.tx) => {
            check.fix(format!("ethtool -L {name} rx {} tx {} sets the maximum", set.max_rx, set.max_tx))
        }
        _ => check,
    }
}

/// Checks that no XDP program of another process is attached.
fn program(facts: &Facts) -> Check {
    const WHAT: &str = "XDP program";
    let Some(program) = &facts.program else { return Check::ok(WHAT, "none is attached") };
    let name = &facts.link.name;
    let what = format!("{}, {}", program.label(), program.mode.as_str());
    if program.ours {
        return match &facts.port {
            Some(port) if port.users.iter().all(|&user| user == facts.uid) => {
                Check::ok(WHAT, format!("{what}: unetmapd's, the port is open"))
            }
            Some(OpenPort { users, .. }) => {
                let user = users.iter().find(|&&user| user != facts.uid).copied().unwrap_or_default();
                Check::missing(WHAT, format!("{what}: unetmapd's, user {user} has the port open"))
                    .fix("end that user's program")
            }
            None => Check::missing(WHAT, format!("{what}: unetmapd's, another user has the port open")),
        };
    }
    if !program.members.is_empty() {
        return Check::ok(WHAT, format!("{what}: a dispatcher of libxdp, which a port's program joins"));
    }
    if let Some(Holder { pid, command, link }) = &program.holder {
        return Check::missing(WHAT, format!("{what}, is held by {command} (process {pid})"))
            .fix(format!("end that process, or bpftool link detach id {link}"));
    }
    let option = program.mode.ip_option();
    Check::missing(WHAT, format!("{what}, is attached by another process"))
        .fix(format!("ip link set dev {name} {option} off"))
}

/// Returns the data path and the reason: of the open port, else by trial, else from the driver's features.
fn data_path(facts: &Facts, kernel: Option<Version>) -> (Option<&'static str>, Check) {
    const WHAT: &str = "data path";
    if let Some(OpenPort { data_path: Some(current), copied, .. }) = &facts.port
        && current.starts_with(PACKET)
    {
        let why = copied.as_ref().map_or(String::new(), |why| format!("; {why}"));
        return (Some(PACKET), Check::ok(WHAT, format!("{current}, the data path of the open port{why}")));
    }
    if let Some(port) = facts.port.as_ref().filter(|_| facts.program.as_ref().is_some_and(|p| p.ours)) {
        let current =
            [ZERO_COPY, COPY, GENERIC, RELAY].into_iter().find(|&path| port.data_path.as_deref() == Some(path));
        if let Some(current) = current {
            let why = port.copied.as_ref().map_or(String::new(), |why| format!("; {why}"));
            return (Some(current), Check::ok(WHAT, format!("{current}, the data path of the open port{why}")));
        }
    }
    if let Some((why, by_packets)) = &facts.found {
        let path = if *by_packets { PACKET } else { RELAY };
        let name = &facts.link.name;
        return (Some(path), Check::ok(WHAT, format!("{path}: {why} (unetmap nic {name} way auto: as before)")));
    }
    let by_packets = match facts.way {
        Way::Packet => Some(ZeroCopyObstacle::Chosen(&facts.link.name, facts.way).to_string()),
        Way::Auto => {
            let completed = kernel.is_none_or(|version| version >= kernel::HOST_RINGS.least);
            let unfinished = facts.stays_on.as_ref().filter(|_| !completed);
            let unfinished =
                unfinished.map(|what| format!("{what} cannot be switched off, so frames arrive unfinished"));
            facts.no_bpf.clone().or(unfinished)
        }
        Way::Copy | Way::ZeroCopy | Way::Generic => None,
    };
    if let Some(why) = by_packets {
        return (Some(PACKET), Check::ok(WHAT, format!("{PACKET}: {why}")));
    }
    if facts.offloads == Some(Offloads::Relayed) && kernel.is_none_or(|version| version >= kernel::HOST_RINGS.least) {
        let why = facts.stays_on.as_ref().map_or(String::new(), |what| format!(", as {what} cannot be switched off"));
        let text =
            format!("{RELAY}: the kernel completes frames there, which can arrive unfinished at this interface{why}");
        return (Some(RELAY), Check::ok(WHAT, text));
    }
    if !facts.link.redirects_natively() {
        let text = format!("{GENERIC}: a native program would run at its members, whose frames its sockets refuse");
        return (Some(GENERIC), Check::ok(WHAT, text));
    }
    if facts.driver.as_ref().is_some_and(|driver| !driver.keeps_native_program()) {
        let text = format!("{GENERIC}: the driver runs no native program any more after the device was reset");
        return (Some(GENERIC), Check::ok(WHAT, text));
    }
    if facts.way == Way::Generic {
        let name = &facts.link.name;
        return (Some(GENERIC), Check::ok(WHAT, format!("{GENERIC}: {}", ZeroCopyObstacle::Chosen(name, facts.way))));
    }
    let untested = match &facts.trial {
        Ok(trial) => {
            let (path, check) = tested(WHAT, trial, facts);
            return (path, if path == Some(GENERIC) { generic_fix(check, facts) } else { check });
        }
        Err(why) => why,
    };
    let Some((path, why)) = expected(facts) else {
        let text = format!(
            "untested ({untested}), and the kernel reports driver features only since Linux 6.3; the daemon tries native \
             with zero copy, then native with copy, then generic"
        );
        return (None, Check::unknown(WHAT, text).optional());
    };
    let check = Check::unknown(WHAT, format!("{path}: {why}; untested ({untested})")).optional();
    (Some(path), if path == GENERIC { generic_fix(check, facts) } else { check })
}

/// Returns the data path that a trial found.
fn tested(what: &'static str, trial: &QueueTrial, facts: &Facts) -> (Option<&'static str>, Check) {
    let queue = trial.queue;
    let program = trial.generic.as_ref().unwrap_or(&trial.native);
    if let Err(e) = program {
        return (None, Check::missing(what, format!("no XDP program can be attached: {e}")));
    }
    match (&trial.zero_copy, &trial.copy) {
        (Some(Ok(())), _) if trial.queues_with_program.is_some_and(|queues| queues > facts.queues.rx) => {
            let why = ZeroCopyObstacle::AddedQueues(&facts.link.name);
            (Some(COPY), Check::ok(what, format!("{COPY}: tried on queue {queue}; {why}")))
        }
        (Some(Ok(())), _) => (Some(ZERO_COPY), Check::ok(what, format!("{ZERO_COPY}: tried on queue {queue}"))),
        (_, Some(Err(e))) if e.kind() == io::ErrorKind::ResourceBusy => {
            (None, Check::unknown(what, format!("untested: another AF_XDP socket holds queue {queue}")).optional())
        }
        (_, Some(Err(e))) => (None, Check::missing(what, format!("queue {queue} cannot be opened: {e}"))),
        (zero_copy, _) => {
            let (path, why) = match (&trial.native, zero_copy) {
                (Err(e), _) => (GENERIC, format!("the driver refused the XDP program ({e})")),
                (Ok(()), Some(Err(error))) => {
                    let driver = facts.driver.as_ref().map(|driver| &*driver.name);
                    (COPY, ZeroCopyObstacle::Refused { driver, error }.to_string())
                }
                (Ok(()), _) => (COPY, no_zero_copy(facts)),
            };
            (Some(path), Check::ok(what, format!("{path}: tried on queue {queue}; {why}")))
        }
    }
}

/// Returns the data path that the driver's features promise, and why. The order is the one in which the daemon tries
/// the data paths.
fn expected(facts: &Facts) -> Option<(&'static str, String)> {
    let (path, why) = match facts.features? {
        XdpFeatures { basic: false, .. } if facts.link.kind.as_deref() == Some("veth") => {
            (GENERIC, "this end of the veth pair has fewer receive queues than the other end has transmit queues")
        }
        XdpFeatures { basic: false, .. } => (GENERIC, "the driver does not support XDP programs"),
        XdpFeatures { redirect: false, .. } => {
            (GENERIC, "the driver supports XDP programs, but not the redirection of frames to sockets")
        }
        XdpFeatures { rx_sg: false, .. } if facts.link.mtu > NATIVE_MTU => {
            (GENERIC, "the driver does not support XDP programs with this MTU, whose frames need several buffers")
        }
        XdpFeatures { zerocopy: true, .. } if facts.no_zero_copy.is_none() => {
            (ZERO_COPY, "the driver uses the port's buffers directly")
        }
        _ => return Some((COPY, no_zero_copy(facts))),
    };
    Some((path, why.into()))
}

/// Why a port copies.
fn no_zero_copy(facts: &Facts) -> String {
    facts.no_zero_copy.clone().unwrap_or_else(|| match facts.features {
        None => ZeroCopyObstacle::Unknown.to_string(),
        Some(_) => ZeroCopyObstacle::Unsupported.to_string(),
    })
}

/// Adds what makes a faster data path possible.
fn generic_fix(check: Check, facts: &Facts) -> Check {
    let name = &facts.link.name;
    match facts.features {
        Some(features) if features.basic && features.redirect => {
            check.fix(format!("ip link set dev {name} mtu {NATIVE_MTU}"))
        }
        _ if facts.link.kind.as_deref() == Some("veth") => {
            check.fix(format!("add receive queues: ethtool -L {name} rx N"))
        }
        _ => check,
    }
}

/// Checks for features that the driver lacks.
fn missing_features(features: XdpFeatures) -> Option<Check> {
    let all = [(features.zerocopy, "zero copy"), (features.rx_sg, "received frames of several buffers")];
    let missing: Vec<&str> = match features.basic {
        true => all.iter().filter(|(has, _)| !has).map(|&(_, what)| what).collect(),
        false => vec!["native XDP"],
    };
    let text = || format!("the driver does not support {}", missing.join(", "));
    (!missing.is_empty()).then(|| Check::missing("driver", text()).optional())
}

#[cfg(test)]
mod tests;

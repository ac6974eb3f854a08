//! What an interface and its driver can do.

use serde::{Serialize, Serializer};
use unetmap_sys::link::{AttachedMode, ChannelSettings, Channels, DriverInfo, Link, XdpFeatures};

use super::Check;
use super::machine::{Kernel, OpenPort};

/// Bytes of a packet buffer, as the daemon has it by default.
const BUFFER: u32 = 2048;
/// Bytes of an Ethernet header with one VLAN tag.
const HEADER: u32 = 18;
/// The MTU up to which each driver with XDP takes programs: what is left of a page of 4 KiB, with some to spare.
const NATIVE_MTU: u32 = 3400;

const ZERO_COPY: &str = "native, zero copy";
const COPY: &str = "native, copy";
const GENERIC: &str = "generic, copy";

/// What is known about an interface.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) link: Link,
    pub(super) driver: Option<DriverInfo>,
    pub(super) queues: Channels,
    pub(super) settings: Option<ChannelSettings>,
    /// `None`: the kernel does not tell.
    pub(super) features: Option<XdpFeatures>,
    /// The XDP program that is attached.
    pub(super) program: Option<Program>,
    /// The port of this name, if the daemon serves one.
    pub(super) port: Option<OpenPort>,
    /// Our own effective user.
    pub(super) uid: u32,
}

/// An attached XDP program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Program {
    #[serde(serialize_with = "mode_word")]
    pub(super) mode: AttachedMode,
    pub(super) id: u32,
    /// `None`: it has none, or we may not know.
    pub(super) name: Option<String>,
    /// The process that keeps it attached by a BPF link.
    pub(super) holder: Option<Holder>,
    /// Whether it is the daemon's.
    pub(super) ours: bool,
}

/// A process with a BPF link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Holder {
    pub(super) pid: u32,
    pub(super) command: String,
    pub(super) link: u32,
}

impl Program {
    /// Name and number.
    pub(super) fn label(&self) -> String {
        match &self.name {
            Some(name) => format!("{name} (id {})", self.id),
            None => format!("id {}", self.id),
        }
    }
}

fn mode_word<S: Serializer>(mode: &AttachedMode, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(mode.word())
}

/// All that can be said about an interface.
#[derive(Debug, Serialize)]
pub(super) struct Finding {
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
    features: Option<Features>,
    /// How packets would get in and out, or how they do, where the port is open; `None` where that is not known.
    pub(super) way: Option<&'static str>,
    /// No check of this interface that a port needs is missing.
    pub(super) ok: bool,
    pub(super) checks: Vec<Check>,
}

impl Finding {
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

/// Queues, and how many there could be.
#[derive(Debug, Serialize)]
pub(super) struct Queues {
    pub(super) rx: u32,
    pub(super) tx: u32,
    max_rx: Option<u32>,
    max_tx: Option<u32>,
}

/// As the kernel names them.
#[derive(Debug, Serialize)]
struct Features {
    basic: bool,
    redirect: bool,
    ndo_xmit: bool,
    xsk_zerocopy: bool,
    hw_offload: bool,
    rx_sg: bool,
    ndo_xmit_sg: bool,
    zc_max_segs: u32,
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

/// Judges an interface under a kernel, whose version may not be known.
pub(super) fn judge(facts: &Facts, kernel: Option<Kernel>) -> Finding {
    let link = &facts.link;
    let (way, way_check) = way(facts);
    let mut checks = vec![identity(facts), state(link), mtu(link, facts.features, way, kernel), queues(facts)];
    checks.extend([program(facts), way_check]);
    checks.extend(facts.features.and_then(lacks));
    let max = |count: fn(&ChannelSettings) -> u32| facts.settings.as_ref().map(count);
    Finding {
        name: link.name.clone(),
        index: link.index,
        driver: facts.driver.clone().map(|DriverInfo { name, version }| Driver { name, version }),
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
        way,
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
        Some(DriverInfo { name, version }) => format!("driver {name} {version}"),
        None => "no driver that tells its name".into(),
    };
    match link.mac {
        Some(address) => Check::ok("interface", format!("index {}, {driver}, {}", link.index, mac(address))),
        None => {
            let text =
                format!("index {}, {driver}: its packets have no Ethernet header, which netmap expects", link.index);
            Check::unknown("interface", text)
        }
    }
}

fn state(link: &Link) -> Check {
    match (link.up, link.carrier) {
        (false, _) => {
            let down =
                Check::missing("state", "down: it is not opened so, and one that goes down sends and receives nothing");
            down.fix(format!("ip link set dev {} up", link.name))
        }
        (true, false) => Check::ok("state", "up, without a carrier: nothing arrives before the other end is up"),
        (true, true) => Check::ok("state", "up"),
    }
}

/// Whether the longest frames have room.
fn mtu(link: &Link, features: Option<XdpFeatures>, way: Option<&str>, kernel: Option<Kernel>) -> Check {
    let (mtu, frame) = (link.mtu, link.mtu.saturating_add(HEADER));
    if frame <= BUFFER {
        return Check::ok("MTU", format!("{mtu}: frames fit the default buffers of {BUFFER} bytes"));
    }
    let fix = format!("ip link set dev {} mtu {}", link.name, BUFFER - HEADER);
    let long = format!("{mtu}: frames of {frame} bytes do not fit the default buffers of {BUFFER}");
    let one_segment = features.is_some_and(|features| features.zc_max_segs <= 1);
    match kernel {
        None => Check::unknown("MTU", format!("{long}, and the kernel's version cannot be read")).fix(fix),
        Some(kernel) if kernel < Kernel::FRAGS => {
            Check::missing("MTU", format!("{long}, and Linux before {} has no frames of several", Kernel::FRAGS))
                .fix(fix)
        }
        Some(_) if way == Some(ZERO_COPY) && one_segment => {
            Check::missing("MTU", format!("{long}, and the driver's zero copy takes one buffer a frame")).fix(fix)
        }
        Some(_) => {
            let buffers = frame.div_ceil(BUFFER);
            Check::ok("MTU", format!("{mtu}: a frame takes up to {buffers} of the default buffers of {BUFFER} bytes"))
        }
    }
}

fn queues(facts: &Facts) -> Check {
    let Channels { rx, tx } = facts.queues;
    let check = Check::ok("queues", format!("{rx} receive, {tx} transmit: a ring for each"));
    let name = &facts.link.name;
    match facts.settings {
        Some(set) if set.max_combined > set.combined => {
            check.fix(format!("ethtool -L {name} combined {} gives the most", set.max_combined))
        }
        Some(set) if set.max_combined == 0 && (set.max_rx > set.rx || set.max_tx > set.tx) => {
            check.fix(format!("ethtool -L {name} rx {} tx {} gives the most", set.max_rx, set.max_tx))
        }
        _ => check,
    }
}

/// Judges what is attached already.
fn program(facts: &Facts) -> Check {
    const WHAT: &str = "XDP program";
    let Some(program) = &facts.program else { return Check::ok(WHAT, "none is attached") };
    let name = &facts.link.name;
    let what = format!("{}, {}", program.label(), program.mode.word());
    if program.ours {
        return match &facts.port {
            Some(port) if port.users.iter().all(|&user| user == facts.uid) => {
                Check::ok(WHAT, format!("{what}: unetmapd's, the port is open"))
            }
            Some(OpenPort { users, .. }) => {
                let user = users.iter().find(|&&user| user != facts.uid).copied().unwrap_or_default();
                Check::missing(WHAT, format!("{what}: unetmapd's, user {user} has the port open"))
                    .fix("end that program")
            }
            None => Check::missing(WHAT, format!("{what}: unetmapd's, another user has the port open")),
        };
    }
    if let Some(Holder { pid, command, link }) = &program.holder {
        return Check::missing(WHAT, format!("{what}, is held by {command} (process {pid})"))
            .fix(format!("end that process, or bpftool link detach id {link}"));
    }
    let option = program.mode.ip_option();
    Check::missing(WHAT, format!("{what}, is attached by somebody else"))
        .fix(format!("ip link set dev {name} {option} off"))
}

/// Which way packets take, and why. The daemon tries them in this order, too.
fn way(facts: &Facts) -> (Option<&'static str>, Check) {
    const WHAT: &str = "way";
    if let Some(manner) = facts.port.as_ref().filter(|_| facts.program.as_ref().is_some_and(|p| p.ours)) {
        let way = [ZERO_COPY, COPY, GENERIC].into_iter().find(|&way| manner.manner.as_deref() == Some(way));
        if let Some(way) = way {
            return (Some(way), Check::ok(WHAT, format!("{way}, as it is open now")));
        }
    }
    let Some(features) = facts.features else {
        let text = "the kernel tells what drivers can do from Linux 6.3 on; tried are native with zero copy, native with \
                    copy, generic";
        return (None, Check::unknown(WHAT, text).optional());
    };
    let (way, why) = match features {
        XdpFeatures { basic: false, .. } if facts.link.kind.as_deref() == Some("veth") => {
            (GENERIC, "this end of the cable has fewer receive queues than the other transmit queues")
        }
        XdpFeatures { basic: false, .. } => (GENERIC, "the driver runs no XDP programs"),
        XdpFeatures { redirect: false, .. } => {
            (GENERIC, "the driver runs XDP programs, but they cannot lead frames to sockets")
        }
        XdpFeatures { rx_sg: false, .. } if facts.link.mtu > NATIVE_MTU => {
            (GENERIC, "with this MTU the driver takes no XDP programs, as its frames have several buffers")
        }
        XdpFeatures { zerocopy: true, .. } => (ZERO_COPY, "packets go straight to and from the port's buffers"),
        _ => (COPY, "the driver has no zero copy, so the kernel copies each packet"),
    };
    let check = Check::ok(WHAT, format!("{way}: {why}"));
    let name = &facts.link.name;
    let check = match (way, facts.link.kind.as_deref()) {
        (GENERIC, _) if features.basic && features.redirect => {
            check.fix(format!("ip link set dev {name} mtu {NATIVE_MTU}"))
        }
        (GENERIC, Some("veth")) => check.fix(format!("more of them: ethtool -L {name} rx N")),
        _ => check,
    };
    (Some(way), check)
}

/// What the driver cannot do.
fn lacks(features: XdpFeatures) -> Option<Check> {
    let all = [(features.zerocopy, "zero copy"), (features.rx_sg, "received frames of several buffers")];
    let lacks: Vec<&str> = match features.basic {
        true => all.iter().filter(|(has, _)| !has).map(|&(_, what)| what).collect(),
        false => vec!["native XDP"],
    };
    (!lacks.is_empty()).then(|| Check::missing("driver", format!("it has no {}", lacks.join(", no "))).optional())
}

#[cfg(test)]
mod tests;

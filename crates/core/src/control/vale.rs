// SPDX-License-Identifier: BSD-2-Clause
//! Requests about a switch, its ports and the threads that serve all switches. `unetmap vale` sends them.
//!
//! ```text
//! request   a head, a name, then by action: a set of VLANs, or a filter's expression and instructions
//! reply     the state after the request, as JSON; or an errno and the reason
//! ```

use std::fmt;
use std::os::fd::AsFd;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::control::client;
use crate::control::nic::Filter;
use crate::control::stop::is_anything_left;
use crate::control::wire::{ControlRequest, Kind};
use crate::error::{Error, errno};

/// Bytes of the longest name of a switch or a port.
pub const MAX_NAME: usize = 63;
/// Threads that may serve the switches.
pub const MAX_THREADS: u16 = 64;
/// CPU numbers are below this.
pub const MAX_CPUS: u16 = 1024;
/// Bytes of the longest label of a port: a pod's namespace, `/`, and its name.
pub const MAX_LABEL: usize = 63 + 1 + 253;
/// The longest aging time of a MAC address, seconds: 30 days.
pub const MAX_AGE: u32 = 30 * 24 * 3600;

/// The action of a request about switches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValeAction {
    /// Returns all switches; without a name.
    List,
    /// Returns one switch.
    Show,
    /// Returns one port.
    ShowPort,
    /// Sets the aging time of a switch's MAC addresses in seconds, 1..=[`MAX_AGE`]; 0: addresses do not age.
    Age(u32),
    /// Sets the VLANs of a port.
    Vlan(Option<VlanMode>),
    /// Sets a rate limit of a port.
    Limit(Direction, RateLimit),
    /// Sets how many flooded packets a port may send in a second; 0: no limit.
    Storm(u64),
    /// Sets or removes a filter of a port.
    Filter(Direction, Option<Filter>),
    /// Sets what a port is called for people, which [`is_label`] takes; `None` removes it.
    Label(Option<String>),
    /// Removes everything that is set for a port.
    Clear,
    /// Returns the threads that serve all switches; without a name.
    Threads,
    /// Sets number and CPUs of these threads; without a name.
    SetThreads(ThreadConfig),
}

/// The threads that serve the switches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadConfig {
    /// Number of threads, 1..=[`MAX_THREADS`].
    pub threads: u16,
    /// The CPUs, each below [`MAX_CPUS`], to which the threads are pinned in turn, starting over if there are more
    /// threads; at most [`MAX_THREADS`]. Empty: threads are not pinned.
    pub cpus: Vec<u16>,
}

impl Default for ThreadConfig {
    fn default() -> ThreadConfig {
        ThreadConfig { threads: 1, cpus: Vec::new() }
    }
}

impl ThreadConfig {
    /// Returns the CPU that a thread is pinned to; `None`: any.
    pub fn cpu_of(&self, thread: usize) -> Option<u16> {
        self.cpus.get(thread % self.cpus.len().max(1)).copied()
    }

    /// Checks that all numbers are within their bounds.
    ///
    /// # Errors
    /// One sentence that names the first one that is not.
    pub fn check(&self) -> Result<(), String> {
        let ThreadConfig { threads, cpus } = self;
        if !(1..=MAX_THREADS).contains(threads) {
            return Err(format!("{threads} threads: switches have 1 to {MAX_THREADS}"));
        }
        if cpus.len() > usize::from(MAX_THREADS) {
            return Err(format!("{} processors: a list has at most {MAX_THREADS}", cpus.len()));
        }
        match cpus.iter().find(|cpu| **cpu >= MAX_CPUS) {
            Some(cpu) => Err(format!("processor {cpu}: numbers are below {MAX_CPUS}")),
            None => Ok(()),
        }
    }
}

/// A request about a switch (`vale0`) or a port (`vale0:a`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValeRequest {
    /// The switch or the port; empty for all.
    pub name: String,
    /// The action.
    pub action: ValeAction,
}

/// The fixed part of the payload.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Head {
    action: u16,
    direction: u16,
    name_bytes: u32,
    /// Bytes of the filter expression.
    text_bytes: u32,
    zero: u32,
    numbers: [u64; 2],
}

const LIST: u16 = 0;
const SHOW: u16 = 1;
const SHOW_PORT: u16 = 2;
const AGE: u16 = 3;
const NO_VLAN: u16 = 4;
const ACCESS: u16 = 5;
const TRUNK: u16 = 6;
const LIMIT: u16 = 7;
const STORM: u16 = 8;
const FILTER: u16 = 9;
const NO_FILTER: u16 = 10;
const CLEAR: u16 = 11;
const THREADS: u16 = 12;
const SET_THREADS: u16 = 13;
const LABEL: u16 = 14;
const NO_LABEL: u16 = 15;

impl ValeAction {
    /// Changes the settings of a port as the action says; an action that concerns no settings changes nothing.
    pub fn apply_to(self, rules: &mut PortPolicy) {
        match self {
            ValeAction::Vlan(vlan) => rules.vlan = vlan,
            ValeAction::Limit(direction, limit) => rules.limits[direction as usize] = limit,
            ValeAction::Storm(packets) => rules.storm = packets,
            ValeAction::Filter(direction, filter) => rules.filters[direction as usize] = filter,
            ValeAction::Label(label) => rules.label = label,
            ValeAction::Clear => *rules = PortPolicy::default(),
            // Named, so that the compiler reports an action that is forgotten here.
            ValeAction::List
            | ValeAction::Threads
            | ValeAction::SetThreads(_)
            | ValeAction::Show
            | ValeAction::Age(_)
            | ValeAction::ShowPort => {}
        }
    }

    /// Whether the action concerns no switch in particular.
    fn is_of_all(&self) -> bool {
        matches!(self, ValeAction::List | ValeAction::Threads | ValeAction::SetThreads(_))
    }
}

impl ControlRequest for ValeRequest {
    const KIND: Kind = Kind(11);

    fn encode(&self) -> Vec<u8> {
        let (mut direction, mut numbers, mut text, mut body) = (0, [0, 0], "", Vec::new());
        let action = match &self.action {
            ValeAction::List => LIST,
            ValeAction::Show => SHOW,
            ValeAction::ShowPort => SHOW_PORT,
            ValeAction::Age(seconds) => {
                numbers[0] = u64::from(*seconds);
                AGE
            }
            ValeAction::Vlan(None) => NO_VLAN,
            ValeAction::Vlan(Some(VlanMode::Access(vlan))) => {
                numbers[0] = u64::from(*vlan);
                ACCESS
            }
            ValeAction::Vlan(Some(VlanMode::Trunk(all))) => {
                body = all.to_bytes();
                TRUNK
            }
            ValeAction::Limit(of, limit) => {
                (direction, numbers) = (*of as u16, [limit.packets, limit.bits]);
                LIMIT
            }
            ValeAction::Storm(packets) => {
                numbers[0] = *packets;
                STORM
            }
            ValeAction::Filter(of, filter) => {
                direction = *of as u16;
                match filter {
                    Some(filter) => {
                        (text, body) = (&filter.expression, filter.encode_program());
                        FILTER
                    }
                    None => NO_FILTER,
                }
            }
            ValeAction::Label(Some(label)) => {
                text = label;
                LABEL
            }
            ValeAction::Label(None) => NO_LABEL,
            ValeAction::Clear => CLEAR,
            ValeAction::Threads => THREADS,
            ValeAction::SetThreads(config) => {
                numbers[0] = config.threads.into();
                body = config.cpus.as_bytes().to_vec();
                SET_THREADS
            }
        };
        let [name_bytes, text_bytes] = [self.name.len(), text.len()].map(|n| n as u32);
        let head = Head { action, direction, name_bytes, text_bytes, zero: 0, numbers };
        [head.as_bytes(), self.name.as_bytes(), text.as_bytes(), &body].concat()
    }

    /// # Errors
    /// `EINVAL` if the action does not exist, or a part is missing, too long or out of its bounds.
    fn decode(payload: &[u8]) -> Result<ValeRequest, i32> {
        decode(payload).ok_or(errno::EINVAL)
    }
}

fn decode(bytes: &[u8]) -> Option<ValeRequest> {
    let (head, rest) = Head::read_from_prefix(bytes).ok()?;
    let (name, rest) = rest.split_at_checked(head.name_bytes as usize)?;
    let (text, body) = rest.split_at_checked(head.text_bytes as usize)?;
    let direction = [Direction::In, Direction::Out].into_iter().find(|d| *d as u16 == head.direction)?;
    let [first, second] = head.numbers;
    let (action, body) = match head.action {
        LIST => (ValeAction::List, body),
        SHOW => (ValeAction::Show, body),
        SHOW_PORT => (ValeAction::ShowPort, body),
        AGE => (ValeAction::Age(u32::try_from(first).ok().filter(|seconds| *seconds <= MAX_AGE)?), body),
        NO_VLAN => (ValeAction::Vlan(None), body),
        ACCESS => {
            let vlan = u16::try_from(first).ok().filter(|vlan| VLAN_IDS.contains(vlan))?;
            (ValeAction::Vlan(Some(VlanMode::Access(vlan))), body)
        }
        TRUNK => (ValeAction::Vlan(Some(VlanMode::Trunk(VlanSet::from_bytes(body)?))), &[][..]),
        LIMIT => (ValeAction::Limit(direction, RateLimit { packets: first, bits: second }), body),
        STORM => (ValeAction::Storm(first), body),
        FILTER => (ValeAction::Filter(direction, Some(Filter::decode(text, body)?)), &[][..]),
        NO_FILTER => (ValeAction::Filter(direction, None), body),
        LABEL => {
            let label = std::str::from_utf8(text).ok().filter(|label| is_label(label))?;
            (ValeAction::Label(Some(label.to_owned())), body)
        }
        NO_LABEL => (ValeAction::Label(None), body),
        CLEAR => (ValeAction::Clear, body),
        THREADS => (ValeAction::Threads, body),
        SET_THREADS => {
            let pairs = body.chunks_exact(2);
            let whole = pairs.remainder().is_empty();
            let cpus = pairs.map(|pair| u16::from_ne_bytes([pair[0], pair[1]])).collect();
            let config = ThreadConfig { threads: u16::try_from(first).ok()?, cpus };
            (ValeAction::SetThreads(Some(config).filter(|config| whole && config.check().is_ok())?), &[][..])
        }
        _ => return None,
    };
    let valid_size = body.is_empty() && (matches!(head.action, FILTER | LABEL) || text.is_empty());
    if !valid_size || name.len() > MAX_NAME || name.is_empty() != action.is_of_all() {
        return None;
    }
    Some(ValeRequest { name: std::str::from_utf8(name).ok()?.to_owned(), action })
}

impl ValeAction {
    /// Whether it changes nothing.
    pub fn shows(&self) -> bool {
        use ValeAction::{Filter, List, Show, ShowPort, Threads};
        matches!(self, List | Threads | Show | ShowPort | Filter(_, None))
    }
}

impl ValeRequest {
    /// Whether a daemon is started for the request: settings apply to ports that are opened later.
    fn sets(&self) -> bool {
        let nothing = [
            ValeAction::Age(0),
            ValeAction::Vlan(None),
            ValeAction::Storm(0),
            ValeAction::Label(None),
            ValeAction::Clear,
            ValeAction::SetThreads(ThreadConfig::default()),
        ];
        !self.action.shows()
            && !nothing.contains(&self.action)
            && !matches!(self.action, ValeAction::Limit(_, limit) if limit == RateLimit::default())
    }
}

/// Sends the request to the daemon that serves this user's switches, and returns the state after it, as JSON. Starts a
/// daemon only to set something, or to remove what an earlier one may have left; `None` if no daemon runs, and so
/// nothing is set.
///
/// # Errors
/// The daemon's refusal, or no daemon answers and none could be started.
pub fn send_request(request: &ValeRequest) -> Result<Option<String>, Error> {
    let subject = if request.name.is_empty() { "the switches" } else { &request.name };
    if let Some(connection) = client::connect_system() {
        let reply = client::send(connection.fd.as_fd(), subject, request)?;
        // Otherwise this user's switches are in a daemon of the user's own.
        if reply.errno != errno::EACCES {
            return reply.into_text(subject).map(Some);
        }
    }
    let starts = request.sets() || !request.action.shows() && is_anything_left()?;
    let Some(connection) = client::running_or_started(starts)? else { return Ok(None) };
    client::send(connection.fd.as_fd(), subject, request)?.into_text(subject).map(Some)
}

/// Whether a text can be the label of a port: 1 to [`MAX_LABEL`] visible characters of ASCII, no quotes or backslashes.
pub fn is_label(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\'' | b'\\');
    (1..=MAX_LABEL).contains(&text.len()) && text.bytes().all(is_plain)
}

/// Valid VLAN numbers: 1..=4094.
pub const VLAN_IDS: std::ops::RangeInclusive<u16> = 1..=4094;

/// A set of VLANs.
#[derive(Clone, PartialEq, Eq)]
pub struct VlanSet(Box<[u64; 64]>);

impl VlanSet {
    /// Bytes of its encoding.
    pub const BYTES: usize = 512;

    /// Returns the set of all valid VLANs in `ranges`.
    pub fn new(ranges: impl IntoIterator<Item = std::ops::RangeInclusive<u16>>) -> VlanSet {
        let mut set = VlanSet(Box::new([0; 64]));
        for vlan in ranges.into_iter().flatten().filter(|vlan| VLAN_IDS.contains(vlan)) {
            set.0[usize::from(vlan / 64)] |= 1 << (vlan % 64);
        }
        set
    }

    /// Whether the set contains `vlan`.
    #[inline]
    pub fn has(&self, vlan: u16) -> bool {
        self.0.get(usize::from(vlan / 64)).is_some_and(|word| word & 1 << (vlan % 64) != 0)
    }

    /// Returns the encoding that [`VlanSet::from_bytes`] parses.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Parses an encoding; `None` if it does not have [`VlanSet::BYTES`] bytes, is empty, or has a VLAN that is not
    /// valid.
    pub fn from_bytes(bytes: &[u8]) -> Option<VlanSet> {
        let mut set = VlanSet(Box::new([0; 64]));
        let words = bytes.as_chunks::<8>();
        if bytes.len() != VlanSet::BYTES {
            return None;
        }
        set.0.iter_mut().zip(words.0).for_each(|(word, bytes)| *word = u64::from_le_bytes(*bytes));
        let exist = !set.has(0) && !set.has(4095) && set.0.iter().any(|word| *word != 0);
        exist.then_some(set)
    }
}

impl fmt::Display for VlanSet {
    /// Writes ranges: `10,20-30`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut vlan, mut separator) = (*VLAN_IDS.start(), "");
        while vlan <= *VLAN_IDS.end() {
            if !self.has(vlan) {
                vlan += 1;
                continue;
            }
            let first = vlan;
            while self.has(vlan + 1) {
                vlan += 1;
            }
            write!(f, "{separator}{first}")?;
            if vlan > first {
                write!(f, "-{vlan}")?;
            }
            (vlan, separator) = (vlan + 1, ",");
        }
        Ok(())
    }
}

impl fmt::Debug for VlanSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VlanSet({self})")
    }
}

/// The VLANs that a port belongs to. A port without a mode is unrestricted: its frames keep their tags, and it receives
/// the frames of VLANs with a tag.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum VlanMode {
    /// The port belongs to this VLAN: its frames are untagged, and the switch assigns them to the VLAN.
    Access(u16),
    /// The port belongs to these VLANs: the tag of each frame selects one.
    Trunk(VlanSet),
}

impl VlanMode {
    /// Whether a port with this mode receives frames of VLAN `vlan` (0: untagged).
    #[inline]
    pub fn carries(&self, vlan: u16) -> bool {
        match self {
            VlanMode::Access(own) => *own == vlan,
            VlanMode::Trunk(all) => all.has(vlan),
        }
    }
}

/// A direction, seen from the switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// Frames that the port sends.
    In = 0,
    /// Frames that it receives.
    Out = 1,
}

/// How much a port may send or receive in a second. 0: no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RateLimit {
    /// Packets.
    pub packets: u64,
    /// Bits of their frames, without checksums and virtio-net headers.
    pub bits: u64,
}

/// Everything that is set for a port.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PortPolicy {
    /// Its VLANs.
    pub vlan: Option<VlanMode>,
    /// By [`Direction`].
    pub limits: [RateLimit; 2],
    /// Flooded packets (broadcast, multicast, and those to unknown addresses) that it may send in a second; 0: no
    /// limit.
    pub storm: u64,
    /// By [`Direction`]: packets that match pass.
    pub filters: [Option<Filter>; 2],
    /// A name for people, such as its pod's: no rule for packets.
    pub label: Option<String>,
}

impl PortPolicy {
    /// Returns it without what concerns no packet; `None` if nothing is left.
    pub fn rules_for_packets(&self) -> Option<PortPolicy> {
        let rules = PortPolicy { label: None, ..self.clone() };
        (rules != PortPolicy::default()).then_some(rules)
    }

    /// Returns the actions that set all of it at a port that has nothing set.
    pub fn actions(&self) -> Vec<ValeAction> {
        let PortPolicy { vlan, limits, storm, filters, label } = self;
        let mut actions = Vec::new();
        if vlan.is_some() {
            actions.push(ValeAction::Vlan(vlan.clone()));
        }
        if *storm > 0 {
            actions.push(ValeAction::Storm(*storm));
        }
        if label.is_some() {
            actions.push(ValeAction::Label(label.clone()));
        }
        for direction in [Direction::In, Direction::Out] {
            let (limit, filter) = (limits[direction as usize], &filters[direction as usize]);
            if limit != RateLimit::default() {
                actions.push(ValeAction::Limit(direction, limit));
            }
            if filter.is_some() {
                actions.push(ValeAction::Filter(direction, filter.clone()));
            }
        }
        actions
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use unetmap_sys::xdp::ClassicInsn;

    use super::*;

    fn all() -> Vec<ValeAction> {
        let insn = ClassicInsn { code: 6, jt: 0, jf: 0, k: 7 };
        let filter = Filter { expression: "udp".into(), program: vec![insn, insn] };
        vec![
            ValeAction::Show,
            ValeAction::ShowPort,
            ValeAction::Age(300),
            ValeAction::Vlan(None),
            ValeAction::Vlan(Some(VlanMode::Access(10))),
            ValeAction::Vlan(Some(VlanMode::Trunk(VlanSet::new([10..=20, 4000..=4094])))),
            ValeAction::Limit(Direction::Out, RateLimit { packets: 5, bits: u64::MAX }),
            ValeAction::Storm(9),
            ValeAction::Filter(Direction::Out, Some(filter)),
            ValeAction::Filter(Direction::In, None),
            ValeAction::Label(None),
            ValeAction::Label(Some("default/web".into())),
            ValeAction::Clear,
        ]
    }

    #[test]
    fn the_actions_of_a_policy_set_all_of_it() {
        let mut policy = PortPolicy::default();
        all().into_iter().filter(|action| *action != ValeAction::Clear).for_each(|action| action.apply_to(&mut policy));
        let mut copy = PortPolicy::default();
        policy.actions().into_iter().for_each(|action| action.apply_to(&mut copy));
        assert_eq!(copy, policy);
    }

    fn threads(threads: u16, cpus: &[u16]) -> ValeAction {
        ValeAction::SetThreads(ThreadConfig { threads, cpus: cpus.into() })
    }

    #[test]
    fn a_request_survives_encoding_and_decoding() {
        for action in all() {
            let request = ValeRequest { name: "vale0:a".into(), action };
            assert_eq!(ValeRequest::decode(&request.encode()), Ok(request));
        }
        for action in [
            ValeAction::List,
            ValeAction::Threads,
            ValeAction::SetThreads(ThreadConfig::default()),
            threads(64, &[3, 1, 1023]),
        ] {
            let request = ValeRequest { name: String::new(), action };
            assert_eq!(ValeRequest::decode(&request.encode()), Ok(request));
        }
    }

    #[test]
    fn malformed_requests_are_rejected() {
        let with = |name: &str, action| ValeRequest { name: name.into(), action }.encode();
        let long = "x".repeat(MAX_NAME + 1);
        for bytes in [
            with("", ValeAction::Show),
            with("vale0", ValeAction::List),
            with(&long, ValeAction::Show),
            with("a", ValeAction::Threads),
            with("a", threads(2, &[0])),
            with("", threads(0, &[0])),
            with("", threads(65, &[])),
            with("", threads(2, &[1024])),
            with("", threads(2, &[0; 65])),
            with("a", ValeAction::Age(MAX_AGE + 1)),
            with("a", ValeAction::Label(Some(String::new()))),
            with("a", ValeAction::Label(Some("x".repeat(MAX_LABEL + 1)))),
            with("a", ValeAction::Label(Some("a b".into()))),
            with("a", ValeAction::Label(Some("a\n".into()))),
            with("a", ValeAction::Label(Some("\u{e9}".into()))),
            with("a", ValeAction::Label(Some("\"".into()))),
            with("a", ValeAction::Vlan(Some(VlanMode::Access(0)))),
            with("a", ValeAction::Vlan(Some(VlanMode::Access(4095)))),
            with("a", ValeAction::Vlan(Some(VlanMode::Trunk(VlanSet::new([]))))),
            with(
                "a",
                ValeAction::Filter(Direction::In, Some(Filter { expression: "udp".into(), program: Vec::new() })),
            ),
        ] {
            assert_eq!(ValeRequest::decode(&bytes), Err(errno::EINVAL));
        }
        for action in all() {
            let mut bytes = with("a", action);
            bytes.push(0);
            assert_eq!(ValeRequest::decode(&bytes), Err(errno::EINVAL), "{bytes:?}");
            bytes[2] = 9;
            assert_eq!(ValeRequest::decode(&bytes[..bytes.len() - 1]), Err(errno::EINVAL), "a third direction");
        }
    }

    proptest! {
        #[test]
        fn damaged_bytes_never_panic(which in 0..13usize, at in 0usize..600, with: u8, cut in 0usize..60) {
            let action = all().swap_remove(which);
            let mut bytes = ValeRequest { name: "vale0:a".into(), action }.encode();
            let n = bytes.len();
            bytes[at % n] = with;
            bytes.truncate(n - cut % n);
            let _ = ValeRequest::decode(&bytes);
        }
    }

    #[test]
    fn vlan_sets_encode_and_display() {
        let set = VlanSet::new([10..=10, 20..=30, 0..=1, 4094..=4095, 64..=64]);
        assert_eq!(set.to_string(), "1,10,20-30,64,4094");
        assert!(set.has(25) && !set.has(0) && !set.has(4095) && !set.has(9) && !set.has(u16::MAX));
        assert_eq!(VlanSet::from_bytes(&set.to_bytes()), Some(set));
        assert_eq!(VlanSet::from_bytes(&[0; 512]), None);
        assert_eq!(VlanSet::from_bytes(&[1; 511]), None);
        assert_eq!(VlanSet::from_bytes(&[0xff; 512]), None);
    }
}

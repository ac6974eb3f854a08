// SPDX-License-Identifier: BSD-2-Clause
//! Rules as parsed: what a packet must be (tests), and what happens to it (action).

use std::sync::Arc;

use crate::counters::RuleCounters;
use crate::packet::Family;

/// Number of the default rule, which is always the last.
pub const DEFAULT_RULE: u16 = u16::MAX;

/// One rule.
#[derive(Debug)]
pub struct Rule {
    /// 1..=65535. Rules with the same number are evaluated in the order in which they were added.
    pub number: u16,
    /// Set of the rule, 0..=31.
    pub set: u8,
    /// Identity of the rule for its states.
    pub id: RuleId,
    /// The rule is skipped unless a random number of 31 bits is below; `None`: never skipped.
    pub(crate) probability: Option<u32>,
    /// The fate of a packet that matches.
    pub(crate) action: Action,
    /// Whether matches are logged.
    pub(crate) log: Option<Log>,
    /// Tag that packets get or lose with the action.
    pub(crate) tag: Option<Tag>,
    /// All groups of tests must match. Empty: every packet does.
    pub(crate) tests: Box<[Literal]>,
    /// Whether a match installs a state.
    pub(crate) state: Option<StateOption>,
    /// The rule after its number, in the form that `list` prints.
    pub text: String,
    /// Packets and bytes that matched. The successor of a rule that is stored again shares them.
    pub counters: Arc<RuleCounters>,
}

impl Rule {
    /// Returns the action as logs name it.
    pub fn action_name(&self) -> &'static str {
        match self.action {
            Action::Allow => "Accept",
            Action::Deny => "Deny",
            Action::Count => "Count",
            Action::SkipTo(_) => "SkipTo",
            Action::Call(_) => "Call",
            Action::Return => "Return",
            Action::CheckState => "Check-state",
            Action::Unreach(1) => "Reject",
            Action::Unreach(_) | Action::Unreach6(_) => "Unreach",
            Action::Reset | Action::Reset6 => "Reset",
            Action::Pipe(_) => "Pipe",
            Action::Queue(_) => "Queue",
            Action::Nat(_) => "Nat",
            Action::Tee(_) => "Tee",
            Action::SynProxy { .. } => "Synproxy",
            Action::SetDscp(_) => "SetDscp",
            Action::SetMss(_) => "SetMss",
        }
    }
}

/// Names a rule for as long as it exists: the slot is used again after the rule was deleted, with another generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RuleId {
    /// Place in [`crate::Ruleset`]'s list of slots.
    pub slot: u32,
    /// Number of rules that had this slot before.
    pub generation: u32,
}

/// The action of a rule on a packet that matches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// The packet passes.
    Allow,
    /// The packet is dropped.
    Deny,
    /// The next rule follows.
    Count,
    /// The first rule with this number or a higher one follows; never an earlier rule.
    SkipTo(Target),
    /// As `SkipTo`, also to an earlier rule, and remembers where to return to.
    Call(Target),
    /// The first rule after the caller's number follows.
    Return,
    /// A packet that has a state gets the action of the state's rule.
    CheckState,
    /// The packet is dropped and an ICMP error with this code is sent back.
    Unreach(u8),
    /// As `Unreach`, for IPv6.
    Unreach6(u8),
    /// The packet is dropped; the sender of a TCP segment gets a reset.
    Reset,
    /// As `Reset`, for IPv6.
    Reset6,
    /// The packet goes through the link with this number, and then passes.
    Pipe(Target),
    /// As `Pipe`, by a queue of a link.
    Queue(Target),
    /// The packet is translated by the instance with this number, and then passes.
    Nat(Target),
    /// The port with this number gets a copy, and the next rule follows.
    Tee(Target),
    /// The packet gets this DSCP, and the next rule follows. A value of a table above 63 changes nothing.
    SetDscp(Target),
    /// The segment size that a SYN names is lowered to this, and the next rule follows.
    SetMss(u16),
    /// The handshake of a connection is completed for the server.
    SynProxy {
        /// Maximum segment size; 0: that of Ethernet.
        mss: u16,
        /// Window scale that clients are told, if they are told one.
        scale: Option<u8>,
    },
}

impl Action {
    /// Whether packets of a state may pass by it with the addresses that they have.
    pub(crate) fn may_pass(self) -> bool {
        match self {
            Action::Allow
            | Action::Count
            | Action::SkipTo(_)
            | Action::Call(_)
            | Action::Return
            | Action::Pipe(_)
            | Action::Queue(_)
            | Action::Tee(_)
            | Action::SetDscp(_)
            | Action::SetMss(_)
            | Action::SynProxy { .. } => true,
            Action::Deny
            | Action::CheckState
            | Action::Unreach(_)
            | Action::Unreach6(_)
            | Action::Reset
            | Action::Reset6
            | Action::Nat(_) => false,
        }
    }
}

/// The rule to continue at, or the number of a link or a NAT instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// This number.
    Number(u16),
    /// The value of the last table lookup of the rule.
    TableArg,
}

/// A change of a packet's tags, by a number or by the table's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tag {
    Set(Target),
    Clear(Target),
}

/// Logging of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Log {
    /// Packets that are logged until the counts are reset; 0: no limit.
    pub(crate) limit: u32,
}

/// State that a match installs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StateOption {
    /// The state's name, by its number in [`crate::Config`].
    pub(crate) name: u16,
    /// Maximum number of states with equal fields.
    pub(crate) limit: Option<Limit>,
    /// Whether packets that reach the rule are first looked up (`keep-state` and `limit`; not `record-state`).
    pub(crate) probe: bool,
    /// Whether the next rule follows in place of the action.
    pub(crate) defer: bool,
}

/// `limit FIELDS COUNT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    /// Bits of [`limit_field`].
    pub(crate) fields: u8,
    /// Maximum number of states.
    pub(crate) count: u32,
}

/// Fields that `limit` counts by.
pub(crate) mod limit_field {
    pub(crate) const SRC_ADDR: u8 = 1;
    pub(crate) const SRC_PORT: u8 = 2;
    pub(crate) const DST_ADDR: u8 = 4;
    pub(crate) const DST_PORT: u8 = 8;
}

/// Number of a state's name that matches every name.
pub(crate) const ANY_STATE: u16 = u16::MAX;

/// One test of a rule, possibly negated. Literals up to the first one without `or` form a group, of which one must
/// match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Literal {
    /// The test.
    pub(crate) test: Test,
    /// Whether the test must fail.
    pub(crate) negated: bool,
    /// Whether the next literal is an alternative to this one.
    pub(crate) or: bool,
}

/// Source or destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Src,
    Dst,
}

/// A property of a packet. A test that cannot apply to a packet fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Test {
    /// Directions in which the packet may travel: bit 0 from the first port to the second (`out`), bit 1 the other
    /// way.
    Direction(u8),
    /// Matches all packets, or none.
    Always(bool),
    /// Protocol of the IP payload.
    Proto(u8),
    /// Network layer.
    Family(Family),
    /// An address in one of the networks.
    Nets(Side, Box<Nets>),
    /// An IPv4 address with these upper 24 bits and a last byte that is in the set.
    LastByte(Side, u32, Box<[u64; 4]>),
    /// An address in a table; with a value, the entry must have it.
    Table(Side, u16, Option<u32>),
    /// An address of the host, by the table that has them.
    Own(Side, u16),
    /// A number in one of the ranges.
    Number(Field, Box<[(u16, u16)]>),
    /// A fragment other than the first.
    LaterFragment,
    /// IPv4: these of `fragment_flag` set, those clear.
    Fragment(u8, u8),
    /// IPv4: these bits of the type of service set, those clear.
    Tos(u8, u8),
    /// Value of the DSCP field, as a bitmap.
    Dscp(u64),
    /// IP version.
    Version(u8),
    /// TCP flags: these set, those clear.
    TcpFlags(u8, u8),
    /// TCP, and not the first segment of a connection.
    Established,
    /// TCP sequence number.
    TcpSeq(u32),
    /// TCP acknowledgement number.
    TcpAck(u32),
    /// ICMP type, as a bitmap.
    IcmpTypes(u32),
    /// ICMPv6 type, as a bitmap.
    Icmp6Types(Box<[u64; 4]>),
    /// Destination and source MAC addresses, each with a mask.
    Mac(Box<[(u64, u64); 2]>),
    /// One of these IPv6 extension headers.
    Extensions(u8),
    /// A tag that an earlier rule set, in one of the ranges.
    Tagged(Box<[(u16, u16)]>),
}

/// Bits of [`Test::Fragment`].
pub(crate) mod fragment_flag {
    pub(crate) const DF: u8 = 1;
    pub(crate) const MF: u8 = 2;
    pub(crate) const RF: u8 = 4;
    pub(crate) const OFFSET: u8 = 8;
}

/// A field that [`Test::Number`] tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    SrcPort,
    DstPort,
    IpLen,
    IpId,
    IpTtl,
    TcpWindow,
    TcpDataLen,
    EtherType,
}

/// Networks: addresses with masks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Nets {
    /// IPv4: address and mask, which need not be contiguous.
    pub(crate) v4: Vec<(u32, u32)>,
    /// IPv6.
    pub(crate) v6: Vec<(u128, u128)>,
}

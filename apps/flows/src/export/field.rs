// SPDX-License-Identifier: BSD-2-Clause
//! The fields of records, as IANA numbers them for IPFIX; NetFlow version 9 has the same numbers below 128.

use crate::cache::{End, Flow};
use crate::tunnel::Kind;

/// Enterprise number of fields that count the reverse direction (RFC 5103).
pub(super) const REVERSE: u32 = 29305;

/// A record: a flow, and why it ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'f> {
    pub(crate) flow: &'f Flow,
    pub(crate) end: End,
}

/// A field of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    Source4,
    Destination4,
    Source6,
    Destination6,
    SourceMac,
    DestinationMac,
    EtherType,
    SourcePort,
    DestinationPort,
    Protocol,
    TypeOfService,
    TcpFlags,
    Vlan,
    InnerVlan,
    Interface,
    Packets,
    Octets,
    /// Bytes of frames.
    FrameOctets,
    StartMilliseconds,
    EndMilliseconds,
    /// Milliseconds of the first and of the last packet since the exporter began (NetFlow).
    StartUptime,
    EndUptime,
    Reason,
    ReversePackets,
    ReverseOctets,
    ReverseFrameOctets,
    ReverseTcpFlags,
    /// Of all packets, dropped ones included.
    AllPackets,
    AllOctets,
    AllFrameOctets,
    DroppedPackets,
    DroppedOctets,
    ForwardingStatus,
    /// The tunnel's kind, as far as there is a number for it, and its identifier.
    Segment,
}

/// The meaning of the second of a record's counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Second {
    /// There are none.
    None,
    /// Of the other direction, for IPFIX.
    Reverse,
    /// Of dropped packets.
    Dropped,
}

/// The fields that records have besides those that all have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    pub(crate) second: Second,
    /// Of tunnels.
    pub(crate) inner: bool,
    /// There are records of NAT as well.
    pub(crate) nat: bool,
}

/// Values of `forwardingStatus`: forwarded.
const FORWARDED: u8 = 64;

/// Number, bytes and enterprise of a field.
pub(super) struct Spec {
    pub(super) id: u16,
    pub(super) bytes: u16,
    pub(super) enterprise: Option<u32>,
}

impl Field {
    pub(super) const fn spec(self) -> Spec {
        let (id, bytes) = match self {
            Field::Source4 => (8, 4),
            Field::Destination4 => (12, 4),
            Field::Source6 => (27, 16),
            Field::Destination6 => (28, 16),
            Field::SourceMac => (56, 6),
            Field::DestinationMac => (80, 6),
            Field::EtherType => (256, 2),
            Field::SourcePort => (7, 2),
            Field::DestinationPort => (11, 2),
            Field::Protocol => (4, 1),
            Field::TypeOfService => (5, 1),
            Field::TcpFlags | Field::ReverseTcpFlags => (6, 1),
            Field::Vlan => (58, 2),
            Field::InnerVlan => (245, 2),
            Field::Interface => (10, 4),
            Field::Packets | Field::ReversePackets | Field::AllPackets => (2, 8),
            Field::Octets | Field::ReverseOctets | Field::AllOctets => (1, 8),
            Field::FrameOctets | Field::ReverseFrameOctets | Field::AllFrameOctets => (352, 8),
            Field::DroppedPackets => (133, 8),
            Field::DroppedOctets => (132, 8),
            Field::ForwardingStatus => (89, 1),
            Field::Segment => (351, 8),
            Field::StartMilliseconds => (152, 8),
            Field::EndMilliseconds => (153, 8),
            Field::StartUptime => (22, 4),
            Field::EndUptime => (21, 4),
            Field::Reason => (136, 1),
        };
        let reverse = matches!(
            self,
            Field::ReversePackets | Field::ReverseOctets | Field::ReverseFrameOctets | Field::ReverseTcpFlags
        );
        Spec { id, bytes, enterprise: if reverse { Some(REVERSE) } else { None } }
    }

    /// Appends the field. `began`: the time in milliseconds since 1970 at which the exporter's uptime is 0.
    #[inline]
    pub(super) fn put(self, Record { flow, end }: Record<'_>, began: u64, to: &mut Vec<u8>) {
        let key = flow.directed();
        // Wraps around after 49 days, as the uptime of NetFlow does.
        let uptime = |time: u64| (time.wrapping_sub(began) as u32).to_be_bytes();
        match self {
            Field::Source4 => to.extend((key.src as u32).to_be_bytes()),
            Field::Destination4 => to.extend((key.dst as u32).to_be_bytes()),
            Field::Source6 => to.extend(key.src.to_be_bytes()),
            Field::Destination6 => to.extend(key.dst.to_be_bytes()),
            Field::SourceMac => to.extend_from_slice(&(key.src as u64).to_be_bytes()[2..]),
            Field::DestinationMac => to.extend_from_slice(&(key.dst as u64).to_be_bytes()[2..]),
            Field::EtherType => to.extend(key.ethertype().to_be_bytes()),
            Field::SourcePort => to.extend(key.ports[0].to_be_bytes()),
            Field::DestinationPort => to.extend(key.ports[1].to_be_bytes()),
            Field::Protocol => to.push(key.proto),
            Field::TypeOfService => to.push(flow.tos),
            Field::TcpFlags => to.push(flow.tcp_flags[0]),
            Field::ReverseTcpFlags => to.push(flow.tcp_flags[1]),
            Field::Vlan => to.extend(key.vlans[0].to_be_bytes()),
            Field::InnerVlan => to.extend(key.vlans[1].to_be_bytes()),
            Field::Interface => to.extend((u32::from(key.source) + 1).to_be_bytes()),
            Field::Packets => to.extend(flow.packets[0].to_be_bytes()),
            Field::AllPackets => to.extend(flow.packets.iter().sum::<u64>().to_be_bytes()),
            Field::ReversePackets | Field::DroppedPackets => to.extend(flow.packets[1].to_be_bytes()),
            Field::Segment => to.extend((segment_kind(flow.tunnel) << 56 | u64::from(key.tunnel)).to_be_bytes()),
            Field::Octets => to.extend(flow.octets[0].to_be_bytes()),
            Field::AllOctets => to.extend(flow.octets.iter().sum::<u64>().to_be_bytes()),
            Field::ReverseOctets | Field::DroppedOctets => to.extend(flow.octets[1].to_be_bytes()),
            Field::FrameOctets => to.extend(flow.frames[0].to_be_bytes()),
            Field::AllFrameOctets => to.extend(flow.frames.iter().sum::<u64>().to_be_bytes()),
            Field::ForwardingStatus => to.push(if flow.dropped == 0 { FORWARDED } else { flow.dropped }),
            Field::ReverseFrameOctets => to.extend(flow.frames[1].to_be_bytes()),
            Field::StartMilliseconds => to.extend(flow.first.to_be_bytes()),
            Field::EndMilliseconds => to.extend(flow.last.to_be_bytes()),
            Field::StartUptime => to.extend(uptime(flow.first)),
            Field::EndUptime => to.extend(uptime(flow.last)),
            Field::Reason => to.push(end as u8),
        }
    }
}

/// The number of a tunnel's kind in `layer2SegmentId`; 0: it has none.
fn segment_kind(kind: Kind) -> u64 {
    u64::from(kind == Kind::Vxlan)
}

/// The fields of a family's records.
pub(super) struct Template {
    pub(super) id: u16,
    pub(super) fields: Vec<Field>,
    /// Bytes of a record.
    pub(super) bytes: usize,
}

/// The least number of a template.
const FIRST_TEMPLATE: u16 = 256;
/// Number of templates.
pub(super) const TEMPLATES: usize = 3;

/// The index among the templates of those for records of this family.
pub(super) fn template_of(family: u8) -> usize {
    match family {
        crate::packet::family::V4 => 0,
        crate::packet::family::V6 => 1,
        _ => 2,
    }
}

/// The templates for IPv4, for IPv6, and for other frames. `is_ipfix`: else NetFlow version 9, which has no fields
/// of the reverse direction.
pub(super) fn templates(is_ipfix: bool, Form { second, inner, .. }: Form) -> [Template; TEMPLATES] {
    let network: [&[Field]; TEMPLATES] = [
        &[Field::Source4, Field::Destination4],
        &[Field::Source6, Field::Destination6],
        &[Field::SourceMac, Field::DestinationMac, Field::EtherType],
    ];
    let transport = [Field::SourcePort, Field::DestinationPort, Field::Protocol, Field::TypeOfService, Field::TcpFlags];
    let counts = match second {
        Second::Dropped => [Field::AllPackets, Field::AllOctets, Field::AllFrameOctets],
        _ => [Field::Packets, Field::Octets, Field::FrameOctets],
    };
    let ipfix = [Field::InnerVlan, Field::StartMilliseconds, Field::EndMilliseconds, Field::Reason];
    let netflow = [Field::StartUptime, Field::EndUptime];
    let reverse = [Field::ReversePackets, Field::ReverseOctets, Field::ReverseFrameOctets];
    let dropped = [Field::DroppedPackets, Field::DroppedOctets, Field::ForwardingStatus];
    let more: &[Field] = match second {
        Second::None => &[],
        Second::Reverse => &reverse,
        Second::Dropped => &dropped,
    };
    let mut id = FIRST_TEMPLATE + (second as u16 * 2 + u16::from(inner)) * TEMPLATES as u16;
    network.map(|network| {
        let is_ip = network.len() == 2;
        let mut fields = network.to_vec();
        fields.extend(if is_ip { &transport[..] } else { &[] });
        fields.extend([Field::Vlan, Field::Interface]);
        fields.extend(counts);
        fields.extend(if is_ipfix { &ipfix[..] } else { &netflow[..] });
        fields.extend(more);
        fields.extend((is_ipfix && inner).then_some(Field::Segment));
        fields.extend((second == Second::Reverse && is_ip).then_some(Field::ReverseTcpFlags));
        let bytes = fields.iter().map(|field| usize::from(field.spec().bytes)).sum();
        id += 1;
        Template { id: id - 1, fields, bytes }
    })
}

// SPDX-License-Identifier: BSD-2-Clause
//! Lines about packets that rules log, as ipfw writes them.

use std::net::IpAddr;

use unetmap_filter::{Direction, Family, Headers, proto};

use crate::worker::LogEntry;

/// Returns `ipfw: RULE ACTION PROTO SRC:PORT DST:PORT in|out via PORT [frag]`.
pub(crate) fn line(entry: &LogEntry, ports: &[String; 2]) -> String {
    let LogEntry { number, action, headers: h, direction } = entry;
    let direction = if *direction == Direction::Out { "out" } else { "in" };
    let fragment = if h.frag_offset != 0 { " frag" } else { "" };
    format!("ipfw: {number} {action} {} {direction} via {}{fragment}", packet(h), ports[1])
}

fn packet(h: &Headers) -> String {
    let (src, dst) = match h.family {
        Family::V4 => (IpAddr::V4(h.src4.into()), IpAddr::V4(h.dst4.into())),
        Family::V6 => (IpAddr::V6(h.src6.into()), IpAddr::V6(h.dst6.into())),
        Family::Other => return format!("type 0x{:04x}", h.ethertype),
    };
    let name = match h.proto {
        proto::TCP => "TCP",
        proto::UDP => "UDP",
        proto::ICMP => return format!("ICMP:{} {src} {dst}", h.icmp_type),
        proto::ICMP6 => return format!("ICMPv6:{} {src} {dst}", h.icmp_type),
        other => return format!("P:{other} {src} {dst}"),
    };
    let end = |address: IpAddr, port: u16| match address {
        _ if !h.has_ports() => address.to_string(),
        IpAddr::V4(_) => format!("{address}:{port}"),
        IpAddr::V6(_) => format!("[{address}]:{port}"),
    };
    format!("{name} {} {}", end(src, h.src_port), end(dst, h.dst_port))
}

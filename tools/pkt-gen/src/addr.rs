// SPDX-License-Identifier: BSD-2-Clause
//! Addresses and ports of the command line: single ones, or ranges that packets iterate over.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// The UDP port if none is given.
const DEFAULT_PORT: u16 = 1234;

/// An Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mac(pub(crate) [u8; 6]);

impl Mac {
    pub(crate) const BROADCAST: Mac = Mac([0xff; 6]);

    /// Returns a locally administered unicast address that depends only on the name.
    pub(crate) fn from_name(name: &str) -> Mac {
        // FNV-1a: the five bytes only need to differ between ports.
        let hash =
            name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        let [_, _, _, a, b, c, d, e] = hash.to_be_bytes();
        Mac([0x02, a, b, c, d, e])
    }
}

impl FromStr for Mac {
    type Err = String;

    fn from_str(text: &str) -> Result<Mac, String> {
        let bad = || "an Ethernet address is six hexadecimal bytes, as in 02:00:00:00:00:01".to_string();
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().ok_or_else(bad)?;
            if part.is_empty() || part.len() > 2 || !part.bytes().all(|c| c.is_ascii_hexdigit()) {
                return Err(bad());
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| bad())?;
        }
        if parts.next().is_some() { Err(bad()) } else { Ok(Mac(bytes)) }
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// One address and port, or all pairs from `first` to `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) first: SocketAddr,
    pub(crate) last: SocketAddr,
}

impl Range {
    pub(crate) fn is_single(&self) -> bool {
        self.first == self.last
    }

    pub(crate) fn is_ipv6(&self) -> bool {
        self.first.is_ipv6()
    }
}

impl FromStr for Range {
    type Err = String;

    fn from_str(text: &str) -> Result<Range, String> {
        let (first, last) = match text.split_once('-') {
            None => {
                let one = endpoint(text, DEFAULT_PORT)?;
                (one, one)
            }
            Some((from, to)) => {
                let first = endpoint(from, DEFAULT_PORT)?;
                (first, endpoint(to, first.port())?)
            }
        };
        if first.is_ipv4() != last.is_ipv4() {
            return Err(format!("{} and {} are of different families", first.ip(), last.ip()));
        }
        if last.ip() < first.ip() || last.port() < first.port() {
            return Err(format!("the range ends ({last}) before it begins ({first})"));
        }
        Ok(Range { first, last })
    }
}

/// Parses `1.2.3.4`, `1.2.3.4:5`, `fd00::1` or `[fd00::1]:5`.
fn endpoint(text: &str, port: u16) -> Result<SocketAddr, String> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, port));
    }
    text.parse::<SocketAddr>()
        .map_err(|_| format!("`{text}` is not IP[:PORT], as in 10.0.0.1:1234 or [fd00::1]:1234 (ports 0 to 65535)"))
}

/// Returns the element of `range` after `at`: the port changes first, then the address. None after the last.
pub(crate) fn successor(range: &Range, at: SocketAddr) -> Option<SocketAddr> {
    if at.port() < range.last.port() {
        return Some(SocketAddr::new(at.ip(), at.port() + 1));
    }
    (at.ip() < range.last.ip()).then(|| SocketAddr::new(next_ip(at.ip()), range.first.port()))
}

fn next_ip(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(v4) => IpAddr::V4(u32::from(v4).wrapping_add(1).into()),
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from(u128::from(v6).wrapping_add(1))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> Range {
        text.parse().unwrap()
    }

    #[test]
    fn ethernet_addresses_are_parsed() {
        assert_eq!("ff:ff:ff:ff:ff:ff".parse(), Ok(Mac::BROADCAST));
        assert_eq!("2:0:0:0:0:a".parse(), Ok(Mac([2, 0, 0, 0, 0, 10])));
        for bad in ["", "1:2:3:4:5", "1:2:3:4:5:6:7", "1:2:3:4:5:g", "1:2:3:4:5:123", "1:2:3:4:5:+1", "1:2:3:4:5:"] {
            assert!(bad.parse::<Mac>().unwrap_err().contains("six hexadecimal bytes"), "{bad}");
        }
        let made = Mac::from_name("netmap:p{1");
        assert_eq!(made, Mac::from_name("netmap:p{1"));
        assert_ne!(made, Mac::from_name("netmap:p}1"));
        assert_eq!(made.0[0] & 3, 2, "locally administered, unicast");
    }

    #[test]
    fn a_single_address_is_parsed() {
        let r = range("10.0.0.1:80");
        assert!(r.is_single() && !r.is_ipv6());
        assert_eq!(range("10.0.0.1").first.port(), 1234);
        assert_eq!(range("fd00::1").first.port(), 1234);
        assert_eq!(range("[fd00::1]:7").first.port(), 7);
    }

    #[test]
    fn a_range_iterates_over_ports_then_addresses() {
        let r = range("10.0.0.255:7-10.0.1.0:9");
        let mut seen = vec![r.first];
        while let Some(next) = successor(&r, seen[seen.len() - 1]) {
            seen.push(next);
        }
        let expected: Vec<SocketAddr> =
            ["10.0.0.255:7", "10.0.0.255:8", "10.0.0.255:9", "10.0.1.0:7", "10.0.1.0:8", "10.0.1.0:9"]
                .iter()
                .map(|s| s.parse().unwrap())
                .collect();
        assert_eq!(seen, expected);
    }

    #[test]
    fn ranges_end_at_the_highest_numbers() {
        let r = range("255.255.255.255:65535");
        assert_eq!(successor(&r, r.first), None);
        let r =
            range("[ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe]:65535-[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535");
        let second = successor(&r, r.first).unwrap();
        assert_eq!(second, r.last);
        assert_eq!(successor(&r, second), None);
    }

    #[test]
    fn invalid_ranges_are_refused_with_a_reason() {
        for (text, part) in [
            ("", "is not IP[:PORT]"),
            ("10.0.0", "is not IP[:PORT]"),
            ("10.0.0.1:65536", "ports 0 to 65535"),
            ("10.0.0.1:1-", "is not IP[:PORT]"),
            ("10.0.0.2-10.0.0.1", "before it begins"),
            ("10.0.0.1:9-10.0.0.1:8", "before it begins"),
            ("10.0.0.1-fd00::1", "different families"),
        ] {
            let message = text.parse::<Range>().unwrap_err();
            assert!(message.contains(part), "{text}: {message}");
        }
    }
}

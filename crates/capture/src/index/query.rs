// SPDX-License-Identifier: BSD-2-Clause
//! The keys that packets must have of which a filter of libpcap may be true.
//!
//! Only a conjunction of known words narrows a search (`tcp and host A and host B and port 1 and port 2`). For any
//! other expression every packet is a candidate: the index tells less then, and nothing is lost.

use std::net::IpAddr;

use super::keys::{self, MAX_TAGS};

/// A packet is a candidate if it has a key of each of these lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    pub(super) all: Vec<Vec<u32>>,
}

/// The requirements of an expression's words.
#[derive(Default)]
struct Required {
    addresses: Vec<IpAddr>,
    ports: Vec<u16>,
    protocol: Option<u8>,
    tags: usize,
}

impl Query {
    /// Every packet.
    pub fn any() -> Query {
        Query::default()
    }

    /// Returns the keys that an expression needs, or those of none if it is not understood.
    pub fn of_filter(expression: &str) -> Query {
        Required::parse(expression).map(Required::into_query).unwrap_or_default()
    }

    /// Whether it narrows a search.
    pub fn is_narrow(&self) -> bool {
        !self.all.is_empty()
    }

    /// Whether a packet may be one that the filter takes.
    pub(super) fn may_take(&self, bytes: &[u8]) -> bool {
        let keys = keys::of_frame(bytes);
        self.all.iter().all(|any| any.iter().any(|key| keys.as_slice().contains(key)))
    }
}

impl Required {
    fn parse(expression: &str) -> Option<Required> {
        let mut required = Required::default();
        let mut words = expression.split_ascii_whitespace().peekable();
        let mut is_first = true;
        while let Some(mut word) = words.next() {
            if !std::mem::take(&mut is_first) {
                if !matches!(word, "and" | "&&") {
                    return None;
                }
                word = words.next()?;
            }
            // `vlan 5`, then other conditions.
            if word == "vlan" {
                required.tags += 1;
                words.next_if(|word| word.parse::<u16>().is_ok());
                continue;
            }
            let protocol = match word {
                "tcp" => Some(keys::TCP),
                "udp" => Some(keys::UDP),
                "sctp" => Some(keys::SCTP),
                "ip" | "ip6" | "arp" => Some(0),
                _ => None,
            };
            if let Some(protocol) = protocol {
                required.protocol = Some(protocol).filter(|&protocol| protocol != 0).or(required.protocol);
                match words.peek() {
                    None | Some(&"and" | &"&&") => continue,
                    Some(_) => word = words.next()?,
                }
            }
            let is_directed = matches!(word, "src" | "dst");
            if is_directed {
                word = words.next()?;
            }
            match word {
                "host" => required.addresses.push(words.next()?.parse().ok()?),
                "port" => required.ports.push(words.next()?.parse().ok()?),
                // `src 10.0.0.1`, with or without `host`.
                address if is_directed => required.addresses.push(address.parse().ok()?),
                _ => return None,
            }
        }
        (required.tags <= MAX_TAGS).then_some(required)
    }

    fn into_query(mut self) -> Query {
        self.addresses.sort_unstable();
        self.addresses.dedup();
        self.ports.sort_unstable();
        self.ports.dedup();
        let mut all: Vec<Vec<u32>> = self.addresses.iter().map(|&address| vec![keys::of_address(address)]).collect();
        // Two of each are those of both ends. One alone may be that of either end, or of both.
        if let (&[a, b], &[p, q]) = (&*self.addresses, &*self.ports) {
            let protocols = self.protocol.map_or(vec![keys::TCP, keys::UDP, keys::SCTP], |protocol| vec![protocol]);
            let flows = protocols
                .into_iter()
                .flat_map(|protocol| [[(a, p), (b, q)], [(a, q), (b, p)]].map(|ends| keys::of_flow(protocol, ends)));
            // The flow's entries are among those of its addresses, and fewer.
            all = vec![flows.collect()];
        }
        Query { all }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conjunctions_of_known_words_narrow_a_search() {
        let key = |address: &str| keys::of_address(address.parse().unwrap());
        let (a, b) = (key("10.0.0.1"), key("2001:db8::1"));
        for (expression, lists) in [
            ("host 10.0.0.1", vec![vec![a]]),
            ("udp and src host 10.0.0.1 and vlan 7", vec![vec![a]]),
            ("tcp port 80 and dst 2001:db8::1 && ip6", vec![vec![b]]),
            ("host 10.0.0.1 and host 10.0.0.1", vec![vec![a]]),
            ("", vec![]),
            ("tcp port 80", vec![]),
            ("host 10.0.0.1 or port 80", vec![]),
            ("host 10.0.0.1 and 10.0.0.2", vec![]),
            ("not host 10.0.0.1", vec![]),
            ("(host 10.0.0.1)", vec![]),
            ("vxlan and host 10.0.0.1", vec![]),
            ("mpls and host 10.0.0.1", vec![]),
            ("host example", vec![]),
            ("vlan and vlan and vlan and vlan and vlan and host 10.0.0.1", vec![]),
            ("host 10.0.0.1 and", vec![]),
        ] {
            assert_eq!(Query::of_filter(expression).all, lists, "{expression}");
        }
        for (expression, alternatives) in [
            ("tcp and host 10.0.0.1 and host 10.0.0.2 and port 1 and port 2", 2),
            ("src host 10.0.0.1 and src port 1 and dst host 10.0.0.2 and dst port 2", 6),
        ] {
            let all = Query::of_filter(expression).all;
            assert_eq!((all.len(), all[0].len()), (1, alternatives), "{expression}");
        }
    }
}

// SPDX-License-Identifier: BSD-2-Clause
//! Routes: the interfaces of the default routes.

use std::io;

use super::netlink::{Socket, attributes, number};

/// Bytes of `struct rtmsg`, the header of every message about a route.
const RTMSG: usize = 12;
/// Bytes of `struct rtnexthop`: length, flags, hops, index.
const RTNEXTHOP: usize = 8;

/// Returns the indexes of the interfaces of default routes in the main table, for IPv4 and IPv6.
///
/// # Errors
/// No netlink socket can be created.
pub fn default_routes() -> io::Result<Vec<u32>> {
    let socket = Socket::route(0)?;
    let mut found = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let mut request = vec![0; RTMSG];
        request[0] = family as u8;
        // A list that changed meanwhile is used as it is: it may also change afterwards.
        socket.list(libc::RTM_GETROUTE, &request, |message| {
            if message.kind == libc::RTM_NEWROUTE {
                found.extend(default_of(message.body).unwrap_or_default());
            }
        })?;
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// Returns the interfaces of a route if it is a default route of the main table.
fn default_of(body: &[u8]) -> Option<Vec<u32>> {
    let head: &[u8; RTMSG] = body.get(..RTMSG)?.try_into().ok()?;
    let [_, bits, _, _, table, _, _, kind, ..] = *head;
    if bits != 0 || table != libc::RT_TABLE_MAIN || kind != libc::RTN_UNICAST {
        return None;
    }
    let mut to = Vec::new();
    for (attribute, value) in attributes(body.get(RTMSG..)?) {
        match attribute {
            libc::RTA_OIF => to.extend(number(value)),
            libc::RTA_MULTIPATH => to.extend(next_hops(value)),
            _ => {}
        }
    }
    Some(to)
}

/// Returns the interfaces of a multipath route, up to the first malformed next hop.
fn next_hops(mut bytes: &[u8]) -> Vec<u32> {
    let mut to = Vec::new();
    while let Some(head) = bytes.get(..RTNEXTHOP) {
        let length = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        to.extend(number(&head[4..]));
        if length < RTNEXTHOP {
            break;
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    to
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_hops_are_read_up_to_the_malformed_one() {
        let hop = |length: u16, index: u32| {
            let mut bytes = length.to_ne_bytes().to_vec();
            bytes.extend([0, 0]);
            bytes.extend(index.to_ne_bytes());
            bytes
        };
        let gateway = [8, 0, 5, 0, 10, 9, 0, 1];
        let several = [&hop(16, 7)[..], &gateway, &hop(8, 9)].concat();
        assert_eq!(next_hops(&several), [7, 9]);
        assert_eq!(next_hops(&hop(0, 3)), [3]);
        assert_eq!(next_hops(&hop(200, 4)), [4]);
        assert!(next_hops(&[1, 0, 0]).is_empty());
        assert_eq!(default_of(&[0; RTMSG - 1]), None);
    }
}

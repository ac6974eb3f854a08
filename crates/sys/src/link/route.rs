//! Routes: only where those lead that everything takes for which there is no better.

use std::io;

use super::netlink::{Socket, attributes, number};

/// Bytes of `struct rtmsg`, with which every message about a route begins.
const RTMSG: usize = 12;
/// Bytes of `struct rtnexthop`: length, flags, hops, index.
const RTNEXTHOP: usize = 8;

/// The indexes of the interfaces that a default route of the main table leads to, for IPv4 or IPv6.
///
/// # Errors
/// No netlink socket can be made.
pub fn default_routes() -> io::Result<Vec<u32>> {
    let socket = Socket::route(0)?;
    let mut found = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let mut request = vec![0; RTMSG];
        request[0] = family as u8;
        // A list that changed meanwhile is as good as one that changes afterwards.
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

/// Where a route leads, if it is a default route of the main table.
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

/// The interfaces of a route with several ways, up to the first that is damaged.
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
    fn ways_are_read_up_to_the_damaged_one() {
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

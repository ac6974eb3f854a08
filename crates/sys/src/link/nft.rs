// SPDX-License-Identifier: BSD-2-Clause
//! Keeping an interface from the host's stack without BPF: tables of nftables, of the family `netdev`, whose chains
//! drop what passes. Packet sockets see frames before.
//!
//! ```text
//! table netdev unetmap-INDEX-MARK {  flags owner
//!     chain in  { type filter hook ingress device "eth0" priority -500; policy drop; }
//!     chain out { type filter hook egress device "eth0" priority -500; policy drop; meta mark MARK accept; }
//! }
//! table netdev unetmap-closed-eth0 {
//!     chain in  { type filter hook ingress device "eth0" priority -500; policy drop; iif INDEX accept; }
//!     chain out { type filter hook egress device "eth0" priority -500; policy drop; oif INDEX accept; }
//! }
//! ```
//! The first table belongs to the socket that makes it (since Linux 5.12), and ends when that is closed, so with its
//! process; before, it belongs to nobody ([`disconnect_until_undone`]). The hook of outgoing frames exists since Linux
//! 5.16.
//!
//! The second one ([`set_closed_name`]) belongs to nobody and stays. The kernel hooks its chains into every interface
//! that gets the name, before that is up (since Linux 6.16; before, a chain ends with its interface).

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::netlink::{Socket, push_attribute};

/// `NLA_F_NESTED`.
const NESTED: u16 = 0x8000;
/// `NFPROTO_NETDEV`.
const NETDEV: u8 = 5;
/// Of linux/netfilter/nf_tables.h: `NFT_MSG_NEWTABLE`, `NFT_MSG_GETTABLE`, `NFT_MSG_DELTABLE`, `NFT_MSG_NEWCHAIN`,
/// `NFT_MSG_NEWRULE`.
const NEW_TABLE: u16 = 0;
const GET_TABLE: u16 = 1;
const DELETE_TABLE: u16 = 2;
const NEW_CHAIN: u16 = 3;
const NEW_RULE: u16 = 6;
/// `NFNL_SUBSYS_NFTABLES`, and the messages around a transaction of linux/netfilter/nfnetlink.h.
const SUBSYSTEM: u16 = 10;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
/// `NFT_TABLE_F_OWNER`.
const OWNER: u32 = 2;
/// `NF_DROP`, `NF_ACCEPT`.
const DROP: u32 = 0;
const ACCEPT: u32 = 1;
/// `NF_NETDEV_INGRESS`, `NF_NETDEV_EGRESS`.
const INGRESS: u32 = 0;
const EGRESS: u32 = 1;
/// Before the chains of others.
const PRIORITY: i32 = -500;
/// `NFT_REG_VERDICT`, `NFT_REG32_00`, `NFT_META_MARK`, `NFT_META_IIF`, `NFT_META_OIF`.
const VERDICT: u32 = 0;
const REGISTER: u32 = 8;
const META_MARK: u32 = 3;
const META_IIF: u32 = 4;
const META_OIF: u32 = 5;

/// Drops what interface `name`, of this index, of the calling thread's namespace passes to the stack, and what the
/// stack sends by it, except for frames with `mark`. Returns the socket that owns the table, and whether frames that
/// the stack sends are dropped, too: before Linux 5.16 they are not.
///
/// # Errors
/// `EPERM` without `CAP_NET_ADMIN`; `EPROTONOSUPPORT`, `EOPNOTSUPP` or `ENOENT`: the kernel lacks nftables, or its
/// family `netdev`; `EINVAL`: it lacks owners of tables.
pub fn disconnect(place: (u32, &str), mark: u32) -> io::Result<(OwnedFd, bool)> {
    let socket = Socket::netfilter()?;
    let stops_host = add_table(&socket, place, mark, OWNER)?;
    Ok((socket.into_fd(), stops_host))
}

/// As [`disconnect`], by a table that belongs to nobody and stays until [`undo_disconnect`], or the end of the
/// namespace.
///
/// # Errors
/// As of [`disconnect`].
pub fn disconnect_until_undone(place: (u32, &str), mark: u32) -> io::Result<bool> {
    Ok(add_table(&Socket::netfilter()?, place, mark, 0)?)
}

/// Removes the table of [`disconnect_until_undone`] from the calling thread's namespace, if it is there.
///
/// # Errors
/// As of [`disconnect`].
pub fn undo_disconnect(index: u32, mark: u32) -> io::Result<()> {
    match transact(&Socket::netfilter()?, &[delete_table(&table_name(index, mark))]) {
        Err(Errno::NOENT) => Ok(()),
        removed => Ok(removed?),
    }
}

/// Adds the table that disconnects an interface. Returns whether it also stops what the host sends.
fn add_table(socket: &Socket, (index, name): (u32, &str), mark: u32, flags: u32) -> Result<bool, Errno> {
    let table = table_name(index, mark);
    transact(socket, &[new_table(&table, flags), new_chain((&table, "in\0"), INGRESS, name)])?;
    let batch = [new_chain((&table, "out\0"), EGRESS, name), accept((&table, "out\0"), META_MARK, mark)];
    Ok(transact(socket, &batch).is_ok())
}

/// The name of a table of [`disconnect`].
fn table_name(index: u32, mark: u32) -> String {
    format!("unetmap-{index}-{mark:08x}\0")
}

/// Has the kernel drop all frames of every interface that is called `name` in the calling thread's namespace but the
/// `known` one, by its index: from now on, whichever processes end. `None`: of none.
///
/// # Errors
/// As of [`disconnect`].
pub fn set_closed_name(name: &str, known: Option<u32>) -> io::Result<()> {
    let table = closed_table(name);
    // Also if there is none, in one step with what follows.
    let mut batch = vec![new_table(&table, 0), delete_table(&table)];
    if let Some(index) = known {
        batch.push(new_table(&table, 0));
        for (chain, hook, key) in [("in\0", INGRESS, META_IIF), ("out\0", EGRESS, META_OIF)] {
            batch.extend([new_chain((&table, chain), hook, name), accept((&table, chain), key, index)]);
        }
    }
    Ok(transact(&Socket::netfilter()?, &batch)?)
}

/// Whether [`set_closed_name`] has closed this name in the calling thread's namespace.
///
/// # Errors
/// `EPERM` without `CAP_NET_ADMIN`.
pub fn is_closed_name(name: &str) -> io::Result<bool> {
    // NFTA_TABLE_NAME
    let body = [&head(NETDEV, 0)[..], &attributes(&[(1, closed_table(name).as_bytes())])].concat();
    let found = Socket::netfilter().map(|socket| socket.request(SUBSYSTEM << 8 | GET_TABLE, &body, |_| ()));
    match found {
        Ok(Ok(())) => Ok(true),
        Ok(Err(Errno::PERM)) => Err(Errno::PERM.into()),
        // There is no such table, or no nftables.
        Ok(Err(_)) | Err(_) => Ok(false),
    }
}

/// The name of a table of [`set_closed_name`].
fn closed_table(name: &str) -> String {
    format!("unetmap-closed-{name}\0")
}

/// A message of a transaction: its number, and its attributes.
type Message = (u16, Vec<u8>);

/// The address family, version 0, and the subsystem's number for the messages around a transaction.
fn head(family: u8, resource: u16) -> Vec<u8> {
    [[family, 0], resource.to_be_bytes()].concat()
}

fn transact(socket: &Socket, messages: &[Message]) -> Result<(), Errno> {
    let around = |kind| (kind, head(0, SUBSYSTEM));
    let inside = messages.iter().map(|(kind, body)| (SUBSYSTEM << 8 | kind, [&head(NETDEV, 0)[..], body].concat()));
    let all: Vec<Message> = [around(BATCH_BEGIN)].into_iter().chain(inside).chain([around(BATCH_END)]).collect();
    socket.transaction(&all)
}

fn new_table(table: &str, flags: u32) -> Message {
    // NFTA_TABLE_NAME, NFTA_TABLE_FLAGS
    (NEW_TABLE, attributes(&[(1, table.as_bytes()), (2, &flags.to_be_bytes())]))
}

fn delete_table(table: &str) -> Message {
    (DELETE_TABLE, attributes(&[(1, table.as_bytes())]))
}

fn new_chain((table, chain): (&str, &str), hook: u32, device: &str) -> Message {
    // NFTA_HOOK_HOOKNUM, NFTA_HOOK_PRIORITY, NFTA_HOOK_DEV
    let device = [device.as_bytes(), b"\0"].concat();
    let hook = attributes(&[(1, &hook.to_be_bytes()), (2, &PRIORITY.to_be_bytes()), (3, &device)]);
    // NFTA_CHAIN_TABLE, NFTA_CHAIN_NAME, NFTA_CHAIN_HOOK, NFTA_CHAIN_POLICY, NFTA_CHAIN_TYPE
    let chain = attributes(&[
        (1, table.as_bytes()),
        (3, chain.as_bytes()),
        (4 | NESTED, &hook),
        (5, &DROP.to_be_bytes()),
        (7, b"filter\0"),
    ]);
    (NEW_CHAIN, chain)
}

/// The rule that accepts frames whose `key` (`NFT_META_*`) is `value`.
fn accept((table, chain): (&str, &str), key: u32, value: u32) -> Message {
    // NFTA_META_DREG, NFTA_META_KEY
    let load = attributes(&[(1, &REGISTER.to_be_bytes()), (2, &key.to_be_bytes())]);
    // NFTA_CMP_SREG, NFTA_CMP_OP (equal), NFTA_CMP_DATA with NFTA_DATA_VALUE
    let value = attributes(&[(1, &value.to_ne_bytes())]);
    let compare = attributes(&[(1, &REGISTER.to_be_bytes()), (2, &[0; 4]), (3 | NESTED, &value)]);
    // NFTA_IMMEDIATE_DREG, NFTA_IMMEDIATE_DATA with NFTA_DATA_VERDICT, with NFTA_VERDICT_CODE
    let code = attributes(&[(1, &ACCEPT.to_be_bytes())]);
    let verdict = attributes(&[(2 | NESTED, &code)]);
    let accept = attributes(&[(1, &VERDICT.to_be_bytes()), (2 | NESTED, &verdict)]);
    // NFTA_LIST_ELEM with NFTA_EXPR_NAME, NFTA_EXPR_DATA
    let expression = |name: &[u8], data: &[u8]| attributes(&[(1, name), (2 | NESTED, data)]);
    let expressions = [
        (1 | NESTED, &expression(b"meta\0", &load)[..]),
        (1 | NESTED, &expression(b"cmp\0", &compare)),
        (1 | NESTED, &expression(b"immediate\0", &accept)),
    ];
    // NFTA_RULE_TABLE, NFTA_RULE_CHAIN, NFTA_RULE_EXPRESSIONS
    let expressions = attributes(&expressions);
    let rule = [(1, table.as_bytes()), (2, chain.as_bytes()), (4 | NESTED, &expressions)];
    (NEW_RULE, attributes(&rule))
}

fn attributes(all: &[(u16, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    all.iter().for_each(|(kind, value)| push_attribute(&mut bytes, *kind, value));
    bytes
}

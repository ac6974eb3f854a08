// SPDX-License-Identifier: BSD-2-Clause
//! Refusals of requests about interfaces.

use unetmap_core::errno::{EACCES, EIO, ENETDOWN, ENXIO, EOPNOTSUPP, EPERM};

use crate::caller::Caller;
use crate::refusal::{Refusal, refuse, refuse_for_now};

pub(crate) fn no_such_interface<T>() -> Result<T, Refusal> {
    refuse(ENXIO, "no such interface (ip link shows them; pipes are NAME{ID and NAME}ID, ports of switches valeS:PORT)")
}

/// Refuses a request about interfaces to a user's own daemon.
pub(super) fn not_system_daemon<T>() -> Result<T, Refusal> {
    refuse(
        EPERM,
        "interfaces are opened by the system's daemon, and this is a user's own (start one as root: unetmapd)",
    )
}

/// Refuses an interface that the policy does not give to the caller.
pub(super) fn denied<T>(caller: &Caller) -> Result<T, Refusal> {
    let uid = caller.peer.uid;
    refuse(EACCES, format!("user {uid} may not open it (the policy says who may: unetmap-policy(5))"))
}

/// Refuses an interface whose driver opens no queue while it is down.
pub(super) fn interface_down<T>(name: &str) -> Result<T, Refusal> {
    refuse(ENETDOWN, format!("its driver opens no queue while it is down (ip link set dev {name} up)"))
}

/// Refuses an interface whose packets begin with an IP header, such as tun and wireguard.
pub(super) fn without_ethernet<T>() -> Result<T, Refusal> {
    refuse(
        EOPNOTSUPP,
        "its packets have no Ethernet header, and a port carries Ethernet frames: open the interface that carries its \
         packets, or a tap in place of a tun",
    )
}

/// Refuses a program that does not accept the header.
pub(in crate::ports) fn refuse_header<T>(header: u8) -> Result<T, Refusal> {
    refuse(
        EIO,
        format!(
            "its packets begin with a virtio-net header of {header} bytes, which the program must accept \
             (NR_ACCEPT_VNET_HDR)"
        ),
    )
}

/// Refuses what concerns an interface that is away.
pub(super) fn refuse_away<T>() -> Result<T, Refusal> {
    refuse_for_now("the interface is being opened or closed for another session: try again")
}

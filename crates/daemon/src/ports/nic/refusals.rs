// SPDX-License-Identifier: BSD-2-Clause
//! Refusals of requests about interfaces.

use unetmap_abi::{NR_ACCEPT_VNET_HDR, NmreqRegister};
use unetmap_core::errno::{EACCES, EIO, ENETDOWN, ENXIO, EOPNOTSUPP, EPERM};
use unetmap_sys::link::AttachedXdp;

use crate::caller::Caller;
use crate::privileged;
use crate::refusal::{Refusal, refuse, refuse_for_now};

/// Why no XDP program is attached: `EPERM`.
pub(super) const MAY_NOT_ATTACH: &str =
    "the daemon may not attach XDP programs: it needs CAP_NET_ADMIN and, in the initial user namespace, CAP_BPF";

pub(crate) fn no_such_interface<T>() -> Result<T, Refusal> {
    refuse(ENXIO, "no such interface (ip link shows them; pipes are NAME{ID and NAME}ID, ports of switches valeS:PORT)")
}

/// Refuses a request about interfaces to a user's own daemon.
pub(super) fn not_system_daemon<T>() -> Result<T, Refusal> {
    refuse(
        EPERM,
        "interfaces are opened by the system's daemon, and this is a user's own (start one as root: unetmapd; or \
         without root: unshare -Urnm, and a tmpfs at /run)",
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

/// Refuses a program that does not accept the header of packets (0 bytes: none).
pub(in crate::ports) fn check_header(header: u8, request: &NmreqRegister) -> Result<(), Refusal> {
    if header == 0 || request.nr_flags & NR_ACCEPT_VNET_HDR != 0 {
        return Ok(());
    }
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

/// Returns which other XDP program is attached, and how to detach it. A program may be detached while it is looked up.
pub(super) fn conflicting_program(name: &str, attached: Option<AttachedXdp>) -> String {
    const WHAT: &str = "another XDP program is attached";
    let Some(AttachedXdp { mode, prog_id }) = attached else {
        return format!("{WHAT} (unetmap doctor {name} shows whose, and how to detach it)");
    };
    // Only a daemon with CAP_SYS_ADMIN may read the name.
    let called = match privileged::program_name(prog_id) {
        Ok(called) if !called.is_empty() => format!("{called}, id {prog_id}"),
        _ => format!("id {prog_id}"),
    };
    let (word, option) = (mode.as_str(), mode.ip_option());
    format!(
        "{WHAT} ({called}, {word}): end the process that holds it (unetmap doctor {name} shows which), or if none does, \
         ip link set dev {name} {option} off"
    )
}

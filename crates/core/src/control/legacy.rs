// SPDX-License-Identifier: BSD-2-Clause
//! The older ioctls, `NIOCREGIF` and `NIOCGINFO`, which have one structure of 60 bytes for everything: converted to
//! current requests.

use unetmap_abi::*;
use zerocopy::IntoBytes;

use crate::control::ioctl::REBUILD;
use crate::control::request::NetmapRequest;
use crate::error::errno;

/// One of the two older ioctls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LegacyIoctl {
    /// `NIOCREGIF`.
    Register,
    /// `NIOCGINFO`.
    Info,
}

/// `nr_cmd` of a plain request.
const NONE: u16 = 0;

/// Returns the equivalent current request.
///
/// # Errors
/// `EINVAL` for a version below 14, a name that is not terminated, a mode or command that does not exist; `ENOBUFS` if
/// the name of a pipe becomes too long.
pub fn to_request(call: LegacyIoctl, old: &Nmreq) -> Result<NetmapRequest, i32> {
    if version_mismatch(old).is_some() {
        return Err(errno::EINVAL);
    }
    let name = text(&old.nr_name).ok_or(errno::EINVAL)?;
    match (call, old.nr_cmd) {
        (LegacyIoctl::Register, NONE) => register(old, name),
        (LegacyIoctl::Info, NONE) => {
            let body = NmreqPortInfoGet { nr_mem_id: old.nr_arg2, ..Default::default() };
            NetmapRequest::new(NETMAP_REQ_PORT_INFO_GET, name, body.as_bytes())
        }
        (LegacyIoctl::Register, NETMAP_VNET_HDR_GET) => {
            NetmapRequest::new(NETMAP_REQ_PORT_HDR_GET, name, NmreqPortHdr::default().as_bytes())
        }
        (LegacyIoctl::Register, NETMAP_BDG_VNET_HDR) => {
            let body = NmreqPortHdr { nr_hdr_len: old.nr_arg1.into(), ..Default::default() };
            NetmapRequest::new(NETMAP_REQ_PORT_HDR_SET, name, body.as_bytes())
        }
        (LegacyIoctl::Register, NETMAP_BDG_DETACH) => {
            NetmapRequest::new(NETMAP_REQ_VALE_DETACH, name, NmreqValeDetach::default().as_bytes())
        }
        (LegacyIoctl::Register, NETMAP_BDG_DELIF) => NetmapRequest::new(NETMAP_REQ_VALE_DELIF, name, &[]),
        (LegacyIoctl::Info, NETMAP_BDG_LIST) => {
            let body =
                NmreqValeList { nr_bridge_idx: old.nr_arg1, nr_port_idx: old.nr_arg2.into(), ..Default::default() };
            NetmapRequest::new(NETMAP_REQ_VALE_LIST, name, body.as_bytes())
        }
        (LegacyIoctl::Register, NETMAP_BDG_ATTACH) => {
            let host = old.nr_arg1 & NETMAP_BDG_HOST != 0;
            let reg = NmreqRegister {
                nr_mode: if host { NR_REG_NIC_SW } else { NR_REG_ALL_NIC },
                nr_mem_id: old.nr_arg2,
                ..Default::default()
            };
            let body = NmreqValeAttach { reg, ..Default::default() };
            NetmapRequest::new(NETMAP_REQ_VALE_ATTACH, name, body.as_bytes())
        }
        (LegacyIoctl::Register, NETMAP_BDG_NEWIF) => {
            let body = NmreqValeNewif {
                nr_tx_slots: old.nr_tx_slots,
                nr_rx_slots: old.nr_rx_slots,
                nr_tx_rings: old.nr_tx_rings,
                nr_rx_rings: old.nr_rx_rings,
                nr_mem_id: old.nr_arg2,
                ..Default::default()
            };
            NetmapRequest::new(NETMAP_REQ_VALE_NEWIF, name, body.as_bytes())
        }
        (LegacyIoctl::Register, NETMAP_BDG_POLLING_ON) => polling(NETMAP_REQ_VALE_POLLING_ENABLE, old, name),
        (LegacyIoctl::Register, NETMAP_BDG_POLLING_OFF) => polling(NETMAP_REQ_VALE_POLLING_DISABLE, old, name),
        _ => Err(errno::EINVAL),
    }
}

/// Returns netmap's message about a request of an API version that is not supported; `None` if it is.
pub fn version_mismatch(old: &Nmreq) -> Option<String> {
    let supported = old.nr_version >= u32::from(NETMAP_MIN_API);
    let requested = old.nr_version;
    (!supported).then(|| format!("Minimum supported API is {NETMAP_MIN_API} (requested {requested}) {REBUILD}"))
}

/// Writes the reply into `old`. Only these fields change, and not `nr_ringid` and `nr_flags`.
///
/// # Errors
/// `ENOMEM` if the region ends beyond 4 GiB of its file: the fields have 32 bits.
pub fn write_reply(old: &mut Nmreq, reply: &NetmapRequest) -> Result<(), i32> {
    let narrow = |long: u64| u32::try_from(long).map_err(|_| errno::ENOMEM);
    if let Some(r) = reply.body_as::<NmreqRegister>().filter(|_| reply.header.nr_reqtype == NETMAP_REQ_REGISTER) {
        (old.nr_offset, old.nr_memsize) = (narrow(r.nr_offset)?, narrow(r.nr_memsize)?);
        (old.nr_tx_slots, old.nr_rx_slots) = (r.nr_tx_slots, r.nr_rx_slots);
        (old.nr_tx_rings, old.nr_rx_rings) = (r.nr_tx_rings, r.nr_rx_rings);
        (old.nr_arg2, old.nr_arg3) = (r.nr_mem_id, r.nr_extra_bufs);
    } else if let Some(i) =
        reply.body_as::<NmreqPortInfoGet>().filter(|_| reply.header.nr_reqtype == NETMAP_REQ_PORT_INFO_GET)
    {
        old.nr_memsize = narrow(i.nr_memsize)?;
        (old.nr_tx_slots, old.nr_rx_slots) = (i.nr_tx_slots, i.nr_rx_slots);
        (old.nr_tx_rings, old.nr_rx_rings) = (i.nr_tx_rings, i.nr_rx_rings);
        old.nr_arg2 = i.nr_mem_id;
    } else if let Some(h) =
        reply.body_as::<NmreqPortHdr>().filter(|_| reply.header.nr_reqtype == NETMAP_REQ_PORT_HDR_GET)
    {
        old.nr_arg1 = h.nr_hdr_len as u16;
    } else if let Some(l) = reply.body_as::<NmreqValeList>().filter(|_| reply.header.nr_reqtype == NETMAP_REQ_VALE_LIST)
    {
        // The name is truncated to its field.
        let name = reply.name().unwrap_or_default().as_bytes();
        let most = name.len().min(old.nr_name.len() - 1);
        old.nr_name = [0; 16];
        old.nr_name[..most].copy_from_slice(&name[..most]);
        (old.nr_arg1, old.nr_arg2) = (l.nr_bridge_idx, l.nr_port_idx as u16);
    }
    Ok(())
}

/// Converts a polling request: the flags hold the mode, the ring number the first CPU, the first argument the number of
/// CPUs.
fn polling(reqtype: u16, old: &Nmreq, name: &str) -> Result<NetmapRequest, i32> {
    let body = NmreqValePolling {
        nr_mode: match old.nr_flags & NR_REG_MASK {
            NR_REG_ALL_NIC => NETMAP_POLLING_MODE_SINGLE_CPU,
            NR_REG_ONE_NIC => NETMAP_POLLING_MODE_MULTI_CPU,
            _ => 0,
        },
        nr_first_cpu_id: (old.nr_ringid & NETMAP_RING_MASK).into(),
        nr_num_polling_cpus: old.nr_arg1.into(),
        ..Default::default()
    };
    NetmapRequest::new(reqtype, name, body.as_bytes())
}

fn register(old: &Nmreq, name: &str) -> Result<NetmapRequest, i32> {
    let ring = old.nr_ringid & NETMAP_RING_MASK;
    let flags_mode = old.nr_flags & NR_REG_MASK;
    let mut pipe = None;
    let mode = match flags_mode {
        NR_REG_DEFAULT if old.nr_ringid & NETMAP_SW_RING != 0 => NR_REG_SW,
        NR_REG_DEFAULT if old.nr_ringid & NETMAP_HW_RING != 0 => NR_REG_ONE_NIC,
        NR_REG_DEFAULT => NR_REG_ALL_NIC,
        NR_REG_PIPE_MASTER | NR_REG_PIPE_SLAVE => {
            pipe = Some(if flags_mode == NR_REG_PIPE_MASTER { '{' } else { '}' });
            NR_REG_ALL_NIC
        }
        mode @ (NR_REG_ALL_NIC..=NR_REG_ONE_NIC | NR_REG_NULL | NR_REG_ONE_SW) => mode,
        _ => return Err(errno::EINVAL),
    };
    let name = match pipe {
        Some(sign) => format!("{name}{sign}{ring}"),
        None => name.to_owned(),
    };
    if name.len() >= NETMAP_REQ_IFNAMSIZ {
        return Err(ENOBUFS);
    }
    let mut flags = u64::from(old.nr_flags & !NR_REG_MASK);
    if old.nr_ringid & NETMAP_NO_TX_POLL != 0 {
        flags |= NR_NO_TX_POLL;
    }
    if old.nr_ringid & NETMAP_DO_RX_POLL != 0 {
        flags |= NR_DO_RX_POLL;
    }
    let body = NmreqRegister {
        nr_tx_slots: old.nr_tx_slots,
        nr_rx_slots: old.nr_rx_slots,
        nr_tx_rings: old.nr_tx_rings,
        nr_rx_rings: old.nr_rx_rings,
        nr_mem_id: old.nr_arg2,
        nr_ringid: if pipe.is_some() { 0 } else { ring },
        nr_mode: mode,
        nr_extra_bufs: old.nr_arg3,
        nr_flags: flags,
        ..Default::default()
    };
    NetmapRequest::new(NETMAP_REQ_REGISTER, &name, body.as_bytes())
}

/// The name does not fit into its field.
const ENOBUFS: i32 = 105;

/// Returns the text of a field up to its zero byte.
fn text(field: &[u8]) -> Option<&str> {
    let end = field.iter().position(|&b| b == 0)?;
    std::str::from_utf8(&field[..end]).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn old(name: &str) -> Nmreq {
        let mut old = Nmreq { nr_version: 14, ..Default::default() };
        old.nr_name[..name.len()].copy_from_slice(name.as_bytes());
        old
    }

    fn converted(old: &Nmreq) -> Result<(String, NmreqRegister), i32> {
        let request = to_request(LegacyIoctl::Register, old)?;
        Ok((request.name().unwrap().to_owned(), request.body_as().unwrap()))
    }

    #[test]
    fn ring_numbers_select_the_mode_that_netmap_selects() {
        for (ringid, flags, mode, ring) in [
            (0, 0, NR_REG_ALL_NIC, 0),
            (NETMAP_SW_RING, 0, NR_REG_SW, 0),
            (NETMAP_HW_RING | 3, 0, NR_REG_ONE_NIC, 3),
            (2, NR_REG_ONE_NIC, NR_REG_ONE_NIC, 2),
            (0, NR_REG_NIC_SW, NR_REG_NIC_SW, 0),
            (0, NR_REG_NULL, NR_REG_NULL, 0),
        ] {
            let (_, r) = converted(&Nmreq { nr_ringid: ringid, nr_flags: flags, ..old("eth0") }).unwrap();
            assert_eq!((r.nr_mode, r.nr_ringid), (mode, ring), "{ringid:#x} {flags:#x}");
        }
        assert_eq!(converted(&Nmreq { nr_flags: 9, ..old("eth0") }), Err(errno::EINVAL));
    }

    #[test]
    fn an_older_pipe_request_gets_a_pipe_name() {
        let (name, r) = converted(&Nmreq { nr_ringid: 7, nr_flags: NR_REG_PIPE_SLAVE, ..old("p") }).unwrap();
        assert_eq!((name.as_str(), r.nr_mode, r.nr_ringid), ("p}7", NR_REG_ALL_NIC, 0));
    }

    #[test]
    fn versions_flags_and_sizes_are_converted() {
        let of_11 = Nmreq { nr_version: 11, ..old("p") };
        assert_eq!(converted(&of_11), Err(errno::EINVAL));
        assert!(version_mismatch(&of_11).unwrap().starts_with("Minimum supported API is 14 (requested 11)"));
        assert!(converted(&Nmreq { nr_version: 99, ..old("p") }).is_ok());
        assert_eq!(converted(&Nmreq { nr_name: [b'x'; 16], ..old("") }), Err(errno::EINVAL));
        let request = Nmreq {
            nr_ringid: NETMAP_NO_TX_POLL | NETMAP_DO_RX_POLL,
            nr_flags: NR_EXCLUSIVE as u32 | NR_REG_ALL_NIC,
            nr_arg2: 5,
            nr_arg3: 6,
            nr_tx_slots: 64,
            ..old("p{1")
        };
        let (_, r) = converted(&request).unwrap();
        assert_eq!(r.nr_flags, NR_EXCLUSIVE | NR_NO_TX_POLL | NR_DO_RX_POLL);
        assert_eq!((r.nr_mem_id, r.nr_extra_bufs, r.nr_tx_slots), (5, 6, 64));
        for cmd in [NETMAP_BDG_REGOPS, NETMAP_PT_HOST_CREATE, NETMAP_PT_HOST_DELETE, 99] {
            assert_eq!(converted(&Nmreq { nr_cmd: cmd, ..old("p") }), Err(errno::EINVAL));
        }
    }

    #[test]
    fn switch_commands_are_converted() {
        let command = |cmd: u16| Nmreq { nr_cmd: cmd, nr_arg1: 1, nr_arg2: 5, ..old("vale0:eth0") };
        let converted = |old: &Nmreq| to_request(LegacyIoctl::Register, old).unwrap();
        let attach = converted(&command(NETMAP_BDG_ATTACH));
        let reg = attach.body_as::<NmreqValeAttach>().unwrap().reg;
        assert_eq!((attach.header.nr_reqtype, reg.nr_mode, reg.nr_mem_id), (NETMAP_REQ_VALE_ATTACH, NR_REG_NIC_SW, 5));
        let made = converted(&Nmreq { nr_tx_slots: 64, nr_rx_rings: 2, ..command(NETMAP_BDG_NEWIF) });
        let made = made.body_as::<NmreqValeNewif>().unwrap();
        assert_eq!((made.nr_tx_slots, made.nr_rx_rings, made.nr_mem_id), (64, 2, 5));
        let many = Nmreq { nr_flags: NR_REG_ONE_NIC, nr_ringid: NETMAP_HW_RING | 3, ..command(NETMAP_BDG_POLLING_ON) };
        let many = converted(&many).body_as::<NmreqValePolling>().unwrap();
        assert_eq!((many.nr_mode, many.nr_first_cpu_id, many.nr_num_polling_cpus), (2, 3, 1));
    }

    #[test]
    fn a_listed_port_has_its_name_truncated() {
        let mut list = Nmreq { nr_cmd: NETMAP_BDG_LIST, ..old("") };
        let mut reply = to_request(LegacyIoctl::Info, &list).unwrap();
        let named = NetmapRequest::new(NETMAP_REQ_VALE_LIST, "vale0:a_name_that_is_long", &reply.body).unwrap();
        reply.header = named.header;
        reply.body = NmreqValeList { nr_bridge_idx: 2, nr_port_idx: 7, ..Default::default() }.as_bytes().to_vec();
        write_reply(&mut list, &reply).unwrap();
        assert_eq!((&list.nr_name, list.nr_arg1, list.nr_arg2), (b"vale0:a_name_th\0", 2, 7));
    }

    #[test]
    fn only_the_documented_fields_change() {
        let before = Nmreq { nr_ringid: 7, nr_flags: NR_REG_ONE_NIC, spare2: [9], ..old("p{1") };
        let mut reply = to_request(LegacyIoctl::Register, &before).unwrap();
        let register =
            NmreqRegister { nr_offset: 1, nr_memsize: 2, nr_mem_id: 3, nr_extra_bufs: 4, ..Default::default() };
        reply.body = register.as_bytes().to_vec();
        let mut after = before;
        write_reply(&mut after, &reply).unwrap();
        assert_eq!(after, Nmreq { nr_offset: 1, nr_memsize: 2, nr_arg2: 3, nr_arg3: 4, ..before });
    }
}

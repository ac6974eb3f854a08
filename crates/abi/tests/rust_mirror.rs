// SPDX-License-Identifier: BSD-2-Clause
//! Compares the Rust structures and constants with the table of the interface: sizes, alignments, offsets, values, and
//! that none is missing.

use std::collections::BTreeMap;
use std::mem::offset_of;

use serde_json::Value;
use unetmap_abi::*;

struct Layout {
    size: usize,
    align: usize,
    /// Offset and size of each field.
    fields: BTreeMap<&'static str, (usize, usize)>,
}

/// The size of a field, by its accessor.
fn size_of_field<S, F>(_: impl Fn(&S) -> &F) -> usize {
    size_of::<F>()
}

/// The structures by their C names, with all fields that have a name in C.
macro_rules! layouts {
    ($($c:literal = $name:ident { $($field:ident)* })*) => {
        BTreeMap::from([$(($c, Layout {
            size: size_of::<$name>(),
            align: align_of::<$name>(),
            fields: BTreeMap::from([$((
                stringify!($field),
                (offset_of!($name, $field), size_of_field(|s: &$name| &s.$field)),
            )),*]),
        })),*])
    };
}

macro_rules! constants {
    ($($name:ident)*) => {
        BTreeMap::from([$((stringify!($name), $name as u64)),*])
    };
}

fn table() -> Value {
    serde_json::from_str(include_str!("data/netmap-v14.json")).unwrap()
}

/// Structures of the C helpers. They hold pointers into the program and are never sent to the daemon.
const C_ONLY: [&str; 6] = ["nm_pkthdr", "nm_stat", "nm_desc", "nmport_d", "nmem_d", "nmctx"];

fn layouts() -> BTreeMap<&'static str, Layout> {
    layouts! {
        "netmap_slot" = NetmapSlot {
            buf_idx len flags ptr
        }
        "netmap_ring" = NetmapRing {
            buf_ofs num_slots nr_buf_size ringid dir head cur tail flags ts offset_mask buf_align
            sem
        }
        "netmap_if" = NetmapIf {
            ni_name ni_version ni_flags ni_tx_rings ni_rx_rings ni_bufs_head ni_host_tx_rings
            ni_host_rx_rings ni_spare1
        }
        "nmreq" = Nmreq {
            nr_name nr_version nr_offset nr_memsize nr_tx_slots nr_rx_slots nr_tx_rings
            nr_rx_rings nr_ringid nr_cmd nr_arg1 nr_arg2 nr_arg3 nr_flags spare2
        }
        "nm_ifreq" = NmIfreq {
            nifr_name data
        }
        "nmreq_option" = NmreqOption {
            nro_next nro_reqtype nro_status nro_size
        }
        "nmreq_header" = NmreqHeader {
            nr_version nr_reqtype nr_reserved nr_name nr_options nr_body
        }
        "nmreq_register" = NmreqRegister {
            nr_offset nr_memsize nr_tx_slots nr_rx_slots nr_tx_rings nr_rx_rings nr_host_tx_rings
            nr_host_rx_rings nr_mem_id nr_ringid nr_mode nr_extra_bufs nr_flags
        }
        "nmreq_port_info_get" = NmreqPortInfoGet {
            nr_memsize nr_tx_slots nr_rx_slots nr_tx_rings nr_rx_rings nr_host_tx_rings
            nr_host_rx_rings nr_mem_id pad
        }
        "nmreq_vale_attach" = NmreqValeAttach {
            reg port_index pad1
        }
        "nmreq_vale_detach" = NmreqValeDetach {
            port_index pad1
        }
        "nmreq_vale_list" = NmreqValeList {
            nr_bridge_idx pad1 nr_port_idx
        }
        "nmreq_port_hdr" = NmreqPortHdr {
            nr_hdr_len pad1
        }
        "nmreq_vale_newif" = NmreqValeNewif {
            nr_tx_slots nr_rx_slots nr_tx_rings nr_rx_rings nr_mem_id pad1
        }
        "nmreq_vale_polling" = NmreqValePolling {
            nr_mode nr_first_cpu_id nr_num_polling_cpus pad1
        }
        "nmreq_pools_info" = NmreqPoolsInfo {
            nr_memsize nr_mem_id pad1 nr_if_pool_offset nr_if_pool_objtotal nr_if_pool_objsize
            nr_ring_pool_offset nr_ring_pool_objtotal nr_ring_pool_objsize nr_buf_pool_offset
            nr_buf_pool_objtotal nr_buf_pool_objsize
        }
        "nmreq_sync_kloop_start" = NmreqSyncKloopStart {
            sleep_us pad1
        }
        "nm_csb_atok" = NmCsbAtok {
            head cur appl_need_kick sync_flags pad
        }
        "nm_csb_ktoa" = NmCsbKtoa {
            hwcur hwtail kern_need_kick pad
        }
        "nmreq_opt_sync_kloop_eventfds" = NmreqOptSyncKloopEventfds {
            nro_opt
        }
        "nmreq_opt_sync_kloop_mode" = NmreqOptSyncKloopMode {
            nro_opt mode
        }
        "nmreq_opt_extmem" = NmreqOptExtmem {
            nro_opt nro_usrptr nro_info
        }
        "nmreq_opt_csb" = NmreqOptCsb {
            nro_opt csb_atok csb_ktoa
        }
        "nmreq_opt_offsets" = NmreqOptOffsets {
            nro_opt nro_max_offset nro_initial_offset nro_offset_bits nro_tx_align nro_min_gap
        }
    }
}

#[allow(clippy::cast_lossless, reason = "the constants are of several types")]
fn constants() -> BTreeMap<&'static str, u64> {
    constants! {
        NETMAP_API NETMAP_MIN_API NETMAP_MAX_API NM_CACHE_ALIGN NS_BUF_CHANGED NS_REPORT
        NS_FORWARD NS_NO_LEARN NS_INDIRECT NS_MOREFRAG NS_TXMON NS_PORT_SHIFT NS_PORT_MASK
        NETMAP_MAX_FRAGS NR_TIMESTAMP NR_FORWARD NI_PRIV_MEM NETMAP_REQ_MAXSIZE
        NETMAP_REQ_IFNAMSIZ NETMAP_REQ_REGISTER NETMAP_REQ_PORT_INFO_GET NETMAP_REQ_VALE_ATTACH
        NETMAP_REQ_VALE_DETACH NETMAP_REQ_VALE_LIST NETMAP_REQ_PORT_HDR_SET
        NETMAP_REQ_PORT_HDR_GET NETMAP_REQ_VALE_NEWIF NETMAP_REQ_VALE_DELIF
        NETMAP_REQ_VALE_POLLING_ENABLE NETMAP_REQ_VALE_POLLING_DISABLE NETMAP_REQ_POOLS_INFO_GET
        NETMAP_REQ_SYNC_KLOOP_START NETMAP_REQ_SYNC_KLOOP_STOP NETMAP_REQ_CSB_ENABLE
        NETMAP_REQ_OPT_EXTMEM NETMAP_REQ_OPT_SYNC_KLOOP_EVENTFDS NETMAP_REQ_OPT_CSB
        NETMAP_REQ_OPT_SYNC_KLOOP_MODE NETMAP_REQ_OPT_OFFSETS NETMAP_REQ_OPT_MAX NR_MONITOR_TX
        NR_MONITOR_RX NR_ZCOPY_MON NR_EXCLUSIVE NR_RX_RINGS_ONLY NR_TX_RINGS_ONLY
        NR_ACCEPT_VNET_HDR NR_DO_RX_POLL NR_NO_TX_POLL NR_REG_DEFAULT NR_REG_ALL_NIC NR_REG_SW
        NR_REG_NIC_SW NR_REG_ONE_NIC NR_REG_PIPE_MASTER NR_REG_PIPE_SLAVE NR_REG_NULL
        NR_REG_ONE_SW NR_REG_MASK NIOCCTRL NIOCTXSYNC NIOCRXSYNC NIOCGINFO NIOCREGIF NIOCCONFIG
        NETMAP_POLLING_MODE_SINGLE_CPU NETMAP_POLLING_MODE_MULTI_CPU NM_OPT_SYNC_KLOOP_DIRECT_TX
        NM_OPT_SYNC_KLOOP_DIRECT_RX NETMAP_HW_RING NETMAP_SW_RING NETMAP_RING_MASK
        NETMAP_NO_TX_POLL NETMAP_DO_RX_POLL NETMAP_BDG_ATTACH NETMAP_BDG_DETACH NETMAP_BDG_REGOPS
        NETMAP_BDG_LIST NETMAP_BDG_VNET_HDR NETMAP_BDG_NEWIF NETMAP_BDG_DELIF
        NETMAP_PT_HOST_CREATE NETMAP_PT_HOST_DELETE NETMAP_BDG_POLLING_ON NETMAP_BDG_POLLING_OFF
        NETMAP_VNET_HDR_GET NETMAP_BDG_HOST NM_IFRDATA_LEN NM_ERRBUF_SIZE NM_MORE_PKTS
        NM_OPEN_NO_MMAP NM_OPEN_IFNAME NM_OPEN_ARG1 NM_OPEN_ARG2 NM_OPEN_ARG3 NM_OPEN_RING_CFG
        NMREQ_OPT_MAXKEYS
    }
}

#[test]
fn structures_agree_with_the_table() {
    let (table, mut rust) = (table(), layouts());
    for (name, want) in table["structs"].as_object().unwrap() {
        if C_ONLY.contains(&name.as_str()) {
            continue;
        }
        let got = rust.remove(name.as_str()).unwrap_or_else(|| panic!("{name} is not covered"));
        assert_eq!(want["size"], got.size, "size of {name}");
        assert_eq!(want["align"], got.align, "alignment of {name}");
        let mut fields = got.fields;
        for (field, want) in want["fields"].as_object().unwrap() {
            if want["size"].is_null() {
                // A flexible array begins where the structure ends, in Rust as in C.
                assert_eq!(want["offset"], got.size, "offset of {name}.{field}");
                continue;
            }
            let Some((offset, size)) = fields.remove(field.as_str()) else {
                panic!("{name}.{field} is not covered");
            };
            assert_eq!(want["offset"], offset, "offset of {name}.{field}");
            assert_eq!(want["size"], size, "size of {name}.{field}");
        }
        assert!(fields.is_empty(), "{name} has more fields than the table: {:?}", fields.keys());
    }
    assert!(rust.is_empty(), "not in the table: {:?}", rust.keys());
}

#[test]
fn constants_agree_with_the_table() {
    let (table, mut rust) = (table(), constants());
    for (name, want) in table["constants"].as_object().unwrap() {
        let got = rust.remove(name.as_str()).unwrap_or_else(|| panic!("{name} is not covered"));
        assert_eq!(*want, got, "{name}");
    }
    assert!(rust.is_empty(), "not in the table: {:?}", rust.keys());
}

/// The elements of the flexible arrays, which have no row of their own.
#[test]
fn elements() {
    assert_eq!(size_of::<KloopEventfds>(), 8);
    assert_eq!(offset_of!(KloopEventfds, irqfd), 4);
    assert_eq!(size_of::<Timeval>(), 16);
    assert_eq!(offset_of!(Timeval, tv_usec), 8);
}

// SPDX-License-Identifier: BSD-2-Clause
//! netmap's structures with their layout on 64-bit machines. `include/net/netmap.h` documents units, bounds and writers
//! of the fields, under the same names.
//!
//! All structures can be read from and written to bytes with `zerocopy`'s traits. C's implicit padding is an explicit
//! field `_pad`, so that every byte has a value.
#![allow(missing_docs, reason = "the fields are the C header's, described there")]

use std::fmt;

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::constants::{NETMAP_REQ_IFNAMSIZ, NM_IFRDATA_LEN};

/// Declares structures of the interface: C layout, plain bytes, all zero by default. Asserts the given size.
macro_rules! layout {
    ($($(#[$meta:meta])* $name:ident: $size:literal { $($field:ident: $type:ty,)* })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $name { $(pub $field: $type,)* }

        impl Default for $name {
            fn default() -> Self {
                Self::new_zeroed()
            }
        }

        const _: () = assert!(size_of::<$name>() == $size);
    )*};
}

layout! {
    /// A slot of a ring: the index of a buffer, and the packet in it.
    NetmapSlot: 16 {
        buf_idx: u32,
        len: u16,
        flags: u16,
        ptr: u64,
    }

    /// C's `struct timeval`.
    Timeval: 16 {
        tv_sec: i64,
        tv_usec: i64,
    }

    /// The header of a ring; `num_slots` slots follow.
    #[repr(align(128))]
    NetmapRing: 256 {
        buf_ofs: i64,
        num_slots: u32,
        nr_buf_size: u32,
        ringid: u16,
        dir: u16,
        head: u32,
        cur: u32,
        tail: u32,
        flags: u32,
        _pad0: [u8; 4],
        ts: Timeval,
        offset_mask: u64,
        buf_align: u64,
        _pad1: [u8; 56],
        sem: [u8; 128],
    }

    /// The description of an open port; the rings' offsets (`isize`) follow: tx, host tx, rx, host rx.
    #[repr(align(8))]
    NetmapIf: 56 {
        ni_name: [u8; 16],
        ni_version: u32,
        ni_flags: u32,
        ni_tx_rings: u32,
        ni_rx_rings: u32,
        ni_bufs_head: u32,
        ni_host_tx_rings: u32,
        ni_host_rx_rings: u32,
        ni_spare1: [u32; 3],
    }

    /// The legacy request of `NIOCGINFO` and `NIOCREGIF`.
    Nmreq: 60 {
        nr_name: [u8; 16],
        nr_version: u32,
        nr_offset: u32,
        nr_memsize: u32,
        nr_tx_slots: u32,
        nr_rx_slots: u32,
        nr_tx_rings: u16,
        nr_rx_rings: u16,
        nr_ringid: u16,
        nr_cmd: u16,
        nr_arg1: u16,
        nr_arg2: u16,
        nr_arg3: u32,
        nr_flags: u32,
        spare2: [u32; 1],
    }

    /// The argument of `NIOCCONFIG`.
    NmIfreq: 272 {
        nifr_name: [u8; 16],
        data: [u8; NM_IFRDATA_LEN],
    }

    /// The header of each option.
    NmreqOption: 24 {
        nro_next: u64,
        nro_reqtype: u32,
        nro_status: u32,
        nro_size: u64,
    }

    /// The argument of `NIOCCTRL`: port name, request type, and pointers to the body and the options.
    NmreqHeader: 88 {
        nr_version: u16,
        nr_reqtype: u16,
        nr_reserved: u32,
        nr_name: [u8; NETMAP_REQ_IFNAMSIZ],
        nr_options: u64,
        nr_body: u64,
    }

    /// Body of `NETMAP_REQ_REGISTER`.
    NmreqRegister: 56 {
        nr_offset: u64,
        nr_memsize: u64,
        nr_tx_slots: u32,
        nr_rx_slots: u32,
        nr_tx_rings: u16,
        nr_rx_rings: u16,
        nr_host_tx_rings: u16,
        nr_host_rx_rings: u16,
        nr_mem_id: u16,
        nr_ringid: u16,
        nr_mode: u32,
        nr_extra_bufs: u32,
        _pad: [u8; 4],
        nr_flags: u64,
    }

    /// Body of `NETMAP_REQ_PORT_INFO_GET`.
    NmreqPortInfoGet: 32 {
        nr_memsize: u64,
        nr_tx_slots: u32,
        nr_rx_slots: u32,
        nr_tx_rings: u16,
        nr_rx_rings: u16,
        nr_host_tx_rings: u16,
        nr_host_rx_rings: u16,
        nr_mem_id: u16,
        pad: [u16; 3],
    }

    /// Body of `NETMAP_REQ_VALE_ATTACH`.
    NmreqValeAttach: 64 {
        reg: NmreqRegister,
        port_index: u32,
        pad1: u32,
    }

    /// Body of `NETMAP_REQ_VALE_DETACH`.
    NmreqValeDetach: 8 {
        port_index: u32,
        pad1: u32,
    }

    /// Body of `NETMAP_REQ_VALE_LIST`.
    NmreqValeList: 8 {
        nr_bridge_idx: u16,
        pad1: u16,
        nr_port_idx: u32,
    }

    /// Body of `NETMAP_REQ_PORT_HDR_SET` and `NETMAP_REQ_PORT_HDR_GET`.
    NmreqPortHdr: 8 {
        nr_hdr_len: u32,
        pad1: u32,
    }

    /// Body of `NETMAP_REQ_VALE_NEWIF`.
    NmreqValeNewif: 16 {
        nr_tx_slots: u32,
        nr_rx_slots: u32,
        nr_tx_rings: u16,
        nr_rx_rings: u16,
        nr_mem_id: u16,
        pad1: u16,
    }

    /// Body of `NETMAP_REQ_VALE_POLLING_ENABLE` and `NETMAP_REQ_VALE_POLLING_DISABLE`.
    NmreqValePolling: 16 {
        nr_mode: u32,
        nr_first_cpu_id: u32,
        nr_num_polling_cpus: u32,
        pad1: u32,
    }

    /// Body of `NETMAP_REQ_POOLS_INFO_GET`.
    NmreqPoolsInfo: 64 {
        nr_memsize: u64,
        nr_mem_id: u16,
        pad1: [u16; 3],
        nr_if_pool_offset: u64,
        nr_if_pool_objtotal: u32,
        nr_if_pool_objsize: u32,
        nr_ring_pool_offset: u64,
        nr_ring_pool_objtotal: u32,
        nr_ring_pool_objsize: u32,
        nr_buf_pool_offset: u64,
        nr_buf_pool_objtotal: u32,
        nr_buf_pool_objsize: u32,
    }

    /// Body of `NETMAP_REQ_SYNC_KLOOP_START`.
    NmreqSyncKloopStart: 8 {
        sleep_us: u32,
        pad1: u32,
    }

    /// A ring's positions as the program writes them, in CSB mode.
    NmCsbAtok: 64 {
        head: u32,
        cur: u32,
        appl_need_kick: u32,
        sync_flags: u32,
        pad: [u32; 12],
    }

    /// A ring's positions as netmap writes them, in CSB mode.
    NmCsbKtoa: 64 {
        hwcur: u32,
        hwtail: u32,
        kern_need_kick: u32,
        pad: [u32; 13],
    }

    /// The header of the SYNC_KLOOP_EVENTFDS option; one [`KloopEventfds`] for each bound ring follows, tx rings first.
    NmreqOptSyncKloopEventfds: 24 {
        nro_opt: NmreqOption,
    }

    /// The two eventfds of one ring; negative: none.
    KloopEventfds: 8 {
        ioeventfd: i32,
        irqfd: i32,
    }

    /// The SYNC_KLOOP_MODE option.
    NmreqOptSyncKloopMode: 32 {
        nro_opt: NmreqOption,
        mode: u32,
        _pad: [u8; 4],
    }

    /// The EXTMEM option.
    NmreqOptExtmem: 96 {
        nro_opt: NmreqOption,
        nro_usrptr: u64,
        nro_info: NmreqPoolsInfo,
    }

    /// The CSB option.
    NmreqOptCsb: 40 {
        nro_opt: NmreqOption,
        csb_atok: u64,
        csb_ktoa: u64,
    }

    /// The OFFSETS option.
    NmreqOptOffsets: 56 {
        nro_opt: NmreqOption,
        nro_max_offset: u64,
        nro_initial_offset: u64,
        nro_offset_bits: u32,
        nro_tx_align: u32,
        nro_min_gap: u64,
    }
}

/// A name that does not fit into a structure's name field, or a name field without a valid name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameFieldError {
    /// The name is longer than this many bytes.
    TooLong(usize),
    /// The name contains a zero byte.
    ContainsZero,
    /// The field has no terminating zero byte.
    NotTerminated,
    /// The field's bytes are not UTF-8.
    NotUtf8,
}

impl fmt::Display for NameFieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong(max) => write!(f, "the name is longer than {max} bytes"),
            Self::ContainsZero => f.write_str("the name contains a zero byte"),
            Self::NotTerminated => f.write_str("the name has no terminating zero byte"),
            Self::NotUtf8 => f.write_str("the name is not valid UTF-8"),
        }
    }
}

impl std::error::Error for NameFieldError {}

/// Returns the bytes before the first zero byte as text.
fn get_name(field: &[u8]) -> Result<&str, NameFieldError> {
    let end = field.iter().position(|&b| b == 0).ok_or(NameFieldError::NotTerminated)?;
    std::str::from_utf8(&field[..end]).map_err(|_| NameFieldError::NotUtf8)
}

/// Writes `name` and fills the rest of the field with zero bytes. Leaves the field unchanged on error.
fn set_name(field: &mut [u8], name: &str) -> Result<(), NameFieldError> {
    if name.len() >= field.len() {
        return Err(NameFieldError::TooLong(field.len() - 1));
    }
    if name.contains('\0') {
        return Err(NameFieldError::ContainsZero);
    }
    let (head, rest) = field.split_at_mut(name.len());
    head.copy_from_slice(name.as_bytes());
    rest.fill(0);
    Ok(())
}

macro_rules! names {
    ($($name:ident.$field:ident, $max:literal;)*) => {$(
        impl $name {
            /// The name, which may be empty.
            pub fn name(&self) -> Result<&str, NameFieldError> {
                get_name(&self.$field)
            }

            #[doc = concat!("Sets the name, 0..=", $max, " bytes. Changes nothing on error.")]
            pub fn set_name(&mut self, name: &str) -> Result<(), NameFieldError> {
                set_name(&mut self.$field, name)
            }
        }
    )*};
}

names! {
    NmreqHeader.nr_name, 63;
    Nmreq.nr_name, 15;
    NetmapIf.ni_name, 15;
    NmIfreq.nifr_name, 15;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_fields() {
        let mut header = NmreqHeader::default();
        assert_eq!(header.name(), Ok(""));
        let longest = "x".repeat(63);
        header.set_name(&longest).unwrap();
        assert_eq!(header.name(), Ok(longest.as_str()));
        header.set_name("lan{left").unwrap();
        assert_eq!(header.name(), Ok("lan{left"));
        assert!(header.nr_name[8..].iter().all(|&b| b == 0), "bytes of the old name are left");

        assert_eq!(header.set_name(&"x".repeat(64)), Err(NameFieldError::TooLong(63)));
        assert_eq!(header.set_name("a\0b"), Err(NameFieldError::ContainsZero));
        assert_eq!(header.name(), Ok("lan{left"), "changed on error");

        header.nr_name = [b'x'; 64];
        assert_eq!(header.name(), Err(NameFieldError::NotTerminated));
        header.nr_name[1] = 0;
        header.nr_name[0] = 0xff;
        assert_eq!(header.name(), Err(NameFieldError::NotUtf8));

        let mut legacy = Nmreq::default();
        assert_eq!(legacy.set_name(&"x".repeat(16)), Err(NameFieldError::TooLong(15)));
        assert_eq!(legacy.set_name(&"x".repeat(15)), Ok(()));
    }

    #[test]
    fn bytes_and_back() {
        let mut slot = NetmapSlot { buf_idx: 7, len: 60, flags: 1, ptr: 0 };
        let bytes: [u8; 16] = zerocopy::transmute!(slot);
        assert_eq!(bytes[..8], [7, 0, 0, 0, 60, 0, 1, 0]);
        slot.len = 0;
        assert_ne!(NetmapSlot::read_from_bytes(&bytes).unwrap(), slot);
        assert_eq!(NetmapSlot::read_from_bytes(&bytes).unwrap().as_bytes(), bytes);
    }
}
